"""The study of a view: the designs that it shows and what is best among them, as a study file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tomli_w

from perfgrid.catalog import load_variables
from perfgrid.catalog.reading import from_json, from_toml
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.grid.space import Axis, Space
from perfgrid.results.provenance import GROUPED, restore
from perfgrid.study.study import build_study

from .changed import times
from .grid import Grid, Slice

DROPPED = ("best", "pareto", "optimize", "workloads", "view")  # of the study: about other designs than the view's


def view_study(
    grid: Grid, asked: Slice, factors: Mapping[str, float], formulas: Sequence[Any] = (), cells: bool = False
) -> str:
    """The study file of a view, as TOML, with the view; ``cells``: as a heat map.

    PerfgridError where no study file holds exactly its designs.
    """
    space = restore(grid.result, formulas)[0]
    text = str(grid.result.attrs.get("study", ""))
    content: dict[str, Any] = from_json(text, finite=False) if text.startswith("{") else from_toml(text)
    content = {key: value for key, value in content.items() if key not in DROPPED}
    content["axes"], conditions = dict(content.get("axes", {})), [content["where"]] if content.get("where") else []
    rows = grid.checked(asked)
    for axis in space.axes:
        kept = rows.get(axis.name, np.arange(len(axis)))
        if len(kept) < len(axis):
            conditions += _narrowed(content["axes"], axis, kept)
    for name, factor in factors.items():
        _change(content, space, name, factor)
    if conditions:
        content["where"] = " and ".join(f"({one})" for one in conditions)
    over = [a for a in grid.axes if a not in asked.axes and len(rows[a]) > 1]
    if over:
        grouped = grid.result.attrs.get(GROUPED)
        weighed = (
            [grouped]
            if grouped in grid.result.coords and set(grid.result[grouped].dims) & set(over) and grouped not in over
            else []
        )
        content["best"] = {"over": over + weighed, "minimize" if asked.least else "maximize": asked.by}
    content["view"] = [_view(asked, cells)]
    written = tomli_w.dumps(content)
    found = build_study(from_toml(written), "the study of this view", formulas=formulas).space
    expected = {axis.name: axis.labels[rows[axis.name]].tolist() for axis in space.axes if axis.name not in factors}
    if any(axis.labels.tolist() != expected.get(axis.name, axis.labels.tolist()) for axis in found.axes):
        raise PerfgridError("no study file holds exactly the designs of this view")
    return written


def _view(asked: Slice, cells: bool) -> dict[str, str]:
    x, others = asked.axes[-1] if asked.axes else None, asked.axes[:-1]
    along = {"x": x} if x else {}
    if cells and others:
        return {"kind": "heatmap", **along, "y": others[0], "value": asked.quantity}
    return {"kind": "lines", **along, "y": asked.quantity, **({"colour": others[0]} if others else {})}


def _narrowed(axes: dict[str, Any], axis: Axis, rows: np.ndarray) -> list[str]:
    """State some rows of an axis: among its labels or factors, else by a condition on its columns."""
    spec = axes.get(axis.name)
    if isinstance(spec, list) and len(spec) == len(axis):
        axes[axis.name] = [spec[row] for row in rows]
        return []
    if isinstance(spec, dict) and isinstance(spec.get("scale"), list) and len(spec["scale"]) == len(axis):
        axes[axis.name] = {**spec, "scale": [spec["scale"][row] for row in rows]}
        return []
    terms, left = [], np.ones(len(axis), bool)
    for column in axis.shown:
        values = np.asarray(axis.columns[column])
        wanted = np.unique(values[rows])
        here = left & np.isin(values, wanted)
        if here.sum() < left.sum():
            left = here
            terms.append(f"{column} in {wanted.tolist()!r}")
    if np.array_equal(np.flatnonzero(left), np.sort(rows)):
        return terms
    raise PerfgridError(
        f"no condition on {', '.join(axis.shown) or axis.name} selects exactly these labels of {axis.name}"
    )


def _change(content: dict[str, Any], space: Space, name: str, factor: float) -> None:
    """State a changed quantity: a parameter of the workload by its value, else an axis of one factor."""
    parameters = dict(content.get("workload_parameters", {}))
    if load_variables()[name].of == "workload" and name in space.constants:
        value = times(name, space.constants[name], factor).item()
        parameters[name] = int(value) if load_variables()[name].kind == "integer" else value
        content["workload_parameters"] = parameters
        return
    spec = content["axes"].get(name)
    if isinstance(spec, dict) and isinstance(spec.get("scale"), list):
        content["axes"][name] = {**spec, "scale": [v * factor for v in spec["scale"]]}
    elif isinstance(spec, list) and all(isinstance(v, int | float) for v in spec):
        content["axes"][name] = [times(name, v, factor).item() for v in spec]
    elif spec is None:
        content["axes"][name] = {"scale": [factor]}
    else:
        raise PerfgridError(f"no study file states a factor on {name}, which its axes state already")
