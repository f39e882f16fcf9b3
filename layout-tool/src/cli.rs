//! The command line.

use clap::{CommandFactory, Parser, Subcommand};

use crate::commands::{
    bind, convert, demo, devices, doctor, export, format, generations, gpu_rings, incremental, inspect, keeper, load,
    lookup, membership, pass, plan, repair, rerank, scrub, serve, update, verify,
};
use crate::wait;

/// A row store on NVMe drives: embedding tables larger than memory, looked up by id
///
/// A store lies on one or several NVMe drives, or on files that serve as emulated drives. `format` makes one, `load` fills it
/// with tables, `lookup` reads rows; `inspect`, `verify` and `export` show, check and save what is there. For real drives,
/// `doctor` says what the machine lacks, `devices` lists them, `bind` takes one from the system and `unbind` gives it back.
#[derive(Debug, Parser)]
#[command(name = "warprow", version, max_term_width = 110, after_long_help = EXAMPLES, after_help = "See --help for examples and exit codes.")]
pub struct Cli {
    /// Print one JSON object to stdout instead of text, also on failure
    #[arg(long, global = true, display_order = 1000)]
    pub json: bool,
    /// Where a drive is in use, wait until it is free, for so many seconds at most [without a number: 60]
    ///
    /// Who has it is told on stderr. The command begins anew once it is free.
    #[arg(
        long, global = true, display_order = 1000, value_name = "SECONDS", num_args = 0..=1, require_equals = true,
        default_missing_value = wait::SECONDS, value_parser = clap::value_parser!(u64).range(0..=604_800)
    )]
    pub wait: Option<u64>,
    /// No progress on stderr
    #[arg(short, long, global = true, display_order = 1000)]
    pub quiet: bool,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// What to do. What each does is said where its arguments are, which is also what `--help` prints.
#[allow(missing_docs, reason = "a comment here would take the place of the longer help")]
#[derive(Debug, Subcommand)]
pub enum Command {
    Demo(demo::DemoArgs),
    Format(format::FormatArgs),
    Load(load::LoadArgs),
    Inspect(inspect::InspectArgs),
    Verify(verify::VerifyArgs),
    Scrub(scrub::ScrubArgs),
    Repair(repair::RepairArgs),
    Export(export::ExportArgs),
    Pass(pass::PassArgs),
    Incremental(incremental::IncrementalArgs),
    Lookup(lookup::LookupArgs),
    Generations(generations::GenerationsArgs),
    Update(update::UpdateArgs),
    Expire(update::expire::ExpireArgs),
    Switch(generations::SwitchArgs),
    Drop(generations::DropArgs),
    Compact(generations::CompactArgs),
    Rerank(rerank::RerankArgs),
    AddDrive(membership::AddDriveArgs),
    RemoveDrive(membership::RemoveDriveArgs),
    Plan(plan::PlanArgs),
    Convert(convert::ConvertArgs),
    Serve(serve::ServeArgs),
    Doctor(doctor::DoctorArgs),
    Devices(devices::DevicesArgs),
    GpuRings(gpu_rings::GpuRingsArgs),
    /// Keep memory of a GPU while a drive may write to it; other commands start this themselves
    #[command(hide = true)]
    Keeper,
    Bind(bind::BindArgs),
    Unbind(bind::UnbindArgs),
}

/// The command line, with what the help of every command has in common.
pub fn command() -> clap::Command {
    Cli::command().mut_subcommands(with_exits)
}

fn with_exits(command: clap::Command) -> clap::Command {
    let own = command.get_after_long_help().map(|text| format!("{text}\n\n")).unwrap_or_default();
    let command = command.mut_subcommands(with_exits);
    match own.contains("Exit codes:") {
        true => command,
        false => command.after_long_help(own + EXITS),
    }
}

impl Command {
    /// The command's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Demo(_) => "demo",
            Self::Format(_) => "format",
            Self::Load(_) => "load",
            Self::Inspect(_) => "inspect",
            Self::Verify(_) => "verify",
            Self::Scrub(_) => "scrub",
            Self::Repair(_) => "repair",
            Self::Export(_) => "export",
            Self::Pass(_) => "pass",
            Self::Incremental(_) => "incremental",
            Self::Lookup(_) => "lookup",
            Self::Generations(_) => "generations",
            Self::Update(_) => "update",
            Self::Expire(_) => "expire",
            Self::Switch(_) => "switch",
            Self::Drop(_) => "drop",
            Self::Compact(_) => "compact",
            Self::Rerank(_) => "rerank",
            Self::AddDrive(_) => "add-drive",
            Self::RemoveDrive(_) => "remove-drive",
            Self::Plan(_) => "plan",
            Self::Convert(_) => "convert",
            Self::Serve(_) => "serve",
            Self::Doctor(_) => "doctor",
            Self::Devices(_) => "devices",
            Self::GpuRings(_) => "gpu-rings",
            Self::Keeper => keeper::NAME,
            Self::Bind(_) => "bind",
            Self::Unbind(_) => "unbind",
        }
    }
}

const EXITS: &str = "\
Exit codes: 0 done; 2 the command line makes no sense; 3 bad input; 4 refused, nothing was changed; 5 content differs; 6 the \
store is absent, damaged or incomplete; 7 a drive failed; 8 room is lacking; 130 and 143 stopped. More in `warprow --help`.";

const EXAMPLES: &str = "\
Examples:
  warprow demo
  warprow format -d emulated:/data/a.drive,size=64G --row-bytes 512
  warprow load -d emulated:/data/a.drive model.safetensors --tensor 'emb.*'
  warprow lookup -d emulated:/data/a.drive --table emb.item --ids 7,42,-1
  warprow doctor
  export WARPROW_DRIVES=0000:41:00.0,0000:42:00.0; warprow inspect

Exit codes:
  0    done
  1    a bug in Warprow; from `doctor` and `gpu-rings`: the machine lacks something
  2    the command line makes no sense
  3    bad input: a file, a tensor, ids, offsets, sizes
  4    refused, nothing was changed: no consent, something exists already, the drive is in use
  5    content differs from what it should be
  6    the store is absent, damaged, incomplete, foreign or newer
  7    a drive failed, did not answer in time, or is gone
  8    disk space, memory or queues are lacking
  130  interrupted by Ctrl-C, after cleaning up (143 by SIGTERM)";
