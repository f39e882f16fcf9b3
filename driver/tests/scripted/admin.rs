use std::time::Duration;

use warprow_dma::Clock;
use warprow_driver::{BlockIo, ControllerEvent, DriverError, EventDetails, FormatRequest, PushError, QueueOptions};
use warprow_spec::admin::SecureErase;
use warprow_spec::async_event::{AsyncEvent, AsyncEventKind, HealthEvent, NoticeEvent};
use warprow_spec::features::FeatureId;
use warprow_spec::identify::{Cmic, Fna, Fpi, Oacs};
use warprow_spec::log::LogPageId;
use warprow_spec::{AdminOpcode, IntoBytes, NSID_ALL, Sqe, StatusCode};

use crate::device::{Device, Reply, format, namespace};
use crate::{assert_error, open};

fn is(sqe: &Sqe, opcode: AdminOpcode) -> bool {
    sqe.opcode() == opcode.0
}

#[test]
fn queues_are_asked_for_before_any_is_made() {
    let device = Device::new();
    let controller = open(&device).unwrap();
    assert_eq!(device.state().admin_log[0], AdminOpcode::SET_FEATURES);
    let pairs: Vec<_> = (0..4).map(|_| controller.queue_pair(&Default::default()).unwrap()).collect();
    assert_eq!(pairs.iter().map(|pair| pair.id()).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_error!(controller.queue_pair(&Default::default()), DriverError::NoQueueLeft { granted: 4, .. }, "all 4");
    drop(pairs);
    assert_eq!(controller.queue_pair(&Default::default()).unwrap().id(), 1);
}

#[test]
fn a_status_is_told_in_words() {
    let device = Device::new();
    let controller = open(&device).unwrap();
    device.script(|_, _| Reply::Fail(StatusCode::InvalidField));
    assert_error!(
        controller.set_feature(FeatureId::VOLATILE_WRITE_CACHE, 0, 1),
        DriverError::Command { .. },
        "scripted:0",
        "Set Features (09h)",
        "Invalid Field in Command",
    );
}

/// A Set Features command for host memory would tell the drive to write where nobody knows what there is.
#[test]
fn host_memory_is_not_lent_by_the_number_of_its_feature() {
    let device = Device::new();
    let controller = open(&device).unwrap();
    let sent = device.state().admin_log.len();
    for value in [1, 3, u32::MAX] {
        assert_error!(
            controller.set_feature(FeatureId::from_bits(0x0d), 0, value),
            DriverError::FeatureLendsMemory { fid: FeatureId::HOST_MEMORY_BUFFER, .. },
            "scripted:0",
            "Host Memory Buffer (0Dh)",
            "Options::host_memory_limit",
        );
    }
    assert_eq!(device.state().admin_log.len(), sent, "nothing was sent");
    controller.set_feature(FeatureId::HOST_MEMORY_BUFFER, 0, 0).unwrap();
    assert_eq!(device.state().admin_log.len(), sent + 1);
}

#[test]
fn a_command_without_answer_times_out_and_the_others_do_not() {
    let device = Device::new();
    let controller = open(&device).unwrap();
    let began = device.clock().now();
    device.script(|_, sqe| if is(sqe, AdminOpcode::GET_LOG_PAGE) { Reply::Silent } else { Reply::Default });
    assert_error!(
        controller.smart_log(),
        DriverError::TimedOut { .. },
        "Get Log Page (02h)",
        "within 30",
        "CSTS 0x1: ready",
        "quarantine",
    );
    assert!((30..32).contains(&(device.clock().now() - began).as_secs()));
    controller.namespace(1).unwrap();
    // The lost commands' slots stay taken; at some point none is left, and a reset helps.
    let mut last = None;
    for _ in 0..31 {
        last = controller.smart_log().err();
    }
    assert_error!(Err::<(), _>(last.unwrap()), DriverError::AdminQueueFull { .. }, "no free slot");
    device.obey();
    controller.reset(Default::default()).unwrap();
    controller.smart_log().unwrap();
}

#[test]
fn a_late_answer_is_not_taken_for_another() {
    let device = Device::new();
    let controller = open(&device).unwrap();
    let (sender, late) = std::sync::mpsc::channel();
    device.script(move |_, sqe| {
        sender.send(sqe.cid()).unwrap();
        Reply::Silent
    });
    assert_error!(controller.smart_log(), DriverError::TimedOut { .. }, "no answer");
    device.obey();
    let cid = late.try_iter().next().unwrap();
    device.answer(0, cid, 77, StatusCode::InternalError);
    for _ in 0..100 {
        assert_eq!(controller.namespace(1).unwrap().lba_count(), 4096);
    }
}

#[test]
fn an_answer_under_another_cid_ends_nothing() {
    let device = Device::new();
    let controller = open(&device).unwrap();
    device.script(|_, sqe| Reply::UnderCid(sqe.cid() ^ 1));
    assert_error!(controller.smart_log(), DriverError::TimedOut { .. }, "no answer");
}

#[test]
fn events_are_armed_again_after_their_log_page() {
    let device = Device::new();
    let controller = open(&device).unwrap();
    assert_eq!(device.state().pending_events.len(), 4);
    assert!(controller.take_events().unwrap().is_empty());
    for _ in 0..10 {
        let cid = device.state().pending_events.remove(0);
        let kind = AsyncEventKind::Health(HealthEvent::TEMPERATURE);
        let event = AsyncEvent::from_kind(kind, LogPageId::SMART);
        device.answer(0, cid, event.into_bits(), StatusCode::Success);
        device.state().admin_log.clear();
        let events = controller.take_events().unwrap();
        assert_eq!((events.len(), events[0].event.kind()), (1, kind));
        assert!(matches!(&events[0].details, EventDetails::Health(log) if log.available_spare == 0x5a));
        let log = [AdminOpcode::GET_LOG_PAGE, AdminOpcode::ASYNC_EVENT_REQUEST];
        assert_eq!(device.state().admin_log, log, "first the page is read, then the request sent");
        assert_eq!(device.state().pending_events.len(), 4);
    }
    // Requests have no deadline.
    device.clock().sleep(Duration::from_secs(1 << 20));
    controller.smart_log().unwrap();
    assert!(controller.take_events().unwrap().is_empty());
}

#[test]
fn events_are_polled_for_without_waiting() {
    let device = Device::new();
    let controller = open(&device).unwrap();
    let mut events: Vec<ControllerEvent> = Vec::new();
    let mut poll = || {
        let began = device.clock().now();
        let polled = controller.poll_events(|event| events.push(event)).unwrap();
        assert_eq!(device.clock().now(), began, "it waited");
        (polled.reading, polled.namespace_notices, std::mem::take(&mut events))
    };
    let raise = |kind, page| {
        let cid = device.state().pending_events.remove(0);
        device.answer(0, cid, AsyncEvent::from_kind(kind, page).into_bits(), StatusCode::Success);
    };
    assert!(matches!(poll(), (false, 0, none) if none.is_empty()));
    let hot = AsyncEventKind::Health(HealthEvent::TEMPERATURE);
    for _ in 0..10 {
        raise(hot, LogPageId::SMART);
        assert!(matches!(poll(), (true, 0, none) if none.is_empty()));
        // Admin commands go on meanwhile, and bring no confusion.
        controller.namespace(1).unwrap();
        let (reading, _, events) = poll();
        assert_eq!((reading, events.len(), events[0].event.kind()), (false, 1, hot));
        assert!(matches!(&events[0].details, EventDetails::Health(log) if log.available_spare == 0x5a));
        assert_eq!(device.state().pending_events.len(), 4);
    }

    // Notices count at once, whatever becomes of their log page.
    device.script(|_, sqe| if is(sqe, AdminOpcode::GET_LOG_PAGE) { Reply::Silent } else { Reply::Default });
    let changed = AsyncEventKind::Notice(NoticeEvent::NAMESPACE_ATTRIBUTE);
    raise(changed, LogPageId::CHANGED_NAMESPACES);
    assert!(matches!(poll(), (true, 1, none) if none.is_empty()));
    device.clock().sleep(Duration::from_secs(31));
    let (reading, notices, events) = poll();
    assert_eq!((reading, notices, events[0].event.kind()), (false, 1, changed));
    assert!(matches!(&events[0].details, EventDetails::Unread(why) if why.contains("no answer")), "{events:?}");
    // One that a reset ends is told of as well.
    raise(hot, LogPageId::SMART);
    assert!(poll().0);
    device.obey();
    controller.reset(Default::default()).unwrap();
    assert!(matches!(&poll().2[0].details, EventDetails::Unread(why) if why.contains("reset")));
}

#[test]
fn a_controller_that_refuses_events_is_not_asked_again() {
    let device = Device::new();
    device.script(|_, sqe| {
        let refused = is(sqe, AdminOpcode::ASYNC_EVENT_REQUEST);
        if refused { Reply::Fail(StatusCode::AsyncEventLimitExceeded) } else { Reply::Default }
    });
    let controller = open(&device).unwrap();
    controller.take_events().unwrap();
    controller.take_events().unwrap();
    let asked = device.state().admin_log.iter().filter(|&&o| o == AdminOpcode::ASYNC_EVENT_REQUEST).count();
    assert_eq!(asked, 4);
}

#[test]
fn more_than_a_page_of_namespaces() {
    let device = Device::new();
    device.state().controller.nn = 3000;
    device.state().namespaces = (1..=2500).map(|nsid| (nsid, namespace(8))).collect();
    let controller = open(&device).unwrap();
    assert_eq!(controller.active_namespaces().unwrap(), (1..=2500).collect::<Vec<_>>());
    assert_eq!(controller.namespace(2500).unwrap().lba_count(), 8);
    // A list that starts over would never end.
    device.script(|_, sqe| {
        let ids = (1..=1024u32).flat_map(u32::to_le_bytes).collect();
        if sqe.cdw10 == 2 { Reply::Succeed(0, ids) } else { Reply::Default }
    });
    assert_error!(controller.active_namespaces(), DriverError::BadNamespace { .. }, "does not ascend");
}

#[test]
fn namespaces_that_cannot_be() {
    let device = Device::new();
    let controller = open(&device).unwrap();
    let with = |change: &dyn Fn(&mut warprow_spec::identify::IdentifyNamespace)| {
        let mut data = namespace(4096);
        change(&mut data);
        device.state().namespaces.insert(1, data);
        controller.namespace(1)
    };
    assert_error!(with(&|ns| ns.nsze = 0), DriverError::NoSuchNamespace { nsid: 1, .. }, "namespace 1");
    assert_error!(controller.namespace(2), DriverError::NoSuchNamespace { nsid: 2, .. }, "namespace 2");
    assert_error!(
        with(&|ns| ns.flbas = ns.flbas.with_index_lower(9)),
        DriverError::BadNamespace { .. },
        "format 9",
        "up to 2",
    );
    assert_error!(with(&|ns| ns.lbaf[0] = format(8, 0)), DriverError::BadNamespace { .. }, "2^8");
    assert_error!(with(&|ns| ns.lbaf[0] = format(255, 0)), DriverError::BadNamespace { .. }, "2^255");
    assert_error!(with(&|ns| ns.nlbaf_z = 200), DriverError::BadNamespace { .. }, "201");
    assert_error!(with(&|ns| ns.nsze = 1 << 60), DriverError::BadNamespace { .. }, "2^63");
    let metadata = with(&|ns| ns.flbas = ns.flbas.with_index_lower(1)).unwrap();
    assert_eq!((metadata.lba_bytes(), metadata.metadata_bytes()), (512, 8));
}

#[test]
fn identify_without_data_is_not_believed() {
    let device = Device::new();
    let controller = open(&device).unwrap();
    device.script(|_, _| Reply::Succeed(0, Vec::new()));
    assert_error!(controller.namespace(1), DriverError::NoSuchNamespace { .. }, "no active namespace 1");
}

#[test]
fn format_reports_progress_and_identifies_again() {
    let device = Device::new();
    let controller = open(&device).unwrap();
    let answering = device.clone();
    let (sender, sent) = std::sync::mpsc::channel();
    device.script(move |_, sqe| {
        if is(sqe, AdminOpcode::FORMAT_NVM) {
            sender.send(*sqe).unwrap();
            return Reply::Silent;
        }
        Reply::Default
    });
    device.state().namespaces.get_mut(&1).unwrap().fpi = Fpi::new().with_supported(true).with_remaining(60);
    let mut seen = Vec::new();
    let formatted = controller.format(&FormatRequest::new(1, 4096), |progress| {
        seen.push(progress);
        if seen.len() == 90 {
            let sqe: Sqe = sent.try_iter().next().unwrap();
            assert_eq!(sqe.cdw10, 2, "format 2, no erase, no protection");
            let mut done = namespace(4096 / 8);
            done.flbas = done.flbas.with_index_lower(2);
            answering.state().namespaces.insert(1, done);
            answering.answer(0, sqe.cid(), 0, StatusCode::Success);
        }
    });
    let formatted = formatted.unwrap();
    assert_eq!((formatted.lba_bytes(), formatted.lba_count()), (4096, 512));
    assert_eq!(seen.len(), 90, "longer than other admin commands may take");
    assert!(seen.iter().all(|progress| progress.percent == Some(40)));
    assert!((1..3).contains(&seen[0].waited.as_secs()) && (85..100).contains(&seen[89].waited.as_secs()));
}

#[test]
fn format_times_out() {
    let device = Device::new();
    let controller = open(&device).unwrap();
    device.script(|_, sqe| if is(sqe, AdminOpcode::FORMAT_NVM) { Reply::Silent } else { Reply::Default });
    assert_error!(
        controller.format(&FormatRequest::new(1, 4096), |_| {}),
        DriverError::TimedOut { waited, .. } if waited.as_secs() == 600,
        "Format NVM (80h)",
        "namespace 1",
    );
}

#[test]
fn no_write_is_accepted_while_a_format_may_go_on() {
    let device = Device::new();
    let controller = open(&device).unwrap();
    let options = QueueOptions { entries: 8, completion_entries: 8, ..QueueOptions::default() };
    device.script(|_, sqe| if is(sqe, AdminOpcode::FORMAT_NVM) { Reply::Silent } else { Reply::Default });
    controller.format(&FormatRequest::new(1, 512), |_| {}).unwrap_err();
    device.obey();
    // Not even a queue made anew helps: the command is not in it.
    let mut pair = controller.queue_pair(&options).unwrap();
    // SAFETY: it names no memory.
    #[allow(unsafe_code, reason = "a raw command")]
    let pushed = unsafe { pair.push(Sqe::write_zeroes(1, 0, 0, false), 0) };
    assert_eq!(pushed, Err(PushError::LateWrites { count: 1 }));
    assert!(pushed.unwrap_err().to_string().contains("reset"));
    assert_error!(controller.check_late_writes(), DriverError::LateWrites { count: 1, .. }, "1 ");
    drop(pair);
    let mut io = BlockIo::new(&controller, controller.namespace(1).unwrap(), &options).unwrap();
    assert_error!(io.write(0, &[1; 512]), DriverError::Push { .. }, "Controller::namespace");
    drop(io);
    controller.reset(Default::default()).unwrap();
    let mut io = BlockIo::new(&controller, controller.namespace(1).unwrap(), &options).unwrap();
    io.write(0, &[1; 512]).unwrap();
}

#[test]
fn format_refusals() {
    let device = Device::new();
    let controller = open(&device).unwrap();
    assert_error!(
        controller.format(&FormatRequest::new(1, 8192), |_| {}),
        DriverError::LbaFormatNotOffered { .. },
        "8192 B",
        "512 B, 512 B + 8 B metadata, 4096 B",
    );
    assert_error!(
        controller.format(&FormatRequest::new(3, 512), |_| {}),
        DriverError::NoSuchNamespace { nsid: 3, .. },
        "3"
    );
    // Even if the device describes "all namespaces" as one.
    device.state().namespaces.insert(NSID_ALL, namespace(4096));
    assert_error!(
        controller.format(&FormatRequest::new(NSID_ALL, 512), |_| {}),
        DriverError::NoSuchNamespace { nsid: NSID_ALL, .. },
        "no active namespace"
    );
    device.state().namespaces.remove(&NSID_ALL);
    assert!(!device.state().admin_log.contains(&AdminOpcode::FORMAT_NVM));
    // The device says yes and does nothing.
    device.script(
        |_, sqe| {
            if is(sqe, AdminOpcode::FORMAT_NVM) { Reply::Succeed(0, Vec::new()) } else { Reply::Default }
        },
    );
    assert_error!(
        controller.format(&FormatRequest::new(1, 4096), |_| {}),
        DriverError::FormatNotApplied { .. },
        "512 B, not 4096 B",
    );
    device.state().controller.oacs.set_format_nvm(false);
    controller.reset(Default::default()).unwrap();
    assert_error!(
        controller.format(&FormatRequest::new(1, 512), |_| {}),
        DriverError::Unsupported { .. },
        "Format NVM"
    );
}

#[test]
fn a_format_of_everything_needs_consent() {
    let device = Device::new();
    device.state().namespaces.insert(2, namespace(1 << 21));
    device.state().controller.fna = Fna::new().with_format_all(true);
    let controller = open(&device).unwrap();
    let mut request = FormatRequest::new(1, 512);
    assert_error!(
        controller.format(&request, |_| {}),
        DriverError::FormatNeedsConsent { .. },
        "namespace 1 (2.1 MB), namespace 2 (1.1 GB)",
        "consent",
    );
    assert!(!device.state().admin_log.contains(&AdminOpcode::FORMAT_NVM));
    request.lose_all_namespaces = true;
    controller.format(&request, |_| {}).unwrap();
    // Alone on the drive, a namespace loses nobody else.
    device.state().namespaces.remove(&2);
    request.lose_all_namespaces = false;
    controller.format(&request, |_| {}).unwrap();
}

#[test]
fn what_cannot_be_listed_counts_as_lost() {
    let device = Device::new();
    device.state().controller.fna = Fna::new().with_format_all(true);
    device.state().controller.cmic = Cmic::new().with_multiple_controllers(true);
    let controller = open(&device).unwrap();
    assert_error!(
        controller.format(&FormatRequest::new(1, 512), |_| {}),
        DriverError::FormatNeedsConsent { .. },
        "namespace 1 (2.1 MB), any namespace of the drive's other controllers",
    );
    let request = FormatRequest { lose_all_namespaces: true, ..FormatRequest::new(1, 512) };
    controller.format(&request, |_| {}).unwrap();
    // A drive that manages namespaces lists all that are allocated, attached here or not.
    device.state().controller.oacs = Oacs::new().with_format_nvm(true).with_namespace_management(true);
    controller.reset(Default::default()).unwrap();
    device.script(|_, sqe| {
        let allocated = [1u32, 3].into_iter().flat_map(u32::to_le_bytes).collect();
        if sqe.cdw10 == 0x10 { Reply::Succeed(0, allocated) } else { Reply::Default }
    });
    assert_error!(
        controller.format(&FormatRequest::new(1, 512), |_| {}),
        DriverError::FormatNeedsConsent { .. },
        "namespace 1 (2.1 MB), namespace 3 (size unknown);",
    );
    // A secure erase may reach further than a format.
    device.state().controller.fna = Fna::new().with_erase_all(true);
    device.obey();
    controller.reset(Default::default()).unwrap();
    device.state().namespaces.insert(2, namespace(8));
    let erase = FormatRequest { erase: SecureErase::USER_DATA, ..FormatRequest::new(1, 512) };
    assert_error!(controller.format(&erase, |_| {}), DriverError::FormatNeedsConsent { .. }, "namespace 2");
    controller.format(&FormatRequest::new(1, 512), |_| {}).unwrap();
}

#[test]
fn logs_are_read_by_their_types() {
    let device = Device::new();
    let controller = open(&device).unwrap();
    let entry = |count: u64| {
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(count.as_bytes());
        bytes
    };
    device.script(move |_, _| Reply::Succeed(0, [entry(9), entry(8), entry(0)].concat()));
    let counts: Vec<u64> = controller.error_log(5).unwrap().iter().map(|entry| entry.error_count).collect();
    assert_eq!(counts, [9, 8]);
    device.script(|_, sqe| Reply::Succeed(0, vec![sqe.cdw10 as u8; 4096]));
    assert_eq!(controller.firmware_slots().unwrap().afi.active(), LogPageId::FIRMWARE_SLOT.0);
    assert!(controller.log_page(LogPageId(0x99), 0, 1 << 20).unwrap().iter().all(|&byte| byte == 0x99));
}
