//! Batches of ids.

use warprow_layout::DType;
use warprow_workload::ContentOracle;

use crate::gpu::{Drawn, Request, Shape, Stream};

/// A batch of ids of so many rows.
pub(super) fn request(
    stream: &Stream,
    (rows, dim): (u64, u32),
    alpha: f64,
    shape: Shape,
    seed: u64,
) -> anyhow::Result<Request> {
    // For ids alone: what rows mean is told by others.
    let drawn = Drawn::new(ContentOracle::new(0, 0, rows, dim, DType::F32), alpha)?;
    let ids = shape.ids(1);
    let mut request = Request::new(stream, &[drawn], ids, if shape.pooled { shape.bags } else { ids }, seed)?;
    request.reshape(shape)?;
    Ok(request)
}
