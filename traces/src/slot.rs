//! The slots of a trace.

/// A list of keys in each sample: what one feature looks up in one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceSlot {
    /// The column's name; where slots have none, their number from 0; of a bare list the file's name without its ending.
    pub name: String,
    /// Whether keys are `i64`, in two's complement, rather than `u64`. Text tells with the first key below zero; until then
    /// it is `false`.
    pub signed: bool,
}
