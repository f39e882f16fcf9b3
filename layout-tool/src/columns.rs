//! Which columns of a click log look up which tables, by what both are called.
//!
//! `docs/traces.md` states the rule; `load --hotness`, `plan --trace` and `lookup --trace` all go by it.

use serde_json::{Value, json};
use warprow_traces::{Trace, TraceFormat, TraceSpec};
use warprow_workload::units;

use crate::failure::Failure;
use crate::report::{printable, table};

/// A column, or slot, of a trace, and the table that it looks up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// The column's name.
    pub name: String,
    /// The number of the column among the slots of the trace, as [`LookupTrace::spec`] opens it.
    pub slot: usize,
    /// The table.
    pub table: String,
    /// How that is known.
    pub by: MatchedBy,
}

/// How it is known which table a column looks up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatchedBy {
    /// The user named the tables in the order of the columns, or sizes of all slots say that they look up one table.
    Said,
    /// There is one column, and one table.
    Only,
    /// Both have the same name.
    Name,
    /// The table's name is the column's, but for what names of tensors have before and behind.
    Stripped,
}

impl MatchedBy {
    /// The name in `--json`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Said => "said",
            Self::Only => "only",
            Self::Name => "name",
            Self::Stripped => "stripped",
        }
    }
}

/// A trace of look-ups, with those of its columns that look up tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookupTrace {
    /// What it is, with these columns chosen where some can be.
    pub spec: TraceSpec,
    /// The columns of the trace that look up a table: one at least.
    pub columns: Vec<Column>,
    /// Columns that look up none.
    pub unused: Vec<String>,
}

/// A column that could be of several tables, or a table that could have several columns.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Ambiguous {
    Column(String, Vec<String>),
    Table(String, Vec<String>),
}

impl LookupTrace {
    /// The trace `spec`, for `tables`: each column is of the table that it is called like. `option` is what the user gave it
    /// with.
    pub fn of(spec: &TraceSpec, tables: &[&str], option: &str) -> Result<Self, Failure> {
        let path = || spec.path.display().to_string();
        let names = Trace::columns(spec)?;
        let (what, setting) = match TraceFormat::of(spec)?.has_columns() {
            true => ("column", "COLUMN"),
            false => ("slot", "slot=NAME"),
        };
        let found = match (&names[..], tables) {
            (names, [_]) if !spec.sizes.is_empty() => {
                (0..names.len()).map(|column| (column, 0, MatchedBy::Said)).collect()
            }
            _ if !spec.sizes.is_empty() => {
                let what = "sizes= says that all slots look up one table, and several could be meant";
                return Err(Failure::usage(path(), what).remedy(format!("name it: {option} TABLE=...")));
            }
            ([_], [_]) => vec![(0, 0, MatchedBy::Only)],
            _ => matched(&names, tables).map_err(|ambiguous| ambiguous.failure(path(), what, setting, option))?,
        };
        if found.is_empty() {
            return Err(none(path(), &names, tables, (what, setting), option));
        }
        let mut spec = spec.clone();
        let choose = TraceFormat::of(&spec)?.has_columns() && names.len() > 1 && spec.slot.is_none();
        if choose {
            spec.columns = found.iter().filter_map(|&(column, ..)| names.get(column).cloned()).collect();
        }
        let columns = found.iter().enumerate().map(|(at, &(column, table, by))| Column {
            name: names.get(column).cloned().unwrap_or_default(),
            slot: if choose { at } else { column },
            table: tables.get(table).map_or_else(String::new, |&table| table.to_owned()),
            by,
        });
        let columns = columns.collect();
        let is_unused = |&(at, _): &(usize, &String)| !found.iter().any(|&(column, ..)| column == at);
        let unused = names.iter().enumerate().filter(is_unused).map(|(_, name)| name.clone()).collect();
        Ok(Self { spec, columns, unused })
    }

    /// The trace `spec`, whose columns look up `tables` in this order, as many as there are columns.
    pub fn in_order(spec: &TraceSpec, names: &[String], tables: &[&str]) -> Self {
        let columns = names.iter().zip(tables).enumerate().map(|(slot, (name, &table))| Column {
            name: name.clone(),
            slot,
            table: table.to_owned(),
            by: MatchedBy::Said,
        });
        Self { spec: spec.clone(), columns: columns.collect(), unused: Vec::new() }
    }

    /// The slots that look up `table`, by their numbers.
    pub fn slots_of<'a>(&'a self, table: &'a str) -> impl Iterator<Item = usize> + 'a {
        self.columns.iter().filter(move |column| column.table == table).map(|column| column.slot)
    }

    /// The column of `table`, where it was found by its name.
    pub fn column_of(&self, table: &str) -> Option<&Column> {
        self.columns
            .iter()
            .find(|column| column.table == table && matches!(column.by, MatchedBy::Name | MatchedBy::Stripped))
    }

    /// What was matched with what, for programs.
    pub fn json(&self) -> Value {
        let column =
            |matched: &Column| json!({ "column": matched.name, "table": matched.table, "by": matched.by.name() });
        json!({
            "trace": self.spec.path.display().to_string(),
            "columns": self.columns.iter().map(column).collect::<Vec<_>>(),
            "unused": self.unused,
        })
    }

    /// Which column looks up which table, for people, a line for each; empty where that goes without saying.
    pub fn text(&self) -> String {
        match self.columns.iter().all(|column| column.name == column.table || column.by == MatchedBy::Only) {
            true => String::new(),
            false => table(
                ["column", "looks up table"],
                self.columns.iter().map(|column| [column.name.clone(), column.table.clone()]),
            ),
        }
    }

    /// Which columns look up no table, for people; `None` if all do.
    pub fn unused_text(&self) -> Option<String> {
        let path = printable(&self.spec.path.display().to_string());
        (!self.unused.is_empty()).then(|| format!("{path}: not used: {}", printable(&shown(&self.unused))))
    }
}

impl Ambiguous {
    fn failure(self, path: String, what: &str, setting: &str, option: &str) -> Failure {
        let (said, candidates) = match self {
            Self::Column(column, tables) => {
                (format!("{what} {column:?} is called like several tables: {}", tables.join(", ")), tables)
            }
            Self::Table(table, columns) => {
                (format!("several {what}s are called like table {table:?}: {}", columns.join(", ")), columns)
            }
        };
        let remedy = format!("name the table, or a pattern of tables, and the {what}: {option} TABLE=...:{setting}");
        Failure::usage(path, said).remedy(remedy).detail("candidates", candidates)
    }
}

/// No column is called like a table.
fn none(path: String, names: &[String], tables: &[&str], (what, setting): (&str, &str), option: &str) -> Failure {
    let all = units::plural(names.len() as u64, what);
    let said = match tables {
        [table] => format!("it has {all}, and none is called {table:?}: {}", shown(names)),
        _ => {
            let tables = tables.iter().map(|&table| table.to_owned()).collect::<Vec<_>>();
            format!(
                "it has {all}, and none is called like a table: {}; there are the tables {}",
                shown(names),
                shown(&tables)
            )
        }
    };
    let remedy = match tables {
        [_] => format!("say which looks it up: add :{setting}; or the sizes of all, if all do: :sizes=A/B/.."),
        _ => format!("say which looks up which: {option} TABLE=...:{setting}"),
    };
    Failure::usage(path, said).remedy(remedy)
}

/// The first names.
fn shown(names: &[String]) -> String {
    let more = if names.len() > 40 { ", .." } else { "" };
    let short = |name: &String| name.chars().take(80).collect::<String>();
    format!("{}{more}", names.iter().take(40).map(short).collect::<Vec<_>>().join(", "))
}

/// Which column is of which table, by their numbers, in the order of the columns. Equal names come first; of what is left, tables
/// whose names [are the column's](is_called) but for what names of tensors have around them.
fn matched(columns: &[String], tables: &[&str]) -> Result<Vec<(usize, usize, MatchedBy)>, Ambiguous> {
    let mut found: Vec<(usize, usize, MatchedBy)> = Vec::new();
    for by in [MatchedBy::Name, MatchedBy::Stripped] {
        let free_columns: Vec<usize> =
            (0..columns.len()).filter(|&column| !found.iter().any(|pair| pair.0 == column)).collect();
        let free_tables: Vec<usize> =
            (0..tables.len()).filter(|&table| !found.iter().any(|pair| pair.1 == table)).collect();
        let alike = |column: usize, table: usize| match (columns.get(column), tables.get(table)) {
            (Some(column), Some(table)) if by == MatchedBy::Name => column == table,
            (Some(column), Some(table)) => is_called(table, column),
            _ => false,
        };
        let pairs: Vec<(usize, usize)> = free_columns
            .iter()
            .flat_map(|&column| free_tables.iter().map(move |&table| (column, table)))
            .filter(|&(column, table)| alike(column, table))
            .collect();
        for &(column, table) in &pairs {
            let of_column: Vec<usize> = pairs.iter().filter(|pair| pair.0 == column).map(|pair| pair.1).collect();
            let of_table: Vec<usize> = pairs.iter().filter(|pair| pair.1 == table).map(|pair| pair.0).collect();
            let column_name = |&column: &usize| columns.get(column).cloned().unwrap_or_default();
            let table_name = |&table: &usize| tables.get(table).map_or_else(String::new, |&table| table.to_owned());
            if of_column.len() > 1 {
                return Err(Ambiguous::Column(column_name(&column), of_column.iter().map(table_name).collect()));
            }
            if of_table.len() > 1 {
                return Err(Ambiguous::Table(table_name(&table), of_table.iter().map(column_name).collect()));
            }
            found.push((column, table, by));
        }
    }
    found.sort_unstable_by_key(|&(column, ..)| column);
    Ok(found)
}

/// Parts that names of tensors end in: they say that it is a table, not which.
const PARTS: [&str; 9] =
    ["weight", "weights", "embedding", "embeddings", "embedding_table", "emb", "table", "values", "kernel"];
/// Words that the part that says which begins with.
const BEFORE: [&str; 5] = ["t_", "emb_", "embedding_", "embeddings_", "table_"];
/// Words that the part that says which ends in.
const BEHIND: [&str; 6] = ["_emb", "_embedding", "_embeddings", "_table", "_weight", "_weights"];

/// Whether a table's name is `column` but for what names of tensors have around that: parts before it, up to a dot or slash; parts
/// behind it such as `weight`; words in its last part such as `_embedding`.
pub fn is_called(table: &str, column: &str) -> bool {
    if column.is_empty() || !table.contains(column) {
        return false;
    }
    let mut core = table.strip_suffix(":0").unwrap_or(table);
    while let Some((rest, last)) = core.rsplit_once(['.', '/'])
        && !rest.is_empty()
        && PARTS.contains(&last)
    {
        core = rest;
    }
    if core.strip_suffix(column).is_some_and(|before| before.is_empty() || before.ends_with(['.', '/'])) {
        return true;
    }
    let last = core.rsplit(['.', '/']).next().unwrap_or(core);
    let without = |before: &str, behind: &str| last.strip_prefix(before)?.strip_suffix(behind);
    let befores = || BEFORE.into_iter().chain([""]);
    befores().any(|before| BEHIND.into_iter().chain([""]).any(|behind| without(before, behind) == Some(column)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn what_names_of_tensors_have_around_them_is_left_out() {
        for table in [
            "user_id",
            "embeddings.user_id.weight",
            "a.b.user_id",
            "user_id.weight",
            "model/user_id/embeddings:0",
            "sparse.embedding_bags.t_user_id.weight",
            "user_id_embedding.weight",
            "net.emb_user_id",
            "embedding_user_id_table.weights",
            "user_id.embedding.weight",
        ] {
            assert!(is_called(table, "user_id"), "{table}");
        }
        for table in ["user", "users", "my_user_id", "user_id_2", "user_id.bias", "id", "weight", ""] {
            assert!(!is_called(table, "user_id"), "{table}");
        }
        assert!(
            is_called("e.a.id.weight", "a.id") && is_called("emb_l.0.weight", "0") && is_called("weight", "weight")
        );
        assert!(!is_called("a.weight", "weight") && !is_called("a.", "") && !is_called("", ""));
    }

    #[test]
    fn equal_names_come_first() {
        let by = |columns: &[&str], tables: &[&str]| matched(&names(columns), tables);
        assert_eq!(
            by(&["ts", "item", "user"], &["e.user.weight", "item", "other"]),
            Ok(vec![(1, 1, MatchedBy::Name), (2, 0, MatchedBy::Stripped)])
        );
        // The column is the other table's.
        assert_eq!(by(&["id"], &["id", "user.id.weight"]), Ok(vec![(0, 0, MatchedBy::Name)]));
        assert_eq!(by(&["id", "t_id"], &["t_id"]), Ok(vec![(1, 0, MatchedBy::Name)]));
        assert_eq!(by(&["x"], &["y"]), Ok(vec![]));
    }

    #[test]
    fn what_could_be_either_is_said() {
        let by = |columns: &[&str], tables: &[&str]| matched(&names(columns), tables).unwrap_err();
        assert_eq!(
            by(&["id"], &["user.id.weight", "b", "item.id.weight"]),
            Ambiguous::Column("id".into(), names(&["user.id.weight", "item.id.weight"]))
        );
        assert_eq!(
            by(&["id", "a.id"], &["a.id.weight"]),
            Ambiguous::Table("a.id.weight".into(), names(&["id", "a.id"]))
        );
        assert_eq!(by(&["t", "t"], &["t"]), Ambiguous::Table("t".into(), names(&["t", "t"])));
    }
}
