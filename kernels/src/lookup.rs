//! Launches of a look-up.

use std::ffi::{CStr, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{
    self, CUfunction, CUfunction_attribute_enum, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue,
    CUlaunchConfig, CUstream,
};

use warprow_gpu_queues::{Gpu, KernelModule};

use crate::abi::{Adoption, CachePin, CacheSweep, Lookup, Update, dedupe, expansion};
use crate::dedupe::SORT_TILE;
use crate::{Arch, KernelError, compile};

/// Up to so many ids one block prepares a look-up.
pub const SMALL_IDS: u64 = 8192;
/// Ids that its sort takes at least; CHUNK of cuda/prepare.cuh.
const SORTED_IDS: u64 = 256;
/// Up to so many ids one kernel may do all of a look-up of rows on drives.
pub const FEW_IDS: u64 = 4096;
/// Ids that the sort of *few* takes at least, and bytes of dynamic shared memory for each; FEW_LEAST and FewWords of cuda/few.cuh.
const FEW_SORTED: u64 = 64;
const FEW_BYTES: u64 = 14;

/// Dynamic shared memory of a block that pools long bags: LongBags of cuda/long_bags.cuh.
pub const LONG_SHARED: u32 = 38976;

/// Threads of a block, as in the sources.
const WIDE: u32 = 256;
const SMALL_THREADS: u32 = 1024;
/// Ids that a block of `hash` or `list` goes through at a time.
const COLLECTED: u32 = 4 * WIDE;

/// Ids that the kernels leave to be counted, until the host takes them: SAMPLED_LOG2 of cuda/sample.cuh.
pub const SAMPLED_IDS: u32 = 1 << 16;
/// Of about so many ids one is counted: what decides the number of blocks.
const SAMPLED_OF: u64 = 64;

/// Two forms of one kernel: for an output row per id, and for pooled rows.
type ByPooling = [CUfunction; 2];

/// The kernels, loaded into a context.
#[derive(Debug)]
pub struct Kernels {
    pub(crate) gpu: Arc<Gpu>,
    _module: Arc<KernelModule>,
    sample: CUfunction,
    begin: CUfunction,
    /// Without and with updated rows.
    mark: [CUfunction; 2],
    count: CUfunction,
    place: CUfunction,
    /// Without and with updated rows, as of the next two.
    hash: [CUfunction; 2],
    list: [CUfunction; 2],
    sweep: CUfunction,
    rank: CUfunction,
    number: CUfunction,
    prepare: [CUfunction; 2],
    few: [CUfunction; 2],
    /// How many ids have room in the shared memory that a block of *few* can have.
    few_ids: u64,
    cached: CachedKernels,
    fetch: CUfunction,
    /// Plain, and rich.
    expand: [ByPooling; 2],
    expand_unwritten: CUfunction,
    finish: CUfunction,
    rest: CUfunction,
    mask: CUfunction,
    /// Plain, rich, and with updated rows.
    direct: [ByPooling; 3],
    /// The kernels for plans of one feature that is not pooled: plain, and rich.
    direct_one: [CUfunction; 2],
    adopt: CUfunction,
    update: CUfunction,
    pin_cache: CUfunction,
    sweep_cache: CUfunction,
    pub(crate) test_ring: CUfunction,
    pub(crate) ngrams: CUfunction,
}

/// The kernels of plans with a cache, in the place of others.
#[derive(Debug)]
struct CachedKernels {
    mark: CUfunction,
    hash: CUfunction,
    list: CUfunction,
    prepare: CUfunction,
    expand: ByPooling,
}

// SAFETY: CUDA's handles of modules and functions may be used from any thread; the context is their callers' business.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

/// How many blocks a look-up takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Streaming multiprocessors of the GPU.
    pub sms: u32,
    /// The most ids that the launch may find: the host's count, or what was planned if the count is in device memory.
    pub max_ids: u64,
    /// The most output rows or bags.
    pub max_rows: u64,
    /// Blocks that gather rows from DRAM; 0: as many as serve the bus best.
    pub gatherers: u32,
    /// Whether tables have lists of rows in DRAM, or may get one: kernels look at them.
    pub listed: bool,
}

impl LaunchShape {
    /// Warps that `count` and `place` run with: words of [`KeyBitmap::parts`](crate::abi::KeyBitmap::parts).
    pub const fn parts(sms: u32) -> u32 {
        sms * 8 * (WIDE / 32)
    }

    /// Whether blocks are to pool bags: where these have that many ids on the average, or may have them (never for 0), and are no more than warps that
    /// run at once. Of more bags, warps bring as much at a time.
    const fn has_long_bags(&self, long: u32) -> bool {
        let warps = self.sms as u64 * 2 * (WIDE as u64 / 32);
        long != 0 && self.max_rows != 0 && self.max_rows <= warps && self.max_ids / self.max_rows >= long as u64
    }

    /// Blocks for long bags, one each, of which two fit on an SM at once. Where there are fewer bags, blocks share the lines of their rows; where there
    /// are more, twice as many blocks share the work better.
    fn blocks_of_long_bags(&self, lines: u32) -> u32 {
        let at_once = u64::from(self.sms) * 2;
        let blocks = match self.max_rows <= at_once {
            true => self.max_rows.saturating_mul(lines.max(1).into()).min(at_once),
            false => self.max_rows.min(2 * at_once),
        };
        blocks.max(1) as u32
    }

    /// Blocks of `threads` for `work` items, at most `per_sm` on each SM.
    fn blocks(&self, work: u64, threads: u32, per_sm: u32) -> u32 {
        work.div_ceil(u64::from(threads)).clamp(1, u64::from(self.sms * per_sm)) as u32
    }
}

/// Which kernels a look-up consists of, or the part of one that is launched by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LookupKind {
    /// One, of plans without rows on drives: each row is read where it lies.
    Direct,
    /// One, up to [`Kernels::few_ids`] ids, with rows on drives; of plans without pooling.
    Few,
    /// Three, up to [`SMALL_IDS`] ids.
    Small,
    /// Seven, or six and one for each sweep: as [`KeySpace::dedupe`](crate::abi::KeySpace::dedupe) says.
    Large,
    /// Of a look-up that is prefetched: [`Few`](Self::Few), half of it; or all of [`Small`](Self::Small) or [`Large`](Self::Large) before rows are
    /// expanded, and one that has the slot rest.
    Ahead(PrefetchKind),
    /// The mask, where the caller wants it.
    Mask,
    /// What is left: one kernel of a small one, two of a large one.
    Rest(PrefetchKind),
    /// The end of one that is not wanted any more.
    Forget,
}

/// A look-up that is prefetched: how its ids become unique keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PrefetchKind {
    /// By the kernel that fetches the rows, up to [`Kernels::few_ids`] ids. Rows in DRAM stay there.
    Few,
    /// By one block, up to [`SMALL_IDS`] ids. Rows in DRAM stay there.
    Small,
    /// By four kernels, or three and the sweeps. Rows in DRAM are fetched too.
    Large,
}

/// A launch of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) what: &'static str,
    pub(crate) function: CUfunction,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) shared: u32,
    /// The second parameter: of `expand`, of [`expansion`]; of `sweep`, its number; of `fetch`, whether the next may come early; of `few`, whether it is
    /// the first half. The others have one.
    pub(crate) how: c_uint,
}

impl Step {
    /// The launch's parameters, to be read while both live.
    pub(crate) fn parameters(&self, lookup: &Lookup) -> [*mut c_void; 2] {
        [ptr::from_ref(lookup).cast_mut().cast(), ptr::from_ref(&self.how).cast_mut().cast()]
    }
}

impl Kernels {
    /// Compiles the kernels for `arch`, or takes them from the cache, and loads all of them. (CUDA would else load each at its
    /// first launch, and could wait for others to end.)
    pub fn load(gpu: &Arc<Gpu>) -> Result<Self, KernelError> {
        let (major, minor) = gpu.capability();
        let code = compile(Arch { major, minor }, gpu.driver_version())?;
        let _current = gpu.enter().map_err(|_| KernelError::Cuda {
            what: "the context",
            code: sys::cudaError_enum::CUDA_ERROR_INVALID_CONTEXT,
        })?;
        // SAFETY: the code is an image for this device, complete by its checksum or fresh from the compiler.
        let loaded = unsafe { KernelModule::load(gpu, &code) };
        let module = loaded.map_err(|code| KernelError::Cuda { what: "the kernels", code })?;
        let function = |name: &CStr| module.function(name).map_err(|code| KernelError::Cuda { what: "a kernel", code });
        let prepare = [function(c"warprow_prepare")?, function(c"warprow_prepare_updated")?];
        let cached = CachedKernels {
            mark: function(c"warprow_mark_cached")?,
            hash: function(c"warprow_hash_cached")?,
            list: function(c"warprow_list_cached")?,
            prepare: function(c"warprow_prepare_cached")?,
            expand: [function(c"warprow_expand_cached_rows")?, function(c"warprow_expand_cached_bags")?],
        };
        let attribute = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        for function in prepare.into_iter().chain([cached.prepare]) {
            // SAFETY: the function is one of the module's.
            let set = unsafe { sys::cuFuncSetAttribute(function, attribute, SMALL_IDS as i32 * 8) };
            KernelError::check("64 KiB of shared memory", set)?;
        }
        let few = [function(c"warprow_few")?, function(c"warprow_few_updated")?];
        let few_ids = few_ids(&few)?;
        let expand = [
            [function(c"warprow_expand_rows")?, function(c"warprow_expand_bags")?],
            [function(c"warprow_expand_rich_rows")?, function(c"warprow_expand_rich_bags")?],
        ];
        let direct = [
            [function(c"warprow_direct_rows")?, function(c"warprow_direct_bags")?],
            [function(c"warprow_direct_rich_rows")?, function(c"warprow_direct_rich_bags")?],
            [function(c"warprow_direct_updated_rows")?, function(c"warprow_direct_updated_bags")?],
        ];
        for [_, bags] in expand.into_iter().chain(direct).chain([cached.expand]) {
            // SAFETY: the function is one of the module's.
            let set = unsafe { sys::cuFuncSetAttribute(bags, attribute, LONG_SHARED as i32) };
            KernelError::check("shared memory for long bags", set)?;
        }
        Ok(Self {
            gpu: gpu.clone(),
            _module: module.clone(),
            sample: function(c"warprow_sample")?,
            begin: function(c"warprow_begin")?,
            mark: [function(c"warprow_mark")?, function(c"warprow_mark_updated")?],
            count: function(c"warprow_count")?,
            place: function(c"warprow_place")?,
            hash: [function(c"warprow_hash")?, function(c"warprow_hash_updated")?],
            list: [function(c"warprow_list")?, function(c"warprow_list_updated")?],
            sweep: function(c"warprow_sweep")?,
            rank: function(c"warprow_rank")?,
            number: function(c"warprow_number")?,
            prepare,
            few,
            few_ids,
            cached,
            fetch: function(c"warprow_fetch")?,
            expand,
            expand_unwritten: function(c"warprow_expand_unwritten")?,
            finish: function(c"warprow_finish")?,
            rest: function(c"warprow_rest")?,
            mask: function(c"warprow_mask")?,
            direct,
            direct_one: [function(c"warprow_direct_one")?, function(c"warprow_direct_rich_one")?],
            adopt: function(c"warprow_adopt")?,
            update: function(c"warprow_update")?,
            pin_cache: function(c"warprow_pin_cache")?,
            sweep_cache: function(c"warprow_sweep_cache")?,
            test_ring: function(c"warprow_test_ring")?,
            ngrams: function(c"warprow_ngrams")?,
        })
    }

    /// Whether the blocks of each kernel may be there before the one before has ended (programmatic dependent launch): on compute
    /// capability 9.0 and CUDA 12.3, as a graph too.
    pub(crate) fn overlap(&self) -> bool {
        self.gpu.capability().0 >= 9 && self.gpu.driver_version() >= 12030
    }

    /// Up to so many ids a look-up can be of the kind [`LookupKind::Few`], by the shared memory that a block can have.
    pub fn few_ids(&self) -> u64 {
        self.few_ids
    }

    /// What a look-up of that kind and shape launches, in order.
    pub(crate) fn steps(&self, kind: LookupKind, lookup: &Lookup, shape: &LaunchShape) -> impl Iterator<Item = Step> {
        let step = |what, function, blocks: u32| Step { what, function, blocks, threads: WIDE, shared: 0, how: 0 };
        let lanes = 1u64 << lookup.lanes.group_log2;
        let by_ids = shape.blocks(shape.max_ids, WIDE, 8);
        let pooled = usize::from(lookup.plan.pooled != 0);
        let rich = usize::from(lookup.plan.rich != 0);
        let updated = usize::from(lookup.plan.overlay != 0);
        // What looks at ids knows of updated rows and of lists, or of neither.
        let knowing = usize::from(lookup.plan.overlay != 0 || shape.listed);
        let cached = (lookup.plan.cache != 0).then_some(&self.cached);
        let row_lanes = u64::from(lookup.lanes.row_lanes);
        let threads_of_row = match pooled {
            0 => row_lanes * u64::from(lookup.lanes.parts_of_row),
            _ => 32 * u64::from(lookup.lanes.lines_of_row.max(1)),
        };
        let long = pooled != 0 && shape.has_long_bags(lookup.lanes.long_bags);
        let by_rows = |per_sm| match long {
            true => shape.blocks_of_long_bags(lookup.lanes.lines_of_row),
            false => shape.blocks(shape.max_rows.saturating_mul(threads_of_row), WIDE, per_sm),
        };
        let for_rows = |step| Step { shared: if long { LONG_SHARED } else { 0 }, ..step };
        let gatherers = match shape.gatherers {
            // Few: what they read at a time is a window on the table, and the GPU reaches only so far.
            0 => shape.blocks(shape.max_ids.saturating_mul(lanes), WIDE, 1).min((shape.sms / 8).max(1)),
            chosen => chosen,
        };
        let walkers = LaunchShape::parts(shape.sms) / (WIDE / 32);
        let shared = shape.max_ids.clamp(SORTED_IDS, SMALL_IDS).next_power_of_two() as u32 * 8;
        let submitters = lookup.queues.sets * lookup.queues.drives;
        let fetch = step("the kernel `fetch`", self.fetch, submitters + gatherers);
        // Few writers: each takes the room of a block that reads from drives.
        let writers = shape.blocks(shape.max_ids.saturating_mul(lanes), WIDE, 1).min((shape.sms / 8).max(1));
        let few_shared = (FEW_BYTES * shape.max_ids.clamp(FEW_SORTED, FEW_IDS).next_power_of_two()) as u32;
        let few_step = |ahead: bool| Step {
            shared: few_shared,
            how: u32::from(ahead),
            ..step("the kernel `few`", self.few[knowing], submitters + writers)
        };
        let plain_expand = for_rows(step("the kernel `expand`", self.expand[rich][pooled], by_rows(8)));
        let few = plain_expand.blocks <= shape.sms / 8;
        // Where the kernel that looks at ids writes rows, little is left; and what looks at ids has as many blocks as serve memory best.
        let serves = cached.is_some() && pooled == 0 && kind == LookupKind::Large;
        let plain_expand = match serves {
            true => Step { blocks: shape.blocks(shape.max_ids, WIDE, 4), ..plain_expand },
            false => plain_expand,
        };
        // Of a plan with a cache, blocks more keep what was read: four lanes look for a row's line.
        let keepers = cached.map_or(0, |_| shape.blocks(shape.max_ids.saturating_mul(4), WIDE, 2));
        let expand = Step {
            function: cached.map_or(plain_expand.function, |cached| cached.expand[pooled]),
            blocks: plain_expand.blocks + keepers,
            ..plain_expand
        };
        // So few blocks of it as take no room from other work may wait on the GPU for drives.
        let fetch = |early| Step { how: u32::from(early && self.overlap()), ..fetch };
        let one = lookup.plan.feature_count == 1 && pooled == 0 && lookup.plan.follows == 0;
        let direct = if one { self.direct_one[rich] } else { self.direct[if updated == 0 { rich } else { 2 }][pooled] };
        // Of bags two fit at once, and twice as many share the work better.
        let direct_per_sm = if pooled == 0 { 5 } else { 4 };
        let prepare = cached.map_or(self.prepare[knowing], |cached| cached.prepare);
        let prepare = Step { threads: SMALL_THREADS, shared, ..step("the kernel `prepare`", prepare, 1) };
        let begin = Step { threads: cached.map_or(1, |_| 64), ..step("the kernel `begin`", self.begin, 1) };
        let mark = cached.map_or(self.mark[knowing], |cached| cached.mark);
        let mark = step("the kernel `mark`", mark, by_ids);
        let count = step("the kernel `count`", self.count, walkers);
        let place = step("the kernel `place`", self.place, walkers);
        let by_tiles = shape.blocks(shape.max_ids, SORT_TILE as u32, 4);
        let sweep = step("the kernel `sweep`", self.sweep, by_tiles);
        let sweep = |number| (number < lookup.sort.sweeps).then_some(Step { how: number, ..sweep });
        let rank = step("the kernel `rank`", self.rank, by_ids);
        let number = step("the kernel `number`", self.number, by_tiles);
        let collectors = shape.blocks(shape.max_ids, if cached.is_some() { WIDE } else { COLLECTED }, 4);
        let hash = step("the kernel `hash`", cached.map_or(self.hash[knowing], |cached| cached.hash), collectors);
        let list = step("the kernel `list`", cached.map_or(self.list[knowing], |cached| cached.list), collectors);
        let finishers = if cached.is_some() { shape.blocks(shape.max_ids, WIDE, 2) } else { by_ids };
        let finish = step("the kernel `finish`", self.finish, finishers);
        let rest = Step { threads: 1, ..step("the kernel `rest`", self.rest, 1) };
        let expand = |how| Step { how: how | (expansion::KEEPERS * keepers), ..expand };
        let unwritten = step("the kernel `expand_unwritten`", self.expand_unwritten, by_ids);
        let none = None;
        let sorted =
            |first, last| [Some(begin), Some(first), sweep(0), sweep(1), sweep(2), sweep(3), sweep(4), Some(last)];
        let unique = |ahead| match (ahead, lookup.keys.dedupe) {
            (PrefetchKind::Few | PrefetchKind::Small, _) => [Some(prepare), none, none, none, none, none, none, none],
            (PrefetchKind::Large, dedupe::HASH) => sorted(hash, rank),
            (PrefetchKind::Large, dedupe::RADIX) => sorted(list, number),
            (PrefetchKind::Large, _) => [Some(begin), Some(mark), Some(count), Some(place), none, none, none, none],
        };
        let (unique, then) = match kind {
            LookupKind::Direct => {
                ([none; 8], [Some(for_rows(step("the kernel `direct`", direct, by_rows(direct_per_sm)))), none, none])
            }
            LookupKind::Few => ([none; 8], [Some(few_step(false)), none, none]),
            LookupKind::Ahead(PrefetchKind::Few) => ([none; 8], [Some(few_step(true)), none, none]),
            LookupKind::Small => (unique(PrefetchKind::Small), [Some(fetch(few)), Some(expand(expansion::ENDS)), none]),
            // Where `expand` reads nothing of the sort's, it clears what the sort leaves.
            LookupKind::Large if cached.is_some() && lookup.keys.dedupe == dedupe::RADIX => {
                let last = expand(expansion::ENDS | expansion::CLEARS);
                (unique(PrefetchKind::Large), [Some(fetch(false)), Some(last), none])
            }
            LookupKind::Large => {
                let written = lookup.queues.writes_output != 0;
                let output = if written { unwritten } else { expand(0) };
                (unique(PrefetchKind::Large), [Some(fetch(false)), Some(output), Some(finish)])
            }
            LookupKind::Ahead(ahead) => (unique(ahead), [Some(fetch(true)), Some(rest), none]),
            LookupKind::Mask => ([none; 8], [Some(step("the kernel `mask`", self.mask, by_ids)), none, none]),
            LookupKind::Rest(PrefetchKind::Few | PrefetchKind::Small) => {
                ([none; 8], [Some(expand(expansion::ENDS | expansion::FETCHED)), none, none])
            }
            LookupKind::Rest(PrefetchKind::Large) => {
                ([none; 8], [Some(expand(expansion::FETCHED)), Some(finish), none])
            }
            LookupKind::Forget => ([none; 8], [Some(finish), none, none]),
        };
        // What looks at ids first is preceded by what leaves some of them to be counted.
        let looks = !matches!(kind, LookupKind::Mask | LookupKind::Rest(_) | LookupKind::Forget);
        let by_samples = shape.blocks(shape.max_ids.div_ceil(SAMPLED_OF), WIDE, 1);
        let sample =
            (looks && lookup.slot.sampling != 0).then_some(step("the kernel `sample`", self.sample, by_samples));
        [sample].into_iter().chain(unique).chain(then).flatten()
    }

    /// Launches a look-up on `stream`, kernel by kernel; a stream that is being captured records them. For
    /// [`LookupKind::Direct`], `lookup.slot.state` is a state of the ticket's own.
    ///
    /// # Safety
    /// The context of the kernels is current and the stream is one of its. Every address of `lookup` is valid for what
    /// `abi.rs` says of it, until the launch has ended; its numbers agree with each other.
    pub unsafe fn launch(
        &self,
        stream: CUstream,
        kind: LookupKind,
        lookup: &Lookup,
        shape: &LaunchShape,
    ) -> Result<(), KernelError> {
        for (index, step) in self.steps(kind, lookup, shape).enumerate() {
            let mut parameters = step.parameters(lookup);
            let mut overlap = CUlaunchAttribute {
                id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                pad: [0; 4],
                value: CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
            };
            let config = CUlaunchConfig {
                gridDimX: step.blocks,
                gridDimY: 1,
                gridDimZ: 1,
                blockDimX: step.threads,
                blockDimY: 1,
                blockDimZ: 1,
                sharedMemBytes: step.shared,
                hStream: stream,
                attrs: &mut overlap,
                numAttrs: u32::from(self.overlap() && index != 0),
            };
            // SAFETY: the function takes these parameters, or the first of them; the rest is the caller's promise.
            KernelError::check(step.what, unsafe {
                sys::cuLaunchKernelEx(&config, step.function, parameters.as_mut_ptr(), ptr::null_mut())
            })?;
        }
        Ok(())
    }
}

impl Kernels {
    /// Launches the replacement of the descriptions of so many states.
    ///
    /// # Safety
    /// The context of the kernels is current and the stream is one of its. Every address of `adoption` is valid for what `abi.rs`
    /// says of it, until the launch has ended.
    pub unsafe fn adopt(&self, stream: CUstream, adoption: &Adoption, states: u32) -> Result<(), KernelError> {
        let mut parameters = [ptr::from_ref(adoption).cast_mut().cast()];
        // SAFETY: the function takes this parameter; the rest is the caller's promise.
        KernelError::check("the kernel `adopt`", unsafe {
            let parameters = parameters.as_mut_ptr();
            sys::cuLaunchKernel(self.adopt, states, 1, 1, 64, 1, 1, 0, stream, parameters, ptr::null_mut())
        })
    }

    /// Launches an update of rows. Those of one overlay follow each other on one stream.
    ///
    /// # Safety
    /// The context of the kernels is current and the stream is one of its. Every address of `update` is valid for what `abi.rs` says of
    /// it, until the launch has ended; launches read no record, row or word that it writes to, but words of the side that they read.
    pub unsafe fn update(&self, stream: CUstream, update: &Update) -> Result<(), KernelError> {
        let mut parameters = [ptr::from_ref(update).cast_mut().cast()];
        // SAFETY: the function takes this parameter; the rest is the caller's promise.
        KernelError::check("the kernel `update`", unsafe {
            let parameters = parameters.as_mut_ptr();
            sys::cuLaunchKernel(self.update, 1, 1, 1, 1024, 1, 1, 0, stream, parameters, ptr::null_mut())
        })
    }
}

/// Up to how many ids the kernels `few` have room for in shared memory, of which they may take all that there is; 0: not even for the fewest.
fn few_ids(kernels: &[CUfunction]) -> Result<u64, KernelError> {
    let mut device = 0;
    // SAFETY: a context is current; a number is stored.
    KernelError::check("the device", unsafe { sys::cuCtxGetDevice(&mut device) })?;
    let mut most = 0;
    let attribute = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
    // SAFETY: as before.
    KernelError::check("shared memory", unsafe { sys::cuDeviceGetAttribute(&mut most, attribute, device) })?;
    let mut ids = FEW_IDS;
    for &function in kernels {
        let mut own = 0;
        let attribute = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
        // SAFETY: the function is one of the module's; a number is stored.
        KernelError::check("shared memory", unsafe { sys::cuFuncGetAttribute(&mut own, attribute, function) })?;
        let room = u64::try_from(most - own).unwrap_or(0).min(FEW_BYTES * FEW_IDS);
        let attribute = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is one of the module's.
        let set = unsafe { sys::cuFuncSetAttribute(function, attribute, room as i32) };
        KernelError::check("shared memory", set)?;
        // The sort takes a power of two of words.
        let words = room / FEW_BYTES;
        ids = ids.min(if words < FEW_SORTED { 0 } else { 1 << words.ilog2() });
    }
    Ok(ids)
}

impl Kernels {
    /// Launches a sweep of a cache. Sweeps of one cache follow each other.
    ///
    /// # Safety
    /// The context of the kernels is current and the stream is one of its. Every address of `sweep` is valid for what `abi.rs` says of
    /// it, until the launch has ended.
    pub unsafe fn sweep_cache(&self, stream: CUstream, sweep: &CacheSweep) -> Result<(), KernelError> {
        let mut parameters = [ptr::from_ref(sweep).cast_mut().cast()];
        // SAFETY: the function takes this parameter; the rest is the caller's promise.
        KernelError::check("the kernel `sweep_cache`", unsafe {
            let parameters = parameters.as_mut_ptr();
            sys::cuLaunchKernel(self.sweep_cache, 1, 1, 1, 1024, 1, 1, 0, stream, parameters, ptr::null_mut())
        })
    }

    /// Has rows stay in a cache, or lets them go. Pins and sweeps of one cache follow each other.
    ///
    /// # Safety
    /// The context of the kernels is current and the stream is one of its. Every address of `pin` is valid for what `abi.rs` says of
    /// it, until the launch has ended.
    pub unsafe fn pin_cache(&self, stream: CUstream, pin: &CachePin) -> Result<(), KernelError> {
        let mut parameters = [ptr::from_ref(pin).cast_mut().cast()];
        let blocks = pin.count.div_ceil(u64::from(WIDE)).clamp(1, 64) as u32;
        // SAFETY: the function takes this parameter; the rest is the caller's promise.
        KernelError::check("the kernel `pin_cache`", unsafe {
            let parameters = parameters.as_mut_ptr();
            sys::cuLaunchKernel(self.pin_cache, blocks, 1, 1, WIDE, 1, 1, 0, stream, parameters, ptr::null_mut())
        })
    }
}
