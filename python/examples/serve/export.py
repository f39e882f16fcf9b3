"""Makes the files that `serve.cpp` runs: a small DLRM on a store, its package of AOTInductor's, and batches with what they have to give.

    python export.py FOLDER [cpu|cuda]

The model is compiled twice: with torch's own embeddings, which says what predictions have to be, and with Warprow's.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

import warprow
import warprow.torch
from warprow.torch import native

#: Rows of each table, elements of a row, ids of a bag.
ROWS, DIM, BAG = (5000, 300, 40), 16, 4


class Dlrm(nn.Module):
    """Dense features, single ids of two tables and bags of a third, and the products of all pairs of vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(ROWS[0], DIM), nn.Embedding(ROWS[1], DIM)
        # Sums of eighths are exact in whatever order they are added: on a GPU torch's own order is not that of the bag.
        self.tags = nn.EmbeddingBag(ROWS[2], DIM, mode="sum", _weight=torch.randint(-8, 9, (ROWS[2], DIM)) / 8)
        self.bottom = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, DIM), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(DIM + 6, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense: torch.Tensor, user: torch.Tensor, item: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        bottom = self.bottom(dense)
        vectors = torch.stack([bottom, self.user(user), self.item(item), self.tags(tags)], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        pairs = [products[:, i, j] for i in range(4) for j in range(i)]
        return self.top(torch.cat([bottom, torch.stack(pairs, dim=1)], dim=1)).squeeze(1)


def batch(size: int, device: str) -> tuple[torch.Tensor, ...]:
    """Arguments of a call."""
    ids = [torch.randint(0, rows, (size,)) for rows in ROWS[:2]]
    arguments = (torch.randn(size, 13), *ids, torch.randint(0, ROWS[2], (size, BAG)))
    return tuple(it.to(device) for it in arguments)


def compiled(model: nn.Module, example: tuple[torch.Tensor, ...], package: Path) -> object:
    """The model, as AOTInductor compiles it."""
    size = torch.export.Dim("size", min=2, max=4096)
    exported = torch.export.export(model, example, dynamic_shapes=tuple({0: size} for _ in example))
    torch._inductor.aoti_compile_and_package(exported, package_path=str(package))
    return torch._inductor.aoti_load_package(str(package))


def main() -> int:
    folder, device = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "cpu"
    if not native.load():
        print("the operators are not compiled: python -m warprow.torch.native build", file=sys.stderr)
        return 1
    torch.manual_seed(7)
    model = Dlrm().to(device).eval()
    with torch.no_grad():
        plain = compiled(model, batch(64, device), folder / "plain.pt2")
        batches = [batch(size, device) for size in (2, 64, 1000)]
        wanted = [plain(*arguments) for arguments in batches]
        # Bit for bit what the plain model gives that was not compiled, but for what the compiler does with the dense layers.
        for arguments, predictions in zip(batches, wanted, strict=True):
            torch.testing.assert_close(model(*arguments), predictions)
        with warprow.format(f"emulated:{folder}/model.drive?size=64M") as store:
            warprow.torch.replace(model, store, dram_bytes=64 << 10, **({"hbm_bytes": 64 << 10} if device != "cpu" else {}))
            ours = compiled(model, batch(64, device), folder / "model.pt2")
            for arguments, predictions in zip(batches, wanted, strict=True):
                assert torch.equal(ours(*arguments), predictions)
    torch.save([[*arguments, predictions] for arguments, predictions in zip(batches, wanted, strict=True)], folder / "batches.pt")
    print(f"model.pt2, batches.pt and model.drive are in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
