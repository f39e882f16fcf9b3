//! Captures that look-ups are recorded in, and what graphs keep.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;

use cudarc::driver::sys::{
    self, CUgraph, CUresult, CUstream, CUstreamCaptureStatus_enum as Status, CUuserObject_flags_enum,
    CUuserObjectRetain_flags_enum,
};
use warprow_gpu_queues::Gpu;

use crate::error::GpuError;
use crate::launch::cuda;

/// The capture that a stream is part of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capture {
    /// The number of the capture; no other capture of the process has it.
    pub id: u64,
    /// The graph that is being recorded, while the capture goes on.
    graph: CUgraph,
}

/// The function that runs when a graph is gone.
type LetGo = Box<dyn FnOnce() + Send>;

impl Capture {
    /// The capture of a stream; `None`: the stream is not being captured. The GPU's context is current.
    pub(crate) fn of_stream(gpu: &Gpu, stream: CUstream) -> Result<Option<Self>, GpuError> {
        let invalidated = || {
            let why = "its capture has become invalid: end it, and begin another".to_owned();
            Err(GpuError::Invalid { what: "the stream", why })
        };
        if !stream.is_null() {
            let mut context = ptr::null_mut();
            // SAFETY: CUDA tells a stream from what is none, as far as it can; it stores a handle.
            match unsafe { sys::cuStreamGetCtx(stream, &mut context) } {
                CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED => return invalidated(),
                code => cuda("the stream", code)?,
            }
            if context != gpu.context() {
                let why = "it belongs to another context than the executor: use one of its".to_owned();
                return Err(GpuError::Invalid { what: "the stream", why });
            }
        }
        let mut status = Status::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is one; it stores a status.
        cuda("the stream's capture", unsafe { sys::cuStreamIsCapturing(stream, &mut status) })?;
        match status {
            Status::CU_STREAM_CAPTURE_STATUS_NONE => Ok(None),
            Status::CU_STREAM_CAPTURE_STATUS_INVALIDATED => invalidated(),
            Status::CU_STREAM_CAPTURE_STATUS_ACTIVE => Self::of_captured(stream).map(Some),
        }
    }

    fn of_captured(stream: CUstream) -> Result<Self, GpuError> {
        let mut status = Status::CU_STREAM_CAPTURE_STATUS_NONE;
        let mut this = Self { id: 0, graph: ptr::null_mut() };
        // Where the stream's latest nodes have edges with data, CUDA insists on telling all of it.
        let (mut nodes, mut edges, mut count) = (ptr::null(), ptr::null(), 0);
        // SAFETY: the stream is being captured. Numbers and handles are stored; the two arrays are not looked at.
        let asked = unsafe {
            sys::cuStreamGetCaptureInfo_v3(
                stream,
                &mut status,
                &mut this.id,
                &mut this.graph,
                &mut nodes,
                &mut edges,
                &mut count,
            )
        };
        cuda("the stream's capture", asked).map(|()| this)
    }

    /// Has `let_go` called when the graph that is being recorded, each copy of it, and each executable graph made of
    /// one of them is destroyed and has ended. A capture that fails is destroyed as well. CUDA calls it, from a thread
    /// of its own: it must not call CUDA, nor wait for anybody who does.
    pub(crate) fn keep(&self, let_go: LetGo) -> Result<(), GpuError> {
        let kept = Box::into_raw(Box::new(let_go));
        let mut object = ptr::null_mut();
        let flags = CUuserObject_flags_enum::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as u32;
        // SAFETY: a handle is stored; `call` takes what `kept` points to, and is called once.
        let made = unsafe { sys::cuUserObjectCreate(&mut object, kept.cast(), Some(call), 1, flags) };
        cuda("a graph's user object", made).inspect_err(|_| {
            // SAFETY: nobody else has it: no object was made.
            drop(unsafe { Box::from_raw(kept) });
        })?;
        let flags = CUuserObjectRetain_flags_enum::CU_GRAPH_USER_OBJECT_MOVE as u32;
        // SAFETY: the graph is one that is being recorded; the one reference goes to it.
        let retained = unsafe { sys::cuGraphRetainUserObject(self.graph, object, 1, flags) };
        cuda("a graph's user object", retained).inspect_err(|_| {
            // SAFETY: the reference is still this thread's.
            unsafe { sys::cuUserObjectRelease(object, 1) };
        })
    }
}

/// Calls what a graph has kept. A panic ends the process, as it must in a thread of CUDA's.
unsafe extern "C" fn call(kept: *mut c_void) {
    // SAFETY: it is what `keep` has made, and CUDA hands it out once.
    let let_go = unsafe { Box::from_raw(kept.cast::<LetGo>()) };
    let_go();
}
