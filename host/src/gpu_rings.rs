//! What decides whether a GPU can ring a drive's doorbells itself (placement B of docs/gpu-rings.md) and whether the
//! drive can write to the GPU's memory (placement A⁻): the facts that sysfs and procfs tell. What CUDA tells is asked
//! elsewhere.

use warprow_vfio::PciAddress;

use crate::doctor::{Finding, Verdict};
use crate::files::entries;
use crate::rights::{self, may_use};
use crate::{Distance, Machine, PciFunction};

/// From this kernel on, only modules that follow I/O mappings by the newer interface can register a drive's registers.
const NEWER_INTERFACE: (u32, u32) = (6, 10);
/// NVIDIA's open modules use that interface from this version on.
const FOLLOWS: [u32; 3] = [570, 133, 7];
/// From this version on, a dma-buf of GPU memory can be mapped into a process.
const MAPS_DMA_BUFS: [u32; 1] = [610];

/// NVIDIA's kernel module, as `/proc/driver/nvidia/version` names it.
#[derive(Debug, PartialEq, Eq)]
struct Module {
    is_open: bool,
    version: Vec<u32>,
}

impl Module {
    fn read(machine: &Machine) -> Option<Self> {
        let text = machine.text("/proc/driver/nvidia/version")?;
        let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
        let is_version = |word: &&str| word.contains('.') && word.starts_with(|first: char| first.is_ascii_digit());
        let word = line.split_whitespace().find(is_version)?;
        let version = word.split('.').map_while(|number| number.parse().ok()).collect();
        Some(Self { is_open: line.contains("Open Kernel Module"), version })
    }

    fn name(&self) -> String {
        let version = self.version.iter().map(|number| format!("{number:02}")).collect::<Vec<_>>().join(".");
        format!("NVIDIA's {} module {version}", if self.is_open { "open" } else { "closed" })
    }
}

impl Machine {
    /// The facts for placements in which a GPU rings doorbells itself, one finding each: `pass` where a fact speaks for
    /// them, `warn` with the remedy where one stands in the way, `unproven` where nobody has tried. Of one GPU, or of
    /// all that there are; with `drive`, also the facts of that drive.
    pub fn gpu_ring_facts(&self, gpu: Option<PciAddress>, drive: Option<PciAddress>) -> Vec<Finding> {
        let gpus: Vec<_> = self.gpus().into_iter().filter(|it| gpu.is_none_or(|gpu| it.address == gpu)).collect();
        let Some(module) = Module::read(self) else {
            return vec![
                warn("gpu-module", "NVIDIA's kernel module is not loaded")
                    .advice("install NVIDIA's driver, 580 or later"),
            ];
        };
        let mut facts = vec![self.follows_registers(&module), self.privilege()];
        facts.extend(gpus.iter().map(|gpu| self.domain(gpu)));
        facts.extend([self.write_order(), self.process_end(), self.peer_memory(&module)]);
        if let Some(drive) = drive.and_then(|address| self.function(address)) {
            facts.push(self.drive_group(&drive));
            facts.extend(gpus.iter().map(|gpu| distance(gpu, &drive)));
        }
        facts
    }

    fn follows_registers(&self, module: &Module) -> Finding {
        let is_new = crate::doctor::release(self).is_some_and(|release| release >= NEWER_INTERFACE);
        if is_new && (!module.is_open || module.version[..] < FOLLOWS[..]) {
            let found = format!("{} cannot reach registers of drives on this kernel", module.name());
            return warn("gpu-module", found).advice("install NVIDIA's open kernel modules, 570.133.07 or later");
        }
        pass("gpu-module", format!("{} can reach registers of drives on this kernel", module.name()))
    }

    /// The parameters with which the module was loaded.
    fn module_parameters(&self) -> String {
        self.text("/proc/driver/nvidia/params").unwrap_or_default()
    }

    fn privilege(&self) -> Finding {
        let check = "gpu-privilege";
        if rights::has(self, rights::CAP_SYS_ADMIN) {
            return pass(check, "this process has CAP_SYS_ADMIN, which CUDA wants for registers of drives");
        }
        if self.module_parameters().contains("PeerMappingOverride=1") {
            return pass(check, "the module nvidia maps registers of drives for every process (PeerMappingOverride=1)");
        }
        warn(check, "CUDA maps registers of drives only for processes with CAP_SYS_ADMIN")
            .advice("or load the module nvidia with NVreg_RegistryDwords=PeerMappingOverride=1")
            .command("sudo setcap cap_sys_admin+ep $(command -v warprow)")
    }

    fn domain(&self, gpu: &PciFunction) -> Finding {
        let (check, address) = ("gpu-domain", gpu.address);
        let kind = self.text(&format!("/sys/bus/pci/devices/{address}/iommu_group/type"));
        match kind.as_deref() {
            Some("identity") => pass(check, format!("the IOMMU passes on what GPU {address} sends (identity)")),
            Some(kind) => {
                let found = format!(
                    "the IOMMU translates what GPU {address} sends ({kind}), and its stores to a drive would be dropped"
                );
                warn(check, found).advice("boot with iommu=pt, which leaves VFIO's drives behind the IOMMU")
            }
            None if gpu.group.is_none() => pass(check, format!("no IOMMU stands before GPU {address}")),
            None => {
                let found = format!("sysfs does not say whether the IOMMU translates what GPU {address} sends");
                warn(check, found).advice("show /sys to the container, or run outside of it")
            }
        }
    }

    fn write_order(&self) -> Finding {
        let is_set = |line: &str| match line.split_once(':') {
            Some(("EnablePCIERelaxedOrderingMode", value)) => value.trim() != "0",
            Some(("RegistryDwords" | "RegistryDwordsPerDevice", value)) => value.contains("RmSetPCIERelaxedOrdering"),
            _ => false,
        };
        if self.module_parameters().lines().any(is_set) {
            let found =
                "the module nvidia has PCIe relaxed ordering on, so that a doorbell could overtake its commands";
            let remedy = "load the module without EnablePCIERelaxedOrderingMode and RmSetPCIERelaxedOrdering";
            return warn("gpu-write-order", found).advice(remedy);
        }
        pass("gpu-write-order", "the module nvidia leaves PCIe relaxed ordering off")
    }

    fn process_end(&self) -> Finding {
        let kept = self.text("/sys/module/nvidia_uvm/parameters/uvm_enable_va_space_mm");
        if kept.is_some_and(|value| ["0", "N"].contains(&value.as_str())) {
            let found = "the module nvidia_uvm does not hold a dying process's memory until the GPU is stopped (uvm_enable_va_space_mm=0)";
            return warn("gpu-process-end", found).advice("load nvidia_uvm without uvm_enable_va_space_mm=0");
        }
        pass("gpu-process-end", "the module nvidia_uvm holds a dying process's memory until the GPU is stopped")
    }

    /// Who could give drives the GPU's memory as their target.
    fn peer_memory(&self, module: &Module) -> Finding {
        let check = "gpu-memory";
        if self.path("/sys/module/gdrdrv").is_dir() {
            return self.gdrdrv(check);
        }
        let mut ways = Vec::new();
        if self.path("/sys/module/nvidia_peermem").is_dir() {
            ways.push("nvidia_peermem");
        }
        if module.version[..] >= MAPS_DMA_BUFS[..] {
            ways.push("dma-bufs that processes can map");
        }
        let found = match ways.is_empty() {
            true => "GPU memory as a drive's target: neither gdrdrv nor nvidia_peermem is loaded, and the driver is older than R610".to_owned(),
            false => format!("GPU memory as a drive's target: there is {}, which Warprow does not use, and no gdrdrv", ways.join(", ")),
        };
        Finding::new(check, Verdict::Unproven, found).advice(
            "placement A⁻ wants the module gdrdrv of NVIDIA's GDRCopy 2.5 or later: see docs/gpu-rings.md, \"Completions and rows in GPU memory\"",
        )
    }

    /// Whether the module gdrdrv pins as placement A⁻ wants it.
    fn gdrdrv(&self, check: &'static str) -> Finding {
        let parameters = self.text("/proc/driver/gdrdrv/params").unwrap_or_default();
        let value = |name: &str| {
            let mut lines = parameters.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(line, _)| *line == name).map(|(_, value)| value.trim().to_owned())
        };
        let version = value("Version").or_else(|| self.text("/sys/module/gdrdrv/version"));
        let version = version.map(|version| format!(" {version}")).unwrap_or_default();
        let found = |what: &str| format!("GPU memory as a drive's target: gdrdrv{version} {what}");
        if value("Use persistent mapping").as_deref() == Some("no") {
            return Finding::new(check, Verdict::Unproven, found("does not pin persistently, and is not used")).advice(
                "load gdrdrv without use_persistent_mapping=0, built against an NVIDIA driver that can, 580 or later",
            );
        }
        let file = self.path("/dev/gdrdrv");
        if !file.exists() {
            return Finding::new(check, Verdict::Unproven, found("is loaded, and there is no /dev/gdrdrv"))
                .advice("make the device file, as GDRCopy's service does")
                .command("sudo mknod -m 666 /dev/gdrdrv c $(grep gdrdrv /proc/devices | cut -d' ' -f1) 0");
        }
        if !may_use(&file) {
            return Finding::new(check, Verdict::Unproven, found("is loaded, and this user may not open /dev/gdrdrv"))
                .command("sudo chmod 666 /dev/gdrdrv");
        }
        Finding::new(
            check,
            Verdict::Unproven,
            found("is there; no physical drive has written to a real GPU's memory yet"),
        )
        .advice("the ring test says whether a drive's writes arrive")
        .command("warprow gpu-rings ADDRESS --placement a-minus")
    }

    fn drive_group(&self, drive: &PciFunction) -> Finding {
        let (check, address) = ("drive-group", drive.address);
        let Some(group) = &drive.group else {
            let found = format!("no IOMMU stands before drive {address}, and VFIO wants one");
            return warn(check, found).advice("turn the IOMMU on: `warprow doctor` says how");
        };
        let blockers: Vec<_> = group.others.iter().filter(|it| it.stands_in_the_way()).collect();
        if !blockers.is_empty() {
            let names = blockers.iter().map(|it| it.name.clone()).collect::<Vec<_>>().join(", ");
            let found =
                format!("drive {address} shares IOMMU group {} with {names}, which other drivers have", group.number);
            return warn(check, found).advice("bind these to vfio-pci too, or put the drive into a slot of its own");
        }
        let (file, others) = (format!("/dev/vfio/{}", group.number), group.others.len());
        let shared =
            if others == 0 { String::new() } else { format!(", shared with {others} that stand in nobody's way") };
        if may_use(&self.path(&file)) && may_use(&self.path("/dev/vfio/vfio")) {
            let found = format!(
                "drive {address} is in IOMMU group {}{shared}, whose container (type 1) also maps a GPU's memory",
                group.number
            );
            return pass(check, found);
        }
        let own = entries(&self.path(&format!("/sys/bus/pci/devices/{address}/vfio-dev")));
        match own.iter().any(|(_, name)| may_use(&self.path(&format!("/dev/vfio/devices/{name}")))) {
            true => {
                let found = format!("drive {address} is opened through iommufd, which does not map a GPU's memory");
                warn(check, found)
                    .advice("own the group's file and set WARPROW_VFIO=type1")
                    .command(format!("sudo chown $USER {file}"))
            }
            false => warn(check, format!("this user may open neither {file} nor the drive's own file"))
                .command(format!("sudo chown $USER {file}")),
        }
    }
}

/// How far the two are from each other. Only through a switch is it known that writes from one to the other arrive.
fn distance(gpu: &PciFunction, drive: &PciFunction) -> Finding {
    let (check, far) = ("gpu-distance", Distance::between(gpu, drive));
    let found = format!("GPU {} and drive {}: {far}", gpu.address, drive.address);
    match far {
        Distance::Switch => pass(check, found),
        _ => Finding::new(
            check,
            Verdict::Unproven,
            format!("{found}; whether writes between them arrive hangs on the processor"),
        )
        .advice("the ring test says whether they do"),
    }
}

fn pass(check: &'static str, found: impl Into<String>) -> Finding {
    Finding::new(check, Verdict::Pass, found)
}

fn warn(check: &'static str, found: impl Into<String>) -> Finding {
    Finding::new(check, Verdict::Warn, found)
}
