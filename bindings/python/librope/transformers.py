# SPDX-License-Identifier: Apache-2.0
# transformers.py - Hugging Face models on librope
"""patch(model) lets a model's attention rotate, and its gated MLPs gate, through librope.torch; unpatch(model) undoes
it.

    model = AutoModelForCausalLM.from_pretrained(...)
    librope.transformers.patch(model)

The models are those of transformers' own code, with its own methods: Llama, the text of Llama-4, Qwen2, Qwen3, Mistral,
Ministral 3, Mistral 4, Gemma 1 to 3, Phi-3, GPT-NeoX, DeepSeek-V3, OLMo-2 and Cohere. Angles are computed from the
frequencies that the model's rotary embedding holds, instead of the cos and sin tables that it rounds to the model's
dtype. An MLP is changed if its activation is SiLU: Gemma gates with GELU, and GPT-NeoX has no gate. The routed experts
of DeepSeek-V3 and Mistral 4 are changed in the "grouped_mm" and "batched_mm" implementations, not in the "eager" one;
those of Llama-4 are not changed.

The norms of q and k of Qwen3, Gemma 3, OLMo-2, Cohere and Llama-4 are part of the rotation's launch in inference and in
training, forward and backward, if their weights have the dtype of q and they have no hooks. Otherwise, as under
autocast, in forward mode and in torch.func's transforms, the model's own norms run. Their gradients have no gradients:
if you need these, unpatch the model. Norms of OLMo-2 are over all heads of a token. Its tensor-parallel models, in
which a rank may have a part of the heads, are refused.

The temperature of Ministral 3, a factor of q that grows with the position, is part of the rotation's launch in
inference and in training, and computed once for all layers. Llama-4 and Mistral 4 keep their own: Llama-4 has it on
layers that do not rotate, and Mistral 4 also multiplies channels that do not rotate.

patch(model, parity=True) changes the rotation alone, and no bit of its result: from the model's own cos and sin it
rounds the values that the model rounds, forward and backward. Logits are then those of the model. Llama-4, which
multiplies complex numbers, is refused.
"""
from __future__ import annotations

import functools
import sys
import threading
import types
from typing import Any, Callable, Dict, List, Optional, Tuple, TypeVar, Union

from ._library import refuse_other_interpreters

refuse_other_interpreters(__name__)
import torch  # noqa: E402

from transformers.activations import SiLUActivation  # noqa: E402

from ._enums import NormExtent, NormOrder, NormRounding, NormType, RotationRounding, Style, TableRows
from ._hf_config import from_hf_config
from ._rope import as_list
from ._torch_operators import is_transformed
from ._torch_scaled import apply_scaled_rotary
from ._types import AnyLayout, TorchNorm, TorchRotation
from .torch import _is_transformed  # pyright: ignore[reportPrivateUsage]  # private to the package
from .torch import apply_rotary, norm_rotary, swiglu

__all__ = ["from_hf_config", "patch", "unpatch"]

# modeling_<name>: the prefix of its classes, and the functions by which its attention rotates, with the styles in which
# they read and write pairs
_HALF = {"apply_rotary_pos_emb": (Style.HALF, Style.HALF)}
_HALF_OR_INTERLEAVED = {**_HALF, "apply_rotary_pos_emb_interleave": (Style.INTERLEAVED, Style.HALF)}
_FAMILIES = {
    "modeling_cohere": ("Cohere", {"apply_rotary_pos_emb": (Style.INTERLEAVED, Style.INTERLEAVED)}),
    "modeling_deepseek_v3": ("DeepseekV3", _HALF_OR_INTERLEAVED),
    "modeling_gemma": ("Gemma", _HALF),
    "modeling_gemma2": ("Gemma2", _HALF),
    "modeling_gemma3": ("Gemma3", _HALF),
    "modeling_gpt_neox": ("GPTNeoX", _HALF),
    "modeling_llama": ("Llama", _HALF),
    "modeling_llama4": ("Llama4Text", {"apply_rotary_emb": (Style.INTERLEAVED, Style.INTERLEAVED)}),
    "modeling_ministral3": ("Ministral3", _HALF),
    "modeling_mistral": ("Mistral", _HALF),
    "modeling_mistral4": ("Mistral4", _HALF_OR_INTERLEAVED),
    "modeling_olmo2": ("Olmo2", _HALF),
    "modeling_phi3": ("Phi3", _HALF),
    "modeling_qwen2": ("Qwen2", _HALF),
    "modeling_qwen3": ("Qwen3", _HALF),
}

# modeling_<name>: the class of its attention's q_norm and k_norm, or qk_norm for both, and the arguments of that norm
_NORMS: Dict[str, Tuple[str, Dict[str, Any]]] = {
    "modeling_cohere": ("CohereLayerNorm", dict(norm=NormType.LAYER, norm_rounding=NormRounding.AFTER_WEIGHT)),
    "modeling_gemma3": ("Gemma3RMSNorm", dict(
        norm=NormType.RMS, norm_rounding=NormRounding.AFTER_WEIGHT, norm_weight_offset=1.0)),
    "modeling_llama4": ("Llama4TextL2Norm", dict(norm=NormType.RMS, norm_order=NormOrder.AFTER)),
    "modeling_olmo2": ("Olmo2RMSNorm", dict(
        norm=NormType.RMS, norm_rounding=NormRounding.AFTER_WEIGHT, norm_extent=NormExtent.TOKEN)),
    "modeling_qwen3": ("Qwen3RMSNorm", dict(
        norm=NormType.RMS, norm_rounding=NormRounding.BEFORE_WEIGHT | NormRounding.AFTER_WEIGHT)),
}

# modeling_<name>: the function with which its attention makes a factor of q for each position
_TEMPERATURES = {"modeling_ministral3": "get_llama_4_attn_scale"}


def _name_of(modeling: str) -> str:
    return modeling.rpartition(".")[2]


def _is_of_transformers(modeling: str) -> bool:
    """Whether the name is that of a model of transformers. The code of a checkpoint has files of the same names."""
    name = _name_of(modeling)
    return name in _FAMILIES and modeling == f"transformers.models.{name[len('modeling_'):]}.{name}"


def _is_own_code(function: Any) -> bool:
    """Whether the function and its decorators are those of transformers and torch, not of another program."""
    while True:
        package = getattr(function, "__globals__", {}).get("__name__", "").partition(".")[0]
        if package not in ("transformers", "torch", "librope"):
            return False
        if not hasattr(function, "__wrapped__"):
            return True
        function = function.__wrapped__


def _has_hooks(module: Any) -> bool:
    """Whether a call of the module does more, or another thing, than its class says."""
    return bool("forward" in module.__dict__ or module._forward_hooks or module._forward_pre_hooks
                or module._backward_hooks or module._backward_pre_hooks)


def _temperature_in(modeling: types.ModuleType) -> Optional[str]:
    """The name of the function, or None if there is none, as in some versions of transformers."""
    name = _TEMPERATURES.get(_name_of(modeling.__name__), "")
    return name if hasattr(modeling, name) else None


# modeling_<name> that computes the rotation in fp32 and rounds once, whatever the dtype of cos and sin
_ROUNDS_ONCE = ("modeling_cohere",)


# ---- Rotation -------------------------------------------------------------------------------------------------------


class _Frequencies:
    """A patched rotary embedding returns this instead of sin, and the positions instead of cos. If the model has one
    complex table or a temperature, it returns a _Complex or a _Scaled with both."""

    __slots__ = ("buffer", "version", "inv_freq", "attention_scale")

    def __init__(self, buffer: torch.Tensor, attention_scale: float) -> None:
        self.buffer = buffer
        self.version = _version_of(buffer)
        self.inv_freq: Tuple[float, ...] = tuple(as_list(buffer))
        self.attention_scale = attention_scale


class _Complex:
    """Replaces a complex table: the positions, and the object that other models have instead of sin."""

    __slots__ = ("pair",)

    def __init__(self, positions: torch.Tensor, given: Union[_Frequencies, _Norms]) -> None:
        self.pair = positions, given

    def to(self, *arguments: Any, **keywords: Any) -> _Complex:
        positions, given = self.pair
        return _Complex(positions.to(*arguments, **keywords), given)


class _Scaled:
    """Replaces sin: the frequencies, and the factor of q at each position, by which the rotation of a patched attention
    multiplies."""

    __slots__ = ("frequencies", "q_factor", "is_fused")

    def __init__(self, frequencies: _Frequencies, q_factor: torch.Tensor, is_fused: bool) -> None:
        self.frequencies = frequencies
        self.q_factor = q_factor
        self.is_fused = is_fused

    def to(self, *arguments: Any, **keywords: Any) -> _Scaled:  # accelerate calls it
        return _Scaled(self.frequencies, self.q_factor.to(*arguments, **keywords), self.is_fused)


class _Exact:
    """Replaces sin: the model's own sin. With it and the model's cos a rotation has the model's roundings."""

    __slots__ = ("sin", "rounds_once")

    def __init__(self, sin: torch.Tensor, rounds_once: bool) -> None:
        self.sin = sin
        self.rounds_once = rounds_once

    def to(self, *arguments: Any, **keywords: Any) -> _Exact:  # accelerate calls it
        return _Exact(self.sin.to(*arguments, **keywords), self.rounds_once)


def _version_of(buffer: torch.Tensor) -> Optional[int]:
    """A number that grows with each change in place. Inference tensors have none."""
    return None if buffer.is_inference() else buffer._version


_is_tracing: Callable[[], bool] = getattr(torch.jit, "is_tracing")  # it is public, but not for type checkers


def _is_current(known: _Frequencies, buffer: torch.Tensor) -> bool:
    """Whether the buffer has the numbers that were read from one. On a GPU, where reading waits for the device, its
    version tells. On a CPU they are read: inference tensors and changes through .data have no version."""
    if buffer.device.type == "cpu" and not is_transformed() and not _is_tracing():
        return known.inv_freq == tuple(as_list(buffer))
    return known.buffer is buffer and known.version == _version_of(buffer)


def _frequencies_of(rotary: Any, layer_type: Optional[str]) -> _Frequencies:
    """The frequencies are read again if the buffer was changed or replaced: moved, cast, or rescaled for a longer
    sequence. While torch.compile traces, the stored values are constants, read as a plain attribute: it cannot trace
    more."""
    known: Optional[_Frequencies] = rotary._librope_frequencies.get(layer_type)
    if known is not None and torch.compiler.is_compiling():
        return known
    prefix = "" if layer_type is None else f"{layer_type}_"
    buffer = getattr(rotary, prefix + "inv_freq")
    scale = float(getattr(rotary, prefix + "attention_scaling"))
    if known is None or known.attention_scale != scale or not _is_current(known, buffer):
        known = _Frequencies(buffer, scale)
        rotary._librope_frequencies = {**rotary._librope_frequencies, layer_type: known}
    return known


def _rotary_forward(
        self: Any, x: torch.Tensor, position_ids: torch.Tensor,
        layer_type: Optional[str] = None) -> Tuple[torch.Tensor, _Frequencies]:
    return position_ids, _frequencies_of(self, layer_type)


def _make_rotary_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    from transformers import modeling_rope_utils
    dynamic_rope_update: Any = getattr(modeling_rope_utils, "dynamic_rope_update")

    # "dynamic" and "longrope" choose their frequencies by the length of the sequence.
    with_update = torch.no_grad()(dynamic_rope_update(_rotary_forward))
    modeling = sys.modules[original.__module__]
    is_complex = _name_of(modeling.__name__) == "modeling_llama4"
    temperature = _temperature_in(modeling)

    @functools.wraps(original)
    def forward(self: Any, x: Any, position_ids: Any, layer_type: Optional[str] = None) -> Any:
        rope_type = self.rope_type if layer_type is None else self.rope_type[layer_type]
        is_fixed = rope_type != "longrope" and "dynamic" not in rope_type
        arguments: Tuple[Any, ...] = (x, position_ids) if layer_type is None else (x, position_ids, layer_type)
        # In a graph, frequencies that depend on the length would be constants. librope's positions are integers.
        if (not is_fixed and torch.compiler.is_compiling()) or position_ids.is_floating_point():
            return original(self, *arguments)
        positions, frequencies = (_rotary_forward if is_fixed else with_update)(self, *arguments)
        if is_complex:
            return _Complex(positions, frequencies)
        beta = None if temperature is None else self.config.rope_parameters.get("llama_4_scaling_beta")
        if temperature is None or beta is None:
            return positions, frequencies
        q_factor = getattr(modeling, temperature)(
            positions, beta, self.config.rope_parameters.get("original_max_position_embeddings"))
        return positions, _Scaled(frequencies, q_factor[:, 0, :, 0], False)

    return forward


def _make_exact_rotary_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    rounds_once = _name_of(original.__module__) in _ROUNDS_ONCE

    @functools.wraps(original)
    def forward(self: Any, *arguments: Any, **keywords: Any) -> Any:
        cos, sin = original(self, *arguments, **keywords)
        return cos, _Exact(sin, rounds_once)

    return forward


def _rotate_exactly(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, given: _Exact, style: Style, out_style: Style,
        layout: AnyLayout) -> Any:
    """Rotates with one column of cos and sin for each pair; the model has one for each channel. If cos is wider than q,
    torch's products have the wider type, too, and the model rounds their sum."""
    sin = given.sin
    columns = slice(cos.shape[-1] // 2) if out_style == Style.HALF else slice(None, None, 2)
    rounds_each = cos.dtype == q.dtype and not given.rounds_once
    return apply_rotary(
        q, k, style=style, out_style=out_style, layout=layout, rotary_dim=cos.shape[-1], cos=cos[..., columns],
        sin=sin[..., columns], table_rows=TableRows.BY_TOKEN,
        rotation_rounding=RotationRounding.EACH if rounds_each else 0)


def _rotate(
        q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, given: Union[_Frequencies, _Norms, _Scaled],
        style: Style, out_style: Style, layout: AnyLayout) -> Any:
    """given: the object instead of sin"""
    frequencies = given if isinstance(given, _Frequencies) else given.frequencies
    if isinstance(given, _Scaled) and given.is_fused:
        return apply_scaled_rotary(
            q, k, given.q_factor, style=style, out_style=out_style, layout=layout, inv_freq=frequencies.inv_freq,
            attention_scale=frequencies.attention_scale, positions=positions)
    rotation: TorchRotation = {
        "style": style, "out_style": out_style, "layout": layout, "inv_freq": frequencies.inv_freq,
        "rotary_dim": 2 * len(frequencies.inv_freq), "attention_scale": frequencies.attention_scale,
        "positions": positions}
    if not isinstance(given, _Norms):
        return apply_rotary(q, k, **rotation)
    heads = 1 if layout == "bhsd" else 2
    if given.are_fused(q, k):
        return norm_rotary(q, k, **given.arguments(q, k, heads, rotation))
    if given.come_after:
        q, k = apply_rotary(q, k, **rotation)
        return given.q(q, heads), given.k(k, heads)
    return apply_rotary(given.q(q, heads), given.k(k, heads), **rotation)


def _make_apply(original: Callable[..., Any], style: Style, out_style: Style) -> Callable[..., Any]:
    def apply_rotary_pos_emb(
            q: torch.Tensor, k: torch.Tensor, cos: Any, sin: Any, *arguments: Any, unsqueeze_dim: int = 1,
            **keywords: Any) -> Any:
        layout: AnyLayout = "bhsd" if unsqueeze_dim == 1 else "bshd"
        if isinstance(sin, _Exact):
            return _rotate_exactly(q, k, cos, sin, style, out_style, layout)
        if not isinstance(sin, (_Frequencies, _Norms, _Scaled)):  # the model is not patched
            return original(q, k, cos, sin, *arguments, unsqueeze_dim=unsqueeze_dim, **keywords)
        return _rotate(q, k, cos, sin, style, out_style, layout)

    setattr(apply_rotary_pos_emb, "__wrapped__", original)
    return apply_rotary_pos_emb


def _make_apply_complex(original: Callable[..., Any], style: Style, out_style: Style) -> Callable[..., Any]:
    def apply_rotary_emb(xq: torch.Tensor, xk: torch.Tensor, freqs_cis: Any) -> Any:
        if not isinstance(freqs_cis, _Complex):
            return original(xq, xk, freqs_cis)
        return _rotate(xq, xk, *freqs_cis.pair, style, out_style, "bshd")

    setattr(apply_rotary_emb, "__wrapped__", original)
    return apply_rotary_emb


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


def _make_scaled_attention_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(
            self: Any, hidden_states: Any, position_embeddings: Any = None, *arguments: Any, **keywords: Any) -> Any:
        if "position_ids" in keywords and position_embeddings is not None:
            positions, given = position_embeddings
            if isinstance(given, _Scaled):
                position_embeddings = positions, _Scaled(given.frequencies, given.q_factor, True)
                keywords["position_ids"] = _Multiplied()
        return original(self, hidden_states, position_embeddings, *arguments, **keywords)

    return forward


# ---- Norms of q and k -----------------------------------------------------------------------------------------------


class _Norm:
    """The norm of q or k of one attention, on tensors in the order of axes that the rotation uses."""

    __slots__ = ("module", "cls", "is_of_token")

    def __init__(self, module: Any, cls: Any, is_of_token: bool) -> None:
        self.module = module
        self.cls = cls
        self.is_of_token = is_of_token

    def __call__(self, x: torch.Tensor, heads: int) -> torch.Tensor:
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
    """A patched attention passes this on instead of sin: the frequencies, and the norms that it left out."""

    __slots__ = ("frequencies", "q", "k", "config")

    def __init__(self, frequencies: _Frequencies, attention: torch.nn.Module, cls: Any, config: Dict[str, Any]) -> None:
        is_of_token = config.get("norm_extent") == NormExtent.TOKEN
        self.frequencies = frequencies
        q_norm, k_norm = _norms_of(attention)
        self.q = _Norm(q_norm, cls, is_of_token)
        self.k = _Norm(k_norm, cls, is_of_token)
        self.config = config

    @property
    def come_after(self) -> bool:
        return self.config.get("norm_order") == NormOrder.AFTER

    def are_fused(self, q: torch.Tensor, k: torch.Tensor) -> bool:
        return self.q.is_fused(q) and self.k.is_fused(k) and _eps_of(self.q.module) == _eps_of(self.k.module)

    def arguments(self, q: torch.Tensor, k: torch.Tensor, heads: int, rotation: TorchRotation) -> TorchNorm:
        """The arguments of norm_rotary."""
        arguments: Any = dict(
            self.config, norm_eps=_eps_of(self.q.module), q_weight=self.q.weight(q, heads),
            k_weight=self.k.weight(k, heads), **rotation)
        result: TorchNorm = arguments
        return result


def _norms_of(attention: Any) -> Tuple[Any, Any]:
    """The norms of q and of k, or None for one that does not exist."""
    if hasattr(attention, "qk_norm"):
        return attention.qk_norm, attention.qk_norm
    return getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)


def _eps_of(norm: Any) -> float:
    eps: float = norm.eps if hasattr(norm, "eps") else norm.variance_epsilon
    return eps


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


def _make_attention_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    modeling = sys.modules[original.__module__]
    name, config = _NORMS[_name_of(modeling.__name__)]
    cls = getattr(modeling, name)

    @functools.wraps(original)
    def forward(
            self: Any, hidden_states: Any, position_embeddings: Any = None, *arguments: Any, **keywords: Any) -> Any:
        is_complex = isinstance(position_embeddings, _Complex)
        pair: Any = position_embeddings.pair if is_complex else position_embeddings
        if isinstance(pair, (tuple, list)) and isinstance(pair[1], _Frequencies) and _norms_of(self)[0] is not None:
            pair = pair[0], _Norms(pair[1], self, cls, config)
            position_embeddings = _Complex(*pair) if is_complex else pair
            self = _WithoutNorms(self)
        return original(self, hidden_states, position_embeddings, *arguments, **keywords)

    return forward


def _is_split(parameter: Any) -> bool:
    """Whether the parameter is a DTensor of a mesh with tensor parallelism. Parameters of FSDP are whole when the
    module runs."""
    mesh = getattr(parameter, "device_mesh", None)
    return mesh is not None and "tp" in (mesh.mesh_dim_names or ())


def _refuse_tensor_parallel(target: torch.nn.Module) -> None:
    """Refuses models with norms over all heads of a token: these need all heads."""
    for module in target.modules():
        plan = _plan_for(type(module))
        if plan is None or plan[2] is not _make_attention_forward:
            continue
        config = _NORMS[_name_of(plan[0].__name__)][1]
        if config.get("norm_extent") == NormExtent.TOKEN and (
                (getattr(target, "_tp_size", None) or 1) > 1 or any(map(_is_split, module.parameters()))):
            raise ValueError(
                f"{type(module).__name__} norms q and k over all heads of a token, and in a tensor-parallel model a "
                "rank may have a part of them: such models are not patched")


_lock = threading.Lock()


def _replace_functions_of(modeling: types.ModuleType) -> None:
    """Puts librope's functions into the place of those with which the attention of a modeling module rotates. These are
    globals of the module, which all models of the family call, and stay: other models are recognised by their arguments
    and rotate as before. While one of them is compiled, its globals must not change."""
    makers: List[Tuple[str, Callable[[Any], Any]]] = []
    for name, (style, out_style) in _FAMILIES[_name_of(modeling.__name__)][1].items():
        make = _make_apply_complex if name == "apply_rotary_emb" else _make_apply
        makers.append((name, functools.partial(make, style=style, out_style=out_style)))
    temperature = _temperature_in(modeling)
    if temperature is not None:
        makers.append((temperature, _make_temperature))
    with _lock:
        for name, make_function in makers:
            function = getattr(modeling, name)
            if getattr(function, "_librope_is_ours", False):
                continue
            if not _is_own_code(function):
                raise ValueError(
                    f"{modeling.__name__}.{name} is not transformers' own function: another program has replaced it")
            ours = make_function(function)
            ours._librope_is_ours = True
            setattr(modeling, name, ours)


# ---- Gated MLPs -----------------------------------------------------------------------------------------------------


def _has_silu(module: torch.nn.Module) -> bool:
    activation: Any = getattr(module, "act_fn", None) or getattr(module, "activation_fn", None)
    if isinstance(activation, torch.nn.Module) and _has_hooks(activation):
        return False
    return activation is torch.nn.functional.silu or type(activation) in (torch.nn.SiLU, SiLUActivation)


def _make_mlp_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, x: Any) -> Any:
        if not _has_silu(self):
            return original(self, x)
        if hasattr(self, "gate_up_proj"):
            gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        else:
            gate, up = self.gate_proj(x), self.up_proj(x)
        return self.down_proj(swiglu(gate, up))

    return forward


def _make_apply_gate(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply_gate(self: Any, gate_up_out: Any) -> Any:
        if not _has_silu(self):
            return original(self, gate_up_out)
        return swiglu(*gate_up_out.chunk(2, dim=-1))

    return apply_gate


# ---- Patching -------------------------------------------------------------------------------------------------------


Target = TypeVar("Target", bound=Union[torch.nn.Module, types.ModuleType])


_Plan = Tuple[types.ModuleType, str, Callable[..., Any]]


def _plan_for(cls: type, parity: bool = False) -> Optional[_Plan]:
    """The modeling module of a class, the method to replace, and the function that makes the replacement."""
    for base in cls.__mro__:
        if not _is_of_transformers(base.__module__):
            continue
        prefix = _FAMILIES[_name_of(base.__module__)][0]
        modeling = sys.modules[base.__module__]
        if base.__name__ == prefix + "RotaryEmbedding":
            return modeling, "forward", _make_exact_rotary_forward if parity else _make_rotary_forward
        if parity:
            continue
        if base.__name__ == prefix + "MLP" and prefix != "GPTNeoX":
            return modeling, "forward", _make_mlp_forward
        if base.__name__ == prefix + "Attention" and _name_of(modeling.__name__) in _NORMS:
            return modeling, "forward", _make_attention_forward
        if base.__name__ == prefix + "Attention" and _temperature_in(modeling) is not None:
            return modeling, "forward", _make_scaled_attention_forward
        if base.__name__ == prefix + "Experts" and hasattr(cls, "_apply_gate"):
            return modeling, "_apply_gate", _make_apply_gate
    return None


def _own_plan_for(cls: Any, parity: bool) -> Optional[_Plan]:
    """As _plan_for, but None if the method is not the one that transformers has: a subclass may have its own."""
    plan = _plan_for(cls, parity)
    if plan is None:
        return None
    modeling, method, _ = plan
    base = next(base for base in cls.__mro__ if base.__module__ == modeling.__name__ and hasattr(base, method))
    function = getattr(cls, method)
    return plan if function is getattr(base, method) and _is_own_code(function) else None


class _Patched:
    """The first base of the class of a patched module, which copies and replicas of the module have too. That class has
    the name of the module's own one. It is pickled as that one and the way in which the module was patched."""

    _librope_original: Any = None  # the module's own class

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced: Any = super().__reduce_ex__(protocol)
        patched = self.__dict__.get("_librope_method")
        if type(self) is not reduced[1][0]:  # another program's way
            return reduced
        return (_new, (self._librope_original, patched), *reduced[2:])


def _new(cls: Any, patched: Optional[Tuple[str, bool]]) -> Any:
    """An object of the class, or of its patched one."""
    plan = None if patched is None else _own_plan_for(cls, patched[1])
    return cls.__new__(cls if plan is None else _patched_class(cls, plan))


def _make_method(plan: _Plan, original: Callable[..., Any]) -> Callable[..., Any]:
    original = getattr(original, "_librope_original", original)  # if the class is patched
    ours = plan[2](original)

    @functools.wraps(original)
    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        # A module that was unpatched can still be here: by way of a hook, or if FSDP has made another class of this one.
        is_patched = getattr(self, "_librope_method", None) is not None
        return (ours if is_patched else original)(self, *arguments, **keywords)

    setattr(method, "_librope_original", original)
    return method


_patched_classes: Dict[Tuple[Any, Any], Any] = {}


def _patched_class(cls: Any, plan: _Plan) -> Any:
    modeling, method, make = plan
    if make in _ROTARY_MAKERS:
        _replace_functions_of(modeling)
    known = _patched_classes.get((cls, make))
    if known is None:
        known = type(cls.__name__, (_Patched, cls), {
            "__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__,
            "_librope_original": cls, method: _make_method(plan, getattr(cls, method))})
        known = _patched_classes.setdefault((cls, make), known)
    return known


_OWN_ATTRIBUTES = ("_librope_method", "_librope_frequencies")
_ROTARY_MAKERS = _make_rotary_forward, _make_exact_rotary_forward


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


def _patch_instance(module: torch.nn.Module, parity: bool) -> bool:
    if "_librope_method" in module.__dict__:
        return True
    own = type(module)
    plan = _own_plan_for(own, parity)
    if plan is None:
        return False
    _, method, make = plan
    is_rotary = make in _ROTARY_MAKERS
    if make is _make_attention_forward:
        is_changed = _norms_of(module)[0] is not None
    else:
        is_changed = is_rotary or make is _make_scaled_attention_forward or _has_silu(module)
    if not is_changed:
        return False
    cls = _patched_class(own, plan)
    if method in module.__dict__ or "_old_forward" in module.__dict__:
        if method != "forward" or not _rebind(module, cls):
            return False
    if is_rotary:
        module.__dict__["_librope_frequencies"] = {}
        if not parity and not any(buffer.is_meta for buffer in module.buffers()):  # so that a first call can be compiled
            rope_type: Any = module.rope_type
            for layer_type in (None,) if isinstance(rope_type, str) else rope_type:
                _frequencies_of(module, layer_type)
    module.__dict__["_librope_method"] = (method, parity)
    module.__class__ = cls
    return True


def _unpatch_instance(module: torch.nn.Module) -> None:
    cls: Any = type(module)
    if "_librope_original" in cls.__dict__:
        own = cls._librope_original
        _rebind(module, own)
        module.__class__ = own
    for name in _OWN_ATTRIBUTES:
        module.__dict__.pop(name, None)


def _patch_class(modeling: types.ModuleType, cls: Any, parity: bool) -> bool:
    plan = _own_plan_for(cls, parity)
    if plan is None:
        return False
    if any("_librope_method" in base.__dict__ for base in cls.__mro__):  # it or its base is already patched
        return True
    _, method, make = plan
    own = getattr(cls, method)
    cls._librope_method = (method, cls.__dict__.get(method))
    setattr(cls, method, _make_method(plan, own))
    if make in _ROTARY_MAKERS:
        _replace_functions_of(modeling)
        cls._librope_frequencies = {}  # until an instance has its own
    return True


def _unpatch_class(cls: type) -> None:
    method, previous = cls.__dict__.get("_librope_method", (None, None))
    if previous is not None:
        setattr(cls, method, previous)
    elif method is not None:
        delattr(cls, method)
    for name in _OWN_ATTRIBUTES:
        if name in cls.__dict__:
            delattr(cls, name)


def _classes_of(modeling: types.ModuleType) -> List[type]:
    if not _is_of_transformers(modeling.__name__):
        raise ValueError(f"{modeling.__name__} is not one of {', '.join(_FAMILIES)} of transformers")
    return [cls for cls in vars(modeling).values() if isinstance(cls, type) and cls.__module__ == modeling.__name__]


def _refuse_complex(target: Union[torch.nn.Module, types.ModuleType]) -> None:
    """Refuses Llama-4: it multiplies complex numbers of fp32, in which torch may fuse products and sums."""
    names = [target.__name__] if isinstance(target, types.ModuleType) else [
        base.__module__ for module in target.modules() for base in type(module).__mro__]
    if any(_name_of(name) == "modeling_llama4" for name in names):
        raise ValueError("parity: the rotation of Llama-4, of complex numbers, is not one of those that librope repeats")


def patch(target: Target, *, parity: bool = False) -> Target:
    """Lets a model rotate and gate through librope, and returns the model.

    target: a model or any torch.nn.Module of one, patched in place after its weights are loaded; or a modeling module
            such as transformers.models.llama.modeling_llama, for all models of the family, also those made later.
            Its norms of q and k become part of the rotation's launch; their gradients have no gradients
    parity: only the rotation is changed: it uses the model's own cos and sin and has the bits of the model's code
    Raises ValueError if there is nothing to patch, and for tensor-parallel models with norms over all heads. Patching
    twice is harmless: the first call counts.
    """
    classes = _classes_of(target) if isinstance(target, types.ModuleType) else []
    if parity:
        _refuse_complex(target)
    try:
        if isinstance(target, types.ModuleType):
            found = [_patch_class(target, cls, parity) for cls in classes]
        else:
            if not parity:
                _refuse_tensor_parallel(target)
            found = [_patch_instance(module, parity) for module in target.modules()]
    except BaseException:
        unpatch(target)  # patches all of the model or nothing
        raise
    if not any(found):
        raise ValueError(
            f"nothing to patch in {getattr(target, '__name__', type(target).__name__)}: it has no rotary embedding and "
            f"no SiLU-gated MLP of {', '.join(prefix for prefix, _ in _FAMILIES.values())}")
    return target


def unpatch(target: Target) -> Target:
    """Undoes patch, and returns the target."""
    if isinstance(target, types.ModuleType):
        for cls in _classes_of(target):
            _unpatch_class(cls)
    else:
        for module in target.modules():
            _unpatch_instance(module)
    return target
