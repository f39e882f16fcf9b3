//! Bad units of drives, in words, as JSON, and as the exit code that they are worth.

use serde_json::{Value, json};
use warprow_store::{DamageKind, DamagedUnit};
use warprow_workload::units;

use crate::failure::{Class, Failure};
use crate::report::table;

/// Units that text lists, at most; JSON has all.
const SHOWN: usize = 40;

fn kind(what: DamageKind) -> &'static str {
    match what {
        DamageKind::Superblock => "superblock",
        DamageKind::Catalogue => "catalogue",
        DamageKind::Log => "log",
        DamageKind::Ranks => "ranks",
        DamageKind::Keys => "keys",
        DamageKind::Checksums => "checksums",
        DamageKind::Rows => "rows",
        DamageKind::DramList | DamageKind::DramListFile => "list of rows in DRAM",
        _ => "other",
    }
}

fn is_copied(what: DamageKind) -> bool {
    matches!(what, DamageKind::Superblock | DamageKind::Catalogue)
}

/// A unit as JSON.
pub fn json(unit: &DamagedUnit) -> Value {
    json!({
        "what": kind(unit.what),
        "drive": unit.drive,
        "lba": unit.lba,
        "lbas": unit.lbas,
        "generation": unit.generation,
        "table": unit.table,
        "ranks": unit.ranks,
        "unreadable": unit.unreadable,
        "detail": unit.detail,
    })
}

/// The units for people; empty if there are none.
pub fn text(bad: &[DamagedUnit]) -> String {
    if bad.is_empty() {
        return String::new();
    }
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let ranks = |unit: &DamagedUnit| match &unit.ranks[..] {
        [] => "-".to_owned(),
        [first] => first.to_string(),
        [first, .., last] if *last - *first + 1 == unit.ranks.len() as u64 => format!("{first}…{last}"),
        [first, ..] => format!("{first} and {} more", unit.ranks.len() - 1),
    };
    let mut text = table(
        ["drive", ">LBA", ">LBAs", "what", ">generation", "table", "ranks", "found"],
        bad.iter().take(SHOWN).map(|unit| {
            [
                or_dash(unit.drive.clone()),
                or_dash(unit.lba.map(|lba| lba.to_string())),
                if unit.lbas == 0 { "-".to_owned() } else { unit.lbas.to_string() },
                kind(unit.what).to_owned(),
                or_dash(unit.generation.map(|id| id.to_string())),
                or_dash(unit.table.clone()),
                ranks(unit),
                unit.detail.clone(),
            ]
        }),
    );
    if bad.len() > SHOWN {
        text += &format!("\nand {} more, which --json lists", bad.len() - SHOWN);
    }
    text
}

/// What a commit that was cut off left to be written, for people; empty if there is nothing.
pub fn unfinished_text(units: &[DamagedUnit]) -> String {
    if units.is_empty() {
        return String::new();
    }
    format!(
        "An interrupted commit left {} of the metadata to be written. Nothing is damaged or lost: what writes to the store next finishes \
         it, or `warprow repair --yes`.\n{}",
        if units.len() == 1 { "1 copy".to_owned() } else { format!("{} copies", units.len()) },
        text(units)
    )
}

/// What it comes to: what a drive cannot read is the drive's failure, what is damaged of the store's own is the store's, rows that
/// are not what was written are a mismatch.
pub fn failure(bad: &[DamagedUnit]) -> Option<Failure> {
    let first = |of: &dyn Fn(&&DamagedUnit) -> bool| bad.iter().find(of);
    let is_file = |unit: &DamagedUnit| unit.what == DamageKind::DramListFile;
    let (class, worst) = None
        .or_else(|| first(&|unit| unit.unreadable && !is_file(unit)).map(|unit| (Class::Drive, unit)))
        .or_else(|| {
            let is_own = |unit: &&DamagedUnit| unit.what != DamageKind::Rows && !is_copied(unit.what) && !is_file(unit);
            first(&is_own).map(|unit| (Class::Store, unit))
        })
        .or_else(|| first(&|unit| unit.what == DamageKind::Rows).map(|unit| (Class::Mismatch, unit)))
        .or_else(|| first(&|unit| !is_file(unit)).map(|unit| (Class::Store, unit)))
        .or_else(|| first(&|_| true).map(|unit| (Class::Input, unit)))?;
    let remedy = match worst.what {
        what if is_copied(what) => "mend it with `warprow repair`",
        DamageKind::DramListFile => "let who runs this read that file, or remove it with `warprow rerank --none`",
        DamageKind::DramList => "make it again with `warprow rerank`, or remove it with `warprow rerank --none`",
        _ if worst.unreadable => {
            "look at the drive's health (`warprow devices`); load the tables again, with --replace, or move off it with \
             `warprow remove-drive`"
        }
        _ => "load the table again, with --replace",
    };
    let subject = worst.table.clone().or_else(|| worst.drive.clone()).unwrap_or_default();
    let place = match (&worst.drive, worst.lba) {
        (Some(drive), Some(lba)) => format!(" at LBA {lba} of {drive}"),
        (Some(drive), None) => format!(" on {drive}"),
        _ => String::new(),
    };
    let whose = worst.table.as_ref().map(|table| format!(" of table {table:?}")).unwrap_or_default();
    let what = match bad.iter().filter(|unit| !is_file(unit)).count() as u64 {
        0 => worst.detail.clone(),
        damaged => {
            format!("{} damaged; {}{whose}{place}: {}", units::plural(damaged, "place"), kind(worst.what), worst.detail)
        }
    };
    Some(Failure::new(class, subject, what).remedy(remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(what: &str, unreadable: bool) -> DamagedUnit {
        let value = json!({
            "what": what, "drive": "a", "lba": 7, "lbas": 1, "generation": 3, "table": "t", "ranks": [4, 5, 6],
            "unreadable": unreadable, "detail": "why",
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_worst_decides_the_exit_code() {
        let class = |units: &[(&str, bool)]| {
            let units: Vec<_> = units.iter().map(|&(what, unreadable)| unit(what, unreadable)).collect();
            failure(&units).map(|failure| failure.class)
        };
        assert_eq!(class(&[]), None);
        assert_eq!(class(&[("superblock", false)]), Some(Class::Store));
        assert_eq!(class(&[("superblock", false), ("rows", false)]), Some(Class::Mismatch));
        assert_eq!(class(&[("rows", false), ("ranks", false)]), Some(Class::Store));
        assert_eq!(class(&[("ranks", false), ("rows", true)]), Some(Class::Drive));
        // A list that the user may not read is no damage, and comes behind all damage.
        assert_eq!(class(&[("dram-list-file", true)]), Some(Class::Input));
        assert_eq!(class(&[("dram-list-file", true), ("rows", false)]), Some(Class::Mismatch));
        assert_eq!(class(&[("dram-list-file", true), ("superblock", false)]), Some(Class::Store));
        let said = failure(&[unit("dram-list-file", true)]).unwrap().to_string();
        assert!(!said.contains("damaged") && said.contains("why"), "{said}");
    }

    #[test]
    fn a_unit_is_said_with_its_place_and_rows() {
        let units = vec![unit("rows", false); 50];
        let text = text(&units);
        assert!(text.contains("4…6") && text.ends_with("and 10 more, which --json lists"), "{text}");
        let said = failure(&units).unwrap().to_string();
        assert!(said.contains("50 places damaged; rows of table \"t\" at LBA 7 of a: why"), "{said}");
        assert_eq!(serde_json::from_value::<DamagedUnit>(json(&units[0])).unwrap(), units[0]);
    }
}
