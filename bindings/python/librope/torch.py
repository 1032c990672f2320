# torch.py - RoPE and SwiGLU as operators of torch: eager, autograd, torch.compile(fullgraph=True) and CUDA graphs
"""apply_rotary, swiglu and geglu return new tensors and are differentiable in reverse mode, apply_rotary any number of
times. rotary_step is for inference: with a norm and paged caches in the same launch. The operators,
torch.ops.librope.rotate, step, swiglu and swiglu_backward, run on the current stream, never break a graph and refuse
tangents of forward mode. Descriptors are made on first use and kept."""
from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, List, Literal, Optional, Sequence, Tuple, overload

import torch
from torch import Tensor

from ._enums import (ACTIVATIONS, LAYOUTS, LIMIT_RULES, NORM_EXTENTS, NORM_ORDERS, NORM_ROUNDINGS, NORM_TENSORS,
                     NORM_TYPES, STYLES, TABLE_ROWS, Activation, LimitRule, NormExtent, NormOrder, TableRows, bits_of,
                     dtype_number, number_of)
from ._groups import Cache, Norm
from ._rope import RopeDesc
from ._swiglu import cached_desc
from ._tensors import refuse_tangent
from ._types import (AnyActivation, AnyLayout, AnyLimitRule, AnyNormExtent, AnyNormOrder, AnyNormRounding,
                     AnyNormTensors, AnyNormType, AnyStyle, AnyTableRows, TorchGeglu, TorchRotation)

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["apply_rotary", "geglu", "rotary_step", "swiglu"]

_UNCHANGED = ()  # the operator writes to none of its inputs

# ---- Forward mode ---------------------------------------------------------------------------------------------------

_library = torch.library.Library("librope", "FRAGMENT")


def _refuse_tangents(operator: Any) -> None:
    """Puts a check before the autograd kernel of an operator, the last one that sees tangents."""
    overload = operator._opoverload
    kernel = torch._library.autograd.make_autograd_impl(overload, operator)
    fields = [argument.name for argument in overload._schema.arguments]

    def check(keyset: Any, *arguments: Any) -> Any:
        if torch.autograd.forward_ad._current_level >= 0:
            for field, argument in zip(fields, arguments):
                for x in argument if isinstance(argument, (list, tuple)) else (argument,):
                    if not isinstance(x, Tensor):
                        continue
                    try:
                        refuse_tangent(x)
                    except ValueError as error:
                        raise ValueError(f"{overload._schema.name}: {field}: {error}") from None
        return kernel(keyset, *arguments)

    for key in ("AutogradCPU", "AutogradCUDA", "AutogradMeta", "AutogradOther"):
        _library.impl(overload._schema.name, check, key, with_keyset=True)


# ---- RoPE -----------------------------------------------------------------------------------------------------------

_NUM_ROTATE_INPUTS = 22


@lru_cache(maxsize=256)
def _rope_desc(
        dtype: torch.dtype, head_dim: int, layout: int, style: int, out_style: int, rotary_dim: int, rotary_offset: int,
        theta: float, inv_freq: Optional[Tuple[float, ...]], attention_scale: float, num_axes: int,
        pair_axis: Optional[Tuple[int, ...]], pair_block: int, **norm: Any) -> RopeDesc:
    return RopeDesc(
        dtype=dtype, head_dim=head_dim, layout=layout, style=style, out_style=out_style, rotary_dim=rotary_dim,
        rotary_offset=rotary_offset, theta=theta, inv_freq=inv_freq, attention_scale=attention_scale, num_axes=num_axes,
        pair_axis=pair_axis, pair_block=pair_block, **norm)


def _as_tuple(values: Optional[Sequence[Any]]) -> Optional[Tuple[Any, ...]]:
    return None if values is None else tuple(values)


@torch.library.custom_op(
    "librope::rotate",
    mutates_args=_UNCHANGED,
    schema="(Tensor[] tensors, Tensor? positions, Tensor? start_positions, Tensor? cu_seqlens, Tensor? cos, "
    "Tensor? sin, Tensor? angles, SymInt position_offset, int table_rows, int layout, int style, int out_style, "
    "int rotary_dim, int rotary_offset, float theta, float[]? inv_freq, float attention_scale, int num_axes, "
    "int[]? pair_axis, int pair_block, bool programmatic_launch, bool is_backward) -> Tensor[]",
)
def _rotate(
        tensors: List[Tensor], positions: Optional[Tensor], start_positions: Optional[Tensor],
        cu_seqlens: Optional[Tensor], cos: Optional[Tensor], sin: Optional[Tensor], angles: Optional[Tensor],
        position_offset: int, table_rows: int, layout: int, style: int, out_style: int, rotary_dim: int,
        rotary_offset: int, theta: float, inv_freq: Optional[Sequence[float]], attention_scale: float, num_axes: int,
        pair_axis: Optional[Sequence[int]], pair_block: int, programmatic_launch: bool,
        is_backward: bool) -> List[Tensor]:
    first = tensors[0]
    desc = _rope_desc(
        first.dtype, first.shape[-1], layout, style, out_style, rotary_dim, rotary_offset, theta, _as_tuple(inv_freq),
        attention_scale, num_axes, _as_tuple(pair_axis), pair_block)
    results = (desc.backward if is_backward else desc.forward)(
        *tensors, positions=positions, start_positions=start_positions, cu_seqlens=cu_seqlens, cos=cos, sin=sin,
        angles=angles, position_offset=position_offset, table_rows=table_rows, programmatic_launch=programmatic_launch)
    return [results] if len(tensors) == 1 else list(results)


@_rotate.register_fake
def _(tensors: List[Tensor], *arguments: Any) -> List[Tensor]:
    return [torch.empty_like(x) for x in tensors]


def _save_rotate(ctx: Any, inputs: Tuple[Any, ...], output: List[Tensor]) -> None:
    ctx.save_for_backward(*inputs[1:7])
    ctx.arguments = inputs[7:-1]
    ctx.is_backward = inputs[-1]


def _rotate_back(ctx: Any, grads: List[Tensor]) -> Tuple[Any, ...]:
    """The gradient of a rotation is its transpose, and that of the transpose the rotation."""
    results = torch.ops.librope.rotate(list(grads), *ctx.saved_tensors, *ctx.arguments, not ctx.is_backward)
    return (results,) + (None,) * (_NUM_ROTATE_INPUTS - 1)


_rotate.register_autograd(_rotate_back, setup_context=_save_rotate)
_refuse_tangents(_rotate)


@overload
def apply_rotary(q: Tensor, k: None = None, v: None = None, **keywords: Unpack[TorchRotation]) -> Tensor: ...
@overload
def apply_rotary(
    q: Tensor, k: Tensor, v: None = None, **keywords: Unpack[TorchRotation]) -> Tuple[Tensor, Tensor]: ...
@overload
def apply_rotary(
    q: Tensor, k: None = None, *, v: Tensor, **keywords: Unpack[TorchRotation]) -> Tuple[Tensor, Tensor]: ...
@overload
def apply_rotary(q: Tensor, k: None, v: Tensor, **keywords: Unpack[TorchRotation]) -> Tuple[Tensor, Tensor]: ...
@overload
def apply_rotary(
    q: Tensor, k: Tensor, v: Tensor, **keywords: Unpack[TorchRotation]) -> Tuple[Tensor, Tensor, Tensor]: ...


def apply_rotary(
    q: Tensor,
    k: Optional[Tensor] = None,
    v: Optional[Tensor] = None,
    *,
    style: AnyStyle,
    layout: AnyLayout,
    theta: float = 0.0,
    inv_freq: Optional[Sequence[float]] = None,
    attention_scale: float = 0.0,
    rotary_dim: int = 0,
    rotary_offset: int = 0,
    out_style: AnyStyle = 0,
    num_axes: int = 0,
    pair_axis: Optional[Sequence[int]] = None,
    pair_block: int = 0,
    positions: Optional[Tensor] = None,
    start_positions: Optional[Tensor] = None,
    cu_seqlens: Optional[Tensor] = None,
    cos: Optional[Tensor] = None,
    sin: Optional[Tensor] = None,
    angles: Optional[Tensor] = None,
    position_offset: int = 0,
    table_rows: AnyTableRows = TableRows.BY_POSITION,
    programmatic_launch: bool = False,
) -> Any:
    """Rotates q, and k and v where given, in one launch: a tensor for q alone, otherwise a tuple.

    q, k, v: [B, S, H, D] in the order of the layout, "thd" [T, H, D]; any strides, H of each its own
    positions: [T], [S], [B, S] or [1, S]; cu_seqlens: [B + 1]; cos, sin, angles: [M, W] or by token
    The other arguments are RopeDesc's and RopeDesc.forward's. Gradients flow to q, k and v alone; inv_freq is a
    sequence of numbers, because it belongs to the descriptor.
    """
    for table in (cos, sin, angles):
        if table is not None and table.requires_grad:
            raise ValueError("apply_rotary: cos, sin and angles have no gradient here: detach() them")
    tensors = [q]
    if k is not None:
        tensors.append(k)
    if v is not None:
        tensors.append(v)
    results = torch.ops.librope.rotate(
        tensors, positions, start_positions, cu_seqlens, cos, sin, angles, position_offset,
        number_of(TABLE_ROWS, "table_rows", table_rows), number_of(LAYOUTS, "layout", layout),
        number_of(STYLES, "style", style), number_of(STYLES, "out_style", out_style), rotary_dim, rotary_offset, theta,
        inv_freq, attention_scale, num_axes, pair_axis, pair_block, programmatic_launch, False)
    return results[0] if len(tensors) == 1 else tuple(results)


# ---- The step: norm, rotation, caches -------------------------------------------------------------------------------


@torch.library.custom_op(
    "librope::step",
    mutates_args=("q_out", "k_out", "v_out", "k_cache", "v_cache", "fault"),
    schema="(Tensor? q, Tensor? k, Tensor? v, Tensor(a!)? q_out, Tensor(b!)? k_out, Tensor(c!)? v_out, "
    "Tensor? q_weight, Tensor? k_weight, Tensor? q_bias, Tensor? k_bias, Tensor(d!)? k_cache, Tensor(e!)? v_cache, "
    "Tensor? slots, Tensor? page_table, Tensor? page_indptr, Tensor? sequence, Tensor? cache_positions, "
    "bool skip_slot_0, Tensor? positions, Tensor? start_positions, Tensor? cu_seqlens, Tensor? cos, Tensor? sin, "
    "Tensor? angles, Tensor(f!)? fault, SymInt position_offset, int table_rows, int layout, int style, int out_style, "
    "int rotary_dim, int rotary_offset, float theta, float[]? inv_freq, float attention_scale, int num_axes, "
    "int[]? pair_axis, int pair_block, int norm, int norm_tensors, int norm_order, int norm_extent, "
    "int norm_rounding, float norm_eps, float norm_weight_offset, bool unrotated, bool v_unrotated, "
    "bool programmatic_launch) -> ()",
)
def _step(
        q: Optional[Tensor], k: Optional[Tensor], v: Optional[Tensor], q_out: Optional[Tensor],
        k_out: Optional[Tensor], v_out: Optional[Tensor], q_weight: Optional[Tensor], k_weight: Optional[Tensor],
        q_bias: Optional[Tensor], k_bias: Optional[Tensor], k_cache: Optional[Tensor], v_cache: Optional[Tensor],
        slots: Optional[Tensor], page_table: Optional[Tensor], page_indptr: Optional[Tensor],
        sequence: Optional[Tensor], cache_positions: Optional[Tensor], skip_slot_0: bool, positions: Optional[Tensor],
        start_positions: Optional[Tensor], cu_seqlens: Optional[Tensor], cos: Optional[Tensor], sin: Optional[Tensor],
        angles: Optional[Tensor], fault: Optional[Tensor], position_offset: int, table_rows: int, layout: int,
        style: int, out_style: int, rotary_dim: int, rotary_offset: int, theta: float,
        inv_freq: Optional[Sequence[float]], attention_scale: float, num_axes: int, pair_axis: Optional[Sequence[int]],
        pair_block: int, norm: int, norm_tensors: int, norm_order: int, norm_extent: int, norm_rounding: int,
        norm_eps: float, norm_weight_offset: float, unrotated: bool, v_unrotated: bool,
        programmatic_launch: bool) -> None:
    given = [(x, out) for x, out in ((q, q_out), (k, k_out), (v, v_out)) if x is not None]
    first = given[0][0]
    desc = _rope_desc(
        first.dtype, first.shape[-1], layout, style, out_style, rotary_dim, rotary_offset, theta, _as_tuple(inv_freq),
        attention_scale, num_axes, _as_tuple(pair_axis), pair_block, norm=norm, norm_tensors=norm_tensors,
        norm_order=norm_order, norm_extent=norm_extent, norm_rounding=norm_rounding, norm_eps=norm_eps,
        norm_weight_offset=norm_weight_offset)
    weights = Norm(q_weight, k_weight, q_bias, k_bias)
    cache = Cache(k_cache, v_cache, slots, page_table, page_indptr, sequence, cache_positions, skip_slot_0)
    desc.forward(
        q, k, v, out=[False if out is None else out for _, out in given], positions=positions,
        start_positions=start_positions, cu_seqlens=cu_seqlens, cos=cos, sin=sin, angles=angles, fault=fault,
        norm=weights if norm or any(x is not None for x in weights) else None,
        cache=cache if any(x is not None for x in cache[:-1]) else None, position_offset=position_offset,
        table_rows=table_rows, unrotated=unrotated, v_unrotated=v_unrotated, programmatic_launch=programmatic_launch)


@_step.register_fake
def _(*arguments: Any) -> None:
    pass


_refuse_tangents(_step)


def rotary_step(
    q: Optional[Tensor] = None,
    k: Optional[Tensor] = None,
    v: Optional[Tensor] = None,
    *,
    style: AnyStyle,
    layout: AnyLayout,
    theta: float = 0.0,
    inv_freq: Optional[Sequence[float]] = None,
    attention_scale: float = 0.0,
    rotary_dim: int = 0,
    rotary_offset: int = 0,
    out_style: AnyStyle = 0,
    num_axes: int = 0,
    pair_axis: Optional[Sequence[int]] = None,
    pair_block: int = 0,
    norm: AnyNormType = 0,
    norm_tensors: AnyNormTensors = 0,
    norm_order: AnyNormOrder = NormOrder.BEFORE,
    norm_extent: AnyNormExtent = NormExtent.HEAD,
    norm_rounding: AnyNormRounding = 0,
    norm_eps: float = 0.0,
    norm_weight_offset: float = 0.0,
    q_weight: Optional[Tensor] = None,
    k_weight: Optional[Tensor] = None,
    q_bias: Optional[Tensor] = None,
    k_bias: Optional[Tensor] = None,
    cache: Optional[Cache] = None,
    cached_only: bool = False,
    positions: Optional[Tensor] = None,
    start_positions: Optional[Tensor] = None,
    cu_seqlens: Optional[Tensor] = None,
    cos: Optional[Tensor] = None,
    sin: Optional[Tensor] = None,
    angles: Optional[Tensor] = None,
    fault: Optional[Tensor] = None,
    position_offset: int = 0,
    table_rows: AnyTableRows = TableRows.BY_POSITION,
    unrotated: bool = False,
    v_unrotated: bool = False,
    programmatic_launch: bool = False,
) -> Tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]]:
    """Norms and rotates q and k, and writes k and v to paged caches, in one launch. For inference: there is no gradient,
    and tensors that require grad are refused while grad mode is on.

    q, k, v:     as for apply_rotary, one at least; q_weight and the others: as those of librope.Norm
    cache:       a librope.Cache, whose k_cache and v_cache are written
    cached_only: k and v get no output where they are cached
    The other arguments are RopeDesc's and RopeDesc.forward's. Returns new tensors in the place of q, k and v, None for
    what is not given or cached only.
    """
    if q is None and k is None and v is None:
        raise TypeError("rotary_step: q, k and v are None: one of them must be given")
    if cache is None:
        cache = Cache()
    if torch.is_grad_enabled():
        for field, x in (("q", q), ("k", k), ("v", v), ("q_weight", q_weight), ("k_weight", k_weight),
                         ("q_bias", q_bias), ("k_bias", k_bias), ("k_cache", cache.k_cache),
                         ("v_cache", cache.v_cache), ("cos", cos), ("sin", sin), ("angles", angles)):
            if x is not None and x.requires_grad:
                raise ValueError(
                    f"rotary_step: {field}: it requires grad, and the step has no gradient: use apply_rotary, "
                    "torch.no_grad() or detach()")
    make = torch.empty_like if cu_seqlens is None else torch.zeros_like  # tokens outside of sequences are not written
    caches = (None, cache.k_cache, cache.v_cache) if cached_only else (None, None, None)
    q_out, k_out, v_out = (
        make(x) if x is not None and cached is None else None for x, cached in zip((q, k, v), caches))
    torch.ops.librope.step(
        q, k, v, q_out, k_out, v_out, q_weight, k_weight, q_bias, k_bias, *cache, positions, start_positions,
        cu_seqlens, cos, sin, angles, fault, position_offset, number_of(TABLE_ROWS, "table_rows", table_rows),
        number_of(LAYOUTS, "layout", layout), number_of(STYLES, "style", style),
        number_of(STYLES, "out_style", out_style), rotary_dim, rotary_offset, theta, inv_freq, attention_scale,
        num_axes, pair_axis, pair_block, number_of(NORM_TYPES, "norm", norm),
        bits_of(NORM_TENSORS, "norm_tensors", norm_tensors), number_of(NORM_ORDERS, "norm_order", norm_order),
        number_of(NORM_EXTENTS, "norm_extent", norm_extent), bits_of(NORM_ROUNDINGS, "norm_rounding", norm_rounding),
        norm_eps, norm_weight_offset, unrotated, v_unrotated, programmatic_launch)
    return q_out, k_out, v_out


# ---- SwiGLU ---------------------------------------------------------------------------------------------------------


# The last arguments of both operators. They have defaults, so that programs from before them keep their meaning.
_FURTHER = (
    "Tensor? gate_bias=None, Tensor? up_bias=None, Tensor? expert_rows=None, int activation=0, "
    "float gate_softcap=0.0, float up_softcap=0.0, int limit_rule=0, bool product_rounding=False")
_NUM_SWIGLU_INPUTS = 17
_GATE_BIAS, _UP_BIAS = 9, 10  # among them


@torch.library.custom_op(
    "librope::swiglu",
    mutates_args=_UNCHANGED,
    schema="(Tensor gate, Tensor up, Tensor? row_scale, Tensor? num_rows, float alpha, float limit, float up_offset, "
    f"float out_scale, bool programmatic_launch, {_FURTHER}) -> Tensor",
)
def _swiglu(
        gate: Tensor, up: Tensor, row_scale: Optional[Tensor], num_rows: Optional[Tensor], alpha: float, limit: float,
        up_offset: float, out_scale: float, programmatic_launch: bool, gate_bias: Optional[Tensor] = None,
        up_bias: Optional[Tensor] = None, expert_rows: Optional[Tensor] = None, activation: int = 0,
        gate_softcap: float = 0.0, up_softcap: float = 0.0, limit_rule: int = 0,
        product_rounding: bool = False) -> Tensor:
    desc = cached_desc(
        dtype_number(gate.dtype), alpha, limit, up_offset, out_scale, 0, activation, gate_softcap, up_softcap,
        limit_rule, product_rounding)
    return desc.forward(
        gate, up, row_scale=row_scale, num_rows=num_rows, gate_bias=gate_bias, up_bias=up_bias,
        expert_rows=expert_rows, programmatic_launch=programmatic_launch)


@_swiglu.register_fake
def _(gate: Tensor, *arguments: Any) -> Tensor:
    return torch.empty_like(gate)


@torch.library.custom_op(
    "librope::swiglu_backward",
    mutates_args=_UNCHANGED,
    schema="(Tensor grad_out, Tensor gate, Tensor up, Tensor? row_scale, Tensor? num_rows, float alpha, float limit, "
    f"float up_offset, float out_scale, bool programmatic_launch, bool[] is_wanted, {_FURTHER}) -> Tensor[]",
)
def _swiglu_backward(
        grad_out: Tensor, gate: Tensor, up: Tensor, row_scale: Optional[Tensor], num_rows: Optional[Tensor],
        alpha: float, limit: float, up_offset: float, out_scale: float, programmatic_launch: bool,
        is_wanted: Sequence[bool], gate_bias: Optional[Tensor] = None, up_bias: Optional[Tensor] = None,
        expert_rows: Optional[Tensor] = None, activation: int = 0, gate_softcap: float = 0.0, up_softcap: float = 0.0,
        limit_rule: int = 0, product_rounding: bool = False) -> List[Tensor]:
    desc = cached_desc(
        dtype_number(gate.dtype), alpha, limit, up_offset, out_scale, 0, activation, gate_softcap, up_softcap,
        limit_rule, product_rounding)
    grad_gate, grad_up, grad_row_scale = (None if wanted else False for wanted in is_wanted)
    grads = desc.backward(
        grad_out, gate, up, row_scale=row_scale, num_rows=num_rows, gate_bias=gate_bias, up_bias=up_bias,
        expert_rows=expert_rows, grad_gate=grad_gate, grad_up=grad_up, grad_row_scale=grad_row_scale,
        programmatic_launch=programmatic_launch)
    return [grad for grad in grads if grad is not None]


@_swiglu_backward.register_fake
def _(
        grad_out: Tensor, gate: Tensor, up: Tensor, row_scale: Optional[Tensor], num_rows: Optional[Tensor],
        alpha: float, limit: float, up_offset: float, out_scale: float, programmatic_launch: bool,
        is_wanted: Sequence[bool], *further: Any) -> List[Tensor]:
    return [torch.empty_like(x) for x, wanted in zip((gate, up, row_scale), is_wanted) if wanted]


def _save_swiglu(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4], *inputs[9:12])
    ctx.numbers = inputs[4:9], inputs[12:]


def _bias_gradient(grad: Tensor, bias: Tensor) -> Tensor:
    """The sum over the rows that a bias was added to; those that do not exist are 0."""
    axes = tuple(range(bias.dim() - 1, grad.dim() - 1))
    if axes:  # no axes would mean all of them
        grad = grad.sum(axes, dtype=torch.promote_types(grad.dtype, bias.dtype))
    return grad.to(bias.dtype)


def _swiglu_back(ctx: Any, grad_out: Tensor) -> Tuple[Optional[Tensor], ...]:
    # Arguments at their defaults may be left out.
    needed = ctx.needs_input_grad + (False,) * (_NUM_SWIGLU_INPUTS - len(ctx.needs_input_grad))
    *inputs, gate_bias, up_bias, expert_rows = ctx.saved_tensors
    numbers, form = ctx.numbers
    is_wanted = [needed[0] or needed[_GATE_BIAS], needed[1] or needed[_UP_BIAS], needed[2]]
    results = iter(torch.ops.librope.swiglu_backward(
        grad_out, *inputs, *numbers, is_wanted, gate_bias, up_bias, expert_rows, *form))
    grads: List[Optional[Tensor]] = [None] * _NUM_SWIGLU_INPUTS
    for i, wanted in enumerate(is_wanted):
        if wanted:
            grads[i] = next(results)
    for i, at, bias in ((0, _GATE_BIAS, gate_bias), (1, _UP_BIAS, up_bias)):
        grad = grads[i]
        if needed[at] and grad is not None:
            grads[at] = _bias_gradient(grad, bias)
            if not needed[i]:
                grads[i] = None
    return tuple(grads)


_swiglu.register_autograd(_swiglu_back, setup_context=_save_swiglu)
_refuse_tangents(_swiglu)
_refuse_tangents(_swiglu_backward)


def swiglu(
    gate: Tensor,
    up: Tensor,
    *,
    row_scale: Optional[Tensor] = None,
    num_rows: Optional[Tensor] = None,
    gate_bias: Optional[Tensor] = None,
    up_bias: Optional[Tensor] = None,
    expert_rows: Optional[Tensor] = None,
    alpha: float = 0.0,
    limit: float = 0.0,
    up_offset: float = 0.0,
    out_scale: float = 0.0,
    activation: AnyActivation = Activation.SWIGLU,
    gate_softcap: float = 0.0,
    up_softcap: float = 0.0,
    limit_rule: AnyLimitRule = LimitRule.GATE,
    product_rounding: bool = False,
    programmatic_launch: bool = False,
) -> Tensor:
    """out_scale * g * sigmoid(alpha * g) * (u + up_offset) * row_scale, or what gates by another activation, as
    SwigluDesc and its forward have it.

    gate, up:  rank 1 to 4, one shape, any strides; two halves of a packed tensor are two views
    row_scale: the first axes of gate
    num_rows:  [1]
    gate_bias, up_bias: [d], or [E, d] with experts
    expert_rows: [E] with gate [E, N, .., d]
    Gradients flow to gate, up, row_scale and the biases, of which each gets the sum over its rows.
    """
    return torch.ops.librope.swiglu(
        gate, up, row_scale, num_rows, alpha, limit, up_offset, out_scale, programmatic_launch, gate_bias, up_bias,
        expert_rows, number_of(ACTIVATIONS, "activation", activation), gate_softcap, up_softcap,
        number_of(LIMIT_RULES, "limit_rule", limit_rule), product_rounding)


_GELUS = {"none": Activation.GEGLU_ERF, "tanh": Activation.GEGLU_TANH}


def geglu(
    gate: Tensor, up: Tensor, approximate: Literal["none", "tanh"] = "none", **keywords: Unpack[TorchGeglu]) -> Tensor:
    """gelu(gate, approximate=approximate) * up, in the words of torch.nn.functional.gelu; keywords as for swiglu."""
    activation = _GELUS.get(approximate)
    if activation is None:
        raise ValueError(f"geglu: approximate is {approximate!r}: it must be one of {', '.join(_GELUS)}")
    return swiglu(gate, up, activation=activation, **keywords)
