# _calls.py - librope_python.so: calls of descriptors with tensors of torch and arrays of NumPy, without ctypes
"""Its builtins return NotImplemented for a call that is not theirs or that went wrong, in which nothing was written: the way
through ctypes makes it again, or says why not. Where the file is not there it makes all calls."""
from __future__ import annotations

import ctypes
import sys
import sysconfig
from pathlib import Path
from typing import Any, Callable, Optional, Tuple

from . import _abi
from ._enums import Device, TableRows
from ._groups import Cache, Norm
from ._library import lib, loaded_path

Builtin = Callable[..., Any]


def absent(*arguments: Any) -> Any:
    """In the place of every builtin."""
    return NotImplemented


class _Functions(ctypes.Structure):
    """RopeFunctions of calls.cpp."""

    _fields_ = [(name, ctypes.c_void_p) for name in (
        "rope_forward", "rope_backward", "swiglu_forward", "swiglu_backward")]


functions = _Functions(*[
    ctypes.cast(getattr(lib, _field[0]), ctypes.c_void_p).value for _field in _Functions._fields_])
_MAX_ORDINALS = 16  # of calls.cpp


def _load() -> Tuple[str, Tuple[Builtin, ...]]:
    """Why there are no builtins, or "", and these."""
    file = str(Path(loaded_path()).with_name("librope_python.so"))
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return f"{file}: it needs a Python with its global lock", (absent,) * 5
    try:
        load = ctypes.PyDLL(file).rope_python_load
    except (OSError, AttributeError) as error:
        return str(error), (absent,) * 5
    load.restype = ctypes.py_object
    load.argtypes = [ctypes.c_int32, ctypes.POINTER(_Functions), ctypes.py_object, ctypes.py_object]
    version = _abi.ROPE_VERSION_MAJOR * 10000 + _abi.ROPE_VERSION_MINOR * 100 + _abi.ROPE_VERSION_PATCH
    devices = ((int(Device.CPU), 0), *[(int(Device.CUDA), ordinal) for ordinal in range(_MAX_ORDINALS)])
    builtins = load(version, ctypes.byref(functions), (Norm, Cache, TableRows), devices)
    if builtins is NotImplemented:
        return f"{file}: it is of another version", (absent,) * 5
    # Never freed: the builtins read it, and other threads may call them while the interpreter ends.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(functions))
    return "", builtins


why_ctypes, (rotate, gate, gate_back, _add_torch, _add_numpy) = _load()


def meet(cls: type) -> None:
    """Teaches the builtins to read the tensors of a framework that has been imported whole, as one of them shows."""
    module = cls.__module__.partition(".")[0]
    framework: Any = sys.modules.get(module)
    if module == "torch":
        add_torch(framework)
    elif module == "numpy":
        _add_numpy(framework.ndarray, framework.empty_like, framework.zeros_like)


_torch: Optional[Any] = None  # once it is added


def add_torch(torch: Any) -> None:
    global _torch
    if _torch is not None:
        return
    try:
        # Where one of them says yes, tensors may be other than they seem, calls do other than they say, or somebody
        # watches the operators.
        questions = (
            torch._C._are_functorch_transforms_active, torch._C._len_torch_dispatch_stack,
            torch._C._len_torch_function_stack, torch._C._get_tracing_state, torch.autograd._profiler_enabled)
        added = _add_torch(
            (torch.Tensor, torch.nn.Parameter), torch.empty_like, torch.zeros_like, torch._C._increment_version,
            torch.Tensor.__dlpack_c_exchange_api__, torch.autograd.forward_ad, torch.is_grad_enabled, questions)
    except AttributeError:  # before torch 2.10, or after what is known
        return
    _torch = torch if added is True else None
