//! A look-up that failed, among all ids that were asked for.

use std::ops::Range;

use warprow_lookup::LookupError;
use warprow_workload::units;

use crate::failure::{Failure, chain};
use crate::said_once::without_remedy;
use crate::store_failure::of_lookup;

/// What a failed look-up means, of ids `looked_up` of so many: what the store says counts and places ids among these.
pub(super) fn failed(error: &LookupError, table: &str, looked_up: &Range<usize>, ids: usize) -> Failure {
    let failure = of_lookup(error, table);
    let (found, positions) = match error {
        LookupError::MissingIds { positions, .. } => ("are missing from their tables", positions),
        LookupError::RowsFailed { positions, .. } => ("could not be read", positions),
        _ => return failure,
    };
    let positions: Vec<usize> = positions.iter().map(|position| position + looked_up.start).collect();
    let count = |number: usize| units::count(number as u64);
    let so_far = match looked_up.end == ids {
        true => units::plural(ids as u64, "id"),
        false => format!("the first {} of {}", count(looked_up.end), units::plural(ids as u64, "id")),
    };
    let rows = if matches!(error, LookupError::RowsFailed { .. }) { "the rows of " } else { "" };
    let mut message = format!(
        "{rows}{} of {so_far} {found}, the first at position {}",
        count(positions.len()),
        count(positions.first().copied().unwrap_or_default())
    );
    if let LookupError::RowsFailed { source, .. } = error {
        message += &format!(": {}", without_remedy(chain(source), &failure.remedy));
    }
    if looked_up.end < ids {
        message += "; the other ids were not looked up";
    }
    Failure { message, ..failure }.detail("positions", positions).detail("looked_up", looked_up.end)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use warprow_lookup::{LookupReport, RowError};

    use super::*;
    use crate::commands::lookup::limits::CHUNK;

    #[test]
    fn a_drive_that_dies_fails_ids_among_all() {
        let lost = || LookupError::RowsFailed {
            report: Box::new(LookupReport::default()),
            positions: (20..CHUNK).collect(),
            source: RowError::Drive(warprow_driver::DriverError::Gone { function: "d".into(), during: "reads" }),
        };
        let failure = failed(&lost(), "t", &(CHUNK..2 * CHUNK), 1_000_000);
        let want = "the rows of 65,516 of the first 131,072 of 1,000,000 ids could not be read, the first at position 65,556: d: the \
                    device is gone";
        assert!(failure.message.starts_with(want), "{failure}");
        assert!(failure.message.ends_with("; the other ids were not looked up"), "{failure}");
        let positions = failure.details["positions"].as_array().unwrap();
        assert_eq!(
            (positions.len(), &positions[0], &failure.details["looked_up"]),
            (65_516, &json!(65_556), &json!(131_072))
        );
        let last = failed(&lost(), "t", &(CHUNK..2 * CHUNK), 2 * CHUNK);
        assert!(
            last.message.contains("65,516 of 131,072 ids could not") && !last.message.contains("other ids"),
            "{last}"
        );
    }
}
