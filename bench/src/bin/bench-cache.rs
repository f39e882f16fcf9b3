//! `bench-cache`: hit rates of cache policies on traces.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};
use warprow_bench::cache::{Compared, Source, batches_of, compare};
use warprow_bench::output::{finish, table};

/// Hit rates of cache policies on batches of ids, beside a static tier that was counted on the past and Belady's bound.
///
/// Ids of a batch are deduplicated: a row that the cache lacks is a miss for all its ids, and can be a hit from the next
/// batch on. A quarter of the batches is the past: it fills the caches, static tiers are counted on it, and it does not
/// count. No rows are moved: this is a simulation, and what it prints depends on nothing but its input.
#[derive(Debug, Parser)]
#[command(
    name = "bench-cache",
    version,
    after_help = "\
Examples:
  bench-cache law --rows 4000000 --ids 20000000
  bench-cache law --drift 2000000 --lines 0.05
  bench-cache text ~/.rustup/toolchains/*/share/doc/rust/html/book
  bench-cache movielens ratings.csv --batch 256"
)]
struct Args {
    #[command(subcommand)]
    source: From,
    /// Ids of a batch.
    #[arg(long, global = true, default_value_t = 16_384)]
    batch: usize,
    /// Lines of the caches: numbers, or shares of the different ids that there are.
    #[arg(long, global = true, value_delimiter = ',', default_values_t = [0.01, 0.05, 0.2])]
    lines: Vec<f64>,
    /// Batches that the sets of a GPU keep a line after its use.
    #[arg(long, global = true, default_value_t = 1)]
    hold: u64,
    /// Compares only what has this in its name; may be given several times.
    #[arg(long, global = true)]
    only: Vec<String>,
    /// Seed.
    #[arg(long, global = true, default_value_t = 1)]
    seed: u64,
    /// Prints one JSON object instead of the table.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum From {
    /// A power law, stationary or drifting
    Law {
        /// Rows of the table.
        #[arg(long, default_value_t = 4_000_000)]
        rows: u64,
        /// Exponent.
        #[arg(long, default_value_t = 1.05)]
        alpha: f64,
        /// Ids in all.
        #[arg(long, default_value_t = 20_000_000)]
        ids: u64,
        /// Ids after which a tenth of the hottest ranks get other ids. It also is the period after which a static tier
        /// is counted anew.
        #[arg(long)]
        drift: Option<u64>,
        /// Ranks among which that happens.
        #[arg(long, default_value_t = 200_000)]
        hottest: u64,
    },
    /// 2-, 3- and 4-grams of text, each in a table of its own
    Text {
        /// Files, or folders of .html, .md, .txt and .rs files.
        paths: Vec<PathBuf>,
        /// Rows of the table of each order.
        #[arg(long, default_value_t = 20_000_003)]
        rows: u64,
    },
    /// MovieLens ratings by time
    Movielens {
        /// ratings.csv.
        file: PathBuf,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    let json = args.json;
    finish(json, run(args))
}

fn run(args: Args) -> anyhow::Result<String> {
    let (source, period) = match args.source {
        From::Law { rows, alpha, ids, drift, hottest } => {
            (Source::Law { rows, alpha, ids, period: drift, hottest, seed: args.seed }, drift)
        }
        From::Text { paths, rows } => (Source::Text { paths, rows, seed: args.seed }, None),
        From::Movielens { file } => (Source::MovieLens(file), None),
    };
    let (ids, what) = source.ids()?;
    let batches = batches_of(&ids, args.batch);
    anyhow::ensure!(batches.len() >= 8, "{} ids are fewer than 8 batches of {}", ids.len(), args.batch);
    let different = ids.iter().collect::<std::collections::HashSet<_>>().len();
    let count = ids.len();
    drop(ids);
    let past = batches.len() / 4;
    let period = period.map(|period| (period as usize / args.batch).max(1));
    let mut compared: BTreeMap<usize, Vec<Compared>> = BTreeMap::new();
    for share in args.lines {
        let lines = if share < 1.0 { (different as f64 * share) as usize } else { share as usize };
        let began = Instant::now();
        let mut wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| name.contains(only));
        compared.insert(lines, compare(&batches, lines, past, period, args.hold, &mut wanted));
        eprintln!("{lines} lines: {:.1} s", began.elapsed().as_secs_f64());
    }
    if args.json {
        let of =
            |it: &Compared| serde_json::json!({ "name": it.name, "ids": it.rate.of_ids(), "rows": it.rate.of_rows() });
        let lines: Vec<_> = compared
            .iter()
            .map(|(lines, found)| serde_json::json!({ "lines": lines, "compared": found.iter().map(of).collect::<Vec<_>>() }))
            .collect();
        let object = serde_json::json!({ "schema": 1, "source": what, "ids": count, "different": different, "batch": args.batch, "caches": lines });
        return Ok(format!("{object}\n"));
    }
    let mut text = format!(
        "{what}\n{count} ids, {different} different, batches of {}, the first quarter is the past\n",
        args.batch
    );
    for (lines, found) in compared {
        let best = found.iter().find(|it| it.name.starts_with("Belady")).map(|it| it.rate);
        let rows = found.iter().map(|it| {
            let share =
                best.map_or("–".to_owned(), |best| format!("{:.1}", it.rate.of_rows() / best.of_rows() * 100.0));
            [
                it.name.clone(),
                format!("{:.1}", it.rate.of_ids() * 100.0),
                format!("{:.1}", it.rate.of_rows() * 100.0),
                share,
            ]
        });
        let header = ["contender", "% of ids", "% of rows", "% of the bound"];
        writeln!(
            text,
            "\n{lines} lines, {:.1} % of the ids that there are\n{}",
            lines as f64 / different as f64 * 100.0,
            table(header, rows)
        )?;
    }
    Ok(text)
}
