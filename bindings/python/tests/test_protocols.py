# SPDX-License-Identifier: Apache-2.0
# test_protocols.py - DLPack capsules and array interfaces, and which side frees them
from __future__ import annotations

import array
import ctypes
import gc
import re
import sys
import types
import unittest
from unittest import mock

import support  # noqa: F401
from support import numpy

import librope
from librope import RopeDesc, _abi, _dlpack, _tensors

_new = ctypes.pythonapi.PyCapsule_New
_new.restype = ctypes.py_object
_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_destructor_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.restype = ctypes.c_char_p
_name_of.argtypes = [ctypes.c_void_p]
_CODES = {"f": 2, "i": 0}


class Producer:
    """Exports an array through DLPack, and counts its exports and the calls of its deleter."""

    def __init__(self, array, is_versioned=True, flags=0, version=(1, 0), device=(1, 0), knows_versions=True,
                 omits_strides=False, byte_offset=0, code=None, **entries):
        self.entries = entries  # of the DLTensor, instead of the array's
        self.code = _CODES[array.dtype.kind] if code is None else code
        self.array, self.device, self.byte_offset, self.omits_strides = array, device, byte_offset, omits_strides
        self.is_versioned, self.flags, self.version, self.knows_versions = is_versioned, flags, version, knows_versions
        self.exports = self.deletions = 0
        self.keywords = None
        self._kept = []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **keywords):
        if not self.knows_versions and "max_version" in keywords:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        self.keywords = keywords
        self.exports += 1
        array = self.array
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        strides = (ctypes.c_int64 * array.ndim)(*(s // array.itemsize for s in array.strides))
        tensor = _dlpack.DLTensor(
            data=array.__array_interface__["data"][0] - self.byte_offset, device_type=self.device[0],
            device_id=self.device[1], ndim=array.ndim, code=self.code, bits=array.itemsize * 8, lanes=1,
            shape=shape, strides=None if self.omits_strides else strides, byte_offset=self.byte_offset)
        for name, value in self.entries.items():
            setattr(tensor, name, value)
        if self.is_versioned:
            managed = _dlpack.DLManagedTensorVersioned(
                major=self.version[0], minor=self.version[1], flags=self.flags, dl_tensor=tensor)
            name = b"dltensor_versioned"
        else:
            managed = _dlpack.DLManagedTensor(dl_tensor=tensor)
            name = b"dltensor"

        def destroy(capsule):
            if _name_of(capsule) == name:  # no consumer has taken it over
                self.deletions += 1

        destructor = _destructor_type(destroy)
        self._kept.append((shape, strides, managed, destructor, name))
        return _new(ctypes.addressof(managed), name, ctypes.cast(destructor, ctypes.c_void_p))


class Interface:
    """An object with an array interface alone."""

    def __init__(self, name, **entries):
        setattr(self, name, entries)


def array_interface(array, **overrides):
    interface = dict(array.__array_interface__)
    interface.update(overrides)
    return Interface("__array_interface__", **interface)


def make_desc(**overrides):
    arguments = dict(head_dim=16, theta=10000.0, style="half", layout="thd", dtype="f32")
    arguments.update(overrides)
    return RopeDesc(**arguments)


class DlpackTest(unittest.TestCase):
    def setUp(self):
        self.x = numpy.arange(5 * 2 * 32, dtype=numpy.float32).reshape(5, 2, 32)[:, :, ::2] / 100
        self.desc = make_desc()
        self.expected = self.desc.forward(self.x)

    def test_input_and_output(self):
        for keywords in (dict(), dict(is_versioned=False), dict(is_versioned=False, knows_versions=False),
                         dict(byte_offset=64), dict(version=(1, 3))):
            with self.subTest(**keywords):
                source = Producer(self.x, **keywords)
                result = numpy.zeros((5, 2, 16), numpy.float32)
                target = Producer(result, **keywords)
                self.assertIs(self.desc.forward(source, out=target), target)
                numpy.testing.assert_array_equal(result, self.expected)
                gc.collect()
                for producer in (source, target):
                    self.assertGreater(producer.exports, 0)
                    self.assertEqual(producer.deletions, producer.exports)
                    self.assertNotIn("stream", producer.keywords)

    def test_codes_of_8_bits(self):
        for code, expected in ((10, 0x38), (12, 0x3C)):  # 1.0
            result = numpy.zeros((5, 2, 16), numpy.uint8)
            self.desc.forward(numpy.ones((5, 2, 16), numpy.float32), out=Producer(result, code=code), unrotated=True)
            self.assertTrue((result == expected).all())
        scales = numpy.zeros((5, 2, 1), numpy.uint8)
        self.desc.forward(
            numpy.full((5, 2, 16), 3.0, numpy.float32), out=Producer(result, code=10), unrotated=True,
            quant=librope.Quant(q_scales_out=Producer(scales, code=14)))
        self.assertTrue((scales == 127 - 7).all() and (result == 0x7C).all())  # 2^-7, 384
        for code in (8, 9, 11, 13):  # e4m3, e4m3b11fnuz, e4m3fnuz, e5m2fnuz
            with self.assertRaisesRegex(TypeError, f"q_out: its dtype is DLPack code {code}, 8 bits"):
                self.desc.forward(self.x, out=Producer(result, code=code))

    def test_capsules_live_as_long_as_the_call(self):
        result, grads = numpy.zeros((5, 2, 16), numpy.float32), numpy.zeros((2, 5, 2, 16), numpy.float32)
        cos, sin = numpy.ones((5, 8), numpy.float32), numpy.zeros((5, 8), numpy.float32)
        gate = librope.SwigluDesc(dtype="f32")
        calls = {
            "rope_forward": lambda new: self.desc.forward(new(self.x), out=new(result), positions=new(numpy.arange(5))),
            "rope_backward": lambda new: self.desc.backward(new(self.x), out=new(result), cos=new(cos), sin=new(sin)),
            "rope_explain": lambda new: self.desc.explain(new(self.x), out=new(result)),
            "swiglu_forward": lambda new: gate.forward(
                new(self.x), new(self.x), new(result), gate_bias=new(cos[0].repeat(2)), up_bias=new(sin[0].repeat(2)),
                expert_rows=new(numpy.arange(5))),
            "swiglu_backward": lambda new: gate.backward(
                new(self.x), new(self.x), new(self.x), grad_gate=new(grads[0]), grad_up=new(grads[1])),
            "swiglu_explain": lambda new: gate.explain(
                new(self.x), new(self.x), grad_out=new(self.x), grad_gate=new(grads[0]), grad_up=new(grads[1])),
        }
        for name, call in calls.items():
            with self.subTest(name):
                producers, seen = [], []

                def new(array):
                    producers.append(Producer(array))
                    return producers[-1]

                with support.seen_args(lambda function, args: seen.append(
                        (function, [producer.exports - producer.deletions for producer in producers]))):
                    call(new)
                self.assertEqual([function for function, _ in seen], [name])
                self.assertGreaterEqual(min(seen[0][1]), 1)
                gc.collect()
                self.assertEqual([p.exports - p.deletions for p in producers], [0] * len(producers))

    def test_absent_strides_are_compact(self):
        compact = numpy.ascontiguousarray(self.x)
        result = numpy.zeros_like(compact)
        self.desc.forward(Producer(compact, omits_strides=True), out=result)
        numpy.testing.assert_array_equal(result, self.expected)

    def test_pinned_memory_is_the_cpu_s(self):
        result = numpy.zeros((5, 2, 16), numpy.float32)
        self.desc.forward(Producer(self.x, device=(3, 0)), out=result)
        numpy.testing.assert_array_equal(result, self.expected)

    def test_read_only(self):
        source = Producer(self.x, flags=_dlpack.FLAG_READ_ONLY)
        self.desc.forward(source, out=numpy.zeros((5, 2, 16), numpy.float32))
        with self.assertRaisesRegex(ValueError, "rope_forward: q: it is read-only"):
            self.desc.forward(source, out=source)
        self.assertEqual(source.deletions, source.exports)

    def test_refusals(self):
        out = numpy.zeros((5, 2, 16), numpy.float32)
        for error, text, producer in (
                (BufferError, "export is a copy", Producer(self.x, flags=_dlpack.FLAG_IS_COPIED)),
                (BufferError, "DLPack version is 2.0", Producer(self.x, version=(2, 0))),
                (TypeError, "device type is 8", Producer(self.x, device=(8, 0))),
                (TypeError, "code 0, 16 bits", Producer(self.x.astype(numpy.int16))),
        ):
            with self.subTest(text), self.assertRaisesRegex(error, text):
                self.desc.forward(producer, out=out)
            gc.collect()
            self.assertEqual(producer.deletions, producer.exports)
        for error, text, entries in (
                (TypeError, "code 2, 31 bits, 1 lanes", dict(bits=31)),
                (TypeError, "code 2, 0 bits", dict(bits=0)),
                (TypeError, "code 2, 32 bits, 0 lanes", dict(lanes=0)),
                (TypeError, "code 2, 32 bits, 4 lanes", dict(lanes=4)),
                (TypeError, "code 17, 4 bits, 1 lanes", dict(code=17, bits=4)),
                (TypeError, "code 17, 4 bits, 65535 lanes", dict(code=17, bits=4, lanes=65535)),
                (TypeError, "code 1, 32 bits", dict(code=1)),
                (TypeError, "code 6, 32 bits", dict(code=6)),  # bool
                (ValueError, "it has 0 axes", dict(ndim=0)),
                (ValueError, "it has -1 axes", dict(ndim=-1)),
                (ValueError, "it has 2147483647 axes: librope takes 1 to 4", dict(ndim=2**31 - 1)),
                (BufferError, "its DLPack shape is NULL", dict(shape=None)),
                (ValueError, "shape", dict(shape=(ctypes.c_int64 * 3)(5, -2, 16))),
                (ValueError, "shape", dict(shape=(ctypes.c_int64 * 3)(5, 2**62, 16))),
                (ValueError, ": its shape is .* at 0x1f{15}e: ", dict(data=2**64 - 1, byte_offset=2**64 - 1)),
        ):
            with self.subTest(text, **entries), self.assertRaisesRegex(error, "^rope_forward: q.*" + text):
                self.desc.forward(Producer(self.x, omits_strides="shape" in entries, **entries), out=out)
        for device, text in (((True, 0), "q: its DLPack device type is True: it must be an integer"),
                             ((1.0, 0), "q: its DLPack device type is 1.0"), ((2, True), "q: its DLPack device is True"),
                             ((2, None), "q: its DLPack device is None")):
            producer = Producer(self.x)
            producer.device = device
            with self.subTest(text), self.assertRaisesRegex(TypeError, "^rope_forward: " + text):
                self.desc.forward(producer, out=out)
        for ordinal in (-1, 2**31, -2**80):
            producer = Producer(self.x)
            producer.device = 2, ordinal
            with self.subTest(ordinal), self.assertRaisesRegex((ValueError, librope.Error), "cuda|CUDA|device_index"):
                self.desc.forward(producer, out=out)
        consumed = Producer(self.x)
        consumed.__class__ = type("Consumed", (Producer,), {"__dlpack__": lambda self, **keywords: None})
        with self.assertRaisesRegex(BufferError, "did not return a DLPack capsule"):
            self.desc.forward(consumed, out=out)

    def test_a_new_output_needs_a_framework(self):
        with self.assertRaisesRegex(TypeError, "rope_forward: q: librope cannot make a .*Producer: give out"):
            self.desc.forward(Producer(self.x))

    def test_swiglu_without_a_dtype_attribute(self):
        out = numpy.zeros((5, 2, 16), numpy.float32)
        librope.swiglu(Producer(self.x), Producer(self.x), out)
        numpy.testing.assert_array_equal(out, librope.swiglu(self.x, self.x))

    def test_cuda_tensors_are_not_for_a_cpu_descriptor(self):
        source = Producer(self.x, device=(2, 1))
        with self.assertRaisesRegex(ValueError, "rope_forward: q: it is on cuda:1: this RopeDesc is for cpu"):
            make_desc(device="cpu").forward(source, out=source)
        with self.assertRaisesRegex(ValueError, "positions: it is on cuda:1, the first tensor of the call on cpu"):
            self.desc.forward(self.x, positions=Producer(numpy.arange(5), device=(2, 1)))


class InterfaceTest(unittest.TestCase):
    def setUp(self):
        self.x = numpy.arange(5 * 2 * 32, dtype=numpy.float32).reshape(5, 2, 32)[:, :, ::2] / 100
        self.desc = make_desc()
        self.expected = self.desc.forward(self.x)

    def test_input_and_output(self):
        result = numpy.zeros((5, 2, 16), numpy.float32)
        self.desc.forward(array_interface(self.x), out=array_interface(result, strides=None))
        numpy.testing.assert_array_equal(result, self.expected)

    def test_codes_of_8_bits(self):
        """Arrays of ml_dtypes, with types that share typestrs."""
        for typestr, name, expected in (("<V1", "float8_e4m3fn", 0x38), ("<f1", "float8_e5m2", 0x3C)):
            result = numpy.zeros((5, 2, 16), numpy.uint8)
            out = array_interface(result, typestr=typestr)
            with self.assertRaisesRegex(TypeError, f"q_out: its typestr is '{typestr}'"):
                self.desc.forward(self.x, out=out)
            out.dtype = types.SimpleNamespace(name=name)
            self.desc.forward(numpy.ones((5, 2, 16), numpy.float32), out=out, unrotated=True)
            self.assertTrue((result == expected).all())
        bits = numpy.zeros((5, 2, 1), numpy.uint8)
        scales = array_interface(bits, typestr="<V1")
        scales.dtype = types.SimpleNamespace(name="float8_e8m0fnu")
        self.desc.forward(
            numpy.full((5, 2, 16), 3.0, numpy.float32), out=out, unrotated=True,
            quant=librope.Quant(q_scales_out=scales))
        self.assertTrue((bits == 127 - 14).all() and (result == 0x7A).all())  # 2^-14, 49152

    def test_a_class_named_as_numpy_s_and_cupy_s(self):
        named = type("ndarray", (Interface,), {})
        interface, result = self.x.__array_interface__, numpy.zeros((5, 2, 16), numpy.float32)
        self.desc.forward(named("__array_interface__", **interface), out=array_interface(result))
        numpy.testing.assert_array_equal(result, self.expected)

    def test_refusals(self):
        for text, source in (
                ("read-only", array_interface(self.x, data=(self.x.__array_interface__["data"][0], True))),
                ("typestr is '<c8'", array_interface(self.x, typestr="<c8")),
                ("typestr is '>f4'", array_interface(self.x, typestr=">f4")),
                ("names no pointer", array_interface(self.x, data=None)),
                ("must be multiples", array_interface(self.x, strides=(257, 128, 8))),
        ):
            with self.subTest(text), self.assertRaisesRegex((TypeError, ValueError), text):
                self.desc.forward(source, out=source)

    def test_what_is_no_integer(self):
        """Python counts True as 1, and bytes as numbers."""
        x, address = self.x[:1], self.x.__array_interface__["data"][0]
        cases = [
            ("shape[0] is True: it must be an integer", dict(shape=(True, 2, 16))),
            ("shape[2] is 16.0", dict(shape=(1, 2, 16.0))),
            ("shape[1] is '2'", dict(shape=(1, "2", 16))),
            ("shape[0] is None", dict(shape=(None, 2, 16))),
            ("shape is None: it must be a tuple of integers", dict(shape=None)),
            ("shape is 3", dict(shape=3)),
            ("shape is b'123'", dict(shape=b"123")),
            ("strides[0] is False", dict(strides=(False, 128, 8))),
            ("strides[1] is 128.0", dict(strides=(256, 128.0, 8))),
            ("strides is 8", dict(strides=8)),
            ("data is b'12': it must be an address", dict(data=b"12")),
            ("data is 256", dict(data=256)),
            ("data is (256,)", dict(data=(256,))),
            ("data[0] is True", dict(data=(True, False))),
            ("data[0] is 4096.0", dict(data=(4096.0, False))),
            ("typestr is None: it must be a str", dict(typestr=None)),
            ("typestr is b'<f4'", dict(typestr=b"<f4")),
            ("shape[0] is", dict(shape=(numpy.bool_(True), 2, 16))),
        ]
        for text, entries in cases:
            for name in ("__array_interface__", "__cuda_array_interface__"):
                source = Interface(name, **{**array_interface(x, version=3).__array_interface__, **entries})
                source.device = types.SimpleNamespace(id=0)  # of the second interface
                if name.startswith("__cuda") and "stream" not in entries:
                    source.__cuda_array_interface__["stream"] = 1
                with self.subTest(text, name=name), self.assertRaisesRegex(
                        TypeError, "^rope_forward: q: its " + re.escape(text)):
                    self.read(source)
        for given in (None, [], "interface"):
            source = array_interface(x)
            source.__array_interface__ = given
            with self.subTest(given=given), self.assertRaisesRegex(TypeError, "__array_interface__ is .*: it must be a dict"):
                self.desc.forward(source, out=source)
        for missing in ("shape", "typestr", "data"):
            source = array_interface(x)
            del source.__array_interface__[missing]
            with self.subTest(missing=missing), self.assertRaisesRegex(TypeError, f"rope_forward: q: its .*{missing}|pointer"):
                self.desc.forward(source, out=source)
        source = Interface("__cuda_array_interface__", data=(address, False), shape=(1, 2, 16), typestr="<f4", version=3)
        source.device = types.SimpleNamespace(id=0)
        for error, stream in ((TypeError, True), (TypeError, 1.0), (TypeError, "1"), (ValueError, -1), (ValueError, 2**64)):
            source.__cuda_array_interface__["stream"] = stream
            with self.subTest(stream=stream), self.assertRaisesRegex(error, f"stream is {stream!r}: it must be"):
                self.read(source)

    def read(self, x):
        """Reads a tensor without a call, as if there were a GPU."""
        reader = _tensors.Reader("rope_forward", "q", x, None)
        reader.read(_abi.rope_args_t(), "q", x)

    def test_numbers_that_are_wrong(self):
        out = numpy.zeros((5, 2, 16), numpy.float32)
        for text, entries in (
                ("q has shape|q.shape", dict(shape=(-5, 2, 16))),
                ("q: its shape is .* and its strides are", dict(shape=(5, 2**62, 16))),
                ("q: its shape is .* (?:argument out of range|.* format requires)", dict(shape=(5, 2**63, 16))),
                ("q: its shape is .* and its strides are", dict(strides=(2**70, 128, 8))),
                ("q: its shape is .* at -0x10: ", dict(data=(-16, False))),
                ("q: its shape is .* at 0x1000", dict(data=(2**64, False))),
                ("q: its strides are .*: its shape .* needs one for each axis", dict(strides=(128, 8))),
                ("q: its strides are .*: its shape .* needs one for each axis", dict(strides=(256, 128, 8, 8))),
                ("q: it has 0 axes", dict(shape=(), strides=())),
                ("q: it has 5 axes", dict(shape=(1,) * 5, strides=(4,) * 5)),
        ):
            with self.subTest(text, **entries), self.assertRaisesRegex(ValueError, "^rope_forward: (?:" + text + ")"):
                self.desc.forward(array_interface(self.x, **entries), out=out)

    def test_byte_orders(self):
        for typestr in (">f2", ">f4", ">f8", ">i4", ">i8", ">V2"):
            source = array_interface(self.x, typestr=typestr)
            source.dtype = types.SimpleNamespace(name="bfloat16")
            for name in ("__array_interface__", "__cuda_array_interface__"):
                source = Interface(name, **{**source.__dict__.get(name, source.__dict__.get("__array_interface__"))})
                source.dtype, source.device = types.SimpleNamespace(name="bfloat16"), types.SimpleNamespace(id=0)
                with self.subTest(typestr, name=name), self.assertRaisesRegex(
                        TypeError, f"^rope_forward: q: its typestr is '{typestr}': librope reads the machine's byte order"):
                    self.read(source)
        for dtype in (">f2", ">f4", ">f8", ">i4"):
            foreign = numpy.dtype(dtype)
            for make in (lambda: make_desc(dtype=foreign), lambda: librope.SwigluDesc(dtype=foreign)):
                with self.subTest(dtype), self.assertRaisesRegex(
                        ValueError, f"dtype is '{dtype}': librope reads the machine's byte order only"):
                    make()
            with self.subTest(dtype), self.assertRaisesRegex(TypeError, "swiglu_forward: gate: its dtype.*byte order"):
                librope.swiglu(self.x.astype(foreign), self.x)
            with self.subTest(dtype), self.assertRaisesRegex(TypeError, "rope_forward: positions: its dtype is.*byte order"):
                self.desc.forward(self.x, positions=numpy.arange(5).astype(foreign))

    def test_the_name_must_fit_the_typestr(self):
        result = numpy.zeros((5, 2, 16), numpy.uint8)
        for typestr, name in (("<V2", "float8_e4m3fn"), ("<V1", "bfloat16"), ("<f1", "bfloat16"), ("<V1", "float32")):
            out = array_interface(result, typestr=typestr)
            out.dtype = types.SimpleNamespace(name=name)
            with self.subTest(typestr, name=name), self.assertRaisesRegex(TypeError, f"its typestr is '{typestr}'"):
                self.desc.forward(self.x, out=out)

    def test_buffers_and_ctypes_arrays_are_no_tensors(self):
        out = numpy.zeros((5, 2, 16), numpy.float32)
        for x in (memoryview(self.x), memoryview(self.x.astype(">f4")), bytearray(640), (ctypes.c_float * 16)(),
                  ctypes.c_float.__ctype_be__(), array.array("f", [1.0])):
            with self.subTest(type(x)), self.assertRaisesRegex(TypeError, "^rope_forward: q: it is a .*: it must be a tensor"):
                self.desc.forward(x, out=out)

    def test_empty_tensors_on_a_gpu(self):
        """An address of 0 is on no device."""
        empty = Interface("__cuda_array_interface__", data=(0, False), shape=(0, 2, 16), typestr="<f4", version=3)
        first = Interface("__cuda_array_interface__", data=(256, False), shape=(5, 2, 16), typestr="<f4", version=3)
        first.device = types.SimpleNamespace(id=1)
        reader, args = _tensors.Reader("rope_forward", "q", first, None), _abi.rope_args_t()
        for field, x in (("q", first), ("k", empty)):
            reader.read(args, field, x)
        self.assertEqual((args.k.data, args.k.shape[0], reader.ordinal), (None, 0, 1))
        with self.assertRaisesRegex(ValueError, "k: it is on cuda:0, the first tensor of the call on cpu"):
            self.desc.forward(self.x, empty)

    def test_the_device_of_a_cuda_interface(self):
        source = Interface("__cuda_array_interface__", data=(256, False), shape=(5, 2, 16), typestr="<f4", version=3)
        source.context = type("Context", (), {"device": type("Device", (), {"id": 3})})
        with self.assertRaisesRegex(ValueError, "rope_forward: q: it is on cuda:3: this RopeDesc is for cpu"):
            make_desc(device="cpu").forward(source, out=source)


    def test_a_cuda_interface_that_is_host_memory(self):
        source = Interface(
            "__cuda_array_interface__", shape=(5, 2, 16), typestr="<f4", version=3,
            data=(self.x.__array_interface__["data"][0], False))
        with self.assertRaisesRegex(ValueError, "rope_forward: q: its (memory|pointer)"):
            self.desc.forward(source, out=source)


class Immutable(Producer):
    """Imitates JAX's arrays, for machines without JAX."""

    __module__ = "jaxlib.stand_in"
    sharding = None

    def __init__(self, array):
        super().__init__(array)
        self.shape, self.dtype = array.shape, array.dtype

    def block_until_ready(self):
        return self


Array = type("Array", (Immutable,), {"__module__": "jaxlib.stand_in"})


class ImmutableTest(unittest.TestCase):
    def setUp(self):
        zeros = types.SimpleNamespace(zeros=lambda shape, dtype, device: Array(numpy.zeros(shape, dtype)))
        stand_in = mock.patch.dict(sys.modules, {"jax": types.SimpleNamespace(numpy=zeros)})
        stand_in.start()
        self.addCleanup(stand_in.stop)
        self.x = numpy.arange(5 * 2 * 16, dtype=numpy.float32).reshape(5, 2, 16) / 100
        self.desc = make_desc()
        self.expected = self.desc.forward(self.x)

    def test_a_new_output(self):
        x = Array(self.x)
        result = self.desc.forward(x)
        self.assertIs(type(result), Array)
        numpy.testing.assert_array_equal(result.array, self.expected)
        gate = librope.swiglu(x, x)
        numpy.testing.assert_array_equal(gate.array, librope.swiglu(self.x, self.x))

    def test_never_written_in_place(self):
        x, before = Array(self.x), self.x.copy()
        for field, call in (("q", lambda: self.desc.forward(x, out=x)),
                            ("q_out", lambda: self.desc.forward(x, out=Array(self.x))),
                            ("cos", lambda: self.desc.fill_tables(x, x)),
                            ("out", lambda: librope.swiglu(x, x, x)),
                            ("grad_up", lambda: librope.swiglu_backward(x, x, x, grad_up=x))):
            with self.subTest(field), self.assertRaisesRegex(
                    TypeError, f": {field}: a JAX array is immutable and cannot be written: give no output"):
                call()
        numpy.testing.assert_array_equal(self.x, before)


if __name__ == "__main__":
    unittest.main()
