"""Measure the evaluator: ``python -m benchmarks [SECTION ...]``; every figure comes from this run.

Rates are per CPU-second (user + system), which other work on the machine disturbs least. Sections:

outputs     values and points by number of outputs (1, 3, 20, all) and precision, part of the store bandwidth
sizes       the same of 20 outputs from 10^5 to 10^9 points
search      best designs from 10^6 to 10^9 points, peak memory; winners against brute force
start       the quickstart as a user runs it, with an empty cache and again
answer      a question with about 10^5 designs as a user asks it, against its imports alone
processes   one process and two at once
streams     bytes written per CPU-second by format, and what an interruption costs
serving     the grid of hybrid models, against ordinary models in their place
percentiles random arrivals with means alone, and with nine percentiles
numpy       plain NumPy broadcasting of the same formulas
collectives best of all collective algorithms
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import ModuleType

import jax

from perfgrid.engine.execution.evaluation import enable_compilation_cache

from . import collectives, evaluate, search, start
from .grids import EXPONENTS, GRIDS


def _streams() -> ModuleType:
    from . import streams  # the only section that needs the extra `stream`

    return streams


ONE: dict[str, Callable[..., dict]] = {  # measured in a process of its own
    "outputs": lambda grid, exponent, *more: evaluate.measure(grid, int(exponent), *more),
    "search": lambda grid, exponent: search.measure(grid, int(exponent)),
    "exact": lambda grid: search.exactness(search.sized(grid, 6)),
    "serving": evaluate.serving,
    "percentiles": evaluate.percentiles,
    "numpy": evaluate.numpy_ratio,
    "collectives": lambda: collectives.measure(1 << 15, 5),
    "written": lambda suffix, exponent: _streams().written(suffix, int(exponent)),
    "resumed": lambda exponent: _streams().resumed(int(exponent)),
}


def measured(section: str, exponents: tuple[int, ...]) -> dict[str, dict]:
    """The figures of one section by title."""
    largest = max(exponents)
    if section == "outputs":
        at = min(7, largest)
        return {
            f"{grid} 10^{at}, outputs: {outputs}, {dtype}": start.alone("outputs", grid, at, outputs, dtype)
            for grid in GRIDS
            for outputs, dtype in [(n, "float32") for n in ("1", "3", "20", "all")] + [("20", "float64")]
        }
    if section == "sizes":
        return {f"{grid} 10^{e}, outputs: 20": start.alone("outputs", grid, e) for grid in GRIDS for e in exponents}
    if section == "search":
        rates = {f"{g} 10^{e}, best": start.alone("search", g, e) for g in GRIDS for e in exponents if e >= 6}
        return rates | {f"{grid} 10^6, best against brute force": start.alone("exact", grid) for grid in GRIDS}
    if section == "start":
        return {f"quickstart, {title}": figures for title, figures in start.quickstart().items()}
    if section == "answer":
        return start.answer()
    if section == "processes":
        return {f"dense 10^7 in {n} at once": start.together("outputs", n, "dense", min(7, largest)) for n in (1, 2)}
    if section == "streams":
        at = min(7, largest)
        rates = {f"dense 10^{at} to {suffix}": start.alone("written", suffix, at) for suffix in _streams().FORMATS}
        return rates | {f"dense 10^{at}, stopped half-way": start.alone("resumed", at)}
    return {section: start.alone(section)}


SECTIONS = (
    "outputs",
    "sizes",
    "search",
    "start",
    "answer",
    "processes",
    "streams",
    "serving",
    "percentiles",
    "numpy",
    "collectives",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", help="what to measure (default: everything)", metavar="SECTION")
    parser.add_argument("--quick", action="store_true", help="nothing above 10^7 points")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there as well")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    enable_compilation_cache()
    if options.one:
        section, *arguments = options.one
        print(json.dumps(ONE[section](*arguments)))
        return
    for section in options.sections:
        if section not in SECTIONS:
            parser.error(f"no section {section!r}; there are {', '.join(SECTIONS)}")
    exponents = tuple(e for e in EXPONENTS if e <= 7) if options.quick else EXPONENTS
    results: dict[str, dict] = {"machine": machine()}
    print(title(results["machine"]))
    for section in options.sections or SECTIONS:
        found = measured(section, exponents)
        results |= found
        for row in table(found):
            print(row, flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


def machine() -> dict:
    """Where and when."""
    return {
        "date": date.today().isoformat(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
    }


def title(figures: dict) -> str:
    """The machine on one line."""
    return ", ".join(f"{name} {readable(value)}" for name, value in figures.items())


COLUMNS = {  # of the table; everything is in the JSON
    "million points/CPU-s": ("points_per_cpu_second", 1e-6),
    "billion values/CPU-s": ("full_grid_values_per_cpu_second", 1e-9),
    "of store bandwidth": ("fraction_of_store_bandwidth", 1.0),
    "million points/s": ("points_per_wall_second", 1e-6),
    "MB of values/CPU-s": ("value_bytes_per_cpu_second", 1e-6),
    "MB stored": ("stored_bytes", 1e-6),
    "peak MB": ("peak_memory", 1e-6),
    "CPU-s": ("cpu_seconds", 1.0),
    "s": ("seconds", 1.0),
    "times imports": ("times_imports", 1.0),
}


def table(found: dict[str, dict]) -> list[str]:
    """The main figures of a section as a table; figures of another kind one by one."""
    shown = [head for head, (name, _) in COLUMNS.items() if any(name in figures for figures in found.values())]
    width = max(map(len, found))
    rows = [" ".join([" " * width, *shown])]
    for name, figures in found.items():
        if not any(COLUMNS[head][0] in figures for head in shown):
            rows.append(f"{name}: " + ", ".join(f"{k} {readable(v)}" for k, v in figures.items()))
            continue
        cells = ((head, figures.get(COLUMNS[head][0]), COLUMNS[head][1]) for head in shown)
        cells = (f"{'' if v is None else f'{v * scale:.3g}':>{len(head)}}" for head, v, scale in cells)
        rows.append(" ".join([f"{name:{width}}", *cells]))
    return rows


def readable(value: object) -> str:
    """A figure of four digits, lists and tables on one line."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return "(" + ", ".join(f"{k} {readable(v)}" for k, v in value.items()) + ")"
    if isinstance(value, list):
        return " .. ".join(readable(v) for v in value)
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    main()
