"""Errors of Rust name things of Rust's. What Python raises names them as Python does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import warprow
from warprow.errors import _NAMES, _make, _named

ROOT = Path(__file__).parents[2]
#: The crates whose errors reach Python.
CRATES = ("driver", "gpu", "gpu-queues", "kernels", "layout", "lookup", "modules", "soft-controller", "store", "formats", "plan")
#: Errors of raw commands, of queues' options and of last touches, which this package neither sends nor sets nor notes.
UNREACHED = ("push_error.rs", "set.rs", "memory_placement.rs", "queue_placement.rs", "last_touches.rs", "touches.rs")
#: An item of Rust's, as a text for people names it.
ITEM = re.compile(r"(?<!::)\b[A-Z][A-Za-z]+::[A-Za-z_]+")


def texts(source: str) -> list[str]:
    """The texts of a source file, without those of comments and tests."""
    code = source.split("#[cfg(test)]\nmod tests")[0]
    code = re.sub(r"^\s*//.*$", "", code, flags=re.MULTILINE)
    # Texts that go on in the next line.
    return [re.sub(r"\\\n\s*", "", text) for text in re.findall(r'"((?:[^"\\]|\\.|\\\n)*)"', code)]


def test_every_item_of_rust_that_an_error_names_has_a_name_here() -> None:
    if not (ROOT / "driver" / "src").is_dir():
        pytest.skip("the sources of Rust are not there")
    found = []
    for crate in CRATES:
        for path in sorted((ROOT / crate / "src").rglob("*.rs")):
            if path.name in UNREACHED:
                continue
            for text in texts(path.read_text()):
                found += [f"{path.relative_to(ROOT)}: {item} in {text!r}" for item in ITEM.findall(_named(text))]
    assert found == []
    # None of them is left over.
    every = "\n".join(text for crate in CRATES for path in (ROOT / crate / "src").rglob("*.rs") for text in texts(path.read_text()))
    assert [rust for rust in _NAMES if rust not in every] == []


def test_a_message_has_the_names_of_python() -> None:
    error = _make("DriveFailed", "the drive was given up; once it is back, retry it (Controller::retry), or open it anew", {})
    assert isinstance(error, warprow.DriveFailed)
    assert str(error) == "the drive was given up; once it is back, retry it (Store.retry_drives), or open it anew"
