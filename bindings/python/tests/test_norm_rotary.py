# SPDX-License-Identifier: Apache-2.0
# test_norm_rotary.py - librope.torch.norm_rotary against torch's autograd of the formulas that models publish
from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import support

torch = support.needs("torch")

import librope  # noqa: E402
import librope.torch  # noqa: E402
from librope import RopeDesc  # noqa: E402
from librope.torch import apply_rotary, norm_rotary  # noqa: E402
from test_torch import has_compiler  # noqa: E402

torch.manual_seed(20261126)
HERE = Path(__file__).resolve().parent
EPS, THETA = 1e-5, 10000.0
BSHD = dict(style="half", layout="bshd", theta=THETA, norm_eps=EPS)

# ---- The formulas, as in modeling files of transformers, in the precision of their inputs -------------


def angles_of(positions, head_dim):
    """[B, S, D/2]"""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    return positions.double()[..., None] * (1.0 / THETA**exponents)


def rms_norm(x, axes=-1):
    return x * torch.rsqrt(x.pow(2).mean(axes, keepdim=True) + EPS)


def rotate_half(x):
    low, high = x[..., :x.shape[-1] // 2], x[..., x.shape[-1] // 2:]
    return torch.cat((-high, low), dim=-1)


def rotate_pairs(x):
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


def turn_halves(x, angles):
    """x [B, S, H, D] (Llama, Qwen3, Gemma, OLMo-2)"""
    angles = torch.cat((angles, angles), dim=-1)[:, :, None]
    return x * angles.cos().to(x.dtype) + rotate_half(x) * angles.sin().to(x.dtype)


def turn_pairs(x, angles):
    """Cohere"""
    angles = angles.repeat_interleave(2, dim=-1)[:, :, None]
    return x * angles.cos().to(x.dtype) + rotate_pairs(x) * angles.sin().to(x.dtype)


def turn_complex(x, angles):
    """Llama-4"""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)[:, :, None]).flatten(3)


def llama(q, k, v, q_weight, k_weight, angles):
    return turn_halves(q, angles), turn_halves(k, angles)


def qwen3(q, k, v, q_weight, k_weight, angles):
    return turn_halves(q_weight * rms_norm(q), angles), turn_halves(k_weight * rms_norm(k), angles)


def gemma3(q, k, v, q_weight, k_weight, angles):
    return (turn_halves(rms_norm(q) * (1.0 + q_weight), angles), turn_halves(rms_norm(k) * (1.0 + k_weight), angles))


def gemma4(q, k, v, q_weight, k_weight, angles):
    return (*qwen3(q, k, v, q_weight, k_weight, angles), v * torch.pow(v.pow(2).mean(-1, keepdim=True) + EPS, -0.5))


def olmo2(q, k, v, q_weight, k_weight, angles):
    """The norm is over all heads, on [B, S, H * D]."""
    return tuple([
        turn_halves((weight.flatten() * rms_norm(x.flatten(2))).unflatten(2, x.shape[2:]), angles)
        for x, weight in ((q, q_weight), (k, k_weight))])


def cohere(q, k, v, q_weight, k_weight, angles):
    """Each head has a mean and a variance, each head and channel a weight."""
    results = []
    for x, weight in ((q, q_weight), (k, k_weight)):
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).pow(2).mean(-1, keepdim=True)
        results.append(turn_pairs(weight * ((x - mean) * torch.rsqrt(variance + EPS)), angles))
    return tuple(results)


def llama4(q, k, v, q_weight, k_weight, angles):
    return rms_norm(turn_complex(q, angles)), rms_norm(turn_complex(k, angles))


# name: the formula, arguments of norm_rotary, whether there is a v, shapes of weights
HEADS, D = (4, 2, 2), 16
HEAD, EACH_HEAD = [(D,), (D,)], [(HEADS[0], D), (HEADS[1], D)]
MODELS = {
    "qwen3": (qwen3, dict(style="half"), False, HEAD),
    "gemma3": (gemma3, dict(style="half", norm_weight_offset=1.0), False, HEAD),
    "gemma4": (gemma4, dict(style="half"), True, HEAD),
    "olmo2": (olmo2, dict(style="half", norm_extent="token"), False, EACH_HEAD),
    "cohere": (cohere, dict(style="interleaved", norm="layer"), False, EACH_HEAD),
    "llama4": (llama4, dict(style="interleaved", norm_order="after"), False, [None, None]),
}
# Relative to the largest number of a result.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 4e-6, torch.bfloat16: 2**-7}


def distance(actual, expected):
    return ((actual.double() - expected.double()).abs().max() / expected.double().abs().max()).item()


def make_inputs(name, batch=2, tokens=37, dtype=torch.float64):
    """q, k, v and weights that require grad, None for those that the model lacks; positions; gradients of the
    results."""
    _, _, has_v, shapes = MODELS[name]
    tensors = [torch.randn(batch, tokens, heads, D).to(dtype) if heads else None
               for heads in (HEADS if has_v else (*HEADS[:2], 0))]
    weights = [None if shape is None else (1.0 + 0.3 * torch.randn(shape)).to(dtype) for shape in shapes]
    inputs = [None if x is None else x.requires_grad_() for x in (*tensors, *weights)]
    positions = torch.randint(0, 5000, (batch, tokens))
    return inputs, positions, [torch.randn(x.shape).to(dtype) for x in tensors if x is not None]


def results_of(function, inputs, grads):
    """The results of the function, and the gradients of the given inputs."""
    results = function(*inputs)
    given = [x for x in inputs if x is not None]
    return [x.detach() for x in results], torch.autograd.grad(results, given, grads)


def fused(name, layout="bshd", **others):
    keywords = {**MODELS[name][1], "theta": THETA, "norm_eps": EPS, "layout": layout, **others}

    def function(q, k, v, q_weight, k_weight):
        """Converts [B, S, H, D] to the layout."""
        forth = {"bshd": lambda x: x, "bhsd": lambda x: x.transpose(1, 2), "sbhd": lambda x: x.transpose(0, 1),
                 "thd": lambda x: x.flatten(0, 1)}[layout]
        back = forth if layout != "thd" else lambda x: x.unflatten(0, q.shape[:2])
        tensors = [None if x is None else forth(x) for x in (q, k, v)]
        return tuple([back(x) for x in norm_rotary(*tensors, q_weight=q_weight, k_weight=k_weight, **keywords)])

    return function


class FormulasTest(unittest.TestCase):
    def check(self, name, layout, dtype, tokens):
        """Formulas run in F64 on norm_rotary's inputs."""
        inputs, positions, grads = make_inputs(name, tokens=tokens, dtype=dtype)
        exact = [None if x is None else x.detach().double().requires_grad_() for x in inputs]
        angles = angles_of(positions, D)
        expected = results_of(lambda *x: MODELS[name][0](*x, angles), exact, [x.double() for x in grads])
        actual = results_of(
            fused(name, layout, positions=positions.flatten() if layout == "thd" else positions), inputs, grads)
        for x, y in zip(itertools.chain(*actual), itertools.chain(*expected)):
            self.assertEqual(x.dtype, dtype)
            self.assertEqual(x.shape, y.shape)
            self.assertLess(distance(x, y), TOLERANCES[dtype])
        return actual, expected

    def test_models(self):
        for name, dtype, layout in itertools.product(MODELS, TOLERANCES, ("bshd", "bhsd", "sbhd", "thd")):
            with self.subTest(name, dtype=dtype, layout=layout):
                self.check(name, layout, dtype, 37)

    def test_runs_of_tokens(self):
        """Runs have at least 4 tokens. On a CPU there are at most 128, which need not divide the tokens."""
        for name, layout, (tokens, runs) in itertools.product(
                ("gemma3", "cohere"), ("bshd", "bhsd", "sbhd", "thd"), ((1, 1), (9, 5), (401, 128))):
            with self.subTest(name, layout=layout, tokens=tokens):
                seen = []
                with support.seen_args(lambda function, args: function == "rope_backward" and seen.append(
                        [view.shape[0] for norm in [args.norm.contents] for view in (
                            norm.grad_q_weight, norm.grad_k_weight)])):
                    self.check(name, layout, torch.float32, tokens)
                self.assertEqual(seen, [[runs, runs]])

    def test_the_comparison_would_notice(self):
        """The formulas differ from each other by more than the tolerances."""
        inputs, positions, grads = make_inputs("qwen3")
        angles = angles_of(positions, D)
        results = {
            name: results_of(lambda *x: MODELS[name][0](*x, angles), inputs, grads) for name in ("qwen3", "gemma3")}
        for x, y in zip(*[(*outputs, *gradients[:2]) for outputs, gradients in results.values()]):
            self.assertGreater(distance(x, y), 10 * TOLERANCES[torch.bfloat16])

    def test_llama(self):
        """Without a norm the results are those of apply_rotary."""
        for dtype, tolerance in TOLERANCES.items():
            q, k = (torch.randn(2, 37, heads, D).to(dtype).requires_grad_() for heads in HEADS[:2])
            positions = torch.randint(0, 5000, (2, 37))
            grads = [torch.randn(x.shape).to(dtype) for x in (q, k)]
            exact = [x.detach().double().requires_grad_() for x in (q, k)]
            expected = results_of(
                lambda q, k: llama(q, k, None, None, None, angles_of(positions, D)), exact,
                [x.double() for x in grads])
            actual = results_of(
                lambda q, k: apply_rotary(q, k, style="half", layout="bshd", theta=THETA, positions=positions), (q, k),
                grads)
            for x, y in zip(itertools.chain(*actual), itertools.chain(*expected)):
                self.assertLess(distance(x, y), tolerance)

    def test_weights_of_f32_beside_bf16(self):
        inputs, positions, grads = make_inputs("qwen3", dtype=torch.bfloat16)
        wide = [x if i < 3 else x.detach().float().requires_grad_() for i, x in enumerate(inputs)]
        narrow, wide = [results_of(fused("qwen3", positions=positions), given, grads) for given in (inputs, wide)]
        for x, y in zip((*narrow[0], *narrow[1][:2]), (*wide[0], *wide[1][:2])):
            self.assertTrue(torch.equal(x, y))
        for x, y in zip(narrow[1][2:], wide[1][2:]):
            self.assertEqual((x.dtype, y.dtype), (torch.bfloat16, torch.float32))
            self.assertTrue(torch.equal(x, y.bfloat16()))


class GradcheckTest(unittest.TestCase):
    def check(self, function, *shapes):
        inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
        self.assertTrue(torch.autograd.gradcheck(function, inputs))

    def test_models(self):
        positions = torch.tensor([[3, 1, 4], [100, -5, 9]])
        for name, (_, _, has_v, shapes) in MODELS.items():
            with self.subTest(name):
                function = fused(name, positions=positions)
                tensors = [(2, 3, heads, D) for heads in (HEADS if has_v else HEADS[:2])]

                def call(*given, function=function, count=len(tensors)):
                    q, k, v = (*given[:count], None)[:3]
                    return function(q, k, v, *(*given[count:], None, None)[:2])

                self.check(call, *tensors, *filter(None, shapes))

    def test_options(self):
        cos, sin = torch.randn(3, 8, dtype=torch.float64), torch.randn(3, 8, dtype=torch.float64)
        options = [
            dict(attention_scale=1.25, position_offset=7), dict(rotary_dim=4, rotary_offset=2, out_style="interleaved"),
            dict(rotary_dim=4, norm_order="after", out_style="interleaved"), dict(norm_extent="token"),
            dict(norm_extent="token", norm_order="after"), dict(unrotated=True),
            dict(theta=0.0, inv_freq=[1.0, 0.5, 0.2, 0.1]), dict(theta=0.0, cos=cos, sin=sin, table_rows="by_token"),
            dict(norm_rounding=("before_weight", "after_weight")),
            dict(theta=0.0, angles=torch.randn(3, 4)), dict(norm_tensors="q"),
        ]
        for form in options:
            with self.subTest(**{key: value for key, value in form.items() if not torch.is_tensor(value)}):
                self.check(
                    lambda q, k, q_weight, k_weight: norm_rotary(
                        q, k, q_weight=q_weight, k_weight=None if "norm_tensors" in form else k_weight,
                        **{**BSHD, **form}) + (k_weight.sum(),),
                    (2, 3, 2, 8), (2, 3, 1, 8), (8,), (1, 8))

    def test_biases(self):
        for order, extent in itertools.product(("before", "after"), ("head", "token")):
            self.check(
                lambda q, k, *weights: norm_rotary(
                    q, k, norm="layer", norm_order=order, norm_extent=extent,
                    **dict(zip(librope.Norm._fields, weights)), **BSHD),
                (2, 3, 2, 8), (2, 3, 3, 8), (8,), (3, 8), (2, 8), (8,))

    def test_packed_sequences(self):
        cu_seqlens = torch.tensor([0, 2, 5], dtype=torch.int32)
        for order in ("before", "after"):
            def function(q, k, *weights, order=order):
                return norm_rotary(
                    q, k, norm="layer", norm_order=order, cu_seqlens=cu_seqlens,
                    **dict(zip(librope.Norm._fields, weights)), **{**BSHD, "layout": "thd"})

            self.check(function, (6, 2, 8), (6, 1, 8), (8,), (8,), (8,), (8,))
            q, weight = torch.randn(6, 2, 8, requires_grad=True), torch.randn(8, requires_grad=True)
            out = norm_rotary(q, q_weight=weight, norm_order=order, cu_seqlens=cu_seqlens, **{**BSHD, "layout": "thd"})
            out.sum().backward()
            self.assertFalse(out[5].any() or q.grad[5].any())
            self.assertTrue(out[:5].all() and q.grad[:5].all())

    def test_which_tensors(self):
        """q alone, and with and without k and v beside it."""
        for has_k, has_v in itertools.product((False, True), repeat=2):
            shapes = [(2, 3, 2, 8), *[(2, 3, 1, 8)] * has_k, *[(2, 3, 3, 8)] * has_v]

            def function(q, *others, has_k=has_k, has_v=has_v):
                k, v = others[0] if has_k else None, others[-1] if has_v else None
                return norm_rotary(q, k, v, **BSHD)

            self.check(function, *shapes)
            self.assertEqual(isinstance(function(*map(torch.randn, shapes)), tuple), has_k or has_v)


class AutogradTest(unittest.TestCase):
    def setUp(self):
        self.inputs, self.positions, self.grads = make_inputs("gemma4", tokens=5)
        self.function = fused("gemma4", positions=self.positions)

    def test_which_gradients(self):
        """Gradients of each part of the inputs, from each part of the results. Nothing else is computed."""
        expected = results_of(self.function, self.inputs, self.grads)[1]
        for needed in itertools.product((False, True), repeat=5):
            if not any(needed):
                continue
            inputs = [x.detach().requires_grad_(is_needed) for x, is_needed in zip(self.inputs, needed)]
            seen = []
            results = self.function(*inputs)
            with support.seen_args(lambda function, args: seen.append((
                    function, *[bool(view.data) for norm in [args.norm.contents] for view in (
                        args.q, args.k, args.v, norm.grad_q_weight, norm.grad_k_weight)]))):
                torch.autograd.backward(results, self.grads)
            q, k, v, q_weight, k_weight = needed
            self.assertEqual(seen, [("rope_backward", q or q_weight, k or k_weight, v, q_weight, k_weight)])
            for x, is_needed, grad in zip(inputs, needed, expected):
                self.assertEqual(x.grad is not None, is_needed)
                if is_needed:
                    self.assertTrue(torch.equal(x.grad, grad))
        for used in itertools.product((False, True), repeat=3):
            if any(used):
                results = [x for x, is_used in zip(self.function(*self.inputs), used) if is_used]
                grads = [x for x, is_used in zip(self.grads, used) if is_used]
                given = torch.autograd.grad(results, self.inputs, grads, allow_unused=True)
                for grad, whole, is_used in zip(given, expected, (*used, *used[:2])):
                    self.assertTrue(grad is None if not is_used else torch.equal(grad, whole))

    def test_strides(self):
        """Inputs are parts of a packed tensor, gradients are expanded, and results have the form of apply_rotary's."""
        packed = torch.randn(2, 5, 8, D, requires_grad=True)
        weight = torch.randn(D, requires_grad=True)
        for transpose in (False, True):
            def call(q, k, v):
                x = [x.transpose(1, 2) for x in (q, k, v)] if transpose else [q, k, v]
                layout = "bhsd" if transpose else "bshd"
                self.assertEqual(
                    [y.stride() for y in norm_rotary(*x, q_weight=weight, **{**BSHD, "layout": layout})],
                    [y.stride() for y in apply_rotary(*x, style="half", layout=layout, theta=THETA)])
                return sum([y.sum() for y in norm_rotary(*x, q_weight=weight, **{**BSHD, "layout": layout})])

            parts = packed.split([4, 2, 2], dim=2)
            views = torch.autograd.grad(call(*parts), (packed, weight))
            copies = torch.autograd.grad(call(*[x.contiguous() for x in parts]), (packed, weight))
            for x, y in zip(views, copies):
                self.assertTrue(torch.equal(x, y))

    def test_tokens_without_any(self):
        q, weight = torch.zeros(2, 0, 3, 8, requires_grad=True), torch.ones(8, requires_grad=True)
        norm_rotary(q, q_weight=weight, **BSHD).sum().backward()
        self.assertEqual(q.grad.shape, q.shape)
        self.assertFalse(weight.grad.any())

    def test_changed_in_place(self):
        for i in range(5):
            inputs = [x.detach().clone().requires_grad_() for x in self.inputs]
            results = self.function(*inputs)
            with torch.no_grad():
                inputs[i].add_(1.0)
            with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                torch.autograd.backward(results, self.grads)

    def test_inference(self):
        """Without gradients the call is the descriptor's, also for tensors that builtins do not take."""
        q, weight = self.inputs[0].detach(), self.inputs[3].detach()
        desc = RopeDesc(head_dim=D, dtype="f64", norm="rms", **BSHD)
        expected = desc.forward(q, norm=librope.Norm(q_weight=weight))
        recorded = norm_rotary(q, q_weight=weight.clone().requires_grad_(), **BSHD)
        self.assertTrue(recorded.requires_grad)
        with torch.inference_mode():
            self.assertTrue(torch.equal(norm_rotary(q, q_weight=weight, **BSHD), expected))
        with torch.no_grad(), support.through_ctypes():
            self.assertTrue(torch.equal(norm_rotary(q, q_weight=weight, **BSHD), expected))
        self.assertTrue(torch.equal(recorded, expected))

    def test_meta(self):
        inputs = [x.detach().to("meta").requires_grad_() for x in self.inputs]
        grads = [torch.empty_like(x) for x in inputs[:3]]
        results, gradients = results_of(fused("gemma4"), inputs, grads)
        self.assertEqual([x.shape for x in (*results, *gradients)], [x.shape for x in (*inputs[:3], *inputs)])

    def test_transforms(self):
        """torch.func.grad has the gradients. Other transforms report that they have none."""
        q, k, v, *weights = [x.detach() for x in self.inputs]

        def loss(q, q_weight):
            results = self.function(q, k, v, q_weight, weights[1])
            return sum([(x * grad).sum() for x, grad in zip(results, self.grads)])

        expected = results_of(self.function, self.inputs, self.grads)[1]
        for actual, wanted in zip(torch.func.grad(loss, argnums=(0, 1))(q, weights[0]), (expected[0], expected[3])):
            self.assertTrue(torch.allclose(actual, wanted, rtol=0, atol=1e-13))
        q.requires_grad_()
        of_gradients = "norm_rotary: its derivative is not differentiable"
        of_forward_mode = "norm_rotary: it has no derivative of forward mode"
        of_vmap = "torch.vmap cannot map norm_rotary, nor its gradient"
        for text, call in (
                (of_gradients, lambda: torch.autograd.grad(
                    loss(q, weights[0]), q, create_graph=True)[0].sum().backward()),
                (of_gradients, lambda: torch.func.grad(
                    lambda q: torch.func.grad(loss)(q, weights[0]).square().sum())(q.detach())),
                (of_forward_mode, lambda: torch.func.jvp(
                    lambda q: torch.func.grad(loss)(q, weights[0]), (q.detach(),), (q.detach(),))),
                (of_forward_mode, lambda: torch.func.jvp(
                    lambda q: loss(q, weights[0]), (q.detach(),), (q.detach(),))),
                (of_vmap, lambda: torch.vmap(lambda q: loss(q, weights[0]))(torch.stack([q, q]))),
                (of_vmap, lambda: torch.vmap(lambda q: loss(q, weights[0]))(torch.stack([q, q]).detach())),
                (of_vmap, lambda: torch.vmap(
                    torch.func.grad(loss), (0, None))(torch.stack([q, q]).detach(), weights[0])),
                (of_vmap, lambda: torch.func.jacrev(lambda q: self.function(q, k, v, *weights)[0])(q.detach()))):
            with self.subTest(text), self.assertRaisesRegex(NotImplementedError, text):
                call()
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(q.detach(), q.detach())
            with self.assertRaisesRegex(NotImplementedError, of_forward_mode):
                loss(dual, weights[0])
            plain = loss(q.detach(), weights[0])  # without a tangent
        self.assertTrue(torch.equal(plain, loss(q.detach(), weights[0])))

    def test_refusals(self):
        q, weight, row = torch.randn(2, 5, 3, 16, requires_grad=True), torch.randn(16), torch.randn(5, 8)
        tables = dict(style="half", layout="bshd", norm_eps=EPS)
        for error, text, call in (
                (TypeError, "norm_eps", lambda: norm_rotary(q, style="half", layout="bshd", theta=THETA)),
                (librope.InvalidArgument, "norm_eps", lambda: norm_rotary(q, **{**BSHD, "norm_eps": 0.0})),
                (librope.InvalidArgument, "norm.q_weight.dtype is F64: it must be F32 or the descriptor's, F32",
                 lambda: norm_rotary(q, q_weight=weight.double(), **BSHD)),
                (librope.InvalidArgument, "norm.q_weight.dtype is BF16",
                 lambda: norm_rotary(q, q_weight=weight.bfloat16(), **BSHD)),
                (librope.InvalidArgument, "norm.q_weight has shape",
                 lambda: norm_rotary(q, q_weight=weight[:8].requires_grad_(), **BSHD)),
                (librope.InvalidArgument, "k_weight", lambda: norm_rotary(q, k_weight=weight, **BSHD)),
                (librope.InvalidArgument, "q_bias", lambda: norm_rotary(q, q_bias=weight, **BSHD)),
                (librope.InvalidArgument, "rope_forward: k.shape", lambda: norm_rotary(q, q[:1], **BSHD)),
                (librope.InvalidArgument, "q_weight", lambda: norm_rotary(
                    q, q, q_weight=weight, norm_tensors="k", **BSHD)),
                (ValueError, "norm_rotary: cos, sin and angles have no gradient here",
                 lambda: norm_rotary(q, cos=row.clone().requires_grad_(), sin=row, **tables)),
                (TypeError, "norm_rotary: position_offset is True",
                 lambda: norm_rotary(q, position_offset=True, **BSHD)),
                (ValueError, "norm_tensors", lambda: norm_rotary(q, norm_tensors="qk", **BSHD)),
                (ValueError, "its tensors are on cpu, meta: they must be on one device",
                 lambda: norm_rotary(q, q_weight=weight.to("meta"), **BSHD))):
            with self.subTest(text), self.assertRaisesRegex(error, text):
                call()


class OperatorsTest(unittest.TestCase):
    def test_opcheck(self):
        forward, backward = torch.ops.librope.norm_rotate.default, torch.ops.librope.norm_rotate_backward.default
        q, k, v = torch.randn(2, 3, 2, 8), torch.randn(2, 2, 3, 8).transpose(1, 2), torch.randn(2, 3, 1, 8)
        packed = torch.randn(2, 3, 5, 8)[:, :, 1:3]
        keys = [RopeDesc(
            head_dim=8, dtype="f32", norm=norm, norm_tensors=("q", "k", "v"), out_style="interleaved", **BSHD)._key
            for norm in ("rms", "layer")]
        rotation = torch.arange(3), 7, librope._abi.ROPE_FLAG_V_UNROTATED, None, None, None, None, None, 0
        weights = torch.randn(8), torch.randn(2, 8), torch.randn(2, 8), torch.randn(8)
        for tensors in ((q, k, v), (packed, None, v), (packed, k, None)):
            torch.library.opcheck(forward, (keys[0], *tensors, *rotation))
            given = [x if tensors[i % 2] is not None else None for i, x in enumerate(weights)]
            torch.library.opcheck(forward, (keys[1], *tensors, *rotation, *given))
            inputs = [None if x is None else torch.randn_like(x) for x in tensors]
            for wanted in (0, sum([1 << i for i, x in enumerate(given) if x is not None])):
                torch.library.opcheck(backward, (keys[1], *tensors, *rotation, *given, *inputs, wanted, 2))

    def test_both_kinds_of_kernels(self):
        """The kernels of Python give the bits of those of librope_torch.so, if it exists."""
        from librope import _torch_operators as operators

        inputs, positions, grads = make_inputs("cohere")
        q, k, _, q_weight, k_weight = [None if x is None else x.detach() for x in inputs]
        key = RopeDesc(head_dim=D, dtype="f64", layout="bshd", theta=THETA, norm_eps=EPS, **MODELS["cohere"][1])._key
        rotation = positions, 0, 0, None, None, None, None, None, 0
        weights = q_weight, k_weight, q_weight[1], None
        for name, arguments in (
                ("norm_rotate", (key, q, k, None, *rotation, *weights)),
                ("norm_rotate_backward", (key, *grads, None, *rotation, *weights, q, k, None, 7, 3)),
                ("norm_rotate_backward", (key, None, grads[1], None, *rotation, None, k_weight, None, None, None, k))):
            actual = getattr(torch.ops.librope, name)(*arguments)
            expected = operators._PYTHON[name](*arguments)
            self.assertEqual(len(actual), len(expected))
            for x, y in zip(actual, expected):
                self.assertTrue(x is y is None or (x.stride() == y.stride() and torch.equal(x, y)))

    def test_what_the_operator_refuses(self):
        key, x = RopeDesc(head_dim=8, dtype="f32", norm="rms", **BSHD)._key, torch.randn(2, 3, 2, 8)
        rotation = None, 0, 0, None, None, None, None, None, 0
        backward = torch.ops.librope.norm_rotate_backward
        for text, arguments in (
                ("q, k and v are absent", (None, None, None, torch.arange(3))),
                ("q_in", (x, None, None)),
                ("wanted has unknown bits", (x, None, None, *rotation, *[None] * 4, x, None, None, 16)),
                ("wanted has the gradient of k_bias, which is absent",
                 (x, None, None, *rotation, *[None] * 4, x, None, None, 8)),
                ("flags has unknown bits", (x, None, None, None, 0, 1 << 20, *rotation[3:], *[None] * 4, x))):
            with self.subTest(text), self.assertRaisesRegex(Exception, text):
                backward(key, *arguments)


class Attention(torch.nn.Module):
    """The computation of Qwen3 up to the products of q and k."""

    def __init__(self, is_fused=True):
        super().__init__()
        self.q_proj, self.k_proj = torch.nn.Linear(8, 4 * D), torch.nn.Linear(8, 2 * D)
        self.q_norm, self.k_norm = (torch.nn.Parameter(1.0 + 0.3 * torch.randn(D)) for _ in range(2))
        self.is_fused = is_fused

    def forward(self, x):
        q, k = self.q_proj(x).unflatten(-1, (4, D)), self.k_proj(x).unflatten(-1, (2, D))
        if self.is_fused:
            q, k = norm_rotary(q, k, q_weight=self.q_norm, k_weight=self.k_norm, **BSHD)
        else:
            angles = angles_of(torch.arange(x.shape[1])[None], D)
            q, k = qwen3(q, k, None, self.q_norm, self.k_norm, angles)
        return torch.einsum("bshd,bthd->bst", q, k.repeat_interleave(2, dim=2))


# The program of one of several processes. It has a part of a batch. Its files: state of the module and batch, a store.
RANK = """
import os, sys, torch
from torch import distributed
from test_norm_rotary import Attention
rank, size, data, store, out = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
state, x = torch.load(data)
distributed.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=size)
module = Attention().double()
module.load_state_dict(state)
parallel = torch.nn.parallel.DistributedDataParallel(module)
parallel(x.chunk(size)[rank]).square().sum().backward()
torch.save({name: p.grad for name, p in module.named_parameters()}, out + str(rank))
distributed.destroy_process_group()
# DistributedDataParallel leaves threads of gloo behind, and one that releases a tensor while the interpreter is being
# finalized aborts the process (pytorch issue 190489).
os._exit(0)
"""


class TrainingTest(unittest.TestCase):
    def setUp(self):
        self.module = Attention().double()
        self.plain = Attention(is_fused=False).double()
        self.plain.load_state_dict(self.module.state_dict())
        self.x = torch.randn(4, 5, 8, dtype=torch.float64)

    def gradients(self, module, call=None):
        module.zero_grad()
        x = self.x.clone().requires_grad_()
        out = (call or module)(x)
        out.square().sum().backward()
        return {"out": out.detach(), "x": x.grad, **{name: p.grad.clone() for name, p in module.named_parameters()}}

    def assert_alike(self, actual, expected, tolerance=1e-12):
        self.assertEqual(list(actual), list(expected))
        for name, x in actual.items():
            self.assertLess(distance(x, expected[name]), tolerance, name)

    def test_checkpointing(self):
        from torch.utils.checkpoint import checkpoint

        expected = self.gradients(self.plain)
        self.assert_alike(self.gradients(self.module), expected)
        for use_reentrant in (False, True):
            seen = []
            with support.seen_args(lambda function, args: seen.append((function, bool(args.norm)))):
                actual = self.gradients(
                    self.module, lambda x, form=use_reentrant: checkpoint(self.module, x, use_reentrant=form))
            self.assert_alike(actual, expected)
            self.assertEqual(seen, [("rope_forward", True), ("rope_forward", True), ("rope_backward", True)])

    def test_accumulation(self):
        expected = self.gradients(self.plain)
        self.module.zero_grad()
        for part in self.x.chunk(2):
            self.module(part).square().sum().backward()
        self.assert_alike({name: p.grad for name, p in self.module.named_parameters()},
                          {name: expected[name] for name, _ in self.module.named_parameters()})

    def test_saved_tensors_elsewhere(self):
        with torch.autograd.graph.save_on_cpu():
            actual = self.gradients(self.module)
        self.assert_alike(actual, self.gradients(self.plain))

    def test_autocast(self):
        """Nothing is cast: q and k have 16 bits, weights and their gradients F32."""
        module = Attention()
        seen = []
        with torch.autocast("cpu", dtype=torch.bfloat16), support.seen_args(
                lambda function, args: seen.append((args.q.dtype, args.norm.contents.q_weight.dtype))):
            module(self.x.float()).square().sum().backward()
        self.assertEqual(seen, 2 * [(librope.Dtype.BF16, librope.Dtype.F32)])
        self.assertEqual(module.q_norm.grad.dtype, torch.float32)

    def test_two_processes(self):
        """Each process has half of a batch, and the mean of both processes' gradients."""
        if not torch.distributed.is_available():
            self.skipTest("torch is built without distributed")
        expected = self.gradients(self.plain)
        with tempfile.TemporaryDirectory() as folder:
            paths = [str(Path(folder, name)) for name in ("data.pt", "store", "grads")]
            torch.save((self.module.state_dict(), self.x), paths[0])
            environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(
                None, [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH")])), OMP_NUM_THREADS="1")
            processes = [
                subprocess.Popen([sys.executable, "-W", "ignore", "-c", RANK, str(rank), "2", *paths], text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
                for rank in range(2)]
            try:
                for process in processes:
                    output, _ = process.communicate(timeout=120)
                    self.assertEqual(process.returncode, 0, output)
            finally:
                for process in processes:
                    process.kill()
            for rank in range(2):
                grads = torch.load(f"{paths[2]}{rank}")
                self.assert_alike({name: 2.0 * grad for name, grad in grads.items()},
                                  {name: expected[name] for name in grads})


class CompileTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not has_compiler():
            raise unittest.SkipTest("torch.compile does not work here")

    def test_a_block_in_one_graph(self):
        """One launch forward and one backward, with shapes that change."""
        from torch._dynamo.testing import CompileCounterWithBackend

        counter, counts = CompileCounterWithBackend("inductor"), set()

        def block(q, k, v, q_weight, k_weight, positions):
            q, k, v = norm_rotary(
                q * 2, k, v, q_weight=q_weight, k_weight=k_weight, norm_weight_offset=1.0, positions=positions, **BSHD)
            return (q * k + v).sum(-1)

        compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=counter)
        for batch, tokens in ((3, 5), (4, 9), (5, 31), (6, 401), (7, 499)):
            inputs = [torch.randn(batch, tokens, heads, D, requires_grad=True) for heads in (8, 1, 8)]
            inputs += [torch.randn(D, requires_grad=True) for _ in range(2)]
            positions, seen, results = torch.randint(0, 50, (batch, tokens)), [], []
            for function in (block, compiled):
                with support.seen_args(lambda function, args: seen.append((function, bool(args.norm)))):
                    out = function(*inputs, positions)
                    results.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
            self.assertEqual(seen, 2 * [("rope_forward", True), ("rope_backward", True)])
            for expected, actual in zip(*results):
                self.assertLess(distance(actual, expected), 1e-5)
            counts.add(counter.frame_count)
        # torch 2.10 makes a second graph for the largest number of runs of tokens.
        self.assertLessEqual(len(counts), 2)

    def test_frozen_weights_and_inference(self):
        def block(q, weight):
            return norm_rotary(q * 2, q_weight=weight, **BSHD) + 1

        compiled = torch.compile(block, fullgraph=True)
        weight = torch.randn(D)
        for is_needed in (True, False):
            q = torch.randn(2, 5, 3, D, requires_grad=is_needed)
            actual, expected = compiled(q, weight), block(q, weight)
            self.assertTrue(torch.allclose(actual, expected, atol=1e-5))
            if is_needed:
                grads = [torch.autograd.grad(x.square().sum(), q)[0] for x in (actual, expected)]
                self.assertLess(distance(*grads), 1e-5)

    def test_export(self):
        class Block(torch.nn.Module):
            def forward(self, q, weight):
                return norm_rotary(q, q_weight=weight, **BSHD)

        q, weight = torch.randn(2, 5, 3, D), torch.randn(D)
        program = torch.export.export(Block(), (q, weight))
        self.assertIn("librope.norm_rotate", str(program.graph))
        self.assertTrue(torch.equal(program.module()(q, weight), Block()(q, weight)))


if __name__ == "__main__":
    unittest.main()
