"""PyTorch with a table in GPU memory: what torch.nn.functional.embedding_bag and F.embedding take.

One argument: a JSON object with rows, dim, bags, hot, runs, seed and lines, each with alpha and pooled. Prints one JSON object.

Times of the GPU are between two events behind a kernel that spins until all has been launched, so that no launch is waited for: of the
call, and of a replayed CUDA graph of it. "Seen" is by the clock, from the call until the device has ended. Elements are small integers, whose
sums are exact in any order; every element of every answer is compared with them.
"""

import json
import math
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    print(json.dumps({"missing": str(error)}))
    sys.exit(0)
if not torch.cuda.is_available():
    print(json.dumps({"missing": f"torch {torch.__version__} finds no GPU"}))
    sys.exit(0)

STEP = 1 << 18
# Half a millisecond and more, in which python launches what is measured.
HOLD = 1_500_000


def content(ids, columns):
    """Rows of integers below 256: int64 [ids, dim]."""
    return ((ids[:, None] * 2654435761 + columns[None, :] * 40503) >> 9) & 0xFF


def draw(count, rows, alpha):
    if alpha == 0:
        return torch.randint(rows, (count,), dtype=torch.int64, device="cuda")
    u = torch.rand(count, dtype=torch.float64, device="cuda")
    if alpha == 1:
        x = torch.exp(u * math.log(rows))
    else:
        x = torch.exp(torch.log1p(u * math.expm1((1 - alpha) * math.log(rows))) / (1 - alpha))
    return x.to(torch.int64).sub_(1).clamp_(0, rows - 1)


def main():
    asked = json.loads(sys.argv[1])
    rows, dim, bags, hot = asked["rows"], asked["dim"], asked["bags"], asked["hot"]
    torch.manual_seed(asked["seed"])
    columns = torch.arange(dim, dtype=torch.int64, device="cuda")
    table = torch.empty((rows, dim), dtype=torch.float32, device="cuda")
    for begin in range(0, rows, STEP):
        part = torch.arange(begin, min(begin + STEP, rows), device="cuda")
        table[begin : begin + STEP] = content(part, columns).to(torch.float32)
    count = bags * hot
    ids = torch.zeros(count, dtype=torch.int64, device="cuda")
    offsets = torch.arange(0, count, hot, dtype=torch.int64, device="cuda")
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def wrong(out, pooled):
        found = 0
        # Whole bags at a time.
        step = max(STEP // hot, 1) * hot
        for begin in range(0, count, step):
            wanted = content(ids[begin : begin + step], columns)
            if pooled:
                wanted = wanted.view(-1, hot, dim).sum(1)
                got = out[begin // hot : (begin + step) // hot]
            else:
                got = out[begin : begin + step]
            found += int((got != wanted.to(torch.float32)).sum())
        return found

    lines = []
    for line in asked["lines"]:
        alpha, pooled = line["alpha"], line["pooled"]

        def call():
            return F.embedding_bag(ids, table, offsets, mode="sum") if pooled else F.embedding(ids, table)

        ways = {"called": call}
        graph_failed = None
        try:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    call()
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = call()

            def replay():
                graph.replay()
                return captured

            ways["graph"] = replay
        except Exception as error:  # It may not be capturable; then the call stands alone.
            graph_failed = str(error).strip().splitlines()[0]
        times = {f"{name}_us": [] for way in ways for name in (way, f"{way}_seen")}
        for run in range(asked["runs"] + 1):
            for way, work in ways.items():
                for seen in (False, True):
                    ids.copy_(draw(count, rows, alpha))
                    if way == "graph":
                        captured.zero_()
                    torch.cuda.synchronize()
                    if seen:
                        began = time.perf_counter()
                        out = work()
                        torch.cuda.synchronize()
                        took = (time.perf_counter() - began) * 1e6
                    else:
                        torch.cuda._sleep(HOLD)
                        first.record()
                        out = work()
                        last.record()
                        torch.cuda.synchronize()
                        took = first.elapsed_time(last) * 1e3
                    elements = wrong(out, pooled)
                    if elements:
                        raise SystemExit(f"{elements} elements are wrong")
                    # The first is for warming up.
                    if run > 0:
                        times[f"{way}_seen_us" if seen else f"{way}_us"].append(took)
        medians = {name: statistics.median(taken) for name, taken in times.items()}
        checked = (bags if pooled else count) * (asked["runs"] + 1) * 2 * len(ways)
        lines.append({"alpha": alpha, "pooled": pooled, "checked": checked, "graph_failed": graph_failed, **medians})
    print(json.dumps({"version": torch.__version__, "lines": lines}))


with torch.no_grad():
    main()
