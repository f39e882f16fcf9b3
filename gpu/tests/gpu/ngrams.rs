//! Ids that a kernel makes of tokens, and look-ups of them in the same graph.

use warprow_gpu::{GpuError, GpuTokens, IdType};
use warprow_gpu_queues::DeviceMemory;
use warprow_keys::{DEAD_TOKEN, NgramHash, NgramRules, TokenBatch};
use warprow_lookup::{BoundsCheck, MissingPolicy};

use crate::fixture::{Fixture, Flat, ROWS, Stream, gpu, patient};

/// Tokens that have words.
const VOCABULARY: u32 = 3000;

/// The rules of a model whose table is the fixture's: 3 orders of 2 heads.
fn small() -> NgramHash {
    let words = (0..VOCABULARY).map(|token| if token == 77 { DEAD_TOKEN } else { token * 31 % 1000 });
    let hash = NgramHash::new(NgramRules {
        multipliers: vec![1_234_567, 7_654_321, 999_331, 10_007],
        heads_per_order: 2,
        first_prime: 700,
        table: 1,
        fill: 2,
        stop: Some(5),
        words: Some(words.collect()),
    });
    let hash = hash.unwrap();
    assert!(hash.rows() < ROWS);
    hash
}

fn bytes_of(numbers: &[i64], wide: bool) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()[..if wide { 8 } else { 4 }].to_vec()).collect()
}

fn numbers_of(bytes: &[u8], wide: bool) -> Vec<i64> {
    let number = |bytes: &[u8]| match wide {
        true => i64::from_le_bytes(bytes.try_into().unwrap()),
        false => i32::from_le_bytes(bytes.try_into().unwrap()).into(),
    };
    bytes.chunks(if wide { 8 } else { 4 }).map(number).collect()
}

/// Of any model, the kernel gives the ids that the host gives.
#[test]
fn ids_are_those_of_the_host() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let executor = fixture.attach(&gpu, patient());
    let stream = Stream::new(&gpu);
    let mut rng = fastrand::Rng::with_seed(4);
    let words: Vec<u32> = (0..129_280).map(|token| if token == 99 { DEAD_TOKEN } else { token * 7 % 99_092 }).collect();
    let engram = |table| NgramHash::new(NgramRules::deepseek_v41_flash(table, words.clone().into()).unwrap()).unwrap();
    let qwen = NgramHash::new(NgramRules::qwen38_flash_next()).unwrap();
    let rank = engram(1).with_heads(18..27).unwrap();
    let row = rank.head_rows().start;
    let hashes = [qwen, engram(0), engram(1), rank.with_first_row(row).unwrap(), small()];
    for (round, count) in [1usize, 4, 64, 700, 5000].into_iter().enumerate() {
        for hash in &hashes {
            let on_gpu = executor.ngram_hash(hash).unwrap();
            let mut token = || [248_044, 99, -1, rng.i64(0..129_280), rng.i64(0..129_280)][rng.usize(0..5)];
            let tokens: Vec<i64> = (0..count).map(|_| token()).collect();
            let sequences = count.min(33);
            let kept: Vec<i64> = (0..sequences * (hash.order() - 1)).map(|_| token()).collect();
            let mut starts: Vec<u32> = (0..=sequences).map(|_| rng.u32(0..=count as u32)).collect();
            starts.sort_unstable();
            let (newest_first, wide, wide_ids) = (round % 2 == 0, round % 3 != 0, round % 2 != 0);
            let batch = TokenBatch { tokens: &tokens, starts: &starts, history: &kept, newest_first };
            let mut expected = vec![0; count * hash.columns().len()];
            hash.ids(&batch, &mut expected).unwrap();
            let there = DeviceMemory::holding(&gpu, &bytes_of(&tokens, wide)).unwrap();
            let kept = DeviceMemory::holding(&gpu, &bytes_of(&kept, wide)).unwrap();
            let starts: Vec<u8> = starts.iter().flat_map(|start| start.to_le_bytes()).collect();
            let starts = DeviceMemory::holding(&gpu, &starts).unwrap();
            let id_bytes = if wide_ids { 8 } else { 4 };
            let ids = DeviceMemory::new(&gpu, (expected.len() * id_bytes) as u64).unwrap();
            let integers = |wide| if wide { IdType::I64 } else { IdType::I32 };
            let tokens = GpuTokens::new(there.address(), integers(wide), count)
                .with_starts(starts.address(), sequences as u32)
                .with_history(kept.address(), newest_first);
            // SAFETY: all of it lives until the stream was waited for.
            unsafe { on_gpu.launch(stream.0, &tokens, ids.address(), integers(wide_ids)) }.unwrap();
            stream.wait(&gpu);
            let mut given = vec![0; expected.len() * id_bytes];
            ids.read(0, &mut given).unwrap();
            assert!(numbers_of(&given, wide_ids) == expected, "round {round}, {:?}", hash.columns());
        }
    }
}

/// A graph hashes a step's tokens, fetches their rows ahead and looks them up; tokens, and how many there are, change between its runs.
#[test]
fn tokens_become_rows_in_one_graph() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(2);
    let hash = small();
    let columns = hash.columns().len();
    const STEP: usize = 20;
    for (one_kernel, dram) in [(128, 0), (0, 0), (0, 300_000)] {
        let options = patient().with_one_kernel_ids(one_kernel).with_dram_bytes(dram);
        let executor = fixture.attach(&gpu, options);
        let on_gpu = executor.ngram_hash(&hash).unwrap();
        let options = Fixture::options(1).with_missing(MissingPolicy::Zero).with_bounds(BoundsCheck::Ignore);
        let plan = executor.plan(&Fixture::features(), options.with_prefetch()).unwrap();
        let (slot, stream) = (plan.slot().unwrap(), Stream::new(&gpu));
        let tokens = DeviceMemory::new(&gpu, (STEP * 4) as u64).unwrap();
        let starts = DeviceMemory::new(&gpu, (STEP as u64 + 1) * 4).unwrap();
        let kept = DeviceMemory::new(&gpu, (STEP * 3 * 4) as u64).unwrap();
        let mut flat = Flat::new(&gpu, vec![0; STEP * columns]);
        let mut ticket = None;
        let graph = stream.capture(&gpu, || {
            let batch = GpuTokens::new(tokens.address(), IdType::I32, STEP)
                .with_starts(starts.address(), STEP as u32)
                .with_history(kept.address(), true);
            // SAFETY: all of it lives until the graph is gone.
            unsafe { on_gpu.launch(stream.0, &batch, flat.ids_on_gpu(), IdType::I64) }.unwrap();
            let prefetched = flat.prefetch(&slot, &stream).unwrap();
            ticket = Some(flat.launch_prefetched(&slot, prefetched, &stream).unwrap());
        });
        let ticket = ticket.unwrap();
        let mut rng = fastrand::Rng::with_seed(one_kernel + dram);
        for run in 1..=10 {
            // Each sequence gives one token, as decoding does; those behind the last one are padding.
            let sequences = rng.usize(1..=STEP);
            let mut token = || [5, 77, rng.i64(0..VOCABULARY.into()), rng.i64(0..VOCABULARY.into())][rng.usize(0..4)];
            let now: Vec<i64> = (0..STEP).map(|_| token()).collect();
            let before: Vec<i64> = (0..STEP * 3).map(|_| token()).collect();
            let begin: Vec<u32> = (0..=STEP).map(|number| number.min(sequences) as u32).collect();
            tokens.write(0, &bytes_of(&now, false)).unwrap();
            kept.write(0, &bytes_of(&before, false)).unwrap();
            starts.write(0, &begin.iter().flat_map(|start| start.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
            let batch = TokenBatch { tokens: &now, starts: &begin, history: &before, newest_first: true };
            let mut ids = vec![0; STEP * columns];
            hash.ids(&batch, &mut ids).unwrap();
            flat.reset();
            stream.launch(&gpu, &graph);
            stream.wait(&gpu);
            let report = ticket.poll().expect("it has ended").unwrap();
            ticket.check().unwrap();
            flat.ids = ids;
            let padding = flat.check(&fixture, &(one_kernel, dram, run));
            assert_eq!(padding, vec![-1; (STEP - sequences) * columns]);
            assert_eq!((report.runs, report.padding), (run, padding.len() as u64), "{report:?}");
        }
    }
}

/// What does not fit is refused before anything is launched.
#[test]
fn what_does_not_fit_is_refused() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let executor = fixture.attach(&gpu, patient());
    let on_gpu = executor.ngram_hash(&small()).unwrap();
    let stream = Stream::new(&gpu);
    let memory = DeviceMemory::new(&gpu, 6 * 8 * 10).unwrap();
    let at = memory.address();
    let refused = |batch: &GpuTokens, ids: u64, id_type: IdType, what: &str| {
        // SAFETY: nothing is launched, as is looked at below.
        let answer = unsafe { on_gpu.launch(stream.0, batch, ids, id_type) };
        assert!(matches!(&answer, Err(GpuError::Invalid { what: it, .. }) if *it == what), "{answer:?} for {what}");
    };
    let batch = GpuTokens::new(at, IdType::I64, 10);
    refused(&GpuTokens { token_type: IdType::U32, ..batch }, at, IdType::I64, "the tokens");
    refused(&GpuTokens { count: 100, ..batch }, at, IdType::I64, "the tokens");
    refused(&GpuTokens { count: 11, ..batch }, at, IdType::I64, "the ids");
    refused(&batch, at, IdType::U64, "the ids");
    refused(&batch, 0, IdType::I64, "the ids");
    refused(&batch, at + 4, IdType::I64, "the ids");
    refused(&batch.with_starts(at, 1 << 20), at, IdType::I64, "the starts of sequences");
    refused(&batch.with_starts(at, 40).with_history(at, true), at, IdType::I64, "the history");
    let wide = NgramHash::new(NgramRules { first_prime: 1 << 31, ..small().rules().clone() }).unwrap();
    let wide = executor.ngram_hash(&wide).unwrap();
    // SAFETY: as above.
    let answer = unsafe { wide.launch(stream.0, &batch, at, IdType::I32) };
    assert!(matches!(answer, Err(GpuError::Invalid { what: "the ids", .. })), "{answer:?}");
    stream.wait(&gpu);
    let mut bytes = vec![1; 6 * 8 * 10];
    memory.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 0));
    // SAFETY: the memory lives until the stream was waited for; no token means nothing to write.
    unsafe { on_gpu.launch(stream.0, &GpuTokens::new(0, IdType::I32, 0), 0, IdType::I32) }.unwrap();
}
