"""`python -m warprow.torch.native build` compiles the library of operators; `path` prints its file, `include`
the folder of its header."""

from __future__ import annotations

import argparse
import sys

from ...errors import WarprowError
from . import SOURCES, build, path


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m warprow.torch.native", description=__doc__)
    arguments.add_argument("command", choices=["build", "path", "include"])
    arguments.add_argument("--to", help="of build: the file to make")
    given = arguments.parse_args()
    if given.command == "include":
        print(SOURCES[0].parent)
        return 0
    if given.command == "path":
        print(path())
        return 0
    try:
        print(build(given.to))
    except WarprowError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
