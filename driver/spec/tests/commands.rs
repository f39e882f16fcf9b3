//! Commands as they go over the bus, dword by dword.

use warprow_spec::admin::{FeatureSelect, FormatCdw10, QueuePriority, SecureErase};
use warprow_spec::async_event::{AsyncEvent, AsyncEventKind, ErrorEvent, HealthEvent, NoticeEvent};
use warprow_spec::features::{AsyncEventConfig, FeatureId, NumberOfQueues, VolatileWriteCacheFeature};
use warprow_spec::identify::Cns;
use warprow_spec::log::{CriticalWarning, LogPageId};
use warprow_spec::{AdminOpcode, DataTransfer, NSID_ALL, NvmOpcode, Sqe};

/// Opcode, NSID and CDW10 to CDW13; everything else must be zero.
fn dwords(sqe: Sqe) -> (u8, u32, [u32; 4]) {
    let dwords = [sqe.cdw10, sqe.cdw11, sqe.cdw12, sqe.cdw13];
    let mut rest = sqe;
    (rest.cdw10, rest.cdw11, rest.cdw12, rest.cdw13) = (0, 0, 0, 0);
    assert_eq!(rest, Sqe::new(sqe.opcode(), sqe.nsid));
    (sqe.opcode(), sqe.nsid, dwords)
}

#[test]
fn admin_commands_are_laid_out_as_specified() {
    assert_eq!(dwords(Sqe::identify(Cns::CONTROLLER, 0)), (0x06, 0, [1, 0, 0, 0]));
    assert_eq!(dwords(Sqe::identify(Cns::NAMESPACE, 9)), (0x06, 9, [0, 0, 0, 0]));
    assert_eq!(dwords(Sqe::create_io_cq(3, 1023)), (0x05, 0, [1023 << 16 | 3, 1, 0, 0]));
    let sq = Sqe::create_io_sq(5, 255, 3, QueuePriority::MEDIUM);
    assert_eq!(dwords(sq), (0x01, 0, [255 << 16 | 5, 3 << 16 | 2 << 1 | 1, 0, 0]));
    assert_eq!(dwords(Sqe::delete_io_sq(5)), (0x00, 0, [5, 0, 0, 0]));
    assert_eq!(dwords(Sqe::delete_io_cq(3)), (0x04, 0, [3, 0, 0, 0]));
    assert_eq!(dwords(Sqe::abort(2, 0xabcd)), (0x08, 0, [0xabcd_0002, 0, 0, 0]));
    assert_eq!(dwords(Sqe::async_event_request()), (0x0c, 0, [0; 4]));
    let wce = VolatileWriteCacheFeature::new().with_wce(true).into_bits();
    assert_eq!(dwords(Sqe::set_features(FeatureId::VOLATILE_WRITE_CACHE, 0, wce)), (0x09, 0, [6, 1, 0, 0]));
    assert_eq!(
        dwords(Sqe::get_features(FeatureId::NUMBER_OF_QUEUES, 0, FeatureSelect::SUPPORTED_CAPABILITIES)),
        (0x0a, 0, [0x307, 0, 0, 0])
    );
    assert_eq!(
        dwords(Sqe::get_log_page(LogPageId::SMART, NSID_ALL, 0x0012_007f, 0x5_0000_0200, true)),
        (0x02, NSID_ALL, [0x007f_8002, 0x12, 0x200, 5])
    );
    let format = FormatCdw10::new().with_format_index(0x25).with_ses(SecureErase::CRYPTOGRAPHIC).with_mset(true);
    let lent = Sqe::lend_host_memory(0x8000, 0x0123_4567_89ab_c000, 1);
    assert_eq!((lent.opcode(), lent.cdw10, lent.cdw11, lent.cdw12), (0x09, 0x0d, 1, 0x8000));
    assert_eq!((lent.cdw13, lent.cdw14, lent.cdw15), (0x89ab_c000, 0x0123_4567, 1));
    assert_eq!(dwords(Sqe::security_receive(1, 0x1234, 4096)), (0x82, 0, [0x0112_3400, 4096, 0, 0]));
    assert_eq!(dwords(Sqe::format_nvm(1, format)), (0x80, 1, [2 << 12 | 2 << 9 | 1 << 4 | 5, 0, 0, 0]));
    assert_eq!(format.format_index(), 0x25);
}

#[test]
fn io_commands_are_laid_out_as_specified() {
    let slba = 0x1_0000_0002;
    assert_eq!(dwords(Sqe::flush(1)), (0x00, 1, [0; 4]));
    assert_eq!(dwords(Sqe::flush_all()), (0x00, u32::MAX, [0; 4]));
    assert_eq!(dwords(Sqe::read(1, slba, 7, false)), (0x02, 1, [2, 1, 7, 0]));
    assert_eq!(dwords(Sqe::write(1, slba, 0xffff, true)), (0x01, 1, [2, 1, 1 << 30 | 0xffff, 0]));
    assert_eq!(dwords(Sqe::compare(1, slba, 0)), (0x05, 1, [2, 1, 0, 0]));
    assert_eq!(dwords(Sqe::write_zeroes(1, slba, 7, true)), (0x08, 1, [2, 1, 1 << 25 | 7, 0]));
    assert_eq!(dwords(Sqe::deallocate(1, 255)), (0x09, 1, [255, 4, 0, 0]));
    assert_eq!(Sqe::read(1, u64::MAX - 1, 0, false).slba(), u64::MAX - 1);
}

#[test]
fn opcodes_name_themselves_and_their_direction() {
    assert_eq!(AdminOpcode::FORMAT_NVM.to_string(), "Format NVM (80h)");
    assert_eq!(AdminOpcode(0xc1).to_string(), "unknown (C1h)");
    assert_eq!(format!("{:?}", NvmOpcode::READ), "NvmOpcode[Read (02h)]");
    assert_eq!(DataTransfer::of_opcode(NvmOpcode::WRITE.0), DataTransfer::HostToController);
    assert_eq!(DataTransfer::of_opcode(NvmOpcode::READ.0), DataTransfer::ControllerToHost);
    assert_eq!(DataTransfer::of_opcode(AdminOpcode::IDENTIFY.0), DataTransfer::ControllerToHost);
    assert_eq!(DataTransfer::of_opcode(NvmOpcode::FLUSH.0), DataTransfer::None);
}

#[test]
fn numbers_of_queues_are_zero_based() {
    assert_eq!(NumberOfQueues::request(1).into_bits(), 0);
    assert_eq!(NumberOfQueues::request(128).into_bits(), 127 << 16 | 127);
    assert_eq!(NumberOfQueues::request(0).pairs(), 1);
    assert_eq!(NumberOfQueues::request(u32::MAX).pairs(), 65_535);
    // 16 submission queues, 8 completion queues granted.
    assert_eq!(NumberOfQueues::from_bits(7 << 16 | 15).pairs(), 8);
    assert_eq!(NumberOfQueues::from_bits(u32::MAX).pairs(), 65_536);
}

#[test]
fn asynchronous_events_decode() {
    let event = AsyncEvent::from_bits(0x0002_0101);
    assert_eq!(event.kind(), AsyncEventKind::Health(HealthEvent::TEMPERATURE));
    assert_eq!(event.log_page(), LogPageId::SMART);
    assert_eq!(event.to_string(), "health: temperature threshold (01h); log page SMART / Health Information (02h)");
    let notice = AsyncEventKind::Notice(NoticeEvent::NAMESPACE_ATTRIBUTE);
    assert_eq!(AsyncEvent::from_kind(notice, LogPageId::CHANGED_NAMESPACES).into_bits(), 0x0004_0002);
    let error = AsyncEventKind::Error(ErrorEvent::INVALID_DOORBELL_VALUE);
    assert_eq!(AsyncEvent::from_kind(error, LogPageId::ERROR).into_bits(), 0x0001_0100);
    for bits in (0..8).flat_map(|kind| (0..=0xff).map(move |info| 0x0080_0000 | info << 8 | kind)) {
        let event = AsyncEvent::from_bits(bits);
        assert_eq!(AsyncEvent::from_kind(event.kind(), event.log_page()), event);
    }
    let config = AsyncEventConfig::new()
        .with_critical_warnings(CriticalWarning::new().with_temperature(true))
        .with_namespace_attribute(true);
    assert_eq!(config.into_bits(), 0x0102);
}
