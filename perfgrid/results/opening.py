"""Opening results of every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import xarray as xr

from perfgrid.engine.errors import PerfgridError

from .factored import SUFFIX, open_factored


def open_result(path: str | Path, recompute: bool = False, formulas: Iterable[Callable[..., Any]] = ()) -> xr.Dataset:
    """Open a result; variables are read when they are needed.

    Parameters
    ----------
    path
        A netCDF file, the folder of a Zarr store, or a factored result (``.pgf``).
    recompute
        If a factored result was made with other formulas than those installed, evaluate it anew from the given
        quantities that it stores.
    formulas
        The user's own formulas with which a factored result was made.

    Returns
    -------
    xarray.Dataset
        The result.

    Raises
    ------
    PerfgridError
        For any other file, and for a factored result of other formulas without ``recompute``.

    Examples
    --------
    >>> import perfgrid as pg
    >>> pg.open_result("absent.nc")
    Traceback (most recent call last):
    ...
    perfgrid.engine.errors.PerfgridError: cannot read 'absent.nc': No such file or directory
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
