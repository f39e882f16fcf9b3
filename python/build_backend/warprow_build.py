"""Builds the package as maturin does, with the machine code of its CUDA kernels in wheels.

pip calls these functions (PEP 517). For a wheel, pip gets NVRTC beside maturin; before maturin builds it, NVRTC compiles the kernels into
`package/warprow/kernels`, which `pyproject.toml` takes into the wheel. Needs no GPU. Where NVRTC is not there (a build without the package
index and without isolation), the wheel is built without machine code, one line says so, and NVRTC is needed where a GPU is used. The
setting `kernels` decides, `pip wheel -C kernels=no ./python`, or else the variable WARPROW_KERNELS:

- `auto`, the default: with machine code, if NVRTC is there;
- `yes`: with machine code, or the build fails;
- `no`: without, and NVRTC is not asked for.

Beside it there is maturin's own setting `build-args`, also called `maturin.build-args`. Any other name is refused.

A wheel is tagged manylinux, as low as its library's symbols of glibc allow. Where they allow none, it is tagged linux, and one line says why.
"""

from __future__ import annotations

import difflib
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

try:
    import maturin
except ModuleNotFoundError:
    # pip would say that this file cannot be imported, and not why.
    raise SystemExit(
        "warprow: maturin is needed to build the package and is not installed: leave out --no-build-isolation, so that pip gets it, or "
        "install it before (pip install 'maturin>=1.9,<2')"
    ) from None

PYTHON = Path(__file__).resolve().parent.parent
KERNELS = PYTHON / "package" / "warprow" / "kernels"
#: Where the kernels' machine code lies while a wheel is built without it.
ASIDE = PYTHON / "package" / "kernels-aside"
PACKAGE = "nvidia-cuda-nvrtc"
REQUIREMENT = f"{PACKAGE}==13.0.*"
SETTING = "kernels"
CHOICES = ("auto", "yes", "no")
#: Names of settings that maturin reads.
OF_MATURIN = ("build-args", "maturin.build-args")

Settings = Mapping[str, Any] | None


def chosen(settings: Settings) -> str:
    """Whether wheels get machine code: what the settings say, or else the environment."""
    check_names(settings)
    given = (settings or {}).get(SETTING) or os.environ.get("WARPROW_KERNELS") or "auto"
    if given not in CHOICES:
        raise SystemExit(f"warprow: kernels={given} is not possible: give auto, yes or no")
    return str(given)


def check_names(settings: Settings) -> None:
    """Refuses settings that nobody reads: maturin passes over them, and a wheel would be built as if they had not been given."""
    known = (SETTING, *OF_MATURIN)
    for name in settings or {}:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise SystemExit(f"warprow: there is no setting {name!r}: {meant}Known settings are {', '.join(known)}")


def without_ours(settings: Settings) -> dict[str, Any] | None:
    """The settings that are maturin's."""
    check_names(settings)
    return None if settings is None else {name: value for name, value in settings.items() if name != SETTING}


def with_tag(settings: Settings) -> dict[str, Any]:
    """The settings for a wheel. Called by pip, maturin tags wheels linux (`--compatibility off`), unless it is told otherwise. The option
    without a value has it find the lowest manylinux tag that the library allows, and linux if there is none."""
    ours = without_ours(settings) or {}
    arguments: list[str] = maturin.get_maturin_pep517_args(ours)
    if not any(it.split("=")[0] in ("--compatibility", "--manylinux") for it in arguments):
        ours.pop("maturin.build-args", None)
        ours["build-args"] = ["--compatibility", *arguments]
    return ours


def glibc_needed(wheel: Path) -> tuple[int, int] | None:
    """The latest version of glibc that a library of the wheel names symbols of."""
    with zipfile.ZipFile(wheel) as files:
        libraries = [files.read(name) for name in files.namelist() if name.endswith(".so")]
    named = {found for library in libraries for found in re.findall(rb"GLIBC_(\d+)\.(\d+)", library)}
    return max(((int(major), int(minor)) for major, minor in named), default=None)


def told_of_tag(wheel: Path) -> str:
    """One line about the wheel's tag."""
    needed = glibc_needed(wheel)
    glibc = "no glibc" if needed is None else f"glibc {needed[0]}.{needed[1]} or later"
    if "manylinux" in wheel.name or platform.system() != "Linux":
        return f"warprow: {wheel.name} needs {glibc}"
    return (
        f"warprow: {wheel.name} is tagged linux, for machines like this one alone: its library needs {glibc}, and maturin found no manylinux "
        "tag that allows this and all libraries that it is linked with (maturin's lines above name them); build on an earlier Linux"
    )


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
    settings = with_tag(config_settings)
    take_back_kernels()
    if choice == "no":
        print("warprow: the wheel is built without the kernels' machine code, as kernels=no says", file=sys.stderr)
        with kernels_aside():
            name = str(maturin.build_wheel(wheel_directory, settings, metadata_directory))
    else:
        if why := compile_kernels():
            if choice == "yes":
                raise SystemExit(f"warprow: the kernels' machine code cannot be made: {why}")
            print(f"warprow: the wheel is built without the kernels' machine code, so GPUs will need NVRTC: {why}", file=sys.stderr)
            remove_kernels()
        name = str(maturin.build_wheel(wheel_directory, settings, metadata_directory))
    print(told_of_tag(Path(wheel_directory, name)), file=sys.stderr)
    return name


def remove_kernels() -> None:
    """Removes what an earlier build left, so that a wheel has all of it or nothing."""
    for path in KERNELS.iterdir() if KERNELS.is_dir() else ():
        path.unlink()


def take_back_kernels() -> None:
    """Puts back what a build has put aside that was killed before its end. Where there are kernels since, those aside are older: they go."""
    if not ASIDE.is_dir():
        return
    if KERNELS.is_dir():
        shutil.rmtree(ASIDE)
    else:
        ASIDE.rename(KERNELS)


@contextmanager
def kernels_aside() -> Iterator[None]:
    """Keeps what an earlier build left out of a wheel, for the next one that wants it."""
    there = KERNELS.is_dir()
    if there:
        KERNELS.rename(ASIDE)
    try:
        yield
    finally:
        if there:
            ASIDE.rename(KERNELS)


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
    take_back_kernels()
    return str(maturin.build_editable(wheel_directory, without_ours(config_settings), metadata_directory))
