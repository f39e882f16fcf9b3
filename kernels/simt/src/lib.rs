//! The CUDA kernels on the CPU, for tests. The C++ files of this package compile `kernels/cuda/lookup.cu` and run each lane as a fiber,
//! in orders that seeds decide; `simt.h` says what that cannot see. Around them: random tables, batches of ids, and an oracle of what
//! a look-up must give.
//!
//! The package holds what tests share, in `kernels/tests/simt` and in the guest (`tests/guest-gpu`); nothing else uses it.

pub mod batch;
pub mod buffer;
pub mod oracle;
pub mod rig;
pub mod shim;
pub mod sparse;
pub mod world;
