//! Training tables that are larger than memory, a *pass* at a time: the rows that a part of the training data needs are brought into
//! memory, handed to the trainer, taken back, and made durable, all of a pass or nothing of it.
//!
//! ```
//! # use std::ops::ControlFlow;
//! # use warprow_lookup::*;
//! # use warprow_store::*;
//! use warprow_passes::{CacheOptions, Keyset, PassOptions, Passes};
//!
//! # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, CreateDrive::IfMissing)?;
//! # let store = FormatProposal::new(&[device], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
//! # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
//! # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
//! # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
//! let cache = CacheOptions { num_blocks: 2, target_hit_rate: 0.8, max_num_evict: 3 };
//! let mut passes = Passes::open(&store, "user", PassOptions::cached(64 << 10, cache))?;
//! let keysets = [vec![1, 2, 3], vec![2, 3, 999]].map(Keyset::new);
//! for (number, keyset) in keysets.iter().enumerate() {
//!     let pass = passes.stage(keyset)?;                    // keysets from files: Keyset::read
//!     if let Some(next) = keysets.get(number + 1) {
//!         passes.prefetch(next)?;
//!     }
//!     let mut rows = vec![0; pass.bytes()];                // row i is that of key pass.keys()[i]
//!     pass.read(&mut rows)?;
//!     rows.as_chunks_mut().0.iter_mut().for_each(|x| *x = (f32::from_le_bytes(*x) + 1.0).to_le_bytes());
//!     passes.finish(pass, &rows)?;                         // durable when this returns
//! }
//! assert_eq!((passes.touched(), passes.totals().hits), (4, 2));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `docs/passes.md` says how, and why so. With the feature `gpu`, rows go into GPU memory and come back from there
//! ([`Pass::read_parts`] is what other memory is filled with).
#![forbid(unsafe_code)]

mod arena;
mod bits;
mod cache;
mod error;
mod files;
mod finder;
#[cfg(feature = "gpu")]
mod gpu;
mod grow;
mod incremental;
mod journal;
mod keyset;
mod options;
mod pass;
mod passes;

pub use error::PassError;
pub use files::{BeginReport, CommitOptions, CommitReport, PassProgress, PassWatch, StagedOrigin, begin, commit};
pub use incremental::{ExportedElements, IncrementalReport};
pub use keyset::Keyset;
pub use options::{CacheOptions, NewKeys, NewRow, PassMode, PassOptions};
pub use pass::{Pass, StageReport};
pub use passes::{PassTotals, Passes};
