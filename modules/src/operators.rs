//! What the library of PyTorch's operators calls: a table of C functions.
//!
//! That library is C++ against torch's stable ABI (`python/package/warprow/native`), and is linked with neither Python nor
//! `libwarprow`. It gets the table from the Python package, in whose process the stores are open, or from `libwarprow`, in a process
//! without Python. `operators.h` beside its source declares the same structures.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use warprow_gpu::IdType;
use warprow_layout::DType;

use crate::arrays::{Integers, slice};
use crate::error::ModuleError;
use crate::lookup::{ModuleBatch, ModuleLookup, ModuleOutput};
use crate::registry;

/// The version of the table. A library of operators works with a table of its own version alone.
pub const OPERATORS_VERSION: u32 = 1;

/// Types of elements, as a library of operators tells them.
pub mod element {
    #![allow(missing_docs, reason = "the names say it")]
    pub const OTHER: u32 = 0;
    pub const I64: u32 = 1;
    pub const I32: u32 = 2;
    pub const F32: u32 = 3;
    pub const F16: u32 = 4;
    pub const BF16: u32 = 5;
    pub const I8: u32 = 6;
    pub const U8: u32 = 7;
}

/// A tensor, whose elements follow each other.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OperatorTensor {
    /// Its memory.
    pub data: *const c_void,
    /// Elements.
    pub count: u64,
    /// The size of the first dimension; 0 if there is none.
    pub first: u64,
    /// Dimensions.
    pub dims: u32,
    /// An [`element`] type.
    pub element: u32,
    /// The number of its GPU; -1: host memory.
    pub device: i32,
    /// 0: there is no such tensor.
    pub is_there: u32,
    /// What torch calls the type of its elements.
    pub element_name: *const c_char,
}

/// Arguments of a look-up.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OperatorBatch {
    /// Ids.
    pub ids: OperatorTensor,
    /// Where bags begin.
    pub offsets: OperatorTensor,
    /// A weight for each id, of [`element::F32`].
    pub weights: OperatorTensor,
    /// Whether weights have the shape of ids.
    pub weights_fit: u32,
    /// Whether a mask is wanted.
    pub masked: u32,
}

/// The output that a look-up needs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct OperatorShape {
    /// Not 0: rows of bags, so that the output has two dimensions, of which this is the first. 0: the ids' dimensions, and the width.
    pub pooled: u32,
    /// An [`element`] type.
    pub element: u32,
    /// Bags, or ids.
    pub rows: u64,
    /// Elements of a row.
    pub width: u64,
}

/// Where the output lies.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OperatorOutput {
    /// Rows.
    pub rows: *mut c_void,
    /// A byte for each id, or NULL.
    pub mask: *mut c_void,
    /// The stream on which a GPU looks up.
    pub stream: *mut c_void,
}

/// The functions. Those with a number as value return 0, or another number if they failed; then `message` tells.
#[repr(C)]
pub struct OperatorTable {
    /// `sizeof` this.
    pub struct_size: usize,
    /// [`OPERATORS_VERSION`].
    pub version: u32,
    /// 0.
    pub reserved: u32,
    /// The look-up of a text (address, bytes); it is held until `release`.
    pub find: unsafe extern "C" fn(*const c_char, usize, *mut *const ModuleLookup) -> i32,
    /// The look-up of a number, likewise.
    pub numbered: unsafe extern "C" fn(i64, *mut *const ModuleLookup) -> i32,
    /// Lets a look-up go.
    pub release: unsafe extern "C" fn(*const ModuleLookup),
    /// Checks arguments, and tells which output they need.
    pub shape: unsafe extern "C" fn(*const ModuleLookup, *const OperatorBatch, *mut OperatorShape) -> i32,
    /// Looks up what was checked by `shape`.
    pub lookup: unsafe extern "C" fn(*const ModuleLookup, *const OperatorBatch, *const OperatorOutput) -> i32,
    /// What went wrong in this thread's latest call that failed. Valid until the thread's next call.
    pub message: extern "C" fn() -> *const c_char,
    /// Waits, so many milliseconds at most, for all look-ups on GPUs; fails with what befell one.
    pub check: extern "C" fn(u64) -> i32,
    /// Starts queues anew that take no commands; stores 1 if there were any.
    pub recover: unsafe extern "C" fn(*mut i32) -> i32,
    /// Opens the second address wherever a model carries the first.
    pub rename_drive: unsafe extern "C" fn(*const c_char, *const c_char) -> i32,
    /// Closes all stores that look-ups of texts have opened.
    pub close_all: extern "C" fn() -> i32,
}

/// The table.
pub static OPERATORS: OperatorTable = OperatorTable {
    struct_size: size_of::<OperatorTable>(),
    version: OPERATORS_VERSION,
    reserved: 0,
    find,
    numbered,
    release,
    shape,
    lookup,
    message,
    check,
    recover,
    rename_drive,
    close_all,
};

thread_local! {
    static LATEST: RefCell<(Option<ModuleError>, CString)> = RefCell::default();
}

/// What this thread's latest call through the table failed with, once.
pub fn take_error() -> Option<ModuleError> {
    LATEST.with_borrow_mut(|latest| latest.0.take())
}

/// Does the work of a call. Neither errors nor panics cross it.
fn call(work: impl FnOnce() -> Result<(), ModuleError>) -> i32 {
    let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        // To drop it could panic again.
        std::mem::forget(payload);
        Err(ModuleError::Bug(text.unwrap_or_else(|| "it panicked".to_owned())))
    });
    let Err(error) = done else { return 0 };
    let text = CString::new(error.whole().replace('\0', " ")).unwrap_or_default();
    LATEST.with_borrow_mut(|latest| *latest = (Some(error), text));
    1
}

extern "C" fn message() -> *const c_char {
    LATEST.with_borrow(|latest| latest.1.as_ptr())
}

/// # Safety
/// `found` is a place for a pointer.
unsafe fn give(found: *mut *const ModuleLookup, find: impl FnOnce() -> Result<Arc<ModuleLookup>, ModuleError>) -> i32 {
    call(|| {
        let lookup = find()?;
        // SAFETY: the caller's promise.
        unsafe { found.write(Arc::into_raw(lookup)) };
        Ok(())
    })
}

unsafe extern "C" fn find(text: *const c_char, len: usize, found: *mut *const ModuleLookup) -> i32 {
    // SAFETY: the library of operators gives a text of that length, and a place.
    unsafe {
        give(found, || {
            let bytes = slice::<u8>(text as usize, len);
            let text = std::str::from_utf8(bytes).map_err(|error| ModuleError::Text(error.to_string()))?;
            registry::find(text)
        })
    }
}

unsafe extern "C" fn numbered(number: i64, found: *mut *const ModuleLookup) -> i32 {
    // SAFETY: the library of operators gives a place.
    unsafe { give(found, || registry::numbered(number)) }
}

unsafe extern "C" fn release(lookup: *const ModuleLookup) {
    // SAFETY: `give` made it of an `Arc`, and each is released once.
    let lookup = unsafe { Arc::from_raw(lookup) };
    call(|| {
        drop(lookup);
        Ok(())
    });
}

unsafe extern "C" fn shape(lookup: *const ModuleLookup, batch: *const OperatorBatch, shape: *mut OperatorShape) -> i32 {
    // SAFETY: the library of operators holds the look-up, and gives a batch and a place.
    call(|| unsafe {
        shape.write(checked(&*lookup, &*batch)?);
        Ok(())
    })
}

unsafe extern "C" fn lookup(
    lookup: *const ModuleLookup,
    batch: *const OperatorBatch,
    output: *const OperatorOutput,
) -> i32 {
    // SAFETY: the library of operators holds the look-up, gives batch and output, and has made the output as `shape` said. Torch keeps
    // tensors while what their stream was given uses them.
    call(|| unsafe {
        let (lookup, batch, output) = (&*lookup, &*batch, &*output);
        let shape = checked(lookup, batch)?;
        let bags = if shape.pooled != 0 { shape.rows } else { batch.ids.count };
        let given = ModuleBatch {
            ids: integers(&batch.ids),
            offsets: (batch.offsets.is_there != 0).then(|| integers(&batch.offsets)),
            weights: (batch.weights.is_there != 0).then_some(batch.weights.data as usize),
            bags: bags as usize,
        };
        let mask = (!output.mask.is_null()).then_some(output.mask as usize);
        let elements = (shape.rows * shape.width) as usize;
        lookup.lookup(output.stream as usize, &given, ModuleOutput { rows: output.rows as usize, elements, mask })
    })
}

extern "C" fn check(patience_ms: u64) -> i32 {
    call(|| registry::open().iter().try_for_each(|lookup| lookup.check(Duration::from_millis(patience_ms))))
}

unsafe extern "C" fn recover(recovered: *mut i32) -> i32 {
    call(|| {
        let any =
            registry::open().iter().try_fold(false, |any, lookup| Ok::<_, ModuleError>(any | lookup.recover()?))?;
        if !recovered.is_null() {
            // SAFETY: whoever calls gives a place, or NULL.
            unsafe { recovered.write(any.into()) };
        }
        Ok(())
    })
}

unsafe extern "C" fn rename_drive(from: *const c_char, to: *const c_char) -> i32 {
    call(|| {
        if from.is_null() || to.is_null() {
            return Err(ModuleError::invalid("from", "an address is NULL: give two texts"));
        }
        // SAFETY: whoever calls gives texts with a NUL at their ends.
        let text = |at| unsafe { CStr::from_ptr(at) }.to_string_lossy();
        registry::rename_drive(&text(from), &text(to));
        Ok(())
    })
}

extern "C" fn close_all() -> i32 {
    call(|| {
        registry::close_all();
        Ok(())
    })
}

fn integers(tensor: &OperatorTensor) -> Integers {
    let of = if tensor.element == element::I32 { IdType::I32 } else { IdType::I64 };
    Integers { at: tensor.data as usize, len: tensor.count as usize, of }
}

fn device_name(device: i32) -> String {
    if device < 0 { "cpu".to_owned() } else { format!("cuda:{device}") }
}

/// The type's name as torch has it.
fn element_name(tensor: &OperatorTensor) -> String {
    if tensor.element_name.is_null() {
        return "an unknown type".to_owned();
    }
    // SAFETY: the library of operators gives a text with a NUL at its end, or NULL.
    unsafe { CStr::from_ptr(tensor.element_name) }.to_string_lossy().into_owned()
}

/// Whether a tensor has ids or offsets, on the look-up's device.
fn check_integers(argument: &'static str, tensor: &OperatorTensor, device: i32) -> Result<(), ModuleError> {
    check_device(argument, tensor, device)?;
    match tensor.element {
        element::I64 | element::I32 => check_aligned(argument, tensor),
        _ => {
            let what = format!("elements of type torch.{}: give torch.int64 or torch.int32", element_name(tensor));
            Err(ModuleError::WrongType { argument, what })
        }
    }
}

/// Whether the elements of a tensor lie where the processor and a GPU may read them as such.
fn check_aligned(argument: &'static str, tensor: &OperatorTensor) -> Result<(), ModuleError> {
    let bytes = if tensor.element == element::I64 { 8 } else { 4 };
    if (tensor.data as usize).is_multiple_of(bytes) {
        return Ok(());
    }
    let text =
        format!("a tensor at {:p}, no multiple of the {bytes} bytes of an element: give a copy of it", tensor.data);
    Err(ModuleError::invalid(argument, text))
}

fn check_device(argument: &'static str, tensor: &OperatorTensor, device: i32) -> Result<(), ModuleError> {
    if tensor.device == device {
        return Ok(());
    }
    let (given, own) = (device_name(tensor.device), device_name(device));
    Err(ModuleError::invalid(
        argument,
        format!("a tensor on {given}, where the module is on {own}: move one with .to()"),
    ))
}

/// The output that a batch needs. Whatever a look-up relies on is checked here: a call of an operator may come from anybody.
fn checked(lookup: &ModuleLookup, batch: &OperatorBatch) -> Result<OperatorShape, ModuleError> {
    let spec = lookup.spec();
    let device = spec.gpu()?.map_or(-1, |device| device as i32);
    let OperatorBatch { ids, offsets, weights, .. } = batch;
    check_integers("input", ids, device)?;
    if offsets.is_there != 0 {
        check_integers("offsets", offsets, device)?;
        if offsets.dims != 1 {
            return Err(ModuleError::invalid("offsets", format!("{} dimensions: give one", offsets.dims)));
        }
    }
    if weights.is_there != 0 {
        check_device("per_sample_weights", weights, device)?;
        if weights.element != element::F32 {
            let what = format!("elements of type torch.{}: give torch.float32", element_name(weights));
            return Err(ModuleError::WrongType { argument: "per_sample_weights", what });
        }
        check_aligned("per_sample_weights", weights)?;
        if batch.weights_fit == 0 || weights.count != ids.count {
            return Err(ModuleError::invalid(
                "per_sample_weights",
                "their shape is not that of input: give one for each id",
            ));
        }
    }
    if (weights.is_there != 0) != spec.weighted() {
        let what =
            if spec.weighted() { "a feature is weighted: give them" } else { "no feature is weighted: leave them out" };
        return Err(ModuleError::invalid("per_sample_weights", what));
    }
    if (batch.masked != 0) != (spec.on_failure == "mask") {
        let text = format!("on_failure={:?} goes with the other operator, with a mask and without", spec.on_failure);
        return Err(ModuleError::invalid("spec", text));
    }
    let width = spec.width() as u64;
    let element = match lookup.dtype() {
        DType::F32 => element::F32,
        DType::F16 => element::F16,
        DType::BF16 => element::BF16,
        DType::I8 => element::I8,
        DType::U8 => element::U8,
        other => return Err(ModuleError::invalid("dtype", format!("no look-up yields elements of type {other}"))),
    };
    if !spec.pooled() {
        if offsets.is_there != 0 {
            return Err(ModuleError::invalid("offsets", "rows are not pooled: leave offsets out"));
        }
        return Ok(OperatorShape { pooled: 0, element, rows: ids.count, width });
    }
    let features = spec.features.len() as u64;
    let rows = if offsets.is_there != 0 {
        if ids.dims != 1 {
            return Err(ModuleError::invalid(
                "offsets",
                format!("input has {} dimensions: leave offsets out", ids.dims),
            ));
        }
        let starts = offsets.count.checked_sub(u64::from(spec.has_last));
        match starts {
            Some(starts) if starts.is_multiple_of(features) => starts / features,
            _ => {
                let text = format!("{} of them, for {features} features with as many bags each", offsets.count);
                return Err(ModuleError::invalid("offsets", text));
            }
        }
    } else if ids.dims == 2 && features == 1 {
        ids.first
    } else {
        return Err(ModuleError::invalid("offsets", "input has not two dimensions: say where bags begin"));
    };
    Ok(OperatorShape { pooled: 1, element, rows, width })
}
