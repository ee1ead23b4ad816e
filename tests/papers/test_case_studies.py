"""The case studies of the papers on small grids: what their claims and the sentences of their pictures say."""

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.pictures.views.make import picture_of, subject_of, views_of
from tests.paths import PAPERS, study_path


def load(name, *settings):
    return pg.load_study(study_path(name), settings)


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_every_study_states_pictures(path):
    views = views_of(subject_of(path))
    assert views
    for view in views:
        assert view.title
        assert view.see.endswith(".")


def test_recomputation():
    ds = pg.evaluate(load("recompute_memory")).squeeze(drop=True)
    kept = ds.layer_activation_memory / ds.layer_activation_memory.sel(recompute="none", sequence_parallel="false")
    both = kept.sel(recompute="selective", sequence_parallel="true")
    assert both.values == pytest.approx([0.1614, 0.1848, 0.2024, 0.2024], abs=5e-4)  # equation 6 of Korthikanti 2022
    assert ds.layer_state_memory.values / 2**30 == pytest.approx([45.5625, 45.5625, 31.640625, 32.958984375])


def test_nodes():
    best = pg.best(load("node_scaling", 'axes.node=["n12", "a10"]', 'axes.memory=["hbm2", "hbm7"]')).squeeze()
    at = {"link": "infiniband-xdr"}
    memory = best.hbm_fraction.sel(memory="hbm2", **at)
    ranks = (best.communication_fraction + best.bubble_fraction).sel(memory="hbm7", **at)
    gain = (best.step_time.sel(node="n12") / best.step_time.sel(node="a10")).sel(**at)
    assert float(memory.sel(node="a10")) > 4 * float(memory.sel(node="n12"))
    assert float(ranks.sel(node="a10")) > 3 * float(ranks.sel(node="n12"))
    assert 6 < float(gain.sel(memory="hbm2")) < float(gain.sel(memory="hbm7")) < 12


def test_area_and_power_are_allocated_anew():
    """At one node over three shares; its picture piles the shares."""
    over = ["area_split.matrix", "area_split.vector"]
    study = load("node_allocation", 'axes.node=["n3"]', "axes.parallelism={devices=[1024], tp=[4, 8], pp=[4, 8]}")
    found = pg.optimize(study, "step_time", over=over, starts=1)
    before = float(pg.best(study).step_time.min())
    assert float(found.objective) < 0.85 * before
    assert float(found.kkt_residual) < 1e-4
    (panel,) = picture_of(found, {"y": over[:2], "kind": "bars", "name": "optimum"}).panels
    first, second = panel.series
    assert first.base == (0.0,)
    assert first.x == pytest.approx([float(found[over[0]])])
    assert second.base == first.x
    assert second.x[0] - second.base[0] == pytest.approx(float(found[over[1]]))


def test_memory_generations():
    study = load("dram_technology", 'axes.link=["nvlink3"]', "axes.batch=[1]", "axes.parallelism={devices=[1],tp=[1]}")
    ds = pg.evaluate(study).squeeze(drop=True)
    latency = ds.request_latency.to_series()
    assert (np.diff(latency["hbm2":"hbm4"]) < 0).all()
    assert latency["hbm7"] == pytest.approx(latency["hbm4"], rel=0.01)
    parts = ds.decode_kernels_time / ds.decode_kernels_time.sum("resource")
    assert 0.85 < float(parts.sel(memory="hbm2", resource="hbm")) < 0.95
    assert (np.diff(parts.sel(resource="hbm").to_series()["gddr6":"hbm7"]) < 0).all()
    assert float(parts.sel(memory="hbm4", resource=["l2", "launch"]).sum()) > 0.9
    piles = picture_of(ds.pipe(lambda _: study), "parts").panels[0].series
    tops = np.nansum([np.array(s.y) - np.array(s.base) for s in piles], axis=0)
    unit = picture_of(study, "parts").panels[0].y.size
    assert tops * unit == pytest.approx(ds.decode_kernels_time.sum("resource").values, rel=1e-4)


def test_flash_attention_beside_published_throughput():
    """Dao 2023, table 1, TFLOP/s of an A100 with version 2."""
    published = {("gpt3-1.3b", "2k"): 196, ("gpt3-1.3b", "8k"): 220, ("gpt3-2.7b", "2k"): 205, ("gpt3-2.7b", "8k"): 225}
    best = pg.best(load("flash_attention", "axes.parallelism={devices=[8], tp=[1, 2], pp=[1]}"))
    rate = (best.model_flops_per_second_per_device.squeeze(drop=True) / 1e12).sel(attention="version 2")
    for (model, context), value in published.items():
        assert float(rate.sel(model=model, context=context)) == pytest.approx(value, rel=0.05)
    found = best.found.squeeze(drop=True).sel(context="32k", model="gpt3-2.7b")
    assert found.to_series().to_dict() == {"separate kernels": False, "version 1": True, "version 2": True}


def test_mixtures():
    best = pg.best(load("mixtures", "axes.microbatch=[1]")).squeeze(drop=True)
    hours = best.device_time.to_series() / 3600e3
    assert hours["deepseek-v2"] == pytest.approx(172.8, rel=0.12)  # DeepSeek-V2 report, section 3.2.3
    assert hours["mixtral-active"] < hours["mixtral-8x7b"] < 1.2 * hours["mixtral-active"]
    assert hours["mixtral-8x7b"] < 0.4 * hours["mixtral-whole"]
    assert best.parameters_per_token.sel(model="mixtral-active") == pytest.approx(
        float(best.parameters_per_token.sel(model="mixtral-8x7b")), rel=1e-4
    )


def test_chiplets():
    ds = pg.evaluate(load("chiplet_tradeoff", 'axes.package=["cowos-s"]')).squeeze(drop=True)
    value = ds.tokens_per_dollar.where(pg.feasible(ds)).max("parallelism").sel(production_volume=1e5)
    assert (np.diff(value.transpose("node", "budget_dies").values, axis=0) > 0).all()
    assert (value.argmax("budget_dies") == 3).all()


def test_cost_against_performance():
    best = pg.best(load("training_cost", 'axes.device=["h100-sxm-80gb"]', "axes.microbatch=[1]")).squeeze(drop=True)
    cost, time = best.cost_per_training_run.to_series(), best.training_time.to_series()
    assert cost.is_monotonic_increasing
    assert time.is_monotonic_decreasing
    served = pg.evaluate(load("serving_cost", 'axes.device=["h100-sxm-80gb"]', "axes.batch=[8, 128]"))
    price = served.cost_per_million_tokens.where(pg.feasible(served)).min("parallelism").squeeze(drop=True)
    assert float(price.sel(batch=8)) > 1.5 * float(price.sel(batch=128))
