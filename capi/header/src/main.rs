//! Makes `include/warprow.h` of the crate `warprow-capi`, or, with `--check`, fails if the committed header is another.
//!
//!     cargo run --manifest-path capi/header/Cargo.toml [-- --check]

use std::path::Path;
use std::process::ExitCode;

/// The order of the header: that of these files of the crate; then come all others.
const ORDER: [&str; 16] = [
    "abi.rs",
    "status.rs",
    "error.rs",
    "types.rs",
    "store.rs",
    "tables.rs",
    "load.rs",
    "load_file.rs",
    "update.rs",
    "plan.rs",
    "batch.rs",
    "report.rs",
    "host.rs",
    "gpu.rs",
    "gpu_lookup.rs",
    "ngrams.rs",
];

fn main() -> ExitCode {
    let is_check = std::env::args().nth(1).is_some_and(|argument| argument == "--check");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let path = folder.join("include/warprow.h");
    let made = cbindgen::Config::from_file(folder.join("cbindgen.toml")).and_then(|config| {
        let sources = std::fs::read_dir(folder.join("src")).map_err(|error| error.to_string())?;
        let mut files = sources.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>();
        if let Ok(files) = &mut files {
            // The other files are modules of this file.
            files.retain(|file| !file.ends_with("lib.rs"));
            let place =
                |file: &std::path::PathBuf| ORDER.iter().position(|it| file.ends_with(it)).unwrap_or(ORDER.len());
            files.sort_by_key(|file| (place(file), file.clone()));
        }
        let mut builder = cbindgen::Builder::new().with_config(config);
        for file in files.map_err(|error| error.to_string())? {
            builder = builder.with_src(file);
        }
        builder.generate().map_err(|error| error.to_string())
    });
    let header = match made {
        Ok(bindings) => {
            let mut header = Vec::new();
            bindings.write(&mut header);
            // What Rust calls a contract is for a C program a matter of course.
            let text = String::from_utf8_lossy(&header);
            let text = text.replace("//\n// # Safety\n// Pointers are valid as said; see docs/capi.md.\n", "");
            text.replace("// # Safety\n", "").into_bytes()
        }
        Err(error) => {
            eprintln!("no header can be made: {error}");
            return ExitCode::FAILURE;
        }
    };
    let committed = std::fs::read(&path).unwrap_or_default();
    if is_check && committed != header {
        eprintln!("{} is not what is made of the crate: run this without --check, and commit it", path.display());
        return ExitCode::FAILURE;
    }
    if !is_check && let Err(error) = std::fs::write(&path, &header) {
        eprintln!("{} cannot be written: {error}", path.display());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
