//! Questions to the server, each answered or given up in bounded time, and the server's questions for memory.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use warprow_dma::{DmaMemory, FunctionError};
use warprow_vfio_user_proto::limits::MESSAGE_TIME;
use warprow_vfio_user_proto::wire::command;
use warprow_vfio_user_proto::{Channel, ChannelError, Message};

use crate::reach::Reach;

/// How long answers may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerTimeouts {
    /// To most questions.
    pub answer: Duration,
    /// To a reset, the end of a mapping and the like: the server waits for what is under way.
    pub reset: Duration,
}

impl Default for AnswerTimeouts {
    fn default() -> Self {
        Self { answer: Duration::from_secs(5), reset: Duration::from_secs(30) }
    }
}
/// How long a server may take to let a client in.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Commands of the server's that are refused while an answer is awaited. Those that are carried out count for less: its other workers
/// go on meanwhile, for as long as the answer may take.
const INTERRUPTIONS: u32 = 1000;
/// How often whoever answers the server looks whether it shall end.
const GLANCE: Duration = Duration::from_millis(100);

#[derive(Debug)]
struct State {
    channel: Channel,
    next_id: u16,
    /// Something went wrong: who answers what is no longer known.
    broken: bool,
}

/// What the connection shares with whoever answers the server.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    reach: Reach,
    stop: AtomicBool,
    socket: UnixStream,
}

/// A connection, which is given up with its first failure.
#[derive(Debug)]
pub(crate) struct Connection {
    name: String,
    shared: Arc<Shared>,
    /// Answers the server when nobody asks it anything, once there is memory that it reaches by messages.
    attendant: Mutex<Option<JoinHandle<()>>>,
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
        let its_own = socket.try_clone()?;
        let state = Mutex::new(State { channel: Channel::new(socket)?, next_id: 0, broken: false });
        let shared = Shared { state, reach: Reach::default(), stop: AtomicBool::new(false), socket: its_own };
        Ok(Self { name, shared: Arc::new(shared), attendant: Mutex::default() })
    }

    /// From now on the server reaches `memory` by messages, where it is told of it without a file.
    pub(crate) fn reach(&self, addr: u64, memory: &DmaMemory) -> io::Result<()> {
        let mut attendant = self.attendant.lock().unwrap_or_else(PoisonError::into_inner);
        if attendant.is_none() {
            tracing::warn!(function = self.name, "the server reaches memory without a file by messages, which is slow");
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name("vfio-user-dma".into());
            *attendant = Some(thread.spawn(move || shared.attend())?);
        }
        self.shared.reach.add(addr, memory);
        Ok(())
    }

    /// Ends the server's access to the memory at `addr`.
    pub(crate) fn end_reach(&self, addr: u64) {
        self.shared.reach.remove(addr);
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
        let mut state = self.shared.lock();
        if state.broken {
            return Err(FunctionError::Gone { function: self.name.clone() });
        }
        let answer = state.exchange(&self.shared.reach, command, payload, fds, time).map_err(|error| {
            state.broken = true;
            self.lost(what, error)
        })?;
        match answer.failure() {
            None => Ok(answer),
            Some(0) => Err(self.os(what, io::Error::other("the server refuses, and gives no reason"))),
            Some(errno) => Err(self.os(what, io::Error::from_raw_os_error(errno))),
        }
    }

    /// Whether nothing is answered any more: an error of [`ask`](Self::ask) was no answer, then.
    pub(crate) fn is_broken(&self) -> bool {
        self.shared.lock().broken
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
        self.shared.lock().broken = true;
        self.os(what, io::Error::new(io::ErrorKind::InvalidData, why))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let _ = self.shared.socket.shutdown(std::net::Shutdown::Both);
        if let Some(attendant) = self.attendant.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            // It waits for nothing any more. If it panicked it has said so.
            let _ = attendant.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers the server until the connection ends. Whoever awaits an answer of its does so meanwhile.
    fn attend(&self) {
        let limit = Timespec { tv_sec: 0, tv_nsec: GLANCE.subsec_nanos().into() };
        while !self.stop.load(Ordering::Relaxed) {
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&limit)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(_) => return,
            }
            let mut state = self.lock();
            if state.broken {
                return;
            }
            if let Err(error) = state.attend(&self.reach) {
                state.broken = true;
                if !self.stop.load(Ordering::Relaxed) {
                    tracing::warn!(%error, "the connection to a drive has ended");
                }
                return;
            }
        }
    }
}

impl State {
    /// Answers one request, if there is one: what was readable may have been read by another.
    fn attend(&mut self, reach: &Reach) -> Result<(), ChannelError> {
        let now = Instant::now();
        if !self.channel.readable(now)? {
            return Ok(());
        }
        let message = self.channel.receive(now, MESSAGE_TIME)?;
        if message.is_reply() {
            return Err(ChannelError::Malformed("an answer to nothing"));
        }
        reach.answer(&mut self.channel, &message)
    }

    fn exchange(
        &mut self,
        reach: &Reach,
        number: u16,
        payload: &[&[u8]],
        fds: &[BorrowedFd<'_>],
        time: Duration,
    ) -> Result<Message, ChannelError> {
        let deadline = Instant::now() + time;
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        self.channel.command(id, number, payload, fds, time)?;
        let mut interruptions = 0;
        while interruptions < INTERRUPTIONS {
            let message = self.channel.receive(deadline, time.min(MESSAGE_TIME))?;
            if message.is_reply() {
                if (message.header.id, message.header.command) != (id, number) {
                    return Err(ChannelError::Malformed("an answer to another question"));
                }
                return Ok(message);
            }
            reach.answer(&mut self.channel, &message)?;
            if !matches!(message.header.command, command::DMA_READ | command::DMA_WRITE) || reach.is_empty() {
                interruptions += 1;
            }
            if Instant::now() >= deadline {
                return Err(ChannelError::TimedOut("answer"));
            }
        }
        Err(ChannelError::Malformed("questions instead of an answer"))
    }
}
