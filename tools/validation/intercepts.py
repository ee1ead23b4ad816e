"""``python -m tools.validation.intercepts [FILE ...]``: what a step takes beside its microbatches.

Training steps that differ only in the number of microbatches (and of replicas, whose gradients the intercept has) lie
on a line: its slope is the time of a microbatch, its intercept the optimizer, communication that nothing hides, and
the gap between steps. A pipeline fills and drains once, so its slots count: microbatches + (pp - 1) / chunks. The line
is fitted to relative errors, to measured and to predicted steps alike.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import cast

import numpy as np

from perfgrid.catalog import load_catalog
from perfgrid.printing.console import out
from perfgrid.printing.tables import print_table
from perfgrid.validation.groups import Prediction
from perfgrid.validation.schema import SHIPPED, UNSEEN, Record
from perfgrid.validation.validate import validate

LONGEST = 2.0  # seconds: a few percent of longer steps are as large as their intercept


@dataclass(frozen=True)
class Line:
    """Steps that differ only in the number of microbatches: seconds of a microbatch and beside them."""

    group: str
    software: str
    records: tuple[str, ...]
    slope: float
    intercept: float
    predicted_slope: float
    predicted_intercept: float
    gap: float  # the part of the predicted intercept that is `step_gap`

    @property
    def unexplained(self) -> float:
        """Seconds of the measured intercept beyond the predicted one without its gap."""
        return self.intercept - (self.predicted_intercept - self.gap)


def slots(record: Record) -> float | None:
    """Microbatches of one replica in a step, and those that a pipeline is as long empty; None where not stated."""
    plan, work = record.plan, record.workload
    if record.kind != "training" or record.quantity != "step_time" or plan is None or work is None:
        return None
    if not (work.global_batch and work.microbatch and plan.dp and plan.pp):
        return None
    return work.global_batch / (work.microbatch * plan.dp) + (plan.pp - 1) / (plan.chunks or 1)


def line(counts: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Slope and intercept of seconds over counts with the least relative errors."""
    weights = 1 / np.asarray(seconds)
    terms = np.stack([np.asarray(counts), np.ones(len(counts))], axis=1) * weights[:, None]
    slope, intercept = np.linalg.lstsq(terms, np.ones(len(counts)), rcond=None)[0]
    return float(slope), float(intercept)


def lines(predictions: Iterable[Prediction], longest: float = LONGEST) -> list[Line]:
    """A line for every set of predicted steps below ``longest`` seconds that differ in nothing else."""
    sets = defaultdict[str, dict[float, Prediction]](dict)
    for p in predictions:
        count = slots(p.record)
        if p.predicted is not None and count is not None and p.record.value < longest:
            alike = p.record.model_copy(
                update={
                    "id": "", "value": 1.0, "reported": None, "derivation": None, "certainty": None, "note": "",
                    "source": None, "share": None, "assumed": [], "devices": None,
                    "plan": p.record.plan and p.record.plan.model_copy(update={"dp": None, "zero_size": None}),
                    "workload": p.record.workload and p.record.workload.model_copy(update={"global_batch": None}),
                }
            )  # fmt: skip
            sets[repr(alike)].setdefault(count, p)
    catalog, found = load_catalog(), []
    for members in sets.values():
        if len(members) > 1:
            rows = list(members.values())
            measured = line(list(members), [p.record.value for p in rows])
            predicted = line(list(members), [p.predicted or 0.0 for p in rows])
            gap = float(cast(float, catalog.entry("software", rows[0].software).values["step_gap"]))
            ids = tuple(p.record.id for p in rows)
            found.append(Line(rows[0].record.group, rows[0].software, ids, *measured, *predicted, gap))
    return found


def show(found: Sequence[Line]) -> None:
    """One row per source and stack."""
    groups = defaultdict[tuple[str, str], list[Line]](list)
    for one in found:
        groups[one.group, one.software].append(one)
    print_table(
        ["records", "stack", "lines", "intercept: measured", "predicted", "of it step_gap", "not explained"],
        [
            [
                group,
                stack,
                str(len(rows)),
                *(
                    f"{median(values):.3f} s"
                    for values in (
                        [r.intercept for r in rows],
                        [r.predicted_intercept for r in rows],
                        [r.gap for r in rows],
                        [r.unexplained for r in rows],
                    )
                ),
            ]
            for (group, stack), rows in sorted(groups.items())
        ],
    )


def main() -> None:
    """Print the lines of record files, or of all shipped records."""
    parser = ArgumentParser(prog="python -m tools.validation.intercepts", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--longest", type=float, default=LONGEST, help="seconds of the longest step that counts")
    given = parser.parse_args()
    found = lines(validate(given.files or [SHIPPED, UNSEEN], bulk=True).predictions, given.longest)
    if not found:
        out.print("no steps differ only in the number of microbatches")
        return
    show(found)
    out.print("medians; not explained: the measured intercept less the predicted one without its step_gap")


if __name__ == "__main__":
    main()
