//! The keys of the rows: which list of a file they are, and reading them.

use warprow_formats::TableFile;

use super::arguments::LoadArgs;
use crate::commands::Context;
use crate::failure::Failure;
use crate::keyed::RowNames;
use crate::report::printable;
use crate::select::Chosen;

/// Says which keys a table has: `[TENSOR=]NAME`.
pub(crate) fn name_keys(files: &mut [TableFile], argument: &str) -> Result<(), Failure> {
    // Both names may contain an equals sign.
    let splits = argument.match_indices('=').filter_map(|(at, _)| argument.split_at_checked(at));
    let mut named = splits.map(|(table, rest)| (table, rest.strip_prefix('=').unwrap_or(rest)));
    let has = |file: &TableFile, name: &str| file.tables.iter().any(|table| table.name == name);
    let found = named.find(|(table, _)| files.iter().any(|file| has(file, table)));
    if let Some((table, keys)) = found {
        for file in files.iter_mut().filter(|file| has(file, table)) {
            file.with_keys(table, keys)?;
        }
        return Ok(());
    }
    // Without a name they are those of all tables that have as many rows.
    let mut rows = 0;
    for file in files.iter_mut() {
        let only: Vec<String> = match &file.tables[..] {
            [table] => vec![table.name.clone()],
            tables => {
                let count = file.key_arrays.iter().find(|array| array.name == argument).map(|array| array.rows);
                tables.iter().filter(|table| Some(table.rows) == count).map(|table| table.name.clone()).collect()
            }
        };
        rows += only.len();
        only.iter().try_for_each(|table| file.with_keys(table, argument))?;
    }
    if rows > 0 { Ok(()) } else { Err(no_such_keys(files, argument)) }
}

/// Nothing in the files has rows that `argument` names the keys of.
fn no_such_keys(files: &[TableFile], argument: &str) -> Failure {
    // What is no table for a reason of its own, such as an array in Fortran order, has rows that these may be the keys of.
    let names = |list: &str| argument == list || argument.strip_suffix(list).is_some_and(|rest| rest.ends_with('='));
    let listed = |file: &&TableFile| file.key_arrays.iter().any(|array| names(&array.name));
    let others = files.iter().filter(listed).flat_map(|file| file.skipped.iter().map(move |pair| (file, pair)));
    let others = others.filter(|(file, (name, _))| !file.key_arrays.iter().any(|array| array.name == *name));
    let others: Vec<_> = others.map(|(_, (name, why))| format!("{} ({why})", printable(name))).collect();
    let others = if others.is_empty() { String::new() } else { format!("; no table is {}", others.join(", ")) };
    let what = format!("{argument:?} is no list of keys for any table{others}");
    let remedy = match others.is_empty() {
        true => "name the rows too, as the file calls them: --keys TENSOR=NAME",
        false => "write the rows again, as a table; or name others, as the file calls them: --keys TENSOR=NAME",
    };
    Failure::input("--keys", what).remedy(remedy)
}

/// How the rows of each table are found.
pub(super) fn read_all<'a>(
    args: &LoadArgs,
    chosen: &[Chosen<'a>],
    context: &Context,
) -> Result<Vec<RowNames<'a>>, Failure> {
    let mut all = Vec::with_capacity(chosen.len());
    for chosen in chosen {
        all.push(read(args, chosen, context)?);
        context.interrupt.check()?;
    }
    Ok(all)
}

/// How the rows of a table are found.
fn read<'a>(args: &LoadArgs, chosen: &Chosen<'a>, context: &Context) -> Result<RowNames<'a>, Failure> {
    let spinner = chosen.table.keys.map(|_| context.screen.spinner(format!("reading the keys of {}", chosen.name)));
    let whose = RowNames::of(chosen.file, chosen.table, args.key_index);
    if let Some(spinner) = spinner {
        spinner.finish_and_clear();
    }
    whose
}
