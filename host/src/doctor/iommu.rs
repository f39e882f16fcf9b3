use super::finding::{Finding, Verdict};
use crate::block::vfio_cdev;
use crate::files::{entries, hex, text};
use crate::rights::may_use;
use crate::{HostDrive, Machine};

/// Address widths up to this many bits leave little room for huge mappings.
const NARROW: u32 = 39;

pub(super) fn check(machine: &Machine) -> Vec<Finding> {
    let units = entries(&machine.path("/sys/class/iommu"));
    let groups = entries(&machine.path("/sys/kernel/iommu_groups"));
    if groups.is_empty() {
        return vec![absent(machine, !units.is_empty())];
    }
    let found = format!("on, with {} groups", groups.len());
    let mut findings = vec![Finding::new("iommu", Verdict::Pass, found)];
    if machine.text("/sys/module/vfio/parameters/enable_unsafe_noiommu_mode").is_some_and(|on| on == "Y") {
        let found = "VFIO's mode without IOMMU is allowed; Warprow refuses drives that are bound so";
        findings.push(
            Finding::new("no-iommu-mode", Verdict::Warn, found)
                .command("echo N | sudo tee /sys/module/vfio/parameters/enable_unsafe_noiommu_mode"),
        );
    }
    // Intel's capability register (VT-d 4.1, 11.4.2): bits 21:16 are the greatest guest address width, less one.
    let intel = units.iter().filter_map(|(unit, _)| hex(&unit.join("intel-iommu/cap")));
    let narrowest = intel.map(|cap| (cap >> 16 & 0x3f) as u32 + 1).min();
    let amd = units.iter().any(|(unit, _)| unit.join("amd-iommu").exists());
    findings.push(match (narrowest, amd) {
        (Some(bits), _) if bits <= NARROW => Finding::new(
            "iommu-width",
            Verdict::Warn,
            format!(
                "addresses of {bits} bits: {} GiB for all mappings of a drive together",
                1u64 << bits.saturating_sub(30)
            ),
        )
        .advice("keep DRAM tiers below that; no setting changes it"),
        (Some(bits), _) => Finding::new("iommu-width", Verdict::Pass, format!("addresses of {bits} bits")),
        (None, true) => Finding::new("iommu-width", Verdict::Pass, "AMD's, of 48 bits or more"),
        (None, false) => Finding::new("iommu-width", Verdict::Unproven, "this IOMMU does not tell its width here"),
    });
    findings
}

fn absent(machine: &Machine, unit: bool) -> Finding {
    let tables = machine.path("/sys/firmware/acpi/tables");
    let [intel, amd] = ["DMAR", "IVRS"].map(|name| tables.join(name).exists());
    let finding = Finding::new(
        "iommu",
        Verdict::Fail,
        match (unit, intel || amd) {
            (true, _) => "there is one, and no device is in a group",
            (_, true) => "the firmware has one, and the kernel has not turned it on",
            _ => "none: a drive's DMA could reach any memory, so real drives are refused",
        },
    );
    if !unit && !intel && !amd {
        return finding.advice(
            "turn on VT-d (Intel) or AMD-Vi (AMD, \"IOMMU\") in the firmware; virtual machines need a virtual one. \
             Emulated drives need none",
        );
    }
    if amd && !intel {
        // AMD's is on unless it is turned off.
        return finding.advice("take amd_iommu=off and iommu=off away from the kernel's command line and reboot");
    }
    let argument = "intel_iommu=on";
    let command = command_line(machine, argument);
    finding.advice(format!("put {argument} on the kernel's command line and reboot")).command(command)
}

/// The command that adds an argument to the kernel's command line.
fn command_line(machine: &Machine, argument: &str) -> String {
    let release = machine.text("/etc/os-release").unwrap_or_default();
    let like = |name: &str| {
        let ids = release.lines().filter_map(|line| line.strip_prefix("ID=").or_else(|| line.strip_prefix("ID_LIKE=")));
        ids.flat_map(|ids| ids.trim_matches('"').split(' ')).any(|id| id == name)
    };
    if like("fedora") || like("rhel") {
        return format!("sudo grubby --update-kernel=ALL --args=\"{argument}\" && sudo reboot");
    }
    format!(
        "echo 'GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX {argument}\"' | sudo tee /etc/default/grub.d/iommu.cfg && \
         sudo update-grub && sudo reboot"
    )
}

pub(super) fn vfio(machine: &Machine, drives: &[HostDrive]) -> Vec<Finding> {
    let modprobe = |module: &str| format!("sudo modprobe {module}");
    let mut findings = Vec::new();
    if machine.path("/sys/bus/pci/drivers/vfio-pci").is_dir() {
        findings.push(Finding::new("vfio", Verdict::Pass, "the driver vfio-pci is there"));
    } else {
        let found = "the driver vfio-pci is not loaded";
        findings.push(Finding::new("vfio", Verdict::Fail, found).command(modprobe("vfio-pci")));
    }
    let node = machine.path("/dev/vfio/vfio");
    let iommu = may_use(&machine.path("/dev/iommu"));
    findings.push(if may_use(&node) {
        Finding::new("vfio-node", Verdict::Pass, "/dev/vfio/vfio can be opened")
    } else if iommu {
        Finding::new(
            "vfio-node",
            Verdict::Pass,
            "/dev/iommu can be opened, /dev/vfio/vfio cannot: drives go through iommufd",
        )
    } else if node.exists() {
        Finding::new("vfio-node", Verdict::Fail, "this user may not open /dev/vfio/vfio")
            .command("sudo chmod 666 /dev/vfio/vfio")
    } else {
        Finding::new("vfio-node", Verdict::Fail, "/dev/vfio/vfio is not there").command(modprobe("vfio"))
    });
    // Built into the kernel, it may have no folder.
    let builtin = machine.path("/sys/module/vfio").exists() && machine.path("/sys/module/vfio_iommu_type1").exists();
    if !builtin && (node.exists() || !iommu) {
        let found =
            "the module vfio_iommu_type1 is not loaded; the kernel loads it when it is needed, unless it is absent";
        findings.push(Finding::new("vfio-type1", Verdict::Warn, found).command(modprobe("vfio_iommu_type1")));
    }
    for drive in drives.iter().filter(|drive| drive.function.driver.as_deref() == Some("vfio-pci")) {
        let address = drive.function.address;
        let Some(group) = &drive.function.group else { continue };
        let file = format!("/dev/vfio/{}", group.number);
        let path = machine.path(&file);
        // What the driver tries where there is no way through the group.
        let own = vfio_cdev(&machine.path(&format!("/sys/bus/pci/devices/{address}")))
            .map(|name| format!("/dev/vfio/devices/{name}"))
            .filter(|own| iommu && may_use(&machine.path(own)));
        findings.push(if let Some(own) = own.filter(|_| !may_use(&path) || !may_use(&node)) {
            Finding::new("vfio-group", Verdict::Pass, format!("{own}, of {address}, can be opened, through iommufd"))
        } else if !path.exists() {
            let found = format!("{address} is bound to vfio-pci, and {file} is not there");
            Finding::new("vfio-group", Verdict::Fail, found).advice("in a container, start it with this device")
        } else if may_use(&path) && iommu && !may_use(&node) {
            let found = format!(
                "{file}, of {address}, can be opened, /dev/vfio/vfio cannot, and for iommufd the drive has no file that this user may open"
            );
            Finding::new("vfio-group", Verdict::Fail, found).command(match node.exists() {
                true => "sudo chmod 666 /dev/vfio/vfio".to_owned(),
                false => modprobe("vfio"),
            })
        } else if may_use(&path) {
            Finding::new("vfio-group", Verdict::Pass, format!("{file}, of {address}, can be opened"))
        } else {
            let found = format!("this user may not open {file}, of {address}");
            Finding::new("vfio-group", Verdict::Fail, found)
                .advice("docs/hardware.md has a udev rule that lasts")
                .command(format!("sudo chown $USER {file}"))
        });
        let others: Vec<_> = group
            .others
            .iter()
            .filter(|member| member.stands_in_the_way())
            .map(|member| member.name.as_str())
            .collect();
        if !others.is_empty() {
            let found = format!("IOMMU group {} of {address} also holds {}", group.number, others.join(", "));
            findings.push(
                Finding::new("iommu-group", Verdict::Fail, found)
                    .advice("unbind those, or move the drive to a slot behind another root port"),
            );
        }
    }
    findings.extend(text(&machine.path("/sys/module/vfio_iommu_type1/parameters/dma_entry_limit")).and_then(|limit| {
        let limit: u64 = limit.parse().ok().filter(|limit| *limit < 1024)?;
        let found = format!("VFIO allows {limit} mappings a container");
        let command = "echo 65535 | sudo tee /sys/module/vfio_iommu_type1/parameters/dma_entry_limit";
        Some(Finding::new("vfio-mappings", Verdict::Warn, found).command(command))
    }));
    findings
}
