#!/usr/bin/env bash
# The driver on QEMU's NVMe controller through the real VFIO: builds the test binary, boots guests, runs every check.
# Exit code 77 and one line where this machine cannot run guests (see fetch.sh).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=x86_64-unknown-linux-gnu
"$here/fetch.sh" >/dev/null

# Static: the guest has no libraries. With --target, so that procedural macros stay as they are.
binary=$(cd "$here/../.." && CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS='-C target-feature=+crt-static' \
    cargo build --quiet --package warprow-conformance --bin guest-nvme --target "$target" --message-format json-render-diagnostics |
    sed -n 's/.*"executable":"\([^"]*guest-nvme\)".*/\1/p')

failed=0
guest() {
    echo "== $1"
    "$here/run.sh" "${@:2}" || { failed=1 && echo "== $1: exit code $?"; }
}

# Two functions of one slot share an IOMMU group.
slot=(--drive '8M,addr=8.0,multifunction=on' --drive '8M,addr=8.1')
guest 'every check on every controller' \
    --drive 64M+32M --drive '32M+8M,mdts=0,max_ioqpairs=4' --drive '8M+8M,mdts=3' \
    "$binary" controllers
guest 'a failing medium' --drive "8M,addr=8.0,errors=$here/media-errors.conf" "$binary" media 0000:00:08.0
guest 'functions of one IOMMU group' "${slot[@]}" "$binary" groups 0000:00:08.0 0000:00:08.1
guest 'functions that Linux holds' "${slot[@]}" --keep 0000:00:08.1 "$binary" refusals 0000:00:08.0 0000:00:08.1
exit "$failed"
