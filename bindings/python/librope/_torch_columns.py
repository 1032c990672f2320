# SPDX-License-Identifier: Apache-2.0
# _torch_columns.py - SwiGLU's output and gradients as codes of 8 bits by row and by column, for training with them
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, Sequence, Tuple, TypeVar

import torch
from torch import Tensor

from ._enums import SCALE_LAYOUTS, ScaleLayout, number_of
from ._groups import SwigluColumn, SwigluQuant
from ._swiglu import swiglu, swiglu_backward
from ._tensors import why_no_memory
from ._torch_operators import num_threads_for
from ._types import AnyScaleLayout, TorchCodes, TorchGradientCodes

if TYPE_CHECKING:
    from typing_extensions import Unpack


_Function = TypeVar("_Function", bound=Callable[..., Any])


def _in_eager(function: _Function) -> _Function:
    """A function at which torch.compile breaks its graph."""
    compiler: Any = torch.compiler  # torch gives its decorators no types
    disabled: _Function = compiler.disable(function)
    return disabled


class SwigluCodes(NamedTuple):
    """A matrix as codes: by row, where neighbouring channels share a scale, and by column, where neighbouring rows do.
    Codes that were not requested are None."""

    codes: Optional[Tensor]
    scales: Optional[Tensor]
    column_codes: Optional[Tensor]
    column_scales: Optional[Tensor]


def _new_codes(
        function: str, gate: Tensor, operands: Any, by_row: bool, by_column: bool, out_dtype: torch.dtype,
        group_size: int, scale_dtype: Optional[torch.dtype], scale_layout: AnyScaleLayout) -> SwigluCodes:
    """New tensors for an output like gate, which are 0 where the operands may leave rows out."""
    of_scales: Optional[torch.dtype] = scale_dtype or getattr(torch, "float8_e8m0fnu", None)
    if of_scales is None:
        raise NotImplementedError(f"{function}: scale_dtype: torch {torch.__version__} has no float8_e8m0fnu")
    reason = why_no_memory(gate)
    if reason is not None:
        raise TypeError(f"{function}: gate: {reason}")
    of_experts = gate.shape[:0 if operands.get("expert_rows") is None else 1]
    if gate.dim() != len(of_experts) + 2:
        raise ValueError(f"{function}: gate has {gate.dim()} axes: it must be [N, d], or [E, N, d] with expert_rows")
    rows, channels = gate.shape[-2:]
    for is_wanted, length, what in ((by_row, channels, "channels"), (by_column, rows, "rows")):
        if is_wanted and (group_size <= 0 or length % group_size):
            raise ValueError(f"{function}: group_size is {group_size}: it must divide the {length} {what}")
    leaves_rows_out = any(
        [operands.get(x) is not None for x in ("num_rows", "expert_rows", "expert_offsets", "row_index")])
    has_tiles = number_of(SCALE_LAYOUTS, "scale_layout", scale_layout) == ScaleLayout.TILES_128X4

    def make(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return (torch.zeros if leaves_rows_out else torch.empty)((*of_experts, *shape), dtype=dtype, device=gate.device)

    def make_pair(is_wanted: bool, *shape: int) -> Tuple[Optional[Tensor], Optional[Tensor]]:
        """Codes, and scales of the shape."""
        return (make((rows, channels), out_dtype), make(shape, of_scales)) if is_wanted else (None, None)

    def tiled(length: int, groups: int) -> Tuple[int, int]:
        return (length + 127) // 128 * 128, (groups + 3) // 4 * 4

    groups = rows // group_size, channels // group_size
    by_rows, by_columns = (rows, groups[1]), (groups[0], channels)
    if has_tiles:
        by_rows, by_columns = tiled(rows, groups[1]), tiled(channels, groups[0])
    return SwigluCodes(*make_pair(by_row, *by_rows), *make_pair(by_column, *by_columns))


def _or_false(x: Optional[Tensor]) -> Any:
    """An output, as calls of the library take it."""
    return False if x is None else x


@_in_eager
def swiglu_codes(
        gate: Tensor, up: Tensor, *, by_row: bool = True, by_column: bool = True,
        out_dtype: torch.dtype = torch.float8_e4m3fn, group_size: int = 32, scale_dtype: Optional[torch.dtype] = None,
        scale_layout: AnyScaleLayout = ScaleLayout.STRIDED, **keywords: Unpack[TorchCodes]) -> SwigluCodes:
    """The output of librope.swiglu as new codes of 8 bits (MXFP8), by row and by column in one call, for tensors
    without gradients: a torch.autograd.Function calls it in its forward, and swiglu_gradients in its backward.
    torch.compile leaves both to eager.

    gate, up:    [N, d], or [E, N, d] with expert_rows
    by_row, by_column: which codes are written
    out_dtype:   torch.float8_e4m3fn or torch.float8_e5m2
    group_size:  channels, and rows, that share a scale, which divide d and N
    scale_dtype: None: torch.float8_e8m0fnu; or torch.float32
    scale_layout: "strided": scales [N, d / group_size] by row, [N / group_size, d] by column; "128x4": the tiles of
                 SwigluQuant and SwigluColumn
    keywords:    those of librope.swiglu. quant_rounding="first" gives TransformerEngine's codes of 16-bit data
    """
    made = _new_codes(
        "swiglu_codes", gate, keywords, by_row, by_column, out_dtype, group_size, scale_dtype, scale_layout)
    quant = SwigluQuant(scales_out=made.scales, scale_layout=scale_layout) if by_row else None
    column = SwigluColumn(
        made.column_codes, made.column_scales, scale_layout=scale_layout) if by_column else None
    keywords["num_threads"] = keywords.get("num_threads", 0) or num_threads_for(gate)
    swiglu(gate, up, _or_false(made.codes), quant=quant, column=column, **keywords)
    return made


@_in_eager
def swiglu_gradients(
        grad_out: Tensor, gate: Tensor, up: Tensor, *, by_row: bool = True, by_column: bool = True,
        out_dtype: torch.dtype = torch.float8_e5m2, group_size: int = 32, scale_dtype: Optional[torch.dtype] = None,
        scale_layout: AnyScaleLayout = ScaleLayout.STRIDED, grad_row_scale: Optional[Tensor] = None,
        **keywords: Unpack[TorchGradientCodes]) -> Tuple[SwigluCodes, SwigluCodes]:
    """The gradients of gate and up of librope.swiglu_backward as new codes of 8 bits, by row and by column in one
    call.

    grad_out:    of gate's shape
    grad_row_scale: if given, receives the gradient of row_scale
    keywords:    those of librope.swiglu_backward; the others are as for swiglu_codes
    """
    grad_gate, grad_up = [_new_codes(
        "swiglu_gradients", gate, keywords, by_row, by_column, out_dtype, group_size, scale_dtype, scale_layout)
        for _ in range(2)]
    quant = SwigluQuant(
        grad_gate_scales_out=grad_gate.scales, grad_up_scales_out=grad_up.scales,
        scale_layout=scale_layout) if by_row else None
    column = SwigluColumn(
        grad_gate=grad_gate.column_codes, grad_gate_scales_out=grad_gate.column_scales, grad_up=grad_up.column_codes,
        grad_up_scales_out=grad_up.column_scales, scale_layout=scale_layout) if by_column else None
    keywords["num_threads"] = keywords.get("num_threads", 0) or num_threads_for(gate)
    any_backward: Any = swiglu_backward  # its overloads distinguish the results by keyword
    any_backward(
        grad_out, gate, up, grad_gate=_or_false(grad_gate.codes), grad_up=_or_false(grad_up.codes),
        grad_row_scale=None if keywords.get("row_scale") is None else _or_false(grad_row_scale), quant=quant,
        column=column, **keywords)
    return grad_gate, grad_up
