//! The native half of the Python package `warprow`: classes over the store, and over both executors.
//!
//! The module `warprow._native` is private. It takes addresses and lengths of arrays, which the Python half has
//! checked, and for as long as a call lasts that half keeps the arrays. `docs/python.md` gives the interface.

mod arrays;
mod data;
mod error;
mod faults;
mod features;
mod gpu;
mod held;
mod host;
mod interrupt;
mod load;
mod load_source;
mod module;
mod ngram;
mod ngram_ids;
mod planning;
mod report;
mod store;

/// Classes and functions over drives, stores and executors.
#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::data::{DataBatch, DataReader, convert_data, generate_data};
    #[pymodule_export]
    use crate::gpu::{Gpu, gpu_count, use_kernels};
    #[pymodule_export]
    use crate::host::{Host, HostPlan};
    #[pymodule_export]
    use crate::load_source::tables_in;
    #[pymodule_export]
    use crate::module::{ModuleLookup, ModulePrefetched, operator_table, raise_operator_error};
    #[pymodule_export]
    use crate::ngram::NgramHash;
    #[pymodule_export]
    use crate::ngram_ids::NgramIds;
    #[pymodule_export]
    use crate::planning::{Proposal, allocate_tiers, propose_tiers, read_proposal};
    #[pymodule_export]
    use crate::store::{Store, format, open};

    #[pymodule_init]
    fn prepare(_module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        crate::module::prepare();
        // Addresses with `gpu=` are drives that a GPU plays.
        warprow_gpu_drive::register();
        Ok(())
    }
}
