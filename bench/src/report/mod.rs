//! One page of HTML about a set of benchmarks: what was emulated, the machine, plots with rivals side by side, and the raw results.
//!
//! A [`Part`] is one run of one of this package's programs: a name, what it was called with, and its [`Outcome`]. Parts come from
//! running them ([`run`]) or from a folder in which earlier ones were kept ([`load`]). [`page`] makes the page of them. What has
//! failed, what this machine cannot run, and what nobody knows how to read is in the page too, with its reason.

mod chart;
mod date;
mod kept;
mod machine;
mod page;
mod parts;
mod sections;
mod set;

pub use chart::{Bar, Bars, Chart, Group, Lines, Series, Unit};
pub use date::date_of;
pub use kept::{KeptError, keep, load};
pub use machine::{Described, GpuDescribed};
pub use page::page;
pub use parts::{Outcome, Part, Report};
pub use sections::{Section, read};
pub use set::{Extent, Needs, Program, run, set};
