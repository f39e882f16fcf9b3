#!/usr/bin/env bash
# Builds the Python package's wheel, installs it in an environment of its own (target/python), checks its types, compares its stubs with it,
# and runs its tests and its example. The wheel is built in the profile of tests, with the features of the whole workspace, so that it finds
# most of what it needs built after `cargo test --workspace`; WARPROW_PROFILE=release builds what users get.
#
# Tests of modules for torch run where torch is there, or comes by pip within ten minutes: from PyTorch's index of builds for CPUs (200 MB),
# or else from the Python package index, whose build is for CUDA (540 MB), with the libraries that it cannot be imported without (2 GB).
# WARPROW_TORCH=no leaves torch out. Tests of arrow tables run where pyarrow is there, or comes by pip (55 MB), those of DLPack with JAX
# likewise (WARPROW_JAX=no leaves it out). Without pip, or without an index, one line says what was skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
environment=$target/python
skip() { echo "skipped: $*"; }
log=$target/python-log
mkdir -p "$target"

if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    skip "the Python package needs Python 3.10 or later"
    exit 0
fi
if ! "$environment/bin/python" -m pip --version >/dev/null 2>&1; then
    rm -rf "$environment"
    if ! python3 -m venv "$environment" >"$log" 2>&1; then
        skip "the Python package needs Python's modules venv and ensurepip (Debian: python3-venv)"
        exit 0
    fi
fi
pip() { "$environment/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
if ! pip install 'maturin>=1.9,<2' 'numpy>=1.24' 'pytest>=8' 'mypy>=1.15' >"$log" 2>&1; then
    skip "the Python package needs the Python package index ($(tail -n1 "$log"))"
    exit 0
fi

rm -rf "$target/wheels"
# Link-time optimisation takes as long as all the rest and changes no result.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_TARGET_DIR=$target
began=$SECONDS
# As users do it, and as a machine does it that reaches no package index: pip gets nothing, and has the backend build with the maturin that is
# there. The kernels' machine code is left out, which takes minutes.
PATH=$environment/bin:$PATH pip wheel --no-index --no-build-isolation --no-deps --no-cache-dir --wheel-dir "$target/wheels" \
    --config-settings kernels="${WARPROW_KERNELS:-no}" --config-settings build-args="--profile ${WARPROW_PROFILE:-dev} --locked --quiet" ./python
echo "built $(basename "$target"/wheels/*.whl), $(du -h "$target"/wheels/*.whl | cut -f1), in $((SECONDS - began)) s"
# The tag says what the library needs: not more, and so that pip takes it elsewhere.
"$environment/bin/python" - "$target"/wheels/*.whl <<'PY'
import pathlib, platform, re, sys

sys.dont_write_bytecode = True
sys.path.insert(0, "python/build_backend")
import warprow_build

wheel = pathlib.Path(sys.argv[1])
needed = warprow_build.glibc_needed(wheel)
tag = re.search(r"manylinux_(\d+)_(\d+)_", wheel.name)
print(warprow_build.told_of_tag(wheel))
if platform.libc_ver()[0] == "glibc" and (tag is None or needed is None or needed > (int(tag[1]), int(tag[2]))):
    sys.exit(f"{wheel.name} is not tagged for glibc {needed}, which its library needs")
PY
# pip looks for no other packages, so that it needs no index.
pip install --force-reinstall --no-deps --no-index "$target"/wheels/*.whl

# A machine without Rust installs the wheel alone: an environment of its own, and no compiler on the path. It runs the README's second line.
clean=$target/python-clean
rm -rf "$clean"
python3 -m venv "$clean" >"$log" 2>&1
pip download --only-binary :all: --no-deps --dest "$target/numpy-wheel" 'numpy>=1.24'
away() { env -i HOME="$target/no-home" PATH="$clean/bin:/usr/bin:/bin" "$@"; }
# Where a package manager has put Rust beside everything else, no path can be made that lacks it.
for tool in cargo rustc maturin; do
    if found=$(away sh -c "command -v $tool"); then echo "note: $found is on the path of the environment that should have no Rust"; fi
done
away python -m pip --disable-pip-version-check --quiet install --no-index --find-links "$target/numpy-wheel" "$(echo "$target"/wheels/*.whl)[numpy]"
# Not from the folder of the sources.
repository=$PWD
(cd "$target" && away python "$repository/python/examples/quickstart.py")
rm -rf "$clean"
echo "the wheel alone, in an environment of its own without Rust on the path: the example runs"

has_torch() { "$environment/bin/python" -c 'import torch' 2>/dev/null; }
get_torch() {
    pip install --timeout 15 --retries 0 --index-url https://download.pytorch.org/whl/cpu torch && return
    pip install --no-deps torch && pip install filelock 'typing-extensions>=4.13' setuptools sympy networkx jinja2 fsspec || return
    # What the build for CUDA names, but for what is loaded when it is first used.
    "$environment/bin/python" - >"$target/torch-needs" <<'PY'
from importlib.metadata import requires
import re
for need in requires("torch") or []:
    name = need.split(";")[0].strip()
    if name.startswith("nvidia-"):
        print(name)
    elif name.startswith("cuda-toolkit["):
        parts = set(re.search(r"\[(.*)\]", name)[1].split(",")) - {"nvtx", "cusolver"}
        print(re.sub(r"\[.*\]", f"[{','.join(sorted(parts))}]", name))
PY
    pip install -r "$target/torch-needs"
}
if [ "${WARPROW_TORCH:-}" != no ] && ! has_torch; then
    began=$SECONDS
    export -f pip get_torch
    export environment target
    timeout 600 bash -c get_torch >"$log" 2>&1 || true
    if has_torch; then echo "installed torch in $((SECONDS - began)) s"; fi
fi
if has_torch; then
    echo "torch $("$environment/bin/python" -c 'import torch; print(torch.__version__)'); the environment has $(du -sm "$environment" | cut -f1) MB"
else
    skip "tests of modules for torch: $([ "${WARPROW_TORCH:-}" = no ] && echo WARPROW_TORCH=no || echo "torch could not be installed ($(tail -n1 "$log"))")"
fi

if ! "$environment/bin/python" -c 'import pyarrow' 2>/dev/null; then
    # A build of its own would take long: a wheel or nothing.
    timeout 120 "$environment/bin/python" -m pip --disable-pip-version-check --quiet install --timeout 15 --retries 0 --only-binary :all: \
        'pyarrow>=15' >"$log" 2>&1 || skip "tests of arrow tables: pyarrow could not be installed ($(tail -n1 "$log"))"
fi

if [ "${WARPROW_JAX:-}" != no ] && ! "$environment/bin/python" -c 'import jax' 2>/dev/null; then
    timeout 120 "$environment/bin/python" -m pip --disable-pip-version-check --quiet install --timeout 15 --retries 0 --only-binary :all: \
        jax >"$log" 2>&1 || skip "tests of DLPack with JAX: it could not be installed ($(tail -n1 "$log"))"
fi

# (The blocks of code of the book are for tests/book.sh.) Tools leave nothing beside the sources. What is imported is what was installed: the sources are not on the path.
export PYTHONDONTWRITEBYTECODE=1 MYPY_CACHE_DIR=$target/mypy
cd python
"$environment/bin/python" -m mypy --config-file pyproject.toml
"$environment/bin/python" -m mypy.stubtest warprow._native
WARPROW_TORCH_LIBRARY=none "$environment/bin/python" -m pytest -p no:cacheprovider --ignore tests/test_book.py --ignore tests/test_native.py tests
# The same modules for torch, looked up with the operators compiled; and models that run without Python, with the library that
# `cargo test --workspace` has built for C.
if has_torch; then
    export WARPROW_TORCH_LIBRARY=$target/operators/libwarprow_torch.so CARGO_TARGET_DIR=$target
    if WARPROW_TORCH_LIBRARY=none "$environment/bin/python" -m warprow.torch.native build --to "$WARPROW_TORCH_LIBRARY" >"$log" 2>&1; then
        "$environment/bin/python" -m pytest -p no:cacheprovider -rs tests/test_native.py tests/test_torch.py tests/test_torch_failures.py \
            tests/test_collection.py tests/test_deepfm.py tests/test_memory_of_tensors.py tests/test_prefetched.py
    else
        skip "tests of the compiled operators: $(tail -n1 "$log")"
    fi
fi
"$environment/bin/python" examples/quickstart.py
