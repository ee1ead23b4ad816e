"""What a page says of a result beside its numbers: a summary, tables, derivations, assumptions, sources, versions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.analysis.best import best
from perfgrid.analysis.explanation.explain import explain
from perfgrid.analysis.explanation.text import as_data, elasticity_line
from perfgrid.analysis.prediction_intervals import has_interval
from perfgrid.analysis.published_errors import published_errors
from perfgrid.catalog import load_variables
from perfgrid.catalog.reading import from_json, from_toml
from perfgrid.engine.errors import PerfgridError
from perfgrid.pictures.views.make import picture_of, views_of
from perfgrid.pictures.views.subject import Subject
from perfgrid.results.feasibility import violations
from perfgrid.results.provenance import GROUPED, formulas_changed, stated_best, workload_of
from perfgrid.results.schema import STUDY_ATTRIBUTE, stored
from perfgrid.study.study import Study
from perfgrid.text.numbers import UNITS, label_text, number

from .grid import GROUPS, Grid
from .near import Miss, near_misses
from .page_tables import column_of, designs_table, table_of
from .units import about_unit

DEPTH = 3  # levels of a derivation
DERIVED = 2  # best designs that are derived
LIMITS = (
    "Not modelled: network congestion, data loading, distributions of request lengths unless stated. Prices, energies "
    "and future technology are estimates with ranges: trust differences between designs more than absolute values."
)
Formulas = Iterable[Callable[..., Any]]


def content(grid: Grid, name: str, formulas: Formulas = ()) -> dict[str, Any]:
    """What a page shows of a grid in memory beside its view and pictures, as plain data. ``name``: of its file."""
    result, formulas = grid.result, tuple(formulas)
    winners = _winners(grid)
    misses = near_misses(grid, formulas)
    told = _feasibility(result)
    return heading(result, name) | {
        "summary": [*_answer(grid, winners), *told["sentences"]],
        "best": _best_table(grid, winners),
        "bestTitle": "Designs" if winners is None else "Best designs",
        "excluded": told["table"],
        "near": _near_table(grid, misses),
        "derivations": _derivations(grid, winners, misses, formulas),
        "assumptions": _assumptions(result),
        "accuracy": accuracy(result),
        "sources": _sources(result),
        "references": [line for line in str(result.attrs.get("references", "")).splitlines() if line],
        "study": str(result.attrs.get("study", "")),
        "versions": _versions(result, formulas),
    }


def pictures(result: xr.Dataset, formulas: Formulas = (), study: Study | None = None) -> list[dict[str, Any]]:
    """The views of the study that made a result, or good ones where it states none.

    ``study``: where it is at hand, for views that have to evaluate other designs.
    """
    found = []
    try:
        views = views_of(result)
    except PerfgridError:
        return []
    for view in views:
        try:
            what = study if study is not None and view.kind == "tornado" else result
            found.append(asdict(picture_of(what, view, formulas)))
        except PerfgridError as error:
            if view.name in {one.name for one in Subject(result).views}:  # stated, so that it is missed
                found.append({"name": view.name, "title": view.title or view.name, "error": str(error)})
    return found


def heading(result: xr.Dataset, name: str) -> dict[str, Any]:
    """What a page shows at once."""
    units = {unit: about_unit(unit)["units"] for unit in UNITS}
    return {"title": str(result.attrs.get("title") or name), "name": name, "units": units}


def _winners(grid: Grid) -> xr.Dataset | None:
    """The best design of each group, as the study says; None where nothing says what is best."""
    result, stated = grid.result, stated_best(grid.result.attrs)
    objective, least = grid.objective()
    whole = str(result.attrs.get("study_axes", "")).split()
    if set(whole) - set(map(str, result.dims)) or not whole:  # designs that were chosen already
        return None
    if stated is None and not (workload_of(result) == "training" and objective == "step_time"):
        return None
    at = {axis: grid.labels(axis)[row].item() for axis, row in grid.held().items() if grid.result.sizes[axis] > 1}
    over = grid.searched()
    at = {a: v for a, v in at.items() if a not in over and (a in (stated.at if stated else {}) or a in grid.scaled())}
    ends = (objective, None) if least else (None, objective)
    for wanted in (True, False):
        try:
            return best(result, over, *ends, at=at, intervals=wanted and has_interval(result, objective))
        except PerfgridError:
            continue
    return None


def _best_table(grid: Grid, winners: xr.Dataset | None) -> dict[str, Any] | None:
    if winners is None:
        objective, _ = grid.objective()
        return designs_table(grid, grid.result, (objective,)) if objective else None
    return designs_table(grid, winners, (grid.objective()[0],))


def _answer(grid: Grid, winners: xr.Dataset | None) -> list[str]:
    """The best design of all in words."""
    if winners is None or not bool(winners["found"].any()):
        return []
    objective, least = grid.objective()
    score = winners[objective].where(winners["found"])
    here = (score if least else -score).argmin(...) if score.ndim else {}
    winner = winners.isel({str(d): int(i) for d, i in dict(here).items()})  # type: ignore[arg-type]
    unit = str(winner[objective].attrs.get("units", "1"))
    text = f"{'Least' if least else 'Largest'} {objective}: {number(winner[objective].item(), unit)}"
    if (interval := f"{objective}_interval") in winner and np.isfinite(winner[interval].values).all():
        low, high = (number(float(v), unit) for v in winner[interval].values)
        text += f" (90 of 100 measurements are expected between {low} and {high})"
    held = [a for a in grid.axes if a in winner.coords and not winner[a].ndim]
    labels = [f"{a} {label_text(winner[a].item(), str(winner[a].attrs.get('units', '1')))}" for a in held]
    return [f"{text}, for {', '.join(labels)}."]


def _feasibility(result: xr.Dataset) -> dict[str, Any]:
    """How many designs are feasible in words, and what forbids the others as a table."""
    found = violations(result)
    possible = found.points - found.infeasible
    sentences = [f"{possible:,} of {found.points:,} designs are feasible ({possible / max(1, found.points):.0%})."]
    rows = [
        {"designs": v.points, "share": f"{v.points / found.points:.1%}", "reason": v.reason, "constraint": v.name}
        for v in found.violations
    ]
    return {"sentences": sentences, "table": table_of(rows) if rows else None}


def _near_table(grid: Grid, misses: list[Miss]) -> dict[str, Any] | None:
    if not misses:
        return None
    objective, _ = grid.objective()
    unit = str(grid.result.variables[objective].attrs.get("units", "1"))
    labels = {a: [str(grid.labels(a)[m.rows[a]]) for m in misses] for a in grid.axes if grid.result.sizes[a] > 1}
    labels = {a: texts for a, texts in labels.items() if a in GROUPS or len(set(texts)) > 1}
    grouped = str(grid.result.attrs.get(GROUPED, ""))  # clusters of other sizes are no rivals either
    if (
        grouped in grid.result.coords
        and grouped not in labels
        and (axis := next(iter(grid.result[grouped].dims), None))
    ):
        labels = {grouped: [str(grid.result[grouped].values[m.rows[str(axis)]]) for m in misses]} | labels
    columns = [
        *(column_of(a, texts) for a, texts in labels.items() if a in (*GROUPS, grouped)),
        column_of(objective, [m.objective for m in misses], unit),
        column_of("than the best", [f"{m.gain:+.1%}" if np.isfinite(m.gain) else "none fits" for m in misses]),
        column_of("has", [f"{m.sides[0]} {number(m.value, m.unit)}" for m in misses]),
        column_of("limit", [f"{m.sides[1]} {number(m.limit, m.unit)}" for m in misses]),
        *(column_of(a, texts) for a, texts in labels.items() if a not in (*GROUPS, grouped)),
        column_of("reason", [m.reason for m in misses]),
    ]
    return {"columns": columns, "designs": [m.rows for m in misses]}


def _derivations(
    grid: Grid, winners: xr.Dataset | None, misses: list[Miss], formulas: tuple[Callable[..., Any], ...]
) -> list[dict[str, Any]]:
    """The objective of the best designs and of the nearest miss, taken apart."""
    objective, least = grid.objective()
    points: list[tuple[str, dict[str, int]]] = []
    if winners is not None and bool(winners["found"].any()):
        table = designs_table(grid, winners, (objective,))
        keys = next(c["sorted"] for c in table["columns"] if c["name"] == objective)
        order = sorted(
            (i for i, k in enumerate(keys) if k is not None and table["designs"][i] is not None),
            key=lambda i: keys[i] if least else -keys[i],
        )
        points += [
            ("best design" if n == 0 else f"best design, {n + 1}", table["designs"][i])
            for n, i in enumerate(order[:DERIVED])
        ]
    points += [("nearest miss", misses[0].rows)] if misses else []
    found = []
    for title, rows in points:
        try:
            found.append({"title": title, **derivation(grid, objective, rows, formulas)})
        except PerfgridError as error:
            found.append({"title": title, "error": str(error)})
    return found


def derivation(
    grid: Grid, quantity: str, rows: Mapping[str, int], formulas: Formulas = (), depth: int = DEPTH
) -> dict[str, Any]:
    """One number taken apart (`perfgrid.explain`), as plain data. PerfgridError like it."""
    at = {axis: grid.labels(axis)[row].item() for axis, row in rows.items() if axis in grid.result.coords}
    found = explain(grid.result, quantity, at, formulas)
    data = as_data(found, depth)
    return data | {"quantity": quantity, "elasticities": elasticity_line(data.get("elasticities", {}))}


def _assumptions(result: xr.Dataset) -> list[dict[str, str]]:
    """What the study states of its workload and overrides: name, value with unit, meaning."""
    text = str(result.attrs.get("study", ""))
    try:
        file = from_json(text, finite=False) if text.startswith("{") else from_toml(text)
    except PerfgridError:
        return []
    variables, found = load_variables(), []
    for table in ("workload_parameters", "overrides", "choices"):
        for key, value in file.get(table, {}).items() if isinstance(file.get(table), dict) else ():
            known = variables.get(str(key))
            plain = isinstance(value, (int, float)) and not isinstance(value, bool)
            shown = number(float(value), known.unit if known else "1") if plain else json.dumps(value, default=str)
            meaning = known.meaning if known else "the way that is chosen" if table == "choices" else ""
            found.append({"name": str(key), "value": shown.strip('"'), "meaning": meaning})
    if file.get("where"):
        found.append({"name": "where", "value": str(file["where"]), "meaning": "designs that are considered"})
    return found


def accuracy(result: xr.Dataset) -> dict[str, Any]:
    """How far predictions of this workload are from published measurements, by share of records."""
    shares = published_errors()
    workload, words = workload_of(result), {"blind": "new to the model", "fitted": "used to fit constants"}
    rows = []
    for share, meaning in words.items():
        for models in ("dense models", "mixtures of experts"):
            if (one := shares.get(f"{share}: {workload}: {models}")) is not None and one["n"] >= 5:
                ends = (f"{np.expm1(one[q]):.0%}" for q in ("median", "p90"))
                rows.append(
                    {"records": meaning, "models": models, "n": one["n"]}
                    | dict(zip(("half within", "nine of ten within"), ends, strict=True))
                )
    return {"table": table_of(rows) if rows else None, "note": LIMITS}


def _sources(result: xr.Dataset) -> list[dict[str, str]]:
    """The citations behind catalog entries: entry, quantities, citation."""
    if STUDY_ATTRIBUTE not in result.attrs:
        return []
    found: dict[tuple[str, str], list[str]] = {}
    for table, entries in stored(result.attrs, STUDY_ATTRIBUTE)["sources"].items():
        for entry, cited in entries.items():
            for quantity, citation in cited.items():
                found.setdefault((f"{table} {entry}", citation), []).append(quantity)
    return [{"entry": e, "quantities": ", ".join(q), "source": c} for (e, c), q in found.items()]


def _versions(result: xr.Dataset, formulas: Formulas) -> list[str]:
    lines = [str(result.attrs.get(key, "")) for key in ("source", "history")]
    lines.append(f"page written by perfgrid {version('perfgrid')}")
    if formulas_changed(result, formulas):
        lines.append("derivations use other formulas than those that evaluated the result")
    return [line for line in lines if line]
