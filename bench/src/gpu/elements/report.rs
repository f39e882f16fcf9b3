//! What `bench-elements` prints.

use std::fmt::Write;

use super::{ChecksumResult, ElementResult};
use crate::output::{per_second, table};

/// By elements, and with and without checksums.
pub fn show(elements: &[ElementResult], checksums: &[ChecksumResult]) -> Result<String, std::fmt::Error> {
    let us = |time: f64| format!("{time:.1}");
    let mut text = String::new();
    let checked: u64 = elements.iter().map(|it| it.checked).chain(checksums.iter().map(|it| it.checked)).sum();
    if !elements.is_empty() {
        let lines = elements.iter().map(|it| {
            [
                it.elements.clone(),
                it.row_bytes.to_string(),
                if it.tier == "hbm" { "GPU memory".to_owned() } else { "DRAM".to_owned() },
                if it.pooled { "sums".to_owned() } else { "rows".to_owned() },
                it.kernels.to_string(),
                us(it.us),
                it.of_f32.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
                per_second(it.ids_per_second),
                per_second(it.bytes_per_second),
            ]
        });
        let header = ["elements", "row B", "in", "output", "kernels", "us", "of f32's", "ids/s", "B/s in and out"];
        writeln!(text, "Output of f32, as a graph, by the GPU, its launch hidden; median us.")?;
        writeln!(text, "{}\n", table(header, lines))?;
    }
    if !checksums.is_empty() {
        let lines = checksums.iter().map(|it| {
            [
                it.row_bytes.to_string(),
                it.ids.to_string(),
                it.commands.to_string(),
                us(it.seen_us[0]),
                us(it.seen_us[1]),
                format!("{:.3}", it.ratio),
                us(it.fetch_us[0]),
                us(it.fetch_us[1]),
            ]
        });
        let header = [
            "row B",
            "ids",
            "commands",
            "seen, unchecked",
            "seen, checked",
            "ratio",
            "rows, unchecked",
            "rows, checked",
        ];
        let drives = checksums.first().map_or(0, |it| it.drives);
        writeln!(text, "Rows on {drives} drives in memory, without and with check_rows, by turns; median us.")?;
        writeln!(text, "{}\n", table(header, lines))?;
    }
    writeln!(text, "{checked} rows and sums compared, all of every answer.")?;
    Ok(text)
}
