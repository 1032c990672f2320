# SPDX-License-Identifier: Apache-2.0
# _cuda.py - the few functions that the package calls in the CUDA driver itself, through libcuda.so.1 if there is one
from __future__ import annotations

import ctypes
from typing import Optional


def _driver() -> Optional[ctypes.CDLL]:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def driver_description() -> str:
    """For example "580.65.06, for CUDA up to 13.0"."""
    release = None
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8", errors="replace") as file:
            words = file.readline().split()
        release = next((word for word in words if word[0].isdigit() and "." in word), None)
    except OSError:
        pass
    driver = _driver()
    if driver is None:
        return f"{release or 'none'} (libcuda.so.1 cannot be loaded)"
    number = ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.byref(number)) != 0:
        return f"{release or 'unknown'}"
    return f"{release or 'unknown release'}, for CUDA up to {number.value // 1000}.{number.value % 1000 // 10}"


_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9


def ordinal_of(pointer: int) -> int:
    """The device that a pointer belongs to. Raises ValueError if the driver finds none."""
    driver = _driver()
    if driver is None:
        raise ValueError("its memory cannot be a CUDA device's: libcuda.so.1 cannot be loaded")
    ordinal = ctypes.c_int()
    driver.cuInit(0)
    status = driver.cuPointerGetAttribute(
        ctypes.byref(ordinal), ctypes.c_int(_POINTER_ATTRIBUTE_DEVICE_ORDINAL), ctypes.c_uint64(pointer))
    if status != 0:
        raise ValueError(f"its pointer {pointer:#x} is no CUDA device's: cuPointerGetAttribute failed with {status}")
    return ordinal.value


def synchronize(ordinal: int, stream: int) -> None:
    """Waits for the stream. Frameworks that cannot order their own work behind it need this."""
    driver = _driver()
    if driver is None:
        raise RuntimeError("libcuda.so.1 cannot be loaded")
    device = ctypes.c_int()
    context = ctypes.c_void_p()

    def call(name: str, *arguments: object) -> None:
        status = getattr(driver, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} failed with CUresult {status}")

    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        call("cuCtxPushCurrent_v2", context)
        try:
            call("cuStreamSynchronize", ctypes.c_void_p(stream))
        finally:
            driver.cuCtxPopCurrent_v2(ctypes.byref(context))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(device)
