//! Sources to machine code, by NVRTC.

use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::ptr;

use cudarc::nvrtc::sys::{self, nvrtcResult};

use crate::KernelError;
use crate::cache::Cache;
use crate::prebuilt;

const MAIN: &str = include_str!("../cuda/lookup.cu");
/// What it includes, by name.
const HEADERS: [(&str, &str); 46] = [
    ("queue_abi.h", warprow_gpu_queues::abi::HEADER),
    ("abi.h", include_str!("../cuda/abi.h")),
    ("order.cuh", include_str!("../cuda/order.cuh")),
    ("common.cuh", include_str!("../cuda/common.cuh")),
    ("cache.cuh", include_str!("../cuda/cache.cuh")),
    ("keys.cuh", include_str!("../cuda/keys.cuh")),
    ("listed.cuh", include_str!("../cuda/listed.cuh")),
    ("overlay.cuh", include_str!("../cuda/overlay.cuh")),
    ("bags.cuh", include_str!("../cuda/bags.cuh")),
    ("sample.cuh", include_str!("../cuda/sample.cuh")),
    ("ticket.cuh", include_str!("../cuda/ticket.cuh")),
    ("admit.cuh", include_str!("../cuda/admit.cuh")),
    ("locate.cuh", include_str!("../cuda/locate.cuh")),
    ("bitmap.cuh", include_str!("../cuda/bitmap.cuh")),
    ("sort.cuh", include_str!("../cuda/sort.cuh")),
    ("dedupe.cuh", include_str!("../cuda/dedupe.cuh")),
    ("block_sort.cuh", include_str!("../cuda/block_sort.cuh")),
    ("prepare.cuh", include_str!("../cuda/prepare.cuh")),
    ("crc.cuh", include_str!("../cuda/crc.cuh")),
    ("ring.cuh", include_str!("../cuda/ring.cuh")),
    ("gather.cuh", include_str!("../cuda/gather.cuh")),
    ("row_checks.cuh", include_str!("../cuda/row_checks.cuh")),
    ("row_reads.cuh", include_str!("../cuda/row_reads.cuh")),
    ("fetch.cuh", include_str!("../cuda/fetch.cuh")),
    ("numbers.cuh", include_str!("../cuda/numbers.cuh")),
    ("scales.cuh", include_str!("../cuda/scales.cuh")),
    ("elements.cuh", include_str!("../cuda/elements.cuh")),
    ("put_row.cuh", include_str!("../cuda/put_row.cuh")),
    ("expand_rows.cuh", include_str!("../cuda/expand_rows.cuh")),
    ("served.cuh", include_str!("../cuda/served.cuh")),
    ("addends.cuh", include_str!("../cuda/addends.cuh")),
    ("long_bags.cuh", include_str!("../cuda/long_bags.cuh")),
    ("single_bags.cuh", include_str!("../cuda/single_bags.cuh")),
    ("expand_bags.cuh", include_str!("../cuda/expand_bags.cuh")),
    ("finish.cuh", include_str!("../cuda/finish.cuh")),
    ("expand.cuh", include_str!("../cuda/expand.cuh")),
    ("expand_unwritten.cuh", include_str!("../cuda/expand_unwritten.cuh")),
    ("direct.cuh", include_str!("../cuda/direct.cuh")),
    ("prefetch.cuh", include_str!("../cuda/prefetch.cuh")),
    ("few.cuh", include_str!("../cuda/few.cuh")),
    ("cached.cuh", include_str!("../cuda/cached.cuh")),
    ("cache_pin.cuh", include_str!("../cuda/cache_pin.cuh")),
    ("cache_sweep.cuh", include_str!("../cuda/cache_sweep.cuh")),
    ("adopt.cuh", include_str!("../cuda/adopt.cuh")),
    ("ring_test.cuh", include_str!("../cuda/ring_test.cuh")),
    ("ngrams.cuh", include_str!("../cuda/ngrams.cuh")),
];
/// Sums must be those of the host: nothing is fused, nothing flushed to zero.
const OPTIONS: [&str; 4] = ["--std=c++17", "--fmad=false", "--ftz=false", "-lineinfo"];

/// A GPU architecture: compute capability 9.0 is `sm_90`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Arch {
    /// Major version.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
}

impl Arch {
    /// The architecture as PTX is compiled for it, such as `compute_90`: a driver compiles that for any GPU of this or a later one.
    pub(crate) fn portable(self) -> String {
        format!("compute_{}{}", self.major, self.minor)
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.major, self.minor)
    }
}

/// A program of NVRTC, destroyed in the end.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: it was created and is destroyed once.
        unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

/// The code of the kernels for `arch`: prebuilt (machine code, or PTX), or from the cache on disk, else compiled (a few seconds) and put there. Nothing
/// but a missing NVRTC stands in the way of a machine without a GPU.
pub fn compile(arch: Arch, driver_version: i32) -> Result<Vec<u8>, KernelError> {
    if arch.major < 8 {
        return Err(KernelError::TooOld { major: arch.major, minor: arch.minor });
    }
    if let Some(code) = prebuilt::code(arch) {
        return Ok(code);
    }
    // SAFETY: it looks for a library and calls nothing in it.
    let nvrtc = unsafe { sys::is_culib_present() };
    let version = if nvrtc { version() } else { "none".to_owned() };
    let arch_name = arch.to_string();
    let driver = driver_version.to_string();
    let cache = Cache::of(sources().chain([arch_name.as_str(), &driver]), &arch_name);
    if let Some(code) = cache.as_ref().and_then(Cache::get) {
        return Ok(code);
    }
    if !nvrtc {
        return Err(KernelError::NoNvrtc { arch: arch_name, cache: crate::cache_directory() });
    }
    let (code, _) = run(MAIN, &[], &OPTIONS, &arch_name, &version)?;
    if let Some(cache) = cache {
        cache.put(&code);
    }
    Ok(code)
}

/// All that the machine code depends on, but for the architecture.
pub(crate) fn sources<'a>() -> impl Iterator<Item = &'a str> {
    let texts = HEADERS.iter().flat_map(|&(name, text)| [name, text]).chain([MAIN]).chain(OPTIONS);
    texts.map(|text| -> &'a str { text })
}

/// Compiles the look-up's kernels for `target`, wherever else their code lies: machine code for a `sm_…`, PTX for a `compute_…`.
pub(crate) fn compile_anew(target: &str) -> Result<Vec<u8>, KernelError> {
    // SAFETY: it looks for a library and calls nothing in it.
    if !unsafe { sys::is_culib_present() } {
        return Err(KernelError::NoNvrtc { arch: target.to_owned(), cache: None });
    }
    Ok(run(MAIN, &[], &OPTIONS, target, &version())?.0)
}

/// The machine code of other kernels for `arch`, which may include the look-up's headers and `headers` (name and text). Nothing is
/// cached.
pub fn compile_with(
    main: &str,
    headers: &[(&str, &str)],
    options: &[&str],
    arch: Arch,
) -> Result<Vec<u8>, KernelError> {
    let arch = arch.to_string();
    // SAFETY: it looks for a library and calls nothing in it.
    if !unsafe { sys::is_culib_present() } {
        return Err(KernelError::NoNvrtc { arch, cache: None });
    }
    Ok(run(main, headers, options, &arch, &version())?.0)
}

fn version() -> String {
    let mut major = 0;
    let mut minor = 0;
    // SAFETY: NVRTC is there; it stores two numbers.
    unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    format!("{major}.{minor}")
}

/// Code, and what the compiler said. PTX ends with a zero byte, as CUDA wants to have it.
fn run(
    main: &str,
    headers: &[(&str, &str)],
    options: &[&str],
    arch: &str,
    version: &str,
) -> Result<(Vec<u8>, String), KernelError> {
    let failed = |reason: String| KernelError::Compile { arch: arch.to_owned(), version: version.to_owned(), reason };
    let text = |text: &str| CString::new(text).map_err(|_| failed("a source has a zero byte".to_owned()));
    let check = |what: &str, result: nvrtcResult| {
        if result == nvrtcResult::NVRTC_SUCCESS {
            return Ok(());
        }
        // SAFETY: NVRTC answers with a constant string, whatever the result.
        let why = unsafe { CStr::from_ptr(sys::nvrtcGetErrorString(result)) };
        Err(failed(format!("{what}: {}", why.to_string_lossy())))
    };
    let main = text(main)?;
    let all = || HEADERS.iter().chain(headers);
    let names = all().map(|(name, _)| text(name)).collect::<Result<Vec<_>, _>>()?;
    let bodies = all().map(|(_, body)| text(body)).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    let bodies: Vec<*const c_char> = bodies.iter().map(|body| body.as_ptr()).collect();
    let options = options.iter().map(|option| text(option)).chain([text(&format!("--gpu-architecture={arch}"))]);
    let options = options.collect::<Result<Vec<_>, _>>()?;
    let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();

    let mut program = Program(ptr::null_mut());
    // SAFETY: all strings end with a zero and outlive the call; the counts are those of the arrays.
    check("creating the program", unsafe {
        sys::nvrtcCreateProgram(
            &mut program.0,
            main.as_ptr(),
            c"main.cu".as_ptr(),
            bodies.len() as i32,
            bodies.as_ptr(),
            names.as_ptr(),
        )
    })?;
    // SAFETY: as above; the program exists.
    let compiled = unsafe { sys::nvrtcCompileProgram(program.0, options.len() as i32, options.as_ptr()) };
    if compiled != nvrtcResult::NVRTC_SUCCESS {
        return Err(failed(log(&program)));
    }
    let is_portable = arch.starts_with("compute_");
    let mut size = 0;
    // SAFETY: the program was compiled: for a real architecture there is machine code, and PTX in any case.
    check("asking for the size of the code", unsafe {
        if is_portable {
            sys::nvrtcGetPTXSize(program.0, &mut size)
        } else {
            sys::nvrtcGetCUBINSize(program.0, &mut size)
        }
    })?;
    let mut code = vec![0u8; size];
    // SAFETY: the buffer has the size that NVRTC asked for.
    check("taking the code", unsafe {
        if is_portable {
            sys::nvrtcGetPTX(program.0, code.as_mut_ptr().cast())
        } else {
            sys::nvrtcGetCUBIN(program.0, code.as_mut_ptr().cast())
        }
    })?;
    Ok((code, log(&program)))
}

/// What the compiler said.
fn log(program: &Program) -> String {
    let mut size = 0;
    // SAFETY: the program exists.
    if unsafe { sys::nvrtcGetProgramLogSize(program.0, &mut size) } != nvrtcResult::NVRTC_SUCCESS {
        return "it gives no reason".to_owned();
    }
    let mut text = vec![0u8; size.max(1)];
    // SAFETY: the buffer has the size that NVRTC asked for.
    unsafe { sys::nvrtcGetProgramLog(program.0, text.as_mut_ptr().cast()) };
    String::from_utf8_lossy(&text).trim_end_matches('\0').trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_include_is_embedded() {
        for (name, text) in HEADERS.iter().chain(&[("lookup.cu", MAIN)]) {
            for line in text.lines() {
                let Some(included) = line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"')) else {
                    assert!(!line.starts_with("#include"), "{name}: {line}");
                    continue;
                };
                assert!(HEADERS.iter().any(|(header, _)| *header == included), "{name} includes {included}");
            }
        }
    }

    #[test]
    fn ordered_accesses_are_in_one_header() {
        for (name, text) in HEADERS.iter().chain(&[("lookup.cu", MAIN)]) {
            assert!(*name == "order.cuh" || !text.contains("asm"), "{name} has assembly of its own");
            assert!(!text.contains("volatile") || *name == "order.cuh", "{name} uses volatile");
        }
    }

    #[test]
    fn old_gpus_are_refused() {
        let error = compile(Arch { major: 7, minor: 5 }, 0).unwrap_err().to_string();
        assert!(error.contains("7.5") && error.contains("8.0"), "{error}");
    }

    /// Architectures, and how many bytes of registers each kernel may spill there.
    const BUILT: [(Arch, u32); 3] =
        [(Arch { major: 8, minor: 0 }, 128), (Arch { major: 9, minor: 0 }, 80), (Arch { major: 10, minor: 0 }, 80)];

    /// Kernels by name, with the bytes that they spill: what `ptxas -v` says.
    fn spills(log: &str) -> Vec<(&str, u32)> {
        let mut kernels = Vec::new();
        let mut kernel = "";
        for line in log.lines() {
            if let Some((_, name)) = line.split_once("Function properties for ") {
                kernel = name.trim();
            } else if line.contains("bytes spill stores") && kernel.starts_with("warprow_") {
                let bytes = |what| {
                    let before = line.split_once(what).unwrap().0;
                    before.rsplit(' ').next().unwrap().parse::<u32>().unwrap()
                };
                kernels.push((kernel, bytes(" bytes spill stores").max(bytes(" bytes spill loads"))));
            }
        }
        kernels
    }

    /// With `WARPROW_CUBINS` set to a folder, leaves there what `tests/cubins.sh` disassembles.
    #[test]
    fn compiles_for_every_architecture() {
        let folder = std::env::var_os("WARPROW_CUBINS").map(std::path::PathBuf::from);
        // SAFETY: it looks for a library and calls nothing in it.
        if !unsafe { sys::is_culib_present() } {
            assert!(folder.is_none(), "libnvrtc cannot be found");
            return eprintln!("skipped: compiling the kernels needs libnvrtc");
        }
        let keep = |name: String, code: &[u8]| {
            folder.iter().for_each(|folder| std::fs::write(folder.join(&name), code).unwrap());
        };
        let verbose = [&OPTIONS[..], &["--ptxas-options=-v"]].concat();
        for (arch, budget) in BUILT {
            let (code, log) = run(MAIN, &[], &verbose, &arch.to_string(), &version()).unwrap();
            assert_eq!(code[..4], *b"\x7fELF");
            let kernels = spills(&log);
            let declared = HEADERS.iter().map(|(_, text)| text.matches("\nKERNEL ").count()).sum::<usize>();
            assert_eq!(kernels.len(), declared, "{log}");
            println!("{arch}: bytes spilled: {kernels:?}");
            for (kernel, bytes) in kernels {
                assert!(bytes <= budget, "{kernel} spills {bytes} bytes on {arch}, where {budget} are allowed");
            }
            keep(format!("{arch}.cubin"), &code);
        }
        // The compiler accepts this for an architecture that cannot decode it: a disassembler must refuse it.
        let illegal = r#"extern "C" __global__ void f() { asm volatile("fence.release.sys;" ::: "memory"); }"#;
        let (code, _) = run(illegal, &[], &OPTIONS, "sm_80", &version()).unwrap();
        keep("illegal.cubin".to_owned(), &code);
    }
}
