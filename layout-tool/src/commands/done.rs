//! What a command has to say.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::failure::{Class, Failure};

/// What a command has to say.
#[derive(Debug, Clone, Default)]
pub struct CommandOutput {
    /// For people.
    pub text: String,
    /// For programs: the members of the object, without `schema` and `command`.
    pub json: Map<String, Value>,
    /// A failure that does not keep the rest from being printed.
    pub failure: Option<Failure>,
}

impl CommandOutput {
    /// With `text` for people and the members of `json`, which serialises as an object, for programs.
    pub fn new(text: impl Into<String>, json: impl Serialize) -> Result<Self, Failure> {
        let value = serde_json::to_value(json);
        match value {
            Ok(Value::Object(json)) => Ok(Self { text: text.into(), json, failure: None }),
            other => Err(Failure::new(Class::Bug, "", format!("no JSON object: {other:?}"))),
        }
    }
}
