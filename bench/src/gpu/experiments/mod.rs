//! Rows in DRAM: other ways to gather them than the look-up's, and other pages for them to lie on. What is timed is the gathering alone.

pub(in crate::gpu) mod bulk;
pub(in crate::gpu) mod fixture;
mod pages;
pub mod report;

pub use pages::{PageKind, hint};

use anyhow::ensure;
use serde::Serialize;
use warprow_gpu_queues::DeviceMemory;
use warprow_layout::DType;
use warprow_workload::{Oracle, median, mix_all};

use super::{Stream, us};
use bulk::{BULK_SINCE, Bulk};
use fixture::{Code, Fixture, Keys};
use pages::Pages;

/// Bytes of one answer, at most: of longer rows there are fewer ids.
const MOST_OUTPUT: u64 = 2 << 30;
/// Runs of which each way to begin bulk copies gets its median.
const SCANNED: u32 = 3;

/// What is measured.
#[derive(Clone, Debug)]
pub struct ExperimentSetup {
    /// Bytes of the table.
    pub size: u64,
    /// Bytes of rows, multiples of 16; on pages of every kind there are rows of the first.
    pub row_bytes: Vec<u32>,
    /// Uniform ids of a batch, at most.
    pub ids: u64,
    /// Repetitions, each with fresh ids.
    pub runs: u32,
    /// Of contents and ids.
    pub seed: u64,
    /// Thread blocks of the look-up's gather; 0: as many as the executor thinks best.
    pub gatherers: u32,
}

impl ExperimentSetup {
    /// Refuses what cannot be measured; no GPU is needed for that.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(!self.row_bytes.is_empty() && self.runs > 0, "no rows, or no repetitions: nothing is left to measure");
        for &row in &self.row_bytes {
            ensure!(
                row.is_multiple_of(16) && (16..=4096).contains(&row),
                "rows of {row} bytes: multiples of 16 up to 4096"
            );
            ensure!(self.ids_of(row) > 0, "rows of {row} bytes: no id, or no row in {} bytes", self.size);
        }
        ensure!(self.size <= 1 << 40, "a table of {} bytes: 1 TiB at most", self.size);
        Ok(())
    }

    fn content(&self, row_bytes: u32) -> Oracle {
        Oracle::new(self.seed, 0, self.size / u64::from(row_bytes), row_bytes / 4, DType::F32)
    }

    /// Ids of a batch of such rows.
    fn ids_of(&self, row_bytes: u32) -> u64 {
        let rows = self.size / u64::from(row_bytes);
        if rows == 0 { 0 } else { self.ids.min(MOST_OUTPUT / u64::from(row_bytes)) }
    }
}

/// One way to gather; medians, by the GPU, launches hidden.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Gathered {
    /// Microseconds.
    pub us: f64,
    /// Bytes of rows a second.
    pub bytes_per_second: f64,
}

/// Rows on pages of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct PageResult {
    /// Which kind.
    pub pages: PageKind,
    /// The share of the table that lies on pages of that kind, as the system says; none if it does not say.
    pub share: Option<f64>,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// Ids of a batch.
    pub ids: u64,
    /// Different ones among them, median.
    pub unique: u64,
    /// Seconds that registering the table with CUDA took.
    pub register_seconds: f64,
    /// The look-up's gather, of ascending keys.
    pub lookup: Gathered,
    /// Loads in the order of the request, each id by itself.
    pub uva: Gathered,
    /// Rows compared, all of every answer.
    pub checked: u64,
}

/// Bulk copies, begun in one way.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BulkPoint {
    /// Thread blocks, of a warp each.
    pub blocks: u32,
    /// Rows of a stage.
    pub each: u32,
    /// Rows that a block has on their way while it waits for others.
    pub in_flight: u32,
    /// Bytes of shared memory of a block.
    pub shared: u32,
    /// Median microseconds.
    pub us: f64,
}

/// Rows of one length, gathered by bulk copies and by others.
#[derive(Clone, Debug, Serialize)]
pub struct BulkResult {
    /// Bytes of a row.
    pub row_bytes: u32,
    /// Ids of a batch.
    pub ids: u64,
    /// Different ones among them, median.
    pub unique: u64,
    /// The look-up's gather, of ascending keys.
    pub lookup: Gathered,
    /// Thread blocks of the executor that gather.
    pub gatherers: u32,
    /// Plain loads of the same ascending keys, by all multiprocessors.
    pub sorted: Gathered,
    /// Loads in the order of the request, each id by itself.
    pub uva: Gathered,
    /// Bulk copies, begun in the best way.
    pub bulk: Gathered,
    /// Which that is.
    pub best: BulkPoint,
    /// The look-up's time by theirs.
    pub ratio: f64,
    /// Every way that was tried, medians of a few.
    pub tried: Vec<BulkPoint>,
    /// Rows compared, all of every answer.
    pub checked: u64,
}

/// All of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Experiments {
    /// By kind of pages.
    pub pages: Vec<PageResult>,
    /// By length of rows, on pages as the executor gets them.
    pub bulk: Vec<BulkResult>,
}

/// Measures everything of `setup`. `note` is told what is left out, and why.
pub fn measure(stream: &Stream, setup: &ExperimentSetup, note: &mut dyn FnMut(&str)) -> anyhow::Result<Experiments> {
    setup.check()?;
    let (code, mut found) = (Code::new(stream)?, Experiments::default());
    code.prove(stream)?;
    // The last stays for what follows.
    let mut usual = None;
    for kind in PageKind::ALL {
        drop(usual.take());
        let pages = match Pages::new(stream.gpu(), kind, setup.size) {
            Ok(pages) => pages,
            Err(missing) => {
                note(&format!("no {kind}: {missing:#}"));
                continue;
            }
        };
        found.pages.push(on_pages(stream, setup, &code, &pages)?);
        usual = Some(pages);
    }
    let (major, minor) = stream.gpu().capability();
    if (major, minor) < BULK_SINCE {
        note(&format!("no bulk copies: cp.async.bulk needs compute capability 9.0, and this GPU has {major}.{minor}"));
        return Ok(found);
    }
    let Some(pages) = usual else { return Ok(found) };
    // An error of a kernel ends the context: what was found before is told all the same.
    let bulk = Bulk::new(stream).and_then(|bulk| {
        let lengths = setup.row_bytes.iter();
        lengths.map(|&row_bytes| by_bulk(stream, setup, &code, &pages, &bulk, row_bytes)).try_for_each(|result| {
            found.bulk.push(result?);
            anyhow::Ok(())
        })
    });
    if let Err(failed) = bulk {
        note(&format!("bulk copies from pinned memory have failed: {failed:#}"));
    }
    Ok(found)
}

/// What each way has taken.
struct Samples<const N: usize>([Vec<(f64, f64)>; N]);

impl<const N: usize> Samples<N> {
    fn new() -> Self {
        Self(std::array::from_fn(|_| Vec::new()))
    }

    fn medians(self) -> [Gathered; N] {
        self.0.map(|samples| Gathered {
            us: median(samples.iter().map(|(us, _)| *us)),
            bytes_per_second: median(samples.iter().map(|(_, rate)| *rate)),
        })
    }
}

fn on_pages(stream: &Stream, setup: &ExperimentSetup, code: &Code, pages: &Pages) -> anyhow::Result<PageResult> {
    let row_bytes = setup.row_bytes[0];
    let ids = setup.ids_of(row_bytes);
    let fixture = Fixture::new(stream, code, pages.on_gpu(), setup.content(row_bytes), ids, setup.gatherers)?;
    let mut keys = Keys::new(stream, ids, mix_all([setup.seed, pages.kind() as u64]))?;
    let (mut samples, mut unique, mut checked) = (Samples::<2>::new(), Vec::new(), 0);
    // The first is for warming up.
    for run in 0..=setup.runs {
        let [lookup, uva] = [
            fixture.timed(keys.ascending(&fixture)?, |keys| fixture.by_lookup(keys))?,
            fixture.timed(keys.as_asked(&fixture)?, |keys| fixture.plainly(keys))?,
        ];
        checked += lookup.rows + uva.rows;
        if run > 0 {
            samples.0.iter_mut().zip([&lookup, &uva]).for_each(|(all, taken)| all.push(taken.sample(row_bytes)));
            unique.push(lookup.rows as f64);
        }
    }
    let [lookup, uva] = samples.medians();
    Ok(PageResult {
        pages: pages.kind(),
        share: pages.share(),
        row_bytes,
        ids,
        unique: median(unique) as u64,
        register_seconds: pages.register_seconds(),
        lookup,
        uva,
        checked,
    })
}

fn by_bulk(
    stream: &Stream,
    setup: &ExperimentSetup,
    code: &Code,
    pages: &Pages,
    bulk: &Bulk,
    row_bytes: u32,
) -> anyhow::Result<BulkResult> {
    let ids = setup.ids_of(row_bytes);
    let fixture = Fixture::new(stream, code, pages.on_gpu(), setup.content(row_bytes), ids, setup.gatherers)?;
    let mut keys = Keys::new(stream, ids, mix_all([setup.seed, row_bytes.into(), 0xb17]))?;
    let (mut tried, mut checked) = (Vec::new(), 0);
    for mut point in bulk::points(stream.gpu().sms(), row_bytes) {
        let mut times = Vec::new();
        for run in 0..=SCANNED {
            let taken = fixture.timed(keys.ascending(&fixture)?, |keys| bulk.gather(stream, &fixture, keys, &point))?;
            checked += taken.rows;
            times.extend((run > 0).then_some(us(taken.time)));
        }
        point.us = median(times);
        tried.push(point);
    }
    let best = tried.iter().copied().min_by(|a, b| a.us.total_cmp(&b.us));
    let best = best.ok_or_else(|| anyhow::anyhow!("rows of {row_bytes} bytes do not fit shared memory"))?;
    let (mut samples, mut unique) = (Samples::<4>::new(), Vec::new());
    for run in 0..=setup.runs {
        let all = [
            fixture.timed(keys.ascending(&fixture)?, |keys| fixture.by_lookup(keys))?,
            fixture.timed(keys.ascending(&fixture)?, |keys| bulk.gather(stream, &fixture, keys, &best))?,
            fixture.timed(keys.ascending(&fixture)?, |keys| fixture.plainly(keys))?,
            fixture.timed(keys.as_asked(&fixture)?, |keys| fixture.plainly(keys))?,
        ];
        checked += all.iter().map(|taken| taken.rows).sum::<u64>();
        if run > 0 {
            samples.0.iter_mut().zip(&all).for_each(|(samples, taken)| samples.push(taken.sample(row_bytes)));
            unique.push(all[0].rows as f64);
        }
    }
    let [lookup, bulk, sorted, uva] = samples.medians();
    Ok(BulkResult {
        row_bytes,
        ids,
        unique: median(unique) as u64,
        lookup,
        gatherers: fixture.gatherers(),
        sorted,
        uva,
        bulk,
        best,
        ratio: lookup.us / bulk.us,
        tried,
        checked,
    })
}

/// A place of so many bytes behind those before.
fn room(end: &mut u64, bytes: u64) -> u64 {
    let begin = end.next_multiple_of(256);
    *end = begin + bytes;
    begin
}

/// Words at `offset`.
fn words<const N: usize>(memory: &DeviceMemory, offset: u64) -> anyhow::Result<[u64; N]> {
    let mut bytes = vec![0; N * 8];
    memory.read(offset, &mut bytes)?;
    Ok(std::array::from_fn(|i| u64::from_le_bytes(bytes[i * 8..][..8].try_into().unwrap_or_default())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_setups_are_refused() {
        let good =
            ExperimentSetup { size: 1 << 30, row_bytes: vec![128, 4096], ids: 1 << 21, runs: 3, seed: 1, gatherers: 0 };
        good.check().unwrap();
        for bad in [
            ExperimentSetup { row_bytes: vec![], ..good.clone() },
            ExperimentSetup { row_bytes: vec![100], ..good.clone() },
            ExperimentSetup { row_bytes: vec![8192], ..good.clone() },
            ExperimentSetup { size: 64, ..good.clone() },
            ExperimentSetup { ids: 0, ..good.clone() },
            ExperimentSetup { runs: 0, ..good.clone() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
        assert_eq!(good.ids_of(128), 1 << 21);
        assert_eq!(good.ids_of(4096), 1 << 19, "the answer has to fit");
    }
}
