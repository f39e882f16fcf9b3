"""How long the first look-up on a GPU takes to start, with an empty cache of kernels and without.

    python python/benchmarks/first_attach.py [--json FILE]

Each time is of a process of its own: until `Store.attach("cuda")` has returned, until the first look-up's rows lie in GPU memory behind that,
and until a second look-up's do. *prebuilt*: with the machine code that the wheel has. *portable*: with the wheel's PTX alone, which CUDA's driver
compiles. *compiled*: without either, so that NVRTC compiles the kernels. *cached*: in the process behind that one, with the cache that it left.
CUDA's own cache is off. Rows are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import warprow

ONE = """
import json, sys, time
import torch
import warprow, warprow.torch

torch.zeros(1, device="cuda")
with warprow.format("emulated:first?backing=ram&size=64M") as store:
    table = torch.randn(20_000, 64, generator=torch.Generator().manual_seed(1))
    store.load({"t": table})
    ids = torch.arange(0, 20_000, 7)
    began = time.perf_counter()
    executor = store.attach("cuda")
    attached = time.perf_counter()
    module, times = warprow.torch.Embedding(executor, "t"), []
    on_gpu = ids.cuda()
    for _ in range(2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        rows = module(on_gpu)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        if not torch.equal(rows.cpu(), table[ids]):
            raise SystemExit("wrong rows")
    module.check()
    print(json.dumps({"attach_s": attached - began, "first_lookup_s": times[0], "second_lookup_s": times[1]}))
"""


def run(cache: str) -> dict[str, float]:
    """The times of one process."""
    done = subprocess.run([sys.executable, "-c", ONE], env={**os.environ, "WARPROW_CACHE": cache, "CUDA_CACHE_DISABLE": "1"}, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr[-4000:])
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--json")
    given = arguments.parse_args()
    kernels = Path(warprow.__file__).parent / "kernels"
    aside = kernels.with_name("kernels-aside")
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        if kernels.is_dir():
            found["prebuilt"] = run(f"{folder}/unused")
            kernels.rename(aside)
        try:
            portable = list(aside.glob("*.ptx")) if aside.is_dir() else []
            if portable:
                kernels.mkdir()
                shutil.copy(portable[0], kernels)
                found["portable"] = run(f"{folder}/unused")
                shutil.rmtree(kernels)
            if found and Path(f"{folder}/unused").is_dir():
                raise SystemExit("NVRTC has compiled the kernels: the wheel's code is of another version")
            found["compiled"] = run(f"{folder}/cache")
            found["cached"] = run(f"{folder}/cache")
        finally:
            if aside.is_dir():
                shutil.rmtree(kernels, ignore_errors=True)
                aside.rename(kernels)
    for name, times in found.items():
        print(name, ", ".join(f"{what} {time:.3f}" for what, time in times.items()))
    if given.json:
        Path(given.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
