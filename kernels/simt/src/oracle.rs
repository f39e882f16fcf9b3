//! What a look-up means, naively: `docs/store.md`, one id after the other.

use half::{bf16, f16};
use warprow_kernels::abi::{Counters, MISSING_IS_ERROR, bounds, element, lost, missing, pooling};

use crate::batch::Batch;
use crate::buffer::poison;
use crate::world::{Of, World};

pub fn element_bytes(element: u32) -> u32 {
    match element {
        element::F32 => 4,
        element::F16 | element::BF16 => 2,
        _ => 1,
    }
}

/// Bytes of a row.
pub fn row_bytes(element: u32, dim: u32) -> usize {
    (match element {
        element::Q8 => dim + 8,
        element::Q4 => dim / 2 + 4,
        element::MXFP8 => dim + dim / 32,
        element::F8E4M3S => dim + 4,
        element::NVFP4 => dim / 2 + dim / 16 + 4,
        _ => dim * element_bytes(element),
    }) as usize
}

/// The layout's checksum of a row, bit by bit.
pub fn row_crc(rank: u64, row: &[u8]) -> u32 {
    let bits =
        |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ ((crc & 1) * 0x82f6_3b78));
    !rank.to_le_bytes().iter().chain(row).fold(!0, bits)
}

/// An eight-bit float of so many bits of mantissa, in powers of two.
fn float8(code: u8, mantissa_bits: i32, bias: i32) -> f32 {
    let sign = f32::from_bits(0x3f80_0000 | u32::from(code & 0x80) << 24);
    let magnitude = i32::from(code & 0x7f);
    let exponent = magnitude >> mantissa_bits;
    let mantissa = magnitude & ((1 << mantissa_bits) - 1);
    let not_a_number = f32::from_bits(0x7fc0_0000 | u32::from(code & 0x80) << 24);
    match (mantissa_bits, magnitude) {
        (3, 0x7f) | (2, 0x7d..) => not_a_number,
        (2, 0x7c) => sign * f32::INFINITY,
        _ if exponent == 0 => sign * mantissa as f32 * 2f32.powi(1 - bias - mantissa_bits),
        _ => sign * (mantissa + (1 << mantissa_bits)) as f32 * 2f32.powi(exponent - bias - mantissa_bits),
    }
}

fn scaled(number: u8, scale: f32, bias: f32) -> f32 {
    let product = f32::from(number) * scale;
    product + bias
}

pub fn is_scaled(element: u32) -> bool {
    matches!(element, element::Q8 | element::Q4 | element::MXFP8 | element::F8E4M3S | element::NVFP4)
}

/// Elements that a row of that element has a whole number of.
pub fn whole(element: u32) -> u32 {
    match element {
        element::Q4 => 2,
        element::MXFP8 => 32,
        element::NVFP4 => 16,
        _ => 1,
    }
}

/// A four-bit float.
fn float4(code: u8) -> f32 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// A power of two, 0 for 0, in a byte.
fn power(byte: u8) -> f32 {
    match byte {
        0 => 0.0,
        255 => f32::NAN,
        _ => 2f32.powi(i32::from(byte) - 127),
    }
}

fn widen(row: &[u8], element: u32, index: usize) -> f32 {
    let two = || [row[index * 2], row[index * 2 + 1]];
    match element {
        element::F32 => f32::from_le_bytes(row[index * 4..][..4].try_into().unwrap()),
        element::F16 => f16::from_le_bytes(two()).to_f32(),
        element::BF16 => bf16::from_le_bytes(two()).to_f32(),
        element::I8 => f32::from(row[index] as i8),
        element::F8E4M3 => float8(row[index], 3, 7),
        element::F8E5M2 => float8(row[index], 2, 15),
        element::Q8 => {
            let (numbers, behind) = row.split_at(row.len() - 8);
            let [scale, bias] = [0, 4].map(|at| f32::from_le_bytes(behind[at..][..4].try_into().unwrap()));
            scaled(numbers[index], scale, bias)
        }
        element::Q4 => {
            let (numbers, behind) = row.split_at(row.len() - 4);
            let [scale, bias] = [0, 2].map(|at| f16::from_le_bytes([behind[at], behind[at + 1]]).to_f32());
            scaled(numbers[index / 2] >> (index % 2 * 4) & 15, scale, bias)
        }
        element::MXFP8 => float8(row[index], 3, 7) * power(row[row.len() / 33 * 32 + index / 32]),
        element::F8E4M3S => {
            let (codes, scale) = row.split_at(row.len() - 4);
            float8(codes[index], 3, 7) * f32::from_le_bytes(scale.try_into().unwrap())
        }
        element::NVFP4 => {
            let (rest, global) = row.split_at(row.len() - 4);
            let (pairs, blocks) = rest.split_at(rest.len() / 9 * 8);
            let scale = float8(blocks[index / 16], 3, 7) * f32::from_le_bytes(global.try_into().unwrap());
            float4(pairs[index / 2] >> (index % 2 * 4) & 15) * scale
        }
        _ => f32::from(row[index]),
    }
}

fn narrow(value: f32, element: u32) -> Vec<u8> {
    match element {
        element::F32 => value.to_le_bytes().to_vec(),
        element::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
        element::BF16 => bf16::from_f32(value).to_le_bytes().to_vec(),
        _ if value == 0.0 => vec![0],
        _ => panic!("nothing is computed in integers"),
    }
}

/// What elements of rows are that could not be read.
fn lost_value(world: &World) -> f32 {
    if world.lost() & lost::NAN != 0 { f32::NAN } else { 0.0 }
}

/// What became of a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Padding,
    Missing,
    /// A rank in GPU memory.
    Here(u64),
    Key(u64),
    /// A row that was updated, or a key that was created.
    Updated(Of),
}

pub struct Expected {
    pub places: Vec<Place>,
    /// Keys, ascending; as often as positions have them, where ids are not deduplicated.
    pub uniques: Vec<u64>,
    /// `commands` and everything about queues is left to others.
    pub counters: Counters,
    /// Keys below this are no uniques: their rows are read where they lie.
    pub first_key: u64,
}

/// The first stages: what each id is.
pub fn prepared(world: &World, batch: &Batch) -> Expected {
    let mut counters = Counters { ids: batch.ids.len() as u64, ..Counters::default() };
    let mut places = Vec::new();
    let mut uniques = Vec::new();
    for (i, &id) in batch.ids.iter().enumerate() {
        let feature = &world.features[batch.feature_of(i, world.features.len())];
        let table = &world.tables[feature.table];
        let row = table.row_of(id);
        let removed = table.is_removed(id);
        let overlaid = table.overlaid(id).filter(|_| !removed);
        let row = row.filter(|_| !removed);
        let place = if feature.padding == Some(id) && (world.pooled || (row.is_none() && overlaid.is_none())) {
            counters.padding += 1;
            Place::Padding
        } else if let Some(of) = overlaid {
            counters.ids_dram += 1;
            Place::Updated(of)
        } else if let Some(row) = row {
            let rank = table.rank(row);
            if rank < table.hbm {
                counters.ids_hbm += 1;
                Place::Here(rank)
            } else {
                let key = table.key(rank);
                let count = if key < world.ssd_key { &mut counters.ids_dram } else { &mut counters.ids_ssd };
                *count += 1;
                uniques.push(key);
                Place::Key(key)
            }
        } else {
            match feature.bounds {
                bounds::IGNORE => counters.padding += 1,
                bounds => {
                    counters.missing += 1;
                    // The first of all: the complement of the lowest position is the highest.
                    let told = match bounds {
                        bounds::ERROR => !(i as u64),
                        bounds::REPORT => !(i as u64) & !MISSING_IS_ERROR,
                        _ => 0,
                    };
                    counters.first_missing = counters.first_missing.max(told);
                }
            }
            Place::Missing
        };
        places.push(place);
    }
    uniques.sort_unstable();
    if !world.repeats {
        uniques.dedup();
    }
    counters.rows_dram = uniques.iter().filter(|&&key| key < world.ssd_key).count() as u64;
    counters.rows_ssd = uniques.len() as u64 - counters.rows_dram;
    Expected { places, uniques, counters, first_key: 0 }
}

impl Expected {
    /// What one block prepares, if `small`: rows in DRAM are not among its uniques, but for those that may be cached.
    pub fn by_one_block(mut self, world: &World, small: bool) -> Self {
        if small {
            self.first_key = world.ssd_key;
            self.uniques.retain(|&key| key >= world.ssd_key || world.is_cacheable(key));
            self.counters.rows_dram = self.uniques.iter().filter(|&&key| key < world.ssd_key).count() as u64;
        }
        self
    }

    /// Compares output, mask and number of failed ids, where rows of the keys that `is_lost` names could not be read.
    pub fn check(&self, world: &World, batch: &Batch, is_lost: impl Fn(u64) -> bool) -> Result<u64, String> {
        self.check_at(world, batch, &self.lost(is_lost))
    }

    /// Which positions have keys that `is_lost` names.
    pub fn lost(&self, is_lost: impl Fn(u64) -> bool) -> Vec<bool> {
        self.places.iter().map(|place| matches!(place, Place::Key(key) if is_lost(*key))).collect()
    }

    /// Compares output, mask and number of failed ids, where rows of the positions in `lost` could not be read.
    pub fn check_at(&self, world: &World, batch: &Batch, lost: &[bool]) -> Result<u64, String> {
        self.check_mask(world, batch, lost)?;
        if world.pooled {
            self.check_bags(world, batch, lost)?
        } else {
            self.check_rows(world, batch, lost)?
        }
        Ok(lost.iter().filter(|&&lost| lost).count() as u64)
    }

    fn check_mask(&self, world: &World, batch: &Batch, lost: &[bool]) -> Result<(), String> {
        let Some(mask) = &batch.mask else { return Ok(()) };
        for (i, (&got, place)) in mask.bytes().iter().zip(&self.places).enumerate() {
            let feature = &world.features[batch.feature_of(i, world.features.len())];
            let padding = feature.padding == Some(batch.ids[i]);
            let want = match world.lost() & lost::MASK {
                0 => !padding && !matches!(place, Place::Missing | Place::Padding) && !lost[i],
                _ => lost[i],
            };
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
            Place::Updated(of) => table.updated.get(&of).map(|row| &row[..]),
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
            if lost[i] {
                want = (0..world.width).flat_map(|_| narrow(lost_value(world), world.out)).collect();
            }
            want.resize(world.width * bytes, 0);
            want.resize(batch.stride * bytes, poison());
            let got = batch.out.read(i * batch.stride * bytes, batch.stride * bytes);
            // The payload of a NaN that arithmetic made is the processor's.
            let made = is_scaled(table.element);
            let same = |at: usize| {
                let at = at / bytes * bytes;
                got[at..][..bytes] == want[at..][..bytes]
                    || made && [&got, &want].iter().all(|row| widen(&row[at..], world.out, 0).is_nan())
            };
            if let Some(at) = (0..got.len()).find(|&at| !same(at)) {
                let from = table.element;
                let to = world.out;
                let got = &got[at..];
                let want = &want[at..];
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
            if !complete {
                sum.fill(lost_value(world));
            }
            let row: Vec<u8> = sum.into_iter().flat_map(|sum| narrow(sum, world.out)).collect();
            want[at..at + row.len()].copy_from_slice(&row);
        }
        let got = batch.out.bytes();
        for (e, (got, want)) in got.chunks(bytes).zip(want.chunks(bytes)).enumerate() {
            // The payload of a NaN that arithmetic made is the processor's.
            if got != want && !(widen(got, world.out, 0).is_nan() && widen(want, world.out, 0).is_nan()) {
                let row = e / batch.stride;
                let column = e % batch.stride;
                return Err(format!("output row {row}, element {column}: {got:02x?}, not {want:02x?}"));
            }
        }
        Ok(())
    }
}
