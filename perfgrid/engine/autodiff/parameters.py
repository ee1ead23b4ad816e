"""What derivatives are taken by: given quantities, or single labels of those that lie along inner axes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

import numpy as np

from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.grid.plan import Plan


@dataclass(frozen=True)
class Parameter:
    """One direction of differentiation: a given quantity, or one label of it along each of its inner axes."""

    name: str
    quantity: str
    inner: tuple[int, ...]  # the row along each inner axis; -1 where it does not lie on the axis

    def mask(self, value: np.ndarray) -> np.ndarray:
        """1 where this parameter moves the quantity and 0 elsewhere, in the quantity's inner shape."""
        sizes = value.shape[value.ndim - len(self.inner) :]
        result = np.zeros(sizes)
        result[tuple(slice(None) if row < 0 else slice(row, row + 1) for row in self.inner)] = 1.0
        return result


def parameters_of(plan: Plan, names: Iterable[str]) -> tuple[Parameter, ...]:
    """The parameters of the named given quantities; a vector along inner axes has one per label, ``name[label]``.

    ``name[label]`` names one of them. Raises PerfgridError for a name that the plan's outputs do not rest on.
    """
    inner, found = plan.registry.inner, dict[str, Parameter]()
    for text in names:
        name, _, rest = text.partition("[")
        if name not in plan.graph.leaves:
            raise PerfgridError(
                f"the outputs do not rest on a given quantity {name!r}{nearest(name, plan.graph.leaves)}"
            )
        shape = plan.quantities[name].inner
        members = {}
        for row in product(*(range(size) if size > 1 else (-1,) for size in shape)):
            labels = [inner.labels[axis][r] for axis, r in zip(inner.names, row, strict=True) if r >= 0]
            label = f"{name}[{','.join(labels)}]" if labels else name
            members[label] = Parameter(label, name, row)
        if rest and text not in members:
            raise PerfgridError(f"{name!r} has no part {text!r}{nearest(text, members)}")
        found |= {text: members[text]} if rest else members
    return tuple(found.values())
