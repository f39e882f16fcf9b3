//! What the binaries print.

use std::io::Write;
use std::process::ExitCode;

use comfy_table::{CellAlignment, Table, presets};
use warprow_workload::{Machine, Pairs};

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

/// A rate with three digits: `4.15 M`.
pub fn per_second(rate: f64) -> String {
    let (value, unit) = match rate {
        r if r >= 1e9 => (r / 1e9, " G"),
        r if r >= 1e6 => (r / 1e6, " M"),
        r if r >= 1e3 => (r / 1e3, " k"),
        r => (r, ""),
    };
    format!("{value:.2}{unit}")
}

/// The ratio of pairs in percent, with its range.
pub fn ratio(pairs: &Pairs) -> String {
    let (low, high) = pairs.ratio_range();
    format!("{:.1} % ({:.1} to {:.1})", pairs.ratio() * 100.0, low * 100.0, high * 100.0)
}

/// Prints the machine, and a warning if it was busy.
pub fn busy(machine: &Machine) {
    println!("{machine}");
    if machine.is_busy() {
        println!("The machine was busy: do not trust these figures.");
    }
}

/// Reports how a binary ended. Errors go to stderr, with `json` also as one object to stdout. A reader that has gone away is no
/// error.
pub fn finish(json: bool, result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    if json {
        let object = serde_json::json!({ "schema": 1, "error": { "message": format!("{error:#}") } });
        let _ = writeln!(std::io::stdout(), "{object}");
    }
    let _ = writeln!(std::io::stderr(), "error: {error:#}");
    ExitCode::FAILURE
}
