use warprow_spec::log::{ChangedNamespaceList, ErrorLogEntry, FirmwareSlotLog, LogPageId, SmartLog};
use warprow_spec::{FromBytes, NSID_ALL, Sqe};

use crate::controller::Controller;
use crate::error::DriverError;

impl Controller {
    /// The first `bytes` of a log page, a multiple of 4 up to 4,096 (NVMe Base 2.0, 5.16; NVMe 1.4, 5.14). Reading it
    /// lets the controller report the events that name this page again.
    pub fn log_page(&self, lid: LogPageId, nsid: u32, bytes: usize) -> Result<Vec<u8>, DriverError> {
        let bytes = bytes.clamp(4, 4096) & !3;
        let sqe = Sqe::get_log_page(lid, nsid, (bytes / 4 - 1) as u32, 0, false);
        let mut data = self.send(sqe, &[], self.options().admin_timeout)?.data;
        data.truncate(bytes);
        Ok(data)
    }

    /// A log page of one type: [`DriverError::Unusable`] where it is too short.
    fn log<T: FromBytes>(&self, lid: LogPageId) -> Result<T, DriverError> {
        let data = self.log_page(lid, NSID_ALL, size_of::<T>())?;
        T::read_from_bytes(&data).map_err(|_| DriverError::Unusable {
            function: self.name().clone(),
            why: format!("log page {lid} has {} bytes, where {} are due", data.len(), size_of::<T>()),
        })
    }

    /// SMART / Health Information of the controller.
    pub fn smart_log(&self) -> Result<SmartLog, DriverError> {
        self.log(LogPageId::SMART)
    }

    /// Firmware Slot Information.
    pub fn firmware_slots(&self) -> Result<FirmwareSlotLog, DriverError> {
        self.log(LogPageId::FIRMWARE_SLOT)
    }

    /// The namespaces whose attributes changed since this was last read.
    pub fn changed_namespaces(&self) -> Result<ChangedNamespaceList, DriverError> {
        self.log(LogPageId::CHANGED_NAMESPACES)
    }

    /// The error log, newest first, at most `limit` entries and at most 64.
    pub fn error_log(&self, limit: usize) -> Result<Vec<ErrorLogEntry>, DriverError> {
        let entry = size_of::<ErrorLogEntry>();
        let there = usize::from(self.info().elpe_z) + 1;
        let count = limit.min(there).clamp(1, 4096 / entry);
        let data = self.log_page(LogPageId::ERROR, NSID_ALL, count * entry)?;
        let entries = data.chunks_exact(entry).filter_map(|bytes| ErrorLogEntry::read_from_bytes(bytes).ok());
        Ok(entries.filter(ErrorLogEntry::is_valid).take(limit).collect())
    }
}
