//! Drives in memory that record what is done to them, and models to load.
#![allow(dead_code, unreachable_pub)]

pub mod cuts;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use warprow_layout::{
    DType, Drive, DriveError, FormatOptions, Generation, GenerationSpec, OpenedVolume, Ranks, RowSource, StoreAccess,
    TableSpec, Transaction, Volume, format, open, row_crc,
};

/// The content of a drive: LBAs that were written. Others read as zeros.
pub type Image = HashMap<u64, Arc<[u8]>>;

/// What was done to the drives of a test, in order.
#[derive(Debug, Clone)]
pub enum Op {
    Write {
        drive: usize,
        lba: u64,
        data: Arc<[u8]>,
    },
    Flush {
        drive: usize,
    },
    /// Something was acknowledged: the number says what.
    Mark(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub lba_size: u32,
    pub bytes: u64,
    pub max_transfer: usize,
}

impl Shape {
    pub fn lba_count(&self) -> u64 {
        self.bytes / u64::from(self.lba_size)
    }

    pub fn units(&self) -> u64 {
        self.bytes / 4096
    }
}

#[derive(Clone)]
pub struct MemoryDrive {
    pub name: String,
    pub shape: Shape,
    pub index: usize,
    pub image: Arc<Mutex<Image>>,
    pub log: Arc<Mutex<Vec<Op>>>,
    pub hook: Arc<Mutex<Option<Hook>>>,
}

/// What a drive is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    Read { lba: u64, lbas: u64 },
    Write { lba: u64 },
    Flush,
}

/// What comes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Done,
    Failed,
    /// The access is done, and reported as failed.
    Lost,
}

impl From<bool> for Answer {
    fn from(done: bool) -> Self {
        if done { Self::Done } else { Self::Failed }
    }
}

/// Called before anything is done.
pub type Hook = Arc<dyn Fn(Asked) -> Answer + Send + Sync>;

impl Drive for MemoryDrive {
    fn name(&self) -> &str {
        &self.name
    }

    fn lba_size(&self) -> u32 {
        self.shape.lba_size
    }

    fn lba_count(&self) -> u64 {
        self.shape.lba_count()
    }

    fn max_transfer(&self) -> usize {
        self.shape.max_transfer
    }

    fn read(&self, lba: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        self.check("read", lba, buf.len())?;
        let answer = self.ask(Asked::Read { lba, lbas: (buf.len() / self.shape.lba_size as usize) as u64 });
        if answer != Answer::Done {
            return self.failed("read");
        }
        let image = self.image.lock().unwrap();
        for (lba, out) in (lba..).zip(buf.chunks_exact_mut(self.shape.lba_size as usize)) {
            match image.get(&lba) {
                Some(data) => out.copy_from_slice(data),
                None => out.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, lba: u64, data: &[u8]) -> Result<(), DriveError> {
        self.check("write", lba, data.len())?;
        let answer = self.ask(Asked::Write { lba });
        if answer != Answer::Failed {
            put(&mut self.image.lock().unwrap(), self.shape.lba_size, lba, data);
            self.log.lock().unwrap().push(Op::Write { drive: self.index, lba, data: data.into() });
        }
        if answer == Answer::Done { Ok(()) } else { self.failed("write") }
    }

    fn flush(&self) -> Result<(), DriveError> {
        let answer = self.ask(Asked::Flush);
        if answer != Answer::Failed {
            self.log.lock().unwrap().push(Op::Flush { drive: self.index });
        }
        if answer == Answer::Done { Ok(()) } else { self.failed("flush") }
    }
}

impl MemoryDrive {
    /// Has `hook` called from now on.
    pub fn hook<A: Into<Answer>>(&self, hook: impl Fn(Asked) -> A + Send + Sync + 'static) {
        *self.hook.lock().unwrap() = Some(Arc::new(move |asked| hook(asked).into()));
    }

    pub fn unhook(&self) {
        *self.hook.lock().unwrap() = None;
    }

    fn ask(&self, asked: Asked) -> Answer {
        let hook = self.hook.lock().unwrap().clone();
        hook.map_or(Answer::Done, |hook| hook(asked))
    }

    fn failed(&self, what: &str) -> Result<(), DriveError> {
        Err(DriveError::new(&self.name, what, "as the test wants"))
    }

    /// The chunk of 1 MiB that has an LBA of a store that has `first` units before its chunks.
    pub fn chunk_of(&self, lba: u64, first: u64) -> Option<u32> {
        let unit = lba / u64::from(4096 / self.shape.lba_size);
        let tail = unit >= self.shape.units() - 2;
        Some((unit.checked_sub(first).filter(|_| !tail)? / 256) as u32)
    }

    fn check(&self, what: &str, lba: u64, bytes: usize) -> Result<(), DriveError> {
        let lbas = (bytes / self.shape.lba_size as usize) as u64;
        let whole = bytes > 0 && bytes.is_multiple_of(self.shape.lba_size as usize) && bytes <= self.shape.max_transfer;
        if !whole || lba.checked_add(lbas).is_none_or(|end| end > self.lba_count()) {
            return Err(DriveError::new(&self.name, format!("{what} of {bytes} bytes at LBA {lba}"), "out of range"));
        }
        Ok(())
    }

    /// Overwrites a 4 KiB unit behind the layout's back.
    pub fn set_unit(&self, unit: u64, data: &[u8]) {
        put(&mut self.image.lock().unwrap(), self.shape.lba_size, unit * u64::from(4096 / self.shape.lba_size), data);
    }

    pub fn unit(&self, unit: u64) -> Vec<u8> {
        let mut data = vec![0; 4096];
        let per_unit = u64::from(4096 / self.shape.lba_size);
        self.read(unit * per_unit, &mut data).unwrap();
        data
    }
}

pub fn put(image: &mut Image, lba_size: u32, lba: u64, data: &[u8]) {
    for (lba, data) in (lba..).zip(data.chunks_exact(lba_size as usize)) {
        image.insert(lba, data.into());
    }
}

/// The drives of a test, with one log.
pub struct Fixture {
    pub drives: Vec<MemoryDrive>,
    pub log: Arc<Mutex<Vec<Op>>>,
}

impl Fixture {
    pub fn new(shapes: &[Shape]) -> Self {
        Self::with_images(shapes, vec![Image::new(); shapes.len()])
    }

    pub fn with_images(shapes: &[Shape], images: Vec<Image>) -> Self {
        let log = Arc::new(Mutex::new(Vec::new()));
        let drive = |(index, (&shape, image)): (usize, (&Shape, Image))| MemoryDrive {
            name: format!("memory:{index}"),
            shape,
            index,
            image: Arc::new(Mutex::new(image)),
            log: log.clone(),
            hook: Arc::default(),
        };
        Self { drives: shapes.iter().zip(images).enumerate().map(drive).collect(), log }
    }

    pub fn images(&self) -> Vec<Image> {
        self.drives.iter().map(|drive| drive.image.lock().unwrap().clone()).collect()
    }

    pub fn mark(&self, what: u64) {
        self.log.lock().unwrap().push(Op::Mark(what));
    }

    pub fn take_log(&self) -> Vec<Op> {
        std::mem::take(&mut self.log.lock().unwrap())
    }

    pub fn format(&self, seed: u128) {
        let store = Some(uuid::Uuid::from_u128(seed));
        let options = FormatOptions { chunk_size: Some(1 << 20), store, overwrite: true, ..FormatOptions::default() };
        format(&self.drives, &options).unwrap();
    }

    pub fn open(&self) -> OpenedVolume {
        open(self.drives.clone(), StoreAccess::ReadWrite).unwrap()
    }
}

pub fn small(lba_size: u32, mebibytes: u64) -> Shape {
    Shape { lba_size, bytes: mebibytes << 20, max_transfer: 128 << 10 }
}

/// Bytes of a model version: any byte of any row can be computed.
pub struct Rows {
    pub version: u64,
    pub table: usize,
}

impl RowSource for Rows {
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> std::io::Result<()> {
        for (id, row) in (first..).zip(rows.chunks_exact_mut(row_bytes)) {
            let seed = (self.version << 48 | (self.table as u64) << 40 | id).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            fastrand::Rng::with_seed(seed).fill(row);
        }
        Ok(())
    }
}

/// Tables of every kind of packing.
pub fn model() -> GenerationSpec {
    let mut shared = TableSpec::new("shared", 300, 25, DType::F32); // 100 B: five to an LBA of 512
    (shared.permuted, shared.row_crc, shared.hot_rows) = (true, true, 60);
    let mut wide = TableSpec::new("wide", 30, 600, DType::BF16); // 1200 B: three LBAs of 512
    (wide.row_crc, wide.default_row) = (true, Some(vec![7; 1200]));
    let dense = TableSpec::new("dense", 199, 64, DType::I8);
    GenerationSpec { stripe_unit: Some(4096), ..GenerationSpec::new("model", vec![shared, wide, dense]) }
}

pub fn ranks(version: u64, rows: u64) -> Ranks {
    let mut ranks: Vec<u64> = (0..rows).collect();
    fastrand::Rng::with_seed(version).shuffle(&mut ranks);
    Ranks::from_u64(ranks).unwrap()
}

/// Writes all tables of `tx` through `volume`'s drives.
pub fn load(volume: &Volume, tx: &mut Transaction, version: u64) {
    for table in 0..tx.generation().tables.len() {
        let entry = &tx.generation().tables[table];
        let ranks = entry.ranks.map(|_| ranks(version, entry.rows));
        let source = Rows { version, table };
        let loader = tx.loader(table, &source, ranks.as_ref()).unwrap();
        for extent in loader.extents(16 << 10) {
            let mut buf = vec![0xEE; extent.bytes];
            loader.fill(&extent, &mut buf).unwrap();
            volume.drive(extent.drive).unwrap().write(extent.lba, &buf).unwrap();
        }
    }
}

/// Compares every row of a generation with what version `version` has. `Err` says what differs.
pub fn verify(volume: &Volume, generation: &Generation, version: u64) -> Result<(), String> {
    if generation.tables.len() != model().tables.len() {
        return Err(format!("{} tables", generation.tables.len()));
    }
    for (index, table) in generation.tables.iter().enumerate() {
        let fail = |error: String| format!("version {version}, table {}: {error}", table.name);
        let stored = volume.read_ranks(generation, index).map_err(|error| fail(error.to_string()))?;
        let expected = table.ranks.map(|_| ranks(version, table.rows));
        if stored != expected {
            return Err(fail("other ranks".into()));
        }
        let crcs = volume.read_row_crcs(generation, index).map_err(|error| fail(error.to_string()))?;
        let source = Rows { version, table: index };
        let mut row = vec![0; table.row_bytes() as usize];
        let mut want = vec![0; table.row_bytes() as usize];
        for id in 0..table.rows {
            let rank = stored.as_ref().map_or(id, |ranks| ranks.get(id).unwrap());
            volume.read_row(generation, index, rank, &mut row).map_err(|error| fail(error.to_string()))?;
            source.read(id, row.len(), &mut want).map_err(|error| error.to_string())?;
            if row != want {
                return Err(fail(format!("row {id} (rank {rank}) differs")));
            }
            if crcs.as_ref().is_some_and(|crcs| crcs[rank as usize] != row_crc(rank, &row)) {
                return Err(fail(format!("checksum of row {id} differs")));
            }
        }
    }
    Ok(())
}

/// Begins, loads and commits version `version`, which supersedes what there is.
pub fn switch(volume: &Volume, version: u64) -> Arc<Generation> {
    let mut tx = volume.begin(&model()).unwrap();
    load(volume, &mut tx, version);
    volume.generations().iter().for_each(|old| tx.supersede(old.id));
    tx.commit().unwrap()
}
