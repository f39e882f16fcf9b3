//! `warprow keeper`: the process that keeps memory of a GPU while a drive may write to it.

use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::Arc;

use warprow_vfio::{Keeper, KeeperError, keep};

use super::CommandOutput;
use crate::failure::{Class, Failure};

/// The subcommand's name.
pub(crate) const NAME: &str = "keeper";

/// Starts this program anew as a keeper. To be called before CUDA is initialised, whose descriptors kernels before 5.11 would hand on.
pub(crate) fn start() -> Result<Arc<Keeper>, KeeperError> {
    let program =
        std::env::current_exe().map_err(|source| KeeperError::Start { program: "warprow".to_owned(), source })?;
    let mut command = Command::new(program);
    // Nobody waits for a keeper's output to end.
    command.arg(NAME).stdout(Stdio::null());
    Keeper::start(command).map(Arc::new)
}

/// Keeps what the process that started this one hands over by its standard input. To be called before anything else is opened.
pub(crate) fn run() -> Result<CommandOutput, Failure> {
    let failed = |error: String| Failure::new(Class::Unready, NAME, error).remedy("warprow starts its keeper itself");
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(|error| failed(error.to_string()))?;
    keep(socket).map_err(|error| failed(error.to_string()))?;
    Ok(CommandOutput::default())
}
