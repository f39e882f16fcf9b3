//! Client and server of vfio-user, over a socket: what the driver and a controller must pass together, and what becomes of each when
//! the other lies, stalls or dies.

mod by_hand;
mod by_messages;
mod checks;
mod client_lies;
mod deaths;
mod fixture;
mod interrupts;
mod server_lies;
