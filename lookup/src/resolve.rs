//! Features and the tables that they need: what every executor begins a plan with.

use warprow_layout::{DType, Table};
use warprow_store::StoreError;

use crate::feature::{BoundsCheck, FailedRows, Feature, MissingPolicy, PlanOptions, Pooling};
use crate::stage::{MAX_ROWS, NONE};

/// Most features of a plan, and most tables.
const MAX_FEATURES: usize = 1 << 16;

/// A feature whose table was found.
#[derive(Debug)]
pub struct ResolvedFeature {
    /// Index among [`Resolved::tables`].
    pub table: u16,
    /// How the rows of a bag become one.
    pub pooling: Pooling,
    /// Whether each id has a weight.
    pub weighted: bool,
    /// The padding id, which stands for no row.
    pub padding: Option<i128>,
    /// Which row is returned for an id that the table does not have.
    pub missing: MissingPolicy,
    /// What the report says of such ids.
    pub bounds: BoundsCheck,
    /// The feature's first element in a pooled output row; 0 unpooled.
    pub column: usize,
    /// Elements of a row.
    pub dim: usize,
}

/// A table of a plan.
#[derive(Debug)]
pub struct ResolvedTable {
    /// Index among the tables that were given.
    pub given: usize,
    /// Rows.
    pub rows: u64,
    /// Type of the elements.
    pub dtype: DType,
    /// Elements of a row in the output.
    pub dim: usize,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// LBAs that one row lies in.
    pub row_lbas: u32,
    /// Where the default row is in the host's DRAM tier.
    pub(crate) default_byte: usize,
    /// Index among the host plan's overlays, and of the table in its generation.
    pub(crate) overlay: (u16, u32),
}

/// Features and the tables that they need.
#[derive(Debug)]
pub struct Resolved {
    /// In the order in which they were given.
    pub features: Vec<ResolvedFeature>,
    /// Each once.
    pub tables: Vec<ResolvedTable>,
    /// Whether the features are pooled: all of them, or none.
    pub pooled: bool,
    /// Elements of an output row: all features side by side if they are pooled, else the widest.
    pub width: usize,
}

/// Finds the tables of `features` among those that `known` names, and checks that they can be looked up together.
pub fn resolve<'a>(
    known: impl Iterator<Item = &'a Table> + Clone,
    features: &[Feature],
    options: &PlanOptions,
) -> Result<Resolved, StoreError> {
    let out_of_range = |reason: String| Err(StoreError::PlanOptions { reason });
    if features.is_empty() || features.len() > MAX_FEATURES {
        return out_of_range(format!("a plan has 1 to {MAX_FEATURES} features, not {}", features.len()));
    }
    if options.max_ids >= NONE as usize {
        return out_of_range(format!("max_ids is {}; it must be below {NONE}", options.max_ids));
    }
    if options.max_batch.checked_mul(features.len()).is_none_or(|bags| bags >= u32::MAX as usize) {
        return out_of_range(format!("{} features × max_batch of {} are too many", features.len(), options.max_batch));
    }
    if options.slots == 0 || options.slots > 1 << 16 {
        return out_of_range(format!("{} slots; 1 to 65,536 are possible", options.slots));
    }
    let pooled = features.iter().any(|feature| feature.pooling != Pooling::None);
    let mut tables: Vec<ResolvedTable> = Vec::new();
    let mut planned = Vec::with_capacity(features.len());
    let mut column = 0;
    for feature in features {
        let refuse = |reason: String| StoreError::Plan { feature: feature.name.clone(), reason };
        if pooled && feature.pooling == Pooling::None {
            let other = features.iter().find(|other| other.pooling != Pooling::None).map_or("", |other| &other.name);
            return Err(refuse(format!("it is not pooled and {other:?} is: make two plans")));
        }
        if feature.weighted && feature.pooling != Pooling::Sum {
            return Err(refuse("only sums are weighted: choose Pooling::Sum, or leave the weights".to_owned()));
        }
        let found = known.clone().enumerate().find(|(_, table)| table.name == feature.table);
        let (index, source) = found.ok_or_else(|| StoreError::NoSuchTable {
            table: feature.table.clone(),
            known: known.clone().map(|table| table.name.clone()).collect(),
        })?;
        check_types(source.dtype, options.out, pooled).map_err(refuse)?;
        if options.failed_rows == FailedRows::Nan && !is_float(options.out) {
            let why = "rows that fail cannot be NaN among elements of type";
            return Err(refuse(format!("{why} {}: choose FailedRows::Zeros, or f32, f16 or bf16", options.out)));
        }
        if source.rows > MAX_ROWS {
            return Err(refuse(format!("its table has more than {MAX_ROWS} rows")));
        }
        let table = match tables.iter().position(|table| table.given == index) {
            Some(table) => table,
            None => {
                tables.push(ResolvedTable::new(index, source, options.out));
                tables.len() - 1
            }
        };
        let missing = feature.missing.unwrap_or(options.missing);
        let bounds = feature.bounds.unwrap_or(options.bounds);
        if missing == MissingPolicy::Error && bounds == BoundsCheck::Ignore {
            return Err(refuse("missing ids cannot both be an error and be ignored: choose one".to_owned()));
        }
        let dim = out_dim(source, options.out);
        planned.push(ResolvedFeature {
            table: table as u16,
            pooling: feature.pooling,
            weighted: feature.weighted,
            padding: feature.padding,
            missing,
            bounds,
            column: if pooled { column } else { 0 },
            dim,
        });
        column += dim;
    }
    let width = if pooled { column } else { planned.iter().map(|feature| feature.dim).max().unwrap_or(0) };
    Ok(Resolved { features: planned, tables, pooled, width })
}

impl ResolvedTable {
    fn new(given: usize, table: &Table, out: DType) -> Self {
        Self {
            given,
            rows: table.rows,
            dtype: table.dtype,
            dim: out_dim(table, out),
            row_bytes: table.row_bytes() as usize,
            row_lbas: table.packing.row_lbas(),
            default_byte: 0,
            overlay: (0, 0),
        }
    }
}

/// Elements of a row of `table` in outputs of type `out`: those of the table, or the bytes of the row with its scales, where it
/// has any.
fn out_dim(table: &Table, out: DType) -> usize {
    let is_raw = out.is_scaled() && table.dtype == out;
    let bytes = table.dtype.row_bytes(table.dim).unwrap_or(table.row_bytes());
    (if is_raw { bytes } else { table.dim }) as usize
}

/// The type of an array for outputs of type `out`: floats of eight bits, and rows with their scales, come out as such as
/// [`OutputRows::U8`](crate::OutputRows::U8).
pub fn output_type(out: DType) -> DType {
    if matches!(out, DType::F8E4M3 | DType::F8E5M2) || out.is_scaled() { DType::U8 } else { out }
}

/// Whether values are computed in that type, so that it has NaN.
fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Whether rows of `table` can become elements of type `out`; else why not.
fn check_types(table: DType, out: DType, pooled: bool) -> Result<(), String> {
    if !is_float(out) && pooled {
        return Err(format!("pooled rows cannot be of type {out}: choose f32, f16 or bf16"));
    }
    if is_float(out) || table == out {
        return Ok(());
    }
    Err(format!("its table has elements of type {table}, which cannot become {out}: choose a float type, or its own"))
}
