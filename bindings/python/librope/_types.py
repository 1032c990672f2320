# SPDX-License-Identifier: Apache-2.0
# _types.py - the types that the signatures show to type checkers
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Optional, Protocol, Sequence, Type, TypedDict, TypeVar, Union

from ._enums import (Activation, Dtype, Layout, LimitRule, NormExtent, NormOrder, NormRounding, NormTensors, NormType,
                     QuantRounding, RotationRounding, ScaleLayout, Scaling, Sections, Style, TableRows)

if TYPE_CHECKING:
    import torch

    from ._groups import Cache, Input, Norm, NormGradient, Quant, SwigluColumn, SwigluQuant

# a tensor of any framework
Tensor = Any


class _WithDlpack(Protocol):
    @property
    def __dlpack__(self) -> Any: ...


class _WithCudaInterface(Protocol):
    @property
    def __cuda_array_interface__(self) -> Any: ...


class _WithInterface(Protocol):
    @property
    def __array_interface__(self) -> Any: ...


# A new output has the type of its input, which is not None.
_Given = Union[_WithDlpack, _WithCudaInterface, _WithInterface]
Q = TypeVar("Q", bound=_Given)
K = TypeVar("K", bound=_Given)
V = TypeVar("V", bound=_Given)


class DtypeObject(Protocol):
    """For example torch.dtype or numpy.dtype."""

    @property
    def itemsize(self) -> int: ...


AnyStyle = Union[Style, Literal["half", "interleaved"], int]
AnyLayout = Union[Layout, Literal["bshd", "sbhd", "bhsd", "thd"], int]
AnyTableRows = Union[TableRows, Literal["by_position", "by_token"], int]
AnyDtype = Union[
    Dtype, Literal["f32", "f16", "bf16", "f64", "float32", "float16", "bfloat16", "float64"], DtypeObject, Type[Any],
    int]
AnyNormType = Union[NormType, Literal["rms", "layer"], int]
AnyNormOrder = Union[NormOrder, Literal["before", "after"], int]
AnyNormExtent = Union[NormExtent, Literal["head", "token"], int]
_NormTensor = Literal["q", "k", "v"]
AnyNormTensors = Union[NormTensors, _NormTensor, Sequence[_NormTensor], int]
_NormRounding = Literal["before_weight", "after_weight"]
AnyNormRounding = Union[NormRounding, _NormRounding, Sequence[_NormRounding], int]
AnyQuantRounding = Union[QuantRounding, Literal["first"], Sequence[Literal["first"]], int]
AnyRotationRounding = Union[RotationRounding, Literal["each"], int]
AnyActivation = Union[
    Activation, Literal["swiglu", "geglu_erf", "geglu-erf", "geglu_tanh", "geglu-tanh", "reglu"], int]
AnyLimitRule = Union[LimitRule, Literal["gate", "activation"], int]
AnyScaleLayout = Union[ScaleLayout, Literal["strided", "128x4"], int]
AnyScaling = Union[Scaling, Literal[
    "none", "linear", "dynamic_ntk", "dynamic_ntk_fixed", "ntk_alpha", "ntk_fixed", "ntk_mixed", "yarn", "yarn_log",
    "llama3", "longrope", "proportional", "factors"]]
AnySections = Union[Sections, Literal["chunked", "interleaved", "imrope", "ernie", "restarted", "vision"]]

# The keywords of overloaded functions, each once for all overloads. The functions' docstrings explain them.


class Operands(TypedDict, total=False):
    positions: Optional[Tensor]
    start_positions: Optional[Tensor]
    cu_seqlens: Optional[Tensor]
    cos: Optional[Tensor]
    sin: Optional[Tensor]
    angles: Optional[Tensor]
    position_offset: int
    table_rows: AnyTableRows
    programmatic_launch: bool


class Rotation(Operands, total=False):
    """Keywords of RopeDesc.forward and backward."""

    input: Optional[Input]
    out: Union[Tensor, Sequence[Optional[Tensor]], None]
    fault: Optional[Tensor]
    unrotated: bool
    v_unrotated: bool
    stream: Any


class Transpose(Rotation, total=False):
    """Keywords of RopeDesc.backward."""

    norm: Optional[NormGradient]
    accumulate: bool


class Step(Rotation, total=False):
    """Keywords of RopeDesc.forward."""

    norm: Optional[Norm]
    cache: Optional[Cache]
    quant: Optional[Quant]


class _Pairing(TypedDict):
    style: AnyStyle
    layout: AnyLayout


class TorchRotation(_Pairing, Operands, total=False):
    """Keywords of librope.torch.apply_rotary, norm_rotary and rotary_step."""

    head_dim: int
    theta: float
    inv_freq: Optional[Sequence[float]]
    attention_scale: float
    rotary_dim: int
    rotary_offset: int
    out_style: AnyStyle
    num_axes: int
    pair_axis: Optional[Sequence[int]]
    pair_block: int
    rotation_rounding: AnyRotationRounding


class TorchPassRotation(TorchRotation, total=False):
    """Keywords of librope.torch.apply_rotary."""

    q_pass: Optional[Tensor]
    k_pass: Optional[Tensor]


class _TorchNorm(TypedDict):
    norm_eps: float


class TorchNorm(_TorchNorm, TorchRotation, total=False):
    """Keywords of librope.torch.norm_rotary."""

    norm: AnyNormType
    norm_tensors: AnyNormTensors
    norm_order: AnyNormOrder
    norm_extent: AnyNormExtent
    norm_rounding: AnyNormRounding
    norm_weight_offset: float
    q_weight: Optional[Tensor]
    k_weight: Optional[Tensor]
    q_bias: Optional[Tensor]
    k_bias: Optional[Tensor]
    unrotated: bool


class TorchPositions(TypedDict, total=False):
    """Keywords of librope.torch.RotaryEmbedding.forward."""

    start_positions: Optional[Tensor]
    cu_seqlens: Optional[Tensor]
    position_offset: int


class _Further(TypedDict, total=False):
    num_rows: Optional[Tensor]
    gate_bias: Optional[Tensor]
    up_bias: Optional[Tensor]
    expert_rows: Optional[Tensor]
    expert_offsets: Optional[Tensor]
    row_index: Optional[Tensor]
    programmatic_launch: bool


class _Codes(_Further, total=False):
    quant: Optional[SwigluQuant]
    column: Optional[SwigluColumn]
    stream: Any


class Gating(_Codes, total=False):
    """Keywords of SwigluDesc.forward."""

    row_scale: Optional[Tensor]


class Gradients(_Codes, total=False):
    """Keywords of SwigluDesc.backward."""

    out: Optional[Tensor]


class _Form(TypedDict, total=False):
    limit: float
    up_offset: float
    out_scale: float
    gate_softcap: float
    up_softcap: float
    limit_rule: AnyLimitRule
    product_rounding: bool
    quant_rounding: AnyQuantRounding


class _KeptForm(_Form, total=False):
    alpha: float
    activation: AnyActivation
    num_threads: int


class KeptGating(Gating, _KeptForm, total=False):
    """Keywords of swiglu."""


class GatingGradients(Gradients, _KeptForm, total=False):
    """Keywords of swiglu_backward."""


class TorchCodes(_Further, _KeptForm, total=False):
    """Keywords of librope.torch.swiglu_codes."""

    row_scale: Optional[Tensor]


class TorchGradientCodes(TorchCodes, total=False):
    """Keywords of librope.torch.swiglu_gradients."""

    out: Optional[Tensor]


class TorchGeglu(_Further, _Form, total=False):
    """Keywords of librope.torch.geglu."""

    row_scale: Optional[Tensor]
    out_dtype: Optional[torch.dtype]
    quant: Optional[SwigluQuant]
    scale_dtype: torch.dtype


class TorchGating(TorchGeglu, total=False):
    """Keywords of librope.torch.swiglu."""

    alpha: float
    activation: AnyActivation
