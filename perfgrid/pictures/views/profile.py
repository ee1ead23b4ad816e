"""A profiled step beside the predicted one: a bar of each for every category."""

from __future__ import annotations

from collections.abc import Sequence

from perfgrid.pictures.picture import Panel, Picture, Series

from .axes import category_axis, quantity_text, value_axis

WIDTH = 0.38  # of a bar, of which two stand for each category
SERIES = ("profiled", "predicted")


def profile_picture(
    title: str,
    categories: Sequence[str],
    measured: Sequence[float],
    predicted: Sequence[float],
    told: Sequence[str] = (),
) -> Picture:
    """Bars of the seconds of each category as profiled and as predicted, the first category on top."""
    axis = value_axis("time of a step", "s", [*measured, *predicted], {}, "linear")
    last = len(categories) - 1
    series = []
    for name, numbers, shift in zip(SERIES, (measured, predicted), (WIDTH / 2, -WIDTH / 2), strict=True):
        texts = tuple(quantity_text(value, "s") for value in numbers)
        places = tuple(last - i + shift for i in range(len(categories)))
        tips = tuple(f"{c}, {name}: {t}" for c, t in zip(categories, texts, strict=True))
        lengths = tuple(value / axis.size for value in numbers)
        series.append(Series(name, "bars", lengths, places, width=WIDTH, labels=tips, texts=texts))
    panel = Panel(axis, category_axis("", categories[::-1]), tuple(series))
    return Picture("profile", "bars", title, (panel,), caption=tuple(told), legend="")
