"""``--launch``: the configuration of a framework for the design that a command found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfgrid.engine.errors import PerfgridError
from perfgrid.jobs.design import launch_of
from perfgrid.jobs.formats import Format, format_of
from perfgrid.jobs.syntaxes import COMMENTED
from perfgrid.printing.console import err, print_line
from perfgrid.results.files import check_output, write_text
from perfgrid.study.study import Study


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
