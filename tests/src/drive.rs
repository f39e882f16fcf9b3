use std::sync::{Arc, Mutex, PoisonError};

use warprow_dma::{Clock, Function};
use warprow_driver::{BlockIo, Controller, ControllerOptions, DriverError, QueueOptions};
use warprow_layout::{Drive, DriveError};

/// Namespace 1 of a controller as the layout wants it, through the driver: no caching, no recovery.
pub struct DrivenDrive {
    io: Mutex<BlockIo>,
    name: String,
    lba_size: u32,
    lba_count: u64,
    max_transfer: usize,
}

impl DrivenDrive {
    /// Opens the controller that `function` carries.
    pub fn open(
        function: Arc<dyn Function>,
        clock: Arc<dyn Clock>,
        options: ControllerOptions,
    ) -> Result<Self, DriverError> {
        let name = function.name().to_owned();
        let controller = Controller::open(function, clock, options)?;
        let namespace = controller.namespace(1)?;
        let lba_size = namespace.lba_bytes();
        let lba_count = namespace.lba_count();
        let queue = QueueOptions { entries: 16, completion_entries: 16, ..QueueOptions::default() };
        let io = BlockIo::new(&controller, namespace, &queue)?;
        let max_transfer = io.queue_pair().max_transfer() as usize;
        Ok(Self { io: Mutex::new(io), name, lba_size, lba_count, max_transfer })
    }

    fn with<T>(
        &self,
        operation: &str,
        access: impl FnOnce(&mut BlockIo) -> Result<T, DriverError>,
    ) -> Result<T, DriveError> {
        let mut io = self.io.lock().unwrap_or_else(PoisonError::into_inner);
        access(&mut io).map_err(|error| DriveError::new(&self.name, operation, error))
    }
}

impl Drive for DrivenDrive {
    fn name(&self) -> &str {
        &self.name
    }

    fn lba_size(&self) -> u32 {
        self.lba_size
    }

    fn lba_count(&self) -> u64 {
        self.lba_count
    }

    fn max_transfer(&self) -> usize {
        self.max_transfer
    }

    fn read(&self, lba: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        self.with("read", |io| io.read(lba, buf))
    }

    fn write(&self, lba: u64, data: &[u8]) -> Result<(), DriveError> {
        self.with("write", |io| io.write(lba, data))
    }

    fn flush(&self) -> Result<(), DriveError> {
        self.with("flush", BlockIo::flush)
    }
}
