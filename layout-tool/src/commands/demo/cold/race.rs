//! The course of the cold race.

use std::time::{Duration, Instant};

use warprow_workload::rival::{PlainFile, RivalTable};
use warprow_workload::{FreshPages, RowMismatch, RowsAnswer, TableContent, read_around, settle, verify};

use super::entries::Entry;
use super::sizes::{LEAST, sizes};
use super::who::{Cold, Line, Who};
use crate::commands::Context;
use crate::commands::demo::replay::{Contender, POISON};
use crate::commands::demo::rivals;
use crate::commands::demo::workload::Truth;
use crate::failure::{Class, Failure};
use crate::interrupt::Interrupt;
use crate::rows::RowBuffer;

/// What is given out and compared.
pub(super) struct Dealer<'a> {
    pub(super) truth: &'a Truth<'a>,
    pub(super) target: &'a RivalTable,
    pub(super) of_drive: FreshPages,
    /// The plain file and its pages, where there is one.
    pub(super) of_plain: Option<(&'a PlainFile, FreshPages)>,
    pub(super) interrupt: &'a Interrupt,
    pub(super) checked: u64,
}

/// How a batch went.
enum Turn {
    Took(Duration),
    /// The contender is gone.
    Lost(String),
    Wrong(RowMismatch),
}

/// One small batch of each that is not timed, and then so many of such a size that all of it takes about `time`.
pub(super) fn race(
    dealer: &mut Dealer<'_>,
    mut entries: Vec<Entry<'_>>,
    most: usize,
    time: Duration,
    context: &Context,
) -> Result<Cold, Failure> {
    let bar = context.screen.thousandths("racing from the disk");
    let mut lines: Vec<Line> = entries
        .iter()
        .map(|entry| Line { who: entry.who, ms: entry.contender.as_ref().map(|_| Vec::new()).map_err(Clone::clone) })
        .collect();
    let first = (most / 32).clamp(LEAST, most);
    let mut batch = first;
    let mut rounds = 0;
    let mut mismatch = None;
    let mut interrupted = false;
    // Round 0 is the small one.
    let mut round = 0;
    let mut taken = Duration::ZERO;
    'race: while round <= rounds {
        let size = if round == 0 { first } else { batch };
        let mut ids = vec![0; size];
        let mut rows = RowBuffer::new(dealer.truth.dtype(), size * dealer.truth.dim() as usize);
        for turn in 0..entries.len() {
            // Whoever goes first changes.
            let at = (turn + round) % entries.len();
            let (Entry { who, contender }, line) = (&mut entries[at], &mut lines[at]);
            let (Ok(answering), Ok(ms)) = (&mut *contender, &mut line.ms) else { continue };
            match dealer.turn(*who, &mut **answering, &mut ids, &mut rows)? {
                Turn::Took(took) if round == 0 => taken += took,
                Turn::Took(took) => ms.push(took.as_secs_f64() * 1e3),
                Turn::Wrong(wrong) => mismatch = Some((*who, wrong)),
                Turn::Lost(reason) => (*contender, line.ms) = (Err(reason.clone()), Err(reason)),
            }
            interrupted = dealer.interrupt.is_asked();
            if interrupted || mismatch.is_some() {
                break 'race;
            }
        }
        if round == 0 {
            (batch, rounds) = sizes(first, taken, most, time);
        }
        bar.set_position(round as u64 * 1000 / rounds as u64);
        round += 1;
    }
    bar.finish_and_clear();
    let rounds = rounds.min(round.saturating_sub(1));
    let read_around = dealer.of_plain.as_ref().and_then(|(plain, _)| read_around(plain.file()));
    Ok(Cold { batch, rounds, lines, read_around, checked: dealer.checked, mismatch, interrupted })
}

impl Dealer<'_> {
    /// Has `who` answer a batch whose pages nobody has read, and compares every row.
    fn turn(
        &mut self,
        who: Who,
        contender: &mut dyn Contender,
        ids: &mut [i64],
        rows: &mut RowBuffer,
    ) -> Result<Turn, Failure> {
        let dealt = match &mut self.of_plain {
            Some((plain, pages)) if who == Who::Numpy => pages.deal(ids, |id| plain.bytes_of(id)),
            _ => self.of_drive.deal(ids, |id| Some(self.target.bytes_of(id)?.1)),
        };
        dealt.map_err(|error| Failure::new(Class::Bug, who.name(), error.to_string()).remedy("please report it"))?;
        rows.bytes_mut().fill(POISON);
        settle();
        let begin = Instant::now();
        let answered = contender.answer(ids, rows);
        let taken = begin.elapsed();
        if let Err(failure) = answered {
            return Ok(Turn::Lost(rivals::is_lost(&failure).ok_or(failure)?));
        }
        let answer = RowsAnswer { rows: rows.bytes(), stride: self.truth.row_bytes(), mask: contender.mask() };
        let verified = verify(self.truth, ids, answer);
        if let Some(error) = self.truth.failed() {
            return Err(Failure::io("--table", "cannot be read", &error));
        }
        match verified {
            Ok(verified) => {
                self.checked += verified.rows;
                Ok(Turn::Took(contender.took().unwrap_or(taken)))
            }
            Err(mismatch) => Ok(Turn::Wrong(mismatch)),
        }
    }
}
