//! Others who answer the same batches from the same file.

use super::place::Place;
use super::replay::Contender;
use super::workload::Truth;
use crate::failure::Failure;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rival {
    Pread,
    Uring,
    PreadEqual,
    UringEqual,
}

impl Rival {
    pub(crate) const ALL: [Self; 4] = [Self::Pread, Self::Uring, Self::PreadEqual, Self::UringEqual];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pread => "pread per id",
            Self::Uring => "io_uring per id",
            Self::PreadEqual => "pread, equal means",
            Self::UringEqual => "io_uring, equal means",
        }
    }

    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Pread => "pread",
            Self::Uring => "uring",
            Self::PreadEqual => "pread_equal",
            Self::UringEqual => "uring_equal",
        }
    }

    pub(crate) fn threads(self) -> &'static str {
        "1"
    }
}

pub(crate) struct Field;

impl Field {
    pub(crate) fn new(_: &Place, _: &Truth<'_>, _: u64, _: usize) -> Result<Self, Failure> {
        Ok(Self)
    }

    pub(crate) fn enter(&self, _: Rival) -> Result<Result<Box<dyn Contender>, String>, Failure> {
        Ok(Err("not there".into()))
    }
}
