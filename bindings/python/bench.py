#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# bench.py - measures what the package's calls cost the host, beside others that do the same in the same process
"""usage: bench.py [--device cuda|cpu] [--only GLOB]... [--operator FILE] [--json FILE] [--quick] [--list]

  --device    where tensors are: by default a GPU if there is one. On the CPU the same rows run on small tensors
  --only      rows whose names match; --list prints the names
  --operator  the shared object of tests/bench/torch_operator.cpp, "the operator". If there is no FILE, $CXX compiles it
              against the torch of this Python. Without it rows beside the operator are not measured
  --json      writes every figure to FILE
  --quick     a few calls, and torch.compile generates no code: checks that every row works; the times mean nothing

It needs torch, and for the rows that name them NumPy, transformers, Liger and flash-attn. The library is the one that
the package finds (ROPE_LIBRARY, ROPE_LIB_DIR). It exits with 1 if a row failed; a ratio that is too high is no failure.

Method: every entry and every candidate beside it are first compared with a formula in double. Then they run
alternately, a batch of each (A, B, A, B), with the device idle before a batch. Rows of "host" time 20 calls, and wait
for the device outside of the time: so few calls never wait for a place in the device's queue. Rows of "whole" time
until the device is done. Times are medians over the batches; a ratio is the median of the ratios of neighbouring
batches. "at most" is the limit for an H200. Without a GPU, CUDA graphs are not measured.
"""
from __future__ import annotations

import argparse
import copy
import ctypes
import fnmatch
import functools
import gc
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
import types
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Literal, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

import librope
from librope import _abi, _calls, _library
from librope.torch import apply_rotary, rotary_step, swiglu

ROOT = Path(__file__).resolve().parents[2]
THETA = 10000.0
CALLS = 20  # calls of a batch, unless it is one step of a model

# Relative errors of 2-norms. Formulas in torch round more often than once, and round their tables.
ALLOWED_ERROR = 1e-2  # in BF16
ALLOWED_ERROR_OF_MODELS = {torch.float32: 1e-4, torch.bfloat16: 5e-2}


class NotHere(Exception):
    """The row cannot run on this machine; the text says why."""


class Prepared(NamedTuple):
    call: Callable[[], Any]  # returns the results, unless `results` does
    expected: Optional[Callable[[], Sequence[Tensor]]]  # in double, from the inputs as they are now; None: no values
    allowed_error: float = ALLOWED_ERROR
    results: Optional[Callable[[], Any]] = None
    batch: Optional[Callable[[int], Any]] = None  # makes this many calls, if that is no loop in Python


class Candidate(NamedTuple):
    name: str
    prepare: Callable[[], Prepared]  # raises NotHere
    demanded: Optional[float] = None  # the entry's time is at most this multiple


class Row(NamedTuple):
    shape: str
    entry: Candidate
    references: Sequence[Candidate]  # the entry is compared with each of them
    is_whole: bool = False
    needs_grad: bool = False
    calls: int = CALLS


# ---- Measuring ------------------------------------------------------------------------------------------------------


def check(name: str, prepared: Prepared) -> float:
    """The relative error of a call. Raises RuntimeError if it is too large."""
    if prepared.expected is None:
        return 0.0
    expected = prepared.expected()
    results = prepared.call()
    if prepared.results is not None:
        results = prepared.results()
    results = [results] if isinstance(results, Tensor) else list(results)
    if [x.shape for x in results] != [x.shape for x in expected]:
        raise RuntimeError(f"{name}: wrong shapes: {[tuple(x.shape) for x in results]}")
    got, wanted = (torch.cat([x.detach().double().flatten() for x in tensors]) for tensors in (results, expected))
    error = float((got - wanted).norm() / wanted.norm())
    if not error <= prepared.allowed_error:  # NaN included
        raise RuntimeError(f"{name}: wrong result: relative error {error:.2e}")
    return error


def batch_of(prepared: Prepared) -> Callable[[int], Any]:
    call = prepared.call

    def batch(count: int) -> None:
        for _ in range(count):
            call()

    return prepared.batch or batch


def measure(batches: Sequence[Callable[[int], Any]], row: Row, bench: Bench) -> List[List[float]]:
    """Seconds per call of each, batch by batch."""
    if bench.is_quick:
        calls, warm_ups, min_rounds, max_rounds, seconds = 2, 1, 3, 3, 0.0
    else:
        calls, warm_ups, min_rounds, max_rounds, seconds = row.calls, 10, 15, 500, 3.0
    for batch in batches:
        for _ in range(warm_ups):
            batch(calls)
    times: List[List[float]] = [[] for _ in batches]
    gc.collect()
    gc.disable()
    try:
        deadline = time.perf_counter() + seconds
        while len(times[0]) < min_rounds or (len(times[0]) < max_rounds and time.perf_counter() < deadline):
            for batch, samples in zip(batches, times):
                bench.synchronize()
                begin = time.perf_counter()
                batch(calls)
                if row.is_whole:
                    bench.synchronize()
                samples.append((time.perf_counter() - begin) / calls)
    finally:
        gc.enable()
    return times


def run(name: str, row: Row, bench: Bench) -> Dict[str, Any]:
    """The row's result: its times, or why there are none."""
    result: Dict[str, Any] = {
        "row": name, "entry": row.entry.name, "shape": row.shape, "measure": "whole" if row.is_whole else "host",
        "reference": " + ".join(candidate.name for candidate in row.references), "errors": {}}
    try:
        with torch.set_grad_enabled(row.needs_grad):
            candidates = {candidate.name: candidate.prepare() for candidate in (row.entry, *row.references)}
            result["errors"] = {what: check(what, prepared) for what, prepared in candidates.items()}
            entry, *others = measure([batch_of(prepared) for prepared in candidates.values()], row, bench)
            for what, prepared in candidates.items():  # again: compiled CUDA graphs are replayed by now
                check(what, prepared)
    except NotHere as reason:
        return {**result, "message": f"not measured: {reason}"}
    except Exception as reason:  # one failing row must not end the others
        return {**result, "message": f"failed: {type(reason).__name__}: {reason}"}
    references = [statistics.median(times) for times in others]
    ratios = sorted(mine / sum(theirs) for mine, *theirs in zip(entry, *others))
    result.update(
        us=1e6 * statistics.median(entry), reference_us=1e6 * sum(references), ratio=statistics.median(ratios),
        ratio_p10=ratios[len(ratios) // 10], ratio_p90=ratios[-1 - len(ratios) // 10], rounds=len(ratios))
    factors = [candidate.demanded for candidate in row.references if candidate.demanded is not None]
    if len(factors) == len(references):
        result["demanded"] = sum(f * t for f, t in zip(factors, references)) / sum(references)
    return result


# ---- The operator ---------------------------------------------------------------------------------------------------

TORCH_VERSION = torch.__version__.partition("+")[0]


def compile_operator(file: Path) -> None:
    """Calls the compiler once: torch.utils.cpp_extension would also need ninja and setuptools."""
    folder = Path(torch.__file__).parent
    command = [
        os.environ.get("CXX", "c++"), "-O2", "-std=c++20", "-shared", "-fPIC",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}", f'-DROPE_BENCH_TORCH="{TORCH_VERSION}"',
        f"-I{ROOT / 'include'}", "-isystem", str(folder / "include"),
        str(ROOT / "tests" / "bench" / "torch_operator.cpp"), f"-L{folder / 'lib'}", "-ltorch_cpu", "-lc10", "-o",
        str(file)]
    try:
        result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as error:
        raise NotHere(f"the operator cannot be compiled: {error}") from None
    if result.returncode != 0:
        raise NotHere(f"the operator does not compile: {' '.join(command)}: {result.stdout}")


class Bench:
    """The device and the method of this run."""

    def __init__(self, device: str, operator: Optional[str] = None, is_quick: bool = False) -> None:
        self.is_gpu = device == "cuda"
        self.is_quick = is_quick
        self.device = torch.device(device, 0)
        self._operator = operator

    def synchronize(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize()

    @functools.cached_property
    def _loaded(self) -> Tuple[Any, str]:
        """torch.ops.rope_bench, or the reason why it does not exist."""
        if self._operator is None:
            return None, "it needs --operator"
        file = Path(self._operator).resolve()
        try:
            if not file.exists():
                compile_operator(file)
            if f"rope_bench for torch {TORCH_VERSION};".encode() not in file.read_bytes():
                return None, f"{file} is not the operator compiled against torch {TORCH_VERSION}"
            torch.ops.load_library(str(file))
        except NotHere as reason:
            return None, str(reason)
        except OSError as error:
            return None, f"{file} cannot be loaded: {error}"
        torch.ops.rope_bench.open_library(_library.loaded_path())
        return torch.ops.rope_bench, ""

    @property
    def operator(self) -> Any:
        ops, reason = self._loaded
        if ops is None:
            raise NotHere(reason)
        return ops

    @functools.cached_property
    def has_own_operators(self) -> bool:
        """Whether librope's operators in C++ are loaded. Those in Python are not registered for a device."""
        names = torch._C._dispatch_get_registrations_for_dispatch_key("CUDA" if self.is_gpu else "CPU")
        return any(name.startswith("librope::") for name in names)

    @property
    def demanded_of_forward(self) -> float:
        return 1.5 if _calls.why_ctypes else 1.15

    def handle(self, config: Any, **fields: Any) -> int:
        """A descriptor of the library for this device. It lives as long as the process."""
        fields.setdefault("device", librope.Device.CUDA if self.is_gpu else librope.Device.CPU)
        for field, value in dict(fields, struct_size=ctypes.sizeof(config)).items():
            setattr(config, field, value)
        create = _library.lib.rope_desc_create if isinstance(config, _abi.rope_config_t) else (
            _library.lib.swiglu_desc_create)
        pointer = ctypes.c_void_p()
        _library.check(create(ctypes.byref(config), ctypes.byref(pointer)))
        assert pointer.value is not None
        return pointer.value

    def compiled(self, function: Any, mode: Optional[str] = None) -> Any:
        """Compiles the function with torch.compile, as a function with a code object of its own. torch.compile tries
        all compiled versions of a code object until one fits, so that a later version would pay for earlier ones."""
        how: Dict[str, Any] = dict(backend="aot_eager") if self.is_quick else dict(mode=mode)
        unseen = types.FunctionType(
            function.__code__.replace(), function.__globals__, function.__name__, function.__defaults__,
            function.__closure__)
        return torch.compile(unseen, fullgraph=True, dynamic=False, **how)


# ---- RoPE -----------------------------------------------------------------------------------------------------------


def angles_of(positions: Tensor, head_dim: int) -> Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device=positions.device) / head_dim
    return positions.double()[..., None] * THETA**-exponents


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """In double, with pairs of halves."""
    a, b = x.detach().double().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def rotation_formula(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Tuple[Tensor, Tensor]:
    """The formula of Hugging Face's models, with tables [B, S, D]."""

    def rotate(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return rotate(q), rotate(k)


class Rotation:
    """q and k of this many tokens at random positions, "thd", or "bhsd" as in Hugging Face's attention."""

    def __init__(
            self, bench: Bench, layout: Literal["bhsd", "thd"], tokens: int = 8, is_backward: bool = False) -> None:
        self.bench = bench
        self.is_backward = is_backward
        q_heads, k_heads, self.head_dim = (32, 8, 128) if bench.is_gpu else (4, 2, 64)
        self.shape = f"{tokens} tokens, {q_heads} + {k_heads} heads of {self.head_dim}"
        self.layout: Literal["bhsd", "thd"] = layout
        self.positions = torch.randint(0, 8192, (tokens,), device=bench.device)
        self.angles = angles_of(self.positions, self.head_dim)
        cos, sin = (torch.cat((x, x), -1)[None].bfloat16() for x in (self.angles.cos(), self.angles.sin()))
        self.tables = cos, sin
        self.q, self.k, *self.grads = (
            torch.randn(tokens, heads, self.head_dim, device=bench.device).bfloat16()
            for heads in (q_heads, k_heads, q_heads, k_heads))
        if layout == "thd":
            self.angles = self.angles[:, None]
        else:
            self.positions = self.positions[None]
            self.q, self.k, *self.grads = (x[None].transpose(1, 2) for x in (self.q, self.k, *self.grads))

    def requiring_grad(self) -> Rotation:
        self.q.requires_grad_()
        self.k.requires_grad_()
        return self

    def prepared(self, forward: Callable[[], Any], results: Optional[Callable[[], Any]] = None) -> Prepared:
        if self.is_backward:
            return Prepared(
                lambda: torch.autograd.grad(forward(), (self.q, self.k), self.grads),
                lambda: [rotated(x, -self.angles) for x in self.grads])
        return Prepared(forward, lambda: [rotated(x, self.angles) for x in (self.q, self.k)], results=results)

    def in_place(self, forward: Callable[[], Any]) -> Prepared:
        return self.prepared(forward, lambda: (self.q, self.k))

    # The measured functions. Methods are looked up before.

    def desc(self) -> librope.RopeDesc:
        return librope.RopeDesc(head_dim=self.head_dim, dtype="bf16", style="half", layout=self.layout, theta=THETA)

    def handle(self) -> int:
        return self.bench.handle(
            _abi.rope_config_t(), dtype=librope.Dtype.BF16, layout=librope.Layout[self.layout.upper()],
            style=librope.Style.HALF, head_dim=self.head_dim, theta=THETA)

    def desc_in_place(self) -> Prepared:
        forward, q, k, positions = self.desc().forward, self.q, self.k, self.positions
        return self.in_place(lambda: forward(q, k, out=(q, k), positions=positions))

    def desc_new(self) -> Prepared:
        forward, q, k, positions = self.desc().forward, self.q, self.k, self.positions
        return self.prepared(lambda: forward(q, k, positions=positions))

    def operator_in_place(self) -> Prepared:
        rotate, handle, q, k, positions = self.bench.operator.rotate_, self.handle(), self.q, self.k, self.positions
        return self.in_place(lambda: rotate(handle, q, k, positions))

    def operator_new(self) -> Prepared:
        rotate, handle, q, k, positions = self.bench.operator.rotate, self.handle(), self.q, self.k, self.positions
        return self.prepared(lambda: rotate(handle, q, k, positions))

    def empty_like(self) -> Prepared:
        make, q, k = torch.empty_like, self.q, self.k
        return Prepared(lambda: (make(q), make(k)), expected=None)

    def apply_rotary(self) -> Prepared:
        q, k, positions, layout = self.q, self.k, self.positions, self.layout
        return self.prepared(lambda: apply_rotary(q, k, style="half", layout=layout, theta=THETA, positions=positions))

    def rotary_step(self) -> Prepared:
        q, k, positions, layout = self.q, self.k, self.positions, self.layout
        return self.prepared(
            lambda: rotary_step(q, k, style="half", layout=layout, theta=THETA, positions=positions)[:2])

    def formula(self) -> Prepared:
        q, k, (cos, sin) = self.q, self.k, self.tables
        return self.prepared(lambda: rotation_formula(q, k, cos, sin))

    def compiled_apply_rotary(self) -> Prepared:

        def apply(q: Tensor, k: Tensor, positions: Tensor) -> Tuple[Tensor, Tensor]:
            return apply_rotary(q, k, style="half", layout="bhsd", theta=10000.0, positions=positions)

        call, q, k, positions = self.bench.compiled(apply), self.q, self.k, self.positions
        return self.prepared(lambda: call(q, k, positions))

    def compiled_formula(self) -> Prepared:
        call, q, k, (cos, sin) = self.bench.compiled(rotation_formula), self.q, self.k, self.tables
        return self.prepared(lambda: call(q, k, cos, sin))

    def liger(self) -> Prepared:
        """Liger may rotate q, k and their gradients in place."""
        apply = peer(self.bench, "liger_kernel.transformers.rope").liger_rotary_pos_emb
        q, k, (cos, sin) = self.q, self.k, self.tables
        return self.prepared(lambda: apply(q, k, cos, sin))

    def flash_attn(self) -> Prepared:
        """On [B, S, H, D], with one call for each tensor."""
        apply = peer(self.bench, "flash_attn.layers.rotary").apply_rotary_emb
        cos, sin = (x[0, :, :self.head_dim // 2].contiguous() for x in self.tables)
        q, k = self.q, self.k
        return self.prepared(lambda: [apply(x.transpose(1, 2), cos, sin).transpose(1, 2) for x in (q, k)])


def peer(bench: Bench, module: str) -> Any:
    try:
        imported = importlib.import_module(module)
    except ImportError as error:
        raise NotHere(str(error)) from None
    if not bench.is_gpu:
        raise NotHere(f"{module} needs a GPU")
    return imported


def desc_in_place_row(bench: Bench) -> Row:
    rotation = Rotation(bench, "thd")
    return Row(rotation.shape, Candidate("RopeDesc.forward, in place", rotation.desc_in_place), [
        Candidate("the operator, in place", rotation.operator_in_place, bench.demanded_of_forward)])


def desc_new_row(bench: Bench) -> Row:
    rotation = Rotation(bench, "thd")
    return Row(rotation.shape, Candidate("RopeDesc.forward, new outputs", rotation.desc_new), [
        Candidate("the operator, in place", rotation.operator_in_place, bench.demanded_of_forward),
        Candidate("two empty_like", rotation.empty_like, 1.0)])


def beside_operator_row(bench: Bench, entry: str, demanded: Optional[float]) -> Row:
    rotation = Rotation(bench, "thd")
    return Row(rotation.shape, Candidate(f"librope.torch.{entry}, no grad", getattr(rotation, entry)), [
        Candidate("the operator, new outputs", rotation.operator_new, demanded)])


def gradient_row(bench: Bench, is_backward: bool, name: str, reference: str, demanded: Optional[float]) -> Row:
    rotation = Rotation(bench, "bhsd", is_backward=is_backward).requiring_grad()
    what = "forward and backward" if is_backward else "with grad, forward"
    return Row(rotation.shape, Candidate(f"librope.torch.apply_rotary, {what}", rotation.apply_rotary), [
        Candidate(name, getattr(rotation, reference), demanded)], needs_grad=True)


def compiled_row(bench: Bench, tokens: int, is_backward: bool) -> Row:
    rotation = Rotation(bench, "bhsd", tokens, is_backward)
    if is_backward:
        rotation.requiring_grad()
    what = "forward and backward" if is_backward else "no grad"
    return Row(
        rotation.shape, Candidate(f"apply_rotary under torch.compile, {what}", rotation.compiled_apply_rotary),
        [Candidate("compiled formula", rotation.compiled_formula, 1.1 if tokens == 8 else 1.0)],
        is_whole=tokens != 8, needs_grad=is_backward)


class NumpyRotation:
    """One token on the CPU, independent of the device of other rows: with NumPy, and with the library alone and filled
    args."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        q_heads, k_heads, self.head_dim = 8, 2, 128
        self.shape = f"1 token, {q_heads} + {k_heads} heads of {self.head_dim}, f32"
        self.q, self.k = (torch.randn(1, heads, self.head_dim) for heads in (q_heads, k_heads))
        self.positions = torch.tensor([1234])
        self.angles = angles_of(self.positions, self.head_dim)[:, None]
        self.args = _abi.rope_args_t(struct_size=ctypes.sizeof(_abi.rope_args_t))
        for field, x, dtype in (("q", self.q, librope.Dtype.F32), ("k", self.k, librope.Dtype.F32),
                                ("positions", self.positions, librope.Dtype.I64)):
            view = getattr(self.args, field)
            view.data, view.dtype, view.ndim, view.flags = x.data_ptr(), dtype, x.dim(), _abi.ROPE_TENSOR_STRIDED
            view.shape[:x.dim()] = x.shape
            view.stride[:x.dim()] = x.stride()

    def prepared(self, call: Callable[[], Any], batch: Optional[Callable[[int], Any]] = None) -> Prepared:
        return Prepared(
            call, lambda: [rotated(x, self.angles) for x in (self.q, self.k)], 1e-6, lambda: (self.q, self.k), batch)

    def handle(self) -> int:
        return self.bench.handle(
            _abi.rope_config_t(), device=librope.Device.CPU, dtype=librope.Dtype.F32, layout=librope.Layout.THD,
            style=librope.Style.HALF, head_dim=self.head_dim, theta=THETA)

    def desc(self) -> Prepared:
        try:
            q, k, positions = (x.numpy() for x in (self.q, self.k, self.positions))  # on one memory
        except RuntimeError as error:
            raise NotHere(str(error)) from None
        desc = librope.RopeDesc(head_dim=self.head_dim, dtype="f32", style="half", layout="thd", theta=THETA)
        forward = desc.forward
        return self.prepared(lambda: forward(q, k, out=(q, k), positions=positions))

    def c_loop(self) -> Prepared:
        repeat, handle, address = self.bench.operator.repeat_forward, self.handle(), ctypes.addressof(self.args)
        return self.prepared(lambda: repeat(handle, address, 1), lambda count: repeat(handle, address, count))

    def ctypes_call(self) -> Prepared:
        forward, handle, args = _library.lib.rope_forward, self.handle(), ctypes.byref(self.args)
        return self.prepared(lambda: forward(handle, args, None))


def numpy_row(bench: Bench, name: str, reference: str) -> Row:
    rotation = NumpyRotation(bench)
    return Row(rotation.shape, Candidate("RopeDesc.forward, NumPy, in place", rotation.desc), [
        Candidate(name, getattr(rotation, reference), 6.0)])


# ---- SwiGLU ---------------------------------------------------------------------------------------------------------


def gating_formula(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


class Gating:

    def __init__(self, bench: Bench, rows: int = 8, is_backward: bool = False) -> None:
        self.bench = bench
        self.is_backward = is_backward
        columns = 14336 if bench.is_gpu else 256
        self.shape = f"{rows} rows of {columns}"
        self.gate, self.up, self.grad = (
            torch.randn(rows, columns, device=bench.device).bfloat16() for _ in range(3))
        if is_backward:
            self.gate.requires_grad_()
            self.up.requires_grad_()

    def prepared(self, forward: Callable[[], Any]) -> Prepared:
        if not self.is_backward:
            return Prepared(forward, lambda: [gating_formula(self.gate.double(), self.up.double())])

        def gradients() -> Sequence[Tensor]:
            g, u, dy = (x.detach().double() for x in (self.gate, self.up, self.grad))
            s = torch.sigmoid(g)
            return dy * u * s * (1 + g * (1 - s)), dy * g * s

        return Prepared(lambda: torch.autograd.grad(forward(), (self.gate, self.up), self.grad), gradients)

    def handle(self) -> int:
        return self.bench.handle(_abi.swiglu_config_t(), dtype=librope.Dtype.BF16)

    def desc(self) -> Prepared:
        forward, gate, up, out = librope.SwigluDesc(dtype="bf16").forward, self.gate, self.up, self.new_output()
        return self.prepared(lambda: forward(gate, up, out))

    def function(self) -> Prepared:
        function, gate, up = librope.swiglu, self.gate, self.up
        return self.prepared(lambda: function(gate, up))

    def torch_function(self) -> Prepared:
        gate, up = self.gate, self.up
        return self.prepared(lambda: swiglu(gate, up))

    def operator_out(self) -> Prepared:
        gated, handle = self.bench.operator.swiglu_out, self.handle()
        gate, up, out = self.gate, self.up, self.new_output()
        return self.prepared(lambda: gated(handle, gate, up, out))._replace(results=lambda: out)

    def operator_new(self) -> Prepared:
        gated, handle, gate, up = self.bench.operator.swiglu, self.handle(), self.gate, self.up
        return self.prepared(lambda: gated(handle, gate, up))

    def formula(self) -> Prepared:
        gate, up = self.gate, self.up
        return self.prepared(lambda: F.silu(gate) * up)

    def compiled_function(self) -> Prepared:

        def gated(gate: Tensor, up: Tensor) -> Tensor:
            return swiglu(gate, up)

        call, gate, up = self.bench.compiled(gated), self.gate, self.up
        return self.prepared(lambda: call(gate, up))

    def compiled_formula(self) -> Prepared:
        call, gate, up = self.bench.compiled(gating_formula), self.gate, self.up
        return self.prepared(lambda: call(gate, up))

    def new_output(self) -> Tensor:
        return torch.full_like(self.gate, float("nan"))


def swiglu_row(
        bench: Bench, name: str, entry: str, reference_name: str, reference: str, demanded: Optional[float] = None,
        is_backward: bool = False) -> Row:
    gating = Gating(bench, is_backward=is_backward)
    return Row(gating.shape, Candidate(name, getattr(gating, entry)), [
        Candidate(reference_name, getattr(gating, reference), demanded)], needs_grad=is_backward)


def compiled_swiglu_row(bench: Bench, rows: int) -> Row:
    gating = Gating(bench, rows)
    return Row(
        gating.shape, Candidate("librope.torch.swiglu under torch.compile", gating.compiled_function),
        [Candidate("compiled silu(x) * up", gating.compiled_formula, 1.1 if rows == 8 else 1.0)], is_whole=rows != 8)


# ---- A small Llama --------------------------------------------------------------------------------------------------

PROMPT, TRAINED = 16, 64  # tokens before the one that is decoded; tokens of a training step


class Models:
    """One random Llama: original, patched, and in double. While one is patched, the others use patch's wrapper of
    transformers' rotation, too: it costs 0.1 us a layer in eager, and nothing when compiled."""

    def __init__(self, bench: Bench) -> None:
        try:
            import transformers

            import librope.transformers
        except ImportError as error:
            raise NotHere(str(error)) from None
        self.dtype = torch.bfloat16 if bench.is_gpu else torch.float32
        layers, heads, k_heads, hidden = (4, 16, 4, 1024) if bench.is_gpu else (2, 4, 2, 64)
        self.config = transformers.LlamaConfig(
            vocab_size=1024, hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=k_heads, max_position_embeddings=128)
        model: Any = transformers.LlamaForCausalLM(self.config)
        self.plain = model.to(bench.device, self.dtype).eval()
        self.double = copy.deepcopy(self.plain).double()
        self.patched = librope.transformers.patch(copy.deepcopy(self.plain))
        self.ids = torch.randint(0, self.config.vocab_size, (1, TRAINED), device=bench.device)
        self.make_cache = partial(transformers.StaticCache, config=self.config, max_cache_len=2 * PROMPT)


@functools.lru_cache(maxsize=None)
def models_of(bench: Bench, is_captured: bool) -> Models:
    """Captured models are separate objects: torch keeps the stream on which a parameter's gradient was first
    computed."""
    with torch.random.fork_rng():
        torch.manual_seed(22)
        return Models(bench)


def decode_step(bench: Bench, models: Models, model: Any, transform: Callable[[Any], Any]) -> Prepared:
    cache: Any = models.make_cache()
    positions = torch.arange(PROMPT + 1, device=bench.device)[None]
    prompt, token = models.ids[:, :PROMPT], models.ids[:, PROMPT:PROMPT + 1].clone()
    position = positions[:, PROMPT:].clone()
    model(prompt, position_ids=positions[:, :PROMPT], past_key_values=cache)
    lengths = [layer.cumulative_length for layer in cache.layers]

    def decode(token: Tensor, position: Tensor) -> Tensor:
        for length in lengths:  # each step has one token of the same value
            length.fill_(PROMPT)
        return model(token, position_ids=position, past_key_values=cache).logits

    call = transform(decode)
    return Prepared(
        lambda: call(token, position), lambda: [models.double(models.ids[:, :PROMPT + 1]).logits[:, -1:]],
        ALLOWED_ERROR_OF_MODELS[models.dtype])


def training_step(bench: Bench, models: Models, model: Any, transform: Callable[[Any], Any]) -> Prepared:
    """Forward, loss and backward. An optimizer would cost the same on both sides."""
    ids = models.ids

    def loss_of(ids: Tensor) -> Tensor:
        return model(ids, labels=ids, use_cache=False).loss

    call = transform(loss_of)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        call(ids).backward()

    def gradients_of(model: Any) -> Sequence[Tensor]:
        return [parameter.grad for parameter in model.parameters()]

    def expected() -> Sequence[Tensor]:
        models.double.zero_grad(set_to_none=True)
        models.double(ids, labels=ids, use_cache=False).loss.backward()
        return gradients_of(models.double)

    return Prepared(step, expected, ALLOWED_ERROR_OF_MODELS[models.dtype], lambda: gradients_of(model))


def graph_trees(bench: Bench, function: Any) -> Any:
    """torch.compile with CUDA graphs."""
    call = bench.compiled(function, mode="reduce-overhead")

    def step(*arguments: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return call(*arguments)

    return step


def captured(prepared: Prepared) -> Prepared:
    """The step in a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            prepared.call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        captured_results = prepared.call()

    def results() -> Any:
        # This function keeps `prepared` alive, and so the tensors that the graph uses.
        return captured_results if prepared.results is None else prepared.results()

    return prepared._replace(call=graph.replay, results=results)


# Keys of rows: how the step runs, and the limit of the patched time as a multiple.
MODES = {
    "eager": ("eager", 1.0),
    "compiled": ("compiled", 1.02),
    "compiled-graphs": ("compiled, CUDA graphs", 1.01),
    "graph": ("eager, in a CUDA graph", 1.01),
}


def model_row(bench: Bench, make_step: Callable[..., Prepared], what: str, mode: str, demanded: float) -> Row:

    def prepare(is_patched: bool) -> Prepared:
        models = models_of(bench, mode == "eager, in a CUDA graph")
        if "CUDA" in mode and not bench.is_gpu:
            raise NotHere("CUDA graphs need a GPU")
        transform = {"compiled": bench.compiled, "compiled, CUDA graphs": partial(graph_trees, bench)}.get(
            mode, lambda function: function)
        prepared = make_step(bench, models, models.patched if is_patched else models.plain, transform)
        return captured(prepared) if mode == "eager, in a CUDA graph" else prepared

    return Row(
        "1 token" if make_step is decode_step else f"{TRAINED} tokens",
        Candidate(f"Llama patched, {what}, {mode}", partial(prepare, True)),
        [Candidate("not patched", partial(prepare, False), demanded)],
        is_whole=True, needs_grad=make_step is training_step, calls=1)


# ---- All rows -------------------------------------------------------------------------------------------------------


def rows_of(bench: Bench) -> Dict[str, Callable[[], Row]]:
    rows: Dict[str, Callable[[], Row]] = {
        "desc/in-place": partial(desc_in_place_row, bench),
        "desc/new": partial(desc_new_row, bench),
        "desc/numpy": partial(numpy_row, bench, "the C call, in a loop in C", "c_loop"),
        "desc/numpy/ctypes": partial(numpy_row, bench, "the C call, by ctypes with args filled", "ctypes_call"),
        "torch/apply_rotary": partial(beside_operator_row, bench, "apply_rotary", 1.3),
        "torch/rotary_step": partial(beside_operator_row, bench, "rotary_step", None),
    }
    for direction, is_backward in (("forward", False), ("backward", True)):
        for peer_name, name, reference, demanded in (
                ("liger", "Liger", "liger", 1.0), ("formula", "formula in eager", "formula", 0.5),
                ("flash-attn", "flash-attn", "flash_attn", None)):
            rows[f"grad/{direction}/{peer_name}"] = partial(
                gradient_row, bench, is_backward, name, reference, demanded)
    for direction, is_backward in (("forward", False), ("backward", True)):
        for tokens in (8, 512, 4096):
            rows[f"compiled/{direction}/{tokens}"] = partial(compiled_row, bench, tokens, is_backward)
    rows["swiglu/desc"] = partial(
        swiglu_row, bench, "SwigluDesc.forward, out given", "desc", "the operator, out given", "operator_out")
    rows["swiglu/function"] = partial(
        swiglu_row, bench, "librope.swiglu", "function", "the operator, new output", "operator_new")
    eager = "librope.torch.swiglu", "torch_function", "silu(x) * up in eager", "formula", 1.0
    rows["swiglu/torch"] = partial(swiglu_row, bench, *eager)
    rows["swiglu/torch/backward"] = partial(
        swiglu_row, bench, "librope.torch.swiglu, forward and backward", *eager[1:4], is_backward=True)
    for count in (8, 64, 1024):
        rows[f"swiglu/compiled/{count}"] = partial(compiled_swiglu_row, bench, count)
    for name, make_step, what in (("decode", decode_step, "decode step"), ("training", training_step, "training step")):
        for key, (mode, demanded) in MODES.items():
            rows[f"llama/{name}/{key}"] = partial(model_row, bench, make_step, what, mode, demanded)
    return rows


def line_of(result: Dict[str, Any]) -> str:
    """A line of the table."""
    if "us" not in result:
        return f"| {result['entry']} | {result['shape']} | {result['measure']} | | {result['reference']} | | | | |"
    demanded = result.get("demanded")
    verdict = "" if demanded is None else "yes" if result["ratio"] <= demanded else "NO"
    return (f"| {result['entry']} | {result['shape']} | {result['measure']} | {result['us']:.1f} | "
            f"{result['reference']} | {result['reference_us']:.1f} | {result['ratio']:.2f} | "
            f"{'' if demanded is None else format(demanded, '.2f')} | {verdict} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--operator")
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    bench = Bench(options.device, options.operator, options.quick)
    rows = {name: make for name, make in rows_of(bench).items()
            if not options.only or any(fnmatch.fnmatch(name, glob) for glob in options.only)}
    if options.list or not rows:
        print("\n".join(rows_of(bench)))
        return 0 if options.list else 2
    torch.manual_seed(22)
    if not bench.is_gpu:  # tensors are small, and the time of waking threads is not to be measured
        torch.set_num_threads(1)
    document = {
        "program": "bench.py", "format": 1, "library": librope.build_info(), "torch": torch.__version__,
        "python": sys.version.split()[0], "quick": options.quick, "own_operators": bench.has_own_operators,
        "builtins": not _calls.why_ctypes,
        "device": torch.cuda.get_device_name(bench.device) if bench.is_gpu else "CPU"}
    print(f"{document['library']}; {document['device']}; torch {torch.__version__}, Python {document['python']}; "
          f"{'no builtins' if _calls.why_ctypes else 'builtins'}, operators in "
          f"{'C++' if bench.has_own_operators else 'Python'}\n")
    print("| entry | shape | time | us | beside | us | ratio | at most | reached |\n" + "|---" * 9 + "|", flush=True)
    results = []
    for name, make in rows.items():
        results.append(run(name, make(), bench))
        print(line_of(results[-1]), flush=True)
    for result in results:
        if "message" in result:
            print(f"\n{result['row']}: {result['message']}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({**document, "rows": results}, file, indent=1)
            file.write("\n")
    return 1 if any(result.get("message", "").startswith("failed") for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
