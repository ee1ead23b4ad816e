"""Questions answered in one call: against the study behind the answer, by hand, and as their user asks them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.answers.saved import save_study
from perfgrid.study.study import build_study

from .huggingface_configs import CONFIGS


@pytest.fixture(scope="module")
def trained():
    return pg.train("llama-3.1-70b", ["h100-sxm-80gb", "b200"], [64, 256])


@pytest.fixture(scope="module")
def served():
    return pg.serve("llama-3.1-8b", ["h100-sxm-80gb", "b200"], rate=20, ttft="1 s", tpot="30 ms")


@pytest.mark.parametrize("name", ["trained", "served"])
def test_the_saved_study_gives_the_same_numbers_to_the_bit(name, request, tmp_path):
    answer = request.getfixturevalue(name)
    save_study(answer, tmp_path / "study.toml")
    best = pg.best(pg.load_study(tmp_path / "study.toml")).squeeze("model")
    dims = answer["found"].dims
    for quantity in (answer.attrs["objective"], "memory_per_device", "hbm_capacity"):
        assert answer[quantity].dims == dims
        np.testing.assert_array_equal(answer[quantity].values, best[quantity].transpose(*dims).values)
    np.testing.assert_array_equal(answer["parallelism"].values, best["parallelism"].transpose(*dims).values.astype(str))


def test_the_best_design_is_the_least_of_all_and_every_exclusion_has_one_root_cause(trained):
    study = build_study(tomllib.loads(trained.attrs["study"]), "again")
    grid = pg.evaluate(study, small_points=2**24)
    time = grid["step_time"].where(pg.feasible(grid, of="step_time"))
    for system in trained["system"].values:
        for size in trained["devices"].values:
            rows = np.flatnonzero(grid["devices"].values == size)
            own = time.sel(system=system).isel(parallelism=rows)
            one = trained.sel(system=system, devices=size)
            assert one["step_time"].item() == own.min().item()
            assert one["excluded"].sum().item() == own.isnull().sum().item()
            assert one["designs"].item() == own.size


def test_a_near_miss_breaks_one_limit_only_and_is_better_than_the_best(trained):
    one = trained.sel(system="h100-sxm-80gb", devices=64, limit="fits_memory")
    assert one["near_miss_value"].item() > one["near_miss_limit"].item() == one["hbm_capacity"].item()
    assert one["near_miss_objective"].item() < one["step_time"].item() <= one["near_miss_remedied"].item()
    study = build_study(tomllib.loads(trained.attrs["study"]), "again")
    labels = dict(part.split(" ") for part in str(one["near_miss_labels"].item()).split(", "))
    at = {"model": "llama-3.1-70b", "system": "h100-sxm-80gb"} | labels
    explained = pg.explain(study, "step_time", {k: int(v) if v.isdigit() else v for k, v in at.items()})
    assert [broken.name for broken in explained.violated] == ["fits_memory"]


def test_what_does_not_exist_is_the_root_cause_and_not_the_memory():
    """No torus of TPUs is made of H100: that is said, not that nothing fits the memory."""
    found = pg.train("llama-3.1-405b", "h100-sxm-80gb", 8, topology="tpu-torus-4x4x4")
    assert not found["found"].item()
    counts = found["excluded"].squeeze(("system", "devices"))
    assert counts["constraint"].values[np.argmax(counts.values)] == "topology_fits_device"


def test_a_question_without_an_answer_names_what_is_near():
    found = pg.train("llama-3.1-405b", "h100-sxm-80gb", 64)
    assert not found["found"].item()
    near = found.sel(limit="fits_memory").squeeze()
    assert 1 < (near["near_miss_value"] / near["near_miss_limit"]).item() < 2
    assert "tp8" in near["near_miss_labels"].item()


def test_interval_and_alternatives_surround_the_best(trained):
    low, high = (trained["step_time_interval"].sel(bound=b) for b in ("low", "high"))
    assert ((low < trained["step_time"]) & (trained["step_time"] < high)).all()
    assert (trained["alternative_ratio"] >= 1).all()
    layouts = trained["alternative_layout"].values
    assert not (layouts == trained["parallelism"].values[..., None]).any()


@pytest.mark.parametrize(
    ("sizes", "batch"), [((512,), 1024), ((20,), 1280), ((512, 20), 1280), ((36,), 1152), ((7,), 896)]
)
def test_the_default_batch_divides_by_what_is_odd_in_the_sizes(sizes, batch):
    found = pg.train("llama-3.1-8b", "b200", list(sizes))
    assert f"global_batch = {batch}" in found.attrs["study"]
    assert found["found"].all()


def test_a_rate_weighs_sizes_against_each_other_and_clients_do_not(served):
    assert served["found"].dims == ("system",)
    assert (served["size"] >= 1).all()
    assert (served["time_per_output_token"] <= 0.03).all()
    at_once = pg.serve("llama-3.1-8b", "h100-sxm-80gb", [1, 2], clients=16)
    assert at_once["found"].dims == ("system", "devices")
    np.testing.assert_allclose(at_once["running_batch"].values, 16)


def test_groups_see_a_mixture_as_frameworks_place_it():
    """DeepSeek-V3 in 8 bits fits 8 H200: its experts are split as its other weights."""
    found = pg.serve("deepseek-v3", "h200-sxm-141gb", 8, precision="fp8", clients=64)
    assert found["found"].item()


# ---- the program as its user runs it --------------------------------------------------------------------------------


def perfgrid(*words, folder, **environment):
    command = [sys.executable, "-m", "perfgrid", *map(str, words)]
    settings = os.environ | {"COLUMNS": "80"} | environment
    return subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, check=False)


def test_a_config_json_is_answered_and_saved_with_its_model(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(next(iter(CONFIGS.values()))))
    done = perfgrid("train", folder, "--on", "b200", "--devices", 16, "--save", "s.toml", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert {p.name for p in tmp_path.iterdir()} == {"my-model", "s.toml", "s.model.toml"}
    again = perfgrid("best", "s.toml", "--json", folder=tmp_path)
    shown = perfgrid("train", folder, "--on", "b200", "--devices", 16, "--json", folder=tmp_path)
    assert json.loads(again.stdout)["best"][0]["outputs"]["step_time"] == json.loads(shown.stdout)[0]["step_time"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("train", "llama-3.1-8", "--on", "b200", "--devices", "8"), "did you mean 'llama-3.1-8b'"),
        (("train", "llama-3.1-8b", "--on", "b20", "--devices", "8"), "did you mean 'b200'"),
        (("train", "llama-3.1-8b", "--on", "b200", "--devices", "8,x"), "--devices needs whole numbers"),
        (("train", "llama-3.1-8b", "--on", "b200", "--devices", "0"), "whole number from 1 on, found 0"),
        (("train", "llama-3.1-8b", "--on", "b200", "--devices", "8", "--batch", "0"), "global_batch"),
        (("serve", "llama-3.1-8b", "--on", "b200", "--rate", "1", "--clients", "2"), "not both"),
        (("serve", "llama-3.1-8b", "--on", "b200", "--ttft", "soon"), "time_to_first_token_limit"),
    ],
)
def test_mistakes_are_one_line(words, sentence, tmp_path):
    done = perfgrid(*words, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(Path(tmp_path).iterdir())
