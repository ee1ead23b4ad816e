"""Forward derivatives in NumPy: a formula given `Sloped` numbers returns a value and its slopes in every direction.

Formulas run as they are, nothing is compiled: a design study depends on its free quantities through hundreds of
formulas, which XLA compiles for a minute and more per study, while an optimiser asks for a few hundred designs. The
rules are those of JAX, to which the tests hold them, unless a *temperature* is set: then what has no useful derivative
gets a smooth companion. The larger and the smaller of two numbers are rounded off over that relative width, a rounding
inside a formula follows its mean. A comparison tells its *margin*, how far it is from turning over, so that a
constraint that says true or false becomes an inequality.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from .namespace import Ruled

TEMPERATURE: ContextVar[float] = ContextVar("temperature", default=0.0)
TINY = 1e-300


@contextmanager
def smoothing(temperature: float) -> Iterator[None]:
    """Rules of the smooth companions within the block; a temperature of zero means exact values and derivatives."""
    token = TEMPERATURE.set(temperature)
    try:
        yield
    finally:
        TEMPERATURE.reset(token)


def value_of(item: Any) -> Any:
    """The plain value of a dual number, a flag or an array."""
    return item.value if isinstance(item, (Sloped, Flag)) else item


class Arraylike(NDArrayOperatorsMixin, Ruled):
    """What NumPy's own functions take as it is, by `__array_ufunc__` and `__array_function__`."""

    __slots__ = ()

    def apply(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """NumPy's function of that name; what is an array already stays one."""
        return arguments[0] if name == "asarray" else getattr(np, name)(*arguments, **options)


class Sloped(Arraylike):
    """A value and its slopes [directions, *value]; NumPy functions and operators keep both."""

    __slots__ = ("slope", "unrounded", "up", "value")

    def __init__(self, value: Any, slope: Any, unrounded: Any = None, up: bool = False):
        self.value = np.asarray(value, dtype=np.float64)
        self.slope = slope
        self.unrounded = unrounded  # of a result of floor or ceil: what was rounded
        self.up = up

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value."""
        return self.value.shape

    @property
    def ndim(self) -> int:
        """Rank of the value."""
        return self.value.ndim

    @property
    def dtype(self) -> Any:
        """Type of the value."""
        return self.value.dtype

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, index: Any) -> Sloped:
        index = index if isinstance(index, tuple) else (index,)
        return Sloped(self.value[index], self.slope[(slice(None), *index)])

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options:
            return NotImplemented
        return _ufunc(ufunc, inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        return _function(function, args, options)


class Flag(Arraylike):
    """True or false of dual numbers; ``margin`` is positive where it is true, and worked out when asked for."""

    __slots__ = ("_margin", "value")

    def __init__(self, value: Any, margin: Callable[[], Any]):
        self.value, self._margin = np.asarray(value), margin

    @property
    def margin(self) -> Any:
        """How far the flag is from turning over, from -1 to 1: a dual number."""
        return self._margin()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the flag."""
        return self.value.shape

    @property
    def ndim(self) -> int:
        """Rank of the flag."""
        return self.value.ndim

    @property
    def dtype(self) -> Any:
        """Type of the flag: bool."""
        return self.value.dtype

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options:
            return NotImplemented
        return _ufunc(ufunc, inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        return _function(function, args, options)

    def __getitem__(self, index: Any) -> Flag:
        return Flag(self.value[index], lambda: self.margin[index])


def margin_of(flag: Any) -> Any:
    """The margin of a flag, or of a plain true or false: 1 or -1 without slopes."""
    return flag.margin if isinstance(flag, Flag) else np.where(flag, 1.0, -1.0)


def slope_of(item: Any, directions: int) -> Any:
    """The slopes of a number, zero of a plain one."""
    return item.slope if isinstance(item, Sloped) else np.zeros((directions, *np.shape(item)))


def _lifted(slope: Any, rank: int) -> Any:
    """Slopes of a value as of one of a higher rank, so that values broadcast as usual."""
    missing = rank - (slope.ndim - 1)
    return slope.reshape((slope.shape[0],) + (1,) * missing + slope.shape[1:]) if missing > 0 else slope


def _combined(value: Any, *terms: tuple[Any, Any]) -> Sloped:
    """The value with the slopes sum of (factor x slopes) of the dual operands."""
    value, slope = np.asarray(value), None
    for factor, operand in terms:
        if isinstance(operand, Sloped):
            part = factor * _lifted(operand.slope, value.ndim)
            slope = part if slope is None else slope + part
    assert slope is not None
    if slope.shape[1:] != value.shape:
        slope = np.broadcast_to(slope, (slope.shape[0], *value.shape))
    return Sloped(value, slope)


# ---- rules ----------------------------------------------------------------------------------------------------------

UNARY: dict[Any, Callable[[Any, Any], Any]] = {  # derivative from argument and result
    np.negative: lambda x, y: -1.0,
    np.positive: lambda x, y: 1.0,
    np.sqrt: lambda x, y: 0.5 / y,
    np.square: lambda x, y: 2 * x,
    np.exp: lambda x, y: y,
    np.expm1: lambda x, y: y + 1,
    np.log: lambda x, y: 1 / x,
    np.log2: lambda x, y: 1 / (x * np.log(2)),
    np.log1p: lambda x, y: 1 / (1 + x),
    np.absolute: lambda x, y: np.where(x >= 0, 1.0, -1.0),
    np.rint: lambda x, y: 0.0,
    np.sign: lambda x, y: 0.0,
}
BINARY: dict[Any, tuple[Callable[..., Any], Callable[..., Any]]] = {  # derivatives by left and right
    np.add: (lambda a, b, y: 1.0, lambda a, b, y: 1.0),
    np.subtract: (lambda a, b, y: 1.0, lambda a, b, y: -1.0),
    np.multiply: (lambda a, b, y: b, lambda a, b, y: a),
    np.divide: (lambda a, b, y: 1 / b, lambda a, b, y: -y / b),
    np.power: (lambda a, b, y: np.where(b == 0, 0.0, b * np.power(a, b - 1.0)), lambda a, b, y: y * np.log(a)),
    np.remainder: (lambda a, b, y: 1.0, lambda a, b, y: -np.floor(a / b)),
}
LESS, MORE = (np.less, np.less_equal), (np.greater, np.greater_equal)


def _ufunc(ufunc: Any, inputs: tuple[Any, ...]) -> Any:
    values = [value_of(i) for i in inputs]
    duals = [isinstance(i, Sloped) for i in inputs]
    if ufunc in (*LESS, *MORE):
        sign = 1.0 if ufunc in LESS else -1.0
        return Flag(ufunc(*values), lambda: sign * _relative(inputs[1], inputs[0]))
    if ufunc in (np.equal, np.not_equal):
        result = ufunc(*values)
        return Flag(result, lambda: np.where(result, 1.0, -1.0))
    if ufunc in (np.logical_and, np.bitwise_and):
        return Flag(ufunc(*values), lambda: _least(margin_of(inputs[0]), margin_of(inputs[1])))
    if ufunc in (np.logical_or, np.bitwise_or):
        return Flag(ufunc(*values), lambda: -_least(-margin_of(inputs[0]), -margin_of(inputs[1])))
    if ufunc in (np.logical_not, np.invert):
        return Flag(ufunc(*values), lambda: -margin_of(inputs[0]))
    if not any(duals):
        return ufunc(*values)
    if ufunc in (np.maximum, np.minimum):
        return _extreme(inputs[0], inputs[1], ufunc is np.maximum)
    if ufunc in (np.floor, np.ceil):
        return _rounded(inputs[0], ufunc is np.ceil)
    if ufunc in UNARY:
        result = ufunc(*values)
        return _combined(result, (UNARY[ufunc](values[0], result), inputs[0]))
    if ufunc in BINARY:
        result = ufunc(*values)
        slopes = [(rule(*values, result), item) for rule, item, dual in zip(BINARY[ufunc], inputs, duals, strict=True)
                  if dual]  # fmt: skip
        return _combined(result, *slopes)
    return _by_jax(getattr(jnp, ufunc.__name__), inputs, {})


def _relative(a: Any, b: Any) -> Any:
    return (a - b) / (np.absolute(a) + np.absolute(b) + TINY)


def _least(a: Any, b: Any) -> Any:
    """The exact smaller number, whatever the temperature."""
    if not isinstance(a, Sloped) and not isinstance(b, Sloped):
        return np.minimum(a, b)
    return _where(value_of(a) <= value_of(b), a, b)


def _extreme(a: Any, b: Any, largest: bool) -> Any:
    """The larger or the smaller of two numbers, rounded off where a temperature is set.

    By (sqrt(d^2 + 4 t^2 |ab|) - |d|)/2 with d = a - b: t times the number where both are equal, t^2 of the smaller one
    far from there, nothing beside a zero.
    """
    x, y = value_of(a), value_of(b)
    first = x > y if largest else x < y
    share = np.where(x == y, 0.5, first.astype(float))  # of equal numbers each counts half, as in JAX
    temperature, value, gap_a, gap_b = TEMPERATURE.get(), np.where(first, x, y), 0.0, 0.0
    if temperature:
        distance, product = x - y, x * y
        width = 4 * temperature**2
        square = distance**2 + width * np.abs(product)
        met = square > 0
        root, sign = np.sqrt(np.where(met, square, 1.0)), 0.5 * width * np.sign(product)
        gap = np.where(met, 0.5 * width * np.abs(product) / (root + np.abs(distance)), 0.0)
        side = np.sign(distance)
        gap_a = np.where(met, 0.5 * ((distance + sign * y) / root - side), 0.0)
        gap_b = np.where(met, 0.5 * ((sign * x - distance) / root + side), 0.0)
        value = value + gap if largest else value - gap
        if not largest:
            gap_a, gap_b = -gap_a, -gap_b
    return _combined(value, (share + gap_a, a), (1 - share + gap_b, b))


def _rounded(x: Sloped, up: bool) -> Sloped:
    """A rounding: exact and without slope, or its mean x +- 1/2, from one thing upwards and down to none."""
    if not TEMPERATURE.get():
        return Sloped(np.ceil(x.value) if up else np.floor(x.value), np.zeros_like(x.slope), x, up)
    mean = _extreme(x + 0.5, 1.0, True) if up else _where(x.value > 0.5, x - 0.5, 0.0)
    return Sloped(mean.value, mean.slope, x, up)


def _where(condition: Any, a: Any, b: Any) -> Any:
    chosen = np.where(condition, value_of(a), value_of(b))
    if not isinstance(a, Sloped) and not isinstance(b, Sloped):
        return chosen
    directions = a.slope.shape[0] if isinstance(a, Sloped) else b.slope.shape[0]
    slopes = [_lifted(slope_of(i, directions), chosen.ndim) for i in (a, b)]
    return Sloped(chosen, np.broadcast_to(np.where(condition, *slopes), (directions, *chosen.shape)))


def _select(condition: Any, a: Any, b: Any) -> Any:
    picked = value_of(condition)
    if np.asarray(value_of(a)).dtype == bool and np.asarray(value_of(b)).dtype == bool:
        return Flag(np.where(picked, value_of(a), value_of(b)), lambda: _where(picked, margin_of(a), margin_of(b)))
    return _where(picked, _numeric(a), _numeric(b))


def _numeric(item: Any) -> Any:
    return item.value if isinstance(item, Flag) else item


def _axes(axis: Any, rank: int) -> tuple[int, ...]:
    found = range(rank) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return tuple(a - rank if a >= 0 else a for a in found)


def _reduced(x: Sloped, function: Any, axis: Any, keepdims: bool) -> Sloped:
    """The largest value along axes, or the smallest, as it is: formulas compare with it to find which one it is."""
    value = function(x.value, axis=axis, keepdims=True)
    met = (x.value == value).astype(float)
    axes = _axes(axis, x.ndim)
    share = met / np.sum(met, axis=axes, keepdims=True)
    slope = np.sum(x.slope * share, axis=axes, keepdims=keepdims)
    return Sloped(function(x.value, axis=axis, keepdims=keepdims), slope)


def _reshaped(x: Any, shape: Any) -> Any:
    shape = tuple(np.reshape(np.empty(x.shape, bool), shape).shape)
    if isinstance(x, Flag):
        return Flag(x.value.reshape(shape), lambda: np.reshape(margin_of(x), shape))
    unrounded = None if x.unrounded is None else _reshaped(x.unrounded, shape)
    return Sloped(x.value.reshape(shape), x.slope.reshape((x.slope.shape[0], *shape)), unrounded, x.up)


def _broadcast(x: Any, shape: Any) -> Any:
    if isinstance(x, Flag):
        return Flag(np.broadcast_to(x.value, shape), lambda: np.broadcast_to(margin_of(x), shape))
    slope = np.broadcast_to(_lifted(x.slope, len(shape)), (x.slope.shape[0], *shape))
    unrounded = None if x.unrounded is None else _broadcast(x.unrounded, shape)
    return Sloped(np.broadcast_to(x.value, shape), slope, unrounded, x.up)


def _concatenated(parts: Any, axis: int = 0) -> Any:
    parts = [_numeric(p) for p in parts]
    value = np.concatenate([value_of(p) for p in parts], axis=axis)
    duals = [p for p in parts if isinstance(p, Sloped)]
    if not duals:
        return value
    (axis,), directions = _axes(axis, value.ndim), duals[0].slope.shape[0]
    return Sloped(value, np.concatenate([slope_of(p, directions) for p in parts], axis=axis))


def _taken(x: Any, indices: Any, axis: int) -> Any:
    if isinstance(x, Flag):
        return Flag(np.take(x.value, indices, axis), lambda: np.take(margin_of(x), indices, axis))
    (axis,) = _axes(axis, x.ndim)
    return Sloped(np.take(x.value, indices, axis), np.take(x.slope, indices, axis))


def _sum(x: Sloped, axis: Any = None, keepdims: bool = False) -> Sloped:
    axes = _axes(axis, x.ndim)
    return Sloped(np.sum(x.value, axes, keepdims=keepdims), np.sum(x.slope, axes, keepdims=keepdims))


def _taken_along(x: Sloped, indices: Any, axis: int) -> Sloped:
    everywhere = np.broadcast_to(indices, (x.slope.shape[0], *indices.shape))
    slope = np.take_along_axis(x.slope, everywhere, _axes(axis, x.ndim)[0])
    return Sloped(np.take_along_axis(x.value, indices, axis), slope)


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.where: _select,
    np.shape: lambda x: x.shape,
    np.ndim: lambda x: x.ndim,
    np.reshape: lambda x, shape: _reshaped(x, shape),
    np.broadcast_to: lambda x, shape: _broadcast(x, shape),
    np.expand_dims: lambda x, axis: _reshaped(x, np.expand_dims(np.empty(x.shape, bool), axis).shape),
    np.concatenate: _concatenated,
    np.sum: _sum,
    np.max: lambda x, axis=None, keepdims=False: _reduced(x, np.max, axis, keepdims),
    np.min: lambda x, axis=None, keepdims=False: _reduced(x, np.min, axis, keepdims),
    np.clip: lambda x, low, high: _extreme(_extreme(x, low, True), high, False),
    np.zeros_like: lambda x: np.zeros(x.shape),
    np.ones_like: lambda x: np.ones(x.shape),
    np.round: lambda x: _ufunc(np.rint, (x,)),
    np.argsort: lambda x, **options: np.argsort(x.value, **options),
    np.take: _taken,
    np.take_along_axis: _taken_along,
}


def _function(function: Any, args: Any, options: Any) -> Any:
    first = args[0]
    if isinstance(first, Flag) and function in (np.sum, np.max, np.min):
        return function(first.value, *args[1:], **options)
    if function in FUNCTIONS:
        return FUNCTIONS[function](*args, **options)
    return _by_jax(getattr(jnp, function.__name__), args, options)


def _by_jax(function: Any, args: tuple[Any, ...], options: Any) -> Sloped:
    """A function without a rule here: JAX's own derivative."""
    places = [i for i, a in enumerate(args) if isinstance(a, Sloped)]

    def of_duals(*given: Any) -> Any:
        filled = list(map(value_of, args))
        for place, item in zip(places, given, strict=True):
            filled[place] = item
        return function(*filled, **options)

    with jax.enable_x64(True):
        values = tuple(jnp.asarray(args[i].value) for i in places)
        result, along = jax.linearize(of_duals, *values)
        slopes = jax.vmap(along)(*(jnp.asarray(args[i].slope) for i in places))
    return Sloped(np.asarray(result), np.asarray(slopes))
