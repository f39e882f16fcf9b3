//! A storm: the command `warprow` on emulated drives, with random work, kills and bit rot, checked against a model that knows what
//! every row may be. A seed decides everything that is done. `docs/storms.md` says what is checked.

mod files;
mod fixture;
mod model;
mod options;
mod outcome;
mod rot;
mod shorten;
mod tracer;
mod work;

pub use options::{Lie, Options, Part};
pub use outcome::Outcome;
pub use shorten::shorten;
pub use work::run;
