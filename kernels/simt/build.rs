//! Compiles the kernels as C++ into the program, where the feature `linked` asks for it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CXX");
    #[cfg(feature = "linked")]
    linked();
}

#[cfg(feature = "linked")]
fn linked() {
    for folder in [".", "../cuda", "../../gpu-queues/include"] {
        println!("cargo::rerun-if-changed={folder}");
    }
    let mut build = cc::Build::new();
    // Kernels see memory as words of several widths, and round each sum; the C++ library is not needed.
    build.cpp(true).cpp_link_stdlib(None).std("c++17").opt_level(2).warnings(false);
    for option in
        ["-fno-strict-aliasing", "-ffp-contract=off", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics"]
    {
        build.flag(option);
    }
    build.define("WARPROW_HOST", None).include(".").include("../cuda").include("../../gpu-queues/include");
    match build.file("simt.cpp").file("kernels.cpp").try_compile("warprow_simt") {
        Ok(()) => println!("cargo::rustc-cfg=kernels_linked"),
        Err(error) => {
            println!("cargo::warning=the kernels are not part of the program, for want of a C++ compiler: {error}")
        }
    }
}
