use std::time::Duration;

use anyhow::{Result, ensure};
use warprow_dma::MappedMemory;
use warprow_spec::registers::{Aqa, Cap, Cc, Csts, Vs, offset};

use crate::fixture::{Fixture, open};
use crate::subject::{Subject, Verdict};

pub(crate) fn registers(subject: &Subject) -> Result<Verdict> {
    let function = &subject.function;
    let cap = Cap::from_bits(function.read_u64(offset::CAP)?);
    let version = Vs::from_bits(function.read_u32(offset::VS)?);
    ensure!(cap.max_queue_entries() >= 2, "CAP.MQES: queues of one entry cannot work");
    ensure!(cap.css_nvm() || cap.css_iocs(), "CAP.CSS: no NVM command set");
    ensure!(cap.min_page_bytes() == 4096 && cap.max_page_bytes() >= cap.min_page_bytes(), "CAP.MPSMIN, MPSMAX");
    ensure!((1..=2).contains(&version.mjr()), "VS {version}");
    ensure!(function.read_u32(offset::CAP)? == cap.into_bits() as u32, "the lower half of CAP");
    ensure!(function.read_u32(offset::CAP + 4)? == (cap.into_bits() >> 32) as u32, "the upper half of CAP");
    Ok(Verdict::Passed)
}

fn state(subject: &Subject) -> Result<(Cc, Csts)> {
    let function = &subject.function;
    Ok((Cc::from_bits(function.read_u32(offset::CC)?), Csts::from_bits(function.read_u32(offset::CSTS)?)))
}

pub(crate) fn enables_and_disables(subject: &Subject) -> Result<Verdict> {
    for _ in 0..3 {
        let opened = open(subject)?;
        let (cc, csts) = state(subject)?;
        ensure!(cc.en() && csts.rdy() && !csts.cfs(), "open: {cc:?}, {csts:?}");
        ensure!(cc.page_bytes() == 4096 && cc.iosqes() == 6 && cc.iocqes() == 4, "{cc:?}");
        opened.check_health()?;
        drop(opened);
        let (cc, csts) = state(subject)?;
        ensure!(!cc.en() && !csts.rdy(), "dropped: {cc:?}, {csts:?}");
    }
    Ok(Verdict::Passed)
}

/// Whoever drove it before may have left it enabled, with queues that the driver knows nothing of.
pub(crate) fn takes_over(subject: &Subject) -> Result<Verdict> {
    let function = &subject.function;
    drop(open(subject)?);
    let queues = MappedMemory::new(function.clone(), subject.function.allocate(8192)?)?;
    function.set_bus_master(true)?;
    function.write_u32(offset::AQA, Aqa::new().with_asqs_z(7).with_acqs_z(7).into_bits())?;
    function.write_u64(offset::ASQ, queues.iova())?;
    function.write_u64(offset::ACQ, queues.iova() + 4096)?;
    function.write_u32(offset::CC, Cc::new().with_en(true).with_iosqes(6).with_iocqes(4).into_bits())?;
    let deadline = subject.clock.now() + Duration::from_secs(10);
    while !state(subject)?.1.rdy() {
        ensure!(subject.clock.now() < deadline, "CSTS.RDY did not follow CC.EN");
        subject.clock.sleep(Duration::from_millis(1));
    }
    let mut fixture = Fixture::open(subject)?;
    drop(queues);
    fixture.write_pattern(1, 0, 8)?;
    fixture.check_pattern(1, 0, 8)?;
    Ok(Verdict::Passed)
}
