# _descriptor.py - what RopeDesc and SwigluDesc share: the handles of the library, one for each device
from __future__ import annotations

import ctypes
import threading
from typing import Any, Callable, Dict, Optional, Tuple

from . import _library
from ._enums import Device, device_name, parse_device


class _Handle:
    """Destroys the library's descriptor when the last call that uses it has returned."""

    __slots__ = ("pointer", "_destroy")

    def __init__(self, pointer: int, destroy: Callable[[int], None]) -> None:
        self.pointer = pointer
        self._destroy = destroy

    def __del__(self) -> None:
        self._destroy(self.pointer)


class Descriptor:
    """Immutable, and safe to use from any number of threads. A context manager; closing it twice is harmless."""

    _create: Callable[..., int]
    _destroy: Callable[[int], None]

    def __init__(self, config: Any, device: Any) -> None:
        self._config = config
        self._device = parse_device(device)
        self._handles: Optional[Dict[Tuple[int, int], _Handle]] = {}
        self._lock = threading.Lock()
        kind, ordinal = self._device
        # Where the device is that of the tensors to come, the CPU answers whether the rest is right.
        self._handle_for(kind, ordinal) if ordinal is not None else self._handle_for(Device.CPU, 0, is_trial=True)

    def _handle_for(self, kind: int, ordinal: int, is_trial: bool = False) -> _Handle:
        handles = self._handles
        if handles is None:
            raise ValueError(f"this {type(self).__name__} is closed")
        handle = handles.get((kind, ordinal))
        if handle is not None:
            return handle
        wanted_kind, wanted_ordinal = self._device
        if not is_trial and (wanted_kind not in (None, kind) or wanted_ordinal not in (None, ordinal)):
            wanted = "cuda" if wanted_ordinal is None else device_name(wanted_kind, wanted_ordinal)
            found = device_name(kind, ordinal)
            raise ValueError(f"the tensors are on {found}: this {type(self).__name__} is for {wanted}")
        with self._lock:
            handle = handles.get((kind, ordinal))
            if handle is None:
                config = type(self._config).from_buffer_copy(self._config)
                config.device, config.device_index = kind, ordinal
                pointer = ctypes.c_void_p()
                _library.check(self._create(ctypes.byref(config), ctypes.byref(pointer)))
                handle = handles[kind, ordinal] = _Handle(pointer.value, self._destroy)
        return handle

    def close(self) -> None:
        """Frees the descriptor. Calls that are still running in other threads, and enqueued work, end undisturbed."""
        self._handles = None

    def __enter__(self):
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
