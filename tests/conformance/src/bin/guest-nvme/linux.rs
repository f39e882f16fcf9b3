//! Content that passes between our driver and Linux's (tests/guest/init has the other half).

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use warprow_conformance::{Subject, fill};
use warprow_driver::{BlockIo, Controller, ControllerOptions, FormatRequest, QueueOptions};

/// Formats each namespace to another LBA size, fills its start, shuts the drive down, and says what Linux must read.
pub(crate) fn leave_for_linux(subject: &Subject) -> Result<()> {
    let controller = Controller::open(subject.function.clone(), subject.clock.clone(), ControllerOptions::default())?;
    let mut expected = Vec::new();
    for (nsid, size) in controller.active_namespaces()?.into_iter().zip([4096, 512].into_iter().cycle()) {
        let ns = controller.format(&FormatRequest::new(nsid, size), |_| {})?;
        let mut io = BlockIo::new(&controller, ns, &QueueOptions::default())?;
        let mut content = vec![0; 256 << 10];
        fill(nsid.into(), 0, size as usize, &mut content);
        io.write(0, &content)?;
        io.flush()?;
        expected.push((nsid, size, content));
    }
    ensure!(!expected.is_empty());
    controller.shutdown()?;
    for (nsid, size, content) in expected {
        let folder = Path::new("/tmp/expect").join(subject.function.name()).join(nsid.to_string());
        fs::create_dir_all(&folder).with_context(|| format!("{}", folder.display()))?;
        fs::write(folder.join("block"), size.to_string())?;
        fs::write(folder.join("content"), content)?;
    }
    Ok(())
}

/// Reads what Linux wrote before it let go of the drive: the head of a file, at the start of each namespace.
pub(crate) fn written_by_linux(subject: &Subject) -> Result<()> {
    let file = fs::read("/bin/busybox")?;
    let want = file.get(..64 << 10).context("busybox is shorter than 64 KiB")?;
    let controller = Controller::open(subject.function.clone(), subject.clock.clone(), ControllerOptions::default())?;
    for nsid in controller.active_namespaces()? {
        let mut got = vec![0; want.len()];
        BlockIo::new(&controller, controller.namespace(nsid)?, &QueueOptions::default())?.read(0, &mut got)?;
        ensure!(got == want, "namespace {nsid} holds something else: {:02x?}...", &got[..16]);
    }
    Ok(())
}
