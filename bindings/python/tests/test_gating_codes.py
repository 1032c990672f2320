# SPDX-License-Identifier: Apache-2.0
# test_gating_codes.py - SwiGLU with an output of 8 bits: codes and scales byte for byte, through every interface
"""ReGLU's values are products of two numbers, rounded once, so its codes and scales are known exactly. Those of SwiGLU
are checked within the error that rounding to 8 bits allows."""
from __future__ import annotations

import contextlib
import gc
import itertools
import sys
import unittest

import support
from support import numpy

import librope
from librope import InvalidArgument, NotSupported, ScaleLayout, SwigluDesc, SwigluQuant, _calls

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None
try:
    import torch
except ImportError:
    torch = None

TOPS = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
CODES = tuple(TOPS)
FORMS = ("float32", False), ("float32", True), ("float8_e8m0fnu", False)  # of written scales
needs_ml_dtypes = unittest.skipIf(not hasattr(ml_dtypes, "float8_e8m0fnu"), "needs ml_dtypes 0.5")
needs_torch = unittest.skipIf(torch is None or not hasattr(torch, "float8_e8m0fnu"), "needs torch 2.7")
reads_torch = not _calls.why_ctypes and torch is not None and hasattr(torch.Tensor, "__dlpack_c_exchange_api__")


def normal(seed, *shape, dtype=numpy.float32):
    return numpy.random.default_rng(seed).standard_normal(shape).astype(dtype)


def inputs(seed, *shape, dtype=numpy.float32):
    """gate and up with rows of many magnitudes, and a group of 0."""
    sizes = 10.0 ** numpy.random.default_rng(seed).integers(-3, 3, (*shape[:-1], 1))
    gate, up = normal(seed, *shape) * sizes, normal(seed + 1, *shape)
    gate[0] = -1.0
    return gate.astype(dtype), up.astype(dtype)


def rectified(gate, up):
    """ReGLU as numbers of fp32. Products of two numbers of 16 bits are exact in fp32."""
    return numpy.maximum(gate.astype(numpy.float32), 0) * up.astype(numpy.float32)


def zeros(shape, dtype):
    return numpy.zeros(shape, getattr(ml_dtypes, dtype) if dtype.startswith("float8") else dtype)


def as_codes(products, code):
    """The bytes of numbers of fp32, rounded to nearest even."""
    if ml_dtypes is not None:
        return products.astype(getattr(ml_dtypes, code)).view(numpy.uint8)
    return torch.from_numpy(products).to(getattr(torch, code)).view(torch.uint8).numpy()


def quantised(values, groups, code, form, floor=0.0):
    """The scales that a call writes, and the codes. Results of 8 bits are given as bytes."""
    dtype, power_of_two = form
    is_float = dtype == "float32"
    scales, products = support.scaled(
        values, groups, TOPS[code], floor or (1e-10 if is_float else 0.0), power_of_two or not is_float)
    return scales if is_float else (scales.view(numpy.uint32) >> 23).astype(numpy.uint8), as_codes(products, code)


def static(values, factor, code):
    return as_codes(numpy.clip(values.astype(numpy.float32) * numpy.float32(factor), -TOPS[code], TOPS[code]), code)


def as_bytes(x):
    if torch is not None and isinstance(x, torch.Tensor):
        return x.view(torch.uint8).numpy() if x.element_size() == 1 else x.detach().numpy()
    return numpy.ascontiguousarray(x).view(numpy.uint8) if x.dtype.itemsize == 1 else x


class CodesTest(unittest.TestCase):
    def assert_same(self, actual, expected):
        numpy.testing.assert_array_equal(as_bytes(actual), as_bytes(expected))


@needs_ml_dtypes
class NumpyTest(CodesTest):
    def test_static_scales(self):
        for dtype, code in itertools.product((numpy.float32, numpy.float16, ml_dtypes.bfloat16), CODES):
            gate, up = inputs(3, 7, 24, dtype=dtype)
            values, scale = rectified(gate, up), numpy.array([0.37], numpy.float32)
            desc = SwigluDesc(dtype=dtype, activation="reglu")
            one = numpy.float32(1)
            for quant, factor in ((None, one), (SwigluQuant(), one), (SwigluQuant(scale), one / scale),
                                  (SwigluQuant(scale, scale_multiplies=True), scale)):
                out = zeros((7, 24), code)
                self.assertIs(desc.forward(gate, up, out, quant=quant), out)
                self.assert_same(out, static(values, factor, code))

    def test_values_of_swiglu(self):
        gate, up = normal(5, 40, 64), normal(6, 40, 64)
        expected = support.swiglu(gate, up, alpha=1.5, limit=1.0)
        for code, step in zip(CODES, (1 / 16, 1 / 8)):
            out, scales = zeros((40, 64), code), zeros((40, 2), "float32")
            librope.swiglu(gate, up, out, alpha=1.5, limit=1.0, quant=SwigluQuant(scales_out=scales))
            wanted = numpy.abs(expected).reshape(40, 2, 32).max(-1) / TOPS[code]
            numpy.testing.assert_allclose(scales, wanted, rtol=1e-5)
            restored = out.astype(numpy.float64) * numpy.repeat(scales, 32, axis=1)
            numpy.testing.assert_allclose(restored, expected, rtol=1.01 * step, atol=2e-3 * numpy.abs(expected).max())

    def test_written_scales(self):
        for (dtype, first), code, form, groups in itertools.product(
                ((numpy.float32, 0), (numpy.float16, "first"), (ml_dtypes.bfloat16, ["first"]),
                 (ml_dtypes.bfloat16, 0)), CODES, FORMS, (1, 3, 24)):
            gate, up = inputs(7, 5, 24, dtype=dtype)
            values = rectified(gate, up)
            if first:
                values = values.astype(dtype)
            out, scales = zeros((5, 24), code), zeros((5, groups), form[0])
            SwigluDesc(dtype=dtype, activation="reglu", quant_rounding=first).forward(
                gate, up, out, quant=SwigluQuant(scales_out=scales, power_of_two=form[1]))
            with self.subTest(f"{dtype.__name__}, {code}, {form}, {groups} groups"):
                for actual, expected in zip((scales, out), quantised(values, groups, code, form)):
                    self.assert_same(actual, expected)

    def test_where_scales_lie(self):
        """Scales are column-major, split by fours, padded, and of rows with two axes."""
        gate, up = inputs(9, 2, 5, 32)
        code, desc, values = CODES[0], SwigluDesc(dtype="f32", activation="reglu"), rectified(gate, up)
        by_columns = numpy.full((8, 2, 8), numpy.nan, numpy.float32)
        split = numpy.full((2, 2, 8, 4), numpy.nan, numpy.float32)
        rows = numpy.full((2, 4), numpy.nan, numpy.float32)
        for groups, scales, given in (
                (8, by_columns[:, :, :5].transpose(1, 2, 0), values),
                (8, split[:, :, :5].transpose(1, 2, 0, 3), values),
                (1, rows[:, 1:2], values.reshape(2, -1))):
            out, amax = zeros((2, 5, 32), code), zeros(1, "float32")
            desc.forward(gate, up, out, quant=SwigluQuant(scales_out=scales, amax_out=amax, scale_floor=0.25))
            expected, codes = quantised(given, groups, code, FORMS[0], floor=0.25)
            self.assert_same(scales, expected.reshape(scales.shape))
            self.assert_same(out, codes.reshape(out.shape))
            self.assertEqual(amax[0], numpy.abs(values).max())
        for scales, number in ((by_columns, 8 * 2 * 3), (split, 2 * 2 * 3 * 4), (rows, 2 * 3)):
            self.assertEqual(numpy.isnan(scales).sum(), number)  # nothing outside of the scales was written

    def test_experts_and_rows_that_do_not_count(self):
        gate, up = inputs(11, 3, 4, 16)
        rows, scale = numpy.array([4, 0, 2]), numpy.array([0.5, 3.0, 0.02], numpy.float32)
        exists = numpy.arange(4) < rows[:, None]
        desc, values, code = SwigluDesc(dtype="f32", activation="reglu"), rectified(gate, up), CODES[1]
        for quant, expected in (
                (SwigluQuant(scale, amax_out=zeros(1, "float32")),
                 static(values, 1 / scale[:, None, None], code)),
                (SwigluQuant(scales_out=numpy.full((3, 4, 2), 7, numpy.float32)),
                 quantised(values, 2, code, FORMS[0])[1])):
            out = numpy.full((3, 4, 16), 9, numpy.uint8)
            desc.forward(gate, up, out.view(getattr(ml_dtypes, code)), expert_rows=rows, quant=quant)
            self.assert_same(out, numpy.where(exists[..., None], expected, numpy.uint8(9)))
            if quant.scales_out is not None:
                wanted = quantised(values, 2, code, FORMS[0])[0]
                self.assert_same(quant.scales_out, numpy.where(exists[..., None], wanted, numpy.float32(7)))
            else:
                self.assertEqual(quant.amax_out[0], numpy.abs(values[exists]).max())

    def test_refusals(self):
        gate, up = inputs(13, 3, 8)
        codes, scales, one = zeros((3, 8), CODES[0]), zeros((3, 2), "float32"), numpy.ones(1, "f4")
        read_only = scales.copy()
        read_only.flags.writeable = False
        desc = SwigluDesc(dtype="f32")
        for error, text, out, quant in (
                (InvalidArgument, "quant.scale is set", None, SwigluQuant(one)),
                (InvalidArgument, "quant.scales_out is set", None, SwigluQuant(scales_out=scales)),
                (InvalidArgument, r"quant.scale has shape \[3\]", codes, SwigluQuant(numpy.ones(3, "f4"))),
                (InvalidArgument, "quant.scale.dtype is F64", codes, SwigluQuant(numpy.ones(1))),
                (InvalidArgument, "quant.scale is set beside quant.scales_out", codes, SwigluQuant(one, scales)),
                (InvalidArgument, r"quant.scales_out has shape \[3, 3\]", codes,
                 SwigluQuant(scales_out=numpy.zeros((3, 3), "f4"))),
                (InvalidArgument, r"quant.amax_out has shape \[3\]", codes, SwigluQuant(amax_out=numpy.zeros(3, "f4"))),
                (InvalidArgument, "quant.scale_floor is -1", codes, SwigluQuant(scales_out=scales, scale_floor=-1.0)),
                (InvalidArgument, "quant.scale_floor is 1", codes, SwigluQuant(one, scale_floor=1.0)),
                (InvalidArgument, "quant.flags is 0x2", codes, SwigluQuant(one, power_of_two=True)),
                (NotSupported, "quant.scale_layout is 7", codes, SwigluQuant(scales_out=scales, scale_layout=7)),
                (ValueError, "scale_layout is '8x4': it must be one of strided, 128x4", codes,
                 SwigluQuant(scales_out=scales, scale_layout="8x4")),
                (TypeError, "real number", codes, SwigluQuant(scales_out=scales, scale_floor="0")),
                (ValueError, "quant.scales_out: it is read-only", codes, SwigluQuant(scales_out=read_only)),
                (TypeError, "quant.scales_out: it is a builtins.list", codes, SwigluQuant(scales_out=[1.0])),
                (TypeError, "quant: it is a builtins.tuple: it must be a librope.SwigluQuant", codes, (None,) * 7),
                (TypeError, "it must be a librope.SwigluQuant", codes, librope.Quant()),
                (Exception, "", codes, tuple.__new__(SwigluQuant, (one,))),
                (InvalidArgument, "out", gate.view(codes.dtype)[:, :8], SwigluQuant(one))):
            for call in (support.through_ctypes(), contextlib.nullcontext()):
                with self.subTest(text), call, self.assertRaisesRegex(error, text):
                    desc.forward(gate, up, out, quant=quant)
        self.assertFalse(codes.view(numpy.uint8).any() or scales.any())
        with self.assertRaisesRegex(NotSupported, "swiglu_forward: out.dtype is F8_E4M3: .* from F32, F16 or BF16"):
            SwigluDesc(dtype="f64").forward(gate.astype(float), up.astype(float), codes)
        with self.assertRaisesRegex(ValueError, "quant_rounding is 'last': it must be one of first"):
            SwigluDesc(dtype="f32", quant_rounding="last")
        with self.assertRaisesRegex(ValueError, "quant_rounding is 'last'"):
            librope.swiglu(gate, up, quant_rounding="last")

    def test_explain_and_repr(self):
        gate, up = inputs(15, 3, 8)
        desc, out = SwigluDesc(dtype="f32", quant_rounding=["first"]), zeros((3, 8), CODES[0])
        quant = SwigluQuant(scales_out=numpy.zeros((3, 1), numpy.float32))
        self.assertRegex(desc.explain(gate, up, out, quant=quant), "^swiglu F32 forward on the CPU: ")
        self.assertFalse(out.view(numpy.uint8).any() or quant.scales_out.any())
        with self.assertRaisesRegex(InvalidArgument, "swiglu_explain: quant.scale"):
            desc.explain(gate, up, quant=SwigluQuant(numpy.ones(1, numpy.float32)))
        self.assertEqual(repr(desc), "SwigluDesc(dtype='f32', quant_rounding='first')")
        self.assertEqual([*map(int, ScaleLayout)], [0, 1])

    @unittest.skipIf(torch is None, "needs torch")
    def test_calls_that_are_kept(self):
        """Calls of one kind share a struct; another number makes another kind."""
        desc = SwigluDesc(dtype="f16", activation="reglu")
        for seed in range(3):
            gate, up = inputs(seed, 4, 8, dtype=numpy.float16)
            values = rectified(gate, up)
            for floor, power_of_two in ((1e-10, False), (1e-10, True), (3.0, False)):
                out, scales = torch.zeros(4, 8, dtype=torch.float8_e4m3fn), torch.zeros(4, 2)
                with support.through_ctypes():
                    desc.forward(torch.from_numpy(gate), torch.from_numpy(up), out, quant=SwigluQuant(
                        scales_out=scales, scale_floor=floor, power_of_two=power_of_two))
                expected = quantised(values, 2, CODES[0], ("float32", power_of_two), floor)
                for actual, wanted in zip((scales, out), expected):
                    self.assert_same(actual, wanted)
        self.assertEqual(len(desc._kept._kept), 3)


@unittest.skipUnless(reads_torch, "needs librope_python.so and torch 2.10")
class BuiltinsTest(CodesTest):
    def test_the_same_as_through_ctypes(self):
        gate, up = (torch.from_numpy(x) for x in inputs(17, 3, 4, 16))
        rows, desc = torch.tensor([4, 0, 2]), SwigluDesc(dtype="f32")

        def run(way, code, keywords):
            out, scales, amax = torch.zeros(3, 4, 16, dtype=code), torch.zeros(3, 4, 2), torch.zeros(1)
            quant = SwigluQuant(amax_out=amax, **keywords) if "scale" in keywords else SwigluQuant(
                scales_out=scales, amax_out=amax, **keywords)
            with way:
                self.assertIs(desc.forward(gate, up, out, expert_rows=rows, quant=quant), out)
            self.assertEqual([x._version for x in (out, amax)], [1, 1])
            return out, scales, amax

        from test_calls import only_builtins  # calls through ctypes fail in it

        desc.forward(gate, up)
        for code, keywords in itertools.product(
                (torch.float8_e4m3fn, torch.float8_e5m2),
                (dict(scale=torch.ones(1)), dict(scale=torch.rand(3) + 0.1, scale_multiplies=True),
                 dict(power_of_two=True), dict(scale_floor=2.0))):
            for actual, expected in zip(run(only_builtins(), code, keywords),
                                        run(support.through_ctypes(), code, keywords)):
                self.assert_same(actual, expected)

    def test_references(self):
        gate, up = (torch.from_numpy(x) for x in inputs(19, 4, 8))
        quant = SwigluQuant(scales_out=torch.zeros(4, 1), amax_out=torch.zeros(1))
        out, desc = torch.zeros(4, 8, dtype=torch.float8_e4m3fn), SwigluDesc(dtype="f32")
        watched = [gate, up, quant, quant.scales_out, quant.amax_out, out, desc, None, NotImplemented]

        def work(count):
            for _ in range(count):
                desc.forward(gate, up, out, quant=quant)
                for wrong in (quant._replace(scale_floor=-1.0), quant._replace(scales_out=gate), ()):
                    with contextlib.suppress(ValueError, TypeError):
                        desc.forward(gate, up, out, quant=wrong)

        work(100)
        gc.collect()
        counts, blocks = [*map(sys.getrefcount, watched)], sys.getallocatedblocks()
        work(1000)
        gc.collect()
        self.assertLess(max(abs(sys.getrefcount(x) - count) for x, count in zip(watched, counts)), 100)
        self.assertLess(sys.getallocatedblocks() - blocks, 500)


@needs_torch
class TorchTest(CodesTest):
    def setUp(self):
        from librope.torch import geglu, swiglu

        self.swiglu, self.geglu = swiglu, geglu

    def test_new_codes_and_scales(self):
        numbers = inputs(21, 2, 5, 24, dtype=numpy.float16)
        packed = torch.from_numpy(numpy.concatenate(numbers, -1))
        gate, up = packed.chunk(2, -1)
        values = rectified(*numbers)
        for code, form, first, group_size in itertools.product(CODES, FORMS, (0, "first"), (6, 24)):
            dtype, scale_dtype = getattr(torch, code), getattr(torch, form[0])
            codes, scales = self.swiglu(
                gate, up, activation="reglu", out_dtype=dtype, group_size=group_size, scale_dtype=scale_dtype,
                quant_rounding=first, quant=SwigluQuant(power_of_two=form[1]))
            self.assertEqual((codes.dtype, scales.dtype), (dtype, scale_dtype))
            self.assertTrue(codes.is_contiguous() and scales.is_contiguous())
            expected = quantised(
                values.astype(numpy.float16) if first else values, 24 // group_size, code, form)
            for actual, wanted in zip((scales, codes), expected):
                self.assert_same(actual, wanted)

    def test_given_scales(self):
        numbers = inputs(23, 5, 24)
        gate, up = map(torch.from_numpy, numbers)
        values, scale, amax = rectified(*numbers), torch.tensor([0.3]), torch.zeros(1)
        for code in CODES:
            dtype = getattr(torch, code)
            codes = self.swiglu(gate, up, activation="reglu", out_dtype=dtype)
            self.assert_same(codes, static(values, 1, code))
            codes = self.swiglu(gate, up, activation="reglu", out_dtype=dtype, quant=SwigluQuant(scale, amax_out=amax))
            self.assert_same(codes, static(values, numpy.float32(1) / scale.numpy(), code))
            self.assertEqual(amax, numpy.abs(values).max())
            scales = torch.zeros(4, 8).t()[:5]  # [.., 4] of columns of 8
            codes = self.swiglu(gate, up, activation="reglu", out_dtype=dtype, quant=SwigluQuant(scales_out=scales[:5]))
            for actual, wanted in zip((scales, codes), quantised(values, 4, code, FORMS[0])):
                self.assert_same(actual, wanted)
        codes, scales = self.geglu(gate, up, "tanh", out_dtype=torch.float8_e5m2, group_size=8)
        wanted = self.geglu(gate, up, "tanh")
        self.assertTrue(torch.allclose(
            codes.float() * scales.repeat_interleave(8, -1), wanted, rtol=0.13, atol=1e-4 * float(wanted.abs().max())))

    def of_4_bits(self, values, group_size, factor):
        """Codes of two channels each, and scales, in bytes, of MXFP4, or of NVFP4 with a global factor."""
        groups = values.astype(numpy.float32).reshape(*values.shape[:-1], -1, group_size)
        amax = numpy.abs(groups).max(-1)
        if factor is None:
            scales = (2.0 ** numpy.ceil(numpy.log2(numpy.maximum(amax / 6.0, 2.0**-127)))).astype(numpy.float32)
            given, by = (scales.view(numpy.uint32) >> 23).astype(numpy.uint8), 1 / scales
        else:
            rounded = (factor * (amax / numpy.float32(6))).clip(max=448).astype(ml_dtypes.float8_e4m3fn)
            given, scales = rounded.view(numpy.uint8), rounded.astype(numpy.float32)
            by = numpy.divide(factor, scales, out=numpy.zeros_like(scales), where=scales != 0)
        codes = (groups * by[..., None]).clip(-6, 6).astype(ml_dtypes.float4_e2m1fn).view(numpy.uint8)
        codes = codes.reshape(values.shape) & 15
        return codes[..., ::2] | codes[..., 1::2] << 4, given

    @unittest.skipIf(not hasattr(ml_dtypes, "float4_e2m1fn") or not hasattr(torch, "float4_e2m1fn_x2"),
                     "needs ml_dtypes 0.5 and torch 2.8")
    def test_types_of_4_bits(self):
        numbers = inputs(27, 3, 5, 96, dtype=numpy.float16)
        gate, up = map(torch.from_numpy, numbers)
        values, factor = rectified(*numbers).astype(numpy.float16), numpy.float32(448 * 6 / 3.7e3)
        keywords = dict(activation="reglu", quant_rounding="first", out_dtype=torch.float4_e2m1fn_x2)
        desc = SwigluDesc(dtype="f16", activation="reglu", quant_rounding="first")
        for group_size, scale_dtype, given in (
                (32, torch.float8_e8m0fnu, None), (16, torch.float8_e4m3fn, torch.tensor([factor]))):
            expected = self.of_4_bits(values, group_size, None if given is None else factor)
            for way in (support.through_ctypes, contextlib.nullcontext):
                with way():
                    codes, scales = self.swiglu(
                        gate, up, group_size=group_size, scale_dtype=scale_dtype, quant=SwigluQuant(given), **keywords)
                self.assertEqual((codes.dtype, codes.shape), (torch.float4_e2m1fn_x2, (3, 5, 48)))
                for actual, wanted in zip((codes, scales), expected):
                    self.assert_same(actual, wanted)
                    out, written = torch.empty_like(codes), torch.empty_like(scales)
                    desc.forward(gate, up, out, quant=SwigluQuant(given, scales_out=written))
                    self.assert_same(out, codes)
                    self.assert_same(written, scales)
                    if reads_torch and way is contextlib.nullcontext:
                        from test_calls import only_builtins

                        with only_builtins():
                            desc.forward(gate, up, out, quant=SwigluQuant(given, scales_out=written))
                # Tiles have 0 at places without a row or a group.
                with way():
                    codes, tiles = self.swiglu(gate, up, group_size=group_size, scale_dtype=scale_dtype,
                                               quant=SwigluQuant(given, scale_layout="128x4"), **keywords)
                self.assertEqual(tiles.shape, (3, 128, (96 // group_size + 3) // 4 * 4))
                wanted = numpy.zeros((3, tiles[0].numel()), numpy.uint8)
                for batch, m, k in numpy.ndindex(*scales.shape):
                    wanted[batch, k // 4 * 512 + m % 32 * 16 + m // 32 * 4 + k % 4] = as_bytes(scales)[batch, m, k]
                self.assert_same(tiles.flatten(1), wanted)
                self.assert_same(codes, expected[0])

    def test_rows_that_do_not_count_are_0(self):
        gate, up = (torch.from_numpy(x) for x in inputs(25, 3, 4, 16))
        for keywords, exists in ((dict(expert_rows=torch.tensor([4, 0, 2])), torch.tensor([4, 0, 2])[:, None]),
                                 (dict(num_rows=torch.tensor([1])), torch.tensor([4, 0, 0])[:, None])):
            exists = (torch.arange(4) < exists)[..., None]
            results = self.swiglu(gate, up, out_dtype=torch.float8_e4m3fn, group_size=8, **keywords)
            for some, every in zip(results, self.swiglu(gate, up, out_dtype=torch.float8_e4m3fn, group_size=8)):
                self.assertTrue(torch.equal(some.float(), torch.where(exists, every.float(), 0.0)))

    def test_refusals(self):
        gate, up = torch.randn(3, 8), torch.randn(3, 8)
        code = torch.float8_e4m3fn
        for error, text, keywords in (
                (InvalidArgument, "out.dtype", dict(out_dtype=torch.float16)),
                (InvalidArgument, "quant.scales_out", dict(group_size=4)),
                (InvalidArgument, "quant.scale", dict(quant=SwigluQuant(torch.ones(1)))),
                (InvalidArgument, "quant.scale_floor is -1",
                 dict(out_dtype=code, group_size=4, quant=SwigluQuant(scale_floor=-1.0))),
                (ValueError, "group_size is 3: it must divide the 8 channels", dict(out_dtype=code, group_size=3)),
                (ValueError, "group_size is 0", dict(out_dtype=code, group_size=0)),
                (ValueError, "group_size is set beside quant.scales_out",
                 dict(out_dtype=code, group_size=4, quant=SwigluQuant(scales_out=torch.zeros(3, 2)))),
                (ValueError, "quant: one of its tensors requires grad",
                 dict(out_dtype=code, quant=SwigluQuant(torch.ones(1, requires_grad=True))))):
            with self.subTest(text), self.assertRaisesRegex(error, text):
                self.swiglu(gate, up, **keywords)
        for transform in (lambda x: torch.func.jvp(self.codes, (x,), (x,)), torch.func.vmap(self.codes)):
            with self.assertRaisesRegex(NotImplementedError, "codes have no gradient in torch.compile"):
                transform(gate)

    def codes(self, x):
        return self.swiglu(x, x, out_dtype=torch.float8_e4m3fn)

    def test_gradients_are_those_of_the_values(self):
        """The gradient has the dtype of gate, so small values stay, which the dtype of codes lacks. It is not
        scaled."""
        if not hasattr(torch.autograd.function.FunctionCtx, "set_output_grad_dtype"):
            with self.assertRaisesRegex(NotImplementedError, "casts the gradient of codes to their dtype"):
                self.codes(torch.randn(3, 8, requires_grad=True))
            self.assertEqual(self.codes(torch.randn(3, 8)).dtype, torch.float8_e4m3fn)
            return

        class Product(torch.autograd.Function):
            """A matrix product of codes, as in FP8 training."""

            @staticmethod
            def forward(ctx, codes, scales, weight):
                ctx.save_for_backward(weight)
                return (codes.float() * scales.repeat_interleave(4, -1)) @ weight

            @staticmethod
            def backward(ctx, grad):
                return (1e-6 * grad @ ctx.saved_tensors[0].T).to(ctx_dtype), None, None

        weight = torch.randn(8, 5)
        for ctx_dtype in (torch.float32, torch.bfloat16):
            tensors = [torch.randn(*shape).to(ctx_dtype).requires_grad_() for shape in ((3, 8), (3, 8), (3,), (8,))]
            gate, up, row_scale, bias = tensors
            given = dict(row_scale=row_scale, gate_bias=bias, limit=2.0)
            codes, scales = self.swiglu(gate, up, out_dtype=torch.float8_e4m3fn, group_size=4, **given)
            self.assertTrue(codes.requires_grad and not scales.requires_grad)
            out = Product.apply(codes, scales, weight)
            grads = torch.autograd.grad(out.sum(), tensors)
            grad = (1e-6 * torch.ones(3, 5) @ weight.T).to(ctx_dtype)
            expected = torch.autograd.grad(self.swiglu(gate, up, **given), tensors, grad)
            for actual, wanted in zip(grads, expected):
                self.assertTrue(wanted.abs().max() > 0)
                self.assertTrue(torch.equal(actual, wanted))
        # Inputs that change between forward and backward are refused.
        x = torch.randn(3, 8, requires_grad=True)
        y = x * 1
        codes = self.codes(y)
        y += 1
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            codes.backward(torch.ones(3, 8))

    def test_in_one_graph(self):
        try:
            from test_torch import has_compiler
        except unittest.SkipTest as reason:
            self.skipTest(str(reason))
        if not has_compiler():
            self.skipTest("torch.compile does not work here")
        rows, scale = torch.tensor([2]), torch.tensor([0.4])

        def block(x, scales_out, amax):
            gate, up = (x * 2).chunk(2, -1)
            codes, scales = self.swiglu(gate, up, out_dtype=torch.float8_e4m3fn, group_size=8, num_rows=rows)
            others, powers = self.swiglu(
                gate, up, out_dtype=torch.float8_e5m2, group_size=16, scale_dtype=torch.float8_e8m0fnu)
            plain = self.swiglu(
                gate, up, out_dtype=torch.float8_e4m3fn, quant=SwigluQuant(scale, None, amax, scale_multiplies=True))
            filled = self.swiglu(gate, up, out_dtype=torch.float8_e4m3fn, quant=SwigluQuant(scales_out=scales_out))
            results = codes, scales, others, powers, plain, filled, codes.float() * scales.repeat_interleave(8, -1)
            if not hasattr(torch, "float4_e2m1fn_x2"):
                return results
            return *results, *self.swiglu(
                gate, up, out_dtype=torch.float4_e2m1fn_x2, group_size=16, scale_dtype=torch.float8_e4m3fn,
                quant=SwigluQuant(scale, scale_layout="128x4"))

        compiled = torch.compile(block, fullgraph=True)
        for tokens in (3, 5):
            x = torch.randn(tokens, 32)
            x[1] *= 100
            written, results = [], []
            for function in (block, compiled):
                written.append((torch.zeros(1, tokens).t(), torch.zeros(1)))
                results.append(function(x, *written[-1]))
            for actual, expected in zip((*results[1], *written[1]), (*results[0], *written[0])):
                self.assertEqual((actual.dtype, actual.shape), (expected.dtype, expected.shape))
                self.assert_same(actual, expected)
        with self.assertRaisesRegex(Exception, "codes have no gradient in torch.compile"):
            compiled(x.requires_grad_(), *written[1])

    def test_of_the_operator(self):
        from librope import _torch_operators as operators

        key, gate, up = SwigluDesc(dtype="f32", activation="reglu")._key, torch.randn(4, 6), torch.randn(4, 6)
        values, call = rectified(gate.numpy(), up.numpy()), torch.ops.librope.swiglu_out
        for code in CODES:
            out, amax = torch.empty(4, 6, dtype=getattr(torch, code)), torch.zeros(1)
            scales = torch.zeros(4, 3, dtype=torch.uint8)
            call(key, gate, up, out, scales_out=scales, amax_out=amax)
            for actual, wanted in zip((scales, out), quantised(values, 3, code, FORMS[2])):
                self.assert_same(actual, wanted)
            self.assertEqual(amax, numpy.abs(values).max())
            call(key, gate, up, out, flags=operators.SCALE_MULTIPLIES, scale=torch.tensor([0.3]))
            self.assert_same(out, static(values, numpy.float32(0.3), code))
        for text, keywords in (("scale_layout is 3", dict(scale_layout=3)), ("scale_floor is 2", dict(scale_floor=2.0)),
                               ("scale_layout", dict(scale_layout=1 << 40)),
                               ("flags", dict(flags=operators.POWER_OF_TWO)), ("flags", dict(flags=1 << 20)), ("amax_out", dict(amax_out=torch.zeros(2)))):
            with self.subTest(text, **keywords), self.assertRaisesRegex(Exception, text):
                call(key, gate, up, out, **keywords)
        # torch cannot compare its own codes, which the check of the schema needs.
        torch.library.opcheck(
            call.default, (key, gate, up, out), dict(scales_out=scales, amax_out=amax), test_utils="test_faketensor")


if __name__ == "__main__":
    unittest.main()
