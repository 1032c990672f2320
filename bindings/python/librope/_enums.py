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
    """Also accepted: "f32", "float32" and the like, and the dtype objects of torch, NumPy, CuPy and JAX. F8_E4M3 is
    float8_e4m3fn, F8_E5M2 float8_e5m2 and F8_E8M0 float8_e8m0fnu, of torch and of ml_dtypes. F4_E2M1X2 is torch's
    float4_e2m1fn_x2, two channels in each element."""

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
    """The order of a tensor's axes: batch, sequence, heads, head dimension. THD: all tokens of all sequences."""

    BSHD = _abi.ROPE_LAYOUT_BSHD
    SBHD = _abi.ROPE_LAYOUT_SBHD
    BHSD = _abi.ROPE_LAYOUT_BHSD
    THD = _abi.ROPE_LAYOUT_THD


class Style(IntEnum):
    """Which channels of the rotated window of R form pair i: HALF i and i + R/2, INTERLEAVED 2i and 2i + 1."""

    HALF = _abi.ROPE_STYLE_HALF
    INTERLEAVED = _abi.ROPE_STYLE_INTERLEAVED


class TableRows(IntEnum):
    """How rows of cos, sin and angles are found."""

    BY_POSITION = _abi.ROPE_TABLE_BY_POSITION
    BY_TOKEN = _abi.ROPE_TABLE_BY_TOKEN


class NormType(IntEnum):
    """What a norm makes of a head: x / sqrt(mean(x^2) + eps), or x minus its mean first."""

    RMS = _abi.ROPE_NORM_RMS
    LAYER = _abi.ROPE_NORM_LAYER


class NormOrder(IntEnum):
    """Whether the norm comes before the rotation or after it."""

    BEFORE = _abi.ROPE_NORM_ORDER_BEFORE
    AFTER = _abi.ROPE_NORM_ORDER_AFTER


class NormExtent(IntEnum):
    """Which channels one norm is over: those of each head, or of all heads of the tensor in the call."""

    HEAD = _abi.ROPE_NORM_EXTENT_HEAD
    TOKEN = _abi.ROPE_NORM_EXTENT_TOKEN


class NormTensors(IntFlag):
    """Which tensors are normed; V without weight and bias."""

    Q = _abi.ROPE_NORM_TENSOR_Q
    K = _abi.ROPE_NORM_TENSOR_K
    V = _abi.ROPE_NORM_TENSOR_V


class NormRounding(IntFlag):
    """What the norm rounds to the descriptor's dtype: x * r before the weight, and the results of weight and bias."""

    BEFORE_WEIGHT = _abi.ROPE_NORM_ROUND_BEFORE_WEIGHT
    AFTER_WEIGHT = _abi.ROPE_NORM_ROUND_AFTER_WEIGHT


class QuantRounding(IntFlag):
    """What is rounded to the descriptor's dtype before it is scaled and quantised: the values, as where separate
    kernels write 16 bits and quantise those."""

    FIRST = _abi.ROPE_QUANT_ROUND_FIRST


class RotationRounding(IntEnum):
    """What is rounded to the descriptor's dtype inside the rotation: cos, sin, products and sums, EACH of them, as
    Hugging Face's eager code, vLLM and apex do."""

    EACH = _abi.ROPE_ROTATION_ROUND_EACH


class Activation(IntEnum):
    """What gates. REGLU: max(g, 0); GEGLU_ERF and GEGLU_TANH: GELU, exact and by torch's approximate="tanh"."""

    SWIGLU = _abi.SWIGLU_ACTIVATION_SWIGLU
    GEGLU_ERF = _abi.SWIGLU_ACTIVATION_GEGLU_ERF
    GEGLU_TANH = _abi.SWIGLU_ACTIVATION_GEGLU_TANH
    REGLU = _abi.SWIGLU_ACTIVATION_REGLU


class LimitRule(IntEnum):
    """What limit bounds from above: gate before the activation, or the activation."""

    GATE = _abi.SWIGLU_LIMIT_GATE
    ACTIVATION = _abi.SWIGLU_LIMIT_ACTIVATION


class ScaleLayout(IntEnum):
    """Where SwiGLU's written scales lie: by their strides, or in tiles of 128 rows and 4 groups, as cuBLAS reads them;
    also accepted: "strided" and "128x4"."""

    STRIDED = _abi.SWIGLU_SCALE_LAYOUT_STRIDED
    TILES_128X4 = _abi.SWIGLU_SCALE_LAYOUT_128X4


class Scaling(IntEnum):
    """Recipes of context scaling; the header has their formulas."""

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
    """Section lists of multi-axis models; the header says which pair follows which axis."""

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
    """The number of an enumerator given as such, as a number (which the library checks), or as its name in any case,
    with "_" or "-"."""
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


def dtype_number(value: Any) -> int:
    """The number of a Dtype, of its name, or of another library's dtype object."""
    if isinstance(value, int):
        return integer("dtype", value)
    if isinstance(value, str):
        name = value
    elif isinstance(value, type):  # numpy.float32, jax.numpy.bfloat16
        name = value.__name__
    else:  # numpy.dtype has a name; torch.dtype prints as torch.float32
        name = getattr(value, "name", None) or getattr(getattr(value, "dtype", None), "name", None) or str(value)
    number = DTYPES.get(name.lower().rpartition(".")[2])
    if number is None:
        raise ValueError(f"dtype is {value!r}: it must be one of {', '.join(DTYPES)}")
    return number


def parse_device(value: Any) -> Tuple[Optional[int], Optional[int]]:
    """(kind, ordinal) of None, a Device, "cpu", "cuda", "cuda:1" or a torch.device; what is not said is None."""
    if value is None:
        return None, None
    if isinstance(value, Device):  # and no other number: 1 is an ordinal to some
        return int(value), 0 if value == Device.CPU else None
    kind, colon, ordinal = str(value).partition(":")
    if kind.lower() == "cpu" and not colon:
        return int(Device.CPU), 0
    if kind.lower() == "cuda" and (not colon or ordinal.isdigit()):
        return int(Device.CUDA), int(ordinal) if colon else None
    raise ValueError(f"device is {value!r}: it must be 'cpu', 'cuda' or 'cuda:N'")


def device_name(kind: int, ordinal: int) -> str:
    return "cpu" if kind == Device.CPU else f"cuda:{ordinal}"
