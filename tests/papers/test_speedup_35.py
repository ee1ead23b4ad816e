"""The 35 times from A100 to B200: no step of the chain is lost, and what the study and its picture say holds."""

import json
import math
import runpy
from pathlib import Path

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.pictures.views.make import picture_of
from tests.paths import ROOT, study_path

STUDY = study_path("speedup_35")
FEWER = ["axes.parallelism={devices=[1024], tp=[4, 8], pp=[1, 2, 4, 8], chunks=[1, 4]}", "axes.microbatch=[1, 2]"]
RECORDS = Path(pg.__file__).parent / "validation" / "records"


@pytest.fixture(scope="module")
def study():
    return pg.load_study(STUDY, FEWER)


@pytest.fixture(scope="module")
def chains(study):
    return pg.best(study).tokens_per_second_per_device.squeeze(drop=True).transpose("under", "step")


def test_each_step_changes_one_assumption(study):
    """A device changes with its own bandwidths; of the other columns of a step one changes."""
    axis = next(axis for axis in study.space.axes if axis.name == "step")
    stated = {n: axis.columns[n] for n in ("precision", "scale_out_bandwidth", "scale_up_size", "global_batch")}
    changed = sum((np.diff(np.unique(c, return_inverse=True)[1]) != 0).astype(int) for c in stated.values())
    device = np.diff(np.unique(axis.columns["device"], return_inverse=True)[1]) != 0
    assert (changed + device == 1).all()


def test_the_chain_falls_short_of_35(chains):
    totals = chains.isel(step=-1) / chains.isel(step=0)
    papers, today = totals.values
    assert 12 < today < papers < 20
    assert (chains.diff("step") > -0.01 * chains.isel(step=slice(None, -1)).values).all()
    assert (chains[0] > chains[1]).all()  # no software is an upper bound


def test_the_picture_multiplies_to_the_whole(study, chains):
    picture = picture_of(study, "steps")
    assert [panel.title for panel in picture.panels[:2]] == ["under the papers' assumptions", "under today's software"]
    for panel, chain in zip(picture.panels, chains.values, strict=False):
        factors = [end / base for s in panel.series if s.name != "total" for base, end in zip(s.base, s.x, strict=True)]
        assert len(factors) == len(chain) - 1
        assert math.prod(factors) == pytest.approx(chain[-1] / chain[0], rel=1e-6)
    published = study.file.view[0].published[0].values
    ends = sorted(x for s in picture.panels[2].series for x in s.x)
    assert ends[0] == pytest.approx(min(published.values()) / picture.panels[2].x.size)


def test_published_rates_are_those_of_the_records(study):
    lines = [line for n in ("megascale", "mlperf_gpt3_nv") for line in (RECORDS / f"{n}.jsonl").open(encoding="utf-8")]
    records = {record["id"]: record for record in map(json.loads, lines)}
    runs = ["megascale-megatron-175b-1024", "mlperf4.1-gpt3-nvidia-eos_n64_ngc24.09_nemo"]
    runs += ["mlperf4.1-gpt3-nvidia-b200_n8_preview_nemo"]
    for name, stated in zip(runs, study.file.view[0].published[0].values.values(), strict=True):
        run = records[name]
        tokens = run["workload"]["global_batch"] * run["workload"]["sequence_length"]
        assert tokens / run["value"] / run["devices"] == pytest.approx(stated, rel=5e-4)


@pytest.mark.slow
def test_the_whole_study_and_its_notebook(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(ROOT)
    found = runpy.run_path(str(STUDY.with_suffix(".py")))
    factors, papers = found["factors"], "the papers' assumptions"
    chips = factors[papers][["H100", "B200"]].prod()
    formats = factors[papers][["FP8", "FP4"]].prod()
    rest = factors[papers][["NDR", "NVLink Switch", "H200's memory", "larger batch"]].prod()
    see = pg.load_study(STUDY).file.view[0].see
    assert f"\u00d7{chips:.0f}," in see
    assert f"\u00d7{formats:.1f};" in see
    assert f"\u00d7{rest:.2f}." in see
    assert f"share of peak \u00d7{factors[papers]['share of peak as A100']:.2f}," in see
