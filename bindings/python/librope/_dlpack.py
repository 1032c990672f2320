# SPDX-License-Identifier: Apache-2.0
# _dlpack.py - reads tensors through DLPack
"""A capsule is only read, not consumed. The call holds it and leaves its name as it is, so that the capsule's own
destructor calls the producer's deleter exactly once."""
from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any, List, NamedTuple, Optional, Tuple

from . import _abi

MAX_NDIM = 4
MAX_VERSION = (1, 0)
FLAG_READ_ONLY = 1
FLAG_IS_COPIED = 2

# Kinds of memory. Both the CPU and CUDA can use pinned and managed memory.
CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13

# (code, bits): signed integers are 0, IEEE floats 2, bfloat 4, float8_e4m3fn 10, float8_e5m2 12, float8_e8m0fnu 14,
# float4_e2m1fn 17
_FLOAT4 = 17  # one element has two lanes
_DTYPES = {
    (2, 32): _abi.ROPE_DTYPE_F32,
    (2, 16): _abi.ROPE_DTYPE_F16,
    (4, 16): _abi.ROPE_DTYPE_BF16,
    (2, 64): _abi.ROPE_DTYPE_F64,
    (0, 32): _abi.ROPE_DTYPE_I32,
    (0, 64): _abi.ROPE_DTYPE_I64,
    (10, 8): _abi.ROPE_DTYPE_F8_E4M3,
    (12, 8): _abi.ROPE_DTYPE_F8_E5M2,
    (14, 8): _abi.ROPE_DTYPE_F8_E8M0,
    (_FLOAT4, 4): _abi.ROPE_DTYPE_F4_E2M1X2,
}


class DLTensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class DLManagedTensor(Structure):
    _fields_ = [("dl_tensor", DLTensor), ("manager_ctx", c_void_p), ("deleter", c_void_p)]


class DLManagedTensorVersioned(Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager_ctx", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("dl_tensor", DLTensor),
    ]


_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype = ctypes.c_int
_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Contents(NamedTuple):
    capsule: Any  # owns the memory that the other fields describe
    data: int
    dtype: Optional[int]  # None: librope has no such dtype
    dtype_text: str
    shape: Tuple[int, ...]
    stride: Tuple[int, ...]
    device_type: int
    device_id: int
    is_read_only: bool


def compact_strides(shape: Tuple[int, ...]) -> Tuple[int, ...]:
    strides: List[int] = []
    step = 1
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


def export(x: Any, is_on_cuda: bool, stream: int) -> Any:
    """A capsule of x; on CUDA its work is ordered before the next work on `stream`."""
    # The protocol's number of the legacy default stream is 1.
    keywords = {"stream": stream or 1} if is_on_cuda else {}
    try:
        return x.__dlpack__(max_version=MAX_VERSION, **keywords)
    except TypeError:  # the producer is older than version 1.0
        return x.__dlpack__(**keywords)


def read(capsule: Any) -> Contents:
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = DLManagedTensorVersioned.from_address(_get_pointer(capsule, b"dltensor_versioned"))
        if versioned.major > MAX_VERSION[0]:
            raise BufferError(f"its DLPack version is {versioned.major}.{versioned.minor}: librope reads version 1")
        if versioned.flags & FLAG_IS_COPIED:
            raise BufferError("its DLPack export is a copy: librope works on the memory itself")
        is_read_only = bool(versioned.flags & FLAG_READ_ONLY)
        tensor = versioned.dl_tensor
    elif _is_valid(capsule, b"dltensor"):
        tensor = DLManagedTensor.from_address(_get_pointer(capsule, b"dltensor")).dl_tensor
        is_read_only = False
    else:
        raise BufferError("its __dlpack__ did not return a DLPack capsule, or one that was consumed")
    # The arrays of a producer that lies about their length are not read.
    if not 1 <= tensor.ndim <= MAX_NDIM:
        raise ValueError(f"it has {tensor.ndim} axes: librope takes 1 to {MAX_NDIM}")
    if not tensor.shape:
        raise BufferError("its DLPack shape is NULL")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    stride = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else compact_strides(shape)
    return Contents(
        capsule=capsule,
        data=(tensor.data or 0) + tensor.byte_offset,
        dtype=_DTYPES.get((tensor.code, tensor.bits)) if tensor.lanes == (
            2 if tensor.code == _FLOAT4 else 1) else None,
        dtype_text=f"DLPack code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes",
        shape=shape,
        stride=stride,
        device_type=tensor.device_type,
        device_id=tensor.device_id,
        is_read_only=is_read_only,
    )
