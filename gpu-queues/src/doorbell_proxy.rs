//! The doorbell proxy of placement B′: the GPU stores doorbell values to *shadow* words in pinned memory, and a host
//! thread copies them to the device's registers.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use warprow_dma::{DmaMemory, Doorbell, order};
use warprow_driver::Submitter;

use crate::{Gate, GpuQueueError};

/// Bytes of the two shadow words of a queue, each on a line of its own.
pub(crate) const SHADOW_BYTES: usize = 256;
/// Where the CQ head's word lies among them; the SQ tail's is first.
const HEAD: usize = 128;
/// How long the thread goes on looking without a nap after the last launch has left the gate.
const LINGER: Duration = Duration::from_millis(1);
/// The nap of an idle thread.
const NAP: Duration = Duration::from_micros(50);

/// The device's doorbells of one queue, to which the thread copies shadow words.
#[derive(Debug)]
struct Line {
    tail: Doorbell,
    head: Doorbell,
    /// The values that were last stored to `tail` and `head`.
    told: [AtomicU32; 2],
}

/// The gate of queues that have a [`DoorbellProxy`]. The queues are left when no launch is inside the gate and the
/// proxy's thread is not storing to the device either.
#[derive(Debug)]
pub struct ForwardedGate {
    gate: Arc<Gate>,
    /// How often the gate was closed and not yet opened again.
    closings: Mutex<u32>,
    closed: AtomicBool,
    /// Whether the thread may be storing to the device at this moment.
    telling: AtomicBool,
}

#[derive(Debug)]
struct Inner {
    gate: Arc<ForwardedGate>,
    shadows: DmaMemory,
    lines: Box<[Line]>,
    stop: AtomicBool,
}

/// The thread that copies shadow words to doorbells. It ends when this is dropped.
#[derive(Debug)]
pub struct DoorbellProxy {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

impl ForwardedGate {
    /// The gate, as one [`DoorbellProxy`] and the controllers of its queues see it.
    pub fn new(gate: Arc<Gate>) -> Self {
        Self { gate, closings: Mutex::new(0), closed: AtomicBool::new(false), telling: AtomicBool::new(false) }
    }
}

impl DoorbellProxy {
    /// Starts the thread for queues with these SQ tail and CQ head doorbells. In `shadows`, which is all zero, queue i
    /// has its tail's word at byte 256·i and its head's word 128 bytes behind. The thread naps while no launch is
    /// inside the gate.
    ///
    /// Fails with [`GpuQueueError::Unsupported`] if `shadows` has too few bytes for the queues, or with
    /// [`GpuQueueError::Thread`].
    pub fn start(
        gate: Arc<ForwardedGate>,
        shadows: DmaMemory,
        doorbells: Vec<(Doorbell, Doorbell)>,
    ) -> Result<Self, GpuQueueError> {
        let line = |(tail, head)| Line { tail, head, told: Default::default() };
        let lines: Box<[Line]> = doorbells.into_iter().map(line).collect();
        if !shadows.contains(0, lines.len() * SHADOW_BYTES) {
            let why = format!("{} bytes of shadow doorbells are too few for {} queues", shadows.len(), lines.len());
            return Err(GpuQueueError::Unsupported(why));
        }
        let inner = Arc::new(Inner { gate, shadows, lines, stop: AtomicBool::new(false) });
        let run = inner.clone();
        let thread = Builder::new().name("doorbells".into()).spawn(move || run.run()).map_err(GpuQueueError::Thread)?;
        Ok(Self { inner, thread: Some(thread) })
    }

    /// Sets a queue's shadow words, and the doorbell values that were last stored, to zero, as for a new queue. Only
    /// while the gate is closed and has been left.
    pub(crate) fn restart(&self, queue: usize) {
        if let Some(line) = self.inner.lines.get(queue) {
            self.inner.shadows.fill(queue * SHADOW_BYTES, SHADOW_BYTES, 0);
            line.told.iter().for_each(|told| told.store(0, Ordering::Relaxed));
        }
    }

    /// Offsets of the words of a queue among the shadows: tail, head.
    pub(crate) fn offsets(queue: usize) -> (usize, usize) {
        (queue * SHADOW_BYTES, queue * SHADOW_BYTES + HEAD)
    }
}

impl Drop for DoorbellProxy {
    fn drop(&mut self) {
        self.inner.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread waits for nothing but its naps, so this is over soon. If it panicked, the panic was printed.
            let _ = thread.join();
        }
    }
}

impl Inner {
    fn run(&self) {
        let mut busy = Instant::now();
        let mut turn = 0u32;
        while !self.stop.load(Ordering::Acquire) {
            self.gate.telling.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            // If the gate is open here, the shadow words are at least as new as when it was opened.
            let told = !self.gate.closed.load(Ordering::Acquire) && self.pass();
            self.gate.telling.store(false, Ordering::Release);
            turn = if told { 0 } else { turn.wrapping_add(1) };
            if told || turn.is_multiple_of(64) && self.gate.gate.inside() != 0 {
                busy = Instant::now();
            } else if turn.is_multiple_of(64) && busy.elapsed() > LINGER {
                std::thread::park_timeout(NAP);
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Copies each shadow word that has changed to the device; whether any had.
    fn pass(&self) -> bool {
        let mut any = false;
        for (queue, line) in self.lines.iter().enumerate() {
            let (tail_at, head_at) = DoorbellProxy::offsets(queue);
            // The block stores the head, then, behind a release, a tail that counts on that head. So the tail is loaded
            // first, and stored last.
            let tail = u32::from_le(self.shadows.load_u32(tail_at));
            order::after_doorbell();
            let head = u32::from_le(self.shadows.load_u32(head_at));
            for (bell, value, told) in [(&line.head, head, &line.told[1]), (&line.tail, tail, &line.told[0])] {
                if told.load(Ordering::Relaxed) != value {
                    told.store(value, Ordering::Relaxed);
                    bell.ring(value);
                    any = true;
                }
            }
        }
        any
    }
}

impl Submitter for ForwardedGate {
    fn close(&self) {
        let mut closings = self.closings.lock().unwrap_or_else(PoisonError::into_inner);
        *closings += 1;
        self.closed.store(true, Ordering::Relaxed);
        // The fence in `close` also orders the store of `closed` before the loads of `has_left`.
        self.gate.close();
    }

    fn has_left(&self) -> bool {
        self.gate.has_left() && !self.telling.load(Ordering::Acquire)
    }

    fn open(&self) {
        let mut closings = self.closings.lock().unwrap_or_else(PoisonError::into_inner);
        *closings = closings.saturating_sub(1);
        if *closings == 0 {
            self.closed.store(false, Ordering::Release);
        }
        self.gate.open();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use warprow_dma::{MemoryKind, PAGE, Wake};

    /// A doorbell that says that it was rung, and takes until it is let go.
    struct Held {
        rung: Sender<()>,
        go: Mutex<Receiver<()>>,
    }

    impl Wake for Held {
        fn wake(&self) {
            let _ = self.rung.send(());
            let _ = self.go.lock().unwrap().recv_timeout(Duration::from_secs(30));
        }
    }

    struct Fixture {
        gate: Arc<ForwardedGate>,
        shadows: DmaMemory,
        /// Tail at 0, head at 4.
        device: DmaMemory,
        proxy: DoorbellProxy,
        rung: Receiver<()>,
        go: Sender<()>,
    }

    /// One queue, whose tail doorbell is held.
    fn fixture() -> Fixture {
        let page = || DmaMemory::allocate(PAGE, MemoryKind::Anonymous).unwrap();
        let (shadows, device) = (page(), page());
        let ((rung_in, rung), (go, go_out)) = (channel(), channel());
        let held = Arc::new(Held { rung: rung_in, go: Mutex::new(go_out) });
        let tail = Doorbell::memory(device.clone(), 0, Some(held)).unwrap();
        let head = Doorbell::memory(device.clone(), 4, None).unwrap();
        let gate = Arc::new(ForwardedGate::new(Arc::new(Gate::on_host().unwrap())));
        let proxy = DoorbellProxy::start(gate.clone(), shadows.clone(), vec![(tail, head)]).unwrap();
        Fixture { gate, shadows, device, proxy, rung, go }
    }

    impl Fixture {
        /// As a block does: the head, then the tail.
        fn store(&self, tail: u32, head: u32) {
            self.shadows.store_u32(HEAD, head);
            fence(Ordering::Release);
            self.shadows.store_u32(0, tail);
        }

        fn await_tail(&self) {
            self.rung.recv_timeout(Duration::from_secs(30)).expect("the tail is rung");
        }
    }

    #[test]
    fn a_head_is_told_before_the_tail_that_counts_on_it() {
        let fixture = fixture();
        for turn in 1..200 {
            fixture.store(turn, turn + 1000);
            fixture.await_tail();
            assert_eq!((fixture.device.load_u32(0), fixture.device.load_u32(4)), (turn, turn + 1000));
            fixture.go.send(()).unwrap();
        }
    }

    #[test]
    fn queues_are_not_left_while_the_device_is_being_told() {
        let fixture = fixture();
        fixture.store(3, 0);
        fixture.await_tail();
        fixture.gate.close();
        assert!(!fixture.gate.has_left(), "the doorbell is being stored");
        fixture.go.send(()).unwrap();
        let began = Instant::now();
        while !fixture.gate.has_left() {
            assert!(began.elapsed() < Duration::from_secs(30), "it is done with the doorbell");
            std::thread::yield_now();
        }
        // What is stored now is for a queue that goes.
        fixture.store(7, 7);
        assert!(fixture.rung.recv_timeout(Duration::from_millis(50)).is_err(), "the gate is closed");
        assert_eq!((fixture.device.load_u32(0), fixture.device.load_u32(4)), (3, 0));

        // The queue begins anew: zero is what the device knows, and the first value told is a new one.
        fixture.proxy.restart(0);
        fixture.gate.open();
        assert!(fixture.rung.recv_timeout(Duration::from_millis(50)).is_err(), "nothing was stored since");
        fixture.store(3, 0);
        fixture.await_tail();
        fixture.go.send(()).unwrap();
        assert_eq!(fixture.device.load_u32(0), 3);
    }

    #[test]
    fn shadows_that_do_not_fit_are_refused() {
        let shadows = DmaMemory::allocate(PAGE, MemoryKind::Anonymous).unwrap();
        let bell = || Doorbell::memory(shadows.clone(), 0, None).unwrap();
        let gate = Arc::new(ForwardedGate::new(Arc::new(Gate::on_host().unwrap())));
        let queues = (0..=PAGE / SHADOW_BYTES).map(|_| (bell(), bell())).collect();
        let error = DoorbellProxy::start(gate, shadows, queues).expect_err("too many").to_string();
        assert!(error.contains("17 queues"), "{error}");
    }
}
