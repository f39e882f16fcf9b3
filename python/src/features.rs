//! Features and options of plans, as Python gives them.

use pyo3::prelude::*;
use warprow_lookup::{Bounds, Feature, Missing, PlanOptions, Pooling};

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
pub(crate) fn missing(name: &str) -> PyResult<Missing> {
    Ok(match name {
        "error" => Missing::Error,
        "default" => Missing::Default,
        "zero" => Missing::Zero,
        "skip" => Missing::Skip,
        other => {
            let text = format!("{other:?} is no way with missing ids: give error, default, zero or skip");
            return Err(invalid("missing", text));
        }
    })
}

/// Options of a plan: `(max_batch, max_ids, dtype, slots, missing, prefetch, adopt_room)`. `prefetch` more slots are for batches that are fetched ahead.
#[derive(FromPyObject)]
pub(crate) struct PlanArgs(usize, usize, String, u32, String, u32, bool);

impl PlanArgs {
    /// The number of slots for batches that are fetched ahead.
    pub(crate) fn ahead(&self) -> u32 {
        self.5
    }

    /// Whether a missing id is an error.
    pub(crate) fn raises_missing(&self) -> bool {
        self.4 == "error"
    }

    /// The options. On a GPU a missing id cannot end a look-up: it gets zeros, and the first one is told.
    pub(crate) fn options(&self, on_gpu: bool) -> PyResult<PlanOptions> {
        let Self(max_batch, max_ids, out, slots, way, prefetch, adopt_room) = self;
        let slots = slots.saturating_add(*prefetch);
        let options = PlanOptions::default().with_max(*max_batch, *max_ids).with_out(dtype(out)?).with_slots(slots);
        let options = match missing(way)? {
            Missing::Error if on_gpu => options.with_missing(Missing::Zero).with_bounds(Bounds::Report),
            missing => options.with_missing(missing),
        };
        let options = if *prefetch > 0 { options.with_prefetch() } else { options };
        Ok(if *adopt_room { options.with_adopt_room() } else { options })
    }
}
