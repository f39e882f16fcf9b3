//! Stores that several processes have open at once: any number for reading, or one for writing; and what each of them is told.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use warprow_layout::{DType, RowSource, TableSpec, VolumeError};
use warprow_lookup::{Batch, Feature, HostExecutor, HostOptions, Output, OutputRows, PlanOptions};
use warprow_soft_controller::UriError;
use warprow_store::{
    CreateDrive, Device, DriveAddress, FormatConsent, FormatProposal, FormatSettings, LoadOptions, OpenOptions, Store,
    StoreError, TableLoad,
};

/// Tells another process, which is this test's program too, which drives to read.
const DRIVES: &str = "WARPROW_TEST_SHARED_DRIVES";
const ROWS: u64 = 3000;
const DIM: usize = 24;

fn row(id: u64) -> Vec<f32> {
    (0..DIM as u64).map(|i| (id * 31 + i) as f32).collect()
}

fn addresses(drives: &str) -> Vec<DriveAddress> {
    drives.split(';').map(|drive| drive.parse().unwrap()).collect()
}

fn open(drives: &str, options: &OpenOptions) -> Result<Store, StoreError> {
    let mut devices = Vec::new();
    for address in addresses(drives) {
        devices.push(Device::open_beside(&devices, &address.for_access(options.access), CreateDrive::Never)?);
    }
    Store::open(&devices, options)
}

fn reading(drives: &str) -> Result<Store, StoreError> {
    open(drives, &OpenOptions::default().with_read_only())
}

fn writing(drives: &str) -> Result<Store, StoreError> {
    open(drives, &OpenOptions::default())
}

/// Looks every row up, and compares it.
fn compare_all(store: &Store) {
    let host = HostExecutor::attach(store, HostOptions::default().with_dram_bytes(4096)).unwrap();
    let plan = host.plan(&[Feature::new("f", "t")], PlanOptions::default()).unwrap();
    let mut slot = plan.slot().unwrap();
    let ids: Vec<i64> = (0..ROWS as i64).collect();
    for ids in ids.chunks(500) {
        let mut rows = vec![0.0; ids.len() * DIM];
        let output = &mut Output::new(OutputRows::F32(&mut rows), DIM);
        slot.lookup(&Batch::new(ids, ids.len()), output).unwrap();
        for (&id, found) in ids.iter().zip(rows.chunks(DIM)) {
            assert_eq!(found, row(id as u64), "row {id}");
        }
    }
}

/// Two drives in a folder, and a store on them that holds a table.
struct Shared {
    folder: tempfile::TempDir,
    drives: String,
}

impl Shared {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let drive = |name: &str| format!("emulated:{}?size=32M", folder.path().join(name).display());
        let drives = [drive("a.drive"), drive("b.drive")].join(";");
        let devices: Vec<Device> =
            addresses(&drives).iter().map(|it| Device::open(it, CreateDrive::IfMissing).unwrap()).collect();
        let proposal = FormatProposal::new(&devices, FormatSettings::default()).unwrap();
        let store = proposal.run(&FormatConsent::None, &mut |_, _| {}).unwrap();
        let bytes: Vec<u8> = (0..ROWS).flat_map(row).flat_map(f32::to_le_bytes).collect();
        let (spec, source) = (TableSpec::new("t", ROWS, DIM as u32, DType::F32), &bytes[..]);
        let source: &dyn RowSource = &source;
        let load = [TableLoad::new(&spec, &source)];
        store.load("m", &load, &LoadOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
        Self { folder, drives }
    }

    /// Every file in the folder, with its content and the time of its last change of any kind.
    fn contents(&self) -> Vec<(PathBuf, Vec<u8>, (i64, i64))> {
        let look = |path: PathBuf| {
            let file = fs::metadata(&path).unwrap();
            let bytes = fs::read(&path).unwrap();
            (path, bytes, (file.ctime(), file.ctime_nsec()))
        };
        let mut all: Vec<_> = fs::read_dir(&self.folder).unwrap().map(|entry| look(entry.unwrap().path())).collect();
        all.sort();
        all
    }

    /// Another process that has the store open for reading and has compared every row.
    fn reader(&self) -> Reader {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "as_another_process", "--include-ignored", "--nocapture"]).env(DRIVES, &self.drives);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        while !said.contains("READING") {
            assert_ne!(stdout.read_line(&mut said).unwrap(), 0, "it ended: {said}");
        }
        Reader { child, _stdout: stdout }
    }
}

struct Reader {
    child: Child,
    /// What it goes on to print has somewhere to go.
    _stdout: BufReader<ChildStdout>,
}

impl Reader {
    /// Lets it compare all rows once more, close the store, and end.
    fn end(mut self) {
        self.child.stdin.take().unwrap().write_all(b"end\n").unwrap();
        assert!(self.child.wait().unwrap().success());
    }

    /// SIGKILL.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "a process that another test starts"]
fn as_another_process() {
    let Ok(drives) = std::env::var(DRIVES) else { return };
    let store = reading(&drives).unwrap();
    compare_all(&store);
    println!("READING");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    compare_all(&store);
}

/// What whoever is refused is told: which processes read, as far as the system lists locks, and what to do.
#[track_caller]
fn assert_refused(error: &StoreError, readers: &[&Reader]) {
    let StoreError::Emulated(UriError::InUse(found)) = error else { panic!("{error}") };
    if fs::read_to_string("/proc/locks").is_ok_and(|locks| locks.contains(&std::process::id().to_string())) {
        for reader in readers {
            assert!(found.holders.iter().any(|it| it.pid == reader.child.id() && it.shares), "{error}");
        }
    }
    assert!(error.to_string().contains("close it there first"), "{error}");
}

#[test]
fn processes_read_one_store_and_none_writes_meanwhile() {
    let shared = Shared::new();
    let before = shared.contents();
    let (first, second) = (shared.reader(), shared.reader());
    // This process reads too, twice over.
    let (own, again) = (reading(&shared.drives).unwrap(), reading(&shared.drives).unwrap());
    compare_all(&own);
    compare_all(&again);
    assert_refused(&writing(&shared.drives).unwrap_err(), &[&first, &second]);
    // Nothing can be written by who reads, neither by the store nor by a device that was opened so.
    let error = again.update("t", &[1], &[0; DIM * 4]).unwrap_err();
    assert!(matches!(error, StoreError::Volume(VolumeError::ReadOnly { .. })), "{error}");
    drop((own, again));

    // A reader that is killed leaves nothing behind, and those that remain read on.
    first.kill();
    assert_refused(&writing(&shared.drives).unwrap_err(), &[&second]);
    let third = shared.reader();
    second.end();
    third.end();
    assert!(shared.contents() == before, "who reads has changed a file");

    // Then it can be written to, by one process, and nobody reads meanwhile.
    let store = writing(&shared.drives).unwrap();
    for refused in [reading(&shared.drives), writing(&shared.drives)] {
        assert_refused(&refused.unwrap_err(), &[]);
    }
    drop(store);
    shared.reader().end();
}

#[test]
fn devices_for_reading_carry_no_store_that_is_written_to() {
    let shared = Shared::new();
    let before = shared.contents();
    let devices: Vec<Device> = addresses(&shared.drives)
        .into_iter()
        .map(|it| Device::open(&it.for_reading(), CreateDrive::IfMissing).unwrap())
        .collect();
    assert!(devices.iter().all(Device::is_read_only));
    let refused = [
        Store::open(&devices, &OpenOptions::default()).map(drop),
        Store::create(&devices, &Default::default(), &OpenOptions::default()).map(drop),
        Store::propose_repair(&devices, &OpenOptions::default()).map(drop),
        FormatProposal::new(&devices, FormatSettings::default())
            .and_then(|it| it.run(&FormatConsent::Emulated, &mut |_, _| {}))
            .map(drop),
    ];
    for error in refused.map(Result::unwrap_err) {
        assert!(matches!(&error, StoreError::OpenedForReading { drive } if drive.contains("a.drive")), "{error}");
    }
    for options in [OpenOptions::default().with_read_only(), OpenOptions::default().with_degraded()] {
        compare_all(&Store::open(&devices, &options).unwrap());
    }
    drop(devices);
    assert!(shared.contents() == before);
}

#[test]
fn one_drive_is_not_two_members_for_who_reads_either() {
    let shared = Shared::new();
    let link = shared.folder.path().join("link");
    std::os::unix::fs::symlink("a.drive", &link).unwrap();
    let image = Path::new(shared.folder.path()).join("a.drive");
    let error = reading(&format!("emulated:{};emulated:{}", image.display(), link.display())).unwrap_err();
    assert!(matches!(&error, StoreError::OpenedTwice { drive } if drive.ends_with("link")), "{error}");
}
