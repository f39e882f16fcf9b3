#!/usr/bin/env bash
# Builds a kernel for the guest in which VFIO has iommufd (kernel.config), from Debian's source package: no kernel of Debian's has
# it. Prints the folder for WARPROW_GUEST_KERNEL (run.sh, iommufd.sh): the kernel as an ELF file, its modules as an archive.
# Needs a C compiler, make, bc, perl and xz, and Debian's tools; nothing is installed. Takes minutes, once; 2 GB meanwhile.
#
#   kernel.sh [SOURCE]     SOURCE: the Debian package of sources (default: linux-source-6.12)
#
#   WARPROW_GUEST_DIR      where to keep it (default: target/guest)
#   WARPROW_DEBIAN_MIRROR  see apt.sh
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${WARPROW_GUEST_DIR:-$here/../../target/guest}
source=${1:-linux-source-6.12}
# shellcheck source=/dev/null
. "$here/apt.sh"
trap 'fail "kernel.sh failed at line $LINENO"' ERR

for tool in cc make bc perl xz; do
    command -v "$tool" >/dev/null || skip "$tool is missing (to build a kernel)"
done
guest=$("$here/fetch.sh")
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
key=$(cat "${BASH_SOURCE[0]}" "$here/kernel.config" | sha256sum | cut -c1-12)-$source
ready=$cache/$key
exec 8>"$cache/lock-kernel"
flock -n 8 || skip "another process builds a kernel in $cache"
[ -e "$ready/vmlinux" ] && { echo "$ready"; exit; }
work=$cache/$key.part
rm -rf "$work"
mkdir -p "$work"/{tools,source,out,modules,ready}

# The sources of the newest suite that has them; what the build needs beside a compiler of the oldest, for its C library's sake.
private_apt "$work" bookworm trixie trixie-backports
(cd "$work/source" && private apt-get download "$source") || offline "$source could not be fetched"
(cd "$work/tools" && private apt-get download {flex,bison,m4,libelf1,libelf-dev,zlib1g,zlib1g-dev}/bookworm) ||
    offline "what builds a kernel could not be fetched"
for package in "$work"/{tools,source}/*.deb; do
    dpkg-deb -x "$package" "$(dirname "$package")" || fail "$package could not be unpacked (is the disk full?)"
done
tar -x -C "$work/source" --strip-components 1 -f "$work"/source/usr/src/linux-source-*.tar.xz
tools=$work/tools/usr
libraries=$tools/lib/x86_64-linux-gnu:$work/tools/lib/x86_64-linux-gnu
build() {
    PATH=$tools/bin:$PATH M4=$tools/bin/m4 BISON_PKGDATADIR=$tools/share/bison C_INCLUDE_PATH=$tools/include \
        LIBRARY_PATH=$libraries LD_LIBRARY_PATH=$libraries make -C "$work/source" O="$work/out" "$@" >>"$log" 2>&1 ||
        fail "make $* failed (details: $log)"
}
build KCONFIG_ALLCONFIG="$here/kernel.config" allnoconfig
# What this kernel does not know, or gives only with something else, is missing in silence.
while read -r line; do
    grep -q -x -e "$line" "$work/out/.config" || fail "$source does not take $line"
done < <(grep '^CONFIG_' "$here/kernel.config")
build -j "$(nproc)" vmlinux modules
build INSTALL_MOD_PATH="$work/modules" INSTALL_MOD_STRIP=1 modules_install

strip -o "$work/ready/vmlinux" "$work/out/vmlinux"
cp "$work/out/.config" "$work/ready/config"
version=$(cat "$work/out/include/config/kernel.release")
rm -f "$work/modules/lib/modules/$version"/{build,source}
"$guest/root/bin/busybox" depmod -b "$work/modules" "$version"
(cd "$work/modules" && find . | "$guest/root/bin/busybox" cpio -o -H newc 2>>"$log") >"$work/ready/modules.cpio"
mv "$work/ready" "$ready"
rm -rf "$work"
echo "$ready"
