"""Global sensitivity against variances and effects computed by hand, and the two commands as a user runs them."""

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import perfgrid as pg
from perfgrid import PerfgridError
from perfgrid.analysis.global_sensitivity import morris, sobol
from perfgrid.cli.arguments import names_in
from perfgrid.printing.bars import bar, swing
from perfgrid.study.samples import factors
from tests.test_bad_input import run

BILL = Path(__file__).parents[2] / "studies" / "bill_of_materials.toml"
AT = {"device": "h100-sxm-80gb", "yield_model": "harvested"}


@pg.formula(unit="USD", source="toy")
def sum_of_two(wafer_price, memory_price):
    """An additive cost."""
    return wafer_price * 1e-2 + memory_price * 1e10


@pg.formula(unit="USD", source="toy")
def product_of_two(wafer_price, memory_price):
    """A cost in which two estimates multiply."""
    return wafer_price * memory_price


def ends(found, name):
    row = found.sel(parameter=name)
    return float(row.low), float(row.high)


def moments(low, high):
    """Mean and variance of factors of median 1, spread evenly on either side."""
    values = factors((np.arange(10**5) + 0.5) / 10**5, low, high)
    return values.mean(), values.var()


@pytest.fixture(scope="module")
def study():
    return pg.load_study(BILL, formulas=[sum_of_two, product_of_two])


def stated(study, name):
    index = [list(a.labels).index(AT[a.name]) if a.name in AT else 0 for a in study.space.axes]
    return study.space.at(name, tuple(index))


def test_sobol_of_a_sum_is_each_share_of_the_variance(study):
    found = sobol(study, "sum_of_two", AT, samples=2048)
    assert set(found.parameter.values.tolist()) == {"wafer_price", "memory_price"}
    weights = {"wafer_price": 1e-2, "memory_price": 1e10}
    variance = {n: (w * stated(study, n)) ** 2 * moments(*ends(found, n))[1] for n, w in weights.items()}
    for name, part in variance.items():
        row, expected = found.sel(parameter=name).squeeze(), part / sum(variance.values())
        for kind in ("first_order", "total"):
            assert abs(float(row[kind]) - expected) <= 2 * float(row[f"{kind}_confidence"]) + 0.01
    assert float(found.variance.squeeze()) == pytest.approx(sum(variance.values()), rel=0.02)


def test_sobol_of_a_product_gives_both_a_part_together(study):
    """Of x y: S_x = Var x (E y)^2 / Var(x y), and the rest is theirs together."""
    found = sobol(study, "product_of_two", AT, samples=4096)
    (mx, vx), (my, vy) = (moments(*ends(found, n)) for n in ("wafer_price", "memory_price"))
    total = vx * vy + vx * my**2 + vy * mx**2
    row = found.sel(parameter="wafer_price").squeeze()
    assert float(row.first_order) == pytest.approx(vx * my**2 / total, abs=0.03)
    assert float(row.total) == pytest.approx((vx * my**2 + vx * vy) / total, abs=0.03)


def test_morris_tells_a_sum_from_a_product(study):
    """Effects of a sum do not depend on the other estimate; of a product they do."""
    found = morris(study, "sum_of_two", AT, trajectories=40)
    low, high = ends(found, "memory_price")
    row = found.sel(parameter="memory_price").squeeze()
    level = [float(factors(np.array([u]), low, high)[0]) for u in (0, 1 / 3, 2 / 3, 1)]
    effects = [(level[2] - level[0]) / (2 / 3), (level[3] - level[1]) / (2 / 3)]  # of four levels, a jump is two
    scale = 1e10 * stated(study, "memory_price")
    assert min(effects) * scale * (1 - 1e-9) <= float(row.mean_absolute_effect) <= max(effects) * scale * (1 + 1e-9)
    assert float(row.mean_effect) == pytest.approx(float(row.mean_absolute_effect))


def test_one_estimate_and_several_designs(study):
    found = sobol(study, "manufacturing_cost", {"yield_model": "harvested"}, of=["assembly_cost"], samples=64)
    again = sobol(study, "manufacturing_cost", {"yield_model": "harvested"}, of=["assembly_cost"], samples=64)
    assert found.equals(again)  # the intervals, too, are those of the seed
    assert found.sizes["device"] > 1
    np.testing.assert_allclose(found.total, 1.0, atol=0.02)
    assert (found.feasible_share == 1).all()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda s: sobol(s, "manufacturing_cot", AT), "unknown quantity 'manufacturing_cot'"),
        (lambda s: sobol(s, "manufacturing_cost", AT, of=["assembly_cots"]), "'assembly_cots' has no range"),
        (lambda s: sobol(s, "manufacturing_cost", {"device": "h1"}), "axis 'device' has no label 'h1'"),
        (lambda s: morris(s, "manufacturing_cost", AT, trajectories=1), "a whole number from 2 to 1,000,000, found 1"),
        (lambda s: sobol(s, "device", AT), "'device' labels designs"),
        (lambda s: sobol(s, "manufacturing_cost", AT, seed=-1), "seed must be a whole number of at least 0, found -1"),
        (lambda s: sobol(s, "manufacturing_cost", AT, of="assembly_cots"), "'assembly_cots' has no range"),
    ],
)
def test_wrong_questions_are_reported(study, call, sentence):
    with pytest.raises(PerfgridError, match=sentence):
        call(study)


def test_the_command_sensitivity(monkeypatch, capsys, tmp_path):
    study = tmp_path / "s.toml"
    study.write_text(
        """title = "small"
outputs = ["step_time", "memory_per_device"]
[axes]
model = ["llama-2-7b"]
device = ["h100-sxm-80gb", "a100-sxm-80gb"]
topology = ["rail-optimized"]
parallelism = { devices = 16, tp = [1, 8], pp = 1 }
[workload_parameters]
sequence_length = 8192
global_batch = 64
"""
    )
    target = tmp_path / "e.nc"
    status, out, _ = run(monkeypatch, capsys, "sensitivity", study, "--of", "step_time,memory_per_device", "-o", target)
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == "elasticities of step_time over the feasible designs"
    assert lines[2].split()[0] in ("peak_bf16_rate", "matrix_efficiency")
    assert any(line.split()[:2] == ["hbm_bandwidth", "B/s"] for line in lines)
    assert "##|" in lines[2]
    for words in (
        "bound by: ",
        "without effect at any feasible design",
        "derivatives: exact",
        "fixed times minus rates: 1.00000 to 1.00000",
    ):
        assert words in out
    with xr.open_dataset(target) as ds:
        assert ds.step_time_elasticity.dims[0] == "parameter"
        assert pg.feasible(ds).any()
    at = "device=h100-sxm-80gb,parallelism=tp8.pp1.dp2"
    arguments = ("--wrt", "hbm_bandwidth,tier_hops[scale_up]", "--at", at, "--smooth", "--cross")
    status, out, _ = run(monkeypatch, capsys, "sensitivity", study, *arguments, "--json")
    data = json.loads(out)
    assert status == 0
    found = data["outputs"]["step_time"]
    assert {r["parameter"] for r in found["elasticities"]} == {"hbm_bandwidth", "tier_hops[scale_up]"}
    assert found["bound_by"] == {"hbm_bandwidth": 1.0}
    assert len(found["cross_elasticities"]["values"]) == 2
    assert data["derivatives"].startswith("smooth companions: p-norm with p = 8")
    status, out, err = run(monkeypatch, capsys, "sensitivity", study, "--wrt", "hbm")
    assert (status, out) == (2, "")
    assert err.startswith(f"perfgrid: {study}: no derivative with respect to 'hbm': it is unknown")


def test_the_command_uncertainty(monkeypatch, capsys, tmp_path):
    where = ("--of", "manufacturing_cost", "--at", "device=h100-sxm-80gb,yield_model=harvested")
    status, out, _ = run(monkeypatch, capsys, "uncertainty", BILL, *where, "--json")
    values = json.loads(out)["quantiles"][0]["values"]
    assert status == 0
    assert values == sorted(values)
    assert values[0] < values[2]
    status, out, _ = run(monkeypatch, capsys, "uncertainty", BILL, *where, "--method", "tornado")
    assert out.splitlines()[0].startswith("manufacturing_cost = ")
    assert out.splitlines()[2].split()[0] == "assembly_cost"
    for method, header in (("sobol", "first order"), ("morris", "effect deviation")):
        target = tmp_path / f"{method}.nc"
        options = ("--method", method, "--samples", "16", "--top", "2", "-o", target)
        status, out, _ = run(monkeypatch, capsys, "uncertainty", BILL, *where, *options)
        assert status == 0
        assert header in out
        assert "±" in out
        assert out.splitlines()[2].split()[0] in ("assembly_cost", "memory_price")
        assert target.exists()
    for options, sentence in [
        (("--method", "monte_carlo"), "--method must be one of quantiles, tornado, morris, sobol, found 'monte_carlo'"),
        (("--method", "tornado", "--samples", "5"), "a tornado evaluates the ends of each range"),
        (("--method", "sobol", "--of", "manufacturing_cost,silicon_cost"), "looks at one output at a time"),
        (("--of", ""), "--of names no quantity"),
    ]:
        status, _, err = run(monkeypatch, capsys, "uncertainty", BILL, *options)
        assert status == 2
        assert sentence in err


def test_axes_left_open_are_at_the_best_design_or_a_table_that_is_refused_before_any_work(monkeypatch, capsys):
    study = Path(__file__).parents[2] / "studies" / "papers" / "korthikanti.toml"
    samples, named = ("--samples", "4", "--json"), ("--at", "row=22b selective")
    status, best, _ = run(monkeypatch, capsys, "uncertainty", study, "--at", "best", *samples)
    _, same, _ = run(monkeypatch, capsys, "uncertainty", study, *named, *samples)
    assert (status, best) == (0, same)
    status, best, _ = run(monkeypatch, capsys, "uncertainty", study, "--method", "tornado")
    assert best.startswith("at the best design (least step_time): row=22b selective\nstep_time = ")
    monkeypatch.setattr("perfgrid.cli.uncertainty.MOST_ROWS", 2)
    monkeypatch.setattr("perfgrid.cli.uncertainty.evaluate", None)
    status, _, err = run(monkeypatch, capsys, "uncertainty", study, "--samples", "4")
    assert status == 2
    assert "designs and outputs are no table (at most 2): keep single labels with --at, take the best design" in err


def test_names_and_bars():
    assert names_in("a, b[x,y] ,c") == ["a", "b[x,y]", "c"]
    assert bar(-1.0, 2.0) == "      ######|            "
    assert bar(0.0, 0.0) == "            |            "
    assert swing(1.0, 2.0, 4.0, 2.0) == "      ######|############"
    assert swing(4.0, 2.0, 1.0, 2.0) == "      ######|############"
