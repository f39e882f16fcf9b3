//! Copies of memory, against which copies of a pass's rows are held.

use std::time::Instant;

use anyhow::Context;
use memmap2::MmapMut;

/// Places to copy from.
const PLACES: usize = 16;

/// Memory on huge pages, where the system has them, all of it touched.
pub(super) fn huge(bytes: usize) -> anyhow::Result<MmapMut> {
    let mut map = MmapMut::map_anon(bytes.max(1)).with_context(|| format!("no memory for {bytes} bytes"))?;
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    map.fill(1);
    Ok(map)
}

/// As much memory as a table takes, and as a pass does, on huge pages as rows of passes are.
pub(super) struct Memory {
    from: MmapMut,
    to: MmapMut,
    threads: usize,
    turn: usize,
}

impl Memory {
    pub(super) fn new(table: usize, pass: usize, threads: usize) -> anyhow::Result<Self> {
        let from = huge(table.max(pass))?;
        let to = huge(pass)?;
        Ok(Self { from, to, threads, turn: 0 })
    }

    /// Copies as many bytes as a pass has, in one piece for each thread, each time from another place, so that no cache has them: bytes a
    /// second.
    pub(super) fn copy(&mut self) -> f64 {
        self.turn += 1;
        let bytes = self.to.len();
        let first = (self.from.len() - bytes) / PLACES * (self.turn * 5 % (PLACES + 1));
        let share = bytes.div_ceil(self.threads).max(1);
        let from = self.from.get(first..first + bytes).unwrap_or_default();
        let began = Instant::now();
        std::thread::scope(|scope| {
            let mut parts = self.to.chunks_mut(share).zip(from.chunks(share)).peekable();
            while let Some((to, from)) = parts.next() {
                // As passes are copied: the last part here.
                match parts.peek() {
                    Some(_) => drop(scope.spawn(|| to.copy_from_slice(from))),
                    None => to.copy_from_slice(from),
                }
            }
        });
        bytes as f64 / began.elapsed().as_secs_f64()
    }
}
