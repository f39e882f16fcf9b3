//! What can go wrong with a module's look-up.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use warprow_gpu::GpuError;
use warprow_lookup::LookupError;
use warprow_store::StoreError;

/// Why a module's look-up failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModuleError {
    /// An argument cannot be as it is.
    #[error("{argument}: {what}")]
    Invalid {
        /// The argument's name.
        argument: &'static str,
        /// What is wrong, and the remedy.
        what: String,
    },
    /// An argument has elements of a type that it cannot have.
    #[error("{argument}: {what}")]
    WrongType {
        /// The argument's name.
        argument: &'static str,
        /// What is wrong, and the remedy.
        what: String,
    },
    /// The store, or its drives.
    #[error(transparent)]
    Store(Box<StoreError>),
    /// A look-up on the host.
    #[error(transparent)]
    Lookup(Box<LookupError>),
    /// A look-up on a GPU.
    #[error(transparent)]
    Gpu(Box<GpuError>),
    /// Others hold what is needed.
    #[error("{0}")]
    Busy(&'static str),
    /// The module, or its store, was closed.
    #[error("the module's store is closed: open it again, and make the module anew")]
    Closed,
    /// This process is a fork of the one that made the look-up.
    #[error(
        "the plan was opened by process {0}, of which this process is a fork: open the store in this process, or start it by spawn \
         (multiprocessing.set_start_method(\"spawn\"))"
    )]
    Forked(u32),
    /// Whoever waits was interrupted; the function of [`set_interrupt`] knows by what.
    #[error("interrupted")]
    Interrupted,
    /// The text of a look-up that means none.
    #[error(
        "the text of a look-up in a compiled model makes no sense to this version of Warprow ({0}): compile the model anew"
    )]
    Text(String),
    /// A look-up that is not there any more.
    #[error("there is no look-up number {0}: its module is gone")]
    Gone(i64),
    /// A fault of this package.
    #[error("a fault of Warprow, please report it: {0}")]
    Bug(String),
    /// Whoever makes look-ups for this process could not make this one, and has told of it itself.
    #[error("{0}")]
    Maker(String),
}

impl From<StoreError> for ModuleError {
    fn from(error: StoreError) -> Self {
        Self::Store(Box::new(error))
    }
}

impl From<LookupError> for ModuleError {
    fn from(error: LookupError) -> Self {
        Self::Lookup(Box::new(error))
    }
}

impl From<GpuError> for ModuleError {
    fn from(error: GpuError) -> Self {
        Self::Gpu(Box::new(error))
    }
}

impl ModuleError {
    /// That an argument cannot be as it is.
    pub fn invalid(argument: &'static str, what: impl Into<String>) -> Self {
        Self::Invalid { argument, what: what.into() }
    }

    /// The text, with those of its causes that it does not have itself.
    pub fn whole(&self) -> String {
        whole(self)
    }
}

/// The text of an error, with those of its causes that it does not have itself.
pub fn whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let told = next.to_string();
        if !text.contains(&told) {
            text = format!("{text}: {told}");
        }
        cause = next.source();
    }
    text
}

static INTERRUPT: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Has waits of this package ask a function, about every 50 ms at least, whether they are to end; without, they end by their
/// limits alone.
pub fn set_interrupt(asked: fn() -> bool) {
    INTERRUPT.store(asked as *mut (), Ordering::Release);
}

fn is_interrupted() -> bool {
    let asked = INTERRUPT.load(Ordering::Acquire);
    if asked.is_null() {
        return false;
    }
    // SAFETY: `set_interrupt` alone stores, and stores a function of this type.
    let asked: fn() -> bool = unsafe { std::mem::transmute(asked) };
    asked()
}

/// The end of a wait, by a limit or by an interrupt.
pub(crate) struct Patience {
    end: Instant,
    busy: &'static str,
}

impl Patience {
    pub(crate) fn new(patience: Duration, busy: &'static str) -> Self {
        Self { end: Instant::now() + patience, busy }
    }

    /// Fails if the wait has to end.
    pub(crate) fn check(&self) -> Result<(), ModuleError> {
        if Instant::now() > self.end {
            return Err(ModuleError::Busy(self.busy));
        }
        if is_interrupted() { Err(ModuleError::Interrupted) } else { Ok(()) }
    }
}
