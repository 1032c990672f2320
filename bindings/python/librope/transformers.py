# SPDX-License-Identifier: Apache-2.0
# transformers.py - Hugging Face models on librope
"""patch(model) lets a model's attention rotate, and its gated MLPs gate, through librope.torch; unpatch(model) undoes
it.

    model = AutoModelForCausalLM.from_pretrained(...)
    librope.transformers.patch(model)

patch recognises code by its results, in transformers' own code and in that of a checkpoint: functions and
modules are run with random numbers, on copies, and replaced only if librope has their results. Otherwise they stay:
report(model) tells what was replaced, and what was left and why; with strict=True that is an error. Among the models
that are replaced as a whole are Llama, the text of Llama-4, Qwen2, Qwen3, Mistral, Ministral 3, Mistral 4, Gemma 1 to
3, Phi-3, GPT-NeoX, DeepSeek-V3, OLMo-2 and Cohere. An MLP is changed if its activation is SiLU: Gemma gates with GELU,
and GPT-NeoX has no gate. Routed experts are changed in the "grouped_mm" and "batched_mm" implementations of
transformers, not in the "eager" one; those of Llama-4 are not changed.

A model's own rotary embedding makes cos and sin. Where it would round them to 16 bits, F32 ones are used.

The norms of q and k of Qwen3, Gemma 3, OLMo-2, Cohere and Llama-4 are part of the rotation's launch in inference and in
training, forward and backward, if their weights have the dtype of q and they have no hooks. Otherwise, as under
autocast, in forward mode and in torch.func's transforms, the model's own norms run. Their gradients have no gradients:
if you need these, unpatch the model. Norms of OLMo-2 are over all heads of a token. Its tensor-parallel models, in
which a rank may have a part of the heads, are refused.

The temperature of Ministral 3, a factor of q that grows with the position, is part of the rotation's launch in
inference and in training, and computed once for all layers. Llama-4 and Mistral 4 keep their own: Llama-4 has it on
layers that do not rotate, and Mistral 4 also multiplies channels that do not rotate.

patch(model, parity=True) changes the rotation alone, and no bit of its result: from the model's own cos and sin it
rounds the values that the model rounds, forward and backward, and gradients lie in memory like the model's. Logits and
gradients are then those of the model. Where librope does not have the bits, the model's own code runs: gradients of
OLMo-2 in 16 bits, and Llama-4, which multiplies complex numbers.
"""
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# What foreign code has and returns is of no known type. The private names are those of torch and of librope.
from __future__ import annotations

import functools
import gc
import sys
import types
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple, TypeVar, Union

from ._library import refuse_other_interpreters

refuse_other_interpreters(__name__)
import torch  # noqa: E402

from . import _recognise as recognise  # noqa: E402
from ._enums import NormExtent, NormOrder, RotationRounding, TableRows
from ._hf_config import from_hf_config
from ._recognise import BF16, F16, F32, F64, Unrecognised, require
from ._torch_scaled import apply_scaled_rotary
from ._types import TorchNorm, TorchRotation
from .torch import _is_transformed, _requires_grad
from .torch import apply_rotary, norm_rotary, swiglu

__all__ = ["from_hf_config", "patch", "report", "unpatch"]


def _has_hooks(module: Any) -> bool:
    """Whether a call of the module does more, or another thing, than its class says."""
    return bool("forward" in module.__dict__ or module._forward_hooks or module._forward_pre_hooks
                or module._backward_hooks or module._backward_pre_hooks)


# ---- Tables ---------------------------------------------------------------------------------------------------------


class _Table:
    """The cos, the sin, or the complex table of a patched module. Functions that rotate through librope recognise it;
    elsewhere it is the tensor that the model would have."""

    def __init__(
            self, values: torch.Tensor, dtype: torch.dtype, columns: Tuple[str, ...], parity: bool,
            extra: Any = None) -> None:
        self.values = values  # in F32 if the model would round them to a dtype of 16 bits
        self.dtype_of_model = dtype
        self.columns = columns
        self.parity = parity
        self.extra = extra  # what an attention has left to the rotation: _Norms, or the factor of q
        self.narrow: Dict[str, Tuple[torch.Tensor, ...]] = {}
        self.factors: Dict[Any, Any] = {}

    def plain(self) -> torch.Tensor:
        return self.values.to(self.dtype_of_model)

    def rows(self, kind: str) -> Tuple[torch.Tensor, ...]:
        """One column for each pair: of cos and sin if the table is complex, otherwise of the one that it is."""
        known = self.narrow.get(kind)
        if known is None:
            if self.values.is_complex():
                parts = torch.view_as_real(self.values)
                known = parts[..., 0].contiguous(), parts[..., 1].contiguous()
            else:
                known = (recognise.narrow(self.values, kind).contiguous(),)
            self.narrow[kind] = known
        return known

    def with_extra(self, extra: Any) -> _Table:
        result = _Table(self.values, self.dtype_of_model, self.columns, self.parity, extra)
        result.narrow = self.narrow
        return result

    def to(self, *arguments: Any, **keywords: Any) -> Any:  # accelerate calls it
        """A table on another device, or a tensor of another dtype."""
        moved = self.plain().to(*arguments, **keywords)
        if moved.dtype != self.dtype_of_model:
            return moved
        if moved.device == self.values.device:
            return self
        return _Table(self.values.to(moved.device), self.dtype_of_model, self.columns, self.parity, self.extra)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.plain(), name)

    @classmethod
    def __torch_function__(
            cls, function: Any, types: Any, arguments: Tuple[Any, ...] = (), keywords: Any = None) -> Any:
        return function(*_plain(arguments), **_plain(keywords or {}))


def _plain(x: Any) -> Any:
    """The arguments with tensors in place of tables."""
    if isinstance(x, _Table):
        return x.plain()
    if isinstance(x, (tuple, list)):
        return type(x)([_plain(y) for y in x])
    return {name: _plain(y) for name, y in x.items()} if isinstance(x, dict) else x


def _make_operator(name: str) -> Any:
    def operator(self: _Table, *arguments: Any) -> Any:
        return getattr(self.plain(), name)(*_plain(arguments))

    return operator


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "matmul", "rmatmul", "truediv", "rtruediv", "pow", "neg",
              "abs", "eq", "ne", "lt", "le", "gt", "ge", "getitem", "len", "iter", "bool", "float"):
    setattr(_Table, f"__{_name}__", _make_operator(f"__{_name}__"))
setattr(_Table, "__hash__", object.__hash__)


def _tables_forward(original: Callable[..., Any], plan: _Plan, self: Any, *arguments: Any, **keywords: Any) -> Any:
    layer_type = keywords.get("layer_type", arguments[2] if len(arguments) > 2 else None)
    tables = plan.what.get(layer_type)
    if tables is None or not arguments or not isinstance(arguments[0], torch.Tensor):
        return original(self, *arguments, **keywords)
    dtype = arguments[0].dtype
    if tables.takes_f32 and not plan.parity and dtype in (BF16, F16):
        given = original(self, arguments[0].new_empty(1, dtype=F32), *arguments[1:], **keywords)
    else:
        given = original(self, *arguments, **keywords)
    parts = (given,) if isinstance(given, torch.Tensor) else given
    if _requires_grad(*parts):  # of frequencies that are trained
        return original(self, *arguments, **keywords)
    wrapped = tuple([_Table(x, dtype if tables.follows_dtype else x.dtype, tables.columns, plan.parity)
                     for x in parts])
    return wrapped[0] if isinstance(given, torch.Tensor) else wrapped


# ---- Functions that rotate ------------------------------------------------------------------------------------------


class _ContiguousGradient(torch.autograd.Function):
    """The identity, with a gradient that lies in memory like the model's: sums of it depend on that."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0].contiguous()

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return tangents[0].view_as(tangents[0])


class _Function:
    """A function that rotates, and how."""

    def __init__(self, original: Any) -> None:
        self.original = original
        self.rotation = recognise.rotation_of(original)
        self.exactness: Dict[Any, recognise.Exactness] = {}

    def prepare_parity(self) -> None:
        for dtype in (F64, F32, BF16, F16):
            for table_dtype in {dtype, F32}:
                exactness = recognise.exactness_of(self.original, self.rotation, dtype, table_dtype)
                if exactness is not None:
                    self.exactness[dtype, table_dtype] = exactness

    def __call__(self, arguments: Tuple[Any, ...], keywords: Dict[str, Any]) -> Any:
        """The result of librope for tables that fit, and otherwise that of the function itself."""
        rotation = self.rotation
        given = {**dict(zip(rotation.parameters, arguments)), **keywords}
        operands: Dict[str, Any] = {role: given.get(name) for role, name in zip(rotation.roles, rotation.operands)}
        cos = operands.get("cos", operands.get(recognise.COMPLEX))
        sin = operands.get("sin", cos)
        if not (isinstance(cos, _Table) and isinstance(sin, _Table)):
            return self.original(*_plain(arguments), **_plain(keywords))
        layout: Any = dict(rotation.layouts).get(given.get("unsqueeze_dim", rotation.default_layout))
        q, k = [operands.get(role) for role in ("q", "k")]
        rows = cos.rows(rotation.columns)[0] if rotation.columns in cos.columns else None
        fits = (
            rows is not None and rotation.columns in sin.columns and layout is not None
            and all([given.get(name, value) is value for name, value in rotation.defaults])
            and self.fits(q, rows, layout) and (k is None or self.fits(k, rows, layout)))
        if cos.parity:
            return self.rotate_exactly(q, k, cos, sin, layout) if fits and self.is_exact(q, k, cos) else self.original(
                *_plain(arguments), **_plain(keywords))
        extra, heads = sin.extra, 1 if layout == "bhsd" else 2
        if fits:
            return self.rotate(q, k, cos, sin, layout, extra, heads)
        if not isinstance(extra, _Norms):
            result = self.original(*_plain(arguments), **_plain(keywords))
            return result if extra is None else (_scaled(result[0], extra, heads), *result[1:])
        if extra.come_after:
            q, k = self.original(*_plain(arguments), **_plain(keywords))
            return extra.q(q, heads), extra.k(k, heads)
        given.update({rotation.operands[0]: extra.q(q, heads), rotation.operands[1]: extra.k(k, heads)})
        return self.original(**_plain(given))

    def fits(self, x: Any, rows: torch.Tensor, layout: str) -> bool:
        width = 2 * rows.shape[-1]
        return (isinstance(x, torch.Tensor) and x.dim() == 4 and rows.shape[0] in (1, x.shape[0])
                and rows.shape[1] == x.shape[2 if layout == "bhsd" else 1] and x.device == rows.device
                and (width == x.shape[-1] or (self.rotation.is_partial and width < x.shape[-1])))

    def arguments(self, cos: _Table, sin: _Table, layout: Any) -> Any:
        kind = self.rotation.columns
        c, s = cos.rows(kind)[0], sin.rows(kind)[-1]
        return {"style": self.rotation.style, "out_style": self.rotation.out_style, "layout": layout,
                "rotary_dim": 2 * c.shape[-1], "cos": c, "sin": s, "table_rows": TableRows.BY_TOKEN}

    def rotate(self, q: Any, k: Any, cos: _Table, sin: _Table, layout: Any, extra: Any, heads: int) -> Any:
        arguments = self.arguments(cos, sin, layout)
        if extra is None:
            return apply_rotary(q, k, **arguments)
        if not isinstance(extra, _Norms):
            return apply_scaled_rotary(q, k, extra, **arguments)
        if extra.are_fused(q, k):
            return norm_rotary(q, k, **extra.arguments(q, k, heads, arguments))
        if extra.come_after:
            q, k = apply_rotary(q, k, **arguments)
            return extra.q(q, heads), extra.k(k, heads)
        return apply_rotary(extra.q(q, heads), extra.k(k, heads), **arguments)

    def is_exact(self, q: Any, k: Any, cos: _Table) -> bool:
        exactness = self.exactness.get((q.dtype, cos.values.dtype))
        return (exactness is not None and (k is None or k.dtype == q.dtype)
                and (exactness.has_gradients or not _requires_grad(q, k)))

    def rotate_exactly(self, q: Any, k: Any, cos: _Table, sin: _Table, layout: Any) -> Any:
        exactness = self.exactness[q.dtype, cos.values.dtype]
        if exactness.strides == "contiguous" and _requires_grad(q, k):
            q, k = _ContiguousGradient.apply(q), None if k is None else _ContiguousGradient.apply(k)
        arguments = self.arguments(cos, sin, layout)
        rounding = RotationRounding.EACH if exactness.rounding else 0
        return apply_rotary(q, k, rotation_rounding=rounding, **arguments)


def _scaled(q: torch.Tensor, factor: torch.Tensor, heads: int) -> torch.Tensor:
    return q * factor.unsqueeze(heads).unsqueeze(3).to(q.dtype)


_functions: List[_Function] = []


def _names_in(method: Any) -> Tuple[str, ...]:
    names: Tuple[str, ...] = getattr(getattr(method, "__code__", None), "co_names", ())
    return names


def _reader_of(method: Any) -> Iterator[Tuple[Dict[str, Any], str, Any]]:
    """The functions that may rotate which a method finds in its globals, and their names there."""
    while method is not None:
        for name in _names_in(method):
            function = method.__globals__.get(name)
            if isinstance(function, types.FunctionType) and any(part in name.lower() for part in ("rot", "rope")):
                yield method.__globals__, name, function
        method = getattr(method, "__wrapped__", None)


def _package_of(name: Any) -> str:
    return str(name).partition(".")[0]


def _install(place: Dict[str, Any], name: str, function: Any) -> _Function:
    """Puts librope's function into the place of a global function, which all models of the family call. It stays: it
    passes others than patched models on, and while one of them is compiled, its globals must not change."""
    with recognise.lock:
        function = place.get(name, function)
        known: Optional[_Function] = getattr(function, "_librope_function", None)
        if known is not None:
            return known
        _require_own_code(function, place)
        ours = _Function(function)

        def rotate(*arguments: Any, **keywords: Any) -> Any:
            return ours(arguments, keywords)

        setattr(rotate, "__wrapped__", function)
        setattr(rotate, "_librope_function", ours)
        place[name] = rotate
        _functions.append(ours)
        return ours


def _require_own_code(function: Any, place: Dict[str, Any]) -> None:
    """Refuses a function that another program has replaced by one that calls it."""
    while True:
        package = _package_of(getattr(function, "__globals__", {}).get("__name__"))
        require(package in ("transformers", "torch", "librope", _package_of(place.get("__name__"))),
                "another program has replaced it")
        if not hasattr(function, "__wrapped__"):
            return
        function = function.__wrapped__


# ---- Temperature ----------------------------------------------------------------------------------------------------


class _Multiplied:
    """Replaces the positions, and the factors made of them, if q has already been multiplied by these."""

    def to(self, dtype: torch.dtype) -> _Multiplied:
        return self

    @classmethod
    def __torch_function__(
            cls, function: Any, types: Any, arguments: Tuple[Any, ...] = (), keywords: Any = None) -> Any:
        """q times this is q. torch.compile can trace this function, unlike __rmul__."""
        return arguments[0] if function.__name__ in ("mul", "__mul__") else NotImplemented


def _make_temperature(original: Callable[..., Any]) -> Callable[..., Any]:
    def temperature(positions: Any, *arguments: Any, **keywords: Any) -> Any:
        return positions if isinstance(positions, _Multiplied) else original(positions, *arguments, **keywords)

    setattr(temperature, "__wrapped__", original)
    return temperature


# ---- Norms of q and k -----------------------------------------------------------------------------------------------


class _Attention(NamedTuple):
    """The work that a patched attention leaves to the rotation: norms, or the factor of q that a function makes."""

    norm_class: Any = None
    eps: str = ""
    norm: Tuple[Tuple[str, Any], ...] = ()
    temperature: str = ""
    values: Tuple[Tuple[str, Any], ...] = ()  # attributes that must have these values


class _Norm:
    """The norm of q or k of one attention, on tensors in the order of axes that the rotation uses."""

    __slots__ = ("module", "cls", "is_of_token")

    def __init__(self, module: Any, cls: Any, is_of_token: bool) -> None:
        self.module = module
        self.cls = cls
        self.is_of_token = is_of_token

    def __call__(self, x: Any, heads: int) -> torch.Tensor:
        """Computes the norm as the model does: on [B, S, H, D], or on [B, S, H * D]."""
        x = x.transpose(heads, 2)
        y: torch.Tensor = (
            self.module(x.flatten(2)).unflatten(2, x.shape[2:]) if self.is_of_token else self.module(x))
        return y.transpose(heads, 2)

    def is_fused(self, x: torch.Tensor) -> bool:
        module = self.module
        weight: Optional[torch.Tensor] = getattr(module, "weight", None)
        return (
            type(module) is self.cls and not _has_hooks(module) and (weight is None or weight.dtype == x.dtype)
            and not _is_transformed())

    def weight(self, x: torch.Tensor, heads: int) -> Optional[torch.Tensor]:
        weight: Optional[torch.Tensor] = getattr(self.module, "weight", None)
        if weight is None or not self.is_of_token:
            return weight
        if weight.numel() != x.shape[heads] * x.shape[3]:
            raise ValueError(
                f"{self.cls.__name__} is over all heads of a token, {weight.numel()} channels, of which this rank has "
                f"{x.shape[heads] * x.shape[3]}: unpatch tensor-parallel models")
        return weight.view(x.shape[heads], x.shape[3])


class _Norms:
    """The norms that a patched attention leaves to the rotation."""

    __slots__ = ("q", "k", "eps", "config")

    def __init__(self, attention: torch.nn.Module, what: _Attention) -> None:
        self.eps, self.config = what.eps, dict(what.norm)
        is_of_token = self.config.get("norm_extent") == NormExtent.TOKEN
        q_norm, k_norm = _norms_of(attention)
        self.q = _Norm(q_norm, what.norm_class, is_of_token)
        self.k = _Norm(k_norm, what.norm_class, is_of_token)

    @property
    def come_after(self) -> bool:
        return self.config.get("norm_order") == NormOrder.AFTER

    def eps_of(self, norm: _Norm) -> float:
        eps: float = getattr(norm.module, self.eps)
        return eps

    def are_fused(self, q: torch.Tensor, k: torch.Tensor) -> bool:
        return self.q.is_fused(q) and self.k.is_fused(k) and self.eps_of(self.q) == self.eps_of(self.k)

    def arguments(self, q: torch.Tensor, k: torch.Tensor, heads: int, rotation: TorchRotation) -> TorchNorm:
        """The arguments of norm_rotary."""
        arguments: Any = dict(
            self.config, norm_eps=self.eps_of(self.q), q_weight=self.q.weight(q, heads),
            k_weight=self.k.weight(k, heads), **rotation)
        result: TorchNorm = arguments
        return result


def _norms_of(attention: Any) -> Tuple[Any, Any]:
    """The norms of q and of k, or None for one that does not exist."""
    if hasattr(attention, "qk_norm"):
        return attention.qk_norm, attention.qk_norm
    return getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)


class _WithoutNorms:
    """An attention with norms that return their input."""

    def __init__(self, attention: torch.nn.Module) -> None:
        self._attention = attention

    @staticmethod
    def q_norm(x: torch.Tensor) -> torch.Tensor:
        return x

    k_norm = qk_norm = q_norm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._attention, name)


def _sin_in(x: Any) -> Optional[_Table]:
    """The last of the tables that an argument is or has."""
    if isinstance(x, (tuple, list)):
        return _sin_in(x[-1]) if x else None
    return x if isinstance(x, _Table) else None


def _with_extra(x: Any, extra: Any) -> Any:
    if _sin_in(x) is None:
        return x
    return x.with_extra(extra) if isinstance(x, _Table) else type(x)([_with_extra(y, extra) for y in x])


def _attention_forward(original: Callable[..., Any], plan: _Plan, self: Any, *arguments: Any, **keywords: Any) -> Any:
    what: _Attention = plan.what
    sin = next((x for x in map(_sin_in, (*arguments, *keywords.values())) if x is not None), None)
    if sin is None or sin.parity or not _has_values(self, what.values):
        return original(self, *arguments, **keywords)
    extra: Any
    if what.temperature:
        extra = _factor_of_q(original, what.temperature, self, sin, keywords.get("position_ids"))
        if extra is not None:
            keywords["position_ids"] = _Multiplied()
    else:
        extra = None if None in _norms_of(self) else _Norms(self, what)
    if extra is None:
        return original(self, *arguments, **keywords)
    return original(
        _WithoutNorms(self) if isinstance(extra, _Norms) else self, *[_with_extra(x, extra) for x in arguments],
        **{name: _with_extra(x, extra) for name, x in keywords.items()})


def _factor_of_q(original: Any, temperature: str, self: Any, sin: _Table, positions: Any) -> Optional[torch.Tensor]:
    """The factor of q at each position, [B, S], computed once for all layers."""
    recipe = self.config.rope_parameters
    arguments = recipe.get("llama_4_scaling_beta"), recipe.get("original_max_position_embeddings")
    if None in arguments or not isinstance(positions, torch.Tensor):
        return None
    known = sin.factors.get(arguments)
    if known is None or known[0] is not positions:
        known = positions, original.__globals__[temperature](positions, *arguments)[:, 0, :, 0]
        sin.factors[arguments] = known
    factor: torch.Tensor = known[1]
    return factor


_TEMPERATURE = "get_llama_4_attn_scale"


def _attention_of(module: Any) -> _Attention:
    """The part of a module's forward that the rotation can do. Raises Unrecognised."""
    forward = recognise.own_class(module).forward
    norms = _norms_of(module)
    if None not in norms:
        known = [recognise.norm_of(norm) for norm in norms]
        require(known[0] == known[1], "its norms of q and k differ")
        candidates = [_Attention(known[0].cls, known[0].eps, (*known[0].arguments, *further)) for further in (
            (), (("norm_extent", NormExtent.TOKEN),), (("norm_order", NormOrder.AFTER),))]
    else:
        candidates = [_Attention(temperature=_TEMPERATURE)]
        place = forward.__globals__
        if not hasattr(place[_TEMPERATURE], "_librope_is_ours"):
            ours = _make_temperature(place[_TEMPERATURE])
            setattr(ours, "_librope_is_ours", True)
            place[_TEMPERATURE] = ours
    functions = [function._librope_function for _, _, function in _reader_of(forward)
                 if hasattr(function, "_librope_function")]
    require(bool(functions), "its rotation is not recognised")

    def run(facts: recognise.Facts) -> _Attention:
        why = "it computes something else with its norms or its temperature"
        for what in candidates:
            try:
                if all(_is_as_before(module, what, functions, facts, *case) for case in (
                        (7, True, 2), (1, False, 1), (64, False, 1))):
                    return what._replace(values=facts.own())
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
        raise Unrecognised(why)

    key = recognise.own_class(module), recognise.fingerprint(forward), tuple(candidates)
    result: _Attention = recognise.known(key, module, run)
    return result


def _is_as_before(
        module: Any, what: _Attention, functions: List[_Function], facts: recognise.Facts, length: int, training: bool,
        num_tables: int) -> bool:
    """Whether forward on a skeleton has the results and gradients that it has if its norms are left to the rotation."""
    forward = recognise.own_class(module).forward
    rotation = functions[0].rotation
    widths = [getattr(module, name) for name in ("qk_rope_head_dim", "head_dim") if hasattr(module, name)][:1]
    require(bool(widths), "the width of its heads is not known")
    if rotation.is_partial and widths[0] % 4 == 0:
        widths.append(widths[0] // 2)
    for width in widths:
        outcomes = []
        for is_ours in (False, True):
            with recognise.sandbox() as generator:
                skeleton = recognise.skeleton(
                    module, facts, generator, is_wild=False, _attn_implementation="eager", attention_dropout=0.0)
                vars(skeleton).update(training=training, attention_dropout=0.0)
                angles = torch.rand((num_tables, length, width // 2), generator=generator, dtype=F64) * 6
                positions = torch.randint(0, 100000, (num_tables, length), generator=generator)
                tables: Any = recognise.tables_with(rotation.columns, angles.cos(), angles.sin())
                if is_ours:
                    tables = tuple([_Table(x, x.dtype, (rotation.columns,), False) for x in tables])
                x = torch.randn((2 if length < 64 else 1, length, 8), generator=generator, dtype=F64)
                given = {"position_embeddings": tables if len(tables) > 1 else tables[0], "position_ids": positions,
                         "attention_mask": None}
                call = (lambda *a, **k: _attention_forward(forward, _Plan("attention", "forward", False, False, what),
                                                           *a, **k)) if is_ours else forward
                with torch.enable_grad():
                    result = call(skeleton, x, **given)
                outcomes.append(_outcome(skeleton, result, generator))
        (inputs, grads), (ours, our_grads) = outcomes
        if not all(map(_are_near, (*ours, *our_grads), (*inputs, *grads))):
            return False
    return True


def _outcome(skeleton: Any, result: Any, generator: torch.Generator) -> Any:
    """The inputs of the projections, and the gradients with respect to their outputs."""
    result = result[0] if isinstance(result, tuple) else result
    calls = [call for child in skeleton._modules.values() if isinstance(child, recognise.Stub) for call in child.calls]
    last, = [x for x, y in calls if y is result]
    outputs = [y for _, y in calls if y is not result]
    grad = torch.randn(last.shape, generator=generator.manual_seed(1), dtype=F64)
    grads: Any = torch.autograd.grad(last, outputs, grad, allow_unused=True)
    return [x.detach() for x, _ in calls], [torch.zeros(()) if x is None else x for x in grads]


def _are_near(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and bool((a - b).abs().max() <= 1e-5 * b.abs().max() + 1e-12)


def _is_split(parameter: Any) -> bool:
    """Whether the parameter is a DTensor of a mesh with tensor parallelism. Parameters of FSDP are whole when the
    module runs."""
    mesh = getattr(parameter, "device_mesh", None)
    return mesh is not None and "tp" in (mesh.mesh_dim_names or ())


def _refuse_tensor_parallel(target: torch.nn.Module, module: torch.nn.Module, plan: _Plan) -> None:
    """Refuses models with norms over all heads of a token: these need all heads."""
    if plan.kind == "attention" and dict(plan.what.norm).get("norm_extent") == NormExtent.TOKEN and (
            (getattr(target, "_tp_size", None) or 1) > 1 or any(map(_is_split, module.parameters()))):
        raise ValueError(
            f"{type(module).__name__} norms q and k over all heads of a token, and in a tensor-parallel model a "
            "rank may have a part of them: such models are not patched")


# ---- Gated MLPs -----------------------------------------------------------------------------------------------------


def _has_values(module: Any, values: Tuple[Tuple[str, Any], ...]) -> bool:
    return all([getattr(module, name) == value for name, value in values])


def _is_as_known(child: Any, state: Any) -> bool:
    return type(child) is state[0] and not _has_hooks(child) and _has_values(child, state[1])


def _gate_forward(original: Callable[..., Any], plan: _Plan, self: Any, *arguments: Any, **keywords: Any) -> Any:
    what: recognise.Gate = plan.what
    if (keywords or len(arguments) != 1 or not _has_values(self, what.values)
            or not all([_is_as_known(getattr(self, name), state) for name, state in what.children])):
        return original(self, *arguments, **keywords)
    x, = arguments
    if what.gate is not None:
        x = getattr(self, what.gate)(x)
    gate, up = x.chunk(2, dim=-1) if what.up is None else (x, getattr(self, what.up)(arguments[0]))
    y = swiglu(up, gate) if what.is_swapped else swiglu(gate, up)
    return y if what.down is None else getattr(self, what.down)(y)


# ---- Patching -------------------------------------------------------------------------------------------------------


Target = TypeVar("Target", bound=Union[torch.nn.Module, types.ModuleType])


class _Kept(Unrecognised):
    """An attention rotates through librope, but has norms or a temperature of its own."""


class _Plan(NamedTuple):
    """How a module is patched."""

    kind: str
    method: str
    parity: bool
    is_of_module: bool  # by patch(modeling)
    what: Any


_FORWARDS: Dict[str, Callable[..., Any]] = {
    "tables": _tables_forward, "attention": _attention_forward, "gate": _gate_forward, "experts": _gate_forward}


def _classes_in(modeling: Any) -> List[Any]:
    return [cls for cls in vars(modeling).values()
            if isinstance(cls, type) and issubclass(cls, torch.nn.Module) and cls.__module__ == modeling.__name__]


def _rotations_of(cls: Any) -> Tuple[List[_Function], List[str]]:
    """The functions by which a class rotates, which are replaced, and why others are not."""
    functions, reasons = [], []
    for place, name, function in _reader_of(getattr(cls, "forward", None)):
        try:
            functions.append(_install(place, name, function))
        except Unrecognised as error:
            reasons.append(f"{name}: {error}")
    return functions, reasons


def _rotations_in(classes: Iterable[Any]) -> List[_Function]:
    return [function for cls in classes for function in _rotations_of(cls)[0]]


def _rotations_near(cls: Any) -> List[_Function]:
    """The functions of all classes of a class's module."""
    names = {base.__module__ for base in cls.__mro__[:cls.__mro__.index(torch.nn.Module)]}
    return _rotations_in([other for name in names & set(sys.modules) for other in _classes_in(sys.modules[name])])


def _plan_of(module: Any, parity: bool, others: List[_Function], is_of_module: bool = False) -> Optional[_Plan]:
    """How to patch a module, or None if it neither rotates nor gates. Raises Unrecognised.
    others: functions that rotate by what modules of other files make"""
    cls = recognise.own_class(module)

    def plan(kind: str, what: Any, method: str = "forward") -> _Plan:
        return _Plan(kind, method, parity, is_of_module, what)

    if any("inv_freq" in name for name in module._buffers) and not module._parameters:
        layer_types = list(module.rope_type) if isinstance(getattr(module, "rope_type", None), dict) else [None]
        tables = {layer_type: recognise.tables_of(module, layer_type) for layer_type in layer_types}
        functions = [*_rotations_near(cls), *others]
        if parity:
            for function in functions:
                function.prepare_parity()
            functions = [function for function in functions if function.exactness]
        columns = {kind for what in tables.values() for kind in what.columns}
        require(any(function.rotation.columns in columns for function in functions),
                "no function is recognised that rotates by its cos and sin" + (" in the same bits" if parity else ""))
        return plan("tables", tables)
    if parity:
        return None
    if hasattr(cls, "_apply_gate"):
        return plan("experts", recognise.gate_of(module, "_apply_gate"), "_apply_gate")
    if any(name.startswith("gate_up_proj") for name in module._parameters):
        raise Unrecognised("its projections are parameters")
    functions, reasons = _rotations_of(cls)
    require(not reasons, "; ".join(reasons))
    if functions:
        if None in _norms_of(module) and _TEMPERATURE not in _names_in(cls.forward):
            return None
        try:
            return plan("attention", _attention_of(module))
        except Unrecognised as error:
            raise _Kept(str(error)) from None
    if recognise.has_gate(module):
        return plan("gate", recognise.gate_of(module))
    return None


class _Patched:
    """The first base of the class of a patched module, which copies and replicas of the module have too. That class has
    the name of the module's own one. It is pickled as that one and the way in which the module was patched."""

    _librope_original: Any = None  # the module's own class

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced: Any = super().__reduce_ex__(protocol)
        plan = self.__dict__.get("_librope_method")
        if type(self) is not reduced[1][0]:  # another program's way
            return reduced
        members = {**reduced[2], "_librope_method": None if plan is None else plan[:4]}
        return (_new, (self._librope_original, None if plan is None else plan.kind), members, *reduced[3:])

    def __setstate__(self, state: Any) -> None:
        """Recognises the module again: its code may be another version's."""
        given = state.pop("_librope_method", None)
        super().__setstate__(state)  # type: ignore[misc]
        own = self._librope_original
        self.__class__ = own
        if given is not None:
            try:
                plan = _plan_of(self, given[2], _functions, given[3])
            except Unrecognised:
                plan = None
            if plan is not None:
                _swap_class(self, plan)


def _new(cls: Any, kind: Optional[str]) -> Any:
    """An object of a patched class."""
    method = "_apply_gate" if kind == "experts" else "forward"
    return cls.__new__(cls if kind is None else _patched_class(cls, kind, method))


_patched_classes: Dict[Tuple[Any, str], Any] = {}


def _patched_class(cls: Any, kind: str, name: str) -> Any:
    known = _patched_classes.get((cls, kind))
    if known is None:
        original, ours = getattr(cls, name), _FORWARDS[kind]

        @functools.wraps(original)
        def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
            # A module that was unpatched can still be here: by way of a hook, or if FSDP has made another class of it.
            plan = getattr(self, "_librope_method", None)
            if plan is None:
                return original(self, *arguments, **keywords)
            return ours(original, plan, self, *arguments, **keywords)

        known = type(cls.__name__, (_Patched, cls), {
            "__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__,
            "_librope_original": cls, name: method})
        known = _patched_classes.setdefault((cls, kind), known)
    return known


def _swap_class(module: Any, plan: _Plan) -> None:
    cls = _patched_class(type(module), plan.kind, plan.method)
    if plan.method in module.__dict__ or "_old_forward" in module.__dict__:
        require(plan.method == "forward" and _rebind(module, cls), "it has a forward of its own")
    module.__dict__["_librope_method"] = plan
    module.__class__ = cls


def _rebind(module: torch.nn.Module, cls: Any) -> bool:
    """Lets a hook of accelerate, and what one has left behind, call the class's forward. Returns whether the module has
    no other forward of its own."""
    functions = [vars(base)["forward"] for base in type(module).__mro__ if "forward" in vars(base)]
    places = [place for place in ("_old_forward", "forward") if place in module.__dict__]
    for place in places:
        bound = module.__dict__[place]
        if isinstance(bound, types.MethodType) and bound.__self__ is module and bound.__func__ in functions:
            module.__dict__[place] = types.MethodType(cls.forward, module)
        elif place == "_old_forward" or "_old_forward" not in places:
            return False
    return True


def _unpatch_instance(module: Any) -> None:
    cls: Any = type(module)
    if "_librope_original" in cls.__dict__:
        own = cls._librope_original
        _rebind(module, own)
        module.__class__ = own
    module.__dict__.pop("_librope_method", None)


class _Seen:
    """The findings for the modules of a target: for each class and text a number of modules."""

    def __init__(self) -> None:
        self.replaced: Dict[Tuple[str, str], int] = {}
        self.kept: Dict[Tuple[str, str], int] = {}
        self.left: Dict[Tuple[str, str], int] = {}

    def add(self, rows: Dict[Tuple[str, str], int], module: Any, text: str) -> None:
        row = recognise.own_class(module).__name__, text
        rows[row] = rows.get(row, 0) + 1

    def add_rest(self, modules: List[Any]) -> None:
        """Adds modules that rotate by cos and sin that nothing replaced makes."""
        plans = [module.__dict__.get("_librope_method") for module in modules]
        if any(plan is not None and plan.kind == "tables" for plan in plans):
            return
        known = {name for name, _ in self.left}
        for module in modules:
            cls = recognise.own_class(module)
            if cls.__name__ not in known and any(True for _ in _reader_of(getattr(cls, "forward", None))):
                self.add(self.left, module, "its cos and sin are made by what is not replaced")

    def __str__(self) -> str:
        rows = [(name, str(count), state, text) for state, group in (
            ("replaced", self.replaced), ("not fused", self.kept), ("left", self.left))
            for (name, text), count in sorted(group.items())]
        rows.insert(0, ("module", "number", "", ""))
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        return "\n".join("  ".join(x.ljust(width) for x, width in zip(row, (*widths, 0))).rstrip() for row in rows)


def _describe(plan: _Plan) -> str:
    if plan.kind == "tables":
        return "its cos and sin rotate q and k through librope" + (", in the same bits" if plan.parity else "")
    if plan.kind != "attention":
        return "librope gates"
    if plan.what.temperature:
        return "the factor of q is part of the rotation"
    return "its norms of q and k are part of the rotation"


def _patch_module(module: Any, parity: bool, others: List[_Function], seen: _Seen, target: Any = None) -> None:
    """target: None for patch(modeling)"""
    plan: Optional[_Plan] = module.__dict__.get("_librope_method")
    try:
        if plan is None:
            plan = _plan_of(module, parity, others, target is None)
            if plan is not None:
                if target is not None:
                    _refuse_tensor_parallel(target, module, plan)
                _swap_class(module, plan)
        elif plan.is_of_module and target is not None:
            module.__dict__["_librope_method"] = plan._replace(is_of_module=False)
    except Unrecognised as error:
        seen.add(seen.kept if isinstance(error, _Kept) else seen.left, module, str(error))
    else:
        if plan is not None:
            seen.add(seen.replaced, module, _describe(plan))


def patch(
        target: Target, *, parity: bool = False, report: Optional[Callable[[str], Any]] = None,
        strict: bool = False) -> Target:
    """Lets a model rotate and gate through librope, and returns the model.

    target: a model or any torch.nn.Module of one, patched in place after its weights are loaded; or a modeling module
            such as transformers.models.llama.modeling_llama, for all models of the family, also those made later.
            Its norms of q and k become part of the rotation's launch; their gradients have no gradients
    parity: only the rotation is changed: it uses the model's own cos and sin and has the bits of the model's code
    report: is called with the text of report(target), e.g. print
    strict: raises ValueError if something that rotates or gates is left as it is
    Raises ValueError if there is nothing to patch, and for tensor-parallel models with norms over all heads. Patching
    twice is harmless: the first call counts.
    """
    seen = _Seen()
    try:
        if isinstance(target, types.ModuleType):
            _patch_modeling(target, parity, seen)
        else:
            modules = list(target.modules())
            others = _rotations_in({recognise.own_class(module) for module in modules})
            for module in modules:
                _patch_module(module, parity, others, seen, target)
            seen.add_rest(modules)
            if not seen.replaced:
                raise ValueError(
                    f"nothing to patch in {type(target).__name__}: no code of it is recognised as a rotation or gating "
                    f"that librope has\n{seen}")
        if strict and seen.left:
            raise ValueError(f"{getattr(target, '__name__', type(target).__name__)} is not patched as a whole:\n{seen}")
    except BaseException:
        unpatch(target)  # patches all of the model or nothing
        raise
    if report is not None:
        report(str(seen))
    return target


def report(target: torch.nn.Module) -> str:
    """A table that can be printed: for each class of modules how many patch has replaced, by what, and why others that
    rotate or gate were left."""
    seen = _Seen()
    modules = list(target.modules())
    plans = [module.__dict__.get("_librope_method") for module in modules]
    parity = any(plan is not None and plan.parity for plan in plans)
    others = _rotations_in({recognise.own_class(module) for module in modules})
    for module, plan in zip(modules, plans):
        if plan is not None:
            seen.add(seen.replaced, module, _describe(plan))
            continue
        try:
            if _plan_of(module, parity, others) is not None:
                why = "it has a forward of its own" if "forward" in module.__dict__ else "it is not patched"
                seen.add(seen.left, module, why)
        except Unrecognised as error:
            seen.add(seen.kept if isinstance(error, _Kept) else seen.left, module, str(error))
    seen.add_rest(modules)
    return str(seen)


def unpatch(target: Target) -> Target:
    """Undoes patch, and returns the target."""
    if isinstance(target, types.ModuleType):
        _unpatch_modeling(target)
    else:
        for module in target.modules():
            _unpatch_instance(module)
    return target


# ---- All models of a family -----------------------------------------------------------------------------------------


def _patch_modeling(modeling: types.ModuleType, parity: bool, seen: _Seen) -> None:
    """Patches the modules of its classes, and lets __init__ patch later ones."""
    classes = _classes_in(modeling)
    if not _rotations_in(classes):
        raise ValueError(f"nothing to patch in {modeling.__name__}: no function of it is recognised as a rotation")
    for cls in classes:
        if "_librope_init" not in cls.__dict__:
            setattr(cls, "_librope_init", cls.__dict__.get("__init__"))
            setattr(cls, "__init__", _make_init(cls, cls.__init__, parity))
    for module in _modules_of(classes):
        _patch_module(module, parity, _functions, seen)


def _modules_of(classes: List[Any]) -> List[Any]:
    """All modules that exist of the classes."""
    of = set(classes)
    return [x for x in gc.get_objects() if of.intersection(type(x).__mro__)]


def _make_init(cls: Any, original: Any, parity: bool) -> Any:
    @functools.wraps(original)
    def __init__(self: Any, *arguments: Any, **keywords: Any) -> None:
        original(self, *arguments, **keywords)
        if next(base for base in type(self).__mro__ if "_librope_init" in base.__dict__) is cls:
            _patch_module(self, parity, _functions, _Seen())

    return __init__


def _unpatch_modeling(modeling: types.ModuleType) -> None:
    classes = _classes_in(modeling)
    for cls in classes:
        if "_librope_init" in cls.__dict__:
            if cls._librope_init is None:
                del cls.__init__
            else:
                cls.__init__ = cls._librope_init
            del cls._librope_init
    for module in _modules_of(classes):
        plan = vars(module).get("_librope_method")
        if plan is not None and plan.is_of_module:
            _unpatch_instance(module)
