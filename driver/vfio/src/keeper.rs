//! A second process that keeps memory of another device from being freed while a drive can write to it.
//!
//! A process that has mapped such memory for a drive may die. Then its descriptors are closed in an order that no interface promises, and
//! the memory may be somebody else's before VFIO has closed the drive. A *keeper* holds duplicates of both: of the drive's file, and of the
//! descriptors with which the memory goes. When its owner is gone, it stops the drive, and closes the memory's descriptors last.
//! docs/gpu-rings.md says what follows when either process is killed.

mod handing;
mod process;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use warprow_dma::Function;

use crate::keeper::handing::{MAX_FDS, Message, receive, send};
use crate::{VfioFunction, VfioInterface};

pub use process::keep;

/// Why memory is not kept.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// The keeper could not be started.
    #[error("the keeper's process cannot be started ({program}): {source}")]
    Start {
        /// What was to be started.
        program: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The keeper has ended.
    #[error(
        "the keeper's process has ended; drives whose memory it kept write nothing any more: close them, and start another keeper"
    )]
    Lost,
    /// The keeper does not answer.
    #[error("the keeper's process does not answer within {ANSWER:?}: is it stopped?")]
    Silent,
    /// The function was opened through iommufd, which maps no memory of other devices.
    #[error(
        "{function}: memory of other devices is kept for functions that are opened through their groups alone; set WARPROW_VFIO=type1"
    )]
    Interface {
        /// The function's address.
        function: String,
    },
    /// So many descriptors cannot be handed over at once.
    #[error("memory with {count} descriptors cannot be kept: at most {} can", MAX_FDS - 1)]
    Descriptors {
        /// How many there were.
        count: usize,
    },
    /// The keeper's process has inherited descriptors, which it would keep from being closed.
    #[error(
        "the keeper's process has inherited the descriptors {0:?}: whoever starts it must open them with O_CLOEXEC"
    )]
    Inherited(Vec<i32>),
    /// The other side sent something that is no message of a keeper.
    #[error("a keeper and its owner do not understand each other: {0}")]
    Foreign(&'static str),
    /// A system call failed.
    #[error("{what}: {source}")]
    Os {
        /// What was being done.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

/// How long the keeper may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

impl KeeperError {
    fn os(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| Self::Os { what, source: errno.into() }
    }
}

/// What the owner knows of its keeper.
#[derive(Debug, Default)]
struct State {
    lost: bool,
    /// The connection ends when nothing is held any more.
    ending: bool,
    next: u32,
    held: HashMap<u32, Weak<VfioFunction>>,
}

/// A keeper's process, as its owner sees it. Dropped, it lets the process end, which it does when it keeps nothing any more.
///
/// If the keeper ends before its owner, nothing keeps the memory any more. Then bus mastering of every drive whose memory it kept is turned
/// off for good ([`VfioFunction::stop_dma`]): those drives write nothing, their commands run into their time-outs, and the memory is safe.
#[derive(Debug)]
pub struct Keeper {
    link: Arc<Link>,
    process: u32,
}

#[derive(Debug)]
struct Link {
    /// One question and its answer at a time.
    socket: Mutex<Option<OwnedFd>>,
    state: Mutex<State>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has a program begin with descriptors 0, 1 and 2 alone, whatever this process has open that is not marked to be closed then: shells and job
/// runners leave such descriptors to what they start. Before Linux 5.11 it begins with them all the same, and a keeper says so and ends.
fn inherit_nothing(program: &mut Command) {
    let mark = || {
        const FIRST: libc::c_uint = 3;
        // SAFETY: a system call without memory. Descriptors are only marked here, not closed: the standard library's own stays open until the
        // program begins.
        unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
        Ok(())
    };
    // SAFETY: what runs between fork and exec is one system call, which takes no lock and allocates nothing.
    unsafe { program.pre_exec(mark) };
}

impl Keeper {
    /// Starts a program that calls [`keep`] with its standard input. It gets a process group of its own, so that signals of a terminal do not
    /// reach it. It should not share a control group with its owner either: whoever kills a whole group kills both.
    pub fn start(mut program: Command) -> Result<Self, KeeperError> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(KeeperError::os("making a socket for the keeper"))?;
        set_socket_timeout(&ours, Timeout::Recv, Some(ANSWER)).map_err(KeeperError::os("limiting a wait"))?;
        let name = program.get_program().to_string_lossy().into_owned();
        inherit_nothing(&mut program);
        let child = program.stdin(theirs).process_group(0).spawn();
        let child = child.map_err(|source| KeeperError::Start { program: name, source })?;
        // The command holds the keeper's end of the socket open as long as it lives.
        drop(program);
        let process = child.id();
        let link = Arc::new(Link { socket: Mutex::new(Some(ours)), state: Mutex::default() });
        let watch = thread::Builder::new().name("keeper".to_owned()).spawn({
            let link = link.clone();
            move || link.watch(child)
        });
        watch.map_err(|source| KeeperError::Os { what: "starting the keeper's thread", source })?;
        let keeper = Self { link, process };
        let this = process::open_self().map_err(|source| KeeperError::Os { what: "opening this process", source })?;
        keeper.link.ask(Message::Owner, &[this.as_fd()])?;
        Ok(keeper)
    }

    /// The keeper's process identifier.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// Whether the keeper has ended.
    pub fn is_lost(&self) -> bool {
        lock(&self.link.state).lost
    }

    /// Keeps the memory that is freed when the last of these descriptors is closed, for as long as `function` could write to it. To be called
    /// before the memory is mapped for the drive; the result is to be dropped after the mapping has ended, and before the function.
    pub fn hold(&self, function: &Arc<VfioFunction>, memory: &[BorrowedFd<'_>]) -> Result<Hold, KeeperError> {
        if function.interface() != VfioInterface::Type1 {
            return Err(KeeperError::Interface { function: function.to_string() });
        }
        if memory.len() >= MAX_FDS {
            return Err(KeeperError::Descriptors { count: memory.len() });
        }
        let device =
            function.duplicate().map_err(|source| KeeperError::Os { what: "duplicating a drive's file", source })?;
        let hold = {
            let mut state = lock(&self.link.state);
            if state.lost {
                return Err(KeeperError::Lost);
            }
            let id = state.next;
            state.next += 1;
            state.held.insert(id, Arc::downgrade(function));
            Hold { link: self.link.clone(), id }
        };
        let descriptors: Vec<_> = [device.as_fd()].into_iter().chain(memory.iter().copied()).collect();
        self.link.ask(Message::Hold(hold.id), &descriptors)?;
        Ok(hold)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        lock(&self.link.state).ending = true;
        self.link.end_if_idle();
    }
}

/// Memory that is kept for a drive. Dropping it says that the drive has no mapping of the memory any more.
#[derive(Debug)]
pub struct Hold {
    link: Arc<Link>,
    id: u32,
}

impl Hold {
    /// Whether it is for this function that the memory is kept, and the keeper lives.
    pub fn keeps_for(&self, function: &dyn Function) -> bool {
        let state = lock(&self.link.state);
        !state.lost && state.held.get(&self.id).is_some_and(|held| ptr::addr_eq(held.as_ptr(), ptr::from_ref(function)))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // A keeper that is gone holds nothing, and one that is stopped goes on holding.
        let _ = self.link.ask(Message::Release(self.id), &[]);
        lock(&self.link.state).held.remove(&self.id);
        self.link.end_if_idle();
    }
}

impl Link {
    /// Waits until the keeper has done what the message asks for.
    fn ask(&self, message: Message, descriptors: &[BorrowedFd<'_>]) -> Result<(), KeeperError> {
        let socket = lock(&self.socket);
        let socket = socket.as_ref().ok_or(KeeperError::Lost)?;
        send(socket.as_fd(), &message, descriptors)?;
        loop {
            match receive(socket.as_fd())? {
                Some((answer, _)) if answer == Message::Done(message.number()) => return Ok(()),
                // The late answer to a message for which nobody waits any more.
                Some(_) => {}
                None => return Err(KeeperError::Lost),
            }
        }
    }

    /// Closes the connection if it is to end and nothing is held.
    fn end_if_idle(&self) {
        let state = lock(&self.state);
        if state.ending && state.held.is_empty() {
            lock(&self.socket).take();
        }
    }

    /// Waits until the keeper has ended, and stops the drives that it kept something for.
    fn watch(&self, mut child: Child) {
        let ended = child.wait();
        // Locked until the drives are stopped: whoever sees that the keeper is lost sees that nothing is written any more.
        let mut state = lock(&self.state);
        state.lost = true;
        for function in state.held.values().filter_map(Weak::upgrade) {
            tracing::error!(%function, ?ended, "the keeper has ended before its owner: the drive's bus mastering is turned off for good");
            if let Err(error) = function.stop_dma() {
                tracing::error!(%function, %error, "bus mastering cannot be turned off");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_program_that_is_missing_is_named() {
        let error = Keeper::start(Command::new("/nowhere/keeper")).unwrap_err();
        assert!(matches!(&error, KeeperError::Start { program, .. } if program == "/nowhere/keeper"), "{error}");
    }

    #[test]
    fn a_program_that_is_no_keeper_is_noticed() {
        let error = Keeper::start(Command::new("true")).unwrap_err();
        assert!(matches!(error, KeeperError::Lost), "{error}");
    }

    #[test]
    fn a_keeper_begins_without_descriptors_of_others() {
        // Not marked to be closed, as one that a shell has left open.
        let leaked = rustix::io::dup(std::fs::File::open("/dev/null").unwrap()).unwrap();
        let open_in = |prepare: fn(&mut Command)| {
            let mut command = Command::new("readlink");
            command.arg(format!("/proc/self/fd/{}", leaked.as_raw_fd()));
            prepare(&mut command);
            String::from_utf8(command.output().unwrap().stdout).unwrap()
        };
        assert_eq!(open_in(|_| ()), "/dev/null\n");
        assert_eq!(open_in(inherit_nothing), "");
    }
}
