"""The study behind an answer as a file."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable
from pathlib import Path

import tomli_w
import xarray as xr

from perfgrid.engine.errors import PerfgridError
from perfgrid.results.files import check_output, write_text

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
