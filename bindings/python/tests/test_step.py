# SPDX-License-Identifier: Apache-2.0
# test_step.py - norms, row factors, codes and paged caches around the rotation, on NumPy's arrays
from __future__ import annotations

import contextlib
import itertools
import unittest

import support
from support import numpy

import librope
from librope import Cache, Input, InvalidArgument, Norm, NotSupported, Quant, RopeDesc

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

random = numpy.random.default_rng(20261123)
HEAD_DIM = 16
INV_FREQ = support.frequencies(HEAD_DIM, 10000.0)


def normal(*shape, dtype=numpy.float32):
    return random.standard_normal(shape).astype(dtype)


def make_desc(**overrides):
    arguments = dict(head_dim=HEAD_DIM, theta=10000.0, style="half", layout="thd", dtype="f32")
    arguments.update(overrides)
    return RopeDesc(**arguments)


def rotated(x, positions):
    return support.rotate(x, numpy.asarray(positions)[..., None], INV_FREQ, "half")


class StepTest(unittest.TestCase):
    def assert_close(self, actual, expected, tolerance=1e-5):
        self.assertEqual(actual.shape, expected.shape)
        numpy.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


class NormTest(StepTest):
    def test_rms_before_the_rotation(self):
        q, k = normal(5, 4, HEAD_DIM), normal(5, 2, HEAD_DIM)
        q_weight, k_weight = normal(HEAD_DIM), normal(2, HEAD_DIM)
        positions = random.integers(0, 1000, 5)
        desc = make_desc(norm="rms", norm_eps=1e-3, norm_weight_offset=1)
        for weights in ((q_weight, k_weight), (q_weight.astype(numpy.float32), None), (None, None)):
            results = desc.forward(q, k, positions=positions, norm=Norm(*weights))
            for x, weight, result in zip((q, k), weights, results):
                expected = rotated(support.norm(x, weight, offset=1, eps=1e-3), positions)
                self.assert_close(result, expected)

    def test_layer_norm_after_the_rotation(self):
        q, k = normal(5, 4, HEAD_DIM), normal(5, 2, HEAD_DIM)
        weight, bias, k_bias = normal(4, HEAD_DIM), normal(HEAD_DIM), normal(2, HEAD_DIM)
        desc = make_desc(norm="layer", norm_order="after", norm_eps=1e-5)
        q_out, k_out = desc.forward(q, k, norm=Norm(q_weight=weight, q_bias=bias, k_bias=k_bias))
        tokens = numpy.arange(5)
        self.assert_close(q_out, support.norm(rotated(q, tokens), weight, bias, eps=1e-5, layer=True))
        self.assert_close(k_out, support.norm(rotated(k, tokens), None, k_bias, eps=1e-5, layer=True))

    def test_over_all_heads_and_of_chosen_tensors(self):
        q, k, v = normal(5, 4, HEAD_DIM), normal(5, 2, HEAD_DIM), normal(5, 2, HEAD_DIM)
        weight = normal(4, HEAD_DIM)
        desc = make_desc(norm="rms", norm_extent="token", norm_tensors=("q", "v"), norm_eps=1e-6)
        q_out, k_out, v_out = desc.forward(q, k, v, norm=Norm(weight), v_unrotated=True)
        tokens = numpy.arange(5)
        self.assert_close(q_out, rotated(support.norm(q, weight, extent="token"), tokens))
        self.assert_close(k_out, rotated(k, tokens))
        self.assert_close(v_out, support.norm(v, extent="token"))

    def test_in_place(self):
        q = normal(5, 4, HEAD_DIM)
        desc = make_desc(norm="rms", norm_eps=1e-6, rotary_dim=8)
        expected = desc.forward(q, norm=Norm())
        self.assertIs(desc.forward(q, out=q, norm=Norm()), q)
        numpy.testing.assert_array_equal(q, expected)

    def test_refusals(self):
        x = normal(5, 2, HEAD_DIM)
        desc = make_desc(norm="rms", norm_eps=1e-6)
        with self.assertRaisesRegex(InvalidArgument, "norm"):
            desc.forward(x)
        with self.assertRaisesRegex(InvalidArgument, "norm"):
            make_desc().forward(x, norm=Norm())
        with self.assertRaisesRegex(InvalidArgument, "rope_forward: norm.q_weight"):
            desc.forward(x, norm=Norm(normal(3)))
        with self.assertRaisesRegex(InvalidArgument, "rope_forward: norm.q_bias"):
            desc.forward(x, norm=Norm(q_bias=normal(HEAD_DIM)))
        with self.assertRaisesRegex(InvalidArgument, "rope_backward: norm is NULL"):
            desc.backward(x)
        with self.assertRaisesRegex(TypeError, "rope_forward: norm: it is a builtins.str: it must be a librope.Norm"):
            desc.forward(x, norm="rms")
        with self.assertRaisesRegex(TypeError, "rope_forward: norm.k_weight: it is a builtins.list"):
            desc.forward(x, x.copy(), norm=Norm(k_weight=[1.0]))
        with self.assertRaisesRegex(InvalidArgument, "norm_eps"):
            make_desc(norm="rms")
        with self.assertRaisesRegex(ValueError, "norm is 'batch': it must be one of rms, layer"):
            make_desc(norm="batch", norm_eps=1e-6)
        with self.assertRaisesRegex(ValueError, "norm_tensors is 'w': it must be one of q, k, v"):
            make_desc(norm="rms", norm_eps=1e-6, norm_tensors=["q", "w"])


class CacheTest(StepTest):
    PAGES, ENTRIES = 4, 3

    def setUp(self):
        self.tokens = numpy.arange(5)
        self.q, self.k, self.v = normal(5, 4, HEAD_DIM), normal(5, 2, HEAD_DIM), normal(5, 2, HEAD_DIM)
        self.k_cache, self.v_cache = (
            numpy.full((self.PAGES, self.ENTRIES, 2, HEAD_DIM), numpy.nan, dtype=numpy.float32) for _ in range(2))
        self.rows = self.k_cache.reshape(-1, 2, HEAD_DIM), self.v_cache.reshape(-1, 2, HEAD_DIM)

    def check(self, slots, k_rows, v_rows):
        """Rows are written at their slots, and nowhere else."""
        for rows, expected in zip(self.rows, (k_rows, v_rows)):
            for token, slot in enumerate(slots):
                if slot >= 0:
                    self.assert_close(rows[slot], expected[token])
            others = numpy.setdiff1d(numpy.arange(self.PAGES * self.ENTRIES), slots)
            self.assertTrue(numpy.isnan(rows[others]).all())

    def test_slots(self):
        slots = numpy.array([7, 2, -1, 0, 11])
        before = [x.copy() for x in (self.q, self.k, self.v)]
        results = make_desc().forward(
            self.q, self.k, self.v, v_unrotated=True, cache=Cache(self.k_cache, self.v_cache, slots=slots))
        self.check(slots, rotated(self.k, self.tokens), self.v)
        self.assert_close(results[0], rotated(self.q, self.tokens))
        self.assert_close(results[1], rotated(self.k, self.tokens))
        numpy.testing.assert_array_equal(results[2], self.v)
        for x, old in zip((self.q, self.k, self.v), before):
            numpy.testing.assert_array_equal(x, old)

    def test_cached_only_and_in_place(self):
        slots = numpy.array([7, 2, 5, 0, 11], dtype=numpy.int32)
        k = self.k.copy()
        q_out, k_out, v_out = make_desc().forward(
            self.q, self.k, self.v, out=(self.q, False, False), v_unrotated=True,
            cache=Cache(self.k_cache, self.v_cache, slots=slots))
        self.assertIs(q_out, self.q)
        self.assertIsNone(k_out)
        self.assertIsNone(v_out)
        numpy.testing.assert_array_equal(self.k, k)
        self.check(slots, rotated(k, self.tokens), self.v)
        # In place, too.
        self.k_cache[:] = numpy.nan
        result = make_desc().forward(k=self.k, out=self.k, cache=Cache(self.k_cache, slots=slots))
        self.assertIs(result, self.k)
        self.assert_close(self.k, rotated(k, self.tokens))
        self.check(slots, rotated(k, self.tokens), self.v)

    def test_page_table(self):
        # Two sequences of 3 and 2 tokens, which continue at positions 2 and 4 of their pages.
        positions = numpy.array([2, 3, 4, 4, 5])
        slots = [3 * 3 + 2, 1 * 3 + 0, 1 * 3 + 1, 0 * 3 + 1, 0 * 3 + 2]
        cu_seqlens = numpy.array([0, 3, 5], dtype=numpy.int32)
        table = numpy.array([[3, 1], [2, 0]], dtype=numpy.int32)
        flat = dict(page_table=numpy.array([3, 1, 2, 0]), page_indptr=numpy.array([0, 2, 4]))
        sequence = numpy.array([1, 1, 1, 0, 0])
        for cache, arguments in (
                (dict(page_table=table), dict(cu_seqlens=cu_seqlens, positions=positions)),
                (flat, dict(cu_seqlens=cu_seqlens, positions=positions)),
                (dict(page_table=table[::-1], sequence=sequence), dict(positions=positions)),
                (dict(page_table=table, positions=positions), dict(cu_seqlens=cu_seqlens, positions=positions + 7))):
            with self.subTest(cache):
                self.setUp()
                make_desc().forward(
                    self.q, self.k, self.v, out=(None, False, False), v_unrotated=True,
                    cache=Cache(self.k_cache, self.v_cache, **cache), **arguments)
                self.check(slots, rotated(self.k, arguments["positions"]), self.v)

    def test_caches_that_are_views(self):
        # Heads come before entries, and k and v are side by side.
        both = numpy.full((self.PAGES, 2, self.ENTRIES, 2 * HEAD_DIM), numpy.nan, dtype=numpy.float32)
        k_cache = both.transpose(0, 2, 1, 3)[..., :HEAD_DIM]
        v_cache = both.transpose(0, 2, 1, 3)[..., HEAD_DIM:]
        slots = numpy.array([7, 2, 5, 0, 11])
        make_desc().forward(
            k=self.k, v=self.v, out=(False, False), unrotated=True, cache=Cache(k_cache, v_cache, slots=slots))
        for cache, x in ((k_cache, self.k), (v_cache, self.v)):
            numpy.testing.assert_array_equal(cache[slots // 3, slots % 3], x)
        self.assertEqual(numpy.isnan(both).sum(), both.size - 2 * self.k.size)

    def test_a_norm_before_it_and_caches_of_16_bits(self):
        weight = normal(HEAD_DIM)
        slots = numpy.array([7, 2, 5, 0, 11])
        k_cache = self.k_cache.astype(numpy.float16)
        desc = make_desc(norm="rms", norm_tensors="k", norm_eps=1e-6)
        k_out = desc.forward(k=self.k, norm=Norm(k_weight=weight), cache=Cache(k_cache, slots=slots))
        expected = rotated(support.norm(self.k, weight), self.tokens)
        self.assert_close(k_out, expected)
        numpy.testing.assert_array_equal(k_cache.reshape(-1, 2, HEAD_DIM)[slots], k_out.astype(numpy.float16))

    def test_a_reserved_slot_and_faults(self):
        slots = numpy.array([7, 0, 12, 99, 3])
        fault = numpy.zeros(2, dtype=numpy.int64)
        make_desc().forward(
            k=self.k, out=False, fault=fault, cache=Cache(self.k_cache, slots=slots, skip_slot_0=True))
        self.assertEqual(fault.tolist(), [2, 3])
        expected = rotated(self.k, self.tokens)
        for token, slot in ((0, 7), (4, 3)):
            self.assert_close(self.rows[0][slot], expected[token])
        self.assertEqual(numpy.isnan(self.rows[0]).all(axis=(1, 2)).sum(), 10)

    def test_refusals(self):
        desc = make_desc()
        slots = numpy.zeros(5, dtype=numpy.int64)
        read_only = self.k_cache.copy()
        read_only.flags.writeable = False
        both = dict(q=self.q, k=self.k)
        for error, text, arguments in (
                (NotSupported, "v", dict(v=self.v, cache=Cache(v_cache=self.v_cache, slots=slots))),
                (InvalidArgument, "rope_forward: cache.", dict(both, cache=Cache(self.k_cache))),
                (InvalidArgument, "rope_forward: cache.", dict(both, cache=Cache(slots=slots))),
                (InvalidArgument, "rope_forward: cache.slots", dict(
                    both, cache=Cache(self.k_cache, slots=slots.astype(numpy.float32)))),
                (ValueError, "rope_forward: cache.k_cache: it is read-only", dict(
                    both, cache=Cache(read_only, slots=slots))),
                (TypeError, "rope_forward: cache: it is a numpy.ndarray: it must be a librope.Cache", dict(
                    both, cache=self.k_cache)),
                (ValueError, "rope_forward: out is False for q: it must be a tensor or None where there is no q_cache",
                 dict(both, out=(False, None))),
                (ValueError, "rope_forward: out is False for v: ", dict(
                    v=self.v, out=False, unrotated=True, cache=Cache(self.k_cache, slots=slots)))):
            with self.subTest(text), self.assertRaisesRegex(error, text):
                desc.forward(**arguments)
        self.assertTrue(numpy.isnan(self.k_cache).all())
        with self.assertRaisesRegex(TypeError, "unexpected keyword argument 'cache'"):
            desc.backward(self.q, cache=Cache(self.k_cache, slots=slots))

    def test_explain(self):
        read_only = self.k_cache.copy()
        read_only.flags.writeable = False
        text = make_desc().explain(k=self.k, cache=Cache(read_only, slots=numpy.zeros(5, dtype=numpy.int64)))
        self.assertIn("read and written", text)
        self.assertTrue(numpy.isnan(read_only).all())


class FactorTest(StepTest):
    def test_of_tokens_and_of_heads(self):
        q, k = normal(2, 5, 4, HEAD_DIM), normal(2, 5, 2, HEAD_DIM)
        desc = make_desc(layout="bshd")
        q_out, k_out = desc.forward(q, k)
        for q_factor, k_factor in ((normal(5), normal(2, 5)), (normal(1, 5), normal(2, 5, 2)), (None, normal(1, 5, 2))):
            results = desc.forward(q, k, input=Input(q_row_factor=q_factor, k_row_factor=k_factor))
            for x, factor, result in zip((q_out, k_out), (q_factor, k_factor), results):
                if factor is None:
                    factor = numpy.ones(5, numpy.float32)
                factor = factor if factor.ndim == 3 else factor[..., None]
                numpy.testing.assert_array_equal(result, x * factor[..., None])

    def test_backward(self):
        grad, factor = normal(5, 4, HEAD_DIM), normal(5)
        numpy.testing.assert_array_equal(
            make_desc().backward(grad, input=Input(q_row_factor=factor)),
            make_desc().backward(grad) * factor[:, None, None])

    def test_refusals(self):
        x = normal(5, 2, HEAD_DIM)
        for error, text, given in (
                (InvalidArgument, "rope_forward: input.q_row_factor has shape", Input(q_row_factor=normal(4))),
                (InvalidArgument, "rope_forward: input.k_row_factor is set but k is absent", Input(k_row_factor=x[0, 0])),
                (TypeError, "rope_forward: input: it is a .*Norm: it must be a librope.Input", Norm())):
            with self.assertRaisesRegex(error, text):
                make_desc().forward(x, input=given)


@unittest.skipIf(ml_dtypes is None, "needs ml_dtypes")
class CodesTest(StepTest):
    """Arrays of ml_dtypes. Its conversions are the reference."""

    def setUp(self):
        self.types = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2

    def codes(self, x, factor, dtype):
        top = float(ml_dtypes.finfo(dtype).max)
        return numpy.clip(x.astype(numpy.float32) * factor, -top, top).astype(dtype)

    def assert_same(self, actual, expected):
        numpy.testing.assert_array_equal(actual.view(numpy.uint8), expected.view(numpy.uint8))

    def test_outputs(self):
        q, one = normal(50, 4, HEAD_DIM) * 100, numpy.float32(1)
        scale, by_head = numpy.array([0.37], numpy.float32), numpy.array([0.02, 1, 3, 700], numpy.float32)
        for data in (numpy.float32, numpy.float16, ml_dtypes.bfloat16):
            x = q.astype(data)
            desc = make_desc(dtype=data, quant_rounding="first")
            expected = desc.forward(x)
            for dtype in self.types:
                for quant, factor in ((None, one), (Quant(), one), (Quant(q_scale=scale), one / scale),
                                      (Quant(q_scale=by_head), (one / by_head)[:, None]),
                                      (Quant(q_scale=by_head, scale_multiplies=True), by_head[:, None])):
                    out = numpy.zeros(q.shape, dtype)
                    self.assertIs(desc.forward(x, out=out, quant=quant), out)
                    self.assert_same(out, self.codes(expected, factor, dtype))

    def test_caches(self):
        k, v, scale = normal(5, 2, HEAD_DIM), normal(5, 2, HEAD_DIM), numpy.array([0.01], numpy.float32)
        slots, factor = numpy.array([7, 2, -1, 0, 11]), normal(5)
        amax = numpy.array([9, 0, 1e9], numpy.float32)
        for dtype in self.types:
            k_cache, v_cache = (numpy.zeros((4, 3, 2, HEAD_DIM), dtype) for _ in range(2))
            k_out, v_out = make_desc().forward(
                k=k, v=v, v_unrotated=True, cache=Cache(k_cache, v_cache, slots=slots),
                input=Input(k_row_factor=factor), quant=Quant(k_scale=scale, amax_out=amax))
            self.assert_close(k_out, rotated(k, numpy.arange(5)) * factor[:, None, None])
            for cache, x, by in ((k_cache, k_out, 1 / scale), (v_cache, v_out, numpy.float32(1))):
                expected = numpy.zeros((12, 2, HEAD_DIM), dtype)
                expected[slots[slots >= 0]] = self.codes(x, by, dtype)[slots >= 0]
                self.assert_same(cache.reshape(12, 2, HEAD_DIM), expected)
        self.assertEqual(amax[[0, 2]].tolist(), [9, 1e9])
        self.assertIn(amax[1], (numpy.abs(k_out).max(), numpy.abs(k_out[slots >= 0]).max()))

    def test_refusals(self):
        x, scale = normal(5, 2, HEAD_DIM), numpy.ones(1, numpy.float32)
        out = numpy.zeros(x.shape, ml_dtypes.float8_e4m3fn)
        for error, text, arguments in (
                (InvalidArgument, "rope_forward: quant.q_scale is set: neither", dict(quant=Quant(q_scale=scale))),
                (InvalidArgument, "quant.q_scale.dtype is F64", dict(out=out, quant=Quant(scale.astype(float)))),
                (InvalidArgument, "quant.q_scale has shape", dict(out=out, quant=Quant(normal(3)))),
                (InvalidArgument, "quant.amax_out has shape", dict(out=out, quant=Quant(amax_out=normal(2)))),
                (librope.Error, "rope_forward: q", dict(q=out)),
                (TypeError, "q_out: its dtype is float8_e4m3b11fnuz: librope has none such",
                 dict(out=out.view(ml_dtypes.float8_e4m3b11fnuz)))):
            with self.subTest(text), self.assertRaisesRegex(error, text):
                make_desc().forward(**{"q": x, **arguments})
        with self.assertRaisesRegex(librope.Error, "rope_backward: "):
            make_desc().backward(x, out=out)
        with self.assertRaisesRegex(librope.Error, "rope_desc_create: dtype"):
            make_desc(dtype="float8_e4m3fn")
        with self.assertRaisesRegex(ValueError, "quant_rounding is 'last': it must be one of first"):
            make_desc(quant_rounding="last")
        with self.assertRaisesRegex(ValueError, "rotation_rounding is 'all': it must be one of each"):
            make_desc(rotation_rounding="all")
        with self.assertRaisesRegex(librope.NotSupported, "rope_desc_create: rotation_rounding is 2: this version knows"):
            make_desc(rotation_rounding=2)


@unittest.skipIf(not hasattr(ml_dtypes, "float8_e8m0fnu"), "needs ml_dtypes 0.5")
class WrittenScalesTest(StepTest):
    """The bits of codes and scales are checked. Values are those of a call without codes."""

    CODES = () if ml_dtypes is None else (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
    FLOOR = 1e-10  # for F32 scales

    def setUp(self):
        # The type of scales, and whether those of F32 are powers of two.
        self.forms = (numpy.float32, False), (numpy.float32, True), (ml_dtypes.float8_e8m0fnu, False)

    def expected(self, x, groups, code, form, floor=None):
        """The scales and the codes of x."""
        scale, power_of_two = form
        is_float = scale is numpy.float32
        scales, products = support.scaled(
            x, groups, float(ml_dtypes.finfo(code).max), floor or (self.FLOOR if is_float else 0),
            power_of_two or not is_float)
        return scales.astype(scale), products.astype(code)

    def assert_same(self, actual, expected):
        self.assertEqual((actual.dtype, actual.shape), (expected.dtype, expected.shape))
        numpy.testing.assert_array_equal(
            actual.view(f"u{actual.itemsize}"), expected.view(f"u{expected.itemsize}"))

    def test_outputs(self):
        for layout, data in (("thd", numpy.float32), ("bshd", ml_dtypes.bfloat16), ("bhsd", numpy.float16)):
            shape = (50, 4, HEAD_DIM) if layout == "thd" else (2, 5, 4, HEAD_DIM)
            sizes = 10.0 ** random.integers(-4, 4, (*shape[:-1], 1))  # one for each head
            q = (normal(*shape) * sizes).astype(data)
            q[0, 0] = 0
            desc = make_desc(layout=layout, dtype=data, quant_rounding="first")
            values = desc.forward(q)
            for code in self.CODES:
                for form in self.forms:
                    for groups in (1, 4, HEAD_DIM):
                        with self.subTest(f"{layout}, {code.__name__}, {form}, {groups} groups"):
                            out, scales = numpy.zeros(shape, code), numpy.zeros((*shape[:-1], groups), form[0])
                            quant = Quant(q_scales_out=scales, power_of_two=form[1])
                            self.assertIs(desc.forward(q, out=out, quant=quant), out)
                            for actual, expected in zip((scales, out), self.expected(values, groups, code, form)):
                                self.assert_same(actual, expected)

    def test_three_outputs_by_head_by_group_and_split(self):
        x, code = normal(5, 3 * 2, HEAD_DIM), self.CODES[0]
        q, k, v = (x[:, i:i + 2] for i in (0, 2, 4))
        desc, slow_head = make_desc(), numpy.zeros((2, 5, 1), numpy.float32).transpose(1, 0, 2)
        values = desc.forward(q, k, v, v_unrotated=True, quant=Quant())
        split = numpy.zeros((2, 2, 5, 4), ml_dtypes.float8_e8m0fnu).transpose(2, 1, 0, 3)  # [T, H, G/4, 4]
        by_pair, amax = numpy.zeros((5, 2, HEAD_DIM // 2), numpy.float32), numpy.zeros(3, numpy.float32)
        out = [numpy.zeros(q.shape, code) for _ in range(3)]
        desc.forward(q, k, v, out=out, v_unrotated=True, quant=Quant(
            q_scales_out=slow_head, k_scales_out=split, v_scales_out=by_pair, amax_out=amax, scale_floor=0.5))
        for i, (groups, scales) in enumerate(((1, slow_head), (8, split), (8, by_pair))):
            form = (scales.dtype.type, False)
            expected, codes = self.expected(values[i], groups, code, form, floor=0.5)
            self.assert_same(scales, expected.reshape(scales.shape))
            self.assert_same(out[i], codes)
        self.assertEqual(amax.tolist(), [numpy.abs(x).max() for x in values])

    def test_the_floor_of_scales(self):
        x = numpy.zeros((2, 1, HEAD_DIM), numpy.float32)
        x[1] = 1e-12
        out = numpy.zeros(x.shape, self.CODES[0])
        for (scale, power_of_two), floor, expected in (
                (self.forms[0], 0.0, [numpy.float32(1e-10) / 448] * 2), (self.forms[0], 3.0, [numpy.float32(3) / 448] * 2),
                (self.forms[0], 1e-13, [numpy.float32(y) / 448 for y in (1e-13, 1e-12)]),
                (self.forms[1], 3.0, [2.0**-7] * 2), (self.forms[2], 3.0, [2.0**-7] * 2),
                (self.forms[2], 0.0, [2.0**-127, 2.0**-48])):
            scales = numpy.zeros((2, 1, 1), scale)
            make_desc().forward(x, out=out, unrotated=True, quant=Quant(
                q_scales_out=scales, scale_floor=floor, power_of_two=power_of_two))
            self.assertEqual(scales.astype(numpy.float32).ravel().tolist(), numpy.float32(expected).tolist())

    def test_of_caches_apart(self):
        k, v, slots = normal(5, 2, HEAD_DIM) * 30, normal(5, 2, HEAD_DIM), numpy.array([7, 2, -1, 0, 11])
        weight, factor = normal(HEAD_DIM), normal(5)
        desc = make_desc(norm="rms", norm_tensors="k", norm_eps=1e-6)
        operands = dict(k=k, v=v, v_unrotated=True, norm=Norm(k_weight=weight), input=Input(k_row_factor=factor))
        values = desc.forward(**operands)
        self.assert_close(
            values[0], rotated(support.norm(k, weight), numpy.arange(5)) * factor[:, None, None])
        for code in self.CODES:
            for form in self.forms:
                k_cache, v_cache = (numpy.zeros((4, 3, 2, HEAD_DIM), code) for _ in range(2))
                k_scales = numpy.zeros((2, 4, 3, 4), form[0]).transpose(1, 2, 0, 3)
                v_scales = numpy.zeros((4, 3, 2, 1), numpy.float32)
                cache = Cache(k_cache, v_cache, slots=slots, k_scales=k_scales, v_scales=v_scales)
                k_out, v_out = desc.forward(
                    **operands, cache=cache, quant=Quant(power_of_two=True) if form[1] else None)
                numpy.testing.assert_array_equal(k_out, values[0])
                numpy.testing.assert_array_equal(v_out, v)
                for x, groups, given, its_form in (
                        (k_out, 4, (k_scales, k_cache), form), (v_out, 1, (v_scales, v_cache), (numpy.float32, form[1]))):
                    for actual, by_token in zip(given, self.expected(x, groups, code, its_form)):
                        expected = numpy.zeros((12, *by_token.shape[1:]), by_token.dtype)
                        expected[slots[slots >= 0]] = by_token[slots >= 0]
                        self.assert_same(actual.reshape(expected.shape), expected)

    def test_inside_of_the_rows_of_a_cache(self):
        k, slots, groups = normal(5, 2, HEAD_DIM), numpy.array([7, 2, -1, 0, 11]), 2
        for code, form in itertools.product(self.CODES, self.forms):
            end = HEAD_DIM + groups * numpy.dtype(form[0]).itemsize
            rows = random.integers(0, 256, (4, 3, 2, end + 4)).astype(numpy.uint8)
            expected = rows.copy().reshape(12, 2, -1)
            k_cache, k_scales = rows[..., :HEAD_DIM].view(code), rows[..., HEAD_DIM:end].view(form[0])
            k_out = make_desc().forward(
                k=k, cache=Cache(k_cache, slots=slots, k_scales=k_scales), quant=Quant(power_of_two=form[1]))
            scales, codes = (x.view(numpy.uint8) for x in self.expected(k_out, groups, code, form))
            for token, slot in enumerate(slots):
                if slot >= 0:
                    expected[slot, :, :HEAD_DIM], expected[slot, :, HEAD_DIM:end] = codes[token], scales[token]
            numpy.testing.assert_array_equal(rows.reshape(12, 2, -1), expected)

    def test_refusals(self):
        x, one, slots = normal(5, 2, HEAD_DIM), numpy.ones(1, numpy.float32), numpy.arange(5)
        codes, scales = numpy.zeros(x.shape, self.CODES[0]), normal(5, 2, 1)
        before, read_only = scales.copy(), normal(5, 2, 1)
        read_only.flags.writeable = False
        pages, page_scales = numpy.zeros((4, 3, 2, HEAD_DIM), self.CODES[0]), normal(4, 3, 2, 1)

        def cached(k_cache=pages, **scales):
            return dict(k=x, cache=Cache(k_cache, slots=slots, **scales))

        for error, text, arguments in (
                (InvalidArgument, "quant.q_scales_out is set: q_out is absent or has no 8 bits",
                 dict(q=x, quant=Quant(q_scales_out=scales))),
                (InvalidArgument, "quant.k_scales_out is set but k is absent",
                 dict(q=x, out=codes, quant=Quant(k_scales_out=scales))),
                (InvalidArgument, r"quant.q_scales_out has shape \[5, 2, 3\]",
                 dict(q=x, out=codes, quant=Quant(q_scales_out=normal(5, 2, 3)))),
                (InvalidArgument, "quant.q_scales_out.dtype is F64: it must be F32 or F8_E8M0",
                 dict(q=x, out=codes, quant=Quant(q_scales_out=scales.astype(float)))),
                (NotSupported, "quant.q_scales_out.dtype is F8_E4M3",
                 dict(q=x, out=codes, quant=Quant(q_scales_out=scales.astype(self.CODES[0])))),
                (InvalidArgument, "quant.q_scale is set beside quant.q_scales_out",
                 dict(q=x, out=codes, quant=Quant(q_scale=one, q_scales_out=scales))),
                (InvalidArgument, "quant.scale_floor is -1", dict(
                    q=x, out=codes, quant=Quant(q_scales_out=scales, scale_floor=-1.0))),
                (InvalidArgument, "quant.scale_floor is 1: it needs scales that are written",
                 dict(q=x, out=codes, quant=Quant(q_scale=one, scale_floor=1.0))),
                (InvalidArgument, "quant.flags is 0x2: .* needs scales that are written",
                 dict(q=x, out=codes, quant=Quant(power_of_two=True))),
                (ValueError, "quant.q_scales_out: it is read-only",
                 dict(q=x, out=codes, quant=Quant(q_scales_out=read_only))),
                (TypeError, "quant.v_scales_out: it is a builtins.list",
                 dict(q=x, out=codes, quant=Quant(v_scales_out=[1.0]))),
                (InvalidArgument, "cache.k_scales is set: cache.k_cache is absent or has no 8 bits",
                 cached(pages.astype(numpy.float32), k_scales=page_scales)),
                (InvalidArgument, "cache.k_scales has shape", cached(k_scales=scales)),
                (InvalidArgument, "cache.v_scales is set but v is absent", cached(v_scales=page_scales)),
                (InvalidArgument, "quant.k_scale is set beside cache.k_scales",
                 dict(cached(k_scales=page_scales), quant=Quant(k_scale=one))),
                (InvalidArgument, "cache.k_pass_scales is set: cache.k_pass_cache is absent or has no 8 bits",
                 cached(k_pass_scales=page_scales))):
            with self.subTest(text), self.assertRaisesRegex(error, "rope_forward: " + text):
                make_desc().forward(**arguments)
        numpy.testing.assert_array_equal(scales, before)
        self.assertFalse(codes.view(numpy.uint8).any() or pages.view(numpy.uint8).any())
        text = make_desc().explain(x, out=codes, quant=Quant(q_scales_out=read_only))
        self.assertIn("read and written", text)


class PassTest(StepTest):
    """A window of R channels, with the other channels in a tensor or a cache of their own."""

    R = 8
    THD = dict(rotary_dim=R, head_dim=HEAD_DIM + R)
    OFFSETS = 0, 6, HEAD_DIM

    def rotated(self, x, positions, offset, **form):
        return support.rotate(x, positions, support.frequencies(self.R, 10000.0), "half", offset=offset, **form)

    def test_values(self):
        for offset, layout in itertools.product(self.OFFSETS, ("thd", "bshd", "sbhd", "bhsd")):
            axes = (5,) if layout == "thd" else (2, 5)
            x = normal(*axes, 3, HEAD_DIM + self.R)
            expected = self.rotated(x, numpy.arange(5)[:, None], offset, out_style="interleaved", scale=0.5)
            order = dict(thd=(0, 1, 2), bshd=(0, 1, 2, 3), sbhd=(1, 0, 2, 3), bhsd=(0, 2, 1, 3))[layout]
            window, rest = support.parted(x.transpose(order), offset, self.R)
            desc = make_desc(
                layout=layout, rotary_offset=offset, out_style="interleaved", attention_scale=0.5, **self.THD)
            result = desc.forward(window, input=Input(q_pass=rest))
            self.assert_close(result, expected.transpose(order))
            numpy.testing.assert_array_equal(support.parted(result, offset, self.R)[1], rest)
            self.assertIn("read and written", desc.explain(window, input=Input(q_pass=rest)))
            numpy.testing.assert_array_equal(desc.forward(k=window, input=Input(k_pass=rest)), result)

    def test_one_window_or_one_pass_for_all_heads(self):
        q, k = (normal(5, 4, HEAD_DIM + self.R) for _ in range(2))
        q[..., self.R:] = q[:, :1, self.R:]
        k[..., :self.R] = k[:, :1, :self.R]  # k_pe
        desc = make_desc(**self.THD)
        q_pass = numpy.broadcast_to(q[:, :1, self.R:], (5, 4, HEAD_DIM))
        k_pe = numpy.broadcast_to(k[:, :1, :self.R], (5, 4, self.R))
        for call in (support.through_ctypes(), contextlib.nullcontext()):
            with call:
                results = desc.forward(q[..., :self.R], k_pe, input=Input(q_pass, k[..., self.R:]))
            for x, result in zip((q, k), results):
                self.assertTrue(result.flags.c_contiguous)
                self.assert_close(result, self.rotated(x, numpy.arange(5)[:, None], 0))

    def test_norms_factors_and_tokens_of_no_sequence(self):
        q, weight, factor = normal(5, 4, HEAD_DIM + self.R), normal(HEAD_DIM + self.R), normal(5)
        window, rest = support.parted(q, 6, self.R)
        desc = make_desc(norm="rms", norm_eps=1e-6, rotary_offset=6, **self.THD)
        result = desc.forward(
            window, cu_seqlens=numpy.array([0, 3]), norm=Norm(weight), input=Input(q_pass=rest, q_row_factor=factor))
        expected = self.rotated(support.norm(q, weight), numpy.arange(5)[:, None], 6) * factor[:, None, None]
        expected[3:] = 0
        self.assert_close(result, expected)

    def latent(self, dtype, has_pass=True):
        """k of one head, unrotated, and rotated as dtype; a descriptor; slots and those that are written."""
        k, slots = normal(5, 1, HEAD_DIM + self.R).astype(dtype), numpy.array([7, 2, -1, 0, 11])
        desc = make_desc(rotary_offset=HEAD_DIM, dtype=dtype, **self.THD)
        window, rest = support.parted(k, HEAD_DIM, self.R)
        given = dict(k=window, input=Input(k_pass=rest)) if has_pass else dict(k=k)
        return k, given, desc, slots

    def test_latent_caches(self):
        types = [numpy.float32, numpy.float16] + ([] if ml_dtypes is None else [ml_dtypes.bfloat16])
        for dtype, has_pass, is_one in itertools.product(types, (True, False), (True, False)):
            k, given, desc, slots = self.latent(dtype, has_pass)
            pages = numpy.full((4, 3, 1, HEAD_DIM + self.R), numpy.nan, dtype)
            cache = Cache(pages, slots=slots) if is_one else Cache(
                pages[..., HEAD_DIM:], slots=slots, k_pass_cache=pages[..., :HEAD_DIM])
            self.assertIsNone(desc.forward(out=False, cache=cache, **given))
            rows, expected = pages.reshape(12, 1, -1), self.rotated(k, numpy.arange(5)[:, None], HEAD_DIM)
            written = slots >= 0
            numpy.testing.assert_allclose(
                rows[slots[written]].astype(float), expected[written], rtol=1e-5 if dtype is numpy.float32 else 0.01,
                atol=1e-5)
            numpy.testing.assert_array_equal(
                rows[slots[written], :, :HEAD_DIM].astype(float), k[written, :, :HEAD_DIM].astype(float))
            self.assertTrue(numpy.isnan(numpy.delete(rows, slots[written], axis=0)).all())
            # and an output of all channels
            k_out = desc.forward(cache=cache, **given)
            numpy.testing.assert_array_equal(k_out[written].astype(float), rows[slots[written]].astype(float))

    @unittest.skipIf(ml_dtypes is None, "needs ml_dtypes")
    def test_latent_codes_by_static_scales(self):
        k, given, desc, slots = self.latent(ml_dtypes.bfloat16)
        slots = numpy.array([7, 2, 5, 0, 11])
        k_out = desc.forward(**given).astype(numpy.float32)
        scales = [numpy.array([x], numpy.float32) for x in (0.03, 0.7)]
        for code in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
            desc = make_desc(
                rotary_offset=HEAD_DIM, dtype=ml_dtypes.bfloat16, quant_rounding="first", **self.THD)
            caches = [numpy.zeros((4, 3, 1, channels), code) for channels in (self.R, HEAD_DIM)]
            amax = numpy.zeros(3, numpy.float32)
            desc.forward(
                out=False, cache=Cache(caches[0], slots=slots, k_pass_cache=caches[1]),
                quant=Quant(k_scale=scales[0], k_pass_scale=scales[1], amax_out=amax), **given)
            for cache, scale, x in zip(caches, scales, support.parted(k_out, HEAD_DIM, self.R)):
                numpy.testing.assert_array_equal(
                    cache.reshape(12, 1, -1)[slots].view(numpy.uint8), (x * (1 / scale)).astype(code).view(numpy.uint8))
            self.assertEqual(amax.tolist(), [0, numpy.abs(k_out).max(), 0])

    @unittest.skipIf(not hasattr(ml_dtypes, "float8_e8m0fnu"), "needs ml_dtypes 0.5")
    def test_latent_rows_with_scales_inside(self):
        """Codes, their scales, and a window of 16 bits, as in vLLM's rows of 656 bytes."""
        code, groups = ml_dtypes.float8_e4m3fn, 4
        for scale, power_of_two in ((numpy.float32, False), (numpy.float32, True), (ml_dtypes.float8_e8m0fnu, True)):
            k, given, desc, slots = self.latent(ml_dtypes.bfloat16)
            k_out = desc.forward(**given)
            begin = HEAD_DIM + groups * numpy.dtype(scale).itemsize
            rows = random.integers(0, 256, (4, 3, 1, begin + 2 * self.R)).astype(numpy.uint8)
            expected = rows.copy().reshape(12, -1)
            desc.forward(out=False, quant=Quant(scale_floor=1e-4, power_of_two=scale is numpy.float32 and power_of_two),
                         cache=Cache(
                             rows[..., begin:].view(ml_dtypes.bfloat16), slots=slots,
                             k_pass_cache=rows[..., :HEAD_DIM].view(code),
                             k_pass_scales=rows[..., HEAD_DIM:begin].view(scale)), **given)
            scales, products = support.scaled(k_out[..., :HEAD_DIM], groups, 448.0, 1e-4, power_of_two)
            row = numpy.concatenate([
                x.view(numpy.uint8) for x in (products.astype(code), scales.astype(scale), k_out[..., HEAD_DIM:])], -1)
            expected[slots[slots >= 0]] = row[slots >= 0, 0]
            numpy.testing.assert_array_equal(rows.reshape(12, -1), expected)

    def test_refusals(self):
        x, whole = normal(5, 2, self.R), normal(5, 2, HEAD_DIM + self.R)
        rest, slots, one = normal(5, 2, HEAD_DIM), numpy.arange(5), numpy.ones(1, numpy.float32)
        pages, pass_pages = (numpy.zeros((4, 3, 2, channels), numpy.float32) for channels in (self.R, HEAD_DIM))
        read_only = pass_pages.copy()
        read_only.flags.writeable = False

        def cached(k=x, input=Input(k_pass=rest), **caches):
            return dict(k=k, input=input, cache=Cache(**{"k_cache": pages, "slots": slots, **caches}))

        for error, text, arguments in (
                (InvalidArgument, r"q.shape\[2\] is 24: beside input.q_pass it must be rotary_dim, 8",
                 dict(q=whole, input=Input(q_pass=rest))),
                (InvalidArgument, r"input.q_pass.shape\[2\] is 8: it must be head_dim - rotary_dim, 16",
                 dict(q=x, input=Input(q_pass=x))),
                (InvalidArgument, "input.q_pass.dtype is F64: it must be the descriptor's, F32",
                 dict(q=x, input=Input(q_pass=rest.astype(float)))),
                (InvalidArgument, "input.k_pass is set but k is absent", dict(q=x, input=Input(k_pass=rest))),
                (InvalidArgument, "q_out.shape.* must be head_dim, 24",
                 dict(q=x, out=x.copy(), input=Input(q_pass=rest))),
                (InvalidArgument, "input.q_pass is set but q_out is absent",
                 dict(q=x, out=x, input=Input(q_pass=rest))),
                (TypeError, "input.k_pass: it is a builtins.list", dict(k=x, input=Input(k_pass=[1.0]))),
                (InvalidArgument, "cache.k_pass_cache is set but cache.k_cache is absent",
                 cached(k_cache=None, k_pass_cache=pass_pages)),
                (InvalidArgument, "cache.k_pass_cache is set: k has no channels outside the window",
                 cached(input=None, k_pass_cache=pass_pages)),
                (InvalidArgument, "cache.k_cache has shape .* 2, 24]", cached()),
                (InvalidArgument, "cache.k_pass_cache has shape .* 2, 16]", cached(k_pass_cache=pages)),
                (ValueError, "cache.k_pass_cache: it is read-only", cached(k_pass_cache=read_only)),
                (InvalidArgument, "cache.k_pass_scales is set: cache.k_pass_cache is absent or has no 8 bits",
                 cached(k_pass_cache=pass_pages, k_pass_scales=normal(4, 3, 2, 1))),
                (InvalidArgument, "quant.k_pass_scale is set: cache.k_pass_cache is absent or has no 8 bits",
                 dict(cached(k_pass_cache=pass_pages), quant=Quant(k_pass_scale=one)))):
            with self.subTest(text), self.assertRaisesRegex(error, "rope_forward: (?:%s)" % text):
                make_desc(**self.THD).forward(**arguments)
        self.assertFalse(pages.any() or pass_pages.any())
        with self.assertRaisesRegex(NotSupported, "rope_backward: input.q_pass is set: only forward reads it"):
            make_desc(**self.THD).backward(whole, input=Input(q_pass=rest))
        with self.assertRaisesRegex(InvalidArgument, "there are no channels outside the window"):
            make_desc(head_dim=self.R).forward(x, input=Input(q_pass=rest))


class UnrotatedTest(StepTest):
    def test_nothing_is_turned(self):
        q, v = normal(5, 4, HEAD_DIM), normal(5, 2, HEAD_DIM)
        desc = make_desc(theta=0.0)
        for call in (desc.forward, desc.backward):
            for x, result in zip((q, v), call(q, None, v, unrotated=True)):
                numpy.testing.assert_array_equal(result, x)

    def test_v_of_another_width_is_not_turned(self):
        q, v = normal(5, 4, HEAD_DIM), normal(5, 2, 6)
        q_out, v_out = make_desc().forward(q, v=v, v_unrotated=True)
        self.assert_close(q_out, rotated(q, numpy.arange(5)))
        numpy.testing.assert_array_equal(v_out, v)

    def test_outputs_of_16_bits(self):
        q = normal(5, 4, HEAD_DIM)
        out = numpy.empty_like(q, dtype=numpy.float16)
        make_desc().forward(q, out=out)
        numpy.testing.assert_array_equal(out, make_desc().forward(q).astype(numpy.float16))

    def test_each_of_q_k_and_v_alone(self):
        x = normal(5, 2, HEAD_DIM)
        desc = make_desc()
        expected = desc.forward(x)
        for arguments in (dict(k=x), dict(v=x)):
            numpy.testing.assert_array_equal(desc.forward(**arguments), expected)
        k_out, v_out = desc.forward(None, x, x.copy())
        numpy.testing.assert_array_equal(k_out, expected)
        numpy.testing.assert_array_equal(v_out, expected)
        self.assertIn("read and written", desc.explain(k=x))


if __name__ == "__main__":
    unittest.main()
