//! Where batches come from.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use warprow_cache::Batch;
use warprow_workload::{DriftingLaw, PowerLaw};

use super::text::{Tokens, ngrams};

/// Ids to serve.
#[derive(Clone, Debug)]
pub enum Source {
    /// A power law, drifting if `period` is given: after each such number of ids a tenth of the `hottest` ranks get
    /// other ids.
    Law {
        /// Rows of the table.
        rows: u64,
        /// Exponent.
        alpha: f64,
        /// Ids in all.
        ids: u64,
        /// Ids after which ids change.
        period: Option<u64>,
        /// Ranks that change.
        hottest: u64,
        /// Seed.
        seed: u64,
    },
    /// MovieLens ratings, by time.
    MovieLens(PathBuf),
    /// Hashed 2-, 3- and 4-grams of text: pages in an order by `seed`, cut into tokens.
    Text {
        /// Files, or folders of .html, .md, .txt and .rs files.
        paths: Vec<PathBuf>,
        /// Rows of the table of each order.
        rows: u64,
        /// Seed.
        seed: u64,
    },
}

impl Source {
    /// All ids, in their order, and what there is to say of them.
    pub fn ids(&self) -> anyhow::Result<(Vec<u64>, String)> {
        match self {
            &Self::Law { rows, alpha, ids, period, hottest, seed } => {
                let law = PowerLaw::new(rows, alpha).context("no power law has these parameters")?;
                let mut drift = DriftingLaw::new(law, hottest, 0.1, period.unwrap_or(u64::MAX), seed);
                let what = match period {
                    None => format!("power law, α = {alpha}, {rows} rows, seed {seed}"),
                    Some(period) => format!(
                        "generated drift: power law, α = {alpha}, {rows} rows; a tenth of the {hottest} hottest change every {period} ids; seed {seed}"
                    ),
                };
                Ok(((0..ids).map(|_| drift.id()).collect(), what))
            }
            Self::MovieLens(path) => {
                let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
                let mut ratings = Vec::new();
                for line in text.lines().skip(1) {
                    let mut fields = line.split(',');
                    let user = fields.next().and_then(|it| it.parse::<u64>().ok());
                    let film = fields.next().and_then(|it| it.parse::<u64>().ok());
                    let at = fields.nth(1).and_then(|it| it.parse::<u64>().ok());
                    let (Some(user), Some(film), Some(at)) = (user, film, at) else {
                        anyhow::bail!("{}: no rating: {line}", path.display())
                    };
                    ratings.push((at, user, film));
                }
                ensure!(!ratings.is_empty(), "{}: no ratings", path.display());
                ratings.sort_unstable();
                let what = format!("MovieLens, {} ratings by time", ratings.len());
                Ok((ratings.into_iter().map(|(_, _, film)| film).collect(), what))
            }
            Self::Text { paths, rows, seed } => {
                let tokens = Tokens::of(paths, *seed)?;
                let what = format!(
                    "2-, 3- and 4-grams of {} tokens ({} different) in {} pages, {rows} rows an order, pages by seed {seed}",
                    tokens.len(),
                    tokens.different(),
                    tokens.pages.len()
                );
                Ok((ngrams(&tokens, *rows), what))
            }
        }
    }
}

/// Batches of so many ids; ids of an unfinished batch are left out.
pub fn batches_of(ids: &[u64], batch: usize) -> Vec<Batch> {
    ids.chunks_exact(batch.max(1)).map(Batch::new).collect()
}
