//! A command that did not succeed.

use warprow_spec::{Status, StatusCode};

use crate::backing::MediaError;
use crate::iommu::DmaFault;
use crate::prp::PrpError;

/// What a completion and the error log say of a failed command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    /// Parameter Error Location: byte of the SQE in bits 7:0, bit in bits 10:8; FFFFh for none (NVMe Base 2.0,
    /// 5.16.1.2; NVMe 1.4, 5.14.1.1).
    pub(crate) parameter: u16,
}

impl Failure {
    /// A failure that no particular field of the command caused.
    pub(crate) fn new(code: StatusCode) -> Self {
        Self { status: Status::from_code(code).with_dnr(is_final(code)), parameter: u16::MAX }
    }

    /// A failure caused by the field at `byte` of the SQE.
    pub(crate) fn at(code: StatusCode, byte: u16) -> Self {
        Self { parameter: byte, ..Self::new(code) }
    }

    /// Invalid Field in Command, because of the field at `byte` of the SQE.
    pub(crate) fn field(byte: u16) -> Self {
        Self::at(StatusCode::InvalidField, byte)
    }
}

impl From<StatusCode> for Failure {
    fn from(code: StatusCode) -> Self {
        Self::new(code)
    }
}

impl From<PrpError> for Failure {
    fn from(error: PrpError) -> Self {
        Self::at(error.code(), 24)
    }
}

impl From<DmaFault> for Failure {
    fn from(_: DmaFault) -> Self {
        Self::at(StatusCode::DataTransferError, 24)
    }
}

impl From<MediaError> for Failure {
    fn from(error: MediaError) -> Self {
        Self::new(error.code())
    }
}

/// Whether the same command would fail again: the Do Not Retry bit.
fn is_final(code: StatusCode) -> bool {
    !matches!(
        code,
        StatusCode::DataTransferError
            | StatusCode::AbortedPowerLoss
            | StatusCode::InternalError
            | StatusCode::AbortRequested
            | StatusCode::AbortedSqDeletion
            | StatusCode::CommandInterrupted
            | StatusCode::NamespaceNotReady
            | StatusCode::FormatInProgress
            | StatusCode::CapacityExceeded
            | StatusCode::WriteFault
            | StatusCode::UnrecoveredReadError
            | StatusCode::AsyncEventLimitExceeded
            | StatusCode::AbortLimitExceeded
    )
}
