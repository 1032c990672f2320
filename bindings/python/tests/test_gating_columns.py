# SPDX-License-Identifier: Apache-2.0
# test_gating_columns.py - SwiGLU's outputs and gradients as codes of 8 bits by row and by column
"""Values are those of calls whose outputs are words, rounded first; codes and scales are made of them here, byte for
byte."""
from __future__ import annotations

import contextlib
import itertools
import unittest

import support
from support import numpy

import librope
from librope import InvalidArgument, NotSupported, SwigluColumn, SwigluDesc, SwigluQuant

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None
try:
    import torch
except ImportError:
    torch = None

GROUP = 32
TOPS = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
E4M3, E5M2 = TOPS
needs_ml_dtypes = unittest.skipIf(not hasattr(ml_dtypes, "float8_e8m0fnu"), "needs ml_dtypes 0.5")
needs_torch = unittest.skipIf(torch is None or not hasattr(torch, "float8_e8m0fnu"), "needs torch 2.7")


def tensors(seed, *shape, count=3):
    """gate, up and grad_out of float16, with rows and columns of many magnitudes and groups of 0."""
    random = numpy.random.default_rng(seed)
    for _ in range(count):
        x = random.standard_normal(shape)
        x *= 10.0 ** random.integers(-2, 1, (*shape[:-1], 1)) * 4.0 ** random.integers(-2, 2, shape[-1:])
        x[..., :GROUP, 0] = 0
        yield x.astype(numpy.float16)


def mxfp8(values, code, by_column, form="float8_e8m0fnu"):
    """The scales of groups of channels, or of rows, and the codes, in bytes where they have 8 bits."""
    x = values.astype(numpy.float32)
    if by_column:
        x = x.swapaxes(-1, -2)
    is_e8m0 = form != "float32"
    scales, products = support.scaled(
        x, x.shape[-1] // GROUP, TOPS[code], 0.0 if is_e8m0 else 1e-10, power_of_two=is_e8m0)
    if ml_dtypes is not None:
        codes = products.astype(getattr(ml_dtypes, code)).view(numpy.uint8)
    else:
        codes = torch.from_numpy(products.copy()).to(getattr(torch, code)).view(torch.uint8).numpy()
    scales = (scales.view(numpy.uint32) >> 23).astype(numpy.uint8) if is_e8m0 else scales
    return (scales.swapaxes(-1, -2), codes.swapaxes(-1, -2)) if by_column else (scales, codes)


def tiled(scales):
    """Scales [M, G] in cuBLAS's tiles of 128 rows and 4 groups, in bytes."""
    rows, groups = scales.shape
    tiles = numpy.zeros(((rows + 127) // 128 * 128, (groups + 3) // 4 * 4), numpy.uint8)
    for m, k in numpy.ndindex(rows, groups):
        at = (m // 128 * (tiles.shape[1] // 4) + k // 4) * 512 + m % 32 * 16 + m % 128 // 32 * 4 + k % 4
        tiles.reshape(-1)[at] = scales[m, k]
    return tiles


def as_bytes(x):
    if torch is not None and isinstance(x, torch.Tensor):
        return x.view(torch.uint8).numpy() if x.element_size() == 1 else x.numpy()
    return x.view(numpy.uint8) if x.dtype.itemsize == 1 else x


class ColumnsTest(unittest.TestCase):
    def assert_codes(self, values, code, codes, scales, by_column, form="float8_e8m0fnu"):
        for actual, wanted in zip((scales, codes), mxfp8(values, code, by_column, form)):
            numpy.testing.assert_array_equal(as_bytes(actual), wanted)


def new(shape, dtype):
    return numpy.zeros(shape, getattr(ml_dtypes, dtype) if dtype.startswith("float8") else dtype)


@needs_ml_dtypes
class NumpyTest(ColumnsTest):
    desc = SwigluDesc(dtype="f16", alpha=1.5, limit=50.0, quant_rounding="first")

    def test_forward(self):
        gate, up, _ = tensors(1, 96, 64)
        values = self.desc.forward(gate, up)
        for code, form in itertools.product(TOPS, ("float8_e8m0fnu", "float32")):
            out, scales = new((96, 64), code), new((96, 2), form)
            codes, column_scales = new((96, 64), code), new((3, 64), form)
            column = SwigluColumn(codes, column_scales)
            self.assertIs(self.desc.forward(gate, up, out, quant=SwigluQuant(scales_out=scales), column=column), out)
            self.assert_codes(values, code, out, scales, False, form)
            self.assert_codes(values, code, codes, column_scales, True, form)
            # Without the output itself, and beside words.
            for given in (False, None):
                codes[:], column_scales[:] = 0, 1
                result = self.desc.forward(gate, up, given, column=column)
                self.assert_codes(values, code, codes, column_scales, True, form)
                if given is False:
                    self.assertIsNone(result)
                else:
                    numpy.testing.assert_array_equal(result, values)

    def test_backward(self):
        gate, up, grad_out = tensors(2, 64, 96)
        words = self.desc.backward(grad_out, gate, up)
        by_row, by_column = [[new((64, 96), E5M2) for _ in range(2)] for _ in range(2)]
        scales, column_scales = ([new(shape, "float8_e8m0fnu") for _ in range(2)] for shape in ((64, 3), (2, 96)))
        amax, column_amax = new(1, "float32"), new(1, "float32")
        quant = SwigluQuant(amax_out=amax, grad_gate_scales_out=scales[0], grad_up_scales_out=scales[1])
        column = SwigluColumn(
            grad_gate=by_column[0], grad_gate_scales_out=column_scales[0], grad_up=by_column[1],
            grad_up_scales_out=column_scales[1], amax_out=column_amax)
        results = self.desc.backward(
            grad_out, gate, up, grad_gate=by_row[0], grad_up=by_row[1], quant=quant, column=column)
        self.assertTrue(results[0] is by_row[0] and results[1] is by_row[1])
        for i in range(2):
            self.assert_codes(words[i], E5M2, by_row[i], scales[i], False)
            self.assert_codes(words[i], E5M2, by_column[i], column_scales[i], True)
        largest = max(numpy.abs(x.astype(numpy.float32)).max() for x in words)
        self.assertEqual((amax[0], column_amax[0]), (largest, largest))
        # One gradient by column, the other as words, and the output again.
        by_column[0][:], again = 0, numpy.zeros_like(gate)
        results = librope.swiglu_backward(
            grad_out, gate, up, grad_gate=False, out=again, alpha=1.5, limit=50.0, quant_rounding="first",
            column=SwigluColumn(grad_gate=by_column[0], grad_gate_scales_out=column_scales[0]))
        self.assertIs(results[0], None)
        numpy.testing.assert_array_equal(results[1], words[1])
        numpy.testing.assert_array_equal(again, self.desc.forward(gate, up))
        self.assert_codes(words[0], E5M2, by_column[0], column_scales[0], True)

    def test_static_scales_floors_and_tiles(self):
        gate, up, _ = tensors(3, 160, 96)
        values, two = self.desc.forward(gate, up), numpy.array([2.0], numpy.float32)
        codes = new((160, 96), E4M3)
        self.desc.forward(gate, up, False, quant=SwigluQuant(two), column=SwigluColumn(codes))
        halves = numpy.clip(values.astype(numpy.float32) / 2, -448, 448).astype(ml_dtypes.float8_e4m3fn)
        numpy.testing.assert_array_equal(as_bytes(codes), as_bytes(halves))
        scales = new((5, 96), "float32")
        self.desc.forward(
            gate, up, False, column=SwigluColumn(codes, scales, scale_floor=3.0, power_of_two=True))
        least = numpy.maximum(numpy.abs(values.astype(numpy.float32)).reshape(5, GROUP, 96).max(1), 3) / 448
        numpy.testing.assert_array_equal(scales, 2.0 ** numpy.ceil(numpy.log2(least)))
        tiles = new((128, 8), "float8_e8m0fnu")
        librope.swiglu(
            gate, up, False, alpha=1.5, limit=50.0, quant_rounding="first",
            column=SwigluColumn(codes, tiles, scale_layout="128x4"))
        wanted, expected = mxfp8(values, E4M3, by_column=True)
        numpy.testing.assert_array_equal(as_bytes(tiles), tiled(wanted.T))
        numpy.testing.assert_array_equal(as_bytes(codes), expected)

    def test_experts(self):
        gate, up, _ = tensors(4, 2, 64, 32)
        rows = numpy.array([64, 32])
        values = self.desc.forward(gate, up)
        codes, scales = new((2, 64, 32), E4M3), new((2, 2, 32), "float8_e8m0fnu")
        as_bytes(codes)[:], as_bytes(scales)[:] = 9, 9
        self.desc.forward(gate, up, False, expert_rows=rows, column=SwigluColumn(codes, scales))
        self.assert_codes(values[0], E4M3, codes[0], scales[0], True)
        self.assert_codes(values[1, :32], E4M3, codes[1, :32], scales[1, :1], True)
        self.assertTrue((as_bytes(codes)[1, 32:] == 9).all() and (as_bytes(scales)[1, 1] == 9).all())

    def test_refusals(self):
        gate, up, grad_out = tensors(5, 32, 8)
        codes, scales = new((32, 8), E4M3), new((1, 8), "float32")
        one = numpy.ones(1, numpy.float32)
        for error, text, keywords in (
                (InvalidArgument, "out", dict(out=False)),
                (InvalidArgument, "column.grad_gate is set", dict(column=SwigluColumn(grad_gate=codes))),
                (InvalidArgument, "quant.grad_up_scales_out is set",
                 dict(out=codes, quant=SwigluQuant(grad_up_scales_out=scales))),
                (InvalidArgument, r"column.scales_out has shape \[1, 7\]",
                 dict(column=SwigluColumn(codes, scales[:, :7]))),
                (InvalidArgument, "column.scale_floor is -1", dict(column=SwigluColumn(codes, scales, scale_floor=-1))),
                (InvalidArgument, "column.flags is 0x2", dict(column=SwigluColumn(codes, power_of_two=True))),
                (InvalidArgument, "quant.scale", dict(quant=SwigluQuant(one), column=SwigluColumn(codes, scales))),
                (NotSupported, "column.out.dtype is F16", dict(column=SwigluColumn(numpy.zeros_like(gate)))),
                (ValueError, "scale_layout is '8x4'", dict(column=SwigluColumn(codes, scales, scale_layout="8x4"))),
                (TypeError, "column.out: it is a builtins.list", dict(column=SwigluColumn([1.0]))),
                (TypeError, "column: it is a .*: it must be a librope.SwigluColumn", dict(column=SwigluQuant()))):
            for call in (support.through_ctypes(), contextlib.nullcontext()):
                with self.subTest(text), call, self.assertRaisesRegex(error, text):
                    self.desc.forward(gate, up, **keywords)
        with self.assertRaisesRegex(InvalidArgument, "swiglu_backward: column.out is set"):
            self.desc.backward(grad_out, gate, up, column=SwigluColumn(codes, scales))
        with self.assertRaisesRegex(InvalidArgument, "swiglu_backward: quant.grad_gate_scales_out"):
            self.desc.backward(grad_out, gate, up, quant=SwigluQuant(grad_gate_scales_out=scales))
        self.assertFalse(as_bytes(codes).any() or scales.any())

    def test_explain(self):
        gate, up, grad_out = tensors(6, 32, 8)
        codes, scales = new((32, 8), E4M3), new((1, 8), "float32")
        self.assertRegex(self.desc.explain(gate, up, False, column=SwigluColumn(codes, scales)), "^swiglu F16 forward")
        self.assertRegex(
            self.desc.explain(gate, up, grad_out=grad_out, column=SwigluColumn(
                grad_gate=codes, grad_gate_scales_out=scales)), "^swiglu F16 backward")
        self.assertFalse(as_bytes(codes).any() or scales.any())


@needs_torch
class TorchTest(ColumnsTest):
    def setUp(self):
        from librope.torch import swiglu_codes, swiglu_gradients

        self.codes, self.gradients = swiglu_codes, swiglu_gradients
        numbers = [*tensors(7, 64, 96)]
        self.gate, self.up, self.grad_out = map(torch.from_numpy, numbers)

    def check(self, words, code, made, form="float8_e8m0fnu"):
        self.assertEqual(made.codes.dtype, getattr(torch, code))
        self.assert_codes(words.numpy(), code, made.codes, made.scales, False, form)
        self.assert_codes(words.numpy(), code, made.column_codes, made.column_scales, True, form)

    def test_output(self):
        words = librope.swiglu(self.gate, self.up, limit=50.0)
        first = dict(limit=50.0, quant_rounding="first")
        self.check(words, E4M3, self.codes(self.gate, self.up, **first))
        self.check(words, E5M2, self.codes(
            self.gate, self.up, out_dtype=torch.float8_e5m2, scale_dtype=torch.float32, **first), "float32")
        codes, scales, *columns = self.codes(self.gate, self.up, by_column=False, **first)
        self.assert_codes(words.numpy(), E4M3, codes, scales, False)
        self.assertEqual(columns, [None, None])
        *rows, codes, tiles = self.codes(self.gate, self.up, by_row=False, scale_layout="128x4", **first)
        wanted, expected = mxfp8(words.numpy(), E4M3, by_column=True)
        numpy.testing.assert_array_equal(as_bytes(tiles), tiled(wanted.T))
        numpy.testing.assert_array_equal(as_bytes(codes), expected)
        self.assertEqual(rows, [None, None])

    def test_gradients(self):
        factors = torch.rand(64) + 0.5
        words = librope.swiglu_backward(self.grad_out, self.gate, self.up, row_scale=factors, alpha=1.5)
        grad_factors = torch.zeros(64)
        made = self.gradients(
            self.grad_out, self.gate, self.up, row_scale=factors, grad_row_scale=grad_factors, alpha=1.5,
            quant_rounding="first")
        for word, codes in zip(words, made):
            self.check(word, E5M2, codes)
        self.assertTrue(torch.equal(grad_factors, words[2]))
        # The factors' gradient is not requested.
        for word, codes in zip(words, self.gradients(
                self.grad_out, self.gate, self.up, row_scale=factors, alpha=1.5, quant_rounding="first",
                out_dtype=torch.float8_e4m3fn)):
            self.check(word, E4M3, codes)

    def test_rows_left_out_are_0(self):
        gate, up = self.gate.view(2, 32, 96), self.up.view(2, 32, 96)
        made = self.codes(gate, up, expert_rows=torch.tensor([32, 0]), quant_rounding="first")
        self.check(librope.swiglu(gate[0], up[0]), E4M3, librope.torch.SwigluCodes(*[x[0] for x in made]))
        for x in made:
            self.assertFalse(as_bytes(x[1]).any())

    def test_in_a_function_of_autograd(self):
        test = self

        class Gating(torch.autograd.Function):
            @staticmethod
            def forward(ctx, gate, up):
                ctx.save_for_backward(gate, up)
                return test.codes(gate, up).codes.to(torch.float16)

            @staticmethod
            def backward(ctx, grad_out):
                made = test.gradients(grad_out, *ctx.saved_tensors)
                return tuple([x.codes.float() * x.scales.float().repeat_interleave(GROUP, -1) for x in made])

        gate, up = self.gate.clone().requires_grad_(), self.up.clone().requires_grad_()
        Gating.apply(gate, up).backward(self.grad_out)
        for x, word in zip((gate, up), librope.swiglu_backward(self.grad_out, self.gate, self.up)):
            # Half a step of E5M2, and the roundings to float16, whose least step is 2^-24.
            torch.testing.assert_close(x.grad, word, rtol=0.126, atol=2.0**-23)

    def test_in_torch_compile(self):
        """The graph breaks."""
        compiled = torch.compile(lambda gate, up: self.codes(gate * 2, up), backend="eager")
        for actual, wanted in zip(compiled(self.gate, self.up), self.codes(self.gate * 2, self.up)):
            numpy.testing.assert_array_equal(as_bytes(actual), as_bytes(wanted))

    def test_refusals(self):
        for error, text, keywords in (
                (ValueError, "swiglu_codes: group_size is 64: it must divide the 96 channels", dict(group_size=64)),
                (ValueError, "group_size is 48: it must divide the 64 rows", dict(group_size=48)),
                (ValueError, "group_size is 0", dict(group_size=0)),
                (NotSupported, "column.out.dtype is F16", dict(out_dtype=torch.float16)),
                (InvalidArgument, "out", dict(by_row=False, by_column=False)),
                (TypeError, "fp8", dict(fp8=True))):
            with self.subTest(text), self.assertRaisesRegex(error, text):
                self.codes(self.gate, self.up, **keywords)
        with self.assertRaisesRegex(ValueError, r"swiglu_gradients: gate has 3 axes: it must be \[N, d\]"):
            self.gradients(self.grad_out[None], self.gate[None], self.up[None])
        with self.assertRaisesRegex(ValueError, "requires grad"):
            self.codes(self.gate.clone().requires_grad_(), self.up)
        with self.assertRaisesRegex(ValueError, "quant: it has scales of gradients: swiglu_gradients makes those"):
            librope.torch.swiglu(self.gate, self.up, out_dtype=torch.float8_e4m3fn,
                                 quant=SwigluQuant(grad_gate_scales_out=torch.zeros(64, 1)))

    def test_calls_that_are_kept(self):
        """Calls of one kind share a struct; another number makes another kind."""
        desc = SwigluDesc(dtype="f16", quant_rounding="first")
        values = desc.forward(self.gate, self.up).numpy()
        for _ in range(3):
            for floor in (1e-10, 3.0):
                codes, scales = torch.zeros(64, 96, dtype=torch.float8_e4m3fn), torch.zeros(2, 96)
                desc.forward(self.gate, self.up, False, column=SwigluColumn(codes, scales, scale_floor=floor))
                largest = numpy.abs(values.astype(numpy.float32)).reshape(2, GROUP, 96).max(1)
                wanted = numpy.maximum(largest, numpy.float32(floor)).astype(float) / 448
                numpy.testing.assert_array_equal(scales.numpy(), wanted.astype(numpy.float32))
        kinds = [kind for kind in desc._kept._kept if "column" in kind]
        self.assertEqual(len(kinds), 2)


if __name__ == "__main__":
    unittest.main()
