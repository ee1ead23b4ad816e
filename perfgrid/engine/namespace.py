"""``xp``: the array functions that formulas use; NumPy until an argument is a JAX array.

Plain floats therefore give plain floats, a replay of one point runs in float64 NumPy, and the very same text is traced
by JAX when a grid is compiled. An argument may also bring rules of its own (`Ruled`), as numbers with derivatives do.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


class Ruled:
    """A value for which ``xp`` functions mean something else than for arrays."""

    def apply(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """The value of the function ``xp.<name>``."""
        raise NotImplementedError


def _ruled(values: tuple[Any, ...]) -> Ruled | None:
    for value in values:
        if isinstance(value, Ruled):
            return value
        if isinstance(value, (list, tuple)) and (found := _ruled(tuple(value))) is not None:
            return found
    return None


def _holds_jax(values: tuple[Any, ...]) -> bool:
    return any(isinstance(v, jax.Array) or (isinstance(v, (list, tuple)) and _holds_jax(tuple(v))) for v in values)


class Namespace:
    """Attribute access like ``numpy``; every function picks its library from its arguments."""

    def __getattr__(self, name: str) -> Any:
        in_numpy, in_jax = getattr(np, name), getattr(jnp, name)

        def dispatch(*arguments: Any, **options: Any) -> Any:
            ruled = _ruled(arguments)
            if ruled is not None:
                return ruled.apply(name, arguments, options)
            library = in_jax if _holds_jax(arguments) or _holds_jax(tuple(options.values())) else in_numpy
            return library(*arguments, **options)

        dispatch.__name__ = name
        setattr(self, name, dispatch)  # looked up once
        return dispatch


xp = Namespace()
