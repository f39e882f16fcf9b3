//! Tables for people, and numbers that JSON does not have.

use comfy_table::{CellAlignment, Table, TableComponent, presets};
use serde_json::Value;

/// A name from a file or a drive, on one line and without characters that would move the cursor, change the terminal, or have
/// text read in another order than it stands in.
pub fn printable(name: &str) -> String {
    escaped(name, is_steering)
}

/// Text of several lines, each as [`printable`] has it. Everything that the command prints passes through this or that.
pub fn printable_lines(text: &str) -> String {
    escaped(text, |c| c != '\n' && is_steering(c))
}

/// JSON of which no character steers a terminal either. Those can only stand in strings, as JSON has it escaped.
pub fn json_text(value: &Value) -> String {
    let mut text = String::new();
    for c in value.to_string().chars() {
        match is_steering(c) {
            true => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| text += &format!("\\u{unit:04x}")),
            false => text.push(c),
        }
    }
    text
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> String {
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        match is_escaped(c) {
            true => printable.extend(c.escape_default()),
            false => printable.push(c),
        }
    }
    printable
}

/// Whether a terminal does something else with a character than to show it: controls, ends of lines and paragraphs, Unicode's
/// bidirectional formatting, and characters that nobody sees.
fn is_steering(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
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
        assert_eq!(printable("a\0b\u{9b}\u{202e}c\u{2028}"), "a\\u{0}b\\u{9b}\\u{202e}c\\u{2028}");
        assert_eq!(printable_lines("a\n\tb\r\u{2066}"), "a\n\\tb\\r\\u{2066}");
        let hostile = Value::from("a\n\u{9b}\u{202e}\u{e0041}é");
        assert_eq!(json_text(&hostile), r#""a\n\u009b\u202e\udb40\udc41é""#);
        assert_eq!(serde_json::from_str::<Value>(&json_text(&hostile)).unwrap(), hostile);
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
