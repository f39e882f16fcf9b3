//! What the demo says in the end.

mod cold;
mod failure;
mod figures;
mod json;
mod measured;
mod text;

use warprow_workload::MachineInfo;

use super::arguments::DemoArgs;
use super::place::Place;
use super::results::Results;
use super::workload::Workload;
use crate::commands::{CommandOutput, Context};
use crate::failure::Failure;
use measured::Measured;

pub(crate) fn report(
    args: &DemoArgs,
    workload: &Workload<'_>,
    place: &Place,
    results: &Results,
    context: &Context,
) -> Result<CommandOutput, Failure> {
    let measured = Measured { args, workload, place, results, machine: MachineInfo::this() };
    let mut done = CommandOutput::new(text::text(&measured), json::json(&measured))?;
    done.failure = failure::failure(results, context);
    Ok(done)
}
