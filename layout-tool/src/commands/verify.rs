//! `warprow verify`.

use std::ops::ControlFlow;

use clap::Args;
use serde_json::{Value, json};
use warprow_formats::{FileTable, TableFile};
use warprow_layout::{Ranks, RowSource};
use warprow_store::{BadUnit, KeyKind, OpenOptions, Store, StoreError, TableInfo, VerifiedMetadata, Verifier};

use super::{Context, Done};
use crate::counterpart::Given;
use crate::damage;
use crate::drives::{self, DriveArgs};
use crate::failure::{Class, Failure};
use crate::file::ById;
use crate::reading::ReadingArgs;
use crate::report::{printable, table};
use crate::screen::Unit;
use crate::units;

/// Differences that are listed, at most.
const LISTED: usize = 10;

/// Read tables back and compare them with their checksums, or with the file they came from
///
/// Metadata, in all its copies, logs, permutations and keys always have checksums; of keys that are stored, each must lead to its
/// row. Rows have them if they were loaded with --row-crc; if not, reading them back shows only that the drives can read them, and
/// the result says so. Without --table, tables of generations that stand by are read too. With --against, every row is compared
/// bit for bit: of each table with the tensor that is called like it, in the file that was given for it, or else in one of the others.
///
/// It reads as fast as the drives do; `scrub` does the same slowly, and goes on where it was stopped.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow verify -d emulated:a.drive
  warprow verify -d emulated:a.drive --table items --against items.npy
  warprow verify -d emulated:a.drive --table users --against users.npy --keys keys.npy
  warprow verify -d emulated:a.drive --table items --against items.bin --shape 64:f32
  warprow verify -d emulated:a.drive --against users=u.npy --against items=model.safetensors --tensor items=emb.item.weight

Exit codes: 0 everything that could be checked is sound; 3 a file is wrong; 5 rows differ; 6 permutations, keys, logs or metadata
are damaged; 7 a drive cannot read some of it. All are in `warprow --help`.")]
pub struct VerifyArgs {
    #[command(flatten)]
    drives: DriveArgs,
    /// Only this table; may be repeated
    #[arg(long, value_name = "TABLE")]
    table: Vec<String>,
    /// Compare with the tables in this file, bit for bit; with NAME, a table or a pattern of tables, these alone. May be repeated
    #[arg(long, value_name = "[NAME=]FILE")]
    against: Vec<String>,
    /// The keys of the rows in that file, if they are a list beside them, or a .npy file. TENSOR, where it has several, is what the
    /// file calls the rows
    #[arg(long, value_name = "[TENSOR=]NAME", requires = "against")]
    keys: Vec<String>,
    /// The tensor in the file, where its name is not the table's nor like it; NAME is the table, where several are compared. May be
    /// repeated
    #[arg(long, value_name = "[NAME=]GLOB", requires = "against")]
    tensor: Vec<String>,
    #[command(flatten)]
    reading: ReadingArgs,
}

/// What was found out about a table.
struct Finding {
    table: TableInfo,
    /// Against what the rows were compared; `None`: nothing.
    against: Option<String>,
    against_file: bool,
    /// Stored keys that lead to their rows.
    keys: u64,
    rows: u64,
    bytes: u64,
    differing: u64,
    /// The first ranks, or ids, that differ.
    first: Vec<u64>,
    /// What is wrong with the table, other than rows that differ.
    damage: Option<Failure>,
    /// Where it is damaged.
    bad: Vec<BadUnit>,
    /// Whether it stands by.
    standby: bool,
}

impl Finding {
    /// Of a table that could not be looked at to the end.
    fn failed(table: TableInfo, failure: Failure) -> Self {
        let (keys, rows, bytes, differing) = (0, 0, 0, 0);
        let (against, against_file, first, damage) = (None, false, Vec::new(), Some(failure));
        let (bad, standby) = (Vec::new(), false);
        Self { table, against, against_file, keys, rows, bytes, differing, first, damage, bad, standby }
    }

    /// What `first` are.
    fn kind(&self) -> &'static str {
        if self.against_file && self.table.keys.is_none() { "ids" } else { "ranks" }
    }
}

pub(crate) fn run(args: &VerifyArgs, context: &Context) -> Result<Done, Failure> {
    if args.against.is_empty() && !args.reading.is_empty() {
        let what = "there is no file that is so";
        return Err(Failure::usage("--format, --shape, --dim, --key-column", what).remedy("name it: --against FILE"));
    }
    let store = drives::open(&args.drives, &OpenOptions::default().with_read_only())?;
    let known = store.tables();
    let names: Vec<&str> = known.iter().map(|it| &*it.name).collect();
    let given = Given::open(&args.against, &args.tensor, &args.keys, &args.reading, &names)?;
    let tables = chosen(&store, &args.table, &given)?;
    let several = tables.len() > 1;
    let metadata = store.verify_metadata()?;
    let (mut findings, mut verifier) = (Vec::with_capacity(tables.len()), store.verifier());
    for (info, standby) in tables {
        let found = match given.is_empty() {
            true => check(&mut verifier, info.clone(), standby, context),
            false => {
                let (file, theirs) = given.counterpart(&info, several)?;
                compare(&store, info.clone(), file, theirs, context)
            }
        };
        findings.push(match found {
            // The other tables are looked at all the same.
            Err(failure) if matches!(failure.class, Class::Store | Class::Drive | Class::Mismatch) => {
                Finding::failed(info, failure)
            }
            found => found?,
        });
    }
    report(findings, metadata)
}

/// The tables that are meant, and whether each stands by. Of those that do, none is compared with a file.
fn chosen(store: &Store, names: &[String], given: &Given) -> Result<Vec<(TableInfo, bool)>, Failure> {
    if names.is_empty() {
        let hidden = if given.is_empty() { store.hidden_tables() } else { Vec::new() };
        let found = store.tables().into_iter().filter(|table| given.is_for(&table.name)).map(|table| (table, false));
        return Ok(found.chain(hidden.into_iter().map(|table| (table, true))).collect());
    }
    let find =
        |name: &String| store.table(name).map(|table| (table, false)).ok_or_else(|| drives::no_such_table(store, name));
    let once = names.iter().enumerate().filter(|(index, name)| !names.iter().take(*index).any(|it| it == *name));
    once.map(|(_, name)| find(name)).collect()
}

fn interrupted(error: StoreError, context: &Context) -> Failure {
    match error {
        StoreError::Interrupted => context.interrupt.failure(),
        error => error.into(),
    }
}

/// Against the checksums that were stored.
fn check(verifier: &mut Verifier<'_>, table: TableInfo, standby: bool, context: &Context) -> Result<Finding, Failure> {
    let bar = context.screen.bar(format!("reading {}", table.name), table.rows, Unit::Things);
    let verified = verifier.verify_in(table.generation, &table.name, &mut |rows| {
        bar.set_position(rows);
        context.interrupt.flow()
    });
    bar.finish_and_clear();
    let verified = verified.map_err(|error| interrupted(error, context))?;
    Ok(Finding {
        against: verified.checked.then(|| "checksums".to_owned()),
        against_file: false,
        keys: verified.checked_keys,
        rows: verified.rows,
        bytes: verified.bytes,
        differing: verified.damaged,
        first: verified.first_damaged,
        damage: verified.damaged_ranks.or(verified.damaged_keys).map(|damage| {
            Failure::new(Class::Store, &table.name, damage).remedy("load the table again, with --replace")
        }),
        bad: verified.bad,
        standby,
        table,
    })
}

/// Against a file.
fn compare(
    store: &Store,
    table: TableInfo,
    file: &TableFile,
    theirs: &FileTable,
    context: &Context,
) -> Result<Finding, Failure> {
    let failed = |error| Failure::from(error);
    let ids = match table.keys {
        None => store.ranks(&table.name).map_err(failed)?.as_ref().map(Ranks::inverse),
        Some(_) => None,
    };
    if table.keys.is_some() && !store.created(&table.name).map_err(failed)?.is_empty() {
        let what = format!("keys of table {:?} were created that it does not have yet", table.name);
        return Err(Failure::new(Class::Refused, table.name, what).remedy("`warprow compact` first"));
    }
    let path = file.path.display().to_string();
    let row_bytes = theirs.row_bytes();
    if (theirs.rows, theirs.dim, theirs.dtype) != (table.rows, table.dim, table.dtype) {
        let what = format!(
            "table {:?} has {} × {} {}, {} in {path} has {} × {} {}",
            table.name, table.rows, table.dim, table.dtype, theirs.name, theirs.rows, theirs.dim, theirs.dtype
        );
        let remedy = match (theirs.dim, theirs.dtype) == (table.dim, table.dtype) {
            true => {
                "no row was compared: give the file that the table was loaded from; keys that updates created since are rows too"
            }
            false => {
                "no row was compared: give the file that the table was loaded from, or, if it was converted, one that `warprow export` wrote"
            }
        };
        return Err(Failure::new(Class::Mismatch, table.name, what).remedy(remedy));
    }
    let bar = context.screen.bar(format!("comparing {}", table.name), table.rows, Unit::Things);
    let source = match table.keys {
        None => ById::new(file, theirs)?,
        Some(keys) => ById::placed(file, theirs, by_rank(store, &table, keys.kind, file, theirs, context)?)?,
    };
    let mut finding = Finding {
        against: Some(path.clone()),
        against_file: true,
        keys: 0,
        rows: 0,
        bytes: 0,
        differing: 0,
        first: Vec::new(),
        damage: None,
        bad: Vec::new(),
        standby: false,
        table,
    };
    let (mut want, mut unread) = (vec![0; row_bytes], None);
    let name = finding.table.name.clone();
    let scanned = store.scan(&name, 0..u64::MAX, &mut |rank, row| {
        let id = ids.as_ref().map_or(Some(rank), |ids| ids.get(rank)).unwrap_or(u64::MAX);
        if let Err(error) = source.read(id, row_bytes, &mut want) {
            unread = Some(error);
            return ControlFlow::Break(());
        }
        if row != want {
            finding.differing += 1;
            finding.first.push(id);
            if finding.first.len() > 1000 {
                keep_first(&mut finding.first);
            }
        }
        finding.rows += 1;
        finding.bytes += row.len() as u64;
        if finding.rows.is_multiple_of(1 << 12) {
            bar.set_position(finding.rows);
            return context.interrupt.flow();
        }
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    if let Some(error) = unread {
        return Err(Failure::io(path, "cannot be read", &error));
    }
    scanned.map_err(|error| interrupted(error, context))?;
    context.interrupt.check()?;
    keep_first(&mut finding.first);
    Ok(finding)
}

/// Where in the file the row of each rank of a table with keys stands.
fn by_rank(
    store: &Store,
    table: &TableInfo,
    kind: KeyKind,
    file: &TableFile,
    theirs: &FileTable,
    context: &Context,
) -> Result<Ranks, Failure> {
    let name = &table.name;
    let differs = |what: String| Failure::new(Class::Mismatch, name, what);
    let (Some(keys), Some(width)) = (file.keys(theirs)?, theirs.keys) else {
        let what = format!("the rows of table {name:?} are found by keys, and {} has none", file.path.display());
        return Err(Failure::input(name, what).remedy("name the list of keys, or a .npy file of them, with --keys"));
    };
    let index = store.key_index(name)?.ok_or_else(|| Failure::new(Class::Bug, name, "a table of keys has no index"))?;
    let (stored, ranks) = (store.keys(name)?, store.ranks(name)?);
    let no_memory = |_| {
        let what = format!("there is no memory for the places of {} rows", table.rows);
        Failure::new(Class::Resources, name, what).remedy("free some, or verify without --against")
    };
    let mut places: Vec<u64> = Vec::new();
    places.try_reserve_exact(table.rows as usize).map_err(no_memory)?;
    places.resize(table.rows as usize, u64::MAX);
    for (row, key) in (0..).zip(keys) {
        let key = key?;
        // The same bits are another number where only one side has a sign.
        let same = width.is_signed() == (kind == KeyKind::I64) || key <= i64::MAX as u64;
        let rank = index.slot(key).filter(|_| same);
        let rank = rank.and_then(|slot| ranks.as_ref().map_or(Some(slot), |ranks| ranks.get(slot)));
        let rank = rank.and_then(|rank| usize::try_from(rank).ok());
        let known = |rank: &usize| stored.as_ref().is_none_or(|stored| stored.get(*rank) == Some(&key));
        let Some(place) = rank.filter(known).and_then(|rank| places.get_mut(rank)) else {
            let what = format!(
                "row {row} of {} has the key {}, which table {name:?} does not have",
                theirs.name,
                width.show(key)
            );
            return Err(differs(what));
        };
        if *place != u64::MAX {
            let what = format!("the key {} comes twice in {}, or passes for another", width.show(key), theirs.name);
            return Err(differs(what));
        }
        *place = row;
        if row.is_multiple_of(1 << 16) {
            context.interrupt.check()?;
        }
    }
    Ranks::from_u64(places).map_err(|_| differs(format!("{} does not have all keys of table {name:?}", theirs.name)))
}

fn keep_first(ids: &mut Vec<u64>) {
    ids.sort_unstable();
    ids.truncate(100);
}

fn report(findings: Vec<Finding>, metadata: VerifiedMetadata) -> Result<Done, Failure> {
    let verdict = |finding: &Finding| match (&finding.against, finding.differing) {
        _ if finding.damage.as_ref().is_some_and(|it| it.class == Class::Mismatch) => "DIFFERS, see below".to_owned(),
        _ if finding.damage.is_some() => "DAMAGED, see below".to_owned(),
        (None, _) => "readable; row contents NOT checked".to_owned(),
        (Some(against), 0) => format!("equal to {against}"),
        (Some(against), n) => format!("{} DIFFER from {against}", units::plural(n, "row")),
    };
    let mut text = table(
        ["table", ">rows", ">bytes", "verdict"],
        findings.iter().map(|it| {
            let standby =
                if it.standby { format!(" (generation {}, standby)", it.table.generation) } else { String::new() };
            [it.table.name.clone() + &standby, units::count(it.rows), units::bytes(it.bytes), verdict(it)]
        }),
    );
    if findings.is_empty() {
        text = "The store has no tables.".to_owned();
    }
    let unchecked = findings.iter().filter(|finding| finding.against.is_none()).count();
    for (finding, damage) in findings.iter().filter_map(|it| Some((it, it.damage.as_ref()?))) {
        text += &format!("\n{:?}: {}", finding.table.name, printable(&damage.message));
    }
    if findings.iter().any(|finding| finding.against.is_none() && finding.damage.is_none()) {
        text += "\nRow contents were NOT checked: load with --row-crc, or compare with --against FILE.";
    }
    let VerifiedMetadata { bad: metadata, unfinished, .. } = metadata;
    let mut bad = metadata.clone();
    bad.extend(findings.iter().flat_map(|it| it.bad.iter().cloned()));
    text += &match metadata.is_empty() {
        true if unfinished.is_empty() => "\nEvery copy of the metadata is whole.".to_owned(),
        true => format!("\n{}", damage::unfinished_text(&unfinished)),
        false => format!("\nDAMAGED in the metadata: {}.", units::plural(metadata.len() as u64, "place")),
    };
    if !bad.is_empty() {
        text += &format!("\n{}", damage::text(&bad));
    }
    let tables: Vec<Value> = findings
        .iter()
        .map(|it| {
            json!({
                "name": it.table.name,
                "generation": it.table.generation,
                "standby": it.standby,
                "rows": it.rows,
                "keys_checked": it.keys,
                "bytes": it.bytes,
                "checked": it.against.is_some(),
                "against": it.against,
                "damage": it.damage.as_ref().map(|damage| &damage.message),
                "differing": it.differing,
                "first_differing_are": it.kind(),
                "first_differing": it.first.iter().take(LISTED).collect::<Vec<_>>(),
            })
        })
        .collect();
    let checked = !findings.is_empty() && unchecked == 0;
    let differing: u64 = findings.iter().map(|finding| finding.differing).sum();
    let object = json!({
        "tables": tables,
        "contents_checked": checked,
        "differing": differing,
        "metadata_sound": metadata.is_empty(),
        "bad": bad.iter().map(damage::json).collect::<Vec<_>>(),
        "unfinished_commit": unfinished.iter().map(damage::json).collect::<Vec<_>>(),
    });
    let mut done = Done::new(text, object)?;
    let unreadable: Vec<BadUnit> = bad.iter().filter(|it| it.unreadable).cloned().collect();
    if let Some(failure) = damage::failure(&unreadable) {
        done.failure = Some(failure);
    } else if let Some(damage) = findings.iter().find_map(|finding| finding.damage.clone()) {
        done.failure = Some(damage);
    } else if let Some(bad) = findings.iter().find(|finding| finding.differing > 0) {
        let first: Vec<String> = bad.first.iter().take(LISTED).map(u64::to_string).collect();
        let what = format!(
            "{} of table {:?} differ: {} {}",
            units::plural(bad.differing, "row"),
            bad.table.name,
            bad.kind(),
            first.join(", ")
        );
        done.failure =
            Some(Failure::new(Class::Mismatch, &bad.table.name, what).remedy("load the table again, with --replace"));
    } else {
        done.failure = damage::failure(&bad);
    }
    Ok(done)
}
