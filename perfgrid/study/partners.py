"""Statements that say little alone: a quantity whose effect rests on another one that the study does not state."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from perfgrid.engine.grid.space import Axis

PARTNERS = {  # quantity -> what it rests on, and what the default of that means
    "draft_tokens": ("draft_acceptance", "no drafted token is taken as accepted: state the share that is"),
}


def alone(taken: Collection[str], axes: Sequence[Axis], constants: Mapping[str, Any]) -> Iterator[str]:
    """What to say of quantities that are stated, and not what they rest on."""
    for name, (partner, meaning) in PARTNERS.items():
        values = [constants[name]] if name in constants else []
        values += [axis.columns[name] for axis in axes if name in axis.columns]
        if name in taken and partner not in taken and any(np.any(np.asarray(one) > 0) for one in values):
            yield f"{name} is stated and {partner} is not: {meaning}"
