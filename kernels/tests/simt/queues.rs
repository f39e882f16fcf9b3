//! Queue pairs on the software controller, for kernels to drive.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use warprow_dma::{Clock, DmaMemory, SystemClock};
use warprow_driver::{Controller, ControllerOptions, ExternalMemory, ExternalQueue, RingSizes, Submitter};
use warprow_gpu_queues::abi::{
    self, DOORBELL_MEMORY, DOORBELL_MMIO, GATE_CLOSED, GATE_INSIDE, LANES, QueueDescriptor, QueueState,
};
use warprow_soft_controller::{ControllerBuilder, FaultRules, Namespace, ProceduralBacking, SoftController};
use warprow_spec::registers::offset::DOORBELLS;

use crate::buffer::Buffer;
use crate::world::World;

/// What the device and the kernel know of a queue pair.
pub(crate) struct Queue {
    descriptor: QueueDescriptor,
    pub(crate) state: Buffer,
    pub(crate) fault: Buffer,
    /// None: there is no controller.
    external: Option<ExternalQueue>,
    anomalies_before: u32,
}

impl Queue {
    pub(crate) fn new(descriptor: QueueDescriptor, external: Option<ExternalQueue>) -> Self {
        let state = Buffer::zeroed(size_of::<QueueState>());
        let fault = Buffer::zeroed(size_of::<abi::Fault>());
        let descriptor = QueueDescriptor { state: state.address(), fault: fault.address(), ..descriptor };
        // About to wrap, where the state is written.
        let anomalies_before = if external.is_some() { u32::MAX - 1 } else { 0 };
        Self { descriptor, state, fault, external, anomalies_before }
    }

    pub(crate) fn is_untouched(&self) -> bool {
        self.state.is_zero() && self.fault.is_zero()
    }

    pub(crate) fn poison(&self) -> u32 {
        self.state.u32_at(std::mem::offset_of!(QueueState, poison))
    }

    pub(crate) fn anomalies(&self) -> u32 {
        self.state.u32_at(std::mem::offset_of!(QueueState, anomalies)).wrapping_sub(self.anomalies_before)
    }

    /// Modulo 2³², since whenever.
    pub(crate) fn doorbells(&self) -> u32 {
        self.state.u32_at(std::mem::offset_of!(QueueState, doorbells))
    }

    pub(crate) fn turn(&self) -> u32 {
        self.state.u32_at(std::mem::offset_of!(QueueState, turn))
    }

    pub(crate) fn fault(&self) -> abi::Fault {
        let word = |at| self.fault.u32_at(at);
        abi::Fault {
            kind: word(0),
            drive: word(4),
            queue: word(8),
            cid: word(12),
            lba: self.fault.u64_at(16),
            waited_ns: self.fault.u64_at(24),
            launch: self.fault.u64_at(32),
            outstanding: word(40),
            status: word(44),
            failed_lba: self.fault.u64_at(48),
            failed_launch: self.fault.u64_at(56),
            failed_cid: word(64),
            unused: 0,
            answered: self.fault.u64_at(72),
            damaged_rank: self.fault.u64_at(80),
            damaged_lba: self.fault.u64_at(88),
            damaged_launch: self.fault.u64_at(96),
            damaged_table: word(104),
            damaged_cid: word(108),
            reserved: [0; 4],
        }
    }

    /// Whether a command of this queue can have had this identifier.
    pub(crate) fn has_cid(&self, cid: u32) -> bool {
        let QueueDescriptor { batches, cid_shift, generations, .. } = self.descriptor;
        cid & ((1 << cid_shift) - 1) < batches * LANES && cid >> cid_shift < generations
    }

    pub(crate) fn id(&self) -> u32 {
        self.descriptor.queue_id
    }
}

/// A queue that must not be touched.
pub(crate) fn unreachable() -> Queue {
    Queue::new(QueueDescriptor { batches: 1, cid_shift: 8, ..QueueDescriptor::default() }, None)
}

/// For kernels: sets of one queue on each drive.
pub(crate) fn describe(queues: &[Queue]) -> Buffer {
    Buffer::of_all(queues.iter().map(|queue| queue.descriptor.as_bytes()))
}

/// Time that passes while somebody waits, and then steps the drives: an order that repeats.
#[derive(Default)]
pub(crate) struct Steps {
    nanos: AtomicU64,
    drives: Mutex<Vec<Arc<SoftController>>>,
}

impl Steps {
    /// Steps this drive too.
    pub(crate) fn add(&self, drive: Arc<SoftController>) {
        self.drives.lock().unwrap().push(drive);
    }

    pub(crate) fn turn(&self, by: u64) -> u64 {
        let now = self.nanos.fetch_add(by, Ordering::Relaxed) + by;
        for drive in self.drives.lock().unwrap().iter() {
            drive.step(Duration::from_nanos(now));
        }
        now
    }

    /// Lets time pass without a step.
    pub(crate) fn pass(&self, by: u64) -> u64 {
        self.nanos.fetch_add(by, Ordering::Relaxed) + by
    }
}

impl Clock for Steps {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }

    fn relax(&self, _: u32) {
        self.turn(1000);
    }

    fn sleep(&self, duration: Duration) {
        self.turn(duration.as_nanos() as u64);
    }
}

/// The gate as the driver sees it.
pub(crate) struct Door {
    gate: DmaMemory,
    closings: Mutex<u32>,
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Door")
    }
}

impl Submitter for Door {
    fn close(&self) {
        *self.closings.lock().unwrap() += 1;
        self.gate.store_u32(GATE_CLOSED, 1);
    }
    fn has_left(&self) -> bool {
        self.gate.load_u64(GATE_INSIDE) == 0
    }
    fn open(&self) {
        let mut closings = self.closings.lock().unwrap();
        *closings -= 1;
        self.gate.store_u32(GATE_CLOSED, (*closings != 0).into());
    }
}

/// Drives that hold a world's rows, with queues for a kernel.
pub(crate) struct Drives {
    // In the order in which they go.
    pub(crate) queues: Vec<Queue>,
    controllers: Vec<Arc<Controller>>,
    pub(crate) door: Arc<Door>,
    pub(crate) faults: FaultRules,
    /// None: the drives have threads, and time is real.
    pub(crate) steps: Option<Arc<Steps>>,
    /// Held, so that the drives look at them by themselves.
    bells: Vec<DmaMemory>,
}

impl Drives {
    /// Up to `batches` in flight; `stepped` or on their own threads; completions out of order, some late.
    pub(crate) fn new(rng: &mut Rng, world: &World, batches: u32, stepped: bool, timeout: Duration) -> Self {
        let faults = FaultRules::default();
        let steps = stepped.then(Arc::<Steps>::default);
        let clock: Arc<dyn Clock> = match &steps {
            Some(steps) => steps.clone(),
            None => Arc::new(SystemClock::new()),
        };
        let mut drives = Vec::new();
        let mut controllers = Vec::new();
        for image in world.images() {
            let len = image.len() as u64;
            let content = ProceduralBacking::with(len, move |block, words| {
                let bytes = &image[block as usize * 512..][..512];
                words
                    .iter_mut()
                    .zip(bytes.as_chunks::<8>().0)
                    .for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
            });
            let namespace = Namespace::new(content).lba(1 << world.geometry.lba_shift);
            let drive = disordered(rng, SoftController::builder(), stepped).faults(faults.clone());
            let drive = drive.namespace(namespace).build().unwrap();
            if let Some(steps) = &steps {
                steps.add(drive.clone());
            }
            let options = ControllerOptions { queue_pairs: 4, ..ControllerOptions::default() };
            controllers.push(Controller::open(drive.clone(), clock.clone(), options).unwrap());
            drives.push(drive);
        }
        let door = Arc::new(Door { gate: world.slot.gate.memory().clone(), closings: Mutex::default() });
        let bells = drives.iter().map(|drive| drive.doorbell_memory()).collect();
        let mut made = Self { queues: Vec::new(), controllers, door, faults, steps, bells };
        for _ in 0..world.sets {
            for drive in 0..made.controllers.len() {
                let queue = made.queue(rng, world, drive, batches, timeout);
                made.queues.push(queue);
            }
        }
        made
    }

    fn queue(&self, rng: &mut Rng, world: &World, drive: usize, batches: u32, timeout: Duration) -> Queue {
        let controller = &self.controllers[drive];
        let places = LANES * batches;
        let lba_shift = world.geometry.lba_shift;
        let landing_stride = world.landing_stride();
        // Odd sizes, so that rings wrap anywhere.
        let mut entries = || places + 1 + rng.u32(0..20);
        let sizes = RingSizes { entries: entries(), completion_entries: entries() };
        let landing = sizes.bytes();
        let list = landing + places as usize * landing_stride;
        let pages = (list - landing) / 4096;
        let memory = controller.allocate(list + pages * 8).unwrap();
        memory.memory().fill(landing, list - landing, 0xcd);
        for page in 0..pages {
            memory.memory().store_u64(list + page * 8, memory.iova() + (landing + page * 4096) as u64);
        }
        let base = memory.memory().as_ptr() as u64;
        let iova = memory.iova();
        // SAFETY: commands read into the landing area of `memory`, which is never plain bytes; the kernels run while the door is open.
        let queue =
            unsafe { controller.external_queue(ExternalMemory::together(memory, sizes), sizes, self.door.clone()) }
                .unwrap();
        let doorbells = self.bells[drive].as_ptr() as u64;
        let (tail, head) = queue.doorbell_offsets();
        let cid_shift = places.next_power_of_two().ilog2();
        let generations = (1 << (16 - cid_shift)) - 1;
        let made = Queue::new(
            QueueDescriptor {
                sq: base,
                cq: base + sizes.cq_offset() as u64,
                landing: base + landing as u64,
                landing_iova: iova + landing as u64,
                sq_tail: doorbells + tail - DOORBELLS,
                cq_head: doorbells + head - DOORBELLS,
                timeout_ns: timeout.as_nanos() as u64,
                landing_stride: landing_stride as u32,
                sq_size: sizes.entries,
                cq_size: sizes.completion_entries,
                doorbell_kind: if rng.bool() { DOORBELL_MEMORY } else { DOORBELL_MMIO },
                queue_id: queue.id().into(),
                drive: drive as u32,
                nsid: 1,
                lba_shift,
                batches,
                cid_shift,
                generations,
                window: world.window.word(),
                prp_list: iova + list as u64,
                ..QueueDescriptor::default()
            },
            Some(queue),
        );
        // As after a long life: turns and generations are about to wrap.
        let memory = made.state.memory();
        memory.store_u32(std::mem::offset_of!(QueueState, turn), u32::MAX - 1);
        memory.store_u32(std::mem::offset_of!(QueueState, anomalies), made.anomalies_before);
        memory.store_u64(std::mem::offset_of!(QueueState, commands), (1 << 32) - 300);
        memory.store_u64(std::mem::offset_of!(QueueState, doorbells), (1 << 32) - 5);
        for slot in 0..batches as usize {
            let generation = std::mem::offset_of!(QueueState, generation) + slot * 4;
            memory.store_u32(generation, rng.u32(generations.saturating_sub(2)..generations));
        }
        made
    }

    /// What the host does with poisoned queues: it has the device forget them, and begins anew.
    pub(crate) fn recover(&mut self) {
        for queue in self.queues.iter_mut().filter(|queue| queue.poison() != 0) {
            self.door.close();
            queue.external.as_mut().unwrap().recreate().unwrap();
            queue.anomalies_before = 0;
            for buffer in [&queue.state, &queue.fault] {
                buffer.write(0, &vec![0; buffer.len()]);
            }
            self.door.open();
        }
    }
}

pub(crate) fn disordered(rng: &mut Rng, builder: ControllerBuilder, stepped: bool) -> ControllerBuilder {
    let us = Duration::from_micros;
    let builder =
        builder.seed(rng.u64(..)).permute().jitter(us(rng.u64(1..30))).delay_one_in(rng.u32(20..400), us(150));
    let builder = if rng.bool() { builder.partial_fetch() } else { builder };
    if stepped { builder.stepped() } else { builder.workers(2) }
}
