"""Requests that arrive by themselves."""

from __future__ import annotations

import pytest
import torch

from models.errors import Overloaded, WrongPrediction
from models.experiments.open_loop import Queue, Server
from models.tables import Tables
from models.ways import DeviceMemory
from models.world import Answers


def test_a_queue_is_bounded_and_keeps_order() -> None:
    queue = Queue(4)
    for request in (0, 1, 2, 5):
        queue.put(request)
    with pytest.raises(Overloaded, match="request 6: 4 requests wait"):
        queue.put(6)
    # A batch ends before a gap, and before the samples begin again.
    assert [queue.take(8, 2), queue.take(8, 2), queue.take(8, 2)] == [[0, 1], [2], [5]]
    assert len(queue) == 0


def test_all_requests_are_answered_or_refused(answers: Answers, tables: Tables) -> None:
    assert answers.layers is not None
    with torch.inference_mode():
        server = Server(DeviceMemory(tables), answers, answers.layers, 8, [1, 2, 4])
        calm = server.offer(2_000, 0.3, 1000, 1, "none")
        assert calm.refused == 0 and calm.requests == 75 and calm.compared == 75 * 8
        assert 0 < calm.p50_us <= calm.p99_us <= calm.p999_us and calm.batched >= 1
        flooded = server.offer(100_000_000, 0.0001, 3, 1, "none")
        assert flooded.refused > 0 and flooded.compared == (flooded.requests - flooded.refused) * 8


def test_a_wrong_answer_is_found(answers: Answers, tables: Tables) -> None:
    assert answers.layers is not None
    with torch.inference_mode():
        server = Server(DeviceMemory(tables), answers, answers.layers, 8, [1, 2, 4])
        answers.predictions[0, 3] += 1e-3
        with pytest.raises(WrongPrediction, match="prediction"):
            server.offer(2_000, 0.1, 1000, 1, "none")
