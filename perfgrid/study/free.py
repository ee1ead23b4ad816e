"""Free numbers: the given quantities of a study that an optimisation or a derivative may vary."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from perfgrid.catalog import Variable
from perfgrid.engine.errors import PerfgridError, nearest, together
from perfgrid.formulas import INNER

from .content import Content


@dataclass(frozen=True)
class Leaf:
    """One free number: a given quantity, or one component of a quantity along an inner axis (``area_split.matrix``)."""

    name: str
    quantity: str
    component: int | None
    variable: Variable


def leaf(study: Content, name: str) -> Leaf:
    """The free number of a name. PerfgridError if it is unknown, computed, or no number that can vary smoothly."""
    quantity, _, label = name.replace("[", ".").removesuffix("]").partition(".")  # either way to name a component
    variables = study.catalog.variables
    if quantity not in study.space.names() or quantity not in variables:
        if quantity in study.registry.names():
            raise PerfgridError(
                f"{study.name}: {quantity!r} is computed by a formula and cannot be free; free what it follows from, "
                "or state it in [overrides]"
            )
        legal = [n for n in study.space.names() if n in variables and variables[n].kind == "number"]
        near = nearest(quantity, [*legal, *study.registry.names()])
        raise PerfgridError(f"{study.name}: nothing states a quantity {quantity!r}{near}")
    variable = variables[quantity]
    check_smooth(study, variable)
    component = None
    if variable.axis is not None and label:
        labels = INNER.labels[variable.axis]
        if label not in labels:
            raise PerfgridError(f"{study.name}: {quantity!r} has no component {label!r}{nearest(label, labels)}")
        component = labels.index(label)
    elif label:
        raise PerfgridError(f"{study.name}: {quantity!r} has no components, found {name!r}")
    return Leaf(name, quantity, component, variable)


def check_smooth(study: Content, variable: Variable) -> None:
    """PerfgridError for a quantity whose values are whole numbers, labels or truth values."""
    if variable.kind != "number":
        kind = "a whole number" if variable.kind == "integer" else f"a {variable.kind}"
        raise PerfgridError(
            f"{study.name}: {variable.name!r} is {kind} and has no derivative; list its values in [axes], and every "
            "one of them is tried"
        )


def leaves(study: Content, names: Iterable[str]) -> list[Leaf]:
    """The free numbers of several names. PerfgridError like `leaf`, for all names that are wrong together."""
    found, wrong = [], []
    for name in names:
        try:
            found.append(leaf(study, name))
        except PerfgridError as error:
            wrong.append(str(error).removeprefix(f"{study.name}: "))
    if wrong:
        raise PerfgridError(f"{study.name}: {together(wrong)}")
    return found
