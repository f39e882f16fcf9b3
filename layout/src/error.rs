//! Errors. Each names the thing and the remedy.

use uuid::Uuid;

use crate::block::BlockError;
use crate::codec::Ended;
use crate::drive::DriveError;
use crate::ranks::RankError;

/// How a catalogue contradicts itself or its store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogueError {
    /// The bytes end inside a field.
    #[error("the catalogue ends inside a field")]
    Ended,
    /// A name is empty, too long, or no UTF-8.
    #[error("the name {:?} is empty, too long or no UTF-8", String::from_utf8_lossy(bytes))]
    Name {
        /// The name.
        bytes: Vec<u8>,
    },
    /// Ids of generations do not ascend, or one is not below the id that the next generation will get.
    #[error("generation id {id} is out of order")]
    Id {
        /// The id.
        id: u64,
    },
    /// A generation is wrong.
    #[error("generation {id}: {what}")]
    Generation {
        /// The generation's id.
        id: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// A table is wrong.
    #[error("generation {generation}, table {table:?}: {what}")]
    Table {
        /// The generation's id.
        generation: u64,
        /// The table.
        table: String,
        /// What is wrong.
        what: &'static str,
    },
}

impl From<Ended> for CatalogueError {
    fn from(_: Ended) -> Self {
        Self::Ended
    }
}

/// Why drives cannot be formatted. Unless a [`Drive`](Self::Drive) failed, nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreFormatError {
    /// No drives, or too many.
    #[error("a store has 1 to {} drives, not {given}", crate::geometry::MAX_MEMBERS)]
    DriveCount {
        /// Drives given.
        given: usize,
    },
    /// A drive cannot hold metadata and one chunk.
    #[error("drive {drive} is too small: it has {size} bytes, {needed} are needed")]
    TooSmall {
        /// The drive.
        drive: String,
        /// The drive's size, bytes.
        size: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// An LBA size that a store cannot lie on.
    #[error("drive {drive} has LBAs of {lba_size} bytes: format it to 512 or 4096 first")]
    LbaSize {
        /// The drive.
        drive: String,
        /// The drive's LBA size, bytes.
        lba_size: u32,
    },
    /// Two LBA sizes in one store.
    #[error("drive {drive} has LBAs of {lba_size} bytes, drive {first} of {first_size}: format them alike first")]
    MixedLbaSizes {
        /// The first drive.
        first: String,
        /// The first drive's LBA size, bytes.
        first_size: u32,
        /// The drive that differs.
        drive: String,
        /// The LBA size of the drive that differs, bytes.
        lba_size: u32,
    },
    /// An option is out of its range.
    #[error("chunks of {chunk_size} bytes: give a power of two from 1 MiB to 64 MiB")]
    ChunkSize {
        /// Bytes asked for.
        chunk_size: u64,
    },
    /// The catalogue extents would be larger than a store can have.
    #[error("a catalogue of {bytes} bytes is too large: give larger chunks or a smaller catalogue")]
    CatalogueSize {
        /// Bytes of an extent.
        bytes: u64,
    },
    /// A drive was given twice.
    #[error("drive {drive} is given twice")]
    Twice {
        /// The drive.
        drive: String,
    },
    /// There is a store on the drive, readable or not.
    #[error("drive {drive} already belongs to a store{}: say that it may be overwritten to format it all the same",
        store.map(|store| format!(" ({store})")).unwrap_or_default())]
    AlreadyFormatted {
        /// The drive.
        drive: String,
        /// The store, where a superblock could be read.
        store: Option<Uuid>,
    },
    /// A drive failed.
    #[error(transparent)]
    Drive(#[from] DriveError),
}

/// A member whose drive is missing.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct MissingMember {
    /// The member's index in the membership list.
    pub index: u16,
    /// The member's identity.
    pub uuid: Uuid,
    /// The serial that it had when it was formatted.
    pub serial: String,
}

impl std::fmt::Display for MissingMember {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (member {}, {})", self.serial, self.index, self.uuid)
    }
}

fn list(missing: &[MissingMember]) -> String {
    missing.iter().map(MissingMember::to_string).collect::<Vec<_>>().join(", ")
}

/// Why a store cannot be opened. Nothing was written, unless a [`Drive`](Self::Drive) failed while members were
/// repaired.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No drive was given.
    #[error("no drive was given")]
    NoDrives,
    /// No trace of a store.
    #[error("drive {drive} carries no Warprow store: format it, or look whether it is the right drive")]
    NotWarprow {
        /// The drive.
        drive: String,
    },
    /// The drive has superblocks, and none of them is whole.
    #[error("drive {drive}: none of its superblocks is valid ({reason}); the store on it cannot be found")]
    TornSuperblock {
        /// The drive.
        drive: String,
        /// What is wrong with the first of them.
        reason: BlockError,
    },
    /// None of a drive's superblocks is whole, and nothing else on it proves which member it is.
    #[error(
        "drive {drive} may be {} of store {store}: none of its superblocks is whole, and its catalogue does not prove it",
        list(missing)
    )]
    Unidentified {
        /// The drive.
        drive: String,
        /// The store of the other drives.
        store: Uuid,
        /// The members that are missing.
        missing: Vec<MissingMember>,
    },
    /// Both copies of the superblock that may be the newest are damaged. What the other slot says may be out of date, and its
    /// rows overwritten.
    #[error(
        "drive {drive}: both copies of the superblock beside epoch {epoch} are damaged; epoch {epoch} may be out of date"
    )]
    LostSuperblock {
        /// The drive.
        drive: String,
        /// The epoch that can be read.
        epoch: u64,
    },
    /// A superblock of the drive was written by a newer version.
    #[error(
        "drive {drive} has format version {found_major}.{found_minor}, this version knows {known_major}.{known_minor}: \
             use a newer Warprow"
    )]
    NewerVersion {
        /// The drive.
        drive: String,
        /// The drive's major version.
        found_major: u16,
        /// The drive's minor version.
        found_minor: u16,
        /// The major version of this code.
        known_major: u16,
        /// The minor version of this code.
        known_minor: u16,
    },
    /// Members of the store are not among the drives.
    #[error("store {store} lacks {}: give these drives too, or open it degraded (read-only)", list(missing))]
    MissingMember {
        /// The store.
        store: Uuid,
        /// Who lacks.
        missing: Vec<MissingMember>,
    },
    /// A drive too many: it belongs to another store.
    #[error("drive {drive} belongs to store {its_store}, not to {store}: leave it out")]
    ForeignMember {
        /// The drive.
        drive: String,
        /// The drive's store.
        its_store: Uuid,
        /// The store of the others.
        store: Uuid,
    },
    /// A drive of another store was given, and a member of this store is missing: the two drives were swapped.
    #[error(
        "drive {drive} belongs to store {its_store}, while store {store} lacks {}: these drives were swapped",
        list(missing)
    )]
    SwappedMember {
        /// The drive.
        drive: String,
        /// The drive's store.
        its_store: Uuid,
        /// The store of the others.
        store: Uuid,
        /// The members that are missing in the store of the others.
        missing: Vec<MissingMember>,
    },
    /// A drive that was removed from the store.
    #[error("drive {drive} was removed from store {store}: leave it out; what it held was moved to the others")]
    RemovedMember {
        /// The drive.
        drive: String,
        /// The store.
        store: Uuid,
    },
    /// Two drives claim to be the same member.
    #[error("drives {first} and {second} are both member {member}: one is a copy, leave it out")]
    DuplicateMember {
        /// One drive.
        first: String,
        /// The other.
        second: String,
        /// Who they claim to be.
        member: Uuid,
    },
    /// A drive's content is older than the others' by more than an interrupted commit explains: a restored image, or a
    /// member that was away.
    #[error(
        "drive {drive} is at epoch {its_epoch} and lacks what epoch {epoch} of the store wrote on it: it is an old copy"
    )]
    StaleMember {
        /// The drive.
        drive: String,
        /// The drive's epoch.
        its_epoch: u64,
        /// The store's epoch.
        epoch: u64,
    },
    /// Members of one store disagree on its sizes or members, or show the same epoch by different commits: they are of copies
    /// of the store that went separate ways.
    #[error(
        "drives {first} and {second} are of one store and disagree on its sizes, its members or its last commit: they are of \
         different copies of it; give drives of one copy"
    )]
    Disagreement {
        /// One drive.
        first: String,
        /// The other.
        second: String,
    },
    /// The drive was given another LBA format, or is an image that is opened with another one than it was written with.
    #[error(
        "drive {drive} has LBAs of {lba_size} bytes, its store was made with {formatted}: its LBA format was changed, or it is an \
         image that has to be opened with LBAs of {formatted} bytes"
    )]
    LbaSizeChanged {
        /// The drive.
        drive: String,
        /// Bytes of an LBA now.
        lba_size: u32,
        /// Bytes of an LBA at format time.
        formatted: u32,
    },
    /// The drive is smaller than it was.
    #[error("drive {drive} has {lba_count} LBAs, its store was made with {formatted}: it was truncated")]
    Shrunk {
        /// The drive.
        drive: String,
        /// LBAs now.
        lba_count: u64,
        /// LBAs at format time.
        formatted: u64,
    },
    /// No member has an intact catalogue of the valid epoch.
    #[error("the catalogue of epoch {epoch} is damaged on every drive (block {block} on {drive}: {source})")]
    CatalogueDamaged {
        /// The epoch.
        epoch: u64,
        /// The first drive.
        drive: String,
        /// The first bad block there.
        block: u32,
        /// What is wrong with it.
        source: BlockError,
    },
    /// The catalogue is intact and makes no sense.
    #[error("the catalogue of epoch {epoch} is inconsistent")]
    CatalogueInvalid {
        /// The epoch.
        epoch: u64,
        /// How.
        source: CatalogueError,
    },
    /// A drive failed.
    #[error(transparent)]
    Drive(#[from] DriveError),
}

/// Why an open volume refuses something, or which drive failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// The volume was opened for reading only, or lacks members.
    #[error("the store is open read-only: {reason}")]
    ReadOnly {
        /// Why.
        reason: String,
    },
    /// Another transaction is open.
    #[error("another transaction is open on this store: finish or drop it first")]
    Busy,
    /// An earlier commit failed at a point where it may or may not have happened.
    #[error("an earlier commit failed half-way: open the store again to learn whether it happened")]
    Poisoned,
    /// A generation cannot be made as asked.
    #[error("generation {name:?}: {reason}")]
    InvalidGeneration {
        /// The generation's name.
        name: String,
        /// Why not.
        reason: String,
    },
    /// A table cannot be made as asked.
    #[error("table {table:?}: {reason}")]
    InvalidTable {
        /// The table's name.
        table: String,
        /// Why not.
        reason: String,
    },
    /// Not enough free chunks.
    #[error("{needed} chunks of {chunk_size} bytes are needed, {free} are free{}: drop a generation or add room",
        apart(*kept, *pinned))]
    NoSpace {
        /// Chunks needed.
        needed: u64,
        /// Chunks free.
        free: u64,
        /// Chunks of these that are left for the compaction of a generation with updates in its log.
        kept: u64,
        /// Chunks of dropped generations that readers still hold.
        pinned: u64,
        /// Bytes of a chunk.
        chunk_size: u64,
    },
    /// The catalogue would outgrow its extent.
    #[error("the catalogue would have {needed} bytes, its extent holds {capacity}: drop a generation")]
    CatalogueFull {
        /// Bytes needed.
        needed: u64,
        /// Bytes there are.
        capacity: u64,
    },
    /// No copy of some metadata is whole any more, although the store is open.
    #[error("the metadata on the drives is damaged: {source}")]
    Metadata {
        /// Why it could not be opened now.
        source: Box<OpenError>,
    },
    /// No such generation.
    #[error("there is no generation {id}")]
    NoSuchGeneration {
        /// The id asked for.
        id: u64,
    },
    /// A generation is shown: its tables are found by name, and would vanish if it were dropped.
    #[error("generation {id} is shown, its tables {} are found by name: switch to another one first", tables.join(", "))]
    Shown {
        /// The generation.
        id: u64,
        /// The tables that are found by name.
        tables: Vec<String>,
    },
    /// A drive that is to join is a member, by another name, or a copy of one.
    #[error(
        "drive {drive} is member {member} of this store under another name, or a copy of it: leave it out, or format it"
    )]
    AlreadyMember {
        /// The drive, as it was given.
        drive: String,
        /// The member, as its drive is called.
        member: String,
    },
    /// The log of a generation is not what was written to it.
    #[error(
        "the log of generation {generation} is damaged at unit {unit} of a chunk on {drive} ({what}): which rows are current cannot be told"
    )]
    LogDamaged {
        /// The generation.
        generation: u64,
        /// The drive.
        drive: String,
        /// The first unit of the chunk that is not as it should be.
        unit: u32,
        /// What is wrong.
        what: &'static str,
    },
    /// The log of a generation is open already: somebody else appends to it.
    #[error("the log of generation {generation} is open already: use that, or close it first")]
    LogBusy {
        /// The generation.
        generation: u64,
    },
    /// The members were changed: another volume goes on.
    #[error(
        "the members of this store are being changed, or were: go on with the volume that this gave, or open the store again"
    )]
    MembersChanged,
    /// Somebody reads what lies on a drive that is to go.
    #[error(
        "drive {drive} holds chunks of generation {generation} that somebody still reads: let hosts and scans go over to the others"
    )]
    MemberInUse {
        /// The drive.
        drive: String,
        /// The generation.
        generation: u64,
    },
    /// Moving was stopped.
    #[error("moving chunks was stopped; what is left is moved when it is begun again")]
    Stopped,
    /// A drive cannot become a member.
    #[error(transparent)]
    Unsuitable(#[from] StoreFormatError),
    /// Somebody else copies the chunks of a generation.
    #[error("the chunks of generation {generation} are being copied already: wait for that to end")]
    Rewriting {
        /// The generation.
        generation: u64,
    },
    /// A log has as many chunks as it can.
    #[error("the log of generation {generation} has {chunks} chunks, as many as it can: compact it")]
    LogFull {
        /// The generation.
        generation: u64,
        /// The log's chunks.
        chunks: usize,
    },
    /// There are not enough chunks for the log of a generation. Some that are free may be kept for its compaction.
    #[error(
        "updates of generation {generation} need {needed} chunks of {chunk_size} bytes more for their log, {free} are free{}: compact it, \
         drop a generation or add a drive", apart(*kept, *pinned))]
    NoLogSpace {
        /// The generation.
        generation: u64,
        /// Chunks needed.
        needed: u64,
        /// Chunks free.
        free: u64,
        /// Chunks of these that are left for compaction.
        kept: u64,
        /// Chunks of dropped or changed generations that readers still hold.
        pinned: u64,
        /// Bytes of a chunk.
        chunk_size: u64,
    },
    /// A drive failed while updates were made durable.
    #[error(
        "the updates from number {sequence} on may or may not be there after a crash: repeat them; the next update that succeeds \
         ends the doubt"
    )]
    UpdateInDoubt {
        /// The sequence number of the first.
        sequence: u64,
        /// What failed.
        source: DriveError,
    },
    /// A switch would hide tables.
    #[error("switching to generation {id} would hide the tables {}: say that they may vanish, or load them with it", tables.join(", "))]
    TablesVanish {
        /// The generation switched to.
        id: u64,
        /// What would be found no more.
        tables: Vec<String>,
    },
    /// No such table.
    #[error("generation {generation:?} has no table {table}")]
    NoSuchTable {
        /// The generation's name.
        generation: String,
        /// The index asked for.
        table: usize,
    },
    /// A permuted table was not given its permutation before the commit.
    #[error("table {table:?} was declared permuted, but no ranks were given for it")]
    RanksNotGiven {
        /// The table.
        table: String,
    },
    /// Ranks were given that do not fit the table.
    #[error("table {table:?} has {rows} rows{}, but {given} ranks were given", if *permuted { "" } else { " in identity order" })]
    RanksMismatch {
        /// The table.
        table: String,
        /// The table's rows.
        rows: u64,
        /// Whether it was declared permuted.
        permuted: bool,
        /// Ranks given.
        given: u64,
    },
    /// A keyed table was not given its keys.
    #[error("table {table:?} was declared to have keys, but none were given for it")]
    KeysNotGiven {
        /// The table.
        table: String,
    },
    /// Keys were given that are not those that the table was declared with.
    #[error("table {table:?} was declared without keys, or with others than were given for it")]
    KeysMismatch {
        /// The table.
        table: String,
    },
    /// A row that was to be copied does not match its checksum. The copy was given up, and everything is as it was.
    #[error(
        "table {table:?}, rank {rank}: the row that drive {drive} returned does not match its checksum, and is not copied: update the row, or \
         load the table again"
    )]
    RowDamaged {
        /// The table.
        table: String,
        /// The row.
        rank: u64,
        /// The drive.
        drive: String,
    },
    /// Stored keys, or their index, do not match the catalogue's checksum.
    #[error("table {table:?}: the stored {what} is damaged (CRC32C {found:08x} instead of {expected:08x})")]
    KeysDamaged {
        /// The table.
        table: String,
        /// Which of the two: the keys or the index.
        what: &'static str,
        /// From the catalogue.
        expected: u32,
        /// The checksum of what was read.
        found: u32,
    },
    /// What is stored as a table's key index is no index, or not the index of that table.
    #[error("table {table:?}: the stored key index is not the table's")]
    KeysInvalid {
        /// The table.
        table: String,
        /// What is wrong with the bytes, if they are no index.
        source: Option<warprow_keys::IndexError>,
    },
    /// A buffer has the wrong length.
    #[error("{what} has {given} bytes instead of {expected}")]
    Length {
        /// Which.
        what: &'static str,
        /// Bytes it must have.
        expected: u64,
        /// Bytes it has.
        given: u64,
    },
    /// A stored permutation does not match its checksum.
    #[error("table {table:?}: the stored ranks are damaged (CRC32C {found:08x} instead of {expected:08x})")]
    RanksDamaged {
        /// The table.
        table: String,
        /// From the catalogue.
        expected: u32,
        /// The checksum of what was read.
        found: u32,
    },
    /// What is stored as a permutation is no permutation.
    #[error("table {table:?}: the stored ranks are no permutation")]
    RanksInvalid {
        /// The table.
        table: String,
        /// Why.
        source: RankError,
    },
    /// An address past the end of a generation.
    #[error("LBAs {first} to {end} pass the end of the generation, which has {lbas}")]
    OutOfRange {
        /// First LBA asked for.
        first: u64,
        /// One past the last.
        end: u64,
        /// LBAs there are.
        lbas: u64,
    },
    /// No such member.
    #[error("the store has no member {index}")]
    NoSuchMember {
        /// The index asked for.
        index: u16,
    },
    /// The member that holds the data is missing.
    #[error("the data lies on {missing}, which is missing")]
    MemberMissing {
        /// Who.
        missing: MissingMember,
    },
    /// The rows to load could not be read; nothing was committed.
    #[error("table {table:?}: the rows to load cannot be read")]
    Source {
        /// The table.
        table: String,
        /// Why.
        source: std::io::Error,
    },
    /// A drive failed; nothing was committed.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// A drive failed while the superblocks of a commit were being written.
    #[error("the commit of epoch {epoch} may or may not have happened: open the store again to learn")]
    Indeterminate {
        /// The epoch.
        epoch: u64,
        /// What failed.
        source: DriveError,
    },
}

/// The part of a message that says how many free chunks are kept for compaction, and how many chunks readers will give
/// back.
fn apart(kept: u64, pinned: u64) -> String {
    let kept = if kept > 0 { format!(", {kept} of them kept for compaction") } else { String::new() };
    let pinned = if pinned > 0 { format!(" ({pinned} more are still being read)") } else { String::new() };
    kept + &pinned
}
