//! Questions to the server, each answered or given up in bounded time.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use warprow_dma::FunctionError;
use warprow_vfio_user_proto::limits::MESSAGE_TIME;
use warprow_vfio_user_proto::{Channel, ChannelError, Message};

/// How long answers may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// To most questions.
    pub answer: Duration,
    /// To a reset, the end of a mapping and the like: the server waits for what is under way.
    pub reset: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { answer: Duration::from_secs(5), reset: Duration::from_secs(30) }
    }
}
/// How long a server may take to let a client in.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Commands of the server's that are refused while an answer is awaited.
const INTERRUPTIONS: u32 = 1000;

#[derive(Debug)]
struct State {
    channel: Channel,
    next_id: u16,
    /// Something went wrong: who answers what is no longer known.
    broken: bool,
}

/// A connection, which is given up with its first failure.
#[derive(Debug)]
pub(crate) struct Connection {
    name: String,
    state: Mutex<State>,
}

/// Connects to a socket. A server whose queue is full is waited for, but not for ever.
pub(crate) fn connect(path: &Path) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let deadline = Instant::now() + CONNECT_TIME;
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(socket.into()),
            Err(Errno::AGAIN | Errno::INTR) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

impl Connection {
    pub(crate) fn new(name: String, socket: UnixStream) -> io::Result<Self> {
        let state = State { channel: Channel::new(socket)?, next_id: 0, broken: false };
        Ok(Self { name, state: Mutex::new(state) })
    }

    /// Asks, and waits for the answer. An answer that says the command failed is an error that carries the server's errno.
    pub(crate) fn ask(
        &self,
        what: &'static str,
        command: u16,
        payload: &[&[u8]],
        fds: &[BorrowedFd<'_>],
        time: Duration,
    ) -> Result<Message, FunctionError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.broken {
            return Err(FunctionError::Gone { function: self.name.clone() });
        }
        let answer = state.exchange(command, payload, fds, time).map_err(|error| {
            state.broken = true;
            self.lost(what, error)
        })?;
        match answer.failure() {
            None => Ok(answer),
            Some(0) => Err(self.os(what, io::Error::other("the server refuses, and gives no reason"))),
            Some(errno) => Err(self.os(what, io::Error::from_raw_os_error(errno))),
        }
    }

    fn lost(&self, what: &'static str, error: ChannelError) -> FunctionError {
        match error {
            ChannelError::Closed => FunctionError::Gone { function: self.name.clone() },
            ChannelError::System(source) => self.os(what, source),
            ChannelError::TimedOut(_) => self.os(what, io::Error::new(io::ErrorKind::TimedOut, error.to_string())),
            ChannelError::Malformed(_) => self.os(what, io::Error::new(io::ErrorKind::InvalidData, error.to_string())),
        }
    }

    pub(crate) fn os(&self, what: &'static str, source: io::Error) -> FunctionError {
        FunctionError::Os { function: self.name.clone(), what, source: source.into() }
    }

    /// The answer makes no sense: nothing that this server says is believed any more.
    pub(crate) fn nonsense(&self, what: &'static str, why: &'static str) -> FunctionError {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).broken = true;
        self.os(what, io::Error::new(io::ErrorKind::InvalidData, why))
    }
}

impl State {
    fn exchange(
        &mut self,
        command: u16,
        payload: &[&[u8]],
        fds: &[BorrowedFd<'_>],
        time: Duration,
    ) -> Result<Message, ChannelError> {
        let deadline = Instant::now() + time;
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        self.channel.command(id, command, payload, fds, time)?;
        for _ in 0..INTERRUPTIONS {
            let message = self.channel.receive(deadline, time.min(MESSAGE_TIME))?;
            if message.is_reply() {
                if (message.header.id, message.header.command) != (id, command) {
                    return Err(ChannelError::Malformed("an answer to another question"));
                }
                return Ok(message);
            }
            // It was given all memory there is: it has nothing to ask.
            if message.wants_reply() {
                self.channel.refuse(&message.header, Errno::OPNOTSUPP, MESSAGE_TIME)?;
            }
        }
        Err(ChannelError::Malformed("questions instead of an answer"))
    }
}
