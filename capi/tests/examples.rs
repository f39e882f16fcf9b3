//! The examples, and a program that does much wrong, compile against the installed library, without a warning, run, and say what they did.

mod common;

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
    let asks = |program: &std::path::Path| {
        std::fs::read(program).expect("the program").windows(name.len()).any(|it| it == name)
    };
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
