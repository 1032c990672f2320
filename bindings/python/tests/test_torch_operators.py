# SPDX-License-Identifier: Apache-2.0
# test_torch_operators.py - torch.ops.librope: keys, other processes, and both kinds of kernels
from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

import numpy
import support

torch = support.needs("torch")

import librope  # noqa: E402
import librope.torch  # noqa: E402
from librope import RopeDesc, SwigluDesc, _abi, _calls, _library, _torch_operators  # noqa: E402
from librope.torch import apply_rotary, swiglu  # noqa: E402

torch.manual_seed(20261125)
HERE = Path(__file__).resolve().parent
FORM = dict(style="half", layout="bshd", theta=10000.0)
is_native = _torch_operators.why_python is None
VERSION = _abi.ROPE_VERSION_MAJOR * 10000 + _abi.ROPE_VERSION_MINOR * 100 + _abi.ROPE_VERSION_PATCH


def run_python(script, *arguments, **environment):
    environment = {**os.environ, **environment}
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", script, *map(str, arguments)], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, cwd=HERE)
    if result.returncode != 0:
        raise AssertionError(result.stdout)
    return result.stdout


def pages():
    """Pages of resident memory."""
    return int(Path("/proc/self/statm").read_text().split()[1])


# Runs as if the package had no librope_torch.so.
WITHOUT = """
from librope import _library
_library.torch_operators_path = lambda: "/nonexistent/librope_torch.so"
"""


class KernelsTest(unittest.TestCase):
    def test_which_are_used(self):
        path = Path(_library.torch_operators_path())
        version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
        if not path.exists():
            self.assertIn(str(path), _torch_operators.why_python)
        elif version >= (2, 10):
            self.assertIsNone(_torch_operators.why_python)
        else:
            self.assertIn("this torch has no", _torch_operators.why_python)
        text = run_python("import torch; from librope.__main__ import main; main()")
        self.assertIn("torch       " + torch.__version__, text)
        self.assertIn("C++" if is_native else "Python: ", text)

    def test_a_library_that_is_none(self):
        for content in ("", "no library"):
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "librope_torch.so").write_text(content)
                script = WITHOUT.replace("/nonexistent", folder) + (
                    "import librope.torch; print(librope.torch.operators.why_python)")
                self.assertIn(f"{folder}/librope_torch.so", run_python(script))

    def test_threads_that_make_one_descriptor(self):
        x, failures = torch.randn(2, 5, 3, 16), []

        def work(number):
            for i in range(200):
                theta = 100.0 + i // 10  # all threads use it at about the same time
                actual = apply_rotary(x, style="half", layout="bshd", theta=theta, position_offset=number)
                with librope.RopeDesc(head_dim=16, dtype="f32", style="half", layout="bshd", theta=theta) as desc:
                    if not torch.equal(actual, desc.forward(x, position_offset=number, stream=0)):
                        failures.append((number, i))

        support.run_threads(8, work)
        self.assertEqual(failures, [])

    def test_threads_with_more_descriptors_than_are_kept(self):
        """Each descriptor is dropped and made again many times, while other threads call it."""
        x, gate, failures = torch.randn(2, 5, 3, 16), torch.randn(5, 6), []
        thetas, alphas = numpy.geomspace(10.0, 1e6, 600), numpy.linspace(0.5, 2.0, 300)
        ropes = [RopeDesc(head_dim=16, dtype="f32", **{**FORM, "theta": theta})._key for theta in thetas]
        gates = [SwigluDesc(dtype="f32", alpha=alpha)._key for alpha in alphas]
        positions = numpy.arange(5)[:, None]
        rotated = [support.rotate(x, positions, support.frequencies(16, theta), "half") for theta in thetas]
        gated = [support.swiglu(gate, gate, alpha=alpha) for alpha in alphas]

        def work(number):
            order = numpy.random.default_rng(number)
            for _ in range(2000):
                i, j = int(order.integers(len(ropes))), int(order.integers(len(gates)))
                out, y = torch.full_like(x, torch.nan), torch.full_like(gate, torch.nan)
                out.copy_(torch.ops.librope.rotate(ropes[i], x, None, None, False)[0])
                torch.ops.librope.swiglu_out(gates[j], gate, gate, y)
                if not (numpy.allclose(out, rotated[i], atol=1e-5) and numpy.allclose(y, gated[j], atol=1e-5)):
                    failures.append((number, i, j))

        support.run_threads(8, work)
        self.assertEqual(failures, [])

    def test_ever_new_descriptors(self):
        """Each descriptor serves one call. Those of the operators are dropped, too."""
        x, gate = torch.randn(1, 1, 1, 16), torch.randn(1, 4)

        def call(number):
            with RopeDesc(head_dim=16, dtype="f32", **{**FORM, "theta": 100.0 + number}) as desc:
                desc.forward(x)
            with SwigluDesc(dtype="f32", alpha=1.0 + number * 2.0**-20) as desc:
                desc.forward(gate, gate)

        for number in range(2000):
            call(number)
        before = pages()
        for number in range(2000, 32000):
            call(number)
        self.assertLess((pages() - before) * 4096 / 30000, 100)  # bytes; a descriptor has 5 KB

    def test_memory_stays_flat(self):
        q, k, positions = torch.randn(2, 2, 16), torch.randn(2, 1, 16), torch.arange(2)
        cache, slots = torch.zeros(2, 2, 1, 16), torch.arange(2)
        key = RopeDesc(head_dim=16, dtype="f32", **{**FORM, "layout": "thd"})._key
        gating = SwigluDesc(dtype="f32")._key
        operators = torch.ops.librope
        refused = (lambda: operators.rotate(key, q, k[:1], None, False),
                   lambda: operators.rotate("rope:00", q, k, None, False),
                   lambda: operators.rotate(key, q[None, None], k, None, False),
                   lambda: operators.swiglu_backward(gating, q, q, q, 7))

        def call():
            operators.rotate(key, q, k, None, False, positions)
            operators.rotate_(key, q, k, None, True, positions)
            operators.step(key, None, k, None, q, None, None, False, positions, k_cache=cache, slots=slots)
            operators.swiglu_out(gating, q, q, torch.empty_like(q))
            operators.swiglu_backward(gating, q, q, operators.swiglu(gating, q, q), 3)
            for function in refused:
                with self.assertRaises(Exception):
                    function()

        for _ in range(300):
            call()
        before = pages()
        for _ in range(2000):
            call()
        self.assertLess((pages() - before) * 4096 / 2000, 400)  # bytes per round; tensors have 200 or more

    @unittest.skipUnless(is_native, "the kernels are those of Python")
    def test_without_the_library(self):
        """The tests of torch also run on the kernels of Python."""
        script = WITHOUT + (
            "import unittest, test_torch\n"
            "assert test_torch.librope.torch.operators.why_python.startswith('/nonexistent/librope_torch.so')\n"
            "unittest.main(None, argv=['', 'test_torch', 'test_gating_codes.TorchTest'])\n")
        self.assertIn("OK", run_python(script))


_watching = []  # descriptors that the table keeps are destroyed through these functions, at any time


@contextlib.contextmanager
def watched_creations(before):
    """Inside this context, before(config) is called ahead of each creation of a RopeDesc by an operator. Yields the
    addresses of those that were created, and of those that still live."""
    functions, created, live = _torch_operators.functions, [], set()
    create_type = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(_abi.rope_config_t), ctypes.POINTER(ctypes.c_void_p))
    destroy_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    addresses = functions.rope_desc_create, functions.rope_desc_destroy
    create, destroy = create_type(addresses[0]), destroy_type(addresses[1])

    def watched_create(config, desc):
        before(config.contents)
        status = create(config, desc)
        created.append(desc[0])
        live.add(desc[0])
        return status

    def watched_destroy(desc):
        live.remove(desc)
        destroy(desc)

    callbacks = create_type(watched_create), destroy_type(watched_destroy)
    _watching.append(callbacks)
    functions.rope_desc_create, functions.rope_desc_destroy = (
        ctypes.cast(callback, ctypes.c_void_p).value for callback in callbacks)
    try:
        yield created, live
    finally:
        functions.rope_desc_create, functions.rope_desc_destroy = addresses


@unittest.skipUnless(is_native, "the kernels are those of Python")
class CreationTest(unittest.TestCase):
    """Descriptors are made without the lock that all operators share."""

    def setUp(self):
        self.x = torch.randn(1, 2, 1, 16)
        self.failures = []

    def key(self, theta):
        return RopeDesc(head_dim=16, dtype="f32", **{**FORM, "theta": theta})._key

    def check(self, theta, key):
        expected = support.rotate(self.x, numpy.arange(2)[:, None], support.frequencies(16, theta), "half")
        if not numpy.allclose(torch.ops.librope.rotate(key, self.x, None, None, False)[0], expected, atol=1e-5):
            self.failures.append(theta)

    def test_a_slow_one_blocks_no_other_call(self):
        started, may_end = threading.Event(), threading.Event()
        slow, kept, new = 7001.0, 7002.0, 7003.0
        keys = {theta: self.key(theta) for theta in (slow, kept, new)}

        def before(config):
            if config.theta == slow:
                started.set()
                may_end.wait(60)

        self.check(kept, keys[kept])
        with watched_creations(before) as (created, live):
            first = threading.Thread(target=self.check, args=(slow, keys[slow]))
            others = threading.Thread(target=lambda: [self.check(theta, keys[theta]) for theta in (kept, new)])
            first.start()
            try:
                self.assertTrue(started.wait(60))
                others.start()
                others.join(30)
                self.assertFalse(others.is_alive(), "another call waits for the slow creation")
                self.assertTrue(first.is_alive())
            finally:
                may_end.set()
                first.join()
                others.join()
            self.assertEqual((len(created), len(live)), (2, 2))
        self.assertEqual(self.failures, [])

    def test_equal_ones_made_at_once(self):
        """All threads use the one that was there first, and the others are destroyed."""
        count, theta = 4, 7004.0
        key, barrier = self.key(theta), threading.Barrier(count)

        def before(config):
            barrier.wait(30)

        with watched_creations(before) as (created, live):
            support.run_threads(count, lambda number: self.check(theta, key))
            self.assertEqual((len(created), len(live)), (count, 1))
            self.check(theta, key)
            self.assertEqual((len(created), len(live)), (count, 1))
        self.assertEqual(self.failures, [])

    def test_refused_ones_made_at_once(self):
        count, key = 4, self.key(7005.0)
        barrier, refusals = threading.Barrier(count), []

        def before(config):
            config.head_dim = 15
            barrier.wait(30)

        def work(number):
            try:
                torch.ops.librope.rotate(key, self.x, None, None, False)
            except RuntimeError as error:
                refusals.append(str(error))

        with watched_creations(before) as (created, live):
            for round in (1, 2):  # nothing is kept
                support.run_threads(count, work)
                self.assertEqual(len(created), round * count)
            live.discard(None)
            self.assertFalse(live)
        self.assertEqual(len(refusals), 2 * count)
        for text in refusals:
            self.assertIn("rope_desc_create: head_dim is 15", text)

    def test_many_threads_and_more_than_are_kept(self):
        thetas = numpy.linspace(8001.0, 8600.0, 600)
        keys = [*map(self.key, thetas)]

        def work(number):
            order = numpy.random.default_rng(number // 2)  # two threads use each key at about the same time
            for i in order.integers(len(keys), size=400):
                self.check(thetas[i], keys[i])

        with watched_creations(lambda config: None) as (created, live):
            support.run_threads(8, work)
            self.assertLessEqual(len(live), 256)
            self.assertGreater(len(created), 600)
        self.assertEqual(self.failures, [])


# The part of torch that the loader calls. It counts registrations, and the one with the number fail_at fails.
FAKE_TORCH = """
#include <stdint.h>
#include <string.h>
int registrations, fail_at, libraries, kernels[2];
int32_t aoti_torch_library_init_impl(const char *name, const char *key, const char *file, uint32_t line, void **made) {
  if (++registrations == fail_at) return 1;
  ++libraries;
  *made = &kernels[strcmp(key, "CUDA") == 0];
  return 0;
}
int32_t torch_library_impl(void *library, const char *name, void *kernel, uint64_t version) {
  if (++registrations == fail_at) return 1;
  ++*(int *)library;
  return 0;
}
int32_t aoti_torch_delete_library_object(void *library) {
  --libraries;
  *(int *)library = 0;
  return 0;
}
"""

# The program gets two files, librope_torch.so and a libtorch_cpu.so of FAKE_TORCH, and the version.
LOAD_WITH_FAILURES = """
import ctypes, sys
torch, library = ctypes.CDLL(sys.argv[2]), ctypes.CDLL(sys.argv[1])
library.rope_torch_load.restype = ctypes.c_char_p
number = lambda name: ctypes.c_int.in_dll(torch, name)
kernels = (ctypes.c_int * 2).in_dll(torch, "kernels")
for fail_at in [*range(1, 19), 0]:
    number("registrations").value, number("fail_at").value = 0, fail_at
    print(fail_at, library.rope_torch_load(None, int(sys.argv[3])), number("libraries").value, *kernels)
"""


@unittest.skipUnless(is_native, "the kernels are those of Python")
class LoaderTest(unittest.TestCase):
    def test_refusals(self):
        """With another version, and without torch."""
        text = run_python(
            "import ctypes, sys\n"
            "load = ctypes.CDLL(sys.argv[1]).rope_torch_load\n"
            "load.restype = ctypes.c_char_p\n"
            "for version in map(int, sys.argv[2:]):\n"
            "    print(load(None, version).decode())", _library.torch_operators_path(), VERSION, VERSION + 1, 123456)
        prefix = f"it is of librope {librope.__version__}, this package of "
        patch = f"{_abi.ROPE_VERSION_MAJOR}.{_abi.ROPE_VERSION_MINOR}.{_abi.ROPE_VERSION_PATCH + 1}"
        self.assertEqual(text.splitlines(), ["libtorch_cpu.so is not loaded", prefix + patch, prefix + "12.34.56"])

    def test_the_library_of_another_version(self):
        """The operators run in Python, and report why."""
        script = (
            "from librope import _abi\n"
            "_abi.ROPE_VERSION_PATCH += 1\n"
            "import torch, librope.torch\n"
            "print(librope.torch.operators.why_python)\n"
            "x = torch.randn(2, 5, 3, 16)\n"
            "y = librope.torch.apply_rotary(x, style='half', layout='bshd', theta=100.0)\n"
            "assert torch.allclose(y[:, 0], x[:, 0]) and not torch.allclose(y, x)\n")
        self.assertRegex(run_python(script), re.escape(_library.torch_operators_path()) + ": it is of librope .*, this ")

    def test_all_or_nothing(self):
        compiler = shutil.which(os.environ.get("CC", "cc"))
        if compiler is None:
            self.skipTest("needs a C compiler")
        source = Path(HERE.parent, "native/torch_operators.cpp").read_text()
        names = set(re.findall(r"DO\((\w+), \(", source)) - set(re.findall(r"(\w+)\(", FAKE_TORCH))
        self.assertIn("aoti_torch_get_dim", names)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "torch.c").write_text(
                FAKE_TORCH + "".join(f"int32_t {name}() {{ return 0; }}\n" for name in sorted(names)))
            subprocess.run([compiler, "-shared", "-fPIC", "-o", "libtorch_cpu.so", "torch.c",
                            "-Wl,-soname,libtorch_cpu.so"], check=True, cwd=folder)
            lines = run_python(LOAD_WITH_FAILURES, _library.torch_operators_path(), Path(folder, "libtorch_cpu.so"),
                               VERSION).splitlines()
        for fail_at, line in enumerate(lines[:-1], 1):
            self.assertRegex(line, rf"^{fail_at} b'torch refuses .*' 0 0 0$")
        self.assertEqual(lines[-1], "0 None 2 8 8")

    def test_the_functions_outlive_their_module(self):
        """Other threads may call while the interpreter ends."""
        script = (
            "import ctypes, gc, weakref, torch\n"
            "from librope import RopeDesc, _torch_operators\n"
            "import librope.torch\n"
            "key = RopeDesc(head_dim=16, dtype='f32', style='half', layout='bshd', theta=100.0)._key\n"
            "x = torch.randn(2, 5, 3, 16)\n"
            "expected = torch.ops.librope.rotate(key, x, None, None, False)[0]\n"
            "functions = weakref.ref(_torch_operators.functions)\n"
            "del _torch_operators.functions\n"
            "gc.collect()\n"
            "assert functions() is not None\n"
            "assert torch.equal(torch.ops.librope.rotate(key, x, None, None, False)[0], expected)\n")
        run_python(script)


class KeyTest(unittest.TestCase):
    def setUp(self):
        self.x = torch.randn(2, 5, 3, 16)

    def rotate(self, key, x=None):
        return torch.ops.librope.rotate(key, self.x if x is None else x, None, None, False)[0]

    def test_a_key_is_the_descriptor(self):
        inv_freq = [1.0 / (i + 1) for i in range(8)]
        forms = [
            dict(FORM), dict(FORM, num_threads=1), dict(FORM, device="cpu"),
            dict(style="interleaved", layout="bshd", inv_freq=inv_freq, attention_scale=1.25),
            dict(style="half", layout="bshd", inv_freq=inv_freq[:4], rotary_dim=8, rotary_offset=8, num_axes=2,
                 pair_axis=[0, 1, 0, 1], out_style="interleaved"),
            dict(FORM, norm="rms", norm_eps=1e-6),
        ]
        keys = set()
        for form in forms:
            with self.subTest(**form):
                desc = RopeDesc(head_dim=16, dtype="f32", **form)
                keys.add(desc._key)
                self.assertEqual(RopeDesc._of_key("rotate", desc._key)._arguments(), desc._arguments())
                self.assertEqual(RopeDesc._of_key("rotate", desc._key)._key, desc._key)
                self.assertEqual(RopeDesc(head_dim=16, dtype="f32", **form)._key, desc._key)
                if "norm" not in form:
                    self.assertTrue(torch.equal(self.rotate(desc._key), desc.forward(self.x)))
        self.assertEqual(len(keys), len(forms))
        desc = SwigluDesc(dtype="f32", alpha=1.7, limit=7.0, activation="swiglu")
        self.assertTrue(torch.equal(
            torch.ops.librope.swiglu(desc._key, self.x, self.x), desc.forward(self.x, self.x)))
        self.assertEqual(SwigluDesc._of_key("swiglu", desc._key)._arguments(), desc._arguments())

    def test_malformed_keys(self):
        rope = RopeDesc(head_dim=16, dtype="f32", style="half", layout="bshd", inv_freq=[1.0] * 8)._key
        gating = SwigluDesc(dtype="f32")._key
        config = bytes.fromhex(rope.partition(":")[2])

        def changed(offset, value):
            return "rope:" + (config[:offset] + value.to_bytes(4, "little") + config[offset + 4:]).hex()

        keys = ["", ":", "rope", "rope:", "rope:0", "rope:zz", "rope:" + "00" * 4, "rope:" + "ff" * 300, "swiglu:",
                gating, rope[:-1], rope[:-2], rope[:-16], rope + "00", rope + "0", "rope: " + rope[5:], "rope:\0" + rope[5:],
                rope.replace("rope", "Rope"), "rope:" + "é" * 100, rope[:50] + "\0" + rope[51:], rope + "\ud800",
                changed(0, 0), changed(0, 20), changed(0, 4096), changed(0, 5000), changed(0, 2**32 - 1),
                changed(8, 2), changed(8, 77), changed(16, 99), changed(28, 2**31 - 2), changed(28, 2**32 - 2),
                changed(28, 15), changed(32, 2**31 - 2), changed(32, 4)]
        for key in keys:
            with self.subTest(key=key[:60], length=len(key)), self.assertRaises(Exception) as context:
                self.rotate(key)
            self.assertNotIsInstance(context.exception, (AssertionError, SystemError))
        for key in ("", "swiglu:", rope, gating[:-2], gating + "00", gating[:10]):
            with self.subTest(key=key[:60]), self.assertRaises(Exception):
                torch.ops.librope.swiglu(key, self.x, self.x)
        self.assertTrue(torch.equal(self.rotate(rope), RopeDesc._of_key("rotate", rope).forward(self.x)))

    def test_random_keys(self):
        """Changed bytes of a key are refused or give another rotation. They never crash."""
        key = bytearray.fromhex(RopeDesc(
            head_dim=16, dtype="f32", style="half", layout="bshd", inv_freq=[1.0] * 8, num_threads=1)._key[5:])
        generator = torch.Generator().manual_seed(7)
        refused = 0
        for _ in range(2000):
            data = bytearray(key)
            for _ in range(int(torch.randint(1, 4, (), generator=generator))):
                data[int(torch.randint(len(data), (), generator=generator))] = int(
                    torch.randint(256, (), generator=generator))
            try:
                self.rotate("rope:" + data.hex())
            except Exception:
                refused += 1
        self.assertGreater(refused, 200)

    def test_the_device_of_a_key(self):
        self.rotate(RopeDesc(head_dim=16, dtype="f32", device="cpu", **FORM)._key)
        if librope.device_count("cuda"):
            key = RopeDesc(head_dim=16, dtype="f32", device="cuda:0", **FORM)._key
            with self.assertRaisesRegex(Exception, "cuda|CUDA|another device"):
                self.rotate(key)
            self.rotate(key, self.x.cuda())

    def test_errors_of_the_operators(self):
        key = RopeDesc(head_dim=16, dtype="f32", **FORM)._key
        cases = {
            "axes": self.x[None], "dtype|int32": self.x.int(), "complex|dtype": self.x.to(torch.complex64),
            "head_dim|shape": self.x[..., :6],
        }
        for text, x in cases.items():
            with self.subTest(text), self.assertRaisesRegex(Exception, text):
                self.rotate(key, x)
        with self.assertRaisesRegex(Exception, "flags has unknown bits"):
            torch.ops.librope.rotate(key, self.x, None, None, False, None, 0, 1 << 20)
        with self.assertRaisesRegex(Exception, "k.shape"):
            torch.ops.librope.rotate(key, self.x, self.x[:1], None, False)
        with self.assertRaises(Exception):
            torch.ops.librope.swiglu_backward(SwigluDesc(dtype="f32")._key, self.x, self.x, self.x, 4)


class DescriptorsTest(unittest.TestCase):
    """Calls through builtins have the results, refusals and versions of calls through ctypes."""

    def both(self, function):
        results = [function()]
        with support.through_ctypes():
            results.append(function())
        for x, y in zip(*results):
            self.assertTrue(x is y is None or torch.equal(x, y))

    def test_rotations(self):
        desc = RopeDesc(head_dim=16, dtype="f32", **FORM)
        normed = RopeDesc(head_dim=16, dtype="f32", norm="rms", norm_eps=1e-6, **FORM)
        q, k, v = torch.randn(2, 5, 4, 16), torch.randn(2, 5, 2, 16), torch.randn(2, 5, 2, 16)
        positions, weight, slots = torch.randint(0, 50, (2, 5)), torch.randn(16), torch.randperm(12)[:10].reshape(2, 5)
        cos, sin = torch.randn(50, 8), torch.randn(50, 8)

        def outputs(desc, given, out=None, is_backward=False, **keywords):
            given = [None if x is None else x.clone() for x in given]
            written = out([x for x in given if x is not None]) if out else None
            versions = [x._version for x in given if x is not None]
            results = (desc.backward if is_backward else desc.forward)(*given, out=written, **keywords)
            results = results if isinstance(results, tuple) else (results,)
            if out:
                for x, y in zip(results, written if isinstance(written, (list, tuple)) else [written]):
                    self.assertTrue(y is None or y is False or x is y)
            bumps = [x._version - before for x, before in zip((x for x in given if x is not None), versions)]
            return [*results, *(x for x in given if x is not None), torch.tensor(bumps)]

        for given in ((q, None, None), (q, k, None), (q, k, v), (None, k, None), (q, None, v)):
            for is_backward in (False, True):
                for keywords in (dict(), dict(positions=positions), dict(cos=cos, sin=sin, positions=positions),
                                 dict(cos=cos[:5], sin=sin[:5], table_rows="by_token"),
                                 dict(position_offset=7, unrotated=True), dict(v_unrotated=True)):
                    for out in (None, list, tuple, lambda given: [torch.full_like(x, 9.0) for x in given],
                                lambda given: [given[0], *(None,) * (len(given) - 1)]):
                        self.both(lambda: outputs(desc, given, out, is_backward, **keywords))
        norm = librope.Norm(q_weight=weight)
        cached = dict(norm=norm, v_unrotated=True, positions=positions)

        def step(out):
            caches = torch.zeros(3, 4, 2, 16), torch.zeros(3, 4, 2, 16)
            cache = librope.Cache(*caches, slots=slots, skip_slot_0=True)
            fault = torch.zeros(2, dtype=torch.int64)
            results = outputs(normed, (q, k, v), lambda given: out(given), fault=fault, cache=cache, **cached)
            return [*results, *caches, fault, torch.tensor([x._version for x in (*caches, fault)])]

        for out in (lambda given: [None, False, False], lambda given: given, lambda given: [None, given[1], None]):
            self.both(lambda: step(out))
        self.both(lambda: outputs(normed, (q, k, None), norm=librope.Norm()))

    def test_gating(self):
        desc = SwigluDesc(dtype="f32", alpha=1.5)
        gate, up, grad, scale = torch.randn(5, 6), torch.randn(5, 6), torch.randn(5, 6), torch.randn(5)
        bias, rows = torch.randn(6), torch.tensor([3])

        def forward(out, **keywords):
            x = gate.clone()
            result = desc.forward(x, up, out(x), **keywords)
            return result, x, torch.tensor(x._version)

        for keywords in (dict(), dict(row_scale=scale), dict(num_rows=rows, gate_bias=bias, up_bias=bias)):
            for out in (lambda x: None, lambda x: x, lambda x: torch.zeros(5, 6)):
                self.both(lambda: forward(out, **keywords))
            self.both(lambda: desc.backward(grad, gate, up, **keywords))

    def test_refusals(self):
        x = torch.randn(2, 5, 3, 16)
        desc, gating = RopeDesc(head_dim=16, dtype="f32", **FORM), SwigluDesc(dtype="f32")
        normed = RopeDesc(head_dim=16, dtype="f32", norm="rms", norm_eps=1e-6, **FORM)
        before = x.clone()
        cases = (
            (librope.InvalidArgument, "norm", lambda: normed.forward(x, out=x)),
            (librope.InvalidArgument, "norm", lambda: desc.forward(x, out=x, norm=librope.Norm())),
            (librope.InvalidArgument, "rope_forward: q.dtype", lambda: desc.forward(x.double())),
            (librope.InvalidArgument, "rope_forward: positions has shape", lambda: desc.forward(
                x, out=x, positions=torch.arange(4))),
            (ValueError, "out is False for q", lambda: desc.forward(x, out=False)),
            (ValueError, "out has 2 tensors", lambda: desc.forward(x, out=[x, x])),
            (ValueError, "q: it requires grad", lambda: desc.forward(x.clone().requires_grad_())),
            (ValueError, "q_out: it requires grad", lambda: desc.forward(x, out=x.clone().requires_grad_())),
            (TypeError, "positions: its device is meta", lambda: desc.forward(
                x, out=x, positions=torch.arange(5, device="meta"))),
            (ValueError, "gate: it requires grad", lambda: gating.forward(x.clone().requires_grad_(), x)),
            (TypeError, "up: its device is meta", lambda: gating.forward(x, x.to("meta"), x)),
            (TypeError, "q: its dtype is int8", lambda: desc.forward(x.to(torch.int8))),
            (TypeError, "axes|dtype|it is a", lambda: desc.forward([1.0])),
            (ValueError, "position_offset", lambda: desc.forward(x, out=x, position_offset=2**63)),
            (ValueError, "table_rows", lambda: desc.forward(x, out=x, table_rows="by_row")),
        )
        for error, text, call in cases:
            with self.subTest(text), self.assertRaisesRegex(error, text):
                call()
            self.assertTrue(torch.equal(x, before))
        desc.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            desc.forward(x, out=x)


# The program gets two files: a program, and its inputs and outputs.
RUN_EXPORTED = """
import sys, torch, librope.torch
program = torch.export.load(sys.argv[1])
data = torch.load(sys.argv[2])
for inputs, expected in data:
    out = program.module()(*inputs)
    assert torch.allclose(out, expected, atol=1e-5), (out - expected).abs().max()
print("equal")
"""

RUN_COMPILED = """
import torch, librope.torch
from torch._dynamo.utils import counters
from librope.torch import apply_rotary, swiglu
def block(x):
    q, k = apply_rotary(x * 2, x[:, :, :1], style="half", layout="bshd", inv_freq=[1.0 / (i + 1) for i in range(8)])
    return swiglu(q, x) * k
x = torch.arange(2 * 5 * 3 * 16.0).sin().reshape(2, 5, 3, 16)
out = torch.compile(block, fullgraph=True)(x)
assert torch.allclose(out, block(x), atol=1e-5)
print("hits", counters["aot_autograd"]["autograd_cache_hit"])
"""


class Block(torch.nn.Module):
    def forward(self, x, positions):
        q, k = apply_rotary(x * 2, x[:, :, :1], positions=positions, **FORM)
        return swiglu(q, x, alpha=1.7) + k


class OtherProcessTest(unittest.TestCase):
    def test_exported_programs(self):
        def inputs(batch, tokens):
            return torch.randn(batch, tokens, 3, 16), torch.randint(0, 50, (batch, tokens))

        batch, tokens = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("tokens", min=2, max=4096)
        shapes = ({0: batch, 1: tokens}, {0: batch, 1: tokens})
        for strict in (False, True):
            with self.subTest(strict=strict), tempfile.TemporaryDirectory() as folder:
                program = torch.export.export(Block(), inputs(3, 5), dynamic_shapes=shapes, strict=strict)
                self.assertIn("librope.rotate", str(program.graph))
                torch.export.save(program, Path(folder, "program.pt2"))
                data = [(given, Block()(*given)) for given in (inputs(3, 5), inputs(2, 9))]
                torch.save(data, Path(folder, "data.pt"))
                for without in ("", WITHOUT):
                    self.assertIn("equal", run_python(
                        without + RUN_EXPORTED, Path(folder, "program.pt2"), Path(folder, "data.pt")))

    @support.long
    def test_compiled_graphs_are_cached(self):
        try:
            torch.compile(lambda x: x + 1)(torch.zeros(2))
        except Exception:  # no C++ compiler, no Python headers, ...
            self.skipTest("torch.compile does not work here")
        with tempfile.TemporaryDirectory() as folder:
            environment = dict(TORCHINDUCTOR_CACHE_DIR=folder, TORCHINDUCTOR_AUTOGRAD_CACHE="1")
            self.assertIn("hits 0", run_python(RUN_COMPILED, **environment))
            self.assertRegex(run_python(RUN_COMPILED, **environment), "hits [1-9]")


if __name__ == "__main__":
    unittest.main()
