"""With how many devices a question has an answer that has none with those that were asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from perfgrid.study.file import LAYOUT
from perfgrid.study.study import build_study

from .question import Question
from .search import SYSTEM, Group, groups

COST_LIMIT = "training_within_budget"


def short_of_devices(of: Mapping[tuple[str, int], Group], system: str) -> bool:
    """Whether a system has no design, and one that a limit excludes which more devices may help to keep."""
    own = [group for (name, _), group in of.items() if name == system]
    limits = {miss.constraint for group in own for miss in group.misses()}
    return not any(group.possible.any() for group in own) and bool(limits - {COST_LIMIT})


def devices_that_fit(
    asked: Question,
    content: Mapping[str, Any],
    objective: str,
    least: bool,
    systems: Iterable[str],
    sizes: Iterable[int],
) -> dict[str, int]:
    """The first of some numbers of devices with which each system has a design; 0 for none.

    ``content``: the study of the question, as its file states it.
    """
    found = dict.fromkeys(systems, 0)
    for size in sizes:
        if not (left := [system for system, fits in found.items() if not fits]):
            break
        layouts = replace(asked, sizes=(size,)).layouts(content["workload_parameters"].get("sequence_length"))
        axes = content["axes"] | {SYSTEM: _rows(content["axes"][SYSTEM], left), LAYOUT: layouts}
        study = build_study({**content, "axes": axes}, "the question", asked.catalog)
        of = groups(study, objective, least, weighed=True)
        found |= {system: size for (system, _), group in of.items() if group.possible.any()}
    return found


def _rows(zipped: Mapping[str, Any], labels: list[str]) -> dict[str, Any]:
    """The rows of a zipped axis with these labels."""
    kept = [zipped["labels"].index(label) for label in labels]
    return {"labels": labels, "zip": {name: [own[i] for i in kept] for name, own in zipped["zip"].items()}}
