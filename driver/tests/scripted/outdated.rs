//! Namespaces that were described before a format, or during one.

use std::sync::Arc;

use warprow_dma::MappedMemory;
use warprow_driver::prp::Data;
use warprow_driver::{Controller, DriverError, FormatRequest, Namespace, PushError, QueueOptions, QueuePair};
use warprow_spec::identify::Fpi;
use warprow_spec::{AdminOpcode, StatusCode};

use crate::device::{Device, Reply, namespace};
use crate::{assert_error, open};

const OUTDATED: PushError = PushError::Outdated { nsid: 1 };

/// A device that answers a format so, and does nothing else of it.
fn device(mut reply: impl FnMut(u16) -> Reply + Send + 'static) -> Device {
    let device = Device::new();
    device.script(move |qid, sqe| {
        let formats = qid == 0 && sqe.opcode() == AdminOpcode::FORMAT_NVM.0;
        if formats { reply(sqe.cid()) } else { Reply::Default }
    });
    device
}

/// Puts the namespace in LBAs of 4,096 B.
fn change(device: &Device) {
    let mut data = namespace(512);
    data.flbas = data.flbas.with_index_lower(2);
    device.state().namespaces.insert(1, data);
}

fn pair(controller: &Arc<Controller>) -> (QueuePair, Arc<MappedMemory>) {
    let options = QueueOptions { entries: 8, completion_entries: 8, ..QueueOptions::default() };
    let mut pair = controller.queue_pair(&options).unwrap();
    let buffer = controller.allocate(1 << 16).unwrap();
    pair.keep(buffer.clone());
    (pair, buffer)
}

/// Every command that names blocks, with data of `bytes` for one of them.
fn refusals(controller: &Arc<Controller>, ns: &Namespace) -> [Result<u16, PushError>; 4] {
    let (mut pair, buffer) = pair(controller);
    let data = Data::Contiguous { iova: buffer.iova(), len: u64::from(ns.lba_bytes()) };
    [
        pair.read(ns, 0, 1, data, 0),
        pair.write(ns, 0, 1, data, false, 0),
        pair.write_zeroes(ns, 0, 1, false, 0),
        pair.deallocate(ns, &[(0, 1)], 0),
    ]
}

fn reads(controller: &Arc<Controller>, ns: &Namespace) {
    let (mut pair, buffer) = pair(controller);
    let data = Data::Contiguous { iova: buffer.iova(), len: u64::from(ns.lba_bytes()) };
    pair.read(ns, 0, 1, data, 0).unwrap();
    assert_eq!(pair.wait(|completion| assert!(completion.is_success())).unwrap(), 1);
}

#[test]
fn what_was_described_before_a_format_is_refused() {
    let device = Device::new();
    device.state().namespaces.insert(2, namespace(64));
    let controller = open(&device).unwrap();
    let (before, other) = (controller.namespace(1).unwrap(), controller.namespace(2).unwrap());
    reads(&controller, &before);
    let arrived = device.state().io_count;
    let after = controller.format(&FormatRequest::new(1, 4096), |_| {}).unwrap();
    // 8 blocks of before would be 32 KiB now, in a buffer of 4.
    assert_eq!(refusals(&controller, &before), [Err(OUTDATED); 4]);
    assert_eq!(before.check_of(&controller), Err(OUTDATED));
    // A format may reach the others as well.
    assert_eq!(refusals(&controller, &other), [Err(PushError::Outdated { nsid: 2 }); 4]);
    assert_eq!(device.state().io_count, arrived);
    reads(&controller, &after);
    reads(&controller, &controller.namespace(2).unwrap());
    assert!(OUTDATED.to_string().contains("Controller::namespace"));
}

#[test]
fn what_is_described_during_a_format_is_refused_after_it() {
    let (sender, sent) = std::sync::mpsc::channel();
    let device = device(move |cid| {
        sender.send(cid).unwrap();
        Reply::Silent
    });
    let controller = open(&device).unwrap();
    let mut during = None;
    let request = FormatRequest::new(1, 4096);
    let after = controller.format(&request, |_| {
        if during.is_none() {
            during = Some(controller.namespace(1).unwrap());
            assert_eq!(during.as_ref().unwrap().check_of(&controller), Err(OUTDATED));
            change(&device);
            device.answer(0, sent.recv().unwrap(), 0, StatusCode::Success);
        }
    });
    assert_eq!(during.unwrap().check_of(&controller), Err(OUTDATED));
    reads(&controller, &after.unwrap());
}

#[test]
fn a_format_that_failed_may_have_changed_the_namespace() {
    let device = device(|_| Reply::Fail(StatusCode::InternalError));
    let controller = open(&device).unwrap();
    let before = controller.namespace(1).unwrap();
    // What was not sent changes nothing.
    controller.format(&FormatRequest::new(1, 8192), |_| {}).unwrap_err();
    controller.format(&FormatRequest::new(3, 512), |_| {}).unwrap_err();
    assert_eq!(before.check_of(&controller), Ok(()));
    assert_error!(
        controller.format(&FormatRequest::new(1, 4096), |_| {}),
        DriverError::Command { .. },
        "Internal Error"
    );
    assert_eq!(refusals(&controller, &before), [Err(OUTDATED); 4]);
    reads(&controller, &controller.namespace(1).unwrap());
}

/// The drive may put the namespace in another format whenever it likes, until a reset.
#[test]
fn after_a_format_that_timed_out_nothing_is_known_until_a_reset() {
    let device = device(|_| Reply::Silent);
    let controller = open(&device).unwrap();
    let before = controller.namespace(1).unwrap();
    assert_error!(
        controller.format(&FormatRequest::new(1, 4096), |_| {}),
        DriverError::TimedOut { .. },
        "Format NVM (80h)"
    );
    let late = controller.namespace(1).unwrap();
    for ns in [&before, &late] {
        assert_eq!(refusals(&controller, ns)[0], Err(OUTDATED));
    }
    change(&device);
    controller.reset(Default::default()).unwrap();
    for ns in [&before, &late] {
        assert_eq!(refusals(&controller, ns)[0], Err(OUTDATED));
    }
    // A drive that goes on after the reset says so.
    let go_on = |remaining| {
        let fpi = Fpi::new().with_supported(true).with_remaining(remaining);
        device.state().namespaces.get_mut(&1).unwrap().fpi = fpi;
        controller.namespace(1).unwrap()
    };
    let ns = go_on(1);
    assert_eq!(refusals(&controller, &ns)[0], Err(OUTDATED));
    let ns = go_on(0);
    reads(&controller, &ns);
    assert_eq!(refusals(&controller, &late)[0], Err(OUTDATED));
}

/// A reset that loses nothing of the kind leaves what is known as it is.
#[test]
fn a_reset_without_a_format_outdates_nothing() {
    let device = Device::new();
    let controller = open(&device).unwrap();
    let ns = controller.namespace(1).unwrap();
    controller.reset(Default::default()).unwrap();
    reads(&controller, &ns);
}
