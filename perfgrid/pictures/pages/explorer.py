"""What the explorer answers to its page: marks, derivations, comparisons, the study of a view."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import xarray as xr
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perfgrid.analysis.compare import BASES, compare
from perfgrid.catalog.reading import from_json
from perfgrid.engine.errors import PerfgridError, mistake_text
from perfgrid.engine.hashing import digest
from perfgrid.results.provenance import workload_of
from perfgrid.text.numbers import number

from .changed import Changes
from .content import content, derivation, heading, pictures
from .embedded import MOST_POINTS, part
from .grid import Grid, Slice
from .page import plain_data
from .page_tables import column_of
from .view_study import view_study

MOST_BESIDE = 2**18  # designs of a lazily evaluated grid of which tables tell
HINT = (
    "Choose a quantity and axes, move the sliders, filter the designs. A click on a mark takes its design apart. "
    "Sliders of quantities change this section; all others show the values as stated."
)


class Asked(BaseModel):
    """What a page may send."""

    model_config = ConfigDict(extra="forbid", strict=True)


Row = Annotated[int, Field(ge=0, lt=2**31)]
Rows = dict[str, Row]
Factors = Annotated[dict[str, Annotated[float, Field(gt=0, lt=1e6, allow_inf_nan=False)]], Field(max_length=32)]


class AskedMarks(Asked):
    """A slice, and factors on given quantities."""

    quantity: str
    axes: list[str] = Field(max_length=2)
    rows: dict[str, list[Row]]
    by: str
    least: bool = True
    changed: Factors = Field(default_factory=dict)

    def slice(self) -> Slice:
        """The slice of the grid."""
        return Slice(self.quantity, tuple(self.axes), self.rows, self.by, self.least)


class AskedDesign(Asked):
    """A quantity of one design."""

    quantity: str
    rows: Rows
    changed: Factors = Field(default_factory=dict)


class AskedAll(Asked):
    """All quantities of one design."""

    rows: Rows
    changed: Factors = Field(default_factory=dict)


class AskedTwo(Asked):
    """Two designs, with the same factors on given quantities."""

    a: Rows
    b: Rows
    changed: Factors = Field(default_factory=dict)


class AskedStudy(AskedMarks):
    """A slice, and whether it is shown as a heat map."""

    cells: bool = False


class AskedNothing(Asked):
    """A question without parameters."""


class AskedRest(Asked):
    """The version of what the page has."""

    version: str


def first_question(about: Mapping[str, Any]) -> dict[str, Any]:
    """The slice of the view that a page begins with, as the page asks for it (`View.request` of view.js)."""
    view, rows = about["view"], {}
    for axis in about["axes"]:
        name = axis["name"]
        held = view["rows"][name]
        wanted = {column: value for column, value in view["narrow"].get(name, {}).items() if column in axis["columns"]}
        every = [
            row for row in range(len(axis["texts"])) if all(axis["columns"][c][row] == v for c, v in wanted.items())
        ]
        rows[name] = every if name in (view["x"], view["series"]) or held == "best" else [held]
    asked = {"quantity": view["quantity"], "axes": [a for a in (view["series"], view["x"]) if a], "rows": rows}
    return asked | {"by": about["objective"], "least": about["least"]}


@dataclass
class Explorer:
    """The answers about one result. One at a time is evaluated: processors are few, and stale questions many.

    Of a grid of a few million designs all values are kept once the page has asked for the rest.
    """

    result: xr.Dataset
    name: str
    formulas: tuple[Callable[..., Any], ...] = ()
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.grid = Grid(self.result)
        self._opening: dict[str, Any] = {}
        self._rest: dict[str, Any] = {}
        self._pictures: dict[str, Any] = {}
        self._resting = threading.Lock()
        if not self.grid.quantities:
            raise PerfgridError(f"{self.name} holds no quantity that could be shown")
        self.changes = Changes(self.grid, self.formulas)
        self.questions: Mapping[str, tuple[type[Asked], Callable[[Any], dict[str, Any]]]] = {
            "marks": (AskedMarks, self.marks),
            "design": (AskedAll, self.design),
            "explain": (AskedDesign, self.explain),
            "compare": (AskedTwo, self.compare),
            "study": (AskedStudy, self.study),
            "rest": (AskedRest, self.rest),
            "pictures": (AskedNothing, self.pictures),
        }

    def opening(self) -> dict[str, Any]:
        """What the page shows at once, the first view with its marks; it asks for the rest. Found once."""
        with self.lock:
            self._opening = self._opening or self._at_once()
        return self._opening

    def _at_once(self) -> dict[str, Any]:
        told = heading(self.result, self.name) | {"kind": f"perfgrid explore {self.name}", "live": True, "hint": HINT}
        comparable, about = workload_of(self.result) in BASES, self.grid.about()
        told |= {"grid": about, "knobs": self.changes.knobs, "comparable": comparable}
        told["first"] = self.marks(AskedMarks(**first_question(about)))
        return told | {"version": digest(json.dumps(plain_data(told), sort_keys=True))}

    def answer(self, what: str, text: bytes) -> dict[str, Any]:
        """The answer to a question. PerfgridError for an unknown or a malformed one."""
        if what not in self.questions:
            raise PerfgridError("unknown question")
        kind, act = self.questions[what]
        try:
            asked = kind.model_validate(from_json(text.decode()))
        except UnicodeDecodeError:
            raise PerfgridError("a question is text in UTF-8") from None
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "the question"
            raise PerfgridError(f"{place}: {mistake_text(first)}") from None
        if kind in (AskedRest, AskedNothing):
            return act(asked)
        with self.lock:
            return act(asked)

    def marks(self, asked: AskedMarks) -> dict[str, Any]:
        """Numbers, reasons and rows of a slice."""
        grid, more = (self.changes, (asked.changed,)) if asked.changed else (self.grid, ())
        found = grid.marks(asked.slice(), *more)
        rows = {axis: rows.tolist() for axis, rows in found.rows.items()}
        return {"numbers": found.numbers.tolist(), "reasons": found.reasons.tolist(), "rows": rows}

    def design(self, asked: AskedAll) -> dict[str, Any]:
        """Every quantity of a design, and the first constraint that each violates."""
        rows = {axis: np.array([row]) for axis, row in self._rows(asked.rows).items()}
        found = self.changes.design(rows, asked.changed) if asked.changed else self.grid.design(rows)
        of = [found[name] for name in self.grid.quantities]
        return {"numbers": [one.numbers.item() for one in of], "reasons": [one.reasons.item() for one in of]}

    def explain(self, asked: AskedDesign) -> dict[str, Any]:
        """A number taken apart."""
        changed = Grid(self.changes.result(asked.changed)) if asked.changed else self.grid
        return derivation(changed, asked.quantity, self._rows(asked.rows), self.formulas)

    def compare(self, asked: AskedTwo) -> dict[str, Any]:
        """Two designs part by part."""
        sides = [self._labels(rows) for rows in (asked.a, asked.b)]
        same = {axis: label for axis, label in sides[0].items() if sides[1][axis] == label}
        a, b = ({axis: v for axis, v in side.items() if axis not in same} for side in sides)
        found = compare(self.changes.result(asked.changed), a, b, same, self.formulas)
        parts = [part for part in found.parts if part[1] or part[2]]
        columns = [
            column_of("part", [part[0] for part in parts]),
            column_of("A", [part[1] for part in parts], "s"),
            column_of("B", [part[2] for part in parts], "s"),
            column_of("B - A", [part[2] - part[1] for part in parts], "s"),
        ]
        times = [number(time, "s") for time in found.times]
        text = f"{found.quantity}: A {times[0]}, B {times[1]}; B is {found.speedup:.3g} times as fast"
        text += " per token" if found.per_token else ""
        tied = ["The difference is within the error that the model has in comparing designs."] if found.tied else []
        return {"sentences": [f"{text}.", *tied], "table": {"columns": columns, "designs": []}}

    def study(self, asked: AskedStudy) -> dict[str, Any]:
        """The study file of a view."""
        self.changes.check(asked.changed)
        return {"text": view_study(self.grid, asked.slice(), asked.changed, self.formulas, asked.cells)}

    def rest(self, asked: AskedRest) -> dict[str, Any]:
        """What a page shows beside the view: of a part where the grid is large. Found once.

        A page of an earlier version has to be loaded again.
        """
        if asked.version != self.opening()["version"]:
            return {"reload": True}
        with self._resting:
            if not self._rest:
                shown, held = self._beside
                self._rest = content(shown, self.name, self.formulas)
                if held:
                    words = ", ".join(f"{a} {v}" for a, v in held.items())
                    self._rest["summary"].append(f"Tables and pictures are of the part with {words}.")
                    self._rest["best"] = self._rest["best"] and self._rest["best"] | {"designs": []}  # of other rows
        return self._rest

    def pictures(self, asked: AskedNothing) -> dict[str, Any]:
        """The pictures below the tables. Found once."""
        with self._resting:
            self._pictures = self._pictures or {"pictures": pictures(self._beside[0].result, self.formulas)}
        return self._pictures

    @cached_property
    def _beside(self) -> tuple[Grid, dict[str, str]]:
        """What tables and pictures are of, in memory, and the labels at which other axes are held."""
        shown, held = part(self.grid, MOST_BESIDE if self.grid.lazy else MOST_POINTS)
        for variable in shown.result.variables.values():  # one by one, so that the view need not wait for all
            with self.lock:
                variable.load()
        return shown, held

    def _rows(self, rows: Mapping[str, int]) -> dict[str, int]:
        asked = Slice(self.grid.quantities[0], (), {a: [r] for a, r in rows.items()}, self.grid.quantities[0])
        return {axis: int(found[0]) for axis, found in self.grid.checked(asked).items()}

    def _labels(self, rows: Mapping[str, int]) -> dict[str, Any]:
        return {axis: self.grid.labels(axis)[row].item() for axis, row in self._rows(rows).items()}
