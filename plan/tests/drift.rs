//! Hit rates where what is looked up changes: what is stated as their error has to hold.

use std::ops::{ControlFlow, Range};

use warprow_layout::DType;
use warprow_plan::trace::{Bags, Generated, Pattern, Recorded, Source, Trace};
use warprow_plan::{Budgets, GroupRows, Options, TableShape, plan};
use warprow_workload::PowerLaw;

const ROWS: u64 = 50_000;

/// What was planned by the first four fifths of a trace, and the share of ids that the last fifth then found in memory.
fn planned(alpha: f64, drift: f64, memory: u64, seed: u64) -> (f64, f64, f64) {
    let law = PowerLaw::new(ROWS, alpha).unwrap();
    let mut trace = Generated::new(Pattern::PowerLaw { law, drift }, ROWS, 400_000, 1, seed);
    let mut bags = Bags::default();
    trace.read(400_000, std::slice::from_mut(&mut bags)).unwrap();
    let (learnt, later): (Range<usize>, Range<usize>) = (0..320_000, 320_000..400_000);
    let mut trace = Trace::new(vec![(vec!["t".to_owned()], Box::new(Recorded::new(&bags, learnt)) as _)]).unwrap();
    let shape = TableShape { name: "t".to_owned(), rows: ROWS, dim: 32, dtype: DType::F32, index_bytes: None };
    let options = Options {
        budgets: Budgets { hbm: 0, dram: ROWS / 10 * 128 },
        batch: 1000,
        group: GroupRows::Off,
        memory,
        ..Options::default()
    };
    let planned = plan(&[shape], &mut trace, &options, &mut |_| ControlFlow::Continue(())).unwrap();
    let hot = planned.plan.tables[0].dram_rows;
    let is_hot = |&id: &i64| planned.orders[0].rank(id).unwrap() < hot;
    let hits = later.clone().flat_map(|query| bags.query(query)).filter(|id| is_hot(id)).count();
    let expected = &planned.plan.expected;
    (expected.dram, expected.error, hits as f64 / later.len() as f64)
}

#[test]
fn the_error_stated_holds_where_tastes_change() {
    for (alpha, drift) in
        [(1.05, 0.0), (0.7, 2.0), (0.9, 1.0), (1.05, 0.5), (1.05, 2.0), (1.2, 0.5), (1.2, 2.0), (1.2, 6.0)]
    {
        for seed in 1..=4 {
            let (want, error, got) = planned(alpha, drift, 1 << 20, seed);
            println!(
                "α {alpha}, drift {drift}, seed {seed}: {:.2}% found, {:.2} ± {:.2} planned",
                got * 100.0,
                want * 100.0,
                error * 100.0
            );
            assert!(
                (got - want).abs() <= error.max(0.02),
                "α {alpha}, drift {drift}, seed {seed}: {got}, not {want} ± {error}"
            );
            // Where nothing changes, that is known.
            assert!(drift > 0.0 || error < 0.02, "α {alpha}, seed {seed}: ± {error} where nothing changes");
        }
    }
}

#[test]
fn the_error_stated_holds_where_counts_do_not_fit() {
    for (alpha, seed) in [(1.05, 1), (1.2, 2)] {
        let (want, error, got) = planned(alpha, 0.5, 160 << 10, seed);
        println!(
            "α {alpha}, seed {seed}: {:.2}% found, {:.2} ± {:.2} planned",
            got * 100.0,
            want * 100.0,
            error * 100.0
        );
        assert!((got - want).abs() <= error.max(0.02), "α {alpha}, seed {seed}: {got}, not {want} ± {error}");
    }
}
