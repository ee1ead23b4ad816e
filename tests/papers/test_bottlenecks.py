"""Bottlenecks by generation: shares of training, prefill and decoding add up, and move as the pictures say."""

import re
import runpy

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.analysis.limiting import shares as parts_of
from perfgrid.engine.grid.replay import index_of
from tests.paths import ROOT, study_path

TRAINING, SERVING = study_path("bottlenecks"), study_path("bottlenecks_serving")
PARTS = ["arithmetic", "on_chip", "hbm", "launch", "host", "communication"]
FEW_SYSTEMS = (
    "axes.system={labels=['V100', 'B200', 'TPU v7'], zip={device=['v100-sxm-32gb', 'b200', 'tpu-v7'], "
    "precision=['fp16', 'fp8', 'bf16'], %s}}"
)
FEW_LAYOUTS = "axes.parallelism={devices=[2048], tp=[2, 8], pp=[1, 16], ep=[1, 16], chunks=[2]}"


def test_training():
    settings = [FEW_SYSTEMS % "zero=[1, 1, 3]", FEW_LAYOUTS, "axes.recompute=['none', 'full']", "axes.microbatch=[1]"]
    best = pg.best(pg.load_study(TRAINING, settings)).squeeze("devices")
    assert best.found.all()
    found = {part: best[f"{part}_fraction"] for part in [*PARTS, "bubble", "straggler", "optimizer"]}
    np.testing.assert_allclose(sum(found.values()), 1, atol=2e-3)
    at = {part: share.sel(training="GPT-3 175B").to_series() for part, share in found.items()}
    assert at["arithmetic"]["V100"] > at["arithmetic"]["B200"] + 0.1
    assert (
        at["communication"]["B200"] + at["bubble"]["B200"] > at["communication"]["V100"] + at["bubble"]["V100"] + 0.05
    )


def test_serving():
    formats = "weight_precision=['fp16', 'fp4', 'bf16']"
    settings = [(FEW_SYSTEMS % formats).replace("'fp8', 'bf16'", "'fp4', 'bf16'"), "axes.batch=[16]"]
    settings += ["axes.parallelism={devices=[8, 16, 64], tp=[8, 16], pp=[1, 4], ep=[1]}"]
    study = pg.load_study(SERVING, settings)
    best = pg.best(study).squeeze("batch")
    for which in ("prefill", "decode"):
        np.testing.assert_allclose(sum(best[f"{which}_{part}_fraction"] for part in PARTS), 1, rtol=1e-5)
    gpt = best.sel(serving="GPT-3 175B")
    assert gpt.decode_hbm_fraction.sel(system="V100") > 0.8
    assert gpt.decode_hbm_fraction.sel(system="B200") < 0.5
    assert (best.decode_arithmetic_fraction < 0.02).all()
    assert (
        gpt.prefill_communication_fraction.sel(system="B200")
        > 0.4
        > gpt.prefill_communication_fraction.sel(system="V100")
    )


def test_shares_of_a_request_are_those_of_its_parts():
    """What the prefill and the steps of a request wait for, put together by another path."""
    passes = [
        f"{which}_{of}" for which in ("prefill", "decode") for of in ("work_time", "hbm_fraction", "host_fraction")
    ]
    study = pg.Study.make(
        workload="inference",
        outputs=[*passes, "decode_steps", "request_latency"],
        axes={"model": ["llama-3.1-8b"], "device": ["h100-sxm-80gb"], "batch": [8], "parallelism": {"devices": [2]}},
        workload_parameters={"prompt_tokens": 512, "output_tokens": 64},
    )
    found = pg.evaluate(study, "float64").sel(parallelism="tp2.pp1.dp1").squeeze()
    at = {axis.name: axis.labels[0] for axis in study.space.axes} | {"parallelism": "tp2.pp1.dp1"}
    whole = dict(parts_of(study, [index_of(study.space, at)])[0])
    runs = {"prefill": 1.0, "decode": float(found.decode_steps)}
    work = {which: float(found[f"{which}_work_time"]) * count for which, count in runs.items()}
    assert sum(work.values()) == pytest.approx(float(found.request_latency), rel=1e-9)
    for part, name in (("hbm", "HBM bandwidth"), ("host", "the host")):
        share = sum(float(found[f"{which}_{part}_fraction"]) * time for which, time in work.items()) / sum(
            work.values()
        )
        assert share == pytest.approx(whole[name], rel=1e-8)


@pytest.mark.slow
def test_the_whole_study_and_its_notebook(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(ROOT)
    found = runpy.run_path(str(TRAINING.with_suffix(".py")))
    views = {view.name: view.see for path in (TRAINING, SERVING) for view in pg.load_study(path).file.view}
    gpt, waits = found["gpt"].arithmetic, found["waits"]
    assert f"from {100 * gpt['V100']:.0f} to {100 * gpt['B200']:.0f} %" in views["shares"]
    assert f"from {100 * waits['V100']:.0f} to {100 * waits['B200']:.0f} %" in views["shares"]
    for name, part in (("prefill", "communication"), ("decode", "hbm")):
        of_gpt = found[name].loc["GPT-3 175B"][part]
        assert re.findall(r"(\d+) %", views[name]) == [f"{100 * of_gpt[system]:.0f}" for system in ("V100", "B200")]
