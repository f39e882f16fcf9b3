"""Makes a store on an emulated drive, loads two tables, looks every row up, and compares it.

    python python/examples/quickstart.py
"""

import tempfile

import numpy as np

import warprow

with tempfile.TemporaryDirectory() as folder:
    # An emulated drive is a file. A real drive would be "0000:41:00.0".
    with warprow.format(f"emulated:{folder}/a.drive?size=64M") as store:
        random = np.random.default_rng(1)
        tables = {
            "user": random.standard_normal((10_000, 32), dtype=np.float32),
            "item": random.standard_normal((5_000, 16), dtype=np.float32),
        }
        loaded = store.load(tables)
        print(f"loaded {len(tables)} tables: {loaded.bytes:,} bytes written")
        for name, rows in tables.items():
            ids = random.integers(0, len(rows), 20_000)
            found = store.lookup(name, ids)
            assert np.array_equal(found, rows[ids])
            print(f"looked {len(ids):,} ids up in {name!r}: every row is right")
        store.update("user", [7], np.ones((1, 32), dtype=np.float32))
        assert store.lookup("user", [7]).sum() == 32
        print(f"updated a row; {store!r}")
