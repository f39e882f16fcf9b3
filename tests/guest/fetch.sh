#!/usr/bin/env bash
# Prepares a guest once: fetches QEMU, a kernel and busybox as Debian packages into a private folder, unpacks them there and
# builds the base initrd. Prints the folder's path. Nothing is installed, no privilege is needed; QEMU runs with the
# fetched C library. Exit code 77 and one line "guest tier skipped: ..." where this machine cannot do it.
#
#   fetch.sh             for Linux's VFIO in the guest: the kernel's modules in the initrd, and nvme-cli
#   fetch.sh vfio-user   for Linux's own NVMe driver in the guest: QEMU 10.1 or later; nvme-cli, fio, ext4's tools and stress-ng
#
#   WARPROW_GUEST_DIR      where to keep it (default: target/guest); about 200 MB, and 800 MB for vfio-user
#   WARPROW_DEBIAN_MIRROR  see apt.sh
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${WARPROW_GUEST_DIR:-$here/../../target/guest}
recipe=${1:-vfio}
# QEMU comes from the backports; what unpacks the kernel image follows the kernel. Programs are for the guest.
case $recipe in
    vfio)
        suite=bookworm unpacker=lz4 packages=(nvme-cli) programs=(nvme)
        kernel_prefix=linux-image-6.1.0- kernel_pattern='^linux-image-6\.1\.0-[0-9]+-cloud-amd64$'
        ;;
    vfio-user)
        suite=trixie unpacker=zstd packages=(nvme-cli fio e2fsprogs stress-ng)
        programs=(nvme fio mke2fs e2fsck stress-ng)
        kernel_prefix=linux-image-6.12. kernel_pattern='^linux-image-6\.12\.[0-9]+\+deb13-cloud-amd64$'
        ;;
    *) echo "usage: fetch.sh [vfio | vfio-user]" >&2 && exit 2 ;;
esac
packages+=(qemu-system-x86 busybox-static "$unpacker")

# shellcheck source=/dev/null
. "$here/apt.sh"
trap 'fail "fetch.sh failed at line $LINENO"' ERR

[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || skip "it needs an x86-64 Linux machine"

# The folder is named after the scripts' content: a changed recipe builds anew, and never under a running guest.
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
key=$(cat "${BASH_SOURCE[0]}" "$here/apt.sh" | sha256sum | cut -c1-12)-$recipe
ready=$cache/$key
exec 9>"$cache/lock"
flock -w 900 9 || skip "another process has held $cache/lock for 15 minutes"
[ -e "$ready/base.cpio" ] && { echo "$ready"; exit; }
work=$cache/$key.part
rm -rf "$work"
mkdir -p "$work"/{root,base/bin}

private_apt "$work" "$suite" "$suite-backports"
private apt-get install -y -d -t "$suite-backports" "${packages[@]}" || offline "QEMU's packages could not be fetched"
kernel=$(apt-cache -c "$apt_conf" pkgnames "$kernel_prefix" | grep -E "$kernel_pattern" | sort -V | tail -1) ||
    skip "the mirror has no cloud kernel $kernel_prefix*"
(cd "$work/apt/cache/archives" && private apt-get download "$kernel") || offline "$kernel could not be fetched"
for package in "$work"/apt/cache/archives/*.deb; do
    dpkg-deb -x "$package" "$work/root" || fail "$package could not be unpacked (is the disk full?)"
done

# Releases differ in where they keep libraries and busybox.
root=$work/root
libraries=$(dirname "$(find "$root" -path '*/x86_64-linux-gnu/ld-linux-x86-64.so.2' | head -1)")
loader=$libraries/ld-linux-x86-64.so.2
with_libraries() { "$loader" --library-path "$libraries:$root/usr/lib/x86_64-linux-gnu:$root/usr/lib/x86_64-linux-gnu/ceph" "$@"; }
busybox=$(find "$root" -path "*/bin/busybox" | head -1)
if [ "$recipe" = vfio-user ] && ! with_libraries "$root/usr/bin/qemu-system-x86_64" -device help 2>>"$log" | grep -q '"vfio-user-pci"'; then
    skip "the QEMU of $suite-backports has no vfio-user-pci: it needs 10.1 or later"
fi

# The kernel as an uncompressed ELF file: QEMU enters it by PVH and the guest decompresses nothing. The boot protocol's
# header says where the payload lies: setup sectors at 1f1h, payload offset and length at 248h.
bz=$(echo "$root"/boot/vmlinuz-*)
sectors=$(od -An -tu1 -j $((0x1f1)) -N1 "$bz")
read -r offset length < <(od -An -tu4 -j $((0x248)) -N8 "$bz")
# The payload's last four bytes are its uncompressed length, no part of the compressed stream.
dd if="$bz" bs=1M iflag=skip_bytes,count_bytes skip=$(((sectors + 1) * 512 + offset)) count=$((length - 4)) status=none |
    with_libraries "$root/usr/bin/$unpacker" -dc \
        >"$work/vmlinux" 2>>"$log" || fail "$kernel is not compressed with $unpacker as expected (details: $log)"

# Base initrd: busybox, and the VFIO modules or the programs with their libraries. The init script and the test ride in a second
# archive (run.sh, vfio-user.sh).
cp "$busybox" "$work/base/bin/"
if [ "$recipe" = vfio ]; then
    version=$(basename "$root"/lib/modules/*)
    modules=$work/base/lib/modules/$version
    mkdir -p "$modules"
    (cd "$root/lib/modules/$version" && cp --parents -r kernel/drivers/vfio kernel/virt/lib/irqbypass.ko "$modules")
    "$busybox" depmod -b "$work/base" "$version"
fi
if [ ${#programs[@]} -gt 0 ]; then
    mkdir -p "$work/base"/{tools,lib64,libraries}
    cp -L "$loader" "$work/base/lib64/"
    for program in "${programs[@]}"; do
        file=$(find "$root/usr" -path "*bin/$program" | head -1)
        cp "$file" "$work/base/tools/"
        with_libraries --list "$file" 2>>"$log" | sed -n 's/.* => \([^ ]*\) .*/\1/p' |
            xargs -r cp -L -n -t "$work/base/libraries/" 2>>"$log" || fail "the libraries of $program could not be found (details: $log)"
    done
fi
(cd "$work/base" && find . | "$busybox" cpio -o -H newc 2>>"$log") >"$work/base.cpio"

rm -rf "$work"/{apt,base} "${root:?}"/{boot,lib/modules,usr/lib/modules,usr/share/doc,usr/share/man,usr/share/locale}
mv "$work" "$ready"
echo "$ready"
