//! The command `warprow`, as a library so that its parts can be tested.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};
use serde_json::{Map, Value};

pub mod attached;
pub mod busy;
pub mod cli;
pub mod columns;
pub mod commands;
pub mod counterpart;
pub mod damage;
pub mod drives;
pub mod failure;
pub mod file;
pub mod hotness;
pub mod inherited;
pub mod interrupt;
pub mod keyed;
pub mod lba;
pub mod missing;
pub mod named;
mod pending;
pub mod probe;
pub mod reading;
pub mod report;
pub mod rows;
pub mod said_once;
pub mod screen;
pub mod select;
pub mod store_failure;
pub mod tally;
pub mod wait;

use cli::{Cli, Command};
use commands::{CommandOutput, Context};
use failure::{Class, Failure, SCHEMA};

/// Runs the command line `args`, of which the first is the program's name. Returns the exit code.
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    let args: Vec<OsString> = args.into_iter().collect();
    let before_dashes = args.iter().take_while(|argument| *argument != "--");
    let json = before_dashes.clone().any(|argument| argument == "--json");
    let cli = match cli::command().try_get_matches_from(&args).and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return refuse(error, &args, json),
    };
    let name = cli.command.name();
    // Drives whose address says `gpu=`.
    warprow_gpu_drive::register();
    if std::env::var_os("WARPROW_LOG").is_some() {
        let filter = tracing_subscriber::EnvFilter::from_env("WARPROW_LOG");
        let colours = io::stderr().is_terminal();
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(colours).init();
    }
    let result = catch_unwind(AssertUnwindSafe(|| execute(cli)));
    let result = result.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        let what = format!("panicked: {}", said.unwrap_or("without a word"));
        Err(Failure::new(Class::Bug, name, what)
            .remedy("please report it, with the command line and what stands above"))
    });
    finish(name, json, result)
}

fn execute(cli: Cli) -> Result<CommandOutput, Failure> {
    // A keeper has no descriptors but its own.
    if let Command::Keeper = cli.command {
        return commands::keeper::run();
    }
    let caught = |error: io::Error| Failure::new(Class::Resources, "", format!("signals cannot be caught: {error}"));
    let interrupt = interrupt::Interrupt::install().map_err(caught)?;
    let context = Context { screen: screen::Screen::new(cli.quiet), interrupt, json: cli.json };
    wait::run(cli.wait.map(Duration::from_secs), &context, || dispatch(&cli.command, &context))
}

fn dispatch(command: &Command, context: &Context) -> Result<CommandOutput, Failure> {
    match command {
        Command::Demo(args) => commands::demo::run(args, context),
        Command::Format(args) => commands::format::run(args, context),
        Command::Load(args) => commands::load::run(args, context),
        Command::Inspect(args) => commands::inspect::run(args, context),
        Command::Verify(args) => commands::verify::run(args, context),
        Command::Scrub(args) => commands::scrub::run(args, context),
        Command::Repair(args) => commands::repair::run(args, context),
        Command::Export(args) => commands::export::run(args, context),
        Command::Pass(args) => commands::pass::run(args, context),
        Command::Incremental(args) => commands::incremental::run(args, context),
        Command::Lookup(args) => commands::lookup::run(args, context),
        Command::Generations(args) => commands::generations::list(args),
        Command::Update(args) => commands::update::run(args, context),
        Command::Expire(args) => commands::update::expire::run(args, context),
        Command::Switch(args) => commands::generations::switch(args),
        Command::Drop(args) => commands::generations::drop(args),
        Command::Compact(args) => commands::generations::compact(args),
        Command::Rerank(args) => commands::rerank::run(args, context),
        Command::AddDrive(args) => commands::membership::add(args, context),
        Command::RemoveDrive(args) => commands::membership::remove(args, context),
        Command::Plan(args) => commands::plan::run(args, context),
        Command::Convert(args) => commands::convert::run(args, context),
        Command::Serve(args) => commands::serve::run(args, context),
        Command::Doctor(args) => commands::doctor::run(args, context),
        Command::Devices(args) => commands::devices::run(args, context),
        Command::GpuRings(args) => commands::gpu_rings::run(args, context),
        Command::Keeper => commands::keeper::run(),
        Command::Bind(args) => commands::bind::bind(args, context),
        Command::Unbind(args) => commands::bind::unbind(args, context),
    }
}

/// Says how a command ended: its result to stdout, a failure to stderr.
fn finish(name: &str, json: bool, result: Result<CommandOutput, Failure>) -> u8 {
    let done = result.unwrap_or_else(|failure| CommandOutput { failure: Some(failure), ..CommandOutput::default() });
    let mut exit = done.failure.as_ref().map_or(0, |failure| failure.class.exit());
    let text = if json { report::json_text(&object(name, &done)) } else { report::printable_lines(&done.text) };
    if !text.is_empty()
        && let Err(failure) = print(&text)
    {
        complain(&failure);
        exit = if exit == 0 { failure.class.exit() } else { exit };
    }
    if let Some(failure) = &done.failure {
        complain(failure);
    }
    exit
}

fn object(name: &str, done: &CommandOutput) -> Value {
    let mut object = Map::from_iter([("schema".to_owned(), SCHEMA.into())]);
    if !name.is_empty() {
        object.insert("command".to_owned(), name.into());
    }
    object.extend(done.json.clone());
    if let Some(failure) = &done.failure {
        object.insert("error".to_owned(), failure.json());
    }
    object.into()
}

/// A command line that clap would not take, or a call for help.
fn refuse(error: clap::Error, args: &[OsString], json: bool) -> u8 {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => match error.print() {
            Err(failed) if failed.kind() != io::ErrorKind::BrokenPipe => Class::Resources.exit(),
            _ => 0,
        },
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand if json => {
            let failure = Failure::usage("", "no command was given").remedy("`warprow --help` lists the commands");
            finish("", true, Err(failure))
        }
        _ if json => {
            let text = error.to_string();
            let (what, rest) = text.split_once("\n\n").unwrap_or((&text, ""));
            let about =
                [ContextKind::InvalidArg, ContextKind::InvalidSubcommand].into_iter().find_map(|kind| error.get(kind));
            let subject = about.map(ToString::to_string).unwrap_or_default();
            let what = what.trim_start_matches("error: ").split_whitespace().collect::<Vec<_>>().join(" ");
            let rest = rest.split_whitespace().collect::<Vec<_>>().join(" ");
            finish(&command_in(args), true, Err(Failure::usage(subject, what).remedy(rest)))
        }
        _ => {
            let _ = shown(error).print();
            Class::Usage.exit()
        }
    }
}

/// The error with arguments as a terminal may have them: a shell's `*` may have put a hostile file's name among them.
fn shown(error: clap::Error) -> clap::Error {
    let mut shown = error;
    let context: Vec<_> = shown.context().map(|(kind, value)| (kind, value.clone())).collect();
    for (kind, value) in context {
        let value = match value {
            ContextValue::String(text) => ContextValue::String(report::printable(&text)),
            ContextValue::Strings(texts) => {
                ContextValue::Strings(texts.iter().map(|text| report::printable(text)).collect())
            }
            other => other,
        };
        shown.insert(kind, value);
    }
    shown
}

/// The command that a command line names, even if it makes no sense otherwise; empty if there is none.
fn command_in(args: &[OsString]) -> String {
    let first =
        args.iter().skip(1).filter_map(|argument| argument.to_str()).find(|argument| !argument.starts_with('-'));
    let known = |name: &&str| Cli::command().find_subcommand(name).is_some();
    first.filter(known).unwrap_or_default().to_owned()
}

/// Prints a result. A reader that has gone away is no failure.
fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(Class::Resources, "stdout", format!("the result cannot be written: {error}")))
        }
        _ => Ok(()),
    }
}

fn complain(failure: &Failure) {
    let _ = writeln!(io::stderr(), "error: {failure}");
}

/// The example in the README.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
