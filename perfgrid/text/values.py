"""Derivations and constraints as text."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.graph.inner_axes import InnerAxes

from .numbers import number


def quantity_value(value: Any, unit: str, inner: InnerAxes) -> str:
    """A replayed value: a number, true or false, or a short table over its inner axes."""
    if isinstance(value, str):
        return value
    array = np.asarray(value)
    if array.dtype == bool:
        return ", ".join("yes" if v else "no" for v in array.reshape(-1))
    if array.size == 1:
        return number(float(array.reshape(-1)[0]), unit)
    shape = (1,) * (len(inner) - array.ndim) + array.shape
    axes = [axis for axis, size in zip(inner.names, shape, strict=True) if size > 1]
    if len(axes) == 1:
        texts = [number(float(v), unit) for v in array.reshape(-1)]
        return _row(axes[0], inner.labels[axes[0]], texts)
    return f"[{' x '.join(axes)}] sum {number(float(array.sum()), unit)}, largest {number(float(array.max()), unit)}"


def flag_word(value: Any, attributes: Mapping[str, Any]) -> Any:
    """A single number of an output, or the word that it stands for; None where there is none."""
    words = str(attributes.get("flag_meanings", "")).split()
    if words and "constraint" not in attributes:
        return words[int(value)] if int(value) >= 0 else None
    return None if np.isnan(value) else value


def _row(axis: str, labels: Sequence[str], texts: Sequence[str]) -> str:
    """Values along one inner axis; three or more equal ones in a row are written once."""
    found = []
    for text, run in groupby(zip(labels, texts, strict=True), key=lambda pair: pair[1]):
        of = [label for label, _ in run]
        if len(of) == len(labels):
            return f"{text} (every {axis})"
        found += [f"{of[0]} to {of[-1]}: {text}"] if len(of) > 2 else [f"{label}: {text}" for label in of]
    return "{" + ", ".join(found) + "}"


def labels_of(items: list[str] | None, option: str, words: Collection[str] = ()) -> dict[str, str]:
    """Labels of axes from texts ``axis=label[,axis=label...]``; ``words`` may stand among them and say nothing.

    PerfgridError for another form or a repeated axis.
    """
    labels: dict[str, str] = {}
    for item in ",".join(items or []).split(","):
        if item and item.strip() not in words:
            axis, equals, label = (part.strip() for part in item.partition("="))
            if not equals:
                raise PerfgridError(f"{option} {item!r} must read {' or '.join(('axis=label', *words))}")
            if axis in labels:
                raise PerfgridError(f"{option} names axis {axis!r} twice")
            labels[axis] = label
    return labels


def plain(value: Any) -> Any:
    """A value as JSON has it: numbers of NumPy as those of Python, anything else as text."""
    return value.item() if isinstance(value, np.generic) else str(value)
