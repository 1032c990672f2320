# SPDX-License-Identifier: Apache-2.0
# test_modules.py - librope.torch's functions and modules in the shapes of other libraries, against formulas and
# originals
from __future__ import annotations

import copy
import inspect
import os
import pickle
import subprocess
import sys
import unittest
from unittest import mock

import support

torch = support.needs("torch")
try:
    import transformers
except ImportError:
    transformers = None

import librope  # noqa: E402
from librope.torch import RotaryEmbedding, SwiGLU, apply_rotary, apply_rotary_emb, apply_rotary_pos_emb  # noqa: E402
from test_torch import has_compiler  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() and librope.device_count("cuda") else [])
# Relative to an output's own magnitude, and to the largest one.
EXACT = {torch.float64: (0, 1e-12), torch.float32: (0, 2e-6), torch.bfloat16: (2**-8, 2e-6),
         torch.float16: (2**-11, 2e-6)}
needs_transformers = unittest.skipUnless(transformers, "needs transformers")


def rotated(x, cos, sin, interleaved=False):
    """Rotates x [..., D] in fp64 with tables that broadcast, and have a column for each of the first R channels."""
    x, cos, sin = x.double(), cos.double(), sin.double()
    turned, rest = x[..., :cos.shape[-1]], x[..., cos.shape[-1]:]
    if interleaved:
        other = torch.stack([-turned[..., 1::2], turned[..., ::2]], dim=-1).flatten(-2)
    else:
        a, b = turned.chunk(2, dim=-1)
        other = torch.cat([-b, a], dim=-1)
    return torch.cat([turned * cos + other * sin, rest], dim=-1)


def twice(table, interleaved=False):
    """Makes a column for each channel from a table with a column for each pair."""
    return table.repeat_interleave(2, dim=-1) if interleaved else torch.cat([table, table], dim=-1)


class TestCase(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(20261125)

    def assert_near(self, actual, expected, dtype=torch.float32):
        self.assertEqual((actual.dtype, actual.shape), (dtype, expected.shape))
        own, absolute = EXACT[dtype]
        error = (actual.double() - expected).abs() - own * expected.abs()
        self.assertLessEqual(error.max().item(), absolute * expected.abs().max().item())

    def assert_equal(self, actual, expected):
        for a, b in zip(actual, expected) if isinstance(actual, tuple) else ((actual, expected),):
            self.assertTrue(torch.equal(a, b))


class PosEmbTest(TestCase):
    """apply_rotary_pos_emb"""

    def test_formula(self):
        dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
        for device in DEVICES:
            for dtype in dtypes:
                for table_dtype in dtypes:
                    for heads, width, batches in (
                            (1, 16, 1), (2, 16, 2), (1, 8, 2), (2, 4, 1), (-2, 8, 1), (-3, 16, 2)):
                        with self.subTest(device, dtype=dtype, table=table_dtype, heads=heads, width=width):
                            shape = [2, 5, 3, 16] if heads in (2, -2) else [2, 3, 5, 16]
                            q = torch.randn(shape, device=device).to(dtype)
                            k = q.narrow(heads, 0, 1) * 0.5
                            cos, sin = torch.randn(2, batches, 5, width, device=device).to(table_dtype)
                            results = apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=heads)
                            for x, y in zip((q, k), results):
                                expected = rotated(x, cos.unsqueeze(heads), sin.unsqueeze(heads))
                                self.assert_near(y, expected, torch.promote_types(dtype, table_dtype))

    def test_tables_without_a_batch(self):
        cos, sin = torch.randn(2, 5, 8)
        for shape, heads in (((2, 5, 3, 16), 1), ((2, 3, 5, 16), 0), ((5, 3, 16), 1), ((5, 3, 16), -2)):
            with self.subTest(shape, heads=heads):
                q, k = torch.randn(2, *shape)
                for x, y in zip((q, k), apply_rotary_pos_emb(q, k, cos, sin, heads)):
                    self.assert_near(y, rotated(x, cos.unsqueeze(heads), sin.unsqueeze(heads)))

    @needs_transformers
    def test_transformers(self):
        for name in ("llama", "phi3", "gpt_neox"):
            theirs = getattr(getattr(transformers.models, name), "modeling_" + name).apply_rotary_pos_emb
            self.assertEqual(list(inspect.signature(apply_rotary_pos_emb).parameters),
                             list(inspect.signature(inspect.unwrap(theirs)).parameters))
            for device in DEVICES:
                for dtype, table_dtype in ((torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16),
                                           (torch.bfloat16, torch.float32), (torch.float32, torch.float16)):
                    for heads, width in ((1, 16), (2, 16), (1, 8), (2, 8)):
                        if width == 8 and name == "llama":
                            continue
                        with self.subTest(name, device=device, dtype=dtype, table=table_dtype, heads=heads):
                            q = torch.randn((2, 3, 5, 16) if heads == 1 else (2, 5, 3, 16), device=device).to(dtype)
                            k = q.narrow(heads, 1, 2) * 2
                            angles = torch.rand(1, 5, width // 2, device=device) * 6
                            tables = [twice(f(angles)).to(table_dtype) for f in (torch.cos, torch.sin)]
                            inputs = [[x.detach().requires_grad_() for x in (q, k)] for _ in range(2)]
                            results = [f(*pair, *tables, unsqueeze_dim=heads)
                                       for f, pair in zip((apply_rotary_pos_emb, theirs), inputs)]
                            # The original rounds the two products and their sum; each of these is at most twice as
                            # large.
                            tolerance = {torch.float32: 1e-6, torch.bfloat16: 2**-6}
                            for ours, others in zip(*results):
                                self.assertEqual((ours.dtype, ours.shape), (others.dtype, others.shape))
                                self.assertLessEqual(
                                    (ours - others).abs().max(), tolerance[ours.dtype] * others.abs().max())
                            for pair, outs in zip(inputs, results):
                                sum((y.float() ** 3).sum() for y in outs).backward()
                            for ours, others in zip(*inputs):
                                self.assertLessEqual((ours.grad - others.grad).abs().max(),
                                                     4 * tolerance[ours.dtype] * others.grad.abs().max())

    @needs_transformers
    def test_in_the_place_of_that_of_a_model(self):
        modeling = transformers.models.llama.modeling_llama
        model = modeling.LlamaModel(transformers.LlamaConfig(
            vocab_size=97, hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, initializer_range=0.2)).eval()
        ids = torch.randint(1, 97, (2, 13))
        expected = model(ids).last_hidden_state
        calls = []
        with support.seen_args(lambda function, args: calls.append(function)), \
                mock.patch.object(modeling, "apply_rotary_pos_emb", apply_rotary_pos_emb):
            actual = model(ids).last_hidden_state
        self.assertEqual(calls, 2 * ["rope_forward"])
        self.assertLess((actual - expected).abs().max() / expected.abs().max(), 2e-5)

    @needs_transformers
    def test_tables_with_a_column_for_each_pair(self):
        theirs = transformers.models.gpt_oss.modeling_gpt_oss.apply_rotary_pos_emb
        q, k = torch.randn(2, 2, 3, 5, 16)
        cos, sin = torch.randn(2, 1, 5, 8)
        expected = theirs(q, k, cos, sin)
        for actual in (apply_rotary_pos_emb(q, k, twice(cos), twice(sin)), apply_rotary(
                q, k, style="half", layout="bhsd", rotary_dim=16, cos=cos, sin=sin, table_rows="by_token")):
            for x, y in zip(actual, expected):
                self.assertLessEqual((x - y).abs().max(), 1e-6 * y.abs().max())

    def test_gradients(self):
        cos, sin = torch.randn(2, 1, 3, 4, dtype=torch.float64)
        for shape, heads in (((2, 2, 3, 6), 1), ((2, 3, 2, 6), 2)):
            q, k = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(2))

            def function(q, k, heads=heads):
                return apply_rotary_pos_emb(q, k, cos, sin, heads)

            self.assertTrue(torch.autograd.gradcheck(function, (q, k)))
            self.assertTrue(torch.autograd.gradgradcheck(function, (q, k)))
        q = torch.randn(2, 2, 3, 6, dtype=torch.bfloat16, requires_grad=True)  # through the promotion
        grad = torch.randn(2, 2, 3, 6)
        result, _ = apply_rotary_pos_emb(q, q.detach(), cos.float(), sin.float())
        result.backward(grad)
        self.assert_near(q.grad, rotated_back(grad, cos[:, None], sin[:, None]), torch.bfloat16)

    def test_refusals(self):
        q, cos = torch.randn(2, 3, 5, 16), torch.randn(1, 5, 16)
        for error, text, arguments in (
                (TypeError, "apply_rotary_pos_emb: unsqueeze_dim is None: it must be an int", (q, q, cos, cos, None)),
                (TypeError, "unsqueeze_dim is tensor", (q, q, cos, cos, torch.arange(5))),
                (ValueError, "unsqueeze_dim is 0: for q of 4 axes and cos of 3 it must be", (q, q, cos, cos, 0)),
                (ValueError, "unsqueeze_dim is 1: for q of 3 axes and cos of 3", (q[0], q[0], cos, cos)),
                (ValueError, "cos, sin and angles have no gradient", (q, q, cos.clone().requires_grad_(), cos)),
                (librope.InvalidArgument, "sin.shape", (q, q, cos, cos[..., :8])),
                (librope.InvalidArgument, "cos.shape.1. is 4: by token", (q, q, cos[:, :4], cos[:, :4])),
                (librope.InvalidArgument, "cos.shape.1. is 5: by token", (q, q, cos, cos, 2)),
                (librope.InvalidArgument, "rotary_dim is 32: it must be even, at most head_dim 16",
                 (q, q, twice(cos), twice(cos))),
                (librope.InvalidArgument, "k.dtype", (q, q.double(), cos, cos))):
            with self.subTest(text), self.assertRaisesRegex(error, text):
                apply_rotary_pos_emb(*arguments)


def rotated_back(grad, cos, sin):
    """The gradient of rotated in the half style, with columns of its own."""
    grad, cos, sin = grad.double(), cos.double(), sin.double()
    (g, h), (s, t), rest = grad[..., :cos.shape[-1]].chunk(2, -1), sin.chunk(2, -1), grad[..., cos.shape[-1]:]
    c, d = cos.chunk(2, -1)
    return torch.cat([g * c + h * t, h * d - g * s, rest], dim=-1)


class EmbTest(TestCase):
    """apply_rotary_emb"""

    def tables(self, rows, width, device="cpu", dtype=torch.float32):
        angles = torch.rand(rows, width // 2, device=device) * 6
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def expected(self, x, cos, sin, interleaved, rows):
        """rows: the tables' row for each token, [B, S] or [T]; -1: the token passes through."""
        cos = torch.where(rows[..., None] < 0, 1.0, cos.double()[rows])
        sin = torch.where(rows[..., None] < 0, 0.0, sin.double()[rows])
        return rotated(x, *(twice(table, interleaved).unsqueeze(-2) for table in (cos, sin)), interleaved)

    def test_the_signature(self):
        parameters = inspect.signature(apply_rotary_emb).parameters.values()
        self.assertEqual([(p.name, p.default) for p in parameters if p.default is not p.empty], [
            ("interleaved", False), ("inplace", False), ("seqlen_offsets", 0), ("cu_seqlens", None),
            ("max_seqlen", None)])

    def test_sequences_of_one_length(self):
        for device in DEVICES:
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                for interleaved in (False, True):
                    for width in (16, 8):
                        cos, sin = self.tables(20, width, device, dtype)
                        starts = torch.tensor([15, 2], device=device)
                        for offsets in (0, 15, starts, starts.int()):
                            for inplace in (False, True):
                                with self.subTest(device, dtype=dtype, interleaved=interleaved, width=width,
                                                  offsets=offsets, inplace=inplace):
                                    base = torch.randn(2, 5, 9, 16, device=device).to(dtype)
                                    x, before = base[:, :, 2:5], base.clone()
                                    rows = torch.arange(5, device=device).expand(2, 5)
                                    rows = rows + (offsets if isinstance(offsets, int) else offsets[:, None])
                                    expected = self.expected(x, cos, sin, interleaved, rows)
                                    y = apply_rotary_emb(x, cos, sin, interleaved, inplace, offsets)
                                    self.assertEqual(y is x, inplace)
                                    self.assert_near(y, expected, dtype)
                                    self.assert_equal(base[:, :, 5:], before[:, :, 5:])
                                    self.assert_equal(base[:, :, :2], before[:, :, :2])
                                    if not inplace:
                                        self.assert_equal(x, before[:, :, 2:5])

    def test_packed_sequences(self):
        for device in DEVICES:
            cos, sin = self.tables(9, 8, device)
            cu_seqlens = torch.tensor([0, 2, 2, 7], device=device, dtype=torch.int32)
            for starts in (None, torch.tensor([3, 0, 4], device=device)):
                rows = torch.cat([torch.arange(2), torch.arange(5)]).to(device)
                if starts is not None:
                    rows = rows + torch.tensor([3, 3, 4, 4, 4, 4, 4], device=device)
                for inplace in (False, True):
                    with self.subTest(device, starts=starts, inplace=inplace):
                        x = torch.randn(8, 3, 16, device=device)  # a token more than the sequences
                        last = x[7].clone() if inplace else torch.zeros_like(x[7])
                        expected = self.expected(x[:7], cos, sin, True, rows)
                        y = apply_rotary_emb(x, cos, sin, True, inplace, 0 if starts is None else starts, cu_seqlens, 5)
                        self.assertEqual(y is x, inplace)
                        self.assert_near(y[:7], expected)
                        self.assert_equal(y[7], last)

    def test_tokens_that_tensors_move_out_of_the_tables(self):
        cos, sin = self.tables(9, 8)
        x, rows = torch.randn(2, 5, 3, 16), torch.tensor([[7, 8, -1, -1, -1], [-1, -1, 0, 1, 2]])
        y = apply_rotary_emb(x, cos, sin, seqlen_offsets=torch.tensor([7, -2]))
        self.assert_near(y, self.expected(x, cos, sin, False, rows))

    def test_gradients(self):
        cos, sin = (x.double() for x in self.tables(9, 4))
        cu_seqlens = torch.tensor([0, 2, 3])
        for inplace in (False, True):
            for interleaved in (False, True):
                def dense(x, inplace=inplace, interleaved=interleaved):
                    return apply_rotary_emb(x * 1.0, cos, sin, interleaved, inplace, torch.tensor([3, 0]))

                def packed(x, inplace=inplace, interleaved=interleaved):
                    return apply_rotary_emb(x * 1.0, cos, sin, interleaved, inplace, 2, cu_seqlens, 2)

                x = torch.randn(2, 3, 2, 6, dtype=torch.float64, requires_grad=True)
                self.assertTrue(torch.autograd.gradcheck(dense, (x,)))
                self.assertTrue(torch.autograd.gradgradcheck(dense, (x,)))
                self.assertTrue(torch.autograd.gradcheck(packed, (x[0].detach().requires_grad_(),)))

    def test_in_place_and_autograd(self):
        cos, sin = self.tables(9, 8)
        x = torch.randn(2, 5, 3, 16, requires_grad=True)
        with self.assertRaisesRegex(RuntimeError, "a leaf Variable that requires grad"):
            apply_rotary_emb(x, cos, sin, inplace=True)
        product = x.square()
        y = apply_rotary_emb(product, cos, sin, inplace=True)
        self.assertIs(y, product)
        y.sum().backward()
        grad = rotated_back(torch.ones_like(y), twice(cos)[:5, None], twice(sin)[:5, None])
        self.assert_near(x.grad, 2 * x.detach().double() * grad)
        saved = torch.randn(2, 5, 3, 16)
        loss = (torch.ones((), requires_grad=True) * saved).sum()
        apply_rotary_emb(saved, cos, sin, inplace=True)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            loss.backward()
        with torch.no_grad():  # a leaf, while nothing is recorded
            version, before = x._version, x.detach().clone()
            self.assertIs(apply_rotary_emb(x, cos, sin, inplace=True), x)
            self.assertGreater(x._version, version)
            self.assert_near(x, rotated(before, twice(cos)[:5, None], twice(sin)[:5, None]))

    def test_refusals(self):
        x, (cos, sin) = torch.randn(2, 5, 3, 16), self.tables(9, 16)
        before, cu_seqlens = x.clone(), torch.tensor([0, 2])
        with_grad = cos.clone().requires_grad_()
        for inplace in (False, True):
            for error, text, arguments in (
                    (ValueError, "apply_rotary_emb: cos.shape.0. is 9: sequences of 5 tokens from seqlen_offsets 5 on",
                     dict(seqlen_offsets=5)),
                    (ValueError, "from seqlen_offsets -1 on must be inside", dict(seqlen_offsets=-1)),
                    (ValueError, "cos.shape.0. is 4: sequences of 5", dict(cos=cos[:4], sin=sin[:4])),
                    (ValueError, "sequences of 10 tokens", dict(x=x[0], cu_seqlens=cu_seqlens, max_seqlen=10)),
                    (ValueError, "max_seqlen is None: it must be given", dict(x=x[0], cu_seqlens=cu_seqlens)),
                    (ValueError, "cos, sin and angles have no gradient|cos: it requires grad", dict(cos=with_grad)),
                    (librope.InvalidArgument, "rotary_dim is 32", dict(cos=twice(cos), sin=twice(sin))),
                    (librope.InvalidArgument, "sin.shape", dict(sin=sin[:, :4])),
                    (librope.InvalidArgument, "start_positions", dict(seqlen_offsets=torch.tensor([1, 2, 3]))),
                    (librope.InvalidArgument, "q.ndim is 3", dict(x=x[0])),
                    (librope.InvalidArgument, "q.ndim is 4", dict(cu_seqlens=cu_seqlens, max_seqlen=2))):
                with self.subTest(text, inplace=inplace), self.assertRaisesRegex(error, text):
                    apply_rotary_emb(**{**dict(x=x, cos=cos, sin=sin, inplace=inplace), **arguments})
        self.assert_equal(x, before)


class RotaryEmbeddingTest(TestCase):
    def expected(self, x, positions, style="half", theta=10000.0, width=16):
        """x [B, S, H, D], positions [B, S] or [1, S]"""
        angles = positions.double()[..., None] * theta ** (-torch.arange(0, width, 2, device=x.device).double() / width)
        is_interleaved = style == "interleaved"
        tables = (twice(table, is_interleaved)[:, :, None] for table in (angles.cos(), angles.sin()))
        return rotated(x, *tables, is_interleaved)

    def test_formula(self):
        for device in DEVICES:
            for layout, order in (("bshd", (0, 1, 2, 3)), ("bhsd", (0, 2, 1, 3)), ("sbhd", (1, 0, 2, 3))):
                for style in ("half", "interleaved"):
                    for dtype, width in ((torch.float32, 16), (torch.float32, 8), (torch.bfloat16, 16)):
                        module = RotaryEmbedding(16, style=style, layout=layout, theta=500.0, rotary_dim=width)
                        q, k = (torch.randn(2, 5, heads, 16, device=device).to(dtype) for heads in (4, 2))
                        index = torch.arange(5, device=device)[None]
                        for arguments, positions in (
                                (dict(), index),
                                (dict(positions=index * 3), index * 3),  # [1, S], as Hugging Face has it
                                (dict(positions=index[0] * 3), index * 3), (dict(position_offset=7), index + 7),
                                (dict(positions=torch.cat([index, index + 9])), torch.cat([index, index + 9])),
                                (dict(start_positions=index[0, 2:4]), index + index[0, 2:4, None])):
                            with self.subTest(
                                    device, layout=layout, style=style, dtype=dtype, width=width, **arguments):
                                results = module(q.permute(order), k.permute(order), **arguments)
                                for x, y in zip((q, k), results):
                                    expected = self.expected(x, positions, style, 500.0, width)
                                    self.assert_near(y, expected.permute(order), dtype)
                                self.assert_equal(module(q.permute(order), **arguments), results[0])

    def test_positions_come_third(self):
        q, k, positions = torch.randn(2, 5, 4, 16), torch.randn(2, 5, 2, 16), torch.randint(0, 1000, (1, 5))
        module = RotaryEmbedding(16, style="half", layout="bshd", theta=10000.0)
        for x, y in zip((q, k), module(q, k, positions)):
            self.assert_near(y, self.expected(x, positions))

    def test_packed_sequences(self):
        module = RotaryEmbedding(16, style="half", layout="thd", theta=10000.0)
        x = torch.randn(7, 3, 16)
        positions = torch.tensor([[0, 1, 0, 1, 2, 3, 4]])
        self.assert_near(module(x, cu_seqlens=torch.tensor([0, 2, 7])), self.expected(x[None], positions)[0])

    def test_frequencies_of_a_recipe_and_of_sections(self):
        x = torch.randn(2, 5, 3, 16)
        scaled = librope.scaled_frequencies(16, 1e4, type="yarn", factor=4.0, original_max_position=32)
        module = RotaryEmbedding(16, style="half", layout="bshd", **scaled._asdict())
        angles = torch.arange(5).double()[:, None] * torch.tensor(scaled.inv_freq, dtype=torch.float64)
        self.assertGreater(scaled.attention_scale, 1.0)
        tables = [twice(scaled.attention_scale * f(angles))[:, None] for f in (torch.cos, torch.sin)]
        self.assert_near(module(x), rotated(x, *tables))
        module = RotaryEmbedding(
            16, style="half", layout="bshd", inv_freq=torch.tensor(scaled.inv_freq, dtype=torch.float64),
            attention_scale=scaled.attention_scale)
        self.assert_near(module(x), rotated(x, *tables))
        axes = librope.section_axes(16, 1e4, type="chunked", section=[2, 3, 3])
        module = RotaryEmbedding(16, style="half", layout="bshd", num_axes=3, **axes._asdict())
        positions = torch.randint(0, 100, (3, 2, 5))
        angles = positions.double()[axes.pair_axis].movedim(0, -1) * torch.tensor(axes.inv_freq, dtype=torch.float64)
        self.assert_near(
            module(x, positions=positions), rotated(x, *(twice(f(angles))[:, :, None] for f in (torch.cos, torch.sin))))

    @needs_transformers
    def test_the_configuration_of_a_model(self):
        config = transformers.LlamaConfig(hidden_size=64, num_attention_heads=4, rope_parameters={
            "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32})
        modeling = transformers.models.llama.modeling_llama
        theirs = modeling.LlamaRotaryEmbedding(config)
        module = RotaryEmbedding(**librope.from_hf_config(config), layout="bhsd")
        q, k, positions = torch.randn(2, 4, 5, 16), torch.randn(2, 2, 5, 16), torch.randint(0, 60, (1, 5))
        expected = modeling.apply_rotary_pos_emb(q.double(), k.double(), *theirs(q.double(), positions))
        for actual, wanted in zip(module(q, k, positions), expected):
            self.assertLess((actual - wanted).abs().max(), 2e-5)  # the original has angles of fp32

    def test_a_module_as_others(self):
        inv_freq = [1.0, 0.7, 0.3, 0.1, 0.07, 0.03, 0.01, 1e-6]
        module = RotaryEmbedding(
            16, style=librope.Style.HALF, layout="BSHD", inv_freq=inv_freq, out_style="interleaved",
            attention_scale=1.25)
        self.assertEqual(
            repr(module), "RotaryEmbedding(head_dim=16, style='half', layout='bshd', inv_freq=(1.0, 0.7, 0.3, 0.1, "
            "0.07, 0.03, ...), attention_scale=1.25, out_style='interleaved')")
        self.assertEqual((len(module.state_dict()), list(module.parameters()), list(module.buffers())), (0, [], []))
        module.load_state_dict({})
        x = torch.randn(2, 5, 3, 16)
        expected = module(x, position_offset=10**6)
        for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), module.half(), module.to("meta")):
            self.assert_equal(twin(x, position_offset=10**6), expected)

    def test_gradients_and_checkpoints(self):
        module = RotaryEmbedding(6, style="interleaved", layout="bshd", theta=100.0)
        positions = torch.tensor([[5, 0, 9]])
        q, k = (torch.randn(2, 3, heads, 6, dtype=torch.float64, requires_grad=True) for heads in (2, 1))
        self.assertTrue(torch.autograd.gradcheck(lambda q, k: module(q, k, positions), (q, k)))
        expected = torch.autograd.grad(sum(x.pow(3).sum() for x in module(q, k, positions)), (q, k))
        for use_reentrant in (False, True):
            q.grad = k.grad = None
            results = checkpoint(module, q, k, positions, use_reentrant=use_reentrant)
            sum(x.pow(3).sum() for x in results).backward()
            self.assert_equal((q.grad, k.grad), expected)

    def test_refusals(self):
        for error, text, arguments in (
                (librope.InvalidArgument, "rope_desc_create: head_dim", dict(head_dim=15)),
                (librope.InvalidArgument, "rope_desc_create: rotary_dim", dict(rotary_dim=18)),
                (ValueError, "style is 'neox': it must be one of half, interleaved", dict(style="neox")),
                (ValueError, "layout is 'hsd': it must be one of", dict(layout="hsd")),
                (ValueError, "inv_freq has 3 entries", dict(theta=0.0, inv_freq=[1.0, 2.0, 3.0])),
                (TypeError, "base", dict(base=1e4))):
            with self.subTest(text), self.assertRaisesRegex(error, text):
                RotaryEmbedding(**{**dict(head_dim=16, style="half", layout="bshd", theta=1e4), **arguments})
        module = RotaryEmbedding(16, style="half", layout="bshd", theta=1e4)
        with self.assertRaisesRegex(ValueError, r"RotaryEmbedding: q.shape\[-1\] is 8: it must be head_dim, 16"):
            module(torch.randn(2, 5, 3, 8))
        with self.assertRaisesRegex(librope.InvalidArgument, "k.shape"):
            module(torch.randn(2, 5, 3, 16), torch.randn(2, 5, 3, 8))
        with self.assertRaisesRegex(librope.InvalidArgument, "positions has shape .1, 4.: it must be"):
            module(torch.randn(2, 5, 3, 16), positions=torch.zeros(1, 4, dtype=torch.int64))


class SwiGLUTest(TestCase):
    def expected(self, module, x):
        weights = {name: value.detach().double() for name, value in module.state_dict().items()}

        def linear(name, x):
            return torch.nn.functional.linear(x, weights[name + ".weight"], weights.get(name + ".bias"))

        if "gate_up_proj.weight" in weights:
            gate, up = linear("gate_up_proj", x.double()).chunk(2, dim=-1)
        else:
            gate, up = linear("gate_proj", x.double()), linear("up_proj", x.double())
        return linear("down_proj", gate / (1 + torch.exp(-gate)) * up)

    def test_formula(self):
        for device in DEVICES:
            for packed in (False, True):
                for bias in (False, True):
                    for shape in ((2, 5, 12), (5, 12), (12,), (2, 1, 3, 12)):
                        with self.subTest(device, packed=packed, bias=bias, shape=shape):
                            module = SwiGLU(12, 20, 7, bias, packed=packed, device=device)
                            x = torch.randn(shape, device=device)
                            expected = self.expected(module, x)
                            self.assertEqual(expected.shape, (*shape[:-1], 7))
                            self.assert_near(module(x), expected)
        module = SwiGLU(12, 20, dtype=torch.float64)
        x = torch.randn(3, 12, dtype=torch.float64)
        self.assert_near(module(x), self.expected(module, x), torch.float64)
        module = SwiGLU(12, 20, dtype=torch.bfloat16)
        x = torch.randn(3, 12).bfloat16()
        self.assertEqual(module(x).dtype, torch.bfloat16)
        expected = self.expected(module, x)
        self.assertLess((module(x) - expected).abs().max(), 2**-6 * expected.abs().max())

    def test_weights(self):
        for bias in (False, True):
            biases = {name: shape for name, shape in (("gate_proj.bias", (20,)), ("up_proj.bias", (20,)),
                                                      ("gate_up_proj.bias", (40,)), ("down_proj.bias", (12,))) if bias}
            for packed, weights in ((False, {"gate_proj.weight": (20, 12), "up_proj.weight": (20, 12)}),
                                    (True, {"gate_up_proj.weight": (40, 12)})):
                module = SwiGLU(12, 20, bias=bias, packed=packed, device="meta", dtype=torch.float16)
                names = {*weights, *(name.replace("weight", "bias") for name in weights), "down_proj.bias"}
                weights["down_proj.weight"] = (12, 20)
                weights.update({name: shape for name, shape in biases.items() if name in names})
                self.assertEqual({name: tuple(x.shape) for name, x in module.state_dict().items()}, weights)
                self.assertEqual({(x.device.type, x.dtype) for x in module.parameters()}, {("meta", torch.float16)})
        separate, packed = SwiGLU(12, 20), SwiGLU(12, 20, packed=True)
        state = separate.state_dict()
        packed.load_state_dict({
            **{"gate_up_proj." + name: torch.cat([state["gate_proj." + name], state["up_proj." + name]])
               for name in ("weight", "bias")}, **{name: x for name, x in state.items() if "down" in name}})
        x = torch.randn(5, 12)
        self.assert_near(packed(x), separate(x).double())

    @needs_transformers
    def test_weights_of_models(self):
        sizes = dict(hidden_size=12, intermediate_size=20)
        models = transformers.models
        gemma = transformers.GemmaConfig(**sizes, num_attention_heads=1, hidden_activation="gelu_pytorch_tanh")
        for theirs, form in (
                (models.llama.modeling_llama.LlamaMLP(transformers.LlamaConfig(**sizes, num_attention_heads=1)), {}),
                (models.phi3.modeling_phi3.Phi3MLP(transformers.Phi3Config(**sizes, pad_token_id=0)), dict(packed=True)),
                (models.gemma.modeling_gemma.GemmaMLP(gemma), dict(activation="geglu_tanh"))):
            module = SwiGLU(12, 20, bias=False, **form)
            self.assertEqual("activation='geglu_tanh'" in repr(module), "activation" in form)
            module.load_state_dict(theirs.state_dict())
            x = torch.randn(2, 5, 12)
            self.assert_near(module(x), theirs.double()(x.double()).detach())

    def test_gradients_and_checkpoints(self):
        for packed in (False, True):
            module = SwiGLU(4, 6, 3, packed=packed, dtype=torch.float64)
            x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
            names = [name for name, _ in module.named_parameters()]
            weights = [p.detach().clone().requires_grad_() for p in module.parameters()]

            def function(x, *weights, module=module, names=names):
                return torch.func.functional_call(module, dict(zip(names, weights)), (x,))

            self.assertTrue(torch.autograd.gradcheck(function, (x, *weights)))
            module(x).square().sum().backward()
            expected = [p.grad for p in (x, *module.parameters())]
            for use_reentrant in (False, True):
                for p in (x, *module.parameters()):
                    p.grad = None
                checkpoint(module, x, use_reentrant=use_reentrant).square().sum().backward()
                self.assert_equal(tuple(p.grad for p in (x, *module.parameters())), tuple(expected))

    def test_a_module_as_others(self):
        for packed in (False, True):
            module = SwiGLU(12, 20, packed=packed)
            x = torch.randn(5, 12)
            expected = module(x)
            for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
                self.assert_equal(twin(x), expected)
                torch.optim.SGD(twin.parameters(), lr=1.0).zero_grad()
                twin(x).sum().backward()
                self.assertIsNone(module.down_proj.weight.grad)
        self.assertIn("(up_proj): Linear(in_features=12, out_features=20, bias=True)", repr(SwiGLU(12, 20)))
        for device in DEVICES:
            module, x = SwiGLU(12, 20).to(device), torch.randn(5, 12, device=device)
            with torch.autocast(device, torch.bfloat16):
                y = module(x)
            self.assertEqual(y.dtype, torch.bfloat16)
            expected = self.expected(module, x)
            self.assertLess((y - expected).abs().max(), 2**-5 * expected.abs().max())


class ProcessTest(unittest.TestCase):
    def test_pickles_for_another_process(self):
        objects = (RotaryEmbedding(16, style="half", layout="bshd", theta=1e4), SwiGLU(4, 6), apply_rotary_emb)
        code = ("import pickle, sys; "
                "print(*(getattr(x, '__name__', type(x).__name__) for x in pickle.load(sys.stdin.buffer)))")
        done = subprocess.run(
            [sys.executable, "-c", code], input=pickle.dumps(objects), stdout=subprocess.PIPE, check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
        self.assertEqual(done.stdout.split(), [b"RotaryEmbedding", b"SwiGLU", b"apply_rotary_emb"])


class CompileTest(TestCase):
    @classmethod
    def setUpClass(cls):
        if not has_compiler():
            raise unittest.SkipTest("torch.compile does not work here")

    def assert_compiles(self, function, make_inputs):
        """Compiles to one graph, for two lengths, with the gradients of the floating inputs."""
        torch._dynamo.reset()
        compiled = torch.compile(function, fullgraph=True)
        for device in DEVICES:
            for tokens in (5, 7):
                inputs = [x.to(device) if isinstance(x, torch.Tensor) else x for x in make_inputs(tokens)]
                results = []
                for f in (function, compiled):
                    leaves = [x.clone().requires_grad_() for x in inputs if x.is_floating_point()]
                    rest = [x for x in inputs if not x.is_floating_point()]
                    outs = f(*leaves, *rest)
                    outs = outs if isinstance(outs, tuple) else (outs,)
                    grads = torch.autograd.grad(sum(x.square().sum() for x in outs), leaves)
                    with torch.no_grad():
                        quiet = f(*inputs)
                    results.append((*outs, *grads, *(quiet if isinstance(quiet, tuple) else (quiet,))))
                for actual, expected in zip(*results):
                    self.assertTrue(torch.allclose(actual, expected, rtol=1e-4, atol=1e-4))

    def test_pos_emb(self):
        cos, sin = torch.randn(2, 1, 9, 8)

        def function(q, k):
            tables = (x[:, :q.shape[2]].to(q.device) for x in (cos, sin))
            return apply_rotary_pos_emb(q * 2, k, *tables)

        self.assert_compiles(function, lambda tokens: (torch.randn(2, 4, tokens, 16), torch.randn(2, 1, tokens, 16)))

    def test_emb(self):
        cos, sin = torch.randn(2, 12, 4)

        def function(x, offsets):
            tables = cos.to(x.device), sin.to(x.device)
            y = apply_rotary_emb(x * 2, *tables, inplace=True, seqlen_offsets=offsets)
            return apply_rotary_emb(y + 1, *tables, interleaved=True, seqlen_offsets=3)

        self.assert_compiles(function, lambda tokens: (torch.randn(2, tokens, 3, 16), torch.tensor([1, 4])))

    def test_modules(self):
        rotary = RotaryEmbedding(16, style="half", layout="bshd", inv_freq=[2.0**-i for i in range(8)])
        torch.manual_seed(20261125)
        mlp = SwiGLU(16, 24, packed=True)

        class Block(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.rotary, self.mlp = rotary, mlp

            def forward(self, q, k, positions):
                q, k = self.rotary(q * 2, k, positions)
                return self.mlp(q), k

        for device in DEVICES:
            block = Block().to(device)
            with mock.patch.object(sys.modules[__name__], "DEVICES", [device]):
                self.assert_compiles(block, lambda tokens: (
                    torch.randn(2, tokens, 3, 16), torch.randn(2, tokens, 1, 16), torch.arange(tokens)[None]))


if __name__ == "__main__":
    unittest.main()
