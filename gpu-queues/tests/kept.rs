//! With a GPU: memory that stays with CUDA while drives are played. One test: what a context keeps is the whole process's.

use std::collections::BTreeSet;

use warprow_gpu_queues::{DeviceMemory, Gpu, KeptMemory, MemoryKeeper, PinnedMemory, kept_memory};

/// While memory is kept it is used again, as zeros, and never more of it than was in use at one time; afterwards CUDA has
/// all of it.
#[test]
fn memory_that_is_kept_is_used_again_and_then_freed() {
    let gpu = match Gpu::open(0) {
        Ok(gpu) => gpu,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    drop((DeviceMemory::new(&gpu, 1 << 20).unwrap(), PinnedMemory::allocate(&gpu, 1 << 16).unwrap()));
    assert_eq!(kept_memory(&gpu), KeptMemory::default(), "nobody keeps any");
    let (keeper, other) = (MemoryKeeper::new(&gpu), MemoryKeeper::new(&gpu));
    let mut seen = BTreeSet::new();
    for turn in 0..50u64 {
        let device = [(); 2].map(|()| DeviceMemory::new(&gpu, (1 << 20) - 256 * (turn % 5)).unwrap());
        let pinned = PinnedMemory::allocate(&gpu, (1 << 16) - turn).unwrap();
        for memory in &device {
            let mut bytes = vec![1; memory.bytes() as usize];
            memory.read(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|&byte| byte == 0), "turn {turn}");
            memory.write(0, &vec![0xa5; bytes.len()]).unwrap();
            seen.insert(memory.address());
        }
        let mut bytes = vec![1; 1 << 16];
        pinned.memory().read(0, &mut bytes);
        assert!(bytes.iter().all(|&byte| byte == 0), "turn {turn}");
        pinned.memory().fill(0, 1 << 16, 0xa5);
    }
    let kept = keeper.kept();
    assert_eq!((kept.device, kept.pinned.0, seen.len()), ((2, 2 << 20), 1, 2), "{kept:?}");
    // Memory that somebody else has a handle of may be mapped for a drive.
    let pinned = PinnedMemory::allocate(&gpu, 1 << 16).unwrap();
    let (handle, address) = (pinned.memory().clone(), pinned.address());
    drop(pinned);
    let next = PinnedMemory::allocate(&gpu, 1 << 16).unwrap();
    assert_ne!((next.address(), next.memory().as_ptr()), (address, handle.as_ptr()));
    // It is still registered, and so can be pinned again.
    assert_eq!(PinnedMemory::new(&gpu, handle).unwrap().address(), address);
    drop((next, keeper));
    assert_ne!(kept_memory(&gpu), KeptMemory::default());
    drop(other);
    assert_eq!(kept_memory(&gpu), KeptMemory::default());
}
