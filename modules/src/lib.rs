//! Look-ups of one *module* of a model: a list of features on one device, whose output is a tensor.
//!
//! A [`ModuleSpec`] says where the rows lie and what is looked up. It has a text, which a compiled model carries, so
//! that another process, also one without Python, finds the store by it ([`registry`]). A [`ModuleLookup`] makes a
//! larger plan when it meets a larger batch, and has a slot for each stream of a GPU. The Python package and the C
//! interface both look up with it; the [`operators`] of PyTorch call it from C++.

mod arrays;
mod error;
mod gpu_lanes;
mod host_slots;
mod lookup;
pub mod operators;
mod pool;
pub mod registry;
mod spec;

pub use arrays::{Integers, slice, slice_mut};
pub use error::{ModuleError, set_interrupt, whole};
pub use host_slots::{HostAhead, HostSlots};
pub use lookup::{ModuleAhead, ModuleBatch, ModuleExecutor, ModuleLookup, ModuleOutput, ModuleReport};
pub use spec::{
    AdmissionSpec, ExecutorSpec, FeatureSpec, ModuleSpec, PrioritySpec, ScalesSpec, failed_rows, mask_meaning,
    missing_policy, pooling,
};
