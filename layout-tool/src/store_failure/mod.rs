//! What errors of the store and the rooms below mean to a user: kind, subject, remedy.

mod drives;
mod layout;
mod remedies;
mod room;

use warprow_layout::VolumeError;
use warprow_lookup::{LookupError, RowError};
use warprow_soft_controller::UriError;
use warprow_store::{StoreError, TouchesFileError};
use warprow_vfio::OpenError as VfioError;
use warprow_vfio_user::OpenError as VfioUserError;

pub use remedies::DAMAGED_ROWS;
pub(crate) use remedies::{DRIVE_ADDRESS, ROOM_TO_COMPACT};

use crate::busy::Busy;
use crate::failure::{Class, Failure, chain, lacks_resources};
use crate::said_once::without_remedy;
use drives::{of_drive, of_driver, of_emulated, of_function, of_vfio, of_vfio_user};
use layout::{of_format, of_open, of_volume};
use remedies::{ALL_DRIVES, CHANGED, DRIVE, MEMORY, Meaning, ROOM_TO_GROW};
use room::with_room;

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
            error => with_room(failure, &error),
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
        StoreError::OpenedForReading { drive } => (Class::Usage, drive.clone(), "open the drive for writing"),
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
        StoreError::Shown { id, .. } => (
            Class::Refused,
            format!("generation {id}"),
            "`warprow switch` to another one first, or say --allow-vanishing",
        ),
        StoreError::Unfit { .. } => (Class::Refused, String::new(), "attach and plan anew"),
        StoreError::UpdateRows { table, .. } | StoreError::NoSuchRow { table, .. } => {
            (Class::Input, table.clone(), "look at the ids and rows; nothing of these was updated")
        }
        StoreError::NoSuchKey { table, .. } => {
            (Class::Input, table.clone(), "look at the keys, or add --create; nothing of these was updated")
        }
        StoreError::NotRemovable { table } => (
            Class::Input,
            table.clone(),
            "update the row with zeros, or load the table with --key-index always; nothing was removed",
        ),
        StoreError::NoKeyLeft { table } => {
            (Class::Input, table.clone(), "keep a key, or `warprow drop` the generation; nothing of these was removed")
        }
        StoreError::NoTouches { table, .. } => {
            (Class::Input, table.clone(), "give a record of the executors that look this table up; nothing was removed")
        }
        StoreError::TouchesFile { path, source: TouchesFileError::Io(source) } if lacks_resources(source) => {
            (Class::Resources, path.display().to_string(), "make room on that disk")
        }
        StoreError::TouchesFile { path, .. } => {
            (Class::Input, path.display().to_string(), "name a file that an executor has saved; nothing was removed")
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
        StoreError::RerankBusy { table, .. } => (Class::Refused, table.clone(), "wait for the other to end"),
        StoreError::DramListDamaged { table, .. } => (
            Class::Store,
            table.clone(),
            "make it again with `warprow rerank`, or remove it with `warprow rerank --none`",
        ),
        StoreError::DramListUnreadable { path, .. } => (
            Class::Input,
            path.display().to_string(),
            "let who runs this read that file, or remove it with `warprow rerank --none`",
        ),
        StoreError::DropsLists { id } => {
            (Class::Refused, format!("generation {id}"), "`warprow rerank TABLE --none` for each table that has a list")
        }
        StoreError::DramListFile { path, source } if lacks_resources(source) => {
            (Class::Resources, path.display().to_string(), "make room on that disk")
        }
        StoreError::DramListFile { path, .. } => {
            (Class::Input, path.display().to_string(), "let who runs this write to that folder")
        }
        StoreError::NoListPlace { table } => (Class::Input, table.clone(), "attach it by the address of its file"),
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
        StoreError::PlanOptions { .. } | StoreError::ExecutorOptions { .. } => {
            (Class::Input, String::new(), "choose other sizes")
        }
        StoreError::Queues { drive, .. } => (Class::Resources, drive.clone(), "ask for fewer slots or queue pairs"),
        StoreError::NoFreeSlot { .. } => (Class::Resources, String::new(), "wait for a look-up to end"),
        StoreError::RowDamaged { table, .. } => (Class::Store, table.clone(), DAMAGED_ROWS),
        StoreError::LoadReset { drive } => (Class::Drive, drive.clone(), "load again"),
        StoreError::ReadReset { drive } => (Class::Drive, drive.clone(), DRIVE),
        StoreError::Interrupted => (Class::Interrupted, String::new(), ""),
        _ => (Class::Bug, String::new(), "please report it"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use warprow_layout::DriveError;
    use warprow_soft_controller::{ControllerBuildError, OffloadLack, OffloadLackKind};
    use warprow_store::{CreateDrive, Device, DriveAddress};

    use super::*;

    #[test]
    fn a_thread_that_cannot_be_started_names_the_limit_on_threads() {
        let error = UriError::from(ControllerBuildError::Thread(ErrorKind::WouldBlock.into()));
        let failure = Failure::from(StoreError::from(error));
        assert!(failure.class == Class::Resources && failure.remedy.contains("ulimit -u"), "{failure}");
    }

    #[test]
    fn a_gpu_that_cannot_play_a_drive_has_a_code_for_each_reason() {
        let uri = "emulated:a.drive,gpu=0";
        let address: DriveAddress = uri.parse().unwrap();
        // This program has registered nobody.
        let failure = Failure::from(Device::open(&address, CreateDrive::IfMissing).unwrap_err());
        assert_eq!((failure.class, failure.class.exit(), failure.subject.as_str()), (Class::Usage, 2, uri));
        let said = failure.to_string();
        assert!(said.contains("warprow_gpu_drive::register()"), "{said}");
        assert_eq!(said.matches("leave gpu= out: the file is the same drive without it").count(), 1, "{said}");
        use OffloadLackKind::{Compiler, DriverTooOld, Interrupted, Memory, NoDriver, NoSuchGpu, Other, Taken, TooOld};
        for (kind, code) in [(Taken, 4), (Interrupted, 130), (Memory, 8), (NoDriver, 8), (NoSuchGpu, 8)]
            .into_iter()
            .chain([DriverTooOld, TooOld, Compiler, Other].map(|kind| (kind, 8)))
        {
            let lack = OffloadLack { kind, text: "why".to_owned() };
            let failure = Failure::from(StoreError::from(UriError::Offload { uri: uri.to_owned(), lack }));
            assert_eq!(failure.class.exit(), code, "{kind:?}");
            assert!(failure.message.contains(&format!("{uri}: why")), "{failure}");
            assert_eq!(failure.remedy.is_empty(), kind == Interrupted, "{kind:?}");
        }
    }

    #[test]
    fn a_commit_in_doubt_has_the_class_of_what_failed() {
        let lack = warprow_driver::DriverError::NoQueueLeft { function: "a.drive".into(), granted: 1 };
        let broken = Error::other("it broke");
        let drive = |source: Box<dyn std::error::Error + Send + Sync>| DriveError::new("a.drive", "write", source);
        for (source, class) in [(drive(lack.into()), Class::Resources), (drive(broken.into()), Class::Drive)] {
            let failure = Failure::from(StoreError::from(VolumeError::Indeterminate { epoch: 7, source }));
            assert_eq!(failure.class, class, "{failure}");
            assert!(failure.message.contains("epoch 7 may or may not have happened"), "{failure}");
            assert!(!failure.remedy.is_empty(), "{failure}");
        }
    }

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
