//! Faults on demand, as the host meets them.

mod common;

use std::time::Duration;

use common::{Host, pattern, ram, stepped};
use warprow_dma::{Function, FunctionError, PAGE};
use warprow_soft_controller::{Fault, QueueMatch, Rule};
use warprow_spec::registers::offset;
use warprow_spec::{AdminOpcode, Cqe, NvmOpcode, Sqe, StatusCode};

const LATE: Duration = Duration::from_millis(5);

/// A host whose LBA 0 holds a pattern, and a page of other bytes to read into.
fn host() -> (Host, common::Buffer) {
    let mut host = Host::with_queue(stepped().namespace(ram(1 << 20)), 16);
    let page = host.buffer(PAGE);
    page.memory.write(0, &pattern(1, PAGE));
    host.write(0, 8, page.iova);
    page.memory.fill(0, PAGE, 0xee);
    (host, page)
}

fn read(page: &common::Buffer) -> Sqe {
    Host::rw(NvmOpcode::READ, 1, 0, 8, page.iova)
}

fn after(host: &mut Host, turns: usize) -> Vec<Cqe> {
    host.turns(turns);
    host.poll(1)
}

/// The next read is served and brings the right bytes.
fn assert_well(host: &mut Host, page: &common::Buffer) {
    host.turns(3);
    let _ = host.poll(1);
    page.memory.fill(0, PAGE, 0);
    host.read(0, 8, page.iova);
    assert_eq!(page.bytes(0, PAGE), pattern(1, PAGE));
}

#[test]
fn a_status_without_execution() {
    let (mut host, page) = host();
    let status = warprow_spec::Status::from_code(StatusCode::UnrecoveredReadError);
    let id = host.drive.faults().inject(Rule::new(Fault::Status(status)).io(NvmOpcode::READ));
    let cqe = host.io(read(&page));
    assert_eq!(cqe.status().code(), StatusCode::UnrecoveredReadError);
    assert_eq!(page.bytes(0, PAGE), vec![0xee; PAGE]);
    assert_eq!(host.drive.faults().fired(id), 1);
    assert_well(&mut host, &page);
}

#[test]
fn lost_completions_with_and_without_data() {
    for (fault, want) in [(Fault::Drop, pattern(1, PAGE)), (Fault::Swallow, vec![0xee; PAGE])] {
        let (mut host, page) = host();
        host.drive.faults().inject(Rule::new(fault).io(NvmOpcode::READ));
        host.submit(1, read(&page));
        assert!(after(&mut host, 1000).is_empty());
        assert_eq!(page.bytes(0, PAGE), want, "{fault:?}");
        assert_well(&mut host, &page);
        // A queue of 16 has room for 15 more: what was lost takes no place.
        for _ in 0..5 {
            let cids: Vec<_> = (0..15).map(|_| host.push(1, Sqe::new(NvmOpcode::FLUSH.0, 1))).collect();
            host.ring(1);
            cids.into_iter().for_each(|cid| assert!(host.completion(1, cid).status().is_success()));
        }
    }
}

#[test]
fn late_data_lands_late() {
    let (mut host, page) = host();
    host.drive.faults().inject(Rule::new(Fault::Delay(LATE)).io(NvmOpcode::READ));
    let late = host.submit(1, read(&page));
    let other = host.io(Sqe::new(NvmOpcode::FLUSH.0, 1));
    assert!(other.status().is_success(), "others overtake it");
    assert!(after(&mut host, 4900).is_empty());
    assert_eq!(page.bytes(0, PAGE), vec![0xee; PAGE]);
    let cqes = after(&mut host, 200);
    assert_eq!((cqes.len(), cqes[0].cid), (1, late));
    assert_eq!(page.bytes(0, PAGE), pattern(1, PAGE));
    // After a reset nothing lands any more.
    host.drive.faults().inject(Rule::new(Fault::Delay(LATE)).io(NvmOpcode::READ));
    page.memory.fill(0, PAGE, 0xee);
    host.submit(1, read(&page));
    host.turns(100);
    host.disable();
    host.turns(6000);
    assert_eq!(page.bytes(0, PAGE), vec![0xee; PAGE]);
}

#[test]
fn twice_and_under_another_name() {
    let (mut host, page) = host();
    host.drive.faults().inject(Rule::new(Fault::Duplicate).io(NvmOpcode::READ));
    let cid = host.submit(1, read(&page));
    let cids: Vec<u16> = after(&mut host, 5).iter().map(|cqe| cqe.cid).collect();
    assert_eq!(cids, [cid, cid]);
    host.drive.faults().inject(Rule::new(Fault::WrongCid(0xbeef)).io(NvmOpcode::READ));
    host.submit(1, read(&page));
    let cids: Vec<u16> = after(&mut host, 5).iter().map(|cqe| cqe.cid).collect();
    assert_eq!(cids, [0xbeef]);
    assert_well(&mut host, &page);
}

#[test]
fn duplicates_wait_for_room() {
    let mut host = Host::enabled(stepped().namespace(ram(1 << 20)));
    host.create_pair(1, 4);
    host.drive.faults().inject(Rule::new(Fault::Duplicate).on(QueueMatch::Id(1)).always());
    let cids: Vec<u16> = (0..3).map(|_| host.push(1, Sqe::new(NvmOpcode::FLUSH.0, 1))).collect();
    host.ring(1);
    let mut counts = std::collections::HashMap::new();
    for _ in 0..20 {
        host.turn();
        let cqes = host.poll(1);
        assert!(cqes.len() <= 3);
        cqes.iter().for_each(|cqe| *counts.entry(cqe.cid).or_insert(0) += 1);
    }
    assert!(cids.iter().all(|cid| counts[cid] == 2), "{counts:?}");
}

#[test]
fn corrupt_data_succeeds() {
    let (mut host, page) = host();
    host.drive.faults().inject(Rule::new(Fault::Corrupt).io(NvmOpcode::READ).lbas(7..8));
    host.read(0, 8, page.iova);
    let differing = |page: &common::Buffer| {
        let got = page.bytes(0, PAGE);
        got.iter().zip(pattern(1, PAGE)).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>()
    };
    assert_eq!(differing(&page), 1);
    assert_well(&mut host, &page);
    host.drive.faults().inject(Rule::new(Fault::Corrupt).io(NvmOpcode::WRITE));
    host.write(0, 8, page.iova);
    assert_eq!(differing(&page), 0, "the host's own memory is not touched");
    host.read(0, 8, page.iova);
    assert_eq!(differing(&page), 1);
}

#[test]
fn fatal_status_until_reset() {
    let (mut host, page) = host();
    host.drive.faults().inject(Rule::new(Fault::Fatal).io(NvmOpcode::READ));
    host.submit(1, read(&page));
    assert!(after(&mut host, 100).is_empty());
    assert!(host.csts().cfs());
    host.submit(0, Sqe { cdw10: 1, ..Sqe::new(AdminOpcode::IDENTIFY.0, 0) });
    host.turns(100);
    assert!(host.poll(0).is_empty());
    host.disable();
    host.enable();
    host.create_pair(1, 16);
    assert_well(&mut host, &page);
}

#[test]
fn gone_is_gone() {
    let (mut host, page) = host();
    let doorbell = host.drive.doorbell(0x1008).unwrap();
    host.drive.faults().inject(Rule::new(Fault::Disappear).admin(AdminOpcode::IDENTIFY));
    host.submit(0, Sqe { cdw10: 1, ..Sqe::new(AdminOpcode::IDENTIFY.0, 0) });
    host.submit(1, read(&page));
    host.turns(100);
    assert!(matches!(host.drive.read_u32(offset::CSTS), Err(FunctionError::Gone { .. })));
    assert!(matches!(host.drive.write_u32(offset::CC, 0), Err(FunctionError::Gone { .. })));
    assert!(matches!(host.drive.reset(), Err(FunctionError::Gone { .. })));
    host.turns(100);
    assert!(host.poll(0).is_empty());
    // The read was rung at the same time: it may have been served before, but nothing comes later.
    host.push(1, read(&page));
    doorbell.ring(host.pairs[1].tail.into());
    page.memory.fill(0, PAGE, 0xdd);
    host.turns(100);
    assert_eq!(page.bytes(0, PAGE), vec![0xdd; PAGE]);
}

/// Whichever queue comes first in a round: the drive is gone for the others of that round too.
#[test]
fn what_disappears_at_a_read_answers_no_other_queue() {
    for other in [2, 3] {
        let (mut host, page) = host();
        host.create_pair(2, 16);
        host.create_pair(3, 16);
        page.memory.fill(0, PAGE, 0xdd);
        host.drive.faults().inject(Rule::new(Fault::Disappear).io(NvmOpcode::READ));
        for qid in [1, other] {
            host.submit(qid, read(&page));
            host.submit(qid, read(&page));
        }
        host.turns(100);
        assert!(host.poll(1).is_empty() && host.poll(other).is_empty(), "queue {other}");
        assert_eq!(page.bytes(0, PAGE), vec![0xdd; PAGE], "queue {other}");
    }
}

#[test]
fn admin_commands_meet_the_same_faults() {
    let (mut host, _) = host();
    let identify =
        |page: &common::Buffer| Sqe { cdw10: 1, ..Sqe::new(AdminOpcode::IDENTIFY.0, 0) }.with_prps(page.iova, 0);
    let healthy = host.identify(0, 1).unwrap();
    let page = host.buffer(PAGE);
    let rule = |fault| Rule::new(fault).admin(AdminOpcode::IDENTIFY);
    let faults = host.drive.faults().clone();
    faults.inject(rule(Fault::Status(StatusCode::InternalError.into())));
    assert_eq!(host.admin(identify(&page)).status().code(), StatusCode::InternalError);
    for fault in [Fault::Drop, Fault::Swallow] {
        faults.inject(rule(fault));
        host.submit(0, identify(&page));
        host.turns(200);
        assert!(host.poll(0).is_empty(), "{fault:?}");
    }
    faults.inject(rule(Fault::Delay(LATE)));
    let late = host.submit(0, identify(&page));
    assert!(host.identify(0, 1).is_ok());
    page.memory.fill(0, PAGE, 0);
    let start = host.now;
    assert!(host.completion(0, late).status().is_success());
    assert!(host.now - start >= LATE - Duration::from_micros(100));
    assert_eq!(page.bytes(0, PAGE), healthy);
    faults.inject(rule(Fault::Duplicate));
    let cid = host.submit(0, identify(&page));
    host.turns(10);
    assert_eq!(host.poll(0).iter().map(|cqe| cqe.cid).collect::<Vec<_>>(), [cid, cid]);
    faults.inject(rule(Fault::WrongCid(0xfff0)));
    host.submit(0, identify(&page));
    host.turns(10);
    assert_eq!(host.poll(0).iter().map(|cqe| cqe.cid).collect::<Vec<_>>(), [0xfff0]);
    faults.inject(rule(Fault::Corrupt));
    assert_ne!(host.identify(0, 1).unwrap(), healthy);
    faults.inject(rule(Fault::Fatal));
    host.submit(0, identify(&page));
    host.turns(10);
    assert!(host.csts().cfs());
    assert!(!faults.is_active());
}
