use std::path::PathBuf;

use warprow_dma::FunctionError;

/// Why a controller behind a socket could not be opened, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Nobody answers there.
    #[error("cannot connect to {}: {source}", .path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Another client is served.
    #[error("{} is in use: its server has another client", .path.display())]
    Busy {
        /// The socket.
        path: PathBuf,
    },
    /// Whoever answers there does not speak vfio-user, or not as the specification says.
    #[error("{} does not lead to a vfio-user device: {what}", .path.display())]
    Foreign {
        /// The socket.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The device is not an NVMe controller.
    #[error("{} leads to a device of class {class:06x}, which is no NVMe controller (010802)", .path.display())]
    NotNvme {
        /// The socket.
        path: PathBuf,
        /// The function's class code.
        class: u32,
    },
    /// The device answered and then failed.
    #[error(transparent)]
    Function(#[from] FunctionError),
}
