"""The study behind an answer as a file."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable
from pathlib import Path

import tomli_w
import xarray as xr

from perfgrid.engine.errors import PerfgridError
from perfgrid.results.files import check_output, write_text

MODEL = ".model.toml"  # suffix of the catalog file with a model of the user's, beside the study


def save_study(
    answer: xr.Dataset, path: str | Path, catalog: Iterable[str | Path] = (), overwrite: bool = False
) -> None:
    """Write the study that an answer was found in; `perfgrid best` gives the same numbers of it.

    Parameters
    ----------
    answer
        A result of `train` or `serve`.
    path
        The file to write (.toml). A model read from a configuration is written beside it.
    catalog
        The catalog files that the question named.
    overwrite
        Replace existing files.

    Raises
    ------
    PerfgridError
        If the dataset is no answer, or a file exists or cannot be written.
    """
    path = Path(path)
    if "model_file" not in answer.attrs:
        raise PerfgridError("only an answer of train or serve knows its study")
    texts = {path.with_suffix(MODEL): answer.attrs["model_file"]} if answer.attrs["model_file"] else {}
    for target in (path, *texts):
        check_output(target, overwrite, ".toml")
    named = [os.path.relpath(file, path.parent) for file in (*catalog, *texts)]
    content = tomllib.loads(answer.attrs["study"]) | ({"catalog": named} if named else {})
    for target, text in (*texts.items(), (path, tomli_w.dumps(content))):
        write_text(target, text)
