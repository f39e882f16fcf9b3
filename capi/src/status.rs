//! Codes of outcomes.

/// What a call came to. All but WARPROW_STATUS_OK come with a warprow_error, if the caller asked for one.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum warprow_status {
    /// The call did what it says.
    Ok = 0,
    /// An argument is NULL, misaligned, out of range, of the wrong type or size, or does not fit the plan. Nothing was done.
    InvalidArgument = 1,
    /// A handle was closed, is of another kind, or is none; or this process was forked after the library was used.
    InvalidHandle = 2,
    /// The program was compiled against another version of this interface than the library has.
    AbiMismatch = 3,
    /// This library, GPU, table or drive cannot do what was asked.
    Unsupported = 4,
    /// There is no table, generation, drive, file or key of that name or number.
    NotFound = 5,
    /// There is a table of that name already.
    Exists = 6,
    /// The call would destroy what nobody agreed to lose, or stands against the state of the store. Nothing was changed.
    Refused = 7,
    /// A slot, a drive or a store is in use; try again later.
    Busy = 8,
    /// A callback of the program said stop. Nothing was committed.
    Interrupted = 9,
    /// Memory, queues or room on drives do not suffice.
    OutOfResources = 10,
    /// A file cannot be read, or holds nothing that can be loaded.
    File = 11,
    /// What lies on the drives is no store, is incomplete, or is damaged.
    Store = 12,
    /// A drive failed.
    Drive = 13,
    /// The GPU, or CUDA, failed, or there is none.
    Gpu = 14,
    /// Rows could not be read. All other rows of the output are valid. Of warprow_gpu_ticket_check also: runs before the latest failed.
    RowsFailed = 15,
    /// Ids are missing, of features for which that is an error. On the host the output is untouched; on a GPU these ids have zeros.
    MissingIds = 16,
    /// The library has a fault. Please report the error's message.
    Bug = 17,
}
