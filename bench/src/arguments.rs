//! What several programs of this package take on their command lines.

use clap::Args;
use warprow_soft_controller::TimingProfile;

/// What all of them take.
#[derive(Clone, Copy, Debug, Args)]
pub struct Common {
    /// Seed of contents and ids.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Prints one JSON object instead of tables.
    #[arg(long)]
    pub json: bool,
}

/// A drive's timing by its name.
pub fn profile(name: &str) -> Result<TimingProfile, String> {
    name.parse().map_err(|()| "none, p5800x, gen5-tlc or gen6".to_owned())
}
