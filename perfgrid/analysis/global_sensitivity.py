"""Global sensitivity over the catalog's ranges: which estimates matter over their whole width, alone and together.

Every estimate with a range varies as `study_samples` says: the ends of its range at probability 0 and 1, its stated
value the median. SALib draws and analyses; the evaluation is one study with an axis `sample`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.grid.dataset import feasible
from perfgrid.engine.grid.space import Axis, Space
from perfgrid.results.evaluate import evaluate
from perfgrid.study.samples import LARGEST, SAMPLE, factors
from perfgrid.study.selection import asking, selected
from perfgrid.study.study import Study, expect_study
from perfgrid.study.where import filtered

from .uncertainty import one_at_a_time

LEVELS = 4  # of a Morris design
MOST_DESIGNS = 1000  # analysed one by one
SAMPLES_AT_ONCE = 2**12  # evaluated together, with all quantities that they change in memory
CONFIDENCE = 0.95
EFFECTS = {  # of Morris: what they are called by SALib
    "mean_effect": "mu",
    "mean_absolute_effect": "mu_star",
    "mean_absolute_effect_confidence": "mu_star_conf",
    "effect_deviation": "sigma",
}
INDICES = {"first_order": "S1", "first_order_confidence": "S1_conf", "total": "ST", "total_confidence": "ST_conf"}


def morris(
    study: Study,
    output: str,
    at: Mapping[str, Any] | None = None,
    of: str | Sequence[str] | None = None,
    trajectories: int = 64,
    seed: int = 0,
) -> xr.Dataset:
    """Morris screening of one output: effects of each estimate of the catalog over its range.

    After Morris, Technometrics 33 (1991) 161. Takes ``trajectories`` x (estimates + 1) evaluations.

    Parameters
    ----------
    study
        The study.
    output
        The quantity.
    at
        Labels of axes to select first.
    of
        Catalog tables or quantities to vary. Default: all with a range.
    trajectories
        Trajectories through the ranges.
    seed
        Seed of the samples.

    Returns
    -------
    xarray.Dataset
        ``mean_effect``, ``mean_absolute_effect`` with its 95 % ``mean_absolute_effect_confidence`` and
        ``effect_deviation`` (large against the mean: non-linear or interacting), in the unit of the output, along
        ``parameter`` and the axes of the designs.

    Raises
    ------
    PerfgridError
        For an unknown name, nothing with a range, and more than 1000 designs.

    Examples
    --------
    >>> import perfgrid as pg
    >>> bill = pg.Study.make(workload="manufacturing", outputs=["die_cost"], axes={"device": ["h100-sxm-80gb"]})
    >>> found = pg.morris(bill, "die_cost", trajectories=4)  # needs perfgrid[sensitivity]
    >>> found.mean_effect.dims
    ('parameter', 'device')
    """
    return _analysed(study, output, at, of, trajectories, seed, "morris", EFFECTS, num_levels=LEVELS)


def sobol(
    study: Study,
    output: str,
    at: Mapping[str, Any] | None = None,
    of: str | Sequence[str] | None = None,
    samples: int = 1024,
    seed: int = 0,
) -> xr.Dataset:
    """Sobol indices of one output: the share of its variance due to each estimate, alone and with others.

    After Saltelli et al., Computer Physics Communications 181 (2010) 259. Takes ``samples`` x (estimates + 2)
    evaluations.

    Parameters
    ----------
    study, output, at, of, seed
        As for `morris`.
    samples
        Samples, best a power of two.

    Returns
    -------
    xarray.Dataset
        ``first_order`` and ``total`` with their 95 % ``..._confidence`` along ``parameter`` and the axes of the
        designs, and the ``variance``.

    Raises
    ------
    PerfgridError
        As for `morris`.

    Examples
    --------
    >>> import perfgrid as pg
    >>> bill = pg.Study.make(workload="manufacturing", outputs=["die_cost"], axes={"device": ["h100-sxm-80gb"]})
    >>> found = pg.sobol(bill, "die_cost", samples=64)  # needs perfgrid[sensitivity]
    >>> found.total.idxmax("parameter").item()
    'wafer_price'
    """
    return _analysed(study, output, at, of, samples, seed, "sobol", INDICES, calc_second_order=False)


def _analysed(
    study: Study,
    output: str,
    at: Mapping[str, Any] | None,
    of: str | Sequence[str] | None,
    count: int,
    seed: int,
    method: str,
    kept: Mapping[str, str],
    **options: Any,
) -> xr.Dataset:
    """What a method of SALib finds, ``kept`` by the names of its results, for every design."""
    expect_study(study, method)
    try:
        draw = import_module(f"SALib.sample.{method}").sample
        analyse = import_module(f"SALib.analyze.{method}").analyze
    except ImportError:
        raise PerfgridError("global sensitivity needs SALib: pip install 'perfgrid[sensitivity]'") from None
    if isinstance(count, bool) or not isinstance(count, int) or not 2 <= count <= LARGEST:
        raise PerfgridError(f"the number of samples must be a whole number from 2 to {LARGEST:,}, found {count!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise PerfgridError(f"the seed must be a whole number of at least 0, found {seed!r}")
    if output in (axis.name for axis in study.space.axes):
        raise PerfgridError(f"{output!r} labels designs: it has no variance")
    tornado = next(a for a in one_at_a_time(study, output, at, of).space.axes if a.name == SAMPLE)
    row = {label: i for i, label in enumerate(tornado.labels.tolist())}
    ranges = {n: (float(s[row[f"{n}.low"]]), float(s[row[f"{n}.high"]])) for n, s in tornado.scales.items()}
    problem = {"num_vars": len(ranges), "names": list(ranges), "bounds": [[0.0, 1.0]] * len(ranges)}
    rows = draw(problem, count, **options, seed=seed)
    scales = {n: factors(rows[:, i], *bounds) for i, (n, bounds) in enumerate(ranges.items())}
    result = _evaluated(study, output, at, Axis(SAMPLE, np.arange(len(rows)), {}, scales))
    values = result[output]
    if SAMPLE not in values.dims:
        values = values.expand_dims({SAMPLE: len(rows)})

    def single(values: np.ndarray) -> tuple[np.ndarray, ...]:
        if np.ptp(values) <= 1e-12 * np.max(np.abs(values)):  # nothing varies
            return tuple(np.zeros((len(kept), len(ranges))))
        given = (rows, values) if method == "morris" else (values,)
        found = analyse(problem, *given, **options, conf_level=CONFIDENCE, seed=seed + 1)  # SALib takes 0 for no seed
        return tuple(np.ma.filled(found[name], 0.0) for name in kept.values())

    dims = [["parameter"]] * len(kept)
    found = xr.apply_ufunc(
        single, values, input_core_dims=[[SAMPLE]], output_core_dims=dims, vectorize=True, keep_attrs=False
    )
    possible = feasible(result, of=output)
    share = possible.mean(SAMPLE) if SAMPLE in possible.dims else possible.astype(float)
    low, high = (("parameter", list(column)) for column in zip(*ranges.values(), strict=True))
    about = {k: values.attrs[k] for k in ("units", "long_name") if k in values.attrs}
    return xr.Dataset(
        {name: array.transpose("parameter", ...) for name, array in zip(kept, found, strict=True)},
        {"parameter": list(ranges), "low": low, "high": high},
        {"output": output, **about, "evaluations": len(rows), "confidence_level": CONFIDENCE},
    ).assign(variance=values.var(SAMPLE), feasible_share=share)


def _evaluated(study: Study, output: str, at: Mapping[str, Any] | None, samples: Axis) -> xr.Dataset:
    """The result of a study of one output along an axis of samples."""
    bare = selected(asking(study, (output,), {k: v for k, v in study.file.axes.items() if k != SAMPLE}), at)
    if bare.space.points > MOST_DESIGNS:
        raise PerfgridError(
            f"{bare.name}: {bare.space.points:,} designs would be analysed one by one, at most {MOST_DESIGNS:,} are; "
            "keep single labels of axes"
        )
    parts = []
    for start in range(0, len(samples), SAMPLES_AT_ONCE):
        rows = np.arange(len(samples)) // SAMPLES_AT_ONCE == start // SAMPLES_AT_ONCE
        axes = (*bare.space.axes, filtered(samples, rows))
        parts.append(evaluate(replace(bare, space=Space(axes, bare.space.constants)), "float64"))
    same: Any = {"data_vars": "minimal", "coords": "minimal", "compat": "override", "combine_attrs": "override"}
    result: Any = xr.concat(parts, SAMPLE, **same) if len(parts) > 1 else parts[0]
    if result[output].dtype.kind != "f":
        raise PerfgridError(f"{output!r} is a choice or a flag: it has no variance")
    return result
