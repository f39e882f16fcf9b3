//! `bench-load`.

use warprow_workload::units::bytes;

use super::figures::{BYTES, bars};
use super::section::Section;
use crate::report::{Bar, Group};
use crate::results::Loads;

pub(super) fn load(it: Loads) -> Section {
    let mut section = Section {
        title: "Loading a table".to_owned(),
        about: format!(
            "{} of rows of {} B, from memory to the end of a durable commit, against `dd bs=1M oflag=direct conv=fsync` onto the same file \
             system; medians of {}. Rows are loaded in the order of their ids, or in that of a random permutation: put in order, or picked. \
             Then all rows are verified by their checksums, against `dd` that reads as many bytes of the drive's file.",
            bytes(it.size),
            it.row_bytes,
            it.pairs
        ),
        ..Section::default()
    };
    let mut groups = Vec::new();
    for (how, loaded) in [("Page cache", &it.cached), ("Past the page cache, O_DIRECT", &it.direct)] {
        let Some(loaded) = loaded else {
            section.warnings.push(format!("{how}: not measured."));
            continue;
        };
        let ours = |order: &str, rate, ratio: f64| Bar::ours(format!("Warprow, {order} ({ratio:.2}× dd)"), rate);
        let bars = vec![
            Bar::rival("dd", loaded.dd_bytes_per_second, None),
            ours("in order", loaded.identity_bytes_per_second, loaded.identity_ratio),
            ours("picked", loaded.picked_bytes_per_second, loaded.picked_ratio),
            ours("permuted", loaded.permuted_bytes_per_second, loaded.permuted_ratio),
        ];
        groups.push(Group { label: format!("{how} (file on {})", loaded.filesystem), bars });
        match &loaded.verified {
            Some(it) => {
                let bars = vec![
                    Bar::rival("dd, reading", it.dd_read_bytes_per_second, None),
                    Bar::ours(format!("Warprow, verify ({:.2}× dd)", it.verify_ratio), it.verify_bytes_per_second),
                ];
                groups.push(Group { label: format!("{how}, reading"), bars });
            }
            None => section.warnings.push(format!("{how}: verifying was not measured.")),
        }
        let rate = BYTES.show(loaded.identity_bytes_per_second);
        section.headlines.push(format!("{how}: {rate}, {:.2}× dd", loaded.identity_ratio));
        section.checked += loaded.rows_checked;
    }
    section
        .emulated
        .push("The drive: the software controller on a file; what the file lies on is the machine's.".to_owned());
    section.charts.push(bars("Bytes of rows", BYTES, groups));
    section
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::report::Chart;

    #[test]
    fn loads_that_were_measured_before_verify_was_are_read() {
        let mut loaded = json!({
            "identity_bytes_per_second": 9e8, "identity_ratio": 0.9, "permuted_bytes_per_second": 7e8, "permuted_ratio": 0.7,
            "picked_bytes_per_second": 8e8, "picked_ratio": 0.8, "dd_bytes_per_second": 1e9, "rows_checked": 5, "filesystem": "ext4", "lba": 512,
        });
        let read = |loaded: &serde_json::Value| {
            let value = json!({ "schema": 1, "seed": 1, "size": 4096, "row_bytes": 512, "pairs": 3, "cached": null, "direct": loaded,
                "machine": { "cpu": "A processor", "cores": 16, "kernel": "6.18", "load": 0.5 } });
            super::super::read(&value).unwrap()
        };
        let before = read(&loaded);
        let groups = |chart: &Chart| match chart {
            Chart::Bars(bars) => bars.groups.len(),
            Chart::Lines(_) => 0,
        };
        assert_eq!((groups(&before.charts[0]), before.checked), (1, 5));
        assert!(
            before.warnings.iter().any(|warning| warning.contains("verifying was not measured")),
            "{:?}",
            before.warnings
        );
        for (key, value) in [("verify_bytes_per_second", 4e9), ("verify_ratio", 2.0), ("dd_read_bytes_per_second", 2e9)]
        {
            loaded[key] = value.into();
        }
        let now = read(&loaded);
        assert_eq!(groups(&now.charts[0]), 2);
        assert!(!now.warnings.iter().any(|warning| warning.contains("verifying")), "{:?}", now.warnings);
    }
}
