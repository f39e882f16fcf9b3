"""The command: see `python3 bench/models/run.py --help`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Streams that share a queue of the hardware wait for each other: with few queues, a look-up and the drive that it waits for may.
# CUDA reads this when it is first used.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
# So do a kernel that is loaded when it is first used, and a drive that the same GPU plays.
os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
# The folder of this file would come first, and with it modules of the package a second time, by other names.
sys.path = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]

from models.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
