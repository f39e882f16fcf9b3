//! Admin commands (NVMe Base 2.0, 5; NVMe 1.4, 5).

mod dispatch;
mod events;
mod features;
mod format;
mod host_memory;
mod identify;
mod log_page;
mod queues;
mod reply;

pub(crate) use reply::Reply;
