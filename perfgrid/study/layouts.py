"""The axis ``parallelism``: the layouts tp x cp x pp x dp of every cluster size."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from perfgrid.catalog import Variable, convert
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.grid.space import Axis
from perfgrid.formulas.parallelism.groups import etp as expert_split

from .values import check_keys, check_no_repeats


def with_split_experts(axes: Sequence[Axis], constants: Mapping[str, Any]) -> list[Axis]:
    """Axes on which ``etp`` follows from ``tp`` and ``ep`` where nothing states it; elsewhere a formula computes it."""
    stated = {name for axis in axes for name in axis.columns}
    found = []
    for axis in axes:
        columns = {name: axis.columns.get(name, constants.get(name)) for name in ("tp", "ep")}
        alone = "tp" in axis.columns and ("ep" in axis.columns or "ep" not in stated)
        if alone and "etp" not in stated and "etp" not in constants:
            split = np.broadcast_to(expert_split(*(np.asarray(v, float) for v in columns.values())), len(axis))
            axis = replace(axis, columns={**axis.columns, "etp": split.astype(np.int64)})
        found.append(axis)
    return found


def parallelism_axis(spec: Any, place: str, variables: Mapping[str, Variable]) -> Axis:
    """Every layout of every cluster size; tp and pp default to all divisors, etp to tp / ep, the other degrees to 1.

    Those of tp x cp x dp x pp = devices, for whose experts etp x ep divides tp x cp x dp.
    """
    legal = ("devices", "tp", "cp", "pp", "dp", "ep", "etp", "chunks")
    if not isinstance(spec, dict):
        raise PerfgridError(f"{place}: needs a table with devices, tp, pp, found {spec!r}")
    check_keys(spec, legal, place)
    if "devices" not in spec:
        raise PerfgridError(f"{place}: states no devices: axes.parallelism.devices are the cluster sizes")
    lists: dict[str, list[int]] = {}
    for key in spec:
        values = spec[key] if isinstance(spec[key], list) else [spec[key]]
        converted = [convert(variables[key], v, f"{place}.{key}") for v in values]
        lists[key] = [int(v) for v in converted if isinstance(v, float)]
        check_no_repeats(lists[key], f"{place}.{key}")
    rows = []
    for devices in lists["devices"]:
        small = [d for d in range(1, int(devices**0.5) + 1) if devices % d == 0]
        divisors = sorted({*small, *(devices // d for d in small)})
        degrees = (lists.get("tp", divisors), lists.get("pp", divisors))
        optional = (lists.get(key, [1]) for key in ("cp", "ep", "chunks"))
        for tp, pp, cp, ep, chunks, split in itertools.product(*degrees, *optional, lists.get("etp", [0])):
            etp = split or int(expert_split(tp, ep))
            dp, rest = divmod(devices, tp * cp * pp)
            if rest or dp == 0 or ("dp" in lists and dp not in lists["dp"]) or (chunks > 1 and pp == 1):
                continue
            if tp * cp * dp % (etp * ep) == 0:
                rows.append((devices, tp, cp, pp, dp, ep, etp, chunks))
        if not any(r[0] == devices for r in rows):
            raise PerfgridError(
                f"{place}: a cluster of {devices} devices has no layout of the given lists with "
                "tp * cp * dp * pp = devices and etp * ep a divisor of tp * cp * dp"
            )
    columns = {k: np.array(v) for k, v in zip(legal, zip(*rows, strict=True), strict=True)}
    shown = tuple(k for k in legal if k in ("devices", "tp", "pp", "dp") or k in lists)
    parts = [(k, "v" if k == "chunks" else k) for k in shown[1:]]
    labels = [".".join(f"{short}{row[legal.index(key)]}" for key, short in parts) for row in rows]
    return Axis("parallelism", np.array(labels), {k: columns[k] for k in shown}, {}, shown)
