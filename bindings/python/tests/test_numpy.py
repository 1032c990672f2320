# SPDX-License-Identifier: Apache-2.0
# test_numpy.py - descriptors, functions and errors, on NumPy's arrays
from __future__ import annotations

import copy
import gc
import pickle
import resource
import threading
import unittest
import weakref
from unittest import mock

import support
from support import numpy

import librope
from librope import _library
from librope import (Activation, Dtype, InvalidArgument, Layout, LimitRule, NotSupported, RopeDesc, Style, SwigluDesc,
                     TableRows)

random = numpy.random.default_rng(20261120)


def normal(*shape, dtype=numpy.float32):
    return random.standard_normal(shape).astype(dtype)


def make_desc(**overrides):
    arguments = dict(head_dim=16, theta=10000.0, style="half", layout="thd", dtype="f32")
    arguments.update(overrides)
    return RopeDesc(**arguments)


class RopeTest(unittest.TestCase):
    def assert_close(self, actual, expected, tolerance=3e-6):
        self.assertEqual(actual.shape, expected.shape)
        numpy.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)

    def test_forward_of_every_layout_and_style(self):
        batch, tokens, heads, width = 2, 5, 3, 16
        positions = random.integers(-1000, 1000, (batch, tokens))
        x = normal(batch, tokens, heads, width)
        orders = {"bshd": (0, 1, 2, 3), "sbhd": (1, 0, 2, 3), "bhsd": (0, 2, 1, 3)}
        for layout, order in orders.items():
            for style in ("half", "interleaved"):
                for out_style in (0, "half", "interleaved"):
                    with self.subTest(layout=layout, style=style, out_style=out_style):
                        desc = make_desc(layout=layout, style=style, out_style=out_style)
                        expected = support.rotate(
                            x, positions[:, :, None], support.frequencies(width, 10000.0), style, out_style or style)
                        actual = desc.forward(numpy.ascontiguousarray(x.transpose(order)), positions=positions)
                        self.assert_close(actual, expected.transpose(order), 1e-5)
                        # A view: neither the memory nor the strides of the new array change.
                        view = desc.forward(x.transpose(order), positions=positions)
                        numpy.testing.assert_array_equal(view, actual)
                        self.assertEqual(view.strides, x.transpose(order).strides)

    def test_backward_is_the_transpose(self):
        x = normal(5, 3, 16)
        desc = make_desc(attention_scale=1.5, out_style="interleaved", rotary_dim=8, rotary_offset=4)
        inv_freq = support.frequencies(8, 10000.0)
        positions = numpy.arange(5)
        for transpose, call in ((False, desc.forward), (True, desc.backward)):
            expected = support.rotate(
                x, positions[:, None], inv_freq, "half", "interleaved", offset=4, scale=1.5, transpose=transpose)
            self.assert_close(call(x, positions=positions), expected)

    def test_q_k_and_v_in_one_call(self):
        q, k, v = normal(5, 4, 16), normal(5, 2, 16), normal(5, 1, 16)
        desc = make_desc()
        results = desc.forward(q, k, v)
        self.assertIsInstance(results, tuple)
        for x, result in zip((q, k, v), results):
            numpy.testing.assert_array_equal(result, desc.forward(x))
        q_out, v_out = desc.forward(q, None, v)
        numpy.testing.assert_array_equal(q_out, results[0])
        numpy.testing.assert_array_equal(v_out, results[2])

    def test_outputs_new_given_and_in_place(self):
        q, k = normal(5, 4, 16), normal(5, 2, 16)
        desc = make_desc()
        expected_q, expected_k = desc.forward(q, k)
        before = q.copy()
        given = numpy.full_like(k, numpy.nan)
        results = desc.forward(q, k, out=(None, given))
        self.assertIs(results[1], given)
        numpy.testing.assert_array_equal(q, before)
        numpy.testing.assert_array_equal(results[0], expected_q)
        numpy.testing.assert_array_equal(given, expected_k)
        results = desc.forward(q, k, out=(q, k))
        self.assertIs(results[0], q)
        numpy.testing.assert_array_equal(q, expected_q)
        numpy.testing.assert_array_equal(k, expected_k)
        self.assertIs(desc.forward(q, out=q), q)
        with self.assertRaisesRegex(ValueError, "out has 1 tensors"):
            desc.forward(q, k, out=q)

    def test_in_place_leaves_gaps_alone(self):
        packed = numpy.full((5, 8, 24), 7.0, dtype=numpy.float32)
        q = packed[:, 1:4, 4:20]
        x = q.copy()
        x[:] = normal(*x.shape)
        q[:] = x
        make_desc(rotary_dim=8).forward(q, out=q)
        self.assert_close(q, support.rotate(x, numpy.arange(5)[:, None], support.frequencies(8, 10000.0), "half"))
        mask = numpy.ones_like(packed, dtype=bool)
        mask[:, 1:4, 4:20] = False
        self.assertTrue((packed[mask] == 7.0).all())

    def test_strides_are_passed(self):
        base = normal(10, 3, 32)
        for x in (base[::2, :, ::2], base[::-2, ::-1, 31::-2], numpy.broadcast_to(base[:1, :, :16], (5, 3, 16))):
            with self.subTest(strides=x.strides):
                numpy.testing.assert_array_equal(make_desc().forward(x), make_desc().forward(x.copy()))

    def test_positions(self):
        x = normal(6, 2, 16)
        inv_freq = support.frequencies(16, 10000.0)
        desc = make_desc()
        for dtype in (numpy.int32, numpy.int64):
            positions = numpy.array([3, 1, 4, 1, 5, 9], dtype=dtype)
            expected = support.rotate(x, positions[:, None], inv_freq, "half")
            for given in (positions, positions[None]):  # [T] and [1, T]
                self.assert_close(desc.forward(x, positions=given), expected)
            batches = numpy.stack([x, x * 2, x - 1])
            expected = support.rotate(batches, positions[:, None], inv_freq, "half")
            self.assert_close(make_desc(layout="bshd").forward(batches, positions=positions[None]), expected)  # [1, S]
        self.assert_close(
            desc.forward(x, position_offset=100), support.rotate(x, 100 + numpy.arange(6)[:, None], inv_freq, "half"))
        start = numpy.array([10, 20], dtype=numpy.int32)
        cu_seqlens = numpy.array([0, 2, 5], dtype=numpy.int32)
        expected = support.rotate(x, numpy.array([10, 11, 20, 21, 22, 0])[:, None], inv_freq, "half")
        actual = desc.forward(x, start_positions=start, cu_seqlens=cu_seqlens)
        self.assert_close(actual[:5], expected[:5])
        self.assertTrue((actual[5] == 0).all())  # padding: never written, so a new output has zeros there

    def test_axes(self):
        axes = librope.section_axes(16, 10000.0, type="chunked", section=[2, 3, 3])
        self.assertEqual(axes.pair_axis, [0, 0, 1, 1, 1, 2, 2, 2])
        desc = make_desc(num_axes=3, pair_axis=axes.pair_axis, inv_freq=axes.inv_freq)
        x = normal(5, 2, 16)
        positions = random.integers(0, 50, (3, 5))
        expected = numpy.empty_like(x)
        for axis in range(3):
            rotated = support.rotate(x, positions[axis][:, None], support.frequencies(16, 10000.0), "half")
            channels = [c for c in range(16) if axes.pair_axis[c % 8] == axis]
            expected[..., channels] = rotated[..., channels]
        self.assert_close(desc.forward(x, positions=positions), expected, 1e-5)

    def test_tables_and_angles(self):
        x = normal(5, 2, 16)
        desc = make_desc()
        positions = numpy.array([4, 0, 6, 2, 9])
        expected = desc.forward(x, positions=positions)
        for dtype, width in ((numpy.float32, 8), (numpy.float32, 16), (numpy.float64, 8)):
            cos, sin = numpy.empty((10, width), dtype), numpy.empty((10, width), dtype)
            desc.fill_tables(cos, sin)
            tables = make_desc(theta=0.0)
            if dtype == numpy.float32:
                numpy.testing.assert_array_equal(tables.forward(x, positions=positions, cos=cos, sin=sin), expected)
                by_token = tables.forward(x, cos=cos[positions], sin=sin[positions], table_rows="by_token")
                numpy.testing.assert_array_equal(by_token, expected)
            else:
                self.assert_close(tables.forward(x, positions=positions, cos=cos, sin=sin), expected)
        fault = numpy.zeros(2, numpy.int64)
        cos, sin = cos[:5], sin[:5]
        make_desc(theta=0.0).forward(x, positions=positions, cos=cos, sin=sin, fault=fault)
        self.assertEqual(fault.tolist(), [2, 3])
        angles = (numpy.arange(10)[:, None] * support.frequencies(16, 10000.0)).astype(numpy.float32)
        self.assert_close(make_desc(theta=0.0).forward(x, positions=positions, angles=angles), expected)

    def test_types(self):
        x = normal(5, 2, 16)
        expected = support.rotate(x, numpy.arange(5)[:, None], support.frequencies(16, 10000.0), "half")
        for dtype, tolerance in ((numpy.float16, 4e-3), (numpy.float32, 2e-6), (numpy.float64, 1e-14)):
            source = x.astype(dtype)
            actual = make_desc(dtype=dtype).forward(source)
            self.assertEqual(actual.dtype, dtype)
            wanted = expected if dtype != numpy.float64 else support.rotate(
                source, numpy.arange(5)[:, None], support.frequencies(16, 10000.0), "half")
            self.assert_close(actual, wanted, tolerance)

    def test_bfloat16_of_ml_dtypes(self):
        try:
            import ml_dtypes
        except ImportError as error:
            self.skipTest(f"needs ml_dtypes: {error}")
        x = normal(5, 2, 16).astype(ml_dtypes.bfloat16)
        actual = make_desc(dtype=ml_dtypes.bfloat16).forward(x)
        self.assertEqual(actual.dtype, x.dtype)
        expected = support.rotate(x, numpy.arange(5)[:, None], support.frequencies(16, 10000.0), "half")
        self.assert_close(actual.astype(numpy.float64), expected, 2e-2)

    def test_frequencies_are_taken_from_sequences_and_arrays(self):
        x = normal(5, 2, 16)
        inv_freq = support.frequencies(16, 10000.0)
        results = [make_desc(theta=0.0, inv_freq=values).forward(x)
                   for values in (inv_freq, list(inv_freq), tuple(inv_freq), inv_freq.astype(numpy.float32))]
        numpy.testing.assert_array_equal(results[0], results[1])
        numpy.testing.assert_array_equal(results[0], results[2])
        self.assert_close(results[3], results[0])
        with self.assertRaisesRegex(ValueError, "inv_freq has 7 entries: it must have one for each of 8 pairs"):
            make_desc(inv_freq=inv_freq[:7])
        with self.assertRaisesRegex(ValueError, "pair_axis has 9 entries"):
            make_desc(num_axes=2, pair_axis=[0] * 9)

    def test_enumerators_names_and_dtype_objects(self):
        x = normal(5, 2, 16)
        expected = make_desc().forward(x)
        for style, layout, dtype in ((Style.HALF, Layout.THD, Dtype.F32), ("HALF", "THD", "float32"),
                                     (1, 4, numpy.dtype("float32")), ("half", "thd", numpy.float32)):
            numpy.testing.assert_array_equal(make_desc(style=style, layout=layout, dtype=dtype).forward(x), expected)
        for field, value in (("style", "neox"), ("layout", "hdbs"), ("dtype", "int8"), ("device", "tpu")):
            with self.assertRaisesRegex(ValueError, field):
                make_desc(**{field: value})

    def test_which_row_of_a_table(self):
        """by_token's rows belong to tokens, by_position's, the default, to positions."""
        x, positions = normal(5, 2, 16), numpy.array([4, 0, 6, 2, 9])
        desc, tables = make_desc(), make_desc(theta=0.0)
        cos, sin = numpy.empty((10, 8), numpy.float32), numpy.empty((10, 8), numpy.float32)
        desc.fill_tables(cos, sin)
        for call, reference in ((tables.forward, desc.forward), (tables.backward, desc.backward)):
            by_position = reference(x, positions=positions)
            for table_rows in ({}, dict(table_rows="by_position"), dict(table_rows=0)):
                actual = call(x, positions=positions, cos=cos, sin=sin, **table_rows)
                numpy.testing.assert_array_equal(actual, by_position)
            rows = dict(cos=cos[positions], sin=sin[positions])
            for table_rows in ("by_token", TableRows.BY_TOKEN, 1):
                numpy.testing.assert_array_equal(call(x, **rows, table_rows=table_rows), by_position)
                with self.assertRaisesRegex(InvalidArgument, "positions"):
                    call(x, positions=positions, cos=cos, sin=sin, table_rows=table_rows)
        seen = []
        with support.seen_args(lambda function, args: seen.append((function, args.table_rows))):
            tables.explain(x, cos=cos[:5], sin=sin[:5])
            tables.explain(x, cos=cos[:5], sin=sin[:5], table_rows="by_token")
        self.assertEqual(seen, [("rope_explain", 0), ("rope_explain", 1)])

    def test_out_style_is_style_by_default(self):
        x = normal(5, 2, 16)
        for style, other in (("half", "interleaved"), ("interleaved", "half")):
            default = make_desc(style=style)
            self.assertEqual(default._config.out_style, 0)
            numpy.testing.assert_array_equal(default.forward(x), make_desc(style=style, out_style=style).forward(x))
            self.assertFalse(numpy.array_equal(default.forward(x), make_desc(style=style, out_style=other).forward(x)))

    def test_explain(self):
        x = normal(5, 2, 16)
        before = x.copy()
        text = make_desc().explain(x, positions=numpy.arange(5))
        self.assertIn("rope F32 half", text)
        numpy.testing.assert_array_equal(x, before)

    def test_empty(self):
        self.assertEqual(make_desc().forward(numpy.empty((0, 2, 16), numpy.float32)).shape, (0, 2, 16))


class FlagTest(unittest.TestCase):
    def test_programmatic_launch(self):
        x, rope, gate = normal(5, 2, 16), make_desc(), SwigluDesc(dtype="f32")
        for call in (rope.forward, rope.backward, rope.explain, lambda x, **flags: gate.forward(x, x, **flags),
                     lambda x, **flags: gate.backward(x, x, x, **flags),
                     lambda x, **flags: gate.explain(x, x, **flags),
                     lambda x, **flags: gate.explain(x, x, grad_out=x, **flags),
                     lambda x, **flags: librope.swiglu(x, x, **flags),
                     lambda x, **flags: librope.swiglu_backward(x, x, x, **flags)):
            flags = []
            with support.seen_args(lambda function, args: flags.append(args.flags)):
                results = [call(x, **given) for given in ({}, dict(programmatic_launch=True))]
            self.assertEqual(flags, [0, 1])
            numpy.testing.assert_array_equal(*results)


class ErrorTest(unittest.TestCase):
    def test_host_tensors_are_not_for_a_cuda_descriptor(self):
        # This holds with and without a GPU: host memory in a CUDA kernel would be an illegal access.
        x = normal(5, 2, 16)
        with self.assertRaisesRegex(ValueError, "rope_forward: q: it is on cpu: this RopeDesc is for cuda"):
            make_desc(device="cuda").forward(x)
        with self.assertRaisesRegex(ValueError, "rope_fill_tables: cos_out: it is on cpu: this RopeDesc is for cuda"):
            make_desc(device="cuda").fill_tables(normal(5, 8), normal(5, 8))
        with self.assertRaisesRegex(ValueError, "swiglu_backward: gate: it is on cpu: this SwigluDesc is for cuda"):
            SwigluDesc(dtype="f32", device="cuda").backward(x, x, x)

    def test_status_and_text_are_the_library_s(self):
        with self.assertRaises(InvalidArgument) as caught:
            make_desc(head_dim=63)
        self.assertEqual(caught.exception.status, 1)
        self.assertEqual(caught.exception.message, "rope_desc_create: head_dim is 63: it must be even, 2 to 1024")
        self.assertEqual(str(caught.exception), caught.exception.message)
        self.assertIsInstance(caught.exception, librope.Error)
        self.assertIsInstance(caught.exception, ValueError)
        with self.assertRaisesRegex(InvalidArgument, "q_out.ndim is 2"):
            make_desc().forward(normal(5, 2, 16), out=normal(5, 16))
        with self.assertRaisesRegex(InvalidArgument, "stream"):
            make_desc().forward(normal(5, 2, 16), stream=1)

    def test_a_device_that_is_not_there(self):
        if librope.device_count("cuda") > 0:
            self.skipTest("there is one")
        self.assertTrue(librope.why_no_device("cuda"))
        self.assertIsNone(librope.why_no_device("cpu"))
        with self.assertRaises((NotSupported, librope.NoDevice)) as caught:
            make_desc(device="cuda:0")
        self.assertIn(caught.exception.status, (2, 4))

    def test_each_thread_has_its_own_text(self):
        wrong = []

        def fail_often(head_dim):
            for _ in range(200):
                try:
                    make_desc(head_dim=head_dim)
                except InvalidArgument as error:
                    if f"head_dim is {head_dim}:" not in error.message:
                        wrong.append(error.message)

        support.run_threads(4, lambda number: fail_often(2 * number + 1))
        self.assertEqual(wrong, [])

    def test_what_is_no_tensor_of_librope(self):
        desc = make_desc()
        x = normal(5, 2, 16)
        read_only = x.copy()
        read_only.flags.writeable = False
        misfit = numpy.zeros((5, 2, 16), dtype=[("a", "f4"), ("b", "i2")])["a"]
        for error, text, arguments in (
                (TypeError, "rope_forward: q: it is a builtins.list", dict(q=[1.0])),
                (TypeError, "rope_forward: q, k and v are None: one of them must be given", dict(q=None)),
                (TypeError, "q: its dtype is int8", dict(q=x.astype(numpy.int8))),
                (TypeError, "byte order", dict(q=x.astype(">f4"))),
                (ValueError, "q_out: it is read-only", dict(q=x, out=read_only)),
                (ValueError, "q: it is read-only", dict(q=read_only, out=read_only)),
                (ValueError, "q: its strides are", dict(q=misfit)),
                (ValueError, "positions: it has 0 axes", dict(q=x, positions=numpy.array(3))),
                (ValueError, "q: it has 5 axes", dict(q=x[None, None])),
        ):
            with self.subTest(text), self.assertRaisesRegex(error, text):
                desc.forward(**arguments)
        desc.forward(read_only)  # it is allowed as an input

    def test_masks_are_refused(self):
        x = numpy.ma.masked_array(normal(5, 2, 16), mask=True)
        for call in (make_desc().forward, lambda x: make_desc().forward(normal(5, 2, 16), out=x),
                     lambda x: librope.swiglu(x, x)):
            with self.assertRaisesRegex(TypeError, "_forward: (q|q_out|gate): it is a numpy.ma.MaskedArray"):
                call(x)

    def test_copies_and_pickles(self):
        x, positions = normal(5, 2, 16), numpy.tile(numpy.arange(5), (2, 1))
        rope = [make_desc(), make_desc(device="cpu", rotary_dim=8, rotary_offset=4, out_style="interleaved"),
                make_desc(theta=0.0, inv_freq=[1.0 / (i + 1) for i in range(8)], num_axes=2, num_threads=1,
                          pair_axis=numpy.arange(8) % 2, attention_scale=1.25)]
        calls = [(desc, lambda desc: desc.forward(x)) for desc in rope]
        calls[2] = rope[2], lambda desc: desc.forward(x, positions=positions)
        calls.append((SwigluDesc(dtype="f32", alpha=1.5, limit=0.5, up_offset=1.0, out_scale=2.0),
                      lambda desc: desc.forward(x, x)))
        half = x.astype(numpy.float16)
        calls.append((SwigluDesc(dtype="f16", activation="geglu_tanh", gate_softcap=2.0, up_softcap=1.0, limit=0.5,
                                 limit_rule="activation", product_rounding=True),
                      lambda desc: desc.forward(half, half)))
        for desc, call in calls:
            expected = call(desc)
            twins = [copy.copy(desc), copy.deepcopy(desc)]
            twins += [pickle.loads(pickle.dumps(desc, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)]
            desc.close()
            for twin in twins:
                self.assertIs(type(twin), type(desc))
                numpy.testing.assert_array_equal(call(twin), expected)
            with self.assertRaisesRegex(ValueError, f"this {type(desc).__name__} is closed"):
                pickle.dumps(desc)
        twin = pickle.loads(pickle.dumps(make_desc(device="cpu")))
        self.assertEqual(twin._device, (1, 0))
        self.assertEqual(pickle.loads(pickle.dumps(make_desc()))._device, (None, None))

    def test_closed(self):
        with make_desc() as desc:
            desc.forward(normal(5, 2, 16))
        desc.close()
        with self.assertRaisesRegex(ValueError, "this RopeDesc is closed"):
            desc.forward(normal(5, 2, 16))

    def test_tables_are_read_only_or_not(self):
        x, cos, sin = normal(5, 2, 16), numpy.zeros((5, 8), numpy.float32), numpy.zeros((5, 8), numpy.float32)
        for field in ("cos", "sin"):
            tables = {"cos": cos, "sin": sin, field: numpy.zeros((5, 8), numpy.float32)}
            tables[field].flags.writeable = False
            with self.subTest(field), self.assertRaisesRegex(ValueError, f"rope_fill_tables: {field}: it is read-only"):
                make_desc().fill_tables(**tables)
            make_desc().forward(x, **tables)
        self.assertFalse(cos.any() or sin.any())

    def test_each_descriptor_is_destroyed_once(self):
        x = normal(5, 2, 16)
        for make, name in ((make_desc, "rope"), (lambda: SwigluDesc(dtype="f32"), "swiglu")):
            created, destroyed = [], []
            cls = type(make())

            def create(config, pointer):
                status = getattr(_library.lib, name + "_desc_create")(config, pointer)
                created.append(pointer._obj.value)
                return status

            def destroy(pointer):
                destroyed.append(pointer)
                getattr(_library.lib, name + "_desc_destroy")(pointer)

            create.__name__ = name + "_desc_create"
            with mock.patch.object(cls, "_create", staticmethod(create)), \
                    mock.patch.object(cls, "_destroy", staticmethod(destroy)):
                desc = make()
                desc.forward(x) if name == "rope" else desc.forward(x, x)
                self.assertEqual((len(created), destroyed), (1, []))
                desc.close()
                self.assertEqual(destroyed, created)
                desc.close()
                with make():
                    self.assertEqual(len(destroyed), 1)
                del desc
                make()
                gc.collect()
            self.assertEqual(len(created), 3)
            self.assertEqual(destroyed, created)
            self.assertTrue(all(created))

    def test_destroyed_descriptors_give_back_their_memory(self):
        def resident():
            with open("/proc/self/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * resource.getpagesize()

        for name, make in (("rope", lambda: make_desc(head_dim=1024)), ("swiglu", lambda: SwigluDesc(dtype="f32"))):
            for _ in range(2000):
                make()
            before = resident()
            for _ in range(20000):
                make()
            self.assertLess(resident() - before, 1 << 20, name)

    def test_nothing_keeps_tensors_alive(self):
        desc = make_desc()
        x = normal(5, 2, 16)
        reference = weakref.ref(x)
        desc.forward(x, out=x)
        del x
        gc.collect()
        self.assertIsNone(reference())

    def test_use_by_many_threads_and_close_meanwhile(self):
        desc = make_desc(num_threads=1)
        x = normal(2000, 4, 16)
        expected = desc.forward(x)
        wrong = []

        def use():
            try:
                for _ in range(50):
                    if not numpy.array_equal(desc.forward(x), expected):
                        wrong.append("other bits")
            except ValueError as error:
                if "closed" not in str(error):
                    wrong.append(error)

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        desc.close()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])


class SwigluTest(unittest.TestCase):
    def assert_close(self, actual, expected, tolerance=2e-6):
        numpy.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)

    def test_forward(self):
        gate, up = normal(7, 12), normal(7, 12)
        self.assert_close(librope.swiglu(gate, up), support.swiglu(gate, up))
        out = numpy.empty_like(gate)
        self.assertIs(librope.swiglu(gate, up, out), out)
        self.assert_close(out, support.swiglu(gate, up))
        gpt_oss = dict(alpha=1.702, limit=0.7, up_offset=1.0)
        self.assert_close(
            librope.swiglu(gate, up, out_scale=0.5, **gpt_oss), support.swiglu(gate, up, out_scale=0.5, **gpt_oss))

    def test_packed_and_in_place(self):
        packed = normal(7, 24)
        gate, up = packed[:, :12].copy(), packed[:, 12:].copy()
        result = librope.swiglu(packed[:, :12], packed[:, 12:])
        numpy.testing.assert_array_equal(result, librope.swiglu(gate, up))
        self.assertIs(librope.swiglu(gate, up, gate), gate)
        numpy.testing.assert_array_equal(gate, result)

    def test_backward(self):
        grad_out, gate, up = normal(7, 12), normal(7, 12), normal(7, 12)
        expected = support.swiglu_gradients(grad_out, gate, up)
        out = numpy.empty_like(gate)
        grads = librope.swiglu_backward(grad_out, gate, up, out=out)
        self.assertEqual(len(grads), 2)
        self.assert_close(grads[0], expected[0])
        self.assert_close(grads[1], expected[1])
        self.assert_close(out, support.swiglu(gate, up))
        grads = librope.swiglu_backward(grad_out, gate, up, grad_gate=False, grad_up=grad_out)
        self.assertIsNone(grads[0])
        self.assertIs(grads[1], grad_out)
        self.assert_close(grad_out, expected[1])

    def test_explain(self):
        grad_out, gate, up, scale = normal(1000, 32), normal(1000, 32), normal(1000, 32), normal(1000)
        tensors = grad_out, gate, up, scale
        before = [x.copy() for x in tensors]
        desc = SwigluDesc(dtype="f32", num_threads=1)

        def explained(name, megabytes):
            return f"swiglu F32 {name} on the CPU: 1 of 1 threads, {megabytes} MB read and written"

        self.assertEqual(desc.explain(gate, up), explained("forward", 0.384))
        self.assertEqual(desc.explain(gate, up, gate), explained("forward", 0.384))
        self.assertEqual(desc.explain(gate, up, grad_out=grad_out), explained("backward", 0.64))
        self.assertEqual(desc.explain(gate, up, grad_out=grad_out, grad_gate=False), explained("backward", 0.512))
        self.assertEqual(
            desc.explain(gate, up, numpy.empty_like(gate), grad_out=grad_out, row_scale=scale, grad_gate=gate,
                         grad_up=up, num_rows=numpy.array([5])), explained("backward", 0.768))
        self.assertEqual(desc.explain(gate[:0], up[:0]), "swiglu F32 forward: nothing to do, no element is gated")
        fields = []
        with support.seen_args(lambda function, args: fields.append(
                [field for field, _ in args._fields_[2:11] if getattr(args, field).ndim])):
            desc.explain(gate, up, grad_out=grad_out, row_scale=scale)
            desc.explain(gate, up, grad_out=grad_out, row_scale=scale, grad_row_scale=False)
        self.assertEqual(fields, [["gate", "up", "row_scale", "grad_out", "grad_gate", "grad_up", "grad_row_scale"],
                                  ["gate", "up", "row_scale", "grad_out", "grad_gate", "grad_up"]])
        for x, given in zip(tensors, before):
            numpy.testing.assert_array_equal(x, given)
        with self.assertRaisesRegex(InvalidArgument, "swiglu_explain: up.shape"):
            desc.explain(gate, up[:5])
        for field, x in (("grad_gate", gate), ("grad_up", up), ("grad_row_scale", scale)):
            with self.assertRaisesRegex(InvalidArgument, f"swiglu_explain: {field} is set: it belongs to swiglu_back"):
                desc.explain(gate, up, row_scale=scale, **{field: x})
        gate.flags.writeable = False
        with self.assertRaisesRegex(ValueError, "swiglu_explain: out: it is read-only"):
            desc.explain(gate, up, gate)

    def test_rows(self):
        grad_out, gate, up, scale = normal(7, 12), normal(7, 12), normal(7, 12), normal(7)
        num_rows = numpy.array([5], dtype=numpy.int32)
        try:
            out = librope.swiglu(gate, up, row_scale=scale, num_rows=num_rows)
        except NotSupported as error:
            self.skipTest(str(error))
        self.assert_close(out[:5], support.swiglu(gate, up, row_scale=scale)[:5])
        self.assertTrue((out[5:] == 0).all())
        grads = librope.swiglu_backward(grad_out, gate, up, row_scale=scale, num_rows=num_rows)
        for actual, expected in zip(grads, support.swiglu_gradients(grad_out, gate, up, scale)):
            self.assert_close(actual[:5], expected[:5], 1e-5)
            self.assertTrue((actual[5:] == 0).all())

    def test_forms(self):
        for dtype, tolerance in ((numpy.float32, 1e-5), (numpy.float64, 1e-8)):
            grad_out, gate, up, scale = (normal(*shape, dtype=dtype) for shape in [(7, 12)] * 3 + [(7,)])
            for form in support.SWIGLU_FORMS:
                with self.subTest(dtype=dtype, **form):
                    form = dict(form, row_scale=scale)
                    self.assert_close(librope.swiglu(gate, up, **form), support.swiglu(gate, up, **form), tolerance)
                    grads = librope.swiglu_backward(grad_out, gate, up, **form)
                    for actual, expected in zip(grads, support.swiglu_differences(grad_out, gate, up, **form)):
                        self.assert_close(actual, expected, tolerance)

    def test_names_of_forms(self):
        gate, up = normal(7, 12), normal(7, 12)
        expected = librope.swiglu(gate, up, activation="geglu_erf", limit=0.5, limit_rule="activation")
        for activation in ("geglu-erf", "GEGLU_ERF", Activation.GEGLU_ERF, 1):
            numpy.testing.assert_array_equal(
                librope.swiglu(gate, up, activation=activation, limit=0.5, limit_rule=LimitRule.ACTIVATION), expected)
        with self.assertRaisesRegex(ValueError, "activation is 'gelu': it must be one of swiglu, geglu_erf, "):
            librope.swiglu(gate, up, activation="gelu")
        with self.assertRaisesRegex(ValueError, "limit_rule is 'up': it must be one of gate, activation"):
            SwigluDesc(dtype="f32", limit_rule="up")
        with self.assertRaisesRegex(InvalidArgument, "activation is 4: it must be SWIGLU_ACTIVATION_SWIGLU, "):
            SwigluDesc(dtype="f32", activation=4)
        with self.assertRaisesRegex(InvalidArgument, "alpha is 1.702 and activation is 3"):
            SwigluDesc(dtype="f32", activation="reglu", alpha=1.702)
        with self.assertRaisesRegex(InvalidArgument, "up_softcap is -1: it must be from"):
            librope.swiglu_backward(gate, gate, up, up_softcap=-1.0)

    def test_the_rounded_activation(self):
        gate, up = normal(200, 100, dtype=numpy.float16), normal(200, 100, dtype=numpy.float16)
        rounded = support.swiglu(gate, 1.0, activation="geglu_erf").astype(numpy.float16)
        expected = (rounded.astype(numpy.float64) * up).astype(numpy.float16)
        actual = librope.swiglu(gate, up, activation="geglu_erf", product_rounding=True)
        self.assertLessEqual((actual != expected).sum(), 4)
        self.assertGreater((librope.swiglu(gate, up, activation="geglu_erf") != expected).sum(), 1000)
        wide = numpy.float32(gate), numpy.float32(up)  # wide keeps the original values
        numpy.testing.assert_array_equal(librope.swiglu(*wide, product_rounding=True), librope.swiglu(*wide))

    def test_biases(self):
        grad_out, gate, up = normal(7, 2, 12), normal(7, 2, 12), normal(7, 2, 12)
        biases = dict(gate_bias=normal(12), up_bias=normal(24)[::2])
        form = dict(activation="geglu_tanh", up_offset=1.0)
        for given in (biases, {"gate_bias": biases["gate_bias"]}, {"up_bias": biases["up_bias"]}):
            with self.subTest(given=list(given)):
                self.assert_close(
                    librope.swiglu(gate, up, **given, **form), support.swiglu(gate, up, **given, **form), 1e-5)
                out = numpy.empty_like(gate)
                grads = librope.swiglu_backward(grad_out, gate, up, out=out, **given, **form)
                self.assert_close(out, support.swiglu(gate, up, **given, **form), 1e-5)
                for actual, expected in zip(
                        grads, support.swiglu_differences(grad_out, gate, up, **given, **form)):
                    self.assert_close(actual, expected, 1e-5)
        half = gate.astype(numpy.float16), up.astype(numpy.float16)
        numpy.testing.assert_allclose(
            librope.swiglu(*half, **biases), support.swiglu(*half, **biases), rtol=1e-3, atol=1e-3)
        with self.assertRaisesRegex(InvalidArgument, "swiglu_forward: gate_bias.shape"):
            librope.swiglu(gate, up, gate_bias=normal(11))
        with self.assertRaisesRegex(InvalidArgument, "swiglu_backward: up_bias.dtype is F64"):
            librope.swiglu_backward(grad_out, gate, up, up_bias=normal(12, dtype=numpy.float64))
        with self.assertRaisesRegex(TypeError, "swiglu_forward: gate_bias: it is a"):
            librope.swiglu(gate, up, gate_bias=[0.0] * 12)

    def test_experts(self):
        grad_out, gate, up = normal(4, 5, 12), normal(4, 5, 12), normal(4, 5, 12)
        gate_bias, up_bias, scale = normal(4, 12), normal(4, 12), normal(4, 5)
        rows = numpy.array([5, 0, 3, 9], dtype=numpy.int32)
        exists = numpy.arange(5) < rows[:, None]
        broadcast = dict(gate_bias=gate_bias[:, None], up_bias=up_bias[:, None], row_scale=scale)
        given = dict(gate_bias=gate_bias, up_bias=up_bias, row_scale=scale, expert_rows=rows)
        expected = support.swiglu(gate, up, **broadcast)
        self.assert_close(librope.swiglu(gate, up, **given), numpy.where(exists[..., None], expected, 0.0), 1e-5)
        out = numpy.full_like(gate, 7.0)
        SwigluDesc(dtype="f32").forward(gate, up, out, **given)
        self.assert_close(out, numpy.where(exists[..., None], expected, 7.0), 1e-5)
        grads = librope.swiglu_backward(grad_out, gate, up, **given)
        for actual, wanted in zip(grads, support.swiglu_differences(grad_out, gate, up, **broadcast)):
            self.assert_close(actual, numpy.where(exists[..., None], wanted, 0.0), 1e-5)
        self.assertTrue((grads[2][~exists] == 0).all())
        # A bias for all experts, and 64-bit rows.
        self.assert_close(
            librope.swiglu(gate, up, up_bias=up_bias[0], expert_rows=rows.astype(numpy.int64)),
            numpy.where(exists[..., None], support.swiglu(gate, up, up_bias=up_bias[0]), 0.0), 1e-5)
        with self.assertRaisesRegex(InvalidArgument, "num_rows and expert_rows are set"):
            librope.swiglu(gate, up, num_rows=rows[:1], expert_rows=rows)
        with self.assertRaisesRegex(InvalidArgument, "swiglu_explain: expert_rows.shape"):
            SwigluDesc(dtype="f32").explain(gate, up, expert_rows=rows[:3])
        desc = SwigluDesc(dtype="f32", num_threads=1)
        self.assertRegex(desc.explain(gate, up, **given), "^swiglu F32 forward on the CPU: 1 of 1 threads, ")
        self.assertRegex(desc.explain(gate, up, grad_out=grad_out, **given), "^swiglu F32 backward on the CPU: ")

    def test_float64(self):
        gate, up = normal(7, 12, dtype=numpy.float64), normal(7, 12, dtype=numpy.float64)
        try:
            out = librope.swiglu(gate, up)
        except NotSupported as error:
            self.skipTest(str(error))
        self.assert_close(out, support.swiglu(gate, up), 1e-14)

    def test_descriptor(self):
        gate, up = normal(7, 12), normal(7, 12)
        with SwigluDesc(dtype="f32") as desc:
            self.assert_close(desc.forward(gate, up), support.swiglu(gate, up))
        with SwigluDesc(dtype="f32", device="cpu", alpha=1.5) as desc:
            self.assert_close(desc.forward(gate, up), support.swiglu(gate, up, alpha=1.5))
            grads = desc.backward(gate, gate, up)
            self.assertEqual([grad.shape for grad in grads], [gate.shape] * 2)
        with self.assertRaisesRegex(InvalidArgument, "limit"):
            SwigluDesc(dtype="f32", limit=-1.0)
        with self.assertRaisesRegex(TypeError, "swiglu_forward: gate"):
            librope.swiglu([1.0], [2.0])


if __name__ == "__main__":
    unittest.main()
