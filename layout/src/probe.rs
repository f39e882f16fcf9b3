//! What the superblock slots of a drive hold. Reads only.

use crate::block::{BlockError, UNIT};
use crate::drive::{Drive, DriveError};
use crate::geometry::{LBA_SHIFTS, SuperblockCopy, superblock_unit, units};
use crate::superblock::Superblock;
use crate::units;

/// What stands in a superblock slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotState {
    /// A superblock.
    Valid(Box<Superblock>),
    /// Zeros: nothing was ever written there.
    Empty,
    /// Something that is neither.
    Bad(BlockError),
}

impl SlotState {
    /// The superblock, if there is one.
    pub fn superblock(&self) -> Option<&Superblock> {
        match self {
            Self::Valid(superblock) => Some(superblock),
            _ => None,
        }
    }
}

/// The superblock slots of a drive: `[A, B]` at the start and at the tail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuperblockProbe {
    /// Slots A and B at the start of the drive.
    pub start: [SlotState; 2],
    /// Slots A and B at the tail of the drive.
    pub tail: [SlotState; 2],
}

/// Reads the superblock slots of `drive`. The tail is where the drive ended when its store was made, as the superblocks at the start
/// tell; where they do not, it is where the drive ends now. A slot that the drive cannot read is [`BlockError::Unreadable`]; `Err` only
/// if it can read none of them.
pub fn probe(drive: &dyn Drive) -> Result<SuperblockProbe, DriveError> {
    let none = || [SlotState::Empty, SlotState::Empty];
    let mut probe = SuperblockProbe { start: none(), tail: none() };
    let size = drive.lba_size();
    let count = if size.is_power_of_two() { units(drive.lba_count(), size) } else { 0 };
    if !LBA_SHIFTS.contains(&(size.trailing_zeros() as u8)) || count < 4 {
        return Ok(probe);
    }
    let mut failure = None;
    let mut readable = false;
    let mut read = |slot, copy, end| {
        let address = superblock_unit(slot, copy, end);
        match units::read(drive, address, 1) {
            Ok(unit) => {
                readable = true;
                unit.first().map_or(SlotState::Empty, |unit| decode(unit, address, slot))
            }
            Err(error) => {
                failure.get_or_insert(error);
                SlotState::Bad(BlockError::Unreadable)
            }
        }
    };
    probe.start = [0, 1].map(|slot| read(slot, SuperblockCopy::Start, count));
    let made_with = |state: &SlotState| {
        state.superblock().and_then(|told| Some(units(told.own()?.lba_count, told.geometry.lba_size())))
    };
    let [first, second] = probe.start.each_ref().map(made_with);
    let end = |told: Option<u64>| told.filter(|end| (4..count).contains(end)).unwrap_or(count);
    probe.tail = [(0, end(first.or(second))), (1, end(second.or(first)))]
        .map(|(slot, end)| read(slot, SuperblockCopy::Tail, end));
    match failure {
        Some(error) if !readable => Err(error),
        _ => Ok(probe.without_strays()),
    }
}

fn decode(unit: &[u8; UNIT], address: u64, slot: u8) -> SlotState {
    match Superblock::decode(unit, address, slot) {
        Ok(superblock) => SlotState::Valid(Box::new(superblock)),
        Err(_) if unit.iter().all(|&byte| byte == 0) => SlotState::Empty,
        Err(error) => SlotState::Bad(error),
    }
}

impl SuperblockProbe {
    /// Marks superblocks of another store or member than most on this drive as misplaced: a write for another drive
    /// went astray.
    fn without_strays(mut self) -> Self {
        let identity = |superblock: &Superblock| (superblock.store, superblock.own().map(|own| own.uuid));
        let valid = || self.states().filter_map(SlotState::superblock);
        let votes = |of: &Superblock| valid().filter(|other| identity(other) == identity(of)).count();
        let Some(own) = valid().max_by_key(|superblock| (votes(superblock), superblock.epoch)).map(identity) else {
            return self;
        };
        for state in self.start.iter_mut().chain(&mut self.tail) {
            if let Some(found) = state.superblock().map(identity).filter(|found| *found != own) {
                let field = if found.0 == own.0 { "member" } else { "store" };
                *state = SlotState::Bad(BlockError::Misplaced { field });
            }
        }
        self
    }

    /// Both copies, start and tail, of the slot to which `epoch` belongs by its parity.
    pub(crate) fn slot(&self, epoch: u64) -> [&SlotState; 2] {
        match epoch & 1 {
            0 => [&self.start[0], &self.tail[0]],
            _ => [&self.start[1], &self.tail[1]],
        }
    }

    pub(crate) fn states(&self) -> impl Iterator<Item = &SlotState> {
        self.start.iter().chain(&self.tail)
    }

    /// The valid superblock of the highest epoch.
    pub fn newest(&self) -> Option<&Superblock> {
        self.states().filter_map(SlotState::superblock).max_by_key(|superblock| superblock.epoch)
    }

    /// Whether any slot looks like a superblock, valid or not.
    pub fn has_magic(&self) -> bool {
        self.states().any(|state| match state {
            SlotState::Valid(_) => true,
            SlotState::Empty | SlotState::Bad(BlockError::NoMagic | BlockError::Unreadable) => false,
            SlotState::Bad(_) => true,
        })
    }

    /// Whether both copies of the slot of `epoch` + 1 are lost, where `epoch` is the newest epoch that can be read:
    /// then a newer epoch may have stood there, and `epoch` may be out of date. A power cut in a commit never leaves a
    /// slot in that state, because the commit writes the tail copy only after the copy at the start is durable.
    pub(crate) fn lost_beside(&self, epoch: u64) -> bool {
        let [start, tail] = self.slot(epoch.wrapping_add(1));
        let never_written = epoch <= 1 && *tail == SlotState::Empty;
        start.superblock().is_none() && tail.superblock().is_none() && !never_written
    }
}
