//! Every kernel of `cuda/` is run here, and every check that looks for bugs.

use std::collections::BTreeSet;

use warprow_kernels::abi;

use crate::shim::{Shim, seeds, sources};
use crate::{
    ablations, adopt, ahead, cache, dedupe, few as by_one_kernel, ghosts, listed, lookups, ngrams, overlay, rich, ring,
    ring_test, sample, sets, touches, windows, written,
};

/// Fails, or finds that all is well, by a seed.
pub(crate) type Check = fn(&mut Shim, u64) -> Result<(), String>;

pub(crate) fn few(shim: &mut Shim, seed: u64) -> Result<(), String> {
    dedupe::case(shim, seed, None)
}

pub(crate) fn many(shim: &mut Shim, seed: u64) -> Result<(), String> {
    dedupe::case(shim, seed, Some(abi::dedupe::BITMAP))
}

pub(crate) fn hashed(shim: &mut Shim, seed: u64) -> Result<(), String> {
    dedupe::case(shim, seed, Some(abi::dedupe::HASH))
}

pub(crate) fn sorted(shim: &mut Shim, seed: u64) -> Result<(), String> {
    dedupe::case(shim, seed, Some(abi::dedupe::RADIX))
}

pub(crate) fn whole(shim: &mut Shim, seed: u64) -> Result<(), String> {
    lookups::case(shim, seed).map(drop)
}

/// A check in each launch of which a lane, a warp or a block is held ([`Shim::holds`]).
fn holding(check: Check, shim: &mut Shim, seed: u64) -> Result<(), String> {
    shim.holds = true;
    let found = check(shim, seed);
    shim.holds = false;
    found
}

pub(crate) fn held(shim: &mut Shim, seed: u64) -> Result<(), String> {
    holding(whole, shim, seed)
}

/// All of them, with names, and how many seeds find what they can find.
pub(crate) const CHECKS: [(&str, Check, u64); 64] = [
    ("few ids", few, 24),
    ("many ids", many, 60),
    ("many ids by a hash table", hashed, 60),
    ("many ids by a sort", sorted, 60),
    ("many ids, repeats and all", dedupe::repeated, 24),
    ("ids far apart", dedupe::far_apart, 12),
    ("spoilt batches", dedupe::spoilt, 14),
    ("whole look-ups", whole, 160),
    ("rows of any element", rich::whole, 24),
    ("rows of one feature, of any element", rich::one_feature, 12),
    ("checked rows", rich::checked, 12),
    ("scales that drives do not have", rich::scales_apart, 12),
    ("many ids by one kernel", lookups::many_by_one_kernel, 12),
    ("rows of one feature", lookups::one_feature, 24),
    ("sums of long bags", lookups::long_bags, 24),
    ("sums of single ids", lookups::single_bags, 24),
    ("reports while they are written", lookups::reports, 30),
    ("descriptions that are replaced", adopt::planted, 40),
    ("the kernel that replaces them", adopt::replacing, 20),
    ("the same beside launches", adopt::replacing_beside, 60),
    ("rows behind a closed gate", lookups::behind_a_closed_gate, 16),
    ("look-ups that rest", ahead::resting, 40),
    ("a slot that is being adopted for", adopt::waiting, 60),
    ("look-ups in the middle of updates", overlay::readers_beside_updates, 20),
    ("updates in the middle of look-ups", overlay::updates_beside_readers, 40),
    ("updated rows of drives", overlay::updated_on_drives, 12),
    ("rows on drives", ring::case, 12),
    ("look-ups that do without a part", ablations::case, 12),
    ("rows that are written as they land", written::case, 24),
    ("written rows: failing commands", written::failing, 8),
    ("rings that wrap", ring::steady, 8),
    ("batches that end within tiles", ring::tiles, 12),
    ("failing commands", ring::statuses, 16),
    ("completions that come twice", ring::twice, 6),
    ("completions that come late", ghosts::case, 4),
    ("many queues with little to do", ring::crowd, 60),
    ("queues that break", sets::case, 12),
    ("rows of a window", windows::case, 24),
    ("shares that teams walk", windows::teams, 24),
    ("bad blocks in a window", windows::parts, 24),
    ("commands that are refused", windows::refused, 12),
    ("parts that are lost", windows::lost_parts, 4),
    ("ring tests", ring_test::case, 24),
    ("ids of tokens", ngrams::case, 24),
    ("one kernel: updated rows", by_one_kernel::updated, 12),
    ("one kernel: rows on drives", by_one_kernel::case, 24),
    ("one kernel: many queues with little to do", by_one_kernel::crowd, 60),
    ("one kernel: failing commands", by_one_kernel::statuses, 8),
    ("one kernel: queues that break", by_one_kernel::breaking, 8),
    ("one kernel: checked rows", by_one_kernel::checked, 12),
    ("one kernel: rows that many ask for", by_one_kernel::repeated, 24),
    ("one kernel: slots and gates that are closed", by_one_kernel::turned_away, 40),
    ("one kernel: rows that are fetched ahead", by_one_kernel::ahead, 40),
    ("one kernel: times", by_one_kernel::times, 12),
    ("ids that are counted", sample::case, 24),
    ("touched keys", touches::case, 24),
    ("listed rows", listed::case, 24),
    ("listed rows: by one kernel", listed::by_one_kernel, 24),
    ("listed rows: updated", listed::updated, 12),
    ("cache: rows", cache::case, 40),
    ("cache: updated rows", cache::updated, 12),
    ("cache: a clock that comes to its end", cache::worn, 12),
    ("cache: rows of DRAM", cache::case_of_dram, 40),
    ("cache: updated rows of DRAM", cache::updated_of_dram, 12),
];

#[test]
fn look_ups_are_right_where_somebody_is_held() {
    let Some(mut shim) = Shim::new() else { return };
    let checks: [(&str, Check, u64); 5] = [
        ("whole look-ups", whole, 40),
        ("rows on drives", ring::case, 6),
        ("queues that break", sets::case, 4),
        ("one kernel: rows on drives", by_one_kernel::case, 8),
        ("cache: rows", cache::case, 12),
    ];
    for (name, check, usual) in checks {
        for seed in seeds(usual) {
            holding(check, &mut shim, seed).unwrap_or_else(|wrong| panic!("{name}, seed {seed}: {wrong}"));
        }
    }
}

#[test]
fn every_kernel_is_run_by_a_check() {
    let Some(mut shim) = Shim::new() else { return };
    let all = sources(&[]);
    let declared = all.iter().filter(|(name, _)| name.ends_with(".cuh") || name.ends_with(".cu"));
    let declared = declared.flat_map(|(_, text)| text.lines()).filter(|line| line.starts_with("KERNEL"));
    let name = |line: &str| Some(line[line.find("warprow_")?..].split('(').next()?.to_owned());
    let declared: BTreeSet<String> = declared.filter_map(name).collect();
    assert!(declared.len() >= 13, "{declared:?}");
    for seed in 0..12 {
        for (name, check, _) in CHECKS {
            let missing = |shim: &Shim| declared.iter().any(|kernel| !shim.launched.contains(kernel.as_str()));
            if !missing(&shim) {
                return;
            }
            check(&mut shim, seed).unwrap_or_else(|wrong| panic!("{name}, seed {seed}: {wrong}"));
        }
    }
    let missing: Vec<_> = declared.iter().filter(|kernel| !shim.launched.contains(kernel.as_str())).collect();
    panic!("no check runs {missing:?}: name them in simt/kernels.cpp, and add a check of what they do to CHECKS");
}
