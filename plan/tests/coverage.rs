//! How many traces that a tier proposal has not seen are as its intervals say.
//!
//! A tier proposal is made by a part of a trace; then it is counted how many of the ids that follow find their row in memory. That is done for
//! traces of several sources, at several places, with several budgets, and the share of those inside of the interval is the coverage.
//! `cargo test --release -p warprow-plan --test coverage -- --ignored --nocapture` measures it at length, also on recorded traces.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

use warprow_layout::DType;
use warprow_plan::trace::{Bags, FileQueries, GeneratedQueries, IdPattern, QuerySource, QueryTrace, RecordedQueries};
use warprow_plan::{GroupRows, HostCosts, INTERVAL_COVERAGE, MemoryBudgets, ProposalOptions, TableShape, propose};
use warprow_workload::PowerLaw;

/// What was looked up, in a table of so many rows.
struct Recording {
    source: String,
    rows: u64,
    bags: Bags,
}

/// An interval, and what came: half of its width, and whether it was inside.
#[derive(Clone, Copy)]
struct Outcome {
    half: f64,
    is_inside: bool,
}

/// Of the part that follows, as long as what was held out, and as long as the trace.
type Outcomes = [Option<Outcome>; 2];

impl Recording {
    fn generated(alpha: f64, drift: f64, (rows, queries, each): (u64, u64, u64), seed: u64) -> Self {
        let law = PowerLaw::new(rows, alpha).unwrap();
        let mut trace = GeneratedQueries::new(IdPattern::PowerLaw { law, drift }, rows, queries, each, seed);
        let mut bags = Bags::default();
        trace.read(queries as usize, std::slice::from_mut(&mut bags)).unwrap();
        Self { source: format!("α {alpha}, drift {drift}, {each} ids a query"), rows, bags }
    }

    fn queries(&self) -> usize {
        self.bags.ends.len()
    }

    /// Proposes by the queries `given`, with memory for `hot` rows, and looks at those that follow.
    fn outcomes(&self, given: Range<usize>, hot: u64, held_out: f64) -> Outcomes {
        let column = RecordedQueries::new(&self.bags, given.clone());
        let mut trace = QueryTrace::new(vec![(vec!["t".to_owned()], Box::new(column) as _)]).unwrap();
        let shape = TableShape { name: "t".to_owned(), rows: self.rows, dim: 32, dtype: DType::F32, index_bytes: None };
        let options = ProposalOptions {
            budgets: MemoryBudgets { hbm: 0, dram: hot * 128 },
            batch: (given.len() / 200).max(1) as u32,
            group: GroupRows::Off,
            memory: 1 << 30,
            costs: HostCosts::NONE,
            held_out,
            ..ProposalOptions::default()
        };
        let proposal = propose(&[shape], &mut trace, &options, &mut |_| ControlFlow::Continue(())).unwrap();
        let hot = proposal.tiers.tables[0].dram_rows;
        let expected = &proposal.tiers.expected;
        let outcomes = expected.intervals.iter().map(|interval| {
            assert!((0.0..=interval.high).contains(&interval.low) && interval.high <= 1.0, "{interval:?}");
            let later = given.end..given.end + interval.queries as usize;
            if later.end > self.queries() {
                return None;
            }
            let ids = later.flat_map(|query| self.bags.query(query));
            let mut all = 0u64;
            let mut hits = 0u64;
            for &id in ids {
                all += 1;
                hits += u64::from(proposal.orders[0].rank(id).unwrap() < hot);
            }
            let truth = hits as f64 / all.max(1) as f64;
            let is_inside = (interval.low..=interval.high).contains(&truth);
            Some(Outcome { half: (interval.high - interval.low) / 2.0, is_inside })
        });
        outcomes.collect::<Vec<_>>().try_into().ok().unwrap()
    }
}

/// Inside of all, and the mean half of the intervals.
fn coverage(outcomes: impl Iterator<Item = Outcome>) -> (usize, usize, f64) {
    let (inside, all, halves) = outcomes
        .fold((0, 0, 0.0), |(inside, all, halves), it| (inside + usize::from(it.is_inside), all + 1, halves + it.half));
    (inside, all, halves / all.max(1) as f64)
}

/// Each trace is one draw: with the coverage that is stated, fewer of them than this are inside once in 700 times (three standard deviations
/// of a binomial law).
fn least(traces: usize) -> usize {
    let n = traces as f64;
    (n * INTERVAL_COVERAGE - 3.0 * (n * INTERVAL_COVERAGE * (1.0 - INTERVAL_COVERAGE)).sqrt()).floor() as usize
}

#[test]
fn of_unseen_traces_as_many_are_inside_as_is_said() {
    const SIZE: (u64, u64, u64) = (10_000, 50_000, 1);
    let mut outcomes = [Vec::new(), Vec::new()];
    let mut steady = Vec::new();
    let laws = [(0.7, 0.0), (1.05, 0.0), (1.2, 0.0), (0.8, 12.0), (1.0, 4.0), (1.2, 10.0)];
    for (seed, (alpha, drift)) in (1..).zip(laws.into_iter().cycle()).take(60) {
        let trace = Recording::generated(alpha, drift, SIZE, seed);
        let hot = [100, 1000, 3000][seed as usize / laws.len() % 3];
        let found = trace.outcomes(0..25_000, hot, 0.2);
        for (outcomes, found) in outcomes.iter_mut().zip(found) {
            outcomes.push(found.unwrap());
        }
        steady.extend(found[0].filter(|_| drift == 0.0));
    }
    for (outcomes, ahead) in outcomes.iter().zip(["what was held out", "the trace"]) {
        let (inside, all, half) = coverage(outcomes.iter().copied());
        println!("as long as {ahead}: {inside} of {all} inside, ± {:.2} points", half * 100.0);
        assert!(inside >= least(all), "{inside} of {all} are inside, with {INTERVAL_COVERAGE} at least {}", least(all));
    }
    // Where nothing changes, that is known.
    let all = coverage(outcomes[0].iter().copied()).2;
    let steady = coverage(steady.iter().copied()).2;
    println!("where nothing changes: ± {:.2} points, of all ± {:.2}", steady * 100.0, all * 100.0);
    assert!(steady < 0.04 && steady < all, "± {steady} where nothing changes, ± {all} of all");
}

#[test]
fn counts_that_do_not_fit_tell_as_much() {
    let mut outcomes = Vec::new();
    for (alpha, seed) in [(1.05, 1), (1.05, 2), (1.2, 3), (1.2, 4)] {
        let trace = Recording::generated(alpha, 0.5, (50_000, 160_000, 1), seed);
        outcomes.extend(trace.outcomes(0..100_000, 5000, 0.2)[0]);
    }
    let (inside, all, _) = coverage(outcomes.into_iter());
    assert!(inside >= least(all), "{inside} of {all}");
}

/// Where recorded traces lie, if they do.
fn recorded(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data").join(name);
    let path = std::env::var_os("WARPROW_TEST_DATA").map_or(path, |folder| Path::new(&folder).join(name));
    let found = path.exists().then_some(path);
    if found.is_none() {
        println!("left out: {name} is not there (WARPROW_TEST_DATA says where)");
    }
    found
}

/// A column of text as ids: words are numbered as they come.
fn column(path: &Path, name: &str, source: String) -> Recording {
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let at = lines.next().unwrap().split(',').position(|other| other == name).unwrap();
    let mut numbers = BTreeMap::new();
    let mut bags = Bags::default();
    for line in lines {
        let next = numbers.len() as i64;
        bags.ids.push(*numbers.entry(line.split(',').nth(at).unwrap()).or_insert(next));
        bags.end_query();
    }
    Recording { source, rows: numbers.len() as u64, bags }
}

/// Ratings by user, and in the order of time.
fn movielens(path: &Path) -> Vec<Recording> {
    let mut by_time: Vec<(u64, i64)> = std::fs::read_to_string(path)
        .unwrap()
        .lines()
        .skip(1)
        .map(|line| {
            let mut fields = line.split(',');
            let movie = fields.nth(1).unwrap().parse().unwrap();
            (fields.nth(1).unwrap().parse().unwrap(), movie)
        })
        .collect();
    by_time.sort_unstable();
    let rows = by_time.iter().map(|pair| pair.1).max().unwrap() as u64 + 1;
    let mut time = Bags::default();
    for (_, movie) in by_time {
        time.ids.push(movie);
        time.end_query();
    }
    let spec = format!("{}:Id,query=userId", path.display());
    let mut read = FileQueries::open(&spec.parse().unwrap()).unwrap();
    let queries = read.queries().unwrap() as usize;
    let mut users = Bags::default();
    read.read(queries, std::slice::from_mut(&mut users)).unwrap();
    let of = |source: &str, bags| Recording { source: source.to_owned(), rows, bags };
    vec![of("MovieLens, a query a user", users), of("MovieLens by time", time)]
}

#[test]
#[ignore = "measures at length: with --release, minutes"]
fn coverage_is_measured() {
    let mut recordings: Vec<Recording> = Vec::new();
    let seeds: Range<u64> = match std::env::var("WARPROW_SEEDS") {
        Ok(text) => {
            let (first, end) = text.split_once("..").unwrap();
            first.parse().unwrap()..end.parse().unwrap()
        }
        Err(_) => 1..7,
    };
    for seed in seeds {
        for (alpha, drift) in [
            (0.5, 1.0),
            (0.7, 0.0),
            (0.7, 2.0),
            (0.8, 6.0),
            (0.9, 0.1),
            (0.9, 1.0),
            (1.0, 0.2),
            (1.05, 0.0),
            (1.05, 0.5),
            (1.05, 2.0),
            (1.2, 0.0),
            (1.2, 0.5),
            (1.2, 2.0),
            (1.2, 6.0),
        ] {
            recordings.push(Recording::generated(alpha, drift, (50_000, 400_000, 1), seed));
        }
        for (alpha, drift) in [(0.9, 6.0), (1.05, 1.0), (1.2, 3.0)] {
            recordings.push(Recording::generated(alpha, drift, (20_000, 40_000, 10), seed));
        }
    }
    if let Some(path) = recorded("movielens-small/ratings.csv") {
        recordings.extend(movielens(&path));
    }
    for of in ["men", "women"] {
        let Some(path) = recorded(&format!("obd-bts/bts_{of}.csv")) else { continue };
        for name in ["item_id", "user_feature_0", "user_feature_1", "user_feature_2", "user_feature_3"] {
            let kind = if name == "item_id" { "items" } else { "users' features" };
            recordings.push(column(&path, name, format!("Open Bandit, {kind}")));
        }
    }
    for held_out in [0.2, 0.1, 0.3, 0.5] {
        let mut found: BTreeMap<String, [Vec<Outcome>; 2]> = BTreeMap::new();
        for recording in &recordings {
            let all = recording.queries();
            for share in [8, 4, 2] {
                let given = all / share;
                // As many are to follow, so that both intervals can be tested; from several places where it is short.
                let places = if recording.source.starts_with('α') { 1 } else { 5 };
                for place in 0..places {
                    let begin = (all - 2 * given) * place / places.max(2);
                    for part in [100, 10, 3] {
                        let hot = (recording.rows / part).max(1);
                        let outcomes = recording.outcomes(begin..begin + given, hot, held_out);
                        let of_source = found.entry(recording.source.clone()).or_default();
                        of_source.iter_mut().zip(outcomes).for_each(|(all, it)| all.extend(it));
                    }
                }
            }
        }
        println!("held out: {held_out}");
        let mut sums = [0.0; 2];
        for (source, outcomes) in &found {
            let text = outcomes.each_ref().map(|outcomes| {
                let (inside, all, half) = coverage(outcomes.iter().copied());
                format!("{:5.1}% of {all:3}, ± {:5.2}", 100.0 * inside as f64 / all as f64, half * 100.0)
            });
            for (sum, outcomes) in sums.iter_mut().zip(outcomes) {
                let (inside, all, _) = coverage(outcomes.iter().copied());
                *sum += inside as f64 / all as f64;
            }
            println!("{source:36} as long as what was held out: {}; as the trace: {}", text[0], text[1]);
        }
        let [next, trace] = sums.map(|sum| 100.0 * sum / found.len() as f64);
        println!("mean over {} sources: {next:.1}%, {trace:.1}%\n", found.len());
    }
}
