//! Errors of drives: of emulated ones, of vfio and vfio-user, and of the driver above them.

use std::error::Error;
use std::io::ErrorKind;
use std::path::Path;

use warprow_dma::FunctionError;
use warprow_driver::DriverError;
use warprow_layout::DriveError;
use warprow_soft_controller::{ControllerBuildError, OffloadLackKind, UriError};
use warprow_spec::StatusCode;
use warprow_vfio::OpenError as VfioError;
use warprow_vfio_user::OpenError as VfioUserError;

use super::remedies::{DRIVE, MEMORY, Meaning, ROOM, SERVER, START_SERVER, WITHOUT_GPU};
use crate::failure::{Class, lacks_resources};

pub(super) fn of_emulated(error: &UriError) -> Meaning {
    let at = |path: &Path| path.display().to_string();
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
        UriError::Sharers { path, .. } => {
            (Class::Refused, at(path), "say among how many processes the rate is divided: sharers=")
        }
        UriError::Unfinished { path } => (Class::Store, at(path), "format the drive, or open it for writing once"),
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
                "drives are opened for reading and writing, by commands that only read for reading: change the permissions, or choose \
                 another file",
            ),
            ErrorKind::NotFound | ErrorKind::NotADirectory => {
                (Class::Input, at(path), "look at the path: is its directory there?")
            }
            ErrorKind::AlreadyExists => {
                (Class::Input, at(path), "if it is a symbolic link that leads nowhere, remove it")
            }
            _ => (Class::Drive, at(path), "look at the path, and at the disk below"),
        },
        UriError::Offload { uri, lack } => match lack.kind {
            OffloadLackKind::NotInProgram => (Class::Usage, uri.clone(), WITHOUT_GPU),
            OffloadLackKind::Taken => {
                (Class::Refused, uri.clone(), "wait until whoever has the GPU has ended, or name another GPU")
            }
            OffloadLackKind::Interrupted => (Class::Interrupted, uri.clone(), ""),
            _ => (Class::Resources, uri.clone(), WITHOUT_GPU),
        },
        UriError::Build(ControllerBuildError::Thread(_)) => {
            (Class::Resources, String::new(), "raise the limit on processes and threads of this user: ulimit -u")
        }
        UriError::Build(_) => (Class::Resources, String::new(), MEMORY),
        _ => (Class::Bug, String::new(), "please report it"),
    }
}

pub(super) fn of_vfio(error: &VfioError) -> Meaning {
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

pub(super) fn of_vfio_user(error: &VfioUserError) -> Meaning {
    let at = |path: &Path| path.display().to_string();
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

pub(super) fn of_function(error: &FunctionError) -> Meaning {
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

pub(super) fn of_driver(error: &DriverError) -> Meaning {
    match error {
        DriverError::Function(error) => of_function(error),
        DriverError::Allocate(_) => (Class::Resources, "memory".into(), MEMORY),
        DriverError::Command { function, status, .. } if status.code() == StatusCode::CapacityExceeded => {
            let remedy =
                "make room on the disk below, or raise the limit on the size of files (ulimit -f), then try again";
            (Class::Resources, function.to_string(), remedy)
        }
        DriverError::NoQueueLeft { function, .. } => {
            (Class::Resources, function.to_string(), "ask for fewer slots or queue pairs")
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
pub(super) fn of_drive(error: &DriveError) -> Meaning {
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
