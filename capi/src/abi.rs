//! The version of this interface.

use crate::error::Failure;
use crate::status::warprow_status;

/// The version of this interface: its major version in the upper 16 bits, its minor version in the lower ones.
///
/// Within a major version nothing is taken away or changed; each addition raises the minor version. A program works with a library of
/// the same major version, and of the same minor version or a later one.
pub const WARPROW_ABI_VERSION: u32 = 0x10008;

/// The version of the interface that the library has, which may be a later one than WARPROW_ABI_VERSION.
///
/// Any thread may call it. It never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn warprow_abi_version() -> u32 {
    WARPROW_ABI_VERSION
}

/// The version of Warprow, as text.
///
/// The text belongs to the library and is always valid. Any thread may call it. It never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn warprow_version() -> *const std::ffi::c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// How many handles are open, of all kinds, errors included: to see whether a program closes what it opens.
///
/// Any thread may call it. It never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn warprow_open_handles() -> usize {
    crate::handle::count()
}

/// Whether a program that was compiled against version `program` works with this library.
pub(crate) fn check(program: u32) -> Result<(), Failure> {
    let ours = WARPROW_ABI_VERSION;
    if program >> 16 == ours >> 16 && program & 0xffff <= ours & 0xffff {
        return Ok(());
    }
    let show = |version: u32| format!("{}.{}", version >> 16, version & 0xffff);
    let what = format!(
        "the program was compiled against version {} of warprow.h, the library has {}: compile it against the library's header, or \
         install the library that it was compiled against",
        show(program),
        show(ours)
    );
    Err(Failure::new(warprow_status::AbiMismatch, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_minor_versions_work() {
        check(WARPROW_ABI_VERSION).unwrap();
        for program in [0, WARPROW_ABI_VERSION + 1, WARPROW_ABI_VERSION + 0x10000, 1] {
            assert_eq!(check(program).unwrap_err().status, warprow_status::AbiMismatch);
        }
    }
}
