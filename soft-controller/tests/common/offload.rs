//! An offload that executes reads on the host, from the drive's backing.
#![allow(dead_code, reason = "each test uses its part")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use warprow_dma::{DmaMemory, PeerMemory, order};
use warprow_soft_controller::{
    Backing, ControllerBuilder, FaultRules, Leave, MappedPlace, Mapping, Namespace, Offload, OffloadFailure,
    OffloadQueue, RamBacking, Rule, Turn,
};
use warprow_spec::{NvmOpcode, Sqe};

/// What an offload is told to do, and what it saw.
#[derive(Default)]
pub(crate) struct Script {
    /// Queues that it does not reach.
    pub(crate) unreached: Vec<u16>,
    /// The offload does not reach the doorbells.
    pub(crate) no_doorbells: bool,
    /// The offload reaches no memory of other devices.
    pub(crate) no_peers: bool,
    /// Memory of another device, which is memory of this process, by its address.
    pub(crate) peers: Vec<(u64, DmaMemory)>,
    /// The offload's next turn fails.
    pub(crate) fail: bool,
    /// The offload's next turn says that it has answered one command more than it has.
    pub(crate) miscount: bool,
    /// The offload's next turn adds this rule.
    pub(crate) inject: Option<(FaultRules, Rule)>,
    /// Stores to doorbells in its turns, one before each pass: memory, offset, value.
    pub(crate) rings: VecDeque<(DmaMemory, usize, u32)>,
    /// Turns wait for commands, and for this long after they are asked to leave.
    pub(crate) wait: Option<Duration>,
    /// First doorbell and last completion of each turn that answers something.
    pub(crate) times: Option<(Duration, Duration)>,
    /// Of each turn: identifiers of queues offered, its linger and its limit.
    pub(crate) turns: Vec<(Vec<u16>, Duration, Duration)>,
}

#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU32);

impl Leave for Count {
    fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    fn leave(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// The test's side of an offload.
#[derive(Clone, Default)]
pub(crate) struct Desk {
    script: Arc<Mutex<Script>>,
    /// A turn is under way.
    pub(crate) serving: Arc<AtomicBool>,
    pub(crate) leave: Arc<Count>,
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Desk")
    }
}

impl Desk {
    pub(crate) fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A drive of 1 MiB with this offload.
    pub(crate) fn drive(&self, builder: ControllerBuilder) -> ControllerBuilder {
        let backing: Arc<dyn Backing> = Arc::new(RamBacking::new(1 << 20).unwrap());
        let offload = self.offload(backing.clone());
        builder.namespace(Namespace::shared(backing)).offload(offload)
    }

    /// An offload that reads from `backing`.
    pub(crate) fn offload(&self, backing: Arc<dyn Backing>) -> Box<dyn Offload> {
        Box::new(HostOffload { mappings: Vec::new(), backing, desk: self.clone() })
    }
}

#[derive(Debug)]
struct HostOffload {
    mappings: Vec<Mapping>,
    backing: Arc<dyn Backing>,
    desk: Desk,
}

impl HostOffload {
    fn find(&self, iova: u64, len: usize) -> Option<(DmaMemory, usize)> {
        let mapping = self.mappings.iter().find(|it| (it.iova..it.iova + it.len).contains(&iova))?;
        let memory = match &mapping.place {
            MappedPlace::Host(memory) => memory.clone(),
            MappedPlace::Peer { address } => {
                self.desk.script().peers.iter().find(|peer| peer.0 == *address).map(|peer| peer.1.clone())?
            }
            _ => return None,
        };
        let at = (iova - mapping.iova) as usize;
        (mapping.writable && memory.contains(at, len)).then_some((memory, at))
    }

    /// Executes a read of up to two pages; `None`: it is not plain.
    fn execute(&self, turn: &Turn<'_>, sqe: &Sqe) -> Option<usize> {
        let (first, count) = (sqe.slba(), u64::from(sqe.cdw12 & 0xffff) + 1);
        let plain = sqe.opcode() == NvmOpcode::READ.0 && sqe.cdw12 >> 16 == 0 && sqe.nsid == turn.nsid;
        if !plain || first >= turn.lbas || count > turn.lbas - first {
            return None;
        }
        let len = (count << turn.lba_shift) as usize;
        let head = len.min((turn.page - sqe.prp1 % turn.page) as usize);
        if len - head > turn.page as usize {
            return None;
        }
        let (memory, at) = self.find(sqe.prp1, head)?;
        let rest = if len > head { Some(self.find(sqe.prp2, len - head)?) } else { None };
        let offset = first << turn.lba_shift;
        self.backing.read(offset, &memory, at, head).ok()?;
        if let Some((memory, at)) = rest {
            self.backing.read(offset + head as u64, &memory, at, len - head).ok()?;
        }
        Some(len)
    }

    /// Executes what waits in a queue; false if that is nothing.
    fn pass(&self, turn: &Turn<'_>, queue: &mut OffloadQueue) -> bool {
        let before = queue.reads;
        while !queue.stopped {
            let tail = u32::from_le(turn.doorbells.load_u32(queue.sq_doorbell));
            order::after_doorbell();
            if tail >= queue.sq_size {
                queue.stopped = true;
                break;
            }
            let next = (queue.cq_tail + 1) % queue.cq_size;
            if next == queue.cq_head {
                queue.cq_head = u32::from_le(turn.doorbells.load_u32(queue.cq_doorbell));
            }
            if tail == queue.sq_head || next == queue.cq_head {
                break;
            }
            let (sq, at) = self.find(queue.sq_iova, queue.sq_size as usize * 64).unwrap();
            let sqe = Sqe::from_words(sq.load_words::<8>(at + queue.sq_head as usize * 64));
            let Some(bytes) = self.execute(turn, &sqe) else {
                queue.stopped = true;
                break;
            };
            queue.sq_head = (queue.sq_head + 1) % queue.sq_size;
            let (cq, at) = self.find(queue.cq_iova, queue.cq_size as usize * 16).unwrap();
            let at = at + queue.cq_tail as usize * 16;
            cq.store_u64(at, 0);
            order::before_phase();
            let word = u64::from(queue.sq_head) | u64::from(queue.id) << 16 | u64::from(sqe.cid()) << 32;
            cq.store_u64(at + 8, word | u64::from(queue.cq_phase) << 48);
            queue.cq_phase ^= next == 0;
            queue.cq_tail = next;
            queue.reads += 1;
            queue.bytes += bytes as u64;
        }
        queue.reads != before
    }
}

impl Offload for HostOffload {
    fn remap(&mut self, mappings: &[Mapping]) {
        self.mappings = mappings.to_vec();
    }

    fn admit(&mut self, _: &dyn PeerMemory) -> Result<(), String> {
        let script = self.desk.script();
        if script.no_peers { Err("the test wants it so".to_owned()) } else { Ok(()) }
    }

    fn reaches(&mut self, _: &Turn<'_>, queues: &mut [OffloadQueue]) -> bool {
        let script = self.desk.script();
        queues.iter_mut().for_each(|queue| queue.reached = !script.unreached.contains(&queue.id));
        !script.no_doorbells
    }

    fn serve(&mut self, turn: &Turn<'_>, queues: &mut [OffloadQueue]) -> Result<(), OffloadFailure> {
        let offered = queues.iter().filter(|queue| queue.reached).map(|queue| queue.id).collect();
        let (wait, times, miscount) = {
            let mut script = self.desk.script();
            script.turns.push((offered, turn.linger, turn.limit));
            if std::mem::take(&mut script.fail) {
                return Err(OffloadFailure("the test wants it so".to_owned()));
            }
            if let Some((rules, rule)) = script.inject.take() {
                rules.inject(rule);
            }
            (script.wait, script.times, std::mem::take(&mut script.miscount))
        };
        self.desk.serving.store(true, Ordering::SeqCst);
        let mut idle_since = Instant::now();
        loop {
            if self.desk.leave.count() != turn.leave_count {
                std::thread::sleep(wait.unwrap_or_default());
                break;
            }
            if let Some((doorbells, at, tail)) = self.desk.script().rings.pop_front() {
                order::before_doorbell();
                doorbells.store_u32(at, tail.to_le());
            }
            let mut busy = false;
            for queue in queues.iter_mut().filter(|queue| queue.reached) {
                busy |= self.pass(turn, queue);
            }
            if busy {
                idle_since = Instant::now();
            }
            let ends = turn.doorbells.load_u32(0) != turn.admin_seen
                || turn.beside.iter().any(|doorbell| doorbell.has_moved(turn.doorbells));
            let lasts = wait.is_some() && !ends && idle_since.elapsed() < Duration::from_secs(20);
            if queues.iter().any(|queue| queue.stopped) || !busy && !lasts {
                break;
            }
        }
        for queue in queues.iter_mut().filter(|queue| queue.reads > 0) {
            queue.first_doorbell = times.map(|times| times.0);
            queue.last_completion = times.map(|times| times.1);
            queue.reads += u64::from(miscount);
        }
        self.desk.serving.store(false, Ordering::SeqCst);
        Ok(())
    }

    fn leave(&self) -> Arc<dyn Leave> {
        self.desk.leave.clone()
    }
}
