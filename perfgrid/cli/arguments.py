"""Reading of arguments that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import xarray as xr

from perfgrid.catalog.units import in_unit
from perfgrid.engine.errors import PerfgridError
from perfgrid.results.factored import SUFFIX
from perfgrid.results.opening import open_result
from perfgrid.study.own_formulas import own_formulas
from perfgrid.study.study import Study, load_study


def names_in(text: str | None) -> list[str]:
    """Names separated by commas; commas in square brackets belong to a name."""
    found, depth = [""], 0
    for character in text or "":
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return [name.strip() for name in found if name.strip()]


def outputs_of(study: Study, of: str | None) -> list[str]:
    """The quantities that a command is about: those named, else the objective of the study or its first output."""
    if of is not None:
        if not (names := names_in(of)):
            raise PerfgridError("--of names no quantity")
        return names
    best = study.file.best
    return [(best.minimize or best.maximize if best else None) or study.outputs[0]]


def study_of(path: Path, settings: list[str] | None, formulas: Path | None) -> Study:
    """The study of a file, with the values of ``--set`` and the formulas of ``--formulas``."""
    return load_study(path, settings or (), formulas=own_formulas(formulas))


def study_or_result(
    path: Path, settings: list[str] | None, formulas: Iterable[Callable[..., Any]] = ()
) -> Study | xr.Dataset:
    """The study or the result of a path, with the user's own formulas. PerfgridError where it is neither."""
    if path.suffix == ".toml":
        return load_study(path, settings or (), formulas=formulas)
    if settings:
        raise PerfgridError("--set applies to a study, not to a finished result")
    try:
        return open_result(path, formulas=formulas)
    except PerfgridError as error:
        if path.suffix == SUFFIX:
            raise
        raise PerfgridError(f"{error}; give a study (.toml) or a result (.nc, .zarr, {SUFFIX})") from error


def bytes_of(text: str | None) -> int | None:
    """Bytes of a text such as 4GB. PerfgridError for another unit."""
    if text is None:
        return None
    try:
        found = int(in_unit(text, "byte"))
    except ValueError as error:
        raise PerfgridError(f"--memory: {error}; write a number with a unit, such as 4GB") from None
    if found <= 0:
        raise PerfgridError(f"--memory must be above zero, found {text!r}")
    return found


def whole_numbers_in(text: str, option: str) -> list[int]:
    """Whole numbers separated by commas. PerfgridError for anything else."""
    try:
        return [int(part) for part in names_in(text)]
    except ValueError:
        raise PerfgridError(f"{option} needs whole numbers separated by commas, found {text!r}") from None
