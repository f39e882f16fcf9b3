//! Reads that wait for a disk are announced to it together; reads that do not wait are not announced.

mod common;

use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Host, pattern, stepped};
use warprow_dma::{DmaMemory, PAGE};
use warprow_soft_controller::{
    Backing, ControllerBuilder, Fault, FileBacking, MediaError, Namespace, RamBacking, Rule, SoftController,
};
use warprow_spec::NvmOpcode;

const DEPTH: u32 = 40;

/// What a backing was told, by LBA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    WillNeed(u64),
    Read(u64),
}

/// Memory that notes what it is told.
#[derive(Debug)]
struct Noting {
    ram: RamBacking,
    told: Arc<Mutex<Vec<Told>>>,
}

impl Noting {
    fn note(&self, told: Told) {
        self.told.lock().unwrap().push(told);
    }
}

impl Backing for Noting {
    fn size(&self) -> u64 {
        self.ram.size()
    }
    fn read(&self, offset: u64, to: &DmaMemory, at: usize, len: usize) -> Result<(), MediaError> {
        self.note(Told::Read(offset / 512));
        self.ram.read(offset, to, at, len)
    }
    fn will_need(&self, offset: u64, len: usize) {
        assert_eq!(len, 512);
        self.note(Told::WillNeed(offset / 512));
    }
    fn depth(&self) -> u32 {
        DEPTH
    }
    fn write(&self, offset: u64, from: &DmaMemory, at: usize, len: usize) -> Result<(), MediaError> {
        self.ram.write(offset, from, at, len)
    }
    fn zero(&self, offset: u64, len: u64, deallocate: bool) -> Result<(), MediaError> {
        self.ram.zero(offset, len, deallocate)
    }
    fn flush(&self) -> Result<(), MediaError> {
        self.ram.flush()
    }
}

fn noting(builder: ControllerBuilder) -> (Host, Arc<Mutex<Vec<Told>>>) {
    let told = Arc::default();
    let backing = Noting { ram: RamBacking::new(1 << 20).unwrap(), told: Arc::clone(&told) };
    let mut host = Host::with_queue(builder.namespace(Namespace::new(backing)), 512);
    let page = host.buffer(PAGE);
    page.memory.write(0, &pattern(1, PAGE));
    (0..256).for_each(|slba| host.write(slba * 8, 8, page.iova));
    (host, told)
}

/// Reads LBAs with one doorbell, and compares each with what was written.
fn read_all(host: &mut Host, lbas: std::ops::Range<u64>) {
    let data = host.buffer(256 * 512);
    let at = |lba: u64| (lba - lbas.start) * 512;
    let read = |lba| Host::rw(NvmOpcode::READ, 1, lba, 1, data.iova + at(lba));
    let cids: Vec<u16> = lbas.clone().map(|lba| host.push(1, read(lba))).collect();
    host.ring(1);
    let done: Vec<_> = cids.into_iter().map(|cid| host.completion(1, cid)).collect();
    assert!(done.iter().all(|cqe| cqe.status().is_success()));
    for lba in lbas.clone() {
        assert_eq!(data.bytes(at(lba) as usize, 512), pattern(1, PAGE)[(lba % 8) as usize * 512..][..512], "{lba}");
    }
}

/// Every read was announced once, before it was executed, and so many at once, but no more.
fn check(told: &[Told], lbas: std::ops::Range<u64>, most: usize) {
    let mut announced = Vec::new();
    let mut read = Vec::new();
    let mut ahead = 0;
    for told in told {
        match *told {
            Told::WillNeed(lba) => announced.push(lba),
            Told::Read(lba) => {
                assert!(announced.contains(&lba), "{lba} was read, and not announced");
                read.push(lba);
            }
        }
        ahead = ahead.max(announced.len() - read.len());
    }
    assert_eq!(announced, lbas.clone().collect::<Vec<_>>(), "each once, in their order");
    read.sort_unstable();
    assert_eq!(read, lbas.collect::<Vec<_>>());
    assert_eq!(ahead, most, "under way at once");
}

#[test]
fn cold_reads_are_announced_up_to_the_depth() {
    // Commands that are executed as they are fetched, more than an arbitration burst of them.
    let (mut host, told) = noting(stepped());
    told.lock().unwrap().clear();
    read_all(&mut host, 0..100);
    check(&told.lock().unwrap(), 0..100, DEPTH as usize);
    // And those that are held, for faults or for their time.
    for builder in [stepped().permute(), stepped().jitter(Duration::from_micros(5))] {
        let (mut host, told) = noting(builder.seed(3));
        told.lock().unwrap().clear();
        read_all(&mut host, 100..150);
        let told = told.lock().unwrap();
        let first = told.iter().position(|told| matches!(told, Told::Read(_))).unwrap();
        assert!(first as u32 >= DEPTH.min(32), "{first} were announced before one was read");
    }
    let (mut host, told) = noting(stepped());
    host.drive.faults().inject(Rule::new(Fault::Delay(Duration::from_micros(50))).io(NvmOpcode::READ).always());
    told.lock().unwrap().clear();
    read_all(&mut host, 0..30);
    check(&told.lock().unwrap(), 0..30, 30);
}

#[test]
fn reads_that_no_disk_is_asked_for_are_soon_not_announced() {
    // On a thread of its own, which has read nothing from a disk.
    std::thread::spawn(|| {
        let (mut host, told) = noting(stepped());
        (0..3).for_each(|_| read_all(&mut host, 0..200));
        told.lock().unwrap().clear();
        read_all(&mut host, 0..200);
        let told = told.lock().unwrap();
        assert!(told.iter().all(|told| matches!(told, Told::Read(_))), "{told:?}");
        assert_eq!(told.len(), 200);
    })
    .join()
    .unwrap();
}

#[test]
fn a_file_whose_pages_are_gone_is_read_right() {
    let content = pattern(7, 4 << 20);
    let file = tempfile::tempfile_in("/var/tmp").or_else(|_| tempfile::tempfile()).unwrap();
    file.write_all_at(&content, 0).unwrap();
    for depth in [1, 8, 256] {
        file.sync_all().unwrap();
        nix::fcntl::posix_fadvise(&file, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        let backing = FileBacking::new(file.try_clone().unwrap()).unwrap().depth(depth);
        let drive = SoftController::builder().namespace(Namespace::new(backing)).build().unwrap();
        let mut host = Host::new(drive, false);
        host.enable();
        host.create_pair(1, 512);
        let data = host.buffer(256 * 512);
        let lba = |i: u64| i * 2_654_435_761 % 8192;
        let read = |i| Host::rw(NvmOpcode::READ, 1, lba(i), 1, data.iova + i * 512);
        let cids: Vec<u16> = (0..256).map(|i| host.push(1, read(i))).collect();
        host.ring(1);
        assert!(cids.into_iter().all(|cid| host.completion(1, cid).status().is_success()));
        for i in 0..256 {
            let wanted = &content[lba(i) as usize * 512..][..512];
            assert!(data.bytes(i as usize * 512, 512) == wanted, "depth {depth}: LBA {}", lba(i));
        }
    }
}
