//! Drives that an address gives to a GPU: who makes the offload, what that gets, and what becomes of the file.

mod common;
#[path = "common/offload.rs"]
mod desk;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Host, pattern};
use desk::Desk;
use warprow_dma::{DmaMemory, PAGE};
use warprow_soft_controller::{
    Backing, BackingEngine, Fault, MediaError, OffloadLack, OffloadLackKind, OffloadMaker, OffloadRate, OffloadRequest,
    Offloaded, Rule, SoftController, UriError, register_offloads,
};
use warprow_spec::admin::FormatCdw10;
use warprow_spec::{AdminOpcode, NvmOpcode, Sqe};

/// Passes everything on, and counts what changes data.
#[derive(Debug)]
struct Mirror {
    inner: Arc<dyn Backing>,
    changes: Arc<AtomicU32>,
}

impl Backing for Mirror {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn read(&self, offset: u64, to: &DmaMemory, at: usize, len: usize) -> Result<(), MediaError> {
        self.inner.read(offset, to, at, len)
    }

    fn write(&self, offset: u64, from: &DmaMemory, at: usize, len: usize) -> Result<(), MediaError> {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.inner.write(offset, from, at, len)
    }

    fn zero(&self, offset: u64, len: u64, deallocate: bool) -> Result<(), MediaError> {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.inner.zero(offset, len, deallocate)
    }

    fn flush(&self) -> Result<(), MediaError> {
        self.inner.flush()
    }

    fn wants_whole_commands(&self) -> bool {
        self.inner.wants_whole_commands()
    }

    fn smallest_lba(&self) -> u32 {
        self.inner.smallest_lba()
    }

    // What goes this way is not counted.
    fn engine(&self) -> std::io::Result<Option<Box<dyn BackingEngine>>> {
        self.inner.engine()
    }
}

type Asked = Arc<Mutex<Vec<(u32, String, u32, OffloadRate)>>>;

struct Maker {
    desk: Desk,
    changes: Arc<AtomicU32>,
    asked: Asked,
}

impl OffloadMaker for Maker {
    fn make(&self, request: OffloadRequest) -> Result<Offloaded, OffloadLack> {
        let OffloadRequest { gpu, uri, backing, lba_bytes, rate } = request;
        self.asked.lock().unwrap().push((gpu, uri, lba_bytes, rate));
        if gpu == 7 {
            return Err(OffloadLack { kind: OffloadLackKind::NoSuchGpu, text: "there is no GPU 7".to_owned() });
        }
        let offload = self.desk.offload(backing.clone());
        Ok(Offloaded { backing: Arc::new(Mirror { inner: backing, changes: self.changes.clone() }), offload })
    }
}

/// One test: what is registered holds for the process, and before that there is nothing.
#[test]
fn addresses_get_their_offload_from_whoever_was_registered_first() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.img").display().to_string();
    let sidecar = format!("{path}.nvme.toml");
    let lack = |uri: &str| match SoftController::open(uri).unwrap_err() {
        error @ UriError::Offload { .. } => {
            let text = error.to_string();
            let UriError::Offload { uri: named, lack } = error else { unreachable!("it was one") };
            assert_eq!((named.as_str(), text), (uri, format!("{uri}: {lack}")));
            lack.kind
        }
        other => panic!("{uri}: {other}"),
    };
    let uri = format!("emulated:{path},gpu=0,size=1M");
    assert_eq!(lack(&uri), OffloadLackKind::NotInProgram);
    let text = SoftController::open(&uri).unwrap_err().to_string();
    assert_eq!(
        text,
        format!(
            "{uri}: this program cannot have a GPU play a drive: it has to call warprow_gpu_drive::register() before it \
             opens one; leave gpu= out: the file is the same drive without it"
        )
    );
    assert!(!Path::new(&path).exists() && !Path::new(&sidecar).exists(), "nothing was made");

    let desk = Desk::default();
    let changes = Arc::new(AtomicU32::new(0));
    let asked = Asked::default();
    register_offloads(Box::new(Maker { desk: desk.clone(), changes: changes.clone(), asked: asked.clone() }));
    register_offloads(Box::new(Maker { desk: Desk::default(), changes: Arc::default(), asked: Arc::default() }));

    // What was made for a drive that cannot be opened goes again, and what was there stays.
    assert_eq!(lack(&format!("emulated:{path},gpu=7,size=1M")), OffloadLackKind::NoSuchGpu);
    assert!(!Path::new(&path).exists() && !Path::new(&sidecar).exists());
    fs::write(&path, "").unwrap();
    assert_eq!(lack(&format!("emulated:{path},gpu=7,size=1M")), OffloadLackKind::NoSuchGpu);
    assert!(fs::metadata(&path).unwrap().len() == 0 && !Path::new(&sidecar).exists());

    for (properties, rate) in [
        ("size=1M", OffloadRate::default()),
        (
            "iops=2e6,latency=20us,sharers=4",
            OffloadRate { reads_per_second: Some(0.5e6), latency: Duration::from_micros(20), ..OffloadRate::default() },
        ),
        (
            "profile=gen5-tlc,direct=1",
            OffloadRate {
                reads_per_second: Some(3.3e6),
                reads_4k_per_second: Some(3.3e6),
                bytes_per_second: Some(14e9),
                latency: Duration::from_micros(60),
            },
        ),
    ] {
        let uri = format!("emulated:{path},gpu=2,{properties}");
        changes.store(0, Ordering::SeqCst);
        let mut host = Host::new(SoftController::open(&uri).unwrap(), false);
        assert_eq!(asked.lock().unwrap().last(), Some(&(2, uri.clone(), 512, rate)));
        host.enable();
        host.create_pair(1, 16);
        let page = host.buffer(PAGE);
        page.memory.write(0, &pattern(3, PAGE));
        // By the worker in the way that it has while rules are armed: with direct=1 by an engine, if there were one.
        let rule = host.drive.faults().inject(Rule::new(Fault::Drop).io(NvmOpcode::FLUSH));
        host.write(8, 8, page.iova);
        host.drive.faults().remove(rule);
        page.memory.fill(0, PAGE, 0);
        host.read(8, 8, page.iova);
        assert_eq!(page.bytes(0, PAGE), pattern(3, PAGE));
        // The offload has read though there is a profile, and the write went through the backing that came with it.
        let zeroes = Sqe { cdw12: 7, ..Sqe::new(NvmOpcode::WRITE_ZEROES.0, 1).with_slba(8) };
        assert!(host.io(zeroes).status().is_success());
        host.read(8, 8, page.iova);
        assert_eq!(page.bytes(0, PAGE), vec![0; PAGE], "{uri}");
        let format = Sqe { cdw10: FormatCdw10::new().into_bits(), ..Sqe::new(AdminOpcode::FORMAT_NVM.0, 1) };
        assert!(host.admin(format).status().is_success());
        assert_eq!(changes.load(Ordering::SeqCst), 3, "{uri}");
        // A turn is counted when it has ended; whoever takes the locks has waited for that.
        let _ = host.drive.dma_faults();
        let counts = host.drive.offload_counts().unwrap();
        assert_eq!((counts.offload_commands, counts.worker_commands), (2, 2), "{uri}");
        host.disable();
    }
    assert_eq!(lack(&format!("emulated:{path},gpu=7")), OffloadLackKind::NoSuchGpu);
    assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 20);
    assert!(Path::new(&sidecar).exists());
    assert_eq!(SoftController::open(&format!("emulated:{path}")).unwrap().offload_counts(), None);
}
