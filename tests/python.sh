#!/usr/bin/env bash
# Builds the Python package's wheel, installs it in a fresh environment, compares its stubs with it, checks its types, and runs its tests and
# its example. Tests of its modules for torch run where torch is there or comes by pip within ten minutes: from PyTorch's index of builds for
# CPUs (200 MB), or else from the Python package index, whose build is for CUDA (540 MB), with the libraries that it cannot be imported
# without (2 GB). WARPROW_TORCH=no leaves torch out.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
environment=$target/python
skip() { echo "skipped: $*"; }

rm -rf "$target/wheels"
[ -x "$environment/bin/python" ] || python3 -m venv "$environment"
pip() { "$environment/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
if ! pip install 'maturin>=1.9,<2' 'numpy>=1.24' pytest mypy; then
    skip "the Python package needs pip and the Python package index"
    exit 0
fi
# Link-time optimisation takes as long as all the rest and changes no result.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_TARGET_DIR=$target
"$environment/bin/maturin" build --release --locked --quiet --manifest-path python/Cargo.toml --out "$target/wheels"
echo "built $(basename "$target"/wheels/*.whl), $(du -h "$target"/wheels/*.whl | cut -f1)"
pip install --force-reinstall --no-deps "$target"/wheels/*.whl

has_torch() { "$environment/bin/python" -c 'import torch' 2>/dev/null; }
get_torch() {
    pip install --timeout 15 --retries 0 --index-url https://download.pytorch.org/whl/cpu torch 2>/dev/null && return
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
    export -f pip get_torch
    export environment target
    timeout 600 bash -c get_torch >"$target/torch-log" 2>&1 || true
fi
if has_torch; then
    echo "torch $("$environment/bin/python" -c 'import torch; print(torch.__version__)')"
else
    skip "tests of modules for torch: torch could not be installed ($(tail -n1 "$target/torch-log" 2>/dev/null || echo WARPROW_TORCH=no))"
fi

cd python
"$environment/bin/python" -m mypy --config-file pyproject.toml
"$environment/bin/python" -m mypy.stubtest warprow._native
# Against what was installed: the sources are not on the path.
"$environment/bin/python" -m pytest -p no:cacheprovider tests
"$environment/bin/python" examples/quickstart.py
