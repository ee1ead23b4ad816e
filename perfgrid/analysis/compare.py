"""Why one design is faster than another: the time of a step or of a request of both, part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.analysis.explanation.derivation import violated_at
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.execution.evaluation import Progress
from perfgrid.engine.grid.replay import index_of, point_of, replay_point
from perfgrid.formulas import BREAKDOWN
from perfgrid.formulas.serving.shares import QUANTITIES, request_parts
from perfgrid.results.provenance import designs, restore, workload_of
from perfgrid.study.study import Study

from .best_design import Design, best_design, labels_text, left_open
from .compare_text import ROUNDING, comparison_table, outcome_lines, tokens_line
from .compared import Compared
from .notebook import NAME, NUMBER, paragraphs, table
from .prediction_intervals import intervals

BASES = {  # of a workload: the time that is compared, the tokens made in it, and what its parts are made of
    "training": ("step_time", "tokens_per_step", BREAKDOWN),
    "inference": ("request_latency", "output_tokens", QUANTITIES),
}


@dataclass(frozen=True)
class Comparison(Compared):
    """Two designs and the parts of their times, shown as a table in a notebook."""

    def _repr_html_(self) -> str:
        heads, rows = comparison_table(self)
        styles = [NAME, *[NUMBER] * (len(heads) - 1)]
        lines = [f"A: {labels_text(self.a)}", f"B: {labels_text(self.b)}", tokens_line(self)]
        return (
            paragraphs(lines) + table(list(zip(heads, styles, strict=True)), rows) + paragraphs([*outcome_lines(self)])
        )


def compare(
    what: Study | xr.Dataset,
    a: Mapping[str, Any] | None = None,
    b: Mapping[str, Any] | None = None,
    at: Mapping[str, Any] | None = None,
    formulas: Iterable[Callable[..., Any]] = (),
    other: Study | xr.Dataset | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two designs by the parts of their step time, or of serving by those of a request.

    Parameters
    ----------
    what
        A study, or a result of all its designs.
    a, b
        Labels of the axes in which the designs differ; a coordinate such as ``devices`` narrows its axis. Along axes
        left open each side takes its best feasible design, by the objective of the study or by step time; swept
        hardware stays at factor 1.
    at
        Labels of both designs.
    formulas
        The user's own formulas with which a result was made.
    other
        The study or result of the second design. Default: that of the first.
    progress
        Called with phase, done and total.

    Returns
    -------
    Comparison
        The designs ``a`` and ``b``, ``times`` and ``parts`` in seconds, ``tokens`` of a step or request, ``speedup``
        (per token where these differ), of steps the prediction ``intervals``, ``tie_margin`` and ``tied``.
        ``intervals[0].largest()`` gives the leading assumptions.

    Raises
    ------
    PerfgridError
        For an unknown axis or label, an axis named twice, equal sides, and a side without a feasible design.

    Examples
    --------
    >>> import perfgrid as pg
    >>> study = pg.Study.make(
    ...     outputs=["step_time"],
    ...     axes={
    ...         "model": ["llama-2-7b"],
    ...         "device": ["h100-sxm-80gb"],
    ...         "topology": ["rail-optimized"],
    ...         "parallelism": {"devices": [8], "tp": [1, 2], "pp": [1, 2]},
    ...     },
    ...     workload_parameters={"sequence_length": 4096, "global_batch": 64},
    ... )
    >>> found = pg.compare(study, {"parallelism": "tp2.pp1.dp4"}, {"parallelism": "tp1.pp1.dp8"})
    >>> found.speedup > 1
    True
    >>> part, before, after = found.parts[0]  # the largest change
    >>> part
    'exposed_tp_time'
    """
    subjects = (what, what if other is None else other)
    workload = _workload(subjects)
    sides = _sides(subjects, a or {}, b or {}, at or {}, formulas)
    if other is None and not (a or b):
        raise PerfgridError("a comparison needs labels of two designs (a and b, or --a and --b), or two studies")
    for name, subject, side in zip("AB", subjects, sides, strict=True):  # a wrong label comes before any search
        with _design(name):
            left_open(subject, side)
    chosen, replayed = [], []
    for name, subject, side in zip("AB", subjects, sides, strict=True):
        with _design(name):
            chosen.append(best_design(subject, side, (), progress))
            replayed.append(_replayed(subject, chosen[-1], workload, formulas))
    index, points, tokens, found = zip(*replayed, strict=True)
    if other is None and index[0] == index[1]:
        raise PerfgridError(f"both sides come to the same design: {labels_text(points[0])}")
    ends = ()
    if workload == "training":
        ends = tuple(intervals(subject, [i], formulas=formulas)[0] for subject, i in zip(subjects, index, strict=True))
    parts = tuple((name, found[0][name], found[1][name]) for name in found[0])
    compared = Comparison(BASES[workload][0], points[0], points[1], parts, ends, tokens, (chosen[0], chosen[1]))
    of_a, of_b = compared.work
    return replace(compared, parts=tuple(sorted(parts, key=lambda part: -abs(part[2] / of_b - part[1] / of_a))))


@contextmanager
def _design(name: str) -> Iterator[None]:
    """Errors that say which design they are about."""
    try:
        yield
    except PerfgridError as error:
        raise PerfgridError(f"design {name}: {error}") from None


def _replayed(
    subject: Study | xr.Dataset, design: Design, workload: str, formulas: Iterable[Callable[..., Any]]
) -> tuple[tuple[int, ...], dict[str, Any], float, dict[str, float]]:
    """Rows and labels of a design, its tokens and the parts of its time. PerfgridError, with reasons, if infeasible."""
    space, registry, choices, labels = designs(subject, design.labels, formulas)
    index = index_of(space, labels)
    point = point_of(space, index)
    time, tokens, quantities = BASES[workload]
    graph, values = replay_point(registry, space, (time, tokens, *quantities), index, choices)
    if violated := violated_at(graph, values):
        reasons = "; ".join(f"{v.reason} [{v.name}]" for v in violated)
        raise PerfgridError(f"{labels_text(point)} is infeasible: {reasons}")
    if workload == "training":
        parts = {name: float(values[name]) for name in BREAKDOWN}
    else:
        parts = request_parts(values)
        whole = float(np.squeeze(values[time]))
        rest = whole - sum(parts.values())
        parts["waiting_time"] = rest if abs(rest) > ROUNDING * whole else 0.0
    return index, point, float(np.squeeze(values[tokens])), parts


def _workload(subjects: Sequence[Study | xr.Dataset]) -> str:
    """The workload of all subjects. PerfgridError for different ones, and for one without a time of its own."""
    found = dict.fromkeys(map(workload_of, subjects))
    if len(found) > 1 or not found.keys() <= BASES.keys():
        raise PerfgridError(
            f"compare needs two designs of training or two of inference, found {', '.join(found)}; "
            "explain shows one of any workload"
        )
    return next(iter(found))


def _sides(
    subjects: Sequence[Study | xr.Dataset],
    a: Mapping[str, Any],
    b: Mapping[str, Any],
    at: Mapping[str, Any],
    formulas: Iterable[Callable[..., Any]],
) -> list[dict[str, Any]]:
    """The labels of both sides. PerfgridError for an axis that is named twice, and for what holds no such designs."""
    for subject in subjects:
        if isinstance(subject, Study):
            continue
        if lacking := [axis.name for axis in restore(subject, formulas)[0].axes if axis.name not in subject.dims]:
            raise PerfgridError(
                f"this result holds designs that were chosen along {', '.join(lacking)}: compare designs of the study, "
                "or of a result of all of them"
            )
    for name in at:
        for side, labels in (("a", a), ("b", b)):
            if name in labels:
                raise PerfgridError(f"{name!r} is named twice: for both designs (at) and for {side}")
    return [{**at, **side} for side in (a, b)]
