//! Where rings, doorbells and landing areas of the drives' queues live: the best placement for each drive, and why no
//! better one was taken.

use std::fmt;

use warprow_dma::Function;

use crate::memory_placement::PlacedMemory;
use crate::{DoorbellAccess, Gpu, GpuQueueError, MemoryPlacement};

/// Where rings, landing areas and doorbells live when a GPU fetches rows from drives, best first. The doorbells of an
/// emulated drive are pinned memory, in place of BAR0's registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QueuePlacement {
    /// Rings and landing areas lie in GPU memory; the GPU stores to the doorbell registers in BAR0.
    A,
    /// Completion queues and landing areas lie in GPU memory, submission queues in pinned memory of the host; the GPU
    /// stores to the doorbell registers in BAR0.
    AMinus,
    /// Rings and landing areas lie in pinned memory of the host; the GPU stores to the doorbell registers in BAR0.
    B,
    /// Rings and landing areas lie in pinned memory; a host thread stores to the doorbell registers in BAR0 for the
    /// GPU.
    BPrime,
    /// Rings, landing areas and doorbells lie in pinned memory; the controller is software.
    C,
    /// There is no GPU: the host executor reads the drives.
    D,
}

impl QueuePlacement {
    /// All placements, best first.
    pub const ALL: [Self; 6] = [Self::A, Self::AMinus, Self::B, Self::BPrime, Self::C, Self::D];

    /// The placement's letter.
    pub fn name(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::AMinus => "A⁻",
            Self::B => "B",
            Self::BPrime => "B′",
            Self::C => "C",
            Self::D => "D",
        }
    }

    /// A sentence of what lies where, for messages.
    pub fn description(self) -> &'static str {
        match self {
            Self::A => "rings in GPU memory, doorbells rung by the GPU",
            Self::AMinus => {
                "completion queues in GPU memory, submission queues in pinned memory, doorbells rung by the GPU"
            }
            Self::B => "rings in pinned memory, doorbells of the device rung by the GPU",
            Self::BPrime => "rings in pinned memory, doorbells rung by a host thread for the GPU",
            Self::C => "rings and doorbells in pinned memory, drives in software",
            Self::D => "the host executor",
        }
    }
}

impl fmt::Display for QueuePlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The placement that was chosen for one drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrivePlacement {
    /// The drive's name.
    pub drive: String,
    /// Where its rings, doorbells and rows live.
    pub placement: QueuePlacement,
}

/// The placements that were chosen for the drives of a store. Drives of different kinds may have different placements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuePlacements {
    /// The name of the GPU, if there is one.
    pub gpu: Option<String>,
    /// The worst placement that any drive has.
    pub placement: QueuePlacement,
    /// The placement of each drive.
    pub drives: Vec<DrivePlacement>,
    /// Each placement that is better than the worst and that no drive has, with the reason.
    pub refused: Vec<(QueuePlacement, String)>,
    /// Whether the caller asked for who stores to the doorbells ([`DoorbellAccess`]), or for where rings lie
    /// ([`MemoryPlacement`]).
    pub asked: bool,
}

impl QueuePlacements {
    /// Chooses placements for the drives behind these functions, whose doorbells are stored to as `doorbells` says, and
    /// whose queues lie where `memory` says; `gpu` is the GPU, or the reason why there is none.
    pub fn choose<'a>(
        gpu: Result<&Gpu, &GpuQueueError>,
        functions: impl IntoIterator<Item = &'a dyn Function>,
        doorbells: DoorbellAccess,
        memory: MemoryPlacement,
    ) -> Self {
        Self::of(gpu.map(|gpu| gpu.name().to_owned()).map_err(ToString::to_string), functions, doorbells, memory)
    }

    /// The placements where completion queues and landing areas of the drives lie in memory of the GPU that the caller gave
    /// ([`QueueSetOptions::writable`](crate::QueueSetOptions::writable)): A⁻ for all whose registers the GPU stores to.
    #[must_use]
    pub fn with_drive_memory(mut self) -> Self {
        for drive in self.drives.iter_mut().filter(|drive| drive.placement == QueuePlacement::B) {
            drive.placement = QueuePlacement::AMinus;
        }
        self.placement = self.drives.iter().map(|it| it.placement).max().unwrap_or(self.placement);
        self.refused.retain(|(placement, _)| *placement < self.placement && *placement != QueuePlacement::AMinus);
        Self { asked: true, ..self }
    }

    /// The placements after ring tests of the drives in turn: a host thread rings for those that have failed, for the
    /// reason given.
    #[must_use]
    pub fn after_tests(mut self, failures: &[Option<String>]) -> Self {
        let failed = self.drives.iter_mut().zip(failures).filter_map(|(drive, why)| Some((drive, why.as_ref()?)));
        let mut reasons = Vec::new();
        for (drive, why) in failed {
            drive.placement = QueuePlacement::BPrime;
            reasons.push(why.clone());
        }
        let Some(first) = reasons.first() else { return self };
        self.placement = self.drives.iter().map(|it| it.placement).max().unwrap_or(self.placement);
        // Of several drives that have failed, the first says why.
        if !self.refused.iter().any(|(placement, _)| *placement == QueuePlacement::B) {
            self.refused.push((QueuePlacement::B, first.clone()));
            self.refused.sort_by_key(|(placement, _)| *placement);
        }
        self
    }

    fn of<'a>(
        gpu: Result<String, String>,
        functions: impl IntoIterator<Item = &'a dyn Function>,
        doorbells: DoorbellAccess,
        memory: MemoryPlacement,
    ) -> Self {
        let placement = |function: &dyn Function| match (&gpu, memory.on(function, doorbells)) {
            (Err(_), _) => QueuePlacement::D,
            (Ok(_), _) if doorbells == DoorbellAccess::HostThread => QueuePlacement::BPrime,
            (Ok(_), PlacedMemory::A) => QueuePlacement::A,
            (Ok(_), PlacedMemory::AMinus) => QueuePlacement::AMinus,
            (Ok(_), _) if function.doorbell_memory().is_some() => QueuePlacement::C,
            (Ok(_), _) if doorbells.wants_registers() => QueuePlacement::B,
            (Ok(_), _) => QueuePlacement::BPrime,
        };
        let choice = |function: &'a dyn Function| DrivePlacement {
            drive: function.name().to_owned(),
            placement: placement(function),
        };
        let drives: Vec<DrivePlacement> = functions.into_iter().map(choice).collect();
        let none = if gpu.is_ok() { QueuePlacement::BPrime } else { QueuePlacement::D };
        let lowest = drives.iter().map(|choice| choice.placement).max().unwrap_or(none);
        let reason = |placement| {
            match (&gpu, placement) {
            (Err(why), _) => why.clone(),
            (Ok(_), QueuePlacement::A | QueuePlacement::AMinus) => {
                "taken by themselves for drives that a GPU plays (an address with gpu=) alone; physical drives take A⁻ where it is asked for"
                    .to_owned()
            }
            (Ok(_), QueuePlacement::B) => "unproven on hardware; DoorbellAccess::Best tries it".to_owned(),
            (Ok(_), _) => "the drives are software, with doorbells in memory that the GPU reaches itself".to_owned(),
        }
        };
        let taken = |placement| drives.iter().any(|choice| choice.placement == placement);
        let refused = QueuePlacement::ALL.into_iter().filter(|&placement| placement < lowest && !taken(placement));
        let refused = refused.map(|placement| (placement, reason(placement))).collect();
        let asks_memory = memory != MemoryPlacement::default();
        let asks_doorbells = matches!(doorbells, DoorbellAccess::HostThread | DoorbellAccess::Registers);
        let asked = (asks_memory || asks_doorbells) && gpu.is_ok();
        Self { asked, gpu: gpu.ok(), placement: lowest, drives, refused }
    }
}

impl fmt::Display for QueuePlacements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.gpu {
            Some(gpu) => write!(f, "{gpu}, ")?,
            None => f.write_str("no GPU, ")?,
        }
        let asked = if self.asked { ", as asked for" } else { "" };
        write!(f, "placement {}: {}{asked}", self.placement, self.placement.description())?;
        for choice in self.drives.iter().filter(|choice| choice.placement != self.placement) {
            write!(f, "; {} on {}: {}", choice.drive, choice.placement, choice.placement.description())?;
        }
        // Neighbours with one reason share it.
        for group in self.refused.chunk_by(|a, b| a.1 == b.1) {
            f.write_str("; not ")?;
            for (i, (placement, _)) in group.iter().enumerate() {
                write!(f, "{}{placement}", if i == 0 { "" } else { ", " })?;
            }
            write!(f, ": {}", group[0].1)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use warprow_dma::{DmaMemory, Doorbell, FunctionError};
    use warprow_soft_controller::SoftController;

    /// A function with its doorbells in a BAR.
    #[derive(Debug)]
    struct Card;

    fn refused<T>() -> Result<T, FunctionError> {
        Err(FunctionError::Gone { function: "0000:01:00.0".into() })
    }

    impl Function for Card {
        fn name(&self) -> &str {
            "0000:01:00.0"
        }
        fn read_u32(&self, _: u64) -> Result<u32, FunctionError> {
            refused()
        }
        fn read_u64(&self, _: u64) -> Result<u64, FunctionError> {
            refused()
        }
        fn write_u32(&self, _: u64, _: u32) -> Result<(), FunctionError> {
            refused()
        }
        fn write_u64(&self, _: u64, _: u64) -> Result<(), FunctionError> {
            refused()
        }
        fn doorbell(&self, _: u64) -> Result<Doorbell, FunctionError> {
            refused()
        }
        fn map(&self, _: &DmaMemory) -> Result<u64, FunctionError> {
            refused()
        }
        fn unmap(&self, _: u64) -> Result<(), FunctionError> {
            refused()
        }
        fn set_bus_master(&self, _: bool) -> Result<(), FunctionError> {
            refused()
        }
        fn reset(&self) -> Result<(), FunctionError> {
            refused()
        }
    }

    fn choose(gpu: Result<&str, &str>, functions: &[&dyn Function]) -> QueuePlacements {
        QueuePlacements::of(
            gpu.map(str::to_owned).map_err(str::to_owned),
            functions.iter().copied(),
            DoorbellAccess::Memory,
            MemoryPlacement::default(),
        )
    }

    #[test]
    fn placements_and_reasons() {
        let soft: Arc<SoftController> = SoftController::builder().name("emulated:a").stepped().build().unwrap();
        let (soft, card): (&dyn Function, &dyn Function) = (&*soft, &Card);
        let gpu = Ok("NVIDIA H200");
        let unproven = "not A, A⁻: taken by themselves for drives that a GPU plays (an address with gpu=) alone; physical drives take A⁻ where it is asked for; not B: unproven on hardware; DoorbellAccess::Best tries it";
        let soft_only = format!(
            "NVIDIA H200, placement C: rings and doorbells in pinned memory, drives in software; {unproven}; not B′: the drives are \
             software, with doorbells in memory that the GPU reaches itself"
        );
        assert_eq!(choose(gpu, &[soft]).to_string(), soft_only);
        let host_thread = "placement B′: rings in pinned memory, doorbells rung by a host thread for the GPU";
        let card_only = format!("NVIDIA H200, {host_thread}; {unproven}");
        assert_eq!(choose(gpu, &[card]).to_string(), card_only);
        assert_eq!(choose(gpu, &[]).to_string(), card_only);
        let both = format!(
            "NVIDIA H200, placement C: rings and doorbells in pinned memory, drives in software; 0000:01:00.0 on B′: rings in pinned \
             memory, doorbells rung by a host thread for the GPU; {unproven}"
        );
        assert_eq!(choose(gpu, &[soft, card]).to_string(), both);
        let asked = |doorbells| {
            QueuePlacements::of(Ok("NVIDIA H200".to_owned()), [soft, card], doorbells, MemoryPlacement::default())
        };
        let by_thread = asked(DoorbellAccess::HostThread);
        assert_eq!(by_thread.to_string(), format!("NVIDIA H200, {host_thread}, as asked for; {unproven}"));
        assert!(by_thread.drives.iter().all(|choice| choice.placement == QueuePlacement::BPrime));
        let by_gpu = asked(DoorbellAccess::Registers);
        let placements = by_gpu.drives.iter().map(|choice| choice.placement).collect::<Vec<_>>();
        assert_eq!((placements, by_gpu.asked), (vec![QueuePlacement::C, QueuePlacement::B], true));
        for (memory, placement) in
            [(MemoryPlacement::A, QueuePlacement::A), (MemoryPlacement::AMinus, QueuePlacement::AMinus)]
        {
            let by_name = QueuePlacements::of(Ok("NVIDIA H200".to_owned()), [soft], DoorbellAccess::Memory, memory);
            assert_eq!((by_name.placement, by_name.asked, by_name.drives.len()), (placement, true, 1));
        }
        // The ring test of the card fails: its reason stands where the better placement would.
        let best = asked(DoorbellAccess::Best);
        assert_eq!((best.drives[1].placement, best.asked), (QueuePlacement::B, false));
        assert_eq!(best.clone().after_tests(&[None, None]), best);
        let tested = best.after_tests(&[None, Some("no answer".to_owned())]);
        assert_eq!(tested.drives[1].placement, QueuePlacement::BPrime);
        let text = tested.to_string();
        assert!(text.contains("0000:01:00.0 on B′") && text.contains("not B: no answer"), "{text}");
        // In memory of the GPU that the caller gave, the card has A⁻, and B′ where the test fails there.
        let given = asked(DoorbellAccess::Best).with_drive_memory();
        let placements = given.drives.iter().map(|choice| choice.placement).collect::<Vec<_>>();
        assert_eq!((placements, given.asked), (vec![QueuePlacement::C, QueuePlacement::AMinus], true));
        assert!(!given.to_string().contains("not A⁻"), "{given}");
        let failed = given.after_tests(&[None, Some("no answer".to_owned())]);
        assert_eq!(failed.drives[1].placement, QueuePlacement::BPrime);
        let none = choose(Err("libcuda cannot be found"), &[soft, card]);
        assert_eq!(
            none.to_string(),
            "no GPU, placement D: the host executor; not A, A⁻, B, B′, C: libcuda cannot be found"
        );
        assert_eq!((none.placement, none.refused.len()), (QueuePlacement::D, 5));
    }
}
