//! What the demo looks up, and the truth about it.

use std::sync::Mutex;

use warprow_formats::{FileTable, TableFile};
use warprow_layout::{DType, Ranks, RowSource, Table, VolumeError};
use warprow_workload::units;
use warprow_workload::{BatchSource, ContentOracle, IdShuffle, KeyMapping, MappedKeys, PowerLaw, TableContent, counts};

use super::arguments::DemoArgs;
use super::trace;
use crate::failure::Failure;
use crate::file::ById;

/// The name of the table.
pub(crate) const TABLE: &str = "demo";

/// A table and the batches of ids that are looked up in it.
pub(crate) struct Workload<'a> {
    pub truth: Truth<'a>,
    pub batches: BatchSource,
    /// How often each id was looked up before, by id; `None`: the ids are a shuffle of the ranks.
    counts: Option<Vec<u64>>,
    /// Ids in a batch.
    pub batch: usize,
    /// In words.
    pub table: String,
    /// In words.
    pub trace: String,
    /// How the keys of a trace became ids.
    pub mapped: Option<(KeyMapping, Share)>,
}

/// How many ids of a trace the table does not have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    pub missing: u64,
    pub ids: u64,
    pub distinct: u64,
}

impl Share {
    pub(crate) fn part(self) -> f64 {
        self.missing as f64 / self.ids.max(1) as f64
    }
}

/// The true content of the table: computed, or in the user's file. Never from the drive.
pub(crate) enum Truth<'a> {
    Computed(ContentOracle),
    File { rows: ById<'a>, table: &'a FileTable, failed: Mutex<Option<std::io::Error>> },
}

impl Truth<'_> {
    /// The first failure to read the truth.
    pub(crate) fn failed(&self) -> Option<std::io::Error> {
        match self {
            Self::Computed(_) => None,
            Self::File { failed, .. } => failed.lock().ok()?.take(),
        }
    }
}

impl TableContent for Truth<'_> {
    fn rows(&self) -> u64 {
        match self {
            Self::Computed(oracle) => oracle.rows(),
            Self::File { table, .. } => table.rows,
        }
    }

    fn dim(&self) -> u32 {
        match self {
            Self::Computed(oracle) => oracle.dim(),
            Self::File { table, .. } => table.dim,
        }
    }

    fn dtype(&self) -> DType {
        match self {
            Self::Computed(oracle) => oracle.dtype(),
            Self::File { table, .. } => table.dtype,
        }
    }

    fn fill(&self, id: u64, row: &mut [u8]) {
        match self {
            Self::Computed(oracle) => oracle.fill(id, row),
            Self::File { rows, failed, .. } => {
                if let Err(error) = rows.read(id, row.len(), row)
                    && let Ok(mut failed) = failed.lock()
                {
                    failed.get_or_insert(error);
                }
            }
        }
    }
}

impl RowSource for Truth<'_> {
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> std::io::Result<()> {
        match self {
            Self::Computed(oracle) => oracle.read(first, row_bytes, rows),
            Self::File { rows: source, .. } => source.read(first, row_bytes, rows),
        }
    }

    fn check(&self, table: &Table) -> Result<(), VolumeError> {
        match self {
            Self::Computed(_) => Ok(()),
            Self::File { rows, .. } => rows.check(table),
        }
    }
}

impl<'a> Workload<'a> {
    /// A table of random numbers and ids from a power law.
    pub(crate) fn computed(args: &DemoArgs) -> Result<Self, Failure> {
        let rows = args.rows;
        let seed = args.seed;
        let law = PowerLaw::new(rows, args.alpha).filter(|_| args.alpha <= 100.0).ok_or_else(|| {
            Failure::usage("--alpha", format!("{:e} is no exponent from 0 to 100", args.alpha)).remedy("try 1.05")
        })?;
        let shuffle = IdShuffle::new(rows, seed);
        let oracle = ContentOracle::new(seed, 0, rows, args.dim, DType::F32);
        let bytes = rows.saturating_mul(oracle.row_bytes() as u64);
        Ok(Self {
            truth: Truth::Computed(oracle),
            batches: BatchSource::PowerLaw { law, shuffle, seed },
            counts: None,
            batch: args.batch,
            table: format!(
                "{} × {} f32, {}, computed from seed {seed}",
                units::count(rows),
                args.dim,
                units::bytes(bytes)
            ),
            trace: format!("power law, α = {}, ids a shuffle of the ranks", args.alpha),
            mapped: None,
        })
    }

    /// A table from a file and ids from a trace: the first half tells what is hot, the second is replayed.
    pub(crate) fn given(
        args: &DemoArgs,
        file: &'a TableFile,
        table: &'a FileTable,
        trace: &str,
        mapping: KeyMapping,
    ) -> Result<Self, Failure> {
        let (subject, keys) = trace::read(trace, &table.name)?;
        let MappedKeys { ids, distinct, missing } = keys.map(mapping, table.rows);
        let share = Share { missing, ids: ids.len() as u64, distinct };
        let (past, future) = ids.split_at(ids.len() / 2);
        if future.is_empty() {
            return Err(Failure::input(subject, "it holds no ids"));
        }
        if missing == share.ids {
            let what = format!("none of its {} is in the table", units::plural(share.ids, "id"));
            return Err(Failure::input(subject, what)
                .remedy("check the column, and the table; or make ids of the keys with --map dense or --map modulo"));
        }
        let rows =
            usize::try_from(table.rows).map_err(|_| Failure::input(&table.name, "the table is too large to rank"))?;
        let bytes = table.rows.saturating_mul(table.row_bytes() as u64);
        Ok(Self {
            batch: args.batch.min(future.len()),
            table: format!(
                "{} from {}: {} × {} {}, {}",
                table.name,
                file.path.display(),
                units::count(table.rows),
                table.dim,
                table.dtype,
                units::bytes(bytes)
            ),
            trace: format!(
                "{subject}: {}, the hottest by the first half, the second half replayed",
                units::plural(share.ids, "id")
            ),
            truth: Truth::File { rows: ById::new(file, table)?, table, failed: Mutex::default() },
            batches: BatchSource::Replay(future.to_vec()),
            counts: Some(counts(past, rows)),
            mapped: Some((mapping, share)),
        })
    }

    /// Ids after which a trace begins again.
    pub(crate) fn trace_ids(&self) -> Option<u64> {
        match &self.batches {
            BatchSource::Replay(ids) => Some(ids.len() as u64),
            BatchSource::PowerLaw { .. } => None,
        }
    }

    /// id → rank.
    pub(crate) fn ranks(&self) -> Result<Ranks, Failure> {
        match (&self.batches, &self.counts) {
            (BatchSource::PowerLaw { shuffle, .. }, _) => {
                let rank = |id| u32::try_from(shuffle.rank(id)).unwrap_or(u32::MAX);
                Ranks::from_u32((0..self.truth.rows()).map(rank).collect())
                    .map_err(|error| Failure::usage("--rows", error.to_string()).remedy("give fewer than 2³² rows"))
            }
            (_, counts) => Ok(Ranks::by_hotness(counts.as_deref().unwrap_or_default())),
        }
    }
}
