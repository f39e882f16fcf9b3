//! What lies on a block device, by the signatures that blkid knows: from udev's record of it, and from the device where
//! this user may read it.

use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use crate::Machine;
use crate::files::{number, open, read as read_text};
use crate::usage::DeviceUseKind;

/// Something that lies on a drive.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FoundContent {
    /// The device, as `/dev/nvme0n1p1`.
    pub device: String,
    /// The kind of content, as blkid calls it: `ext4`, `linux_raid_member`, `gpt`.
    pub what: String,
    /// The use that the content stands for, where its owner may come back for it.
    pub kind: Option<DeviceUseKind>,
}

/// Partition types (UEFI 2.10, 5.3.3, and what OpenZFS writes).
const TYPES: [(&str, DeviceUseKind); 4] = [
    ("6a898cc3-1dd2-11b2-99a6-080020736631", DeviceUseKind::Zfs),
    ("516e7cba-6ecf-11d6-8ff8-00022d71712b", DeviceUseKind::Zfs),
    ("c12a7328-f81f-11d2-ba4b-00a0c93ec93b", DeviceUseKind::Efi),
    ("e6d6d379-f507-44c2-a23c-238f2a3df928", DeviceUseKind::Lvm),
];

/// Signatures: name, offset, bytes.
const MAGICS: [(&str, u64, &[u8]); 18] = [
    ("ext2/3/4", 1080, &[0x53, 0xef]),
    ("xfs", 0, b"XFSB"),
    ("btrfs", 0x10040, b"_BHRfS_M"),
    ("f2fs", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    ("ntfs", 3, b"NTFS    "),
    ("vfat", 82, b"FAT32   "),
    ("crypto_LUKS", 0, b"LUKS\xba\xbe"),
    ("swap", 4086, b"SWAPSPACE2"),
    ("LVM2_member", 512, b"LABELONE"),
    ("LVM2_member", 0, b"LABELONE"),
    ("linux_raid_member", 4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("linux_raid_member", 0, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("bcache", 4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
    ("gpt", 512, b"EFI PART"),
    ("gpt", 4096, b"EFI PART"),
    ("VMFS_volume_member", 0x10_0000, &[0x0d, 0xd0, 0x01, 0xc0]),
    // docs/layout.md: both slots at the start of a drive.
    ("warprow", 0, b"\x89WARPROW"),
    ("warprow", 4096, b"\x89WARPROW"),
];

/// Uberblocks of ZFS: from 128 KiB of each label, 1 KiB to 8 KiB each.
const ZFS_FROM: u64 = 128 << 10;
const ZFS_TO: u64 = 256 << 10;
const ZFS_MAGIC: u64 = 0x00ba_b10c;
const MD_MAGIC: [u8; 4] = [0xfc, 0x4e, 0x2b, 0xa9];

fn kind_of(what: &str) -> Option<DeviceUseKind> {
    match what {
        "LVM2_member" | "LVM1_member" => Some(DeviceUseKind::Lvm),
        "zfs_member" => Some(DeviceUseKind::Zfs),
        "bcache" => Some(DeviceUseKind::Bcache),
        "efi" => Some(DeviceUseKind::Efi),
        _ if what.ends_with("_raid_member") => Some(DeviceUseKind::Raid),
        _ => None,
    }
}

/// What lies on `/dev/{name}`, whose number is `device`. Fails where neither udev's record nor the device can be read.
pub(crate) fn read(
    machine: &Machine,
    name: &str,
    folder: &Path,
    device: Option<&str>,
) -> io::Result<Vec<FoundContent>> {
    let file = format!("/dev/{name}");
    let known = device.map(|device| read_text(&machine.path(&format!("/run/udev/data/b{device}"))));
    let sectors: u64 = number(&folder.join("size")).unwrap_or(0);
    let seen = signatures(&machine.path(&file), sectors.saturating_mul(512));
    let mut whats = Vec::new();
    let mut kinds = Vec::new();
    match (known, seen) {
        (Some(Ok(record)), seen) => {
            for (key, value) in record.lines().filter_map(|line| line.strip_prefix("E:")?.split_once('=')) {
                match key {
                    "ID_FS_TYPE" | "ID_PART_TABLE_TYPE" => whats.push(value.to_owned()),
                    "ID_PART_ENTRY_TYPE" => {
                        let known = TYPES.iter().find(|(guid, _)| value.eq_ignore_ascii_case(guid));
                        kinds.extend(known.map(|&(_, kind)| kind));
                    }
                    _ => {}
                }
            }
            whats.extend(seen.into_iter().flatten());
        }
        (_, seen) => whats = seen?,
    }
    whats.retain(|what| !what.is_empty());
    let mut contents: Vec<_> = whats
        .into_iter()
        .map(|what| FoundContent { device: file.clone(), kind: kind_of(&what), what })
        .chain(kinds.into_iter().map(|kind| {
            let what = format!("{} partition", kind.name());
            FoundContent { device: file.clone(), kind: Some(kind), what }
        }))
        .collect();
    contents.sort();
    contents.dedup();
    Ok(contents)
}

/// Signatures on a block device or, in a copy of a machine, a file.
fn signatures(path: &Path, bytes: u64) -> io::Result<Vec<String>> {
    let kind = std::fs::metadata(path)?.file_type();
    if !kind.is_block_device() && !kind.is_file() {
        return Err(io::Error::other("it is no block device"));
    }
    let file = open(path)?;
    let at = |offset: u64, len: usize| {
        let mut buffer = vec![0; len];
        match file.read_exact_at(&mut buffer, offset) {
            Ok(()) => Ok(Some(buffer)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    };
    let mut found: Vec<String> = Vec::new();
    for (what, offset, magic) in MAGICS {
        if at(offset, magic.len())?.is_some_and(|read| read == magic) {
            found.push(what.to_owned());
        }
    }
    // md's older superblocks stand at the end (md(4), and drivers/md/md.c).
    let ends = [(bytes & !0xffff).checked_sub(0x1_0000), bytes.checked_sub(0x2000).map(|end| end & !0xfff)];
    for offset in ends.into_iter().flatten() {
        if at(offset, 4)?.is_some_and(|read| read == MD_MAGIC) {
            found.push("linux_raid_member".to_owned());
        }
    }
    for offset in (ZFS_FROM..ZFS_TO).step_by(1024) {
        let Some(word) = at(offset, 8)?.and_then(|read| Some(u64::from_ne_bytes(*read.first_chunk()?))) else { break };
        if word == ZFS_MAGIC || word.swap_bytes() == ZFS_MAGIC {
            found.push("zfs_member".to_owned());
            break;
        }
    }
    found.extend(gpt_types(&at)?);
    found.dedup();
    Ok(found)
}

/// Partition types that stand for a use, by the partition table (UEFI 2.10, 5.3.2 and 5.3.3).
fn gpt_types(at: &dyn Fn(u64, usize) -> io::Result<Option<Vec<u8>>>) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for lba in [512, 4096] {
        let Some(header) = at(lba, 92)?.filter(|header| header.starts_with(b"EFI PART")) else { continue };
        let word = |from: usize| header.get(from..).and_then(|rest| Some(u32::from_le_bytes(*rest.first_chunk()?)));
        let long = |from: usize| header.get(from..).and_then(|rest| Some(u64::from_le_bytes(*rest.first_chunk()?)));
        let (Some(first), Some(count), Some(size)) = (long(72), word(80), word(84)) else { continue };
        for index in 0..u64::from(count.min(256)) {
            let offset = first.checked_mul(lba).and_then(|base| base.checked_add(index * u64::from(size.min(4096))));
            let Some(entry) = offset.map(|offset| at(offset, 16)).transpose()?.flatten() else { break };
            let known = TYPES.iter().find(|(guid, _)| *guid == guid_text(&entry));
            found.extend(known.map(|(_, kind)| match kind {
                DeviceUseKind::Zfs => "zfs_member".to_owned(),
                DeviceUseKind::Lvm => "LVM2_member".to_owned(),
                _ => "efi".to_owned(),
            }));
        }
    }
    Ok(found)
}

/// A GUID as people write it; the first three fields are little-endian.
fn guid_text(bytes: &[u8]) -> String {
    let order = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
    let mut text = String::new();
    for (place, index) in order.into_iter().enumerate() {
        if [4, 6, 8, 10].contains(&place) {
            text.push('-');
        }
        text += &format!("{:02x}", bytes.get(index).copied().unwrap_or(0));
    }
    text
}
