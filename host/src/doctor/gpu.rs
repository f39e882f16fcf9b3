//! Whether a GPU could ring drives' doorbells itself (placement B of docs/gpu-rings.md). Without, a host thread rings for it.

use super::finding::{Finding, Verdict};
use crate::Machine;
use crate::rights;

/// The check's name.
const CHECK: &str = "gpu-doorbells";
/// From this kernel on, only modules that follow I/O mappings by the newer interface can register a drive's registers.
const NEWER_INTERFACE: (u32, u32) = (6, 10);
/// NVIDIA's open modules use that interface from this version on.
const FOLLOWS: [u32; 3] = [570, 133, 7];

/// NVIDIA's kernel module, as `/proc/driver/nvidia/version` names it.
#[derive(Debug, PartialEq, Eq)]
struct Module {
    open: bool,
    version: Vec<u32>,
}

impl Module {
    fn read(machine: &Machine) -> Option<Self> {
        let text = machine.text("/proc/driver/nvidia/version")?;
        let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
        let is_version = |word: &&str| word.contains('.') && word.starts_with(|first: char| first.is_ascii_digit());
        let word = line.split_whitespace().find(is_version)?;
        let version = word.split('.').map_while(|number| number.parse().ok()).collect();
        Some(Self { open: line.contains("Open Kernel Module"), version })
    }

    fn name(&self) -> String {
        let version = self.version.iter().map(|number| format!("{number:02}")).collect::<Vec<_>>().join(".");
        format!("NVIDIA's {} module {version}", if self.open { "open" } else { "closed" })
    }
}

/// What stands between the machine's GPUs and the registers of drives; nothing where there is no GPU.
pub(super) fn doorbells(machine: &Machine) -> Vec<Finding> {
    let gpus = machine.gpus();
    if gpus.is_empty() {
        return Vec::new();
    }
    let warn = |found: String| {
        Finding::new(CHECK, Verdict::Warn, format!("{found}: a host thread rings drives' doorbells for the GPU"))
    };
    let Some(module) = Module::read(machine) else {
        return vec![
            warn("NVIDIA's kernel module is not loaded".to_owned()).advice("install NVIDIA's driver, 580 or later"),
        ];
    };
    let mut findings = Vec::new();
    if super::system::release(machine).is_some_and(|release| release >= NEWER_INTERFACE)
        && (!module.open || module.version[..] < FOLLOWS[..])
    {
        let found = format!("{} cannot reach registers of drives on this kernel", module.name());
        findings.push(warn(found).advice("install NVIDIA's open kernel modules, 570.133.07 or later"));
    }
    for gpu in gpus {
        let folder = format!("/sys/bus/pci/devices/{}/iommu_group", gpu.address);
        let Some(kind) = machine.text(&format!("{folder}/type")) else { continue };
        if kind != "identity" {
            let found = format!(
                "the IOMMU translates what GPU {} sends ({kind}), and its stores to a drive would be dropped",
                gpu.address
            );
            let remedy = "boot with iommu=pt, which leaves VFIO's drives behind the IOMMU";
            findings.push(warn(found).advice(remedy));
        }
    }
    if machine.text("/sys/module/nvidia_uvm/parameters/uvm_enable_va_space_mm").as_deref() == Some("0") {
        let found = "the module nvidia_uvm does not hold a dying process's memory until the GPU is stopped (uvm_enable_va_space_mm=0)";
        findings.push(warn(found.to_owned()).advice("load nvidia_uvm without uvm_enable_va_space_mm=0"));
    }
    let overridden =
        machine.text("/proc/driver/nvidia/params").is_some_and(|text| text.contains("PeerMappingOverride=1"));
    if !overridden && !rights::has(machine, rights::CAP_SYS_ADMIN) {
        findings.push(
            warn("CUDA maps registers of drives only for processes with CAP_SYS_ADMIN".to_owned())
                .advice("or load the module nvidia with NVreg_RegistryDwords=PeerMappingOverride=1")
                .command("sudo setcap cap_sys_admin+ep $(command -v warprow)"),
        );
    }
    if findings.is_empty() {
        let found = format!(
            "with {}, GPUs could ring drives' doorbells themselves; no GPU has rung a physical drive's yet",
            module.name()
        );
        findings.push(Finding::new(CHECK, Verdict::Unproven, found));
    }
    findings
}
