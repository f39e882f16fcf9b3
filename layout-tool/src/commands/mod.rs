//! The commands. Each has its arguments and a function `run`.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};
use warprow_host::Machine;

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::screen::Screen;

pub mod bind;
pub mod demo;
pub mod devices;
pub mod doctor;
pub mod export;
mod export_all;
pub mod format;
pub mod generations;
mod hit_rates;
pub mod incremental;
pub mod inspect;
pub mod load;
pub mod lookup;
pub mod membership;
mod ordering;
pub mod pass;
mod picture;
pub mod plan;
mod rehearsal;
pub mod repair;
pub mod scrub;
pub mod serve;
pub mod update;
pub mod verify;

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

/// What every command is given.
#[derive(Debug, Clone)]
pub struct Context {
    /// Where progress goes.
    pub screen: Screen,
    /// Whether to stop.
    pub interrupt: Interrupt,
    /// Whether the result is for programs.
    pub json: bool,
}

/// What a command has to say.
#[derive(Debug, Clone, Default)]
pub struct Done {
    /// For people.
    pub text: String,
    /// For programs: the members of the object, without `schema` and `command`.
    pub json: Map<String, Value>,
    /// A failure that does not keep the rest from being printed.
    pub failure: Option<Failure>,
}

impl Done {
    /// With `text` for people and the members of `json`, which serialises as an object, for programs.
    pub fn new(text: impl Into<String>, json: impl Serialize) -> Result<Self, Failure> {
        let value = serde_json::to_value(json);
        match value {
            Ok(Value::Object(json)) => Ok(Self { text: text.into(), json, failure: None }),
            other => Err(Failure::new(crate::failure::Class::Bug, "", format!("no JSON object: {other:?}"))),
        }
    }
}
