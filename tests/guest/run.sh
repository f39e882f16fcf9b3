#!/usr/bin/env bash
# Runs an x86-64 binary in the guest, with the libraries that it is linked to, as an ordinary user, with every NVMe function bound to vfio-pci and their PCI
# addresses in $NVME_FUNCTIONS, its memory limit in $MEMLOCK_KIB. The guest's console comes out on stdout.
#
#   run.sh [options] BINARY [argument...]
#     --drive SIZE[+SIZE...][,property=value...]
#                     one NVMe controller with a namespace of each SIZE (a sparse file), and properties of QEMU's nvme
#                     device (mdts=5, max_ioqpairs=4, ...); errors=FILE puts a blkdebug configuration under the first
#                     namespace, slow=N lets each namespace read only N bytes a second; slot=on puts the controller behind a port of
#                     its own, which can be switched off; same=N lets it share the media of controller N. Repeatable; without any: --drive 64M
#     --keep ADDRESS  leave this function to Linux's own driver; repeatable
#     --vfio WAY      what the user may open: type1 (default), the functions' groups; iommufd, their own files and /dev/iommu, with
#                     WARPROW_VFIO to say so; both. In $GUEST_VFIO. The latter two need WARPROW_GUEST_KERNEL
#     --init FILE     the guest's first process (default: init, beside this script)
#     --modules FOLDER  kernel modules for the guest (gdrdrv.sh)
#     --qemu ARG      one more argument for QEMU; repeatable
#     --limit S       seconds the binary may run (default 60); the boot gets 30 more
#     --cpus N        virtual processors (default 1)
#     --memory MIB    guest memory (default 512)
#     --memlock KIB   RLIMIT_MEMLOCK of the binary (default 65536)
#
# Exit code: the binary's own (137: it ran into the limit); 77: the tier cannot run here; 2: wrong usage;
# 120, 121, 124: the guest could not be prepared;
# 123: Linux's driver read other content than the test left in /tmp/expect (see init); 125: the guest ended twice without reporting any code.
# WARPROW_GUEST_ACCEL=tcg|kvm overrides the choice of accelerator; WARPROW_GUEST_KERNEL is a folder with another kernel (kernel.sh).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
usage() {
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2
    exit 2
}

drives=() extra=() keep=() init=$here/init modules= limit=60 cpus=1 memory=512 memlock=65536 vfio=type1
while [[ ${1:-} == --* ]]; do
    [ $# -ge 2 ] || usage
    case $1 in
        --drive) drives+=("$2") ;;
        --keep) keep+=("$2") ;;
        --init) init=$2 ;;
        --modules) modules=$2 ;;
        --qemu) extra+=("$2") ;;
        --limit) limit=$2 ;;
        --cpus) cpus=$2 ;;
        --memory) memory=$2 ;;
        --memlock) memlock=$2 ;;
        --vfio) vfio=$2 ;;
        *) usage ;;
    esac
    shift 2
done
[ $# -ge 1 ] || usage
binary=$1
shift
[ -x "$binary" ] || { echo "guest: $binary is not an executable file" >&2; exit 2; }
[ ${#drives[@]} -gt 0 ] || drives=(64M)
case $vfio in type1 | iommufd | both) ;; *) usage ;; esac

guest=$("$here/fetch.sh")
kernel=$guest archives=("$guest/base.cpio")
if [ -n "${WARPROW_GUEST_KERNEL:-}" ]; then
    kernel=$WARPROW_GUEST_KERNEL archives+=("$WARPROW_GUEST_KERNEL/modules.cpio")
    for file in vmlinux modules.cpio; do
        [ -e "$kernel/$file" ] || { echo "guest: WARPROW_GUEST_KERNEL: no $file in $kernel" >&2 && exit 2; }
    done
fi
root=$guest/root
libraries=$root/lib/x86_64-linux-gnu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The kernel unpacks concatenated archives in order: the base, then what belongs to this run.
mkdir "$work/top"
cp "$init" "$work/top/init"
chmod +x "$work/top/init"
cp "$binary" "$work/top/test"
if [ -n "$modules" ]; then
    mkdir "$work/top/modules"
    cp "$modules"/*.ko "$work/top/modules"
fi
# The guest has no libraries of its own; a binary that is linked to some brings them, with the loader, at the paths of this machine.
for library in $(ldd "$binary" 2>/dev/null | grep -o '/[^ ]*' || true); do
    mkdir -p "$work/top$(dirname "$library")"
    cp -L "$library" "$work/top$library"
done
printf "LIMIT=%s MEMLOCK_KIB=%s GUEST_VFIO=%s KEEP='%s'\n" "$limit" "$memlock" "$vfio" "${keep[*]}" >"$work/top/settings"
: >"$work/top/arguments"
[ $# -eq 0 ] || printf '%s\n' "$@" >"$work/top/arguments"
{
    cat "${archives[@]}"
    (cd "$work/top" && find . -mindepth 1 | "$root/bin/busybox" cpio -o -H newc 2>/dev/null)
} >"$work/initrd"

# Fresh, empty drives for each attempt; sets the array devices.
make_drives() {
    local number namespace spec property properties errors slow same file locking
    devices=()
    for number in "${!drives[@]}"; do
        spec=${drives[number]} properties='' errors='' slow='' same=''
        for property in $(tr ',' ' ' <<<"${spec#"${spec%%,*}"}"); do
            case $property in
                errors=*) errors=$(realpath "${property#errors=}") ;;
                slow=*) slow=,throttling.bps-read=${property#slow=} ;;
                slot=on)
                    devices+=(-device "pcie-root-port,id=port$number,chassis=$number,slot=$number")
                    properties+=,bus=port$number
                    ;;
                same=*) same=${property#same=} ;;
                *) properties+=,$property ;;
            esac
        done
        devices+=(-device "nvme,id=nvme$number,serial=WARPROW$number$properties")
        namespace=0
        for size in $(tr '+' ' ' <<<"${spec%%,*}"); do
            namespace=$((namespace + 1))
            file=$work/drive${same:-$number}-$namespace
            if [ -z "$same" ]; then
                rm -f "$file"
                truncate -s "$size" "$file"
            fi
            # QEMU's own lock would keep a second controller out.
            locking=,file.locking=off
            [ -z "$errors" ] || file=blkdebug:$errors:$file errors='' locking=''
            devices+=(-drive "file=$file,if=none,id=d$number-$namespace,format=raw,cache=unsafe$slow$locking"
                -device "nvme-ns,drive=d$number-$namespace,bus=nvme$number,nsid=$namespace,uuid=auto,eui64=0x5254570000000${number}0$namespace")
        done
    done
}

# boot ACCELERATOR: one guest; its console to stdout and to $work/console.
boot() {
    make_drives
    timeout -k 5 $((limit + 30)) \
        "$libraries/ld-linux-x86-64.so.2" --library-path "$root/usr/lib/x86_64-linux-gnu:$libraries" \
        "$root/usr/bin/qemu-system-x86_64" -L "$root/usr/share/qemu" -L "$root/usr/share/seabios" \
        -nodefaults -no-user-config -display none -no-reboot -serial stdio \
        -machine "q35,accel=$1,kernel-irqchip=split" -cpu max -smp "$cpus" -m "${memory}M" \
        -device intel-iommu,intremap=on,caching-mode=on "${devices[@]}" "${extra[@]}" \
        -kernel "$kernel/vmlinux" -initrd "$work/initrd" \
        -append "console=ttyS0 quiet panic=-1 intel_iommu=on iommu=nopt mitigations=off no_timer_check nvme_core.multipath=0 iomem=relaxed" \
        </dev/null 2>&1 | tr -d '\r' | tee "$work/console" || true
    code=$(sed -n 's/^GUEST_EXIT_CODE=\([0-9]*\).*/\1/p' "$work/console" | tail -1)
}

# KVM only where the processor really has it: some machines carry a /dev/kvm in which no guest starts.
accelerator=tcg
if [ -w /dev/kvm ] && grep -q -w -E 'vmx|svm' /proc/cpuinfo; then accelerator=kvm; fi
accelerator=${WARPROW_GUEST_ACCEL:-$accelerator}

boot "$accelerator"
if [ -z "$code" ]; then
    echo "guest: no exit code from the guest under $accelerator; once more under tcg" >&2
    boot tcg
fi
if [ -z "$code" ]; then
    echo "guest: no exit code again: the guest died or ran past $((limit + 30)) s" >&2
    code=125
fi
exit "$code"
