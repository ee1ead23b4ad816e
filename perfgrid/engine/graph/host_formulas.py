"""Host formulas: plain Python on the values of one design at a time, for what no array formula can express.

A host formula walks a graph, searches or counts; its results are numbers of small range (no derivative) on declared
inner axes. It is evaluated once per distinct tuple of its arguments, always in the small stage.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from perfgrid.engine.errors import PerfgridError

from .inner_axes import InnerAxes

MOST_KEPT = 2**14  # results of all host formulas together


class HostFormula:
    """A function of one design's plain values, callable with arrays like any other formula.

    The function takes a float per argument, or the vector of an argument along its inner axes (those of size 1 left
    out), and returns an array on ``axes``.
    """

    def __init__(self, name: str, function: Callable[..., Any], inner: InnerAxes, axes: tuple[str, ...]):
        positions = [inner.position(axis) for axis in axes]
        if positions != sorted(set(positions)):
            legal = [axis for axis in inner.names if axis in axes]
            raise PerfgridError(f"host formula {name!r} names inner axes {axes}; in order, each once: {legal}")
        self.name, self.function, self.inner, self.axes = name, function, inner, axes
        self.result = tuple(inner.size(axis) for axis in axes)
        self.__name__ = name

    def shape(self, present: tuple[str, ...]) -> tuple[int, ...]:
        """The shape of a result on these inner axes."""
        return tuple(self.inner.size(axis) if axis in self.axes else 1 for axis in present)

    def __call__(self, *arguments: Any) -> Any:
        """Values on the study axes of the arguments, then on the inner axes."""
        shape = self.shape(self.inner.present)
        if any(isinstance(a, Tracer) for a in arguments):
            fixed = [jax.lax.stop_gradient(jnp.asarray(a)) for a in arguments]
            kind = jax.dtypes.canonicalize_dtype(np.float64)
            result = jax.ShapeDtypeStruct(_grid(fixed, len(shape)) + shape, kind)
            return jax.pure_callback(lambda *given: self._evaluate(given, shape).astype(kind), result, *fixed)
        return self._evaluate(arguments, shape)

    def _evaluate(self, arguments: Any, shape: tuple[int, ...]) -> np.ndarray:
        rank = len(shape)
        grid = _grid(arguments, rank)
        sizes, columns = [], []
        for argument in arguments:
            value = np.asarray(argument, dtype=np.float64)
            value = value.reshape((1,) * (rank - value.ndim) + value.shape)
            own = value.shape[value.ndim - rank :]
            sizes.append(tuple(size for size in own if size > 1))
            columns.append(np.broadcast_to(value, grid + own).reshape(int(np.prod(grid)), -1))
        rows = np.concatenate(columns, axis=1) if columns else np.zeros((1, 0))
        distinct, where = np.unique(rows, axis=0, return_inverse=True)
        found = [_once(self.function, self.name, self.result, tuple(sizes), row.tobytes()) for row in distinct]
        return np.stack(found)[where.reshape(-1)].reshape(grid + shape)


def _grid(arguments: Any, rank: int) -> tuple[int, ...]:
    """The study axes that arguments have together before so many inner axes."""
    return np.broadcast_shapes(*(np.shape(a)[: max(np.ndim(a) - rank, 0)] for a in arguments))


@lru_cache(maxsize=MOST_KEPT)
def _once(
    function: Callable[..., Any], name: str, result: tuple[int, ...], sizes: tuple[tuple[int, ...], ...], row: bytes
) -> np.ndarray:
    """The value of one row of arguments."""
    numbers, given, start = np.frombuffer(row), [], 0
    for size in sizes:
        count = int(np.prod(size))
        part = numbers[start : start + count]
        given.append(part.reshape(size) if size else float(part[0]))
        start += count
    value = np.asarray(function(*given), dtype=np.float64)
    if value.shape != result:
        raise PerfgridError(f"host formula {name!r} returns shape {value.shape}, declared {result}")
    return value
