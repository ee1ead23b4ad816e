"""From a subject and a view to a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import xarray as xr
from pydantic import ValidationError

from perfgrid.analysis.compare import Comparison
from perfgrid.analysis.joined_pools import join_pools
from perfgrid.analysis.pareto import DESIGN
from perfgrid.analysis.roofline import Roofline
from perfgrid.engine.errors import PerfgridError, mistake_text, nearest, shown
from perfgrid.engine.grid.dataset import SPACE_ATTRIBUTE
from perfgrid.pictures.picture import Picture
from perfgrid.results.opening import open_result
from perfgrid.study.file import POOLS
from perfgrid.study.study import Study, content_of, load_study
from perfgrid.study.view import Kind, View

from .breakdown import breakdown, memory
from .default import completed, default_views
from .frontier import frontier
from .heatmap import heatmap
from .lines import bars, lines
from .measured import measured
from .outputs import histogram, optimum, rankings, spreads
from .roofline import roofline_of, roofline_view
from .scatter import scatter
from .subject import Subject
from .timeline import timeline_of, timeline_view
from .tornado import tornado_of, tornado_view
from .waterfall import waterfall, waterfall_of

KINDS: Mapping[str, Callable[[Subject, View], Picture]] = {
    "lines": lines,
    "bars": bars,
    "scatter": scatter,
    "heatmap": heatmap,
    "frontier": frontier,
    "breakdown": breakdown,
    "memory": memory,
    "roofline": roofline_view,
    "waterfall": waterfall,
    "tornado": tornado_view,
    "timeline": timeline_view,
}
LOOKS = {
    "name",
    "title",
    "see",
    "units",
    "x_scale",
    "y_scale",
    "count",
    "published",
}  # keys of a view that leave its numbers
OF_COMMANDS: Mapping[str, tuple[Callable[[xr.Dataset, View], Picture], Kind]] = {  # what is saved beside designs
    "tornado": (tornado_of, "tornado"),
    "timeline": (timeline_of, "timeline"),
    "measured": (measured, "scatter"),
    "ranking": (rankings, "bars"),
    "histogram": (histogram, "lines"),
    "quantiles": (spreads, "bars"),
    "optimum": (optimum, "bars"),
}


def subject_of(what: Any, formulas: Iterable[Callable[..., Any]] = ()) -> Any:
    """A study, a result or what an analysis gives, as it is or from a path. PerfgridError for anything else."""
    if isinstance(what, str | Path):
        path = Path(what)
        if path.suffix != ".toml":
            return open_result(path, formulas=formulas)
        two = set(POOLS) & set(content_of(path)[0])
        return (join_pools if two else load_study)(path, formulas=formulas)
    dataset = getattr(what, "dataset", None)  # of a validation
    what = dataset() if callable(dataset) and not isinstance(what, xr.Dataset) else what
    if not isinstance(what, Study | xr.Dataset | Comparison | Roofline):
        raise PerfgridError(f"a picture needs a study or a result, found {type(what).__name__}")
    return what


def views_of(what: Study | xr.Dataset | Comparison | Roofline) -> list[View]:
    """The views of a study or of the study that made a result, or good ones where none are stated; each has a name."""
    if isinstance(what, Comparison):
        return [View(name="waterfall", kind="waterfall")]
    if isinstance(what, Roofline):
        return [View(name="roofline", kind="roofline")]
    if isinstance(what, xr.Dataset) and (kind := kind_of_command(what)):
        return [View(name=kind, kind=OF_COMMANDS[kind][1])]
    subject = Subject(what)
    found: list[View] = []
    for view in subject.views or default_views(subject):
        name, taken = view.name or view.kind, [v.name for v in found]
        count = sum(n == name or n.rpartition("-")[0] == name for n in taken)
        found.append(view.model_copy(update={"name": name if not count or view.name else f"{name}-{count + 1}"}))
    return found


def kind_of_command(found: xr.Dataset) -> str:
    """The command that saved a dataset which holds no designs; empty for designs."""
    dims, held = set(map(str, found.dims)), set(map(str, found.variables))
    if {"low", "high", "stated"} <= held and "assumption" in dims:
        return "tornado"
    if "event" in dims and {"kind", "start", "end"} <= held:
        return "timeline"
    if "record" in dims and {"measured", "predicted"} <= held:
        return "measured"
    if "parameter" in dims:
        return "ranking"
    if "histogram" in held and "bin" in dims:
        return "histogram"
    if "quantile" in dims:
        return "quantiles"
    if "objective" in held and "knob" in dims | held:
        return "optimum"
    if DESIGN not in dims and SPACE_ATTRIBUTE not in found.attrs:
        raise PerfgridError("nothing to draw: the dataset is no result of perfgrid")
    return ""


def picture_of(
    what: Study | xr.Dataset | Comparison | Roofline,
    view: View | Mapping[str, Any] | str | None = None,
    formulas: Iterable[Callable[..., Any]] = (),
) -> Picture:
    """The picture of a view: one by name, a table like ``[[view]]``, or the first.

    PerfgridError for an unknown name, axis, label or output, and where no design is feasible.
    """
    known = views_of(what)
    wanted = known[0] if view is None else view_in(known, view)
    if isinstance(what, Comparison):
        return _titled(waterfall_of(what, wanted), "")
    if isinstance(what, Roofline):
        return _titled(roofline_of(what, wanted), "")
    subject = Subject(what, tuple(formulas))
    title = str(what.attrs.get("title", "")) if isinstance(what, xr.Dataset) else what.file.title
    if isinstance(what, xr.Dataset) and (command := kind_of_command(what)):
        if wanted.name != command:
            raise PerfgridError(f"there is no view {wanted.name!r}: the only one of this result is {command!r}")
        if wanted.at and command != "measured":
            raise PerfgridError(f"the picture of a {command} has no labels to select")
        return _titled(OF_COMMANDS[command][0](what, wanted), title or command.capitalize())
    return _titled(KINDS[wanted.kind](subject, completed(subject, wanted)), title)


def changed(view: View, **keys: Any) -> View:
    """A view with other keys; what its title and its sentence say may not hold for them. PerfgridError as `view_in`."""
    said = {} if keys.keys() <= LOOKS else {"title": "", "see": ""}
    return view_in([], {**view.model_dump(exclude_unset=True), **said, **keys})


def view_in(known: list[View], view: View | Mapping[str, Any] | str) -> View:
    """A view by its name or from its table. PerfgridError for an unknown name, and for keys that no view has."""
    if isinstance(view, View):
        return view if view.name else view.model_copy(update={"name": view.kind})
    if isinstance(view, str):
        names = {one.name: one for one in known}
        if view in names:
            return names[view]
        if view in KINDS:
            return View(name=view, kind=view)  # pyright: ignore[reportArgumentType]
        raise PerfgridError(f"there is no view {view!r}{nearest(view, [*names, *KINDS])}")
    try:
        return view_in(known, View.model_validate(dict(view)))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise PerfgridError(f"view: unknown key {key!r}{nearest(key, View.model_fields)}") from None
        raise PerfgridError(f"view, {key}: {mistake_text(first)}, found {shown(first['input'])}") from None


def _titled(picture: Picture, title: str) -> Picture:
    """The picture with the title of its study where the view has none."""
    return replace(picture, title=picture.title or title)
