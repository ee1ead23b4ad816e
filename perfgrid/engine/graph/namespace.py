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


class Ruled(NDArrayOperatorsMixin):
    """A value that carries something along: ``xp`` functions of it, and NumPy's own, go by its rules (`apply`)."""

    __slots__ = ("value",)
    value: Any

    def apply(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """The value of the function ``xp.<name>``."""
        raise NotImplementedError

    def is_row(self, label: str) -> None:
        """Told that it is the row of a label of an inner axis."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options.pop("out", (self,))[0] is not self or options:  # x += y makes a new x
            return NotImplemented
        return self.apply(ufunc.__name__, inputs, options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        return self.apply(function.__name__, args, options)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return np.shape(self.value)

    @property
    def ndim(self) -> int:
        """The rank of the value."""
        return np.ndim(self.value)

    @property
    def dtype(self) -> Any:
        """The type of the value."""
        return self.value.dtype if hasattr(self.value, "dtype") else np.asarray(self.value).dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        return bool(self.value)


# functions whose results carry nothing along
OF_VALUES = frozenset(("zeros_like", "ones_like", "ndim", "shape", "argsort", "argmax", "argmin", "isfinite", "sign"))


def value_of(item: Any) -> Any:
    """A value without what it carries; tuples and lists of them too."""
    if isinstance(item, Ruled):
        return item.value
    return type(item)(map(value_of, item)) if isinstance(item, (list, tuple)) else item


# NumPy's, recognized without a search through base classes
PLAIN = frozenset((np.ndarray, float, int, bool, np.float64, np.bool_))


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
            given = (*arguments, *options.values()) if options else arguments
            special = None if PLAIN.issuperset(map(type, given)) else _special(given)
            if special is None:
                return in_numpy(*arguments, **options)
            if isinstance(special, Ruled):
                return special.apply(name, arguments, options)
            return in_jax(*arguments, **options)

        dispatch.__name__ = name
        setattr(self, name, dispatch)  # looked up once
        return dispatch

    def root(self, value: Any) -> Any:
        """Square root whose slope at 0 is 0, not infinite; 0 of what is below."""
        positive = value > 0
        return self.where(positive, self.sqrt(self.where(positive, value, 1e30)), 0.0)


xp = Namespace()
