"""The inputs behind one design: stated, implied or assumed, and by how much each moves what decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from perfgrid.analysis.explanation.explain import elasticities_at
from perfgrid.catalog import Variable
from perfgrid.engine.grid.replay import index_of
from perfgrid.formulas import INNER
from perfgrid.study.entries import entries_at, given
from perfgrid.study.ledger import Input, Origin, Status, ledger
from perfgrid.study.space import TABLES
from perfgrid.study.study import Study
from perfgrid.text.numbers import number

DECIDES = 0.01  # elasticity from which an input decides: 1 % more of it moves the output by 0.01 %
CHANGED = "+"  # in the name of an entry: what follows, a question states otherwise
PAID = ("price",)  # tables of which every amount is shown, whether it decides or not


@dataclass(frozen=True)
class Assumption:
    """An input at a design: as `Input`, with the elasticities d ln output / d ln input of the outputs asked for."""

    quantity: str
    value: str
    status: Status
    by: str
    meaning: str
    effects: Mapping[str, float] = field(default_factory=dict)

    @property
    def decides(self) -> bool:
        """Whether it moves one of the outputs."""
        return any(abs(effect) >= DECIDES for effect in self.effects.values())


def assumptions(
    study: Study,
    at: Mapping[str, Any] | None,
    of: Sequence[str],
    origins: Mapping[str, Origin] | None = None,
) -> list[Assumption]:
    """Every input of a design: what is stated, what follows from it, what is assumed; what decides first in each.

    ``at``: a label of every axis; ``of``: outputs, of whose elasticities every input has its own; ``origins``: as of
    `ledger`. Numbers alone have elasticities. Without a design those of the study, and what they move is not known.
    Errors as of `explain`.
    """
    if at is None:
        return _in_order(_assumption(study, one, {}) for one in ledger(study, origins))
    index = index_of(study.space, at)
    effects = {name: _whole(elasticities_at(study, index, name)) for name in of}
    entries = entries_at(study.space, index, TABLES, study.defaults)
    listed = sorted(ledger(study, origins), key=lambda one: one.read)  # of two statements the one that counts
    known = {one.quantity: _here(one, entries) for one in listed if _concerns(one, entries)}
    found = {name: _assumption(study, one, effects) for name, one in known.items()}
    for one in listed:  # by an option, of an entry that other designs have
        if one.entry is not None and one.by.startswith("--") and not _concerns(one, entries):
            place = f"{one.quantity} of {one.entry[1].partition(CHANGED)[0]}"
            found[place] = replace(_assumption(study, one, {}), quantity=place)
    for name in study.graph().leaves:
        variable = given(study.catalog.variables, name)
        if variable is None or variable.name in found or variable.of not in entries:
            continue
        table = known.get(variable.of)
        status: Status = "assumed" if table is not None and table.status == "assumed" else "implied"
        own = (origins or {}).get(variable.name) or (status, variable.of)
        one = Input(variable.name, _value(study, name, index, variable), own[0], own[1])
        found[variable.name] = _assumption(study, one, effects, name)
    return _in_order(found.values())


def _in_order(found: Iterable[Assumption]) -> list[Assumption]:
    """What is stated first, and of each status what moves the most."""
    order = {"stated": 0, "implied": 1, "assumed": 2}
    return sorted(found, key=lambda one: (order[one.status], -max(map(abs, one.effects.values()), default=0.0)))


def shown(found: Sequence[Assumption]) -> list[Assumption]:
    """Those that a reader needs: what is stated or assumed outside entries, and what of entries decides or is paid."""
    return [one for one in found if one.decides or one.status == "stated" or one.by not in TABLES or one.by in PAID]


def _concerns(one: Input, entries: Mapping[str, str]) -> bool:
    """Whether what is stated of an entry is stated of one of these."""
    return one.entry is None or one.entry in entries.items()


def _here(one: Input, entries: Mapping[str, str]) -> Input:
    """A table with the entry of the design alone."""
    return replace(one, value=entries[one.quantity]) if one.quantity in entries else one


def _whole(elasticities: Mapping[str, float]) -> dict[str, float]:
    """Elasticities by quantity: that of a vector is the sum of those of its components."""
    found: dict[str, float] = {}
    for name, value in elasticities.items():
        quantity = name.replace("[", ".").partition(".")[0]
        found[quantity] = found.get(quantity, 0.0) + value
    return found


def _assumption(study: Study, one: Input, effects: Mapping[str, Mapping[str, float]], leaf: str = "") -> Assumption:
    own = {name: found[leaf or one.quantity] for name, found in effects.items() if (leaf or one.quantity) in found}
    variables, registry = study.catalog.variables, study.registry
    known = variables.get(one.quantity) or (one.quantity in registry.names() and registry.get(one.quantity))
    meaning = known.meaning if known else ""
    return Assumption(one.quantity, one.value, one.status, one.by, meaning, own)


def _value(study: Study, name: str, index: Sequence[int], variable: Variable) -> str:
    """The value of a quantity at a point, as text."""
    value: Any = 1.0
    for axis, values in study.space.parts(name):
        row = values[0 if axis is None else index[axis]]
        value = row if values.dtype.kind in "USb" else value * row
    if variable.axis is None and isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    if isinstance(value, np.ndarray) and variable.axis is not None:
        labels = INNER.labels[variable.axis]
        return ", ".join(
            f"{label} {_one(v, variable)}" for label, v in zip(labels, value.reshape(-1).tolist(), strict=False)
        )
    return _one(value.item() if isinstance(value, np.generic) else value, variable)


def _one(value: Any, variable: Variable) -> str:
    if isinstance(value, bool | str):
        return str(value).lower() if isinstance(value, bool) else value
    if variable.kind in ("code", "flag"):
        return str(variable.word(value)) if variable.kind == "code" else str(bool(value)).lower()
    return number(value, variable.unit)
