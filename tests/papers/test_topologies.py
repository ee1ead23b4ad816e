"""Networks at equal bandwidth and at equal cost, and the orderings that papers publish."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

import perfgrid as pg

PAPERS = Path(__file__).parents[2] / "studies" / "papers"
FEWER = [
    "axes.model=['deepseek-v3']",
    "axes.microbatch=[2]",
    "axes.parallelism={devices=[4096], tp=[8], pp=[8, 16], ep=[8]}",
]


@pytest.fixture(scope="module")
def result():
    return pg.evaluate(pg.load_study(PAPERS / "topologies.toml", FEWER)).squeeze()


def test_every_network_is_priced_or_flagged(result):
    price = result.network_cost_per_device
    np.testing.assert_allclose(price.sel(network_sizing="budget"), 4250, rtol=1e-5)
    assert (price > 0).all()
    for name in ("step_time", "network_rate"):
        assert np.isfinite(result[name]).all()
    flagged = {str(t) for t in result.topology.values if not result.ports_have_lanes.sel(topology=t).any()}
    assert flagged == {"hyperx-of-devices-512", "full-mesh-of-devices-512"}
    feasible = pg.feasible(result, of="step_time").any(("parallelism", "network_sizing"))
    assert feasible.sum() == len(result.topology) - len(flagged)


def test_equal_bandwidth_and_equal_cost_put_networks_in_another_order(result):
    steps = result.step_time.where(pg.feasible(result, of="step_time")).min("parallelism")
    steps = steps.transpose("topology", "network_sizing").to_pandas()
    assert steps.rate.idxmax() == "mesh-512"
    assert steps.rate.nsmallest(3).max() == pytest.approx(steps.rate["rails"], rel=1e-3)
    assert steps.budget.idxmin() == "full-mesh-512"
    assert steps.rate["torus-512"] > steps.budget["torus-512"] > 1.1 * steps.budget["rails"]
    assert steps.budget["clos"] > steps.rate["clos"]
    assert steps.rate["rail-only"] == pytest.approx(steps.rate["clos"], rel=1e-3)  # wang2023railonly


@pytest.fixture(scope="module")
def published():
    return pg.evaluate(pg.load_study(PAPERS / "network_orderings.toml")).squeeze()


def test_published_orderings_by_price(published):
    """kim2008dragonfly: -20 % and -52 %; kim2007butterfly: half of a Clos; wang2023railonly: -38 to -77 %."""
    usd = published.network_cost_per_device.transpose("network", "copper_reach").to_pandas()
    copper = usd["group"]
    assert 0.1 < 1 - copper["16k dragonfly"] / copper["16k butterfly"] < 0.2
    assert 0.4 < 1 - copper["16k dragonfly"] / copper["16k clos"] < 0.52
    assert 0.5 < copper["16k butterfly"] / copper["16k clos"] < 0.75
    saved = [1 - usd["none"][f"{size} rail-only"] / usd["none"][f"{size} clos"] for size in ("4k", "512")]
    saved.append(1 - usd["none"]["16k rail-only of 256"] / usd["none"]["16k clos of 256"])
    assert min(saved) == pytest.approx(0.38, abs=0.05)
    assert max(saved) == pytest.approx(0.77, abs=0.05)


def test_published_orderings_by_bandwidth(published):
    """ahn2009hyperx: as fast as a Clos; jouppi2023tpuv4: twisting gains 1.63 and 1.31 times."""
    found = published.algorithm_bandwidth.to_series()
    assert found["16k butterfly"] == pytest.approx(found["16k clos"], rel=0.01)
    assert found["twisted 4x4x8"] / found["torus 4x4x8"] == pytest.approx(1.63, rel=0.08)
    assert found["twisted 4x8x8"] / found["torus 4x8x8"] == pytest.approx(1.31, rel=0.08)


@pytest.mark.slow
def test_the_notebook_runs_and_cites(capsys):
    found = runpy.run_path(str(PAPERS / "topologies.py"))["claims"]
    known = set(re.findall(r"@\w+\{(\w+),", (Path(pg.__file__).parent / "catalog" / "references.bib").read_text()))
    assert len(found) >= 8
    assert all(set(re.findall(r"\[(\w+)\]", stated)) & known for stated, *_ in found)
