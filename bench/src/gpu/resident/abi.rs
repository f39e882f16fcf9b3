//! What the host hands to the resident controller and to those who read through it; cuda/controller.cuh and cuda/resident.cu have the
//! same, and hold their sizes against these.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// One queue pair, as its controller sees it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
pub(super) struct Channel {
    pub sq: u64,
    pub cq: u64,
    pub sq_tail: u64,
    pub cq_head: u64,
    pub image: u64,
    pub lbas: u64,
    pub window: u64,
    pub window_end: u64,
    pub clock: u64,
    pub report: u64,
    pub latency_ns: u64,
    pub step: u64,
    pub late_ns: u64,
    pub seed: u64,
    pub sq_size: u32,
    pub cq_size: u32,
    pub queue_id: u32,
    pub nsid: u32,
    pub late_one_in: u32,
    pub lba_bytes: u32,
}

/// What a controller's block did.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
pub(super) struct Answered {
    pub commands: u64,
    pub late: u64,
    pub reused: u64,
    pub refused: u64,
    pub passes: u64,
    pub overrun: u64,
}

/// What the block that drives a queue did.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
pub(super) struct Read {
    pub commands: u64,
    pub wrong: u64,
    pub checked: u64,
    pub anomalies: u64,
    pub poison: u64,
    pub doorbells: u64,
}

const _: () = assert!(size_of::<Channel>() == 136 && size_of::<Answered>() == 48 && size_of::<Read>() == 48);
