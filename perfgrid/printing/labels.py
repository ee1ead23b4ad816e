"""Labels of axes as text, and letters in the place of designs that are infeasible."""

from __future__ import annotations

from collections.abc import Iterable
from string import ascii_lowercase
from typing import Any

from perfgrid.engine.graph.registry import Constraint
from perfgrid.printing.console import out
from perfgrid.study.entries import unit_of
from perfgrid.study.study import Study
from perfgrid.text.numbers import label_text


def axis_label(study: Study, axis: str, label: Any) -> str:
    """A label of an axis, with the unit of the quantity that the axis states."""
    scaled = any(axis in a.scales for a in study.space.axes)
    return label_text(label, "1" if scaled else unit_of(study.catalog.variables, axis))


def marks(constraints: Iterable[str]) -> dict[str, str]:
    """A letter for each constraint that forbids the designs of a group; "" is the lack of further designs."""
    names = dict.fromkeys(constraints)
    return {name: (*ascii_lowercase, *map(str, range(len(names))))[i] for i, name in enumerate(names)}


def reason_of(study: Study, constraint: str) -> str:
    """The reason of a constraint."""
    found = study.registry.get(constraint)
    return found.reason if isinstance(found, Constraint) else ""


def print_legend(study: Study, letters: dict[str, str]) -> None:
    """What every letter stands for."""
    for name, letter in letters.items():
        why = (
            f"no feasible design; {name} forbids most: {reason_of(study, name)}" if name else "no more feasible designs"
        )
        out.print(f"{letter}  {why}", indent="   ")
