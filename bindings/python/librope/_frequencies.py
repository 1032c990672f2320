# SPDX-License-Identifier: Apache-2.0
# _frequencies.py - rope_scaled_frequencies, rope_section_axes and rope_device_count
from __future__ import annotations

import ctypes
from typing import Any, List, NamedTuple, Optional, Sequence, Union

from . import _abi
from ._enums import SCALINGS, SECTIONS, Device, number_of
from ._integers import fill, integer_for, integers_for
from ._library import check, lib
from ._rope import as_list
from ._types import AnyScaling, AnySections


class ScaledFrequencies(NamedTuple):
    """The result has the names of RopeDesc's arguments."""

    inv_freq: List[float]  # rotary_dim/2, in radians per position
    attention_scale: float


class SectionAxes(NamedTuple):
    """The result has the names of RopeDesc's arguments."""

    pair_axis: List[int]  # rotary_dim/2
    inv_freq: List[float]  # rotary_dim/2, in radians per position


def scaled_frequencies(
    rotary_dim: int,
    theta: float,
    *,
    type: AnyScaling,
    factor: float = 0.0,
    original_max_position: int = 0,
    sequence_length: int = 0,
    alpha: float = 0.0,
    mixed_b: float = 0.0,
    beta_fast: float = 0.0,
    beta_slow: float = 0.0,
    attention_factor: float = 0.0,
    mscale: float = 0.0,
    mscale_all_dim: float = 0.0,
    low_freq_factor: float = 0.0,
    high_freq_factor: float = 0.0,
    partial_rotary_factor: float = 0.0,
    short_factor: Optional[Sequence[float]] = None,
    long_factor: Optional[Sequence[float]] = None,
    pair_factors: Optional[Sequence[float]] = None,
    truncate: bool = True,
) -> ScaledFrequencies:
    """The frequencies and the factor of cos and sin for a published recipe of context scaling.

    type names the recipe, such as "llama3" or "yarn". rope_scaling_type_t in <rope/rope.h> has the formulas and lists
    the other arguments that each recipe uses; arguments that it does not use are refused. truncate=False is
    ROPE_SCALING_FLAG_NO_TRUNCATE. short_factor, long_factor and pair_factors have rotary_dim/2 entries.
    """
    rotary_dim = integer_for(ctypes.c_int32, "rope_scaled_frequencies", "rotary_dim", rotary_dim)
    scaling = fill(
        _abi.rope_scaling_t(), "rope_scaled_frequencies",
        struct_size=ctypes.sizeof(_abi.rope_scaling_t),
        flags=0 if truncate else _abi.ROPE_SCALING_FLAG_NO_TRUNCATE,
        type=number_of(SCALINGS, "type", type),
        factor=factor,
        original_max_position=original_max_position,
        sequence_length=sequence_length,
        alpha=alpha,
        mixed_b=mixed_b,
        beta_fast=beta_fast,
        beta_slow=beta_slow,
        attention_factor=attention_factor,
        mscale=mscale,
        mscale_all_dim=mscale_all_dim,
        low_freq_factor=low_freq_factor,
        high_freq_factor=high_freq_factor,
        partial_rotary_factor=partial_rotary_factor,
    )
    arrays: List[Any] = []
    for field, values in (("short_factor", short_factor), ("long_factor", long_factor), ("pair_factors", pair_factors)):
        if values is None:
            continue
        values = as_list(values)
        if scaling.num_factors not in (0, len(values)):
            raise ValueError(f"{field} has {len(values)} entries: short_factor and long_factor must have as many")
        scaling.num_factors = len(values)
        array = (ctypes.c_double * len(values))(*values)
        arrays.append(array)
        setattr(scaling, field, ctypes.cast(array, ctypes.POINTER(ctypes.c_double)))
    inv_freq = (ctypes.c_double * _room_for(rotary_dim))()
    attention_scale = ctypes.c_double()
    check(lib.rope_scaled_frequencies(
        rotary_dim, theta, ctypes.byref(scaling), inv_freq, ctypes.byref(attention_scale)))
    return ScaledFrequencies(list(inv_freq), attention_scale.value)


def _room_for(rotary_dim: int) -> int:
    """The number of pairs in a buffer. The library refuses a rotary_dim above 1024 before it writes."""
    return max(min(rotary_dim, 1024) // 2, 1)


def section_axes(
        rotary_dim: int, theta: float, *, type: AnySections, section: Sequence[int]) -> SectionAxes:
    """The position axis that turns each pair, from the section list that a multi-axis model publishes.

    type: such as "chunked" (Qwen2-VL) or "interleaved" (Qwen3-VL); see rope_sections_type_t in <rope/rope.h>
    section: 1 to 8 numbers of pairs
    """
    section = as_list(section)
    if len(section) > _abi.ROPE_MAX_POSITION_AXES:
        raise ValueError(f"section has {len(section)} entries: at most {_abi.ROPE_MAX_POSITION_AXES}")
    rotary_dim = integer_for(ctypes.c_int32, "rope_section_axes", "rotary_dim", rotary_dim)
    sections = fill(
        _abi.rope_sections_t(), "rope_section_axes",
        struct_size=ctypes.sizeof(_abi.rope_sections_t),
        type=number_of(SECTIONS, "type", type),
        num_sections=len(section),
    )
    sections.section[:len(section)] = integers_for(ctypes.c_int32, "rope_section_axes", "section", section)
    pair_axis = (ctypes.c_int32 * _room_for(rotary_dim))()
    inv_freq = (ctypes.c_double * _room_for(rotary_dim))()
    check(lib.rope_section_axes(rotary_dim, theta, ctypes.byref(sections), pair_axis, inv_freq))
    return SectionAxes(list(pair_axis), list(inv_freq))


def device_count(device: Union[Device, str] = "cuda") -> int:
    """The number of devices of this kind, "cpu" or "cuda", that this process can use. why_no_device() explains a 0."""
    if isinstance(device, str):
        number = {"cpu": Device.CPU, "cuda": Device.CUDA}.get(device.lower())
        if number is None:
            raise ValueError(f"device is {device!r}: it must be 'cpu' or 'cuda'")
        device = number
    kind = integer_for(_abi.rope_device_t, "rope_device_count", "device", device)
    count = ctypes.c_int32()
    check(lib.rope_device_count(kind, ctypes.byref(count)))
    return count.value


def why_no_device(device: Union[Device, str] = "cuda") -> Optional[str]:
    """The library's reason for a device_count of 0, or None if there is a device."""
    if device_count(device) > 0:
        return None
    return str(lib.rope_last_error(), "utf-8", "replace")
