//! Messages between an owner and its keeper, and the descriptors that come with them.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use crate::keeper::KeeperError;

/// Descriptors that one message may carry.
pub(super) const MAX_FDS: usize = 16;
const BYTES: usize = 5;
/// The number of the owner's first message.
const OWNER: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// From the owner, with a descriptor of its process.
    Owner,
    /// From the owner, with a drive's file and then the memory's descriptors.
    Hold(u32),
    /// From the owner: the drive has no mapping of the memory any more.
    Release(u32),
    /// From the keeper: what was asked with this number is done.
    Done(u32),
}

impl Message {
    fn bytes(self) -> [u8; BYTES] {
        let (kind, id) = match self {
            Self::Owner => (b'o', OWNER),
            Self::Hold(id) => (b'h', id),
            Self::Release(id) => (b'r', id),
            Self::Done(id) => (b'd', id),
        };
        let mut bytes = [kind, 0, 0, 0, 0];
        bytes[1..].copy_from_slice(&id.to_ne_bytes());
        bytes
    }

    /// The number that its answer has.
    pub(super) fn number(self) -> u32 {
        match self {
            Self::Owner => OWNER,
            Self::Hold(id) | Self::Release(id) | Self::Done(id) => id,
        }
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (&kind, id) = bytes.split_first()?;
        let id = u32::from_ne_bytes(id.try_into().ok()?);
        match kind {
            b'o' => Some(Self::Owner),
            b'h' => Some(Self::Hold(id)),
            b'r' => Some(Self::Release(id)),
            b'd' => Some(Self::Done(id)),
            _ => None,
        }
    }
}

/// Sends a message. [`KeeperError::Lost`] where nobody can receive it any more.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    message: &Message,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), KeeperError> {
    let bytes = message.bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    loop {
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(KeeperError::Descriptors { count: descriptors.len() });
        }
        match sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(KeeperError::Lost),
            Err(errno) => return Err(KeeperError::os("writing to a keeper's socket")(errno)),
        }
    }
}

/// The next message, and the descriptors that came with it; `None` where the other side has closed the socket.
pub(super) fn receive(socket: BorrowedFd<'_>) -> Result<Option<(Message, Vec<OwnedFd>)>, KeeperError> {
    let mut bytes = [0; BYTES + 1];
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let got = match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Ok(got) => got,
            Err(Errno::INTR) => continue,
            Err(Errno::CONNRESET) => return Ok(None),
            Err(Errno::AGAIN) => return Err(KeeperError::Silent),
            Err(errno) => return Err(KeeperError::os("reading from a keeper's socket")(errno)),
        };
        let mut descriptors = Vec::new();
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                descriptors.extend(rights);
            }
        }
        if got.bytes == 0 {
            return Ok(None);
        }
        if got.flags.contains(ReturnFlags::CTRUNC) {
            return Err(KeeperError::Foreign("more descriptors than a message may have"));
        }
        let message = bytes.get(..got.bytes).and_then(Message::parse);
        let message = message.ok_or(KeeperError::Foreign("an unknown message"))?;
        return Ok(Some((message, descriptors)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::fs::File;
    use std::io::{Read, Write, pipe};
    use std::os::fd::AsFd;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn sockets() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn descriptors_arrive_with_their_message() {
        let (a, b) = sockets();
        let (mut reader, writer) = pipe().unwrap();
        for message in [Message::Owner, Message::Hold(7), Message::Release(u32::MAX - 1), Message::Done(3)] {
            send(a.as_fd(), &message, &[writer.as_fd()]).unwrap();
            let (got, mut descriptors) = receive(b.as_fd()).unwrap().unwrap();
            assert_eq!((got, got.number(), descriptors.len()), (message, message.number(), 1));
            File::from(descriptors.remove(0)).write_all(&[message.bytes()[0]]).unwrap();
        }
        drop(writer);
        let mut kinds = String::new();
        reader.read_to_string(&mut kinds).unwrap();
        assert_eq!(kinds, "ohrd");
    }

    #[test]
    fn a_closed_socket_and_a_foreign_message_are_told_apart() {
        let (a, b) = sockets();
        rustix::net::send(&a, b"hold!!", SendFlags::empty()).unwrap();
        assert!(matches!(receive(b.as_fd()), Err(KeeperError::Foreign(_))));
        drop(a);
        assert!(matches!(receive(b.as_fd()), Ok(None)));
        assert!(matches!(send(b.as_fd(), &Message::Owner, &[]), Err(KeeperError::Lost)));
    }
}
