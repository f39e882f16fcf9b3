//! MSI-X vectors, each an eventfd of the client's.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use warprow_soft_controller::InterruptSink;
use warprow_vfio_user_proto::{IrqAction, IrqSource, RequestRefusal, SetIrqs};

#[derive(Debug, Default)]
struct Vector {
    eventfd: Option<OwnedFd>,
    masked: bool,
    pending: bool,
}

impl Vector {
    fn signal(&mut self) {
        if self.masked {
            self.pending = true;
        } else if let Some(eventfd) = &self.eventfd {
            // One that is full has been signalled often enough, and it is not waited for.
            let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
        }
    }
}

#[derive(Debug)]
pub(crate) struct Vectors(Mutex<Vec<Vector>>);

impl InterruptSink for Vectors {
    fn raise(&self, vector: u16) {
        if let Some(vector) = self.lock().get_mut(usize::from(vector)) {
            vector.signal();
        }
    }
}

impl Vectors {
    pub(crate) fn new(count: u16) -> Self {
        Self(Mutex::new((0..count).map(|_| Vector::default()).collect()))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vector>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As after power-on.
    pub(crate) fn clear(&self) {
        self.lock().iter_mut().for_each(|vector| *vector = Vector::default());
    }

    /// The pending bits, as MSI-X has them.
    pub(crate) fn pending(&self) -> Vec<u8> {
        let vectors = self.lock();
        let mut bits = vec![0; vectors.len().div_ceil(64) * 8];
        for (i, _) in vectors.iter().enumerate().filter(|(_, vector)| vector.pending) {
            bits[i / 8] |= 1 << (i % 8);
        }
        bits
    }

    /// Carries a request out, whole or not at all.
    pub(crate) fn set(&self, request: &SetIrqs<'_>, fds: Vec<OwnedFd>) -> Result<(), RequestRefusal> {
        for fd in &fds {
            check(fd)?;
        }
        let mut vectors = self.lock();
        if request.count == 0 && request.action == IrqAction::Trigger && request.source == IrqSource::All {
            vectors.iter_mut().for_each(|vector| *vector = Vector::default());
            return Ok(());
        }
        let range = request.start as usize..request.start as usize + request.count as usize;
        let named =
            vectors.get_mut(range).ok_or(RequestRefusal::new(Errno::INVAL, "interrupt vectors that there are not"))?;
        let mut fds = fds.into_iter();
        for (i, vector) in named.iter_mut().enumerate() {
            match request.source {
                IrqSource::Eventfds => {
                    vector.eventfd = fds.next();
                    continue;
                }
                IrqSource::Chosen(bytes) if bytes.get(i).is_none_or(|&byte| byte == 0) => continue,
                _ => {}
            }
            match request.action {
                IrqAction::Mask => vector.masked = true,
                IrqAction::Unmask => {
                    vector.masked = false;
                    if std::mem::take(&mut vector.pending) {
                        vector.signal();
                    }
                }
                IrqAction::Trigger => vector.signal(),
            }
        }
        Ok(())
    }
}

/// Whoever signals must never wait, as one would on a pipe that nobody reads.
fn check(fd: &OwnedFd) -> Result<(), RequestRefusal> {
    let what = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()));
    if !what.is_ok_and(|what| what.as_os_str() == "anon_inode:[eventfd]") {
        return Err(RequestRefusal::new(Errno::INVAL, "an interrupt by something that is not an eventfd"));
    }
    let flags = fcntl_getfl(fd).map_err(|errno| RequestRefusal::new(errno, "an eventfd without flags"))?;
    fcntl_setfl(fd, flags | OFlags::NONBLOCK).map_err(|errno| RequestRefusal::new(errno, "an eventfd that waits"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    fn count(fd: &OwnedFd) -> u64 {
        let mut bytes = [0; 8];
        rustix::io::read(fd, &mut bytes).map_or(0, |_| u64::from_ne_bytes(bytes))
    }

    #[test]
    fn masked_vectors_are_kept_for_later() {
        let vectors = Vectors::new(4);
        let fds: Vec<_> = (0..2).map(|_| eventfd(0, EventfdFlags::NONBLOCK).unwrap()).collect();
        let clones = || fds.iter().map(|fd| fd.try_clone().unwrap()).collect();
        let request = |start, count, action, source| SetIrqs { index: 2, start, count, action, source };
        vectors.set(&request(1, 2, IrqAction::Trigger, IrqSource::Eventfds), clones()).unwrap();
        (0..9).for_each(|vector| vectors.raise(vector));
        assert_eq!([count(&fds[0]), count(&fds[1])], [1, 1]);
        vectors.set(&request(1, 2, IrqAction::Mask, IrqSource::Chosen(&[0, 1])), vec![]).unwrap();
        (0..4).for_each(|vector| vectors.raise(vector));
        assert_eq!(([count(&fds[0]), count(&fds[1])], vectors.pending()[0]), ([1, 0], 0b100));
        vectors.set(&request(0, 4, IrqAction::Unmask, IrqSource::All), vec![]).unwrap();
        assert_eq!(([count(&fds[0]), count(&fds[1])], vectors.pending()[0]), ([0, 1], 0));
        vectors.set(&request(2, 1, IrqAction::Trigger, IrqSource::All), vec![]).unwrap();
        assert_eq!([count(&fds[0]), count(&fds[1])], [0, 1]);
        vectors.set(&request(1, 1, IrqAction::Trigger, IrqSource::Eventfds), vec![]).unwrap();
        (0..4).for_each(|vector| vectors.raise(vector));
        assert_eq!([count(&fds[0]), count(&fds[1])], [0, 1]);
        vectors.set(&request(0, 0, IrqAction::Trigger, IrqSource::All), vec![]).unwrap();
        (0..4).for_each(|vector| vectors.raise(vector));
        assert_eq!([count(&fds[0]), count(&fds[1])], [0, 0]);
        assert!(vectors.set(&request(3, 2, IrqAction::Trigger, IrqSource::All), vec![]).is_err());
        assert!(vectors.set(&request(u32::MAX, 0, IrqAction::Mask, IrqSource::All), vec![]).is_err());
    }

    #[test]
    fn a_full_eventfd_holds_nobody_up_and_a_pipe_is_refused() {
        let vectors = Vectors::new(1);
        let request = SetIrqs { index: 2, start: 0, count: 1, action: IrqAction::Trigger, source: IrqSource::Eventfds };
        // Blocking, and full but for one.
        let full = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        vectors.set(&request, vec![full]).unwrap();
        vectors.raise(0);
        let (_read, write) = std::io::pipe().unwrap();
        assert_eq!(vectors.set(&request, vec![write.into()]).unwrap_err().errno, Errno::INVAL);
    }
}
