"""The zarr side of a store: its template, regions written so that they are durable, regions read back."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.catalog.reading import from_json
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.execution.regions import Region
from perfgrid.results.files import DAMAGE, decoding, why
from perfgrid.results.schema import STORE_ATTRIBUTE, stored

try:
    import zarr
    from zarr.codecs import BloscCodec
    from zarr.errors import UnstableSpecificationWarning, ZarrUserWarning
except ImportError:
    raise PerfgridError("a .zarr store needs the package zarr: pip install 'perfgrid[stream]'") from None

METADATA = "zarr.json"  # of a store, and of every array in it
COMPRESSOR = BloscCodec(cname="lz4", clevel=1, shuffle="shuffle")


def write_template(path: Path, template: xr.Dataset, chunks: Mapping[str, tuple[int, ...]]) -> None:
    """Coordinates, attributes and empty variables of a store: all of its metadata, which nothing changes later.

    What is not written yet reads as NaN, flags as violated.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ZarrUserWarning)  # the journal, consolidated metadata
        warnings.simplefilter("ignore", UnstableSpecificationWarning)  # strings of fixed length
        labels = template.drop_vars(list(template.data_vars))
        labels.to_zarr(path, mode="a", zarr_format=3, consolidated=False)
        group = zarr.open_group(path, mode="r+")
        for name, variable in template.data_vars.items():
            group.create_array(
                str(name),
                shape=variable.shape,
                chunks=chunks[str(name)],
                dtype=variable.dtype,
                fill_value=np.nan if variable.dtype.kind == "f" else 0,
                compressors=COMPRESSOR,
                chunk_key_encoding={"name": "default", "separator": "."},  # one folder per variable, to be synchronised
                dimension_names=[str(d) for d in variable.dims],
                attributes={k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in variable.attrs.items()},
            )
        zarr.consolidate_metadata(str(path))
    for folder, _, files in os.walk(path):
        synchronise([Path(folder, file) for file in files])


class Arrays:
    """The variables of a store. Raises PerfgridError where it is damaged or cannot be opened."""

    def __init__(self, path: Path, writable: bool = False):
        self.path = path
        with decoding(path), warnings.catch_warnings():
            warnings.simplefilter("ignore", ZarrUserWarning)
            self.group = zarr.open_group(path, mode="r+" if writable else "r")
            self.attributes: dict[str, Any] = dict(self.group.attrs)
        with decoding(path, errors=(PerfgridError,)):
            self.identity: dict[str, Any] = stored(self.attributes, STORE_ATTRIBUTE)
        self._known: dict[str, Any] = {}

    def array(self, name: str) -> Any:
        """A variable, opened so that regions which equal the fill value are written: one that is absent was lost."""
        if name not in self._known:
            with (
                decoding(self.path, f"variable {name}: "),
                zarr.config.set({"array.write_empty_chunks": True}),  # kept from when an array is opened
            ):
                self._known[name] = self.group[name]
        return self._known[name]

    def dims(self, name: str) -> tuple[str, ...]:
        """The dimensions of a variable."""
        return tuple(self.array(name).metadata.dimension_names or ())

    def write(self, name: str, region: Region, value: np.ndarray) -> Path:
        """Put one region, which is one chunk, and tell its file."""
        array = self.array(name)
        array[region if region else ...] = value
        return self._file(name, region)

    def _file(self, name: str, region: Region) -> Path:
        array = self.array(name)
        place = tuple((r.start or 0) // chunk for r, chunk in zip(region, array.chunks, strict=True))
        return self.path / name / array.metadata.encode_chunk_key(place)

    def read(self, name: str, region: Region) -> np.ndarray:
        """One region. PerfgridError where it is missing or damaged."""
        array = self.array(name)
        if not self._file(name, region).exists():
            raise PerfgridError(f"the region of {name} is missing")
        try:
            return np.asarray(array[region if region else ...])
        except DAMAGE as error:
            raise PerfgridError(f"the region of {name} cannot be read ({why(error)})") from error

    def labels(self, name: str) -> np.ndarray:
        """A coordinate. PerfgridError where it cannot be read."""
        with decoding(self.path, f"coordinate {name}: "):
            return np.asarray(self.array(name)[...])

    def _metadata(self, name: str) -> Any:
        """What a member, or with no name the whole, states of itself."""
        return from_json((self.path / name / METADATA).read_text("utf-8"), finite=False)

    def changed(self) -> list[str]:
        """The members whose own metadata are lost, or are not those of the whole store."""
        try:
            together = self._metadata("")["consolidated_metadata"]["metadata"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            return [f"{METADATA} cannot be read ({why(error)})"]
        found = []
        for name, about in together.items():
            try:
                same = self._metadata(name) == about
                told = "" if same else "was changed"
            except (OSError, ValueError) as error:
                told = f"cannot be read ({why(error)})"
            found += [f"{name}/{METADATA} {told}"] if told else []
        return found


def synchronise(files: Iterable[Path]) -> None:
    """Wait until files and the folders that name them are on disk."""
    files = list(files)
    for path in (*files, *dict.fromkeys(file.parent for file in files)):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
