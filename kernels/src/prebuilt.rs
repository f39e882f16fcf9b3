//! Code that was compiled beforehand, for programs that are shipped without NVRTC.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

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

/// The architecture whose PTX is made besides: the driver of any GPU of this or a later one compiles it, when it loads the kernels.
const PORTABLE: Arch = Arch { major: 8, minor: 0 };

static FOLDER: OnceLock<PathBuf> = OnceLock::new();

fn file(folder: &Path, target: &str) -> Cache {
    Cache::within(folder.to_owned(), sources().chain([target]), target)
}

/// Compiles the look-up's kernels into `folder`, for [`use_prebuilt`]: machine code for the architectures 8.0, 9.0, 10.0 and 12.0, and PTX
/// for all others from 8.0 on. What is there already stays. Returns the files.
///
/// # Errors
/// [`KernelError::NoNvrtc`]; what NVRTC says; [`KernelError::NotKept`] if a file cannot be written.
pub fn prebuild(folder: &Path) -> Result<Vec<PathBuf>, KernelError> {
    let targets: Vec<String> = SHIPPED.iter().map(Arch::to_string).chain([PORTABLE.portable()]).collect();
    let build = |target: &String| {
        let file = file(folder, target);
        if file.get().is_none() {
            file.put(&compile_anew(target)?);
        }
        match file.get() {
            Some(_) => Ok(file.path().to_owned()),
            None => Err(KernelError::NotKept { path: file.path().to_owned() }),
        }
    };
    // NVRTC takes half a minute for each, on one core.
    let next = AtomicUsize::new(0);
    let built: Mutex<Vec<(usize, Result<PathBuf, KernelError>)>> = Mutex::default();
    let workers = thread::available_parallelism().map_or(1, usize::from).min(targets.len());
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(target) = targets.get(at) else { return };
                    let file = build(target);
                    built.lock().unwrap_or_else(PoisonError::into_inner).push((at, file));
                }
            });
        }
    });
    let mut built = built.into_inner().unwrap_or_else(PoisonError::into_inner);
    built.sort_by_key(|(at, _)| *at);
    built.into_iter().map(|(_, file)| file).collect()
}

/// Has this process take the look-up's code from `folder`, where [`prebuild`] of the same version left it. Code of other versions, and
/// damaged files, are passed over. Only the first call counts.
pub fn use_prebuilt(folder: PathBuf) {
    let _ = FOLDER.set(folder);
}

/// The prebuilt code for `arch`, if there is some: machine code, or else PTX.
pub(crate) fn code(arch: Arch) -> Option<Vec<u8>> {
    code_in(FOLDER.get()?, arch)
}

fn code_in(folder: &Path, arch: Arch) -> Option<Vec<u8>> {
    let runs = |it: &Arch| it.major == arch.major && it.minor <= arch.minor;
    let machine_code = SHIPPED.into_iter().filter(runs).find_map(|it| file(folder, &it.to_string()).get());
    let portable = || {
        let compiles = (arch.major, arch.minor) >= (PORTABLE.major, PORTABLE.minor);
        let code = compiles.then(|| file(folder, &PORTABLE.portable()).get()).flatten()?;
        tracing::info!("the driver compiles the kernels for {arch}, for which no machine code was shipped");
        Some(code)
    };
    machine_code.or_else(portable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_code_is_for_its_major_version_and_ptx_for_all_others() {
        let folder = tempfile::tempdir().unwrap();
        let found = |major, minor| {
            let code = code_in(folder.path(), Arch { major, minor });
            code.map(|code| String::from_utf8(code).unwrap())
        };
        let file = |target: &str| file(folder.path(), target);
        file("sm_80").put(b"eight");
        assert_eq!((found(8, 0).as_deref(), found(8, 9).as_deref()), (Some("eight"), Some("eight")));
        // Without PTX, others have nothing.
        assert_eq!((found(9, 0), found(11, 0), found(7, 5)), (None, None, None));
        file("compute_80").put(b"portable\0");
        for (major, minor) in [(9, 0), (10, 3), (11, 0), (12, 1), (13, 0)] {
            assert_eq!(found(major, minor).as_deref(), Some("portable\0"), "{major}.{minor}");
        }
        assert_eq!(found(8, 6).as_deref(), Some("eight"));
        assert_eq!(found(7, 5), None);
        file("sm_120").put(b"twelve");
        assert_eq!(found(12, 1).as_deref(), Some("twelve"));
        // Damaged machine code gives way to PTX, and damaged PTX to nothing.
        std::fs::write(file("sm_90").path(), b"damaged").unwrap();
        assert_eq!(found(9, 0).as_deref(), Some("portable\0"));
        std::fs::write(file("compute_80").path(), b"damaged").unwrap();
        assert_eq!(found(9, 0), None);
    }

    /// That a process takes the code from the folder that it was told first.
    #[test]
    fn a_process_uses_one_folder() {
        let folder = tempfile::tempdir().unwrap();
        file(folder.path(), "sm_80").put(b"eight");
        use_prebuilt(folder.path().to_owned());
        use_prebuilt("elsewhere".into());
        assert_eq!(code(Arch { major: 8, minor: 0 }).as_deref(), Some(&b"eight"[..]));
    }

    /// Nothing is compiled again, so this needs no NVRTC.
    #[test]
    fn what_is_there_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        for target in SHIPPED.iter().map(Arch::to_string).chain([PORTABLE.portable()]) {
            file(folder.path(), &target).put(target.as_bytes());
        }
        let files = prebuild(folder.path()).unwrap();
        assert_eq!(files.len(), SHIPPED.len() + 1);
        assert!(files.iter().all(|file| file.exists()));
        assert_eq!(code_in(folder.path(), Arch { major: 9, minor: 0 }).as_deref(), Some(&b"sm_90"[..]));
    }
}
