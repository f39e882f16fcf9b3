"""Where on a drive `load(span=)` places tables: where `warprow load --span` does. Rows are looked for in the drive's file, and looked up."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

import warprow
from built import command

ROWS, DIM, DRIVE = 60_000, 16, 96 << 20
#: Bytes of a chunk on a drive so small.
CHUNK = 1 << 20
SPANS = ("packed", "whole")
#: The second table finds some chunks taken. No two rows of both are equal.
TABLES = {"t": np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM), "u": -1 - np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM)}


def address(path: Path) -> str:
    return f"emulated:{path}?size={DRIVE}"


def places(path: Path, name: str) -> np.ndarray:
    """Where in the drive's file each row of a table lies, by its id."""
    table, drive = TABLES[name], np.fromfile(path, dtype=np.float32).reshape(-1, DIM)
    ids = np.abs(drive[:, 0] - table[0, 0]) / DIM
    at = np.flatnonzero((ids < ROWS) & (ids == np.floor(ids)))
    at = at[(drive[at] == table[ids[at].astype(np.int64)]).all(axis=1)]
    found = ids[at].astype(np.int64)
    assert np.bincount(found, minlength=ROWS).tolist() == [1] * ROWS, "each row lies in one place"
    return at[np.argsort(found)] * table[0].nbytes


def loaded(path: Path, **options: str) -> list[np.ndarray]:
    """Loads both tables, looks every row up, and tells where rows lie."""
    with warprow.format(address(path)) as store:
        for name, table in TABLES.items():
            store.load({name: table}, checksums=False, **options)
        for name, table in TABLES.items():
            np.testing.assert_array_equal(store.lookup(name, np.arange(ROWS)), table)
    return [places(path, name) for name in TABLES]


def test_tables_are_packed_or_on_the_whole_drive(tmp_path: Path) -> None:
    packed, whole = (loaded(tmp_path / f"{span}.drive", span=span) for span in SPANS)
    for places in packed:
        assert (np.diff(np.unique(places // CHUNK)) == 1).all()
    for places in whole:
        chunks = np.unique(places // CHUNK)
        assert len(chunks) == 4 and (np.diff(chunks) * CHUNK > DRIVE // 5).all(), chunks
    # Without a word tables are packed.
    np.testing.assert_array_equal(loaded(tmp_path / "default.drive"), packed)


@pytest.mark.parametrize("span", SPANS)
def test_tables_lie_where_the_command_places_them(tmp_path: Path, span: str) -> None:
    found = command()
    if found is None:
        pytest.skip("the command `warprow` is not built (cargo build -p warprow)")
    path = tmp_path / "command.drive"
    subprocess.run([found, "format", "-d", address(path)], check=True, stdout=subprocess.DEVNULL)
    for name, table in TABLES.items():
        file = tmp_path / f"{name}.npy"
        np.save(file, table)
        subprocess.run([found, "load", "-d", address(path), file, "--span", span], check=True, stdout=subprocess.DEVNULL)
    wanted = [places(path, name) for name in TABLES]
    np.testing.assert_array_equal(loaded(tmp_path / "python.drive", span=span), wanted)


@pytest.mark.parametrize(("span", "error"), [("wide", warprow.InvalidArgument), ("", warprow.InvalidArgument), (None, warprow.WrongType)])
def test_another_span_is_refused_by_name(store: warprow.Store, span: object, error: type[Exception]) -> None:
    with pytest.raises(error, match='span.*"packed" or "whole"'):
        store.load({"t": TABLES["t"]}, span=span)  # type: ignore[arg-type]
    assert store.tables() == []
