//! How deep a reset goes.

/// How deep a reset goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ResetKind {
    /// CC.EN = 0 and back, falling back on a reset of the function.
    #[default]
    Controller,
    /// A reset of the PCIe function (FLR); as [`Controller`](Self::Controller) where the function offers none.
    Function,
    /// An NVM subsystem reset, where CAP.NSSRS offers it: every controller of the drive is reset.
    Subsystem,
}
