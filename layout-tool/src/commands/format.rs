//! `warprow format`.
use super::{Context, Done};
use crate::drives::{self, DriveArgs};
use crate::failure::Failure;
use clap::Args;

/// Make
#[derive(Debug, Args)]
pub struct FormatArgs {
    #[command(flatten)]
    drives: DriveArgs,
}

pub(crate) fn run(args: &FormatArgs, _: &Context) -> Result<Done, Failure> {
    let devices = drives::devices(&args.drives)?;
    warprow_store::Store::create(
        &devices,
        &warprow_layout::FormatOptions::default(),
        &warprow_store::OpenOptions::default(),
    )?;
    Done::new("formatted", serde_json::json!({}))
}
