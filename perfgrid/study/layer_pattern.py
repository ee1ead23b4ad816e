"""Which kinds of layers the models of a study have: a label by which formulas of layers are chosen (`layer_kinds`)."""

from __future__ import annotations

from functools import reduce
from operator import mul

import numpy as np

from perfgrid.engine.grid.space import Space

LAYER_PATTERN = "layer_pattern"
COUNTS = ("experts", "dense_layers", "layers")


def layer_pattern(space: Space) -> str:
    """``dense_first`` where any model of a study may have dense layers and layers with experts, otherwise ``uniform``.

    Where a count is computed, not given, nothing is known of it, and ``dense_first`` is right for all models.
    """
    if not set(COUNTS) <= set(space.names()):
        return "dense_first"
    experts, dense, layers = (_values(space, name) for name in COUNTS)
    return "dense_first" if ((experts > 0) & (dense > 0) & (dense < layers)).any() else "uniform"


def with_layer_pattern(space: Space) -> Space:
    """A space with the label; one that was stored before there was a label may lack it."""
    if LAYER_PATTERN in space.names() or "layers" not in space.names():
        return space
    return Space(space.axes, {**space.constants, LAYER_PATTERN: layer_pattern(space)})


def _values(space: Space, name: str) -> np.ndarray:
    """A quantity with one dimension per axis of the space, of size 1 where it does not vary."""

    def spread(axis: int | None, values: np.ndarray) -> np.ndarray:
        shape = [1] * len(space.axes)
        if axis is not None:
            shape[axis] = len(values)
        return np.reshape(values, shape)

    return reduce(mul, (spread(axis, values) for axis, values in space.parts(name)))
