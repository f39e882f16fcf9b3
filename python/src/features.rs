//! Features and options of plans, as Python gives them.

use pyo3::prelude::*;
use warprow_lookup::{Feature, PlanOptions};
use warprow_modules::{
    AdmissionSpec, ExecutorSpec, FeatureSpec, PrioritySpec, failed_rows, mask_meaning, missing_policy,
};

use crate::arrays::dtype;
use crate::error::of_module;

/// A feature: `(name, table, pooling, weighted, padding)`.
#[derive(FromPyObject)]
pub(crate) struct FeatureArgs(String, String, String, bool, Option<i128>);

/// The features of a plan.
pub(crate) fn features(given: Vec<FeatureArgs>) -> PyResult<Vec<Feature>> {
    let spec =
        |FeatureArgs(name, table, pooling, weighted, padding)| FeatureSpec { name, table, pooling, weighted, padding };
    given.into_iter().map(|it| spec(it).feature().map_err(of_module)).collect()
}

/// Options of an executor, by their names in Python.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct AttachArgs {
    dram_bytes: u64,
    hbm_bytes: u64,
    check_rows: bool,
    check_keys: bool,
    overlay_bytes: u64,
    adopting: bool,
    timeout: Option<f64>,
    hbm_rows: Vec<(String, u64)>,
    prefetch_multiprocessors: Option<u32>,
    prefetch_priority: String,
    cache_bytes: u64,
    cache_shares: Vec<(String, u64)>,
    cache_batch_rows: Option<u64>,
    cache_admission: AdmissionArg,
    cache_dram: bool,
    peer_gpu: Option<u32>,
    counter_bytes: u64,
    count_every: Option<u32>,
    touch_epoch: Option<u16>,
}

/// "always", "sketch", or a probability.
#[derive(FromPyObject)]
enum AdmissionArg {
    Named(String),
    Probability(f64),
}

impl From<AdmissionArg> for AdmissionSpec {
    fn from(given: AdmissionArg) -> Self {
        match given {
            AdmissionArg::Named(name) => Self::Named(name),
            AdmissionArg::Probability(chance) => Self::Probability(chance),
        }
    }
}

impl AttachArgs {
    /// The options.
    pub(crate) fn options(self) -> ExecutorSpec {
        ExecutorSpec {
            dram_bytes: self.dram_bytes,
            hbm_bytes: self.hbm_bytes,
            check_rows: self.check_rows,
            check_keys: self.check_keys,
            overlay_bytes: self.overlay_bytes,
            adopting: self.adopting,
            timeout: self.timeout,
            hbm_rows: self.hbm_rows,
            prefetch_multiprocessors: self.prefetch_multiprocessors,
            // `Store.attach` refuses other words than the two.
            prefetch_priority: if self.prefetch_priority == "normal" {
                PrioritySpec::Normal
            } else {
                PrioritySpec::High
            },
            cache_bytes: self.cache_bytes,
            cache_shares: self.cache_shares,
            cache_batch_rows: self.cache_batch_rows,
            cache_admission: self.cache_admission.into(),
            cache_dram: self.cache_dram,
            peer_gpu: self.peer_gpu,
            counter_bytes: self.counter_bytes,
            count_every: self.count_every,
            touch_epoch: self.touch_epoch,
        }
    }
}

/// Options of a plan, by their names in Python.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct PlanArgs {
    max_batch: usize,
    max_ids: usize,
    dtype: String,
    slots: u32,
    missing: String,
    on_failure: String,
    mask: String,
}

impl PlanArgs {
    /// Whether rows that could not be read are raised.
    pub(crate) fn raises_failed(&self) -> bool {
        self.on_failure == "raise"
    }

    /// The options.
    pub(crate) fn options(&self) -> PyResult<PlanOptions> {
        Ok(PlanOptions::default()
            .with_max(self.max_batch, self.max_ids)
            .with_out(dtype(&self.dtype)?)
            .with_slots(self.slots)
            .with_missing(missing_policy(&self.missing).map_err(of_module)?)
            .with_failed_rows(failed_rows(&self.on_failure).map_err(of_module)?)
            .with_mask(mask_meaning(&self.mask).map_err(of_module)?))
    }
}
