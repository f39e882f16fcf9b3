use anyhow::{Context, Result, bail, ensure};
use warprow_driver::DriverError;
use warprow_spec::identify::Cns;
use warprow_spec::{Sqe, StatusCode};

use crate::fixture::{admin_refused, open};
use crate::subject::{Subject, Verdict};

pub(crate) fn controller(subject: &Subject) -> Result<Verdict> {
    let controller = open(subject)?;
    let info = controller.info();
    for text in [&info.sn[..], &info.mn, &info.fr] {
        let printable = text.iter().all(|byte| (0x20..0x7f).contains(byte));
        ensure!(printable && text.iter().any(|&byte| byte != b' '), "serial, model or firmware is no text: {text:x?}");
    }
    ensure!(info.sqes.required() == 6 && info.cqes.required() == 4, "SQES {:?}, CQES {:?}", info.sqes, info.cqes);
    ensure!(info.nn >= 1, "NN is 0");
    // VER is zero in controllers before 1.2.
    ensure!(
        info.ver.into_bits() == 0 || info.ver == controller.version(),
        "VER {}, VS {}",
        info.ver,
        controller.version()
    );
    if let Some(bytes) = controller.max_transfer_bytes() {
        ensure!(bytes >= 4096 && bytes.is_power_of_two(), "MDTS: {bytes} bytes");
    }
    Ok(Verdict::Passed)
}

pub(crate) fn namespaces(subject: &Subject) -> Result<Verdict> {
    let controller = open(subject)?;
    let list = controller.active_namespaces()?;
    ensure!(!list.is_empty(), "no active namespace");
    ensure!(list.is_sorted_by(|a, b| a < b), "{list:?} does not ascend");
    for nsid in list {
        let data = controller.identify_namespace(nsid)?;
        let ns = controller.namespace(nsid)?;
        ensure!(data.nuse <= data.ncap && data.ncap <= data.nsze, "{nsid}: {} {} {}", data.nuse, data.ncap, data.nsze);
        ensure!(ns.lba_count() == data.nsze && ns.bytes() == data.size_bytes().context("a size past 2^64")?);
        ensure!(ns.formats().iter().any(|(index, _)| *index == ns.format_index()), "its own format is not offered");
        let ids = controller.namespace_ids(nsid)?;
        ensure!(ids.eui64.is_some() || ids.nguid.is_some() || ids.uuid.is_some(), "namespace {nsid} has no identifier");
        ensure!(ids.nguid.is_none_or(|id| id == ns.nguid()) && ids.eui64.is_none_or(|id| id == ns.eui64()), "{ids:x?}");
    }
    Ok(Verdict::Passed)
}

pub(crate) fn unknown(subject: &Subject) -> Result<Verdict> {
    let controller = open(subject)?;
    let nn = controller.info().nn;
    let invalid = [StatusCode::InvalidNamespaceOrFormat];
    for nsid in [0, nn + 1, 0xffff_fffe] {
        admin_refused("Identify Namespace", &controller, Sqe::identify(Cns::NAMESPACE, nsid), &invalid)?;
        match controller.namespace(nsid) {
            Err(DriverError::NoSuchNamespace { nsid: named, .. }) if named == nsid => {}
            other => bail!("namespace {nsid}: {other:?}"),
        }
    }
    let active = controller.active_namespaces()?;
    if let Some(inactive) = (1..=nn).find(|nsid| !active.contains(nsid)) {
        ensure!(!controller.identify_namespace(inactive)?.is_active(), "namespace {inactive} is not listed");
        ensure!(matches!(controller.namespace(inactive), Err(DriverError::NoSuchNamespace { .. })));
    }
    admin_refused("CNS FFh", &controller, Sqe::identify(Cns(0xff), 0), &[StatusCode::InvalidField])?;
    Ok(Verdict::Passed)
}
