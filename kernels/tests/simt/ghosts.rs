//! A controller that sends each completion of a command again when the next command with its place is under way, before that one's
//! data has come: only the generation in the CID tells the two apart.

use std::collections::HashMap;

use fastrand::Rng;
use warprow_dma::{DmaMemory, MemoryKind};
use warprow_gpu_queues::abi::{LANES, QueueDescriptor};

use crate::batch::{Batch, Varied};
use crate::queues::{Queue, describe};
use crate::rig::{Rig, expect};
use crate::ring::rows_of_an_lba;
use crate::shim::{Shim, seeds};
use crate::world::World;

/// Where things lie in the memory: both doorbells, the queues, the landing area.
const TAIL: usize = 0;
const HEAD: usize = 64;
const SQ: usize = 4096;

/// A completion to come.
struct Due {
    cid: u16,
    at: u64,
    /// Where in the memory its data lands, and where in the image that lies; none for a ghost.
    data: Option<(usize, usize)>,
}

struct Controller {
    memory: DmaMemory,
    image: Vec<u8>,
    descriptor: QueueDescriptor,
    cq: usize,
    head: u32,
    tail: u32,
    turn: u32,
    /// Latest CID of each place.
    before: HashMap<u16, u16>,
    due: Vec<Due>,
    now: u64,
    ghosts: u64,
}

impl Controller {
    fn new(rng: &mut Rng, world: &World) -> Self {
        let batches = rng.u32(1..=3);
        let places = LANES * batches;
        let sq_size = places + 1 + rng.u32(0..9);
        let cq_size = 2 * places + rng.u32(1..9);
        let cq = SQ + (sq_size as usize * 64).next_multiple_of(4096);
        let landing = cq + (cq_size as usize * 16).next_multiple_of(4096);
        let memory = DmaMemory::allocate(landing + places as usize * 512, MemoryKind::Anonymous).unwrap();
        let base = memory.as_ptr() as u64;
        let cid_shift = places.next_power_of_two().ilog2();
        let descriptor = QueueDescriptor {
            sq: base + SQ as u64,
            cq: base + cq as u64,
            landing: base + landing as u64,
            landing_iova: landing as u64,
            sq_tail: base + TAIL as u64,
            cq_head: base + HEAD as u64,
            timeout_ns: 1_000_000_000,
            landing_stride: 512,
            sq_size,
            cq_size,
            queue_id: 5,
            nsid: 1,
            lba_shift: 9,
            batches,
            cid_shift,
            generations: (1 << (16 - cid_shift)) - 1,
            ..QueueDescriptor::default()
        };
        let image = world.images().remove(0);
        let before = HashMap::new();
        let due = Vec::new();
        Self { memory, image, descriptor, cq, head: 0, tail: 0, turn: 0, before, due, now: 0, ghosts: 0 }
    }

    fn step(&mut self, rng: &mut Rng) -> u64 {
        self.now += 1000;
        while self.head != self.memory.load_u32(TAIL) {
            let [first, _, _, prp, _, lba, blocks, _] = self.memory.load_words::<8>(SQ + self.head as usize * 64);
            assert_eq!((first as u8, first >> 32, blocks), (2, 1, 0));
            let cid = (first >> 16) as u16;
            if let Some(ghost) = self.before.insert(cid & ((1 << self.descriptor.cid_shift) - 1), cid) {
                assert_ne!(ghost, cid, "the next generation");
                self.due.push(Due { cid: ghost, at: self.now, data: None });
                self.ghosts += 1;
            }
            let data = Some((prp as usize, lba as usize * 512));
            self.due.push(Due { cid, at: self.now + rng.u64(20_000..60_000), data });
            self.head = (self.head + 1) % self.descriptor.sq_size;
        }
        let now = self.now;
        let size = self.descriptor.cq_size;
        for next in (0..self.due.len()).rev() {
            let full = (self.tail + 1) % size == self.memory.load_u32(HEAD);
            if self.due[next].at > now || full {
                continue;
            }
            let Due { cid, data, .. } = self.due.swap_remove(next);
            if let Some((to, from)) = data {
                self.memory.write(to, &self.image[from..from + 512]);
            }
            let phase = u64::from((self.turn + 1) & 1) << 48;
            let word = u64::from(self.head) | 5 << 16 | u64::from(cid) << 32 | phase;
            self.memory.store_u64(self.cq + self.tail as usize * 16 + 8, word);
            self.tail += 1;
            if self.tail == size {
                (self.tail, self.turn) = (0, self.turn.wrapping_add(1));
            }
        }
        self.now
    }
}

/// Several launches; every row is the right one, and each ghost an anomaly.
pub(crate) fn case(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let world = World::new(&mut rng, &rows_of_an_lba());
    let mut controller = Controller::new(&mut rng, &world);
    let queues = [Queue::new(controller.descriptor, None)];
    let descriptors = describe(&queues);
    let mut dice = rng.fork();
    for _ in 0..3 {
        let batch = Batch::of(&mut rng, &world, 2000);
        let lookup = batch.lookup().with_queues(descriptors.address());
        let expected = expect(&world, &batch);
        let mut rig = Rig { shim: &mut *shim, rng: rng.fork(), world: &world };
        rig.prepare(&lookup, true)?;
        rig.fetch(&lookup, Some(&mut |_| controller.step(&mut dice)))?;
        rig.expand(&lookup, true)?;
        rig.check_ended(&batch, &lookup, &expected, |_| false)?;
    }
    // The last ones may have come when nobody looked any more.
    let anomalies = u64::from(queues[0].anomalies());
    let sent = controller.ghosts;
    if anomalies <= sent && anomalies + 2 * u64::from(LANES) > sent && sent > 500 {
        return Ok(());
    }
    Err(format!("{anomalies} anomalies, where {sent} ghosts were sent"))
}

#[test]
fn ghosts_retire_nothing() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(3) {
        case(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}
