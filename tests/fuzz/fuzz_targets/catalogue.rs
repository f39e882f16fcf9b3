//! Catalogues: whatever decodes describes rows that lie on the drives, and encodes to what decodes the same.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use warprow_fuzz::{edit, store};
use warprow_layout::{Catalogue, Geometry};

static RIGHT: LazyLock<(Vec<u8>, Geometry)> = LazyLock::new(|| {
    let (volume, _) = store();
    let catalogue = Catalogue { next_id: 9, generations: volume.generations() };
    (catalogue.encode(), volume.geometry().clone())
});

fuzz_target!(|data: &[u8]| {
    let Some((&how, data)) = data.split_first() else { return };
    let (right, geometry) = &*RIGHT;
    let bytes = match how & 1 {
        0 => {
            let mut bytes = right.clone();
            edit(&mut bytes, data);
            bytes
        }
        _ => data.to_vec(),
    };
    let Ok(catalogue) = Catalogue::decode(&bytes, geometry) else { return };
    assert_eq!(Catalogue::decode(&catalogue.encode(), geometry).as_ref(), Ok(&catalogue));
    for generation in &catalogue.generations {
        for (index, table) in generation.tables.iter().enumerate() {
            assert!(generation.row(index, table.rows).is_none());
            for rank in [0, table.rows / 2, table.rows - 1] {
                let row = generation.row(index, rank).expect("a row that the table has");
                let member = &geometry.members[usize::from(row.drive)];
                assert!(row.lba + u64::from(row.lbas) <= member.lba_count, "{row:?} past the end of {member:?}");
                assert!(row.byte + table.row_bytes() <= row.lbas * geometry.lba_size(), "{row:?}");
            }
        }
    }
});
