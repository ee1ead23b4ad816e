"""The software of a record that names none: what its source calls it, with a wider interval."""

from __future__ import annotations

import re

import numpy as np

from perfgrid.analysis.prediction_intervals import Interval, widened
from perfgrid.catalog import Catalog
from perfgrid.formulas.training.error import CENTRAL_90

from .schema import Record, data


def guessed(record: Record) -> bool:
    """Whether neither the record nor a convention of its source states the software."""
    return record.software is None and record.group not in data("conventions")["group"]


def named(record: Record, catalog: Catalog) -> str | None:
    """The entry of the training software that the source of a record names; None if it names none."""
    text = " ".join(filter(None, (record.source.title, record.source.where))).lower()
    words = data("conventions")["software_words"]
    found = (entry for word, entry in words.items() if re.search(rf"\b{re.escape(word)}\b", text))
    return next((entry for entry in found if entry in catalog.tables["software"]), None)


def with_guess(known: Interval, catalog: Catalog, software: str) -> Interval:
    """The interval where the stack is a guess: another one may be off by what stacks without records are."""
    error = CENTRAL_90 * catalog.variables["model_error"].default_at()
    low, high = (known.value * float(np.exp(side * error)) for side in (-1, 1))
    return widened(known, ("software", software, "guessed"), low, high)
