"""``python -m tools.validation.memory_errors``: how far memory of training steps is off, by kind of stack.

The evidence: peaks of the shipped records, of trainer_moments.toml, trainer_reports.jsonl and of open public logs. The
error of a kind covers 90 % of the records of a source (`scatter.sufficient`); a kind with a single source has at least
the median of those with several. Each source is then left out in turn. Records of parts of the memory (weights and
optimizer state, activations of layers) and blind logs give no error, but are held against the intervals.

The catalog states the errors by hand: ``memory_error`` of FAMILIES.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfgrid.catalog import Catalog, load_catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.formulas.training.error import CENTRAL_90, ONE_SIDED_90
from perfgrid.validation.groups import Prediction
from perfgrid.validation.validate import validate

from .public_trainers import LOGS, said
from .public_trainers import predicted as log_predicted
from .scatter import sufficient
from .trainer_memory import REPORTS, STACKS, cases, measured, predicted

FAMILIES = ("megatron-lm", "torchtitan", "hf-trainer", "hf-fsdp", "hf-deepspeed")  # kinds of stacks, by their base
WHOLE = ("peak_memory", "allocator_memory")  # of a device; other records count a part of it
BOUND = "bound"  # in the note of a report that says only that a step runs, or does not


@dataclass(frozen=True)
class Row:
    """A measured memory: its source, the kind of stack that ran, ln(predicted / measured)."""

    source: str
    family: str
    log: float
    whole: bool = True  # peak of a device, and no part of it
    blind: bool = False
    shipped: bool = False  # one of perfgrid's records of memory


@dataclass(frozen=True)
class Error:
    """What covers 90 % of the memory of a kind of stack: of ln(predicted / measured), from how many records."""

    rows: int
    sources: int
    reach: float

    @property
    def deviation(self) -> float:
        """The standard deviation of a normal distribution of this reach: ``memory_error``."""
        return self.reach / CENTRAL_90


def family_of(software: str, catalog: Catalog) -> str:
    """The kind of a stack: the nearest entry of FAMILIES that it extends."""
    while software not in FAMILIES:
        software = catalog.entry("software", software).base
    return software


def rows(predictions: Sequence[Prediction]) -> list[Row]:
    """All evidence; ``predictions``: of the shipped records."""
    catalog = load_catalog()
    found = [row for row in _of_records(predictions, catalog) if row is not None]
    for case, values in zip(cases(), predicted(cases()), strict=True):
        family, of = family_of(STACKS[case["method"]], catalog), measured(case)
        found += [Row("measured", family, math.log(values[n] / of[n])) for n in ("peak", "reserved")]
    return found + _of_reports(catalog) + _of_logs(catalog)


def _of_records(predictions: Sequence[Prediction], catalog: Catalog) -> list[Row]:
    memory = [p for p in predictions if p.record.kind == "memory" and p.predicted is not None]
    return [
        Row(p.record.group, family_of(p.software, catalog), math.log(p.ratio or 1.0), whole, False, True)
        for p in memory
        for whole in [p.record.quantity in WHOLE]
    ]


def _of_reports(catalog: Catalog) -> list[Row]:
    """Public reports. What a source leaves open is read in each way there: the nearest reading counts."""
    readings: dict[tuple[str, float], Row] = {}
    for p in validate([REPORTS]).predictions:
        if p.predicted is None or p.record.quantity not in WHOLE or BOUND in p.record.note.rpartition("value is ")[2]:
            continue
        row = Row(p.record.source.title, family_of(p.software, catalog), math.log(p.ratio or 1.0))
        known = readings.setdefault((row.source, p.record.value), row)
        if abs(row.log) < abs(known.log):
            readings[row.source, p.record.value] = row
    return [*readings.values()]


def _of_logs(catalog: Catalog) -> list[Row]:
    """Public logs that an entry of the catalog describes; the source is the repository of the page."""
    found = []
    for record in tomllib.loads(LOGS.read_text(encoding="utf-8"))["trainer"]:
        if (software := said(record)) is None:
            continue
        try:
            log = math.log(log_predicted(record, software) / record["peak_gib"])
        except PerfgridError:
            continue  # counted by public_trainers
        source = "/".join(record["source"].split("/")[:5])
        blind = record["blind"] and not record.get("seen")
        found.append(Row(source, family_of(software, catalog), log, blind=blind))
    return found


def errors(known: Sequence[Row]) -> dict[str, Error]:
    """The error of every kind of stack, from open peaks of whole devices."""
    open_rows = [row for row in known if row.whole and not row.blind]
    own = {}
    for family in FAMILIES:
        of_family = [row for row in open_rows if row.family == family]
        sources = dict.fromkeys(row.source for row in of_family)
        sizes = [np.array([abs(row.log) for row in of_family if row.source == source]) for source in sources]
        own[family] = Error(len(of_family), len(sources), sufficient(sizes) if sizes else 0.0)
    several = [error.reach for error in own.values() if error.sources > 1]
    least = float(np.median(several)) if several else 0.0
    return {
        family: error if error.sources > 1 else Error(error.rows, error.sources, max(error.reach, least))
        for family, error in own.items()
    }


def left_out(known: Sequence[Row]) -> dict[str, dict[str, float]]:
    """How intervals that were made without a source hold its records, by kind of record.

    ``inside``: between both ends; ``fits``: no larger than what a design may take that fits with 90 % probability.
    """
    held: dict[str, list[tuple[bool, bool]]] = {"shipped": [], "peaks": [], "blind": []}
    for source in dict.fromkeys(row.source for row in known):
        without = errors([row for row in known if row.source != source])
        for row in (row for row in known if row.source == source):
            deviation = without[row.family].deviation
            verdict = (abs(row.log) <= CENTRAL_90 * deviation, -row.log <= ONE_SIDED_90 * deviation)
            kinds = {"shipped": row.shipped, "peaks": row.whole and not row.blind, "blind": row.blind}
            for kind in (name for name, is_one in kinds.items() if is_one):
                held[kind].append(verdict)
    return {
        kind: {"n": len(of), **dict(zip(("inside", "fits"), np.mean(of, axis=0).tolist(), strict=True))}
        for kind, of in held.items()
        if of
    }


def summary(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Errors by kind of stack and how they hold what they were not made from, as plain data."""
    known = rows(predictions)
    stated = {
        family: {"n": error.rows, "sources": error.sources, "memory_error": error.deviation}
        for family, error in errors(known).items()
    }
    return {"errors": stated, "left_out": left_out(known)}


def show(found: Mapping[str, Any]) -> None:
    """Print both."""
    for family, error in found["errors"].items():
        evidence = f"{error['n']:3} peaks, sources: {error['sources']}"
        print(f"{family:14} {evidence}, memory_error {error['memory_error']:.3f}")
    for kind, held in found["left_out"].items():
        print(f"sources left out, {kind:8} {held['n']:3}: inside {held['inside']:.2f}, fits {held['fits']:.2f}")


if __name__ == "__main__":
    show(summary(validate().predictions))
