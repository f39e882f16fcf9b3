//! The drives that a command works on.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;

use clap::Args;
use warprow_soft_controller::NewDrive;
use warprow_store::{CreateDrive, Device, DriveAddress, OpenOptions, Store, StoreAccess, StoreError};

use crate::attached;
use crate::failure::{Class, Failure};
use crate::missing;
use crate::store_failure::DRIVE_ADDRESS;

/// The drives of a store.
#[derive(Debug, Clone, Args)]
pub struct DriveArgs {
    /// A drive of the store; repeat it for each, in any order
    ///
    /// Either the PCI address of an NVMe controller that is bound to vfio-pci, with a namespace if it is not 1:
    ///   0000:41:00.0    0000:41:00.0/2
    /// or a file that serves as an emulated drive:
    ///   emulated:/data/a.drive
    /// or the socket on which another process serves a controller (`warprow serve`, SPDK), with a namespace if it is not 1:
    ///   vfio-user:/run/a.sock    vfio-user:/run/a.sock,namespace=2
    /// or, for reading only, a file of tables that stay where they are:
    ///   attached:/data/model.safetensors    attached:/data/model.safetensors,tensor=emb.*
    /// Properties follow, each once, separated by commas (of an emulated drive also as ?a=b&c=d, which a shell wants quoted):
    ///   size=64G         creates the file, sparse; only under `format`, `serve` and `add-drive`
    ///   lba=512          bytes of an LBA, 512 or 4096: of a new drive, or of one that lost PATH.nvme.toml
    ///   profile=p5800x   serve it with the delays of that drive
    ///   direct=1         bypass the page cache, and leave it to others; also of attached:
    ///   depth=256        reads of the file under way, at most; also of attached:
    ///   gpu=0            that GPU answers reads, from a copy in its memory; with iops=10e6, latency=20us for its speed
    ///   linger=2ms       with gpu=: how long it looks for commands behind the latest; 20us otherwise
    ///   sharers=4        one part in four of profile= or iops=, where four processes read it at once
    /// Several drives may also stand in one argument, separated by commas.
    #[arg(short, long = "drive", value_name = "DRIVE", env = "WARPROW_DRIVES", required = true, verbatim_doc_comment)]
    pub drives: Vec<String>,
}

impl DriveArgs {
    /// One address each.
    pub fn addresses(&self) -> Vec<String> {
        self.drives.iter().flat_map(|argument| split(argument)).collect()
    }

    /// The addresses, understood.
    pub fn parse(&self) -> Result<Vec<DriveAddress>, Failure> {
        let addresses = self.addresses();
        let parsed = addresses
            .iter()
            .map(|address| Ok(address.parse::<DriveAddress>()?))
            .collect::<Result<Vec<_>, Failure>>()?;
        if let Some(attached) = parsed.iter().find(|address| matches!(address, DriveAddress::Attached(_))) {
            let what = "attached tables are read where they are, and never written";
            return Err(
                Failure::usage(attached.to_string(), what).remedy("give a drive of a store, or one for a store")
            );
        }
        addresses.iter().zip(&parsed).try_for_each(|(address, parsed)| refuse_fleeting(address, parsed))?;
        refuse_twice(&addresses, &parsed)?;
        Ok(parsed)
    }

    /// The options that name these drives again, ready to be pasted.
    pub fn pasteable(&self) -> String {
        self.addresses().iter().map(|drive| format!("-d {}", shell(drive))).collect::<Vec<_>>().join(" ")
    }

    /// The drives as arguments, emulated ones by their path alone, as they are named once they exist.
    pub fn pasteable_without_properties(&self) -> String {
        let name = |address: &String| match address.parse() {
            Ok(DriveAddress::Emulated(uri)) => format!("-d {}", shell(&format!("emulated:{}", uri.path.display()))),
            _ => format!("-d {}", shell(address)),
        };
        self.addresses().iter().map(name).collect::<Vec<_>>().join(" ")
    }
}

/// A drive that is in no file is gone when the command ends, and blank when the next one begins.
pub(crate) fn refuse_fleeting(address: &str, parsed: &DriveAddress) -> Result<(), Failure> {
    match parsed {
        DriveAddress::Emulated(uri) if uri.backing != warprow_soft_controller::BackingKind::File => {
            let what = format!("{address} is in no file: it goes when this command ends, with everything on it");
            Err(Failure::usage(address, what).remedy("leave backing= out"))
        }
        _ => Ok(()),
    }
}

/// One file under several names, links among them, is one drive. The drive's lock would take it for another process's.
fn refuse_twice(addresses: &[String], parsed: &[DriveAddress]) -> Result<(), Failure> {
    let mut seen: HashMap<(u64, u64), &str> = HashMap::new();
    for (address, parsed) in addresses.iter().zip(parsed) {
        let DriveAddress::Emulated(uri) = parsed else { continue };
        let Ok(file) = std::fs::metadata(&uri.path) else { continue };
        if let Some(other) = seen.insert((file.dev(), file.ino()), address) {
            let what = format!("{address} and {other} are the same drive");
            return Err(Failure::usage(address, what).remedy("give each drive once"));
        }
    }
    Ok(())
}

/// Emulated drives that this run has made and nobody else wants yet. They go again unless they are kept, and stay locked until then. It is
/// dropped after every device and store that uses them.
#[derive(Debug, Default)]
pub struct NewFiles(Vec<NewDrive>);

impl NewFiles {
    /// Takes charge of one that an opening has made.
    pub fn add(&mut self, new: NewDrive) {
        self.0.push(new);
    }

    /// Opens the drive at `address` beside those in `devices`. It is made where it is not there and the address gives a size; whether
    /// it is there shows once it is locked.
    pub fn open(&mut self, devices: &[Device], address: &DriveAddress) -> Result<Device, StoreError> {
        let create = match address {
            DriveAddress::Emulated(uri) if uri.size.is_some() => CreateDrive::IfMissing,
            _ => CreateDrive::Never,
        };
        let device = Device::open_beside(devices, address, create)?;
        self.0.extend(device.new_drive().cloned());
        Ok(device)
    }

    /// Keeps the drives that were made.
    pub fn keep(&mut self) {
        self.0.clear();
    }
}

impl Drop for NewFiles {
    fn drop(&mut self) {
        self.0.iter().for_each(NewDrive::unmake);
    }
}

/// The drives, which must exist, for a store with that access.
pub fn devices(args: &DriveArgs, access: StoreAccess) -> Result<Vec<Device>, Failure> {
    if let Some(device) = attached::device(&args.addresses())? {
        return Ok(vec![device]);
    }
    let mut devices = Vec::new();
    for address in args.parse()? {
        devices.push(Device::open_beside(&devices, &address.for_access(access), CreateDrive::Never)?);
    }
    Ok(devices)
}

/// A drive that cannot be opened: its address, and why.
type Unopened = (String, String);

/// The drives that can be opened, for reading alone, and the others. An error if none can, or if an address itself is wrong.
pub fn devices_that_answer(args: &DriveArgs) -> Result<(Vec<Device>, Vec<Unopened>), Failure> {
    let mut devices = Vec::new();
    let mut failed = Vec::new();
    if let Some(device) = attached::device(&args.addresses())? {
        return Ok((vec![device], failed));
    }
    let mut first = None;
    for address in args.parse()? {
        let address = address.for_reading();
        match Device::open_beside(&devices, &address, CreateDrive::Never) {
            Ok(device) => devices.push(device),
            Err(error @ (StoreError::Vfio(_) | StoreError::VfioUser(_) | StoreError::Function(_))) => {
                failed.push((address.to_string(), error.to_string()));
                first.get_or_insert(error);
            }
            Err(error) => return Err(error.into()),
        }
    }
    match first {
        Some(error) if devices.is_empty() => Err(error.into()),
        _ => Ok((devices, failed)),
    }
}

/// The store on the drives.
pub fn open(args: &DriveArgs, options: &OpenOptions) -> Result<Store, Failure> {
    if options.access == StoreAccess::ReadWrite && args.addresses().iter().any(|address| attached::is(address)) {
        let what = "attached tables are read where they are, and never written";
        return Err(Failure::new(Class::Refused, args.addresses().join(","), what).remedy("give a drive of a store"));
    }
    let addresses = || args.parse().unwrap_or_default();
    Store::open(&devices(args, options.access)?, options).map_err(|error| missing::explained(error, &addresses()))
}

/// Attached files have no metadata of ours, and no checksums.
pub fn refuse_attached(args: &DriveArgs) -> Result<(), Failure> {
    match args.addresses().into_iter().find(|address| attached::is(address)) {
        Some(address) => {
            let what = "attached tables have no superblocks, catalogue or checksums: there is nothing to check or mend";
            Err(Failure::usage(address, what).remedy("give drives of a store"))
        }
        None => Ok(()),
    }
}

/// The store has no table of that name.
pub fn no_such_table(store: &Store, table: &str) -> Failure {
    let known = store.tables().into_iter().map(|table| table.name).collect();
    StoreError::NoSuchTable { table: table.to_owned(), known }.into()
}

/// The drives that arguments name, each of which must name one at least.
pub(crate) fn named(arguments: &[String]) -> Result<Vec<String>, Failure> {
    let mut drives = Vec::new();
    for argument in arguments {
        let names = split(argument);
        if names.is_empty() {
            return Err(Failure::usage(argument, format!("{argument:?} names no drive")).remedy(DRIVE_ADDRESS));
        }
        drives.extend(names);
    }
    Ok(drives)
}

/// Drives separated by commas. Commas also separate the properties of an emulated drive: those belong to the drive before.
pub(crate) fn split(argument: &str) -> Vec<String> {
    let mut drives: Vec<String> = Vec::new();
    for part in argument.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        match drives.last_mut() {
            Some(drive) if has_path(drive) && !begins_drive(part) => {
                drive.push(',');
                drive.push_str(part);
            }
            _ => drives.push(part.to_owned()),
        }
    }
    drives
}

/// Whether a drive's address begins here, rather than a property `name=value` of the last one or the rest of its path.
fn begins_drive(part: &str) -> bool {
    let is_pci = part.bytes().all(|byte| byte.is_ascii_hexdigit() || b":./".contains(&byte)) && part.contains(':');
    has_path(part) || is_pci
}

fn has_path(drive: &str) -> bool {
    drive.starts_with("emulated:") || drive.starts_with("vfio-user:") || attached::is(drive)
}

/// `text` as a shell takes it for one word.
pub fn shell(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:,=+@%^".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn commas_separate_drives_and_properties() {
        for (argument, drives) in [
            ("emulated:/a", &["emulated:/a"][..]),
            ("emulated:/a,size=64G,lba=512", &["emulated:/a,size=64G,lba=512"]),
            ("emulated:/a,size=1G,emulated:b,0000:41:00.0", &["emulated:/a,size=1G", "emulated:b", "0000:41:00.0"]),
            ("0000:41:00.0/2, 0000:42:00.0", &["0000:41:00.0/2", "0000:42:00.0"]),
            ("emulated:/odd,name", &["emulated:/odd,name"]),
            ("vfio-user:a,vfio-user:b,c?namespace=2,41:00.0", &["vfio-user:a", "vfio-user:b,c?namespace=2", "41:00.0"]),
            ("/dev/nvme0n1,/dev/nvme1n1", &["/dev/nvme0n1", "/dev/nvme1n1"]),
            ("", &[]),
        ] {
            assert_eq!(split(argument), drives, "{argument}");
        }
    }

    #[test]
    fn a_drive_must_outlive_the_command() {
        let parse = |drive: &str| DriveArgs { drives: vec![drive.to_owned()] }.parse();
        for backing in ["ram", "procedural", "null"] {
            let failure = parse(&format!("emulated:x,size=64M,backing={backing}")).unwrap_err();
            assert!(
                failure.class == crate::failure::Class::Usage && failure.message.contains("in no file"),
                "{failure}"
            );
        }
        assert!(parse("emulated:x,size=64M,backing=file").is_ok());
    }

    #[test]
    fn a_file_is_one_drive_under_all_its_names() {
        let dir = tempfile::tempdir().unwrap();
        let [file, link, other] = ["a.drive", "link", "b.drive"].map(|name| dir.path().join(name));
        std::fs::write(&file, "").unwrap();
        std::fs::write(&other, "").unwrap();
        std::fs::hard_link(&file, &link).unwrap();
        let parse = |paths: &[&PathBuf]| {
            DriveArgs { drives: paths.iter().map(|path| format!("emulated:{}", path.display())).collect() }.parse()
        };
        assert_eq!(parse(&[&file, &other]).unwrap().len(), 2);
        let failure = parse(&[&file, &other, &link]).unwrap_err();
        assert!(failure.message.ends_with("are the same drive"), "{failure}");
    }

    #[test]
    fn a_shell_takes_it_for_one_word() {
        for text in ["plain", "emulated:/a?size=1G&lba=512", "it's", "two words", "", "a*"] {
            let output =
                std::process::Command::new("sh").arg("-c").arg(format!("printf %s {}", shell(text))).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), text);
        }
    }
}
