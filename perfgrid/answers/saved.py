"""The study behind an answer: as a file, and with its best design."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import xarray as xr

from perfgrid.catalog import load_catalog
from perfgrid.catalog.loader import entry_of
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.grid.dataset import study_axes
from perfgrid.results.files import check_output, write_text
from perfgrid.study.study import Study, build_study

QUESTION = "--on"  # stands for the file of entries that a question changes
FILES = "own_files"  # attribute of an answer: catalog files of its own, by table


def save_study(
    answer: xr.Dataset, path: str | Path, catalog: Iterable[str | Path] = (), overwrite: bool = False
) -> None:
    """Write the study that an answer was found in; `perfgrid best` gives the same numbers of it.

    Parameters
    ----------
    answer
        A result of `train` or `serve`.
    path
        The file to write (.toml). A model of a configuration file and changed devices are written beside it.
    catalog
        The catalog files that the question named.
    overwrite
        Replace existing files.

    Raises
    ------
    PerfgridError
        If the dataset is no answer, a file exists or cannot be written, or is one of the catalog files.
    """
    path = Path(path)
    if FILES not in answer.attrs:
        raise PerfgridError("only an answer of train or serve knows its study")
    check_output(path, overwrite, ".toml")
    texts = {path.with_suffix(f".{table}.toml"): text for table, text in json.loads(answer.attrs[FILES]).items()}
    for target in (path, *texts):
        check_output(target, overwrite, ".toml")
        if any(target.resolve() == Path(file).resolve() for file in catalog):
            raise PerfgridError(f"{target} is a catalog file of this question; choose another file")
    named = [os.path.relpath(file, path.parent) for file in (*catalog, *texts)]
    content = tomllib.loads(answer.attrs["study"]) | ({"catalog": named} if named else {})
    for target, text in (*texts.items(), (path, tomli_w.dumps(content))):
        write_text(target, text)


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
    for axis in study.space.axes:  # whose labels an answer holds as text
        if (label := labels.get(axis.name)) is not None:
            same = (known.item() for known in axis.labels if str(known) == str(label) or known == label)
            labels[axis.name] = next(same, label)
    return labels
