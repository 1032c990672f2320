# _calls.py - librope_python.so: calls of descriptors with tensors of torch and arrays of NumPy, without ctypes
"""Its builtins return NotImplemented for a call that is not theirs or that went wrong, in which nothing was written: the way
through ctypes makes it again, or says why not. Where the file is not there it makes all calls."""
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
    """In the place of every builtin."""
    return NotImplemented


# RopeFunctions of calls.cpp.
functions = function_table("rope_forward", "rope_backward", "swiglu_forward", "swiglu_backward")
_MAX_ORDINALS = 16  # of calls.cpp


def _load() -> Tuple[str, Tuple[Builtin, ...]]:
    """Why there are no builtins, or "", and these."""
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
    """A new tensor with the axes of x but for the last."""
    return (x.new_zeros if zeroed else x.new_empty)((*x.shape[:-1], channels))


def widened_numpy(x: Any, channels: int, zeroed: bool) -> Any:
    numpy = sys.modules["numpy"]
    return (numpy.zeros if zeroed else numpy.empty)((*x.shape[:-1], channels), x.dtype)


def meet(cls: type) -> None:
    """Teaches the builtins to read the tensors of a framework that has been imported whole, as one of them shows."""
    module = cls.__module__.partition(".")[0]
    framework: Any = sys.modules.get(module)
    if module == "torch":
        add_torch(framework)
    elif module == "numpy":
        _add_numpy(framework.ndarray, framework.empty_like, framework.zeros_like, widened_numpy)


_torch: Optional[Any] = None  # once it is added


def add_torch(torch: Any) -> None:
    global _torch
    if _torch is not None:
        return
    try:
        # Where one of them says yes, tensors may be other than they seem, calls do other than they say, or operators are
        # recorded.
        questions = (
            torch._C._are_functorch_transforms_active, torch._C._len_torch_dispatch_stack,
            torch._C._len_torch_function_stack, torch._C._get_tracing_state, torch.autograd._profiler_enabled)
        added = _add_torch(
            (torch.Tensor, torch.nn.Parameter), torch.empty_like, torch.zeros_like, widened_torch,
            torch._C._increment_version, torch.Tensor.__dlpack_c_exchange_api__, torch.autograd.forward_ad,
            torch.is_grad_enabled, questions)
    except AttributeError:  # before torch 2.10, or after what is known
        return
    _torch = torch if added is True else None
