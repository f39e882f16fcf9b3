//! Admin commands, their errors, and the error log.

mod common;

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Host, ram, stepped};
use warprow_dma::{DmaMemory, Function, PAGE};
use warprow_soft_controller::{Backing, FormatStep, MediaError, Namespace, RamBacking};
use warprow_spec::admin::FormatCdw10;
use warprow_spec::async_event::{AsyncEvent, AsyncEventKind, ErrorEvent, HealthEvent};
use warprow_spec::features::{FeatureId, NumberOfQueues};
use warprow_spec::identify::{Fna, IdentifyNamespace};
use warprow_spec::log::{CommandsSupportedLog, ErrorLogEntry, FirmwareSlotLog, LogPageId, SmartLog};
use warprow_spec::registers::{Cc, offset};
use warprow_spec::{AdminOpcode, FromBytes, NvmOpcode, Sqe, StatusCode};

fn set_features(host: &mut Host, id: FeatureId, value: u32) -> Result<u32, StatusCode> {
    let sqe = Sqe::new(AdminOpcode::SET_FEATURES.0, 0);
    let cqe = host.admin(Sqe { cdw10: id.0.into(), cdw11: value, ..sqe });
    if cqe.status().is_success() { Ok(cqe.dw0) } else { Err(cqe.status().code()) }
}

fn get_features(host: &mut Host, id: FeatureId, select: u32) -> Result<u32, StatusCode> {
    let sqe = Sqe::new(AdminOpcode::GET_FEATURES.0, 0);
    let cqe = host.admin(Sqe { cdw10: u32::from(id.0) | select << 8, ..sqe });
    if cqe.status().is_success() { Ok(cqe.dw0) } else { Err(cqe.status().code()) }
}

fn log_page(host: &mut Host, id: LogPageId, len: usize, retain: bool) -> Result<Vec<u8>, StatusCode> {
    let page = host.buffer(PAGE);
    let sqe = Sqe::new(AdminOpcode::GET_LOG_PAGE.0, u32::MAX).with_prps(page.iova, 0);
    let cdw10 = u32::from(id.0) | u32::from(retain) << 15 | (len as u32 / 4 - 1) << 16;
    let cqe = host.admin(Sqe { cdw10, ..sqe });
    if cqe.status().is_success() { Ok(page.bytes(0, len)) } else { Err(cqe.status().code()) }
}

fn delete(host: &mut Host, opcode: AdminOpcode, qid: u32) -> StatusCode {
    host.admin(Sqe { cdw10: qid, ..Sqe::new(opcode.0, 0) }).status().code()
}

#[test]
fn queues_are_created_and_deleted_by_the_rules() {
    let builder = stepped().namespace(ram(1 << 20)).queue_pairs(4).queue_entries(64);
    let mut host = Host::enabled(builder);
    let ring = host.buffer(PAGE);
    let mut cq = |id, iova, size| host.create_cq(id, iova, size).status().code();
    assert_eq!(cq(0, ring.iova, 16), StatusCode::InvalidQueueIdentifier);
    assert_eq!(cq(5, ring.iova, 16), StatusCode::InvalidQueueIdentifier);
    assert_eq!(cq(1, ring.iova, 1), StatusCode::InvalidQueueSize);
    assert_eq!(cq(1, ring.iova, 65), StatusCode::InvalidQueueSize);
    assert_eq!(cq(1, ring.iova + 16, 16), StatusCode::PrpOffsetInvalid);
    assert_eq!(cq(1, ring.iova, 64), StatusCode::Success);
    assert_eq!(cq(1, ring.iova, 16), StatusCode::InvalidQueueIdentifier);
    let sqe = Sqe::new(AdminOpcode::CREATE_IO_CQ.0, 0).with_prps(ring.iova, 0);
    let scattered = host.admin(Sqe { cdw10: 2 | 15 << 16, cdw11: 0, ..sqe });
    assert_eq!(scattered.status().code(), StatusCode::InvalidField);
    let vector = host.admin(Sqe { cdw10: 2 | 15 << 16, cdw11: 3 | 9 << 16, ..sqe });
    assert_eq!(vector.status().code(), StatusCode::InvalidInterruptVector);

    let mut sq = |id, size, cqid| host.create_sq(id, ring.iova, size, cqid).status().code();
    assert_eq!(sq(1, 16, 0), StatusCode::InvalidQueueIdentifier);
    assert_eq!(sq(1, 16, 9), StatusCode::InvalidQueueIdentifier);
    assert_eq!(sq(1, 16, 3), StatusCode::CompletionQueueInvalid);
    assert_eq!(sq(1, 65, 1), StatusCode::InvalidQueueSize);
    assert_eq!(sq(1, 2, 1), StatusCode::Success);
    assert_eq!(sq(1, 2, 1), StatusCode::InvalidQueueIdentifier);
    assert_eq!(sq(3, 16, 1), StatusCode::Success, "two submission queues may share a completion queue");

    let host = &mut host;
    assert_eq!(delete(host, AdminOpcode::DELETE_IO_CQ, 1), StatusCode::InvalidQueueDeletion);
    assert_eq!(delete(host, AdminOpcode::DELETE_IO_CQ, 0), StatusCode::InvalidQueueIdentifier);
    assert_eq!(delete(host, AdminOpcode::DELETE_IO_SQ, 2), StatusCode::InvalidQueueIdentifier);
    assert_eq!(delete(host, AdminOpcode::DELETE_IO_SQ, 3), StatusCode::Success);
    assert_eq!(delete(host, AdminOpcode::DELETE_IO_SQ, 1), StatusCode::Success);
    assert_eq!(delete(host, AdminOpcode::DELETE_IO_CQ, 1), StatusCode::Success);
    assert_eq!(delete(host, AdminOpcode::DELETE_IO_CQ, 1), StatusCode::InvalidQueueIdentifier);
    host.create_pair(1, 64);
    assert!(host.io(Sqe::new(NvmOpcode::FLUSH.0, 1)).status().is_success());
}

#[test]
fn entry_sizes_must_be_set_first() {
    let mut host = Host::enabled(stepped().namespace(ram(1 << 20)));
    let ring = host.buffer(PAGE);
    host.drive.write_u32(offset::CC, Cc::new().with_en(true).into_bits()).unwrap();
    assert_eq!(host.create_cq(1, ring.iova, 16).status().code(), StatusCode::InvalidField);
    host.drive.write_u32(offset::CC, Host::cc().with_en(true).into_bits()).unwrap();
    assert_eq!(host.create_cq(1, ring.iova, 16).status().code(), StatusCode::Success);
}

#[test]
fn queues_in_use_are_deleted_with_their_commands() {
    let builder = stepped().namespace(ram(1 << 20)).jitter(Duration::from_secs(9));
    let mut host = Host::with_queue(builder, 16);
    let cids: Vec<u16> = (0..5).map(|_| host.push(1, Sqe::new(NvmOpcode::FLUSH.0, 1))).collect();
    host.ring(1);
    host.turns(3);
    assert_eq!(delete(&mut host, AdminOpcode::DELETE_IO_SQ, 1), StatusCode::Success);
    let mut aborted: Vec<u16> = host
        .poll(1)
        .iter()
        .map(|cqe| {
            assert_eq!(cqe.status().code(), StatusCode::AbortedSqDeletion);
            cqe.cid
        })
        .collect();
    aborted.sort_unstable();
    assert_eq!(aborted, cids);
}

#[test]
fn the_number_of_queues_is_settled_once() {
    let mut host = Host::enabled(stepped().namespace(ram(1 << 20)).queue_pairs(8));
    let id = FeatureId::NUMBER_OF_QUEUES;
    assert_eq!(set_features(&mut host, id, 0xffff_0001), Err(StatusCode::InvalidField));
    let granted =
        NumberOfQueues::from_bits(set_features(&mut host, id, NumberOfQueues::request(99).into_bits()).unwrap());
    assert_eq!(granted.pairs(), 8);
    let granted = set_features(&mut host, id, NumberOfQueues::request(2).into_bits()).unwrap();
    assert_eq!(NumberOfQueues::from_bits(granted).pairs(), 2);
    assert_eq!(get_features(&mut host, id, 0), Ok(granted));
    let ring = host.buffer(PAGE);
    assert_eq!(host.create_cq(3, ring.iova, 16).status().code(), StatusCode::InvalidQueueIdentifier);
    assert_eq!(host.create_cq(2, ring.iova, 16).status().code(), StatusCode::Success);
    assert_eq!(set_features(&mut host, id, 0), Err(StatusCode::CommandSequenceError));
    host.disable();
    host.enable();
    assert_eq!(NumberOfQueues::from_bits(get_features(&mut host, id, 0).unwrap()).pairs(), 8);
}

#[test]
fn features_have_defaults_and_limits() {
    let mut host = Host::enabled(stepped().namespace(ram(1 << 20)));
    assert_eq!(
        set_features(&mut host, FeatureId::VOLATILE_WRITE_CACHE, 1),
        Err(StatusCode::InvalidField),
        "none there"
    );
    assert_eq!(set_features(&mut host, FeatureId(0x7b), 0), Err(StatusCode::InvalidField));
    assert_eq!(get_features(&mut host, FeatureId(0x7b), 0), Err(StatusCode::InvalidField));
    let save = Sqe { cdw10: 1 | 1 << 31, ..Sqe::new(AdminOpcode::SET_FEATURES.0, 0) };
    assert_eq!(host.admin(save).status().code(), StatusCode::FeatureNotSaveable);
    let default = get_features(&mut host, FeatureId::ARBITRATION, 0).unwrap();
    set_features(&mut host, FeatureId::ARBITRATION, 2).unwrap();
    assert_eq!(get_features(&mut host, FeatureId::ARBITRATION, 0), Ok(2));
    assert_eq!(get_features(&mut host, FeatureId::ARBITRATION, 1), Ok(default));
    assert_eq!(get_features(&mut host, FeatureId::ARBITRATION, 3), Ok(4), "changeable, not saveable");
    assert_eq!(set_features(&mut host, FeatureId::POWER_MANAGEMENT, 3), Err(StatusCode::InvalidField));
    let of_namespace = Sqe { nsid: 1, cdw10: 1, ..Sqe::new(AdminOpcode::SET_FEATURES.0, 0) };
    assert_eq!(host.admin(of_namespace).status().code(), StatusCode::FeatureNotNamespaceSpecific);
    let mut host = Host::enabled(stepped().namespace(ram(1 << 20).write_cache(1 << 20)));
    assert_eq!(get_features(&mut host, FeatureId::VOLATILE_WRITE_CACHE, 0), Ok(1));
    assert_eq!(set_features(&mut host, FeatureId::VOLATILE_WRITE_CACHE, 0), Ok(0));
    assert_eq!(get_features(&mut host, FeatureId::VOLATILE_WRITE_CACHE, 0), Ok(0));
}

#[test]
fn logs_tell_what_happened() {
    let mut host = Host::with_queue(stepped().namespace(ram(1 << 20)), 16);
    let page = host.buffer(PAGE);
    host.write(0, 8, page.iova);
    host.read(0, 8, page.iova);
    let cqe = host.io(Host::rw(NvmOpcode::READ, 1, 1 << 50, 1, page.iova));
    assert_eq!(cqe.status().code(), StatusCode::LbaOutOfRange);
    assert!(cqe.status().dnr() && cqe.status().more());
    host.admin(Sqe::new(0x77, 0));
    let errors = log_page(&mut host, LogPageId::ERROR, 192, false).unwrap();
    let entries: Vec<_> = errors.chunks(64).map(|entry| ErrorLogEntry::read_from_bytes(entry).unwrap()).collect();
    assert_eq!(entries[0].error_count, 2);
    assert_eq!(entries[0].status_phase.status().code(), StatusCode::InvalidCommandOpcode);
    assert_eq!((entries[1].error_count, entries[1].sqid, entries[1].cid), (1, 1, cqe.cid));
    assert_eq!((entries[1].lba, entries[1].nsid), (1 << 50, 1));
    assert_eq!(entries[1].parameter_error_location.byte(), 40);
    assert!(!entries[2].is_valid());
    let smart = SmartLog::read_from_bytes(&log_page(&mut host, LogPageId::SMART, 512, false).unwrap()).unwrap();
    assert_eq!((smart.data_units_read.get(), smart.data_units_written.get()), (1, 1));
    assert_eq!((smart.host_read_commands.get(), smart.host_write_commands.get()), (1, 1));
    assert_eq!((smart.error_log_entries.get(), smart.power_cycles.get()), (2, 1));
    let firmware = log_page(&mut host, LogPageId::FIRMWARE_SLOT, 512, false).unwrap();
    assert!(FirmwareSlotLog::read_from_bytes(&firmware).unwrap().revision(1).is_some());
    let effects = log_page(&mut host, LogPageId::COMMANDS_SUPPORTED, 4096, false).unwrap();
    let effects = CommandsSupportedLog::read_from_bytes(&effects).unwrap();
    assert!(effects.acs[0x80].csupp() && effects.iocs[1].lbcc() && !effects.iocs[4].csupp());
    assert_eq!(log_page(&mut host, LogPageId(0xc0), 64, false), Err(StatusCode::InvalidLogPage));
    // An offset reads on; one past the end is refused.
    let sqe = Sqe::new(AdminOpcode::GET_LOG_PAGE.0, 0).with_prps(page.iova, 0);
    let part = Sqe { cdw10: 3 | 1 << 16, cdw12: 8, ..sqe };
    assert!(host.admin(part).status().is_success());
    assert_eq!(page.bytes(0, 8), firmware[8..16]);
    for cdw12 in [9, 516] {
        assert_eq!(host.admin(Sqe { cdw12, ..part }).status().code(), StatusCode::InvalidField);
    }
}

#[test]
fn events_wait_for_requests_and_requests_for_events() {
    let mut host = Host::with_queue(stepped().namespace(ram(1 << 20)), 16);
    let request = Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, 0);
    let cids: Vec<u16> = (0..4).map(|_| host.submit(0, request)).collect();
    assert_eq!(host.admin(request).status().code(), StatusCode::AsyncEventLimitExceeded);
    let hot = AsyncEventKind::Health(HealthEvent::TEMPERATURE);
    host.drive.raise_event(hot, LogPageId::SMART);
    let cqe = host.completion(0, cids[0]);
    assert_eq!(AsyncEvent::from_bits(cqe.dw0).kind(), hot);
    // Of the same type: masked until the page is read without RAE.
    host.drive.raise_event(AsyncEventKind::Health(HealthEvent::SPARE), LogPageId::SMART);
    log_page(&mut host, LogPageId::SMART, 512, true).unwrap();
    host.turns(10);
    assert!(host.poll(0).is_empty());
    log_page(&mut host, LogPageId::SMART, 512, false).unwrap();
    let cqe = host.completion(0, cids[1]);
    assert_eq!(AsyncEvent::from_bits(cqe.dw0).kind(), AsyncEventKind::Health(HealthEvent::SPARE));
    // Doorbells: a value the queue cannot have, and a queue that there is not.
    host.drive.write_u32(0x1008, 16).unwrap();
    let cqe = host.completion(0, cids[2]);
    let event = AsyncEvent::from_bits(cqe.dw0);
    assert_eq!(event.kind(), AsyncEventKind::Error(ErrorEvent::INVALID_DOORBELL_VALUE));
    assert_eq!(event.log_page(), LogPageId::ERROR);
    log_page(&mut host, LogPageId::ERROR, 64, false).unwrap();
    host.drive.doorbell(0x1000 + 8 * 77).unwrap().ring(1);
    let cqe = host.completion(0, cids[3]);
    assert_eq!(AsyncEvent::from_bits(cqe.dw0).kind(), AsyncEventKind::Error(ErrorEvent::INVALID_DOORBELL));
    // The queue whose doorbell was wrong works on.
    assert!(host.io(Sqe::new(NvmOpcode::FLUSH.0, 1)).status().is_success());
    // An event without a request waits for one.
    log_page(&mut host, LogPageId::SMART, 512, false).unwrap();
    host.drive.raise_event(hot, LogPageId::SMART);
    host.turns(10);
    assert!(AsyncEvent::from_bits(host.admin(request).dw0).kind() == hot);
}

#[test]
fn abort_hits_what_is_held_only() {
    let mut host = Host::with_queue(stepped().namespace(ram(1 << 20)).jitter(Duration::from_secs(60)), 16);
    let cid = host.submit(1, Sqe::new(NvmOpcode::FLUSH.0, 1));
    host.turns(2);
    let abort = |sqid: u32, cid: u16| Sqe { cdw10: sqid | u32::from(cid) << 16, ..Sqe::new(AdminOpcode::ABORT.0, 0) };
    assert_eq!(host.admin(abort(1, cid + 1)).dw0 & 1, 1);
    assert_eq!(host.admin(abort(7, cid)).dw0 & 1, 1);
    assert_eq!(host.admin(abort(0, cid)).dw0 & 1, 1);
    assert_eq!(host.admin(abort(1, cid)).dw0 & 1, 0);
    let cqe = host.completion(1, cid);
    assert_eq!(cqe.status().code(), StatusCode::AbortRequested);
    assert!(!cqe.status().dnr());
    assert_eq!(host.admin(abort(1, cid)).dw0 & 1, 1);
}

fn format(nsid: u32, index: u8) -> Sqe {
    let cdw10 = FormatCdw10::new().with_format_index(index).into_bits();
    Sqe { cdw10, ..Sqe::new(AdminOpcode::FORMAT_NVM.0, nsid) }
}

fn namespace(host: &mut Host, nsid: u32) -> IdentifyNamespace {
    IdentifyNamespace::read_from_bytes(&host.identify(nsid, 0).unwrap()).unwrap()
}

#[test]
fn a_format_takes_its_time_and_erases() {
    let builder = stepped().namespace(ram(1 << 20).metadata_format()).namespace(ram(1 << 20));
    let mut host = Host::with_queue(builder.format_time(Duration::from_millis(10)), 16);
    host.tick = Duration::from_micros(100);
    let page = host.buffer(PAGE);
    page.memory.fill(0, PAGE, 7);
    host.write(0, 8, page.iova);
    let other = Host::rw(NvmOpcode::WRITE, 2, 0, 8, page.iova);
    assert!(host.io(other).status().is_success());
    let cid = host.submit(0, format(1, 1));
    host.turns(30);
    let remaining = namespace(&mut host, 1).fpi.remaining();
    assert!((40..=75).contains(&remaining), "{remaining} %");
    let read = Host::rw(NvmOpcode::READ, 1, 0, 1, page.iova);
    assert_eq!(host.io(read).status().code(), StatusCode::FormatInProgress);
    assert!(host.io(Host::rw(NvmOpcode::READ, 2, 0, 8, page.iova)).status().is_success());
    assert_eq!(page.bytes(0, PAGE), vec![7; PAGE]);
    assert_eq!(host.admin(format(1, 0)).status().code(), StatusCode::FormatInProgress);
    assert!(host.completion(0, cid).status().is_success());
    let after = namespace(&mut host, 1);
    assert_eq!((after.format_index(), after.nsze, after.fpi.remaining()), (1, 256, 0));
    assert_eq!(namespace(&mut host, 2).format_index(), 0);
    host.read(0, 1, page.iova);
    assert_eq!(page.bytes(0, PAGE), vec![0; PAGE]);
    assert_eq!(host.io(Host::rw(NvmOpcode::READ, 1, 256, 1, page.iova)).status().code(), StatusCode::LbaOutOfRange);
    for (sqe, code) in [
        (format(3, 0), StatusCode::InvalidNamespaceOrFormat),
        (format(0, 0), StatusCode::InvalidNamespaceOrFormat),
        (format(1, 3), StatusCode::InvalidFormat),
        (format(2, 2), StatusCode::InvalidFormat),
        (Sqe { cdw10: FormatCdw10::new().with_pi(1).into_bits(), ..format(1, 0) }, StatusCode::InvalidFormat),
        (Sqe { cdw10: 2 << 9, ..format(1, 0) }, StatusCode::InvalidField),
    ] {
        assert_eq!(host.admin(sqe).status().code(), code, "{sqe:?}");
    }
    assert!(host.admin(format(1, 2)).status().is_success());
    assert_eq!(namespace(&mut host, 1).format().unwrap().ms(), 8);
}

/// Memory whose erasure fails a number of times, and which notes it.
#[derive(Debug)]
struct Stubborn(RamBacking, Mutex<u32>, Arc<Mutex<Vec<String>>>);

impl Backing for Stubborn {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn read(&self, offset: u64, to: &DmaMemory, at: usize, len: usize) -> Result<(), MediaError> {
        self.0.read(offset, to, at, len)
    }
    fn write(&self, offset: u64, from: &DmaMemory, at: usize, len: usize) -> Result<(), MediaError> {
        self.0.write(offset, from, at, len)
    }
    fn zero(&self, offset: u64, len: u64, deallocate: bool) -> Result<(), MediaError> {
        let mut left = self.1.lock().unwrap();
        self.2.lock().unwrap().push(format!("erase, {left} failures to come"));
        if *left > 0 {
            *left -= 1;
            return Err(MediaError::Write(ErrorKind::Other.into()));
        }
        self.0.zero(offset, len, deallocate)
    }
    fn flush(&self) -> Result<(), MediaError> {
        self.2.lock().unwrap().push("flush".to_owned());
        Ok(())
    }
}

#[test]
fn a_format_that_failed_must_be_done_again() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let backing = Stubborn(RamBacking::new(1 << 20).unwrap(), Mutex::new(1), log.clone());
    let refused = Arc::new(AtomicBool::new(true));
    let hook = {
        let log = log.clone();
        let refused = refused.clone();
        move |step: FormatStep, lba| {
            log.lock().unwrap().push(format!("{step:?} {lba}"));
            if refused.swap(false, Ordering::Relaxed) { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
        }
    };
    let namespace = Namespace::new(backing).on_format(Arc::new(hook));
    let mut host = Host::with_queue(stepped().namespace(namespace), 16);
    let page = host.buffer(PAGE);
    page.memory.fill(0, PAGE, 7);
    host.write(0, 8, page.iova);
    // Not begun: as if there had been no format.
    assert_eq!(host.admin(format(1, 1)).status().code(), StatusCode::CapacityExceeded);
    page.memory.fill(0, PAGE, 0);
    host.read(0, 8, page.iova);
    assert_eq!(page.bytes(0, PAGE), vec![7; PAGE]);
    // Begun, and not ended.
    assert_eq!(host.admin(format(1, 1)).status().code(), StatusCode::WriteFault);
    let read = Host::rw(NvmOpcode::READ, 1, 0, 1, page.iova);
    assert_eq!(host.io(read).status().code(), StatusCode::NamespaceNotReady);
    assert!(host.admin(format(1, 1)).status().is_success());
    assert!(host.io(read).status().is_success());
    assert_eq!(page.bytes(0, PAGE), vec![0; PAGE]);
    let begun = "Begins 4096, erase, 1 failures to come, Begins 4096, erase, 0 failures to come, flush, Ended 4096";
    assert_eq!(log.lock().unwrap().join(", "), format!("Begins 4096, Ended 512, {begun}"));
}

#[test]
fn a_format_reaches_what_fna_says() {
    let fna = Fna::new().with_format_all(true).with_crypto_erase(true);
    for (fna, sqe, reached) in [
        (Fna::new(), format(1, 1), [true, false]),
        (fna, format(1, 1), [true, true]),
        (Fna::new(), format(u32::MAX, 1), [true, true]),
        (fna, Sqe { cdw10: 1 | 2 << 9, ..format(2, 0) }, [false, true]),
    ] {
        let builder = stepped().namespace(ram(1 << 20)).namespace(ram(1 << 20)).format_attributes(fna);
        let mut host = Host::enabled(builder);
        assert!(host.admin(sqe).status().is_success());
        let formats = [1, 2].map(|nsid| namespace(&mut host, nsid).format_index() == 1);
        assert_eq!(formats, reached, "{fna:?}");
    }
}

#[test]
fn admin_commands_use_prps_alone() {
    let mut host = Host::enabled(stepped().namespace(ram(1 << 20)));
    let page = host.buffer(PAGE);
    let identify = Sqe { cdw10: 1, ..Sqe::new(AdminOpcode::IDENTIFY.0, 0) };
    let code = |host: &mut Host, sqe: Sqe| host.admin(sqe).status().code();
    let mut sgl = identify.with_prps(page.iova, 0);
    sgl.cdw0.set_psdt(warprow_spec::sqe::Psdt(1));
    assert_eq!(code(&mut host, sgl), StatusCode::InvalidField);
    assert_eq!(code(&mut host, identify.with_prps(page.iova + 2, 0)), StatusCode::PrpOffsetInvalid);
    assert_eq!(code(&mut host, identify.with_prps(page.iova + 4, page.iova + 8)), StatusCode::PrpOffsetInvalid);
    assert_eq!(code(&mut host, identify.with_prps(0xdead_f000, 0)), StatusCode::DataTransferError);
    assert_eq!(host.drive.dma_faults(), 1);
    // Split over two pages that are far apart.
    let second = host.buffer(PAGE);
    assert_eq!(code(&mut host, identify.with_prps(page.iova + 4092, second.iova)), StatusCode::Success);
    let whole = host.identify(0, 1).unwrap();
    assert_eq!(page.bytes(4092, 4), whole[..4]);
    assert_eq!(second.bytes(0, 4092), whole[4..]);
}
