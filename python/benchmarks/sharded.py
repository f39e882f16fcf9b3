"""One GPU beside two (or more): throughput of a sharded collection of bags, and the share of a step that the exchange takes.

    python python/benchmarks/sharded.py [--ranks 1 2] [--batch 65536] [--tiers memory drives] [--json FILE]

Every rank has its own batch of `--batch` samples, so N ranks look up N times as much in a step (and `--strong` divides one batch among
them). Ids follow a power law in each table. With `memory`, all rows lie in GPU memory; with `drives`, 5% of the rows do, the hottest, and
the others on an emulated drive for each rank: threads of the host play it, with the timing of a P5800X, or, of a single rank, its GPU does
(`--player gpu`), with `--iops` reads a second. Ranks have stores of their own: each row lies on one rank's drive. In `shared` lines,
all ranks open one drive of the whole store, each at 1/N of its rate.

Every output is compared with what the rows are: bit for bit, sums of ranks in the order of ranks. What a step waits for exchanges is timed
by CUDA events around the end of each, and so has what a rank waits for a slower one, and not what it does meanwhile. `dense` steps have a
network on top of the bags. `--graphs` also measures steps that one CUDA graph has (with NCCL's exchanges in it, and the network), on one GPU
too: ids are copied to the graph's input, and the graph replayed. `--phases` times the parts of a step likewise (`--kernels`: and lists the kernels that took longest);
`--exchanged` has a single rank exchange with itself, too. Without CUDA (`--device cpu`) the same runs by gloo and executors on the host, to
try the program.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import nn

import warprow
import warprow.torch as wt
from warprow import Feature
from warprow.torch._exchange import Coming, Exchange

#: Rounds of steps, of which the middle one counts.
ROUNDS = 3
#: Bytes a second that a rank exchanges, on paper: NVLink's of an H100.
LINK = 450e9
#: Reads of a P5800X a second.
P5800X = 5e6
#: Ids of a bag, of the features behind the first 22: these have one.
LONG_BAG = 8
#: Methods of a sharded collection, of its router, and of what it looks up for others, that are the parts of a step.
PHASES = ["_checked", "send", "_counts", "_send", "_look_up_kept", "rows_of", "_send_rows", "sums_of", "_tell", "_send_sums"]
PHASES += ["_bags_of_rows", "_bags_of_sums"]


class Shapes:
    """26 features over 26 tables, as Criteo has them, with as many rows as fit a short load; the last four have long bags."""

    def __init__(self, rows: int, dim: int) -> None:
        self.dim = dim
        self.rows = [rows if at % 4 else rows // 8 for at in range(20)] + [1000, 100] + [rows] * 4
        self.lengths = [1] * 22 + [LONG_BAG] * 4
        self.names = [f"t{at}" for at in range(26)]
        self.features = [Feature(name, name, pooling="sum") for name in self.names]

    def content(self, table: int, ids: torch.Tensor) -> torch.Tensor:
        """The rows of ids, computed."""
        numbers = ids.unsqueeze(1) * 7919 + torch.arange(self.dim, device=ids.device) * 104729 + table * 1299709
        # By a power of two: both devices get the same bits.
        return ((numbers * 2654435761) % 65521).float() * 2.0**-16 - 0.5

    def plan(self, world: int, exchanged: bool = False) -> wt.ShardingPlan:
        """With `exchanged`, a single rank sends itself what one of two would exchange."""
        lengths = {name: float(length) for name, length in zip(self.names, self.lengths)}
        sizes = {name: (rows, 4 * self.dim) for name, rows in zip(self.names, self.rows)}
        many = max(world, 2) if exchanged else world
        plan = wt.plan_sharding(sizes, self.features, many, bag_lengths=lengths, replicate_bytes=1 << 18)
        if many == world:
            return plan
        return wt.ShardingPlan(world, tuple(replace(it, owner=None if it.owner is None else 0) for it in plan.placements))

    def batch(self, samples: int, seed: int, device: torch.device) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        random = torch.Generator(device=device).manual_seed(seed)
        given = {}
        for name, rows, length in zip(self.names, self.rows, self.lengths):
            uniform = torch.rand(samples * length, generator=random, device=device, dtype=torch.float64)
            # A power law with exponent 1.05 by its inverse; rank 0 is the hottest, and its id is 0.
            power = -0.05
            ids = ((1 + uniform * ((rows + 1.0) ** power - 1)) ** (1 / power) - 1).long().clamp(0, rows - 1)
            given[name] = (ids, torch.arange(0, samples * length + 1, length, device=device))
        return given

    def wanted(self, at: int, ids: torch.Tensor, placement: wt.Placement, world: int) -> torch.Tensor:
        """Bags of a feature as they should be, in their order of sums."""
        ids = ids.reshape(-1, self.lengths[at])
        parts = []
        sums = placement.kind == "rows" and placement.exchange == "sums"
        for rank in range(world if sums else 1):
            total = torch.zeros(ids.shape[0], self.dim, device=ids.device)
            for column in ids.T:
                rows = total + self.content(at, column)
                total = torch.where((column % world == rank).unsqueeze(1), rows, total) if sums else rows
            parts.append(total)
        total = torch.zeros_like(parts[0])
        for part in parts:
            total = total + part
        return total


def load(folder: Path, shapes: Shapes, worlds: list[int], device: str) -> None:
    """Stores of each rank's rows, which `device` computes."""
    for world in worlds:
        plan = shapes.plan(world)
        for rank in range(world):
            tables = {}
            for at, name in enumerate(shapes.names):
                placement = plan.of(name)
                ids = torch.arange(shapes.rows[at], device=device)
                if placement.kind == "rows":
                    ids = ids[rank::world]
                elif placement.kind == "whole" and placement.owner != rank:
                    continue
                tables[name] = shapes.content(at, ids).cpu()
            size = sum(rows.numel() * 4 for rows in tables.values())
            capacity = (2 * size // (64 << 20) + 2) * (64 << 20)
            with warprow.format(f"emulated:{folder}/{world}-{rank}.drive?size={capacity}") as store:
                # Ids are ranks of hotness already.
                store.load(tables)


class Jagged:
    """What a collection takes without a copy: ids feature by feature, as a KeyedJaggedTensor of TorchRec's has them."""

    def __init__(self, names: list[str], values: torch.Tensor, offsets: torch.Tensor) -> None:
        self._names, self._values, self._offsets = names, values, offsets

    def keys(self) -> list[str]:
        return self._names

    def values(self) -> torch.Tensor:
        return self._values

    def offsets(self) -> torch.Tensor:
        return self._offsets

    def weights_or_none(self) -> None:
        return None


class Timed:
    """Times what a step waits for exchanges: on a GPU by events on the current stream, around the end of each; on the CPU by the clock."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.sent = device, 0
        #: By what is exchanged: events, or seconds.
        self.waits: list[tuple[str, Any]] = []
        begin, get = Exchange.begin, Coming.get

        def counted(exchange: Exchange, what: str, tensor: torch.Tensor, *rest: Any) -> Coming:
            self.sent += tensor.numel() * tensor.element_size()
            return begin(exchange, what, tensor, *rest)

        def timed(coming: Coming) -> torch.Tensor:
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                # Events of a graph have no time.
                return get(coming)
            began = time.perf_counter()
            pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if device.type == "cuda" else []
            for event in pair[:1]:
                event.record()
            found = get(coming)
            for event in pair[1:]:
                event.record()
            self.waits.append((coming._what, pair or time.perf_counter() - began))
            return found

        Exchange.begin, Coming.get = counted, timed  # type: ignore[method-assign]

    def taken(self) -> tuple[dict[str, float], int]:
        """Seconds by what was exchanged, and bytes, since the last call."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        seconds: dict[str, float] = {}
        for what, took in self.waits:
            own = took[0].elapsed_time(took[1]) / 1000 if isinstance(took, list) else took
            seconds[what] = seconds.get(what, 0.0) + own
        found = (seconds, self.sent)
        self.waits, self.sent = [], 0
        return found


class Phases:
    """Times the methods of a module that are the parts of its steps: on the device from begin to end, waits included, and on the CPU."""

    def __init__(self, module: Any, device: torch.device) -> None:
        self._device, self._found = device, []  # type: ignore[var-annotated]
        for owner in (module, module._router, module._served):
            for name in PHASES:
                if hasattr(type(owner), name):
                    setattr(owner, name, self._timed(name, getattr(owner, name)))

    def _timed(self, name: str, plain: Any) -> Any:
        def timed(*args: Any, **named: Any) -> Any:
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if self._device.type == "cuda" else []
            for event in events[:1]:
                event.record()
            began = time.perf_counter()
            found = plain(*args, **named)
            seconds = time.perf_counter() - began
            for event in events[1:]:
                event.record()
            self._found.append((name, events, seconds))
            return found

        return timed

    def taken(self, steps: int) -> dict[str, dict[str, float]]:
        """Milliseconds of each part in a step."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        parts: dict[str, dict[str, float]] = {}
        for name, events, seconds in self._found:
            part = parts.setdefault(name, {"device_ms": 0.0, "cpu_ms": 0.0})
            part["cpu_ms"] += 1000 * seconds / steps
            if events:
                part["device_ms"] += events[0].elapsed_time(events[1]) / steps
        self._found.clear()
        return parts


def phases(
    bags: Any, batches: list[Any], device: torch.device, steps: int, waits: Timed, kernels_too: bool
) -> dict[str, Any]:
    """The parts of a step, what it waits for exchanges, and, if that is wanted, the kernels that take longest in it."""
    timed = Phases(bags, device)
    for given in batches:
        bags(given)
    timed.taken(1)
    waits.taken()
    for at in range(steps):
        bags(batches[at % len(batches)])
    found: dict[str, Any] = {"parts": timed.taken(steps)}
    found["waits_ms"] = {what: 1000 * seconds / steps for what, seconds in waits.taken()[0].items()}
    if device.type == "cuda" and kernels_too:
        # What is recorded takes long to be added up.
        steps = min(steps, 4)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for at in range(steps):
                bags(batches[at % len(batches)])
            torch.cuda.synchronize()
        kernels = [it for it in profile.key_averages() if it.self_device_time_total > 0]
        kernels.sort(key=lambda it: -it.self_device_time_total)
        found["kernels"] = [
            {"kernel": it.key[:120], "ms": it.self_device_time_total / 1000 / steps, "calls": it.count / steps} for it in kernels[:40]
        ]
        found["kernels_ms"] = sum(it.self_device_time_total for it in kernels) / 1000 / steps
        found["launches"] = sum(it.count for it in kernels) / steps
    return found


def measure(bags: Any, net: Any, batches: list[Any], device: torch.device, timed: Timed, steps: int) -> dict[str, Any]:
    """Milliseconds of a step, and the share of it that is exchange."""

    def step(at: int) -> None:
        found = bags(batches[at % len(batches)])
        if net is not None:
            net(torch.cat(list(found.values()), dim=1))

    for at in range(3):
        step(at)
    rounds = []
    for _ in range(ROUNDS):
        if device.type == "cuda":
            torch.cuda.synchronize()
        dist.barrier()
        timed.taken()
        began = time.perf_counter()
        for at in range(steps):
            step(at)
        exchange, sent = timed.taken()
        rounds.append((1000 * (time.perf_counter() - began) / steps, 1000 * sum(exchange.values()) / steps, sent / steps / 1e6))
    bags.check()
    commands = sum(report["commands"] for report in bags.reports().values() if report is not None)
    middle = sorted(rounds)[ROUNDS // 2]
    # Reads are those of the latest look-up.
    return {"step_ms": middle[0], "exchange_ms": middle[1], "sent_mb": middle[2], "commands": commands, "rounds": [it[0] for it in rounds]}


class Captured:
    """A step in one CUDA graph: bags of ids that lie in its input, and a network on top of them. (On the CPU a call, to try the program.)"""

    def __init__(self, bags: Any, net: Any, names: list[str], batch: dict[str, Any], device: torch.device) -> None:
        ids = torch.cat([given[0] for given in batch.values()])
        lengths = torch.cat([given[1].diff() for given in batch.values()])
        self._ids = ids
        self._jagged = Jagged(names, ids, torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))
        self._bags, self._net = bags, net
        self.found: dict[str, torch.Tensor] = {}
        self._graph = None
        if device.type == "cuda":
            beside = torch.cuda.Stream()
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                for _ in range(2):
                    self._step()
            torch.cuda.current_stream().wait_stream(beside)
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            # NCCL's watchdog, a thread of its own, asks CUDA for events meanwhile.
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._step()

    def _step(self) -> None:
        self.found = self._bags(self._jagged)
        if self._net is not None:
            self._net(torch.cat(list(self.found.values()), dim=1))

    def run(self, ids: torch.Tensor) -> None:
        """One step of a batch of these ids."""
        self._ids.copy_(ids)
        if self._graph is None:
            self._step()
        else:
            self._graph.replay()


def measure_graphs(
    bags: Any, net: Any, shapes: Shapes, batches: list[Any], device: torch.device, plan: wt.ShardingPlan, world: int, options: Any
) -> list[dict[str, Any]]:
    """Milliseconds of a step in one CUDA graph, without the network and with it. Every output of the graphs is compared first."""
    fixed = bags.fixed_sizes(batches[0], slack=options.slack)
    every = [torch.cat([given[0] for given in batch.values()]) for batch in batches]
    lines = []
    for dense in (False, True):
        step = Captured(fixed, net if dense else None, shapes.names, batches[0], device)
        wrong = 0
        for batch, ids in zip(batches, every):
            step.run(ids)
            for at, name in enumerate(shapes.names):
                wrong += not torch.equal(step.found[name], shapes.wanted(at, batch[name][0], plan.of(name), world))
            fixed.check()
        if wrong:
            raise SystemExit(f"in a graph, {world} ranks: {wrong} features were wrong")
        rounds = []
        for _ in range(ROUNDS):
            if device.type == "cuda":
                torch.cuda.synchronize()
            dist.barrier()
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            for at in range(options.steps):
                step.run(every[at % len(every)])
            if device.type == "cuda":
                torch.cuda.synchronize()
            rounds.append(1000 * (time.perf_counter() - began) / options.steps)
        fixed.check()
        line: dict[str, Any] = {"step_ms": sorted(rounds)[ROUNDS // 2], "rounds": rounds, "dense": dense, "graph": True}
        if device.type == "cuda" and options.kernels:
            line.update(kernels_of(lambda at: step.run(every[at % len(every)])))
        lines.append(line)
    return lines


def kernels_of(step: Any, steps: int = 8) -> dict[str, Any]:
    """What kernels of a step take, those of NCCL apart, and the longest.

    Kernels of NCCL have what a rank waits for another in them. Of each exchange of a step the median of all steps counts.
    """
    dist.barrier()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for at in range(steps):
            step(at)
        torch.cuda.synchronize()
    kernels = [it for it in profile.key_averages() if it.self_device_time_total > 0 and "nccl" not in it.key.lower()]
    kernels.sort(key=lambda it: -it.self_device_time_total)
    own = sum(it.self_device_time_total for it in kernels) / 1000 / steps
    events = sorted((it for it in profile.events() if "ncclDevKernel" in it.name), key=lambda it: it.time_range.start)
    each = len(events) // steps
    times = [sorted(it.device_time_total for it in events[place::each])[steps // 2] / 1000 for place in range(each)]
    longest = [{"kernel": it.key[:100], "ms": it.self_device_time_total / 1000 / steps, "calls": it.count / steps} for it in kernels[:25]]
    found = {"kernels_ms": own, "exchange_ms": sum(times), "exchanges_ms": times, "kernels": longest}
    return {**found, "launches": sum(it.count for it in kernels) / steps + each}


def work(rank: int, world: int, folder: str, options: argparse.Namespace) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    device = torch.device("cpu" if options.device == "cpu" else f"cuda:{rank}")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        # Ranks on one processor are in each other's way otherwise.
        torch.set_num_threads(1)
    backend = "gloo" if device.type == "cpu" else "nccl"
    store_ = dist.FileStore(f"{folder}/rendezvous-{world}", world)
    dist.init_process_group(backend, store=store_, rank=rank, world_size=world, timeout=timedelta(seconds=60))
    shapes, timed, lines = Shapes(options.rows, options.dim), Timed(device), []
    net = nn.Sequential(nn.Linear(26 * options.dim, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1))
    net = net.to(device).eval().requires_grad_(False)
    torch.set_float32_matmul_precision("high")
    kinds = [("own", batch) for batch in options.batch if world == 1 or "own" in options.stores]
    if world > 1:
        kinds += [("own", batch // world) for batch in options.batch] if options.strong else []
        kinds += [("shared", batch) for batch in options.batch if "shared" in options.stores]
    for tier in options.tiers:
        for kind, samples in kinds:
            path = f"{folder}/{world}-{rank}.drive"
            rate, sharers = options.iops, 1
            if kind == "shared":
                # One drive of the whole store for all ranks together.
                path, sharers = f"{folder}/whole.drive", world
            address = f"emulated:{path}"
            if device.type == "cuda":
                address += f"?gpu={rank}&iops={rate:g}&sharers={sharers}" if options.player == "gpu" else f"?profile=p5800x&sharers={sharers}"
            with warprow.open(address, read_only=True) as store:
                whole = sum(table.rows * table.row_bytes for table in store.tables())
                memory = 2 * whole if tier == "memory" else whole // 20
                tiers = {"hbm_bytes": memory} if device.type == "cuda" else {"dram_bytes": memory}
                plan = shapes.plan(world, options.exchanged)
                with store.attach(str(device), **tiers) as executor:
                    bags = wt.ShardedEmbeddingBagCollection(executor, shapes.features, plan=plan, stores=kind, on_failure="nan")
                    batches = [shapes.batch(samples, 1000 * seed + rank, device) for seed in range(options.batches)]
                    different = sum(int(torch.unique(given[0]).numel()) for given in batches[0].values())
                    wrong = 0
                    for given in batches:
                        found = bags(given)
                        for at, name in enumerate(shapes.names):
                            wrong += not torch.equal(found[name], shapes.wanted(at, given[name][0], plan.of(name), world))
                        del found
                    bags.check()
                    if wrong:
                        raise SystemExit(f"rank {rank} of {world}, {tier}, {kind}: {wrong} features were wrong")
                    for dense in (False, True):
                        line = measure(bags, net if dense else None, batches, device, timed, options.steps)
                        line.update(ranks=world, tier=tier, stores=kind, batch=samples, dense=dense, graph=False, different=different)
                        lines.append(line)
                        if rank == 0:
                            print(json.dumps(line), flush=True)
                    if options.graphs:
                        known = {key: lines[-1][key] for key in ("ranks", "tier", "stores", "batch", "commands", "different")}
                        for line in measure_graphs(bags, net, shapes, batches, device, plan, world, options):
                            lines.append({"exchange_ms": 0.0, "sent_mb": 0.0, **known, **line})
                            if rank == 0:
                                print(json.dumps({key: value for key, value in lines[-1].items() if key != "kernels"}), flush=True)
                    if options.phases and any(it.kind != "replicated" for it in plan.placements):
                        lines[-1]["phases"] = phases(bags, batches, device, options.steps, timed, options.kernels)
                        bags.check()
                    if rank == 0 and options.json:
                        # A run that is ended loses nothing but what it measured then.
                        options.json.with_suffix(f".{world}.json").write_text(json.dumps(lines, indent=1))
                    del bags
                    # What times parts of a module refers to it, and it to that.
                    gc.collect()
            dist.barrier()
    gathered: list[Any] = [None] * world
    dist.all_gather_object(gathered, lines)
    if rank == 0:
        slowest = [max(of_ranks, key=lambda line: line["step_ms"]) for of_ranks in zip(*gathered)]
        Path(f"{folder}/lines-{world}.json").write_text(json.dumps(slowest))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="how many GPUs, in turn; the first is the baseline")
    parser.add_argument("--batch", type=int, nargs="+", default=[65536], help="samples of each rank")
    parser.add_argument("--stores", nargs="+", default=["own", "shared"], choices=["own", "shared"], help="of several ranks")
    parser.add_argument("--player", default="threads", choices=["gpu", "threads"], help="who plays drives, of ranks on GPUs")
    parser.add_argument("--phases", action="store_true", help="also the parts of a step")
    parser.add_argument("--kernels", action="store_true", help="with --phases: also the kernels of a step, which takes long to be added up")
    parser.add_argument("--graphs", action="store_true", help="also steps that one CUDA graph has")
    parser.add_argument("--slack", type=float, default=1.25, help="with --graphs: room for so many times the different ids of the first batch")
    parser.add_argument("--exchanged", action="store_true", help="a single rank exchanges with itself what one of two would")
    parser.add_argument("--rows", type=int, default=60_000, help="rows of a large table")
    parser.add_argument("--dim", type=int, default=64, help="elements of a row")
    parser.add_argument("--steps", type=int, default=20, help="steps that are timed")
    parser.add_argument("--batches", type=int, default=4, help="batches that take turns")
    parser.add_argument("--iops", type=float, default=40e6, help="reads a second of each rank's drive")
    parser.add_argument("--tiers", nargs="+", default=["memory", "drives"], choices=["memory", "drives"])
    parser.add_argument("--strong", action="store_true", help="also one batch that ranks divide among them")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.device == "cuda" and options.player == "gpu" and "drives" in options.tiers and max(options.ranks) > 1:
        parser.error("--player gpu with several ranks: beside NCCL's kernels GPUs that look up did not play their drives in time: give --player threads")
    # A drive that the GPU plays which looks up is held up by streams that share a hardware queue with it.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    if options.player == "gpu" and "drives" in options.tiers:
        # So is one beside which a kernel is used for the first time, if it is loaded only then: rows would be lost.
        os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        shapes = Shapes(options.rows, options.dim)
        load(Path(folder), shapes, options.ranks, options.device)
        if max(options.ranks) > 1 and "shared" in options.stores:
            load_whole(Path(folder), shapes, options.device)
        print(f"loaded in {time.perf_counter() - began:.0f} s: {sum(shapes.rows):,} rows of {options.dim} float32, 26 features")
        lines: list[dict[str, Any]] = []
        for world in options.ranks:
            processes.spawn(work, args=(world, folder, options), nprocs=world)
            lines += json.loads(Path(f"{folder}/lines-{world}.json").read_text())
            if options.json:
                options.json.write_text(json.dumps(lines, indent=1))
    def like(line: dict[str, Any], batch: int) -> tuple[Any, ...]:
        return (line["tier"], line["dense"], line["graph"], batch)

    base = {like(line, line["batch"]): line for line in lines if line["ranks"] == options.ranks[0]}
    print(
        "| tier | ranks | stores | batch of a rank | dense | graph | step, ms | predicted, ms | off by | exchange, ms | share | sent, MB | reads "
        "| samples/s | of the baseline |"
    )
    print("|---" * 15 + "|")
    for line in lines:
        line["samples_s"] = line["ranks"] * line["batch"] / line["step_ms"] * 1000
        # Of a batch that ranks divide, the baseline looks the whole up.
        whole = line["batch"] if like(line, line["batch"]) in base else line["batch"] * line["ranks"]
        first = base[like(line, whole)]
        line["ratio"] = line["samples_s"] / (first["ranks"] * first["batch"] / first["step_ms"] * 1000)
        share = line["exchange_ms"] / line["step_ms"]
        predicted, off = "", ""
        if line["ranks"] > 1 and whole == line["batch"]:
            line["predicted_ms"] = on_paper(first, line, options)
            predicted, off = f"{line['predicted_ms']:.2f}", f"{line['predicted_ms'] / line['step_ms'] - 1:+.0%}"
        print(
            f"| {line['tier']} | {line['ranks']} | {line['stores']} | {line['batch']} | {'yes' if line['dense'] else 'no'} "
            f"| {'yes' if line['graph'] else 'no'} | {line['step_ms']:.2f} | {predicted} | {off} | {line['exchange_ms']:.2f} | {share:.1%} "
            f"| {line['sent_mb']:.0f} | {line['commands']} | {line['samples_s'] / 1e6:.3f} M | {line['ratio']:.2f} |"
        )
    print("every output was compared, bit for bit")
    if options.json:
        options.json.write_text(json.dumps(lines, indent=1))


def on_paper(one: dict[str, Any], line: dict[str, Any], options: argparse.Namespace) -> float:
    """Milliseconds of a step of several ranks, from one of a single GPU, as docs/sharding.md has it on paper."""
    world = line["ranks"]
    # Bytes of the different ids of a batch that other ranks have.
    exchange = 1000 * one["different"] * (1 - 1 / world) * (4 * options.dim + 8) / LINK
    if line["tier"] == "memory":
        return float(one["step_ms"] + exchange)
    rate = options.iops if options.player == "gpu" else P5800X
    reads = 1000 * one["commands"] / rate
    fixed = max(one["step_ms"] - reads, 0.0)
    return float(max(reads * (world if line["stores"] == "shared" else 1), exchange) + fixed)


def load_whole(folder: Path, shapes: Shapes, device: str) -> None:
    """A store of all rows, for ranks that share."""
    tables = {name: shapes.content(at, torch.arange(shapes.rows[at], device=device)).cpu() for at, name in enumerate(shapes.names)}
    size = sum(rows.numel() * 4 for rows in tables.values())
    capacity = (2 * size // (64 << 20) + 2) * (64 << 20)
    with warprow.format(f"emulated:{folder}/whole.drive?size={capacity}") as store:
        store.load(tables)


if __name__ == "__main__":
    main()
