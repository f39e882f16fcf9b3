//! Space that a load took and does not use.

use warprow_driver::DriverError;
use warprow_layout::{Drive, Placement, VolumeError};

use crate::{Store, StoreError};

impl Store {
    /// Gives the space of chunks back that a load took and did not get done with, where drives still answer: a disk below that has
    /// run full would else stay so. What fails of it is no worse than before.
    pub(super) fn give_back(&self, placement: &Placement, error: &StoreError) {
        let answers = match error {
            StoreError::Driver(error) => matches!(error, DriverError::Command { .. }),
            StoreError::LoadReset { .. }
            | StoreError::NamespaceChanged(_)
            | StoreError::Function(_)
            | StoreError::Drive(_)
            | StoreError::Volume(VolumeError::Drive(_)) => false,
            _ => true,
        };
        for (index, member) in (0..).zip(&self.shared.members) {
            let Some(member) = member.as_ref().filter(|_| answers) else { continue };
            let mut chunks: Vec<_> = placement.chunk_lbas().filter(|&(drive, ..)| drive == index).collect();
            chunks.sort_unstable();
            let mut ranges: Vec<(u64, u32)> = Vec::new();
            for (_, first, lbas) in chunks {
                let lbas = u32::try_from(lbas).unwrap_or(0);
                match ranges.last_mut() {
                    Some((begin, count))
                        if *begin + u64::from(*count) == first && count.checked_add(lbas).is_some() =>
                    {
                        *count += lbas;
                    }
                    _ => ranges.push((first, lbas)),
                }
            }
            if let Err(error) = member.deallocate(&ranges) {
                tracing::debug!(drive = member.name(), %error, "what a load left on the drive keeps its space");
            }
        }
    }
}
