//! The committed header has all functions, and compiles as C and as C++. That it is the one that is made of this crate, `.ci/run`
//! checks with `capi/header`.

mod common;

use std::path::Path;

use common::{FLAGS_OF_C, FLAGS_OF_CPP, compiler, run};

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

/// Every function of the crate is in the header.
#[test]
fn the_header_has_every_function() {
    let header = std::fs::read_to_string(Path::new(FOLDER).join("include/warprow.h")).expect("the header");
    let mut functions = 0;
    for file in std::fs::read_dir(Path::new(FOLDER).join("src")).expect("the sources") {
        let source = std::fs::read_to_string(file.expect("a file").path()).expect("a source file");
        for (at, _) in source.match_indices("extern \"C\" fn warprow_") {
            let name = source[at + "extern \"C\" fn ".len()..].split('(').next().expect("a name");
            assert!(header.contains(&format!("{name}(")), "the header lacks {name}");
            assert!(source[..at].trim_end().ends_with("pub unsafe") || source[..at].trim_end().ends_with("pub"));
            functions += 1;
        }
    }
    assert!(functions > 40, "the sources were not understood: {functions}");
}

/// The header alone compiles, under the strictest warnings, as C99 and as C++11.
#[test]
fn the_header_compiles_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    for (language, flags, standard) in [("c", FLAGS_OF_C, "-std=c99"), ("cpp", FLAGS_OF_CPP, "-std=c++11")] {
        let source = folder.path().join(format!("header.{language}"));
        std::fs::write(&source, "#include <warprow.h>\n#include <warprow.h>\nint main(void) { return 0; }\n")
            .expect("written");
        let Some(mut compile) = compiler(language) else { continue };
        compile.args(flags).args([standard, "-fsyntax-only", "-I"]).arg(Path::new(FOLDER).join("include")).arg(&source);
        run(&mut compile);
    }
}
