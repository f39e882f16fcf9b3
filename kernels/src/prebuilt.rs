//! Machine code that was compiled beforehand, for programs that are shipped without NVRTC.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::KernelError;
use crate::cache::Cache;
use crate::compile::{Arch, compile_anew, sources};

/// The architectures that code is made for. Code of an architecture also runs on later ones of the same major version.
const SHIPPED: [Arch; 4] = [
    Arch { major: 8, minor: 0 },
    Arch { major: 9, minor: 0 },
    Arch { major: 10, minor: 0 },
    Arch { major: 12, minor: 0 },
];

static FOLDER: OnceLock<PathBuf> = OnceLock::new();

fn file(folder: &Path, arch: Arch) -> Cache {
    let name = arch.to_string();
    Cache::within(folder.to_owned(), sources().chain([name.as_str()]), &name)
}

/// Compiles the look-up's kernels for the architectures 8.0, 9.0, 10.0 and 12.0 into `folder`, for
/// [`use_prebuilt`]; returns the files.
///
/// # Errors
/// [`KernelError::NoNvrtc`]; what NVRTC says.
pub fn prebuild(folder: &Path) -> Result<Vec<PathBuf>, KernelError> {
    let build = |arch| {
        let file = file(folder, arch);
        file.put(&compile_anew(arch)?);
        Ok(file.path().to_owned())
    };
    SHIPPED.into_iter().map(build).collect()
}

/// Has this process take the look-up's machine code from `folder`, where [`prebuild`] of the same version left it. Code of other
/// versions, and damaged files, are passed over. Only the first call counts.
pub fn use_prebuilt(folder: PathBuf) {
    let _ = FOLDER.set(folder);
}

/// The prebuilt machine code for `arch`, if there is some.
pub(crate) fn code(arch: Arch) -> Option<Vec<u8>> {
    let folder = FOLDER.get()?;
    let runs = |it: &Arch| it.major == arch.major && it.minor <= arch.minor;
    SHIPPED.into_iter().filter(runs).find_map(|it| file(folder, it).get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_found_for_its_major_version_alone() {
        let folder = tempfile::tempdir().unwrap();
        let arch = |major, minor| Arch { major, minor };
        file(folder.path(), arch(8, 0)).put(b"eight");
        use_prebuilt(folder.path().to_owned());
        assert_eq!(code(arch(8, 0)).as_deref(), Some(&b"eight"[..]));
        assert_eq!(code(arch(8, 9)).as_deref(), Some(&b"eight"[..]));
        assert_eq!(code(arch(9, 0)), None);
        std::fs::write(file(folder.path(), arch(9, 0)).path(), b"damaged").unwrap();
        assert_eq!(code(arch(9, 0)), None);
    }
}
