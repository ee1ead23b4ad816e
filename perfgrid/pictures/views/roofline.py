"""Rooflines: the rate of each matrix product against its intensity at every level of memory."""

from __future__ import annotations

import math

from perfgrid.analysis.roofline import Product, Roofline, roofline
from perfgrid.pictures.picture import Axis, Panel, Picture, Rule, Series
from perfgrid.study.view import View
from perfgrid.text.words import item_text, words

from .axes import quantity_text, value_axis
from .marks import caption
from .subject import Subject
from .table import Table

NEAR = 0.25  # of ln rate and ln intensity: marks that are named together


def roofline_view(subject: Subject, view: View) -> Picture:
    """The roofline of the design at the labels of the view, of the best one along axes left open."""
    return roofline_of(roofline(subject.what, view.at, subject.formulas), view, subject)


def roofline_of(found: Roofline, view: View, subject: Subject | None = None) -> Picture:
    """The picture of a roofline."""
    products = sorted(found.products, key=lambda p: -p.time)[: 2 * view.count]
    rates = [p.flops / p.time for p in products]
    y = value_axis("rate", "FLOP/s", [found.peak], view.units, "log")
    x = Axis("intensity", "FLOP/B", "log", quantity="intensity")
    series = []
    every = [p.flops / t for p in products for t in p.traffic.values()]
    least = min(every) / 2
    for level, bandwidth in found.bandwidths.items():
        marks = [(p, rate) for p, rate in zip(products, rates, strict=True) if level in p.traffic]
        if not marks:
            continue
        ridge = found.peak / bandwidth
        left = min(least, ridge / 2)
        series.append(
            Series(
                level,
                "line",
                (left, ridge),
                (left * bandwidth / y.size, found.peak / y.size),
                labels=(f"{level} {quantity_text(bandwidth, 'byte/s')}",) * 2,
            )
        )
        texts = _names(marks, level) if level == "HBM" else ()
        series.append(
            Series(
                level,
                "points",
                tuple(p.flops / p.traffic[level] for p, _ in marks),
                tuple(rate / y.size for _, rate in marks),
                labels=tuple(
                    f"{words(p.name)}, {words(p.phase)}: {quantity_text(rate, 'FLOP/s')}, "
                    f"{quantity_text(p.traffic[level], 'byte')} of {level} in {quantity_text(p.time, 's')}"
                    for p, rate in marks
                ),
                texts=texts,
            )
        )
    rule = Rule(f"peak {quantity_text(found.peak, 'FLOP/s')}", "y", found.peak / y.size)
    design = ", ".join(f"{words(n)} {item_text(v)}" for n, v in found.point.items())
    roofs = ", ".join(f"{level} {quantity_text(b, 'byte/s')}" for level, b in found.bandwidths.items())
    told = "A kernel has a mark for each level whose traffic is counted, at the same rate. "
    told += f"Roofs: {roofs}. Design: {design}."
    lines = (told, *caption(Table(subject, []))[-1:]) if subject is not None else (told,)
    return Picture(
        view.name, "roofline", view.title, (Panel(x, y, tuple(series), rules=(rule,)),), view.see, lines, "traffic"
    )


def _names(marks: list[tuple[Product, float]], level: str) -> tuple[str, ...]:
    """The names of products beside their marks; those of near marks together, at the first of them."""
    texts, clusters = [""] * len(marks), list[tuple[int, float, float]]()
    for i, (product, rate) in enumerate(marks):
        x, y, name = math.log(product.flops / product.traffic[level]), math.log(rate), words(product.name)
        near = next((k for k, a, b in clusters if abs(a - x) < NEAR and abs(b - y) < NEAR), None)
        if near is None:
            clusters.append((i, x, y))
            texts[i] = name
        elif name not in texts[near].split(", "):
            texts[near] += f", {name}" if texts[near].count(",") < 2 else ""
    return tuple(texts)
