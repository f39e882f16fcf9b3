//! The software controller under a host that writes what it likes: commands, PRPs, registers and doorbells. No panic, no wait, no byte
//! outside what was mapped for it.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use warprow_dma::{MemoryKind, DmaMemory, Function, PAGE};
use warprow_soft_controller::{Namespace, RamBacking, SoftController};

const PAGES: usize = 8;
const IOVA: u64 = 0x10_0000;

fuzz_target!(|data: &[u8]| {
    let drive = SoftController::builder()
        .namespace(Namespace::new(RamBacking::new(64 << 10).unwrap()).lba(512))
        .queue_pairs(2)
        .queue_entries(16)
        .max_transfer(8 << 10)
        .stepped()
        .build()
        .unwrap();
    // The first and last page are the host's alone, the second last may be read.
    let host = DmaMemory::allocate(PAGES * PAGE, MemoryKind::Anonymous).unwrap();
    host.fill(0, PAGE, 0x5a);
    host.fill((PAGES - 2) * PAGE, 2 * PAGE, 0x5a);
    assert!(drive.map_at(IOVA, &host.part(PAGE, (PAGES - 3) * PAGE), true));
    assert!(drive.map_at(IOVA + ((PAGES - 3) * PAGE) as u64, &host.part((PAGES - 2) * PAGE, PAGE), false));
    drive.set_bus_master(true).unwrap();
    drive.write_u32(0x24, 0x000f_000f).unwrap();
    drive.write_u64(0x28, IOVA).unwrap();
    drive.write_u64(0x30, IOVA + PAGE as u64).unwrap();
    drive.write_u32(0x14, 0x0046_0001).unwrap();
    let mut now = Duration::ZERO;
    let mut tail = 0u32;
    let mut step = || {
        now += Duration::from_millis(1);
        drive.step(now);
    };
    step();
    let (steps, mut rest) = data.split_at(data.len().min(64));
    for &action in steps {
        let mut take = |n: usize| {
            let (taken, left) = rest.split_at(n.min(rest.len()));
            rest = left;
            let mut bytes = [0; 64];
            bytes[..taken.len()].copy_from_slice(taken);
            bytes
        };
        match action % 8 {
            // A command for the admin queue, one in two with addresses that exist.
            0..=4 => {
                let mut sqe = take(64);
                if action & 8 == 0 {
                    for at in [24, 32] {
                        let page = u64::from(sqe[at]) % PAGES as u64 * PAGE as u64 + u64::from(sqe[at + 1] & 0xfc);
                        sqe[at..at + 8].copy_from_slice(&(IOVA + page).to_le_bytes());
                    }
                    let nsid = u32::from(sqe[4] % 3);
                    sqe[4..8].copy_from_slice(&nsid.to_le_bytes());
                    (sqe[0], sqe[1]) = (sqe[0] % 0x1f, 0);
                }
                // The I/O queues, once some are made, are looked for in the third page.
                let page = if action & 16 == 0 { PAGE } else { 3 * PAGE };
                host.write(page + (tail as usize % 16) * 64, &sqe);
                tail += 1;
                drive.write_u32(if page == PAGE { 0x1000 } else { 0x1008 }, tail % 16).unwrap();
            }
            5 => {
                let bytes = take(8);
                let at = u64::from(u16::from_le_bytes([bytes[0], bytes[1]])) & 0x1ffc;
                let _ = drive.write_u32(at, u32::from_le_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]));
            }
            6 => host.write(PAGE + usize::from(action) * 16, &take(64)),
            _ => drop(drive.read_u32(u64::from(take(1)[0]) * 4)),
        }
        step();
    }
    step();
    let mut untouched = vec![0; 3 * PAGE];
    host.read(0, &mut untouched[..PAGE]);
    host.read((PAGES - 2) * PAGE, &mut untouched[PAGE..]);
    assert!(untouched.iter().all(|&byte| byte == 0x5a), "the controller wrote where it may not");
});
