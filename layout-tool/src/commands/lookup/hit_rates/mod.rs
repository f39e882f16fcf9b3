//! `warprow lookup --trace`: recorded look-ups of several tables, and what share of their ids memory answers.

mod report;
mod results;

use std::error::Error;

use warprow_driver::DriverError;
use warprow_layout::DType;
use warprow_lookup::{Batch, Feature, HostExecutor, HostOptions, Ids, LookupReport, Output, PlanOptions, Slot};
use warprow_plan::ProposalFile;
use warprow_store::{OpenOptions, Store, StoreError, TableInfo};
use warprow_traces::{Trace, TraceBlock, TraceSpec};

pub(super) use report::hit_rate;

use super::arguments::LookupArgs;
use super::limits::{CHUNK, CHUNK_BYTES};
use crate::columns::LookupTrace;
use crate::commands::{CommandOutput, Context};
use crate::drives;
use crate::failure::Failure;
use crate::rows::RowBuffer;
use crate::screen::Unit;
use crate::store_failure::of_lookup;
use crate::{named, tally};
use results::{Asked, Results};

/// What a table's look-ups need.
struct Looking {
    slot: Slot,
    /// Elements of an output row.
    width: usize,
    /// The most ids of a look-up.
    most: usize,
    /// The ids of the queries that wait to be looked up.
    ids: Vec<u64>,
    rows: RowBuffer,
}

/// Bytes that the rows of a table's look-up take, about, at most: of all tables there are as many.
const ROOM: u64 = CHUNK_BYTES / 4;

pub(super) fn run(args: &LookupArgs, context: &Context) -> Result<CommandOutput, Failure> {
    let proposal = args.plan.as_deref().map(ProposalFile::read).transpose()?;
    let store = drives::open(&args.drives, &OpenOptions::default().with_read_only())?;
    let all = store.tables();
    let tables = meant(&store, &all, &args.tables)?;
    let names: Vec<&str> = tables.iter().map(|table| &*table.name).collect();
    let logs = args.traces.iter().map(|argument| log(argument, &names)).collect::<Result<Vec<_>, _>>()?;
    refuse_two(&logs)?;
    for name in args.tables.iter().filter(|name| names.contains(&&***name)) {
        if !logs.iter().any(|log| log.slots_of(name).next().is_some()) {
            let what = "no column of the trace is called like this table";
            return Err(Failure::usage(name, what).remedy("say which looks it up: --trace TABLE=TRACE:COLUMN"));
        }
    }
    // What a proposal gives to rows; what indices of keys take is theirs anyhow.
    let dram = args.dram.unwrap_or_else(|| proposal.as_ref().map_or(0, |file| file.tiers.memory_for_rows()));
    let options = HostOptions::default().with_dram_bytes(dram).with_cache_bytes(args.cache.unwrap_or(0));
    let options = if args.no_check { options } else { options.with_checked_rows() };
    let host = HostExecutor::attach(&store, if args.check_keys { options.with_checked_keys() } else { options })?;
    let mut asked = Vec::new();
    let mut queries = 0u64;
    for log in &logs {
        let mut of_log = of_log(log, &tables, &host);
        queries = queries.max(look_up(args, log, &mut of_log, &host, context)?);
        asked.append(&mut of_log);
    }
    refuse_foreign(&asked, &logs)?;
    let left: Vec<&str> = names.into_iter().filter(|&name| asked.iter().all(|asked| asked.info.name != name)).collect();
    report::report(args, &Results { asked, left, logs: &logs, dram, queries, proposal, cache: host.cache_statistics() })
}

/// The tables that are named, or that a pattern is of; all if none is.
fn meant<'a>(store: &Store, all: &'a [TableInfo], names: &[String]) -> Result<Vec<&'a TableInfo>, Failure> {
    let known: Vec<&str> = all.iter().map(|table| &*table.name).collect();
    let mut wanted: Vec<&str> = Vec::new();
    for name in names {
        match &named::matching(name, &known)[..] {
            [] => return Err(drives::no_such_table(store, name)),
            found => wanted.extend(found),
        }
    }
    Ok(all.iter().filter(|table| names.is_empty() || wanted.contains(&&*table.name)).collect())
}

fn log(argument: &str, tables: &[&str]) -> Result<LookupTrace, Failure> {
    let (name, rest) = named::split(argument, tables);
    let spec: TraceSpec = rest
        .parse()
        .map_err(|error| Failure::usage(argument, format!("{error}")).remedy("look at `warprow lookup --help`"))?;
    LookupTrace::of(&spec, &name.map_or_else(|| tables.to_vec(), |name| named::matching(name, tables)), "--trace")
}

fn refuse_two(logs: &[LookupTrace]) -> Result<(), Failure> {
    for (at, log) in logs.iter().enumerate() {
        let twice = |table: &str| logs.iter().take(at).any(|other| other.slots_of(table).next().is_some());
        if let Some(column) = log.columns.iter().find(|column| twice(&column.table)) {
            let subject = log.spec.path.display().to_string();
            let what = format!("a second trace of table {:?}", column.table);
            return Err(Failure::usage(subject, what).remedy("leave one out"));
        }
    }
    Ok(())
}

/// Refuses look-ups of a table that has none of the ids which were asked for: the column is another table's.
fn refuse_foreign(asked: &[Asked], logs: &[LookupTrace]) -> Result<(), Failure> {
    let is_foreign = |it: &&Asked| it.report.ids > 0 && it.report.missing == it.report.ids;
    let Some(Asked { info, columns, .. }) = asked.iter().find(is_foreign) else { return Ok(()) };
    let log = logs.iter().find(|log| log.slots_of(&info.name).next().is_some());
    let path = log.map(|log| log.spec.path.display().to_string()).unwrap_or_default();
    let what = format!("none of the ids of {} is in table {:?}", columns.join(", "), info.name);
    Err(Failure::input(path, what).remedy("check the column or slot, and the table"))
}

/// The tables that a trace looks up.
fn of_log(log: &LookupTrace, tables: &[&TableInfo], host: &HostExecutor) -> Vec<Asked> {
    let looked_up = tables.iter().filter(|info| log.slots_of(&info.name).next().is_some());
    let asked = looked_up.map(|&info| Asked {
        columns: log
            .columns
            .iter()
            .filter(|column| column.table == info.name)
            .map(|column| column.name.clone())
            .collect(),
        slots: log.slots_of(&info.name).collect(),
        hot_rows: host.hot_rows(&info.name).unwrap_or(0),
        report: LookupReport::default(),
        info: info.clone(),
    });
    asked.collect()
}

/// Tables that are looked up in one reading of the trace, at most: each takes a queue pair on every drive, and memory.
const TOGETHER: usize = 32;

/// Whether drives have no queue pair left.
fn lacks_queues(error: &StoreError) -> bool {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        if matches!(error.downcast_ref(), Some(DriverError::NoQueueLeft { .. })) {
            return true;
        }
        next = error.source();
    }
    matches!(error, StoreError::Queues { .. })
}

/// Looks up what a trace has for `asked`: as many tables at once as drives have queue pairs for; for others the trace is read
/// again. Returns how many queries it has.
fn look_up(
    args: &LookupArgs,
    log: &LookupTrace,
    asked: &mut [Asked],
    host: &HostExecutor,
    context: &Context,
) -> Result<u64, Failure> {
    let mut first = 0;
    let mut queries = 0;
    while first < asked.len() {
        let mut looking = Vec::new();
        for it in asked.iter().skip(first).take(TOGETHER) {
            match Looking::new(args, &it.info, host) {
                Ok(it) => looking.push(it),
                Err(error) if lacks_queues(&error) && !looking.is_empty() => break,
                Err(error) => return Err(error.into()),
            }
        }
        let now = asked.get_mut(first..first + looking.len()).unwrap_or_default();
        first += now.len();
        queries = replay(args, log, now, &mut looking, context)?;
    }
    Ok(queries)
}

/// Looks up the queries of a trace in tables, so many at once; returns how many there are.
fn replay(
    args: &LookupArgs,
    log: &LookupTrace,
    asked: &mut [Asked],
    looking: &mut [Looking],
    context: &Context,
) -> Result<u64, Failure> {
    let mut trace = Trace::open(&log.spec)?;
    let bar = context.screen.bar("looking up", 0, Unit::Bytes);
    let mut block = TraceBlock::default();
    let mut queries = 0u64;
    loop {
        let more = trace.next_block(&mut block)?;
        for sample in block.samples().take(if more { usize::MAX } else { 0 }) {
            for (asked, looking) in asked.iter().zip(looking.iter_mut()) {
                asked.slots.iter().for_each(|&slot| looking.ids.extend_from_slice(sample.keys(slot)));
            }
            queries += 1;
            if queries.is_multiple_of(args.batch.into()) {
                flush(&trace, asked, looking, context)?;
            }
        }
        let (read, bytes) = trace.progress();
        bar.set_length(bytes);
        bar.set_position(read);
        if !more {
            flush(&trace, asked, looking, context)?;
            bar.finish_and_clear();
            return if queries == 0 { Err(Trace::empty(&log.spec).into()) } else { Ok(queries) };
        }
    }
}

/// Looks up the ids that wait.
fn flush(trace: &Trace, asked: &mut [Asked], looking: &mut [Looking], context: &Context) -> Result<(), Failure> {
    for (asked, looking) in asked.iter_mut().zip(looking) {
        context.interrupt.check()?;
        let signed = asked.slots.iter().any(|&slot| trace.slots().get(slot).is_some_and(|slot| slot.signed));
        looking.flush(asked, signed)?;
    }
    Ok(())
}

impl Looking {
    fn new(args: &LookupArgs, info: &TableInfo, host: &HostExecutor) -> Result<Self, StoreError> {
        let most = usize::try_from(ROOM / (u64::from(info.dim) * 4).max(1)).unwrap_or(CHUNK).clamp(1, CHUNK);
        let out = if info.dtype.is_scaled() { DType::F32 } else { info.dtype };
        let feature = Feature::new(&info.name, &info.name).missing(args.missing.of_store());
        let feature = match args.padding {
            Some(id) => feature.padding(id),
            None => feature,
        };
        let plan = host.plan(&[feature], PlanOptions::default().with_max(most, most).with_out(out))?;
        let slot = plan.slot()?;
        let width = plan.width();
        Ok(Self { slot, width, most, ids: Vec::new(), rows: RowBuffer::new(out, most * width) })
    }

    /// Looks up the ids that wait, and adds to the report what that came to.
    fn flush(&mut self, asked: &mut Asked, signed: bool) -> Result<(), Failure> {
        for ids in self.ids.chunks(self.most) {
            // The same bits, which are negative numbers there.
            let negative: Vec<i64> = if signed { ids.iter().map(|&id| id as i64).collect() } else { Vec::new() };
            let ids: Ids<'_> = if signed { negative[..].into() } else { ids.into() };
            let batch = Batch::new(ids, ids.len());
            let mut output = Output::new(self.rows.rows(), self.width);
            let report = self.slot.lookup(&batch, &mut output).map_err(|error| of_lookup(&error, &asked.info.name))?;
            tally::add(&mut asked.report, &report);
        }
        self.ids.clear();
        Ok(())
    }
}
