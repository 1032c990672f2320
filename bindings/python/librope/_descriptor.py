# SPDX-License-Identifier: Apache-2.0
# _descriptor.py - the base of RopeDesc and SwigluDesc: the library's handles, one for each device
from __future__ import annotations

import binascii
import ctypes
import inspect
import threading
from functools import cached_property
from typing import Any, Callable, Dict, Optional, Tuple, TypeVar

from ._enums import (Activation, Device, Dtype, Layout, LimitRule, NormExtent, NormOrder, NormRounding, NormTensors,
                     NormType, QuantRounding, RotationRounding, Style, device_name, parse_device)
from ._integers import fill
from ._kept import Call, Kept, KeptCalls, Unkept
from ._library import check, lib
from ._tensors import Reader, current_stream, framework_of, stream_number


class _Handle:
    """Destroys the library's descriptor when the last call that uses it has returned."""

    __slots__ = ("pointer", "_destroy")

    def __init__(self, pointer: int, destroy: Callable[[int], None]) -> None:
        self.pointer = pointer
        self._destroy = destroy

    def __del__(self) -> None:
        self._destroy(self.pointer)


_ENUMS = {"dtype": Dtype, "layout": Layout, "style": Style, "out_style": Style, "norm": NormType,
          "norm_order": NormOrder, "norm_extent": NormExtent, "activation": Activation, "limit_rule": LimitRule,
          "rotation_rounding": RotationRounding}
_FLAGS = {"norm_tensors": NormTensors, "norm_rounding": NormRounding, "quant_rounding": QuantRounding}
_BOOLS = {"product_rounding"}
_ARRAYS = {"inv_freq", "pair_axis"}
_MAX_SHOWN = 4  # entries of an array that repr shows


def _text_of(name: str, value: Any) -> str:
    """An argument as users write it."""
    if name in _ENUMS:
        return repr(_ENUMS[name](value).name.lower())
    if name in _FLAGS:
        names = [key.lower() for key, flag in _FLAGS[name].__members__.items() if value & flag]
        return repr(names[0] if len(names) == 1 else tuple(names))
    if name in _BOOLS:
        return repr(bool(value))
    if name in _ARRAYS and len(value) > _MAX_SHOWN:
        return f"[{', '.join(map(repr, value[:_MAX_SHOWN - 1]))}, ..., {value[-1]!r}]"
    return repr(value)


def _recreate(cls: type, arguments: Dict[str, Any]) -> Any:
    return cls(**arguments)


_Self = TypeVar("_Self", bound="Descriptor")


class Descriptor:
    """Immutable and thread-safe. A descriptor is a context manager; closing it twice is harmless."""

    _arrays: Dict[str, Any] = {}  # by field: from_buffer_copy copies pointers only, so the arrays must be kept
    _config_type: Any
    _create: Callable[..., int]
    _destroy: Callable[[int], None]
    _key_prefix: str
    _array_fields: Tuple[str, ...] = ()

    def __init__(self, config: Any, device: Any) -> None:
        self._config = config
        self._device = parse_device(device)
        self._handles: Optional[Dict[Tuple[int, int], _Handle]] = {}  # only for devices that calls may use
        self._lock = threading.Lock()
        self._kept = KeptCalls()
        kind, ordinal = self._device
        # If the tensors of later calls decide the device, a handle on the CPU checks the other arguments now.
        first = (int(Device.CPU), 0) if kind is None or ordinal is None else (kind, ordinal)
        handle = self._make_handle(*first)
        if kind in (None, first[0]):
            self._handles[first] = handle

    def _make_handle(self, kind: int, ordinal: int) -> _Handle:
        config = self._config_type.from_buffer_copy(self._config)
        fill(config, self._create.__name__, device=kind, device_index=ordinal)
        pointer = ctypes.c_void_p()
        check(self._create(ctypes.byref(config), ctypes.byref(pointer)))
        return _Handle(pointer.value or 0, self._destroy)

    def _handle_for(self, reader: Reader) -> _Handle:
        """The handle for the device of a call's tensors."""
        handles = self._handles
        if handles is None:
            raise ValueError(f"this {type(self).__name__} is closed")
        device = reader.kind, reader.ordinal
        handle = handles.get(device) or self._handle_on(device)
        if handle is None and self._handles is None:  # another thread closed it in the meantime
            raise ValueError(f"this {type(self).__name__} is closed")
        if handle is None:
            kind, ordinal = self._device
            wanted = "cuda" if kind is None or ordinal is None else device_name(kind, ordinal)
            raise ValueError(
                f"{reader.function}: {reader.field}: it is on {device_name(*device)}: this {type(self).__name__} is "
                f"for {wanted}")
        return handle

    def _handle_on(self, device: Tuple[int, int]) -> Optional[_Handle]:
        """The handle for a device, made on first use. None if the descriptor is for another device, or closed."""
        handles = self._handles
        kind, ordinal = self._device
        if handles is None or kind not in (None, device[0]) or ordinal not in (None, device[1]):
            return None
        with self._lock:
            handle = handles.get(device)
            if handle is None:
                handle = handles[device] = self._make_handle(*device)
        return handle

    @cached_property
    def _key(self) -> str:
        """The whole content of the descriptor as a string for torch.ops.librope: the prefix, then in hexadecimal digits
        the config and the arrays. The config's pointers are NULL or not; its device is 0 for any device, its
        device_index -1."""
        kind, ordinal = self._device
        config = self._config_type.from_buffer_copy(self._config)
        config.device, config.device_index = kind or 0, -1 if ordinal is None else ordinal
        for field in self._arrays:
            setattr(config, field, ctypes.cast(1, getattr(config, field).__class__))
        return self._key_prefix + b"".join(map(bytes, (config, *self._arrays.values()))).hex()

    @classmethod
    def _of_key(cls, function: str, key: str, num_threads: int = 0) -> Any:
        """The descriptor of a key, with this number of threads if the key has none. The key may be any string."""
        try:
            data = binascii.unhexlify(key[len(cls._key_prefix):])
            if not key.startswith(cls._key_prefix):
                raise ValueError
            config = cls._config_type.from_buffer_copy(data)
            if config.struct_size != ctypes.sizeof(config):
                raise ValueError
            arrays, end = {}, ctypes.sizeof(config)
            for field in cls._array_fields:
                pointer = getattr(config, field)
                if pointer:
                    array = (pointer._type_ * ((config.rotary_dim or config.head_dim) // 2)).from_buffer_copy(data, end)
                    arrays[field] = array
                    setattr(config, field, ctypes.cast(array, pointer.__class__))
                    end += ctypes.sizeof(array)
            if end != len(data):
                raise ValueError
            kind = config.device
            if kind not in (0, Device.CPU, Device.CUDA):
                raise ValueError
            device = (
                None if kind == 0 else "cuda" if kind == Device.CUDA and config.device_index < 0 else device_name(
                    kind, config.device_index))
        except ValueError:
            raise ValueError(f"{function}: desc is no key of a {cls.__name__} of this version of librope") from None
        if config.num_threads == 0:
            config.num_threads = num_threads
        desc = cls.__new__(cls)
        desc._arrays = arrays
        Descriptor.__init__(desc, config, device)
        return desc

    def _call_kept(self, function: str, call: Call, stream: Any, zeroed: bool) -> bool:
        """Calls with kept args, and makes the new outputs. Returns False if no args are kept for this kind of call."""
        kind = tuple(call.key)
        kept = self._kept.take(kind)
        handles = self._handles
        if kept is None or handles is None:
            return False
        given = None if stream is None else stream_number(function, stream)
        if call.new:
            try:
                call.make_new(zeroed, given)
            except Unkept:
                return False
        for slot, address in zip(kept.slots, call.addresses):
            slot.value = address
        if given is None and kept.device[0] == Device.CUDA:
            given = current_stream(call.first, kept.device)
        handle = handles[kept.device]
        check(getattr(lib, function)(handle.pointer, kept.reference, given or None))
        for x in call.written:
            framework_of(x).wrote(x)
        self._kept.put(kind, kept)
        return True

    def _keep(self, call: Optional[Call], args: Any, reader: Reader) -> None:
        """Keeps the args of a call that succeeded."""
        if call is not None:
            self._kept.put(tuple(call.key), Kept(args, call.names, (reader.kind, reader.ordinal)))

    def _arguments(self) -> Dict[str, Any]:
        """The arguments that the descriptor was made of, without fields that are 0. Their names are those of the
        fields."""
        kind, ordinal = self._device
        arguments: Dict[str, Any] = {
            "device": "cuda" if kind == Device.CUDA and ordinal is None else
            None if kind is None or ordinal is None else device_name(kind, ordinal)}
        for field, _ in self._config._fields_:
            value = getattr(self._config, field)
            if value and field not in ("struct_size", "device", "device_index"):
                arguments[field] = list(self._arrays[field]) if field in self._arrays else value
        return arguments

    def __reduce__(self) -> Tuple[Any, ...]:
        """Copies and pickles make a new descriptor from the arguments."""
        if self._handles is None:
            raise ValueError(f"this {type(self).__name__} is closed")
        return _recreate, (type(self), self._arguments())

    def __repr__(self) -> str:
        """The call that makes the descriptor, without arguments that have their defaults. Long arrays are cut."""
        if not hasattr(self, "_handles"):  # the constructor raised; tracebacks can show the object
            return object.__repr__(self)
        arguments = self._arguments()
        parameters = inspect.signature(type(self)).parameters.values()
        shown = [x.name for x in parameters if arguments.get(x.name, x.default) != x.default]
        text = f"{type(self).__name__}({', '.join(f'{name}={_text_of(name, arguments[name])}' for name in shown)})"
        return f"<closed {text}>" if self._handles is None else text

    def close(self) -> None:
        """Frees the descriptor. Calls that still run in other threads and enqueued work are not affected. The operators
        of torch make descriptors of their own, and keep the 256 that were used last."""
        self._handles = None
        self._kept.clear()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
