use super::finding::{Finding, Verdict};
use crate::machine::CLASS_BRIDGE;
use crate::{Acs, Distance, HostDrive, Machine, PciFunction};

/// Controllers that hide drives.
pub(super) fn hidden(functions: &[PciFunction]) -> Vec<Finding> {
    let behind = |raid: &PciFunction| {
        let own = raid.address.to_string();
        let below = functions
            .iter()
            .filter(|function| function.address != raid.address && function.is_nvme() && function.way.contains(&own));
        below.map(|function| function.address.to_string()).collect::<Vec<_>>()
    };
    let firmware = "turn VMD (RST, RAID mode) off for this slot in the firmware; prepare a system that boots from it first \
                    (Windows: safe mode once; Linux: nothing)";
    let raid = functions.iter().filter(|function| function.is_raid());
    raid.map(|function| {
        let what = if function.is_vmd() { "an Intel VMD" } else { "a disk controller in RAID mode" };
        let behind = behind(function);
        let found = match behind.is_empty() {
            true => format!("{} is {what}; drives may be hidden behind it", function.address),
            false => {
                format!("{} is {what}, with {} behind it, which VFIO cannot have", function.address, behind.join(", "))
            }
        };
        Finding::new("vmd", Verdict::Warn, found).advice(firmware)
    })
    .collect()
}

pub(super) fn check(drives: &[HostDrive]) -> Vec<Finding> {
    let nvme: Vec<_> = drives.iter().filter(|drive| drive.function.is_nvme()).collect();
    let ready = |drive: &&&HostDrive| drive.function.driver.as_deref() == Some("vfio-pci");
    let mut findings = Vec::new();
    if nvme.is_empty() {
        let found = "no NVMe controller is to be seen";
        return vec![Finding::new("drives", Verdict::Fail, found).advice("emulated drives (emulated:PATH) need none")];
    }
    if !nvme.iter().any(|drive| ready(&drive)) {
        let free = nvme.iter().find(|drive| drive.is_free() && drive.vmd.is_none());
        let finding = Finding::new("drives", Verdict::Fail, "no drive is bound to vfio-pci");
        findings.push(match free {
            Some(drive) => finding
                .advice("the drive disappears from the system until it is unbound; what lies on it stays")
                .command(format!("sudo warprow bind {}", drive.function.address)),
            None => finding.advice("every drive here is in use: a further one is needed, or an emulated one"),
        });
    }
    findings.extend(nvme.iter().map(|drive| one(drive)));
    findings.extend(nvme.iter().filter(|drive| drive.host_memory == Some(false)).map(|drive| {
        let found = format!("{} asks for host memory and has none from the kernel", drive.function.address);
        Finding::new("host-memory", Verdict::Warn, found).advice("Warprow lends it up to 128 MiB once it is bound")
    }));
    findings
}

fn one(drive: &HostDrive) -> Finding {
    let address = drive.function.address;
    let model = drive.model.as_deref().map(|model| format!(" ({model})")).unwrap_or_default();
    let name = format!("{address}{model}");
    let metadata = drive.namespaces.iter().find(|namespace| namespace.metadata_bytes.is_some_and(|bytes| bytes > 0));
    match drive.function.driver.as_deref() {
        Some("vfio-pci") if drive.uses.is_empty() => {
            Finding::new("drive", Verdict::Pass, format!("{name} is bound to vfio-pci"))
        }
        Some("vfio-pci") => {
            let by = drive.uses.iter().map(|device_use| device_use.by.clone()).collect::<Vec<_>>().join(", ");
            Finding::new("drive", Verdict::Pass, format!("{name} is bound to vfio-pci, and open in {by}"))
        }
        _ if drive.vmd.is_some() => Finding::new("drive", Verdict::Warn, format!("{name} is behind a VMD")),
        _ if !drive.uses.is_empty() => {
            let uses = drive.uses.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            Finding::new("drive", Verdict::Pass, format!("{name} is in use and stays with the system: {uses}"))
        }
        _ if !drive.unread.is_empty() => {
            let found = format!("{name}: cannot tell whether it is in use: {}", drive.unread.join("; "));
            let command = match drive.is_without_controller() {
                true => format!("sudo dmesg | grep {address}"),
                false => "sudo warprow doctor".to_owned(),
            };
            Finding::new("drive", Verdict::Unproven, found).command(command)
        }
        Some("nvme") | None => {
            let formatted = metadata.map(|namespace| {
                let bytes = namespace.metadata_bytes.unwrap_or(0);
                format!("; {} has {bytes} B of metadata in each block, and must be formatted first", namespace.name)
            });
            let found = format!("{name} is free, and not bound{}", formatted.unwrap_or_default());
            Finding::new("drive", Verdict::Warn, found).command(format!("sudo warprow bind {address}"))
        }
        Some(other) => Finding::new("drive", Verdict::Warn, format!("{name} belongs to the driver {other}"))
            .command(format!("echo {address} | sudo tee /sys/bus/pci/devices/{address}/driver/unbind")),
    }
}

/// How drives and GPUs reach each other.
pub(super) fn topology(machine: &Machine, drives: &[HostDrive]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let usable = drives.iter().filter(|drive| drive.function.is_nvme() && !drive.is_boot());
    for drive in usable.clone() {
        let address = drive.function.address;
        let far = drive.gpus.iter().filter(|(_, distance)| *distance == Distance::OtherSocket);
        let far: Vec<_> = far.map(|(gpu, _)| gpu.to_string()).collect();
        let near =
            drive.gpus.iter().filter(|(_, distance)| *distance < Distance::OtherSocket).map(|(gpu, _)| gpu.to_string());
        let near: Vec<_> = near.collect();
        if !far.is_empty() {
            let found = format!("{address} and GPU {} are on different sockets", far.join(", "));
            let finding = Finding::new("sockets", Verdict::Warn, found);
            findings.push(match near.is_empty() {
                true => finding.advice("use a GPU on the drive's socket, or move one of them"),
                false => finding.advice(format!("GPU {} is nearer: use that one with this drive", near.join(", "))),
            });
        }
    }
    let shared = |drive: &HostDrive| drive.gpus.iter().any(|(_, distance)| *distance == Distance::Switch);
    let ways = usable.filter(|drive| shared(drive)).flat_map(|drive| drive.function.way.clone());
    let mut bridges: Vec<_> = ways.filter_map(|name| machine.function(name.parse().ok()?)).collect();
    bridges.retain(|bridge| bridge.class >> 8 == CLASS_BRIDGE);
    bridges.sort_by_key(|bridge| bridge.address);
    bridges.dedup_by_key(|bridge| bridge.address);
    let acs: Vec<_> = bridges.iter().map(|bridge| (bridge.address, bridge.acs(machine))).collect();
    if let Some((bridge, _)) = acs.iter().find(|(_, acs)| acs.redirects()) {
        let found = format!(
            "{bridge} redirects what a drive and a GPU below one switch say to each other through the root complex \
             (ACS): that is what keeps them apart, and it costs bandwidth between them"
        );
        findings.push(
            Finding::new("acs", Verdict::Warn, found).advice("nothing is wrong; rows in host memory do not pass there"),
        );
    } else if acs.iter().any(|(_, acs)| *acs == Acs::Unreadable) {
        let found = "whether bridges redirect peer traffic (ACS) can be read by root only";
        findings.push(Finding::new("acs", Verdict::Unproven, found).command("sudo warprow doctor"));
    } else if !acs.is_empty() {
        findings.push(Finding::new("acs", Verdict::Pass, "no bridge between drives and GPUs redirects peer traffic"));
    }
    findings
}
