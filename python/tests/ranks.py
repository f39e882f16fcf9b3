"""Several processes with a process group, of gloo or of NCCL, for tests of what ranks do for each other."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

#: The longest that a test's processes take, seconds: reached only by one that hangs.
PATIENCE = 240.0


def _work(
    rank: int, world: int, folder: str, backend: str, timeout: float, work: Callable[..., Any], args: tuple[Any, ...], sender: Any
) -> None:
    # Nothing but this machine is reached.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        if backend == "nccl":
            torch.cuda.set_device(rank)
        store = dist.FileStore(f"{folder}/rendezvous", world)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=timeout))
        sender.send((True, work(rank, world, Path(folder), *args)))
    except BaseException:
        sender.send((False, traceback.format_exc()))
        raise SystemExit(1) from None
    sender.close()
    # Ranks whose peers are dead would wait for them.
    os._exit(0)


def run(
    world: int,
    folder: Path,
    work: Callable[..., Any],
    *args: Any,
    backend: str = "gloo",
    timeout: float = 120.0,
    dying: int | None = None,
) -> list[Any]:
    """Calls `work(rank, world, folder, *args)` in `world` processes, and returns what it returned in each. `dying` ends by itself."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "warprow.torch"])
    folder.mkdir(parents=True, exist_ok=True)
    started = []
    for rank in range(world):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(rank, world, str(folder), backend, timeout, work, args, sender))
        process.start()
        sender.close()
        started.append((process, receiver))
    results: list[Any] = []
    failures = []
    for rank, (process, receiver) in enumerate(started):
        try:
            good, value = receiver.recv() if receiver.poll(PATIENCE) else (False, "it did not end")
        except EOFError:
            good, value = rank == dying, None
        if not good:
            failures.append(f"rank {rank}: {value}")
        results.append(value)
    for process, _ in started:
        process.join(10)
        process.kill()
    assert not failures, "\n".join(failures)
    return results
