"""Factored results: the sub-grids of a study beside the formulas above them, expanded when they are read.

A file ``.pgf`` is a ZIP archive of NumPy arrays (``numpy.load`` opens it) with a header in JSON: coordinates, sub-grids
on their distinct rows, the classes of rows of every axis, all given quantities, and a hash of the formulas.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends import BackendArray
from xarray.backends.locks import SerializableLock
from xarray.core import indexing

from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.execution.evaluation import TILE_POINTS, check_precision, enable_compilation_cache
from perfgrid.engine.graph.resolver import resolve_checked
from perfgrid.engine.grid.dataset import SPACE_ATTRIBUTE, graph_hash
from perfgrid.engine.grid.plan import Plan, Quantity, varying
from perfgrid.engine.grid.space import Axis
from perfgrid.engine.grid.tiles import Tiles
from perfgrid.engine.reductions.subgrid import Cut, keys_to_numbers, partitions_from_classes
from perfgrid.study.study import Study

from .files import check_output, replacing
from .memory import available_memory
from .provenance import restore, template

SUFFIX = ".pgf"
FORMAT = 1
HEADER = "header.json"
Formulas = Iterable[Callable[..., Any]]


def save_factored(study: Study, path: str | Path, dtype: str | None = None, overwrite: bool = False) -> Path:
    """Write a study as a factored result: seconds and megabytes whatever the size of its grid.

    Only the small stage is evaluated. The file appears under its name when it is complete. Raises PerfgridError like
    `perfgrid.stream`.
    """
    target = check_output(path, overwrite, SUFFIX)
    plan, dtype = study.plan(), dtype or study.file.dtype
    check_precision(dtype)
    cut = Cut.of(plan, dtype)
    result = template(study, plan, dtype)
    keys, classes = keys_to_numbers(cut.quantities)
    header = {
        "format": FORMAT,
        "perfgrid": version("perfgrid"),
        "dtype": dtype,
        "sizes": dict(cut.sizes),
        "attributes": result.attrs,
        "variables": {
            str(n): {"dims": v.dims, "dtype": str(v.dtype), "attributes": _plain(v.attrs)}
            for n, v in result.data_vars.items()
        },
        "coordinates": {str(n): {"dims": v.dims, "attributes": _plain(v.attrs)} for n, v in result.coords.items()},
        "quantities": {
            n: {
                "axes": list(q.columns),
                "key": keys[n],
                "inner": q.inner,
                "called_on": q.called_on,
                "flag": q.flag,
                "stored": n in cut.values,
            }
            for n, q in cut.quantities.items()
        },
    }
    with replacing(target) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        file.writestr(HEADER, json.dumps(header))
        arrays = {f"coordinate/{n}": np.asarray(v.values) for n, v in result.coords.items()}
        arrays |= {f"rows/{i}": values for i, values in enumerate(classes)}
        arrays |= {f"value/{n}": values for n, values in cut.values.items()}
        for name, values in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(values), allow_pickle=False)
    return target


def open_factored(path: str | Path, recompute: bool = False, formulas: Formulas = ()) -> xr.Dataset:
    """A factored result as a Dataset whose variables are evaluated where they are read.

    ``formulas`` are the user's own with which it was made. Raises PerfgridError for a file that is none or is damaged,
    and where the formulas installed are not those that the sub-grids belong to, unless ``recompute`` is true: then all
    of it is evaluated with the formulas installed, from the given quantities that the file stores.
    """
    source = Source(str(path), recompute, tuple(formulas))
    archive, lock, variables = source.archive, SerializableLock(), {}
    for name, about in archive.header["variables"].items():
        dims = tuple(about["dims"])
        shape = tuple(archive.sizes[d] for d in dims)
        lazy = indexing.LazilyIndexedArray(Expanded(source, name, dims, shape, np.dtype(about["dtype"]), lock))
        chunks = dict(zip(dims, Tiles.cut(shape, TILE_POINTS).shape, strict=True))
        encoding = {"preferred_chunks": chunks, "source": str(path)}
        variables[name] = xr.Variable(dims, lazy, _attributes(about["attributes"]), encoding)
    found = xr.Dataset(variables, archive.coordinates(), source.attributes)
    found.set_close(archive.close)
    return found


def expand(
    path: str | Path, at: Mapping[str, Any] | None = None, recompute: bool = False, formulas: Formulas = ()
) -> xr.Dataset:
    """A factored result, or what it holds at some labels of its axes, evaluated in memory.

    Raises PerfgridError like `open_factored`, for unknown axes and labels, and if the values do not fit the memory.
    """
    lazy = selected(open_factored(path, recompute, formulas), at or {})
    if lazy.nbytes > 0.8 * available_memory():
        raise PerfgridError(
            f"{path}: the values of this part take {lazy.nbytes / 2**30:,.1f} GiB and "
            f"{available_memory() / 2**30:,.1f} GiB of memory are free; choose labels of some axes"
        )
    return lazy.load()


def selected(result: xr.Dataset, at: Mapping[str, Any]) -> xr.Dataset:
    """A result at one label of some axes. PerfgridError for unknown axes and labels."""
    for axis, label in at.items():
        if axis not in result.dims:
            raise PerfgridError(f"the result has no axis {axis!r}{nearest(axis, map(str, result.dims))}")
        result = result.isel({axis: Axis(axis, result[axis].values).index(label)})
    return result


def _cut(archive: Archive, recompute: bool, formulas: Formulas) -> tuple[Cut, dict[str, Any]]:
    """The sub-grids of a file under the formulas installed, and the attributes of its result."""
    header, attributes = archive.header, dict(archive.header["attributes"])
    try:
        space, registry, choices = restore(xr.Dataset(attrs=attributes), formulas)
        outputs = json.loads(attributes[SPACE_ATTRIBUTE])["outputs"]
        graph = resolve_checked(registry, outputs, space.names(), choices, space.label_quantities())
    except PerfgridError as error:
        raise PerfgridError(f"{archive.path}: {error}") from None
    enable_compilation_cache()
    stored, found = attributes["formula_hash"], graph_hash(graph)
    if found == stored:
        return _stored_cut(archive, graph, registry), attributes
    if not recompute:
        raise PerfgridError(
            f"{archive.path!r} was made by perfgrid {header['perfgrid']} with other formulas (hash {stored}) than "
            f"those installed (hash {found}), so that its sub-grids cannot be expanded; open it with recompute=True, "
            "or with 'perfgrid expand --recompute', to evaluate it anew from the given quantities that it stores"
        )
    plan = Plan(registry, space, outputs, choices)
    if lacking := sorted(set(header["variables"]) ^ set(plan.wanted)):
        raise PerfgridError(
            f"{archive.path!r} cannot be recomputed: the formulas installed check other constraints, "
            f"{', '.join(lacking)}; run its study again"
        )
    return Cut.of(plan, header["dtype"]), attributes | {"formula_hash": found}


class Archive:
    """A factored file: its header, and its arrays read when they are asked for. PerfgridError if it is none."""

    def __init__(self, path: str | Path):
        self.path = str(path)
        self._known: dict[str, np.ndarray] = {}
        try:
            self._file = zipfile.ZipFile(self.path)
            self.header = json.loads(self._file.read(HEADER))
            stated = self.header["format"]
        except (OSError, KeyError, TypeError, ValueError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
            reason = getattr(error, "strerror", None) or "it is no complete archive of this kind"
            raise PerfgridError(f"cannot read {self.path!r} as a factored result: {reason}") from None
        if stated != FORMAT:
            raise PerfgridError(f"{self.path!r} is a factored result of format {stated}; this perfgrid reads {FORMAT}")
        self.sizes = {str(d): n for v in self.coordinates().values() for d, n in v.sizes.items()}

    def close(self) -> None:
        """Give the file back; reading opens it again."""
        self._file.close()

    def coordinates(self) -> dict[str, xr.Variable]:
        """The labels of the result."""
        return {
            name: xr.Variable(about["dims"], self[f"coordinate/{name}"], about["attributes"])
            for name, about in self.header["coordinates"].items()
        }

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._known:
            try:
                if self._file.fp is None:  # closed with an earlier Dataset
                    self._file = zipfile.ZipFile(self.path)
                with self._file.open(f"{name}.npy") as member:
                    self._known[name] = np.lib.format.read_array(member, allow_pickle=False)
            except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
                raise PerfgridError(f"{self.path!r} is damaged: {name} cannot be read ({error})") from None
        return self._known[name]


class Source:
    """A factored file and its sub-grids under the formulas installed; another process opens the file again."""

    def __init__(self, path: str, recompute: bool, formulas: tuple[Callable[..., Any], ...]):
        self.archive = Archive(path)
        self.cut, self.attributes = _cut(self.archive, recompute, formulas)
        self.asked = (path, recompute, formulas)

    def __reduce__(self) -> Any:
        return Source, self.asked


class StoredValues(Mapping[str, np.ndarray]):
    """The sub-grids of a file by name."""

    def __init__(self, archive: Archive):
        self.archive = archive
        self.names = [n for n, about in archive.header["quantities"].items() if about["stored"]]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.archive[f"value/{name}"]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


class Expanded(BackendArray):
    """A variable of a factored result: indexing evaluates what is asked for and nothing else."""

    def __init__(
        self, source: Source, name: str, dims: tuple[str, ...], shape: tuple[int, ...], dtype: np.dtype, lock: Any
    ):
        self.source, self.name, self.dims, self.shape, self.dtype, self.lock = source, name, dims, shape, dtype, lock

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._evaluated)

    def _evaluated(self, key: tuple[Any, ...]) -> np.ndarray:
        rows = {d: np.atleast_1d(np.arange(n)[k]) for d, n, k in zip(self.dims, self.shape, key, strict=True)}
        single = tuple(0 if np.ndim(k) == 0 and not isinstance(k, slice) else slice(None) for k in key)
        if not all(len(r) for r in rows.values()):
            return np.empty([len(rows[d]) for d in self.dims], self.dtype)[single]
        cut = self.source.cut
        study = {axis: rows.get(axis, np.zeros(1, int)) for axis in cut.sizes}
        with self.lock:  # one compilation at a time
            value = cut.evaluate([self.name], study)[self.name]
        order = [*cut.sizes, *(cut.registry.inner.names[i] for i in cut.quantities[self.name].axes)]
        where = [order.index(d) for d in self.dims]
        value = value.transpose((*where, *(i for i in range(value.ndim) if i not in where)))
        value = value.reshape(value.shape[: len(where)])
        for place, dim in enumerate(self.dims):
            if dim not in study:  # inner axes are evaluated whole
                value = np.take(value, rows[dim], axis=place)
        return value.astype(self.dtype, copy=False)[single]


def _stored_cut(archive: Archive, graph: Any, registry: Any) -> Cut:
    """The cut that a file stores, without planning it again."""
    about = archive.header["quantities"]
    count = 1 + max((n for q in about.values() for n in q["key"] if n is not None), default=-1)
    partitions = list(partitions_from_classes([archive[f"rows/{i}"] for i in range(count)]))
    quantities = {}
    for n, q in about.items():
        key = tuple(None if number is None else partitions[number] for number in q["key"])
        axes, inner = dict.fromkeys(q["axes"], ()), tuple(q["inner"])
        node, called_on = graph.nodes.get(n), tuple(q["called_on"])
        quantities[n] = Quantity(n, node, axes, key, inner, q["flag"], q["stored"], varying(inner), called_on)
    return Cut(graph, registry, archive.header["sizes"], quantities, StoredValues(archive), archive.header["dtype"])


def _plain(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(k): v.tolist() if isinstance(v, np.ndarray) else v for k, v in attributes.items()}


def _attributes(stored: Mapping[str, Any]) -> dict[str, Any]:
    return {k: np.array(v, np.int8) if k == "flag_values" else v for k, v in stored.items()}
