#!/usr/bin/env bash
# The driver and the tool on QEMU's NVMe controller through the real VFIO: builds them, boots guests, runs every check.
# Exit code 77 and one line where this machine cannot run guests (see fetch.sh).
# WARPROW_GUEST_PACKAGES is what cargo builds the three programs with (`--workspace --tests`: with the features that
# `cargo test --workspace` has compiled everything with).
# WARPROW_GUEST_KILLS is how many processes are killed while their kernels drive a queue, for each placement (default 10).
# WARPROW_GDRCOPY names a checkout of NVIDIA's GDRCopy, whose module then pins memory in one more guest (gdrdrv.sh).
#
#   suite.sh           through the functions' groups in a type 1 container: nine guests
#   suite.sh iommufd   through the functions' own files and /dev/iommu, and through both: nine guests, of a kernel that has
#                      iommufd. WARPROW_GUEST_KERNEL names it (kernel.sh builds one); without, this is skipped
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
way=${1:-type1}
case $way in
    type1) ;;
    iommufd)
        if [ -z "${WARPROW_GUEST_KERNEL:-}" ]; then
            echo 'guest tier skipped: WARPROW_GUEST_KERNEL names no kernel with iommufd (tests/guest/kernel.sh builds one)' >&2
            exit 77
        fi
        ;;
    *) echo 'usage: suite.sh [type1 | iommufd]' >&2 && exit 2 ;;
esac
"$here/fetch.sh" >/dev/null

# In one call: dependencies are compiled once, with the features that all three need.
read -ra packages <<<"${WARPROW_GUEST_PACKAGES:--p warprow-conformance -p warprow -p warprow-guest-gpu}"
built=$(cd "$here/../.." && cargo build --quiet "${packages[@]}" --bins --message-format json-render-diagnostics)
executable() { sed -n 's/.*"executable":"\([^"]*\/debug\/'"$1"'\)".*/\1/p' <<<"$built"; }
binary=$(executable guest-nvme)
warprow=$(executable warprow)
gpu=$(executable guest-gpu)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
# guest NAME run.sh's arguments: what the guest prints is also in $work/console.
guest() {
    echo "== $1"
    local code=0
    "$here/run.sh" --vfio "$way" "${@:2}" | tee "$work/console" || code=$?
    if [ "$code" != 0 ]; then
        failed=1
        echo "== $1: exit code $code"
    fi
}

guest 'every check on every controller' \
    --drive 64M+32M --drive '32M+8M,mdts=0,max_ioqpairs=4' --drive '8M+8M,mdts=3' \
    "$binary" controllers
# Two functions of one slot share an IOMMU group.
guest 'functions of one IOMMU group, functions that Linux holds, a failing medium' \
    --drive 8M,addr=8.0,multifunction=on --drive 8M,addr=8.1 --drive 8M,addr=9.0,multifunction=on --drive 8M,addr=9.1 \
    --drive "8M,addr=0a.0,errors=$here/media-errors.conf" --keep 0000:00:09.1 \
    "$binary" machine 0000:00:08.0 0000:00:08.1 0000:00:09.0 0000:00:09.1 0000:00:0a.0
# A drive that needs a second for what the test asks of it.
guest "a peer's BAR, and ends under load" \
    --drive 64M+32M,addr=8.0 --drive 8M,addr=9.0,slow=2097152 \
    --qemu -object --qemu memory-backend-ram,id=peer,size=32M,share=on --qemu -device --qemu ivshmem-plain,memdev=peer \
    "$binary" deaths 0000:00:08.0 0000:00:09.0
# Two drives are free, one is mounted, one is swap space.
guest 'the set-up of a machine, and a store' --limit 150 --init "$here/init-setup" \
    --drive 64M,addr=8.0 --drive 16M,addr=9.0 --drive 16M,addr=0a.0 --drive 64M,addr=0b.0 "$warprow"
# The kernels are C++ to whoever has a compiler for it; without one, there is nothing to run.
if command -v "${CXX:-c++}" >/dev/null 2>&1; then
    peer=(--qemu -object --qemu memory-backend-ram,id=peer,size=32M,share=on --qemu -device --qemu ivshmem-plain,memdev=peer)
    guest 'kernels that store to doorbell registers' --limit 300 --drive 64M,addr=8.0 "${peer[@]}" \
        --qemu -trace --qemu 'pci_nvme_mmio_doorbell_*' --qemu -D --qemu "$work/trace" "$gpu" doorbells 0000:00:08.0
    # The controller is the witness: of each queue that the kernels rang themselves it has seen as many doorbells as they stored; a
    # host thread that stores for them may leave some out.
    witnessed=0
    while read -r queue stored kind; do
        seen=$(grep -c -E "doorbell_(sq sqid|cq cqid) $queue new" "$work/trace" || true)
        echo "   queue $queue: the kernels stored $stored doorbells, the controller saw $seen"
        if [ "$kind" = 1 ] && [ "$seen" = "$stored" ]; then witnessed=1; fi
        if [ "$seen" -eq 0 ] || [ "$seen" -gt "$stored" ] || { [ "$kind" = 1 ] && [ "$seen" != "$stored" ]; }; then
            echo '== the controller saw other doorbells than the kernels stored'
            failed=1
        fi
    done < <(sed -n 's/^DOORBELLS queue=\([0-9]*\) stored=\([0-9]*\) kind=\([01]\).*/\1 \2 \3/p' "$work/console")
    if [ "$witnessed" = 0 ]; then
        echo '== no queue whose doorbells kernels store to has a witness'
        failed=1
    fi
    guest 'ends of queues that kernels drive' --limit 600 --drive 64M,addr=8.0 --drive 64M,addr=9.0,slow=1048576 "${peer[@]}" \
        "$gpu" rings 0000:00:08.0 0000:00:09.0
    # Each in a slot of its own, with a second controller that shares the medium.
    guest 'drives that are pulled out of their slots' --limit 300 \
        --drive 64M,slot=on --drive 64M,slot=on --drive 64M,slot=on --drive 64M,slot=on \
        --drive 64M,same=0,addr=10.0 --drive 64M,same=1,addr=11.0 --drive 64M,same=2,addr=12.0 --drive 64M,same=3,addr=13.0 \
        "${peer[@]}" "$gpu" pulled 0000:01:00.0 0000:02:00.0 0000:03:00.0 0000:04:00.0 \
        0000:00:10.0 0000:00:11.0 0000:00:12.0 0000:00:13.0
    guest 'processes that die while their kernels drive queues' --limit 600 --drive 64M,addr=8.0 "${peer[@]}" \
        "$gpu" deaths 0000:00:08.0 "${WARPROW_GUEST_KILLS:-10}"
    # Only type 1 maps memory of other devices.
    [ "$way" != type1 ] || guest 'memory that a keeper keeps' --limit 300 --drive 64M,addr=8.0,slow=262144 "${peer[@]}" \
        "$gpu" kept 0000:00:08.0 2
    # The real gdrdrv, where its sources are. (Its module is built for the kernel of Debian's.)
    if [ "$way" = type1 ] && [ -z "${WARPROW_GUEST_KERNEL:-}" ]; then
        code=0
        modules=$("$here/gdrdrv.sh") || code=$?
        case $code in
            0)
                guest 'memory that the real gdrdrv pins' --limit 300 --modules "$modules" \
                    --drive 64M,addr=8.0 --drive 64M,addr=9.0,slow=65536 "${peer[@]}" "$gpu" gdrdrv 0000:00:08.0 0000:00:09.0 2
                ;;
            77) ;;
            *) failed=1 ;;
        esac
    fi
else
    echo 'skipped: guests in which kernels drive queues need a C++ compiler (c++ or $CXX)'
fi
if [ "$way" = iommufd ]; then
    # An IOMMU of 39 bits, and a user who may open either: the group's owner and the function's keep each other out.
    guest 'both of VFIO'"'"'s interfaces' --vfio both --qemu -global --qemu intel-iommu.aw-bits=39 --drive 64M+32M "$binary" controllers
fi
exit "$failed"
