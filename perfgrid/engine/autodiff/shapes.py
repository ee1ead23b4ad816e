"""What becomes of a tangent when the shape of its value changes: it stays on its own axes where it can.

A tangent is an array [directions, *axes of the value], of size 1 along axes on which it does not vary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from perfgrid.engine.graph.namespace import xp

BLOCK_VALUES = 2**16  # copied at once
ROUNDING = 1e-13  # of float64, relative


def behind(axis: Any, rank: int) -> tuple[int, ...]:
    """Axes of a value counted from the last one, which are those of its tangents as well; None stands for all."""
    found = range(rank) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return tuple(a - rank if a >= 0 else a for a in found)


def lifted(tangent: Any, rank: int) -> Any:
    """A tangent as one of a value of this rank."""
    missing = rank + 1 - tangent.ndim
    return tangent.reshape(tangent.shape[:1] + (1,) * missing + tangent.shape[1:]) if missing > 0 else tangent


def spread(tangent: Any, shape: tuple[int, ...]) -> Any:
    """A tangent on all axes of a value of this shape."""
    return xp.broadcast_to(lifted(tangent, len(shape)), (tangent.shape[0], *shape))


def part(tangent: Any, key: Any, shape: tuple[int, ...]) -> Any:
    """The tangent of ``value[key]``: along an axis on which it does not vary its one row stands for all."""
    keys = key if isinstance(key, tuple) else (key,)
    if not all(k is Ellipsis or k is None or isinstance(k, (int, slice)) for k in keys):
        return spread(tangent, shape)[(slice(None), *keys)]
    place = keys.index(Ellipsis) if Ellipsis in keys else len(keys)
    rest = len(shape) - sum(k is not None and k is not Ellipsis for k in keys)
    sizes, found = iter(tangent.shape[1:]), []
    for k in (*keys[:place], *(slice(None),) * rest, *keys[place + 1 :]):
        one = k is not None and next(sizes) == 1
        found.append(0 if one and isinstance(k, int) else slice(None) if one else k)
    return tangent[(slice(None), *found)]


def reshaped(tangent: Any, old: tuple[int, ...], new: tuple[int, ...]) -> Any:
    """The tangent of a value of another shape; on its own axes where only axes of size 1 come and go."""
    if [n for n in old if n != 1] != [n for n in new if n != 1]:
        return xp.reshape(spread(tangent, old), (tangent.shape[0], *new))
    sizes = iter([size for size, n in zip(tangent.shape[1:], old, strict=True) if n != 1])
    return tangent.reshape((tangent.shape[0], *(1 if n == 1 else next(sizes) for n in new)))


def total(tangent: Any, shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> Any:
    """The tangent of a sum: what does not vary along an axis counts as often as the value has rows."""
    times = prod(shape[i] for i in axes if tangent.shape[i] == 1)
    found = xp.sum(tangent, axis=axes, keepdims=keepdims)
    return found * float(times) if times != 1 else found


def joined(tangents: Sequence[Any], sizes: Sequence[int], place: int, dtype: Any) -> Any:
    """The tangent of values side by side along an axis; None stands for one of 0."""
    common = [max(found) for found in zip(*(t.shape for t in tangents if t is not None), strict=True)]
    shapes = [tuple(size if i == place + len(common) else n for i, n in enumerate(common)) for size in sizes]
    full = [
        xp.asarray(xp.broadcast_to(0.0 if tangent is None else tangent, shape), dtype=dtype)
        for tangent, shape in zip(tangents, shapes, strict=True)
    ]
    return xp.concatenate(full, axis=place)


def elasticity(value: Any, tangent: Any) -> Any:
    """A tangent over its value; 0 where the value is 0."""
    zero = value == 0
    return xp.where(zero, 0.0, tangent / xp.where(zero, 1.0, value))


def same(mine: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two sets of tangents by quantity are the same but for rounding."""
    if mine.keys() != other.keys() or any(mine[k].shape != other[k].shape for k in mine):
        return False
    return all(np.allclose(tangent, other[k], ROUNDING, 0.0) for k, tangent in mine.items())


def turn(targets: Sequence[tuple[np.ndarray, int, float]], source: np.ndarray) -> None:
    """Copy rows of the last axis of an array to arrays, with signs, in blocks that the cache holds for all of them."""
    if source.size <= BLOCK_VALUES:
        for target, column, sign in targets:
            np.multiply(source[..., column], sign, out=target)
        return
    axis = int(np.argmax(source.shape[:-1]))
    half = source.shape[axis] // 2
    for part in (slice(None, half), slice(half, None)):
        here = (slice(None),) * axis + (part,)
        turn([(target[here], column, sign) for target, column, sign in targets], source[here])


def elements_of(inner: Sequence[int]) -> list[tuple[tuple[int, ...], np.ndarray]]:
    """For each element of a quantity's inner axes its place, and 1 there and 0 elsewhere."""
    found = []
    for place in product(*(range(size) for size in inner)):
        mask = np.zeros(tuple(inner))
        mask[place] = 1.0
        found.append((place, mask))
    return found


def element(stacked: Any, place: Sequence[int]) -> Any:
    """The tangents of one element of a quantity's inner axes, which lie before the last axis."""
    sizes = np.shape(stacked)[np.ndim(stacked) - 1 - len(place) : -1]
    at = (0 if size == 1 else i for i, size in zip(place, sizes, strict=True))
    return stacked[(Ellipsis, *at, slice(None))]
