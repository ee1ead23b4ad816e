"""Your own trace beside the predicted step: where the seconds go, category by category."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from perfgrid.analysis.step_anatomy import CATEGORIES, DATA_PARALLEL, NAMES, StepAnatomy, step_anatomy
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.grid.replay import index_of, replay_point
from perfgrid.study.study import Study

from .measurements.kinds import text_of
from .measurements.kineto import COMPUTE, COPIES, IDLE, OTHER, Trace, is_kineto, trace_of
from .measurements.measured import names

STEP = "step"
PRODUCTS, ATTENTION = "matrix products", ("attention forward", "attention backward")
ALIKE = {  # category of a trace -> what is predicted in its place
    PRODUCTS: (PRODUCTS,),
    "attention": ATTENTION,
    OTHER: (*(c for c in CATEGORIES if c not in (PRODUCTS, *ATTENTION)), DATA_PARALLEL[2]),
    "optimizer": (NAMES["optimizer_time"],),
    COPIES: (NAMES["exposed_offload_time"],),
    IDLE: (NAMES["exposed_host_time"], NAMES["between_steps_time"]),
}
GROUPS = {  # degree -> name of its communication, what of it is exposed, collectives of which a part is hidden
    "tp": ("tensor-parallel communication", (NAMES["exposed_tp_time"],), ()),
    "cp": ("context-parallel communication", (NAMES["exposed_cp_time"],), ()),
    "ep": ("expert exchange", (NAMES["exposed_ep_time"],), ("expert exchange",)),
    "pp": ("pipeline transfers and bubble", (NAMES["exposed_pp_time"], NAMES["bubble_time"]), ()),
    "dp": (
        "data-parallel communication",
        (*DATA_PARALLEL[:2], NAMES["exposed_tied_time"], NAMES["straggler_time"]),
        ("all-gather", "reduce-scatter"),
    ),
}
ANY, SEVERAL = "", "group not stated"
COLLECTIVES = tuple(name for name in names()["kernel"] if name not in COMPUTE)
NOTES = {  # what most likely makes a category longer than predicted, and shorter
    "matrix products": ("other shapes or kernels than the model's, or a lower clock", "the trace counts fewer layers"),
    "attention": ("another attention kernel than the fused one", "a newer attention kernel"),
    OTHER: ("element-wise kernels that are not fused", "kernels that are fused more than predicted"),
    "optimizer": ("an optimizer that is not fused, or clipping of gradients", "optimizer kernels counted as others"),
    COPIES: ("copies from the host, such as data", "copies that kernels do"),
    IDLE: ("the host launches too slowly, waits, or loads data", "the host is faster than predicted"),
}
WAITS = ("a rank that others wait for counts its wait as communication", "overlap that is not predicted")


@dataclass(frozen=True)
class Part:
    """A category: seconds of a step in the trace and as predicted; ``hidden`` seconds beyond run beside kernels.

    ``inside``: a part of the category before it, which the sum over categories leaves out.
    """

    name: str
    measured: float
    predicted: float
    hidden_measured: float = 0.0
    hidden_predicted: float | None = None  # None: not told apart
    note: str = ""
    inside: bool = False


@dataclass(frozen=True)
class OwnProfile:
    """A trace beside its prediction: parts that add up to both steps, the step last."""

    trace: Trace
    anatomy: StepAnatomy
    parts: tuple[Part, ...]

    def as_data(self) -> dict[str, Any]:
        """The comparison as plain data."""
        rows = [
            {
                "category": p.name,
                "measured": p.measured,
                "predicted": p.predicted,
                "hidden_measured": p.hidden_measured,
                "hidden_predicted": p.hidden_predicted,
                "note": p.note,
                "inside": p.inside,
            }
            for p in self.parts
        ]
        return {"steps": self.trace.steps, "categories": rows, "note": self.trace.note}


def own_profile(study: Study, at: Mapping[str, Any], path: Path) -> OwnProfile:
    """A trace of PyTorch's profiler beside the step of a design. PerfgridError for a file that is no trace."""
    text = text_of(path)
    if not is_kineto(text):
        raise PerfgridError(f"{path}: no trace of PyTorch's profiler (it has no traceEvents)")
    trace, anatomy = trace_of(text, str(path)), step_anatomy(study, at)
    parts = list(_parts(trace, anatomy, _degrees(study, at)))
    whole = Part(STEP, trace.step_time, anatomy.step_time)
    told = sum(p.predicted for p in parts if not p.inside)
    if (rest := anatomy.step_time - told) > 1e-6 * anatomy.step_time:
        parts.append(Part("other waits", 0.0, rest))
    return OwnProfile(trace, anatomy, (*parts, whole))


def _degrees(study: Study, at: Mapping[str, Any]) -> set[str]:
    """The degrees of parallelism above one."""
    index = index_of(study.space, at)
    _, values = replay_point(study.registry, study.space, tuple(GROUPS), index, study.file.choices)
    return {name for name in GROUPS if float(np.squeeze(values[name])) > 1}


def _parts(trace: Trace, anatomy: StepAnatomy, degrees: set[str]) -> Iterable[Part]:
    for name, predicted in ALIKE.items():
        measured, seconds = trace.seconds.get(name, 0.0), sum(map(anatomy.seconds, predicted))
        if measured or seconds:
            yield Part(name, measured, seconds, note=_note(measured, seconds, NOTES[name]))
    seen = {(c, _group(c, g, degrees)) for c, g in (*trace.exposed, *trace.hidden)}
    for group, (name, predicted, in_all) in GROUPS.items():
        seconds = sum(map(anatomy.seconds, predicted))
        inside = [_collective(trace, anatomy, c, group, degrees) for c in COLLECTIVES if (c, group) in seen]
        measured, beside = (sum(getattr(p, n) for p in inside) for n in ("measured", "hidden_measured"))
        expected = _hidden(anatomy, in_all, group) if in_all else None
        if measured or seconds or beside:
            yield Part(name, measured, seconds, beside, expected, _note(measured, seconds, WAITS))
            yield from inside
    for collective in COLLECTIVES:
        if (collective, ANY) in seen:
            part = _collective(trace, anatomy, collective, ANY, degrees)
            yield replace(part, name=f"{collective}, {SEVERAL}", inside=False, note="the trace does not tell its group")


def _collective(trace: Trace, anatomy: StepAnatomy, name: str, group: str, degrees: set[str]) -> Part:
    """One collective of a group: exposed and hidden, predicted where the parts of a step tell it apart."""
    exposed, hidden = (
        sum(t for (c, g), t in found.items() if c == name and _group(c, g, degrees) == group)
        for found in (trace.exposed, trace.hidden)
    )
    known = group == "dp" and name in anatomy.in_all
    predicted = anatomy.seconds(f"{name}, exposed") if known else 0.0
    return Part(name, exposed, predicted, hidden, _hidden(anatomy, (name,), group) if known else None, inside=True)


def _hidden(anatomy: StepAnatomy, collectives: tuple[str, ...], group: str) -> float:
    """Seconds of collectives that are predicted to run beside kernels."""
    exposed = [f"{c}, exposed" for c in collectives] if group == "dp" else [NAMES["exposed_ep_time"]]
    return max(0.0, sum(anatomy.in_all.get(c, 0.0) for c in collectives) - sum(map(anatomy.seconds, exposed)))


def _group(collective: str, group: str, degrees: set[str]) -> str:
    """The degree whose ranks communicate: as the trace says, else as the collective or the layout does."""
    by_kind = {"send and receive": "pp", "all-to-all": "ep"}.get(collective, ANY)
    only = next(iter(degrees)) if len(degrees) == 1 else ANY
    return group if group in degrees else by_kind if by_kind in degrees else only


def _note(measured: float, predicted: float, notes: tuple[str, str], far: float = 0.25) -> str:
    """What most likely makes a difference of more than a quarter; empty for a small one."""
    if abs(measured - predicted) <= far * max(measured, predicted):
        return ""
    return notes[0] if measured > predicted else notes[1]
