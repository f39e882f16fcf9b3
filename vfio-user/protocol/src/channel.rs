//! A socket that carries whole messages, each with its file descriptors, each under a deadline.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use zerocopy::{FromZeros, IntoBytes};

use crate::limits::{MAX_FDS, MAX_PAYLOAD};
use crate::wire::{MessageHeader, header_flags};

/// A message did not get through. After any of these but [`TimedOut`](Self::TimedOut) with nothing received, the two sides are out of step, and
/// the connection is of no more use.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The peer has closed the connection, or ended.
    #[error("the peer has closed the connection")]
    Closed,
    /// The peer does not answer, or does not read.
    #[error("no {0} within its time")]
    TimedOut(&'static str),
    /// The peer does not speak the protocol.
    #[error("the peer does not keep to the protocol: {0}")]
    Malformed(&'static str),
    /// The system refuses.
    #[error(transparent)]
    System(#[from] std::io::Error),
}

impl From<Errno> for ChannelError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => Self::Closed,
            errno => Self::System(errno.into()),
        }
    }
}

/// A message that has arrived.
#[derive(Debug)]
pub struct Message {
    /// The message's head.
    pub header: MessageHeader,
    /// The rest, as long as the head says.
    pub payload: Vec<u8>,
    /// What came with it, at most [`MAX_FDS`].
    pub fds: Vec<OwnedFd>,
}

impl Message {
    /// Whether it answers another.
    pub fn is_reply(&self) -> bool {
        self.header.flags & header_flags::TYPE == header_flags::REPLY
    }

    /// For a reply that says the command failed: the reason; 0 if it gives none.
    pub fn failure(&self) -> Option<i32> {
        (self.header.flags & header_flags::ERROR != 0).then_some(self.header.error as i32)
    }

    /// For a command: whether an answer is wanted.
    pub fn wants_reply(&self) -> bool {
        self.header.flags & header_flags::NO_REPLY == 0
    }
}

/// One end of a connection. Nothing here waits past its deadline.
#[derive(Debug)]
pub struct Channel {
    socket: UnixStream,
}

impl Channel {
    /// Over a connected socket.
    pub fn new(socket: UnixStream) -> std::io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket })
    }

    /// The socket, to wait for.
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Waits until there is something to read, or the peer has gone; false if neither until `deadline`.
    pub fn readable(&self, deadline: Instant) -> Result<bool, ChannelError> {
        self.wait(PollFlags::IN, deadline)
    }

    fn wait(&self, what: PollFlags, deadline: Instant) -> Result<bool, ChannelError> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&self.socket, what)], Some(&time)) {
                Ok(0) if Instant::now() >= deadline => return Ok(false),
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(true),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Sends a command; its answer will have the same `id`.
    pub fn command(
        &mut self,
        id: u16,
        command: u16,
        payload: &[&[u8]],
        fds: &[BorrowedFd<'_>],
        time: Duration,
    ) -> Result<(), ChannelError> {
        self.send(MessageHeader { id, command, ..MessageHeader::default() }, payload, fds, time)
    }

    /// Answers a command.
    pub fn reply(
        &mut self,
        to: &MessageHeader,
        payload: &[&[u8]],
        fds: &[BorrowedFd<'_>],
        time: Duration,
    ) -> Result<(), ChannelError> {
        let flags = header_flags::REPLY;
        self.send(
            MessageHeader { id: to.id, command: to.command, flags, ..MessageHeader::default() },
            payload,
            fds,
            time,
        )
    }

    /// Answers a command with an error.
    pub fn refuse(&mut self, to: &MessageHeader, errno: Errno, time: Duration) -> Result<(), ChannelError> {
        let flags = header_flags::REPLY | header_flags::ERROR;
        let error = errno.raw_os_error() as u32;
        self.send(MessageHeader { id: to.id, command: to.command, flags, error, size: 0 }, &[], &[], time)
    }

    /// One system call, unless the socket's buffer is full: some peers take a reply in one piece only.
    fn send(
        &mut self,
        mut header: MessageHeader,
        payload: &[&[u8]],
        fds: &[BorrowedFd<'_>],
        time: Duration,
    ) -> Result<(), ChannelError> {
        let deadline = Instant::now() + time;
        let size = size_of::<MessageHeader>() + payload.iter().map(|part| part.len()).sum::<usize>();
        header.size = u32::try_from(size).map_err(|_| ChannelError::Malformed("a message of more than 4 GiB"))?;
        let mut bytes = Vec::with_capacity(size);
        bytes.extend(header.as_bytes());
        payload.iter().for_each(|part| bytes.extend_from_slice(part));
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut sent = 0;
        while sent < size {
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if sent == 0 && !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err(ChannelError::Malformed("more descriptors than a message takes"));
            }
            match sendmsg(&self.socket, &[IoSlice::new(&bytes[sent..])], &mut ancillary, SendFlags::NOSIGNAL) {
                Ok(n) => sent += n,
                Err(Errno::AGAIN) => {
                    if !self.wait(PollFlags::OUT, deadline)? {
                        return Err(ChannelError::TimedOut("room for a message"));
                    }
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Receives the next message. Its first byte may take until `deadline`, its last `time` longer.
    pub fn receive(&mut self, deadline: Instant, time: Duration) -> Result<Message, ChannelError> {
        if !self.readable(deadline)? {
            return Err(ChannelError::TimedOut("message"));
        }
        let deadline = Instant::now() + time;
        let mut fds = Vec::new();
        let mut header = MessageHeader::new_zeroed();
        self.fill(header.as_mut_bytes(), &mut fds, deadline)?;
        let len = (header.size as usize).checked_sub(size_of::<MessageHeader>());
        let len = len.ok_or(ChannelError::Malformed("a message shorter than its head"))?;
        if len > MAX_PAYLOAD {
            return Err(ChannelError::Malformed("a message that is too long"));
        }
        if header.flags & header_flags::TYPE > header_flags::REPLY {
            return Err(ChannelError::Malformed("a message of an unknown kind"));
        }
        let mut payload = vec![0; len];
        self.fill(&mut payload, &mut fds, deadline)?;
        Ok(Message { header, payload, fds })
    }

    fn fill(&mut self, mut into: &mut [u8], fds: &mut Vec<OwnedFd>, deadline: Instant) -> Result<(), ChannelError> {
        while !into.is_empty() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let got = recvmsg(&self.socket, &mut [IoSliceMut::new(into)], &mut ancillary, RecvFlags::CMSG_CLOEXEC);
            match got {
                Ok(got) => {
                    // Those that do not fit are closed by the kernel, those that do not count when they are dropped here.
                    for message in ancillary.drain() {
                        if let RecvAncillaryMessage::ScmRights(rights) = message {
                            fds.extend(rights);
                        }
                    }
                    if got.flags.contains(ReturnFlags::CTRUNC) || fds.len() > MAX_FDS {
                        return Err(ChannelError::Malformed("more descriptors than a message may have"));
                    }
                    if got.bytes == 0 {
                        return Err(ChannelError::Closed);
                    }
                    into = &mut into[got.bytes..];
                }
                Err(Errno::AGAIN) => {
                    if !self.wait(PollFlags::IN, deadline)? {
                        return Err(ChannelError::TimedOut("rest of a message"));
                    }
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::wire::command;

    const SOON: Duration = Duration::from_millis(200);

    fn pair() -> (Channel, Channel) {
        let (a, b) = UnixStream::pair().unwrap();
        (Channel::new(a).unwrap(), Channel::new(b).unwrap())
    }

    fn receive(channel: &mut Channel) -> Result<Message, ChannelError> {
        channel.receive(Instant::now() + SOON, SOON)
    }

    #[test]
    fn messages_arrive_whole_with_their_descriptors() {
        let (mut a, mut b) = pair();
        let file = std::fs::File::open("/dev/null").unwrap();
        a.command(7, command::DMA_MAP, &[b"abc", b"de"], &[file.as_fd(), file.as_fd()], SOON).unwrap();
        a.command(8, command::DEVICE_RESET, &[], &[], SOON).unwrap();
        let first = receive(&mut b).unwrap();
        assert_eq!(
            (first.header.id, first.header.size, &first.payload[..], first.fds.len()),
            (7, 21, &b"abcde"[..], 2)
        );
        let second = receive(&mut b).unwrap();
        assert_eq!((second.header.id, second.payload.len(), second.fds.len()), (8, 0, 0));
        b.refuse(&second.header, Errno::BUSY, SOON).unwrap();
        let reply = receive(&mut a).unwrap();
        assert!(reply.is_reply());
        assert_eq!((reply.header.id, reply.failure()), (8, Some(Errno::BUSY.raw_os_error())));
    }

    #[test]
    fn garbage_and_silence_are_errors() {
        let malformed = |bytes: &[u8]| {
            let (mut a, b) = pair();
            (&b.socket).write_all(bytes).unwrap();
            match receive(&mut a) {
                Err(ChannelError::Malformed(why)) => why,
                other => panic!("{other:?}"),
            }
        };
        let head = |size, flags| MessageHeader { id: 0, command: 1, size, flags, error: 0 };
        assert!(malformed(head(15, 0).as_bytes()).contains("shorter"));
        assert!(malformed(head(u32::MAX, 0).as_bytes()).contains("too long"));
        assert!(malformed(head(16, 3).as_bytes()).contains("unknown kind"));
        assert!(malformed(&[0xff; 64]).contains("too long"));

        let (mut a, b) = pair();
        assert!(matches!(receive(&mut a), Err(ChannelError::TimedOut("message"))));
        (&b.socket).write_all(&head(20, 0).as_bytes()[..10]).unwrap();
        assert!(matches!(receive(&mut a), Err(ChannelError::TimedOut("rest of a message"))));
        drop(b);
        assert!(matches!(receive(&mut a), Err(ChannelError::Closed)));
    }

    #[test]
    fn a_flood_of_descriptors_is_an_error_and_leaves_none_open() {
        let (mut a, b) = pair();
        let file = std::fs::File::open("/dev/null").unwrap();
        let many = [file.as_fd(); 100];
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(100))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&many)));
        sendmsg(&b.socket, &[IoSlice::new(&[0; 16])], &mut ancillary, SendFlags::empty()).unwrap();
        let open = || {
            std::fs::read_dir("/proc/self/fd")
                .unwrap()
                .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
                .filter(|to| to.ends_with("null"))
                .count()
        };
        let before = open();
        assert!(matches!(receive(&mut a), Err(ChannelError::Malformed(_))));
        assert!(open() <= before, "descriptors were left open");
    }

    #[test]
    fn a_peer_that_does_not_read_is_given_up() {
        let (mut a, _b) = pair();
        let block = vec![0; 60_000];
        let start = Instant::now();
        let error = loop {
            if let Err(error) = a.command(0, 1, &[&block], &[], SOON) {
                break error;
            }
        };
        assert!(matches!(error, ChannelError::TimedOut(_)) && start.elapsed() < Duration::from_secs(5), "{error}");
    }
}
