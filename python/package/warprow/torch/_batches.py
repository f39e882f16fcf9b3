"""Batches of several features, as one list of ids and one of offsets."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from .. import _options as arguments
from ..errors import invalid, wrong_type
from ..executor import Feature
from ._tensors import as_tensor


class Joined(NamedTuple):
    """The bags of all features, feature after feature."""

    ids: torch.Tensor
    #: Shape (F * B + 1,).
    offsets: torch.Tensor
    #: One for each id, where a feature is weighted.
    weights: torch.Tensor | None
    #: Ids of each feature; of a KeyedJaggedTensor only if they were asked for.
    counts: list[int]


def check_features(features: Sequence[Feature]) -> list[Feature]:
    """Features of a collection: there are some, all pooled, no two with one name."""
    features = arguments.several("features", features, Feature, "a list of warprow.Feature")
    if not features:
        raise invalid("features", "there are none")
    for feature in features:
        if feature.pooling not in ("sum", "mean"):
            raise invalid("features", f'feature {feature.name!r} is not pooled: give pooling="sum" or "mean"')
    names = [feature.name for feature in features]
    for name in names:
        if names.count(name) > 1:
            raise invalid("features", f"two features are called {name!r}: rename one")
    return features


def joined(features: Sequence[Feature], batch: Any, *, counted: bool) -> Joined:
    """What a mapping of features, or a KeyedJaggedTensor, says.

    Parameters
    ----------
    features : sequence of Feature
        The features of the module.
    batch : mapping or KeyedJaggedTensor
        As `EmbeddingBagCollection.forward` takes it.
    counted : bool
        Whether `counts` is needed.
    """
    names = [feature.name for feature in features]
    if isinstance(batch, Mapping):
        return _of_mapping(features, batch, names)
    if not all(hasattr(batch, name) for name in ("keys", "values", "offsets")):
        text = f"a {type(batch).__name__}: give a mapping of features to (ids, offsets), or a KeyedJaggedTensor"
        raise wrong_type("batch", text)
    keys = list(batch.keys())
    if keys != names:
        raise invalid("batch", f"its keys are {keys}, the module's features {names}: permute() it")
    weighted = any(feature.weighted for feature in features)
    weights = batch.weights_or_none() if weighted else None
    if weighted and weights is None:
        raise invalid("batch", "a feature is weighted, and it has no weights")
    return Joined(batch.values(), batch.offsets(), weights, batch.length_per_key() if counted else [])


def _of_mapping(features: Sequence[Feature], batch: Mapping[str, Any], names: list[str]) -> Joined:
    if set(batch) != set(names):
        raise invalid("batch", f"it has {sorted(batch)}, the module's features are {names}")
    weighted = any(feature.weighted for feature in features)
    ids, every, weights, counts, bags = [], [], [], [], None
    for feature in features:
        given = batch[feature.name]
        if not isinstance(given, tuple) or len(given) != (3 if feature.weighted else 2):
            wanted = "(ids, offsets, weights)" if feature.weighted else "(ids, offsets); it is not weighted (Feature(weighted=True))"
            raise invalid("batch", f"feature {feature.name!r}: give a tuple {wanted}")
        given = tuple(as_tensor(f"batch[{feature.name!r}]", it) for it in given)
        if given[0].dim() != 1 or given[1].dim() != 1 or given[1].shape[0] == 0:
            raise invalid("batch", f"feature {feature.name!r}: ids and offsets have one dimension, offsets B + 1 entries")
        if bags is not None and given[1].shape[0] - 1 != bags:
            text = f"feature {feature.name!r} has {given[1].shape[0] - 1} bags, the first feature {bags}"
            raise invalid("batch", text)
        bags = given[1].shape[0] - 1
        _check_ends(feature.name, given[0], given[1])
        ids.append(given[0])
        every.append(given[1])
        counts.append(given[0].shape[0])
        if weighted:
            ones = given[2] if feature.weighted else torch.ones_like(given[0], dtype=torch.float32)
            weights.append(ones)
    assert bags is not None, "there is a feature"
    offsets = _by_few_kernels(every, bags, counts) if _is_eager_on_gpu(every) else _one_by_one(every, counts)
    return Joined(torch.cat(ids), offsets, torch.cat(weights) if weighted else None, counts)


def _one_by_one(every: list[torch.Tensor], counts: list[int]) -> torch.Tensor:
    """Offsets of all features, as ids are that follow each other."""
    starts, ends, before = [], [], 0
    for own, count in zip(every, counts, strict=True):
        ends += [own[:1], own[-1:] - count]
        starts.append(own[:-1] + before)
        before += count
    starts.append(torch.full_like(starts[0][:1], before) if starts[0].shape[0] else starts[0].new_full((1,), before))
    offsets = torch.cat(starts)
    if offsets.device.type != "cpu":
        # A bag of one feature would have ids of another. The look-up tells of a first offset that is not 0.
        offsets[:1] -= (torch.cat(ends) != 0).any().to(offsets.dtype)
    return offsets


def _is_eager_on_gpu(every: list[torch.Tensor]) -> bool:
    """Whether numbers may be brought to the device of offsets, all of one type, now: nothing is traced or captured."""
    first = every[0]
    if first.device.type != "cuda" or type(first) is not torch.Tensor or torch.compiler.is_compiling():
        return False
    return all(own.dtype == first.dtype for own in every) and not torch.cuda.is_current_stream_capturing()


def _by_few_kernels(every: list[torch.Tensor], bags: int, counts: list[int]) -> torch.Tensor:
    """As `_one_by_one`. A kernel for each feature would take the processor longer than the look-up takes a GPU."""
    joined = torch.cat(every).reshape(len(every), bags + 1)
    numbers = _shifts(tuple(counts), joined.dtype, joined.device)
    own, before = numbers[0], numbers[1]
    offsets = joined.new_empty(len(every) * bags + 1)
    torch.add(joined[:, :-1], before[:-1].unsqueeze(1), out=offsets[:-1].reshape(len(every), bags))
    offsets[-1:] = before[-1:]
    wrong = ((joined[:, 0] != 0) | (joined[:, -1] != own[:-1])).any()
    # As above.
    offsets[:1] -= wrong.to(offsets.dtype)
    return offsets


@functools.lru_cache(maxsize=64)
def _shifts(counts: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Of features with so many ids these numbers, and how many ids are before each; and behind the last. Nothing waits for the device."""
    before = [0, *itertools.accumulate(counts)]
    numbers = torch.tensor([[*counts, 0], before], dtype=dtype)
    return numbers if device.type == "cpu" else numbers.pin_memory().to(device, non_blocking=True)


def _check_ends(name: str, ids: torch.Tensor, offsets: torch.Tensor) -> None:
    """Whether offsets go from 0 to the number of ids, where that can be asked without waiting for a GPU and without ending a trace."""
    if offsets.device.type != "cpu" or type(offsets) is not torch.Tensor or torch.compiler.is_compiling():
        return
    first, last = int(offsets[0]), int(offsets[-1])
    if (first, last) != (0, ids.shape[0]):
        text = f"feature {name!r}: they go from {first} to {last}: let them go from 0 to {ids.shape[0]}, the number of ids"
        raise invalid("offsets", text)
