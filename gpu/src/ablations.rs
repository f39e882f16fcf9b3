//! Parts of a look-up that can be left out, to measure what each is worth.

use warprow_kernels::abi::ablated;

/// What look-ups of rows on drives do without, so that its worth can be measured. They read more or ring more often
/// then, and give the same rows. By default look-ups do without nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ablations {
    /// Ids are not deduplicated: a row is read into staging as often as ids ask for it. Ids are still sorted by the
    /// addresses of their rows, by a radix sort, and repeats of a row still share a command, as rows of one LBA do.
    pub deduplication: bool,
    /// Rows of one LBA do not share a command: there is one for each row, and without deduplication one for each id.
    pub shared_commands: bool,
    /// Each command has a tail doorbell of its own, behind a fence, where else a batch of commands has one.
    pub shared_doorbells: bool,
    /// No row goes from a queue's landing area to the output: all go to staging first, and the kernel behind copies them.
    pub written_rows: bool,
}

impl Ablations {
    /// Leaves deduplication out.
    #[must_use]
    pub fn without_deduplication(self) -> Self {
        Self { deduplication: true, ..self }
    }

    /// Gives each row a command.
    #[must_use]
    pub fn without_shared_commands(self) -> Self {
        Self { shared_commands: true, ..self }
    }

    /// Gives each command a doorbell.
    #[must_use]
    pub fn without_shared_doorbells(self) -> Self {
        Self { shared_doorbells: true, ..self }
    }

    /// Copies each row to staging before it goes to the output.
    #[must_use]
    pub fn without_written_rows(self) -> Self {
        Self { written_rows: true, ..self }
    }

    /// The bits by which kernels know what to do without when they read from drives.
    pub(crate) fn of_reading(self) -> u32 {
        let bit = |is_out, bit| if is_out { bit } else { 0 };
        bit(self.shared_commands, ablated::SHARED_COMMANDS) | bit(self.shared_doorbells, ablated::SHARED_DOORBELLS)
    }
}
