//! A host written for these tests alone: it knows the specification, not the driver.
#![allow(dead_code, reason = "each test uses its part")]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use warprow_dma::{DmaMemory, Function, MemoryKind, PAGE, order};
use warprow_soft_controller::{ControllerBuilder, Namespace, RamBacking, SoftController};
use warprow_spec::registers::{Aqa, Cc, Csts, cq_head_doorbell, offset, sq_tail_doorbell};
use warprow_spec::{AdminOpcode, Cqe, NvmOpcode, Sqe, StatusCode};

/// A queue pair.
pub(crate) struct Pair {
    pub(crate) id: u16,
    pub(crate) sq: DmaMemory,
    pub(crate) cq: DmaMemory,
    pub(crate) sq_iova: u64,
    pub(crate) cq_iova: u64,
    pub(crate) size: u16,
    pub(crate) tail: u16,
    pub(crate) head: u16,
    pub(crate) phase: bool,
    pub(crate) sqhd: u16,
}

/// A host with a controller, an admin queue, and as many I/O queues as a test creates.
pub(crate) struct Host {
    pub(crate) drive: Arc<SoftController>,
    pub(crate) pairs: Vec<Pair>,
    pub(crate) now: Duration,
    /// How far each turn of a waiting loop turns a stepped controller's clock.
    pub(crate) tick: Duration,
    stepped: bool,
    dstrd: u8,
    cid: u16,
    seen: HashMap<(u16, u16), Cqe>,
}

/// Page-aligned memory with its address.
pub(crate) struct Buffer {
    pub(crate) memory: DmaMemory,
    pub(crate) iova: u64,
}

impl Buffer {
    pub(crate) fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(at, &mut bytes);
        bytes
    }
}

pub(crate) fn ram(bytes: u64) -> Namespace {
    Namespace::new(RamBacking::new(bytes).unwrap())
}

pub(crate) fn stepped() -> ControllerBuilder {
    SoftController::builder().stepped()
}

impl Host {
    /// A host of a stepped controller, not yet enabled.
    pub(crate) fn of(builder: ControllerBuilder) -> Self {
        Self::new(builder.stepped().build().unwrap(), true)
    }

    pub(crate) fn new(drive: Arc<SoftController>, stepped: bool) -> Self {
        let dstrd = (drive.read_u64(offset::CAP).unwrap() >> 32 & 0xf) as u8;
        Self {
            drive,
            pairs: Vec::new(),
            now: Duration::ZERO,
            tick: Duration::from_micros(1),
            stepped,
            dstrd,
            cid: 0,
            seen: HashMap::new(),
        }
    }

    /// Brings the controller up with an admin queue of 16 entries.
    pub(crate) fn enabled(builder: ControllerBuilder) -> Self {
        let mut host = Self::of(builder);
        host.enable();
        host
    }

    /// And with one I/O queue pair of `size` entries.
    pub(crate) fn with_queue(builder: ControllerBuilder, size: u16) -> Self {
        let mut host = Self::enabled(builder);
        host.create_pair(1, size);
        host
    }

    pub(crate) fn buffer(&self, bytes: usize) -> Buffer {
        let memory = DmaMemory::allocate(bytes, MemoryKind::Anonymous).unwrap();
        let iova = self.drive.map(&memory).unwrap();
        Buffer { memory, iova }
    }

    fn pair(&self, id: u16, size: u16) -> Pair {
        let sq = self.buffer(usize::from(size) * 64);
        let cq = self.buffer(usize::from(size) * 16);
        Pair {
            id,
            sq: sq.memory,
            cq: cq.memory,
            sq_iova: sq.iova,
            cq_iova: cq.iova,
            size,
            tail: 0,
            head: 0,
            phase: true,
            sqhd: 0,
        }
    }

    pub(crate) fn cc() -> Cc {
        Cc::new().with_iosqes(6).with_iocqes(4)
    }

    pub(crate) fn csts(&self) -> Csts {
        Csts::from_bits(self.drive.read_u32(offset::CSTS).unwrap())
    }

    pub(crate) fn enable(&mut self) {
        self.start();
        self.wait("RDY", |host| host.csts().rdy());
    }

    /// Writes what enabling needs, and does not wait.
    pub(crate) fn start(&mut self) {
        self.pairs.clear();
        self.seen.clear();
        let admin = self.pair(0, 16);
        let aqa = Aqa::new().with_asqs_z(15).with_acqs_z(15);
        self.drive.write_u32(offset::AQA, aqa.into_bits()).unwrap();
        self.drive.write_u64(offset::ASQ, admin.sq_iova).unwrap();
        self.drive.write_u64(offset::ACQ, admin.cq_iova).unwrap();
        self.pairs.push(admin);
        self.drive.write_u32(offset::CC, Self::cc().with_en(true).into_bits()).unwrap();
        self.drive.set_bus_master(true).unwrap();
    }

    pub(crate) fn disable(&mut self) {
        self.drive.write_u32(offset::CC, Self::cc().into_bits()).unwrap();
        self.wait("RDY = 0", |host| !host.csts().rdy());
    }

    /// One turn of whatever moves the controller.
    pub(crate) fn turn(&mut self) {
        if self.stepped {
            self.now += self.tick;
            self.drive.step(self.now);
        } else {
            std::thread::yield_now();
        }
    }

    pub(crate) fn turns(&mut self, count: usize) {
        (0..count).for_each(|_| self.turn());
    }

    pub(crate) fn wait(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            self.turn();
            // A flush of a file waits for the disk, which others may keep busy for long.
            assert!(start.elapsed() < Duration::from_secs(120), "waited in vain for {what}");
        }
    }

    pub(crate) fn create_pair(&mut self, id: u16, size: u16) {
        let pair = self.pair(id, size);
        assert!(self.create_cq(id, pair.cq_iova, size).status().is_success());
        assert!(self.create_sq(id, pair.sq_iova, size, id).status().is_success());
        self.pairs.push(pair);
    }

    pub(crate) fn create_cq(&mut self, id: u16, iova: u64, size: u16) -> Cqe {
        let sqe = Sqe::new(AdminOpcode::CREATE_IO_CQ.0, 0);
        self.admin(Sqe { prp1: iova, cdw10: u32::from(id) | u32::from(size - 1) << 16, cdw11: 1, ..sqe })
    }

    pub(crate) fn create_sq(&mut self, id: u16, iova: u64, size: u16, cqid: u16) -> Cqe {
        let sqe = Sqe::new(AdminOpcode::CREATE_IO_SQ.0, 0);
        let cdw10 = u32::from(id) | u32::from(size - 1) << 16;
        self.admin(Sqe { prp1: iova, cdw10, cdw11: 1 | u32::from(cqid) << 16, ..sqe })
    }

    fn index(&self, qid: u16) -> usize {
        self.pairs.iter().position(|pair| pair.id == qid).unwrap()
    }

    /// Writes an entry with a fresh command identifier, and does not ring.
    pub(crate) fn push(&mut self, qid: u16, sqe: Sqe) -> u16 {
        self.cid = (self.cid + 1) % 0xfff0;
        let cid = self.cid;
        let index = self.index(qid);
        let pair = &mut self.pairs[index];
        pair.sq.store_words(usize::from(pair.tail) * 64, sqe.with_cid(cid).as_words());
        pair.tail = (pair.tail + 1) % pair.size;
        cid
    }

    pub(crate) fn ring(&mut self, qid: u16) {
        let at = sq_tail_doorbell(qid, self.dstrd);
        let tail = self.pairs[self.index(qid)].tail;
        self.drive.doorbell(at).unwrap().ring(tail.into());
    }

    pub(crate) fn submit(&mut self, qid: u16, sqe: Sqe) -> u16 {
        let cid = self.push(qid, sqe);
        self.ring(qid);
        cid
    }

    /// Consumes completions of a queue.
    pub(crate) fn poll(&mut self, qid: u16) -> Vec<Cqe> {
        let dstrd = self.dstrd;
        let index = self.index(qid);
        let pair = &mut self.pairs[index];
        let mut found = Vec::new();
        loop {
            let at = usize::from(pair.head) * 16;
            let word1 = pair.cq.load_u64(at + 8);
            if Cqe::phase_of_word(word1) != pair.phase {
                break;
            }
            order::after_phase();
            let cqe = Cqe::from_words([pair.cq.load_u64(at), word1]);
            assert_eq!(cqe.sqid, qid);
            pair.sqhd = cqe.sqhd;
            pair.head += 1;
            if pair.head == pair.size {
                pair.head = 0;
                pair.phase = !pair.phase;
            }
            found.push(cqe);
        }
        if !found.is_empty() {
            let head = pair.head;
            self.drive.doorbell(cq_head_doorbell(qid, dstrd)).unwrap().ring(head.into());
        }
        found
    }

    /// Waits for the completion of one command; others that come are kept for their own waiters.
    pub(crate) fn completion(&mut self, qid: u16, cid: u16) -> Cqe {
        self.wait(&format!("completion of {cid} on queue {qid}"), |host| {
            for cqe in host.poll(qid) {
                assert!(host.seen.insert((qid, cqe.cid), cqe).is_none(), "{cqe:?} came twice");
            }
            host.seen.contains_key(&(qid, cid))
        });
        self.seen.remove(&(qid, cid)).unwrap()
    }

    pub(crate) fn admin(&mut self, sqe: Sqe) -> Cqe {
        let cid = self.submit(0, sqe);
        self.completion(0, cid)
    }

    pub(crate) fn io(&mut self, sqe: Sqe) -> Cqe {
        let cid = self.submit(1, sqe);
        self.completion(1, cid)
    }

    /// A read or write of up to two pages.
    pub(crate) fn rw(opcode: NvmOpcode, nsid: u32, slba: u64, blocks: u32, iova: u64) -> Sqe {
        let prp2 = (iova & !(PAGE as u64 - 1)) + PAGE as u64;
        Sqe { cdw12: blocks - 1, ..Sqe::new(opcode.0, nsid).with_slba(slba).with_prps(iova, prp2) }
    }

    pub(crate) fn write(&mut self, slba: u64, blocks: u32, iova: u64) {
        let cqe = self.io(Self::rw(NvmOpcode::WRITE, 1, slba, blocks, iova));
        assert_eq!(cqe.status().code(), StatusCode::Success);
    }

    pub(crate) fn read(&mut self, slba: u64, blocks: u32, iova: u64) {
        let cqe = self.io(Self::rw(NvmOpcode::READ, 1, slba, blocks, iova));
        assert_eq!(cqe.status().code(), StatusCode::Success);
    }

    /// Identify into a fresh page.
    pub(crate) fn identify(&mut self, nsid: u32, cns: u32) -> Result<Vec<u8>, StatusCode> {
        let page = self.buffer(PAGE);
        let sqe = Sqe::new(AdminOpcode::IDENTIFY.0, nsid).with_prps(page.iova, 0);
        let status = self.admin(Sqe { cdw10: cns, ..sqe }).status();
        if status.is_success() { Ok(page.bytes(0, PAGE)) } else { Err(status.code()) }
    }
}

/// Bytes that tell where they belong.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| rng.u8(..)).take(len).collect()
}
