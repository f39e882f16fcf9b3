//! What only the VFIO transport promises.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use warprow_dma::{DmaMemory, Function, FunctionError, MappedMemory, MemoryKind};
use warprow_vfio::{OpenError, VfioFunction, VfioInterface};

const CAP: u64 = 0;
const VS: u64 = 8;

/// The text of the error with which opening `address` is refused.
pub(crate) fn refusal(address: &str) -> Result<OpenError> {
    match VfioFunction::open(address) {
        Ok(_) => bail!("{address} was opened"),
        Err(error) => {
            println!("       {error}");
            Ok(error)
        }
    }
}

/// Refusals that need no particular machine.
pub(crate) fn wrong_addresses() -> Result<()> {
    ensure!(matches!(refusal("nvme0")?, OpenError::Address(_)));
    ensure!(matches!(refusal("7f:00.0")?, OpenError::NotFound { controllers, .. } if !controllers.is_empty()));
    ensure!(matches!(refusal("00:00.0")?, OpenError::NotNvme { class: 0x06_0000, .. }), "the host bridge");
    Ok(())
}

/// A function that Linux's own driver holds.
pub(crate) fn bound_to_linux(address: &str) -> Result<()> {
    let error = refusal(address)?;
    ensure!(matches!(&error, OpenError::WrongDriver { driver: Some(driver), .. } if driver == "nvme"));
    ensure!(error.to_string().contains(&format!("echo {address} > /sys/bus/pci/drivers_probe")));
    Ok(())
}

/// A function in one IOMMU group with one that Linux holds.
pub(crate) fn shared_with_linux(address: &str, other: &str) -> Result<()> {
    let error = refusal(address)?;
    ensure!(matches!(&error, OpenError::GroupNotViable { others, .. } if others == &[format!("{other} (nvme)")]));
    Ok(())
}

/// One function is one user's, in this process and among processes.
pub(crate) fn exclusive(address: &str) -> Result<()> {
    let first = VfioFunction::open(address)?;
    ensure!(matches!(refusal(address)?, OpenError::Busy { .. }), "in one process");
    let child = other_process(address, None)?;
    ensure!(!child.status.success() && said(&child).contains("open already"), "another process: {child:?}");
    drop(first);
    let child = other_process(address, None)?;
    ensure!(child.status.success(), "after it was closed: {child:?}");
    VfioFunction::open(address).context("again in this process")?;
    Ok(())
}

/// Opens a function in a process of its own, through what the environment says or through what is given.
fn other_process(address: &str, interface: Option<&str>) -> Result<Output> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["open", address]).envs(interface.map(|name| ("WARPROW_VFIO", name)));
    Ok(command.output()?)
}

fn said(child: &Output) -> String {
    String::from_utf8_lossy(&child.stdout).into_owned()
}

/// What the user has rights to is what a function is opened through; the other way is refused, and says what it lacks.
pub(crate) fn interfaces(address: &str) -> Result<()> {
    let through = |interface| VfioFunction::open_through(address, interface);
    let refused = |interface| {
        let error = through(interface).err().with_context(|| format!("opened through {interface:?}"))?;
        println!("       {error}");
        anyhow::Ok(error)
    };
    match std::env::var("GUEST_VFIO").context("GUEST_VFIO")?.as_str() {
        "type1" => {
            let error = refused(VfioInterface::Iommufd)?;
            if std::path::Path::new("/dev/iommu").exists() {
                ensure!(matches!(error, OpenError::Permission { path, .. } if path.as_os_str() == "/dev/iommu"));
            } else {
                ensure!(matches!(error, OpenError::NoIommufd { .. }));
            }
            ensure!(through(VfioInterface::Auto)?.interface() == VfioInterface::Type1);
        }
        "iommufd" => {
            let error = refused(VfioInterface::Type1)?;
            ensure!(matches!(error, OpenError::Permission { path, .. } if path.starts_with("/dev/vfio")));
            ensure!(VfioFunction::open(address)?.interface() == VfioInterface::Iommufd, "the environment's choice");
            ensure!(through(VfioInterface::Auto)?.interface() == VfioInterface::Iommufd);
        }
        "both" => {
            ensure!(through(VfioInterface::Auto)?.interface() == VfioInterface::Type1);
            for (held, other) in [(VfioInterface::Type1, "iommufd"), (VfioInterface::Iommufd, "type1")] {
                let first = through(held)?;
                ensure!(first.interface() == held);
                let child = other_process(address, Some(other))?;
                println!("       {}", said(&child).trim());
                ensure!(!child.status.success() && said(&child).contains("open already"), "{held:?}: {child:?}");
                drop(first);
                let child = other_process(address, Some(other))?;
                ensure!(child.status.success(), "{other} after {held:?}: {child:?}");
            }
        }
        other => bail!("GUEST_VFIO is {other:?}"),
    }
    Ok(())
}

/// Two functions of one group, both ours, share an address space and are opened side by side.
pub(crate) fn one_group(first: &str, second: &str) -> Result<()> {
    let a = VfioFunction::open(first)?;
    let b = VfioFunction::open(second)?;
    let memory = || DmaMemory::allocate(8192, MemoryKind::Anonymous);
    let one = MappedMemory::new(a.clone(), memory()?)?;
    let two = MappedMemory::new(b.clone(), memory()?)?;
    ensure!(one.iova().abs_diff(two.iova()) >= 8192, "{:#x} and {:#x} overlap", one.iova(), two.iova());
    ensure!(a.unmap(two.iova()).is_err(), "a function ended a mapping of another");
    drop((two, b));
    // One owner for the whole group, whichever function he has.
    let child = other_process(second, None)?;
    println!("       {}", said(&child).trim());
    let why = if a.interface() == VfioInterface::Iommufd { first } else { "open already" };
    ensure!(!child.status.success() && said(&child).contains(why), "another process, the other function: {child:?}");
    let b = VfioFunction::open(second).context("the second again")?;
    let two = MappedMemory::new(b.clone(), memory()?)?;
    drop((one, a));
    ensure!(b.read_u32(VS)? != 0);
    drop((two, b));
    VfioFunction::open(first).context("again")?;
    Ok(())
}

/// Register access and its limits.
pub(crate) fn registers(function: &Arc<VfioFunction>) -> Result<()> {
    let cap = function.read_u64(CAP)?;
    let vs = function.read_u32(VS)?;
    println!("       CAP {cap:#018x}, VS {}.{}.{}", vs >> 16, vs >> 8 & 0xff, vs & 0xff);
    ensure!(vs >= 0x0001_0000 && cap & 0xffff != 0, "MQES is at least 1");
    ensure!(function.read_u32(CAP)? == cap as u32 && function.read_u32(CAP + 4)? == (cap >> 32) as u32);
    for offset in [1, 2, 1 << 40, u64::MAX - 3, u64::MAX] {
        ensure!(matches!(function.read_u32(offset), Err(FunctionError::OutsideBar { .. })), "read at {offset:#x}");
        ensure!(matches!(function.write_u32(offset, 0), Err(FunctionError::OutsideBar { .. })), "write at {offset:#x}");
        ensure!(matches!(function.doorbell(offset), Err(FunctionError::OutsideBar { .. })), "doorbell at {offset:#x}");
    }
    ensure!(matches!(function.read_u64(4), Err(FunctionError::OutsideBar { .. })), "a misaligned 64-bit read");
    function.doorbell(0x1000)?;
    Ok(())
}

/// Mappings, of small and huge pages, do not overlap, keep clear of interrupts and of address 0, and can be made again and again.
pub(crate) fn mappings(function: &Arc<VfioFunction>) -> Result<()> {
    let reserved = reserved(function)?;
    for _ in 0..3 {
        let mut live = Vec::new();
        for len in [4096, 8192, 2 << 20, 4096, 3 << 20, 1 << 16, 4096] {
            let memory = DmaMemory::allocate(len, if len < 8192 { MemoryKind::Memfd } else { MemoryKind::Anonymous })?;
            live.push(MappedMemory::new(function.clone(), memory)?);
        }
        live.remove(3);
        let huge = MappedMemory::new(function.clone(), DmaMemory::allocate(4 << 20, MemoryKind::HugePages)?)?;
        ensure!(huge.iova().is_multiple_of(2 << 20), "{:#x} does not let the IOMMU use large pages", huge.iova());
        live.push(huge);
        let mut ranges: Vec<_> = live.iter().map(|m| (m.iova(), m.iova() + m.memory().len() as u64)).collect();
        ranges.sort();
        for pair in ranges.windows(2) {
            ensure!(pair[0].1 <= pair[1].0, "{pair:x?} overlap");
        }
        for (start, end) in ranges {
            ensure!(start != 0 && start.is_multiple_of(4096) && (end <= 0xfee0_0000 || start >= 0xfef0_0000));
            for &(first, last) in &reserved {
                ensure!(end <= first || start > last, "{start:#x} to {end:#x}: {first:#x} to {last:#x} is reserved");
            }
        }
    }
    ensure!(function.unmap(0x1000).is_err(), "nothing was mapped there");
    address_width(function)?;
    mapping_count(function)
}

/// First and last address of each range that the kernel keeps for something else, such as interrupts.
fn reserved(function: &VfioFunction) -> Result<Vec<(u64, u64)>> {
    let path = format!("/sys/bus/pci/devices/{}/iommu_group/reserved_regions", function.name());
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16);
    let range = |line: &str| {
        let mut fields = line.split_whitespace();
        let (first, last) = fields.next().zip(fields.next()).with_context(|| format!("{path}: {line:?}"))?;
        Ok((number(first)?, number(last)?))
    };
    let ranges: Vec<_> = text.lines().map(range).collect::<Result<_>>()?;
    ensure!(!ranges.is_empty(), "{path} is empty: not even interrupts");
    Ok(ranges)
}

/// More than the IOMMU can address is refused, with its width, before the kernel is asked: a file with nothing in it is that long.
/// Where the width is more than a process can map, there is nothing to try.
fn address_width(function: &VfioFunction) -> Result<()> {
    let cap = std::fs::read_to_string("/sys/class/iommu/dmar0/intel-iommu/cap")?;
    // Bits 21:16 of the capability register are the width, less one (VT-d 4.1, 11.4.2).
    let bits = (u64::from_str_radix(cap.trim(), 16)? >> 16 & 0x3f) as u32 + 1;
    if bits > 45 {
        return Ok(());
    }
    let path = std::env::temp_dir().join(format!("long-{}", std::process::id()));
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    file.set_len(1 << bits)?;
    let memory = DmaMemory::import(file.into(), 0, 1 << bits, true)?;
    let Err(FunctionError::Map { why, .. }) = function.map(&memory) else { bail!("2^{bits} bytes were mapped") };
    println!("       {why}");
    ensure!(why.contains(&format!("translates {bits} bits of address")), "{why}");
    Ok(())
}

/// More mappings than a type 1 container takes, which `init` has lowered: the error names that limit and not the one of memory.
/// What was mapped stays, and room made is room. Through iommufd only memory is limited.
fn mapping_count(function: &Arc<VfioFunction>) -> Result<()> {
    let limit: usize =
        std::fs::read_to_string("/sys/module/vfio_iommu_type1/parameters/dma_entry_limit")?.trim().parse()?;
    ensure!(limit <= 4096, "{limit} pages are more than the memory limit");
    let memory = DmaMemory::allocate(4096, MemoryKind::Anonymous)?;
    let mut live = Vec::new();
    let why = loop {
        if function.interface() == VfioInterface::Iommufd && live.len() > limit {
            break String::new();
        }
        ensure!(live.len() <= limit, "{} mappings of {limit}", live.len());
        match function.map(&memory) {
            Ok(iova) => live.push(iova),
            Err(FunctionError::Map { why, .. }) => break why,
            Err(other) => return Err(other.into()),
        }
    };
    if function.interface() == VfioInterface::Type1 {
        println!("       {why}");
        ensure!(live.len() == limit && why.contains(&format!("limit of mappings is reached ({limit})")));
    }
    function.unmap(live.pop().context("no mapping at all")?)?;
    live.push(function.map(&memory).context("after room was made")?);
    for iova in live {
        function.unmap(iova)?;
    }
    Ok(())
}

/// More than RLIMIT_MEMLOCK: the error names the limit and what is needed; what was mapped stays usable.
pub(crate) fn memory_limit(function: &Arc<VfioFunction>, limit: usize) -> Result<()> {
    let small = MappedMemory::new(function.clone(), DmaMemory::allocate(1 << 20, MemoryKind::Anonymous)?)?;
    let large = DmaMemory::allocate(limit, MemoryKind::Anonymous)?;
    let Err(FunctionError::Map { why, .. }) = function.map(&large) else {
        bail!("{limit} bytes beyond 1 MiB were mapped")
    };
    println!("       {why}");
    ensure!(why.contains(&format!("RLIMIT_MEMLOCK is {} KiB", limit >> 10)));
    ensure!(why.contains("1024 KiB are locked") && why.contains(&format!("ulimit -l {}", (limit >> 10) + 1024)));
    drop(small);
    let all = MappedMemory::new(function.clone(), large).context("exactly the limit")?;
    drop(all);
    Ok(())
}

/// A process that maps memory and keeps it until its standard input ends: `guest-nvme pin ADDRESS BYTES`.
pub(crate) fn pin(address: &str, bytes: usize) -> Result<()> {
    let function = VfioFunction::open(address)?;
    let _held = MappedMemory::new(function, DmaMemory::allocate(bytes, MemoryKind::Anonymous)?)?;
    println!("pinned");
    std::io::stdout().flush()?;
    std::io::stdin().lines().for_each(drop);
    Ok(())
}

/// Two processes of one user, each within RLIMIT_MEMLOCK, together past it: for type 1 each counts alone, for iommufd the user
/// does, and the error says so.
pub(crate) fn memory_limit_of_the_user(first: &str, second: &str, limit: usize) -> Result<()> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["pin", first, &(limit / 2).to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("no pipe")?).read_line(&mut line)?;
    let function = VfioFunction::open(second)?;
    let memory = DmaMemory::allocate(limit / 4 * 3, MemoryKind::Anonymous)?;
    let answer = function.map(&memory);
    drop(child.stdin.take());
    ensure!(child.wait()?.success() && line == "pinned\n", "the other process said {line:?}");
    match (function.interface(), answer) {
        (VfioInterface::Type1, Ok(iova)) => function.unmap(iova)?,
        (VfioInterface::Iommufd, Err(FunctionError::Map { why, .. })) => {
            println!("       {why}");
            ensure!(why.contains("all processes of this user together") && why.contains("ulimit -l"), "{why}");
            let iova = function.map(&memory).context("after the other process has ended")?;
            function.unmap(iova)?;
        }
        (interface, answer) => bail!("{interface:?}: {answer:?}"),
    }
    Ok(())
}

/// A reset leaves a function that answers, with bus mastering off.
pub(crate) fn reset(function: &Arc<VfioFunction>) -> Result<()> {
    let vs = function.read_u32(VS)?;
    const INTMS: u64 = 0xc;
    function.write_u32(INTMS, 0x5)?;
    ensure!(function.read_u32(INTMS)? == 5, "the register that shows the reset does not hold its value");
    function.set_bus_master(true)?;
    ensure!(bus_master(function)?, "bus mastering was not switched on");
    function.reset()?;
    ensure!(function.read_u32(VS)? == vs);
    ensure!(function.read_u32(INTMS)? == 0, "INTMS kept its value: no reset took place");
    ensure!(!bus_master(function)?, "bus mastering is on after a reset");
    function.set_bus_master(true)?;
    function.set_bus_master(false)?;
    ensure!(!bus_master(function)?);
    Ok(())
}

/// Whether the function may start DMA, as the system sees it (not through our own descriptor).
fn bus_master(function: &VfioFunction) -> Result<bool> {
    let config = std::fs::read(format!("/sys/bus/pci/devices/{}/config", function.name()))?;
    Ok(config.get(4).context("an empty configuration space")? & 4 != 0)
}
