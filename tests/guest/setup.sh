#!/usr/bin/env bash
# `warprow doctor`, `devices`, `bind` and `unbind` on a real kernel's sysfs, in one guest with three drives.
# Exit code 77 and one line where this machine cannot run guests (see fetch.sh).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=x86_64-unknown-linux-gnu
"$here/fetch.sh" >/dev/null
binary=$(cd "$here/../.." && CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS='-C target-feature=+crt-static' \
    cargo build --quiet --package warprow --bin warprow --target "$target" --message-format json-render-diagnostics |
    sed -n 's/.*"executable":"\([^"]*warprow\)".*/\1/p')
exec "$here/run.sh" --init "$here/init-setup" --drive 64M,addr=8.0 --drive 16M,addr=9.0 --drive 16M,addr=0a.0 "$binary"
