#!/usr/bin/env python3
"""Trains a toy table a pass at a time, through the command `warprow pass`. Needs numpy and safetensors.

    python3 passes/examples/train.py --warprow target/release/warprow

Users have vectors that nobody knows; what is known are their products with random vectors. A table of user vectors, with the sums of Adagrad
behind them, learns them: each day is a pass over the users that were there. The same training runs on an array in memory as well, and in the
end the table on the drive has to be that array, bit for bit.
"""

import argparse
import json
import os
import subprocess
import tempfile

import numpy as np
from safetensors.numpy import load_file, save_file

USERS, DIM, DAYS, SAMPLES = 4_000, 8, 4, 60_000
TABLE = "user"


def train(rows, number, samples):
    """Adagrad over the samples of a day. A row is a vector and, behind it, the sum of squares of each element's gradients."""
    users, inputs, wanted = samples
    vectors, sums = rows[:, :DIM], rows[:, DIM:]
    loss = 0.0
    for first in range(0, len(users), 256):
        batch = slice(first, first + 256)
        at, x = number[users[batch]], inputs[batch]
        error = (vectors[at] * x).sum(axis=1) - wanted[batch]
        loss += float((error**2).sum())
        gradients = np.zeros_like(vectors)
        np.add.at(gradients, at, error[:, None] * x)
        touched = np.unique(at)
        sums[touched] += gradients[touched] ** 2
        vectors[touched] -= np.float32(0.5) * gradients[touched] / np.sqrt(sums[touched] + np.float32(1e-6))
    return loss / len(users)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--warprow", default="warprow", help="the command")
    command = os.path.abspath(path) if os.path.sep in (path := parser.parse_args().warprow) else path

    random = np.random.default_rng(1)
    truth = random.standard_normal((USERS, DIM), dtype=np.float32)
    keys = np.unique(random.integers(-(2**62), 2**62, USERS * 2))[:USERS]
    random.shuffle(keys)

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)

        def warprow(*arguments):
            done = subprocess.run([command, "--json", *arguments], check=True, stdout=subprocess.PIPE, text=True)
            return json.loads(done.stdout)

        drive = ["-d", "emulated:a.drive"]
        of_table = [*drive, "--table", TABLE]
        in_memory = np.zeros((USERS, 2 * DIM), dtype=np.float32)
        np.save("keys.npy", keys)
        save_file({TABLE: in_memory}, "user.safetensors")
        warprow("format", "-d", "emulated:a.drive,size=256M", "--yes")
        warprow("load", *drive, "user.safetensors", "--keys", "keys.npy", "--row-crc")

        losses = []
        for day in range(DAYS):
            present = random.permutation(USERS)[: USERS // 2]
            users = random.choice(present, SAMPLES)
            inputs = random.standard_normal((SAMPLES, DIM), dtype=np.float32)
            samples = users, inputs, (truth[users] * inputs).sum(axis=1)

            # The keyset may have keys twice, as the training data does.
            np.save("keyset.npy", keys[users])
            warprow("pass", "begin", *of_table, "--keys", "keyset.npy", "--out", "rows.safetensors", "--force")
            tensors = load_file("rows.safetensors")
            rows = tensors[TABLE].copy()
            # Where the row of each user stands: row i is that of tensors["user.keys"][i].
            order = np.argsort(keys)
            which = order[np.searchsorted(keys, tensors[TABLE + ".keys"], sorter=order)]
            number = np.full(USERS, -1)
            number[which] = np.arange(len(which))
            assert np.array_equal(rows, in_memory[which]), "the rows that were staged are not those of the table"

            losses.append(train(rows, number, samples))
            save_file({**tensors, TABLE: rows}, "rows.safetensors")
            done = warprow("pass", "commit", *of_table, "--rows", "rows.safetensors", "--journal", "user.journal")
            in_memory[which] = rows
            print(f"day {day + 1}: pass {done['pass']}, {done['rows']} rows, mean squared error {losses[-1]:.4f}")

        assert losses[-1] < losses[0] / 2, "it has not learnt"
        warprow("export", *of_table, "--out", "all.safetensors", "--keys-out", "all.npy")
        order, found = np.argsort(keys), np.load("all.npy")
        which = order[np.searchsorted(keys, found, sorter=order)]
        assert np.array_equal(load_file("all.safetensors")[TABLE], in_memory[which]), "the table is not what was trained"
        delta = warprow(
            "incremental", *of_table, "--journal", "user.journal", "--out", "delta.safetensors", "--vector", str(DIM), "--mark"
        )
        print(f"the table is what was trained in memory, bit for bit; {delta['rows']} rows are to be served anew")


if __name__ == "__main__":
    main()
