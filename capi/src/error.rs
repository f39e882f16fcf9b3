//! Errors as C programs see them.

use std::error::Error;
use std::ffi::{CString, c_char};

use crate::handle::{self, Object};
use crate::status::warprow_status;

/// Why a call failed: a code, a message, and what else is known. The program owns it, and frees it with warprow_error_free. Any
/// thread may use it.
pub struct warprow_error {
    _opaque: [u8; 0],
}

/// A call that failed, before the program hears of it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: warprow_status,
    pub(crate) message: String,
    /// Positions of ids, of a look-up.
    pub(crate) positions: Vec<usize>,
    /// What agrees to what was refused.
    pub(crate) token: Option<String>,
}

/// What an error's handle stands for.
pub(crate) struct Told {
    status: warprow_status,
    message: CString,
    positions: Vec<usize>,
    token: Option<CString>,
}

impl Object for Told {
    type Tag = warprow_error;
    const KIND: u8 = 1;
    const NAME: &'static str = "warprow_error";
}

impl Failure {
    pub(crate) fn new(status: warprow_status, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), positions: Vec::new(), token: None }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(warprow_status::InvalidArgument, message)
    }

    pub(crate) fn bug(message: impl Into<String>) -> Self {
        Self::new(warprow_status::Bug, format!("{}; please report it", message.into()))
    }

    /// With the message of an error and those below it.
    pub(crate) fn of(status: warprow_status, error: &(dyn Error + 'static)) -> Self {
        Self::new(status, chain(error))
    }

    pub(crate) fn at(self, positions: Vec<usize>) -> Self {
        Self { positions, ..self }
    }

    /// Gives it to the program.
    pub(crate) fn tell(self) -> *mut warprow_error {
        let told = Told {
            status: self.status,
            message: c_text(&self.message),
            positions: self.positions,
            token: self.token.as_deref().map(c_text),
        };
        handle::open(told).unwrap_or(std::ptr::null_mut())
    }
}

/// Text for C: what it cannot hold is left out.
pub(crate) fn c_text(text: &str) -> CString {
    let bytes: Vec<u8> = text.bytes().filter(|&byte| byte != 0).collect();
    CString::new(bytes).unwrap_or_default()
}

/// An error's text and those of the errors below it that it does not repeat.
fn chain(error: &(dyn Error + 'static)) -> String {
    let (mut text, mut next) = (error.to_string(), error.source());
    while let Some(source) = next {
        let below = source.to_string();
        if !text.contains(&below) {
            text = format!("{text}: {below}");
        }
        next = source.source();
    }
    text
}

/// The code of an error; WARPROW_STATUS_INVALID_HANDLE if it was freed.
///
/// Any thread may call it. It never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn warprow_error_status(error: *const warprow_error) -> warprow_status {
    handle::get::<Told>(error).map_or(warprow_status::InvalidHandle, |told| told.status)
}

/// The message of an error, in UTF-8: what went wrong, with the thing's name, and what can be done. Never NULL.
///
/// The text belongs to the error, and is valid until that is freed. Any thread may call it. It never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn warprow_error_message(error: *const warprow_error) -> *const c_char {
    handle::get::<Told>(error).map_or(c"this is no error, or one that was freed".as_ptr(), |told| told.message.as_ptr())
}

/// The positions in the batch's ids that a look-up on the host failed for, ascending: of WARPROW_STATUS_ROWS_FAILED those whose row
/// could not be read, of WARPROW_STATUS_MISSING_IDS those that are missing. Stores how many there are in `count`; NULL and 0 for
/// other errors. (Of a look-up on a GPU the mask tells.)
///
/// The positions belong to the error, and are valid until that is freed. Any thread may call it. It never blocks.
///
/// # Safety
/// `count` is NULL, or points to a size_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_error_positions(error: *const warprow_error, count: *mut usize) -> *const usize {
    let told = handle::get::<Told>(error).ok().filter(|told| !told.positions.is_empty());
    if !count.is_null() && count.is_aligned() {
        // SAFETY: the caller's promise.
        unsafe { count.write(told.as_ref().map_or(0, |told| told.positions.len())) };
    }
    told.map_or(std::ptr::null(), |told| told.positions.as_ptr())
}

/// The token that agrees to exactly what warprow_store_format refused; NULL for other errors.
///
/// The text belongs to the error, and is valid until that is freed. Any thread may call it. It never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn warprow_error_consent(error: *const warprow_error) -> *const c_char {
    let told = handle::get::<Told>(error);
    told.ok().and_then(|told| told.token.as_ref().map(|token| token.as_ptr())).unwrap_or(std::ptr::null())
}

/// Frees an error. NULL, and an error that was freed before, are left alone.
///
/// Any thread may call it. It never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn warprow_error_free(error: *mut warprow_error) {
    drop(handle::close::<Told>(error));
}
