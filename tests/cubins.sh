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
# compile FOLDER TEST: the one test of that name, out of the libraries of the whole workspace. A build of one package alone would
# unify other features and compile its dependencies again.
compile() {
    mkdir -p "$1"
    # NVRTC finds its builtins beside itself, if the path says so.
    WARPROW_CUBINS=$1 LD_LIBRARY_PATH=$libraries cargo test --quiet --workspace --locked --lib -- "$2" --nocapture >"$cubins/log" ||
        { cat "$cubins/log"; exit 1; }
    grep -q '1 passed' "$cubins/log" || { echo "no test is called $2"; exit 1; }
}
compile "$cubins" compile::tests::compiles_for_every_architecture
compile "$cubins/bench" they_compile_for_every_architecture
compile "$cubins/drive" it_compiles_for_every_architecture

due=$(cat kernels/cuda/*.cuh | grep -c '^KERNEL ')
rings=$(cat kernels/cuda/*.cuh | grep -v '^DEVICE' | grep -o '\bring_bell(' | wc -l)
for cubin in "$cubins"/sm_*.cubin; do
    # It ends with 1 at an instruction that it cannot decode.
    "$nvdisasm" "$cubin" >"$cubins/listing"
    # A doorbell takes one store of 32 bits: as many stores to registers as the source has places that ring, in each kernel that drives
    # rings and in no other, none of another width, and no load from a register.
    for ringing in warprow_fetch warprow_test_ring warprow_few warprow_few_updated; do
        stores=$(awk -v kernel=".text.$ringing:" '/^\.text\./ { in_it = $1 == kernel } in_it && /STG\.E\.MMIO\.SYS \[/' "$cubins/listing" | wc -l)
        [ "$stores" -eq "$rings" ] || { echo "$(basename "$cubin"): $stores doorbell stores in $ringing, where $rings are due"; exit 1; }
    done
    registers=$(grep -c 'MMIO' "$cubins/listing" || true)
    [ "$registers" -eq $((4 * rings)) ] || { echo "$(basename "$cubin"): $registers accesses of registers, where $((4 * rings)) are due"; exit 1; }
    # Lines of a cache are written beside the kernels that read rows from them, so that none of their loads takes the path of what never changes.
    for reading in warprow_mark_cached warprow_hash_cached warprow_list_cached warprow_expand_cached_rows warprow_expand_cached_bags; do
        loads=$(awk -v kernel=".text.$reading:" '/^\.text\./ { in_it = $1 == kernel } in_it && /LDG/' "$cubins/listing" | wc -l)
        constant=$(awk -v kernel=".text.$reading:" '/^\.text\./ { in_it = $1 == kernel } in_it && /LDG.*\.CONSTANT/' "$cubins/listing" | wc -l)
        [ "$loads" -gt 0 ] && [ "$constant" -eq 0 ] || { echo "$(basename "$cubin"): $constant of $loads loads of $reading are of what never changes"; exit 1; }
    done
    kernels=$(grep -c '^\.text\.warprow_' "$cubins/listing" || true)
    [ "$kernels" -eq "$due" ] || { echo "$(basename "$cubin"): $kernels kernels, where $due are due"; exit 1; }
    echo "$(basename "$cubin" .cubin): $kernels kernels, $(grep -c "/\*[0-9a-f]\{4,\}\*/" "$cubins/listing" || true) instructions, all legal; one store a doorbell"
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
