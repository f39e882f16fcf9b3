//! A drive of a store: its controller, its namespace, and who has queue pairs on it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use warprow_driver::{Blame, BlockIo, Controller, DriverError, Namespace, PushError, QueueOptions, QueuePair};
use warprow_layout::{Drive, DriveError};

use crate::StoreError;
use crate::attached_files::{AttachedFiles, ChangedFile};
use crate::device::Device;
use crate::dram_list::ListPlace;
use crate::drive_access::{DriveAccess, SharedPair, lock};
use crate::events::{DriveEvents, NamespaceChanged, describe};
use crate::shared_controller::{MetadataIo, SharedController};

/// Most bytes that one command moves, MDTS permitting. Larger ones gain nothing, and cost room for their PRP lists.
const MAX_TRANSFER: u64 = 1 << 20;

/// An opened drive. The store reaches it through queue pairs only: `io` for metadata, and those it gives out.
pub struct MemberDrive {
    name: String,
    serial: String,
    driven: Arc<SharedController>,
    namespace: Namespace,
    /// [`SharedController::changes`] when the namespace was last found to be as it was.
    unchanged: AtomicU64,
    changed: OnceLock<NamespaceChanged>,
    timeout: Duration,
    io: Arc<MetadataIo>,
    /// The files, if it is a drive of attached tables.
    attached: Option<Arc<AttachedFiles>>,
}

impl MemberDrive {
    /// A device as it is formatted now, with its controller open.
    pub(crate) fn on(
        device: &Device,
        driven: Arc<SharedController>,
        driving: &DriveAccess,
    ) -> Result<Arc<Self>, StoreError> {
        let unchanged = driven.changes().into();
        let namespace = driven.controller().namespace(device.namespace())?;
        let name = device.name();
        match namespace.metadata_bytes() {
            0 => {}
            bytes => {
                let reason = format!(
                    "its LBA format has {bytes} bytes of metadata in each LBA; `format` can set one without, if the drive has any"
                );
                return Err(StoreError::LbaFormat { drive: name, reason });
            }
        }
        let serial = driven.controller().info().serial().to_string();
        Ok(Arc::new(Self {
            serial: if device.namespace() == 1 { serial } else { format!("{serial}/{}", device.namespace()) },
            name,
            namespace,
            unchanged,
            changed: OnceLock::new(),
            timeout: driving.timeout,
            io: driven.metadata_io(),
            driven,
            attached: device.as_attached().cloned(),
        }))
    }

    /// The controller that the namespace is of.
    pub fn controller(&self) -> &Arc<Controller> {
        self.driven.controller()
    }

    pub(crate) fn driven(&self) -> &SharedController {
        &self.driven
    }

    /// The file of attached tables that has changed since, so that none of their rows is read any more; `None`: none has.
    pub fn changed_file(&self) -> Option<&ChangedFile> {
        self.attached.as_ref()?.changed()
    }

    /// Whether it is a drive of attached tables.
    pub(crate) fn is_attached(&self) -> bool {
        self.attached.is_some()
    }

    /// Where the list of rows in DRAM of an attached table is kept.
    pub(crate) fn list_place(&self, table: &str) -> Option<&ListPlace> {
        self.attached.as_ref()?.list_place(table)
    }

    /// The namespace, as it was when the store was opened.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Most bytes of one command.
    pub fn transfer_limit(&self) -> u64 {
        self.controller().max_transfer_bytes().unwrap_or(u64::MAX).min(MAX_TRANSFER)
    }

    /// Makes a queue pair of `depth` commands, or as many as the controller allows. If there is none left, the metadata's
    /// is given up for it. A drive that may still carry out a write of a queue that it did not delete is reset first.
    pub(crate) fn queue_pair(&self, depth: u32, timeout: Duration) -> Result<QueuePair, DriverError> {
        if self.controller().check_late_writes().is_err() {
            self.revive(None, || self.controller().check_late_writes())?;
        }
        let most = self.controller().cap().max_queue_entries();
        let entries = depth.saturating_add(1).clamp(2, most);
        let options = QueueOptions {
            entries,
            completion_entries: entries.saturating_mul(4).min(most),
            max_transfer: self.transfer_limit(),
            timeout,
        };
        match self.controller().queue_pair(&options) {
            Err(DriverError::NoQueueLeft { .. }) if self.driven.release_io() => self.controller().queue_pair(&options),
            other => other,
        }
    }

    /// Makes a queue pair of `depth` commands, or as many as the controller allows, whose reads may take `timeout`, and which a reset of
    /// the controller can reach.
    pub fn shared_pair(&self, depth: u32, timeout: Duration) -> Result<SharedPair, DriverError> {
        Ok(self.driven.share(self.queue_pair(depth, timeout)?))
    }

    /// Looks for events if it is time, and fails once the namespace is not what it was.
    #[inline]
    pub fn watch<E>(&self, now: Duration) -> Result<(), E>
    where
        E: From<DriverError> + From<NamespaceChanged>,
    {
        self.driven.watch().look(self.controller(), now);
        match self.driven.changes() {
            changes if changes == self.unchanged.load(Ordering::Relaxed) => Ok(()),
            changes => self.check_namespace(changes),
        }
    }

    #[cold]
    fn check_namespace<E>(&self, changes: u64) -> Result<(), E>
    where
        E: From<DriverError> + From<NamespaceChanged>,
    {
        if let Some(changed) = self.changed.get() {
            return Err(changed.clone().into());
        }
        let was = describe(&self.namespace);
        let is = match self.controller().namespace(self.namespace.nsid()) {
            Ok(namespace) => describe(&namespace),
            Err(DriverError::NoSuchNamespace { .. }) => "none".to_owned(),
            Err(error) => return Err(error.into()),
        };
        if is == was {
            self.unchanged.store(changes, Ordering::Relaxed);
            return Ok(());
        }
        let changed = NamespaceChanged { drive: self.name.clone(), was, is };
        tracing::error!("{changed}");
        // Not even if it changes back: what was on it is gone.
        Err(self.changed.get_or_init(|| changed).clone().into())
    }

    /// What the drive has reported by itself.
    pub(crate) fn events(&self) -> DriveEvents {
        self.driven.watch().look_well(self.controller());
        self.driven.watch().events(self.name.clone())
    }

    /// What the drive has reported by itself as far as it was looked at, without another look.
    pub fn events_seen(&self) -> DriveEvents {
        self.driven.watch().events(self.name.clone())
    }

    /// Brings a queue back by [`Controller::recover`], which may reset the controller under everybody else's queues. Its owner has left
    /// it ([`QueuePair::leave`]). `blame`: why the queue is lost, if a command of it is to blame.
    pub fn revive(
        &self,
        blame: Option<Blame>,
        recreate: impl FnMut() -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        self.driven.revive(blame, recreate)
    }

    fn with_io<T>(&self, mut access: impl FnMut(&mut BlockIo) -> Result<T, DriverError>) -> Result<T, DriverError> {
        let mut io = lock(&self.io);
        let io = match &mut *io {
            Some(io) => io,
            empty => {
                let options = QueueOptions {
                    entries: 32,
                    completion_entries: 32,
                    max_transfer: self.transfer_limit(),
                    timeout: self.timeout,
                };
                let make = || BlockIo::new(self.controller(), self.namespace.clone(), &options);
                let made = match make() {
                    // A reset failed earlier; it may succeed now.
                    Err(DriverError::Down { .. }) => {
                        let mut made = None;
                        self.revive(None, || make().map(|io| made = Some(io)))?;
                        made
                    }
                    Err(DriverError::NoQueueLeft { .. }) if self.driven.release_io() => Some(make()?),
                    made => Some(made?),
                };
                match made {
                    Some(made) => empty.insert(made),
                    None => return Err(DriverError::Down { function: self.controller().name().clone() }),
                }
            }
        };
        let accessed = match access(io) {
            // Something earlier broke the queue; this access has not begun.
            Err(
                error @ (DriverError::Stale { .. }
                | DriverError::Stuck { .. }
                | DriverError::Push { source: PushError::LateWrites { .. }, .. }),
            ) => {
                io.leave();
                let timed_out = io.queue_pair().quarantined() != 0;
                let blame = timed_out.then(|| io.queue_pair().blame(error));
                self.driven.revive(blame, || {
                    io.recover()?;
                    // Another queue's, which nobody is left to delete: only a reset helps.
                    self.controller().check_late_writes().inspect_err(|_| io.leave())
                })?;
                access(io)
            }
            other => other,
        };
        if accessed.is_ok() {
            self.controller().note_success();
        }
        accessed
    }

    /// Gives back the space of LBAs whose content nobody needs: ranges of first LBA and number.
    pub(crate) fn deallocate(&self, ranges: &[(u64, u32)]) -> Result<(), DriverError> {
        self.with_io(|io| io.deallocate(ranges))
    }

    fn failed(&self, operation: String) -> impl FnOnce(DriverError) -> DriveError + '_ {
        |source| DriveError::new(&self.name, operation, source)
    }
}

impl Drive for MemberDrive {
    fn name(&self) -> &str {
        &self.name
    }

    fn serial(&self) -> &str {
        &self.serial
    }

    fn lba_size(&self) -> u32 {
        self.namespace.lba_bytes()
    }

    fn lba_count(&self) -> u64 {
        self.namespace.lba_count()
    }

    fn max_transfer(&self) -> usize {
        self.transfer_limit() as usize
    }

    fn read(&self, lba: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        let blocks = buf.len() / self.lba_size() as usize;
        self.with_io(|io| io.read(lba, buf)).map_err(self.failed(format!("read of {blocks} LBAs at {lba}")))
    }

    fn write(&self, lba: u64, data: &[u8]) -> Result<(), DriveError> {
        let blocks = data.len() / self.lba_size() as usize;
        self.with_io(|io| io.write(lba, data)).map_err(self.failed(format!("write of {blocks} LBAs at {lba}")))
    }

    fn flush(&self) -> Result<(), DriveError> {
        self.with_io(BlockIo::flush).map_err(self.failed("flush".to_owned()))
    }

    fn incarnation(&self) -> u64 {
        self.controller().resets()
    }
}

impl std::fmt::Debug for MemberDrive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemberDrive")
            .field("name", &self.name)
            .field("namespace", &self.namespace.nsid())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use warprow_dma::SystemClock;
    use warprow_driver::CommandEnd;
    use warprow_driver::prp::Data;
    use warprow_soft_controller::{Fault, Namespace, PowerCut, RamBacking, Rule, SoftController};
    use warprow_spec::{AdminOpcode, NvmOpcode, Status, StatusCode};

    use super::*;

    fn member() -> (Arc<SoftController>, Arc<MemberDrive>) {
        let namespace = Namespace::new(RamBacking::new(1 << 20).unwrap()).write_cache(1 << 20);
        let drive = SoftController::builder().namespace(namespace).build().unwrap();
        let second = Duration::from_secs(1);
        let driving = DriveAccess { clock: Arc::new(SystemClock::new()), timeout: second, admin_timeout: second };
        let member = crate::store::open_members(&[Device::new(drive.clone(), 1)], &driving).unwrap().remove(0);
        (drive, member)
    }

    fn first_byte(member: &MemberDrive, lba: u64) -> u8 {
        let mut block = [0; 512];
        member.read(lba, &mut block).unwrap();
        block[0]
    }

    #[test]
    fn a_flush_after_a_power_cut_shows_in_the_incarnation() {
        let (drive, member) = member();
        let before = member.incarnation();
        member.write(8, &[1; 512]).unwrap();
        drive.power_cut(PowerCut::LoseAll).unwrap();
        // Whoever comes first fails, and whoever comes next brings the drive back.
        member.flush().unwrap_err();
        member.flush().unwrap();
        assert_ne!(member.incarnation(), before);
        assert_eq!(first_byte(&member, 8), 0);
    }

    #[test]
    fn a_late_write_of_a_queue_that_stays_is_ended_by_a_reset() {
        for through_a_queue in [false, true] {
            let (drive, member) = member();
            let mut pair = member.queue_pair(4, Duration::from_millis(50)).unwrap();
            let buffer = member.controller().allocate(512).unwrap();
            buffer.memory().fill(0, 512, 1);
            pair.keep(buffer.clone());
            let data = Data::Contiguous { iova: buffer.iova(), len: 512 };
            drive.faults().inject(Rule::new(Fault::Delay(Duration::from_millis(300))).io(NvmOpcode::WRITE));
            pair.write(member.namespace(), 8, 1, data, false, 0).unwrap();
            pair.wait(|completion| assert_eq!(completion.ended, CommandEnd::TimedOut)).unwrap();
            let refusal = Fault::Status(Status::from_code(StatusCode::InternalError));
            drive.faults().inject(Rule::new(refusal).admin(AdminOpcode::DELETE_IO_SQ));
            drop(pair);
            if through_a_queue {
                drop(member.queue_pair(4, Duration::from_secs(1)).unwrap());
                member.controller().check_late_writes().unwrap();
            }
            member.write(8, &[2; 512]).unwrap();
            assert_eq!(member.controller().resets(), 1);
            std::thread::sleep(Duration::from_millis(350));
            assert_eq!(first_byte(&member, 8), 2, "the late write came, over what was written after it");
        }
    }
}
