//! Adding drives to a store and removing them.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use warprow_layout::{Drive, Volume};

use crate::device::Device;
use crate::format::record;
use crate::member::MemberDrive;
use crate::store::{Shared, open_members};
use crate::update::Updates;
use crate::{OpenOptions, Store, StoreError};

/// Told how many chunks were moved, and how many there are to move. It may stop the moving; calling the same function again goes on.
pub type MoveProgress<'a> = &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>;

/// The result of [`Store::add_drive`]: the store with the new drive.
#[derive(Debug)]
#[must_use]
pub struct StoreWithNewDrive {
    /// The store to use from now on: the one that the drive was added to refuses to write.
    pub store: Store,
    /// How many chunks were moved to the drive, or why not all of the drive's share was moved. To add the drive once
    /// more, to this store, continues the move.
    pub moved: Result<u64, StoreError>,
}

impl Store {
    /// Makes a drive a member, and moves to it its share of every generation, and no other chunk. What is on it is lost; if that
    /// looks like a store, it takes `overwrite`. A drive that is a member already, because this was stopped, gets what it lacks.
    /// That it became one, and not all of its share was moved, is no error: [`StoreWithNewDrive::moved`] says why.
    ///
    /// Hosts that are attached go on with what they read, but see no updates made through the store that this returns, and this
    /// one refuses to write from then on. Refused while somebody loads or updates.
    pub fn add_drive(
        &self,
        device: &Device,
        overwrite: bool,
        options: &OpenOptions,
        progress: MoveProgress<'_>,
    ) -> Result<StoreWithNewDrive, StoreError> {
        let position = |shared: &Shared| {
            let named =
                |member: &Option<Arc<MemberDrive>>| member.as_ref().is_some_and(|drive| drive.name() == device.name());
            shared.members.iter().position(named)
        };
        let store = match position(&self.shared) {
            Some(_) => self.clone(),
            None => {
                let member = open_members(std::slice::from_ref(device), &options.driving())?.remove(0);
                // What is refused closes nothing.
                self.shared.volume.may_join(&member, overwrite)?;
                // Without it, the drive would be opened with other LBAs than those that it gets now.
                record(device, false)?;
                self.shared.updates.close();
                let volume = self.shared.volume.add_member(member.clone(), overwrite)?;
                self.succeeded_by(volume, Some(member), options)
            }
        };
        let moved = match position(&store.shared) {
            Some(index) => store.shared.volume.spread(index as u16, progress).map_err(StoreError::from),
            None => Ok(0),
        };
        Ok(StoreWithNewDrive { store, moved })
    }

    /// Moves everything off a drive, and takes it out of the store. `drive`: its name. That the others have room is checked first.
    /// Stopped at any time, it leaves a store like any other.
    ///
    /// Refused while somebody loads or updates, or still reads what lay on the drive: attached hosts go over to the others by
    /// `HostExecutor::prepare` and `HostExecutor::adopt`, or are dropped. This store refuses to write from then
    /// on; the one that this returns goes on.
    pub fn remove_drive(
        &self,
        drive: &str,
        options: &OpenOptions,
        progress: MoveProgress<'_>,
    ) -> Result<Self, StoreError> {
        let named = |member: &Option<Arc<MemberDrive>>| member.as_ref().is_some_and(|member| member.name() == drive);
        let index = self.shared.members.iter().position(named).ok_or_else(|| StoreError::NoSuchDrive {
            drive: drive.to_owned(),
            known: self.shared.members.iter().flatten().map(|member| member.name().to_owned()).collect(),
        })?;
        self.shared.updates.know_kept_room(&self.shared.volume);
        self.shared.volume.may_leave(index as u16)?;
        self.shared.updates.close();
        let volume = self.shared.volume.remove_member(index as u16, progress)?;
        Ok(self.succeeded_by(volume, None, options))
    }

    /// The store on a volume with other members.
    fn succeeded_by(&self, volume: Volume, joined: Option<Arc<MemberDrive>>, options: &OpenOptions) -> Self {
        let known = |index: usize| self.shared.members.get(index).cloned().flatten();
        let present = |index: usize| volume.drive(index as u16).is_some();
        let members = (0..volume.geometry().members.len()).map(|index| {
            // Whoever joins takes a place that nobody had.
            known(index).or_else(|| joined.clone()).filter(|_| present(index))
        });
        let members = members.collect();
        let updates = Updates::new(options.overlay_bytes);
        let (driving, repairs, reranking, unopened) = (options.driving(), Vec::new(), Mutex::default(), Vec::new());
        let shared = Shared { volume, members, driving, updates, repairs, reranking, unopened };
        Self { shared: Arc::new(shared) }
    }
}
