"""PyTorch with a table in pinned memory: what torch.nn.functional.embedding costs until its rows are on the GPU.

One argument: a JSON object with rows, dim, runs, seed and lines, each with alpha and ids. Prints one JSON object.

The ids lie on the CPU, since the look-up runs there: F.embedding takes no table in pinned memory for ids on the GPU. Its output is
pageable, and copied; "index" is the same by index_select into a pinned tensor, copied without blocking: the best that a pinned
table allows. Contents follow a formula, and every row is compared with it on the GPU after each run.
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

STEP = 1 << 20


def content(ids, columns):
    """The bits of rows: int32 [ids, dim]."""
    # 2^32 / golden ratio, odd: no two rows are alike.
    return (ids.to(torch.int32) * -1640531527)[:, None] + columns[None, :]


def draw(count, rows, alpha):
    if alpha == 0:
        return torch.randint(rows, (count,), dtype=torch.int64)
    u = torch.rand(count, dtype=torch.float64)
    if alpha == 1:
        x = torch.exp(u * math.log(rows))
    else:
        x = torch.exp(torch.log1p(u * math.expm1((1 - alpha) * math.log(rows))) / (1 - alpha))
    return x.to(torch.int64).sub_(1).clamp_(0, rows - 1)


def compare(ids, out, columns):
    bits, wrong = out.view(torch.int32), 0
    for begin in range(0, len(ids), STEP):
        part = ids[begin : begin + STEP].cuda()
        wrong += int((bits[begin : begin + STEP] != content(part, columns)).sum())
    if wrong:
        raise SystemExit(f"{wrong} elements are wrong")


def main():
    asked = json.loads(sys.argv[1])
    rows, dim = asked["rows"], asked["dim"]
    torch.manual_seed(asked["seed"])
    table = torch.empty((rows, dim), dtype=torch.float32, pin_memory=True)
    columns = torch.arange(dim, dtype=torch.int32)
    on_gpu = columns.cuda()
    for begin in range(0, rows, STEP):
        part = torch.arange(begin, min(begin + STEP, rows))
        torch.add(content(part, columns[:1]), columns[None, :], out=table.view(torch.int32)[begin : begin + STEP])
    lines = []
    for line in asked["lines"]:
        count, alpha = line["ids"], line["alpha"]
        pinned = torch.empty((count, dim), dtype=torch.float32, pin_memory=True)
        out = torch.empty((count, dim), dtype=torch.float32, device="cuda")
        times = {"embedding": [], "index": []}
        for run in range(asked["runs"] + 1):
            for name in times:
                ids = draw(count, rows, alpha)
                out.zero_()
                torch.cuda.synchronize()
                began = time.perf_counter()
                if name == "embedding":
                    out.copy_(F.embedding(ids, table))
                else:
                    torch.index_select(table, 0, ids, out=pinned)
                    out.copy_(pinned, non_blocking=True)
                torch.cuda.synchronize()
                took = time.perf_counter() - began
                compare(ids, out, on_gpu)
                # The first is for warming up.
                if run > 0:
                    times[name].append(took * 1e6)
        medians = {f"{name}_us": statistics.median(taken) for name, taken in times.items()}
        lines.append({"ids": count, "alpha": alpha, "checked": 2 * count * (asked["runs"] + 1), **medians})
    print(json.dumps({"version": torch.__version__, "threads": torch.get_num_threads(), "lines": lines}))


with torch.no_grad():
    main()
