//! Where keys come from.

use crate::key_kind::KeyKind;

/// The keys that an index is built of, in the order of their file. The build reads them from several threads, and
/// several times over.
pub trait KeySource: Sync {
    /// How many there are.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Which numbers they are.
    fn kind(&self) -> KeyKind;

    /// Fills `keys` with the keys from number `first` on, counted from 0; an `i64` is given as its bits. Never called
    /// for keys past the last.
    fn read(&self, first: u64, keys: &mut [u64]) -> std::io::Result<()>;
}

impl KeySource for [u64] {
    fn len(&self) -> u64 {
        self.len() as u64
    }

    fn kind(&self) -> KeyKind {
        KeyKind::U64
    }

    fn read(&self, first: u64, keys: &mut [u64]) -> std::io::Result<()> {
        let begin = first as usize;
        keys.copy_from_slice(
            self.get(begin..begin.saturating_add(keys.len())).ok_or(std::io::ErrorKind::UnexpectedEof)?,
        );
        Ok(())
    }
}

impl KeySource for [i64] {
    fn len(&self) -> u64 {
        self.len() as u64
    }

    fn kind(&self) -> KeyKind {
        KeyKind::I64
    }

    fn read(&self, first: u64, keys: &mut [u64]) -> std::io::Result<()> {
        let begin = first as usize;
        let mine = self.get(begin..begin.saturating_add(keys.len())).ok_or(std::io::ErrorKind::UnexpectedEof)?;
        keys.iter_mut().zip(mine).for_each(|(key, &mine)| *key = mine as u64);
        Ok(())
    }
}

/// Keys of either kind in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyList {
    /// The keys; an `i64` as its bits.
    pub keys: Vec<u64>,
    /// Which numbers they are.
    pub kind: KeyKind,
}

impl KeySource for KeyList {
    fn len(&self) -> u64 {
        self.keys.len() as u64
    }

    fn kind(&self) -> KeyKind {
        self.kind
    }

    fn read(&self, first: u64, keys: &mut [u64]) -> std::io::Result<()> {
        KeySource::read(&self.keys[..], first, keys)
    }
}

impl<S: KeySource + ?Sized> KeySource for &S {
    fn len(&self) -> u64 {
        (**self).len()
    }

    fn kind(&self) -> KeyKind {
        (**self).kind()
    }

    fn read(&self, first: u64, keys: &mut [u64]) -> std::io::Result<()> {
        (**self).read(first, keys)
    }
}
