//! Reads that somebody else than the controller's threads executes: a kernel on a GPU. `docs/gpu-drive.md` says how.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use warprow_dma::{DmaMemory, PeerMemory};

/// How long a turn waits for commands behind the latest, unless the controller's builder was told how long.
pub(crate) const LINGER: Duration = Duration::from_micros(20);

/// Executes plain reads of a controller's I/O queues, for one turn at a time. The controller's only worker calls it; between two
/// turns, and only then, queues, mappings and namespaces change.
///
/// A read is *plain* if its completion is a success and nothing but the data and the completion is written: opcode 02h; FUSE and
/// PSDT zero; the namespace's NSID; CDW12 with no flag set; LBAs inside the namespace, [`MOST_BYTES`] at most;
/// PRPs that name mapped and writable memory by the specification's rules (NVMe Base 2.0, 4.1.1). An offload may leave more out, such
/// as addresses that are not a multiple of what it copies at a time.
///
/// A command that is not plain stays at the head of its queue, the queue has [`stopped`](OffloadQueue::stopped), and the turn ends for
/// all queues: the worker executes the command. A completion queue without room is no reason to stop: the offload fetches a command only
/// if it has reserved an entry for it, and looks at the head doorbell again for one.
///
/// A command that was fetched is answered in that turn: its completion is posted before [`serve`](Self::serve) returns. The head of the
/// submission queue, which every completion tells the submitter, is never put back.
pub trait Offload: Send + fmt::Debug {
    /// The host has mapped this from now on; in order of address. Memory that the offload cannot reach is left out by it, and
    /// reads into it are not plain. The controller's locks are held: this must not wait for anything, and what takes time is left to
    /// another thread or to the next call of [`reaches`](Self::reaches).
    fn remap(&mut self, mappings: &[Mapping]);

    /// Says whether it reaches memory of another device that is about to be mapped, and if not, why. What has to be done for that is done
    /// here. The controller's locks are held: this must not wait for anything that waits for the drive.
    fn admit(&mut self, memory: &dyn PeerMemory) -> Result<(), String>;

    /// Sets [`reached`](OffloadQueue::reached) of those `queues` whose two rings it reaches now; it is clear in all before. False if it
    /// does not reach the doorbells, and so serves no queue. Called before each turn, with the queues that nothing else speaks against.
    fn reaches(&mut self, turn: &Turn<'_>, queues: &mut [OffloadQueue]) -> bool;

    /// Serves those of `queues` that are [`reached`](OffloadQueue::reached) until nothing has come for `turn.linger`, for `turn.limit` at
    /// most, and until it is [asked to leave](Leave), the admin queue's doorbell has moved, or one of [`Turn::beside`] has. Writes to each
    /// queue how far it came. Queues that are not reached stay as they are.
    fn serve(&mut self, turn: &Turn<'_>, queues: &mut [OffloadQueue]) -> Result<(), OffloadFailure>;

    /// What ends a turn before its time. The same each time.
    fn leave(&self) -> Arc<dyn Leave>;
}

/// Most bytes that a plain read has.
pub const MOST_BYTES: usize = 128 << 10;

/// Ends the turns of an [`Offload`]. Called by any thread, between turns as well, and while the offload is being dropped.
pub trait Leave: Send + Sync + fmt::Debug {
    /// How often [`leave`](Self::leave) was called, modulo 2³².
    fn count(&self) -> u32;

    /// Ends the turn under way, and any that was given an earlier count: commands whose doorbell is rung after this has returned
    /// are not executed in it.
    fn leave(&self);
}

/// Memory that the host has mapped.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// The first I/O virtual address of the memory.
    pub iova: u64,
    /// Bytes of it.
    pub len: u64,
    /// Where the mapped memory lies.
    pub place: MappedPlace,
    /// Whether the controller may write there.
    pub writable: bool,
}

/// Where memory lies that the host has mapped. Memory that the controller reaches by copies alone
/// ([`map_remote_at`](crate::SoftController::map_remote_at)) is not among an offload's mappings.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum MappedPlace {
    /// In this process.
    Host(DmaMemory),
    /// In another device, at this address, after the offload has [admitted](Offload::admit) it.
    Peer {
        /// [`PeerMemory::address`].
        address: u64,
    },
}

/// A doorbell, and what was seen there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenDoorbell {
    /// Offset in the doorbells' memory.
    pub offset: usize,
    /// The 32 bits as they lay there.
    pub value: u32,
}

impl SeenDoorbell {
    /// Whether it has another value now.
    pub fn has_moved(&self, doorbells: &DmaMemory) -> bool {
        doorbells.load_u32(self.offset) != self.value
    }
}

/// What a turn is about.
#[derive(Debug)]
pub struct Turn<'a> {
    /// The doorbells: `sq_doorbell` and `cq_doorbell` of a queue are offsets in it.
    pub doorbells: &'a DmaMemory,
    /// What [`Leave::count`] was before the turn: it ends when that changes. It is looked at after each look at a doorbell and before
    /// the commands behind that doorbell are executed.
    pub leave_count: u32,
    /// The admin queue's tail doorbell, at offset 0, as it was seen: another value ends the turn.
    pub admin_seen: u32,
    /// Tail doorbells of queues that the worker serves, and that were empty: the turn ends when one moves, so that such a queue does not wait
    /// for `limit`.
    pub beside: &'a [SeenDoorbell],
    /// The namespace's identifier.
    pub nsid: u32,
    /// Base-two logarithm of the LBA size in bytes.
    pub lba_shift: u32,
    /// LBAs of the namespace.
    pub lbas: u64,
    /// Memory page size, CC.MPS, bytes.
    pub page: u64,
    /// How long to wait for the first command of the turn.
    pub linger: Duration,
    /// How long to wait for another after a command has been answered.
    pub linger_after: Duration,
    /// How long the turn lasts at most, whatever the queues hold.
    pub limit: Duration,
    /// What the controller's clock said last before the turn: the times of an [`OffloadQueue`] are by that clock.
    pub now: Duration,
}

/// A submission queue with the completion queue that it alone uses. Heads and tails are indices of the rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OffloadQueue {
    /// Identifier of the submission queue.
    pub id: u16,
    /// Where its ring begins, an I/O virtual address.
    pub sq_iova: u64,
    /// Entries of it.
    pub sq_size: u32,
    /// The next command to be fetched; the offload moves it past the commands that it has answered.
    pub sq_head: u32,
    /// Offset of the tail doorbell.
    pub sq_doorbell: usize,
    /// Where the completion queue's ring begins.
    pub cq_iova: u64,
    /// Entries of it.
    pub cq_size: u32,
    /// The next entry to be posted, and its phase; the offload moves both.
    pub cq_tail: u32,
    /// Phase of that entry.
    pub cq_phase: bool,
    /// The first entry that the host has not given back, as far as it was seen; the offload moves it.
    pub cq_head: u32,
    /// Offset of the head doorbell.
    pub cq_doorbell: usize,
    /// Commands that the offload has answered in this turn: by so many entries the submission queue's head and the completion
    /// queue's tail have moved. An offload whose figures do not fit has [failed](OffloadFailure).
    pub reads: u64,
    /// Bytes that these commands have read.
    pub bytes: u64,
    /// The next command, or a doorbell, is for the worker.
    pub stopped: bool,
    /// The offload reaches both rings.
    pub reached: bool,
    /// When it first saw a doorbell that told of commands, in this turn, if it takes that time. Without it, the controller takes the
    /// beginning of the turn in which commands were answered.
    pub first_doorbell: Option<Duration>,
    /// When it had posted the latest completion, if it takes that time. Without it, the controller takes the end of the turn.
    pub last_completion: Option<Duration>,
}

/// A turn did not come to its end, and what was served in it is not known. CSTS.CFS is set, once, and the offload is dropped: after the
/// reset the worker executes all commands. What the offload cannot release then, it has to leak by itself.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the offload of an emulated drive has failed: {0}")]
pub struct OffloadFailure(pub String);
