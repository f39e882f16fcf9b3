//! A file to measure on: without a name, so that nothing is left behind however this process ends.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, ensure};
use nix::sys::statvfs::statvfs;
use warprow_soft_controller::{self as soft, DirectBacking, Namespace, SoftController};
use warprow_workload::FileSystem;
use warprow_workload::rival::PageCaching;

use crate::Cores;

/// A file of some size, sparse at first.
#[derive(Debug)]
pub struct Scratch {
    file: File,
    size: u64,
    filesystem: Option<FileSystem>,
}

impl Scratch {
    /// A file of `size` bytes in `directory`, where there must be that much room.
    pub fn new(directory: &Path, size: u64) -> anyhow::Result<Self> {
        let shown = directory.display();
        let found = statvfs(directory).with_context(|| format!("{shown} cannot be used; choose another with --dir"))?;
        let free = found.blocks_available().saturating_mul(found.fragment_size());
        ensure!(
            free >= size,
            "{size} bytes are needed in {shown}, {free} are free; choose another directory with --dir, or a smaller --size"
        );
        let file = tempfile::tempfile_in(directory)
            .and_then(|file| file.set_len(size).map(|()| file))
            .with_context(|| format!("no file can be made in {shown}; choose another directory with --dir"))?;
        Ok(Self { file, size, filesystem: FileSystem::of(directory) })
    }

    /// $TMPDIR or /var/tmp, if they are there and not in memory; else the working directory.
    pub fn default_directory() -> PathBuf {
        let on_disk = |path: &PathBuf| {
            path.is_dir() && !FileSystem::of(path).is_some_and(|found| matches!(&*found.kind, "tmpfs" | "ramfs"))
        };
        let places = [std::env::var_os("TMPDIR").map(PathBuf::from), Some("/var/tmp".into())];
        places.into_iter().flatten().find(on_disk).unwrap_or_else(|| ".".into())
    }

    /// How this process opens it, for as long as this lives.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }

    /// How another process opens it, for as long as this one and this live.
    pub fn path_for_others(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The type of the file system that it lies on.
    pub fn filesystem(&self) -> &str {
        self.filesystem.as_ref().map_or("unknown", |found| &found.kind)
    }

    /// The smallest LBA of a drive on it, bytes: what direct transfers allow, 512 at least.
    pub fn smallest_lba(&self, caching: PageCaching) -> anyhow::Result<u32> {
        Ok(match caching {
            PageCaching::Cached => 512,
            PageCaching::Direct => warprow_uring::alignment(&self.file)?.offset.max(512).try_into()?,
        })
    }

    /// An emulated drive on it, number `index` of those in a store, whose worker runs on the answering core.
    pub fn drive(
        &self,
        index: usize,
        caching: PageCaching,
        lba: u32,
        cores: Option<&Cores>,
    ) -> anyhow::Result<Arc<SoftController>> {
        let namespace = match caching {
            PageCaching::Cached => Namespace::new(soft::FileBacking::new(self.file.try_clone()?)?),
            PageCaching::Direct => {
                let file = warprow_uring::open_direct(&self.path())
                    .with_context(|| format!("{} does not take O_DIRECT", self.filesystem()))?;
                Namespace::new(DirectBacking::new(file, self.size).context("no direct drive")?)
            }
        };
        let name = format!("emulated:scratch{index}");
        let seed = index as u64;
        let builder = SoftController::builder().name(name).seed(seed).namespace(namespace.lba(lba));
        Ok(Cores::answering(cores, index, || builder.build())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_room_or_place_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let error = Scratch::new(directory.path(), u64::MAX / 4).unwrap_err().to_string();
        assert!(error.contains("are free") && error.contains("--dir"), "{error}");
        let error = format!("{:#}", Scratch::new(Path::new("/no/such/directory"), 4096).unwrap_err());
        assert!(error.contains("/no/such/directory") && error.contains("--dir"), "{error}");
        let scratch = Scratch::new(directory.path(), 1 << 20).unwrap();
        assert_eq!(std::fs::metadata(scratch.path()).unwrap().len(), 1 << 20);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
