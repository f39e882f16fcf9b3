//! `warprow lookup`.

mod arguments;
mod failed;
mod hit_rates;
mod limits;
mod report;
mod request;
mod shown;
mod work;

use warprow_store::{OpenOptions, TableInfo};
use warprow_workload::units;

pub use arguments::LookupArgs;
pub(super) use request::{parse_ids, read_file};

use super::{CommandOutput, Context};
use crate::drives;
use crate::failure::Failure;
use crate::file::refuse_inputs;
use limits::JSON_NUMBERS;
use request::Request;

pub(crate) fn run(args: &LookupArgs, context: &Context) -> Result<CommandOutput, Failure> {
    if !args.traces.is_empty() {
        return hit_rates::run(args, context);
    }
    let [name] = &args.tables[..] else {
        let what = format!("{} are named", units::plural(args.tables.len() as u64, "table"));
        return Err(Failure::usage("--table", what).remedy("name one; ids of several are looked up with --trace"));
    };
    if let Some(out) = &args.out {
        refuse_inputs("--out", out, &args.inputs())?;
    }
    let request = Request::read(args)?;
    let options = OpenOptions::default();
    let options = if args.degraded { options.with_degraded() } else { options.with_read_only() };
    let store = drives::open(&args.drives, &options)?;
    let info = store.table(name).ok_or_else(|| drives::no_such_table(&store, name))?;
    if context.json && args.out.is_none() {
        refuse_too_many(request.rows(), &info)?;
    }
    let found = work::look_up(args, &store, &info, &request, context)?;
    let mut done = report::report(args, &info, &request, &found)?;
    done.failure = found.shown.failure(name);
    Ok(done)
}

/// More numbers than `--json` prints.
fn refuse_too_many(rows: u64, info: &TableInfo) -> Result<(), Failure> {
    if rows.saturating_mul(info.dim.into()) <= JSON_NUMBERS {
        return Ok(());
    }
    let what = format!(
        "{} of {} are more than the {} that it prints",
        units::plural(rows, "row"),
        units::plural(info.dim.into(), "number"),
        units::count(JSON_NUMBERS)
    );
    Err(Failure::input("--json", what).remedy("write them to a file, with --out, or look up fewer at once"))
}
