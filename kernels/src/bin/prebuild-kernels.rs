//! Compiles the look-up's kernels for programs that are shipped without NVRTC. Needs NVRTC, and no GPU.
//!
//!     cargo run --release -p warprow-kernels --bin prebuild-kernels -- FOLDER

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("give the folder to write to");
        return ExitCode::FAILURE;
    };
    match warprow_kernels::prebuild(Path::new(&folder)) {
        Ok(files) => {
            files.iter().for_each(|file| println!("{}", file.display()));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
