# SPDX-License-Identifier: Apache-2.0
# _torch_operators.py - torch.ops.librope: schemas, kernels of librope_torch.so or else of Python, fakes and vmap
"""The operators take a descriptor as its key, a string with its whole content. A graph that another process compiled or
exported then finds, or makes, an equal descriptor. `flags` are those of the library's args, and those of its groups
below. A result without an operand is None.

  rotate           new tensors for q, k and v
  rotate_          writes q, k and v
  norm_rotate      new tensors for q, k and v, normed and rotated
  norm_rotate_backward  new gradients of q, k and v from those of norm_rotate's results, and of weights and biases:
                   those selected in `wanted` by the bits 1, 2, 4 and 8, side by side in the order of the schema. They
                   are `num_runs` rows of sums over as many runs of tokens. q_in, k_in and v_in are norm_rotate's q, k
                   and v, if these are normed
  step             writes outputs, caches, their scales, amax_out and fault. An output without its input is rotated in
                   place, and an input without an output is cached only. uint8 stands for float8_e8m0fnu
  swiglu           a new tensor
  swiglu_out       writes out, scales_out and amax_out. uint8 stands for float8_e8m0fnu, and as out for
                   float4_e2m1fn_x2
  swiglu_backward  new gradients of gate, up and row_scale: those selected in `wanted` by the bits 1, 2 and 4

The operators have no derivatives, and do not tell autograd what they write: librope.torch and descriptors do."""
# pyright: reportPrivateUsage=false
# torch has no public names for these. Those of descriptors are private to the package.
from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from . import _abi, _calls
from ._enums import Layout, TableRows
from ._group_reader import tensors_of
from ._groups import Cache, Input, Norm, NormGradient, Quant, SwigluQuant
from ._library import function_table, package_version, torch_operators_path
from ._rope import RopeDesc
from ._swiglu import SwigluDesc
from ._tensors import MAX_NDIM, framework_of

SKIP_SLOT_0 = 1 << 16  # of a Cache
HAS_NORM = 1 << 17  # there is a norm, with weights or without
SCALE_MULTIPLIES = 1 << 18  # of a Quant or SwigluQuant
POWER_OF_TWO = 1 << 19

_E8M0 = getattr(torch, "float8_e8m0fnu", None)  # from torch 2.7 on
_E2M1X2 = getattr(torch, "float4_e2m1fn_x2", None)  # from torch 2.8 on


def as_bytes(x: Any) -> Any:
    """Scales of float8_e8m0fnu and codes of 4 bits as uint8. Inductor, the compiler of torch.compile, refuses operators
    that write float8_e8m0fnu."""
    return x.view(torch.uint8) if isinstance(x, Tensor) and is_as_bytes(x.dtype) else x


def is_as_bytes(dtype: torch.dtype) -> bool:
    return dtype == _E8M0 or dtype == _E2M1X2


def has_two_channels(dtype: Optional[torch.dtype]) -> bool:
    """Whether one element holds two channels."""
    return dtype is not None and dtype == _E2M1X2


def _as_scales(x: Any) -> Any:
    return x.view(_E8M0) if isinstance(x, Tensor) and x.dtype == torch.uint8 and _E8M0 is not None else x

_ROTATION = (
    "Tensor? positions=None, SymInt position_offset=0, int flags=0, Tensor? start_positions=None, "
    "Tensor? cu_seqlens=None, Tensor? cos=None, Tensor? sin=None, Tensor? angles=None, int table_rows=0")
_OPERANDS = f"bool is_backward, {_ROTATION}"
_NORM = "Tensor? q_weight=None, Tensor? k_weight=None, Tensor? q_bias=None, Tensor? k_bias=None"
_GATING = (
    "Tensor? row_scale=None, Tensor? num_rows=None, Tensor? gate_bias=None, Tensor? up_bias=None, "
    "Tensor? expert_rows=None, Tensor? expert_offsets=None, Tensor? row_index=None, int flags=0")
# torch_operators.cpp reads the arguments in this order.
_SCHEMAS = (
    f"rotate(str desc, Tensor q, Tensor? k, Tensor? v, {_OPERANDS}) -> (Tensor, Tensor, Tensor)",
    f"rotate_(str desc, Tensor(a!) q, Tensor(b!)? k, Tensor(c!)? v, {_OPERANDS}) -> ()",
    f"norm_rotate(str desc, Tensor q, Tensor? k, Tensor? v, {_ROTATION}, {_NORM}) -> (Tensor, Tensor, Tensor)",
    f"norm_rotate_backward(str desc, Tensor? q, Tensor? k, Tensor? v, {_ROTATION}, {_NORM}, Tensor? q_in=None, "
    "Tensor? k_in=None, Tensor? v_in=None, int wanted=0, SymInt num_runs=1) -> (Tensor, Tensor, Tensor, Tensor)",
    "step(str desc, Tensor? q, Tensor? k, Tensor? v, Tensor(a!)? q_out, Tensor(b!)? k_out, Tensor(c!)? v_out, "
    f"{_OPERANDS}, Tensor(d!)? fault=None, {_NORM}, Tensor(e!)? k_cache=None, Tensor(f!)? v_cache=None, "
    "Tensor? slots=None, "
    "Tensor? page_table=None, Tensor? page_indptr=None, Tensor? sequence=None, Tensor? cache_positions=None, "
    "Tensor(g!)? k_pass_cache=None, Tensor(h!)? k_scales=None, Tensor(i!)? v_scales=None, "
    "Tensor(j!)? k_pass_scales=None, Tensor? q_scale=None, Tensor? k_scale=None, Tensor? v_scale=None, "
    "Tensor? k_pass_scale=None, Tensor(k!)? q_scales_out=None, Tensor(l!)? k_scales_out=None, "
    "Tensor(m!)? v_scales_out=None, Tensor(n!)? amax_out=None, float scale_floor=0.0, Tensor? q_pass=None, "
    "Tensor? k_pass=None, Tensor? q_row_factor=None, Tensor? k_row_factor=None, Tensor? v_row_factor=None) -> ()",
    f"swiglu(str desc, Tensor gate, Tensor up, {_GATING}) -> Tensor",
    f"swiglu_out(str desc, Tensor gate, Tensor up, Tensor(a!) out, {_GATING}, Tensor? scale=None, "
    "Tensor(b!)? scales_out=None, Tensor(c!)? amax_out=None, float scale_floor=0.0, int scale_layout=0) -> ()",
    "swiglu_backward(str desc, Tensor grad_out, Tensor gate, Tensor up, int wanted, "
    f"{_GATING}) -> (Tensor, Tensor, Tensor)",
)

_torch_library: Any = torch.library  # most of it has no types
_fragment = _torch_library.Library("librope", "FRAGMENT")
for _schema in _SCHEMAS:
    _fragment.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))

rotate = torch.ops.librope.rotate.default
rotate_ = torch.ops.librope.rotate_.default
norm_rotate = torch.ops.librope.norm_rotate.default
norm_rotate_backward = torch.ops.librope.norm_rotate_backward.default
step = torch.ops.librope.step.default
swiglu = torch.ops.librope.swiglu.default
swiglu_out = torch.ops.librope.swiglu_out.default
swiglu_backward = torch.ops.librope.swiglu_backward.default

Triple = Tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]]

_NUM_ROTATION = 9  # number of operands of _ROTATION

_calls.add_torch(torch)

# ---- Kernels of Python ----------------------------------------------------------------------------------------------

_FLAGS = {
    "programmatic_launch": _abi.ROPE_FLAG_PROGRAMMATIC_LAUNCH,
    "unrotated": _abi.ROPE_FLAG_UNROTATED,
    "v_unrotated": _abi.ROPE_FLAG_V_UNROTATED,
}


def num_threads_for(x: Any) -> int:
    """The number of threads for a call with this tensor. On the CPU it is torch's: OMP_NUM_THREADS and
    torch.set_num_threads set it, at any time, so that graphs and keys do not contain it. Elsewhere it is 0."""
    return torch.get_num_threads() if x.is_cpu else 0


@lru_cache(maxsize=256)
def _desc_of(cls: Any, function: str, key: str, num_threads: int = 0) -> Any:
    return cls._of_key(function, key, num_threads)


def _options(function: str, flags: int, known: int) -> Any:
    if flags & ~known:
        raise ValueError(f"{function}: flags has unknown bits")
    return {name: True for name, flag in _FLAGS.items() if flags & flag}


def _rotation(
        function: str, positions: Optional[Tensor] = None, position_offset: int = 0, flags: int = 0,
        start_positions: Optional[Tensor] = None, cu_seqlens: Optional[Tensor] = None, cos: Optional[Tensor] = None,
        sin: Optional[Tensor] = None, angles: Optional[Tensor] = None, table_rows: int = 0) -> Any:
    return dict(
        positions=positions, start_positions=start_positions, cu_seqlens=cu_seqlens, cos=cos, sin=sin, angles=angles,
        position_offset=position_offset, table_rows=table_rows or TableRows.BY_POSITION,
        **_options(function, flags, sum(_FLAGS.values())))


def _in_places(results: Any, k: Optional[Tensor], v: Optional[Tensor]) -> Triple:
    """A descriptor's results at the places of q, k and v, with None for those that are not given."""
    given = iter((results,) if isinstance(results, Tensor) else results)
    return next(given), None if k is None else next(given), None if v is None else next(given)


def _python_rotate(
        key: str, q: Tensor, k: Optional[Tensor], v: Optional[Tensor], is_backward: bool, *operands: Any) -> Triple:
    desc = _desc_of(RopeDesc, "rotate", key, num_threads_for(q))
    call = desc.backward if is_backward else desc.forward
    return _in_places(call(q, k, v, **_rotation("rotate", *operands)), k, v)


def _python_rotate_(key: str, q: Tensor, k: Optional[Tensor], v: Optional[Tensor], *operands: Any) -> None:
    _python_step(key, None, None, None, q, k, v, *operands)


def _python_norm_rotate(
        key: str, q: Tensor, k: Optional[Tensor], v: Optional[Tensor], *operands: Any) -> Triple:
    results = _desc_of(RopeDesc, "norm_rotate", key, num_threads_for(q)).forward(
        q, k, v, norm=Norm(*operands[_NUM_ROTATION:]), **_rotation("norm_rotate", *operands[:_NUM_ROTATION]))
    return _in_places(results, k, v)


def parts_of(rows: Optional[Tensor], wanted: int, weights: Sequence[Optional[Tensor]]) -> List[Optional[Tensor]]:
    """Splits rows [.., C], which have the requested gradients of weights side by side, into views of the weights'
    shapes, or None."""
    parts: List[Optional[Tensor]] = []
    begin = 0
    for i, weight in enumerate(weights):
        part = None
        if rows is not None and weight is not None and wanted >> i & 1:
            part = rows[..., begin:begin + weight.numel()].view(*rows.shape[:-1], *weight.shape)
            begin += weight.numel()
        parts.append(part)
    return parts


def _make_rows(wanted: int, num_runs: int, weights: Sequence[Optional[Tensor]], like: Tensor) -> Optional[Tensor]:
    if not 0 <= wanted < 1 << len(weights):
        raise ValueError("norm_rotate_backward: wanted has unknown bits")
    width = 0
    for i, (name, weight) in enumerate(zip(Norm._fields, weights)):
        if wanted >> i & 1:
            if weight is None:
                raise ValueError(f"norm_rotate_backward: wanted has the gradient of {name}, which is absent")
            width += weight.numel()
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    return like.new_zeros((num_runs, width), dtype=dtype) if wanted else None


def _python_norm_rotate_backward(
        key: str, q: Optional[Tensor], k: Optional[Tensor], v: Optional[Tensor], positions: Optional[Tensor] = None,
        position_offset: int = 0, flags: int = 0, start_positions: Optional[Tensor] = None,
        cu_seqlens: Optional[Tensor] = None, cos: Optional[Tensor] = None, sin: Optional[Tensor] = None,
        angles: Optional[Tensor] = None, table_rows: int = 0, q_weight: Optional[Tensor] = None,
        k_weight: Optional[Tensor] = None, q_bias: Optional[Tensor] = None, k_bias: Optional[Tensor] = None,
        q_in: Optional[Tensor] = None, k_in: Optional[Tensor] = None, v_in: Optional[Tensor] = None, wanted: int = 0,
        num_runs: int = 1, *, is_fake: bool = False) -> Tuple[Optional[Tensor], ...]:
    given = [x for x in (q, k, v) if x is not None]
    if not given:
        raise ValueError("norm_rotate_backward: q, k and v are absent: one of them must be given")
    make = torch.empty_like if cu_seqlens is None else torch.zeros_like
    outputs = [  # made as the results of forward are
        None if grad is None else make(grad if x is None else x) for grad, x in ((q, q_in), (k, k_in), (v, v_in))]
    weights = q_weight, k_weight, q_bias, k_bias
    rows = _make_rows(wanted, num_runs, weights, given[0])
    if not is_fake:
        _desc_of(RopeDesc, "norm_rotate_backward", key, num_threads_for(given[0])).backward(
            q, k, v, out=[x for x in outputs if x is not None],
            norm=NormGradient(q_in, k_in, v_in, q_weight, k_weight, *parts_of(rows, wanted, weights)),
            **_rotation(
                "norm_rotate_backward", positions, position_offset, flags, start_positions, cu_seqlens, cos, sin,
                angles, table_rows))
    return (*outputs, rows)


def _take_operands(group: Any, given: Iterator[Any]) -> Any:
    """Returns the group with its tensors, taken from `given`."""
    defaults = group._field_defaults
    return group._replace(**{name: next(given, None) for name in group._fields if defaults[name] is None})


def _has_any(operands: Sequence[Any]) -> bool:
    return any(x is not None for x in operands)


def quant_flags(quant: Any) -> int:
    """The flags of a Quant or SwigluQuant."""
    return (SCALE_MULTIPLIES if quant.scale_multiplies else 0) | (POWER_OF_TWO if quant.power_of_two else 0)


def _take_quant(cls: Any, flags: int, given: Iterator[Any]) -> Any:
    """The group for the flags and the next operands; None if these contain nothing."""
    quant = _take_operands(cls(), given)._replace(
        scale_multiplies=bool(flags & SCALE_MULTIPLIES), power_of_two=bool(flags & POWER_OF_TWO),
        scale_floor=next(given, 0.0))
    return quant if _has_any(tensors_of(quant)) or quant_flags(quant) or quant.scale_floor else None


def _python_step(
        key: str, q: Optional[Tensor], k: Optional[Tensor], v: Optional[Tensor], q_out: Optional[Tensor],
        k_out: Optional[Tensor], v_out: Optional[Tensor], is_backward: bool, positions: Optional[Tensor] = None,
        position_offset: int = 0, flags: int = 0, start_positions: Optional[Tensor] = None,
        cu_seqlens: Optional[Tensor] = None, cos: Optional[Tensor] = None, sin: Optional[Tensor] = None,
        angles: Optional[Tensor] = None, table_rows: int = 0, fault: Optional[Tensor] = None, *groups: Any) -> None:
    options = _options(
        "step", flags, sum(_FLAGS.values()) | SKIP_SLOT_0 | HAS_NORM | SCALE_MULTIPLIES | POWER_OF_TWO)
    inputs = [out if x is None else x for x, out in ((q, q_out), (k, k_out), (v, v_out))]
    outputs = [False if out is None else out for x, out in zip(inputs, (q_out, k_out, v_out)) if x is not None]
    first = next((x for x in inputs if x is not None), None)
    desc = _desc_of(RopeDesc, "step", key, 0 if first is None else num_threads_for(first))
    given = iter([_as_scales(x) for x in groups])
    norm = _take_operands(Norm(), given)
    cache = _take_operands(Cache(skip_slot_0=bool(flags & SKIP_SLOT_0)), given)
    quant = _take_quant(Quant, flags, given)
    further = _take_operands(Input(), given)
    if flags & HAS_NORM or _has_any(norm):
        options["norm"] = norm
    if _has_any(cache[:-1]):
        options["cache"] = cache
    if quant is not None:
        options["quant"] = quant
    if _has_any(further):
        options["input"] = further
    (desc.backward if is_backward else desc.forward)(
        *inputs, out=outputs, positions=positions, start_positions=start_positions, cu_seqlens=cu_seqlens, cos=cos,
        sin=sin, angles=angles, fault=fault, position_offset=position_offset,
        table_rows=table_rows or TableRows.BY_POSITION, **options)


def _gating(function: str, row_scale: Optional[Tensor] = None, num_rows: Optional[Tensor] = None,
            gate_bias: Optional[Tensor] = None, up_bias: Optional[Tensor] = None,
            expert_rows: Optional[Tensor] = None, expert_offsets: Optional[Tensor] = None,
            row_index: Optional[Tensor] = None, flags: int = 0) -> Any:
    return dict(row_scale=row_scale, num_rows=num_rows, gate_bias=gate_bias, up_bias=up_bias, expert_rows=expert_rows,
                expert_offsets=expert_offsets, row_index=row_index,
                **_options(function, flags, _abi.ROPE_FLAG_PROGRAMMATIC_LAUNCH))


def _python_swiglu(key: str, gate: Tensor, up: Tensor, *operands: Any) -> Tensor:
    out: Tensor = _desc_of(SwigluDesc, "swiglu", key, num_threads_for(gate)).forward(
        gate, up, **_gating("swiglu", *operands))
    return out


def _python_swiglu_out(
        key: str, gate: Tensor, up: Tensor, out: Tensor, row_scale: Optional[Tensor] = None,
        num_rows: Optional[Tensor] = None, gate_bias: Optional[Tensor] = None, up_bias: Optional[Tensor] = None,
        expert_rows: Optional[Tensor] = None, expert_offsets: Optional[Tensor] = None,
        row_index: Optional[Tensor] = None, flags: int = 0, *scales: Any) -> None:
    given = iter([_as_scales(x) for x in (*scales[:3], None, None, *scales[3:])])  # none of gradients
    quant = _take_quant(SwigluQuant, flags, given)
    scale_layout = next(given, 0)
    if scale_layout:
        quant = (quant or SwigluQuant())._replace(scale_layout=scale_layout)
    if out.dtype == torch.uint8 and _E2M1X2 is not None:
        out = out.view(_E2M1X2)
    _desc_of(SwigluDesc, "swiglu_out", key, num_threads_for(gate)).forward(gate, up, out, quant=quant, **_gating(
        "swiglu_out", row_scale, num_rows, gate_bias, up_bias, expert_rows, expert_offsets, row_index,
        flags & ~(SCALE_MULTIPLIES | POWER_OF_TWO)))


def _row_index_of(operands: Sequence[Any]) -> Any:
    """Among the operands behind row_scale."""
    return operands[5] if len(operands) > 5 else None


def _python_swiglu_backward(
        key: str, grad_out: Tensor, gate: Tensor, up: Tensor, wanted: int, row_scale: Optional[Tensor] = None,
        *operands: Any) -> Tuple[Optional[Tensor], ...]:
    if wanted & 4 and row_scale is None:
        raise ValueError("swiglu_backward: wanted has the gradient of row_scale, which is absent")
    grads: List[Any] = [None if wanted & bit else False for bit in (1, 2, 4)]
    if wanted & 4 and row_scale is not None and _row_index_of(operands) is not None:
        grads[2] = row_scale.new_zeros(gate.size(0))
    grad_gate, grad_up, grad_row_scale = grads
    results = _desc_of(SwigluDesc, "swiglu_backward", key, num_threads_for(gate)).backward(
        grad_out, gate, up, grad_gate=grad_gate, grad_up=grad_up, grad_row_scale=grad_row_scale,
        **_gating("swiglu_backward", row_scale, *operands))
    return (*results, None)[:3]


_PYTHON = {"rotate": _python_rotate, "rotate_": _python_rotate_, "norm_rotate": _python_norm_rotate,
           "norm_rotate_backward": _python_norm_rotate_backward, "step": _python_step, "swiglu": _python_swiglu,
           "swiglu_out": _python_swiglu_out, "swiglu_backward": _python_swiglu_backward}

# ---- Kernels of C++ -------------------------------------------------------------------------------------------------


# RopeFunctions of torch_operators.cpp.
functions = function_table(
    "rope_last_error", "rope_desc_create", "rope_forward", "rope_backward", "swiglu_desc_create", "swiglu_forward",
    "swiglu_backward", "rope_desc_destroy", "swiglu_desc_destroy")


def _load_native() -> Optional[str]:
    """Registers the kernels of librope_torch.so. If that fails, nothing is registered, and the result is the reason."""
    file = torch_operators_path()
    try:
        library = ctypes.CDLL(file, mode=ctypes.RTLD_LOCAL)
        load = library.rope_torch_load
    except (OSError, AttributeError) as error:
        return str(error)
    load.restype, load.argtypes = ctypes.c_char_p, [ctypes.c_void_p, ctypes.c_int32]
    message = load(ctypes.addressof(functions), package_version())
    return None if message is None else f"{file}: {message.decode()}"


why_python = _load_native()  # None: the kernels are those of C++
if why_python is not None:
    for _name, _kernel in _PYTHON.items():
        for _key in ("CPU", "CUDA"):
            _fragment.impl(_name, _kernel, _key)

# ---- Fakes ----------------------------------------------------------------------------------------------------------


def _on_one_device(function: str, *arguments: Any) -> None:
    """Fakes are also the kernels for tensors without data: torch calls them if one of the tensors has none."""
    devices = {x.device for x in arguments if isinstance(x, Tensor)}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"{function}: its tensors are on {names}: they must be on one device")


def _fake_of_rotation(function: str) -> Callable[..., Triple]:
    def fake(key: str, q: Tensor, k: Optional[Tensor], v: Optional[Tensor], *operands: Any) -> Triple:
        _on_one_device(function, q, k, v, *operands)
        return (
            torch.empty_like(q), None if k is None else torch.empty_like(k), None if v is None else torch.empty_like(v))

    return fake


def _fake_norm_rotate_backward(key: str, *operands: Any) -> Any:
    _on_one_device("norm_rotate_backward", *operands)
    return _python_norm_rotate_backward(key, *operands, is_fake=True)


def _fake_swiglu_backward(
        key: str, grad_out: Tensor, gate: Tensor, up: Tensor, wanted: int, row_scale: Optional[Tensor] = None,
        *operands: Any) -> Any:
    _on_one_device("swiglu_backward", grad_out, gate, up, row_scale, *operands)
    of_row_scale = row_scale
    if row_scale is not None and _row_index_of(operands) is not None:
        of_row_scale = row_scale.new_empty(gate.size(0))
    return tuple([
        torch.empty_like(x) if x is not None and wanted & bit else None
        for x, bit in ((gate, 1), (up, 2), (of_row_scale, 4))])


def _fake_swiglu(key: str, gate: Tensor, *operands: Any) -> Tensor:
    _on_one_device("swiglu", gate, *operands)
    return torch.empty_like(gate)


def _fake_of_writer(function: str) -> Callable[..., None]:
    def fake(key: str, *operands: Any) -> None:
        _on_one_device(function, *operands)

    return fake


_FAKES: Dict[str, Callable[..., Any]] = {
    "rotate": _fake_of_rotation("rotate"),
    "rotate_": _fake_of_writer("rotate_"),
    "norm_rotate": _fake_of_rotation("norm_rotate"),
    "norm_rotate_backward": _fake_norm_rotate_backward,
    "step": _fake_of_writer("step"),
    "swiglu": _fake_swiglu,
    "swiglu_out": _fake_of_writer("swiglu_out"),
    "swiglu_backward": _fake_swiglu_backward,
}
for _name, _fake in _FAKES.items():
    _torch_library.register_fake(f"librope::{_name}", _fake, lib=_fragment)

# ---- vmap -----------------------------------------------------------------------------------------------------------


def _one_by_one(operator: Callable[..., Any], size: int, in_dims: Any, arguments: Any) -> Any:
    """Calls the operator for each index of the batch, and stacks the results."""
    if size == 0:
        raise NotImplementedError(f"torch.vmap cannot map {operator} over a batch of 0 with operands for each of it")
    calls = [
        operator(*[x if dim is None else x.select(dim, i) for x, dim in zip(arguments, in_dims)]) for i in range(size)]
    if isinstance(calls[0], Tensor):
        return torch.stack(calls), 0
    results = tuple([None if x[0] is None else torch.stack(x) for x in zip(*calls)])
    return results, tuple([None if x is None else 0 for x in results])


def _vmap_rotate(info: Any, in_dims: Any, *arguments: Any) -> Any:
    """All heads rotate alike, so a batch of tensors becomes more heads if all entries share the other operands."""
    key, *tensors = arguments[:4]
    if any(dim is not None for dim in in_dims[4:]):
        return _one_by_one(rotate, info.batch_size, in_dims, arguments)
    heads = 1 if _desc_of(RopeDesc, "rotate", key)._config.layout in (Layout.BHSD, Layout.THD) else 2
    lengths: List[Any] = []
    for i, dim in enumerate(in_dims[1:4]):
        if dim is not None:
            tensors[i] = tensors[i].movedim(dim, heads)
            lengths.append(tensors[i].shape[heads:heads + 2])
            tensors[i] = tensors[i].flatten(heads, heads + 1)
    results = list(rotate(key, *tensors, *arguments[4:]))
    out_dims = [None if dim is None else heads for dim in in_dims[1:4]]
    for i, dim in enumerate(out_dims):
        if dim is not None:
            results[i] = results[i].unflatten(heads, lengths.pop(0))
    return tuple(results), tuple(out_dims)


def _vmap_elementwise(operator: Callable[..., Any], num_tensors: int) -> Callable[..., Any]:
    """A batch becomes one more axis if the tensors, behind the key, are the only operands."""

    def rule(info: Any, in_dims: Any, *arguments: Any) -> Any:
        end = 1 + num_tensors
        if any(isinstance(x, Tensor) for x in arguments[end:]):
            return _one_by_one(operator, info.batch_size, in_dims, arguments)
        tensors = [x.unsqueeze(0).expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
                   for x, dim in zip(arguments[1:end], in_dims[1:end])]
        shape = tensors[0].shape
        if len(shape) > MAX_NDIM:
            tensors = [x.flatten(0, 1) for x in tensors]
        results = operator(arguments[0], *tensors, *arguments[end:])
        if isinstance(results, Tensor):
            return results.reshape(shape), 0
        return (tuple([None if x is None else x.reshape(shape) for x in results]),
                tuple([None if x is None else 0 for x in results]))

    return rule


def refuse_vmap_of_norms(info: Any, in_dims: Any, *arguments: Any) -> Any:
    raise NotImplementedError("torch.vmap cannot map norm_rotary, nor its gradient")


def _refuse_vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
    raise NotImplementedError(
        "torch.vmap cannot map an operator of librope that writes its arguments: use apply_rotary or swiglu")


if hasattr(_torch_library, "register_vmap"):  # from torch 2.5 on
    for _name, _rule in {
            "rotate": _vmap_rotate, "rotate_": _refuse_vmap, "norm_rotate": refuse_vmap_of_norms,
            "norm_rotate_backward": refuse_vmap_of_norms, "step": _refuse_vmap,
            "swiglu": _vmap_elementwise(swiglu, 2), "swiglu_out": _refuse_vmap,
            "swiglu_backward": _vmap_elementwise(swiglu_backward, 3)}.items():
        _torch_library.register_vmap(f"librope::{_name}", _rule, lib=_fragment)

# ---- Who may call ---------------------------------------------------------------------------------------------------

PLAIN_TYPES = frozenset((Tensor, torch.nn.Parameter, type(None)))  # subclasses are excluded

_forward_ad: Any = torch.autograd.forward_ad


def is_transformed() -> bool:
    """Whether tensors may differ from what they show, or calls may do something else."""
    level: int = _forward_ad._current_level
    return level >= 0 or torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack() > 0


def wrote(tensors: Sequence[Tensor]) -> None:
    """Tells autograd that the tensors changed, which the kernels do not do."""
    try:
        increment_version(tensors)
    except RuntimeError:  # an inference tensor has no version
        for x in tensors:
            framework_of(x).wrote(x)
