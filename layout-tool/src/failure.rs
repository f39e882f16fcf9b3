//! What went wrong, in the words and with the exit code that a script can act on.

use std::error::Error;
use std::io;

use nix::errno::Errno;
use serde_json::{Map, Value, json};

use crate::busy::Busy;
use crate::report::{printable, printable_lines};

/// Version of the objects that `--json` prints.
pub const SCHEMA: u32 = 1;

/// Kinds of failure, each with an exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// An error of Warprow itself.
    Bug,
    /// The command line makes no sense.
    Usage,
    /// A file, a tensor, ids or sizes that were given are wrong.
    Input,
    /// Nothing was changed, because nobody agreed to it or someone else holds it.
    Refused,
    /// Content differs from what it should be.
    Mismatch,
    /// The store is absent, damaged, incomplete, foreign or newer.
    Store,
    /// A drive failed, did not answer in time, or is gone.
    Drive,
    /// Disk space, memory or queues are lacking.
    Resources,
    /// A check of the machine failed.
    Unready,
    /// Ctrl-C.
    Interrupted,
    /// SIGTERM.
    Terminated,
}

impl Class {
    /// The name in `--json`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bug => "bug",
            Self::Usage => "usage",
            Self::Input => "input",
            Self::Refused => "refused",
            Self::Mismatch => "mismatch",
            Self::Store => "store",
            Self::Drive => "drive",
            Self::Resources => "resources",
            Self::Unready => "unready",
            Self::Interrupted => "interrupted",
            Self::Terminated => "terminated",
        }
    }

    /// The exit code.
    pub const fn exit(self) -> u8 {
        match self {
            Self::Bug | Self::Unready => 1,
            Self::Usage => 2,
            Self::Input => 3,
            Self::Refused => 4,
            Self::Mismatch => 5,
            Self::Store => 6,
            Self::Drive => 7,
            Self::Resources => 8,
            Self::Interrupted => 130,
            Self::Terminated => 143,
        }
    }
}

/// A failure: what it is about, what happened, what to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// The kind of the failure.
    pub class: Class,
    /// The drive, file, table or argument that it is about; may be empty.
    pub subject: String,
    /// What happened.
    pub message: String,
    /// What to do; may be empty where the message says it.
    pub remedy: String,
    /// More members of the JSON object.
    pub details: Map<String, Value>,
    /// Whether message and remedy have several lines. Else what looks like the end of a line came with a name, and is shown as
    /// what it is.
    pub has_lines: bool,
    /// Who has a drive in use that was to be opened, if that is what happened: nothing was changed, and it may be free later.
    pub busy: Option<Box<Busy>>,
}

impl Failure {
    /// A failure of that kind.
    pub fn new(class: Class, subject: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            class,
            subject: subject.into(),
            message: message.into(),
            remedy: String::new(),
            details: Map::new(),
            has_lines: false,
            busy: None,
        }
    }

    /// Bad input.
    pub fn input(subject: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Class::Input, subject, message)
    }

    /// A command line that makes no sense.
    pub fn usage(subject: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Class::Usage, subject, message)
    }

    /// A file that the system would not open, read or write.
    pub fn io(subject: impl Into<String>, what: &str, error: &io::Error) -> Self {
        let (class, remedy) = match error.kind() {
            _ if lacks_resources(error) => (Class::Resources, "make room, then try again"),
            io::ErrorKind::NotFound => (Class::Input, "look at the path"),
            io::ErrorKind::PermissionDenied => (Class::Input, "change the permissions, or choose another place"),
            _ => (Class::Input, "look at the file, and at the disk below"),
        };
        Self::new(class, subject, format!("{what}: {error}")).remedy(remedy)
    }

    /// With what to do.
    #[must_use]
    pub fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: remedy.into(), ..self }
    }

    /// With several lines in message or remedy. Names in these must be [`printable`].
    #[must_use]
    pub fn in_lines(self) -> Self {
        Self { has_lines: true, ..self }
    }

    /// A failure because somebody has a drive in use.
    #[must_use]
    pub fn busy(self, busy: Busy) -> Self {
        let holders: Vec<Value> = match &busy {
            Busy::File(found) => found
                .holders
                .iter()
                .map(|it| json!({ "pid": it.pid, "command": it.command, "reads": it.shares }))
                .collect(),
            Busy::Elsewhere(_) => Vec::new(),
        };
        let this = Self { busy: Some(Box::new(busy)), ..self };
        this.detail("holder", holders.first().cloned()).detail("holders", holders)
    }

    /// With one more member in the JSON object.
    #[must_use]
    pub fn detail(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.details.insert(name.to_owned(), value.into());
        self
    }

    /// The object that stands under `error`.
    pub fn json(&self) -> Value {
        let mut object = json!({
            "class": self.class.name(),
            "exit": self.class.exit(),
            "subject": self.subject,
            "message": self.message,
            "remedy": self.remedy,
        });
        if let Some(object) = object.as_object_mut() {
            object.extend(self.details.clone());
        }
        object
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Whatever it is about, it may be called what would steer the terminal.
        let shown = if self.has_lines { printable_lines } else { printable };
        let subject = printable(&self.subject);
        let message = shown(&self.message);
        if !subject.is_empty() && !says(&message, &subject) {
            write!(f, "{subject}: ")?;
        }
        f.write_str(&message)?;
        if !self.remedy.is_empty() {
            write!(f, "\n  help: {}", shown(&self.remedy))?;
        }
        Ok(())
    }
}

impl Error for Failure {}

/// Whether `subject` stands in `text` by itself, not just as letters of another word.
fn says(text: &str, subject: &str) -> bool {
    let in_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    text.match_indices(subject).any(|(at, found)| {
        let before = text.get(..at).unwrap_or("");
        let after = text.get(at + found.len()..).unwrap_or("");
        !in_word(before.chars().next_back()) && !in_word(after.chars().next())
    })
}

/// An error and its sources, each said once.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let words = source.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        next = source.source();
    }
    text
}

/// Whether the system lacks room rather than the file being wrong.
pub fn lacks_resources(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, OutOfMemory, QuotaExceeded, StorageFull};
    // Too many open files has no kind of its own.
    let open_files = [Errno::EMFILE, Errno::ENFILE].map(|errno| Some(errno as i32));
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge | OutOfMemory)
        || open_files.contains(&error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_that_scripts_know() {
        use Class::*;
        let all = [Bug, Usage, Input, Refused, Mismatch, Store, Drive, Resources, Interrupted, Terminated, Unready];
        assert_eq!(all.map(Class::exit), [1, 2, 3, 4, 5, 6, 7, 8, 130, 143, 1]);
    }

    #[test]
    fn a_failure_reads_well_and_prints_as_json() {
        let failure = Failure::input("a.npy", "a.npy is cut off").remedy("write it again").detail("bytes", 7);
        assert_eq!(failure.to_string(), "a.npy is cut off\n  help: write it again");
        assert_eq!(Failure::input("a.npy", "cut off").to_string(), "a.npy: cut off");
        assert_eq!(
            failure.json(),
            json!({"class": "input", "exit": 3, "subject": "a.npy", "message": "a.npy is cut off",
                   "remedy": "write it again", "bytes": 7})
        );
    }

    #[test]
    fn the_subject_is_said_unless_the_message_says_it() {
        let text = |subject: &str, message: &str| Failure::input(subject, message).to_string();
        assert_eq!(text("f", "its name does not tell the format"), "f: its name does not tell the format");
        assert_eq!(text("a.npy", "a.npy holds no table"), "a.npy holds no table");
        assert_eq!(text("t", "table \"t\" exists"), "table \"t\" exists");
    }

    #[test]
    fn names_cannot_forge_lines_or_steer_the_terminal() {
        let name = "t\n  help: rm -rf /\x1b[2J\u{202e}";
        let text =
            Failure::input(name, format!("there is no table {name:?}")).remedy(format!("load {name}")).to_string();
        assert_eq!(
            text,
            "there is no table \"t\\n  help: rm -rf /\\u{1b}[2J\\u{202e}\"\n  help: load t\\n  help: rm -rf \
             /\\u{1b}[2J\\u{202e}"
        );
        assert_eq!(
            Failure::input(name, "is cut off").to_string(),
            "t\\n  help: rm -rf /\\u{1b}[2J\\u{202e}: is cut off"
        );
        let lines = Failure::input("f", "f holds:\n    a\x1b").remedy("take\n    b").in_lines();
        assert_eq!(lines.to_string(), "f holds:\n    a\\u{1b}\n  help: take\n    b");
        assert_eq!(lines.json()["message"], "f holds:\n    a\x1b", "JSON escapes by itself");
    }

    #[test]
    fn sources_are_said_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer: {0}")]
        struct Says(#[source] Inner);
        #[derive(Debug, thiserror::Error)]
        #[error("inner")]
        struct Inner(#[source] io::Error);
        let error = Says(Inner(io::Error::other("the disk is gone")));
        assert_eq!(chain(&error), "outer: inner: the disk is gone");
    }
}
