# SPDX-License-Identifier: Apache-2.0
# test_repr.py - a descriptor prints as the call that makes it
from __future__ import annotations

import unittest

from librope import Layout, NormTensors, NormType, RopeDesc, Style, SwigluDesc

REQUIRED = {"head_dim": 8, "style": "half", "layout": "thd", "dtype": "f32"}
REQUIRED_TEXT = "RopeDesc(head_dim=8, style='half', layout='thd', dtype='f32'"


class ReprTest(unittest.TestCase):
    def check(self, desc, text):
        self.assertEqual(repr(desc), text)
        self.assertEqual(eval(text).__reduce__(), desc.__reduce__())

    def test_what_is_not_said_is_not_shown(self):
        self.check(RopeDesc(**REQUIRED, theta=10000), REQUIRED_TEXT + ", theta=10000.0)")
        self.check(SwigluDesc(dtype="bfloat16"), "SwigluDesc(dtype='bf16')")

    def test_every_argument(self):
        self.check(
            RopeDesc(head_dim=12, style=Style.INTERLEAVED, layout=Layout.BHSD, dtype="f64", device="cpu", rotary_dim=8,
                     rotary_offset=4, inv_freq=[1, 0.1, 1e-2, 0.001], attention_scale=0.5, num_axes=2,
                     pair_axis=[0, 1, 0, 1], out_style="half", num_threads=3),
            "RopeDesc(head_dim=12, style='interleaved', layout='bhsd', dtype='f64', device='cpu', rotary_dim=8, "
            "rotary_offset=4, inv_freq=[1.0, 0.1, 0.01, 0.001], attention_scale=0.5, num_axes=2, "
            "pair_axis=[0, 1, 0, 1], out_style='half', num_threads=3)")
        self.check(RopeDesc(**REQUIRED, theta=1e6, pair_block=4), REQUIRED_TEXT + ", theta=1000000.0, pair_block=4)")
        self.check(
            SwigluDesc(dtype="f16", alpha=1.702, limit=7, up_offset=1, out_scale=2, num_threads=1),
            "SwigluDesc(dtype='f16', alpha=1.702, limit=7.0, up_offset=1.0, out_scale=2.0, num_threads=1)")
        self.check(
            SwigluDesc(dtype="bf16", activation="geglu-erf", gate_softcap=20, up_softcap=30, limit=7,
                       limit_rule="activation", product_rounding=True),
            "SwigluDesc(dtype='bf16', limit=7.0, activation='geglu_erf', gate_softcap=20.0, up_softcap=30.0, "
            "limit_rule='activation', product_rounding=True)")

    def test_a_norm(self):
        self.check(
            RopeDesc(**REQUIRED, theta=1e4, norm="rms", norm_tensors=["q", "v"], norm_order="after",
                     norm_extent="token", norm_rounding="before_weight", norm_eps=0.5, norm_weight_offset=1),
            REQUIRED_TEXT + ", theta=10000.0, norm='rms', norm_tensors=('q', 'v'), norm_order='after', "
            "norm_extent='token', norm_rounding='before_weight', norm_eps=0.5, norm_weight_offset=1.0)")
        flags = NormTensors.Q | NormTensors.K
        self.check(
            RopeDesc(**REQUIRED, theta=1e4, norm=NormType.LAYER, norm_tensors=flags, norm_eps=0.5),
            REQUIRED_TEXT + ", theta=10000.0, norm='layer', norm_tensors=('q', 'k'), norm_eps=0.5)")

    def test_roundings_before_codes(self):
        self.check(RopeDesc(**REQUIRED, quant_rounding="first"), REQUIRED_TEXT + ", quant_rounding='first')")
        self.check(RopeDesc(**REQUIRED, rotation_rounding="each"), REQUIRED_TEXT + ", rotation_rounding='each')")

    def test_a_device(self):
        self.check(RopeDesc(**REQUIRED, device="cuda"), REQUIRED_TEXT + ", device='cuda')")
        self.assertIn(", device='cpu')", repr(RopeDesc(**REQUIRED, device="cpu")))

    def test_long_arrays_are_cut(self):
        desc = RopeDesc(head_dim=128, style="half", layout="thd", dtype="f32", inv_freq=[2.0**-i for i in range(64)])
        self.assertEqual(
            repr(desc),
            "RopeDesc(head_dim=128, style='half', layout='thd', dtype='f32', inv_freq=[1.0, 0.5, 0.25, ..., "
            f"{2.0**-63!r}])")

    def test_a_closed_one_says_so(self):
        desc = RopeDesc(**REQUIRED)
        desc.close()
        self.assertEqual(repr(desc), "<closed " + REQUIRED_TEXT + ")>")


if __name__ == "__main__":
    unittest.main()
