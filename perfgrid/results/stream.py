"""Evaluate a study into a file of any size, tile by tile: one netCDF file, or a zarr store that can be resumed."""

from __future__ import annotations

from numbers import Integral
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import xarray as xr

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.execution.evaluation import TILE_POINTS, Evaluation, Progress, Tile, enable_compilation_cache
from perfgrid.engine.execution.lanes import trim
from perfgrid.engine.execution.regions import Regions, block
from perfgrid.engine.grid.plan import Plan
from perfgrid.study.study import Study, expect_study

from .files import check_names, check_output, compression, replacing
from .memory import check_memory, fitting_tile
from .provenance import template

STORE = ".zarr"


def stream(
    study: Study,
    path: str | Path,
    dtype: str | None = None,
    overwrite: bool = False,
    tile_points: int | None = None,
    progress: Progress | None = None,
    *,
    resume: bool = False,
    memory: int | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    small_points: int | None = None,
) -> Path:
    """Evaluate a study tile by tile into a file, in the memory of a few tiles whatever the size of the grid.

    Parameters
    ----------
    study
        The study.
    path
        ``.nc``: one netCDF file, written by this process; it appears when it is complete. ``.zarr``: a store, filled
        region by region.
    dtype
        Precision on the grid, "float32" or "float64". Default: that of the study.
    overwrite
        Replace an existing file or store.
    tile_points
        Points evaluated and written together, at most.
    progress
        Called with phase, done and total.
    resume
        Continue a store after an interruption, bit for bit.
    memory
        Bytes that limit the tiles: of all local processes together, of each process of a cluster.
    workers
        Local processes that fill a store together.
    scheduler
        Address of a dask scheduler whose workers fill a store together.
    small_points
        Most points of a quantity that is evaluated once, before the grid.

    Returns
    -------
    Path
        The path.

    Raises
    ------
    PerfgridError
        For a path that cannot be written, a store of another run, and work that was interrupted.

    Examples
    --------
    >>> import tempfile
    >>> import perfgrid as pg
    >>> bill = pg.Study.make(workload="manufacturing", outputs=["die_cost"], axes={"device": ["h100-sxm-80gb"]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pg.stream(bill, f"{folder}/bill.nc")
    ...     print(pg.open_result(path).load().die_cost.round(0).values)
    [486.]
    """
    expect_study(study, "stream")
    target, dtype = Path(path), dtype or study.file.dtype
    for name, number in (("tile_points", tile_points), ("memory", memory)):
        if number is not None and (not isinstance(number, Integral) or number < 1):
            about = "bytes" if name == "memory" else "points"
            raise PerfgridError(f"{name} must be a number of {about}, 1 or more, found {number!r}")

    if target.suffix == STORE:
        from perfgrid.results.store.fill import How, fill

        how = How(overwrite, resume, memory, workers, scheduler, tile_points, small_points)
        return fill(study, target, dtype, how, progress)
    if resume or workers is not None or scheduler is not None:
        raise PerfgridError(
            f"{str(path)!r} is written at once by one process: --resume and --workers need a .zarr store"
        )
    check_output(target, overwrite)
    plan = study.plan(small_points)
    if memory is None:
        check_memory(plan, study.name, dtype, ".nc", tile_points or TILE_POINTS)
    else:
        tile_points = fitting_tile(plan, dtype, memory, study.name, most=tile_points)
    enable_compilation_cache()
    regions = Regions.of(plan, TILE_POINTS if tile_points is None else tile_points)
    at_once = None if memory is None else 1  # `fitting_tile` counts one
    _write(study, plan, regions, target, dtype, progress, at_once)
    trim()  # what follows in this process finds the memory free
    return target


def _write(
    study: Study, plan: Plan, regions: Regions, target: Path, dtype: str, progress: Progress | None, at_once: int | None
) -> None:
    """Evaluate tile after tile into a netCDF file, ``at_once`` of them at a time."""
    evaluation = Evaluation(plan, dtype, regions.tile_points, progress)
    result = template(study, plan, dtype)
    check_names(target, result)
    with replacing(target) as temporary, netCDF4.Dataset(temporary, "w") as file:
        _define(file, result, regions)
        dims = {name: tuple(map(str, file[name].dimensions)) for name in plan.wanted}
        tiles = evaluation.run(at_once=at_once)
        for tile in tiles if evaluation.kernels else (Tile(n, (), {}) for n in range(regions.tiles.count)):
            for name in plan.wanted:
                if regions.owns(tile.number, dims[name]):
                    value = block(evaluation, regions, tile, name)
                    file[name][regions.region(tile.number, dims[name])] = value


def _define(file: netCDF4.Dataset, result: xr.Dataset, regions: Regions) -> None:
    """Dimensions, coordinates, empty variables and attributes of a result.

    A chunk is a region, which is written whole, so that the library need not keep any in memory.
    """
    for dim, size in result.sizes.items():
        file.createDimension(str(dim), size)
    file.setncatts({k: v if isinstance(v, str) else str(v) for k, v in result.attrs.items()})
    for name, coordinate in result.coords.items():
        kind: Any = {"U": str, "S": str, "b": np.int8}.get(coordinate.dtype.kind, coordinate.dtype)
        variable = file.createVariable(str(name), kind, tuple(map(str, coordinate.dims)))
        variable[:] = coordinate.values.astype(object if kind is str else kind)
        truth = {"dtype": "bool"} if kind is np.int8 else {}  # as xarray writes truth values, which netCDF has not
        variable.setncatts({**coordinate.attrs, **truth})
    for name, array in result.data_vars.items():
        dims = tuple(map(str, array.dims))
        options: Any = compression() | {"chunksizes": regions.chunks(dims, array.shape)} if dims else {}
        variable = file.createVariable(str(name), array.dtype, dims, **options)
        if dims:
            variable.set_var_chunk_cache(size=1, nelems=1)  # zeros would mean the default
        variable.setncatts({**array.attrs, "coordinates": " ".join(_extra_coordinates(result, array))})


def _extra_coordinates(result: xr.Dataset, array: xr.DataArray) -> list[str]:
    return [str(c) for c, v in result.coords.items() if c not in result.dims and set(v.dims) <= set(array.dims)]
