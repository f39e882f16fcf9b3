//! What a drive with a volatile write cache is like after the power was cut.

mod common;

use std::time::Duration;

use common::{Host, pattern, ram, stepped};
use warprow_dma::Function;
use warprow_soft_controller::{ControllerBuilder, Fault, PowerCut, Rule};
use warprow_spec::features::FeatureId;
use warprow_spec::registers::offset;
use warprow_spec::{AdminOpcode, NSID_ALL, NvmOpcode, Sqe, StatusCode};

fn cached() -> ControllerBuilder {
    stepped().namespace(ram(1 << 20).lba(4096).write_cache(1 << 20))
}

fn content(host: &mut Host, lba: u64) -> Vec<u8> {
    let page = host.buffer(4096);
    host.read(lba, 1, page.iova);
    page.bytes(0, 4096)
}

fn write(host: &mut Host, lba: u64, seed: u64, fua: bool) {
    let page = host.buffer(4096);
    page.memory.write(0, &pattern(seed, 4096));
    let sqe = Host::rw(NvmOpcode::WRITE, 1, lba, 1, page.iova);
    let cqe = host.io(Sqe { cdw12: sqe.cdw12 | u32::from(fua) << 30, ..sqe });
    assert!(cqe.status().is_success());
}

fn flush(host: &mut Host) {
    assert!(host.io(Sqe::new(NvmOpcode::FLUSH.0, 1)).status().is_success());
}

fn restart(host: &mut Host) {
    assert!(!host.csts().rdy() && !host.csts().cfs());
    assert_eq!(host.drive.read_u32(offset::AQA).unwrap(), 0);
    host.enable();
    host.create_pair(1, 16);
}

#[test]
fn flushed_and_forced_writes_survive_others_do_not() {
    let mut host = Host::with_queue(cached(), 16);
    write(&mut host, 0, 1, false);
    flush(&mut host);
    write(&mut host, 0, 2, false);
    write(&mut host, 1, 3, true);
    write(&mut host, 2, 4, false);
    assert_eq!(content(&mut host, 0), pattern(2, 4096), "reads see the cache");
    assert_eq!(host.drive.volatile_writes(), 2);
    assert_eq!(host.drive.power_cut(PowerCut::LoseAll).unwrap(), 2);
    restart(&mut host);
    assert_eq!(content(&mut host, 0), pattern(1, 4096));
    assert_eq!(content(&mut host, 1), pattern(3, 4096));
    assert_eq!(content(&mut host, 2), vec![0; 4096]);
}

#[test]
fn a_flush_covers_what_had_completed_before_it() {
    let forms = [cached as fn() -> ControllerBuilder, || cached().jitter(Duration::ZERO)];
    for (form, builder) in forms.into_iter().enumerate() {
        let mut host = Host::with_queue(builder(), 16);
        write(&mut host, 0, 1, false);
        write(&mut host, 1, 2, false);
        // Submitted together: that the write comes first, and completes first, promises nothing.
        let page = host.buffer(4096);
        page.memory.write(0, &pattern(3, 4096));
        let cids = [Host::rw(NvmOpcode::WRITE, 1, 1, 1, page.iova), Sqe::new(NvmOpcode::FLUSH.0, 1)]
            .map(|sqe| host.push(1, sqe));
        host.ring(1);
        assert!(cids.into_iter().all(|cid| host.completion(1, cid).status().is_success()));
        assert_eq!(content(&mut host, 1), pattern(3, 4096));
        assert_eq!(host.drive.power_cut(PowerCut::LoseAll).unwrap(), 1, "{form}");
        restart(&mut host);
        assert_eq!([0, 1].map(|lba| content(&mut host, lba)), [1, 2].map(|seed| pattern(seed, 4096)), "{form}");
    }
}

#[test]
fn a_slow_flush_covers_nothing_written_meanwhile() {
    for nsid in [1, NSID_ALL] {
        let mut host = Host::with_queue(cached(), 16);
        write(&mut host, 0, 1, false);
        write(&mut host, 1, 2, false);
        host.drive.faults().inject(Rule::new(Fault::Delay(Duration::from_millis(1))).io(NvmOpcode::FLUSH));
        let flush = host.submit(1, Sqe::new(NvmOpcode::FLUSH.0, nsid));
        host.turn();
        write(&mut host, 1, 3, false);
        write(&mut host, 2, 4, false);
        assert!(host.completion(1, flush).status().is_success());
        assert_eq!(host.drive.power_cut(PowerCut::LoseAll).unwrap(), 2);
        restart(&mut host);
        let after = [0, 1, 2].map(|lba| content(&mut host, lba));
        assert_eq!(after, [pattern(1, 4096), pattern(2, 4096), vec![0; 4096]]);
    }
}

#[test]
fn a_flush_does_not_cover_what_never_completed() {
    let mut host = Host::with_queue(cached(), 16);
    let page = host.buffer(4096);
    page.memory.write(0, &pattern(1, 4096));
    host.drive.faults().inject(Rule::new(Fault::Drop).io(NvmOpcode::WRITE));
    host.submit(1, Host::rw(NvmOpcode::WRITE, 1, 0, 1, page.iova));
    host.turns(3);
    assert_eq!(content(&mut host, 0), pattern(1, 4096));
    flush(&mut host);
    assert_eq!(host.drive.volatile_writes(), 1);
    // What completed on top of it is durable, and is not undone by it.
    write(&mut host, 0, 2, false);
    flush(&mut host);
    host.drive.power_cut(PowerCut::KeepAll).unwrap();
    restart(&mut host);
    assert_eq!(content(&mut host, 0), pattern(2, 4096));
}

#[test]
fn nothing_in_flight_makes_others_durable_while_the_power_fails() {
    let page_of = |host: &Host| host.buffer(4096).iova;
    for opcode in [NvmOpcode::COMPARE, NvmOpcode::FLUSH] {
        let mut host = Host::with_queue(cached(), 16);
        write(&mut host, 0, 1, false);
        host.drive.faults().inject(Rule::new(Fault::Delay(Duration::from_secs(1))).io(opcode));
        let page = page_of(&host);
        let sqe = Host::rw(opcode, 1, 0, 1, page);
        host.submit(1, if opcode == NvmOpcode::FLUSH { Sqe::new(opcode.0, 1) } else { Sqe { cdw12: 1 << 30, ..sqe } });
        host.turns(3);
        assert_eq!(host.drive.power_cut(PowerCut::KeepAll).unwrap(), 1, "{opcode:?}");
    }
}

#[test]
fn cuts_can_be_enumerated() {
    for survivor in 0..3 {
        let mut host = Host::with_queue(cached(), 16);
        for lba in 0..3 {
            write(&mut host, lba, 10 + lba, false);
        }
        host.drive.power_cut(PowerCut::Only(survivor)).unwrap();
        restart(&mut host);
        for lba in 0..3 {
            let want = if lba == survivor as u64 { pattern(10 + lba, 4096) } else { vec![0; 4096] };
            assert_eq!(content(&mut host, lba), want);
        }
    }
}

#[test]
fn with_the_cache_switched_off_nothing_is_lost() {
    let mut host = Host::with_queue(cached(), 16);
    write(&mut host, 0, 1, false);
    let set = Sqe { cdw10: FeatureId::VOLATILE_WRITE_CACHE.0.into(), ..Sqe::new(AdminOpcode::SET_FEATURES.0, 0) };
    assert!(host.admin(set).status().is_success());
    write(&mut host, 1, 2, false);
    assert_eq!(host.drive.power_cut(PowerCut::LoseAll).unwrap(), 0);
    restart(&mut host);
    assert_eq!(content(&mut host, 0), pattern(1, 4096));
    assert_eq!(content(&mut host, 1), pattern(2, 4096));
}

#[test]
fn a_controller_reset_loses_nothing() {
    let mut host = Host::with_queue(cached(), 16);
    write(&mut host, 5, 1, false);
    host.disable();
    host.drive.reset().unwrap();
    restart(&mut host);
    assert_eq!(content(&mut host, 5), pattern(1, 4096));
    assert_eq!(host.drive.volatile_writes(), 1);
}

#[test]
fn commands_in_flight_may_have_happened_or_not() {
    let mut before = 0;
    let mut after = 0;
    for seed in 0..60 {
        let mut host = Host::with_queue(cached(), 16);
        host.drive.faults().inject(Rule::new(Fault::Delay(Duration::from_secs(1))).io(NvmOpcode::WRITE));
        let page = host.buffer(4096);
        page.memory.write(0, &pattern(7, 4096));
        // Forced, but not completed: no promise was made.
        let sqe = Host::rw(NvmOpcode::WRITE, 1, 3, 1, page.iova);
        host.submit(1, Sqe { cdw12: 1 << 30, ..sqe });
        host.turns(5);
        host.drive.power_cut(PowerCut::Random(seed)).unwrap();
        restart(&mut host);
        match content(&mut host, 3) {
            data if data == pattern(7, 4096) => after += 1,
            data => {
                assert_eq!(data, vec![0; 4096]);
                before += 1;
            }
        }
    }
    assert!(before > 5 && after > 5, "{before} {after}");
}

#[test]
fn power_brings_back_a_drive_that_was_gone() {
    let mut host = Host::with_queue(cached(), 16);
    write(&mut host, 0, 1, true);
    host.drive.faults().inject(Rule::new(Fault::Disappear).io(NvmOpcode::READ));
    let page = host.buffer(4096);
    page.memory.fill(0, 4096, 0xaa);
    host.submit(1, Host::rw(NvmOpcode::READ, 1, 0, 1, page.iova));
    host.turns(10);
    assert!(host.drive.read_u32(offset::CSTS).is_err());
    assert!(host.poll(1).is_empty());
    assert_eq!(page.bytes(0, 4096), vec![0xaa; 4096]);
    host.drive.power_cut(PowerCut::LoseAll).unwrap();
    restart(&mut host);
    assert_eq!(content(&mut host, 0), pattern(1, 4096));
    let bad = Sqe::new(NvmOpcode::FLUSH.0, 9);
    assert_eq!(host.io(bad).status().code(), StatusCode::InvalidNamespaceOrFormat);
}
