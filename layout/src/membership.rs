//! Adding and removing drives. Chunks that have to move are copied while readers go on, a few for each commit, so that
//! the move can be stopped at any time and continued later. See `docs/updates.md`, "Moving chunks".

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use uuid::Uuid;

use crate::block::{self, UNIT};
use crate::commit::{self, Target};
use crate::drive::Drive;
use crate::error::{StoreFormatError, VolumeError};
use crate::format::{cut, empty_slots};
use crate::generation::{Generation, LogChunk};
use crate::geometry::{Geometry, MAX_MEMBERS, Member, units};
use crate::placement::ChunkRef;
use crate::probe::{SlotState, SuperblockProbe, probe};
use crate::removed;
use crate::superblock::Superblock;
use crate::volume::{For, Volume};

/// Chunks that are copied for one commit.
const AT_ONCE: usize = 64;

/// Called with the number of chunks that were moved, and of those that there are to move. It may stop the move, which
/// can be continued later.
pub type MoveProgress<'a> = &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>;

impl Volume {
    /// Makes a drive a member: it takes a vacant place in the list of members, or the last one. The new member has no
    /// chunks of any generation; [`spread`](Self::spread) then moves its share there. What is on the drive is lost; a
    /// drive that looks like a store is taken only with `overwrite`.
    ///
    /// Returns the store as it is then; this volume goes on for readers, and refuses to write. Nobody may be loading or updating
    /// ([`VolumeError::Busy`], [`VolumeError::LogBusy`]).
    pub fn add_member<D: Drive + 'static>(&self, drive: D, overwrite: bool) -> Result<Self, VolumeError> {
        let drive: Arc<dyn Drive> = Arc::new(drive);
        let incarnation = drive.incarnation();
        let member = self.check_joining(&*drive, overwrite)?;
        let _closing = self.close()?;
        let mut geometry = self.geometry().clone();
        let mut drives = self.drives().to_vec();
        let index = match geometry.members.iter().position(|member| member.vacant) {
            Some(vacant) => vacant,
            None => {
                let count = geometry.members.len();
                geometry.members.push(member.clone());
                drives.push(None);
                count
            }
        };
        if let (Some(entry), Some(place)) = (geometry.members.get_mut(index), drives.get_mut(index)) {
            (*entry, *place) = (member, Some(drive.clone()));
        }
        let joining = Target { member: index as u16, drive: &*drive, incarnation };
        empty_slots(&*drive).and_then(|()| commit::flush(&[joining])).map_err(VolumeError::Drive)?;
        self.change_members(geometry, drives.clone(), Some(joining))
    }

    /// Whether [`add_member`](Self::add_member) would take a drive, as far as that is the drive's affair.
    pub fn may_join(&self, drive: &dyn Drive, overwrite: bool) -> Result<(), VolumeError> {
        self.check_joining(drive, overwrite).map(drop)
    }

    /// The entry that a joining drive will have in the list of members.
    fn check_joining(&self, drive: &dyn Drive, overwrite: bool) -> Result<Member, VolumeError> {
        let geometry = self.geometry();
        let name = || drive.name().to_owned();
        let present: Vec<&Arc<dyn Drive>> = self.drives().iter().flatten().collect();
        if let Some(first) = present.first().filter(|_| drive.lba_size() != geometry.lba_size()) {
            let first = first.name().to_owned();
            let first_size = geometry.lba_size();
            return Err(StoreFormatError::MixedLbaSizes {
                first,
                first_size,
                drive: name(),
                lba_size: drive.lba_size(),
            }
            .into());
        }
        if present.iter().any(|other| other.name() == drive.name()) {
            return Err(StoreFormatError::Twice { drive: name() }.into());
        }
        if geometry.members.iter().filter(|member| !member.vacant).count() >= MAX_MEMBERS {
            return Err(StoreFormatError::DriveCount { given: MAX_MEMBERS + 1 }.into());
        }
        let found = probe(drive).map_err(VolumeError::Drive)?;
        self.refuse_member(drive, &found)?;
        // A member that an attempt which came to nothing left behind is no other store.
        let own = |superblock: &Superblock| superblock.store == self.store();
        if found.has_magic() && !overwrite && !found.newest().is_some_and(own) {
            let store = found.newest().map(|superblock| superblock.store);
            return Err(StoreFormatError::AlreadyFormatted { drive: name(), store }.into());
        }
        let size = units(drive.lba_count(), drive.lba_size());
        let chunk_count = Geometry::chunks_on(size, geometry.first_chunk_unit, geometry.chunk_shift);
        if chunk_count == 0 {
            return Err(StoreFormatError::TooSmall {
                drive: name(),
                size: drive.lba_count().saturating_mul(u64::from(drive.lba_size())),
                needed: (geometry.first_chunk_unit + 2) * UNIT as u64 + geometry.chunk_size(),
            }
            .into());
        }
        let needed = (geometry.total_chunks() + u64::from(chunk_count)) * 4;
        let capacity = geometry.catalogue_capacity();
        if needed > capacity {
            return Err(VolumeError::CatalogueFull { needed, capacity });
        }
        Ok(Member {
            uuid: Uuid::new_v4(),
            lba_count: drive.lba_count(),
            chunk_count,
            serial: cut(drive.serial()),
            vacant: false,
        })
    }

    /// A drive that has a superblock of a member is that member, or a copy of it.
    fn refuse_member(&self, drive: &dyn Drive, found: &SuperblockProbe) -> Result<(), VolumeError> {
        let superblocks = found.states().filter_map(SlotState::superblock);
        let claimed =
            superblocks.filter(|superblock| superblock.store == self.store()).filter_map(|superblock| superblock.own());
        let claimed: Vec<Uuid> = claimed.map(|own| own.uuid).collect();
        let members = self.geometry().members.iter().enumerate();
        match members.into_iter().find(|(_, member)| !member.vacant && claimed.contains(&member.uuid)) {
            None => Ok(()),
            Some((index, member)) => Err(VolumeError::AlreadyMember {
                drive: drive.name().to_owned(),
                member: self.drive(index as u16).map_or_else(|| member.serial.clone(), |drive| drive.name().to_owned()),
            }),
        }
    }

    /// Moves chunks of every generation to `member` until it has its share of each: its share of a generation's chunks
    /// is its share of the chunks of all drives, rounded down, or as many chunks as are free on it. They are taken from
    /// the members that exceed their own share most; no other chunk moves. Readers go on with the chunks that they
    /// have.
    pub fn spread(&self, member: u16, progress: MoveProgress<'_>) -> Result<u64, VolumeError> {
        let plan = || -> Vec<(u64, Vec<usize>)> {
            let shares = self.generations();
            let shares = shares
                .iter()
                .map(|generation| (generation.id, share(generation.placement.map(), member, self.geometry())));
            shares.filter(|(_, columns)| !columns.is_empty()).collect()
        };
        let plan = plan();
        let mut moved = 0;
        let total = plan.iter().map(|(_, columns)| columns.len() as u64).sum();
        for (id, columns) in plan {
            for columns in columns.chunks(AT_ONCE) {
                let count = self.move_columns(id, columns, 0, |free| free.on(member, columns.len()))?;
                moved += count as u64;
                if progress(moved, total).is_break() {
                    return Err(VolumeError::Stopped);
                }
                if count < columns.len() {
                    break; // It is full.
                }
            }
        }
        Ok(moved)
    }

    /// Copies chunks of a generation to the free chunks that `pick` chooses, and commits. Fails if fewer than `least`
    /// chunks are free.
    fn move_columns(
        &self,
        id: u64,
        columns: &[usize],
        least: usize,
        pick: impl FnOnce(&crate::chunks::FreeChunks) -> Vec<ChunkRef>,
    ) -> Result<usize, VolumeError> {
        let edits: BTreeMap<usize, _> = columns.iter().map(|&column| (column, BTreeMap::new())).collect();
        let rewritten = self.rewrite_columns(id, &edits, least, pick)?;
        let count = rewritten.chunks();
        if count > 0 {
            rewritten.commit(|_| ())?;
        }
        Ok(count)
    }

    /// Moves everything off a member, and takes the member out of the store. Before anything is written, this checks
    /// that the others have room. If it is stopped or cut short, the store is as good as any other, and the next call
    /// goes on where this one was.
    ///
    /// Returns the store as it is then; this volume goes on for readers, and refuses to write. It fails while somebody
    /// still reads chunks on the drive ([`VolumeError::MemberInUse`]), loads a table, or has a log open.
    pub fn remove_member(&self, member: u16, progress: MoveProgress<'_>) -> Result<Self, VolumeError> {
        let drive = self.present(member)?.clone();
        let _draining = self.drain(member);
        let Leaving { columns, logs, chunks: total } = self.leaving(member)?;
        let mut moved = 0;
        for (id, columns) in columns {
            for columns in columns.chunks(AT_ONCE) {
                moved += self.move_columns(id, columns, columns.len(), |free| free.spread(columns.len()))? as u64;
                if progress(moved, total).is_break() {
                    return Err(VolumeError::Stopped);
                }
            }
        }
        for (id, logged) in logs {
            self.move_log(id, member)?;
            moved += logged;
            if progress(moved, total).is_break() {
                return Err(VolumeError::Stopped);
            }
        }
        let _closing = self.close()?;
        // A load that had reserved chunks on it before may have been committed since.
        let on_it = |generation: &Arc<Generation>| generation.chunks().any(|chunk| chunk.drive() == member);
        let came = self.generations().iter().find(|&generation| on_it(generation)).map(|generation| generation.id);
        if let Some(generation) = came.or_else(|| self.held_on(member)) {
            return Err(VolumeError::MemberInUse { drive: drive.name().to_owned(), generation });
        }
        let mut geometry = self.geometry().clone();
        let mut drives = self.drives().to_vec();
        if let (Some(entry), Some(place)) =
            (geometry.members.get_mut(usize::from(member)), drives.get_mut(usize::from(member)))
        {
            (entry.vacant, entry.chunk_count, *place) = (true, 0, None);
        }
        let changed = self.change_members(geometry, drives, None)?;
        // It belongs to nobody; that it says so itself is a courtesy.
        let target = Target::new(member, &*drive);
        let _ = removed::mark(&*drive, self.store()).and_then(|()| commit::flush(&[target]));
        Ok(changed)
    }

    /// Whether there are other members, and these have room for what lies on this one.
    pub fn may_leave(&self, member: u16) -> Result<(), VolumeError> {
        let _draining = self.drain(member);
        self.leaving(member).map(drop)
    }

    /// What lies on a member that is being emptied, if the others have room for it.
    fn leaving(&self, member: u16) -> Result<Leaving, VolumeError> {
        self.present(member)?;
        if self.geometry().members.iter().filter(|member| !member.vacant).count() <= 1 {
            return Err(StoreFormatError::DriveCount { given: 0 }.into());
        }
        let mut leaving = Leaving { columns: Vec::new(), logs: Vec::new(), chunks: 0 };
        for generation in self.generations() {
            let on = |chunk: &ChunkRef| chunk.drive() == member;
            let map = generation.placement.map().iter().enumerate();
            let columns: Vec<usize> = map.filter(|(_, chunk)| on(chunk)).map(|(column, _)| column).collect();
            let logged = generation.log.iter().filter(|log| on(&log.chunk)).count() as u64;
            leaving.chunks += columns.len() as u64 + logged;
            leaving.columns.push((generation.id, columns));
            leaving.logs.extend((logged > 0).then_some((generation.id, logged)));
        }
        self.reserve(leaving.chunks, For::Keeps, |_, _| Vec::new())?;
        Ok(leaving)
    }

    /// Copies the chunks of a generation's log that lie on `member`, and seals them.
    fn move_log(&self, id: u64, member: u16) -> Result<(), VolumeError> {
        let _claim = self.claim_log(id)?;
        let writing = self.writing()?;
        let generation: Arc<Generation> = self.generation(id).ok_or(VolumeError::NoSuchGeneration { id })?;
        let from: Vec<&LogChunk> = generation.log.iter().filter(|log| log.chunk.drive() == member).collect();
        let (reserved, ..) = self.reserve(from.len() as u64, For::Compaction, |free, _| free.spread(from.len()))?;
        let mut moved = Vec::new();
        for (&from, &chunk) in from.iter().zip(&*reserved) {
            let count = self.read_stream(&generation, from)?.units;
            let to = LogChunk { chunk, units: Some(count), ..*from };
            let source = self.present(member)?;
            let target = self.present(chunk.drive())?;
            for position in 0..count {
                let old = self.log_id(from, position);
                let new = self.log_id(&to, position);
                let found = crate::units::read(&**source, old.address, 1)?;
                let Some(unit) = found.first() else { continue };
                let payload = block::open_expecting(unit, &old).map_err(|_| VolumeError::LogDamaged {
                    generation: id,
                    drive: source.name().to_owned(),
                    unit: position,
                    what: "it was intact a moment ago",
                })?;
                crate::units::write(&**target, new.address, &[block::seal(&new, payload)])?;
            }
            moved.push((from.chunk, to));
        }
        writing.commit(true, None, |catalogue, _| {
            catalogue.change(id, |generation| {
                for log in &mut generation.log {
                    if let Some((_, to)) = moved.iter().find(|(from, _)| *from == log.chunk) {
                        *log = *to;
                    }
                }
                generation.log.retain(|log| log.units != Some(0));
                Ok(())
            })
        })
    }

    /// Commits the list of members of `geometry`. The superblocks of a member that joins are durable before those of
    /// any other member list it. So where another member lists it, it shows itself that it is a member.
    fn change_members(
        &self,
        geometry: Geometry,
        drives: Vec<Option<Arc<dyn Drive>>>,
        joining: Option<Target<'_>>,
    ) -> Result<Self, VolumeError> {
        let _one_at_a_time = self.committing();
        let members = (0..).zip(&drives).filter_map(|(member, drive)| Some((member, drive.as_ref()?)));
        let all: Vec<Target<'_>> = members
            .map(|(member, drive)| match joining {
                Some(joining) if joining.member == member => joining,
                _ => Target::new(member, &**drive),
            })
            .collect();
        let (superblock, bytes) = self.next_superblock(geometry)?;
        let joins = |target: &&Target<'_>| joining.is_some_and(|joining| joining.member == target.member);
        let first: Vec<Target<'_>> = all.iter().filter(joins).copied().collect();
        let then: Vec<Target<'_>> = all.iter().filter(|target| !joins(target)).copied().collect();
        commit::catalogues(&all, &superblock, &bytes)?;
        let done = commit::superblocks(&first, &superblock).and_then(|()| commit::superblocks(&then, &superblock));
        self.succeeded_by(superblock, drives, done)
    }
}

/// The chunks that have to be moved off a member.
struct Leaving {
    /// By generation, entries of its chunk map.
    columns: Vec<(u64, Vec<usize>)>,
    /// Generations with chunks of their logs on it, and how many.
    logs: Vec<(u64, u64)>,
    /// All of them.
    chunks: u64,
}

/// The entries of a chunk map that go to `member`, so that it has its share.
fn share(map: &[ChunkRef], member: u16, geometry: &Geometry) -> Vec<usize> {
    let total = u128::from(geometry.total_chunks()).max(1);
    let exact = |index: u16| {
        let own = geometry.members.get(usize::from(index)).map_or(0, |member| u128::from(member.chunk_count));
        map.len() as u128 * own
    };
    let mut have = vec![0u128; geometry.members.len()];
    map.iter().for_each(|chunk| {
        if let Some(have) = have.get_mut(usize::from(chunk.drive())) {
            *have += 1;
        }
    });
    let own = have.get(usize::from(member)).copied().unwrap_or(0);
    let mut wanted = (exact(member) / total).saturating_sub(own);
    let mut gives = vec![0usize; have.len()];
    // One after another, from whoever has most beyond its share.
    while wanted > 0 {
        let surplus = |index: usize| (have[index] * total).saturating_sub(exact(index as u16));
        let donors = (0..have.len()).filter(|&index| index != usize::from(member) && surplus(index) > 0);
        let Some(donor) = donors.max_by_key(|&index| (surplus(index), std::cmp::Reverse(index))) else { break };
        have[donor] -= 1;
        gives[donor] += 1;
        wanted -= 1;
    }
    let mut columns = Vec::new();
    for (donor, &gives) in gives.iter().enumerate() {
        let own: Vec<usize> =
            map.iter().enumerate().filter(|(_, chunk)| usize::from(chunk.drive()) == donor).map(|(at, _)| at).collect();
        // Evenly, so that neighbours stay on different drives.
        columns.extend((0..gives).filter_map(|nth| own.get(nth * own.len() / gives)));
    }
    columns.sort_unstable();
    columns
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn a_new_member_gets_its_share_and_a_second_look_moves_nothing(
            counts in prop::collection::vec(1u32..300, 2..6), columns in 1usize..400, seed: u64,
        ) {
            let geometry = Geometry {
                lba_shift: 9,
                chunk_shift: 20,
                catalogue_units: 16,
                first_chunk_unit: 256,
                members: counts
                    .iter()
                    .map(|&chunk_count| Member {
                        uuid: Uuid::nil(),
                        lba_count: 0,
                        chunk_count,
                        serial: String::new(),
                        vacant: false,
                    })
                    .collect(),
            };
            let mut random = fastrand::Rng::with_seed(seed);
            let last = counts.len() - 1;
            let mut map: Vec<ChunkRef> =
                (0..columns).map(|column| ChunkRef::new(random.usize(..last) as u8, column as u32)).collect();
            let moved = share(&map, last as u16, &geometry);
            let all: u64 = counts.iter().map(|&count| u64::from(count)).sum();
            prop_assert_eq!(moved.len() as u64, columns as u64 * u64::from(counts[last]) / all);
            let before = map.clone();
            for &column in &moved {
                map[column] = ChunkRef::new(last as u8, column as u32);
            }
            prop_assert_eq!(map.iter().zip(&before).filter(|(now, then)| now != then).count(), moved.len());
            prop_assert!(share(&map, last as u16, &geometry).is_empty());
            // Interrupted, the rest is what is left.
            let mut half = before.clone();
            for &column in &moved[..moved.len() / 2] {
                half[column] = ChunkRef::new(last as u8, column as u32);
            }
            prop_assert_eq!(share(&half, last as u16, &geometry).len(), moved.len() - moved.len() / 2);
        }
    }
}
