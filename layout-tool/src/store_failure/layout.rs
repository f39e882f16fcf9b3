//! Errors of the layout: of formatting drives, opening them as a store, and changing what is on them.

use warprow_layout::{OpenError, StoreFormatError, VolumeError};

use super::drives::of_drive;
use super::remedies::{ALL_DRIVES, COMPACT, FORMAT, LESS, Meaning};
use crate::failure::{Class, lacks_resources};

pub(super) fn of_format(error: &StoreFormatError) -> Meaning {
    match error {
        StoreFormatError::DriveCount { .. } => (Class::Usage, "--drive".into(), "give one to 48 drives"),
        StoreFormatError::TooSmall { drive, .. } => {
            (Class::Input, drive.clone(), "use a larger drive, or smaller chunks")
        }
        StoreFormatError::LbaSize { drive, .. } | StoreFormatError::MixedLbaSizes { drive, .. } => {
            (Class::Input, drive.clone(), "give all drives the same LBA size with --lba")
        }
        StoreFormatError::ChunkSize { .. } => (Class::Usage, "--chunk".into(), "give a power of two from 1M to 64M"),
        StoreFormatError::CatalogueSize { .. } => (Class::Usage, "--chunk".into(), "give larger chunks"),
        StoreFormatError::Twice { drive } => (Class::Usage, drive.clone(), "give each drive once"),
        StoreFormatError::AlreadyFormatted { drive, .. } => {
            (Class::Refused, drive.clone(), "look at it with `warprow inspect`; to agree, give --consent TOKEN")
        }
        StoreFormatError::Drive(error) => of_drive(error),
        _ => (Class::Bug, String::new(), "please report it"),
    }
}

pub(super) fn of_open(error: &OpenError) -> Meaning {
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

pub(super) fn of_volume(error: &VolumeError) -> Meaning {
    match error {
        VolumeError::ReadOnly { .. } => (Class::Store, String::new(), ALL_DRIVES),
        VolumeError::Busy => (Class::Refused, String::new(), "wait for the other load to end"),
        // The message says that the commit is in doubt; what failed says what to do first.
        VolumeError::Indeterminate { source, .. } if of_drive(source).0 == Class::Resources => of_drive(source),
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
        VolumeError::Unsuitable(StoreFormatError::AlreadyFormatted { drive, .. }) => {
            (Class::Refused, drive.clone(), "look at it with `warprow inspect`; to overwrite it, add --overwrite")
        }
        VolumeError::Unsuitable(StoreFormatError::DriveCount { given: 0 }) => {
            (Class::Usage, "store".into(), "it is the only drive: add another with `warprow add-drive` first")
        }
        VolumeError::Unsuitable(StoreFormatError::MixedLbaSizes { drive, .. }) => (
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
