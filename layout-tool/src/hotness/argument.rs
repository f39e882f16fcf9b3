//! A `--hotness` argument, and the tables that it speaks of.

use std::path::{Path, PathBuf};

use warprow_traces::TraceSpec;
use warprow_workload::TraceFile;

use crate::columns::LookupTrace;
use crate::failure::Failure;
use crate::named;

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
const TRACES: [&str; 8] = ["ids:", "keyset:", "npy:", "csv:", "norm:", "raw:", "parquet:", "tokens:"];

/// Whether a path, with settings behind it or without, is that of a Parquet file, which has no counts of rows.
fn is_parquet(text: &str) -> bool {
    text.ends_with(".parquet") || text.contains(".parquet:")
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

    /// The path of the file.
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
            let log = LookupTrace::of(spec, &meant, "--hotness")?;
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
    /// The tables that the argument names, each once.
    pub tables: Vec<String>,
    /// For a trace: which of its columns belongs to which table.
    pub log: Option<LookupTrace>,
}

impl Hot {
    /// Whether it speaks of that table.
    pub fn is_of(&self, table: &str) -> bool {
        self.tables.iter().any(|text| text == table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
