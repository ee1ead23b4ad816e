"""What the ranges of the catalog's estimates make of a result: quantiles over samples, and one assumption at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.grid.dataset import expect_result, feasible
from perfgrid.results.evaluate import evaluate
from perfgrid.study.samples import SAMPLE
from perfgrid.study.selection import asking, selected
from perfgrid.study.study import Study, expect_study

from .best_design import best_design, labels_text


def quantiles(result: xr.Dataset, levels: Sequence[float] | np.ndarray = (0.05, 0.5, 0.95)) -> xr.Dataset:
    """Quantiles of every variable over the axis ``sample`` of a result.

    Infeasible samples are left out of each.

    Parameters
    ----------
    result
        The result of a study with ``[axes.sample]``.
    levels
        Shares of the samples, from 0 to 1.

    Returns
    -------
    xarray.Dataset
        The variables along ``quantile`` in the place of ``sample``.

    Raises
    ------
    PerfgridError
        For a result without samples, and levels outside [0, 1].

    Examples
    --------
    >>> import perfgrid as pg
    >>> bill = pg.Study.make(
    ...     workload="manufacturing",
    ...     outputs=["die_cost"],
    ...     axes={"device": ["h100-sxm-80gb"], "sample": {"num": 64, "seed": 0}},
    ... )
    >>> found = pg.quantiles(pg.evaluate(bill), [0.05, 0.95])
    >>> found.die_cost.dims
    ('quantile', 'device')
    """
    expect_result(result, "quantiles")
    if SAMPLE not in result.dims:
        raise PerfgridError("this result has no axis sample: state [axes.sample] in its study")
    levels = [float(level) for level in levels]
    if not levels or not all(0 <= level <= 1 for level in levels):
        raise PerfgridError(f"quantiles lie between 0 and 1, found {levels}")
    numbers = [n for n, v in result.data_vars.items() if v.dtype.kind == "f" and SAMPLE in v.dims]

    def over_samples(array: xr.DataArray) -> xr.DataArray:
        kept = array.where(feasible(result, of=str(array.name)))
        some = kept.notnull().any(SAMPLE)  # no quantile is computed of a design without a feasible sample
        return kept.where(some, kept.dtype.type(0)).quantile(levels, dim=SAMPLE, keep_attrs=True).where(some)

    return result[numbers].map(over_samples, keep_attrs=True)


def only(spec: Any, label: Any) -> Any:
    """A listed axis without its other labels, so that ranges are those of the entry in question."""
    kept = [v for v in spec if str(v) == str(label)] if isinstance(spec, list) else []
    return kept or spec


def as_stated(study: Study) -> Study:
    """The study without its axis of samples: every estimate as the catalog states it."""
    stated = {name: axis for name, axis in study.file.axes.items() if name != SAMPLE}
    axes = tuple(axis for axis in study.space.axes if axis.name != SAMPLE)
    file, space = study.file.model_copy(update={"axes": stated}), replace(study.space, axes=axes)
    return replace(study, file=file, space=space)


def one_at_a_time(study: Study, output: str, at: Mapping[str, Any] | None, of: str | Sequence[str] | None) -> Study:
    """The study of one output with an axis ``sample``: each estimate, or each ``of`` some, at the ends of its range."""
    axes = {k: only(v, (at or {}).get(k)) for k, v in study.file.axes.items() if k != SAMPLE}
    named = {} if of is None else {"of": [of] if isinstance(of, str) else list(of)}
    return asking(study, (output,), axes | {SAMPLE: {"method": "one_at_a_time", **named}})


def tornado(
    study: Study, output: str, at: Mapping[str, Any] | None = None, of: str | Sequence[str] | None = None
) -> xr.Dataset:
    """One output with each estimate of the catalog at the ends of its range while all others stay.

    Parameters
    ----------
    study
        The study.
    output
        One of its outputs.
    at
        Labels of axes or of coordinates such as ``devices``. Along axes left open it is the best feasible design, by
        ``[best]`` of the study or by step time.
    of
        Catalog tables or quantities to vary. Default: all with a range.

    Returns
    -------
    xarray.Dataset
        ``low`` and ``high``, the output with the estimate at either end, and ``stated``, in the unit of the output,
        along ``assumption``, the largest swing first; the attribute ``design`` has the labels of its axes.

    Raises
    ------
    PerfgridError
        For an unknown output, axis or label, and where no design is feasible.

    Examples
    --------
    >>> import perfgrid as pg
    >>> bill = pg.Study.make(workload="manufacturing", outputs=["die_cost"], axes={"device": ["h100-sxm-80gb"]})
    >>> pg.tornado(bill, "die_cost").assumption.values[0].item()
    'wafer_price'
    """
    expect_study(study, "tornado")
    if output not in study.outputs:
        raise PerfgridError(f"{output!r} is not among the outputs of the study{nearest(output, study.outputs)}")
    at = best_design(as_stated(study), at, (output,)).labels
    result = evaluate(selected(one_at_a_time(study, output, at, of), at), "float64")[output]
    if several := [str(d) for d in result.dims if d != SAMPLE and result.sizes[d] > 1]:
        raise PerfgridError(f"a tornado needs a single number, and {output!r} has several along {', '.join(several)}")
    values = dict(zip(result[SAMPLE].values.astype(str).tolist(), np.ravel(result.values).tolist(), strict=True))
    names = [label.removesuffix(".low") for label in values if label.endswith(".low")]
    names.sort(key=lambda name: -abs(values[f"{name}.high"] - values[f"{name}.low"]))
    ends = {end: ("assumption", [values[f"{name}.{end}"] for name in names]) for end in ("low", "high")}
    attributes = {k: result.attrs[k] for k in ("units", "long_name") if k in result.attrs}
    several = {axis.name for axis in study.space.axes if len(axis) > 1}
    attributes["design"] = labels_text({name: label for name, label in at.items() if name in several})
    return xr.Dataset({**ends, "stated": values["stated"]}, {"assumption": names}, {"output": output, **attributes})
