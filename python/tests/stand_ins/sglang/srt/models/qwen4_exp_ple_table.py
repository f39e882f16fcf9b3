"""Stands for SGLang's module of this name."""

import torch


def allocate_ple_host_table(shape, dtype, backend="pinned", table_dir=None, tag=None):
    return torch.zeros(tuple(shape)).to(dtype)
