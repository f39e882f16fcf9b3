"""What tests share: stores on emulated drives in folders of their own."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import warprow

_NUMBERS = itertools.count()

# A shell that starts the tests in its background has them ignore Ctrl-C, for which some tests would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def address(tmp_path: Path) -> str:
    """The address of a drive that is not there yet."""
    return f"emulated:{tmp_path}/{next(_NUMBERS)}.drive?size=64M"


@pytest.fixture
def store(address: str) -> Iterator[warprow.Store]:
    """An empty store."""
    with warprow.format(address) as store:
        yield store


@pytest.fixture
def make_store(tmp_path: Path) -> Iterator[Callable[..., warprow.Store]]:
    """Makes empty stores on so many drives."""
    made = []

    def make(drives: int = 1, size: str = "64M") -> warprow.Store:
        addresses = [f"emulated:{tmp_path}/{next(_NUMBERS)}.drive?size={size}" for _ in range(drives)]
        made.append(warprow.format(addresses))
        return made[-1]

    yield make
    for store in made:
        store.close()
