//! Whether a batch and an output fit their plan.

use crate::batch::{Batch, Ids, Output};
use crate::error::InvalidBatch;
use crate::host::prepared::Prepared;
use crate::stage::Id;

/// Checks everything but the ids, and writes to `bags` where each bag begins, and where the last ends: F·B + 1 entries.
pub(crate) fn check(
    plan: &Prepared,
    batch: &Batch<'_>,
    out: &Output<'_>,
    bags: &mut [u32],
) -> Result<(), InvalidBatch> {
    check_batch(plan, batch, bags)?;
    check_output(plan, (batch.ids.len(), batch.batch), out)
}

/// As [`check`], of the batch alone.
pub(crate) fn check_batch(plan: &Prepared, batch: &Batch<'_>, bags: &mut [u32]) -> Result<(), InvalidBatch> {
    let (ids, features) = (batch.ids.len(), plan.features.len());
    if batch.batch > plan.options.max_batch {
        return Err(InvalidBatch::Batch { given: batch.batch, max: plan.options.max_batch });
    }
    if ids > plan.options.max_ids {
        return Err(InvalidBatch::Ids { given: ids, max: plan.options.max_ids });
    }
    // The plan has checked that this is below 2³² and that `bags` has room.
    let count = features * batch.batch;
    let bags = &mut bags[..=count];
    let uneven = || InvalidBatch::Uneven { ids, bags: count as u64 };
    match batch.offsets {
        _ if count == 0 && ids != 0 => return Err(uneven()),
        None if count == 0 => bags.fill(0),
        None if !ids.is_multiple_of(count) => return Err(uneven()),
        None => {
            let each = ids / count;
            bags.iter_mut().enumerate().for_each(|(bag, begin)| *begin = (bag * each) as u32);
        }
        Some(offsets) => {
            if offsets.len() != count && offsets.len() != count + 1 {
                let (features, batch) = (features as u32, batch.batch);
                return Err(InvalidBatch::OffsetCount { given: offsets.len(), features, batch });
            }
            match offsets {
                Ids::I32(offsets) => copy_offsets(offsets, ids, bags),
                Ids::I64(offsets) => copy_offsets(offsets, ids, bags),
                Ids::U32(offsets) => copy_offsets(offsets, ids, bags),
                Ids::U64(offsets) => copy_offsets(offsets, ids, bags),
            }
            .map_err(|(index, rule)| {
                let value = offsets.get(index).unwrap_or_default();
                InvalidBatch::Offset { index, value, rule }
            })?;
        }
    }
    match (plan.weighted, batch.weights) {
        (true, Some(weights)) if weights.len() != ids => {
            return Err(InvalidBatch::WeightCount { given: weights.len(), ids });
        }
        (wanted, weights) if wanted != weights.is_some() => return Err(InvalidBatch::Weights { wanted }),
        _ => {}
    }
    Ok(())
}

/// As [`check`], of the output alone, for a batch of `ids` ids and `batch` bags of each feature.
pub(crate) fn check_output(
    plan: &Prepared,
    (ids, batch): (usize, usize),
    out: &Output<'_>,
) -> Result<(), InvalidBatch> {
    if out.rows.dtype() != plan.options.out {
        return Err(InvalidBatch::OutputType { given: out.rows.dtype(), planned: plan.options.out });
    }
    if out.row_stride < plan.width {
        return Err(InvalidBatch::Stride { given: out.row_stride, width: plan.width });
    }
    let rows = if plan.pooled { batch } else { ids };
    let needed = match rows.checked_sub(1) {
        Some(before) => before.saturating_mul(out.row_stride).saturating_add(plan.width),
        None => 0,
    };
    if out.rows.len() < needed {
        return Err(InvalidBatch::OutputLength { given: out.rows.len(), needed });
    }
    match &out.mask {
        Some(mask) if mask.len() < ids => Err(InvalidBatch::MaskLength { given: mask.len(), needed: ids }),
        _ => Ok(()),
    }
}

/// Copies offsets to `bags`, and sets the end of the last bag. The error is the index of the first offset that is
/// wrong, and the rule that it breaks.
fn copy_offsets<I: Id>(offsets: &[I], ids: usize, bags: &mut [u32]) -> Result<(), (usize, &'static str)> {
    let (count, mut before) = (bags.len() - 1, 0);
    for (index, (bag, &offset)) in bags.iter_mut().zip(offsets).enumerate() {
        // As an unsigned number, a negative offset is larger than any number of ids.
        let offset = offset.raw();
        if index == 0 && offset != 0 {
            return Err((0, "the first must be 0"));
        }
        if offset > ids as u64 {
            return Err((index, "it must not be negative nor pass the number of ids"));
        }
        if offset < before {
            return Err((index, "none may be smaller than the one before"));
        }
        (*bag, before) = (offset as u32, offset);
    }
    let Some(last) = bags.last_mut() else { return Ok(()) };
    if offsets.len() > count && before != ids as u64 {
        return Err((count, "the last must be the number of ids"));
    }
    *last = ids as u32;
    Ok(())
}
