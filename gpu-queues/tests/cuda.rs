//! With a GPU: memory, and queue sets up to the kernels. Without one each test says so and ends.

use std::sync::Arc;
use std::time::Duration;

use warprow_dma::{Function, SystemClock};
use warprow_driver::{Controller, ControllerOptions, Namespace, ResetKind, Submitter};
use warprow_gpu_queues::abi::GATE_CLOSED;
use warprow_gpu_queues::{
    DeviceMemory, DoorbellAccess, Gate, Gpu, MemoryPlacement, PinnedMemory, QueuePlacement, QueuePlacements, QueueSet,
    QueueSetOptions,
};
use warprow_soft_controller::{Namespace as Space, RamBacking, SoftController};

macro_rules! gpu_or_return {
    () => {
        match Gpu::open(0) {
            Ok(gpu) => gpu,
            Err(error) => return eprintln!("skipped: {error}"),
        }
    };
}

fn drive() -> (Arc<SoftController>, (Arc<Controller>, Namespace)) {
    let soft = SoftController::builder().namespace(Space::new(RamBacking::new(1 << 20).unwrap())).build().unwrap();
    let controller =
        Controller::open(soft.clone(), Arc::new(SystemClock::new()), ControllerOptions::default()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    (soft, (controller, namespace))
}

#[test]
fn device_memory_is_zeroed_and_keeps_what_is_written() {
    let gpu = gpu_or_return!();
    let memory = DeviceMemory::new(&gpu, 10_000).unwrap();
    let mut got = vec![1; 10_000];
    memory.read(0, &mut got).unwrap();
    assert!(got.iter().all(|&byte| byte == 0));
    let data: Vec<u8> = (0..777u32).map(|i| (i % 251) as u8).collect();
    memory.write(123, &data).unwrap();
    memory.read(123, &mut got[..777]).unwrap();
    assert_eq!(got[..777], data);
    memory.zero().unwrap();
    memory.read(123, &mut got[..777]).unwrap();
    assert!(got[..777].iter().all(|&byte| byte == 0));
}

#[test]
fn memory_is_registered_once_at_a_time() {
    let gpu = gpu_or_return!();
    let first = PinnedMemory::allocate(&gpu, 1 << 20).unwrap();
    assert_ne!(first.address(), 0);
    let refused = PinnedMemory::new(&gpu, first.memory().clone()).expect_err("it is registered").to_string();
    assert!(refused.contains("1048576 bytes"), "{refused}");
    assert!(refused.contains("cuMemHostRegister") && refused.contains("RLIMIT_MEMLOCK"), "{refused}");
    let memory = first.memory().clone();
    drop(first);
    PinnedMemory::new(&gpu, memory).unwrap();
}

/// More than there is: whether the system or CUDA refuses it, the error says how much was asked for, and what to do.
#[test]
fn memory_that_is_not_there_is_a_typed_error() {
    let gpu = gpu_or_return!();
    let pinned = PinnedMemory::allocate(&gpu, 1 << 46).expect_err("64 TiB").to_string();
    assert!(pinned.contains("70368744177664 bytes"), "{pinned}");
    assert!(pinned.contains("RLIMIT_MEMLOCK") || pinned.contains("ask for less"), "{pinned}");
    let device = DeviceMemory::new(&gpu, 1 << 46).expect_err("64 TiB").to_string();
    assert!(device.contains("70368744177664 bytes of GPU memory") && device.contains("are free"), "{device}");
}

#[test]
fn queue_sets_come_and_go() {
    let gpu = gpu_or_return!();
    let (soft, drive) = drive();
    let placements = QueuePlacements::choose(
        Ok(&gpu),
        [&*soft as &dyn Function],
        DoorbellAccess::default(),
        MemoryPlacement::default(),
    );
    assert_eq!(placements.placement, QueuePlacement::C, "{placements}");
    let options = QueueSetOptions {
        batches: 2,
        landing_stride: 512,
        windows: Vec::new(),
        timeout: Duration::from_secs(1),
        doorbells: DoorbellAccess::Memory,
        memory: MemoryPlacement::default(),
        host_doorbells: Vec::new(),
        writable: None,
    };
    let by_thread = QueueSetOptions { doorbells: DoorbellAccess::HostThread, ..options.clone() };
    let last = u32::from(drive.0.granted_queue_pairs());
    let drives = [drive.clone()];
    for _ in 0..2 {
        let gate = Arc::new(Gate::new(&gpu).unwrap());
        // Two share the pinned doorbells; the third has none.
        let first = QueueSet::new(&gpu, &drives, &options, gate.clone()).unwrap();
        let mut second = QueueSet::new(&gpu, &drives, &options, gate.clone()).unwrap();
        let third = QueueSet::new(&gpu, &drives, &by_thread, gate.clone()).unwrap();
        let (a, b, c) = (first.descriptors()[0], second.descriptors()[0], third.descriptors()[0]);
        assert_eq!((a.queue_id, b.queue_id, c.queue_id), (last, last - 1, last - 2));
        assert_eq!((a.sq_tail - b.sq_tail, a.cq_head - b.cq_head, a.cq_head - a.sq_tail), (8, 8, 4));
        assert_eq!(c.cq_head - c.sq_tail, 128);
        drop((first, third));
        drive.0.reset(ResetKind::Controller).unwrap();
        assert!(second.is_poisoned() && gate.is_closed());
        second.recover().unwrap();
        assert!(!second.is_poisoned() && second.states().unwrap() == [Default::default()]);
    }
}

#[test]
fn kernels_find_the_gate_where_the_host_has_it() {
    let gpu = gpu_or_return!();
    let gate = Gate::new(&gpu).unwrap();
    let (_current, mut seen) = (gpu.enter().unwrap(), [0u8; 4]);
    for closed in [false, true] {
        if closed {
            gate.close();
        }
        let from = gate.address() + GATE_CLOSED as u64;
        // SAFETY: four bytes, from pinned memory as the GPU sees it.
        let code = unsafe { cudarc::driver::sys::cuMemcpyDtoH_v2(seen.as_mut_ptr().cast(), from, 4) };
        assert_eq!(code, cudarc::driver::sys::CUresult::CUDA_SUCCESS);
        assert_eq!(u32::from_le_bytes(seen), u32::from(closed));
    }
}
