//! The machine that a command looks at: `--root`.

use std::path::PathBuf;

use clap::Args;
use warprow_host::Machine;

use crate::failure::Failure;

/// The machine that a command looks at.
#[derive(Debug, Clone, Args)]
pub struct MachineArgs {
    /// Look at a copy of a machine: the folder that holds its /sys, /proc, /dev and /run
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    root: PathBuf,
}

impl MachineArgs {
    /// The machine.
    pub fn machine(&self) -> Result<Machine, Failure> {
        match self.root.join("sys").is_dir() {
            true => Ok(Machine::at(&self.root)),
            false => {
                let root = self.root.display().to_string();
                let what = format!("{root} has no folder sys");
                Err(Failure::input(root, what).remedy("give the folder that holds the machine's sys and proc"))
            }
        }
    }
}
