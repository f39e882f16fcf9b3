//! Superblocks: invented ones, and right ones with bytes changed and the checksum made right again.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use warprow_fuzz::{Sparse, edit, seal, store};
use warprow_layout::{Access, Drive, Superblock, UNIT, open, probe};

static RIGHT: LazyLock<[u8; UNIT]> = LazyLock::new(|| store().1[0].unit(0));

fuzz_target!(|data: &[u8]| {
    let Some((&how, data)) = data.split_first() else { return };
    let mut unit = *RIGHT;
    if how & 1 == 0 {
        edit(&mut unit, data);
    } else {
        unit.iter_mut().zip(data).for_each(|(byte, &data)| *byte = data);
    }
    if how & 2 == 0 {
        seal(&mut unit);
    }
    let address = u64::from_le_bytes(std::array::from_fn(|i| unit[24 + i]));
    if let Ok(superblock) = Superblock::decode(&unit, address, unit[32] & 1) {
        let geometry = &superblock.geometry;
        assert!(superblock.own().is_some());
        assert!(u64::from(superblock.catalogue_bytes) <= geometry.catalogue_capacity());
        for member in &geometry.members {
            let chunks = u64::from(member.chunk_count) * geometry.chunk_size();
            let end = geometry.first_chunk_unit * UNIT as u64 + chunks;
            assert!(end <= member.lba_count * u64::from(geometry.lba_size()), "chunks past the end: {member:?}");
        }
        let _ = geometry.total_chunks();
    }
    // The same as a drive's only superblock.
    let drive = Sparse::new("d", 8 << 20);
    drive.write(0, &unit).unwrap();
    let _ = probe(&drive).unwrap();
    let _ = open(vec![drive], Access::Degraded);
});
