"""Scatter of measured steps about predictions beyond the ranges of the catalog.

For each record there is a smallest scatter with which its interval covers the measurement. The scatter of a software
stack covers 90 % of the records of a source (split conformal prediction, with the conformal n + 1 correction,
angelopoulos2023), averaged over its sources with equal weight (dunn2023twolayer). Errors of stacks that were calibrated
on several sources are those with the record's own source held out.

A stack with a single source has at least the median scatter of stacks with several, also between two of its records if
there are fewer than FEW.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from perfgrid.analysis.prediction_intervals import Interval, between, deviation, tie_margin
from perfgrid.formulas.training.error import CENTRAL_90
from perfgrid.validation.groups import PARTS, Prediction, part_of

from .dependent import unit_of
from .weights import equal_weights, weighted_quantile

EXPERTS = PARTS[1]
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

    @cached_property
    def margin(self) -> float:
        """The tie margin of the two."""
        return tie_margin(*self.intervals)


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


def expert_error(predictions: Sequence[Prediction], calibrations: Mapping[str, Mapping[str, Any]]) -> float:
    """The scatter beyond the assumptions of the steps of mixtures of experts, on all stacks together.

    It covers SHARE of these steps; sources weigh equally.
    """
    rows = [p for known in _by_software(predictions).values() for p in known if part_of(p.record) == EXPERTS]
    wanted = asked(errors(rows, calibrations), [p.interval for p in rows if p.interval is not None])
    return covering(wanted, [p.record.group for p in rows])


def covering(wanted: np.ndarray, sources: Sequence[str]) -> float:
    """The scatter that covers SHARE of some rows, sources weighing equally; 0 without rows."""
    return weighted_quantile(wanted, equal_weights(sources), SHARE) if len(wanted) else 0.0


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


@dataclass(frozen=True)
class LeftOutIntervals:
    """How intervals that were made without a source hold its measurements; logarithms, sources weigh equally."""

    sources: int
    rows: int
    medians_inside: float  # share of the sources whose median error lies inside
    inside: float  # share of the rows
    width: float  # of ln y between the ends
    score: float  # interval score: width, and 2/0.1 of the distance of measurements outside (gneiting2007scoring)
    by_source: Mapping[str, tuple[int, float]]  # rows of a source, and the share of them inside


@dataclass(frozen=True)
class _Row:
    """A predicted step with ln(predicted / measured), and the scatter that its interval needs."""

    step: Prediction
    log: float
    wanted: float

    @property
    def source(self) -> str:
        """The source of the record."""
        return self.step.record.group

    @property
    def mixture(self) -> bool:
        """Whether the model is a mixture of experts."""
        return part_of(self.step.record) == EXPERTS


def left_out_intervals(
    predictions: Sequence[Prediction], calibrations: Mapping[str, Mapping[str, Any]]
) -> LeftOutIntervals:
    """Intervals of every source by the scatter of other units of its stack, as `scatters` has it of all units.

    A stack with fewer than two other sources takes at least the median of stacks with several. Only records that are
    not blind give a scatter. Mixtures of experts have at least that of other such sources.
    """
    rows = []
    for steps in _by_software(predictions).values():
        logs = errors(steps, calibrations)
        wanted = asked(logs, [p.interval for p in steps if p.interval is not None])
        rows += [_Row(p, float(log), float(u)) for p, log, u in zip(steps, logs, wanted, strict=True)]
    found = []
    for source in dict.fromkeys(row.source for row in rows):
        own = [row for row in rows if row.source == source]
        units = {unit_of(row.step.record) for row in own}
        known = [r for r in rows if r.step.record.share != "blind" and unit_of(r.step.record) not in units]
        known = [row for row in known if row.source != source]
        by_stack = {name: [r for r in known if r.step.software == name] for name in {r.step.software for r in known}}
        usual = _usual(by_stack.values())
        mixtures = [row for row in known if row.mixture]
        of_experts = covering(np.array([r.wanted for r in mixtures]), [r.source for r in mixtures])
        for row in own:
            wanted = _wanted(by_stack.get(row.step.software, ()))
            scatter = max(sufficient(wanted) if wanted else 0.0, usual if len(wanted) < 2 else 0.0)
            found.append((source, *_held(row, max(scatter, of_experts) if row.mixture else scatter)))
    return _summed(found)


def _usual(stacks: Iterable[Sequence[_Row]]) -> float:
    """The median scatter of stacks with several sources."""
    scatters = [sufficient(_wanted(rows)) for rows in stacks if len({row.source for row in rows}) > 1]
    return float(np.median(scatters)) if scatters else 0.0


def _wanted(rows: Sequence[_Row]) -> list[np.ndarray]:
    """The scatters that rows need, apart by source."""
    sources = dict.fromkeys(row.source for row in rows)
    return [np.array([row.wanted for row in rows if row.source == source]) for source in sources]


def _held(row: _Row, scatter: float) -> tuple[float, float, float, float]:
    """ln(measured / predicted) of a row, the ends of its interval, and its score."""
    known = row.step.interval
    assert known is not None
    low, high = (
        side * CENTRAL_90 * float(deviation(known.shifts, known.correlations, side, scatter)) for side in (-1, 1)
    )
    outside = max(low + row.log, 0.0) + max(-row.log - high, 0.0)
    return -row.log, low, high, high - low + 2 / (1 - SHARE) * outside


def _summed(rows: Sequence[tuple[str, float, float, float, float]]) -> LeftOutIntervals:
    of_source: dict[str, list[list[float]]] = defaultdict(list)
    for source, *row in rows:
        of_source[source].append(row)
    medians, inside, widths, scores = [], [], [], []
    for held in of_source.values():
        log, low, high, score = np.array(held).T
        middle_row = np.argsort(log)[len(log) // 2]
        medians.append(low[middle_row] <= log[middle_row] <= high[middle_row])
        inside.append(np.mean((low <= log) & (log <= high)))
        widths.append(np.median(high - low))
        scores.append(np.mean(score))
    return LeftOutIntervals(
        sources=len(of_source),
        rows=len(rows),
        medians_inside=float(np.mean(medians)),
        inside=float(np.mean(inside)),
        width=float(np.median(widths)),
        score=float(np.mean(scores)),
        by_source={
            source: (len(held), float(share)) for (source, held), share in zip(of_source.items(), inside, strict=True)
        },
    )
