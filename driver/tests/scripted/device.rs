//! A small device that does what a test tells it: registers by the clock, answers by a script. For what a correct
//! controller never does; the checks of correct behaviour run against whole controllers elsewhere.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use warprow_dma::{Clock, DmaMemory, Doorbell, Function, FunctionError, MemoryKind, PAGE, Wake};
use warprow_spec::identify::{EntrySize, Fna, Fpi, IdentifyController, IdentifyNamespace, LbaFormat, Oacs, Oncs};
use warprow_spec::registers::{Aqa, Cap, Cc, Csts, ShutdownNotification, ShutdownStatus, Vs, offset};
use warprow_spec::{AdminOpcode, Cqe, FromZeros, IntoBytes, NvmOpcode, Sqe, Status, StatusCode};

/// Time that passes only when somebody waits.
#[derive(Debug, Default)]
pub(crate) struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }
    fn relax(&self, _turn: u32) {
        self.sleep(Duration::from_micros(1));
    }
    fn sleep(&self, duration: Duration) {
        self.0.fetch_add(duration.as_nanos() as u64, Ordering::SeqCst);
    }
}

/// What the device does with a command.
pub(crate) enum Reply {
    /// As a correct controller would.
    Default,
    /// Fails.
    Fail(StatusCode),
    /// Succeeds with this dword 0 and these bytes to PRP1.
    Succeed(u32, Vec<u8>),
    /// Succeeds, with data, under another CID.
    UnderCid(u16),
    /// Never answers by itself.
    Silent,
}

/// I/O queue pairs that are granted.
const QUEUES: u16 = 4;
/// The doorbell of a queue that does not exist, until somebody stores there.
const NO_QUEUE: u32 = u32::MAX;

type Script = Box<dyn FnMut(u16, &Sqe) -> Reply + Send>;

struct Queue {
    sq: u64,
    cq: u64,
    sq_size: u32,
    cq_size: u32,
    sq_head: u32,
    cq_tail: u32,
    phase: bool,
}

/// Everything that a test may set or look at.
pub(crate) struct State {
    pub(crate) cap: Cap,
    pub(crate) crto: u32,
    /// How long RDY takes to follow EN = 1; `None` for ever.
    pub(crate) enable_time: Option<Duration>,
    /// How long RDY takes to follow EN = 0; `None` for ever.
    pub(crate) disable_time: Option<Duration>,
    /// How long a shutdown takes; `None` for ever.
    pub(crate) shutdown_time: Option<Duration>,
    /// Whether a function reset clears CC and CSTS.
    pub(crate) obeys_reset: bool,
    pub(crate) fails_on_enable: bool,
    pub(crate) gone: bool,
    pub(crate) cc: Cc,
    pub(crate) csts: Csts,
    pub(crate) bus_master: bool,
    pub(crate) bus_master_stays: bool,
    pub(crate) controller: IdentifyController,
    pub(crate) namespaces: BTreeMap<u32, IdentifyNamespace>,
    pub(crate) script: Script,
    /// Everything that was done to registers and switches, in words.
    pub(crate) log: Vec<String>,
    /// Every admin opcode.
    pub(crate) admin_log: Vec<AdminOpcode>,
    /// DMA that no mapping covered.
    pub(crate) dma_faults: u32,
    pub(crate) resets: u32,
    /// Stores to doorbells of queues that do not exist.
    pub(crate) stray_doorbells: u32,
    /// I/O commands that arrived.
    pub(crate) io_count: u32,
    pub(crate) pending_events: Vec<u16>,
    aqa: Aqa,
    asq: u64,
    acq: u64,
    due: Option<(Duration, bool)>,
    shutdown_due: Option<Duration>,
    queues: BTreeMap<u16, Queue>,
    maps: BTreeMap<u64, DmaMemory>,
    next_iova: u64,
    media: BTreeMap<u64, Vec<u8>>,
    doorbells: DmaMemory,
}

#[derive(Clone)]
pub(crate) struct Device(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    clock: Arc<TestClock>,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Device")
    }
}

struct Waker(Weak<Inner>);

impl Wake for Waker {
    fn wake(&self) {
        if let Some(inner) = self.0.upgrade() {
            Device(inner).process();
        }
    }
}

pub(crate) fn format(lbads: u8, ms: u16) -> LbaFormat {
    LbaFormat::new().with_lbads(lbads).with_ms(ms)
}

pub(crate) fn namespace(lbas: u64) -> IdentifyNamespace {
    let mut data = IdentifyNamespace::new_zeroed();
    (data.nsze, data.ncap, data.nuse) = (lbas, lbas, lbas);
    data.nlbaf_z = 2;
    data.lbaf[..3].copy_from_slice(&[format(9, 0), format(9, 8), format(12, 0)]);
    data.fpi = Fpi::new().with_supported(true);
    data
}

impl Device {
    pub(crate) fn new() -> Self {
        let mut controller = IdentifyController::new_zeroed();
        controller.mdts = 5;
        controller.nn = 4;
        controller.sqes = EntrySize::new().with_required(6).with_maximum(6);
        controller.cqes = EntrySize::new().with_required(4).with_maximum(4);
        controller.aerl_z = 3;
        controller.elpe_z = 7;
        controller.oacs = Oacs::new().with_format_nvm(true);
        controller.oncs = Oncs::new().with_dataset_management(true).with_write_zeroes(true);
        controller.fna = Fna::new();
        let cap = Cap::new().with_mqes_z(1023).with_cqr(true).with_to(4).with_css_nvm(true).with_mpsmax(4);
        let state = State {
            cap,
            crto: 0,
            enable_time: Some(Duration::from_millis(300)),
            disable_time: Some(Duration::from_millis(20)),
            shutdown_time: Some(Duration::from_millis(500)),
            obeys_reset: true,
            fails_on_enable: false,
            gone: false,
            cc: Cc::new(),
            csts: Csts::new(),
            bus_master: false,
            bus_master_stays: false,
            controller,
            namespaces: [(1, namespace(4096))].into(),
            script: Box::new(|_, _| Reply::Default),
            log: Vec::new(),
            admin_log: Vec::new(),
            dma_faults: 0,
            resets: 0,
            stray_doorbells: 0,
            io_count: 0,
            pending_events: Vec::new(),
            aqa: Aqa::new(),
            asq: 0,
            acq: 0,
            due: None,
            shutdown_due: None,
            queues: BTreeMap::new(),
            maps: BTreeMap::new(),
            next_iova: 0x10_0000_0000,
            media: BTreeMap::new(),
            doorbells: DmaMemory::allocate(4 * PAGE, MemoryKind::Anonymous).unwrap(),
        };
        state.doorbells.fill(0, state.doorbells.len(), 0xff);
        Self(Arc::new(Inner { state: Mutex::new(state), clock: Arc::new(TestClock::default()) }))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn clock(&self) -> Arc<TestClock> {
        self.0.clock.clone()
    }

    pub(crate) fn function(&self) -> Arc<dyn Function> {
        Arc::new(self.clone())
    }

    pub(crate) fn script(&self, script: impl FnMut(u16, &Sqe) -> Reply + Send + 'static) {
        self.state().script = Box::new(script);
    }

    pub(crate) fn obey(&self) {
        self.script(|_, _| Reply::Default);
    }

    /// Answers a command that was left unanswered.
    pub(crate) fn answer(&self, qid: u16, cid: u16, dw0: u32, status: StatusCode) {
        self.state().post(qid, cid, dw0, status);
    }

    fn process(&self) {
        let state = &mut *self.state();
        state.count_stray_doorbells();
        if state.gone || !state.csts.rdy() || state.csts.cfs() || !state.bus_master {
            return;
        }
        let qids: Vec<u16> = state.queues.keys().copied().collect();
        for qid in qids {
            let tail = state.doorbells.load_u32(usize::from(qid) * 8);
            while let Some(sqe) = state.fetch(qid, tail) {
                state.execute(qid, &sqe);
            }
        }
    }
}

impl State {
    fn dma(&mut self, iova: u64, len: usize) -> Option<(DmaMemory, usize)> {
        let found = self.maps.range(..=iova).next_back().and_then(|(&base, memory)| {
            let at = (iova - base) as usize;
            memory.contains(at, len).then(|| (memory.clone(), at))
        });
        self.dma_faults += u32::from(found.is_none());
        found
    }

    fn count_stray_doorbells(&mut self) {
        for qid in 1..=QUEUES {
            let queue = self.queues.get(&qid);
            let exists = [queue.is_some_and(|queue| queue.sq_size != 0), queue.is_some()];
            for (at, _) in (usize::from(qid) * 8..).step_by(4).zip(exists).filter(|(_, exists)| !exists) {
                if self.doorbells.load_u32(at) != NO_QUEUE {
                    self.stray_doorbells += 1;
                    self.doorbells.store_u32(at, NO_QUEUE);
                }
            }
        }
    }

    fn fetch(&mut self, qid: u16, tail: u32) -> Option<Sqe> {
        let queue = self.queues.get_mut(&qid).filter(|queue| queue.sq_size != 0)?;
        assert!(tail < queue.sq_size, "doorbell of queue {qid} says {tail}");
        if queue.sq_head == tail {
            return None;
        }
        let iova = queue.sq + u64::from(queue.sq_head) * 64;
        queue.sq_head = (queue.sq_head + 1) % queue.sq_size;
        let (memory, at) = self.dma(iova, 64)?;
        Some(Sqe::from_words(memory.load_words(at)))
    }

    fn post(&mut self, qid: u16, cid: u16, dw0: u32, status: StatusCode) {
        let Some(queue) = self.queues.get_mut(&qid) else { return };
        let mut cqe = Cqe { dw0, sqhd: queue.sq_head as u16, sqid: qid, cid, ..Cqe::default() };
        cqe.status_phase = cqe.status_phase.with_status(Status::from_code(status)).with_phase(queue.phase);
        let iova = queue.cq + u64::from(queue.cq_tail) * 16;
        queue.cq_tail = (queue.cq_tail + 1) % queue.cq_size;
        queue.phase ^= queue.cq_tail == 0;
        let Some((memory, at)) = self.dma(iova, 16) else { return };
        warprow_dma::order::before_phase();
        memory.store_words(at, cqe.as_words());
    }

    fn execute(&mut self, qid: u16, sqe: &Sqe) {
        if qid == 0 {
            self.admin_log.push(AdminOpcode(sqe.opcode()));
        } else {
            self.io_count += 1;
        }
        let (status, dw0, data, cid) = match (self.script)(qid, sqe) {
            Reply::Silent => return,
            Reply::Fail(status) => (status, 0, Vec::new(), sqe.cid()),
            Reply::Succeed(dw0, data) => (StatusCode::Success, dw0, data, sqe.cid()),
            reply => {
                let cid = if let Reply::UnderCid(cid) = reply { cid } else { sqe.cid() };
                let done = if qid == 0 { self.admin(sqe) } else { Some(self.io(sqe)) };
                let Some((status, dw0, data)) = done else { return };
                (status, dw0, data, cid)
            }
        };
        if !data.is_empty()
            && let Some((memory, at)) = self.dma(sqe.prp1, data.len())
        {
            memory.write(at, &data);
        }
        self.post(qid, cid, dw0, status);
    }

    fn admin(&mut self, sqe: &Sqe) -> Option<(StatusCode, u32, Vec<u8>)> {
        let qid = sqe.cdw10 as u16;
        let size = (sqe.cdw10 >> 16) + 1;
        let mut dw0 = 0;
        let mut data = Vec::new();
        match AdminOpcode(sqe.opcode()) {
            AdminOpcode::IDENTIFY => data = self.identify(sqe)?,
            AdminOpcode::SET_FEATURES if sqe.cdw10 == 7 => dw0 = u32::from(QUEUES - 1) * 0x0001_0001,
            AdminOpcode::GET_LOG_PAGE => data = vec![0x5a; ((sqe.cdw10 >> 16) as usize + 1) * 4],
            AdminOpcode::ASYNC_EVENT_REQUEST => {
                self.pending_events.push(sqe.cid());
                return None;
            }
            AdminOpcode::CREATE_IO_CQ => {
                assert_eq!((sqe.prp1 % 4096, sqe.cdw11), (0, 1), "page-aligned, contiguous, no interrupts");
                let queue =
                    Queue { sq: 0, cq: sqe.prp1, sq_size: 0, cq_size: size, sq_head: 0, cq_tail: 0, phase: true };
                assert!(self.queues.insert(qid, queue).is_none(), "queue {qid} exists");
                self.doorbells.store_u32(usize::from(qid) * 8 + 4, 0);
            }
            AdminOpcode::CREATE_IO_SQ => {
                assert_eq!((sqe.prp1 % 4096, sqe.cdw11 & 1, sqe.cdw11 >> 16), (0, 1, u32::from(qid)));
                let queue = self.queues.get_mut(&qid).expect("the completion queue comes first");
                (queue.sq, queue.sq_size) = (sqe.prp1, size);
                self.doorbells.store_u32(usize::from(qid) * 8, 0);
            }
            AdminOpcode::DELETE_IO_SQ => {
                assert!(std::mem::take(&mut self.queues.get_mut(&qid).expect("it exists").sq_size) != 0);
                self.doorbells.store_u32(usize::from(qid) * 8, NO_QUEUE);
            }
            AdminOpcode::DELETE_IO_CQ => {
                assert_eq!(self.queues.remove(&qid).expect("it exists").sq_size, 0, "the submission queue goes first");
                self.doorbells.store_u32(usize::from(qid) * 8 + 4, NO_QUEUE);
            }
            AdminOpcode::FORMAT_NVM => {
                let index = sqe.cdw10 as u8 & 0xf;
                let data = self.namespaces.get_mut(&sqe.nsid).expect("it exists");
                let bytes = data.size_bytes().expect("it is valid");
                data.flbas = data.flbas.with_index_lower(index);
                data.nsze = bytes >> data.lbaf[usize::from(index)].lbads();
            }
            _ => {}
        }
        Some((StatusCode::Success, dw0, data))
    }

    fn identify(&mut self, sqe: &Sqe) -> Option<Vec<u8>> {
        Some(match sqe.cdw10 as u8 {
            0 => self.namespaces.get(&sqe.nsid).map_or(vec![0; 4096], |data| data.as_bytes().to_vec()),
            1 => self.controller.as_bytes().to_vec(),
            2 | 0x10 => {
                let ids = self.namespaces.range(sqe.nsid + 1..).take(1024).flat_map(|(id, _)| id.to_le_bytes());
                ids.chain(std::iter::repeat(0)).take(4096).collect()
            }
            _ => vec![0; 4096],
        })
    }

    /// Blocks of 512 B; data of up to two pages.
    fn io(&mut self, sqe: &Sqe) -> (StatusCode, u32, Vec<u8>) {
        let blocks = u64::from(sqe.cdw12 as u16) + 1;
        for i in 0..blocks {
            let at = sqe.prp1 + i * 512;
            let page = at & !4095;
            let iova = if page == sqe.prp1 & !4095 { at } else { sqe.prp2 + (at - page) };
            match NvmOpcode(sqe.opcode()) {
                NvmOpcode::READ => {
                    let block = self.media.get(&(sqe.slba() + i)).cloned().unwrap_or(vec![0; 512]);
                    if let Some((memory, at)) = self.dma(iova, 512) {
                        memory.write(at, &block);
                    }
                }
                NvmOpcode::WRITE => {
                    let mut block = vec![0; 512];
                    if let Some((memory, at)) = self.dma(iova, 512) {
                        memory.read(at, &mut block);
                    }
                    self.media.insert(sqe.slba() + i, block);
                }
                _ => {}
            }
        }
        (StatusCode::Success, 0, Vec::new())
    }

    fn disabled(&mut self) {
        self.csts = Csts::new();
        self.queues.clear();
        self.doorbells.fill(0, self.doorbells.len(), 0xff);
        self.pending_events.clear();
    }

    /// Lets the registers follow the time.
    fn tick(&mut self, now: Duration) {
        if let Some((due, rdy)) = self.due
            && now >= due
        {
            self.due = None;
            if rdy {
                self.csts.set_rdy(true);
            } else {
                self.disabled();
            }
        }
        if self.shutdown_due.is_some_and(|due| now >= due) {
            self.csts.set_shst(ShutdownStatus::COMPLETE);
        }
    }

    fn set_cc(&mut self, cc: Cc, now: Duration) {
        if cc.en() && !self.cc.en() {
            self.log.push("enable".into());
            assert!(!self.csts.rdy(), "EN goes up while RDY is up");
            self.due = self.enable_time.map(|time| (now + time, true));
            self.csts.set_cfs(self.fails_on_enable);
            self.doorbells.fill(0, self.doorbells.len(), 0xff);
            self.doorbells.store_u64(0, 0);
            let (sq_size, cq_size) = (u32::from(self.aqa.asqs_z()) + 1, u32::from(self.aqa.acqs_z()) + 1);
            let (sq, cq) = (self.asq, self.acq);
            self.queues.insert(0, Queue { sq, cq, sq_size, cq_size, sq_head: 0, cq_tail: 0, phase: true });
        } else if !cc.en() && self.cc.en() {
            self.log.push("disable".into());
            self.due = self.disable_time.map(|time| (now + time, false));
            self.shutdown_due = None;
        } else if cc.shn() == ShutdownNotification::NORMAL {
            self.log.push("shutdown".into());
            self.csts.set_shst(ShutdownStatus::OCCURRING);
            self.shutdown_due = self.shutdown_time.map(|time| now + time);
        }
        self.cc = cc;
    }
}

impl Function for Device {
    fn name(&self) -> &str {
        "scripted:0"
    }

    fn read_u32(&self, at: u64) -> Result<u32, FunctionError> {
        let mut state = self.state();
        state.tick(self.0.clock.now());
        Ok(match at {
            _ if state.gone => u32::MAX,
            offset::VS => Vs::V2_0.into_bits(),
            offset::CC => state.cc.into_bits(),
            offset::CSTS => state.csts.into_bits(),
            offset::CRTO => state.crto,
            _ => panic!("read of register {at:#x}"),
        })
    }

    fn read_u64(&self, at: u64) -> Result<u64, FunctionError> {
        assert_eq!(at, offset::CAP);
        let state = self.state();
        Ok(if state.gone { u64::MAX } else { state.cap.into_bits() })
    }

    fn write_u32(&self, at: u64, value: u32) -> Result<(), FunctionError> {
        let now = self.0.clock.now();
        let mut state = self.state();
        state.tick(now);
        match at {
            offset::CC => state.set_cc(Cc::from_bits(value), now),
            offset::AQA => state.aqa = Aqa::from_bits(value),
            _ => panic!("write of register {at:#x}"),
        }
        Ok(())
    }

    fn write_u64(&self, at: u64, value: u64) -> Result<(), FunctionError> {
        let mut state = self.state();
        match at {
            offset::ASQ => state.asq = value,
            offset::ACQ => state.acq = value,
            _ => panic!("write of register {at:#x}"),
        }
        Ok(())
    }

    fn doorbell(&self, at: u64) -> Result<Doorbell, FunctionError> {
        let waker = Arc::new(Waker(Arc::downgrade(&self.0)));
        Ok(Doorbell::memory(self.state().doorbells.clone(), (at - 0x1000) as usize, Some(waker)).expect("it is there"))
    }

    fn map(&self, memory: &DmaMemory) -> Result<u64, FunctionError> {
        let mut state = self.state();
        let iova = state.next_iova;
        // A gap, so that running past the end is a fault.
        state.next_iova += (memory.len() + PAGE) as u64;
        state.maps.insert(iova, memory.clone());
        Ok(iova)
    }

    fn unmap(&self, iova: u64) -> Result<(), FunctionError> {
        let mut state = self.state();
        state.maps.remove(&iova);
        state.log.push("unmap".into());
        Ok(())
    }

    fn set_bus_master(&self, enabled: bool) -> Result<(), FunctionError> {
        let mut state = self.state();
        state.tick(self.0.clock.now());
        if enabled {
            assert!(!state.csts.rdy() && !state.cc.en(), "bus master goes on after RDY = 0");
        } else if state.bus_master_stays {
            return Err(FunctionError::Unsupported { function: "scripted:0".into(), what: "bus master" });
        }
        state.log.push(format!("bus master {}", if enabled { "on" } else { "off" }));
        state.bus_master = enabled;
        Ok(())
    }

    fn reset(&self) -> Result<(), FunctionError> {
        let mut state = self.state();
        state.resets += 1;
        state.log.push("reset".into());
        if !state.obeys_reset {
            return Err(FunctionError::Unsupported { function: "scripted:0".into(), what: "a function reset" });
        }
        (state.cc, state.due, state.bus_master) = (Cc::new(), None, false);
        state.disabled();
        Ok(())
    }
}

impl Device {
    /// Mappings that exist.
    pub(crate) fn mapped(&self) -> usize {
        self.state().maps.len()
    }

    /// What the device reads at an address.
    pub(crate) fn memory(&self, iova: u64, len: usize) -> Vec<u8> {
        let (memory, at) = self.state().dma(iova, len).expect("it is mapped");
        let mut bytes = vec![0; len];
        memory.read(at, &mut bytes);
        bytes
    }
}
