//! The ids that a user gives the demo.

use warprow_traces::TraceSpec;
use warprow_workload::{RecordedKeys, TraceFile, read_slots};

use crate::columns::LookupTrace;
use crate::failure::Failure;
use crate::hotness::read_keys;

/// The keys of a list of ids, or those that a trace of any other kind looks up in `table`; and what errors call the file.
pub(crate) fn read(argument: &str, table: &str) -> Result<(String, RecordedKeys), Failure> {
    let Ok(list) = argument.parse::<TraceFile>();
    let spec = argument.parse::<TraceSpec>();
    let has_kind = spec.as_ref().is_ok_and(|spec| spec.format.is_some());
    if !has_kind && TraceSpec::list(&list.path, list.column.as_deref()).is_ok() {
        return Ok((list.path.display().to_string(), read_keys(&list)?));
    }
    let spec = spec.map_err(|error| {
        Failure::usage(argument, error.to_string()).remedy("docs/traces.md has the settings of each kind of trace")
    })?;
    let found = LookupTrace::of(&spec, &[table], "--trace")?;
    let slots: Vec<usize> = found.columns.iter().map(|column| column.slot).collect();
    let keys = read_slots(&found.spec, Some(&slots))?;
    Ok((spec.path.display().to_string(), keys))
}
