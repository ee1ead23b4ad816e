"""``xp``: the array functions that formulas use; NumPy until an argument is a JAX array.

Plain floats therefore give plain floats, a replay of one point runs in float64 NumPy, and the very same text is traced
by JAX when a grid is compiled. An argument may also bring rules of its own (`Ruled`), as numbers with derivatives do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin


class Ruled:
    """A value for which ``xp`` functions mean something else than for arrays."""

    def apply(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """The value of the function ``xp.<name>``."""
        raise NotImplementedError


class Arraylike(NDArrayOperatorsMixin, Ruled):
    """A value that NumPy's own operators and functions take too: they mean what ``xp`` of their name means."""

    __slots__ = ()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options.pop("out", (self,))[0] is not self or options:  # x += y makes a new x
            return NotImplemented
        return self.apply(ufunc.__name__, inputs, options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        return self.apply(function.__name__, args, options)


PLAIN = frozenset(
    (np.ndarray, float, int, bool, np.float64, np.bool_)
)  # recognized without a search through base classes


def _special(values: Iterable[Any]) -> Any:
    """The first value with rules of its own, else a JAX array; None if all are NumPy's."""
    found = None
    for value in values:
        if type(value) in PLAIN:
            continue
        if isinstance(value, (list, tuple)):
            value = _special(value)
        if isinstance(value, Ruled):
            return value
        if isinstance(value, jax.Array):
            found = value
    return found


class Namespace:
    """Attribute access like ``numpy``; every function picks its library from its arguments."""

    def __getattr__(self, name: str) -> Any:
        in_numpy, in_jax = getattr(np, name), getattr(jnp, name)

        def dispatch(*arguments: Any, **options: Any) -> Any:
            special = _special((*arguments, *options.values()) if options else arguments)
            if special is None:
                return in_numpy(*arguments, **options)
            if isinstance(special, Ruled):
                return special.apply(name, arguments, options)
            return in_jax(*arguments, **options)

        dispatch.__name__ = name
        setattr(self, name, dispatch)  # looked up once
        return dispatch


xp = Namespace()
