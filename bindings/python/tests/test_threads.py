# SPDX-License-Identifier: Apache-2.0
# test_threads.py - librope.torch on the CPU has as many threads as torch
from __future__ import annotations

import os
import subprocess
import sys
import unittest
from pathlib import Path

import support

torch = support.needs("torch")

if not Path("/proc/self/task").is_dir():
    raise unittest.SkipTest("needs /proc")

# The library's threads wait for more work after a call, so that they can be counted.
PROGRAM = """
import os
import torch
{before}
import librope, librope.torch
from librope import torch as rope
{behind}
torch.manual_seed(20261129)
FORM = dict(style="half", layout="bshd", theta=10000.0)
x, y = torch.randn(2, 256, 16, 64), torch.randn(2, 256, 16, 64)
gate, up = x.view(512, 1024), y.view(512, 1024)
weight = torch.ones(64)
cos, sin = torch.randn(256, 32), torch.randn(256, 32)
norm = dict(FORM, norm="rms", norm_eps=1e-6, q_weight=weight, k_weight=weight)
key_of_swiglu = librope.SwigluDesc(dtype="f32")._key
rope_key = librope.RopeDesc(head_dim=64, dtype="f32", **FORM)._key
compiled = torch.compile(lambda x: rope.swiglu(x, *rope.apply_rotary(x, x, **FORM)[1:]), fullgraph=True,
                         backend="aot_eager")

def gradients(call, *tensors):
    given = [t.clone().requires_grad_() for t in tensors]
    result = call(*given)
    return torch.autograd.grad(result, given, [x, y][:len(result)] if isinstance(result, tuple) else x.view_as(result))

CALLS = dict(
    apply_rotary=lambda: rope.apply_rotary(x, y, **FORM),
    apply_rotary_gradients=lambda: gradients(lambda q, k: rope.apply_rotary(q, k, **FORM), x, y),
    apply_rotary_emb_inplace=lambda: rope.apply_rotary_emb(x.clone(), cos, sin, inplace=True),
    norm_rotary=lambda: rope.norm_rotary(x, y, **norm),
    norm_rotary_gradients=lambda: gradients(lambda q, k, w: rope.norm_rotary(q, k, **dict(norm, q_weight=w)), x, y,
                                            weight),
    rotary_step=lambda: rope.rotary_step(x, y, **FORM)[:2],
    swiglu=lambda: rope.swiglu(gate, up),
    swiglu_gradients=lambda: gradients(rope.swiglu, gate, up),
    geglu=lambda: rope.geglu(gate, up),
    codes=lambda: rope.swiglu(gate, up, out_dtype=torch.float8_e4m3fn).view(torch.uint8),
    swiglu_codes=lambda: [t.view(torch.uint8) for t in rope.swiglu_codes(gate, up)],
    swiglu_gradients_as_codes=lambda: rope.swiglu_gradients(gate, gate, up)[0].codes.view(torch.uint8),
    operator_rotate=lambda: torch.ops.librope.rotate(rope_key, x, y, None, False)[:2],
    operator_rotate_=lambda: [t := x.clone(), torch.ops.librope.rotate_(rope_key, t, None, None, False)][:1],
    operator_swiglu=lambda: torch.ops.librope.swiglu(key_of_swiglu, gate, up),
    compiled=lambda: compiled(x),
)

def threads():
    return len(os.listdir("/proc/self/task"))

def new_threads(call):
    before = threads()
    result = call()
    return threads() - before, [result] if isinstance(result, torch.Tensor) else list(result)
"""

# torch has its own threads before the calls, so that only the library can start more.
FORKS = """
def check(name, call):
    torch.set_num_threads(1)
    if name == "compiled":
        compiled(x[:, :1])  # compilation starts a thread
    first = new_threads(call)
    torch.set_num_threads(3)
    x + y
    third = new_threads(call)
    torch.set_num_threads(1)
    assert (first[0], third[0]) == (0, 2), f"{first[0]} new threads of 1, {third[0]} of 3"
    assert all(map(torch.equal, first[1], third[1])), "other bits"

for name, call in CALLS.items():
    child = os.fork()
    if child == 0:
        try:
            check(name, call)
        except BaseException as error:
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
        os._exit(0)
    os.waitpid(child, 0)

# A number that is given is that of the call.
torch.set_num_threads(1)
of_key = librope.SwigluDesc(dtype="f32", num_threads=3)._key
for count, call in ((2, lambda: rope.swiglu_codes(gate, up, num_threads=2)),
                    (3, lambda: torch.ops.librope.swiglu(of_key, gate, up))):
    started, _ = new_threads(call)
    if started != 1:  # the second call uses the thread of the first one
        print(f"{started} more threads of {count}")
"""

# Without set_num_threads.
ENVIRONMENT = """
compiled(x[:, :1])
gradients(torch.neg, x)  # torch starts threads for both
for name, call in CALLS.items():
    started, _ = new_threads(call)
    if started:
        print(f"{name}: {started} new threads")
"""

WITHOUT_BUILTINS = """
from librope import _calls
for name in ("rotate", "gate", "gate_back"):
    setattr(_calls, name, _calls.absent)
"""
WITHOUT_KERNELS = """
from librope import _library
_library.torch_operators_path = lambda: "/nonexistent/librope_torch.so"
"""


def run_program(text, before="", behind="", **environment):
    program = PROGRAM.format(before=before, behind=behind) + text
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, **environment}, check=False).stdout


class ThreadsTest(unittest.TestCase):
    maxDiff = None

    def check(self, before="", behind=""):
        self.assertEqual(run_program(FORKS, before, behind), "")

    def test_the_next_call_heeds_set_num_threads(self):
        self.check()

    def test_ctypes_and_kernels_of_python(self):
        self.check(WITHOUT_KERNELS, WITHOUT_BUILTINS)

    def test_the_environment(self):
        self.assertEqual(run_program(ENVIRONMENT, OMP_NUM_THREADS="1"), "")


if __name__ == "__main__":
    unittest.main()
