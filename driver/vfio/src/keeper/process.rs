//! The keeper's own process.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::SigSet;
use rustix::event::{PollFd, PollFlags, poll};
use vfio_bindings::bindings::vfio::VFIO_PCI_CONFIG_REGION_INDEX;
use warprow_dma::pci::COMMAND;
use warprow_dma::pci::command::BUS_MASTER;

use crate::function::device_reset;
use crate::keeper::KeeperError;
use crate::keeper::handing::{Message, receive, send};
use crate::region::Region;

/// How long it waits before it tries again to stop a drive.
const AGAIN: Duration = Duration::from_secs(1);

/// A descriptor of this process, which others can wait on until the process is gone.
pub(super) fn open_self() -> io::Result<OwnedFd> {
    // SAFETY: a system call that takes no addresses.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) };
    let descriptor = i32::try_from(descriptor).ok().filter(|&it| it >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the descriptor was just opened, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// What is kept for one drive.
struct Held {
    device: File,
    /// The memory goes when the last of these is closed.
    memory: Vec<OwnedFd>,
}

/// Serves [`Keeper`](crate::Keeper) on the socket that it gave this process as standard input. Returns when nothing is kept any more and the
/// owner has closed its end, or when the owner is gone and every drive has been stopped. It is to be the first thing that a process of its
/// own does: it blocks all signals that can be blocked, and refuses to begin where the process has inherited other descriptors than 0, 1 and
/// 2, because it would keep them from being closed.
pub fn keep(socket: OwnedFd) -> Result<(), KeeperError> {
    SigSet::all().thread_block().map_err(|errno| KeeperError::Os { what: "blocking signals", source: errno.into() })?;
    refuse_inherited(socket.as_raw_fd())?;
    let (mut owner, mut held) = (None, HashMap::<u32, Held>::new());
    let mut connected = true;
    // After an owner that cannot be understood, what is held stays held until it is gone.
    let mut trouble = Ok(());
    while connected || !held.is_empty() {
        let mut waits = Vec::new();
        if connected {
            waits.push(PollFd::new(&socket, PollFlags::IN));
        }
        if let Some(owner) = &owner {
            waits.push(PollFd::new(owner, PollFlags::IN));
        }
        match poll(&mut waits, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(KeeperError::os("waiting for the owner")(errno)),
        }
        let said = connected && !waits[0].revents().is_empty();
        let gone = owner.is_some() && waits.last().is_some_and(|owner| !owner.revents().is_empty());
        drop(waits);
        // What the owner said before it died is in the socket.
        if said {
            match serve(socket.as_fd(), &mut owner, &mut held) {
                Ok(more) => connected = more,
                Err(error) => (connected, trouble) = (false, Err(error)),
            }
        } else if gone {
            held.drain().for_each(|(_, held)| held.end());
            break;
        }
    }
    trouble
}

/// Does what the next message asks for. `false`: there is no message any more.
fn serve(
    socket: BorrowedFd<'_>,
    owner: &mut Option<OwnedFd>,
    held: &mut HashMap<u32, Held>,
) -> Result<bool, KeeperError> {
    let Some((message, descriptors)) = receive(socket)? else { return Ok(false) };
    obey(message, descriptors, owner, held)?;
    match send(socket, &Message::Done(message.number()), &[]) {
        // An owner that is gone wants no answer.
        Ok(()) | Err(KeeperError::Lost) => Ok(true),
        Err(error) => Err(error),
    }
}

fn obey(
    message: Message,
    mut descriptors: Vec<OwnedFd>,
    owner: &mut Option<OwnedFd>,
    held: &mut HashMap<u32, Held>,
) -> Result<(), KeeperError> {
    match message {
        Message::Owner => *owner = descriptors.pop(),
        Message::Hold(id) => {
            if descriptors.is_empty() || owner.is_none() {
                return Err(KeeperError::Foreign("something to keep without a drive or an owner"));
            }
            let device = descriptors.remove(0).into();
            held.insert(id, Held { device, memory: descriptors });
        }
        // The drive stays with its owner, who has ended the mapping.
        Message::Release(id) => drop(held.remove(&id)),
        Message::Done(_) => return Err(KeeperError::Foreign("an answer from the owner")),
    }
    Ok(())
}

impl Held {
    /// Stops the drive of an owner that is gone, and only then lets the memory go.
    fn end(self) {
        while let Err(error) = self.stop() {
            tracing::error!(%error, "the drive of a process that is gone cannot be stopped: its memory stays, and this is tried again");
            std::thread::sleep(AGAIN);
        }
        drop(self.device);
        drop(self.memory);
    }

    /// Turns bus mastering off and resets the function. Both are tried although closing the file would do it too: somebody else may have the
    /// file open.
    fn stop(&self) -> io::Result<()> {
        let at = Region::read(&self.device, VFIO_PCI_CONFIG_REGION_INDEX)?.offset + COMMAND;
        let command = || -> io::Result<u16> {
            let mut bytes = [0; 2];
            self.device.read_exact_at(&mut bytes, at)?;
            Ok(u16::from_le_bytes(bytes))
        };
        let now = command()?;
        // A drive that was pulled out writes nothing.
        if now == u16::MAX {
            return Ok(());
        }
        self.device.write_all_at(&(now & !BUS_MASTER).to_le_bytes(), at)?;
        // The answer to this load comes behind everything that the drive has written before.
        if command()? & BUS_MASTER != 0 {
            return Err(io::Error::other("bus mastering stays on"));
        }
        // SAFETY: an ioctl without an argument on the device's open file.
        match unsafe { device_reset(self.device.as_raw_fd()) } {
            // Without a way to be reset, a function keeps bus mastering off all the same.
            Ok(_) | Err(Errno::EINVAL | Errno::ENOTTY) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

fn refuse_inherited(socket: i32) -> Result<(), KeeperError> {
    let os = |source| KeeperError::Os { what: "reading /proc/self/fd", source };
    let mut inherited = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").map_err(os)? {
        let entry = entry.map_err(os)?;
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        // The folder's own descriptor is among its entries.
        let folder = std::fs::read_link(entry.path()).is_ok_and(|to| to.starts_with("/proc") && to.ends_with("fd"));
        if let Some(number) = number.filter(|&number: &i32| number > 2 && number != socket && !folder) {
            inherited.push(number);
        }
    }
    if inherited.is_empty() { Ok(()) } else { Err(KeeperError::Inherited(inherited)) }
}
