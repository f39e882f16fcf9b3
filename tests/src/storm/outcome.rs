//! What a storm came to.

use std::collections::BTreeMap;

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
