#!/usr/bin/env bash
# Compiles the CUDA kernels for GPUs of compute capability 8.0, 9.0, 10.0 and 12.0 (and later ones of the same major versions), and to PTX for
# all others, so that the next wheel that `maturin build` makes needs no NVRTC where it is used. (`pip wheel ./python` does so by itself.)
# Needs no GPU and no CUDA: NVRTC comes by pip.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
# tests/cubins.sh takes NVRTC from there too.
tools=$target/nvrtc-13.0
if [ ! -e "$tools/done" ] && [ ! -e "$tools/nvrtc" ]; then
    mkdir -p "$tools"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$tools" 'nvidia-cuda-nvrtc==13.0.*'
    for wheel in "$tools"/*.whl; do python3 -m zipfile -e "$wheel" "$tools"; done
    rm "$tools"/*.whl
    touch "$tools/nvrtc"
fi
# NVRTC finds its builtins beside itself, if the path says so.
libraries=$(cd "$(dirname "$(find "$tools" -name 'libnvrtc.so.*' | head -n1)")" && pwd)
kernels=python/package/warprow/kernels
rm -rf "$kernels"
LD_LIBRARY_PATH=$libraries cargo run --locked --quiet -p warprow-kernels --bin prebuild-kernels -- "$kernels"
du -sh "$kernels"
