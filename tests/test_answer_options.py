"""Options of questions: rents, what decides, numbers with suffixes and ranges; and all that an answer shows as JSON."""

from __future__ import annotations

import csv
import json
import tomllib

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.answers.question import stated
from perfgrid.answers.saved import save_study
from perfgrid.catalog import load_catalog
from perfgrid.cli.arguments import sizes_in
from perfgrid.jobs.formats import formats
from perfgrid.printing.answer import screen

from .test_answers import perfgrid

HOUR = 3600.0


def test_a_rent_replaces_what_owning_costs(tmp_path):
    """The saved study gives the same costs; a device without a price has none."""
    devices = ["h100-sxm-80gb", "tpu-v5p"]
    found = pg.train("llama-3.1-70b", devices, 128, price=[2.1, "4.2 USD/h"], minimize="cost_per_training_run")
    rents = np.array([[2.1], [4.2]])
    np.testing.assert_array_equal(found["cost_per_device_hour"].values, rents)
    hours = found["training_time"].values / HOUR * 128
    np.testing.assert_allclose(found["cost_per_training_run"].values, rents * hours)
    assert not any(line.startswith("price") for line in found.attrs["assumptions"])  # it was stated
    assert screen(found).count("all paid hours are used (utilization 1, implied by --price)") == 1
    save_study(found, tmp_path / "s.toml")
    best = pg.best(pg.load_study(tmp_path / "s.toml")).squeeze("model").transpose("system", "devices")
    np.testing.assert_array_equal(found["cost_per_training_run"].values, best["cost_per_training_run"].values)
    owned = pg.train("llama-3.1-70b", "tpu-v5p[purchase_price=0]", 128)
    (price,) = (line for line in owned.attrs["assumptions"] if line.startswith("price: "))
    assert "(unknown of tpu-v5p+purchase_price-0)" in price
    assert not np.isfinite(owned["cost_per_training_run"].item())


def test_a_rent_of_all_devices_costs_the_tokens_that_are_served():
    found = pg.serve("llama-3.1-8b", ["h100-sxm-80gb", "b200"], 1, price=3, minimize="cost_per_million_output_tokens")
    assert found.attrs["sense"] == "minimize"
    assert not any(str(name).startswith("frontier") for name in found)
    tokens = found["output_tokens_per_second"].values * HOUR
    np.testing.assert_allclose(found["cost_per_million_output_tokens"].values, 3e6 / tokens)


def test_the_fewest_devices_for_a_rate():
    found = pg.serve("llama-3.1-8b", "h100-sxm-80gb", range(1, 9), rate=40, minimize="devices")
    size = found["size"].item()
    assert size > 1
    assert not pg.serve("llama-3.1-8b", "h100-sxm-80gb", range(1, size), rate=40)["found"].item()


def test_the_most_of_a_quantity_decides():
    found = pg.train("llama-3.1-8b", "h100-sxm-80gb", [8, 16], maximize="tokens_per_second")
    least = pg.train("llama-3.1-8b", "h100-sxm-80gb", [8, 16])
    np.testing.assert_array_equal(found["parallelism"].values, least["parallelism"].values)
    assert tomllib.loads(found.attrs["study"])["best"]["maximize"] == "tokens_per_second"
    assert "Best by tokens_per_second: 16 x" in repr(found)
    with pytest.raises(pg.PerfgridError, match="not both"):
        pg.train("llama-3.1-8b", "b200", 8, minimize="step_time", maximize="goodput")


def test_the_heading_counts_parameters_and_warns_of_what_the_model_is_not_made_for():
    found = pg.serve("deepseek-v3", "b200", 8, prompt=131_000, output=73, clients=1)
    assert found.attrs["title"].startswith("Serving of DeepSeek-V3 (671 B parameters, 36.6 B active): ")
    warning = "131,073 tokens of prompt and answer exceed the context of 131,072 of DeepSeek-V3"
    assert found.attrs["warnings"] == [warning]
    assert f"Warning: {warning}" in repr(found)
    assert pg.serve("deepseek-v3", "b200", 8, prompt=131_000, output=72, clients=1).attrs["warnings"] == []
    assert "sequences of 4,096, bf16" in pg.train("llama-2-7b", "b200", 8).attrs["title"]


def test_json_holds_what_the_screen_shows_and_csv_its_rows_with_units(tmp_path, answers):
    words = ("serve", "llama-3.1-70b", "--on", "h100-sxm-80gb", "--devices", "1-8", "--csv", "a.csv", "--json")
    whole = json.loads(perfgrid(*words, folder=tmp_path).stdout)
    (found,) = answers.values()
    assert [whole[name] for name in ("title", "assumptions")] == [found.attrs[n] for n in ("title", "assumptions")]
    assert "no intervals" in whole["note"]
    none, *_, best = whole["designs"]
    one = found.sel(devices=8).squeeze("system")
    assert (none["found"], none["devices"], none["parts"], none["frontier"]) == (False, 1, [], [])
    assert [part["part_share"] for part in best["parts"]] == one["part_share"].values.tolist()
    assert [a["alternative_layout"] for a in best["alternatives"]] == one["alternative_layout"].values.tolist()
    usable = (0.92 - 0.02) * 0.99 * 80 * 2**30  # of vLLM, less the headroom, of what the driver counts
    assert none["near_misses"][0]["near_miss_limit"] == pytest.approx(usable)
    assert best["hbm_capacity"] == 80 * 2**30
    assert {e["constraint"]: e["excluded"] for e in best["excluded"]}.items() <= {
        str(name): count for name, count in zip(one["constraint"].values, one["excluded"].values, strict=True)
    }.items()
    assert len(best["frontier"]) == np.isfinite(one["frontier_output_tokens_per_second_per_device"]).sum()
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert [(row["devices"], row["found"]) for row in table][::3] == [("1", "False"), ("8", "True")]
    assert (table[0]["time_to_first_token [s]"], none["time_to_first_token"]) == ("", None)
    assert float(table[-1]["time_to_first_token [s]"]) == best["time_to_first_token"]
    assert {"memory_per_device [byte]", "cost_per_million_output_tokens [USD]", "batch"} <= table[0].keys()
    assert {name.partition(" [")[0] for name in table[0]} <= best.keys()
    again = perfgrid(*words, folder=tmp_path)
    assert (again.returncode, again.stderr) == (2, "perfgrid: 'a.csv' exists; give --overwrite to replace it\n")
    assert perfgrid(*words, "--overwrite", folder=tmp_path).returncode == 0


def test_json_holds_intervals(tmp_path):
    words = ("train", "llama-3.1-8b", "--on", "h100-sxm-80gb", "--devices", 8, "--tokens", "2T", "--json")
    design = json.loads(perfgrid(*words, folder=tmp_path).stdout)["designs"][0]
    low, high = design["step_time_interval"]
    assert low < design["step_time"] < high
    assert design["training_time"] == pytest.approx(2e12 / design["tokens_per_second"])


def test_numbers_of_devices_and_of_tokens():
    assert sizes_in("8, 100-600,7") == [8, 128, 256, 512, 7]
    assert sizes_in("64-64") == [64]
    assert [stated(text, "training_tokens", "tokens") for text in ("15T", "300b", "1e9", "2.5M", "4K")] == [
        15e12,
        3e11,
        1e9,
        2.5e6,
        4e3,
    ]
    for text in ("8-", "-8", "a-b", "1.5"):
        with pytest.raises(pg.PerfgridError, match="needs whole numbers"):
            sizes_in(text)


def test_an_answer_says_what_decides_and_which_devices_do_not_fill_their_domains():
    found = pg.train("llama-2-7b", "h100-sxm-80gb", [8, 12, 16])
    assert repr(found).splitlines()[1] == "Best: lowest time per step"
    (warning,) = found.attrs["warnings"]
    assert warning.startswith("12 x h100-sxm-80gb do not fill their scale-up domains of 8: ")
    served = pg.serve("llama-2-7b", "h100-sxm-80gb", 1, rate=0.5)
    assert "Best: lowest time per request" in repr(served)


def test_one_training_stack_stands_for_what_nothing_states():
    """Of answers and studies the same as of jobs of Megatron-LM and of records without software."""
    usual = formats()["megatron-lm"].software
    catalog = load_catalog()
    assert catalog.variables["training_software"].default == usual
    assert f"software: {usual}" in pg.train("llama-2-7b", "h100-sxm-80gb", 8).attrs["assumptions"]
    bare = pg.Study.make(outputs=["optimizer_traffic"], axes={"optimizer_state_size": [12]})
    assert bare.defaults["software"] == usual
