//! Memory that the server reaches by messages, since it has no file to share.

use std::collections::BTreeMap;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use warprow_dma::DmaMemory;
use warprow_vfio_user_proto::limits::MESSAGE_TIME;
use warprow_vfio_user_proto::wire::DmaAccess;
use warprow_vfio_user_proto::{Channel, ChannelError, DmaRequest, Message, RequestRefusal};
use zerocopy::IntoBytes;

/// By I/O virtual address.
#[derive(Debug, Default)]
pub(crate) struct Reach(Mutex<BTreeMap<u64, DmaMemory>>);

impl Reach {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, DmaMemory>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, addr: u64, memory: &DmaMemory) {
        self.lock().insert(addr, memory.clone());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    pub(crate) fn remove(&self, addr: u64) {
        self.lock().remove(&addr);
    }

    /// Where an access lies, as a whole.
    fn find(&self, access: &DmaAccess) -> Result<(DmaMemory, usize), RequestRefusal> {
        let regions = self.lock();
        let (begin, memory) = regions.range(..=access.addr).next_back().ok_or(UNMAPPED)?;
        let offset = usize::try_from(access.addr - begin).map_err(|_| UNMAPPED)?;
        if !memory.contains(offset, access.count as usize) {
            return Err(UNMAPPED);
        }
        Ok((memory.clone(), offset))
    }

    fn carry_out(&self, message: &Message) -> Result<(DmaAccess, Vec<u8>), RequestRefusal> {
        match DmaRequest::parse(message.header.command, &message.payload, message.fds.len())? {
            DmaRequest::Read(access) => {
                let (memory, offset) = self.find(&access)?;
                let mut bytes = vec![0; access.count as usize];
                memory.read(offset, &mut bytes);
                Ok((access, bytes))
            }
            DmaRequest::Write(access, data) => {
                let (memory, offset) = self.find(&access)?;
                // An entry of a completion queue is there when its last word is.
                let last = data.len().checked_sub(8).filter(|last| (offset + last).is_multiple_of(8));
                match last.and_then(|last| Some((last, data.get(..last)?, data.get(last..)?.first_chunk()?))) {
                    Some((last, before, word)) => {
                        memory.write(offset, before);
                        fence(Ordering::Release);
                        memory.store_u64(offset + last, u64::from_ne_bytes(*word));
                    }
                    None => memory.write(offset, data),
                }
                Ok((access, Vec::new()))
            }
        }
    }

    /// Answers a request of the server's.
    pub(crate) fn answer(&self, channel: &mut Channel, message: &Message) -> Result<(), ChannelError> {
        let done = self.carry_out(message);
        if !message.wants_reply() {
            return Ok(());
        }
        match done {
            Ok((access, data)) => channel.reply(&message.header, &[access.as_bytes(), &data], &[], MESSAGE_TIME),
            Err(refusal) => channel.refuse(&message.header, refusal.errno, MESSAGE_TIME),
        }
    }
}

const UNMAPPED: RequestRefusal = RequestRefusal::new(Errno::FAULT, "memory that it was not given");
