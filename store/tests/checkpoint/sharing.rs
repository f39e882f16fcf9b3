use std::path::Path;
use std::process::Command;

use warprow_store::{CreateDrive, Device, DriveAddress, OpenOptions, Store, TableLoad};

use crate::files::{Tensor, checkpoint, folder, open, random_bytes, stored};

/// Tells the child which folder to attach.
const FOLDER: &str = "WARPROW_TEST_CHECKPOINT";

fn rows() -> Vec<u8> {
    random_bytes(&mut fastrand::Rng::with_seed(77), 3000 * 96)
}

/// Attaches the folder and compares all rows, several times; a write is refused.
fn read(folder: &Path) {
    let rows = rows();
    for how in ["direct=0", ""] {
        let store = open(folder, how);
        for _ in 0..5 {
            assert!(stored(&store, "embed") == rows);
        }
    }
    let address: DriveAddress = format!("attached:{}", folder.display()).parse().unwrap();
    let device = Device::open(&address, CreateDrive::Never).unwrap();
    let store = Store::open(&[device], &OpenOptions::default()).unwrap();
    let spec = warprow_layout::TableSpec::new("other", 1, 96, warprow_layout::DType::I8);
    let source = &rows[..96];
    let load = [TableLoad::new(&spec, &source)];
    let error = store.load("m", &load, &Default::default(), &mut |_| std::ops::ControlFlow::Continue(())).unwrap_err();
    assert!(!error.to_string().is_empty());
}

#[test]
fn several_processes_attach_the_same_files() {
    let folder = folder();
    checkpoint(folder.path(), &[vec![Tensor::new("embed", "I8", &[3000, 96], rows())]]);
    // Each of them is this test.
    let child = |_| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "sharing::as_another_process", "--include-ignored"]).env(FOLDER, folder.path());
        command.spawn().unwrap()
    };
    let children: Vec<_> = (0..3).map(child).collect();
    read(folder.path());
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
}

#[test]
#[ignore = "a process that another test starts"]
fn as_another_process() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        read(Path::new(&folder));
    }
}
