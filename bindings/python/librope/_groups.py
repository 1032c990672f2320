# SPDX-License-Identifier: Apache-2.0
# _groups.py - the operand groups of calls: rope_norm_args_t, swiglu_quant_args_t and the others
from __future__ import annotations

from typing import NamedTuple, Optional

from ._enums import ScaleLayout
from ._types import AnyScaleLayout, Tensor


class Norm(NamedTuple):
    """Operands of a descriptor's norm. For a model without weights, pass Norm().

    q_weight, k_weight: F32 or the descriptor's dtype, [D], or [H, D] with a weight for each head; None: 1, and
                        norm_weight_offset is not added
    q_bias, k_bias:     like the weights, "layer" only; None: 0
    """

    q_weight: Optional[Tensor] = None
    k_weight: Optional[Tensor] = None
    q_bias: Optional[Tensor] = None
    k_bias: Optional[Tensor] = None


class NormGradient(NamedTuple):
    """Operands of RopeDesc.backward for a descriptor with a norm.

    q_in, k_in, v_in:   the inputs of forward, for tensors that are normed; they share no memory with outputs
    q_weight, k_weight: as in Norm
    grad_q_weight, grad_k_weight: F32, with "f64" F64, [N, D] or [N, H, D]: the call adds to row n the sums over the
                        n-th of N runs of tokens; zero the rows first, and add them up afterwards. None: not computed
    grad_q_bias, grad_k_bias: like grad_q_weight, for biases; "layer" only
    """

    q_in: Optional[Tensor] = None
    k_in: Optional[Tensor] = None
    v_in: Optional[Tensor] = None
    q_weight: Optional[Tensor] = None
    k_weight: Optional[Tensor] = None
    grad_q_weight: Optional[Tensor] = None
    grad_k_weight: Optional[Tensor] = None
    grad_q_bias: Optional[Tensor] = None
    grad_k_bias: Optional[Tensor] = None


class Cache(NamedTuple):
    """Paged caches that k and v are written to, and each token's place in them: `slots` or `page_table`, not both.

    k_cache, v_cache: [P, E, H, D]: pages, entries of a page, heads, channels, with any strides, in the descriptor's
                      dtype, F8_E4M3 or F8_E5M2, or F16 or BF16 of F32 data
    slots:            I32 or I64 [B, S], "thd" [T], or [N] for the first N tokens: page * E + entry
    page_table:       I32 or I64 [B, any]: pages of each sequence; with page_indptr one list for all, [any]
    page_indptr:      I32 or I64 [B + 1]: sequence b has entries page_indptr[b] to page_indptr[b + 1] - 1
    sequence:         I32 or I64, shape of slots: the row of page_table of each token; None: its batch, or its sequence
                      in cu_seqlens
    positions:        I32 or I64, shape of slots: the token's position in the cache; None: that of the rotation
    k_scales, v_scales, k_pass_scales: F32 or F8_E8M0 [P, E, H, G], any strides: the scales of G groups of neighbouring
                      channels of a cache of 8 bits, which a call writes as Quant says; they need no Quant
    k_pass_cache:     [P, E, H, D - R], in a type of its own: the channels outside the window, from k or from Input's
                      k_pass, beside a k_cache of R, the window alone (a latent cache)
    skip_slot_0:      True: slot 0 is not written

    A token with a negative slot, page, sequence or position is not cached. If one of these is too large, the token is
    not cached either, and is counted in `fault`.
    """

    k_cache: Optional[Tensor] = None
    v_cache: Optional[Tensor] = None
    slots: Optional[Tensor] = None
    page_table: Optional[Tensor] = None
    page_indptr: Optional[Tensor] = None
    sequence: Optional[Tensor] = None
    positions: Optional[Tensor] = None
    k_pass_cache: Optional[Tensor] = None
    k_scales: Optional[Tensor] = None
    v_scales: Optional[Tensor] = None
    k_pass_scales: Optional[Tensor] = None
    skip_slot_0: bool = False


class Quant(NamedTuple):
    """Scales of outputs and caches of 8 bits: rope_quant_args_t in <rope/rope.h>, with its flags as bools. A code is x
    / scale, computed with the rounded reciprocal, to nearest even and saturating; NaN stays NaN.

    q_scale, k_scale, v_scale, k_pass_scale: F32 [1], or [H] with a scale for each head, above 0; None: 1. k_pass_scale
                      belongs to Cache's k_pass_cache
    q_scales_out, k_scales_out, v_scales_out: F32 or F8_E8M0, written instead: the axes of the output of 8 bits, with G
                      instead of its channels, or "thd" [T, H, G/4, 4]. The scale of each of G groups of neighbouring
                      channels is (largest magnitude) / (largest number of the type). Scales of caches are in Cache
    amax_out:         F32 [3], of q, k and v: a call raises them to the largest magnitude that it scales
    scale_floor:      for written scales: lower bound of a group's largest magnitude; 0: 1e-10 for F32, else none
    scale_multiplies: a code is x * scale (flashinfer, TensorRT-LLM, TransformerEngine); not for written scales
    power_of_two:     written F32 scales are rounded up to powers of two, as those of F8_E8M0 always are
    """

    q_scale: Optional[Tensor] = None
    k_scale: Optional[Tensor] = None
    v_scale: Optional[Tensor] = None
    k_pass_scale: Optional[Tensor] = None
    q_scales_out: Optional[Tensor] = None
    k_scales_out: Optional[Tensor] = None
    v_scales_out: Optional[Tensor] = None
    amax_out: Optional[Tensor] = None
    scale_floor: float = 0.0
    scale_multiplies: bool = False
    power_of_two: bool = False


class SwigluQuant(NamedTuple):
    """Scales of SwiGLU's output of 8 or 4 bits, and of its gradients of 8: swiglu_quant_args_t in <rope/rope.h>. Codes
    are made as Quant says.

    scale:            F32 [1], or [E] with experts, above 0; None: 1. Beside scales_out of F8_E4M3 (NVFP4) it is their
                      global factor
    scales_out:       F32 or F8_E8M0, with an out of 4 bits also F8_E4M3, written instead: the first axes of gate, at
                      least one, with expert_rows two, and not all, then G: each of G groups of neighbouring channels
                      of gate's other axes has the scale (largest magnitude) / (largest number of the type). Gate
                      [N, d] has [N, 1] by row and [N, d/128] by 128. G may be split, [.., G/4, 4]. Any strides:
                      column-major scales are a transposed view
    amax_out:         F32 [1]: a call raises it to the largest magnitude of what becomes 8 or 4 bits
    grad_gate_scales_out, grad_up_scales_out: backward: those of a grad_gate and a grad_up of 8 bits, as scales_out
    scale_floor, scale_multiplies, power_of_two: as in Quant
    scale_layout:     "strided", or "128x4": scales_out [.., 128 ceil(M/128), 4 ceil(G/4)] of gate [.., M, d] has tiles
                      of 128 rows and 4 groups, with 0 as the padding
    """

    scale: Optional[Tensor] = None
    scales_out: Optional[Tensor] = None
    amax_out: Optional[Tensor] = None
    grad_gate_scales_out: Optional[Tensor] = None
    grad_up_scales_out: Optional[Tensor] = None
    scale_floor: float = 0.0
    scale_multiplies: bool = False
    power_of_two: bool = False
    scale_layout: AnyScaleLayout = ScaleLayout.STRIDED


class SwigluColumn(NamedTuple):
    """SwiGLU's outputs once more as codes of 8 bits, with scales of groups of neighbouring rows, as the product that is
    a weight's gradient needs them in MXFP8 training: swiglu_column_args_t in <rope/rope.h>.

    out, grad_gate, grad_up: F8_E4M3 or F8_E5M2, gate's shape, any strides: of forward the first, of backward the others
    scales_out, grad_gate_scales_out, grad_up_scales_out: F32 or F8_E8M0, of each of them: gate's shape with G groups
                      instead of the rows, which are the first axis, or with expert_rows the second one. Gate [N, d]
                      has [N/32, d] by 32. None: the codes have the static scale of SwigluQuant
    amax_out, scale_floor, power_of_two: as in SwigluQuant, of the codes and scales here
    scale_layout:     "strided", or "128x4": scales [128 ceil(d/128), 4 ceil(G/4)] of gate [N, d] have tiles in which a
                      row is a channel; with expert_rows [E, ..]
    """

    out: Optional[Tensor] = None
    scales_out: Optional[Tensor] = None
    grad_gate: Optional[Tensor] = None
    grad_gate_scales_out: Optional[Tensor] = None
    grad_up: Optional[Tensor] = None
    grad_up_scales_out: Optional[Tensor] = None
    amax_out: Optional[Tensor] = None
    scale_floor: float = 0.0
    power_of_two: bool = False
    scale_layout: AnyScaleLayout = ScaleLayout.STRIDED


class Input(NamedTuple):
    """Further inputs: rope_input_args_t in <rope/rope.h>.

    q_row_factor, k_row_factor, v_row_factor: F32 or the descriptor's dtype: a factor for each token, [S] or [B, S],
                      "thd" [T], or for each token and head, [B, S, H], "thd" [T, H]. It multiplies all channels
    q_pass, k_pass:   the descriptor's dtype, the axes of q with D - R channels: those before the window, then those
                      behind it. q then holds the window alone, R channels, and its output D. Heads may broadcast. k
                      and k_pass work alike, and k may be cached only. forward only
    """

    q_pass: Optional[Tensor] = None
    k_pass: Optional[Tensor] = None
    q_row_factor: Optional[Tensor] = None
    k_row_factor: Optional[Tensor] = None
    v_row_factor: Optional[Tensor] = None
