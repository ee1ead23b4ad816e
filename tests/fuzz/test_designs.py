"""Drawn legal studies: every way of evaluating them gives the same numbers, flags and winners."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perfgrid as pg
from perfgrid.catalog import load_catalog
from perfgrid.engine.grid.dataset import constraints_of

from .values import CHECKS

CATALOG = load_catalog()
SERVING = sorted(name for name, entry in CATALOG.tables["software"].items() if entry.values["serves"])
TRAINING = sorted(set(CATALOG.tables["software"]) - set(SERVING))
TABLES = {table: sorted(CATALOG.tables[table]) for table in ("model", "device", "topology")}
QUICK = settings(max_examples=4, deadline=None, suppress_health_check=CHECKS)
THOROUGH = settings(QUICK, max_examples=300)


def some(values, most=2):
    return st.lists(st.sampled_from(values), min_size=1, max_size=most, unique=True)


def studies(workload):
    """Studies of a few designs, many of them infeasible."""
    degrees = {"devices": some([1, 3, 8, 64, 512]), "tp": some([1, 2, 3, 8, 64]), "pp": some([1, 2, 3, 8])}
    axes = {table: some(names) for table, names in TABLES.items()}
    axes |= {
        "software": some(SERVING if workload == "inference" else TRAINING, 1),
        "parallelism": st.fixed_dictionaries(degrees),
        "precision": some(["bf16", "fp8"]),
    }
    if workload == "training":
        axes |= {"microbatch": some([1, 2, 5]), "recompute": some(["none", "selective", "full"])}
        axes |= {"schedule": some(["1f1b", "gpipe", "zb_h1", "zb_v", "dualpipe", "dualpipe_v"])}
        given = {"sequence_length": st.sampled_from([1, 512, 131072]), "global_batch": st.sampled_from([1, 48, 4096])}
        outputs = ["step_time", "memory_per_device", "step_energy"]
    else:
        axes |= {"batch": some([1, 16, 5000]), "kv_precision": some(["bf16", "fp8"])}
        given = {"prompt_tokens": st.sampled_from([1, 512, 20000]), "output_tokens": st.sampled_from([1, 2, 300])}
        outputs = ["time_to_first_token", "time_per_output_token", "memory_per_device"]
    parts = {"axes": st.fixed_dictionaries(axes), "workload_parameters": st.fixed_dictionaries(given)}
    parts |= {"workload": st.just(workload), "outputs": st.just(outputs), "dtype": st.just("float64")}
    return st.fixed_dictionaries(parts).filter(has_layouts)


def has_layouts(content):
    """Whether the lists of degrees have a layout of every cluster size."""
    degrees = content["axes"]["parallelism"]
    tiles = [tp * pp for tp in degrees["tp"] for pp in degrees["pp"]]
    return all(any(devices % size == 0 for size in tiles) for devices in degrees["devices"])


def check(content, data):
    study = pg.Study.make(**content)
    grid = pg.evaluate(study)
    objective = study.outputs[0]
    point = {a.name: data.draw(st.sampled_from(range(len(a))), label=a.name) for a in study.space.axes}
    here = {d: i for d, i in point.items() if d in grid.dims}
    labels = {a.name: a.labels[point[a.name]].item() for a in study.space.axes}
    single = pg.evaluate(pg.Study.make(**content | {"axes": narrowed(content["axes"], labels)}))
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a.nc", "a.pgf"):
            with pg.open_result(pg.save(study, Path(folder) / name)) as kept:
                for variable in grid.data_vars:
                    np.testing.assert_array_equal(kept[variable].transpose(*grid[variable].dims), grid[variable])
    for name in map(str, grid.data_vars):
        if name not in single:  # a constraint on what other models alone have
            assert grid[name].isel(here, missing_dims="ignore").all()
            continue
        one, whole = single[name].squeeze(), grid[name].isel(here, missing_dims="ignore")
        np.testing.assert_allclose(one, whole, rtol=1e-12, err_msg=name)
        if name in study.outputs:
            legal = grid[constraints_of(grid, [name])].isel(here, missing_dims="ignore")
            assert np.isfinite(whole).all() or not all(bool(v) for v in legal.data_vars.values())
    allowed = pg.feasible(grid[[objective, *constraints_of(grid, [objective])]])
    flags = [grid[c] for c in constraints_of(grid, [objective])]
    assert all(f.attrs["reason"] and f.attrs["constraint"] for f in flags)
    assert bool(allowed.all()) == all(bool(f.all()) for f in flags)  # what is infeasible has a reason
    found = pg.best(study, over=[*(a.name for a in study.space.axes), "devices"], minimize=objective)
    values = grid[objective].where(allowed)
    assert bool(found["found"]) == bool(allowed.any())
    if allowed.any():
        np.testing.assert_allclose(found[objective], values.min(), rtol=1e-12)


def narrowed(axes, labels):
    """The axes of a study at one of its designs."""
    layout = {part.rstrip("0123456789"): int(part.lstrip("tpd")) for part in labels["parallelism"].split(".")}
    sizes = {"devices": [layout["tp"] * layout["pp"] * layout["dp"]], "tp": [layout["tp"]], "pp": [layout["pp"]]}
    return {name: sizes if name == "parallelism" else [labels[name]] for name in axes}


@QUICK
@given(studies("training"), st.data())
def test_training(content, data):
    check(content, data)


@QUICK
@given(studies("inference"), st.data())
def test_serving(content, data):
    check(content, data)


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["training", "inference"])
def test_hundreds_of_studies(workload):
    THOROUGH(given(studies(workload), st.data())(check))()
