# SPDX-License-Identifier: Apache-2.0
# _calls.py - librope_python.so: calls of descriptors with tensors of torch and arrays of NumPy, without ctypes
"""A builtin returns NotImplemented for a call that it does not support or that failed; nothing was written then. The
caller repeats such a call through ctypes, which makes it or raises the error. Without the file all calls go through
ctypes."""
from __future__ import annotations

import ctypes
import sys
import sysconfig
from typing import Any, Callable, Optional, Tuple

from ._enums import Device, ScaleLayout, TableRows
from ._groups import Cache, Input, Norm, Quant, SwigluQuant
from ._library import beside_library, function_table, is_main_interpreter, package_version

Builtin = Callable[..., Any]


def absent(*arguments: Any) -> Any:
    """Replaces every builtin if librope_python.so cannot be used."""
    return NotImplemented


_ABSENT = (absent,) * 5

# The order is that of RopeFunctions in native/calls.cpp.
functions = function_table("rope_forward", "rope_backward", "swiglu_forward", "swiglu_backward")
_MAX_ORDINALS = 16  # kMaxOrdinals of calls.cpp: the builtins support the first devices of CUDA


def _load() -> Tuple[str, Tuple[Builtin, ...]]:
    """Returns the reason why there are no builtins, or "", and the builtins."""
    file = beside_library("librope_python.so")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return f"{file}: it needs a Python with its global lock", _ABSENT
    if not is_main_interpreter():
        return f"{file}: it works in the main interpreter of the process alone", _ABSENT
    try:
        load = ctypes.PyDLL(file).rope_python_load
    except (OSError, AttributeError) as error:
        return str(error), _ABSENT
    load.restype = ctypes.py_object
    load.argtypes = [ctypes.c_int32, ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
    # The order of both tuples is that in calls.cpp.
    devices = ((int(Device.CPU), 0), *[(int(Device.CUDA), ordinal) for ordinal in range(_MAX_ORDINALS)])
    classes = Norm, Cache, Quant, Input, SwigluQuant, TableRows, ScaleLayout.STRIDED
    builtins = load(package_version(), ctypes.addressof(functions), classes, devices)
    if builtins is NotImplemented:
        return f"{file}: it is of another version", _ABSENT
    if builtins is None:
        return f"{file}: an earlier import of librope in this process has its builtins", _ABSENT
    return "", builtins


# rotate runs RopeDesc.forward and backward, gate SwigluDesc.forward, gate_back SwigluDesc.backward; calls.cpp has their
# parameters. why_ctypes is "", or the reason why all calls go through ctypes.
why_ctypes, (rotate, gate, gate_back, _add_torch, _add_numpy) = _load()


def widened_torch(x: Any, channels: int, zeroed: bool) -> Any:
    """Returns a new tensor like x, but with `channels` as the length of the last axis."""
    return (x.new_zeros if zeroed else x.new_empty)((*x.shape[:-1], channels))


def widened_numpy(x: Any, channels: int, zeroed: bool) -> Any:
    """widened_torch for arrays of NumPy."""
    numpy = sys.modules["numpy"]
    return (numpy.zeros if zeroed else numpy.empty)((*x.shape[:-1], channels), x.dtype)


def register_framework(cls: type) -> None:
    """Registers torch or NumPy with the builtins if `cls`, the class of a tensor, is one of its classes. Such a tensor
    exists only after the framework is completely imported."""
    module = cls.__module__.partition(".")[0]
    framework: Any = sys.modules.get(module)
    if module == "torch":
        add_torch(framework)
    elif module == "numpy":
        _add_numpy(framework.ndarray, framework.empty_like, framework.zeros_like, widened_numpy)


_torch: Optional[Any] = None  # torch, if it is registered


def add_torch(torch: Any) -> None:
    """Registers torch with the builtins, once, if it has the functions that they use."""
    global _torch
    if _torch is not None:
        return
    try:
        # If one of these functions returns a true value, a transformation, mode, trace or profiler of torch is active.
        # Tensors may then stand for others, and operators may be redirected or recorded: the builtins return
        # NotImplemented.
        questions = (
            torch._C._are_functorch_transforms_active, torch._C._len_torch_dispatch_stack,
            torch._C._len_torch_function_stack, torch._C._get_tracing_state, torch.autograd._profiler_enabled)
        added = _add_torch(
            (torch.Tensor, torch.nn.Parameter), torch.empty_like, torch.zeros_like, widened_torch,
            torch._C._increment_version, torch.Tensor.__dlpack_c_exchange_api__, torch.autograd.forward_ad,
            torch.is_grad_enabled, questions)
    except AttributeError:  # torch before 2.10, or a later one without these functions
        return
    _torch = torch if added is True else None
