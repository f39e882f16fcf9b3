#!/usr/bin/env bash
# Our client on SPDK's vfio-user target: every conformance check that SPDK is not known to fail, then random reads of 512 B, depth 128,
# by our driver and by SPDK's own initiator (spdk_nvme_perf) by turns. One core for the target, one for the initiator; no huge
# pages and no privilege are needed.
# Exit code 77 and one line where no SPDK is named, or one that is too old: 25.09 is the first that works without huge pages. (24.01 does not
# get through its own initialisation with --no-huge.) Before 26.05 its target answers Compare with Internal Error: that check counts as
# known there, as those in spdk-known do everywhere. The target's queues have 1,024 entries instead of 256, because a thread block needs 257.
#
#   WARPROW_SPDK        folder with nvmf_tgt and spdk_nvme_perf of an SPDK with --with-vfio-user (SPDK's build/bin)
#   WARPROW_SPDK_TURNS  turns of measuring (default 3; 0: checks alone)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
spdk=${WARPROW_SPDK:-} turns=${WARPROW_SPDK_TURNS:-3}
[ -n "$spdk" ] || { echo "peers skipped: WARPROW_SPDK names no SPDK"; exit 77; }
for program in nvmf_tgt spdk_nvme_perf; do
    [ -x "$spdk/$program" ] || { echo "peers: there is no $spdk/$program" >&2; exit 1; }
done

# "SPDK v25.09 git sha1 ...": year and month.
version=$("$spdk/nvmf_tgt" --version 2>&1 | sed -n 's/.*v\([0-9][0-9]\)\.\([0-9][0-9]\).*/\1\2/p' | head -1)
if [ -z "$version" ]; then
    echo "peers: $spdk/nvmf_tgt --version names no release; SPDK 25.09 or later is needed" >&2
elif [ "$version" -lt 2509 ]; then
    echo "peers skipped: SPDK ${version:0:2}.${version:2} does not work without huge pages; 25.09 or later does"
    exit 77
fi

build() { # package, binary
    (cd "$here/../.." && cargo build --quiet --release --package "$1" --bin "$2" --message-format json-render-diagnostics |
        sed -n 's/.*"executable":"\([^"]*\/'"$2"'\)".*/\1/p')
}
checks=${WARPROW_PEER_BINARY:-$(build warprow-conformance vfio-user-peer)}
ring=${WARPROW_RING_BINARY:-$(build warprow-bench bench-ring)}

# The target's doorbells are a file beside its socket. A GPU's driver pins the file's pages, which Linux does not allow on every file system;
# so the folder lies in memory where there is such a place.
memory=/dev/shm
[ -w "$memory" ] || memory=${TMPDIR:-/tmp}
work=$(mktemp -d -p "$memory")
target=
clean() {
    local code=$?
    if [ "$code" != 0 ] && [ -e "$work/log" ]; then
        echo "peers: the end of what SPDK's programs said:" >&2
        tail -30 "$work/log" >&2
    fi
    [ -z "$target" ] || kill "$target" 2>/dev/null || true
    # The target leaves a file of traces.
    rm -rf "$work" "/dev/shm/nvmf_trace.pid$target"
}
trap clean EXIT
# Not sockets' paths: the target makes `cntrl` in the folder.
mkdir "$work/drive"
nqn=nqn.2019-07.io.spdk:cnode0
cat >"$work/config.json" <<CONF
{"subsystems": [
  {"subsystem": "bdev", "config": [
    {"method": "bdev_malloc_create", "params": {"name": "memory", "num_blocks": 131072, "block_size": 512}}]},
  {"subsystem": "nvmf", "config": [
    {"method": "nvmf_create_transport", "params": {"trtype": "VFIOUSER", "max_queue_depth": 1024}},
    {"method": "nvmf_create_subsystem", "params": {"nqn": "$nqn", "allow_any_host": true, "serial_number": "SPDK"}},
    {"method": "nvmf_subsystem_add_ns", "params": {"nqn": "$nqn", "namespace": {"bdev_name": "memory"}}},
    {"method": "nvmf_subsystem_add_listener", "params": {"nqn": "$nqn",
      "listen_address": {"trtype": "VFIOUSER", "traddr": "$work/drive", "trsvcid": "0"}}}]}]}
CONF

# The first core that this process may use.
core=$(sed -n 's/^Cpus_allowed_list:[^0-9]*\([0-9]*\).*/\1/p' /proc/self/status)
serve() {
    rm -f "$work/drive"/*
    "$spdk/nvmf_tgt" --no-huge -s 1024 -m "[${core:-0}]" --no-pci -r "$work/rpc" -c "$work/config.json" >"$work/log" 2>&1 &
    target=$!
    for _ in $(seq 200); do
        [ -S "$work/drive/cntrl" ] && return
        kill -0 "$target" 2>/dev/null || break
        sleep 0.1
    done
    echo "peers: SPDK's target did not start" >&2
    exit 1
}
serve
socket=$work/drive/cntrl
failed=0
# What this peer does otherwise, by its own choice; see docs/vfio-user.md.
known=()
mapfile -t known < <(grep -v '^#' "$here/spdk-known" || true)
[ -n "$version" ] && [ "$version" -ge 2605 ] || known+=("Compare")
"$checks" "$socket" "${known[@]}" || failed=1
kill -0 "$target" 2>/dev/null || { echo "peers: SPDK's target died" >&2; exit 1; }

# The kernels' sources as fibers of a process, where a C++ compiler has them: they store to the target's doorbells too.
if command -v "${CXX:-c++}" >/dev/null 2>&1 || [ -n "${WARPROW_KERNELS_BINARY:-}" ]; then
    echo 'peers: look-ups by kernels on the CPU'
    kernels=${WARPROW_KERNELS_BINARY:-$(build warprow-guest-gpu guest-gpu)}
    "$kernels" socket "$socket" || failed=1
else
    echo 'peers: look-ups by kernels on the CPU skipped: there is no C++ compiler (c++ or $CXX)'
fi

# Kernels on a GPU store to the target's doorbells, which are memory that both processes have mapped: every row of their look-ups is
# compared. WARPROW_GPU_TESTS may name the test binary.
if [ -e /dev/nvidiactl ]; then
    echo 'peers: look-ups by a GPU'
    tests=${WARPROW_GPU_TESTS:-}
    [ -n "$tests" ] || tests=$(cd "$here/../.." && cargo test --quiet --package warprow-gpu --test gpu --no-run --message-format json-render-diagnostics |
        sed -n 's/.*"executable":"\([^"]*\/gpu-[^"]*\)".*/\1/p')
    WARPROW_FOREIGN_DRIVE=vfio-user:$socket "$tests" foreign --nocapture 2>&1 | tee "$work/gpu" || failed=1
    # The test passes by leaving everything out where CUDA cannot be used.
    grep -q 'all right' "$work/gpu" || { echo 'peers: no GPU looked anything up' >&2; failed=1; }
fi

turn=0
while [ "$turn" -lt "$turns" ]; do
    ours=$(taskset -c 1 "$ring" --on "vfio-user:$socket" --overwrite --depth 128 --block 512 --size 64M --seconds 3 --json |
        sed -n 's/.*"commands_per_second":\([0-9]*\).*/\1/p')
    theirs=$("$spdk/spdk_nvme_perf" --no-huge -s 512 -r "trtype:VFIOUSER traddr:$work/drive subnqn:$nqn" -q 128 -o 512 -w randread -t 3 -c 0x2 2>>"$work/log" |
        awk '$1 == "Total" && $2 == ":" { printf "%d", $3 }')
    [ -n "$ours" ] && [ -n "$theirs" ] || { echo "peers: no rate: ours '$ours', SPDK's '$theirs'" >&2; exit 1; }
    echo "peers: turn $turn: ours $ours/s, SPDK's initiator $theirs/s"
    echo "$ours $theirs" >>"$work/rates"
    turn=$((turn + 1))
done
[ ! -e "$work/rates" ] || awk '{ printf "%.3f\n", $1 / $2 }' "$work/rates" | sort -n |
    awk '{ r[NR] = $1 } END { printf "peers: ours / SPDK'"'"'s, median of %d pairs: %s (%s to %s)\n", NR, r[int((NR + 1) / 2)], r[1], r[NR] }'
exit "$failed"
