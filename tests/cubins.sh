#!/usr/bin/env bash
# Compiles the kernels, and those of the benchmarks, for every architecture with the NVRTC of the Python package index, which needs no GPU and no CUDA, checks
# what they spill, and disassembles them: an instruction that an architecture does not have shows only there.
# Needs pip and, the first time, the package index (100 MB); without them one line says so.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
tools=$target/nvrtc-13.0
if [ ! -e "$tools/done" ]; then
    mkdir -p "$tools"
    if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$tools" \
        'nvidia-cuda-nvrtc==13.0.*' 'nvidia-cuda-nvdisasm==13.*' 2>"$tools/log"; then
        echo "skipped: compiling the kernels for every architecture needs NVRTC, and pip does not get it:" \
            "$(grep -m1 -i error "$tools/log" || tail -n1 "$tools/log")"
        exit 0
    fi
    for wheel in "$tools"/*.whl; do python3 -m zipfile -e "$wheel" "$tools"; done
    rm "$tools"/*.whl
    touch "$tools/done"
fi
libraries=$(cd "$(dirname "$(find "$tools" -name 'libnvrtc.so.*')")" && pwd)
nvdisasm=$(find "$tools" -name nvdisasm -type f)
chmod +x "$nvdisasm"

cubins=$(mktemp -d)
trap 'rm -rf "$cubins"' EXIT
# The builtins are found beside the library, if the path says so.
WARPROW_CUBINS=$cubins LD_LIBRARY_PATH=$libraries \
    cargo test --quiet -p warprow-kernels --locked --lib -- compiles_for_every_architecture --nocapture
mkdir "$cubins/bench"
WARPROW_CUBINS=$cubins/bench LD_LIBRARY_PATH=$libraries \
    cargo test --quiet -p warprow-bench --locked --lib -- they_compile_for_every_architecture --nocapture
mkdir "$cubins/drive"
WARPROW_CUBINS=$cubins/drive LD_LIBRARY_PATH=$libraries \
    cargo test --quiet -p warprow-gpu-drive --locked --lib -- it_compiles_for_every_architecture --nocapture

due=$(cat kernels/cuda/*.cuh | grep -c '^KERNEL ')
for cubin in "$cubins"/sm_*.cubin; do
    # It ends with 1 at an instruction that it cannot decode.
    "$nvdisasm" "$cubin" >"$cubins/listing"
    kernels=$(grep -c '^\.text\.warprow_' "$cubins/listing" || true)
    [ "$kernels" -eq "$due" ] || { echo "$(basename "$cubin"): $kernels kernels, where $due are due"; exit 1; }
    echo "$(basename "$cubin" .cubin): $kernels kernels, $(grep -c "/\*[0-9a-f]\{4,\}\*/" "$cubins/listing" || true) instructions, all legal"
done
for cubin in "$cubins"/bench/*.cubin; do
    "$nvdisasm" "$cubin" >"$cubins/listing"
    echo "bench, $(basename "$cubin" .cubin): $(grep -c "/\*[0-9a-f]\{4,\}\*/" "$cubins/listing" || true) instructions, all legal"
done
for cubin in "$cubins"/drive/*.cubin; do
    "$nvdisasm" "$cubin" >"$cubins/listing"
    # A kernel with local memory makes its launch wait for others, which may wait for the drive.
    if grep -qE '\b(STL|LDL)' "$cubins/listing"; then echo "$(basename "$cubin"): uses local memory"; exit 1; fi
    echo "drive, $(basename "$cubin" .cubin): $(grep -c "/\*[0-9a-f]\{4,\}\*/" "$cubins/listing" || true) instructions, all legal"
done
if "$nvdisasm" "$cubins/illegal.cubin" >/dev/null 2>&1; then
    echo "the disassembler accepts an instruction that the architecture does not have: it proves nothing"
    exit 1
fi
