use std::time::Duration;

use warprow_dma::Clock;
use warprow_driver::DriverError;
use warprow_spec::identify::{ControllerType, EntrySize};
use warprow_spec::registers::{Cap, Cc, Csts};

use crate::device::Device;
use crate::{assert_error, open};

#[test]
fn order_of_bring_up_and_drop() {
    let device = Device::new();
    // Somebody left it enabled, with bus master on.
    device.state().cc = Cc::new().with_en(true);
    device.state().csts = Csts::new().with_rdy(true);
    device.state().bus_master = true;
    let controller = open(&device).unwrap();
    assert_eq!(device.state().log, ["bus master off", "disable", "bus master on", "enable"]);
    assert_eq!(controller.granted_queue_pairs(), 4);
    let cc = device.state().cc;
    assert_eq!((cc.iosqes(), cc.iocqes(), cc.mps(), cc.css().0), (6, 4, 0, 0));
    device.state().log.clear();
    drop(controller);
    assert_eq!(device.state().log, ["disable", "bus master off", "unmap"], "no memory goes while it can be written");
    assert_eq!(device.mapped(), 0);
}

#[test]
fn capabilities_that_cannot_be_driven() {
    let with = |change: fn(Cap) -> Cap| {
        let device = Device::new();
        let cap = device.state().cap;
        device.state().cap = change(cap);
        let result = open(&device);
        assert!(device.state().log.is_empty(), "nothing was touched");
        result
    };
    assert_error!(with(|cap| cap.with_mpsmin(1)), DriverError::Unusable { .. }, "MPSMIN", "8 KiB");
    assert_error!(with(|cap| cap.with_mqes_z(0)), DriverError::Unusable { .. }, "MQES");
    assert_error!(with(|cap| cap.with_css_nvm(false)), DriverError::Unusable { .. }, "NVM command set");
    assert_error!(with(|_| Cap::from_bits(u64::MAX)), DriverError::Unusable { .. }, "MPSMIN");
    assert_error!(with(|_| Cap::from_bits(0)), DriverError::Unusable { .. }, "MQES");
}

#[test]
fn identify_data_that_cannot_be_driven() {
    let device = Device::new();
    device.state().controller.cntrltype = ControllerType::DISCOVERY;
    assert_error!(open(&device), DriverError::Unusable { .. }, "discovery");
    let device = Device::new();
    device.state().controller.sqes = EntrySize::new().with_required(7).with_maximum(7);
    assert_error!(open(&device), DriverError::Unusable { .. }, "SQES");
    assert!(!device.state().csts.rdy(), "it was disabled again");
    assert_eq!(device.mapped(), 0);
}

#[test]
fn a_device_that_is_gone() {
    let device = Device::new();
    device.state().gone = true;
    assert_error!(open(&device), DriverError::Gone { .. }, "scripted:0", "all ones");

    let device = Device::new();
    let controller = open(&device).unwrap();
    device.state().gone = true;
    assert_error!(controller.smart_log(), DriverError::Gone { .. }, "admin command");
    assert!(device.clock().now() < Duration::from_secs(1), "no time-out had to pass");
    drop(controller);
    assert_eq!(device.mapped(), 0);
}

#[test]
fn never_ready() {
    let device = Device::new();
    device.state().enable_time = None;
    assert_error!(open(&device), DriverError::NotReady { ready: true, .. }, "ready within 2", "CSTS 0x0");
    // CAP.TO is in 500 ms.
    assert!((Duration::from_secs(2)..Duration::from_secs(5)).contains(&device.clock().now()));
}

#[test]
fn crto_counts_where_it_is_longer() {
    let device = Device::new();
    device.state().enable_time = Some(Duration::from_secs(20));
    assert_error!(open(&device), DriverError::NotReady { ready: true, .. }, "ready");
    let cap = device.state().cap.with_crwms(true);
    device.state().cap = cap;
    device.state().crto = 60;
    open(&device).unwrap();
    // All bits set is a time like another: only CSTS tells that a device is gone.
    device.state().crto = u32::MAX;
    open(&device).unwrap();
}

#[test]
fn fatal_while_enabling() {
    let device = Device::new();
    device.state().fails_on_enable = true;
    assert_error!(open(&device), DriverError::Fatal { .. }, "fatal error", "enabling");
}

#[test]
fn fatal_from_before_is_cleared_by_the_reset() {
    let device = Device::new();
    device.state().cc = Cc::new().with_en(true);
    device.state().csts = Csts::new().with_rdy(true).with_cfs(true);
    open(&device).unwrap();
    assert_eq!(device.state().resets, 0);
}

#[test]
fn a_controller_that_does_not_disable_is_reset() {
    let device = Device::new();
    device.state().cc = Cc::new().with_en(true);
    device.state().csts = Csts::new().with_rdy(true);
    device.state().disable_time = None;
    let controller = open(&device).unwrap();
    assert_eq!(device.state().resets, 1);
    device.state().disable_time = Some(Duration::ZERO);
    drop(controller);

    device.state().obeys_reset = false;
    device.state().cc = Cc::new().with_en(true);
    device.state().csts = Csts::new().with_rdy(true);
    device.state().disable_time = None;
    assert_error!(open(&device), DriverError::NotReady { ready: false, .. }, "disabled within", "power-cycle");
}

#[test]
fn memory_is_leaked_when_the_device_cannot_be_stopped() {
    let device = Device::new();
    let controller = open(&device).unwrap();
    let pair = controller.queue_pair(&Default::default()).unwrap();
    let before = device.mapped();
    device.state().disable_time = None;
    device.state().obeys_reset = false;
    device.state().bus_master_stays = true;
    device.script(|_, _| crate::device::Reply::Silent);
    drop(pair);
    drop(controller);
    assert_eq!(device.mapped(), before, "nothing that the device may still write was unmapped");
    device.state().bus_master_stays = false;
}

#[test]
fn shutdown_by_the_book() {
    let device = Device::new();
    let controller = open(&device).unwrap();
    let pair = controller.queue_pair(&Default::default()).unwrap();
    assert_error!(controller.shutdown(), DriverError::QueuesInUse { .. }, "[1]");
    drop(pair);
    device.state().log.clear();
    controller.shutdown().unwrap();
    assert_eq!(device.state().log, ["shutdown", "disable", "bus master off"]);
    assert_error!(controller.smart_log(), DriverError::Down { .. }, "not enabled");
    assert_error!(controller.shutdown(), DriverError::Down { .. }, "not enabled");
    controller.reset(Default::default()).unwrap();
    controller.smart_log().unwrap();
}

#[test]
fn a_shutdown_is_given_rtd3e() {
    let device = Device::new();
    device.state().shutdown_time = Some(Duration::from_secs(25));
    assert_error!(open(&device).unwrap().shutdown(), DriverError::ShutdownTimeout { .. }, "occurring", "cache");
    device.state().controller.rtd3e = 30_000_000;
    open(&device).unwrap().shutdown().unwrap();
}
