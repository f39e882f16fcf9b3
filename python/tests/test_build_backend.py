"""The backend that pip builds the package with: when wheels get machine code, and what is handed on to maturin. Nothing is built."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BACKEND = Path(__file__).resolve().parent.parent / "build_backend" / "warprow_build.py"


MADE = "warprow-1-cp310-abi3-manylinux_2_34_x86_64.whl"


class Maturin(ModuleType):
    """Stands in for maturin, and keeps what it was given. Makes a wheel with a library that needs glibc 2.34."""

    def __init__(self) -> None:
        super().__init__("maturin")
        self.given: list[tuple[str, tuple[Any, ...]]] = []
        #: The wheel's name, and what was in the folder of kernels when it was made.
        self.makes = MADE
        self.kernels: Path | None = None
        self.seen: list[str] = []

    def get_maturin_pep517_args(self, settings: Any) -> list[str]:
        # As maturin does it.
        given = settings.get("maturin.build-args", settings.get("build-args")) or []
        return given.split() if isinstance(given, str) else list(given)

    def build_wheel(self, folder: str, *args: Any) -> str:
        self.given.append(("build_wheel", (folder, *args)))
        self.seen = sorted(path.name for path in self.kernels.iterdir()) if self.kernels and self.kernels.is_dir() else []
        with zipfile.ZipFile(Path(folder, self.makes), "w") as files:
            files.writestr("warprow/_native.abi3.so", b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.4\0")
        return self.makes

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: Any) -> Any:
            self.given.append((name, args))
            return ["puccinialin"] if name.startswith("get_requires") else "made.whl"

        return call


@pytest.fixture
def maturin(monkeypatch: pytest.MonkeyPatch) -> Maturin:
    stand_in = Maturin()
    monkeypatch.setitem(sys.modules, "maturin", stand_in)
    monkeypatch.delenv("WARPROW_KERNELS", raising=False)
    return stand_in


@pytest.fixture
def backend(maturin: Maturin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("warprow_build", BACKEND)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "KERNELS", tmp_path / "kernels")
    monkeypatch.setattr(module, "ASIDE", tmp_path / "kernels-aside")
    maturin.kernels = module.KERNELS
    monkeypatch.setattr(module.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(module.platform, "system", lambda: "Linux")
    return module


def compiling(backend: Any, monkeypatch: pytest.MonkeyPatch, *, code: int, files: tuple[str, ...] = (), stderr: str = "") -> list[Any]:
    """Has the compilation of the kernels end so, and leave these files."""
    calls: list[Any] = []

    def run(command: list[str], **how: Any) -> Any:
        calls.append((command, how))
        for name in files:
            backend.KERNELS.mkdir(exist_ok=True)
            (backend.KERNELS / name).write_text("code")
        printed = "".join(f"{backend.KERNELS / name}\n" for name in files)
        return subprocess.CompletedProcess(command, code, printed, stderr)

    monkeypatch.setattr(backend.subprocess, "run", run)
    return calls


def test_nvrtc_is_asked_for_unless_somebody_says_no(backend: Any, maturin: Maturin, monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend.get_requires_for_build_wheel() == ["puccinialin", "nvidia-cuda-nvrtc==13.0.*"]
    assert backend.get_requires_for_build_wheel({"kernels": "no", "build-args": "--locked"}) == ["puccinialin"]
    assert maturin.given[-1] == ("get_requires_for_build_wheel", ({"build-args": "--locked"},))
    monkeypatch.setenv("WARPROW_KERNELS", "no")
    assert backend.get_requires_for_build_wheel() == ["puccinialin"]
    # The setting comes before the environment.
    assert len(backend.get_requires_for_build_wheel({"kernels": "yes"})) == 2
    monkeypatch.setattr(backend.platform, "machine", lambda: "riscv64")
    assert backend.get_requires_for_build_wheel({"kernels": "yes"}) == ["puccinialin"]
    for call in (backend.get_requires_for_build_sdist, backend.get_requires_for_build_editable):
        assert call() == ["puccinialin"]
    with pytest.raises(SystemExit, match="auto, yes or no"):
        backend.get_requires_for_build_wheel({"kernels": "maybe"})


def test_a_wheel_has_the_code_of_this_version_alone(
    backend: Any, maturin: Maturin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = compiling(backend, monkeypatch, code=0, files=("lookup-sm_90-1.cubin", "lookup-compute_80-1.ptx"))
    backend.KERNELS.mkdir()
    (backend.KERNELS / "lookup-sm_90-0.cubin").write_text("of an earlier version")
    assert backend.build_wheel(str(tmp_path), {"kernels": "yes", "build-args": "--locked"}) == MADE
    assert maturin.given == [("build_wheel", (str(tmp_path), {"build-args": ["--compatibility", "--locked"]}, None))]
    assert maturin.seen == ["lookup-compute_80-1.ptx", "lookup-sm_90-1.cubin"]
    command, how = calls[0]
    assert command[0] == "cargo" and command[-1] == str(backend.KERNELS)
    folder = backend.nvrtc_folder()
    assert folder is None or how["env"]["LD_LIBRARY_PATH"].startswith(str(folder))


def test_without_nvrtc_a_wheel_is_built_that_says_so(
    backend: Any, maturin: Maturin, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    compiling(backend, monkeypatch, code=1, stderr="a warning\nlibnvrtc cannot be found\n")
    backend.KERNELS.mkdir()
    (backend.KERNELS / "lookup-sm_90-0.cubin").write_text("of an earlier version")
    assert backend.build_wheel(str(tmp_path)) == MADE
    assert "GPUs will need NVRTC: libnvrtc cannot be found" in capfd.readouterr().err
    assert maturin.seen == []
    with pytest.raises(SystemExit, match="libnvrtc cannot be found"):
        backend.build_wheel(str(tmp_path), {"kernels": "yes"})
    # A run that says it went well, and wrote nothing.
    compiling(backend, monkeypatch, code=0)
    with pytest.raises(SystemExit, match="nothing was written"):
        backend.build_wheel(str(tmp_path), {"kernels": "yes"})


def test_code_that_is_not_wanted_is_neither_made_nor_lost(
    backend: Any, maturin: Maturin, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    calls = compiling(backend, monkeypatch, code=0)
    backend.KERNELS.mkdir()
    (backend.KERNELS / "lookup-sm_90-1.cubin").write_text("of this version")
    assert backend.build_wheel(str(tmp_path), {"kernels": "no"}) == MADE
    assert not calls and maturin.seen == [] and "kernels=no" in capfd.readouterr().err
    assert [path.name for path in backend.KERNELS.iterdir()] == ["lookup-sm_90-1.cubin"]
    # Nor where the build fails.
    monkeypatch.setattr(maturin, "build_wheel", lambda *_: sys.exit(1))
    with pytest.raises(SystemExit):
        backend.build_wheel(str(tmp_path), {"kernels": "no"})
    assert [path.name for path in backend.KERNELS.iterdir()] == ["lookup-sm_90-1.cubin"]


def test_settings_that_nobody_reads_are_refused(backend: Any, maturin: Maturin, tmp_path: Path) -> None:
    hooks = (
        backend.get_requires_for_build_wheel,
        backend.get_requires_for_build_sdist,
        backend.get_requires_for_build_editable,
        *(lambda settings, hook=hook: hook(str(tmp_path), settings) for hook in (
            backend.build_wheel,
            backend.build_sdist,
            backend.build_editable,
            backend.prepare_metadata_for_build_wheel,
            backend.prepare_metadata_for_build_editable,
        )),
    )
    for hook in hooks:
        with pytest.raises(SystemExit, match="no setting 'kernel': did you mean kernels.*Known settings are kernels, build-args, maturin.build-args"):
            hook({"kernel": "no"})
        with pytest.raises(SystemExit, match="no setting 'colour': Known settings are"):
            hook({"kernels": "no", "colour": "red"})
    assert maturin.given == []
    assert backend.build_wheel(str(tmp_path), {"kernels": "no", "maturin.build-args": "--locked"}) == MADE


def test_kernels_that_a_killed_build_put_aside_come_back(
    backend: Any, maturin: Maturin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def aside() -> None:
        backend.ASIDE.mkdir()
        (backend.ASIDE / "lookup-sm_90-1.cubin").write_text("put aside")

    aside()
    assert backend.build_wheel(str(tmp_path), {"kernels": "no"}) == MADE
    assert maturin.seen == [] and not backend.ASIDE.exists()
    assert (backend.KERNELS / "lookup-sm_90-1.cubin").read_text() == "put aside"
    # Beside what was compiled since, it is older.
    aside()
    (backend.KERNELS / "lookup-sm_90-1.cubin").write_text("newer")
    compiling(backend, monkeypatch, code=0, files=("lookup-sm_90-2.cubin",))
    assert backend.build_wheel(str(tmp_path), {"kernels": "yes"}) == MADE
    assert maturin.seen == ["lookup-sm_90-2.cubin"] and not backend.ASIDE.exists()
    aside()
    backend.build_editable(str(tmp_path))
    assert not backend.ASIDE.exists()


def test_wheels_are_tagged_manylinux_unless_the_caller_has_a_wish(
    backend: Any, maturin: Maturin, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def given(**settings: Any) -> Any:
        backend.build_wheel(str(tmp_path), {"kernels": "no", **settings})
        return maturin.given[-1][1][1]

    assert given() == {"build-args": ["--compatibility"]}
    assert given(**{"maturin.build-args": ["--locked", "-q"]}) == {"build-args": ["--compatibility", "--locked", "-q"]}
    for wish in ("--compatibility off", "--manylinux 2_28", "--locked --compatibility=linux"):
        assert given(**{"build-args": wish}) == {"build-args": wish}
    assert f"warprow: {MADE} needs glibc 2.34 or later" in capfd.readouterr().err
    maturin.makes = "warprow-1-cp310-abi3-linux_x86_64.whl"
    given()
    assert "is tagged linux" in (said := capfd.readouterr().err) and "needs glibc 2.34" in said


def test_without_maturin_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "maturin", None)
    spec = importlib.util.spec_from_file_location("warprow_build", BACKEND)
    assert spec is not None and spec.loader is not None
    with pytest.raises(SystemExit, match="--no-build-isolation.*pip install 'maturin"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_other_calls_go_to_maturin(backend: Any, maturin: Maturin) -> None:
    settings = {"kernels": "no", "build-args": "--locked"}
    backend.prepare_metadata_for_build_wheel("m", settings)
    backend.build_sdist("s", settings)
    backend.prepare_metadata_for_build_editable("m", settings)
    backend.build_editable("e", settings)
    assert [(name, args[1]) for name, args in maturin.given] == [
        (name, {"build-args": "--locked"})
        for name in ("prepare_metadata_for_build_wheel", "build_sdist", "prepare_metadata_for_build_editable", "build_editable")
    ]
