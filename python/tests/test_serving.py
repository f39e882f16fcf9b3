"""The example server of examples/serving: scores, refusals, batches, swaps, metrics; and a soak in which every answer is compared.

WARPROW_SOAK=full has a million requests instead of 100,000, some minutes.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warprow

EXAMPLES = Path(__file__).parent.parent / "examples"
sys.path.insert(0, str(EXAMPLES))

from serving import soak  # noqa: E402
from serving.app import App  # noqa: E402
from serving.batcher import Batcher  # noqa: E402
from serving.client import Lifespan, Response, call  # noqa: E402
from serving.example_model import ROWS, ExampleModel  # noqa: E402
from serving.metrics import Metrics  # noqa: E402
from serving.ranker import Ranker  # noqa: E402
from serving.requests import Refused, Sample  # noqa: E402

SOAK_REQUESTS = 1_000_000 if os.environ.get("WARPROW_SOAK") == "full" else 100_000
#: Of the example model low ids lie on drives, and high ones in memory.
ON_DRIVE, IN_MEMORY = Sample(5, [1, 2]), Sample(ROWS["user"] - 1, [ROWS["item"] - 1])


@pytest.fixture
def ranker(tmp_path: Path) -> Iterator[Ranker]:
    with warprow.format(f"emulated:{tmp_path}/a.drive?size=64M", timeout=0.5) as store:
        ExampleModel(1).load(store, tmp_path / "versions")
        yield Ranker(store, tmp_path / "versions", max_batch=16, dram_bytes=100_000)


def body(sample: Sample) -> bytes:
    return json.dumps({"user": sample.user, "items": sample.items}).encode()


async def score(app: App, sample: Sample, **headers: str) -> Response:
    return await call(app, "POST", "/score", body(sample), headers)


def right(response: Response, sample: Sample, model: ExampleModel, generation: int) -> None:
    assert response.status == 200, response
    assert response.json() == {"generation": generation, "score": model.score(sample)}


def refused(response: Response, status: int, kind: str, word: str = "") -> None:
    assert (response.status, response.json()["error"]) == (status, kind), response
    assert word in response.json()["message"], response


def test_scores(ranker: Ranker) -> None:
    async def main() -> None:
        app = App(ranker)
        async with Lifespan(app):
            drawn = np.random.default_rng(1)
            samples = [Sample(int(drawn.integers(ROWS["user"])), drawn.integers(0, ROWS["item"], n % 33).tolist()) for n in range(300)]
            for sample, response in zip(samples, await asyncio.gather(*(score(app, it) for it in samples)), strict=True):
                right(response, sample, ExampleModel(1), ranker.generation)
            assert app.metrics.batch_sizes.sum == 300
            # More than one request was answered by one look-up.
            assert ranker.executor.metrics()["lookups"] < 300

    asyncio.run(main())


@pytest.mark.parametrize(
    ("sent", "word"),
    [
        (b"", "no JSON"),
        (b"[1]", "give"),
        (b'{"user": 1}', "give"),
        (b'{"user": 1, "items": [], "more": 1}', "give"),
        (b'{"user": true, "items": []}', "user"),
        (b'{"user": 1.5, "items": []}', "user"),
        (b'{"user": 9223372036854775808, "items": []}', "user"),
        (b'{"user": 1, "items": 3}', "items"),
        (b'{"user": 1, "items": ["3"]}', "items"),
        (b'{"user": 1, "items": %s}' % json.dumps([1] * 33).encode(), "at most 32"),
        (b" " * (1 << 17), "65536"),
        (b"\xff\xfe", "no JSON"),
        (b"[" * 60_000, "no JSON"),
    ],
)
def test_bad_requests_are_refused(ranker: Ranker, sent: bytes, word: str) -> None:
    async def main() -> None:
        app = App(ranker)
        async with Lifespan(app):
            refused(await call(app, "POST", "/score", sent), 400, "bad_request", word)
            right(await score(app, ON_DRIVE), ON_DRIVE, ExampleModel(1), ranker.generation)

    asyncio.run(main())


def test_routes_and_headers_that_are_not_there(ranker: Ranker) -> None:
    async def main() -> None:
        app = App(ranker)
        async with Lifespan(app):
            for method, path in (("GET", "/score"), ("POST", "/metrics"), ("GET", "/"), ("POST", "/admin/publish")):
                refused(await call(app, method, path), 404, "no_such_route", path)
            for value in ("0", "-1", "soon", "1.5"):
                refused(await score(app, ON_DRIVE, **{"x-deadline-ms": value}), 400, "bad_request", "x-deadline-ms")
            with pytest.raises(ValueError, match="websocket"):
                await app({"type": "websocket"}, None, None)  # type: ignore[arg-type]

    asyncio.run(main())


def test_one_wrong_id_harms_no_other_request(ranker: Ranker) -> None:
    async def main() -> None:
        app = App(ranker, max_delay=0.05)
        async with Lifespan(app):
            wrong = [Sample(ROWS["user"], []), Sample(1, [2, ROWS["item"]]), Sample(-1, []), Sample(1, [-5, 3])]
            samples = [Sample(number, [number]) for number in range(8)]
            given = await asyncio.gather(*(score(app, it) for pair in zip(samples, wrong * 2, strict=True) for it in pair))
            for sample, response in zip(samples, given[::2], strict=True):
                right(response, sample, ExampleModel(1), ranker.generation)
            for sample, response in zip(wrong * 2, given[1::2], strict=True):
                refused(response, 422, "no_such_row", "no row of id")
            assert app.metrics.batch_sizes.counts[4] == 1, "all were one batch"

    asyncio.run(main())


@pytest.mark.parametrize("fault", ["unreadable", "unanswered"])
def test_a_failing_drive_gives_refusals_and_no_wrong_score(ranker: Ranker, fault: str) -> None:
    async def main() -> None:
        app = App(ranker, deadline=30.0)
        async with Lifespan(app):
            ranker.store.inject_fault(fault, times=None)
            lost, kept = await asyncio.gather(score(app, ON_DRIVE), score(app, IN_MEMORY))
            refused(lost, 503, "rows_failed", "try again")
            assert lost.headers["retry-after"] == "1"
            right(kept, IN_MEMORY, ExampleModel(1), ranker.generation)
            ranker.store.clear_faults()
            ranker.store.retry_drives()
            right(await score(app, ON_DRIVE), ON_DRIVE, ExampleModel(1), ranker.generation)

    asyncio.run(main())


def test_a_wrong_bit_gives_a_refusal_and_no_wrong_score(ranker: Ranker) -> None:
    async def main() -> None:
        app = App(ranker, deadline=30.0)
        async with Lifespan(app):
            ranker.store.inject_fault("corrupt", times=None)
            # All rows of some blocks: the bit that is wrong belongs to one of them.
            samples = [Sample(user, []) for user in range(64)]
            responses = await asyncio.gather(*(score(app, sample) for sample in samples))
            lost = [response for response in responses if response.status != 200]
            assert lost
            for response in lost:
                refused(response, 503, "rows_failed")
            for sample, response in zip(samples, responses, strict=True):
                if response.status == 200:
                    right(response, sample, ExampleModel(1), ranker.generation)

    asyncio.run(main())


def test_a_deadline_ends_while_the_drive_says_nothing(ranker: Ranker) -> None:
    async def main() -> None:
        app = App(ranker, deadline=30.0)
        async with Lifespan(app):
            ranker.store.inject_fault("unanswered", times=None)
            refused(await score(app, ON_DRIVE, **{"x-deadline-ms": "20"}), 504, "deadline", "20 ms")
            ranker.store.clear_faults()
            ranker.store.retry_drives()
            right(await score(app, ON_DRIVE), ON_DRIVE, ExampleModel(1), ranker.generation)

    asyncio.run(main())


def test_a_drive_that_was_given_up_makes_the_server_unready(ranker: Ranker) -> None:
    async def main() -> None:
        app = App(ranker, deadline=30.0)
        assert (await call(app, "GET", "/health/ready")).status == 503
        assert (await call(app, "GET", "/health/live")).status == 200
        async with Lifespan(app):
            assert (await call(app, "GET", "/health/ready")).json() == {"ready": True, "reason": None}
            ranker.store.close()
            response = await call(app, "GET", "/health/ready")
            assert response.status == 503 and "closed" in response.json()["reason"]
            refused(await score(app, ON_DRIVE), 503, "store_failed", "Closed")
            refused(await call(app, "GET", "/metrics"), 503, "store_failed")

    asyncio.run(main())


class Gated:
    """Answers numbers by their squares, when it is let."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = threading.Semaphore(0)

    def __call__(self, samples: list[int]) -> Sequence[int | Refused]:
        assert self.gate.acquire(timeout=30)
        self.batches.append(samples)
        return [number * number for number in samples]


async def settle() -> None:
    """Lets tasks run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_the_queue_is_bounded_and_refuses_at_once() -> None:
    async def main() -> None:
        model = Gated()
        batcher: Batcher[int, int] = Batcher(model, max_batch=4, max_delay=0.0, queue_limit=10)
        batcher.start()
        first = asyncio.create_task(batcher.submit(100, 30.0))
        await settle()
        assert len(batcher) == 0
        # The first is under way, ten wait, and all others are refused before anything is answered.
        tasks = [asyncio.create_task(batcher.submit(number, 30.0)) for number in range(50)]
        await settle()
        done = [task for task in tasks if task.done()]
        assert len(done) == 40 and len(batcher) == 10 and model.batches == []
        for task in done:
            error = task.exception()
            assert isinstance(error, Refused) and (error.kind, error.status) == ("busy", 503) and error.retry_after
        for _ in range(4):
            model.gate.release()
        assert await first == 10_000
        kept = [task for task in tasks if task not in done]
        assert [await task for task in kept] == [number * number for number in range(10)]
        # No accepted request waited behind more than a full queue: ten requests in three batches, in their order.
        assert model.batches == [[100], [0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        await batcher.close()

    asyncio.run(main())


def test_what_has_met_its_deadline_is_not_looked_up() -> None:
    async def main() -> None:
        model = Gated()
        batcher: Batcher[int, int] = Batcher(model, max_batch=4, max_delay=0.0, queue_limit=10)
        batcher.start()
        tasks = [asyncio.create_task(batcher.submit(1, 0.02))]
        await asyncio.sleep(0.01)
        tasks += [asyncio.create_task(batcher.submit(2, 0.01)), asyncio.create_task(batcher.submit(3, 30.0))]
        for task in tasks[:2]:
            with pytest.raises(Refused) as caught:
                await task
            assert caught.value.kind == "deadline" and caught.value.status == 504
        model.gate.release(2)
        assert await tasks[2] == 9
        assert model.batches == [[1], [3]]
        await batcher.close()

    asyncio.run(main())


def test_a_batch_gathers_until_its_first_request_has_waited_long_enough() -> None:
    async def main() -> None:
        model = Gated()
        batcher: Batcher[int, int] = Batcher(model, max_batch=3, max_delay=0.05, queue_limit=10)
        model.gate.release(10)
        batcher.start()
        assert await asyncio.gather(*(batcher.submit(number, 30.0) for number in range(7))) == [0, 1, 4, 9, 16, 25, 36]
        # Two full batches went at once; the seventh request waited for others until its time was up.
        assert model.batches == [[0, 1, 2], [3, 4, 5], [6]]
        await batcher.close()

    asyncio.run(main())


def test_closing_answers_what_waits_and_refuses_what_comes() -> None:
    async def main() -> None:
        model = Gated()
        batcher: Batcher[int, int] = Batcher(model, max_batch=2, max_delay=10.0, queue_limit=10)
        batcher.start()
        tasks = [asyncio.create_task(batcher.submit(number, 30.0)) for number in range(5)]
        await settle()
        closing = asyncio.create_task(batcher.close())
        await settle()
        with pytest.raises(Refused) as caught:
            await batcher.submit(9, 30.0)
        assert caught.value.kind == "closing"
        model.gate.release(10)
        assert [await task for task in tasks] == [0, 1, 4, 9, 16]
        await closing

    asyncio.run(main())


def test_a_model_that_raises_refuses_its_batch_and_serves_the_next() -> None:
    async def main() -> None:
        def model(samples: list[int]) -> list[int | Refused]:
            if 13 in samples:
                raise ZeroDivisionError("thirteen")
            return [Refused("no_such_row", "seven") if number == 7 else number for number in samples]

        batcher: Batcher[int, int] = Batcher(model, max_batch=4, max_delay=0.0, queue_limit=10)
        batcher.start()
        with pytest.raises(Refused, match="ZeroDivisionError: thirteen"):
            await batcher.submit(13, 30.0)
        found = await asyncio.gather(*(batcher.submit(number, 30.0) for number in (6, 7, 8)), return_exceptions=True)
        assert found[0] == 6 and found[2] == 8 and isinstance(found[1], Refused) and found[1].kind == "no_such_row"
        await batcher.close()
        for wrong in ({"max_batch": 0}, {"queue_limit": 0}, {"max_delay": -1.0}, {"max_delay": float("nan")}):
            with pytest.raises(ValueError, match="from"):
                Batcher(model, **{"max_batch": 1, "queue_limit": 1, "max_delay": 0.0, **wrong})

    asyncio.run(main())


def test_a_generation_is_published_over_http(ranker: Ranker, tmp_path: Path) -> None:
    async def main() -> None:
        app = App(ranker, admin=True)
        async with Lifespan(app):
            first = ranker.generation
            right(await score(app, ON_DRIVE), ON_DRIVE, ExampleModel(1), first)
            ExampleModel(2).write(tmp_path / "next")
            wrong = [b"", b"{}", b"[]", b'{"source": 3}', json.dumps({"source": str(tmp_path / "nothing")}).encode()]
            for sent in wrong:
                refused(await call(app, "POST", "/admin/publish", sent), 400, "bad_request")
            assert ranker.generation == first
            given = await call(app, "POST", "/admin/publish", json.dumps({"source": str(tmp_path / "next")}).encode())
            assert given.status == 200 and given.json()["generation"] == ranker.generation != first
            right(await score(app, ON_DRIVE), ON_DRIVE, ExampleModel(2), ranker.generation)
            ranker.drop(first)
        # Whoever opens the store later finds the dense layer of the generation that is shown.
        again = Ranker(ranker.store, tmp_path / "versions")
        answer = again.answer([ON_DRIVE])[0]
        assert not isinstance(answer, Refused) and answer.score == ExampleModel(2).score(ON_DRIVE)

    asyncio.run(main())


def test_metrics_and_what_the_board_shows(ranker: Ranker) -> None:
    async def main() -> str:
        app = App(ranker)
        async with Lifespan(app):
            for _ in range(3):
                await score(app, ON_DRIVE)
            await score(app, Sample(-1, []))
            response = await call(app, "GET", "/metrics")
            assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
            return response.body.decode()

    text = asyncio.run(main())
    lines = text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert values['warprow_server_requests_total{result="ok"}'] == "3"
    assert values['warprow_server_requests_total{result="no_such_row"}'] == "1"
    assert values["warprow_lookup_lookups_total"] == "4" and values["warprow_lookup_ids_total"] == "10"
    assert values["warprow_server_batch_requests_count"] == "4" and values["warprow_drives_failed"] == "0"
    assert values['warprow_server_request_seconds_bucket{le="+Inf"}'] == "3"
    # Each name has one type, said before its values; buckets add up.
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    counts = [int(value) for name, value in values.items() if name.startswith("warprow_server_batch_seconds_bucket")]
    assert counts == sorted(counts) and counts[-1] == 4
    # The board asks for nothing that is not there.
    board = json.loads((EXAMPLES / "serving" / "grafana.json").read_text())
    asked = {name for name in re.findall(r"\bwarprow_\w+", json.dumps(board["panels"]))}
    there = {re.sub(r"\{.*", "", name) for name in values}
    assert asked and asked <= there, asked - there
    places = [panel["gridPos"] for panel in board["panels"]]
    assert len({(place["x"], place["y"]) for place in places}) == len(places)


def test_counts_of_a_cache_have_names_of_their_own() -> None:
    lookups = {"lookups": 7.0, "cache_hits": 5.0, "cache_evictions": 2.0, "cache_used": 3.0, "cache_eviction_age": 40.0}
    text = Metrics().text(queue=0, limit=1, generation=1, lookups=lookups, drives={})
    lines = text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    names = ("lookup_lookups_total", "cache_hits_total", "cache_evictions_total", "cache_used", "cache_eviction_age")
    assert [values[f"warprow_{name}"] for name in names] == ["7", "5", "2", "3", "40"]
    for name, kind in (("cache_hits_total", "counter"), ("cache_used", "gauge"), ("cache_eviction_age", "gauge")):
        assert f"# TYPE warprow_{name} {kind}" in lines


def test_requests_under_updates_swaps_and_a_failing_drive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("WARPROW_SEED", "1"))
    with capsys.disabled():
        counts = soak.run(tmp_path, requests=SOAK_REQUESTS, seed=seed)
        print(f"\nsoak: {json.dumps(counts)}")
    assert counts["requests"] == sum(counts["results"].values()) >= SOAK_REQUESTS
    assert counts["swaps"] == 6 and len(counts["by_generation"]) == 7
    assert counts["updates"] > 0 and counts["answers_with_an_updated_row"] > 0
    assert counts["results"]["ok"] > SOAK_REQUESTS // 2


def test_a_soak_finds_a_wrong_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, calls = Ranker.answer, [0]

    def wrong(self: Ranker, samples: Sequence[Sample]) -> Any:
        answers = answer(self, samples)
        calls[0] += 1
        # One answer has the rows of a generation and the dense layer of another.
        if calls[0] == 20:
            answers[0] = type(answers[0])(answers[0].generation, answers[0].score + 1000)
        return answers

    monkeypatch.setattr(Ranker, "answer", wrong)
    with pytest.raises(AssertionError, match="seed 1: Sample"):
        soak.run(tmp_path, requests=20_000, swaps=0, faults=0)


def test_uvicorn_serves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    import urllib.request

    from serving.app import create

    with warprow.format(f"emulated:{tmp_path}/a.drive?size=64M") as store:
        generation = ExampleModel(1).load(store, tmp_path / "versions")
    monkeypatch.setenv("WARPROW_DRIVES", f"emulated:{tmp_path}/a.drive")
    monkeypatch.setenv("WARPROW_VERSIONS", str(tmp_path / "versions"))
    server = uvicorn.Server(uvicorn.Config(create(), host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        for _ in range(3000):
            if server.started:
                break
            threading.Event().wait(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/score", data=body(ON_DRIVE), timeout=30) as response:
            assert json.load(response) == {"generation": generation, "score": ExampleModel(1).score(ON_DRIVE)}
    finally:
        server.should_exit = True
        thread.join()
