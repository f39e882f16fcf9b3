#!/usr/bin/env bash
# Installs the C interface: warprow.h, libwarprow as a shared and as a static library, warprow.pc for pkg-config, and what CMake's
# find_package(warprow) reads.
#
#     cargo build -p warprow-capi --release
#     bash capi/install.sh --prefix /usr/local [--from target/release] [--destdir DIR]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
prefix=/usr/local from=$here/../target/release destdir=

while [ $# -gt 0 ]; do
    case "$1" in
    --prefix) prefix=$2 ;;
    --from) from=$2 ;;
    --destdir) destdir=$2 ;;
    *)
        echo "usage: $0 [--prefix DIR] [--from DIR] [--destdir DIR]" >&2
        exit 2
        ;;
    esac
    shift 2
done

shared=$from/libwarprow_capi.so
if [ ! -e "$shared" ]; then
    echo "$shared is not there: build it with cargo build -p warprow-capi --release" >&2
    exit 1
fi
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$here/../Cargo.toml" | head -n 1)
# The name by which programs ask for the library: of the interface's major version, as build.rs gives it.
soname=libwarprow.so.1
real=libwarprow.so.1.$version

# What the static library needs of the system, as a list of CMake's.
needs=$(sed -n 's/^Libs.private: *//p' "$here/warprow.pc.in" | sed -e 's/-l//g' -e 's/ /;/g')

install -d "$destdir$prefix/include" "$destdir$prefix/lib/pkgconfig" "$destdir$prefix/lib/cmake/warprow"
install -m 644 "$here/include/warprow.h" "$destdir$prefix/include/warprow.h"
install -m 755 "$shared" "$destdir$prefix/lib/$real"
ln -sf "$real" "$destdir$prefix/lib/$soname"
ln -sf "$soname" "$destdir$prefix/lib/libwarprow.so"
if [ -e "$from/libwarprow_capi.a" ]; then
    install -m 644 "$from/libwarprow_capi.a" "$destdir$prefix/lib/libwarprow.a"
fi
sed -e "s|@prefix@|$prefix|" -e "s|@version@|$version|" "$here/warprow.pc.in" >"$destdir$prefix/lib/pkgconfig/warprow.pc"
IFS=. read -r major minor _ <<<"$version"
for file in warprow-config warprow-config-version; do
    sed -e "s|@version@|$version|" -e "s|@major@|$major|" -e "s|@minor@|$minor|" -e "s|@soname@|$soname|" -e "s|@needs@|$needs|" \
        "$here/cmake/$file.cmake.in" >"$destdir$prefix/lib/cmake/warprow/$file.cmake"
done
echo "installed warprow.h, libwarprow, warprow.pc and CMake's files below $destdir$prefix"
