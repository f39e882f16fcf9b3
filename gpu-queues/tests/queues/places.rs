//! Where the parts of a queue lie: what a drive writes in one memory, and doorbells in mapped doorbell registers alone.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use warprow_dma::{DmaMemory, Function, MemoryKind, PAGE, SystemClock};
use warprow_driver::{Controller, ControllerOptions};
use warprow_gpu_queues::abi::{DOORBELL_MMIO, LANES, QueueDescriptor};
use warprow_gpu_queues::{
    DoorbellAccess, DriveWritable, DriveWritableBlock, Gate, GpuQueueError, QueueSet, QueueSetOptions,
};

use crate::in_bar::InBar;
use crate::{Fixture, LONG, drive, options};

/// Memory that drives write to, with what was taken of it.
#[derive(Debug, Default)]
struct Noted(Mutex<Vec<Range<u64>>>);

impl DriveWritable for Noted {
    fn allocate(&self, _: &Arc<dyn Function>, bytes: usize) -> Result<DriveWritableBlock, GpuQueueError> {
        let memory = DmaMemory::allocate(bytes.next_multiple_of(PAGE), MemoryKind::Auto)?;
        let address = memory.as_ptr() as u64;
        self.0.lock().unwrap().push(address..address + memory.len() as u64);
        Ok(DriveWritableBlock { memory, address, hold: None, owner: Arc::new(()) })
    }
}

fn lies_in(block: &Range<u64>, address: u64, bytes: u64) -> bool {
    block.contains(&address) && address + bytes <= block.end
}

fn completions(queue: &QueueDescriptor) -> (u64, u64) {
    (queue.cq, u64::from(queue.cq_size) * 16)
}

fn rows(queue: &QueueDescriptor) -> (u64, u64) {
    (queue.landing, u64::from(LANES * queue.batches * queue.landing_stride))
}

/// A completion in another memory than its rows could be seen before them: nothing orders writes to two memories.
#[test]
fn completions_and_rows_of_a_queue_lie_in_one_memory() {
    for landing_stride in [512, 16384] {
        let noted = Arc::new(Noted::default());
        let options = QueueSetOptions { writable: Some(noted.clone()), landing_stride, ..options(2, LONG) };
        let fixture = Fixture::of(2, LONG, &options);
        let blocks = noted.0.lock().unwrap().clone();
        assert_eq!(blocks.len(), 2, "one for each queue");
        for (queue, block) in fixture.set.descriptors().iter().zip(&blocks) {
            for (address, bytes) in [completions(queue), rows(queue)] {
                assert!(lies_in(block, address, bytes), "{address:#x} is not in {block:x?}: {queue:?}");
            }
            assert!(!block.contains(&queue.sq), "drives only read submission queues: {queue:?}");
        }
        if landing_stride == 512 {
            fixture.assert_reads(&(0..1500).collect::<Vec<u64>>());
        }
    }
}

/// The page before the doorbells has CC. A GPU gets no address in it, and none behind what is mapped.
#[test]
fn kernels_get_addresses_of_mapped_doorbells_alone() {
    let soft = drive(0, LONG).soft;
    let mapped = soft.doorbell_memory();
    let begin = mapped.as_ptr() as u64;
    let registers = begin..begin + PAGE as u64;
    let function = Arc::new(InBar(soft.clone(), Some(PAGE)));
    let options_of = ControllerOptions { queue_pairs: 60, ..ControllerOptions::default() };
    let controller = Controller::open(function, Arc::new(SystemClock::new()), options_of).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let options = QueueSetOptions { doorbells: DoorbellAccess::Registers, ..options(1, LONG) };
    let mut sets = Vec::new();
    for _ in 0..20 {
        let gate = Arc::new(Gate::on_host().unwrap());
        let set = QueueSet::on_host(&[(controller.clone(), namespace.clone())], &options, gate).unwrap();
        let queue = set.descriptors()[0];
        assert_eq!(queue.doorbell_kind, DOORBELL_MMIO);
        // NVMe PCIe Transport 1.0, 3.1.2: the doorbells of queue y are at 1000h + 2y and 2y + 1 strides of 4 bytes here.
        let wanted = [0, 4].map(|within| begin + 8 * u64::from(queue.queue_id) + within);
        assert_eq!([queue.sq_tail, queue.cq_head], wanted, "{queue:?}");
        assert!([queue.sq_tail, queue.cq_head].iter().all(|&at| lies_in(&registers, at, 4)), "{queue:?}");
        sets.push(set);
    }
}
