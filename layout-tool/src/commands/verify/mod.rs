//! `warprow verify`.

mod arguments;
mod checksums;
mod compare;
mod finding;
mod report;

use warprow_store::{OpenOptions, Store, TableInfo};

pub use arguments::VerifyArgs;

use super::{CommandOutput, Context};
use crate::counterpart::GivenFiles;
use crate::drives;
use crate::failure::{Class, Failure};
use checksums::check;
use compare::compare;
use finding::Finding;

pub(crate) fn run(args: &VerifyArgs, context: &Context) -> Result<CommandOutput, Failure> {
    if args.against.is_empty() && !args.reading.is_empty() {
        let what = "there is no file that is so";
        return Err(Failure::usage("--format, --shape, --dim, --key-column", what).remedy("name it: --against FILE"));
    }
    let store = drives::open(&args.drives, &OpenOptions::default().with_read_only())?;
    let known = store.tables();
    let names: Vec<&str> = known.iter().map(|table| &*table.name).collect();
    let given = GivenFiles::open(&args.against, &args.tensor, &args.keys, &args.reading, &names)?;
    let tables = chosen(&store, &args.table, &given)?;
    let several = tables.len() > 1;
    let metadata = store.verify_metadata()?;
    let mut findings = Vec::with_capacity(tables.len());
    let mut verifier = store.verifier();
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
    report::report(&findings, &metadata)
}

/// The tables that are meant, and whether each stands by. Of those that do, none is compared with a file.
fn chosen(store: &Store, names: &[String], given: &GivenFiles) -> Result<Vec<(TableInfo, bool)>, Failure> {
    if names.is_empty() {
        let hidden = if given.is_empty() { store.hidden_tables() } else { Vec::new() };
        let found = store.tables().into_iter().filter(|table| given.is_for(&table.name)).map(|table| (table, false));
        return Ok(found.chain(hidden.into_iter().map(|table| (table, true))).collect());
    }
    let find =
        |name: &String| store.table(name).map(|table| (table, false)).ok_or_else(|| drives::no_such_table(store, name));
    let once = names.iter().enumerate().filter(|(index, name)| !names.iter().take(*index).any(|other| other == *name));
    once.map(|(_, name)| find(name)).collect()
}
