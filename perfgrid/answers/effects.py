"""Whether what a question states has an effect: on any output at all, and on the designs that were found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from perfgrid.analysis.best_of_study import at_points
from perfgrid.catalog.schema import OVERRIDE
from perfgrid.engine.errors import PerfgridError, together
from perfgrid.study.ledger import unread
from perfgrid.study.study import Study, build_study

from .question import Question
from .search import Index


def without_effect(study: Study) -> list[str]:
    """What entries of a user's files state to no effect. PerfgridError for a single value, which is meant for this."""
    lost = unread(study)
    if single := [one for one in lost if one.single]:
        raise PerfgridError(together(one.text for one in single))
    return [one.text for one in lost]


def idle(asked: Question, content: Mapping[str, Any], study: Study, best: Mapping[str, Index]) -> Iterator[str]:
    """The single values stated of a device without which its best design has the same outputs.

    ``best``: rows of the study's axes, by device.
    """
    devices = asked.catalog.tables["device"]
    for name, index in best.items():
        own, base = devices[name], devices.get(devices[name].base)
        stated = [quantity for quantity, by in own.stated.items() if by == OVERRIDE] if base is not None else []
        point = [np.array([row]) for row in index]
        before = at_points(study, study.space, study.outputs, point) if stated else None
        for quantity in stated:
            values = {**own.values, quantity: base.values[quantity]} if base is not None else own.values
            kept = {q: by for q, by in own.stated.items() if q != quantity}
            tables = {**asked.catalog.tables, "device": {**devices, name: replace(own, values=values, stated=kept)}}
            other = build_study(content, "the question", replace(asked.catalog, tables=tables))
            if before is not None and before.equals(at_points(other, other.space, study.outputs, point)):
                yield f"{quantity} of {name} has no effect on its best design"
