//! How often each row of a table is looked up: what ranks are made of.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use warprow_formats::refuse_special;
use warprow_keys::{KeyIndex, KeyKind, KeySource};
use warprow_layout::Ranks;
use warprow_traces::{Block, Scores, Trace, TraceSpec};
use warprow_workload::{Keys, NpyHeader, TraceFile, TraceProblem};

use crate::columns::Log;
use crate::failure::{Class, Failure};
use crate::keyed::of_keys;
use crate::{named, units};

/// A `--hotness` argument: `[TABLE=][KIND:]PATH[:SETTINGS]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HotnessFile {
    /// The table it is for, or a pattern of tables; `None`: the only one, or of a trace those that its columns are called like.
    pub table: Option<String>,
    /// What tells how hot rows are.
    pub source: Source,
}

/// What tells how hot rows are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// One count for each row.
    Counts(TraceFile),
    /// A trace of look-ups, to be counted.
    Trace(TraceSpec),
    /// A folder of keys and their scores.
    Scores(PathBuf),
}

/// The kinds that may stand before a path: traces, but for `trace`, which is told by its name.
const TRACES: [&str; 7] = ["ids:", "keyset:", "npy:", "csv:", "norm:", "raw:", "parquet:"];

/// Whether a path, with settings behind it or without, is that of a Parquet file, which has no counts of rows.
fn is_parquet(text: &str) -> bool {
    text.ends_with(".parquet") || text.contains(".parquet:")
}

/// What `--hotness` arguments came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hotness {
    /// The hottest row first.
    pub ranks: Ranks,
    /// Of traces and scores: how much of them speaks of the table.
    pub trace: Option<Share>,
}

/// How many keys of a trace the table does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Share {
    /// Those.
    pub missing: u64,
    /// All.
    pub ids: u64,
}

/// Which row is whose.
#[derive(Clone, Copy)]
pub enum Rows<'a> {
    /// So many, by ids from 0 on.
    Ids(u64),
    /// By keys: their index, and the keys in the order of the rows.
    Keys(&'a KeyIndex, &'a dyn KeySource),
}

impl Rows<'_> {
    fn len(&self) -> u64 {
        match self {
            Self::Ids(rows) => *rows,
            Self::Keys(index, _) => index.len(),
        }
    }

    /// Replaces keys by where they are counted; `u64::MAX` for those that the table does not have.
    fn place(&self, keys: &[u64], signed: bool, places: &mut Vec<u64>) {
        places.clear();
        match self {
            Self::Ids(rows) => {
                let below = |key: u64| if key < *rows && !(signed && key > i64::MAX as u64) { key } else { u64::MAX };
                places.extend(keys.iter().map(|&key| below(key)));
            }
            Self::Keys(index, _) => {
                places.resize(keys.len(), u64::MAX);
                index.slots(keys, places);
                // The same bits are another number where only one side has a sign.
                if signed != (index.kind() == KeyKind::I64) {
                    for (place, _) in places.iter_mut().zip(keys).filter(|(_, key)| **key > i64::MAX as u64) {
                        *place = u64::MAX;
                    }
                }
            }
        }
    }

    /// The rows of `keys`, without those that the table does not have.
    pub fn rows_of(&self, table: &str, keys: &[u64]) -> Result<Vec<u64>, Failure> {
        let Self::Keys(index, all) = self else { return Ok(keys.to_vec()) };
        let slots: Vec<u64> = index.place(*all, 0).map_err(|error| of_keys(table, &error))?;
        let mut rows = vec![u64::MAX; slots.len()];
        for (row, slot) in (0..).zip(slots) {
            if let Some(place) = usize::try_from(slot).ok().and_then(|slot| rows.get_mut(slot)) {
                *place = row;
            }
        }
        let mut found = vec![u64::MAX; keys.len()];
        index.slots(keys, &mut found);
        // A key that is none of the table's may have the slot of one that is: whoever comes first.
        let mut taken = vec![false; rows.len()];
        found.retain(|&slot| {
            let place = usize::try_from(slot).ok().and_then(|slot| taken.get_mut(slot));
            place.is_some_and(|taken| !std::mem::replace(taken, true))
        });
        Ok(found.into_iter().filter_map(|slot| rows.get(slot as usize).copied()).collect())
    }

    /// Counts by row, of those where [`place`](Self::place) counts.
    fn by_row(&self, table: &str, counts: Vec<u64>) -> Result<Vec<u64>, Failure> {
        let Self::Keys(index, keys) = self else { return Ok(counts) };
        let slots: Vec<u64> = index.place(*keys, 0).map_err(|error| of_keys(table, &error))?;
        Ok(slots.into_iter().map(|slot| counts.get(slot as usize).copied().unwrap_or(0)).collect())
    }
}

impl HotnessFile {
    /// Reads the argument; `tables` are the names that may stand before the equals sign.
    pub fn parse(argument: &str, tables: &[&str]) -> Result<Self, Failure> {
        let (table, rest) = named::split(argument, tables);
        let table = table.map(str::to_owned);
        let trace = |text: &str| {
            let spec = text.parse::<TraceSpec>().map(Source::Trace);
            spec.map_err(|error| Failure::usage(argument, error.to_string()).remedy("see `warprow load --help`"))
        };
        let source = match rest.split_once(':') {
            _ if Path::new(rest).exists() && !is_parquet(rest) => None,
            Some(("trace", rest)) => Some(trace(rest)?),
            Some(("scores", folder)) => Some(Source::Scores(folder.into())),
            _ if is_parquet(rest) => Some(trace(rest)?),
            _ if TRACES.iter().any(|kind| rest.starts_with(kind)) => Some(trace(rest)?),
            _ => None,
        };
        let source = source.unwrap_or_else(|| {
            let Ok(file) = rest.parse();
            Source::Counts(file)
        });
        Ok(Self { table, source })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        match &self.source {
            Source::Counts(file) => &file.path,
            Source::Trace(spec) => &spec.path,
            Source::Scores(folder) => folder,
        }
    }

    /// The table that the argument seems to name, although there is none of that name: what stands before an equals sign
    /// in a path that leads nowhere.
    pub fn stranger(&self) -> Option<&str> {
        let (name, _) = self.path().to_str()?.split_once('=')?;
        (self.table.is_none() && !self.path().exists()).then_some(name)
    }

    /// With the tables that it speaks of, among `tables`, which are loaded.
    pub fn bind(self, tables: &[&str]) -> Result<Hot, Failure> {
        let subject = || self.path().display().to_string();
        let meant = self.table.as_deref().map_or_else(|| tables.to_vec(), |name| named::matching(name, tables));
        if let Source::Trace(spec) = &self.source {
            let log = Log::of(spec, &meant, "--hotness")?;
            let mut tables: Vec<String> = log.columns.iter().map(|column| column.table.clone()).collect();
            tables.dedup();
            return Ok(Hot { file: self, tables, log: Some(log) });
        }
        if meant.len() > 1 {
            let what = format!("{} tables are loaded: which is the hotness of?", meant.len());
            let remedy = format!("name it: --hotness {}=...", meant.first().unwrap_or(&"TABLE"));
            return Err(Failure::usage(subject(), what).remedy(remedy));
        }
        let tables = meant.iter().map(|&table| table.to_owned()).collect();
        Ok(Hot { file: self, tables, log: None })
    }
}

/// What tells how hot rows are, with the tables that it speaks of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hot {
    /// The argument.
    pub file: HotnessFile,
    /// Those tables, each once.
    pub tables: Vec<String>,
    /// Of a trace: which column is of which.
    pub log: Option<Log>,
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
    /// Whether it speaks of that table.
    pub fn is_of(&self, table: &str) -> bool {
        self.tables.iter().any(|it| it == table)
    }

    /// Adds what it says of each row, or of each slot, of those of `tables` that it speaks of.
    fn count(
        &self,
        tables: &mut [Counting<'_>],
        told: &mut dyn FnMut(u64, u64) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        match &self.file.source {
            Source::Counts(file) => tables.iter_mut().filter(|it| self.is_of(it.name)).try_for_each(|it| it.take(file)),
            Source::Scores(folder) => {
                let Some(table) = tables.iter_mut().find(|it| self.is_of(it.name)) else { return Ok(()) };
                table.add_scores(folder, told)
            }
            Source::Trace(_) => self.log.as_ref().map_or(Ok(()), |log| count_trace(log, tables, told)),
        }
    }
}

/// Counts the look-ups of a trace in `tables`, in one go.
fn count_trace(
    log: &Log,
    tables: &mut [Counting<'_>],
    told: &mut dyn FnMut(u64, u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut trace = Trace::open(&log.spec)?;
    let (mut block, mut keys, mut places, mut all) = (Block::default(), Vec::new(), Vec::new(), 0u64);
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
        let is_blank = std::fs::metadata(&file.path).is_ok_and(|it| it.is_file() && it.len() == 0);
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
        let mut scores = Scores::open(folder)?;
        let (total, mut read, mut places) = (scores.rows(), 0, Vec::new());
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

/// The ranks that put the hottest rows of each of `tables` first, by what `files` say, counts of traces added up; each file is read
/// once. `told` hears how far each is, of how much, and may end it.
pub fn rank(
    files: &[&Hot],
    tables: &[(&str, Rows<'_>)],
    told: &mut dyn FnMut(u64, u64) -> Result<(), Failure>,
) -> Result<Vec<Hotness>, Failure> {
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
    let ranked = all.into_iter().map(|Counting { name, rows, counts, share, by_row }| {
        if share.ids > 0 && share.ids == share.missing {
            let file = files.iter().find(|file| file.is_of(name));
            let path = file.map(|file| file.file.path().display().to_string()).unwrap_or_default();
            let what = match file.and_then(|file| file.log.as_ref()?.column_of(name)) {
                Some(column) => format!("none of the ids of {:?} is in table {name:?}", column.name),
                None => "none of its ids is in the table".to_owned(),
            };
            return Err(Failure::input(path, what).remedy("check the column or slot, and the table"));
        }
        let counts = if by_row { counts } else { rows.by_row(name, counts)? };
        Ok(Hotness { ranks: Ranks::by_hotness(&counts), trace: (share.ids > 0).then_some(share) })
    });
    ranked.collect()
}

/// The ids in a file, at least one.
pub fn read_keys(file: &TraceFile) -> Result<Keys, Failure> {
    let keys = read_numbers(file)?;
    match keys.is_empty() {
        false => Ok(keys),
        true => Err(Failure::input(file.path.display().to_string(), "it holds no ids").remedy("look at the file")),
    }
}

/// The whole numbers in a file, if any.
pub fn read_numbers(file: &TraceFile) -> Result<Keys, Failure> {
    refuse_special(&file.path)?;
    refuse_column(file)?;
    if let Some(number) = headless(file) {
        let what = format!("it has no header line: its first line is the number {number}");
        return Err(Failure::input(file.path.display().to_string(), what)
            .remedy("put the column's name in front, as a line of its own"));
    }
    file.read().or_else(|error| {
        let subject = file.path.display().to_string();
        match &error.problem {
            TraceProblem::Empty => Ok(Keys::Signed(Vec::new())),
            TraceProblem::Io(io) => Err(Failure::io(subject, "cannot be read", io)),
            problem => Err(Failure::input(subject, problem.to_string())
                .remedy("mend the file; a .csv has a header line, and its column is named as FILE:COLUMN")),
        }
    })
}

/// A column or a type where the file's name says that there is none, or another.
fn refuse_column(file: &TraceFile) -> Result<(), Failure> {
    let Some(column) = &file.column else { return Ok(()) };
    let ending = file.path.extension().and_then(|it| it.to_str()).unwrap_or_default().to_ascii_lowercase();
    let what = match &*ending {
        "npy" => "a .npy file has no columns".to_owned(),
        "i32" | "i64" | "u32" | "u64" if ending != *column => format!("its name says that it holds {ending}"),
        _ => return Ok(()),
    };
    let subject = format!("{}:{column}", file.path.display());
    Err(Failure::usage(subject, what).remedy(format!("leave :{column} out")))
}

/// The number in the first line of a `.csv` file of which no column was named: taken for a name, it would get lost.
fn headless(file: &TraceFile) -> Option<i128> {
    let is_csv = file.path.extension().is_some_and(|it| it.eq_ignore_ascii_case("csv"));
    if !is_csv || file.column.is_some() {
        return None;
    }
    let mut line = String::new();
    BufReader::new(File::open(&file.path).ok()?.take(1 << 10)).read_line(&mut line).ok()?;
    line.trim().trim_matches('"').parse().ok()
}

/// One count a row: whole numbers, or floating-point ones, of which only the order counts.
fn read_counts(file: &TraceFile) -> Result<Vec<u64>, Failure> {
    refuse_special(&file.path)?;
    let subject = file.path.display().to_string();
    let negative = |row: usize, value: &str| {
        Failure::input(&subject, format!("the count of row {row} is {value}")).remedy("give counts of 0 and more")
    };
    if let Some(floats) = read_floats(&file.path) {
        let floats = floats.map_err(|error| Failure::io(&subject, "cannot be read", &error))?;
        let order = |(row, value): (usize, f64)| match value >= 0.0 {
            // The bits of non-negative floats are in their order.
            true => Ok((value + 0.0).to_bits()),
            false => Err(negative(row, &value.to_string())),
        };
        return floats.into_iter().enumerate().map(order).collect();
    }
    match read_numbers(file)? {
        Keys::Unsigned(counts) => Ok(counts),
        Keys::Signed(counts) => {
            let count =
                |(row, value): (usize, i64)| u64::try_from(value).map_err(|_| negative(row, &value.to_string()));
            counts.into_iter().enumerate().map(count).collect()
        }
    }
}

/// The numbers of a `.npy` file of `<f4` or `<f8` whose size is as its header says; `None` for anything else.
fn read_floats(path: &Path) -> Option<std::io::Result<Vec<f64>>> {
    let mut reader = BufReader::new(File::open(path).ok()?);
    let len = reader.get_ref().metadata().ok()?.len();
    let header = NpyHeader::read(&mut reader).ok()?;
    let width = match &*header.descr {
        "<f4" => 4,
        "<f8" => 8,
        _ => return None,
    };
    let whole = header.elements().checked_mul(width) == len.checked_sub(header.data_at).map(u128::from);
    if !whole || !header.is_c_order() {
        return None;
    }
    let mut bytes = Vec::new();
    Some(reader.read_to_end(&mut bytes).map(|_| match width {
        4 => bytes.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word).into()).collect(),
        _ => bytes.as_chunks().0.iter().map(|&word| f64::from_le_bytes(word)).collect(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use npyz::WriterBuilder;

    #[test]
    fn arguments_name_table_kind_file_and_column() {
        let parse = |argument| HotnessFile::parse(argument, &["user", "a=b"]).unwrap();
        let want = |table: Option<&str>, trace, path: &str, column: Option<&str>| HotnessFile {
            table: table.map(str::to_owned),
            source: match trace {
                true => {
                    let columns = column.into_iter().map(str::to_owned).collect();
                    Source::Trace(TraceSpec { columns, ..TraceSpec::new(path) })
                }
                false => Source::Counts(TraceFile { path: path.into(), column: column.map(str::to_owned) }),
            },
        };
        assert_eq!(parse("c.npy"), want(None, false, "c.npy", None));
        assert_eq!(parse("user=trace:t.csv:Id"), want(Some("user"), true, "t.csv", Some("Id")));
        assert_eq!(parse("other=c.npy"), want(None, false, "other=c.npy", None));
        assert_eq!(parse("a=b=c.npy"), want(Some("a=b"), false, "c.npy", None));
        assert_eq!(parse("trace:t.u64"), want(None, true, "t.u64", None));
        assert!(
            matches!(parse("clicks.parquet").source, Source::Trace(spec) if spec == TraceSpec::new("clicks.parquet"))
        );
        assert!(matches!(parse("user=a.parquet:id").source, Source::Trace(spec) if spec.columns == ["id"]));
        assert_eq!(parse("user=scores:dump").source, Source::Scores("dump".into()));
        let Source::Trace(norm) = parse("norm:list.txt:i64,slot=3").source else { panic!() };
        assert_eq!((norm.path, norm.slot), ("list.txt".into(), Some("3".into())));
        assert!(HotnessFile::parse("trace:t.csv:ids=0", &[]).unwrap_err().message.contains("at least one"));
    }

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
        assert_eq!(read_numbers(&typed("trace.i32", "i32")).unwrap(), Keys::Signed(vec![7]));
        for (name, column) in [("trace.i32", "u64"), ("counts.npy", "3")] {
            assert_eq!(read_numbers(&typed(name, column)).unwrap_err().class, crate::failure::Class::Usage);
        }
        assert!(ranks(Path::new("/dev/zero"), true, 4).unwrap_err().message.contains("no regular file"));
        assert!(ranks(&dir.path().join("absent.csv"), true, 4).unwrap_err().message.contains("cannot be opened"));
    }
}
