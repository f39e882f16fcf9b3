#!/usr/bin/env bash
# Builds the real gdrdrv for the guest's kernel, from a checkout of NVIDIA's GDRCopy, and the module that stands in for NVIDIA's own below
# it (gdrdrv/). Prints the folder with both (run.sh --modules). Nothing is installed; takes seconds, and 80 MB meanwhile.
# Exit code 77 and one line where that cannot be done: no Debian package has gdrdrv's sources, so a checkout has to be named.
#
#   WARPROW_GDRCOPY        a checkout of github.com/NVIDIA/gdrcopy, 2.5 or later
#   WARPROW_GUEST_DIR      where to keep the modules (default: target/guest)
#   WARPROW_DEBIAN_MIRROR  see apt.sh
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${WARPROW_GUEST_DIR:-$here/../../target/guest}
# shellcheck source=/dev/null
. "$here/apt.sh"
trap 'fail "gdrdrv.sh failed at line $LINENO"' ERR

[ -n "${WARPROW_GDRCOPY:-}" ] || skip "WARPROW_GDRCOPY names no checkout of GDRCopy (github.com/NVIDIA/gdrcopy), whose module would be built"
sources=$WARPROW_GDRCOPY/src/gdrdrv
[ -e "$sources/gdrdrv.c" ] || fail "WARPROW_GDRCOPY: there is no src/gdrdrv/gdrdrv.c in $WARPROW_GDRCOPY"
for tool in cc make; do
    command -v "$tool" >/dev/null || skip "$tool is missing (to build modules of the kernel)"
done
guest=$("$here/fetch.sh")
cache=$(cd "$cache" && pwd)
version=$(grep -a -o -m 1 'Linux version [^ ]*' "$guest/vmlinux" | head -n 1 | cut -d ' ' -f 3)
key=$(cat "${BASH_SOURCE[0]}" "$here"/gdrdrv/* "$sources"/gdrdrv.[ch] | sha256sum | cut -c1-12)-gdrdrv-$version
ready=$cache/$key
exec 8>"$cache/lock-gdrdrv"
flock -w 300 8 || skip "another process builds modules in $cache"
[ -e "$ready/gdrdrv.ko" ] && { echo "$ready"; exit; }
work=$cache/$key.part
rm -rf "$work"
mkdir -p "$work"/{packages,root,modules,ready}

private_apt "$work" bookworm bookworm-backports
(cd "$work/packages" && private apt-get download "linux-headers-$version" "linux-headers-${version%-cloud-amd64}-common" \
    "linux-kbuild-${version%.*}" libelf1 zlib1g) || skip "the mirror has no headers of the guest's kernel $version (details: $log)"
for package in "$work"/packages/*.deb; do
    dpkg-deb -x "$package" "$work/root" || fail "$package could not be unpacked (is the disk full?)"
done
headers=$work/root/usr/src/linux-headers-$version
# Debian's file names the other package by its absolute path.
echo "include ${headers%-cloud-amd64}-common/Makefile" >"$headers/Makefile"
cp "$here"/gdrdrv/* "$sources"/gdrdrv.[ch] "$work/modules"
LD_LIBRARY_PATH=$work/root/usr/lib/x86_64-linux-gnu:$work/root/lib/x86_64-linux-gnu \
    make -C "$headers" M="$work/modules" CC=cc HAVE_PROC_OPS=y modules >>"$log" 2>&1 || fail "gdrdrv does not build (details: $log)"
for module in gpu_stand_in gdrdrv; do
    strip --strip-debug -o "$work/ready/$module.ko" "$work/modules/$module.ko"
done
mv "$work/ready" "$ready"
rm -rf "$work"
echo "$ready"
