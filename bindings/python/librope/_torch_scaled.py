# SPDX-License-Identifier: Apache-2.0
# _torch_scaled.py - a rotation that multiplies q by a factor for each token in one launch, with gradients
# pyright: reportPrivateUsage=false
# These are the private names of librope.torch.
from __future__ import annotations

from typing import Any, Tuple

import torch
from torch import Tensor

from . import _torch_operators as operators
from ._enums import Style, TableRows
from ._groups import Input
from ._types import AnyLayout, TorchRotation
from .torch import _as_constants, _is_compiling, _is_transformed, _requires_grad, _rope_key, apply_rotary, rotary_step


class _ScaledRotation(torch.autograd.Function):
    """The factor is a constant. It multiplies the gradients as well."""

    @staticmethod
    def forward(
            ctx: Any, key: str, q: Tensor, k: Tensor, q_factor: Tensor, cos: Tensor, sin: Tensor,
            is_backward: bool) -> Any:
        ctx.save_for_backward(q_factor, cos, sin)
        ctx.key, ctx.is_backward = key, is_backward
        q_out, k_out = torch.empty_like(q), torch.empty_like(k)
        operators.step(
            key, q, k, None, q_out, k_out, None, is_backward, cos=cos, sin=sin, table_rows=int(TableRows.BY_TOKEN),
            q_row_factor=q_factor)
        return q_out, k_out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        q_grad, k_grad = _ScaledRotation.apply(ctx.key, *grads, *ctx.saved_tensors, not ctx.is_backward)
        return None, q_grad, k_grad, None, None, None, None


def apply_scaled_rotary(
        q: Tensor, k: Tensor, q_factor: Tensor, *, style: Style, out_style: Style, layout: AnyLayout, rotary_dim: int,
        cos: Tensor, sin: Tensor, table_rows: TableRows) -> Tuple[Tensor, Tensor]:
    """Rotates heads of q and k by tables of each token, and multiplies q by the factor of each token, [B, S] or [1, S]
    in F32. Gradients flow to q and k."""
    rotation: TorchRotation = {
        "style": style, "out_style": out_style, "layout": layout, "rotary_dim": rotary_dim, "cos": cos, "sin": sin,
        "table_rows": table_rows}
    if _is_transformed() or rotary_dim != q.size(-1):
        q, k = apply_rotary(q, k, **rotation)
        return q * q_factor.unsqueeze(1 if layout == "bhsd" else 2).unsqueeze(3).to(q.dtype), k
    if not _requires_grad(q, k):
        q_out, k_out, _ = rotary_step(q, k, input=Input(q_row_factor=q_factor), **rotation)
        assert q_out is not None and k_out is not None
        return q_out, k_out
    what: Tuple[Any, ...] = (
        q.dtype, q.size(-1), style, layout, out_style, rotary_dim, 0, 0.0, None, 0.0, 0, None, 0, 0)
    result: Tuple[Tensor, Tensor] = _ScaledRotation.apply(
        _rope_key(_as_constants(what) if _is_compiling() else what), q, k, q_factor, cos, sin, False)
    return result
