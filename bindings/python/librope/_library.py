# SPDX-License-Identifier: Apache-2.0
# _library.py - finds and loads librope.so, and turns its statuses into exceptions
from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any, List, Tuple

from . import _abi

SONAME = "librope.so.0"

__version__ = f"{_abi.ROPE_VERSION_MAJOR}.{_abi.ROPE_VERSION_MINOR}.{_abi.ROPE_VERSION_PATCH}"


class Error(Exception):
    """A call into librope failed.

    status: the library's status, such as 1; message: its text, `function: field is value: rule`.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    def __reduce__(self) -> Tuple[Any, ...]:
        return type(self), (self.status, self.message)


class InvalidArgument(Error, ValueError):
    """The request is wrong on any machine."""


class NotSupported(Error, NotImplementedError):
    """The request is well formed, but this version, build or device does not serve it."""


class OutOfMemory(Error, MemoryError):
    """The host is out of memory."""


class NoDevice(Error):
    """There is no such device: no driver, no visible device, or none that the library has code for."""


class CudaError(Error):
    """The CUDA runtime refused; the message contains its text."""


class InternalError(Error):
    """A bug in librope: please report the message."""


_ERRORS = {
    _abi.ROPE_STATUS_INVALID_ARGUMENT: InvalidArgument,
    _abi.ROPE_STATUS_NOT_SUPPORTED: NotSupported,
    _abi.ROPE_STATUS_OUT_OF_MEMORY: OutOfMemory,
    _abi.ROPE_STATUS_NO_DEVICE: NoDevice,
    _abi.ROPE_STATUS_CUDA_ERROR: CudaError,
    _abi.ROPE_STATUS_INTERNAL_ERROR: InternalError,
}


def candidates() -> List[Tuple[str, str]]:
    """(file, why) in the order in which the files are tried. A path from the environment is the only candidate."""
    file = os.environ.get("ROPE_LIBRARY")
    if file:
        return [(file, "ROPE_LIBRARY")]
    folder = os.environ.get("ROPE_LIB_DIR")
    if folder:
        return [(str(Path(folder, SONAME)), "ROPE_LIB_DIR")]
    return [(str(Path(__file__).parent / "lib" / SONAME), "inside the package"), (SONAME, "the system's loader")]


def _format_version(number: int) -> str:
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _load() -> Tuple[ctypes.CDLL, str]:
    failures: List[str] = []
    for file, why in candidates():
        try:
            library = ctypes.CDLL(file, mode=os.RTLD_NOW | os.RTLD_LOCAL)
            try:
                _abi.bind(library)
            except AttributeError as error:
                found = _format_version(library.rope_version()) if hasattr(library, "rope_version") else "no librope"
                raise OSError(f"{error}; the file is {found}, this package needs {__version__}") from None
            version = library.rope_version()
            if version // 10000 != _abi.ROPE_VERSION_MAJOR:
                raise OSError(f"the file is librope {_format_version(version)}, this package needs {__version__}")
            return library, file
        except OSError as error:
            failures.append(f"  {file} ({why}): {error}")
    raise ImportError(
        "librope.so could not be loaded. Tried:\n" + "\n".join(failures) +
        "\nSet ROPE_LIBRARY to the file, or ROPE_LIB_DIR to its folder.")


lib, path = _load()


def loaded_path() -> str:
    """The path of the loaded file, from the system's loader."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            address = ctypes.cast(lib.rope_version, ctypes.c_void_p).value or 0
            for line in maps:
                fields = line.split(maxsplit=5)
                begin, end = (int(part, 16) for part in fields[0].split("-"))
                if begin <= address < end and len(fields) == 6:
                    return fields[5].rstrip("\n")
    except OSError:
        pass
    return path


def package_version() -> int:
    """The package's version, in the form of ROPE_VERSION."""
    return _abi.ROPE_VERSION_MAJOR * 10000 + _abi.ROPE_VERSION_MINOR * 100 + _abi.ROPE_VERSION_PATCH


def is_main_interpreter() -> bool:
    """Whether this is the first interpreter of the process, for which alone native code can hold objects."""
    current = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyInterpreterState_Get", ctypes.pythonapi))
    number_of = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(("PyInterpreterState_GetID", ctypes.pythonapi))
    number: int = number_of(current())
    return number == 0


def refuse_other_interpreters(module: str) -> None:
    """Without this, torch fails somewhere within, or hangs."""
    if not is_main_interpreter():
        raise ImportError(
            f"{module}: this is not the main interpreter of the process: torch and its operators work in that one "
            "alone. librope itself works here, with tensors that have __dlpack__ or an array interface")


def beside_library(name: str) -> str:
    """The path of a file of the package, if it exists."""
    return str(Path(loaded_path()).with_name(name))


def torch_operators_path() -> str:
    """The path of the kernels of librope.torch, if it exists."""
    return beside_library("librope_torch.so")


def function_table(*names: str) -> Any:
    """A struct of the library's functions for native code. It is never freed: other threads may call through it while
    the interpreter ends."""
    table = type("FunctionTable", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_void_p) for name in names]})
    functions = table(*[ctypes.cast(getattr(lib, name), ctypes.c_void_p).value for name in names])
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(functions))
    return functions


def check(status: int) -> None:
    """Raises the exception of a failing status. Its text is stored for the calling thread, so this must run right after
    the call."""
    if status != _abi.ROPE_STATUS_SUCCESS:
        message = lib.rope_last_error().decode("utf-8", "replace")
        raise _ERRORS.get(status, Error)(status, message)


def version() -> str:
    """The version of the loaded library, such as "0.1.0"."""
    return _format_version(lib.rope_version())


def build_info() -> str:
    """One line for bug reports: version, backends, CUDA version and architectures, CPU instruction sets."""
    info: bytes = lib.rope_build_info()
    return info.decode()
