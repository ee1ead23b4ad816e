"""Which run a store belongs to: study, catalog values, formulas, versions, precision. Differences are named."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

import jax

from perfgrid.engine.execution.regions import Regions
from perfgrid.engine.grid.dataset import formula_hash
from perfgrid.engine.grid.plan import Plan
from perfgrid.study.study import Study

WHOLE_VALUES = 2**20  # what is small and not longer is written at once, before the tiles
SHOWN_ONLY = ("title", "best", "pareto", "catalog")  # keys of a study without effect (the catalog's are compared)


def versions() -> dict[str, str]:
    """What computes here: results of different ones may differ in the last bit."""
    found = {name: version(name) for name in ("perfgrid", "jax", "jaxlib", "numpy")}
    return found | {"backend": jax.default_backend()}


def identity(study: Study, plan: Plan, regions: Regions, dtype: str) -> dict[str, Any]:
    """All that decides the bits of a store but the design space, which is an attribute of its own."""
    content = study.file.model_dump(mode="json", exclude_none=True)
    return {
        "study": {key: value for key, value in content.items() if key not in (*SHOWN_ONLY, "dtype")},
        "dtype": dtype,
        "small_points": plan.small_points,
        "regions": regions.to_json(),
        "variables": list(plan.wanted),
        "tables": [name for name in plan.wanted if _whole(plan, name)],
        "formulas": formula_hash(plan),
        "versions": versions(),
    }


def _whole(plan: Plan, name: str) -> bool:
    """Whether a wanted quantity is written at once rather than tile by tile."""
    return plan.quantities[name].small and math.prod(plan.result_shape(name)) <= WHOLE_VALUES


def seal(found: Mapping[str, Any], space: str) -> str:
    """A hash of an identity and its design space."""
    text = json.dumps({k: v for k, v in found.items() if k != "seal"}, sort_keys=True)
    return hashlib.sha256(f"{text}\n{space}".encode()).hexdigest()


def differences(
    stored: Mapping[str, Any], stored_space: str, mine: Mapping[str, Any], my_space: str, most: int = 4
) -> list[str]:
    """What differs between a store and a run, a phrase each; empty where the run may continue the store."""
    found = [f"key {key} of the study ({a} there, {b} here)" for key, a, b in _unlike(stored["study"], mine["study"])]
    if not found and stored_space != my_space:
        found = _catalog(json.loads(stored_space), json.loads(my_space))
    if stored["dtype"] != mine["dtype"]:
        found.append(f"the precision ({stored['dtype']} there, {mine['dtype']} here)")
    for name in sorted({*stored["versions"], *mine["versions"]}):
        there, here = stored["versions"].get(name, "none"), mine["versions"].get(name, "none")
        if there != here:
            what = "the backend" if name == "backend" else f"the version of {name}"
            found.append(f"{what} ({there} there, {here} here)")
    if stored["formulas"] != mine["formulas"] and not found:
        writer = stored["versions"].get("perfgrid", "of another version")
        found.append(f"the formulas (perfgrid {writer}, hash {stored['formulas']} there, {mine['formulas']} here)")
    return [*found[:most], f"and {len(found) - most} more"] if len(found) > most else found


def _unlike(there: Any, here: Any, key: str = "") -> Iterator[tuple[str, str, str]]:
    """Keys at which two trees of plain data differ, and both values."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for name in dict.fromkeys((*there, *here)):
            yield from _unlike(there.get(name), here.get(name), f"{key}.{name}" if key else name)
    elif there != here:
        yield repr(key), _short(there), _short(here)


def _catalog(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Values of the design space that differ where the study is the same: the catalog said something else."""
    found = [
        f"catalog value {name!r} ({_short(there['constants'].get(name))} there, {_short(value)} here)"
        for name, value in here["constants"].items()
        if there["constants"].get(name) != value
    ]
    for a, b in zip(there["axes"], here["axes"], strict=False):
        for name in dict.fromkeys((*a["columns"], *b["columns"])):
            old, new = a["columns"].get(name), b["columns"].get(name)
            if old == new:
                continue
            if old is None or new is None or len(old) != len(new):
                found.append(f"the rows of catalog value {name!r} along axis {b['name']!r}")
                continue
            row = next(i for i, pair in enumerate(zip(old, new, strict=True)) if pair[0] != pair[1])
            where = f"of {b['name']} {b['labels'][row]}"
            found.append(f"catalog value {name!r} {where} ({_short(old[row])} there, {_short(new[row])} here)")
    return found or ["the catalog content"]


def _short(value: Any, most: int = 60) -> str:
    text = "none" if value is None else json.dumps(value)
    return text if len(text) <= most else text[: most - 3] + "..."
