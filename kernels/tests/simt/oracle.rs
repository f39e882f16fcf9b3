//! What a look-up means, naively: `docs/store.md`, one id after the other.

use std::collections::BTreeSet;

use half::{bf16, f16};
use warprow_kernels::abi::{Counters, element, missing, pooling};

use crate::batch::Batch;
use crate::buffer::poison;
use crate::world::World;

pub(crate) fn element_bytes(element: u32) -> u32 {
    match element {
        element::F32 => 4,
        element::F16 | element::BF16 => 2,
        _ => 1,
    }
}

fn widen(row: &[u8], element: u32, index: usize) -> f32 {
    let two = || [row[index * 2], row[index * 2 + 1]];
    match element {
        element::F32 => f32::from_le_bytes(row[index * 4..][..4].try_into().unwrap()),
        element::F16 => f16::from_le_bytes(two()).to_f32(),
        element::BF16 => bf16::from_le_bytes(two()).to_f32(),
        element::I8 => f32::from(row[index] as i8),
        _ => f32::from(row[index]),
    }
}

fn narrow(value: f32, element: u32) -> Vec<u8> {
    match element {
        element::F32 => value.to_le_bytes().to_vec(),
        element::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
        element::BF16 => bf16::from_f32(value).to_le_bytes().to_vec(),
        _ => panic!("nothing is computed in integers"),
    }
}

/// What became of a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Padding,
    Missing,
    /// A rank in GPU memory.
    Here(u64),
    Key(u64),
}

pub(crate) struct Expected {
    pub(crate) places: Vec<Place>,
    /// Keys, ascending.
    pub(crate) uniques: Vec<u64>,
    /// `commands` and everything about queues is left to others.
    pub(crate) counters: Counters,
    /// Keys below this are no uniques: their rows are read where they lie.
    pub(crate) first_key: u64,
}

/// The first stages: what each id is.
pub(crate) fn prepared(world: &World, batch: &Batch) -> Expected {
    let mut counters = Counters { ids: batch.ids.len() as u64, ..Counters::default() };
    let (mut places, mut uniques) = (Vec::new(), BTreeSet::new());
    for (i, &id) in batch.ids.iter().enumerate() {
        let feature = &world.features[batch.feature_of(i, world.features.len())];
        let table = &world.tables[feature.table];
        let row = table.row_of(id);
        let place = if feature.padding == Some(id) && (world.pooled || row.is_none()) {
            counters.padding += 1;
            Place::Padding
        } else if let Some(row) = row {
            let rank = table.rank(row);
            if rank < table.hbm {
                counters.ids_hbm += 1;
                Place::Here(rank)
            } else {
                let count = if rank < table.dram_end { &mut counters.ids_dram } else { &mut counters.ids_ssd };
                *count += 1;
                uniques.insert(table.key(rank));
                Place::Key(table.key(rank))
            }
        } else {
            counters.missing += 1;
            Place::Missing
        };
        places.push(place);
    }
    counters.rows_dram = uniques.iter().filter(|&&key| key < world.ssd_key).count() as u64;
    counters.rows_ssd = uniques.len() as u64 - counters.rows_dram;
    Expected { places, uniques: uniques.into_iter().collect(), counters, first_key: 0 }
}

impl Expected {
    /// What one block prepares, if `small`: rows in DRAM are not among its uniques.
    pub(crate) fn by_one_block(mut self, world: &World, small: bool) -> Self {
        if small {
            self.first_key = world.ssd_key;
            self.uniques.retain(|&key| key >= world.ssd_key);
            self.counters.rows_dram = 0;
        }
        self
    }

    /// Compares output, mask and number of failed ids, where rows of the keys that `is_lost` names could not be read.
    pub(crate) fn check(&self, world: &World, batch: &Batch, is_lost: impl Fn(u64) -> bool) -> Result<u64, String> {
        let lost: Vec<bool> =
            self.places.iter().map(|place| matches!(place, Place::Key(key) if is_lost(*key))).collect();
        self.check_mask(world, batch, &lost)?;
        if world.pooled {
            self.check_bags(world, batch, &lost)?
        } else {
            self.check_rows(world, batch, &lost)?
        }
        Ok(lost.iter().filter(|&&lost| lost).count() as u64)
    }

    fn check_mask(&self, world: &World, batch: &Batch, lost: &[bool]) -> Result<(), String> {
        let Some(mask) = &batch.mask else { return Ok(()) };
        for (i, (&got, place)) in mask.bytes().iter().zip(&self.places).enumerate() {
            let feature = &world.features[batch.feature_of(i, world.features.len())];
            let padding = feature.padding == Some(batch.ids[i]);
            let want = !padding && !matches!(place, Place::Missing | Place::Padding) && !lost[i];
            if got != u8::from(want) {
                return Err(format!("mask of position {i} ({place:?}, lost: {}) is {got}", lost[i]));
            }
        }
        Ok(())
    }

    fn row<'a>(&self, world: &'a World, feature: usize, place: Place) -> Option<&'a [u8]> {
        let feature = &world.features[feature];
        let table = &world.tables[feature.table];
        match place {
            Place::Padding => None,
            Place::Missing => (feature.missing == missing::DEFAULT).then_some(&table.default[..]),
            Place::Here(rank) => Some(table.row(rank)),
            Place::Key(key) => {
                let (number, rank) = world.row_of(key);
                assert_eq!(number, feature.table);
                Some(table.row(rank))
            }
        }
    }

    fn check_rows(&self, world: &World, batch: &Batch, lost: &[bool]) -> Result<(), String> {
        let bytes = element_bytes(world.out) as usize;
        for (i, &place) in self.places.iter().enumerate() {
            let feature = batch.feature_of(i, world.features.len());
            let table = &world.tables[world.features[feature].table];
            let row = if lost[i] { None } else { self.row(world, feature, place) };
            let mut want = match row {
                None => Vec::new(),
                Some(row) if table.element == world.out => row.to_vec(),
                Some(row) => {
                    (0..table.dim as usize).flat_map(|e| narrow(widen(row, table.element, e), world.out)).collect()
                }
            };
            want.resize(world.width * bytes, 0);
            want.resize(batch.stride * bytes, poison());
            let got = batch.out.read(i * batch.stride * bytes, batch.stride * bytes);
            if let Some(at) = got.iter().zip(&want).position(|(a, b)| a != b) {
                let (from, to) = (table.element, world.out);
                let (got, want) = (&got[at..], &want[at..]);
                return Err(format!(
                    "row {i} ({place:?}, lost: {}), byte {at} of {from} as {to}: {:02x?}, not {:02x?}",
                    lost[i],
                    &got[..got.len().min(8)],
                    &want[..want.len().min(8)]
                ));
            }
        }
        Ok(())
    }

    fn check_bags(&self, world: &World, batch: &Batch, lost: &[bool]) -> Result<(), String> {
        let bytes = element_bytes(world.out) as usize;
        let mut want = vec![poison(); batch.out.len()];
        for (bag, ids) in batch.bags().enumerate() {
            let number = bag / batch.bag_count;
            let feature = &world.features[number];
            let table = &world.tables[feature.table];
            let mut sum = vec![0.0f32; table.dim as usize];
            let mut count = 0u32;
            let complete = ids.clone().all(|i| !lost[i]);
            for i in ids.filter(|_| complete) {
                let place = self.places[i];
                if place == Place::Padding || (place == Place::Missing && feature.missing == missing::SKIP) {
                    continue;
                }
                count += 1;
                let Some(row) = self.row(world, number, place) else { continue };
                for (e, sum) in sum.iter_mut().enumerate() {
                    let value = widen(row, table.element, e);
                    *sum += if feature.weighted { batch.weight(i) * value } else { value };
                }
            }
            if feature.pooling == pooling::MEAN && count > 1 {
                sum.iter_mut().for_each(|sum| *sum /= count as f32);
            }
            let at = (bag % batch.bag_count * batch.stride + feature.column) * bytes;
            let row: Vec<u8> = sum.into_iter().flat_map(|sum| narrow(sum, world.out)).collect();
            want[at..at + row.len()].copy_from_slice(&row);
        }
        let got = batch.out.bytes();
        for (e, (got, want)) in got.chunks(bytes).zip(want.chunks(bytes)).enumerate() {
            // The payload of a NaN that arithmetic made is the processor's.
            if got != want && !(widen(got, world.out, 0).is_nan() && widen(want, world.out, 0).is_nan()) {
                let (row, column) = (e / batch.stride, e % batch.stride);
                return Err(format!("output row {row}, element {column}: {got:02x?}, not {want:02x?}"));
            }
        }
        Ok(())
    }
}
