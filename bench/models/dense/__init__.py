"""The dense layers of models: what makes a prediction of a sample's embeddings and its dense features.

Each module is called with embeddings (batch, tables * dim) and dense features (batch, dense), and gives (batch,), between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from ..errors import DatasetMismatch
from ..shapes import Shape
from .dcn import DCN
from .deepfm import DeepFM, deepfm_shape
from .dlrm import DLRM
from .hstu import HSTU

__all__ = ["DCN", "DLRM", "DeepFM", "HSTU", "MODELS", "deepfm_shape", "make"]

#: By name.
MODELS: dict[str, Callable[[Shape], nn.Module]] = {"dcn": DCN, "dlrm": DLRM, "deepfm": DeepFM, "hstu": HSTU}


def make(model: str, shape: Shape, seed: int) -> nn.Module:
    """A model's dense layers, with weights by a seed where no trained ones are there."""
    if model not in MODELS:
        raise DatasetMismatch(f"there is no model {model!r}: there are {', '.join(MODELS)}")
    torch.manual_seed(seed)
    return MODELS[model](shape).eval().requires_grad_(False)
