//! What the binaries print.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use comfy_table::{CellAlignment, Table, presets};
/// A rate with three digits: `4.15 M`.
pub use warprow_workload::units::short as per_second;
use warprow_workload::{MachineInfo, PairedTimes};

/// A table for people: the first column to the left, figures to the right.
pub fn table<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_header(header);
    for row in rows {
        table.add_row(row);
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

/// The ratio of pairs in percent, with its range.
pub fn ratio(pairs: &PairedTimes) -> String {
    let (low, high) = pairs.ratio_range();
    format!("{:.1} % ({:.1} to {:.1})", pairs.ratio() * 100.0, low * 100.0, high * 100.0)
}

/// What a measurement says meanwhile: on stderr at once, and each thing once in its result.
#[derive(Debug, Default)]
pub struct Notes(Vec<String>);

impl Notes {
    /// Says it.
    pub fn say(&mut self, text: &str) {
        eprintln!("{text}");
        if !self.0.iter().any(|note| note == text) {
            self.0.push(text.to_owned());
        }
    }

    /// One a line.
    pub fn lines(&self) -> String {
        self.0.iter().map(|note| format!("{note}\n")).collect()
    }

    /// As results have them.
    pub fn into_vec(self) -> Vec<String> {
        self.0
    }
}

/// The machine, and a warning if it was busy.
pub fn busy(machine: &MachineInfo) -> String {
    let warning = if machine.is_busy() { "The machine was busy: do not trust these figures.\n" } else { "" };
    format!("{machine}\n{warning}")
}

/// Prints what a binary found out, or reports why it could not: errors go to stderr, with `json` also as one object to stdout.
/// A reader that has gone away is no error.
pub fn finish(json: bool, result: anyhow::Result<String>) -> ExitCode {
    let print = |text: &str| std::io::stdout().write_all(text.as_bytes());
    let error = match result {
        Ok(text) => match print(&text) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => error.into(),
            _ => return ExitCode::SUCCESS,
        },
        Err(error) => error,
    };
    if json {
        let object = serde_json::json!({ "schema": 1, "error": { "message": format!("{error:#}") } });
        let _ = print(&format!("{object}\n"));
    }
    let _ = writeln!(std::io::stderr(), "error: {error:#}");
    ExitCode::FAILURE
}
