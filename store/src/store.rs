//! A store, open.

use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use warprow_dma::{Clock, SystemClock};
use warprow_driver::DriverError;
use warprow_keys::KeyIndex;
use warprow_layout::{
    DType, Drive, DriveMap, FormatOptions, Generation, KeySpec, MetadataRepair, OpenError, Ranks, RepairProposal,
    RowReader, StoreAccess, StoreInspection, StoreState, TableMap, Volume,
};

use crate::attached_files::ChangedFile;
use crate::bulk::{Bulk, Job, Purpose};
use crate::device::Device;
use crate::dram_list::is_lists;
use crate::drive_access::DriveAccess;
use crate::events::DriveEvents;
use crate::member::MemberDrive;
use crate::table_version::{TableVersion, latest_tables};
use crate::update::Updates;
use crate::{StoreError, shared_controller};

/// How a store is opened.
#[derive(Clone)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Reading and writing, reading only, or reading what is left when members are missing.
    pub access: StoreAccess,
    /// The longest wait for a read or a write.
    pub timeout: Duration,
    /// The longest wait for an administrative command, such as making a queue.
    pub admin_timeout: Duration,
    /// The clock of the store, which also says how to wait for drives.
    pub clock: Arc<dyn Clock>,
    /// Bytes of memory that updated rows of a generation may take, with what leads to them, until it is compacted.
    pub overlay_bytes: u64,
}

impl Default for OpenOptions {
    /// Reading and writing, 10 s for a command, 30 s for an administrative one, the system's clock, 64 MiB for updated rows.
    fn default() -> Self {
        Self {
            access: StoreAccess::ReadWrite,
            timeout: Duration::from_secs(10),
            admin_timeout: Duration::from_secs(30),
            clock: Arc::new(SystemClock::new()),
            overlay_bytes: 64 << 20,
        }
    }
}

impl std::fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenOptions")
            .field("access", &self.access)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl OpenOptions {
    /// For reading only.
    #[must_use]
    pub fn with_read_only(self) -> Self {
        Self { access: StoreAccess::ReadOnly, ..self }
    }

    /// For reading what can be read, also if members are missing.
    #[must_use]
    pub fn with_degraded(self) -> Self {
        Self { access: StoreAccess::Degraded, ..self }
    }

    /// With that limit for reads and writes.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// With that limit for administrative commands.
    #[must_use]
    pub fn with_admin_timeout(self, admin_timeout: Duration) -> Self {
        Self { admin_timeout, ..self }
    }

    /// With that much memory for updated rows.
    #[must_use]
    pub fn with_overlay_bytes(self, overlay_bytes: u64) -> Self {
        Self { overlay_bytes, ..self }
    }

    /// With that clock.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }

    pub(crate) fn driving(&self) -> DriveAccess {
        DriveAccess { clock: self.clock.clone(), timeout: self.timeout, admin_timeout: self.admin_timeout }
    }
}

/// An open store: its drives, and the tables on them. This process alone holds the drives, unless they were opened [for
/// reading](crate::DriveAddress::for_reading). Clones are the same store.
///
/// ```
/// # use std::ops::ControlFlow;
/// # use warprow_lookup::*;
/// # use warprow_store::*;
/// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, CreateDrive::IfMissing)?;
/// # let store = FormatProposal::new(&[device.clone()], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
/// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
/// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
/// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
/// // `store` has a table "user" of 1000 rows of 4 `f32`, which count from 0.
/// let user = store.table("user").ok_or("no such table")?;
/// assert_eq!((user.rows, user.dim, user.dtype), (1000, 4, DType::F32));
/// let mut sum = 0.0;
/// store.scan("user", 10..12, &mut |_rank, row| {
///     sum += row.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).sum::<f32>();
///     ControlFlow::Continue(())
/// })?;
/// assert_eq!(sum, (40..48).sum::<u32>() as f32);
/// // The store again, opened as another process would.
/// drop(store);
/// let store = Store::open(&[device], &OpenOptions::default().with_read_only())?;
/// assert_eq!(store.tables().len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub volume: Volume,
    /// By member index; `None`: missing.
    pub members: Vec<Option<Arc<MemberDrive>>>,
    pub driving: DriveAccess,
    pub updates: Updates,
    pub repairs: Vec<MetadataRepair>,
    /// Held while rows in DRAM are listed.
    pub reranking: Mutex<()>,
    /// Drives that were given, and could not be driven.
    pub unopened: Vec<DriveState>,
}

impl Shared {
    /// The error that a row which was read does not match its checksum.
    pub(crate) fn damaged_row(&self, located: &TableVersion, rank: u64) -> StoreError {
        let at = located.generation.row(located.index, rank);
        let member = at.and_then(|at| self.members.get(usize::from(at.drive))?.as_ref());
        let drive = member.map_or_else(|| "unknown".to_owned(), |member| member.name().to_owned());
        StoreError::RowDamaged { table: located.table().name.clone(), rank, drive }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("volume", &self.volume).field("members", &self.members).finish_non_exhaustive()
    }
}

impl Shared {
    /// Looks at what drives report, and fails where a namespace is not what it was.
    pub(crate) fn watch(&self) -> Result<(), StoreError> {
        self.members.iter().flatten().try_for_each(|member| member.watch(self.driving.clock.now()))
    }
}

/// Whether a drive works, and how often its controller was reset.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DriveState {
    /// The drive.
    pub drive: String,
    /// Why it serves nothing: it was given up ([`DriverError::GivenUp`], with everything that was tried), or could not be
    /// driven when the store was opened. `None`: it serves.
    pub failure: Option<DriverError>,
    /// How often its controller was reset since the store was opened.
    pub resets: u64,
}

impl DriveState {
    fn of(member: &Arc<MemberDrive>) -> Self {
        let controller = member.controller();
        let function = controller.name().clone();
        let failure = controller.failure().map(|failure| DriverError::GivenUp { function, failure });
        Self { drive: member.name().to_owned(), failure, resets: controller.resets() }
    }
}

/// A table, as a store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableInfo {
    /// The table's name, unique among the tables that look-ups find.
    pub name: String,
    /// Rows.
    pub rows: u64,
    /// Elements in a row.
    pub dim: u32,
    /// Type of the elements.
    pub dtype: DType,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// How many of the first ranks are worth keeping in memory.
    pub hot_rows: u64,
    /// Whether ids, or key positions, differ from ranks.
    pub permuted: bool,
    /// The keys by which its rows are looked up; `None`: ids from 0 on.
    pub keys: Option<KeySpec>,
    /// Whether rows have checksums.
    pub row_crc: bool,
    /// The name of the model it was loaded with.
    pub model: String,
    /// The generation it belongs to.
    pub generation: u64,
}

impl Store {
    /// Makes an empty store on `devices`, as their namespaces are formatted now, and opens it. **Everything on them is
    /// lost**; [`FormatProposal`](crate::FormatProposal) asks first, and sets LBA formats.
    pub fn create(devices: &[Device], format: &FormatOptions, options: &OpenOptions) -> Result<Self, StoreError> {
        Device::check_writable(devices)?;
        let members = open_members(devices, &options.driving())?;
        warprow_layout::format(&members, format)?;
        Self::on(members, options)
    }

    /// Opens the store that lies on `devices`, given in any order. A drive that cannot be driven is an error, or, in a
    /// degraded open, is done without ([`drive_states`](Self::drive_states) has the reason).
    pub fn open(devices: &[Device], options: &OpenOptions) -> Result<Self, StoreError> {
        if options.access == StoreAccess::ReadWrite {
            Device::check_writable(devices)?;
        }
        let (members, failed) = match options.access {
            StoreAccess::Degraded => open_what_works(devices, &options.driving())?,
            _ => (open_members(devices, &options.driving())?, Vec::new()),
        };
        Self::without(failed, members, options).map_err(|error| of_image(devices, error))
    }

    pub(crate) fn on(given: Vec<Arc<MemberDrive>>, options: &OpenOptions) -> Result<Self, StoreError> {
        Self::without(Vec::new(), given, options)
    }

    fn without(
        unopened: Vec<DriveState>,
        given: Vec<Arc<MemberDrive>>,
        options: &OpenOptions,
    ) -> Result<Self, StoreError> {
        let opened = warprow_layout::open(given.clone(), options.access)?;
        let volume = opened.volume;
        let members = volume.positions().iter().map(|position| given.get((*position)?).cloned()).collect();
        let driving = options.driving();
        let updates = Updates::new(options.overlay_bytes);
        let (repairs, reranking) = (opened.repairs, Mutex::default());
        let shared = Shared { volume, members, driving, updates, repairs, reranking, unopened };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Every table that look-ups find. Where several generations have a table of one name, the one that was shown last
    /// counts.
    pub fn tables(&self) -> Vec<TableInfo> {
        self.located().iter().map(TableInfo::new).collect()
    }

    /// Every table that look-ups do not find: of generations on standby, and those that later ones of the same name hide.
    pub fn hidden_tables(&self) -> Vec<TableInfo> {
        let found: std::collections::HashSet<(u64, usize)> =
            self.located().iter().map(|version| (version.generation.id, version.index)).collect();
        let all = self.shared.volume.generations().into_iter().filter(|it| !is_lists(it)).flat_map(|generation| {
            (0..generation.tables.len()).map(move |index| TableVersion { generation: generation.clone(), index })
        });
        all.filter(|version| !found.contains(&(version.generation.id, version.index)))
            .map(|version| TableInfo::new(&version))
            .collect()
    }

    /// The table of that name.
    pub fn table(&self, name: &str) -> Option<TableInfo> {
        self.locate(name).ok().map(|located| TableInfo::new(&located))
    }

    /// What lies on the drives, and what was found unfinished or damaged when the store was opened.
    pub fn inspect(&self) -> (StoreInspection, &[MetadataRepair]) {
        (self.shared.volume.inspect(), &self.shared.repairs)
    }

    /// What lies where on each drive, and where each table lies.
    pub fn map(&self) -> (Vec<DriveMap>, Vec<TableMap>) {
        (self.shared.volume.map(), self.shared.volume.table_map())
    }

    /// What has to be written for every copy of the metadata on `devices`, given in any order, to be whole:
    /// [`RepairProposal::apply`] writes it, and nothing else does. What would be a guess is refused.
    pub fn propose_repair(devices: &[Device], options: &OpenOptions) -> Result<RepairProposal, StoreError> {
        Device::check_writable(devices)?;
        let members = open_members(devices, &options.driving())?;
        RepairProposal::new(members).map_err(|error| of_image(devices, error.into()))
    }

    /// Whether all members are there.
    pub fn state(&self) -> StoreState {
        match self.shared.volume.missing() {
            missing if missing.is_empty() => StoreState::Healthy,
            missing => StoreState::Degraded { missing },
        }
    }

    /// The names of the drives, in the order of the members; `None`: missing.
    pub fn drives(&self) -> Vec<Option<String>> {
        let name = |member: &Arc<MemberDrive>| member.name().to_owned();
        self.shared.members.iter().map(|member| member.as_ref().map(name)).collect()
    }

    /// How each drive does: those of the members that are there, in their order, then those that could not be opened.
    ///
    /// A drive is given up when recovery has come to its end, or when it is gone. From then on look-ups fail its rows at
    /// once (`RowError::Drive`) and serve all others; whatever else needs it fails with
    /// [`DriverError::GivenUp`].
    pub fn drive_states(&self) -> Vec<DriveState> {
        let members = self.shared.members.iter().flatten().map(DriveState::of);
        members.chain(self.shared.unopened.iter().cloned()).collect()
    }

    /// The files of attached tables that have changed since they were attached: none of their rows is read any more.
    pub fn changed_files(&self) -> Vec<ChangedFile> {
        self.shared.members.iter().flatten().filter_map(|member| member.changed_file()).cloned().collect()
    }

    /// Tries every drive that was given up once more, when somebody says that it may work again: resets its function and
    /// sets it up. Returns how these drives do then. Look-ups use the ones that are back from their next batch on. A drive
    /// that was plugged out of a VFIO group does not come back this way: open the store again.
    pub fn retry_drives(&self) -> Vec<DriveState> {
        let given_up = |member: &&Arc<MemberDrive>| member.controller().failure().is_some();
        let retried = self.shared.members.iter().flatten().filter(given_up).map(|member| {
            let error = member.driven().retry().err();
            let state = DriveState::of(member);
            DriveState { failure: error.or(state.failure), ..state }
        });
        retried.collect()
    }

    /// What each drive has reported by itself since the store was opened: warnings about its health, errors, changes of its
    /// namespaces. Look-ups look for that too, every 10 ms at most, and `tracing` warns of each event; so this is for what
    /// has come, whether anybody looks rows up or not. It waits for the log pages of new events, at most as long as an
    /// administrative command may take.
    pub fn drive_events(&self) -> Vec<DriveEvents> {
        self.shared.members.iter().flatten().map(|member| member.events()).collect()
    }

    /// Bytes of chunks that no generation has.
    pub fn free_bytes(&self) -> u64 {
        let volume = &self.shared.volume;
        volume.free_chunks().iter().sum::<u64>().saturating_mul(volume.geometry().chunk_size())
    }

    /// A table's id → rank permutation; `None`: ids are ranks.
    pub fn ranks(&self, table: &str) -> Result<Option<Ranks>, StoreError> {
        let located = self.locate(table)?;
        self.shared.watch()?;
        Ok(self.shared.volume.read_ranks(&located.generation, located.index)?)
    }

    /// The index of a table's keys, key → slot; `None`: it is looked up by ids. [`ranks`](Self::ranks) are those of slots.
    pub fn key_index(&self, table: &str) -> Result<Option<KeyIndex>, StoreError> {
        let located = self.locate(table)?;
        self.shared.watch()?;
        Ok(self.shared.volume.read_key_index(&located.generation, located.index)?)
    }

    /// A table's keys, by rank, an `i64` by its bits; `None`: none are stored.
    pub fn keys(&self, table: &str) -> Result<Option<Vec<u64>>, StoreError> {
        let located = self.locate(table)?;
        self.shared.watch()?;
        Ok(self.shared.volume.read_keys(&located.generation, located.index)?)
    }

    /// The checksums of a table's rows ([`row_crc`](warprow_layout::row_crc)), by rank, as [`scan`](Self::scan) reads them: stored
    /// ones, and computed ones of rows that were updated since. `None`: none are stored.
    pub fn row_crcs(&self, table: &str) -> Result<Option<Vec<u32>>, StoreError> {
        let (located, overlay) = self.shared.updates.with_overlay(&self.shared.volume, self.locate(table)?);
        self.shared.watch()?;
        let Some(mut crcs) = self.shared.volume.read_row_crcs(&located.generation, located.index)? else {
            return Ok(None);
        };
        for (rank, row) in self.updated_by_rank(&located, &*overlay?)? {
            if let Some(crc) = crcs.get_mut(rank as usize) {
                *crc = warprow_layout::row_crc(rank, &row);
            }
        }
        Ok(Some(crcs))
    }

    /// The generation that holds a table, and the table's index in it: where its rows lie. Holding it pins its chunks.
    pub fn generation(&self, table: &str) -> Result<(Arc<Generation>, usize), StoreError> {
        self.locate(table).map(|located| (located.generation, located.index))
    }

    /// Reads the rows of ranks `ranks` (cut to those that there are), at the drives' bandwidth, and hands each to `row` with its
    /// rank, in no particular order. Stops when `row` says so.
    pub fn scan(
        &self,
        table: &str,
        ranks: Range<u64>,
        row: &mut dyn FnMut(u64, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let (located, overlay) = self.shared.updates.with_overlay(&self.shared.volume, self.locate(table)?);
        let updated = self.updated_by_rank(&located, &*overlay?)?;
        self.scan_version(&located, ranks, &mut |rank, stored| {
            row(rank, updated.get(&rank).map_or(stored, |updated| &updated[..]))
        })
    }

    /// As [`scan`](Self::scan) of all ranks, and compares each row with its checksum, where the table has some.
    ///
    /// Rows, updates and checksums are those of one moment: rows that are updated meanwhile come as they were, and are not taken for
    /// damage. It ends with [`StoreError::RowDamaged`] at a row that does not match.
    pub fn scan_checked(
        &self,
        table: &str,
        row: &mut dyn FnMut(u64, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let (located, overlay) = self.shared.updates.with_overlay(&self.shared.volume, self.locate(table)?);
        let updated = self.updated_by_rank(&located, &*overlay?)?;
        self.shared.watch()?;
        let crcs = self.shared.volume.read_row_crcs(&located.generation, located.index)?;
        let mut damaged = None;
        self.scan_version(&located, 0..u64::MAX, &mut |rank, stored| {
            // The log that has it has checksums of its own.
            if let Some(updated) = updated.get(&rank) {
                return row(rank, updated);
            }
            let crc = crcs.as_ref().and_then(|crcs| crcs.get(rank as usize));
            if crc.is_some_and(|&crc| crc != warprow_layout::row_crc(rank, stored)) {
                damaged = Some(rank);
                return ControlFlow::Break(());
            }
            row(rank, stored)
        })?;
        match damaged {
            Some(rank) => Err(self.shared.damaged_row(&located, rank)),
            None => Ok(()),
        }
    }

    pub(crate) fn scan_version(
        &self,
        located: &TableVersion,
        ranks: Range<u64>,
        row: &mut dyn FnMut(u64, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let generation = &located.generation;
        let Some(reader) = RowReader::new(generation.clone(), located.index, ranks) else { return Ok(()) };
        self.shared.watch()?;
        let stripe = generation.placement.stripe_bytes() as usize;
        let mut bulk = Bulk::new(Purpose::Read, &self.shared.members, stripe, &self.shared.driving)?;
        let extents = reader.extents(bulk.extent_bytes());
        let mut take = |extent: &warprow_layout::Extent, bytes: &[u8]| {
            let mut flow = ControlFlow::Continue(());
            reader.rows(extent, bytes, |rank, bytes| {
                if flow.is_continue() {
                    flow = row(rank, bytes);
                }
            })?;
            if flow.is_break() { Err(StoreError::Interrupted) } else { Ok(()) }
        };
        match bulk.run(extents, Job::Read(&mut take)) {
            Err(StoreError::Interrupted) => Ok(()),
            other => other,
        }
    }

    pub(crate) fn located(&self) -> Vec<TableVersion> {
        latest_tables(self.shared.volume.generations())
    }

    pub(crate) fn locate(&self, table: &str) -> Result<TableVersion, StoreError> {
        let tables = self.located();
        let found = tables.iter().find(|located| located.table().name == table).cloned();
        found.ok_or_else(|| StoreError::NoSuchTable {
            table: table.to_owned(),
            known: tables.iter().map(|located| located.table().name.clone()).collect(),
        })
    }
}

/// Tells an image that is opened with the wrong LBA size from a drive whose format was changed: an image's LBA size is not in it.
fn of_image(devices: &[Device], error: StoreError) -> StoreError {
    let StoreError::Open(OpenError::LbaSizeChanged { drive, lba_size, formatted }) = &error else { return error };
    let device = devices.iter().find(|device| device.name() == *drive);
    let Some(uri) = device.and_then(Device::as_emulated).map(|emulated| &emulated.uri) else { return error };
    if uri.backing != warprow_soft_controller::BackingKind::File {
        return error;
    }
    let sidecar = uri.sidecar();
    let remedy = match (sidecar.exists(), uri.lba) {
        (true, _) => format!(
            "{0} is another drive's, or was changed: if so, set lba = {formatted} in it while the drive is closed",
            sidecar.display()
        ),
        (false, Some(given)) => format!("give lba={formatted} instead of lba={given}"),
        (false, None) => format!(
            "{} would tell, and is not there: bring it along with the image, or give lba={formatted} after the path",
            sidecar.display()
        ),
    };
    StoreError::ImageLba { drive: drive.clone(), lba_size: *lba_size, formatted: *formatted, remedy }
}

pub(crate) fn open_members(devices: &[Device], driving: &DriveAccess) -> Result<Vec<Arc<MemberDrive>>, StoreError> {
    let driven = shared_controller::open(devices, driving)?;
    devices.iter().zip(driven).map(|(device, driven)| MemberDrive::on(device, driven?, driving)).collect()
}

/// As [`open_members`], doing without the drives that cannot be driven.
fn open_what_works(
    devices: &[Device],
    driving: &DriveAccess,
) -> Result<(Vec<Arc<MemberDrive>>, Vec<DriveState>), StoreError> {
    let mut members = Vec::new();
    let mut failed = Vec::new();
    for (device, driven) in devices.iter().zip(shared_controller::open(devices, driving)?) {
        match driven.map_err(StoreError::from).and_then(|driven| MemberDrive::on(device, driven, driving)) {
            Ok(member) => members.push(member),
            Err(StoreError::Driver(error)) => {
                tracing::error!(drive = device.name(), %error, "a drive is left out");
                failed.push(DriveState { drive: device.name(), failure: Some(error), resets: 0 });
            }
            Err(error) => return Err(error),
        }
    }
    match (members.is_empty(), failed.pop()) {
        (true, Some(DriveState { failure: Some(error), .. })) => Err(error.into()),
        (_, last) => {
            failed.extend(last);
            Ok((members, failed))
        }
    }
}

impl TableInfo {
    fn new(located: &TableVersion) -> Self {
        let table = located.table();
        let generation = &located.generation;
        Self {
            name: table.name.clone(),
            rows: table.rows,
            dim: table.dim,
            dtype: table.dtype,
            row_bytes: table.row_bytes(),
            hot_rows: table.hot_rows,
            permuted: table.ranks.is_some(),
            keys: table.keys.map(|keys| keys.spec),
            row_crc: table.crc_region.is_some(),
            model: generation.name.clone(),
            generation: generation.id,
        }
    }
}
