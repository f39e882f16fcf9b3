//! Finding a shorter storm that ends in the same way.

use std::fs;
use std::time::{Duration, Instant};

use super::options::Options;
use super::outcome::Outcome;
use super::work::run;

/// The first words of a violation, which tell its kind.
fn kind(outcome: &Outcome) -> Option<String> {
    let words = outcome.violation.as_ref()?.split_whitespace();
    Some(words.filter(|word| !word.contains(|c: char| c.is_ascii_digit())).take(5).collect::<Vec<_>>().join(" "))
}

/// Leaves steps out for as long as the storm still ends in a violation of that kind, at most for `patience`. Returns the steps that
/// are left, and what they came to.
pub fn shorten(seed: u64, options: &Options, found: Outcome, patience: Duration) -> (Vec<u64>, Outcome) {
    let began = Instant::now();
    let wanted = kind(&found);
    let mut steps: Vec<u64> = options.steps.iter().copied().filter(|&step| step <= found.at).collect();
    let mut best = found;
    let folder = options.folder.join("shorter");
    let mut length = steps.len().div_ceil(2);
    while length > 0 {
        let mut from = 0;
        // The last is where it was found.
        while from + length < steps.len() {
            if began.elapsed() > patience {
                return (steps, best);
            }
            let fewer = [&steps[..from], &steps[from + length..]].concat();
            let _ = fs::remove_dir_all(&folder);
            let tried = run(seed, &Options { steps: fewer, folder: folder.clone(), aloud: false, ..options.clone() });
            match kind(&tried) == wanted {
                true => {
                    steps = [&steps[..from], &steps[from + length..]].concat();
                    steps.retain(|&step| step <= tried.at);
                    best = tried;
                }
                false => from += length,
            }
        }
        length = if length == 1 { 0 } else { length.div_ceil(2) };
    }
    let _ = fs::remove_dir_all(&folder);
    (steps, best)
}
