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
from ._library import beside_library, function_table, package_version

Builtin = Callable[..., Any]


def absent(*arguments: Any) -> Any:
    """Replaces every builtin if the file is absent."""
    return NotImplemented


# RopeFunctions of calls.cpp
functions = function_table("rope_forward", "rope_backward", "swiglu_forward", "swiglu_backward")
_MAX_ORDINALS = 16  # of calls.cpp


def _load() -> Tuple[str, Tuple[Builtin, ...]]:
    """Returns why there are no builtins, or "", and the builtins."""
    file = beside_library("librope_python.so")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return f"{file}: it needs a Python with its global lock", (absent,) * 5
    try:
        load = ctypes.PyDLL(file).rope_python_load
    except (OSError, AttributeError) as error:
        return str(error), (absent,) * 5
    load.restype = ctypes.py_object
    load.argtypes = [ctypes.c_int32, ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
    devices = ((int(Device.CPU), 0), *[(int(Device.CUDA), ordinal) for ordinal in range(_MAX_ORDINALS)])
    classes = Norm, Cache, Quant, Input, SwigluQuant, TableRows, ScaleLayout.STRIDED
    builtins = load(package_version(), ctypes.addressof(functions), classes, devices)
    if builtins is NotImplemented:
        return f"{file}: it is of another version", (absent,) * 5
    return "", builtins


why_ctypes, (rotate, gate, gate_back, _add_torch, _add_numpy) = _load()


def widened_torch(x: Any, channels: int, zeroed: bool) -> Any:
    """A new tensor with the axes of x, except for the length of the last one."""
    return (x.new_zeros if zeroed else x.new_empty)((*x.shape[:-1], channels))


def widened_numpy(x: Any, channels: int, zeroed: bool) -> Any:
    numpy = sys.modules["numpy"]
    return (numpy.zeros if zeroed else numpy.empty)((*x.shape[:-1], channels), x.dtype)


def meet(cls: type) -> None:
    """Registers a framework with the builtins once it is completely imported. `cls` is the class of one of its
    tensors."""
    module = cls.__module__.partition(".")[0]
    framework: Any = sys.modules.get(module)
    if module == "torch":
        add_torch(framework)
    elif module == "numpy":
        _add_numpy(framework.ndarray, framework.empty_like, framework.zeros_like, widened_numpy)


_torch: Optional[Any] = None  # set when torch is registered


def add_torch(torch: Any) -> None:
    global _torch
    if _torch is not None:
        return
    try:
        # If one of these functions returns true, tensors may differ from what they show, calls may do something else,
        # or operators are being recorded.
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
