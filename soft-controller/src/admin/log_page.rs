//! Get Log Page (NVMe Base 2.0, 5.16; NVMe 1.4, 5.14).

use warprow_spec::cqe::StatusPhase;
use warprow_spec::log::{
    ActiveFirmwareInfo, ChangedNamespaceList, CommandEffects, CommandsSupportedLog, CriticalWarning, ErrorLogEntry,
    FirmwareSlotLog, GetLogPageCdw10, GetLogPageCdw11, LogPageId, ParameterErrorLocation, SmartLog,
};
use warprow_spec::registers::Vs;
use warprow_spec::{AdminOpcode, FromZeros, IntoBytes, NSID_ALL, NvmOpcode, Sqe, StatusCode, ascii};

use super::dispatch::SUPPORTED;
use super::reply::Reply;
use crate::control::Control;
use crate::core::Core;
use crate::error_log::{ERRORS_KEPT, ErrorRecord};
use crate::failure::Failure;
use crate::features::TEMPERATURE;
use crate::nvm::Counters;

/// I/O commands that are carried out, and whether each changes data.
const IO_SUPPORTED: [(NvmOpcode, bool); 6] = [
    (NvmOpcode::FLUSH, false),
    (NvmOpcode::WRITE, true),
    (NvmOpcode::READ, false),
    (NvmOpcode::COMPARE, false),
    (NvmOpcode::WRITE_ZEROES, true),
    (NvmOpcode::DATASET_MANAGEMENT, true),
];

impl Control {
    pub(super) fn get_log_page(&mut self, core: &Core, sqe: &Sqe) -> Result<Reply, Failure> {
        let what = GetLogPageCdw10::from_bits(sqe.cdw10);
        let upper = GetLogPageCdw11::from_bits(sqe.cdw11).numdu();
        let len = ((u64::from(upper) << 16 | u64::from(what.numdl())) + 1) * 4;
        let offset = u64::from(sqe.cdw13) << 32 | u64::from(sqe.cdw12);
        if !offset.is_multiple_of(4) {
            return Err(Failure::field(48));
        }
        let page = match what.lid() {
            LogPageId::SUPPORTED_LOG_PAGES if core.config.version >= Vs::V2_0 => supported_pages(),
            LogPageId::ERROR => self.error_page(core),
            LogPageId::SMART if matches!(sqe.nsid, 0 | NSID_ALL) => self.smart_page(core),
            LogPageId::SMART => return Err(Failure::field(4)),
            LogPageId::FIRMWARE_SLOT => firmware_page(core),
            LogPageId::CHANGED_NAMESPACES => self.changed_namespaces_page(what.rae()),
            LogPageId::COMMANDS_SUPPORTED => commands_page(),
            _ => return Err(Failure::at(StatusCode::InvalidLogPage, 40)),
        };
        if offset > page.len() as u64 {
            return Err(Failure::field(48));
        }
        if len > core.config.max_bytes() as u64 {
            return Err(Failure::field(42));
        }
        // What lies past a page's end is undefined; it reads as zeros here.
        let mut data = vec![0; len as usize];
        for (to, from) in data.iter_mut().zip(&page[offset as usize..]) {
            *to = *from;
        }
        let reply = self.send(sqe, &data)?;
        if !what.rae() {
            self.events.page_was_read(what.lid());
        }
        Ok(reply)
    }

    fn error_page(&self, core: &Core) -> Vec<u8> {
        let shards = core.lock_shards();
        let mut records: Vec<&ErrorRecord> =
            shards.iter().flat_map(|shard| &shard.errors).chain(&self.errors).collect();
        records.sort_by_key(|record| std::cmp::Reverse(record.count));
        let mut page = Vec::with_capacity(ERRORS_KEPT * size_of::<ErrorLogEntry>());
        for record in records.into_iter().take(ERRORS_KEPT) {
            let mut entry = ErrorLogEntry::new_zeroed();
            entry.error_count = record.count;
            entry.sqid = record.sqid;
            entry.cid = record.cid;
            entry.status_phase = StatusPhase::new().with_status(record.failure.status.with_more(true));
            entry.parameter_error_location = ParameterErrorLocation::from_bits(record.failure.parameter);
            entry.lba = record.lba;
            entry.nsid = record.nsid;
            page.extend_from_slice(entry.as_bytes());
        }
        page.resize(ERRORS_KEPT * size_of::<ErrorLogEntry>(), 0);
        page
    }

    fn smart_page(&self, core: &Core) -> Vec<u8> {
        let counters =
            core.lock_shards().iter().map(|shard| shard.io.counters).fold(Counters::default(), |a, b| Counters {
                bytes_read: a.bytes_read + b.bytes_read,
                bytes_written: a.bytes_written + b.bytes_written,
                reads: a.reads + b.reads,
                writes: a.writes + b.writes,
                media_errors: a.media_errors + b.media_errors,
            });
        let units = |bytes: u64| u128::from(bytes.div_ceil(512_000));
        let mut page = SmartLog::new_zeroed();
        page.critical_warning = CriticalWarning::new().with_temperature(self.features.is_hot());
        page.composite_temperature = TEMPERATURE.into();
        page.available_spare = 100;
        page.available_spare_threshold = 10;
        page.data_units_read = units(counters.bytes_read).into();
        page.data_units_written = units(counters.bytes_written).into();
        page.host_read_commands = u128::from(counters.reads).into();
        page.host_write_commands = u128::from(counters.writes).into();
        page.power_cycles = u128::from(self.history.power_cycles).into();
        let on = core.now().saturating_sub(self.history.powered_on);
        page.power_on_hours = u128::from(on.as_secs() / 3600).into();
        page.unsafe_shutdowns = u128::from(self.history.unsafe_shutdowns).into();
        page.media_errors = u128::from(counters.media_errors).into();
        page.error_log_entries = u128::from(core.errors_counted()).into();
        page.as_bytes().to_vec()
    }

    fn changed_namespaces_page(&mut self, retain: bool) -> Vec<u8> {
        let mut list = ChangedNamespaceList::new_zeroed();
        for (entry, nsid) in list.0.iter_mut().zip(&self.changed_namespaces) {
            *entry = *nsid;
        }
        if !retain {
            self.changed_namespaces.clear();
        }
        list.as_bytes().to_vec()
    }
}

fn firmware_page(core: &Core) -> Vec<u8> {
    let mut page = FirmwareSlotLog::new_zeroed();
    page.afi = ActiveFirmwareInfo::new().with_active(1);
    page.frs[0] = ascii::padded(&core.config.firmware);
    page.as_bytes().to_vec()
}

fn commands_page() -> Vec<u8> {
    let mut page = CommandsSupportedLog::new_zeroed();
    let plain = CommandEffects::new().with_csupp(true);
    for opcode in SUPPORTED {
        page.acs[usize::from(opcode.0)] = match opcode {
            AdminOpcode::FORMAT_NVM => plain.with_lbcc(true).with_ncc(true).with_cse(1),
            _ => plain,
        };
    }
    for (opcode, changes) in IO_SUPPORTED {
        page.iocs[usize::from(opcode.0)] = plain.with_lbcc(changes);
    }
    page.as_bytes().to_vec()
}

/// Supported Log Pages (NVMe Base 2.0, 5.16.1.1): four bytes a page, bit 0 for support.
fn supported_pages() -> Vec<u8> {
    let mut page = vec![0; 1024];
    for id in [
        LogPageId::SUPPORTED_LOG_PAGES,
        LogPageId::ERROR,
        LogPageId::SMART,
        LogPageId::FIRMWARE_SLOT,
        LogPageId::CHANGED_NAMESPACES,
        LogPageId::COMMANDS_SUPPORTED,
    ] {
        page[usize::from(id.0) * 4] = 1;
    }
    page
}
