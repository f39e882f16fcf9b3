//! Little-endian fields in byte strings that may hold anything.

/// Reads fields one after another; every read is bounded by what is left.
#[derive(Debug, Clone)]
pub(crate) struct Reader<'a>(&'a [u8]);

/// The bytes ended inside a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended;

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn left(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Ended> {
        let (head, rest) = self.0.split_at_checked(count).ok_or(Ended)?;
        self.0 = rest;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Ended> {
        let (head, rest) = self.0.split_first_chunk().ok_or(Ended)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Ended> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Ended> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Ended> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Ended> {
        self.array().map(u64::from_le_bytes)
    }
}

/// Appends fields.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn zeros(&mut self, count: usize) {
        self.0.resize(self.0.len() + count, 0);
    }

    /// Appends what `fill` writes, with its length before it as a `u32`.
    pub(crate) fn record(&mut self, fill: impl FnOnce(&mut Self)) {
        let at = self.0.len();
        self.u32(0);
        fill(self);
        let length = (self.0.len() - at - 4) as u32;
        self.0[at..at + 4].copy_from_slice(&length.to_le_bytes());
    }
}
