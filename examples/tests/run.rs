//! Every example runs, ends with success, and says what it did.

use std::path::Path;
use std::process::Command;

use warprow_gpu::Gpu;

/// Runs an example, which must print the line.
fn prints(example: &str, line: &str) {
    let output = Command::new(example).output().unwrap_or_else(|error| panic!("{example}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{example}: {}\n{text}{errors}", output.status);
    assert!(text.lines().any(|text| text == line), "{example} does not print {line:?}:\n{text}{errors}");
}

#[test]
fn quickstart() {
    prints(env!("CARGO_BIN_EXE_quickstart"), "every row is right");
}

#[test]
fn pooled() {
    prints(env!("CARGO_BIN_EXE_pooled"), "every sum and every mean is right");
}

#[test]
fn model_swap() {
    prints(env!("CARGO_BIN_EXE_model_swap"), "every answer belongs wholly to one version");
}

#[test]
fn updates() {
    prints(env!("CARGO_BIN_EXE_updates"), "after re-opening all 5000 rows are right");
}

#[test]
fn prefetch() {
    prints(env!("CARGO_BIN_EXE_prefetch"), "every row is right, both ways");
}

#[test]
fn gpu_graph() {
    let line = if Gpu::count() == 0 { "skipped: there is no GPU, or no CUDA driver" } else { "every row is right" };
    prints(env!("CARGO_BIN_EXE_gpu_graph"), line);
}

#[test]
fn fault() {
    prints(env!("CARGO_BIN_EXE_fault"), "after each fault every row is right again");
}

/// The page lists every example, and the manifest has every file.
#[test]
fn every_example_is_listed_and_run() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read =
        |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let page = read("README.md");
    let manifest = read("Cargo.toml");
    let test = read("tests/run.rs");
    let files = std::fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("a file").path());
    let names = files.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let name = |path: std::path::PathBuf| path.file_stem().expect("a name").to_string_lossy().into_owned();
    let names: Vec<String> = names.map(name).collect();
    assert!(names.len() > 5, "{names:?}");
    for name in &names {
        assert!(page.contains(&format!("[{name}]({name}.rs)")), "README.md does not list {name}");
        assert!(manifest.contains(&format!("path = \"{name}.rs\"")), "Cargo.toml lacks {name}");
        assert!(test.contains(&format!("CARGO_BIN_EXE_{name}\"")), "no test runs {name}");
    }
}
