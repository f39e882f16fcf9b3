//! What a page is about: runs of programs, and what came of them.

use serde_json::Value;

use super::machine::Described;

/// One run of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// What it is called here: `ring`, `lookup-gpu`.
    pub name: String,
    /// The part's command line, where that is known.
    pub command: Option<String>,
    /// What came of it.
    pub outcome: Outcome,
    /// What it said beside its result, if anything.
    pub said: String,
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The part printed this.
    Done(Value),
    /// The part was run, or should have been, and there is no result.
    Failed(String),
    /// This machine cannot run the part, or nobody asked for it.
    NotRun(String),
}

/// What a page is about.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// When, as people write it.
    pub date: String,
    /// Where.
    pub machine: Described,
    /// In the order of the page.
    pub parts: Vec<Part>,
}

impl Report {
    /// Names of the parts that have failed.
    pub fn failed(&self) -> Vec<&str> {
        let is_failed = |part: &&Part| matches!(part.outcome, Outcome::Failed(_));
        self.parts.iter().filter(is_failed).map(|part| part.name.as_str()).collect()
    }
}

/// A program's result by what it printed: an object, or why it is none.
pub(super) fn outcome_of(printed: &str) -> Outcome {
    match serde_json::from_str::<Value>(printed.trim()) {
        Err(error) => Outcome::Failed(format!("what it printed is no JSON: {error}")),
        Ok(value) => match value.get("error") {
            None => Outcome::Done(value),
            Some(error) => {
                let message = error.get("message").and_then(Value::as_str).unwrap_or("it does not say why");
                Outcome::Failed(message.to_owned())
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_error_is_a_failure() {
        let failed = |text: &str| match outcome_of(text) {
            Outcome::Failed(reason) => reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(failed(r#"{"schema":1,"error":{"message":"no room"}}"#), "no room");
        assert!(failed("").contains("no JSON"));
        assert!(failed("{\"a\":").contains("no JSON"));
        assert_eq!(outcome_of(" {\"a\":1}\n"), Outcome::Done(serde_json::json!({ "a": 1 })));
    }
}
