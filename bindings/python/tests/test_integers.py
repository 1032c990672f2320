# SPDX-License-Identifier: Apache-2.0
# test_integers.py - integers that do not fit the library's fields, which ctypes would reduce modulo 2^32 or 2^64
from __future__ import annotations

import ctypes
import inspect
import unittest

import support
from support import numpy

import librope
from librope import RopeDesc, SwigluDesc, _abi

SIGNED = {ctypes.c_int32: 32, ctypes.c_int64: 64}
ROPE = dict(head_dim=16, theta=1e4, style="half", layout="thd", dtype="f32")
SCALING = dict(rotary_dim=16, theta=1e4, type="dynamic_ntk", factor=2.0, original_max_position=16, sequence_length=32)


def integer_fields(struct, function):
    """(name, bits) of those integers of a struct that the function has as parameters."""
    parameters = inspect.signature(function).parameters
    return [(name, SIGNED[ctype]) for name, ctype in struct._fields_
            if ctype in SIGNED and name in parameters and name not in ("device", "product_rounding")]  # a name, a bool


def cases():
    """(C function, field, bits, call with a value of that field)."""
    x = numpy.ones((2, 1, 16), numpy.float32)
    desc = RopeDesc(**ROPE)
    for field, bits in integer_fields(_abi.rope_config_t, RopeDesc):
        yield "rope_desc_create", field, bits, lambda value, field=field: RopeDesc(**{**ROPE, field: value})
    for field, bits in integer_fields(_abi.swiglu_config_t, SwigluDesc):
        yield "swiglu_desc_create", field, bits, lambda value, field=field: SwigluDesc(**{"dtype": "f32", field: value})
    yield "swiglu_desc_create", "num_threads", 32, lambda value: librope.swiglu(x, x, num_threads=value)
    yield "swiglu_desc_create", "num_threads", 32, lambda value: librope.swiglu_backward(x, x, x, num_threads=value)
    for field, bits in integer_fields(_abi.rope_args_t, RopeDesc.forward):
        for name in ("forward", "backward", "explain"):
            yield f"rope_{name}", field, bits, lambda value, name=name, field=field: getattr(desc, name)(
                x, **{field: value})
    for field, bits in integer_fields(_abi.rope_scaling_t, librope.scaled_frequencies) + [("rotary_dim", 32)]:
        yield "rope_scaled_frequencies", field, bits, lambda value, field=field: librope.scaled_frequencies(
            **{**SCALING, field: value})
    axes = dict(rotary_dim=16, theta=1e4, type="chunked", section=[4, 4])
    for field in ("rotary_dim", "type"):
        yield "rope_section_axes", field, 32, lambda value, field=field: librope.section_axes(**{**axes, field: value})
    yield "rope_section_axes", r"section\[1\]", 32, lambda value: librope.section_axes(
        **{**axes, "section": [4, value]})
    yield "rope_desc_create", r"pair_axis\[7\]", 32, lambda value: RopeDesc(
        **ROPE, num_axes=2, pair_axis=[0] * 7 + [value])
    yield "rope_device_count", "device", 32, librope.device_count


class IntegerTest(unittest.TestCase):
    def test_out_of_range(self):
        names = set()
        for function, field, bits, call in cases():
            names.add(field)
            for value in (2 ** (bits - 1), -2 ** (bits - 1) - 1, 2 ** bits + 4, -2 ** bits, 2 ** 64 + 4, 10 ** 30):
                with self.subTest(function, field=field, value=value), self.assertRaisesRegex(
                        ValueError, rf"^{function}: {field} is {value}: it must be -{2 ** (bits - 1)} to "):
                    call(value)
        self.assertTrue({"head_dim", "rotary_dim", "rotary_offset", "num_axes", "pair_block", "num_threads", "dtype",
                         "layout", "style", "out_style", "position_offset", "table_rows", "original_max_position",
                         "sequence_length", "type", "activation", "limit_rule"} <= names)

    def test_no_integers(self):
        for function, field, _, call in cases():
            for value in (True, False, 4.0, 1.5, numpy.float64(4.0), numpy.bool_(True), 1j):
                if field == "dtype" and not isinstance(value, bool):
                    continue  # an object with a dtype, or with the name of one
                with self.subTest(function, field=field, value=value), self.assertRaisesRegex(
                        TypeError, rf"{field} is .*: it must be an integer"):
                    call(value)
                    call(value)  # not from a cache, in which 1.0 equals 1

    def test_all_integers_work(self):
        x = numpy.ones((2, 1, 16), numpy.float32)
        expected = RopeDesc(rotary_dim=8, **ROPE).forward(x, position_offset=3)
        for kind in (numpy.int32, numpy.int64, numpy.uint8, int):
            desc = RopeDesc(rotary_dim=kind(8), num_threads=kind(1), **{**ROPE, "head_dim": kind(16), "style": kind(1)})
            numpy.testing.assert_array_equal(desc.forward(x, position_offset=kind(3), table_rows=kind(0)), expected)
            self.assertEqual(librope.section_axes(kind(16), 1e4, type="chunked", section=[kind(4), kind(4)]).pair_axis,
                             [0] * 4 + [1] * 4)
            librope.scaled_frequencies(**{**SCALING, "rotary_dim": kind(16), "sequence_length": kind(32)})
            RopeDesc(**ROPE, num_axes=kind(2), pair_axis=numpy.array([0] * 4 + [1] * 4, kind))
        offset = 2 ** 63 - 1
        numpy.testing.assert_array_equal(
            RopeDesc(**ROPE).forward(x, position_offset=-offset - 1).shape, x.shape)

    def test_devices_and_streams(self):
        with self.assertRaisesRegex(ValueError, f"rope_desc_create: device_index is {2 ** 32}: it must be"):
            RopeDesc(**ROPE, device=f"cuda:{2 ** 32}")
        x = numpy.ones((2, 1, 16), numpy.float32)
        for value in (2 ** 64, -1):
            with self.assertRaisesRegex(ValueError, f"stream is {value}: it must be 0 to {2 ** 64 - 1}"):
                RopeDesc(**ROPE).forward(x, stream=value)
        with self.assertRaisesRegex(TypeError, "stream is True: it must be"):
            RopeDesc(**ROPE).forward(x, stream=True)

    def test_shapes_of_an_array_interface(self):
        x = numpy.ones((2, 1, 16), numpy.float32)
        for error, text, shape in (
                (ValueError, "its shape is ", (2, 1, 2 ** 64 + 16)), (ValueError, "its shape is ", (2, 1, -2 ** 64)),
                (TypeError, r"its shape\[2\] is 16.0: it must be an integer", (2, 1, 16.0)),
                (TypeError, r"its shape\[1\] is True: it must be an integer", (2, True, 16))):
            source = type("Source", (), {"__array_interface__": {**x.__array_interface__, "shape": shape}})()
            with self.subTest(shape), self.assertRaisesRegex(error, "^rope_forward: q: " + text):
                RopeDesc(**ROPE).forward(source, out=x)


if __name__ == "__main__":
    unittest.main()
