"""What work costs besides time: processor time of this process, by threads, and the GPU's energy."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

#: Threads that play emulated drives have names that begin so.
_DRIVE = "nvme-"


@dataclass(frozen=True)
class Spent:
    """What was spent between two moments, by the threads that are there at the second."""

    #: Seconds of all threads but those that play drives.
    cpu_s: float
    #: Seconds of threads that play drives.
    drives_s: float
    #: Joules of the GPU; None where nobody counts them.
    joules: float | None


@dataclass(frozen=True)
class Reading:
    """Totals at a moment."""

    #: Seconds of each thread, by its number and name.
    threads: dict[tuple[int, str], float]
    joules: float | None

    def since(self, before: Reading) -> Spent:
        """What was spent since an earlier reading."""
        spent = {thread: seconds - before.threads.get(thread, 0.0) for thread, seconds in self.threads.items()}
        drives = sum(seconds for (_, name), seconds in spent.items() if name.startswith(_DRIVE))
        joules = None if self.joules is None or before.joules is None else self.joules - before.joules
        return Spent(sum(spent.values()) - drives, drives, joules)


def _seconds(task: Path) -> float:
    """Processor time of a thread: in nanoseconds where the system counts so, else in ticks."""
    try:
        return int((task / "schedstat").read_text().split()[0]) / 1e9
    except FileNotFoundError:
        fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Meter:
    """Reads processor time from the system, and energy from NVIDIA's management library where there is one."""

    def __init__(self, gpu: int | None) -> None:
        self._nvml, self._device = None, ctypes.c_void_p()
        if gpu is None:
            return
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
            is_ready = library.nvmlInit_v2() == 0
            if is_ready and library.nvmlDeviceGetHandleByIndex_v2(gpu, ctypes.byref(self._device)) == 0:
                self._nvml = library
        except (OSError, AttributeError):
            return
        if self._joules() is None:
            self._nvml = None

    def _joules(self) -> float | None:
        if self._nvml is None:
            return None
        millijoules = ctypes.c_ulonglong()
        code = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._device, ctypes.byref(millijoules))
        return millijoules.value / 1000 if code == 0 else None

    def read(self) -> Reading:
        """The totals now."""
        threads = {}
        for task in Path("/proc/self/task").iterdir():
            try:
                threads[int(task.name), (task / "comm").read_text()] = _seconds(task)
            except OSError:
                # It has ended meanwhile.
                continue
        return Reading(threads, self._joules())
