//! Identify data and log pages as a drive may send them: whatever is accepted can be computed with.
#![no_main]


use libfuzzer_sys::fuzz_target;
use warprow_driver::Namespace;
use warprow_fuzz::edit;
use warprow_spec::FromBytes;
use warprow_spec::identify::{ActiveNamespaceList, IdentifyController, IdentifyNamespace, NamespaceDescriptor};
use warprow_spec::log::{ErrorLogEntry, FirmwareSlotLog, SmartLog};

/// What a namespace of 1 GiB in LBAs of 512 B sends.
fn right() -> Vec<u8> {
    let mut data = vec![0; 4096];
    for at in [0, 8, 16] {
        data[at..at + 8].copy_from_slice(&(2u64 << 20).to_le_bytes());
    }
    data[25] = 1;
    data[130] = 9;
    data[134] = 12;
    data
}

fuzz_target!(|data: &[u8]| {
    let Some((&how, data)) = data.split_first() else { return };
    let mut page = right();
    match how & 1 {
        0 => edit(&mut page, data),
        _ => page.iter_mut().zip(data).for_each(|(byte, &data)| *byte = data),
    }
    let identify = IdentifyNamespace::read_from_bytes(&page).unwrap();
    let _ = format!("{identify:?}");
    match Namespace::from_identify("fuzz", 1, &identify) {
        Ok(namespace) => {
            assert!(namespace.lba_bytes().is_power_of_two() && (512..=65536).contains(&namespace.lba_bytes()));
            assert!(i64::try_from(namespace.bytes()).is_ok() && namespace.lba_count() > 0);
            assert!(namespace.formats().iter().any(|&(index, _)| index == namespace.format_index()));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let controller = IdentifyController::read_from_bytes(&page).unwrap();
    let _ = format!("{} {} {:?}", controller.serial(), controller.model(), controller.max_transfer_bytes(4096));
    let _ = format!("{controller:?}");
    assert!(NamespaceDescriptor::list(&page).count() <= 1024);
    assert!(ActiveNamespaceList::read_from_bytes(&page).unwrap().iter().count() <= 1024);
    let _ = format!("{:?}", SmartLog::read_from_prefix(&page).unwrap().0);
    let _ = format!("{:?}", FirmwareSlotLog::read_from_prefix(&page).unwrap().0);
    for entry in page.chunks_exact(size_of::<ErrorLogEntry>()) {
        let _ = format!("{:?}", ErrorLogEntry::read_from_bytes(entry).unwrap());
    }
});
