//! The structures that host and kernels share for a queue: what the host hands a kernel, and what both write.
//! `include/queue_abi.h` declares the same in C; a test compares the two. A *slot* in this file is a batch slot
//! (`docs/gpu-rings.md`).

use std::fmt;
use std::mem::offset_of;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use warprow_dma::DmaMemory;
use warprow_spec::Status;

/// The C declarations of this module, for whoever compiles a kernel.
pub const HEADER: &str = include_str!("../include/queue_abi.h");

/// Threads of the block that drives a queue, and commands of a batch (T).
pub const LANES: u32 = 256;
/// Most batches in flight on a queue (K).
pub const MAX_BATCHES: usize = 8;

/// [`QueueDescriptor::doorbell_kind`]: ordinary memory, stored to with `st.relaxed.sys`.
pub const DOORBELL_MEMORY: u32 = 0;
/// [`QueueDescriptor::doorbell_kind`]: a device's register, stored to with `st.mmio.relaxed.sys`.
pub const DOORBELL_MMIO: u32 = 1;

/// [`Fault::kind`]: nothing.
pub const FAULT_NONE: u32 = 0;
/// [`Fault::kind`]: commands were not answered in time.
pub const FAULT_TIMED_OUT: u32 = 1;
/// [`Fault::kind`]: the gate closed while commands were outstanding.
pub const FAULT_CLOSED: u32 = 2;
/// [`Fault::kind`]: the host gave the drive up.
pub const FAULT_GIVEN_UP: u32 = 3;

/// Offset of the gate's `closed` in its pinned memory: u32, not zero while launches stay out.
pub const GATE_CLOSED: usize = 0;
/// Offset of the gate's `inside`: u64, the launch that is inside, or zero. On a line of its own.
pub const GATE_INSIDE: usize = 128;
/// Bytes of a gate.
pub const GATE_BYTES: usize = 256;

/// One queue pair, for the thread block that drives it. Constant while the queue lives. Pointers are device pointers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueDescriptor {
    /// The submission queue: `sq_size` entries of 64 B.
    pub sq: u64,
    /// The completion queue: `cq_size` entries of 16 B.
    pub cq: u64,
    /// The landing area: [`LANES`] · `batches` places of `landing_stride` bytes. What command (slot, lane) reads lands
    /// in place slot · [`LANES`] + lane.
    pub landing: u64,
    /// Where the controller sees the landing area: PRP1 is this + place · `landing_stride`.
    pub landing_iova: u64,
    /// SQ tail doorbell, u32.
    pub sq_tail: u64,
    /// CQ head doorbell, u32.
    pub cq_head: u64,
    /// [`QueueState`], in GPU memory.
    pub state: u64,
    /// [`Fault`], in pinned memory.
    pub fault: u64,
    /// The most nanoseconds from the doorbell of a batch to the batch's last completion.
    pub timeout_ns: u64,
    /// Bytes of a place: a power of two from the LBA size to 65536. Up to 4096 a place never crosses a page, and PRP2
    /// is 0; else PRP2 is PRP1 + 4096 for commands of two pages, and their place in `prp_list` for longer ones.
    pub landing_stride: u32,
    /// Entries of the submission queue.
    pub sq_size: u32,
    /// Entries of the completion queue.
    pub cq_size: u32,
    /// [`DOORBELL_MEMORY`] or [`DOORBELL_MMIO`].
    pub doorbell_kind: u32,
    /// NVMe queue identifier, from 1.
    pub queue_id: u32,
    /// Index of the drive in its queue set.
    pub drive: u32,
    /// NVMe namespace identifier.
    pub nsid: u32,
    /// An LBA is 1 << this many bytes.
    pub lba_shift: u32,
    /// K: batches in flight; T · K < min(`sq_size`, `cq_size`).
    pub batches: u32,
    /// CID = generation << this | slot · [`LANES`] + lane.
    pub cid_shift: u32,
    /// A slot's generation counts modulo this, so that no CID is FFFFh.
    pub generations: u32,
    /// Which rows of different LBAs share a command: [`ReadWindow::word`].
    pub window: u32,
    /// The PRP list of the landing area, as the controller sees it: for each page a u64, the page's address. Used if
    /// `landing_stride` > 8192.
    pub prp_list: u64,
}

/// Which rows share a read command of a queue. Rows of one LBA always do. Rows of different LBAs do if they lie whole
/// in one aligned window of the drive, with at most `gap` LBAs between each and the next. With the default they never
/// do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadWindow {
    /// log₂ of the window's LBAs, 0 to 16. 0: no rows of different LBAs share a command.
    pub shift: u32,
    /// The most LBAs between two rows that share a command; these LBAs are read for nothing. Below 2²⁴.
    pub gap: u32,
}

impl ReadWindow {
    /// [`QueueDescriptor::window`].
    pub fn word(self) -> u32 {
        if self.shift == 0 { 0 } else { self.gap << 8 | self.shift }
    }
}

/// What the block that drives a queue keeps from launch to launch, in GPU memory. A queue that was just created has
/// zeros in all fields. Blocks of the drive's other queues look at `poison` and, behind an acquire, at `poisoned_by`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueState {
    /// Index of the next SQ entry to write, below `sq_size`.
    pub tail: u32,
    /// Index of the next CQ entry to look at, below `cq_size`.
    pub head: u32,
    /// Times that `head` wrapped: the phase of a new entry is (`turn` + 1) & 1.
    pub turn: u32,
    /// Not zero if the queue is poisoned: a `FAULT_*`, and the queue takes no command until the host has recreated it.
    /// Stored behind a release.
    pub poison: u32,
    /// How often each batch slot was used, modulo [`QueueDescriptor::generations`].
    pub generation: [u32; MAX_BATCHES],
    /// Completions that answer no outstanding command.
    pub anomalies: u32,
    /// Reserved: zero.
    pub unused: u32,
    /// Commands submitted since the queue was created.
    pub commands: u64,
    /// Doorbells stored since the queue was created.
    pub doorbells: u64,
    /// Number of the launch that stored `poison`. For this launch the queue still counts as healthy.
    pub poisoned_by: u64,
    /// Reserved: zero.
    pub reserved: [u32; 12],
}

/// What went wrong on a queue, in pinned memory: written by the block that met it, `kind` last, behind a release.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// Why the block gave up: a `FAULT_*`.
    pub kind: u32,
    /// Index of the drive in its queue set, as in the descriptor.
    pub drive: u32,
    /// NVMe queue identifier.
    pub queue: u32,
    /// Identifier of a command that was outstanding when the block gave up.
    pub cid: u32,
    /// First LBA of the command that `cid` names.
    pub lba: u64,
    /// Nanoseconds that the block waited, from the command's doorbell on.
    pub waited_ns: u64,
    /// Number of the launch in which the block gave up, counted by its slot from 1.
    pub launch: u64,
    /// Commands outstanding when the block gave up.
    pub outstanding: u32,
    /// Status field of the first command that ended with an error in the latest launch in which one did; stored last of
    /// the `failed_*` fields. 0: no command failed since the queue was created, or these fields are being written.
    pub status: u32,
    /// First LBA of the command that `status` is of.
    pub failed_lba: u64,
    /// Number of the launch in which the command that `status` is of ended.
    pub failed_launch: u64,
    /// Identifier of the command that `status` is of.
    pub failed_cid: u32,
    /// Reserved: zero.
    pub unused: u32,
    /// Number of the latest launch in which a command succeeded; 0: none since the queue was created.
    pub answered: u64,
    /// Rank of the *damaged row*: the first row that did not match its checksum, in the latest launch in which some row
    /// did not.
    pub damaged_rank: u64,
    /// First LBA of the command that read the damaged row.
    pub damaged_lba: u64,
    /// Number of the launch that read the damaged row; stored last of the `damaged_*` fields. 0: there is no damaged
    /// row, or these fields are being written.
    pub damaged_launch: u64,
    /// Index of the damaged row's table among the tables of the launch.
    pub damaged_table: u32,
    /// Identifier of the command that read the damaged row.
    pub damaged_cid: u32,
    /// Reserved: zero.
    pub reserved: [u32; 4],
}

/// Reads of one LBA each, through one queue: what the kernel of a [`RingTest`](crate::RingTest) is told, by value. One
/// block of [`LANES`] threads carries them out, and is inside the gate meanwhile.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingReads {
    /// Address of the [`QueueDescriptor`].
    pub queue: u64,
    /// Address of the gate, in pinned memory.
    pub gate: u64,
    /// Number of the launch, from 1.
    pub launch: u64,
    /// Address of `count` u64: the LBAs to read.
    pub lbas: u64,
    /// Address of `count` places of one LBA each, for what was read, in the order of `lbas`.
    pub landed: u64,
    /// Address of `count` u32, zero before the launch: 1 where the command succeeded.
    pub is_read: u64,
    /// How many reads there are.
    pub count: u64,
}

/// A command that ended with an error status. The queue that carried it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedCommand {
    /// The status.
    pub status: Status,
    /// The command's identifier.
    pub cid: u16,
    /// First LBA that the command reads.
    pub lba: u64,
    /// Number of the launch, counted by its slot from 1.
    pub launch: u64,
}

/// A row that did not match its checksum. The queue that read it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamagedRow {
    /// Index of the row's table among those of the launch.
    pub table: u32,
    /// The row's rank.
    pub rank: u64,
    /// Identifier of the command that read it.
    pub cid: u16,
    /// First LBA of that command.
    pub lba: u64,
    /// Number of the launch, counted by its slot from 1.
    pub launch: u64,
}

/// How often the host looks at what a kernel is writing before it gives up: many times more often than is needed.
const LOOKS: u32 = 10_000;

impl QueueDescriptor {
    /// The bytes of the descriptor, as the kernels read it.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: a structure of integers without padding: its fields make up its size (asserted below).
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
}

impl QueueState {
    /// The bytes of the state, as a kernel reads it.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: a structure of integers without padding: its fields make up its size (asserted below).
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    /// The state that has these bytes, as a kernel left them.
    pub fn from_bytes(bytes: [u8; size_of::<Self>()]) -> Self {
        // SAFETY: every pattern of bits is a value of a structure of integers, of the same size.
        unsafe { std::mem::transmute(bytes) }
    }
}

impl Fault {
    /// Stores the fault that the drive of `queue` is given up, unless the queue has a fault already. Only while no
    /// launch is inside the gate.
    pub(crate) fn give_up(memory: &DmaMemory, offset: usize, queue: &QueueDescriptor) {
        if memory.load_u32(offset + offset_of!(Self, kind)) == FAULT_NONE {
            memory.store_u32(offset + offset_of!(Self, drive), queue.drive);
            memory.store_u32(offset + offset_of!(Self, queue), queue.queue_id);
            memory.store_u32(offset + offset_of!(Self, kind), FAULT_GIVEN_UP);
        }
    }

    /// [`answered`](Self::answered) of the fault at byte `offset` of pinned memory.
    pub(crate) fn load_answered(memory: &DmaMemory, offset: usize) -> u64 {
        memory.load_u64(offset + offset_of!(Self, answered))
    }

    /// The fault at byte `offset` of pinned memory; `None` while nothing went wrong.
    pub(crate) fn load(memory: &DmaMemory, offset: usize) -> Option<Self> {
        let word = |at| memory.load_u32(offset + at);
        let long = |at| memory.load_u64(offset + at);
        let kind = word(offset_of!(Self, kind));
        if kind == FAULT_NONE {
            return None;
        }
        fence(Ordering::Acquire);
        Some(Self {
            kind,
            drive: word(offset_of!(Self, drive)),
            queue: word(offset_of!(Self, queue)),
            cid: word(offset_of!(Self, cid)),
            lba: long(offset_of!(Self, lba)),
            waited_ns: long(offset_of!(Self, waited_ns)),
            launch: long(offset_of!(Self, launch)),
            outstanding: word(offset_of!(Self, outstanding)),
            status: word(offset_of!(Self, status)),
            failed_lba: long(offset_of!(Self, failed_lba)),
            failed_launch: long(offset_of!(Self, failed_launch)),
            failed_cid: word(offset_of!(Self, failed_cid)),
            unused: 0,
            answered: long(offset_of!(Self, answered)),
            damaged_rank: long(offset_of!(Self, damaged_rank)),
            damaged_lba: long(offset_of!(Self, damaged_lba)),
            damaged_launch: long(offset_of!(Self, damaged_launch)),
            damaged_table: word(offset_of!(Self, damaged_table)),
            damaged_cid: word(offset_of!(Self, damaged_cid)),
            reserved: [0; 4],
        })
    }

    /// The failed command that the fault at byte `offset` of pinned memory names, also while a later launch writes
    /// another: two looks that agree have seen one command whole. `None` if there is none, or if no two looks agree.
    pub(crate) fn load_failed(memory: &DmaMemory, offset: usize) -> Option<FailedCommand> {
        let look = || {
            let status = memory.load_u32(offset + offset_of!(Self, status));
            // A writer stores zero first. If this look has seen something that the writer stored after the zero, the
            // next look sees the zero.
            fence(Ordering::Acquire);
            let failed = FailedCommand {
                status: Status::from_bits(status as u16),
                cid: memory.load_u32(offset + offset_of!(Self, failed_cid)) as u16,
                lba: memory.load_u64(offset + offset_of!(Self, failed_lba)),
                launch: memory.load_u64(offset + offset_of!(Self, failed_launch)),
            };
            fence(Ordering::Acquire);
            failed
        };
        settled(look, |failed| failed.launch == 0 || !failed.status.is_success())
            .filter(|failed| !failed.status.is_success())
    }

    /// The damaged row that the fault at byte `offset` of pinned memory names, read as
    /// [`load_failed`](Self::load_failed) reads.
    pub(crate) fn load_damaged(memory: &DmaMemory, offset: usize) -> Option<DamagedRow> {
        let look = || {
            let launch = memory.load_u64(offset + offset_of!(Self, damaged_launch));
            fence(Ordering::Acquire);
            let damaged = DamagedRow {
                table: memory.load_u32(offset + offset_of!(Self, damaged_table)),
                rank: memory.load_u64(offset + offset_of!(Self, damaged_rank)),
                cid: memory.load_u32(offset + offset_of!(Self, damaged_cid)) as u16,
                lba: memory.load_u64(offset + offset_of!(Self, damaged_lba)),
                launch,
            };
            fence(Ordering::Acquire);
            damaged
        };
        // A queue on which no damaged row was ever found has zeros here.
        let none = |row: &DamagedRow| row.launch == 0 && (row.rank, row.lba, row.table, row.cid) == (0, 0, 0, 0);
        settled(look, |row| row.launch != 0 || none(row)).filter(|row| row.launch != 0)
    }

    /// The command that failed by its status in the launch that gave up.
    fn failed(&self) -> Option<FailedCommand> {
        let status = Status::from_bits(self.status as u16);
        let failed =
            FailedCommand { status, cid: self.failed_cid as u16, lba: self.failed_lba, launch: self.failed_launch };
        (!status.is_success() && failed.launch == self.launch).then_some(failed)
    }
}

/// Looks until two looks, one after the other, agree on something that `whole` accepts; `None` if they do not in time.
fn settled<T: PartialEq>(look: impl Fn() -> T, whole: impl Fn(&T) -> bool) -> Option<T> {
    let mut before = look();
    for _ in 0..LOOKS {
        let now = look();
        if now == before && whole(&now) {
            return Some(now);
        }
        std::hint::spin_loop();
        before = now;
    }
    None
}

impl fmt::Display for FailedCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a command failed: {}", self.status)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (waited, outstanding) = (Duration::from_nanos(self.waited_ns), self.outstanding);
        match self.kind {
            FAULT_NONE => f.write_str("nothing"),
            FAULT_TIMED_OUT => write!(f, "no answer within {waited:?}, {outstanding} commands outstanding"),
            FAULT_CLOSED => write!(f, "a reset cut {outstanding} commands off after {waited:?}"),
            FAULT_GIVEN_UP => f.write_str("the drive is given up"),
            other => write!(f, "fault {other}, {outstanding} commands outstanding"),
        }?;
        match self.failed() {
            None => Ok(()),
            Some(FailedCommand { status, cid, lba, .. }) => {
                write!(f, "; before that, CID {cid:#06x}, LBA {lba}, failed: {status}")
            }
        }
    }
}

const _: () = {
    assert!(size_of::<QueueDescriptor>() == 10 * 8 + 12 * 4);
    assert!(size_of::<QueueDescriptor>() == 128 && align_of::<QueueDescriptor>() == 8);
    assert!(size_of::<QueueState>() == 14 * 4 + 3 * 8 + 12 * 4);
    assert!(size_of::<QueueState>() == 128 && align_of::<QueueState>() == 8);
    assert!(size_of::<Fault>() == 128 && align_of::<Fault>() == 8);
    assert!(size_of::<RingReads>() == 56);
    assert!(offset_of!(QueueDescriptor, timeout_ns) == 64 && offset_of!(QueueDescriptor, window) == 116);
    assert!(offset_of!(QueueState, generation) == 16 && offset_of!(QueueState, commands) == 56);
    assert!(offset_of!(Fault, lba) == 16 && offset_of!(Fault, outstanding) == 40);
    assert!(offset_of!(Fault, failed_lba) == 48 && offset_of!(Fault, answered) == 72);
    assert!(offset_of!(Fault, damaged_rank) == 80 && offset_of!(Fault, reserved) == 112);
};
