# SPDX-License-Identifier: Apache-2.0
# torch.py - RoPE and SwiGLU for torch: eager, autograd, forward mode, vmap, torch.compile(fullgraph=True), CUDA graphs
"""apply_rotary, swiglu and geglu return new tensors. apply_rotary is differentiable any number of times; derivatives of
swiglu have no derivatives. Both work in reverse and in forward mode. norm_rotary, which norms and rotates in one
launch, is differentiable once, in reverse mode. rotary_step is for inference: it has a norm and paged caches in the
rotation's launch. The operators behind these functions, torch.ops.librope, run on the current stream and never break a
graph. In eager, while operators are not being recorded, faster builtins replace them. The operators' kernels are those
of librope_torch.so from torch 2.10 on, and otherwise of Python: `python -m librope` prints which. Descriptors are made
on first use and kept.

Errors of the library are of the package's classes; in graphs of torch.compile they are RuntimeErrors with the library's
text. torch.jit.trace takes the functions under torch.no_grad(), without derivatives."""
# pyright: reportPrivateUsage=false
# torch has no public names for these. Those of descriptors are private to the package.
from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Callable, Iterable, List, Literal, NoReturn, Optional, Sequence, Tuple, overload

from ._library import refuse_other_interpreters

refuse_other_interpreters(__name__)
import torch  # noqa: E402  # behind the refusal
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_scalar

from . import _calls
from . import _torch_operators as operators
from ._constants import kept
from ._enums import (LAYOUTS, NORM_TENSORS, NORM_TYPES, SCALE_LAYOUTS, TABLE_ROWS, Activation, Layout, LimitRule,
                     NormExtent, NormOrder, NormTensors, NormType, ScaleLayout, TableRows, bits_of, number_of)
from ._group_reader import WRITTEN_IN_GROUPS
from ._groups import Cache, Input, Norm, Quant, SwigluQuant
from ._integers import integer
from ._rope import RopeDesc, as_list, flags_of
from ._swiglu import SwigluDesc, as_bits, cached_desc
from ._tensors import MAX_NDIM, refuse_tangent, why_no_memory
from ._torch_operators import num_threads_for
from ._types import (AnyActivation, AnyLayout, AnyLimitRule, AnyNormExtent, AnyNormOrder, AnyNormRounding,
                     AnyNormTensors, AnyNormType, AnyQuantRounding, AnyRotationRounding, AnyStyle, AnyTableRows,
                     TorchGating, TorchGeglu, TorchNorm, TorchPassRotation)

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["RotaryEmbedding", "SwiGLU", "SwigluCodes", "apply_rotary", "apply_rotary_emb", "apply_rotary_pos_emb",
           "geglu", "norm_rotary", "rotary_step", "swiglu", "swiglu_codes", "swiglu_gradients"]

# ---- Derivatives ----------------------------------------------------------------------------------------------------
#
# If no derivative is recorded, a builtin (_calls.py) or the operator alone is called. Reverse mode uses a Function with
# a forward that takes the context, which costs 12 us a call. Forward mode and torch.func need one with setup_context,
# which costs 29 us. torch.compile has its own transforms, which lose the tangents of a Function: forward mode runs in
# eager.


_forward_ad: Any = torch.autograd.forward_ad
_are_transforms_active = torch._C._are_functorch_transforms_active
_is_compiling = torch.compiler.is_compiling
_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_compiler: Any = torch.compiler  # torch gives its decorators no types
_disable: _Decorator = _compiler.disable
_assume_constant_result: _Decorator = _compiler.assume_constant_result


def _is_transformed() -> bool:
    """Whether forward mode or torch.func's transforms are on. torch.compile sees these transforms by itself."""
    level: int = _forward_ad._current_level
    return level >= 0 or (_are_transforms_active() and not _is_compiling())


@_disable
def _apply_transformed(function: Any, inputs: Any) -> Any:
    return function.apply(*inputs)


def _requires_grad(*tensors: Optional[Tensor]) -> bool:
    if torch.is_grad_enabled():
        for x in tensors:
            if x is not None and x.requires_grad:
                return True
    return False


def _refuse_tangents(function: str, **tensors: Any) -> None:
    for field, x in tensors.items():
        if isinstance(x, Tensor):
            try:
                refuse_tangent(x)
            except ValueError as error:
                raise ValueError(f"{function}: {field}: {error}") from None


def _explain(error: Exception, tensors: Sequence[Any], call: Callable[[], Any]) -> NoReturn:
    """If the kernel refused the call, or torch for a tensor that is not one piece of memory, raises the exception that
    the same call of a descriptor raises, which is of the package's classes. Otherwise raises `error`: of CUDA, of other
    tensor classes, or of the layers between the call and the kernel."""
    if not _is_compiling() and not operators.is_transformed():
        given = [x for x in tensors if isinstance(x, Tensor)]
        if any([why_no_memory(x) is not None for x in given]) or (
                type(error) is RuntimeError and all([type(x) in operators.PLAIN_TYPES for x in given])):
            try:
                with torch.no_grad():
                    call()
            except Exception as known:
                raise known from None
    raise error


def _refuse_shape(function: str, field: str, x: Tensor) -> None:
    """Raises the reason why torch finds no shape, no number of channels or no tensor like this one."""
    reason = why_no_memory(x)
    if reason is not None:
        raise TypeError(f"{function}: {field}: {reason}") from None
    if x.dim() == 0:
        raise ValueError(f"{function}: {field}: it has 0 axes: librope takes 1 to {MAX_NDIM}") from None


# ---- RoPE -----------------------------------------------------------------------------------------------------------


@kept(maxsize=256)
def _rope_desc(
        what: Tuple[Any, ...], norm: Tuple[Tuple[str, Any], ...] = (), num_threads: int = 0) -> RopeDesc:
    (dtype, head_dim, style, layout, out_style, rotary_dim, rotary_offset, theta, inv_freq, attention_scale, num_axes,
     pair_axis, pair_block, rotation_rounding) = what
    return RopeDesc(
        dtype=dtype, head_dim=head_dim, layout=layout, style=style, out_style=out_style, rotary_dim=rotary_dim,
        rotary_offset=rotary_offset, theta=theta, inv_freq=inv_freq, attention_scale=attention_scale, num_axes=num_axes,
        pair_axis=pair_axis, pair_block=pair_block, rotation_rounding=rotation_rounding, num_threads=num_threads,
        **dict(norm))


def _what_of(
        function: str, stated: int, dtype: torch.dtype, head_dim: int, style: Any, layout: Any, out_style: Any,
        rotary_dim: int, rotary_offset: int, theta: float, inv_freq: Optional[Sequence[float]], attention_scale: float,
        num_axes: int, pair_axis: Optional[Sequence[int]], pair_block: int, rotation_rounding: Any) -> Tuple[Any, ...]:
    """The arguments of _rope_desc that belong to the rotation. head_dim is that of the tensors; `stated`, if not 0, is
    that of the caller of `function`."""
    if stated and stated != head_dim:
        raise ValueError(f"{function}: head_dim is {stated}: the tensors have {head_dim} channels")
    return (dtype, head_dim, style, layout, out_style, rotary_dim, rotary_offset, theta,
            None if inv_freq is None else tuple(as_list(inv_freq)), attention_scale, num_axes,
            None if pair_axis is None else tuple(as_list(pair_axis)), pair_block, rotation_rounding)


@_assume_constant_result
def _rope_key(what: Tuple[Any, ...], norm: Tuple[Tuple[str, Any], ...] = ()) -> str:
    """The key of the descriptor, which graphs contain."""
    return _rope_desc(what, norm)._key


def _as_constants(what: Tuple[Any, ...]) -> Tuple[Any, ...]:
    """A graph may have some of the numbers as symbols. It becomes specific to their present values."""
    constants: List[Any] = []
    for x in what:
        if type(x) in (int, float, torch.SymInt, torch.SymFloat):
            constants.append(guard_scalar(x))
        elif type(x) is tuple:
            constants.append(_as_constants(x))  # pyright: ignore[reportUnknownArgumentType]  # of any elements
        else:
            constants.append(x)
    return tuple(constants)


_NUM_ROTATE_INPUTS = 14
_OPERANDS = 5, 8, 9, 10, 11, 12
_OPERAND_FIELDS = "positions", "start_positions", "cu_seqlens", "cos", "sin", "angles"


def _rotate(*inputs: Any) -> Any:
    """torch.ops.librope.rotate and its derivatives. Given tensors come first, and their results likewise."""
    if _is_transformed():
        return _apply_transformed(_TransformedRotation, inputs)
    return _Rotation.apply(*inputs) if _requires_grad(*inputs[1:4]) else operators.rotate(*inputs)


def _rotate_linearly(
        what: Tuple[Any, ...], operands: Sequence[Optional[Tensor]], is_backward: bool,
        tensors: Sequence[Optional[Tensor]]) -> Tuple[Optional[Tensor], ...]:
    """Rotates the given tensors with the constants `what` and the operands."""
    given = [x for x in tensors if x is not None]
    if not given:
        return tuple(tensors)
    key, position_offset, flags, table_rows = what
    positions, *others = operands
    results = iter(_rotate(
        key, *given, *(None, None, None)[len(given):], is_backward, positions, position_offset, flags, *others,
        table_rows))
    return tuple([None if x is None else next(results) for x in tensors])


def _save_rotation(ctx: Any, inputs: Tuple[Any, ...], *further: Tensor) -> Tuple[Any, ...]:
    key, _, _, _, ctx.is_backward, _, position_offset, flags, *_, table_rows = inputs
    ctx.what = key, position_offset, flags, table_rows
    ctx.set_materialize_grads(False)
    saved = (*[inputs[i] for i in _OPERANDS], *further)
    ctx.save_for_backward(*saved)
    return saved


def _rotate_back(ctx: Any, grads: Sequence[Optional[Tensor]]) -> Tuple[Any, ...]:
    """The gradient of a rotation is its transpose, and the gradient of the transpose is the rotation."""
    wanted = [grad if is_needed else None for grad, is_needed in zip(grads, ctx.needs_input_grad[1:4])]
    results = _rotate_linearly(ctx.what, ctx.saved_tensors[:len(_OPERANDS)], not ctx.is_backward, wanted)
    return (None, *results, *(None,) * (_NUM_ROTATE_INPUTS - 1 - len(results)))


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        _save_rotation(ctx, inputs)
        return operators.rotate(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _rotate_back(ctx, grads)


class _TransformedRotation(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return tuple([x for x in operators.rotate(*inputs) if x is not None])

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Any) -> None:
        ctx.save_for_forward(*_save_rotation(ctx, inputs, *output))  # vmap requires those of backward

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _rotate_back(ctx, grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        for field, i in zip(_OPERAND_FIELDS, _OPERANDS):
            if tangents[i] is not None:
                raise ValueError(f"apply_rotary: {field}: it has a tangent of forward-mode AD, and no derivative here")
        operands, outputs = ctx.saved_tensors[:len(_OPERANDS)], ctx.saved_tensors[len(_OPERANDS):]
        results = _rotate_linearly(ctx.what, operands, ctx.is_backward, tangents[1:4])
        # torch accepts no None for a tensor without a tangent if another tensor has one.
        return tuple([torch.zeros_like(x) if y is None else y for x, y in zip(outputs, results)])


@overload
def apply_rotary(q: Tensor, k: None = None, v: None = None, **keywords: Unpack[TorchPassRotation]) -> Tensor: ...
@overload
def apply_rotary(
    q: Tensor, k: Tensor, v: None = None, **keywords: Unpack[TorchPassRotation]) -> Tuple[Tensor, Tensor]: ...
@overload
def apply_rotary(
    q: Tensor, k: None = None, *, v: Tensor, **keywords: Unpack[TorchPassRotation]) -> Tuple[Tensor, Tensor]: ...
@overload
def apply_rotary(q: Tensor, k: None, v: Tensor, **keywords: Unpack[TorchPassRotation]) -> Tuple[Tensor, Tensor]: ...
@overload
def apply_rotary(
    q: Tensor, k: Tensor, v: Tensor, **keywords: Unpack[TorchPassRotation]) -> Tuple[Tensor, Tensor, Tensor]: ...


def apply_rotary(
    q: Tensor,
    k: Optional[Tensor] = None,
    v: Optional[Tensor] = None,
    *,
    head_dim: int = 0,
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
    rotation_rounding: AnyRotationRounding = 0,
    q_pass: Optional[Tensor] = None,
    k_pass: Optional[Tensor] = None,
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
    """Rotates q, and k and v if given, in one launch. Returns a tensor for q alone, otherwise a tuple.

    q, k, v: [B, S, H, D] in the order of the layout, "thd" [T, H, D]; any strides, H of each its own
    head_dim: D, or 0; any other is an error. So from_hf_config's result is accepted: apply_rotary(q, k,
        **librope.from_hf_config(model.config), layout="bhsd")
    q_pass, k_pass: as in librope.Input: the channels outside the window of q and k, which then hold the window alone.
        The launch writes them to the result. If gradients are recorded or there is a v, the windows are rotated first
        and joined to their pass by torch.cat, which reads and writes all channels of the result once more
    positions: [T], [S], [B, S] or [1, S]; cu_seqlens: [B + 1]; cos, sin, angles: [M, W] or by token
    The other arguments are those of RopeDesc and RopeDesc.forward. Gradients flow to q, k, v, q_pass and k_pass alone.
    inv_freq is a sequence of numbers, because it belongs to the descriptor.
    """
    try:
        channels = q.size(-1)
    except (RuntimeError, IndexError):
        _refuse_shape("apply_rotary", "q", q)
        raise
    if q_pass is not None or k_pass is not None:
        channels = _head_dim_of(q, (q, q_pass), (k, k_pass))
        if v is None and not _requires_grad(q, k, q_pass, k_pass, cos, sin, angles) and not _is_transformed():
            q_out, k_out, _ = rotary_step(
                q, k, head_dim=head_dim, style=style, layout=layout, theta=theta, inv_freq=inv_freq,
                attention_scale=attention_scale, rotary_dim=rotary_dim, rotary_offset=rotary_offset,
                out_style=out_style, num_axes=num_axes, pair_axis=pair_axis, pair_block=pair_block,
                rotation_rounding=rotation_rounding, input=Input(q_pass, k_pass), positions=positions,
                start_positions=start_positions, cu_seqlens=cu_seqlens, cos=cos, sin=sin, angles=angles,
                position_offset=position_offset, table_rows=table_rows, programmatic_launch=programmatic_launch)
            return q_out if k is None else (q_out, k_out)
        _check_pass("q", q, q_pass)
        _check_pass("k", k, k_pass)
    what = _what_of(
        "apply_rotary", head_dim, q.dtype, channels, style, layout, out_style, rotary_dim, rotary_offset, theta,
        inv_freq, attention_scale, num_axes, pair_axis, pair_block, rotation_rounding)
    if table_rows is not TableRows.BY_POSITION:
        table_rows = number_of(TABLE_ROWS, "table_rows", table_rows)
    if _is_compiling() or type(what[1]) is not int:
        what = _as_constants(what)
    else:
        given = _calls.rotate(
            _rope_desc(what, (), num_threads_for(q)), False, q, k, v, None, positions, start_positions, cu_seqlens, cos,
            sin, angles, None, None, None, None, None, position_offset, table_rows, programmatic_launch, False, False)
        if given is not NotImplemented:
            return _joined(given, q_pass, k_pass, rotary_offset, cu_seqlens)
    _check_operands("apply_rotary", position_offset, cos, sin, angles)
    tensors = (q, v, None) if k is None and v is not None else (q, k, v)
    inputs: Tuple[Any, ...] = (
        _rope_key(what), *tensors, False, positions, position_offset, flags_of(programmatic_launch), start_positions,
        cu_seqlens, cos, sin, angles, table_rows)
    try:
        results = _rotate(*inputs)
    except (RuntimeError, TypeError) as error:  # TypeError is that of tensor classes
        _explain(error, inputs[1:], lambda: _rope_desc(what).forward(
            q, k, v, positions=positions, start_positions=start_positions, cu_seqlens=cu_seqlens, cos=cos, sin=sin,
            angles=angles, position_offset=position_offset, table_rows=table_rows,
            programmatic_launch=programmatic_launch))
    given = results[0] if k is None and v is None else results[:2] if k is None or v is None else results
    return _joined(given, q_pass, k_pass, rotary_offset, cu_seqlens)


def _check_operands(function: str, position_offset: Any, *tables: Optional[Tensor]) -> None:
    """Refuses values that the operators would silently interpret as something else."""
    if _requires_grad(*tables):
        raise ValueError(f"{function}: cos, sin and angles have no gradient here: detach() them")
    if type(position_offset) is bool:
        integer(f"{function}: position_offset", position_offset)  # raises


def _head_dim_of(first: Tensor, *parts: Tuple[Optional[Tensor], Optional[Tensor]]) -> int:
    """The head_dim of q or k including its pass, or else of the first tensor."""
    for x, rest in parts:
        if x is not None and rest is not None:
            return x.size(-1) + rest.size(-1)
    return first.size(-1)


def _check_pass(field: str, x: Optional[Tensor], rest: Optional[Tensor]) -> None:
    """Refuses tensors that torch.cat accepts against the library's rules."""
    if rest is not None and (x is None or x.dtype != rest.dtype or x.shape[:-1] != rest.shape[:-1]):
        raise ValueError(f"apply_rotary: {field}_pass: it must have {field}'s dtype and its axes but for the last")


def _joined(
        given: Any, q_pass: Optional[Tensor], k_pass: Optional[Tensor], offset: int,
        cu_seqlens: Optional[Tensor]) -> Any:
    """Joins the rotated windows among the results to the channels around them. The results before v are q and k."""
    if q_pass is None and k_pass is None:
        return given
    results = [given] if isinstance(given, Tensor) else list(given)
    for i, rest in enumerate((q_pass, k_pass)):
        if rest is not None:
            if cu_seqlens is not None:  # tokens outside of sequences are 0
                is_inside = torch.arange(rest.size(0), device=rest.device) < cu_seqlens[-1]
                rest = torch.where(is_inside[:, None, None], rest, 0)
            before, behind = rest[..., :offset], rest[..., offset:]
            results[i] = torch.cat([x for x in (before, results[i], behind) if x.size(-1)], -1)
    return results[0] if isinstance(given, Tensor) else tuple(results)


# ---- Norm and rotation ----------------------------------------------------------------------------------------------

_STEP_FIELDS = ("norm", "norm_tensors", "norm_order", "norm_extent", "norm_rounding", "norm_eps", "norm_weight_offset",
                "quant_rounding")


_NUM_NORM_INPUTS = 20
_NORM_OPERANDS = 4, 7, 8, 9, 10, 11
_NORM_WEIGHTS = 13, 14, 15, 16  # in the order of librope.Norm


def _wanted(gradients: Iterable[Optional[Tensor]]) -> Tuple[Tensor, ...]:
    return tuple([x for x in gradients if x is not None])


def _last_gradients(entry: str, operator: Callable[..., Any]) -> Any:
    """A function that returns the requested results of an operator. It refuses to be differentiated: torch would take
    the derivatives for 0."""

    class Gradients(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*inputs: Any) -> Any:
            return _wanted(operator(*inputs))

        @staticmethod
        def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            raise NotImplementedError(f"{entry}: its derivative is not differentiable")

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            raise NotImplementedError(f"{entry}: its derivative is not differentiable")

    return Gradients


_NormGradients = _last_gradients("norm_rotary", operators.norm_rotate_backward)


def _norm_rotate(*inputs: Any) -> Any:
    """torch.ops.librope.norm_rotate and its gradient: the results of the given tensors. The operator's arguments are
    followed by the normed tensors as bits, the axis of heads, and the largest number of runs of tokens over which
    gradients of weights are summed."""
    if _is_transformed():
        return _apply_transformed(_TransformedNormRotation, inputs)
    return (_NormRotation.apply if _requires_grad(*inputs[1:4], *inputs[13:17]) else _norm_rotate_plainly)(*inputs)


def _norm_rotate_plainly(*inputs: Any) -> Any:
    return _wanted(operators.norm_rotate(*inputs[:-3]))


def _save_norm_rotation(ctx: Any, inputs: Tuple[Any, ...]) -> None:
    key, *tensors = inputs[:4]
    _, position_offset, flags, *_, table_rows = inputs[4:13]
    *weights, normed, heads, most_runs = inputs[13:]
    ctx.are_given = [x is not None for x in tensors]
    ctx.what = key, position_offset, flags, table_rows, heads, most_runs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(
        *[inputs[i] for i in _NORM_OPERANDS], *weights,
        *[x if normed >> i & 1 else None for i, x in enumerate(tensors)])


def _norm_rotate_back(ctx: Any, grads: Sequence[Optional[Tensor]]) -> Tuple[Any, ...]:
    key, position_offset, flags, table_rows, heads, most_runs = ctx.what
    positions, *saved = ctx.saved_tensors  # read once: checkpointing returns them only once
    operands, weights, inputs = saved[:-7], saved[-7:-3], saved[-3:]
    needed = ctx.needs_input_grad
    of_results = iter(grads)
    given: List[Optional[Tensor]] = [next(of_results) if is_given else None for is_given in ctx.are_given]
    wanted = sum([1 << i for i, at in enumerate(_NORM_WEIGHTS) if needed[at] and given[i % 2] is not None])
    for i, of_weights in enumerate((1 | 4, 2 | 8, 0)):
        if not needed[1 + i] and not wanted & of_weights:
            given[i] = None
    results: List[Optional[Tensor]] = [None] * _NUM_NORM_INPUTS
    first = next((x for x in given if x is not None), None)
    if first is None:
        return tuple(results)
    # Runs have at least 4 tokens: the rows of shorter ones would be as large as the tensors.
    axis: int = 3 - heads
    tokens = first.size(0) * (first.size(axis) if first.dim() == 4 else 1)
    num_runs = max(1, min(most_runs, (tokens + 3) // 4))
    weights = [None if given[i % 2] is None else x for i, x in enumerate(weights)]
    inputs = [None if grad is None else x for x, grad in zip(inputs, given)]
    call = (key, *given, positions, position_offset, flags, *operands, table_rows, *weights, *inputs, wanted, num_runs)
    # Grad mode is on here if the gradient is to have a gradient.
    is_differentiated = _forward_ad._current_level >= 0 or _requires_grad(*given, *weights, *inputs)
    gradients = iter(_wanted((_NormGradients.apply if is_differentiated else operators.norm_rotate_backward)(*call)))
    for i, grad in enumerate(given):
        gradient = None if grad is None else next(gradients)
        results[1 + i] = gradient if needed[1 + i] else None
    if wanted:
        rows: Tensor = next(gradients)
        sums = operators.parts_of(rows.sum(0), wanted, weights)
        for at, weight, grad in zip(_NORM_WEIGHTS, weights, sums):
            results[at] = None if weight is None or grad is None else grad.to(weight.dtype)
    return tuple(results)


class _NormRotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        _save_norm_rotation(ctx, inputs)
        return _norm_rotate_plainly(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _norm_rotate_back(ctx, grads)


class _TransformedNormRotation(torch.autograd.Function):
    @staticmethod
    def forward(*inputs: Any) -> Any:
        return _norm_rotate_plainly(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Any) -> None:
        _save_norm_rotation(ctx, inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _norm_rotate_back(ctx, grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise NotImplementedError("norm_rotary: it has no derivative of forward mode")

    vmap = staticmethod(operators.refuse_vmap_of_norms)


@lru_cache(maxsize=None)
def _count_multiprocessors(index: int) -> int:
    cuda: Any = torch.cuda  # its properties have no types
    count: int = cuda.get_device_properties(index).multi_processor_count
    return count


@_assume_constant_result
def _most_runs_on(device: torch.device) -> int:
    """A few runs for each multiprocessor. On CPUs it is one constant, so that all CPUs compute equal sums."""
    return 4 * _count_multiprocessors(device.index) if device.type == "cuda" and torch.cuda.is_available() else 128


@overload
def norm_rotary(q: Tensor, k: None = None, v: None = None, **keywords: Unpack[TorchNorm]) -> Tensor: ...
@overload
def norm_rotary(q: Tensor, k: Tensor, v: None = None, **keywords: Unpack[TorchNorm]) -> Tuple[Tensor, Tensor]: ...
@overload
def norm_rotary(q: Tensor, k: None = None, *, v: Tensor, **keywords: Unpack[TorchNorm]) -> Tuple[Tensor, Tensor]: ...
@overload
def norm_rotary(q: Tensor, k: None, v: Tensor, **keywords: Unpack[TorchNorm]) -> Tuple[Tensor, Tensor]: ...
@overload
def norm_rotary(q: Tensor, k: Tensor, v: Tensor, **keywords: Unpack[TorchNorm]) -> Tuple[Tensor, Tensor, Tensor]: ...


def norm_rotary(
    q: Tensor,
    k: Optional[Tensor] = None,
    v: Optional[Tensor] = None,
    *,
    head_dim: int = 0,
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
    rotation_rounding: AnyRotationRounding = 0,
    norm: AnyNormType = NormType.RMS,
    norm_tensors: AnyNormTensors = 0,
    norm_order: AnyNormOrder = NormOrder.BEFORE,
    norm_extent: AnyNormExtent = NormExtent.HEAD,
    norm_rounding: AnyNormRounding = 0,
    norm_eps: float,
    norm_weight_offset: float = 0.0,
    q_weight: Optional[Tensor] = None,
    k_weight: Optional[Tensor] = None,
    q_bias: Optional[Tensor] = None,
    k_bias: Optional[Tensor] = None,
    positions: Optional[Tensor] = None,
    start_positions: Optional[Tensor] = None,
    cu_seqlens: Optional[Tensor] = None,
    cos: Optional[Tensor] = None,
    sin: Optional[Tensor] = None,
    angles: Optional[Tensor] = None,
    position_offset: int = 0,
    table_rows: AnyTableRows = TableRows.BY_POSITION,
    unrotated: bool = False,
    programmatic_launch: bool = False,
) -> Any:
    """Norms and rotates q, and k if given, and norms v if given, in one launch; the gradient is one launch, too.
    Returns a tensor for q alone, otherwise a tuple.

    q, k, v:      as in apply_rotary; v is not rotated, and normed without weight and bias (Gemma 4)
    norm_tensors: the tensors that are normed; 0: all that are given
    norm_eps:     above 0
    q_weight, k_weight: F32 or the dtype of q, [D], or [H, D] with a weight for each head; None: 1, and
                  norm_weight_offset is not added
    q_bias, k_bias: like the weights, "layer" only; None: 0
    unrotated:    nothing is rotated
    The other arguments are those of RopeDesc and RopeDesc.forward. Gradients flow to q, k, v, weights and biases, each
    in the dtype of its tensor; they ignore norm_rounding. Gradients of weights and biases are summed in F32, or F64,
    over runs of tokens, then over the runs. Gradients have no gradients: differentiating them raises
    NotImplementedError, and so do forward mode and torch.vmap.
    """
    try:
        channels = q.size(-1)
    except (RuntimeError, IndexError):
        _refuse_shape("norm_rotary", "q", q)
        raise
    what = _what_of(
        "norm_rotary", head_dim, q.dtype, channels, style, layout, out_style, rotary_dim, rotary_offset, theta,
        inv_freq, attention_scale, num_axes, pair_axis, pair_block, rotation_rounding)
    normed = bits_of(NORM_TENSORS, "norm_tensors", norm_tensors)
    if not normed:
        normed = NormTensors.Q | NormTensors.K | (0 if v is None else NormTensors.V)
    values = (norm, int(normed), norm_order, norm_extent, as_bits(norm_rounding), norm_eps, norm_weight_offset, 0)
    if _is_compiling() or type(what[1]) is not int:
        what, values = _as_constants(what), _as_constants(values)
    form = tuple(zip(_STEP_FIELDS, values))
    if table_rows is not TableRows.BY_POSITION:
        table_rows = number_of(TABLE_ROWS, "table_rows", table_rows)
    weights = Norm(q_weight, k_weight, q_bias, k_bias)
    v_unrotated = v is not None
    if not _is_compiling():
        given = _calls.rotate(
            _rope_desc(what, form, num_threads_for(q)), False, q, k, v, None, positions, start_positions, cu_seqlens,
            cos, sin, angles, None, weights, None, None, None, position_offset, table_rows,
            programmatic_launch, unrotated, v_unrotated)
        if given is not NotImplemented:
            return given
    _check_operands("norm_rotary", position_offset, cos, sin, angles)
    heads = 1 if number_of(LAYOUTS, "layout", layout) in (Layout.BHSD, Layout.THD) else 2
    most_runs = _most_runs_on(q.device) if _requires_grad(*weights) else 0
    inputs: Tuple[Any, ...] = (
        _rope_key(what, form), q, k, v, positions, position_offset,
        flags_of(programmatic_launch, unrotated, v_unrotated), start_positions, cu_seqlens, cos, sin, angles,
        table_rows, *weights, int(normed), heads, most_runs)
    try:
        results = _norm_rotate(*inputs)
    except (RuntimeError, TypeError) as error:  # TypeError is that of tensor classes
        _explain(error, inputs[1:], lambda: _rope_desc(what, form).forward(
            q, k, v, positions=positions, start_positions=start_positions, cu_seqlens=cu_seqlens, cos=cos, sin=sin,
            angles=angles, position_offset=position_offset, table_rows=table_rows, norm=weights, unrotated=unrotated,
            v_unrotated=v_unrotated, programmatic_launch=programmatic_launch))
    return results[0] if len(results) == 1 else results


# ---- The step: norm, rotation, row factors, caches ------------------------------------------------------------------


def rotary_step(
    q: Optional[Tensor] = None,
    k: Optional[Tensor] = None,
    v: Optional[Tensor] = None,
    *,
    head_dim: int = 0,
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
    rotation_rounding: AnyRotationRounding = 0,
    norm: AnyNormType = 0,
    norm_tensors: AnyNormTensors = 0,
    norm_order: AnyNormOrder = NormOrder.BEFORE,
    norm_extent: AnyNormExtent = NormExtent.HEAD,
    norm_rounding: AnyNormRounding = 0,
    norm_eps: float = 0.0,
    norm_weight_offset: float = 0.0,
    quant_rounding: AnyQuantRounding = 0,
    q_weight: Optional[Tensor] = None,
    k_weight: Optional[Tensor] = None,
    q_bias: Optional[Tensor] = None,
    k_bias: Optional[Tensor] = None,
    cache: Optional[Cache] = None,
    cached_only: bool = False,
    quant: Optional[Quant] = None,
    input: Optional[Input] = None,
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
    """Norms and rotates q and k, scales heads, and writes k and v to paged caches, of 8 bits too, in one launch. It is
    for inference: there is no gradient, and tensors that require grad are refused while grad mode is on.

    q, k, v:     as in apply_rotary, at least one; q_weight and the others: as in librope.Norm
    cache:       a librope.Cache, with k_cache and v_cache, which are written, and their scales
    cached_only: k and v get no output if they are cached
    quant:       a librope.Quant: scales of caches of 8 bits
    input:       a librope.Input: channels outside the window, row factors. Beside its pass q holds the window alone,
                 and its output all channels; likewise k
    The other arguments are those of RopeDesc and RopeDesc.forward. Returns new tensors at the places of q, k and v,
    None for those that are not given or cached only.
    """
    if q is None and k is None and v is None:
        raise TypeError("rotary_step: q, k and v are None: one of them must be given")
    if cache is None:
        cache = Cache()
    in_groups = dict(zip(Cache._fields[:-1], cache[:-1]))
    if quant is not None:
        in_groups.update(zip(Quant._fields[:-3], quant[:-3]))
    if input is not None:
        in_groups.update(input._asdict())
    if torch.is_grad_enabled():
        for field, x in (("q", q), ("k", k), ("v", v), ("q_weight", q_weight), ("k_weight", k_weight),
                         ("q_bias", q_bias), ("k_bias", k_bias), ("cos", cos), ("sin", sin), ("angles", angles),
                         *in_groups.items()):
            if x is not None and x.requires_grad:
                raise ValueError(
                    f"rotary_step: {field}: it requires grad, and the step has no gradient: use apply_rotary, "
                    "torch.no_grad() or detach()")
    if _forward_ad._current_level >= 0:
        _refuse_tangents(
            "rotary_step", q=q, k=k, v=v, q_weight=q_weight, k_weight=k_weight, q_bias=q_bias, k_bias=k_bias, cos=cos,
            sin=sin, angles=angles, **in_groups)
    first = q if q is not None else k if k is not None else v
    assert first is not None
    passes = (None, None) if input is None else (input.q_pass, input.k_pass)
    try:
        channels = first.size(-1) if input is None else _head_dim_of(first, (q, passes[0]), (k, passes[1]))
    except (RuntimeError, IndexError):
        _refuse_shape("rotary_step", "q" if q is not None else "k" if k is not None else "v", first)
        raise
    what = _what_of(
        "rotary_step", head_dim, first.dtype, channels, style, layout, out_style, rotary_dim, rotary_offset, theta,
        inv_freq, attention_scale, num_axes, pair_axis, pair_block, rotation_rounding)
    values = (norm, as_bits(norm_tensors), norm_order, norm_extent, as_bits(norm_rounding), norm_eps,
              norm_weight_offset, as_bits(quant_rounding))
    if _is_compiling() or type(what[1]) is not int:
        what, values = _as_constants(what), _as_constants(values)
    form = tuple(zip(_STEP_FIELDS, values))
    if table_rows is not TableRows.BY_POSITION:
        table_rows = number_of(TABLE_ROWS, "table_rows", table_rows)
    tensors: Tuple[Any, ...] = (q, k, v)
    weights = Norm(q_weight, k_weight, q_bias, k_bias)
    norm_group = weights if number_of(NORM_TYPES, "norm", norm) or any([x is not None for x in weights]) else None
    cache_group = cache if any([x is not None for x in cache[:-1]]) else None
    caches = (None, cache.k_cache, cache.v_cache) if cached_only else (None, None, None)
    if not _is_compiling():
        out = [None if cached is None else False for x, cached in zip(tensors, caches) if x is not None]
        results = _calls.rotate(
            _rope_desc(what, form, num_threads_for(first)), False, q, k, v, out, positions, start_positions, cu_seqlens,
            cos, sin, angles, fault, norm_group, cache_group, quant, input, position_offset, table_rows,
            programmatic_launch, unrotated, v_unrotated)
        if results is not NotImplemented:
            given = iter(results if len(out) > 1 else (results,))
            return None if q is None else next(given), None if k is None else next(given), (
                None if v is None else next(given))
    flags = flags_of(programmatic_launch, unrotated, v_unrotated)
    if norm_group is not None:
        flags |= operators.HAS_NORM
    if cache.skip_slot_0:
        flags |= operators.SKIP_SLOT_0
    further: Tuple[Any, ...] = ()
    if quant is not None or input is not None:
        quant_group = quant or Quant()
        flags |= operators.quant_flags(quant_group)
        further = (*quant_group[:-3], quant_group.scale_floor, *(input or Input()))
    is_zeroed = cu_seqlens is not None  # tokens outside of sequences are not written
    make = torch.zeros_like if is_zeroed else torch.empty_like
    outputs: List[Optional[Tensor]] = [None] * 3
    try:
        outputs = [
            None if x is None or cached is not None else make(x) if rest is None else _calls.widened_torch(
                x, channels, is_zeroed)
            for x, cached, rest in zip(tensors, caches, (*passes, None))]
        operators.step(
            _rope_key(what, form), q, k, v, *outputs, False, positions, position_offset, flags, start_positions,
            cu_seqlens, cos, sin, angles, table_rows, fault, *weights,
            *[operators.as_bytes(x) for x in (*cache[:-1], *further)])
    except (RuntimeError, TypeError) as error:  # TypeError is that of tensor classes
        _explain(error, (*tensors, positions, *weights, *cache, *further), lambda: _rope_desc(what, form).forward(
            *tensors, out=[y if cached is None else False for x, y, cached in zip(tensors, outputs, caches)
                           if x is not None],
            positions=positions, start_positions=start_positions, cu_seqlens=cu_seqlens, cos=cos, sin=sin, angles=angles,
            fault=fault, position_offset=position_offset, table_rows=table_rows, norm=norm_group, cache=cache_group,
            quant=quant, input=input, unrotated=unrotated, v_unrotated=v_unrotated,
            programmatic_launch=programmatic_launch))
    written = [x for field, x in in_groups.items() if field in WRITTEN_IN_GROUPS]
    operators.wrote([x for x in (fault, *written) if x is not None])
    q_out, k_out, v_out = outputs
    return q_out, k_out, v_out


# ---- SwiGLU ---------------------------------------------------------------------------------------------------------


def _swiglu_desc(what: Tuple[Any, ...], gate: Tensor) -> SwigluDesc:
    """The descriptor for a call with this tensor. The key, by contrast, has no number of threads."""
    num_threads = num_threads_for(gate)
    return cached_desc(*what[:5], num_threads, *what[6:]) if num_threads else cached_desc(*what)


@_assume_constant_result
def _swiglu_key(*what: Any) -> str:
    return cached_desc(*what)._key


_NUM_SWIGLU_INPUTS = 11
_ROW_SCALE, _GATE_BIAS, _UP_BIAS = 3, 5, 6  # at these places


def _bias_gradient(grad: Tensor, bias: Tensor) -> Tensor:
    """The sum over the rows that the bias was added to. Rows that do not exist are 0."""
    axes = tuple(range(bias.dim() - 1, grad.dim() - 1))
    if axes:  # an empty list would mean all axes
        grad = grad.sum(axes, dtype=torch.promote_types(grad.dtype, bias.dtype))
    return grad.to(bias.dtype)


def _bias_gradient_of_experts(grad: Tensor, bias: Tensor, offsets: Tensor) -> Tensor:
    """The sums over the rows of each expert. Gradients of rows without an expert are 0."""
    rows = torch.arange(grad.size(0), device=grad.device)
    experts = torch.bucketize(rows, offsets[1:].to(rows.dtype), right=True).clamp(max=bias.size(0) - 1)
    grad = grad.to(torch.promote_types(grad.dtype, bias.dtype)).flatten(1, -2).sum(1) if grad.dim() > 2 else grad
    sums = torch.zeros(bias.shape, dtype=torch.promote_types(grad.dtype, torch.float32), device=grad.device)
    return sums.index_add(0, experts, grad.to(sums.dtype)).to(bias.dtype)


def _row_scale_gradient(grad: Tensor, row_scale: Tensor, row_index: Tensor) -> Tensor:
    """The sums over the rows that use each factor. Gradients of rows without a factor are 0."""
    sums = torch.zeros(row_scale.shape, dtype=torch.promote_types(grad.dtype, torch.float32), device=grad.device)
    if not row_scale.size(0):
        return sums.to(row_scale.dtype)
    rows = row_index.to(torch.int64).clamp(0, row_scale.size(0) - 1)
    return sums.index_add(0, rows, grad.to(sums.dtype)).to(row_scale.dtype)


def _save_gating(ctx: Any, inputs: Tuple[Any, ...]) -> None:
    ctx.key, ctx.flags = inputs[0], inputs[-1]
    ctx.save_for_backward(*inputs[1:-1])


def _gate_back(ctx: Any, grad_out: Tensor, first_input: int = 1) -> Tuple[Any, ...]:
    """The gradients of the arguments from the key on. first_input: the place of gate among the Function's inputs."""
    gate, up, *operands = ctx.saved_tensors
    row_scale, _, gate_bias, up_bias, _, expert_offsets, row_index = operands
    needed = ctx.needs_input_grad[first_input - 1:]
    wanted = needed[1] or needed[_GATE_BIAS], needed[2] or needed[_UP_BIAS], needed[_ROW_SCALE]
    bits = sum([1 << i for i, is_wanted in enumerate(wanted) if is_wanted])
    inputs = ctx.key, grad_out, gate, up, bits, *operands, ctx.flags
    # Grad mode is on here if the gradient is to have a gradient.
    is_differentiated = _forward_ad._current_level >= 0 or _requires_grad(*inputs[1:4], *operands)
    given = iter(_wanted((_GatingGradients.apply if is_differentiated else operators.swiglu_backward)(*inputs)))
    grad_gate, grad_up, grad_row_scale = (next(given) if is_wanted else None for is_wanted in wanted)
    grads: List[Optional[Tensor]] = [None] * _NUM_SWIGLU_INPUTS
    grads[_ROW_SCALE] = grad_row_scale if grad_row_scale is None or row_index is None else _row_scale_gradient(
        grad_row_scale, row_scale, row_index)
    for i, at, grad, bias in ((1, _GATE_BIAS, grad_gate, gate_bias), (2, _UP_BIAS, grad_up, up_bias)):
        if needed[i]:
            grads[i] = grad
        if grad is not None and needed[at]:
            grads[at] = _bias_gradient(grad, bias) if expert_offsets is None or bias.dim() == 1 else (
                _bias_gradient_of_experts(grad, bias, expert_offsets))
    return tuple(grads)


_GatingGradients = _last_gradients("swiglu", operators.swiglu_backward)


class _Gating(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        _save_gating(ctx, inputs)
        return operators.swiglu(*inputs)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _gate_back(ctx, grad_out)


class _TransformedGating(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return operators.swiglu(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Any) -> None:
        _save_gating(ctx, inputs)
        ctx.save_for_forward(*inputs[1:-1])

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _gate_back(ctx, grad_out)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """A channel of the output depends on that channel of gate and up alone, so the slopes of gate and up are their
        gradients for a grad_out of 1. The slope of row_scale is the output without it."""
        gate, up, row_scale, *operands = ctx.saved_tensors
        if operands[-1] is not None or operands[-2] is not None:
            raise NotImplementedError("swiglu: expert_offsets and row_index have no derivative of forward mode")
        slopes = _GatingGradients.apply(
            ctx.key, torch.ones_like(gate), gate, up, 3, row_scale, *operands, ctx.flags)
        terms: List[Tensor] = []
        for slope, x, bias in ((slopes[0], tangents[1], tangents[_GATE_BIAS]),
                               (slopes[1], tangents[2], tangents[_UP_BIAS])):
            if x is not None:
                terms.append(slope * x)
            if bias is not None:  # [d], or [E, d] with gate [E, .., d]
                middle = (1,) * (slope.dim() - bias.dim())
                terms.append(slope * bias.reshape(bias.shape[:-1] + middle + bias.shape[-1:]))
        if tangents[_ROW_SCALE] is not None:
            plain = _gate(ctx.key, gate, up, None, *operands, ctx.flags)
            terms.append(plain * tangents[_ROW_SCALE][..., None])
        return sum(terms[1:], terms[0]).to(gate.dtype)


def _gate(*inputs: Any) -> Any:
    """torch.ops.librope.swiglu and its derivatives."""
    if _is_transformed():
        return _apply_transformed(_TransformedGating, inputs)
    return _Gating.apply(*inputs) if _requires_grad(*inputs[1:10]) else operators.swiglu(*inputs)


def _by_name(operands: Sequence[Any]) -> Any:
    """The operands behind gate and up, as keywords of a descriptor's call."""
    return dict(zip(
        ("row_scale", "num_rows", "gate_bias", "up_bias", "expert_rows", "expert_offsets", "row_index"), operands))


class _GatingToCodes(torch.autograd.Function):
    """The codes that `write` makes, with a gradient as if they were not rounded. The gradient has the values' dtype;
    autograd would otherwise expect that of the codes."""

    @staticmethod
    def forward(ctx: Any, write: Callable[[], Tensor], *inputs: Any) -> Any:
        _save_gating(ctx, inputs)
        ctx.set_output_grad_dtype(inputs[1].dtype)
        return write()

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return (None, *_gate_back(ctx, grad_out, first_input=2))


_knows_dtypes_of_gradients = hasattr(torch.autograd.function.FunctionCtx, "set_output_grad_dtype")


def _gate_to_codes(
        what: Tuple[Any, ...], inputs: Tuple[Any, ...], out_dtype: Optional[torch.dtype], quant: Optional[SwigluQuant],
        group_size: Optional[int], scale_dtype: torch.dtype, programmatic_launch: bool) -> Any:
    """swiglu with a quantised output. inputs: gate, up and the operands of _by_name."""
    gate, up, *operands = inputs
    _, num_rows, _, _, *of_rows = operands
    is_whole = num_rows is None and not any([x is not None for x in of_rows])  # every row is written
    quant_group = SwigluQuant() if quant is None else quant
    scale_layout = number_of(SCALE_LAYOUTS, "scale_layout", quant_group.scale_layout)

    def make(shape: Sequence[Any], dtype: torch.dtype) -> Tensor:
        """A tensor of bytes if torch.compile accepts no other type."""
        if _is_compiling() and operators.is_as_bytes(dtype):
            dtype = torch.uint8
        return (torch.empty if is_whole else torch.zeros)(shape, dtype=dtype, device=gate.device)

    scales: Optional[Tensor] = None
    if group_size is not None:
        if quant_group.scales_out is not None:
            raise ValueError("swiglu: group_size is set beside quant.scales_out: one of them says where scales go")
        if group_size <= 0 or gate.size(-1) % group_size:
            raise ValueError(f"swiglu: group_size is {group_size}: it must divide the {gate.size(-1)} channels")
        shape = [*gate.shape[:-1], gate.size(-1) // group_size]
        if scale_layout == ScaleLayout.TILES_128X4 and len(shape) > 1:
            shape[-2:] = [(shape[-2] + 127) // 128 * 128, (shape[-1] + 3) // 4 * 4]
        scales = make(shape, scale_dtype)
        quant_group = quant = quant_group._replace(scales_out=scales)
        scales = scales.view(scale_dtype)
    if quant_group.grad_gate_scales_out is not None or quant_group.grad_up_scales_out is not None:
        raise ValueError("swiglu: quant: it has scales of gradients: swiglu_gradients makes those")
    in_group = quant_group.scale, quant_group.scales_out, quant_group.amax_out
    if _requires_grad(*in_group):
        raise ValueError("swiglu: quant: one of its tensors requires grad: scales have no gradient here: detach() them")
    is_recorded = _requires_grad(*inputs)
    if _is_transformed() or (is_recorded and _is_compiling()):
        raise NotImplementedError(
            "swiglu: out_dtype and quant: codes have no gradient in torch.compile, where it would be cast to their "
            "dtype, in forward mode and in torch.func: call it in eager, under torch.no_grad(), or on detach()ed tensors")
    if is_recorded and not _knows_dtypes_of_gradients:
        raise NotImplementedError(
            f"swiglu: out_dtype and quant: torch {torch.__version__} casts the gradient of codes to their dtype: call "
            "it under torch.no_grad(), or with a torch that has set_output_grad_dtype")
    make_like = torch.empty_like if is_whole else torch.zeros_like

    def make_out() -> Tensor:
        try:
            if operators.has_two_channels(out_dtype):
                assert out_dtype is not None
                return make([*gate.shape[:-1], gate.size(-1) // 2], out_dtype)
            return make_like(gate, dtype=gate.dtype if out_dtype is None else out_dtype)
        except (RuntimeError, TypeError):
            _refuse_shape("swiglu", "gate", gate)
            raise

    if not _is_compiling() and not is_recorded:
        result = _calls.gate(
            _swiglu_desc(what, gate), gate, up, make_out(), *operands, programmatic_launch, quant)
        if result is not NotImplemented:
            return result if scales is None else (result, scales)
    key, flags = _swiglu_key(*what), flags_of(programmatic_launch)

    def write() -> Tensor:
        out = make_out()
        operators.swiglu_out(
            key, gate, up, operators.as_bytes(out), *operands, flags | operators.quant_flags(quant_group),
            *map(operators.as_bytes, in_group), quant_group.scale_floor, scale_layout)
        return out.view(out_dtype) if out_dtype is not None and operators.has_two_channels(out_dtype) else out

    try:
        result = _GatingToCodes.apply(write, key, *inputs, flags) if is_recorded else write()
    except (RuntimeError, TypeError) as error:  # TypeError is that of tensor classes
        _explain(error, (*inputs, *in_group), lambda: cached_desc(*what).forward(
            gate, up, make_out(), quant=quant, programmatic_launch=programmatic_launch, **_by_name(operands)))
    operators.wrote([x for x in in_group[1:] if x is not None])
    return result if scales is None else (result, scales)


@overload
def swiglu(gate: Tensor, up: Tensor, *, group_size: None = None, **keywords: Unpack[TorchGating]) -> Tensor: ...
@overload
def swiglu(
    gate: Tensor, up: Tensor, *, group_size: int, **keywords: Unpack[TorchGating]) -> Tuple[Tensor, Tensor]: ...


def swiglu(
    gate: Tensor,
    up: Tensor,
    *,
    row_scale: Optional[Tensor] = None,
    num_rows: Optional[Tensor] = None,
    gate_bias: Optional[Tensor] = None,
    up_bias: Optional[Tensor] = None,
    expert_rows: Optional[Tensor] = None,
    expert_offsets: Optional[Tensor] = None,
    row_index: Optional[Tensor] = None,
    alpha: float = 0.0,
    limit: float = 0.0,
    up_offset: float = 0.0,
    out_scale: float = 0.0,
    activation: AnyActivation = Activation.SWIGLU,
    gate_softcap: float = 0.0,
    up_softcap: float = 0.0,
    limit_rule: AnyLimitRule = LimitRule.GATE,
    product_rounding: bool = False,
    quant_rounding: AnyQuantRounding = 0,
    out_dtype: Optional[torch.dtype] = None,
    quant: Optional[SwigluQuant] = None,
    group_size: Optional[int] = None,
    scale_dtype: torch.dtype = torch.float32,
    programmatic_launch: bool = False,
) -> Any:
    """out_scale * g * sigmoid(alpha * g) * (u + up_offset) * row_scale, or the formula of another activation, as
    SwigluDesc and its forward compute it.

    gate, up:  rank 1 to 4, one shape, any strides; two halves of a packed tensor are two views
    row_scale: the first axes of gate
    num_rows:  [1]
    gate_bias, up_bias: [d], or [E, d] with experts
    expert_rows: [E] with gate [E, N, .., d]
    expert_offsets: [E + 1] with gate [N, .., d]
    row_index: [N], with row_scale [M]
    out_dtype: torch.float8_e4m3fn or torch.float8_e5m2, or torch.float4_e2m1fn_x2 with half as many elements: the
               result is codes. None: the dtype of gate
    quant:     a librope.SwigluQuant: scales of codes. Without it codes are not scaled
    group_size: channels of the last axis that share a scale. It divides the axis; all channels give a scale per row.
               The result is (codes, scales), new scales [.., d / group_size] of scale_dtype, torch.float32,
               torch.float8_e8m0fnu (MXFP8 and MXFP4: 32 channels), or with 4 bits torch.float8_e4m3fn (NVFP4: 16), or
               with quant's scale_layout of "128x4" their tiles. None: no new scales; quant has those that are given

    Gradients flow to gate, up, row_scale and the biases; each bias gets the sum over its rows. Codes have gradients in
    eager with a torch that has set_output_grad_dtype: the gradient of codes counts as the gradient of the values that
    they stand for, in gate's dtype. Scales have no gradients.
    """
    what = (gate.dtype, alpha, limit, up_offset, out_scale, 0, activation, gate_softcap, up_softcap, limit_rule,
            product_rounding, as_bits(quant_rounding))
    operands = gate, up, row_scale, num_rows, gate_bias, up_bias, expert_rows, expert_offsets, row_index
    if _is_compiling():
        what = _as_constants(what)
    if quant is not None or group_size is not None or out_dtype not in (None, gate.dtype):
        return _gate_to_codes(what, operands, out_dtype, quant, group_size, scale_dtype, programmatic_launch)
    if not _is_compiling():
        given: Tensor = _calls.gate(
            _swiglu_desc(what, gate), gate, up, None, *operands[2:], programmatic_launch, None)
        if given is not NotImplemented:
            return given
    inputs = (_swiglu_key(*what), *operands, flags_of(programmatic_launch))
    try:
        return _gate(*inputs)
    except (RuntimeError, TypeError) as error:
        any_desc: Any = cached_desc(*what)  # its overloads require keywords one by one
        _explain(error, inputs[1:], lambda: any_desc.forward(
            gate, up, programmatic_launch=programmatic_launch, **_by_name(operands[2:])))


_GELUS = {"none": Activation.GEGLU_ERF, "tanh": Activation.GEGLU_TANH}


@overload
def geglu(
    gate: Tensor, up: Tensor, approximate: Literal["none", "tanh"] = "none", *, group_size: None = None,
    **keywords: Unpack[TorchGeglu]) -> Tensor: ...
@overload
def geglu(
    gate: Tensor, up: Tensor, approximate: Literal["none", "tanh"] = "none", *, group_size: int,
    **keywords: Unpack[TorchGeglu]) -> Tuple[Tensor, Tensor]: ...


def geglu(gate: Tensor, up: Tensor, approximate: Literal["none", "tanh"] = "none", **keywords: Any) -> Any:
    """gelu(gate, approximate=approximate) * up, with the arguments of torch.nn.functional.gelu. Keywords are those of
    swiglu."""
    activation = _GELUS.get(approximate)
    if activation is None:
        raise ValueError(f"geglu: approximate is {approximate!r}: it must be one of {', '.join(_GELUS)}")
    any_swiglu: Any = swiglu  # geglu's overloads distinguish the calls
    return any_swiglu(gate, up, activation=activation, **keywords)


from ._torch_columns import SwigluCodes, swiglu_codes, swiglu_gradients  # noqa: E402
from ._torch_modules import RotaryEmbedding, SwiGLU, apply_rotary_emb, apply_rotary_pos_emb  # noqa: E402  # they use it
