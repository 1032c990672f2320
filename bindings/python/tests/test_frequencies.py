# SPDX-License-Identifier: Apache-2.0
# test_frequencies.py - recipes of context scaling, section lists, and configurations of Hugging Face as dicts
from __future__ import annotations

import math
import struct
import unittest

import librope
from librope import InvalidArgument, Scaling, Style, from_hf_config, scaled_frequencies, section_axes


def to_fp32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def plain(rotary_dim, theta):
    return [theta ** (-2 * i / rotary_dim) for i in range(rotary_dim // 2)]


class FrequenciesTest(unittest.TestCase):
    def assert_near(self, actual, expected):
        self.assertEqual(len(actual), len(expected))
        for a, b in zip(actual, expected):
            self.assertTrue(math.isclose(a, b, rel_tol=1e-15), (a, b))

    def test_recipes(self):
        inv_freq, attention_scale = scaled_frequencies(8, 1e4, type="linear", factor=4.0)
        self.assert_near(inv_freq, [f / 4 for f in plain(8, 1e4)])
        self.assertEqual(attention_scale, 1.0)
        self.assertEqual(scaled_frequencies(8, 1e4, type=Scaling.LINEAR, factor=4.0).inv_freq, inv_freq)
        factors = [1.0, 2.0, 3.0, 4.0]
        inv_freq, _ = scaled_frequencies(8, 1e4, type="factors", pair_factors=factors)
        self.assert_near(inv_freq, [f / s for f, s in zip(plain(8, 1e4), factors)])
        short, long = [1.0] * 4, [2.0] * 4
        result = scaled_frequencies(
            8, 1e4, type="longrope", short_factor=short, long_factor=long, original_max_position=16, sequence_length=17,
            factor=4.0)
        self.assert_near(result.inv_freq, [f / 2 for f in plain(8, 1e4)])
        self.assertTrue(math.isclose(result.attention_scale, math.sqrt(1 + math.log(4) / math.log(16))))
        smooth = dict(type="yarn", factor=4.0, original_max_position=32)
        self.assertNotEqual(
            scaled_frequencies(32, 1e4, **smooth), scaled_frequencies(32, 1e4, truncate=False, **smooth))

    def test_errors(self):
        with self.assertRaisesRegex(InvalidArgument, "rope_scaled_frequencies: .*beta_fast"):
            scaled_frequencies(8, 1e4, type="linear", factor=4.0, beta_fast=1.0)
        with self.assertRaisesRegex(ValueError, "type is 'yawn'"):
            scaled_frequencies(8, 1e4, type="yawn")
        with self.assertRaisesRegex(ValueError, "long_factor has 3 entries"):
            scaled_frequencies(8, 1e4, type="longrope", short_factor=[1.0] * 4, long_factor=[1.0] * 3)
        with self.assertRaises(InvalidArgument):
            scaled_frequencies(7, 1e4, type="none")
        with self.assertRaises(InvalidArgument):
            section_axes(-2, 1e4, type="chunked", section=[1])
        with self.assertRaisesRegex(ValueError, "section has 9 entries"):
            section_axes(18, 1e4, type="chunked", section=[1] * 9)

    def test_sections(self):
        axes = section_axes(16, 1e4, type="restarted", section=[4, 4])
        self.assertEqual(axes.pair_axis, [0] * 4 + [1] * 4)
        self.assert_near(axes.inv_freq, 2 * plain(8, 1e4))


class HfConfigTest(unittest.TestCase):
    LLAMA = {"model_type": "llama", "hidden_size": 128, "num_attention_heads": 4, "max_position_embeddings": 64}

    def desc_arguments(self, *arguments, **keywords):
        result = from_hf_config(*arguments, **keywords)
        librope.RopeDesc(**result, layout="bshd", dtype="f32").close()
        return result

    def test_default_is_rounded_to_fp32_unless_exact(self):
        rounded = self.desc_arguments(self.LLAMA)
        self.assertEqual((rounded["head_dim"], rounded["rotary_dim"], rounded["style"]), (32, 32, Style.HALF))
        self.assertEqual(rounded["inv_freq"], [to_fp32(f) for f in scaled_frequencies(32, 1e4, type="none").inv_freq])
        exact = self.desc_arguments(self.LLAMA, exact=True)
        self.assertEqual(exact["theta"], 1e4)
        self.assertNotIn("inv_freq", exact)

    def test_rope_parameters_and_rope_scaling_say_the_same(self):
        recipe = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 32}
        new = self.desc_arguments({**self.LLAMA, "rope_parameters": {**recipe, "rope_theta": 5e5}})
        old = self.desc_arguments({**self.LLAMA, "rope_scaling": recipe, "rope_theta": 5e5})
        self.assertEqual(new, old)
        expected = scaled_frequencies(
            32, 5e5, type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=32)
        self.assertEqual(new["inv_freq"], [to_fp32(f) for f in expected.inv_freq])

    def test_partial_rotation(self):
        neox = {"model_type": "gpt_neox", "hidden_size": 128, "num_attention_heads": 4, "max_position_embeddings": 64}
        self.assertEqual(self.desc_arguments(neox)["rotary_dim"], 8)
        self.assertEqual(self.desc_arguments({**neox, "rotary_pct": 0.5})["rotary_dim"], 16)
        phi3 = {**self.LLAMA, "model_type": "phi3", "partial_rotary_factor": 0.75}
        self.assertEqual(self.desc_arguments(phi3)["rotary_dim"], 24)

    def test_deepseek(self):
        config = {"model_type": "deepseek_v3", "hidden_size": 128, "num_attention_heads": 4, "qk_rope_head_dim": 16,
                  "qk_nope_head_dim": 32, "max_position_embeddings": 256,
                  "rope_scaling": {"type": "yarn", "factor": 8, "original_max_position_embeddings": 32, "mscale": 1.0,
                                   "mscale_all_dim": 0.5}}
        arguments = self.desc_arguments(config)
        self.assertEqual((arguments["head_dim"], arguments["style"], arguments["out_style"]),
                         (16, Style.INTERLEAVED, Style.HALF))
        self.assertTrue(math.isclose(
            arguments["attention_scale"], (0.1 * math.log(8) + 1) / (0.05 * math.log(8) + 1)))
        self.assertEqual(self.desc_arguments({**config, "rope_interleave": False})["style"], Style.HALF)

    def test_layer_types(self):
        config = {**self.LLAMA, "model_type": "gemma3_text", "head_dim": 32, "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}
        self.assertEqual(self.desc_arguments(config, exact=True, layer_type="sliding_attention")["theta"], 1e4)
        self.assertEqual(self.desc_arguments(config, exact=True, layer_type="full_attention")["inv_freq"][0], 1 / 8)
        with self.assertRaisesRegex(ValueError, "layer_type is None: the configuration has full_attention, sliding"):
            from_hf_config(config)
        beside = {**config, "rope_theta": 1e6, "rope_local_base_freq": 1e4}
        for layer_type in ("full_attention", "sliding_attention"):
            self.assertEqual(from_hf_config(beside, layer_type=layer_type), from_hf_config(config, layer_type=layer_type))
        with self.assertRaisesRegex(ValueError, "rope_local_base_freq is 5000.0 and rope_parameters.rope_theta is 10000"):
            from_hf_config({**beside, "rope_local_base_freq": 5e3}, layer_type="sliding_attention")
        flat = {**beside, "rope_parameters": None, "layer_types": ["full_attention", "sliding_attention"]}
        with self.assertRaisesRegex(ValueError, "rope_parameters are for all layers: Gemma 3 has"):
            from_hf_config(flat, layer_type="sliding_attention")

    def test_a_head_dim_of_each_layer(self):
        class Heterogeneous:
            """As in transformers 5: a value that differs between layers cannot be read for all of them."""
            model_type = "llama"
            is_heterogeneous = True
            rope_parameters = {"rope_type": "default", "rope_theta": 1e4}
            per_layer_config: list = []

            @property
            def head_dim(self):
                raise RuntimeError("head_dim is ambiguous")

        with self.assertRaisesRegex(ValueError, "head_dim differs from layer to layer: give that layer's"):
            from_hf_config(Heterogeneous())

    def test_length(self):
        config = {**self.LLAMA, "rope_scaling": {"type": "dynamic", "factor": 2.0}}
        short, long = self.desc_arguments(config), self.desc_arguments(config, sequence_length=128)
        self.assertEqual(short["inv_freq"], self.desc_arguments(self.LLAMA)["inv_freq"])
        self.assertLess(long["inv_freq"][-1], short["inv_freq"][-1])

    YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    NEOX = {**LLAMA, "model_type": "gpt_neox"}

    def test_two_keys_that_say_one_thing(self):
        yarn = {**self.YARN, "rope_theta": 1e6}
        once = self.desc_arguments({**self.LLAMA, "rope_parameters": yarn})
        for twice in ({"rope_scaling": yarn}, {"rope_scaling": self.YARN, "rope_theta": 1e6}, {"rope_theta": 1000000},
                      {"rope_scaling": None, "rope_theta": None}, {"original_max_position_embeddings": 32.0},
                      {"rope_scaling": {**yarn, "type": "yarn", "factor": 4, "beta_fast": None}},
                      {"partial_rotary_factor": 1.0}, {"rotary_dim": 32}, {"rotary_pct": None}):
            with self.subTest(twice):
                self.assertEqual(self.desc_arguments({**self.LLAMA, "rope_parameters": yarn, **twice}), once)
        linear = {"rope_type": "linear", "factor": 2.0}
        for keys, text in (
                ({"rope_scaling": linear}, "rope_parameters and rope_scaling differ: factor is 4.0 by the one and 2.0"),
                ({"rope_scaling": {**yarn, "factor": 2.0}}, "factor is 4.0 by the one and 2.0 by the other"),
                ({"rope_scaling": self.YARN}, "rope_theta is 1000000.0 by the one and 10000.0 by the other"),
                ({"rope_theta": 5e5}, r"rope_theta is 500000.0 and rope_parameters.rope_theta is 1000000.0"),
                ({"partial_rotary_factor": 0.5, "model_type": "phi3", "rope_parameters": {
                    "partial_rotary_factor": 1.0}},
                 "partial_rotary_factor is 0.5 and rope_parameters.partial_rotary_factor is 1.0"),
                ({"original_max_position_embeddings": 16},
                 "original_max_position_embeddings is 16 and rope_parameters.original_max_position_embeddings is 32"),
                ({"rope_parameters": {**yarn, "type": "linear"}}, "rope_type is 'yarn' and type is 'linear'"),
                ({"rotary_dim": 16}, "rotary_dim is 16 and head_dim 32 times partial_rotary_factor 1.0 is 32")):
            with self.subTest(text), self.assertRaisesRegex(ValueError, text):
                from_hf_config({**self.LLAMA, "rope_parameters": yarn, **keys})

    def test_a_legacy_key_is_its_types(self):
        base = self.desc_arguments({**self.NEOX, "rotary_emb_base": 5e5, "rotary_pct": 0.5}, exact=True)
        self.assertEqual((base["theta"], base["rotary_dim"]), (5e5, 16))
        self.assertEqual(base, self.desc_arguments(
            {**self.NEOX, "rotary_emb_base": 500000, "rope_theta": 5e5, "rotary_pct": 0.5, "partial_rotary_factor": 0.5,
             "rope_parameters": {"rope_theta": 5e5, "partial_rotary_factor": 0.5}}, exact=True))
        of_default = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
        self.assertEqual(self.desc_arguments({**self.NEOX, **of_default})["rotary_dim"], 8)
        self.assertEqual(self.desc_arguments({**self.NEOX, **of_default, "rotary_pct": 0.5})["rotary_dim"], 16)
        for config, text in (
                ({**self.NEOX, "rope_theta": 5e5}, "rope_theta is 500000.0 and rotary_emb_base is 10000.0"),
                ({**self.NEOX, "partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5 and rotary_pct is 0.25"),
                ({**self.NEOX, "rotary_pct": 0.5, "partial_rotary_factor": 0.25},
                 "partial_rotary_factor is 0.25 and rotary_pct is 0.5"),
                ({**self.NEOX, "rotary_emb_base": 1e4, "rope_theta": 5e5},
                 "rope_theta is 500000.0 and rotary_emb_base is 10000.0"),
                ({**self.LLAMA, "rotary_emb_base": 5e5}, "rotary_emb_base is 500000.0: a model of type 'llama' has no"),
                ({**self.LLAMA, "model_type": "phi3", "rotary_pct": 0.5}, "rotary_pct is 0.5: a model of type 'phi3'"),
                ({**self.LLAMA, "qk_rope_head_dim": 32}, "qk_rope_head_dim is 32: a model of type 'llama' has no such"),
                ({**self.LLAMA, "rope_local_base_freq": 1e4}, "rope_local_base_freq is 10000.0: a model of type")):
            with self.subTest(text), self.assertRaisesRegex(ValueError, text):
                from_hf_config(config)

    def test_integers(self):
        config = {**self.LLAMA, "rope_parameters": {**self.YARN, "rope_theta": 1e6}}
        floats = {**config, **{name: float(config[name]) for name in
                               ("hidden_size", "num_attention_heads", "max_position_embeddings")},
                  "rope_parameters": {**config["rope_parameters"], "original_max_position_embeddings": 32.0}}
        self.assertEqual(self.desc_arguments(floats), self.desc_arguments(config))
        self.assertEqual(self.desc_arguments({**self.LLAMA, "head_dim": 32.0})["head_dim"], 32)
        for name, value in (("head_dim", 32.5), ("hidden_size", 128.5), ("num_attention_heads", True),
                            ("max_position_embeddings", "64"), ("original_max_position_embeddings", 32.5),
                            ("rotary_dim", 31.5)):
            with self.subTest(name), self.assertRaisesRegex(ValueError, f"{name} is {value!r}: it must be an integer"):
                from_hf_config({**config, name: value})

    def test_no_theta(self):
        for config in ({**self.LLAMA, "rope_theta": None}, {**self.LLAMA, "rope_parameters": {"rope_theta": None}}):
            with self.assertRaisesRegex(ValueError, "rope_theta is None"):
                from_hf_config(config)
        with self.assertRaisesRegex(ValueError, "rotary_emb_base is None"):
            from_hf_config({**self.NEOX, "rotary_emb_base": None})
        with self.assertRaisesRegex(ValueError, "rotary_pct is None"):
            from_hf_config({**self.NEOX, "rotary_pct": None})
        with self.assertRaisesRegex(ValueError, "rope_theta is 0.0: it must be above 0"):
            from_hf_config({**self.LLAMA, "rope_theta": 0})
        with self.assertRaisesRegex(ValueError, "partial_rotary_factor is 0: it makes rotary_dim 0"):
            from_hf_config({**self.LLAMA, "model_type": "phi3", "partial_rotary_factor": 0})

    def test_errors(self):
        for style in (None, "half"):
            with self.assertRaisesRegex(ValueError, "model_type is 'novel', whose rope is not known here: give"):
                from_hf_config({**self.LLAMA, "model_type": "novel"}, style=style)
        self.assertEqual(from_hf_config(self.LLAMA, style="interleaved")["style"], "interleaved")
        with self.assertRaisesRegex(ValueError, "partial_rotary_factor is 0.5: a model of type 'llama' rotates whole"):
            from_hf_config({**self.LLAMA, "partial_rotary_factor": 0.5})
        with self.assertRaisesRegex(ValueError, "hidden_size is missing: a dict must have it"):
            from_hf_config({"model_type": "llama"})
        with self.assertRaisesRegex(ValueError, "head_dim is missing"):
            from_hf_config({**self.LLAMA, "model_type": "qwen3"})
        with self.assertRaisesRegex(ValueError, "rope_parameters are for all layers: Gemma 3 has"):
            from_hf_config({**self.LLAMA, "model_type": "gemma3_text", "head_dim": 32, "rope_theta": 1e6})
        with self.assertRaisesRegex(ValueError, "rope_theta and text_config are both given"):
            from_hf_config({"model_type": "novel", "rope_theta": 1e4, "text_config": self.LLAMA})
        with self.assertRaisesRegex(ValueError, "rope_type is 'novel'"):
            from_hf_config({**self.LLAMA, "rope_scaling": {"type": "novel"}})
        with self.assertRaisesRegex(ValueError, "several position axes"):
            from_hf_config({**self.LLAMA, "rope_scaling": {"type": "default", "mrope_section": [4, 6, 6]}})


if __name__ == "__main__":
    unittest.main()
