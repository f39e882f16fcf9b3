//! Features and options of plans, as Python gives them.

use pyo3::prelude::*;
use warprow_lookup::{FailedRows, Feature, MaskMeaning, MissingPolicy, PlanOptions, Pooling};

use crate::arrays::dtype;
use crate::error::invalid;

/// A feature: `(name, table, pooling, weighted, padding)`.
#[derive(FromPyObject)]
pub(crate) struct FeatureArgs(String, String, String, bool, Option<i128>);

impl FeatureArgs {
    fn feature(&self) -> PyResult<Feature> {
        let Self(name, table, pooling, weighted, padding) = self;
        let pooling = match &**pooling {
            "none" => Pooling::None,
            "sum" => Pooling::Sum,
            "mean" => Pooling::Mean,
            other => return Err(invalid("pooling", format!("{other:?} is no pooling: give none, sum or mean"))),
        };
        let feature = Feature::new(name, table).pooling(pooling);
        let feature = if *weighted { feature.weighted() } else { feature };
        Ok(padding.iter().fold(feature, |feature, &id| feature.padding(id)))
    }
}

/// The features of a plan.
pub(crate) fn features(given: &[FeatureArgs]) -> PyResult<Vec<Feature>> {
    given.iter().map(FeatureArgs::feature).collect()
}

/// Which row a missing id gets, by the name of it.
pub(crate) fn missing(name: &str) -> PyResult<MissingPolicy> {
    Ok(match name {
        "error" => MissingPolicy::Error,
        "default" => MissingPolicy::Default,
        "zero" => MissingPolicy::Zero,
        "skip" => MissingPolicy::Skip,
        other => {
            let text = format!("{other:?} is no way with missing ids: give error, default, zero or skip");
            return Err(invalid("missing", text));
        }
    })
}

/// What becomes of rows that could not be read, by the name of it: what the output has for them.
fn failed_rows(on_failure: &str) -> PyResult<FailedRows> {
    Ok(match on_failure {
        "raise" | "mask" => FailedRows::Zeros,
        "nan" => FailedRows::Nan,
        other => {
            let text = format!("{other:?} is no way with rows that could not be read: give raise, nan or mask");
            return Err(invalid("on_failure", text));
        }
    })
}

/// What a mask tells, by the name of it.
fn mask(name: &str) -> PyResult<MaskMeaning> {
    Ok(match name {
        "found" => MaskMeaning::Found,
        "failed" => MaskMeaning::Failed,
        other => return Err(invalid("mask", format!("{other:?} is no meaning of a mask: give found or failed"))),
    })
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
    /// How many batches can be fetched ahead: so many slots more.
    pub(crate) prefetch: u32,
    adopt_room: bool,
}

impl PlanArgs {
    /// Whether rows that could not be read are raised.
    pub(crate) fn raises_failed(&self) -> bool {
        self.on_failure == "raise"
    }

    /// The options.
    pub(crate) fn options(&self) -> PyResult<PlanOptions> {
        let options = PlanOptions::default()
            .with_max(self.max_batch, self.max_ids)
            .with_out(dtype(&self.dtype)?)
            .with_slots(self.slots.saturating_add(self.prefetch))
            .with_missing(missing(&self.missing)?)
            .with_failed_rows(failed_rows(&self.on_failure)?)
            .with_mask(mask(&self.mask)?);
        let options = if self.prefetch > 0 { options.with_prefetch() } else { options };
        Ok(if self.adopt_room { options.with_adopt_room() } else { options })
    }
}
