# _hf_config.py - RopeDesc's arguments from the configuration of a Hugging Face model
"""Needs neither transformers nor torch: a configuration is an object of transformers or the dict of a config.json."""
from __future__ import annotations

import struct
from typing import Any, Dict, List, Mapping, Optional, Union

from ._enums import Style
from ._frequencies import scaled_frequencies

# How each model type pairs channels. Style has no default, and neither has this table.
_HALF = (Style.HALF, Style.HALF)
_STYLES = {
    "gemma": _HALF,
    "gemma2": _HALF,
    "gemma3_text": _HALF,
    "gpt_neox": _HALF,
    "llama": _HALF,
    "mistral": _HALF,
    "mixtral": _HALF,
    "phi3": _HALF,
    "qwen2": _HALF,
    "qwen2_moe": _HALF,
    "qwen3": _HALF,
    "qwen3_moe": _HALF,
}
_DEEPSEEK_V3 = {True: (Style.INTERLEAVED, Style.HALF), False: _HALF}  # by rope_interleave

_DEFAULT_THETA = 10000.0  # transformers', where a configuration is silent (Llama 2)
_DEFAULT_ROTARY_PCT = {"gpt_neox": 0.25}


def _to_fp32(values: List[float]) -> List[float]:
    code = f"<{len(values)}f"
    return list(struct.unpack(code, struct.pack(code, *values)))


class _Config:
    def __init__(self, config: Any) -> None:
        self._config = config

    def get(self, name: str, default: Any = None) -> Any:
        value = self._config.get(name) if isinstance(self._config, Mapping) else getattr(self._config, name, None)
        return default if value is None else value


def _rope_parameters(config: _Config, layer_type: Optional[str]) -> Dict[str, Any]:
    """transformers 5 has rope_parameters, of each layer type where they differ; 4 has rope_scaling beside the rest."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    nested = [name for name, value in parameters.items() if isinstance(value, Mapping)]
    if nested:
        if layer_type not in nested:
            raise ValueError(f"layer_type is {layer_type!r}: the configuration has {', '.join(sorted(nested))}")
        parameters = parameters[layer_type]
    elif layer_type is not None and layer_type not in (config.get("layer_types") or ()):
        raise ValueError(f"layer_type is {layer_type!r}: the configuration has one rope for all layers")
    return dict(parameters)


def from_hf_config(
    config: Any,
    exact: bool = False,
    *,
    layer_type: Optional[str] = None,
    sequence_length: int = 0,
    style: Union[Style, str, None] = None,
) -> Dict[str, Any]:
    """RopeDesc's arguments for a Llama, Qwen2, Qwen3, Mistral, Gemma, Phi-3, GPT-NeoX or DeepSeek-V3 model:

        desc = librope.RopeDesc(**librope.from_hf_config(model.config), layout="bhsd", dtype=model.dtype)

    config:          a transformers configuration, or the dict of a config.json
    exact:           False: frequencies are rounded to fp32, in which the models were trained. True: they are as
                     published formulas have them
    layer_type:      where layers differ (Gemma 3): "full_attention" or "sliding_attention"
    sequence_length: for "dynamic" and "longrope", positions that will be used; 0: as many as the model was trained on
    style:           for a model type that is not one of these

    DeepSeek-V3: of the rotated tail of q and k alone, head_dim is qk_rope_head_dim.
    """
    config = _Config(config)
    if config.get("text_config") is not None:
        config = _Config(config.get("text_config"))
    model_type = config.get("model_type")
    if style is not None:
        styles = (style, style)
    elif model_type == "deepseek_v3":
        styles = _DEEPSEEK_V3[bool(config.get("rope_interleave", True))]
    elif model_type in _STYLES:
        styles = _STYLES[model_type]
    else:
        raise ValueError(f"model_type is {model_type!r}, whose pairs are not known here: give style")

    parameters = _rope_parameters(config, layer_type)
    if "mrope_section" in parameters:
        raise ValueError("the configuration has several position axes: use section_axes with its mrope_section")
    theta = float(parameters.get("rope_theta") or config.get("rope_theta") or config.get("rotary_emb_base")
                  or _DEFAULT_THETA)
    head_dim = (config.get("qk_rope_head_dim") or config.get("head_dim")
                or config.get("hidden_size") // config.get("num_attention_heads"))
    part = (parameters.get("partial_rotary_factor") or config.get("partial_rotary_factor") or config.get("rotary_pct")
            or _DEFAULT_ROTARY_PCT.get(model_type, 1.0))
    recipe = parameters.get("rope_type") or parameters.get("type") or "default"
    is_proportional = recipe == "proportional"
    rotary_dim = head_dim if is_proportional else int(head_dim * part)

    if recipe == "default" and exact:
        frequencies: Dict[str, Any] = {"theta": theta}
    else:
        scaling = _scaling(recipe, config, parameters, part, sequence_length)
        if not exact:  # transformers reads these as fp32
            for name in ("short_factor", "long_factor"):
                if name in scaling:
                    scaling[name] = _to_fp32(scaling[name])
        inv_freq, attention_scale = scaled_frequencies(rotary_dim, theta, **scaling)
        frequencies = {"inv_freq": inv_freq if exact else _to_fp32(inv_freq), "attention_scale": attention_scale}
    return {"head_dim": head_dim, "rotary_dim": rotary_dim, "style": styles[0], "out_style": styles[1], **frequencies}


def _scaling(
        recipe: str, config: _Config, parameters: Dict[str, Any], part: float, sequence_length: int) -> Dict[str, Any]:
    """scaled_frequencies' arguments. Absent keys have transformers' meaning, which is the library's 0 almost always."""
    given = {name: value for name, value in parameters.items() if value is not None}

    def pick(*names: str) -> Dict[str, Any]:
        return {name: given[name] for name in names if name in given}

    max_position = config.get("max_position_embeddings")
    original = (config.get("original_max_position_embeddings") or given.get("original_max_position_embeddings")
                or max_position)
    if recipe == "default":
        return {"type": "none"}
    if recipe == "linear":
        return {"type": "linear", **pick("factor")}
    if recipe == "dynamic":
        if "alpha" in given:
            return {"type": "ntk_alpha", **pick("alpha")}
        return {"type": "dynamic_ntk", **pick("factor"), "original_max_position": max_position,
                "sequence_length": max(sequence_length, max_position)}
    if recipe == "llama3":
        return {"type": "llama3", **pick("factor", "low_freq_factor", "high_freq_factor"),
                "original_max_position": original}
    if recipe == "yarn":
        scaling = {"type": "yarn", **pick("beta_fast", "beta_slow"), "original_max_position": original,
                   "factor": given.get("factor") or max_position / original,
                   "truncate": given.get("truncate", True)}
        if "attention_factor" in given:
            scaling.update(pick("attention_factor"))
        elif given.get("mscale") and given.get("mscale_all_dim"):  # one without the other is ignored
            scaling.update(pick("mscale", "mscale_all_dim"))
        return scaling
    if recipe in ("longrope", "su"):
        scaling = {"type": "longrope", **pick("short_factor", "long_factor", "attention_factor"),
                   "original_max_position": original, "sequence_length": sequence_length}
        if "attention_factor" not in given:
            scaling["factor"] = max(given.get("factor") or max_position / original, 1.0)
        return scaling
    if recipe == "proportional":
        return {"type": "proportional", **pick("factor"), "partial_rotary_factor": part}
    raise ValueError(
        f"rope_type is {recipe!r}: it must be default, linear, dynamic, llama3, yarn, longrope or proportional")
