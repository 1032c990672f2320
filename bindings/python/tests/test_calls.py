# SPDX-License-Identifier: Apache-2.0
# test_calls.py - calls through the builtins of librope_python.so: those that they make, those that they leave, and
# effects
from __future__ import annotations

import gc
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import librope
import numpy
import support
from librope import RopeDesc, SwigluDesc, _calls, _library

try:
    import torch
except ImportError:
    torch = None

is_quick = not _calls.why_ctypes
reads_torch = is_quick and torch is not None and hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
needs_builtins = unittest.skipUnless(is_quick, f"needs librope_python.so: {_calls.why_ctypes}")
needs_torch = unittest.skipUnless(reads_torch, "needs librope_python.so and torch 2.10")
FLOATS_OF_8_BITS = () if torch is None else (torch.float8_e4m3fn, torch.float8_e5m2)
FLOAT_OF_SCALES = getattr(torch, "float8_e8m0fnu", None)  # from torch 2.7 on
FORM = dict(head_dim=8, style="half", layout="thd", dtype="f32", theta=100.0)


def normal(*shape):
    return numpy.random.default_rng(len(shape)).standard_normal(shape).astype(numpy.float32)


def frameworks():
    yield lambda x: x.copy()
    if reads_torch:
        yield lambda x: torch.from_numpy(x.copy())


def only_builtins():
    """Inside this context, calls through ctypes fail."""
    failing = mock.Mock(side_effect=AssertionError("not by a builtin"))
    return mock.patch.multiple("librope._descriptor.Descriptor", _call_kept=failing, _handle_for=failing)


def meet_frameworks():
    for tensor in frameworks():
        RopeDesc(**FORM).forward(tensor(normal(1, 1, 8)))


def forms_of_scales():
    """The types of written scales, and whether a flag makes them powers of two."""
    yield from ((torch.float32, False), (torch.float32, True))
    if FLOAT_OF_SCALES is not None:
        yield FLOAT_OF_SCALES, False


def scaled(x, groups, code, form):
    """The scales that a call writes for x, and the codes."""
    dtype, power_of_two = form
    is_float = dtype is torch.float32
    scales, products = support.scaled(
        x.numpy(), groups, torch.finfo(code).max, 1e-10 if is_float else 0.0, power_of_two or not is_float)
    return torch.from_numpy(scales).to(dtype), torch.from_numpy(products).to(code)


def comparable(x):
    """NumPy lacks some types of torch."""
    if torch is not None and isinstance(x, torch.Tensor) and x.dtype in (
            *FLOATS_OF_8_BITS, FLOAT_OF_SCALES, torch.bfloat16):
        x = x.view(torch.int16 if x.dtype is torch.bfloat16 else torch.uint8)
    return numpy.asarray(x)


def equal(x, y):
    if isinstance(x, (list, tuple)):
        return len(x) == len(y) and all(map(equal, x, y))
    return x is y is None or numpy.array_equal(comparable(x), comparable(y))


class LoadingTest(unittest.TestCase):
    def describe(self, library):
        """Like python -m librope, but without torch: importing it takes seconds."""
        script = "import librope.__main__ as command; command.torch_description = str; command.main()"
        return subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "ROPE_LIBRARY": str(library)}, text=True, check=True,
            stdout=subprocess.PIPE, cwd=Path(librope.__file__).parents[1]).stdout

    def test_which_make_the_calls(self):
        file = Path(_library.loaded_path()).with_name("librope_python.so")
        self.assertEqual(is_quick, file.exists())
        self.assertIn("calls       by " + ("builtins" if is_quick else f"ctypes: {file}"), self.describe(_library.path))

    def test_a_library_without_builtins(self):
        for content in (None, "", "no library"):
            with tempfile.TemporaryDirectory() as folder:
                library = shutil.copy(_library.loaded_path(), folder)
                file = Path(folder, "librope_python.so")
                if content is not None:
                    file.write_text(content)
                self.assertIn(f"calls       by ctypes: {file}", self.describe(library))


# Imports librope in the main interpreter and in others, in the given order, and calls it in each.
IN_INTERPRETERS = """
import sys
try:
    import _interpreters
    make = lambda: _interpreters.create("legacy")
except ImportError:
    import _xxsubinterpreters as _interpreters
    make = lambda: _interpreters.create(isolated=False)
for place in sys.argv[2:]:
    if place == "main":
        exec(sys.argv[1])
    else:
        failure = _interpreters.run_string(make(), f"import sys; sys.path[:] = {sys.path}; place = 'other'\\n" + sys.argv[1])
        assert failure is None, failure
"""
IN_ONE = """
import ctypes, librope
from librope import _calls
class Array:
    def __init__(self, *values):
        self.values = (ctypes.c_float * 2)(*values)
        self.__array_interface__ = dict(
            data=(ctypes.addressof(self.values), False), shape=(1, 1, 2), typestr="<f4", version=3)
x, y = Array(3.0, 4.0), Array(0.0, 0.0)
librope.RopeDesc(head_dim=2, style="half", layout="thd", dtype="f32", theta=100.0).forward(x, out=y)
print(place, list(y.values), _calls.why_ctypes, flush=True)
for name in ("torch", "transformers") if place == "other" else ():
    try:
        getattr(librope, name)
        print("imported", name, flush=True)
    except ImportError as error:
        print(error, flush=True)
"""


class InterpretersTest(unittest.TestCase):
    def run_python(self, *arguments):
        process = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", *arguments], text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, cwd=Path(librope.__file__).parents[1])
        if "does not support loading in subinterpreters" in process.stdout:
            self.skipTest(process.stdout.splitlines()[-1])
        self.assertEqual(process.returncode, 0, process.stdout)
        return process.stdout.splitlines()

    def test_others_than_the_main_one(self):
        """They do not take the builtins from it, whichever comes first, and say why they have none. torch would fail
        in them with errors of its own."""
        for places in (("main", "other", "other"), ("other", "main", "other")):
            lines = self.run_python(IN_INTERPRETERS, IN_ONE, *places)
            for place in places:
                line = lines.pop(0)
                self.assertTrue(line.startswith(f"{place} [3.0, 4.0]"), line)
                if place == "other":
                    if is_quick:
                        self.assertIn("librope_python.so: it works in the main interpreter of the process alone", line)
                    for name in ("torch", "transformers"):
                        self.assertIn(f"librope.{name}: this is not the main interpreter of the process", lines.pop(0))
                elif is_quick:
                    self.assertEqual(line, "main [3.0, 4.0] ")
            self.assertEqual(lines, [])

    @needs_builtins
    def test_a_second_import(self):
        script = (
            "import sys, librope\n"
            "for name in [name for name in sys.modules if name.partition('.')[0] == 'librope']: del sys.modules[name]\n"
            "import librope\nprint(librope._calls.why_ctypes)")
        lines = self.run_python(script)
        self.assertRegex(lines[0], "librope_python.so: an earlier import of librope in this process has its builtins$")


@needs_builtins
class CallsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        meet_frameworks()

    def both(self, make):
        """make() returns tensors and a call with these. The results and the tensors after the call equal those of
        ctypes."""
        tensors, call = make()
        with only_builtins():
            results = call(*tensors)
        others, call = make()
        with support.through_ctypes():
            expected = call(*others)
        self.assertTrue(equal(results, expected), (results, expected))
        self.assertTrue(equal(tensors, others))

    def test_rotations(self):
        q, k, positions = normal(5, 3, 8), normal(5, 1, 8), numpy.array([4, 0, 3, 9, 1])
        cos, sin = normal(12, 4), normal(12, 4)
        desc = RopeDesc(**FORM)
        for tensor in frameworks():
            for run in (desc.forward, desc.backward):
                for call in (
                        lambda q, k, *_: run(q),
                        lambda q, k, positions, *_: run(q, k, positions=positions),
                        lambda q, k, *_: run(q, k, out=(q, k), position_offset=-3),
                        lambda q, k, positions, *_: run(q, k, out=[None, k], start_positions=positions[:1]),
                        lambda q, k, *_: run(None, k, out=k),
                        lambda q, k, *_: run(q, out=[q]),
                        lambda q, k, *_: run(q[::2], v=k[::2], unrotated=True),
                        lambda q, k, *_: run(q, v=k, v_unrotated=True, programmatic_launch=True),
                        lambda q, k, positions, cos, sin: run(q, cos=cos, sin=sin, positions=positions),
                        lambda q, k, positions, cos, sin: run(q, cos=cos[:5], sin=sin[:5], table_rows="by_token"),
                        lambda q, k, positions, cos, sin: run(q, angles=cos, positions=positions),
                        lambda q, k, positions, cos, sin: run(q, cu_seqlens=positions[1:3])):  # 0 3: without two tokens
                    self.both(lambda: ([*map(tensor, (q, k, positions, cos, sin))], call))

    def test_steps(self):
        desc = RopeDesc(norm="rms", norm_eps=1e-6, **FORM)
        for tensor in frameworks():
            for out in (None, [None, False, False], False):

                def make(tensor=tensor, out=out):
                    q, k, v = (tensor(normal(4, heads, 8)) for heads in (3, 2, 2))
                    caches = [tensor(numpy.zeros((3, 2, 2, 8), numpy.float32)) for _ in range(2)]
                    fault = tensor(numpy.zeros(2, numpy.int64))
                    cache = librope.Cache(*caches, slots=tensor(numpy.array([5, -1, 0, 77])), skip_slot_0=True)
                    norm = librope.Norm(q_weight=tensor(normal(8)), k_weight=tensor(normal(8)))

                    def call(q, k, v, *_):
                        if out is False:  # the only result is None
                            return desc.forward(None, k, out=False, norm=librope.Norm(), fault=fault,
                                                cache=cache._replace(v_cache=None))
                        return desc.forward(q, k, v, out=out, norm=norm, cache=cache, fault=fault, v_unrotated=True)

                    return [q, k, v, *caches, fault], call

                self.both(make)

    def test_pass(self):
        desc = RopeDesc(**{**FORM, "head_dim": 14, "rotary_dim": 8, "rotary_offset": 2})
        q, k, q_pass, k_pass = normal(5, 3, 8), normal(5, 1, 8), normal(5, 3, 6), normal(5, 1, 6)
        for tensor in frameworks():
            for call in (
                    lambda q, k, q_pass, k_pass, *_: desc.forward(q, k, input=librope.Input(q_pass, k_pass)),
                    lambda q, k, q_pass, *_: desc.forward(q, k, input=librope.Input(q_pass)),
                    lambda q, k, q_pass, k_pass, lengths, *_: desc.forward(
                        None, k, cu_seqlens=lengths, input=librope.Input(k_pass=k_pass)),
                    lambda q, k, q_pass, k_pass, lengths, out, *_: desc.forward(
                        q, out=out, input=librope.Input(q_pass)),
                    lambda q, k, q_pass, k_pass, lengths, out, cache, pass_cache: desc.forward(
                        q, k, out=(None, False), input=librope.Input(q_pass, k_pass), cache=librope.Cache(
                            cache, slots=lengths, k_pass_cache=pass_cache))):
                self.both(lambda: ([*map(tensor, (
                    q, k, q_pass, k_pass, numpy.array([0, 3]), numpy.zeros((5, 3, 14), numpy.float32),
                    numpy.zeros((2, 2, 1, 8), numpy.float32), numpy.zeros((2, 2, 1, 6), numpy.float32)))], call))

    def test_row_factors(self):
        desc = RopeDesc(**FORM)
        q, k, factor, by_head = normal(5, 3, 8), normal(5, 2, 8), normal(5), normal(5, 2)
        for tensor in frameworks():
            for run in (desc.forward, desc.backward):
                for call in (
                        lambda q, k, factor, _: run(q, input=librope.Input(q_row_factor=factor)),
                        lambda q, k, factor, by_head: run(q, k, out=(q, None), input=librope.Input(
                            q_row_factor=factor, k_row_factor=by_head)),
                        lambda q, k, factor, by_head: run(q, v=k, v_unrotated=True, input=librope.Input(
                            v_row_factor=by_head)),
                        lambda q, *_: run(q, input=librope.Input())):
                    self.both(lambda: ([*map(tensor, (q, k, factor, by_head))], call))

    def test_gating(self):
        desc = SwigluDesc(dtype="f32", alpha=1.5)
        gate, up, grad = normal(5, 6), normal(6, 5).T, normal(5, 7)[:, :6]
        scale, bias, rows = normal(5), normal(6), numpy.array([3])
        for tensor in frameworks():
            tensors = gate, up, grad, scale, bias, rows
            for call in (
                    lambda gate, up, *_: desc.forward(gate, up),
                    lambda gate, up, *_: desc.forward(gate, up, gate, programmatic_launch=True),
                    lambda gate, up, grad, scale, bias, rows: desc.forward(
                        gate, up, row_scale=scale, num_rows=rows, gate_bias=bias, up_bias=bias),
                    lambda gate, up, grad, *_: desc.backward(grad, gate, up),
                    lambda gate, up, grad, *_: desc.backward(grad, gate, up, grad_gate=grad, grad_up=False, out=up),
                    lambda gate, up, grad, scale, *_: desc.backward(grad, gate, up, row_scale=scale),
                    lambda gate, up, grad, scale, *_: desc.backward(
                        grad, gate, up, row_scale=scale, grad_row_scale=False)):
                self.both(lambda: ([*map(tensor, tensors)], call))

    def test_what_is_left(self):
        """ctypes makes each of these calls, or refuses it with an error of its own."""
        desc, x = RopeDesc(**FORM), normal(4, 3, 8)
        desc.forward(x)
        fixed, holes = x.copy(), numpy.zeros((4, 3, 8), [("a", "f4"), ("b", "i2")])["a"]
        fixed.flags.writeable = False
        for error, text, call in (
                (TypeError, "one of them must be given", lambda: desc.forward()),
                (ValueError, "q: it is read-only", lambda: desc.forward(fixed, out=fixed)),
                (ValueError, "strides", lambda: desc.forward(holes)),
                (TypeError, "byte order", lambda: desc.forward(x.astype(">f4"))),
                (ValueError, "axes", lambda: desc.forward(x.reshape(1, 1, 4, 3, 8))),
                (ValueError, "axes", lambda: desc.forward(x, positions=numpy.array(3))),
                (TypeError, "mask", lambda: desc.forward(numpy.ma.masked_array(x))),
                (TypeError, "it is a builtins.list", lambda: desc.forward([1.0])),
                (ValueError, "out has 2 tensors", lambda: desc.forward(x, out=[x, x])),
                (ValueError, "out is False for q", lambda: desc.forward(x, out=False)),
                (TypeError, "must be a librope.Norm", lambda: desc.forward(x, norm=(None,) * 4)),
                (TypeError, "must be a librope.Cache", lambda: desc.forward(x, cache=(None,) * 12)),
                (TypeError, "must be a librope.Quant", lambda: desc.forward(x, quant=(None,) * 11)),
                (TypeError, "must be a librope.Input", lambda: desc.backward(x, input=(None,) * 5)),
                (TypeError, "real number", lambda: desc.forward(x, quant=librope.Quant(scale_floor="0"))),
                (Exception, "", lambda: desc.forward(x, cache=tuple.__new__(librope.Cache, ()))),
                (Exception, "", lambda: desc.forward(x, norm=tuple.__new__(librope.Norm, (x,)))),
                (Exception, "", lambda: desc.forward(x, quant=tuple.__new__(librope.Quant, (x,)))),
                (Exception, "", lambda: desc.forward(x, input=tuple.__new__(librope.Input, (x,)))),
                (TypeError, "position_offset", lambda: desc.forward(x, position_offset=True)),
                (ValueError, "position_offset", lambda: desc.forward(x, position_offset=2**63)),
                (ValueError, "table_rows", lambda: desc.forward(x, table_rows=2**40)),
                (ValueError, "table_rows", lambda: desc.forward(x, table_rows="by_row")),
                (librope.InvalidArgument, "k has shape|k.shape", lambda: desc.forward(x, x[:3], out=[x, None]))):
            before = x.copy()
            with self.subTest(text):
                self.assertRaisesRegex(error, text, call)
            numpy.testing.assert_array_equal(x, before)

        class Array(numpy.ndarray):
            pass

        self.assertIs(type(desc.forward(x.view(Array))), numpy.ndarray)
        gpu = RopeDesc(device="cpu", **FORM)
        gpu.close()
        self.assertRaisesRegex(ValueError, "closed", gpu.forward, x)

    def test_references_and_memory(self):
        desc, x, positions = RopeDesc(num_threads=1, **FORM), normal(4, 3, 8), numpy.arange(4)
        cache = librope.Cache(k_cache=numpy.zeros((2, 2, 1, 8), numpy.float32), slots=positions)
        factor = librope.Input()
        lists = [normal(4, 3, 8), normal(4, 1, 8)]
        for tensor in frameworks():
            x, positions = tensor(x) if not isinstance(x, numpy.ndarray) else x, positions
        watched = [desc, x, positions, cache, cache.k_cache, factor, lists, None, NotImplemented, False, desc._handles]

        def work(count):
            for _ in range(count):
                desc.forward(x, positions=positions)
                desc.forward(x, out=x)
                desc.forward(*lists, out=lists)
                desc.forward(None, lists[1], out=False, cache=cache)
                desc.forward(x, input=factor, quant=librope.Quant())
                _calls.rotate()
                for wrong in (dict(position_offset=2**63), dict(table_rows=9), dict(out=[x, x])):
                    try:
                        desc.forward(x, **wrong)
                    except ValueError:
                        pass

        work(100)
        gc.collect()
        counts, blocks = [*map(sys.getrefcount, watched)], sys.getallocatedblocks()
        work(2000)
        gc.collect()
        self.assertLess(max(abs(sys.getrefcount(x) - count) for x, count in zip(watched, counts)), 100)
        self.assertLess(sys.getallocatedblocks() - blocks, 500)

    def test_threads_and_a_descriptor_that_is_closed(self):
        failures = []

        def work(seed):
            x = normal(4, 3, 8) * seed
            for i in range(300):
                desc = shared[0]
                try:
                    actual = desc.forward(x, position_offset=seed)
                except ValueError as error:
                    if "closed" not in str(error):
                        failures.append(error)
                    continue
                if not numpy.array_equal(actual, expected[seed]):
                    failures.append((seed, i))
                if i % 50 == seed:
                    shared[0] = RopeDesc(num_threads=1, **FORM)
                    desc.close()

        shared = [RopeDesc(num_threads=1, **FORM)]
        expected = [shared[0].forward(normal(4, 3, 8) * seed, position_offset=seed) for seed in range(8)]
        support.run_threads(8, work)
        self.assertEqual(failures, [])

    def test_the_first_call_of_any_kind_teaches_the_builtins(self):
        script = (
            "import numpy, librope\nfrom librope import _calls\n"
            "desc = librope.RopeDesc(head_dim=8, style='half', layout='thd', dtype='f32')\n"
            "x, table = numpy.ones((2, 1, 8), 'f4'), numpy.ones((2, 4), 'f4')\n"
            "desc.forward(x, cos=table, sin=table, table_rows='by_token')\n"
            "desc._call_kept = desc._handle_for = None\n"
            "desc.forward(x, cos=table, sin=table, table_rows='by_token')")
        subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(librope.__file__).parents[1])

    def test_an_interrupt_is_raised(self):
        desc, x = RopeDesc(**FORM), normal(4, 3, 8)
        desc._handles = {}
        with mock.patch.object(RopeDesc, "_handle_on", side_effect=KeyboardInterrupt):
            self.assertRaises(KeyboardInterrupt, desc.forward, x)
        desc.forward(x)


@needs_torch
class TorchTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        meet_frameworks()

    def test_what_is_left(self):
        desc, x = RopeDesc(**FORM), torch.randn(4, 3, 8)
        for error, text, call in (
                (ValueError, "q: it requires grad", lambda: desc.forward(x.clone().requires_grad_())),
                (ValueError, "q_out: it requires grad", lambda: desc.forward(x, out=torch.nn.Parameter(x.clone()))),
                (ValueError, "lazily negated", lambda: desc.forward(torch._neg_view(x))),
                (TypeError, "layout", lambda: desc.forward(x.to_sparse())),
                (TypeError, "meta", lambda: desc.forward(x.to("meta"))),
                (TypeError, "dtype is int8", lambda: desc.forward(x.to(torch.int8))),
                (TypeError, "traced", lambda: torch.func.vmap(desc.forward)(torch.stack([x, x])))):
            with self.subTest(text):
                self.assertRaisesRegex(error, text, call)
        with torch.no_grad(), only_builtins():
            desc.forward(torch.nn.Parameter(x.clone()))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, x)
            self.assertRaisesRegex(ValueError, "tangent", desc.forward, dual)

    def test_versions(self):
        desc = RopeDesc(**FORM)
        cache = librope.Cache(k_cache=torch.zeros(2, 2, 1, 8), slots=torch.arange(4))
        q, k, fault = torch.randn(4, 3, 8), torch.randn(4, 1, 8), torch.zeros(2, dtype=torch.int64)
        with only_builtins():
            desc.forward(q, k, out=[q, None], cache=cache, fault=fault)
            self.assertEqual([x._version for x in (q, k, cache.k_cache, cache.slots, fault)], [1, 0, 1, 0, 1])
            with torch.inference_mode():  # this tensor has no version, the other has one
                inferred = torch.randn(4, 1, 8)
                desc.forward(q, inferred, out=[q, inferred])
            self.assertEqual(q._version, 2)

    def test_codes_of_8_bits(self):
        """Codes of torch's dtypes, in outputs and caches."""
        q_scale, by_head, slots = torch.tensor([0.37]), torch.tensor([0.02, 3.0]), torch.tensor([5, -1, 0, 2])
        sizes = torch.tensor([1e-4, 1.0, 50.0, 4e5])[:, None, None]
        q, k, v = (torch.randn(4, heads, 8) * sizes for heads in (3, 2, 2))
        for data in (torch.float32, torch.bfloat16):
            desc = RopeDesc(**{**FORM, "dtype": data}, quant_rounding="first")
            inputs = [x.to(data) for x in (q, k, v)]
            outputs = desc.forward(*inputs, v_unrotated=True)
            for dtype, multiplies in itertools.product(FLOATS_OF_8_BITS, (False, True)):

                def codes(x, scale):
                    top = torch.finfo(dtype).max
                    return (x.float() * (scale if multiplies else 1 / scale)[:, None]).clamp(-top, top).to(dtype)

                def make():
                    def call(out, k_cache, v_cache, amax):
                        quant = librope.Quant(
                            q_scale=q_scale, k_scale=by_head, amax_out=amax, scale_multiplies=multiplies)
                        return desc.forward(
                            *inputs, out=[out, None, False], v_unrotated=True, quant=quant,
                            cache=librope.Cache(k_cache, v_cache, slots=slots))

                    zeros = torch.zeros(3, 2, 2, 8, dtype=dtype)
                    return [torch.zeros(4, 3, 8, dtype=dtype), zeros, zeros.clone().transpose(1, 2), torch.zeros(3)], call

                CallsTest.both(self, make)
                tensors, call = make()
                with only_builtins():
                    results = call(*tensors)
                out, k_cache, v_cache, amax = tensors
                self.assertIs(results[0], out)
                self.assertTrue(equal(out, codes(outputs[0], q_scale)))
                self.assertTrue(equal(results[1], outputs[1]))
                self.assertEqual([x._version for x in tensors], [1] * 4)
                for cache, x, scale in ((k_cache, outputs[1], by_head), (v_cache, outputs[2], torch.ones(1))):
                    rows = torch.zeros(6, 2, 8, dtype=torch.uint8)
                    for token in (0, 2, 3):
                        rows[slots[token]] = codes(x[token], scale).view(torch.uint8)
                    self.assertTrue(equal(cache.view(torch.uint8).reshape(6, 2, 8), rows))
                self.assertEqual(amax.tolist(), [x.abs().max() for x in outputs])  # the fourth token is the largest

    def test_written_scales(self):
        """Scales beside outputs and caches, and inside of a cache's rows."""
        slots = torch.tensor([5, -1, 0, 2])
        sizes = torch.tensor([1e-4, 1.0, 50.0, 4e5])[:, None, None]
        q, k, v = (torch.randn(4, heads, 8) * sizes for heads in (3, 2, 2))
        desc = RopeDesc(**FORM)
        outputs = desc.forward(q, k, v, v_unrotated=True, quant=librope.Quant())
        for code, (scale, power_of_two) in itertools.product(FLOATS_OF_8_BITS, forms_of_scales()):
            end = 8 + 4 * scale.itemsize

            def make():
                rows = torch.arange(3 * 2 * 2 * (end + 4)).to(torch.uint8).reshape(3, 2, 2, -1)

                def call(out, q_scales, rows, v_cache, v_scales):
                    k_cache, k_scales = rows[..., :8].view(code), rows[..., 8:end].view(scale)
                    return desc.forward(
                        q, k, v, out=[out, None, False], v_unrotated=True,
                        cache=librope.Cache(k_cache, v_cache, slots=slots, k_scales=k_scales, v_scales=v_scales),
                        quant=librope.Quant(q_scales_out=q_scales, power_of_two=power_of_two))

                return [torch.zeros(4, 3, 8, dtype=code), torch.zeros(2, 3, 4, dtype=scale).permute(2, 1, 0), rows,
                        torch.zeros(3, 2, 2, 8, dtype=code), torch.zeros(3, 2, 2, 1)], call

            CallsTest.both(self, make)
            tensors, call = make()
            rows = tensors[2].clone().flatten(0, 1)
            with only_builtins():
                results = call(*tensors)
            self.assertTrue(equal(results[1], outputs[1]))
            out, q_scales, k_rows, v_cache, v_scales = tensors
            q_expected, k_expected = (scaled(x, groups, code, (scale, power_of_two)) for x, groups in (
                (outputs[0], 2), (outputs[1], 4)))
            v_expected = scaled(outputs[2], 1, code, (torch.float32, power_of_two))
            self.assertTrue(equal((q_scales, out), q_expected))
            v_rows = [torch.zeros(6, *x.shape[1:]).to(x.dtype) for x in v_expected]
            for token in (0, 2, 3):
                rows[slots[token], :, :8] = k_expected[1][token].view(torch.uint8)
                rows[slots[token], :, 8:end] = k_expected[0][token].view(torch.uint8)
                for x, expected in zip(v_rows, v_expected):
                    x.view(torch.uint8)[slots[token]] = expected[token].view(torch.uint8)
            self.assertTrue(equal(k_rows.flatten(0, 1), rows))
            self.assertTrue(equal((v_scales.flatten(0, 1), v_cache.flatten(0, 1)), v_rows))
            self.assertEqual([x._version for x in tensors], [1, 1, 2, 1, 1])

    def test_codes_of_what_is_no_number(self):
        x = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e30, -1e30, 1.0]).reshape(1, 1, 8)
        for dtype, expected in zip(FLOATS_OF_8_BITS, ([0x7F, 0x7E, 0xFE, 0, 0x80, 0x7E, 0xFE, 0x38],
                                                      [0x7F, 0x7B, 0xFB, 0, 0x80, 0x7B, 0xFB, 0x3C])):
            out = torch.zeros(1, 1, 8, dtype=dtype)
            with only_builtins():
                RopeDesc(**FORM).forward(x, out=out, unrotated=True)
            self.assertEqual(out.view(torch.uint8).flatten().tolist(), expected)

    def test_codes_without_a_scale_and_of_values_that_are_not_rounded_first(self):
        x, factor = torch.randn(4, 3, 8), torch.tensor([0.5, 2.0, 3.0, 7.0])
        for dtype in FLOATS_OF_8_BITS:
            out, half = torch.empty(4, 3, 8, dtype=dtype), x.bfloat16()
            wanted = (RopeDesc(**FORM).forward(half.float()) * factor[:, None, None]).to(dtype)
            with only_builtins():
                RopeDesc(**{**FORM, "dtype": torch.bfloat16}).forward(
                    half, out=out, input=librope.Input(q_row_factor=factor))
            self.assertTrue(equal(out, wanted))

    def test_modes_and_traces_see_calls_of_librope_torch(self):
        from torch.overrides import TorchFunctionMode
        from torch.utils._python_dispatch import TorchDispatchMode
        from librope.torch import apply_rotary, swiglu

        seen = []

        class Dispatch(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                seen.append(function)
                return function(*args, **(kwargs or {}))

        class Function(TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                seen.append(function)
                return function(*args, **(kwargs or {}))

        def both(x):
            return swiglu(apply_rotary(x, style="half", layout="thd", theta=100.0), x)

        x = torch.randn(4, 3, 8)
        operators = torch.ops.librope.rotate.default, torch.ops.librope.swiglu.default
        for mode in (Dispatch, Function):
            seen.clear()
            with mode():
                self.assertTrue(torch.equal(both(x), both(x)))
            for operator in operators:
                self.assertEqual(seen.count(operator), 2, mode)
        with torch.no_grad():
            traced = torch.jit.trace(both, (x,))
        other = torch.randn(4, 3, 8)
        self.assertTrue(torch.equal(traced(other), both(other)))

    def test_with_a_default_device(self):
        with torch.device("cpu"):
            x = torch.randn(4, 3, 8)
            self.assertEqual(RopeDesc(**FORM).forward(x).shape, x.shape)

    def test_under_torch_compile(self):
        desc, x = RopeDesc(**FORM), torch.randn(4, 3, 8)
        compiled = torch.compile(lambda x: desc.forward(x * 2) + 1, backend="eager")
        for _ in range(2):
            self.assertTrue(torch.equal(compiled(x), desc.forward(x * 2) + 1))

    def test_a_profiler_sees_the_operators(self):
        from librope.torch import apply_rotary

        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            apply_rotary(torch.randn(4, 3, 8), style="half", layout="thd", theta=100.0)
        self.assertIn("librope::rotate", [event.key for event in profile.key_averages()])


class GroupsTest(unittest.TestCase):
    """Groups that this version does not serve are refused by name, with builtins and with ctypes."""

    def test_quant_and_input(self):
        desc, x, one = RopeDesc(**FORM), normal(4, 3, 8), numpy.ones(1, numpy.float32)
        for name, group in (("quant.k_pass_scale", librope.Quant(k_pass_scale=one)),
                            ("input.k_pass", librope.Input(k_pass=x)), ("input.q_pass", librope.Input(q_pass=x))):
            with self.assertRaisesRegex(librope.InvalidArgument, f"{name} is set"):
                desc.forward(x, **{name.partition(".")[0]: group})
        for name, group in (("quant.q_scale", librope.Quant(q_scale=one)),
                            ("quant.amax_out", librope.Quant(amax_out=normal(3)))):
            with self.assertRaisesRegex(librope.InvalidArgument, name + " is set: (neither|nothing) .* has 8 bits"):
                desc.forward(x, quant=group)
        for name, group in (("quant.scale_floor", librope.Quant(scale_floor=1.0)),
                            ("quant.flags", librope.Quant(power_of_two=True)),
                            ("quant.q_scales_out", librope.Quant(q_scales_out=normal(4, 3, 1)))):
            with self.assertRaisesRegex(librope.InvalidArgument, f"rope_forward: {name} is "):
                desc.forward(x, quant=group)
        with self.assertRaisesRegex(TypeError, "must be a librope.Quant"):
            desc.forward(x, quant=librope.Norm())
        pages = numpy.zeros((2, 2, 1, 8), numpy.float32)
        for name in ("k_scales", "k_pass_scales", "k_pass_cache"):
            cache = librope.Cache(pages, slots=numpy.arange(4), **{name: pages})
            with self.assertRaisesRegex(librope.InvalidArgument, f"cache.{name} is set"):
                desc.forward(None, x[:, :1], cache=cache)

    def test_row_factors(self):
        desc, x, factor = RopeDesc(**FORM), normal(4, 3, 8), normal(4)
        for run in (desc.forward, desc.backward):
            numpy.testing.assert_array_equal(
                run(x, input=librope.Input(q_row_factor=factor)), run(x) * factor[:, None, None])

    def test_gradients_of_norms(self):
        x, given, weight = normal(5, 3, 8), normal(5, 3, 8), normal(8)
        desc = RopeDesc(**FORM, norm="rms", norm_eps=1e-3)
        rows, by_head = numpy.zeros((2, 8), numpy.float32), numpy.zeros((1, 3, 8), numpy.float32)
        result = desc.backward(
            given, unrotated=True, norm=librope.NormGradient(q_in=x, q_weight=weight, grad_q_weight=rows))
        inverse = 1 / numpy.sqrt((x * x).mean(-1, keepdims=True) + 1e-3)
        normed, weighed = x * inverse, given * weight
        wanted = (weighed - normed * (weighed * normed).mean(-1, keepdims=True)) * inverse
        numpy.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)
        terms = given * normed
        numpy.testing.assert_allclose(
            rows, [terms[:3].sum((0, 1)), terms[3:].sum((0, 1))], rtol=1e-4, atol=1e-5)
        held = normal(5, 3, 8)
        out = held.copy()
        desc.backward(given, unrotated=True, out=out, accumulate=True, norm=librope.NormGradient(
            q_in=x, q_weight=weight, grad_q_weight=by_head))
        numpy.testing.assert_allclose(out, held + wanted, rtol=1e-4, atol=1e-5)
        numpy.testing.assert_allclose(by_head[0], terms.sum(0), rtol=1e-4, atol=1e-5)
        self.assertIn("norm", desc.explain(given, unrotated=True, norm=librope.NormGradient(q_in=x)))
        with self.assertRaisesRegex(TypeError, "must be a librope.NormGradient"):
            desc.backward(given, norm=librope.Norm())
        with self.assertRaisesRegex(TypeError, "must be a librope.Norm$"):
            desc.forward(given, norm=librope.NormGradient())
        with self.assertRaisesRegex(librope.InvalidArgument, "norm.q_in is absent"):
            desc.backward(given, norm=librope.NormGradient())
        with self.assertRaisesRegex(librope.InvalidArgument, "norm is NULL"):
            desc.backward(given)

    def test_accumulated_gradients(self):
        desc, q, k, factor = RopeDesc(**FORM), normal(4, 3, 8), normal(4, 2, 8), normal(4)
        for keywords in ({}, {"input": librope.Input(q_row_factor=factor)}, {"unrotated": True}):
            with self.subTest(**keywords):
                held = normal(4, 3, 8), normal(4, 2, 8)
                out = tuple(x.copy() for x in held)
                for times in (1, 2):  # the second call uses the args that the first one kept
                    result = desc.backward(q, k, out=out, accumulate=True, **keywords)
                    self.assertIs(result[0], out[0])
                for x, before, grad in zip(out, held, desc.backward(q, k, **keywords)):
                    numpy.testing.assert_array_equal(x, before + grad + grad)
        self.assertIn("rotation", desc.explain(q, k, out=out, accumulate=True))
        for arguments, words in (
                ((q,), "out is None for q"), ((q, k, None), "out is None for q"),
                ((None, k), "out is None for k")):
            with self.subTest(words), self.assertRaisesRegex(ValueError, words):
                desc.backward(*arguments, accumulate=True)
        with self.assertRaisesRegex(librope.InvalidArgument, "q_out is absent: with ROPE_FLAG_ACCUMULATE"):
            desc.backward(q, out=q, accumulate=True)
        with self.assertRaisesRegex(ValueError, "out is None for q"):
            desc.explain(q, accumulate=True)

    @unittest.skipIf(torch is None, "needs torch")
    def test_of_the_operator(self):
        from librope import _torch_operators as operators

        key, x, one = RopeDesc(**FORM)._key, torch.randn(4, 3, 8), torch.ones(1)
        for name, flags, keywords in (
                ("quant.q_scale", 0, dict(q_scale=one)), ("quant.amax_out", 0, dict(amax_out=torch.zeros(3))),
                ("quant.scale_floor", 0, dict(scale_floor=0.5)), ("quant.flags", operators.POWER_OF_TWO, {}),
                ("input.q_pass", 0, dict(q_pass=x)),
                ("k_pass_cache", 0, dict(k_pass_cache=torch.zeros(2, 2, 3, 8), slots=torch.arange(4)))):
            with self.subTest(name, **keywords), self.assertRaisesRegex(Exception, name):
                torch.ops.librope.step(key, None, None, None, x, None, None, False, flags=flags, **keywords)
        # Every possible argument.
        given = [torch.randn(4, 3, 8) for _ in range(41)]
        references, tensors = [*map(sys.getrefcount, given)], iter(given)
        arguments = [
            key if x.name == "desc" else next(tensors) if "Tensor" in str(x.type) else 0.5 if x.name == "scale_floor" else
            False if str(x.type) == "bool" else 0 for x in torch.ops.librope.step.default._schema.arguments]
        self.assertEqual(len(arguments), 47)
        for _ in range(10):
            self.assertRaisesRegex(Exception, "norm is set", torch.ops.librope.step, *arguments)
        del arguments
        self.assertLessEqual(max(now - then for now, then in zip(map(sys.getrefcount, given), references)), 1)
        torch.library.opcheck(torch.ops.librope.step.default, (
            key, None, None, None, x, None, None, False), test_utils=("test_schema", "test_faketensor"))

    @unittest.skipIf(torch is None, "needs torch")
    def test_codes_and_factors_of_the_operator(self):
        from librope import _torch_operators as operators

        key, x, scale, factor = RopeDesc(**FORM)._key, torch.randn(4, 3, 8), torch.tensor([0.3]), torch.rand(4)
        y = RopeDesc(**FORM).forward(x) * factor[:, None, None]
        for dtype in FLOATS_OF_8_BITS:
            for flags, factor_of_codes in ((0, 1 / scale), (operators.SCALE_MULTIPLIES, scale)):
                out, amax = torch.empty(4, 3, 8, dtype=dtype), torch.zeros(3)
                torch.ops.librope.step(
                    key, x, None, None, out, None, None, False, flags=flags, q_scale=scale, amax_out=amax,
                    q_row_factor=factor)
                self.assertTrue(equal(out, (y * factor_of_codes).to(dtype)))
                self.assertEqual(amax.tolist(), [y.abs().max(), 0, 0])
            for form in forms_of_scales():
                codes, scales = torch.zeros(4, 3, 8, dtype=dtype), torch.zeros(4, 3, 2, dtype=form[0])
                as_bytes = operators.as_bytes(scales)
                k_cache, k_scales = torch.zeros(2, 2, 3, 8, dtype=dtype), torch.zeros(2, 2, 3, 4, dtype=form[0])
                torch.ops.librope.step(
                    key, x, x, None, codes, None, None, False, flags=operators.POWER_OF_TWO if form[1] else 0,
                    q_row_factor=factor, q_scales_out=as_bytes, k_cache=k_cache, k_scales=k_scales,
                    slots=torch.arange(4))
                self.assertTrue(equal((scales, codes), scaled(y, 2, dtype, form)))
                self.assertTrue(equal(
                    (k_scales.flatten(0, 1), k_cache.flatten(0, 1)), scaled(RopeDesc(**FORM).forward(x), 4, dtype, form)))
        grad = x.clone()
        torch.ops.librope.step(key, None, None, None, grad, None, None, True, q_row_factor=factor)
        self.assertTrue(equal(grad, RopeDesc(**FORM).backward(x) * factor[:, None, None]))


if __name__ == "__main__":
    unittest.main()
