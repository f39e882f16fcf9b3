//! Which tensors of a file become a table: a pattern of names, and what is said of their scales and rows.

use std::fmt;
use std::ops::Range;

use warprow_layout::DType;

/// Which tensors of a file of tables to attach, and how.
///
/// ```
/// use warprow_store::AttachedTensor;
///
/// let tensor = AttachedTensor::new("ple=*.ngram_embedding.shard_{}.weight").with_scales("*.ngram_embedding.weight_scale");
/// assert_eq!(tensor.to_string(), "ple=*.ngram_embedding.shard_{}.weight,scales=*.ngram_embedding.weight_scale");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttachedTensor {
    /// `[NAME=]GLOB`: the names of the tensors, and what the only one is called instead. In the glob, `*` stands for any characters
    /// and `?` for one; `{}` stands for the number of a shard: tensors that differ in it are one table. `{N}` stands for that, too,
    /// and says that there are N shards.
    pub pattern: String,
    /// Where the scales of their elements are.
    pub scales: TensorScales,
    /// The name of the tensor with a scale for all rows, beside those for parts of rows; a glob, in which `{}` stands for the
    /// shard's number. Behind `1/`: what it holds divides. `None`: the one that has the usual name, if rows need it.
    pub global: Option<String>,
    /// The type, f32, f16 or bf16, to which a scale for a whole row is rounded before numbers are multiplied by it. `None`: it stays
    /// as it is.
    pub round: Option<DType>,
    /// Each row is seen as several of so many elements.
    pub dim: Option<u32>,
    /// These rows alone, which are then numbered from 0.
    pub rows: Option<Range<u64>>,
}

/// Where the scales of a tensor's elements are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum TensorScales {
    /// In the tensor that has the usual name beside it, if there is one: `X.scale`, `X.weight_scale` or `X.weight_scale_inv` beside
    /// `X.weight`.
    #[default]
    Usual,
    /// Nowhere: the elements are wanted as they stand.
    None,
    /// In the tensor that this glob names; `{}` stands for the shard's number.
    Of(String),
}

impl AttachedTensor {
    /// The tensors that `[NAME=]GLOB` names.
    pub fn new(pattern: impl Into<String>) -> Self {
        Self { pattern: pattern.into(), scales: TensorScales::Usual, global: None, round: None, dim: None, rows: None }
    }

    /// With scales in the tensor that `pattern` names.
    #[must_use]
    pub fn with_scales(self, pattern: impl Into<String>) -> Self {
        Self { scales: TensorScales::Of(pattern.into()), ..self }
    }

    /// With elements as they stand, whatever scales there are.
    #[must_use]
    pub fn without_scales(self) -> Self {
        Self { scales: TensorScales::None, ..self }
    }

    /// With the scale for all rows in the tensor that `pattern` names.
    #[must_use]
    pub fn with_global(self, pattern: impl Into<String>) -> Self {
        Self { global: Some(pattern.into()), ..self }
    }

    /// With scales for whole rows rounded to `dtype`: f32, f16 or bf16.
    #[must_use]
    pub fn with_rounded_scales(self, dtype: DType) -> Self {
        Self { round: Some(dtype), ..self }
    }

    /// With each row seen as several of `dim` elements.
    #[must_use]
    pub fn with_dim(self, dim: u32) -> Self {
        Self { dim: Some(dim), ..self }
    }

    /// With the rows `rows` alone, which are then numbered from 0.
    #[must_use]
    pub fn with_rows(self, rows: Range<u64>) -> Self {
        Self { rows: Some(rows), ..self }
    }
}

impl From<&str> for AttachedTensor {
    fn from(pattern: &str) -> Self {
        Self::new(pattern)
    }
}

impl From<String> for AttachedTensor {
    fn from(pattern: String) -> Self {
        Self::new(pattern)
    }
}

impl fmt::Display for AttachedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.pattern)?;
        match &self.scales {
            TensorScales::Usual => {}
            TensorScales::None => f.write_str(",scales=")?,
            TensorScales::Of(pattern) => write!(f, ",scales={pattern}")?,
        }
        self.global.as_ref().map_or(Ok(()), |pattern| write!(f, ",global={pattern}"))?;
        self.round.map_or(Ok(()), |dtype| write!(f, ",round={dtype}"))?;
        self.dim.map_or(Ok(()), |dim| write!(f, ",dim={dim}"))?;
        self.rows.as_ref().map_or(Ok(()), |rows| write!(f, ",rows={}..{}", rows.start, rows.end))
    }
}
