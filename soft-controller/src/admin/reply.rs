/// How an admin command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Well, with this DW0.
    Done(u32),
    /// Not yet: whoever keeps it will complete it.
    Later,
}
