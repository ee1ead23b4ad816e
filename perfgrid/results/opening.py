"""Opening results of every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import xarray as xr

from perfgrid.engine.errors import PerfgridError

from .factored import SUFFIX, open_factored


def open_result(path: str | Path, recompute: bool = False, formulas: Iterable[Callable[..., Any]] = ()) -> xr.Dataset:
    """A result by its path: netCDF, the folder of a Zarr store, or factored (.pgf); variables are read when needed.

    ``recompute`` and ``formulas`` concern factored results, see `open_factored`. Raises PerfgridError for what is none.
    """
    path = Path(path)
    if path.suffix == SUFFIX:
        return open_factored(path, recompute, formulas)
    if not path.exists():
        raise PerfgridError(f"cannot read {str(path)!r}: No such file or directory")
    try:
        return xr.open_zarr(path, chunks=None) if path.is_dir() else xr.open_dataset(path)
    except ImportError as error:
        raise PerfgridError(f"cannot read {str(path)!r}: {error}; install the package zarr") from None
    except (OSError, ValueError, KeyError) as error:
        reason = getattr(error, "strerror", None) or "it is neither netCDF nor a Zarr store nor a factored result"
        raise PerfgridError(f"cannot read {str(path)!r}: {reason}") from None
