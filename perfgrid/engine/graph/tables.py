"""What needs no function of its own: tables of labels, constants, and equations bound to quantities.

A module lists the entries that these functions make in its tuple ``FORMULAS``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfgrid.engine.errors import PerfgridError

from .entries import Constraint, Family, Formula, Sense, always, members, same

Cell = float | str | None  # a number, the quantity whose value it is, or nothing: another alternative has the label
About = tuple[str, str, str] | tuple[str, str, str, tuple[str, ...]]  # unit, source, meaning, labels of the values


def by_label(
    by: str, columns: Mapping[str, About], rows: Mapping[str | tuple[str, ...], Sequence[Cell]]
) -> tuple[Formula, ...]:
    """Quantities that the label quantity ``by`` decides: a row per label (or several), a column per quantity.

    Raises PerfgridError for a row with too many cells or too few.

    Examples
    --------
    >>> about = {"weight_copies": ("1", "deepseek2024v3", "Copies of the model that one pipeline holds.")}
    >>> [entry.name for entry in by_label("schedule", about, {("1f1b", "gpipe"): (1,), "dualpipe": (2,)})]
    ['1f1b_weight_copies', 'gpipe_weight_copies', 'dualpipe_weight_copies']
    """
    found = []
    for labels, cells in rows.items():
        if len(cells) != len(columns):
            raise PerfgridError(f"table by {by!r}, row {labels!r}: {len(columns)} columns, found {len(cells)} cells")
        for (of, about), cell in zip(columns.items(), cells, strict=True):
            for label in (labels,) if isinstance(labels, str) else labels:
                if cell is not None:
                    function, arguments = (same, (cell,)) if isinstance(cell, str) else (always(float(cell)), ())
                    meaning = f"{about[2].rstrip('.')}; {label}: {cell}."
                    entry = Formula(f"{label}_{of}", function, arguments, about[0], about[1], meaning, of, label, by)
                    found.append(replace(entry, flags=about[3] if len(about) > 3 else ()))
    return tuple(found)


def constants(rows: Mapping[str, tuple[float, str, str, str]]) -> tuple[Formula, ...]:
    """Constants with a unit, or that a source states: name -> value, unit, source, meaning."""
    return tuple(
        Formula(name, always(value), (), unit, source, meaning) for name, (value, unit, source, meaning) in rows.items()
    )


def bind(
    function: Callable[..., Any],
    name: str,
    arguments: str,
    unit: str,
    source: str,
    meaning: str = "",
    *,
    of: tuple[str, str, str] | None = None,
    family: Family | None = None,
    where: str = "",
    sense: Sense = "",
    flags: tuple[str, ...] = (),
    host: tuple[str, ...] | None = None,
) -> tuple[Formula, ...]:
    """The quantity ``name`` by an equation that is a function on its own.

    ``arguments``: the quantities that it is called with, by spaces. ``meaning``: default, the first line of its
    docstring. ``of``: the quantity that it is an alternative of, what selects it and its label. ``family``, ``where``,
    ``sense`` and ``flags`` as for `formula`; ``host``: the inner axes of a host formula.
    """
    text = meaning or (inspect.getdoc(function) or name).splitlines()[0]
    quantity, by, label = of or (None, None, None)
    bare = Formula(name, function, tuple(arguments.split()), unit, source, text, quantity, label, by)
    return members(replace(bare, where=where, sense=sense, flags=flags, host=host), family)


def is_positive(quantity: Any) -> Any:
    """Whether a quantity is above zero."""
    return quantity > 0


def positive(
    name: str,
    quantity: str,
    source: str,
    meaning: str,
    reason: str,
    *,
    about: str | None = None,
    workloads: tuple[str, ...] = (),
    family: Family | None = None,
) -> tuple[Formula, ...]:
    """The constraint ``name`` that a quantity is above zero; other arguments as for `constraint`."""
    stated: dict[str, Any] = {"reason": reason, "about": about, "workloads": workloads}
    return members(Constraint(name, is_positive, (quantity,), "1", source, meaning, **stated), family)
