//! Errors of the store. Each names the thing and the remedy; the error of the package below is its `source`.

use warprow_dma::{AllocateError, FunctionError};
use warprow_driver::DriverError;
use warprow_layout::{DriveError, OpenError, StoreFormatError, VolumeError};

use crate::attach_error::AttachError;
use crate::events::NamespaceChanged;

/// What can go wrong with a store, except in a look-up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A drive's address makes no sense.
    #[error(
        "{address:?} is no drive: {reason}; give a PCI address (0000:41:00.0), emulated:PATH, vfio-user:SOCKET or attached:FILE"
    )]
    Address {
        /// What was given.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A drive's address has a property that drives of its kind have not, or one twice, or in another form.
    #[error("{address}: {reason}")]
    Property {
        /// What was given.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An emulated drive could not be opened or created.
    #[error(transparent)]
    Emulated(#[from] warprow_soft_controller::UriError),
    /// A PCI function could not be opened.
    #[error(transparent)]
    Vfio(#[from] warprow_vfio::OpenError),
    /// The controller behind a socket cannot be opened.
    #[error(transparent)]
    VfioUser(#[from] warprow_vfio_user::OpenError),
    /// A file of tables cannot be a drive.
    #[error(transparent)]
    Attached(#[from] AttachError),
    /// A namespace was given twice.
    #[error("drive {drive} is given twice: give it once")]
    OpenedTwice {
        /// The drive.
        drive: String,
    },
    /// A store is to be written to, and one of its drives was opened for reading alone.
    #[error("drive {drive} was opened for reading alone: open it for writing, or the store for reading only")]
    OpenedForReading {
        /// The drive.
        drive: String,
    },
    /// A controller, or its driver, failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The transport to a drive failed.
    #[error(transparent)]
    Function(#[from] FunctionError),
    /// Memory for a drive could not be had.
    #[error(transparent)]
    Memory(#[from] AllocateError),
    /// Memory for the DRAM tier or for buffers could not be had.
    #[error("cannot allocate {bytes} bytes for {what}: {source}; ask for less")]
    Allocate {
        /// What for.
        what: &'static str,
        /// Bytes.
        bytes: u64,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// Rows are to be updated by keys that are not stored: an index alone may take another key for one of them.
    #[error(
        "table {table:?} does not store its keys, only an index of them, which may take a key that is new for one that is there: its rows \
         cannot be updated"
    )]
    NotUpdatable {
        /// The table.
        table: String,
    },
    /// Sparse ids are to be compared with the stored ones, and the table has none.
    #[error(
        "table {table:?} does not store its keys, so none can be compared: load it with them, or do without the check"
    )]
    KeysNotStored {
        /// The table.
        table: String,
    },
    /// A drive's LBA format cannot be used.
    #[error("drive {drive}: {reason}")]
    LbaFormat {
        /// The drive.
        drive: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A drive in a file is opened with another LBA size than the store on it was made with. Nothing is lost.
    #[error(
        "drive {drive} is opened with LBAs of {lba_size} bytes, the store on it was made with {formatted}; its data is whole: \
         {remedy}"
    )]
    ImageLba {
        /// The drive.
        drive: String,
        /// Bytes of an LBA now.
        lba_size: u32,
        /// Bytes of an LBA at format time.
        formatted: u32,
        /// What to do.
        remedy: String,
    },
    /// A drive's namespace is not what it was.
    #[error(transparent)]
    NamespaceChanged(#[from] NamespaceChanged),
    /// Nothing was changed, because it would destroy what nobody agreed to lose.
    #[error("{what}; nothing was changed. To agree, give the consent token {token}")]
    Refused {
        /// What would be lost.
        what: String,
        /// The token that says yes to exactly this.
        token: String,
    },
    /// The drives could not be formatted.
    #[error(transparent)]
    Format(#[from] StoreFormatError),
    /// The store could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The store refused a change, or a drive failed it.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// A drive failed a metadata access.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// There is no table of that name.
    #[error("there is no table {table:?}; the store has {}", list(.known))]
    NoSuchTable {
        /// The name asked for.
        table: String,
        /// The tables there are.
        known: Vec<String>,
    },
    /// A generation whose tables are found by name is not dropped.
    #[error("generation {id} has tables that look-ups find ({}): switch to another first", list(.tables))]
    Shown {
        /// The generation.
        id: u64,
        /// The tables.
        tables: Vec<String>,
    },
    /// No drive of the store has that name.
    #[error("the store has no drive {drive}; it has {}", list(.known))]
    NoSuchDrive {
        /// The name.
        drive: String,
        /// The store's drives.
        known: Vec<String>,
    },
    /// Rows of an update that do not make up one for each id.
    #[error("table {table:?} has rows of {row_bytes} bytes; {given} bytes are not those of {ids} rows")]
    UpdateRows {
        /// The table.
        table: String,
        /// Rows that were announced.
        ids: usize,
        /// Bytes of a row.
        row_bytes: usize,
        /// Bytes that were given.
        given: usize,
    },
    /// Keys that a table does not have are not created unless that is asked for.
    #[error(
        "table {table:?} has no row of key {}: new keys come with a load, or with an update that creates them",
        .keys.join(", ")
    )]
    NoSuchKey {
        /// The table.
        table: String,
        /// The first such keys, at most 10, as numbers.
        keys: Vec<String>,
    },
    /// Keys cannot be removed from a table that is looked up by ids.
    #[error(
        "table {table:?} has no keys: its ids are all numbers below its rows, and none can be removed. Update the row with zeros, or \
         load the table with a key index"
    )]
    NotRemovable {
        /// The table.
        table: String,
    },
    /// A removal would leave a table without a key. Nothing was changed.
    #[error("no key of table {table:?} would be left: keep one, or drop the generation")]
    NoKeyLeft {
        /// The table.
        table: String,
    },
    /// A record of last touches does not have the table whose keys are to expire. Nothing was changed.
    #[error("the record of last touches has nothing of table {table:?}: it has {}", list(.known))]
    NoTouches {
        /// The table.
        table: String,
        /// The tables that it has.
        known: Vec<String>,
    },
    /// A record of last touches cannot be read or written.
    #[error("the record of last touches {}: {source}", path.display())]
    TouchesFile {
        /// The file.
        path: std::path::PathBuf,
        /// Why not.
        source: crate::TouchesFileError,
    },
    /// Keys of a table were created or removed since it was written, and ranks are about to change.
    #[error(
        "keys of a table of generation {generation} were created or removed since it was written: compact it first"
    )]
    CreatedKeys {
        /// The generation.
        generation: u64,
    },
    /// Created keys come into their tables, and removed ones leave them, by a copy of the whole generation, for which there is no room.
    #[error(
        "generation {generation} has keys that were created or removed, and is written anew beside itself to be compacted: {needed} \
         chunks of {chunk_size} bytes are needed, {free} are free"
    )]
    NoRoomToGrow {
        /// The generation.
        generation: u64,
        /// Chunks needed.
        needed: u64,
        /// Chunks free.
        free: u64,
        /// Bytes of a chunk.
        chunk_size: u64,
    },
    /// Keys cannot be created or removed: the generation could not be written anew after that, and compaction would never bring the
    /// change into its tables. Nothing was changed.
    #[error(
        "with these keys created or removed, generation {generation} could not be compacted: that takes {needed} free chunks of {chunk_size} bytes, and \
         {free} are free"
    )]
    NoRoomToCreate {
        /// The generation.
        generation: u64,
        /// Chunks needed.
        needed: u64,
        /// Chunks free.
        free: u64,
        /// Bytes of a chunk.
        chunk_size: u64,
    },
    /// No index can be made for keys.
    #[error("the keys of table {table:?}: {source}")]
    Keys {
        /// The table.
        table: String,
        /// Why not.
        source: warprow_layout::TableKeysError,
    },
    /// Ids that a table does not have cannot be updated.
    #[error("table {table:?} has {rows} rows, and none of id {}", join(.ids))]
    NoSuchRow {
        /// The table.
        table: String,
        /// The table's rows.
        rows: u64,
        /// The first such ids, at most 10.
        ids: Vec<u64>,
    },
    /// Updated rows would take more memory than they may.
    #[error(
        "the updated rows of generation {generation} would take {bytes} bytes of memory, {bound} are allowed: compact it and have hosts \
         prepare and adopt it, or open the store with more"
    )]
    OverlayFull {
        /// The generation.
        generation: u64,
        /// Bytes that they would take.
        bytes: u64,
        /// Bytes that they may.
        bound: u64,
    },
    /// No thread compacts the store.
    #[error("no compactor was started: {why}")]
    Compactor {
        /// Why not, and what to do.
        why: String,
    },
    /// An executor on a GPU follows updates, and has no room for these in its memory.
    #[error(
        "the updated rows would take {bytes} bytes of GPU memory, {bound} are there: compact their generation and have the executor prepare \
         and adopt it, or attach it with more GpuOptions::overlay_bytes"
    )]
    GpuOverlayFull {
        /// Bytes that they would take.
        bytes: u64,
        /// Bytes that they may.
        bound: u64,
    },
    /// An executor on a GPU follows updates, and cannot take these; nothing was written.
    #[error("an executor on a GPU cannot take the update, of which nothing was written: {why}: try again, or drop it")]
    GpuBusy {
        /// Why.
        why: String,
    },
    /// An executor on a GPU follows updates, and did not take these: they are durable, and hosts show them.
    #[error(
        "the update is durable and seen by hosts, but not yet by look-ups of an executor on a GPU: {why}; it comes with the next update \
         that it takes"
    )]
    GpuBehind {
        /// Why.
        why: String,
    },
    /// Somebody reads tables who would not see updates.
    #[error(
        "table {table:?} cannot be updated while an executor on a GPU is attached that does not follow updates: attach it with \
         GpuOptions::with_overlay_bytes, or drop it first"
    )]
    Unfollowing {
        /// The table.
        table: String,
    },
    /// A plan that is in use cannot go over to other tables.
    #[error("a plan of this host cannot read the new tables: {why}")]
    Unfit {
        /// Why.
        why: String,
    },
    /// Rows for DRAM cannot be listed now.
    #[error(
        "the rows of table {table:?} that lie in DRAM cannot be chosen now, because {by}: try again when that has ended"
    )]
    RerankBusy {
        /// The table.
        table: String,
        /// What goes on.
        by: &'static str,
    },
    /// A list of rows in DRAM is not used, because it is damaged.
    #[error(
        "the list of rows of table {table:?} in DRAM ({place}) is damaged and not used: {what}; make it again with `rerank`, or remove \
         it"
    )]
    DramListDamaged {
        /// The table.
        table: String,
        /// Where the list lies.
        place: String,
        /// What is wrong.
        what: String,
    },
    /// The file of an attached table's list is there and cannot be read. It may be whole.
    #[error(
        "the list of rows of table {table:?} in DRAM, {}, cannot be read and is not used: {source}; let who looks rows up read that file",
        path.display()
    )]
    DramListUnreadable {
        /// The table.
        table: String,
        /// The file.
        path: std::path::PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The generation that has the lists of rows in DRAM is to be dropped as if it were one of a model.
    #[error(
        "generation {id} has the lists of rows in DRAM of this store's tables, and no model: take a table's list away with `rerank`, \
         without rows"
    )]
    DropsLists {
        /// The generation.
        id: u64,
    },
    /// The file of an attached table's list cannot be written.
    #[error("the list of rows in DRAM, {}: {source}; whoever lists rows has to be able to write there", path.display())]
    DramListFile {
        /// The file.
        path: std::path::PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// An attached table that is not of a file has no place for a list of rows in DRAM.
    #[error("table {table:?} has no place for a list of rows in DRAM: attach it by the address of its file")]
    NoListPlace {
        /// The table.
        table: String,
    },
    /// There is a table of that name already.
    #[error("table {table:?} exists: choose another name, or replace it")]
    TableExists {
        /// The table.
        table: String,
    },
    /// A plan makes no sense.
    #[error("feature {feature:?}: {reason}")]
    Plan {
        /// The feature.
        feature: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A plan's options are out of range.
    #[error("plan: {reason}")]
    PlanOptions {
        /// What is wrong, and what to do.
        reason: String,
    },
    /// Options of an executor are out of range, or do not fit the store.
    #[error("executor: {reason}")]
    ExecutorOptions {
        /// What is wrong, and what to do.
        reason: String,
    },
    /// Not enough queues for a plan's slots.
    #[error(
        "drive {drive} has {free} queue pairs free, {slots} slots of {queue_pairs} each need {}: ask for fewer slots",
        u64::from(*slots) * u64::from(*queue_pairs)
    )]
    Queues {
        /// The drive.
        drive: String,
        /// Slots asked for.
        slots: u32,
        /// Queue pairs that each slot takes on every drive.
        queue_pairs: u32,
        /// Queue pairs that are free.
        free: u32,
    },
    /// All slots of a plan are in use.
    #[error("all {slots} slots of the plan are in use: drop one, or plan more")]
    NoFreeSlot {
        /// Slots of the plan.
        slots: u32,
    },
    /// A row that was read does not match its checksum.
    #[error(
        "table {table:?}, rank {rank}: the row that drive {drive} returned does not match its checksum; load the table again"
    )]
    RowDamaged {
        /// The table.
        table: String,
        /// The row.
        rank: u64,
        /// The drive.
        drive: String,
    },
    /// A drive was reset during a load: somebody brought it back after a failure. What had been written may be lost.
    #[error("the load was interrupted by a reset of drive {drive}; nothing of it was committed: load again")]
    LoadReset {
        /// The drive.
        drive: String,
    },
    /// A drive was reset again, after what was being read from it had been repeated.
    #[error("reading was interrupted by several resets of drive {drive}: look after the drive, then read again")]
    ReadReset {
        /// The drive.
        drive: String,
    },
    /// The journal of a load cannot be read or written.
    #[error("the journal {} of the load: {source}", path.display())]
    Journal {
        /// The file.
        path: std::path::PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The caller's callback said stop.
    #[error("interrupted; nothing was committed")]
    Interrupted,
}

fn join(ids: &[u64]) -> String {
    ids.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

fn list(names: &[String]) -> String {
    match names {
        [] => "no tables".to_owned(),
        names => names.join(", "),
    }
}
