# SPDX-License-Identifier: Apache-2.0
# _tensors.py - reads the tensors of every framework where they lie: pointer, dtype, shape and strides, never a copy
"""Each framework has four functions for its tensors:
  device_of(x)                   (kind, ordinal)
  stream_of(x, ordinal)          the CUDA stream that the caller works on
  view_of(x, reader)             its View
  empty_like(x, zeroed, stream, channels)
                                 a new tensor of its shape and dtype; stream: the one that the caller named, or None;
                                 channels: length of the last axis, or 0 for that of x
This file imports none of the frameworks: the framework of a tensor that is given is already loaded."""
from __future__ import annotations

import struct
import sys
from ctypes import c_uint64
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import _abi, _calls, _cuda, _dlpack
from ._enums import DTYPES, FOREIGN, Device, device_name, dtype_number, is_foreign
from ._integers import integer, integer_for

MAX_NDIM = _dlpack.MAX_NDIM
_LEGACY_DEFAULT_STREAM = {0, 1}  # CUDA's handles of it; the protocols use the number 1

# rope_tensor_t with its arrays unrolled. It is packed at once: ctypes takes several times as long for the members.
PACKED_TENSOR = struct.Struct("=QiHH4q4q")


class View(NamedTuple):
    data: int
    dtype: int
    shape: Sequence[int]
    stride: Tuple[int, ...]  # in elements
    kind: int
    ordinal: int
    is_read_only: bool = False
    owner: Any = None  # keeps the memory alive during the call, in addition to the tensor itself


_dtype_numbers: Dict[Any, int] = {}  # by dtype object: reading the name of a dtype takes longer than all the rest


def _number_of_dtype(dtype: Any) -> int:
    number = _dtype_numbers.get(dtype)
    if number is None:
        if is_foreign(dtype):
            raise TypeError(f"its dtype is {dtype.str}: {FOREIGN}")
        name = getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]
        number = DTYPES.get(name)
        if number is None:
            raise TypeError(f"its dtype is {name}: librope has none such")
        _dtype_numbers[dtype] = number
    return number


def _strides_in_elements(byte_strides: Tuple[int, ...], item_size: int) -> Tuple[int, ...]:
    for stride in byte_strides:
        if stride % item_size:
            raise ValueError(f"its strides are {byte_strides} bytes: they must be multiples of {item_size}")
    return tuple([stride // item_size for stride in byte_strides])


def refuse_tangent(x: Any) -> None:
    """Without this, torch would take a result without a tangent for one with a derivative of zero."""
    forward_ad = sys.modules["torch"].autograd.forward_ad
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None:
        raise ValueError(
            "it has a tangent of forward-mode AD (torch.func.jvp, torch.func.jacfwd, torch.autograd.forward_ad), which "
            "librope does not propagate: use reverse mode through librope.torch, or the primal of unpack_dual()")


_TORCH_SUBCLASSES = {
    "DTensor": "it is a DTensor, of which each rank has a part: give its to_local()",
    "MaskedTensor": "it is a MaskedTensor, whose mask would be ignored: give its get_data()",
}


def why_no_memory(x: Any) -> Optional[str]:
    """Why a tensor of torch is not one piece of memory with strides, as far as its kind tells; None if it may be."""
    if x.is_nested:
        return ("it is a nested tensor: for layout \"thd\" give the values() of one with torch.jagged, and its "
                "offsets() as cu_seqlens")
    for base in type(x).__mro__:
        if base.__name__ in _TORCH_SUBCLASSES and base.__module__.startswith("torch."):
            return _TORCH_SUBCLASSES[base.__name__]
    if x.layout is not sys.modules["torch"].strided:
        return f"its layout is {x.layout}: only strided tensors lie in one piece of memory"
    return f"its dtype is {x.dtype}: librope has none such" if x.is_quantized else None


class _Torch:
    is_jax = False

    @staticmethod
    def device_of(x: Any) -> Tuple[int, int]:
        device = x.device
        if device.type == "cuda":
            return Device.CUDA, device.index
        if device.type == "cpu":
            return Device.CPU, 0
        raise TypeError(f"its device is {device}: librope has 'cpu' and 'cuda'")

    @staticmethod
    def stream_of(x: Any, ordinal: int) -> int:
        torch = sys.modules["torch"]
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        number: int = raw(ordinal) if raw is not None else torch.cuda.current_stream(ordinal).cuda_stream
        return number

    @staticmethod
    def view_of(x: Any, reader: "Reader") -> View:
        torch = sys.modules["torch"]
        reason = why_no_memory(x)
        if reason is not None:
            raise TypeError(reason)
        if x.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                "it requires grad, which this call would not record: use librope.torch, torch.no_grad() or detach()")
        if x.is_neg():
            raise ValueError("it is a lazily negated view: resolve_neg() it first")
        refuse_tangent(x)
        kind, ordinal = _Torch.device_of(x)
        try:
            # FakeTensors of some versions of torch have an address, and warn of it.
            data = 0 if type(x).__name__ == "FakeTensor" else x.data_ptr()
        except RuntimeError as error:
            raise TypeError(
                f"it is traced: torch.func's vmap, grad and jvp cannot see into this call ({error})") from None
        if not data and x.numel():  # a wrapper, a fake, or one whose storage was freed
            name = f"{type(x).__module__}.{type(x).__qualname__}"
            raise TypeError(f"it is a {name} of {x.numel()} elements without memory: librope works on memory itself")
        return View(data, _number_of_dtype(x.dtype), x.shape, x.stride(), kind, ordinal)

    @staticmethod
    def empty_like(x: Any, zeroed: bool, stream: Optional[int], channels: int = 0) -> Any:
        torch = sys.modules["torch"]
        if stream is not None and x.is_cuda:  # its memory is reused, and zeroed, in the order of that stream
            is_default = stream in _LEGACY_DEFAULT_STREAM  # ExternalStream takes these for no handle
            with torch.cuda.stream(
                    torch.cuda.default_stream(x.device) if is_default
                    else torch.cuda.ExternalStream(stream, device=x.device)):
                return _Torch.empty_like(x, zeroed, None, channels)
        if channels:
            return _calls.widened_torch(x, channels, zeroed)
        return torch.zeros_like(x) if zeroed else torch.empty_like(x)

    @staticmethod
    def wrote(x: Any) -> None:
        """Tells autograd that a tensor changed, so that autograd can refuse a backward that needs the old values."""
        if not x.is_inference():
            sys.modules["torch"].autograd.graph.increment_version(x)


class _Numpy:
    is_jax = False

    @staticmethod
    def device_of(x: Any) -> Tuple[int, int]:
        return Device.CPU, 0

    @staticmethod
    def stream_of(x: Any, ordinal: int) -> int:
        return 0

    @staticmethod
    def view_of(x: Any, reader: "Reader") -> View:
        data, is_read_only = x.__array_interface__["data"]
        return View(
            data, _number_of_dtype(x.dtype), x.shape, _strides_in_elements(x.strides, x.itemsize), Device.CPU, 0,
            is_read_only)

    @staticmethod
    def empty_like(x: Any, zeroed: bool, stream: Optional[int], channels: int = 0) -> Any:
        if channels:
            return _calls.widened_numpy(x, channels, zeroed)
        numpy = sys.modules["numpy"]
        return numpy.zeros_like(x, subok=False) if zeroed else numpy.empty_like(x, subok=False)

    @staticmethod
    def wrote(x: Any) -> None:
        pass


class _Cupy:
    is_jax = False

    @staticmethod
    def device_of(x: Any) -> Tuple[int, int]:
        return Device.CUDA, x.device.id

    @staticmethod
    def stream_of(x: Any, ordinal: int) -> int:
        with x.device:
            return int(sys.modules["cupy"].cuda.get_current_stream().ptr)

    @staticmethod
    def view_of(x: Any, reader: "Reader") -> View:
        return View(
            x.data.ptr, _number_of_dtype(x.dtype), x.shape, _strides_in_elements(x.strides, x.itemsize), Device.CUDA,
            x.device.id)

    @staticmethod
    def empty_like(x: Any, zeroed: bool, stream: Optional[int], channels: int = 0) -> Any:
        cupy = sys.modules["cupy"]
        with x.device:
            if stream is not None:  # as for torch
                with cupy.cuda.ExternalStream(stream):
                    return _Cupy.empty_like(x, zeroed, None, channels)
            if channels:
                return (cupy.zeros if zeroed else cupy.empty)((*x.shape[:-1], channels), x.dtype)
            return cupy.zeros_like(x) if zeroed else cupy.empty_like(x)

    @staticmethod
    def wrote(x: Any) -> None:
        pass


def _view_of_dlpack(x: Any, reader: "Reader") -> View:
    kind, _ = _device_of_dlpack(*x.__dlpack_device__())
    contents = _dlpack.read(_dlpack.export(x, kind == Device.CUDA, reader.stream))
    if contents.dtype is None:
        raise TypeError(f"its dtype is {contents.dtype_text}: librope has none such")
    if contents.device_type in (_dlpack.CUDA_HOST, _dlpack.CUDA_MANAGED):
        kind, ordinal = reader.kind, reader.ordinal
    else:
        kind, ordinal = _device_of_dlpack(contents.device_type, contents.device_id)
    return View(
        contents.data, contents.dtype, contents.shape, contents.stride, kind, ordinal, contents.is_read_only,
        contents.capsule)


def _device_of_dlpack(device_type: Any, device_id: Any) -> Tuple[int, int]:
    # Some producers return an enumerator.
    device_type = integer("its DLPack device type", getattr(device_type, "value", device_type))
    if device_type in (_dlpack.CPU, _dlpack.CUDA_HOST):
        return Device.CPU, 0
    if device_type in (_dlpack.CUDA, _dlpack.CUDA_MANAGED):
        return Device.CUDA, integer("its DLPack device", device_id)
    raise TypeError(f"its DLPack device type is {device_type}: librope has 1 (CPU) and 2 (CUDA)")


class _Jax:
    """JAX arrays never change. A result is a new array, which the library writes before the caller can see it."""

    is_jax = True

    @staticmethod
    def device_of(x: Any) -> Tuple[int, int]:
        return _device_of_dlpack(*x.__dlpack_device__())

    @staticmethod
    def stream_of(x: Any, ordinal: int) -> int:
        return 0

    @staticmethod
    def view_of(x: Any, reader: "Reader") -> View:
        x.block_until_ready()
        return _view_of_dlpack(x, reader)

    @staticmethod
    def empty_like(x: Any, zeroed: bool, stream: Optional[int], channels: int = 0) -> Any:
        shape = (*x.shape[:-1], channels) if channels else x.shape
        return sys.modules["jax"].numpy.zeros(shape, dtype=x.dtype, device=x.sharding)

    @staticmethod
    def wrote(x: Any) -> None:
        pass


# Without the byte order
_TYPESTRS = {
    "f4": _abi.ROPE_DTYPE_F32,
    "f2": _abi.ROPE_DTYPE_F16,
    "f8": _abi.ROPE_DTYPE_F64,
    "i4": _abi.ROPE_DTYPE_I32,
    "i8": _abi.ROPE_DTYPE_I64,
}
# ml_dtypes gives these typestrs to several types each; the array's dtype has the name.
_TYPESTRS_OF_MANY = {"V2": ("bfloat16",), **dict.fromkeys(("V1", "f1"), (
    "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"))}


_SEQUENCES: Any = (tuple, list)


class _Interface:
    """Reads an __array_interface__ or __cuda_array_interface__. Python counts True as 1; here only integers are
    numbers."""

    def __init__(self, x: Any, name: str) -> None:
        entries: Any = getattr(x, name)
        if not isinstance(entries, dict):
            raise TypeError(f"its {name} is {entries!r}: it must be a dict")
        self.entries: Dict[str, Any] = entries
        self.dtype_name: str = getattr(getattr(x, "dtype", None), "name", "")

    def integers(self, entry: str) -> Tuple[int, ...]:
        values: Any = self.entries.get(entry)
        if not isinstance(values, _SEQUENCES):
            raise TypeError(f"its {entry} is {values!r}: it must be a tuple of integers")
        return tuple([integer(f"its {entry}[{i}]", value) for i, value in enumerate(values)])

    def dtype(self) -> Tuple[int, int]:
        """The number of the dtype, and the bytes of an element."""
        typestr: Any = self.entries.get("typestr")
        if not isinstance(typestr, str):
            raise TypeError(f"its typestr is {typestr!r}: it must be a str")
        order, kind = typestr[:1], typestr[1:]
        if order == ">":
            raise TypeError(f"its typestr is {typestr!r}: {FOREIGN}")
        number = _TYPESTRS.get(kind) if order == "<" else None
        if self.dtype_name in _TYPESTRS_OF_MANY.get(kind, ()):
            number = DTYPES[self.dtype_name]
        if number is None:
            raise TypeError(f"its typestr is {typestr!r}: librope has none such")
        return number, int(kind[1:])

    def address(self) -> Tuple[int, bool]:
        """The address of the first element, 0 if there is none, and whether it is read-only."""
        data: Any = self.entries.get("data")
        if data is None or self.entries.get("mask") is not None:
            raise TypeError("its array interface names no pointer, or a mask")
        if not isinstance(data, _SEQUENCES) or len(data) != 2:
            raise TypeError(f"its data is {data!r}: it must be an address, and whether it is read-only")
        return 0 if data[0] is None else integer("its data[0]", data[0]), bool(data[1])

    def stream(self) -> Optional[int]:
        stream: Any = self.entries.get("stream")
        return None if stream is None else integer_for(c_uint64, "its array interface", "stream", stream)


class _Protocols:
    """Tensors with __dlpack__, __cuda_array_interface__ or __array_interface__."""

    is_jax = False

    @staticmethod
    def device_of(x: Any) -> Tuple[int, int]:
        if hasattr(x, "__dlpack__"):
            return _device_of_dlpack(*x.__dlpack_device__())
        if hasattr(x, "__cuda_array_interface__"):
            return Device.CUDA, _Protocols._ordinal_of(x)
        if hasattr(x, "__array_interface__"):
            return Device.CPU, 0
        raise TypeError(
            f"it is a {type(x).__module__}.{type(x).__qualname__}: it must be a tensor of torch, NumPy, CuPy or JAX or "
            "have __dlpack__, __cuda_array_interface__ or __array_interface__")

    @staticmethod
    def _ordinal_of(x: Any) -> int:
        """The interface does not contain the device. numba's arrays have it; for others the driver tells it."""
        for holder in (getattr(x, "context", None), x):
            ordinal = getattr(getattr(holder, "device", None), "id", None)
            if isinstance(ordinal, int):
                return ordinal
        address, _ = _Interface(x, "__cuda_array_interface__").address()
        return _cuda.ordinal_of(address) if address else 0

    @staticmethod
    def stream_of(x: Any, ordinal: int) -> int:
        return 0 if hasattr(x, "__dlpack__") else _Interface(x, "__cuda_array_interface__").stream() or 0

    @staticmethod
    def view_of(x: Any, reader: "Reader") -> View:
        if hasattr(x, "__dlpack__"):
            return _view_of_dlpack(x, reader)
        kind, ordinal = _Protocols.device_of(x)
        is_on_cuda = kind == Device.CUDA
        interface = _Interface(x, "__cuda_array_interface__" if is_on_cuda else "__array_interface__")
        dtype, item_size = interface.dtype()
        data, is_read_only = interface.address()
        if is_on_cuda and not data and reader.kind == kind:  # without memory it is on no other device
            ordinal = reader.ordinal
        shape = interface.integers("shape")
        if interface.entries.get("strides") is None:
            stride = _dlpack.compact_strides(shape)
        else:
            stride = _strides_in_elements(interface.integers("strides"), item_size)
            if len(stride) != len(shape):
                raise ValueError(f"its strides are {stride} elements: its shape {shape} needs one for each axis")
        producer = interface.stream()
        if producer not in (None, reader.stream) and not {producer, reader.stream} <= _LEGACY_DEFAULT_STREAM:
            _cuda.synchronize(ordinal, producer)
        return View(data, dtype, shape, stride, kind, ordinal, is_read_only, interface.entries)

    @staticmethod
    def empty_like(x: Any, zeroed: bool, stream: Optional[int], channels: int = 0) -> Any:
        raise TypeError(f"librope cannot make a {type(x).__module__}.{type(x).__qualname__}: give out")

    @staticmethod
    def wrote(x: Any) -> None:
        pass


_frameworks: Dict[type, Any] = {}


def framework_of(x: object) -> Any:
    framework = _frameworks.get(type(x))
    if framework is None:
        framework = _frameworks[type(x)] = _find_framework(type(x))
        _calls.register_framework(type(x))
    return framework


def _find_framework(cls: type) -> Any:
    for base in cls.__mro__:
        root, name = base.__module__.partition(".")[0], base.__name__
        if root == "torch" and name == "Tensor":
            return _Torch
        if root == "numpy" and name == "MaskedArray":
            raise TypeError("it is a numpy.ma.MaskedArray, whose mask would be ignored: give its data or filled()")
        if root == "numpy" and name == "ndarray":
            return _Numpy
        if root == "cupy" and name == "ndarray":
            return _Cupy
        if root in ("jax", "jaxlib"):
            if name == "Tracer":
                raise TypeError("librope cannot be traced by JAX: call it outside jit, grad and vmap")
            if name in ("Array", "ArrayImpl"):
                return _Jax
    return _Protocols


def stream_number(function: str, stream: Any) -> int:
    """The handle of a stream, given as a number or as a stream of torch, CuPy or cuda.core."""
    if isinstance(stream, int):
        return integer_for(c_uint64, function, "stream", stream)
    for name in ("cuda_stream", "ptr"):
        handle = getattr(stream, name, None)
        if handle is not None:
            return int(handle)
    protocol: Any = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        pair: Any = protocol() if callable(protocol) else protocol
        return int(pair[1])
    raise TypeError(f"stream is {stream!r}: it must be a handle, or have cuda_stream, ptr or __cuda_stream__")


def current_stream(x: Any, device: Tuple[int, int]) -> int:
    """The current stream of x's framework on the device, or 0 on the CPU."""
    return framework_of(x).stream_of(x, device[1]) if device[0] == Device.CUDA else 0


class Reader:
    """Reads the tensors of one call into its args struct, and keeps the objects that must outlive the call."""

    def __init__(self, function: str, field: str, first: Any, stream: Any) -> None:
        self.function = function
        self.field = field
        self.owners: List[Any] = []
        self.has_jax = False
        self.written: List[Tuple[Any, Any]] = []
        self.given_stream = None if stream is None else stream_number(function, stream)
        try:
            framework = framework_of(first)
            self.kind, self.ordinal = framework.device_of(first)
        except (TypeError, ValueError, BufferError) as error:
            raise self._explained(field, error) from None
        self.stream: int = self.given_stream if self.given_stream is not None else current_stream(
            first, (self.kind, self.ordinal))

    def _explained(self, field: str, error: Exception) -> Exception:
        return type(error)(f"{self.function}: {field}: {error}")

    def read(
            self, args: Any, field: str, x: Any, is_output: bool = False, is_ours: bool = False,
            group: str = "") -> None:
        """Fills the rope_tensor_t `field` of args. is_ours: a new tensor, made for this call. group: the name of args
        in errors, with a dot, if args is a group of operands."""
        try:
            framework = framework_of(x)
            if framework.is_jax:
                self.has_jax = True
                if is_output and not is_ours:
                    raise TypeError(
                        "a JAX array is immutable and cannot be written: give no output, and the call makes a new one")
            view = framework.view_of(x, self)
            if (view.kind, view.ordinal) != (self.kind, self.ordinal):
                raise ValueError(
                    f"it is on {device_name(view.kind, view.ordinal)}, the first tensor of the call on "
                    f"{device_name(self.kind, self.ordinal)}")
            if is_output and view.is_read_only and not is_ours:
                raise ValueError("it is read-only")
            ndim = len(view.shape)
            if ndim == 0 or ndim > MAX_NDIM:
                raise ValueError(f"it has {ndim} axes: librope takes 1 to {MAX_NDIM}")
        except (TypeError, ValueError, BufferError) as error:
            raise self._explained(group + field, error) from None
        padding = (0,) * (MAX_NDIM - ndim)
        try:
            PACKED_TENSOR.pack_into(
                args, getattr(args.__class__, field).offset, view.data, view.dtype, ndim, _abi.ROPE_TENSOR_STRIDED,
                *view.shape, *padding, *view.stride, *padding)
        except struct.error as error:
            raise ValueError(
                f"{self.function}: {group}{field}: its shape is {tuple(view.shape)} and its strides are {view.stride}, at "
                f"{view.data:#x}: {error}") from None
        if view.owner is not None:
            self.owners.append(view.owner)
        if is_output and not is_ours:
            self.written.append((framework, x))

    def new_like(self, field: str, x: Any, zeroed: bool, channels: int = 0) -> Any:
        """A new tensor for an output of this call."""
        try:
            return framework_of(x).empty_like(x, zeroed, self.given_stream, channels)
        except TypeError as error:
            raise self._explained(field, error) from None

    def finish(self) -> None:
        """Runs after the call."""
        for framework, x in self.written:
            framework.wrote(x)
        if self.has_jax and self.kind == Device.CUDA:
            _cuda.synchronize(self.ordinal, self.stream)


def dtype_of(function: str, field: str, x: Any) -> int:
    dtype = getattr(x, "dtype", None)
    if dtype is not None:
        try:
            return dtype_number(dtype)
        except ValueError as error:
            raise TypeError(f"{function}: {field}: its {error}") from None
    reader = Reader(function, field, x, None)
    args = _abi.swiglu_args_t()
    reader.read(args, "gate", x)
    number: int = args.gate.dtype
    return number

