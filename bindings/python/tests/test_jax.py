# SPDX-License-Identifier: Apache-2.0
# test_jax.py - JAX's arrays, on the CPU, and on a GPU if JAX has one
from __future__ import annotations

import unittest

import support
from support import numpy

jax = support.needs("jax")

import librope  # noqa: E402
from librope import RopeDesc  # noqa: E402

jnp = jax.numpy
random = numpy.random.default_rng(20261120)


def platforms():
    found = ["cpu"]
    if librope.device_count("cuda"):
        try:
            jax.devices("cuda")
            found.append("cuda")
        except RuntimeError:
            pass
    return found


class JaxTest(unittest.TestCase):
    def setUp(self):
        self.desc = RopeDesc(head_dim=16, theta=10000.0, style="half", layout="bshd", dtype="f32")
        self.x = random.standard_normal((2, 5, 3, 16)).astype(numpy.float32)
        self.expected = self.desc.forward(self.x)

    def arrays(self):
        return [jax.device_put(self.x, jax.devices(platform)[0]) for platform in platforms()]

    def test_a_new_output(self):
        for x in self.arrays():
            for _ in range(20):
                result = self.desc.forward(x)
                self.assertIsInstance(result, jax.Array)
                self.assertEqual(result.devices(), x.devices())
                numpy.testing.assert_array_equal(numpy.asarray(result), self.expected)
                numpy.testing.assert_array_equal(numpy.asarray(x), self.x)
                # Later work of JAX is ordered behind the call.
                numpy.testing.assert_array_equal(numpy.asarray(result + 0), self.expected)
            q, k = self.desc.forward(x * 1, x[:, :, :1] * 1)
            numpy.testing.assert_array_equal(numpy.asarray(q), self.expected)
            numpy.testing.assert_array_equal(numpy.asarray(k), self.expected[:, :, :1])

    def test_a_new_output_beside_a_pass(self):
        desc = RopeDesc(
            head_dim=16, rotary_dim=8, rotary_offset=8, theta=10000.0, style="half", layout="bshd", dtype="f32")
        for x in self.arrays():
            result = desc.forward(x[..., 8:], input=librope.Input(q_pass=x[..., :8]))
            self.assertEqual(result.devices(), x.devices())
            numpy.testing.assert_array_equal(numpy.asarray(result), desc.forward(self.x))

    def test_positions(self):
        for x in self.arrays():
            positions = jax.device_put(numpy.arange(5, dtype=numpy.int32), list(x.devices())[0])
            for given in (positions, positions[None]):  # [S] and [1, S]
                numpy.testing.assert_array_equal(numpy.asarray(self.desc.forward(x, positions=given)), self.expected)

    def test_a_norm_and_caches(self):
        desc = RopeDesc(head_dim=16, theta=10000.0, style="half", layout="bshd", dtype="f32", norm="rms", norm_eps=1e-6)
        weight = random.standard_normal(16).astype(numpy.float32)
        expected = desc.forward(self.x, norm=librope.Norm(q_weight=weight))
        cache = numpy.zeros((2, 5, 3, 16), dtype=numpy.float32)
        slots = numpy.arange(10).reshape(2, 5)
        for x in self.arrays():
            weights = librope.Norm(q_weight=jax.device_put(weight, list(x.devices())[0]))
            result = desc.forward(x, norm=weights)
            self.assertIsInstance(result, jax.Array)
            numpy.testing.assert_array_equal(numpy.asarray(result), expected)
            place = librope.Cache(jax.device_put(cache, list(x.devices())[0]), slots=slots)
            with self.assertRaisesRegex(TypeError, "rope_forward: cache.k_cache: a JAX array is immutable"):
                self.desc.forward(k=x, cache=place)
        k = jax.device_put(self.x, jax.devices("cpu")[0])
        k_out = self.desc.forward(k=k, cache=librope.Cache(cache, slots=slots))
        numpy.testing.assert_array_equal(cache, self.expected)
        numpy.testing.assert_array_equal(numpy.asarray(k_out), self.expected)

    def test_bfloat16(self):
        desc = RopeDesc(head_dim=16, theta=10000.0, style="half", layout="bshd", dtype=jnp.bfloat16)
        for x in self.arrays():
            result = desc.forward(x.astype(jnp.bfloat16))
            self.assertEqual(result.dtype, jnp.bfloat16)
            numpy.testing.assert_allclose(numpy.asarray(result, dtype=numpy.float32), self.expected, atol=0.05)

    def test_never_written_in_place(self):
        for x in self.arrays():
            with self.assertRaisesRegex(TypeError, "q: a JAX array is immutable and cannot be written"):
                self.desc.forward(x, out=x)
            with self.assertRaisesRegex(TypeError, "q_out: a JAX array is immutable"):
                self.desc.forward(x, out=x + 0)
            with self.assertRaisesRegex(TypeError, "cos: a JAX array is immutable"):
                self.desc.fill_tables(jnp.zeros((4, 8)), jnp.zeros((4, 8)))
            numpy.testing.assert_array_equal(numpy.asarray(x), self.x)

    def test_a_given_output_of_another_framework(self):
        out = numpy.zeros_like(self.x)
        self.assertIs(self.desc.forward(jax.device_put(self.x, jax.devices("cpu")[0]), out=out), out)
        numpy.testing.assert_array_equal(out, self.expected)

    def test_tracing_is_refused(self):
        with self.assertRaisesRegex(TypeError, "cannot be traced by JAX"):
            jax.jit(self.desc.forward)(jnp.asarray(self.x))

    def test_swiglu(self):
        gate, up = self.x, self.x[::-1].copy()
        for x in self.arrays():
            other = jax.device_put(up, list(x.devices())[0])
            result = librope.swiglu(x, other)
            numpy.testing.assert_allclose(numpy.asarray(result), support.swiglu(gate, up), atol=1e-6)
            grads = librope.swiglu_backward(x, x, other)
            for actual, expected in zip(grads, support.swiglu_gradients(gate, gate, up)):
                numpy.testing.assert_allclose(numpy.asarray(actual), expected, atol=1e-5)

    def test_geglu_of_experts(self):
        gate, up, bias = self.x, self.x[::-1].copy(), self.x[:, 0, 0].copy()
        rows = numpy.arange(len(gate), dtype=numpy.int32) % 3 + 1
        exists = (numpy.arange(gate.shape[1]) < rows[:, None])[..., None, None]
        form = dict(activation="geglu_erf", up_softcap=1.5)
        for x in self.arrays():
            other, on_device, count = (jax.device_put(y, list(x.devices())[0]) for y in (up, bias, rows))
            given = dict(form, gate_bias=on_device, expert_rows=count)
            numpy.testing.assert_allclose(
                numpy.asarray(librope.swiglu(x, other, **given)),
                numpy.where(exists, support.swiglu(gate, up, gate_bias=bias[:, None, None], **form), 0.0), atol=1e-5)
            expected = support.swiglu_differences(gate, gate, up, gate_bias=bias[:, None, None], **form)
            for actual, wanted in zip(librope.swiglu_backward(x, x, other, **given), expected):
                numpy.testing.assert_allclose(numpy.asarray(actual), numpy.where(exists, wanted, 0.0), atol=1e-5)


if __name__ == "__main__":
    unittest.main()
