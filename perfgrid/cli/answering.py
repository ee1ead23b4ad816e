"""What ``train`` and ``serve`` do with an answer: save it, print it, write the configuration of its best design."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import xarray as xr

from perfgrid.answers.plain import answer_json, answer_rows, answer_units
from perfgrid.answers.saved import answer_design, save_study
from perfgrid.printing.answer import print_answer
from perfgrid.printing.assumptions_table import assumptions_data, print_assumptions
from perfgrid.printing.console import out, print_json

from .launching import Launcher
from .saving import Target


@dataclass(frozen=True)
class Answering:
    """The options of both commands that say where an answer goes; checked before anything is evaluated."""

    launcher: Launcher | None
    rows: Target
    study: Target
    assumptions: bool
    as_json: bool

    @classmethod
    def of(
        cls, launch: str | None, csv: Path | None, save: Path | None, assumptions: bool, overwrite: bool, as_json: bool
    ) -> Answering:
        """The checked options. PerfgridError for files that cannot be written."""
        launcher = Launcher.of(launch, overwrite, as_json)
        return cls(launcher, Target(csv, overwrite, ".csv"), Target(save, overwrite, ".toml"), assumptions, as_json)

    def show(self, found: xr.Dataset, files: Sequence[Path], note: str = "") -> None:
        """Save and print an answer. ``files``: of the catalog; ``note``: on its accuracy."""
        if self.study.path is not None:
            save_study(found, self.study.path, files, self.study.overwrite)
        self.rows.save_rows(answer_rows(found), answer_units(found))
        design = answer_design(found, files) if self.assumptions or self.launcher else None
        inputs = (found.attrs["objective"], json.loads(found.attrs["origins"]))
        if self.as_json:
            every = {"inputs": assumptions_data(*design, *inputs)} if design else {}
            print_json(answer_json(found) | ({"note": note} if note else {}) | every)
            return
        print_answer(found)
        if design and self.assumptions:
            print_assumptions(*design, *inputs)
        if note:
            out.print(note)
        if design and self.launcher:
            self.launcher.write(*design)
