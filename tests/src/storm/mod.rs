//! A storm: the command `warprow` on emulated drives, with random work, kills and bit rot, checked against a model that knows what
//! every row may be. A seed decides everything that is done. `docs/storms.md` says what is checked.

mod files;
mod model;
mod rig;
mod rot;
mod shorten;
mod tracer;
mod work;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

pub use shorten::shorten;

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

/// What a storm came to.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Steps that were taken.
    pub steps: u64,
    /// Rows that were read and compared.
    pub rows_read: u64,
    /// Bits that were flipped, by where they lie.
    pub rots: BTreeMap<String, u64>,
    /// How many runs of each command ended how.
    pub counts: BTreeMap<(String, String), u64>,
    /// What must not be, if anything.
    pub violation: Option<String>,
    /// The step at which it was found.
    pub at: u64,
    /// What was run, with what it said.
    pub log: Vec<String>,
}

impl Outcome {
    /// Adds what another storm came to.
    pub fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.rows_read += other.rows_read;
        other.rots.iter().for_each(|(what, count)| *self.rots.entry(what.clone()).or_default() += count);
        other.counts.iter().for_each(|(what, count)| *self.counts.entry(what.clone()).or_default() += count);
    }

    /// Runs of the command.
    pub fn runs(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Runs that were killed.
    pub fn kills(&self) -> u64 {
        self.counts.iter().filter(|((_, how), _)| how == "killed").map(|(_, count)| count).sum()
    }

    /// The account, in lines.
    pub fn account(&self) -> String {
        let mut by_command: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for ((command, how), count) in &self.counts {
            by_command.entry(command).or_default().push(format!("{how}: {count}"));
        }
        let rots: Vec<_> = self.rots.iter().map(|(what, count)| format!("{what}: {count}")).collect();
        let lines = by_command.iter().map(|(command, how)| format!("  {command:<16} {}\n", how.join(", ")));
        format!(
            "{} steps, {} runs of the command, {} kills, {} rows read and compared\n{}  {:<16} {}\n",
            self.steps,
            self.runs(),
            self.kills(),
            self.rows_read,
            lines.collect::<String>(),
            "flipped bits",
            if rots.is_empty() { "none".to_owned() } else { rots.join(", ") },
        )
    }
}

/// Runs the storm of one seed.
pub fn run(seed: u64, options: &Options) -> Outcome {
    work::run(seed, options)
}
