use std::io;
use std::path::{Path, PathBuf};

use crate::Machine;
use crate::files::{entries, hex, listing, number, text};

/// A namespace that Linux's own driver shows as a block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockNamespace {
    /// The block device's name: `nvme0n1`.
    pub name: String,
    /// Namespace identifier.
    pub nsid: Option<u32>,
    /// Bytes of the namespace.
    pub bytes: Option<u64>,
    /// Data bytes of a logical block.
    pub lba_bytes: Option<u32>,
    /// Metadata bytes of a logical block, where the kernel says (from 6.8 on).
    pub metadata_bytes: Option<u32>,
    /// The names of the namespace's partitions.
    pub partitions: Vec<String>,
    /// Whether the kernel believes that the namespace has a volatile write cache that is on.
    pub write_back: Option<bool>,
}

impl BlockNamespace {
    /// The namespaces of a controller, by its folder in sysfs (`…/nvme/nvme0`).
    pub(crate) fn of(machine: &Machine, controller: &Path) -> io::Result<Vec<Self>> {
        let heads = listing(controller)?.into_iter().filter_map(|(_, name)| namespace_head(&name));
        Ok(heads.map(|name| Self::read(machine, name)).collect())
    }

    fn read(machine: &Machine, name: String) -> Self {
        let folder = machine.path(&format!("/sys/class/block/{name}"));
        let sectors: Option<u64> = number(&folder.join("size"));
        Self {
            partitions: entries(&folder)
                .into_iter()
                .filter(|(path, _)| path.join("partition").exists())
                .map(|(_, name)| name)
                .collect(),
            nsid: number(&folder.join("nsid")),
            // In sectors of 512 bytes, whatever its blocks are.
            bytes: sectors.and_then(|sectors| sectors.checked_mul(512)),
            lba_bytes: number(&folder.join("queue/logical_block_size")),
            metadata_bytes: number(&folder.join("metadata_bytes")),
            write_back: text(&folder.join("queue/write_cache")).map(|cache| cache == "write back"),
            name,
        }
    }
}

/// The block device of a namespace's path: `nvme0n1` of `nvme0c1n1` and of itself; `None` for what is no namespace.
/// With multipathing the block device is not the path's but the subsystem's.
fn namespace_head(name: &str) -> Option<String> {
    let (controller, namespace) = name.strip_prefix("nvme")?.split_once('n')?;
    let subsystem = controller.split_once('c').map_or(controller, |(subsystem, _)| subsystem);
    let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    (number(subsystem) && number(namespace)).then(|| format!("nvme{subsystem}n{namespace}"))
}

/// The temperature that the kernel's driver measures, in degrees Celsius.
pub(crate) fn temperature(controller: &Path) -> Option<i64> {
    let below = entries(controller).into_iter().chain(entries(&controller.join("device/hwmon")));
    let sensors = below.filter(|(_, name)| name.starts_with("hwmon"));
    let milli: i64 = sensors.filter_map(|(path, _)| number(&path.join("temp1_input"))).next()?;
    Some(milli.div_euclid(1000))
}

/// Host memory that the kernel's driver has lent the drive: `Some(false)` where it asks for some and has none.
pub(crate) fn host_memory(controller: &Path) -> Option<bool> {
    hex(&controller.join("hmb")).map(|on| on != 0)
}

/// The file under `/dev/vfio` of a function in a VFIO cdev world.
pub(crate) fn vfio_cdev(folder: &Path) -> Option<String> {
    let found = entries(&folder.join("vfio-dev"));
    found.into_iter().map(|(_, name)| name).find(|name| name.starts_with("vfio"))
}

/// The controller's folder in sysfs, `…/nvme/nvme0`.
pub(crate) fn controller(folder: &Path) -> Option<PathBuf> {
    let mut controllers = entries(&folder.join("nvme")).into_iter().filter(|(_, name)| name.starts_with("nvme"));
    controllers.next().map(|(path, _)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_names() {
        assert_eq!(namespace_head("nvme0n1").as_deref(), Some("nvme0n1"));
        assert_eq!(namespace_head("nvme10c2n13").as_deref(), Some("nvme10n13"));
        for other in ["nvme0", "power", "ng0n1", "nvmen1", "nvme0n1p1", "hwmon1", "nvme0cn1x"] {
            assert_eq!(namespace_head(other), None, "{other}");
        }
    }
}
