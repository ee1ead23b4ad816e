"""A view of a study or a result as a picture (`perfgrid.plot`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from perfgrid.study.view import View

from .figures.draw import draw_on, figure_of, matplotlib
from .views.make import changed, picture_of, subject_of, view_in, views_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot(
    subject: Any,
    view: str | Mapping[str, Any] | View | None = None,
    ax: Axes | None = None,
    formulas: Iterable[Callable[..., Any]] = (),
    **keys: Any,
) -> Any:
    """Draw a view of a study or a result.

    Parameters
    ----------
    subject
        A study, a result (of any function or command that saves one), a validation or a comparison; or a path.
    view
        The name of one of the ``[[view]]`` of its study, a kind (lines, bars, scatter, heatmap, frontier, breakdown,
        memory, roofline, waterfall, tornado, timeline), or what a ``[[view]]`` holds. Default: the first of the study,
        or a good one.
    ax
        Axes to draw on, of a view of one panel. Default: those of a new figure with title and caption.
    formulas
        The user's own formulas with which a result was made.
    **keys
        Keys of ``[[view]]`` that replace those of the view, such as ``at={"device": "b200"}``.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, in the units that their labels name; a list of them for a view of several panels.

    Raises
    ------
    PerfgridError
        For an unknown view, key, axis, label or output, where no design is feasible, and without Matplotlib.

    Examples
    --------
    >>> import perfgrid as pg
    >>> bill = pg.Study.make(workload="manufacturing", outputs=["die_cost"], axes={"device": ["h100-sxm-80gb", "b200"]})
    >>> pg.plot(bill, kind="bars", x="device", y="die_cost").get_ylabel()
    'die cost [$]'
    """
    what = subject_of(subject, formulas)
    if keys:
        known = views_of(what)
        base = View() if view is None and "kind" in keys else view_in(known, known[0] if view is None else view)
        view = changed(base, **keys)
    picture = picture_of(what, view, formulas)
    if ax is not None:
        return draw_on(picture, ax)
    matplotlib()
    from matplotlib import pyplot

    axes = figure_of(picture, pyplot.figure())[1]
    return axes[0] if len(axes) == 1 else axes
