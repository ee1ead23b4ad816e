"""Run a study: evaluate it in memory, stream it to a file, explain one of its points."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import xarray as xr
from xarray.backends import NetCDF4DataStore

from perfgrid.analysis.best import GROUPED
from perfgrid.catalog import load_variables
from perfgrid.engine.dataset import SPACE_ATTRIBUTE, formula_hash, space_from_json, to_dataset
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.explain import Explanation, explain_point, index_of
from perfgrid.engine.function import freed
from perfgrid.engine.plan import Plan
from perfgrid.engine.registry import Registry
from perfgrid.engine.resolver import resolve
from perfgrid.engine.space import Axis, Space
from perfgrid.engine.stages import TILE_POINTS, Evaluation, Progress, enable_compilation_cache
from perfgrid.formulas import INNER, WORKLOADS
from perfgrid.study.file import CLUSTER_SIZE
from perfgrid.study.space import TABLES
from perfgrid.study.study import Study, expect_study
from perfgrid.study.tables import OWN_PREFIX, STATED
from perfgrid.study.where import apply_where

KINDS = {  # of results, by the suffix of their names
    ".nc": "results are netCDF files (of run also .zarr, a store, and .pgf, factored)",
    ".pgf": "this result is a factored one",
}
WORKLOAD = "workload"  # names one of several workloads of an optimum, like the label of an axis
STUDY_ATTRIBUTE = "perfgrid_study"  # global attribute: what is needed beside the design space to explain a result


def evaluate(
    study: Study,
    dtype: str | None = None,
    tile_points: int = TILE_POINTS,
    small_points: int | None = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Evaluate every design of a study in memory; variables lie on their own axes, constraints are flag variables.

    Raises PerfgridError if the result would not fit the memory at hand.
    """
    expect_study(study, "evaluate")
    plan = study.plan(small_points)
    check_memory(plan, study.name, dtype or study.file.dtype)
    enable_compilation_cache()
    evaluation = Evaluation(plan, dtype or study.file.dtype, tile_points, progress)
    return to_dataset(
        plan, evaluation.collect(), study.catalog.references, given_quantities(study), **global_attributes(study)
    )


def save(dataset: xr.Dataset, path: str | Path, overwrite: bool = False) -> Path:
    """Write a result to one netCDF file, compressed; it appears under its name only when it is complete."""
    target = check_output(path, overwrite)
    encoding = {
        name: compression()
        for name, variable in dataset.data_vars.items()
        if variable.ndim and variable.dtype.kind in "fi"
    }
    with replacing(target) as temporary:  # `to_netcdf` would import dask and its scheduler wherever they are installed
        store = NetCDF4DataStore.open(temporary, mode="w", lock=threading.Lock())
        try:
            dataset.dump_to_store(store, encoding=encoding)
        finally:
            store.close()
    return target


def explain(
    what: Study | xr.Dataset, quantity: str, at: Mapping[str, Any], formulas: Iterable[Callable[..., Any]] = ()
) -> Explanation:
    """Derive one number of a study or of a result: every formula below it, and each constraint that its point violates.

    ``at`` names a label of every axis (of best designs and optima: of those that are not chosen along); ``formulas``
    are the user's own with which a result was made. Raises PerfgridError for an unknown quantity, axis or label, and
    for a result whose formulas are not at hand.
    """
    free: set[str] = set()
    if isinstance(what, Study):
        sources, overrides, variables, stated = what.sources(), what.file.overrides, what.catalog.variables, what.stated
    else:
        workload, _, name = quantity.partition(".")
        if isinstance(what, xr.Dataset) and f"{workload}.{SPACE_ATTRIBUTE}" in what.attrs:
            quantity, at = name, {**at, WORKLOAD: workload}
        what, at = design_at(what, at)
        stored = json.loads(what.attrs[STUDY_ATTRIBUTE])
        sources, overrides, stated = stored["sources"], stored["overrides"], stored["stated"]
        variables, free = load_variables(), {name.partition(".")[0] for name in _free(what)}
    space, registry, choices, at = designs(what, at, formulas)
    resolve(registry, (quantity,), space.names(), choices, space.label_quantities())  # an unknown name comes first
    index = index_of(space, at)
    entries = {table: _entry(space, index, table, names) for table, names in sources.items()}
    units = {}
    for variable in variables.values():
        source = f"given by {variable.of}"
        if variable.name in free:
            source = "free in the optimum"
        elif variable.name in overrides:
            source = "given by the study's overrides"
        elif variable.name in stated and variable.of in TABLES:
            source = "given by the study's axes"
        elif variable.of in sources:
            source = sources[variable.of].get(entries[variable.of], {}).get(variable.name, source)
        for prefix in ("", STATED, OWN_PREFIX):
            name = prefix + variable.name
            about = source if prefix != OWN_PREFIX or variable.of == "device" else f"the device's own {variable.of}"
            for axis, row in zip(space.axes, index, strict=True):
                if name in axis.scales and axis.scales[name][row] != 1:
                    about += f", times {axis.scales[name][row]:g}"
            units[name] = (variable.unit, variable.meaning, about)
    return explain_point(registry, space, quantity, at, choices, units)


def _entry(space: Space, index: tuple[int, ...], table: str, names: Mapping[str, Any]) -> str:
    """The catalog entry of a table at one point; empty if none is known."""
    for axis, row in zip(space.axes, index, strict=True):
        if axis.name == table:
            return str(axis.labels[row])
        if table in axis.columns:
            return str(axis.columns[table][row])
    return next(iter(names)) if len(names) == 1 else ""


def workload_of(what: Study | xr.Dataset) -> str:
    """The workload of a study, or of the one that made a result."""
    if isinstance(what, Study):
        return what.file.workload
    return json.loads(what.attrs.get(STUDY_ATTRIBUTE, "{}")).get("workload", "training")


def restore(dataset: xr.Dataset, formulas: Iterable[Callable[..., Any]] = ()) -> tuple[Space, Registry, dict[str, str]]:
    """The design space, formulas and choices that a result was made with; of one optimum what was found is stated.

    PerfgridError if they are not at hand.
    """
    if SPACE_ATTRIBUTE not in dataset.attrs or STUDY_ATTRIBUTE not in dataset.attrs:
        raise PerfgridError("this is no perfgrid result: it stores no design space")
    data, stored = json.loads(dataset.attrs[SPACE_ATTRIBUTE]), json.loads(dataset.attrs[STUDY_ATTRIBUTE])
    space, formulas = space_from_json(data), tuple(formulas)
    registry = Registry.collect(WORKLOADS[stored["workload"]], INNER)
    if lacking := sorted(set(stored["formulas"]) - {f.__name__ for f in formulas}):
        raise PerfgridError(
            f"the result was made with formulas of its user, {', '.join(lacking)}: give them as explain(formulas=[...])"
        )
    if formulas:
        registry = registry.extended(formulas)
    if stored["where"]:
        space, constraint = apply_where(space, stored["where"], "where")
        if constraint is not None:
            registry.add(constraint)
    values: dict[str, np.ndarray] = {}
    for name in _free(dataset):
        if dataset[name].ndim:
            raise PerfgridError("every optimum has free quantities of its own: select one")
        quantity, _, component = name.partition(".")
        if quantity in space.names():
            value = values.setdefault(quantity, np.array(space.parts(quantity)[0][1][0]))
            axis = load_variables()[quantity].axis
            value.reshape(-1)[INNER.labels[axis].index(component) if axis is not None else 0] = dataset[name].item()
    space = freed(space, values)
    return Space(space.axes, {**space.constants, **values}), registry, dict(data["choices"])


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
    """Of chosen designs (best ones, a frontier, optima) the one that ``at`` names, with its labels along all axes.

    ``at`` names labels of the result's own axes, ``rank``, ``devices``, ``design`` and ``point`` among them, and one of
    several workloads as ``workload``; what was chosen follows. Any other result is returned as it is. PerfgridError for
    an unknown label, an axis that is left open, and a group without a design.
    """
    if not isinstance(result, xr.Dataset):
        raise PerfgridError(
            f"a Study or a result is needed, found {result!r}; load_study(path), open_result(path) read one"
        )
    at, end = dict(at), f".{SPACE_ATTRIBUTE}"
    prefix = ""
    if names := [n.removesuffix(end) for n in map(str, result.attrs) if n.endswith(end)]:
        if (name := str(at.pop(WORKLOAD, ""))) not in names:
            told = f"found {name!r}{nearest(name, names)}" if name else f"legal names: {', '.join(names)}"
            raise PerfgridError(f"the result has several workloads; {WORKLOAD}=NAME says which one, {told}")
        prefix = f"{name}."
        result = result.drop_attrs(deep=False).assign_attrs(_attributes(result, prefix))
    space = json.loads(result.attrs.get(SPACE_ATTRIBUTE, '{"axes": []}'))
    chosen = [prefix + axis["name"] for axis in space["axes"] if axis["name"] not in (*result.dims, *at)]
    held = [*_free(result), *(name for name in chosen if name in result.coords)]
    for axis in dict.fromkeys(str(d) for name in held for d in result[name].dims):
        labels = result[axis].values
        if axis not in at and len(labels) > 1:
            raise PerfgridError(f"a single design needs a label of every axis; not given: {axis} (such as {labels[0]})")
        result = result.isel({axis: Axis(axis, labels).index(at.pop(axis)) if axis in at else 0})
    if "found" in result.coords and result["found"].ndim == 0 and not bool(result["found"]):
        raise PerfgridError("this group has no feasible design")
    single = {str(name).removeprefix(prefix): c.item() for name, c in result.coords.items() if not c.ndim}
    return result, {axis["name"]: single[axis["name"]] for axis in space["axes"] if axis["name"] in single} | at


def _attributes(result: xr.Dataset, prefix: str) -> dict[str, Any]:
    """The attributes of one workload as those of a result."""
    found = {str(name).removeprefix(prefix): value for name, value in result.attrs.items()}
    return {name: value for name, value in found.items() if "." not in name}


def _free(result: xr.Dataset) -> list[str]:
    """The free quantities of an optimum; none of any other result."""
    return [str(name) for name in result["knob"].values] if "knob" in result.coords else []


def formulas_changed(dataset: xr.Dataset) -> bool:
    """Whether the formulas of this installation differ from those that a result was made with."""
    for name in map(str, dataset.attrs):
        if name.endswith(SPACE_ATTRIBUTE):
            attrs = _attributes(dataset, name.removesuffix(SPACE_ATTRIBUTE))
            space, registry, choices = restore(xr.Dataset(attrs=attrs))
            outputs = json.loads(attrs[SPACE_ATTRIBUTE])["outputs"]
            if formula_hash(Plan(registry, space, outputs, choices)) != attrs.get("formula_hash"):
                return True
    return False


# -- memory and files -------------------------------------------------------------------------------------------------


def available_memory() -> int:
    """Bytes of memory that a new allocation can have: of the machine, and of the containers or jobs around it."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), free)
    return min([free, *left_by_groups(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))])


def left_by_groups(root: Path, own: Path) -> list[int]:
    """Bytes that every control group (version 2) around this process leaves of its limit, cached files not counted."""
    left: list[int] = []
    with suppress(OSError, StopIteration):
        path = next(line[3:] for line in own.read_text().splitlines() if line.startswith("0::")).strip("/")
        folder = root / path
        for group in (folder, *folder.parents):
            with suppress(OSError, ValueError, KeyError):  # no limit there
                limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
                stated = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                left.append(max(0, limit - used + int(stated["inactive_file"])))
            if group == root:
                break
    return left


def check_memory(plan: Plan, name: str, dtype: str = "float32", available: int | None = None) -> None:
    """PerfgridError, with the size and the command that streams, if the results cannot be held in memory."""
    limit = available_memory() if available is None else available
    needed = plan.result_bytes(dtype)
    if needed > 0.8 * limit:
        raise PerfgridError(
            f"{name}: the results of {plan.space.points:,} points take {needed / 2**30:,.1f} GiB and "
            f"{limit / 2**30:,.1f} GiB of memory are free; keep the formulas in their place with "
            f"'perfgrid run {name} -o FILE.pgf' (pg.save_factored), write them tile by tile with -o FILE.zarr or "
            "--stream -o FILE.nc (pg.stream), or ask for fewer outputs or shorter axes"
        )


def check_output(path: str | Path, overwrite: bool, suffix: str = ".nc") -> Path:
    """The path of a result if it can be written; PerfgridError for a wrong suffix, no folder, an existing file."""
    target = Path(path)
    if target.suffix != suffix:
        raise PerfgridError(f"cannot write {str(target)!r}: {KINDS[suffix]}, whose names end in {suffix}")
    if not target.parent.is_dir():
        raise PerfgridError(f"cannot write {str(target)!r}: there is no folder {str(target.parent)!r}")
    if target.is_dir():
        raise PerfgridError(f"cannot write {str(target)!r}: it is a folder")
    if target.exists() and not overwrite:
        raise PerfgridError(f"{str(target)!r} exists; give --overwrite to replace it")
    try:
        with tempfile.NamedTemporaryFile(prefix=f".{target.name}.", suffix=".part", dir=target.parent):
            return target
    except OSError as error:
        raise PerfgridError(f"cannot write {str(target)!r}: {error.strerror or error}") from None


@contextmanager
def replacing(target: Path) -> Iterator[str]:
    """A temporary neighbour that takes the target's name when the block succeeds and vanishes when it fails."""
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    os.close(handle)
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, target)
    except (OSError, RuntimeError) as error:
        why = str(getattr(error, "strerror", None) or error)
        if why.startswith("NetCDF"):  # which tells of a full disk as of any other error
            why += f" ({shutil.disk_usage(target.parent).free / 2**20:,.1f} MiB are free there)"
        raise PerfgridError(f"cannot write {str(target)!r}: {why}") from error
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def compression() -> dict[str, Any]:
    """Options of a compressed netCDF variable: the fastest compression that the library has."""
    return {"compression": "zstd", "complevel": 1, "shuffle": True} if _has_zstd() else {"zlib": True, "complevel": 1}


def _has_zstd() -> bool:
    with netCDF4.Dataset("probe", "w", diskless=True) as probe:
        return bool(probe.has_zstd_filter())


def given_quantities(study: Study) -> dict[str, tuple[str, str]]:
    """Unit and meaning of the given quantities."""
    return {v.name: (v.unit, v.meaning) for v in study.catalog.variables.values()}


def global_attributes(study: Study) -> dict[str, str]:
    """Global attributes that tell what the study was."""
    stored = {
        "workload": study.file.workload,
        "where": study.file.where,
        "overrides": study.file.overrides,
        "formulas": [f.__name__ for f in study.formulas],
        "stated": sorted(study.stated),
        "sources": study.sources(),
    }
    return {
        "title": study.file.title,
        "study": study.source or study.file.model_dump_json(exclude_none=True),
        STUDY_ATTRIBUTE: json.dumps(stored),
        GROUPED: CLUSTER_SIZE,
        "history": f"{datetime.now(UTC).strftime('%Y-%m-%dT%H:%M:%SZ')} evaluated from {study.name}",
    }
