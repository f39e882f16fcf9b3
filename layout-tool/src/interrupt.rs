//! Ctrl-C and SIGTERM: the first asks to stop and clean up, a later one ends the process at once. And SIGXFSZ, which ends nothing.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::failure::{Class, Failure};

/// How long after the first signal others are taken for the same: `timeout` of GNU sends each of its signals twice, to the process and to
/// its group.
const SAME: Duration = Duration::from_millis(200);

/// Whether somebody asked to stop.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    /// Catches the signals from now on.
    pub fn install() -> io::Result<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        let asked = Arc::new(AtomicBool::new(false));
        for (number, exit) in [(SIGINT, Class::Interrupted.exit()), (SIGTERM, Class::Terminated.exit())] {
            flag::register_conditional_shutdown(number, exit.into(), asked.clone())?;
            flag::register_usize(number, signal.clone(), number as usize)?;
        }
        // The shutdown itself is the signal handler's, which works whatever the other threads do.
        let mut first = Signals::new([SIGINT, SIGTERM])?;
        thread::Builder::new().name("signals".into()).spawn(move || {
            if first.forever().next().is_some() {
                thread::sleep(SAME);
                asked.store(true, Ordering::Relaxed);
            }
        })?;
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
