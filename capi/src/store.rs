//! Formatting, opening and closing a store.

use std::ffi::c_char;

use ::warprow_store::{
    CreateDrive, Device, DriveAddress, FormatConsent, FormatProposal, FormatSettings, LbaChoice, OpenOptions, Store,
    StoreAccess,
};

use crate::arguments::{check_place, millis, store as put, text, texts};
use crate::error::{Failure, warprow_error};
use crate::handle::{self, Object};
use crate::sized::{options, versioned};
use crate::status::warprow_status;
use crate::{abi, guard};

/// An open store: drives with tables, held by this process alone. Any thread may use it, several at once.
pub struct warprow_store {
    _opaque: [u8; 0],
}

/// What a store's handle stands for.
pub(crate) struct Opened {
    pub(crate) store: Store,
}

impl Object for Opened {
    type Tag = warprow_store;
    const KIND: u8 = 2;
    const NAME: &'static str = "warprow_store";
}

/// The store that a handle stands for.
pub(crate) fn store_of(store: *const warprow_store) -> Result<Store, Failure> {
    Ok(handle::get::<Opened>(store)?.store.clone())
}

/// How a store is opened.
#[repr(i32)]
pub enum warprow_access {
    /// For reading and writing.
    ReadWrite = 0,
    /// For reading only: other processes may read emulated drives at the same time, and none may write to them.
    ReadOnly = 1,
    /// For reading what is left, also if drives are missing.
    Degraded = 2,
}

/// Options of warprow_store_open. Zeros, or NULL for all, mean the usual.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_open_options {
    /// sizeof(warprow_open_options).
    pub struct_size: usize,
    /// The longest wait for a read or a write, in milliseconds; 0: 10 s.
    pub timeout_ms: u64,
    /// The longest wait for an administrative command, in milliseconds; 0: 30 s.
    pub admin_timeout_ms: u64,
    /// Bytes of memory for updated rows of a generation, until it is compacted; 0: 64 MiB.
    pub overlay_bytes: u64,
    /// A WARPROW_ACCESS_ constant.
    pub access: i32,
    /// 0.
    pub reserved: u32,
}

/// Options of warprow_store_format. Zeros, or NULL for all, mean the usual.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_format_options {
    /// sizeof(warprow_format_options).
    pub struct_size: usize,
    /// The token of a refusal (warprow_error_consent), to agree to exactly what that refusal says is lost. NULL: only emulated drives
    /// that are blank are formatted.
    pub consent: *const c_char,
    /// Bytes of a chunk, a power of two from 1 MiB to 64 MiB; 0: by the drives' size.
    pub chunk_bytes: u64,
    /// Bytes of an LBA: 512 or 4096; 0: as the drives have it.
    pub lba_bytes: u32,
    /// 0.
    pub reserved: u32,
    /// How the new store is opened; NULL: as usual.
    pub open: *const warprow_open_options,
}

versioned! {
    warprow_open_options: 40,
    warprow_format_options: 40,
}

/// Refuses a field that has no meaning yet.
pub(crate) fn reserved(of: &str, field: u32) -> Result<(), Failure> {
    match field {
        0 => Ok(()),
        _ => Err(Failure::invalid(format!("a reserved field of a {of} is {field}, and has to be 0"))),
    }
}

/// # Safety
/// `at` is NULL, or points to options.
unsafe fn open_options(at: *const warprow_open_options) -> Result<OpenOptions, Failure> {
    // SAFETY: the caller's promise.
    let given = unsafe { options(at) }?;
    reserved("warprow_open_options", given.reserved)?;
    let usual = OpenOptions::default();
    let usual = match given.access {
        0 => usual,
        1 => usual.with_read_only(),
        2 => usual.with_degraded(),
        other => return Err(Failure::invalid(format!("access is {other}: use a WARPROW_ACCESS_ constant"))),
    };
    let mut chosen = usual;
    if let Some(timeout) = millis(given.timeout_ms) {
        chosen = chosen.with_timeout(timeout);
    }
    if let Some(timeout) = millis(given.admin_timeout_ms) {
        chosen = chosen.with_admin_timeout(timeout);
    }
    if given.overlay_bytes != 0 {
        chosen = chosen.with_overlay_bytes(given.overlay_bytes);
    }
    Ok(chosen)
}

/// # Safety
/// `drives` points to `count` texts.
unsafe fn devices(
    drives: *const *const c_char,
    count: usize,
    create: CreateDrive,
    access: StoreAccess,
) -> Result<Vec<Device>, Failure> {
    // SAFETY: the caller's promise.
    let addresses = unsafe { texts("drives", drives, count) }?;
    if addresses.is_empty() {
        return Err(Failure::invalid("no drive was given: give the addresses of all drives of the store"));
    }
    let mut devices: Vec<Device> = Vec::new();
    for address in addresses {
        let address = address.parse::<DriveAddress>()?.for_access(access);
        let device = Device::open_beside(&devices, &address, create)?;
        devices.push(device);
    }
    Ok(devices)
}

/// Formats drives as an empty store and opens it. **What lies on them is lost.** Without consent only blank emulated drives are
/// formatted; a refusal is WARPROW_STATUS_REFUSED, says what would be lost, and its warprow_error_consent agrees to just that.
///
/// `abi_version` is WARPROW_ABI_VERSION. `drives` has the addresses of `drive_count` drives, such as "0000:41:00.0" or
/// "emulated:/data/a.drive?size=64G"; the files of emulated drives are made if they are missing. All arguments stay the caller's. The
/// store in `*store` is the caller's, who closes it with warprow_store_close.
///
/// Any thread may call it. It blocks until the drives are formatted.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_store_format(
    abi_version: u32,
    drives: *const *const c_char,
    drive_count: usize,
    format_options: *const warprow_format_options,
    store: *mut *mut warprow_store,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            abi::check(abi_version)?;
            check_place("store", store)?;
            store.write(std::ptr::null_mut());
            let given = options(format_options)?;
            reserved("warprow_format_options", given.reserved)?;
            let lba = match given.lba_bytes {
                0 => LbaChoice::Keep,
                bytes => LbaChoice::Bytes(bytes),
            };
            let mut settings = FormatSettings::default().with_lba(lba).with_open(open_options(given.open)?);
            if given.chunk_bytes != 0 {
                settings = settings.with_chunk_size(given.chunk_bytes);
            }
            let consent = match given.consent.is_null() {
                true => FormatConsent::None,
                false => FormatConsent::Token(text("consent", given.consent)?.to_owned()),
            };
            let devices = devices(drives, drive_count, CreateDrive::IfMissing, StoreAccess::ReadWrite)?;
            let formatted = FormatProposal::new(&devices, settings)?.run(&consent, &mut |_, _| {})?;
            put(store, handle::open(Opened { store: formatted })?);
            Ok(())
        })
    }
}

/// Opens the store that lies on drives, given in any order.
///
/// `abi_version` is WARPROW_ABI_VERSION: a program that was compiled against a header that does not fit the library is refused with
/// WARPROW_STATUS_ABI_MISMATCH. `drives` has the addresses of `drive_count` drives. All arguments stay the caller's. The store in
/// `*store` is the caller's, who closes it with warprow_store_close.
///
/// Any thread may call it. It blocks until drives and catalogue are read.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_store_open(
    abi_version: u32,
    drives: *const *const c_char,
    drive_count: usize,
    open: *const warprow_open_options,
    store: *mut *mut warprow_store,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            abi::check(abi_version)?;
            check_place("store", store)?;
            store.write(std::ptr::null_mut());
            let how = open_options(open)?;
            let devices = devices(drives, drive_count, CreateDrive::Never, how.access)?;
            put(store, handle::open(Opened { store: Store::open(&devices, &how)? })?);
            Ok(())
        })
    }
}

/// Closes a store. Executors, plans, slots and tickets that were made of it keep it open until they are closed too; only then are its
/// drives free for others. NULL is left alone.
///
/// Any thread may call it, also while others use the store: their calls end first. It may block until drives have shut down.
///
/// # Safety
/// `error` is NULL, or points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_store_close(
    store: *mut warprow_store,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise.
    unsafe { guard::call(error, || close::<Opened>(store)) }
}

/// Closes a handle that is not NULL.
pub(crate) fn close<T: Object>(handle: *mut T::Tag) -> Result<(), Failure> {
    if !handle.is_null() {
        drop(handle::close::<T>(handle)?);
    }
    Ok(())
}
