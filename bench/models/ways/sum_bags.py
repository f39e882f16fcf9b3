"""A Triton kernel that adds up bags of rows, in the order of the bag. Importing this module needs Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def sum_bags(table, ids, bags, out, dim: tl.constexpr, lanes: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program a bag; `lanes` is the power of two from `dim` on."""
    bag = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, lanes)
    inside = lane < dim
    total = tl.zeros((lanes,), tl.float32)
    for at in range(tl.load(bags + bag), tl.load(bags + bag + 1)):
        place = tl.load(ids + at).to(tl.int64)
        total += tl.load(table + place * dim + lane, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + bag * dim + lane, total, mask=inside)
