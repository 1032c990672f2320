# SPDX-License-Identifier: Apache-2.0
# test_hf_configs.py - from_hf_config on every configuration class of the installed transformers that has a rope
"""Each class is either refused by name, or its numbers are the model's: the model's own rotary embedding, built from
the same configuration, has equal frequencies and an equal factor, and its attention's function rotates as librope's
arguments state. Every answer is therefore wrong for a 2-D or multi-axis rope."""
from __future__ import annotations

import copy
import importlib
import inspect
import itertools
import os
import re
import unittest
from functools import lru_cache
from pathlib import Path

import support
from support import numpy

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # some configurations look for others on the network
torch, transformers = support.needs("torch", "transformers")
try:
    from transformers import CONFIG_MAPPING, PreTrainedConfig
    from transformers.modeling_rope_utils import RotaryEmbeddingConfigMixin  # noqa: F401
except ImportError as error:
    raise unittest.SkipTest(f"transformers {transformers.__version__} is too old: {error}") from None

from librope import from_hf_config  # noqa: E402

transformers.logging.set_verbosity(transformers.logging.CRITICAL)

RELATIVE_ERROR = 1e-6
POSITIONS = [0, 1, 5, 11]
# By version of transformers: classes with a rope, and how many of them have only right ropes, all others being refused.
# With timm and torchvision two more are right.
COUNTS = {"5.17.0": (322, 103)}
MIN_RIGHT = 90  # for other versions
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 512}
LONGROPE = {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 512}  # and its two lists
CHANGES = [{"rope_type": "default"}, {"rope_theta": 12345.0}, {"rope_type": "linear", "factor": 4.0},
           {"rope_type": "dynamic", "factor": 4.0}, {"rope_type": "dynamic", "factor": 1.0, "alpha": 1000.0}, YARN,
           {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}, {**YARN, "truncate": False}, LLAMA3, LONGROPE,
           {"rope_type": "proportional", "partial_rotary_factor": 0.5}, {"partial_rotary_factor": 0.5},
           {"partial_rotary_factor": 0.5, "rope_type": "linear", "factor": 4.0}]


@lru_cache(maxsize=None)
def modeling_modules(config_class):
    """The modules of its folder that have a class of rotary embeddings."""
    modules = []
    package = config_class.__module__.rpartition(".")[0]
    for file in sorted(Path(inspect.getfile(config_class)).parent.glob("modeling_*.py")):
        if re.search(r"^class \w*(Rotary|RoPE|Rope)\w*\(", file.read_text(encoding="utf-8"), re.MULTILINE):
            modules.append(importlib.import_module(f"{package}.{file.stem}"))
    return modules


def config_classes():
    modules = sorted({CONFIG_MAPPING[model_type].__module__ for model_type in CONFIG_MAPPING.keys()})
    for module in map(importlib.import_module, modules):
        for cls in vars(module).values():
            if isinstance(cls, type) and issubclass(cls, PreTrainedConfig) and cls.__module__ == module.__name__:
                yield cls


def configs_with_a_rope():
    """(name, configuration). A class that cannot be built without arguments or other packages gives a dict."""
    for cls in config_classes():
        try:
            config = cls()
        except Exception:
            config = {"model_type": cls.model_type}
        names = config if isinstance(config, dict) else vars(config)
        if any(re.search("rope|rotary", name) for name in names) or any(modeling_modules(cls)):
            yield f"{cls.__module__}.{cls.__name__}", config


def layer_types_of(config):
    """None and all possible values."""
    if isinstance(config, dict):
        return [None]
    text = getattr(config, "text_config", None) or config
    parameters = getattr(text, "rope_parameters", None)
    nested = [name for name, value in parameters.items() if isinstance(value, dict)] if parameters else []
    return [None, *sorted({*nested, *(getattr(text, "layer_types", None) or ())})]


@lru_cache(maxsize=None)
def rotary_class_of(config_class):
    """(modeling module, its one rotary embedding that takes this configuration, whether it has several axes), or
    None."""
    found = []
    for module in modeling_modules(config_class):
        for cls in vars(module).values():
            if not isinstance(cls, type) or cls.__module__ != module.__name__:
                continue
            if not re.search("Rotary|Rope", cls.__name__):
                continue
            parameter = inspect.signature(cls.__init__).parameters.get("config")
            annotation = parameter and parameter.annotation
            if isinstance(annotation, str):
                annotation = eval(annotation, vars(module))
            if annotation is config_class:
                found.append((module, cls, bool(re.search("mrope|axial", inspect.getsource(cls)))))
    return found[0] if len(found) == 1 else None


def apply_function(module, config):
    """The function or module by which the model's attention rotates."""
    names = [name for name in ("apply_rotary_pos_emb", "apply_rotary_pos_emb_interleave") if hasattr(module, name)]
    if len(names) == 2:  # only one of them is for this configuration
        return inspect.unwrap(getattr(module, names[config.rope_interleave]))
    return inspect.unwrap(getattr(module, names[0]))


def why_wrong(result, config, layer_type, with_style):
    """How from_hf_config's result differs from the model, or None if it is right."""
    config = getattr(config, "text_config", None) or config
    found = rotary_class_of(type(config))
    if found is None:
        return "there is no rotary embedding of this configuration to compare with"
    module, cls, has_axes = found
    if has_axes:
        return f"{cls.__name__} has several axes"
    rotary = cls(config=config)
    prefix = f"{layer_type}_" if hasattr(rotary, f"{layer_type}_inv_freq") else ""
    if not hasattr(rotary, prefix + "inv_freq"):
        return f"{cls.__name__} has no frequencies for layer type {layer_type}"
    theirs = getattr(rotary, prefix + "inv_freq").double().numpy()
    scale = float(getattr(rotary, prefix + "attention_scaling", 1.0))
    if result["rotary_dim"] != 2 * len(theirs):
        return f"rotary_dim is {result['rotary_dim']}, the model's {2 * len(theirs)}"
    ours = numpy.array(result["inv_freq"]) if "inv_freq" in result else support.frequencies(
        result["rotary_dim"], result["theta"])
    error = numpy.max(numpy.abs(ours - theirs) / numpy.where(theirs == 0, 1e-30, numpy.abs(theirs)))
    if error > RELATIVE_ERROR:
        return f"inv_freq is off by {error:.1e}"
    if abs(result.get("attention_scale", 1.0) / scale - 1) > RELATIVE_ERROR:
        return f"attention_scale is {result.get('attention_scale')}, the model's {scale}"
    if with_style:
        torch.manual_seed(1)
        x = torch.randn(1, 1, len(POSITIONS), result["rotary_dim"])
        arguments = (layer_type,) if prefix else ()
        cos, sin = rotary(x[:, 0], torch.tensor([POSITIONS]), *arguments)
        function = apply_function(module, config)
        is_for_one = list(inspect.signature(function).parameters)[1] == "cos"
        actual = function(x, cos, sin) if is_for_one else function(x, x, cos, sin)[0]
        style, out_style = (result[name].name.lower() for name in ("style", "out_style"))
        expected = support.rotate(x, POSITIONS, theirs, style, out_style, scale=scale)
        if numpy.abs(actual.numpy() - expected).max() > 1e-4:
            return f"pairs are not {style}, written {out_style}"
    return None


class ConfigsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.right, cls.refused, cls.accepted = [], [], []
        cls.failures = {}
        for name, config in configs_with_a_rope():
            is_any = False
            for layer_type in layer_types_of(config):
                for keywords in ({}, {"style": "half"}, {"exact": True}):
                    is_any |= cls.is_accepted(name, config, layer_type, keywords)
                if layer_type in cls.accepted_layers(config, layer_type):
                    cls.accepted.append((name, config, layer_type))
            (cls.right if is_any else cls.refused).append(name)

    @classmethod
    def accepted_layers(cls, config, layer_type):
        try:
            from_hf_config(config, layer_type=layer_type)
        except ValueError:
            return ()
        return (layer_type,)

    @classmethod
    def is_accepted(cls, name, config, layer_type, keywords, oracle=None):
        """False: refused. Records every other result."""
        case = f"{name}, {layer_type}, {keywords}"
        try:
            result = from_hf_config(config, layer_type=layer_type, **keywords)
        except ValueError as error:
            if not re.match(r"\w+ (is|are|and|differs)\b|the configuration has", str(error)):
                cls.failures[case] = f"refused without a name: {error}"
            return False
        except Exception as error:
            cls.failures[case] = repr(error)
            return False
        try:
            why = why_wrong(result, config if oracle is None else oracle, layer_type, "style" not in keywords)
        except Exception as error:
            why = f"the model says {error!r}"
        if why:
            cls.failures[case] = why
        return True

    def assert_no_failures(self):
        failures, type(self).failures = self.failures, {}
        text = "\n".join(f"{case}: {why}" for case, why in failures.items())
        if failures:
            self.fail(f"{len(failures)} wrong:\n{text}")

    def test_1_right_or_refused_by_name(self):
        self.assert_no_failures()

    def test_2_counts(self):
        counts = len(self.right), len(self.refused)
        print(f"\ntransformers {transformers.__version__}: {sum(counts)} configuration classes with a rope, "
              f"{counts[0]} right, {counts[1]} refused, 0 skipped; {len(self.accepted)} ropes")
        for names, classes in ((self.right, ("Mistral4Config", "DeepseekV4Config", "Gemma4TextConfig", "LlamaConfig")),
                               (self.refused, ("DINOv3ViTConfig", "Sapiens2Config", "EomtDinov3Config", "GPTJConfig"))):
            for name in classes:
                self.assertIn(name, {name.rpartition(".")[2] for name in names})
        num_classes, min_right = COUNTS.get(transformers.__version__, (sum(counts), MIN_RIGHT))
        self.assertEqual(sum(counts), num_classes)
        self.assertGreaterEqual(counts[0], min_right)

    def test_3_other_parameters(self):
        """Values that checkpoints have instead of the defaults."""
        num_accepted = num_refused = num_impossible = 0
        for name, config, layer_type in self.accepted:
            num_pairs = from_hf_config(config, layer_type=layer_type)["rotary_dim"] // 2
            for change in CHANGES:
                changed = copy.deepcopy(config)
                text = getattr(changed, "text_config", None) or changed
                parameters = text.rope_parameters.get(layer_type) or text.rope_parameters
                theta = parameters["rope_theta"]
                if "rope_type" in change:
                    parameters.clear()
                parameters.update({"rope_theta": theta, **change})
                if change is LONGROPE:
                    for length in ("short", "long"):
                        parameters[length + "_factor"] = [1.0 + i / 8 for i in range(num_pairs)]
                try:
                    text.standardize_rope_params()
                    rotary_class_of(type(text))[1](config=text)
                except Exception:
                    num_impossible += 1  # there is no such model
                    continue
                if self.is_accepted(f"{name} with {change}", changed, layer_type, {}):
                    num_accepted += 1
                else:
                    num_refused += 1
        print(f"\nwith other parameters: {num_accepted} right, {num_refused} refused; {num_impossible} are no model of "
              "transformers")
        self.assert_no_failures()
        self.assertGreaterEqual(num_accepted, 7 * len(self.accepted))

    def test_4_dicts(self):
        """A config.json has the values that differ from the defaults, and a dict has no defaults."""
        num_accepted = 0
        for name, config, layer_type in self.accepted:
            for change in ({}, {"hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 8},
                           {"hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 8,
                            "max_position_embeddings": 4096, "head_dim": 64}):
                for values in (config.to_dict(), config.to_diff_dict()):
                    values.update(change)
                    values = {"model_type": config.model_type, **values}
                    try:
                        oracle = type(config)(**copy.deepcopy(values))
                    except Exception:
                        continue  # no such model
                    num_accepted += self.is_accepted(f"{name} as a dict with {change}", values, layer_type, {}, oracle)
        print(f"\n{num_accepted} dicts are right")
        self.assert_no_failures()
        self.assertGreaterEqual(num_accepted, 20)


# The types whose dicts are accepted. Gemma 3 is not among them: its layers differ.
DICT_TYPES = ["deepseek_v3", "gemma", "gemma2", "gpt_neox", "llama", "mistral", "mixtral", "phi3", "qwen2", "qwen2_moe",
              "qwen3", "qwen3_moe"]
SIZES = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 2048}


def recipes_of(num_pairs):
    factors = {name: [1.0 + i / 8 for i in range(num_pairs)] for name in ("short_factor", "long_factor")}
    longrope = {**LONGROPE, **factors}
    return [{"rope_type": "default"}, {"rope_theta": 5e5}, {"rope_type": "linear", "factor": 4.0}, YARN,
            {**YARN, "rope_theta": 5e5}, {**YARN, "rope_type": None, "type": "yarn"}, {**YARN, "type": "linear"},
            {**YARN, "original_max_position_embeddings": 1024}, {**YARN, "original_max_position_embeddings": None},
            {**YARN, "factor": None}, LLAMA3, {"rope_type": "dynamic", "factor": 4.0}, longrope,
            {**longrope, "rope_type": "su"}, {**longrope, "type": "yarn", "rope_type": "yarn"},
            {**longrope, "original_max_position_embeddings": 4096}, {"partial_rotary_factor": 0.5},
            {"partial_rotary_factor": None}, {"rope_theta": None}]


def keys_of(model_type, num_pairs):
    """Every key that says something about the rope, with values."""
    recipes = recipes_of(num_pairs)
    return {
        "rope_parameters": [None, *recipes], "rope_scaling": [None, *recipes],
        "rope_theta": [None, 1e4, 5e5], "rotary_emb_base": [1e4, 5e5], "rope_local_base_freq": [1e4],
        "partial_rotary_factor": [0.25, 0.5, 1.0], "rotary_pct": [0.25, 0.5],
        "original_max_position_embeddings": [512, 4096],
        "rotary_dim": [16, 64], "qk_rope_head_dim": [32, 64],
        # transformers' DeepSeek-V3 with a head_dim of None has frequencies for hidden_size / num_attention_heads.
        "head_dim": [32] if model_type == "deepseek_v3" else [None, 32],
        "max_position_embeddings": [4096]}


class PairsTest(unittest.TestCase):
    def test_pairs_of_keys(self):
        """A dict with any two of the keys is refused, or its rope is that of transformers' configuration of it."""
        failures, num_right, num_refused, num_impossible = [], 0, 0, 0
        for model_type in DICT_TYPES:
            base = {"model_type": model_type, **SIZES}
            if model_type in ("gemma", "gemma2", "qwen3"):
                base["head_dim"] = 64
            if model_type == "deepseek_v3":
                base["qk_rope_head_dim"] = 64
            num_pairs = from_hf_config(base)["rotary_dim"] // 2
            keys = keys_of(model_type, num_pairs)
            for first, second in itertools.combinations(keys, 2):
                for values in itertools.product(keys[first], keys[second]):
                    config = {**base, first: values[0], second: values[1]}
                    try:
                        result = from_hf_config(config)
                    except ValueError:
                        num_refused += 1
                        continue
                    case = f"{model_type}, {first} {values[0]}, {second} {values[1]}"
                    try:
                        oracle = CONFIG_MAPPING[model_type](**copy.deepcopy(config))
                        why = why_wrong(result, oracle, None, with_style=False)
                        if not why and from_hf_config(oracle) != result:
                            why = "as an object it has another rope"
                    except Exception:
                        num_impossible += 1  # there is no such model
                        continue
                    num_right += 1
                    if why:
                        failures.append(f"{case}: {why}")
        print(f"\ndicts with two keys: {num_right} accepted, {len(failures)} of them wrong; {num_refused} refused; "
              f"{num_impossible} are no model of transformers")
        self.assertEqual(len(failures), 0, "\n".join(failures[:40]))
        self.assertGreater(num_right, 3000)

    def test_a_rotary_dim(self):
        minimax = CONFIG_MAPPING["minimax_m2"]
        with self.assertRaisesRegex(ValueError, "rotary_dim is 64 and head_dim 128 times partial_rotary_factor 1.0 is"):
            from_hf_config(minimax(rotary_dim=64))
        self.assertEqual(from_hf_config(minimax(rotary_dim=128))["rotary_dim"], 128)
        half = {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5}
        self.assertEqual(from_hf_config(minimax(rotary_dim=64, rope_parameters=half))["rotary_dim"], 64)


if __name__ == "__main__":
    unittest.main()
