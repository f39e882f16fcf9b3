//! What errors of the store and the rooms below mean to a user: kind, subject, remedy.

use std::error::Error;
use std::io::ErrorKind;

use warprow_dma::FunctionError;
use warprow_driver::DriverError;
use warprow_layout::{DriveError, FormatError, OpenError, VolumeError};
use warprow_lookup::{LookupError, RowError};
use warprow_soft_controller::UriError;
use warprow_spec::StatusCode;
use warprow_store::StoreError;
use warprow_vfio::OpenError as VfioError;
use warprow_vfio_user::OpenError as VfioUserError;

use crate::busy::Busy;
use crate::failure::{Class, Failure, chain, lacks_resources};
use crate::said_once::without_remedy;
use crate::units;

/// Kind, subject, remedy.
type Meaning = (Class, String, &'static str);

const FORMAT: &str = "make a store on it with `warprow format`, or look whether it is the right drive";
const LESS: &str = "load less, add a drive (`warprow add-drive`), or `warprow drop` a generation that stands by; room comes back too when \
    all tables of an earlier load are replaced";
/// What to do about a compaction for which no chunk is free, or too few.
pub(crate) const ROOM_TO_COMPACT: &str = "add a drive (`warprow add-drive`), or `warprow drop` a generation that stands by; then `warprow compact`. \
    `warprow remove-drive` takes the drive out again";
const ROOM_TO_GROW: &str = "add a drive (`warprow add-drive`), or `warprow drop` a generation that stands by; then `warprow compact`. The keys are \
    there, and looked up, meanwhile; `warprow remove-drive` takes the drive out again where the others have room";
const ALL_DRIVES: &str = "give all drives of the store, and only those; `warprow inspect` shows what lies on each";
const ROOM: &str = "make room on the file system, or raise the limits of this process: ulimit -a shows them";
const MEMORY: &str = "ask for less, or raise the limits: ulimit -l, /proc/sys/vm/nr_hugepages";
const CHANGED: &str = "find out who changed it; `warprow inspect` shows what is left";
/// What to do about a text that is no drive's address.
pub(crate) const DRIVE_ADDRESS: &str =
    "give a PCI address such as 0000:41:00.0, emulated:PATH, vfio-user:SOCKET or attached:FILE";
/// What to do about rows that are not what was loaded.
pub const DAMAGED_ROWS: &str =
    "find out what is damaged with `warprow verify`, then load the table again, with --replace";
/// What to do about updates for which there is no room.
const COMPACT: &str = "`warprow compact`; if that has no room either, drop a generation, or add a drive (`warprow add-drive`), compact, and take it \
    out again (`warprow remove-drive`)";
const DRIVE: &str = "look at the kernel's log and the drive's health, then try again";
/// Of a socket without a server. Who served it is not known.
const START_SERVER: &str = "look at the path, and start what serves the socket: SPDK's nvmf_tgt, QEMU's x-vfio-user-server, or \
                            `warprow serve --socket SOCKET DRIVE`";
/// Of a server that was there.
const SERVER: &str = "look at the log of the process that serves the socket (SPDK, QEMU, `warprow serve`), and start it again if it has \
                      ended or hangs";

/// Which free chunks are not to be had, and which will be free.
fn apart(free: u64, kept: u64, pinned: u64) -> String {
    let kept = match kept.min(free) {
        0 => String::new(),
        kept => format!(", {} of them kept for the compaction of updated rows", units::count(kept)),
    };
    let pinned =
        if pinned > 0 { format!(" ({} more are still being read)", units::count(pinned)) } else { String::new() };
    kept + &pinned
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let error = match error {
            StoreError::Attached(error) => return error.into(),
            error => error,
        };
        let (class, subject, remedy) = of_store(&error);
        let failure = Self::new(class, subject, without_remedy(chain(&error), remedy)).remedy(remedy);
        match error {
            StoreError::Emulated(UriError::InUse(found)) => failure.busy(Busy::File(found)),
            StoreError::Vfio(VfioError::Busy { address, .. }) => failure.busy(Busy::Elsewhere(address.to_string())),
            StoreError::VfioUser(VfioUserError::Busy { path }) => {
                failure.busy(Busy::Elsewhere(path.display().to_string()))
            }
            // How it is done by hand stands below; what is in it are addresses and drivers' names.
            StoreError::Vfio(VfioError::WrongDriver { .. }) => failure.in_lines(),
            // The error's own words tell how to make one, which is for `format` alone.
            StoreError::Emulated(UriError::NotThere { path }) => {
                Self { message: format!("{}: there is no such drive", path.display()), ..failure }
            }
            StoreError::Refused { what, token } => {
                let remedy = format!("look at what would be lost; to agree to exactly that, add --consent {token}");
                Self { message: format!("{what}; nothing was changed"), ..failure }
                    .remedy(remedy)
                    .detail("token", token)
            }
            StoreError::Volume(VolumeError::NoSpace { needed, free, kept, pinned, chunk_size }) => {
                let what = format!(
                    "{} of {} are needed, {} are free{}",
                    units::plural(needed, "chunk"),
                    units::bytes(chunk_size),
                    units::count(free),
                    apart(free, kept, pinned)
                );
                let failure = Self { message: what, ..failure };
                if kept > 0 && needed <= free { failure.remedy(COMPACT) } else { failure }
            }
            StoreError::Volume(VolumeError::NoLogSpace { generation, needed, free, kept, pinned, chunk_size }) => {
                let what = format!(
                    "updates of generation {generation} need {} of {} more for their log, {} are free{}",
                    units::plural(needed, "chunk"),
                    units::bytes(chunk_size),
                    units::count(free),
                    apart(free, kept, pinned)
                );
                let failure = Self { message: what, ..failure };
                let failure = failure.detail("generation", generation).detail("needed", needed).detail("free", free);
                failure.detail("kept", kept).detail("pinned", pinned)
            }
            StoreError::NoRoomToCreate { generation, needed, free, chunk_size } => {
                let what = format!(
                    "with these keys, a compaction of generation {generation} would need {} of {}, and {} are free; nothing was created",
                    units::plural(needed, "chunk"),
                    units::bytes(chunk_size),
                    units::count(free)
                );
                Self { message: what, ..failure }
            }
            StoreError::NoRoomToGrow { generation, needed, free, chunk_size } => {
                let what = format!(
                    "created keys need room for all tables of generation {generation} twice, until they are in: {} of {} are needed, {} are free",
                    units::plural(needed, "chunk"),
                    units::bytes(chunk_size),
                    units::count(free)
                );
                Self { message: what, ..failure }
            }
            StoreError::Volume(VolumeError::CatalogueFull { needed, capacity }) => {
                let what = format!(
                    "the catalogue would have {}, its place holds {}",
                    units::bytes(needed),
                    units::bytes(capacity)
                );
                Self { message: what, ..failure }
            }
            _ => failure,
        }
    }
}

/// Whether it is a compaction's lack of free chunks.
pub fn lacks_chunks(error: &StoreError) -> bool {
    matches!(error, StoreError::NoRoomToGrow { .. } | StoreError::Volume(VolumeError::NoSpace { .. }))
}

/// A compaction that failed.
pub fn of_compaction(error: StoreError) -> Failure {
    let is_full = matches!(error, StoreError::Volume(VolumeError::NoSpace { .. }));
    let failure = Failure::from(error);
    if is_full { failure.remedy(ROOM_TO_COMPACT) } else { failure }
}

/// A look-up in `table` that failed.
pub fn of_lookup(error: &LookupError, table: &str) -> Failure {
    let (class, subject, remedy) = match error {
        LookupError::Invalid(_) => (Class::Input, table.to_owned(), "mend the ids, offsets or weights"),
        LookupError::MissingIds { .. } => {
            (Class::Input, table.to_owned(), "leave those ids out, or choose what stands for them with --missing")
        }
        LookupError::RowsFailed { source: RowError::Drive(source), .. } => of_driver(source),
        LookupError::RowsFailed { source: RowError::Checksum { table, .. }, .. } => {
            (Class::Store, table.clone(), DAMAGED_ROWS)
        }
        LookupError::RowsFailed { source: RowError::MemberMissing { .. }, .. } => {
            (Class::Store, table.to_owned(), ALL_DRIVES)
        }
        LookupError::NamespaceChanged(changed) => (Class::Drive, changed.drive.clone(), CHANGED),
        _ => (Class::Drive, table.to_owned(), DRIVE),
    };
    Failure::new(class, subject, without_remedy(chain(error), remedy)).remedy(remedy)
}

fn of_store(error: &StoreError) -> Meaning {
    match error {
        StoreError::Address { address, .. } => (Class::Usage, address.clone(), DRIVE_ADDRESS),
        StoreError::Property { address, .. } => {
            (Class::Usage, address.clone(), "write properties behind the path, each once, as ,name=value")
        }
        StoreError::Emulated(error) => of_emulated(error),
        StoreError::Vfio(error) => of_vfio(error),
        StoreError::VfioUser(error) => of_vfio_user(error),
        StoreError::OpenedTwice { drive } => (Class::Usage, drive.clone(), "give each drive once"),
        StoreError::Driver(error) => of_driver(error),
        StoreError::Function(error) => of_function(error),
        StoreError::Memory(_) | StoreError::Allocate { .. } => (Class::Resources, "memory".into(), MEMORY),
        StoreError::LbaFormat { drive, .. } => (
            Class::Input,
            drive.clone(),
            "set an LBA format of 512 or 4096 B without metadata, with `warprow format --lba`",
        ),
        StoreError::ImageLba { drive, .. } => {
            (Class::Store, drive.clone(), "give the drive's own LBA size; do not format it")
        }
        StoreError::Journal { path, source } if lacks_resources(source) => (
            Class::Resources,
            path.display().to_string(),
            "make room, or raise the limit on the size of files (ulimit -f); or leave --resume out",
        ),
        StoreError::Journal { path, .. } => {
            (Class::Input, path.display().to_string(), "name another file with --resume, or leave it out")
        }
        StoreError::NamespaceChanged(changed) => (Class::Drive, changed.drive.clone(), CHANGED),
        StoreError::Refused { .. } => (
            Class::Refused,
            String::new(),
            "look at what would be lost; to agree, repeat the command with --consent TOKEN",
        ),
        StoreError::Format(error) => of_format(error),
        StoreError::Open(error) => of_open(error),
        StoreError::Volume(error) => of_volume(error),
        StoreError::Drive(error) => of_drive(error),
        StoreError::NoSuchTable { table, .. } => (Class::Input, table.clone(), "`warprow inspect` lists the tables"),
        StoreError::Shown { id, .. } => {
            (Class::Refused, format!("generation {id}"), "`warprow switch` to another first")
        }
        StoreError::Unfit { .. } => (Class::Refused, String::new(), "attach and plan anew"),
        StoreError::UpdateRows { table, .. } | StoreError::NoSuchRow { table, .. } => {
            (Class::Input, table.clone(), "look at the ids and rows; nothing of these was updated")
        }
        StoreError::NoSuchKey { table, .. } => {
            (Class::Input, table.clone(), "look at the keys, or add --create; nothing of these was updated")
        }
        StoreError::CreatedKeys { generation } => {
            (Class::Refused, format!("generation {generation}"), "`warprow compact` first")
        }
        StoreError::NoRoomToCreate { generation, .. } => (
            Class::Resources,
            format!("generation {generation}"),
            "add a drive (`warprow add-drive`), or `warprow drop` a generation; keys that are there can be updated",
        ),
        StoreError::NoRoomToGrow { generation, .. } => {
            (Class::Resources, format!("generation {generation}"), ROOM_TO_GROW)
        }
        StoreError::Keys { table, .. } => (Class::Bug, table.clone(), "please report it"),
        StoreError::OverlayFull { generation, .. } => {
            (Class::Resources, format!("generation {generation}"), "`warprow compact`")
        }
        StoreError::GpuOverlayFull { .. } => (Class::Resources, String::new(), "`warprow compact`"),
        StoreError::Compactor { .. } => (Class::Resources, String::new(), "do without --compact auto"),
        StoreError::GpuBusy { .. } | StoreError::GpuBehind { .. } => (Class::Refused, String::new(), "try again"),
        StoreError::Unfollowing { table } => (Class::Refused, table.clone(), "drop the executor on the GPU first"),
        StoreError::NoSuchDrive { drive, .. } => (Class::Usage, drive.clone(), "`warprow inspect` lists the drives"),
        StoreError::TableExists { table } => {
            (Class::Refused, table.clone(), "give it another name with --tensor NAME=GLOB, or add --replace")
        }
        StoreError::KeysNotStored { table } => {
            (Class::Input, table.clone(), "do without --check-keys, or load the table again with its keys stored")
        }
        StoreError::NotUpdatable { table } => (
            Class::Input,
            table.clone(),
            "load the table again with its keys, without --forget-keys; nothing was updated",
        ),
        StoreError::Plan { feature, .. } => (Class::Input, feature.clone(), "choose another pooling or type"),
        StoreError::PlanOptions { .. } => (Class::Input, String::new(), "choose other sizes"),
        StoreError::Queues { drive, .. } => (Class::Resources, drive.clone(), "ask for fewer slots or workers"),
        StoreError::QueueBusy { .. } => (Class::Resources, String::new(), "wait for a look-up to end"),
        StoreError::RowDamaged { table, .. } => (Class::Store, table.clone(), DAMAGED_ROWS),
        StoreError::LoadReset { drive } => (Class::Drive, drive.clone(), "load again"),
        StoreError::ReadReset { drive } => (Class::Drive, drive.clone(), DRIVE),
        StoreError::Interrupted => (Class::Interrupted, String::new(), ""),
        _ => (Class::Bug, String::new(), "please report it"),
    }
}

fn of_emulated(error: &UriError) -> Meaning {
    let at = |path: &std::path::Path| path.display().to_string();
    match error {
        UriError::Scheme { uri }
        | UriError::NoPath { uri }
        | UriError::Unknown { uri, .. }
        | UriError::Twice { uri, .. }
        | UriError::Value { uri, .. }
        | UriError::Properties { uri, .. } => {
            (Class::Usage, uri.clone(), "write emulated:PATH, with properties such as emulated:PATH,size=64G")
        }
        UriError::NotThere { path } => {
            (Class::Store, at(path), "look at the path, or make a drive: warprow format -d emulated:PATH,size=64G")
        }
        UriError::Size { path, .. } => (Class::Input, at(path), "give another file, or a size that fits it"),
        UriError::Contradicts { path, .. } => {
            (Class::Input, at(path), "leave that property out; the LBA size is changed by `warprow format --lba`")
        }
        UriError::InUse(found) => {
            (Class::Refused, at(&found.path), "end that process, or wait until it has ended: --wait")
        }
        UriError::Mounted { path } => (Class::Refused, at(path), "give another drive"),
        UriError::Sidecar { path, .. } => (Class::Store, at(path), "look at the file beside the drive"),
        UriError::Limit { path, .. } => {
            (Class::Resources, at(path), "raise the limit on the size of files (ulimit -f), or give a smaller size")
        }
        UriError::Io { what: "set the size of", path, source } if source.kind() == ErrorKind::FileTooLarge => {
            (Class::Input, at(path), "give a smaller size: the file system has no files that large")
        }
        UriError::Io { path, source, .. } if lacks_resources(source) => (Class::Resources, at(path), ROOM),
        UriError::Io { path, source, .. } => match source.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => (
                Class::Input,
                at(path),
                "drives are opened for reading and writing: change the permissions, or choose another file",
            ),
            ErrorKind::NotFound | ErrorKind::NotADirectory => {
                (Class::Input, at(path), "look at the path: is its directory there?")
            }
            ErrorKind::AlreadyExists => {
                (Class::Input, at(path), "if it is a symbolic link that leads nowhere, remove it")
            }
            _ => (Class::Drive, at(path), "look at the path, and at the disk below"),
        },
        UriError::Build(_) => (Class::Resources, String::new(), MEMORY),
        _ => (Class::Bug, String::new(), "please report it"),
    }
}

fn of_vfio(error: &VfioError) -> Meaning {
    match error {
        VfioError::Address(error) => (Class::Usage, error.to_string(), "give a PCI address such as 0000:41:00.0"),
        VfioError::NotFound { address, .. } => (Class::Drive, address.to_string(), "look at the address: lspci -Dnn"),
        VfioError::NotNvme { address, .. } => {
            (Class::Input, address.to_string(), "give the address of an NVMe controller")
        }
        VfioError::InUse { address, .. } | VfioError::Busy { address, .. } | VfioError::GroupOwned { address, .. } => {
            (Class::Refused, address.to_string(), "release the drive, or choose another")
        }
        VfioError::WrongDriver { address, .. } => {
            (Class::Refused, address.to_string(), "give the drive to vfio-pci with `warprow bind`")
        }
        VfioError::Permission { address, .. } => {
            (Class::Refused, address.to_string(), "give this user the group's device file")
        }
        VfioError::Interface { text } => (Class::Usage, text.clone(), "set WARPROW_VFIO to auto, type1 or iommufd"),
        VfioError::Function(error) => of_function(error),
        _ => (Class::Drive, String::new(), "see the guide on real drives in the documentation"),
    }
}

fn of_vfio_user(error: &VfioUserError) -> Meaning {
    let at = |path: &std::path::Path| path.display().to_string();
    match error {
        VfioUserError::Connect { path, source } => match source.kind() {
            ErrorKind::PermissionDenied => (Class::Drive, at(path), "give this user the right to write to the socket"),
            // The server's queue of clients was full.
            ErrorKind::WouldBlock | ErrorKind::TimedOut => (Class::Drive, at(path), SERVER),
            _ => (Class::Drive, at(path), START_SERVER),
        },
        VfioUserError::Busy { path } => (Class::Refused, at(path), "end the other client, or choose another drive"),
        VfioUserError::Foreign { path, .. } | VfioUserError::NotNvme { path, .. } => {
            let remedy = "give the socket of an NVMe controller that speaks vfio-user; if it is one, look at the log of the process that \
                          serves it (SPDK, QEMU, `warprow serve`)";
            (Class::Input, at(path), remedy)
        }
        VfioUserError::Function(error) => of_function(error),
    }
}

fn of_function(error: &FunctionError) -> Meaning {
    match error {
        FunctionError::Map { function, .. } => (Class::Resources, function.clone(), MEMORY),
        FunctionError::Gone { function } | FunctionError::Os { function, .. } if function.starts_with("vfio-user:") => {
            (Class::Drive, function.clone(), SERVER)
        }
        FunctionError::Gone { function }
        | FunctionError::OutsideBar { function, .. }
        | FunctionError::Os { function, .. }
        | FunctionError::Unsupported { function, .. } => (Class::Drive, function.clone(), DRIVE),
    }
}

fn of_driver(error: &DriverError) -> Meaning {
    match error {
        DriverError::Function(error) => of_function(error),
        DriverError::Allocate(_) => (Class::Resources, "memory".into(), MEMORY),
        DriverError::Command { function, status, .. } if status.code() == StatusCode::CapacityExceeded => {
            let remedy =
                "make room on the disk below, or raise the limit on the size of files (ulimit -f), then try again";
            (Class::Resources, function.to_string(), remedy)
        }
        DriverError::NoQueueLeft { function, .. } => {
            (Class::Resources, function.to_string(), "ask for fewer slots or workers")
        }
        DriverError::NoSuchNamespace { function, .. } => {
            (Class::Input, function.to_string(), "give a namespace that is active: ADDRESS/NSID")
        }
        DriverError::LbaFormatNotOffered { function, .. } => {
            (Class::Input, function.to_string(), "choose one of the formats that it offers, with --lba")
        }
        DriverError::FormatNeedsConsent { function, .. } => {
            (Class::Refused, function.to_string(), "look at what would be lost; to agree, give --consent TOKEN")
        }
        DriverError::Unusable { function, .. }
        | DriverError::Gone { function, .. }
        | DriverError::Fatal { function, .. }
        | DriverError::GivenUp { function, .. }
        | DriverError::NotReady { function, .. }
        | DriverError::Command { function, .. }
        | DriverError::TimedOut { function, .. }
        | DriverError::Lost { function, .. } => (Class::Drive, function.to_string(), DRIVE),
        _ => (Class::Drive, String::new(), DRIVE),
    }
}

/// A drive as the layout sees it: what failed lies below.
fn of_drive(error: &DriveError) -> Meaning {
    let mut next: Option<&(dyn Error + 'static)> = error.source();
    while let Some(source) = next {
        if let Some(driver) = source.downcast_ref() {
            let (class, _, remedy) = of_driver(driver);
            return (class, error.drive.clone(), remedy);
        }
        next = source.source();
    }
    (Class::Drive, error.drive.clone(), DRIVE)
}

fn of_format(error: &FormatError) -> Meaning {
    match error {
        FormatError::DriveCount { .. } => (Class::Usage, "--drive".into(), "give one to 48 drives"),
        FormatError::TooSmall { drive, .. } => (Class::Input, drive.clone(), "use a larger drive, or smaller chunks"),
        FormatError::LbaSize { drive, .. } | FormatError::MixedLbaSizes { drive, .. } => {
            (Class::Input, drive.clone(), "give all drives the same LBA size with --lba")
        }
        FormatError::ChunkSize { .. } => (Class::Usage, "--chunk".into(), "give a power of two from 1M to 64M"),
        FormatError::CatalogueSize { .. } => (Class::Usage, "--chunk".into(), "give larger chunks"),
        FormatError::Twice { drive } => (Class::Usage, drive.clone(), "give each drive once"),
        FormatError::AlreadyFormatted { drive, .. } => {
            (Class::Refused, drive.clone(), "look at it with `warprow inspect`; to agree, give --consent TOKEN")
        }
        FormatError::Drive(error) => of_drive(error),
        _ => (Class::Bug, String::new(), "please report it"),
    }
}

fn of_open(error: &OpenError) -> Meaning {
    match error {
        OpenError::NoDrives => (Class::Usage, "--drive".into(), "give the drives of the store"),
        OpenError::NotWarprow { drive } => (Class::Store, drive.clone(), FORMAT),
        OpenError::TornSuperblock { drive, .. } | OpenError::LostSuperblock { drive, .. } => (
            Class::Store,
            drive.clone(),
            "see whether `warprow repair`, with all drives of the store, can mend it from copies; if not, restore the drive from a \
             backup, or format it and load the tables again",
        ),
        OpenError::Unidentified { drive, .. } => (
            Class::Store,
            drive.clone(),
            "give the drive that lacks instead; if it is this one, restore it from a backup, or format all and load the tables again",
        ),
        OpenError::NewerVersion { drive, .. } => (Class::Store, drive.clone(), "use a newer Warprow"),
        OpenError::MissingMember { store, .. } => (
            Class::Store,
            store.to_string(),
            "give all drives of the store; without, `warprow inspect` shows what is known, and `warprow lookup --degraded` \
             reads the rows that are left",
        ),
        OpenError::ForeignMember { drive, .. } | OpenError::SwappedMember { drive, .. } => {
            (Class::Store, drive.clone(), ALL_DRIVES)
        }
        OpenError::RemovedMember { drive, .. } => (Class::Store, drive.clone(), "leave it out, or format it"),
        OpenError::DuplicateMember { second, .. } => (Class::Store, second.clone(), "leave the copy out"),
        OpenError::StaleMember { drive, .. } => {
            (Class::Store, drive.clone(), "give the drive itself rather than an old copy, or format and load again")
        }
        OpenError::Disagreement { second, .. } => (Class::Store, second.clone(), ALL_DRIVES),
        OpenError::LbaSizeChanged { drive, .. } | OpenError::Shrunk { drive, .. } => {
            (Class::Store, drive.clone(), "undo what was done to the drive, or format and load again")
        }
        OpenError::CatalogueDamaged { drive, .. } => {
            (Class::Store, drive.clone(), "restore the drives from copies, or format them and load again")
        }
        OpenError::CatalogueInvalid { .. } => {
            (Class::Store, String::new(), "please report it; then format and load again")
        }
        OpenError::Drive(error) => of_drive(error),
        _ => (Class::Bug, String::new(), "please report it"),
    }
}

fn of_volume(error: &VolumeError) -> Meaning {
    match error {
        VolumeError::ReadOnly { .. } => (Class::Store, String::new(), ALL_DRIVES),
        VolumeError::Busy => (Class::Refused, String::new(), "wait for the other load to end"),
        VolumeError::Poisoned | VolumeError::Indeterminate { .. } => {
            (Class::Drive, String::new(), "run the command again: `warprow inspect` shows what was committed")
        }
        VolumeError::NoSuchGeneration { id } => {
            (Class::Input, format!("generation {id}"), "`warprow generations` lists them")
        }
        VolumeError::TablesVanish { id, .. } => {
            (Class::Refused, format!("generation {id}"), "load the tables with it, or say --allow-vanishing")
        }
        VolumeError::LogDamaged { drive, .. } => {
            (Class::Store, drive.clone(), "load the tables of that generation again, with --replace")
        }
        VolumeError::LogBusy { .. } | VolumeError::Rewriting { .. } | VolumeError::MembersChanged => {
            (Class::Refused, String::new(), "wait for the other to end")
        }
        VolumeError::LogFull { .. } | VolumeError::NoLogSpace { .. } => (Class::Resources, "store".into(), COMPACT),
        VolumeError::UpdateInDoubt { source, .. } => of_drive(source),
        VolumeError::MemberInUse { drive, .. } => (Class::Refused, drive.clone(), "run the command again"),
        VolumeError::Shown { id, .. } => (
            Class::Refused,
            format!("generation {id}"),
            "`warprow switch` to another one first, or say --allow-vanishing",
        ),
        VolumeError::AlreadyMember { drive, .. } => (Class::Refused, drive.clone(), "give a drive that is none"),
        VolumeError::Stopped => (Class::Interrupted, String::new(), "run the command again to go on"),
        VolumeError::Unsuitable(FormatError::AlreadyFormatted { drive, .. }) => {
            (Class::Refused, drive.clone(), "look at it with `warprow inspect`; to overwrite it, add --overwrite")
        }
        VolumeError::Unsuitable(FormatError::DriveCount { given: 0 }) => {
            (Class::Usage, "store".into(), "it is the only drive: add another with `warprow add-drive` first")
        }
        VolumeError::Unsuitable(FormatError::MixedLbaSizes { drive, .. }) => (
            Class::Input,
            drive.clone(),
            "format it with the store's LBA size (`warprow format --lba`), then add it with --overwrite",
        ),
        VolumeError::Unsuitable(error) => of_format(error),
        VolumeError::InvalidGeneration { name, .. } => (Class::Input, name.clone(), "choose other tables or names"),
        VolumeError::InvalidTable { table, .. } => {
            (Class::Input, table.clone(), "change the table, or leave it out with --tensor")
        }
        VolumeError::NoSpace { .. } | VolumeError::CatalogueFull { .. } => (Class::Resources, "store".into(), LESS),
        VolumeError::RanksDamaged { table, .. }
        | VolumeError::RanksInvalid { table, .. }
        | VolumeError::KeysDamaged { table, .. }
        | VolumeError::KeysInvalid { table, .. } => {
            (Class::Store, table.clone(), "load the table again, with --replace")
        }
        VolumeError::Source { table, source } => {
            let class = if lacks_resources(source) { Class::Resources } else { Class::Input };
            (class, table.clone(), "look at the file; nothing of it was loaded")
        }
        VolumeError::MemberMissing { .. } | VolumeError::NoSuchMember { .. } => {
            (Class::Store, String::new(), ALL_DRIVES)
        }
        VolumeError::Metadata { source } => of_open(source),
        VolumeError::Drive(error) => of_drive(error),
        _ => (Class::Bug, String::new(), "please report it"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    #[test]
    fn a_lack_of_room_is_one_wherever_it_shows() {
        use ErrorKind::{FileTooLarge, NotADirectory, QuotaExceeded, StorageFull};
        let io = |what, kind: ErrorKind| UriError::Io { what, path: "a.drive".into(), source: kind.into() };
        let journal = |kind: ErrorKind| StoreError::Journal { path: "j".into(), source: kind.into() };
        for (error, class) in [
            (io("write", StorageFull).into(), Class::Resources),
            (io("write", FileTooLarge).into(), Class::Resources),
            (io("set the size of", QuotaExceeded).into(), Class::Resources),
            (UriError::Limit { path: "a.drive".into(), size: 2, limit: 1 }.into(), Class::Resources),
            // The file system has none that large, whatever the limit.
            (UriError::of_sizing("a.drive".as_ref(), 1, FileTooLarge.into()).into(), Class::Input),
            (io("create", NotADirectory).into(), Class::Input),
            (journal(StorageFull), Class::Resources),
            (journal(FileTooLarge), Class::Resources),
            (StoreError::Journal { path: "j".into(), source: Error::other("it is of another load") }, Class::Input),
        ] {
            let said = format!("{error:?}");
            let failure = Failure::from(error);
            assert_eq!(failure.class, class, "{said}");
            assert!(!failure.remedy.is_empty(), "{said}");
        }
    }
}
