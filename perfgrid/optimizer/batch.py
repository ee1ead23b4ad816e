"""Designs that an optimisation improves together."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np


@dataclass
class Batch:
    """Designs that are improved together: each has a group, a layout of every part, fixed counts, shifted limits."""

    group: np.ndarray  # [problems]
    layout: np.ndarray  # [problems, parts]
    counts: dict[str, np.ndarray]  # name -> [problems], NaN where it is open
    shift: np.ndarray  # [problems, constraints]: exact less smooth slack
    bounds: np.ndarray  # [problems, limits]

    def of(self, index: np.ndarray) -> Batch:
        """Some of the problems."""
        counts = {name: values[index] for name, values in self.counts.items()}
        return Batch(self.group[index], self.layout[index], counts, self.shift[index], self.bounds[index])

    def unshifted(self, constraints: int) -> Batch:
        """The problems with so many limits where the smooth model has them."""
        return replace(self, shift=np.zeros((len(self.group), constraints)))
