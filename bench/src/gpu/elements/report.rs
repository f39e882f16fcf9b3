//! What `bench-elements` prints.

use std::fmt::Write;

use super::{ChecksumResult, ElementResult};
use crate::output::{per_second, table};

/// By elements, and with and without checksums.
pub fn show(elements: &[ElementResult], checksums: &[ChecksumResult]) -> Result<String, std::fmt::Error> {
    let us = |time: f64| format!("{time:.1}");
    let mut text = String::new();
    let checked: u64 =
        elements.iter().map(|element| element.checked).chain(checksums.iter().map(|checksum| checksum.checked)).sum();
    if !elements.is_empty() {
        let lines = elements.iter().map(|element| {
            [
                element.elements.clone(),
                element.row_bytes.to_string(),
                if element.tier == "hbm" { "GPU memory".to_owned() } else { "DRAM".to_owned() },
                if element.pooled { "sums".to_owned() } else { "rows".to_owned() },
                element.kernels.to_string(),
                us(element.us),
                element.of_f32.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
                per_second(element.ids_per_second),
                per_second(element.bytes_per_second),
            ]
        });
        let header = ["elements", "row B", "in", "output", "kernels", "us", "of f32's", "ids/s", "B/s in and out"];
        writeln!(text, "Output of f32, as a graph, by the GPU, its launch hidden; median us.")?;
        writeln!(text, "{}\n", table(header, lines))?;
    }
    if !checksums.is_empty() {
        let lines = checksums.iter().map(|checksum| {
            [
                checksum.row_bytes.to_string(),
                checksum.ids.to_string(),
                checksum.commands.to_string(),
                us(checksum.seen_us[0]),
                us(checksum.seen_us[1]),
                format!("{:.3}", checksum.ratio),
                us(checksum.fetch_us[0]),
                us(checksum.fetch_us[1]),
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
        let drives = checksums.first().map_or(0, |checksum| checksum.drives);
        writeln!(text, "Rows on {drives} drives in memory, without and with check_rows, by turns; median us.")?;
        writeln!(text, "{}\n", table(header, lines))?;
    }
    writeln!(text, "{checked} rows and sums compared, all of every answer.")?;
    Ok(text)
}
