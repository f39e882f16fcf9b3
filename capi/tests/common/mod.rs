//! The compilers of the system, and the library as it is installed.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Warnings are errors.
pub(crate) const FLAGS_OF_C: &[&str] =
    &["-Wall", "-Wextra", "-Wpedantic", "-Wno-missing-field-initializers", "-Werror"];
pub(crate) const FLAGS_OF_CPP: &[&str] = &["-Wall", "-Wextra", "-Wpedantic", "-Werror"];

/// The compiler of a language ("c" or "cpp"): `$CC` or `cc`, `$CXX` or `c++`. Where there is none, one line says so.
pub(crate) fn compiler(language: &str) -> Option<Command> {
    let (variable, usual) = if language == "c" { ("CC", "cc") } else { ("CXX", "c++") };
    let name = std::env::var_os(variable).unwrap_or_else(|| usual.into());
    match Command::new(&name).arg("--version").output() {
        Ok(output) if output.status.success() => Some(Command::new(name)),
        _ => {
            println!("skipped: there is no compiler {name:?}");
            None
        }
    }
}

/// Runs a command, which must succeed.
pub(crate) fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{text}{errors}", output.status);
    output
}

/// Where the library lies that was built for this test.
fn built() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    let folder = test.parent().expect("the folder deps").to_owned();
    assert!(folder.join("libwarprow_capi.so").exists(), "{} lacks libwarprow_capi.so", folder.display());
    folder
}

/// The folder below which `install.sh` has installed the library, for this test.
pub(crate) fn installed() -> &'static Path {
    static INSTALLED: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = INSTALLED.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("install.sh");
        let mut install = Command::new("bash");
        install.arg(script).arg("--prefix").arg(folder.path()).arg("--from").arg(built());
        run(&mut install);
        folder
    });
    folder.path()
}

/// Compiles a source against the installed shared library; `None`: there is no compiler.
pub(crate) fn compile(source: &str, folder: &Path, further: &[&str]) -> Option<PathBuf> {
    let lib = installed().join("lib");
    let library = [format!("-L{}", lib.display()), format!("-Wl,-rpath,{}", lib.display()), "-lwarprow".to_owned()];
    compile_with(source, folder, library.iter().map(String::as_str).chain(further.iter().copied()))
}

/// Compiles a source with the installed static library in the program, and with what `warprow.pc` says that it needs besides.
pub(crate) fn compile_statically(source: &str, folder: &Path) -> Option<PathBuf> {
    let library = installed().join("lib/libwarprow.a").display().to_string();
    let description = std::fs::read_to_string(installed().join("lib/pkgconfig/warprow.pc")).expect("warprow.pc");
    let needs = description.lines().find_map(|line| line.strip_prefix("Libs.private:")).expect("Libs.private");
    compile_with(source, folder, [library.as_str()].into_iter().chain(needs.split_whitespace()))
}

/// Compiles a source; `library`: what comes behind it.
fn compile_with<'a>(source: &str, folder: &Path, library: impl Iterator<Item = &'a str>) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let language = source.extension().expect("an ending").to_str().expect("text");
    let mut command = compiler(language)?;
    let (flags, standard) = if language == "c" { (FLAGS_OF_C, "-std=c99") } else { (FLAGS_OF_CPP, "-std=c++17") };
    let program = folder.join("program");
    command.args(flags).args([standard, "-g", "-I"]).arg(installed().join("include")).arg(&source);
    run(command.args(library).arg("-o").arg(&program));
    Some(program)
}

/// What a program prints that is given the file of a drive; it must end well.
pub(crate) fn printed(program: &Path, folder: &Path) -> String {
    let output = run(Command::new(program).arg(folder.join("a.drive")));
    String::from_utf8(output.stdout).expect("text")
}
