use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::Verdict;

/// Counts checks and prints a line for each.
#[derive(Debug, Default)]
pub struct Tally {
    passed: u32,
    skipped: u32,
    failed: u32,
}

impl Tally {
    /// Runs a check that cannot be skipped.
    pub fn run(&mut self, name: &str, check: impl FnOnce() -> Result<()>) {
        self.judge(name, || check().map(|()| Verdict::Passed));
    }

    /// Runs a check that may say that it was skipped.
    pub fn judge(&mut self, name: &str, check: impl FnOnce() -> Result<Verdict>) {
        let start = Instant::now();
        let result = check();
        let ms = start.elapsed().as_millis();
        match result {
            Ok(Verdict::Passed) => {
                self.passed += 1;
                println!("ok     {name} ({ms} ms)");
            }
            Ok(Verdict::Skipped(why)) => {
                self.skipped += 1;
                println!("skip   {name}: {why}");
            }
            Err(error) => {
                self.failed += 1;
                println!("FAILED {name} ({ms} ms): {error:#}");
            }
        }
    }

    /// Prints the counts. The code is success only if every check ran and passed: the guest's drives have all that checks ask for.
    /// An error where no check passed.
    pub fn finish(&self) -> Result<ExitCode> {
        println!("{} passed, {} skipped, {} failed", self.passed, self.skipped, self.failed);
        ensure!(self.passed > 0, "no check ran");
        Ok(if self.failed == 0 && self.skipped == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
