"""Factored results: the sub-grids of a study beside the formulas above them, expanded when they are read.

A file ``.pgf`` is a ZIP archive of NumPy arrays (``numpy.load`` opens it) with a header in JSON: coordinates, sub-grids
on their distinct rows, the classes of rows of every axis, all given quantities, and a hash of the formulas.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any
from weakref import WeakValueDictionary

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
from perfgrid.engine.reductions.subgrid import Cut, above, keys_to_numbers, partitions_from_classes
from perfgrid.study.study import Study

from .files import DAMAGE, cannot_read, check_kind, check_names, check_output, decoding, replacing
from .memory import available_memory, check_memory
from .provenance import label_of, restore, template
from .schema import Format, Header, check_attributes, checked, stored

SUFFIX = ".pgf"
FORMAT = 1
HEADER = "header.json"
MOST_HEADER = 2**27  # bytes
MOST_ITEM = 2**14  # bytes of a label
Formulas = Iterable[Callable[..., Any]]


def save_factored(study: Study, path: str | Path, dtype: str | None = None, overwrite: bool = False) -> Path:
    """Write a study as a factored result: seconds and megabytes whatever the size of its grid.

    Only the small stage is evaluated. The file appears under its name when it is complete. Raises PerfgridError like
    `perfgrid.stream`.
    """
    target = check_output(path, overwrite, SUFFIX)
    plan, dtype = study.plan(), dtype or study.file.dtype
    check_precision(dtype)
    check_memory(plan, study.name, dtype, SUFFIX)
    cut = Cut.of(plan, dtype)
    result = template(study, plan, dtype)
    check_names(target, result)
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
    OPENED[str(path)] = source
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


def read_together(result: xr.Dataset, names: Sequence[str], rows: Mapping[str, np.ndarray]) -> xr.Dataset:
    """Variables of a factored result at some rows of its axes, evaluated at once: what several read is evaluated once.

    PerfgridError where the result is none of `open_factored`.
    """
    variables = {name: result.variables[name] for name in names}
    paths = {str(v.encoding.get("source", "")) for v in variables.values()}
    source = OPENED.get(paths.pop()) if len(paths) == 1 else None
    if source is None:
        raise PerfgridError("the variables are none of one factored result")
    taken = {axis: rows.get(axis, np.arange(size)) for axis, size in source.cut.sizes.items()}
    found = source.cut.evaluate(names, taken)
    part: dict[str, xr.Variable] = {}
    for name, variable in variables.items():
        value = source.labelled(name, found[name], tuple(map(str, variable.dims)))
        sizes = [len(taken[str(d)]) if d in taken else n for d, n in variable.sizes.items()]
        whole = np.broadcast_to(value.astype(variable.dtype, copy=False), sizes)
        part[name] = xr.Variable(variable.dims, whole, variable.attrs)
    return xr.Dataset(part)


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
        result = result.isel({axis: Axis(axis, result[axis].values).index(label_of(result, axis, label))})
    return result


def _cut(archive: Archive, recompute: bool, formulas: Formulas) -> tuple[Cut, dict[str, Any]]:
    """The sub-grids of a file under the formulas installed, and the attributes of its result."""
    header, attributes = archive.header, dict(archive.header["attributes"])
    try:
        space, registry, choices = restore(xr.Dataset(attrs=attributes), formulas)
        outputs = stored(attributes, SPACE_ATTRIBUTE)["outputs"]
        graph = resolve_checked(registry, outputs, space.names(), choices, space.label_quantities())
    except PerfgridError as error:
        raise cannot_read(archive.path, error) from error
    enable_compilation_cache()
    there, found = attributes.get("formula_hash"), graph_hash(graph)
    if found == there:
        return _stored_cut(archive, graph, registry), attributes
    if not recompute:
        raise PerfgridError(
            f"{archive.path!r} was made by perfgrid {header['perfgrid']} with other formulas (hash {there}) than "
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
    """A factored file: its header, and its arrays read when they are asked for. PerfgridError if it is none.

    Nothing is read before its size is known to be that of its place: an archive may expand a thousandfold.
    """

    def __init__(self, path: str | Path):
        self.path = str(path)
        self._known: dict[str, np.ndarray] = {}
        with decoding(self.path):
            check_kind(self.path)
            text = self._header()
        with decoding(self.path, errors=(PerfgridError,)):
            found = checked(HEADER, text, Format)["format"]
            if found != FORMAT:
                raise PerfgridError(f"it is a factored result of format {found}; this perfgrid reads {FORMAT}")
            self.header = checked(HEADER, text, Header)
            check_attributes(self.header["attributes"], {})
            self.sizes = self._sizes()

    def _header(self) -> bytes:
        try:
            self._file = zipfile.ZipFile(self.path)
            with self._file.open(HEADER) as member:
                text = member.read(MOST_HEADER + 1)
        except OSError:
            raise
        except DAMAGE as error:
            raise PerfgridError("it is no complete archive of a factored result") from error
        if len(text) > MOST_HEADER:
            raise PerfgridError(f"its header has more than {MOST_HEADER / 2**20:.0f} MiB")
        return text

    def _sizes(self) -> dict[str, int]:
        """The sizes of all dimensions: axes as their labels have it, inner axes as their coordinates."""
        axes = {a["name"]: len(a["labels"]) for a in stored(self.header["attributes"], SPACE_ATTRIBUTE)["axes"]}
        if axes != self.header["sizes"]:
            raise PerfgridError(
                f"{HEADER} is damaged: sizes {self.header['sizes']} are not those of the labels, {axes}"
            )
        inner = {n: None for n, about in self.header["coordinates"].items() if about["dims"] == [n] and n not in axes}
        sizes = axes | {n: len(self.array(f"coordinate/{n}", (None,), "biufU")) for n in inner}
        for name, about in (self.header["coordinates"] | self.header["variables"]).items():
            if set(about["dims"]) - set(sizes) or len(set(about["dims"])) < len(about["dims"]):
                raise PerfgridError(f"{HEADER} is damaged: {name} lies on {about['dims']}, axes are {', '.join(sizes)}")
        return sizes

    def close(self) -> None:
        """Give the file back; reading opens it again."""
        self._file.close()

    def coordinates(self) -> dict[str, xr.Variable]:
        """The labels of the result."""
        return {
            name: xr.Variable(
                about["dims"],
                self.array(f"coordinate/{name}", tuple(self.sizes[d] for d in about["dims"]), "biufU"),
                about["attributes"],
            )
            for name, about in self.header["coordinates"].items()
        }

    def array(self, name: str, shape: tuple[int | None, ...], kinds: str) -> np.ndarray:
        """A member, which has to have this shape (None: any size) and one of these kinds of type."""
        if name not in self._known:
            with decoding(self.path, f"{name} is damaged: "):
                if self._file.fp is None:  # closed with an earlier Dataset
                    self._file = zipfile.ZipFile(self.path)
                with self._file.open(f"{name}.npy") as member:
                    _check_member(member, shape, kinds)
                    self._known[name] = np.lib.format.read_array(member, allow_pickle=False)
        return self._known[name]


def _check_member(member: IO[bytes], shape: tuple[int | None, ...], kinds: str) -> None:
    """ValueError where the array of a member is not of this shape, kind and size; nothing of it is read."""
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    found, _, dtype = read(member)
    same = len(found) == len(shape) and all(n in (None, m) for n, m in zip(shape, found, strict=True))
    if not same or dtype.kind not in kinds or dtype.itemsize > MOST_ITEM:
        raise ValueError(f"it holds {dtype} of shape {found}, expected is shape {shape}")
    if (needed := math.prod(found) * dtype.itemsize) > 0.8 * available_memory():
        raise ValueError(f"it takes {needed / 2**30:,.1f} GiB and {available_memory() / 2**30:,.1f} GiB are free")
    member.seek(0)


class Source:
    """A factored file and its sub-grids under the formulas installed; another process opens the file again."""

    def __init__(self, path: str, recompute: bool, formulas: tuple[Callable[..., Any], ...]):
        self.archive = Archive(path)
        self.cut, self.attributes = _cut(self.archive, recompute, formulas)
        _check_cut(self.archive, self.cut)
        self.asked = (path, recompute, formulas)

    def labelled(self, name: str, value: np.ndarray, dims: Sequence[str]) -> np.ndarray:
        """What `Cut.evaluate` gives of a variable, on its own axes."""
        order = [*self.cut.sizes, *(self.cut.registry.inner.names[i] for i in self.cut.quantities[name].axes)]
        where = [order.index(d) for d in dims]
        value = value.transpose((*where, *(i for i in range(value.ndim) if i not in where)))
        return value.reshape(value.shape[: len(where)])

    def __reduce__(self) -> Any:
        return Source, self.asked


OPENED: WeakValueDictionary[str, Source] = WeakValueDictionary()  # by the path of the file


class StoredValues(Mapping[str, np.ndarray]):
    """The sub-grids of a file by name."""

    def __init__(self, archive: Archive, quantities: Mapping[str, Quantity]):
        self.archive = archive
        self.shapes = {n: q.shape for n, q in quantities.items() if q.small}

    def __getitem__(self, name: str) -> np.ndarray:
        return self.archive.array(f"value/{name}", self.shapes[name], "bf")

    def __contains__(self, name: object) -> bool:
        return name in self.shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


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
        value = self.source.labelled(self.name, value, self.dims)
        for place, dim in enumerate(self.dims):
            if dim not in study:  # inner axes are evaluated whole
                value = np.take(value, rows[dim], axis=place)
        return value.astype(self.dtype, copy=False)[single]


def _stored_cut(archive: Archive, graph: Any, registry: Any) -> Cut:
    """The cut that a file stores, without planning it again."""
    about, sizes = archive.header["quantities"], archive.header["sizes"]
    axis_of: dict[int, str] = {}
    for n, q in about.items():
        inner = [len(labels) for labels in registry.inner.labels.values()]
        legal = len(q["inner"]) == len(inner) and all(m in (1, most) for m, most in zip(q["inner"], inner, strict=True))
        numbers = {i: axis for i, axis in zip(q["key"], sizes, strict=False) if i is not None}
        alike = all(axis_of.setdefault(i, axis) == axis for i, axis in numbers.items())
        if len(q["key"]) != len(sizes) or not legal or not alike or not {*numbers.values()} <= {*q["axes"]} <= {*sizes}:
            raise PerfgridError(
                f"cannot read {archive.path!r}: {HEADER} is damaged: quantity {n} does not fit the axes"
            )
        if any(i >= len(inner) for i in q["called_on"]):
            raise PerfgridError(f"cannot read {archive.path!r}: {HEADER} is damaged: quantity {n} has other inner axes")
    classes = {i: _classes(archive, f"rows/{i}", sizes[axis]) for i, axis in axis_of.items()}
    partitions = dict(zip(classes, partitions_from_classes(list(classes.values())), strict=True))
    quantities = {}
    for n, q in about.items():
        key = tuple(None if number is None else partitions[number] for number in q["key"])
        axes, inner = dict.fromkeys(q["axes"], ()), tuple(q["inner"])
        node, called_on = graph.nodes.get(n), tuple(q["called_on"])
        quantities[n] = Quantity(n, node, axes, key, inner, q["flag"], q["stored"], varying(inner), called_on)
    return Cut(graph, registry, sizes, quantities, StoredValues(archive, quantities), archive.header["dtype"])


def _classes(archive: Archive, name: str, rows: int) -> np.ndarray:
    """The class of every row of an axis; classes are numbered from zero."""
    found = archive.array(name, (rows,), "iu")
    if not np.array_equal(np.unique(found), np.arange(found.max() + 1)):
        raise PerfgridError(f"cannot read {archive.path!r}: {name} is damaged: classes are not numbered from zero")
    return found


def _check_cut(archive: Archive, cut: Cut) -> None:
    """PerfgridError where the variables of a file are not those that its quantities give."""
    variables = archive.header["variables"]
    graph = above(cut, tuple(variables))
    known = {*graph.leaves, *graph.nodes} & {*cut.quantities}
    needed = {*variables, *graph.leaves, *(a for n in graph.nodes.values() for a in n.arguments)}
    if lacking := sorted(needed - known):
        raise PerfgridError(f"cannot read {archive.path!r}: {HEADER} is damaged: quantity {lacking[0]} is missing")
    for name, about in variables.items():
        q = cut.quantities[name]
        sizes = dict(zip((cut.registry.inner.names[i] for i in q.axes), q.inner_shape, strict=True))
        expected = {axis: cut.sizes[axis] for axis in q.columns} | sizes
        if {d: archive.sizes[d] for d in about["dims"]} != expected:
            raise PerfgridError(
                f"cannot read {archive.path!r}: {HEADER} is damaged: {name} lies on {about['dims']}, expected "
                f"{list(expected)}"
            )


def _plain(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(k): v.tolist() if isinstance(v, np.ndarray) else v for k, v in attributes.items()}


def _attributes(stored: Mapping[str, Any]) -> dict[str, Any]:
    return {k: np.array(v, np.int8) if k == "flag_values" else v for k, v in stored.items()}
