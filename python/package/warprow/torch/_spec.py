"""What a module looks up, as a text: an operator of torch's takes nothing else, and another process can open the store by it."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from ..errors import invalid
from ..executor import Feature, Options

#: Types of output by torch's names.
DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.int8: "i8", torch.uint8: "u8"}
_TORCH = {name: dtype for dtype, name in DTYPES.items()}


@dataclass(frozen=True)
class Scales:
    """Where the scales of a table's rows lie, in GPU memory of this process."""

    address: int
    bytes: int


@dataclass(frozen=True)
class Spec:
    """A list of features on one device, and where their rows lie."""

    drives: tuple[str, ...]
    device: str
    options: Options
    features: tuple[Feature, ...]
    #: Rows and elements of each feature's table.
    shapes: tuple[tuple[int, int], ...]
    generation: int
    missing: str
    on_failure: str
    #: What masks tell: "found" or "failed".
    mask: str
    #: Type of the output.
    out: str
    max_ids: int | None
    prefetch: int
    #: Whether offsets have an entry past the last bag.
    has_last: bool
    #: By which kernels multiply rows of codes.
    scales: Scales | None = None

    @property
    def pooled(self) -> bool:
        """Whether ids are in bags."""
        return self.features[0].pooling != "none"

    @property
    def width(self) -> int:
        """Elements of an output row."""
        dims = [dim for _, dim in self.shapes]
        return sum(dims) if self.pooled else max(dims)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the output."""
        return _TORCH[self.out]

    @property
    def torch_device(self) -> torch.device:
        """The device."""
        return torch.device(self.device)

    def bags(self, ids: torch.Tensor, offsets: torch.Tensor | None) -> Any:
        """Bags of each feature; may be a symbol while a graph is traced."""
        if offsets is None:
            return ids.shape[0]
        bags = offsets.shape[0] - 1 if self.has_last else offsets.shape[0]
        return bags // len(self.features)

    def shape(self, ids: torch.Tensor, offsets: torch.Tensor | None) -> tuple[Any, ...]:
        """The shape of the output."""
        if self.pooled:
            return (self.bags(ids, offsets), self.width)
        return (*ids.shape, self.width)

    def text(self) -> str:
        """The text of it."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    def moved(self, device: str, dtype: torch.dtype) -> Spec:
        """On another device, or with output of another type."""
        return replace(self, device=device, out=out_name(dtype))


def out_name(dtype: torch.dtype) -> str:
    """The name of a type of output."""
    if dtype not in DTYPES:
        known = ", ".join(str(it) for it in DTYPES)
        raise invalid("dtype", f"{dtype} is no type of output: give one of {known}")
    return DTYPES[dtype]


@functools.lru_cache(maxsize=4096)
def parse(text: str) -> Spec:
    """What a text says."""
    try:
        told: dict[str, Any] = json.loads(text)
        if told.pop("scales", None) is not None:
            raise ValueError("its scales lie in memory of the process that made it")
        told["drives"] = tuple(told["drives"])
        for name in ("hbm_rows", "cache_shares"):
            told["options"][name] = tuple((table, number) for table, number in told["options"].get(name, ()))
        told["options"] = Options(**told["options"])
        told["features"] = tuple(Feature(**feature) for feature in told["features"])
        told["shapes"] = tuple((rows, dim) for rows, dim in told["shapes"])
        return Spec(**told)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        said = "the text of a look-up in a compiled model makes no sense to this version of Warprow"
        raise invalid("spec", f"{said} ({error}): compile the model anew") from error
