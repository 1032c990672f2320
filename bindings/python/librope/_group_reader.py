# SPDX-License-Identifier: Apache-2.0
# _group_reader.py - groups of operands as structs of args, and as parts of calls with kept args
from __future__ import annotations

import ctypes
from typing import Any, List, Tuple

from . import _abi
from ._enums import SCALE_LAYOUTS, number_of
from ._integers import fill
from ._tensors import Reader

WRITTEN_IN_GROUPS = {"k_cache", "v_cache", "k_pass_cache", "k_scales", "v_scales", "k_pass_scales", "q_scales_out",
                     "k_scales_out", "v_scales_out", "scales_out", "amax_out", "grad_q_weight", "grad_k_weight",
                     "grad_q_bias", "grad_k_bias", "out", "grad_gate", "grad_up", "grad_gate_scales_out",
                     "grad_up_scales_out"}
_FLAGS = {
    "skip_slot_0": _abi.ROPE_CACHE_FLAG_SKIP_SLOT_0,
    "scale_multiplies": _abi.ROPE_QUANT_FLAG_SCALE_MULTIPLIES,
    "power_of_two": _abi.ROPE_QUANT_FLAG_POWER_OF_TWO,
}


def _count_tensors(group: Any) -> int:
    """Tensors are the first fields of a group, with None as the default."""
    return [*group._field_defaults.values()].count(None)


def tensors_of(group: Any) -> Any:
    return group[:_count_tensors(group)]


def fields_of(name: str, cls: Any) -> List[Tuple[str, bool]]:
    """The names of a group's tensors in a kept call, and whether each of them is written."""
    return [(f"{name}.{field}", field in WRITTEN_IN_GROUPS) for field in cls._fields[:_count_tensors(cls)]]


def _check_group(function: str, name: str, group: object, cls: type) -> None:
    if not isinstance(group, cls):
        given = type(group)
        raise TypeError(
            f"{function}: {name}: it is a {given.__module__}.{given.__qualname__}: it must be a librope.{cls.__name__}")


def read_group(
        args: Any, reader: Reader, name: str, group: Any, cls: Any, is_dry: bool = False,
        library: str = "rope") -> None:
    """Fills a new struct of the library, rope_{name}_args_t or swiglu_{name}_args_t, and sets args to point to it."""
    _check_group(reader.function, name, group, cls)
    struct_type = getattr(_abi, f"{library}_{name}_args_t")
    struct = struct_type(struct_size=ctypes.sizeof(struct_type))
    for field, x in zip(group._fields, group):
        if field in _FLAGS:
            struct.flags |= _FLAGS[field] if x else 0
        elif field == "scale_floor":
            fill(struct, f"{reader.function}: {name}", scale_floor=x)
        elif field == "scale_layout":
            fill(struct, f"{reader.function}: {name}", scale_layout=number_of(SCALE_LAYOUTS, field, x))
        elif x is not None:
            is_written = field in WRITTEN_IN_GROUPS
            reader.read(struct, field, x, is_output=is_written, is_ours=is_written and is_dry, group=f"{name}.")
    setattr(args, name, ctypes.pointer(struct))
