"""Serving stacks that a question does not tell apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfgrid.analysis.assumed_software import by_stack
from perfgrid.engine.reductions.argmin import listed
from perfgrid.study.study import Study

from .search import Index

FELT = ("output_tokens_per_second", "time_to_first_token", "time_per_output_token")  # by which stacks would differ
EQUAL = 1e-9  # relative difference


def stacks_alike(study: Study, points: Sequence[Index], objective: str, own: str) -> list[str]:
    """Other stacks on which some designs of a serving study do exactly as on their own: nothing tells them apart."""
    space = listed(study.space, list(np.transpose(points)))
    choices, found = study.file.choices, dict[str, bool]()
    for output in dict.fromkeys((objective, *FELT)):
        values = by_stack(study.registry, study.catalog, space, choices, output, (output,), study.stated, serves=True)
        for name, other in values.items() if own in values else ():
            alike = np.allclose(other, values[own], rtol=EQUAL, atol=0)
            found[name] = found.get(name, True) and alike
    return [name for name, alike in found.items() if alike and name != own]
