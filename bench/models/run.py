"""The command: see `python3 bench/models/run.py --help`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
# The folder of this file would come first, and with it modules of the package a second time, by other names.
sys.path = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]

from models.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
