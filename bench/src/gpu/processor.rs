//! Rows gathered, and bags summed, by all cores of this machine.

use std::ops::Range;
use std::ptr;

use warprow_gpu_queues::PinnedMemory;

/// Work items that a thread has at least: fewer do not pay for starting it.
const LEAST_SHARE: usize = 4096;

/// Rows in memory of this process, and their address for the GPU, if it has one.
#[derive(Clone, Copy, Debug)]
pub struct HostRows {
    /// For the GPU.
    pub on_gpu: u64,
    /// For this process.
    pub here: *const u8,
    /// Bytes from a row to the next.
    pub stride: usize,
    /// Bytes of a row.
    pub row_bytes: usize,
}

// SAFETY: rows are only read, and stay where they are while anybody has this.
unsafe impl Sync for HostRows {}

/// Where threads write, each its part.
struct Output(*mut u8);
// SAFETY: threads write to parts that do not overlap.
unsafe impl Sync for Output {}

/// Runs `work` on parts of `0..count`, on all cores, if they have `least` each.
pub(super) fn share(count: usize, least: usize, work: impl Fn(Range<usize>) + Sync) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = count.div_ceil(threads).max(least.max(1));
    std::thread::scope(|scope| {
        let work = &work;
        for begin in (share..count).step_by(share) {
            scope.spawn(move || work(begin..(begin + share).min(count)));
        }
        work(0..share.min(count));
    });
}

/// Copies the rows of `ids` to `to`, one after another: `each` of them are of every table in turn. Panics where there is no room.
pub fn gather(tables: &[HostRows], each: usize, ids: &[i64], to: &PinnedMemory) {
    let row_bytes = tables.first().map_or(0, |table| table.row_bytes);
    assert!(ids.len() * row_bytes <= to.memory().len(), "{} rows have no room", ids.len());
    let output = Output(to.memory().as_ptr());
    share(ids.len(), LEAST_SHARE, |part| {
        let output = &output;
        for at in part {
            let table = &tables[at / each.max(1)];
            // SAFETY: the table has a row of that id, the output room for all (checked); each thread has its part.
            unsafe {
                let from = table.here.add(ids[at] as usize * table.stride);
                ptr::copy_nonoverlapping(from, output.0.add(at * row_bytes), row_bytes);
            }
        }
    });
}

/// Sums bags of `hot` ids of rows of f32: row b of `to` has the sums of bag b of all tables side by side. Panics where there is no room.
pub fn pool(tables: &[HostRows], bags: usize, hot: usize, ids: &[i64], to: &PinnedMemory) {
    let row_bytes = tables.first().map_or(0, |table| table.row_bytes);
    let features = tables.len();
    let dim = row_bytes / 4;
    assert!(bags * features * row_bytes <= to.memory().len(), "{bags} rows have no room");
    assert!(bags * features * hot <= ids.len(), "{} ids are too few", ids.len());
    let output = Output(to.memory().as_ptr());
    share(bags * features, LEAST_SHARE / hot.max(1), |part| {
        let output = &output;
        let mut sums = vec![0f32; dim];
        for at in part {
            let bag = at / features;
            let feature = at % features;
            sums.fill(0.0);
            for &id in &ids[(feature * bags + bag) * hot..][..hot] {
                // SAFETY: the table has a row of that id, of f32, aligned to 16.
                let row = unsafe {
                    std::slice::from_raw_parts(
                        tables[feature].here.add(id as usize * tables[feature].stride).cast(),
                        dim,
                    )
                };
                sums.iter_mut().zip(row).for_each(|(sum, element): (_, &f32)| *sum += element);
            }
            // SAFETY: the output has room for all (checked); each thread has its part.
            unsafe { ptr::copy_nonoverlapping(sums.as_ptr().cast(), output.0.add(at * row_bytes), row_bytes) };
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn parts_are_all_there_is() {
        for (count, least) in [(0, 1), (1, 1), (7, 100), (1000, 1), (1001, 333)] {
            let seen = Mutex::new(vec![0; count]);
            share(count, least, |part| part.for_each(|at| seen.lock().unwrap()[at] += 1));
            assert!(seen.lock().unwrap().iter().all(|&times| times == 1), "{count} by {least}");
        }
    }
}
