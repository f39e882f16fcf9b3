"""Every way gives the embeddings and predictions of the model with all rows in memory; a wrong row is found."""

from __future__ import annotations

import importlib.util
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from models import compare, dense
from models.contenders import WAYS, Ground, choose, contenders
from models.costs import Meter
from models.drives import Drives, propose, propose_all, stored, stored_in_turn
from models.errors import DatasetMismatch, Unavailable, WrongPrediction
from models.experiments.ahead import measure_ahead
from models.experiments.closed_loop import measure, percentile
from models.experiments.two_models import measure_two_models, two_models
from models.ids import PowerLaw, Samples
from models.pipeline import DenseLayers, Step
from models.schedule import Schedule
from models.shapes import SHAPES
from models.tables import Tables
from models.ways import CpuReader, DeviceMemory, HotRows, IdealReader, PinnedReads, TorchCpu, WarprowModules, Way
from models.ways.warprow_modules import has_cache
from models.world import Answers, draw, note

from .conftest import CPU, SEQUENCE, SHAPE

DRIVES = Drives(1, "p5800x")


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def test_every_way_gives_the_same(answers: Answers, tables: Tables, history: Samples) -> None:
    ground = Ground(tables, history, SHAPE.bytes // 20, 0, 32, 2, [0])
    seen = []
    for label, way in contenders(ground, list(WAYS), [Drives(2, "p5800x")]):
        for layers in (answers.layers, None):
            found = measure(way, label, answers, layers, 30, Meter(None))
            assert found.compared == 3 * 32 and found.largest_difference == 0
            assert found.samples_per_second > 0 and found.p99_us >= found.p50_us > 0
        seen.append(way.name)
    # All but the two that need GPUs, and RocksDB where it is not installed.
    has_rocksdb = importlib.util.find_spec("rocksdict") is not None
    assert len(seen) == len(WAYS) - 3 + has_rocksdb and len(set(seen)) == len(seen)


def test_sequences_of_f16_rows() -> None:
    tables = Tables(SEQUENCE, CPU, seed=7)
    source = PowerLaw(SEQUENCE, 1.05, 3)
    history = draw(source, SEQUENCE, 2000)
    answers = Answers(tables, DenseLayers(dense.make("hstu", SEQUENCE, 1), CPU, False, note), draw(source, SEQUENCE, 5 * 16), 16)
    assert tables.on_device.dtype == torch.float16 and SEQUENCE.row_bytes == 32 and SEQUENCE.ids == 5
    seen = 0
    for label, way in contenders(Ground(tables, history, SEQUENCE.bytes // 20, 0, 16, 2, [0]), list(WAYS), [DRIVES]):
        for layers in (answers.layers, None):
            assert measure(way, label, answers, layers, 30, Meter(None)).largest_difference == 0
        seen += 1
    assert seen >= len(WAYS) - 3


def test_some_rows_are_in_dram_and_some_are_read(answers: Answers, tables: Tables, history: Samples) -> None:
    dram_bytes = SHAPE.bytes // 20
    with stored(DRIVES, tables, propose(SHAPE, history, dram_bytes, DRIVES, 32), lambda text: None) as store:
        with WarprowModules(store, SHAPE, CPU, {"dram_bytes": dram_bytes}, 32) as way:
            step = Step(way, None, SHAPE, 32, CPU)
            step.run(answers.lot)
            assert isinstance(way, WarprowModules)
            tiers = [way.executor.tiers(name) for name in SHAPE.names]
            assert all(it["hbm"] == 0 for it in tiers) and 0 < sum(it["dram"] for it in tiers) <= sum(SHAPE.rows) / 20
            report = step.way.counts()
            assert report["ids"] == 32 * SHAPE.ids and report["ids_dram"] > 0 and report["ids_ssd"] > 0


@pytest.mark.parametrize("way_of", [DeviceMemory, TorchCpu])
def test_a_wrong_row_is_found(answers: Answers, tables: Tables, way_of: Callable[[Tables], Way]) -> None:
    wrong = Tables(SHAPE, CPU, seed=7)
    # A row that the fifth batch has, and none of those that are compared while the way warms up.
    sample = answers.lot.ids[4 * 32 + 9]
    early = set(answers.lot.ids[: 3 * 32, 2:].reshape(-1).tolist())
    own = next(it for it in sample[2:].tolist() if it not in early)
    wrong.on_device[wrong.starts[2] + own, 5] += 1 / 16
    with pytest.raises(WrongPrediction, match="prediction .* is .* where .* was wanted"):
        measure(way_of(wrong), "none", answers, answers.layers, 30, Meter(None))
    with pytest.raises(WrongPrediction, match="table 2, element 5 is"):
        measure(way_of(wrong), "none", answers, None, 30, Meter(None))


def test_what_comparisons_say() -> None:
    wanted = torch.linspace(0, 1, 12).view(2, 6)
    assert compare.predictions_equal("x", wanted.clone(), wanted) == 0
    assert 0 < compare.predictions_equal("x", wanted + 1e-6, wanted) < 2e-6
    for wrong in (wanted + 1e-4, wanted * float("nan"), wanted[:1]):
        with pytest.raises(WrongPrediction):
            compare.predictions_equal("x", wrong, wanted)
    compare.rows_equal("x", wanted.clone(), wanted, 3)
    # Bits, not values: -0 is not 0.
    minus = wanted.clone()
    minus[0, 0] = -0.0
    with pytest.raises(WrongPrediction, match="sample 0, table 0, element 0"):
        compare.rows_equal("x", minus, wanted, 3)


def test_what_cannot_be_is_refused_by_name(tables: Tables) -> None:
    with pytest.raises(Unavailable, match="GPU"):
        PinnedReads(tables)
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: choose(["memory", "telepathy"]), "telepathy"),
        (lambda: Drives(0, "p5800x"), "0 drives"),
        (lambda: Drives(1, "floppy"), "floppy"),
        (lambda: dense.make("perceptron", SHAPE, 1), "perceptron"),
        (lambda: dense.make("dlrm", SHAPES["avazu"], 1), "dense features"),
        (lambda: dense.make("hstu", SHAPE, 1), "sequences of one table"),
    ]
    for call, word in refused:
        with pytest.raises(DatasetMismatch, match=word):
            call()
    assert choose(["warprow", "memory"]) == ["memory", "warprow"]


def test_a_cache_where_the_package_has_none(tables: Tables, history: Samples) -> None:
    if has_cache():
        pytest.skip("the package has caches")
    with stored(DRIVES, tables, propose(SHAPE, history, 4096, DRIVES, 32), lambda text: None) as store:
        with pytest.raises(Unavailable, match="cache_bytes"):
            WarprowModules(store, SHAPE, CPU, {"dram_bytes": 4096}, 32, 1 << 20)


def test_a_cache_keeps_rows_that_were_read(answers: Answers, tables: Tables, history: Samples) -> None:
    if not has_cache():
        pytest.skip("the package has no caches")
    with stored(DRIVES, tables, propose(SHAPE, history, 4096, DRIVES, 32), lambda text: None) as store:
        with WarprowModules(store, SHAPE, CPU, {"dram_bytes": 4096}, 32, 4 << 20) as way:
            assert measure(way, "none", answers, answers.layers, 30, Meter(None)).largest_difference == 0
            step = Step(way, answers.layers, SHAPE, 32, CPU)
            for _ in range(2):
                answers.check_rows(step, 5)
            counts = step.way.counts()
            assert counts["ids_cached"] > 0 and counts["ids_ssd"] == 0
            step.close()


def test_percentiles() -> None:
    values = [float(it) for it in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.99, 0.999, 1.0)] == [50, 99, 100, 100]
    assert percentile([3.0], 0.5) == 3


def module_of(step: Step) -> object:
    """The module that a step calls."""
    assert isinstance(step.way, WarprowModules)
    return step.way._collection


def test_clients_share_a_module_where_none_asks_beside_another(answers: Answers, tables: Tables, history: Samples) -> None:
    with stored(DRIVES, tables, propose(SHAPE, history, 4096, DRIVES, 32), lambda text: None) as store:
        with WarprowModules(store, SHAPE, CPU, {"dram_bytes": 4096}, 32) as way:
            assert isinstance(way, WarprowModules)
            first, second = (Step(way, None, SHAPE, 32, CPU) for _ in range(2))
            small = Step(way, None, SHAPE, 8, CPU, beside=first)
            owners = [module_of(step) for step in (first, second, small)]
            assert owners[0] is owners[2] is not owners[1]
            small.close()
            answers.check_rows(first, 0)
            for step in (first, second):
                step.close()
            third = Step(way, None, SHAPE, 32, CPU)
            assert module_of(third) in owners
            third.close()
            for clients in (1, 2):
                found = measure(way, "none", answers, answers.layers, 30, Meter(None), clients)
                assert (found.clients, found.compared, found.largest_difference) == (clients, 3 * 32, 0)


def test_hot_rows_on_the_device_are_not_read(answers: Answers, tables: Tables, history: Samples) -> None:
    hot = HotRows(tables, history, 100)
    assert len(hot.numbers) == 100 and torch.equal(hot.rows, tables.on_device[hot.numbers])
    proposal = propose(SHAPE, history, 4096, DRIVES, 32)
    with stored(DRIVES, tables, proposal, lambda text: None) as store:
        for way in (CpuReader(store, SHAPE, CPU, 4096, 2, hot), IdealReader(tables, [0, 0, 0], 1e9, 0.0, hot)):
            with way:
                found = measure(way, "none", answers, answers.layers, 30, Meter(None))
                assert found.largest_difference == 0
                # The last batch has rows of either kind.
                last = answers.lot.ids[-32:] + torch.tensor([0, 3, 503, 503, 503])
                different = torch.tensor(sorted(set(last.reshape(-1).tolist())))
                cached = torch.isin(different, hot.numbers).sum().item()
                assert found.counts == {"different_rows": len(different), "cached_rows": cached} and 0 < cached < len(different)


def test_clients_share_the_time_of_ideal_drives(answers: Answers, tables: Tables) -> None:
    # All rows on drives, 2,000 a second: a batch of 32 samples takes some 50 ms.
    with IdealReader(tables, [0, 0, 0], 2_000, 0.0) as way:
        for clients in (1, 2):
            found = measure(way, "none", answers, answers.layers, 30, Meter(None), clients)
            rows = sum(len(set((answers.lot.ids[at * 32 : at * 32 + 32] + torch.tensor([0, 3, 503, 503, 503])).reshape(-1).tolist())) for at in (3, 4, 5))
            assert found.samples_per_second <= 3 * 32 / (rows / 2_000) * 1.01


def test_processor_time_is_counted() -> None:
    meter = Meter(None)
    ends = threading.Thread(target=sum, args=[range(3_000_000)])
    ends.start()
    before, own = meter.read(), time.thread_time()
    ends.join()
    while time.thread_time() - own < 0.1:
        pass
    spent = meter.read().since(before)
    # What a thread has spent that has ended is not taken off.
    assert 0.05 < spent.cpu_s < 10 and spent.drives_s == 0 and spent.joules is None


def test_batches_are_fetched_ahead(answers: Answers, tables: Tables, history: Samples) -> None:
    with stored(DRIVES, tables, propose(SHAPE, history, 4096, DRIVES, 32), lambda text: None) as store:
        with WarprowModules(store, SHAPE, CPU, {"dram_bytes": 4096}, 32) as way:
            assert isinstance(way, WarprowModules)
            schedules = [Schedule.parse(it) for it in ("prefetch", "prefetch:1", "prefetch:2", "streams:1", "streams:3")]
            for ahead, schedule in itertools.product((1, 2, 5), schedules):
                for layers in (answers.layers, None):
                    found = measure_ahead(way, "none", answers, layers, 30, Meter(None), ahead, schedule)
                    assert (found.compared, found.largest_difference) == (3 * 32, 0)
                    assert found.reads_per_second is not None and found.reads_per_second > 0
                    assert found.way == f"Warprow, {ahead} ahead by {schedule}"
            # A row that is wrong is found, in the last batch too.
            answers.predictions[5, 31] += 1e-3
            with pytest.raises(WrongPrediction, match="prediction"):
                measure_ahead(way, "none", answers, answers.layers, 30, Meter(None), 2)
            answers.tables.on_device[tables.starts[2] + int(answers.lot.ids[5 * 32, 2])] += 1
            try:
                for schedule in schedules:
                    with pytest.raises(WrongPrediction, match="embeddings differ"):
                        measure_ahead(way, "none", answers, None, 30, Meter(None), 2, schedule)
            finally:
                answers.tables.on_device[tables.starts[2] + int(answers.lot.ids[5 * 32, 2])] -= 1


def test_schedules_of_batches_ahead() -> None:
    assert Schedule.parse("prefetch") == Schedule("prefetch", None)
    assert [str(Schedule.parse(it)) for it in ("prefetch", "prefetch:2", "streams:4")] == ["prefetch", "prefetch:2", "streams:4"]
    for text in ("", "streams", "streams:", "streams:0", "streams:5", "prefetch:", "prefetch:x", "prefetch:-1", "threads:2"):
        with pytest.raises(DatasetMismatch, match=f"^{text}: "):
            Schedule.parse(text)


@pytest.mark.parametrize("by", ["prefetch:2", "streams:2"])
def test_two_models_on_one_drive(by: str) -> None:
    models = two_models(SHAPE, PowerLaw(SHAPE, 1.05, 3), CPU, 7, 2000, 32, 6)
    assert not torch.equal(models[0].tables.on_device, models[1].tables.on_device)
    found = list(measure_two_models(models, DRIVES, SHAPE.bytes // 10, 30, 2, Schedule.parse(by), lambda text: None))
    places, who = ("on the same chunks", "on chunks of their own"), ("model a alone", "model b alone", "both models")
    assert [it.way for it in found] == [f"Warprow, 2 ahead by {by}, two models {place}: {one}" for place in places for one in who]
    assert [(it.clients, it.compared) for it in found] == [(1, 3 * 32), (1, 3 * 32), (2, 6 * 32)] * 2
    assert all(it.reads_per_second is not None and it.reads_per_second > 0 for it in found)
    # Rows of one model are not taken for those of the other.
    wrong = [models[0], replace(models[1], answers=models[0].answers)]
    with pytest.raises(WrongPrediction, match="two models on the same chunks: model b alone: .* embeddings differ"):
        list(measure_two_models(wrong, DRIVES, SHAPE.bytes // 10, 30, 2, Schedule.parse(by), lambda text: None))


def test_where_tables_of_two_models_lie() -> None:
    models = two_models(SHAPE, PowerLaw(SHAPE, 1.05, 3), CPU, 7, 2000, 32, 6)
    proposal = propose_all([(it.tables.shape, it.history) for it in models], 4096, DRIVES, 32)
    both = {name: rows for it in models for name, rows in it.tables.by_name().items()}
    with stored_in_turn(DRIVES, [(both, proposal)], lambda text: None) as store:
        assert {it.generation for it in store.tables()} == {0} and len(store.tables()) == 2 * len(SHAPE.rows)
    apart = [(it.tables.by_name(), propose(it.tables.shape, it.history, 4096, DRIVES, 32)) for it in models]
    with stored_in_turn(DRIVES, apart, lambda text: None) as store:
        assert {(it.name[0], it.generation) for it in store.tables()} == {("a", 0), ("b", 1)}
