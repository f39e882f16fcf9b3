"""The command, its tables and its pictures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import torch
import warprow
from models import contenders
from models.command import main, parser, sizes_of
from models.contenders import choose
from models.drives import stored
from models.figures import FIGURES
from models.output.markdown import table
from models.output.picture import line_chart
from models.shapes import Shape
from models.world import make_tables

RUN = Path(__file__).resolve().parents[1] / "run.py"


def test_tables_and_pictures() -> None:
    lines = table(["a", "b"], [[1, 2.3456], ["x", None], [0.00012, 12345.6]]).splitlines()
    assert lines[2:] == ["| 1 | 2.35 |", "| x | – |", "| 0.00012 | 12,346 |"]
    drawn = line_chart("Title <1>", "x", "y", {"one": [(1, 10), (1000, 20)], "none": [(0, 1)]})
    texts = [it.text for it in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert "Title <1>" in texts and "one" in texts and "none" not in texts and "1 k" in texts
    ElementTree.fromstring(line_chart("nothing", "x", "y", {}))


def test_a_run_writes_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--device", "cpu", "--shape", "avazu", "--bytes", "3M", "--batch", "32", "--drives", "1", "--ways", "memory,uva,peer,warprow"]
    arguments += ["--experiments", "throughput,embeddings,latency", "--seconds", "0.1", "--batches", "10", "--history", "2000", "--threads", "2", "--request", "8", "--loads", "0.3,1.5"]
    arguments += ["--json", str(tmp_path / "found.json"), "--output", str(tmp_path / "pages")]
    assert main(arguments) == 0
    told = capsys.readouterr()
    assert "skipped: reads of pinned memory need a GPU" in told.err and "| Warprow |" in told.out
    found = json.loads((tmp_path / "found.json").read_text())
    assert [(it["way"], it["what"]) for it in found["throughput"]] == [
        (way, what) for way in ("all rows in memory", "Warprow") for what in ("model", "embeddings")
    ]
    assert all(it["compared"] > 0 and it["largest_difference"] <= 1e-5 for it in found["throughput"] + found["latency"])
    assert len(found["latency"]) == 4 and found["setup"]["seed"] == 1
    assert {it.name for it in (tmp_path / "pages").iterdir()} == {"tables.md", "model.svg", "embeddings.svg", "latency.svg"}


def test_embeddings_alone_need_no_dense_layers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arguments = ["--device", "cpu", "--shape", "avazu", "--bytes", "3M", "--batch", "16", "--drives", "1", "--ways", "memory,torch"]
    arguments += ["--experiments", "embeddings", "--batches", "8", "--seconds", "0.1", "--history", "2000", "--threads", "1"]

    def none(*given: Any) -> None:
        raise AssertionError("dense layers were made")

    monkeypatch.setattr("models.dense.make", none)
    assert main([*arguments, "--json", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())["throughput"]
    assert [(it["way"], it["what"], it["compared"] > 0) for it in found] == [
        ("all rows in memory", "embeddings", True),
        ("PyTorch on the CPU, copy", "embeddings", True),
    ]


def test_runs_that_follow_each_other_share_tables() -> None:
    shape = Shape("small", (3, 40), 4, (1, 1), 0)
    first = make_tables(shape, torch.device("cpu"), 1)
    assert make_tables(shape, torch.device("cpu"), 1) is first
    other = make_tables(shape, torch.device("cpu"), 2)
    assert other is not first and not torch.equal(other.on_host, first.on_host)
    assert make_tables(shape, torch.device("cpu"), 1) is not first


def test_a_measurement_that_is_cut_off_loses_none_before_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arguments = ["--device", "cpu", "--shape", "avazu", "--bytes", "3M", "--batch", "16", "--drives", "1", "--ways", "memory,torch"]
    arguments += ["--batches", "8", "--seconds", "0.1", "--history", "2000", "--threads", "1", "--json", str(tmp_path / "found.json")]

    def stopped(*given: Any) -> None:
        # Where a signal would have ended the process, nothing that follows runs.
        assert [it["way"] for it in json.loads((tmp_path / "found.json").read_text())["throughput"]] == ["all rows in memory"]
        raise KeyboardInterrupt

    monkeypatch.setattr("models.ways.torch_cpu.TorchCpu.embed_into", stopped)
    with pytest.raises(KeyboardInterrupt):
        main(arguments)


def test_a_drive_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def failing(*given: Any) -> warprow.Store:
        store = stored(*given)
        # Behind the batches that are compared while a way warms up, and its first ones.
        store.inject_fault("unreadable", nth=200, times=None)
        return store

    monkeypatch.setattr(contenders, "stored", failing)
    arguments = ["--device", "cpu", "--shape", "avazu", "--bytes", "3M", "--batch", "32", "--drives", "1", "--ways", "memory,warprow"]
    arguments += ["--batches", "40", "--seconds", "5", "--history", "2000", "--threads", "1", "--json", str(tmp_path / "found.json")]
    assert main(arguments) == 1
    found = json.loads((tmp_path / "found.json").read_text())
    assert [it["way"] for it in found["throughput"]] == ["all rows in memory"]
    assert len(found["failures"]) == 1 and "RowsFailed" in found["failures"][0]
    assert "failed: Warprow | 1 p5800x that a thread plays: RowsFailed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--ways", "telepathy"], "telepathy"),
        (["--model", "dlrm", "--shape", "avazu", "--bytes", "3M"], "dense features"),
        (["--bytes", "10"], "too few"),
        (["--trace", "/nowhere.npy", "--bytes", "30M"], "nowhere"),
        (["--alpha", "-2", "--bytes", "30M"], "exponent"),
    ],
)
def test_what_cannot_be_is_an_error(arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu", *arguments]) == 1
    assert word in capsys.readouterr().err


def test_arguments_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--batch", "x"], ["--batch", "0"], ["--bytes", "G"], ["--loads", "0"], ["--experiments", "guess"]):
        with pytest.raises(SystemExit):
            main(arguments)
    assert "guess" in capsys.readouterr().err
    assert parser().parse_args(["--bytes", "1.5G"]).bytes == 3 << 29


def test_it_runs_as_a_command_and_explains_itself() -> None:
    done = subprocess.run([sys.executable, str(RUN), "--help"], capture_output=True, text=True, timeout=120, check=True)
    assert "examples:" in done.stdout and "--small" in done.stdout


def test_every_figure_is_a_run_that_the_command_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = parser()
    for figure in FIGURES.values():
        for own in figure.runs.values():
            choose(made.parse_args(own).ways)
    small = ["--device", "cpu", "--bytes", "3M", "--batch", "16,32", "--batches", "5", "--seconds", "0.1", "--history", "2000", "--threads", "2"]
    assert main(["--figures", "6,7", *small, "--drives", "1", "--output", str(tmp_path)]) == 0
    page = (tmp_path / "page.md").read_text()
    # All rows in DRAM, and none.
    for run, tier in (("figure-6-dram", "ids_dram"), ("figure-7-drives", "ids_ssd")):
        assert f"({run}/embeddings.svg)" in page
        found = json.loads((tmp_path / run / "found.json").read_text())["throughput"]
        (own,) = [it for it in found if it["way"] == "Warprow" and it["batch"] == 32]
        assert own["counts"][tier] == own["counts"]["ids"] == 32
    assert "figure 7, drives" in capsys.readouterr().err
    for arguments in (["--figures", "11", "--output", str(tmp_path)], ["--figures", "6"]):
        with pytest.raises(SystemExit):
            main(arguments)


def test_sizes_of_batches() -> None:
    assert sizes_of(64) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 22, 27, 33, 41, 51, 64]
    for most in (1, 2, 3, 5, 8, 9, 100, 1000):
        sizes = sizes_of(most)
        assert sizes[0] == 1 and sizes[-1] == most and all(a < b <= max(a + 1, 1.5 * a) for a, b in zip(sizes, sizes[1:]))
