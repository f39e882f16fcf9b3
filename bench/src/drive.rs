//! Random reads on a drive that is there: through the driver, or as a block device through Linux and io_uring.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nix::fcntl::OFlag;
use warprow_dma::{DmaMemory, MemoryKind};
use warprow_store::{CreateDrive, Device, DriveAddress};
use warprow_uring::{FileRing, FileTransfer};

use crate::ring::{Bench, Contender, Driven, Media, RingSetup};
use crate::sustained;

/// What answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A controller: one that is bound to `vfio-pci`, or one that another process serves.
    Controller(DriveAddress),
    /// A block device, or a file.
    Block(PathBuf),
}

impl std::str::FromStr for Target {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        if text.starts_with('/') {
            return Ok(Self::Block(text.into()));
        }
        match text.parse()? {
            DriveAddress::Emulated(_) => bail!("{text}: an emulated drive is measured without --on"),
            DriveAddress::Attached(_) => bail!("{text}: a file of tables is no drive to measure"),
            address => Ok(Self::Controller(address)),
        }
    }
}

/// What a drive reached.
#[derive(Clone, Debug)]
pub struct DriveResult {
    /// Commands a second, median of rounds.
    pub commands_per_second: f64,
    /// Rounds: 8192 commands each of a block device, 50 ms of a controller.
    pub rounds: u32,
    /// Blocks compared byte for byte: all of a block device's, one in 32 of a controller's.
    pub checked: u64,
}

impl DriveResult {
    /// Microseconds from a command to its completion, on average.
    pub fn microseconds(&self, depth: u16) -> f64 {
        f64::from(depth) * 1e6 / self.commands_per_second
    }
}

/// Measures for about `time`, at least 3 rounds. The first `setup.size` bytes of the drive are overwritten, since what was never
/// written need not come from the medium.
pub fn run(target: &Target, setup: RingSetup, time: Duration) -> anyhow::Result<DriveResult> {
    setup.check()?;
    ensure!(setup.media == Media::Ram, "without data nothing can be compared");
    match target {
        Target::Controller(address) => {
            let device = Device::open(address, CreateDrive::Never)?;
            let namespace = match address {
                DriveAddress::Pci { namespace, .. } | DriveAddress::VfioUser { namespace, .. } => *namespace,
                DriveAddress::Emulated(_) | DriveAddress::Attached(_) => 1,
            };
            sustained::run(&mut Driven::on(device.function().clone(), namespace, &setup, None)?, &setup, time)
        }
        Target::Block(path) => rounds(&mut Kernel::new(path, &setup)?, setup, time),
    }
}

fn rounds(contender: &mut impl Contender, setup: RingSetup, time: Duration) -> anyhow::Result<DriveResult> {
    let mut bench = Bench::new(setup);
    let mut rates = Vec::new();
    bench.measure(contender, u64::MAX)?;
    let start = Instant::now();
    while rates.len() < 3 || start.elapsed() < time {
        rates.push(bench.measure(contender, rates.len() as u64)?);
    }
    let rounds = rates.len() as u32;
    Ok(DriveResult { commands_per_second: warprow_workload::median(rates), rounds, checked: bench.checked })
}

/// A file past the page cache, through io_uring.
#[derive(Debug)]
struct Kernel {
    ring: FileRing,
    file: Arc<File>,
    landing: DmaMemory,
    block: usize,
    /// A block device is nobody else's meanwhile.
    _exclusive: File,
}

impl Kernel {
    fn new(path: &Path, setup: &RingSetup) -> anyhow::Result<Self> {
        let name = || path.display().to_string();
        let exclusive = File::options().read(true).write(true).custom_flags(OFlag::O_EXCL.bits()).open(path);
        let exclusive = exclusive.with_context(name)?;
        let file = Arc::new(warprow_uring::open_direct(path).with_context(name)?);
        let landing = DmaMemory::allocate(setup.landing_bytes(), MemoryKind::Anonymous)?;
        let mut ring = FileRing::new(setup.depth.into()).context("io_uring")?;
        setup.write_content(|offset, bytes| {
            landing.write(0, bytes);
            let transfer =
                FileTransfer { file: file.clone(), offset, memory: landing.clone(), at: 0, len: bytes.len() };
            ring.write(0, &transfer)?;
            ring.submit_and_wait(1)?;
            let written = ring.completion().context("no completion")?.result.with_context(name)?;
            ensure!(written == bytes.len(), "{}: it ends before {} bytes", name(), offset + bytes.len() as u64);
            Ok(())
        })?;
        ring.sync(0, &file)?;
        ring.submit_and_wait(1)?;
        ring.completion().context("no completion")?.result.with_context(name)?;
        landing.fill(0, landing.len(), RingSetup::UNTOUCHED);
        Ok(Self { ring, file, landing, block: setup.block as usize, _exclusive: exclusive })
    }
}

impl Contender for Kernel {
    fn wake(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn round(&mut self, blocks: &[u64]) -> anyhow::Result<()> {
        let mut submitted = 0;
        let mut completed = 0;
        while completed < blocks.len() {
            let until = blocks.len().min(submitted + self.ring.room());
            for (i, &block) in (submitted..).zip(&blocks[submitted..until]) {
                let file = self.file.clone();
                let memory = self.landing.clone();
                let len = self.block;
                let transfer = FileTransfer { file, offset: block * len as u64, memory, at: i * len, len };
                self.ring.read(i as u64, &transfer)?;
            }
            submitted = until;
            self.ring.submit_and_wait(1)?;
            while let Some(completion) = self.ring.completion() {
                let read = completion.result?;
                ensure!(read == self.block, "a read of {} bytes brought {read}", self.block);
                completed += 1;
            }
        }
        Ok(())
    }

    fn rest(&mut self) {}

    fn landing(&self) -> &DmaMemory {
        &self.landing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETUP: RingSetup =
        RingSetup { depth: 8, block: 4096, size: 4 << 20, media: Media::Ram, seed: 3, vfio_user: false };

    #[test]
    fn a_file_is_read_past_the_page_cache() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        File::create(&path).unwrap().set_len(SETUP.size).unwrap();
        let target: Target = path.to_str().unwrap().parse().unwrap();
        let result = run(&target, SETUP, Duration::ZERO).unwrap();
        assert!(result.commands_per_second > 0.0 && result.rounds == 3);
        assert_eq!(result.checked, 4 * crate::ring::ROUND as u64);
    }

    #[test]
    fn a_controller_with_smaller_lbas_is_read() {
        let namespace =
            warprow_soft_controller::Namespace::new(warprow_soft_controller::RamBacking::new(8 << 20).unwrap());
        let drive = warprow_soft_controller::SoftController::builder().namespace(namespace.lba(512));
        let served = crate::vfio_user::Served::new(drive, None).unwrap();
        let mut driven = Driven::on(served.function.clone(), 1, &SETUP, Some(served)).unwrap();
        let result = sustained::run(&mut driven, &SETUP, Duration::ZERO).unwrap();
        let least = (result.commands_per_second * 0.05 * 3.0 / 32.0 * 0.5) as u64;
        assert!(result.rounds == 3 && result.checked > least.max(8), "{result:?}");
        // Another's content would be found.
        let other = RingSetup { seed: SETUP.seed + 1, ..SETUP };
        assert!(sustained::run(&mut driven, &other, Duration::ZERO).is_err());
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        assert!("emulated:x".parse::<Target>().is_err() && "nvme0".parse::<Target>().is_err());
        let absent: Target = "/nonexistent/file".parse().unwrap();
        assert!(format!("{:#}", run(&absent, SETUP, Duration::ZERO).unwrap_err()).contains("/nonexistent/file"));
        let nobody: Target = "vfio-user:/nonexistent/s".parse().unwrap();
        assert!(run(&nobody, SETUP, Duration::ZERO).is_err());
    }
}
