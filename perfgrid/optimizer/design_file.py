"""Optima as study files: the values, labels and layouts that were found stand where the study left them open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import xarray as xr

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.grid.space import Axis
from perfgrid.formulas import INNER
from perfgrid.results.files import check_output, write_text
from perfgrid.study.file import LAYOUT
from perfgrid.study.free import leaf
from perfgrid.study.samples import SAMPLE
from perfgrid.study.study import Study, workloads

from .function import stated

SEARCHED = ("optimize", "workloads", "best", "pareto", "view", "where", "catalog")  # a design is no search


def design_studies(study: Study, found: xr.Dataset) -> dict[str, dict[str, Any]]:
    """The content of a study file for each optimum and workload, by a name made of the workload and the labels.

    `perfgrid.Study.make` takes such content. Infeasible optima are left out. Samples stay as the study states them.
    """
    dims = [str(d) for d in found["objective"].dims]
    contents = {}
    for place in product(*(range(found.sizes[d]) for d in dims)):
        one = found.isel(dict(zip(dims, place, strict=True)))
        if not bool(one["feasible"]):
            continue
        labels = [str(one[d].item()) if d in one.coords else f"{d}{i}" for d, i in zip(dims, place, strict=True)]
        for name, (own, _) in workloads(study).items():
            contents["-".join([name, *labels] if name else labels)] = _content(own, name, one)
    return contents


def save_designs(study: Study, found: xr.Dataset, path: Path, overwrite: bool = False) -> list[Path]:
    """Write the optima as study files; of several, the name of each follows that of ``path``. Returns the files.

    PerfgridError where a file exists or cannot be written, and without a feasible optimum.
    """
    contents = design_studies(study, found)
    if not contents:
        raise PerfgridError(f"{study.name}: no optimum is feasible, so there is no design to save")
    several = len(contents) > 1
    files = {path.with_stem(f"{path.stem}-{name}") if several else path: c for name, c in contents.items()}
    for file in files:
        check_output(file, overwrite, ".toml")
    for file, content in files.items():
        write_text(file, tomli_w.dumps(content))
    return list(files)


def _content(study: Study, workload: str, one: xr.Dataset) -> dict[str, Any]:
    """The study of one workload at one optimum, in double precision."""
    content = study.file.model_dump(exclude_none=True, exclude=set(SEARCHED))
    content |= {"title": f"{study.file.title}: optimum", "dtype": "float64"}
    fixed = dict(_fixed(study, one))
    content["overrides"] = {k: v for k, v in content["overrides"].items() if k not in fixed} | fixed
    parameters = content["workload_parameters"]
    content["workload_parameters"] = {k: v for k, v in parameters.items() if k not in fixed}
    axes = {axis.name: axis for axis in study.space.axes}
    content["axes"] = {
        name: spec if name == SAMPLE else _single(axes[name], spec, _label(one, workload, axes[name]))
        for name, spec in content["axes"].items()
        if name not in fixed
    }
    return content


def _fixed(study: Study, one: xr.Dataset) -> Iterator[tuple[str, Any]]:
    """The free quantities with their values in SI units; vectors whole, by component."""
    vectors: dict[str, dict[str, float]] = {}
    for name in map(str, one["knob"].values):
        item, value = leaf(study, name), one[name].item()
        if item.component is None or item.variable.axis is None:
            yield item.quantity, value
            continue
        labels = INNER.labels[item.variable.axis]
        if item.quantity not in vectors:
            base = stated(study, item.quantity)
            assert base is not None  # refused when it was freed
            vectors[item.quantity] = dict(zip(labels, np.ravel(base).tolist(), strict=True))
        vectors[item.quantity][labels[item.component]] = value
    yield from vectors.items()


def _label(one: xr.Dataset, workload: str, axis: Axis) -> Any:
    """The label of an axis at an optimum: chosen by the workload, jointly, or of the optimum; else its only one."""
    for name in (f"{workload}.{axis.name}" if workload else axis.name, axis.name):
        if name in one.coords and one[name].ndim == 0:
            return one[name].item()
    return axis.labels[0]


def _single(axis: Axis, spec: Any, label: Any) -> Any:
    """What a study states of an axis, with one of its labels left."""
    row = axis.index(label)
    if axis.name == LAYOUT:
        numbers = {name: [int(axis.columns[name][row])] for name in _layout_keys(axis)}
        return numbers | {k: v for k, v in spec.items() if k not in numbers and isinstance(v, str)}
    if isinstance(spec, Mapping) and "zip" in spec:
        return {"labels": [str(label)], "zip": {name: [values[row]] for name, values in spec["zip"].items()}}
    if isinstance(spec, Mapping) and "scale" in spec:
        return {"scale": [float(label)]}
    if isinstance(spec, list) and len(spec) == len(axis):
        return [spec[row]]
    return [label]


def _layout_keys(axis: Axis) -> list[str]:
    return [name for name in ("devices", "tp", "pp", "cp", "ep", "etp", "chunks") if name in axis.columns]
