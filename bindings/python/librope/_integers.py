# SPDX-License-Identifier: Apache-2.0
# _integers.py - checks integers for the library's fields and parameters, which ctypes would reduce modulo 2^32 or 2^64
from __future__ import annotations

import operator
from ctypes import c_int32, c_int64, c_uint32, c_uint64, sizeof
from typing import Any, Dict, List, Tuple

_RANGES: Dict[Any, Tuple[int, int]] = {
    **{ctype: (-(2 ** (8 * sizeof(ctype) - 1)), 2 ** (8 * sizeof(ctype) - 1) - 1) for ctype in (c_int32, c_int64)},
    c_uint32: (0, 2**32 - 1),
    c_uint64: (0, 2**64 - 1),
}


def integer(field: str, value: Any) -> int:
    """Returns an integer of Python or NumPy, or an enumerator. A bool, NumPy's bool_ included, is not an integer
    here."""
    if type(value).__name__ not in ("bool", "bool_"):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{field} is {value!r}: it must be an integer")


def integer_for(ctype: Any, function: str, field: str, value: Any) -> int:
    """An integer that a parameter or a field of this type can hold."""
    number: int = value if type(value) is int else integer(f"{function}: {field}", value)
    low, high = _RANGES[ctype]
    if not low <= number <= high:
        raise ValueError(f"{function}: {field} is {number}: it must be {low} to {high}")
    return number


_types_of: Dict[Any, Dict[str, Any]] = {}


def fill(struct: Any, function: str, **values: Any) -> Any:
    """Sets the fields of a struct for `function`, and returns it."""
    types = _types_of.get(type(struct))
    if types is None:
        types = _types_of[type(struct)] = dict(struct._fields_)
    for field, value in values.items():
        ctype = types[field]
        if ctype in _RANGES:
            value = integer_for(ctype, function, field, value)
        setattr(struct, field, value)
    return struct


def integers_for(ctype: Any, function: str, field: str, values: Any) -> List[int]:
    return [integer_for(ctype, function, f"{field}[{i}]", value) for i, value in enumerate(values)]
