//! What drives are made of.

use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::ensure;
use warprow_layout::{DType, FormatOptions, TableSpec};
use warprow_soft_controller::TimingProfile;
use warprow_store::{Device, LoadOptions, OpenOptions, Store, TableLoad};
use warprow_workload::rival::{PageCaching, RivalTable};

use super::{Drives, SsdSetup, TABLE};
use crate::fixtures::{Fixture, FixtureTable, Media};
use crate::{Cores, Scratch};

/// What drives are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Medium {
    /// No file. Drives permute completions, delay one in 10,000 by 100 us, and may have the timing of a real one.
    Emulated(Media),
    /// A file each in a directory, read through the page cache or past it, in order and as fast as it goes: what io_uring reads too.
    Files(PageCaching, PathBuf),
}

impl Medium {
    /// What it is called.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Emulated(Media::Ram) => "ram",
            Self::Emulated(Media::Computed) => "computed",
            Self::Emulated(Media::Played) => "played",
            Self::Files(PageCaching::Cached, _) => "cached",
            Self::Files(PageCaching::Direct, _) => "direct",
        }
    }
}

/// Drives with the table on them.
pub(super) struct Laid {
    pub store: Store,
    pub drives: Drives,
    /// Where rows lie in files, for those who read them by other means.
    pub target: Option<RivalTable>,
    /// Whether each drive's thread has a processor of its own.
    pub pinned: bool,
    /// Gone with the last who has them open.
    _files: Vec<Scratch>,
}

/// `number` drives with the setup's table.
pub(super) fn lay(setup: &SsdSetup, profile: TimingProfile, number: u32) -> anyhow::Result<Laid> {
    let table = FixtureTable::new(TABLE, setup.content());
    let cores = Cores::each(number as usize);
    let (cores, pinned) = (cores.as_ref(), cores.is_some());
    match &setup.medium {
        Medium::Emulated(media) => {
            let SsdSetup { lba, room, spread, player, .. } = *setup;
            let fixture =
                Fixture { drives: number, media: *media, disorder: true, profile, lba, room, spread, gpu: player };
            let (store, drives) = fixture.with_drives(&[table], cores)?;
            Ok(Laid { store, drives: Drives::new(drives), target: None, pinned, _files: Vec::new() })
        }
        Medium::Files(caching, directory) => {
            ensure!(profile == TimingProfile::None, "files take the time that they take: without a profile");
            let bytes = table.bytes();
            let each = (bytes / u64::from(number) + (bytes >> 4) + (128 << 20)).next_multiple_of(1 << 20);
            let file = |_| Scratch::new(directory, each);
            let files = (0..number).map(file).collect::<anyhow::Result<Vec<_>>>()?;
            let lba = files.iter().map(|file| file.smallest_lba(*caching)).collect::<anyhow::Result<Vec<_>>>()?;
            let lba = lba.into_iter().max().unwrap_or(512);
            let drive = |(index, file): (usize, &Scratch)| file.drive(index, *caching, lba, cores);
            let drives = files.iter().enumerate().map(drive).collect::<anyhow::Result<Vec<_>>>()?;
            let devices: Vec<Device> = drives.iter().map(|drive| Device::new(drive.clone(), 1)).collect();
            let store = Store::create(&devices, &FormatOptions::default(), &OpenOptions::default())?;
            let spec = TableSpec::new(TABLE, setup.rows(), setup.dim, DType::F32);
            let load = TableLoad::new(&spec, &table.content).with_random_access();
            store.load("bench", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
            let (generation, index) = store.generation(TABLE)?;
            let paths: Vec<PathBuf> = files.iter().map(Scratch::path).collect();
            let target = RivalTable::new(&generation, index, None, &paths, *caching)?;
            if *caching == PageCaching::Cached {
                target.warm()?;
            }
            Ok(Laid { store, drives: Drives::new(drives), target: Some(target), pinned, _files: files })
        }
    }
}
