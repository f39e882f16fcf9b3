use std::collections::VecDeque;

use warprow_spec::Status;

/// A completion queue entry that fits no outstanding command, or that reports an impossible queue head. A correct
/// device posts such an entry only as the late answer to a command that timed out. No anomaly frees anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anomaly {
    /// A CID that the queue never gives out.
    UnknownCid {
        /// The CID.
        cid: u16,
    },
    /// A CID whose command had already ended, or whose index a later command has taken.
    NotOutstanding {
        /// The CID.
        cid: u16,
    },
    /// The answer to a command that had timed out. The command's memory stays in quarantine.
    Late {
        /// The CID.
        cid: u16,
        /// The submitter's tag.
        tag: u64,
        /// What the device answered.
        status: Status,
    },
    /// An entry that names another submission queue.
    WrongQueue {
        /// The queue it names.
        sqid: u16,
        /// The CID.
        cid: u16,
    },
    /// A submission queue head outside of what was submitted. The command that the entry's CID names has ended all the
    /// same, if it was outstanding.
    BadSqHead {
        /// The head.
        sqhd: u16,
        /// The CID.
        cid: u16,
    },
}

/// How many of each [`Anomaly`] a queue has seen, and the latest of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Anomalies {
    /// Entries with a CID that the queue never gives out.
    pub unknown_cid: u64,
    /// Entries for commands that had already ended: second answers.
    pub not_outstanding: u64,
    /// Answers after the time-out.
    pub late: u64,
    /// Entries that name another queue.
    pub wrong_queue: u64,
    /// Entries with an impossible submission queue head.
    pub bad_sq_head: u64,
    recent: VecDeque<Anomaly>,
}

/// How many anomalies are kept in full.
const RECENT: usize = 16;

impl Anomalies {
    #[cold]
    pub(super) fn note(&mut self, anomaly: Anomaly) {
        let count = match anomaly {
            Anomaly::UnknownCid { .. } => &mut self.unknown_cid,
            Anomaly::NotOutstanding { .. } => &mut self.not_outstanding,
            Anomaly::Late { .. } => &mut self.late,
            Anomaly::WrongQueue { .. } => &mut self.wrong_queue,
            Anomaly::BadSqHead { .. } => &mut self.bad_sq_head,
        };
        *count += 1;
        tracing::debug!(?anomaly, "unexpected completion");
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(anomaly);
    }

    /// The number of anomalies of all kinds.
    pub fn total(&self) -> u64 {
        self.unknown_cid + self.not_outstanding + self.late + self.wrong_queue + self.bad_sq_head
    }

    /// The latest anomalies, oldest first, at most 16.
    pub fn recent(&self) -> impl Iterator<Item = &Anomaly> {
        self.recent.iter()
    }
}
