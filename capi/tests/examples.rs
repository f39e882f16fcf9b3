//! The examples, and a program that does much wrong, compile against the installed library, without a warning, run, and say what they did.

mod common;

use std::path::Path;
use std::process::Command;

use common::{compile, compile_statically, installed, printed, run};
use warprow_gpu::Gpu;

fn says(text: &str, line: &str) {
    assert!(text.lines().any(|it| it == line), "no line {line:?} in:\n{text}");
}

/// What the example of look-ups prints.
fn looks_up(text: &str) {
    for line in
        ["every row is right", "every row that was fetched ahead is right", "updated rows are right", "all is closed"]
    {
        says(text, line);
    }
}

#[test]
fn lookup() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = compile("examples/lookup.c", folder.path(), &[]) else { return };
    looks_up(&printed(&program, folder.path()));
}

/// The library inside the program: the program asks for no shared `libwarprow`, and does what the other does.
#[test]
fn lookup_with_the_static_library() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = compile_statically("examples/lookup.c", folder.path()) else { return };
    let name = b"libwarprow.so.1\0";
    let asks = |program: &Path| std::fs::read(program).expect("the program").windows(name.len()).any(|it| it == name);
    assert!(!asks(&program), "it asks for the shared library");
    looks_up(&printed(&program, folder.path()));
    // By that name another program does ask.
    let other = tempfile::tempdir().expect("a folder");
    assert!(compile("examples/lookup.c", other.path(), &[]).is_some_and(|shared| asks(&shared)));
}

#[test]
fn graph() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = compile("examples/graph.cpp", folder.path(), &["-ldl"]) else { return };
    let text = printed(&program, folder.path());
    match Gpu::count() {
        0 => says(&text, "skipped: there is no GPU, or no CUDA driver"),
        _ => says(&text, "every row is right"),
    }
}

/// Scales in GPU memory give what scales beside the rows give.
#[test]
fn resident_scales() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = compile("tests/resident_scales.cpp", folder.path(), &["-ldl"]) else { return };
    let text = printed(&program, folder.path());
    match Gpu::count() {
        0 => says(&text, "skipped: there is no GPU, or no CUDA driver"),
        _ => says(&text, "every row is right"),
    }
}

/// What programs do wrong comes back as a code.
#[test]
fn bad_input() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = compile("tests/bad_input.c", folder.path(), &[]) else { return };
    let text = printed(&program, folder.path());
    assert!(text.ends_with("checks, and nothing else happened\n"), "{text}");
}

/// pkg-config finds what was installed, and its flags are enough to compile a program.
#[test]
fn pkg_config() {
    let pkgconfig = installed().join("lib/pkgconfig");
    let ask = |what: &str| {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_PATH", &pkgconfig).env_remove("PKG_CONFIG_SYSROOT_DIR").args([what, "warprow"]);
        command.output().ok().map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(version) = ask("--modversion") else { return println!("skipped: there is no pkg-config") };
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    let (cflags, libs) = (ask("--cflags").expect("flags"), ask("--libs").expect("flags"));
    assert!(cflags.contains("/include") && libs.contains("-lwarprow"), "{cflags} {libs}");
}

/// CMake finds what was installed, and not as another version; it builds the examples with the shared and with the static library.
#[test]
fn cmake() {
    let cmake = std::env::var_os("CMAKE").unwrap_or_else(|| "cmake".into());
    if !Command::new(&cmake).arg("--version").output().is_ok_and(|output| output.status.success()) {
        return println!("skipped: there is no cmake, and CMAKE names none");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
    let configure = |source: &Path, build: &Path| {
        let mut command = Command::new(&cmake);
        command.arg("-S").arg(source).arg("-B").arg(build);
        command.arg(format!("-DCMAKE_PREFIX_PATH={}", installed().display()));
        command
    };
    let build = folder.path().join("build");
    run(&mut configure(Path::new(examples), &build));
    run(Command::new(&cmake).arg("--build").arg(&build));
    for program in ["lookup", "lookup_static"] {
        let drives = tempfile::tempdir().expect("a folder");
        looks_up(&printed(&build.join(program), drives.path()));
    }
    // A program that asks for an earlier or a later version gets none.
    for (wanted, fits) in
        [("", true), ("0.2", true), (env!("CARGO_PKG_VERSION"), true), ("0.1", false), ("0.3", false), ("1.0", false)]
    {
        let source = folder.path().join(format!("of-{wanted}"));
        std::fs::create_dir_all(&source).expect("a folder");
        let text =
            format!("cmake_minimum_required(VERSION 3.16)\nproject(it C)\nfind_package(warprow {wanted} REQUIRED)\n");
        std::fs::write(source.join("CMakeLists.txt"), text).expect("a file");
        let output = configure(&source, &source.join("build")).output().expect("cmake");
        assert_eq!(output.status.success(), fits, "{wanted}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The shared library is asked for by the name of its interface's major version.
#[test]
fn the_library_has_its_name() {
    let library = std::fs::read(installed().join("lib/libwarprow.so")).expect("the library");
    let name = b"libwarprow.so.1\0";
    assert!(library.windows(name.len()).any(|it| it == name), "the library has another name");
    let mut link = Command::new("readlink");
    let to = run(link.arg(installed().join("lib/libwarprow.so.1"))).stdout;
    assert_eq!(String::from_utf8_lossy(&to).trim(), concat!("libwarprow.so.1.", env!("CARGO_PKG_VERSION")));
}
