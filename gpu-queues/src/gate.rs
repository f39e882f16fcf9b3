//! The gate, which keeps launches from the queues while the host resets them.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use warprow_driver::Submitter;

use crate::abi::{GATE_BYTES, GATE_CLOSED, GATE_INSIDE};
use crate::address_space::{AddressSpace, QuietStream, SharedMemory};
use crate::error::stops_kernels;
use crate::kept_memory;
use crate::{Gpu, GpuQueueError};

/// How long after the last launch has left its stores to a device's registers may still be on their way: a margin, for
/// which docs/gpu-rings.md has the reason.
pub(crate) const DRAIN: Duration = Duration::from_millis(100);

/// Stands before the queues of one slot (`docs/gpu-rings.md`, "The gate"). The first kernel of a launch says that it is
/// inside and then looks whether it may be; the host closes and then looks who is inside. Between the two steps either
/// side has a sequentially consistent fence, so that one of them sees the other. Launches run one at a time: one word
/// says who is inside.
///
/// A launch that died with its CUDA context never says that it has left. When the context is lost, no launch is inside,
/// whatever the word says, and none will be: drives on which such launches had queues can be reset, and serve others.
#[derive(Debug)]
pub struct Gate {
    memory: SharedMemory,
    /// How often the gate was closed and not yet opened again.
    closings: Mutex<u32>,
    /// Set if launches store to registers of devices: then they have left only when [`DRAIN`] has passed since.
    drains: AtomicBool,
    /// When the last launch was first seen to have left a closed gate.
    left_at: Mutex<Option<Instant>>,
    /// Tells whether the launches' CUDA context lives. `None`: a thread of this process stands in for the kernels.
    probe: Option<QuietStream>,
    gpu: Option<Arc<Gpu>>,
    lost: AtomicBool,
}

impl Gate {
    /// An open gate for kernels on `gpu`.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, GpuQueueError> {
        let mut gate = Self::on(&AddressSpace::Gpu(gpu.clone()), Some(QuietStream::new(gpu)?))?;
        kept_memory::note_gate(gpu, gate.memory.memory());
        gate.gpu = Some(gpu.clone());
        Ok(gate)
    }

    /// An open gate for a thread of this process that stands in for the kernels: [`enter`](Self::enter),
    /// [`exit`](Self::exit).
    pub fn on_host() -> Result<Self, GpuQueueError> {
        Self::on(&AddressSpace::Host, None)
    }

    fn on(side: &AddressSpace, probe: Option<QuietStream>) -> Result<Self, GpuQueueError> {
        Ok(Self {
            memory: side.shared(GATE_BYTES)?,
            closings: Mutex::new(0),
            drains: AtomicBool::new(false),
            left_at: Mutex::default(),
            probe,
            gpu: None,
            lost: AtomicBool::new(false),
        })
    }

    /// Says that launches store to doorbell registers of devices, from now on and for good.
    pub(crate) fn drain_registers(&self) {
        self.drains.store(true, Ordering::Release);
    }

    /// Whether what launches stored to registers before they left has arrived: the first call in a closed gate says
    /// when they had.
    fn has_drained(&self) -> bool {
        if !self.drains.load(Ordering::Acquire) {
            return true;
        }
        let mut left_at = self.left_at.lock().unwrap_or_else(PoisonError::into_inner);
        left_at.get_or_insert_with(Instant::now).elapsed() >= DRAIN
    }

    /// Whether the launches' CUDA context is known to be lost: [`check_context`](Self::check_context) has found it so.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Asks CUDA about the launches' context. [`GpuQueueError::ContextLost`] if a kernel, not necessarily one of ours,
    /// has ended it.
    pub fn check_context(&self) -> Result<(), GpuQueueError> {
        match self.probe.as_ref().map(QuietStream::look) {
            Some(Err(error @ GpuQueueError::ContextLost { code, .. })) => {
                if stops_kernels(code) && !self.lost.swap(true, Ordering::AcqRel) {
                    tracing::error!(%error, "nobody is inside the gate any more");
                }
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Asks CUDA about the launches' context; whether no kernel of it runs any more.
    fn loses_context(&self) -> bool {
        self.check_context().is_err() && self.is_lost()
    }

    /// Has the gate answer as if the context were lost. For tests of gates on the host.
    #[doc(hidden)]
    pub fn lose_context(&self) {
        self.lost.store(true, Ordering::Release);
    }

    /// The gate's address, as the kernels use it.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    /// The number of the launch that is inside; 0: none is.
    pub fn inside(&self) -> u64 {
        self.memory.memory().load_u64(GATE_INSIDE)
    }

    /// Whether the gate is closed: no launch gets in, and one that is inside is to leave.
    pub fn is_closed(&self) -> bool {
        self.memory.memory().load_u32(GATE_CLOSED) != 0
    }

    /// What the first kernel of `launch` (not 0) does: `true` if it is inside now, and may use the queues until
    /// [`exit`](Self::exit).
    pub fn enter(&self, launch: u64) -> bool {
        let memory = self.memory.memory();
        memory.store_u64(GATE_INSIDE, launch);
        fence(Ordering::SeqCst);
        let closed = self.is_closed();
        fence(Ordering::Acquire);
        if closed {
            self.exit();
        }
        !closed
    }

    /// What the last kernel of a launch does: everything it stored before is visible to whoever sees that nobody is
    /// inside.
    pub fn exit(&self) {
        fence(Ordering::Release);
        self.memory.memory().store_u64(GATE_INSIDE, 0);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if let Some(gpu) = &self.gpu {
            kept_memory::forget_gate(gpu, self.memory.memory());
        }
    }
}

impl Submitter for Gate {
    fn close(&self) {
        let mut closings = self.closings.lock().unwrap_or_else(PoisonError::into_inner);
        if *closings == 0 {
            *self.left_at.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        *closings += 1;
        self.memory.memory().store_u32(GATE_CLOSED, 1);
        fence(Ordering::SeqCst);
    }

    fn has_left(&self) -> bool {
        fence(Ordering::SeqCst);
        let left = self.inside() == 0;
        fence(Ordering::Acquire);
        (left || self.is_lost() || self.loses_context()) && self.has_drained()
    }

    fn open(&self) {
        let mut closings = self.closings.lock().unwrap_or_else(PoisonError::into_inner);
        *closings = closings.saturating_sub(1);
        if *closings == 0 {
            *self.left_at.lock().unwrap_or_else(PoisonError::into_inner) = None;
            fence(Ordering::Release);
            self.memory.memory().store_u32(GATE_CLOSED, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    #[test]
    fn closings_are_counted() {
        let gate = Gate::on_host().unwrap();
        assert!(!gate.is_closed() && gate.enter(7));
        assert_eq!(gate.inside(), 7);
        gate.close();
        gate.close();
        assert!(!gate.has_left());
        gate.exit();
        assert!(gate.has_left() && !gate.enter(8) && gate.inside() == 0);
        gate.open();
        assert!(gate.is_closed());
        gate.open();
        assert!(!gate.is_closed() && gate.enter(9));
    }

    #[test]
    fn a_gate_before_registers_is_left_when_stores_have_had_time_to_arrive() {
        let gate = Gate::on_host().unwrap();
        gate.drain_registers();
        for _ in 0..2 {
            assert!(gate.enter(1));
            gate.exit();
            // What is seen of an open gate is no begin: a launch may enter right behind it.
            gate.has_left();
            std::thread::sleep(DRAIN / 2);
            let closed = Instant::now();
            gate.close();
            assert!(!gate.has_left());
            while !gate.has_left() {
                assert!(closed.elapsed() < 100 * DRAIN, "stores are waited for without end");
                std::thread::yield_now();
            }
            assert!(closed.elapsed() >= DRAIN);
            gate.close();
            assert!(gate.has_left(), "closed once more, the gate has been left all the same");
            gate.open();
            gate.open();
        }
    }

    /// While the host has the gate closed and no launch is inside, nobody uses the queues: `busy` would show it.
    #[test]
    fn host_and_launches_exclude_each_other() {
        let gate = Gate::on_host().unwrap();
        let (busy, stop, launches) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut launch = 0;
                while !stop.load(Ordering::Relaxed) {
                    launch += 1;
                    if gate.enter(launch) {
                        busy.store(true, Ordering::Relaxed);
                        std::hint::spin_loop();
                        busy.store(false, Ordering::Relaxed);
                        gate.exit();
                        launches.fetch_add(1, Ordering::Relaxed);
                    } else {
                        std::thread::yield_now();
                    }
                }
            });
            for _ in 0..2000 {
                gate.close();
                while !gate.has_left() {
                    std::thread::yield_now();
                }
                assert!(!busy.load(Ordering::Relaxed), "a launch is inside a closed gate");
                gate.open();
                std::hint::spin_loop();
            }
            while launches.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
