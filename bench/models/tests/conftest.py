"""What tests share: a small shape, its rows, and answers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from models import dense  # noqa: E402
from models.ids import PowerLaw, Samples  # noqa: E402
from models.pipeline import DenseLayers  # noqa: E402
from models.shapes import Shape  # noqa: E402
from models.tables import Tables  # noqa: E402
from models.world import Answers, draw, note  # noqa: E402

CPU = torch.device("cpu")
#: Two tables of one id a sample, one of three.
SHAPE = Shape("small", (3, 500, 4000), 16, (1, 1, 3), 4)
#: Five places of a sequence over one table of f16.
SEQUENCE = Shape("sequence", (3000,), 16, (1,), 0, positions=5, dtype="f16")


@pytest.fixture(scope="session")
def tables() -> Tables:
    """Rows of `SHAPE`."""
    return Tables(SHAPE, CPU, seed=7)


@pytest.fixture(scope="session")
def history() -> Samples:
    """Samples of the past."""
    return draw(PowerLaw(SHAPE, 1.05, 100), SHAPE, 5000)


@pytest.fixture
def answers(tables: Tables) -> Answers:
    """Six batches of 32 samples, and what the model says of them."""
    layers = DenseLayers(dense.make("dcn", SHAPE, 3), CPU, False, note)
    with torch.inference_mode():
        return Answers(tables, layers, draw(PowerLaw(SHAPE, 1.05, 5), SHAPE, 6 * 32), 32)
