# SPDX-License-Identifier: Apache-2.0
# support.py - shared by the tests: optional modules, and the formulas in float64
from __future__ import annotations

import contextlib
import ctypes
import importlib
import math
import os
import sys
import threading
import unittest
from unittest import mock

try:
    import numpy
except ImportError:
    raise unittest.SkipTest("needs numpy") from None


long = unittest.skipUnless(
    os.environ.get("ROPE_TEST_LONG") == "1", "it takes half a minute: ROPE_TEST_LONG=1 runs it")


def needs(*names):
    """Returns the modules. Skips the whole file if one is missing."""
    modules = []
    for name in names:
        try:
            modules.append(importlib.import_module(name))
        except ImportError as error:
            raise unittest.SkipTest(f"needs {name}: {error}") from None
    return modules[0] if len(modules) == 1 else modules


def run_threads(count, work):
    """Runs work(number) in each of `count` threads at once."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextlib.contextmanager
def through_ctypes():
    """Inside this context, calls of descriptors do not use the builtins of librope_python.so."""
    from librope import _calls

    with contextlib.ExitStack() as stack:
        for name in ("rotate", "gate", "gate_back"):
            stack.enter_context(mock.patch.object(_calls, name, _calls.absent))
        yield


@contextlib.contextmanager
def seen_args(observe):
    """Inside this context, calls observe(function, args struct) for each call that reaches the library, also from the
    builtins and from torch's operators."""
    from librope import _abi, _library

    with contextlib.ExitStack() as stack:
        for module in ("librope._calls", "librope._torch_operators"):
            if module not in sys.modules:
                continue
            functions = sys.modules[module].functions
            for name, struct in (("rope_forward", _abi.rope_args_t), ("rope_backward", _abi.rope_args_t),
                                 ("swiglu_forward", _abi.swiglu_args_t), ("swiglu_backward", _abi.swiglu_args_t)):
                kind = ctypes.CFUNCTYPE(
                    ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(struct), ctypes.c_void_p)
                address = getattr(functions, name)

                def native(desc, args, stream, name=name, function=kind(address)):
                    observe(name, args.contents)
                    return function(desc, args, stream)

                callback = kind(native)
                stack.callback(lambda callback: None, callback)  # keeps the callback while its address is used
                stack.callback(setattr, functions, name, address)
                setattr(functions, name, ctypes.cast(callback, ctypes.c_void_p).value)
        for name in ("rope_forward", "rope_backward", "rope_explain", "swiglu_forward", "swiglu_backward",
                     "swiglu_explain"):
            def call(desc, args, *rest, name=name, function=getattr(_library.lib, name)):
                observe(name, args._obj)
                return function(desc, args, *rest)

            stack.enter_context(mock.patch.object(_library.lib, name, call))
        yield


def pairs_of(width, style):
    """The two channels of each pair inside a rotated window."""
    first = numpy.arange(width // 2)
    return (first, first + width // 2) if style == "half" else (2 * first, 2 * first + 1)


def frequencies(width, theta):
    return theta ** (-numpy.arange(0, width, 2, dtype=numpy.float64) / width)


def rotate(x, positions, inv_freq, style, out_style=None, offset=0, scale=1.0, transpose=False):
    """x [..., D] with positions that broadcast against x's other axes."""
    x = numpy.asarray(x, dtype=numpy.float64)
    angles = numpy.asarray(positions, dtype=numpy.float64)[..., None] * inv_freq
    cos, sin = scale * numpy.cos(angles), scale * numpy.sin(angles)
    width = 2 * len(inv_freq)
    source = tuple(offset + index for index in pairs_of(width, style))
    target = tuple(offset + index for index in pairs_of(width, out_style or style))
    if transpose:
        source, target, sin = target, source, -sin
    a, b = x[..., source[0]], x[..., source[1]]
    result = x.copy()
    result[..., target[0]] = a * cos - b * sin
    result[..., target[1]] = b * cos + a * sin
    return result


def parted(x, offset, width):
    """The window of x's channels, and the channels around it."""
    return x[..., offset:offset + width], numpy.delete(x, slice(offset, offset + width), axis=-1)


def norm(x, weight=None, bias=None, offset=0.0, eps=1e-6, layer=False, extent="head"):
    """The norm of x [..., H, D] over D, or over H and D."""
    x = numpy.asarray(x, dtype=numpy.float64)
    axes = (-1,) if extent == "head" else (-2, -1)
    if layer:
        x = x - x.mean(axis=axes, keepdims=True)
    y = x / numpy.sqrt((x * x).mean(axis=axes, keepdims=True) + eps)
    if weight is not None:
        y = y * (numpy.asarray(weight, dtype=numpy.float64) + offset)
    return y if bias is None else y + numpy.asarray(bias, dtype=numpy.float64)


def scaled(x, groups, top, floor=0.0, power_of_two=False):
    """The scale of each of this many groups of x's channels, and the products that become codes, both as numbers of
    fp32. top: the largest number of the codes' type; floor: lower bound of the largest magnitudes."""
    parts = numpy.asarray(x, dtype=numpy.float64).reshape(*x.shape[:-1], groups, -1)
    scales = numpy.maximum(numpy.abs(parts).max(axis=-1), numpy.float32(floor)) / top
    if power_of_two:
        scales = 2.0 ** numpy.ceil(numpy.log2(numpy.maximum(scales, 2.0**-127)))
    scales = scales.astype(numpy.float32)
    factors = (1.0 / scales.astype(numpy.float64)).astype(numpy.float32)
    return scales, (parts * factors[..., None]).reshape(x.shape).astype(numpy.float32)


def sigmoid(x):
    return 1.0 / (1.0 + numpy.exp(-x))


# The factor of the gate for each activation.
WEIGHTS = {
    "swiglu": sigmoid,
    "geglu_erf": lambda x: 0.5 * (1.0 + numpy.vectorize(math.erf, otypes=[float])(x / math.sqrt(2.0))),
    "geglu_tanh": lambda x: 0.5 * (1.0 + numpy.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))),
    "reglu": lambda x: numpy.where(x > 0.0, 1.0, 0.0),
}


def soft_cap(x, cap):
    return cap * numpy.tanh(x / cap) if cap else x


def swiglu(gate, up, alpha=1.0, limit=None, up_offset=0.0, out_scale=1.0, row_scale=None, activation="swiglu",
           gate_softcap=0.0, up_softcap=0.0, limit_rule="gate", gate_bias=0.0, up_bias=0.0):
    """Each bias is [d], or broadcasts against gate."""
    g, u, gate_bias, up_bias = (numpy.asarray(x, dtype=numpy.float64) for x in (gate, up, gate_bias, up_bias))
    g, u = g + gate_bias, u + up_bias
    if limit is not None:
        g, u = g if limit_rule == "activation" else numpy.minimum(g, limit), numpy.clip(u, -limit, limit)
    activated = soft_cap(g, gate_softcap) * WEIGHTS[activation](alpha * g)
    if limit is not None and limit_rule == "activation":
        activated = numpy.minimum(activated, limit)
    r = 1.0 if row_scale is None else numpy.asarray(row_scale, dtype=numpy.float64)[..., None]
    return out_scale * activated * (soft_cap(u, up_softcap) + up_offset) * r


def swiglu_differences(grad_out, gate, up, step=1e-5, **form):
    """The gradients of gate and up for any form, by central differences."""
    dy, g, u = (numpy.asarray(x, dtype=numpy.float64) for x in (grad_out, gate, up))
    return (dy * (swiglu(g + step, u, **form) - swiglu(g - step, u, **form)) / (2 * step),
            dy * (swiglu(g, u + step, **form) - swiglu(g, u - step, **form)) / (2 * step))


# Each option alone, and several together.
SWIGLU_FORMS = (
    dict(activation="geglu_erf"), dict(activation="geglu_tanh"), dict(activation="reglu"),
    dict(gate_softcap=1.5), dict(up_softcap=0.75), dict(limit=0.5, limit_rule="activation"),
    dict(alpha=1.5, limit=1.25, gate_softcap=4.0, up_softcap=2.0, up_offset=1.0, out_scale=0.5),
    dict(activation="geglu_tanh", limit=0.5, limit_rule="activation", gate_softcap=2.0, up_offset=0.25),
)


def swiglu_gradients(grad_out, gate, up, row_scale=None):
    """The gradients of gate, up and row_scale, with alpha 1 and no limit."""
    dy, g, u = (numpy.asarray(x, dtype=numpy.float64) for x in (grad_out, gate, up))
    r = 1.0 if row_scale is None else numpy.asarray(row_scale, dtype=numpy.float64)[..., None]
    s = sigmoid(g)
    return dy * u * r * s * (1 + g * (1 - s)), dy * g * s * r, (dy * g * s * u).sum(axis=-1)
