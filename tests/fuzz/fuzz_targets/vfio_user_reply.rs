//! What a vfio-user server may answer: whatever the client believes is bounded.
#![no_main]

use libfuzzer_sys::fuzz_target;
use warprow_fuzz::edit;
use warprow_vfio_user_proto::wire::{DmaAccess, RegionAccess};
use warprow_vfio_user_proto::{
    device_info, dma_data, dma_written, irq_info, region_data, region_info, region_written, version_reply,
};

/// BAR0 with one mappable area, as our server describes it.
const RIGHT: [u64; 8] = [15 << 32 | 64, 32 << 32, 0x4000, 0, 1 << 16 | 1, 1, 0x1000, 0x1000];

fuzz_target!(|data: &[u8]| {
    let [index, size, payload @ ..] = data else { return };
    let argsz = 32 + u32::from(*size) * 16;
    let mut right: Vec<u8> = RIGHT.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(region_info(&right, 0, 64).unwrap().areas.len(), 1);
    edit(&mut right, payload);
    for payload in [payload, &right] {
        if let Ok(region) = region_info(payload, u32::from(*index) % 2, argsz) {
            for area in &region.areas {
                let end = area.offset.checked_add(area.size).expect("an area that ends");
                assert!(end <= region.info.size && area.size != 0);
                region.info.offset.checked_add(end).expect("a place in the file");
            }
            assert!(region.needed.is_none_or(|needed| needed > argsz));
        }
    }
    if let Ok(info) = device_info(payload) {
        assert!(info.num_regions > 7 && info.num_regions <= 64);
    }
    let asked = RegionAccess { offset: 0, region: 0, count: u32::from(*size) };
    if let Ok(data) = region_data(payload, &asked) {
        assert_eq!(data.len(), usize::from(*size));
    }
    let piece = DmaAccess { addr: 0, count: u64::from(*size) };
    if let Ok(data) = dma_data(payload, &piece) {
        assert_eq!(data.len(), usize::from(*size));
    }
    let _ = dma_written(payload, &piece);
    let _ = (irq_info(payload, 2), region_written(payload, &asked));
    if let Ok(version) = version_reply(payload, (0, 1)) {
        assert!(version.major == 0 && version.minor <= 1);
    }
});
