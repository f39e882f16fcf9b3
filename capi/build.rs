//! Gives the shared library the name by which programs ask for it: that of the interface's major version.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libwarprow.so.1");
}
