//! Rows that take time to be made, on several threads.

use warprow_layout::{Extent, RowSource, TableWrites};

use crate::StoreError;

/// Threads that make rows, at most, and extents that each has ready.
const MAKERS: usize = 8;
const READY: usize = 2;

/// Gives `take` the content of `extents`, in their order. Several threads make it.
pub(super) fn for_each_made<T: Send, S: RowSource + ?Sized>(
    loader: &TableWrites<'_, S>,
    extents: impl Iterator<Item = (T, Extent)> + Clone + Send,
    mut take: impl FnMut(T, Extent, &[u8]) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let makers = std::thread::available_parallelism().map_or(1, usize::from).min(MAKERS);
    std::thread::scope(|scope| {
        let lanes = (0..makers).map(|maker| {
            let (sender, receiver) = std::sync::mpsc::sync_channel(READY);
            let mine = extents.clone().skip(maker).step_by(makers);
            let make = move || {
                for (tag, extent) in mine {
                    let mut content = vec![0; extent.bytes];
                    let made = loader.fill(&extent, &mut content).map(|()| (tag, extent, content));
                    let failed = made.is_err();
                    // Nobody listens any longer after a failure.
                    if sender.send(made).is_err() || failed {
                        return;
                    }
                }
            };
            std::thread::Builder::new().spawn_scoped(scope, make).map(|_| receiver)
        });
        let failed = |source| StoreError::Allocate { what: "threads that make rows", bytes: 0, source };
        let lanes = lanes.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        for lane in lanes.iter().cycle() {
            // Extents went round; the first that has none is behind the last.
            let Ok(made) = lane.recv() else { return Ok(()) };
            let (tag, extent, content) = made?;
            take(tag, extent, &content)?;
        }
        Ok(())
    })
}
