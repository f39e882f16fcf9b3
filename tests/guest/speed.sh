#!/usr/bin/env bash
# How fast our driver is beside Linux's own with io_uring, on one controller (QEMU's model) in one guest boot, by turns: 4 KiB random
# reads one at a time and 32 at a time, every block compared. Prints the rates of each turn and medians of the pairs' ratios.
# With a WARPROW_GUEST_KERNEL that has iommufd (kernel.sh), ours through that too.
# Not a check: it fails only where something does not work. Exit code 77 where this machine cannot run guests (see fetch.sh).
#
#   speed.sh [turns]   default 5; a turn takes about half a minute
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
turns=${1:-5}
"$here/fetch.sh" >/dev/null
binary=$(cd "$here/../.." &&
    cargo build --quiet --release --package warprow-bench --bin bench-ring --message-format json-render-diagnostics |
    sed -n 's/.*"executable":"\([^"]*\/bench-ring\)".*/\1/p')
exec "$here/run.sh" --limit $((60 + turns * 120)) --init "$here/init-speed" --drive 64M,addr=8.0 "$binary" "$turns"
