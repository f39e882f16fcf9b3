use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// What happened, as a hash, and as text for whoever looks on.
pub(crate) struct Trace {
    hash: DefaultHasher,
    events: u64,
    aloud: bool,
}

impl Trace {
    pub(crate) fn new(aloud: bool) -> Self {
        Self { hash: DefaultHasher::new(), events: 0, aloud }
    }

    pub(crate) fn note(&mut self, now: Duration, what: fmt::Arguments<'_>) {
        let line = what.to_string();
        if self.aloud {
            eprintln!("{:>14.6} ms  {line}", now.as_secs_f64() * 1e3);
        }
        (now, line).hash(&mut self.hash);
        self.events += 1;
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash.finish()
    }

    pub(crate) fn events(&self) -> u64 {
        self.events
    }
}
