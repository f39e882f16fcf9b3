//! What every command is given.

use crate::interrupt::Interrupt;
use crate::screen::Screen;

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
