#!/usr/bin/env bash
# Others' drivers on our controller: `warprow serve` on a socket, QEMU's vfio-user-pci, and in the guest Linux's NVMe driver,
# nvme-cli, fio and a file system (init-vfio-user). Afterwards the file system's own tools read the drive's file on this side.
# Exit code 77 and one line where this machine cannot (QEMU older than 10.1; see fetch.sh).
#
#   WARPROW_BINARY   the command to serve with (default: built here)
#   WARPROW_ROUNDS   rounds of comparing rates with those of QEMU's own model (default 3), 4 s each
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
guest=$("$here/fetch.sh" vfio-user)
root=$guest/root
libraries=$root/usr/lib/x86_64-linux-gnu
with_libraries() { "$libraries/ld-linux-x86-64.so.2" --library-path "$libraries" "$@"; }
binary=${WARPROW_BINARY:-$(cd "$here/../.." && cargo build --quiet --package warprow --message-format json-render-diagnostics |
    sed -n 's/.*"executable":"\([^"]*\/warprow\)".*/\1/p')}

work=$(mktemp -d)
server=
clean() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm -rf "$work"
}
trap clean EXIT
serial=WARPROWSERVED
"$binary" serve --socket "$work/s" "emulated:$work/drive,size=512M,serial=$serial" >"$work/serve.log" 2>&1 &
server=$!
for _ in $(seq 100); do
    [ -S "$work/s" ] && break
    sleep 0.1
done
[ -S "$work/s" ] || { cat "$work/serve.log" && echo "guest: the server did not start" && exit 1; } >&2

mkdir "$work/top"
cp "$here/init-vfio-user" "$work/top/init"
chmod +x "$work/top/init"
rounds=${WARPROW_ROUNDS:-3}
echo "SERIAL=$serial ROUNDS=$rounds" >"$work/top/settings"
busybox=$(find "$root" -path "*/bin/busybox" | head -1)
{
    cat "$guest/base.cpio"
    (cd "$work/top" && find . -type f | "$busybox" cpio -o -H newc 2>/dev/null)
} >"$work/initrd"
truncate -s 512M "$work/qemu.drive"

boot() { # the console to stdout and to $work/console
    timeout -k 5 $((200 + rounds * 10)) "$libraries/ld-linux-x86-64.so.2" --library-path "$libraries" "$root/usr/bin/qemu-system-x86_64" \
        -L "$root/usr/share/qemu" -L "$root/usr/share/seabios" \
        -nodefaults -no-user-config -display none -no-reboot -serial stdio \
        -object memory-backend-memfd,id=memory,size=1G,share=on -machine q35,accel=tcg,memory-backend=memory -cpu max -smp 1 -m 1G \
        -device "{\"driver\":\"vfio-user-pci\",\"socket\":{\"type\":\"unix\",\"path\":\"$work/s\"}}" \
        -drive "file=$work/qemu.drive,if=none,id=d,format=raw,cache=unsafe" -device nvme,drive=d,serial=QEMU \
        -kernel "$guest/vmlinux" -initrd "$work/initrd" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off nvme_core.multipath=0" \
        </dev/null 2>&1 | tr -d '\r' | tee "$work/console" || true
    code=$(sed -n 's/^GUEST_EXIT_CODE=\([0-9]*\).*/\1/p' "$work/console" | tail -1)
}
boot
[ -n "$code" ] || { echo "guest: no exit code; once more" >&2 && boot; }

kill -INT "$server"
wait "$server" && served=0 || served=$?
server=
cat "$work/serve.log"
[ "$served" = 0 ] || { echo "guest: the server ended with $served" >&2 && exit 1; }
[ ! -e "$work/s" ] || { echo "guest: the server left its socket" >&2 && exit 1; }
[ "${code:-125}" = 0 ] || exit "${code:-125}"

# The same content on this side, by a reader that knows neither driver nor controller.
with_libraries "$root/usr/sbin/e2fsck" -fn "$work/drive" >"$work/fsck" 2>&1 || { cat "$work/fsck" && exit 1; }
with_libraries "$root/usr/sbin/debugfs" -R 'dump /sums '"$work/sums" "$work/drive" 2>/dev/null
count=0
while read -r sum file; do
    case $file in ./file?*) ;; *) continue ;; esac
    with_libraries "$root/usr/sbin/debugfs" -R "dump ${file#.} $work/one" "$work/drive" 2>/dev/null
    [ "$(sha256sum <"$work/one" | cut -d' ' -f1)" = "$sum" ] || { echo "guest: $file differs in the drive's file" >&2 && exit 1; }
    count=$((count + 1))
    [ $count -lt 40 ] || break
done <"$work/sums"
[ "$count" = 40 ] || { echo "guest: only $count files were found in the drive's file" >&2 && exit 1; }
echo "guest: $count files are the same in the drive's file"
