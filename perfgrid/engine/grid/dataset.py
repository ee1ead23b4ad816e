"""Results as an xarray Dataset: every variable on its own axes, with CF attributes, readable without this package."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr

from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.graph.resolver import Graph
from perfgrid.engine.hashing import text_hash

from .plan import Plan
from .space import Axis, Space

SPACE_ATTRIBUTE = "perfgrid_space"
CONCERNING = "ancillary_variables"  # attribute of a variable (CF): the constraints that concern it


def attributes(
    plan: Plan,
    name: str,
    references: Mapping[str, str] | None = None,
    given: Mapping[str, tuple[str, str]] | None = None,
) -> dict[str, Any]:
    """CF attributes of one wanted quantity: units, long_name, references; the constraints that concern it; flags.

    ``given`` tells unit and meaning of given quantities.
    """
    node = plan.quantities[name].node
    concerning = {CONCERNING: " ".join(plan.concerning(name))} if plan.constraints else {}
    if node is None:
        unit, meaning = (given or {}).get(name, ("1", name.replace("_", " ")))
        return {"units": unit, "long_name": meaning, **concerning}
    found: dict[str, Any] = {"units": node.unit, "long_name": node.meaning.rstrip(".")}
    cited = [(references or {}).get(key.strip(), key.strip()) for key in node.source.split(",")]
    found["references"] = "; ".join(cited)
    if node.constraint is not None:
        return found | {
            "flag_values": np.array([0, 1], np.int8),
            "flag_meanings": "violated satisfied",
            "constraint": node.constraint.kind,
            "reason": node.constraint.reason,
        }
    if node.flags:
        found |= {"flag_values": np.arange(len(node.flags), dtype=np.int8), "flag_meanings": " ".join(node.flags)}
    return found | concerning


def on_study_axes(plan: Plan, name: str, array: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The axes on which a wanted quantity lies, in the study's order, and its values on them.

    ``array`` lies on all study axes in evaluation order and its inner axes, and may have other axes before them, which
    stay in front.
    """
    study, quantity = plan.study_space, plan.quantities[name]
    front = array.ndim - len(study.axes) - len(quantity.axes)
    inner = [plan.registry.inner.names[i] for i in quantity.axes]
    names = [*(a.name for a in plan.space.axes), *inner]
    dims = [*(a.name for a in study.axes if a.name in quantity.columns), *inner]
    first = (*range(front), *(front + names.index(dim) for dim in dims))
    array = np.transpose(array, (*first, *(i for i in range(array.ndim) if i not in first)))
    return dims, array.reshape(array.shape[: len(first)])


def to_dataset(
    plan: Plan,
    results: Mapping[str, np.ndarray],
    references: Mapping[str, str] | None = None,
    given: Mapping[str, tuple[str, str]] | None = None,
    /,
    **extra: str,
) -> xr.Dataset:
    """The results of an evaluation with their labels (`labelled_values`) and their origin (`origin`)."""
    return labelled_values(plan, results, references, given).assign_attrs(origin(plan, references, **extra))


def labelled_values(
    plan: Plan,
    results: Mapping[str, np.ndarray],
    references: Mapping[str, str] | None = None,
    given: Mapping[str, tuple[str, str]] | None = None,
) -> xr.Dataset:
    """Label the results of an evaluation (arrays in evaluation order of axes); axes come out in the study's order."""
    inner = plan.registry.inner
    study = plan.study_space
    variables: dict[str, Any] = {}
    for name in plan.wanted:
        dims, array = on_study_axes(plan, name, results[name])
        if plan.quantities[name].labelled:
            array = array.astype(np.int8, copy=False)
        variables[name] = (dims, array, attributes(plan, name, references, given))
    coordinates: dict[str, Any] = {}
    for axis in study.axes:
        scaled = ", ".join(axis.scales)
        about = {"long_name": f"factor on {scaled}", "units": "1"} if scaled else {}
        if axis.name in axis.columns and axis.name in (given or {}) and axis.labels.dtype.kind in "if":
            unit, meaning = (given or {})[axis.name]
            about = {"units": unit, "long_name": meaning}
        coordinates[axis.name] = (axis.name, axis.labels, about)
        for column in axis.shown:
            if column != axis.name:
                coordinates[column] = (axis.name, np.asarray(axis.columns[column]))
    used = {d for dims, *_ in variables.values() for d in dims}
    for name in inner.names:
        if name in used:
            coordinates[name] = (name, np.array(inner.labels[name]))
    return xr.Dataset(variables, coordinates)


def origin(plan: Plan, references: Mapping[str, str] | None = None, **extra: str) -> dict[str, str]:
    """What a result says of the plan that made it: versions, references, formulas and design space."""
    sources = {key.strip() for n in plan.graph.nodes.values() for key in n.source.split(",")}
    cited = sorted((references or {}).get(s, s) for s in sources if s)
    return {
        "Conventions": "CF-1.12",
        "source": f"perfgrid {version('perfgrid')}, jax {jax.__version__}",
        "references": "\n".join(cited),
        "formula_hash": formula_hash(plan),
        "study_axes": " ".join(study_axes(plan.study_space)),
        SPACE_ATTRIBUTE: space_text(plan),
        **extra,
    }


def study_axes(space: Space) -> tuple[str, ...]:
    """The names of a space's axes."""
    return tuple(a.name for a in space.axes)


def formula_hash(plan: Plan) -> str:
    """A hash of every formula that the plan uses, of the equations that they call and of the values that they name."""
    return graph_hash(plan.graph)


def graph_hash(graph: Graph) -> str:
    """The `formula_hash` of a graph without its plan."""
    functions = ((n.name, n.function if n.host is None else n.host.function) for n in graph.nodes.values())
    return text_hash(functions)[:16]


def space_text(plan: Plan, space: Space | None = None) -> str:
    """What a result stores of its design space, outputs and choices (`space_from_json` reads it)."""
    return json.dumps(space_to_json(space or plan.study_space) | {"outputs": plan.outputs, "choices": plan.choices})


def space_to_json(space: Space) -> dict[str, Any]:
    """A space as plain data, so that a result can be explained and evaluated again without the catalog."""

    def plain(value: Any) -> Any:
        array = np.asarray(value)
        if array.ndim <= 2:
            return array.tolist()
        return {"shape": list(array.shape), "values": array.ravel().tolist()}  # an axis for each of the physics

    return {
        "axes": [
            {
                "name": a.name,
                "labels": plain(a.labels),
                "columns": {k: plain(v) for k, v in a.columns.items()},
                "scales": {k: plain(v) for k, v in a.scales.items()},
                "shown": list(a.shown),
            }
            for a in space.axes
        ],
        "constants": {k: plain(v) for k, v in space.constants.items()},
    }


def stored_array(value: Any) -> np.ndarray:
    """An array of a stored space: numbers or texts in lists, or a shape and values."""
    return np.array(value["values"]).reshape(value["shape"]) if isinstance(value, Mapping) else np.array(value)


def space_from_json(data: Mapping[str, Any]) -> Space:
    """The space that `space_to_json` wrote."""
    axes = tuple(
        Axis(
            a["name"],
            np.array(a["labels"]),
            {k: stored_array(v) for k, v in a["columns"].items()},
            {k: stored_array(v) for k, v in a["scales"].items()},
            tuple(a["shown"]),
        )
        for a in data["axes"]
    )
    constants = {k: stored_array(v) if isinstance(v, list | dict) else v for k, v in data["constants"].items()}
    return Space(axes, constants)


def bare_variables(dataset: xr.Dataset) -> dict[str, xr.Variable]:
    """The data variables without coordinates, which ``data_vars`` gathers anew for each of them: that takes a while."""
    return {str(name): dataset.variables[name] for name in dataset.data_vars}


def constraints_of(dataset: xr.Dataset, of: str | Sequence[str] | None = None) -> list[str]:
    """The constraints of a result that concern some of its outputs (without ``of`` all of them).

    All concern a variable that does not tell which do. Raises PerfgridError for an unknown name, and where a selection
    of variables has left constraints behind that concern these outputs.
    """
    names = list(map(str, dataset.data_vars if of is None else [of] if isinstance(of, str) else of))
    variables = bare_variables(dataset)
    if unknown := [n for n in names if n not in dataset]:
        hint = nearest(unknown[0], map(str, dataset.data_vars))
        raise PerfgridError(f"the result holds no {unknown[0]!r}{hint}")
    about = {n: dataset.variables[n].attrs for n in names}
    needed = {c for n, a in about.items() for c in (n if "constraint" in a else a.get(CONCERNING, "")).split()}
    if lacking := sorted(needed - set(variables)):
        raise PerfgridError(f"the constraints of the result are not in this selection: {', '.join(lacking)}")
    every = of is None or any("constraint" not in a and CONCERNING not in a for a in about.values())
    return [n for n, v in variables.items() if "constraint" in v.attrs and (every or n in needed)]


def concerned(variables: Mapping[Any, Mapping[str, Any]], constraint: str) -> list[str]:
    """The outputs, by their attributes, that a constraint concerns; empty if it concerns all of them."""
    outputs = {str(name): about for name, about in variables.items() if "constraint" not in about}
    found = [n for n, about in outputs.items() if constraint in about.get(CONCERNING, constraint).split()]
    return [] if len(found) == len(outputs) else found


def least_constrained(variables: Mapping[Any, Mapping[str, Any]]) -> list[list[str]]:
    """The least sets of constraints that concern an output, by attributes of variables.

    A point has a feasible output where all constraints of one of them hold.
    """
    every = [str(name) for name, about in variables.items() if "constraint" in about]
    outputs = [about for about in variables.values() if "constraint" not in about]
    sets = {frozenset(about.get(CONCERNING, " ".join(every)).split()) for about in outputs}
    return [sorted(own) for own in sets if not any(other < own for other in sets)] or [every]


def expect_result(found: object, asked: str) -> None:
    """PerfgridError for anything but a dataset."""
    if not isinstance(found, xr.Dataset):
        what = repr(found) if isinstance(found, str | Path) else type(found).__name__
        raise PerfgridError(f"{asked} needs a result, found {what}; open_result(path) reads one from a file")


def feasible(
    dataset: xr.Dataset,
    kinds: str | Sequence[str] = ("illegal", "exceeds"),
    of: str | Sequence[str] | None = None,
) -> xr.DataArray:
    """Where the constraints that concern some outputs are satisfied, broadcast over their axes.

    Parameters
    ----------
    dataset
        A result.
    kinds
        "illegal" (the values mean nothing), "exceeds" (they are valid, but the design breaks a limit), or both.
    of
        Outputs. Default: all; a design of unknown cost is then infeasible, and feasible with ``of="step_time"``.

    Returns
    -------
    xarray.DataArray
        True where the constraints are satisfied.

    Raises
    ------
    PerfgridError
        For an unknown output or kind.

    Examples
    --------
    >>> import perfgrid as pg
    >>> bill = pg.Study.make(workload="manufacturing", outputs=["die_cost"], axes={"device": ["h100-sxm-80gb"]})
    >>> pg.feasible(pg.evaluate(bill), of="die_cost").all().item()
    True
    """
    expect_result(dataset, "feasible")
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    if wrong := [kind for kind in kinds if kind not in ("illegal", "exceeds")]:
        raise PerfgridError(f"constraints are of the kinds illegal and exceeds, found {wrong[0]!r}; outputs go to of=")
    result = xr.Variable((), np.array(True))
    constraints = [dataset.variables[n] for n in constraints_of(dataset, of)]
    flags = [flag for flag in constraints if flag.attrs["constraint"] in kinds]
    for flag in sorted(flags, key=lambda v: v.size):  # small ones first: fewer large results in between
        result = result & (flag != 0)
    coordinates = {name: c for name, c in dataset.coords.items() if set(c.dims) <= set(result.dims)}
    return xr.DataArray(result.data, coordinates, result.dims, "feasible").drop_attrs()
