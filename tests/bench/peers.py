#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures librope and other libraries on cases of rope-bench, in one process on one GPU.

usage: peers.py [--library FILE] [--case GLOB]... [--json FILE] [--rope-bench FILE] [--commit ID] [--no-compile]
                [--list] [--tiny]

  --library     the librope.so to measure; default: build/librope.so
  --case        only workloads whose names match GLOB
  --json        writes every figure to FILE
  --rope-bench  FILE is the JSON of rope-bench: its rows are added as "librope, from C"
  --commit      the commit that the JSON names; default: ROPE_BENCH_COMMIT of the environment
  --no-compile  leaves out torch.compile, which takes minutes
  --list        prints the names of the workloads
  --tiny        a few tokens and no times, on the CPU if there is no GPU: checks that this program works

The implementations are librope through ctypes; the formulas of Hugging Face's models in torch, eager and compiled
(modes default and max-autotune-no-cudagraphs); Triton kernels as in the tutorials; and flash-attn, Liger, vLLM, sglang,
flashinfer and TransformerEngine if they are installed. For a step (norm, rotation, cache), and for outputs that are
codes, vLLM, sglang and flashinfer run the kernels that they have for it; where one kernel or several can do it, both
ways are measured. The preparation of an implementation (tables of cosines, gathered rows, flat views) is not timed.

Method: the results of each implementation are first compared with a reference in double; the memory of its outputs is
filled with NaN before. Codes times their scale may differ from it by the distance to the next code. Times are medians
of replays of a CUDA graph of several calls over buffers that together exceed the L2 cache (decode: four sets inside
it), alternating with replays of a copy kernel (16 bytes per thread; where outputs are codes, it writes 8 of 16) that
moves as many bytes.
"""

import argparse
import ctypes
import datetime
import fnmatch
import importlib
import importlib.metadata
import importlib.util
import itertools
import json
import math
import os
import statistics
import sys
import time

import numpy
import torch

HERE = os.path.dirname(os.path.abspath(__file__))

# ---- Cases: those of cases.txt; its first lines define the keys and values ----

# A workload has the name of a case without /angles/place and what follows. The cases of rope-bench that begin with the
# name are its variants: librope runs each of them, a peer runs the workload once.
WORKLOADS = [
    "rope/r1/f32", "rope/one-head/f32", "rope/r3/f16", "rope/llama3-8b/prefill/bf16", "rope/llama3-70b/prefill/bf16",
    "rope/llama3-8b/decode-1/bf16", "rope/llama3-8b/decode-8/bf16", "rope/llama3-8b/decode-64/bf16",
    "rope/llama3-8b/decode-256/bf16", "rope/d128-rot64/bf16", "rope/d256-rot64/bf16", "rope/gpt-j/prefill/f16",
    "rope/train/bshd/backward/bf16", "rope/train/sbhd/backward/bf16", "swiglu/llama3-8b/separate/bf16",
    "swiglu/llama3-8b/packed/bf16", "swiglu/llama3-8b/decode-1/bf16", "swiglu/llama3-8b/decode-8/bf16",
    "swiglu/llama3-8b/decode-64/bf16", "swiglu/llama3-8b/decode-256/bf16", "swiglu/f32/f32",
    "swiglu/llama3-8b/backward-separate/bf16", "step/norm-rope/32+8/half/bf16", "step/norm-rope/64+8/half/bf16",
    "step/rope-cache/32+8+8/half/nhd-i64/bf16", "step/rope-cache/64+8+8/half/nhd-i64/bf16",
    "step/norm-rope-cache/32+8+8/half/nhd-i64/bf16", "step/norm-rope-cache/64+8+8/half/nhd-i64/bf16",
    "step/cache-alone/0+8+8/nhd-i64/bf16"
] + [f"step/{step}/decode-{tokens}/bf16" for step in ("norm-rope", "rope-cache", "norm-rope-cache", "cache-alone")
     for tokens in (1, 8, 64, 256)]
# Outputs that are codes of E4M3.
WORKLOADS += [f"swiglu/codes/{rows}x14336/scales-{scales}/bf16" for scales in ("static", "128")
              for rows in (8192, 1, 8, 64, 256)]
WORKLOADS += [f"step/{step}/{shape}/bf16" for step in ("rope-cache/codes-cache", "norm-rope-cache/codes-all")
              for shape in ("half", "decode-1", "decode-8", "decode-64", "decode-256")]


def read_cases():
    """Returns the keys and values of the cases with measure=stream or resident, by name."""
    cases = {}
    with open(os.path.join(HERE, "cases.txt"), encoding="utf-8") as file:
        for line in file.read().replace("\\\n", " ").splitlines():
            words = line.split("#")[0].split()
            if not words or words[0] != "case":
                continue
            pairs = [word.split("=", 1) for word in words[2:]]
            for values in itertools.product(*(value.split(",") for _, value in pairs)):
                case = {key: value for (key, _), value in zip(pairs, values)}
                if case.get("measure", "stream") not in ("stream", "resident"):
                    continue
                name = words[1].format(**case) + "/" + case.get("dtype", "bf16")
                if "columns" not in case and case.get("rotated") != "no":
                    name += "/" + case.get("angles", "computed") + "/" + case.get("place", "in-place")
                if case.get("launch") == "pdl":
                    name += "/pdl"
                cases[name] = case
    return cases


def variants_of(workload, cases):
    """The cases of a workload's name, by their own names."""
    return {name: case for name, case in cases.items() if name == workload or name.startswith(workload + "/")}


# ---- librope through ctypes: the Python package's declarations of rope.h, without the package ----

ABI_FILE = os.path.join(HERE, "..", "..", "bindings", "python", "librope", "_abi.py")
abi_spec = importlib.util.spec_from_file_location("rope_abi", ABI_FILE)
abi = importlib.util.module_from_spec(abi_spec)
abi_spec.loader.exec_module(abi)

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
CODE = torch.float8_e4m3fn
LARGEST_CODE = 448.0
CODE_SCALE = 2.0**-5  # the static scale
SCALE_FLOOR = 1e-10  # the least largest magnitude that gives a written scale
DTYPE_NUMBERS = {torch.float32: abi.ROPE_DTYPE_F32, torch.float16: abi.ROPE_DTYPE_F16,
                 torch.bfloat16: abi.ROPE_DTYPE_BF16, torch.int32: abi.ROPE_DTYPE_I32, torch.int64: abi.ROPE_DTYPE_I64,
                 CODE: abi.ROPE_DTYPE_F8_E4M3}
LAYOUTS = {"bshd": abi.ROPE_LAYOUT_BSHD, "sbhd": abi.ROPE_LAYOUT_SBHD, "bhsd": abi.ROPE_LAYOUT_BHSD,
           "thd": abi.ROPE_LAYOUT_THD}
STYLES = {"half": abi.ROPE_STYLE_HALF, "interleaved": abi.ROPE_STYLE_INTERLEAVED}
PAGE_ENTRIES = 16  # entries of a page of a cache
NORM_EPS = 1e-6


class NotHere(Exception):
    """An implementation cannot run a workload here. The text is the reason."""


OTHER_CASE = "not of this case"  # the reason if the implementation is of another operation; such rows are dropped


class Library:

    def __init__(self, path):
        self.functions = ctypes.CDLL(path)
        abi.bind(self.functions)

    def build_info(self):
        return self.functions.rope_build_info().decode()

    def check(self, status):
        if status == abi.ROPE_STATUS_SUCCESS:
            return
        text = self.functions.rope_last_error().decode()
        raise NotHere(text) if status == abi.ROPE_STATUS_NOT_SUPPORTED else RuntimeError(text)

    def create(self, function, config):
        config.struct_size = ctypes.sizeof(config)
        descriptor = ctypes.c_void_p()
        self.check(getattr(self.functions, function)(config, descriptor))
        return descriptor

    def caller(self, function, descriptor, args_of_sets, on_gpu):
        """Returns a function that calls the library with the args of a set, and does nothing else."""
        call, check = getattr(self.functions, function), self.check

        def run(i):
            stream = torch.cuda.current_stream().cuda_stream if on_gpu else None
            status = call(descriptor, args_of_sets[i], stream)
            if status != abi.ROPE_STATUS_SUCCESS:
                check(status)

        return run


def view_of(tensor):
    view = abi.rope_tensor_t(data=tensor.data_ptr(), dtype=DTYPE_NUMBERS[tensor.dtype], ndim=tensor.dim(),
                             flags=abi.ROPE_TENSOR_STRIDED)
    view.shape[:tensor.dim()] = tensor.shape
    view.stride[:tensor.dim()] = tensor.stride()
    return view


# ---- Workloads: tensors, and a reference in double ----


class Workload:
    """The part of a case that its implementations have in common: `sets` sets of inputs, and the expected outputs.

    Subclasses have these functions, which read or compute a few sampled tokens or rows of set 0 in double:
      before()        the inputs. It runs before a call, which may overwrite them
      exact(before)   the expected outputs
      got(outputs)    the outputs of a call, codes times their scale; None: the call worked in place
    """

    def __init__(self, case, options):
        self.case, self.device = case, options.device
        self.dtype_name = case.get("dtype", "bf16")
        self.dtype = DTYPES[self.dtype_name]
        self.is_backward = case.get("direction") == "backward"
        self.is_resident = case.get("measure") == "resident"
        self.is_tiny = options.tiny
        self.has_codes, self.has_code_q = "codes" in case, case.get("codes") == "all"
        self.scale = torch.full((1,), CODE_SCALE, device=self.device)
        self.generator = torch.Generator(device=self.device)
        self.generator.manual_seed(1)

    def random(self, *shape):
        tensor = torch.empty(shape, dtype=self.dtype, device=self.device)
        return tensor.uniform_(-2, 2, generator=self.generator)

    def poison(self):
        """Writes NaN to those outputs of set 0 that all implementations share: the caches."""

    def count_sets(self, footprint):
        """The number of sets of `footprint` bytes each: together four times the L2 cache, within 2 to 64."""
        if self.is_tiny:
            return 2
        if self.is_resident:
            return 4
        l2 = torch.cuda.get_device_properties(0).L2_cache_size
        return max(2, min(64, math.ceil(4 * l2 / footprint)))

    def rounding_error(self):
        """The largest relative error without codes. It is larger than that of librope: peers round more than once."""
        return {"f32": 5e-3, "f16": 2e-3, "bf16": 1e-2}[self.dtype_name]

    def allowed_error(self):
        """The largest relative error. Codes rounded to nearest have about 0.026, truncated ones 0.052."""
        return 4e-2 if self.has_codes else self.rounding_error()

    def code_scales(self, exact):
        """The scales of the exact outputs, or None for outputs that are not codes."""
        return [None] * len(exact)


class RopeWorkload(Workload):

    def __init__(self, case, options):
        super().__init__(case, options)
        self.layout = case.get("layout", "thd")
        self.batch, self.tokens = int(case.get("batch", 1)), int(case["tokens"])
        if self.is_tiny:
            self.batch, self.tokens = min(self.batch, 2), min(self.tokens, 19)
        self.q_heads, self.k_heads, self.v_heads = (int(heads) for heads in (case["heads"] + "+0").split("+")[:3])
        self.head_dim = int(case["dim"])
        self.rotary_dim = int(case.get("rotary", self.head_dim))
        self.pairs = self.rotary_dim // 2
        self.is_interleaved = case.get("style") == "interleaved"
        self.theta = float(case.get("theta", 5e5))
        exponents = torch.arange(self.pairs, dtype=torch.float64, device=self.device) * (-2.0 / self.rotary_dim)
        self.inv_freq = self.theta**exponents
        rows = self.batch * self.tokens
        self.count_bytes(rows, torch.empty(0, dtype=self.dtype).element_size())
        # `positions` has those of tokens b * S + s, `row_positions` those of rows in memory order.
        if self.is_resident:
            self.positions = torch.randint(0, 8192, (rows,), device=self.device, generator=self.generator)
            self.max_position = 8192
        else:
            self.positions = torch.arange(self.tokens, device=self.device).repeat(self.batch)
            self.max_position = self.tokens
        self.row_positions = self.positions
        if self.layout == "sbhd":
            self.row_positions = self.positions.view(self.batch, self.tokens).t().reshape(-1).contiguous()
        angles = torch.arange(self.max_position, device=self.device, dtype=torch.float64)[:, None] * self.inv_freq
        self.cos32, self.sin32 = angles.cos().float(), angles.sin().float()
        self.cos, self.sin = self.cos32.to(self.dtype), self.sin32.to(self.dtype)
        del angles
        self.sets = self.count_sets(self.bytes_in_place / 2)  # in place, bytes are read and written once each
        self.make_inputs()
        self.outputs = None

    def count_bytes(self, rows, size):
        heads = self.q_heads + self.k_heads + self.v_heads
        self.bytes_in_place = 2 * rows * heads * self.rotary_dim * size
        self.bytes_out_of_place = 2 * rows * heads * self.head_dim * size

    def make_inputs(self):
        self.q = [self.random(*self.shape(self.q_heads)) for _ in range(self.sets)]
        self.k = [self.random(*self.shape(self.k_heads)) if self.k_heads else None for _ in range(self.sets)]

    def shape(self, heads):
        if self.layout == "thd":
            return (self.tokens, heads, self.head_dim)
        if self.layout == "sbhd":
            return (self.tokens, self.batch, heads, self.head_dim)
        return (self.batch, self.tokens, heads, self.head_dim)

    def inputs(self, i):
        return [tensor for tensor in (self.q[i], self.k[i]) if tensor is not None]

    def given_outputs(self):
        """Preallocated outputs, one for each set."""
        if self.outputs is None:
            self.outputs = [[torch.empty_like(tensor) for tensor in self.inputs(i)] for i in range(self.sets)]
        return self.outputs

    def as_bshd(self, tensor):
        if self.layout == "thd":
            return tensor.view(1, self.tokens, *tensor.shape[-2:])
        return tensor.transpose(0, 1) if self.layout == "sbhd" else tensor

    def flat(self, tensor):
        """A view [rows in memory order, H, D]."""
        return tensor.view(-1, *tensor.shape[-2:])

    def sampled_tokens(self):
        count = self.batch * self.tokens
        return torch.linspace(0, count - 1, min(count, 16), device=self.device, dtype=torch.float64).long()

    def sampled(self, tensor):
        """The sampled tokens in double, [n, H, D], and their positions, [n]."""
        tokens = self.sampled_tokens()
        rows = self.as_bshd(tensor)[tokens // self.tokens, tokens % self.tokens]
        return rows.double().clone(), self.positions[tokens]

    def before(self):
        return [self.sampled(tensor) for tensor in self.inputs(0)]

    def exact(self, before):
        results = []
        for rows, positions in before:
            angles = (positions.double()[:, None] * self.inv_freq)[:, None, :]
            cos, sin = angles.cos(), -angles.sin() if self.is_backward else angles.sin()
            result = rows.clone()
            x, y = self.halves(rows)
            new_x, new_y = self.halves(result)
            new_x.copy_(x * cos - y * sin)
            new_y.copy_(x * sin + y * cos)
            results.append(result)
        return results

    def halves(self, tensor):
        if self.is_interleaved:
            return tensor[..., 0:self.rotary_dim:2], tensor[..., 1:self.rotary_dim:2]
        return tensor[..., :self.pairs], tensor[..., self.pairs:self.rotary_dim]

    def got(self, outputs):
        return [self.sampled(tensor)[0] for tensor in (self.inputs(0) if outputs is None else outputs)]


class StepWorkload(RopeWorkload):
    """Those of RMS norm, rotation and cache that the case has, on views of one packed tensor [T, Hq + Hk + Hv, D]."""

    def count_bytes(self, rows, size):
        super().count_bytes(rows, size)
        if self.has_codes:
            of_q = self.q_heads * (size + (1 if self.has_code_q else size))
            of_caches = (self.k_heads + self.v_heads) * (size + 1)
            self.bytes_in_place = self.bytes_out_of_place = rows * self.head_dim * (of_q + of_caches)

    def make_inputs(self):
        self.has_norm, self.has_cache = "norm" in self.case, "cache" in self.case
        self.is_turned = self.case.get("rotated") != "no"
        heads = [self.q_heads, self.k_heads, self.v_heads]
        self.packed = [self.random(self.tokens, sum(heads), self.head_dim) for _ in range(self.sets)]
        parts = [packed.split(heads, 1) for packed in self.packed]
        self.q, self.k, self.v = ([part[i] if heads[i] else None for part in parts] for i in range(3))
        # Weights have magnitude 1. Calls in place norm their own results: with other weights only the channel with the
        # largest one would remain after many calls.
        self.weights = [self.random(self.head_dim).sign() for _ in range(2)]
        if self.has_cache:
            self.make_caches()

    def make_caches(self):
        """Makes caches [pages, entries, H, D] with twice as many pages as a call writes to, in random order. In decode
        each token has a page of its own."""
        self.num_pages = 2 * -(-self.tokens // PAGE_ENTRIES)
        if self.is_resident:
            self.num_pages = max(2 * self.tokens, 0 if self.is_tiny else 2048)
        self.pages = torch.randperm(self.num_pages, device=self.device, generator=self.generator)
        token = torch.arange(self.tokens, device=self.device)
        if self.is_resident:
            self.entries = torch.randint(0, PAGE_ENTRIES, (self.tokens,), device=self.device, generator=self.generator)
            self.slots = self.pages[token] * PAGE_ENTRIES + self.entries
        else:
            self.entries = token % PAGE_ENTRIES
            self.slots = self.pages[token // PAGE_ENTRIES] * PAGE_ENTRIES + self.entries
        dtype = CODE if self.has_codes else self.dtype
        self.k_cache, self.v_cache = ([
            torch.empty(self.num_pages, PAGE_ENTRIES, heads, self.head_dim, dtype=dtype, device=self.device)
            for _ in range(self.sets)
        ] for heads in (self.k_heads, self.v_heads))

    def inputs(self, i):
        return [tensors[i] for tensors in (self.q, self.k, self.v) if tensors[i] is not None]

    def given_outputs(self):
        """With codes of q there is one output beside the caches."""
        if self.outputs is None and self.has_code_q:
            self.outputs = [[torch.empty_like(q, dtype=CODE)] for q in self.q]
        return super().given_outputs()

    def poison(self):
        for cache in (self.k_cache[0], self.v_cache[0]) if self.has_cache else ():
            cache.fill_(math.nan)

    def exact(self, before):
        unturned = before[-1:] if self.v_heads else []
        turned = before[:len(before) - len(unturned)]
        if self.has_norm:
            turned = [(rows * (rows.square().mean(-1, keepdim=True) + NORM_EPS).rsqrt() * weight, positions)
                      for (rows, positions), weight in zip(turned, self.weights)]
        results = super().exact(turned) if self.is_turned else [rows for rows, _ in turned]
        return results + [rows for rows, _ in unturned]

    def code_scales(self, exact):
        if not self.has_codes:
            return super().code_scales(exact)
        scale = self.scale.double()
        return [scale if self.has_code_q else None, scale, scale]

    def got(self, outputs):
        given = self.inputs(0) if outputs is None else outputs
        beside_cache = given[:(self.q[0] is not None) + (not self.has_cache)]  # k and v are read from their caches
        rows = [self.sampled(tensor)[0] for tensor in beside_cache]
        slots = self.slots[self.sampled_tokens()] if self.has_cache else None
        caches = (self.k_cache[0], self.v_cache[0]) if self.has_cache else ()
        rows += [cache.flatten(0, 1)[slots].double() for cache in caches]
        return [values if scale is None else values * scale for values, scale in zip(rows, self.code_scales(rows))]


class SwigluWorkload(Workload):

    def __init__(self, case, options):
        super().__init__(case, options)
        self.rows, self.columns = int(case["rows"]), int(case["columns"])
        if self.is_tiny:
            self.rows, self.columns = min(self.rows, 5), 256
        self.is_packed = case.get("gate") == "packed"
        scales = case.get("scales", "static")
        self.scale_group = 0 if scales == "static" else int(scales)  # columns of a written scale
        size, elements = torch.empty(0, dtype=self.dtype).element_size(), self.rows * self.columns
        self.bytes_in_place = elements * size * (5 if self.is_backward else 3)
        if self.has_codes:
            scales = elements // self.scale_group if self.scale_group else 0
            self.bytes_in_place = elements * (2 * size + 1) + scales * 4
        self.bytes_out_of_place = self.bytes_in_place
        self.sets = self.count_sets(self.bytes_in_place)
        self.packed, self.gate, self.up = [], [], []
        for _ in range(self.sets):
            if self.is_packed:
                self.packed.append(self.random(self.rows, 2 * self.columns))
                self.gate.append(self.packed[-1][:, :self.columns])
                self.up.append(self.packed[-1][:, self.columns:])
            else:
                self.gate.append(self.random(self.rows, self.columns))
                self.up.append(self.random(self.rows, self.columns))
        self.grad_out = [self.random(self.rows, self.columns) for _ in range(self.sets if self.is_backward else 0)]
        self.outputs = None

    def inputs(self, i):
        return [self.gate[i], self.up[i]]

    def given_outputs(self):
        """The output, or both gradients, or codes and their written scales."""
        if self.outputs is None:
            kinds = [(self.columns, CODE if self.has_codes else self.dtype)] * (2 if self.is_backward else 1)
            if self.scale_group:
                kinds.append((self.columns // self.scale_group, torch.float32))
            self.outputs = [[
                torch.empty(self.rows, columns, dtype=dtype, device=self.device) for columns, dtype in kinds
            ] for _ in range(self.sets)]
        return self.outputs

    def sampled(self, tensor):
        rows = torch.linspace(0, self.rows - 1, min(self.rows, 4), device=self.device, dtype=torch.float64).long()
        return tensor[rows].double().clone()

    def before(self):
        return [self.sampled(tensor) for tensor in self.inputs(0) + self.grad_out[:1]]

    def exact(self, before):
        gate, up = before[:2]
        sigmoid = torch.sigmoid(gate)
        if not self.is_backward:
            return [gate * sigmoid * up]
        return [before[2] * up * sigmoid * (1 + gate * (1 - sigmoid)), before[2] * gate * sigmoid]

    def code_scales(self, exact):
        if not self.has_codes:
            return super().code_scales(exact)
        if not self.scale_group:
            return [self.scale.double()]
        largest = exact[0].unflatten(-1, (-1, self.scale_group)).abs().amax(-1).clamp(min=SCALE_FLOOR)
        return [self.of_columns(largest / LARGEST_CODE)]

    def of_columns(self, scales):
        """Written scales, each repeated for the columns of its group."""
        return scales.repeat_interleave(self.scale_group, -1)

    def got(self, outputs):
        results = [self.sampled(tensor) for tensor in outputs]
        if not self.has_codes:
            return results
        return [results[0] * (self.of_columns(results[1]) if self.scale_group else self.scale)]


def make_workload(case, options):
    kind = SwigluWorkload if "columns" in case else StepWorkload if "norm" in case or "cache" in case else RopeWorkload
    return kind(case, options)


# ---- Implementations: functions of a workload that return an Implementation, or raise NotHere ----


class Implementation:

    def __init__(self, run, in_place=False, poison=None):
        self.run = run  # run(i) processes set i and returns the outputs, or None if it works in place
        self.in_place = in_place
        self.poison = poison  # writes NaN to preallocated outputs of set 0; None: there are none


def poison_of(tensors):
    return lambda: [tensor.fill_(math.nan) for tensor in tensors]


def add_step(args, workload, i):
    """Adds the norm, cache and scales of a step to the args of a rotation of set i."""
    if not workload.is_turned:
        args.flags |= abi.ROPE_FLAG_UNROTATED
    if workload.has_norm:
        q_weight, k_weight = (view_of(weight) for weight in workload.weights)
        norm = abi.rope_norm_args_t(ctypes.sizeof(abi.rope_norm_args_t), q_weight=q_weight, k_weight=k_weight)
        args.norm = ctypes.pointer(norm)
    if workload.has_cache:
        args.flags |= abi.ROPE_FLAG_V_UNROTATED
        args.v = view_of(workload.v[i])
        cache = abi.rope_cache_args_t(ctypes.sizeof(abi.rope_cache_args_t), slots=view_of(workload.slots))
        cache.k_cache, cache.v_cache = view_of(workload.k_cache[i]), view_of(workload.v_cache[i])
        args.cache = ctypes.pointer(cache)
    if workload.has_codes:
        scale = view_of(workload.scale)
        quant = abi.rope_quant_args_t(ctypes.sizeof(abi.rope_quant_args_t), k_scale=scale, v_scale=scale)
        if workload.has_code_q:
            quant.q_scale = scale
        args.quant = ctypes.pointer(quant)


def librope(library, workload, case):
    """librope on a variant of the workload."""
    on_gpu = workload.device == "cuda"
    flags = abi.ROPE_FLAG_PROGRAMMATIC_LAUNCH if case.get("launch") == "pdl" else 0
    common = {"device": abi.ROPE_DEVICE_CUDA if on_gpu else abi.ROPE_DEVICE_CPU, "dtype": DTYPE_NUMBERS[workload.dtype]}
    is_out_of_place = case.get("place") == "out-of-place"
    given = workload.given_outputs() if is_out_of_place or "columns" in case else None
    if "columns" in case:
        descriptor = library.create("swiglu_desc_create", abi.swiglu_config_t(**common))
        args_of_sets = []
        for i in range(workload.sets):
            args = abi.swiglu_args_t(struct_size=ctypes.sizeof(abi.swiglu_args_t), flags=flags)
            args.gate, args.up = view_of(workload.gate[i]), view_of(workload.up[i])
            if workload.is_backward:
                args.grad_out = view_of(workload.grad_out[i])
                args.grad_gate, args.grad_up = view_of(given[i][0]), view_of(given[i][1])
            else:
                args.out = view_of(given[i][0])
            if workload.has_codes:
                quant = abi.swiglu_quant_args_t(ctypes.sizeof(abi.swiglu_quant_args_t))
                if workload.scale_group:
                    quant.scales_out = view_of(given[i][1])
                else:
                    quant.scale = view_of(workload.scale)
                args.quant = ctypes.pointer(quant)
            args_of_sets.append(args)
        function = "swiglu_backward" if workload.is_backward else "swiglu_forward"
    else:
        config = abi.rope_config_t(layout=LAYOUTS[workload.layout], style=STYLES[case.get("style", "half")],
                                   head_dim=workload.head_dim, rotary_dim=workload.rotary_dim, theta=workload.theta,
                                   **common)
        is_step = isinstance(workload, StepWorkload)
        if is_step and workload.has_norm:
            config.norm, config.norm_eps = abi.ROPE_NORM_RMS, NORM_EPS
        descriptor = library.create("rope_desc_create", config)
        angles = case.get("angles", "computed")
        args_of_sets = []
        for i in range(workload.sets):
            args = abi.rope_args_t(struct_size=ctypes.sizeof(abi.rope_args_t), flags=flags)
            if workload.q[i] is not None:
                args.q = view_of(workload.q[i])
            if workload.k[i] is not None:
                args.k = view_of(workload.k[i])
            if is_step:
                add_step(args, workload, i)
            if is_out_of_place:
                args.q_out = view_of(given[i][0])
                if len(given[i]) > 1:
                    args.k_out = view_of(given[i][1])
            if "positions" in case:
                args.positions = view_of(workload.positions)
            if angles != "computed":
                cos, sin = (workload.cos32, workload.sin32) if angles == "table-f32" else (workload.cos, workload.sin)
                args.cos, args.sin = view_of(cos), view_of(sin)
            args_of_sets.append(args)
        function = "rope_backward" if workload.is_backward else "rope_forward"
    call = library.caller(function, descriptor, args_of_sets, on_gpu)
    if given is None:
        return Implementation(call, in_place=True)

    def run(i):
        call(i)
        return given[i]

    return Implementation(run, poison=poison_of(given[0]))


def quantised(values, scale):
    """Codes of E4M3, as vLLM has them in torch."""
    return (values.float() * scale.reciprocal()).clamp(-LARGEST_CODE, LARGEST_CODE).to(CODE)


def quantised_in_groups(values, size):
    """Codes of E4M3, and a written scale for each group of `size` columns."""
    groups = values.float().unflatten(-1, (-1, size))
    scales = groups.abs().amax(-1, keepdim=True).clamp(min=SCALE_FLOOR) / LARGEST_CODE
    return quantised(groups, scales).flatten(-2), scales.squeeze(-1)


def formula(workload):
    """The workload in torch, as in Hugging Face's models: a function of tensors that returns the outputs, and a
    function that returns its arguments for set i."""
    if isinstance(workload, SwigluWorkload):
        if workload.is_backward:

            def gradient(gate, up, grad_out):
                sigmoid = torch.sigmoid(gate)
                return grad_out * up * sigmoid * (1 + gate * (1 - sigmoid)), grad_out * gate * sigmoid

            return gradient, lambda i: (workload.gate[i], workload.up[i], workload.grad_out[i])
        if workload.is_packed:
            columns, has_codes, group = workload.columns, workload.has_codes, workload.scale_group

            def gated_packed(packed, scale):
                product = torch.nn.functional.silu(packed[:, :columns]) * packed[:, columns:]
                if group:
                    return quantised_in_groups(product, group)
                return (quantised(product, scale) if has_codes else product,)

            return gated_packed, lambda i: (workload.packed[i], workload.scale)
        return (lambda gate, up: (torch.nn.functional.silu(gate) * up,)), lambda i: (workload.gate[i], workload.up[i])

    positions = workload.row_positions
    cos, sin = (workload.cos32, workload.sin32) if workload.has_codes else (workload.cos, workload.sin)
    cos, sin = cos[positions], sin[positions]
    if workload.is_backward:
        sin = -sin
    width = workload.rotary_dim
    if workload.is_interleaved:
        cos, sin = cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
    else:
        cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
    if workload.layout == "thd":
        shape = (workload.tokens, 1, width)
    elif workload.layout == "sbhd":
        cos, sin = cos[::workload.batch].contiguous(), sin[::workload.batch].contiguous()
        shape = (workload.tokens, 1, 1, width)
    else:
        cos, sin = cos[:workload.tokens].contiguous(), sin[:workload.tokens].contiguous()
        shape = (1, workload.tokens, 1, width)
    cos, sin = cos.view(shape), sin.view(shape)
    is_interleaved, half, head_dim = workload.is_interleaved, workload.pairs, workload.head_dim

    def rotated_half(x):
        """(x, y) to (-y, x) in each pair: rotate_half of Hugging Face."""
        if is_interleaved:
            return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
        return torch.cat((-x[..., half:], x[..., :half]), -1)

    def rotated(x, cos, sin):
        if width == head_dim:
            return (x * cos + rotated_half(x) * sin).to(x.dtype)
        window = x[..., :width]
        return torch.cat((window * cos + rotated_half(window) * sin, x[..., width:]), -1)

    if isinstance(workload, StepWorkload):
        return step_formula(workload, rotated, cos, sin)
    if workload.k_heads:
        return (lambda q, k, cos, sin: (rotated(q, cos, sin), rotated(k, cos, sin))
                ), lambda i: (workload.q[i], workload.k[i], cos, sin)
    return (lambda q, cos, sin: (rotated(q, cos, sin),)), lambda i: (workload.q[i], cos, sin)


def step_formula(workload, rotated, cos, sin):
    """formula() for a step; k_rows and v_rows are the caches as [pages * entries, H, D]. Codes are bytes there, because
    index_copy_ rejects float8."""
    has_norm, is_turned, has_cache = workload.has_norm, workload.is_turned, workload.has_cache
    has_codes, has_code_q = workload.has_codes, workload.has_code_q

    def normed(x, weight):
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + NORM_EPS)).to(x.dtype) * weight

    def cached(x, scale):
        return quantised(x, scale).view(torch.uint8) if has_codes else x

    def step(q, k, v, q_weight, k_weight, cos, sin, k_rows, v_rows, slots, scale):
        if has_norm:
            q, k = normed(q, q_weight), normed(k, k_weight)
        if is_turned:
            q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        if not has_cache:
            return q, k
        k_rows.index_copy_(0, slots, cached(k, scale))
        v_rows.index_copy_(0, slots, cached(v, scale))
        if q is None:
            return ()
        return (quantised(q, scale) if has_code_q else q,)

    def inputs(i):
        rows = [cache[i].flatten(0, 1) for cache in ((workload.k_cache, workload.v_cache) if has_cache else ())]
        if has_codes:
            rows = [cache.view(torch.uint8) for cache in rows]
        cache = (*rows, workload.slots) if has_cache else (None, None, None)
        return workload.q[i], workload.k[i], workload.v[i], *workload.weights, cos, sin, *cache, workload.scale

    return step, inputs


def torch_eager(workload):
    function, inputs = formula(workload)
    return Implementation(lambda i: function(*inputs(i)))


def torch_compile(mode):

    def make(workload):
        if workload.device != "cuda":
            raise NotHere("no GPU")
        torch._dynamo.reset()
        function, inputs = formula(workload)
        compiled = torch.compile(function, dynamic=False, mode=mode)
        return Implementation(lambda i: compiled(*inputs(i)))

    return make


# ---- Triton, as the tutorials write it ----

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

if triton is not None:

    @triton.jit
    def rope_kernel(q, k, q_out, k_out, cos, sin, positions, q_heads, k_heads, head_dim, PAIRS: tl.constexpr,
                    HEADS: tl.constexpr, INTERLEAVED: tl.constexpr, BACKWARD: tl.constexpr):
        # A program rotates HEADS heads of q, or of k, of one token. cos and sin are [positions, PAIRS].
        token = tl.program_id(0).to(tl.int64)
        block = tl.program_id(1)
        q_blocks = tl.cdiv(q_heads, HEADS)
        position = tl.load(positions + token)
        pair = tl.arange(0, PAIRS)
        c = tl.load(cos + position * PAIRS + pair)[None, :]
        s = tl.load(sin + position * PAIRS + pair)[None, :]
        if BACKWARD:
            s = -s
        source, target, heads = q, q_out, q_heads
        if block >= q_blocks:
            block -= q_blocks
            source, target, heads = k, k_out, k_heads
        head = block * HEADS + tl.arange(0, HEADS)
        start = token * heads * head_dim + head[:, None] * head_dim
        mask = head[:, None] < heads
        if INTERLEAVED:
            channel = tl.arange(0, 2 * PAIRS)[None, :]
            window = tl.load(source + start + channel, mask=mask).to(tl.float32)
            x, y = tl.split(tl.reshape(window, (HEADS, PAIRS, 2)))
            result = tl.reshape(tl.join(x * c - y * s, x * s + y * c), (HEADS, 2 * PAIRS))
            tl.store(target + start + channel, result, mask=mask)
        else:
            x = tl.load(source + start + pair[None, :], mask=mask).to(tl.float32)
            y = tl.load(source + start + PAIRS + pair[None, :], mask=mask).to(tl.float32)
            tl.store(target + start + pair[None, :], x * c - y * s, mask=mask)
            tl.store(target + start + PAIRS + pair[None, :], x * s + y * c, mask=mask)

    @triton.jit
    def gated(gate, up, row, column, mask, gate_stride, up_stride):
        g = tl.load(gate + row * gate_stride + column, mask=mask).to(tl.float32)
        u = tl.load(up + row * up_stride + column, mask=mask).to(tl.float32)
        return g * tl.sigmoid(g) * u

    @triton.jit
    def swiglu_kernel(gate, up, out, columns, gate_stride, up_stride, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        mask = column < columns
        product = gated(gate, up, row, column, mask, gate_stride, up_stride)
        tl.store(out + row * columns + column, product, mask=mask)

    @triton.jit
    def swiglu_codes_kernel(gate, up, out, scales, columns, gate_stride, up_stride, floor, LARGEST: tl.constexpr,
                            GROUPS: tl.constexpr, SIZE: tl.constexpr, WRITTEN: tl.constexpr):
        # A program computes GROUPS groups of SIZE columns of a row. Each has a written scale, or all one static scale.
        row = tl.program_id(0).to(tl.int64)
        group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
        column = group[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
        mask = column < columns
        product = gated(gate, up, row, column, mask, gate_stride, up_stride)
        if WRITTEN:
            scale = tl.maximum(tl.max(tl.abs(product), 1), floor) / LARGEST
            tl.store(scales + row * (columns // SIZE) + group, scale, mask=group < columns // SIZE)
            product *= (1 / scale)[:, None]
        else:
            product *= 1 / tl.load(scales)
        codes = tl.clamp(product, -LARGEST, LARGEST).to(out.dtype.element_ty)
        tl.store(out + row * columns + column, codes, mask=mask)

    @triton.jit
    def swiglu_backward_kernel(gate, up, grad_out, grad_gate, grad_up, columns, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        mask = column < columns
        at = row * columns + column
        g = tl.load(gate + at, mask=mask).to(tl.float32)
        u = tl.load(up + at, mask=mask).to(tl.float32)
        grad = tl.load(grad_out + at, mask=mask).to(tl.float32)
        sigmoid = tl.sigmoid(g)
        tl.store(grad_gate + at, grad * u * sigmoid * (1 + g * (1 - sigmoid)), mask=mask)
        tl.store(grad_up + at, grad * g * sigmoid, mask=mask)


def require_triton(workload):
    if triton is None:
        raise NotHere("not installed")
    if workload.device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise NotHere("no GPU, and no TRITON_INTERPRET=1")


def triton_rope(in_place, heads_of_program):

    def make(workload):
        if isinstance(workload, (SwigluWorkload, StepWorkload)):
            raise NotHere(OTHER_CASE)
        require_triton(workload)
        if not in_place and workload.rotary_dim < workload.head_dim:
            raise NotHere("rotates in place only where channels pass through")
        given = None if in_place else workload.given_outputs()
        heads = workload.q_heads, workload.k_heads
        grid = (workload.batch * workload.tokens, sum(triton.cdiv(count, heads_of_program) for count in heads))

        def run(i):
            q = workload.q[i]
            k = q if workload.k[i] is None else workload.k[i]
            q_out, k_out = (q, k) if in_place else (given[i][0], given[i][-1])
            rope_kernel[grid](q, k, q_out, k_out, workload.cos32, workload.sin32, workload.row_positions, *heads,
                              workload.head_dim, PAIRS=workload.pairs, HEADS=heads_of_program,
                              INTERLEAVED=workload.is_interleaved, BACKWARD=workload.is_backward)
            return None if in_place else given[i]

        return Implementation(run, in_place, None if in_place else poison_of(given[0]))

    return make


def triton_swiglu(workload):
    if not isinstance(workload, SwigluWorkload):
        raise NotHere(OTHER_CASE)
    require_triton(workload)
    given, block, size = workload.given_outputs(), 1024, workload.scale_group
    grid = (workload.rows, triton.cdiv(workload.columns, block))

    def run(i):
        gate, up = workload.gate[i], workload.up[i]
        if workload.is_backward:
            swiglu_backward_kernel[grid](gate, up, workload.grad_out[i], *given[i], workload.columns, BLOCK=block)
        else:
            swiglu_kernel[grid](gate, up, given[i][0], workload.columns, gate.stride(0), up.stride(0), BLOCK=block)
        return given[i]

    def run_with_codes(i):
        gate, up, codes = workload.gate[i], workload.up[i], given[i][0]
        # Triton's interpreter rounds 126.0 to the code of 64 instead of 128. On the CPU torch rounds.
        out = codes if workload.device == "cuda" else torch.empty_like(codes, dtype=torch.float32)
        swiglu_codes_kernel[grid](gate, up, out, given[i][1] if size else workload.scale, workload.columns,
                                  gate.stride(0), up.stride(0), SCALE_FLOOR, LARGEST=LARGEST_CODE,
                                  GROUPS=block // (size or block), SIZE=size or block, WRITTEN=size > 0)
        if out is not codes:
            codes.copy_(out)
        return given[i]

    return Implementation(run_with_codes if workload.has_codes else run, poison=poison_of(given[0]))


# ---- Other libraries, if they are installed ----


def imported(name, attribute, former_name=None):
    """An attribute of a module; former_name: the module that has it in older versions."""
    try:
        return getattr(importlib.import_module(name), attribute)
    except (ImportError, OSError, AttributeError) as reason:
        if former_name is not None:
            return imported(former_name, attribute)
        raise NotHere(f"not installed ({reason})") from reason


def require_rope(workload, backward=False, interleaved=True, partial=True, needs_k=False):
    """Raises NotHere unless the workload is a rotation that the implementation supports."""
    if isinstance(workload, (SwigluWorkload, StepWorkload)):
        raise NotHere(OTHER_CASE)
    if workload.device != "cuda":
        raise NotHere("no GPU")
    if workload.is_backward and not backward:
        raise NotHere("forward only")
    if workload.is_interleaved and not interleaved:
        raise NotHere("HALF only")
    if workload.rotary_dim < workload.head_dim and not partial:
        raise NotHere("whole heads only")
    if needs_k and not workload.k_heads:
        raise NotHere("needs k")


def require_swiglu(workload, packed, backward=False, codes=False):
    if not isinstance(workload, SwigluWorkload):
        raise NotHere(OTHER_CASE)
    if workload.device != "cuda":
        raise NotHere("no GPU")
    if workload.is_packed != packed:
        raise NotHere("packed only" if packed else "separate only")
    if workload.is_backward and not backward:
        raise NotHere("forward only")
    if workload.has_codes and not codes:
        raise NotHere("no codes")


def flash_attn_rope(workload):
    require_rope(workload, backward=True)
    rotary = imported("flash_attn.ops.triton.rotary", "apply_rotary")
    options = {"interleaved": workload.is_interleaved, "inplace": True, "conjugate": workload.is_backward}
    if workload.is_resident:
        options["seqlen_offsets"] = workload.positions.to(torch.int32)

    def run(i):
        for tensor in workload.inputs(i):
            x = tensor.unsqueeze(1) if workload.is_resident else workload.as_bshd(tensor)
            rotary(x, workload.cos, workload.sin, **options)

    return Implementation(run, in_place=True)


def flash_attn_swiglu(workload):
    require_swiglu(workload, packed=False, backward=True)
    name = "swiglu_bwd" if workload.is_backward else "swiglu_fwd"
    function = imported("flash_attn.ops.activations", name)

    def run(i):
        if workload.is_backward:
            return list(function(workload.gate[i], workload.up[i], workload.grad_out[i]))
        return [function(workload.gate[i], workload.up[i])]

    return Implementation(run)


def liger_rope(workload):
    require_rope(workload, backward=True, interleaved=False, partial=False, needs_k=True)
    function = imported("liger_kernel.ops.rope", "rope_backward" if workload.is_backward else "rope_forward")
    positions = workload.positions if workload.is_resident else workload.positions[:workload.tokens]
    cos, sin = workload.cos[positions], workload.sin[positions]
    cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
    axis = 1 if workload.is_resident else 0
    cos, sin = cos.unsqueeze(axis), sin.unsqueeze(axis)
    if workload.layout == "sbhd":
        raise NotHere("copies what is not BSHD")

    def view(tensor):
        x = tensor.unsqueeze(1) if workload.is_resident else workload.as_bshd(tensor)
        return x.transpose(1, 2)

    def run(i):
        function(view(workload.q[i]), view(workload.k[i]), cos, sin)

    return Implementation(run, in_place=True)


def liger_swiglu(workload):
    require_swiglu(workload, packed=False, backward=True)
    if workload.is_backward:
        raise NotHere("overwrites its inputs")
    function = imported("liger_kernel.ops.swiglu", "swiglu_forward")
    return Implementation(lambda i: [function(workload.gate[i], workload.up[i])[2]])


def cached_rope(find, float_cache):
    """The interface of vLLM, sglang and flashinfer: q and k as [rows, H * D], in place; cos and sin in one table
    [positions, R], in F32 if float_cache, else in the data's type. `find` returns the function."""

    def make(workload):
        require_rope(workload, needs_k=True)
        function = find()
        cos, sin = (workload.cos32, workload.sin32) if float_cache else (workload.cos, workload.sin)
        cache = torch.cat((cos, sin), -1)
        positions = workload.row_positions

        def run(i):
            q, k = (tensor.view(positions.numel(), -1) for tensor in (workload.q[i], workload.k[i]))
            function(positions, q, k, workload.head_dim, cache, not workload.is_interleaved)

        return Implementation(run, in_place=True)

    return make


def vllm_rope():
    return imported("vllm._custom_ops", "rotary_embedding")


def sglang(module, attribute):
    return imported(f"sglang.kernels.ops.{module}", attribute)


def sglang_rope():
    function = sglang("attention.rope", "apply_rope_with_cos_sin_cache_inplace")

    def turn(positions, q, k, head_dim, table, is_neox, **options):
        windows = (tensor.unflatten(-1, (-1, head_dim))[..., :table.shape[-1]] for tensor in (q, k))
        function(*windows, table, positions, is_neox=is_neox, **options)

    return turn


def flashinfer_rope():
    return imported("flashinfer.rope", "apply_rope_with_cos_sin_cache_inplace")


def flashinfer_computed(workload):
    require_rope(workload, needs_k=True)
    function = imported("flashinfer.rope", "apply_rope_pos_ids_inplace")
    positions = workload.row_positions.to(torch.int32)

    def run(i):
        function(workload.flat(workload.q[i]), workload.flat(workload.k[i]), positions, workload.rotary_dim,
                 workload.is_interleaved, 1.0, workload.theta)

    return Implementation(run, in_place=True)


def packed_swiglu(find, codes=False):
    """`find` returns a function of the packed inputs and the outputs. codes: it has one for codes too."""

    def make(workload):
        require_swiglu(workload, packed=True, codes=codes)
        function, given = find(workload), workload.given_outputs()

        def run(i):
            function(workload.packed[i], *given[i])
            return given[i]

        return Implementation(run, poison=poison_of(given[0]))

    return make


def vllm_swiglu(workload):
    imported("vllm._custom_ops", "rotary_embedding")  # the import registers torch.ops._C
    group = workload.scale_group
    name = "silu_and_mul" + ("_per_block_quant" if group else "_quant" if workload.has_codes else "")
    kernel = getattr(torch.ops._C, name, None)
    if kernel is None:
        raise NotHere(f"has no {name}")
    if group:
        return lambda packed, out, scales: kernel(out, packed, scales, group, None, False)
    if workload.has_codes:
        return lambda packed, out: kernel(out, packed, workload.scale)
    return lambda packed, out: kernel(out, packed)


def sglang_swiglu(workload):
    product, group = sglang("activation.activation", "silu_and_mul"), workload.scale_group
    if not workload.has_codes:
        return product
    if group:
        fused = sglang("quantization.per_token_group_quant", "per_token_group_quant")
        return lambda packed, out, scales: fused(packed, out, scales, group, fuse_silu_and_mul=True,
                                                 silu_and_mul_mode="dense")
    quantise = sglang("quantization.per_tensor_quant_fp8", "per_tensor_quant_fp8")
    values = torch.empty(workload.rows, workload.columns, dtype=workload.dtype, device=workload.device)

    def product_and_codes(packed, out):
        product(packed, values)
        quantise(values, out, workload.scale, True)

    return product_and_codes


def flashinfer_swiglu(workload):
    return imported("flashinfer.activation", "silu_and_mul")


def step_of(find_parts):
    """A step in a library's kernels. find_parts returns functions of a set, which run one after the other, and the
    outputs of each set, or None if q and k are changed in place."""

    def make(workload):
        if not isinstance(workload, StepWorkload):
            raise NotHere(OTHER_CASE)
        if workload.device != "cuda":
            raise NotHere("no GPU")
        parts, given = find_parts(workload)

        def run(i):
            for part in parts:
                part(i)
            return None if given is None else given[i]

        return Implementation(run, given is None, None if given is None else poison_of(given[0]))

    return make


def code_outputs(workload):
    return workload.given_outputs() if workload.has_code_q else None


def vllm_fused_step(workload):
    if not (workload.has_norm and workload.has_cache) or workload.is_interleaved:
        raise NotHere("norm, rotation and cache, HALF")
    return vllm_step(workload, is_fused=True)


def vllm_step(workload, is_fused=False):
    parts, given = [], code_outputs(workload)
    table, positions = torch.cat((workload.cos, workload.sin), -1), workload.positions
    size, is_neox = workload.head_dim, not workload.is_interleaved
    heads, q = (workload.q_heads, workload.k_heads, workload.v_heads), workload.q
    # Kernels with a cache require the scales of k and v in any case. They take codes as bytes.
    scale = workload.scale if workload.has_codes else torch.ones(1, device="cuda")
    kind = "fp8" if workload.has_codes else "auto"
    caches = [[cache.view(torch.uint8) if workload.has_codes else cache for cache in pair]
              for pair in zip(workload.k_cache, workload.v_cache)] if workload.has_cache else None
    if is_fused:
        imported("vllm._custom_ops", "fused_qknorm_rope_cache")  # allocates the outputs of this kernel
        fused = torch.ops._C.fused_qknorm_rope_cache
        outputs = [[torch.empty(workload.tokens, count, size, dtype=workload.dtype, device="cuda") for count in heads]
                   for _ in range(workload.sets)]
        q = [tensors[0] for tensors in outputs]
        given = given or [[tensor] for tensor in q]
        parts.append(lambda i: fused(*(tensor.flatten(1) for tensor in outputs[i]), workload.packed[i].flatten(1),
                                     *workload.weights, *table.chunk(2, -1), positions, workload.slots, *caches[i],
                                     size, *heads[:2], size // 2, NORM_EPS, 0.0, kind, scale, scale))
    else:
        if workload.has_norm:
            norm_rope = imported("vllm._custom_ops", "fused_qk_norm_rope")
            parts.append(lambda i: norm_rope(workload.packed[i].flatten(1), *heads, size, NORM_EPS, *workload.weights,
                                             table, is_neox, positions))
        elif workload.is_turned:
            rope = vllm_rope()
            parts.append(lambda i: rope(positions, workload.q[i].flatten(1), workload.k[i].flatten(1), size, table,
                                        is_neox))
        if workload.has_cache:
            store = imported("vllm._custom_ops", "reshape_and_cache_flash")
            parts.append(lambda i: store(workload.k[i], workload.v[i], *caches[i], workload.slots, kind, scale, scale))
    if workload.has_code_q:
        quantise = imported("vllm._custom_ops", "scaled_fp8_quant")
        parts.append(lambda i: quantise(q[i].flatten(1), workload.scale, output=given[i][0].flatten(1)))
    return parts, given


def sglang_step(workload):
    if workload.has_codes:
        raise NotHere("no codes")
    parts = []
    if workload.has_norm:
        norm = sglang("layernorm.norm", "fused_inplace_qknorm")
        parts.append(lambda i: norm(workload.q[i], workload.k[i], *workload.weights, NORM_EPS))
    # sglang's pool of tokens: the caches as [slots, H * D].
    rows = [[cache.flatten(0, 1).flatten(1) for cache in caches]
            for caches in ((workload.k_cache, workload.v_cache) if workload.has_cache else ())]
    if workload.is_turned:
        rope, options = sglang_rope(), [{} for _ in range(workload.sets)]
        if workload.has_cache:
            argument = sglang("attention.rope", "FusedSetKVBufferArg")
            options = [{"fused_args": argument(workload.v[i], rows[0][i], rows[1][i], workload.slots)}
                       for i in range(workload.sets)]
        table = torch.cat((workload.cos32, workload.sin32), -1)
        parts.append(lambda i: rope(workload.positions, workload.q[i].flatten(1), workload.k[i].flatten(1),
                                    workload.head_dim, table, not workload.is_interleaved, **options[i]))
    elif workload.has_cache:
        store = sglang("kvcache.kvcache", "store_cache")
        parts.append(lambda i: store(workload.k[i].flatten(1), workload.v[i].flatten(1), rows[0][i], rows[1][i],
                                     workload.slots, reserved_skip_index=-1))
    return parts, None


def sglang_computed_step(workload):
    if not workload.has_norm or workload.has_cache:
        raise NotHere("norm and rotation only")
    fused, positions = sglang("attention.fused_qknorm_rope", "fused_qk_norm_rope"), workload.positions.to(torch.int32)
    heads = workload.q_heads, workload.k_heads, workload.v_heads
    return [lambda i: fused(workload.packed[i].flatten(1), *heads, workload.head_dim, NORM_EPS, *workload.weights,
                            workload.theta, not workload.is_interleaved, positions, 1.0, 0.0, 0.0, 1.0)], None


def flashinfer_fused_step(workload):
    """The kernel for 64 + 8 heads of bf16. Its outputs are not in place, and an entry is the position in a page."""
    if not workload.has_cache or not workload.is_turned or workload.has_codes or workload.is_interleaved:
        raise NotHere("rotation and cache, HALF, no codes")
    if (workload.q_heads, workload.k_heads) != (64, 8) or workload.is_resident:
        raise NotHere("64 + 8 heads, a sequence from 0 on")
    fused = imported("flashinfer.cake_fused_qk_rope_append", "cake_fused_qk_rmsnorm_rope_append_paged_kv_cache")
    lengths = [torch.tensor(values, dtype=torch.int32, device="cuda")
               for values in ([workload.tokens], [0, workload.tokens])]
    pages = workload.pages[:-(-workload.tokens // PAGE_ENTRIES)].to(torch.int32)[None].contiguous()
    table = torch.cat((workload.cos32, workload.sin32), -1)
    q_weight, k_weight = (weight.float() for weight in workload.weights)
    given = [[torch.empty(q.shape, dtype=q.dtype, device="cuda")] for q in workload.q]
    return [lambda i: fused(workload.packed[i].flatten(1), table, *lengths, pages, workload.k_cache[i],
                            workload.v_cache[i], num_q_heads=64, num_kv_heads=8,
                            qk_norm_policy=2 if workload.has_norm else 0, q_norm_weight=q_weight,
                            k_norm_weight=k_weight, eps=NORM_EPS, out_q=given[i][0],
                            clear_unused_last_page_rows=False)], given


def flashinfer_step(workload):
    if workload.has_codes and not workload.has_code_q:
        raise NotHere("with codes in caches, q has codes too")
    parts = []
    if workload.has_norm:
        norm = imported("flashinfer.norm", "rmsnorm")
        for tensors, weight in zip((workload.q, workload.k), workload.weights):
            parts.append(lambda i, x=tensors, weight=weight: norm(x[i], weight, NORM_EPS, out=x[i]))
    table, is_neox = torch.cat((workload.cos32, workload.sin32), -1), not workload.is_interleaved
    if workload.is_turned and not workload.has_codes:
        rope = flashinfer_rope()
        parts.append(lambda i: rope(workload.positions, workload.q[i].flatten(1), workload.k[i].flatten(1),
                                    workload.head_dim, table, is_neox))
    if workload.has_cache:
        caches = list(zip(workload.k_cache, workload.v_cache))
        token = torch.arange(workload.tokens, dtype=torch.int32, device="cuda")
        entries, pages = workload.entries.to(torch.int32), workload.pages.to(torch.int32)
        if workload.is_resident:  # a sequence of one page for each token
            bounds = torch.arange(workload.tokens + 1, dtype=torch.int32, device="cuda")
            place = token, entries
            paged = pages[:workload.tokens].contiguous(), bounds, entries + 1
        else:
            count = -(-workload.tokens // PAGE_ENTRIES)
            place = torch.zeros_like(token), token
            paged = pages[:count].contiguous(), torch.tensor([0, count], dtype=torch.int32, device="cuda"), (
                entries[-1:] + 1)
        if workload.has_codes:
            store = imported("flashinfer.rope", "rope_quantize_fp8_append_paged_kv_cache")
            given, positions, factor = workload.given_outputs(), workload.positions.to(torch.int32), 1 / CODE_SCALE
            parts.append(lambda i: store(workload.q[i], workload.k[i], None, None, workload.v[i], table, positions,
                                         caches[i], *paged[:2], *place, is_neox, quant_scale_q=factor,
                                         quant_scale_kv=factor, page_size=PAGE_ENTRIES, q_rope_out=given[i][0]))
        else:
            store = imported("flashinfer.page", "append_paged_kv_cache")
            parts.append(lambda i: store(workload.k[i], workload.v[i], *place, caches[i], *paged, "NHD"))
    return parts, code_outputs(workload)


def transformer_engine_rope(workload):
    require_rope(workload)
    if workload.is_resident:
        raise NotHere("no positions")
    function = imported("transformer_engine.pytorch.attention.rope", "apply_rotary_pos_emb",
                        "transformer_engine.pytorch.attention")
    angles = torch.arange(workload.tokens, device="cuda", dtype=torch.float64)[:, None] * workload.inv_freq
    angles = angles.repeat_interleave(2, -1) if workload.is_interleaved else torch.cat((angles, angles), -1)
    angles = angles.float()[:, None, None, :]
    layout = "sbhd" if workload.layout == "sbhd" else "bshd"

    def rotated(tensor):
        x = tensor if layout == "sbhd" else workload.as_bshd(tensor)
        result = function(x, angles, tensor_format=layout, interleaved=workload.is_interleaved, fused=True)
        return result.view_as(tensor)

    return Implementation(lambda i: [rotated(tensor) for tensor in workload.inputs(i)])


def transformer_engine_swiglu(workload):
    require_swiglu(workload, packed=True)
    function = imported("transformer_engine_torch", "swiglu")
    return Implementation(lambda i: [function(workload.packed[i], None)])


# Name, package that has the version, and the function that makes the implementation.
PEERS = [
    ("torch eager", "torch", torch_eager),
    ("torch.compile", "torch", torch_compile(None)),
    ("torch.compile max-autotune", "torch", torch_compile("max-autotune-no-cudagraphs")),
    ("Triton, in place, 4 heads", "triton", triton_rope(True, 4)),
    ("Triton, in place, 16 heads", "triton", triton_rope(True, 16)),
    ("Triton, out of place, 4 heads", "triton", triton_rope(False, 4)),
    ("Triton", "triton", triton_swiglu),
    ("flash-attn", "flash-attn", flash_attn_rope),
    ("flash-attn", "flash-attn", flash_attn_swiglu),
    ("Liger", "liger-kernel", liger_rope),
    ("Liger", "liger-kernel", liger_swiglu),
    ("vLLM", "vllm", cached_rope(vllm_rope, False)),
    ("vLLM", "vllm", packed_swiglu(vllm_swiglu, codes=True)),
    ("sglang", "sglang", cached_rope(sglang_rope, True)),
    ("sglang", "sglang", packed_swiglu(sglang_swiglu, codes=True)),
    ("flashinfer", "flashinfer-python", cached_rope(flashinfer_rope, True)),
    ("flashinfer, computed angles", "flashinfer-python", flashinfer_computed),
    ("flashinfer", "flashinfer-python", packed_swiglu(flashinfer_swiglu)),
    ("vLLM", "vllm", step_of(vllm_step)),
    ("vLLM, one kernel", "vllm", step_of(vllm_fused_step)),
    ("sglang", "sglang", step_of(sglang_step)),
    ("sglang, computed angles", "sglang", step_of(sglang_computed_step)),
    ("flashinfer", "flashinfer-python", step_of(flashinfer_step)),
    ("flashinfer, one kernel", "flashinfer-python", step_of(flashinfer_fused_step)),
    ("TransformerEngine", "transformer-engine", transformer_engine_rope),
    ("TransformerEngine", "transformer-engine", transformer_engine_swiglu),
]


def version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


# ---- Checking ----


def code_step(values, scale):
    """The distance between the codes around values / scale, times the scale."""
    return scale * 2.0**(torch.frexp((values / scale).abs().clamp(min=2.0**-6)).exponent - 4).double()


def relative_error(workload, implementation):
    """Runs set 0 and returns the root of the squared errors' sum over that of the exact values; infinity with a NaN.
    With codes it is that of the codes alone, and no value may be off by more than the distance to the next code and the
    rounding before."""
    before = workload.before()
    workload.poison()
    if implementation.poison is not None:
        implementation.poison()
    elif not implementation.in_place:
        # torch's allocator gives the freed memory to the next tensors of this size, so that outputs begin as NaN.
        like = workload.outputs[0] if workload.has_codes and workload.outputs else workload.inputs(0)
        poisoned = [torch.full_like(tensor, math.nan) for tensor in like]
        del poisoned
    outputs = implementation.run(0)
    if workload.device == "cuda":
        torch.cuda.synchronize()
    errors = values = 0.0
    expected = workload.exact(before)
    for got, exact, scale in zip(workload.got(outputs), expected, workload.code_scales(expected), strict=True):
        difference = (got - exact).abs()
        if workload.has_codes:
            allowed = workload.rounding_error() * exact.abs().amax(-1, keepdim=True)
            if scale is not None:
                allowed = allowed + code_step(exact, scale)
            wrong = (~(difference <= allowed)).sum().item()
            if wrong:
                raise RuntimeError(f"wrong result: {wrong} values are off by more than a code or the rounding")
        if scale is not None or not workload.has_codes:
            errors += difference.square().sum().item()
            values += exact.square().sum().item()
    return math.inf if math.isnan(errors) else math.sqrt(errors / values)


# ---- Timing ----

COPY_SOURCE = r"""
extern "C" __global__ void __launch_bounds__(256) copy_kernel(uint4 *target, const uint4 *source, size_t vectors) {
  const size_t i = static_cast<size_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i < vectors) target[i] = source[i];
}
extern "C" __global__ void __launch_bounds__(256) narrowing_kernel(uint2 *target, const uint4 *source, size_t vectors) {
  const size_t i = static_cast<size_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i >= vectors) return;
  const uint4 value = source[i];
  target[i] = make_uint2(value.x ^ value.z, value.y ^ value.w);
}
"""


class Copy:
    """The copy kernels of rope-bench, or torch's copy if cupy is not installed."""

    def __init__(self):
        try:
            import cupy
            self.cupy = cupy
            self.kernels = [cupy.RawKernel(COPY_SOURCE, name) for name in ("copy_kernel", "narrowing_kernel")]
        except ImportError:
            self.cupy = None
        self.name = "16-byte copy kernel" if self.cupy is not None else "torch copy_ (cupy is not installed)"

    def runner(self, num_bytes, sets, narrows):
        """Returns a function that copies within set i. num_bytes counts bytes that are read and that are written.
        narrows: half as many are written as are read."""
        vectors = max(1, int(num_bytes) // (24 if narrows else 32))
        source = torch.zeros(sets, vectors * 4, dtype=torch.int32, device="cuda")
        target = torch.zeros_like(source, dtype=torch.int16 if narrows else torch.int32)
        if self.cupy is None:

            def copy(i):
                target[i].copy_(source[i])

            return copy
        grid = ((vectors + 255) // 256,)
        places = [(numpy.uint64(target[i].data_ptr()), numpy.uint64(source[i].data_ptr()), numpy.uint64(vectors))
                  for i in range(sets)]

        def run(i):
            with self.cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
                self.kernels[narrows](grid, (256,), places[i])

        run.kept = source, target  # the graph holds only their addresses
        return run


class Graph:
    """A CUDA graph of `launches` calls, one after the other, which use the sets cyclically."""

    def __init__(self, run, sets, launches):
        self.launches = launches
        self.kept = [run]
        self.host_seconds = 0.0  # of the last replay, on the host
        # The first calls compile, load and allocate, which a capture does not allow.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for i in range(sets):
                run(i)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for i in range(launches):
                # Outputs live as long as the graph, so that each call writes different memory.
                self.kept.append(run(i % sets))

    def replay(self):
        """Returns the microseconds of all launches together."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        # Delays the stream until the host has enqueued the graph: by 30 us, and 1.5 times as long as the host took in
        # the previous replay. The argument is in clock cycles, at about 2 GHz.
        torch.cuda._sleep(int(2e9 * (30e-6 + 1.5 * min(self.host_seconds, 5e-3))))
        host_begin = time.perf_counter()
        begin.record()
        self.graph.replay()
        end.record()
        self.host_seconds = time.perf_counter() - host_begin
        end.synchronize()
        return begin.elapsed_time(end) * 1e3


def launches_for(num_bytes, sets, allocates):
    """About 3 ms of launches, at 4.2 TB/s and 1 us for each, rounded up to a multiple of the sets. If launches allocate
    outputs, which the graph keeps, they move at most 16 GB."""
    wanted = max(4, min(400, int(3000 / (num_bytes / 4.2e6 + 1.0))))
    if allocates:
        wanted = max(4, min(wanted, int(16e9 / num_bytes)))
    return -(-wanted // sets) * sets


def time_alternately(graphs, milliseconds=60):
    """Replays the graphs alternately, each for about as many milliseconds. Returns microseconds of a launch."""
    replays = []
    for graph in graphs:
        graph.replay()
        replays.append(max(11, min(61, int(milliseconds * 1e3 / graph.replay()))))
    times = [[] for _ in graphs]
    for round_number in range(max(replays)):
        for graph, count, us in zip(graphs, replays, times):
            if round_number < count:
                us.append(graph.replay() / graph.launches)
    return [{"median": statistics.median(us), "min": min(us), "max": max(us)} for us in times]


def measure(workload, implementation, copy):
    """Times an implementation and the copy. `share` is the implementation's rate relative to that of the copy."""
    num_bytes = workload.bytes_in_place if implementation.in_place else workload.bytes_out_of_place
    allocates = not implementation.in_place and implementation.poison is None
    graph = Graph(implementation.run, workload.sets, launches_for(num_bytes, workload.sets, allocates))
    copy_sets = workload.count_sets(num_bytes)
    copy_run = copy.runner(num_bytes, copy_sets, workload.has_codes)
    copy_graph = Graph(copy_run, copy_sets, launches_for(num_bytes, copy_sets, False))
    us, copy_us = time_alternately([graph, copy_graph])
    return {"us": us, "copy_us": copy_us, "bytes": num_bytes, "share": copy_us["median"] / us["median"],
            "gb_per_s": num_bytes / us["median"] / 1e3}


# ---- Results ----


def rows_from_c(measured, workload, cases):
    """The results of rope-bench, which ran in a process of its own, for the variants of a workload."""
    rows = []
    for name in variants_of(workload, cases):
        row = measured.get(name)
        if row is not None and row["outcome"] == "measured" and "share" in row:
            rows.append({"peer": "librope, from C" + label_of(name, workload), "us": row["us"], "share": row["share"],
                         "copy_us": row["copy_us"], "bytes": row["bytes"], "gb_per_s": row["gb_per_s"],
                         "relative_error": row.get("relative_error")})
    return rows


def label_of(name, workload):
    """The part of a variant's name behind that of its workload, in parentheses."""
    label = name[len(workload):].strip("/").replace("/", ", ")
    return " (" + label + ")" if label else ""


def print_table(results):
    print(f"\n{'workload':34} {'implementation':50} {'us':>9} {'min-max':>19} {'GB/s':>6} {'copy us':>8} {'share':>6} "
          f"{'error':>8}")
    for result in results:
        measured = sorted((row for row in result["rows"] if "us" in row), key=lambda row: row["us"]["median"])
        for row in measured:
            error = row.get("relative_error")
            spread = f"{row['us']['min']:.2f}-{row['us']['max']:.2f}"
            print(f"{result['workload']:34} {row['peer']:50} {row['us']['median']:9.2f} {spread:>19} "
                  f"{row['gb_per_s']:6.0f} {row['copy_us']['median']:8.2f} {row['share']:6.3f} "
                  f"{'' if error is None else format(error, '.1e'):>8}")
    absent = {}
    for result in results:
        for row in result["rows"]:
            if "us" not in row:
                absent.setdefault((row["peer"], row["message"].splitlines()[0][:110]), []).append(result["workload"])
    if absent:
        print("\nnot measured:")
    for (peer, message), workloads in absent.items():
        print(f"  {peer}: {message} [{', '.join(workloads) if len(workloads) < 4 else f'{len(workloads)} workloads'}]")


def run_workload(name, cases, library, copy, options):
    variants = variants_of(name, cases)
    case = next(iter(variants.values()))
    rows = []
    workload = make_workload(case, options)
    makers = [("librope, ctypes" + label_of(variant, name), "",
               lambda w, words=words: librope(library, w, words)) for variant, words in variants.items()]
    makers += [peer for peer in PEERS if not (options.no_compile and peer[0].startswith("torch.compile"))]
    for peer, package, make in makers:
        if sys.stderr.isatty():
            print(f"\r\033[K{name}: {peer}", end="", file=sys.stderr, flush=True)
        row = {"peer": peer, "version": version_of(package) if package else ""}
        try:
            implementation = make(workload)
            error = relative_error(workload, implementation)
            row["relative_error"] = error if math.isfinite(error) else None
            if not error <= workload.allowed_error():
                raise RuntimeError(f"wrong result: relative error {error:.2e}")
            if options.tiny:
                row["message"] = "checked only"
            else:
                row.update(measure(workload, implementation, copy))
        except NotHere as reason:
            row["message"] = str(reason)
        except Exception as reason:  # a failure must not end the other measurements
            row["message"] = f"failed: {type(reason).__name__}: {reason}"
        implementation = None
        if workload.device == "cuda":
            torch.cuda.empty_cache()
        if row.get("message") != OTHER_CASE:
            rows.append(row)
    rows += rows_from_c(options.from_c, name, cases)
    return {"workload": name, "class": case["class"], "rows": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=os.path.join(HERE, "..", "..", "build", "librope.so"))
    parser.add_argument("--case", action="append", default=[])
    parser.add_argument("--json")
    parser.add_argument("--rope-bench", help="the JSON of rope-bench, whose results become rows")
    parser.add_argument("--commit", default=os.environ.get("ROPE_BENCH_COMMIT", ""))
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    cases = read_cases()
    wanted = [name for name in WORKLOADS if not options.case or any(fnmatch.fnmatch(name, g) for g in options.case)]
    if options.list or not wanted:
        print("\n".join(WORKLOADS))
        return 0 if options.list else 2
    options.device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.device == "cpu" and not options.tiny:
        print("no GPU: only --tiny runs here", file=sys.stderr)
        return 1
    options.from_c = {}
    if options.rope_bench:  # before the measurements, because it may be another file than the JSON of rope-bench
        with open(options.rope_bench, encoding="utf-8") as file:
            options.from_c = {row["name"]: row for row in json.load(file)["cases"]}
    library = Library(options.library)
    copy = Copy() if options.device == "cuda" else None
    document = {
        "program": "peers.py", "format": 1, "commit": options.commit, "library": library.build_info(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "torch": torch.__version__,
        "command": "peers.py" + "".join(f" --case '{glob}'" for glob in options.case)
                   + (" --no-compile" if options.no_compile else ""),
        "copy": copy.name if copy else "", "tiny": options.tiny,
        "gpu": torch.cuda.get_device_name(0) if options.device == "cuda" else None, "workloads": []
    }
    for name in wanted:
        try:
            document["workloads"].append(run_workload(name, cases, library, copy, options))
        except Exception as reason:
            text = f"failed: {type(reason).__name__}: {reason}"
            document["workloads"].append({"workload": name, "class": "", "rows": [{"peer": "all", "message": text}]})
        if options.device == "cuda":
            torch.cuda.empty_cache()
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(document, file, indent=1)
                file.write("\n")
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    print(f"{document['library']}\n{document['command']}, {document['date']}, {document['gpu'] or 'CPU'}, torch "
          f"{document['torch']}, {document['copy']}")
    print_table(document["workloads"])
    failed = [row for result in document["workloads"] for row in result["rows"]
              if row.get("message", "").startswith("failed") and (row["peer"] == "all" or "librope" in row["peer"])]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
