//! The fault matrix: every command that the driver sends × every fault → what the caller is told, and what it then does.

use std::fmt;

use warprow_soft_controller::{Fault, Rule};
use warprow_spec::{AdminOpcode, NvmOpcode, Status, StatusCode};

use crate::fixture::LATE;

/// Every command that the driver sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    IdentifyController,
    NumberOfQueues,
    AsyncEventConfig,
    AsyncEventRequest,
    IdentifyNamespace,
    ActiveNamespaces,
    NamespaceDescriptors,
    GetFeatures,
    SetFeatures,
    GetLogPage,
    Abort,
    FormatNvm,
    CreateCq,
    CreateSq,
    DeleteSq,
    DeleteCq,
    Read,
    Write,
    WriteDurably,
    Flush,
    WriteZeroes,
    Deallocate,
    Compare,
}

impl Command {
    pub(crate) const fn opcode(self) -> u8 {
        match self {
            Self::IdentifyController
            | Self::IdentifyNamespace
            | Self::ActiveNamespaces
            | Self::NamespaceDescriptors => AdminOpcode::IDENTIFY.0,
            Self::NumberOfQueues | Self::AsyncEventConfig | Self::SetFeatures => AdminOpcode::SET_FEATURES.0,
            Self::AsyncEventRequest => AdminOpcode::ASYNC_EVENT_REQUEST.0,
            Self::GetFeatures => AdminOpcode::GET_FEATURES.0,
            Self::GetLogPage => AdminOpcode::GET_LOG_PAGE.0,
            Self::Abort => AdminOpcode::ABORT.0,
            Self::FormatNvm => AdminOpcode::FORMAT_NVM.0,
            Self::CreateCq => AdminOpcode::CREATE_IO_CQ.0,
            Self::CreateSq => AdminOpcode::CREATE_IO_SQ.0,
            Self::DeleteSq => AdminOpcode::DELETE_IO_SQ.0,
            Self::DeleteCq => AdminOpcode::DELETE_IO_CQ.0,
            Self::Read => NvmOpcode::READ.0,
            Self::Write | Self::WriteDurably => NvmOpcode::WRITE.0,
            Self::Flush => NvmOpcode::FLUSH.0,
            Self::WriteZeroes => NvmOpcode::WRITE_ZEROES.0,
            Self::Deallocate => NvmOpcode::DATASET_MANAGEMENT.0,
            Self::Compare => NvmOpcode::COMPARE.0,
        }
    }

    pub(crate) fn is_io(self) -> bool {
        self as usize >= Self::Read as usize
    }

    /// Sent while the controller is opened.
    pub(crate) fn opens(self) -> bool {
        self as usize <= Self::AsyncEventRequest as usize
    }

    /// Aims a rule at it.
    pub(crate) fn rule(self, fault: Fault) -> Rule {
        match self {
            // Number of Queues is set first.
            Self::AsyncEventConfig => Rule::new(fault).admin(AdminOpcode::SET_FEATURES).nth(2),
            _ if self.is_io() => Rule::new(fault).io(NvmOpcode(self.opcode())),
            _ => Rule::new(fault).admin(AdminOpcode(self.opcode())),
        }
    }

    /// A command-specific status that it may well end with.
    const fn own_status(self) -> StatusCode {
        match self {
            Self::NumberOfQueues | Self::AsyncEventConfig | Self::SetFeatures => StatusCode::FeatureNotChangeable,
            Self::AsyncEventRequest => StatusCode::AsyncEventLimitExceeded,
            Self::GetLogPage => StatusCode::InvalidLogPage,
            Self::Abort => StatusCode::AbortLimitExceeded,
            Self::FormatNvm => StatusCode::InvalidFormat,
            Self::CreateSq => StatusCode::CompletionQueueInvalid,
            Self::CreateCq | Self::DeleteSq => StatusCode::InvalidQueueIdentifier,
            Self::DeleteCq => StatusCode::InvalidQueueDeletion,
            Self::Write | Self::WriteDurably => StatusCode::WriteToReadOnlyRange,
            _ => StatusCode::ConflictingAttributes,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::IdentifyController => "Identify Controller",
            Self::NumberOfQueues => "Set Features: Number of Queues",
            Self::AsyncEventConfig => "Set Features: Asynchronous Event Configuration",
            Self::AsyncEventRequest => "Asynchronous Event Request",
            Self::IdentifyNamespace => "Identify Namespace",
            Self::ActiveNamespaces => "Identify: active namespaces",
            Self::NamespaceDescriptors => "Identify: namespace descriptors",
            Self::GetFeatures => "Get Features",
            Self::SetFeatures => "Set Features: others",
            Self::GetLogPage => "Get Log Page",
            Self::Abort => "Abort",
            Self::FormatNvm => "Format NVM",
            Self::CreateCq => "Create I/O Completion Queue",
            Self::CreateSq => "Create I/O Submission Queue",
            Self::DeleteSq => "Delete I/O Submission Queue",
            Self::DeleteCq => "Delete I/O Completion Queue",
            Self::Read => "Read",
            Self::Write => "Write",
            Self::WriteDurably => "Write with FUA",
            Self::Flush => "Flush",
            Self::WriteZeroes => "Write Zeroes",
            Self::Deallocate => "Dataset Management: deallocate",
            Self::Compare => "Compare",
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a drive may do to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mishap {
    Generic,
    Specific,
    Media,
    Dropped,
    Swallowed,
    LateBefore,
    LateAfter,
    Twice,
    UnknownCid,
    Corrupted,
    Fatal,
    Gone,
}

impl Mishap {
    pub(crate) const ALL: [Self; 12] = [
        Self::Generic,
        Self::Specific,
        Self::Media,
        Self::Dropped,
        Self::Swallowed,
        Self::LateBefore,
        Self::LateAfter,
        Self::Twice,
        Self::UnknownCid,
        Self::Corrupted,
        Self::Fatal,
        Self::Gone,
    ];

    pub(crate) fn status(self, command: Command) -> Option<StatusCode> {
        match self {
            Self::Generic => Some(StatusCode::InternalError),
            Self::Specific => Some(command.own_status()),
            Self::Media if command == Command::Read => Some(StatusCode::UnrecoveredReadError),
            Self::Media => Some(StatusCode::WriteFault),
            _ => None,
        }
    }

    pub(crate) fn fault(self, command: Command) -> Fault {
        match self {
            Self::Generic | Self::Specific | Self::Media => {
                Fault::Status(self.status(command).map_or(Status::SUCCESS, Status::from_code))
            }
            Self::Dropped => Fault::Drop,
            Self::Swallowed => Fault::Swallow,
            Self::LateBefore | Self::LateAfter => Fault::Delay(LATE),
            Self::Twice => Fault::Duplicate,
            Self::UnknownCid => Fault::WrongCid(0xfffe),
            Self::Corrupted => Fault::Corrupt,
            Self::Fatal => Fault::Fatal,
            Self::Gone => Fault::Disappear,
        }
    }

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Generic => "generic status",
            Self::Specific => "command-specific status",
            Self::Media => "media status",
            Self::Dropped => "done, no completion",
            Self::Swallowed => "not done, no completion",
            Self::LateBefore => "late, before recovery",
            Self::LateAfter => "late, after recovery",
            Self::Twice => "completed twice",
            Self::UnknownCid => "unknown CID",
            Self::Corrupted => "corrupt data",
            Self::Fatal => "CSTS.CFS",
            Self::Gone => "gone",
        }
    }
}

/// What the caller is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// Success, and it is one.
    Done,
    /// Success, though the data is wrong: nothing that is sent with it could tell.
    WrongData,
    /// `DriverError::Command` with this status.
    Status,
    /// `DriverError::TimedOut`.
    TimedOut,
    /// `DriverError::Fatal`.
    Fatal,
    /// `DriverError::Gone`.
    Gone,
    /// The fault cannot happen to this command.
    Never,
}

/// What the caller does then, after which the next read is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// Nothing.
    Nothing,
    /// Opening the controller, or bringing the queue back, once more.
    Again,
    /// `QueuePair::recreate`; until then a `BlockIo` refuses every access (`DriverError::Stuck`).
    Recreate,
    /// `Controller::reset`.
    Reset,
    /// The drive is put back and opened anew.
    Replug,
}

pub(crate) type Cell = (Told, Then);

/// No data moves in the direction that could be damaged.
const NO: Cell = (Told::Never, Then::Nothing);
const OK: Cell = (Told::Done, Then::Nothing);
const BAD: Cell = (Told::WrongData, Then::Nothing);
const ST: Cell = (Told::Status, Then::Nothing);
const ST_AGAIN: Cell = (Told::Status, Then::Again);
const TIME: Cell = (Told::TimedOut, Then::Nothing);
const TIME_AGAIN: Cell = (Told::TimedOut, Then::Again);
const TIME_QUEUE: Cell = (Told::TimedOut, Then::Recreate);
const TIME_RESET: Cell = (Told::TimedOut, Then::Reset);
const OK_RESET: Cell = (Told::Done, Then::Reset);
const FATAL: Cell = (Told::Fatal, Then::Reset);
const FATAL_AGAIN: Cell = (Told::Fatal, Then::Again);
const GONE: Cell = (Told::Gone, Then::Replug);

const OPENING: [Cell; 12] = [
    ST_AGAIN,
    ST_AGAIN,
    ST_AGAIN,
    TIME_AGAIN,
    TIME_AGAIN,
    TIME_AGAIN,
    TIME_AGAIN,
    OK,
    TIME_AGAIN,
    NO,
    FATAL_AGAIN,
    GONE,
];
const ASKING: [Cell; 12] = [ST, ST, ST, TIME, TIME, TIME, TIME, OK, TIME, OK, FATAL, GONE];
const TELLING: [Cell; 12] = [ST, ST, ST, TIME, TIME, TIME, TIME, OK, TIME, NO, FATAL, GONE];
/// Carried out late, it could undo what came after it.
const HARMFUL: [Cell; 12] =
    [ST, ST, ST, TIME_RESET, TIME_RESET, TIME_RESET, TIME_RESET, OK, TIME_RESET, NO, FATAL, GONE];
const DELETING: [Cell; 12] =
    [ST_AGAIN, ST_AGAIN, ST_AGAIN, TIME_RESET, TIME_RESET, TIME_RESET, TIME_RESET, OK, TIME_RESET, NO, FATAL, GONE];
const MOVING: [Cell; 12] =
    [ST, ST, ST, TIME_QUEUE, TIME_QUEUE, TIME_QUEUE, TIME_QUEUE, OK, TIME_QUEUE, BAD, FATAL, GONE];
const QUEUED: [Cell; 12] =
    [ST, ST, ST, TIME_QUEUE, TIME_QUEUE, TIME_QUEUE, TIME_QUEUE, OK, TIME_QUEUE, NO, FATAL, GONE];

/// The table. Columns as in [`Mishap::ALL`].
pub(crate) const TABLE: [(Command, [Cell; 12]); 23] = [
    // What it damages is not checked; Identify carries no checksum.
    (
        Command::IdentifyController,
        [
            ST_AGAIN,
            ST_AGAIN,
            ST_AGAIN,
            TIME_AGAIN,
            TIME_AGAIN,
            TIME_AGAIN,
            TIME_AGAIN,
            OK,
            TIME_AGAIN,
            OK,
            FATAL_AGAIN,
            GONE,
        ],
    ),
    (Command::NumberOfQueues, OPENING),
    // A controller without the feature reports what it likes.
    (
        Command::AsyncEventConfig,
        [OK, OK, OK, TIME_AGAIN, TIME_AGAIN, TIME_AGAIN, TIME_AGAIN, OK, TIME_AGAIN, NO, FATAL_AGAIN, GONE],
    ),
    // Nobody waits for it; one that is lost means fewer events until the next reset.
    (
        Command::AsyncEventRequest,
        [OK_RESET, OK_RESET, OK_RESET, OK_RESET, OK_RESET, OK, OK, OK, OK_RESET, NO, FATAL_AGAIN, GONE],
    ),
    (Command::IdentifyNamespace, ASKING),
    (Command::ActiveNamespaces, ASKING),
    (Command::NamespaceDescriptors, ASKING),
    (Command::GetFeatures, TELLING),
    (Command::SetFeatures, HARMFUL),
    (Command::GetLogPage, ASKING),
    (Command::Abort, TELLING),
    (Command::FormatNvm, HARMFUL),
    (Command::CreateCq, TELLING),
    (Command::CreateSq, TELLING),
    (Command::DeleteSq, DELETING),
    (Command::DeleteCq, DELETING),
    (Command::Read, MOVING),
    (Command::Write, MOVING),
    (Command::WriteDurably, MOVING),
    (Command::Flush, QUEUED),
    (Command::WriteZeroes, QUEUED),
    (Command::Deallocate, QUEUED),
    // On a queue pair of its own, which is dropped.
    (Command::Compare, TELLING),
];

/// What a look-up says whose read is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Says {
    /// Success, and all rows are right.
    Nothing,
    /// Success, and a row is wrong.
    WrongRow,
    /// `LookupError::RowsFailed`, because of the drive's status.
    Status,
    /// `LookupError::RowsFailed`, because of a time-out.
    TimedOut,
    /// `LookupError::RowsFailed`, because the controller failed.
    Fatal,
    /// `LookupError::RowsFailed`, because the drive is gone.
    Gone,
    /// `LookupError::RowsFailed`, because of a row's checksum.
    Checksum,
}

/// What the next look-up says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The next look-up is right.
    Right,
    /// The drive's rows fail at once and all others are right, until the drive is back and retried.
    AfterRetry,
}

/// Each fault of a look-up's read, with or without checking rows against their checksums.
pub(crate) const LOOKUPS: [(Mishap, bool, Says, Next); 14] = [
    (Mishap::Generic, false, Says::Status, Next::Right),
    (Mishap::Specific, false, Says::Status, Next::Right),
    (Mishap::Media, false, Says::Status, Next::Right),
    (Mishap::Dropped, false, Says::TimedOut, Next::Right),
    (Mishap::Swallowed, false, Says::TimedOut, Next::Right),
    (Mishap::LateBefore, false, Says::TimedOut, Next::Right),
    (Mishap::Twice, false, Says::Nothing, Next::Right),
    (Mishap::UnknownCid, false, Says::TimedOut, Next::Right),
    (Mishap::Corrupted, false, Says::WrongRow, Next::Right),
    (Mishap::Corrupted, true, Says::Checksum, Next::Right),
    (Mishap::Fatal, false, Says::Fatal, Next::Right),
    (Mishap::Fatal, true, Says::Fatal, Next::Right),
    (Mishap::Gone, false, Says::Gone, Next::AfterRetry),
    (Mishap::Gone, true, Says::Gone, Next::AfterRetry),
];
