//! The command `warprow`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(warprow::run(std::env::args_os()))
}
