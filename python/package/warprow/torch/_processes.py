"""Which processes of this machine have ended."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: How long a process may take to end whose connections are closed already, seconds.
ENDING = 0.5


@dataclass(frozen=True)
class Process:
    """A process as others on its machine find it.

    Parameters
    ----------
    machine : str
        The machine since it booted, and the namespace of `pid`. "": it is not known.
    pid : int
        Its number.
    began : str
        When it began, which tells it from a later one with this number.
    """

    machine: str
    pid: int
    began: str


def own() -> Process:
    """The process that calls."""
    try:
        machine = f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
        return Process(machine, os.getpid(), _stat(os.getpid())[1])
    except (OSError, IndexError):
        return Process("", os.getpid(), "")


def _stat(pid: int) -> tuple[str, str]:
    """The state of a process, and when it began, in ticks since the machine booted."""
    # The name of its program, in parentheses, may have blanks.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], fields[19]


def _has_ended(process: Process) -> bool:
    try:
        state, began = _stat(process.pid)
    except (FileNotFoundError, ProcessLookupError):
        return True
    except (OSError, IndexError):
        return False
    return state in "ZX" or began != process.began


def ended(processes: Sequence[Process], patience: float = 0.0) -> list[int]:
    """The places in a list of those that have ended, of this machine's. If none has, it waits so many seconds for one."""
    here = own().machine
    near = [at for at, process in enumerate(processes) if here and process.machine == here]
    until = time.monotonic() + patience
    while True:
        found = [at for at in near if _has_ended(processes[at])]
        if found or not near or time.monotonic() > until:
            return found
        time.sleep(0.01)
