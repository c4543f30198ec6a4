# SPDX-License-Identifier: Apache-2.0
"""Arrays as addresses, types, shapes and strides, without a copy: NumPy's, PyTorch's, and those of whatever has DLPack."""
import ctypes
import re
import sys
from operator import mul
from typing import Any

import numpy as np

from . import _native as native
from ._arguments import shown

# The storage type of each NumPy dtype, by its name, since those of ml_dtypes are not NumPy's own.
NUMPY_TYPES = {"float32": native.F32, "float16": native.F16, "bfloat16": native.BF16, "float8_e4m3fn": native.F8_E4M3,
               "float8_e5m2": native.F8_E5M2, "int8": native.INT8, "bool": native.BOOL, "int32": native.I32}
TYPE_NAMES = {number: name for name, number in NUMPY_TYPES.items()}
ELEMENT_BYTES = {native.F32: 4, native.F16: 2, native.BF16: 2, native.F8_E4M3: 1, native.F8_E5M2: 1, native.INT8: 1,
                 native.BOOL: 1, native.I32: 4}

# DLPack's type codes and bits (dlpack.h, DLDataTypeCode).
DLPACK_TYPES = {(2, 32): native.F32, (2, 16): native.F16, (4, 16): native.BF16, (10, 8): native.F8_E4M3,
                (12, 8): native.F8_E5M2, (0, 8): native.INT8, (6, 8): native.BOOL, (0, 32): native.I32}
DLPACK_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
FLOATS = native.F32, native.F16, native.BF16
STORED = *FLOATS, native.F8_E4M3, native.F8_E5M2, native.INT8


class Tensor:
    """An array in memory. Strides are bytes, that of channels 0 where they lie in groups; owner keeps the memory alive."""
    __slots__ = ("address", "type", "shape", "strides", "owner", "library", "writeable")

    def __init__(self, address: int, kind: int, shape: tuple[int, ...], strides: tuple[int, ...], owner: Any, library: str,
                 writeable: bool = True):
        self.address, self.type, self.shape, self.strides = address, kind, shape, strides
        self.owner, self.library, self.writeable = owner, library, writeable

    @property
    def signature(self) -> tuple[Any, ...]:
        """All that a plan depends on."""
        return self.type, self.shape, self.strides

    def __reduce__(self) -> Any:
        raise TypeError("an address cannot be copied or pickled: whoever keeps a Tensor makes it anew, of the copied array")


def dtype_of(kind: int) -> "np.dtype[Any]":
    """The NumPy dtype of a storage type that has one."""
    name = TYPE_NAMES[kind]
    if hasattr(np, name) or name == "bool":
        return np.dtype(name)
    import ml_dtypes
    return np.dtype(getattr(ml_dtypes, name))


def _unknown(name: str, what: Any, needed: tuple[int, ...], of_torch: bool = False) -> TypeError:
    return TypeError(f"{name} is {what}: {names_of(needed)} is needed{_cast(name, str(what), needed, of_torch)}")


def _cast(name: str, what: str, needed: tuple[int, ...], of_torch: bool) -> str:
    """What to write where an input's numbers are of another type. Floats make no mask, and an output is none of them."""
    kind = re.match(r"complex|float|u?int|bool", what)
    to_mask = needed == (native.BOOL,)
    if kind is None or name == "out" or (to_mask and kind[0] in ("complex", "float")):
        return ""
    part = f"{name}.real" if kind[0] == "complex" else name
    if of_torch:
        method = ".bool()" if to_mask else ".float().contiguous()" if kind[0] == "complex" else ".float()"
        return f" (write {part}{method})"
    return f" (write {part}.astype({'bool' if to_mask else 'np.float32'}))"


def names_of(types: tuple[int, ...]) -> str:
    """In words: float32, float16 or bfloat16."""
    *most, last = (TYPE_NAMES[kind] for kind in types)
    return f"{', '.join(most)} or {last}" if most else last


class _DLDevice(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", _DLDevice), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _DLTensor)]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes, _capsule_pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.argtypes, _capsule_is.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int

_CPU = 1  # kDLCPU
_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY


def _from_dlpack(x: Any, name: str, types: tuple[int, ...]) -> Tensor:
    """The capsule is looked at and not consumed: it frees the tensor when it is dropped."""
    device, _ = x.__dlpack_device__()
    if device != _CPU:
        raise TypeError(f"{name} is not in the CPU's memory")
    try:
        capsule = x.__dlpack__(max_version=(1, 0))
    except TypeError:  # before DLPack 1.0
        capsule = x.__dlpack__()
    writeable = False  # before DLPack 1.0 nobody says
    if _capsule_is(capsule, b"dltensor_versioned"):
        managed = _DLManagedTensorVersioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        t, writeable = managed.tensor, not managed.flags & _READ_ONLY
    else:
        t = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    kind = DLPACK_TYPES.get((t.code, t.bits)) if t.lanes == 1 else None
    if kind is None:
        what = f"of DLPack's type {t.code} with {t.lanes} x {t.bits} bits"
        if t.lanes == 1 and t.code in DLPACK_KINDS:
            what = f"{DLPACK_KINDS[t.code]}{t.bits} ({what})"
        raise _unknown(name, what, types)
    shape, size = tuple(t.shape[:t.ndim]), t.bits // 8
    if t.strides:
        strides = tuple(stride * size for stride in t.strides[:t.ndim])
    else:
        strides = dense_strides(shape, size)
    return Tensor((t.data or 0) + t.byte_offset, kind, shape, strides, (x, capsule), "dlpack", writeable)


def _is_plain_torch_type(kind: type) -> bool:
    """Whether tensors of a subclass of torch.Tensor have their elements in memory as any other: nn.Parameter's, but not those of
    a class that computes its operators itself (NestedTensor, MaskedTensor, DTensor, FakeTensor)."""
    torch = sys.modules["torch"]
    function = kind.__torch_function__  # type: ignore[attr-defined]
    plain = (function is torch._C._disabled_torch_function_impl
             or getattr(function, "__func__", None) is torch.Tensor.__torch_function__.__func__)
    return plain and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__  # type: ignore[attr-defined]


_torch_types: dict[type, bool] = {}  # whether the subclasses of torch.Tensor that were met are plain


def is_plain_torch(x: Any) -> bool:
    """Whether a tensor of PyTorch is of no subclass that computes its operators itself."""
    plain = _torch_types.get(type(x))
    if plain is None:
        plain = _torch_types[type(x)] = _is_plain_torch_type(type(x))
    return plain


def refusal_of_torch(x: Any, name: str) -> TypeError | ValueError:
    """Why rapt cannot read a tensor of PyTorch."""
    torch = sys.modules["torch"]
    if not is_plain_torch(x):
        return TypeError(f"{name} is a {type(x).__name__}, which computes its operators itself: a torch.Tensor is needed")
    if x.is_nested:
        return TypeError(f"{name} is a nested tensor: lay its parts behind each other, with q_starts and k_starts")
    if x.layout is not torch.strided:
        return TypeError(f"{name} is {str(x.layout).removeprefix('torch.')}: a dense tensor is needed, such as its to_dense()")
    if not x.is_cpu:
        return TypeError(f"{name} is on {x.device}, not in the CPU's memory")
    try:
        found = x.untyped_storage().nbytes() if x.data_ptr() else 0
    except (RuntimeError, NotImplementedError):
        return TypeError(f"{name} belongs to a transform of torch.func, which does not see what happens here: use "
                         "F.scaled_dot_product_attention with rapt.torch.enabled()")
    return ValueError(f"{name} has {found} bytes of memory, too few for shape {tuple(x.shape)} and strides {x.stride()} from "
                      f"element {x.storage_offset()} on")


def torch_address(x: Any, name: str, size: int) -> int:
    """Where a tensor of PyTorch begins, of which so many bytes are read or written. Its storage may have become smaller, as a
    sharded parameter's does between its uses; zeros that autograd makes, and tensors of torch.func's transforms, have none."""
    try:
        address: int = x.data_ptr()
        if not size or (address and x.untyped_storage().nbytes() >= size + x.storage_offset() * x.element_size()):
            return address
    except (RuntimeError, NotImplementedError):
        pass
    raise refusal_of_torch(x, name)


def torch_bytes(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> int:
    """How many there are from the first element to the end of the last, with elements and strides of that many bytes."""
    return sum(map(mul, shape, strides)) - sum(strides) + size if 0 not in shape else 0


def refuse_torch_gradients(x: Any, name: str, way: str) -> None:
    """Raises where a tensor of PyTorch has a derivative, which rapt would lose. way: what to do instead."""
    torch = sys.modules["torch"]
    if x.requires_grad and torch.is_grad_enabled():
        raise TypeError(f"{name} requires a gradient, which does not pass through here: {way}")
    forward = torch.autograd.forward_ad
    if forward._current_level >= 0 and forward.unpack_dual(x).tangent is not None:
        raise TypeError(f"{name} has a forward-mode derivative, which does not pass through here: {way}")


def _checked_torch(x: Any, name: str) -> Any:
    """The tensor x of PyTorch, if rapt can read it; a copy where it has a negative bit, which stands for a lazy -x."""
    torch = sys.modules["torch"]
    if not (_torch_types.get(type(x)) or is_plain_torch(x)) or x.layout is not torch.strided or x.is_nested or not x.is_cpu:
        raise refusal_of_torch(x, name)
    if x.requires_grad or torch.autograd.forward_ad._current_level >= 0:
        refuse_torch_gradients(x, name, "detach() it, or use rapt.torch")
    return x.resolve_neg() if x.is_neg() else x


def _from_torch(x: Any, name: str, types: tuple[int, ...]) -> Tensor:
    checked = _checked_torch(x, name)
    kind = _kinds.get(x.dtype)
    if kind is None:
        kind = NUMPY_TYPES.get(str(x.dtype).removeprefix("torch."))
        if kind is None:
            raise _unknown(name, str(x.dtype).removeprefix("torch."), types, of_torch=True)
        _kinds[x.dtype] = kind
    size = ELEMENT_BYTES[kind]
    shape, strides = tuple(checked.shape), tuple([stride * size for stride in checked.stride()])
    needed = checked.nbytes if checked.is_contiguous() else torch_bytes(shape, strides, size)  # the first is found sooner
    address = torch_address(checked, name, needed)
    return Tensor(address, kind, shape, strides, checked, "torch", checked is x)


_kinds: dict[Any, int] = {}  # the storage types of the dtypes that were met, whose names take a while to find


def _kind_of(dtype: "np.dtype[Any]", name: str, types: tuple[int, ...]) -> int:
    kind = NUMPY_TYPES.get(dtype.name)
    if kind is None:
        raise _unknown(name, dtype.name, types)
    if not dtype.isnative:
        raise TypeError(f"{name} is not in this machine's byte order")
    return _kinds.setdefault(dtype, kind)


def tensor(x: Any, name: str, types: tuple[int, ...] = STORED) -> Tensor:
    """The array x, which messages call by that name, of one of these types."""
    if type(x) is Tensor:  # a cache's, of any type
        return x
    t = _looked_at(x, name, types)
    if t.type not in types:
        raise _unknown(name, TYPE_NAMES[t.type], types, of_torch=t.library == "torch")
    return t


def _refuse_masked(x: "np.ndarray[Any, Any]", name: str) -> None:
    """Raises where an array of a subclass of NumPy's has elements that are not to be read."""
    if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
        raise TypeError(f"{name} is a MaskedArray with masked elements, which would count here: its filled(...) is needed")


def _looked_at(x: Any, name: str, types: tuple[int, ...]) -> Tensor:
    if isinstance(x, np.ndarray):
        if type(x) is not np.ndarray:
            _refuse_masked(x, name)
        kind = _kinds.get(x.dtype) or _kind_of(x.dtype, name, types)
        return Tensor(x.__array_interface__["data"][0], kind, x.shape, x.strides, x, "numpy", x.flags.writeable)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _from_torch(x, name, types)
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        return _from_dlpack(x, name, types)
    if "Tracer" in type(x).__name__:
        raise TypeError(f"{name} is traced by JAX: rapt.jax has attention for jit and vmap")
    raise TypeError(f"{name} is a {type(x).__name__}, not an array of NumPy, PyTorch or another library with DLPack")


def written(t: Tensor, name: str) -> None:
    """Raises unless the array may be written, and tells PyTorch that it is: autograd then sees where it needs what was there."""
    torch = t.library == "torch" and sys.modules["torch"]
    if not t.writeable:
        raise ValueError(f"{name} " + ("has a negative bit, a lazy -x, and cannot be written" if torch else "is not writeable"))
    if torch:
        torch.autograd.graph.increment_version(t.owner)


def floats(x: Any, name: str, dimensions: int | tuple[int, ...]) -> Tensor:
    """An array of float32, float16 or bfloat16 with that many dimensions."""
    t = tensor(x, name, FLOATS)
    allowed = (dimensions,) if isinstance(dimensions, int) else dimensions
    if len(t.shape) not in allowed:
        raise ValueError(f"{name} has {len(t.shape)} dimensions, where {' or '.join(map(str, allowed))} are needed")
    return t


def dense_strides(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Bytes, for elements of that size."""
    strides = [size] * len(shape)
    for i in range(len(shape) - 1, 0, -1):
        strides[i - 1] = strides[i] * shape[i]
    return tuple(strides)


def as_array(x: Any, name: str) -> "np.ndarray[Any, Any]":
    """An array of NumPy's, of a list or of whatever else NumPy takes."""
    torch = sys.modules.get("torch")
    if isinstance(x, np.ndarray):
        _refuse_masked(x, name)
    elif torch is not None and isinstance(x, torch.Tensor):
        x, size = _checked_torch(x, name).detach(), x.element_size()
        torch_address(x, name, torch_bytes(x.shape, tuple([stride * size for stride in x.stride()]), size))
        if x.is_complex() or x.is_quantized:
            raise TypeError(f"{name} is {str(x.dtype).removeprefix('torch.')}: real numbers are needed")
        if x.dtype == torch.bfloat16:  # which NumPy has not
            x = x.float()
    try:
        return np.asarray(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} is {shown(x)}: {' '.join(str(error).split())}") from None


def reals(x: Any, name: str, dtype: Any = np.float32) -> "np.ndarray[Any, Any]":
    """An array of that dtype without gaps, of lists and of arrays of other real numbers, which are converted."""
    a = as_array(x, name)
    if a.size and a.dtype.kind not in "fiu" and not a.dtype.name.startswith(("bfloat", "float")):
        raise TypeError(f"{name} is {a.dtype.name}: real numbers are needed")
    return a.astype(dtype, order="C", copy=False)


def dense_floats(x: Any, name: str, shape: tuple[int, ...]) -> Tensor:
    """An array of float32 of that shape without gaps; lists and other arrays are converted."""
    a = reals(x, name)
    if a.shape != shape:
        raise ValueError(f"{name} has shape {a.shape}, where {shape} is needed")
    return tensor(a, name, FLOATS)


_INT32 = np.dtype(np.int32)


def integers(x: Any, name: str, length: int | None = None) -> "np.ndarray[Any, Any]":
    """A vector of int32, of lists and of arrays of other integers, which are converted."""
    if type(x) is np.ndarray and x.dtype is _INT32 and x.ndim == 1 and x.flags.c_contiguous and length in (None, len(x)):
        return x
    a = as_array(x, name)
    if a.dtype.kind not in "iu" and a.size:
        raise TypeError(f"{name} is {a.dtype.name}: integers are needed")
    if a.ndim != 1 or (length is not None and len(a) != length):
        raise ValueError(f"{name} has shape {a.shape}, where ({'n' if length is None else length},) is needed")
    small = np.ascontiguousarray(a, dtype=np.int32)
    if not np.array_equal(small, a):
        raise ValueError(f"{name} has numbers beyond 32 bits")
    return small


def matrix(x: Any, name: str) -> "np.ndarray[Any, Any]":
    """Rows of int32 without gaps in them, of lists and of arrays of other integers, which are converted."""
    a = as_array(x, name)
    if a.ndim != 2:
        raise ValueError(f"{name} has {a.ndim} dimensions, where 2 are needed")
    if a.dtype == _INT32 and (a.strides[1] == 4 or a.shape[1] < 2) and a.strides[0] >= 0:
        return a
    return integers(a.reshape(-1), name).reshape(a.shape)


def empty(shape: tuple[int, ...], kind: int, like: Tensor) -> Any:
    """A new array of the library that like is of, or of NumPy's where that has no such thing."""
    if like.library == "torch":
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, TYPE_NAMES[kind]))
    return np.empty(shape, dtype_of(kind))
