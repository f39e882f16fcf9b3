//! What `warprow verify` says in the end.

use serde_json::{Value, json};
use warprow_store::{DamageKind, DamagedUnit, MetadataReport};
use warprow_workload::units;

use super::finding::Finding;
use crate::commands::CommandOutput;
use crate::damage;
use crate::failure::{Class, Failure};
use crate::report::{printable, table};

/// Differences that are listed, at most.
const LISTED: usize = 10;

pub(super) fn report(findings: &[Finding], metadata: &MetadataReport) -> Result<CommandOutput, Failure> {
    let mut bad = metadata.bad.clone();
    bad.extend(findings.iter().flat_map(|finding| finding.bad.iter().cloned()));
    let mut done = CommandOutput::new(text(findings, metadata, &bad), json(findings, metadata, &bad))?;
    done.failure = failure(findings, &bad);
    Ok(done)
}

fn verdict(finding: &Finding) -> String {
    match (&finding.against, finding.differing) {
        _ if finding.damage.as_ref().is_some_and(|failure| failure.class == Class::Mismatch) => {
            "DIFFERS, see below".to_owned()
        }
        _ if finding.damage.is_some() => "DAMAGED, see below".to_owned(),
        (None, _) => "readable; row contents NOT checked".to_owned(),
        (Some(against), 0) => format!("equal to {against}"),
        (Some(against), n) => format!("{} DIFFER from {against}", units::plural(n, "row")),
    }
}

fn text(findings: &[Finding], metadata: &MetadataReport, bad: &[DamagedUnit]) -> String {
    let line = |finding: &Finding| {
        let standby = if finding.standby {
            format!(" (generation {}, standby)", finding.table.generation)
        } else {
            String::new()
        };
        [
            finding.table.name.clone() + &standby,
            units::count(finding.rows),
            units::bytes(finding.bytes),
            verdict(finding),
        ]
    };
    let mut text = match findings.is_empty() {
        true => "The store has no tables.".to_owned(),
        false => table(["table", ">rows", ">bytes", "verdict"], findings.iter().map(line)),
    };
    for (finding, damage) in findings.iter().filter_map(|finding| Some((finding, finding.damage.as_ref()?))) {
        text += &format!("\n{:?}: {}", finding.table.name, printable(&damage.message));
    }
    if findings.iter().any(|finding| finding.against.is_none() && finding.damage.is_none()) {
        text += "\nRow contents were NOT checked: load with --row-crc, or compare with --against FILE.";
    }
    let unread = metadata.bad.iter().filter(|unit| is_unread_list(unit)).count() as u64;
    text += &match metadata.bad.len() as u64 - unread {
        0 if metadata.unfinished.is_empty() => "\nEvery copy of the metadata is whole.".to_owned(),
        0 => format!("\n{}", damage::unfinished_text(&metadata.unfinished)),
        damaged => format!("\nDAMAGED in the metadata: {}.", units::plural(damaged, "place")),
    };
    if unread > 0 {
        text += &format!("\nNOT CHECKED: {} of rows in DRAM, which could not be read.", units::plural(unread, "list"));
    }
    if !bad.is_empty() {
        text += &format!("\n{}", damage::text(bad));
    }
    text
}

fn json(findings: &[Finding], metadata: &MetadataReport, bad: &[DamagedUnit]) -> Value {
    let table = |finding: &Finding| {
        json!({
            "name": finding.table.name,
            "generation": finding.table.generation,
            "standby": finding.standby,
            "rows": finding.rows,
            "keys_checked": finding.keys,
            "bytes": finding.bytes,
            "checked": finding.against.is_some(),
            "against": finding.against,
            "damage": finding.damage.as_ref().map(|damage| &damage.message),
            "differing": finding.differing,
            "first_differing_are": finding.kind(),
            "first_differing": finding.first.iter().take(LISTED).collect::<Vec<_>>(),
        })
    };
    let checked = !findings.is_empty() && findings.iter().all(|finding| finding.against.is_some());
    json!({
        "tables": findings.iter().map(table).collect::<Vec<_>>(),
        "contents_checked": checked,
        "differing": findings.iter().map(|finding| finding.differing).sum::<u64>(),
        "metadata_sound": metadata.bad.iter().all(is_unread_list),
        "bad": bad.iter().map(damage::json).collect::<Vec<_>>(),
        "unfinished_commit": metadata.unfinished.iter().map(damage::json).collect::<Vec<_>>(),
    })
}

/// Whether it is the file of a list of rows in DRAM that could not be read, and so not be checked.
fn is_unread_list(unit: &DamagedUnit) -> bool {
    unit.what == DamageKind::DramListFile
}

/// The worst that was found: what cannot be read comes before damage, and that before rows that differ.
fn failure(findings: &[Finding], bad: &[DamagedUnit]) -> Option<Failure> {
    let unreadable: Vec<DamagedUnit> =
        bad.iter().filter(|unit| unit.unreadable && !is_unread_list(unit)).cloned().collect();
    damage::failure(&unreadable)
        .or_else(|| findings.iter().find_map(|finding| finding.damage.clone()))
        .or_else(|| findings.iter().find(|finding| finding.differing > 0).map(differing))
        .or_else(|| damage::failure(bad))
}

fn differing(finding: &Finding) -> Failure {
    let first: Vec<String> = finding.first.iter().take(LISTED).map(u64::to_string).collect();
    let what = format!(
        "{} of table {:?} differ: {} {}",
        units::plural(finding.differing, "row"),
        finding.table.name,
        finding.kind(),
        first.join(", ")
    );
    Failure::new(Class::Mismatch, &finding.table.name, what).remedy("load the table again, with --replace")
}
