//! I/O commands: data, ranges, pointers, and whatever else a host may send.

mod common;

use std::time::Duration;

use common::{Host, pattern, ram, stepped};
use proptest::prelude::*;
use warprow_dma::{DmaMemory, Function, PAGE};
use warprow_soft_controller::{Backing, MediaError, Namespace, NullBacking, ProceduralBacking};
use warprow_spec::features::FeatureId;
use warprow_spec::nvm::DsmRange;
use warprow_spec::registers::Cc;
use warprow_spec::registers::offset;
use warprow_spec::{AdminOpcode, IntoBytes, NvmOpcode, Sqe, StatusCode};

fn host() -> Host {
    Host::with_queue(stepped().namespace(ram(4 << 20)).namespace(ram(1 << 20).lba(4096)), 64)
}

fn code(host: &mut Host, sqe: Sqe) -> StatusCode {
    host.io(sqe).status().code()
}

#[test]
fn errors_name_what_is_wrong() {
    let mut host = host();
    let page = host.buffer(PAGE);
    let read = Host::rw(NvmOpcode::READ, 1, 0, 1, page.iova);
    let mut fused = read;
    fused.cdw0.set_fuse(warprow_spec::sqe::Fuse::FIRST);
    let mut sgl = read;
    sgl.cdw0.set_psdt(warprow_spec::sqe::Psdt(1));
    for (what, sqe, want) in [
        ("opcode", Sqe { cdw0: read.cdw0.with_opcode(0x83), ..read }, StatusCode::InvalidCommandOpcode),
        ("no namespace", Sqe { nsid: 0, ..read }, StatusCode::InvalidNamespaceOrFormat),
        ("third namespace", Sqe { nsid: 3, ..read }, StatusCode::InvalidNamespaceOrFormat),
        ("all namespaces", Sqe { nsid: u32::MAX, ..read }, StatusCode::InvalidNamespaceOrFormat),
        ("one past the end", read.with_slba(8192), StatusCode::LbaOutOfRange),
        ("over the end", Sqe { cdw12: 1, ..read.with_slba(8191) }, StatusCode::LbaOutOfRange),
        ("wraps", read.with_slba(u64::MAX), StatusCode::LbaOutOfRange),
        ("fused", fused, StatusCode::InvalidField),
        ("SGL", sgl, StatusCode::InvalidField),
        ("above MDTS", Sqe { cdw12: 2048, ..read }, StatusCode::InvalidField),
        ("PRP1 not of dwords", read.with_prps(page.iova + 1, 0), StatusCode::PrpOffsetInvalid),
        ("PRP1 not mapped", read.with_prps(0x1000, 0), StatusCode::DataTransferError),
        (
            "PRP2 not of pages",
            Sqe { cdw12: 7, ..read.with_prps(page.iova + 8, page.iova + 8) },
            StatusCode::PrpOffsetInvalid,
        ),
        (
            "list not of entries",
            Sqe { cdw12: 31, ..read.with_prps(page.iova, page.iova + 4) },
            StatusCode::PrpOffsetInvalid,
        ),
        ("list not mapped", Sqe { cdw12: 31, ..read.with_prps(page.iova, 0x2000) }, StatusCode::DataTransferError),
    ] {
        let cqe = host.io(sqe);
        assert_eq!(cqe.status().code(), want, "{what}");
        assert_eq!(cqe.status().dnr(), want != StatusCode::DataTransferError, "{what}");
    }
    assert_eq!(host.drive.dma_faults(), 2);
    assert_eq!(code(&mut host, read.with_slba(8191)), StatusCode::Success);
}

#[test]
fn zeroes_deallocate_and_compare() {
    let mut host = host();
    let page = host.buffer(PAGE);
    let data = pattern(9, PAGE);
    page.memory.write(0, &data);
    host.write(100, 8, page.iova);
    let compare = Host::rw(NvmOpcode::COMPARE, 1, 100, 8, page.iova);
    assert_eq!(code(&mut host, compare), StatusCode::Success);
    page.memory.store_u8(4095, data[4095] ^ 1);
    assert_eq!(code(&mut host, compare), StatusCode::CompareFailure);
    let zeroes = Sqe { cdw12: 1, ..Sqe::new(NvmOpcode::WRITE_ZEROES.0, 1).with_slba(101) };
    assert_eq!(code(&mut host, zeroes), StatusCode::Success);
    host.read(100, 8, page.iova);
    let mut want = data;
    want[512..1536].fill(0);
    assert_eq!(page.bytes(0, PAGE), want);
    let ranges = [DsmRange::new(104, 1), DsmRange::new(106, 2), DsmRange::new(0, 0)];
    page.memory.write(8, ranges.as_bytes());
    let dsm = Sqe { cdw10: 2, cdw11: 4, ..Sqe::new(NvmOpcode::DATASET_MANAGEMENT.0, 1) }.with_prps(page.iova + 8, 0);
    assert_eq!(code(&mut host, dsm), StatusCode::Success);
    host.read(100, 8, page.iova);
    want[2048..2560].fill(0);
    want[3072..].fill(0);
    assert_eq!(page.bytes(0, PAGE), want);
    page.memory.write(0, [DsmRange::new(8191, 2)].as_bytes());
    let dsm = Sqe { cdw10: 0, ..dsm }.with_prps(page.iova, 0);
    assert_eq!(code(&mut host, dsm), StatusCode::LbaOutOfRange);
}

#[test]
fn a_read_only_backing_refuses_writes_alone() {
    #[derive(Debug)]
    struct ReadOnly(ProceduralBacking);
    impl Backing for ReadOnly {
        fn size(&self) -> u64 {
            self.0.size()
        }
        fn read(&self, offset: u64, to: &DmaMemory, at: usize, len: usize) -> Result<(), MediaError> {
            self.0.read(offset, to, at, len)
        }
        fn write(&self, _: u64, _: &DmaMemory, _: usize, _: usize) -> Result<(), MediaError> {
            Err(MediaError::ReadOnly)
        }
        fn zero(&self, _: u64, _: u64, _: bool) -> Result<(), MediaError> {
            Err(MediaError::Full(std::io::ErrorKind::StorageFull.into()))
        }
        fn flush(&self) -> Result<(), MediaError> {
            Ok(())
        }
    }
    let mut host =
        Host::with_queue(stepped().namespace(Namespace::new(ReadOnly(ProceduralBacking::new(1 << 20, 1)))), 8);
    let page = host.buffer(PAGE);
    host.read(3, 1, page.iova);
    assert_eq!(page.memory.load_u64(0), ProceduralBacking::word(1, 192));
    let write = Host::rw(NvmOpcode::WRITE, 1, 3, 1, page.iova);
    assert_eq!(code(&mut host, write), StatusCode::NamespaceWriteProtected);
    let full = host.io(Sqe::new(NvmOpcode::WRITE_ZEROES.0, 1));
    assert_eq!(full.status().code(), StatusCode::CapacityExceeded);
    assert!(!full.status().dnr());
}

#[test]
fn pages_of_16_kib_work() {
    let mut host = Host::of(stepped().namespace(ram(4 << 20)));
    host.start();
    host.disable();
    // The admin queue lies at a multiple of 4 KiB: find one of 16 KiB.
    let queues = host.buffer(64 << 10);
    let base = queues.iova.next_multiple_of(16 << 10);
    let at = (base - queues.iova) as usize;
    host.drive.write_u64(offset::ASQ, base).unwrap();
    host.drive.write_u64(offset::ACQ, base + (16 << 10)).unwrap();
    let cc: Cc = Host::cc().with_mps(2).with_en(true);
    host.drive.write_u32(offset::CC, cc.into_bits()).unwrap();
    host.wait("RDY", |host| host.csts().rdy());
    let page = host.buffer(64 << 10);
    let data = page.iova.next_multiple_of(16 << 10);
    // Identify into one page from 12 KiB on: no second PRP, though 4 KiB pages would end there.
    let sqe = Sqe { cdw10: 1, ..Sqe::new(AdminOpcode::IDENTIFY.0, 0) }.with_prps(data + 12 * 1024 - 64, 0);
    queues.memory.store_words(at, sqe.with_cid(3).as_words());
    host.drive.doorbell(0x1000).unwrap().ring(1);
    host.turns(3);
    let word1 = queues.memory.load_u64(at + (16 << 10) + 8);
    assert_eq!(word1 >> 32 & 0xffff, 3);
    assert_eq!(word1 >> 49, 0, "success");
    assert_eq!(page.memory.load_u32((data - page.iova) as usize + 12 * 1024 - 64 + 516), 1, "NN");
}

#[test]
fn a_small_ring_wraps_and_a_full_completion_queue_waits() {
    let mut host = Host::with_queue(stepped().namespace(Namespace::new(NullBacking::new(1 << 20))), 4);
    for _ in 0..50 {
        assert_eq!(code(&mut host, Sqe::new(NvmOpcode::FLUSH.0, 1)), StatusCode::Success);
    }
    // A second submission queue on the same completion queue of 4: six commands, three places.
    let sq = host.buffer(PAGE);
    assert!(host.create_sq(2, sq.iova, 16, 1).status().is_success());
    for i in 0..6 {
        let sqe = Sqe::new(NvmOpcode::FLUSH.0, 1).with_cid(100 + i);
        sq.memory.store_words(usize::from(i) * 64, sqe.as_words());
    }
    host.drive.write_u32(0x1010, 6).unwrap();
    host.turns(50);
    let pair = host.pairs.iter_mut().find(|pair| pair.id == 1).unwrap();
    let mut seen = Vec::new();
    for _ in 0..6 {
        let at = usize::from(pair.head) * 16;
        let word1 = pair.cq.load_u64(at + 8);
        assert_eq!(word1 >> 48 & 1 == 1, pair.phase);
        assert_eq!(word1 >> 16 & 0xffff, 2);
        seen.push((word1 >> 32) as u16);
        pair.head = (pair.head + 1) % 4;
        pair.phase ^= pair.head == 0;
        let next = pair.cq.load_u64(usize::from(pair.head) * 16 + 8);
        if seen.len() % 3 == 0 {
            assert_ne!(next >> 48 & 1 == 1, pair.phase, "a fourth completion in a queue of four");
            host.drive.write_u32(0x100c, pair.head.into()).unwrap();
            for _ in 0..20 {
                host.drive.step(host.now);
            }
        }
    }
    assert_eq!(seen, [100, 101, 102, 103, 104, 105]);
}

#[test]
fn queues_take_turns() {
    let mut host = Host::enabled(stepped().namespace(Namespace::new(NullBacking::new(1 << 20))));
    let arbitration =
        Sqe { cdw10: FeatureId::ARBITRATION.0.into(), cdw11: 1, ..Sqe::new(AdminOpcode::SET_FEATURES.0, 0) };
    assert!(host.admin(arbitration).status().is_success());
    for id in 1..=128 {
        host.create_pair(id, 16);
    }
    for id in 1..=128 {
        for _ in 0..8 {
            host.push(id, Sqe::new(NvmOpcode::FLUSH.0, 1));
        }
        host.ring(id);
    }
    for round in 1..=4 {
        host.turn();
        for id in 1..=128 {
            assert_eq!(host.poll(id).len(), 2, "queue {id} in round {round}: a burst is two commands");
        }
    }
}

#[test]
fn completions_come_in_any_order_when_asked() {
    let mut orders = std::collections::HashSet::new();
    for seed in 0..20 {
        let builder = stepped().namespace(ram(1 << 20)).seed(seed).permute();
        let mut host = Host::with_queue(builder, 32);
        let cids: Vec<u16> = (0..8).map(|_| host.push(1, Sqe::new(NvmOpcode::FLUSH.0, 1))).collect();
        host.ring(1);
        let mut got = Vec::new();
        host.wait("all", |host| {
            got.extend(host.poll(1).iter().map(|cqe| cqe.cid));
            got.len() == 8
        });
        orders.insert(got.clone());
        got.sort_unstable();
        assert_eq!(got, cids);
    }
    assert!(orders.len() > 15, "{} different orders of 20", orders.len());
}

#[test]
fn the_same_seed_does_the_same() {
    let trace = |seed: u64| {
        let within = Duration::from_micros(20);
        let builder = stepped().namespace(ram(1 << 20)).seed(seed).jitter(within).partial_fetch();
        let mut host = Host::with_queue(builder.delay_one_in(5, Duration::from_micros(90)), 32);
        let mut trace = Vec::new();
        for _ in 0..10 {
            for _ in 0..8 {
                host.push(1, Sqe::new(NvmOpcode::FLUSH.0, 1));
            }
            host.ring(1);
            let mut left = 8;
            host.wait("all", |host| {
                for cqe in host.poll(1) {
                    trace.push((host.now, cqe.cid));
                    left -= 1;
                }
                left == 0
            });
        }
        trace
    };
    assert_eq!(trace(1), trace(1));
    assert_ne!(trace(1), trace(2));
}

#[test]
fn unmapped_memory_is_out_of_reach() {
    let mut host = host();
    let page = host.buffer(PAGE);
    let read = Host::rw(NvmOpcode::READ, 1, 0, 1, page.iova);
    assert_eq!(code(&mut host, read), StatusCode::Success);
    host.drive.unmap(page.iova).unwrap();
    assert_eq!(code(&mut host, read), StatusCode::DataTransferError);
    // Queues that are not there any more: nothing is fetched from them.
    let sq = host.pairs[1].sq_iova;
    host.drive.unmap(sq).unwrap();
    host.submit(1, read);
    host.turns(5);
    assert!(host.csts().cfs());
    host.disable();
    assert!(!host.csts().cfs());
    host.enable();
    host.create_pair(1, 16);
    let cq = host.pairs[1].cq_iova;
    host.drive.unmap(cq).unwrap();
    host.submit(1, Sqe::new(NvmOpcode::FLUSH.0, 1));
    host.turns(5);
    assert!(host.csts().cfs());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Data lands where a naive walk of the page list says, and nowhere else.
    #[test]
    fn prp_lists_of_any_shape(
        blocks in 1u32..=2048, first in 0u64..1024, list_at in 0u64..512, seed: u64, write: bool,
    ) {
        // 1024 pages of arena in random order, and lists in pages of their own.
        let mut host = Host::with_queue(stepped().namespace(ram(4 << 20)), 8);
        let arena = host.buffer(300 * PAGE);
        let lists = host.buffer(8 * PAGE);
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut order: Vec<u64> = (0..300).collect();
        rng.shuffle(&mut order);
        let len = blocks as usize * 512;
        let offset = first * 4;
        let data = pattern(seed, len);
        // Where each byte is to be, page by page.
        let mut places = Vec::new();
        let mut done = 0;
        let mut pages = order.iter().map(|index| index * PAGE as u64);
        while done < len {
            let start = pages.next().unwrap() + if done == 0 { offset } else { 0 };
            let part = (PAGE - start as usize % PAGE).min(len - done);
            places.push((start as usize, done, part));
            done += part;
        }
        let iova = |start: usize| arena.iova + start as u64;
        let prp1 = iova(places[0].0);
        let prp2 = match &places[1..] {
            [] => rng.u64(..),
            [second] => iova(second.0),
            rest => {
                let mut page = 0;
                let mut at = list_at as usize * 8;
                for (i, place) in rest.iter().enumerate() {
                    if at == PAGE - 8 && i + 1 < rest.len() {
                        lists.memory.store_u64(page * PAGE + at, lists.iova + ((page + 1) * PAGE) as u64);
                        page += 1;
                        at = 0;
                    }
                    lists.memory.store_u64(page * PAGE + at, iova(place.0));
                    at += 8;
                }
                lists.iova + list_at * 8
            }
        };
        let slba = rng.u64(0..=8192 - u64::from(blocks));
        let command = |opcode: NvmOpcode| {
            Sqe { cdw12: blocks - 1, ..Sqe::new(opcode.0, 1).with_slba(slba).with_prps(prp1, prp2) }
        };
        let simple = host.buffer(1 << 20);
        let simple_list = host.buffer(PAGE);
        (1..256).for_each(|i| simple_list.memory.store_u64((i - 1) * 8, simple.iova + (i * PAGE) as u64));
        let simply = |opcode: NvmOpcode| {
            let prp2 = if len > 2 * PAGE { simple_list.iova } else { simple.iova + PAGE as u64 };
            Sqe { cdw12: blocks - 1, ..Sqe::new(opcode.0, 1).with_slba(slba).with_prps(simple.iova, prp2) }
        };
        arena.memory.fill(0, 300 * PAGE, 0x11);
        let mut want = vec![0x11; 300 * PAGE];
        if write {
            for &(start, from, part) in &places {
                arena.memory.write(start, &data[from..from + part]);
            }
            prop_assert!(host.io(command(NvmOpcode::WRITE)).status().is_success());
            prop_assert!(host.io(simply(NvmOpcode::READ)).status().is_success());
            prop_assert!(simple.bytes(0, len) == data);
        } else {
            simple.memory.write(0, &data);
            prop_assert!(host.io(simply(NvmOpcode::WRITE)).status().is_success());
            prop_assert!(host.io(command(NvmOpcode::READ)).status().is_success());
            for &(start, from, part) in &places {
                want[start..start + part].copy_from_slice(&data[from..from + part]);
            }
            prop_assert!(arena.bytes(0, 300 * PAGE) == want);
        }
        prop_assert_eq!(host.drive.dma_faults(), 0);
    }

    /// Any 64 bytes on an I/O queue are answered once, and the controller lives on.
    #[test]
    fn any_io_command_is_answered_once(
        mut words: [u64; 8], opcode in prop_oneof![Just(0u8), Just(1), Just(2), Just(5), Just(8), Just(9), any::<u8>()],
        nsid in prop_oneof![Just(1u32), Just(2), any::<u32>()], blocks: u16, garbage_list: bool, seed: u64,
    ) {
        let mut host = host();
        let buffer = host.buffer(64 * PAGE);
        let mut rng = fastrand::Rng::with_seed(seed);
        // Memory full of pointers, most to memory, some into the void or misaligned.
        for at in (0..64 * PAGE).step_by(8) {
            let pointer = buffer.iova + rng.u64(0..64) * PAGE as u64;
            let pointer = match rng.u32(0..200) {
                0 => rng.u64(..),
                1 => pointer + rng.u64(0..4096),
                _ => pointer,
            };
            buffer.memory.store_u64(at, pointer);
        }
        words[0] = words[0] & !0xff | u64::from(opcode);
        if rng.bool() {
            words[0] &= !0xff00;
        }
        words[0] = words[0] & 0xffff_ffff | u64::from(nsid) << 32;
        if garbage_list {
            words[3] = buffer.iova + rng.u64(0..64 * PAGE as u64) / 4 * 4;
            words[4] = buffer.iova + rng.u64(0..63 * PAGE as u64) / 8 * 8;
            words[5] = rng.u64(0..9000);
            words[6] = words[6] & !0xffff | u64::from(blocks);
        }
        let cid = host.submit(1, Sqe::from_words(words));
        let cqe = host.completion(1, cid);
        prop_assert!(cqe.status().is_success() || cqe.status().more());
        host.turns(20);
        prop_assert!(host.poll(1).is_empty(), "answered twice");
        prop_assert!(!host.csts().cfs());
        prop_assert!(host.io(Sqe::new(NvmOpcode::FLUSH.0, 1)).status().is_success());
    }

    /// Any 64 bytes on the admin queue are answered at most once (event requests wait), and the controller lives on.
    #[test]
    fn any_admin_command_is_answered_once(
        words: [u64; 8], opcode in prop_oneof![0u8..0x20, Just(0x80), any::<u8>()], aimed: bool, small: bool,
    ) {
        let mut host = host();
        let buffer = host.buffer(8 * PAGE);
        let mut words = words;
        words[0] = words[0] & !0xff | u64::from(opcode);
        if aimed {
            words[0] &= 0xffff_00ff;
            words[0] |= (words[7] & 3) << 32;
            words[3] = buffer.iova + words[3] % 4096 / 4 * 4;
            words[4] = buffer.iova + 4096;
        }
        if small {
            words[5] &= 0x0003_000f_0007_00ff;
        }
        let sqe = Sqe::from_words(words);
        let cid = host.submit(0, sqe);
        host.turns(20);
        let answers: Vec<_> = host.poll(0);
        let waits = opcode == AdminOpcode::ASYNC_EVENT_REQUEST.0 && answers.is_empty();
        prop_assert!(waits || answers.len() == 1 && answers[0].cid == cid, "{answers:?}");
        prop_assert!(!host.csts().cfs());
        prop_assert!(host.identify(0, 1).is_ok());
    }
}
