//! Turns of the answering kernel.

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use warprow_dma::PeerMemory;
use warprow_gpu_queues::{PinnedMemory, pinned_address, pinned_changes};
use warprow_soft_controller::{Leave, MappedPlace, Mapping, Offload, OffloadFailure, OffloadQueue, OffloadRate, Turn};

use crate::abi;
use crate::image::Image;
use crate::launches::{Launches, MAX_MAPPINGS, MAX_QUEUES};
use crate::player::{Player, PlayerError, hardware_queues};

/// Bytes of pinned memory for the word that ends turns.
const LEAVE_BYTES: u64 = 4096;
const LEAVE: usize = 0;

/// Serves queues of one drive by launches of the answering kernel.
pub(crate) struct GpuOffload {
    held: ManuallyDrop<Held>,
    /// A launch was given up, and may come yet: what it touches is never released.
    is_given_up: bool,
    stale: Arc<AtomicBool>,
    turn: abi::Turn,
    /// What is mapped, as the controller said last.
    mapped: Vec<Mapping>,
    /// The mappings that the GPU reaches, in order of address, and what [`pinned_changes`] was when they were found. `None`: to be found again.
    reached: Vec<abi::Mapping>,
    found_at: Option<u64>,
    /// The queues of the latest turn.
    served: Vec<abi::Queue>,
}

/// What a launch touches.
struct Held {
    // Dropped first: they wait for the kernel.
    launches: Launches,
    player: Arc<Player>,
    _image: Arc<Image>,
    leave: Arc<Leaver>,
}

impl Drop for GpuOffload {
    fn drop(&mut self) {
        if self.is_given_up {
            return;
        }
        // SAFETY: it is dropped here alone, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.held) };
    }
}

impl fmt::Debug for GpuOffload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuOffload").field("gpu", &self.held.player.gpu().name()).finish_non_exhaustive()
    }
}

impl GpuOffload {
    pub(crate) fn new(
        player: Arc<Player>,
        image: Arc<Image>,
        stale: Arc<AtomicBool>,
        rate: &OffloadRate,
    ) -> Result<Self, PlayerError> {
        let gpu = player.gpu();
        let pinned = PinnedMemory::allocate(gpu, LEAVE_BYTES)?;
        let launches = Launches::new(gpu)?;
        let ticks = |per_second: f64| (abi::TICKS * 1e9 / per_second).round() as u64;
        let by_commands = rate.reads_4k_per_second.map_or(0, ticks);
        let by_bytes = rate.bytes_per_second.map_or(0, |bytes| ticks(bytes / 4096.0));
        let turn = abi::Turn {
            clock: launches.clock(),
            image: image.address(),
            leave: pinned.address() + LEAVE as u64,
            // The kernel adds costs up in words of 32 bits: a drive has two reads a second at least.
            ticks: rate.reads_per_second.map_or(0, ticks).min(u32::MAX.into()),
            ticks_per_4k: by_commands.max(by_bytes),
            latency_ns: rate.latency.as_nanos() as u64,
            ..abi::Turn::default()
        };
        let leave = Arc::new(Leaver { pinned, count: Mutex::new(0) });
        let (drives, queues) = (Arc::strong_count(&player), hardware_queues());
        if drives >= queues {
            tracing::warn!(
                drives,
                hardware_queues = queues,
                "launches for so many played drives may come behind look-ups: set CUDA_DEVICE_MAX_CONNECTIONS=32 before CUDA is used, or have \
                 another GPU play some"
            );
        }
        let held = Held { launches, player, _image: image, leave };
        Ok(Self {
            held: ManuallyDrop::new(held),
            is_given_up: false,
            stale,
            turn,
            mapped: Vec::new(),
            reached: Vec::new(),
            found_at: None,
            served: Vec::new(),
        })
    }

    /// Finds what is mapped and pinned.
    fn find(&mut self) {
        let changes = pinned_changes();
        if self.found_at == Some(changes) {
            return;
        }
        let reached = self.mapped.iter().filter_map(|mapping| {
            let address = match &mapping.place {
                MappedPlace::Host(memory) => pinned_address(memory)?,
                // Admitted before it was mapped.
                MappedPlace::Peer { address } => *address,
                _ => return None,
            };
            let (first, end) = (mapping.iova, mapping.iova + mapping.len);
            Some(abi::Mapping { first, end, address, writable: mapping.writable.into() })
        });
        let reached: Vec<_> = reached.take(MAX_MAPPINGS).collect();
        if reached != self.reached {
            self.reached = reached;
            self.held.launches.forget_mappings();
        }
        self.found_at = Some(changes);
    }

    /// The address on the GPU of `len` bytes at `iova`.
    fn address(&self, iova: u64, len: u64, writes: bool) -> Option<u64> {
        let at = self.reached.partition_point(|mapping| mapping.end <= iova);
        let mapping = self.reached.get(at)?;
        let inside = iova >= mapping.first && len <= mapping.end - iova && (!writes || mapping.writable != 0);
        inside.then(|| mapping.address + (iova - mapping.first))
    }

    fn rings(&self, queue: &OffloadQueue) -> Option<(u64, u64)> {
        let sq = self.address(queue.sq_iova, u64::from(queue.sq_size) * 64, false)?;
        let cq = self.address(queue.cq_iova, u64::from(queue.cq_size) * 16, true)?;
        (sq % 64 == 0 && cq % 16 == 0).then_some((sq, cq))
    }

    fn run(&mut self, turn: &Turn<'_>, queues: &mut [OffloadQueue]) -> Result<(), PlayerError> {
        let Some(bells) = pinned_address(turn.doorbells) else { return Ok(()) };
        // Where the GPU has no room for all blocks at once, the last ones come when the turn is over: another queue is last each time.
        let first = self.held.launches.number() as usize % queues.len().max(1);
        let (before, behind) = queues.split_at(first);
        let turned = (first..).zip(behind).chain((0..).zip(before));
        let mut indices = Vec::with_capacity(queues.len());
        let mut served = std::mem::take(&mut self.served);
        served.clear();
        for (index, queue) in turned.filter(|(_, queue)| queue.reached).take(MAX_QUEUES) {
            let Some((sq, cq)) = self.rings(queue) else { continue };
            served.push(abi::Queue {
                sq,
                cq,
                sq_tail: bells + queue.sq_doorbell as u64,
                cq_head: bells + queue.cq_doorbell as u64,
                sq_size: queue.sq_size,
                cq_size: queue.cq_size,
                id: queue.id.into(),
                seen_head: queue.cq_head,
                head: queue.sq_head,
                tail: queue.cq_tail,
                phase: queue.cq_phase.into(),
                ..abi::Queue::default()
            });
            indices.push(index);
        }
        self.served = served;
        if indices.is_empty() {
            return Ok(());
        }
        let of_turn = abi::Turn {
            lbas: turn.lbas,
            admin: bells,
            linger_ns: turn.linger.as_nanos() as u64,
            linger_after_ns: turn.linger_after.as_nanos() as u64,
            limit_ns: turn.limit.as_nanos() as u64,
            leave_count: turn.leave_count,
            admin_seen: turn.admin_seen,
            nsid: turn.nsid,
            lba_shift: turn.lba_shift,
            page_shift: turn.page.trailing_zeros(),
            ..self.turn
        };
        let Held { launches, player, leave, .. } = &mut *self.held;
        let mut is_asked = false;
        // The kernel does not look at these doorbells, as the thread that waits for it can.
        let look = || {
            if !is_asked && turn.beside.iter().any(|doorbell| doorbell.has_moved(turn.doorbells)) {
                is_asked = true;
                leave.leave();
            }
        };
        // SAFETY: the rings and mappings are memory that is pinned; the controller keeps them mapped during a turn, and whoever pinned
        // them unmaps them, or deletes their queues, before they are unpinned. The rest is this one's.
        if let Err(error) = unsafe { launches.run(player, &of_turn, &mut self.served, &self.reached, look) } {
            // Whatever has become of the launch: if it comes, it finds that it is to touch nothing.
            leave.leave();
            self.is_given_up = true;
            return Err(error);
        }
        for (entry, &index) in self.served.iter().zip(&indices) {
            let queue = &mut queues[index];
            (queue.sq_head, queue.cq_head) = (entry.head, entry.seen_head);
            (queue.cq_tail, queue.cq_phase) = (entry.tail, entry.phase != 0);
            (queue.reads, queue.bytes, queue.stopped) = (entry.reads, entry.bytes, entry.stopped != 0);
            let time = |ns: u64| (ns != 0).then(|| turn.now + Duration::from_nanos(ns - 1));
            (queue.first_doorbell, queue.last_completion) = (time(entry.first_ns), time(entry.last_ns));
        }
        Ok(())
    }
}

impl Offload for GpuOffload {
    fn remap(&mut self, mappings: &[Mapping]) {
        self.mapped = mappings.to_vec();
        self.found_at = None;
    }

    fn admit(&mut self, memory: &dyn PeerMemory) -> Result<(), String> {
        self.held.player.reach(memory.address()).map_err(|error| error.to_string())
    }

    fn reaches(&mut self, turn: &Turn<'_>, queues: &mut [OffloadQueue]) -> bool {
        if self.stale.load(Ordering::SeqCst) || pinned_address(turn.doorbells).is_none() {
            return false;
        }
        self.find();
        for queue in queues {
            queue.reached = self.rings(queue).is_some();
        }
        true
    }

    fn serve(&mut self, turn: &Turn<'_>, queues: &mut [OffloadQueue]) -> Result<(), OffloadFailure> {
        self.run(turn, queues).map_err(|error| OffloadFailure(error.to_string()))
    }

    fn leave(&self) -> Arc<dyn Leave> {
        self.held.leave.clone()
    }
}

/// The word that ends turns, in pinned memory.
#[derive(Debug)]
struct Leaver {
    pinned: PinnedMemory,
    count: Mutex<u32>,
}

impl Leave for Leaver {
    fn count(&self) -> u32 {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count = count.wrapping_add(1);
        self.pinned.memory().store_u32(LEAVE, *count);
    }
}
