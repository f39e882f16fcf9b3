//! Remedies that several errors share.

use crate::failure::Class;

/// Kind, subject, remedy.
pub(super) type Meaning = (Class, String, &'static str);

pub(super) const FORMAT: &str = "make a store on it with `warprow format`, or look whether it is the right drive";
pub(super) const LESS: &str = "load less, add a drive (`warprow add-drive`), or `warprow drop` a generation that stands by; room comes back too when \
    all tables of an earlier load are replaced";
/// What to do about a compaction for which no chunk is free, or too few.
pub(crate) const ROOM_TO_COMPACT: &str = "add a drive (`warprow add-drive`), or `warprow drop` a generation that stands by; then `warprow compact`. \
    `warprow remove-drive` takes the drive out again";
pub(super) const ROOM_TO_GROW: &str = "add a drive (`warprow add-drive`), or `warprow drop` a generation that stands by; then `warprow compact`. The keys are \
    there, and looked up, meanwhile; `warprow remove-drive` takes the drive out again where the others have room";
pub(super) const ALL_DRIVES: &str =
    "give all drives of the store, and only those; `warprow inspect` shows what lies on each";
pub(super) const ROOM: &str = "make room on the file system, or raise the limits of this process: ulimit -a shows them";
pub(super) const MEMORY: &str = "ask for less, or raise the limits: ulimit -l, /proc/sys/vm/nr_hugepages";
/// What to do where no GPU can play a drive. The library says so too, in these words.
pub(super) const WITHOUT_GPU: &str = "leave gpu= out: the file is the same drive without it";
pub(super) const CHANGED: &str = "find out who changed it; `warprow inspect` shows what is left";
/// What to do about a text that is no drive's address.
pub(crate) const DRIVE_ADDRESS: &str =
    "give a PCI address such as 0000:41:00.0, emulated:PATH, vfio-user:SOCKET or attached:FILE";
/// What to do about rows that are not what was loaded.
pub const DAMAGED_ROWS: &str =
    "find out what is damaged with `warprow verify`, then load the table again, with --replace";
/// What to do about updates for which there is no room.
pub(super) const COMPACT: &str = "`warprow compact`; if that has no room either, drop a generation, or add a drive (`warprow add-drive`), compact, and take it \
    out again (`warprow remove-drive`)";
pub(super) const DRIVE: &str = "look at the kernel's log and the drive's health, then try again";
/// The remedy for a socket without a server. Who served it is not known.
pub(super) const START_SERVER: &str = "look at the path, and start what serves the socket: SPDK's nvmf_tgt, QEMU's x-vfio-user-server, or \
                            `warprow serve --socket SOCKET DRIVE`";
/// The remedy for a server that was there, and is not any more.
pub(super) const SERVER: &str = "look at the log of the process that serves the socket (SPDK, QEMU, `warprow serve`), and start it again if it has \
                      ended or hangs";
