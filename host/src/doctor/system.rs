use super::finding::{Finding, Verdict};
use crate::Machine;

/// The first kernel whose vfio type 1 interface tells its address ranges.
const KERNEL: (u32, u32) = (5, 4);

pub(super) fn processor(machine: &Machine) -> Finding {
    let info = machine.text("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let (_, value) = info.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == name)?;
        Some(value.trim().to_owned())
    };
    let model = field("model name").unwrap_or_else(|| "a processor that does not say its name".to_owned());
    match field("vendor_id").as_deref() {
        Some("GenuineIntel" | "AuthenticAMD" | "HygonGenuine") => {
            Finding::new("cpu", Verdict::Pass, format!("{model} (x86-64)"))
        }
        Some(vendor) => Finding::new("cpu", Verdict::Unproven, format!("{model}, of {vendor}: never tried")),
        None if field("CPU implementer").is_some() => {
            Finding::new("cpu", Verdict::Unproven, "an Arm processor: the code is for it too, and was never run on one")
        }
        None => Finding::new("cpu", Verdict::Unproven, "/proc/cpuinfo names no processor"),
    }
}

pub(super) fn kernel(machine: &Machine) -> Finding {
    let Some(release) = machine.text("/proc/sys/kernel/osrelease") else {
        return Finding::new("kernel", Verdict::Unproven, "its release cannot be read");
    };
    match numbers(&release) {
        Some(numbers) if numbers >= KERNEL => Finding::new("kernel", Verdict::Pass, format!("Linux {release}")),
        Some(_) => {
            let found = format!("Linux {release} does not tell which I/O addresses are reserved");
            Finding::new("kernel", Verdict::Warn, found).advice("Linux 5.4 or later does")
        }
        None => Finding::new("kernel", Verdict::Unproven, format!("a release like no other: {release:?}")),
    }
}

/// The kernel's major and minor number, if they can be read.
pub(crate) fn release(machine: &Machine) -> Option<(u32, u32)> {
    numbers(&machine.text("/proc/sys/kernel/osrelease")?)
}

fn numbers(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>());
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

pub(super) fn lockdown(machine: &Machine) -> Option<Finding> {
    let modes = machine.text("/sys/kernel/security/lockdown")?;
    let mode = modes.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or(modes.as_str(), |pair| pair.0);
    Some(match mode {
        "none" => Finding::new("lockdown", Verdict::Pass, "the kernel is not locked down"),
        _ => {
            let found =
                format!("kernel lockdown is {mode}: VFIO works, unsigned modules (gdrdrv, nvidia-peermem) do not load");
            Finding::new("lockdown", Verdict::Warn, found)
                .advice("sign the modules, or turn Secure Boot off in the firmware, if GPU peer memory is wanted")
        }
    })
}

pub(super) fn container(machine: &Machine) -> Option<Finding> {
    let named = machine.text("/run/systemd/container");
    let environment = machine.text("/proc/1/environ").unwrap_or_default();
    let by_variable = environment.split('\0').find_map(|entry| entry.strip_prefix("container="));
    let marked = || {
        let docker = machine.path("/.dockerenv").exists().then_some("docker");
        docker.or_else(|| machine.path("/run/.containerenv").exists().then_some("podman"))
    };
    let kind = named.as_deref().or(by_variable).or_else(marked)?;
    let found =
        format!("a container ({kind}): it sees the devices that it was given, and not the host's mounts and processes");
    Some(
        Finding::new("container", Verdict::Warn, found)
            .advice("bind drives on the host, then start the container with their groups")
            .command("docker run --device /dev/vfio/vfio --device /dev/vfio/GROUP --ulimit memlock=-1 …"),
    )
}
