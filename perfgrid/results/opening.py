"""Opening results of every kind. Errors name the damaged file and member, also when values are read later."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends import BackendArray, NetCDF4DataStore, ZarrStore
from xarray.conventions import decode_cf_variables
from xarray.core import indexing

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.renamed import current

from .factored import SUFFIX, open_factored
from .files import PART, check_kind, decoding
from .schema import STORE_ATTRIBUTE, check_attributes, stored


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
        For any other file, a damaged one (also while values are read), and for a factored result of other formulas
        without ``recompute``.

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
    with decoding(path):
        opened = _backend(path)
        variables, attributes, coordinates = decode_cf_variables(*opened.load())
    with decoding(path, errors=(PerfgridError,)):
        check_attributes(attributes, {name: v.attrs for name, v in variables.items()})
        whole = STORE_ATTRIBUTE in attributes and not path.name.endswith(PART)
        written = stored(attributes, STORE_ATTRIBUTE)["variables"] if whole else ()
    lazy = {n: _lazy(OnDisk(path, str(n), v, n in written), v) for n, v in variables.items()}
    labels = {n: v for n, v in lazy.items() if n in coordinates or v.dims == (n,)}
    with decoding(path):  # a file may hold axes that do not fit each other
        found = xr.Dataset({n: v for n, v in lazy.items() if n not in labels}, labels, attributes)
    names = {name: current(str(name), str(path)) for name in (*found.variables, *found.dims)}
    found = found.rename({name: new for name, new in names.items() if name != new})
    for holder in (found, *found.variables.values()):  # attributes name variables
        holder.attrs.update({k: current(v, str(path)) for k, v in holder.attrs.items() if isinstance(v, str)})
    found.encoding["source"] = str(path)
    found.set_close(opened.close)
    return found


def _backend(path: Path) -> Any:
    check_kind(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of zarr: the journal of a store is no member
        group: Any = ZarrStore.open_group
        try:
            return group(path, consolidated=None) if path.is_dir() else NetCDF4DataStore.open(str(path))
        except ImportError as error:
            raise PerfgridError(f"{error}; install the package zarr") from error


class OnDisk(BackendArray):
    """The values of a variable on disk. PerfgridError where the library that reads them finds damage.

    ``whole``: zarr takes a chunk without a file for an empty one; of this variable all chunks were written.
    """

    def __init__(self, path: Path, name: str, variable: xr.Variable, whole: bool):
        self.path, self.name, self.variable, self.whole = path, name, variable, whole
        self.shape, self.dtype = variable.shape, variable.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> Any:
        member = f"variable {self.name}: "
        if self.whole:
            with decoding(self.path, member, (OSError, PerfgridError)):
                self._count()
        with decoding(self.path, member):
            return np.asarray(self.variable[key].values)

    def _count(self) -> None:
        sizes = zip(self.shape, self.variable.encoding["chunks"], strict=True)
        count = math.prod(-(-size // chunk) for size, chunk in sizes)
        with os.scandir(self.path / self.name) as files:
            lacking = count - sum(file.name == "c" or file.name.startswith("c.") for file in files)
        if lacking > 0:
            raise PerfgridError(f"{lacking:,} of {count:,} chunks are missing; 'perfgrid verify' tells which")
        self.whole = False


def _lazy(values: OnDisk, variable: xr.Variable) -> xr.Variable:
    unread: Any = indexing.LazilyIndexedArray(values)
    return xr.Variable(
        variable.dims, indexing.MemoryCachedArray(indexing.CopyOnWriteArray(unread)), variable.attrs, variable.encoding
    )
