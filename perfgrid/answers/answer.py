"""An answer: the best designs of a question as a Dataset, with what bounds them, how far they hold and what is near."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tomli_w
import xarray as xr

from perfgrid.analysis.best_of_study import at_points
from perfgrid.analysis.idle_inputs import idle_inputs
from perfgrid.analysis.limiting import shares
from perfgrid.analysis.prediction_intervals import Interval, has_interval, intervals, tie_margin
from perfgrid.catalog.schema import LARGEST_COUNT
from perfgrid.engine.grid.dataset import study_axes
from perfgrid.printing.answer import FEWER, FRONT, LABEL, NEAR, UNSURE, Answer, layout_text, words
from perfgrid.study.file import CLUSTER_SIZE, LAYOUT, ties_of
from perfgrid.study.ledger import Origin, ledger
from perfgrid.study.study import Study, build_study
from perfgrid.text.numbers import label_text

from .amounts import FOLLOWS, taken_of_model
from .effects import without_effect
from .fitting import devices_that_fit, short_of_devices
from .question import RENT, Question
from .search import SYSTEM, Group, Index, groups
from .stacks import stacks_alike

CANDIDATES = 64  # best designs of a group that are looked through for other layouts as good
ALTERNATIVES = 2  # that an answer names
PARTS = 3  # of a step that an answer names
DOUBLINGS = 6  # of the number of devices, until something fits
CHUNKS = ".v"  # layouts that differ in chunks alone are one


def answered(
    asked: Question,
    content: Mapping[str, Any],
    objective: str,
    least: bool = True,
    weighed: bool = False,
    against: str | None = None,
    assumed: Mapping[str, str] | None = None,
    warnings: Sequence[str] = (),
    details: str = "",
    question: Mapping[str, Any] | None = None,
    origins: Mapping[str, Origin] | None = None,
    fleet: bool = False,
) -> Answer:
    """The answer to a question: the best design of every system and cluster size that a study holds.

    ``content``: the study, as its file states it; ``weighed``: cluster sizes are weighed against each other;
    ``against``: the second quantity of a frontier; ``assumed``: what else was taken, by its option; ``details``: what
    the heading says beside the title of the study, which a user may change; ``question``: it as plain values;
    ``origins`` of its inputs, as of `ledger`; ``fleet``: as of `groups`.
    """
    study = build_study(content, "the question", asked.catalog)
    stated = dict(origins or {}) | asked.origins(study.implied)
    taken = asked.assumptions | dict(assumed or {})
    taken |= taken_of_model(study.file.workload, asked.number("experts") > 1, content["workload_parameters"])
    known = ledger(study, stated)
    warnings = [*warnings, *study.notes, *without_effect(study)]
    of = groups(study, objective, least, weighed, against, fleet)
    rows = [_distinct(study, group.best(CANDIDATES)) for group in of.values()]
    labels = {SYSTEM: [system for system, _ in of], CLUSTER_SIZE: [size for _, size in of]}
    labels = {name: list(dict.fromkeys(own)) for name, own in labels.items() if name == SYSTEM or not weighed}
    shape = tuple(len(own) for own in labels.values())

    def placed(values: Sequence[Any], *inner: str, **about: Any) -> xr.Variable:
        """A value (or a row of them, along an inner dimension) for every group."""
        array = np.array(values)
        return xr.Variable((*labels, *inner), array.reshape(*shape, *array.shape[1:]), about)

    found: dict[str, Any] = {"found": placed([bool(some) for some in rows])}
    if points := [some[0] for some in rows if some]:
        filled = np.cumsum([bool(some) for some in rows]) - 1  # of groups without a design: hidden below
        here = np.where([bool(some) for some in rows], np.maximum(filled, 0), -1)
        found |= _size(study, points, here, placed) | _values(study, points, here, study.outputs, placed)
        found |= _parts(study, points, here, placed)
        first = {system: some[0] for (system, _), some in zip(of, rows, strict=True) if some}
        without = idle_inputs(study, [*first.values()], known)
        warnings += [f"{one.name} has no effect on the best design" for one in without]
        rents = dict(zip(asked.devices, asked.rents, strict=False))
        found |= {RENT.name: placed([rents[s] for s, _ in of], units=RENT.unit)} if rents else {}
        found |= _around(study, objective, least, rows, placed)
        if against is not None:
            edges = [group.frontier(against) for group in of.values()]
            found |= _frontier(study, edges, (objective, against), placed)
        if not has_interval(study, objective):
            del found[f"{objective}_interval"]
    found |= _excluded(list(of.values()), placed) | _unsure(list(of.values()), objective, placed)
    if lacking := [system for system in labels[SYSTEM] if short_of_devices(of, system)]:
        sizes = [size for i in range(DOUBLINGS) if (size := max(asked.sizes) * 2 ** (i + 1)) <= LARGEST_COUNT]
        fits = devices_that_fit(asked, content, objective, least, lacking, sizes)
        words = {"long_name": "devices with which it fits, 0: none of some tried", "tried": sizes}
        found["fits_with"] = placed([fits.get(system, -1) for system, _ in of], **words)
    about = {
        "title": f"{study.file.title}: {details}",
        "objective": objective,
        "sense": "minimize" if least else "maximize",
    }
    ties = ties_of(study.file.best, objective)
    about |= {"ties": list(ties.by)} if ties.by else {}
    about |= {"within": ties.within} if ties.within is not None else {}
    about |= {"designs_searched": sum(group.designs for group in of.values())}
    about |= {"warnings": list(warnings), "assumptions": [f"{option}: {value}" for option, value in taken.items()]}
    about |= {"question": json.dumps(question or {})}
    notes = [f"{FOLLOWS[name]} ({name} 1, implied by --price)" for name in study.implied]
    notes += [_passed_over(study, *group) for group in of.items() if group[1].passed_over() is not None]
    if points and study.file.workload == "inference":
        own = {asked.software} if asked.software else set(asked.usual["software"])
        if alike := stacks_alike(study, points, objective, *own) if len(own) == 1 else []:
            notes += [f"{', '.join(alike)} would give the same: no difference is modelled in this question"]
    inputs = [[one.quantity, one.value, one.status, one.by] for one in known]
    about |= {"notes": notes, "inputs": json.dumps(inputs), "origins": json.dumps(stated)}
    about |= {"study": tomli_w.dumps(content), "own_files": json.dumps(asked.own_files)}
    return Answer(found, labels | {"bound": ["low", "high"]}, about).marked()


def _passed_over(study: Study, place: tuple[str, int], group: Group) -> str:
    """That a design is chosen though another one is better by less than what decides between ties."""
    found, (system, size) = group.passed_over(), place
    assert found is not None
    of = f"{size:,} x {system}" if size else system
    names = {axis.name: label_text(axis.labels[row]) for axis, row in zip(study.space.axes, found.index, strict=True)}
    shown = [layout_text(names[LAYOUT])]
    shown += [
        f"{axis.name} {names[axis.name]}"
        for axis in study.space.axes
        if axis.name not in (SYSTEM, LAYOUT) and len(axis) > 1
    ]
    why = f"chosen for {FEWER.get(found.decisive, f'a lower {words(found.decisive)}')}"
    return f"{of}: {', '.join(shown)} is {found.gain:.1%} better, within {group.ties.within:.0%}: the design is {why}"


def _distinct(study: Study, best: Sequence[Index]) -> list[Index]:
    """The best design, and the best ones of other layouts."""
    place = study_axes(study.space).index(LAYOUT)
    first: dict[str, Index] = {}
    for index in best:
        first.setdefault(str(study.space.axes[place].labels[index[place]]).partition(CHUNKS)[0], index)
    return list(first.values())[: 1 + ALTERNATIVES]


def _values(
    study: Study,
    points: Sequence[Index],
    here: np.ndarray,
    outputs: Iterable[str],
    placed: Callable[..., Any],
    front: str = "",
) -> dict[str, Any]:
    """Outputs and labels of designs; ``here``: the point of every group (or of every place on its front), -1: none."""
    outputs = list(outputs)
    checked = [node.name for node in study.graph().constraints]  # a cost of unknown prices is NaN
    named = at_points(study, study.space, [*outputs, *checked], list(np.transpose(points)))
    inner = ["frontier"] if front else []
    found = {}
    for name in outputs:
        values = np.broadcast_to(named[name].values, len(points))
        found[front + name] = placed(np.where(here < 0, np.nan, values[here]), *inner, **named[name].attrs)
    for place, axis in enumerate(study.space.axes):
        if axis.name == LAYOUT or (axis.name != SYSTEM and len(axis) > 1):
            texts = np.array([label_text(axis.labels[index[place]]) for index in points])
            own, kind = np.where(here < 0, "", texts[here]), axis.labels.dtype.kind
            found[front + axis.name] = placed(own, *inner, long_name=f"{LABEL} {axis.name}", kind=kind)
    return found


def _size(study: Study, points: Sequence[Index], here: np.ndarray, placed: Callable[..., Any]) -> dict[str, Any]:
    """The number of devices of the best designs."""
    sizes = next(a for a in study.space.axes if a.name == LAYOUT).columns[CLUSTER_SIZE]
    place = study_axes(study.space).index(LAYOUT)
    size = np.array([sizes[index[place]] for index in points])
    return {"size": placed(np.where(here < 0, 0, size[here]), long_name="devices", units="1")}


def _parts(study: Study, points: Sequence[Index], here: np.ndarray, placed: Callable[..., Any]) -> dict[str, Any]:
    """What the best designs wait for, largest first."""
    largest = [found[:PARTS] for found in shares(study, points)]
    words = np.array([[word for word, _ in some] for some in largest])
    part = np.array([[share for _, share in some] for some in largest])
    none = (here < 0)[:, None]
    return {
        "part": placed(np.where(none, "", words[here]), "largest", long_name="what takes the time"),
        "part_share": placed(np.where(none, np.nan, part[here]), "largest", long_name="share of the time", units="1"),
    }


def _around(
    study: Study,
    objective: str,
    least: bool,
    rows: Sequence[Sequence[Index]],
    placed: Callable[..., Any],
) -> dict[str, Any]:
    """The prediction interval of the objective, and the other layouts with how much worse they are."""
    known = iter(intervals(study, [index for some in rows for index in some], objective))
    axes = study_axes(study.space)
    place = axes.index(LAYOUT)
    ends, others, ratios, ties, firsts = [], [], [], [], []
    for some in rows:
        own = [next(known) for _ in some]
        firsts.append(own[0] if own else None)
        ends.append((own[0].low, own[0].high) if own else (np.nan, np.nan))
        ratio = [_ratio(other, own[0]) for other in own[1:]]
        tied = [_tied(own[0], other) for other in own[1:]]
        short = ALTERNATIVES - len(ratio)
        others.append([*(str(study.space.axes[place].labels[index[place]]) for index in some[1:]), *[""] * short])
        ratios.append([*ratio, *[np.nan] * short])
        ties.append([*tied, *[False] * short])
    leader = (min if least else max)(filter(None, firsts), key=lambda first: first.value)
    near = [first is not None and _tied(leader, first) for first in firsts]
    return {
        "tied": placed(near, long_name="within the model's error of the best of all"),
        f"{objective}_interval": placed(ends, "bound", long_name="90 of 100 measurements are expected within"),
        "alternative_layout": placed(others, "alternative", long_name="the best design of another layout"),
        "alternative_ratio": placed(ratios, "alternative", long_name=f"{objective} over that of the best", units="1"),
        "alternative_tied": placed(ties, "alternative", long_name="within the model's error of the best"),
    }


def _ratio(a: Interval, b: Interval) -> float:
    """One prediction over another; NaN over zero."""
    return a.value / b.value if b.value else np.nan


def _tied(a: Interval, b: Interval) -> bool:
    """Whether the difference of two predictions is within the model's error; next to zero only none is."""
    return a.value == b.value or max(_ratio(a, b), _ratio(b, a)) <= 1 + tie_margin(a, b)


def _frontier(
    study: Study, edges: Sequence[Sequence[Index]], quantities: Sequence[str], placed: Callable[..., Any]
) -> dict[str, Any]:
    """Quantities and labels of the designs on the frontier of every group, filled up with NaN and empty labels."""
    points = [index for edge in edges for index in edge]
    here = np.full((len(edges), max(map(len, edges))), -1)
    here[np.arange(here.shape[1]) < np.array([len(edge) for edge in edges])[:, None]] = np.arange(len(points))
    return _values(study, points, here, quantities, placed, FRONT)


def _unsure(of: Sequence[Group], objective: str, placed: Callable[..., Any]) -> dict[str, Any]:
    """The best design of every group that fits only without what is kept free, where one is worth it."""
    found = [group.unsure() for group in of]
    if not any(found):
        return {}
    words = ["" if one is None else ", ".join(f"{a} {v}" for a, v in one.labels.items()) for one in found]
    unit = of[0].grid[objective].attrs.get("units", "1")
    reached, used, whole = (
        [np.nan if one is None else getattr(one, name) for one in found] for name in ("objective", "value", "limit")
    )
    return {
        UNSURE: placed(words, long_name="the best design that fits only if nothing is kept free of the memory"),
        f"{UNSURE}_objective": placed(reached, long_name=f"its {objective}", units=unit),
        f"{UNSURE}_use": placed(used, long_name="its memory on a device", units="byte"),
        f"{UNSURE}_limit": placed(whole, long_name="what a device has of it", units="byte"),
    }


def _excluded(of: Sequence[Group], placed: Callable[..., Any]) -> dict[str, Any]:
    """How many designs each constraint excludes as their root cause, and the nearest that one limit excludes."""
    counts = [group.excluded() for group in of]
    names = list(dict.fromkeys(name for count in counts for name in count))
    table = [[count.get(name, 0) for name in names] for count in counts]
    found = {
        "designs": placed([group.designs for group in of], long_name="designs searched"),
        "excluded": placed(np.reshape(table, (len(of), len(names))), "constraint", long_name="designs excluded"),
        "constraint": xr.Variable("constraint", names),
        "reason": xr.Variable("constraint", [str(of[0].grid[name].attrs["reason"]) for name in names]),
        "kind": xr.Variable("constraint", [str(of[0].grid[name].attrs["constraint"]) for name in names]),
    }
    near = [{miss.constraint: miss for miss in group.misses()} for group in of]
    limits = list(dict.fromkeys(name for some in near for name in some))
    for kind, empty in (
        ("value", np.nan),
        ("limit", np.nan),
        ("objective", np.nan),
        ("remedied", np.nan),
        ("remedy", ""),
    ):
        rows = [[getattr(some[name], kind) if name in some else empty for name in limits] for some in near]
        found[NEAR + kind] = placed(np.reshape(rows, (len(of), len(limits))), "limit")
    rows = [
        [", ".join(f"{a} {v}" for a, v in some[n].labels.items()) if n in some else "" for n in limits] for some in near
    ]
    found[NEAR + "labels"] = placed(np.reshape(rows, (len(of), len(limits))), "limit")
    units = [str(of[0].grid[of[0].limits[name][0]].attrs["units"]) for name in limits]
    return found | {"limit": xr.Variable("limit", limits), "limit_units": xr.Variable("limit", units)}
