//! Ordinary memory in large pieces: the DRAM tier, and staging.

use memmap2::MmapMut;

use warprow_store::StoreError;

/// Zeroed memory, on huge pages where the system gives them. Pages that are never touched cost nothing.
#[derive(Debug)]
pub(crate) struct Memory(Option<MmapMut>);

impl Memory {
    pub(crate) fn new(bytes: u64, what: &'static str) -> Result<Self, StoreError> {
        if bytes == 0 {
            return Ok(Self(None));
        }
        let failed = |source| StoreError::Allocate { what, bytes, source };
        let len = usize::try_from(bytes).map_err(|_| failed(std::io::ErrorKind::OutOfMemory.into()))?;
        let map = MmapMut::map_anon(len).map_err(failed)?;
        #[cfg(target_os = "linux")]
        if bytes >= 2 << 20 {
            // Huge pages make it faster; without them it works too, so a refusal does not matter.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(Self(Some(map)))
    }

    #[inline(always)]
    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }

    #[inline(always)]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.as_deref_mut().unwrap_or_default()
    }
}
