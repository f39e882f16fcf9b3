//! How often each row of a table is looked up: what ranks are made of.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use warprow_formats::refuse_special;
use warprow_layout::Ranks;
use warprow_workload::{Keys, NpyHeader, TraceFile, TraceProblem, counts};

use crate::failure::Failure;
use crate::units;

/// A `--hotness` argument: `[TABLE=][trace:]FILE[:COLUMN]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HotnessFile {
    /// The table it is for; `None`: the only one.
    pub table: Option<String>,
    /// Whether it is a trace of ids, to be counted, rather than one count for each row.
    pub trace: bool,
    /// The file.
    pub file: TraceFile,
}

/// What a `--hotness` argument came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hotness {
    /// The hottest row first.
    pub ranks: Ranks,
    /// Of a trace: how much of it speaks of the table.
    pub trace: Option<Share>,
}

/// How many ids of a trace the table does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Those.
    pub missing: u64,
    /// All.
    pub ids: u64,
}

impl HotnessFile {
    /// Reads the argument; `tables` are the names that may stand before the equals sign.
    pub fn parse(argument: &str, tables: &[&str]) -> Self {
        // A table's name may itself contain an equals sign.
        let splits = argument.match_indices('=').filter_map(|(at, _)| argument.split_at_checked(at));
        let named = splits
            .map(|(name, rest)| (name, rest.strip_prefix('=').unwrap_or(rest)))
            .rfind(|(name, _)| tables.contains(name));
        let (table, rest) = match named {
            Some((name, rest)) => (Some(name.to_owned()), rest),
            None => (None, argument),
        };
        let (trace, file) = match rest.strip_prefix("trace:") {
            Some(file) => (true, file),
            None => (false, rest),
        };
        let Ok(file) = file.parse();
        Self { table, trace, file }
    }

    /// The table that the argument seems to name, although there is none of that name: what stands before an equals sign
    /// in a path that leads nowhere.
    pub fn stranger(&self) -> Option<&str> {
        let (name, _) = self.file.path.to_str()?.split_once('=')?;
        (self.table.is_none() && !self.file.path.exists()).then_some(name)
    }

    /// The ranks that put the hottest of `rows` rows first.
    pub fn ranks(&self, rows: u64) -> Result<Hotness, Failure> {
        let subject = self.file.path.display().to_string();
        let mut trace = None;
        let counts = if self.trace {
            let counted =
                usize::try_from(rows).map_err(|_| Failure::input(&subject, "the table is too large to be ranked"))?;
            let mapped = read_keys(&self.file)?.map(warprow_workload::Mapping::Strict, rows);
            let ids = mapped.ids;
            trace = Some(Share { missing: mapped.missing, ids: ids.len() as u64 });
            let counts = counts(&ids, counted);
            if counts.iter().all(|&count| count == 0) {
                return Err(Failure::input(&subject, "none of its ids is in the table")
                    .remedy("check the column, and the table"));
            }
            counts
        } else {
            let counts = read_counts(&self.file)?;
            if counts.len() as u64 != rows {
                return Err(Failure::input(
                    &subject,
                    format!(
                        "it has {}, the table {}",
                        units::plural(counts.len() as u64, "count"),
                        units::plural(rows, "row")
                    ),
                )
                .remedy("give one count for each row, in the order of the ids; a list of ids is given as trace:FILE"));
            }
            counts
        };
        Ok(Hotness { ranks: Ranks::by_hotness(&counts), trace })
    }
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
        let parse = |argument| HotnessFile::parse(argument, &["user", "a=b"]);
        let want = |table: Option<&str>, trace, path: &str, column: Option<&str>| HotnessFile {
            table: table.map(str::to_owned),
            trace,
            file: TraceFile { path: path.into(), column: column.map(str::to_owned) },
        };
        assert_eq!(parse("c.npy"), want(None, false, "c.npy", None));
        assert_eq!(parse("user=trace:t.csv:Id"), want(Some("user"), true, "t.csv", Some("Id")));
        assert_eq!(parse("other=c.npy"), want(None, false, "other=c.npy", None));
        assert_eq!(parse("a=b=c.npy"), want(Some("a=b"), false, "c.npy", None));
        assert_eq!(parse("trace:t.u64"), want(None, true, "t.u64", None));
    }

    fn hotness(path: &Path, trace: bool, rows: u64) -> Result<Hotness, Failure> {
        HotnessFile { table: None, trace, file: TraceFile { path: path.into(), column: None } }.ranks(rows)
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
        assert!(ranks(&dir.path().join("absent.csv"), true, 4).unwrap_err().message.contains("cannot be read"));
    }
}
