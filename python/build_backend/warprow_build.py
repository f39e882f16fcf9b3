"""Builds the package as maturin does, with the machine code of its CUDA kernels in wheels.

pip calls these functions (PEP 517). For a wheel, pip gets NVRTC beside maturin; before maturin builds it, NVRTC compiles the kernels into
`package/warprow/kernels`, which `pyproject.toml` takes into the wheel. Needs no GPU. Where NVRTC is not there (a build without the package
index and without isolation), the wheel is built without machine code, one line says so, and NVRTC is needed where a GPU is used. The
setting `kernels` decides, `pip wheel -C kernels=no ./python`, or else the variable WARPROW_KERNELS:

- `auto`, the default: with machine code, if NVRTC is there;
- `yes`: with machine code, or the build fails;
- `no`: without, and NVRTC is not asked for.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import maturin

PYTHON = Path(__file__).resolve().parent.parent
KERNELS = PYTHON / "package" / "warprow" / "kernels"
PACKAGE = "nvidia-cuda-nvrtc"
REQUIREMENT = f"{PACKAGE}==13.0.*"
SETTING = "kernels"
CHOICES = ("auto", "yes", "no")

Settings = Mapping[str, Any] | None


def chosen(settings: Settings) -> str:
    """Whether wheels get machine code: what the settings say, or else the environment."""
    given = (settings or {}).get(SETTING) or os.environ.get("WARPROW_KERNELS") or "auto"
    if given not in CHOICES:
        raise SystemExit(f"warprow: kernels={given} is not possible: give auto, yes or no")
    return str(given)


def without_ours(settings: Settings) -> dict[str, Any] | None:
    """The settings that are maturin's."""
    return None if settings is None else {name: value for name, value in settings.items() if name != SETTING}


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    required = list(maturin.get_requires_for_build_wheel(without_ours(config_settings)))
    has_wheels = platform.system() == "Linux" and platform.machine() in ("x86_64", "aarch64")
    return [*required, REQUIREMENT] if chosen(config_settings) != "no" and has_wheels else required


def nvrtc_folder() -> Path | None:
    """Where pip has put NVRTC; `None`: it has not."""
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        return None
    libraries = [Path(str(file.locate())) for file in files if file.name.startswith("libnvrtc.so")]
    return next((path.parent for path in libraries if path.exists()), None)


def compile_kernels() -> str | None:
    """Has the kernels compiled for all architectures; why not, if it cannot be done. What is there already is not compiled again."""
    environment = dict(os.environ)
    if folder := nvrtc_folder():
        # NVRTC finds its builtins beside itself, if the path says so.
        environment["LD_LIBRARY_PATH"] = ":".join(filter(None, [str(folder), environment.get("LD_LIBRARY_PATH")]))
    command = ["cargo", "run", "--quiet", "--release", "--manifest-path", str(PYTHON / "Cargo.toml")]
    command += ["-p", "warprow-kernels", "--bin", "prebuild-kernels", "--", str(KERNELS)]
    try:
        done = subprocess.run(command, cwd=PYTHON, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        return f"cargo cannot be run: {error}"
    if done.returncode != 0:
        return done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
    made = set(done.stdout.split("\n"))
    if not KERNELS.is_dir() or not any(str(path) in made for path in KERNELS.iterdir()):
        return f"nothing was written to {KERNELS}"
    # Code of other versions is of no use.
    for path in KERNELS.iterdir():
        if str(path) not in made:
            path.unlink()
    return None


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    choice = chosen(config_settings)
    if choice == "no":
        print("warprow: the wheel is built without the kernels' machine code, as kernels=no says", file=sys.stderr)
        remove_kernels()
    elif why := compile_kernels():
        if choice == "yes":
            raise SystemExit(f"warprow: the kernels' machine code cannot be made: {why}")
        print(f"warprow: the wheel is built without the kernels' machine code, so GPUs will need NVRTC: {why}", file=sys.stderr)
        remove_kernels()
    return str(maturin.build_wheel(wheel_directory, without_ours(config_settings), metadata_directory))


def remove_kernels() -> None:
    """Removes what an earlier build left, so that a wheel has all of it or nothing."""
    for path in KERNELS.iterdir() if KERNELS.is_dir() else ():
        path.unlink()


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    return str(maturin.prepare_metadata_for_build_wheel(metadata_directory, without_ours(config_settings)))


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    return list(maturin.get_requires_for_build_sdist(without_ours(config_settings)))


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    return str(maturin.build_sdist(sdist_directory, without_ours(config_settings)))


# An editable package is for who changes it: kernels are compiled when they are first used.


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    return list(maturin.get_requires_for_build_editable(without_ours(config_settings)))


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: Settings = None) -> str:
    return str(maturin.prepare_metadata_for_build_editable(metadata_directory, without_ours(config_settings)))


def build_editable(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    return str(maturin.build_editable(wheel_directory, without_ours(config_settings), metadata_directory))
