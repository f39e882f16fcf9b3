//! Namespaces: their backing, their formats, their names.

use std::fmt;
use std::sync::Arc;

use warprow_dma::AllocateError;
use warprow_spec::identify::{
    CommandSet, Dlfeat, Flbas, Fpi, IdentifyNamespace, LbaFormat, Mc, NamespaceDescriptor, Nsattr,
};
use warprow_spec::registers::Vs;
use warprow_spec::{FromZeros, IDENTIFY_BYTES};

use crate::backing::Backing;
use crate::nvm::View;
use crate::write_cache::WriteCache;

/// LBA sizes that every namespace offers, by format index.
pub(crate) const LBA_BYTES: [u32; 2] = [512, 4096];

/// The LBA size of a format, bytes.
pub(crate) fn lba_bytes(format: u8) -> u32 {
    LBA_BYTES.get(usize::from(format)).copied().unwrap_or(512)
}

/// How far a Format NVM is, as [`FormatHook`] is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatStep {
    /// The data is about to be erased. From now on data may be lost, and the namespace cannot be used until the format
    /// has ended.
    Begins,
    /// The data is erased, durably. The hook is told this also, with the LBA size as it is, when a format did not begin
    /// because the hook returned an error, and by [`SoftController::record`](crate::SoftController::record).
    Ended,
}

/// A hook that is called at each step of Format NVM with the new LBA size in bytes, before the command completes. If
/// the hook returns an error, the command fails.
pub type FormatHook = Arc<dyn Fn(FormatStep, u32) -> std::io::Result<()> + Send + Sync>;

/// A namespace to be built into a controller.
pub struct Namespace {
    pub(crate) backing: Arc<dyn Backing>,
    /// The volatile write cache, where `backing` is one.
    pub(crate) cache: Option<Arc<WriteCache>>,
    pub(crate) cache_bytes: Option<u64>,
    pub(crate) format: u8,
    pub(crate) metadata_format: bool,
    pub(crate) uuid: [u8; 16],
    pub(crate) on_format: Option<FormatHook>,
    /// A format began and failed: the data is partly gone, and another format has to follow.
    pub(crate) half_formatted: bool,
    /// Whether the namespace's properties (LBA size, serial number) are in no sidecar yet.
    pub(crate) unrecorded: bool,
    /// Commands that would change data are refused.
    pub(crate) write_protected: bool,
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Namespace")
            .field("backing", &self.backing)
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

impl Namespace {
    /// A namespace over `backing`, formatted with LBAs of 512 bytes.
    pub fn new(backing: impl Backing + 'static) -> Self {
        Self::shared(Arc::new(backing))
    }

    /// As [`new`](Self::new), over a backing that others hold too.
    pub fn shared(backing: Arc<dyn Backing>) -> Self {
        Self {
            backing,
            cache: None,
            cache_bytes: None,
            format: 0,
            metadata_format: false,
            uuid: [0; 16],
            on_format: None,
            half_formatted: false,
            unrecorded: false,
            write_protected: false,
        }
    }

    /// Puts a volatile write cache of `capacity` bytes before the backing: writes are lost by
    /// [`power_cut`](crate::SoftController::power_cut) until they are flushed.
    pub fn write_cache(mut self, capacity: u64) -> Self {
        self.cache_bytes = Some(capacity);
        self
    }

    /// Builds the cache that was asked for, here or for all.
    pub(crate) fn add_cache(&mut self, default: Option<u64>) -> Result<(), AllocateError> {
        if let Some(capacity) = self.cache_bytes.take().or(default) {
            let cache = Arc::new(WriteCache::new(self.backing.clone(), capacity)?);
            cache.set_block(1 << self.lba_shift());
            self.backing = cache.clone();
            self.cache = Some(cache);
        }
        Ok(())
    }

    /// Changes the LBA format of a namespace whose data has been erased.
    pub(crate) fn set_format(&mut self, format: u8) {
        (self.format, self.unrecorded) = (format, false);
        if let Some(cache) = &self.cache {
            cache.set_block(1 << self.lba_shift());
        }
    }

    /// Formatted with LBAs of this size, 512 or 4096 bytes; another size is an error of
    /// [`build`](crate::ControllerBuilder::build).
    pub fn lba(mut self, bytes: u32) -> Self {
        self.format = LBA_BYTES.iter().position(|&b| b == bytes).map_or(u8::MAX, |i| i as u8);
        self
    }

    /// Offers a third format, 512 bytes with 8 bytes of metadata, for hosts to refuse. The metadata is not kept.
    pub fn metadata_format(mut self) -> Self {
        self.metadata_format = true;
        self
    }

    /// The namespace's UUID; without it one follows from the controller's seed. NGUID and EUI-64 follow from the UUID.
    pub fn uuid(mut self, uuid: [u8; 16]) -> Self {
        self.uuid = uuid;
        self
    }

    /// Sets whether commands that would change data (Write, Write Zeroes, a Dataset Management that deallocates, Format NVM) are
    /// refused with Namespace is Write Protected (NVMe Base 2.0, 8.12); reads and flushes are not.
    pub fn write_protected(mut self, write_protected: bool) -> Self {
        self.write_protected = write_protected;
        self
    }

    /// Calls `hook` when the namespace is formatted, before and after.
    pub fn on_format(mut self, hook: FormatHook) -> Self {
        self.on_format = Some(hook);
        self
    }

    /// Sets whether the namespace's properties are in no sidecar yet, so that the hook has to write them before
    /// somebody relies on them.
    pub(crate) fn unrecorded(mut self, unrecorded: bool) -> Self {
        self.unrecorded = unrecorded;
        self
    }

    /// Calls the hook with the namespace's state, if its properties are in no sidecar yet, or if `always`.
    pub(crate) fn record(&mut self, always: bool) -> std::io::Result<()> {
        if let Some(hook) = self.on_format.as_ref().filter(|_| self.unrecorded || always) {
            let step = if self.half_formatted { FormatStep::Begins } else { FormatStep::Ended };
            hook(step, lba_bytes(self.format))?;
        }
        self.unrecorded = false;
        Ok(())
    }

    /// The LBA formats offered.
    pub(crate) fn formats(&self) -> impl Iterator<Item = LbaFormat> + use<> {
        let smallest = self.backing.smallest_lba();
        // A format that the backing cannot serve keeps its index and is not available: LBADS 0.
        let format = move |bytes: u32| {
            if bytes < smallest { LbaFormat::new() } else { LbaFormat::new().with_lbads(bytes.ilog2() as u8) }
        };
        let metadata = self.metadata_format.then(|| format(512).with_ms(8));
        LBA_BYTES.map(format).into_iter().chain(metadata)
    }

    pub(crate) fn lba_shift(&self) -> u32 {
        lba_bytes(self.format).ilog2()
    }

    /// Size in LBAs of the current format.
    pub(crate) fn blocks(&self) -> u64 {
        self.backing.size() >> self.lba_shift()
    }

    /// The namespace as workers see it.
    pub(crate) fn view(&self, formatting: bool, write_cache: bool) -> View {
        View {
            backing: self.backing.clone(),
            cache: self.cache.clone(),
            lba_shift: self.lba_shift(),
            blocks: self.blocks(),
            formatting,
            half_formatted: self.half_formatted,
            write_through: !write_cache && self.backing.is_volatile(),
            whole: self.backing.wants_whole_commands(),
            write_protected: self.write_protected,
        }
    }

    fn eui64(&self) -> [u8; 8] {
        let [a, b, c, d, e, f, g, h, ..] = self.uuid;
        [a, b, c, d, e, f, g, h]
    }

    /// Identify Namespace; `remaining` is the part of a format under way, percent.
    pub(crate) fn identify(&self, remaining: u8) -> Box<IdentifyNamespace> {
        let mut data = Box::new(IdentifyNamespace::new_zeroed());
        data.nsze = self.blocks();
        data.ncap = data.nsze;
        data.nuse = data.nsze;
        data.flbas = Flbas::new().with_index_lower(self.format & 0xf);
        data.mc = Mc::new().with_separate(self.metadata_format);
        data.fpi = Fpi::new().with_supported(true).with_remaining(remaining);
        let zeros = self.backing.deallocated_reads_zero();
        data.dlfeat = Dlfeat::new().with_read_value(zeros.into()).with_write_zeroes_deallocate(zeros);
        data.nvmcap = u128::from(self.backing.size()).into();
        data.nsattr = Nsattr::new().with_write_protected(self.write_protected);
        data.nguid = self.uuid;
        data.eui64 = self.eui64();
        let mut count = 0u8;
        for (slot, format) in data.lbaf.iter_mut().zip(self.formats()) {
            *slot = format;
            count += 1;
        }
        data.nlbaf_z = count.saturating_sub(1);
        data
    }

    /// The Namespace Identification Descriptor list.
    pub(crate) fn descriptors(&self, version: Vs) -> [u8; IDENTIFY_BYTES] {
        let mut list = [0; IDENTIFY_BYTES];
        let descriptors = [
            Some(NamespaceDescriptor::Eui64(self.eui64())),
            Some(NamespaceDescriptor::Nguid(self.uuid)),
            Some(NamespaceDescriptor::Uuid(self.uuid)),
            (version >= Vs::V2_0).then_some(NamespaceDescriptor::CommandSet(CommandSet::NVM)),
        ];
        let mut rest = &mut list[..];
        for descriptor in descriptors.into_iter().flatten() {
            let taken = descriptor.write_to(rest).unwrap_or(0);
            rest = &mut std::mem::take(&mut rest)[taken..];
        }
        list
    }
}
