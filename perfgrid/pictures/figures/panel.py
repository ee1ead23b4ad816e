"""One panel of a picture on Matplotlib's axes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from perfgrid.pictures.picture import Axis, Cells, Panel, Picture, Series

from .style import GREY, PALE, axis_text, log_ticks, style, tick_text
from .texts import LONG, overlap, short, write_beside

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_NAMED, CROWDED = 120, 20  # names along an axis; from how many they stand upright
MOST_WRITTEN = 240  # cells with texts
MANY = 60  # bars of a series that have no edge and no hatch
THIN = 2.5e-3  # of a panel: bars that have no edge
SMALL_POINTS = 300  # points of a panel that are drawn small


def draw_marks(ax: Axes, panel: Panel, names: Mapping[str, int], gid: str) -> None:
    """Draw the marks of a panel; ``names`` number the colours, ``gid`` names the marks in an SVG."""
    for number, series in enumerate(panel.series):
        for part, artist in enumerate(_series(ax, panel, series, names)):
            artist.set_gid(f"{gid}-series-{number}" + (f"-{part}" if part else ""))
    if panel.cells is not None:
        _cells(ax, panel.cells, gid)
    for rule in panel.rules:
        (ax.axvline if rule.along == "x" else ax.axhline)(rule.at, color="#222222", linewidth=1, linestyle=(0, (4, 2)))
        _rule_text(ax, rule.name, rule.along, rule.at)


def draw_axes(ax: Axes, panel: Panel, names: Mapping[str, int], outer: bool = True) -> None:
    """Scales, labels and ticks of a panel, once the marks of all panels are drawn; the label of y on outer ones."""
    _axis(ax, panel, "x")
    _axis(ax, panel, "y", outer)
    write_beside(ax, panel)
    _crosses(ax, panel, names)
    if panel.title:
        ax.set_title(short(panel.title, LONG + 12))
    if panel.cells is None:
        value = "x" if panel.y.categories else "y" if panel.x.categories else "both"
        ax.grid(axis=value, color="#dddddd", linewidth=0.6)


def legend_of(picture: Picture, names: Mapping[str, int]) -> list[Any]:
    """Handles of the names of a picture; none for one name."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    shapes: dict[str, set[str]] = {}
    infeasible = set()
    for series in picture.every_series():
        shapes.setdefault(series.name, set()).add(series.shape)
        if series.shape == "points" and series.reasons and all(series.reasons):
            infeasible.add(series.name)
    if len(shapes) < 2 or (not picture.legend and all(len(panel.series) < 2 for panel in picture.panels)):
        return []
    many = {s.name for s in picture.every_series() if len(s.x) > MANY}
    handles = []
    for name, number in names.items():
        look = style(number)
        colour = GREY if name in infeasible else look["color"]
        if "bars" in shapes[name]:
            hatch = "" if name in many else look["hatch"]
            handles.append(Patch(facecolor=colour, edgecolor="white", hatch=hatch, label=short(name)))
            continue
        if "limits" in shapes[name]:
            handles.append(Line2D([], [], color="black", linewidth=2, label=short(name)))
            continue
        line = look["dashes"] if "line" in shapes[name] else ""
        handles.append(
            Line2D([], [], color=colour, marker=look["marker"], linestyle=line, markersize=5, label=short(name))
        )
    return handles


def _series(ax: Axes, panel: Panel, series: Series, names: Mapping[str, int]) -> list[Any]:
    look = style(names[series.name])
    if series.shape == "bars":
        return _bars(ax, panel, series, look)
    if series.shape == "limits":
        half = series.width / 2
        if panel.y.categories:
            at = np.array(series.y)
            return [ax.vlines(series.x, at - half, at + half, color="black", linewidth=2)]
        at = np.array(series.x)
        return [ax.hlines(series.y, at - half, at + half, color="black", linewidth=2)]
    x, y = np.array(series.x), np.array(series.y)
    infeasible = series.shape == "points" and bool(series.reasons) and all(series.reasons)
    colour = GREY if infeasible else look["color"]
    kept = np.isfinite(x) & np.isfinite(y)
    small = sum(len(s.x) for s in panel.series if s.shape == "points") > SMALL_POINTS
    if series.low:
        ends = [np.abs(y - np.array(series.low)), np.abs(np.array(series.high) - y)]
        known = kept & np.isfinite(ends).all(axis=0)
        if known.any():
            bars = [end[known] for end in ends]
            ax.errorbar(
                x[known],
                y[known],
                bars,
                fmt="none",
                ecolor=colour,
                elinewidth=0.8,
                capsize=0 if small else 2,
                alpha=0.6,
            )
    if series.shape == "line":
        curve = (len(x) == 2 and not series.labels) or any(
            len(s.x) > 2 and s.name == series.name and s is not series for s in panel.series
        )
        marker = "" if curve or len(x) > MANY else look["marker"]
        drawn = ax.plot(x, y, color=colour, marker=marker, linestyle=look["dashes"], markersize=4, linewidth=1.5)
        ax.dataLim.update_from_data_x(x, ignore=False)  # of marks that are not there too
    else:
        size, alpha = (12 if small else 26), (0.5 if infeasible else 0.85)
        drawn = [
            ax.scatter(
                x[kept],
                y[kept],
                s=size,
                color=colour,
                marker=look["marker"],
                alpha=alpha,
                linewidths=0,
                zorder=1.5 if infeasible else 2.5,
            )
        ]
    return list(drawn)


def _bars(ax: Axes, panel: Panel, series: Series, look: dict[str, Any]) -> list[Any]:
    lying = bool(panel.y.categories)
    at, end = (np.array(v) for v in ((series.y, series.x) if lying else (series.x, series.y)))
    base = np.array(series.base) if series.base else np.zeros(len(at))
    kept = np.isfinite(end)
    dense = len(at) > MANY
    how: dict[str, Any] = {"color": look["color"], "edgecolor": "white", "linewidth": 0.5, "hatch": look["hatch"]}
    if dense:  # one artist instead of thousands
        return [ax.add_collection(_boxes(at[kept], base[kept], end[kept], series.width, lying, look["color"]))]
    draw = ax.barh if lying else ax.bar
    side = {"left": base[kept]} if lying else {"bottom": base[kept]}
    drawn = list(draw(at[kept], (end - base)[kept], series.width, **side, **how))
    if series.low:
        ends = np.array([end - np.array(series.low), np.array(series.high) - end])[:, kept]
        known = np.isfinite(ends).all(axis=0)
        places = (end[kept][known], at[kept][known]) if lying else (at[kept][known], end[kept][known])
        wide = np.abs(ends[:, known])
        across, up = (wide, None) if lying else (None, wide)
        ax.errorbar(*places, xerr=across, yerr=up, fmt="none", ecolor="#222222", elinewidth=0.9, capsize=2.5)
    for row, text in enumerate(series.texts):
        if text and lying and kept[row]:
            far = max(end[row], base[row], *(series.high[row : row + 1] or (end[row],)))
            ax.annotate(text, (far, at[row]), (4, 0), textcoords="offset points", va="center", fontsize=7.5)
    if lying and any(series.texts):
        ax.margins(x=0.22)
    return drawn


def _boxes(at: Any, base: Any, end: Any, width: float, lying: bool, colour: str) -> Any:
    """Bars as one collection."""
    from matplotlib.collections import PolyCollection

    low, high = at - width / 2, at + width / 2
    corners = np.stack([np.stack(c, 1) for c in ((base, low), (end, low), (end, high), (base, high))], axis=1)
    corners = corners if lying else corners[..., ::-1]
    thin = np.median(end - base) < THIN * (end.max() - base.min())
    return PolyCollection(list(corners), facecolor=colour, edgecolor="white", linewidth=0 if thin else 0.15)


def _cells(ax: Axes, cells: Cells, gid: str) -> None:
    import matplotlib
    from matplotlib.colors import LogNorm, Normalize

    values = np.array(cells.numbers, float)
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    log = cells.value.scale == "log" or (low > 0 and high > 30 * low)
    norm = LogNorm(low, max(high, low * 1.001)) if log else Normalize(low, high if high > low else low + 1)
    colours = matplotlib.colormaps["cividis"]
    rows, columns = values.shape
    for (i, j), why in np.ndenumerate(np.array(cells.reasons, dtype=object)):
        if why:
            from matplotlib.patches import Rectangle

            ax.add_patch(
                Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor=PALE, edgecolor="#bbbbbb", hatch="///", linewidth=0)
            )
    mesh = ax.pcolormesh(
        np.arange(columns + 1) - 0.5,
        np.arange(rows + 1) - 0.5,
        np.ma.masked_invalid(values),
        norm=norm,
        cmap=colours,
        edgecolors="white",
        linewidth=0.8,
    )
    mesh.set_gid(f"{gid}-cells")
    if values.size <= MOST_WRITTEN and rows <= 24:
        for (i, j), text in np.ndenumerate(np.array(cells.texts, dtype=object)):
            bright = np.isnan(values[i, j]) or norm(values[i, j]) > 0.55
            ax.text(j, i, text, ha="center", va="center", fontsize=7.5, color="black" if bright else "white")
    if known.size:
        bar = ax.figure.colorbar(mesh, ax=ax, label=axis_text(cells.value), pad=0.01)
        bar.outline.set_visible(False)
        if log:
            _ticks(bar.ax.yaxis, log_ticks(low, high))


def _axis(ax: Axes, panel: Panel, name: str, labelled: bool = True) -> None:
    """Scale, limits, ticks and label of an axis."""
    shown: Axis = getattr(panel, name)
    axis = ax.xaxis if name == "x" else ax.yaxis
    limits = ax.set_xlim if name == "x" else ax.set_ylim
    (ax.set_xlabel if name == "x" else ax.set_ylabel)(axis_text(shown) if labelled else "")
    if shown.categories:
        every = -(-len(shown.categories) // MOST_NAMED)
        names = [short(text) for text in shown.categories[::every]]
        axis.set_ticks(range(0, len(shown.categories), every), names)
        axis.set_tick_params(length=0)
        limits(-0.6, len(shown.categories) - 0.4) if panel.cells is None else limits(-0.5, len(shown.categories) - 0.5)
        if name == "x" and overlap(ax, names):
            turned = 30 if len(names) < CROWDED else 90
            for text in axis.get_ticklabels():
                text.set(rotation=turned, ha="right", va="center" if turned == 90 else "top", rotation_mode="anchor")
        return
    if shown.scale == "log":
        (ax.set_xscale if name == "x" else ax.set_yscale)("log")
    if shown.ticks:
        _ticks(axis, [at for at, _ in shown.ticks], [text for _, text in shown.ticks])
    elif shown.scale == "log":
        low, high = sorted(ax.get_xlim() if name == "x" else ax.get_ylim())
        _ticks(axis, log_ticks(low, high))
        limits(low, high)
    elif panel.series and not any(np.isfinite(getattr(s, name)).any() for s in panel.series):
        _ticks(axis, [])  # nothing is feasible
    else:
        axis.set_major_formatter(tick_text)
        low, high = (ax.get_xlim if name == "x" else ax.get_ylim)()
        upright = name == "y" or bool(panel.y.categories)
        if upright and low < 0.4 * high and low > -0.1 * high:
            low = 0 if low < 0 and not _negative(panel) else min(low, 0)
            limits(low, high)
        rules = [rule.at for rule in panel.rules if rule.along == name]
        limits(min([low, *rules]), max([high, *(1.08 * at for at in rules)]))


def _negative(panel: Panel) -> bool:
    """Whether any number of a panel lies below zero."""
    lying = bool(panel.y.categories)
    return any(v < 0 for s in panel.series for v in ((*s.x, *s.base) if lying else (*s.y, *s.base)))


def _ticks(axis: Any, places: list[float], texts: list[str] | None = None) -> None:
    axis.set_ticks(places, texts if texts is not None else [tick_text(v) for v in places])
    axis.set_ticks([], minor=True)


def _rule_text(ax: Axes, text: str, along: str, at: float) -> None:
    """The name of a rule at the end of its line."""
    look = {"fontsize": 7.5, "bbox": {"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 0.8}}
    if along == "x":
        ax.annotate(text, (at, 1), (0, 2), ("data", "axes fraction"), "offset points", ha="center", **look)
    else:
        ax.annotate(text, (1, at), (-4, 4), ("axes fraction", "data"), "offset points", ha="right", **look)


def _crosses(ax: Axes, panel: Panel, names: Mapping[str, int]) -> None:
    """A cross for each bar or mark of a line that is infeasible: beside its number, or at the foot of the axes."""
    lying, crossed = bool(panel.y.categories), Counter[float]()
    for series in (s for s in panel.series if s.shape in ("line", "bars")):
        values, at = (series.x, series.y) if lying else (series.y, series.x)
        for place, value, why in zip(at, values, series.reasons, strict=False):
            if not why:
                continue
            known = bool(np.isfinite(value))
            number, across = (value, "data") if known else (0.012 if lying else 0.02, "axes fraction")
            xy, where = ((number, place), (across, "data")) if lying else ((place, number), ("data", across))
            away = 6 if known else 7 * crossed[place]
            crossed[place] += not known
            colour = "#222222" if known else style(names[series.name])["color"] if len(names) > 1 else GREY
            offset = (away, 0) if lying else (0, away)
            ax.annotate(
                "\u00d7", xy, offset, where, "offset points", ha="center", va="center", fontsize=9, color=colour
            )
