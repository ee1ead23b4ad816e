"""Predictions beside their records, and errors by source, kernel version and kind."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from perfgrid.analysis.prediction_intervals import Interval

from .baseline import kind_of
from .metrics import Error, error_of
from .mixers import mixes
from .schema import Record

KINDS = ("training", "inference", "kernel", "mixer", "collective", "memory")  # in the order of the report
PARTS = ("dense models", "mixtures of experts", "hybrid models")


@dataclass(frozen=True)
class Prediction:
    """One record and its prediction."""

    record: Record
    reasons: tuple[str, ...] = ()  # why it is not predicted; empty if predicted
    predicted: float | None = None
    baseline: float | None = None  # work times one constant per device and precision
    work: float = 0.0  # multiplied by the constant of the baseline
    done: float = 1.0  # work of one device in the predicted time: tokens, FLOPs
    largest_part: str = ""  # of the predicted time or memory
    largest_part_share: float | None = None
    fits: bool | None = None  # whether the design fits the device memory by the formulas
    label: str = ""  # its row in the study
    fitted: tuple[str, ...] = ()  # constants of its software that were fitted to step times
    software: str = ""
    interval: Interval | None = None  # in which 90 of 100 measurements are expected
    tuned: Mapping[str, int] = field(default_factory=dict)  # open fields, taken as those of the fastest design

    @property
    def ends(self) -> tuple[float, float] | None:
        """Ends of the interval; None without an interval or a prediction."""
        return None if self.interval is None or self.predicted is None else (self.interval.low, self.interval.high)

    @property
    def covered(self) -> bool | None:
        """Whether the measurement lies within the interval; None without an interval."""
        return None if self.ends is None else self.ends[0] <= self.record.value <= self.ends[1]

    @property
    def ratio(self) -> float | None:
        """Predicted over measured."""
        return None if self.predicted is None else self.predicted / self.record.value

    def stated(self) -> dict[str, Any]:
        """The comparison as plain data."""
        names = {"id": self.record.id, "quantity": self.record.quantity, "measured": self.record.value}
        largest = {"largest_part": self.largest_part, "largest_part_share": self.largest_part_share}
        return {**names, "predicted": self.predicted, "ends": self.ends, **largest, "fits": self.fits}


@dataclass(frozen=True)
class Group:
    """The error of one source, or of all rows of a kind."""

    name: str
    kind: str
    records: int
    error: Error
    baseline: Error
    baseline_constants: int
    over_memory: int  # rows that ran, but exceed the device memory by the formulas
    covered: float | None = None  # share of the measurements within the stated intervals
    reach: float | None = None  # median of ln(upper end / prediction)
    calibrated_constants: int = 0  # of the software of these rows, shared with other groups

    def stated(self) -> dict[str, Any]:
        """The errors as plain data."""
        own, baseline = asdict(self.error), asdict(self.baseline)
        del own["rows"], baseline["rows"]
        counts = {"kind": self.kind, "n": self.records, "predicted": self.error.rows}
        if self.kind == "training":
            counts["calibrated_constants"] = self.calibrated_constants
        counts |= {"over_memory": self.over_memory, "covered": self.covered, "reach": self.reach}
        return {**counts, **own, "baseline": {**baseline, "constants_fitted_to_these_rows": self.baseline_constants}}


def by_source(predictions: Iterable[Prediction]) -> dict[str, list[Prediction]]:
    """Rows by source; a source with several kinds of records has a group for each."""
    # kinds that are not predicted come last
    rows = sorted(predictions, key=lambda p: ((*KINDS, p.record.kind).index(p.record.kind), p.record.group))
    kinds = defaultdict[str, set[str]](set)
    for p in rows:
        kinds[p.record.group].add(p.record.kind)
    members: dict[str, list[Prediction]] = {}
    for p in rows:
        record = p.record
        beside = len(kinds[record.group]) > 1 and record.kind != "training"
        members.setdefault(f"{record.group} {record.kind}" if beside else record.group, []).append(p)
    return members


def by_version(predictions: Iterable[Prediction]) -> dict[str, list[Prediction]]:
    """Kernels by version, for sources with several versions."""
    members: dict[str, list[Prediction]] = {}
    for p in predictions:
        if p.record.kernel is not None and p.record.kernel.version is not None:
            members.setdefault(f"{p.record.group} {p.record.kernel.version}", []).append(p)
    groups = Counter(rows[0].record.group for rows in members.values())
    return {name: rows for name, rows in members.items() if groups[rows[0].record.group] > 1}


def kind_of_record(record: Record) -> str:
    """The kind under which errors are stated: kernels of sequence mixers are apart from products and attention."""
    return "mixer" if mixes(record) else record.kind


def part_of(record: Record) -> str:
    """The kind of a record's model: one of PARTS."""
    model = record.model
    if model is not None and model.mixer is not None:
        return "hybrid models"
    return "dense models" if model is None or model.moe is None else "mixtures of experts"


def by_kind(predictions: Collection[Prediction]) -> dict[str, list[Prediction]]:
    """Rows by kind, and by dense models, mixtures of experts and hybrids."""
    members = {}
    for kind in KINDS:
        rows = members[f"all {kind}"] = [p for p in predictions if kind_of_record(p.record) == kind]
        parts = {part: [p for p in rows if part_of(p.record) == part] for part in PARTS}
        if kind in ("training", "inference") and sum(map(bool, parts.values())) > 1:
            members |= {f"{kind}: {part}": own for part, own in parts.items()}
    return {name: rows for name, rows in members.items() if rows}


def group_of(name: str, rows: list[Prediction]) -> Group:
    """The errors of some rows of one kind."""
    found = [p for p in rows if p.predicted is not None]
    measured = [p.record.value for p in found]
    rates = [p.done for p in found] if rows[0].record.kind != "memory" else None
    errors = [
        error_of([v for v in values if v is not None], measured, rates)
        for values in ([p.predicted for p in found], [p.baseline for p in found])
    ]
    constants = len({kind_of(p.record) for p in found})
    over = sum(p.fits is False for p in found)
    fitted = {constant for p in found for constant in p.fitted}
    inside = [p.covered for p in found if p.covered is not None]
    covered = float(np.mean(inside)) if inside else None
    reaches = [np.log(p.ends[1] / p.predicted) for p in found if p.ends is not None and p.predicted is not None]
    reach = float(np.median(reaches)) if reaches else None
    own, base = errors
    return Group(name, rows[0].record.kind, len(rows), own, base, constants, over, covered, reach, len(fitted))
