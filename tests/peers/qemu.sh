#!/usr/bin/env bash
# Our client on QEMU's own vfio-user server, which exports QEMU's NVMe model: every conformance check that it is not known to fail;
# then a store that is made, filled, verified and looked up, its bytes compared; a medium that fails, a server that stops, one that dies.
# The server takes one client and ends with it: it is started for each check and each command anew, on the same files.
# No guest runs, and no privilege is needed.
# Exit code 77 and one line where no QEMU is named.
#
#   WARPROW_QEMU   a qemu-system-* of 10.1 or later, built with --enable-vfio-user-server (distributions' are not)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
qemu=${WARPROW_QEMU:-}
[ -n "$qemu" ] || { echo "peers skipped: WARPROW_QEMU names no QEMU"; exit 77; }
objects=$("$qemu" -object help) || { echo "peers: $qemu does not run" >&2; exit 1; }
grep -q x-vfio-user-server <<<"$objects" ||
    { echo "peers skipped: $qemu was built without --enable-vfio-user-server"; exit 77; }

build() { # package, binary
    (cd "$here/../.." && cargo build --quiet --package "$1" --bin "$2" --message-format json-render-diagnostics |
        sed -n 's/.*"executable":"\([^"]*\/'"$2"'\)".*/\1/p')
}
checks=${WARPROW_PEER_BINARY:-$(build warprow-conformance vfio-user-peer)}
warprow=${WARPROW_BINARY:-$(build warprow warprow)}

work=$(mktemp -d)
server=
clean() {
    [ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
    rm -rf "$work"
}
trap clean EXIT
socket=$work/s
drive=vfio-user:$socket
truncate -s 64M "$work/first"
truncate -s 32M "$work/second"

# Serves both files: `media` puts blkdebug before the first, with the faults of the guest tier; `slow` lets it do 1 MiB/s.
cat >"$work/serve" <<SERVE
first=driver=raw,file.driver=file,file.filename=$work/first
case "\${1:-}" in
    media) first=driver=raw,file.driver=blkdebug,file.config=$here/../guest/media-errors.conf,file.image.driver=file,file.image.filename=$work/first ;;
    slow) first=driver=throttle,throttle-group=slow,file.driver=raw,file.file.driver=file,file.file.filename=$work/first ;;
esac
exec "$qemu" -machine x-remote,vfio-user=on -nodefaults -display none -serial none -monitor none \\
    -object throttle-group,id=slow,x-bps-total=1048576 -blockdev "\$first,node-name=first" \\
    -blockdev "driver=raw,node-name=second,file.driver=file,file.filename=$work/second" \\
    -device nvme,id=nvme,serial=QEMU \\
    -device nvme-ns,drive=first,bus=nvme,nsid=1,eui64=1 \\
    -device nvme-ns,drive=second,bus=nvme,nsid=2,eui64=2 \\
    -object x-vfio-user-server,id=server,type=unix,path=$socket,device=nvme
SERVE

failed=0
verdict() { # whether, what
    if [ "$1" = 0 ]; then echo "ok     $2"; else
        echo "FAILED $2"
        failed=1
    fi
}
start() { # media, or nothing
    rm -f "$socket"
    sh "$work/serve" "$@" 2>>"$work/log" &
    server=$!
    for _ in $(seq 200); do
        # Listening: connecting would make this the client.
        grep -q "00010000 .* $socket\$" /proc/net/unix && return
        kill -0 "$server" 2>/dev/null || break
        sleep 0.05
    done
    cat "$work/log" >&2
    echo "peers: QEMU's server did not start" >&2
    exit 1
}
# The server must have ended by itself, and well.
ended() { # what came before
    local code=0
    for _ in $(seq 200); do
        kill -0 "$server" 2>/dev/null || break
        sleep 0.05
    done
    kill -KILL "$server" 2>/dev/null || true
    wait "$server" || code=$?
    server=
    [ "$code" = 0 ] || verdict 1 "QEMU's server ended with $code after: $1"
}
# on SERVER CODE WORDS COMMAND...: a command of warprow's on a server of its own; exit code and words must be right.
on() {
    local kind=$1 want=$2 words=$3 code=0
    shift 3
    start "$kind"
    timeout 60 "$warprow" "$@" >"$work/said" 2>&1 || code=$?
    ended "$1"
    if [ "$code" = "$want" ] && grep -q -F -e "$words" "$work/said"; then verdict 0 "$1: $words"; else
        verdict 1 "$1: exit code $code, not $want, or not: $words"
        cat "$work/said"
    fi
}

"$qemu" --version | head -1
known=()
mapfile -t known < <(grep -v '^#' "$here/qemu-known" || true)
"$checks" --start "sh $work/serve" "$socket" "${known[@]}" || failed=1

# 16,384 rows of 64 numbers, whose bits are the head of the program itself.
head -c 4194304 "$warprow" >"$work/items"
{
    printf '\223NUMPY\001\000\166\000'
    printf '%-117s\n' "{'descr': '<f4', 'fortran_order': False, 'shape': (16384, 64), }"
    cat "$work/items"
} >"$work/items.npy"
row() { dd if="$work/items" bs=256 skip="$1" count=1 status=none; }

# What the checks left on the drive is lost by consent.
on '' 4 'token' format -d "$drive" --json
token=$(sed -n 's/.*"token":"\([^"]*\)".*/\1/p' "$work/said")
on '' 0 'Made store' format -d "$drive" --consent "$token"
on '' 0 'Loaded 1 table, 16,384 rows' load -d "$drive" "$work/items.npy" --row-crc
on '' 0 '"contents_checked":true,"differing":0' verify -d "$drive" --against "$work/items.npy" --json
on '' 0 '"missing":1' lookup -d "$drive" --table items --ids 16383,0,-1,9000,5000 --out "$work/rows.npy" --json
{
    row 16383
    row 0
    head -c 256 /dev/zero
    row 9000
    row 5000
} >"$work/want"
verdict "$(tail -c 1280 "$work/rows.npy" | cmp -s - "$work/want"; echo $?)" 'rows are looked up bit for bit'
on '' 0 'rows' export -d "$drive" --table items --out "$work/out.npy"
verdict "$(tail -c 4194304 "$work/out.npy" | cmp -s - "$work/items"; echo $?)" 'the table is exported bit for bit'
# A block that cannot be read is named, with the drive's own status.
on media 7 'LBA 2048 failed: Unrecovered Read Error' verify -d "$drive"

# gone SERVER SIGNAL CODE WORDS COMMAND...: the server gets a signal, at once or while it works for a command, which must say so soon.
gone() {
    local kind=$1 signal=$2 want=$3 words=$4 code=0 began=$SECONDS
    shift 4
    start "$kind"
    if [ "$kind" = slow ]; then (sleep 1.5 && exec kill "-$signal" "$server") & else kill "-$signal" "$server"; fi
    timeout 60 "$warprow" "$@" >"$work/said" 2>&1 || code=$?
    kill -KILL "$server" 2>/dev/null || true
    wait 2>/dev/null || true
    server=
    local what="$1, and the server gets SIG$signal ($((SECONDS - began)) s)"
    if [ "$code" = "$want" ] && grep -q -F -e "$words" "$work/said"; then verdict 0 "$what"; else
        verdict 1 "$what: exit code $code, not $want, or not: $words"
        cat "$work/said"
    fi
}
# 4 MiB take more than 4 s.
gone '' STOP 3 'no message within its time' inspect -d "$drive"
gone slow STOP 7 'no message within its time' load -d "$drive" "$work/items.npy" --replace
gone slow KILL 7 'the device is gone' load -d "$drive" "$work/items.npy" --replace
# None of it is seen afterwards: the store has had two commits, its making and the first load.
on '' 0 '"contents_checked":true,"differing":0' verify -d "$drive" --against "$work/items.npy" --json
on '' 0 'epoch 2' inspect -d "$drive"
exit "$failed"
