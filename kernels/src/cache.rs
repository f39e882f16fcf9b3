//! Compiled kernels on disk.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

/// Where compiled kernels are kept: `$WARPROW_CACHE`, `$XDG_CACHE_HOME/warprow` or `~/.cache/warprow`; `None` where neither is
/// set, or `$WARPROW_CACHE` is empty.
pub fn cache_directory() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from);
    match set("WARPROW_CACHE") {
        Some(chosen) => Some(chosen).filter(|path| !path.as_os_str().is_empty()),
        None => set("XDG_CACHE_HOME")
            .filter(|path| path.is_absolute())
            .or_else(|| Some(set("HOME").filter(|path| path.is_absolute())?.join(".cache")))
            .map(|cache| cache.join("warprow")),
    }
}

/// A file of the cache: the code (machine code of a `sm_…`, or PTX of a `compute_…`), then its CRC32C. Whatever is wrong with it, the kernels are compiled again.
pub(crate) struct Cache(PathBuf);

impl Cache {
    /// The file for what is compiled from `inputs`.
    pub(crate) fn of<'a>(inputs: impl Iterator<Item = &'a str>, arch: &str) -> Option<Self> {
        Some(Self::within(cache_directory()?, inputs, arch))
    }

    pub(crate) fn within<'a>(directory: PathBuf, inputs: impl Iterator<Item = &'a str>, arch: &str) -> Self {
        // A new toolchain may hash otherwise: then there is a new file.
        let mut hasher = DefaultHasher::new();
        inputs.for_each(|input| input.hash(&mut hasher));
        let ending = if arch.starts_with("compute_") { "ptx" } else { "cubin" };
        Self(directory.join(format!("lookup-{arch}-{:016x}.{ending}", hasher.finish())))
    }

    pub(crate) fn get(&self) -> Option<Vec<u8>> {
        let mut code = fs::read(&self.0).ok()?;
        let crc = code.split_off(code.len().checked_sub(4)?);
        (crc == crc32c::crc32c(&code).to_le_bytes() && !code.is_empty()).then_some(code)
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Replaced as a whole, so that nobody sees half a file. A cache that cannot be written costs a second next time.
    pub(crate) fn put(&self, code: &[u8]) {
        let temporary = self.0.with_extension(format!("{}.tmp", std::process::id()));
        let written = self.0.parent().map_or(Ok(()), fs::create_dir_all);
        let content = [code, &crc32c::crc32c(code).to_le_bytes()].concat();
        let written =
            written.and_then(|()| fs::write(&temporary, content)).and_then(|()| fs::rename(&temporary, &self.0));
        if let Err(error) = written {
            let _ = fs::remove_file(&temporary);
            tracing::debug!(%error, path = %self.0.display(), "compiled kernels are not kept");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_code_and_notices_damage() {
        let directory = tempfile::tempdir().unwrap();
        let ptx = Cache::within("d".into(), ["a"].into_iter(), "compute_80");
        assert_eq!(ptx.path().extension().unwrap(), "ptx");
        let path = directory.path().join("deeper");
        let cache = Cache::within(path.clone(), ["a", "b"].into_iter(), "sm_90");
        assert_eq!(cache.get(), None);
        cache.put(b"some code");
        assert_eq!(cache.get().as_deref(), Some(&b"some code"[..]));
        assert_eq!(Cache::within(path.clone(), ["a", "c"].into_iter(), "sm_90").get(), None);
        let mut damaged = fs::read(&cache.0).unwrap();
        damaged[3] ^= 1;
        fs::write(&cache.0, &damaged).unwrap();
        assert_eq!(cache.get(), None);
        fs::write(&cache.0, b"abc").unwrap();
        assert_eq!(cache.get(), None);
        assert_eq!(fs::read_dir(path).unwrap().count(), 1);
    }
}
