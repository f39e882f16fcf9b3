//! Tables for people, and numbers that JSON does not have.

use comfy_table::{CellAlignment, Table, TableComponent, presets};
use serde_json::Value;

/// A name from a file or a drive, without characters that would move the cursor or change the terminal.
pub fn printable(name: &str) -> String {
    name.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

/// A table for people: columns whose header begins with `>` to the right, the others to the left.
pub fn table<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_style(TableComponent::HeaderLines, '─');
    table
        .set_style(TableComponent::MiddleHeaderIntersections, '─')
        .set_header(header.map(|name| name.trim_start_matches('>')));
    for row in rows {
        table.add_row(row.map(|cell| printable(&cell)));
    }
    for (column, name) in table.column_iter_mut().zip(header) {
        if name.starts_with('>') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// A float as JSON: with no more digits than tell it from its neighbours of the same type; what JSON cannot say as a string.
pub fn json_float(value: f32) -> Value {
    match value {
        v if v.is_nan() => "NaN".into(),
        f32::INFINITY => "Infinity".into(),
        f32::NEG_INFINITY => "-Infinity".into(),
        // The shortest text of the f32, read as an f64, prints as the same text.
        v => v.to_string().parse::<f64>().map_or(Value::Null, Value::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_steer_the_terminal() {
        assert_eq!(printable("a\nb\x1b[31m é日"), "a\\nb\\u{1b}[31m é日");
        assert_eq!(table(["name"], [["a\nb\x1b[2J".to_owned()]]).lines().count(), 3);
    }

    #[test]
    fn floats_print_as_short_as_they_are() {
        let printed = [0.1, -0.0, 16_777_216.0, 3.4e38, 1e-45].map(|v| json_float(v).to_string());
        assert_eq!(printed, ["0.1", "-0.0", "16777216.0", "3.4e+38", "1e-45"]);
        let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].map(|v| json_float(v).to_string());
        assert_eq!(odd, ["\"NaN\"", "\"Infinity\"", "\"-Infinity\""]);
    }
}
