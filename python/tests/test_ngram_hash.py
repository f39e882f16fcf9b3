"""`warprow.NgramHash` against NumPy, by the formulas that the models' references have."""

from __future__ import annotations

import numpy as np
import pytest

import warprow


def is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def primes(after: int, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        after += 1
        if is_prime(after):
            found.append(after)
    return found


def ids_of(tokens: np.ndarray, filler: int, multipliers: list[int], sizes: list[int], blocked: np.ndarray) -> np.ndarray:
    """`blocked[back]` says for each position whether the token so far back is not there."""
    orders, columns, mixed = len(multipliers) - 1, [], np.zeros(len(tokens), np.int64)
    offsets = np.cumsum([0, *sizes[:-1]])
    each = len(sizes) // orders
    for back, multiplier in enumerate(multipliers):
        source = np.concatenate((np.full(back, filler), tokens[: len(tokens) - back]))[: len(tokens)]
        mixed = mixed ^ np.where(blocked[back], filler, source) * np.int64(multiplier)
        if back:
            columns += [mixed % sizes[at] + offsets[at] for at in range((back - 1) * each, back * each)]
    return np.stack(columns, axis=1)


@pytest.mark.parametrize(("layer", "skip"), [(1, 0), (14, 24)])
def test_ids_of_deepseek(layer: int, skip: int) -> None:
    # As the reference draws them.
    bound = (np.iinfo(np.int64).max // 99_092) // 2
    multipliers = np.random.default_rng(10_007 * layer).integers(0, bound, 4, dtype=np.int64) * 2 + 1
    sizes = primes(16_000_000 - 1, 48)[skip : skip + 24]
    random = np.random.default_rng(layer)
    token_map = random.permutation(129_280) * 99_091 // 129_279
    tokens = random.integers(0, 129_280, 500)
    blocked = np.arange(500)[None, :] < np.arange(4)[:, None]
    wanted = ids_of(token_map[tokens], int(token_map[2]), multipliers.tolist(), sizes, blocked)
    ours = warprow.NgramHash(f"engram-{layer}", words=token_map)
    assert (ours.heads, ours.rows) == (24, sum(sizes)) and f"engram-{layer}" in repr(ours)
    np.testing.assert_array_equal(ours.ids(tokens), wanted)
    np.testing.assert_array_equal(ours.ids(tokens[100:].astype(np.int32), history=tokens[:100]), wanted[100:])
    np.testing.assert_array_equal(ours.ids(tokens[100:101], history=tokens[97:100]), wanted[100:101])
    # Behind a token that ends a text.
    ended = warprow.NgramHash(f"engram-{layer}", words=token_map, end=int(tokens[99]))
    np.testing.assert_array_equal(ended.ids(tokens)[100:120], ours.ids(tokens[100:120]))
    assert ours.ids([]).shape == (0, 24)


def test_ids_of_qwen() -> None:
    end = 248_044
    random = np.random.default_rng(3)
    tokens = random.integers(0, 1000, 400)
    tokens[random.integers(0, 400, 40)] = end
    since = np.zeros(400, np.int64)
    for at in range(1, 400):
        since[at] = 0 if tokens[at - 1] == end else since[at - 1] + 1
    blocked = since[None, :] < np.arange(3)[:, None]
    multipliers = [23_703_573_157_769, 20_109_073_645_365, 8_052_911_324_071]
    wanted = ids_of(tokens, end, multipliers, primes(20_000_000 - 1, 16), blocked)
    ours = warprow.NgramHash("ple")
    assert (ours.heads, ours.rows) == (16, 320_001_446)
    np.testing.assert_array_equal(ours.ids(tokens), wanted)


def test_what_cannot_be_hashed_is_named() -> None:
    with pytest.raises(warprow.InvalidArgument, match="engram-1, engram-14, ple"):
        warprow.NgramHash("gemma")
    with pytest.raises(warprow.InvalidArgument, match="3 is no token, or has no word") as caught:
        warprow.NgramHash("engram-1", words=[0, 1, 2]).ids([0, 3])
    assert caught.value.argument == "tokens"
    with pytest.raises(warprow.InvalidArgument, match="another tokenizer") as caught:
        warprow.NgramHash("engram-1", words=[0, 1, 99_092])
    assert caught.value.argument == "words"
    with pytest.raises(warprow.InvalidArgument, match="give numbers from 0"):
        warprow.NgramHash("ple").ids([-1])
    with pytest.raises(warprow.InvalidArgument, match="99092 is no token"):
        warprow.NgramHash("engram-1").ids([99_092])
    with pytest.raises(warprow.InvalidArgument, match="end"):
        warprow.NgramHash("ple", end=-1)
    with pytest.raises(warprow.WrongType):
        warprow.NgramHash("ple").ids([0.5])
