//! Every check.

use crate::subject::{Subject, Verdict};
use crate::{admin, bring_up, data, dma, features, format, identify, interrupts, load, nvm, queues, reset};

/// One check.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// What holds when it passes.
    pub name: &'static str,
    run: fn(&Subject) -> anyhow::Result<Verdict>,
}

impl Check {
    /// Runs it; the error says what does not hold.
    pub fn run(&self, subject: &Subject) -> anyhow::Result<Verdict> {
        (self.run)(subject)
    }
}

/// Every check, in the order in which they tell most when the first of them fail.
pub const CHECKS: &[Check] = &[
    Check { name: "registers are credible", run: bring_up::registers },
    Check { name: "opening enables, dropping disables", run: bring_up::enables_and_disables },
    Check { name: "an enabled controller is taken over", run: bring_up::takes_over },
    Check { name: "Identify Controller is credible", run: identify::controller },
    Check { name: "namespaces are listed and described", run: identify::namespaces },
    Check { name: "unknown namespaces and structures are refused", run: identify::unknown },
    Check { name: "the number of queues is kept to", run: features::number_of_queues },
    Check { name: "the volatile write cache is switched", run: features::volatile_write_cache },
    Check { name: "unknown features and log pages are refused", run: features::unknown },
    Check { name: "the SMART log counts commands", run: features::smart_log },
    Check { name: "a temperature event is reported, and again", run: features::temperature_event },
    Check { name: "answers to admin commands interrupt", run: interrupts::of_the_admin_queue },
    Check { name: "unknown admin commands are refused", run: admin::unknown_opcode },
    Check { name: "impossible queues are refused", run: admin::impossible_queues },
    Check { name: "Abort of nothing aborts nothing", run: admin::abort_of_nothing },
    Check { name: "what is written is read", run: data::random_transfers },
    Check { name: "namespaces are separate", run: data::namespaces_are_separate },
    Check { name: "PRPs describe any buffer", run: data::any_buffer },
    Check { name: "scattered buffers", run: data::scattered },
    Check { name: "the largest transfer, and one block more", run: data::largest_transfer },
    Check { name: "formats to every LBA size", run: format::every_lba_size },
    Check { name: "a format leaves other namespaces alone", run: format::other_namespaces },
    Check { name: "LBA formats that are not offered are refused", run: format::not_offered },
    Check { name: "the smallest queues, around and around", run: queues::smallest },
    Check { name: "a full queue answers every command once", run: queues::full },
    Check { name: "many queues side by side", run: queues::side_by_side },
    Check { name: "every queue that was granted", run: queues::all_granted },
    Check { name: "Flush and forced unit access", run: nvm::durable_writes },
    Check { name: "Write Zeroes", run: nvm::write_zeroes },
    Check { name: "Compare", run: nvm::compare },
    Check { name: "Deallocate", run: nvm::deallocate },
    Check { name: "LBAs out of range are refused", run: nvm::out_of_range },
    Check { name: "unknown I/O commands and namespaces are refused", run: nvm::unknown },
    Check { name: "DMA reaches no unmapped memory", run: dma::unmapped_data },
    Check { name: "an unreachable queue is fatal, and a reset helps", run: dma::unmapped_submission_queue },
    Check { name: "an unreachable completion queue is fatal as well", run: dma::unmapped_completion_queue },
    Check { name: "resets keep data and lose commands", run: reset::keeps_data },
    Check { name: "a reset waits for the owners of queues", run: reset::waits_for_owners },
    Check { name: "resets under load", run: load::resets },
    Check { name: "aborts under load", run: load::aborts },
    Check { name: "shutdown, and back", run: reset::shutdown },
];
