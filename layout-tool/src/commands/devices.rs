//! `warprow devices`.

use std::sync::Arc;

use clap::Args;
use serde_json::{Value, json};
use warprow_dma::Function;
use warprow_host::{HostDrive, Machine, PciAddress};
use warprow_store::{CreateDrive, Device, DriveAddress};
use warprow_vfio::VfioFunction;
use warprow_workload::units;

use super::{CommandOutput, Context, MachineArgs};
use crate::failure::{Failure, chain};
use crate::probe::{Health, Note, Probe, probe};
use crate::report::{printable, table};

/// List NVMe drives: what they are, who uses them, how they fare, how far they are from each GPU
///
/// Of drives that Linux's own driver has, what sysfs tells. Drives that are bound to vfio-pci and free are asked by
/// Warprow's driver, which resets them and changes nothing on them: then LBA formats, wear and media errors are known too.
/// What cannot be known is shown as -, and is null in JSON.
///
/// Given addresses, only those: PCI addresses, emulated drives (emulated:PATH), or drives that another process serves
/// (vfio-user:SOCKET).
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow devices
  sudo warprow devices --json
  warprow devices 0000:41:00.0 emulated:a.drive
  warprow devices --json | jq -r '.devices[] | select(.free) | .address'")]
pub struct DevicesArgs {
    /// The drives to show [default: all NVMe controllers]
    #[arg(value_name = "DRIVE")]
    drives: Vec<String>,
    /// Ask no drive anything; only read sysfs
    #[arg(long)]
    no_probe: bool,
    #[command(flatten)]
    machine: MachineArgs,
}

/// A drive, by what the system and the drive itself say.
struct Shown {
    address: String,
    drive: Option<HostDrive>,
    probe: Option<Probe>,
    /// Why the drive was not asked.
    unasked: Option<String>,
    notes: Vec<Note>,
}

pub(crate) fn run(args: &DevicesArgs, context: &Context) -> Result<CommandOutput, Failure> {
    let machine = args.machine.machine()?;
    let mut shown = Vec::new();
    if args.drives.is_empty() {
        for drive in machine.drives() {
            context.interrupt.check()?;
            shown.push(of_drive(&machine, drive, args.no_probe));
        }
    }
    for text in crate::drives::named(&args.drives)? {
        context.interrupt.check()?;
        shown.push(match text.parse()? {
            DriveAddress::Pci { address, .. } => {
                let found = machine.drive(address).ok_or_else(|| absent(&machine, address))?;
                of_drive(&machine, found, args.no_probe)
            }
            address @ (DriveAddress::Emulated(_) | DriveAddress::VfioUser { .. }) => software(&address)?,
            DriveAddress::Attached(_) => {
                let what = format!("{text} is a file of tables, and no device");
                return Err(Failure::usage(text, what).remedy("look at it with `warprow inspect -d`"));
            }
        });
    }
    let mut text = match shown.is_empty() {
        true => "No NVMe controller is to be seen. Emulated drives need none: warprow devices emulated:PATH".to_owned(),
        false => overview(&shown),
    };
    for one in &shown {
        text += &format!("\n\n{}", details(one));
    }
    CommandOutput::new(text, json!({"devices": shown.iter().map(object).collect::<Vec<_>>()}))
}

fn absent(machine: &Machine, address: PciAddress) -> Failure {
    match machine.bind_steps(address, &[]) {
        Err(error) => error.into(),
        // It came between two looks.
        Ok(_) => Failure::input(address.to_string(), "it appeared just now").remedy("try again"),
    }
}

fn software(address: &DriveAddress) -> Result<Shown, Failure> {
    let device = Device::open(&address.clone().for_reading(), CreateDrive::Never)?;
    let probed = probe(device.function().clone()).map_err(warprow_store::StoreError::from)?;
    Ok(Shown {
        address: address.to_string(),
        drive: None,
        notes: probed.notes.clone(),
        probe: Some(probed),
        unasked: None,
    })
}

fn of_drive(machine: &Machine, drive: HostDrive, no_probe: bool) -> Shown {
    let (probe, unasked) = match asked(machine, &drive, no_probe) {
        Ok(probe) => (Some(probe), None),
        Err(why) => (None, Some(why)),
    };
    let mut notes = probe.as_ref().map(|probe| probe.notes.clone()).unwrap_or_default();
    notes.extend(system_notes(&drive));
    Shown { address: drive.function.address.to_string(), drive: Some(drive), probe, unasked, notes }
}

/// What the drive says, or why it was not asked.
fn asked(machine: &Machine, drive: &HostDrive, no_probe: bool) -> Result<Probe, String> {
    match drive.function.driver.as_deref() {
        Some("vfio-pci") => {}
        Some("nvme") => return Err("Linux's own driver has it; only what sysfs tells is known".to_owned()),
        Some(other) => return Err(format!("the driver {other} has it")),
        None => return Err("no driver has it".to_owned()),
    }
    if no_probe {
        return Err("--no-probe was given".to_owned());
    }
    if !machine.is_this() {
        return Err("this is a copy of its machine".to_owned());
    }
    if !drive.uses.is_empty() {
        let by = drive.uses.iter().map(|device_use| device_use.by.clone()).collect::<Vec<_>>().join(", ");
        return Err(format!("it is open in {by}"));
    }
    let function: Arc<dyn Function> =
        VfioFunction::open(&drive.function.address.to_string()).map_err(|error| chain(&error))?;
    probe(function).map_err(|error| chain(&error))
}

/// What sysfs shows that wants attention.
fn system_notes(drive: &HostDrive) -> Vec<Note> {
    let mut notes = Vec::new();
    if let Some(vmd) = drive.vmd {
        let remedy = "turn VMD (RST, RAID mode) off for this slot in the firmware";
        notes.push(Note::new("vmd", format!("it is behind the Intel VMD {vmd}, and VFIO cannot have it"), remedy));
    }
    if let Some(group) = &drive.function.group {
        let others: Vec<_> =
            group.others.iter().filter(|member| member.stands_in_the_way()).map(|member| member.name.clone()).collect();
        if !others.is_empty() {
            let found = format!("its IOMMU group {} also holds {}", group.number, others.join(", "));
            notes.push(Note::new("iommu-group", found, "move it to a slot behind another root port, or unbind those"));
        }
    }
    if drive.host_memory == Some(false) {
        notes.push(Note::new("host-memory", "it asks for host memory, and the kernel lends it none", ""));
    }
    for namespace in &drive.namespaces {
        if let Some(bytes) = namespace.metadata_bytes.filter(|bytes| *bytes > 0) {
            let found = format!("{} has {bytes} B of metadata in each block: refused", namespace.name);
            notes.push(Note::new("metadata", found, "warprow format with --lba 512 or 4096, once it is bound"));
        }
        if namespace.write_back == Some(true) {
            notes.push(Note::new(
                "write-cache",
                format!("{} has a volatile write cache, which is on", namespace.name),
                "",
            ));
        }
    }
    notes
}

impl Shown {
    fn model(&self) -> Option<&str> {
        let probed = self.probe.as_ref().map(|probe| probe.model.as_str());
        probed.or_else(|| self.drive.as_ref()?.model.as_deref())
    }

    fn serial(&self) -> Option<&str> {
        let probed = self.probe.as_ref().map(|probe| probe.serial.as_str());
        probed.or_else(|| self.drive.as_ref()?.serial.as_deref())
    }

    fn firmware(&self) -> Option<&str> {
        let probed = self.probe.as_ref().map(|probe| probe.firmware.as_str());
        probed.or_else(|| self.drive.as_ref()?.firmware.as_deref())
    }

    fn bytes(&self) -> Option<u64> {
        let probed = self
            .probe
            .as_ref()
            .map(|probe| probe.namespaces.iter().map(|namespace| namespace.bytes).fold(0, u64::saturating_add));
        probed.or_else(|| self.drive.as_ref()?.bytes())
    }

    fn health(&self) -> Option<&Health> {
        self.probe.as_ref()?.health.as_ref()
    }

    fn temperature(&self) -> Option<i64> {
        self.health().and_then(|health| health.temperature).or_else(|| self.drive.as_ref()?.temperature)
    }

    /// LBA sizes in use.
    fn lba(&self) -> String {
        let probed = self.probe.iter().flat_map(|probe| probe.namespaces.iter().map(|namespace| namespace.lba.0));
        let read = self
            .drive
            .iter()
            .flat_map(|drive| &drive.namespaces)
            .filter_map(|namespace| namespace.lba_bytes.map(u64::from));
        let mut sizes: Vec<_> = probed.chain(read).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
    }

    fn driver(&self) -> Option<&str> {
        self.drive.as_ref()?.function.driver.as_deref()
    }
}

fn or_dash(text: Option<impl ToString>) -> String {
    text.map(|text| text.to_string()).filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned())
}

fn overview(shown: &[Shown]) -> String {
    let row = |shown: &Shown| {
        [
            shown.address.clone(),
            or_dash(shown.model()),
            or_dash(shown.serial()),
            or_dash(shown.bytes().map(units::bytes)),
            or_dash(Some(shown.lba())),
            or_dash(shown.drive.as_ref().and_then(|drive| drive.function.numa_node)),
            match &shown.drive {
                Some(_) => or_dash(shown.driver()),
                None => "emulated".to_owned(),
            },
            or_dash(shown.temperature()),
            or_dash(shown.health().map(|health| format!("{}%", health.percentage_used))),
            or_dash(shown.health().map(|health| health.media_errors)),
        ]
    };
    let header = ["address", "model", "serial", ">size", ">LBA", ">node", "driver", ">°C", ">used", ">media errors"];
    table(header, shown.iter().map(row))
}

/// The lines below the table.
fn details(it: &Shown) -> String {
    let mut lines = Vec::new();
    let mut push = |name: &str, text: String| lines.push(format!("  {name:<13} {}", printable(&text)));
    push("firmware", or_dash(it.firmware()));
    if let Some(drive) = &it.drive {
        let group = drive.function.group.as_ref().map(|group| format!("group {}", group.number));
        push("IOMMU", group.unwrap_or_else(|| "none".to_owned()));
        for (gpu, distance) in &drive.gpus {
            push("GPU", format!("{gpu}: {distance}"));
        }
        for namespace in &drive.namespaces {
            let size = or_dash(namespace.bytes.map(units::bytes));
            let parts = match namespace.partitions.as_slice() {
                [] => String::new(),
                parts => format!(", partitions {}", parts.join(", ")),
            };
            push("namespace", format!("{}: {size}, LBAs of {} B{parts}", namespace.name, or_dash(namespace.lba_bytes)));
        }
        for it in &drive.uses {
            push("in use", it.to_string());
        }
        for content in &drive.contents {
            push("holds", format!("{}: {}", content.device, content.what));
        }
        for unread in &drive.unread {
            push("unknown", unread.clone());
        }
        if drive.is_free() {
            push("free", "nothing uses it".to_owned());
        }
    }
    for namespace in it.probe.iter().flat_map(|probe| &probe.namespaces) {
        let format = |(data, metadata): &(u64, u16)| match metadata {
            0 => data.to_string(),
            _ => format!("{data}+{metadata}"),
        };
        let offered: Vec<_> = namespace.formats.iter().map(format).collect();
        let size = units::bytes(namespace.bytes);
        push(
            "namespace",
            format!("{}: {size}, LBAs of {} B; formats {}", namespace.nsid, format(&namespace.lba), offered.join(", ")),
        );
    }
    for note in &it.notes {
        push(note.feature, note.found.clone());
        if !note.remedy.is_empty() {
            push("", format!("help: {}", note.remedy));
        }
    }
    if let Some(why) = &it.unasked {
        push("not asked", why.clone());
    }
    format!("{}\n{}", printable(&it.address), lines.join("\n"))
}

fn object(it: &Shown) -> Value {
    let drive = it.drive.as_ref();
    let group = drive.and_then(|drive| drive.function.group.as_ref()).map(|group| {
        let others = group.others.iter().map(|member| json!({"address": member.name, "driver": member.driver}));
        json!({"number": group.number, "others": others.collect::<Vec<_>>()})
    });
    let gpus = drive.iter().flat_map(|drive| &drive.gpus);
    let gpus = gpus.map(|(gpu, distance)| json!({"address": gpu.to_string(), "distance": distance.name()}));
    let format = |(data, metadata): &(u64, u16)| json!({"lba_bytes": data, "metadata_bytes": metadata});
    let namespaces: Vec<_> = match (&it.probe, drive) {
        (Some(probe), _) => probe
            .namespaces
            .iter()
            .map(|namespace| {
                json!({
                    "nsid": namespace.nsid, "name": null, "bytes": namespace.bytes,
                    "lba_bytes": namespace.lba.0, "metadata_bytes": namespace.lba.1,
                    "formats": namespace.formats.iter().map(format).collect::<Vec<_>>(),
                })
            })
            .collect(),
        (None, Some(drive)) => drive
            .namespaces
            .iter()
            .map(|namespace| {
                json!({
                    "nsid": namespace.nsid, "name": namespace.name, "bytes": namespace.bytes,
                    "lba_bytes": namespace.lba_bytes, "metadata_bytes": namespace.metadata_bytes, "formats": null,
                    "partitions": namespace.partitions,
                })
            })
            .collect(),
        (None, None) => Vec::new(),
    };
    let uses = drive.iter().flat_map(|drive| &drive.uses);
    let contents = drive.iter().flat_map(|drive| &drive.contents);
    json!({
        "address": it.address,
        "emulated": drive.is_none(),
        "model": it.model(),
        "serial": it.serial(),
        "firmware": it.firmware(),
        "version": it.probe.as_ref().map(|probe| &probe.version),
        "bytes": it.bytes(),
        "numa_node": drive.and_then(|drive| drive.function.numa_node),
        "driver": it.driver(),
        "iommu_group": group,
        "gpus": gpus.collect::<Vec<_>>(),
        "namespaces": namespaces,
        "free": drive.is_none_or(HostDrive::is_free),
        "uses": uses.map(|device_use| json!({"device": device_use.device, "kind": device_use.kind.name(), "by": device_use.by})).collect::<Vec<_>>(),
        "contents": contents.map(|content| json!({"device": content.device, "what": content.what})).collect::<Vec<_>>(),
        "unread": drive.map(|drive| drive.unread.clone()).unwrap_or_default(),
        "temperature_c": it.temperature(),
        "percentage_used": it.health().map(|health| health.percentage_used),
        "media_errors": it.health().map(|health| u64::try_from(health.media_errors).unwrap_or(u64::MAX)),
        "spare_percent": it.health().map(|health| health.spare),
        "notes": it.notes.iter().map(Note::json).collect::<Vec<_>>(),
        "not_asked": it.unasked,
    })
}
