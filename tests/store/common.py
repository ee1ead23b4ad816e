"""A fast study with compiled quantities, its store, and comparisons of stores byte by byte."""

import tomllib
from pathlib import Path

import numpy as np

from perfgrid.results.store.journal import NAME
from perfgrid.study.study import Study

TEXT = """\
workload = "manufacturing"
outputs = ["manufacturing_cost", "die_yield", "die_cost"]

[axes]
device = ["a100-sxm-80gb", "h100-sxm-80gb", "b200", "mi300x"]
yield_model = ["negative_binomial", "harvested"]
defect_density = { scale = { start = 0.5, stop = 2, num = 37, spacing = "log" } }
die_area = { scale = { start = 0.5, stop = 1.1, num = 61 } }
"""


def written(folder: Path) -> Path:
    path = folder / "study.toml"
    path.write_text(TEXT)
    return path


def study(**changes) -> Study:
    return Study.make(**{**tomllib.loads(TEXT), **changes})


def files(store: Path) -> dict[str, bytes]:
    """Everything in a store but its journal (whose lines come in any order) and the time of writing."""
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in sorted(store.rglob("*"))
        if path.is_file() and path.name != NAME and path != store / "zarr.json"
    }


def assert_same_stores(a: Path, b: Path) -> None:
    one, other = files(a), files(b)
    assert one.keys() ^ other.keys() == set()
    assert [name for name in one if one[name] != other[name]] == []
    lines = [sorted((p / NAME).read_text().splitlines()) for p in (a, b)]
    tiles = [line for line in lines[0] if '"tile"' in line]
    assert tiles == [line for line in lines[1] if '"tile"' in line]
    assert len(tiles) == len({line.split(",")[0] for line in tiles})  # none twice


def assert_same_values(a, b) -> None:
    assert set(a.data_vars) == set(b.data_vars)
    assert set(a.coords) == set(b.coords)
    for name in a.variables:
        assert a[name].dims == b[name].dims, name
        assert a[name].values.tobytes() == np.asarray(b[name].values).tobytes(), name
