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


def _rope_parameters(config: _Config, layer_type: Optional[str]) -> Dict[str, Any]:
    """transformers 5 has rope_parameters, one for each layer type if they differ; transformers 4 has rope_scaling and
    other keys."""
    parameters: Any = config.get("rope_parameters") or config.get("rope_scaling") or {}
    nested = [name for name, value in parameters.items() if isinstance(value, Mapping)]
    layer_types = config.get("_rope_type_labels") or config.get("layer_types")
    if nested:
        nested = [name for name in nested if layer_types is None or name in layer_types]
        if layer_type not in nested:
            raise ValueError(f"layer_type is {layer_type!r}: the configuration has {', '.join(sorted(nested))}")
        parameters = parameters[layer_type]
    elif layer_type is not None and layer_type not in (layer_types or ()):
        raise ValueError(f"layer_type is {layer_type!r}: the configuration has one rope for all layers")
    return dict(parameters)


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
    qk_rope_head_dim. Raises ValueError for a model whose rope has not been compared, such as a model of images.
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

    parameters = _rope_parameters(config, layer_type)
    if model_type == "gemma3_text" and layer_type is None:
        raise ValueError("rope_parameters are for all layers: Gemma 3 has those of each layer type")
    config = config.of_layers(layer_type)
    if "mrope_section" in parameters:
        raise ValueError("the configuration has several position axes: use section_axes with its mrope_section")
    theta = float(parameters.get("rope_theta") or config.get("rope_theta") or config.get("rotary_emb_base")
                  or _DEFAULT_THETA.get(model_type) or config.need("rope_theta"))
    part = parameters.get("partial_rotary_factor") or config.get("partial_rotary_factor")
    if part is None:
        is_old = config.get("rope_parameters") is None
        part = config.get("rotary_pct") or _DEFAULT_ROTARY_PCT.get(model_type, 1.0) if is_old else 1.0
    recipe = parameters.get("rope_type") or parameters.get("type") or "default"
    if parameters.get("truncate") is False and layer_type in (config.get("rope_parameters") or ()):
        raise ValueError("truncate is False for one layer type: transformers heeds it only where all have one rope")
    head_dim, rotary_dim = _widths(config, recipe, part)

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


def _widths(config: _Config, recipe: str, part: float) -> Tuple[int, int]:
    """Returns head_dim and rotary_dim."""
    model_type = config.get("model_type")
    is_partial = model_type in _PARTIAL
    if model_type in _FLAGGED or config.get("qk_rope_head_dim") is not None:
        width = config.need("qk_rope_head_dim")
        head_dim = width if config.is_dict else config.get("head_dim", width)
        is_cut = recipe != "proportional" and (is_partial or recipe != "default")
        rotary_dim = int(head_dim * part) if is_cut else head_dim
        if rotary_dim != width:
            raise ValueError(f"qk_rope_head_dim is {width}: head_dim and partial_rotary_factor make it {rotary_dim}")
        return width, width
    head_dim = (config.need("head_dim") if config.is_dict and model_type in _OWN_HEAD_DIM else config.get("head_dim"))
    if head_dim is None:
        head_dim = config.need("hidden_size") // config.need("num_attention_heads")
    if recipe == "proportional":
        return head_dim, head_dim
    if part != 1 and not is_partial:
        raise ValueError(f"partial_rotary_factor is {part}: a model of type {model_type!r} rotates whole heads")
    rotary_dim = int(head_dim * part)
    if rotary_dim % 2:
        raise ValueError(f"partial_rotary_factor is {part}: it makes rotary_dim {rotary_dim}, which must be even")
    return head_dim, rotary_dim


def _scaling(
        recipe: str, config: _Config, parameters: Dict[str, Any], part: float, sequence_length: int) -> Dict[str, Any]:
    """scaled_frequencies' arguments. An absent key has transformers' default, which is almost always the library's
    0."""
    given = {name: value for name, value in parameters.items() if value is not None}

    def pick(*names: str) -> Dict[str, Any]:
        return {name: given[name] for name in names if name in given}

    if recipe == "default":
        return {"type": "none"}
    if recipe == "linear":
        return {"type": "linear", **pick("factor")}
    if recipe == "proportional":
        return {"type": "proportional", **pick("factor"), "partial_rotary_factor": part}
    max_position = config.need("max_position_embeddings")
    original = (config.get("original_max_position_embeddings") or given.get("original_max_position_embeddings")
                or max_position)
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
    if recipe in ("longrope", "su"):
        scaling = {"type": "longrope", **pick("short_factor", "long_factor", "attention_factor"),
                   "original_max_position": original, "sequence_length": sequence_length}
        if "attention_factor" not in given:
            scaling["factor"] = max(given.get("factor") or max_position / original, 1.0)
        return scaling
    raise ValueError(
        f"rope_type is {recipe!r}: it must be default, linear, dynamic, llama3, yarn, longrope or proportional")
