"""``--launch``: the configuration of a framework for the design that a command found."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.answers.saved import FILES
from perfgrid.catalog import load_catalog
from perfgrid.catalog.loader import entry_of
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.grid.dataset import study_axes
from perfgrid.jobs.design import launch_of
from perfgrid.jobs.formats import Format, format_of
from perfgrid.jobs.syntaxes import COMMENTED
from perfgrid.printing.console import err, print_line
from perfgrid.results.files import check_output, write_text
from perfgrid.study.study import Study, build_study

QUESTION = "--on"  # stands for the file of entries that a question changes


@dataclass(frozen=True)
class Launcher:
    """A framework, a version of it, and the file to write, if any."""

    format: Format
    version: str
    file: Path | None

    @classmethod
    def of(cls, text: str | None, overwrite: bool = False, as_json: bool = False) -> Launcher | None:
        """What ``--launch`` names, checked before anything is evaluated; None without the option."""
        if text is None:
            return None
        if as_json:
            raise PerfgridError("--json prints one object: give it without --launch")
        name, equals, file = text.partition("=")
        form, version = format_of(name)
        if form.writes is None:
            raise PerfgridError(f"{form.title} is read, not written")
        if equals:
            check_output(file, overwrite, Path(file).suffix)
        return cls(form, version, Path(file) if equals else None)

    def write(self, study: Study, labels: Mapping[str, Any] | None) -> None:
        """Write, or print, the configuration of a design of a study. PerfgridError where there is none."""
        if labels is None:
            raise PerfgridError("--launch: no design is feasible: there is no configuration to write")
        launch = launch_of(study, labels, self.format, self.version)
        if self.format.writes not in COMMENTED or self.file is not None:
            for note in launch.notes:
                err.print(f"note: {self.format.title} {self.version} does not state {note}")
        if self.file is None:
            for line in ("", *launch.text.splitlines()):
                print_line(line, whole=True)
        else:
            write_text(self.file, launch.text)
            print_line(f"saved {self.file}", whole=True)

    def write_answer(self, found: xr.Dataset, catalog: Iterable[Path]) -> None:
        """The same for the best design of an answer of ``train`` or ``serve``."""
        self.write(*answer_design(found, catalog))


def answer_design(found: xr.Dataset, catalog: Iterable[Path]) -> tuple[Study, dict[str, Any] | None]:
    """The study of an answer of ``train`` or ``serve``, and the labels of its best design; None for no design."""
    files = tuple(catalog)
    known = load_catalog(*files)
    for kind, text in json.loads(found.attrs[FILES]).items():
        for name, stated in tomllib.loads(text).items():
            if name != "kind":
                known = known.with_entry(entry_of(kind, name, stated, QUESTION, *files))
    study = build_study(tomllib.loads(found.attrs["study"]), "the question", known)
    return study, best_labels(study, found, found.attrs["objective"], found.attrs["sense"])


def best_labels(study: Study, found: xr.Dataset, objective: str, sense: str) -> dict[str, Any] | None:
    """The labels of the best one among the best designs of groups; None where none is feasible."""
    if not found["found"].values.any():  # then it may hold no values at all
        return None
    value = np.where(found["found"].values, found[objective].values, np.nan)
    place = np.unravel_index((np.nanargmin if sense == "minimize" else np.nanargmax)(value), value.shape)
    at = dict(zip(found["found"].dims, place, strict=True))
    labels = {}
    for axis in study_axes(study.space):
        if axis in found.dims and axis in found["found"].dims:
            labels[axis] = found[axis].values[at[axis]].item()
        elif axis in found.variables:
            held = found[axis]
            labels[axis] = held.values[tuple(at[d] for d in held.dims)].item()
    axes = {axis.name: axis for axis in study.space.axes}
    return {name: _label(axes[name].labels, label) for name, label in labels.items()}


def _label(labels: np.ndarray, label: Any) -> Any:
    """A label of an axis, which an answer holds as text."""
    return next((known.item() for known in labels if str(known) == str(label) or known == label), label)
