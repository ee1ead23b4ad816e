"""Reading of arguments that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import xarray as xr

from perfgrid.analysis.best_design import best_design
from perfgrid.analysis.joined_pools import join_pools
from perfgrid.answers.entries import separated
from perfgrid.catalog import Catalog
from perfgrid.catalog.units import in_unit, whole
from perfgrid.engine.errors import PerfgridError
from perfgrid.printing.console import err, out
from perfgrid.printing.progress import Reporter
from perfgrid.results.factored import SUFFIX
from perfgrid.results.opening import open_result
from perfgrid.results.provenance import label_of
from perfgrid.study.file import POOLS
from perfgrid.study.ledger import unread
from perfgrid.study.own_formulas import own_formulas
from perfgrid.study.study import Study, content_of, load_study, setting_of
from perfgrid.text.values import labels_of
from perfgrid.validation.measurements.measured import Measured


def measured_files(
    files: list[Path] | None, kind: str | None, job: list[Path] | None, on: str | None, settings: list[str] | None
) -> list[Measured]:
    """Files of measurements with what they leave open. PerfgridError for that without files."""
    stated = dict(setting_of(setting) for setting in settings or ())
    if not files and (kind or job or on or stated):
        raise PerfgridError("--as, --job, --on and --set belong to files of measurements: name some")
    return [Measured(path, kind, tuple(job or ()), on, stated) for path in files or ()]


def on_device(known: Catalog, on: str | None) -> tuple[Catalog, str | None]:
    """A catalog with the device of ``--on``, which may differ from an entry in brackets, and its name there."""
    return (known, None) if on is None else known.named("device", on, "--on: ")


def names_in(text: str | None) -> list[str]:
    """Names separated by commas; commas in square brackets belong to a name."""
    return separated(text or "")


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
    return _loaded(path, settings, own_formulas(formulas))


def with_catalog(path: Path, settings: list[str] | None, files: Iterable[Path] | None) -> list[str] | None:
    """Settings of a study that add catalog files to its own. PerfgridError for a result, whose designs are made."""
    if not files:
        return settings
    if path.suffix != ".toml":
        raise PerfgridError("--catalog applies to a study, not to a finished result")
    own = content_of(path, settings or ())[0].get("catalog", [])
    if not isinstance(own, list):
        return settings  # the study is refused for it
    every = [str(file.resolve()) for file in (*(path.parent / str(name) for name in own), *files)]
    return [*(s for s in settings or () if not s.startswith("catalog=")), f"catalog={json.dumps(every)}"]


def _loaded(path: Path, settings: list[str] | None, formulas: Iterable[Callable[..., Any]]) -> Study:
    """The study of a file; of two pools, that of all pairs of their designs."""
    two = set(POOLS) & set(content_of(path)[0])
    study = (join_pools if two else load_study)(path, settings or (), formulas=formulas)
    for note in study.notes:
        err.print(f"note: {note}")
    for lost in unread(study):
        err.print(f"warning: {lost.text}")
    return study


def study_or_result(
    path: Path, settings: list[str] | None, formulas: Iterable[Callable[..., Any]] = ()
) -> Study | xr.Dataset:
    """The study or the result of a path, with the user's own formulas. PerfgridError where it is neither."""
    if path.suffix == ".toml":
        return _loaded(path, settings, formulas)
    if settings:
        raise PerfgridError("--set applies to a study, not to a finished result")
    try:
        return open_result(path, formulas=formulas)
    except PerfgridError as error:
        if path.suffix == SUFFIX:
            raise
        raise PerfgridError(f"{error}; give a study (.toml) or a result (.nc, .zarr, {SUFFIX})") from error


def design_labels(items: list[str] | None, option: str) -> dict[str, str]:
    """The labels of a design; ``best`` among them stands for the axes that are not named."""
    return labels_of(items, option, ("best",))


def asks_best(items: list[str] | None) -> bool:
    """Whether ``best`` stands among labels."""
    return "best" in (label.strip() for item in items or () for label in item.split(","))


def chosen_labels(
    what: Study | xr.Dataset, at: Mapping[str, str], as_json: bool, of: Iterable[str] = ()
) -> Mapping[str, Any]:
    """Labels of every axis: those named, and those of the best design, which a line tells."""
    with Reporter(what.space.points if isinstance(what, Study) else 1) as reporter:
        design = best_design(what, at, of, reporter)
    if design.taken and not as_json:
        way = f"at the best design ({design.objective}):" if design.objective else "at"
        out.print_items(way, (f"{axis}={label}" for axis, label in design.taken.items()))
    return design.labels


def places_at(
    what: Study | xr.Dataset, items: list[str] | None, as_json: bool = False, of: Iterable[str] = ()
) -> dict[str, Any]:
    """The labels of ``--at`` as the axes hold them; ``best`` adds those of the best design along axes left open."""
    labels: Mapping[str, Any] = design_labels(items, "--at")
    if asks_best(items):
        labels = chosen_labels(what, labels, as_json, of)
    return {axis: label_of(what, axis, label) for axis, label in labels.items()}


def bytes_of(text: str | None) -> int | None:
    """Bytes of a text such as 4GB. PerfgridError for another unit."""
    return None if text is None else int(amount_of(text, "byte", "--memory", "4GB"))


def duration(text: str | None, option: str, like: str) -> str | None:
    """A text that states a time with its unit, as it is. PerfgridError for another one."""
    if text is not None:
        amount_of(text, "s", option, like)
    return text


def amount_of(text: str, unit: str, option: str, like: str) -> float:
    """The number that a text states with a unit of its own, in another one. PerfgridError unless it is above zero."""
    try:
        found = in_unit(text, unit)
    except ValueError as error:
        raise PerfgridError(f"{option}: {error}; write a number with a unit, such as {like}") from None
    if found <= 0:
        raise PerfgridError(f"{option} must be above zero, found {text!r}")
    return found


def sizes_in(text: str) -> list[int]:
    """Numbers of devices: 8,64 or 64-512, which are the powers of two within. PerfgridError for anything else."""
    found: list[int] = []
    for part in names_in(text):
        first, dash, last = part.partition("-")
        try:
            low, high = (whole(end) for end in (first, last if dash else first))
        except (ValueError, OverflowError):
            raise PerfgridError(
                f"--devices needs whole numbers, or ranges such as 64-512, with commas between, found {part!r:.40}"
            ) from None
        powers = [2**i for i in range(high.bit_length()) if 1 <= low <= 2**i <= high]
        if dash and not powers:
            raise PerfgridError(f"--devices: no power of two from 1 on lies in {part}")
        found += powers if dash else [low]
    return found
