"""Save a result, or the result of a study, under a path; the suffix says in which form."""

from __future__ import annotations

import threading
from pathlib import Path

import xarray as xr
from xarray.backends import NetCDF4DataStore

from perfgrid.study.study import Study

from .factored import SUFFIX, save_factored
from .files import check_names, check_output, compression, replacing
from .provenance import expect_designs
from .stream import stream


def save(what: Study | xr.Dataset, path: str | Path, overwrite: bool = False, dtype: str | None = None) -> Path:
    """Save a result, or the result of a study.

    The file appears under its name only when it is complete.

    Parameters
    ----------
    what
        A result, or a study. A study is evaluated tile by tile, in little memory.
    path
        The suffix gives the form: ``.nc`` a compressed netCDF file; of a study also ``.zarr``, a store (see `stream`),
        or ``.pgf``, a factored result: the sub-grids that its outputs are made of, and the formulas in the place of the
        values. It takes seconds and megabytes whatever the size of the grid; `open_result` evaluates what is read.
    overwrite
        Replace an existing file.
    dtype
        Precision on the grid of a study, "float32" or "float64"; default: that of the study.

    Returns
    -------
    Path
        The path.

    Raises
    ------
    PerfgridError
        For another suffix, a missing folder, an existing file.

    Examples
    --------
    >>> import tempfile
    >>> import perfgrid as pg
    >>> bill = pg.Study.make(workload="manufacturing", outputs=["die_cost"], axes={"device": ["h100-sxm-80gb"]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pg.save(bill, f"{folder}/bill.pgf")
    ...     print(path.name, pg.open_result(path).die_cost.dims)
    bill.pgf ('device',)
    """
    if isinstance(what, Study):
        if Path(path).suffix == SUFFIX:
            return save_factored(what, path, dtype, overwrite)
        return stream(what, path, dtype, overwrite)
    expect_designs(what)
    target = check_output(path, overwrite)
    check_names(target, what)
    encoding = {
        name: compression()
        for name, variable in what.data_vars.items()
        if variable.ndim and variable.dtype.kind in "fi"
    }
    with replacing(target) as temporary:  # `to_netcdf` would import dask and its scheduler wherever they are installed
        store = NetCDF4DataStore.open(temporary, mode="w", lock=threading.Lock())
        try:
            what.dump_to_store(store, encoding=encoding)
        finally:
            store.close()
    return target
