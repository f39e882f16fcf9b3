use warprow_spec::StatusCode;

/// Why a backing could not serve a command.
#[derive(Debug, thiserror::Error)]
pub enum MediaError {
    /// There is no room left for the data.
    #[error("no space left for the data: {0}")]
    Full(std::io::Error),
    /// The data could not be read.
    #[error("cannot read: {0}")]
    Read(std::io::Error),
    /// The data could not be written, or made durable.
    #[error("cannot write: {0}")]
    Write(std::io::Error),
    /// This backing's content is given and cannot be written.
    #[error("the backing is read-only")]
    ReadOnly,
}

impl MediaError {
    /// Sorts a failed write or flush. No room is left also where files may not be as large as that (`ulimit -f`).
    pub fn of_write(error: std::io::Error) -> Self {
        use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match error.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => Self::Full(error),
            _ => Self::Write(error),
        }
    }

    pub(crate) fn code(&self) -> StatusCode {
        match self {
            Self::Full(_) => StatusCode::CapacityExceeded,
            Self::Read(_) => StatusCode::UnrecoveredReadError,
            Self::Write(_) => StatusCode::WriteFault,
            Self::ReadOnly => StatusCode::NamespaceWriteProtected,
        }
    }
}
