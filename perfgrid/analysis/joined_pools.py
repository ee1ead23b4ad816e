"""Two pools: each evaluated on its own by the formulas of inference, then joined over all pairs of their designs.

A study file of the workload ``pools`` with the tables ``[prefill]`` and ``[decode]`` becomes a study with the axes
``prefill`` and ``decode``: their rows are the designs of each pool, their columns its results. So P and D designs take
P + D evaluations of the physics, and P x D of the few formulas that join them (`formulas.serving.pools`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.catalog import Catalog, load_catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.grid.dataset import study_axes
from perfgrid.formulas import registry_of
from perfgrid.formulas.axes import INNER
from perfgrid.formulas.serving.batching import NODES
from perfgrid.formulas.serving.pools import LOADS
from perfgrid.results.evaluate import evaluated
from perfgrid.study.file import POOLS, PoolsFile
from perfgrid.study.study import Study, build_study, checked_file, content_of
from perfgrid.text.numbers import label_text

WORKLOAD = "pools"
OF_BOTH = (  # what concerns the deployment, and neither pool alone
    *("batch_rule", "batch", "request_rate", "offered_load", "largest_load", "loop_requests", "equal_lengths"),
    *("time_to_first_token_limit", "time_per_output_token_limit", "limit_statistic", "transfer_by_layer"),
)
RANDOM = {"batch_rule": "rate", "request_rate": 1}  # in the place of which the axis states a load
ALONE = {"prefill": RANDOM | {"output_tokens": 1}, "decode": RANDOM | {"prefilled": True}}  # a pool by itself
LOAD = {"offered_load": list(LOADS)}  # the axis at which it is tabulated, the last one
MACHINE = ("memory_per_device", "tier_bandwidth", "tier_transfer_latency", "largest_request_rate")
OWN = ("first_time", "mean_prefill_ratio")
COLUMNS = {
    "prefill": (*MACHINE, *OWN, "first_token_spread"),
    "decode": (
        *MACHINE,
        *OWN,
        "first_token_spread",
        "latency_spread",
        "token_time_spread",
        "rank_prompt_cache",
        "most_sequences",
    ),
}
YIELDS = "decode_yields_first"  # a column of the decode pool
STATED = ("hbm_capacity", "devices", "tp", "cp", "pp", "dp", "layers", "front_end_time", YIELDS)  # if not computed
LIMITS = ("prefill_limit", "decode_limit")
STATISTICS = INNER.labels["statistic"]
COST = "working_charge"
ROUNDING = 1e-12  # s
WHOLE = 2**22  # points of a pool up to which it is evaluated in NumPy: nothing is compiled


@dataclass(frozen=True)
class Designs:
    """Designs of one pool: its study, labels, which say why one is impossible alone, columns of the joined study."""

    study: Study
    labels: Sequence[str]
    columns: Mapping[str, Any]


def join_pools(
    content: Mapping[str, Any] | str | Path,
    settings: Iterable[str] = (),
    catalog: Catalog | None = None,
    formulas: Iterable[Callable[..., Any]] = (),
) -> Study:
    """Evaluate a prefill pool and a decode pool, and join them to the study of all pairs of their designs.

    Parameters
    ----------
    content
        A study file with the tables ``[prefill]`` and ``[decode]``, or what it holds: what both pools have, and in
        these tables the axes, workload_parameters and overrides of each.
    settings
        Overrides such as ``decode.axes.parallelism.devices=[16, 32]``, of a file.
    catalog
        A loaded catalog. Default: the built-in one and the files of ``catalog`` in the study.
    formulas
        The user's own formulas; they replace or join the built-in ones.

    Returns
    -------
    Study
        A study of the workload ``pools`` with the axes ``prefill`` and ``decode``.

    Raises
    ------
    PerfgridError
        For anything wrong, in one line.

    Examples
    --------
    >>> import perfgrid as pg
    >>> machine = {"model": ["llama-3.1-8b"], "device": ["h100-sxm-80gb"], "topology": ["rail-optimized"]}
    >>> study = pg.join_pools({
    ...     "outputs": ["largest_request_rate"],
    ...     "axes": machine,
    ...     "workload_parameters": {"prompt_tokens": 2000, "output_tokens": 300, "batch_rule": "clients", "batch": 64},
    ...     "prefill": {"axes": {"parallelism": {"devices": [1, 2], "tp": [1]}}},
    ...     "decode": {"axes": {"parallelism": {"devices": [1, 2, 4], "tp": [1]}}},
    ... })
    >>> pg.evaluate(study).largest_request_rate.dims
    ('prefill', 'decode')
    """
    if isinstance(content, Mapping):
        return joined(content, "study", catalog, formulas)[0]
    stated, _, values = content_of(content, settings)
    return joined(stated, str(content), catalog, formulas, values, Path(content).parent)[0]


def joined(
    content: Mapping[str, Any],
    name: str,
    catalog: Catalog | None = None,
    formulas: Iterable[Callable[..., Any]] = (),
    catalog_values: Mapping[str, Any] | None = None,
    folder: Path = Path(),
) -> tuple[Study, dict[str, Designs]]:
    """The study of all pairs of designs of two pools, and the designs of each. ``name`` appears in errors."""
    file = checked_file({"workload": WORKLOAD, **content}, name, PoolsFile)
    catalog = (catalog or load_catalog(*(folder / path for path in file.catalog))).with_values(catalog_values or {})
    costly = COST in registry_of(WORKLOAD).below(file.outputs)
    formulas = tuple(formulas)
    found = {pool: _designs(file, pool, name, catalog, formulas, costly) for pool in POOLS}
    return paired(file, found, name, catalog, formulas), found


def paired(
    file: PoolsFile,
    found: Mapping[str, Designs],
    name: str,
    catalog: Catalog,
    formulas: tuple[Callable[..., Any], ...] = (),
) -> Study:
    """The study of all pairs of evaluated designs."""
    stated = file.model_dump(exclude_none=True, exclude={*POOLS, "overrides", "catalog"})
    axes = {pool: {"labels": list(own.labels), "zip": dict(own.columns)} for pool, own in found.items()}
    stated["axes"] = axes | {key: values for key, values in file.axes.items() if key in OF_BOTH}
    read, alone = (reading(registry_of(workload)) for workload in (WORKLOAD, "inference"))
    given = file.workload_parameters.items()  # what nothing reads stays, and is refused by name
    stated["workload_parameters"] = {key: v for key, v in given if (key in read or key not in alone) and key != YIELDS}
    pools = {pool: own.study for pool, own in found.items()}
    return replace(build_study(stated, name, catalog, formulas), pools=pools)


def slowed(designs: Designs, rows: Sequence[int], factors: Sequence[float]) -> Designs:
    """Some designs of a pool, each with its times multiplied by a factor."""

    def column(name: str, values: Sequence[Any]) -> list[Any]:
        every = [(values[row], factor) for row, factor in zip(rows, factors, strict=True)]
        if isinstance(values[0], Mapping):  # times by load
            return [{k: v * factor for k, v in at.items()} for at, factor in every]
        return [at / factor if name in LIMITS else at for at, factor in every]

    columns = {name: column(name, values) for name, values in designs.columns.items()}
    return Designs(designs.study, [f"{designs.labels[row]} {i}" for i, row in enumerate(rows)], columns)


def reading(registry: Registry) -> set[str]:
    """Every quantity that some formula reads, or is selected by."""
    return {key for own in registry.formulas.values() for key in (*own.arguments, own.by) if key is not None}


def _designs(
    file: PoolsFile, pool: str, name: str, catalog: Catalog, formulas: tuple[Callable[..., Any], ...], costly: bool
) -> Designs:
    """All designs of one pool."""
    own = getattr(file, pool)
    parameters = {key: value for key, value in file.workload_parameters.items() if key not in OF_BOTH}
    content: dict[str, Any] = {"workload": "inference", "dtype": "float64", "title": f"{file.title}: {pool} pool"}
    content["axes"] = {key: values for key, values in file.axes.items() if key not in OF_BOTH} | own.axes
    content["overrides"] = file.overrides | own.overrides

    content["outputs"] = [*COLUMNS[pool], *((COST,) if costly else ())]
    content["workload_parameters"] = parameters | own.workload_parameters | ALONE[pool]
    study = build_study(content, f"{name}, {pool}", catalog, formulas)
    content["axes"] |= LOAD
    loaded = build_study(content, f"{name}, {pool}", catalog, formulas)
    found = evaluated(loaded, loaded.plan(WHOLE))
    columns = columns_of(pool, rows(loaded, found))
    several = [a.name for a in study.space.axes if a.name in file.axes and a.name not in own.axes and len(a) > 1]
    if several:
        raise PerfgridError(f"{name}, axes.{several[0]}: both pools share it: state one, or one axis for each pool")
    why = reasons(loaded, found)[:: len(LOADS)]
    legal = {f"{pool}_legal": [not text for text in why]}
    labels = [f"{label} ({text})" if text else label for label, text in zip(_labels(study), why, strict=True)]
    return Designs(study, labels, by_load(columns) | legal)


# ---- results of a pool as columns of the joined study ---------------------------------------------------------------


def rows(study: Study, found: xr.Dataset) -> dict[str, np.ndarray]:
    """Results, and what the study states, on one row for each design and load.

    Of links those that leave the domain.
    """
    values = {}
    for name in (*study.outputs, *(node.name for node in study.graph().constraints)):
        value = found[name].isel(load=0) if "load" in found[name].dims else found[name]
        value = value.sel(tier="scale_out") if "tier" in value.dims else value
        inner = [dim for dim in value.dims if dim not in study_axes(study.space)]
        whole = value.expand_dims({a.name: len(a) for a in study.space.axes if a.name not in value.dims})
        array = whole.transpose(*study_axes(study.space), *inner).values.astype(float)
        values[name] = array.reshape(study.space.points, *array.shape[len(study.space.axes) :])
    return values | {name: _stated(study, name) for name in STATED if name in study.space.names()}


def _stated(study: Study, name: str) -> np.ndarray:
    """A number that the study states, on one row for each design."""
    whole = np.ones(study.space.shape)
    for axis, factor in study.space.parts(name):
        whole = whole * (factor[0] if axis is None else np.moveaxis(factor[(..., *[None] * (whole.ndim - 1))], 0, axis))
    return whole.reshape(-1)


def columns_of(pool: str, found: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Columns of a pool in the joined study: numbers, and times by load, from rows with the loads innermost."""
    tabulated = {name: array.reshape(-1, len(LOADS), *array.shape[1:]) for name, array in found.items()}
    once = {name: array[:, 0] for name, array in tabulated.items()}
    own = {
        "memory_per_device": once["memory_per_device"],
        "memory_capacity": once["hbm_capacity"],
        "devices": once["devices"],
        "ranks": once["tp"] * once["cp"] * once["pp"],
        "rank_rate": once["tier_bandwidth"],
        "limit": once["largest_request_rate"],
    }
    own |= {"charge": once[COST]} if COST in once else {}
    columns = {f"{pool}_{name}": array for name, array in own.items()}
    computed = tabulated["first_time"] * tabulated["mean_prefill_ratio"]
    if pool == "prefill":
        columns |= {"prefill_replicas": once["dp"], "layers": once["layers"], "front_end_time": once["front_end_time"]}
        return columns | {"own_prompt_time": computed} | _spread("prefill_time", tabulated["first_token_spread"])
    columns |= {"decode_front_end_time": once["front_end_time"], "decode_rank_cache": once["rank_prompt_cache"]}
    columns |= {"transfer_latency": once["tier_transfer_latency"], "decode_places": once["most_sequences"]}
    front = tabulated["front_end_time"]
    waits = _spread("decode_wait", tabulated["first_token_spread"])
    yields = once.get(YIELDS, np.zeros_like(front[:, 0])) > 0
    columns |= {YIELDS: yields}
    waits["decode_wait_mean"] = np.where(
        yields[:, None], waits["decode_wait_mean"], waits["decode_wait_mean"] - computed
    )
    stays = _spread("decode_stay", tabulated["latency_spread"])
    stays["decode_stay_mean"] = stays["decode_stay_mean"] - front
    return columns | waits | stays | _spread("decode_token", tabulated["token_time_spread"])


def _spread(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Columns of a time by statistic and load; what rounding leaves of none is none."""
    values = np.where(np.abs(values) < ROUNDING, 0.0, values)
    return {f"{name}_{statistic}": values[..., i] for i, statistic in enumerate(STATISTICS)}


def by_load(columns: Mapping[str, np.ndarray]) -> dict[str, list[Any]]:
    """Columns as a study states them: a number, or a table by load, for each row."""
    return {
        name: [dict(zip(NODES, row, strict=True)) for row in np.broadcast_to(array, (len(array), len(NODES))).tolist()]
        if array.ndim > 1
        else array.tolist()
        for name, array in columns.items()
    }


def reasons(study: Study, found: xr.Dataset) -> list[str]:
    """Why each design is impossible, in the words of the first constraint that it violates; empty where it is not."""
    told, flags = np.full(study.space.points, "", dtype=object), rows(study, found)
    for name, flag in found.data_vars.items():
        if flag.attrs.get("constraint") == "illegal":
            broken = flags[str(name)] == 0
            told[broken & (told == "")] = flag.attrs["reason"]
    return told.tolist()


def _labels(study: Study) -> list[str]:
    """A label for each design: those of its layout and of all axes that have several."""
    axes = [a for a in study.space.axes if len(a) > 1 or a.name == "parallelism"]
    named = [[_label(axis.name, label) for label in axis.labels] for axis in axes]
    return [" ".join(labels) or "the pool" for labels in product(*named)]


def _label(axis: str, label: Any) -> str:
    """A label of an axis; a number with the name of the axis."""
    return f"{axis} {label:g}" if isinstance(label, int | float | np.number) else label_text(label)
