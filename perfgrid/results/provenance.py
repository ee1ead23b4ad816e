"""What a result says of its origin, and the design space, formulas and choices restored from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import numpy as np
import xarray as xr
from pydantic import BaseModel, ValidationError

from perfgrid.catalog import catalog_release, load_variables
from perfgrid.catalog.reading import from_json, from_toml
from perfgrid.engine.autodiff.function import freed
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.execution.regions import stored_dtype
from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.graph.resolver import Graph
from perfgrid.engine.grid.dataset import SPACE_ATTRIBUTE, formula_hash, origin, space_from_json, to_dataset
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.space import Axis, Space
from perfgrid.formulas import INNER, registry_of
from perfgrid.study.entries import OWN_PREFIX, STATED, label_in
from perfgrid.study.file import CLUSTER_SIZE, Best, Pareto
from perfgrid.study.layer_pattern import with_layer_pattern
from perfgrid.study.ledger import ledger
from perfgrid.study.study import Study
from perfgrid.study.view import View
from perfgrid.study.where import apply_where

from .schema import STUDY_ATTRIBUTE, stored

Stated = TypeVar("Stated", bound=BaseModel)
GROUPED = "always_grouped"  # attribute of a result: a coordinate; each of its values has a best design of its own
INPUTS = "inputs"  # attribute of a result: its ledger (perfgrid.study.ledger) as JSON
WORKLOAD = "workload"  # names one of several workloads of an optimum, like the label of an axis


def given_quantities(study: Study) -> dict[str, tuple[str, str]]:
    """Unit and meaning of the given quantities."""
    return {v.name: (v.unit, v.meaning) for v in study.catalog.variables.values()}


def stated_by(study: Study) -> str:
    """What a result holds of its study, as JSON: the attribute `STUDY_ATTRIBUTE`."""
    origin = {
        "workload": study.file.workload,
        "where": study.file.where,
        "overrides": study.file.overrides,
        "formulas": [f.__name__ for f in study.formulas],
        "stated": sorted(study.stated),
        "implied": dict(study.implied),
        "tables": sorted(study.tables),
        "sources": study.sources(),
    }
    return json.dumps(origin)


def global_attributes(study: Study, graph: Graph) -> dict[str, str]:
    """Global attributes that state the study and its inputs: quantity, value, status, by whom or from what."""
    return {
        "title": study.file.title,
        "study": study.source or study.file.model_dump_json(exclude_none=True),
        STUDY_ATTRIBUTE: stated_by(study),
        INPUTS: json.dumps([[one.quantity, one.value, one.status, one.by] for one in ledger(study, graph=graph)]),
        GROUPED: CLUSTER_SIZE,
        "catalog_release": catalog_release(),
        "history": f"{datetime.now(UTC).strftime('%Y-%m-%dT%H:%M:%SZ')} evaluated from {study.name}",
    }


def origin_of(study: Study, plan: Plan) -> dict[str, str]:
    """What a result says of the study and the plan that made it."""
    attributes = global_attributes(study, plan.graph)
    return origin(plan, study.catalog.references, **attributes)


def labelled(study: Study, plan: Plan, values: Mapping[str, np.ndarray]) -> xr.Dataset:
    """The result of a study, with its origin."""
    return to_dataset(
        plan, values, study.catalog.references, given_quantities(study), **global_attributes(study, plan.graph)
    )


def template(study: Study, plan: Plan, dtype: str) -> xr.Dataset:
    """The result of a study with values that take no memory."""
    zeros = {name: np.zeros((), stored_dtype(plan, name, dtype)) for name in plan.wanted}
    return labelled(study, plan, {name: np.broadcast_to(z, plan.result_shape(name)) for name, z in zeros.items()})


def expect_designs(found: object) -> None:
    """PerfgridError for anything but a study or a result."""
    if not isinstance(found, (Study, xr.Dataset)):
        raise PerfgridError(
            f"a Study or a result is needed, found {found!r}; load_study(path), open_result(path) read one"
        )


def workload_of(what: Study | xr.Dataset) -> str:
    """The workload of a study, or of the one that made a result."""
    expect_designs(what)
    if isinstance(what, Study):
        return what.file.workload
    return stored(what.attrs, STUDY_ATTRIBUTE)["workload"] if STUDY_ATTRIBUTE in what.attrs else "training"


def label_of(what: Study | xr.Dataset, axis: str, label: Any) -> Any:
    """A label as a user writes it, with a unit say, as the axis of a study or a result holds it."""
    if isinstance(what, Study):
        return what.label(axis, label)
    known = isinstance(label, str) and axis in what.coords
    return label_in(load_variables(), axis, what[axis].values, label) if known else label


def stated_best(attributes: Mapping[str, Any]) -> Best | None:
    """The ``[best]`` table of the study that made a result; None where it has none, or its text cannot be read."""
    return next(_stated(attributes, "best", Best), None)


def stated_pareto(attributes: Mapping[str, Any]) -> Pareto | None:
    """The ``[pareto]`` table of the study that made a result; None like `stated_best`."""
    return next(_stated(attributes, "pareto", Pareto), None)


def stated_views(attributes: Mapping[str, Any]) -> list[View]:
    """The ``[[view]]`` tables of the study that made a result; none where its text cannot be read."""
    return list(_stated(attributes, "view", View))


def _stated(attributes: Mapping[str, Any], table: str, kind: type[Stated]) -> Iterator[Stated]:
    """The tables of a name in the text of the study that made a result, as far as they can be read."""
    text = str(attributes.get("study", ""))
    with suppress(PerfgridError, ValidationError, KeyError, TypeError):
        found = (from_json(text, finite=False) if text.startswith("{") else from_toml(text))[table]
        for one in found if isinstance(found, list) else [found]:
            yield kind.model_validate(one)


def restore(dataset: xr.Dataset, formulas: Iterable[Callable[..., Any]] = ()) -> tuple[Space, Registry, dict[str, str]]:
    """The design space, formulas and choices that a result was made with; of one optimum what was found is stated.

    PerfgridError if they are not at hand.
    """
    data, origin = stored(dataset.attrs, SPACE_ATTRIBUTE), stored(dataset.attrs, STUDY_ATTRIBUTE)
    space, formulas = with_layer_pattern(_on_inner_axes(space_from_json(data))), tuple(formulas)
    found = registry_of(origin["workload"])
    space = _with_defaults(space, found)
    if lacking := sorted(set(origin["formulas"]) - {f.__name__ for f in formulas}):
        raise PerfgridError(
            f"the result was made with formulas of its user, {', '.join(lacking)}: give their file with --formulas "
            "FILE.py, in Python formulas=[...]"
        )
    if formulas:
        found = found.extended(formulas)
    if origin["where"]:
        space, constraint = apply_where(space, origin["where"], "where")
        if constraint is not None:
            found = found.extended(())
            found.add(constraint)
    values: dict[str, np.ndarray] = {}
    for name in free_quantities(dataset):
        if dataset[name].ndim:
            raise PerfgridError("every optimum has free quantities of its own: select one")
        quantity, _, component = name.partition(".")
        if quantity in space.names():
            value = values.setdefault(quantity, np.array(space.parts(quantity)[0][1][0]))
            axis = load_variables()[quantity].axis
            value.reshape(-1)[INNER.labels[axis].index(component) if axis is not None else 0] = dataset[name].item()
    space = freed(space, values)
    return Space(space.axes, {**space.constants, **values}), found, dict(data["choices"])


def plan_of(
    attributes: Mapping[str, Any], formulas: Iterable[Callable[..., Any]] = (), small_points: int | None = None
) -> Plan:
    """The plan that made a result with these attributes, by the formulas installed. PerfgridError like `restore`."""
    space, registry, choices = restore(xr.Dataset(attrs=attributes), formulas)
    return Plan(registry, space, stored(attributes, SPACE_ATTRIBUTE)["outputs"], choices, small_points)


def _with_defaults(space: Space, registry: Registry) -> Space:
    """A stored space with the defaults of quantities that a later version added."""
    known = {*space.names(), *registry.formulas}
    words = {choice.by for choice in registry.choices.values()}
    added = {
        v.name: v.default
        if v.kind == "label"
        else INNER.vector(v.axis, [v.default_at(label) for label in v.labels])
        if v.axis
        else v.default_value
        for v in load_variables().values()
        if v.optional and v.default is not None and v.name not in known and (v.kind != "label" or v.name in words)
    }
    return Space(space.axes, {**added, **space.constants})


def _on_inner_axes(space: Space) -> Space:
    """A stored space whose vectors lie on the inner axes of this version. PerfgridError where these have other labels.

    Another version may have had more or fewer inner axes, so that a vector lay elsewhere.
    """
    variables = load_variables()

    def placed(name: str, values: Any, rows: int) -> Any:
        variable = variables.get(name.removeprefix(STATED).removeprefix(OWN_PREFIX))
        if np.ndim(values) <= rows or variable is None or variable.axis is None:
            return values
        return INNER.vector(variable.axis, np.reshape(values, (*np.shape(values)[:rows], -1)))

    axes = [replace(a, columns={n: placed(n, values, 1) for n, values in a.columns.items()}) for a in space.axes]
    return Space(tuple(axes), {name: placed(name, value, 0) for name, value in space.constants.items()})


def designs(
    what: Study | xr.Dataset, at: Mapping[str, Any], formulas: Iterable[Callable[..., Any]] = ()
) -> tuple[Space, Registry, dict[str, str], dict[str, Any]]:
    """The design space, formulas and choices of a study or a result, and the labels ``at`` in it.

    Of best designs and optima those of the one design that ``at`` names. PerfgridError like `restore`.
    """
    if isinstance(what, Study):
        return what.space, what.registry, what.file.choices, {axis: what.label(axis, v) for axis, v in at.items()}
    what, at = design_at(what, at)
    return *restore(what, formulas), at


def design_at(result: xr.Dataset, at: Mapping[str, Any]) -> tuple[xr.Dataset, dict[str, Any]]:
    """Of chosen designs (best ones, a Pareto front, optima) the one that ``at`` names, with its labels along all axes.

    ``at`` names labels of the result's own axes, ``rank``, ``devices``, ``design`` and ``point`` among them, and one of
    several workloads as ``workload``; what was chosen follows. Any other result is returned as it is. PerfgridError for
    an unknown label, an axis that is left open, and a group without a design.
    """
    expect_designs(result)
    at, end = dict(at), f".{SPACE_ATTRIBUTE}"
    prefix = ""
    if names := [n.removesuffix(end) for n in map(str, result.attrs) if n.endswith(end)]:
        if (name := str(at.pop(WORKLOAD, ""))) not in names:
            found = f"found {name!r}{nearest(name, names)}" if name else f"legal names: {', '.join(names)}"
            raise PerfgridError(f"the result has several workloads; {WORKLOAD}=NAME names one, {found}")
        prefix = f"{name}."
        result = result.drop_attrs(deep=False).assign_attrs(_attributes(result, prefix))
    known = stored(result.attrs, SPACE_ATTRIBUTE)["axes"] if SPACE_ATTRIBUTE in result.attrs else []
    axes = [axis["name"] for axis in known]
    chosen = [prefix + axis for axis in axes if axis not in (*result.dims, *at)]
    held = [*free_quantities(result), *(name for name in chosen if name in result.coords)]
    for axis in dict.fromkeys(str(d) for name in held for d in result[name].dims):
        labels = result[axis].values
        if axis not in at and len(labels) > 1:
            raise PerfgridError(f"a single design needs a label of every axis; not given: {axis} (such as {labels[0]})")
        named = label_of(result, axis, at.pop(axis, labels[0]))
        result = result.isel({axis: Axis(axis, labels).index(named)})
    if "found" in result.coords and result["found"].ndim == 0 and not bool(result["found"]):
        raise PerfgridError("this group has no feasible design")
    single = {str(name).removeprefix(prefix): c.item() for name, c in result.coords.items() if not c.ndim}
    return result, {axis: single[axis] for axis in axes if axis in single} | at


def _attributes(result: xr.Dataset, prefix: str) -> dict[str, Any]:
    """The attributes of one workload as those of a result."""
    found = {str(name).removeprefix(prefix): value for name, value in result.attrs.items()}
    return {name: value for name, value in found.items() if "." not in name}


def free_quantities(result: xr.Dataset) -> list[str]:
    """The free quantities of an optimum; none of any other result."""
    return [str(name) for name in result["knob"].values] if "knob" in result.coords else []


def formulas_changed(dataset: xr.Dataset, formulas: Iterable[Callable[..., Any]] = ()) -> bool:
    """Whether the formulas of this installation and of the user differ from those that a result was made with."""
    for name in map(str, dataset.attrs):
        if name.endswith(SPACE_ATTRIBUTE):
            attrs = _attributes(dataset, name.removesuffix(SPACE_ATTRIBUTE))
            try:
                found = formula_hash(plan_of(attrs, formulas))
            except PerfgridError:  # an output or an inner axis that only the writer had
                return True
            if found != attrs.get("formula_hash"):
                return True
    return False
