//! What errors of a tier proposal mean to a user.

use warprow_plan::ProposalError;

use crate::drives;
use crate::failure::{Class, Failure};

impl From<ProposalError> for Failure {
    fn from(error: ProposalError) -> Self {
        let (class, subject) = match &error {
            ProposalError::Trace(_) => (Class::Input, String::new()),
            ProposalError::NoTables | ProposalError::Option { .. } => (Class::Usage, String::new()),
            ProposalError::Table { table, .. } | ProposalError::Uneven { table, .. } => (Class::Input, table.clone()),
            ProposalError::KeysOutside { table, .. } => (Class::Input, table.clone()),
            ProposalError::IdsOutside { table, .. } | ProposalError::Budget { table, .. } => {
                (Class::Input, table.clone())
            }
            ProposalError::File { path, .. } => (Class::Input, path.clone()),
            ProposalError::Timing(_) => (Class::Resources, String::new()),
            ProposalError::Stopped => (Class::Interrupted, String::new()),
            ProposalError::Changed { .. }
            | ProposalError::Index { .. }
            | ProposalError::TooShort { .. }
            | ProposalError::NothingInTables
            | ProposalError::CacheTooSmall { .. }
            | ProposalError::Drives { .. } => (Class::Input, String::new()),
        };
        match error {
            ProposalError::Trace(error) => error.into(),
            error => Self::new(class, subject, error.to_string()).remedy(error.remedy()),
        }
    }
}

/// Where ids of the trace pass the rows of tables, what to do about all of these at once. Tables of a store are as they are.
pub(super) fn keyed_instead(error: ProposalError, of_store: bool) -> Failure {
    let sparse = match &error {
        ProposalError::IdsOutside { sparse, .. } => sparse.clone(),
        _ => Vec::new(),
    };
    let failure = Failure::from(error);
    if sparse.is_empty() {
        return failure;
    }
    let remedy = match of_store {
        true => format!(
            "load {} with keys (`warprow load --keys`), or give the tables that the trace is of",
            sparse.join(", ")
        ),
        false => {
            let options: Vec<String> = sparse.iter().map(|name| format!("--keyed {}", drives::shell(name))).collect();
            format!(
                "ids past the rows are keys, any numbers of 64 bits: add {}; or give the tables that the trace is of",
                options.join(" ")
            )
        }
    };
    failure.remedy(remedy).detail("sparse", sparse)
}
