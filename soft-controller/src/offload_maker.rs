//! Who makes the offloads of drives that an address gives to a GPU: the controller itself knows no GPU.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::backing::Backing;
use crate::offload::Offload;
use crate::timing::Timing;

/// A drive for which an [`Offload`] is wanted.
#[derive(Clone, Debug)]
pub struct OffloadRequest {
    /// The number of the GPU.
    pub gpu: u32,
    /// The drive's address, for errors.
    pub uri: String,
    /// What keeps the drive's data.
    pub backing: Arc<dyn Backing>,
    /// The size of an LBA as it is now, bytes. A Format NVM may change it: each [`Turn`](crate::Turn) has it anew.
    pub lba_bytes: u32,
    /// How fast the drive is to be.
    pub rate: OffloadRate,
}

/// How fast a drive answers reads. What is `None` has no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OffloadRate {
    /// Reads a second, of up to 512 bytes.
    pub reads_per_second: Option<f64>,
    /// Reads of 4 KiB a second.
    pub reads_4k_per_second: Option<f64>,
    /// Bytes read a second.
    pub bytes_per_second: Option<f64>,
    /// What a read takes if nothing is in its way.
    pub latency: Duration,
}

impl OffloadRate {
    /// The rates of a drive with this timing, and what one read takes: no dies, no slow reads.
    pub fn of(timing: &Timing) -> Self {
        Self {
            reads_per_second: Some(timing.small_reads),
            reads_4k_per_second: Some(timing.reads),
            bytes_per_second: Some(timing.read_bytes),
            latency: timing.read_overhead + timing.page_read,
        }
    }

    /// One part in `sharers` of the rate.
    pub fn shared_by(self, sharers: u32) -> Self {
        let part = |rate: Option<f64>| rate.map(|rate| rate / f64::from(sharers.max(1)));
        Self {
            reads_per_second: part(self.reads_per_second),
            reads_4k_per_second: part(self.reads_4k_per_second),
            bytes_per_second: part(self.bytes_per_second),
            latency: self.latency,
        }
    }
}

/// An offload, with the backing that the drive has from now on: whatever changes the data goes through that, and so reaches the
/// offload's copy too. It has the size of the requested one and passes on what that says of itself
/// ([`smallest_lba`](Backing::smallest_lba), [`wants_whole_commands`](Backing::wants_whole_commands),
/// [`deallocated_reads_zero`](Backing::deallocated_reads_zero), [`is_volatile`](Backing::is_volatile), [`depth`](Backing::depth)), and
/// does what that does to [`persist`](Backing::persist) and [`flush`](Backing::flush). Its [`engine`](Backing::engine) is never asked
/// for: all commands of a drive with an offload go through the backing itself, with `direct=1` too, and Format NVM does.
#[derive(Debug)]
pub struct Offloaded {
    /// The backing.
    pub backing: Arc<dyn Backing>,
    /// Who executes reads.
    pub offload: Box<dyn Offload>,
}

/// Makes offloads.
pub trait OffloadMaker: Send + Sync {
    /// Makes one, with the copy of the data that it needs. May take as long as that takes.
    fn make(&self, request: OffloadRequest) -> Result<Offloaded, OffloadLack>;
}

/// Why there is no offload for a drive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct OffloadLack {
    /// What kind of reason it is.
    pub kind: OffloadLackKind,
    /// What is lacking, and the remedy.
    pub text: String,
}

/// Kinds of reasons why there is no offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OffloadLackKind {
    /// The program has registered nobody who makes them.
    NotInProgram,
    /// The GPU's driver is not installed, or does not start.
    NoDriver,
    /// The driver lacks something that newer ones have.
    DriverTooOld,
    /// There is no GPU of that number.
    NoSuchGpu,
    /// Somebody has the GPU for himself.
    Taken,
    /// The GPU lacks something that newer ones have.
    TooOld,
    /// The kernel could not be compiled or loaded.
    Compiler,
    /// The data does not fit the GPU's free memory.
    Memory,
    /// The user has interrupted the making of the copy.
    Interrupted,
    /// Something else.
    Other,
}

static MAKER: OnceLock<Box<dyn OffloadMaker>> = OnceLock::new();

/// Has addresses with `gpu=` get their offloads from `maker`, in this process. The first that is registered stays; later ones are
/// dropped.
pub fn register_offloads(maker: Box<dyn OffloadMaker>) {
    let _ = MAKER.set(maker);
}

/// Whoever makes offloads in this process.
pub(crate) fn offload_maker() -> Result<&'static dyn OffloadMaker, OffloadLack> {
    MAKER.get().map(|maker| &**maker).ok_or_else(|| OffloadLack {
        kind: OffloadLackKind::NotInProgram,
        text: "this program cannot have a GPU play a drive: it has to call warprow_gpu_drive::register() before it opens one; \
               leave gpu= out: the file is the same drive without it"
            .to_owned(),
    })
}
