"""Ways to get embeddings, each a class of one interface."""

from .cpu_reader import CpuReader
from .distinct import HotRows
from .gpu_memory import DeviceMemory
from .host_executor import HostExecutor
from .ideal_reader import IdealReader
from .interface import DeviceWay, HostWay, Way
from .pinned_reads import PeerReads, PinnedReads
from .rocks_db import RocksDb
from .torch_cpu import TorchCpu
from .warprow_modules import WarprowModules

__all__ = [
    "CpuReader",
    "DeviceMemory",
    "DeviceWay",
    "HostExecutor",
    "HotRows",
    "HostWay",
    "IdealReader",
    "PeerReads",
    "PinnedReads",
    "RocksDb",
    "TorchCpu",
    "WarprowModules",
    "Way",
]
