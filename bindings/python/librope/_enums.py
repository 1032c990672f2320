# SPDX-License-Identifier: Apache-2.0
# _enums.py - the header's enumerations, and the names that users write for them
from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Any, Dict, Iterable, Optional, Tuple, Type, Union

from . import _abi
from ._integers import integer


class Device(IntEnum):
    CPU = _abi.ROPE_DEVICE_CPU
    CUDA = _abi.ROPE_DEVICE_CUDA


class Dtype(IntEnum):
    """Arguments may also be "f32", "float32" and similar names, and the dtype objects of torch, NumPy, CuPy and JAX.
    F8_E4M3, F8_E5M2 and F8_E8M0 are float8_e4m3fn, float8_e5m2 and float8_e8m0fnu of torch and ml_dtypes. F4_E2M1X2 is
    torch's float4_e2m1fn_x2, which has two channels in each element."""

    F32 = _abi.ROPE_DTYPE_F32
    F16 = _abi.ROPE_DTYPE_F16
    BF16 = _abi.ROPE_DTYPE_BF16
    F64 = _abi.ROPE_DTYPE_F64
    I32 = _abi.ROPE_DTYPE_I32
    I64 = _abi.ROPE_DTYPE_I64
    F8_E4M3 = _abi.ROPE_DTYPE_F8_E4M3
    F8_E5M2 = _abi.ROPE_DTYPE_F8_E5M2
    F8_E8M0 = _abi.ROPE_DTYPE_F8_E8M0
    F4_E2M1X2 = _abi.ROPE_DTYPE_F4_E2M1X2


class Layout(IntEnum):
    """The order of a tensor's axes: batch, sequence, heads, head dimension. THD has one axis for all tokens of all
    sequences."""

    BSHD = _abi.ROPE_LAYOUT_BSHD
    SBHD = _abi.ROPE_LAYOUT_SBHD
    BHSD = _abi.ROPE_LAYOUT_BHSD
    THD = _abi.ROPE_LAYOUT_THD


class Style(IntEnum):
    """The channels that form pair i of a rotated window of R: i and i + R/2 (HALF), or 2i and 2i + 1 (INTERLEAVED)."""

    HALF = _abi.ROPE_STYLE_HALF
    INTERLEAVED = _abi.ROPE_STYLE_INTERLEAVED


class TableRows(IntEnum):
    """How a token finds its row of cos, sin or angles."""

    BY_POSITION = _abi.ROPE_TABLE_BY_POSITION
    BY_TOKEN = _abi.ROPE_TABLE_BY_TOKEN


class NormType(IntEnum):
    """The formula of a norm: x / sqrt(mean(x^2) + eps), for LAYER with x minus its mean instead of x."""

    RMS = _abi.ROPE_NORM_RMS
    LAYER = _abi.ROPE_NORM_LAYER


class NormOrder(IntEnum):
    """Whether the norm comes before the rotation or after it."""

    BEFORE = _abi.ROPE_NORM_ORDER_BEFORE
    AFTER = _abi.ROPE_NORM_ORDER_AFTER


class NormExtent(IntEnum):
    """The channels of one norm: those of a head, or those of all heads of the tensor in the call."""

    HEAD = _abi.ROPE_NORM_EXTENT_HEAD
    TOKEN = _abi.ROPE_NORM_EXTENT_TOKEN


class NormTensors(IntFlag):
    """The tensors that are normed. V has no weight and no bias."""

    Q = _abi.ROPE_NORM_TENSOR_Q
    K = _abi.ROPE_NORM_TENSOR_K
    V = _abi.ROPE_NORM_TENSOR_V


class NormRounding(IntFlag):
    """The values that the norm rounds to the descriptor's dtype: x * r before the weight, and the results of weight and
    bias."""

    BEFORE_WEIGHT = _abi.ROPE_NORM_ROUND_BEFORE_WEIGHT
    AFTER_WEIGHT = _abi.ROPE_NORM_ROUND_AFTER_WEIGHT


class QuantRounding(IntFlag):
    """The values that are rounded to the descriptor's dtype before they are scaled and quantised. The codes are then
    those of separate kernels that write 16 bits first and quantise these."""

    FIRST = _abi.ROPE_QUANT_ROUND_FIRST


class RotationRounding(IntEnum):
    """The values that are rounded to the descriptor's dtype inside the rotation. EACH rounds cos, sin, products and
    sums, as Hugging Face's eager code, vLLM and apex do."""

    EACH = _abi.ROPE_ROTATION_ROUND_EACH


class Activation(IntEnum):
    """The function of the gate g. REGLU is max(g, 0). GEGLU_ERF is the exact GELU, GEGLU_TANH that of torch's
    approximate="tanh"."""

    SWIGLU = _abi.SWIGLU_ACTIVATION_SWIGLU
    GEGLU_ERF = _abi.SWIGLU_ACTIVATION_GEGLU_ERF
    GEGLU_TANH = _abi.SWIGLU_ACTIVATION_GEGLU_TANH
    REGLU = _abi.SWIGLU_ACTIVATION_REGLU


class LimitRule(IntEnum):
    """The value that limit bounds from above: the gate before the activation, or the activation."""

    GATE = _abi.SWIGLU_LIMIT_GATE
    ACTIVATION = _abi.SWIGLU_LIMIT_ACTIVATION


class ScaleLayout(IntEnum):
    """The places of SwiGLU's written scales: by their strides, or in tiles of 128 rows and 4 groups, as cuBLAS reads
    them. Arguments may also be "strided" and "128x4"."""

    STRIDED = _abi.SWIGLU_SCALE_LAYOUT_STRIDED
    TILES_128X4 = _abi.SWIGLU_SCALE_LAYOUT_128X4


class Scaling(IntEnum):
    """Recipes of context scaling. The header has their formulas."""

    NONE = _abi.ROPE_SCALING_NONE
    LINEAR = _abi.ROPE_SCALING_LINEAR
    DYNAMIC_NTK = _abi.ROPE_SCALING_DYNAMIC_NTK
    DYNAMIC_NTK_FIXED = _abi.ROPE_SCALING_DYNAMIC_NTK_FIXED
    NTK_ALPHA = _abi.ROPE_SCALING_NTK_ALPHA
    NTK_FIXED = _abi.ROPE_SCALING_NTK_FIXED
    NTK_MIXED = _abi.ROPE_SCALING_NTK_MIXED
    YARN = _abi.ROPE_SCALING_YARN
    YARN_LOG = _abi.ROPE_SCALING_YARN_LOG
    LLAMA3 = _abi.ROPE_SCALING_LLAMA3
    LONGROPE = _abi.ROPE_SCALING_LONGROPE
    PROPORTIONAL = _abi.ROPE_SCALING_PROPORTIONAL
    FACTORS = _abi.ROPE_SCALING_FACTORS


class Sections(IntEnum):
    """Section lists of multi-axis models. The header states which axis each pair follows."""

    CHUNKED = _abi.ROPE_SECTIONS_CHUNKED
    INTERLEAVED = _abi.ROPE_SECTIONS_INTERLEAVED
    IMROPE = _abi.ROPE_SECTIONS_IMROPE
    ERNIE = _abi.ROPE_SECTIONS_ERNIE
    RESTARTED = _abi.ROPE_SECTIONS_RESTARTED
    VISION = _abi.ROPE_SECTIONS_VISION


def _names(enum: Union[Type[IntEnum], Type[IntFlag]]) -> Dict[str, int]:
    return {name.lower(): int(member) for name, member in enum.__members__.items()}


STYLES = _names(Style)
LAYOUTS = _names(Layout)
TABLE_ROWS = _names(TableRows)
NORM_TYPES = _names(NormType)
NORM_ORDERS = _names(NormOrder)
NORM_EXTENTS = _names(NormExtent)
NORM_TENSORS = _names(NormTensors)
NORM_ROUNDINGS = _names(NormRounding)
QUANT_ROUNDINGS = _names(QuantRounding)
ROTATION_ROUNDINGS = _names(RotationRounding)
ACTIVATIONS = _names(Activation)
LIMIT_RULES = _names(LimitRule)
SCALE_LAYOUTS: Dict[str, int] = {"strided": ScaleLayout.STRIDED, "128x4": ScaleLayout.TILES_128X4}
SCALINGS = _names(Scaling)
SECTIONS = _names(Sections)
DTYPES = {
    **_names(Dtype),
    "float32": _abi.ROPE_DTYPE_F32,
    "float16": _abi.ROPE_DTYPE_F16,
    "bfloat16": _abi.ROPE_DTYPE_BF16,
    "float64": _abi.ROPE_DTYPE_F64,
    "int32": _abi.ROPE_DTYPE_I32,
    "int64": _abi.ROPE_DTYPE_I64,
    "float8_e4m3fn": _abi.ROPE_DTYPE_F8_E4M3,
    "float8_e5m2": _abi.ROPE_DTYPE_F8_E5M2,
    "float8_e8m0fnu": _abi.ROPE_DTYPE_F8_E8M0,
    "float4_e2m1fn_x2": _abi.ROPE_DTYPE_F4_E2M1X2,
}


def number_of(names: Dict[str, int], field: str, value: Union[str, int]) -> int:
    """The number of an enumerator. `value` is the enumerator, a number (which the library checks), or its name in any
    case, with "_" or "-"."""
    if isinstance(value, str):
        try:
            return names[value.lower().replace("-", "_")]
        except KeyError:
            raise ValueError(f"{field} is {value!r}: it must be one of {', '.join(names)}") from None
    return integer(field, value)


def bits_of(names: Dict[str, int], field: str, value: Union[str, int, Iterable[Union[str, int]]]) -> int:
    """The bits of one enumerator, as for number_of, or of several."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        return number_of(names, field, value)
    bits = 0
    for one in value:
        bits |= number_of(names, field, one)
    return bits


FOREIGN = "librope reads the machine's byte order only"


def is_foreign(dtype: Any) -> bool:
    """Whether a dtype object of NumPy has another byte order than the machine."""
    return not getattr(dtype, "isnative", True)


def dtype_number(value: Any) -> int:
    """The number of a Dtype, of its name, or of another library's dtype object."""
    if isinstance(value, int):
        return integer("dtype", value)
    if isinstance(value, str):
        name = value
    elif isinstance(value, type):  # numpy.float32, jax.numpy.bfloat16
        name = value.__name__
    else:  # numpy.dtype has a name; torch.dtype prints as torch.float32
        if is_foreign(value):
            raise ValueError(f"dtype is {value.str!r}: {FOREIGN}")
        name = getattr(value, "name", None) or getattr(getattr(value, "dtype", None), "name", None) or str(value)
    number = DTYPES.get(name.lower().rpartition(".")[2])
    if number is None:
        raise ValueError(f"dtype is {value!r}: it must be one of {', '.join(DTYPES)}")
    return number


def parse_device(value: Any) -> Tuple[Optional[int], Optional[int]]:
    """Returns (kind, ordinal) of None, a Device, "cpu", "cuda", "cuda:1" or a torch.device. An unspecified part is
    None."""
    if value is None:
        return None, None
    if isinstance(value, Device):  # other numbers are refused: some programs mean an ordinal by 1
        return int(value), 0 if value == Device.CPU else None
    kind, colon, ordinal = str(value).partition(":")
    if kind.lower() == "cpu" and not colon:
        return int(Device.CPU), 0
    if kind.lower() == "cuda" and (not colon or ordinal.isdigit()):
        return int(Device.CUDA), int(ordinal) if colon else None
    raise ValueError(f"device is {value!r}: it must be 'cpu', 'cuda' or 'cuda:N'")


def device_name(kind: int, ordinal: int) -> str:
    return "cpu" if kind == Device.CPU else f"cuda:{ordinal}"
