//! A check of the machine, and what came of it.

use std::fmt;

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// All is as it should be.
    Pass,
    /// The thing works, though not as well as it could.
    Warn,
    /// Real drives cannot be driven like this.
    Fail,
    /// Nobody has shown that it works.
    Unproven,
}

impl Verdict {
    /// The name in JSON, and for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::Unproven => "unproven",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A check and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The check's name, which stays: `iommu`.
    pub check: &'static str,
    /// How the check came out.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// The remedy, where no command is one.
    pub advice: Option<String>,
    /// The command that fixes it.
    pub command: Option<String>,
}

impl Finding {
    /// A finding without a remedy.
    pub fn new(check: &'static str, verdict: Verdict, found: impl Into<String>) -> Self {
        Self { check, verdict, found: found.into(), advice: None, command: None }
    }

    /// The finding with the command that fixes it.
    #[must_use]
    pub fn command(self, command: impl Into<String>) -> Self {
        Self { command: Some(command.into()), ..self }
    }

    /// The finding with a remedy in words.
    #[must_use]
    pub fn advice(self, advice: impl Into<String>) -> Self {
        Self { advice: Some(advice.into()), ..self }
    }
}
