//! Passes through GPU memory: rows are staged there and given back from there. Without a GPU it is skipped.

mod fixture;

use fastrand::Rng;
use fixture::{Fixture, KINDS};
use warprow_gpu_queues::{DeviceMemory, Gpu};
use warprow_passes::{CacheOptions, PassError, PassOptions, Passes};

const DIM: u32 = 40;
const ROW: usize = DIM as usize * 4;
/// More than are copied at once.
const ROWS: u64 = 60_000;

#[test]
fn rows_go_to_gpu_memory_and_come_back() {
    let gpu = match Gpu::open(0) {
        Ok(gpu) => gpu,
        Err(error) => return eprintln!("skipped: needs a GPU: {error}"),
    };
    for (kind, staged) in KINDS.into_iter().zip([true, false, true, false]) {
        let mut fixture = Fixture::new(kind, ROWS, DIM, 512, 9);
        let all: Vec<u64> = fixture.model.keys().copied().collect();
        let cache = CacheOptions { num_blocks: 1, target_hit_rate: 1.0, max_num_evict: 9 };
        let memory = ROWS * ROW as u64;
        let options = if staged { PassOptions::staged(memory) } else { PassOptions::cached(memory, cache) };
        let mut passes = Passes::open(&fixture.store, fixture::NAME, options).unwrap();
        let mut random = Rng::with_seed(3);
        for number in 0..3u8 {
            let keys: Vec<u64> = all.iter().copied().filter(|_| random.u8(..) < 200).collect();
            let pass = passes.stage(&fixture.keyset(keys)).unwrap();
            assert!(pass.bytes() > 4 << 20, "{} bytes: one part", pass.bytes());
            // Behind something else's, which stays.
            let offset = 4096;
            let bytes = pass.bytes();
            let memory = DeviceMemory::new(&gpu, offset + bytes as u64 + 64).unwrap();
            memory.write(0, &vec![0xa5; offset as usize]).unwrap();
            memory.write(offset + bytes as u64, &[0xa5; 64]).unwrap();
            pass.read_to_gpu(&memory, offset).unwrap();
            let mut found = vec![0; memory.bytes() as usize];
            memory.read(0, &mut found).unwrap();
            let (before, rest) = found.split_at(offset as usize);
            let (rows, behind) = rest.split_at(bytes);
            assert!(before.iter().chain(behind).all(|&byte| byte == 0xa5), "{kind:?}: what lies beside was changed");
            for (key, row) in pass.keys().iter().zip(rows.chunks_exact(ROW)) {
                assert!(fixture.model[key] == row, "{kind:?}, pass {number}, key {key}");
            }
            let small = DeviceMemory::new(&gpu, bytes as u64 - 1).unwrap();
            let refused = pass.read_to_gpu(&small, 0).unwrap_err();
            assert!(matches!(refused, PassError::GpuRoom { .. }), "{refused}");

            // Trained there.
            let trained: Vec<u8> = rows.iter().map(|byte| byte.wrapping_add(number + 1)).collect();
            memory.write(offset, &trained).unwrap();
            for (key, row) in pass.keys().iter().zip(trained.chunks_exact(ROW)) {
                fixture.model.insert(*key, row.to_vec());
            }
            passes.finish_from_gpu(pass, &memory, offset).unwrap();
        }
        drop(passes);
        fixture.reopen().check("after passes on the GPU");
    }
}
