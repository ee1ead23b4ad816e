"""The inputs of a design as a table: stated, implied and assumed, and by how much each moves the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from perfgrid.analysis.assumptions import Assumption, assumptions, shown
from perfgrid.printing.console import out
from perfgrid.printing.tables import print_table
from perfgrid.study.ledger import Origin
from perfgrid.study.study import Study

COST = "cost_per_"
HOURLY = "cost_per_device_hour"


def outputs_moved(study: Study, objective: str) -> list[str]:
    """What inputs are weighed by: the objective, and a cost that the study has among its outputs."""
    costs = [name for name in study.outputs if name.startswith(COST) and name not in (HOURLY, objective)]
    return [objective, *costs[:1]]


def print_assumptions(
    study: Study,
    at: Mapping[str, Any] | None,
    objective: str,
    origins: Mapping[str, Origin] | None = None,
    of_what: str = "best design",
) -> None:
    """The inputs of a design, what is stated first; those that move nothing are counted. None: of no design."""
    of = outputs_moved(study, objective) if at is not None else []
    every = assumptions(study, at, of, origins)
    some = shown(every)
    rows = [(one.status, one.quantity, one.value, one.by, *_effects(one, of)) for one in some if _in_table(one)]
    headers = ("status", "input", "value", "from", *of)
    out.print()
    if at is None:
        out.print("Inputs of all designs; none is feasible, so that no answer is known that they would move")
    else:
        out.print(f"Inputs of the {of_what}; the last columns: what 1% more of an input changes")
    print_table(headers, rows, right=headers[4:], prose=headers[2:4], groups=1)
    still = [one for one in some if not _in_table(one)]
    for status, by in dict.fromkeys((one.status, one.by) for one in still):
        own = (f"{one.quantity} {one.value}" for one in still if (one.status, one.by) == (status, by))
        out.print_items(f"{status}, {by}:", own)
    rest = len(every) - len(some)
    if at is not None:
        out.print(f"{rest:,} more inputs of these entries change it by less than 0.01% (--json lists them)")


def _in_table(one: Assumption) -> bool:
    """Whether an input has a row: where it decides, and where it is stated or follows from a statement."""
    return one.decides or one.status != "assumed"


def assumptions_data(
    study: Study, at: Mapping[str, Any] | None, objective: str, origins: Mapping[str, Origin] | None = None
) -> list[dict[str, Any]]:
    """All inputs of a design as JSON objects."""
    return [asdict(one) for one in assumptions(study, at, outputs_moved(study, objective), origins)]


def _effects(one: Assumption, of: Sequence[str]) -> list[str]:
    """By how many per cent 1 % more of an input moves each output."""
    return [f"{one.effects[name]:+.2f}%" if abs(one.effects.get(name, 0.0)) >= 0.005 else "" for name in of]
