# SPDX-License-Identifier: Apache-2.0
# test_kept.py - calls that differ from earlier ones in addresses alone: right values, all refusals, bounded memory
from __future__ import annotations

import gc
import subprocess
import sys
import unittest
import weakref

import librope
import numpy
import support
from librope import _kept

try:
    import torch
except ImportError:
    torch = None

HEADS, WIDTH = 3, 8
INV_FREQ = support.frequencies(WIDTH, 100.0)
needs_torch = unittest.skipIf(torch is None, "needs torch")


def rope_desc(**keywords):
    return librope.RopeDesc(
        **{"head_dim": WIDTH, "style": "half", "layout": "thd", "dtype": "f32", "theta": 100.0, **keywords})


def normal(seed, *shape):
    return numpy.random.default_rng(seed).standard_normal(shape).astype(numpy.float32)


def rotated(x, positions):
    return support.rotate(x, numpy.asarray(positions)[:, None], INV_FREQ, "half")


class KeptTest(unittest.TestCase):
    def setUp(self):
        """These calls go through ctypes."""
        by_ctypes = support.through_ctypes()
        by_ctypes.__enter__()
        self.addCleanup(by_ctypes.__exit__, None, None, None)

    def check(self, actual, expected):
        numpy.testing.assert_allclose(numpy.asarray(actual), expected, rtol=1e-5, atol=1e-5)

    def num_kept(self, desc):
        return len(desc._kept._kept)

    def frameworks(self):
        yield lambda x: x.copy()
        if torch is not None:
            yield lambda x: torch.from_numpy(x.copy())

    def test_other_tensors_of_the_same_kind(self):
        for tensor in self.frameworks():
            desc = rope_desc()
            for seed in range(4):
                x, positions = normal(seed, 5, HEADS, WIDTH), numpy.arange(5) * (seed + 1)
                expected = rotated(x, positions)
                q, k, place = tensor(x), tensor(x[:, :1]), tensor(positions)
                out = desc.forward(q, k, positions=place)
                self.check(out[0], expected)
                self.check(out[1], expected[:, :1])
                self.check(q, x)
                given = tensor(numpy.zeros_like(x))
                self.assertIs(desc.forward(q, out=given, positions=place), given)
                self.check(given, expected)
                self.assertIs(desc.forward(q, k, out=[q, None], positions=place)[0], q)
                self.check(q, expected)
                self.check(desc.backward(q, positions=place), x)
                # The axis of heads is outermost, and half of the tokens are used, so strides differ.
                turned = tensor(numpy.ascontiguousarray(x.transpose(1, 0, 2)))
                self.check(desc.forward(turned.swapaxes(0, 1), positions=place), expected)
                self.check(desc.forward(tensor(x)[::2], positions=place[::2]), expected[::2])
                # Each kind of call is kept once.
                self.assertEqual(self.num_kept(desc), 6)

    def test_numbers_and_options_that_change(self):
        desc, x = rope_desc(), normal(1, 4, HEADS, WIDTH)
        for offset in (0, 7, 0, -3, 7):
            self.check(desc.forward(x, position_offset=offset), rotated(x, numpy.arange(4) + offset))
        for offset in (True, 1.0, "1"):
            with self.assertRaises(TypeError):
                desc.forward(x, position_offset=offset)
        self.check(desc.forward(x, unrotated=True), x)
        cos, sin = (f(numpy.arange(9)[:, None] * INV_FREQ).astype(numpy.float32) for f in (numpy.cos, numpy.sin))
        places = numpy.array([4, 0, 8, 3])
        for _ in range(3):
            self.check(desc.forward(x, cos=cos, sin=sin, positions=places), rotated(x, places))
            self.check(desc.forward(x, cos=cos[places], sin=sin[places], table_rows="by_token"), rotated(x, places))

    def test_groups(self):
        desc = rope_desc(norm="rms", norm_eps=1e-6)
        for tensor in self.frameworks():
            for seed in range(3):
                x, k = normal(seed, 4, HEADS, WIDTH), normal(seed + 10, 4, 1, WIDTH)
                weight, slots = normal(seed + 20, WIDTH), numpy.array([2, 5, 0, 7]) - seed % 2
                pages = tensor(numpy.full((4, 2, 1, WIDTH), 9, numpy.float32))
                norm = librope.Norm(q_weight=tensor(weight), k_weight=tensor(weight))
                cache = librope.Cache(k_cache=pages, slots=tensor(slots))
                out = desc.forward(tensor(x), tensor(k), out=[None, False], norm=norm, cache=cache)
                self.assertIsNone(out[1])

                def normed(y):
                    y = y.astype(numpy.float64)
                    return rotated(y / numpy.sqrt((y * y).mean(-1, keepdims=True) + 1e-6) * weight, numpy.arange(4))

                self.check(out[0], normed(x))
                expected = numpy.full((8, 1, WIDTH), 9.0)
                expected[slots[slots >= 0]] = normed(k)[slots >= 0]
                self.check(numpy.asarray(pages).reshape(8, 1, WIDTH), expected)

    def test_factors(self):
        desc = rope_desc()
        for tensor in self.frameworks():
            for seed in range(3):
                x, factor = normal(seed, 4, HEADS, WIDTH), normal(seed + 10, 4)
                given = librope.Input(q_row_factor=tensor(factor))
                for run in (desc.forward, desc.backward):
                    self.check(run(tensor(x), input=given, unrotated=True), x * factor[:, None, None])
        self.assertEqual(self.num_kept(desc), 2 * len(list(self.frameworks())))

    def test_pass(self):
        desc = rope_desc(head_dim=WIDTH + 6, rotary_dim=WIDTH, rotary_offset=2)
        for tensor in self.frameworks():
            for seed in range(3):
                x, rest = normal(seed, 4, HEADS, WIDTH), normal(seed + 10, 4, HEADS, 6)
                k = normal(seed + 20, 4, 1, WIDTH + 6)
                expected = numpy.concatenate([rest[..., :2], rotated(x, numpy.arange(4)), rest[..., 2:]], -1)
                given = librope.Input(q_pass=tensor(rest))
                q_out, k_out = desc.forward(tensor(x), tensor(k), input=given)
                self.check(q_out, expected)
                self.check(k_out[..., 2:-4], rotated(k[..., 2:-4], numpy.arange(4)))
                expected[3] = 0
                self.check(desc.forward(tensor(x), cu_seqlens=tensor(numpy.array([0, 3])), input=given), expected)
        self.assertEqual(self.num_kept(desc), 2 * len(list(self.frameworks())))

    @unittest.skipIf(torch is None, "needs torch")
    def test_codes(self):
        desc = rope_desc()
        for seed in range(3):
            x, scale = torch.from_numpy(normal(seed, 4, HEADS, WIDTH)), torch.rand(1) + 0.5
            expected = [x / scale, x * scale]
            for out in (torch.zeros(x.shape, dtype=torch.float8_e4m3fn), torch.zeros(x.shape, dtype=torch.float8_e5m2)):
                for multiplies, y in enumerate(expected):
                    amax = torch.zeros(3)
                    quant = librope.Quant(q_scale=scale, amax_out=amax, scale_multiplies=bool(multiplies))
                    desc.forward(x, out=out, quant=quant, unrotated=True)
                    numpy.testing.assert_allclose(out.float(), y, rtol=0.13, atol=1e-2)
                    self.assertEqual(amax[0], x.abs().max())
                    for wrong in (dict(scale_floor=0.5), dict(power_of_two=True), dict(q_scale=scale[:0])):
                        with self.assertRaises(librope.Error):
                            desc.forward(x, out=out, quant=quant._replace(**wrong), unrotated=True)
        self.assertEqual(self.num_kept(desc), 4)

    @needs_torch
    def test_written_scales(self):
        desc, top = rope_desc(), torch.finfo(torch.float8_e4m3fn).max
        for seed in range(3):
            x = normal(seed, 4, HEADS, WIDTH) * 10.0**seed
            for floor, power_of_two in ((1e-10, False), (1e-10, True), (3.0, False), (7.0, True)):
                out, scales = torch.zeros(x.shape, dtype=torch.float8_e4m3fn), torch.zeros(4, HEADS, 2)
                rows = torch.zeros(2, 2, HEADS, WIDTH + 4, dtype=torch.uint8)
                cache = librope.Cache(
                    rows[..., :WIDTH].view(out.dtype), slots=torch.tensor([3, 1, 0, 2]),
                    k_scales=rows[..., WIDTH:].view(torch.float32))
                quant = librope.Quant(q_scales_out=scales, scale_floor=floor, power_of_two=power_of_two)
                desc.forward(torch.from_numpy(x), torch.from_numpy(x), out=[out, False], unrotated=True, cache=cache,
                             quant=quant)
                for groups, actual in ((2, (scales, out)), (1, (cache.k_scales, cache.k_cache))):
                    expected = support.scaled(x, groups, top, floor, power_of_two)
                    actual = [y.float() if groups == 2 else y.float().flatten(0, 1)[cache.slots] for y in actual]
                    numpy.testing.assert_array_equal(actual[0], expected[0])
                    numpy.testing.assert_array_equal(actual[1], torch.from_numpy(expected[1]).to(out.dtype).float())
                with self.assertRaisesRegex(librope.InvalidArgument, "quant.scale_floor is -1"):
                    desc.forward(torch.from_numpy(x), out=out, quant=quant._replace(scale_floor=-1.0), unrotated=True)
        self.assertEqual(self.num_kept(desc), 4)

    def test_in_place_and_new_with_a_cache(self):
        """k in place is k_out, too. A new k_out has other strides than a slice of packed heads."""
        for tensor in self.frameworks():
            desc, expected = rope_desc(), rotated(normal(3, 4, 1, WIDTH), numpy.arange(4))
            slots = tensor(numpy.arange(4))
            for in_place in (True, False, True, False):
                packed = tensor(numpy.zeros((4, 5, WIDTH), numpy.float32))
                k = packed[:, 2:3]
                k[:] = tensor(normal(3, 4, 1, WIDTH))
                cache = librope.Cache(k_cache=tensor(numpy.zeros((2, 2, 1, WIDTH), numpy.float32)), slots=slots)
                out = desc.forward(None, k, out=k if in_place else None, cache=cache)
                self.assertEqual(out is k, in_place)
                self.check(out, expected)
                self.check(numpy.asarray(cache.k_cache).reshape(4, 1, WIDTH), expected)
                self.check(packed[:, :2], 0)
                self.check(packed[:, 3:], 0)
        k = normal(4, 4, 1, WIDTH)
        k.flags.writeable = False
        desc, slots = rope_desc(), numpy.arange(4)
        cache = librope.Cache(k_cache=numpy.zeros((2, 2, 1, WIDTH), numpy.float32), slots=slots)
        desc.forward(None, k, cache=cache)
        with self.assertRaisesRegex(ValueError, "k: it is read-only"):
            desc.forward(None, k, out=k, cache=cache)

    def test_torch_that_is_half_imported(self):
        script = (
            "import sys, types\nsys.modules['torch'] = types.ModuleType('torch')\nimport numpy, librope\n"
            f"desc = librope.RopeDesc(head_dim={WIDTH}, style='half', layout='thd', dtype='f32', theta=100.0)\n"
            f"for _ in range(2): desc.forward(numpy.zeros((1, 1, {WIDTH}), numpy.float32))")
        subprocess.run([sys.executable, "-c", script], check=True)

    def test_swiglu(self):
        desc = librope.SwigluDesc(dtype="f32")
        for tensor in self.frameworks():
            for seed in range(3):
                gate, up, grad = (normal(seed + i, 6, 10) for i in (0, 20, 40))
                scale = normal(seed + 60, 6)
                weight = 1 / (1 + numpy.exp(-gate.astype(numpy.float64)))
                factor = scale[:, None]
                self.check(desc.forward(tensor(gate), tensor(up)), gate * weight * up)
                self.check(desc.forward(tensor(gate), tensor(up), row_scale=tensor(scale)), gate * weight * up * factor)
                slope = weight * (1 + gate * (1 - weight))
                written = tensor(numpy.zeros_like(gate))
                grads = desc.backward(
                    tensor(grad), tensor(gate), tensor(up), row_scale=tensor(scale), grad_gate=written, grad_row_scale=False)
                self.assertIs(grads[0], written)
                self.assertIsNone(grads[2])
                self.check(grads[0], grad * up * slope * factor)
                self.check(grads[1], grad * gate * weight * factor)

    def test_refusals_of_numpy_are_made_again(self):
        desc, x = rope_desc(), normal(1, 4, HEADS, WIDTH)
        for _ in range(2):
            desc.forward(x, out=x)
            desc.forward(x, out=numpy.empty_like(x))
            desc.forward(x)
        fixed = x.copy()
        fixed.flags.writeable = False
        for out in (fixed, [fixed]):
            with self.assertRaisesRegex(ValueError, "rope_forward: q: it is read-only"):
                desc.forward(fixed, out=out)
        with self.assertRaisesRegex(ValueError, "rope_forward: q_out: it is read-only"):
            desc.forward(x, out=fixed)
        self.check(desc.forward(fixed), rotated(fixed, numpy.arange(4)))  # fixed is only read
        with self.assertRaises(librope.InvalidArgument):
            desc.forward(x.astype(numpy.float64))
        with self.assertRaisesRegex(TypeError, "stream is"):
            desc.forward(x, stream="0")
        with self.assertRaisesRegex(ValueError, "must have one for each of 1 inputs"):
            desc.forward(x, out=[x, x])
        with self.assertRaisesRegex(TypeError, "one of them must be given"):
            desc.forward()
        with self.assertRaisesRegex(TypeError, "mask"):
            desc.forward(numpy.ma.masked_array(x))
        desc.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            desc.forward(x)
        self.assertEqual(self.num_kept(desc), 0)

    @needs_torch
    def test_refusals_of_torch_are_made_again(self):
        desc = rope_desc()
        x = torch.randn(4, HEADS, WIDTH)
        for _ in range(2):
            desc.forward(x, out=x)
            desc.forward(x)
        with self.assertRaisesRegex(ValueError, "q: it requires grad"):
            desc.forward(x.clone().requires_grad_())
        with torch.no_grad():
            desc.forward(x.clone().requires_grad_())
        with self.assertRaisesRegex(ValueError, "lazily negated"):
            desc.forward(torch._neg_view(x))
        with torch.autograd.forward_ad.dual_level():
            desc.forward(x)
            with self.assertRaisesRegex(ValueError, "tangent"):
                desc.forward(torch.autograd.forward_ad.make_dual(x, x))
        with self.assertRaisesRegex(TypeError, "traced"):
            torch.func.vmap(desc.forward)(torch.stack([x, x]))
        from torch._subclasses.fake_tensor import FakeTensorMode
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            for y in (x, mode.from_tensor(x)):  # in the first case the output is fake
                with self.assertRaises((TypeError, librope.InvalidArgument)):
                    desc.forward(y)
        with self.assertRaises(TypeError):
            desc.forward(x.to("meta"))
        with self.assertRaisesRegex(TypeError, "layout"):
            desc.forward(x.to_sparse())
        # Autograd notices that a tensor that it saved has changed.
        y = torch.randn(4, HEADS, WIDTH, requires_grad=True)
        saved = y * 1
        square = saved * saved
        with torch.no_grad():
            desc.forward(saved.detach(), out=saved.detach())
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            square.sum().backward()

    def test_threads_do_not_share_args(self):
        desc, failures = rope_desc(num_threads=1), []

        def work(seed):
            for i in range(300):
                x = normal(1000 * seed + i, 4, HEADS, WIDTH)
                expected = rotated(x, numpy.arange(4) + seed)
                actual = desc.forward(x, positions=numpy.arange(4) + seed)
                if not numpy.allclose(actual, expected, rtol=1e-5, atol=1e-5):
                    failures.append((seed, i))

        support.run_threads(8, work)
        self.assertEqual(failures, [])

    def test_memory_stays_flat(self):
        desc = rope_desc(num_threads=1)
        x = numpy.zeros((100_000, 1, WIDTH), numpy.float32)
        positions = numpy.zeros(1, numpy.int32)

        def call(number):  # 10^5 kinds of calls, each of one token
            desc.forward(x[number:number + 1], positions=positions, position_offset=number)

        for number in range(1000):
            call(number)
        gc.collect()
        before = sys.getallocatedblocks()
        for number in range(1000, 100_000):
            call(number)
        gc.collect()
        self.assertLess(sys.getallocatedblocks() - before, 1000)
        self.assertLessEqual(self.num_kept(desc), _kept.MAX_KEPT)
        # And 5000 lengths.
        for length in range(1, 5000):
            desc.forward(x[:length], out=x[:length])
        self.assertLessEqual(self.num_kept(desc), _kept.MAX_KEPT)

    def test_the_latest_are_kept(self):
        desc = rope_desc()
        often = normal(0, 1, 1, WIDTH)
        desc.forward(often)
        kept = next(iter(desc._kept._kept.values()))
        for length in range(2, 200):
            desc.forward(normal(0, length, 1, WIDTH))
            desc.forward(often)
        self.assertEqual(self.num_kept(desc), _kept.MAX_KEPT)
        self.assertIs(list(desc._kept._kept.values())[-1], kept)

    @needs_torch
    def test_no_tensor_stays_alive(self):
        desc = rope_desc()
        x, positions = torch.randn(4, HEADS, WIDTH), torch.arange(4)
        references = [weakref.ref(x), weakref.ref(positions)]
        for _ in range(2):
            references.append(weakref.ref(desc.forward(x, positions=positions)))
            desc.forward(x, out=x, positions=positions)
        del x, positions
        gc.collect()
        self.assertEqual([reference() for reference in references], [None] * len(references))


if __name__ == "__main__":
    unittest.main()
