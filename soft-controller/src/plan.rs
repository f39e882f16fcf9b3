//! Who serves a queue in a round: the worker or an offload.

/// What becomes of a queue in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Plan {
    /// The worker serves it, as without an offload.
    #[default]
    Worker,
    /// The queue is the offload's, and holds nothing.
    Nothing,
    /// The queue is the offload's, and a read is next.
    Read,
    /// The queue is the offload's; the worker executes what comes before the next read.
    Left,
    /// The queue is the offload's, which has left the next command to the worker, whatever that command is.
    Stopped,
}
