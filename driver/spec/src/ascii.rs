//! Text fields of fixed length.

use core::fmt;

/// An ASCII string field: left-justified and padded with spaces (NVMe Base 2.0, 1.4.2; NVMe 1.4, 1.5). Prints without
/// the padding, and with `?` for every byte that is not printable ASCII, so it is safe on a terminal whatever the
/// device put there.
#[derive(Clone, Copy)]
pub struct Ascii<'a>(pub &'a [u8]);

impl<'a> Ascii<'a> {
    /// The bytes without leading spaces and trailing spaces and NULs (some devices pad with NULs).
    pub fn trimmed(self) -> &'a [u8] {
        let end = self.0.iter().rposition(|b| !matches!(b, b' ' | 0)).map_or(0, |last| last + 1);
        self.0.get(..end).unwrap_or_default().trim_ascii_start()
    }

    /// The printable characters, as `Display` shows them.
    pub fn chars(self) -> impl Iterator<Item = char> + 'a {
        self.trimmed().iter().map(|&b| if matches!(b, b' '..=b'~') { char::from(b) } else { '?' })
    }
}

impl fmt::Display for Ascii<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        self.chars().try_for_each(|c| f.write_char(c))
    }
}

impl fmt::Debug for Ascii<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl PartialEq<str> for Ascii<'_> {
    fn eq(&self, other: &str) -> bool {
        self.chars().eq(other.chars())
    }
}

impl PartialEq<&str> for Ascii<'_> {
    fn eq(&self, other: &&str) -> bool {
        self == *other
    }
}

/// `text` as a field of `N` bytes: cut to length, padded with spaces, with `?` for what is not printable ASCII.
pub fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (byte, c) in field.iter_mut().zip(text.chars()) {
        *byte = if matches!(c, ' '..='~') { c as u8 } else { b'?' };
    }
    field
}
