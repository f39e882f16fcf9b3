//! The connection, shared by the session and by workers that reach the client's memory through it.

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use warprow_dma::DmaMemory;
use warprow_soft_controller::RemoteMemory;
use warprow_vfio_user_proto::limits::MAX_TRANSFER;
use warprow_vfio_user_proto::wire::{DmaAccess, command};
use warprow_vfio_user_proto::{Channel, ChannelError, Message, dma_data, dma_written};
use zerocopy::IntoBytes;

/// Requests of the client's that are kept while an answer of its is awaited.
const MOST_KEPT: usize = 256;

#[derive(Debug)]
struct State {
    channel: Channel,
    /// Requests that came while an answer was awaited, for the session.
    kept: VecDeque<Message>,
    next_id: u16,
    /// Bytes of one DMA message.
    most: usize,
    /// Why the client's memory cannot be reached any more.
    failed: Option<String>,
}

/// One client's connection. Whoever awaits an answer holds it, and keeps requests for the session: a worker never waits for that.
#[derive(Debug)]
pub(crate) struct Wire {
    socket: UnixStream,
    /// Signalled when requests were kept.
    kept: std::os::fd::OwnedFd,
    state: Mutex<State>,
    time: Duration,
}

impl Wire {
    /// `time`: for a message, either way.
    pub(crate) fn new(channel: Channel, time: Duration) -> std::io::Result<Self> {
        let socket = channel.socket().try_clone()?;
        let kept = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let state = State { channel, kept: VecDeque::new(), next_id: 0, most: MAX_TRANSFER, failed: None };
        Ok(Self { socket, kept, state: Mutex::new(state), time })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, for whoever talks to the client.
    pub(crate) fn with<T>(&self, talk: impl FnOnce(&mut Channel) -> T) -> T {
        talk(&mut self.lock().channel)
    }

    /// How much the client takes or gives in one DMA message.
    pub(crate) fn set_most(&self, bytes: u64) {
        self.lock().most = usize::try_from(bytes).unwrap_or(MAX_TRANSFER).clamp(1, MAX_TRANSFER);
    }

    /// The next request, if one comes within `time`.
    pub(crate) fn next(&self, time: Duration) -> Result<Option<Message>, ChannelError> {
        let limit = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        let mut both = [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(&self.kept, PollFlags::IN)];
        match poll(&mut both, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(ChannelError::System(errno.into())),
        }
        let mut state = self.lock();
        if let Some(why) = &state.failed {
            return Err(ChannelError::System(std::io::Error::other(why.clone())));
        }
        let _ = rustix::io::read(&self.kept, &mut [0; 8]);
        if let Some(message) = state.kept.pop_front() {
            if !state.kept.is_empty() {
                self.tell();
            }
            return Ok(Some(message));
        }
        // What was readable may have been the answer to a worker.
        let now = Instant::now();
        if !state.channel.readable(now)? {
            return Ok(None);
        }
        state.channel.receive(now, self.time).map(Some)
    }

    /// There are requests that were kept.
    fn tell(&self) {
        // It is full only if it was told often enough.
        let _ = rustix::io::write(&self.kept, &1u64.to_ne_bytes());
    }

    /// One piece, there or back; false if the client refuses it.
    fn exchange(
        &self,
        state: &mut State,
        command: u16,
        access: DmaAccess,
        data: &mut [u8],
    ) -> Result<bool, ChannelError> {
        let id = state.next_id;
        state.next_id = id.wrapping_add(1);
        let deadline = Instant::now() + self.time;
        let write = command == command::DMA_WRITE;
        let payload: [&[u8]; 2] = [access.as_bytes(), if write { data } else { &[] }];
        state.channel.command(id, command, &payload, &[], self.time)?;
        let answer = loop {
            let message = state.channel.receive(deadline, self.time)?;
            if message.is_reply() {
                break message;
            }
            if state.kept.len() >= MOST_KEPT {
                return Err(ChannelError::Malformed("requests instead of an answer"));
            }
            state.kept.push_back(message);
            self.tell();
        };
        if (answer.header.id, answer.header.command) != (id, command) || !answer.fds.is_empty() {
            return Err(ChannelError::Malformed("an answer to another question"));
        }
        if answer.failure().is_some() {
            return Ok(false);
        }
        if write {
            dma_written(&answer.payload, &access).map_err(ChannelError::Malformed)?;
        } else {
            data.copy_from_slice(dma_data(&answer.payload, &access).map_err(ChannelError::Malformed)?);
        }
        Ok(true)
    }

    /// All pieces of a transfer. After an error the client is asked for nothing any more.
    fn transfer(
        &self,
        command: u16,
        iova: u64,
        len: usize,
        mut piece: impl FnMut(usize, &mut Pass<'_>) -> bool,
    ) -> bool {
        let mut state = self.lock();
        if state.failed.is_some() {
            return false;
        }
        let most = state.most;
        let mut at = 0;
        while at < len {
            let part = most.min(len - at);
            let access = DmaAccess { addr: iova + at as u64, count: part as u64 };
            let mut pass = |data: &mut [u8]| match self.exchange(&mut state, command, access, data) {
                Ok(done) => done,
                Err(error) => {
                    state.failed = Some(format!("the client's memory cannot be reached by messages: {error}"));
                    // The session ends at once.
                    self.tell();
                    false
                }
            };
            if !piece(at, &mut Pass { len: part, pass: &mut pass }) {
                return false;
            }
            at += part;
        }
        true
    }
}

/// One piece of a transfer.
struct Pass<'a> {
    len: usize,
    pass: &'a mut dyn FnMut(&mut [u8]) -> bool,
}

impl RemoteMemory for Wire {
    fn read(&self, iova: u64, into: &DmaMemory, offset: usize, len: usize) -> bool {
        self.transfer(command::DMA_READ, iova, len, |at, piece| {
            let mut bytes = vec![0; piece.len];
            let read = (piece.pass)(&mut bytes);
            if read {
                into.write(offset + at, &bytes);
            }
            read
        })
    }

    fn write(&self, iova: u64, from: &DmaMemory, offset: usize, len: usize) -> bool {
        self.transfer(command::DMA_WRITE, iova, len, |at, piece| {
            let mut bytes = vec![0; piece.len];
            from.read(offset + at, &mut bytes);
            (piece.pass)(&mut bytes)
        })
    }
}
