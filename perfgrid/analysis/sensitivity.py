"""Derivatives of outputs with respect to given quantities at every point of a study, as labelled datasets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.engine.autodiff.parameters import Parameter, parameters_of
from perfgrid.engine.autodiff.sensitivity import TILE_POINTS, Sensitivity
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.execution.evaluation import Progress, enable_compilation_cache
from perfgrid.engine.grid.dataset import on_study_axes
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.space import Axis, Space
from perfgrid.results.memory import available_memory, check_memory
from perfgrid.results.provenance import labelled
from perfgrid.study.entries import kind_of, stated_unit
from perfgrid.study.selection import asking, selected
from perfgrid.study.study import Study, expect_study

SHARPNESS = 8  # of the p-norms of smooth derivatives: at operands that differ by a factor 2 the lesser weighs 0.4 %
EXACT = "exact; at a tie of maximum or minimum the mean, 0 for ceil, floor and round"
SMOOTH = "smooth companions: p-norm with p = {} for maximum and minimum, straight through ceil, floor and round"
STEP = 1e-4  # of ln parameter, of the differences of exact elasticities; checked against a tenth of it
MOVED = "moved"  # the axis of these differences


def sensitivity(
    study: Study,
    of: str | Sequence[str] | None = None,
    wrt: str | Sequence[str] = "all",
    at: Mapping[str, Any] | None = None,
    smooth: bool | int = False,
    dtype: str | None = None,
    cross: bool = False,
    tile_points: int = TILE_POINTS,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Elasticities d ln output / d ln parameter at every design.

    Parameters
    ----------
    study
        The study.
    of
        Quantities. Default: the outputs of the study.
    wrt
        Given quantities; ``name[label]`` is one component of a vector. "all": every given number that the outputs
        depend on.
    at
        Labels of axes to select first.
    smooth
        Replace max, min, ceil, floor and round by smooth functions; a number is their sharpness (default 8).
    dtype
        "float32" or "float64" on the grid. Default: that of the study.
    cross
        Add second-order elasticities, of a single design.
    tile_points
        Points evaluated together.
    progress
        Called with phase, done and total.

    Returns
    -------
    xarray.Dataset
        ``<output>_elasticity`` on ``parameter`` (with its unit as ``parameter_unit``) and the axes of the output, 0
        where the output is 0; the outputs and their constraints. With ``cross`` also ``<output>_cross_elasticity``
        d2 ln output / (d ln parameter d ln other) on ``parameter`` and ``other``, NaN where an elasticity jumps.

    Raises
    ------
    PerfgridError
        For an unknown or non-differentiable name, a label as output, and results beyond memory.

    Examples
    --------
    >>> import perfgrid as pg
    >>> bill = pg.Study.make(workload="manufacturing", outputs=["die_cost"], axes={"device": ["h100-sxm-80gb"]})
    >>> found = pg.sensitivity(bill, wrt=["wafer_price", "defect_density"], dtype="float64")
    >>> found.die_cost_elasticity.dims
    ('parameter', 'device')
    >>> found.die_cost_elasticity.sel(parameter="wafer_price").round(2).item()
    0.99
    """
    found = _differentiated(study, of, wrt, at, smooth, dtype, tile_points, progress, relative=True)
    names = [str(name).removesuffix("_elasticity") for name in found.data_vars if str(name).endswith("_elasticity")]
    second = {f"{name}_cross_elasticity": cross_elasticities(study, name, wrt, at, smooth) for name in names if cross}
    return found.assign(second)


def gradient(
    study: Study,
    output: str,
    wrt: str | Sequence[str] = "all",
    at: Mapping[str, Any] | None = None,
    smooth: bool | int = False,
    dtype: str | None = None,
) -> xr.Dataset:
    """Derivatives d output / d parameter at every design.

    Parameters
    ----------
    study
        The study.
    output
        The quantity to differentiate; a cost as well as a time.
    wrt
        Given quantities; ``name[label]`` is one component of a vector. "all": every given number that the output
        depends on.
    at
        Labels of axes to select first.
    smooth
        Replace max, min, ceil, floor and round by smooth functions; a number is their sharpness (default 8).
    dtype
        "float32" or "float64" on the grid. Default: that of the study.

    Returns
    -------
    xarray.Dataset
        ``<output>_gradient`` on ``parameter`` and the axes of the output, in the unit of the output per unit of the
        parameter (coordinate ``parameter_unit``).

    Raises
    ------
    PerfgridError
        As for `sensitivity`.

    Examples
    --------
    >>> import perfgrid as pg
    >>> bill = pg.Study.make(workload="manufacturing", outputs=["die_cost"], axes={"device": ["h100-sxm-80gb"]})
    >>> pg.gradient(bill, "die_cost", "wafer_price", dtype="float64").die_cost_gradient.round(4).item()
    0.0301
    """
    return _differentiated(study, output, wrt, at, smooth, dtype, TILE_POINTS, None, relative=False)


def numbers_of(study: Study, plan: Plan, whole: bool = False) -> list[str]:
    """The given quantities of a plan that have derivatives: numbers; ``whole``: also whole numbers."""
    kinds = ("number", "integer") if whole else ("number",)
    return [name for name in plan.graph.leaves if kind_of(study.catalog.variables, study.registry, name) in kinds]


def chosen(study: Study, plan: Plan, wrt: str | Sequence[str], whole: bool) -> tuple[Parameter, ...]:
    """The parameters that a user names. PerfgridError, by name, for what has no derivative."""
    numbers = numbers_of(study, plan, whole)
    if wrt == "all":
        return parameters_of(plan, numbers_of(study, plan))
    names = [wrt] if isinstance(wrt, str) else list(wrt)
    names = [f"{t.replace('.', '[', 1)}]" if "." in t else t for t in names]  # either way to name a component
    if not names:
        raise PerfgridError("no parameter is named; 'all' stands for every given number")
    for text in names:
        name = text.partition("[")[0]
        kind, axes = kind_of(study.catalog.variables, study.registry, name), [a.name for a in study.space.axes]
        if name in numbers:
            continue
        what = f"{study.name}: no derivative with respect to {name!r}: "
        if kind == "integer":
            raise PerfgridError(
                what + "it is a whole number; make it an axis, or take smooth derivatives (--smooth, smooth=True), "
                "which treat it as any number"
            )
        if kind in ("flag", "code", "label") or name in study.space.label_quantities():
            raise PerfgridError(what + "it is a choice, not a number; compare its labels along an axis")
        if name in study.registry.names():
            rest = "it is computed, not given" if name in plan.graph.nodes else "no output asked for rests on it"
            raise PerfgridError(f"{what}{rest}{nearest(name, numbers)}")
        if kind or name in axes:
            raise PerfgridError(f"{what}no output asked for rests on it{nearest(name, numbers)}")
        raise PerfgridError(f"{what}it is unknown{nearest(name, numbers)}")
    return parameters_of(plan, names)


def _differentiated(
    study: Study,
    of: str | Sequence[str] | None,
    wrt: str | Sequence[str],
    at: Mapping[str, Any] | None,
    smooth: bool | int,
    dtype: str | None,
    tile_points: int,
    progress: Progress | None,
    relative: bool,
) -> xr.Dataset:
    expect_study(study, "a derivative")
    outputs = study.outputs if of is None else (of,) if isinstance(of, str) else tuple(dict.fromkeys(of))
    study = selected(asking(study, outputs) if outputs != study.outputs else study, at)
    plan, sharpness = study.plan(), _sharpness(smooth)
    if of is None:  # those of the study's outputs that are numbers
        outputs = tuple(n for n in outputs if not plan.quantities[n].labelled)
    parameters = chosen(study, plan, wrt, whole=sharpness is not None)
    dtype = dtype or study.file.dtype
    _check_memory(plan, study, outputs, parameters, dtype)
    enable_compilation_cache()
    evaluation = Sensitivity(plan, outputs, parameters, relative, sharpness, dtype, tile_points, progress)
    values, derivatives = evaluation.derivatives()
    result = labelled(study, plan, values)
    found: dict[str, Any] = {}
    for output in outputs:
        dims, array = on_study_axes(plan, output, derivatives.pop(output))
        about = {k: v for k, v in result[output].attrs.items() if k in ("references", "ancillary_variables")}
        unit = "1" if relative else f"{result[output].attrs['units']} per unit of the parameter"
        of_what = f"d ln {output} / d ln parameter" if relative else f"d {output} / d parameter"
        about |= {"units": unit, "long_name": of_what}
        found[f"{output}_{'elasticity' if relative else 'gradient'}"] = (("parameter", *dims), array, about)
    units = [stated_unit(study.catalog.variables, study.registry, p.quantity) for p in parameters]
    names = np.array([p.name for p in parameters], dtype=np.str_)
    told = EXACT if sharpness is None else SMOOTH.format(sharpness)
    coordinates = {"parameter": names, "parameter_unit": ("parameter", units)}
    return result.assign_coords(coordinates).assign(found).assign_attrs(derivatives=told)


def _sharpness(smooth: bool | int) -> int | None:
    if smooth is False:
        return None
    found = SHARPNESS if smooth is True else smooth
    if not isinstance(found, int) or found < 2:
        raise PerfgridError(f"the sharpness of smooth derivatives is a whole number of at least 2, found {smooth!r}")
    return found


def _check_memory(
    plan: Plan, study: Study, outputs: Iterable[str], parameters: Sequence[Parameter], dtype: str
) -> None:
    check_memory(plan, study.name, dtype)
    size = np.dtype(dtype).itemsize * len(parameters)
    needed = size * sum(int(np.prod(plan.result_shape(n), dtype=np.int64)) for n in outputs)
    if needed > 0.6 * (limit := available_memory()):
        raise PerfgridError(
            f"{study.name}: derivatives with respect to {len(parameters)} parameters at {plan.space.points:,} points "
            f"take {needed / 2**30:,.1f} GiB and {limit / 2**30:,.1f} GiB of memory are free; name fewer parameters or "
            "outputs, or keep one label of an axis"
        )


def cross_elasticities(
    study: Study,
    output: str,
    wrt: str | Sequence[str],
    at: Mapping[str, Any] | None = None,
    smooth: bool | int = False,
) -> xr.DataArray:
    """Second order: d2 ln output / (d ln parameter d ln other) of one design, on (parameter, other).

    Differences of exact elasticities over a step of 1e-4 in ln ``other``, float64; NaN where an elasticity
    jumps within the step, as at a size from which on another tile is chosen. ``at`` must leave a single design. Raises
    PerfgridError like `sensitivity`.
    """
    study = selected(asking(study, (output,)), at)
    if open_axes := [a.name for a in study.space.axes if len(a) > 1]:
        raise PerfgridError(f"cross-elasticities need a single design; name a label of {', '.join(open_axes)}")
    plan, sharpness = study.plan(), _sharpness(smooth)
    parameters = chosen(study, plan, wrt, whole=sharpness is not None)
    count = len(parameters)
    scales: dict[str, np.ndarray] = {}
    for number, parameter in enumerate(parameters):
        inner = plan.quantities[parameter.quantity].inner
        scale = scales.setdefault(parameter.quantity, np.ones((4 * count + 1, *inner)))
        mask = parameter.mask(np.ones(inner))
        for row, step in enumerate((STEP, -STEP, STEP / 10, -STEP / 10), 1 + 4 * number):
            scale[row] *= np.exp(step * mask)
    moved = Axis(MOVED, np.arange(4 * count + 1), {}, scales)
    space = Space((*study.space.axes, moved), study.space.constants)
    wide = replace(study, space=space).plan()
    _, found = Sensitivity(wide, (output,), parameters, True, sharpness, "float64").derivatives()
    dims, array = on_study_axes(wide, output, found[output])
    rows = xr.DataArray(array, dims=("parameter", *dims)).squeeze([d for d in dims if d != MOVED])
    if MOVED not in rows.dims:  # nothing moves the output
        rows = rows.expand_dims({MOVED: 4 * count + 1}, -1)
    e = rows.transpose("parameter", MOVED).values
    cross, fine = ((e[:, i::4] - e[:, i + 1 :: 4]) / step for i, step in ((1, 2 * STEP), (3, STEP / 5)))
    cross = np.where(np.abs(cross - fine) > 1e-2 * np.abs(fine) + 1e-5, np.nan, cross)
    names = np.array([p.name for p in parameters], dtype=np.str_)
    about = {"units": "1", "long_name": f"d2 ln {output} / (d ln parameter d ln other)"}
    return xr.DataArray(cross, {"parameter": names, "other": names}, ("parameter", "other"), attrs=about)
