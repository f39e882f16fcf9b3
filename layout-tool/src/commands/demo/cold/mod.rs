//! The cold race: a few batches of rows that the page cache does not hold.

mod entries;
mod race;
mod sizes;
mod who;

use std::cell::RefCell;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use warprow_layout::Ranks;
use warprow_workload::rival::{PageCaching, PlainFile};
use warprow_workload::{FreshPages, TableContent, forget};

pub(crate) use who::{Cold, Line, Who};

use super::arguments::DemoArgs;
use super::place::Place;
use super::rivals;
use super::workload::Workload;
use crate::commands::Context;
use crate::failure::Failure;
use entries::Entrants;
use race::{Dealer, race};

/// Time in look-ups, about, of all together.
const TIME: Duration = Duration::from_secs(2);

/// Opens the drive again, whose controller is closed, has the page cache forget its file and the plain one, and has everybody
/// answer batches in turns, after one that is not timed. An error of words: why there was no race.
pub(crate) fn run(
    args: &DemoArgs,
    workload: &Workload<'_>,
    place: &Place,
    ranks: &Arc<Ranks>,
    plain: &Result<PlainFile, String>,
    context: &Context,
) -> Result<Result<Cold, String>, Failure> {
    let truth = &workload.truth;
    let rows = truth.rows();
    let batch = match sizes::most(rows, truth.row_bytes() as u64, workload.batch) {
        Ok(batch) => batch,
        Err(reason) => return Ok(Err(reason)),
    };
    let spinner = context.screen.spinner("forgetting the page cache");
    let (held, opened) = match place.hold().and_then(|held| Ok((held, place.open(PageCaching::Cached)?))) {
        Ok(opened) => opened,
        Err(reason) => return Ok(Err(reason)),
    };
    let store = entries::open(opened)?;
    let target = rivals::target(place, &store, ranks)?;
    let total = RefCell::default();
    let entrants = Entrants { place, workload, store: &store, target: &target, plain, batch, total: &total };
    let entries = entrants.all(context)?;
    if context.interrupt.is_asked() {
        return Ok(Err("interrupted".to_owned()));
    }
    let plain = plain.as_ref().ok();
    let forgotten = File::open(&place.path).and_then(|file| forget(&file));
    let forgotten = forgotten.and_then(|()| plain.map_or(Ok(()), |plain| forget(plain.file())));
    spinner.finish_and_clear();
    if let Err(error) = forgotten {
        return Ok(Err(format!("the file lies on {}, and {error}", place.filesystem)));
    }
    let size = std::fs::metadata(&place.path).map_or(0, |found| found.len());
    let mut dealer = Dealer {
        truth,
        target: &target,
        of_drive: FreshPages::new(rows, size, args.seed),
        of_plain: plain.map(|plain| (plain, FreshPages::new(rows, plain.bytes(), args.seed ^ 1))),
        interrupt: &context.interrupt,
        checked: 0,
    };
    let time = TIME.min(Duration::from_secs_f64(args.seconds));
    let cold = race(&mut dealer, entries, batch, time, context)?;
    drop((store, held));
    Ok(Ok(cold))
}
