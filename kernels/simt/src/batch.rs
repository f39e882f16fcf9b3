//! Ids, bags, weights, and where the output goes.

use std::ops::Range;

use fastrand::Rng;
use warprow_kernels::abi::{BatchIds, DriveQueues, Lookup, OutputRows, SlotPlaces, id};

use crate::buffer::Buffer;
use crate::oracle::element_bytes;
use crate::world::{Feature, Table, World};

pub struct Batch {
    pub ids: Vec<i128>,
    /// Where bags begin, and the end.
    bounds: Vec<usize>,
    pub bag_count: usize,
    /// Elements from an output row to the next.
    pub stride: usize,
    weights: Option<Vec<f32>>,
    pub mask: Option<Buffer>,
    pub out: Buffer,
    lookup: Lookup,
    // Held for their addresses.
    _inputs: Vec<Buffer>,
}

/// Numbers of one of the types of ids.
pub fn encode(values: impl IntoIterator<Item = i128>, id_type: u32) -> Buffer {
    let bytes = if matches!(id_type, id::I32 | id::U32) { 4 } else { 8 };
    Buffer::of(&values.into_iter().flat_map(|value| value.to_le_bytes()[..bytes].to_vec()).collect::<Vec<u8>>())
}

fn random_id(rng: &mut Rng, id_type: u32, feature: &Feature, table: &Table, hot: u64) -> i128 {
    let rows = table.rows;
    let (low, high) = match id_type {
        id::I32 => (i128::from(i32::MIN), i128::from(i32::MAX)),
        id::I64 => (i128::from(i64::MIN), i128::from(i64::MAX)),
        id::U32 => (0, i128::from(u32::MAX)),
        _ => (0, i128::from(u64::MAX)),
    };
    let value = match rng.u32(0..40) {
        0 => [low, high, -1, rows.into()][rng.usize(0..4)],
        1 => i128::from(rows) + i128::from(rng.u64(0..1000)),
        2 | 3 => feature.padding.unwrap_or(0),
        4..8 if table.sparse.is_some() => {
            // Some as the other kind has these bits.
            let foreign = table.sparse.as_ref().map_or(&[0][..], |sparse| &sparse.foreign);
            let key = foreign[rng.usize(0..foreign.len())];
            if rng.bool() {
                key
            } else if key < 0 {
                i128::from(key as u64)
            } else {
                i128::from(key as u64 as i64)
            }
        }
        4..20 => table.id(rng.u64(0..hot.min(rows))),
        _ => table.id(rng.u64(0..rows)),
    };
    value.clamp(low, high)
}

/// A launch like another but for one part.
pub trait Varied {
    /// The launch with that ticket.
    fn with_ticket(self, ticket: u32) -> Self;
    /// The launch with queues whose descriptors lie at that address.
    fn with_queues(self, descriptors: u64) -> Self;
}

impl Varied for Lookup {
    fn with_ticket(self, ticket: u32) -> Self {
        Self { slot: SlotPlaces { ticket, ..self.slot }, ..self }
    }

    fn with_queues(self, descriptors: u64) -> Self {
        Self { queues: DriveQueues { descriptors, ..self.queues }, ..self }
    }
}

impl Batch {
    /// Some number of ids up to what the slot has room for.
    pub fn new(rng: &mut Rng, world: &World) -> Self {
        let most = if rng.bool() { world.max_ids } else { rng.u64(0..=world.max_ids.min(300)) };
        Self::of(rng, world, rng.clone().u64(0..=most))
    }

    pub fn of(rng: &mut Rng, world: &World, ids: u64) -> Self {
        let most = (ids as usize / world.features.len()).max(1);
        let bag_count = rng.usize(1..=most).min(world.max_bags as usize);
        Self::with_bags(rng, world, ids, bag_count)
    }

    /// So many bags of each feature, or none.
    pub fn with_bags(rng: &mut Rng, world: &World, ids: u64, bag_count: usize) -> Self {
        let ids = ids as usize;
        let bags = bag_count * world.features.len();
        if rng.bool() {
            // All bags of one length.
            let each = ids / bags;
            if each == 0 && rng.bool() {
                return Self::of_bounds(rng, world, vec![0], 0, false);
            }
            return Self::of_bounds(rng, world, (0..=bags).map(|bag| bag * each).collect(), bag_count, false);
        }
        let mut bounds: Vec<usize> = (1..bags).map(|_| rng.usize(0..=ids)).collect();
        bounds.extend([0, ids]);
        bounds.sort_unstable();
        Self::of_bounds(rng, world, bounds, bag_count, true)
    }

    /// So many bags of each feature. Those of most features have one id or none, but for a few bags; others have up to five.
    pub fn with_single_bags(rng: &mut Rng, world: &World, bag_count: usize) -> Self {
        let mut bounds = vec![0];
        let mut end = 0;
        for _ in &world.features {
            let longer = [0, 0, 0, 1, 10, 40][rng.usize(0..6)];
            for _ in 0..bag_count {
                let most = if rng.u32(0..40) < longer { 6 } else { 2 };
                end = world.max_ids.min(end as u64 + rng.u64(0..most)) as usize;
                bounds.push(end);
            }
        }
        Self::of_bounds(rng, world, bounds, bag_count, true)
    }

    /// Bags that begin and end there, `bag_count` of each feature. `is_told`: by offsets, else all are of one length.
    fn of_bounds(rng: &mut Rng, world: &World, bounds: Vec<usize>, bag_count: usize, is_told: bool) -> Self {
        let ids = bounds.last().copied().unwrap_or(0);
        let features = world.features.len();
        let mut lookup = world.lookup();
        let mut inputs = Vec::new();
        let mut keep = |buffer: Buffer| {
            inputs.push(buffer);
            inputs.last().unwrap().address()
        };
        if is_told {
            let given = &mut lookup.batch;
            given.offset_type = rng.u32(id::I32..=id::U64);
            given.has_end = rng.bool().into();
            let entries = bag_count * features + given.has_end as usize;
            given.offsets = keep(encode(bounds[..entries].iter().map(|&at| at as i128), given.offset_type));
        }
        let id_type = rng.u32(id::I32..=id::U64);
        let hot = rng.u64(1..=200);
        let mut batch = Self {
            ids: Vec::new(),
            bounds,
            bag_count,
            stride: world.width + if rng.bool() { 0 } else { rng.usize(1..20) },
            weights: rng.bool().then(Vec::new),
            mask: rng.bool().then(|| Buffer::new(ids)),
            out: Buffer::new(0),
            lookup,
            _inputs: Vec::new(),
        };
        for i in 0..ids {
            let feature = &world.features[batch.feature_of(i, features)];
            batch.ids.push(random_id(rng, id_type, feature, &world.tables[feature.table], hot));
        }
        // Features may want weights even where the batch has no id.
        let weights = (world.features.iter().any(|feature| feature.weighted) || batch.weights.is_some())
            .then(|| (0..ids).map(|_| (rng.f32() - 0.5) * 4.0).collect::<Vec<f32>>());
        if let Some(weights) = &weights {
            batch.lookup.batch.weights =
                keep(Buffer::of(&weights.iter().flat_map(|weight| weight.to_le_bytes()).collect::<Vec<u8>>()));
        }
        batch.weights = weights;
        batch.lookup.batch.ids = keep(encode(batch.ids.iter().copied(), id_type));
        let rows = if world.pooled { batch.bag_count } else { ids };
        batch.out = Buffer::new(rows * batch.stride * element_bytes(world.out) as usize);
        if rng.bool() {
            let counts = [ids as u64, batch.bag_count as u64];
            batch.lookup.batch.counts = keep(Buffer::of(&counts.map(u64::to_le_bytes).concat()));
            // What a graph has baked in is of no account.
            (batch.lookup.batch.id_count, batch.lookup.batch.bag_count) = (rng.u64(..), rng.u64(..));
        } else {
            (batch.lookup.batch.id_count, batch.lookup.batch.bag_count) = (ids as u64, batch.bag_count as u64);
        }
        batch.lookup.batch.id_type = id_type;
        batch.lookup.output.rows = batch.out.address();
        batch.lookup.output.row_stride = batch.stride as u64;
        batch.lookup.output.mask = batch.mask.as_ref().map_or(0, Buffer::address);
        batch._inputs = inputs;
        batch
    }

    pub fn lookup(&self) -> Lookup {
        self.lookup
    }

    /// The ids of each bag.
    pub fn bags(&self) -> impl Iterator<Item = Range<usize>> {
        self.bounds.windows(2).map(|bounds| bounds[0]..bounds[1])
    }

    pub fn feature_of(&self, position: usize, features: usize) -> usize {
        let starts = (0..features).map(|feature| self.bounds.get(feature * self.bag_count).copied().unwrap_or(0));
        // The last feature that begins at or before it: those before may be empty.
        starts.enumerate().filter(|&(_, start)| start <= position).map(|(feature, _)| feature).max().unwrap_or(0)
    }

    pub fn weight(&self, position: usize) -> f32 {
        self.weights.as_ref().map_or(1.0, |weights| weights[position])
    }

    pub fn is_sound(&self) -> bool {
        self.out.is_sound() && self.mask.as_ref().is_none_or(Buffer::is_sound)
    }
}

impl Batch {
    /// Each of the first `rows` ids once, in one bag of a world with one feature.
    pub fn each(world: &World, rows: u64) -> Self {
        let ids: Vec<i128> = (0..i128::from(rows)).collect();
        let inputs = vec![encode(ids.iter().copied(), id::U32)];
        let out = Buffer::new(rows as usize * world.width * element_bytes(world.out) as usize);
        let all = world.lookup();
        let lookup = Lookup {
            batch: BatchIds { ids: inputs[0].address(), id_count: rows, bag_count: 1, id_type: id::U32, ..all.batch },
            output: OutputRows { rows: out.address(), row_stride: world.width as u64, ..all.output },
            ..all
        };
        Self {
            ids,
            bounds: vec![0, rows as usize],
            bag_count: 1,
            stride: world.width,
            weights: None,
            mask: None,
            out,
            lookup,
            _inputs: inputs,
        }
    }
}
