//! Counting how often each row is looked up, and ranking rows by that.

use std::path::Path;

use warprow_layout::Ranks;
use warprow_traces::{KeyScores, Trace, TraceBlock};
use warprow_workload::TraceFile;
use warprow_workload::units;

use super::argument::{Hot, Source};
use super::numbers::read_counts;
use super::rows::Rows;
use crate::columns::LookupTrace;
use crate::failure::{Class, Failure};

/// What `--hotness` arguments came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hotness {
    /// The hottest row first.
    pub ranks: Ranks,
    /// For traces and scores: how many of their keys are rows of the table.
    pub trace: Option<Share>,
}

/// How many keys of a trace the table does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Share {
    /// Keys that the table does not have.
    pub missing: u64,
    /// All.
    pub ids: u64,
}

/// A table whose look-ups are counted.
struct Counting<'a> {
    name: &'a str,
    rows: Rows<'a>,
    /// By row, or by slot of its keys.
    counts: Vec<u64>,
    share: Share,
    by_row: bool,
}

impl Hot {
    /// Adds what it says of each row, or of each slot, of those of `tables` that it speaks of.
    fn count(
        &self,
        tables: &mut [Counting<'_>],
        told: &mut dyn FnMut(u64, u64) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        match &self.file.source {
            Source::Counts(file) => {
                tables.iter_mut().filter(|table| self.is_of(table.name)).try_for_each(|counting| counting.take(file))
            }
            Source::Scores(folder) => {
                let Some(table) = tables.iter_mut().find(|table| self.is_of(table.name)) else { return Ok(()) };
                table.add_scores(folder, told)
            }
            Source::Trace(_) => self.log.as_ref().map_or(Ok(()), |log| count_trace(log, tables, told)),
        }
    }
}

/// Counts the look-ups of a trace in `tables`, in one go.
fn count_trace(
    log: &LookupTrace,
    tables: &mut [Counting<'_>],
    told: &mut dyn FnMut(u64, u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut trace = Trace::open(&log.spec)?;
    let mut block = TraceBlock::default();
    let mut keys = Vec::new();
    let mut places = Vec::new();
    let mut all = 0u64;
    while trace.next_block(&mut block)? {
        for table in tables.iter_mut() {
            for slot in log.slots_of(table.name) {
                let signed = trace.slots().get(slot).is_some_and(|slot| slot.signed);
                keys.clear();
                block.slot(slot).for_each(|sample| keys.extend_from_slice(sample));
                table.rows.place(&keys, signed, &mut places);
                table.add(&places);
                all += places.len() as u64;
            }
        }
        let (read, bytes) = trace.progress();
        told(read, bytes)?;
    }
    if all == 0 { Err(Trace::empty(&log.spec).into()) } else { Ok(()) }
}

impl Counting<'_> {
    /// Counts a look-up at each of these places.
    fn add(&mut self, places: &[u64]) {
        for &place in places {
            match self.counts.get_mut(usize::try_from(place).unwrap_or(usize::MAX)) {
                Some(count) => *count = count.saturating_add(1),
                None => self.share.missing += 1,
            }
        }
        self.share.ids += places.len() as u64;
    }

    /// Takes one count for each row.
    fn take(&mut self, file: &TraceFile) -> Result<(), Failure> {
        let is_blank = std::fs::metadata(&file.path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0);
        let theirs = if is_blank { Vec::new() } else { read_counts(file)? };
        if theirs.is_empty() && !self.counts.is_empty() {
            let remedy = "give one count for each row, in their order, or look-ups as trace:FILE";
            let what = "it holds no look-ups, and no counts";
            return Err(Failure::input(file.path.display().to_string(), what).remedy(remedy));
        }
        if theirs.len() != self.counts.len() {
            let what = format!(
                "it has {}, the table {}",
                units::plural(theirs.len() as u64, "count"),
                units::plural(self.counts.len() as u64, "row")
            );
            let remedy = "give one count for each row, in their order; a list of ids is given as trace:FILE";
            return Err(Failure::input(file.path.display().to_string(), what).remedy(remedy));
        }
        self.counts.copy_from_slice(&theirs);
        self.by_row = true;
        Ok(())
    }

    /// Takes the highest score of each key.
    fn add_scores(
        &mut self,
        folder: &Path,
        told: &mut dyn FnMut(u64, u64) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut scores = KeyScores::open(folder)?;
        let total = scores.rows();
        let mut read = 0;
        let mut places = Vec::new();
        loop {
            let block: Vec<(u64, u64)> = scores.by_ref().take(1 << 12).collect::<Result<_, _>>()?;
            if block.is_empty() {
                return Ok(());
            }
            let keys: Vec<u64> = block.iter().map(|(key, _)| *key).collect();
            self.rows.place(&keys, true, &mut places);
            for (&place, (_, score)) in places.iter().zip(&block) {
                match self.counts.get_mut(usize::try_from(place).unwrap_or(usize::MAX)) {
                    Some(count) => *count = (*count).max(*score),
                    None => self.share.missing += 1,
                }
            }
            read += block.len() as u64;
            self.share.ids += block.len() as u64;
            told(read, total)?;
        }
    }
}

/// Counts the look-ups of each of `tables`, by what `files` say, counts of traces added up; each file is read once. `told` hears how
/// far each is, of how much, and may end it.
fn counted<'a>(
    files: &[&Hot],
    tables: &[(&'a str, Rows<'a>)],
    told: &mut dyn FnMut(u64, u64) -> Result<(), Failure>,
) -> Result<Vec<Counting<'a>>, Failure> {
    let mut all: Vec<Counting<'_>> = Vec::with_capacity(tables.len());
    for &(name, rows) in tables {
        let mut counts: Vec<u64> = Vec::new();
        let count = usize::try_from(rows.len()).ok().filter(|&count| counts.try_reserve_exact(count).is_ok());
        let count = count.ok_or_else(|| {
            let what = format!("there is no memory to count the look-ups of {} rows, 8 bytes each", rows.len());
            Failure::new(Class::Resources, name, what).remedy("free some, or rank the table elsewhere")
        })?;
        counts.resize(count, 0);
        all.push(Counting { name, rows, counts, share: Share::default(), by_row: false });
    }
    files.iter().try_for_each(|file| file.count(&mut all, told))?;
    for Counting { name, share, .. } in &all {
        if share.ids > 0 && share.ids == share.missing {
            let file = files.iter().find(|file| file.is_of(name));
            let path = file.map(|file| file.file.path().display().to_string()).unwrap_or_default();
            let what = match file.and_then(|file| file.log.as_ref()?.column_of(name)) {
                Some(column) => format!("none of the ids of {:?} is in table {name:?}", column.name),
                None => "none of its ids is in the table".to_owned(),
            };
            return Err(Failure::input(path, what).remedy("check the column or slot, and the table"));
        }
    }
    Ok(all)
}

/// The ranks that put the hottest rows of each of `tables` first, by what `files` say, counts of traces added up; each file is read
/// once. `told` hears how far each is, of how much, and may end it.
pub fn rank(
    files: &[&Hot],
    tables: &[(&str, Rows<'_>)],
    told: &mut dyn FnMut(u64, u64) -> Result<(), Failure>,
) -> Result<Vec<Hotness>, Failure> {
    let ranked = counted(files, tables, told)?.into_iter().map(|Counting { name, rows, counts, share, by_row }| {
        let counts = if by_row { counts } else { rows.by_row(name, counts)? };
        Ok(Hotness { ranks: Ranks::by_hotness(&counts), trace: (share.ids > 0).then_some(share) })
    });
    ranked.collect()
}

/// The rows of a table that `file` has look-ups of, and how many, the hottest first and of equal ones the lowest; and how many of its
/// keys are in the table. Rows are numbers from 0 on, or positions of keys. `told` as of [`rank`].
pub fn hottest(
    file: &Hot,
    table: (&str, Rows<'_>),
    told: &mut dyn FnMut(u64, u64) -> Result<(), Failure>,
) -> Result<(Vec<(u64, u64)>, Share), Failure> {
    let mut hottest = Vec::new();
    let mut share = Share::default();
    for counting in counted(&[file], &[table], told)? {
        hottest.extend((0u64..).zip(counting.counts).filter(|(_, count)| *count > 0));
        share = counting.share;
    }
    hottest.sort_unstable_by_key(|&(row, count)| (std::cmp::Reverse(count), row));
    Ok((hottest, share))
}

#[cfg(test)]
mod tests {
    use npyz::WriterBuilder;
    use warprow_traces::TraceSpec;
    use warprow_workload::RecordedKeys;

    use super::*;
    use crate::hotness::{HotnessFile, read_numbers};

    fn hotness(path: &Path, trace: bool, rows: u64) -> Result<Hotness, Failure> {
        let counts = || Source::Counts(TraceFile { path: path.into(), column: None });
        let source = if trace { Source::Trace(TraceSpec::new(path)) } else { counts() };
        let hot = HotnessFile { table: None, source }.bind(&["t"])?;
        Ok(rank(&[&hot], &[("t", Rows::Ids(rows))], &mut |_, _| Ok(()))?.remove(0))
    }

    fn ranks(path: &Path, trace: bool, rows: u64) -> Result<Ranks, Failure> {
        hotness(path, trace, rows).map(|hotness| hotness.ranks)
    }

    #[test]
    fn counts_and_traces_rank_alike() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("counts.npy");
        macro_rules! save {
            ($values:expr) => {{
                let values = $values;
                let mut bytes = Vec::new();
                let options = npyz::WriteOptions::new().default_dtype().shape(&[values.len() as u64]);
                let mut writer = options.writer(&mut bytes).begin_nd().unwrap();
                writer.extend(values).unwrap();
                writer.finish().unwrap();
                std::fs::write(&path, bytes).unwrap();
            }};
        }
        let want = Ranks::by_hotness(&[2, 0, 9, 0]);
        save!([2i64, 0, 9, 0]);
        assert_eq!(ranks(&path, false, 4).unwrap(), want);
        save!([2e-3f32, -0.0, f32::INFINITY, 0.0]);
        assert_eq!(ranks(&path, false, 4).unwrap(), want);
        save!([2f64, 0.0, 9.5, 0.0]);
        assert_eq!(ranks(&path, false, 4).unwrap(), want);
        assert!(ranks(&path, false, 5).unwrap_err().message.contains("4 counts, the table 5 rows"));
        save!([2f64, f64::NAN]);
        assert!(ranks(&path, false, 2).unwrap_err().message.contains("row 1 is NaN"));
        save!([2i32, -7]);
        assert!(ranks(&path, false, 2).unwrap_err().message.contains("row 1 is -7"));

        let trace = dir.path().join("trace.csv");
        std::fs::write(&trace, "id\n2\n0\n2\n0\n2\n-1\n77\n").unwrap();
        assert_eq!(ranks(&trace, true, 4).unwrap(), want);
        assert_eq!(hotness(&trace, true, 4).unwrap().trace, Some(Share { missing: 2, ids: 7 }));
        assert!(ranks(&trace, true, 0).is_err());
        std::fs::write(&trace, "2\n0\n2\n").unwrap();
        assert!(ranks(&trace, true, 4).unwrap_err().message.contains("no header line"));
        let typed = |name: &str, column: &str| TraceFile { path: dir.path().join(name), column: Some(column.into()) };
        std::fs::write(dir.path().join("trace.i32"), 7i32.to_le_bytes()).unwrap();
        assert_eq!(read_numbers(&typed("trace.i32", "i32")).unwrap(), RecordedKeys::Signed(vec![7]));
        for (name, column) in [("trace.i32", "u64"), ("counts.npy", "3")] {
            assert_eq!(read_numbers(&typed(name, column)).unwrap_err().class, crate::failure::Class::Usage);
        }
        assert!(ranks(Path::new("/dev/zero"), true, 4).unwrap_err().message.contains("no regular file"));
        assert!(ranks(&dir.path().join("absent.csv"), true, 4).unwrap_err().message.contains("cannot be opened"));
    }
}
