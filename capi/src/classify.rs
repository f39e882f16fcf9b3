//! Which code each error of the rooms below has.

use ::warprow_store::StoreError;
use warprow_driver::DriverError;
use warprow_formats::{FileError, FileErrorKind};
use warprow_gpu::GpuError;
use warprow_gpu_queues::GpuQueueError;
use warprow_keys::IndexBuildError;
use warprow_layout::{DriveError, OpenError, StoreFormatError, VolumeError};
use warprow_lookup::LookupError;
use warprow_soft_controller::UriError;

use crate::error::Failure;
use crate::status::warprow_status::{self as status, *};

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let failure = Self::of(of_store(&error), &error);
        match error {
            StoreError::Refused { token, .. } => Self { token: Some(token), ..failure },
            _ => failure,
        }
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        let code = match error.kind {
            FileErrorKind::Memory => OutOfResources,
            _ if error.is_absent() => NotFound,
            _ => File,
        };
        Self::new(code, format!("{error}: {}", error.remedy))
    }
}

impl From<IndexBuildError> for Failure {
    fn from(error: IndexBuildError) -> Self {
        let code = match &error {
            IndexBuildError::Memory { .. } => OutOfResources,
            IndexBuildError::Unlucky { .. } => Bug,
            _ => InvalidArgument,
        };
        Self::of(code, &error)
    }
}

impl From<LookupError> for Failure {
    fn from(error: LookupError) -> Self {
        let code = match &error {
            LookupError::Invalid(_) | LookupError::PrefetchNotPlanned | LookupError::NothingPrefetched => {
                InvalidArgument
            }
            LookupError::MissingIds { .. } => MissingIds,
            LookupError::RowsFailed { .. } => RowsFailed,
            LookupError::NamespaceChanged(_) => Drive,
            LookupError::SlotHoldsBatch => Busy,
            _ => Bug,
        };
        let failure = Self::of(code, &error);
        match error {
            LookupError::MissingIds { positions, .. } | LookupError::RowsFailed { positions, .. } => {
                failure.at(positions)
            }
            _ => failure,
        }
    }
}

impl From<GpuError> for Failure {
    fn from(error: GpuError) -> Self {
        let code = match &error {
            GpuError::Gpu(error) => of_gpu(error),
            GpuError::Kernels(_) | GpuError::Broken => Gpu,
            GpuError::Store(error) => of_store(error),
            GpuError::Driver(error) => of_driver(error),
            GpuError::Unsupported(_) => Unsupported,
            GpuError::TableDamaged { .. } => Store,
            GpuError::Unfit(_) => Refused,
            GpuError::Invalid { .. } | GpuError::Flawed(..) => InvalidArgument,
            GpuError::CacheTooSmall { .. }
            | GpuError::CacheShares(_)
            | GpuError::CacheShareTooSmall { .. }
            | GpuError::CachePinsFull { .. }
            | GpuError::CacheFile { .. }
            | GpuError::NoCache => InvalidArgument,
            GpuError::NoFreeSlot { .. } | GpuError::SlotHoldsBatch | GpuError::Busy(_) | GpuError::CacheBusy { .. } => {
                Busy
            }
            GpuError::RowsFailed { .. } | GpuError::RunsFailed { .. } => RowsFailed,
            GpuError::MissingIds { .. } => MissingIds,
            _ => Bug,
        };
        Self::of(code, &error)
    }
}

impl From<GpuQueueError> for Failure {
    fn from(error: GpuQueueError) -> Self {
        Self::of(of_gpu(&error), &error)
    }
}

fn of_gpu(error: &GpuQueueError) -> status {
    match error {
        GpuQueueError::Pin { .. } | GpuQueueError::DeviceMemory { .. } => OutOfResources,
        _ => Gpu,
    }
}

fn of_store(error: &StoreError) -> status {
    match error {
        StoreError::Address { .. }
        | StoreError::Property { .. }
        | StoreError::OpenedTwice { .. }
        | StoreError::OpenedForReading { .. }
        | StoreError::UpdateRows { .. }
        | StoreError::Plan { .. }
        | StoreError::PlanOptions { .. }
        | StoreError::ExecutorOptions { .. }
        | StoreError::Keys { .. } => InvalidArgument,
        StoreError::Emulated(error) => of_emulated(error),
        StoreError::Vfio(error) => of_vfio(error),
        StoreError::VfioUser(warprow_vfio_user::OpenError::Busy { .. }) => Busy,
        StoreError::VfioUser(_) => Drive,
        StoreError::Attached(_) => File,
        StoreError::Driver(error) => of_driver(error),
        StoreError::Function(_)
        | StoreError::NamespaceChanged(_)
        | StoreError::LoadReset { .. }
        | StoreError::ReadReset { .. } => Drive,
        StoreError::Drive(error) => of_drive(error),
        StoreError::Memory(_)
        | StoreError::Allocate { .. }
        | StoreError::NoRoomToGrow { .. }
        | StoreError::NoRoomToCreate { .. }
        | StoreError::OverlayFull { .. }
        | StoreError::GpuOverlayFull { .. }
        | StoreError::Queues { .. } => OutOfResources,
        StoreError::NotUpdatable { .. }
        | StoreError::NotRemovable { .. }
        | StoreError::KeysNotStored { .. }
        | StoreError::NoListPlace { .. }
        | StoreError::LbaFormat { .. } => Unsupported,
        StoreError::Refused { .. }
        | StoreError::Shown { .. }
        | StoreError::DropsLists { .. }
        | StoreError::CreatedKeys { .. }
        | StoreError::NoKeyLeft { .. }
        | StoreError::Compactor { .. }
        | StoreError::Unfollowing { .. }
        | StoreError::Unfit { .. } => Refused,
        StoreError::Format(error) => of_format(error),
        StoreError::Open(error) => of_open(error),
        StoreError::Volume(error) => of_volume(error),
        StoreError::NoSuchTable { .. }
        | StoreError::NoSuchDrive { .. }
        | StoreError::NoSuchKey { .. }
        | StoreError::NoTouches { .. }
        | StoreError::NoSuchRow { .. } => NotFound,
        StoreError::GpuBusy { .. }
        | StoreError::GpuBehind { .. }
        | StoreError::RerankBusy { .. }
        | StoreError::NoFreeSlot { .. } => Busy,
        StoreError::TableExists { .. } => Exists,
        StoreError::ImageLba { .. } | StoreError::RowDamaged { .. } | StoreError::DramListDamaged { .. } => Store,
        StoreError::Journal { .. }
        | StoreError::DramListFile { .. }
        | StoreError::DramListUnreadable { .. }
        | StoreError::TouchesFile { .. } => File,
        StoreError::Interrupted => Interrupted,
        _ => Bug,
    }
}

fn of_emulated(error: &UriError) -> status {
    match error {
        UriError::NotThere { .. } => NotFound,
        UriError::InUse(_) => Busy,
        UriError::Mounted { .. } | UriError::Sharers { .. } => Refused,
        UriError::Limit { .. } | UriError::Build(_) => OutOfResources,
        UriError::Sidecar { .. } | UriError::Unfinished { .. } => Store,
        UriError::Io { source, .. } => match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => OutOfResources,
            std::io::ErrorKind::NotFound => NotFound,
            _ => Drive,
        },
        UriError::Offload { .. } => Unsupported,
        _ => InvalidArgument,
    }
}

fn of_vfio(error: &warprow_vfio::OpenError) -> status {
    use warprow_vfio::OpenError;
    match error {
        OpenError::Address(_) | OpenError::NotNvme { .. } => InvalidArgument,
        OpenError::NotFound { .. } => NotFound,
        OpenError::InUse { .. } | OpenError::Busy { .. } => Busy,
        OpenError::WrongDriver { .. } | OpenError::Permission { .. } => Refused,
        _ => Drive,
    }
}

fn of_driver(error: &DriverError) -> status {
    match error {
        DriverError::Allocate(_) | DriverError::NoQueueLeft { .. } => OutOfResources,
        DriverError::NoSuchNamespace { .. } => NotFound,
        DriverError::LbaFormatNotOffered { .. } => Unsupported,
        DriverError::FormatNeedsConsent { .. } => Refused,
        _ => Drive,
    }
}

/// A drive as the layout sees it: what failed lies below.
fn of_drive(error: &DriveError) -> status {
    let mut next = std::error::Error::source(error);
    while let Some(source) = next {
        if let Some(error) = source.downcast_ref() {
            return of_driver(error);
        }
        next = source.source();
    }
    Drive
}

fn of_format(error: &StoreFormatError) -> status {
    match error {
        StoreFormatError::AlreadyFormatted { .. } => Refused,
        StoreFormatError::Drive(error) => of_drive(error),
        _ => InvalidArgument,
    }
}

fn of_open(error: &OpenError) -> status {
    match error {
        OpenError::NoDrives | OpenError::DuplicateMember { .. } => InvalidArgument,
        OpenError::Drive(error) => of_drive(error),
        _ => Store,
    }
}

fn of_volume(error: &VolumeError) -> status {
    match error {
        VolumeError::InvalidGeneration { .. }
        | VolumeError::InvalidTable { .. }
        | VolumeError::RanksNotGiven { .. }
        | VolumeError::RanksMismatch { .. }
        | VolumeError::KeysNotGiven { .. }
        | VolumeError::KeysMismatch { .. }
        | VolumeError::Length { .. } => InvalidArgument,
        VolumeError::NoSuchGeneration { .. } | VolumeError::NoSuchTable { .. } | VolumeError::NoSuchMember { .. } => {
            NotFound
        }
        VolumeError::ReadOnly { .. }
        | VolumeError::Shown { .. }
        | VolumeError::TablesVanish { .. }
        | VolumeError::MembersChanged
        | VolumeError::AlreadyMember { .. } => Refused,
        VolumeError::Busy
        | VolumeError::LogBusy { .. }
        | VolumeError::Rewriting { .. }
        | VolumeError::MemberInUse { .. } => Busy,
        VolumeError::NoSpace { .. }
        | VolumeError::CatalogueFull { .. }
        | VolumeError::LogFull { .. }
        | VolumeError::NoLogSpace { .. } => OutOfResources,
        VolumeError::LogDamaged { .. }
        | VolumeError::RanksDamaged { .. }
        | VolumeError::RowDamaged { .. }
        | VolumeError::RanksInvalid { .. }
        | VolumeError::KeysDamaged { .. }
        | VolumeError::KeysInvalid { .. }
        | VolumeError::MemberMissing { .. } => Store,
        VolumeError::Stopped => Interrupted,
        VolumeError::Source { .. } => File,
        VolumeError::Metadata { source } => of_open(source),
        VolumeError::UpdateInDoubt { source, .. } => of_drive(source),
        VolumeError::Unsuitable(error) => of_format(error),
        VolumeError::Drive(error) => of_drive(error),
        VolumeError::Poisoned | VolumeError::Indeterminate { .. } => Drive,
        _ => Bug,
    }
}
