//! Which columns are labels, dense features and sparse features.

use std::path::Path;

use warprow_formats::{FileError, FileErrorKind};

use super::spec::{DataColumns, DataSpec};

/// The names of columns by what they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Roles {
    pub(super) labels: Vec<String>,
    pub(super) dense: Vec<String>,
    pub(super) features: Vec<String>,
}

/// Labels, dense features and sparse features as a data set itself says.
pub(super) type Said = (Vec<String>, Vec<String>, Vec<String>);

/// Whether a name says that a column is a label.
fn is_label(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.starts_with("label") || name == "click"
}

/// Whether a name says that a column of numbers is a dense feature.
fn is_dense(name: &str) -> bool {
    name.to_ascii_lowercase().starts_with("dense")
}

impl Roles {
    /// What `spec` names; else what the data set says; else what names and types tell: names that begin with `label`, and `click`, are labels, other columns
    /// of floating-point numbers, and those whose names begin with `dense`, are dense features, other columns of integers are sparse ones.
    pub(super) fn of(
        spec: &DataSpec,
        file: &Path,
        floats: Vec<String>,
        integers: Vec<String>,
        said: Option<Said>,
    ) -> Result<Self, FileError> {
        let (said_labels, said_dense, said_features) = said.unwrap_or_default();
        let known = || floats.iter().chain(&integers).cloned();
        let or = |said: Vec<String>, told: Vec<String>| if said.is_empty() { told } else { said };
        let taken = |columns: &DataColumns, name: &String| match columns {
            DataColumns::Named(names) => names.contains(name),
            _ => false,
        };
        let named =
            |name: &String| taken(&spec.labels, name) || taken(&spec.dense, name) || spec.features.contains(name);
        let free = |name: &String| !named(name);
        let labels = match &spec.labels {
            DataColumns::Named(names) => names.clone(),
            other => {
                let told = or(said_labels, known().filter(|name| is_label(name) && free(name)).collect());
                counted(file, "labels", other, told)?
            }
        };
        let is_free = |name: &String| free(name) && !labels.contains(name);
        let dense = match &spec.dense {
            DataColumns::Named(names) => names.clone(),
            other => {
                let told = floats.iter().chain(integers.iter().filter(|name| is_dense(name)));
                let told = told.filter(|name| is_free(name)).cloned().collect();
                counted(file, "dense features", other, or(said_dense, told))?
            }
        };
        let features = match spec.features.is_empty() {
            false => spec.features.clone(),
            true => {
                let told = integers.iter().filter(|name| is_free(name) && !dense.contains(name)).cloned();
                or(said_features, told.collect())
            }
        };
        if let Some(absent) = labels.iter().chain(&dense).chain(&features).find(|name| !known().any(|it| it == **name))
        {
            let columns = known().collect::<Vec<_>>().join(", ");
            let what = format!("it has no column {absent:?} of numbers; its columns are: {columns}");
            return Err(FileError::new(FileErrorKind::Missing, file, what, "name one of these"));
        }
        if let Some(twice) = repeated(labels.iter().chain(&dense).chain(&features)) {
            let what = format!("its column {twice:?} is named twice, among labels, dense features and sparse features");
            return Err(FileError::new(FileErrorKind::Duplicate, file, what, "name each column once"));
        }
        Ok(Self { labels, dense, features })
    }
}

/// `told`, if they are as many as was said.
fn counted(file: &Path, of: &str, said: &DataColumns, told: Vec<String>) -> Result<Vec<String>, FileError> {
    match said {
        DataColumns::Count(count) if *count as usize != told.len() => {
            let what = format!("{count} {of} are said, and its names tell of {}: {}", told.len(), told.join(", "));
            Err(FileError::new(FileErrorKind::Disagree, file, what, "name the columns"))
        }
        _ => Ok(told),
    }
}

fn repeated<'a>(names: impl Iterator<Item = &'a String>) -> Option<&'a String> {
    let mut seen = std::collections::HashSet::new();
    names.into_iter().find(|name| !seen.insert(*name))
}
