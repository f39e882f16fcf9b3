//! Look-ups as CUDA graphs of our own. To launch a graph costs the host about 2 µs, whatever it holds; seven launches cost 25.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{
    self, CUDA_KERNEL_NODE_PARAMS, CUgraph, CUgraphDependencyType, CUgraphEdgeData, CUgraphExec, CUgraphNode, CUstream,
};

use warprow_gpu_queues::Gpu;

use crate::abi::Lookup;
use crate::lookup::{LookupKind, Step};
use crate::{KernelError, Kernels, LaunchShape};

/// A look-up of one kind, ready to be launched again and again with other parameters.
#[derive(Debug)]
pub struct LookupGraph {
    kind: LookupKind,
    graph: CUgraph,
    exec: CUgraphExec,
    nodes: Vec<CUgraphNode>,
    /// What the nodes hold.
    steps: Vec<Step>,
    lookup: Lookup,
    gpu: Arc<Gpu>,
}

// SAFETY: handles of CUDA's that may be used from any thread, one at a time.
unsafe impl Send for LookupGraph {}

impl LookupGraph {
    /// Makes a graph of the kernels of that kind, for look-ups of about that shape, like `like` in what chooses kernels: the number
    /// of features, whether they are pooled, whether tables are replaced or updated, what kernels have to be able to, how unique keys are
    /// found, whether ids are counted. All that a
    /// launch needs is allocated now.
    ///
    /// # Safety
    /// The context of `gpu` is current; the kernels are in it, and outlive the graph and its launches.
    pub unsafe fn new(
        gpu: &Arc<Gpu>,
        kernels: &Kernels,
        kind: LookupKind,
        like: &Lookup,
        shape: &LaunchShape,
    ) -> Result<Self, KernelError> {
        let lookup = *like;
        let steps: Vec<Step> = kernels.steps(kind, &lookup, shape).collect();
        let graph = ptr::null_mut();
        let exec = ptr::null_mut();
        let mut this = Self { kind, graph, exec, nodes: Vec::new(), steps, lookup, gpu: gpu.clone() };
        // SAFETY: it stores a handle, which is destroyed with `this`.
        KernelError::check("a graph", unsafe { sys::cuGraphCreate(&mut this.graph, 0) })?;
        for step in &this.steps {
            let mut parameters = step.parameters(&lookup);
            let params = node_params(step, &mut parameters);
            let mut node = ptr::null_mut();
            let before = this.nodes.last();
            let after: Vec<CUgraphNode> = before.filter(|_| !kernels.overlap()).copied().into_iter().collect();
            // SAFETY: the graph is one, the parameters are those of the function, and are copied.
            KernelError::check("a graph's kernel", unsafe {
                sys::cuGraphAddKernelNode_v2(&mut node, this.graph, after.as_ptr(), after.len(), &params)
            })?;
            if let Some(before) = before.filter(|_| kernels.overlap()) {
                let edge = CUgraphEdgeData {
                    from_port: sys::CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC as u8,
                    to_port: 0,
                    type_: CUgraphDependencyType::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC as u8,
                    reserved: [0; 5],
                };
                // SAFETY: both are kernels of the graph, and the driver knows such edges.
                KernelError::check("a graph's order", unsafe {
                    sys::cuGraphAddDependencies_v2(this.graph, before, &node, &edge, 1)
                })?;
            }
            this.nodes.push(node);
        }
        // SAFETY: the graph is one; a handle is stored.
        KernelError::check("a graph", unsafe { sys::cuGraphInstantiateWithFlags(&mut this.exec, this.graph, 0) })?;
        // SAFETY: the graph can be launched, and its context is current.
        KernelError::check("a graph's upload", unsafe { sys::cuGraphUpload(this.exec, ptr::null_mut()) })?;
        Ok(this)
    }

    /// Launches it on `stream`, which is not being captured. Of one graph, launches follow each other on whatever streams.
    ///
    /// # Safety
    /// As for [`Kernels::launch`], and `kernels` are those that it was made of, for look-ups like this one.
    pub unsafe fn launch(
        &mut self,
        stream: CUstream,
        kernels: &Kernels,
        lookup: &Lookup,
        shape: &LaunchShape,
    ) -> Result<(), KernelError> {
        // Whoever comes after a failure sets everything.
        let other = *lookup != std::mem::take(&mut self.lookup);
        for ((step, held), &node) in kernels.steps(self.kind, lookup, shape).zip(&mut self.steps).zip(&self.nodes) {
            if !other && step == *held {
                continue;
            }
            *held = step;
            let mut parameters = step.parameters(lookup);
            let params = node_params(&step, &mut parameters);
            // SAFETY: the node is one of this graph; the parameters are those of its function, and are copied. Launches before
            // keep theirs.
            let set = unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.exec, node, &params) };
            KernelError::check(step.what, set)?;
        }
        self.lookup = *lookup;
        // SAFETY: the caller's promise.
        KernelError::check("a look-up", unsafe { sys::cuGraphLaunch(self.exec, stream) })
    }
}

fn node_params(step: &Step, parameters: &mut [*mut std::ffi::c_void; 2]) -> CUDA_KERNEL_NODE_PARAMS {
    // SAFETY: a structure of integers and pointers, of which all may be zero.
    let mut params: CUDA_KERNEL_NODE_PARAMS = unsafe { MaybeUninit::zeroed().assume_init() };
    params.func = step.function;
    (params.gridDimX, params.gridDimY, params.gridDimZ) = (step.blocks, 1, 1);
    (params.blockDimX, params.blockDimY, params.blockDimZ) = (step.threads, 1, 1);
    params.sharedMemBytes = step.shared;
    params.kernelParams = parameters.as_mut_ptr();
    params
}

impl Drop for LookupGraph {
    fn drop(&mut self) {
        let Ok(_current) = self.gpu.enter() else { return };
        // SAFETY: made once, destroyed once; launches under way finish all the same.
        unsafe {
            if !self.exec.is_null() {
                sys::cuGraphExecDestroy(self.exec);
            }
            if !self.graph.is_null() {
                sys::cuGraphDestroy(self.graph);
            }
        }
    }
}
