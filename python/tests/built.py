"""What was built beside the package."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def command() -> Path | None:
    """The command `warprow` that was built; WARPROW_BINARY names another one. None: there is none."""
    given = os.environ.get("WARPROW_BINARY")
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    built = [target / "release" / "warprow", target / "debug" / "warprow"]
    return next((path.resolve() for path in ([Path(given)] if given else built) if path.exists()), None)
