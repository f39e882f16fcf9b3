//! Which numbers keys are.

/// Which numbers keys are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyKind {
    /// From 0 to 2⁶⁴ − 1.
    U64,
    /// From −2⁶³ to 2⁶³ − 1.
    I64,
}

impl KeyKind {
    /// The number that the bits of `key` stand for.
    pub const fn number(self, key: u64) -> i128 {
        match self {
            Self::U64 => key as i128,
            Self::I64 => key as i64 as i128,
        }
    }

    pub(crate) fn show(self, key: u64) -> String {
        self.number(key).to_string()
    }
}
