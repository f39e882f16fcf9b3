//! Features and the options of a plan: what a plan looks up, and how.

use warprow_layout::DType;

use crate::dedupe::DedupeMethod;

/// How the rows of a bag become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Pooling {
    /// No pooling: each id has an output row of its own.
    #[default]
    None,
    /// The sum of the rows.
    Sum,
    /// The sum of the rows, divided by the number of rows that count.
    Mean,
}

/// Which row a *missing id* gets: an id that its table does not have, because it is negative or not below the number of
/// rows, or, in a table with sparse keys, because it is no key of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum MissingPolicy {
    /// The table's default row, as if the table had it for this id. The row is added to the bag's sum, with the id's
    /// weight, and counts for a mean.
    #[default]
    Default,
    /// A row of zeros: it adds nothing to the bag's sum, and counts for a mean.
    Zero,
    /// No row: nothing is added to the bag's sum, and nothing counts for a mean. Unpooled: a row of zeros.
    Skip,
    /// No row: the look-up fails. On the host it fails before anything is read or written. On a GPU, ids are known only
    /// when the look-up runs: such ids get a row of zeros, the other ids get theirs, and the look-up's ticket tells the
    /// error.
    Error,
}

/// What the output has for rows that could not be read, because a drive failed or a checksum did not match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FailedRows {
    /// Zeros: in the output row of an id whose row failed, and in the columns of a bag in which one row failed.
    #[default]
    Zeros,
    /// NaN, in the place of these zeros: nobody takes it for a row. The output's elements are f32, f16 or bf16.
    Nan,
}

/// What a mask tells of each id, by a byte that is 1 or 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum MaskMeaning {
    /// 1: the table has the id's row, which was read, and the id is no padding id.
    #[default]
    Found,
    /// 1: the id's row could not be read. Missing ids and padding ids have 0, as ids whose row was read.
    Failed,
}

/// What a [`LookupReport`](crate::LookupReport) says of ids that their table does not have. ([`MissingPolicy`] says
/// which row such ids get; their mask is 0 in every case.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum BoundsCheck {
    /// Nothing: such ids count as `padding`.
    Ignore,
    /// How many there are, as `missing`.
    #[default]
    Count,
    /// How many there are, as `missing`, and position and id of the first one in the batch, as `first_missing`.
    Report,
}

/// The first id of a batch that its table does not have, of features with [`BoundsCheck::Report`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingId {
    /// The id's position in [`Batch::ids`](crate::Batch::ids).
    pub position: u64,
    /// The id.
    pub id: i128,
}

/// A name under which ids of one table are looked up, and how the rows of its bags are pooled. Several features may
/// share a table. If features are pooled, each has columns of its own in an output row.
///
/// ```
/// # use std::ops::ControlFlow;
/// # use warprow_lookup::*;
/// # use warprow_store::*;
/// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, CreateDrive::IfMissing)?;
/// # let store = FormatProposal::new(&[device.clone()], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
/// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
/// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
/// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
/// # let host = HostExecutor::attach(&store, HostOptions::default())?;
/// let features = [
///     Feature::new("history", "user").pooling(Pooling::Mean).padding(0).missing(MissingPolicy::Skip),
///     Feature::new("current", "user").pooling(Pooling::Sum),
/// ];
/// let plan = host.plan(&features, PlanOptions::default())?;
/// // One bag of each feature: "history" has ids 0, 2 and 9999, "current" has id 1. In "history", 0 is padding, and 9999 is missing.
/// let batch = Batch::new(&[0i64, 2, 9999, 1], 1).with_offsets(&[0i64, 3]);
/// let mut row = [0.0f32; 8];
/// let report = plan.slot()?.lookup(&batch, &mut Output::new(OutputRows::F32(&mut row), plan.width()))?;
/// assert_eq!(row, [8.0, 9.0, 10.0, 11.0, 4.0, 5.0, 6.0, 7.0]);
/// assert_eq!((report.padding, report.missing), (1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Feature {
    /// The name by which errors call the feature.
    pub name: String,
    /// The name of the table.
    pub table: String,
    /// How the rows of a bag become one. Either all features of a plan are pooled or none is.
    pub pooling: Pooling,
    /// Whether each row is multiplied by its id's weight. That is possible only with [`Pooling::Sum`].
    pub weighted: bool,
    /// An id that stands for no row, whether the table has it or not: it adds nothing to a sum, does not count for a
    /// mean, and is not `missing`. Unpooled: its output row is the stored row, or zeros if the table has none; the mask
    /// is 0 either way.
    pub padding: Option<i128>,
    /// Which row a missing id gets; `None`: as [`PlanOptions::missing`] says.
    pub missing: Option<MissingPolicy>,
    /// What the report says of missing ids; `None`: as [`PlanOptions::bounds`] says.
    pub bounds: Option<BoundsCheck>,
}

impl Feature {
    /// An unpooled, unweighted feature called `name`, over the table called `table`.
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

    /// The feature with that pooling.
    #[must_use]
    pub fn pooling(self, pooling: Pooling) -> Self {
        Self { pooling, ..self }
    }

    /// The feature with rows that are multiplied by their ids' weights.
    #[must_use]
    pub fn weighted(self) -> Self {
        Self { weighted: true, ..self }
    }

    /// The feature with a padding id.
    #[must_use]
    pub fn padding(self, id: i128) -> Self {
        Self { padding: Some(id), ..self }
    }

    /// The feature with a setting of its own for which row a missing id gets, in place of the plan's.
    #[must_use]
    pub fn missing(self, missing: MissingPolicy) -> Self {
        Self { missing: Some(missing), ..self }
    }

    /// The feature with a setting of its own for what the report says of missing ids, in place of the plan's.
    #[must_use]
    pub fn bounds(self, bounds: BoundsCheck) -> Self {
        Self { bounds: Some(bounds), ..self }
    }
}

/// How large the look-ups of a plan may be, of which type their output is, and what memory is allocated for them.
///
/// ```
/// # use std::ops::ControlFlow;
/// # use warprow_lookup::*;
/// # use warprow_store::*;
/// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, CreateDrive::IfMissing)?;
/// # let store = FormatProposal::new(&[device.clone()], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
/// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
/// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
/// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
/// # let host = HostExecutor::attach(&store, HostOptions::default())?;
/// let options = PlanOptions::default().with_max(2, 2).with_out(DType::F16).with_missing(MissingPolicy::Error);
/// let plan = host.plan(&[Feature::new("f", "user")], options)?;
/// let mut rows = vec![half::f16::ZERO; 8];
/// let mut slot = plan.slot()?;
/// slot.lookup(&Batch::new(&[1i64, 2], 2), &mut Output::new(OutputRows::F16(&mut rows), 4))?;
/// assert_eq!(rows[4].to_f32(), 8.0);
/// let refused = slot.lookup(&Batch::new(&[1i64, 1000], 2), &mut Output::new(OutputRows::F16(&mut rows), 4));
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
    /// Which row a missing id gets, where its feature does not say.
    pub missing: MissingPolicy,
    /// What the report says of missing ids, where their feature does not say.
    pub bounds: BoundsCheck,
    /// What the output has for rows that could not be read.
    pub failed_rows: FailedRows,
    /// What masks tell.
    pub mask: MaskMeaning,
    /// The number of slots: look-ups that can be under way at once.
    pub slots: u32,
    /// Whether buffers have room for other tables than the planned ones, which an executor adopts later. On the host,
    /// the tables adopted may then have elements of any type, and all their rows on drives. On a GPU, they may have
    /// twice as many rows in either tier, and their elements are of the same type as before.
    pub adopt_room: bool,
    /// Whether buffers have room for batches whose rows are fetched ahead of their look-up (`prefetch`), one batch in
    /// each slot. That is memory for as many rows on drives as a batch can have.
    pub prefetch: bool,
    /// How look-ups on a GPU find the different rows among a batch's ids, whatever the number of ids. `None`: the way
    /// that was fastest in the benchmarks among those for which the batch is not too large. (Rows in GPU memory are not
    /// deduplicated, and neither are rows in DRAM if they are few.) The host executor ignores this.
    pub dedupe: Option<DedupeMethod>,
}

impl Default for PlanOptions {
    /// 4,096 bags, 65,536 ids, `f32`, default rows, missing ids counted, zeros for failed rows, masks of found rows,
    /// one slot.
    fn default() -> Self {
        Self {
            max_batch: 4096,
            max_ids: 1 << 16,
            out: DType::F32,
            missing: MissingPolicy::Default,
            bounds: BoundsCheck::Count,
            failed_rows: FailedRows::Zeros,
            mask: MaskMeaning::Found,
            slots: 1,
            adopt_room: false,
            prefetch: false,
            dedupe: None,
        }
    }
}

impl PlanOptions {
    /// The options with at most `max_batch` bags of each feature, and `max_ids` ids over all features.
    #[must_use]
    pub fn with_max(self, max_batch: usize, max_ids: usize) -> Self {
        Self { max_batch, max_ids, ..self }
    }

    /// The options with output elements of type `out`.
    #[must_use]
    pub fn with_out(self, out: DType) -> Self {
        Self { out, ..self }
    }

    /// The options with that row for missing ids of features that do not say.
    #[must_use]
    pub fn with_missing(self, missing: MissingPolicy) -> Self {
        Self { missing, ..self }
    }

    /// The options with that setting for what the report says of missing ids.
    #[must_use]
    pub fn with_bounds(self, bounds: BoundsCheck) -> Self {
        Self { bounds, ..self }
    }

    /// The options with that in the output for rows that could not be read.
    #[must_use]
    pub fn with_failed_rows(self, failed_rows: FailedRows) -> Self {
        Self { failed_rows, ..self }
    }

    /// The options with masks that tell that.
    #[must_use]
    pub fn with_mask(self, mask: MaskMeaning) -> Self {
        Self { mask, ..self }
    }

    /// The options with room for other tables than the planned ones, which the executor may adopt after a switch.
    #[must_use]
    pub fn with_adopt_room(self) -> Self {
        Self { adopt_room: true, ..self }
    }

    /// The options with room for batches whose rows are fetched ahead of their look-up.
    #[must_use]
    pub fn with_prefetch(self) -> Self {
        Self { prefetch: true, ..self }
    }

    /// The options with different rows found in that way, on a GPU.
    #[must_use]
    pub fn with_dedupe(self, dedupe: DedupeMethod) -> Self {
        Self { dedupe: Some(dedupe), ..self }
    }

    /// The options with `slots` slots.
    #[must_use]
    pub fn with_slots(self, slots: u32) -> Self {
        Self { slots, ..self }
    }
}
