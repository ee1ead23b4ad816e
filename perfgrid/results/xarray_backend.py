"""The door through which xarray opens factored results: ``xr.open_dataset("study.pgf", engine="perfgrid")``.

It stands outside the package because xarray loads every installed engine before it opens any file: this one costs
nothing until a factored result is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import xarray as xr
from xarray.backends import BackendEntrypoint


class PerfgridBackendEntrypoint(BackendEntrypoint):
    """Factored results (.pgf); options ``recompute`` and ``formulas`` as in `perfgrid.open_result`."""

    description = "Open factored results of perfgrid (.pgf): variables are evaluated where they are read"
    open_dataset_parameters = ("filename_or_obj", "drop_variables", "recompute", "formulas")

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        drop_variables: str | Iterable[str] | None = None,
        recompute: bool = False,
        formulas: Iterable[Callable[..., Any]] = (),
    ) -> xr.Dataset:
        """The Dataset of a factored result. PerfgridError as `perfgrid.open_result`."""
        from perfgrid.results.factored import open_factored

        found = open_factored(filename_or_obj, recompute, formulas)
        dropped = [drop_variables] if isinstance(drop_variables, str) else list(drop_variables or ())
        return found.drop_vars(dropped, errors="ignore")

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """By the name of the file."""
        return isinstance(filename_or_obj, (str, os.PathLike)) and os.fspath(filename_or_obj).endswith(".pgf")
