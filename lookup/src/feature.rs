//! What a plan looks up.

use warprow_layout::DType;

use crate::dedupe::Dedupe;

/// How the rows of a bag become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Pooling {
    /// They do not: one output row an id.
    #[default]
    None,
    /// Their sum.
    Sum,
    /// Their sum, divided by how many there are.
    Mean,
}

/// What an id stands for that its table does not have: negative, or not below the number of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Missing {
    /// The table's default row, as if it stood there. It joins a bag's sum, with the id's weight, and its count.
    #[default]
    Default,
    /// A row of zeros: nothing in a bag's sum, one in its count.
    Zero,
    /// Nothing: neither in a bag's sum nor in its count. Unpooled: a row of zeros.
    Skip,
    /// The look-up fails before anything is read or written.
    Error,
}

/// What a report says of ids that their table does not have. ([`Missing`] says which row they get; their mask is 0 whatever is said.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Bounds {
    /// Nothing: they count as `padding`.
    Ignore,
    /// How many they are: `missing`.
    #[default]
    Count,
    /// The same, and the first of the batch's, by position and id: `first_missing`.
    Report,
}

/// The first id of a batch that its table does not have, of features with [`Bounds::Report`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingId {
    /// Where in `ids` it stands.
    pub position: u64,
    /// The id.
    pub id: i128,
}

/// A column of the output: ids into one table, and how to pool them. Several features may share a table.
///
/// ```
/// # use std::ops::ControlFlow;
/// # use warprow_lookup::*;
/// # use warprow_store::*;
/// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, Create::IfMissing)?;
/// # let store = FormatPlan::new(&[device.clone()], FormatSettings::default())?.run(&Consent::None, &mut |_, _| {})?;
/// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
/// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
/// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
/// # let host = Host::attach(&store, HostOptions::default())?;
/// let features = [
///     Feature::new("history", "user").pooling(Pooling::Mean).padding(0).missing(Missing::Skip),
///     Feature::new("current", "user").pooling(Pooling::Sum),
/// ];
/// let plan = host.plan(&features, PlanOptions::default())?;
/// // One bag of each: ids 0 and 9999 stand for nothing in the first, where 0 is padding and 9999 is not there.
/// let batch = Batch::new(&[0i64, 2, 9999, 1], 1).with_offsets(&[0i64, 3]);
/// let mut row = [0.0f32; 8];
/// let report = plan.slot()?.lookup(&batch, &mut Output::new(Rows::F32(&mut row), plan.width()))?;
/// assert_eq!(row, [8.0, 9.0, 10.0, 11.0, 4.0, 5.0, 6.0, 7.0]);
/// assert_eq!((report.padding, report.missing), (1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Feature {
    /// What errors call it.
    pub name: String,
    /// The table, by name.
    pub table: String,
    /// Either all features of a plan are pooled or none is.
    pub pooling: Pooling,
    /// Whether each row is multiplied by its id's weight. Only with [`Pooling::Sum`].
    pub weighted: bool,
    /// An id that stands for nothing: neither in sum, count nor `missing`, whether the table has it or not. Unpooled: the
    /// stored row, or zeros if the table has none; the mask is 0 either way.
    pub padding: Option<i128>,
    /// `None`: as the plan says.
    pub missing: Option<Missing>,
    /// `None`: as the plan says.
    pub bounds: Option<Bounds>,
}

impl Feature {
    /// An unpooled feature of that name over `table`.
    pub fn new(name: impl Into<String>, table: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            table: table.into(),
            pooling: Pooling::None,
            weighted: false,
            padding: None,
            missing: None,
            bounds: None,
        }
    }

    /// With a pooling.
    #[must_use]
    pub fn pooling(self, pooling: Pooling) -> Self {
        Self { pooling, ..self }
    }

    /// With weights.
    #[must_use]
    pub fn weighted(self) -> Self {
        Self { weighted: true, ..self }
    }

    /// With a padding id.
    #[must_use]
    pub fn padding(self, id: i128) -> Self {
        Self { padding: Some(id), ..self }
    }

    /// With an answer to missing ids other than the plan's.
    #[must_use]
    pub fn missing(self, missing: Missing) -> Self {
        Self { missing: Some(missing), ..self }
    }

    /// With other words about missing ids than the plan's.
    #[must_use]
    pub fn bounds(self, bounds: Bounds) -> Self {
        Self { bounds: Some(bounds), ..self }
    }
}

/// How large look-ups of a plan may be, and what they yield.
///
/// ```
/// # use std::ops::ControlFlow;
/// # use warprow_lookup::*;
/// # use warprow_store::*;
/// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, Create::IfMissing)?;
/// # let store = FormatPlan::new(&[device.clone()], FormatSettings::default())?.run(&Consent::None, &mut |_, _| {})?;
/// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
/// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
/// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
/// # let host = Host::attach(&store, HostOptions::default())?;
/// let options = PlanOptions::default().with_max(2, 2).with_out(DType::F16).with_missing(Missing::Error);
/// let plan = host.plan(&[Feature::new("f", "user")], options)?;
/// let mut rows = vec![half::f16::ZERO; 8];
/// let mut slot = plan.slot()?;
/// slot.lookup(&Batch::new(&[1i64, 2], 2), &mut Output::new(Rows::F16(&mut rows), 4))?;
/// assert_eq!(rows[4].to_f32(), 8.0);
/// let refused = slot.lookup(&Batch::new(&[1i64, 1000], 2), &mut Output::new(Rows::F16(&mut rows), 4));
/// assert!(matches!(refused, Err(LookupError::MissingIds { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanOptions {
    /// Most bags of a feature in one batch.
    pub max_batch: usize,
    /// Most ids in one batch, over all features.
    pub max_ids: usize,
    /// Type of the output's elements.
    pub out: DType,
    /// What missing ids stand for, where a feature does not say.
    pub missing: Missing,
    /// What is said of them, likewise.
    pub bounds: Bounds,
    /// Look-ups that can be under way at once.
    pub slots: u32,
    /// Room for tables that take the place of the planned ones later: of elements of any type, and with all rows on drives. On a GPU:
    /// with twice as many rows in either tier, and elements as they are.
    pub growth: bool,
    /// Room for batches whose rows are fetched ahead of their look-up (`prefetch`), one in each slot: memory for every row on drives
    /// that there can be in a batch.
    pub prefetch: bool,
    /// How look-ups on a GPU find the different rows among a batch's ids, whatever their number. `None`: as is fastest by the benchmarks, and fits. (Rows that
    /// need no such thing get none: those in GPU memory, and few in DRAM.)
    pub dedupe: Option<Dedupe>,
}

impl Default for PlanOptions {
    /// 4,096 bags, 65,536 ids, `f32`, default rows, missing ids counted, one slot.
    fn default() -> Self {
        Self {
            max_batch: 4096,
            max_ids: 1 << 16,
            out: DType::F32,
            missing: Missing::Default,
            bounds: Bounds::Count,
            slots: 1,
            growth: false,
            prefetch: false,
            dedupe: None,
        }
    }
}

impl PlanOptions {
    /// With at most `max_batch` bags a feature and `max_ids` ids in all.
    #[must_use]
    pub fn with_max(self, max_batch: usize, max_ids: usize) -> Self {
        Self { max_batch, max_ids, ..self }
    }

    /// With elements of type `out`.
    #[must_use]
    pub fn with_out(self, out: DType) -> Self {
        Self { out, ..self }
    }

    /// With that answer to missing ids.
    #[must_use]
    pub fn with_missing(self, missing: Missing) -> Self {
        Self { missing, ..self }
    }

    /// With those words about missing ids.
    #[must_use]
    pub fn with_bounds(self, bounds: Bounds) -> Self {
        Self { bounds, ..self }
    }

    /// With room for tables of elements of any type and with all rows on drives, which a switch may bring.
    #[must_use]
    pub fn with_growth(self) -> Self {
        Self { growth: true, ..self }
    }

    /// With room for batches whose rows are fetched ahead of their look-up.
    #[must_use]
    pub fn with_prefetch(self) -> Self {
        Self { prefetch: true, ..self }
    }

    /// With different rows found in that way, on a GPU.
    #[must_use]
    pub fn with_dedupe(self, dedupe: Dedupe) -> Self {
        Self { dedupe: Some(dedupe), ..self }
    }

    /// With `slots` slots.
    #[must_use]
    pub fn with_slots(self, slots: u32) -> Self {
        Self { slots, ..self }
    }
}
