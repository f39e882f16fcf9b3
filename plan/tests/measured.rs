//! Tier proposals against what a store does on the part of a trace that they were not made by. Drives have the timing of real ones, on a
//! virtual clock: time passes only while look-ups wait for them, and every run is the same.

use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::time::Duration;

use warprow_dma::Clock;
use warprow_layout::{DType, FormatOptions, TableSpec};
use warprow_lookup::HostExecutor;
use warprow_lookup::{Batch, Feature, HostOptions, Output, OutputRows, PlanOptions};
use warprow_plan::trace::{Bags, FileQueries, GeneratedQueries, IdPattern, QuerySource, QueryTrace, RecordedQueries};
use warprow_plan::{
    AlikeDrives, GroupRows, HostCosts, MemoryBudgets, OrderedProposal, ProposalFile, ProposalOptions, TableShape,
    propose,
};
use warprow_soft_controller::{Namespace, RamBacking, SoftController, TimingProfile};
use warprow_store::{Device, LoadOptions, OpenOptions, Store, TableLoad};
use warprow_tests::VirtualClock;
use warprow_workload::{ContentOracle, PowerLaw, RowsAnswer, verify};

const LBA: u32 = 512;

/// A table, what was looked up in it, and how the proposal is asked for.
struct Case {
    shape: TableShape,
    bags: Bags,
    /// Bytes of DRAM.
    dram: u64,
    batch: u32,
    group: GroupRows,
    profile: &'static str,
    drives: u32,
}

/// What a store did.
#[derive(Debug, Default)]
struct Did {
    ids: u64,
    ids_dram: u64,
    rows_ssd: u64,
    commands: u64,
    bytes: u64,
    time: Duration,
    lookups: u64,
}

impl Case {
    fn new(rows: u64, dim: u32, dram: f64, batch: u32, column: &mut dyn QuerySource) -> Self {
        let mut bags = Bags::default();
        let queries = column.queries().unwrap() as usize;
        assert_eq!(column.read(queries, std::slice::from_mut(&mut bags)).unwrap(), queries);
        let dram = (rows as f64 * dram) as u64 * u64::from(dim) * 4;
        let shape = TableShape { name: "t".to_owned(), rows, dim, dtype: DType::F32, index_bytes: None };
        Self { shape, bags, dram, batch, group: GroupRows::Off, profile: "gen5-tlc", drives: 2 }
    }

    fn drive_bytes(&self) -> u64 {
        (self.shape.rows * (u64::from(self.shape.dim) * 4 + 4) + (64 << 20)).next_multiple_of(1 << 20)
    }

    fn propose(&self, queries: Range<usize>) -> OrderedProposal {
        let column = RecordedQueries::new(&self.bags, queries);
        let mut trace = QueryTrace::new(vec![(vec!["t".to_owned()], Box::new(column) as _)]).unwrap();
        let options = ProposalOptions {
            budgets: MemoryBudgets { hbm: 0, dram: self.dram },
            drives: AlikeDrives {
                count: self.drives,
                profile: self.profile.to_owned(),
                bytes: self.drive_bytes(),
                lba: LBA,
                emulated: true,
            },
            batch: self.batch,
            group: self.group,
            // On the virtual clock, a processor takes no time.
            costs: HostCosts::NONE,
            ..ProposalOptions::default()
        };
        propose(std::slice::from_ref(&self.shape), &mut trace, &options, &mut |_| ControlFlow::Continue(())).unwrap()
    }

    /// Loads the table by the file of a proposal, and looks up the queries `queries` of the trace; every row is compared.
    fn look_up(&self, proposal: &OrderedProposal, queries: Range<usize>) -> Did {
        let shape = &self.shape;
        let file = ProposalFile::decode("plan", ProposalFile::encode(proposal).unwrap()).unwrap();

        let (ranks, hot_rows) = file.ranks("t", shape.rows).unwrap();
        let row_bytes = u64::from(shape.dim) * 4;
        let clock = VirtualClock::new();
        let profile = self.profile.parse::<TimingProfile>().unwrap();
        let devices: Vec<Device> = (0..self.drives)
            .map(|i| {
                let namespace = Namespace::new(RamBacking::new(self.drive_bytes()).unwrap()).lba(LBA);
                let name = format!("drive{i}");
                let builder = SoftController::builder().name(&name).serial(&name).namespace(namespace);
                let drive = builder.profile(profile).stepped().build().unwrap();
                clock.step_too(drive.clone());
                Device::new(drive, 1)
            })
            .collect();
        let options = OpenOptions::default().with_clock(clock.clone());
        let store = Store::create(&devices, &FormatOptions::default(), &options).unwrap();
        let mut spec = TableSpec::new("t", shape.rows, shape.dim, shape.dtype);
        (spec.permuted, spec.hot_rows) = (true, hot_rows);
        let content = ContentOracle::new(1, 0, shape.rows, shape.dim, shape.dtype);
        let load = TableLoad::new(&spec, &content).with_ranks(&ranks).with_random_access();
        store.load("m", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
        let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(self.dram)).unwrap();
        assert_eq!(host.hot_rows("t"), Some(hot_rows));

        let batches: Vec<Range<usize>> = queries
            .clone()
            .step_by(self.batch as usize)
            .map(|at| at..queries.end.min(at + self.batch as usize))
            .collect();
        let ids_of = |batch: &Range<usize>| {
            batch.clone().flat_map(|number| self.bags.query(number)).copied().collect::<Vec<i64>>()
        };
        let most = batches.iter().map(|batch| ids_of(batch).len()).max().unwrap();
        let host_plan = host.plan(&[Feature::new("f", "t")], PlanOptions::default().with_max(most, most)).unwrap();
        let mut slot = host_plan.slot().unwrap();
        let mut rows = vec![0f32; most * shape.dim as usize];
        let mut did = Did::default();
        for batch in &batches {
            let ids = ids_of(batch);
            let rows = &mut rows[..ids.len() * shape.dim as usize];
            rows.fill(f32::NAN);
            let out = &mut Output::new(OutputRows::F32(rows), shape.dim as usize);
            let began = clock.now();
            let report = slot.lookup(&Batch::new(&ids, ids.len()), out).unwrap();
            did.time += clock.now() - began;
            did.lookups += 1;
            let bytes: Vec<u8> = rows.iter().flat_map(|row| row.to_le_bytes()).collect();
            verify(&content, &ids, RowsAnswer { rows: &bytes, stride: row_bytes as usize, mask: None }).unwrap();
            did.ids += report.ids - report.missing;
            did.ids_dram += report.ids_dram;
            did.rows_ssd += report.rows_ssd;
            did.commands += report.commands;
            did.bytes += report.bytes_read;
        }
        did
    }

    /// Proposes by the first four fifths, looks the last fifth up, and compares: hit rates to two points, what drives do to a
    /// share of `within`.
    fn check(&self, name: &str, within: f64) -> (OrderedProposal, Did) {
        let all = self.bags.ends.len();
        let cut = self.bags.ends.len() * 4 / 5;
        let proposal = self.propose(0..cut);
        let did = self.look_up(&proposal, cut..all);
        let expected = &proposal.tiers.expected;
        let hit = did.ids_dram as f64 / did.ids as f64;
        let each = |count: u64| count as f64 / did.ids as f64;
        let ratio = |got: u64, want: f64| each(got) / (want / expected.ids);
        println!(
            "{name}: in memory {:.2}% as {:.2} ± {:.2}% expected; rows on drives {:.3}, commands {:.3}, bytes {:.3} of what was; \
             {:.0} look-ups/s as {:.0} expected",
            hit * 100.0,
            expected.dram * 100.0,
            expected.error * 100.0,
            ratio(did.rows_ssd, expected.rows_ssd),
            ratio(did.commands, expected.commands),
            ratio(did.bytes, expected.bytes),
            did.lookups as f64 / did.time.as_secs_f64(),
            expected.lookups_per_second,
        );
        let rate = did.lookups as f64 / did.time.as_secs_f64() / expected.lookups_per_second;
        assert!((rate - 1.0).abs() < 0.2, "{name}: the rate is {rate} of what was expected");
        assert!((hit - expected.dram).abs() < 0.02, "{name}: {hit}, not {}", expected.dram);
        for (what, ratio) in [
            ("rows", ratio(did.rows_ssd, expected.rows_ssd)),
            ("commands", ratio(did.commands, expected.commands)),
            ("bytes", ratio(did.bytes, expected.bytes)),
        ] {
            assert!((ratio - 1.0).abs() < within, "{name}: {what} are {ratio} of what was expected");
        }
        (proposal, did)
    }
}

fn power_law(rows: u64, alpha: f64, drift: f64, seed: u64) -> GeneratedQueries {
    let law = PowerLaw::new(rows, alpha).unwrap();
    GeneratedQueries::new(IdPattern::PowerLaw { law, drift }, rows, 400_000, 1, seed)
}

#[test]
fn hit_rates_of_power_laws_are_as_planned() {
    for (alpha, share, seed) in [(1.05, 0.05, 1), (0.8, 0.2, 2), (0.0, 0.5, 3), (1.2, 0.01, 4)] {
        let mut trace = power_law(100_000, alpha, 0.0, seed);
        Case::new(100_000, 32, share, 2048, &mut trace).check(&format!("α {alpha}, {share} in DRAM, seed {seed}"), 0.1);
    }
}

#[test]
fn rates_are_as_planned_on_drives_of_every_kind() {
    for (profile, drives, batch, seed) in
        [("gen5-tlc", 1, 4096, 11), ("gen5-tlc", 4, 512, 12), ("p5800x", 1, 4096, 13), ("p5800x", 3, 300, 14)]
    {
        for alpha in [0.0, 0.9] {
            let mut trace = power_law(60_000, alpha, 0.0, seed);
            let case = Case { profile, drives, ..Case::new(60_000, 128, 0.05, batch, &mut trace) };
            case.check(&format!("{drives} × {profile}, α {alpha}, batches of {batch}, seed {seed}"), 0.1);
        }
    }
}

#[test]
fn hit_rates_are_as_planned_where_tastes_change() {
    // Where a few rows take most look-ups, nobody foresees what becomes of them: so the faster change is of a flatter law.
    for (alpha, drift, seed) in [(1.05, 0.5, 5), (0.7, 2.0, 6)] {
        let mut trace = power_law(50_000, alpha, drift, seed);
        Case::new(50_000, 32, 0.1, 1024, &mut trace).check(&format!("α {alpha}, drift {drift}, seed {seed}"), 0.1);
    }
}

#[test]
fn known_groups_save_what_was_planned() {
    let law = PowerLaw::new(5000, 0.6).unwrap();
    let mut trace = GeneratedQueries::new(IdPattern::Groups { law, size: 4, noise: 2 }, 60_000, 60_000, 0, 7);
    let mut case = Case::new(60_000, 32, 0.05, 32, &mut trace);
    let (_, alone) = case.check("groups of 4, apart", 0.1);
    case.group = GroupRows::Auto;
    let (proposal, together) = case.check("groups of 4, together", 0.1);
    let grouping = proposal.tiers.tables[0].grouping.unwrap();
    let saved = 1.0 - together.commands as f64 / alone.commands as f64;
    println!("{grouping:?}; saved {saved}");
    assert!(grouping.applied && saved > 0.3);
    assert!((saved - grouping.commands_saved).abs() < 0.05, "{saved} saved, {} planned", grouping.commands_saved);
}

#[test]
fn what_has_no_groups_is_left_alone() {
    let mut trace = power_law(50_000, 0.9, 0.0, 8);
    let mut case = Case::new(50_000, 32, 0.05, 512, &mut trace);
    case.group = GroupRows::Auto;
    let (proposal, _) = case.check("no groups", 0.1);
    assert!(
        proposal.tiers.tables[0].grouping.is_none_or(|grouping| !grouping.applied),
        "{:?}",
        proposal.tiers.tables[0].grouping
    );
}

/// The ratings of MovieLens, a query for each user, if they are there.
fn movielens() -> Option<Box<dyn QuerySource>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/movielens-small/ratings.csv");
    if !path.exists() {
        eprintln!("skipped: {} is not there", path.display());
        return None;
    }
    let spec = format!("{}:Id,query=userId", path.display()).parse().unwrap();
    Some(Box::new(FileQueries::open(&spec).unwrap()))
}

#[test]
fn movielens_is_as_planned() {
    let Some(mut trace) = movielens() else { return };
    for share in [0.001, 0.005, 0.02] {
        let case = Case::new(193_610, 32, share, 4, &mut *trace);
        trace.rewind().unwrap();
        case.check(&format!("MovieLens, {share} in DRAM"), 0.25);
    }
}

#[test]
fn movielens_grouped() {
    let Some(mut trace) = movielens() else { return };
    let mut case = Case::new(193_610, 32, 0.002, 1, &mut *trace);
    let (_, alone) = case.check("MovieLens, apart", 0.25);
    case.group = GroupRows::Auto;
    let (proposal, together) = case.check("MovieLens, grouped", 0.25);
    let grouping = proposal.tiers.tables[0].grouping.unwrap();
    let saved = 1.0 - together.commands as f64 / alone.commands as f64;
    println!("{grouping:?}; saved {saved}");
    assert_eq!(grouping.applied, saved > 0.0, "{grouping:?}, {saved}");
}
