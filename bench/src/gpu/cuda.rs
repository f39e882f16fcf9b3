//! Streams, events, and the kernels of rivals.

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use cudarc::driver::sys::{self, CUevent, CUfunction, CUgraphExec, CUmodule, CUresult, CUstream};
use cudarc::nvrtc::sys as nvrtc;
use warprow_gpu_queues::Gpu;

/// A rival's sources.
const SOURCE: &str = include_str!("rivals.cu");

fn cuda(what: &str, code: CUresult) -> anyhow::Result<()> {
    ensure!(code == CUresult::CUDA_SUCCESS, "{what}: {code:?}");
    Ok(())
}

/// A stream of its own, with two events to take times by.
#[derive(Debug)]
pub struct Stream {
    stream: CUstream,
    events: [CUevent; 2],
    gpu: Arc<Gpu>,
}

impl Stream {
    /// A stream that does not wait for the default one.
    pub fn new(gpu: &Arc<Gpu>) -> anyhow::Result<Self> {
        let _current = gpu.enter()?;
        let (mut stream, mut events) = (ptr::null_mut(), [ptr::null_mut(); 2]);
        // SAFETY: a context is current; handles are stored.
        unsafe {
            cuda("a stream", sys::cuStreamCreate(&mut stream, 1))?;
            for event in &mut events {
                cuda("an event", sys::cuEventCreate(event, 0))?;
            }
        }
        Ok(Self { stream, events, gpu: gpu.clone() })
    }

    /// The handle.
    pub fn raw(&self) -> CUstream {
        self.stream
    }

    /// How long what `work` launches on the stream takes, by the GPU.
    pub fn time<R>(&self, work: impl FnOnce() -> anyhow::Result<R>) -> anyhow::Result<(Duration, R)> {
        let _current = self.gpu.enter()?;
        let mut milliseconds = 0f32;
        // SAFETY: events and stream are of this context.
        unsafe {
            cuda("an event", sys::cuEventRecord(self.events[0], self.stream))?;
            let result = work()?;
            cuda("an event", sys::cuEventRecord(self.events[1], self.stream))?;
            cuda("waiting", sys::cuEventSynchronize(self.events[1]))?;
            cuda("a time", sys::cuEventElapsedTime_v2(&mut milliseconds, self.events[0], self.events[1]))?;
            Ok((Duration::from_secs_f64(f64::from(milliseconds) / 1e3), result))
        }
    }

    /// Records what `work` launches on the stream, without running it.
    pub fn capture<R>(&self, work: impl FnOnce() -> anyhow::Result<R>) -> anyhow::Result<(Graph, R)> {
        let _current = self.gpu.enter()?;
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let (mut graph, mut exec) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the stream is of this context; capture begins and ends on this thread, whatever `work` answers.
        unsafe {
            cuda("a capture", sys::cuStreamBeginCapture_v2(self.stream, mode))?;
            let result = work();
            cuda("a capture", sys::cuStreamEndCapture(self.stream, &mut graph))?;
            let made = sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0);
            sys::cuGraphDestroy(graph);
            cuda("a graph", made)?;
            Ok((Graph { exec, gpu: self.gpu.clone() }, result?))
        }
    }

    /// Launches a graph.
    pub fn launch(&self, graph: &Graph) -> anyhow::Result<()> {
        let _current = self.gpu.enter()?;
        // SAFETY: both are of this context.
        cuda("a graph", unsafe { sys::cuGraphLaunch(graph.exec, self.stream) })
    }

    /// Copies pinned memory to the GPU.
    ///
    /// # Safety
    /// `to` has room for `bytes` on the GPU, `from` is pinned memory of as many, and both stay until the stream has come so far.
    pub unsafe fn copy(&self, to: u64, from: *const u8, bytes: usize) -> anyhow::Result<()> {
        // SAFETY: the caller's promise.
        cuda("a copy", unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, self.stream) })
    }
}

/// Launches that were recorded.
#[derive(Debug)]
pub struct Graph {
    exec: CUgraphExec,
    gpu: Arc<Gpu>,
}

impl Drop for Graph {
    fn drop(&mut self) {
        let Ok(_current) = self.gpu.enter() else { return };
        // SAFETY: instantiated once, destroyed once.
        unsafe { sys::cuGraphExecDestroy(self.exec) };
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Ok(_current) = self.gpu.enter() else { return };
        // SAFETY: all are of this context, and destroyed once.
        unsafe {
            for event in self.events {
                sys::cuEventDestroy_v2(event);
            }
            sys::cuStreamDestroy_v2(self.stream);
        }
    }
}

/// The kernels of rivals, compiled for the GPU that is there.
#[derive(Debug)]
pub struct Rivals {
    module: CUmodule,
    gather: CUfunction,
    gpu: Arc<Gpu>,
}

impl Rivals {
    /// Compiles and loads them.
    pub fn new(gpu: &Arc<Gpu>) -> anyhow::Result<Self> {
        let _current = gpu.enter()?;
        let (major, minor) = gpu.capability();
        let code = compile(&format!("--gpu-architecture=sm_{major}{minor}"))?;
        let (mut module, mut gather) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: an image for this device; names end with a zero.
        unsafe {
            cuda("the rivals' kernels", sys::cuModuleLoadData(&mut module, code.as_ptr().cast()))?;
            cuda("a rival's kernel", sys::cuModuleGetFunction(&mut gather, module, c"gather".as_ptr()))?;
        }
        Ok(Self { module, gather, gpu: gpu.clone() })
    }

    /// Gathers rows as PyTorch-Direct does: a load for each 16 bytes, in the order of the request, without deduplication.
    ///
    /// # Safety
    /// `table` has a row of `quads` · 16 bytes for each of the `count` ids (i64) at `ids`, and `out` has room for them.
    pub unsafe fn gather(
        &self,
        stream: &Stream,
        table: u64,
        ids: u64,
        out: u64,
        count: u64,
        quads: u64,
    ) -> anyhow::Result<()> {
        let mut values = [table, ids, out, count, quads];
        let mut parameters = values.each_mut().map(|value| ptr::from_mut(value).cast::<c_void>());
        let blocks = (count * quads).div_ceil(256).clamp(1, u64::from(self.gpu.sms()) * 16) as u32;
        // SAFETY: five parameters of 64 bits, as the kernel has; the rest is the caller's promise.
        let launched = unsafe {
            sys::cuLaunchKernel(
                self.gather,
                blocks,
                1,
                1,
                256,
                1,
                1,
                0,
                stream.stream,
                parameters.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        cuda("a rival's kernel", launched)
    }
}

impl Drop for Rivals {
    fn drop(&mut self) {
        let Ok(_current) = self.gpu.enter() else { return };
        // SAFETY: loaded once; nothing of it runs any more, for every use was waited for.
        unsafe { sys::cuModuleUnload(self.module) };
    }
}

fn compile(architecture: &str) -> anyhow::Result<Vec<u8>> {
    // SAFETY: it looks for a library and calls nothing in it.
    ensure!(unsafe { nvrtc::is_culib_present() }, "libnvrtc cannot be found: the rivals' kernels need it");
    let (source, architecture) = (CString::new(SOURCE)?, CString::new(architecture)?);
    let options = [architecture.as_ptr()];
    let (mut program, mut size) = (ptr::null_mut(), 0);
    // SAFETY: strings end with a zero and outlive the calls; the buffer has the size asked for.
    unsafe {
        let ok = nvrtc::nvrtcResult::NVRTC_SUCCESS;
        let (none, name) = (ptr::null(), c"rivals.cu");
        let created = nvrtc::nvrtcCreateProgram(&mut program, source.as_ptr(), name.as_ptr(), 0, none, none);
        ensure!(created == ok, "the rivals' program: {created:?}");
        let compiled = nvrtc::nvrtcCompileProgram(program, 1, options.as_ptr());
        if compiled != ok {
            bail!("the rivals' kernels do not compile: {compiled:?}");
        }
        let sized = nvrtc::nvrtcGetCUBINSize(program, &mut size);
        let mut code = vec![0u8; size];
        let taken = nvrtc::nvrtcGetCUBIN(program, code.as_mut_ptr().cast());
        nvrtc::nvrtcDestroyProgram(&mut program);
        ensure!(sized == ok && taken == ok, "no code of the rivals' kernels");
        Some(code).filter(|code| !code.is_empty()).context("no code of the rivals' kernels")
    }
}
