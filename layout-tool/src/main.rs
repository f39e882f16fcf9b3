//! The command `warprow`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    // What is caught, and told as an error about a file, is not told twice.
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !warprow_formats::panic_is_caught() {
            print(panic);
        }
    }));
    ExitCode::from(warprow::run(std::env::args_os()))
}
