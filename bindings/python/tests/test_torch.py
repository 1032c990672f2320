# SPDX-License-Identifier: Apache-2.0
# test_torch.py - torch's tensors, and librope.torch: eager, autograd, torch.compile
from __future__ import annotations

import contextlib
import itertools
import tempfile
import unittest
import unittest.mock
import warnings

import support
from support import numpy

torch = support.needs("torch")

import librope  # noqa: E402
import librope.torch  # noqa: E402
from librope import NotSupported, RopeDesc  # noqa: E402
from librope.torch import apply_rotary, geglu, swiglu  # noqa: E402

torch.manual_seed(20261120)
BSHD = dict(style="half", layout="bshd", theta=10000.0)
# The types of written scales. E8M0 exists from torch 2.7 on.
SCALES = [torch.float32, *filter(None, [getattr(torch, "float8_e8m0fnu", None)])]


def has_compiler():
    try:
        torch.compile(lambda x: x + 1)(torch.zeros(2))
        return True
    except Exception:  # no C++ compiler, no Python headers, ...
        return False


class TensorTest(unittest.TestCase):
    def setUp(self):
        self.x = torch.randn(2, 5, 3, 16)
        self.desc = RopeDesc(head_dim=16, dtype=torch.float32, **BSHD)

    def test_the_same_bits_as_numpy(self):
        result = self.desc.forward(self.x)
        self.assertIsInstance(result, torch.Tensor)
        numpy.testing.assert_array_equal(result.numpy(), self.desc.forward(self.x.numpy()))

    def test_strides_are_passed_and_kept(self):
        packed = torch.randn(2, 5, 9, 16)
        q, k, v = packed.split([4, 3, 2], dim=2)
        results = self.desc.forward(q, k, v)
        for x, result in zip((q, k, v), results):
            self.assertTrue(torch.equal(result, self.desc.forward(x.contiguous())))
        bhsd = RopeDesc(head_dim=16, dtype=torch.float32, **{**BSHD, "layout": "bhsd"})
        view = self.x.transpose(1, 2)
        result = bhsd.forward(view)
        self.assertEqual(result.stride(), view.stride())
        self.assertTrue(torch.equal(result.transpose(1, 2), self.desc.forward(self.x)))
        self.assertTrue(torch.equal(self.desc.forward(self.x[:, :, :1].expand(-1, -1, 3, -1)),
                                    self.desc.forward(self.x[:, :, :1].repeat(1, 1, 3, 1))))

    def test_bfloat16(self):
        x = self.x.bfloat16()
        result = RopeDesc(head_dim=16, dtype=torch.bfloat16, **BSHD).forward(x)
        self.assertEqual(result.dtype, torch.bfloat16)
        self.assertTrue(torch.equal(result, self.desc.forward(x.float()).bfloat16()))

    def test_writing_in_place_is_seen_by_autograd(self):
        x = torch.randn(2, 5, 3, 16)
        weight = torch.ones((), requires_grad=True)
        product = weight * x
        self.desc.forward(x, out=x)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            product.sum().backward()
        with torch.inference_mode():
            y = torch.randn(2, 5, 3, 16)
            self.desc.forward(y, out=y)

    def test_refusals(self):
        x = self.x.clone().requires_grad_()
        with self.assertRaisesRegex(ValueError, "q: it requires grad, which this call would not record"):
            self.desc.forward(x)
        with torch.no_grad():
            self.desc.forward(x)
        with self.assertRaisesRegex(TypeError, "q: its layout is torch.sparse_coo"):
            self.desc.forward(self.x.to_sparse())
        with self.assertRaisesRegex(TypeError, "q: its device is meta"):
            self.desc.forward(self.x.to("meta"))
        with self.assertRaisesRegex(TypeError, "q: its dtype is int8"):
            self.desc.forward(self.x.to(torch.int8))
        with self.assertRaisesRegex(ValueError, "lazily negated"):
            self.desc.forward(torch._neg_view(self.x))

    def test_devices(self):
        self.assertTrue(torch.equal(
            RopeDesc(head_dim=16, dtype=torch.float32, device=torch.device("cpu"), **BSHD).forward(self.x),
            self.desc.forward(self.x)))

    def test_frequencies_of_a_tensor(self):
        inv_freq = 10000.0 ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16)
        desc = RopeDesc(head_dim=16, dtype="f32", style="half", layout="bshd", inv_freq=inv_freq)
        self.assertTrue(torch.allclose(desc.forward(self.x), self.desc.forward(self.x), atol=1e-6))
        self.assertTrue(torch.equal(
            apply_rotary(self.x, style="half", layout="bshd", inv_freq=inv_freq), desc.forward(self.x)))

    def test_inside_of_a_compiled_function(self):
        def block(x):
            return self.desc.forward(2 * x) + 1

        self.assertTrue(torch.equal(torch.compile(block, backend="eager")(self.x), block(self.x)))


class KeptDescriptorTest(unittest.TestCase):
    """Functions keep descriptors by numbers, never by tensors, whose numbers may change in place."""

    def setUp(self):
        self.x = torch.randn(2, 5, 3, 8)

    def rotated(self, inv_freq, scale=1.0):
        angles = torch.arange(5)[:, None, None] * torch.tensor(inv_freq, dtype=torch.float64)
        a, b = self.x.double().chunk(2, -1)
        cos, sin = scale * angles.cos(), scale * angles.sin()
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).float()

    def assert_near(self, actual, expected):
        self.assertTrue(torch.allclose(actual, expected, atol=1e-5), (actual - expected).abs().max())

    def test_frequencies(self):
        form = dict(style="half", layout="bshd")
        functions = {
            "apply_rotary": lambda given: apply_rotary(self.x, inv_freq=given, **form),
            "rotary_step": lambda given: librope.torch.rotary_step(self.x, inv_freq=given, **form)[0],
            "norm_rotary": lambda given: librope.torch.norm_rotary(
                self.x, self.x, inv_freq=given, norm_tensors="k", norm_eps=1.0, **form)[0],
            "recorded": lambda given: apply_rotary(self.x.clone().requires_grad_(), inv_freq=given, **form).detach(),
        }
        for name, function in functions.items():
            for make in (lambda value: torch.tensor(value), lambda value: torch.tensor([value], dtype=torch.float64),
                         lambda value: torch.nn.Parameter(torch.tensor(value)), numpy.array):
                for container in (list, tuple, torch.stack):
                    tensors = [make(1.0 / (i + 1)) for i in range(4)]
                    if container is torch.stack:
                        if not isinstance(tensors[0], torch.Tensor) or tensors[0].dim() or tensors[0].requires_grad:
                            continue
                        tensors = torch.stack(tensors)
                    for factor in (1.0, 0.5, 0.25):
                        with torch.no_grad():
                            given = tensors if isinstance(tensors, torch.Tensor) else container(tensors)
                            with self.subTest(name, factor=factor, container=container):
                                self.assert_near(function(given), self.rotated([float(t) for t in tensors]))
                            for t in tensors:
                                t *= 0.5

    def test_numbers(self):
        """Every number of a descriptor, as a tensor that changes in place."""
        x = self.x

        def rotate(**keywords):
            return apply_rotary(x, style="half", layout="bshd", **{"theta": 100.0, **keywords})

        def norm(**keywords):
            return librope.torch.norm_rotary(
                x, q_weight=torch.ones(8), style="half", layout="bshd", theta=100.0, **{"norm_eps": 1e-6, **keywords})

        def gate(**keywords):
            return swiglu(x, x, **keywords)

        def descriptor_gate(**keywords):
            return librope.swiglu(x, x, **keywords)

        def gate_back(**keywords):
            return librope.swiglu_backward(x, x, x, **keywords)[0]

        def codes(**keywords):
            return swiglu(x, x, out_dtype=torch.float8_e4m3fn, **keywords).float()

        cases = [(rotate, "theta", (100.0, 7.0)), (rotate, "attention_scale", (1.5, 0.5)), (rotate, "rotary_dim", (4, 8)),
                 (rotate, "rotary_offset", (2, 4)), (norm, "norm_eps", (1.0, 0.25)), (norm, "norm_weight_offset", (1.0, 3.0)),
                 *[(function, name, values) for function in (gate, descriptor_gate, gate_back, codes) for name, values in (
                     ("alpha", (1.5, 2.5)), ("limit", (0.5, 0.25)), ("up_offset", (1.0, 2.0)), ("out_scale", (2.0, 3.0)))],
                 *[(function, name, (1.0, 0.5)) for function in (gate, descriptor_gate)
                   for name in ("gate_softcap", "up_softcap")]]
        for function, name, values in cases:
            extra = dict(rotary_dim=4) if name == "rotary_offset" else {}
            expected = [function(**extra, **{name: value}) for value in values]
            self.assertFalse(torch.equal(*expected), name)
            for make in (torch.tensor, numpy.array):
                number = make(values[0])
                for _ in range(2):
                    for value, wanted in zip(values, expected):
                        number[...] = value
                        with self.subTest(function.__name__, name=name, value=value, make=make):
                            self.assertTrue(torch.equal(function(**extra, **{name: number}), wanted))

    def test_a_pair_s_axis(self):
        positions = torch.randint(0, 9, (2, 2, 5))
        axes = [torch.tensor(i % 2) for i in range(4)]

        def call(axes):
            return apply_rotary(
                self.x, style="half", layout="bshd", theta=100.0, num_axes=2, pair_axis=axes, positions=positions)

        before = call(axes)
        self.assertTrue(torch.equal(before, call([0, 1, 0, 1])))
        axes[0] += 1
        self.assertTrue(torch.equal(call(axes), call([1, 1, 0, 1])))
        self.assertFalse(torch.equal(call(axes), before))

    def test_a_module_has_the_numbers_of_its_construction(self):
        tensors, theta = [torch.tensor(1.0 / (i + 1)) for i in range(4)], torch.tensor(100.0)
        for given in (dict(inv_freq=tensors), dict(inv_freq=torch.stack(tensors)), dict(theta=theta)):
            module = librope.torch.RotaryEmbedding(8, style="half", layout="bshd", **given)
            before = module(self.x)
            for t in (*tensors, theta):
                t.mul_(0.5)
            self.assertTrue(torch.equal(module(self.x), before))
            self.assertNotIn("tensor", repr(module))

    def test_what_is_no_number(self):
        for theta in (torch.tensor([1.0, 2.0]), numpy.array([1.0, 2.0]), "100", object(), [100.0]):
            with self.subTest(theta=theta):
                for _ in range(2):
                    with self.assertRaises((TypeError, ValueError, RuntimeError)):
                        apply_rotary(self.x, style="half", layout="bshd", theta=theta)
        with self.assertRaises((TypeError, ValueError)):
            apply_rotary(self.x, style="half", layout="bshd", inv_freq=[numpy.ones(2)] * 4)

    def test_keys_without_tensors_are_found(self):
        from librope import torch as module

        form = dict(style="half", layout="bshd", inv_freq=(1.0, numpy.float32(0.5), 0.25, numpy.float64(0.125)))
        apply_rotary(self.x, **form)
        with unittest.mock.patch.object(module, "RopeDesc", side_effect=AssertionError("made again")):
            apply_rotary(self.x, **form)
            apply_rotary(self.x, **{**form, "inv_freq": [torch.tensor(y) for y in form["inv_freq"]]})

    def test_in_graphs(self):
        tensors = [torch.tensor(1.0 / (i + 1)) for i in range(4)]

        def block(x, tensors):
            return apply_rotary(x, style="half", layout="bshd", inv_freq=tensors) + 1

        compiled = torch.compile(block, backend="eager")
        try:
            compiled(self.x, tensors)
        except torch._dynamo.exc.InternalTorchDynamoError as error:
            self.skipTest(f"this torch does not break the graph at tensors: {error}")
        for _ in range(3):
            self.assert_near(compiled(self.x, tensors), self.rotated([float(t) for t in tensors]) + 1)
            for t in tensors:
                t.mul_(0.5)


class WithoutMemoryTest(unittest.TestCase):
    """Tensors of torch that are not one piece of memory with strides are refused in the package's words, or computed
    through torch's own dispatch."""

    @classmethod
    def setUpClass(cls):
        distributed = torch.distributed
        cls.distributed = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.distributed.cleanup)
        distributed.init_process_group(
            "gloo", init_method=f"file://{cls.distributed.name}/store", rank=0, world_size=1)
        cls.addClassCleanup(distributed.destroy_process_group)

    def setUp(self):
        self.x = torch.randn(2, 5, 3, 8)
        self.desc, self.gate = RopeDesc(head_dim=8, dtype="f32", **BSHD), librope.SwigluDesc(dtype="f32")

    def make_dtensor(self, x):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        return distribute_tensor(x, init_device_mesh("cpu", (1,)), [Shard(0)])

    def calls(self):
        """By the beginning of their errors: calls with the tensor at every kind of place."""
        x, row, desc, gate = self.x, torch.ones(5, 4), self.desc, self.gate
        module = librope.torch
        return {
            "rope_forward: q": [
                desc.forward, lambda y: desc.forward(y, out=y), lambda y: desc.forward(y, out=x.clone()),
                lambda y: apply_rotary(y, **BSHD), lambda y: apply_rotary(y, x, **BSHD),
                lambda y: module.norm_rotary(y, norm_eps=1e-6, **BSHD), lambda y: module.rotary_step(y, **BSHD),
                lambda y: module.apply_rotary_pos_emb(y, y, x[..., 0, :], x[..., 0, :], 2)],
            "rope_forward: q_out": [lambda y: desc.forward(x, out=y)],
            "rope_forward: k": [
                lambda y: desc.forward(x, y), lambda y: apply_rotary(x, y, **BSHD),
                lambda y: module.norm_rotary(x, y, norm_eps=1e-6, **BSHD), lambda y: module.rotary_step(x, y, **BSHD)],
            "rope_forward: positions": [
                lambda y: desc.forward(x, positions=y), lambda y: apply_rotary(x, positions=y, **BSHD)],
            "rope_forward: sin": [
                lambda y: desc.forward(x, cos=row, sin=y),
                lambda y: apply_rotary(x, cos=row, sin=y, style="half", layout="bshd")],
            "rope_forward: norm.q_weight": [
                lambda y: module.norm_rotary(x, q_weight=y, norm_eps=1e-6, **BSHD)],
            "rope_backward: q": [desc.backward],
            "swiglu_forward: gate": [
                lambda y: gate.forward(y, x), lambda y: librope.swiglu(y, x), lambda y: swiglu(y, x),
                lambda y: swiglu(y, x, product_rounding=False, out_dtype=torch.float8_e4m3fn)],
            "swiglu_forward: up": [lambda y: gate.forward(x, y), lambda y: swiglu(x, y), lambda y: geglu(x, y)],
            "swiglu_forward: out": [lambda y: gate.forward(x, x, y), lambda y: librope.swiglu(x, x, y)],
            "swiglu_backward: grad_out": [lambda y: gate.backward(y, x, x)],
            "swiglu_backward: grad_up": [lambda y: gate.backward(x, x, x, grad_up=y)],
        }

    def assert_refused(self, make, words, skip=()):
        before = self.x.clone()
        for field, functions in self.calls().items():
            for number, function in enumerate(functions):
                if (field, number) in skip:
                    continue
                for requires_grad in (False, True):
                    y, texts = make(), words
                    if requires_grad:
                        try:
                            y.requires_grad_()
                        except (RuntimeError, TypeError):  # some kinds cannot
                            continue
                        texts += "|it requires grad|.* have no gradient|out_dtype and quant: torch"
                    with self.subTest(field, number=number, requires_grad=requires_grad), self.assertRaisesRegex(
                            (TypeError, ValueError, NotImplementedError),
                            f"^({field}|swiglu: gate|[a-z_]+: [qk]|apply_rotary|swiglu): ({texts})"):
                        function(y)
                    self.assertTrue(torch.equal(self.x, before))

    def test_nested_tensors(self):
        for layout in (torch.strided, torch.jagged):
            self.assert_refused(lambda: torch.nested.nested_tensor(
                [torch.randn(5, 3, 8), torch.randn(4, 3, 8)], layout=layout), "it is a nested tensor: for layout")
        irregular = torch.nested.nested_tensor([torch.randn(5, 3, 8), torch.randn(4, 3, 6)])
        for name, function in (
                ("apply_rotary: q", lambda y: apply_rotary(y, **BSHD)),
                ("norm_rotary: q", lambda y: librope.torch.norm_rotary(y, norm_eps=1e-6, **BSHD)),
                ("rotary_step: q", lambda y: librope.torch.rotary_step(y, **BSHD)),
                ("rotary_step: v", lambda y: librope.torch.rotary_step(v=y, **BSHD)),
                ("swiglu_codes: gate", lambda y: librope.torch.swiglu_codes(y, y)),
                ("swiglu_gradients: gate", lambda y: librope.torch.swiglu_gradients(y, y, y)),
                ("apply_rotary_emb: x", lambda y: librope.torch.apply_rotary_emb(y, torch.ones(5, 4), torch.ones(5, 4)))):
            with self.subTest(name), self.assertRaisesRegex(TypeError, f"^{name}: it is a nested tensor"):
                function(irregular)

    def test_what_the_text_of_nested_tensors_says(self):
        """values() and offsets() are a tensor of layout "thd" and its cu_seqlens."""
        parts = [torch.randn(5, 3, 8), torch.randn(4, 3, 8)]
        nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
        out = apply_rotary(nested.values(), cu_seqlens=nested.offsets(), **{**BSHD, "layout": "thd"})
        self.assertTrue(torch.equal(out, torch.cat([apply_rotary(x[None], **BSHD)[0] for x in parts])))

    def test_dtensors(self):
        self.assert_refused(lambda: self.make_dtensor(self.x), "it is a DTensor, of which each rank has a part: give its")
        empty = self.make_dtensor(self.x[:0])
        for function in (self.desc.forward, lambda y: self.desc.forward(y, out=y), lambda y: apply_rotary(y, **BSHD)):
            with self.assertRaisesRegex(TypeError, "rope_forward: q: it is a DTensor"):
                function(empty)
        local = self.make_dtensor(self.x).to_local()
        self.assertTrue(torch.equal(self.desc.forward(local), self.desc.forward(self.x)))
        with self.assertRaisesRegex(TypeError, "swiglu_codes: gate: it is a DTensor"):
            librope.torch.swiglu_codes(self.make_dtensor(self.x[0, :, 0]), self.x[0, :, 0], group_size=1)

    def test_layouts_and_quantised_tensors(self):
        matrix = torch.randn(4, 8)
        kinds = {"its layout is torch.sparse_coo": lambda: self.x.to_sparse(),
                 "its layout is torch.sparse_csr": lambda: matrix.to_sparse_csr(),
                 "its layout is torch.sparse_bsr": lambda: matrix.to_sparse_bsr((2, 2))}
        if torch.backends.mkldnn.is_available():
            kinds["its layout is torch._mkldnn"] = lambda: self.x.to_mkldnn()
        for words, make in kinds.items():
            # apply_rotary_pos_emb calls to() and looks at the axes.
            self.assert_refused(make, words, skip=[("rope_forward: q", 7)])
        for field, functions in self.calls().items():
            for function in functions[:4] if field != "rope_forward: q" else functions[:6]:
                with self.subTest(field), self.assertRaisesRegex(
                        (TypeError, ValueError), "dtype is (torch.)?quint8: (librope has none such|it must be one of)"):
                    function(torch.quantize_per_tensor(self.x, 0.1, 0, torch.quint8))

    def test_masked_tensors(self):
        self.assert_refused(
            lambda: torch.masked.masked_tensor(self.x.clone(), self.x > 0), "it is a MaskedTensor, whose mask would be",
            skip=[("rope_forward: q", 7)])

    def test_wrappers_and_fakes(self):
        """librope.torch leaves them to torch's dispatch; descriptors refuse them."""
        from torch._subclasses.fake_tensor import FakeTensorMode

        class Wrapper(torch.Tensor):
            @staticmethod
            def __new__(cls, x):
                return torch.Tensor._make_wrapper_subclass(
                    cls, x.shape, strides=x.stride(), dtype=x.dtype, device=x.device)

            def __init__(self, x):
                self.inner = x

            @classmethod
            def __torch_dispatch__(cls, function, types, arguments=(), keywords=None):
                from torch.utils._pytree import tree_map_only

                arguments, keywords = tree_map_only(Wrapper, lambda x: x.inner, (arguments, keywords or {}))
                return tree_map_only(torch.Tensor, Wrapper, function(*arguments, **keywords))

        freed = self.x.clone()
        freed.untyped_storage().resize_(0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for name, y in (("Wrapper", Wrapper(self.x)), ("FakeTensor", FakeTensorMode().from_tensor(self.x)),
                            ("torch.Tensor", torch._efficientzerotensor(self.x.shape)), ("torch.Tensor", freed)):
                for field, function in (
                        ("rope_forward: q", self.desc.forward), ("rope_forward: q_out", lambda y: self.desc.forward(
                            self.x, out=y)), ("rope_forward: k", lambda y: self.desc.forward(self.x, y)),
                        ("swiglu_forward: up", lambda y: self.gate.forward(self.x, y))):
                    with self.subTest(name, field=field), self.assertRaisesRegex(
                            TypeError, f"^{field}: it is a .*{name} of 240 elements without memory"):
                        function(y)
        self.assertTrue(torch.equal(apply_rotary(Wrapper(self.x), **BSHD).inner, self.desc.forward(self.x)))
        self.assertTrue(torch.equal(swiglu(Wrapper(self.x), Wrapper(self.x)).inner, self.gate.forward(self.x, self.x)))

        class Refusing(Wrapper):
            @classmethod
            def __torch_dispatch__(cls, function, types, arguments=(), keywords=None):
                raise RuntimeError("its own refusal")

        with self.assertRaisesRegex(RuntimeError, "^its own refusal$"):
            apply_rotary(Refusing(self.x), **BSHD)

    def test_negated_views(self):
        """Operators see the numbers, and descriptors refuse them: the memory has the opposite ones."""
        def negated(x):
            y = torch.complex(torch.zeros_like(x), -x).conj().imag
            self.assertTrue(y.is_neg() and torch.equal(y, x))
            return y

        x, weight, row = self.x, torch.randn(8), torch.randn(5, 4)
        cos, sin = row.cos(), row.sin()
        module = librope.torch

        def step(x, weight):
            return module.rotary_step(x, norm="rms", norm_eps=1e-6, q_weight=weight, **BSHD)[0]

        for function, inputs in (
                (lambda x: apply_rotary(x, **BSHD), [x]), (lambda x, y: apply_rotary(x, y, **BSHD)[1], [x, 2 * x]),
                (lambda c, s: apply_rotary(x, cos=c, sin=s, style="half", layout="bshd"), [cos, sin]),
                (lambda x, w: module.norm_rotary(x, q_weight=w, norm_eps=1e-6, **BSHD), [x, weight]),
                (step, [x, weight]), (swiglu, [x, 3 * x]), (lambda x, b: swiglu(x, x, gate_bias=b), [x, weight]),
                (lambda x: swiglu(x, x, out_dtype=torch.float8_e4m3fn).float(), [x])):
            expected = function(*inputs)
            self.assertTrue(torch.equal(function(*map(negated, inputs)), expected))
            for i in range(len(inputs)):
                mixed = [negated(y) if i == j else y for j, y in enumerate(inputs)]
                self.assertTrue(torch.equal(function(*mixed), expected))
        # torch cannot write such views for an operator that returns nothing.
        y, cache, slots = negated(x), negated(torch.ones(2, 5, 3, 8)), torch.arange(10).reshape(2, 5)
        with self.assertRaises(RuntimeError):
            torch.ops.librope.rotate_(self.desc._key, y, None, None, False)
        with self.assertRaisesRegex(ValueError, "rope_forward: cache.k_cache: it is a lazily negated view"):
            module.rotary_step(k=x, cache=librope.Cache(cache, slots=slots), **BSHD)
        self.assertTrue(torch.equal(y, x) and (cache == 1).all())
        for field, functions in self.calls().items():
            if field.endswith(("q_out", ": out", "grad_up")):
                for function in functions:
                    target = negated(x)
                    with self.assertRaisesRegex(ValueError, f"^{field}: it is a lazily negated view"):
                        function(target)
                    self.assertTrue(torch.equal(target, x))
        y = negated(x)
        y.requires_grad_()
        apply_rotary(y, **BSHD).sum().backward()
        self.assertTrue(torch.equal(y.grad, self.desc.backward(torch.ones_like(x))))

    def test_tensors_without_axes(self):
        number = torch.tensor(1.0)
        for name, function in (
                ("apply_rotary: q", lambda: apply_rotary(number, **BSHD)),
                ("norm_rotary: q", lambda: librope.torch.norm_rotary(number, norm_eps=1e-6, **BSHD)),
                ("rotary_step: k", lambda: librope.torch.rotary_step(None, number, **BSHD)),
                ("swiglu_forward: gate", lambda: swiglu(number, number)),
                ("rope_forward: positions", lambda: apply_rotary(self.x, positions=torch.tensor(1), **BSHD))):
            with self.subTest(name), self.assertRaisesRegex(ValueError, f"^{name}: it has 0 axes: librope takes 1 to 4"):
                function()


class EmptyTest(unittest.TestCase):
    """torch's empty tensors all have the address 0: no two of them are one tensor for that."""

    def test_outputs_that_are_added_to(self):
        for shape, k_shape in (((0, 3, 8), (0, 1, 8)), ((4, 0, 8), (4, 3, 8)), ((0, 0, 8), (0, 3, 8))):
            desc = RopeDesc(head_dim=8, style="half", layout="thd", theta=100.0, dtype="f32")
            q, k, out, k_out = torch.randn(shape), torch.randn(k_shape), torch.randn(shape), torch.randn(k_shape)
            expected = k_out + desc.backward(k)
            for _ in range(2):
                with self.subTest(shape, k_shape=k_shape):
                    results = desc.backward(q, k, out=(out, k_out), accumulate=True)
                    self.assertIs(results[0], out)
                    self.assertTrue(torch.allclose(k_out, expected, atol=1e-6))
                    expected = expected + desc.backward(k)
                    if not k.numel():
                        self.assertIs(desc.backward(q, out=out, accumulate=True), out)

    def test_a_norm_s_gradients_that_are_added_to(self):
        desc = RopeDesc(head_dim=8, style="half", layout="thd", theta=100.0, dtype="f32", norm="rms", norm_eps=1e-6)
        q, grad, out, weight = torch.randn(0, 3, 8), torch.randn(0, 3, 8), torch.randn(0, 3, 8), torch.randn(8)
        rows = torch.ones(1, 8)
        desc.backward(grad, out=out, accumulate=True, norm=librope.NormGradient(
            q_in=q, q_weight=weight, grad_q_weight=rows))
        self.assertTrue(torch.equal(rows, torch.ones(1, 8)))

    def test_a_training_step_of_experts(self):
        """One of the experts has no tokens."""
        weights = torch.randn(3, 6, 8, requires_grad=True)
        for counts in ((4, 0, 3), (0, 0, 0)):
            gradients = []
            for gate in (swiglu, lambda g, u, **keywords: torch.nn.functional.silu(g) * u):
                total = weights.new_zeros(())
                for expert, count in enumerate(counts):
                    tokens = torch.arange(count * 6.0).sin().reshape(count, 6)
                    g, u = (tokens @ weights[expert]).chunk(2, -1)
                    total = total + gate(g, u).square().sum()
                gradients.append(torch.autograd.grad(total, weights)[0])
            self.assertTrue(torch.allclose(*gradients, atol=1e-5))

    def test_every_function(self):
        module, key = librope.torch, dict(style="half", layout="thd", theta=100.0)
        q, k = (torch.randn(0, heads, 8, requires_grad=True) for heads in (3, 1))
        weight, bias = torch.randn(8, requires_grad=True), torch.randn(8, requires_grad=True)
        lengths = torch.zeros(1, dtype=torch.int64)
        for outputs, inputs in (
                (apply_rotary(q, k, **key), (q, k)), (apply_rotary(q, k, cu_seqlens=lengths, **key), (q, k)),
                (apply_rotary(q, q_pass=q, **{**key, "rotary_dim": 8}), (q,)),
                (module.norm_rotary(q, k, q_weight=weight, k_weight=weight, norm_eps=1e-6, **key), (q, k, weight)),
                (swiglu(q, q, gate_bias=bias, row_scale=q[..., 0]), (q, bias)),
                (swiglu(k[:, 0], k[:, 0], up_bias=bias[None].expand(2, 8), expert_offsets=lengths.expand(3)), (k, bias)),
                (swiglu(k[:, 0], k[:, 0], row_scale=bias, row_index=lengths[:0]), (k, bias))):
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            for x, grad in zip(inputs, torch.autograd.grad([y.sum() for y in outputs], inputs)):
                self.assertEqual((grad.shape, grad.abs().sum().item()), (x.shape, 0.0))
        with torch.no_grad():
            cache = librope.Cache(torch.ones(2, 2, 1, 8), torch.ones(2, 2, 1, 8), slots=lengths[:0])
            out = module.rotary_step(q, k, k, cache=cache, v_unrotated=True, **key)
            self.assertEqual([y.shape for y in out], [q.shape, k.shape, k.shape])
            self.assertTrue((cache.k_cache == 1).all())
            x = torch.randn(0, 64)
            made = module.swiglu_codes(x, x)
            self.assertEqual((made.codes.shape, made.column_codes.shape), (x.shape, x.shape))
            codes, scales = swiglu(x, x, out_dtype=torch.float8_e4m3fn, group_size=32)
            self.assertEqual((codes.shape, scales.shape), (x.shape, (0, 2)))


class OperatorTest(unittest.TestCase):
    def test_apply_rotary(self):
        q, k, v = torch.randn(2, 5, 4, 16), torch.randn(2, 5, 2, 16), torch.randn(2, 5, 1, 16)
        positions = torch.randint(0, 100, (2, 5))
        desc = RopeDesc(head_dim=16, dtype="f32", **BSHD)
        for given in ((q,), (q, k), (q, k, v)):
            results = apply_rotary(*given, positions=positions, **BSHD)
            expected = desc.forward(*given, positions=positions)
            for a, b in zip(results, expected) if len(given) > 1 else ((results, expected),):
                self.assertTrue(torch.equal(a, b))
        for style, other in (("half", "interleaved"), ("interleaved", "half")):
            arguments = {**BSHD, "style": style}
            self.assertTrue(torch.equal(apply_rotary(q, **arguments), apply_rotary(q, out_style=style, **arguments)))
            self.assertFalse(torch.equal(apply_rotary(q, **arguments), apply_rotary(q, out_style=other, **arguments)))
        cos, sin = torch.empty(100, 8), torch.empty(100, 8)
        desc.fill_tables(cos, sin)
        expected = apply_rotary(q, positions=positions, **BSHD)
        tables = dict(style="half", layout="bshd")
        self.assertTrue(torch.equal(apply_rotary(q, positions=positions, cos=cos, sin=sin, **tables), expected))
        self.assertTrue(torch.equal(
            apply_rotary(q, cos=cos[positions], sin=sin[positions], table_rows="by_token", **tables), expected))
        with self.assertRaisesRegex(librope.InvalidArgument, "rope_forward: k.shape"):
            apply_rotary(q, k[:1], **BSHD)
        with self.assertRaisesRegex(ValueError, "have no gradient here"):
            apply_rotary(q, cos=torch.randn(5, 8, requires_grad=True), sin=torch.randn(5, 8), **BSHD)

    def test_rounding_each_operation(self):
        """The results have the bits of torch's formula and of its gradient, in both styles, also in a part of a
        head."""
        def swap(x, style):
            if style == "half":
                low, high = x.chunk(2, -1)
                return torch.cat((-high, low), -1)
            pairs = x.unflatten(-1, (-1, 2))
            return torch.stack((-pairs[..., 1], pairs[..., 0]), -1).flatten(-2)

        devices = ["cpu"] + (["cuda"] if torch.cuda.is_available() and librope.device_count("cuda") else [])
        for device in devices:
            for dtype in (torch.bfloat16, torch.float16):
                for style in ("half", "interleaved"):
                    for width in (128, 48):
                        for tokens in (3, 700):
                            q = torch.randn(2, tokens, 8, 128, device=device, dtype=dtype, requires_grad=True)
                            grad = torch.randn_like(q)
                            angles = torch.rand(tokens, width // 2, device=device) * 6.28
                            cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
                            if style == "half":
                                wide_cos, wide_sin = (torch.cat((x, x), -1)[:, None] for x in (cos, sin))
                            else:
                                wide_cos, wide_sin = (x.repeat_interleave(2, -1)[:, None] for x in (cos, sin))
                            window, rest = q[..., :width], q[..., width:]
                            wanted = torch.cat((window * wide_cos + swap(window, style) * wide_sin, rest), -1)
                            wanted_grad, = torch.autograd.grad(wanted, q, grad)
                            actual = apply_rotary(
                                q, style=style, layout="bshd", rotary_dim=width, cos=cos, sin=sin,
                                rotation_rounding="each")
                            actual_grad, = torch.autograd.grad(actual, q, grad)
                            with self.subTest(device=device, dtype=dtype, style=style, width=width, tokens=tokens):
                                self.assertTrue(torch.equal(actual, wanted))
                                self.assertTrue(torch.equal(actual_grad, wanted_grad))
                                once = apply_rotary(
                                    q, style=style, layout="bshd", rotary_dim=width, cos=cos, sin=sin)
                                self.assertFalse(torch.equal(once, wanted))

    def test_gradcheck_of_rotations(self):
        def tensor(*shape):
            return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

        positions = torch.tensor([[3, 1, 4], [100, -5, 9]])
        cos, sin = torch.randn(3, 8, dtype=torch.float64), torch.randn(3, 8, dtype=torch.float64)
        cases = [
            dict(BSHD), dict(BSHD, positions=positions, attention_scale=1.25), dict(BSHD, positions=positions[1:]),
            dict(BSHD, out_style="interleaved", rotary_dim=4, rotary_offset=2),
            dict(style="interleaved", layout="bshd", inv_freq=[1.0, 0.5, 0.25, 0.125]),
            dict(style="half", layout="bshd", cos=cos, sin=sin),  # one column for each channel
        ]
        for arguments in cases:
            with self.subTest(**{name: value for name, value in arguments.items() if not torch.is_tensor(value)}):
                def function(q, k, arguments=arguments):
                    return apply_rotary(q, k, **arguments)

                inputs = tensor(2, 3, 2, 8), tensor(2, 3, 1, 8)
                self.assertTrue(torch.autograd.gradcheck(function, inputs))
                self.assertTrue(torch.autograd.gradgradcheck(function, inputs))
        inputs = tensor(6, 2, 8), tensor(6, 1, 8)
        cu_seqlens = torch.tensor([0, 2, 5], dtype=torch.int32)
        self.assertTrue(torch.autograd.gradcheck(
            lambda q, k: apply_rotary(q, k, style="half", layout="thd", theta=100.0, cu_seqlens=cu_seqlens), inputs))

    def test_pass(self):
        positions = torch.randint(0, 100, (2, 5))
        q, k, v = (torch.randn(2, 5, heads, 24) for heads in (4, 2, 4))
        k[..., :16] = k[:, :, :1, :16]
        for offset in (0, 6, 16):
            form = dict(BSHD, rotary_dim=8, rotary_offset=offset, positions=positions)
            parts = [torch.tensor(part) for x in (q, k) for part in support.parted(x.numpy(), offset, 8)]
            expected = apply_rotary(q, k, v, **form)
            for is_needed in (False, True):  # in one launch, and joined
                q_rot, q_pass, k_rot, k_pass = [x.clone().requires_grad_(is_needed) for x in parts]
                results = [
                    apply_rotary(q_rot, q_pass=q_pass, **form),
                    *apply_rotary(q_rot, k_rot, q_pass=q_pass, k_pass=k_pass, **form),
                    *apply_rotary(q_rot, k, q_pass=q_pass, **form),
                    *apply_rotary(q, k_rot, k_pass=k_pass, **form),
                    *apply_rotary(q_rot, k_rot, v, q_pass=q_pass, k_pass=k_pass, **form),
                    *apply_rotary(q_rot, v=v, q_pass=q_pass, **form)]
                for result, i in zip(results, (0, 0, 1, 0, 1, 0, 1, 0, 1, 2, 0, 2)):
                    self.assertTrue(torch.equal(result, expected[i]))
                self.assertEqual(results[0].requires_grad, is_needed)
                self.assertTrue(results[0].is_contiguous())
        thd = dict(style="half", layout="thd", theta=100.0, rotary_dim=8, rotary_offset=6)
        q_rot, q_pass = torch.randn(5, 4, 8), torch.randn(5, 4, 16)
        in_one, joined = [
            apply_rotary(q_rot, q_pass=x, cu_seqlens=torch.tensor([0, 2, 3]), **thd)
            for x in (q_pass, q_pass.clone().requires_grad_())]
        self.assertTrue(torch.equal(in_one, joined))
        self.assertTrue(in_one[:3].all() and not in_one[3:].any())
        form = dict(BSHD, rotary_dim=8)
        for is_needed in (False, True):  # without data
            meta = [torch.randn(2, 5, 4, width, device="meta", requires_grad=is_needed) for width in (8, 16)]
            self.assertEqual(apply_rotary(meta[0], q_pass=meta[1], **form).shape, (2, 5, 4, 24))
        for calls in (contextlib.nullcontext(), torch.no_grad()):
            q_rot = torch.randn(2, 5, 4, 8, requires_grad=True)
            with calls:
                for wrong in (torch.randn(2, 5, 4, 16).double(), torch.randn(2, 5, 3, 16)):
                    with self.assertRaisesRegex(ValueError, "q_pass"):
                        apply_rotary(q_rot, q_pass=wrong, **form)
                with self.assertRaisesRegex(ValueError, "k_pass"):
                    apply_rotary(q_rot, k_pass=wrong, **form)
                with self.assertRaisesRegex(librope.InvalidArgument, "q.shape"):
                    apply_rotary(q_rot, q_pass=torch.randn(2, 5, 4, 16), **BSHD)  # the window has all channels

    def test_gradients_of_pass(self):
        def function(q, k, q_pass, k_pass, **form):
            return apply_rotary(q, k, q_pass=q_pass, k_pass=k_pass.expand(-1, -1, 2, -1), **form)

        inputs = [torch.randn(2, 3, *shape, dtype=torch.float64, requires_grad=True) for shape in (
            (3, 4), (2, 4), (3, 6), (1, 6))]
        for offset in (0, 2, 6):
            form = dict(BSHD, rotary_dim=4, rotary_offset=offset, attention_scale=1.25)
            for wanted in itertools.product((True, False), repeat=4):
                if any(wanted):
                    given = [x if is_wanted else x.detach() for x, is_wanted in zip(inputs, wanted)]
                    self.assertTrue(torch.autograd.gradcheck(lambda *x: function(*x, **form), given))
            self.assertTrue(torch.autograd.gradgradcheck(lambda *x: function(*x, **form), inputs))
        self.assertTrue(torch.autograd.gradcheck(
            lambda *x: function(*x, **form), inputs, check_forward_ad=True, check_batched_grad=True))
        # torch's result of the formula.
        angles = torch.arange(3, dtype=torch.float64)[:, None, None] * torch.tensor([1.0, 0.01], dtype=torch.float64)

        def formula(window, rest):
            a, b = (1.25 * window).chunk(2, -1)
            return torch.cat([rest, a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

        q, k, q_pass, k_pass = inputs
        expected = formula(q, q_pass), formula(k, k_pass.expand(-1, -1, 2, -1))
        weights = [torch.randn_like(x) for x in expected]
        grads = [
            torch.autograd.grad([(x * w).sum() for x, w in zip(results, weights)], inputs)
            for results in (function(*inputs, **form), expected)]
        for actual, wanted in zip(*grads):
            self.assertTrue(torch.allclose(actual, wanted, rtol=0, atol=1e-12))
        # A batch of calls.
        with torch.no_grad():
            stacks = [torch.stack([x, 2 * x]) for x in inputs]
            for actual, x in zip(torch.vmap(lambda *x: function(*x, **form))(*stacks), expected):
                self.assertTrue(torch.allclose(actual, torch.stack([x, 2 * x])))

    def test_meta_beside_others_is_refused(self):
        x, row = torch.randn(2, 5, 3, 16), torch.randn(5, 8)
        for function in (
                lambda meta: swiglu(x, meta), lambda meta: swiglu(meta, x), lambda meta: apply_rotary(x, meta, **BSHD),
                lambda meta: apply_rotary(x, cos=row.to("meta"), sin=row, style="half", layout="bshd"),
                lambda meta: librope.torch.rotary_step(x, meta, **BSHD)):
            with self.assertRaisesRegex(ValueError, "its tensors are on cpu, meta: they must be on one device"):
                function(x.to("meta"))

    def test_errors_of_others_stay(self):
        class Other(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
                raise RuntimeError("other")

        x = torch.randn(2, 5, 3, 16)
        for function in (lambda: apply_rotary(x, **BSHD), lambda: swiglu(x, x)):
            with Other(), self.assertRaisesRegex(RuntimeError, "^other$"):
                function()
        with self.assertRaisesRegex(TypeError, "position_offset is True: it must be an integer"):
            apply_rotary(x, position_offset=True, **BSHD)

    def test_symbolic_traces(self):
        from torch.fx.experimental.proxy_tensor import make_fx

        x = torch.randn(2, 5, 3, 16)
        for function in (lambda x: apply_rotary(x, **BSHD), lambda x: librope.torch.rotary_step(x, **BSHD)[0],
                         lambda x: swiglu(x, x)):
            traced = make_fx(function, tracing_mode="symbolic")(x)
            longer = torch.randn(3, 7, 3, 16)
            self.assertTrue(torch.equal(traced(longer), function(longer)))
        with torch.no_grad():
            traced = torch.jit.trace(lambda x: apply_rotary(x, **BSHD), x.requires_grad_())
            self.assertTrue(torch.equal(traced(longer), apply_rotary(longer, **BSHD)))

    def test_one_tensor_without_a_gradient(self):
        q, k = torch.randn(2, 3, 2, 8, requires_grad=True), torch.randn(2, 3, 1, 8)
        rotated_q, rotated_k = apply_rotary(q, k, **BSHD)
        rotated_q.square().sum().backward()
        self.assertTrue(torch.allclose(q.grad, 2 * q.detach(), atol=1e-5))

    def test_opcheck_of_rotations(self):
        q, k = torch.randn(2, 3, 2, 8), torch.randn(2, 2, 3, 8).transpose(1, 2)
        packed, expanded = torch.randn(2, 3, 5, 8)[:, :, 1:3], torch.randn(2, 3, 1, 8).expand(2, 3, 4, 8)
        key = RopeDesc(
            head_dim=8, dtype="f32", style="half", layout="bshd", out_style="interleaved", rotary_dim=4,
            rotary_offset=2, theta=1e4, attention_scale=1.5)._key
        rotate, in_place = torch.ops.librope.rotate.default, torch.ops.librope.rotate_.default
        for is_backward in (False, True):
            for tensors in ((q, k, None), (packed, None, expanded), (packed[:, :1], None, None)):
                torch.library.opcheck(rotate, (key, *tensors, is_backward, None, 7))
            torch.library.opcheck(rotate, (key, q, k, None, is_backward, torch.arange(3), 7, 1))
            torch.library.opcheck(in_place, (key, q, k, None, is_backward, torch.arange(3)))

    def test_new_tensors_are_as_empty_like_makes_them(self):
        key = RopeDesc(head_dim=4, dtype="f32", **BSHD)._key
        generator = torch.Generator().manual_seed(5)
        for _ in range(300):
            order = torch.randperm(4, generator=generator).tolist()
            shape = [int(torch.randint(1, 4, (), generator=generator)) for _ in range(3)] + [4]
            x = torch.randn([shape[i] for i in order]).permute(torch.tensor(order).argsort().tolist())
            for axis in range(3):  # parts and expanded axes
                choice = int(torch.randint(4, (), generator=generator))
                if choice == 0:
                    x = x[(slice(None),) * axis + (slice(0, 2),)]
                elif choice == 1:
                    x = x[(slice(None),) * axis + (slice(0, 1),)].expand(*[2 if i == axis else -1 for i in range(4)])
            result = torch.ops.librope.rotate(key, x, None, None, False)[0]
            self.assertEqual(result.stride(), torch.empty_like(x).stride(), (x.shape, x.stride()))
            self.assertTrue(torch.equal(result, apply_rotary(x.contiguous(), **BSHD)))

    def test_swiglu(self):
        packed = torch.randn(5, 24, requires_grad=True)
        gate, up = packed.chunk(2, dim=-1)
        out = swiglu(gate, up)
        expected = torch.nn.functional.silu(gate) * up
        self.assertTrue(torch.allclose(out, expected, atol=1e-6))
        grad = torch.randn_like(out)
        actual_grad, = torch.autograd.grad(out, packed, grad)
        expected_grad, = torch.autograd.grad(expected, packed, grad)
        self.assertTrue(torch.allclose(actual_grad, expected_grad, atol=1e-5))
        key = librope.SwigluDesc(dtype="f32", alpha=1.7, limit=7.0, up_offset=1.0)._key
        gate, up = gate.detach(), up.detach()
        torch.library.opcheck(torch.ops.librope.swiglu.default, (key, gate, up))
        torch.library.opcheck(torch.ops.librope.swiglu_out.default, (key, gate, up, torch.empty(5, 12)))

    def test_swiglu_with_one_gradient(self):
        gate, up = torch.randn(5, 12), torch.randn(5, 12, requires_grad=True)
        swiglu(gate, up).sum().backward()
        self.assertTrue(torch.allclose(up.grad, torch.nn.functional.silu(gate), atol=1e-6))

    def test_programmatic_launch_in_both_directions(self):
        flags = []
        with support.seen_args(lambda function, args: flags.append((function, args.flags))):
            q = torch.randn(2, 3, 2, 8, requires_grad=True)
            apply_rotary(q, programmatic_launch=True, **BSHD).sum().backward()
            swiglu(q, q, programmatic_launch=True).sum().backward()
            apply_rotary(q, **BSHD)
        self.assertEqual(flags, [("rope_forward", 1), ("rope_backward", 1), ("swiglu_forward", 1),
                                 ("swiglu_backward", 1), ("rope_forward", 0)])

    def test_gradcheck_of_swiglu(self):
        gate, up = (torch.randn(5, 6, dtype=torch.float64, requires_grad=True) for _ in range(2))
        scale = torch.randn(5, dtype=torch.float64, requires_grad=True)
        try:
            swiglu(gate.detach(), up.detach(), row_scale=scale.detach())
        except NotSupported as error:
            self.skipTest(str(error))
        numbers = dict(alpha=1.5, up_offset=1.0, out_scale=0.5)
        self.assertTrue(torch.autograd.gradcheck(lambda *x: swiglu(*x, **numbers), (gate, up)))
        self.assertTrue(torch.autograd.gradcheck(
            lambda g, u, r: swiglu(g, u, row_scale=r, **numbers), (gate, up, scale)))
        num_rows = torch.tensor([3])
        self.assertTrue(torch.autograd.gradcheck(
            lambda g, u, r: swiglu(g, u, row_scale=r, num_rows=num_rows), (gate, up, scale)))

    def test_activations(self):
        functions = {
            "swiglu": torch.nn.functional.silu, "geglu_erf": torch.nn.functional.gelu, "reglu": torch.relu,
            "geglu-tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh")}
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-13)):
            packed = torch.randn(50, 24, dtype=dtype, requires_grad=True)
            gate, up = packed.chunk(2, dim=-1)
            grad = torch.randn(50, 12, dtype=dtype)
            for activation, function in functions.items():
                with self.subTest(activation, dtype=dtype):
                    out, expected = swiglu(gate, up, activation=activation), function(gate) * up
                    self.assert_alike(out, expected, packed, grad, tolerance)
            for approximate in ("none", "tanh"):
                with self.subTest("geglu", approximate=approximate, dtype=dtype):
                    expected = torch.nn.functional.gelu(gate, approximate=approximate) * up
                    self.assert_alike(geglu(gate, up, approximate), expected, packed, grad, tolerance)
        self.assertTrue(torch.equal(
            geglu(gate, up, approximate="tanh", out_scale=0.5), swiglu(gate, up, activation=2, out_scale=0.5)))
        with self.assertRaisesRegex(ValueError, "geglu: approximate is 'erf': it must be one of none, tanh"):
            geglu(gate, up, approximate="erf")

    def assert_alike(self, actual, expected, x, grad, tolerance):
        self.assertTrue(torch.allclose(actual, expected, rtol=tolerance, atol=tolerance))
        grads = (torch.autograd.grad(y, x, grad, retain_graph=True)[0] for y in (actual, expected))
        self.assertTrue(torch.allclose(*grads, rtol=tolerance, atol=tolerance))

    def test_the_rounded_activation_is_that_of_torch(self):
        def gelu(x):  # torch's own loses digits of 1 + erf for negative x
            return (0.5 * x.double() * torch.erfc(-x.double() / 2**0.5)).to(x.dtype)

        functions = {"swiglu": torch.nn.functional.silu, "geglu_erf": gelu, "reglu": torch.relu}
        for dtype in (torch.bfloat16, torch.float16):
            gate, up = (3 * torch.randn(500, 400) for _ in range(2))
            gate, up = gate.to(dtype), up.to(dtype)
            for activation, function in functions.items():
                with self.subTest(activation, dtype=dtype):
                    # Next to a power of two, a step of the activation above it equals two steps of a product below it.
                    for factor, most in ((torch.ones_like(up), 1), (up, 2)):
                        expected = function(gate) * factor
                        actual = swiglu(gate, factor, activation=activation, product_rounding=True)
                        # The bits of numbers with one sign have their order.
                        steps = (actual.view(torch.int16).int() - expected.view(torch.int16).int()).abs()
                        self.assertLessEqual(int((steps != 0).sum()), steps.numel() // 10000)
                        self.assertLessEqual(int(steps.max()), most)
            self.assertFalse(torch.equal(swiglu(gate, up), torch.nn.functional.silu(gate) * up))

    def test_gradcheck_of_biases(self):
        def tensor(*shape):
            return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

        gate, up, rows = tensor(3, 4, 6), tensor(3, 4, 6), torch.tensor([4, 0, 2], dtype=torch.int32)
        forms = [dict(), dict(activation="geglu_erf", gate_softcap=2.0, up_softcap=1.0),
                 dict(alpha=1.5, limit=1.0, limit_rule="activation", up_offset=1.0)]
        for form in forms:
            with self.subTest(**form):
                def by_expert(gate, up, gate_bias, up_bias, form=form):
                    return swiglu(gate, up, gate_bias=gate_bias, up_bias=up_bias, expert_rows=rows, **form)

                def for_all(gate, up, gate_bias, up_bias, form=form):
                    return swiglu(gate, up, gate_bias=gate_bias, up_bias=up_bias, **form)

                self.assertTrue(torch.autograd.gradcheck(by_expert, (gate, up, tensor(3, 6), tensor(3, 6))))
                self.assertTrue(torch.autograd.gradcheck(by_expert, (gate, up, tensor(6), tensor(3, 6))))
                self.assertTrue(torch.autograd.gradcheck(for_all, (gate, up, tensor(6), tensor(6))))
        num_rows = torch.tensor([2])
        self.assertTrue(torch.autograd.gradcheck(
            lambda g, u, b: swiglu(g, u, gate_bias=b, num_rows=num_rows), (gate, up, tensor(6))))
        self.assertTrue(torch.autograd.gradcheck(  # one row
            lambda g, u, b: swiglu(g, u, up_bias=b), (tensor(6), tensor(6), tensor(6))))

    def test_which_gradients_of_biases(self):
        gate, up = torch.randn(5, 12), torch.randn(5, 12)
        gate_bias, up_bias = torch.randn(12), torch.randn(12, requires_grad=True)
        written = []
        with support.seen_args(lambda function, args: written.append((args.grad_gate.ndim, args.grad_up.ndim))):
            swiglu(gate, up, gate_bias=gate_bias, up_bias=up_bias).sum().backward()
        self.assertEqual(written, [(0, 0), (0, 2)])
        self.assertTrue(torch.allclose(up_bias.grad, torch.nn.functional.silu(gate + gate_bias).sum(0), atol=1e-5))
        # In the bias's type, and for any number of terms.
        half, bias = torch.ones(4096, 3, dtype=torch.bfloat16), torch.zeros(3, requires_grad=True)
        out = swiglu(half * 0, half, gate_bias=torch.ones(3), up_bias=bias, activation="reglu")
        out.sum().backward()
        self.assertEqual(bias.grad.dtype, torch.float32)
        self.assertTrue(torch.equal(bias.grad, torch.full((3,), 4096.0)))

    def test_opcheck_of_biases_and_experts(self):
        gate, up, bias = (torch.randn(*shape, requires_grad=True) for shape in ((3, 4, 6), (3, 4, 6), (3, 6)))
        rows = torch.tensor([4, 0, 2])
        key = librope.SwigluDesc(
            dtype="f32", limit=7.0, up_offset=1.0, activation="geglu_tanh", gate_softcap=3.0, up_softcap=4.0,
            limit_rule="activation")._key
        gate, up, bias = gate.detach(), up.detach(), bias.detach()
        operands = None, None, bias, None, rows
        torch.library.opcheck(torch.ops.librope.swiglu.default, (key, gate, up, *operands))
        torch.library.opcheck(torch.ops.librope.swiglu_backward.default, (key, gate, gate, up, 1, *operands))
        torch.library.opcheck(
            torch.ops.librope.swiglu_backward.default, (key, gate, gate, up, 7, torch.randn(3, 4), *operands[1:]))


def normed(x, weight=None, offset=0.0, eps=1e-6):
    """The RMS norm of heads, in fp64."""
    x = x.double()
    y = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    return y if weight is None else y * (weight.double() + offset)


def rotated(x, positions, theta=10000.0):
    """The half style, in fp64. Positions broadcast against x's other axes."""
    half = x.shape[-1] // 2
    angles = positions.double()[..., None] * theta ** (-torch.arange(half, dtype=torch.float64) / half)
    a, b = x.double().split(half, dim=-1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], dim=-1)


class StepTest(unittest.TestCase):
    THD = dict(style="half", layout="thd", theta=10000.0)
    RMS = dict(norm="rms", norm_eps=1e-6)

    def setUp(self):
        self.q, self.k, self.v = torch.randn(5, 4, 16), torch.randn(5, 2, 16), torch.randn(5, 2, 16)
        self.q_weight, self.k_weight = torch.nn.Parameter(torch.randn(16)), torch.nn.Parameter(torch.randn(16))
        self.k_cache, self.v_cache = (torch.full((4, 3, 2, 16), torch.nan) for _ in range(2))
        self.slots = torch.tensor([7, 2, -1, 0, 11])
        self.positions = torch.tensor([3, 1000, 7, 0, 2])

    def assert_close(self, actual, expected, tolerance=1e-5):
        self.assertEqual(actual.shape, expected.shape)
        self.assertLess((actual.double() - expected).abs().max().item(), tolerance)

    def assert_cached(self, k, v):
        for cache, x in ((self.k_cache, k), (self.v_cache, v)):
            rows = cache.flatten(0, 1)
            self.assert_close(rows[self.slots[self.slots >= 0]], x[self.slots >= 0])
            self.assertEqual(rows.isnan().all(-1).all(-1).sum(), 8)

    def step(self, q, k, v, k_cache, v_cache, slots, q_weight, k_weight, positions):
        return librope.torch.rotary_step(
            q, k, v, q_weight=q_weight, k_weight=k_weight, positions=positions, v_unrotated=True, cached_only=True,
            cache=librope.Cache(k_cache, v_cache, slots=slots), **self.RMS, **self.THD)

    def arguments(self):
        return (self.q, self.k, self.v, self.k_cache, self.v_cache, self.slots, self.q_weight, self.k_weight,
                self.positions)

    def expected(self, x, weight):
        return rotated(normed(x, weight), self.positions[:, None])

    def test_norm_rotation_and_caches(self):
        with torch.no_grad():
            q, k, v = self.step(*self.arguments())
        self.assertIsNone(k)
        self.assertIsNone(v)
        self.assert_close(q, self.expected(self.q, self.q_weight))
        self.assert_cached(self.expected(self.k, self.k_weight), self.v)

    def test_a_norm_alone(self):
        with torch.no_grad():
            q, k, v = librope.torch.rotary_step(
                self.q, self.k, q_weight=self.q_weight, positions=self.positions, norm_weight_offset=1.0, **self.RMS,
                **self.THD)
            self.assertIsNone(v)
            self.assert_close(q, rotated(normed(self.q, self.q_weight, offset=1.0), self.positions[:, None]))
            self.assert_close(k, self.expected(self.k, None))
            half = [x.bfloat16() for x in (self.q, self.k)]
            for x, y in zip(half, librope.torch.rotary_step(
                    *half, positions=self.positions, norm_rounding="before_weight", **self.RMS, **self.THD)):
                self.assertEqual(y.dtype, torch.bfloat16)
                self.assert_close(y, rotated(normed(x).bfloat16(), self.positions[:, None]), 0.02)

    def test_no_norm_and_no_cache(self):
        results = librope.torch.rotary_step(self.q, self.k, positions=self.positions, **self.THD)
        for x, y in zip(results, apply_rotary(self.q, self.k, positions=self.positions, **self.THD)):
            self.assertTrue(torch.equal(x, y))
        x = torch.randn(7, 2, 16)
        cu_seqlens = torch.tensor([0, 2, 5])
        self.assertEqual(librope.torch.rotary_step(x, cu_seqlens=cu_seqlens, **self.THD)[0][5:].abs().max(), 0)

    def quantised(self, *tensors, **arguments):
        """rotary_step of q and k, both scaled, and codes of k in a cache."""
        q, k, k_cache, slots, scale, amax, factor = tensors
        return librope.torch.rotary_step(
            q, k, cached_only=True, cache=librope.Cache(k_cache, slots=slots),
            quant=librope.Quant(k_scale=scale, amax_out=amax),
            input=librope.Input(q_row_factor=factor, k_row_factor=factor), **self.THD, **arguments)

    def quantities(self):
        return (self.q, self.k, torch.zeros(4, 3, 2, 16, dtype=torch.float8_e4m3fn), self.slots, torch.tensor([0.25]),
                torch.zeros(3), torch.rand(5))

    def check_quantised(self, q_out, given):
        q, k, k_cache, slots, scale, amax, factor = given
        expected = [y * factor[:, None, None] for y in apply_rotary(q, k, **self.THD)]
        self.assertTrue(torch.equal(q_out, expected[0]))
        codes = torch.zeros(12, 2, 16, dtype=torch.uint8)
        codes[slots[slots >= 0]] = (expected[1] / scale).to(torch.float8_e4m3fn).view(torch.uint8)[slots >= 0]
        self.assertTrue(torch.equal(k_cache.view(torch.uint8).flatten(0, 1), codes))
        self.assertGreater(amax[1], 0)

    def test_codes_and_factors(self):
        for calls in (contextlib.nullcontext(), support.through_ctypes()):
            given = self.quantities()
            with calls:
                q_out, k_out, v_out = self.quantised(*given)
            self.assertIsNone(k_out)
            self.check_quantised(q_out, given)
            self.assertGreater(min(given[i]._version for i in (2, 5)), 0)
        with self.assertRaisesRegex(librope.InvalidArgument, "quant.k_scale is set: neither"):
            self.quantised(*given[:2], self.k_cache, *given[3:])
        with self.assertRaisesRegex(ValueError, "rotary_step: q_row_factor: it requires grad"):
            self.quantised(*given[:6], given[6].requires_grad_())
        are_equal = []
        for _ in range(8):  # with only 128 codes, all may be equal by chance
            bf16 = [torch.randn_like(x).bfloat16() for x in given[:2]]
            rounded, exact = ([*bf16, *self.quantities()[2:6], given[6].detach()] for _ in range(2))
            self.quantised(*rounded, quant_rounding="first")
            self.quantised(*exact)
            are_equal.append(torch.equal(rounded[2].view(torch.uint8), exact[2].view(torch.uint8)))
        self.assertFalse(all(are_equal))

    def test_codes_and_factors_in_one_graph(self):
        if not has_compiler():
            self.skipTest("torch.compile does not work here")
        given = self.quantities()
        q_out, _, _ = torch.compile(self.quantised, fullgraph=True)(*given)
        self.check_quantised(q_out, given)

    def scaled(self, q, k, v, k_cache, v_cache, k_scales, v_scales, slots):
        """rotary_step of q, k and v; it writes k and v as codes with scales."""
        return librope.torch.rotary_step(
            q, k, v, v_unrotated=True, cached_only=True, quant=librope.Quant(scale_floor=1e-3, power_of_two=True),
            cache=librope.Cache(k_cache, v_cache, slots=slots, k_scales=k_scales, v_scales=v_scales), **self.THD)

    def scaled_arguments(self, scale):
        caches = [torch.zeros(4, 3, 2, 16, dtype=torch.float8_e4m3fn) for _ in range(2)]
        return (self.q, self.k, self.v, *caches, torch.zeros(2, 4, 3, 1, dtype=scale).permute(1, 2, 0, 3),
                torch.zeros(4, 3, 2, 4), self.slots)

    def check_scaled(self, q_out, given):
        q, k, v, k_cache, v_cache, k_scales, v_scales, slots = given
        q_expected, k_rotated = apply_rotary(q, k, **self.THD)
        self.assertTrue(torch.equal(q_out, q_expected))
        written = slots >= 0
        for x, cache, scales in ((k_rotated, k_cache, k_scales), (v, v_cache, v_scales)):
            expected, products = support.scaled(
                x.numpy(), scales.shape[-1], 448.0, floor=1e-3, power_of_two=True)
            codes = torch.from_numpy(products).to(torch.float8_e4m3fn)
            for actual, rows in ((scales, torch.from_numpy(expected)), (cache, codes)):
                wanted = torch.zeros(12, *rows.shape[1:], dtype=actual.dtype).view(torch.uint8)
                wanted[slots[written]] = rows.to(actual.dtype).view(torch.uint8)[written]
                self.assertTrue(torch.equal(actual.contiguous().view(torch.uint8).flatten(0, 1), wanted))

    def test_written_scales(self):
        for scale in SCALES:
            for calls in (contextlib.nullcontext(), support.through_ctypes()):
                given = self.scaled_arguments(scale)
                with calls:
                    q_out, k_out, v_out = self.scaled(*given)
                self.assertTrue(k_out is None and v_out is None)
                self.check_scaled(q_out, given)
                self.assertGreater(min(x._version for x in given[3:7]), 0)
            given = self.scaled_arguments(scale)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):  # through the operator
                q_out, _, _ = self.scaled(*given)
            self.check_scaled(q_out, given)
            self.assertGreater(min(x._version for x in given[3:7]), 0)
        given = self.scaled_arguments(torch.float32)
        with self.assertRaisesRegex(ValueError, "rotary_step: v_scales: it requires grad"):
            self.scaled(*given[:6], given[6].requires_grad_(), given[7])
        with self.assertRaisesRegex(librope.InvalidArgument, "rope_forward: cache.k_scales is set: cache.k_cache .* 8 bits"):
            self.scaled(*given[:3], self.k_cache, *given[4:6], given[6].detach(), given[7])

    def test_written_scales_in_one_graph(self):
        if not has_compiler():
            self.skipTest("torch.compile does not work here")
        def inline(q, k, rows, slots, scale):
            cache = librope.Cache(
                rows[..., :16].view(torch.float8_e4m3fn), slots=slots, k_scales=rows[..., 16:].view(scale))
            return librope.torch.rotary_step(q, k, cached_only=True, cache=cache, **self.THD)[0]

        from torch._inductor.codegen.cpp_utils import DTYPE_TO_CPP
        for scale in filter(DTYPE_TO_CPP.get, SCALES):  # torch 2.10's inductor does not support float8_e8m0fnu
            given = self.scaled_arguments(scale)
            q_out = torch.compile(lambda *x: self.scaled(*x)[0], fullgraph=True)(*given)
            self.check_scaled(q_out, given)
            rows, expected = (torch.zeros(4, 3, 2, 20, dtype=torch.uint8) for _ in range(2))
            inline(self.q, self.k, expected, self.slots, scale)
            torch.compile(inline, fullgraph=True)(self.q, self.k, rows, self.slots, scale)
            self.assertTrue(torch.equal(rows, expected))
            self.assertGreater(rows.count_nonzero(), 0)

    def latent(self, q, q_pass, k, k_cache, pass_cache, pass_scales, slots):
        """rotary_step of q beside its pass, and of a latent k as codes with scales beside its window."""
        return librope.torch.rotary_step(
            q, k, cached_only=True, input=librope.Input(q_pass), rotary_dim=8, rotary_offset=16,
            cache=librope.Cache(
                k_cache, slots=slots, k_pass_cache=pass_cache.view(torch.float8_e4m3fn), k_pass_scales=pass_scales),
            **self.THD)[0]

    def latent_arguments(self):
        return (torch.randn(5, 4, 8), torch.randn(5, 1, 16).expand(-1, 4, -1), torch.randn(5, 1, 24),
                torch.zeros(4, 3, 1, 8, dtype=torch.bfloat16), torch.zeros(4, 3, 1, 16, dtype=torch.uint8),
                torch.zeros(4, 3, 1, 2), self.slots)

    def check_latent(self, q_out, given):
        q, q_pass, k, k_cache, pass_cache, pass_scales, slots = given
        form = dict(self.THD, rotary_dim=8, rotary_offset=16)
        self.assertTrue(torch.equal(q_out, apply_rotary(torch.cat([q_pass, q], -1), **form)))
        k_out = apply_rotary(k, **form)
        scales, products = support.scaled(k_out[..., :16].numpy(), 2, 448.0, floor=1e-10)
        written = slots >= 0
        for cache, rows in ((k_cache, k_out[..., 16:].bfloat16()), (pass_scales, torch.from_numpy(scales)), (
                pass_cache, torch.from_numpy(products).to(torch.float8_e4m3fn).view(torch.uint8))):
            expected = torch.zeros_like(cache).flatten(0, 1)
            expected[slots[written]] = rows[written]
            self.assertTrue(torch.equal(cache.flatten(0, 1), expected))

    def test_pass_and_latent_caches(self):
        for calls in (contextlib.nullcontext(), support.through_ctypes(), torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU])):  # the last one through the operator
            given = self.latent_arguments()
            with calls:
                q_out = self.latent(*given)
            self.check_latent(q_out, given)
            self.assertGreater(min(x._version for x in given[3:6]), 0)
        with self.assertRaisesRegex(ValueError, "rotary_step: q_pass: it requires grad"):
            self.latent(given[0], given[1].clone().requires_grad_(), *given[2:])
        with self.assertRaisesRegex(librope.InvalidArgument, "rope_forward: input.k_pass is set but k is absent"):
            librope.torch.rotary_step(self.q, input=librope.Input(k_pass=self.k), **self.THD)
        lengths = torch.tensor([0, 3])
        q_out, k_out, _ = librope.torch.rotary_step(
            given[0], given[2], cu_seqlens=lengths, input=librope.Input(given[1]), rotary_dim=8, rotary_offset=16,
            **self.THD)
        self.assertEqual((q_out.shape, k_out.shape), ((5, 4, 24), (5, 1, 24)))
        self.assertEqual((q_out[3:].abs().max(), k_out[3:].abs().max()), (0, 0))

    def test_latent_caches_in_one_graph(self):
        if not has_compiler():
            self.skipTest("torch.compile does not work here")
        given = self.latent_arguments()
        q_out = torch.compile(self.latent, fullgraph=True)(*given)
        self.check_latent(q_out, given)

    def test_what_is_written_is_seen_by_autograd(self):
        versions = [x._version for x in (self.k_cache, self.v_cache, self.q, self.k, self.v)]
        desc = RopeDesc(head_dim=16, dtype="f32", **self.THD)
        cache = librope.Cache(self.k_cache, self.v_cache, slots=self.slots)
        desc.forward(self.q, self.k, self.v, v_unrotated=True, cache=cache)
        self.assertEqual([x._version for x in (self.k_cache, self.v_cache, self.q, self.k, self.v)],
                         [versions[0] + 1, versions[1] + 1, *versions[2:]])
        weight = torch.ones((), requires_grad=True)
        product = weight * self.k_cache
        with torch.no_grad():
            self.step(*self.arguments())
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            product.sum().backward()

    def test_what_requires_grad_is_refused(self):
        with self.assertRaisesRegex(ValueError, "rotary_step: q_weight: it requires grad, and the step has no grad"):
            self.step(*self.arguments())
        with self.assertRaisesRegex(ValueError, "rotary_step: k: it requires grad"):
            librope.torch.rotary_step(k=self.k.requires_grad_(), **self.THD)
        with self.assertRaisesRegex(TypeError, "rotary_step: q, k and v are None"):
            librope.torch.rotary_step(**self.THD)
        with self.assertRaisesRegex(librope.InvalidArgument, "rope_forward: cache.slots"):
            librope.torch.rotary_step(k=self.v, cache=librope.Cache(self.k_cache), **self.THD)
        self.assertTrue(self.k_cache.isnan().all())
        with self.assertRaisesRegex(ValueError, "rotary_step: k: it has a tangent of forward-mode AD"):
            torch.func.jvp(lambda x: librope.torch.rotary_step(k=x, **self.THD)[1], (self.v,), (self.v,))

    def test_the_operator(self):
        tensors = [x.detach() for x in self.arguments()]
        q, k, v, k_cache, v_cache, slots, q_weight, k_weight, positions = tensors
        key = RopeDesc(head_dim=16, dtype="f32", **self.RMS, **self.THD)._key
        caches = torch.zeros_like(k_cache), torch.zeros_like(v_cache)
        torch.library.opcheck(torch.ops.librope.step.default, (
            key, q, k, v, torch.empty_like(q), None, None, False, positions, 0, 4, *(None,) * 5, 0, None, q_weight,
            k_weight, None, None, *caches, slots))
        has_norm = 1 << 17
        torch.library.opcheck(
            torch.ops.librope.step.default, (key, None, None, None, q, k, None, False, None, 0, has_norm))

    def test_what_the_operator_refuses(self):
        key = RopeDesc(head_dim=16, dtype="f32", **self.THD)._key
        none = None, None, None
        for arguments, text in (((key, *none, *none, False, torch.arange(5)), "q, k and v"),
                                ((key, self.q, *none[1:], *none, False), "q"),  # there is no output for it
                                ((key, *none, self.q, *none[1:], False, None, 0, 1 << 20), "flags has unknown bits")):
            before = self.q.clone()
            with self.assertRaisesRegex(Exception, text):
                torch.ops.librope.step(*arguments)
            self.assertTrue(torch.equal(self.q, before))

    def test_compiled_in_one_graph(self):
        if not has_compiler():
            self.skipTest("torch.compile does not work here")
        with torch.no_grad():
            q = torch.compile(lambda *x: self.step(*x)[0] * 2, fullgraph=True)(*self.arguments())
        self.assert_close(q, 2 * self.expected(self.q, self.q_weight), 2e-5)
        self.assert_cached(self.expected(self.k, self.k_weight), self.v)


class HeadDimTest(unittest.TestCase):
    """The functions take what from_hf_config returns."""
    CONFIG = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}

    def test_arguments_of_a_config(self):
        arguments = librope.from_hf_config(self.CONFIG)
        q, k = torch.randn(2, 5, 4, 16), torch.randn(2, 5, 2, 16)
        expected = RopeDesc(**arguments, layout="bshd", dtype="f32").forward(q, k)
        for function, keywords in ((apply_rotary, {}), (librope.torch.rotary_step, {}),
                                   (librope.torch.norm_rotary, {"norm_eps": 1e-6})):
            with self.subTest(function.__name__):
                results = function(q, k, layout="bshd", **arguments, **keywords)
                if function is not librope.torch.norm_rotary:
                    for result, x in zip(results, expected):
                        self.assertTrue(torch.equal(result, x))
                with self.assertRaisesRegex(
                        ValueError, f"{function.__name__}: head_dim is 16: the tensors have 32 channels"):
                    function(torch.randn(2, 5, 4, 32), layout="bshd", **arguments, **keywords)
        grad, = torch.autograd.grad(apply_rotary(q.requires_grad_(), layout="bshd", **arguments).sum(), q)
        self.assertEqual(grad.shape, q.shape)

    def test_a_pass_counts(self):
        q, q_pass = torch.randn(2, 5, 4, 8), torch.randn(2, 5, 4, 8)
        form = {**BSHD, "rotary_dim": 8}
        for x in (q_pass, q_pass.clone().requires_grad_()):
            self.assertTrue(torch.equal(apply_rotary(q, q_pass=x, head_dim=16, **form),
                                        apply_rotary(q, q_pass=x, **form)))
            with self.assertRaisesRegex(ValueError, "head_dim is 8: the tensors have 16 channels"):
                apply_rotary(q, q_pass=x, head_dim=8, **form)

    def test_in_a_graph(self):
        if not has_compiler():
            self.skipTest("torch.compile does not work here")
        arguments = librope.from_hf_config(self.CONFIG)
        compiled = torch.compile(lambda x: apply_rotary(x, layout="bshd", **arguments), fullgraph=True, backend="eager")
        x = torch.randn(2, 5, 4, 16)
        self.assertTrue(torch.equal(compiled(x), apply_rotary(x, layout="bshd", **arguments)))


class ForwardModeTest(unittest.TestCase):
    """Functions without a formula for tangents refuse them: torch would take the result for constant."""

    TEXT = "{}: it has a tangent of forward-mode AD"

    def setUp(self):
        self.x, self.tangent = torch.randn(2, 5, 3, 16), torch.randn(2, 5, 3, 16)

    def assert_refused(self, field, function, *arguments):
        with self.assertRaisesRegex(ValueError, self.TEXT.format(field)):
            function(*arguments)

    def test_rotations(self):
        x, tangent = self.x.double(), self.tangent.double()
        positions = torch.randint(0, 50, (2, 5))

        def function(x):
            return apply_rotary(x * x, x[:, :, :1], positions=positions, **BSHD)

        def formula(x):
            return rotated(x * x, positions[:, :, None]), rotated(x[:, :, :1], positions[:, :, None])

        actual, expected = (torch.func.jvp(f, (x,), (tangent,)) for f in (function, formula))
        for part, wanted in zip((*actual[0], *actual[1]), (*expected[0], *expected[1])):
            self.assertLess((part - wanted).abs().max().item(), 1e-9)
        with torch.autograd.forward_ad.dual_level():  # k has no tangent
            dual = torch.autograd.forward_ad.make_dual(x.clone().requires_grad_(), tangent)
            q, k = apply_rotary(dual, x[:, :, :1], positions=positions, **BSHD)
            self.assertTrue(torch.allclose(
                torch.autograd.forward_ad.unpack_dual(q).tangent, rotated(tangent, positions[:, :, None])))
            self.assertEqual(torch.autograd.forward_ad.unpack_dual(k).tangent.abs().max(), 0)
        inputs = x[:, :2, :, :8].clone().requires_grad_(), x[:, :2, :1, :8].clone().requires_grad_()
        arguments = dict(BSHD, positions=positions[:, :2], attention_scale=1.5)
        self.assertTrue(torch.autograd.gradcheck(
            lambda q, k: apply_rotary(q, k, **arguments), inputs, check_forward_ad=True, check_batched_grad=True,
            check_batched_forward_grad=True))
        self.assertTrue(torch.autograd.gradgradcheck(
            lambda q: apply_rotary(q * q, **arguments), inputs[:1], check_fwd_over_rev=True))

    def test_gating(self):
        def tensor(*shape):
            return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

        gate, up, rows = tensor(3, 4, 6), tensor(3, 4, 6), torch.tensor([4, 0, 2], dtype=torch.int32)
        form = dict(alpha=1.5, limit=1.0, up_offset=0.5, out_scale=0.75)
        cases = {
            "plain": (lambda g, u: swiglu(g, u), (gate, up)),
            "all": (lambda g, u, r, a, b: swiglu(g, u, row_scale=r, gate_bias=a, up_bias=b, **form),
                    (gate, up, tensor(3, 4), tensor(6), tensor(6))),
            "experts": (lambda g, u, a: swiglu(g, u, gate_bias=a, expert_rows=rows, activation="geglu_tanh"),
                        (gate, up, tensor(3, 6))),
            "rows": (lambda g, r: swiglu(g, up.detach(), row_scale=r, num_rows=torch.tensor([2])),
                     (gate, tensor(3, 4))),
            "one row": (lambda g, b: swiglu(g, g, up_bias=b), (tensor(6), tensor(6))),
        }
        for name, (function, inputs) in cases.items():
            with self.subTest(name):
                self.assertTrue(torch.autograd.gradcheck(
                    function, inputs, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True))

    def test_what_is_refused(self):
        cases = {
            "apply_rotary: cos": lambda x: apply_rotary(
                self.x, cos=x[0, :, 0, :8], sin=self.x[0, :, 0, :8], style="half", layout="bshd"),
            "rotary_step: q": lambda x: librope.torch.rotary_step(x, **BSHD)[0],
            "rotary_step: sin": lambda x: librope.torch.rotary_step(
                self.x, cos=self.x[0, :, 0, :8], sin=x[0, :, 0, :8], style="half", layout="bshd")[0],
        }
        for field, function in cases.items():
            with self.subTest(field):
                self.assert_refused(field, torch.func.jvp, function, (self.x,), (self.tangent,))
                self.assert_refused(field, torch.func.jacfwd(function), self.x)
                with torch.autograd.forward_ad.dual_level():
                    self.assert_refused(field, function, torch.autograd.forward_ad.make_dual(self.x, self.tangent))

    def test_derivatives_of_derivatives_of_swiglu_are_refused(self):
        def total(x):
            return swiglu(x, 2 * x, row_scale=x[..., 0]).sum()

        forward, reverse = torch.func.jacfwd, torch.func.jacrev
        for outer, inner in ((forward, forward), (reverse, forward), (forward, reverse), (reverse, reverse)):
            with self.subTest(outer=outer.__name__, inner=inner.__name__):
                with self.assertRaisesRegex(NotImplementedError, "swiglu: its derivative is not differentiable"):
                    outer(inner(total))(torch.randn(2, 3))
        x = torch.randn(2, 3, requires_grad=True)
        with torch.autograd.forward_ad.dual_level():
            out = total(torch.autograd.forward_ad.make_dual(x, torch.ones(2, 3)))
            tangent = torch.autograd.forward_ad.unpack_dual(out).tangent
            with self.assertRaisesRegex(NotImplementedError, "swiglu: its derivative is not differentiable"):
                tangent.backward()

    def test_meta(self):
        meta = self.x.to("meta")
        for function in (lambda x: swiglu(x, meta), lambda x: apply_rotary(x, meta, **BSHD)[0]):
            out, tangent = torch.func.jvp(function, (meta,), (meta,))
            self.assertEqual((out.shape, tangent.shape, out.is_meta), (meta.shape, meta.shape, True))

    def test_forward_over_reverse(self):
        x = self.x.clone().requires_grad_()
        turned, gated = apply_rotary(x, **BSHD), swiglu(x, self.x)
        with torch.autograd.forward_ad.dual_level():
            grad = torch.autograd.forward_ad.make_dual(self.x, self.tangent)
            back, = torch.autograd.grad(turned, x, grad)
            desc = RopeDesc(head_dim=16, dtype="f32", **BSHD)
            self.assertTrue(torch.equal(
                torch.autograd.forward_ad.unpack_dual(back).tangent, desc.backward(self.tangent)))
            with self.assertRaisesRegex(NotImplementedError, "swiglu: its derivative is not differentiable"):
                torch.autograd.grad(gated, x, grad)

    def test_the_gradient_of_a_gradient(self):
        x = self.x.clone().requires_grad_()
        grad, = torch.autograd.grad(swiglu(x, self.x).sum(), x, create_graph=True)
        with self.assertRaisesRegex(NotImplementedError, "swiglu: its derivative is not differentiable"):
            (x.sum() + grad.sum()).backward()
        with self.assertRaisesRegex(NotImplementedError, "swiglu: its derivative is not differentiable"):
            torch.func.grad(lambda x: torch.func.grad(lambda x: swiglu(x, self.x).sum())(x).sum())(self.x)

    def test_what_has_no_tangent(self):
        expected = apply_rotary(self.x, **BSHD), swiglu(self.x, self.x)

        def function(x):
            for actual, wanted in zip((apply_rotary(self.x, **BSHD), swiglu(self.x, self.x)), expected):
                self.assertTrue(torch.equal(actual, wanted))
            return x * expected[0]

        self.assertTrue(torch.equal(
            torch.func.jvp(function, (self.x,), (self.tangent,))[1], self.tangent * expected[0]))
        desc = RopeDesc(head_dim=16, dtype="f32", **BSHD)
        with torch.autograd.forward_ad.dual_level():
            self.assertTrue(torch.equal(desc.forward(self.x), expected[0]))

    def test_descriptors(self):
        desc, gate = RopeDesc(head_dim=16, dtype="f32", **BSHD), librope.SwigluDesc(dtype="f32")
        plain = self.x.clone()
        cases = {
            "rope_forward: q": [lambda x: desc.forward(x), lambda x: desc.forward(x, out=x),
                                lambda x: desc.forward(x, out=plain)],
            "rope_forward: q_out": [lambda x: desc.forward(self.tangent, out=x)],
            "rope_forward: k": [lambda x: desc.forward(plain, x, out=(plain, None))],
            "rope_forward: sin": [lambda x: desc.forward(
                plain, cos=self.tangent[0, :, 0, :8], sin=x[0, :, 0, :8], out=plain)],
            "rope_backward: q": [lambda x: desc.backward(x), lambda x: desc.backward(x, out=x)],
            "rope_fill_tables: cos": [lambda x: desc.fill_tables(x[0, :, 0, :8], plain[0, :, 0, :8])],
            "swiglu_forward: gate": [lambda x: gate.forward(x, plain), lambda x: librope.swiglu(x, plain, plain),
                                     lambda x: librope.swiglu(x, x, x)],
            "swiglu_backward: grad_out": [lambda x: gate.backward(x, plain, plain, grad_gate=plain),
                                          lambda x: librope.swiglu_backward(x, plain, plain)],
            "swiglu_backward: grad_up": [lambda x: gate.backward(self.tangent, plain, plain, grad_up=x)],
        }
        for field, functions in cases.items():
            for number, function in enumerate(functions):
                for requires_grad in (False, True):
                    with self.subTest(field, number=number, requires_grad=requires_grad), torch.no_grad(), \
                            torch.autograd.forward_ad.dual_level():
                        x = self.x.clone().requires_grad_(requires_grad)
                        self.assert_refused(field, function, torch.autograd.forward_ad.make_dual(x, self.tangent))
                        for tensor in (x, plain):
                            self.assertTrue(torch.equal(tensor, self.x))

    def test_transforms_cannot_see_into_descriptors(self):
        desc = RopeDesc(head_dim=16, dtype="f32", **BSHD)
        stack = torch.stack([self.x, self.x])
        for function in (desc.forward, lambda x: desc.forward(x, out=x), lambda x: librope.swiglu(x, x)):
            with self.assertRaisesRegex(TypeError, "forward: (q|gate): it is traced: torch.func's vmap"):
                torch.vmap(function)(stack)
            with self.assertRaisesRegex(ValueError, "it requires grad"):
                torch.func.grad(lambda x: function(x).sum())(self.x)

    def test_vmap(self):
        stack = torch.randn(4, 2, 5, 3, 16, dtype=torch.float64)
        positions = torch.randint(0, 50, (4, 2, 5))
        layouts = {"bshd": (0, 1, 2, 3), "sbhd": (1, 0, 2, 3), "bhsd": (0, 2, 1, 3)}
        for layout, order in layouts.items():
            form = dict(style="half", layout=layout, theta=10000.0)
            with self.subTest(layout):
                inputs = stack.permute(0, *[i + 1 for i in order])
                expected = rotated(stack, positions[:, :, :, None]).permute(0, *[i + 1 for i in order])
                actual = torch.vmap(lambda x, p, form=form: apply_rotary(x, positions=p, **form))(inputs, positions)
                self.assertTrue(torch.allclose(actual, expected))
                expected = rotated(stack, positions[0, :, :, None]).permute(0, *[i + 1 for i in order])
                for dim in range(5):
                    q, k = torch.vmap(
                        lambda x, form=form: apply_rotary(x, inputs[1], positions=positions[0], **form),
                        in_dims=dim, out_dims=(dim, None))(inputs.movedim(0, dim))
                    self.assertTrue(torch.allclose(q, expected.movedim(0, dim)))
                    self.assertTrue(torch.allclose(k, expected[1]))
        gate, up, scale = torch.randn(4, 5, 6), torch.randn(5, 6), torch.randn(4, 5)
        expected = torch.nn.functional.silu(gate) * up
        self.assertTrue(torch.allclose(torch.vmap(swiglu, in_dims=(0, None))(gate, up), expected, atol=1e-6))
        self.assertTrue(torch.allclose(torch.vmap(swiglu, in_dims=(0, 2))(gate, up.expand(4, 5, 6).movedim(0, 2)),
                                       expected, atol=1e-6))
        self.assertTrue(torch.allclose(
            torch.vmap(lambda g, r: swiglu(g, up, row_scale=r))(gate, scale), expected * scale[..., None], atol=1e-6))
        self.assertTrue(torch.allclose(
            torch.vmap(swiglu)(stack, stack), torch.nn.functional.silu(stack) * stack))  # 5 axes

        def loss(x):
            return (apply_rotary(x, **BSHD) * swiglu(x, x)).sum()

        def formula(x):
            return (rotated(x, torch.arange(5)[:, None]) * torch.nn.functional.silu(x) * x).sum()

        self.assertTrue(torch.allclose(
            torch.vmap(torch.func.grad(loss))(stack), torch.vmap(torch.func.grad(formula))(stack)))
        self.assertTrue(torch.allclose(
            torch.func.grad(lambda x: torch.vmap(loss)(x).sum())(stack),
            torch.func.grad(lambda x: torch.vmap(formula)(x).sum())(stack)))
        with self.assertRaisesRegex(NotImplementedError, "vmap cannot map an operator of librope that writes"):
            torch.vmap(lambda x: librope.torch.rotary_step(x, **BSHD)[0])(stack)
        empty = torch.zeros(0, 5, dtype=torch.int64)
        self.assertEqual(torch.vmap(lambda x: apply_rotary(x, **BSHD))(torch.zeros(0, 2, 5, 3, 16)).shape[0], 0)
        with self.assertRaisesRegex(NotImplementedError, "over a batch of 0"):
            torch.vmap(lambda p: apply_rotary(torch.zeros(1, 5, 3, 16), positions=p, **BSHD))(empty)


class TrainingTest(unittest.TestCase):
    """The wrappers that trainers put around a block."""

    def setUp(self):
        self.x = torch.randn(2, 5, 4, 16)

    def block(self, x):
        q, k = apply_rotary(x * 2, x[:, :, :1], **BSHD)
        return swiglu(q, x) + k

    def gradient(self, block):
        x = self.x.clone().requires_grad_()
        out = block(x)
        out.square().sum().backward()
        return out.detach(), x.grad

    def assert_alike(self, block):
        for actual, expected in zip(self.gradient(block), self.gradient(self.block)):
            self.assertTrue(torch.allclose(actual, expected, atol=1e-5, rtol=1e-5))

    def test_checkpointing(self):
        from torch.utils.checkpoint import checkpoint

        for use_reentrant in (False, True):
            self.assert_alike(lambda x, form=use_reentrant: checkpoint(self.block, x, use_reentrant=form))

    def test_saved_tensors_elsewhere(self):
        with torch.autograd.graph.save_on_cpu():
            self.assert_alike(self.block)

    def test_autocast(self):
        weight = torch.randn(16, 16)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            q = self.x @ weight
            self.assertEqual(q.dtype, torch.bfloat16)
            for x in (q, self.x):  # nothing is cast
                turned = apply_rotary(x, **BSHD)
                self.assertEqual(turned.dtype, x.dtype)
                self.assertTrue(torch.equal(swiglu(turned, turned), swiglu(turned, turned)))
                self.assertEqual(swiglu(turned, turned).dtype, x.dtype)
            with self.assertRaisesRegex(librope.InvalidArgument, "k.dtype"):
                apply_rotary(q, self.x, **BSHD)
            with self.assertRaisesRegex(librope.InvalidArgument, "up.dtype"):
                swiglu(q, self.x)

    def test_inference_mode_and_hooks(self):
        with torch.inference_mode():
            out = self.block(self.x)
        self.assertTrue(torch.equal(out, self.block(self.x)))
        self.assertTrue(out.is_inference())
        x, seen = self.x.clone().requires_grad_(), []
        apply_rotary(x * 1, **BSHD).register_hook(seen.append)
        y = apply_rotary(x, **BSHD)
        y.register_hook(lambda grad: 2 * grad)
        y.sum().backward()
        desc = RopeDesc(head_dim=16, dtype="f32", **BSHD)
        self.assertTrue(torch.allclose(x.grad, 2 * desc.backward(torch.ones(x.shape))))

    def test_data_parallel(self):
        """Gradients that are reduced, and parameters that are sharded."""
        import tempfile
        from torch import distributed

        class Block(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(16, 16, bias=False)

            def forward(self, x):
                return swiglu(apply_rotary(self.linear(x), **BSHD), x)

        if not distributed.is_available():
            self.skipTest("torch is built without distributed")
        module = Block()
        expected = torch.autograd.grad(module(self.x).square().sum(), module.linear.weight)[0]
        with tempfile.NamedTemporaryFile() as file:
            distributed.init_process_group("gloo", init_method=f"file://{file.name}", rank=0, world_size=1)
            try:
                parallel = torch.nn.parallel.DistributedDataParallel(module)
                parallel(self.x).square().sum().backward()
                grads = [module.linear.weight.grad]
                from torch.distributed import device_mesh, fsdp

                if hasattr(fsdp, "fully_shard"):  # from torch 2.6 on
                    module.zero_grad()
                    mesh = device_mesh.init_device_mesh("cpu", (1,))
                    fsdp.fully_shard(module, mesh=mesh)(self.x).square().sum().backward()
                    grads.append(module.linear.weight.grad.full_tensor())
            finally:
                distributed.destroy_process_group()
        for grad in grads:
            self.assertTrue(torch.allclose(grad, expected, atol=1e-5))


class CompileTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not has_compiler():
            raise unittest.SkipTest("torch.compile does not work here")

    def test_a_block_in_one_graph(self):
        inv_freq = [10000.0 ** (-i / 8) for i in range(8)]

        def block(x, positions, offset, theta):
            q, k = x.split([3, 1], dim=2)
            q, k = apply_rotary(q * 2, k, style="half", layout=librope.Layout.BSHD, theta=theta, positions=positions,
                                position_offset=offset)
            q = apply_rotary(q, style="interleaved", layout="bshd", inv_freq=inv_freq, attention_scale=1.25)
            gate, up = (q * k).chunk(2, dim=-1)
            return swiglu(gate, up, alpha=1.7) + gate

        compiled = torch.compile(block, fullgraph=True)
        for tokens, offset in ((5, 0), (5, 1), (7, 2), (9, 100)):
            x = torch.randn(2, tokens, 4, 16, requires_grad=True)
            positions = torch.randint(0, 50, (2, tokens))
            results = []
            for function in (block, compiled):
                out = function(x, positions, offset, 10000.0)
                grad, = torch.autograd.grad(out.square().sum(), x)
                results.append((out, grad))
            for actual, expected in zip(results[1], results[0]):
                self.assertTrue(torch.allclose(actual, expected, atol=1e-4, rtol=1e-4))

    def test_pass_in_one_graph(self):
        def block(q, k, q_pass, k_pass):
            q, k = apply_rotary(
                q * 2, k, q_pass=q_pass, k_pass=k_pass.expand(-1, -1, 3, -1), rotary_dim=8, rotary_offset=16, **BSHD)
            return q * k

        inputs = [torch.randn(2, 5, *shape, requires_grad=True) for shape in ((3, 8), (3, 8), (3, 16), (1, 16))]
        compiled, results = torch.compile(block, fullgraph=True), []
        for function in (block, compiled):
            out = function(*inputs)
            results.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
        for actual, expected in zip(*results):
            self.assertTrue(torch.allclose(actual, expected, atol=1e-3, rtol=1e-4))
        with torch.no_grad():  # in one launch
            self.assertTrue(torch.allclose(compiled(*inputs), results[0][0], atol=1e-5))

    def test_experts_in_one_graph(self):
        rows = torch.tensor([2, 0, 4])

        def block(x, gate_bias, up_bias):
            gate, up = (x * 2).chunk(2, dim=-1)
            return geglu(gate, up, "tanh", gate_bias=gate_bias, up_bias=up_bias, expert_rows=rows, limit=1.0)

        inputs = [torch.randn(*shape, requires_grad=True) for shape in ((3, 4, 16), (3, 8), (8,))]
        results = []
        for function in (block, torch.compile(block, fullgraph=True)):
            out = function(*inputs)
            results.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
        for actual, expected in zip(*results):
            self.assertTrue(torch.allclose(actual, expected, atol=1e-4, rtol=1e-4))

    def test_dynamic_shapes(self):
        def block(x, positions, offset):
            q, k = apply_rotary(x, x[:, :, :1], positions=positions, position_offset=offset, **BSHD)
            return swiglu(q, x) * k

        from torch._dynamo.testing import CompileCounterWithBackend

        counter, counts = CompileCounterWithBackend("inductor"), set()
        compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=counter)
        for batch, tokens, offset in ((2, 5, 3), (3, 7, 4), (4, 12, 100)):
            x = torch.randn(batch, tokens, 4, 16, requires_grad=True)
            positions = torch.randint(0, 50, (batch, tokens))
            (actual, grad), (expected, expected_grad) = (
                (y, torch.autograd.grad(y.square().sum(), x)[0])
                for y in (f(x, positions, offset) for f in (compiled, block)))
            self.assertTrue(torch.allclose(actual, expected, atol=1e-4, rtol=1e-4))
            self.assertTrue(torch.allclose(grad, expected_grad, atol=1e-3, rtol=1e-4))
            counts.add(counter.frame_count)
        self.assertEqual(len(counts), 1)

    def test_numbers_that_change(self):
        def block(x, theta):
            return apply_rotary(x, style="half", layout="bshd", theta=theta)

        compiled, x = torch.compile(block, fullgraph=True), torch.randn(2, 5, 3, 16)
        for theta in (10000.0, 500000.0, 100.0, 10000.0):
            self.assertTrue(torch.equal(compiled(x, theta), block(x, theta)))

    def test_frequencies_that_change(self):
        def block(x, inv_freq):
            return apply_rotary(x, style="half", layout="bshd", inv_freq=inv_freq)

        compiled, x = torch.compile(block, fullgraph=True), torch.randn(2, 5, 3, 16)
        for first in (1.0, 0.5, 0.25):
            inv_freq = (first, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005)
            self.assertTrue(torch.equal(compiled(x, inv_freq), block(x, inv_freq)))

    def test_transforms(self):
        x, tangent = torch.randn(2, 3, 2, 8), torch.randn(2, 3, 2, 8)

        def block(x):
            return swiglu(apply_rotary(x * 2, **BSHD), x)

        expected = torch.func.jvp(block, (x,), (tangent,))[1]
        compiled = torch.compile(block)
        compiled(x)
        self.assertTrue(torch.allclose(torch.func.jvp(compiled, (x,), (tangent,))[1], expected, atol=1e-5))
        inside = torch.compile(lambda x, t: torch.func.jvp(block, (x,), (t,))[1])
        self.assertTrue(torch.allclose(inside(x, tangent), expected, atol=1e-5))
        with torch.autograd.forward_ad.dual_level():
            out = compiled(torch.autograd.forward_ad.make_dual(x, tangent))
            self.assertTrue(torch.allclose(torch.autograd.forward_ad.unpack_dual(out).tangent, expected, atol=1e-5))
        stack = torch.stack([x, tangent])
        self.assertTrue(torch.allclose(
            torch.compile(torch.vmap(block), fullgraph=True)(stack), torch.stack([block(y) for y in stack]), atol=1e-5))


if __name__ == "__main__":
    unittest.main()
