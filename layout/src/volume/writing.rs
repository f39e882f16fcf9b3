//! Writes to a volume, and the commit that ends them.

use std::sync::{Arc, PoisonError};

use uuid::Uuid;

use super::Volume;
use crate::catalogue::Catalogue;
use crate::commit::{self, Target};
use crate::drive::DriveError;
use crate::error::VolumeError;
use crate::generation::Generation;
use crate::superblock::Superblock;

impl Volume {
    /// Begins to write; says why nothing can be written, if so.
    pub(crate) fn writing(&self) -> Result<Writing, VolumeError> {
        if let Some(reason) = &self.shared.read_only {
            return Err(VolumeError::ReadOnly { reason: reason.clone() });
        }
        let poisoned = self.state().poisoned;
        let closed = self.state().closed;
        if poisoned {
            return Err(VolumeError::Poisoned);
        }
        if closed {
            return Err(VolumeError::MembersChanged);
        }
        let incarnations = self.shared.drives.iter().flatten().map(|drive| drive.incarnation()).collect();
        Ok(Writing { volume: self.clone(), incarnations })
    }

    /// Sees to it that the superblocks have this version, by a commit that changes nothing, unless one was made since the
    /// volume was opened: before anything is written that earlier versions would misread without that.
    pub(crate) fn upgrade(&self) -> Result<(), VolumeError> {
        if self.epoch() != self.shared.superblock.epoch {
            return Ok(());
        }
        self.writing()?.commit(false, None, |_, _| Ok(()))
    }
}

/// Writes to a volume, from before the first of them to a commit.
pub(crate) struct Writing {
    pub(crate) volume: Volume,
    /// The incarnation of every drive, from before the first write.
    incarnations: Vec<u64>,
}

/// The commit that a change of the catalogue goes into.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Commit {
    pub epoch: u64,
    pub id: Uuid,
}

impl Writing {
    /// Makes what was written to `member` since the writing began durable.
    pub(crate) fn flush(&self, member: u16) -> Result<(), DriveError> {
        let targets = self.targets();
        let target = targets.iter().find(|target| target.member == member);
        target.map_or(Ok(()), |target| commit::flush(std::slice::from_ref(target)))
    }

    fn targets(&self) -> Vec<Target<'_>> {
        let members =
            (0..).zip(&self.volume.shared.drives).filter_map(|(member, drive)| Some((member, drive.as_ref()?)));
        let targets = members.zip(&self.incarnations);
        targets.map(|((member, drive), &incarnation)| Target { member, drive: &**drive, incarnation }).collect()
    }

    /// Moves the store to the next epoch, with the catalogue as `change` makes it; `data`: whether the new catalogue
    /// lists chunks that were written since the writing began, which are then flushed first. `id`: the commit's
    /// identity; `None`: random.
    ///
    /// A failure before the first superblock is written leaves the store as it was. It counts as a failure if a drive
    /// was reset since the writing began, because the drive may then have lost data although its flush succeeds. A
    /// later failure poisons the volume, so that nothing more is written: some members may show the new epoch, and a
    /// second attempt would write another catalogue in the place of the one that they mean.
    pub(crate) fn commit<T, E: From<VolumeError>>(
        &self,
        data: bool,
        id: Option<Uuid>,
        change: impl FnOnce(&mut Catalogue, Commit) -> Result<T, E>,
    ) -> Result<T, E> {
        let shared = &self.volume.shared;
        let _one_at_a_time = shared.committing.lock().unwrap_or_else(PoisonError::into_inner);
        let targets = self.targets();
        let (epoch, mut catalogue) = {
            let state = self.volume.state();
            if state.poisoned {
                return Err(VolumeError::Poisoned.into());
            }
            // Who began to write before the members changed would write the same epoch once more.
            if state.closed || state.succeeded {
                return Err(VolumeError::MembersChanged.into());
            }
            (state.epoch + 1, state.catalogue.clone())
        };
        let id = id.unwrap_or_else(Uuid::new_v4);
        let changed = change(&mut catalogue, Commit { epoch, id })?;
        catalogue.generations.sort_by_key(|generation| generation.id);
        let bytes = catalogue.encode();
        let needed = bytes.len() as u64;
        let capacity = shared.superblock.geometry.catalogue_capacity();
        if needed > capacity {
            return Err(VolumeError::CatalogueFull { needed, capacity }.into());
        }
        // Data is durable before a catalogue speaks of it.
        if data {
            commit::flush(&targets).map_err(VolumeError::from)?;
        }
        let superblock = Superblock {
            epoch,
            commit: id,
            catalogue_bytes: bytes.len() as u32,
            catalogue_crc: crc32c::crc32c(&bytes),
            ..shared.superblock.clone()
        };
        commit::catalogues(&targets, &superblock, &bytes).map_err(VolumeError::from)?;
        let done = commit::superblocks(&targets, &superblock);
        let mut state = shared.state.write().unwrap_or_else(PoisonError::into_inner);
        if let Err(source) = done {
            state.poisoned = true;
            return Err(VolumeError::Indeterminate { epoch, source }.into());
        }
        state.epoch = epoch;
        let before = std::mem::replace(&mut state.catalogue, catalogue).generations;
        state.held.retain(|generation| generation.strong_count() > 0);
        let kept = |old: &Arc<Generation>| state.catalogue.generations.iter().any(|new| Arc::ptr_eq(old, new));
        let gone: Vec<_> = before.iter().filter(|&old| !kept(old)).map(Arc::downgrade).collect();
        state.held.extend(gone);
        Ok(changed)
    }
}
