//! A namespace that comes and goes (NVMe Base 2.0, 5.20; NVMe 1.4, 5.12).

use anyhow::{Context, Result, bail, ensure};
use warprow_conformance::{Subject, fill};
use warprow_driver::{BlockIo, Controller, ControllerOptions, DriverError, Namespace, QueueOptions};
use warprow_spec::{AdminOpcode, Sqe, StatusCode};

/// CDW10.SEL.
const ATTACH: u32 = 0;
const DETACH: u32 = 1;

/// What is detached is no longer listed nor opened, and is whole when it comes back.
#[allow(unsafe_code, reason = "a command that the driver does not have")]
pub(crate) fn detached_and_attached(subject: &Subject) -> Result<()> {
    let controller = Controller::open(subject.function.clone(), subject.clock.clone(), ControllerOptions::default())?;
    let all = controller.active_namespaces()?;
    let (&nsid, others) = all.split_last().context("no active namespace")?;
    ensure!(!others.is_empty(), "there is one namespace");
    let change = |select: u32| {
        // A list of one controller: this one.
        let mut list = [0; 4096];
        list[0] = 1;
        list[2..4].copy_from_slice(&controller.info().cntlid.to_le_bytes());
        let sqe = Sqe { cdw10: select, ..Sqe::new(AdminOpcode::NAMESPACE_ATTACHMENT.0, nsid) };
        // SAFETY: it takes one page of data, and no queue is there.
        unsafe { controller.admin(sqe, &list, controller.options().admin_timeout) }
    };
    let io = |ns: Namespace| BlockIo::new(&controller, ns, &QueueOptions::default());

    let ns = controller.namespace(nsid)?;
    let mut want = vec![0; 64 << 10];
    fill(0xa77ac4, 0, ns.lba_bytes() as usize, &mut want);
    io(ns)?.write(0, &want)?;
    let refused = |select, code| match change(select) {
        Err(DriverError::Command { status, .. }) if status.code() == code => Ok(()),
        other => bail!("{code:?} is due: {other:?}"),
    };
    refused(ATTACH, StatusCode::NamespaceAlreadyAttached)?;
    change(DETACH)?;
    // Namespace Not Attached is due; QEMU's model answers with success.
    if change(DETACH).is_err() {
        refused(DETACH, StatusCode::NamespaceNotAttached)?;
    }
    let left = controller.active_namespaces()?;
    ensure!(left == others, "{left:?} are active");
    match controller.namespace(nsid) {
        Err(DriverError::NoSuchNamespace { nsid: named, .. }) if named == nsid => {}
        other => bail!("a detached namespace: {other:?}"),
    }
    change(ATTACH)?;
    ensure!(controller.active_namespaces()? == all);
    let mut got = vec![0; want.len()];
    io(controller.namespace(nsid)?)?.read(0, &mut got)?;
    ensure!(got == want, "namespace {nsid} came back with other content");
    Ok(())
}
