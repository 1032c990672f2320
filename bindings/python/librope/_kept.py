# SPDX-License-Identifier: Apache-2.0
# _kept.py - args structs of earlier calls, reused by calls that differ from them in addresses alone
"""Filling an args struct takes several times as long as the library's call. A descriptor therefore keeps the structs of
some calls, each under a key: everything that the call was given, except addresses. A later call with this key writes
only its addresses into the struct. Because ctypes releases the GIL, a struct belongs to one call at a time, which takes
it out and puts it back. Kept structs do not keep tensors alive.

This way is for tensors of torch and NumPy themselves, not of subclasses, and for calls that the package need not check.
All others take the long way, through Reader of _tensors.py, which fills a new struct or raises the error. The library
checks every call."""
from __future__ import annotations

import ctypes
import sys
from typing import Any, Callable, Dict, Hashable, List, Optional, Sequence, Tuple

from ._tensors import framework_of

MAX_KEPT = 64  # structs of a descriptor

Quick = Callable[[Any], Tuple[int, Hashable]]  # returns a tensor's address, and its other members in args
Key = Tuple[Hashable, ...]  # everything that a call was given, except addresses


class Unkept(Exception):
    """The call must take the long way."""


def _quick_torch() -> Quick:
    torch = sys.modules["torch"]
    strided, is_grad_enabled, forward_ad = torch.strided, torch.is_grad_enabled, torch.autograd.forward_ad

    def quick(x: Any) -> Tuple[int, Hashable]:
        if (x.requires_grad and is_grad_enabled()) or x.is_neg() or x.layout is not strided:
            raise Unkept
        if forward_ad._current_level >= 0:  # x may have a tangent
            raise Unkept
        try:
            return x.data_ptr(), (x.shape, x.stride(), x.dtype, x.device)
        except RuntimeError:  # the tensor is being traced
            raise Unkept from None

    return quick


class _ArrayInterface(ctypes.Structure):
    """PyArrayInterface, to which __array_struct__ leads. Reading it takes half the time of __array_interface__, which
    makes a dict each time."""

    _fields_ = [("two", ctypes.c_int), ("nd", ctypes.c_int), ("typekind", ctypes.c_char), ("itemsize", ctypes.c_int),
                ("flags", ctypes.c_int), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("data", ctypes.c_void_p)]


_WRITEABLE = 0x400  # NPY_ARRAY_WRITEABLE of `flags`
_contents_of = ctypes.PYFUNCTYPE(ctypes.POINTER(_ArrayInterface), ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))


def _quick_numpy(x: Any) -> Tuple[int, Hashable]:
    capsule = x.__array_struct__  # the capsule owns the struct
    array = _contents_of(capsule, None)[0]
    return array.data, (x.shape, x.strides, x.dtype, array.flags & _WRITEABLE)


def _never_quick(x: Any) -> Tuple[int, Hashable]:
    raise Unkept


_quick_by_type: Dict[type, Quick] = {}


def _find_quick(cls: type) -> Quick:
    if cls is getattr(sys.modules.get("numpy"), "ndarray", None):
        return _quick_numpy
    # A tensor of torch exists only after torch is completely imported. A tensor of another framework may come while
    # another thread still imports torch.
    if cls.__module__.partition(".")[0] == "torch":
        torch = sys.modules["torch"]
        if cls in (torch.Tensor, torch.nn.Parameter):
            return _quick_torch()
    return _never_quick


class Call:
    """The operands of a call. They are added one by one; Unkept is raised if the call must take the long way.

    key:       the entries of a Key. It begins with the arguments of Call: function, flags, numbers
    first:     the first tensor. The current stream of its framework is that of the call
    names:     the fields of the tensors in args, such as "q" or, in a group, "norm.q_weight"
    addresses: the addresses of the tensors, in the order of names
    written:   the tensors of the caller that the call writes
    results:   the tensors that the call returns
    new:       the outputs that the call must make: (index in names and addresses, index in results, tensor whose shape
               and dtype they have, number of channels or 0 for that of the tensor)
    """

    __slots__ = ("addresses", "first", "key", "names", "new", "results", "written")

    def __init__(self, *key: Hashable) -> None:
        self.first: Any = None
        self.key: List[Hashable] = list(key)
        self.names: List[str] = []
        self.addresses: List[int] = []
        self.written: List[Any] = []
        self.results: List[Any] = []
        self.new: List[Tuple[int, int, Any, int]] = []

    def add(self, name: str, x: object) -> None:
        cls = type(x)
        quick = _quick_by_type.get(cls)
        if quick is None:
            quick = _quick_by_type[cls] = _find_quick(cls)
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
        """Adds the last tensor once more, as another operand. Its entry in the key is a tuple, unlike that of a new
        output, which may have other strides."""
        self.key.append((name,))
        self.names.append(name)
        self.addresses.append(self.addresses[-1])

    def add_written(self, name: str, x: Any) -> None:
        self.add(name, x)
        self.written.append(x)

    def add_output(self, name: str, output: Any, like: Any, channels: int = 0) -> None:
        """Adds an output of the tensor `like`. None: the call makes the output. False: there is no output."""
        if output is None:
            self.new.append((len(self.names), len(self.results), like, channels))
            self.key.append(name)
            self.names.append(name)
            self.addresses.append(0)
        elif output is not False:
            self.add_written(name, output)
        self.results.append(None if output is False else output)

    def make_new(self, zeroed: bool, stream: Optional[int]) -> None:
        for address_index, result_index, like, channels in self.new:
            x: object = framework_of(like).empty_like(like, zeroed, stream, channels)
            self.addresses[address_index] = _quick_by_type.get(type(x), _never_quick)(x)[0]
            self.results[result_index] = x


class Kept:
    """The args of a call that succeeded, on the device (kind, ordinal). A slot is the memory of a tensor's address in
    args: `data`, the first member of rope_tensor_t. Slots have the order of the call's names."""

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
        self._kept: Dict[Key, Kept] = {}  # in the order of their last use

    def take(self, key: Key) -> Optional[Kept]:
        return self._kept.pop(key, None)

    def put(self, key: Key, kept: Kept) -> None:
        """Other threads may take and put structs at the same time. A lost race only means that fewer are kept."""
        self._kept[key] = kept
        while len(self._kept) > MAX_KEPT:
            try:
                self._kept.pop(next(iter(self._kept)), None)
            except (RuntimeError, StopIteration):  # another thread changed the dict
                break

    def clear(self) -> None:
        self._kept = {}
