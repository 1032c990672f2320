# SPDX-License-Identifier: Apache-2.0
# _rope.py - rope_desc_create, rope_forward, rope_backward, rope_fill_tables and rope_explain
from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Tuple, Union, overload

from . import _abi, _calls
from ._descriptor import Descriptor
from ._enums import (LAYOUTS, NORM_EXTENTS, NORM_ORDERS, NORM_ROUNDINGS, NORM_TENSORS, NORM_TYPES, QUANT_ROUNDINGS,
                     ROTATION_ROUNDINGS, STYLES, TABLE_ROWS, NormExtent, NormOrder, TableRows, bits_of, dtype_number,
                     number_of)
from ._group_reader import fields_of, read_group
from ._groups import Cache, Input, Norm, NormGradient, Quant
from ._integers import fill, integers_for
from ._kept import Call, Unkept
from ._library import check, lib
from ._tensors import Reader
from ._types import (AnyDtype, AnyLayout, AnyNormExtent, AnyNormOrder, AnyNormRounding, AnyNormTensors, AnyNormType,
                     AnyQuantRounding, AnyRotationRounding, AnyStyle, AnyTableRows, K, Q, Step, Tensor, Transpose, V)

if TYPE_CHECKING:
    from typing_extensions import Unpack

_ARGS_SIZE = ctypes.sizeof(_abi.rope_args_t)
SEQUENCES: Tuple[Any, ...] = (tuple, list)  # for several outputs


def as_list(values: Any) -> List[Any]:
    """The numbers of a sequence, or of a tensor in host memory."""
    return values.tolist() if hasattr(values, "tolist") else list(values)


def explanation(function: Any, handle: Any, args: Any) -> str:
    text = ctypes.create_string_buffer(512)
    check(function(handle.pointer, ctypes.byref(args), text, len(text)))
    return text.value.decode()


def flags_of(
        programmatic_launch: bool, unrotated: bool = False, v_unrotated: bool = False, accumulate: bool = False) -> int:
    flags = _abi.ROPE_FLAG_PROGRAMMATIC_LAUNCH if programmatic_launch else 0
    if unrotated:
        flags |= _abi.ROPE_FLAG_UNROTATED
    if v_unrotated:
        flags |= _abi.ROPE_FLAG_V_UNROTATED
    if accumulate:
        flags |= _abi.ROPE_FLAG_ACCUMULATE
    return flags


class RopeDesc(Descriptor):
    """Selects a rotation: geometry, pairing, frequencies, dtype and layout. See rope_config_t in <rope/rope.h>.

    Every argument has the meaning of the header's field of that name, also for 0 and None. R is rotary_dim, or head_dim
    if rotary_dim is 0.

    head_dim:        channels per head, even
    style:           which channels form a pair: "half" (Llama in Hugging Face, GPT-NeoX, Qwen) or "interleaved" (GPT-J,
                     Llama by Meta, DeepSeek). There is no default: a wrong style would go unnoticed
    layout:          order of the tensors' axes: "bshd", "sbhd", "bhsd" or "thd"
    dtype:           type of q, k, v and their outputs: "f32", "f16", "bf16", "f64", or a dtype of torch, NumPy, CuPy
                     or JAX
    device:          "cpu", "cuda" or "cuda:1": calls with tensors elsewhere are refused. None: each call runs on the
                     device of its tensors
    rotary_dim:      channels that are rotated, even
    rotary_offset:   first rotated channel
    theta:           base of the frequencies
    inv_freq:        R/2 frequencies in radians per position, instead of theta
    attention_scale: factor of cos and sin (YaRN)
    num_axes:        number of positions of a token
    pair_axis:       R/2 position axes, one for each pair
    pair_block:      number of channels of a block; pairs of "half" stay inside blocks
    out_style:       style of the outputs
    num_threads:     CPU: the largest number of threads of a call
    norm:            "rms" or "layer": every call of forward must then pass its operands. 0: no norm
    norm_tensors:    which tensors are normed: "q", "k", "v", or several of these. 0: q and k
    norm_order:      "before" the rotation (Qwen3, Gemma 3) or "after" it (Llama 4, HunYuan)
    norm_extent:     one norm is over the channels of each "head", or of all heads of the tensor in the call, "token"
                     (OLMo-2)
    norm_rounding:   values rounded to dtype inside the norm: "before_weight" (Llama, Qwen3), "after_weight", or both
    norm_eps:        above 0 with a norm
    norm_weight_offset: added to every weight (Gemma: 1)
    quant_rounding:  "first": values are rounded to dtype before they are scaled and quantised
    rotation_rounding: "each": cos, sin, products and sums of the rotation are rounded to dtype one by one. With the cos
                     and sin of Hugging Face's eager code, the result has the bits of that code

    Raises InvalidArgument, NotSupported, NoDevice, OutOfMemory or CudaError with the library's text.
    """

    _array_fields = ("inv_freq", "pair_axis")
    _config_type = _abi.rope_config_t
    _create = lib.rope_desc_create
    _destroy = lib.rope_desc_destroy
    _key_prefix = "rope:"

    def __init__(
        self,
        *,
        head_dim: int,
        style: AnyStyle,
        layout: AnyLayout,
        dtype: AnyDtype,
        device: Any = None,
        rotary_dim: int = 0,
        rotary_offset: int = 0,
        theta: float = 0.0,
        inv_freq: Optional[Sequence[float]] = None,
        attention_scale: float = 0.0,
        num_axes: int = 0,
        pair_axis: Optional[Sequence[int]] = None,
        pair_block: int = 0,
        out_style: AnyStyle = 0,
        num_threads: int = 0,
        norm: AnyNormType = 0,
        norm_tensors: AnyNormTensors = 0,
        norm_order: AnyNormOrder = NormOrder.BEFORE,
        norm_extent: AnyNormExtent = NormExtent.HEAD,
        norm_rounding: AnyNormRounding = 0,
        norm_eps: float = 0.0,
        norm_weight_offset: float = 0.0,
        quant_rounding: AnyQuantRounding = 0,
        rotation_rounding: AnyRotationRounding = 0,
    ) -> None:
        config = fill(
            _abi.rope_config_t(), "rope_desc_create",
            struct_size=ctypes.sizeof(_abi.rope_config_t),
            dtype=dtype_number(dtype),
            layout=number_of(LAYOUTS, "layout", layout),
            style=number_of(STYLES, "style", style),
            head_dim=head_dim,
            rotary_dim=rotary_dim,
            rotary_offset=rotary_offset,
            theta=theta,
            attention_scale=attention_scale,
            num_axes=num_axes,
            pair_block=pair_block,
            num_threads=num_threads,
            out_style=number_of(STYLES, "out_style", out_style),
            norm=number_of(NORM_TYPES, "norm", norm),
            norm_tensors=bits_of(NORM_TENSORS, "norm_tensors", norm_tensors),
            norm_order=number_of(NORM_ORDERS, "norm_order", norm_order),
            norm_extent=number_of(NORM_EXTENTS, "norm_extent", norm_extent),
            norm_rounding=bits_of(NORM_ROUNDINGS, "norm_rounding", norm_rounding),
            norm_eps=norm_eps,
            norm_weight_offset=norm_weight_offset,
            quant_rounding=bits_of(QUANT_ROUNDINGS, "quant_rounding", quant_rounding),
            rotation_rounding=number_of(ROTATION_ROUNDINGS, "rotation_rounding", rotation_rounding),
        )
        # The library cannot see the length of an array.
        num_pairs = (config.rotary_dim or config.head_dim) // 2
        self._arrays = {}
        for field, values, ctype in (("inv_freq", inv_freq, ctypes.c_double), ("pair_axis", pair_axis, ctypes.c_int32)):
            if values is None:
                continue
            values = as_list(values)
            if len(values) != num_pairs:
                raise ValueError(f"{field} has {len(values)} entries: it must have one for each of {num_pairs} pairs")
            if ctype is ctypes.c_int32:
                values = integers_for(ctype, "rope_desc_create", field, values)
            array = (ctype * num_pairs)(*values)
            self._arrays[field] = array
            setattr(config, field, ctypes.cast(array, ctypes.POINTER(ctype)))
        super().__init__(config, device)

    @overload
    def forward(self, q: None = None, *, k: K, v: None = None, **keywords: Unpack[Step]) -> K: ...
    @overload
    def forward(self, q: None, k: K, v: None = None, **keywords: Unpack[Step]) -> K: ...
    @overload
    def forward(self, q: None = None, k: None = None, *, v: V, **keywords: Unpack[Step]) -> V: ...
    @overload
    def forward(self, q: None, k: None, v: V, **keywords: Unpack[Step]) -> V: ...
    @overload
    def forward(self, q: None = None, *, k: K, v: V, **keywords: Unpack[Step]) -> Tuple[K, V]: ...
    @overload
    def forward(self, q: None, k: K, v: V, **keywords: Unpack[Step]) -> Tuple[K, V]: ...
    @overload
    def forward(self, q: Q, k: None = None, v: None = None, **keywords: Unpack[Step]) -> Q: ...
    @overload
    def forward(self, q: Q, k: K, v: None = None, **keywords: Unpack[Step]) -> Tuple[Q, K]: ...
    @overload
    def forward(self, q: Q, k: None = None, *, v: V, **keywords: Unpack[Step]) -> Tuple[Q, V]: ...
    @overload
    def forward(self, q: Q, k: None, v: V, **keywords: Unpack[Step]) -> Tuple[Q, V]: ...
    @overload
    def forward(self, q: Q, k: K, v: V, **keywords: Unpack[Step]) -> Tuple[Q, K, V]: ...

    def forward(
        self,
        q: Optional[Tensor] = None,
        k: Optional[Tensor] = None,
        v: Optional[Tensor] = None,
        *,
        out: Union[Tensor, Sequence[Optional[Tensor]], None] = None,
        positions: Optional[Tensor] = None,
        start_positions: Optional[Tensor] = None,
        cu_seqlens: Optional[Tensor] = None,
        cos: Optional[Tensor] = None,
        sin: Optional[Tensor] = None,
        angles: Optional[Tensor] = None,
        fault: Optional[Tensor] = None,
        norm: Optional[Norm] = None,
        cache: Optional[Cache] = None,
        quant: Optional[Quant] = None,
        input: Optional[Input] = None,
        position_offset: int = 0,
        table_rows: AnyTableRows = TableRows.BY_POSITION,
        unrotated: bool = False,
        v_unrotated: bool = False,
        programmatic_launch: bool = False,
        stream: Any = None,
    ) -> Any:
        """Rotates the given ones of q, k and v, at least one, in one launch, each token by the angles of its position.
        It also norms and quantises them, and writes k and v to caches, as the arguments specify.

        q, k, v:         [B, S, H, D] in the order of the layout, "thd" [T, H, D]; any strides, H of each its own. D is
                         head_dim. It may be rotary_dim, the window alone, and must be beside a pass in `input`
        out:             None: new tensors of the framework of q, k and v, as wide as these, or with head_dim channels
                         beside a pass. Otherwise one tensor for each given one of q, k and v, in their order; None for
                         a new one. q itself rotates q in place. False for k with a k_cache and for v with a v_cache:
                         the tensor is only cached, and None is returned. Outputs of any data may have F8_E4M3 and
                         F8_E5M2, those of F32 data also F16 and BF16
        positions:       I32 or I64 [T], [S], [B, S] or [1, S], a leading axis for num_axes above 1; None: the index
                         of the token in its sequence
        start_positions: I32 or I64 [B], or one for each token; added to positions
        cu_seqlens:      I32 or I64 [B + 1], "thd": where sequences begin. Tokens past its last entry are not written;
                         in new outputs they are 0
        cos, sin:        [M, W], [A, M, W] or by token, W = R/2, R or R/(2A): tables instead of computed angles
        angles:          angles in radians, in the shapes of cos and sin
        fault:           I64 [2], zeroed by the caller: number of tokens with a position outside the table, and the
                         lowest such token + 1; with a cache also tokens whose place is outside the cache
        norm:            a Norm, if and only if the descriptor has a norm
        cache:           a Cache. With it v needs v_unrotated or unrotated, as with a norm
        quant:           a Quant: scales of outputs and caches of 8 bits. Without it they are not scaled
        input:           an Input: channels outside the window, row factors
        unrotated:       nothing is rotated: for layers without positions, and calls that only write caches
        v_unrotated:     v is not rotated, q and k are
        position_offset: added to every position
        table_rows:      "by_position" or "by_token": how a token finds its row of the tables
        stream:          CUDA: a handle, or a stream of torch, CuPy or cuda.core. None: the current stream of q's
                         framework
        programmatic_launch: CUDA: ROPE_FLAG_PROGRAMMATIC_LAUNCH

        Returns the outputs: one tensor if one is given, otherwise a tuple in the order of q, k, v. All tensors must be
        on one device; none is copied. With JAX arrays on a GPU the call waits until the work is done, because JAX
        cannot order its own work behind it.
        """
        if type(table_rows) is str:
            table_rows = number_of(TABLE_ROWS, "table_rows", table_rows)
        if stream is None:
            results = _calls.rotate(
                self, False, q, k, v, out, positions, start_positions, cu_seqlens, cos, sin, angles, fault, norm, cache,
                quant, input, position_offset, table_rows, programmatic_launch, unrotated, v_unrotated)
            if results is not NotImplemented:
                return results
        return self._rotate(
            "rope_forward", q, k, v, out, positions, start_positions, cu_seqlens, cos, sin, angles, fault,
            position_offset, table_rows, programmatic_launch, stream, unrotated, v_unrotated, norm, cache, quant, input)

    @overload
    def backward(self, q: None = None, *, k: K, v: None = None, **keywords: Unpack[Transpose]) -> K: ...
    @overload
    def backward(self, q: None, k: K, v: None = None, **keywords: Unpack[Transpose]) -> K: ...
    @overload
    def backward(self, q: None = None, k: None = None, *, v: V, **keywords: Unpack[Transpose]) -> V: ...
    @overload
    def backward(self, q: None, k: None, v: V, **keywords: Unpack[Transpose]) -> V: ...
    @overload
    def backward(self, q: None = None, *, k: K, v: V, **keywords: Unpack[Transpose]) -> Tuple[K, V]: ...
    @overload
    def backward(self, q: None, k: K, v: V, **keywords: Unpack[Transpose]) -> Tuple[K, V]: ...
    @overload
    def backward(self, q: Q, k: None = None, v: None = None, **keywords: Unpack[Transpose]) -> Q: ...
    @overload
    def backward(self, q: Q, k: K, v: None = None, **keywords: Unpack[Transpose]) -> Tuple[Q, K]: ...
    @overload
    def backward(self, q: Q, k: None = None, *, v: V, **keywords: Unpack[Transpose]) -> Tuple[Q, V]: ...
    @overload
    def backward(self, q: Q, k: None, v: V, **keywords: Unpack[Transpose]) -> Tuple[Q, V]: ...
    @overload
    def backward(self, q: Q, k: K, v: V, **keywords: Unpack[Transpose]) -> Tuple[Q, K, V]: ...

    def backward(
        self,
        q: Optional[Tensor] = None,
        k: Optional[Tensor] = None,
        v: Optional[Tensor] = None,
        *,
        out: Union[Tensor, Sequence[Optional[Tensor]], None] = None,
        positions: Optional[Tensor] = None,
        start_positions: Optional[Tensor] = None,
        cu_seqlens: Optional[Tensor] = None,
        cos: Optional[Tensor] = None,
        sin: Optional[Tensor] = None,
        angles: Optional[Tensor] = None,
        fault: Optional[Tensor] = None,
        norm: Optional[NormGradient] = None,
        input: Optional[Input] = None,
        position_offset: int = 0,
        table_rows: AnyTableRows = TableRows.BY_POSITION,
        unrotated: bool = False,
        v_unrotated: bool = False,
        accumulate: bool = False,
        programmatic_launch: bool = False,
        stream: Any = None,
    ) -> Any:
        """The transpose of forward: q, k and v are gradients of the outputs; the results are gradients of the inputs.

        Arguments and shapes are those of forward; row factors are constants. With attention_scale 1 and without a norm
        it also undoes the rotation.

        norm:       a NormGradient, if and only if the descriptor has a norm
        accumulate: the gradients are added to the contents of out, in the arithmetic of the call, and rounded once
        """
        if type(table_rows) is str:
            table_rows = number_of(TABLE_ROWS, "table_rows", table_rows)
        if stream is None and norm is None and not accumulate:
            results = _calls.rotate(
                self, True, q, k, v, out, positions, start_positions, cu_seqlens, cos, sin, angles, fault, None, None,
                None, input, position_offset, table_rows, programmatic_launch, unrotated, v_unrotated)
            if results is not NotImplemented:
                return results
        return self._rotate(
            "rope_backward", q, k, v, out, positions, start_positions, cu_seqlens, cos, sin, angles, fault,
            position_offset, table_rows, programmatic_launch, stream, unrotated, v_unrotated, norm, input=input,
            accumulate=accumulate)

    def explain(
        self, q: Optional[Tensor] = None, k: Optional[Tensor] = None, v: Optional[Tensor] = None,
        **arguments: Any) -> str:
        """How forward and backward would run with these arguments: kernel, vector width, grid, and the bytes to move.

        Takes the arguments of forward, and runs nothing. Except beside a pass, out=None stands for in place here, so
        that nothing is allocated.
        """
        if arguments.get("out") is None and not arguments.get("accumulate"):
            passed = _passed(arguments.get("input"))
            arguments["out"] = [
                None if field in passed else x for field, x in (("q", q), ("k", k), ("v", v)) if x is not None]
        # _reader owns the memory that args points to.
        _reader, args, handle, _ = self._read("rope_explain", q, k, v, is_dry=True, **arguments)
        return explanation(lib.rope_explain, handle, args)

    def fill_tables(self, cos: Tensor, sin: Tensor, *, stream: Any = None) -> None:
        """Writes the cosines and sines of positions 0 to M - 1, times attention_scale, to cos and sin.

        cos, sin: [M, W] or [A, M, W] with W = R/2, R or R/(2A), one shape and one floating dtype, any strides
        """
        args = _abi.rope_args_t()
        reader = Reader("rope_fill_tables", "cos_out", cos, stream)
        reader.read(args, "cos", cos, is_output=True)
        reader.read(args, "sin", sin, is_output=True)
        handle = self._handle_for(reader)
        check(lib.rope_fill_tables(
            handle.pointer, ctypes.byref(args.cos), ctypes.byref(args.sin), reader.stream or None))
        reader.finish()

    def _rotate(
            self, function: str, q: Any, k: Any, v: Any, out: Any, positions: Any, start_positions: Any,
            cu_seqlens: Any, cos: Any, sin: Any, angles: Any, fault: Any, position_offset: Any, table_rows: Any,
            programmatic_launch: bool, stream: Any, unrotated: bool, v_unrotated: bool,
            norm: Union[Norm, NormGradient, None] = None, cache: Optional[Cache] = None, quant: Optional[Quant] = None,
            input: Optional[Input] = None, accumulate: bool = False) -> Any:
        flags = flags_of(programmatic_launch, unrotated, v_unrotated, accumulate)
        operands = (positions, start_positions, cu_seqlens, cos, sin, angles)
        call = None
        if type(position_offset) is int and table_rows is TableRows.BY_POSITION:
            call = _look(
                Call(function, flags, position_offset), self._config.head_dim, (q, k, v), out, operands, fault, norm,
                cache, quant, input)
        if call is not None and self._call_kept(function, call, stream, cu_seqlens is not None):
            results = tuple(call.results)
        else:
            reader, args, handle, results = self._read(
                function, q, k, v, out, *operands, fault, position_offset, table_rows, programmatic_launch, stream,
                unrotated, v_unrotated, norm, cache, quant, input, accumulate)
            check(getattr(lib, function)(handle.pointer, ctypes.byref(args), reader.stream or None))
            reader.finish()
            self._keep(call, args, reader)
        return results[0] if len(results) == 1 else results

    def _read(
            self, function: str, q: Any, k: Any, v: Any, out: Any = None, positions: Any = None,
            start_positions: Any = None, cu_seqlens: Any = None, cos: Any = None, sin: Any = None, angles: Any = None,
            fault: Any = None, position_offset: int = 0, table_rows: Any = TableRows.BY_POSITION,
            programmatic_launch: bool = False, stream: Any = None, unrotated: bool = False, v_unrotated: bool = False,
            norm: Union[Norm, NormGradient, None] = None, cache: Optional[Cache] = None, quant: Optional[Quant] = None,
            input: Optional[Input] = None, accumulate: bool = False, is_dry: bool = False) -> Tuple[Reader, Any, Any, Tuple[Any, ...]]:
        args = _abi.rope_args_t()
        args.struct_size = _ARGS_SIZE
        args.flags = flags_of(programmatic_launch, unrotated, v_unrotated, accumulate)
        if type(position_offset) is not int or position_offset != 0:  # 0 is the default of a new struct
            fill(args, function, position_offset=position_offset)
        if table_rows is not TableRows.BY_POSITION:
            fill(args, function, table_rows=number_of(TABLE_ROWS, "table_rows", table_rows))

        inputs = [(field, x) for field, x in (("q", q), ("k", k), ("v", v)) if x is not None]
        if not inputs:
            raise TypeError(f"{function}: q, k and v are None: one of them must be given")
        reader = Reader(function, *inputs[0], stream)
        handle = self._handle_for(reader)
        if out is None:
            outputs: List[Any] = [None] * len(inputs)
        elif isinstance(out, SEQUENCES):
            outputs = list(out)
        else:
            outputs = [out]
        if len(outputs) != len(inputs):
            raise ValueError(
                f"{function}: out has {len(outputs)} tensors: it must have one for each of {len(inputs)} inputs")
        cached: List[str] = []
        if cache is not None:
            read_group(args, reader, "cache", cache, Cache, is_dry)
            cached += [field for field, x in (("k", cache.k_cache), ("v", cache.v_cache)) if x is not None]
        passed = _passed(input)
        results: List[Any] = []
        for (field, x), output in zip(inputs, outputs):
            if output is False:
                if field not in cached:
                    raise ValueError(
                        f"{function}: out is False for {field}: it must be a tensor or None where there is no "
                        f"{field}_cache")
                reader.read(args, field, x)
                results.append(None)
                continue
            is_in_place = output is x
            reader.read(args, field, x, is_output=is_in_place and not is_dry)
            if output is None and accumulate:
                raise ValueError(f"{function}: out is None for {field}: with accumulate it must be a tensor")
            if not is_in_place:
                is_ours = output is None
                if is_ours:
                    output = reader.new_like(
                        field, x, cu_seqlens is not None, self._config.head_dim if field in passed else 0)
                reader.read(args, field + "_out", output, is_output=True, is_ours=is_ours or is_dry)
            elif field in cached:  # an absent output would mean: cached only
                setattr(args, field + "_out", getattr(args, field))
            results.append(output)
        for field, x in (("positions", positions), ("start_positions", start_positions), ("cu_seqlens", cu_seqlens),
                         ("cos", cos), ("sin", sin), ("angles", angles)):
            if x is not None:
                reader.read(args, field, x)
        if fault is not None:
            reader.read(args, "fault", fault, is_output=True, is_ours=is_dry)
        if norm is not None:
            is_gradient = function == "rope_backward" or (is_dry and isinstance(norm, NormGradient))
            read_group(args, reader, "norm", norm, NormGradient if is_gradient else Norm, is_dry)
        if quant is not None:
            read_group(args, reader, "quant", quant, Quant, is_dry)
        if input is not None:
            read_group(args, reader, "input", input, Input)
        return reader, args, handle, tuple(results)


def _passed(group: Any) -> List[str]:
    """The names of those of q and k that hold the window alone. Their outputs have all channels."""
    return [] if not isinstance(group, Input) else [
        field for field, x in (("q", group.q_pass), ("k", group.k_pass)) if x is not None]


_INPUTS = (("q", "q_out"), ("k", "k_out"), ("v", "v_out"))
_OPERANDS = ("positions", "start_positions", "cu_seqlens", "cos", "sin", "angles")
_NORM_FIELDS = ["norm." + field for field in Norm._fields]
_CACHE_FIELDS = fields_of("cache", Cache)
_QUANT_FIELDS = fields_of("quant", Quant)
_INPUT_FIELDS = ["input." + field for field in Input._fields]


def _look(
        call: Call, head_dim: int, inputs: Tuple[Any, ...], out: Any, operands: Tuple[Any, ...], fault: Any, norm: Any,
        cache: Any, quant: Any, input: Any) -> Optional[Call]:
    """Adds the operands of a call of forward or backward. Returns None if the call takes the long way."""
    for group, cls in ((norm, Norm), (cache, Cache), (quant, Quant), (input, Input)):
        if group is not None and type(group) is not cls:
            return None
    if quant is not None and type(quant.scale_floor) is not float:
        return None
    outputs: List[Any] = [None] * 3 if out is None else list(out) if isinstance(out, SEQUENCES) else [out]
    if out is not None and len(outputs) != sum([x is not None for x in inputs]):
        return None
    cached = (None, None, None) if cache is None else (None, cache.k_cache, cache.v_cache)
    passed = _passed(input)
    try:
        for (field, out_field), x, its_cache in zip(_INPUTS, inputs, cached):
            if x is None:
                continue
            output = outputs.pop(0)
            call.add(field, x)
            if output is x:
                if its_cache is not None:  # an absent output would mean: cached only
                    call.add_again(out_field)
                call.written.append(x)
                call.results.append(x)
            elif output is False and its_cache is None:
                return None
            else:
                call.add_output(out_field, output, x, head_dim if field in passed else 0)
        for field, x in zip(_OPERANDS, operands):
            if x is not None:
                call.add(field, x)
        if fault is not None:
            call.add_written("fault", fault)
        if norm is not None:
            call.key.append("norm")
            call.add_each(_NORM_FIELDS, norm)
        if cache is not None:
            call.key.append(bool(cache.skip_slot_0))
            call.add_fields(_CACHE_FIELDS, cache)
        if quant is not None:
            call.key += ("quant", quant.scale_floor, bool(quant.scale_multiplies), bool(quant.power_of_two))
            call.add_fields(_QUANT_FIELDS, quant)
        if input is not None:
            call.key.append("input")
            call.add_each(_INPUT_FIELDS, input)
    except Unkept:
        return None
    return call if call.names else None
