//! What executors keep in memory of tables that were loaded by a tier proposal is what the proposal says, row for row.

use std::ops::ControlFlow;

use warprow_gpu::GpuTiers;
use warprow_gpu::gpu_row_bytes;
use warprow_layout::{DType, FormatOptions, TableSpec};
use warprow_lookup::{HostExecutor, HostOptions};
use warprow_plan::trace::{GeneratedQueries, IdPattern, QuerySource, QueryTrace};
use warprow_plan::{MemoryBudgets, OrderedProposal, ProposalFile, ProposalOptions, TableShape, propose};
use warprow_soft_controller::{Namespace, RamBacking, SoftController};
use warprow_store::{Device, LoadOptions, OpenOptions, Store, TableLoad};
use warprow_workload::{ContentOracle, PowerLaw};

/// Rows, elements, and how skewed look-ups are.
const TABLES: [(&str, u64, u32, f64); 3] = [("wide", 900, 100, 0.9), ("narrow", 4000, 8, 1.1), ("odd", 700, 33, 0.3)];
const QUERIES: u64 = 2000;

fn shapes() -> Vec<TableShape> {
    let shape = |&(name, rows, dim, _): &(&str, u64, u32, f64)| TableShape {
        name: name.to_owned(),
        rows,
        dim,
        dtype: DType::F32,
        index_bytes: None,
    };
    TABLES.iter().map(shape).collect()
}

fn proposed(budgets: MemoryBudgets, queries: u64) -> OrderedProposal {
    let source = |&(name, rows, _, alpha): &(&str, u64, u32, f64)| {
        let pattern = IdPattern::PowerLaw { law: PowerLaw::new(rows, alpha).unwrap(), drift: 0.0 };
        let source = GeneratedQueries::new(pattern, rows, queries, 2, 5);
        (vec![name.to_owned()], Box::new(source) as Box<dyn QuerySource>)
    };
    let mut trace = QueryTrace::new(TABLES.iter().map(source).collect()).unwrap();
    let options = ProposalOptions { budgets, batch: 64, ..ProposalOptions::default() };
    propose(&shapes(), &mut trace, &options, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// A store of the tables, loaded by a proposal's file.
fn loaded(proposal: &OrderedProposal) -> Store {
    let namespace = Namespace::new(RamBacking::new(64 << 20).unwrap());
    let drive = SoftController::builder().name("drive").serial("drive").namespace(namespace).build().unwrap();
    let store = Store::create(&[Device::new(drive, 1)], &FormatOptions::default(), &OpenOptions::default()).unwrap();
    let file = ProposalFile::decode("plan", ProposalFile::encode(proposal).unwrap()).unwrap();
    let placed: Vec<_> = TABLES.iter().map(|&(name, rows, ..)| file.ranks(name, rows).unwrap()).collect();
    let content: Vec<_> =
        shapes().iter().map(|shape| ContentOracle::new(1, 0, shape.rows, shape.dim, shape.dtype)).collect();
    let specs: Vec<TableSpec> = shapes()
        .iter()
        .zip(&placed)
        .map(|(it, &(_, hot_rows))| {
            let mut spec = TableSpec::new(&it.name, it.rows, it.dim, it.dtype);
            (spec.permuted, spec.hot_rows) = (true, hot_rows);
            spec
        })
        .collect();
    let loads: Vec<TableLoad<'_>> = specs
        .iter()
        .zip(&content)
        .zip(&placed)
        .map(|((spec, content), (ranks, _))| TableLoad::new(spec, content).with_ranks(ranks).with_random_access())
        .collect();
    store.load("m", &loads, &LoadOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
    store
}

#[test]
fn each_table_has_the_rows_in_gpu_memory_and_in_dram_that_the_plan_says() {
    // Some hold a few rows, some all that were looked up, some everything; of a short trace not all rows are known.
    let mut random = fastrand::Rng::with_seed(11);
    let drawn = (0..12).map(|_| (random.u64(1000..400_000), random.u64(1000..400_000), QUERIES));
    let given = [
        (1000, 700, QUERIES),
        (20_000, 50_000, QUERIES),
        (64_123, 0, QUERIES),
        (150_000, 300_001, QUERIES),
        (500_000, 90_000, QUERIES),
        (900_000, 0, QUERIES),
        (1 << 20, 1 << 20, QUERIES),
        (200_000, 400_000, 40),
        (300_000, 0, 40),
    ];
    for (hbm, dram, queries) in given.into_iter().chain(drawn) {
        let budgets = MemoryBudgets { hbm, dram };
        let proposal = proposed(budgets, queries);
        let store = loaded(&proposal);
        let placed = GpuTiers::of(&store, &proposal.tiers.gpu_options()).unwrap();
        let mut in_hbm = 0;
        let mut in_dram = 0;
        for (it, at) in proposal.tiers.tables.iter().zip(&placed.tables) {
            let row_bytes = u64::from(gpu_row_bytes(it.row_bytes));
            assert_eq!((it.hbm_rows, it.dram_rows), (at.hbm_rows, at.dram_rows), "{} of {budgets:?}", it.name);
            assert_eq!((it.hbm_bytes, it.dram_bytes), (it.hbm_rows * row_bytes, it.dram_rows * row_bytes));
            (in_hbm, in_dram) = (in_hbm + it.hbm_bytes, in_dram + it.dram_bytes);
        }
        assert!(in_hbm <= budgets.hbm && in_dram <= budgets.dram, "{budgets:?}: {in_hbm}, {in_dram}");
        // The density of a table's last row in GPU memory is no less than that of another's first one outside, if that would fit.
        let hottest: Vec<f64> = (proposal.orders.iter().zip(&proposal.tiers.tables))
            .map(|(order, it)| f64::from(order.count(it.hbm_rows)) / f64::from(gpu_row_bytes(it.row_bytes)))
            .collect();
        for (at, (order, it)) in proposal.orders.iter().zip(&proposal.tiers.tables).enumerate() {
            let Some(last) = it.hbm_rows.checked_sub(1) else { continue };
            let density = f64::from(order.count(last)) / f64::from(gpu_row_bytes(it.row_bytes));
            for (other, of) in proposal.tiers.tables.iter().enumerate() {
                let fits = u64::from(gpu_row_bytes(of.row_bytes)) <= budgets.hbm - in_hbm;
                assert!(other == at || !fits || density >= hottest[other], "{} before {}", it.name, of.name);
            }
        }
    }
}

#[test]
fn a_host_has_the_rows_in_dram_that_the_plan_says() {
    for dram in [1000, 60_000, 400_000, 10 << 20] {
        let proposal = proposed(MemoryBudgets { hbm: 0, dram }, QUERIES);
        let host = HostExecutor::attach(&loaded(&proposal), HostOptions::default().with_dram_bytes(dram)).unwrap();
        for it in &proposal.tiers.tables {
            assert_eq!((it.hbm_rows, Some(it.dram_rows)), (0, host.hot_rows(&it.name)), "{} of {dram}", it.name);
        }
    }
}
