//! A table's memory, on pages of a chosen size, registered with CUDA.

use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use cudarc::driver::sys;
use memmap2::{Advice, MmapOptions, MmapRaw};
use serde::Serialize;
use warprow_gpu_queues::Gpu;

use crate::gpu::processor::share;
use crate::gpu::stream::cuda;

/// What memory is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PageKind {
    /// Pages of 4 KiB, and no others.
    Small,
    /// Pages of 1 GiB, which somebody has reserved.
    Giant,
    /// Pages of 2 MiB, which somebody has reserved.
    Huge,
    /// What the executor gets where no pages are reserved: of 2 MiB where the system has them, else of 4 KiB.
    Transparent,
}

impl PageKind {
    /// Every kind; the last is always there.
    pub const ALL: [Self; 4] = [Self::Small, Self::Giant, Self::Huge, Self::Transparent];

    /// log₂ of the bytes of a page, of kinds that are reserved.
    const fn reserved_log2(self) -> Option<u8> {
        match self {
            Self::Giant => Some(30),
            Self::Huge => Some(21),
            Self::Small | Self::Transparent => None,
        }
    }

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Small => "pages of 4 KiB",
            Self::Giant => "pages of 1 GiB",
            Self::Huge => "reserved pages of 2 MiB",
            Self::Transparent => "transparent pages of 2 MiB",
        }
    }
}

impl fmt::Display for PageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How pages of a kind are reserved for a table of `size` bytes; none if they need not be.
pub fn hint(kind: PageKind, size: u64) -> Option<String> {
    let shift = kind.reserved_log2()?;
    let (pages, folder) = (size.div_ceil(1 << shift), pool(shift));
    Some(format!("reserve {pages} of them: echo {pages} > {folder}/nr_hugepages"))
}

fn pool(shift: u8) -> String {
    format!("/sys/kernel/mm/hugepages/hugepages-{}kB", (1u64 << shift) >> 10)
}

/// The memory. The GPU alone reads and writes it, but for a byte of each page before.
#[derive(Debug)]
pub(super) struct Pages {
    kind: PageKind,
    // Nobody makes a reference of it.
    map: MmapRaw,
    on_gpu: u64,
    share: Option<f64>,
    register_seconds: f64,
    gpu: Arc<Gpu>,
}

impl Pages {
    /// At least `size` bytes of zeros. An error says what is missing, and how it is had.
    pub(super) fn new(gpu: &Arc<Gpu>, kind: PageKind, size: u64) -> anyhow::Result<Self> {
        let (map, share) = map(kind, size)?;
        let _current = gpu.enter()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        let (host, began) = (map.as_mut_ptr().cast(), Instant::now());
        // SAFETY: the memory is mapped, and stays so: it is kept until it is unregistered.
        cuda("registering memory", unsafe { sys::cuMemHostRegister_v2(host, map.len(), flags) })?;
        let register_seconds = began.elapsed().as_secs_f64();
        let mut pages = Self { kind, map, on_gpu: 0, share, register_seconds, gpu: gpu.clone() };
        // SAFETY: registered with a mapping for devices; an address is stored.
        let code = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut pages.on_gpu, host, 0) };
        cuda("the address of pinned memory", code)?;
        Ok(pages)
    }

    pub(super) fn kind(&self) -> PageKind {
        self.kind
    }

    pub(super) fn on_gpu(&self) -> u64 {
        self.on_gpu
    }

    pub(super) fn share(&self) -> Option<f64> {
        self.share
    }

    pub(super) fn register_seconds(&self) -> f64 {
        self.register_seconds
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let Ok(_current) = self.gpu.enter() else { return };
        // SAFETY: registered once, unregistered once; streams were waited for.
        unsafe { sys::cuMemHostUnregister(self.map.as_mut_ptr().cast()) };
    }
}

/// Pages that are there, touched by all cores; and the share of them that are of that kind.
fn map(kind: PageKind, size: u64) -> anyhow::Result<(MmapRaw, Option<f64>)> {
    let shift = kind.reserved_log2();
    let page = 1u64 << shift.unwrap_or(21);
    let len = usize::try_from(size.next_multiple_of(page))?;
    let map = match (shift, hint(kind, size)) {
        (Some(shift), Some(hint)) => {
            MmapOptions::new().len(len).huge(Some(shift)).map_anon().with_context(|| hint.clone())?
        }
        _ => {
            let map = MmapOptions::new().len(len).map_anon()?;
            // A system that has no such pages may refuse either.
            let _ = map.advise(if kind == PageKind::Small { Advice::NoHugePage } else { Advice::HugePage });
            map
        }
    };
    let map = MmapRaw::from(map);
    let base = map.as_mut_ptr().expose_provenance();
    share(len / 4096, 1 << 14, |part| {
        for at in part {
            // SAFETY: a byte of a page of the map, which no other thread touches.
            unsafe { ptr::with_exposed_provenance_mut::<u8>(base + at * 4096).write_volatile(0) };
        }
    });
    let share = match shift {
        Some(_) => Some(1.0),
        None => {
            let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
            let huge = transparent(&smaps, base as u64, len as u64).map(|bytes| bytes as f64 / len as f64);
            huge.map(|huge| if kind == PageKind::Small { 1.0 - huge } else { huge })
        }
    };
    Ok((map, share))
}

/// Bytes of transparent huge pages in `len` bytes at `base`, by /proc/self/smaps. The system may have cut the memory, or merged a neighbour with
/// it, whose pages count here too.
fn transparent(smaps: &str, base: u64, len: u64) -> Option<u64> {
    let (mut inside, mut bytes) = (false, None);
    for line in smaps.lines() {
        let address = |text: &str| u64::from_str_radix(text, 16).ok();
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        if let Some((from, to)) = range.and_then(|(from, to)| address(from).zip(address(to))) {
            inside = from < base + len && base < to;
        } else if let Some(rest) = line.strip_prefix("AnonHugePages:").filter(|_| inside) {
            let kib = rest.trim().strip_suffix(" kB")?.parse::<u64>().ok()?;
            bytes = Some(bytes.unwrap_or(0) + kib * 1024);
        }
    }
    bytes.map(|bytes| bytes.min(len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_says_how_it_is_had() {
        let hint = |kind| hint(kind, (16 << 30) + 1);
        let giant = hint(PageKind::Giant).unwrap();
        assert!(giant.contains("echo 17 > /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages"), "{giant}");
        assert!(hint(PageKind::Huge).unwrap().contains("echo 8193 > /sys/kernel/mm/hugepages/hugepages-2048kB/"));
        assert_eq!((hint(PageKind::Small), hint(PageKind::Transparent)), (None, None));
        // 8 TiB of them are nowhere.
        let missing = map(PageKind::Giant, 8 << 40).unwrap_err();
        assert!(format!("{missing:#}").contains("echo 8192 >"), "{missing:#}");
    }

    #[test]
    fn small_pages_are_small_and_touched() {
        let (map, share) = map(PageKind::Small, 5 << 20).unwrap();
        assert_eq!(map.len(), 6 << 20, "whole pages of 2 MiB, for every kind");
        assert!(share.is_none_or(|share| share == 1.0), "{share:?}");
    }

    #[test]
    fn transparent_pages_are_counted_where_the_memory_lies() {
        let smaps = "7f0000000000-7f0000400000 rw-p 00000000 00:00 0 \nSize: 4096 kB\nAnonHugePages:      2048 kB\nVmFlags: rd wr\n\
                     7f0000800000-7f0000a00000 rw-p 00000000 00:00 0 [heap]\nAnonHugePages:      2048 kB\n";
        let of = |base, len| transparent(smaps, base, len);
        assert_eq!(of(0x7f00_0000_0000, 4 << 20), Some(2 << 20));
        assert_eq!(of(0x7f00_0000_0000, 10 << 20), Some(4 << 20));
        assert_eq!(of(0x7f00_0020_0000, 1 << 20), Some(1 << 20), "no more than it has");
        assert_eq!(of(0x7e00_0000_0000, 4 << 20), None);
        assert_eq!(transparent("", 0, 1), None);
    }
}
