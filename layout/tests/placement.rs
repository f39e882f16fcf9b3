//! Placement against a naive model: every LBA, every row, every extent.

mod common;

use std::collections::HashSet;

use common::*;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use warprow_layout::{
    ChunkSpread, DType, Drive, FormatOptions, Generation, GenerationSpec, RowReader, StoreAccess, TableSpec,
    VolumeError, format, open, row_crc,
};

fn table() -> impl Strategy<Value = (u64, u32, DType, bool, bool)> {
    let dim = prop_oneof![1u32..40, 100u32..300, Just(128), Just(512), Just(1024), 1000u32..5000];
    (1u64..400, dim, prop::sample::select(DType::ALL[..7].to_vec()), any::<bool>(), any::<bool>())
}

fn spec(tables: &[(u64, u32, DType, bool, bool)]) -> Vec<TableSpec> {
    tables
        .iter()
        .enumerate()
        .map(|(i, &(rows, dim, dtype, permuted, row_crc))| TableSpec {
            permuted,
            row_crc,
            ..TableSpec::new(format!("table {i}"), rows, dim, dtype)
        })
        .collect()
}

/// Puts rows one after another the slow way: the LBA and byte, counted from the region's start, of each; and the stripe units
/// they take.
fn naive_rows(rows: u64, row_bytes: u64, lba: u64, stripe: u64) -> (Vec<(u64, u64)>, u64) {
    let mut at = 0;
    let places = (0..rows).map(|_| {
        if row_bytes < lba && at % lba + row_bytes > lba {
            at = at / lba * lba + lba;
        }
        if row_bytes >= lba {
            at = at.div_ceil(lba) * lba;
            if at % stripe + row_bytes.div_ceil(lba) * lba > stripe {
                at = at / stripe * stripe + stripe;
            }
        }
        let place = (at / lba, at % lba);
        at += row_bytes;
        place
    });
    let places: Vec<_> = places.collect();
    (places, at.div_ceil(stripe))
}

fn check_placement(generation: &Generation, chunk_counts: &[u32], lba: u64, chunk: u64) {
    let placement = &generation.placement;
    let stripe = placement.stripe_bytes();
    let map = placement.map();
    let mut taken = HashSet::new();
    let step = if placement.lbas() > 40_000 { 7 } else { 1 };
    for b in (0..placement.lbas()).step_by(step) {
        let u = b * lba / stripe;
        let row = u / map.len() as u64;
        let column = u % map.len() as u64;
        let entry = map[column as usize];
        let offset = row * stripe + b * lba % stripe;
        assert!(offset < chunk && entry.chunk() < chunk_counts[usize::from(entry.drive())]);
        let at = placement.base_lba() + (u64::from(entry.chunk()) * chunk + offset) / lba;
        assert_eq!(placement.locate(b), Some((entry.drive(), at)));
        assert!(taken.insert((entry.drive(), at)), "two LBAs at one place");
    }
    assert_eq!(placement.locate(placement.lbas()), None);
    assert_eq!(placement.locate(u64::MAX), None);

    let mut unit = 0;
    let mut bytes_taken = HashSet::new();
    for (index, table) in generation.tables.iter().enumerate() {
        let row_bytes = u64::from(table.row_bytes());
        let (places, units) = naive_rows(table.rows, row_bytes, lba, stripe);
        assert_eq!(table.rows_region.first_lba, unit * stripe / lba, "tables lie behind one another");
        assert_eq!(table.rows_region.lbas, units * stripe / lba);
        for (rank, (row_lba, byte)) in (0..).zip(places) {
            let first = table.rows_region.first_lba + row_lba;
            let address = generation.row(index, rank).unwrap();
            assert_eq!((address.drive, address.lba), placement.locate(first).unwrap());
            assert_eq!(u64::from(address.byte), byte);
            assert_eq!(u64::from(address.lbas), (byte + row_bytes).div_ceil(lba));
            for i in 0..u64::from(address.lbas) {
                let next = placement.locate(first + i).unwrap();
                assert_eq!(next, (address.drive, address.lba + i), "a row is contiguous on its drive");
            }
            assert!(bytes_taken.insert((address.drive, address.lba, address.byte)), "two rows at one place");
        }
        assert_eq!(generation.row(index, table.rows), None);
        unit += units;
        for (region, width) in [
            (table.ranks.map(|rank| rank.region), 4), // no table here has 2³² rows
            (table.crc_region, 4),
        ] {
            let Some(region) = region else { continue };
            let units = (table.rows * width).div_ceil(stripe);
            assert_eq!((region.first_lba, region.lbas), (unit * stripe / lba, units * stripe / lba));
            unit += units;
        }
        for rank in [0, table.rows / 2, table.rows - 1] {
            let expected = table.crc_region.map(|region| (region.first_lba + rank * 4 / lba, (rank * 4 % lba) as u32));
            assert_eq!(table.locate_crc(rank, lba as u32), expected);
        }
    }
    assert!(unit * stripe <= placement.lbas() * lba, "all within the chunks");
}

fn check_extents(generation: &Generation, max_bytes: usize) {
    let placement = &generation.placement;
    for table in &generation.tables {
        let region = table.rows_region;
        let mut seen = HashSet::new();
        for extent in placement.extents(region, max_bytes) {
            assert!(extent.bytes <= max_bytes.max(placement.stripe_bytes() as usize));
            let lbas_per_piece = placement.stripe_lbas();
            let mut next = (extent.drive, extent.lba);
            for (lba, bytes) in extent.pieces() {
                assert_eq!(bytes.len() as u64, placement.stripe_bytes());
                for i in 0..lbas_per_piece {
                    assert_eq!(placement.locate(lba + i), Some(next), "an extent is contiguous on its drive");
                    assert!((region.first_lba..region.end().unwrap()).contains(&(lba + i)));
                    assert!(seen.insert(lba + i));
                    next.1 += 1;
                }
            }
        }
        assert_eq!(seen.len() as u64, region.lbas, "extents cover the region");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

    #[test]
    fn rows_lie_where_the_naive_model_puts_them(
        sizes in prop::collection::vec(6u64..24, 1..5),
        large_lba: bool,
        stripe in prop::option::of(12u32..=20),
        whole: bool,
        tables in prop::collection::vec(table(), 1..4),
        max_bytes in 1usize..600_000,
    ) {
        let lba_size = if large_lba { 4096 } else { 512 };
        let shapes: Vec<Shape> = sizes.iter().map(|&mebibytes| small(lba_size, mebibytes)).collect();
        let fixture = Fixture::new(&shapes);
        fixture.format(9);
        let volume = fixture.open().volume;
        let spec = GenerationSpec {
            stripe_unit: stripe.map(|shift| 1 << shift),
            span: if whole { ChunkSpread::Whole } else { ChunkSpread::Packed },
            ..GenerationSpec::new("model", spec(&tables))
        };
        let mut tx = match volume.begin(&spec) {
            Ok(tx) => tx,
            Err(VolumeError::NoSpace { .. }) => return Ok(()),
            // A stripe unit smaller than the largest row.
            Err(VolumeError::InvalidGeneration { .. }) if stripe.is_some() => return Ok(()),
            Err(error) => panic!("{error}"),
        };
        let counts: Vec<u32> = volume.geometry().members.iter().map(|member| member.chunk_count).collect();
        check_placement(tx.generation(), &counts, u64::from(lba_size), 1 << 20);
        check_extents(tx.generation(), max_bytes);

        // Written by extents of one size, read by rows, by extents of another size, and checked by the stored checksums.
        for (index, table) in tx.generation().tables.clone().iter().enumerate() {
            let ranks = table.ranks.map(|_| ranks(5, table.rows));
            let source = Rows { version: 5, table: index };
            let loader = tx.loader(index, &source, ranks.as_ref()).unwrap();
            let extents: Vec<_> = loader.extents(max_bytes).collect();
            prop_assert_eq!(extents.iter().map(|extent| extent.bytes as u64).sum::<u64>(), loader.bytes());
            for extent in extents {
                let mut buf = vec![0xEE; extent.bytes];
                loader.fill(&extent, &mut buf).unwrap();
                let drive = volume.drive(extent.drive).unwrap();
                let most = drive.max_transfer();
                for (lba, part) in (extent.lba..).step_by(most / lba_size as usize).zip(buf.chunks(most)) {
                    drive.write(lba, part).unwrap();
                }
            }
        }
        let generation = tx.commit().unwrap();
        let volume = open(fixture.drives.clone(), StoreAccess::ReadOnly).unwrap().volume;
        prop_assert_eq!(&*volume.latest("model").unwrap(), &*generation);
        for (index, table) in generation.tables.iter().enumerate() {
            let ranks = volume.read_ranks(&generation, index).unwrap();
            let crcs = volume.read_row_crcs(&generation, index).unwrap();
            let rank_of = |id: u64| ranks.as_ref().map_or(id, |ranks| ranks.get(id).unwrap());
            let row_bytes = table.row_bytes() as usize;
            let mut want = vec![Vec::new(); table.rows as usize];
            for id in 0..table.rows {
                let mut row = vec![0; row_bytes];
                warprow_layout::RowSource::read(&Rows { version: 5, table: index }, id, row_bytes, &mut row).unwrap();
                want[rank_of(id) as usize] = row;
            }
            let mut row = vec![0; row_bytes];
            for rank in 0..table.rows {
                volume.read_row(&generation, index, rank, &mut row).unwrap();
                prop_assert_eq!(&row, &want[rank as usize]);
                if let Some(crcs) = &crcs {
                    prop_assert_eq!(crcs[rank as usize], row_crc(rank, &row));
                }
            }
            let range = table.rows / 3..table.rows - table.rows / 4;
            let reader = RowReader::new(generation.clone(), index, range.clone()).unwrap();
            let mut seen = HashSet::new();
            for extent in reader.extents(1 << 17) {
                let mut buf = vec![0; extent.bytes];
                let drive = volume.drive(extent.drive).unwrap();
                let most = drive.max_transfer();
                for (lba, part) in (extent.lba..).step_by(most / lba_size as usize).zip(buf.chunks_mut(most)) {
                    drive.read(lba, part).unwrap();
                }
                reader.rows(&extent, &buf, |rank, row| {
                    assert_eq!(row, want[rank as usize]);
                    assert!(seen.insert(rank));
                }).unwrap();
            }
            prop_assert_eq!(seen.len() as u64, range.end - range.start);
        }
    }
}

#[test]
fn a_mapped_tensor_in_order_is_copied_as_it_is() {
    let fixture = Fixture::new(&[small(512, 8), small(512, 8)]);
    fixture.format(1);
    let volume = fixture.open().volume;
    let tensor: Vec<u8> = (0..512 * 300u32).map(|i| (i * 7 + i / 512) as u8).collect();
    let mut tx = volume.begin(&GenerationSpec::new("m", vec![TableSpec::new("t", 300, 128, DType::F32)])).unwrap();
    let loader = tx.loader(0, &tensor[..], None).unwrap();
    for extent in loader.extents(1 << 20) {
        let mut buf = vec![1; extent.bytes];
        loader.fill(&extent, &mut buf).unwrap();
        for (lba, bytes) in extent.pieces() {
            let begin = lba as usize * 512;
            let rows = tensor.get(begin..).unwrap_or(&[]);
            let rows = &rows[..rows.len().min(bytes.len())];
            assert_eq!(buf[bytes.clone()][..rows.len()], *rows);
            assert!(buf[bytes][rows.len()..].iter().all(|&byte| byte == 0), "padding is zero");
        }
    }
    let short = tx.loader(0, &tensor[1..], None).err().unwrap();
    assert!(matches!(short, VolumeError::Length { expected: 153_600, given: 153_599, .. }), "{short}");
}

/// Neighbouring stripe units alternate between unequal drives in proportion to their room.
#[test]
fn a_generation_spans_all_drives_in_proportion() {
    let fixture = Fixture::new(&[small(4096, 34), small(4096, 18), small(4096, 10)]);
    fixture.format(1);
    let volume = fixture.open().volume;
    assert_eq!(volume.free_chunks(), [32, 16, 8]);
    let spec = GenerationSpec::new("m", vec![TableSpec::new("t", 7 << 20, 1, DType::F32)]); // 28 MiB
    let tx = volume.begin(&spec).unwrap();
    let on = |drive| tx.generation().placement.map().iter().filter(|chunk| chunk.drive() == drive).count();
    assert_eq!([on(0), on(1), on(2)], [16, 8, 4]);
    drop(tx);
    let tiny = GenerationSpec::new("m", vec![TableSpec::new("t", 100, 1024, DType::F32)]);
    let tx = volume.begin(&tiny).unwrap();
    assert_eq!(tx.generation().placement.map().len(), 3, "small as it is, it lies on all drives");
}

/// Bigger than memory: addresses only.
#[test]
fn a_store_of_terabytes_is_addressed_without_overflow() {
    let tera = Shape { lba_size: 512, bytes: 8 << 40, max_transfer: 1 << 20 };
    let fixture = Fixture::new(&[tera, tera]);
    format(&fixture.drives, &FormatOptions::default()).unwrap();
    let volume = fixture.open().volume;
    assert_eq!(volume.geometry().chunk_size(), 64 << 20);
    let rows = 15u64 << 40 >> 7; // 128 B rows
    let mut spec = TableSpec::new("t", rows, 32, DType::F32);
    spec.permuted = true;
    assert!(matches!(
        volume.begin(&GenerationSpec::new("m", vec![TableSpec { row_crc: true, ..spec.clone() }])),
        Err(VolumeError::NoSpace { .. })
    ));
    spec.permuted = false;
    let generation = volume.begin(&GenerationSpec::new("m", vec![spec])).unwrap().commit().unwrap();
    let again = open(fixture.drives.clone(), StoreAccess::ReadOnly).unwrap().volume;
    assert_eq!(again.generations(), std::slice::from_ref(&generation));
    let last = generation.row(0, rows - 1).unwrap();
    assert_eq!(last.byte, 384);
    assert!(last.lba < tera.lba_count() && last.lba > (7 << 40 >> 9));
    assert_eq!(generation.row(0, rows), None);
}
