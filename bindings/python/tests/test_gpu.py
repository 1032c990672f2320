# SPDX-License-Identifier: Apache-2.0
# test_gpu.py - tests that need a GPU: torch, CuPy and numba on it, streams, CUDA graphs, several devices
from __future__ import annotations

import unittest

import support
from support import numpy

import librope
from librope import RopeDesc

if librope.device_count("cuda") == 0:
    raise unittest.SkipTest(f"needs a GPU: {librope.why_no_device()}")

BSHD = dict(style="half", layout="bshd", theta=10000.0)
random = numpy.random.default_rng(20261120)


def make_desc(dtype="f32", **overrides):
    return RopeDesc(head_dim=64, dtype=dtype, **{**BSHD, **overrides})


class TorchTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.torch = support.needs("torch")
        if not cls.torch.cuda.is_available():
            raise unittest.SkipTest("this torch has no CUDA")
        import librope.torch as operators
        cls.operators = operators

    def slow(self, x, times=200):
        """Keeps the current stream busy and does not change x: a call on another stream would run too early."""
        big = self.torch.zeros(1 << 26, device=x.device)
        for _ in range(times):
            big.add_(1.0)
        x.add_(big[0] * 0)

    def test_the_same_bits_as_the_cpu(self):
        torch = self.torch
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            with self.subTest(dtype=dtype):
                desc = make_desc(dtype)
                x = torch.randn(2, 37, 5, 64).to(dtype)
                positions = torch.randint(-1000, 100000, (2, 37))
                result = desc.forward(x.cuda(), positions=positions.cuda())
                self.assertEqual(result.device, x.cuda().device)
                self.assertTrue(torch.equal(result.cpu(), desc.forward(x, positions=positions)))
                back = desc.backward(result, positions=positions.cuda())
                self.assertTrue(torch.equal(back.cpu(), desc.backward(result.cpu(), positions=positions)))

    def test_forward_mode(self):
        torch = self.torch
        x, tangent = (torch.randn(2, 5, 3, 64, device="cuda") for _ in range(2))
        before = x.clone()
        desc = make_desc()
        result, slope = torch.func.jvp(lambda x: self.operators.apply_rotary(x, **BSHD), (x,), (tangent,))
        self.assertTrue(torch.equal(result, desc.forward(x)))
        self.assertTrue(torch.equal(slope, desc.forward(tangent)))  # a rotation is linear
        slopes = [torch.func.jvp(function, (x,), (tangent,))[1] for function in (
            lambda x: self.operators.swiglu(x, x), lambda x: torch.nn.functional.silu(x) * x)]
        self.assertTrue(torch.allclose(*slopes, rtol=1e-5, atol=1e-5))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, tangent)
            for function in (lambda: desc.forward(dual), lambda: desc.forward(dual, out=dual),
                             lambda: librope.swiglu(dual, dual)):
                with self.assertRaisesRegex(ValueError, "_forward: .*: it has a tangent of forward-mode AD"):
                    function()
        self.assertTrue(torch.equal(x, before))

    def test_the_current_stream(self):
        torch = self.torch
        desc = make_desc()
        x = torch.randn(2, 37, 5, 64, device="cuda")
        expected = desc.forward(x)
        desc.forward(x, out=torch.empty_like(x))
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        for use in ("current", "given", "handle"):
            with self.subTest(use):
                source = torch.full_like(x, float("nan"))
                torch.cuda.synchronize()
                with torch.cuda.stream(stream):
                    self.slow(x)
                    source.copy_(x)
                    if use == "current":
                        result = desc.forward(source)
                out = torch.empty_like(x)
                if use == "given":
                    result = desc.forward(source, out=out, stream=stream)
                elif use == "handle":
                    result = desc.forward(source, out=out, stream=stream.cuda_stream)
                stream.synchronize()
                self.assertTrue(torch.equal(result, expected))

    def test_a_new_output_belongs_to_the_given_stream(self):
        torch = self.torch
        desc = make_desc(layout="thd")
        cu_seqlens = torch.tensor([0, 30, 37], device="cuda")
        stream = torch.cuda.Stream()
        for handle in (stream, stream.cuda_stream, 0):
            x = torch.randn(37, 5, 64, device="cuda")
            expected = desc.forward(x, cu_seqlens=cu_seqlens)
            torch.cuda.synchronize()
            self.slow(torch.zeros(1, device="cuda"))  # the zeros of the new output must not wait for this stream
            result = desc.forward(x, cu_seqlens=cu_seqlens, stream=handle)
            torch.cuda.synchronize()
            self.assertTrue(torch.equal(result, expected))

    def test_mixed_devices_are_refused(self):
        torch = self.torch
        x = torch.randn(2, 37, 5, 64, device="cuda")
        with self.assertRaisesRegex(ValueError, "positions: it is on cpu, the first tensor of the call on cuda:0"):
            make_desc().forward(x, positions=torch.arange(37))
        for device, name in (("cuda", "cuda"), ("cuda:0", "cuda:0")):
            with self.assertRaisesRegex(ValueError, f"rope_forward: q: it is on cpu: this RopeDesc is for {name}"):
                make_desc(device=device).forward(x.cpu())
        for field, tensors, others in (("k", (x, x.cpu()), {}), ("q_out", (x,), dict(out=x.cpu())),
                                       ("cos", (x,), dict(cos=torch.ones(37, 32), sin=torch.zeros(37, 32))),
                                       ("fault", (x,), dict(fault=torch.zeros(2, dtype=torch.int64)))):
            with self.subTest(field), self.assertRaisesRegex(ValueError, f"{field}: it is on cpu, the first tensor"):
                make_desc(device="cuda").forward(*tensors, **others)
        with self.assertRaisesRegex(ValueError, "up: it is on cpu, the first tensor of the call on cuda:0"):
            librope.swiglu(x, x.cpu())

    def test_graphs(self):
        torch = self.torch
        desc = make_desc(device="cuda:0")
        for function in (desc.forward,  # the first call is captured
                         lambda x: self.operators.swiglu(x, x),
                         lambda x: self.operators.apply_rotary(x, rotary_dim=32, **BSHD)):
            x = torch.randn(2, 37, 5, 64, device="cuda")
            if function != desc.forward:
                function(x)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = function(x)
            for _ in range(10):
                x.normal_()
                graph.replay()
                self.assertTrue(torch.equal(result, function(x)))

    def step(self, device, slots):
        """The arguments of a decode step, on a device."""
        torch = self.torch
        torch.manual_seed(1)
        q, k, v = (torch.randn(5, heads, 64).bfloat16().to(device) for heads in (8, 2, 2))
        weights = librope.Norm(*(torch.randn(64).bfloat16().to(device) for _ in range(2)))
        caches = [torch.zeros(4, 3, 2, 64, dtype=torch.bfloat16, device=device) for _ in range(2)]
        return (q, k, v), dict(
            positions=torch.arange(5, device=device) * 1000, v_unrotated=True, norm=weights, out=(None, None, False),
            cache=librope.Cache(*caches, slots=slots.to(device)))

    def test_a_step(self):
        torch = self.torch
        slots = torch.tensor([7, 2, -1, 0, 11])
        desc = make_desc("bf16", layout="thd", norm="rms", norm_eps=1e-6)
        seen = []
        for device in ("cpu", "cuda"):
            tensors, arguments = self.step(device, slots)
            results = desc.forward(*tensors, **arguments)
            seen.append([x.cpu() for x in (*results[:2], *arguments["cache"][:2])])
        for expected, actual in zip(*seen):
            self.assertTrue(torch.equal(actual, expected))

    def test_a_step_of_8_bits(self):
        torch = self.torch
        slots = torch.tensor([7, 2, -1, 0, 11])
        desc = make_desc("bf16", layout="thd", norm="rms", norm_eps=1e-6, quant_rounding="first")
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            seen = []
            for device in ("cpu", "cuda"):
                (q, k, v), arguments = self.step(device, slots)
                out = torch.zeros(q.shape, dtype=dtype, device=device)
                caches = [torch.zeros(4, 3, 2, 64, dtype=dtype, device=device) for _ in range(2)]
                amax = torch.zeros(3, device=device)
                arguments.update(
                    out=(out, False, False), cache=librope.Cache(*caches, slots=arguments["cache"].slots),
                    quant=librope.Quant(
                        q_scale=torch.tensor([0.37], device=device), k_scale=torch.tensor([0.02, 3.0], device=device),
                        amax_out=amax),
                    input=librope.Input(q_row_factor=torch.arange(5.0, device=device)))
                desc.forward(q, k, v, **arguments)
                seen.append([*(x.cpu().view(torch.uint8) for x in (out, *caches)), amax.cpu()])
            for expected, actual in zip(*seen):
                self.assertTrue(torch.equal(actual, expected))

    def test_a_step_that_writes_scales(self):
        torch = self.torch
        slots = torch.tensor([7, 2, -1, 0, 11])
        desc = make_desc("bf16", layout="thd", norm="rms", norm_eps=1e-6)
        for scale in (torch.float32, *filter(None, [getattr(torch, "float8_e8m0fnu", None)])):
            for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
                seen = []
                for device in ("cpu", "cuda"):
                    (q, k, v), arguments = self.step(device, slots)
                    out = torch.zeros(q.shape, dtype=dtype, device=device)
                    q_scales = torch.zeros(*q.shape[:2], 4, dtype=scale, device=device)
                    rows = torch.zeros(4, 3, 2, 64 + 2 * scale.itemsize, dtype=torch.uint8, device=device)
                    v_cache = torch.zeros(4, 3, 2, 64, dtype=dtype, device=device)
                    v_scales = torch.zeros(4, 3, 2, 1, dtype=scale, device=device)
                    arguments.update(
                        out=(out, False, False),
                        cache=librope.Cache(
                            rows[..., :64].view(dtype), v_cache, slots=arguments["cache"].slots,
                            k_scales=rows[..., 64:].view(scale), v_scales=v_scales),
                        quant=librope.Quant(q_scales_out=q_scales, scale_floor=0.25, power_of_two=True))
                    desc.forward(q, k, v, **arguments)
                    seen.append([x.cpu().view(torch.uint8) for x in (out, q_scales, rows, v_cache, v_scales)])
                for expected, actual in zip(*seen):
                    self.assertTrue(torch.equal(actual, expected))
                    self.assertGreater(actual.count_nonzero(), 0)

    def test_a_step_of_latent_attention(self):
        """q beside its pass, and a latent k written to rows of codes, scales and a window of 16 bits."""
        torch = self.torch
        desc = make_desc("bf16", layout="thd", rotary_dim=16, rotary_offset=48)
        torch.manual_seed(1)
        tensors = [torch.randn(5, heads, width).bfloat16() for heads, width in ((8, 16), (8, 48), (1, 16), (1, 48))]
        slots, seen = torch.tensor([7, 2, -1, 0, 11]), []
        for device in ("cpu", "cuda"):
            q, q_pass, k, k_pass = [x.to(device) for x in tensors]
            rows = torch.zeros(4, 3, 1, 48 + 4 * 4 + 2 * 16, dtype=torch.uint8, device=device)
            q_out, k_out = desc.forward(
                q, k, input=librope.Input(q_pass, k_pass), cache=librope.Cache(
                    rows[..., 64:].view(torch.bfloat16), slots=slots.to(device),
                    k_pass_cache=rows[..., :48].view(torch.float8_e4m3fn),
                    k_pass_scales=rows[..., 48:64].view(torch.float32)))
            seen.append([x.cpu() for x in (q_out, k_out, rows)])
        for expected, actual in zip(*seen):
            self.assertTrue(torch.equal(actual, expected))
            self.assertGreater(actual.count_nonzero(), 0)

    def test_a_step_in_a_graph_whose_slots_change(self):
        torch = self.torch
        desc = make_desc("bf16", layout="thd", norm="rms", norm_eps=1e-6, device="cuda:0")
        tensors, arguments = self.step("cuda", torch.tensor([0, 1, 2, 3, 4]))
        cache = arguments["cache"]
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            _, k, _ = desc.forward(*tensors, **arguments)
        for slots in ([0, 1, 2, 3, 4], [11, 9, -1, 5, 0]):
            cache.slots.copy_(torch.tensor(slots))
            for x in cache[:2]:
                x.zero_()
            graph.replay()
            for x, source in ((cache.k_cache, k), (cache.v_cache, tensors[2])):
                expected = torch.zeros_like(x)
                for token, slot in enumerate(slots):
                    if slot >= 0:
                        expected.view(12, 2, 64)[slot] = source[token]
                self.assertTrue(torch.equal(x, expected))

    def test_compiled_with_cuda_graphs(self):
        torch = self.torch

        def block(q, k, positions):
            q, k = self.operators.apply_rotary(q * 2, k, positions=positions, **BSHD)
            return self.operators.swiglu(q, k) + q

        compiled = torch.compile(block, fullgraph=True, mode="reduce-overhead")
        positions = torch.arange(37, device="cuda")
        for _ in range(5):
            q, k = (torch.randn(2, 37, 5, 64, device="cuda", requires_grad=True) for _ in range(2))
            expected = block(q, k, positions)
            expected_grads = torch.autograd.grad(expected.sum(), (q, k))
            torch.compiler.cudagraph_mark_step_begin()
            actual = compiled(q, k, positions)
            self.assertTrue(torch.allclose(actual, expected, atol=1e-5))
            grads = torch.autograd.grad(actual.sum(), (q, k))
            for a, b in zip(grads, expected_grads):
                self.assertTrue(torch.allclose(a, b, atol=1e-5))

    NORM = dict(norm="rms", norm_eps=1e-6)

    def norm_rotary(self, q, k, q_weight, k_weight, positions):
        return self.operators.norm_rotary(
            q, k, q_weight=q_weight, k_weight=k_weight, positions=positions, **self.NORM, **BSHD)

    def formula(self, q, k, q_weight, k_weight, positions):
        """Qwen3's norm and rotation."""
        torch = self.torch
        angles = positions[..., None].double() * 10000.0 ** (
            -torch.arange(0, 64, 2, dtype=torch.float64, device=q.device) / 64)
        cos, sin = (torch.cat((x, x), -1)[:, :, None] for x in (angles.cos(), angles.sin()))
        results = []
        for x, weight in ((q, q_weight), (k, k_weight)):
            y = weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))
            low, high = y.chunk(2, -1)
            results.append(y * cos + torch.cat((-high, low), -1) * sin)
        return results

    def norm_inputs(self, dtype, batch=2, tokens=1025, device="cuda"):
        """q, k, their weights, positions, and gradients of the results."""
        torch = self.torch
        generator = torch.Generator().manual_seed(1)

        def make(*shape):
            return torch.randn(*shape, generator=generator).to(device, dtype)

        inputs = [make(batch, tokens, heads, 64).requires_grad_() for heads in (8, 2)]
        inputs += [(1.0 + 0.3 * make(64)).requires_grad_() for _ in range(2)]
        positions = torch.randint(0, 100000, (batch, tokens), generator=generator).to(device)
        return inputs, positions, [make(*x.shape) for x in inputs[:2]]

    def norm_results(self, function, inputs, positions, grads):
        results = function(*inputs, positions)
        return [x.detach() for x in results] + list(self.torch.autograd.grad(results, inputs, grads))

    def assert_near(self, actual, expected, tolerance):
        """Errors relative to the largest number of each result."""
        self.assertEqual(len(actual), len(expected))
        for x, y in zip(actual, expected):
            self.assertLess(((x.double() - y.double()).abs().max() / y.double().abs().max()).item(), tolerance)

    def test_norm_rotary(self):
        """Both directions against autograd of the formula in F64. Results have the bits of the CPU, except sums over
        tokens."""
        torch = self.torch
        for dtype, tolerance in ((torch.bfloat16, 2**-7), (torch.float32, 1e-5), (torch.float64, 1e-10)):
            with self.subTest(dtype=dtype):
                inputs, positions, grads = self.norm_inputs(dtype)
                actual = self.norm_results(self.norm_rotary, inputs, positions, grads)
                expected = self.norm_results(
                    self.formula, [x.detach().double().requires_grad_() for x in inputs], positions,
                    [x.double() for x in grads])
                self.assert_near(actual, expected, tolerance)
                there = self.norm_results(self.norm_rotary, *self.norm_inputs(dtype, device="cpu"))
                for x, y in zip(actual[:4], there):
                    self.assertTrue(torch.equal(x.cpu(), y))
                self.assert_near([x.cpu() for x in actual[4:]], there[4:], tolerance)
        inputs, positions, _ = self.norm_inputs(torch.float64, 1, 3)
        self.assertTrue(torch.autograd.gradcheck(lambda *x: self.norm_rotary(*x, positions), inputs))

    def test_norm_rotary_compiled(self):
        torch = self.torch
        for mode in (None, "reduce-overhead"):
            compiled = torch.compile(self.norm_rotary, fullgraph=True, mode=mode)
            for _ in range(4):
                inputs, positions, grads = self.norm_inputs(torch.bfloat16)
                torch.compiler.cudagraph_mark_step_begin()
                actual = self.norm_results(compiled, inputs, positions, grads)
                expected = self.norm_results(self.norm_rotary, inputs, positions, grads)
                for x, y in zip(actual[:4], expected):
                    self.assertTrue(torch.equal(x, y))
                self.assert_near(actual[4:], expected[4:], 2**-7)  # rows are added up in another order

    def test_norm_rotary_in_a_graph(self):
        """Forward and backward are captured at once."""
        torch = self.torch
        inputs, positions, grads = self.norm_inputs(torch.bfloat16)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.norm_results(self.norm_rotary, inputs, positions, grads)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = self.norm_results(self.norm_rotary, inputs, positions, grads)
        for _ in range(5):
            with torch.no_grad():
                for x in (*inputs, *grads):
                    x.normal_()
                positions.random_(0, 100000)
            graph.replay()
            for x, y in zip(results, self.norm_results(self.norm_rotary, inputs, positions, grads)):
                self.assertTrue(torch.equal(x, y))

    def test_a_patched_model_that_trains(self):
        """Qwen3 in BF16 has one launch forward and one backward for each layer. Its gradients are as close to F32 as
        the original's."""
        support.needs("transformers")
        import copy

        from test_transformers import distance, launches, make_model, patched, step_of_training, vary_norms

        torch = self.torch
        model = make_model("qwen3", "cuda", torch.bfloat16).train()
        vary_norms(model)
        exact, own = step_of_training(copy.deepcopy(model).float()), step_of_training(model)
        patched(self, model)
        (loss, grads), seen = launches(lambda: step_of_training(model))
        self.assertEqual(seen, 2 * [("rope_forward", True)] + 2 * [("rope_backward", True)])
        self.assertLess(abs(loss - exact[0]).item(), 2**-7 * exact[0].item())
        self.assertEqual(list(grads), list(exact[1]))
        whole = [torch.cat([grad.flatten().double() for grad in gradients.values()]) for gradients in (
            grads, own[1], exact[1])]
        self.assertLess(distance(whole[0], whole[2]), 2 * distance(whole[1], whole[2]))
        for name, grad in grads.items():
            self.assertLess(distance(grad.double(), exact[1][name].double()), 0.15, name)

    def test_gradcheck(self):
        torch = self.torch
        q, k = (torch.randn(2, 3, 2, 8, dtype=torch.float64, device="cuda", requires_grad=True) for _ in range(2))
        self.assertTrue(torch.autograd.gradcheck(lambda q, k: self.operators.apply_rotary(q, k, **BSHD), (q, k)))

    def test_swiglu_to_8_bits(self):
        """Codes and scales of ReGLU, with equal values on every device, and new ones of SwiGLU."""
        torch = self.torch
        gate, up = (torch.randn(4, 7, 256, dtype=torch.bfloat16) for _ in range(2))
        rows = torch.tensor([7, 0, 3, 5])
        desc = librope.SwigluDesc(dtype="bf16", activation="reglu")
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            for scale in (torch.float32, *filter(None, [getattr(torch, "float8_e8m0fnu", None)])):
                seen = []
                for device in ("cpu", "cuda"):
                    out = torch.zeros(4, 7, 256, dtype=dtype, device=device)
                    static = torch.zeros(4, 7, 256, dtype=dtype, device=device)
                    scales = torch.zeros(4, 2, 7, dtype=scale, device=device).transpose(1, 2)
                    amax = torch.zeros(1, device=device)
                    tensors = [x.to(device) for x in (gate, up, rows)]
                    desc.forward(*tensors[:2], out, expert_rows=tensors[2], quant=librope.SwigluQuant(
                        scales_out=scales, amax_out=amax, scale_floor=0.25, power_of_two=scales.dtype == torch.float32))
                    desc.forward(*tensors[:2], static, expert_rows=tensors[2], quant=librope.SwigluQuant(
                        torch.tensor([0.3, 1.0, 0.01, 7.0], device=device), scale_multiplies=True))
                    seen.append([x.cpu().contiguous().view(torch.uint8) for x in (out, static, scales, amax)])
                for expected, actual in zip(*seen):
                    self.assertTrue(torch.equal(actual, expected))
                    self.assertGreater(actual.count_nonzero(), 0)
            codes, scales = self.operators.swiglu(gate.cuda(), up.cuda(), out_dtype=dtype, group_size=128)
            values = self.operators.swiglu(gate.cuda().float(), up.cuda().float())
            self.assertTrue(torch.allclose(
                codes.float() * scales.repeat_interleave(128, -1), values, rtol=0.13, atol=1e-3 * float(values.max())))

    def test_swiglu(self):
        torch = self.torch
        packed = torch.randn(64, 2 * 1000, device="cuda", requires_grad=True)
        gate, up = packed.chunk(2, dim=-1)
        out, expected = self.operators.swiglu(gate, up), torch.nn.functional.silu(gate) * up
        self.assertTrue(torch.allclose(out, expected, atol=1e-5))
        grad, = torch.autograd.grad(out.sum(), packed)
        expected_grad, = torch.autograd.grad(expected.sum(), packed)
        self.assertTrue(torch.allclose(grad, expected_grad, atol=1e-5))

    def test_gatings_as_on_the_cpu(self):
        torch = self.torch
        gate, up, gate_bias, up_bias = (
            torch.randn(*shape, requires_grad=True) for shape in ((3, 64, 200), (3, 64, 200), (3, 200), (200,)))
        rows = torch.tensor([64, 0, 17])
        on_device = [x.detach().cuda().requires_grad_() for x in (gate, up, gate_bias, up_bias)]
        for form in support.SWIGLU_FORMS:
            with self.subTest(**form):
                results = []
                for inputs, count in (((gate, up, gate_bias, up_bias), rows), (on_device, rows.cuda())):
                    out = self.operators.swiglu(
                        *inputs[:2], gate_bias=inputs[2], up_bias=inputs[3], expert_rows=count, **form)
                    results.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
                for expected, actual in zip(*results):
                    self.assertTrue(torch.allclose(actual.cpu(), expected, rtol=1e-4, atol=1e-4))
        half = [torch.randn(100, 100, device="cuda").bfloat16() for _ in range(2)]
        actual = self.operators.swiglu(*half, product_rounding=True).cpu()
        expected = self.operators.swiglu(*(x.cpu() for x in half), product_rounding=True)
        self.assertLessEqual(int((actual != expected).sum()), 10)

    def test_the_second_device(self):
        torch = self.torch
        if torch.cuda.device_count() < 2:
            self.skipTest("needs two GPUs")
        desc = make_desc()
        x = torch.randn(2, 37, 5, 64)
        on_second = x.to("cuda:1")
        torch.cuda.set_device(0)
        result = desc.forward(on_second)
        self.assertEqual(torch.cuda.current_device(), 0)
        self.assertEqual(result.device, on_second.device)
        self.assertTrue(torch.equal(result.cpu(), desc.forward(x)))
        with self.assertRaisesRegex(ValueError, "it is on cuda:1, the first tensor of the call on cuda:0"):
            desc.forward(x.to("cuda:0"), out=on_second)
        with self.assertRaisesRegex(ValueError, "rope_forward: q: it is on cuda:1: this RopeDesc is for cuda:0"):
            make_desc(device="cuda:0").forward(on_second)

        class Interface:  # it does not state its device
            __cuda_array_interface__ = on_second.__cuda_array_interface__

        desc.forward(Interface(), out=Interface())
        self.assertTrue(torch.equal(on_second, result))


class CupyTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cupy = support.needs("cupy")

    def test_forward_and_in_place(self):
        cupy = self.cupy
        for dtype in (numpy.float32, numpy.float16, numpy.float64):
            with self.subTest(dtype=dtype):
                desc = make_desc(dtype)
                x = random.standard_normal((2, 37, 5, 128)).astype(dtype)[..., ::2]
                array = cupy.asarray(x.base)[..., ::2] if x.base is not None else cupy.asarray(x)
                result = desc.forward(array, positions=cupy.arange(37))
                self.assertIsInstance(result, cupy.ndarray)
                numpy.testing.assert_array_equal(cupy.asnumpy(result), desc.forward(x, positions=numpy.arange(37)))
                self.assertIs(desc.forward(array, out=array), array)
                numpy.testing.assert_array_equal(cupy.asnumpy(array), cupy.asnumpy(result))

    def test_the_current_stream(self):
        cupy = self.cupy
        desc = make_desc()
        x = cupy.asarray(random.standard_normal((2, 37, 5, 64)).astype(numpy.float32))
        expected = desc.forward(x)
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()
        with stream:
            big = cupy.zeros(1 << 26, dtype=cupy.float32)
            for _ in range(200):
                big += 1
            source = x + big[0] * 0
            result = desc.forward(source)
        stream.synchronize()
        numpy.testing.assert_array_equal(cupy.asnumpy(result), cupy.asnumpy(expected))

    def test_protocols(self):
        cupy = self.cupy
        desc = make_desc()
        x = random.standard_normal((2, 37, 5, 64)).astype(numpy.float32)
        expected = desc.forward(x)

        class Dlpack:
            def __init__(self, array):
                self.array = array

            def __dlpack_device__(self):
                return self.array.__dlpack_device__()

            def __dlpack__(self, **keywords):
                return self.array.__dlpack__(**keywords)

        class Interface:
            def __init__(self, array):
                self.__cuda_array_interface__ = array.__cuda_array_interface__

        for wrap in (Dlpack, Interface):
            with self.subTest(wrap.__name__):
                array, out = cupy.asarray(x), cupy.zeros_like(cupy.asarray(x))
                desc.forward(wrap(array), out=wrap(out))
                cupy.cuda.Device().synchronize()
                numpy.testing.assert_array_equal(cupy.asnumpy(out), expected)

    def test_swiglu(self):
        cupy = self.cupy
        gate, up = (random.standard_normal((33, 100)).astype(numpy.float32) for _ in range(2))
        result = librope.swiglu(cupy.asarray(gate), cupy.asarray(up))
        numpy.testing.assert_allclose(cupy.asnumpy(result), support.swiglu(gate, up), atol=1e-5)


class NumbaTest(unittest.TestCase):
    def test_device_arrays(self):
        numba_cuda = support.needs("numba.cuda")
        if not numba_cuda.is_available():
            self.skipTest("this numba has no CUDA")
        desc = make_desc()
        x = random.standard_normal((2, 37, 5, 64)).astype(numpy.float32)
        array = numba_cuda.to_device(x)
        desc.forward(array, out=array)
        numpy.testing.assert_array_equal(array.copy_to_host(), desc.forward(x))


class ReportTest(unittest.TestCase):
    def test_driver(self):
        from librope import _cuda
        self.assertRegex(_cuda.driver_description(), r"for CUDA up to \d+\.\d")
        _cuda.synchronize(0, 0)


if __name__ == "__main__":
    unittest.main()
