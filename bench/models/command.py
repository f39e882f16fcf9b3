"""The command's arguments, and what it does with them."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import warprow

from . import dense
from .contenders import WAYS, Ground, choose, contenders
from .costs import Meter
from .data_set import DataSet
from .drives import TIMINGS, Drives
from .errors import DatasetMismatch, ModelsError
from .experiments.ahead import PREFETCH, measure_ahead
from .experiments.closed_loop import Measured, measure
from .experiments.open_loop import Offered, Server
from .experiments.two_models import measure_two_models, two_models
from .figures import FIGURES
from .ids import Drift, PowerLaw, Source, Trace
from .output.pages import write
from .pipeline import DenseLayers
from .schedule import Schedule
from .shapes import SHAPES, Shape, divisor_for
from .ways import WarprowModules, Way
from .world import Answers, draw, make_tables, note

_ABOUT = """Measures how fast recommendation models answer, end to end, by how they get their embeddings.

A batch's time runs from its ids in memory of the host until its predictions are there. Every way answers the same batches through the same
dense layers, and every prediction is compared with that of the model with all rows in memory of the device; embeddings of the first batches
are compared bit for bit as well. Drives are emulated, with the timing of real ones; on a GPU, that GPU plays those of Warprow, and threads
of the host play those that the processor reads, because each can reach no others at speed.

Progress goes to stderr, tables in Markdown to stdout. --output also writes them with pictures (SVG) to a folder."""

_EXAMPLES = """examples:
  python3 bench/models/run.py --small                       two minutes at most, no GPU: everything, in small
  python3 bench/models/run.py                               DCN, Criteo-TB's shape in 8 GB, 1 and 16 P5800X, batch 4,096
  python3 bench/models/run.py --experiments throughput,embeddings --batch 256,1024,4096,16384,65536
  python3 bench/models/run.py --experiments latency --drives 16 --ways warprow,reader,memory
  python3 bench/models/run.py --model dlrm --shape criteo-mlperf
  python3 bench/models/run.py --model deepfm                the trained model of ../shared/data
  python3 bench/models/run.py --figures 6,7,8,9,10 --output out     GDRec's experiments: out/page.md has all tables and pictures
"""

_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
#: Samples that are drawn for one size of batches, at most.
_MOST_SAMPLES = 1_500_000


def _bytes(text: str) -> int:
    number, unit = (text[:-1], _SIZES[text[-1:]]) if text[-1:] in _SIZES else (text, 1)
    try:
        return int(float(number) * unit)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number, or one with K, M or G") from error


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(it) for it in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: give whole numbers with commas between them") from error
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give numbers from 1 on")
    return numbers


def _shares(text: str) -> list[float]:
    try:
        shares = [float(it) for it in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: give numbers with commas between them") from error
    if min(shares) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: give numbers above 0")
    return shares


def _schedules(text: str) -> list[Schedule]:
    try:
        return [Schedule.parse(it) for it in text.split(",")]
    except DatasetMismatch as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _names(text: str) -> list[str]:
    return text.split(",")


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    plain = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser(prog="run.py", description=_ABOUT, epilog=_EXAMPLES, formatter_class=plain)
    ways = "; ".join(f"{name}: {what}" for name, what in WAYS.items())
    # A help text is a format.
    figures = "; ".join(f"{name}: {figure.about}" for name, figure in FIGURES.items()).replace("%", "%%")
    add = made.add_argument
    add("--model", choices=list(dense.MODELS), default="dcn", help="the dense layers (dcn: six cross layers, MLP of 1,024 x 1,024)")
    add("--shape", choices=list(SHAPES), default="criteo-tb", help="rows of tables as published; of deepfm its own")
    add("--bytes", type=_bytes, default=_bytes("8G"), help="the published rows are divided until they take at most so much (8G)")
    add("--dram", type=float, default=0.05, help="the share of the rows' bytes that ways on drives may keep in DRAM (0.05)")
    add("--hbm", type=float, default=0, help="the share that Warprow and readers on the processor may keep in GPU memory besides (0)")
    add("--batch", type=_numbers, default=[4096], help="samples of a batch, one or more numbers (4096)")
    add("--drives", type=_numbers, default=[1, 16], help="numbers of drives, one after the other (1,16)")
    add("--timing", choices=list(TIMINGS), default="p5800x", help="whose timing drives have (p5800x)")
    add("--player", help="who plays Warprow's drives: the number of a GPU, or threads (a second GPU where there is one, else the GPU that looks up)")
    add("--linger", help="how long a GPU that plays drives looks for commands behind the latest, such as 2ms; drives of the market always do (20us)")
    add("--ways", type=_names, default=list(WAYS), help=f"which ways, with commas between them (all). {ways}")
    add("--threads", type=int, default=min(8, os.cpu_count() or 1), help="threads that look up, of all ways in which the processor does (8, or fewer cores)")
    add("--cache", type=_bytes, action="append", help="bytes of Warprow's cache of rows from drives; may be given several times (0)")
    add("--alpha", type=float, default=1.05, help="exponent of the power law of ids; 0: uniform (1.05)")
    add("--churn", type=float, help="ids drift: the share of a table's ids that change places after each 4,096 samples")
    add("--trace", help="a file of samples in the place of a power law: .npz with `ids` (samples, ids) and `dense`, or .npy of ids")
    add("--data", help="a data set in the place of a power law: a file or folder that warprow.data reads (docs/python.md)")
    add("--fold", action="store_true", help="of --data: takes ids modulo the rows of their tables, which --bytes may have divided")
    add("--history", type=int, default=200_000, help="samples of the past, by which rows get their places (200000)")
    add("--experiments", type=_names, default=["throughput"], help="throughput, embeddings, latency, with commas between them; or two-models, by itself: tables of two models on the same drives, looked up one at a time and both at once (throughput)")
    add("--rates", type=_numbers, help="of latency: samples a second that are offered (shares of what the way answers in a closed loop)")
    add("--loads", type=_shares, default=[0.05, 0.25, 0.5, 0.75, 0.9, 1.2], help="those shares (0.05,0.25,0.5,0.75,0.9,1.2)")
    add("--clients", type=_numbers, default=[1], help="of throughput: how many ask at once, one or more numbers (1)")
    add("--ahead", type=_numbers, default=[], help="of throughput and embeddings: how many batches Warprow fetches ahead of the one that is answered, one or more numbers; one client alone (none)")
    add("--ahead-by", type=_schedules, default=[PREFETCH], help="of --ahead: prefetch (and look up), with at most N batches that fetch at a time (prefetch:N), or whole look-ups on N streams (streams:N); one or more (prefetch)")
    add("--ahead-multiprocessors", type=int, help="of --ahead on a GPU: kernels that fetch ahead have as many threads as fit on so many multiprocessors (as many as are fastest)")
    add("--request", type=int, default=64, help="of latency: samples of a request (64)")
    add("--sizes", type=_numbers, help="of latency: requests of the batches for which there is a graph (each a quarter more than the one before)")
    add("--batches", type=int, default=200, help="batches of each size that are drawn, and measured at most (200, or fewer if they are large)")
    add("--seconds", type=float, default=3, help="the longest time that one way is measured with one size of batches (3)")
    add("--compile", choices=["yes", "no"], default="yes", help="whether torch.compile compiles the dense layers; on a CPU it does not")
    add("--matmul", choices=["tf32", "f32"], default="tf32", help="how the dense layers multiply on a GPU (tf32)")
    add("--device", help="cuda or cpu (cuda where there is a GPU)")
    add("--seed", type=int, default=1, help="of rows, ids, weights and arrivals (1)")
    add("--json", help="a file for everything that was measured, written anew behind each measurement")
    add("--output", help="a folder for the tables and pictures")
    add("--figures", type=_names, help=f"the tables and pictures of these experiments, numbered as GDRec's figures, into --output: {figures}")
    add("--small", action="store_true", help="everything in small, on the CPU")
    return made


def _small(given: argparse.Namespace) -> None:
    """Less of everything: well under a minute on two cores."""
    given.shape, given.bytes, given.batch, given.drives, given.device = "criteo-kaggle", _bytes("24M"), [64], [2], "cpu"
    given.experiments, given.loads, given.request = ["throughput", "embeddings", "latency"], [0.3, 1.5], 16
    given.history, given.batches, given.seconds, given.threads = 20_000, 20, 0.25, 2


def _source(given: argparse.Namespace, shape: Shape) -> Source:
    if given.data:
        return DataSet(shape, given.data, given.fold)
    if given.trace:
        return Trace(shape, given.trace)
    if given.churn is not None:
        return Drift(shape, given.alpha, given.seed, given.churn)
    return PowerLaw(shape, given.alpha, given.seed)


def _player(given: argparse.Namespace, device: str) -> int | None:
    """The GPU that plays Warprow's drives; None: threads do."""
    if device == "cpu" or given.player == "threads":
        return None
    if given.player is None:
        return 1 if torch.cuda.device_count() > 1 else 0
    if not given.player.isdigit() or int(given.player) >= torch.cuda.device_count():
        raise DatasetMismatch(f"--player {given.player}: give threads, or the number of a GPU: there are {torch.cuda.device_count()}")
    return int(given.player)


def _shape(given: argparse.Namespace) -> Shape:
    if given.model == "deepfm":
        return dense.deepfm_shape()
    shape = SHAPES[given.shape]
    return shape.scaled(divisor_for(shape, given.bytes))


def sizes_of(most: int) -> list[int]:
    """Requests of the batches for which there is a graph: each a quarter more than the one before.

    A batch that gathers while another is answered is rarely a full one. It should not cost as much.
    """
    sizes = [1]
    while sizes[-1] < most:
        following = max(sizes[-1] + 1, sizes[-1] * 5 // 4)
        # None that is hardly smaller than the largest.
        sizes.append(most if following * 9 // 8 > most else following)
    return sizes


class Run:
    """One run of the command: what it has, and what it found."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        kind = given.device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.device = torch.device("cuda", 0) if kind == "cuda" else torch.device("cpu")
        torch.set_float32_matmul_precision("high" if given.matmul == "tf32" else "highest")
        # PyTorch's own gathers on the processor take as many threads as the other readers: with one a core they were ten times as slow.
        torch.set_num_threads(given.threads)
        self.player = _player(given, kind)
        self.shape = _shape(given)
        self.source = _source(given, self.shape)
        self.names = choose(given.ways)
        self.measured: list[Measured] = []
        self.offered: list[Offered] = []
        #: What drives or look-ups failed with.
        self.failures: list[str] = []
        self.meter = Meter(0 if kind == "cuda" else None)

    def setup(self) -> dict[str, Any]:
        """What a reader has to know of the run."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"
        shape = self.shape
        return {
            "device": name,
            "cores": os.cpu_count(),
            "torch": torch.__version__,
            "model": self.given.model,
            "shape": shape.name,
            "divisor": shape.divisor,
            "tables": len(shape.rows),
            "rows": sum(shape.rows),
            "row_bytes": shape.row_bytes,
            "bytes": shape.bytes,
            "ids_per_sample": shape.ids,
            "dram_share": self.given.dram,
            "hbm_share": self.given.hbm if self.device.type == "cuda" else 0,
            "ids": self.source.name,
            "history": self.given.history,
            "timing": self.given.timing,
            "player": "threads" if self.player is None else f"GPU {self.player}",
            "linger": self.given.linger,
            "threads": self.given.threads,
            "matmul": self.given.matmul if self.device.type == "cuda" else "f32",
            "seed": self.given.seed,
        }

    def run(self) -> None:
        """Measures everything that was asked for."""
        given, shape = self.given, self.shape
        note(", ".join(f"{name} {value}" for name, value in self.setup().items()))
        if "two-models" in given.experiments:
            self._two_models()
            return
        tables = make_tables(shape, self.device, given.seed)
        history = draw(self.source, shape, given.history)
        layers = None
        if set(given.experiments) != {"embeddings"}:
            model = dense.make(given.model, shape, given.seed)
            layers = DenseLayers(model, self.device, given.compile == "yes" and self.device.type == "cuda", note)
        answers = {}
        for batch in given.batch:
            count = batch * max(1, min(given.batches, max(8, _MOST_SAMPLES // batch)))
            answers[batch] = Answers(tables, layers, draw(self.source, shape, count), batch)
            what = "there are" if layers is None else "the model with all rows in memory has answered"
            note(f"{what} {count:,} samples in batches of {batch}")
        usual = max(given.batch)
        # With all rows in DRAM there is room for what lies between them, too.
        dram_bytes = int(shape.bytes * (given.dram if given.dram < 1 else 1.5))
        hbm_bytes = int(shape.bytes * given.hbm) if self.device.type == "cuda" else 0
        ground = Ground(tables, history, dram_bytes, hbm_bytes, usual, given.threads, given.cache or [0], given.ahead_multiprocessors)
        drives = [Drives(count, given.timing, self.player, given.linger) for count in given.drives]
        for label, way in contenders(ground, self.names, drives):
            try:
                self._measure(way, label, answers, layers)
            except warprow.WarprowError as error:
                # A drive that fails ends this way alone; no figure is written for what it was asked then.
                self.failures.append(f"{way.name} | {label}: {type(error).__name__}: {error}")
                note(f"failed: {self.failures[-1]}")

    def _two_models(self) -> None:
        """Of each number of drives and size of batches; either model has as many rows as one alone."""
        given, shape = self.given, self.shape
        for batch in given.batch:
            count = max(1, min(given.batches, max(8, _MOST_SAMPLES // batch)))
            models = two_models(shape, self.source, self.device, given.seed, given.history, batch, count)
            for drives in [Drives(number, given.timing, self.player, given.linger) for number in given.drives]:
                for ahead, schedule in itertools.product(given.ahead or [4], given.ahead_by):
                    dram_bytes = int(2 * shape.bytes * given.dram)
                    for found in measure_two_models(models, drives, dram_bytes, given.seconds, ahead, schedule, note):
                        self._add(found)

    def _measure(self, way: Way, label: str, answers: dict[int, Answers], layers: DenseLayers | None) -> None:
        given = self.given
        for batch in given.batch:
            for clients in given.clients if "throughput" in given.experiments else ():
                self._add(measure(way, label, answers[batch], layers, given.seconds, self.meter, clients))
            if "embeddings" in given.experiments:
                self._add(measure(way, label, answers[batch], None, given.seconds, self.meter))
            if isinstance(way, WarprowModules):
                for ahead, schedule in itertools.product(given.ahead, given.ahead_by):
                    if "throughput" in given.experiments:
                        self._add(measure_ahead(way, label, answers[batch], layers, given.seconds, self.meter, ahead, schedule))
                    if "embeddings" in given.experiments:
                        self._add(measure_ahead(way, label, answers[batch], None, given.seconds, self.meter, ahead, schedule))
        if "latency" in given.experiments:
            assert layers is not None, "latency is that of predictions"
            self._latency(way, label, answers[max(given.batch)], layers)

    def _add(self, found: Measured) -> None:
        self.measured.append(found)
        self.keep()
        told = f"{found.samples_per_second:,.0f} samples/s, p50 {found.p50_us:,.0f} us, p99 {found.p99_us:,.0f} us"
        same = "bit for bit" if found.largest_difference == 0 else f"within {found.largest_difference:g}"
        asked = f"{found.what}, batch {found.batch}, {found.clients} at once"
        if found.reads_per_second:
            told += f", {found.reads_per_second:,.0f} reads/s of drives"
        note(f"{found.way} | {found.drives} | {asked}: {told}; {found.compared} samples compared, {same}")

    def _latency(self, way: Way, label: str, answers: Answers, layers: DenseLayers) -> None:
        given = self.given
        most = max(1, answers.batch // given.request)
        sizes = sorted({min(most, size) for size in given.sizes or sizes_of(most)} | {most})
        best = measure(way, label, answers, layers, given.seconds, self.meter).samples_per_second
        server = Server(way, answers, layers, given.request, sizes)
        try:
            for rate in given.rates or [int(best * share) for share in given.loads]:
                found = server.offer(rate, given.seconds, 16 * most, given.seed, label)
                self.offered.append(found)
                self.keep()
                times = f"p50 {found.p50_us:,.0f}, p99 {found.p99_us:,.0f}, p99.9 {found.p999_us:,.0f} us"
                told = f"{times}; {found.refused} of {found.requests} refused"
                note(f"{way.name} | {label} | offered {rate:,} samples/s, answered {found.answered:,.0f}: {told}")
        finally:
            server.close()

    def keep(self) -> None:
        """Writes what was found so far to the file of `--json`: a run that is ended loses nothing but what it measured then."""
        if self.given.json:
            path = Path(self.given.json)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self.as_json(), indent=1))

    def as_json(self) -> dict[str, Any]:
        """All that was found."""
        found = {"throughput": [it.as_json() for it in self.measured], "latency": [it.as_json() for it in self.offered]}
        return {"setup": self.setup(), **found, "failures": self.failures}


def _figures(made: argparse.ArgumentParser, given: argparse.Namespace, arguments: list[str]) -> int:
    """Each run of each figure, in a folder of its own. Arguments that were given come behind those of the figure, and so decide."""
    if not given.output:
        made.error("--figures: say with --output where tables and pictures go")
    unknown = set(given.figures) - set(FIGURES)
    if unknown:
        made.error(f"--figures: there is no {', '.join(sorted(unknown))}: there are {', '.join(FIGURES)}")
    at = next(at for at, argument in enumerate(arguments) if argument.split("=")[0] == "--figures")
    rest = arguments[:at] + arguments[at + (1 if "=" in arguments[at] else 2) :]
    page, worst = ["# Models end to end, beside GDRec's experiments"], 0
    for name in given.figures:
        figure = FIGURES[name]
        page.append(f"## {f'Figure {name}' if name.isdigit() else name.capitalize()}: {figure.about}\n\nGDRec published: {figure.published}")
        for run, own in figure.runs.items():
            note(f"figure {name}, {run}")
            folder = Path(given.output) / f"figure-{name}-{run}"
            worst = max(worst, main([*own, *rest, "--output", str(folder), "--json", str(folder / "found.json")]))
            if (folder / "tables.md").exists():
                pictures = [f"![{it.stem}]({folder.name}/{it.name})" for it in sorted(folder.glob("*.svg"))]
                page += [f"### {run}", (folder / "tables.md").read_text().strip().replace("## ", "#### "), *pictures]
    (Path(given.output) / "page.md").write_text("\n\n".join(page) + "\n")
    return worst


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. 0: all went well; 1: it did not, and stderr says why."""
    made = parser()
    given = made.parse_args(arguments)
    if given.small:
        _small(given)
    if given.figures:
        return _figures(made, given, list(arguments if arguments is not None else sys.argv[1:]))
    unknown = set(given.experiments) - {"throughput", "embeddings", "latency", "two-models"}
    if unknown:
        made.error(f"--experiments: there is no {', '.join(sorted(unknown))}: there are throughput, embeddings, latency, two-models")
    if "two-models" in given.experiments and len(given.experiments) > 1:
        made.error("--experiments: two-models has tables of its own: ask for it by itself")
    try:
        run = Run(given)
        try:
            with torch.inference_mode():
                run.run()
        finally:
            # What was measured before something failed is worth having.
            if run.measured or run.offered:
                text, pictures = write(run.setup(), run.measured, run.offered)
                print(text)
                if given.output:
                    folder = Path(given.output)
                    folder.mkdir(parents=True, exist_ok=True)
                    for name, content in {"tables.md": text, **pictures}.items():
                        (folder / name).write_text(content)
                run.keep()
    except (ModelsError, warprow.WarprowError) as error:
        note(f"error: {error}")
        return 1
    return 1 if run.failures else 0


