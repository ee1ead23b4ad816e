"""Questions answered in one call: against the study behind the answer, by hand, and as their user asks them."""

from __future__ import annotations

import builtins
import json
import os
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import xarray as xr

import perfgrid as pg
from perfgrid.answers.saved import save_study
from perfgrid.catalog import load_catalog
from perfgrid.study.study import build_study
from tests.fuzz.program import run

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
    assert one["near_miss_value"].item() > one["near_miss_limit"].item() == 0.9 * one["hbm_capacity"].item()
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
    assert "fits with" not in repr(found)
    counts = found["excluded"].squeeze(("system", "devices"))
    assert counts["constraint"].values[np.argmax(counts.values)] == "topology_fits_device"


def test_a_question_without_an_answer_names_what_is_near():
    found = pg.train("llama-3.1-405b", "h100-sxm-80gb", 64)
    assert not found["found"].item()
    near = found.sel(limit="fits_memory").squeeze()
    assert 1 < (near["near_miss_value"] / near["near_miss_limit"]).item() < 2
    assert "tp8" in near["near_miss_labels"].item()
    assert found["fits_with"].item() == 128
    assert "It fits with 128 x h100-sxm-80gb" in repr(found)
    assert pg.train("llama-3.1-405b", "h100-sxm-80gb", 128, batch=1024)["found"].item()


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
    np.testing.assert_allclose(at_once["running_batch"].values, 16, rtol=2e-3)  # hardly any wait for room


def test_a_limit_on_time_has_a_near_miss_in_seconds():
    found = pg.serve("llama-3.1-70b", "h100-sxm-80gb", 8, tpot=0.02)
    near = found.sel(limit="output_tokens_in_time").squeeze()
    assert near["limit_units"].item() == "s"
    assert near["near_miss_value"].item() > near["near_miss_limit"].item() == 0.02
    assert near["near_miss_objective"].item() > found["output_tokens_per_second_per_device"].item()
    assert ".0" not in near["near_miss_labels"].item() + found["batch"].item()


def test_a_rate_that_no_design_serves_is_set_against_what_the_nearest_serves(tmp_path):
    found = pg.serve("llama-3.1-70b", "h100-sxm-80gb", [4, 8], rate=50)
    near = found.sel(limit="arrivals_are_served").squeeze()
    assert not found["found"].any()
    assert (near["limit_units"].item(), near["near_miss_value"].item()) == ("1/s", 50)
    content = tomllib.loads(found.attrs["study"]) | {"outputs": ["arrival_limit", "arrivals_are_served"]}
    grid = pg.evaluate(build_study({k: v for k, v in content.items() if k != "best"}, "again"))
    assert not grid["arrivals_are_served"].any()
    legal = grid["arrival_limit"].where(grid["batch_can_be_chosen"] & grid["stages_have_layers"] & grid["where"])
    assert near["near_miss_limit"].item() == legal.max().item() < 50
    words = ("serve", "llama-3.1-70b", "--on", "h100-sxm-80gb", "--devices", "4,8", "--rate", 50)
    done = perfgrid(*words, folder=tmp_path)
    assert f"50 /s, limit {near['near_miss_limit'].item():.4g} /s" in " ".join(done.stdout.split())


PER_DEVICE, PER_USER = "output_tokens_per_second_per_device", "output_tokens_per_second_per_user"


@pytest.fixture(scope="module")
def offered():
    return pg.serve("llama-3.1-8b", ["h100-sxm-80gb", "b200"], [1, 8], tpot="20 ms")


def test_the_frontier_holds_what_no_other_design_beats_and_the_limit_allows(offered):
    study = build_study(tomllib.loads(offered.attrs["study"]), "again")
    grid = pg.evaluate(study)
    possible = pg.feasible(grid, of=PER_DEVICE)
    for system in ("h100-sxm-80gb", "b200"):
        for size in (1, 8):
            own = grid["devices"].values == size
            device, user = (
                grid[name].where(possible).sel(system=system).isel(parallelism=own).values.reshape(-1)
                for name in (PER_DEVICE, PER_USER)
            )
            pairs = [(d, u) for d, u in zip(device, user, strict=True) if np.isfinite(d)]
            best = {(d, u) for d, u in pairs if not any(e >= d and v >= u and (e, v) != (d, u) for e, v in pairs)}
            edge = offered.sel(system=system, devices=size)
            found = zip(edge["frontier_" + PER_DEVICE].values, edge["frontier_" + PER_USER].values, strict=True)
            assert {(d, u) for d, u in found if np.isfinite(d)} == best
            assert min(u for _, u in best) >= 50
            most = edge["frontier_" + PER_DEVICE].values[0]
            assert most * 0.99 <= edge[PER_DEVICE].item() <= most  # of nearly equal ones the simpler or faster is best


def test_a_rate_has_no_frontier(served):
    assert not any(str(name).startswith("frontier") for name in served)
    assert "frontier" not in repr(served)


def test_the_screen_shows_a_few_designs_of_the_frontier_of_all_sizes_together(offered):
    lines = repr(offered).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("frontier"))
    rows = lines[start + 1 : lines.index("", start)]
    assert [row.split()[0] for row in rows if not row.startswith(" ")] == ["h100-sxm-80gb", "b200"]
    assert len(rows) == 12
    most = offered[PER_DEVICE].sel(system="b200").max().item()
    assert f"b200{' ' * 11}{most / 1e3:.4g} k/s" in lines[start + 7]


def test_an_answer_is_shown_as_the_command_prints_it_and_a_part_of_it_as_a_dataset(tmp_path):
    found = pg.serve("llama-3.1-8b", "b200", [1, 8])
    done = perfgrid("serve", "llama-3.1-8b", "--on", "b200", "--devices", "1,8", folder=tmp_path, COLUMNS="")
    assert done.stdout.startswith(repr(found) + "\nno intervals for serving: ")
    assert found._repr_html_().startswith("<pre>Serving of Llama 3.1 8B (8.03 B parameters): prompts")
    assert "<details>" in found._repr_html_()
    assert repr(found.sel(devices=8)).startswith("Serving of Llama 3.1 8B")
    assert "1 x b200" not in repr(found.sel(devices=8))
    for part in (found[["size"]], found.isel(limit=0), found.drop_vars("found"), found[["size"]] * 2):
        assert repr(part).startswith("<xarray.")
        assert "<pre>Serving" not in part._repr_html_()


def test_showing_an_answer_in_a_notebook_prints_nothing_else(served, capsys, monkeypatch):
    """Inside a notebook rich would display the text that it captures."""
    monkeypatch.setattr(builtins, "get_ipython", type("ZMQInteractiveShell", (), {}), raising=False)
    assert len(repr(served)) > 500
    assert capsys.readouterr() == ("", "")


def test_a_run_keeps_its_limits_on_time_and_cost():
    free = pg.train("llama-3.1-8b", "h100-sxm-80gb", [16, 32])
    days = free["training_time"].values.ravel()
    limits = {"within": (days[0] + days[1]) / 2, "budget": "10 MUSD"}
    found = pg.train("llama-3.1-8b", "h100-sxm-80gb", [16, 32], **limits)
    np.testing.assert_array_equal(found["found"].values, [[False, True]])
    np.testing.assert_array_equal(found["step_time"].values[0, 1], free["step_time"].values[0, 1])
    near = found.sel(devices=16, limit="training_in_time").squeeze()
    np.testing.assert_allclose(
        [near["near_miss_value"].item(), near["near_miss_limit"].item()], [days[0], limits["within"]]
    )
    poor = pg.train("llama-3.1-8b", "h100-sxm-80gb", 16, budget=float(free["cost_per_training_run"][0, 0]) * 0.99)
    assert not poor["found"].item()
    assert poor["excluded"].sel(constraint="training_within_budget").item() > 0


def test_a_guessed_stack_widens_the_interval_to_what_the_design_takes_on_other_stacks():
    """The same labels in a study of each stack; where it does not shard as the design does, another way of sharding."""
    guessed = pg.train("llama-2-7b", "h100-sxm-80gb", 8)
    stated = pg.train("llama-2-7b", "h100-sxm-80gb", 8, software="megatron-core")
    assert guessed["step_time"].item() == stated["step_time"].item()
    (low, high), (near, far) = (np.log(a["step_time_interval"].values.ravel()) for a in (guessed, stated))
    value, zero = np.log(stated["step_time"].item()), int(guessed["zero"].item())
    runs, others = [], 0
    for name in (n for n, e in load_catalog().tables["software"].items() if e.values["current"]):
        study = tomllib.loads(stated.attrs["study"])
        study["axes"]["system"]["zip"]["software"] = [name]
        study["axes"] |= {"recompute": [guessed["recompute"].item()], "microbatch": [int(guessed["microbatch"].item())]}
        grid = pg.evaluate(build_study(study, name), small_points=2**24)
        grid = grid.sel(parallelism=guessed["parallelism"].item())
        legal = pg.feasible(grid, kinds="illegal", of="step_time")
        steps = grid["step_time"].where(legal).squeeze()
        own, every = steps.sel(zero=zero).item(), steps.values[np.isfinite(steps.values)]
        others += not np.isfinite(own) and every.size > 0
        runs += [np.log(own)] if np.isfinite(own) else np.log(every[:1]).tolist()
    assert len(runs) > 4
    assert others
    below, above = max(0.0, value - min(runs)), max(0.0, max(runs) - value)
    np.testing.assert_allclose(value - low, np.hypot(value - near, below), rtol=1e-6)
    np.testing.assert_allclose(high - value, np.hypot(far - value, above), rtol=1e-6)


def test_the_schedules_that_the_software_offers_are_searched():
    """DeepSeek-V3 on two nodes' worth of stages: DualPipe on its own stack, one-forward-one-backward on others."""
    asked = {"model": "deepseek-v3", "on": "h800-sxm-80gb", "devices": 512, "batch": 4096, "sequence": 4096}
    own = pg.train(**asked, precision="fp8", software="hai-llm")
    assert own["schedule"].item() == "dualpipe"
    study = tomllib.loads(own.attrs["study"])
    assert study["axes"].pop("schedule") == ["1f1b", "dualpipe"]
    study["best"]["over"].remove("schedule")
    plain = pg.best(build_study(study, "1f1b"))
    assert own["step_time"].item() < plain["step_time"].item()
    other = pg.train(**asked, software="megatron-core")
    assert "schedule" not in tomllib.loads(other.attrs["study"])["axes"]


def test_a_device_of_the_catalog_with_other_values(tmp_path):
    """Twice the memory bandwidth by the device's name, against the same as an override of the saved study."""
    faster = "h100-sxm-80gb[hbm_bandwidth=2x, hbm_capacity=96 GB]"
    answer = pg.train("llama-3.1-70b", ["h100-sxm-80gb", faster], 64)
    assert answer["hbm_capacity"].values.tolist() == [[80 * 2**30], [96e9]]
    save_study(answer, tmp_path / "s.toml")
    best = pg.best(pg.load_study(tmp_path / "s.toml")).squeeze("model")
    np.testing.assert_array_equal(answer["step_time"].values, best["step_time"].transpose("system", "devices").values)
    study = tomllib.loads(answer.attrs["study"])
    study["axes"]["system"] = {"labels": ["h100-sxm-80gb"], "zip": {"device": ["h100-sxm-80gb"], "headroom": [0.1]}}
    study["overrides"] = {"hbm_bandwidth": "6.7 TB/s", "hbm_capacity": "96 GB"}
    np.testing.assert_array_equal(pg.best(build_study(study, "s"))["step_time"].values.ravel(), answer["step_time"][1])


def test_a_configuration_named_like_a_model_of_the_catalog_gets_another_name(tmp_path):
    folder = tmp_path / "llama-3.1-8b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(next(iter(CONFIGS.values()))))
    answer = pg.train(folder, "b200", 16)
    save_study(answer, tmp_path / "s.toml")
    assert pg.load_study(tmp_path / "s.toml").file.axes["model"] == ["llama-3.1-8b-own"]


def test_weights_are_served_as_published_and_products_in_what_the_device_has():
    """116.83 billion parameters of gpt-oss: tables and attention in 16 bits, experts in 4 and a scale for every 32.

    vLLM pads the width of its experts from 2,880 to 3,072: its logs say 64.4 GiB, where the checkpoint has 60.7.
    """
    found = pg.serve("gpt-oss-120b", ["h200-sxm-141gb", "b200", "v100-sxm-32gb"], [1, 8])
    zipped = tomllib.loads(found.attrs["study"])["axes"]["system"]["zip"]
    assert zipped["precision"] == ["bf16", "bf16", "fp16"]
    one = found.sel(system="h200-sxm-141gb", devices=1)
    wide = 2 * 201088 * 2880 + 36 * 2880 * 64 * (64 + 8 + 8 + 64)
    padded = 36 * 128 * 3 * 2880 * (3072 - 2880)
    assert one["weight_memory"].item() == pytest.approx((116.83e9 - wide + padded) * 0.53125 + wide * 2, rel=0.002)
    assert one["weight_memory"].item() / 2**30 == pytest.approx(64.38, rel=0.003)
    assert one["found"].item()
    told = "precision: weights in mxfp4 (attention, embedding, head in 16 bits) as published"
    assert any(line.startswith(told) for line in found.attrs["assumptions"])
    study = tomllib.loads(pg.serve("deepseek-v3", ["h200-sxm-141gb", "a100-sxm-80gb"], 16).attrs["study"])
    assert study["axes"]["system"]["zip"]["precision"] == ["fp8", "bf16"]
    assert (study["workload_parameters"]["weight_precision"], study["workload_parameters"]["kv_precision"]) == (
        "published",
        "bf16",
    )


def test_a_stated_precision_is_that_of_weights_products_and_cache():
    found = pg.serve("gpt-oss-120b", ["h200-sxm-141gb", "b200"], 8, precision="bf16")
    study = tomllib.loads(found.attrs["study"])
    assert study["axes"]["system"]["zip"]["precision"] == ["bf16", "bf16"]
    assert {study["workload_parameters"][f"{name}_precision"] for name in ("weight", "kv")} == {"bf16"}
    assert not any("precision" in line for line in found.attrs["assumptions"])


def test_one_layout_alone_is_answered(tmp_path):
    done = perfgrid("serve", "mixtral-8x7b", "--on", "h200-sxm-141gb", "--devices", 1, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "one device" in done.stdout


def test_groups_see_a_mixture_as_frameworks_place_it():
    """DeepSeek-V3 in 8 bits fits 8 H200: its experts are split as its other weights."""
    found = pg.serve("deepseek-v3", "h200-sxm-141gb", 8, clients=64)
    assert found["found"].item()


# ---- the program as its user runs it --------------------------------------------------------------------------------


def perfgrid(*words, folder, **environment):
    """The command in a folder, on a screen of 80 columns: what a process of it would return."""
    with mock.patch.dict(os.environ, {"COLUMNS": "80"} | environment):
        done = run(folder, [*map(str, words)])
    return SimpleNamespace(returncode=done.status, stdout=done.out, stderr=done.err)


def test_a_config_json_is_answered_and_saved_with_its_model(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(next(iter(CONFIGS.values()))))
    done = perfgrid("train", folder, "--on", "b200", "--devices", 16, "--save", "s.toml", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Training of my-model (8.03 B parameters): ")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert {p.name for p in tmp_path.iterdir()} == {"my-model", "s.toml", "s.model.toml"}
    again = perfgrid("best", "s.toml", "--json", folder=tmp_path)
    shown = perfgrid("train", folder, "--on", "b200", "--devices", 16, "--json", folder=tmp_path)
    best, design = json.loads(again.stdout)["best"][0]["outputs"], json.loads(shown.stdout)["designs"][0]
    assert best["step_time"] == design["step_time"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("train", "llama-3.1-8", "--on", "b200", "--devices", "8"), "did you mean 'llama-3.1-8b'"),
        (("train", "llama-3.1-8b", "--on", "b20", "--devices", "8"), "did you mean 'b200'"),
        (("train", "llama-3.1-8b", "--on", "b200", "--devices", "8,x"), "--devices needs whole numbers"),
        (("train", "llama-3.1-8b", "--on", "b200", "--devices", "9-15"), "no power of two from 1 on lies in 9-15"),
        (("train", "llama-3.1-8b", "--on", "b200", "--devices", "8", "--tokens", "15Q"), "'15Q' is not a number such"),
        (("train", "llama-3.1-8b", "--on", "b200", "--devices", "8", "--minimize", "goodput"), "--maximize goodput"),
        (("train", "llama-3.1-8b", "--on", "b200", "--devices", "8", "--minimize", "mfu"), "--maximize causal_model_"),
        (("train", "llama-3.1-8b", "--on", "b200", "--devices", "8", "--price", "2,3"), "1 devices, 2 prices"),
        (("train", "llama-3.1-8b", "--on", "b200", "--devices", "8", "--price", "0"), "price of a device must be > 0"),
        (("train", "llama-3.1-8b", "--on", "b200", "--devices", "0"), "whole number from 1 to 10^9, found 0"),
        (("train", "llama-3.1-8b", "--on", "b200", "--devices", "9" * 400), "to 10^9, found 9999"),
        (
            ("train", "llama-3.1-8b", "--on", "b200", "--devices", "8", "--headroom", "few"),
            "headroom: 'few' is not a number",
        ),
        (("serve", "llama-3.1-8b", "--on", "b200", "--price", ""), "1 devices, 0 prices"),
        (("train", "llama-3.1-8b", "--on", "b200", "--devices", "8", "--batch", "0"), "batch must be > 0, found '0'"),
        (("train", "llama-3.1-8b", "--on", "b200[hbm_bandwidt=2x]", "--devices", "8"), "did you mean 'hbm_bandwidth'"),
        (("train", "llama-3.1-8b", "--on", "b200[hbm_bandwidth]", "--devices", "8"), "hold quantity=value"),
        (("train", "llama-3.1-8b", "--on", "b200", "--devices", "8", "--within", "30"), "--within: '30' has no unit"),
        (("serve", "llama-3.1-8b", "--on", "b200", "--rate", "1", "--clients", "2"), "not both"),
        (("serve", "llama-3.1-8b", "--on", "b200", "--ttft", "soon"), "--ttft: 'soon' is not one number with a unit"),
        (("serve", "llama-3.1-8b", "--on", "b200", "--tpot", "25"), "write a number with a unit, such as 25ms"),
        (("serve", "llama-3.1-8b", "--on", "b200", "--precision", "fp3"), "did you mean 'fp32'"),
        (("serve", "llama-3.1-8b", "--on", "b200", "--csv", "a.txt"), "must end in .csv"),
        (("train", "llama-3.1-8b", "--on", "b200", "--devices", "8", "--csv", "no/a.csv"), "no folder 'no'"),
    ],
)
def test_mistakes_are_one_line(words, sentence, tmp_path):
    done = run(tmp_path, words)
    assert (done.status, done.out) == (2, "")
    assert sentence in done.err
    assert len(done.err.splitlines()) == 1
    assert not list(Path(tmp_path).iterdir())


def test_an_objective_that_is_zero_and_one_without_a_heading(tmp_path):
    done = perfgrid(
        *("train", "llama-2-7b", "--on", "h100-sxm-80gb", "--devices", 8, "--minimize", "exposed_tp_time"),
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "exposed_tp_time    0 s\n" in done.stdout.replace(
        " \n", "\n"
    )  # a part of a step: no interval is known of it
    assert done.stderr == ""


def test_a_saved_study_replaces_no_catalog_file_of_the_question(tmp_path):
    (tmp_path / "my.toml").write_text('kind = "device"\n[mine]\nextends = "b200"\ntitle = "Mine"\n')
    words = ("train", "llama-2-7b", "--on", "mine", "--devices", 8, "--catalog", "my.toml", "--overwrite")
    done = perfgrid(*words, "--save", "my.toml", folder=tmp_path)
    assert done.returncode == 2
    assert "is a catalog file of this question" in done.stderr
    assert "extends" in (tmp_path / "my.toml").read_text()


def test_the_repr_of_what_xarray_made_of_an_answer_never_raises(served):
    for changed in (served.isel(system=[]), served.assign_attrs(title="other"), xr.concat([served, served], "system")):
        assert repr(changed)
        assert changed._repr_html_()
    size: Any = np.int64(8)
    assert pg.train("llama-2-7b", "b200", size)["devices"].values.tolist() == [8]


def test_stacks_that_serve_do_not_widen_the_interval_of_a_training_question():
    found = pg.train("llama-2-7b", "tpu-v5p", 64)
    low, high = found["step_time_interval"].values.ravel()
    assert low > found["step_time"].item() / 2
    assert high < found["step_time"].item() * 2
