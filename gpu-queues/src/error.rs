use cudarc::driver::sys::CUresult;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use warprow_dma::{AllocateError, FunctionError, PeerMemoryError};
use warprow_driver::DriverError;

use crate::KeptMemoryError;
use crate::register_refusal::RegisterRefusal;

/// Why a GPU, memory for it, or queues that it drives could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuQueueError {
    /// There is no CUDA driver.
    #[error("libcuda cannot be found: install NVIDIA's driver, 580 or later")]
    NoDriver,
    /// The driver is too old.
    #[error("the CUDA driver is of version {}.{}: 13.0 is needed, which driver 580 and later have", .version / 1000, .version % 1000 / 10)]
    DriverTooOld {
        /// CUDA version times 1000, as `cuDriverGetVersion` has it.
        version: i32,
    },
    /// There is no GPU with the number that was asked for.
    #[error("there is no GPU {ordinal}: {count} are there (CUDA_VISIBLE_DEVICES may hide others)")]
    NoDevice {
        /// The number asked for.
        ordinal: u32,
        /// How many GPUs there are.
        count: i32,
    },
    /// Memory could not be pinned for the GPU.
    #[error(
        "{bytes} bytes cannot be pinned for the GPU (cuMemHostRegister: {code:?}): pinned memory must fit into free memory, and where the \
         process is not privileged it counts against RLIMIT_MEMLOCK, which is {} here; raise that (ulimit -l, LimitMEMLOCK= of \
         systemd, --ulimit memlock= of a container), or ask for less",
        memlock()
    )]
    Pin {
        /// How many bytes were to be pinned.
        bytes: u64,
        /// CUDA's answer.
        code: CUresult,
    },
    /// GPU memory could not be had.
    #[error("{bytes} bytes of GPU memory cannot be had ({code:?}, {free} are free): ask for less, or free some")]
    DeviceMemory {
        /// How many bytes were asked for.
        bytes: u64,
        /// How many bytes of GPU memory are free.
        free: u64,
        /// CUDA's answer.
        code: CUresult,
    },
    /// The CUDA context is lost, with everything that it had in GPU memory; none of its kernels runs any more.
    #[error(
        "the CUDA context is lost ({what}: {code:?}): a kernel in this process failed, ours or another; drives and the host executor go \
         on, but look-ups on the GPU need a new context, that is, a new process"
    )]
    ContextLost {
        /// The call that found the context lost.
        what: &'static str,
        /// CUDA's answer to that call and to every later one.
        code: CUresult,
    },
    /// CUDA refuses a call, and the context goes on.
    #[error("CUDA refuses {what}: {code:?}")]
    Cuda {
        /// The call.
        what: &'static str,
        /// CUDA's answer to the call.
        code: CUresult,
    },
    /// Memory of the host could not be had.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// The transport to a drive failed.
    #[error(transparent)]
    Function(#[from] FunctionError),
    /// A drive's controller failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The thread that rings doorbells could not be started.
    #[error("cannot start a thread for doorbells: {0}; too many are running, or memory is short")]
    Thread(std::io::Error),
    /// The doorbell registers of a drive cannot be rung by the GPU itself (placement B).
    #[error(
        "{function}: the GPU cannot ring the doorbells itself: {why}; a host thread can ring them for it (placement B′)"
    )]
    DoorbellRegisters {
        /// The drive's function.
        function: String,
        /// The reason, and its remedy where there is one.
        why: RegisterRefusal,
    },
    /// Queues of a physical drive cannot lie in GPU memory (placement A⁻).
    #[error("queues cannot lie in GPU memory (placement A⁻): {0}")]
    KeptMemory(#[from] KeptMemoryError),
    /// GPU memory in which queues lie could not be written.
    #[error(transparent)]
    PeerMemory(#[from] PeerMemoryError),
    /// A queue set cannot be made as the caller asked; the text says why.
    #[error("{0}")]
    Unsupported(String),
}

/// The limit RLIMIT_MEMLOCK of this process, in words.
fn memlock() -> String {
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((RLIM_INFINITY, _)) => "unlimited".to_owned(),
        Ok((bytes, _)) => format!("{bytes} bytes"),
        Err(_) => "unknown".to_owned(),
    }
}

pub(crate) fn cuda(what: &'static str, code: CUresult) -> Result<(), GpuQueueError> {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        code if ends_context(code) => Err(GpuQueueError::ContextLost { what, code }),
        code => Err(GpuQueueError::Cuda { what, code }),
    }
}

/// Whether an answer of CUDA's says that the context is lost: CUDA then gives this answer to every call (CUDA Driver
/// API, "This leaves the process in an inconsistent state").
pub fn ends_context(code: CUresult) -> bool {
    use CUresult::*;
    matches!(
        code,
        CUDA_ERROR_ILLEGAL_ADDRESS
            | CUDA_ERROR_LAUNCH_FAILED
            | CUDA_ERROR_LAUNCH_TIMEOUT
            | CUDA_ERROR_ASSERT
            | CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUDA_ERROR_MISALIGNED_ADDRESS
            | CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUDA_ERROR_INVALID_PC
            | CUDA_ERROR_ECC_UNCORRECTABLE
            | CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUDA_ERROR_MPS_CLIENT_TERMINATED
            | CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUDA_ERROR_DEINITIALIZED
    )
}

/// Whether an answer of CUDA's says that no kernel of the context runs any more. That libcuda is shutting down, or that
/// a server of MPS ended, says nothing of kernels.
pub(crate) fn stops_kernels(code: CUresult) -> bool {
    let says_nothing = [CUresult::CUDA_ERROR_DEINITIALIZED, CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED];
    ends_context(code) && !says_nothing.contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_cannot_be_pinned_names_the_limit() {
        let text = GpuQueueError::Pin { bytes: 1 << 40, code: CUresult::CUDA_ERROR_OUT_OF_MEMORY }.to_string();
        let limit = memlock();
        assert!(["cuMemHostRegister", "ulimit -l", "LimitMEMLOCK="].iter().all(|word| text.contains(word)), "{text}");
        assert!(limit == "unlimited" || limit.ends_with(" bytes"), "{limit}");
        assert!(
            text.contains("1099511627776 bytes") && text.contains(&format!("RLIMIT_MEMLOCK, which is {limit}")),
            "{text}"
        );
    }
}
