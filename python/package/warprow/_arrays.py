"""Arrays of callers, of whatever library, as addresses. A caller of these functions holds what they return as `owner`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import WarprowError, invalid, wrong_type

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

#: Types of elements by the names that NumPy, ml_dtypes and torch give them.
_DTYPES = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int8": "i8",
    "uint8": "u8",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}
#: Types of elements that a table can have, by their names in the store. The first of them are made of others by a load; the rest a load takes
#: as the source has them.
MADE_DTYPES = ("f32", "f16", "bf16", "f8e4m3", "f8e5m2", "q8", "q4")
STORED_DTYPES = (*MADE_DTYPES, "i8", "u8", "mxfp8", "f8e4m3s", "nvfp4")
#: Types of output by their names here.
_OUTPUT = {"f32": "float32", "f16": "float16", "i8": "int8", "u8": "uint8"}
#: Kinds of DLPack devices whose memory the processor reads: its own, and pinned memory of CUDA and ROCm.
_HOST_MEMORY = (1, 3, 11)
_INTEGERS = {"int32": "i32", "int64": "i64", "uint32": "u32", "uint64": "u64"}


def numpy() -> Any:
    """NumPy, which this package needs for arrays alone."""
    try:
        import numpy
    except ImportError as error:
        raise WarprowError("NumPy is not installed: pip install 'warprow[numpy]'") from error
    return numpy


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "data_ptr") and hasattr(value, "detach")


def has_memory(tensor: Any) -> bool:
    """Whether the storage of a tensor of torch has all bytes that the tensor names: it can be made smaller under it."""
    count: int = tensor.numel()
    if count == 0:
        return True
    last = count - 1
    if not tensor.is_contiguous():
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    needed: int = (tensor.storage_offset() + last + 1) * tensor.element_size()
    return needed <= int(tensor.untyped_storage().nbytes())


def _resolved(tensor: Any) -> Any:
    """A tensor whose memory has its values: torch negates and conjugates some only when it reads them."""
    return tensor.resolve_conj().resolve_neg() if hasattr(tensor, "resolve_neg") else tensor


def as_array(argument: str, value: Any) -> Array:
    """`value` as a NumPy array, without a copy where its library allows that."""
    np = numpy()
    if _is_tensor(value):
        tensor = value.detach()
        if tensor.device.type != "cpu":
            raise invalid(argument, f"a tensor on {tensor.device}: give one on the CPU, or use warprow.torch")
        try:
            if not has_memory(tensor):
                raise _without_values(argument, value)
            return _resolved(tensor).numpy()  # type: ignore[no-any-return]
        except WarprowError:
            raise
        except (RuntimeError, TypeError) as error:
            text = f"a {type(value).__name__} of torch that NumPy cannot take ({error}): give a tensor of another type, with values"
            raise wrong_type(argument, text) from error
    if isinstance(value, np.ndarray):
        if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
            raise invalid(argument, "a masked array, some of whose elements are masked: leave them out, or fill them in, by filled()")
        return value
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        return _of_dlpack(argument, value)
    try:
        return np.asarray(value)  # type: ignore[no-any-return]
    except (TypeError, ValueError) as error:
        text = f"a {type(value).__name__} that NumPy cannot take ({error}): give an array, or lists of one length"
        raise wrong_type(argument, text) from error


def _of_dlpack(argument: str, value: Any) -> Array:
    np = numpy()
    kind = int(value.__dlpack_device__()[0])
    try:
        # What lies on a GPU and has `__array__`, as arrays of JAX, copies itself to the host.
        if hasattr(value, "__array__"):
            return np.asarray(value)  # type: ignore[no-any-return]
        if kind in _HOST_MEMORY:
            return np.from_dlpack(value)  # type: ignore[no-any-return]
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        if kind in _HOST_MEMORY:
            text = f"a {type(value).__name__} that NumPy cannot take ({error}): give a NumPy array or a tensor"
            raise wrong_type(argument, text) from error
    text = f"a {type(value).__name__} in a GPU's memory (DLPack device {kind}): copy it to the host, or use warprow.torch"
    raise invalid(argument, text)


def integers(argument: str, value: Any, *, dims: int | None = None) -> tuple[Array, tuple[int, int, str]]:
    """An array of integers, contiguous, and its address, length and type."""
    np = numpy()
    array = as_array(argument, value)
    if array.size == 0 and array.dtype == np.float64:
        # An empty list.
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise wrong_type(argument, f"elements of type {array.dtype}: give integers of 32 or 64 bits")
    if dims is not None and array.ndim != dims:
        raise invalid(argument, f"{array.ndim} dimensions, where {dims} are meant: shape {array.shape}")
    if array.dtype.itemsize < 4:
        array = array.astype(np.int32)
    # In the byte order of the machine, and aligned.
    array = aligned(np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C"))
    return array, (address_of(array), array.size, _INTEGERS[array.dtype.name])


def aligned(array: Array) -> Array:
    """The array, or a copy where its elements lie at addresses that are no multiples of their size, as in a record or a message."""
    return array if array.flags.aligned else array.copy()


def address_of(array: Array) -> int:
    """The address of an array's first element."""
    return int(array.__array_interface__["data"][0])


@dataclass(frozen=True)
class Rows:
    """Rows in memory."""

    owner: Any
    address: int
    nbytes: int
    rows: int
    dim: int
    dtype: str


def rows(argument: str, value: Any, *, may_be_empty: bool = False) -> Rows:
    """An array of shape (rows, dim), contiguous, of a type that a table can have."""
    owner, shape, name = value, getattr(value, "shape", None), str(getattr(value, "dtype", "")).removeprefix("torch.")
    if not _is_tensor(value):
        owner = as_array(argument, value)
        shape, name = owner.shape, owner.dtype.name
    if shape is None or len(shape) != 2:
        raise invalid(argument, f"shape {tuple(shape or ())}: a table has two dimensions, rows and elements of a row")
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise wrong_type(argument, f"elements of type {name}: convert them to one of {', '.join(_DTYPES)}")
    if shape[1] == 0 or (shape[0] == 0 and not may_be_empty):
        raise invalid(argument, f"shape {tuple(shape)}: a table has at least one row of one element")
    if _is_tensor(owner):
        try:
            if not has_memory(owner.detach()):
                raise _without_values(argument, value)
            tensor = _resolved(owner.detach().cpu().contiguous())
            nbytes, address = tensor.numel() * tensor.element_size(), tensor.data_ptr()
        except WarprowError:
            raise
        except RuntimeError as error:
            raise _without_values(argument, value) from error
        if nbytes and not address:
            raise _without_values(argument, value)
        return Rows(tensor, address, nbytes, shape[0], shape[1], dtype)
    # In the byte order of the machine.
    array = numpy().ascontiguousarray(owner, dtype=None if owner.dtype.isnative else owner.dtype.newbyteorder("="))
    return Rows(array, address_of(array), array.nbytes, shape[0], shape[1], dtype)


def _without_values(argument: str, value: Any) -> WarprowError:
    text = f"a {type(value).__name__} on {value.device} that has no memory, or less than its shape says: give a tensor with values"
    return wrong_type(argument, text)


def output_dtype(stored: str) -> str:
    """The type of look-ups' output where nobody asked for one: that of the table, or f32 where NumPy has none such."""
    return stored if stored in _OUTPUT else "f32"


def output(out: Array | None, shape: tuple[int, ...], dtype: str) -> Array:
    """An array for rows: `out`, checked, or a new one."""
    np = numpy()
    if dtype not in _OUTPUT:
        raise invalid("dtype", f"{dtype!r} is no type of NumPy's: give one of {', '.join(_OUTPUT)}")
    if out is None:
        return np.empty(shape, dtype=_OUTPUT[dtype])  # type: ignore[no-any-return]
    if not isinstance(out, np.ndarray):
        raise wrong_type("out", f"a {type(out).__name__}: give a NumPy array")
    if out.dtype.name != _OUTPUT[dtype]:
        raise wrong_type("out", f"elements of type {out.dtype}: give {_OUTPUT[dtype]}")
    if not out.dtype.isnative:
        raise wrong_type("out", f"elements of type {out.dtype.str!r}, not in this machine's byte order: give {_OUTPUT[dtype]}")
    if out.shape != shape:
        raise invalid("out", f"shape {out.shape}: give {shape}")
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise invalid("out", "it is not contiguous, or cannot be written to: give a contiguous array")
    if not out.flags.aligned:
        raise invalid("out", f"it lies at an address that is no multiple of the {out.itemsize} bytes of an element: give an aligned array")
    return out


def check_apart(out: Array, **given: Array | None) -> None:
    """Whether an output shares no memory with what is read while it is filled: contiguous arrays, by their arguments' names."""
    begin = address_of(out)
    for argument, array in given.items():
        if array is not None and begin < (at := address_of(array)) + array.nbytes and at < begin + out.nbytes:
            raise invalid("out", f"it shares memory with {argument}: give an array of its own")


def keys(argument: str, value: Any) -> Array:
    """Ids or keys of a table: whole numbers of 64 bits, one after another."""
    np = numpy()
    array, _ = integers(argument, value, dims=1)
    return np.ascontiguousarray(array, dtype=np.int64 if array.dtype.kind == "i" else np.uint64)  # type: ignore[no-any-return]
