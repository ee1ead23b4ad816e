"""What a guessed software stack leaves open: what other stacks reach with the best designs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfgrid.analysis.best_of_study import at_points
from perfgrid.engine.grid.dataset import feasible, study_axes
from perfgrid.study.selection import asking
from perfgrid.study.study import Study

from .search import SYSTEM, Index

SOFTWARE = "software"
STEP = "step_time"  # what concerns it, concerns the stack: that it trains, and on this device


def on_every_stack(
    study: Study, groups: Sequence[Sequence[Index]], objective: str, least: bool
) -> list[tuple[float, float]]:
    """The least and the greatest of what the stacks that people run reach at best with the designs of every group.

    A stack that can run none of them does not count. ``groups``: rows of the axes of a training study, of which
    ``system`` states no software.
    """
    stacks = [name for name, stack in study.catalog.tables[SOFTWARE].items() if stack.values["current"]]
    system = study.file.axes[SYSTEM]
    zipped = {name: [value for value in values for _ in stacks] for name, values in system["zip"].items()}
    zipped |= {SOFTWARE: stacks * len(system["labels"])}
    labels = [f"{label} {stack}" for label in system["labels"] for stack in stacks]
    wider = asking(
        study, list(dict.fromkeys((objective, STEP))), {**study.file.axes, SYSTEM: {"labels": labels, "zip": zipped}}
    )
    points = [index for group in groups for index in group]
    listed = np.repeat(np.array(points), len(stacks), axis=0)
    place = study_axes(study.space).index(SYSTEM)
    listed[:, place] = listed[:, place] * len(stacks) + np.tile(np.arange(len(stacks)), len(points))
    found = at_points(wider, wider.plan(), (), list(listed.T))
    values = found[objective].where(feasible(found, of=[objective, STEP])).values
    table = np.broadcast_to(values, len(listed)).reshape(len(points), len(stacks))
    best = np.fmin if least else np.fmax
    own = [best.reduce(part) for part in np.split(table, np.cumsum([len(group) for group in groups])[:-1])]
    return [(np.fmin.reduce(values), np.fmax.reduce(values)) for values in own]
