use super::finding::{Finding, Verdict};
use crate::files::number;
use crate::rights::{CAP_IPC_LOCK, has, memlock};
use crate::{HostDrive, Machine};

const MIB: u64 = 1 << 20;
/// Bytes of locked memory that the driver, its queues and its buffers need at least; the tests in the guest get by with
/// them.
const LEAST: u64 = 16 * MIB;
const ENOUGH: u64 = 64 * MIB;

pub(super) fn huge_pages(machine: &Machine) -> Vec<Finding> {
    let pages = |kib: u64| {
        let folder = machine.path(&format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB"));
        let count = |name: &str| number::<u64>(&folder.join(name));
        Some((count("free_hugepages")?, count("nr_hugepages")?))
    };
    let Some((free, all)) = pages(2048) else {
        return vec![Finding::new(
            "huge-pages",
            Verdict::Warn,
            "this kernel has no huge pages of 2 MiB; small ones are used",
        )];
    };
    let large = pages(1 << 20).map(|(free, all)| format!("; of 1 GiB, {free} of {all}")).unwrap_or_default();
    let found = format!("of 2 MiB, {free} of {all} are free{large}");
    vec![match free {
        0 => Finding::new("huge-pages", Verdict::Warn, format!("{found}; small pages are used, in more mappings"))
            .command(format!("sudo sysctl vm.nr_hugepages={}", all.saturating_add(512))),
        _ => Finding::new("huge-pages", Verdict::Pass, found),
    }]
}

pub(super) fn lockable(machine: &Machine, drives: &[HostDrive]) -> Finding {
    if has(machine, CAP_IPC_LOCK) {
        return Finding::new("memlock", Verdict::Pass, "this process may lock any amount of memory (CAP_IPC_LOCK)");
    }
    let Some((soft, hard)) = memlock(machine) else {
        return Finding::new(
            "memlock",
            Verdict::Unproven,
            "/proc/self/limits does not tell how much memory may be locked",
        );
    };
    let bound = drives.iter().filter(|drive| drive.function.driver.as_deref() == Some("vfio-pci")).count();
    let count = bound.max(1) as u64;
    let Some(limit) = soft else {
        return Finding::new("memlock", Verdict::Pass, "any amount of memory may be locked");
    };
    let needed = ENOUGH.saturating_mul(count);
    let found = format!(
        "{} KiB of memory may be locked; {} MiB are wanted for {count} drive{}, and the DRAM tier and host memory that drives \
         ask for on top",
        limit / 1024,
        needed / MIB,
        if count == 1 { "" } else { "s" },
    );
    if limit >= needed {
        return Finding::new("memlock", Verdict::Pass, found);
    }
    let verdict = if limit < LEAST.saturating_mul(count) { Verdict::Fail } else { Verdict::Warn };
    let finding = Finding::new("memlock", verdict, found);
    match hard {
        None => finding.command("ulimit -l unlimited"),
        Some(hard) if hard >= needed => finding.command(format!("ulimit -l {}", hard / 1024)),
        Some(_) => finding
            .advice("then log in again; a systemd unit takes LimitMEMLOCK=infinity, a container --ulimit memlock=-1")
            .command("echo \"$USER - memlock unlimited\" | sudo tee /etc/security/limits.d/warprow.conf"),
    }
}
