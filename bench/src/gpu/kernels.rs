//! The benchmarks' own kernels: rivals, fresh ids, the comparison of answers.

use std::sync::Arc;
use std::time::Duration;

use warprow_gpu_queues::Gpu;

use super::module::{Kernel, Module};
use super::stream::Stream;

const SOURCE: &str =
    concat!(include_str!("cuda/content.cuh"), include_str!("cuda/tools.cu"), include_str!("cuda/rivals.cu"));

/// Threads of a block.
const THREADS: u32 = 256;

/// The kernels, compiled for the GPU that is there.
#[derive(Debug)]
pub struct Kernels {
    module: Module,
    hold: Kernel,
    draw: Kernel,
    check_rows: Kernel,
    check_sums: Kernel,
    gather16: Kernel,
    gather4: Kernel,
}

/// Rows that a rival gathers.
#[derive(Clone, Copy, Debug)]
pub struct Gather {
    /// Where the first row lies.
    pub table: u64,
    /// Bytes from a row to the next in the table, a multiple of 16.
    pub stride: u64,
    /// The ids (i64).
    pub ids: u64,
    /// Where rows go, one after another.
    pub out: u64,
    /// How many.
    pub count: u64,
    /// Bytes of a row, a multiple of 4.
    pub row_bytes: u64,
}

impl Kernels {
    /// Compiles and loads them.
    pub fn new(gpu: &Arc<Gpu>) -> anyhow::Result<Arc<Self>> {
        let module = Module::new(gpu, SOURCE, &[])?;
        Ok(Arc::new(Self {
            hold: module.kernel(c"hold")?,
            draw: module.kernel(c"draw")?,
            check_rows: module.kernel(c"check_rows")?,
            check_sums: module.kernel(c"check_sums")?,
            gather16: module.kernel(c"gather16")?,
            gather4: module.kernel(c"gather4")?,
            module,
        }))
    }

    /// The GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        self.module.gpu()
    }

    /// Holds `stream` until the word at `words` is `turn`; past `limit` it goes on, and says so in the next word.
    pub(super) fn hold(&self, stream: &Stream, words: u64, turn: u32, limit: Duration) -> anyhow::Result<()> {
        // SAFETY: two words of pinned memory, which the stream keeps.
        unsafe { self.module.launch(self.hold, stream, 1, 1, [words, turn.into(), limit.as_nanos() as u64, words + 4]) }
    }

    /// Writes `count` ids, `each` for every table in turn, in the order of their draws from `seed`.
    ///
    /// # Safety
    /// `ids` has room for them, `tables` a `Table` for each.
    pub(super) unsafe fn draw(
        &self,
        stream: &Stream,
        ids: u64,
        count: u64,
        each: u64,
        tables: u64,
        seed: u64,
    ) -> anyhow::Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            self.module.launch(self.draw, stream, self.blocks(count), THREADS, [ids, count, each.max(1), tables, seed])
        }
    }

    /// Compares rows with what they must be.
    ///
    /// # Safety
    /// As the kernel's description says: the parameters are its, in its order.
    pub(super) unsafe fn check_rows(&self, stream: &Stream, work: u64, parameters: [u64; 8]) -> anyhow::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.module.launch(self.check_rows, stream, self.blocks(work), THREADS, parameters) }
    }

    /// Compares sums with what they must be.
    ///
    /// # Safety
    /// As the kernel's description says: the parameters are its, in its order.
    pub(super) unsafe fn check_sums(&self, stream: &Stream, work: u64, parameters: [u64; 9]) -> anyhow::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.module.launch(self.check_sums, stream, self.blocks(work), THREADS, parameters) }
    }

    /// Gathers rows as PyTorch-Direct does: loads through unified addressing in the order of the request, without deduplication;
    /// of 16 bytes a thread where rows are whole 16 bytes, else of 4.
    ///
    /// # Safety
    /// The table has every row that is asked for, and the output room for all.
    pub unsafe fn gather(&self, stream: &Stream, gather: &Gather) -> anyhow::Result<()> {
        let &Gather { table, stride, ids, out, count, row_bytes } = gather;
        let (kernel, unit) = if row_bytes.is_multiple_of(16) { (self.gather16, 16) } else { (self.gather4, 4) };
        let len = row_bytes / unit;
        let parameters = [table, stride / unit, ids, out, count, len];
        // SAFETY: the caller's promise; tables and outputs are aligned to 128.
        unsafe { self.module.launch(kernel, stream, self.blocks(count * len), THREADS, parameters) }
    }

    fn blocks(&self, work: u64) -> u32 {
        work.div_ceil(THREADS.into()).clamp(1, u64::from(self.gpu().sms()) * 16) as u32
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use warprow_layout::DType;
    use warprow_workload::{ContentOracle, TableContent};

    use warprow_kernels::Arch;

    use super::*;
    use crate::gpu::module::code;
    use crate::gpu::{dedupe, elements, resident};

    /// With `WARPROW_CUBINS` set to a folder, leaves there what `tests/cubins.sh` disassembles.
    #[test]
    fn they_compile_for_every_architecture() {
        let folder = std::env::var_os("WARPROW_CUBINS").map(std::path::PathBuf::from);
        // SAFETY: it looks for a library and calls nothing in it.
        if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
            assert!(folder.is_none(), "libnvrtc cannot be found");
            return eprintln!("skipped: compiling the benchmarks' kernels needs libnvrtc");
        }
        for major in [8, 9, 10] {
            for (name, main, headers) in [
                ("tools", SOURCE, &[][..]),
                ("resident", resident::SOURCE, &resident::HEADERS[..]),
                ("dedupe", dedupe::fixture::SOURCE, &dedupe::fixture::HEADERS[..]),
                ("decoded", elements::decoded::SOURCE, &[][..]),
            ] {
                let arch = Arch { major, minor: 0 };
                let code = code(main, headers, arch).unwrap();
                assert_eq!(code[..4], *b"\x7fELF", "{name} for {arch}");
                folder
                    .iter()
                    .for_each(|folder| std::fs::write(folder.join(format!("{name}.{arch}.cubin")), &code).unwrap());
            }
        }
    }

    /// The header that the comparing kernels are made of, compiled for this machine, against the oracle.
    #[test]
    fn the_gpu_computes_the_oracles_content() {
        let works =
            |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success());
        let Some(compiler) = ["c++", "g++", "clang++"].into_iter().find(works) else {
            return eprintln!("skipped: a C++ compiler (c++, g++ or clang++) is needed");
        };
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("content.cpp");
        let program = folder.path().join("content");
        let main = "#include <cstdio>\n#include <cstdlib>\n\
            int main(int, char** a) { u64 key = strtoull(a[1], 0, 10), id = strtoull(a[2], 0, 10), n = strtoull(a[3], 0, 10);\n\
            for (u64 i = 0; i < n; i++) printf(\"%llu\\n\", row_word(row_start(key, id), i)); }\n";
        std::fs::write(&source, format!("{}{main}", include_str!("cuda/content.cuh"))).unwrap();
        let built = Command::new(compiler).arg(&source).arg("-o").arg(&program).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        for (seed, table, id) in [(1, 0, 0), (7, 25, 123_456_789), (u64::MAX, 3, (1 << 40) + 5)] {
            let oracle = ContentOracle::new(seed, table, u64::MAX, 64, DType::F32);
            let mut row = vec![0; oracle.row_bytes()];
            oracle.fill(id, &mut row);
            let wanted: String =
                row.as_chunks().0.iter().map(|word| format!("{}\n", u64::from_le_bytes(*word))).collect();
            let arguments = [oracle.key().to_string(), id.to_string(), "32".to_owned()];
            let got = Command::new(&program).args(arguments).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&got.stdout), wanted, "seed {seed}, table {table}, id {id}");
        }
    }
}
