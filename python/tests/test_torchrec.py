"""TorchRec's own KeyedJaggedTensor, where TorchRec is installed: its memory is used as it is, and rows are those of a dict of the same ids."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
try:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
except Exception as error:  # TorchRec without an FBGEMM of this torch raises more than ImportError.
    pytest.skip(f"TorchRec cannot be imported ({type(error).__name__})", allow_module_level=True)

import warprow  # noqa: E402
import warprow.torch as wt  # noqa: E402

from test_collection import BAG, BAGS, FEATURES, TABLES, batch_of, make, same_bags, wanted_of, loaded  # noqa: E402, F401
from test_torch import attach, device, same  # noqa: E402, F401

pytestmark = pytest.mark.filterwarnings("ignore")


def jagged(batch: dict[str, tuple[torch.Tensor, ...]], names: list[str] | None = None) -> Any:
    """The batch as TorchRec has it: weights are of all ids, or of none."""
    names = names or list(batch)
    values = torch.cat([batch[name][0] for name in names])
    ones = torch.ones(BAGS * BAG, device=values.device)
    factors = torch.cat([batch[name][2] if len(batch[name]) > 2 else ones for name in names])
    lengths = torch.cat([batch[name][1].diff() for name in names])
    return KeyedJaggedTensor.from_lengths_sync(keys=names, values=values, lengths=lengths, weights=factors)


def test_a_keyed_jagged_tensor_is_a_batch(loaded, device) -> None:  # noqa: F811
    ours = make(loaded, device, prefetch=2)
    for seed in range(4):
        given = batch_of(seed, device)
        same_bags(ours(jagged(given)), wanted_of(given))
        ahead = [ours.prefetch(jagged(given)), ours.prefetch(jagged(batch_of(seed + 1, device)))]
        same_bags(ours.lookup(ahead[0]), wanted_of(given))
        same_bags(ours.lookup(ahead[1]), wanted_of(batch_of(seed + 1, device)))
    ours.check()


def test_bags_of_different_lengths(loaded, device) -> None:  # noqa: F811
    lengths = torch.tensor([0, 3, 1, 0, 2, 4])
    ids = torch.arange(10) * 7
    given = KeyedJaggedTensor.from_lengths_sync(keys=["one", "two"], values=ids.to(device), lengths=lengths.to(device))
    features = [warprow.Feature("one", "user", pooling="sum"), warprow.Feature("two", "item", pooling="sum")]
    ours = wt.EmbeddingBagCollection(attach(loaded, device), features)
    found, at = ours(given), 0
    for number, length in enumerate(lengths.tolist()):
        name, table = ("one", TABLES["user"]) if number < 3 else ("two", TABLES["item"])
        wanted = torch.zeros(table.shape[1])
        for row in ids[at : at + length]:
            wanted = wanted + table[row]
        same(found[name][number % 3].cpu(), wanted)
        at += length
    ours.check()


def test_masks_have_a_span_for_each_key(loaded, device) -> None:  # noqa: F811
    ours = make(loaded, device, on_failure="mask", missing="zero")
    given = batch_of(0, device)
    given["seen"][0][4] = 300
    _, masks = ours(jagged(given))
    assert {name: (~mask).sum().item() for name, mask in masks.items()} == {"clicks": 0, "seen": 1, "bought": 0}


def test_keys_in_another_order_are_refused_by_name(loaded, device) -> None:  # noqa: F811
    ours, given = make(loaded, device), batch_of(0, device)
    other = jagged(given, ["seen", "clicks", "bought"])
    with pytest.raises(warprow.InvalidArgument, match=r"permute\(\)"):
        ours(other)
    same_bags(ours(other.permute([1, 0, 2])), wanted_of(given))
    plain = KeyedJaggedTensor.from_lengths_sync(keys=[it[0] for it in FEATURES], values=other.values(), lengths=other.lengths())
    with pytest.raises(warprow.InvalidArgument, match="no weights"):
        ours(plain)
