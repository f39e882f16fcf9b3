//! A table to load, and where its rows come from.

use std::borrow::Cow;

use warprow_layout::{Ranks, RowSource, Table, TableKeys, TableSpec, VolumeError};

use super::places::Places;

/// A table to load.
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
/// // Row 2 is looked up most: it gets the first rank, and with it a place in memory.
/// let ranks = Ranks::by_hotness(&[1, 0, 9]);
/// let spec = TableSpec { permuted: true, hot_rows: 1, ..TableSpec::new("hot", 3, 1, DType::U8) };
/// let source = &[10u8, 11, 12][..];
/// let load = TableLoad::new(&spec, &source).with_ranks(&ranks);
/// store.load("m2", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
/// let mut by_rank = Vec::new();
/// store.scan("hot", 0..3, &mut |rank, row| {
///     by_rank.push((rank, row[0]));
///     ControlFlow::Continue(())
/// })?;
/// by_rank.sort();
/// assert_eq!(by_rank, [(0, 12), (1, 10), (2, 11)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct TableLoad<'a> {
    pub(super) spec: &'a TableSpec,
    pub(super) source: &'a dyn RowSource,
    pub(super) ranks: Option<&'a Ranks>,
    pub(super) keyed: Option<&'a TableKeys<'a>>,
    pub(super) order: Option<&'a Ranks>,
    random_access: bool,
    sequential: bool,
}

impl<'a> TableLoad<'a> {
    /// The table that `spec` describes, with rows from `source`, by id.
    pub fn new(spec: &'a TableSpec, source: &'a dyn RowSource) -> Self {
        Self { spec, source, ranks: None, keyed: None, order: None, random_access: false, sequential: false }
    }

    /// With the id → rank permutation of a table whose `spec` is `permuted`.
    #[must_use]
    pub fn with_ranks(self, ranks: &'a Ranks) -> Self {
        Self { ranks: Some(ranks), ..self }
    }

    /// With the keys of a table whose `spec` was made for them ([`TableSpec::keyed`]). Row i of the source then belongs
    /// to key number i.
    #[must_use]
    pub fn with_keys(self, keyed: &'a TableKeys<'a>) -> Self {
        Self { keyed: Some(keyed), ..self }
    }

    /// Id → rank, or key number → rank; `None`: the two are equal.
    pub(super) fn placement(&self) -> Option<&'a Ranks> {
        self.keyed.map_or(self.ranks, TableKeys::placement)
    }

    /// With rows that the source has in another order than that of their ids: its row i is that of id `order[i]`. They are read
    /// once, from the first to the last, also if that order is the same after all.
    #[must_use]
    pub fn with_order(self, order: &'a Ranks) -> Self {
        Self { order: Some(order), ..self }
    }

    /// With rows that the source gives in the order of their ids only, once, from the first to the last: compressed ones. While some
    /// are written the next are read.
    #[must_use]
    pub fn with_sequential_rows(self) -> Self {
        Self { sequential: true, ..self }
    }

    /// With rows that the source gives in any order at no cost: computed ones, or in memory. Other sources are read once,
    /// from the first row to the last.
    #[must_use]
    pub fn with_random_access(self) -> Self {
        Self { random_access: true, ..self }
    }

    /// How the source's rows come to their places, if it cannot be asked for them in the order of extents.
    pub(super) fn places(&self, table: &Table) -> Result<Option<Places<'a>>, VolumeError> {
        let Some(order) = self.order else {
            let ranks = self.placement().filter(|ranks| !self.random_access && ranks.len() == table.rows);
            let otherwise = self.sequential.then_some(Places::InTurn);
            return Ok(ranks.map(|ranks| Places::Ranks(Cow::Borrowed(ranks))).or(otherwise));
        };
        if order.len() != table.rows {
            let expected = table.rows;
            let given = order.len();
            return Err(VolumeError::Length { what: "the order of the source's rows", expected, given });
        }
        let Some(ranks) = self.placement() else { return Ok(Some(Places::Ranks(Cow::Borrowed(order)))) };
        let rank = |id: u64| ranks.get(id).unwrap_or(u64::MAX);
        Ok(Some(Places::Ranks(Cow::Owned(match order {
            Ranks::U32(order) => Ranks::U32(order.iter().map(|&id| rank(id.into()) as u32).collect()),
            Ranks::U64(order) => Ranks::U64(order.iter().map(|&id| rank(id)).collect()),
        }))))
    }
}
