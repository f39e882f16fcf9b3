//! Look-ups as CUDA graphs of our own. To launch a graph costs the host about 2 µs, whatever it holds; seven launches cost 25.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{
    self, CUDA_KERNEL_NODE_PARAMS, CUgraph, CUgraphDependencyType, CUgraphEdgeData, CUgraphExec, CUgraphNode, CUstream,
};

use warprow_gpu_queues::{Gpu, RelaxedCapture};

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
        // CUDA forbids that a graph is made executable beside a capture of the mode *global*, also one of another thread.
        let _relaxed = RelaxedCapture::new();
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
        let steps = kernels.steps(self.kind, lookup, shape);
        replace_steps(&mut self.steps, steps, other, |at, step| {
            let mut parameters = step.parameters(lookup);
            let params = node_params(step, &mut parameters);
            // SAFETY: the node is one of this graph; the parameters are those of its function, and are copied. Launches before
            // keep theirs.
            let set = unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.exec, self.nodes[at], &params) };
            KernelError::check(step.what, set)
        })?;
        self.lookup = *lookup;
        // SAFETY: the caller's promise.
        KernelError::check("a look-up", unsafe { sys::cuGraphLaunch(self.exec, stream) })
    }
}

/// Replaces the steps that nodes hold: `set` is called for those that differ, for all of them if `all`. A graph has as many nodes as
/// the look-up that it was made of had steps. A look-up of more or fewer would lose kernels, or run kernels of another: that is an error.
fn replace_steps(
    held: &mut [Step],
    steps: impl Iterator<Item = Step>,
    all: bool,
    mut set: impl FnMut(usize, &Step) -> Result<(), KernelError>,
) -> Result<(), KernelError> {
    let nodes = held.len();
    let mut count = 0;
    for (at, step) in steps.enumerate() {
        count = at + 1;
        let Some(held) = held.get_mut(at).filter(|held| all || step != **held) else { continue };
        set(at, &step)?;
        *held = step;
    }
    if count == nodes { Ok(()) } else { Err(KernelError::OtherSteps { nodes, steps: count }) }
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
        let _relaxed = RelaxedCapture::new();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// So many steps, each of so many blocks.
    fn steps(count: u32, blocks: u32) -> Vec<Step> {
        let step = |number| Step {
            what: "a kernel",
            function: ptr::null_mut(),
            blocks: if number == 1 { blocks } else { 1 },
            threads: 32,
            shared: 0,
            how: number,
        };
        (0..count).map(step).collect()
    }

    /// Which nodes are set for these steps, and the outcome.
    fn replaced(held: &mut [Step], steps: Vec<Step>, all: bool) -> (Vec<usize>, Result<(), KernelError>) {
        let mut set = Vec::new();
        let outcome = replace_steps(held, steps.into_iter(), all, |at, _| {
            set.push(at);
            Ok(())
        });
        (set, outcome)
    }

    #[test]
    fn nodes_whose_steps_differ_are_set() {
        let mut held = steps(3, 1);
        assert!(matches!(replaced(&mut held, steps(3, 1), false), (set, Ok(())) if set.is_empty()));
        assert!(matches!(replaced(&mut held, steps(3, 9), false), (set, Ok(())) if set == [1]));
        assert_eq!(held, steps(3, 9));
        assert!(matches!(replaced(&mut held, steps(3, 9), true), (set, Ok(())) if set == [0, 1, 2]));
        // What could not be set is not held.
        let refused = |_, _: &Step| Err(KernelError::OtherSteps { nodes: 0, steps: 0 });
        assert!(replace_steps(&mut held, steps(3, 4).into_iter(), false, refused).is_err());
        assert_eq!(held, steps(3, 9));
    }

    #[test]
    fn a_look_up_of_more_or_fewer_kernels_than_the_graph_has_is_an_error() {
        for (nodes, asked) in [(3, 4), (3, 2), (3, 0), (0, 1)] {
            for all in [false, true] {
                let (set, outcome) = replaced(&mut steps(nodes, 1), steps(asked, 9), all);
                assert!(set.iter().all(|&at| at < nodes as usize), "{set:?}");
                assert!(
                    matches!(outcome, Err(KernelError::OtherSteps { nodes: had, steps }) if (had, steps) == (nodes as usize, asked as usize)),
                    "{nodes} nodes, {asked} steps: {outcome:?}"
                );
            }
        }
    }
}
