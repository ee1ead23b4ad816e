"""Global sensitivity over the catalog's ranges: which estimates matter over their whole width, alone and together.

Every estimate with a range varies as `study_samples` says: the ends of its range at probability 0 and 1, its stated
value the median. SALib draws and analyses; the evaluation is one study with an axis `sample`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.grid.dataset import feasible
from perfgrid.engine.grid.space import Axis, Space
from perfgrid.results.evaluate import evaluate
from perfgrid.study.samples import SAMPLE, factors
from perfgrid.study.selection import asking, selected
from perfgrid.study.study import Study

from .uncertainty import looked_at, only

LEVELS = 4  # of a Morris design
MOST_DESIGNS = 1000  # analysed one by one
CONFIDENCE = 0.95


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

    def draw(problem: dict[str, Any], count: int, seed: int) -> np.ndarray:
        from SALib.sample import morris as sampler

        return sampler.sample(problem, count, num_levels=LEVELS, seed=seed)

    def analyse(problem: dict[str, Any], rows: np.ndarray, values: np.ndarray, seed: int) -> dict[str, Any]:
        from SALib.analyze import morris as analyser

        seed += 1  # SALib takes 0 for no seed
        found = analyser.analyze(problem, rows, values, conf_level=CONFIDENCE, num_levels=LEVELS, seed=seed)
        return {
            "mean_effect": found["mu"],
            "mean_absolute_effect": found["mu_star"],
            "mean_absolute_effect_confidence": found["mu_star_conf"],
            "effect_deviation": found["sigma"],
        }

    return _analysed(study, output, at, of, trajectories, seed, draw, analyse)


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

    def draw(problem: dict[str, Any], count: int, seed: int) -> np.ndarray:
        from SALib.sample import sobol as sampler

        return sampler.sample(problem, count, calc_second_order=False, seed=seed)

    def analyse(problem: dict[str, Any], _rows: np.ndarray, values: np.ndarray, seed: int) -> dict[str, Any]:
        from SALib.analyze import sobol as analyser

        if np.ptp(values) <= 1e-12 * np.max(np.abs(values)):  # nothing varies: no share of no variance
            zeros = np.zeros(problem["num_vars"])
            found = {"S1": zeros, "S1_conf": zeros, "ST": zeros, "ST_conf": zeros}
        else:
            seed += 1  # SALib takes 0 for no seed
            found = analyser.analyze(problem, values, calc_second_order=False, conf_level=CONFIDENCE, seed=seed)
        return {
            "first_order": found["S1"],
            "first_order_confidence": found["S1_conf"],
            "total": found["ST"],
            "total_confidence": found["ST_conf"],
        }

    return _analysed(study, output, at, of, samples, seed, draw, analyse)


def _ranges(study: Study, output: str, of: str | Sequence[str] | None, at: Mapping[str, Any] | None) -> dict[str, Any]:
    """The ends of each estimate's range as factors on its stated value."""
    axes = {k: only(v, (at or {}).get(k)) for k, v in study.file.axes.items() if k != SAMPLE}
    axes[SAMPLE] = {"method": "one_at_a_time", **looked_at(of)}
    ends = next(a for a in asking(study, (output,), axes).space.axes if a.name == SAMPLE)
    row = {label: i for i, label in enumerate(ends.labels.tolist())}
    return {n: (float(s[row[f"{n}.low"]]), float(s[row[f"{n}.high"]])) for n, s in ends.scales.items()}


def _analysed(
    study: Study,
    output: str,
    at: Mapping[str, Any] | None,
    of: str | Sequence[str] | None,
    count: int,
    seed: int,
    draw: Callable[..., np.ndarray],
    analyse: Callable[..., dict[str, Any]],
) -> xr.Dataset:
    try:
        import SALib  # noqa: F401
    except ImportError:
        raise PerfgridError("global sensitivity needs SALib: pip install 'perfgrid[sensitivity]'") from None
    if isinstance(count, bool) or not isinstance(count, int) or count < 2:
        raise PerfgridError(f"the number of samples must be a whole number of at least 2, found {count!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise PerfgridError(f"the seed must be a whole number of at least 0, found {seed!r}")
    if output in (axis.name for axis in study.space.axes):
        raise PerfgridError(f"{output!r} labels designs: it has no variance")
    ranges = _ranges(study, output, of, at)
    names = list(ranges)
    problem = {"num_vars": len(names), "names": names, "bounds": [[0.0, 1.0]] * len(names)}
    rows = draw(problem, count, seed)
    scales = {n: factors(rows[:, i], *ranges[n]) for i, n in enumerate(names)}
    axes = {k: v for k, v in study.file.axes.items() if k != SAMPLE}
    bare = selected(asking(study, (output,), axes), at)
    if bare.space.points > MOST_DESIGNS:
        raise PerfgridError(
            f"{bare.name}: {bare.space.points:,} designs would be analysed one by one, at most {MOST_DESIGNS:,} are; "
            "keep single labels of axes"
        )
    axis = Axis(SAMPLE, np.arange(len(rows)), {}, scales)
    result = evaluate(replace(bare, space=Space((*bare.space.axes, axis), bare.space.constants)), "float64")
    values = result[output]
    if values.dtype.kind != "f":
        raise PerfgridError(f"{output!r} is a choice or a flag: it has no variance")
    if SAMPLE not in values.dims:
        values = values.expand_dims({SAMPLE: len(rows)})
    dims = [d for d in values.dims if d != SAMPLE]
    stacked = values.transpose(*dims, SAMPLE)
    found: dict[str, np.ndarray] = {}
    for place in np.ndindex(*(stacked.sizes[d] for d in dims)):
        for name, column in analyse(problem, rows, np.asarray(stacked.values[place]), seed).items():
            array = found.setdefault(name, np.zeros((len(names), *(stacked.sizes[d] for d in dims))))
            array[(slice(None), *place)] = np.ma.filled(column, 0.0)
    possible = feasible(result, of=output)
    share = possible.mean(SAMPLE) if SAMPLE in possible.dims else possible.astype(float)
    coordinates = {k: v for k, v in values.coords.items() if SAMPLE not in v.dims and k != SAMPLE}
    about = {k: values.attrs[k] for k in ("units", "long_name") if k in values.attrs}
    return xr.Dataset(
        {k: (("parameter", *dims), v) for k, v in found.items()},
        {
            "parameter": names,
            "low": ("parameter", [r[0] for r in ranges.values()]),
            "high": ("parameter", [r[1] for r in ranges.values()]),
            **coordinates,
        },
        {"output": output, **about, "evaluations": len(rows), "confidence_level": CONFIDENCE},
    ).assign(variance=stacked.var(SAMPLE), feasible_share=share)
