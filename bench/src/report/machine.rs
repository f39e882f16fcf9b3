//! What a report says of the machine.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use warprow_gpu_queues::Gpu;
use warprow_workload::{MachineInfo, units};

/// The machine, as far as it tells. What is not known says so.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Described {
    /// Name of the processor.
    pub cpu: String,
    /// Processors that a process may use.
    pub cores: u64,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// The kernel's release.
    pub kernel: String,
    /// The GPU, or why there is none.
    pub gpu: Result<GpuDescribed, String>,
    /// Drives, one line each.
    pub drives: Option<Vec<String>>,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuDescribed {
    /// The GPU's name.
    pub name: String,
    /// Bytes of its memory.
    pub memory: Option<u64>,
    /// The CUDA version of its driver, as `13.0`.
    pub cuda: String,
    /// The driver's release, such as `580.95.05`.
    pub driver: Option<String>,
}

impl Described {
    /// Describes this machine.
    pub fn this() -> Self {
        let it = MachineInfo::this();
        let cores = it.cores as u64;
        Self { cpu: it.cpu, cores, memory: memory(), kernel: it.kernel, gpu: gpu(), drives: Some(drives()) }
    }

    /// As far as a program's own result tells, for results that came from elsewhere.
    pub fn of_result(machine: MachineInfo) -> Self {
        let MachineInfo { cpu, cores, kernel, .. } = machine;
        let gpu = Err("not recorded".to_owned());
        Self { cpu, cores: cores as u64, memory: None, kernel, gpu, drives: None }
    }

    /// Name and value of each line.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let unknown = || "not recorded".to_owned();
        let gpu = match &self.gpu {
            Ok(gpu) => {
                let memory = gpu.memory.map_or_else(String::new, |bytes| format!(", {}", units::bytes(bytes)));
                let driver = gpu.driver.as_ref().map_or_else(String::new, |driver| format!(", driver {driver}"));
                format!("{}{memory}{driver}, CUDA {}", gpu.name, gpu.cuda)
            }
            Err(reason) => format!("none ({reason})"),
        };
        let drives = match &self.drives {
            None => unknown(),
            Some(drives) if drives.is_empty() => "none found".to_owned(),
            Some(drives) => drives.join("; "),
        };
        vec![
            ("Processor", format!("{}, {} cores for this process", self.cpu, self.cores)),
            ("Memory", self.memory.map_or_else(unknown, units::bytes)),
            ("Kernel", format!("Linux {}", self.kernel)),
            ("GPU", gpu),
            ("Drives", drives),
        ]
    }
}

fn memory() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let kib = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?.trim().strip_suffix("kB")?;
    kib.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn gpu() -> Result<GpuDescribed, String> {
    let gpu = Gpu::open(0).map_err(|error| error.to_string())?;
    let version = gpu.driver_version();
    // Of open and closed kernel modules alike: `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  …`.
    let driver = fs::read_to_string("/proc/driver/nvidia/version").ok().and_then(|text| release_of(&text));
    Ok(GpuDescribed {
        name: gpu.name().to_owned(),
        memory: gpu.memory().ok().map(|(_, total)| total),
        cuda: format!("{}.{}", version / 1000, version % 1000 / 10),
        driver,
    })
}

fn release_of(text: &str) -> Option<String> {
    let is_release = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    text.lines().next()?.split_whitespace().find(is_release).map(str::to_owned)
}

/// NVMe drives by PCI, and other disks of the kernel's.
fn drives() -> Vec<String> {
    let mut drives: Vec<String> = warprow_host::Machine::at("/")
        .drives()
        .into_iter()
        .map(|drive| {
            let size = drive.bytes().map_or_else(String::new, |bytes| format!(", {:.0} GB", bytes as f64 / 1e9));
            let model = drive.model.as_deref().map_or("NVMe drive", str::trim);
            format!("{model}{size} at {}", drive.function.address)
        })
        .collect();
    let mut others: Vec<String> =
        fs::read_dir("/sys/block").into_iter().flatten().filter_map(|entry| disk(&entry.ok()?.path())).collect();
    others.sort();
    drives.append(&mut others);
    drives
}

/// A disk that is no NVMe drive and no part of memory.
fn disk(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    if ["nvme", "loop", "ram", "zram", "dm-", "md", "sr", "nbd"].iter().any(|prefix| name.starts_with(prefix)) {
        return None;
    }
    // In units of 512 B, whatever its blocks.
    let bytes = fs::read_to_string(path.join("size")).ok()?.trim().parse::<u64>().ok()?.checked_mul(512)?;
    (bytes > 0).then(|| format!("{name}, {:.0} GB (no NVMe)", bytes as f64 / 1e9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_found() {
        let open =
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version: 1.2";
        assert_eq!(release_of(open).as_deref(), Some("580.95.05"));
        assert_eq!(release_of("NVRM version: none"), None);
        assert_eq!(release_of(""), None);
    }

    #[test]
    fn a_machine_is_described_whatever_it_lacks() {
        let lines = Described::this().lines();
        assert!(lines.iter().all(|(name, value)| !name.is_empty() && !value.is_empty()), "{lines:?}");
        let machine = MachineInfo { cpu: "C".to_owned(), cores: 2, kernel: "6.1".to_owned(), load: 0.5 };
        let of = Described::of_result(machine);
        assert_eq!((of.cpu.as_str(), of.cores, of.memory), ("C", 2, None));
        assert!(of.lines().iter().any(|(_, value)| value == "not recorded"));
        let text = serde_json::to_string(&of).unwrap();
        assert_eq!(serde_json::from_str::<Described>(&text).unwrap(), of);
    }
}
