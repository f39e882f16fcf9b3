use std::fmt;

use warprow_spec::{AdminOpcode, NSID_ALL, NvmOpcode, Status};

/// What messages say of a command, as it was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IssuedCommand {
    /// Opcode: of the admin command set on the admin queue, of the NVM command set on any other.
    pub opcode: u8,
    /// Command identifier.
    pub cid: u16,
    /// Namespace identifier; 0 for none.
    pub nsid: u32,
    /// CDW10 and CDW11: the starting LBA of commands that have one.
    pub lba: u64,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandEnd {
    /// The device answered with this status.
    Answered(Status),
    /// No answer by the deadline. The device may still carry the command out: its data memory stays in quarantine until
    /// the same tag comes back as [`Released`](Self::Released).
    TimedOut,
    /// The queue was deleted, or the controller reset, before an answer came. Whether the device carried the command
    /// out is not known; it no longer touches its memory.
    Lost,
    /// Follows a [`TimedOut`](Self::TimedOut): the device no longer touches the command's memory.
    Released,
}

/// The end of a command, whether the device completed it or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What the submitter gave with the command.
    pub tag: u64,
    /// How the command ended.
    pub ended: CommandEnd,
    /// Dwords 0 and 1 of the completion, command specific; zero where no answer came.
    pub result: [u32; 2],
    /// The command.
    pub issued: IssuedCommand,
}

impl Completion {
    /// Whether the device answered with success.
    #[inline]
    pub fn is_success(&self) -> bool {
        matches!(self.ended, CommandEnd::Answered(status) if status.is_success())
    }
}

/// A command with the queue it was issued on, as errors print it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandName {
    /// Queue identifier; 0 is the admin queue.
    pub queue: u16,
    /// The command.
    pub issued: IssuedCommand,
}

impl fmt::Display for CommandName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let IssuedCommand { opcode, cid, nsid, lba } = self.issued;
        if self.queue == 0 {
            write!(f, "admin command {}, CID {cid:#06x}", AdminOpcode(opcode))?;
        } else {
            write!(f, "{}, CID {cid:#06x}, on queue {}", NvmOpcode(opcode), self.queue)?;
        }
        match nsid {
            0 => {}
            NSID_ALL => f.write_str(", all namespaces")?,
            _ => write!(f, ", namespace {nsid}")?,
        }
        let has_lba = matches!(
            NvmOpcode(opcode),
            NvmOpcode::READ | NvmOpcode::WRITE | NvmOpcode::COMPARE | NvmOpcode::WRITE_ZEROES
        );
        if self.queue != 0 && has_lba {
            write!(f, ", LBA {lba}")?;
        }
        Ok(())
    }
}
