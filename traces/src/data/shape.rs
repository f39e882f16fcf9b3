//! What each sample of a data set has.

/// What each sample has, in its order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DataShape {
    /// The names of the labels; where they have none, `label`, or `label0`, `label1` and so on.
    pub labels: Vec<String>,
    /// The names of the dense features; where they have none, `dense0`, `dense1` and so on.
    pub dense: Vec<String>,
    /// The sparse features.
    pub features: Vec<DataFeature>,
}

/// A sparse feature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFeature {
    /// The column's name; where features have none, their number from 0.
    pub name: String,
    /// How many ids each sample has of it, where that is so by the format; `None`: any number.
    pub hotness: Option<u32>,
}

/// Names for what has none: the plain one where there is one.
pub(crate) fn numbered(name: &str, count: usize) -> Vec<String> {
    match count {
        1 => vec![name.to_owned()],
        _ => (0..count).map(|index| format!("{name}{index}")).collect(),
    }
}
