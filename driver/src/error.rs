use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use warprow_dma::{AllocateError, FunctionError};
use warprow_spec::Status;
use warprow_spec::features::FeatureId;
use warprow_spec::identify::LbaFormat;
use warprow_spec::registers::Csts;

use crate::failure::RecoveryFailure;
use crate::loss::FormatLoss;
use crate::queue::{CommandName, PushError};

/// What can go wrong between the driver and a controller. Every variant names the function, what was asked of it, what
/// it answered, and what to do.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DriverError {
    /// The transport failed.
    #[error(transparent)]
    Function(#[from] FunctionError),
    /// Memory for DMA could not be had.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// The controller lacks something that the driver needs, or its registers or Identify data contradict the
    /// specification.
    #[error("{function}: cannot drive this controller: {why}")]
    Unusable {
        /// The function's name.
        function: Arc<str>,
        /// The register or field, what it says, and what would be needed.
        why: String,
    },
    /// The device reads as all ones.
    #[error(
        "{function}: the device is gone (its registers read as all ones) during {during}; check that it is powered, \
         seated and bound, then open it anew"
    )]
    Gone {
        /// The function's name.
        function: Arc<str>,
        /// What was being done.
        during: &'static str,
    },
    /// The controller reports a fatal error (CSTS.CFS), or left the ready state by itself.
    #[error(
        "{function}: the controller failed during {during} ({}); reset it, and power-cycle it if that fails",
        Words(*.csts)
    )]
    Fatal {
        /// The function's name.
        function: Arc<str>,
        /// What was being done.
        during: &'static str,
        /// Controller Status.
        csts: Csts,
    },
    /// CSTS.RDY did not follow CC.EN in time.
    #[error(
        "{function}: the controller did not become {} within {waited:?} ({}); reset the function or power-cycle the \
         drive", if *.ready { "ready" } else { "disabled" }, Words(*.csts)
    )]
    NotReady {
        /// The function's name.
        function: Arc<str>,
        /// The value of CSTS.RDY that was waited for.
        ready: bool,
        /// How long.
        waited: Duration,
        /// Controller Status at the end.
        csts: Csts,
    },
    /// A shutdown did not complete in time.
    #[error(
        "{function}: shutdown was not complete after {waited:?} ({}); data in the drive's volatile cache may be lost if \
         power goes now", Words(*.csts)
    )]
    ShutdownTimeout {
        /// The function's name.
        function: Arc<str>,
        /// How long was waited.
        waited: Duration,
        /// Controller Status at the end.
        csts: Csts,
    },
    /// The controller is not enabled: it was shut down, or a reset failed.
    #[error("{function}: the controller is not enabled; reset it or open it anew")]
    Down {
        /// The function's name.
        function: Arc<str>,
    },
    /// Recovery has come to its end: nothing is sent to this controller any more.
    #[error(
        "{function}: the drive was given up: {failure}; once it is back, retry it (Controller::retry), or open it anew"
    )]
    GivenUp {
        /// The function's name.
        function: Arc<str>,
        /// What failed, and what was tried.
        failure: Arc<RecoveryFailure>,
    },
    /// The device answered a command with an error status.
    #[error("{function}: {command} failed: {status}")]
    Command {
        /// The function's name.
        function: Arc<str>,
        /// The command.
        command: CommandName,
        /// What the device answered.
        status: Status,
    },
    /// The device did not answer a command in time.
    #[error(
        "{function}: no answer to {command} within {waited:?} ({}); its memory stays in quarantine until the queue is \
         recreated or the controller reset", Words(*.csts)
    )]
    TimedOut {
        /// The function's name.
        function: Arc<str>,
        /// The command.
        command: CommandName,
        /// How long was waited.
        waited: Duration,
        /// Controller Status when the wait ended.
        csts: Csts,
    },
    /// Commands that change the media timed out and may still be carried out.
    #[error(
        "{function}: {count} writes or formats timed out and may still be carried out, over what is written now; recreate \
         their queues, or reset the controller"
    )]
    LateWrites {
        /// The function's name.
        function: Arc<str>,
        /// How many.
        count: u32,
    },
    /// A reset or the deletion of its queue ended a command before the device answered.
    #[error("{function}: {command} was lost to a reset or the deletion of its queue; send it again")]
    Lost {
        /// The function's name.
        function: Arc<str>,
        /// The command.
        command: CommandName,
    },
    /// All admin command slots were taken for the whole time.
    #[error("{function}: no free slot in the admin queue within {waited:?}; reset the controller")]
    AdminQueueFull {
        /// The function's name.
        function: Arc<str>,
        /// How long was waited.
        waited: Duration,
    },
    /// There is no such namespace, or it is not attached to this controller.
    #[error("{function}: no active namespace {nsid}; the active ones are listed by Controller::active_namespaces")]
    NoSuchNamespace {
        /// The function's name.
        function: Arc<str>,
        /// The namespace identifier.
        nsid: u32,
    },
    /// Identify data that cannot be right.
    #[error("{function}: Identify data of namespace {nsid} is not credible: {why}; update the drive's firmware")]
    BadNamespace {
        /// The function's name.
        function: Arc<str>,
        /// The namespace identifier.
        nsid: u32,
        /// What it says.
        why: String,
    },
    /// The drive has no LBA format of this size without metadata.
    #[error(
        "{function}: namespace {nsid} offers no LBA format of {wanted} B without metadata; it offers {}",
        Formats(offered)
    )]
    LbaFormatNotOffered {
        /// The function's name.
        function: Arc<str>,
        /// The namespace identifier.
        nsid: u32,
        /// Data bytes of an LBA that were asked for.
        wanted: u32,
        /// What there is.
        offered: Vec<LbaFormat>,
    },
    /// Format NVM would destroy other namespaces than the one named.
    #[error(
        "{function}: formatting namespace {nsid} would erase every namespace of this drive: {}; consent to that \
         explicitly, or use another drive",
        Losses(losses)
    )]
    FormatNeedsConsent {
        /// The function's name.
        function: Arc<str>,
        /// The namespace that was to be formatted.
        nsid: u32,
        /// Every namespace that would be lost, the named one included.
        losses: Vec<FormatLoss>,
    },
    /// The device said that it formatted the namespace, and Identify shows otherwise.
    #[error(
        "{function}: after Format NVM namespace {nsid} has LBAs of {found} B, not {wanted} B; power-cycle the drive"
    )]
    FormatNotApplied {
        /// The function's name.
        function: Arc<str>,
        /// The namespace identifier.
        nsid: u32,
        /// Data bytes of an LBA that were asked for.
        wanted: u32,
        /// Data bytes of an LBA as Identify has them now.
        found: u32,
    },
    /// An optional command that this controller does not have.
    #[error("{function}: the controller does not support {what}")]
    Unsupported {
        /// The function's name.
        function: Arc<str>,
        /// The command or feature.
        what: &'static str,
    },
    /// A feature that gives the drive memory, which only the driver does, since it knows what is mapped.
    #[error(
        "{function}: {fid} has the drive write to memory, so that it is not set by its number: the driver lends the memory when it \
         opens the controller, as ControllerOptions::host_memory_limit allows"
    )]
    FeatureLendsMemory {
        /// The function's name.
        function: Arc<str>,
        /// The feature.
        fid: FeatureId,
    },
    /// All I/O queues that the controller granted are in use.
    #[error("{function}: all {granted} I/O queue pairs of this controller are in use; drop one, or use fewer")]
    NoQueueLeft {
        /// The function's name.
        function: Arc<str>,
        /// Queue pairs that the controller granted.
        granted: u16,
    },
    /// A queue of an impossible size.
    #[error("{function}: a queue of {asked} entries is not possible; 2 to {max} are")]
    QueueSize {
        /// The function's name.
        function: Arc<str>,
        /// Entries asked for.
        asked: u32,
        /// Most entries the controller takes.
        max: u32,
    },
    /// Memory that cannot hold the rings of a queue pair.
    #[error("{function}: this memory cannot hold a queue pair: {why}")]
    QueueMemory {
        /// The function's name.
        function: Arc<str>,
        /// What it is, and what would be needed.
        why: String,
    },
    /// The controller was reset since this queue pair was made.
    #[error("{function}: queue {queue} is stale: the controller was reset; call QueuePair::recreate")]
    Stale {
        /// The function's name.
        function: Arc<str>,
        /// Queue identifier.
        queue: u16,
    },
    /// The queue can take no command, and waiting will not change that.
    #[error(
        "{function}: queue {queue} is stuck: {quarantined} commands in quarantine and {outstanding} unfinished hold its \
         places or its buffer; call QueuePair::recreate (BlockIo::recover)"
    )]
    Stuck {
        /// The function's name.
        function: Arc<str>,
        /// Queue identifier.
        queue: u16,
        /// Commands in quarantine.
        quarantined: u32,
        /// Commands that had not ended when an error ended the wait for them.
        outstanding: u32,
    },
    /// Queue pairs whose owners, or submitters, did not let go of them.
    #[error(
        "{function}: queue pairs {queues:?} are still in use; drop them, have their owners call QueuePair::leave, or wait \
         for what submits to them (a kernel) to end, then try again"
    )]
    QueuesInUse {
        /// The function's name.
        function: Arc<str>,
        /// Identifiers of the queues that are in use.
        queues: Vec<u16>,
    },
    /// A command that was refused before it was sent.
    #[error("{function}: queue {queue}: {source}")]
    Push {
        /// The function's name.
        function: Arc<str>,
        /// Queue identifier.
        queue: u16,
        /// Why.
        source: PushError,
    },
    /// A transfer that does not fit the namespace's blocks.
    #[error("{function}: {len} bytes are not whole blocks of {lba_bytes} B: pad the buffer")]
    NotWholeBlocks {
        /// The function's name.
        function: Arc<str>,
        /// Length of the transfer, bytes.
        len: usize,
        /// Data bytes of an LBA.
        lba_bytes: u32,
    },
}

impl DriverError {
    /// The name of the function, and so of the drive; `None`: it is the transport's error, or memory could not be had.
    pub fn function(&self) -> Option<&str> {
        match self {
            Self::Function(_) | Self::Allocate(_) => None,
            Self::Unusable { function, .. }
            | Self::Gone { function, .. }
            | Self::Fatal { function, .. }
            | Self::NotReady { function, .. }
            | Self::ShutdownTimeout { function, .. }
            | Self::Down { function, .. }
            | Self::GivenUp { function, .. }
            | Self::Command { function, .. }
            | Self::TimedOut { function, .. }
            | Self::LateWrites { function, .. }
            | Self::Lost { function, .. }
            | Self::AdminQueueFull { function, .. }
            | Self::NoSuchNamespace { function, .. }
            | Self::BadNamespace { function, .. }
            | Self::LbaFormatNotOffered { function, .. }
            | Self::FormatNeedsConsent { function, .. }
            | Self::FormatNotApplied { function, .. }
            | Self::Unsupported { function, .. }
            | Self::FeatureLendsMemory { function, .. }
            | Self::NoQueueLeft { function, .. }
            | Self::QueueSize { function, .. }
            | Self::QueueMemory { function, .. }
            | Self::Stale { function, .. }
            | Self::Stuck { function, .. }
            | Self::QueuesInUse { function, .. }
            | Self::Push { function, .. }
            | Self::NotWholeBlocks { function, .. } => Some(function),
        }
    }

    /// The command that failed, and how, without the drive and the remedy; `None`: it is no error of a command.
    pub fn command(&self) -> Option<String> {
        match self {
            Self::Command { command, status, .. } => Some(format!("{command} failed: {status}")),
            Self::TimedOut { command, waited, .. } => Some(format!("no answer to {command} within {waited:?}")),
            Self::Lost { command, .. } => Some(format!("{command} was lost to a reset or the deletion of its queue")),
            _ => None,
        }
    }
}

/// CSTS in words.
struct Words(Csts);

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let csts = self.0;
        if csts.is_absent() {
            return f.write_str("CSTS reads as all ones: the device is gone");
        }
        write!(f, "CSTS {:#x}: {}", csts.into_bits(), if csts.rdy() { "ready" } else { "not ready" })?;
        if csts.cfs() {
            f.write_str(", fatal error")?;
        }
        if csts.pp() {
            f.write_str(", processing paused")?;
        }
        match csts.shst().0 {
            0 => Ok(()),
            _ => write!(f, ", {}", csts.shst()),
        }
    }
}

struct Formats<'a>(&'a [LbaFormat]);

impl fmt::Display for Formats<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (i, format) in self.0.iter().enumerate() {
            write!(f, "{}{format}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

struct Losses<'a>(&'a [FormatLoss]);

impl fmt::Display for Losses<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, loss) in self.0.iter().enumerate() {
            write!(f, "{}{loss}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fits_in_a_result() {
        assert!(size_of::<DriverError>() < 128, "{}", size_of::<DriverError>());
    }
}
