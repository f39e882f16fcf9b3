//! Builds the shim with the C++ compiler that is there, loads it, runs kernels.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use std::{env, fs};

use libloading::Library;
use warprow_gpu_queues::abi::{LANES, RingReads};
use warprow_gpu_queues::{RingLaunchError, RingTest, RingTestError, RingTestReport};
use warprow_kernels::abi::{Adoption, CachePin, CacheSweep, Lookup, NgramTokens, Update};

/// Where the C++ and CUDA sources are, from this package on.
const FOLDERS: [&str; 2] = [".", "../cuda"];
pub const OPTIONS: [&str; 8] = [
    "-std=c++17",
    "-fPIC",
    // Kernels see memory as words of several widths.
    "-fno-strict-aliasing",
    // Sums are rounded after each operation.
    "-ffp-contract=off",
    "-DWARPROW_HOST",
    // Nothing is thrown, and nobody unwinds a lane's stack.
    "-fno-exceptions",
    "-fno-asynchronous-unwind-tables",
    // All lanes of a library run on one thread.
    "-fno-threadsafe-statics",
];
/// A GPU does not forgive what an x86 does.
const CHECKS: &str = "-fsanitize=alignment,null,shift,integer-divide-by-zero";
/// For kernels that are run many times.
const OPTIMISED: &str = "-O1";
/// For kernels with a bug, which are built for a few runs: building them takes a third of the time.
const UNOPTIMISED: &str = "-O0";
/// For the scheduler, whatever is done to the kernels.
const OF_SCHEDULER: &str = "-O2";
/// Nobody outside a library calls what is in it, but what says so.
const HIDDEN: &str = "-fvisibility=hidden";
/// The scheduler's source, and what it includes.
const SCHEDULER: [&str; 4] = ["simt.cpp", "simt.h", "order.cuh", "queue_abi.h"];
/// Processor time that a kernel may take. It is not real time, because that also depends on what else the machine does.
const LIMIT_NS: u64 = 60_000_000_000;
/// Processor time that a kernel of the program itself may take: it runs in a guest, whose processor is emulated.
#[cfg(kernels_linked)]
const LIMIT_IN_GUEST_NS: u64 = 300_000_000_000;

/// Seeds of a test: so many, or as many as `WARPROW_SEEDS` says.
pub fn seeds(usual: u64) -> Range<u64> {
    0..env::var("WARPROW_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(usual)
}

/// A change to the text of a source: a bug to be found.
pub struct Patch {
    pub file: &'static str,
    pub from: &'static str,
    pub to: &'static str,
    /// Whether the compiler's checks are to find it; building takes longer.
    pub checked: bool,
}

pub fn compiler() -> Option<&'static str> {
    static FOUND: OnceLock<Option<String>> = OnceLock::new();
    let works =
        |name: &String| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success());
    let names = || env::var("CXX").into_iter().chain(["c++", "g++", "clang++"].map(str::to_owned));
    FOUND.get_or_init(|| names().find(works)).as_deref()
}

/// Names and texts.
pub type Sources = Vec<(String, String)>;

/// Sources by name, patched.
pub fn sources(patches: &[Patch]) -> Sources {
    let mut sources = vec![("queue_abi.h".to_owned(), warprow_gpu_queues::abi::HEADER.to_owned())];
    for folder in FOLDERS {
        for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if !path
                .extension()
                .is_some_and(|extension| ["h", "cpp", "cu", "cuh"].iter().any(|source| extension == *source))
            {
                continue;
            }
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            sources.push((name, fs::read_to_string(path).unwrap()));
        }
    }
    sources.sort();
    for Patch { file, from, to, .. } in patches {
        let (_, text) = sources.iter_mut().find(|(name, _)| name == file).unwrap();
        assert_eq!(
            text.matches(from).count(),
            1,
            "{file} has changed: the planted bug's place is not there once:\n{from}"
        );
        *text = text.replace(from, to);
    }
    sources
}

/// Where libraries are.
fn folder() -> PathBuf {
    Path::new(env!("OUT_DIR")).join("simt")
}

/// The file that these inputs lead to, made by `make` if it is not there yet.
fn built(inputs: impl Hash, suffix: &str, make: impl FnOnce(&Path)) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    inputs.hash(&mut hasher);
    let file = folder().join(format!("{:016x}.{suffix}", hasher.finish()));
    // Tests that begin together all want the library without bugs, and one of them builds it.
    static BUILDING: Mutex<BTreeMap<PathBuf, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());
    let building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner).entry(file.clone()).or_default().clone();
    let _turn = building.lock().unwrap_or_else(PoisonError::into_inner);
    if file.exists() {
        return file;
    }
    fs::create_dir_all(folder()).unwrap();
    let here = tempfile::tempdir_in(folder()).unwrap();
    make(here.path());
    // Another process may have been faster.
    fs::rename(here.path().join("built"), &file).unwrap();
    file
}

/// Runs the compiler in a folder.
fn compile(compiler: &str, here: &Path, arguments: &[&[&str]]) {
    let output = Command::new(compiler).current_dir(here).args(arguments.concat()).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{compiler} refuses the kernels:\n{complaint}");
}

fn write_all(sources: &[(String, String)], here: &Path) {
    for (name, text) in sources {
        fs::write(here.join(name), text).unwrap();
    }
}

/// The object of the scheduler, which kernels with different bugs share.
fn scheduler(compiler: &str, sources: &Sources) -> PathBuf {
    let own: Sources = sources.iter().filter(|(name, _)| SCHEDULER.contains(&name.as_str())).cloned().collect();
    assert_eq!(own.len(), SCHEDULER.len(), "a source of the scheduler is missing");
    built((&own, compiler, OPTIONS, OF_SCHEDULER, HIDDEN), "o", |here| {
        write_all(&own, here);
        compile(compiler, here, &[&OPTIONS, &[OF_SCHEDULER, HIDDEN, "-c", SCHEDULER[0], "-o", "built"]]);
    })
}

/// The library of these sources, built if it is not there yet. `checked`: with the compiler's checks.
fn build(compiler: &str, sources: &Sources, optimisation: &str, checked: bool) -> PathBuf {
    let scheduler = scheduler(compiler, sources);
    built((sources, checked, compiler, OPTIONS, optimisation, OF_SCHEDULER, HIDDEN, CHECKS), "so", |here| {
        write_all(sources, here);
        // In two steps: the checks call the shim, not the compiler's own library. Most planted bugs do without, and
        // are built sooner.
        let checks: &[&str] = if checked { &[CHECKS] } else { &[] };
        compile(
            compiler,
            here,
            &[&OPTIONS, &[optimisation, HIDDEN], checks, &["-c", "kernels.cpp", "-o", "kernels.o"]],
        );
        compile(compiler, here, &[&["-shared", "kernels.o", scheduler.to_str().unwrap(), "-o", "built"]]);
    })
}

#[repr(C)]
struct Options {
    seed: u64,
    limit_ns: u64,
    shared_bytes: u32,
    how: u32,
    resident: u32,
    holds: u32,
    turn: Option<extern "C" fn(*mut c_void, u32) -> u64>,
    context: *mut c_void,
}

type Run = unsafe extern "C" fn(*const c_char, *const Lookup, u32, u32, *const Options, *mut c_char, u64) -> c_int;

/// What happens beside the lanes: called now and then, and with `true` when all of them wait. Gives the time, nanoseconds.
pub type Turn<'a> = &'a mut dyn FnMut(bool) -> u64;

extern "C" fn turn(context: *mut c_void, idle: u32) -> u64 {
    // SAFETY: `Shim::launch` put it there, and waits for the kernel's end.
    let turn = unsafe { &mut *context.cast::<Turn<'_>>() };
    turn(idle != 0)
}

/// A launch of one kernel.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    pub kernel: &'static str,
    pub grid: u32,
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// The second parameter of `expand`, of `expansion`.
    pub how: u32,
    /// Blocks that run at once; others begin when some have ended. 0: all.
    pub resident: u32,
}

impl Launch {
    pub fn new(kernel: &'static str, grid: u32, threads: u32) -> Self {
        Self { kernel, grid, threads, shared: 0, how: 0, resident: 0 }
    }
}

/// A loaded copy of the shim, or the one that is part of the program. It runs one kernel at a time.
pub struct Shim {
    run: Run,
    limit_ns: u64,
    /// Kernels that were launched.
    pub launched: BTreeSet<&'static str>,
    /// Whether, in each launch, somebody is held: a lane, a warp or a block, which runs only when no other lane can. All others are then as far ahead of
    /// it as can be, which shows soonest that a barrier is missing.
    pub holds: bool,
    kernels: Kernels,
}

/// What holds the kernels that a [`Shim`] runs.
enum Kernels {
    /// A copy of the library, and the library's bytes.
    Loaded { _library: Library, image: Rc<[u8]> },
    /// The program itself. The kernels' state is in globals, so the lock lets one shim use them.
    #[cfg(kernels_linked)]
    Linked { _turn: std::sync::MutexGuard<'static, ()> },
}

#[cfg(kernels_linked)]
mod linked {
    use super::{Lookup, Options, c_char, c_int};

    pub(super) static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

    unsafe extern "C" {
        /// `simt.cpp` declares it so.
        pub(super) fn simt_run(
            kernel: *const c_char,
            lookup: *const Lookup,
            grid: u32,
            block: u32,
            options: *const Options,
            message: *mut c_char,
            message_bytes: u64,
        ) -> c_int;
    }
}

impl Shim {
    /// The kernels as they are; `None`, and a line that says so, where there is no C++ compiler.
    pub fn new() -> Option<Self> {
        Self::patched(&[])
    }

    /// The kernels of this project's sources, with these bugs put in.
    pub fn patched(patches: &[Patch]) -> Option<Self> {
        let Some(compiler) = compiler() else {
            eprintln!("skipped: running the kernels on the CPU needs a C++ compiler (c++, g++, clang++ or $CXX)");
            return None;
        };
        let checked = patches.iter().all(|patch| patch.checked);
        let optimisation = if patches.is_empty() { OPTIMISED } else { UNOPTIMISED };
        Some(Self::load(&build(compiler, &sources(patches), optimisation, checked)))
    }

    /// The kernels of other sources, built with `compiler` and without its checks; nothing of the build is kept. A
    /// kernel that takes more processor time than `limit` has failed.
    pub fn of(compiler: &str, sources: &Sources, limit: Duration) -> Self {
        let library = build(compiler, sources, UNOPTIMISED, false);
        let shim = Self { limit_ns: limit.as_nanos() as u64, ..Self::load(&library) };
        fs::remove_file(library).unwrap();
        shim
    }

    /// The kernels that are part of this program (the feature `linked`), once no other shim uses them; `None` where there are none.
    pub fn linked() -> Option<Self> {
        #[cfg(kernels_linked)]
        return Some(Self {
            run: linked::simt_run,
            limit_ns: LIMIT_IN_GUEST_NS,
            launched: BTreeSet::new(),
            holds: false,
            kernels: Kernels::Linked { _turn: linked::TURN.lock().unwrap_or_else(PoisonError::into_inner) },
        });
        #[cfg(not(kernels_linked))]
        None
    }

    /// Another copy of the same kernels, which runs one of its own meanwhile. Panics for kernels that are part of the program.
    pub fn twin(&self) -> Self {
        match &self.kernels {
            Kernels::Loaded { image, .. } => {
                Self { limit_ns: self.limit_ns, holds: self.holds, ..Self::of_image(image.clone()) }
            }
            #[cfg(kernels_linked)]
            Kernels::Linked { .. } => panic!("there is one copy of the kernels in a program"),
        }
    }

    fn load(library: &Path) -> Self {
        Self::of_image(fs::read(library).unwrap().into())
    }

    fn of_image(image: Rc<[u8]>) -> Self {
        // The library keeps a kernel's state in globals: every user loads a copy of its own.
        let copy = tempfile::Builder::new().suffix(".so").tempfile_in(folder()).unwrap().into_temp_path();
        fs::write(&copy, &image).unwrap();
        // SAFETY: it was built from our sources and runs nothing when it is loaded.
        let library = unsafe { Library::new(&*copy) }.unwrap();
        // SAFETY: `simt.cpp` declares it so; the pointer goes with the library.
        let run = unsafe { *library.get::<Run>(b"simt_run\0").unwrap() };
        let kernels = Kernels::Loaded { _library: library, image };
        Self { run, limit_ns: LIMIT_NS, launched: BTreeSet::new(), holds: false, kernels }
    }

    /// Runs a kernel to its end. Without `turn` time is real, and others run on their own threads. An error says what the
    /// lanes did wrong.
    pub fn launch(
        &mut self,
        launch: &Launch,
        lookup: &Lookup,
        seed: u64,
        beside: Option<Turn<'_>>,
    ) -> Result<(), String> {
        self.run(launch, lookup, seed, beside)
    }

    /// The kernel whose parameter is another.
    pub fn adopt(
        &mut self,
        launch: &Launch,
        adoption: &Adoption,
        seed: u64,
        beside: Option<Turn<'_>>,
    ) -> Result<(), String> {
        assert_eq!(launch.kernel, "warprow_adopt");
        self.run(launch, std::ptr::from_ref(adoption).cast(), seed, beside)
    }

    /// The kernel that puts updated rows in.
    pub fn update(
        &mut self,
        launch: &Launch,
        update: &Update,
        seed: u64,
        beside: Option<Turn<'_>>,
    ) -> Result<(), String> {
        assert_eq!(launch.kernel, "warprow_update");
        self.run(launch, std::ptr::from_ref(update).cast(), seed, beside)
    }

    /// The kernel that hashes tokens.
    pub fn hash_ngrams(&mut self, launch: &Launch, batch: &NgramTokens, seed: u64) -> Result<(), String> {
        assert_eq!(launch.kernel, "warprow_ngrams");
        self.run(launch, std::ptr::from_ref(batch).cast(), seed, None)
    }

    /// The kernel that empties a cache.
    pub fn sweep_cache(
        &mut self,
        launch: &Launch,
        sweep: &CacheSweep,
        seed: u64,
        beside: Option<Turn<'_>>,
    ) -> Result<(), String> {
        assert_eq!(launch.kernel, "warprow_sweep_cache");
        self.run(launch, std::ptr::from_ref(sweep).cast(), seed, beside)
    }

    /// The kernel that has rows stay in a cache.
    pub fn pin_cache(
        &mut self,
        launch: &Launch,
        pin: &CachePin,
        seed: u64,
        beside: Option<Turn<'_>>,
    ) -> Result<(), String> {
        assert_eq!(launch.kernel, "warprow_pin_cache");
        self.run(launch, std::ptr::from_ref(pin).cast(), seed, beside)
    }

    /// Runs a ring test with the kernel on the CPU. `beside` is what happens beside each launch.
    pub fn test_ring(
        &mut self,
        test: &RingTest,
        seed: u64,
        mut beside: Option<Turn<'_>>,
    ) -> Result<RingTestReport, RingTestError> {
        let launch = Launch::new("warprow_test_ring", 1, LANES);
        test.on_host(|reads: &RingReads| {
            let parameter = std::ptr::from_ref(reads).cast();
            let ended = match beside.as_mut() {
                None => self.run(&launch, parameter, seed ^ reads.launch, None),
                Some(turn) => self.run(&launch, parameter, seed ^ reads.launch, Some(&mut **turn)),
            };
            ended.map_err(RingLaunchError::Failed)
        })
    }

    fn run(
        &mut self,
        launch: &Launch,
        parameter: *const Lookup,
        seed: u64,
        beside: Option<Turn<'_>>,
    ) -> Result<(), String> {
        self.launched.insert(launch.kernel);
        let kernel = CString::new(launch.kernel).unwrap();
        let mut message = [0 as c_char; 512];
        let mut beside = beside;
        let options = Options {
            seed,
            limit_ns: self.limit_ns,
            shared_bytes: launch.shared,
            how: launch.how,
            resident: launch.resident,
            holds: self.holds.into(),
            turn: beside.is_some().then_some(turn),
            context: beside.as_mut().map_or(std::ptr::null_mut(), |turn| std::ptr::from_mut(turn).cast()),
        };
        // SAFETY: the parameter is the kernel's; addresses in it are those of buffers that the caller holds, sized as the kernels want them; the rest
        // lives until the call is over.
        let wrong = unsafe {
            let at = message.as_mut_ptr();
            (self.run)(kernel.as_ptr(), parameter, launch.grid, launch.threads, &options, at, message.len() as u64)
        };
        if wrong == 0 {
            return Ok(());
        }
        // SAFETY: the shim ends its message with a zero, within the array.
        let message = unsafe { CStr::from_ptr(message.as_ptr()) };
        Err(format!("{} (schedule {seed:#x}): {}", launch.kernel, message.to_string_lossy()))
    }
}
