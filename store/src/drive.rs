//! Drives by their address.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::str::FromStr;

use warprow_layout::StoreAccess;
use warprow_soft_controller::{BackingKind, DriveUri, UriError};
use warprow_vfio::{PciAddress, VfioFunction};
use warprow_vfio_user::VfioUserFunction;

use crate::device::Device;
use crate::property::Known;
use crate::{AttachedFile, StoreError};

/// What a controller behind a socket may have in its address.
const SOCKET: Known = Known { kind: "a controller behind a socket", names: &["namespace"] };

/// A drive as people write it: `0000:41:00.0`, `0000:41:00.0/2` for its second namespace,
/// `emulated:PATH?size=64G&lba=512` for a drive in a file, `vfio-user:PATH` for one that another process serves on a socket
/// (`vfio-user:PATH,namespace=2`, or with a question mark, for its second namespace), or `attached:PATH,tensor=GLOB` for a file of tables that stay where they
/// are ([`AttachedFile`]).
///
/// ```
/// # use warprow_lookup::*;
/// # use warprow_lookup::*;
/// # use warprow_store::*;
/// let address: DriveAddress = "0000:41:00.0/2".parse()?;
/// assert!(matches!(address, DriveAddress::Pci { namespace: 2, .. }));
/// let address: DriveAddress = "emulated:example?backing=ram&size=64M".parse()?;
/// let device = Device::open(&address, CreateDrive::IfMissing)?;
/// assert!(device.is_emulated());
/// assert!("/dev/nvme0n1".parse::<DriveAddress>().is_err());
/// # Ok::<(), StoreError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DriveAddress {
    /// An NVMe controller that is bound to `vfio-pci`.
    Pci {
        /// The controller's PCI address.
        address: PciAddress,
        /// The namespace, counted from 1.
        namespace: u32,
    },
    /// A drive that the software controller emulates.
    Emulated(DriveUri),
    /// An NVMe controller that another process serves.
    VfioUser {
        /// The socket on which the controller is served.
        path: PathBuf,
        /// The namespace, counted from 1.
        namespace: u32,
    },
    /// A file of tables, to be read where they are.
    Attached(AttachedFile),
}

impl FromStr for DriveAddress {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        if text.starts_with("emulated:") {
            return Ok(Self::Emulated(text.parse()?));
        }
        if AttachedFile::is_address(text) {
            return Ok(Self::Attached(text.parse()?));
        }
        let refuse = |reason: String| StoreError::Address { address: text.to_owned(), reason };
        let number = |namespace: &str| match namespace.parse() {
            Ok(namespace @ 1..) => Ok(namespace),
            _ => Err(refuse(format!("namespace {namespace:?} is no number from 1 on"))),
        };
        if let Some(path) = text.strip_prefix("vfio-user:") {
            let mut path = path;
            let mut given = None;
            let separators = ["?namespace=", ",namespace=", "&namespace="];
            while let Some((at, name)) = separators.iter().filter_map(|name| Some((path.rfind(name)?, *name))).max() {
                let (before, value) = path.split_at(at);
                path = before;
                if given.replace(value.strip_prefix(name).unwrap_or_default()).is_some() {
                    return Err(Known::twice(text, "namespace"));
                }
            }
            if path.is_empty() {
                return Err(refuse("it names no socket's path".into()));
            }
            return Ok(Self::VfioUser { path: path.into(), namespace: number(given.unwrap_or("1"))? });
        }
        let (address, namespace) = text.split_once('/').unwrap_or((text, "1"));
        let neither = "it is neither a PCI address nor begins with emulated:, vfio-user: or attached:";
        let address = address.parse().map_err(|_| refuse(neither.into()))?;
        Ok(Self::Pci { address, namespace: number(namespace)? })
    }
}

impl fmt::Display for DriveAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pci { address, namespace: 1 } => write!(f, "{address}"),
            Self::Pci { address, namespace } => write!(f, "{address}/{namespace}"),
            Self::Emulated(uri) => write!(f, "{uri}"),
            Self::Attached(file) => write!(f, "{file}"),
            Self::VfioUser { path, namespace: 1 } => write!(f, "vfio-user:{}", path.display()),
            Self::VfioUser { path, namespace } => write!(f, "vfio-user:{}?namespace={namespace}", path.display()),
        }
    }
}

impl DriveAddress {
    /// The drive, to be opened for reading alone where that lets others read it at the same time: an emulated drive that is in a file
    /// is then open in any number of processes ([`DriveUri::for_reading`]). A file of tables always is; a real drive, and a controller
    /// behind a socket, have one owner, whatever they are opened for.
    ///
    /// ```
    /// # use warprow_store::*;
    /// # let folder = tempfile::tempdir()?;
    /// # let image = folder.path().join("a.drive");
    /// let address: DriveAddress = format!("emulated:{}?size=64M", image.display()).parse()?;
    /// drop(Store::create(&[Device::open(&address, CreateDrive::IfMissing)?], &Default::default(), &OpenOptions::default())?);
    /// let reading = address.clone().for_reading();
    /// let first = Store::open(&[Device::open(&reading, CreateDrive::Never)?], &OpenOptions::default().with_read_only())?;
    /// let second = Store::open(&[Device::open(&reading, CreateDrive::Never)?], &OpenOptions::default().with_read_only())?;
    /// assert!(Device::open(&address, CreateDrive::Never).is_err(), "whoever writes needs it alone");
    /// # drop((first, second));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn for_reading(self) -> Self {
        match self {
            Self::Emulated(uri) => Self::Emulated(uri.for_reading()),
            other => other,
        }
    }

    /// The drive, as a store with that access needs it: [for reading](Self::for_reading) unless it is to be written to.
    #[must_use]
    pub fn for_access(self, access: StoreAccess) -> Self {
        if access == StoreAccess::ReadWrite { self } else { self.for_reading() }
    }
}

/// What becomes of an emulated drive whose file is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CreateDrive {
    /// A file that is not there is an error, whatever size the address gives; and so is an empty file.
    #[default]
    Never,
    /// The file is made, sparse, with the size that the address gives; likewise of an empty one.
    IfMissing,
}

impl Device {
    /// As [`open`](Self::open), beside drives that are open already: another namespace of one's controller shares it, since a
    /// function cannot be opened twice.
    pub fn open_beside(opened: &[Self], address: &DriveAddress, create: CreateDrive) -> Result<Self, StoreError> {
        let shareable = match address {
            DriveAddress::Pci { address, namespace } => Some((address.to_string(), namespace)),
            DriveAddress::VfioUser { path, namespace } => Some((format!("vfio-user:{}", path.display()), namespace)),
            DriveAddress::Emulated(_) | DriveAddress::Attached(_) => None,
        };
        if let Some((name, namespace)) = shareable
            && let Some(same) = opened.iter().find(|device| device.function().name() == name)
        {
            return Ok(same.with_namespace(*namespace));
        }
        if let DriveAddress::Emulated(uri) = address {
            // Under another name, perhaps: a link. Of drives that are read alone, no lock would tell.
            let same = |device: &Self| device.as_emulated().is_some_and(|emulated| is_same(&emulated.uri, uri));
            if opened.iter().any(same) {
                return Err(StoreError::OpenedTwice { drive: uri.to_string() });
            }
        }
        Self::open(address, create)
    }

    /// Opens the drive at `address`, for this process alone. Who else reads it may have it too if it is a file of tables, or an
    /// emulated drive [for reading](DriveAddress::for_reading).
    pub fn open(address: &DriveAddress, create: CreateDrive) -> Result<Self, StoreError> {
        match address {
            DriveAddress::Pci { address, namespace } => {
                Ok(Self::new(VfioFunction::open(&address.to_string())?, *namespace))
            }
            DriveAddress::VfioUser { path, namespace } => {
                let mistaken = || SOCKET.mistaken(&address.to_string(), path).filter(|_| !path.exists());
                match VfioUserFunction::open(path) {
                    Ok(function) => Ok(Self::new(function, *namespace)),
                    Err(error) => Err(mistaken().unwrap_or_else(|| error.into())),
                }
            }
            DriveAddress::Attached(file) => file.open(),
            DriveAddress::Emulated(uri) => {
                let is_file = uri.backing == BackingKind::File;
                if create == CreateDrive::Never && is_file && !uri.path.exists() {
                    return Err(UriError::NotThere { path: uri.path.clone() }.into());
                }
                let is_empty = |path| std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() == 0);
                let empty = || {
                    let reason = "it is empty: format it with size= to make a drive of it".to_owned();
                    Err(UriError::Size { path: uri.path.clone(), actual: 0, reason }.into())
                };
                if create == CreateDrive::Never && is_file && is_empty(&uri.path) {
                    return empty();
                }
                let device = Self::emulated(uri)?;
                // The file was emptied, or went, between the look at it and its lock.
                if create == CreateDrive::Never
                    && let Some(new) = device.new_drive().cloned()
                {
                    drop(device);
                    new.unmake();
                    return empty();
                }
                Ok(device)
            }
        }
    }
}

/// Whether two drives are one file.
fn is_same(one: &DriveUri, other: &DriveUri) -> bool {
    let identity = |drive: &DriveUri| {
        let file = std::fs::metadata(&drive.path).ok()?;
        (drive.backing == BackingKind::File).then_some((file.dev(), file.ino()))
    };
    matches!((identity(one), identity(other)), (Some(one), Some(other)) if one == other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_print_as_they_are_written() {
        for text in [
            "0000:41:00.0",
            "0001:41:1f.7/3",
            "emulated:/tmp/a b,c?size=64G&lba=512",
            "emulated:x,size=4K",
            "vfio-user:/run/a b.sock",
            "vfio-user:x?namespace=3",
            "attached:/data/a b,c.safetensors",
            "attached:m,tensor=emb.*,tensor=user=u?",
        ] {
            assert_eq!(text.parse::<DriveAddress>().unwrap().to_string(), text);
        }
        assert_eq!("41:00.0/1".parse::<DriveAddress>().unwrap().to_string(), "0000:41:00.0");
        let address: DriveAddress = "vfio-user:a,b,namespace=2".parse().unwrap();
        assert_eq!(address.to_string(), "vfio-user:a,b?namespace=2");
    }

    #[test]
    fn namespaces_of_one_function_share_it() {
        let function = warprow_soft_controller::SoftController::builder().name("0000:41:00.0").build().unwrap();
        let opened = [Device::new(function, 1)];
        let second = Device::open_beside(&opened, &"41:00.0/2".parse().unwrap(), CreateDrive::Never).unwrap();
        assert!(std::sync::Arc::ptr_eq(second.function(), opened[0].function()));
        assert_eq!((second.namespace(), second.name()), (2, "0000:41:00.0/2".to_owned()));
        // Another function is opened for itself, and there is none.
        Device::open_beside(&opened, &"ffff:42:00.0".parse().unwrap(), CreateDrive::Never).unwrap_err();
    }

    #[test]
    fn mistakes_are_named() {
        for (text, hint) in [
            ("", "neither"),
            ("/dev/nvme0n1", "neither"),
            ("0000:41:00.0/0", "namespace"),
            ("0000:41:00.0/x", "namespace"),
            ("0000:41:00.9", "neither"),
            ("emulated:", "path"),
            ("vfio-user:", "path"),
            ("attached:", "names no file"),
            ("attached:,tensor=x", "names no file"),
            ("vfio-user:x?namespace=0", "namespace"),
            ("vfio-user:x?namespace=1?namespace=2", "twice"),
            ("vfio-user:x?namespace=1&namespace=1", "twice"),
            ("vfio-user:x,namespace=1,namespace=2", "twice"),
            ("vfio-user:,namespace=2", "path"),
            ("emulated:/a,size=1G,size=1G", "twice"),
            ("attached:x,depth=1,depth=2", "depth is given twice"),
            ("attached:x,direct=1,tensor=a,direct=1", "direct is given twice"),
            ("attached:x,depth=4,lba=512", "no property \"lba\"; it has tensor, direct, depth"),
            ("emulated:/a?sise=1", "sise"),
        ] {
            let error = text.parse::<DriveAddress>().unwrap_err().to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }
}
