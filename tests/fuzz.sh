#!/usr/bin/env bash
# Builds every fuzz target and runs each for some seconds (FUZZ_SECONDS, 10 by default). Needs a nightly toolchain and
# cargo-fuzz; without them one line says so. A target's finding stands in tests/fuzz/artifacts.
set -euo pipefail
cd "$(dirname "$0")"

if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "skipped: fuzzing needs a nightly toolchain (rustup toolchain install nightly)"
    exit 0
fi
if ! cargo +nightly fuzz --version >/dev/null 2>&1; then
    echo "skipped: fuzzing needs cargo-fuzz (cargo install cargo-fuzz)"
    exit 0
fi

# Safe code throughout: no sanitizer, which makes building and running faster.
options=(--fuzz-dir fuzz --sanitizer none)
cargo +nightly fuzz build "${options[@]}" 2>/dev/null || cargo +nightly fuzz build "${options[@]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for target in $(cargo +nightly fuzz list --fuzz-dir fuzz); do
    if ! cargo +nightly fuzz run "${options[@]}" "$target" -- \
        -max_total_time="${FUZZ_SECONDS:-10}" -max_len=4097 -print_final_stats=1 >"$log" 2>&1; then
        cat "$log"
        echo "fuzzing $target: FAILED"
        exit 1
    fi
    echo "fuzzing $target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs, nothing found"
done
