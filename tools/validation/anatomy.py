"""``python -m tools.validation.anatomy [PROFILE ...]``: published profiles of a step beside what is predicted.

Each profile of profiles.toml is a configuration, as a study, with measured seconds by category. Predicted are the parts
of `step_anatomy`, passes of a pipeline as its schedule plays them, or outputs of the study.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.analysis.execution import BESIDE
from perfgrid.analysis.step_anatomy import StepAnatomy, step_anatomy
from perfgrid.analysis.timeline import timeline
from perfgrid.catalog import Catalog, load_catalog
from perfgrid.catalog.units import in_unit
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.grid.replay import index_of, replay_point
from perfgrid.printing.console import out
from perfgrid.printing.tables import print_table
from perfgrid.study.study import Study

from . import data

ALONE = {  # kinds of a timeline's events -> what a pass without a partner is called
    "forward": "forward alone",
    "backward": "backward alone",
    "input_gradient": "backward alone",
    "weight_gradient": "weight gradients alone",
    "wait": "idle",
}
PAIRS = "pairs"
PASSES = (*dict.fromkeys(ALONE.values()), PAIRS)
FAR = 0.25  # relative difference from which on it is explained


@dataclass(frozen=True)
class Category:
    """Measured seconds of a category, what is predicted in its place, and what makes a large difference."""

    name: str
    measured: float
    predicted: float
    note: str = ""

    @property
    def difference(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured - 1

    @property
    def reason(self) -> str:
        """What most likely makes the difference; empty for a small one."""
        return (self.note or "not explained") if abs(self.difference) > FAR else ""


@dataclass(frozen=True)
class Profile:
    """A published profile: its configuration as a study, its categories as stated."""

    name: str
    stated: Mapping[str, Any]
    study: Study
    catalog: Catalog
    anatomies: dict[str, StepAnatomy] = field(default_factory=dict, repr=False)  # by labels

    @cached_property
    def citation(self) -> str:
        """Where the profile is published."""
        key = str(self.stated["source"])
        return f"{self.catalog.references.get(key, key)}, {self.stated['where']}"

    @cached_property
    def categories(self) -> list[Category]:
        """All categories with what is predicted. PerfgridError for a part that a step does not have."""
        found = []
        for name, about in self.stated["category"].items():
            at = about.get("at", {})
            predicted = sum(self.seconds(part, at) for part in about["predicted"])
            found.append(Category(name, in_unit(about["measured"], "s"), predicted, about.get("note", "")))
        return found

    @cached_property
    def beside(self) -> dict[str, float]:
        """Parts of the predicted step that no category of the source shows, largest first."""
        if "timeline_device" in self.stated or any(len(axis) > 1 for axis in self.study.space.axes):
            return {}
        shown = {part for about in self.stated["category"].values() for part in about["predicted"]}
        shares = self.anatomy({}).shares
        left: defaultdict[str, float] = defaultdict(float)
        for share in shares:
            if not {share.category, share.name, *(["kernels"] if share.done else [])} & shown:
                left[share.category] += share.time
        return dict(sorted(left.items(), key=lambda item: -item[1]))

    def seconds(self, part: str, at: Mapping[str, Any]) -> float:
        """Predicted seconds of a part of a step, of a pass of its timeline or of an output of the study."""
        if part in PASSES:
            return self.passes.get(part, 0.0)
        if part in self.study.outputs:
            space, index = self.study.space, index_of(self.study.space, self.labels(at))
            _, values = replay_point(self.study.registry, space, (part,), index, self.study.file.choices)
            return float(np.squeeze(values[part]))
        return self.anatomy(at).seconds(part)

    def anatomy(self, at: Mapping[str, Any]) -> StepAnatomy:
        """The parts of the predicted step at some labels."""
        key = str(labels := self.labels(at))
        if key not in self.anatomies:
            self.anatomies[key] = step_anatomy(self.study, labels)
        return self.anatomies[key]

    def labels(self, at: Mapping[str, Any]) -> dict[str, Any]:
        """A label of every axis: the first one of axes that are not named."""
        return {axis.name: axis.labels[0].item() for axis in self.study.space.axes} | dict(at)

    @cached_property
    def passes(self) -> dict[str, float]:
        """Seconds of one device of the pipeline by pass."""
        return passes_of(timeline(self.study, self.labels({})), int(self.stated["timeline_device"]))


def passes_of(events: xr.Dataset, device: int) -> dict[str, float]:
    """Seconds of one device of a timeline: passes alone, pairs of passes side by side, and waiting."""
    kinds: defaultdict[tuple[float, float], list[str]] = defaultdict(list)
    for at, kind, start, end in zip(*(events[n].values for n in ("device", "kind", "start", "end")), strict=True):
        if at == device and kind not in BESIDE:
            kinds[float(start), float(end)].append(str(kind))
    found: defaultdict[str, float] = defaultdict(float)
    for (start, end), side_by_side in kinds.items():
        found[PAIRS if len(side_by_side) > 1 else ALONE[side_by_side[0]]] += end - start
    return dict(found)


def profiles(names: Iterable[str] = (), catalog: Catalog | None = None) -> list[Profile]:
    """The published profiles, or the named ones. PerfgridError for an unknown name."""
    catalog = catalog or load_catalog()
    stated = {about["name"]: about for about in data("profiles")["profile"]}
    wanted = list(names) or list(stated)
    for name in wanted:
        if name not in stated:
            raise PerfgridError(f"there is no profile {name!r}{nearest(name, stated)}")
    return [Profile(name, stated[name], _study(stated[name], catalog), catalog) for name in wanted]


def _study(about: Mapping[str, Any], catalog: Catalog) -> Study:
    """The configuration of a profile as a study."""
    content = {"outputs": ["step_time"], **about["study"]}
    if stated := about.get("as_software"):
        values = catalog.entry("software", content["axes"]["software"][0]).values
        taken = {name: values[other] for name, other in stated.items()}
        content["overrides"] = content.get("overrides", {}) | taken
    return Study.make(catalog, title=about["title"], dtype="float64", **content)


def show(profile: Profile) -> None:
    """Print one profile: its table, what is left out, and what makes large differences."""
    out.print(f"{profile.name}: {profile.stated['title']}")
    out.print(f"source: {profile.citation}")
    lines = [
        [c.name, f"{c.measured:#.3g}", f"{c.predicted:#.3g}", f"{c.difference:+.0%}", c.reason]
        for c in profile.categories
    ]
    headers = ("category", "measured s", "predicted s", "difference", "most likely")
    print_table(headers, lines, right=headers[1:4], prose=headers[4:], names=False)
    if profile.beside:
        parts = (f"{name} {time:.3g} s" for name, time in profile.beside.items())
        out.print("also predicted: " + ", ".join(parts))
        for violated in profile.anatomy({}).violated:
            out.print(f"predicted not to be feasible: {violated.reason}")
    out.print(f"not compared: {profile.stated['not_compared']}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print profiles."""
    parser = ArgumentParser(prog="python -m tools.validation.anatomy", description="Profiles of a step by category.")
    known = [about["name"] for about in data("profiles")["profile"]]
    parser.add_argument("profile", nargs="*", help=f"by default all: {', '.join(known)}")
    try:
        found = profiles(parser.parse_args(arguments).profile)
    except PerfgridError as error:
        parser.error(str(error))
    for number, profile in enumerate(found):
        if number:
            print()
        show(profile)


if __name__ == "__main__":
    main()
