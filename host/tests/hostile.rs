//! Files that are missing, garbage, circles or no files at all: nothing panics, nothing hangs, and nothing that was in
//! use becomes free.

mod machines;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use machines::{FREE, Fixture, RAID, SYSTEM, server, vmd};
use warprow_host::{Machine, PciAddress};

/// Looks at everything that there is to look at.
fn look(fixture: &Fixture) {
    let machine = Machine::at(fixture.root());
    machine.drives();
    machine.gpus();
    assert!(!machine.examine().is_empty());
    for function in machine.functions() {
        function.acs(&machine);
    }
    for text in [FREE, SYSTEM, RAID, "10000:e1:00.0", "0000:03:00.0"] {
        let address: PciAddress = text.parse().unwrap();
        let _ = machine.bind_steps(address, &[]).map_err(|error| error.to_string() + &error.remedy(false));
        let _ = machine.unbind_steps(address).map_err(|error| error.to_string() + &error.remedy(false));
    }
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()).collect();
    entries.sort_by_key(|entry| entry.path());
    for entry in entries {
        if entry.file_type().unwrap().is_dir() {
            files(&entry.path(), found);
        } else {
            found.push(entry.path());
        }
    }
}

/// What may stand where a file should.
fn spoil(path: &Path, random: &mut fastrand::Rng) {
    let how = random.u8(..9);
    if how == 8 {
        // To root nothing is denied; to others this is. A link's target is its own entry here.
        if !path.is_symlink() {
            fs::set_permissions(path, fs::Permissions::from_mode(0o000)).unwrap();
        }
        return;
    }
    fs::remove_file(path).unwrap();
    match how {
        0 => {}
        1 => symlink(path, path).unwrap(),
        2 => fs::create_dir(path).unwrap(),
        3 => nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap(),
        4 => fs::write(path, "").unwrap(),
        5 => fs::write(path, format!("{}", random.i128(..))).unwrap(),
        6 => symlink("..", path).unwrap(),
        _ => {
            let bytes: Vec<u8> = (0..random.usize(..300)).map(|_| random.u8(..)).collect();
            fs::write(path, bytes).unwrap();
        }
    }
}

#[test]
fn spoilt_files_anywhere() {
    const SEED: u64 = 0x5eed;
    let mut random = fastrand::Rng::with_seed(SEED);
    for turn in 0..24 {
        let machine = if turn % 4 == 3 { vmd() } else { server() };
        let mut all = Vec::new();
        files(machine.root(), &mut all);
        let portion = [0.02, 0.1, 0.4][turn % 3];
        for path in all {
            if random.f64() < portion {
                spoil(&path, &mut random);
            }
        }
        look(&machine);
    }
}

#[test]
fn an_empty_machine() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::at(folder.path());
    assert!(machine.drives().is_empty() && machine.functions().is_empty() && machine.gpus().is_empty());
    assert!(machine.examine().iter().any(|finding| finding.check == "iommu"));
    assert!(machine.bind_steps("0000:01:00.0".parse().unwrap(), &[]).is_err());
    let absent = Machine::at(folder.path().join("absent"));
    assert!(absent.drives().is_empty() && !absent.examine().is_empty());
}

/// Holders that hold each other, and a device that is its own.
#[test]
fn circles_of_holders_end() {
    let machine = server();
    machine.hold("nvme0n1", "dm-5", "253:5");
    machine.link("sys/class/block/dm-5/holders/nvme0n1", "sys/class/block/nvme0n1");
    machine.link("sys/class/block/dm-5/holders/dm-5", "sys/class/block/dm-5");
    let drive = Machine::at(machine.root()).drive(FREE.parse().unwrap()).unwrap();
    assert!(drive.uses.iter().any(|device_use| device_use.by == "dm-5"), "{drive:?}");
}

/// Whatever one file of the system says or does not say, a drive in use is never taken for free.
#[test]
fn no_single_file_makes_a_drive_in_use_free() {
    let machine = server();
    let mut all = Vec::new();
    files(machine.root(), &mut all);
    let relevant = |path: &&PathBuf| {
        let text = path.display().to_string();
        let of_the_drive = ["nvme1", "proc/self/mountinfo", "proc/swaps", "b259:1", "b259:2", "b259:3", "b259:4"];
        of_the_drive.iter().any(|part| text.contains(part))
    };
    let relevant: Vec<PathBuf> = all.iter().filter(relevant).cloned().collect();
    assert!(relevant.len() > 10, "{relevant:?}");
    for path in relevant {
        let link = fs::read_link(&path).ok();
        let content = link.is_none().then(|| fs::read(&path).unwrap());
        fs::remove_file(&path).unwrap();
        let drive = Machine::at(machine.root()).drive(SYSTEM.parse().unwrap()).unwrap();
        assert!(!drive.is_free(), "without {}: {drive:?}", path.display());
        assert!(Machine::at(machine.root()).bind_steps(SYSTEM.parse().unwrap(), &[]).is_err());
        match (link, content) {
            (Some(target), _) => symlink(target, &path).unwrap(),
            (None, Some(content)) => fs::write(&path, content).unwrap(),
            (None, None) => {}
        }
    }
}
