//! `warprow doctor`.

use clap::Args;
use serde_json::{Value, json};
use warprow_gpu_queues::{Gpu, GpuQueueError};
use warprow_host::doctor::{Finding, Verdict};
use warprow_host::{Machine, PciFunction};
use warprow_kernels::{Arch, compile};
use warprow_workload::units;

use super::{CommandOutput, Context, MachineArgs};
use crate::failure::{Class, Failure};
use crate::report::printable;

/// Say what this machine lacks to drive real NVMe drives, and the command that fixes each
///
/// Looks at processor, kernel, IOMMU, VFIO, memory, drives and GPUs, and changes nothing. Every line is one check:
///   pass       as it should be
///   warn       works, though not as well as it could
///   fail       real drives cannot be driven like this; exit code 1
///   unproven   nobody has shown that it works, or this user may not look
/// Emulated drives (emulated:PATH) need none of this. Some checks see more as root.
#[derive(Debug, Args)]
#[command(
    verbatim_doc_comment,
    after_long_help = "\
Examples:
  warprow doctor
  sudo warprow doctor --json
  warprow doctor --json | jq -r '.checks[] | select(.verdict == \"fail\") | .command'"
)]
pub struct DoctorArgs {
    #[command(flatten)]
    machine: MachineArgs,
}

pub(crate) fn run(args: &DoctorArgs, context: &Context) -> Result<CommandOutput, Failure> {
    let machine = args.machine.machine()?;
    let spinner = context.screen.spinner("looking at the machine");
    let mut findings = machine.examine();
    context.interrupt.check()?;
    findings.extend(gpu(&machine));
    spinner.finish_and_clear();

    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    let [pass, warn, fail, unproven] =
        [Verdict::Pass, Verdict::Warn, Verdict::Fail, Verdict::Unproven].map(|verdict| count(verdict) as u64);
    let mut text: Vec<String> = findings.iter().map(line).collect();
    text.push(format!("{pass} pass, {warn} warn, {fail} fail, {unproven} unproven"));
    let object = json!({
        "ready": fail == 0,
        "pass": pass, "warn": warn, "fail": fail, "unproven": unproven,
        "checks": findings.iter().map(object).collect::<Vec<_>>(),
    });
    let mut done = CommandOutput::new(text.join("\n"), object)?;
    if fail > 0 {
        let first = findings.iter().find(|finding| finding.verdict == Verdict::Fail);
        let remedy =
            first.and_then(|finding| finding.command.clone().or_else(|| finding.advice.clone())).unwrap_or_default();
        let what = format!("{} failed: real drives cannot be driven here as it is", units::plural(fail, "check"));
        let subject = first.map(|finding| finding.check).unwrap_or_default();
        done.failure = Some(Failure::new(Class::Unready, subject, what).remedy(remedy));
    }
    Ok(done)
}

fn line(finding: &Finding) -> String {
    let mut text = format!("{:<9} {:<12} {}", finding.verdict, finding.check, printable(&finding.found));
    if let Some(advice) = &finding.advice {
        text += &format!("\n{:23}{}", "", printable(advice));
    }
    if let Some(command) = &finding.command {
        text += &format!("\n{:23}$ {}", "", printable(command));
    }
    text
}

fn object(finding: &Finding) -> Value {
    json!({
        "check": finding.check,
        "verdict": finding.verdict.name(),
        "found": finding.found,
        "advice": finding.advice,
        "command": finding.command,
    })
}

/// What CUDA says of the GPUs.
fn gpu(machine: &Machine) -> Vec<Finding> {
    let seen = machine.gpus();
    if !machine.is_this() {
        let found = format!("{} on the PCI bus; CUDA can be asked on the machine itself alone", list(&seen));
        return vec![Finding::new("gpu", if seen.is_empty() { Verdict::Warn } else { Verdict::Unproven }, found)];
    }
    let count = Gpu::count().max(1);
    let mut findings = Vec::new();
    let mut compiled = Vec::new();
    for ordinal in 0..count {
        match Gpu::open(ordinal) {
            Ok(gpu) => {
                findings.push(described(&gpu, ordinal));
                if !compiled.contains(&gpu.capability()) {
                    compiled.push(gpu.capability());
                    findings.push(kernels(&gpu));
                }
            }
            Err(GpuQueueError::NoDriver | GpuQueueError::NoDevice { .. }) if seen.is_empty() => {
                let found = "no NVIDIA GPU: look-ups run on the processor";
                return vec![Finding::new("gpu", Verdict::Warn, found)];
            }
            Err(error) => {
                let found = format!("{} on the PCI bus, and {error}", list(&seen));
                findings.push(
                    Finding::new("gpu", Verdict::Fail, found)
                        .advice("install or load NVIDIA's driver, 580 or later; `nvidia-smi` must list the GPU"),
                );
            }
        }
    }
    findings
}

fn list(gpus: &[PciFunction]) -> String {
    match gpus {
        [] => "no NVIDIA GPU".to_owned(),
        _ => format!("GPU {}", gpus.iter().map(|gpu| gpu.address.to_string()).collect::<Vec<_>>().join(", ")),
    }
}

fn described(gpu: &Gpu, ordinal: u32) -> Finding {
    let (major, minor) = gpu.capability();
    let version = gpu.driver_version();
    let address = gpu.pci_address().map(|address| format!(" at {address}")).unwrap_or_default();
    let memory = gpu.memory().map(|(free, all)| format!(", {} of {} free", units::bytes(free), units::bytes(all)));
    let found = format!(
        "GPU {ordinal}: {}{address}, compute capability {major}.{minor}, driver with CUDA {}.{}{}",
        gpu.name(),
        version / 1000,
        version % 1000 / 10,
        memory.unwrap_or_default(),
    );
    Finding::new("gpu", Verdict::Pass, found)
}

/// Whether the look-up's kernels can be had for this GPU: from the cache, or by NVRTC.
fn kernels(gpu: &Gpu) -> Finding {
    let (major, minor) = gpu.capability();
    let arch = Arch { major, minor };
    match compile(arch, gpu.driver_version()) {
        Ok(code) => {
            let library =
                loaded("libnvrtc.so").map_or_else(|| "a cache on disk".to_owned(), |text| text.replace('\n', ""));
            let found = format!("kernels for {arch}: {} of code, with {library}", units::bytes(code.len() as u64));
            Finding::new("nvrtc", Verdict::Pass, found)
        }
        Err(error) => Finding::new("nvrtc", Verdict::Fail, error.to_string())
            .advice("then put its folder nvidia/cu13/lib into LD_LIBRARY_PATH")
            .command("pip install 'nvidia-cuda-nvrtc==13.0.*'"),
    }
}

/// The file of a library that this process has loaded; its name has the version.
fn loaded(name: &str) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|path| path.contains(name))?;
    Some(std::fs::canonicalize(path).map_or_else(|_| path.to_owned(), |path| path.display().to_string()))
}
