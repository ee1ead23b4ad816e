"""Stores within a stated memory, and the plans that workers make."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import xarray as xr

import perfgrid as pg
from perfgrid.engine.grid.dataset import SPACE_ATTRIBUTE, formula_hash, space_text
from perfgrid.engine.grid.plan import Plan
from perfgrid.results.provenance import global_attributes, restore
from tests import small
from tests.conftest import as_the_program
from tests.store.common import study


def test_memory_bounds_the_tile(tmp_path, monkeypatch):
    from perfgrid.engine.execution.memory import Footprint
    from perfgrid.engine.execution.regions import Regions
    from perfgrid.results import memory

    plan = study().plan(64)
    monkeypatch.setattr(memory, "resident_memory", lambda: 10**6)
    monkeypatch.setattr(memory, "LEAST_TILE", 64)
    monkeypatch.setattr(memory, "COMPILED_AT_MOST", 0)
    monkeypatch.setattr("perfgrid.engine.execution.memory.small_bytes", lambda plan: (0, 0))
    sizes = []
    for limit in (1.2e6, 1.5e6, 2e6, 1e9):
        points = memory.fitting_tile(plan, "float32", int(limit), "s")
        assert 10**6 + Footprint.of(plan, Regions.of(plan, points).tiles, "float32").written <= limit
        sizes.append(points)
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1] == 18_056
    with pytest.raises(pg.PerfgridError, match=r"a memory of 0.001 GB is too little; 0.1 GB suffice"):
        memory.fitting_tile(plan, "float32", 10**6, "s")
    assert memory.fitting_tile(plan, "float32", None, "s", processes=4) == 18_056 // 16
    monkeypatch.undo()
    with pytest.raises(pg.PerfgridError, match=r"a memory of 0.1 GB is too little; [0-9.]+ GB suffice"):
        memory.fitting_tile(plan, "float32", 10**8, "s")


MEASURE = """
import resource, subprocess, sys
subprocess.run([sys.executable, "-m", "perfgrid", "run", *sys.argv[1:]], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""
SMALLER = ("--set", "axes.model=['llama-3.1-70b']", "--set", "axes.device=['h200-sxm-141gb']")  # 1.6 million points
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def _check_peaks(study, ways, folder, *settings):
    """What ``plan`` states is what the operating system counts of a first ``run``, which compiles, within 15 %."""
    command = [sys.executable, "-m", "perfgrid", "plan", str(study), "--json", *settings]
    own = as_the_program()  # older code generators take other memory
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=own)
    stated = json.loads(done.stdout)["peak_bytes"]
    for way in ways:
        output = [] if way == "in memory" else ["-o", str(folder / f"r{way}")]
        command = [sys.executable, "-c", MEASURE, str(study), *settings, *output]
        cold = own | {"PERFGRID_CACHE": str(folder / f"cache{way}")}
        done = subprocess.run(command, capture_output=True, text=True, env=cold)
        assert done.returncode == 0, done.stderr
        assert 1 / 1.15 < stated[way] / int(done.stdout) < 1.15, (way, stated[way], done.stdout)


@pytest.mark.slow
def test_the_stated_peak_is_the_measured_one(tmp_path):
    _check_peaks(BENCHMARKS / "grid.toml", ["in memory", ".nc"], tmp_path, *SMALLER)


@pytest.mark.slow
def test_the_search_of_a_run_takes_no_memory_beside_that_of_its_evaluation(tmp_path):
    """A run with [best] evaluates, gives the memory back and searches: the peak is that of one of them, not the sum."""
    study = tmp_path / "dense.toml"
    table = '[best]\nover = ["parallelism", "microbatch", "recompute"]\nminimize = "step_time"\n'
    study.write_text((BENCHMARKS / "grid.toml").read_text() + table)
    _check_peaks(study, ["in memory", ".nc"], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("large", ["attach_yield = { start = 0.9, stop = 0.99, num = 80 }", ""])
def test_the_stated_peak_of_sums_over_many_terms(large, tmp_path):
    """The yield of harvested dies sums 2,600 terms a die: in the small stage, and on the grid."""
    number = 60 if large else 600
    study = tmp_path / "bill.toml"
    study.write_text(
        f"""workload = "manufacturing"
outputs = ["manufacturing_cost", "die_yield", "die_cost"]
[axes]
device = ["a100-sxm-80gb", "h100-sxm-80gb", "b200", "mi300x"]
yield_model = ["negative_binomial", "harvested"]
defect_density = {{ scale = {{ start = 0.5, stop = 2, num = {number}, spacing = "log" }} }}
die_area = {{ scale = {{ start = 0.5, stop = 1, num = 300 }} }}
{large}
"""
    )
    _check_peaks(study, ["in memory", ".nc"], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("grid", ["grid.toml", "grid_5d.toml"])
def test_the_stated_peaks_of_the_benchmark_grids(grid, tmp_path):
    _check_peaks(BENCHMARKS / grid, ["in memory", ".nc", ".zarr", ".pgf"], tmp_path)


@pytest.mark.parametrize("workload", ["training", "manufacturing"])
def test_a_worker_plans_what_the_study_plans(workload):
    """From the attributes of a store alone: the same order, stages, partitions and values, to the bit."""
    made = study() if workload == "manufacturing" else small.study(where="tp * pp <= 16 and microbatch * tp < 9")
    plan = made.plan()
    attributes = {**global_attributes(made, plan.graph), SPACE_ATTRIBUTE: space_text(plan)}
    space, registry, choices = restore(xr.Dataset(attrs=attributes))
    again = Plan(registry, space, json.loads(attributes[SPACE_ATTRIBUTE])["outputs"], choices, plan.small_points)
    assert (again.order, again.wanted, list(again.quantities)) == (plan.order, plan.wanted, list(plan.quantities))
    assert formula_hash(again) == formula_hash(plan)
    for name, quantity in plan.quantities.items():
        other = again.quantities[name]
        assert (other.small, other.inner, other.flag) == (quantity.small, quantity.inner, quantity.flag), name
        for a, b in zip(quantity.key, other.key, strict=True):
            assert (a is None) == (b is None), name
            assert a is None or b is None or (a.inverse == b.inverse).all(), name
    for name in plan.graph.leaves:
        for (axis, a), (other, b) in zip(plan.space.parts(name), again.space.parts(name), strict=True):
            assert (axis, a.dtype, a.tobytes()) == (other, b.dtype, b.tobytes()), name
