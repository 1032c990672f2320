# SPDX-License-Identifier: Apache-2.0
# test_gating_rows.py - SwiGLU over rows that are looked up: experts back to back, and factors by an index
from __future__ import annotations

import contextlib
import unittest

import support
from support import numpy

import librope
from librope import InvalidArgument, SwigluDesc, SwigluQuant

try:
    import torch
except ImportError:
    torch = None

ROWS, WIDTH, EXPERTS, FACTORS = 9, 6, 3, 5
OFFSETS = numpy.array([1, 4, 4, 8])  # rows 0 and 8 have no expert, and expert 1 has no rows
INDEX = numpy.array([0, 2, -1, 2, 4, 0, FACTORS, 1, 3])  # rows 2 and 6 have no factor


def normal(seed, *shape, dtype=numpy.float32):
    return numpy.random.default_rng(seed).standard_normal(shape).astype(dtype)


def expert_of(row):
    """The expert of a row, or None."""
    return next((e for e in range(EXPERTS) if OFFSETS[e] <= row < OFFSETS[e + 1]), None)


def by_rows(biases, factors):
    """The biases of each row's expert, its factor, and whether it counts."""
    counts = numpy.array([expert_of(row) is not None and 0 <= INDEX[row] < len(factors) for row in range(ROWS)])
    experts = numpy.array([expert_of(row) or 0 for row in range(ROWS)])
    return [bias[experts] for bias in biases], factors[numpy.clip(INDEX, 0, len(factors) - 1)], counts


class NumpyTest(unittest.TestCase):
    def setUp(self):
        self.gate, self.up, self.grad = (normal(seed, ROWS, WIDTH) for seed in (1, 2, 3))
        self.biases, self.factors = [normal(seed, EXPERTS, WIDTH) for seed in (4, 5)], normal(6, FACTORS)
        self.given = dict(
            gate_bias=self.biases[0], up_bias=self.biases[1], row_scale=self.factors, expert_offsets=OFFSETS,
            row_index=INDEX)
        (gate_bias, up_bias), row_scale, self.counts = by_rows(self.biases, self.factors)
        self.form = dict(gate_bias=gate_bias, up_bias=up_bias, row_scale=row_scale)

    def assert_rows(self, actual, expected, others):
        counts = self.counts.reshape(-1, *(1,) * (actual.ndim - 1))
        numpy.testing.assert_allclose(actual, numpy.where(counts, expected, others), rtol=1e-4, atol=1e-4)

    def test_both_directions(self):
        expected = support.swiglu(self.gate, self.up, **self.form)
        slopes = support.swiglu_differences(self.grad, self.gate, self.up, **self.form)
        plain = support.swiglu(self.gate, self.up, gate_bias=self.form["gate_bias"], up_bias=self.form["up_bias"])
        for integer in (numpy.int32, numpy.int64):
            given = {**self.given, "expert_offsets": OFFSETS.astype(integer), "row_index": INDEX.astype(integer)}
            desc = SwigluDesc(dtype="f32")
            for call in (support.through_ctypes(), support.through_ctypes(), contextlib.nullcontext()):
                with call:  # the second call uses the args that the first one kept
                    self.assert_rows(librope.swiglu(self.gate, self.up, **given), expected, 0.0)
                    out = numpy.full_like(self.gate, 7.0)
                    desc.forward(self.gate, self.up, out, **given)
                    self.assert_rows(out, expected, 7.0)
                    of_rows = numpy.full(ROWS, 5.0, numpy.float32)
                    grads = desc.backward(self.grad, self.gate, self.up, grad_row_scale=of_rows, **given)
                    for actual, wanted in zip(grads, slopes):
                        self.assert_rows(actual, wanted, 0.0)
                    self.assertIs(grads[2], of_rows)
                    self.assert_rows(of_rows, (self.grad * plain).sum(-1), 5.0)
                    self.assertIsNone(librope.swiglu_backward(
                        self.grad, self.gate, self.up, grad_row_scale=False, **given)[2])
            self.assertRegex(desc.explain(self.gate, self.up, **given), "^swiglu F32 forward on the CPU: ")

    def test_refusals(self):
        for text, wrong in (("expert_offsets.*F32", dict(expert_offsets=self.factors)),
                            ("row_index", dict(row_index=INDEX[:3])),
                            ("row_index", dict(row_scale=None)),
                            ("expert_offsets", dict(num_rows=numpy.array([3])))):
            for call in (support.through_ctypes(), contextlib.nullcontext()):
                with self.subTest(text), call, self.assertRaisesRegex(InvalidArgument, "swiglu_forward: .*" + text):
                    librope.swiglu(self.gate, self.up, **{**self.given, **wrong})
        with self.assertRaisesRegex(ValueError, r"with row_index it must be a tensor \[N\] of row_scale's dtype"):
            librope.swiglu_backward(self.grad, self.gate, self.up, **self.given)
        with self.assertRaisesRegex(TypeError, "expert_offsets: it is a builtins.list"):
            librope.swiglu(self.gate, self.up, **{**self.given, "expert_offsets": [0, 1]})


@unittest.skipIf(torch is None, "needs torch")
class TorchTest(unittest.TestCase):
    def setUp(self):
        from librope.torch import swiglu

        self.swiglu = swiglu
        self.offsets, self.index = torch.from_numpy(OFFSETS), torch.from_numpy(INDEX)
        shapes = (ROWS, WIDTH), (ROWS, WIDTH), (EXPERTS, WIDTH), (EXPERTS, WIDTH), (FACTORS,)
        self.inputs = [torch.from_numpy(normal(seed, *shape, dtype=float)).requires_grad_()
                       for seed, shape in enumerate(shapes)]

    def gated(self, gate, up, gate_bias, up_bias, factors):
        return self.swiglu(gate, up, gate_bias=gate_bias, up_bias=up_bias, row_scale=factors,
                           expert_offsets=self.offsets, row_index=self.index, limit=1.5)

    def formula(self, gate, up, gate_bias, up_bias, factors):
        _, _, counts = by_rows((normal(0, EXPERTS),), numpy.zeros(FACTORS))
        experts = torch.tensor([expert_of(row) or 0 for row in range(ROWS)])
        g = (gate + gate_bias[experts]).clamp(max=1.5)
        u = (up + up_bias[experts]).clamp(-1.5, 1.5)
        out = torch.nn.functional.silu(g) * u * factors[self.index.clamp(0, FACTORS - 1)][:, None]
        return torch.where(torch.from_numpy(counts)[:, None], out, 0.0)

    def test_gradients(self):
        self.assertTrue(torch.autograd.gradcheck(self.gated, self.inputs))
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.05)):
            inputs = [x.detach().to(dtype).requires_grad_() for x in self.inputs]
            grad = torch.from_numpy(normal(9, ROWS, WIDTH, dtype=float)).to(dtype)
            seen = []
            for function, given in ((self.gated, inputs), (self.formula, [x.double() for x in inputs])):
                out = function(*given)
                seen.append((out, *torch.autograd.grad(out, inputs, grad.to(out.dtype))))
            for actual, expected in zip(*seen):
                self.assertEqual(actual.dtype, dtype)
                self.assertTrue(torch.allclose(actual.double(), expected.double(), rtol=tolerance, atol=tolerance))
        # One bias for all rows, and heads of channels.
        gate, up = (x.detach().reshape(ROWS, 2, 3).requires_grad_() for x in self.inputs[:2])
        bias, of_all = (torch.rand(*shape, dtype=float, requires_grad=True) for shape in ((EXPERTS, 3), (3,)))
        self.assertTrue(torch.autograd.gradcheck(
            lambda gate, up, bias, of_all: self.swiglu(
                gate, up, gate_bias=bias, up_bias=of_all, expert_offsets=self.offsets), (gate, up, bias, of_all)))

    def test_codes(self):
        inputs = [x.detach().float() for x in self.inputs]
        codes, scales = self.swiglu(
            *inputs[:2], row_scale=inputs[4], row_index=self.index, expert_offsets=self.offsets, activation="reglu",
            out_dtype=torch.float8_e4m3fn, group_size=3)
        values = self.swiglu(*inputs[:2], row_scale=inputs[4], row_index=self.index, expert_offsets=self.offsets,
                             activation="reglu")
        expected, products = support.scaled(values.numpy(), 2, 448.0, 1e-10)
        _, _, counts = by_rows((normal(0, EXPERTS),), numpy.zeros(FACTORS))
        numpy.testing.assert_array_equal(scales, numpy.where(counts[:, None], expected, 0))
        numpy.testing.assert_array_equal(
            codes.float(), numpy.where(counts[:, None], torch.from_numpy(products).to(codes.dtype).float(), 0))
        by_expert = SwigluQuant(torch.tensor([0.5, 1.0, 4.0]))
        codes = self.swiglu(*inputs[:2], expert_offsets=self.offsets, activation="reglu", out_dtype=codes.dtype,
                            quant=by_expert)
        values = self.swiglu(*inputs[:2], expert_offsets=self.offsets, activation="reglu")
        experts = torch.tensor([expert_of(row) or 0 for row in range(ROWS)])
        expected = (values / by_expert.scale[experts][:, None]).to(codes.dtype)
        self.assertTrue(torch.equal(codes.float(), expected.float()))

    def test_in_one_graph(self):
        from test_torch import has_compiler

        if not has_compiler():
            self.skipTest("torch.compile does not work here")
        inputs = [x.detach().float().requires_grad_() for x in self.inputs]
        seen = []
        for function in (self.gated, torch.compile(self.gated, fullgraph=True)):
            out = function(*inputs)
            seen.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
        for actual, expected in zip(*seen):
            self.assertTrue(torch.allclose(actual, expected, rtol=1e-5, atol=1e-5))

    def test_of_the_operators(self):
        gate, up, gate_bias, up_bias, factors = [x.detach().float() for x in self.inputs]
        key = SwigluDesc(dtype="f32")._key
        operands = factors, None, gate_bias, up_bias, None, self.offsets, self.index
        torch.library.opcheck(torch.ops.librope.swiglu.default, (key, gate, up, *operands))
        torch.library.opcheck(torch.ops.librope.swiglu_backward.default, (key, gate, gate, up, 7, *operands))
        grads = torch.ops.librope.swiglu_backward(key, gate, gate, up, 4, *operands)
        self.assertEqual((grads[0], grads[2].shape), (None, (ROWS,)))
        with self.assertRaisesRegex(NotImplementedError, "no derivative of forward mode"):
            torch.func.jvp(lambda x: self.gated(x, *self.inputs[1:]), (self.inputs[0],), (self.inputs[0],))


if __name__ == "__main__":
    unittest.main()
