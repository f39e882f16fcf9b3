use std::path::PathBuf;

use cudarc::driver::sys::CUresult;

/// Kernels could not be compiled, loaded or launched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// There is no NVRTC.
    #[error(
        "libnvrtc cannot be found, and no compiled kernels for {arch} are in {}: install the CUDA 13 toolkit's nvrtc (pip: \
         nvidia-cuda-nvrtc) and put its folder into LD_LIBRARY_PATH",
        .cache.as_deref().map_or_else(|| "a cache (there is none)".to_owned(), |cache| cache.display().to_string())
    )]
    NoNvrtc {
        /// For which architecture.
        arch: String,
        /// Where compiled kernels were looked for.
        cache: Option<PathBuf>,
    },
    /// The GPU is too old for the kernels.
    #[error("compute capability {major}.{minor} is too old: 8.0 (Ampere) or later is needed")]
    TooOld {
        /// Major version.
        major: u32,
        /// Minor version.
        minor: u32,
    },
    /// NVRTC does not compile them.
    #[error("NVRTC {version} does not compile the kernels for {arch}: {reason}")]
    Compile {
        /// For which architecture.
        arch: String,
        /// NVRTC's version.
        version: String,
        /// What it says.
        reason: String,
    },
    /// Compiled kernels could not be written to a file.
    #[error("compiled kernels cannot be written to {}: look at the folder's rights, and at the room there", .path.display())]
    NotKept {
        /// The file.
        path: PathBuf,
    },
    /// A graph was made of a look-up that differs in what chooses kernels. Nothing was launched.
    #[error(
        "a look-up of {steps} kernels cannot be launched by a graph of {nodes}: the graph was made of a look-up that differs in what \
         chooses kernels; make it of one like this"
    )]
    OtherSteps {
        /// Kernels of the graph.
        nodes: usize,
        /// Kernels of the look-up.
        steps: usize,
    },
    /// CUDA refuses a call.
    #[error("CUDA refuses {what}: {code:?}")]
    Cuda {
        /// The call.
        what: &'static str,
        /// The answer of CUDA.
        code: CUresult,
    },
}

impl KernelError {
    pub(crate) fn check(what: &'static str, code: CUresult) -> Result<(), Self> {
        if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(Self::Cuda { what, code }) }
    }
}
