# _kept.py - args structs of earlier calls, reused by calls that differ from them in addresses alone
"""Filling an args struct takes several times as long as the library's call. A descriptor keeps some structs, by
everything but the addresses that a call was given: a later call of the same kind writes the addresses alone. Because
ctypes releases the GIL, a struct belongs to one call at a time: the call takes it out and puts it back. Kept structs do
not keep tensors alive.

This path serves tensors of torch and NumPy themselves, not of subclasses, and only calls that need no check. Every call
that might be refused takes the long way, which raises the error."""
from __future__ import annotations

import ctypes
import sys
from typing import Any, Callable, Dict, Hashable, List, Optional, Sequence, Tuple

from ._tensors import framework_of

MAX_KEPT = 64  # structs of a descriptor

Quick = Callable[[Any], Tuple[int, Hashable]]  # an address, and all else that args have of a tensor
Kind = Tuple[Hashable, ...]  # all that a call is given, except addresses


class Unkept(Exception):
    """The call must take the long way."""


def _quick_torch() -> Quick:
    torch = sys.modules["torch"]
    strided, is_grad_enabled, forward_ad = torch.strided, torch.is_grad_enabled, torch.autograd.forward_ad

    def quick(x: Any) -> Tuple[int, Hashable]:
        if (x.requires_grad and is_grad_enabled()) or x.is_neg() or x.layout is not strided:
            raise Unkept
        if forward_ad._current_level >= 0:
            raise Unkept
        try:
            return x.data_ptr(), (x.shape, x.stride(), x.dtype, x.device)
        except RuntimeError:  # the tensor is being traced
            raise Unkept from None

    return quick


class _ArrayInterface(ctypes.Structure):
    """PyArrayInterface, behind __array_struct__. It takes half the time of __array_interface__, which makes a dict each
    time."""

    _fields_ = [("two", ctypes.c_int), ("nd", ctypes.c_int), ("typekind", ctypes.c_char), ("itemsize", ctypes.c_int),
                ("flags", ctypes.c_int), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("data", ctypes.c_void_p)]


_WRITEABLE = 0x400
_contents_of = ctypes.PYFUNCTYPE(ctypes.POINTER(_ArrayInterface), ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))


def _quick_numpy(x: Any) -> Tuple[int, Hashable]:
    capsule = x.__array_struct__  # the capsule owns the struct
    array = _contents_of(capsule, None)[0]
    return array.data, (x.shape, x.strides, x.dtype, array.flags & _WRITEABLE)


def _never_quick(x: Any) -> Tuple[int, Hashable]:
    raise Unkept


_quick: Dict[type, Quick] = {}  # by type


def _find_quick(cls: type) -> Quick:
    if cls is getattr(sys.modules.get("numpy"), "ndarray", None):
        return _quick_numpy
    # A class of torch itself shows that torch is completely imported. Other classes may be seen while another thread
    # still imports it.
    if cls.__module__.partition(".")[0] == "torch":
        torch = sys.modules["torch"]
        if cls in (torch.Tensor, torch.nn.Parameter):
            return _quick_torch()
    return _never_quick


class Call:
    """The operands of a call. `names` are the fields of its tensors, for a group prefixed with its name and a dot,
    `addresses` their addresses, `results` what the call returns. Raises Unkept if the call must take the long way."""

    __slots__ = ("addresses", "first", "key", "names", "new", "results", "written")

    def __init__(self, *what: Hashable) -> None:
        self.first: Any = None  # the stream is that of its framework
        self.key: List[Hashable] = list(what)
        self.names: List[str] = []
        self.addresses: List[int] = []
        self.written: List[Any] = []
        self.results: List[Any] = []
        # The entries of names and results that the call must make: their indices, the tensor to imitate, and the number
        # of channels (0: as many as it has).
        self.new: List[Tuple[int, int, Any, int]] = []

    def add(self, name: str, x: object) -> None:
        cls = type(x)
        quick = _quick.get(cls)
        if quick is None:
            quick = _quick[cls] = _find_quick(cls)
        address, signature = quick(x)
        if self.first is None:
            self.first = x
        self.key += (name, signature)
        self.names.append(name)
        self.addresses.append(address)

    def add_each(self, names: Sequence[str], tensors: Sequence[Any]) -> None:
        for name, x in zip(names, tensors):
            if x is not None:
                self.add(name, x)

    def add_fields(self, fields: Sequence[Tuple[str, bool]], group: Any) -> None:
        """Adds the tensors of a group; each field has its name and whether it is written."""
        for (name, is_written), x in zip(fields, group):
            if x is not None:
                (self.add_written if is_written else self.add)(name, x)

    def add_again(self, name: str) -> None:
        """Makes the last tensor another operand too. A new output has another key: its strides may differ."""
        self.key.append((name,))
        self.names.append(name)
        self.addresses.append(self.addresses[-1])

    def add_written(self, name: str, x: Any) -> None:
        self.add(name, x)
        self.written.append(x)

    def add_output(self, name: str, output: Any, like: Any, channels: int = 0) -> None:
        """None: the call makes the output. False: there is no output."""
        if output is None:
            self.new.append((len(self.names), len(self.results), like, channels))
            self.key.append(name)
            self.names.append(name)
            self.addresses.append(0)
        elif output is not False:
            self.add_written(name, output)
        self.results.append(None if output is False else output)

    def make_new(self, zeroed: bool, stream: Optional[int]) -> None:
        for name, result, like, channels in self.new:
            x: object = framework_of(like).empty_like(like, zeroed, stream, channels)
            self.addresses[name] = _quick.get(type(x), _never_quick)(x)[0]
            self.results[result] = x


class Kept:
    """Args of a call that succeeded."""

    __slots__ = ("args", "device", "reference", "slots")

    def __init__(self, args: Any, names: List[str], device: Tuple[int, int]) -> None:
        self.args = args
        self.reference = ctypes.byref(args)
        self.device = device
        self.slots: List[ctypes.c_uint64] = []
        for name in names:
            group, _, field = name.rpartition(".")
            holder = getattr(args, group).contents if group else args
            self.slots.append(ctypes.c_uint64.from_buffer(holder, getattr(holder.__class__, field).offset))


class KeptCalls:
    """At most MAX_KEPT structs; the least recently used one is dropped first."""

    def __init__(self) -> None:
        self._kept: Dict[Kind, Kept] = {}

    def take(self, kind: Kind) -> Optional[Kept]:
        return self._kept.pop(kind, None)

    def put(self, kind: Kind, kept: Kept) -> None:
        """Other threads may put theirs at the same time. A lost race only means that one struct fewer is kept."""
        self._kept[kind] = kept
        while len(self._kept) > MAX_KEPT:
            try:
                self._kept.pop(next(iter(self._kept)), None)
            except (RuntimeError, StopIteration):
                break

    def clear(self) -> None:
        self._kept = {}
