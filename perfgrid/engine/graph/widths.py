"""How many values a formula holds at once: a sum over many terms makes an array of all of them on its way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from .namespace import OF_VALUES, Ruled, value_of


class Sized(Ruled):
    """A value of a trial; ``sizes`` collects those of all arrays that are made of it."""

    __slots__ = ("sizes", "value")

    def __init__(self, value: Any, sizes: list[int]):
        self.value, self.sizes = value, sizes
        sizes.append(np.size(value))

    def apply(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """The value of NumPy's function of this name."""
        made = getattr(np, name)(*map(value_of, arguments), **options)
        return made if name in OF_VALUES else Sized(made, self.sizes)

    def __getitem__(self, key: Any) -> Sized:
        return Sized(self.value[key], self.sizes)


def largest(function: Callable[..., Any], arguments: Sequence[Any]) -> int:
    """The size of the largest array that a formula makes of some arguments, they included.

    As far as it goes: a user's own formula may call what no trial can follow.
    """
    sizes = [1]
    with suppress(Exception), np.errstate(all="ignore"):
        function(*(Sized(a, sizes) for a in arguments))
    return max(sizes)
