//! The kernel that leaves ids to be counted: which it leaves, and whose they are.

use fastrand::Rng;
use warprow_kernels::abi::Sampling;
use warprow_kernels::{SAMPLED_BYTES, SampledRing};

use crate::batch::Batch;
use crate::buffer::Buffer;
use crate::rig::Rig;
use crate::shim::{Launch, Shim, seeds};
use crate::world::{Shape, World};

/// Some launches: of each stretch of as many ids as one is drawn of, one id was left.
pub(crate) fn case(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let ids = rng.u64(1..2000);
    let world = World::new(&mut rng, &Shape::without_drives(ids));
    let every = [1, 1, 3, 64][rng.usize(0..4)];
    let ring = Buffer::zeroed(SAMPLED_BYTES as usize);
    // The ring is about to be gone around, for the first time or the last.
    let tail = [0, (1 << 16) - 700, u32::MAX - 700][rng.usize(0..3)];
    let header = Buffer::of(Sampling { ring: ring.address(), tail, every }.as_bytes());
    let mut host = SampledRing::begin_at(tail);
    for _ in 0..3 {
        let batch = Batch::new(&mut rng, &world);
        let plan_number = rng.u32(0..1 << 23);
        let mut lookup = batch.lookup();
        (lookup.slot.sampling, lookup.slot.plan_number) = (header.address(), plan_number);
        let blocks = rng.u32(1..4);
        let mut time = rng.u64(..);
        let mut clock = |_| {
            time += 100;
            time
        };
        let mut rig = Rig { shim: &mut *shim, rng: rng.fork(), world: &world };
        rig.launch(Launch::new("warprow_sample", blocks, 256), &lookup, Some(&mut clock))?;
        let mut left = Vec::new();
        let memory = ring.memory();
        let lost = host.take(|at| memory.load_u64(at), &mut |of, id| left.push((of, id)));
        let features = world.features.len();
        let mut there: Vec<(u32, u64)> =
            batch.ids.iter().enumerate().map(|(at, &id)| (batch.feature_of(at, features) as u32, id as u64)).collect();
        if lost != 0 || left.iter().any(|(of, _)| of.plan != plan_number) {
            return Err(format!("{lost} ids were lost; plan {plan_number}, {left:?}"));
        }
        let ids = there.len() as u64;
        let (least, most) = (ids / u64::from(every), ids.div_ceil(u64::from(every)));
        if !(least..=most).contains(&(left.len() as u64)) {
            return Err(format!("{} of {ids} ids were left, one of {every}", left.len()));
        }
        // Each of another position.
        for (of, id) in left {
            let at = there.iter().position(|&it| it == (of.feature, id));
            there.swap_remove(at.ok_or(format!("id {id} of feature {} is not there, or not as often", of.feature))?);
        }
    }
    if header.is_sound() && ring.is_sound() { Ok(()) } else { Err("something was written past the ring".to_owned()) }
}

#[test]
fn of_each_stretch_of_ids_one_is_left() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(40) {
        case(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}
