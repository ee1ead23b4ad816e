"""What a guessed software stack leaves open: what other stacks reach."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfgrid.analysis.best_of_study import at_points
from perfgrid.engine.grid.dataset import feasible, study_axes
from perfgrid.study.selection import asking
from perfgrid.study.study import Study

from .search import SYSTEM, Group

SOFTWARE = "software"
SHARDING = "zero"
STEP = "step_time"  # what concerns it, concerns the stack: that it trains, and on this device
RULES = ("software_shards", "shards_are_gathered", "pipelines_shard")  # in which stacks differ
NEAR = 16  # best designs of every way of sharding that other stacks are tried with


def on_every_stack(study: Study, groups: Sequence[Group], objective: str, least: bool) -> list[tuple[float, float]]:
    """The least and the greatest of what the stacks that people run reach at best, in every group.

    Each stack is tried with the designs of every way of sharding that are best on the assumed one, rules on sharding
    aside. One that can run none of them does not count. ``groups``: of a training study whose ``system`` states no
    software.
    """
    stacks = [name for name, stack in study.catalog.tables[SOFTWARE].items() if stack.values["current"]]
    system = study.file.axes[SYSTEM]
    zipped = {name: [value for value in values for _ in stacks] for name, values in system["zip"].items()}
    zipped |= {SOFTWARE: stacks * len(system["labels"])}
    labels = [f"{label} {stack}" for label in system["labels"] for stack in stacks]
    wider = asking(
        study, list(dict.fromkeys((objective, STEP))), {**study.file.axes, SYSTEM: {"labels": labels, "zip": zipped}}
    )
    near = [group.near(NEAR, RULES, SHARDING) for group in groups]
    points = [index for some in near for index in some]
    listed = np.repeat(np.array(points), len(stacks), axis=0)
    place = study_axes(study.space).index(SYSTEM)
    listed[:, place] = listed[:, place] * len(stacks) + np.tile(np.arange(len(stacks)), len(points))
    constraints = [node.name for node in wider.graph().constraints]
    found = at_points(wider, wider.space, [*wider.outputs, *constraints], list(listed.T))
    values = found[objective].where(feasible(found, of=[objective, STEP])).values
    table = np.broadcast_to(values, len(listed)).reshape(len(points), len(stacks))
    best = np.fmin if least else np.fmax
    own = [best.reduce(part) for part in np.split(table, np.cumsum([len(some) for some in near])[:-1])]
    return [(np.fmin.reduce(values), np.fmax.reduce(values)) for values in own]
