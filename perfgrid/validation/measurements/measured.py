"""A file of measurements with what it leaves open, and what readers share: names of devices, steady steps."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from perfgrid.engine.errors import PerfgridError

FEWEST = 3  # logged steps behind a median
WARM_UP = 1.3  # times the median of the second half: steps before the first one below it are left out
LONGEST_LINE = 4096  # characters of a line of a log that are read: patterns take time with its square
MAKER = re.compile(r"^((NVIDIA|AMD|Tesla|GeForce|Instinct)[ -])+")
UNSTEADY = 0.25  # distance of the quartiles, relative to the median, from which on there is no steady step


@dataclass(frozen=True)
class Measured:
    """A file, its kind (None: by its content), the job behind it, and what neither states.

    ``job``: configurations that `perfgrid read-job` reads, or a study; ``on``: a device of the catalog; ``stated``:
    further quantities, also ``model``, ``software`` and ``topology``.
    """

    path: Path
    kind: str | None = None
    job: tuple[Path, ...] = ()
    on: str | None = None
    stated: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class Steady:
    """The median of steady steps, their quartiles, how many, and which."""

    median: float
    quartiles: tuple[float, float]
    count: int
    first: int
    last: int

    def words(self, unit: str = "steps") -> str:
        """In words, for the note of a record."""
        return f"median of {self.count} {unit}, {self.first} to {self.last}"


def steady(numbers: Sequence[int], values: Sequence[float], where: str) -> Steady:
    """The steady part of logged steps: behind a warm-up, as long as their quartiles lie close together.

    ``numbers``: of the steps; ``values``: seconds, or any other value of each. PerfgridError where there are too few,
    and where they scatter too much.
    """
    if len(values) < FEWEST:
        raise PerfgridError(f"{where}: {len(values)} logged steps, at least {FEWEST} are needed")
    array = np.asarray(values, float)
    if not (np.isfinite(array) & (array > 0)).all():
        raise PerfgridError(f"{where}: a logged step takes no time, or one that is no number")
    usual = float(np.median(array[len(array) // 2 :]))
    off = np.abs(np.log(array / usual)) > np.log(WARM_UP)
    begin = max(1, int(np.argmin(off))) if len(array) > FEWEST else int(np.argmin(off))
    kept = array[begin:]
    if off.all() or len(kept) < FEWEST:
        raise PerfgridError(f"{where}: no steady step: all but {len(kept)} of {len(array)} belong to the warm-up")
    low, middle, high = (float(q) for q in np.quantile(kept, (0.25, 0.5, 0.75)))
    if high - low > UNSTEADY * middle:
        raise PerfgridError(
            f"{where}: no steady step: half of {len(kept)} steps lie between {low:.3g} and {high:.3g}, "
            f"{(high - low) / middle:.0%} of the median apart"
        )
    return Steady(middle, (low, high), len(kept), int(numbers[begin]), int(numbers[-1]))


def last_run(steps: Iterable[tuple[int, float, str]], alone: bool = False) -> int:
    """The line with which the run before the last one in a log ends; 0 for a log of one run.

    ``steps``: line, number of the step, and the rank that logs it; a run begins where the number of a rank falls.
    ``alone``: one rank logs each step once, so that a repeated number is a new run as well.
    """
    before: dict[str, tuple[int, float]] = {}
    ended = 0
    for line, number, rank in steps:
        last, known = before.get(rank, (0, -np.inf))
        if number < known or (alone and number == known):
            ended = max(ended, last)
        before[rank] = (line, number)
    return ended


def lines_of(text: str) -> list[tuple[int, str]]:
    """The lines of a log by number, without trailing blanks; what no line of a log is as long as is cut."""
    return [(number, line[:LONGEST_LINE].rstrip()) for number, line in enumerate(text.splitlines(), 1)]


@cache
def names() -> dict[str, Any]:
    """What columns, devices and kernels are called (names.toml)."""
    return tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8"))


def device_called(text: str, gigabytes: float | None = None) -> str | None:
    """The device of the catalog that drivers call so; None for an unknown or ambiguous name.

    ``gigabytes``: the memory that they state beside it.
    """
    text = MAKER.sub("", text.strip())
    for row in names()["device"]:
        fits = gigabytes is None or row.get("above", 0) <= gigabytes < row.get("below", np.inf)
        if re.fullmatch(row["pattern"], text) and fits and (gigabytes is not None or not row.get("memory_needed")):
            return row["name"]
    return None


def stated_device(found: str | None, stated: str | None) -> str | None:
    """The device that a file names; None where the user states one that drivers do not tell, such as an own entry."""
    return found if stated is None or any(stated == row["name"] for row in names()["device"]) else None


def slug(text: str) -> str:
    """Text as a part of an id."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-") or "x"
