"""Scatter of measured steps about predictions beyond the ranges of the catalog.

For each record there is a smallest scatter with which its interval covers the measurement. The scatter of a software
stack covers 90 % of the records of a source (split conformal prediction, one record more than there are is counted,
angelopoulos2023), averaged over its sources with equal weight (dunn2023twolayer). Errors of stacks that were calibrated
on several sources are those with the record's own source held out.

A stack with a single source has at least the median scatter of stacks with several, also between two of its records if
there are fewer than FEW.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from perfgrid.analysis.prediction_intervals import Interval, between, deviation
from perfgrid.formulas.training.error import CENTRAL_90

from .groups import Prediction

SHARE = 0.9  # coverage of the intervals
FEW = 10  # records needed to estimate the scatter of a stack


@dataclass(frozen=True)
class Scatter:
    """Deviations of ln(predicted / measured) of the steps of a software stack, over its records."""

    rows: int
    model_error: float  # all of it
    unexplained_error: float  # beyond the assumptions
    ranking_error: float | None  # the same between two records of one source; None where no source has two


@dataclass(frozen=True)
class Pair:
    """Two measured steps of one source."""

    a: Prediction
    b: Prediction
    distance: float  # between their ln(predicted / measured)

    @property
    def intervals(self) -> tuple[Interval, Interval]:
        """The intervals of both predictions."""
        assert self.a.interval is not None
        assert self.b.interval is not None
        return self.a.interval, self.b.interval

    @cached_property
    def left(self) -> float:
        """Deviation of the distance beyond the assumptions that the two do not share."""
        explained = between(*self.intervals, 1 if self.distance < 0 else -1)
        return float(np.sqrt(max((self.distance / CENTRAL_90) ** 2 - explained**2, 0.0)))


def pairs(rows: Sequence[Prediction], logs: np.ndarray) -> Iterator[Pair]:
    """All pairs of predicted steps of one source; ``logs`` are ln(predicted / measured) of the rows."""
    for i, a in enumerate(rows):
        for k in range(i):
            if a.record.group == rows[k].record.group:
                yield Pair(a, rows[k], float(logs[i] - logs[k]))


def scatters(predictions: Sequence[Prediction], calibrations: Mapping[str, Mapping[str, Any]]) -> dict[str, Scatter]:
    """The scatter of every software stack that predicts step times of records."""
    members = _by_software(predictions)
    own = {software: _of(rows, errors(rows, calibrations)) for software, rows in members.items()}
    several = [own[s] for s, rows in members.items() if len({p.record.group for p in rows}) > 1]

    if not several:
        return own
    least = middle(several)

    def of(found: Scatter) -> Scatter:
        ranking = found.ranking_error
        if ranking is not None and found.rows < FEW:
            ranking = max(ranking, least.ranking_error or 0.0)
        return Scatter(
            found.rows,
            max(found.model_error, least.model_error),
            max(found.unexplained_error, least.unexplained_error),
            ranking,
        )

    return {software: found if found in several else of(found) for software, found in own.items()}


def middle(several: Sequence[Scatter]) -> Scatter:
    """The medians of stacks with several sources, for stacks with a single one."""
    rankings = [known.ranking_error for known in several if known.ranking_error is not None]
    model, unexplained = (
        float(np.median([getattr(known, name) for known in several])) for name in ("model_error", "unexplained_error")
    )
    return Scatter(0, model, unexplained, float(np.median(rankings)) if rankings else None)


def _by_software(predictions: Sequence[Prediction]) -> dict[str, list[Prediction]]:
    """The predicted steps of every software stack."""
    members: dict[str, list[Prediction]] = defaultdict(list)
    for p in predictions:
        if p.interval is not None and p.predicted is not None:
            members[p.software].append(p)
    return members


def errors(rows: Sequence[Prediction], calibrations: Mapping[str, Mapping[str, Any]]) -> np.ndarray:
    """ln(predicted / measured), with the own source held out if the stack was calibrated on several."""
    known = {record: log for c in calibrations.values() for record, log in c["unseen_logs"].items()}
    unseen = [known.get(p.record.id) for p in rows]
    return np.array([np.log(p.ratio or 1.0) if u is None else u for p, u in zip(rows, unseen, strict=True)])


def asked(logs: np.ndarray, intervals: Sequence[Interval]) -> np.ndarray:
    """The smallest scatter that covers each record: 0 if its assumptions explain it."""
    explained = [
        deviation(i.shifts, i.correlations, 1 if log < 0 else -1) for log, i in zip(logs, intervals, strict=True)
    ]
    return np.sqrt(np.maximum((logs / CENTRAL_90) ** 2 - np.array(explained) ** 2, 0.0))


def sufficient(by_source: Sequence[np.ndarray]) -> float:
    """The smallest value that covers SHARE of further records of any source.

    The largest of all values if there are too few records.
    """
    ranked = np.unique(np.concatenate(by_source))
    content = [np.searchsorted(np.sort(wanted), ranked, side="right") / (len(wanted) + 1) for wanted in by_source]
    enough = np.mean(content, axis=0) >= SHARE - 1e-9
    return float(ranked[np.argmax(enough) if enough.any() else -1])


def _by_source(values: np.ndarray, rows: Sequence[Prediction]) -> list[np.ndarray]:
    """Values of records, apart by source."""
    sources = np.array([p.record.group for p in rows])
    return [values[sources == source] for source in dict.fromkeys(sources)]


def _of(rows: Sequence[Prediction], logs: np.ndarray) -> Scatter:
    intervals = [p.interval for p in rows if p.interval is not None]
    apart: dict[str, list[float]] = defaultdict(list)
    for pair in pairs(rows, logs):
        apart[pair.a.record.group].append(pair.left / np.sqrt(2))
    ranking = sufficient([np.array(of) for of in apart.values()]) if apart else None
    all_of_it, unexplained = (sufficient(_by_source(v, rows)) for v in (np.abs(logs), asked(logs, intervals)))
    return Scatter(len(rows), all_of_it / CENTRAL_90, unexplained, ranking)


def held_out_coverage(
    predictions: Sequence[Prediction], calibrations: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[int, float]]:
    """By source: rows, and coverage of intervals with the source held out.

    Constants and scatter come from the other sources of the stack; without others, constants stay and the scatter is
    that of stacks with several sources.
    """
    inside: dict[str, list[bool]] = defaultdict(list)
    members = _by_software(predictions)
    logs = {software: errors(rows, calibrations) for software, rows in members.items()}
    several = [_of(rows, logs[s]) for s, rows in members.items() if len({p.record.group for p in rows}) > 1]
    for software, rows in members.items():
        of_rows = asked(logs[software], [p.interval for p in rows if p.interval is not None])
        wanted = _by_source(of_rows, rows)
        for i, source in enumerate(dict.fromkeys(p.record.group for p in rows)):
            others = [*wanted[:i], *wanted[i + 1 :]]
            known = sufficient(others) if others else middle(several).unexplained_error
            inside[source] += [bool(of <= known) for of in wanted[i]]
    return {source: (len(held), float(np.mean(held))) for source, held in inside.items()}
