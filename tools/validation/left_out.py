"""``python -m tools.validation.left_out``: errors of training steps by constants fitted without their unit.

A unit is a source on one cluster with one release of the software (`dependent`). Units with fitted records take
part in the joint fit (`joint`) and are predicted by the fit without them; the others by the catalog. Sources weigh
equally. A row that is not predicted counts as an error of REFUSED.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from perfgrid.catalog import Catalog, load_catalog
from perfgrid.formulas import registry_of
from perfgrid.printing.console import out
from perfgrid.printing.tables import print_table
from perfgrid.results.evaluate import evaluate
from perfgrid.study.study import Study
from perfgrid.validation.baseline import work_of
from perfgrid.validation.calibration import DEFAULTS
from perfgrid.validation.design import Designs, Row, designs
from perfgrid.validation.fastest import WHOLE, column, settled, violated
from perfgrid.validation.groups import part_of
from perfgrid.validation.quantities import FORMULAS
from perfgrid.validation.schema import SHIPPED, UNSEEN, Record, data, read_records
from perfgrid.validation.validate import CALIBRATED

from .dependent import unit_of
from .joint import Fitted, Joint, constants_of, joint_fit, source_weights, without
from .weights import equal_weights, rates_of_others, weighted_quantile

STEPS = Path(__file__).with_name("left_out_steps.txt")  # records of 2026-11-24 and MLPerf Training 3.0 to 5.1
REFUSED = 1.0  # error of a row that is not predicted
WAYS = ("left out", "one fit", "catalog", "constant")  # of predicting a row
SUBSETS: dict[str, Callable[[Record], bool]] = {
    "all": lambda r: True,
    "dense models": lambda r: part_of(r) == "dense models",
    "mixtures of experts": lambda r: part_of(r) == "mixtures of experts",
    "MLPerf LoRA": lambda r: r.group.startswith("mlperf_lora"),
    "steps below 0.5 s": lambda r: r.value < 0.5,
    "hfbench_1.34G": lambda r: r.group == "hfbench_1.34G",
    "hfbench_3.57G": lambda r: r.group == "hfbench_3.57G",
}
PEERS = {"calculon": "Calculon", "llm-analysis": "llm-analysis"}  # of anchors.toml


@dataclass
class Scored:
    """One training step with its errors ln(predicted / measured) by way of predicting it; empty if it is refused."""

    record: Record
    unit: str
    reasons: tuple[str, ...] = ()
    errors: dict[str, float] = field(default_factory=dict)

    def size(self, way: str) -> float:
        """The magnitude of an error."""
        return abs(self.errors[way]) if self.errors else REFUSED


@dataclass(frozen=True)
class LeftOut:
    """All training steps with their errors, and the constants behind them."""

    steps: list[Scored]
    labels: list[str]  # of the constants
    fit: Fitted
    without: dict[str, np.ndarray]  # unit -> constants
    not_left_out: list[str]  # fitted values of the catalog that are not among the constants

    def of(self, subset: str) -> list[Scored]:
        """The rows of a subset."""
        return [s for s in self.steps if SUBSETS[subset](s.record)]

    def table(self) -> list[dict[str, Any]]:
        """Weighted median and 90th percentile of errors by subset and way."""
        rows = []
        for name in SUBSETS:
            steps = self.of(name)
            if not steps:
                continue
            sources = [s.record.group for s in steps]
            counts = {"rows": len(steps), "sources": len(set(sources)), "refused": sum(not s.errors for s in steps)}
            errors = {way: _statistics([s.size(way) for s in steps], sources) for way in WAYS}
            rows.append({"subset": name, **counts, "errors": errors})
        return rows

    def peers(self) -> list[dict[str, Any]]:
        """Medians over sources of the medians of other tools on dense records, and ours of the same records."""
        rows = []
        for name in SUBSETS:
            held = {s.record.id for s in self.of(name)}
            dense: dict[str, list[Scored]] = {}
            for step in self.of("dense models"):
                dense.setdefault(step.record.group, []).append(step)
            whole = {group: steps for group, steps in dense.items() if held >= {s.record.id for s in steps}}
            for key, tool in PEERS.items():
                known = {g: m for g, m in data("anchors")[key].items() if g in whole}
                if known:
                    own = {way: [np.median([s.size(way) for s in whole[g]]) for g in known] for way in WAYS}
                    ours = {way: float(np.median(medians)) for way, medians in own.items()}
                    theirs = float(np.median(list(known.values())))
                    rows.append({"subset": name, "tool": tool, "sources": len(known), "median": theirs, "ours": ours})
        return rows

    def as_json(self) -> dict[str, Any]:
        """The tables, the constants and every row as plain data."""
        values = {unit: self._named(point) for unit, point in self.without.items()}
        steps = [
            {"id": s.record.id, "group": s.record.group, "unit": s.unit, "share": s.record.share}
            | {"measured": s.record.value, "reasons": list(s.reasons), "errors": s.errors}
            for s in self.steps
        ]
        deviations = dict(zip(self.labels, self.fit.deviations.tolist(), strict=True))
        fit = {"values": self._named(self.fit.point), "deviations": deviations}
        return {"table": self.table(), "peers": self.peers(), "fit": fit, "without": values, "steps": steps}

    def _named(self, point: np.ndarray) -> dict[str, float]:
        return dict(zip(self.labels, np.exp(point).tolist(), strict=True))


def left_out(
    records: Sequence[Record], catalog: Catalog | None = None, table: Mapping[str, Any] | None = None
) -> LeftOut:
    """Errors of training steps by constants fitted without their unit; ``table`` stands for joint.toml."""
    catalog = catalog or load_catalog()
    scored = {r.id: Scored(r, unit_of(r)) for r in records if _is_step(r)}
    mapped = settled(designs([s.record for s in scored.values()], catalog, registry_of("training")))
    for identity, reasons in mapped.unpredicted.items():
        scored[identity].reasons = reasons
    rows, errors, work = _by_catalog(mapped, scored)
    sources, units = [row.record.group for row in rows], [scored[row.record.id].unit for row in rows]
    constants = constants_of(catalog, table)
    model = Joint(mapped.catalog, rows, tuple(constants.values()))
    keep = np.array([row.record.share == "fitted" for row in rows])
    fit, fitted = joint_fit(model, source_weights(sources, keep), keep), np.flatnonzero(keep)
    points = without(model.of(keep), fit, [sources[i] for i in fitted], [units[i] for i in fitted])
    found = {way: errors.copy() for way in WAYS}
    affected = np.flatnonzero(model.applies.any(axis=1))
    taking_part = np.array([i for i in affected if units[i] in points], int)
    own = np.array([points[units[i]] for i in taking_part])
    logs = model.pairs(
        np.concatenate([taking_part, affected]), np.vstack([own, np.tile(fit.point, (len(affected), 1))])
    )
    found["left out"][taking_part], found["one fit"][affected] = np.split(logs, [len(taking_part)])
    found["constant"] = _by_constant(mapped.catalog, rows, work, units)
    for i, row in enumerate(rows):
        scored[row.record.id].errors = {way: float(found[way][i]) for way in WAYS}
    return LeftOut(list(scored.values()), list(constants), fit, points, _not_left_out(model, keep))


def _is_step(record: Record) -> bool:
    return record.kind == "training" and record.quantity == "step_time" and record.tier == "core"


def frozen() -> set[str]:
    """Identifiers of the steps that the headline is made of: the list does not change when records are added."""
    return set(STEPS.read_text(encoding="utf-8").split())


def _by_catalog(mapped: Designs, scored: Mapping[str, Scored]) -> tuple[list[Row], np.ndarray, np.ndarray]:
    """Rows that are legal, their errors at the values of the catalog, and the work of the trivial baseline."""
    study = Study.make(
        mapped.catalog,
        FORMULAS,
        title="training steps",
        outputs=["step_time", "hardware_flops_per_token"],
        dtype="float64",
        axes={"row": mapped.axis()},
    )
    result = evaluate(study, small_points=WHOLE)
    steps, flops = (column(result[n], len(mapped.rows)) for n in ("step_time", "hardware_flops_per_token"))
    rows, errors, work = [], [], []
    for i, (row, broken) in enumerate(zip(mapped.rows, violated(result, mapped.rows), strict=True)):
        if broken:
            scored[row.record.id].reasons = tuple(f"not modelled: {reason}" for reason in broken.values())
        else:
            rows.append(row)
            errors.append(float(np.log(steps[i] / row.record.value)))
            work.append(work_of(row, {"hardware_flops_per_token": flops[i]}))
    return rows, np.array(errors), np.array(work)


def _by_constant(catalog: Catalog, rows: Sequence[Row], work: np.ndarray, units: Sequence[str]) -> np.ndarray:
    """Errors of one rate per device and precision, taken from other units."""
    measured = [row.record.value for row in rows]
    kinds = [(row.columns["device"], row.columns["precision"]) for row in rows]
    peaks = [cast(float, catalog.entry("device", d).values[f"peak_{precision}_rate"]) for d, precision in kinds]
    sources = [row.record.group for row in rows]
    return np.log(np.array(rates_of_others(work.tolist(), measured, kinds, peaks, sources, units)) / measured)


def _not_left_out(model: Joint, chosen: np.ndarray) -> list[str]:
    """Fitted values of the catalog that rows of the fit take and the joint fit does not replace."""
    found = set()
    for i in np.flatnonzero(chosen):
        row = model.rows[i]
        own = {c.name for c, applies in zip(model.constants, model.applies[i], strict=True) if applies}
        for table in DEFAULTS:
            entry = model.catalog.entry(table, row.columns[table])
            calibrated = {name for name, d in entry.details.items() if d.confidence == CALIBRATED}
            found |= {f"{entry.name}.{name}" for name in calibrated - own}
    return sorted(found)


def _statistics(sizes: Sequence[float], sources: Sequence[str]) -> dict[str, float]:
    weights = equal_weights(sources)
    return {name: weighted_quantile(np.array(sizes), weights, q) for name, q in (("median", 0.5), ("p90", 0.9))}


def show(found: LeftOut) -> None:
    """Print the tables."""
    out.print("training steps: |ln(predicted / measured)|; sources weigh equally; a refused row counts as 1")
    out.print(
        "left out: constants fitted without the row's unit; one fit: to all units; constant: one rate of other units"
    )
    headers = ("rows of", "rows", "sources", "refused", *(f"{way}: {s}" for way in WAYS for s in ("median", "p90")))
    lines = []
    for row in found.table():
        errors = [f"{row['errors'][way][s]:.3f}" for way in WAYS for s in ("median", "p90")]
        lines.append([row["subset"], *(str(row[n]) for n in ("rows", "sources", "refused")), *errors])
    print_table(headers, lines, right=headers[1:])
    out.print()
    out.print("other tools: median of the median errors of their sources, on dense records")
    headers = ("rows of", "tool", "sources", "its median", *(f"perfgrid, {way}" for way in WAYS))
    lines = [
        [p["subset"], p["tool"], str(p["sources"]), f"{p['median']:.3f}", *(f"{p['ours'][way]:.3f}" for way in WAYS)]
        for p in found.peers()
    ]
    print_table(headers, lines, right=headers[2:])
    out.print()
    out.print(f"constants, without each of {len(found.without)} units in turn")
    headers = ("constant", "prior", "fitted", "deviation of ln", "least", "most")
    fit, points = found.fit, np.exp(list(found.without.values()))
    lines = []
    for k, (label, constant) in enumerate(zip(found.labels, fit.constants, strict=True)):
        values = (constant.start, np.exp(fit.point[k]), fit.deviations[k], points[:, k].min(), points[:, k].max())
        lines.append([label, *(f"{v:.3g}" for v in values)])
    print_table(headers, lines, right=headers[1:])
    for name in found.not_left_out:
        out.print(f"fitted in the catalog, but not left out: {name}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit, leave out each unit in turn, and print the errors."""
    parser = ArgumentParser(prog="python -m tools.validation.left_out", description="Errors of left-out units.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write tables, constants and rows")
    options = parser.parse_args(arguments)
    found = left_out([r for r in read_records([SHIPPED, UNSEEN])[0] if r.id in frozen()])
    show(found)
    if options.json:
        options.json.write_text(json.dumps(found.as_json(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
