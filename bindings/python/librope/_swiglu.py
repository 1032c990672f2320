# SPDX-License-Identifier: Apache-2.0
# _swiglu.py - swiglu_desc_create, swiglu_forward, swiglu_backward and swiglu_explain
from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, List, Literal, Optional, Sequence, Tuple, Union, overload

from . import _abi, _calls
from ._constants import kept
from ._descriptor import Descriptor
from ._enums import (ACTIVATIONS, LIMIT_RULES, QUANT_ROUNDINGS, Activation, LimitRule, ScaleLayout, bits_of,
                     dtype_number, number_of)
from ._group_reader import fields_of, read_group
from ._groups import SwigluColumn, SwigluQuant
from ._integers import fill
from ._kept import Call, Unkept
from ._library import check, lib
from ._rope import explanation, flags_of
from ._tensors import Reader, dtype_of
from ._types import (AnyActivation, AnyDtype, AnyLimitRule, AnyQuantRounding, Gating, GatingGradients, Gradients, K,
                     KeptGating, Q, Tensor, V)

if TYPE_CHECKING:
    from typing_extensions import Unpack

_ARGS_SIZE = ctypes.sizeof(_abi.swiglu_args_t)
_INPUT_ARGS_SIZE = ctypes.sizeof(_abi.swiglu_input_args_t)


class SwigluDesc(Descriptor):
    """Selects a SwiGLU, GEGLU or ReGLU: dtype, activation and numbers. See swiglu_config_t in <rope/rope.h>.

        out = out_scale * g * sigmoid(alpha * g) * (u + up_offset) * row_scale
        g = min(gate + gate_bias, limit)        u = up + up_bias within +-limit

    dtype:       of gate, up, out and their gradients: "f32", "f16", "bf16", "f64", or a dtype of torch, NumPy, CuPy or
                 JAX
    device:      "cpu", "cuda" or "cuda:1": calls with tensors elsewhere are refused. None: each call runs on the device
                 of its tensors
    alpha:       factor inside the sigmoid; 0 stands for 1
    limit:       bound of g and u; 0: none
    up_offset:   added to up
    out_scale:   factor of the output; 0 stands for 1
    num_threads: CPU: the largest number of threads of a call
    activation:  "swiglu", "geglu_erf" (torch's gelu), "geglu_tanh" (its approximate="tanh") or "reglu". The last
                 three replace g * sigmoid(alpha * g), and alpha is 0 or 1
    gate_softcap, up_softcap: g outside the sigmoid becomes cap * tanh(g / cap), u likewise; 0: none
    limit_rule:  "gate": the formula above; "activation": limit bounds g * sigmoid(alpha * g) instead of gate
    product_rounding: the activation is rounded to a dtype of 16 bits before it is multiplied, as in torch's
                 silu(gate) * up
    quant_rounding: "first": values are rounded to dtype before they are scaled and quantised
    """

    _config_type = _abi.swiglu_config_t
    _create = lib.swiglu_desc_create
    _destroy = lib.swiglu_desc_destroy
    _key_prefix = "swiglu:"

    def __init__(
        self,
        *,
        dtype: AnyDtype,
        device: Any = None,
        alpha: float = 0.0,
        limit: float = 0.0,
        up_offset: float = 0.0,
        out_scale: float = 0.0,
        num_threads: int = 0,
        activation: AnyActivation = Activation.SWIGLU,
        gate_softcap: float = 0.0,
        up_softcap: float = 0.0,
        limit_rule: AnyLimitRule = LimitRule.GATE,
        product_rounding: bool = False,
        quant_rounding: AnyQuantRounding = 0,
    ) -> None:
        config = fill(
            _abi.swiglu_config_t(), "swiglu_desc_create",
            struct_size=ctypes.sizeof(_abi.swiglu_config_t),
            dtype=dtype_number(dtype),
            num_threads=num_threads,
            alpha=alpha,
            limit=limit,
            up_offset=up_offset,
            out_scale=out_scale,
            activation=number_of(ACTIVATIONS, "activation", activation),
            gate_softcap=gate_softcap,
            up_softcap=up_softcap,
            limit_rule=number_of(LIMIT_RULES, "limit_rule", limit_rule),
            product_rounding=_abi.SWIGLU_PRODUCT_ROUND_ACTIVATION if product_rounding else 0,
            quant_rounding=bits_of(QUANT_ROUNDINGS, "quant_rounding", quant_rounding),
        )
        super().__init__(config, device)

    @overload
    def forward(self, gate: Q, up: Tensor, out: Optional[Q] = None, **keywords: Unpack[Gating]) -> Q: ...
    @overload
    def forward(self, gate: Tensor, up: Tensor, out: Literal[False], **keywords: Unpack[Gating]) -> None: ...

    def forward(
        self,
        gate: Tensor,
        up: Tensor,
        out: Union[Tensor, Literal[False], None] = None,
        *,
        row_scale: Optional[Tensor] = None,
        num_rows: Optional[Tensor] = None,
        gate_bias: Optional[Tensor] = None,
        up_bias: Optional[Tensor] = None,
        expert_rows: Optional[Tensor] = None,
        expert_offsets: Optional[Tensor] = None,
        row_index: Optional[Tensor] = None,
        quant: Optional[SwigluQuant] = None,
        column: Optional[SwigluColumn] = None,
        programmatic_launch: bool = False,
        stream: Any = None,
    ) -> Optional[Tensor]:
        """Returns out.

        gate, up:  rank 1 to 4, one shape, any strides; two halves of a packed tensor are two views
        out:       None: a new tensor of gate's framework and dtype. It may be gate or up itself, or of F8_E4M3 or
                   F8_E5M2, but for F64 data. False: only column's codes are written, None is returned
        row_scale: factors of the rows, F32 or the descriptor's dtype; its axes are the first ones of gate
        num_rows:  I32 or I64 [1], on the tensors' device: entries of gate's first axis that count. The others are not
                   written; in a new output they are 0
        gate_bias, up_bias: F32 or the descriptor's dtype, [d], or [E, d] with experts; added before the activation
        expert_rows: I32 or I64 [E] with gate [E, N, .., d], instead of num_rows: rows of each expert that count
        expert_offsets: I32 or I64 [E + 1] with gate [N, .., d], instead of num_rows and expert_rows: expert e has
                   the rows expert_offsets[e] to expert_offsets[e + 1] - 1; rows without an expert do not count
        row_index: I32 or I64 [N] with row_scale [M]: row i takes row_scale[row_index[i]]; a row whose index is below
                   0, or not below M, does not count
        quant:     a SwigluQuant: scales of an out of 8 bits, which without them is not scaled
        column:    a SwigluColumn: the output once more, as codes whose scales are those of groups of rows
        stream, programmatic_launch: as for RopeDesc.forward
        """
        if stream is None and column is None:
            result: Tensor = _calls.gate(
                self, gate, up, out, row_scale, num_rows, gate_bias, up_bias, expert_rows, expert_offsets, row_index,
                programmatic_launch, quant)
            if result is not NotImplemented:
                return result
        inputs = (gate, up, row_scale, num_rows, gate_bias, up_bias, expert_rows, expert_offsets, row_index)
        zeroed = _leaves_rows_out(inputs)
        call = _look("swiglu_forward", programmatic_launch, inputs, (("out", out, gate),), quant=quant, column=column)
        if call is not None and self._call_kept("swiglu_forward", call, stream, zeroed):
            return call.results[0]
        reader, args, handle = self._begin("swiglu_forward", *inputs, programmatic_launch, stream)
        written = _output(reader, args, "out", out, gate, zeroed)
        _read_codes(args, reader, quant, column)
        check(lib.swiglu_forward(handle.pointer, ctypes.byref(args), reader.stream or None))
        reader.finish()
        self._keep(call, args, reader)
        return written

    @overload
    def backward(
        self, grad_out: Tensor, gate: Q, up: K, *, grad_gate: Optional[Q] = None, grad_up: Optional[K] = None,
        row_scale: None = None, grad_row_scale: None = None, **keywords: Unpack[Gradients]) -> Tuple[Q, K]: ...
    @overload
    def backward(
        self, grad_out: Tensor, gate: Q, up: K, *, grad_gate: Optional[Q] = None, grad_up: Optional[K] = None,
        row_scale: V, grad_row_scale: Optional[V] = None, **keywords: Unpack[Gradients]) -> Tuple[Q, K, V]: ...
    @overload
    def backward(
        self, grad_out: Tensor, gate: Tensor, up: Tensor, *, grad_gate: Union[Tensor, bool, None] = None,
        grad_up: Union[Tensor, bool, None] = None, row_scale: Optional[Tensor] = None,
        grad_row_scale: Union[Tensor, bool, None] = None,
        **keywords: Unpack[Gradients]) -> Tuple[Optional[Tensor], ...]: ...

    def backward(
        self,
        grad_out: Tensor,
        gate: Tensor,
        up: Tensor,
        *,
        grad_gate: Union[Tensor, bool, None] = None,
        grad_up: Union[Tensor, bool, None] = None,
        grad_row_scale: Union[Tensor, bool, None] = None,
        out: Optional[Tensor] = None,
        row_scale: Optional[Tensor] = None,
        num_rows: Optional[Tensor] = None,
        gate_bias: Optional[Tensor] = None,
        up_bias: Optional[Tensor] = None,
        expert_rows: Optional[Tensor] = None,
        expert_offsets: Optional[Tensor] = None,
        row_index: Optional[Tensor] = None,
        quant: Optional[SwigluQuant] = None,
        column: Optional[SwigluColumn] = None,
        programmatic_launch: bool = False,
        stream: Any = None,
    ) -> Tuple[Optional[Tensor], ...]:
        """Returns (grad_gate, grad_up), and grad_row_scale as a third if row_scale is given.

        grad_out, gate, up: one shape; row_scale, num_rows and the others: as for forward
        grad_gate, grad_up, grad_row_scale: None: a new tensor; with row_index, grad_row_scale is [N] and must be
                            given. False: not computed, None is returned. Otherwise the tensor is written. The first two
                            may be any one of grad_out, gate and up, or have F8_E4M3 or F8_E5M2
        out:                if given, receives the output again (activation checkpointing)
        quant, column:      scales of gradients of 8 bits, and gradients once more with scales of groups of rows

        The gradient of a bias is the sum of grad_gate or grad_up over the rows that it was added to. librope.torch adds
        these up.
        """
        if stream is None and quant is None and column is None:
            results: Tuple[Optional[Tensor], ...] = _calls.gate_back(
                self, grad_out, gate, up, grad_gate, grad_up, grad_row_scale, out, row_scale, num_rows, gate_bias,
                up_bias, expert_rows, expert_offsets, row_index, programmatic_launch)
            if results is not NotImplemented:
                return results
        inputs = (gate, up, row_scale, num_rows, gate_bias, up_bias, expert_rows, expert_offsets, row_index)
        zeroed = _leaves_rows_out(inputs)
        if row_index is not None and row_scale is not None and grad_row_scale is None:
            raise ValueError(
                "swiglu_backward: grad_row_scale is None: with row_index it must be a tensor [N] of row_scale's dtype, "
                "or False")
        outputs = [("grad_gate", grad_gate, gate), ("grad_up", grad_up, up)]
        if row_scale is not None:
            outputs.append(("grad_row_scale", grad_row_scale, row_scale))
        call = None
        if row_scale is not None or grad_row_scale is None:
            call = _look("swiglu_backward", programmatic_launch, inputs, outputs, grad_out, out, quant, column)
        if call is not None and self._call_kept("swiglu_backward", call, stream, zeroed):
            return tuple(call.results)
        reader, args, handle = self._begin("swiglu_backward", *inputs, programmatic_launch, stream)
        grads = _gradients(
            reader, args, grad_out, gate, up, row_scale, grad_gate, grad_up, grad_row_scale, out, zeroed)
        _read_codes(args, reader, quant, column)
        check(lib.swiglu_backward(handle.pointer, ctypes.byref(args), reader.stream or None))
        reader.finish()
        self._keep(call, args, reader)
        return tuple(grads)

    def explain(
        self,
        gate: Tensor,
        up: Tensor,
        out: Union[Tensor, Literal[False], None] = None,
        *,
        grad_out: Optional[Tensor] = None,
        grad_gate: Union[Tensor, bool, None] = None,
        grad_up: Union[Tensor, bool, None] = None,
        grad_row_scale: Union[Tensor, bool, None] = None,
        row_scale: Optional[Tensor] = None,
        num_rows: Optional[Tensor] = None,
        gate_bias: Optional[Tensor] = None,
        up_bias: Optional[Tensor] = None,
        expert_rows: Optional[Tensor] = None,
        expert_offsets: Optional[Tensor] = None,
        row_index: Optional[Tensor] = None,
        quant: Optional[SwigluQuant] = None,
        column: Optional[SwigluColumn] = None,
        programmatic_launch: bool = False,
        stream: Any = None,
    ) -> str:
        """How backward (if grad_out is given) or forward would run with these arguments: kernel, vector width, grid,
        and the bytes to move.

        Takes their arguments, and runs nothing. Outputs that are None are made as in a call, and dropped.
        """
        reader, args, handle = self._begin(
            "swiglu_explain", gate, up, row_scale, num_rows, gate_bias, up_bias, expert_rows, expert_offsets, row_index,
            programmatic_launch, stream)
        _read_codes(args, reader, quant, column, is_dry=True)
        # As owners they live until the text is there, so that none gets the address of another.
        if grad_out is not None:
            reader.owners += _gradients(
                reader, args, grad_out, gate, up, row_scale, grad_gate, grad_up, grad_row_scale, out, zeroed=False)
        else:
            reader.owners.append(_output(reader, args, "out", out, gate, zeroed=False))
            for field, grad in (("grad_gate", grad_gate), ("grad_up", grad_up), ("grad_row_scale", grad_row_scale)):
                if grad is not None and grad is not False:  # the library refuses such a call
                    reader.read(args, field, grad, is_output=True)
        return explanation(lib.swiglu_explain, handle, args)

    def _begin(
            self, function: str, gate: Any, up: Any, row_scale: Any, num_rows: Any, gate_bias: Any, up_bias: Any,
            expert_rows: Any, expert_offsets: Any, row_index: Any, programmatic_launch: bool,
            stream: Any) -> Tuple[Reader, Any, Any]:
        args = _abi.swiglu_args_t()
        args.struct_size = _ARGS_SIZE
        args.flags = flags_of(programmatic_launch)
        reader = Reader(function, "gate", gate, stream)
        handle = self._handle_for(reader)
        for field, x in (("gate", gate), ("up", up), ("row_scale", row_scale), ("num_rows", num_rows)):
            if x is not None:
                reader.read(args, field, x)
        further = [(field, x) for field, x in zip(
            _FURTHER, (gate_bias, up_bias, expert_rows, expert_offsets, row_index)) if x is not None]
        if further:
            group = _abi.swiglu_input_args_t(struct_size=_INPUT_ARGS_SIZE)
            for field, x in further:
                reader.read(group, field, x)
            args.input = ctypes.pointer(group)
        return reader, args, handle


_CODES: Sequence[Tuple[str, Any, List[Tuple[str, bool]]]] = ("quant", SwigluQuant, fields_of("quant", SwigluQuant)), (
    "column", SwigluColumn, fields_of("column", SwigluColumn))
_FURTHER = "gate_bias", "up_bias", "expert_rows", "expert_offsets", "row_index"
_INPUTS = "gate", "up", "row_scale", "num_rows", *["input." + field for field in _FURTHER]


def _leaves_rows_out(inputs: Sequence[Any]) -> bool:
    """Whether a call may leave rows of its outputs unwritten."""
    return any(x is not None for x in (inputs[3], *inputs[6:]))


def _look(
        function: str, programmatic_launch: bool, inputs: Sequence[Any], outputs: Sequence[Tuple[str, Any, Any]],
        grad_out: Any = None, again: Any = None, quant: Any = None, column: Any = None) -> Optional[Call]:
    """The operands of a call. `again`: the tensor in which backward writes the output. None: the call takes the long
    way."""
    groups = [(*code, group) for code, group in zip(_CODES, (quant, column)) if group is not None]
    if any([type(group) is not cls or type(group.scale_floor) is not float or
            group.scale_layout is not ScaleLayout.STRIDED for _, cls, _, group in groups]):
        return None
    call = Call(function, flags_of(programmatic_launch))
    try:
        call.add_each(_INPUTS, inputs)
        if grad_out is not None:
            call.add("grad_out", grad_out)
        for name, output, like in outputs:
            call.add_output(name, output, like)
        if again is not None:
            call.add_written("out", again)
        for name, _, fields, group in groups:
            floor, *flags, _ = group[len(fields):]
            call.key += (name, floor, *map(bool, flags))
            call.add_fields(fields, group)
    except Unkept:
        return None
    return call


def _read_codes(args: Any, reader: Reader, quant: Any, column: Any, is_dry: bool = False) -> None:
    for (name, cls, _), group in zip(_CODES, (quant, column)):
        if group is not None:
            read_group(args, reader, name, group, cls, is_dry, library="swiglu")


def _gradients(
        reader: Reader, args: Any, grad_out: Any, gate: Any, up: Any, row_scale: Any, grad_gate: Any, grad_up: Any,
        grad_row_scale: Any, out: Any, zeroed: bool) -> List[Any]:
    """Fills the operands that only backward has; returns the gradients, as backward does."""
    reader.read(args, "grad_out", grad_out)
    grads = [
        _output(reader, args, "grad_gate", grad_gate, gate, zeroed),
        _output(reader, args, "grad_up", grad_up, up, zeroed),
    ]
    if row_scale is not None:
        grads.append(_output(reader, args, "grad_row_scale", grad_row_scale, row_scale, zeroed))
    elif grad_row_scale is not None and grad_row_scale is not False:
        reader.read(args, "grad_row_scale", grad_row_scale, is_output=True)
    if out is not None and out is not False:
        reader.read(args, "out", out, is_output=True)
    return grads


def _output(reader: Reader, args: Any, field: str, output: Any, like: Any, zeroed: bool) -> Any:
    """Fills an output, with a new tensor if it is None. False: there is no output."""
    if output is False:
        return None
    is_ours = output is None
    if is_ours:
        output = reader.new_like(field, like, zeroed)
    reader.read(args, field, output, is_output=True, is_ours=is_ours)
    return output


def as_bits(value: Any) -> Any:
    """Bits as users write them, in a form that can be a part of a key."""
    return value if isinstance(value, (int, str)) else tuple(value)


@kept(maxsize=64, typed=True)  # typed: 1.0 and True are no number of threads
def cached_desc(
        dtype: int, alpha: float, limit: float, up_offset: float, out_scale: float, num_threads: int,
        activation: AnyActivation, gate_softcap: float, up_softcap: float, limit_rule: AnyLimitRule,
        product_rounding: bool, quant_rounding: AnyQuantRounding) -> SwigluDesc:
    return SwigluDesc(
        dtype=dtype, alpha=alpha, limit=limit, up_offset=up_offset, out_scale=out_scale, num_threads=num_threads,
        activation=activation, gate_softcap=gate_softcap, up_softcap=up_softcap, limit_rule=limit_rule,
        product_rounding=product_rounding, quant_rounding=quant_rounding)


@overload
def swiglu(gate: Q, up: Tensor, out: Optional[Q] = None, **keywords: Unpack[KeptGating]) -> Q: ...
@overload
def swiglu(gate: Tensor, up: Tensor, out: Literal[False], **keywords: Unpack[KeptGating]) -> None: ...


def swiglu(
    gate: Tensor,
    up: Tensor,
    out: Union[Tensor, Literal[False], None] = None,
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
    num_threads: int = 0,
    activation: AnyActivation = Activation.SWIGLU,
    gate_softcap: float = 0.0,
    up_softcap: float = 0.0,
    limit_rule: AnyLimitRule = LimitRule.GATE,
    product_rounding: bool = False,
    quant_rounding: AnyQuantRounding = 0,
    quant: Optional[SwigluQuant] = None,
    column: Optional[SwigluColumn] = None,
    programmatic_launch: bool = False,
    stream: Any = None,
) -> Optional[Tensor]:
    """SwigluDesc(...).forward(...) with a descriptor that is kept for later calls. gpt-oss has alpha=1.702, limit=7 and
    up_offset=1.

    gate, up, out: rank 1 to 4, one shape
    row_scale:     the first axes of gate
    num_rows:      [1]
    gate_bias, up_bias: [d], or [E, d] with experts
    expert_rows:   [E] with gate [E, N, .., d]
    expert_offsets: [E + 1] with gate [N, .., d]
    row_index:     [N], with row_scale [M]
    quant:         a SwigluQuant, with an out of 8 bits
    column:        a SwigluColumn: the output with scales of groups of rows
    """
    desc = cached_desc(
        dtype_of("swiglu_forward", "gate", gate), alpha, limit, up_offset, out_scale, num_threads, activation,
        gate_softcap, up_softcap, limit_rule, product_rounding, as_bits(quant_rounding))
    return desc.forward(
        gate, up, out, row_scale=row_scale, num_rows=num_rows, gate_bias=gate_bias, up_bias=up_bias,
        expert_rows=expert_rows, expert_offsets=expert_offsets, row_index=row_index, quant=quant,
        column=column, programmatic_launch=programmatic_launch, stream=stream)


@overload
def swiglu_backward(
    grad_out: Tensor, gate: Q, up: K, *, grad_gate: Optional[Q] = None, grad_up: Optional[K] = None,
    row_scale: None = None, grad_row_scale: None = None, **keywords: Unpack[GatingGradients]) -> Tuple[Q, K]: ...
@overload
def swiglu_backward(
    grad_out: Tensor, gate: Q, up: K, *, grad_gate: Optional[Q] = None, grad_up: Optional[K] = None,
    row_scale: V, grad_row_scale: Optional[V] = None, **keywords: Unpack[GatingGradients]) -> Tuple[Q, K, V]: ...
@overload
def swiglu_backward(
    grad_out: Tensor, gate: Tensor, up: Tensor, *, grad_gate: Union[Tensor, bool, None] = None,
    grad_up: Union[Tensor, bool, None] = None, row_scale: Optional[Tensor] = None,
    grad_row_scale: Union[Tensor, bool, None] = None,
    **keywords: Unpack[GatingGradients]) -> Tuple[Optional[Tensor], ...]: ...


def swiglu_backward(
    grad_out: Tensor,
    gate: Tensor,
    up: Tensor,
    *,
    grad_gate: Union[Tensor, bool, None] = None,
    grad_up: Union[Tensor, bool, None] = None,
    grad_row_scale: Union[Tensor, bool, None] = None,
    out: Optional[Tensor] = None,
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
    num_threads: int = 0,
    activation: AnyActivation = Activation.SWIGLU,
    gate_softcap: float = 0.0,
    up_softcap: float = 0.0,
    limit_rule: AnyLimitRule = LimitRule.GATE,
    product_rounding: bool = False,
    quant_rounding: AnyQuantRounding = 0,
    quant: Optional[SwigluQuant] = None,
    column: Optional[SwigluColumn] = None,
    programmatic_launch: bool = False,
    stream: Any = None,
) -> Tuple[Optional[Tensor], ...]:
    """SwigluDesc(...).backward(...) with a descriptor that is kept for later calls.

    Returns (grad_gate, grad_up), and grad_row_scale as a third if row_scale is given.
    """
    desc = cached_desc(
        dtype_of("swiglu_backward", "gate", gate), alpha, limit, up_offset, out_scale, num_threads, activation,
        gate_softcap, up_softcap, limit_rule, product_rounding, as_bits(quant_rounding))
    return desc.backward(
        grad_out, gate, up, grad_gate=grad_gate, grad_up=grad_up, grad_row_scale=grad_row_scale, out=out,
        row_scale=row_scale, num_rows=num_rows, gate_bias=gate_bias, up_bias=up_bias, expert_rows=expert_rows,
        expert_offsets=expert_offsets, row_index=row_index, quant=quant, column=column,
        programmatic_launch=programmatic_launch, stream=stream)
