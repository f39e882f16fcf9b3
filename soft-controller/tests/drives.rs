//! Drives by URI: files that keep their data, their format and their names.

mod common;

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use common::{Host, pattern};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use warprow_dma::PAGE;
use warprow_soft_controller::{DriveUri, ProceduralBacking, SoftController, UriError, in_use};
use warprow_spec::admin::FormatCdw10;
use warprow_spec::identify::{IdentifyController, IdentifyNamespace};
use warprow_spec::{AdminOpcode, FromBytes, NvmOpcode, Sqe, StatusCode};

fn open(uri: &str) -> Host {
    let mut host = Host::new(SoftController::open(uri).unwrap_or_else(|error| panic!("{error}")), false);
    host.enable();
    host.create_pair(1, 64);
    host
}

fn identity(host: &mut Host) -> (String, [u8; 16], u32, u64) {
    let controller = IdentifyController::read_from_bytes(&host.identify(0, 1).unwrap()).unwrap();
    let namespace = IdentifyNamespace::read_from_bytes(&host.identify(1, 0).unwrap()).unwrap();
    let lba = namespace.format().unwrap().lba_bytes().unwrap();
    (controller.serial().to_string(), namespace.nguid, lba, namespace.size_bytes().unwrap())
}

fn path(folder: &tempfile::TempDir) -> String {
    folder.path().join("drive.raw").display().to_string()
}

#[test]
fn a_file_keeps_data_format_and_identity() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    for direct in [0, 1] {
        let _ = fs::remove_file(&path);
        let before = {
            let mut host = open(&format!("emulated:{path}?size=8M&direct={direct}"));
            let before = identity(&mut host);
            assert_eq!((before.2, before.3), (512, 8 << 20));
            let format = Sqe::new(AdminOpcode::FORMAT_NVM.0, 1);
            let cdw10 = FormatCdw10::new().with_lbafl(1).into_bits();
            assert!(host.admin(Sqe { cdw10, ..format }).status().is_success());
            assert_eq!(identity(&mut host).2, 4096);
            let page = host.buffer(PAGE);
            page.memory.write(0, &pattern(3, PAGE));
            host.write(7, 1, page.iova);
            assert!(host.io(Sqe::new(NvmOpcode::FLUSH.0, 1)).status().is_success());
            before
        };
        let mut host = open(&format!("emulated:{path}?direct={direct}"));
        let after = identity(&mut host);
        assert_eq!((&after.0, after.1, after.2), (&before.0, before.1, 4096), "direct={direct}");
        let page = host.buffer(PAGE);
        host.read(7, 1, page.iova);
        assert_eq!(page.bytes(0, PAGE), pattern(3, PAGE));
        drop(host);
        // The file is a plain image.
        let mut stored = vec![0; PAGE];
        fs::File::open(&path).unwrap().read_exact_at(&mut stored, 7 * PAGE as u64).unwrap();
        assert_eq!(stored, pattern(3, PAGE));
    }
}

#[test]
fn a_new_file_is_sparse_and_an_old_one_keeps_its_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    drop(open(&format!("emulated:{path},size=64G,lba=4096")));
    use std::os::unix::fs::MetadataExt;
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!(metadata.len(), 64 << 30);
    assert!(metadata.blocks() < 2048);
    let error = SoftController::open(&format!("emulated:{path}?size=32G")).unwrap_err();
    assert!(matches!(error, UriError::Size { actual: 0x10_0000_0000, .. }), "{error}");
    let error = SoftController::open(&format!("emulated:{path}?lba=512")).unwrap_err();
    assert!(matches!(&error, UriError::Contradicts { given, kept, .. } if given == "512" && kept == "4096"), "{error}");
    drop(open(&format!("emulated:{path}?size=64G&lba=4096")));
}

/// What a process leaves behind that ends while it formats.
#[test]
fn a_format_cut_short_is_finished_when_the_drive_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    // A file that can be sealed: nothing is written to it from then on, and nothing is erased.
    let image = memfd_create(c"drive", MFdFlags::MFD_ALLOW_SEALING).unwrap();
    symlink(format!("/proc/self/fd/{}", image.as_raw_fd()), &path).unwrap();
    let sidecar = || fs::read_to_string(format!("{path}.nvme.toml")).unwrap();
    let mut host = open(&format!("emulated:{path}?size=1M&serial=KEPT"));
    let page = host.buffer(PAGE);
    page.memory.write(0, &pattern(3, PAGE));
    host.write(8, 8, page.iova);
    assert!(!sidecar().contains("formatting"));
    fcntl(&image, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE)).unwrap();
    let cdw10 = FormatCdw10::new().with_lbafl(1).into_bits();
    let format = Sqe { cdw10, ..Sqe::new(AdminOpcode::FORMAT_NVM.0, 1) };
    assert_eq!(host.admin(format).status().code(), StatusCode::WriteFault);
    assert!(sidecar().contains("formatting = true") && sidecar().contains("lba = 4096"), "{}", sidecar());
    // What is partly erased is not shown as if it were data.
    let cqe = host.io(Host::rw(NvmOpcode::READ, 1, 8, 8, page.iova));
    assert_eq!((cqe.status().code(), cqe.status().dnr()), (StatusCode::NamespaceNotReady, true));
    drop(host);
    let left = fs::read(&path).unwrap();
    assert_eq!(left[8 * 512..][..PAGE], pattern(3, PAGE));
    fs::remove_file(&path).unwrap();
    fs::write(&path, left).unwrap();
    let error = SoftController::open(&format!("emulated:{path}?lba=512")).unwrap_err();
    assert!(matches!(error, UriError::Contradicts { property: "lba", .. }), "{error}");
    assert!(sidecar().contains("formatting = true"));
    let mut host = open(&format!("emulated:{path}"));
    let (serial, _, lba, size) = identity(&mut host);
    assert_eq!((serial.as_str(), lba, size), ("KEPT", 4096, 1 << 20));
    let page = host.buffer(PAGE);
    page.memory.fill(0, PAGE, 7);
    host.read(1, 1, page.iova);
    assert_eq!(page.bytes(0, PAGE), vec![0; PAGE]);
    drop(host);
    assert!(!sidecar().contains("formatting"));
    assert_eq!(fs::read(&path).unwrap(), vec![0; 1 << 20]);
}

#[test]
fn a_serial_number_is_not_overridden() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    drop(open(&format!("emulated:{path}?size=1M&serial=ONE")));
    let sidecar = fs::read(format!("{path}.nvme.toml")).unwrap();
    let error = SoftController::open(&format!("emulated:{path}?serial=TWO")).unwrap_err();
    assert!(matches!(error, UriError::Contradicts { property: "serial", .. }), "{error}");
    for hint in ["ONE", "TWO", "leave serial= out", "drive.raw.nvme.toml"] {
        assert!(error.to_string().contains(hint), "{error}");
    }
    assert_eq!(fs::read(format!("{path}.nvme.toml")).unwrap(), sidecar);
    for uri in [format!("emulated:{path}?serial=ONE"), format!("emulated:{path}")] {
        assert_eq!(identity(&mut open(&uri)).0, "ONE");
    }
}

#[test]
fn a_drive_is_opened_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    let first = open(&format!("emulated:{path}?size=1M"));
    let found = in_use(Path::new(&path)).unwrap().unwrap();
    assert_eq!(found.path, fs::canonicalize(&path).unwrap());
    // Where locks are listed, whoever has it is known.
    let listed = fs::read_to_string("/proc/locks").is_ok_and(|locks| locks.contains(&std::process::id().to_string()));
    let pids: Vec<u32> = found.holders.iter().map(|holder| holder.pid).collect();
    assert_eq!(pids, if listed { vec![std::process::id()] } else { vec![] }, "{found:?}");
    for direct in [0, 1] {
        let error = SoftController::open(&format!("emulated:{path}?direct={direct}")).unwrap_err();
        assert!(matches!(&error, UriError::InUse(by) if by.holders == found.holders), "{error}");
    }
    drop(first);
    assert_eq!(in_use(Path::new(&path)).unwrap(), None);
    drop(open(&format!("emulated:{path}")));
}

fn reading(uri: &str) -> Result<Host, UriError> {
    let mut host = Host::new(uri.parse::<DriveUri>().unwrap().for_reading().open()?, false);
    host.enable();
    host.create_pair(1, 64);
    Ok(host)
}

/// Every file of a folder: its name, its bytes, and when it was last changed.
fn contents(folder: &tempfile::TempDir) -> Vec<(String, Vec<u8>, i128)> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let mut all: Vec<_> = entries
        .map(|entry| {
            let changed =
                entry.metadata().map(|file| i128::from(file.ctime()) * 1_000_000_000 + i128::from(file.ctime_nsec()));
            (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap(), changed.unwrap())
        })
        .collect();
    all.sort();
    all
}

#[test]
fn a_drive_is_read_by_several_and_changed_by_none_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    {
        let mut host = open(&format!("emulated:{path}?size=1M"));
        let page = host.buffer(PAGE);
        page.memory.write(0, &pattern(5, PAGE));
        host.write(8, 8, page.iova);
        assert!(host.io(Sqe::new(NvmOpcode::FLUSH.0, 1)).status().is_success());
    }
    // What a kill left while a sidecar was replaced: nobody tidies it up who only reads.
    fs::write(format!("{path}.nvme.toml.new"), "version = ").unwrap();
    let before = contents(&folder);
    let uris = ["", "?direct=1", "?size=1M&workers=2"].map(|end| format!("emulated:{path}{end}"));
    let mut hosts: Vec<Host> =
        uris.iter().map(|uri| reading(uri).unwrap_or_else(|error| panic!("{uri}: {error}"))).collect();
    for (host, uri) in hosts.iter_mut().zip(&uris) {
        let namespace = IdentifyNamespace::read_from_bytes(&host.identify(1, 0).unwrap()).unwrap();
        assert!(namespace.nsattr.write_protected());
        let page = host.buffer(PAGE);
        host.read(8, 8, page.iova);
        assert_eq!(page.bytes(0, PAGE), pattern(5, PAGE), "{uri}");
        // Dataset Management: one range, to be deallocated; it names all of the drive.
        page.memory.fill(0, PAGE, 0);
        page.memory.write(4, &2048u32.to_le_bytes());
        let of = |opcode: NvmOpcode, cdw11, cdw12| Sqe {
            prp1: page.iova,
            cdw10: if opcode == NvmOpcode::DATASET_MANAGEMENT { 0 } else { 8 },
            cdw11,
            cdw12,
            ..Sqe::new(opcode.0, 1)
        };
        for sqe in
            [of(NvmOpcode::WRITE, 0, 7), of(NvmOpcode::WRITE_ZEROES, 0, 7), of(NvmOpcode::DATASET_MANAGEMENT, 4, 0)]
        {
            let status = host.io(sqe).status();
            assert_eq!(status.code(), StatusCode::NamespaceWriteProtected, "{uri}: {sqe:?}");
            assert!(status.dnr(), "trying again does not help");
        }
        assert_eq!(
            host.admin(Sqe::new(AdminOpcode::FORMAT_NVM.0, 1)).status().code(),
            StatusCode::NamespaceWriteProtected
        );
        // What changes nothing is done.
        for sqe in [of(NvmOpcode::FLUSH, 0, 0), of(NvmOpcode::DATASET_MANAGEMENT, 0, 0)] {
            assert!(host.io(sqe).status().is_success(), "{uri}: {sqe:?}");
        }
        host.drive.record(true).unwrap();
    }
    assert_eq!(contents(&folder), before);

    // Who writes needs it alone, and is told who reads.
    let error = SoftController::open(&uris[0]).unwrap_err();
    let listed = fs::read_to_string("/proc/locks").is_ok_and(|locks| locks.contains(&std::process::id().to_string()));
    match &error {
        UriError::InUse(found) => {
            assert!(!found.for_reading && found.is_still());
            assert_eq!(
                found.holders.iter().filter(|holder| holder.shares).count(),
                if listed { 3 } else { 0 },
                "{found:?}"
            );
        }
        _ => panic!("{error}"),
    }
    for name in ["drive.raw", "drive.raw.nvme.toml"] {
        assert!(in_use(&folder.path().join(name)).unwrap().is_some(), "{name}");
    }
    drop(hosts);
    let writer = open(&uris[0]);
    let error = reading(&uris[0]).err().unwrap();
    assert!(matches!(&error, UriError::InUse(found) if found.for_reading && found.is_still()), "{error}");
    assert!(
        error.to_string().contains("open for writing; close it there first, or open it there for reading too"),
        "{error}"
    );
    drop(writer);
    reading(&uris[0]).unwrap();
    assert!(!before.iter().any(|(name, ..)| !folder.path().join(name).exists() && name != "drive.raw.nvme.toml.new"));
}

#[test]
fn who_reads_makes_no_drive_and_finishes_no_format() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    let uri = format!("emulated:{path}?size=1M");
    assert!(matches!(reading(&uri).err().unwrap(), UriError::NotThere { .. }));
    assert!(contents(&folder).is_empty());
    fs::write(&path, "").unwrap();
    assert!(matches!(reading(&uri).err().unwrap(), UriError::Size { actual: 0, .. }));
    assert_eq!(contents(&folder).len(), 1);
    drop(open(&uri));
    let sidecar = format!("{path}.nvme.toml");
    let begun = format!("{}formatting = true\n", fs::read_to_string(&sidecar).unwrap());
    fs::write(&sidecar, &begun).unwrap();
    let error = reading(&uri).err().unwrap();
    assert!(matches!(error, UriError::Unfinished { .. }), "{error}");
    assert_eq!(fs::read_to_string(&sidecar).unwrap(), begun);
    drop(open(&uri));
    reading(&uri).unwrap();
    // A file without a sidecar gets none.
    fs::remove_file(&sidecar).unwrap();
    reading(&format!("{uri}&lba=4096")).unwrap().drive.record(true).unwrap();
    assert_eq!(contents(&folder).len(), 1);
}

#[test]
fn a_rate_has_no_more_readers_than_it_is_divided_among() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    drop(open(&format!("emulated:{path}?size=1M")));
    let one = format!("emulated:{path}?profile=p5800x");
    let first = reading(&one).unwrap();
    let listed = fs::read_to_string("/proc/locks").is_ok_and(|locks| locks.contains(&std::process::id().to_string()));
    if listed {
        let error = reading(&one).err().unwrap();
        assert!(matches!(error, UriError::Sharers { open: 2, sharers: 1, .. }), "{error}");
        assert!(
            error.to_string().contains("open for reading 2 times") && error.to_string().contains("give sharers=2"),
            "{error}"
        );
    }
    // Whoever has no rate takes part in none.
    let second = reading(&format!("{one}&sharers=2")).unwrap();
    let third = reading(&format!("emulated:{path}")).unwrap();
    drop((first, second, third));
    reading(&one).unwrap();
}

/// By its own name, through links, and before it is there.
#[test]
fn every_file_that_a_drive_in_use_depends_on_is_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for folder in ["kept", "other"] {
        fs::create_dir(at(folder)).unwrap();
    }
    drop(open(&format!("emulated:{}?size=1M", at("drive").display())));
    // A sidecar that is a link depends on what it leads to.
    fs::rename(at("drive.nvme.toml"), at("kept/toml")).unwrap();
    symlink("kept/toml", at("drive.nvme.toml")).unwrap();
    symlink("../drive", at("other/link")).unwrap();
    symlink("../drive.nvme.toml", at("other/toml")).unwrap();
    fs::write(at("other/file"), "").unwrap();
    fs::write(at("drive.nvme.tom"), "").unwrap();
    nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let depends = ["drive", "drive.nvme.toml", "drive.nvme.toml.new", "kept/toml", "other/link", "other/toml"];
    let free = ["other/file", "drive.nvme.tom", "pipe", "absent", "absent.nvme.toml", "kept", "drive.nvme.toml.old"];
    let uri: DriveUri = format!("emulated:{}", at("drive").display()).parse().unwrap();
    let drive = uri.open().unwrap();
    assert_eq!(uri.files(), ["drive", "drive.nvme.toml.new", "drive.nvme.toml"].map(at));
    for name in depends.iter().chain(&free) {
        let found = in_use(&at(name)).unwrap();
        assert_eq!(found.is_some(), depends.contains(name), "{name}: {found:?}");
    }
    // A sidecar that is replaced stays one.
    drive.record(true).unwrap();
    assert!(at("drive.nvme.toml").symlink_metadata().unwrap().is_file());
    assert!(in_use(&at("drive.nvme.toml")).unwrap().is_some());
    drop(drive);
    for name in depends {
        assert_eq!(in_use(&at(name)).unwrap(), None, "{name}");
    }
}

/// A FIFO would have whoever opens it wait for a writer.
#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let fifo = |name: &str| nix::unistd::mkfifo(&at(name), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let uri = format!("emulated:{}", at("drive").display());
    drop(open(&format!("{uri}?size=1M&lba=4096")));
    let kept = fs::read(at("drive.nvme.toml")).unwrap();
    fs::remove_file(at("drive.nvme.toml")).unwrap();
    let refused = |make: &dyn Fn()| {
        make();
        let error = SoftController::open(&uri).unwrap_err();
        assert!(matches!(&error, UriError::Sidecar { .. }), "{error}");
        assert!(error.to_string().contains("remove that file"), "{error}");
        let _ = fs::remove_file(at("drive.nvme.toml"));
    };
    refused(&|| fifo("drive.nvme.toml"));
    refused(&|| symlink("/dev/zero", at("drive.nvme.toml")).unwrap());
    refused(&|| fs::write(at("drive.nvme.toml"), [0xff, 0xfe]).unwrap());
    refused(&|| fs::write(at("drive.nvme.toml"), vec![b'#'; 1 << 20]).unwrap());
    refused(&|| fs::create_dir(at("drive.nvme.toml")).unwrap());
    fs::remove_dir(at("drive.nvme.toml")).unwrap();
    // What the sidecar is replaced from: a FIFO there is put away, as what a kill left is.
    fs::write(at("drive.nvme.toml"), kept).unwrap();
    fifo("drive.nvme.toml.new");
    let drive = SoftController::open(&uri).unwrap();
    drive.record(true).unwrap();
    assert!(!at("drive.nvme.toml.new").exists());
    drop(drive);
    fifo("pipe");
    let error = SoftController::open(&format!("emulated:{}", at("pipe").display())).unwrap_err();
    assert!(matches!(&error, UriError::Properties { .. }), "{error}");
}

#[test]
fn a_new_drive_is_for_its_user_alone() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mode = |name: &str| fs::metadata(at(name)).unwrap().permissions().mode() & 0o777;
    drop(open(&format!("emulated:{}?size=1M", at("drive").display())));
    assert_eq!((mode("drive"), mode("drive.nvme.toml")), (0o600, 0o600));
    // Whom a drive was opened to may read what lies beside it too, also when that is replaced.
    fs::set_permissions(at("drive"), fs::Permissions::from_mode(0o660)).unwrap();
    SoftController::open(&format!("emulated:{}", at("drive").display())).unwrap().record(true).unwrap();
    assert_eq!((mode("drive"), mode("drive.nvme.toml")), (0o660, 0o660));
}

#[test]
fn an_image_that_is_merely_opened_gets_nothing_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    let first = identity(&mut open(&format!("emulated:{path}")));
    assert_eq!((identity(&mut open(&format!("emulated:{path}"))), first.2), (first.clone(), 512));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    // What it is told to be may not be so. Whoever makes it so has it written down.
    let told = format!("emulated:{path}?lba=4096&serial=TOLD");
    let mut host = open(&told);
    let (serial, uuid, lba, _) = identity(&mut host);
    assert_eq!((serial.as_str(), uuid, lba), ("TOLD", first.1, 4096));
    drop(host);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    assert_eq!(identity(&mut open(&format!("emulated:{path}"))), first);
    let drive = SoftController::open(&told).unwrap();
    drive.record(false).unwrap();
    drop(drive);
    let kept = identity(&mut open(&format!("emulated:{path}")));
    assert_eq!((kept.0.as_str(), kept.1, kept.2), ("TOLD", first.1, 4096));
    assert_eq!(fs::read(&path).unwrap(), vec![7; 1 << 20]);
}

#[test]
fn a_link_has_the_sidecar_of_what_it_leads_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    drop(open(&format!("emulated:{path}?size=1M&lba=4096&serial=REAL")));
    let elsewhere = tempfile::tempdir().unwrap();
    let link = elsewhere.path().join("link").display().to_string();
    symlink(&path, &link).unwrap();
    let mut host = open(&format!("emulated:{link}"));
    assert_eq!((identity(&mut host).0.as_str(), identity(&mut host).2), ("REAL", 4096));
    // A format through the link is known under the drive's own name.
    assert!(host.admin(Sqe::new(AdminOpcode::FORMAT_NVM.0, 1)).status().is_success());
    drop(host);
    assert_eq!(identity(&mut open(&format!("emulated:{path}"))).2, 512);
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 1);
    // One beside the link counts where there is no other.
    fs::rename(format!("{path}.nvme.toml"), format!("{link}.nvme.toml")).unwrap();
    assert_eq!(identity(&mut open(&format!("emulated:{link}"))).0, "REAL");
    assert_ne!(identity(&mut open(&format!("emulated:{path}"))).0, "REAL");
}

#[test]
fn what_is_no_drive_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    let uri = format!("emulated:{path}");
    assert!(matches!(SoftController::open(&uri).unwrap_err(), UriError::NotThere { .. }));
    assert!(!Path::new(&path).exists());
    fs::write(&path, vec![7; 5000]).unwrap();
    assert!(matches!(SoftController::open(&uri).unwrap_err(), UriError::Size { actual: 5000, .. }));
    assert_eq!(fs::read(&path).unwrap(), vec![7; 5000]);
    assert!(SoftController::open(&format!("emulated:{}", folder.path().display())).is_err());
    fs::write(&path, vec![7; 8192]).unwrap();
    for sidecar in
        ["lba = 512", "version = 9\nserial = 'x'\nuuid = '0e8dc1fe-6c9b-4cf8-a1c5-8c4dbb3f5f21'\nlba = 512", "\0"]
    {
        fs::write(format!("{path}.nvme.toml"), sidecar).unwrap();
        let error = SoftController::open(&uri).unwrap_err();
        assert!(matches!(error, UriError::Sidecar { .. }), "{error}");
    }
    fs::remove_file(format!("{path}.nvme.toml")).unwrap();
    let mut host = open(&uri);
    let page = host.buffer(PAGE);
    host.read(0, 8, page.iova);
    assert_eq!(page.bytes(0, PAGE), vec![7; PAGE]);
}

#[test]
fn drives_need_no_file() {
    let mut host = open("emulated:numbers?backing=procedural&size=1T&lba=4096&seed=5&serial=PROC1");
    assert_eq!(identity(&mut host).0, "PROC1");
    let page = host.buffer(PAGE);
    let lba = (1 << 28) - 3;
    host.read(lba, 1, page.iova);
    let want: Vec<u8> = (0..512).flat_map(|i| ProceduralBacking::word(5, lba * 512 + i).to_le_bytes()).collect();
    assert_eq!(page.bytes(0, PAGE), want);
    let mut host = open("emulated:ram,backing=ram,size=1M,workers=2");
    let page = host.buffer(PAGE);
    page.memory.write(0, &pattern(1, PAGE));
    host.write(16, 8, page.iova);
    page.memory.fill(0, PAGE, 0);
    host.read(16, 8, page.iova);
    assert_eq!(page.bytes(0, PAGE), pattern(1, PAGE));
    let mut host = open("emulated:null?backing=null&size=1P".replace("1P", "1024T").as_str());
    let page = host.buffer(PAGE);
    host.read(1 << 40, 8, page.iova);
    for uri in ["emulated:x?backing=ram", "emulated:x?backing=ram&size=1M&direct=1"] {
        assert!(matches!(SoftController::open(uri).unwrap_err(), UriError::Properties { .. }), "{uri}");
    }
}

#[test]
fn a_file_that_is_shortened_fails_commands_and_not_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    for direct in [0, 1] {
        let _ = fs::remove_file(&path);
        let mut host = open(&format!("emulated:{path}?size=1M&direct={direct}"));
        let page = host.buffer(PAGE);
        page.memory.write(0, &pattern(1, PAGE));
        host.write(0, 8, page.iova);
        host.write(1024, 8, page.iova);
        host.read(1024, 8, page.iova);
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_len(1 << 19).unwrap();
        let mut status = |opcode, lba| host.io(Host::rw(opcode, 1, lba, 8, page.iova)).status().code();
        for _ in 0..3 {
            assert_eq!(status(NvmOpcode::READ, 1024), StatusCode::UnrecoveredReadError, "direct={direct}");
            assert_eq!(status(NvmOpcode::WRITE, 2040), StatusCode::WriteFault, "direct={direct}");
        }
        page.memory.fill(0, PAGE, 0);
        host.read(0, 8, page.iova);
        assert_eq!(page.bytes(0, PAGE), pattern(1, PAGE));
        assert_eq!(host.io(Sqe::new(NvmOpcode::FLUSH.0, 1)).status().code(), StatusCode::WriteFault);
        assert_eq!(file.metadata().unwrap().len(), 1 << 19, "nobody made it longer");
    }
}

#[test]
fn every_backing_moves_pieces_that_split_lbas() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    for uri in [
        "emulated:a?backing=ram&size=1M".to_owned(),
        "emulated:a?backing=procedural&size=1M".to_owned(),
        format!("emulated:{path}?size=1M"),
        format!("emulated:{path}?direct=1"),
        format!("emulated:{path}?direct=1&profile=gen5-tlc"),
        format!("emulated:{path}?profile=p5800x"),
    ] {
        let mut host = open(&uri);
        let buffer = host.buffer(3 * PAGE);
        for (turn, offset) in [4u64, 2044, 4092, 0].into_iter().enumerate() {
            let data = pattern(turn as u64, PAGE);
            buffer.memory.write(offset as usize, &data);
            host.write(8 * turn as u64, 8, buffer.iova + offset);
            buffer.memory.fill(0, 3 * PAGE, 0xcc);
            host.read(8 * turn as u64, 8, buffer.iova + offset);
            assert_eq!(buffer.bytes(offset as usize, PAGE), data, "{uri} {offset}");
            assert_eq!(buffer.bytes(offset as usize + PAGE, 16), vec![0xcc; 16]);
        }
        let cqe = host.io(Host::rw(NvmOpcode::READ, 1, 2048, 1, buffer.iova));
        assert_eq!(cqe.status().code(), StatusCode::LbaOutOfRange);
    }
}

/// What a process leaves that is killed while it writes the sidecar, now or in an earlier version.
#[test]
fn what_a_kill_left_of_a_sidecar_goes_when_the_drive_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    drop(open(&format!("emulated:{path}?size=1M&serial=KEPT&lba=4096")));
    let sidecar = format!("{path}.nvme.toml");
    let new = format!("{path}.nvme.toml.new");
    let kept = fs::read_to_string(&sidecar).unwrap();
    for left in [kept.replace("KEPT", "LOST"), kept[..20].to_owned(), String::new()] {
        fs::write(&new, &left).unwrap();
        assert_eq!(identity(&mut open(&format!("emulated:{path}"))).0, "KEPT");
        assert!(!Path::new(&new).exists(), "{left:?}");
        assert_eq!(fs::read_to_string(&sidecar).unwrap(), kept);
    }
    // While it is open, it is its own; what is no beginning of a sidecar is somebody's.
    let drive = open(&format!("emulated:{path}"));
    fs::write(&new, &kept).unwrap();
    assert!(matches!(SoftController::open(&format!("emulated:{path}")), Err(UriError::InUse(_))));
    assert_eq!(fs::read_to_string(&new).unwrap(), kept);
    drop(drive);
    fs::write(&new, "notes").unwrap();
    drop(open(&format!("emulated:{path}")));
    assert_eq!(fs::read_to_string(&new).unwrap(), "notes");
}

/// The lock of a process that has ended, while something still has its open file: io_uring, for a while, after a kill.
#[test]
fn a_lock_that_no_process_is_seen_to_have_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    drop(open(&format!("emulated:{path}?size=1M&serial=KEPT")));
    let file = fs::File::open(&path).unwrap();
    let mut locker = Command::new("flock");
    locker.args(["--nonblock", "--exclusive", "0"]).stdin(file.try_clone().unwrap());
    // The command would keep a descriptor of the file until it is dropped.
    let locked = locker.status();
    drop(locker);
    let Ok(locked) = locked else { return eprintln!("skipped: flock(1) is not there") };
    assert!(locked.success(), "{locked}");
    let until = thread::spawn(move || {
        thread::sleep(Duration::from_millis(200));
        drop(file);
    });
    assert_eq!(identity(&mut open(&format!("emulated:{path}"))).0, "KEPT");
    until.join().unwrap();
}

/// Nothing of a drive that could not be made is left, and what was there before is as it was.
#[test]
fn a_drive_that_cannot_be_made_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    let count = || fs::read_dir(&folder).unwrap().count();
    let vast = format!("emulated:{path}?size={}", (i64::MAX as u64) & !4095);
    assert!(matches!(SoftController::open(&vast), Err(UriError::Io { what: "set the size of", .. })));
    assert_eq!(count(), 0);
    fs::write(&path, "").unwrap();
    assert!(SoftController::open(&vast).is_err());
    assert_eq!((count(), fs::metadata(&path).unwrap().len()), (1, 0));
    // A sidecar cannot be written where a folder is.
    fs::create_dir_all(format!("{path}.nvme.toml.new/kept")).unwrap();
    fs::write(
        format!("{path}.nvme.toml"),
        "version = 1\nserial = \"A\"\nuuid = \"0e8dc1fe-6c9b-4cf8-a1c5-8c4dbb3f5f21\"\nlba = 512\n",
    )
    .unwrap();
    let error = SoftController::open(&format!("emulated:{path}?size=1M")).unwrap_err();
    assert!(matches!(&error, UriError::Io { what: "write", .. }), "{error}");
    assert_eq!((count(), fs::metadata(&path).unwrap().len()), (3, 0));
}

#[test]
fn a_new_drive_is_locked_until_it_is_taken_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("drive");
    let uri: DriveUri = format!("emulated:{},size=1M", path.display()).parse().unwrap();
    for there in [false, true] {
        if there {
            fs::write(&path, "").unwrap();
        }
        let (controller, new) = uri.open_or_make().unwrap();
        let new = new.unwrap();
        assert_eq!((new.path(), new.created_file()), (&*path, !there));
        drop(controller);
        assert!(matches!(uri.open(), Err(UriError::InUse(_))));
        assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 20);
        new.unmake();
        assert_eq!(fs::metadata(&path).ok().map(|file| file.len()), there.then_some(0));
        assert!(!uri.sidecar().exists());
    }
    // The second of two openers finds the first one's drive, and a file that took the drive's place is nobody's to take back.
    let new = uri.open_or_make().unwrap().1.unwrap();
    fs::rename(&path, folder.path().join("moved")).unwrap();
    let (controller, second) = uri.open_or_make().unwrap();
    new.unmake();
    drop(controller);
    drop(second);
    assert!(uri.open_or_make().unwrap().1.is_none());
}

#[test]
fn an_opener_never_takes_back_what_another_one_has() {
    for _ in 0..100 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("drive");
        let uri: DriveUri = format!("emulated:{},size=1M", path.display()).parse().unwrap();
        // Each opener but the last gives up what it made.
        let open = |keeps: bool| {
            let Ok((controller, new)) = uri.open_or_make() else { return false };
            drop(controller);
            if let (Some(new), false) = (new, keeps) {
                new.unmake();
            }
            keeps
        };
        let kept = std::thread::scope(|scope| {
            let openers = [false, false, true].map(|keeps| scope.spawn(move || open(keeps)));
            openers.into_iter().map(|opener| opener.join().unwrap()).fold(false, std::ops::BitOr::bitor)
        });
        let bytes = fs::metadata(&path).map(|file| file.len()).ok();
        assert!(!kept || bytes == Some(1 << 20), "{bytes:?}");
    }
}
