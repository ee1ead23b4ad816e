"""What `train` keeps free of the memory, by the stack or as stated, and the faster design that might not fit."""

from __future__ import annotations

import json
import tomllib
from math import exp
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import perfgrid as pg
from perfgrid.answers.headroom import of_training
from perfgrid.catalog import load_catalog
from perfgrid.cli.main import app
from perfgrid.study.entries import usual_entries
from perfgrid.study.study import build_study
from perfgrid.text.numbers import number

QUESTION = ("llama-3.1-8b", ["h100-sxm-80gb", "tpu-v5p"], 16)
WORDS = ["train", "llama-3.1-8b", "--on", "h100-sxm-80gb", "--devices", "16"]


def screen(*words):
    return " ".join(CliRunner(env={"COLUMNS": "200"}).invoke(app, [*WORDS, *words]).output.split())


@pytest.fixture(scope="module")
def usual():
    return pg.train(*QUESTION)


@pytest.fixture(scope="module")
def whole():
    return pg.train(*QUESTION, headroom=0)


def test_a_design_fits_with_nine_chances_in_ten():
    """The chance by the normal distribution of ln(measured / predicted) when all that is not kept free is predicted."""
    for error in (0.0, 0.02, 0.076, 0.454):
        free = of_training(error)
        chance = NormalDist(0, error).cdf(-np.log(1 - free)) if error else 1.0
        assert chance >= 0.8999
        assert free == pytest.approx(1 - exp(-1.2816 * error), abs=0.01)


def test_every_stack_keeps_free_what_its_records_ask_for(usual, whole):
    asked, known = json.loads(usual.attrs["question"]), load_catalog()
    stacks = usual_entries(known, QUESTION[1], "training")["software"]
    errors: list[Any] = [known.entry("software", stack).values["memory_error"] for stack in stacks]
    shares = dict(zip(QUESTION[1], map(of_training, errors), strict=True))
    assert asked["headroom"] == shares
    assert len(set(shares.values())) == 2
    assert tomllib.loads(usual.attrs["study"])["axes"]["system"]["zip"]["headroom"] == [*shares.values()]
    rest = usual["hbm_capacity"].squeeze() * (1 - np.array([*shares.values()]))
    assert (usual["memory_per_device"].squeeze() <= rest).all()
    kept = "kept free, to fit with 90% probability on its software: of "
    assert any(kept in line for line in usual.attrs["assumptions"])
    assert "headroom" not in whole.attrs["study"]
    assert not any("kept free" in line for line in whole.attrs["assumptions"])


def test_the_design_that_might_not_fit_is_the_best_of_all_that_fit_without_headroom(whole):
    assert "might_not_fit" not in whole
    one = pg.train("llama-3.1-8b", "h100-sxm-80gb", 16, headroom=0.5).squeeze()
    best = whole.sel(system="h100-sxm-80gb").squeeze()
    assert one["might_not_fit_objective"].item() == best["step_time"].item() < 0.99 * one["step_time"].item()
    used, all_of_it = one["might_not_fit_use"].item(), one["hbm_capacity"].item()
    assert used == best["memory_per_device"].item() > all_of_it / 2 >= one["memory_per_device"].item()
    assert one["might_not_fit_limit"].item() == all_of_it
    labels = one["might_not_fit"].item()
    assert best["parallelism"].item() in labels
    assert f"recompute {best['recompute'].item()}" in labels


def test_the_screen_names_what_might_not_fit_and_how_much_faster_it_is(whole):
    best = whole.sel(system="h100-sxm-80gb").squeeze()
    text = screen("--headroom", "0.5")
    line = text[text.index("Might not fit: 16 x h100-sxm-80gb, recompute ") :].partition(" (--headroom 0)")[0]
    assert number(best["step_time"].item(), "s") in line
    assert f", {number(best['memory_per_device'].item(), 'byte')} of 80 GiB" in line
    assert "%)" in line
    assert "limit 40 GiB [fits_memory]" not in text  # named once
    assert "left " in text
    tight = screen("--headroom", "0.97")
    assert "no design" in tight
    assert "Might not fit: 16 x h100-sxm-80gb" in tight


def test_a_server_that_might_start_is_named_too():
    found = pg.serve("llama-3.1-8b", "h100-sxm-80gb", 1, headroom=0.5)
    best = pg.serve("llama-3.1-8b", "h100-sxm-80gb", 1, headroom=0).squeeze()
    one = found.squeeze()
    used, limit = one["might_not_fit_use"].item(), one["memory_limit"].item()
    assert one["memory_per_device"].item() < limit - 0.5 * 0.99 * 80 * 2**30 < used <= limit
    assert one["might_not_fit_limit"].item() == limit
    assert one["might_not_fit_objective"].item() == pytest.approx(best[found.attrs["objective"]].item(), rel=0.021)
    assert "Might not fit: 1 x h100-sxm-80gb" in repr(found)


def test_what_is_stated_is_in_the_ledger_in_json_and_refused_when_wrong():
    assert "left " in (text := screen("--headroom", "5%", "--assumptions"))
    assert "stated headroom 0.05 --headroom" in text
    assert "kept free" not in text
    assert "assumed, by the memory_error of the software (--headroom): headroom 0.1" in screen("--assumptions")
    found = json.loads(CliRunner().invoke(app, [*WORDS, "--headroom", "0.05", "--json"]).stdout)
    assert found["question"]["headroom"] == {"h100-sxm-80gb": 0.05}
    for wrong, sentence in {
        "1": "a headroom is a number from 0 to below 1, found '1'",
        "2": "headroom must be >= 0 and <= 1, found '2'",
        "a lot": "headroom: 'a lot' is not a number",
    }.items():
        with pytest.raises(pg.PerfgridError, match=f"^{sentence}"):
            pg.train("llama-3.1-8b", "h100-sxm-80gb", 16, headroom=wrong)
    with pytest.raises(pg.PerfgridError, match="a headroom is a number from 0 to below 1, found True"):
        pg.train("llama-3.1-8b", "h100-sxm-80gb", 16, headroom=True)


def test_studies_keep_nothing_free_unless_they_say_so(usual):
    content = tomllib.loads(usual.attrs["study"])
    content["axes"]["system"]["zip"].pop("headroom")
    content["outputs"] += ["usable_memory"]
    for free in (None, 0.25):
        content["workload_parameters"] |= {} if free is None else {"headroom": free}
        grid = pg.evaluate(build_study(content, "again"), small_points=2**24)
        usable = grid["hbm_capacity"] * (1 - (free or 0.0))
        assert (grid["usable_memory"] == usable).all()
        assert ((grid["memory_per_device"] <= usable) == grid["fits_memory"]).all()
