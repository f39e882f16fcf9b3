//! What a storm is told to do.

use std::path::PathBuf;
use std::time::Duration;

/// What a storm can do, or leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum)]
pub enum Part {
    /// Commands that write are killed.
    Kills,
    /// Writes behind some place of a drive fail.
    FailedWrites,
    /// A command is run while another has the store open.
    Contention,
    /// Drives come and go.
    Drives,
    /// A bit flips.
    Rot,
    /// A bit flips in a log of updates.
    RotInLogs,
    /// Compaction and drop have room, whatever came before.
    Room,
    /// A killed commit leaves nothing that is called damage.
    SoundAfterKills,
}

/// A way in which the store lies, for proving that the storm notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Once, what an acknowledged update has written is gone.
    LostUpdate,
    /// Once, a bit of a row flips that has no checksum.
    WrongRow,
}

/// What to do besides the seed.
#[derive(Clone, Debug)]
pub struct Options {
    /// The command.
    pub warprow: PathBuf,
    /// Where drives and files lie; made new, and left.
    pub folder: PathBuf,
    /// Which steps are taken.
    pub steps: Vec<u64>,
    /// What is left out.
    pub without: Vec<Part>,
    /// Kills come after a random time, rather than before a random write.
    pub timed: bool,
    /// Longest time that one run of the command may take.
    pub limit: Duration,
    /// Tell everything on standard error.
    pub aloud: bool,
    /// The store lies.
    pub lie: Option<Lie>,
}

impl Options {
    /// All of it, `steps` steps long.
    pub fn new(warprow: PathBuf, folder: PathBuf, steps: u64) -> Self {
        Self {
            warprow,
            folder,
            steps: (0..steps).collect(),
            without: Vec::new(),
            timed: false,
            limit: Duration::from_secs(60),
            aloud: false,
            lie: None,
        }
    }
}
