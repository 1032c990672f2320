# SPDX-License-Identifier: Apache-2.0
# _recognise.py - what foreign code computes, found by running it
"""Functions that rotate, modules that make tables of cos and sin or that gate, and norms are recognised by their
results for random numbers, which are compared with formulas. Modules are not run themselves: a skeleton, on the CPU,
has their attributes, random numbers for their parameters, and stubs for their projections. The result is kept
with the values that were read from the module, and holds for other modules of the class with the same values. Code that
raises an exception, or that changes its module, is not recognised."""
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# What foreign code has and returns is of no known type. The private names are those of torch and of librope.
from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import itertools
import math
import os
import threading
import types
import warnings
from typing import Any, Callable, Dict, Generator, List, NamedTuple, Optional, Sequence, Tuple

import torch

from ._enums import NormRounding, NormType, RotationRounding, Style
from .torch import apply_rotary

LENGTHS = (1, 2, 7, 64)
F64, F32, BF16, F16 = torch.float64, torch.float32, torch.bfloat16, torch.float16
# How tables have a column of each pair: twice, one behind the other or side by side, once, or with both in one complex
# number.
HALF, REPEATED, SINGLE, COMPLEX = "half", "repeated", "single", "complex"


class Unrecognised(Exception):
    """The text says why."""


def require(condition: bool, why: str) -> None:
    if not condition:
        raise Unrecognised(why)


# ---- Running foreign code -------------------------------------------------------------------------------------------

lock = threading.RLock()


def _make_lock() -> None:
    global lock
    lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_make_lock)  # a thread of the parent may hold it


@contextlib.contextmanager
def sandbox() -> Generator[torch.Generator, None, None]:
    """Runs code on the CPU, offline, without derivatives and without an effect on random numbers."""
    offline = os.environ.get("HF_HUB_OFFLINE")
    with lock, torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.no_grad(), \
            torch.device("cpu"), torch.autocast("cpu", enabled=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.environ["HF_HUB_OFFLINE"] = "1"
        try:
            yield torch.Generator("cpu").manual_seed(20261129)
        finally:
            if offline is None:
                del os.environ["HF_HUB_OFFLINE"]
            else:
                os.environ["HF_HUB_OFFLINE"] = offline


def fingerprint(function: Any, depth: int = 4) -> Any:
    """Equal for functions of equal code that read equal values, defaults and globals."""
    function = getattr(function, "__func__", function)
    if not isinstance(function, types.FunctionType) or not depth:
        return function if isinstance(function, (types.BuiltinFunctionType, type, types.ModuleType)) else (
            type(function), function if _is_plain(function) else id(function))
    names = _names_in(function.__code__)
    read = [(name, function.__globals__[name]) for name in names if name in function.__globals__]
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_full(cell)]
    parts = [fingerprint(value, depth - 1) for value in (
        *(value for _, value in read), *cells, *(function.__defaults__ or ()),
        *(function.__kwdefaults__ or {}).values())]
    return function.__code__, tuple(name for name, _ in read), tuple(parts)


def _names_in(code: types.CodeType) -> List[str]:
    """All names that the code and its inner functions may read from their globals."""
    inner = [_names_in(value) for value in code.co_consts if isinstance(value, types.CodeType)]
    return [*code.co_names, *itertools.chain.from_iterable(inner)]


def _is_full(cell: Any) -> bool:
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, torch.dtype, types.FunctionType,
                                               types.BuiltinFunctionType))


def _fact(value: Any) -> Any:
    """The value if it must stay equal, or Ellipsis."""
    if _is_plain(value):
        return value
    if isinstance(value, (dict, list, tuple)):
        try:
            return copy.deepcopy(value)
        except Exception:
            raise Unrecognised("it reads values that cannot be kept") from None
    return ...


# Attributes that are tried, that follow from others, or that do not matter
_UNREAD = {*vars(torch.nn.Module()), "_is_hf_initialized", "_librope_method", "attribute_map", "base_config_key"}


def state_of(module: torch.nn.Module) -> Any:
    """The type of a module without parameters, and the values that it has."""
    return type(module), tuple((name, value) for name, value in vars(module).items()
                               if name not in _UNREAD and _is_plain(value))


class Facts:
    """Values read from a module and its configuration, and its children that have no parameters."""

    def __init__(self) -> None:
        self.read: Dict[Tuple[str, str], Any] = {}
        self.children: Dict[str, Any] = {}

    def add(self, owner: str, name: str, value: Any) -> None:
        if name not in _UNREAD and not name.startswith(("__", "_attn", "_librope")):
            value = _fact(value)
            if value is not ...:
                self.read[owner, name] = value

    def own(self) -> Tuple[Tuple[str, Any], ...]:
        """The values that were read from the module itself, to be compared at each call."""
        return tuple((name, value) for (owner, name), value in self.read.items() if not owner)

    def hold_for(self, module: Any) -> bool:
        try:
            return all(
                _equal(getattr(module.config if owner else module, name), value)
                for (owner, name), value in self.read.items()
            ) and all(state_of(getattr(module, name)) == state for name, state in self.children.items())
        except AttributeError:
            return False


def _equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


def own_class(module: Any) -> Any:
    cls: Any = type(module)
    return getattr(cls, "_librope_original", cls)


_FACTS, _MAY_STORE = "_librope_facts", "_librope_may_store"


@functools.lru_cache(maxsize=None)  # some classes take long to be made
def _recording(cls: type, owner: str) -> Any:
    """A subclass with the name of the class. Facts are told which attributes of its objects are read."""

    def read(self: Any, name: str) -> Any:
        value = super(recording, self).__getattribute__(name)
        members = object.__getattribute__(self, "__dict__")
        if owner or name in members:
            members[_FACTS].add(owner, name, value)
        return value

    def store(self: Any, name: str, value: Any) -> None:
        require(self.__dict__[_MAY_STORE], "it changes its module")
        super(recording, self).__setattr__(name, value)

    recording: Any = type(cls.__name__, (cls,), {
        "__getattribute__": read, "__setattr__": store, "__module__": cls.__module__})
    return recording


def skeleton(
        module: Any, facts: Facts, generator: torch.Generator, may_store: bool = False, is_wild: bool = True,
        **config: Any) -> Any:
    """An object of the module's class, with random numbers for its parameters and tensors. Its projections are stubs.
    config: changed attributes of its configuration"""
    cls: Any = _recording(own_class(module), "")
    result = object.__new__(cls)
    members = dict(vars(module))
    for group in ("_parameters", "_buffers"):
        members[group] = {name: None if x is None else random_like(x, generator)
                          for name, x in members[group].items()}
    members["_modules"] = {name: _stub_for(name, child, facts, generator, is_wild)
                           for name, child in module._modules.items()}
    for name, value in members.items():
        if isinstance(value, torch.Tensor):
            members[name] = random_like(value, generator)
    if "config" in members:
        members["config"] = _recorded(members["config"], facts, may_store, config)
    members.update({_FACTS: facts, _MAY_STORE: may_store})
    object.__setattr__(result, "__dict__", members)
    return result


def random_like(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Random numbers between 1/4 and 1 of a tensor's shape and dtype, or the integers that it holds."""
    if not x.is_floating_point():
        require(not x.is_meta, "it has no data yet")
        return x.detach().cpu().clone()
    return (torch.rand(x.shape, generator=generator) * 0.75 + 0.25).to(x.dtype)


def _recorded(config: Any, facts: Facts, may_store: bool, changes: Dict[str, Any]) -> Any:
    cls: Any = type(config)
    result = copy.copy(config)
    for name, value in changes.items():
        setattr(result, name, value)
    vars(result).update({_FACTS: facts, _MAY_STORE: may_store})
    result.__class__ = _recording(cls, "config")
    return result


class Stub(torch.nn.Module):
    """A projection whose results are random numbers. The last one's input is kept."""

    def __init__(self, width: int, generator: torch.Generator, is_wild: bool) -> None:
        super().__init__()
        self.out_features, self.generator, self.is_wild = width, generator, is_wild
        self.calls: List[Tuple[torch.Tensor, torch.Tensor]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = *x.shape[:-1], self.out_features
        y = numbers(shape, self.generator) if self.is_wild else torch.randn(shape, generator=self.generator, dtype=F64)
        y = y.to(x.dtype).requires_grad_(True)
        self.calls.append((x, y))
        return y


def _is_projection(module: Any) -> bool:
    return type(getattr(module, "out_features", None)) is int and not isinstance(module, Stub)


def _stub_for(name: str, child: Any, facts: Facts, generator: torch.Generator, is_wild: bool) -> Any:
    if child is None:
        return None
    if _is_projection(child):
        return Stub(child.out_features, generator, is_wild)
    require(not any(map(_is_projection, child.modules())), f"its {name} has projections of its own")
    tensors = [*child.parameters(), *child.buffers()]
    if not tensors:
        facts.children[name] = state_of(child)
        require(not list(child.children()), f"its {name} has modules")
    # deepcopy takes the random numbers that it finds in the memo for the parameters.
    result = copy.deepcopy(child, {id(x): torch.nn.Parameter(random_like(x, generator).to(F64), False)
                                   if isinstance(x, torch.nn.Parameter) else random_like(x, generator)
                                   for x in tensors})
    return result


def numbers(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """Numbers of both signs, in double, from 2^-10 to 2^10, and zeros. Both signs are frequent."""
    size = math.prod(shape)
    kinds, x = torch.rand(2, min(size, 1 << 16), generator=generator, dtype=F64)
    x = torch.exp2((x * 24 - 12).clamp(-10, 10))
    x = torch.where(kinds < 0.06, 0.0, torch.where(kinds < 0.53, x, -x))
    return x.repeat(-(-size // x.numel()) if size else 1)[:size].view(*shape)


def near(actual: Any, expected: torch.Tensor, size: torch.Tensor, tolerance: float = 1e-13) -> bool:
    """Whether the numbers are equal, relative to the size of their terms. Results of fp32 are equal, too."""
    if not isinstance(actual, torch.Tensor) or actual.shape != expected.shape or actual.dtype != expected.dtype:
        return False
    difference = (actual - expected).abs().to(F64)
    return bool((difference <= max(tolerance, 1e-6) * size.to(F64) + 1e-300).all())


# ---- Functions that rotate ------------------------------------------------------------------------------------------


class Rotation(NamedTuple):
    """How to call a function that rotates, and what it does."""

    parameters: Tuple[str, ...]
    operands: Tuple[str, ...]  # of the parameters, in the order of roles
    roles: Tuple[str, ...]  # q, k, cos, sin, or complex
    defaults: Tuple[Tuple[str, Any], ...]  # parameters that must have these values
    columns: str
    style: Style
    out_style: Style
    layouts: Tuple[Tuple[Any, str], ...]  # unsqueeze_dim, or None, and the order of axes
    default_layout: Any
    is_partial: bool  # the tables may be narrower than q


_ROLES = (("q", "k", "cos", "sin"), ("q", "k", COMPLEX), ("q", "k", "sin", "cos"), ("q", "cos", "sin"), ("q", COMPLEX),
          ("q", "sin", "cos"))
_STYLES = tuple(itertools.product((Style.HALF, Style.INTERLEAVED), repeat=2))
LAYOUTS = {"bhsd": 1, "bshd": 2}  # the axis of heads


def tables_with(columns: str, cos: torch.Tensor, sin: torch.Tensor) -> Tuple[torch.Tensor, ...]:
    if columns == COMPLEX:
        return (torch.complex(cos, sin),)
    if columns == SINGLE:
        return cos, sin
    if columns == REPEATED:
        return cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
    return torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)


def rotate(
        x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, style: Style, out_style: Style,
        sign: int = -1) -> torch.Tensor:
    """The formula. Channels behind the window pass through."""
    pairs = cos.shape[-1]
    window = x[..., :2 * pairs]
    first, second = (window[..., :pairs], window[..., pairs:]) if style == Style.HALF else (
        window[..., ::2], window[..., 1::2])
    y = first * cos + sign * second * sin, second * cos + first * sin
    rotated = torch.cat(y, -1) if out_style == Style.HALF else torch.stack(y, -1).flatten(-2)
    return torch.cat((rotated, x[..., 2 * pairs:]), -1)


class _Trial:
    """Random q, k, cos and sin in double."""

    def __init__(self, generator: torch.Generator, layout: str, length: int = 7, pairs: int = 4, passing: int = 0,
                 num_tables: int = 2) -> None:
        self.axis = LAYOUTS[layout]
        shapes = [[2, length, heads, 2 * pairs + passing] for heads in (3, 5)]
        self.q, self.k = (numbers(shape, generator).requires_grad_() for shape in shapes)
        if layout == "bhsd":
            self.q, self.k = (x.detach().transpose(1, 2).requires_grad_() for x in (self.q, self.k))
        self.cos, self.sin = (numbers((num_tables, length, pairs), generator) for _ in range(2))

    def call(self, function: Any, roles: Sequence[str], columns: str, keywords: Dict[str, Any]) -> Tuple[Any, ...]:
        tables = tables_with(columns, self.cos, self.sin)
        given = dict(zip((COMPLEX,) if columns == COMPLEX else ("cos", "sin"), tables), q=self.q, k=self.k)
        inputs = [given[role] for role in roles]
        versions = [x._version for x in inputs]
        with torch.enable_grad():
            result = function(*inputs, **keywords)
        require(versions == [x._version for x in inputs], "it changes its inputs")
        results = tuple(result) if "k" in roles and isinstance(result, (tuple, list)) else (result,)
        require(len(results) == 2 if "k" in roles else isinstance(result, torch.Tensor), "it returns something else")
        return results

    def fits(self, results: Tuple[Any, ...], style: Style, out_style: Style) -> bool:
        cos, sin = self.cos.unsqueeze(self.axis), self.sin.unsqueeze(self.axis)
        return all(near(y, rotate(x, cos, sin, style, out_style),
                        rotate(x.abs(), cos.abs(), sin.abs(), style, out_style, 1))
                   for x, y in zip((self.q, self.k), results))

    def has_gradients(self, results: Tuple[Any, ...], style: Style, out_style: Style) -> bool:
        cos, sin = self.cos.unsqueeze(self.axis), self.sin.unsqueeze(self.axis)
        inputs = (self.q, self.k)[:len(results)]
        with torch.enable_grad():
            expected = [rotate(x, cos, sin, style, out_style) for x in inputs]
            sizes = [rotate(x, cos.abs(), sin.abs(), style, out_style, 1) for x in inputs]
        grads = [y.detach().sin() for y in expected]
        if not all(y.requires_grad for y in results):
            return False
        actual = torch.autograd.grad(results, inputs, grads)
        wanted = torch.autograd.grad(expected, inputs, grads)
        bounds = torch.autograd.grad(sizes, inputs, [g.abs() for g in grads])
        return all(map(near, actual, wanted, bounds))


def rotation_of(function: Any) -> Rotation:
    """How the function rotates. Raises Unrecognised."""
    result = known(fingerprint(function), None, lambda facts: _rotation_of(function))
    assert isinstance(result, Rotation)
    return result


def _rotation_of(function: Any) -> Rotation:
    parameters = list(inspect.signature(function).parameters.values())
    require(all(p.kind == p.POSITIONAL_OR_KEYWORD for p in parameters), "it takes other arguments")
    names = tuple(p.name for p in parameters)
    num_required = sum(p.default is p.empty for p in parameters)
    for roles in _ROLES:
        if not num_required <= len(roles) <= len(names) or names[:len(roles)].count("unsqueeze_dim"):
            continue
        further = {p.name: p.default for p in parameters[len(roles):]}
        for columns in (COMPLEX,) if COMPLEX in roles else (HALF, REPEATED, SINGLE):
            found = _form_of(function, roles, columns, further)
            if found is not None:
                style, out_style, layouts, is_partial = found
                default_layout = further.pop("unsqueeze_dim", None)
                return Rotation(names, names[:len(roles)], roles, tuple(further.items()), columns, style, out_style,
                                layouts, default_layout, is_partial)
    raise Unrecognised("it does not compute a rotation that librope has")


def _form_of(function: Any, roles: Sequence[str], columns: str, further: Dict[str, Any]) -> Any:
    axes = LAYOUTS.items()
    keywords: Dict[str, Any] = {
        layout: {"unsqueeze_dim": axis} if "unsqueeze_dim" in further else {} for layout, axis in axes}

    def fits(layout: str, styles: Any, **trial: Any) -> Any:
        with sandbox() as generator:
            attempt = _Trial(generator, layout, **trial)
            try:
                results = attempt.call(function, roles, columns, keywords[layout])
            except Exception:
                return None
            return next((pair for pair in styles if attempt.fits(results, *pair)
                         and attempt.has_gradients(results, *pair)), None)

    layouts = []
    styles: Any = _STYLES
    for layout, axis in axes:
        found = fits(layout, styles)
        if found is not None:
            layouts.append((axis if "unsqueeze_dim" in further else None, layout))
            styles = (found,)
    if not layouts or (len(layouts) == 2 and "unsqueeze_dim" not in further):
        return None
    layout = layouts[0][1]
    for length, num_tables in itertools.product(LENGTHS, (1, 2)):
        if fits(layout, styles, length=length, pairs=2 * num_tables + 1, num_tables=num_tables) is None:
            return None
    is_partial = all(fits(layout, styles, passing=passing) is not None for passing in (2, 8))
    return (*styles[0], tuple(layouts), is_partial)


class Exactness(NamedTuple):
    rounding: Any  # RotationRounding.EACH, or 0 for once
    has_gradients: bool  # they have the bits, too
    strides: str  # how gradients lie in memory: as those of the results, "like", or "contiguous"


_exactness: Dict[Any, Optional[Exactness]] = {}


def exactness_of(
        function: Any, rotation: Rotation, dtype: torch.dtype, table_dtype: torch.dtype) -> Optional[Exactness]:
    """The rounding with which librope's results have the bits of the function's, if any."""
    key = fingerprint(function), dtype, table_dtype
    with lock:
        if key not in _exactness:
            _exactness[key] = _exactness_of(function, rotation, dtype, table_dtype)
        return _exactness[key]


def _exactness_of(
        function: Any, rotation: Rotation, dtype: torch.dtype, table_dtype: torch.dtype) -> Optional[Exactness]:
    if rotation.columns == COMPLEX:
        return None  # torch may fuse the products and sums of complex numbers
    unsqueeze_dim, layout = rotation.layouts[0]
    keywords = {} if unsqueeze_dim is None else {"unsqueeze_dim": unsqueeze_dim}
    with sandbox() as generator:
        trial = _Trial(generator, layout, length=64, pairs=8)
        trial.q, trial.k = (torch.randn(x.shape, generator=generator).to(dtype).requires_grad_()
                            for x in (trial.q, trial.k))
        angles = torch.rand(trial.cos.shape, generator=generator) * 6
        trial.cos, trial.sin = angles.cos().to(table_dtype), angles.sin().to(table_dtype)
        try:
            results = trial.call(function, rotation.roles, rotation.columns, keywords)
            inputs = (trial.q, trial.k)[:len(results)]
            grads = [torch.randn(y.shape, generator=generator).to(y.dtype) for y in results]
            # Attention has gradients in either order of axes.
            grads[0] = grads[0].transpose(1, 2).contiguous().transpose(1, 2)
            expected = torch.autograd.grad(results, inputs, grads)
        except Exception:
            return None
        for rounding in (RotationRounding.EACH, 0):
            with torch.enable_grad():
                rotate_by_librope: Any = apply_rotary
                ours = rotate_by_librope(
                    *inputs, style=rotation.style, out_style=rotation.out_style, layout=layout, rotary_dim=16,
                    cos=trial.cos, sin=trial.sin, table_rows="by_token", rotation_rounding=rounding)
            ours = ours if isinstance(ours, tuple) else (ours,)
            if not all(map(_same_bits, ours, results)):
                continue
            actual = torch.autograd.grad(ours, inputs, grads)
            strides = "like"
            if any(a.stride() != b.stride() for a, b in zip(actual, expected)):
                strides = "contiguous" if all(b.is_contiguous() for b in expected) else "other"
            return Exactness(rounding, all(map(_same_bits, actual, expected)) and strides != "other", strides)
    return None


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


# ---- Modules that make tables ---------------------------------------------------------------------------------------


class Tables(NamedTuple):
    columns: Tuple[str, ...]  # all that fit
    takes_f32: bool  # called with one number in F32 it returns what it then rounds to x's dtype
    follows_dtype: bool  # the tables have x's dtype


def tables_of(module: Any, layer_type: Optional[str]) -> Tables:
    """How a module returns cos and sin for x and positions. Raises Unrecognised."""
    result = known((own_class(module), fingerprint(own_class(module).forward), layer_type), module,
                    lambda facts: _tables_of(module, layer_type, facts))
    assert isinstance(result, Tables)
    return result


def _tables_of(module: Any, layer_type: Optional[str], facts: Facts) -> Tables:
    columns = {HALF, REPEATED, SINGLE, COMPLEX}
    takes_f32, follows = True, True
    keywords = {} if layer_type is None else {"layer_type": layer_type}
    forward = own_class(module).forward
    for dtype, length, rows in (*itertools.product((BF16,), LENGTHS, (1, 2)), (F16, 7, 2), (F32, 7, 2)):
        with sandbox() as generator:
            positions = torch.arange(length)[None] if rows == 1 else torch.randint(
                0, 100000, (rows, length), generator=generator)
            calls = []
            for x in (torch.ones(rows, length, 8, dtype=dtype), torch.empty(1, dtype=F32)):
                copied = skeleton(module, facts, generator.manual_seed(length), may_store=True)
                for name, value in list(vars(copied).items()):
                    if isinstance(value, torch.Tensor) and name.endswith("inv_freq"):
                        require(value.dim() == 1, "its frequencies have another shape")
                calls.append(forward(copied, x, positions, **keywords))
        given, wide = (y if isinstance(y, (tuple, list)) else (y,) for y in calls)
        require(all(isinstance(y, torch.Tensor) for y in given), "it does not return tensors")
        shape = given[0].shape
        require(len(given) == (1 if given[0].is_complex() else 2), "it returns something else than cos and sin")
        require(all(y.shape == shape and y.dtype == given[0].dtype for y in given) and len(shape) == 3
                and shape[:2] == positions.shape, "its cos and sin have another shape")
        columns &= {kind for kind in columns if all(_has_columns(y, kind) for y in given)}
        require(bool(columns), "its cos and sin have other columns")
        is_wide = all(y.shape == shape for y in wide) and len(wide) == len(given)
        takes_f32 &= is_wide and all(torch.equal(a.to(b.dtype), b) for a, b in zip(wide, given))
        follows &= given[0].dtype == dtype
    return Tables(tuple(sorted(columns)), takes_f32, follows)


def _has_columns(x: torch.Tensor, kind: str) -> bool:
    if x.is_complex() or kind == COMPLEX:
        return x.is_complex() and kind == COMPLEX
    if kind == SINGLE:
        return True
    half = x.shape[-1] // 2
    if x.shape[-1] % 2:
        return False
    return torch.equal(x[..., :half], x[..., half:]) if kind == HALF else torch.equal(x[..., ::2], x[..., 1::2])


def narrow(x: torch.Tensor, kind: str) -> torch.Tensor:
    """One column of each pair."""
    if kind == SINGLE:
        return x
    return x[..., :x.shape[-1] // 2] if kind == HALF else x[..., ::2]


# ---- Modules that gate ----------------------------------------------------------------------------------------------


class Gate(NamedTuple):
    """down(silu(gate(x)) * up(x)). If up is None, gate returns both, the gate behind if it is swapped. Without down it
    is a method that gates the result of such a projection."""

    gate: Optional[str]
    up: Optional[str]
    down: Optional[str]
    is_swapped: bool
    values: Tuple[Tuple[str, Any], ...]  # attributes that must have these values
    children: Tuple[Tuple[str, Any], ...]  # modules that must be of these classes, and their values


def has_gate(module: Any) -> bool:
    """Whether a module has two or three projections, and feeds one of them by two or by halves."""
    parts = [child for child in module._modules.values() if child is not None and _is_projection(child)]
    if len(parts) == 2:
        return any(a.out_features == 2 * getattr(b, "in_features", -1) for a, b in (parts, parts[::-1]))
    return len(parts) == 3


def gate_of(module: Any, method: str = "forward") -> Gate:
    """How the method of the module gates. Raises Unrecognised."""
    function = getattr(own_class(module), method)
    result = known((own_class(module), fingerprint(function)), module, lambda facts: _gate_of(
        module, function, method == "forward", facts))
    assert isinstance(result, Gate)
    return result


def _gate_of(module: Any, function: Any, has_projections: bool, facts: Facts) -> Gate:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    require(len(parameters) == 1 or all(p.default is not p.empty for p in parameters[1:]), "it takes other arguments")
    found: Any = None
    for length, training, dtype in (
            *[(n, False, F64) for n in LENGTHS], (1, True, F64), (7, True, F64), (7, False, F32), (7, True, BF16),
            (7, False, F16)):
        with sandbox() as generator:
            if has_projections:
                copied = skeleton(module, facts, generator)
                require(not any(x is not None for x in (*copied._parameters.values(), *copied._buffers.values())),
                        "it has parameters of its own")
            else:  # of experts: their projections are parameters
                copied = _without_parameters(module, facts, generator)
            for part in (copied, *copied._modules.values()):
                if part is not None:
                    vars(part)["training"] = training
            width = getattr(next(iter(module._modules.values()), None), "in_features", 8) if has_projections else 12
            x = numbers((2 if length == 2 else 1, length, width), generator).to(dtype)
            x.requires_grad_(not has_projections)
            version = x._version
            with torch.enable_grad():
                result = function(copied, x)
                form = _form_of_gate(copied, x, result) if has_projections else _form_of_apply_gate(x, result)
            require(x._version == version, "it changes its input")
            require(form is not None and found in (None, form), "it does not compute down(silu(gate) * up)")
            found = form
    require(not any(owner for owner, _ in facts.read), "it reads its configuration")
    gate, up, down, is_swapped = found
    return Gate(gate, up, down, is_swapped, facts.own(), tuple(facts.children.items()))


def _without_parameters(module: Any, facts: Facts, generator: torch.Generator) -> Any:
    bare = copy.copy(vars(module))
    bare["_parameters"], bare["_buffers"] = {}, {}
    stand_in = object.__new__(own_class(module))
    object.__setattr__(stand_in, "__dict__", bare)
    return skeleton(stand_in, facts, generator)


def _is_gated(given: Any, gate: torch.Tensor, up: torch.Tensor) -> bool:
    """Whether it is silu(gate) * up, and has its gradients."""
    if gate.shape != up.shape or not isinstance(given, torch.Tensor) or not given.requires_grad:
        return False
    wide_gate, wide_up = gate.detach().to(F64).requires_grad_(), up.detach().to(F64).requires_grad_()
    with torch.enable_grad():
        expected = torch.nn.functional.silu(wide_gate) * wide_up
    tolerance = {F64: 1e-13, F32: 1e-5, F16: 2e-3, BF16: 2e-2}[gate.dtype]
    # The smallest numbers of F16 have no precision.
    least = (wide_up.detach().abs() + 1) * 1e-7 if gate.dtype == F16 else 0.0

    def fits(actual: Optional[torch.Tensor], wanted: torch.Tensor, size: torch.Tensor) -> bool:
        if actual is None or actual.shape != wanted.shape or actual.dtype != gate.dtype:
            return False
        is_large = wanted.abs() > torch.finfo(gate.dtype).max / 2
        difference = (actual.detach().to(F64) - wanted).abs()
        return bool((is_large | (difference <= max(tolerance, 1e-6) * size.abs() + least + 1e-30)).all())

    if not fits(given, expected, expected):
        return False
    if gate.dtype != F64:
        return True
    grad = expected.detach().sin()
    actual = torch.autograd.grad(given, (gate, up), grad, allow_unused=True, retain_graph=True)
    wanted = torch.autograd.grad(expected, (wide_gate, wide_up), grad)
    # silu'(x) = s + x s (1 - s) is a sum
    s = torch.sigmoid(wide_gate)
    sizes = grad * wide_up * (s + (wide_gate * s * (1 - s)).abs()), wanted[1]
    return all(map(fits, actual, wanted, sizes))


def _form_of_gate(copied: Any, x: torch.Tensor, result: Any) -> Any:
    stubs = {name: child for name, child in copied._modules.items() if isinstance(child, Stub)}
    require(all(len(stub.calls) == 1 for stub in stubs.values()), "it does not call each projection once")
    for down, stub in stubs.items():
        hidden, y = stub.calls[0]
        others = [(name, other.calls[0]) for name, other in stubs.items() if name != down]
        if result is not y or not all(given is x for _, (given, _) in others):
            continue
        for swapped in (False, True):
            if len(others) == 2:
                (gate, (_, a)), (up, (_, b)) = others[::-1] if swapped else others
                if _is_gated(hidden, a, b):
                    return gate, up, down, False
            if len(others) == 1:
                name, (_, both) = others[0]
                if both.shape[-1] % 2 == 0 and _is_gated_pair(hidden, both, swapped, stub):
                    return name, None, down, swapped
    return None


def _is_gated_pair(given: Any, both: torch.Tensor, swapped: bool, stub: Any = None) -> bool:
    """Whether it is the gated product of the halves of a tensor, and has its gradient."""
    leaf = both.detach().requires_grad_()
    with torch.enable_grad():
        parts = leaf.chunk(2, -1)
        gate, up = (x.detach().requires_grad_() for x in (parts[::-1] if swapped else parts))
        expected = torch.nn.functional.silu(gate.to(F64)) * up.to(F64)
    if not isinstance(given, torch.Tensor) or given.shape != expected.shape or not given.requires_grad:
        return False
    grad = expected.detach().sin().to(given.dtype)
    whole: Any
    whole, = torch.autograd.grad(given, both, grad, allow_unused=True, retain_graph=True)
    if whole is None:
        return False
    first, second = whole.chunk(2, -1)[::-1] if swapped else whole.chunk(2, -1)
    return _is_gated(_Given.apply(gate, up, given.detach(), first, second), gate, up)


class _Given(torch.autograd.Function):
    """A result and its gradients that are known."""

    @staticmethod
    def forward(ctx: Any, gate: Any, up: Any, given: Any, gate_grad: Any, up_grad: Any) -> Any:
        ctx.save_for_backward(gate_grad, up_grad)
        return given.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return (*ctx.saved_tensors, None, None, None)


def _form_of_apply_gate(x: torch.Tensor, result: Any) -> Any:
    for swapped in (False, True):
        if _is_gated_pair(result, x, swapped):
            return None, None, None, swapped
    return None


# ---- Norms ----------------------------------------------------------------------------------------------------------


class HeadNorm(NamedTuple):
    cls: Any
    eps: str  # the name of its attribute
    arguments: Tuple[Tuple[str, Any], ...]  # of norm_rotary


_NORMS = tuple(itertools.product(
    (NormType.RMS, NormType.LAYER), (0.0, 1.0),
    (NormRounding.AFTER_WEIGHT, NormRounding.BEFORE_WEIGHT | NormRounding.AFTER_WEIGHT)))


def norm_of(module: Any) -> HeadNorm:
    """The formula of a norm over the last axes of its weight. Raises Unrecognised."""
    result = known((own_class(module), fingerprint(own_class(module).forward)), module,
                    lambda facts: _norm_of(module, facts))
    assert isinstance(result, HeadNorm)
    return result


def _norm_of(module: Any, facts: Facts) -> HeadNorm:
    cls = own_class(module)
    weights = {name: x for name, x in module._parameters.items() if x is not None}
    require(not module._modules and not module._buffers and set(weights) <= {"weight"}, "it has other parameters")
    shape = weights["weight"].shape if weights else torch.Size((16,))
    facts.children.clear()
    names = [name for name in ("eps", "variance_epsilon") if type(getattr(module, name, None)) is float]
    require(len(names) == 1, "it has no eps")
    eps = names[0]
    candidates: List[Any] = list(_NORMS) if weights else [(NormType.RMS, None, 0), (NormType.LAYER, None, 0)]
    for dtype, training, large in itertools.product((F32, BF16, F16), (False, True), (False, True)):
        with sandbox() as generator:
            copied = skeleton(module, facts, generator)
            vars(copied).update({"training": training, eps: 0.03125 if large else getattr(module, eps)})
            given_eps = vars(copied)[eps]
            weight = None
            if weights:
                weight = torch.nn.Parameter((torch.randn(shape, generator=generator) * 0.5 + 0.7).to(dtype), False)
                copied._parameters["weight"] = weight
            x = torch.randn((2, 64, *shape), generator=generator) * (0.1 if large else 3.0) + 0.5
            x = x.to(dtype)
            result = cls.forward(copied, x)
        require(isinstance(result, torch.Tensor) and result.dtype == dtype and result.shape == x.shape,
                "it returns something else")
        candidates = [kind for kind in candidates if _alike(result, _norm(x, weight, given_eps, *kind))]
        require(bool(candidates), "it is not a norm that librope has")
    facts.read.pop(("", eps), None)  # is read at each call
    kind, offset, rounding = candidates[0]
    arguments: Dict[str, Any] = {"norm": kind}
    if weights:
        arguments.update(norm_rounding=rounding, norm_weight_offset=offset)
    return HeadNorm(cls, eps, tuple(arguments.items()))


def _norm(x: torch.Tensor, weight: Optional[torch.Tensor], eps: float, kind: Any, offset: Any, rounding: Any) -> Any:
    y = x.float()
    if kind == NormType.LAYER:
        y = y - y.mean(-1, keepdim=True)
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    if weight is None:
        return y.to(x.dtype)
    if rounding & NormRounding.BEFORE_WEIGHT:
        return (y.to(x.dtype) * (weight + offset)).to(x.dtype)
    return (y * (weight.float() + offset)).to(x.dtype)


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal up to the order of sums, so that few numbers round to the other side."""
    if a.dtype == F32:
        return bool(((a - b).abs() <= 2e-6 * (b.abs() + 1e-3)).all())
    return bool((a != b).float().mean() < 2e-3) and bool(((a - b).abs().float() <= 0.01 * b.abs().float() + 1e-3).all())


# ---- What is known --------------------------------------------------------------------------------------------------

_results: Dict[Any, List[Tuple[Facts, Any]]] = {}


def known(key: Any, module: Any, recognise: Callable[[Facts], Any]) -> Any:
    """The result for this code, if a module had the same values."""
    with lock:
        of_code = _results.setdefault(key, [])
        for facts, result in of_code:
            if module is None or facts.hold_for(module):
                break
        else:
            facts = Facts()
            try:
                result = recognise(facts)
            except Unrecognised as error:
                result = str(error)
            except Exception as error:
                result = f"it cannot be run for a test: {type(error).__name__}: {error}"[:200].replace("\n", " ")
            of_code.append((facts, result))
    if isinstance(result, str):
        raise Unrecognised(result)
    return result
