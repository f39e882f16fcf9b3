"""Checkpoints of n-gram tables, written byte by byte."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import torch


def write(path: Path, tensors: dict[str, tuple[str, torch.Tensor]]) -> None:
    """A safetensors file of tensors with their types' names, whose data begin at an odd byte."""
    header: dict[str, object] = {}
    body = bytearray()
    for name, (dtype, tensor) in tensors.items():
        data = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (1 - len(text) % 2)
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(body))


def write_folder(folder: Path, files: dict[str, dict[str, tuple[str, torch.Tensor]]]) -> Path:
    """A folder of such files, with an index."""
    folder.mkdir(exist_ok=True)
    for name, tensors in files.items():
        write(folder / name, tensors)
    weight_map = {tensor: name for name, tensors in files.items() for tensor in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def codes(rows: int, dim: int, seed: int) -> torch.Tensor:
    """Codes of E4M3, without the two that are no numbers."""
    random = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (rows, dim), generator=random) * 128
    return (torch.randint(0, 127, (rows, dim), generator=random) + signs).to(torch.uint8)
