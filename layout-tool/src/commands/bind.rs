//! `warprow bind` and `warprow unbind`.

use std::io::{self, BufRead, IsTerminal, Write as _};
use std::os::fd::AsFd;
use std::time::Duration;

use clap::Args;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Uid;
use serde_json::{Value, json};
use warprow_host::{BindError, BindSteps, KernelFiles, Machine, PciAddress};
use warprow_store::DriveAddress;

use super::{CommandOutput, Context, MachineArgs};
use crate::failure::{Class, Failure};
use crate::report::printable;

/// How long a driver may take to show up.
const PATIENCE: Duration = Duration::from_secs(5);

/// Take drives from the system, so that Warprow can drive them (vfio-pci)
///
/// The drive's block devices disappear until `warprow unbind`; nothing on it changes. Refused, with the reason, is a drive
/// that the system runs from, or that is mounted, swap space, part of a RAID, LVM or ZFS, exported, or open in a process;
/// one behind no IOMMU; one whose IOMMU group holds others; and anything that is no NVMe drive. Needs root.
///
/// Without --yes, the drive's serial number has to be typed on a terminal. If the kernel refuses half-way, the drive goes
/// back to where it was.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow devices
  warprow bind 0000:41:00.0 --dry-run
  sudo warprow bind 0000:41:00.0
  sudo warprow bind 0000:41:00.0 0000:42:00.0 --yes && sudo chown $USER /dev/vfio/*")]
pub struct BindArgs {
    #[command(flatten)]
    which: Which,
}

/// Give drives back to the system (Linux's own nvme driver)
///
/// Refused is a drive that a process has open. What Warprow wrote to the drive stays on it. Needs root.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  sudo warprow unbind 0000:41:00.0
  warprow unbind 0000:41:00.0 --dry-run")]
pub struct UnbindArgs {
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, Args)]
struct Which {
    /// PCI addresses of NVMe controllers
    #[arg(value_name = "ADDRESS", required = true)]
    addresses: Vec<String>,
    /// Only print what would be written, or why it could not be
    #[arg(long)]
    dry_run: bool,
    /// Do it without asking
    #[arg(long, conflicts_with = "dry_run")]
    yes: bool,
    #[command(flatten)]
    machine: MachineArgs,
}

impl Which {
    fn addresses(&self) -> Result<Vec<PciAddress>, Failure> {
        let mut addresses: Vec<PciAddress> = Vec::new();
        for text in &self.addresses {
            let address = address_of(text)?;
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        Ok(addresses)
    }
}

/// The PCI address of a whole controller.
fn address_of(text: &str) -> Result<PciAddress, Failure> {
    let what = match text.parse() {
        Ok(DriveAddress::Pci { address, .. }) if !text.contains('/') => return Ok(address),
        Ok(DriveAddress::Pci { address, .. }) => {
            let what = format!("{text} is one namespace: a controller goes with all of them");
            return Err(Failure::usage(text, what).remedy(format!("give {address}")));
        }
        Ok(_) => "is no drive of this machine's: those alone are bound",
        Err(_) => "is not a PCI address",
    };
    let remedy = "give a PCI address such as 0000:41:00.0; `warprow devices` lists the drives";
    Err(Failure::usage(text, format!("{text:?} {what}")).remedy(remedy))
}

type Planner = fn(&Machine, PciAddress, &[PciAddress]) -> Result<BindSteps, BindError>;

pub(crate) fn bind(args: &BindArgs, context: &Context) -> Result<CommandOutput, Failure> {
    run(&args.which, context, |machine, address, also| machine.bind_steps(address, also))
}

pub(crate) fn unbind(args: &UnbindArgs, context: &Context) -> Result<CommandOutput, Failure> {
    run(&args.which, context, |machine, address, _| machine.unbind_steps(address))
}

fn run(which: &Which, context: &Context, planner: Planner) -> Result<CommandOutput, Failure> {
    let machine = which.machine.machine()?;
    let addresses = which.addresses()?;
    let plans = || {
        addresses
            .iter()
            .map(|&address| Ok(planner(&machine, address, &addresses)?))
            .collect::<Result<Vec<_>, Failure>>()
    };
    let planned = plans()?;
    if which.dry_run {
        let mut text = vec!["Nothing was changed. It would be".to_owned()];
        text.extend(planned.iter().map(rehearsed));
        return CommandOutput::new(text.join("\n"), object(&planned, true));
    }
    if !which.yes {
        for plan in planned.iter().filter(|plan| !plan.is_done()) {
            confirm(plan, context)?;
        }
    }
    // Somebody may have mounted it while the question stood.
    let planned = if which.yes { planned } else { plans()? };
    let mut did: Vec<String> = Vec::new();
    for plan in &planned {
        context.interrupt.check()?;
        let done = plan.run(&machine, &KernelFiles, PATIENCE);
        done.map_err(|error| Failure::from(error).detail("changed_before", did.clone()))?;
        if !plan.is_done() {
            did.push(plan.drive.function.address.to_string());
        }
    }
    let text: Vec<_> = planned.iter().map(told).collect();
    CommandOutput::new(text.join("\n"), object(&planned, false))
}

impl From<BindError> for Failure {
    fn from(error: BindError) -> Self {
        let class = match &error {
            BindError::NotFound { .. } => Class::Drive,
            BindError::NotNvme { .. } => Class::Input,
            _ => Class::Refused,
        };
        let subject = match &error {
            BindError::NotFound { address, .. }
            | BindError::NotNvme { address, .. }
            | BindError::InUse { address, .. }
            | BindError::NoController { address }
            | BindError::Unread { address, .. }
            | BindError::BehindVmd { address, .. }
            | BindError::NoIommu { address }
            | BindError::GroupNotViable { address, .. }
            | BindError::OtherDriver { address, .. }
            | BindError::Write { address, .. }
            | BindError::NotTaken { address, .. } => address.to_string(),
            BindError::NoDriver { driver } => (*driver).to_owned(),
        };
        let failure =
            Self::new(class, subject, printable(&error.to_string())).remedy(error.remedy(Uid::effective().is_root()));
        match &error {
            BindError::InUse { uses, .. } => {
                let uses = uses.iter().map(|device_use| json!({"device": device_use.device, "kind": device_use.kind.name(), "by": device_use.by}));
                failure.detail("uses", uses.collect::<Vec<_>>())
            }
            _ => failure,
        }
    }
}

/// What lies on the drive and nobody uses now.
fn holds(plan: &BindSteps) -> String {
    let contents: Vec<_> =
        plan.drive.contents.iter().map(|content| format!("{}: {}", content.device, content.what)).collect();
    if contents.is_empty() { String::new() } else { format!(", which holds {}", contents.join(", ")) }
}

fn name(plan: &BindSteps) -> String {
    let model = plan.drive.model.as_deref().map(|model| format!(" ({model})")).unwrap_or_default();
    printable(&format!("{}{model}", plan.drive.function.address))
}

fn rehearsed(plan: &BindSteps) -> String {
    if plan.is_done() {
        return format!("nothing for {}: {} has it already", name(plan), plan.driver);
    }
    let writes: Vec<_> = plan.writes.iter().map(|write| format!("  {write}")).collect();
    format!("for {}{}\n{}", name(plan), printable(&holds(plan)), writes.join("\n"))
}

fn told(plan: &BindSteps) -> String {
    let name = name(plan);
    let driver = plan.driver;
    let group = plan.drive.function.group.as_ref().map(|group| format!("/dev/vfio/{}", group.number));
    match (plan.is_done(), group) {
        (true, _) => format!("{name} belonged to {driver} already"),
        (false, Some(group)) if driver == "vfio-pci" => {
            format!("{name} belongs to {driver} now\nTo drive it as an ordinary user: sudo chown $USER {group}")
        }
        _ => format!("{name} belongs to {driver} now"),
    }
}

fn object(plans: &[BindSteps], dry_run: bool) -> Value {
    let one = |plan: &BindSteps| {
        json!({
            "address": plan.drive.function.address.to_string(),
            "model": plan.drive.model,
            "serial": plan.drive.serial,
            "driver_before": plan.drive.function.driver,
            "driver": plan.driver,
            "iommu_group": plan.drive.function.group.as_ref().map(|group| group.number),
            "changed": !dry_run && !plan.is_done(),
            "contents": plan.drive.contents.iter().map(|content| json!({"device": content.device, "what": content.what})).collect::<Vec<_>>(),
            "writes": plan.writes.iter().map(|write| json!({"path": write.path, "text": write.text})).collect::<Vec<_>>(),
        })
    };
    json!({"dry_run": dry_run, "drives": plans.iter().map(one).collect::<Vec<_>>()})
}

/// Asks for the serial number, or the address where the drive has told none.
fn confirm(plan: &BindSteps, context: &Context) -> Result<(), Failure> {
    let address = plan.drive.function.address.to_string();
    let refused = |what: String| Failure::new(Class::Refused, address.clone(), format!("{what}; nothing was changed"));
    if context.json || !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(refused("nobody agreed to it".to_owned()).remedy("look with --dry-run, then give --yes"));
    }
    let (what, wanted) = match &plan.drive.serial {
        Some(serial) => ("serial number", serial.as_str()),
        None => ("address", address.as_str()),
    };
    let mut stderr = io::stderr().lock();
    let question = format!(
        "{}{} goes to {}.\nType its {what}, {}, to agree: ",
        name(plan),
        printable(&holds(plan)),
        plan.driver,
        printable(wanted)
    );
    let asked = stderr.write_all(question.as_bytes()).and_then(|()| stderr.flush());
    asked.map_err(|error| Failure::io("stderr", "the question cannot be asked", &error))?;
    let typed = answer(context)?;
    match typed.trim() == wanted.trim() {
        true => Ok(()),
        false => Err(refused(format!("{:?} is not its {what}", typed.trim())).remedy("type it as it is shown")),
    }
}

/// A line from the terminal, unless somebody asks to stop.
fn answer(context: &Context) -> Result<String, Failure> {
    let failed = |error: io::Error| Failure::io("stdin", "the answer cannot be read", &error);
    let stdin = io::stdin();
    loop {
        context.interrupt.check()?;
        let mut descriptors = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        match poll(&mut descriptors, PollTimeout::from(200u16)) {
            Ok(0) | Err(Errno::EINTR) => continue,
            Ok(_) => break,
            Err(errno) => return Err(failed(errno.into())),
        }
    }
    let mut line = String::new();
    stdin.lock().read_line(&mut line).map_err(failed)?;
    Ok(line)
}
