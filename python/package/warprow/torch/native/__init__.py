"""The operators of this package as a library that is compiled against torch's stable ABI.

With it, compiled models run without Python, and an eager call costs the processor less. It is compiled once, on the machine that uses
it, by `python -m warprow.torch.native build`, which needs a C++ compiler and torch 2.10 or later. `import warprow.torch` loads it from
then on. `WARPROW_TORCH_LIBRARY` names another file of it, or is "none".
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path

import torch

from ... import _native
from ...errors import WarprowError

#: The files of which the library is made.
SOURCES = tuple(Path(__file__).parent / name for name in ("operators.cpp", "operators.h", "warprow_torch.h"))
#: The first torch with what the library uses.
_LEAST = (2, 10)
_loaded: Path | None = None


def is_supported() -> bool:
    """Whether this torch can load the library."""
    major, minor = torch.__version__.split(".")[:2]
    return (int(major), int("".join(filter(str.isdigit, minor)))) >= _LEAST


def path() -> Path:
    """The file of the library: the one that `WARPROW_TORCH_LIBRARY` names, or a file in the user's cache that goes with these sources."""
    named = os.environ.get("WARPROW_TORCH_LIBRARY", "")
    if named not in ("", "none"):
        return Path(named)
    digest = hashlib.sha256()
    for source in SOURCES:
        digest.update(source.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "warprow" / f"operators-{digest.hexdigest()[:16]}" / "libwarprow_torch.so"


def compiler() -> list[str]:
    """The command of the C++ compiler: `$CXX`, or `c++`, `g++` or `clang++`. Empty: there is none."""
    named = os.environ.get("CXX")
    if named:
        return shlex.split(named)
    found = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
    return [] if found is None else [found]


def build(to: str | os.PathLike[str] | None = None) -> Path:
    """Compiles the library.

    Parameters
    ----------
    to : path, optional
        The file to make; by default where `import warprow.torch` looks for it.

    Returns
    -------
    Path
        The file. Processes that have imported `warprow.torch` go on without it.

    Raises
    ------
    WarprowError
        There is no C++ compiler, torch is older than 2.10, or the compiler failed; the message has its last lines.
    OSError
        The folder of the file cannot be written to.
    """
    target = path() if to is None else Path(to)
    command = compiler()
    if not command:
        raise WarprowError("there is no C++ compiler: install g++ or clang++, or name one in CXX")
    if not is_supported():
        raise WarprowError(f"torch {torch.__version__} lacks what the operators are compiled against: install torch 2.10 or later")
    torch_folder = Path(torch.__file__).parent
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        command += ["-std=c++20", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-isystem", str(torch_folder / "include")]
        command += [str(SOURCES[0]), "-o", str(made), f"-L{torch_folder / 'lib'}"]
        # The library of torch for CUDA is found through libtorch, where there is one.
        command += ["-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10", "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise WarprowError(f"the operators could not be compiled by {shlex.join(command)}:\n{done.stderr[-4000:]}")
        os.replace(made, target)
    return target


def is_loaded() -> bool:
    """Whether this process has the library."""
    return _loaded is not None


def load() -> bool:
    """Loads the library, if it was compiled; whether it is there. `import warprow.torch` calls this."""
    global _loaded
    if _loaded is not None:
        return True
    if os.environ.get("WARPROW_TORCH_LIBRARY") == "none" or not is_supported():
        return False
    found = path()
    if not found.exists():
        return False
    try:
        library = ctypes.CDLL(str(found))
        use = library.warprow_torch_use_table
        use.argtypes, use.restype = [ctypes.c_void_p], ctypes.c_int32
        library.warprow_torch_message.restype = ctypes.c_char_p
        if use(_native.operator_table()) != 0:
            raise OSError(library.warprow_torch_message().decode())
    except (OSError, AttributeError) as error:
        warnings.warn(f"warprow.torch goes on without its library of operators, {found}: {error}", stacklevel=2)
        return False
    _loaded = found
    return True
