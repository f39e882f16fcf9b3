//! Streams, graphs, and time: by the GPU with the launch hidden, and by the clock of the caller.

use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use cudarc::driver::sys::{self, CUevent, CUgraphExec, CUresult, CUstream};
use warprow_gpu_queues::{Gpu, PinnedMemory};

use super::Kernels;

/// How long the GPU holds the stream for what is being enqueued, at most.
const LONGEST_HOLD: Duration = Duration::from_millis(500);
/// So often whoever waits looks before it lets others on its core, among whom a drive's thread may be.
const LOOKS: u32 = 1000;
/// How long anything that is measured may take, by the clock.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

pub(super) fn cuda(what: &str, code: CUresult) -> anyhow::Result<()> {
    ensure!(code == CUresult::CUDA_SUCCESS, "{what}: {code:?}");
    Ok(())
}

/// A stream of its own, with two events to take times by.
#[derive(Debug)]
pub struct Stream {
    stream: CUstream,
    events: [CUevent; 2],
    /// Two words: which turn of `hold` may go on, and which waited too long.
    hold: PinnedMemory,
    turn: std::cell::Cell<u32>,
    kernels: Arc<Kernels>,
}

impl Stream {
    /// A stream that does not wait for the default one.
    pub fn new(kernels: &Arc<Kernels>) -> anyhow::Result<Self> {
        let gpu = kernels.gpu();
        let hold = PinnedMemory::allocate(gpu, 4096)?;
        let _current = gpu.enter()?;
        let mut stream = ptr::null_mut();
        let mut events = [ptr::null_mut(); 2];
        // SAFETY: a context is current; handles are stored.
        unsafe {
            cuda("a stream", sys::cuStreamCreate(&mut stream, 1))?;
            // Who waits sleeps: times are the GPU's, and a thread that spins would slow those that answer on the same cores.
            for event in &mut events {
                cuda("an event", sys::cuEventCreate(event, sys::CUevent_flags_enum::CU_EVENT_BLOCKING_SYNC as u32))?;
            }
        }
        Ok(Self { stream, events, hold, turn: 0.into(), kernels: kernels.clone() })
    }

    /// The handle.
    pub fn raw(&self) -> CUstream {
        self.stream
    }

    /// The kernels that it uses.
    pub fn kernels(&self) -> &Arc<Kernels> {
        &self.kernels
    }

    /// The GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        self.kernels.gpu()
    }

    /// How long what `work` launches on the stream takes, by the GPU: the stream is held until all of it has been enqueued, so
    /// that no launch is waited for.
    pub fn hidden<R>(&self, work: impl FnOnce() -> anyhow::Result<R>) -> anyhow::Result<(Duration, R)> {
        let _current = self.gpu().enter()?;
        let turn = self.turn.get().wrapping_add(1);
        self.turn.set(turn);
        self.kernels.hold(self, self.hold.address(), turn, LONGEST_HOLD)?;
        let mut milliseconds = 0f32;
        // SAFETY: events and stream are of this context.
        let enqueue = || unsafe {
            cuda("an event", sys::cuEventRecord(self.events[0], self.stream))?;
            let result = work()?;
            cuda("an event", sys::cuEventRecord(self.events[1], self.stream))?;
            anyhow::Ok(result)
        };
        let result = enqueue();
        // Whatever has become of it: the GPU waits for this.
        self.hold.memory().store_u32(0, turn);
        let result = result?;
        // SAFETY: as above.
        unsafe {
            cuda("waiting", sys::cuEventSynchronize(self.events[1]))?;
            cuda("a time", sys::cuEventElapsedTime_v2(&mut milliseconds, self.events[0], self.events[1]))?;
        }
        if self.hold.memory().load_u32(4) == turn {
            bail!("a launch took longer than {LONGEST_HOLD:?}: its time would be of no use");
        }
        Ok((Duration::from_secs_f64(f64::from(milliseconds) / 1e3), result))
    }

    /// How long it takes its caller until `work` has been launched, and until `done` says that it has ended (which gets what
    /// `work` returned). What is waited for in between polls, and sleeps never.
    pub fn seen<R>(
        &self,
        work: impl FnOnce() -> anyhow::Result<R>,
        done: impl Fn(&R) -> anyhow::Result<bool>,
    ) -> anyhow::Result<(Duration, R)> {
        let _current = self.gpu().enter()?;
        let began = Instant::now();
        let result = work()?;
        let mut looks = 0;
        while !done(&result)? {
            looks += 1;
            if looks > LOOKS {
                std::thread::yield_now();
            }
            if began.elapsed() > LONGEST_WAIT {
                self.wait()?;
                bail!("what was launched has not said within {LONGEST_WAIT:?} that it has ended");
            }
        }
        let took = began.elapsed();
        self.wait()?;
        Ok((took, result))
    }

    /// Whether everything launched so far has ended.
    pub fn is_done(&self) -> anyhow::Result<bool> {
        // SAFETY: the stream is of the context, which `seen` has made current; a stream's handle is enough for CUDA.
        match unsafe { sys::cuStreamQuery(self.stream) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => cuda("the stream", code).map(|()| true),
        }
    }

    /// Waits for everything launched so far.
    pub fn wait(&self) -> anyhow::Result<()> {
        let _current = self.gpu().enter()?;
        // SAFETY: the stream is of this context.
        cuda("waiting", unsafe { sys::cuStreamSynchronize(self.stream) })
    }

    /// Records what `work` launches on the stream, without running it, and makes it ready for launches.
    pub fn capture<R>(&self, work: impl FnOnce() -> anyhow::Result<R>) -> anyhow::Result<(Graph, R)> {
        let _current = self.gpu().enter()?;
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let mut graph = ptr::null_mut();
        let mut exec = ptr::null_mut();
        let mut nodes = 0;
        // SAFETY: the stream is of this context; capture begins and ends on this thread, whatever `work` answers.
        unsafe {
            cuda("a capture", sys::cuStreamBeginCapture_v2(self.stream, mode))?;
            let result = work();
            cuda("a capture", sys::cuStreamEndCapture(self.stream, &mut graph))?;
            let counted = sys::cuGraphGetNodes(graph, ptr::null_mut(), &mut nodes);
            let made = sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0);
            sys::cuGraphDestroy(graph);
            cuda("a graph", made)?;
            let graph = Graph { exec, nodes, gpu: self.gpu().clone() };
            cuda("a graph's nodes", counted)?;
            cuda("a graph", sys::cuGraphUpload(exec, self.stream))?;
            self.wait()?;
            Ok((graph, result?))
        }
    }

    /// Launches a graph.
    pub fn launch(&self, graph: &Graph) -> anyhow::Result<()> {
        // SAFETY: both are of one context, which they name to CUDA.
        cuda("a graph", unsafe { sys::cuGraphLaunch(graph.exec, self.stream) })
    }

    /// Copies pinned memory to the GPU.
    ///
    /// # Safety
    /// `to` has room for `bytes` on the GPU, `from` is pinned memory of as many, and both stay until the stream has come so far.
    pub unsafe fn copy(&self, to: u64, from: *const u8, bytes: usize) -> anyhow::Result<()> {
        let _current = self.gpu().enter()?;
        // SAFETY: the caller's promise.
        cuda("a copy", unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, self.stream) })
    }

    /// Copies memory of the GPU to other memory of it.
    ///
    /// # Safety
    /// Both are `bytes` bytes of the caller's, until the stream has come so far.
    pub unsafe fn copy_within(&self, to: u64, from: u64, bytes: usize) -> anyhow::Result<()> {
        let _current = self.gpu().enter()?;
        // SAFETY: the caller's promise.
        cuda("a copy", unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream) })
    }

    /// Sets memory of the GPU to a byte.
    ///
    /// # Safety
    /// `bytes` bytes at `to` are the caller's, until the stream has come so far.
    pub unsafe fn set(&self, to: u64, byte: u8, bytes: usize) -> anyhow::Result<()> {
        let _current = self.gpu().enter()?;
        // SAFETY: the caller's promise.
        cuda("setting memory", unsafe { sys::cuMemsetD8Async(to, byte, bytes, self.stream) })
    }
}

/// Launches that were recorded.
#[derive(Debug)]
pub struct Graph {
    exec: CUgraphExec,
    nodes: usize,
    gpu: Arc<Gpu>,
}

impl Graph {
    /// Nodes of the graph: kernels.
    pub fn nodes(&self) -> usize {
        self.nodes
    }
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
        let Ok(_current) = self.kernels.gpu().enter() else { return };
        // SAFETY: all are of this context, and destroyed once.
        unsafe {
            sys::cuStreamSynchronize(self.stream);
            for event in self.events {
                sys::cuEventDestroy_v2(event);
            }
            sys::cuStreamDestroy_v2(self.stream);
        }
    }
}
