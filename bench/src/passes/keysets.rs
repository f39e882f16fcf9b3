//! Which rows the passes need.

use anyhow::Context;
use warprow_passes::Keyset;
use warprow_workload::{IdShuffle, PowerLaw, SeededRandom, mix_all};

use super::{PASSES, PassSetup};

/// Of the keys that there are, as many as its ten passes have: draws of a pass by a power law.
const ALPHA: f64 = 0.7;
const DRAWS: f64 = 0.263;

/// Ten passes: different keys, each as often drawn by a power law as HugeCTR's passes over Criteo are large; where the hot ones lie is
/// random.
pub(super) fn keysets(setup: &PassSetup) -> anyhow::Result<Vec<Keyset>> {
    let law = PowerLaw::new(setup.rows, ALPHA).context("no such law")?;
    let shuffle = IdShuffle::new(setup.rows, setup.seed);
    let mut random = SeededRandom::new(mix_all([setup.seed, 1]));
    let pass = |_| {
        let mut drawn = vec![false; setup.rows as usize];
        let mut keys = Vec::new();
        for _ in 0..(setup.rows as f64 * DRAWS) as u64 {
            let id = shuffle.id(law.sample(&mut random));
            if let Some(drawn) = drawn.get_mut(id as usize).filter(|drawn| !**drawn) {
                *drawn = true;
                keys.push(id);
            }
        }
        Keyset::new(keys)
    };
    Ok((0..PASSES).map(pass).collect())
}

/// How many rows any of them has.
pub(super) fn distinct(keysets: &[Keyset], rows: u64) -> u64 {
    let mut seen = vec![false; rows as usize];
    for &key in keysets.iter().flat_map(Keyset::keys) {
        if let Some(seen) = seen.get_mut(key as usize) {
            *seen = true;
        }
    }
    seen.iter().filter(|seen| **seen).count() as u64
}
