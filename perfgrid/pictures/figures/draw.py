"""Pictures drawn by Matplotlib: whole figures with title and caption, for screens, pages and print."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, simplefilter

from perfgrid.engine.errors import PerfgridError
from perfgrid.pictures.picture import Panel, Picture
from perfgrid.results.files import check_output, replacing

from .panel import draw_axes, draw_marks, legend_of
from .style import SETTINGS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
DPI = 120
WIDTHS = {1: 8.0, 2: 10.5, 3: 13.0}  # inches, by columns of panels
HEIGHT, LINE = 3.7, 0.165  # inches: of a row of panels, of a line of the caption
CELL, MOST_ROWS = 0.36, 24  # inches: of a row of cells, which is half as high where there are more rows
BAR = 0.26  # inches: of a bar on its side
WORDY = 14.6  # characters of a caption in an inch


def matplotlib() -> Any:
    """The library, with an error in one line where it is not installed."""
    try:
        import matplotlib as found
    except ImportError:
        raise PerfgridError("a picture needs matplotlib: pip install 'perfgrid[plot]'") from None
    return found


def figure_of(picture: Picture, figure: Figure | None = None) -> tuple[Figure, list[Axes]]:
    """Draw a picture with its title, sentence and caption; its axes, one for each panel."""
    library = matplotlib()
    with library.rc_context(dict(SETTINGS)):
        from matplotlib.figure import Figure

        columns = _columns(len(picture.panels))
        rows = -(-len(picture.panels) // columns)
        width = WIDTHS[columns]
        above = [*_wrapped([picture.title], width, 0.62), *_wrapped([picture.see], width, 0.85)]
        below = _wrapped(picture.caption, width, 1.08)
        title_lines = len(_wrapped([picture.title], width, 0.62))
        top, bottom = 0.12 + 0.2 * len(above), 0.1 + LINE * len(below)
        body = sum(_height(picture.panels[i * columns : (i + 1) * columns]) for i in range(rows))
        height = top + body + bottom
        figure = Figure() if figure is None else figure
        figure.set_size_inches(width, height)
        figure.set_layout_engine("constrained", rect=(0, bottom / height, 1, body / height), h_pad=0.06, w_pad=0.06)
        grid = figure.subplots(rows, columns, squeeze=False, **_shared(picture.panels))
        axes = list(grid.ravel())
        for spare in axes[len(picture.panels) :]:
            spare.set_axis_off()
        names = picture.names()
        pairs = list(zip(picture.panels, axes, strict=False))
        for number, (panel, ax) in enumerate(pairs):
            draw_marks(ax, panel, names, f"panel-{number}")
        for number, (panel, ax) in enumerate(pairs):
            draw_axes(ax, panel, names, outer=number % columns == 0 or "sharey" not in _shared(picture.panels))
        handles = legend_of(picture, names)
        if handles:
            figure.legend(handles=handles, title=picture.legend or None, loc="outside right center", frameon=False)
        for i, line in enumerate(above):
            titled = i < title_lines
            figure.text(
                0.1 / width,
                1 - (0.1 + 0.2 * i) / height,
                line,
                va="top",
                fontsize=11 if titled else 9,
                fontweight="bold" if titled else "normal",
                color="black" if titled else "#333333",
            )
        for i, line in enumerate(below):
            y = (bottom - 0.08 - LINE * i) / height
            figure.text(0.1 / width, y, line, va="top", fontsize=7.5, color="#444444")
    return figure, axes[: len(picture.panels)]


def draw_on(picture: Picture, ax: Axes) -> Axes:
    """Draw a picture of one panel on axes that the user has, with a legend and without its caption."""
    if len(picture.panels) != 1:
        raise PerfgridError(f"the picture has {len(picture.panels)} panels and does not fit one pair of axes")
    with matplotlib().rc_context(dict(SETTINGS)):
        names = picture.names()
        draw_marks(ax, picture.panels[0], names, "panel-0")
        draw_axes(ax, picture.panels[0], names)
        if handles := legend_of(picture, names):
            ax.legend(handles=handles, title=picture.legend or None)
        ax.set_title(picture.title)
    return ax


def check_figure(path: str | Path, overwrite: bool = False) -> Path:
    """The path of a picture if it can be written. PerfgridError like `check_output`, and for other suffixes."""
    target = Path(path)
    if target.suffix not in SUFFIXES:
        raise PerfgridError(f"cannot write {str(target)!r}: the name of a picture must end in {', '.join(SUFFIXES)}")
    return check_output(target, overwrite, target.suffix)


def save_figure(picture: Picture, path: str | Path, overwrite: bool = False) -> Path:
    """Write a picture as PNG, SVG or PDF, as its suffix says; it appears when it is complete."""
    target = check_figure(path, overwrite)
    figure, _ = figure_of(picture)
    kind = target.suffix.removeprefix(".")
    unset = {"png": "Software", "svg": "Date", "pdf": "CreationDate"}
    with matplotlib().rc_context(dict(SETTINGS)), replacing(target) as temporary, catch_warnings():
        simplefilter("ignore", UserWarning)  # a letter that the font has not is drawn as a box
        figure.savefig(temporary, format=kind, dpi=DPI, metadata={unset[kind]: None})
        if kind == "png":
            _with_palette(temporary)
    return target


def _with_palette(path: str) -> None:
    """Write an image again with its 256 most frequent colours: a third of the bytes."""
    from PIL import Image  # which Matplotlib needs too

    with Image.open(path) as image:
        small = image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE)
    small.save(path, "PNG", optimize=True)


def _columns(panels: int) -> int:
    return panels if panels <= 3 else 2 if panels == 4 else 3


def _height(panels: Sequence[Panel]) -> float:
    """Of a row of panels: that of their bars on the side, or of their cells, else the usual one."""
    found = [0.0]
    for panel in panels:
        names = len(panel.y.categories)
        if names:
            across = max((round(0.8 / s.width) for s in panel.series if s.shape == "bars" and s.width < 0.8), default=1)
            found.append(
                0.95 + names * BAR * max(1.0, 0.6 * across)
                if panel.cells is None
                else 1.3 + names * (CELL if names <= MOST_ROWS else CELL / 2)
            )
    return max(1.6, *found) if max(found) > 0 else HEIGHT


def _shared(panels: Sequence[Panel]) -> dict[str, Any]:
    """Axes that all panels have in common."""
    if len(panels) < 2:
        return {}
    return {f"share{name}": True for name in "xy" if all(getattr(p, name) == getattr(panels[0], name) for p in panels)}


def _wrapped(lines: Sequence[str], width: float, size: float) -> list[str]:
    """Lines that fit a width in inches, at a share of the size of a caption's letters."""
    return [part for line in lines for part in textwrap.wrap(line, int(width * WORDY * size))]
