//! From power-on to the first I/O, and back.

mod common;

use std::time::Duration;

use common::{Host, pattern, ram, stepped};
use warprow_dma::{Function, FunctionError};
use warprow_soft_controller::SoftController;
use warprow_spec::identify::{ActiveNamespaceList, IdentifyController, IdentifyNamespace};
use warprow_spec::registers::{Cap, Cc, ShutdownNotification, ShutdownStatus, Vs, offset};
use warprow_spec::{FromBytes, StatusCode};

#[test]
fn ready_follows_enable_after_its_delay() {
    let mut host = Host::of(stepped().namespace(ram(1 << 20)).ready_delay(Duration::from_millis(700)));
    let cap = Cap::from_bits(host.drive.read_u64(offset::CAP).unwrap());
    assert!(cap.to() >= 2 && cap.cqr() && cap.css_nvm() && cap.mpsmin() == 0);
    host.start();
    host.drive.step(Duration::from_millis(699));
    assert!(!host.csts().rdy());
    host.drive.step(Duration::from_millis(700));
    assert!(host.csts().rdy() && !host.csts().cfs());
    host.now = Duration::from_millis(700);
    assert!(host.identify(0, 1).is_ok());
    host.drive.write_u32(offset::CC, 0).unwrap();
    assert!(host.csts().rdy());
    host.drive.step(Duration::from_secs(2));
    assert!(!host.csts().rdy());
}

#[test]
fn what_cannot_be_enabled_is_fatal_until_disabled() {
    type Break = fn(&Host);
    let broken: [(&str, Break); 6] = [
        ("admin queue of one entry", |host| host.drive.write_u32(offset::AQA, 0x000f_0000).unwrap()),
        ("no admin queue", |host| host.drive.write_u64(offset::ASQ, 0).unwrap()),
        ("page size", |host| host.drive.write_u32(offset::CC, Host::cc().with_mps(9).into_bits()).unwrap()),
        ("command set", |host| {
            let cc = Host::cc().with_css(warprow_spec::registers::CommandSetSelected(1));
            host.drive.write_u32(offset::CC, cc.into_bits()).unwrap();
        }),
        ("arbitration", |host| {
            let cc = Host::cc().with_ams(warprow_spec::registers::Arbitration::WEIGHTED_ROUND_ROBIN);
            host.drive.write_u32(offset::CC, cc.into_bits()).unwrap();
        }),
        ("alignment to a page of 8 KiB", |host| {
            host.drive.write_u64(offset::ACQ, 0x10_0000_1000).unwrap();
            host.drive.write_u32(offset::CC, Host::cc().with_mps(1).into_bits()).unwrap();
        }),
    ];
    for (what, break_it) in broken {
        let mut host = Host::enabled(stepped().namespace(ram(1 << 20)));
        host.disable();
        break_it(&host);
        let cc = Cc::from_bits(host.drive.read_u32(offset::CC).unwrap());
        host.drive.write_u32(offset::CC, cc.with_en(true).into_bits()).unwrap();
        host.turns(3);
        assert!(host.csts().cfs() && !host.csts().rdy(), "{what}");
        host.disable();
        assert!(!host.csts().cfs(), "{what}");
        host.enable();
        assert!(host.identify(0, 1).is_ok(), "{what}");
    }
}

#[test]
fn no_dma_without_bus_master() {
    let mut host = Host::of(stepped().namespace(ram(1 << 20)));
    host.start();
    host.drive.set_bus_master(false).unwrap();
    host.wait("RDY", |host| host.csts().rdy());
    let cid = host.submit(0, warprow_spec::Sqe::new(0x0c, 0));
    let get_features = warprow_spec::Sqe { cdw10: 7, ..warprow_spec::Sqe::new(0x0a, 0) };
    let cid2 = host.submit(0, get_features);
    host.turns(100);
    assert!(host.poll(0).is_empty(), "{cid} or {cid2} completed");
    host.drive.set_bus_master(true).unwrap();
    assert!(host.completion(0, cid2).status().is_success());
}

#[test]
fn identifies_itself() {
    for version in [Vs::V1_4, Vs::V2_0] {
        let builder = stepped().namespace(ram(1 << 20)).namespace(ram(8 << 20).lba(4096));
        let mut host = Host::enabled(builder.serial("S1").model("M 2").version(version).max_transfer(128 << 10));
        assert_eq!(Vs::from_bits(host.drive.read_u32(offset::VS).unwrap()), version);
        let controller = IdentifyController::read_from_bytes(&host.identify(0, 1).unwrap()).unwrap();
        assert!(controller.serial() == "S1" && controller.model() == "M 2");
        assert_eq!(controller.ver, version);
        assert_eq!(controller.nn, 2);
        assert_eq!(controller.max_transfer_bytes(4096), Some(128 << 10));
        let list = ActiveNamespaceList::read_from_bytes(&host.identify(0, 2).unwrap()).unwrap();
        assert_eq!(list.iter().collect::<Vec<_>>(), [1, 2]);
        let list = ActiveNamespaceList::read_from_bytes(&host.identify(1, 2).unwrap()).unwrap();
        assert_eq!(list.iter().collect::<Vec<_>>(), [2]);
        let first = IdentifyNamespace::read_from_bytes(&host.identify(1, 0).unwrap()).unwrap();
        let second = IdentifyNamespace::read_from_bytes(&host.identify(2, 0).unwrap()).unwrap();
        assert_eq!((first.nsze, first.format().unwrap().lba_bytes()), (2048, Some(512)));
        assert_eq!((second.nsze, second.format().unwrap().lba_bytes()), (2048, Some(4096)));
        assert_ne!(first.nguid, second.nguid);
        for (nsid, cns) in [(0, 0), (3, 0), (u32::MAX, 0), (3, 3), (u32::MAX, 2), (u32::MAX - 1, 2)] {
            assert_eq!(host.identify(nsid, cns), Err(StatusCode::InvalidNamespaceOrFormat), "NSID {nsid:#x} CNS {cns}");
        }
        assert_eq!(host.identify(0, 0x99), Err(StatusCode::InvalidField));
    }
}

#[test]
fn data_comes_back_with_and_without_threads() {
    for workers in 0..3 {
        let builder = SoftController::builder().namespace(ram(4 << 20));
        let mut host = if workers == 0 {
            Host::enabled(builder)
        } else {
            let mut host = Host::new(builder.workers(workers).build().unwrap(), false);
            host.enable();
            host
        };
        host.create_pair(1, 8);
        let out = host.buffer(8192);
        let back = host.buffer(8192);
        for turn in 0..40 {
            let slba = turn * 13 % 8000;
            let blocks = turn as u32 % 16 + 1;
            let data = pattern(turn, blocks as usize * 512);
            out.memory.write(0, &data);
            host.write(slba, blocks, out.iova);
            back.memory.fill(0, 8192, 0xee);
            host.read(slba, blocks, back.iova);
            assert_eq!(back.bytes(0, data.len()), data);
        }
        assert_eq!(host.io(warprow_spec::Sqe::new(0, 1)).status().code(), StatusCode::Success);
        assert_eq!(host.io(warprow_spec::Sqe::new(0, u32::MAX)).status().code(), StatusCode::Success);
        assert_eq!(host.drive.dma_faults(), 0);
    }
}

#[test]
fn shutdown_completes_and_stops_commands() {
    let mut host = Host::with_queue(stepped().namespace(ram(1 << 20)).shutdown_delay(Duration::from_micros(50)), 8);
    let cc = Host::cc().with_en(true).with_shn(ShutdownNotification::NORMAL);
    host.drive.write_u32(offset::CC, cc.into_bits()).unwrap();
    assert_eq!(host.csts().shst(), ShutdownStatus::OCCURRING);
    host.wait("shutdown", |host| host.csts().shst() == ShutdownStatus::COMPLETE);
    host.submit(1, warprow_spec::Sqe::new(0, 1));
    host.turns(100);
    assert!(host.poll(1).is_empty());
    host.disable();
    assert_eq!(host.csts().shst(), ShutdownStatus::NORMAL);
    host.enable();
    assert!(host.identify(0, 1).is_ok());
}

#[test]
fn registers_outside_the_bar_are_refused() {
    let drive = stepped().queue_pairs(3).build().unwrap();
    for at in [2, 0x1000 + 8 * 4, 1 << 40, u64::MAX - 3] {
        assert!(matches!(drive.read_u32(at), Err(FunctionError::OutsideBar { .. })), "{at:#x}");
        assert!(matches!(drive.write_u64(at, 0), Err(FunctionError::OutsideBar { .. })), "{at:#x}");
        assert!(drive.doorbell(at).is_err(), "{at:#x}");
    }
    assert!(drive.doorbell(0x20).is_err());
    assert!(drive.doorbell(0x101c).is_ok());
    assert!(drive.unmap(0x5000).is_err());
}
