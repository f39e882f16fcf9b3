//! What a drive without memory of its own, or with a mind to sleep, is told when it is brought up.

use std::sync::{Arc, Mutex};

use warprow_driver::{Controller, ControllerOptions, DriverError, HostMemory, Locking, ResetKind};
use warprow_spec::identify::Oacs;
use warprow_spec::{AdminOpcode, Sqe, StatusCode};

use crate::device::{Device, Reply};
use crate::{assert_error, open};

const MIB: u64 = 1 << 20;

/// A device that asks for host memory, in 4 KiB, and the Set Features commands of that feature that it gets.
fn hungry(preferred: u32, least: u32) -> (Device, Arc<Mutex<Vec<Sqe>>>) {
    let device = Device::new();
    device.state().controller.hmpre = preferred;
    device.state().controller.hmmin = least;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    device.script(move |queue, sqe| {
        if queue == 0 && sqe.opcode() == AdminOpcode::SET_FEATURES.0 && sqe.cdw10 == 0x0d {
            log.lock().unwrap().push(*sqe);
        }
        Reply::Default
    });
    (device, seen)
}

fn open_with(device: &Device, limit: u64) -> Result<Arc<Controller>, DriverError> {
    let options = ControllerOptions { host_memory_limit: limit, ..ControllerOptions::default() };
    Controller::open(device.function(), device.clock(), options)
}

/// The one range that the list of a command names: address and pages.
fn range(device: &Device, sqe: &Sqe) -> (u64, u32) {
    assert_eq!((sqe.cdw11, sqe.cdw15), (1, 1), "enabled, one descriptor, not called its own of before");
    let list = u64::from(sqe.cdw14) << 32 | u64::from(sqe.cdw13);
    let bytes = device.memory(list, 16);
    let (address, rest) = bytes.split_first_chunk().unwrap();
    (u64::from_le_bytes(*address), u32::from_le_bytes(*rest.first_chunk().unwrap()))
}

#[test]
fn memory_that_is_asked_for_is_lent_and_taken_back_before_shutdown() {
    let (device, seen) = hungry(512, 16);
    let controller = open(&device).unwrap();
    assert_eq!(controller.host_memory(), HostMemory::Lent(2 * MIB));
    let sqe = seen.lock().unwrap()[0];
    assert_eq!(sqe.cdw12, 512);
    let (address, pages) = range(&device, &sqe);
    assert_eq!((address % 4096, pages), (0, 512));
    assert_eq!(device.memory(address, 2 << 20), vec![0; 2 << 20], "all of it is mapped, and shows nothing of ours");

    device.state().log.clear();
    controller.shutdown().unwrap();
    assert_eq!(device.state().log, ["shutdown", "disable", "bus master off"]);
    let commands: Vec<_> = seen.lock().unwrap().iter().map(|sqe| sqe.cdw11).collect();
    assert_eq!(commands, [1, 0], "given back while the drive was still up");
    drop(controller);
    assert_eq!((device.mapped(), device.state().dma_faults), (0, 0));
}

#[test]
fn a_reset_lends_the_same_memory_again() {
    let (device, seen) = hungry(64, 0);
    let controller = open(&device).unwrap();
    let mapped = device.mapped();
    controller.reset(ResetKind::Controller).unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 2);
    assert_eq!(range(&device, &seen[0]), range(&device, &seen[1]));
    assert_eq!(device.mapped(), mapped);
    assert_eq!(controller.host_memory(), HostMemory::Lent(64 * 4096));
}

#[test]
fn the_limit_holds_and_a_drive_below_its_least_gets_none() {
    let (device, _) = hungry(1 << 18, 16);
    assert_eq!(open_with(&device, 4 * MIB).unwrap().host_memory(), HostMemory::Lent(4 * MIB));
    let (device, seen) = hungry(1 << 18, 1 << 12);
    let controller = open_with(&device, 4 * MIB).unwrap();
    let HostMemory::Withheld(why) = controller.host_memory() else { panic!("{:?}", controller.host_memory()) };
    assert!(why.contains("16384 KiB") && why.contains("4096 KiB"), "{why}");
    assert!(seen.lock().unwrap().is_empty());
    let (device, seen) = hungry(u32::MAX, u32::MAX);
    assert!(matches!(open(&device).unwrap().host_memory(), HostMemory::Withheld(_)));
    assert!(seen.lock().unwrap().is_empty());
    assert_eq!(open(&Device::new()).unwrap().host_memory(), HostMemory::NotWanted);
}

#[test]
fn a_drive_that_refuses_the_memory_is_driven_without() {
    let (device, _) = hungry(64, 0);
    device.script(|queue, sqe| match (queue, sqe.opcode(), sqe.cdw10) {
        (0, 0x09, 0x0d) => Reply::Fail(StatusCode::InvalidField),
        _ => Reply::Default,
    });
    let controller = open(&device).unwrap();
    let HostMemory::Withheld(why) = controller.host_memory() else { panic!("{:?}", controller.host_memory()) };
    assert!(why.contains("Invalid Field"), "{why}");
    controller.shutdown().unwrap();
    drop(controller);
    assert_eq!(device.mapped(), 0);
}

#[test]
fn memory_of_an_unanswered_loan_is_kept_until_the_drive_is_disabled() {
    let (device, _) = hungry(64, 0);
    device.script(|queue, sqe| match (queue, sqe.opcode(), sqe.cdw10) {
        (0, 0x09, 0x0d) => Reply::Silent,
        _ => Reply::Default,
    });
    assert_error!(open(&device), DriverError::TimedOut { .. }, "Set Features");
    let log = device.state().log.clone();
    let disabled = log.iter().rposition(|entry| entry == "disable").unwrap();
    let unmapped = log.iter().position(|entry| entry == "unmap").unwrap();
    assert!(disabled < unmapped, "{log:?}");
    assert_eq!(device.mapped(), 0);

    // One that cannot be stopped keeps it for good.
    let (device, _) = hungry(64, 0);
    let controller = open(&device).unwrap();
    let mapped = device.mapped();
    let mut state = device.state();
    (state.disable_time, state.obeys_reset, state.bus_master_stays) = (None, false, true);
    drop(state);
    drop(controller);
    assert_eq!(device.mapped(), mapped);
}

#[test]
fn autonomous_power_states_are_turned_off_where_there_are_any() {
    let table = |device: &Device| {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        device.script(move |_, sqe| {
            if sqe.opcode() == AdminOpcode::SET_FEATURES.0 && sqe.cdw10 == 0x0c {
                log.lock().unwrap().push((sqe.cdw11, sqe.prp1 != 0));
            }
            Reply::Default
        });
        seen
    };
    let device = Device::new();
    let seen = table(&device);
    assert_eq!(open(&device).unwrap().power_transitions().unwrap(), None);
    assert!(seen.lock().unwrap().is_empty(), "it has none");

    device.state().controller.apsta = 1;
    let controller = open(&device).unwrap();
    assert_eq!(*seen.lock().unwrap(), [(0, true)], "off, with a table");
    assert_eq!(controller.power_transitions().unwrap(), Some(false));
    drop(controller);
    let options = ControllerOptions { autonomous_power_states: true, ..ControllerOptions::default() };
    drop(Controller::open(device.function(), device.clock(), options).unwrap());
    assert_eq!(seen.lock().unwrap().len(), 1, "they were wanted");

    device.script(|_, sqe| match (sqe.opcode(), sqe.cdw10) {
        (0x09, 0x0c) => Reply::Fail(StatusCode::FeatureNotChangeable),
        _ => Reply::Default,
    });
    open(&device).unwrap();
}

#[test]
fn a_locked_drive_says_so() {
    let device = Device::new();
    let controller = open(&device).unwrap();
    assert_eq!(controller.locking().unwrap(), None);
    drop(controller);
    device.state().controller.oacs = Oacs::new().with_security(true);
    let controller = open(&device).unwrap();
    let mut data = vec![0; 48];
    data.extend([0, 2, 0x10, 12, 0b0111]);
    data.resize(64, 0);
    data[3] = 60;
    device.script(move |_, sqe| match (sqe.opcode(), sqe.cdw10, sqe.cdw11) {
        (0x82, 0x0100_0100, 4096) => Reply::Succeed(0, data.clone()),
        _ => Reply::Default,
    });
    let locked = Locking { enabled: true, locked: true, encrypts: false };
    assert_eq!(controller.locking().unwrap(), Some(locked));
    device.script(|_, _| Reply::Fail(StatusCode::InvalidField));
    assert_eq!(controller.locking().unwrap(), None);
}
