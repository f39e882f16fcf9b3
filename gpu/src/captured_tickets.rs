//! Tickets of captured look-ups: as many as there are graphs. A ticket's place is taken for as long as its graph lives,
//! or its [`Ticket`](crate::Ticket).

use std::sync::{Arc, Mutex};

use warprow_dma::DmaMemory;
use warprow_gpu_queues::{DeviceMemory, PinnedMemory};
use warprow_store::view::lock;

use crate::error::GpuError;

/// Places that are allocated at once, at least.
const LEAST: usize = 32;

/// Places of captured tickets that were allocated together.
#[derive(Debug)]
pub(crate) struct TicketChunk {
    /// How many.
    pub count: usize,
    /// [`Ticket`](warprow_kernels::abi::Ticket)s.
    pub tickets: Arc<PinnedMemory>,
    /// From its beginning on a [`TicketState`](warprow_kernels::abi::TicketState) for each ticket.
    pub gpu: DeviceMemory,
    /// The address of the first ticket's [`SlotState`](warprow_kernels::abi::SlotState), and bytes from one to the
    /// next. `None`: every launch takes the slot's lease.
    pub states: Option<(u64, u64)>,
}

/// A slot's places of captured tickets. They are allocated when they are needed, and kept for later captures.
#[derive(Debug, Default)]
pub(crate) struct CapturedTickets {
    chunks: Vec<TicketChunk>,
    free: Arc<FreePlaces>,
}

/// Numbers of chunks, and of places in them. CUDA's threads lock it: nobody calls CUDA while it is locked.
type FreePlaces = Mutex<Vec<(usize, usize)>>;

/// A place that is taken. It is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct CapturedTicket {
    pub tickets: Arc<PinnedMemory>,
    /// The address of the chunk's [`TicketState`](warprow_kernels::abi::TicketState)s.
    pub counts: u64,
    /// The address of the [`SlotState`](warprow_kernels::abi::SlotState) of launches that take no lease.
    pub state: Option<u64>,
    /// Index among the chunk's tickets.
    pub index: usize,
    chunk: usize,
    free: Arc<FreePlaces>,
}

impl CapturedTickets {
    /// Takes a place; `allocate` makes so many more if none is free.
    pub(crate) fn take(
        &mut self,
        allocate: impl FnOnce(usize) -> Result<TicketChunk, GpuError>,
    ) -> Result<Arc<CapturedTicket>, GpuError> {
        let free = lock(&self.free).pop();
        let (chunk, index) = match free {
            Some(place) => place,
            None => {
                let count = self.places().max(LEAST);
                let chunk = self.chunks.len();
                self.chunks.push(allocate(count)?);
                lock(&self.free).extend((1..count).rev().map(|index| (chunk, index)));
                (chunk, 0)
            }
        };
        let of = self.chunks.get(chunk).ok_or(GpuError::Broken)?;
        Ok(Arc::new(CapturedTicket {
            tickets: of.tickets.clone(),
            counts: of.gpu.address(),
            state: of.states.map(|(first, stride)| first + index as u64 * stride),
            index,
            chunk,
            free: self.free.clone(),
        }))
    }

    /// Places that are taken.
    pub(crate) fn taken(&self) -> usize {
        self.places() - lock(&self.free).len()
    }

    /// Places that were allocated.
    pub(crate) fn places(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.count).sum()
    }
}

impl CapturedTicket {
    /// The chunk's tickets.
    pub(crate) fn memory(&self) -> &DmaMemory {
        self.tickets.memory()
    }
}

impl Drop for CapturedTicket {
    fn drop(&mut self) {
        lock(&self.free).push((self.chunk, self.index));
    }
}
