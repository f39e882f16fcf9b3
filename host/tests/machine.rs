//! What is read of made-up machines.

mod machines;

use std::fs;

use machines::{Block, FREE, Fixture, RAID, SYSTEM, laptop, server, vmd};
use warprow_host::doctor::{Finding, Verdict};
use warprow_host::{DeviceUseKind, Distance, HostDrive, Machine, PciAddress};

fn at(fixture: &Fixture) -> Machine {
    Machine::at(fixture.root())
}

fn address(text: &str) -> PciAddress {
    text.parse().unwrap()
}

fn drive(fixture: &Fixture, text: &str) -> HostDrive {
    at(fixture).drive(address(text)).unwrap()
}

fn uses(drive: &HostDrive) -> Vec<String> {
    drive.uses.iter().map(ToString::to_string).collect()
}

#[test]
fn drives_of_a_server() {
    let machine = server();
    let drives = at(&machine).drives();
    assert_eq!(drives.iter().map(|drive| drive.function.address.to_string()).collect::<Vec<_>>(), [FREE, SYSTEM, RAID]);
    let free = &drives[0];
    assert_eq!(free.model.as_deref(), Some("MADE-UP DRIVE 3.84TB"));
    assert_eq!((free.serial.as_deref(), free.firmware.as_deref()), (Some("S0000"), Some("FW12")));
    assert_eq!((free.temperature, free.bytes()), (Some(41), Some(7_501_476_528 * 512)));
    assert_eq!((free.function.numa_node, free.function.driver.as_deref()), (Some(0), Some("nvme")));
    assert_eq!(free.function.group.as_ref().map(|group| (group.number, group.others.len())), Some((6, 0)));
    let namespace = &free.namespaces[0];
    assert_eq!((namespace.name.as_str(), namespace.nsid, namespace.lba_bytes), ("nvme0n1", Some(1), Some(512)));
    assert_eq!((namespace.metadata_bytes, namespace.write_back), (Some(0), Some(false)));
    assert!(free.is_free() && !free.is_boot(), "{free:?}");
    assert_eq!(drives[1].namespaces[0].partitions, ["nvme1n1p1", "nvme1n1p2", "nvme1n1p3"]);

    assert!(drives[1].is_boot() && !drives[1].is_free());
    assert_eq!(
        uses(&drives[1]),
        [
            "/dev/nvme1n1p1 is mounted at /boot/efi: the system runs from it",
            "/dev/nvme1n1p1 is an EFI system partition: the machine may boot from it",
            "/dev/nvme1n1p2 is mounted at /: the system runs from it",
            "/dev/nvme1n1p3 is swap space",
        ]
    );
    assert_eq!(
        uses(&drives[2]),
        [
            "/dev/dm-0 is mounted at /srv/my data",
            "/dev/md0 belongs to LVM vg-data",
            "/dev/nvme2n1p1 belongs to RAID md0",
        ]
    );
    assert!(drives[2].contents.iter().any(|content| content.what == "linux_raid_member"));
}

#[test]
fn distances_follow_the_way_from_the_host_bridge() {
    let machine = server();
    let between = |text: &str| drive(&machine, text).gpus.iter().map(|gpu| gpu.1).collect::<Vec<_>>();
    assert_eq!(between(FREE), [Distance::Switch, Distance::OtherSocket]);
    assert_eq!(between(SYSTEM), [Distance::Socket, Distance::OtherSocket]);
    assert_eq!(between(RAID), [Distance::OtherSocket, Distance::RootComplex]);
    assert!(Distance::Switch < Distance::RootComplex && Distance::Socket < Distance::OtherSocket);
    let one_node = Fixture::new();
    one_node.gpu("pci0000:00/0000:03:00.0", -1, 1);
    let block = Block { name: "nvme0n1", dev: "259:0", parts: &[] };
    one_node.nvme("pci0000:40/0000:41:00.0", 0, -1, None, &block);
    assert_eq!(drive(&one_node, "41:00.0").gpus[0].1, Distance::Unknown);
}

#[test]
fn every_use_is_found_and_named() {
    type Change = fn(&Fixture);
    let cases: [(Change, DeviceUseKind, &str); 15] = [
        (
            |fixture| fixture.append("proc/self/mountinfo", "30 21 259:0 / /mnt rw - ext4 /dev/x rw\n"),
            DeviceUseKind::Mount,
            "/mnt",
        ),
        (
            |fixture| fixture.append("proc/self/mountinfo", "30 21 0:40 / /p rw - btrfs /dev/nvme0n1 rw\n"),
            DeviceUseKind::Mount,
            "/p",
        ),
        (|fixture| fixture.append("proc/swaps", "/dev/nvme0n1 partition 100 0 -2\n"), DeviceUseKind::Swap, "swap"),
        (|fixture| fixture.hold("nvme0n1", "md7", "9:7"), DeviceUseKind::Raid, "md7"),
        (|fixture| fixture.hold("nvme0n1", "bcache0", "251:0"), DeviceUseKind::Bcache, "bcache0"),
        (|fixture| fixture.hold("nvme0n1", "dm-9", "253:9"), DeviceUseKind::DeviceMapper, "dm-9"),
        (|fixture| fixture.hold("nvme0n1", "strange", "1:9"), DeviceUseKind::Holder, "strange"),
        (|fixture| fixture.folder("sys/fs/btrfs/1234-5678/devices/nvme0n1"), DeviceUseKind::Btrfs, "1234-5678"),
        (
            |fixture| fixture.write("sys/block/loop3/loop/backing_file", "/dev/nvme0n1\n"),
            DeviceUseKind::Loop,
            "/dev/loop3",
        ),
        (
            |fixture| {
                fixture.write("sys/kernel/config/nvmet/subsystems/nqn.x/namespaces/1/device_path", "/dev/nvme0n1\n")
            },
            DeviceUseKind::Export,
            "nqn.x",
        ),
        (
            |fixture| {
                fixture.dangling("proc/4321/fd/7", "/dev/nvme0n1");
                fixture.write("proc/4321/comm", "qemu\n");
            },
            DeviceUseKind::Open,
            "process 4321 (qemu)",
        ),
        (
            |fixture| {
                fixture.dangling("proc/4321/ns/mnt", "mnt:[402]");
                fixture.write("proc/4321/mountinfo", "9 1 259:0 / /inside rw - ext4 /dev/x rw\n");
            },
            DeviceUseKind::Mount,
            "/inside",
        ),
        (
            |fixture| fixture.write("run/udev/data/b259:0", "E:ID_FS_TYPE=LVM2_member\n"),
            DeviceUseKind::Lvm,
            "found on it",
        ),
        (
            |fixture| {
                fixture.write("run/udev/data/b259:0", "E:ID_FS_TYPE=zfs_member\n");
                fixture.folder("proc/spl/kstat/zfs/tank");
            },
            DeviceUseKind::Zfs,
            "tank",
        ),
        (
            |fixture| {
                let type_ = "E:ID_PART_ENTRY_TYPE=6A898CC3-1DD2-11B2-99A6-080020736631\n";
                fixture.write("run/udev/data/b259:0", type_);
            },
            DeviceUseKind::Zfs,
            "found on it",
        ),
    ];
    for (index, (change, kind, by)) in cases.into_iter().enumerate() {
        let machine = server();
        change(&machine);
        let drive = drive(&machine, FREE);
        let found = drive.uses.iter().find(|device_use| device_use.kind == kind);
        let text = found.unwrap_or_else(|| panic!("case {index}: {drive:?}")).to_string();
        assert!(text.contains(by) && text.contains("/dev/nvme0n1"), "case {index}: {text}");
        assert!(!drive.is_free());
        // And nothing of the others' is taken for it.
        assert!(drive.uses.iter().all(|device_use| device_use.kind == kind), "case {index}: {drive:?}");
    }
}

/// Signatures on the device itself, where udev knows nothing.
#[test]
fn signatures_are_read_from_the_device() {
    let disk = |at: usize, bytes: &[u8]| {
        let mut disk = vec![0u8; 2 << 20];
        disk[at..at + bytes.len()].copy_from_slice(bytes);
        disk
    };
    let gpt = |guid: [u8; 16]| {
        let mut disk = disk(512, b"EFI PART");
        disk[512 + 72..512 + 80].copy_from_slice(&2u64.to_le_bytes());
        disk[512 + 80..512 + 84].copy_from_slice(&128u32.to_le_bytes());
        disk[512 + 84..512 + 88].copy_from_slice(&128u32.to_le_bytes());
        disk[1024 + 128..1024 + 144].copy_from_slice(&guid);
        disk
    };
    let md = [0xfc, 0x4e, 0x2b, 0xa9];
    let zfs = [0xc3, 0x8c, 0x89, 0x6a, 0xd2, 0x1d, 0xb2, 0x11, 0x99, 0xa6, 0x08, 0x00, 0x20, 0x73, 0x66, 0x31];
    let efi = [0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11, 0xba, 0x4b, 0x00, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b];
    for (disk, what, kind) in [
        (disk(0, &[]), "", None),
        (disk(1080, &[0x53, 0xef]), "ext2/3/4", None),
        (disk(0, b"XFSB"), "xfs", None),
        (disk(4086, b"SWAPSPACE2"), "swap", None),
        (disk(0, b"\x89WARPROW"), "warprow", None),
        (disk(4096, b"\x89WARPROW"), "warprow", None),
        (disk(512, b"LABELONE"), "LVM2_member", Some(DeviceUseKind::Lvm)),
        (disk(4096, &md), "linux_raid_member", Some(DeviceUseKind::Raid)),
        (disk((2 << 20) - 0x1_0000, &md), "linux_raid_member", Some(DeviceUseKind::Raid)),
        (disk((2 << 20) - 0x2000, &md), "linux_raid_member", Some(DeviceUseKind::Raid)),
        (disk((128 << 10) + 8192, &0x00ba_b10c_u64.to_le_bytes()), "zfs_member", Some(DeviceUseKind::Zfs)),
        (gpt(zfs), "zfs_member", Some(DeviceUseKind::Zfs)),
        (gpt(efi), "efi", Some(DeviceUseKind::Efi)),
        (gpt([7; 16]), "gpt", None),
    ] {
        let machine = server();
        std::fs::remove_file(machine.path("run/udev/data/b259:0")).unwrap();
        machine.write("sys/class/block/nvme0n1/size", format!("{}\n", disk.len() / 512));
        machine.write("dev/nvme0n1", disk);
        let drive = drive(&machine, FREE);
        assert!(drive.unread.is_empty(), "{what}: {drive:?}");
        let found: Vec<_> = drive.contents.iter().map(|content| content.what.as_str()).collect();
        assert_eq!(found.contains(&what), !what.is_empty(), "{what}: {found:?}");
        assert_eq!(drive.uses.first().map(|device_use| device_use.kind), kind, "{what}: {drive:?}");
    }
    // Neither udev nor the device: it cannot be known, so it is not free.
    let machine = server();
    std::fs::remove_file(machine.path("run/udev/data/b259:0")).unwrap();
    let drive = drive(&machine, FREE);
    assert!(drive.uses.is_empty() && !drive.is_free() && drive.unread[0].contains("/dev/nvme0n1"), "{drive:?}");
}

/// Each fact that keeps a GPU from drives' doorbells is named, with its remedy, and two facts are two findings.
#[test]
fn what_keeps_a_gpu_from_doorbells() {
    let open =
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC version:  gcc 13\n";
    let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31\n";
    let gpus = ["0000:03:00.0", "0000:81:00.0"];
    let told = |kernel: &str, version: &str, domain: &str, capabilities: &str, params: &str| {
        let machine = server();
        machine.write("proc/sys/kernel/osrelease", kernel);
        machine.write("proc/driver/nvidia/version", version);
        machine.write("proc/driver/nvidia/params", params);
        machine.write("proc/self/status", format!("CapEff:\t{capabilities}\n"));
        gpus.iter().for_each(|gpu| machine.write(&format!("sys/bus/pci/devices/{gpu}/iommu_group/type"), domain));
        let found = at(&machine).examine().into_iter().filter(|finding| finding.check == "gpu-doorbells");
        found
            .map(|finding| (finding.verdict, finding.found, finding.advice.or(finding.command).unwrap_or_default()))
            .collect::<Vec<_>>()
    };
    let root = "0000000000200000";
    let user = "0000000000004000";
    let good = told("6.18.0", open, "identity\n", root, "");
    assert!(
        matches!(&good[..], [(Verdict::Unproven, found, remedy)] if found.contains("open module 580.159.04") && remedy.contains("gpu-rings")),
        "{good:?}"
    );
    let overridden = told("6.18.0", open, "identity\n", user, "RegistryDwords: \"PeerMappingOverride=1\"\n");
    assert_eq!(overridden, good);
    for params in
        ["EnablePCIERelaxedOrderingMode: 1\n", "RegistryDwords: \"PeerMappingOverride=1;RmSetPCIERelaxedOrdering=1\"\n"]
    {
        let relaxed = told("6.18.0", open, "identity\n", root, params);
        assert!(
            matches!(&relaxed[..], [(Verdict::Warn, found, remedy)] if found.contains("overtake") && remedy.contains("EnablePCIERelaxedOrderingMode")),
            "{relaxed:?}"
        );
    }
    assert_eq!(told("6.18.0", open, "identity\n", root, "EnablePCIERelaxedOrderingMode: 0\n"), good);
    let plain = told("6.18.0", open, "identity\n", user, "RegistryDwords: \"\"\n");
    assert!(
        matches!(&plain[..], [(Verdict::Warn, found, remedy)] if found.contains("CAP_SYS_ADMIN") && remedy.contains("PeerMappingOverride")),
        "{plain:?}"
    );
    let translated = told("6.18.0", open, "DMA-FQ\n", root, "");
    assert_eq!(translated.len(), 2, "{translated:?}");
    for ((verdict, found, remedy), gpu) in translated.iter().zip(gpus) {
        assert!(
            *verdict == Verdict::Warn && found.contains(gpu) && found.contains("DMA-FQ") && remedy.contains("iommu=pt"),
            "{found}"
        );
    }
    let of_closed = told("6.10.3-rt", closed, "identity\n", root, "");
    assert!(
        matches!(&of_closed[..], [(Verdict::Warn, found, remedy)] if found.contains("closed module 550.90.07") && remedy.contains("570.133.07")),
        "{of_closed:?}"
    );
    assert_eq!(told("6.8.0", closed, "identity\n", root, "").len(), 1, "older kernels let any module follow");
    assert_eq!(told("6.18.0", closed, "DMA\n", user, "").len(), 4);
    for garbage in ["", "NVRM version:", "NVRM version: x86_64", "\u{fffd}"] {
        let told = told("6.18.0", garbage, "identity\n", root, "");
        assert!(matches!(&told[..], [(Verdict::Warn, found, _)] if found.contains("not loaded")), "{told:?}");
    }
    assert!(at(&laptop()).examine().iter().all(|finding| finding.check != "gpu-doorbells"), "no GPU of NVIDIA's");
}

/// What decides on placements for one drive and one GPU: each fact is one line, good or bad, with its remedy.
#[test]
fn facts_of_a_drive_and_a_gpu() {
    let machine = server().with_vfio();
    let (gpu, drive) = (address("0000:03:00.0"), address(FREE));
    machine.write("proc/sys/kernel/osrelease", "6.18.0\n");
    machine.write(
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  R\n",
    );
    machine.write("proc/self/status", "CapEff:\t0000000000200000\n");
    machine.write("sys/bus/pci/devices/0000:03:00.0/iommu_group/type", "identity\n");
    let facts = || at(&machine).gpu_ring_facts(Some(gpu), Some(drive));
    let fact = |check: &str| {
        let all = facts();
        let found: Vec<_> = all.iter().filter(|it| it.check == check).cloned().collect();
        let [one] = &found[..] else { panic!("{check}: {all:?}") };
        let remedy = [&one.advice, &one.command].map(|it| it.clone().unwrap_or_default()).join(" ");
        (one.verdict, one.found.clone(), remedy)
    };
    let names: Vec<_> = facts().iter().map(|it| it.check).collect();
    assert_eq!(
        names,
        [
            "gpu-module",
            "gpu-privilege",
            "gpu-domain",
            "gpu-write-order",
            "gpu-process-end",
            "gpu-memory",
            "drive-group",
            "gpu-distance"
        ],
        "one GPU of two"
    );
    let passes = |check: &str, words: &str| {
        let (verdict, found, _) = fact(check);
        assert!(verdict == Verdict::Pass && found.contains(words), "{check}: {found}");
    };
    let warns = |check: &str, words: &str, remedy: &str| {
        let told = fact(check);
        assert!(told.0 == Verdict::Warn && told.1.contains(words) && told.2.contains(remedy), "{told:?}");
    };
    passes("gpu-module", "open module 580.159.04");
    passes("gpu-domain", "identity");
    passes("gpu-write-order", "off");
    passes("gpu-process-end", "holds");
    // The drive is the user's, by its group, by its own file, or not at all.
    warns("drive-group", "neither /dev/vfio/6", "chown");
    machine.write(&format!("sys/bus/pci/devices/{FREE}/vfio-dev/vfio3/dev"), "");
    machine.write("dev/vfio/devices/vfio3", "");
    warns("drive-group", "iommufd", "WARPROW_VFIO=type1");
    machine.write("dev/vfio/6", "");
    passes("drive-group", "group 6");
    let other = "sys/bus/pci/devices/0000:00:1f.0";
    machine.write(&format!("{other}/class"), "0x010601\n");
    machine.folder("sys/bus/pci/drivers/ahci");
    machine.link(&format!("{other}/driver"), "sys/bus/pci/drivers/ahci");
    machine.link(&format!("sys/bus/pci/devices/{FREE}/iommu_group/devices/0000:00:1f.0"), other);
    warns("drive-group", "shares IOMMU group 6 with 0000:00:1f.0", "vfio-pci");
    let told = fact("gpu-distance");
    assert!(told.0 != Verdict::Warn && told.1.contains(FREE), "{told:?}");
    // Who could lend the GPU's memory.
    let told = fact("gpu-memory");
    assert!(told.0 == Verdict::Unproven && told.1.contains("older than R610"), "{told:?}");
    machine
        .write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  610.10.01  R\n");
    assert!(fact("gpu-memory").1.contains("dma-bufs that processes can map"));
    machine.folder("sys/module/gdrdrv");
    assert!(fact("gpu-memory").1.contains("gdrdrv is loaded, and there is no /dev/gdrdrv"));
    machine.write("dev/gdrdrv", "");
    machine.write("proc/driver/gdrdrv/params", "Version: 2.6\nUse persistent mapping: yes\n");
    let told = fact("gpu-memory");
    assert!(told.0 == Verdict::Unproven && told.1.contains("gdrdrv 2.6 is there"), "{told:?}");
    machine.write("proc/driver/gdrdrv/params", "Version: 2.6\nUse persistent mapping: no\n");
    assert!(fact("gpu-memory").1.contains("gdrdrv 2.6 does not pin persistently"));
    machine.write("sys/module/nvidia_uvm/parameters/uvm_enable_va_space_mm", "0\n");
    warns("gpu-process-end", "uvm_enable_va_space_mm=0", "load nvidia_uvm without");
    fs::remove_file(machine.path("sys/bus/pci/devices/0000:03:00.0/iommu_group/type")).unwrap();
    let told = fact("gpu-domain");
    assert!(told.0 == Verdict::Pass && told.1.contains("no IOMMU") || told.1.contains("does not say"), "{told:?}");
    fs::remove_file(machine.path("proc/driver/nvidia/version")).unwrap();
    warns("gpu-module", "not loaded", "580");
}

fn verdict(findings: &[Finding], check: &str) -> Verdict {
    finding(findings, check).verdict
}

fn finding<'a>(findings: &'a [Finding], check: &str) -> &'a Finding {
    findings.iter().find(|finding| finding.check == check).unwrap_or_else(|| panic!("no {check} in {findings:#?}"))
}

#[test]
fn the_doctor_on_a_server() {
    let machine = server();
    let findings = at(&machine).examine();
    for check in ["cpu", "kernel", "lockdown", "iommu", "iommu-width", "vfio", "vfio-node", "huge-pages"] {
        assert_eq!(verdict(&findings, check), Verdict::Pass, "{check}: {findings:#?}");
    }
    assert!(finding(&findings, "iommu-width").found.contains("48 bits"));
    let memlock = finding(&findings, "memlock");
    assert_eq!(
        (memlock.verdict, memlock.command.is_some()),
        (Verdict::Fail, true),
        "8 MiB, which the hard limit is too"
    );
    let drives = finding(&findings, "drives");
    assert_eq!((drives.verdict, drives.command.as_deref()), (Verdict::Fail, Some("sudo warprow bind 0000:04:00.0")));
    let sockets: Vec<_> =
        findings.iter().filter(|finding| finding.check == "sockets").map(|finding| finding.found.as_str()).collect();
    assert_eq!(
        sockets,
        [
            "0000:04:00.0 and GPU 0000:81:00.0 are on different sockets",
            "0000:82:00.0 and GPU 0000:03:00.0 are on different sockets",
        ]
    );
    assert_eq!(verdict(&findings, "acs"), Verdict::Unproven, "no configuration space");

    // Everything that it asks for.
    machine.bind(FREE, "vfio-pci");
    machine.write("dev/vfio/6", "");
    machine.write("proc/self/limits", "Max locked memory         unlimited            unlimited            bytes\n");
    let mut config = vec![0u8; 4096];
    config[0x100..0x108].copy_from_slice(&[0x0d, 0, 1, 0, 0, 0, 0x1d, 0]);
    machine.write("sys/bus/pci/devices/0000:02:01.0/config", &config);
    let findings = at(&machine).examine();
    assert!(findings.iter().all(|finding| finding.verdict != Verdict::Fail), "{findings:#?}");
    assert_eq!((verdict(&findings, "memlock"), verdict(&findings, "vfio-group")), (Verdict::Pass, Verdict::Pass));
    let acs = finding(&findings, "acs");
    assert!(acs.verdict == Verdict::Warn && acs.found.contains("0000:02:01.0"), "{acs:?}");
}

#[test]
fn the_doctor_on_a_laptop_without_iommu() {
    let machine = laptop();
    let findings = at(&machine).examine();
    let iommu = finding(&findings, "iommu");
    assert!(iommu.verdict == Verdict::Fail && iommu.advice.as_ref().unwrap().contains("VT-d"), "{iommu:?}");
    assert_eq!(finding(&findings, "vfio").command.as_deref(), Some("sudo modprobe vfio-pci"));
    let drives = finding(&findings, "drives");
    assert!(drives.verdict == Verdict::Fail && drives.command.is_none(), "its only drive is the system's: {drives:?}");
    assert!(finding(&findings, "drive").found.contains("luks-root"));
    // The firmware has it, and the kernel does not use it.
    machine.write("sys/firmware/acpi/tables/DMAR", "");
    let command = |machine: &Fixture| finding(&at(machine).examine(), "iommu").command.clone().unwrap();
    assert!(command(&machine).contains("intel_iommu=on") && command(&machine).contains("update-grub"));
    machine.write("etc/os-release", "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n");
    assert!(command(&machine).starts_with("sudo grubby"));
}

#[test]
fn drives_behind_a_vmd_are_told() {
    let machine = vmd();
    let drive = drive(&machine, "10000:e1:00.0");
    assert_eq!(drive.vmd, Some(address("00:0e.0")));
    let findings = at(&machine).examine();
    let vmd = finding(&findings, "vmd");
    assert!(vmd.found.contains("10000:e1:00.0") && vmd.advice.as_ref().unwrap().contains("firmware"), "{vmd:?}");
    assert!(finding(&findings, "drives").command.is_none());
}

#[test]
fn details_that_the_doctor_tells() {
    let told = |change: &dyn Fn(&Fixture), check: &str| {
        let machine = server();
        change(&machine);
        finding(&at(&machine).examine(), check).clone()
    };
    let lockdown = told(
        &|fixture| fixture.write("sys/kernel/security/lockdown", "none [integrity] confidentiality\n"),
        "lockdown",
    );
    assert!(lockdown.verdict == Verdict::Warn && lockdown.found.contains("integrity"), "{lockdown:?}");
    let narrow = told(&|fixture| fixture.write("sys/class/iommu/dmar0/intel-iommu/cap", "260462\n"), "iommu-width");
    assert!(narrow.verdict == Verdict::Warn && narrow.found.contains("39 bits: 512 GiB"), "{narrow:?}");
    let container = told(&|fixture| fixture.write(".dockerenv", ""), "container");
    assert!(container.found.contains("docker") && container.command.is_some());
    let old = told(&|fixture| fixture.write("proc/sys/kernel/osrelease", "4.18.0-rhel\n"), "kernel");
    assert_eq!(old.verdict, Verdict::Warn);
    let pages =
        told(&|fixture| fixture.write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "0\n"), "huge-pages");
    assert_eq!(pages.command.as_deref(), Some("sudo sysctl vm.nr_hugepages=1536"));
    let limits = "Max locked memory         8388608              unlimited            bytes\n";
    let soft = told(&|fixture| fixture.write("proc/self/limits", limits), "memlock");
    assert_eq!(soft.command.as_deref(), Some("ulimit -l unlimited"));
    let able = told(&|fixture| fixture.write("proc/self/status", "CapEff:\t0000000000004000\n"), "memlock");
    assert_eq!(able.verdict, Verdict::Pass);
    let other = told(&|fixture| fixture.bind(FREE, "uio_pci_generic"), "drive");
    assert!(other.found.contains("uio_pci_generic") && other.command.unwrap().contains("unbind"));
    let hungry =
        told(&|fixture| fixture.write("sys/bus/pci/devices/0000:04:00.0/nvme/nvme0/hmb", "0\n"), "host-memory");
    assert_eq!(hungry.verdict, Verdict::Warn);
    let missing = told(&|fixture| fixture.bind(FREE, "vfio-pci"), "vfio-group");
    assert!(missing.verdict == Verdict::Fail && missing.found.contains("/dev/vfio/6"));
    let own = |fixture: &Fixture| {
        fixture.bind(FREE, "vfio-pci");
        fixture.write(&format!("sys/bus/pci/devices/{FREE}/vfio-dev/vfio4/dev"), "511:4\n");
        fixture.write("dev/vfio/devices/vfio4", "");
    };
    assert_eq!(told(&own, "vfio-group").verdict, Verdict::Fail, "without /dev/iommu");
    let through = |fixture: &Fixture| {
        own(fixture);
        fixture.write("dev/iommu", "");
    };
    let iommufd = told(&through, "vfio-group");
    assert!(iommufd.verdict == Verdict::Pass && iommufd.found.contains("/dev/vfio/devices/vfio4"), "{iommufd:?}");
    let no_groups = |fixture: &Fixture| {
        fs::remove_file(fixture.path("dev/vfio/vfio")).unwrap();
        fs::remove_dir(fixture.path("sys/module/vfio_iommu_type1")).unwrap();
    };
    assert_eq!(told(&no_groups, "vfio-node").verdict, Verdict::Fail);
    let machine = server();
    no_groups(&machine);
    through(&machine);
    let findings = at(&machine).examine();
    let node = finding(&findings, "vfio-node");
    assert!(node.verdict == Verdict::Pass && node.found.contains("/dev/iommu"), "{node:?}");
    assert!(!findings.iter().any(|finding| finding.check == "vfio-type1"), "{findings:#?}");
    let formatted = told(&|fixture| fixture.write("sys/class/block/nvme0n1/metadata_bytes", "8\n"), "drive");
    assert!(formatted.found.contains("8 B of metadata"), "{formatted:?}");
    let unsafe_mode =
        told(&|fixture| fixture.write("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y\n"), "no-iommu-mode");
    assert_eq!(unsafe_mode.verdict, Verdict::Warn);
}
