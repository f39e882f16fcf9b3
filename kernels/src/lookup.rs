//! Launches of a look-up.

use std::ffi::{CStr, c_uint, c_void};
use std::ptr;

use cudarc::driver::sys::{self, CUfunction, CUfunction_attribute_enum, CUmodule, CUstream};

use crate::abi::Lookup;
use crate::{Arch, KernelError, compile};

/// Up to so many ids one block prepares a look-up, and it takes three launches.
pub const SMALL_IDS: u64 = 8192;

/// Threads of a block, as in the sources.
const WIDE: u32 = 256;
const SMALL_THREADS: u32 = 1024;

/// The kernels, loaded into a context.
#[derive(Debug)]
pub struct Kernels {
    module: CUmodule,
    begin: CUfunction,
    mark: CUfunction,
    count: CUfunction,
    place: CUfunction,
    prepare: CUfunction,
    fetch: CUfunction,
    expand: CUfunction,
    finish: CUfunction,
    direct: CUfunction,
}

// SAFETY: CUDA's handles of modules and functions may be used from any thread; the context is their callers' business.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

/// How many blocks a look-up takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Streaming multiprocessors of the GPU.
    pub sms: u32,
    /// The most ids that the launch may find: the host's count, or what was planned if the count is in device memory.
    pub max_ids: u64,
    /// The most output rows or bags.
    pub max_rows: u64,
    /// Blocks that gather rows from DRAM; 0: as many as serve the bus best.
    pub gatherers: u32,
}

impl Shape {
    /// Warps that `count` and `place` run with: words of `Lookup::parts`.
    pub const fn parts(sms: u32) -> u32 {
        sms * 8 * (WIDE / 32)
    }

    /// Blocks of `threads` for `work` items, at most `per_sm` on each SM.
    fn blocks(&self, work: u64, threads: u32, per_sm: u32) -> u32 {
        work.div_ceil(u64::from(threads)).clamp(1, u64::from(self.sms * per_sm)) as u32
    }
}

impl Kernels {
    /// Compiles the kernels for `arch`, or takes them from the cache, and loads all of them. (CUDA would else load each at its
    /// first launch, and could wait for others to end.)
    ///
    /// # Safety
    /// CUDA is initialised, and a context of a device of that architecture is current. It outlives the result.
    pub unsafe fn load(arch: Arch, driver_version: i32) -> Result<Self, KernelError> {
        let code = compile(arch, driver_version)?;
        let mut module = ptr::null_mut();
        // SAFETY: the code is an image for this device, complete by its checksum or fresh from the compiler.
        KernelError::check("the kernels", unsafe { sys::cuModuleLoadData(&mut module, code.as_ptr().cast()) })?;
        let function = |name: &'static CStr| {
            let mut function = ptr::null_mut();
            // SAFETY: the module is loaded; the name ends with a zero.
            KernelError::check("a kernel", unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()) })?;
            // SAFETY: the function is one of the module's.
            KernelError::check("loading a kernel", unsafe { sys::cuFuncLoad(function) })?;
            Ok(function)
        };
        let load = || {
            let prepare = function(c"warprow_prepare")?;
            let attribute = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is one of the module's.
            let set = unsafe { sys::cuFuncSetAttribute(prepare, attribute, SMALL_IDS as i32 * 8) };
            KernelError::check("64 KiB of shared memory", set)?;
            Ok(Self {
                module,
                begin: function(c"warprow_begin")?,
                mark: function(c"warprow_mark")?,
                count: function(c"warprow_count")?,
                place: function(c"warprow_place")?,
                prepare,
                fetch: function(c"warprow_fetch")?,
                expand: function(c"warprow_expand")?,
                finish: function(c"warprow_finish")?,
                direct: function(c"warprow_direct")?,
            })
        };
        load().inspect_err(|_| {
            // SAFETY: nothing of it was launched.
            unsafe { sys::cuModuleUnload(module) };
        })
    }

    /// Launches a look-up that needs no slot, of a plan without rows on drives: 1 kernel. `lookup.slot` is a state of the
    /// ticket's own.
    ///
    /// # Safety
    /// As for [`launch`](Self::launch).
    pub unsafe fn launch_direct(&self, stream: CUstream, lookup: &Lookup, shape: &Shape) -> Result<(), KernelError> {
        let rows = shape.max_rows * if lookup.pooled != 0 { 32 } else { 1 << lookup.lanes };
        let mut parameters = [ptr::from_ref(lookup).cast_mut().cast::<c_void>()];
        let (grid, none) = (shape.blocks(rows, WIDE, 8), ptr::null_mut());
        // SAFETY: the kernel takes one parameter, this; the rest is the caller's promise.
        KernelError::check("the kernel `direct`", unsafe {
            sys::cuLaunchKernel(self.direct, grid, 1, 1, WIDE, 1, 1, 0, stream, parameters.as_mut_ptr(), none)
        })
    }

    /// Launches a look-up on `stream`: 3 kernels up to [`SMALL_IDS`] ids, else 7.
    ///
    /// # Safety
    /// The context of the kernels is current and the stream is one of its. Every address of `lookup` is valid for what
    /// `abi.rs` says of it, until the launch has ended; its numbers agree with each other.
    pub unsafe fn launch(&self, stream: CUstream, lookup: &Lookup, shape: &Shape) -> Result<(), KernelError> {
        let parameter = ptr::from_ref(lookup).cast_mut().cast::<c_void>();
        let small = shape.max_ids <= SMALL_IDS;
        let mut ends = c_uint::from(small);
        let launch = |what, function, grid: u32, threads: u32, shared: u32, parameters: &mut [*mut c_void]| {
            // SAFETY: the function takes these parameters; the rest is the caller's promise.
            KernelError::check(what, unsafe {
                sys::cuLaunchKernel(
                    function,
                    grid,
                    1,
                    1,
                    threads,
                    1,
                    1,
                    shared,
                    stream,
                    parameters.as_mut_ptr(),
                    ptr::null_mut(),
                )
            })
        };
        let only = &mut [parameter];
        let by_ids = shape.blocks(shape.max_ids, WIDE, 8);
        if small {
            let shared = shape.max_ids.max(1).next_power_of_two() as u32 * 8;
            launch("the kernel `prepare`", self.prepare, 1, SMALL_THREADS, shared, only)?;
        } else {
            let walkers = Shape::parts(shape.sms) / (WIDE / 32);
            launch("the kernel `begin`", self.begin, 1, 1, 0, only)?;
            launch("the kernel `mark`", self.mark, by_ids, WIDE, 0, only)?;
            launch("the kernel `count`", self.count, walkers, WIDE, 0, only)?;
            launch("the kernel `place`", self.place, walkers, WIDE, 0, only)?;
        }
        let lanes = 1u64 << lookup.lanes;
        let gatherers = match shape.gatherers {
            // Few: what they read at a time is a window on the table, and the GPU reaches only so far.
            0 => shape.blocks(shape.max_ids * lanes, WIDE, 1).min((shape.sms / 4).max(1)),
            chosen => chosen,
        };
        let fetchers = lookup.sets * lookup.drives + gatherers;
        launch("the kernel `fetch`", self.fetch, fetchers, WIDE, 0, only)?;
        let rows = shape.max_rows * if lookup.pooled != 0 { 32 } else { lanes };
        let expanders = shape.blocks(rows, WIDE, 8);
        let with_end = &mut [parameter, ptr::from_mut(&mut ends).cast()];
        launch("the kernel `expand`", self.expand, expanders, WIDE, 0, with_end)?;
        if small { Ok(()) } else { launch("the kernel `finish`", self.finish, by_ids, WIDE, 0, only) }
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        // SAFETY: loaded once, unloaded once. Launches have ended: their tickets' owners see to it.
        unsafe { sys::cuModuleUnload(self.module) };
    }
}
