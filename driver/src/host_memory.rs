//! The Host Memory Buffer: memory of the host that a drive without DRAM of its own asks for (NVMe Base 2.0, 8.9; NVMe
//! 1.4, 8.9).

use std::sync::{MutexGuard, PoisonError};

use warprow_dma::{MappedMemory, PAGE};
use warprow_spec::features::{FeatureId, HostMemoryDescriptor};
use warprow_spec::{IntoBytes, Sqe};

use crate::controller::Controller;
use crate::error::DriverError;

/// Whether a drive asked for host memory, and whether it got any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HostMemory {
    /// The drive does not ask for any (HMPRE is 0).
    #[default]
    NotWanted,
    /// The drive has this many bytes until it is shut down or disabled.
    Lent(u64),
    /// The drive asked for memory and got none, for the reason given. It works without, but slower.
    Withheld(String),
}

/// The memory lent to the drive, and what [`Controller::host_memory`] says of it.
#[derive(Debug, Default)]
pub(crate) struct Loan {
    state: HostMemory,
    /// A page for the list of descriptors, and the buffer behind it. Stays until the controller was disabled.
    memory: Option<MappedMemory>,
}

impl Controller {
    /// Whether the drive has memory of this host, and how much, as of the last start or reset.
    pub fn host_memory(&self) -> HostMemory {
        self.lock_loan().state.clone()
    }

    pub(crate) fn lock_loan(&self) -> MutexGuard<'_, Loan> {
        self.loan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lends the drive the memory that it asks for, up to [`ControllerOptions::host_memory_limit`](crate::ControllerOptions). A drive that
    /// gets none, or does not take it, works all the same. After a reset it gets the same memory again.
    pub(crate) fn lend_host_memory(&self) -> Result<(), DriverError> {
        let info = self.info();
        let mut loan = self.lock_loan();
        if info.hmpre == 0 {
            *loan = Loan::default();
            return Ok(());
        }
        let page = PAGE as u64;
        let (preferred, least) = (u64::from(info.hmpre), u64::from(info.hmmin).max(1));
        let most = preferred.min(self.options().host_memory_limit / page);
        let kept = match (&loan.state, &loan.memory) {
            (HostMemory::Lent(_), Some(memory)) => (memory.memory().len() as u64 / page).saturating_sub(1).min(most),
            _ => 0,
        };
        let mut pages = kept;
        if kept < least {
            // The controller was disabled since the memory was lent, or it was never lent: the device does not reach
            // it.
            loan.memory = None;
            match self.allocate_between(least, most) {
                Ok((memory, got)) => (loan.memory, pages) = (Some(memory), got),
                Err(why) => {
                    tracing::warn!(function = %self.name(), %why, "no host memory for the drive");
                    loan.state = HostMemory::Withheld(why);
                    return Ok(());
                }
            }
        }
        let Some(memory) = &loan.memory else { return Ok(()) };
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        let descriptor = HostMemoryDescriptor { badd: memory.iova() + page, bsize: pages, reserved_12: 0 };
        memory.memory().write(0, descriptor.as_bytes());
        let sqe = Sqe::lend_host_memory(pages, memory.iova(), 1);
        match self.send(sqe, &[], self.options().admin_timeout) {
            Ok(_) => loan.state = HostMemory::Lent(u64::from(pages) * page),
            // The memory that the drive refused is kept anyway, until RDY = 0 says that nothing reaches it.
            Err(error @ DriverError::Command { .. }) => loan.state = HostMemory::Withheld(error.to_string()),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Mapped memory for `most` pages and the list before them, or for fewer where that cannot be had; not below `least`.
    fn allocate_between(&self, least: u64, most: u64) -> Result<(MappedMemory, u64), String> {
        if most < least {
            let limit = self.options().host_memory_limit;
            return Err(format!("it needs {} KiB at least, and the limit is {} KiB", least * 4, limit / 1024));
        }
        let function = &self.registers().function;
        let mut pages = most;
        loop {
            let bytes = usize::try_from((pages + 1) * PAGE as u64).map_err(|error| error.to_string())?;
            let allocated = function.allocate(bytes).map_err(|error| error.to_string());
            let mapped = allocated
                .and_then(|memory| MappedMemory::new(function.clone(), memory).map_err(|error| error.to_string()));
            match mapped {
                Ok(memory) => return Ok((memory, pages)),
                Err(why) if pages == least => return Err(why),
                Err(_) => pages = (pages / 2).max(least),
            }
        }
    }

    /// Takes the memory back, so that the drive writes what it keeps there to its own media.
    pub(crate) fn reclaim_host_memory(&self) -> Result<(), DriverError> {
        if matches!(self.host_memory(), HostMemory::Lent(_)) {
            self.set_feature(FeatureId::HOST_MEMORY_BUFFER, 0, 0)?;
        }
        Ok(())
    }
}
