use super::finding::{DoctorFinding, DoctorVerdict};
use crate::files::number;
use crate::rights::{CAP_IPC_LOCK, has, memlock};
use crate::{HostDrive, Machine};

const MIB: u64 = 1 << 20;
/// What the driver, its queues and buffers need of a drive at least, and what the tests in the guest get by with.
const LEAST: u64 = 16 * MIB;
const ENOUGH: u64 = 64 * MIB;

pub(super) fn huge_pages(machine: &Machine) -> Vec<DoctorFinding> {
    let pages = |kib: u64| {
        let folder = machine.path(&format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB"));
        let count = |name: &str| number::<u64>(&folder.join(name));
        Some((count("free_hugepages")?, count("nr_hugepages")?))
    };
    let Some((free, all)) = pages(2048) else {
        return vec![DoctorFinding::new(
            "huge-pages",
            DoctorVerdict::Warn,
            "this kernel has no huge pages of 2 MiB; small ones are used",
        )];
    };
    let large = pages(1 << 20).map(|(free, all)| format!("; of 1 GiB, {free} of {all}")).unwrap_or_default();
    let found = format!("of 2 MiB, {free} of {all} are free{large}");
    vec![match free {
        0 => DoctorFinding::new(
            "huge-pages",
            DoctorVerdict::Warn,
            format!("{found}; small pages are used, in more mappings"),
        )
        .command(format!("sudo sysctl vm.nr_hugepages={}", all.saturating_add(512))),
        _ => DoctorFinding::new("huge-pages", DoctorVerdict::Pass, found),
    }]
}

pub(super) fn lockable(machine: &Machine, drives: &[HostDrive]) -> DoctorFinding {
    if has(machine, CAP_IPC_LOCK) {
        return DoctorFinding::new(
            "memlock",
            DoctorVerdict::Pass,
            "this process may lock any amount of memory (CAP_IPC_LOCK)",
        );
    }
    let Some((soft, hard)) = memlock(machine) else {
        return DoctorFinding::new(
            "memlock",
            DoctorVerdict::Unproven,
            "/proc/self/limits does not tell how much memory may be locked",
        );
    };
    let bound = drives.iter().filter(|drive| drive.function.driver.as_deref() == Some("vfio-pci")).count();
    let count = bound.max(1) as u64;
    let Some(limit) = soft else {
        return DoctorFinding::new("memlock", DoctorVerdict::Pass, "any amount of memory may be locked");
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
        return DoctorFinding::new("memlock", DoctorVerdict::Pass, found);
    }
    let verdict = if limit < LEAST.saturating_mul(count) { DoctorVerdict::Fail } else { DoctorVerdict::Warn };
    let finding = DoctorFinding::new("memlock", verdict, found);
    match hard {
        None => finding.command("ulimit -l unlimited"),
        Some(hard) if hard >= needed => finding.command(format!("ulimit -l {}", hard / 1024)),
        Some(_) => finding
            .advice("then log in again; a systemd unit takes LimitMEMLOCK=infinity, a container --ulimit memlock=-1")
            .command("echo \"$USER - memlock unlimited\" | sudo tee /etc/security/limits.d/warprow.conf"),
    }
}
