use super::error::RivalError;
use super::interface::Rival;

/// Several rivals of one kind, each of which answers a part of every batch on a thread of its own.
#[derive(Debug)]
pub struct ThreadedRival<R>(Vec<R>);

impl<R: Rival + Send> ThreadedRival<R> {
    /// `count` of them, one at least.
    pub fn new(count: usize, make: impl FnMut() -> Result<R, RivalError>) -> Result<Self, RivalError> {
        std::iter::repeat_with(make).take(count.max(1)).collect::<Result<_, _>>().map(Self)
    }
}

impl<R: Rival + Send> Rival for ThreadedRival<R> {
    fn name(&self) -> String {
        let name = self.0.first().map(R::name).unwrap_or_default();
        format!("{name}, {} threads", self.0.len())
    }

    fn lookup(&mut self, ids: &[i64], rows: &mut [u8], mask: &mut [u8]) -> Result<(), RivalError> {
        let share = ids.len().div_ceil(self.0.len()).max(1);
        let row_bytes = rows.len().checked_div(ids.len()).unwrap_or(0).max(1);
        let shares = ids.chunks(share).zip(rows.chunks_mut(share * row_bytes)).zip(mask.chunks_mut(share));
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (rival, ((ids, rows), mask)) in self.0.iter_mut().zip(shares) {
                threads.push(scope.spawn(move || rival.lookup(ids, rows, mask)));
            }
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(answer) => answer,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    }
}
