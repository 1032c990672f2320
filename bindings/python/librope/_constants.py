# SPDX-License-Identifier: Apache-2.0
# _constants.py - functions whose results are kept under the numbers that they are called with
from __future__ import annotations

from functools import lru_cache
from numbers import Number
from typing import Any, Callable, TypeVar

_Result = TypeVar("_Result")
_TUPLE: Any = tuple  # with this type, its elements may be anything


class _Changing(Exception):
    """An argument, or a part of it, is a tensor."""


def _is_changing(x: Any) -> bool:
    """Whether x is or contains a tensor: its numbers may change, so that neither it nor its identity is a key. NumPy's
    numbers do not change, although they also have `item`."""
    return any(map(_is_changing, x)) if isinstance(x, _TUPLE) else hasattr(x, "item") and not isinstance(x, Number)


def constant(x: Any) -> Any:
    """x with the present numbers of the tensors that it is or contains."""
    if isinstance(x, _TUPLE):
        return tuple([constant(part) for part in x])
    return x.item() if _is_changing(x) else x


def kept(maxsize: int, typed: bool = False) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """lru_cache for a function whose arguments may be tensors of one element instead of numbers, and tuples of them. A
    call without tensors costs as much as one of lru_cache, which keeps nothing of calls that raise."""

    def decorate(function: Callable[..., _Result]) -> Callable[..., _Result]:
        @lru_cache(maxsize=maxsize, typed=typed)
        def find(*arguments: Any) -> _Result:
            if _is_changing(arguments):
                raise _Changing
            return function(*arguments)

        def call(*arguments: Any) -> _Result:
            try:
                return find(*arguments)
            except (_Changing, TypeError) as error:
                # Arrays of NumPy have no hash.
                if type(error) is TypeError and not _is_changing(arguments):
                    raise
            try:
                arguments = constant(arguments)
            except (RuntimeError, TypeError, ValueError):  # it has several elements, or is traced
                return function(*arguments)  # raises
            return find(*arguments)

        return call

    return decorate
