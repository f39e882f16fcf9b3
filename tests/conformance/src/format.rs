use anyhow::{Context, Result, bail, ensure};
use warprow_driver::{Controller, DriverError, FormatRequest};
use warprow_spec::admin::{FormatCdw10, SecureErase};
use warprow_spec::{Sqe, StatusCode};

use crate::fixture::{Fixture, admin_refused, first_namespace, open};
use crate::subject::{Subject, Verdict};

/// Block sizes without metadata that the first namespace offers, and a format it cannot do.
fn sizes(controller: &Controller) -> Result<Vec<u32>> {
    let ns = first_namespace(controller)?;
    let mut sizes: Vec<u32> = ns
        .formats()
        .iter()
        .filter(|(_, f)| f.ms() == 0)
        .filter_map(|(_, f)| f.lba_bytes())
        .filter(|b| *b <= 4096)
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    Ok(sizes)
}

fn request(controller: &Controller, nsid: u32, lba_bytes: u32) -> Result<FormatRequest> {
    let alone = controller.format_losses(nsid, SecureErase::NONE)?.len() == 1;
    Ok(FormatRequest { lose_all_namespaces: !alone, ..FormatRequest::new(nsid, lba_bytes) })
}

/// 512 → 4096 → 512, by way of what else is offered, with data in each.
pub(crate) fn every_lba_size(subject: &Subject) -> Result<Verdict> {
    let controller = open(subject)?;
    if !controller.info().oacs.format_nvm() {
        return Ok(Verdict::Skipped("there is no Format NVM".into()));
    }
    let mut round = sizes(&controller)?;
    ensure!(!round.is_empty(), "no LBA format without metadata");
    let first = round[0];
    round.push(first);
    let before = first_namespace(&controller)?;
    drop(controller);
    for (i, size) in round.into_iter().enumerate() {
        let mut fixture = Fixture::open(subject)?;
        let request = request(&fixture.controller, before.nsid(), size)?;
        let mut told = 0;
        fixture.ns = fixture.controller.format(&request, |_| told += 1)?;
        ensure!(fixture.ns.lba_bytes() == size && fixture.ns.metadata_bytes() == 0, "{:?}", fixture.ns);
        ensure!(fixture.ns == fixture.controller.namespace(before.nsid())?, "identified again, it is another");
        let lost = before.bytes().abs_diff(fixture.ns.bytes());
        ensure!(lost < 1 << 20, "{} bytes became {}", before.bytes(), fixture.ns.bytes());
        let seed = 20 + i as u64;
        let last = fixture.ns.lba_count() - 8;
        for lba in [0, last] {
            fixture.write_pattern(seed, lba, 8)?;
        }
        for lba in [0, last] {
            fixture.check_pattern(seed, lba, 8).with_context(|| format!("LBAs of {size} bytes"))?;
        }
    }
    Ok(Verdict::Passed)
}

pub(crate) fn other_namespaces(subject: &Subject) -> Result<Verdict> {
    let mut fixture = Fixture::open(subject)?;
    let info = fixture.controller.info();
    if !info.oacs.format_nvm() {
        return Ok(Verdict::Skipped("there is no Format NVM".into()));
    }
    let list = fixture.controller.active_namespaces()?;
    let [nsid, other, ..] = list[..] else { return Ok(Verdict::Skipped("there is one namespace".into())) };
    let same = FormatRequest::new(nsid, fixture.ns.lba_bytes());
    if info.fna.reaches_all(false) {
        match fixture.controller.format(&same, |_| {}) {
            Err(DriverError::FormatNeedsConsent { losses, .. }) => {
                let lost: Vec<u32> = losses.iter().map(|loss| loss.nsid).collect();
                ensure!(list.iter().all(|nsid| lost.contains(nsid)), "{lost:?} would be lost, of {list:?}");
                return Ok(Verdict::Passed);
            }
            result => bail!("every namespace would be lost, and the driver did not refuse: {result:?}"),
        }
    }
    fixture.ns = fixture.controller.namespace(other)?;
    fixture.write_pattern(30, 0, 16)?;
    let formatted = fixture.controller.format(&same, |_| {})?;
    ensure!(fixture.ns.check_of(&fixture.controller).is_err(), "what was described before a format is taken");
    fixture.ns = fixture.controller.namespace(other)?;
    fixture.check_pattern(30, 0, 16).with_context(|| format!("namespace {other} after a format of {nsid}"))?;
    fixture.ns = formatted;
    fixture.write_pattern(31, 0, 4)?;
    fixture.check_pattern(31, 0, 4)?;
    Ok(Verdict::Passed)
}

pub(crate) fn not_offered(subject: &Subject) -> Result<Verdict> {
    let mut fixture = Fixture::open(subject)?;
    if !fixture.controller.info().oacs.format_nvm() {
        return Ok(Verdict::Skipped("there is no Format NVM".into()));
    }
    fixture.write_pattern(32, 0, 4)?;
    let nsid = fixture.ns.nsid();
    match fixture.controller.format(&request(&fixture.controller, nsid, 32768)?, |_| {}) {
        Err(DriverError::LbaFormatNotOffered { offered, .. }) => ensure!(!offered.is_empty()),
        other => bail!("LBAs of 32 KiB: {other:?}"),
    }
    match fixture.controller.format(&FormatRequest::new(fixture.controller.info().nn + 1, 512), |_| {}) {
        Err(DriverError::NoSuchNamespace { .. }) => {}
        other => bail!("a namespace past NN: {other:?}"),
    }
    let offered = fixture.ns.formats().len() as u8;
    if offered < 16 {
        let sqe = Sqe::format_nvm(nsid, FormatCdw10::new().with_format_index(offered));
        admin_refused("an LBA format past NLBAF", &fixture.controller, sqe, &[StatusCode::InvalidFormat])?;
    }
    fixture.check_pattern(32, 0, 4).context("after a format that was refused")?;
    Ok(Verdict::Passed)
}
