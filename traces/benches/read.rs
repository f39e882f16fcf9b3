//! Reading traces: `cargo bench -p warprow-traces -- [KEYS]`. Files in memory's cache, one thread; every key is summed up.

use std::io::Write;
use std::time::Instant;

use warprow_traces::{Trace, TraceBlock};

fn main() {
    let keys = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(20_000_000usize);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let key = |at: usize| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 36;
    let write = |name: &str, fill: &dyn Fn(&mut dyn Write)| {
        let mut file = std::io::BufWriter::new(std::fs::File::create(path(name)).unwrap());
        fill(&mut file);
        file.flush().unwrap();
    };
    write("t.u64", &|file| (0..keys).for_each(|at| file.write_all(&key(at).to_le_bytes()).unwrap()));
    write("t.csv", &|file| {
        writeln!(file, "user,item").unwrap();
        (0..keys).for_each(|at| writeln!(file, "{},{}", at / 100, key(at)).unwrap());
    });
    write("t.norm", &|file| {
        let mut unit = |words: &[u32]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            file.write_all(&(bytes.len() as i32).to_le_bytes()).unwrap();
            file.write_all(&bytes).unwrap();
            file.write_all(&[bytes.iter().fold(0, |sum: u8, &byte| sum.wrapping_add(byte))]).unwrap();
        };
        let samples = keys / 26;
        unit(&[1, 0, samples as u32, 0, 1, 0, 13, 0, 26, 0, 0, 0, 0, 0, 0, 0]);
        for sample in 0..samples {
            let mut words = vec![0; 14];
            (0..26).for_each(|slot| words.extend([1, key(sample * 26 + slot) as u32]));
            unit(&words);
        }
    });
    for spec in ["t.u64", "t.csv:item", "t.csv:item,query=user", "t.norm"] {
        let spec = path(spec).display().to_string().parse().unwrap();
        let mut trace = Trace::open(&spec).unwrap();
        let mut block = TraceBlock::default();
        let mut read = 0usize;
        let mut sum = 0u64;
        let began = Instant::now();
        while trace.next_block(&mut block).unwrap() {
            read += block.keys().len();
            sum = block.keys().iter().fold(sum, |sum, &key| sum.wrapping_add(key));
        }
        let seconds = began.elapsed().as_secs_f64();
        assert_eq!(sum, (0..read).fold(0, |sum: u64, at| sum.wrapping_add(key(at))));
        println!(
            "{:<24} {read} keys of {} samples in {seconds:.2} s, {:.1} M keys/s",
            spec.path.file_name().unwrap().to_string_lossy(),
            trace.samples(),
            read as f64 / seconds / 1e6
        );
    }
}
