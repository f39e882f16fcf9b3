//! Which rows a cache keeps. A [`Cache`] leads keys to *lines*, numbered places for one row each, and decides which
//! line a new key gets; it holds no rows. An [`Eviction`] says which line is given away, an [`Admission`] whether a key
//! is worth the line. [`SetCache`] is the cache of a GPU: a key has few lines to lie in, all keys of a batch are looked
//! for before any is admitted, and lines that were used lately are not given away.
//!
//! [`FrequentKeys`] counts which keys of a stream come most often, in bounded memory.
//!
//! [`Policy`] drives either by batches of different keys, as look-ups do, [`HitRate::of`] counts, and
//! [`belady::hit_rate`] is the bound that no policy can beat.
//!
//! ```
//! use warprow_cache::{Admission, Cache, Eviction, Found};
//! let mut cache = Cache::new(2, Eviction::Lru, Admission::Always);
//! assert_eq!(cache.find(7), None);
//! assert_eq!(cache.admit(7), Found::Line(0));
//! assert_eq!(cache.admit(8), Found::Line(1));
//! assert_eq!(cache.find(7), Some(0));
//! assert_eq!(cache.admit(9), Found::Line(1), "8 was used least recently");
//! ```
#![forbid(unsafe_code)]

pub mod belady;
mod cache;
mod eviction;
mod frequent;
mod hit_rate;
mod index;
mod lists;
mod random;
mod set_sketch;
mod sets;
mod sketch;

pub use cache::{Admission, Cache, Found, LikelyNext};
pub use eviction::Eviction;
pub use frequent::FrequentKeys;
pub use hit_rate::{Batch, HitRate, Policy, StaticTier};
pub use sets::{SetCache, SetEviction};
pub use sketch::Sketch;
