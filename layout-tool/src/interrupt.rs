//! Ctrl-C and SIGTERM: the first asks to stop and clean up, the second ends the process at once. And SIGXFSZ, which ends nothing.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

use crate::failure::{Class, Failure};

/// Whether somebody asked to stop.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    /// Catches the signals from now on.
    pub fn install() -> io::Result<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        let asked = Arc::new(AtomicBool::new(false));
        for (number, exit) in [(SIGINT, Class::Interrupted.exit()), (SIGTERM, Class::Terminated.exit())] {
            // In the order of registration: the shutdown sees what an earlier signal has set.
            flag::register_conditional_shutdown(number, exit.into(), asked.clone())?;
            flag::register(number, asked.clone())?;
            flag::register_usize(number, signal.clone(), number as usize)?;
        }
        // Else it ends the process where a file passes the limit on its size, before the write can say so. What is run from here has
        // the default again, also where it was ignored before.
        flag::register(SIGXFSZ, Arc::default())?;
        Ok(Self(signal))
    }

    /// Fails once somebody asked to stop.
    pub fn check(&self) -> Result<(), Failure> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            _ => Err(self.failure()),
        }
    }

    /// Whether somebody asked to stop.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Breaks once somebody asked to stop.
    pub fn flow(&self) -> ControlFlow<()> {
        match self.check() {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }

    /// What to say when work was cut short for it.
    pub fn failure(&self) -> Failure {
        let class = match self.0.load(Ordering::Relaxed) as i32 {
            SIGTERM => Class::Terminated,
            _ => Class::Interrupted,
        };
        Failure::new(class, "", "interrupted; cleaned up")
    }
}
