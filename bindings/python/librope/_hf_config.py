# SPDX-License-Identifier: Apache-2.0
# _hf_config.py - RopeDesc's arguments from the configuration of a Hugging Face model
"""This file imports neither transformers nor torch. A configuration is an object of transformers or the dict of a
config.json."""
from __future__ import annotations

import struct
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

from ._enums import Style
from ._frequencies import scaled_frequencies

# How the attention of each model type reads and writes pairs. The table has the types that test_hf_configs.py has
# compared with their models; a wrong guess for another type could go unnoticed.
_HALF = (Style.HALF, Style.HALF)
_INTERLEAVED = (Style.INTERLEAVED, Style.INTERLEAVED)
_INTERLEAVED_TO_HALF = (Style.INTERLEAVED, Style.HALF)
_STYLES = {
    **dict.fromkeys(
        """apertus arcee aria_text bamba bitnet chameleon csm cwm dbrx deepseek_ocr2_text diffllama
        diffusion_gemma_text doge dots1 esmc eurobert flex_olmo gemma gemma2 gemma3_text gemma3n_text
        gemma4_text gemma4_unified_text glm4_moe gpt_neox gpt_oss granite granite4_vision_text granitemoe
        granitemoeshared higgs_audio_v2 hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax jais2 jetmoe
        laguna lfm2 lfm2_moe llama mellum mimi minicpm3 minimax minimax_m2 ministral ministral3 mistral
        mixtral mllama_text_model modernbert modernbert-decoder nemotron nomic_bert olmo olmo2 olmo3 olmoe
        persimmon phi phi3 phi4_multimodal qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next seed_oss solar_open
        stablelm starcoder2 t5gemma2_text vaultgemma""".split(), _HALF),
    **dict.fromkeys(
        """cohere deepseek_v4 ernie4_5 ernie4_5_moe glm glm4 helium openai_privacy_filter pe_audio_encoder""".split(),
        _INTERLEAVED),
    **dict.fromkeys("glm_moe_dsa longcat_flash".split(), _INTERLEAVED_TO_HALF),
}
_STYLES_BY_FLAG = {True: _INTERLEAVED_TO_HALF, False: _HALF}  # rope_interleave
_FLAGGED = frozenset("axk1 deepseek_v3 glm4_moe_lite mistral4 youtu".split())

# Model types whose attention leaves a part of each head unrotated, by partial_rotary_factor. The others rotate all of
# it.
_PARTIAL = frozenset(
    """bamba deepseek_v4 glm glm4 glm4_moe glm4_moe_lite gpt_neox laguna mellum minimax_m2 nemotron persimmon
    phi phi3 phi4_multimodal qwen3_next solar_open stablelm""".split())

# A config.json omits values that equal the defaults of its class. The first table has the model types with a known
# default base of the frequencies, the second those of them with a head_dim that may differ from hidden_size /
# num_attention_heads.
_DEFAULT_THETA = {
    **dict.fromkeys(
        "deepseek_v3 gemma gemma2 gpt_neox llama mistral phi3 qwen2 qwen2_moe qwen3 qwen3_moe".split(), 1e4),
    "mixtral": 1e6,
    "gemma3_text": None,
}
_OWN_HEAD_DIM = frozenset("gemma gemma2 gemma3_text qwen3".split())
_DEFAULT_ROTARY_PCT = {"gpt_neox": 0.25}
_DEFAULT_ORIGINAL = {"phi3": 4096}  # original_max_position_embeddings

# GPT-NeoX has these keys where others have rope_theta and partial_rotary_factor. For a type without such a key
# transformers ignores it.
_LEGACY = {"rotary_emb_base": frozenset(["gpt_neox"]), "rotary_pct": frozenset(["gpt_neox"])}
_USES_ORIGINAL = frozenset("llama3 longrope yarn".split())


def _to_fp32(values: List[float]) -> List[float]:
    code = f"<{len(values)}f"
    return list(struct.unpack(code, struct.pack(code, *values)))


class _Config:
    def __init__(self, config: Any) -> None:
        self.is_dict = isinstance(config, Mapping)
        self._config = config

    def get(self, name: str, default: Any = None) -> Any:
        try:
            value = self._config.get(name) if self.is_dict else getattr(self._config, name, None)
        except RuntimeError as error:  # transformers' AmbiguousGlobalPerLayerAttributeError
            raise ValueError(
                f"{name} differs from layer to layer: give that layer's configuration, config.per_layer_config[i]"
            ) from error
        return default if value is None else value

    def is_null(self, name: str) -> bool:
        """Whether a dict has None for the key."""
        return self.is_dict and name in self._config and self._config[name] is None

    def integer(self, name: str) -> Optional[int]:
        """Other tools write integers as 8192.0."""
        value = self.get(name)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise ValueError(f"{name} is {value!r}: it must be an integer")
        return value

    def need_integer(self, name: str) -> int:
        self.need(name)
        value = self.integer(name)
        assert value is not None
        return value

    def need(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            raise ValueError(
                f"{name} is missing: a dict must have it, where a configuration of transformers has a default")
        return value

    def of_layers(self, layer_type: Optional[str]) -> "_Config":
        """The configuration of the layers of this type; transformers may have one for each type."""
        if self.is_dict or layer_type is None or not self.get("is_heterogeneous"):
            return self
        return _Config(self._config.per_layer_config[layer_type])


def _agreed(*said: Tuple[str, Any]) -> Any:
    """The value of keys that say one thing, or None if none of them has a value."""
    given = [(key, value) for key, value in said if value is not None]
    for key, value in given[1:]:
        if value != given[0][1]:
            raise ValueError(
                f"{given[0][0]} is {given[0][1]!r} and {key} is {value!r}: they say one thing, so they must be equal")
    return given[0][1] if given else None


def _rope_parameters(config: _Config, layer_type: Optional[str]) -> Dict[str, Any]:
    """transformers 5 has rope_parameters, one for each layer type if they differ; transformers 4 has rope_scaling and
    other keys. The result has rope_type, rope_theta and partial_rotary_factor, wherever the configuration has them."""
    first: Any = config.get("rope_parameters") or {}
    second: Any = config.get("rope_scaling") or {}
    name = "rope_parameters" if first or not second else "rope_scaling"
    result = _settled(config, name, _of_layer(config, first or second, layer_type), layer_type)
    if first and second and first is not second:  # transformers 5 has them as two names of one dict
        other = _settled(config, "rope_scaling", _of_layer(config, second, layer_type), layer_type)
        for key in sorted({*result, *other}):
            if result.get(key) != other.get(key):
                raise ValueError(
                    f"rope_parameters and rope_scaling differ: {key} is {result.get(key)!r} by the one and "
                    f"{other.get(key)!r} by the other, keys beside them and defaults included: leave one of them out")
    return result


def _of_layer(config: _Config, parameters: Mapping[str, Any], layer_type: Optional[str]) -> Mapping[str, Any]:
    nested = [name for name, value in parameters.items() if isinstance(value, Mapping)]
    layer_types = config.get("_rope_type_labels") or config.get("layer_types")
    if nested:
        nested = [name for name in nested if layer_types is None or name in layer_types]
        if layer_type not in nested:
            raise ValueError(f"layer_type is {layer_type!r}: the configuration has {', '.join(sorted(nested))}")
        of_layer: Mapping[str, Any] = parameters[layer_type]
        return of_layer
    if config.get("model_type") == "gemma3_text":
        raise ValueError("rope_parameters are for all layers: Gemma 3 has those of each layer type")
    if layer_type is not None and layer_type not in (layer_types or ()):
        raise ValueError(f"layer_type is {layer_type!r}: the configuration has one rope for all layers")
    return parameters


def _settled(config: _Config, name: str, given: Mapping[str, Any], layer_type: Optional[str]) -> Dict[str, Any]:
    """The given parameters, which the configuration has as `name`, with those that it has beside them."""
    if "mrope_section" in given:
        raise ValueError("the configuration has several position axes: use section_axes with its mrope_section")
    model_type = config.get("model_type")
    parameters = {key: value for key, value in given.items() if value is not None}

    def is_longrope(recipe: Any) -> bool:
        return recipe == "su" or (recipe == "yarn" and config.is_dict and model_type == "phi3")

    recipes = [(key, "longrope" if is_longrope(parameters.get(key)) else parameters.get(key))
               for key in ("rope_type", "type")]
    parameters.pop("type", None)
    recipe = parameters["rope_type"] = _agreed(*recipes) or "default"
    parameters["rope_theta"] = _theta(config, name, given, layer_type)
    parameters["partial_rotary_factor"] = _part(config, name, given)
    key = "original_max_position_embeddings"
    original = _either(config, (key, config.integer(key)), (f"{name}.{key}", _Config(parameters).integer(key)), True)
    if config.is_dict and recipe in _USES_ORIGINAL and config.get(key) is None and model_type in _DEFAULT_ORIGINAL:
        original = _agreed((key, _DEFAULT_ORIGINAL[model_type]), (f"{name}.{key}", original))
    if original is not None:
        parameters[key] = original
    return parameters


def _either(config: _Config, outer: Tuple[str, Any], inner: Tuple[str, Any], is_outer_first: bool = False) -> Any:
    """The value of a key of the configuration and of one inside rope_parameters. A dict has what someone wrote, so that
    they must be equal. An object has defaults and leftovers, and transformers' order counts."""
    if config.is_dict:
        return _agreed(outer, inner)
    first, second = (outer, inner) if is_outer_first else (inner, outer)
    return second[1] if first[1] is None else first[1]


def _theta(config: _Config, name: str, given: Mapping[str, Any], layer_type: Optional[str]) -> float:
    model_type = config.get("model_type")
    key = "rope_theta"
    if model_type in _LEGACY["rotary_emb_base"]:
        key = "rotary_emb_base"
    elif model_type == "gemma3_text" and layer_type == "sliding_attention":
        key = "rope_local_base_freq"
    theta = _either(config, (key, config.get(key)), (f"{name}.rope_theta", given.get("rope_theta")))
    if theta is None and config.is_dict and (config.is_null(key) or "rope_theta" in given):
        raise ValueError(f"{key} is None: transformers makes no frequencies of it: leave it out for the type's default")
    if theta is None:
        theta = _DEFAULT_THETA.get(model_type)
    if key == "rotary_emb_base":
        # A configuration that transformers 4 wrote may have both. transformers 5 reads the one.
        theta = _agreed(("rope_theta", config.get("rope_theta")), (key, theta))
    theta = float(config.need(key) if theta is None else theta)
    if not theta > 0:
        raise ValueError(f"{key} is {theta}: it must be above 0")
    return theta


def _part(config: _Config, name: str, given: Mapping[str, Any]) -> float:
    part: Optional[float]
    model_type = config.get("model_type")
    inner = f"{name}.partial_rotary_factor", given.get("partial_rotary_factor")
    outer = "partial_rotary_factor", config.get("partial_rotary_factor")
    if model_type not in _LEGACY["rotary_pct"]:
        part = _either(config, outer, inner)
        return 1.0 if part is None else part
    legacy = "rotary_pct", config.get("rotary_pct")
    if config.is_null("rotary_pct") and inner[1] is None:
        raise ValueError("rotary_pct is None: leave it out for the type's default")
    part = _agreed(legacy, inner)
    if not config.is_dict and config.get("rope_parameters"):  # which then lack no default of the type
        part = outer[1] if part is None else part
        return 1.0 if part is None else part
    part = _DEFAULT_ROTARY_PCT.get(model_type, 1.0) if part is None else part
    _agreed(outer, ("rotary_pct", part))
    return part


def _text_config(config: Any) -> _Config:
    outer = _Config(config)
    text = outer.get("text_config")
    if text is None:
        return outer
    for name in ("rope_parameters", "rope_scaling", "rope_theta"):
        if outer.get(name) is not None:
            raise ValueError(f"{name} and text_config are both given: give config.text_config for the rope of the text")
    return _Config(text)


def from_hf_config(
    config: Any,
    exact: bool = False,
    *,
    layer_type: Optional[str] = None,
    sequence_length: int = 0,
    style: Union[Style, str, None] = None,
) -> Dict[str, Any]:
    """RopeDesc's arguments for a Llama, Qwen, Mistral, Gemma, Phi, GLM, DeepSeek or another model with one position
    axis:

        desc = librope.RopeDesc(**librope.from_hf_config(model.config), layout="bhsd", dtype=model.dtype)

    config:          a transformers configuration, that of the text if there are several, or the dict of a config.json
                     of Llama, Qwen2, Qwen3, Mistral, Mixtral, Gemma 1 to 3, Phi-3, GPT-NeoX or DeepSeek-V3
    exact:           False: frequencies are rounded to fp32, in which the models were trained. True: they are not
                     rounded, as in the published formulas
    layer_type:      for models whose layers differ: "full_attention" or "sliding_attention" (Gemma 3 and 4, Olmo 3),
                     "main" or "compress" (DeepSeek-V4)
    sequence_length: for "dynamic" and "longrope", the number of positions that will be used; 0: as many as in training
    style:           for a checkpoint with another order of channels than its model type

    DeepSeek, Mistral 4 and other models with qk_rope_head_dim rotate only the tail of q and k: for these, head_dim is
    qk_rope_head_dim. Raises ValueError for a model whose rope has not been compared, such as a model of images, for a
    dict in which two keys say one thing and have unequal values, for a key that only other model types have, and for a
    rotary_dim that is not the result's.
    """
    config = _text_config(config)
    model_type = config.get("model_type")
    styles: Tuple[Union[Style, str], Union[Style, str]]
    if model_type in _FLAGGED:
        styles = _STYLES_BY_FLAG[bool(config.get("rope_interleave", True))]
    elif model_type in _STYLES:
        styles = _STYLES[model_type]
    else:
        raise ValueError(
            f"model_type is {model_type!r}, whose rope is not known here: give RopeDesc the inv_freq, attention_scale, "
            "rotary_dim and style of the model, or give the configuration the model_type whose rope it has")
    if config.is_dict and model_type not in _DEFAULT_THETA:
        raise ValueError(
            f"model_type is {model_type!r}: give transformers' configuration, as a config.json leaves out defaults")
    if style is not None:
        styles = (style, style)

    _refuse_foreign(config, model_type)
    parameters = _rope_parameters(config, layer_type)
    config = config.of_layers(layer_type)
    theta, part, recipe = (parameters[name] for name in ("rope_theta", "partial_rotary_factor", "rope_type"))
    if parameters.get("truncate") is False and layer_type in (config.get("rope_parameters") or ()):
        raise ValueError("truncate is False for one layer type: transformers heeds it only where all have one rope")
    head_dim, rotary_dim = _widths(config, recipe, part)
    stated = config.integer("rotary_dim")
    if stated not in (None, rotary_dim):
        raise ValueError(
            f"rotary_dim is {stated} and head_dim {head_dim} times partial_rotary_factor {part} is {rotary_dim}: "
            "transformers ignores rotary_dim: set partial_rotary_factor for the model that you mean")

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


def _refuse_foreign(config: _Config, model_type: str) -> None:
    """Refuses keys of other model types, which whoever wrote them takes for heeded."""
    for name, types in _LEGACY.items():
        if model_type not in types and config.get(name) is not None:
            raise ValueError(f"{name} is {config.get(name)!r}: a model of type {model_type!r} has no such key")
    if config.is_dict:
        for name, is_own in (("qk_rope_head_dim", model_type in _FLAGGED),
                             ("rope_local_base_freq", model_type == "gemma3_text")):
            if not is_own and config.get(name) is not None:
                raise ValueError(f"{name} is {config.get(name)!r}: a model of type {model_type!r} has no such key")


def _widths(config: _Config, recipe: str, part: float) -> Tuple[int, int]:
    """Returns head_dim and rotary_dim."""
    model_type = config.get("model_type")
    is_partial = model_type in _PARTIAL
    if model_type in _FLAGGED or config.get("qk_rope_head_dim") is not None:
        width = config.need_integer("qk_rope_head_dim")
        head_dim = config.integer("head_dim") or width
        if config.is_dict:
            _agreed(("head_dim", head_dim), ("qk_rope_head_dim", width))
        is_cut = recipe != "proportional" and (is_partial or recipe != "default")
        rotary_dim = int(head_dim * part) if is_cut else head_dim
        if rotary_dim != width:
            raise ValueError(f"qk_rope_head_dim is {width}: head_dim and partial_rotary_factor make it {rotary_dim}")
        return width, width
    if config.is_dict and model_type in _OWN_HEAD_DIM:
        config.need("head_dim")
    head_dim = (config.need_integer("hidden_size") // config.need_integer("num_attention_heads")
                if config.get("head_dim") is None else config.need_integer("head_dim"))
    if recipe == "proportional":
        return head_dim, head_dim
    if part != 1 and not is_partial:
        raise ValueError(f"partial_rotary_factor is {part}: a model of type {model_type!r} rotates whole heads")
    rotary_dim = int(head_dim * part)
    if rotary_dim % 2 or rotary_dim < 2:
        raise ValueError(
            f"partial_rotary_factor is {part}: it makes rotary_dim {rotary_dim}, which must be even and above 0")
    return head_dim, rotary_dim


def _scaling(
        recipe: str, config: _Config, parameters: Dict[str, Any], part: float, sequence_length: int) -> Dict[str, Any]:
    """scaled_frequencies' arguments. An absent key has transformers' default, which is almost always the library's
    0."""
    given = parameters

    def pick(*names: str) -> Dict[str, Any]:
        return {name: given[name] for name in names if name in given}

    if recipe == "default":
        return {"type": "none"}
    if recipe == "linear":
        return {"type": "linear", **pick("factor")}
    if recipe == "proportional":
        return {"type": "proportional", **pick("factor"), "partial_rotary_factor": part}
    max_position = config.need_integer("max_position_embeddings")
    original = given.get("original_max_position_embeddings") or max_position
    if recipe == "dynamic":
        if "alpha" in given and str(config.get("model_type")).startswith("hunyuan"):
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
        elif given.get("mscale") and given.get("mscale_all_dim"):  # transformers ignores one without the other
            scaling.update(pick("mscale", "mscale_all_dim"))
        return scaling
    if recipe == "longrope":
        scaling = {"type": "longrope", **pick("short_factor", "long_factor", "attention_factor"),
                   "original_max_position": original, "sequence_length": sequence_length}
        if "attention_factor" not in given:
            scaling["factor"] = max(given.get("factor") or max_position / original, 1.0)
        return scaling
    raise ValueError(
        f"rope_type is {recipe!r}: it must be default, linear, dynamic, llama3, yarn, longrope or proportional")
