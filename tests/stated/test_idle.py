"""What the best design does not feel of what is stated is named: by studies, searches and questions alike."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tomli_w

import perfgrid as pg
from perfgrid.analysis.idle_inputs import idle_inputs
from perfgrid.catalog import load_catalog
from perfgrid.engine.graph.changes import moves
from perfgrid.engine.graph.registry import Registry, constraint, formula
from perfgrid.engine.graph.resolver import replay, resolve_checked
from perfgrid.study.study import build_study
from tests.fuzz.program import run

BASE = {
    "outputs": ["step_time", "memory_per_device"],
    "axes": {
        "model": ["llama-3.1-8b"],
        "device": ["h100-sxm-80gb"],
        "parallelism": {"devices": [64], "tp": [1, 8], "pp": [1]},
    },
    "workload_parameters": {"sequence_length": 8192, "global_batch": 64, "zero": 1, "recompute": "full"},
    "best": {"over": ["parallelism"], "minimize": "step_time"},
}
NEAR, TP = (0, 0, 0), (0, 0, 1)  # designs of it: tp 1 and tp 8
OWN = 'kind = "device"\n[mine]\nextends = "h100-sxm-80gb"\ntitle = "Mine"\n'


def study(catalog=None, settings=None, axes=None, overrides=None, **parameters):
    """The base study with more parameters."""
    content = {**BASE, "axes": {**BASE["axes"], **(axes or {})}, "overrides": overrides or {}}
    content["workload_parameters"] = {**BASE["workload_parameters"], **parameters}
    return build_study(content, "study", catalog or load_catalog(), catalog_values=settings)


def idle(of, *designs):
    return [one.quantity for one in idle_inputs(of, designs or (NEAR,))]


def test_what_a_design_does_not_feel_is_found_and_nothing_else():
    assert idle(study()) == []
    assert idle(study(expert_imbalance=1.5, document_variation=0.5)) == ["expert_imbalance", "document_variation"]
    assert idle(study(recompute_norms=True, microbatch=1)) == ["recompute_norms"]
    assert idle(study(recompute_norms=True, **{"recompute": "none"})) == []


def test_words_and_codes_are_tried_as_well():
    assert idle(study(cp_method="ring")) == ["cp_method"]
    assert idle(study(schedule="gpipe", precision="fp8")) == []
    assert idle(study(precision="fp8", scaling="tensor")) == []
    assert idle(study(overrides={"token_dispatch": "deduplicated"})) == ["token_dispatch"]


def test_a_limit_that_is_kept_with_room_is_felt():
    assert idle(study(training_time_limit=1e9, training_tokens=1e12)) == []


def test_a_value_counts_that_any_of_the_designs_feels():
    of = study(overrides={"tp_overlap": 0.3})
    assert idle(of) == ["tp_overlap"]
    assert idle(of, NEAR, TP) == idle(of, TP) == []


def test_what_is_searched_is_not_tried():
    assert idle(study(axes={"document_variation": [0.0, 0.5]}), (0, 0, 0, 0)) == []
    assert idle(study(axes={"document_variation": [0.5]}), (0, 0, 0, 0)) == ["document_variation"]


def test_values_of_entries_are_tried_where_a_design_has_the_entry(tmp_path):
    assert idle(study(settings={"device.h100-sxm-80gb.l2_size": 1e8})) == ["l2_size"]
    (tmp_path / "mine.toml").write_text(OWN + 'l2_size = "100 MB"\nhbm_bandwidth = "3 TB/s"\n')
    catalog = load_catalog(tmp_path / "mine.toml")
    both = study(catalog, axes={"device": ["h100-sxm-80gb", "mine"]})
    assert idle(both, (0, 1, 0)) == ["l2_size"]
    assert idle(both, (0, 0, 0)) == []
    catalog, name = load_catalog().named("device", "h100-sxm-80gb[peak_fp16_rate=0.5x]")
    assert idle(study(catalog, axes={"device": [name]})) == ["peak_fp16_rate"]


def test_of_several_workloads_nothing_is_named():
    content = {**BASE, "workload_parameters": {**BASE["workload_parameters"], "expert_imbalance": 1.5}}
    content["workloads"] = [{"name": "one"}, {"name": "two"}]
    assert idle(pg.Study.make(**content)) == []


@formula(unit="1", source="test")
def least(a, b):
    """The lesser of two."""
    return min(a, b)


@formula(unit="1", source="test")
def share(least, c):
    """A quotient."""
    return least / c


@constraint(reason="too much", source="test")
def within(a):
    """Not much."""
    return a < 10


def test_only_what_moves_counts():
    graph = resolve_checked(Registry.collect([least, share, within]), ["share"], ["a", "b", "c"])
    before = {"a": 3.0, "b": 2.0, "c": 1.0}
    values = replay(graph, before)

    def moved(**changed):
        return moves(graph, values, graph, before | changed, {"share", "within"})

    assert not moved(a=9.0)
    assert moved(a=1.0)
    assert moved(a=10.0)  # the constraint
    assert moved(b=2.5)
    assert moved(c=0.0)  # no value any more
    assert replay(graph, before | {"c": 0.0})["share"] == np.inf  # as on a grid
    assert not moved()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a study of which two values have no effect on any output or on the best design."""
    found = tmp_path_factory.mktemp("idle")
    parameters = {**BASE["workload_parameters"], "ulysses_ranks": 2, "expert_imbalance": 1.5}
    text = tomli_w.dumps({**BASE, "workload_parameters": parameters})
    (found / "study.toml").write_text(text)
    one = {**BASE, "axes": {**BASE["axes"], "parallelism": {"devices": [64], "tp": [8], "pp": [1]}}}
    one = {key: value for key, value in one.items() if key != "best"} | {"workload_parameters": parameters}
    (found / "one.toml").write_text(tomli_w.dumps(one))
    (found / "grid.toml").write_text(text.replace("[best]", "[pareto]").replace("over", "# over"))
    return found


IDLE = "expert_imbalance = 1.5 (workload_parameters) has no effect on the best design"
UNREAD = "ulysses_ranks = 2 (workload_parameters) has no effect: no output of this study depends on it"


@pytest.mark.parametrize("command", [["best", "study.toml"], ["run", "study.toml"], ["run", "one.toml"]])
def test_searches_and_runs_name_it(folder, command):
    found = run(folder, [*command, "--json", "--set", "device.h100-sxm-80gb.l2_size=100 MB"])
    said = json.loads(found.out)["warnings"]
    assert {IDLE, UNREAD} < set(said)
    assert any(words.startswith("l2_size = 100 MB (--set") for words in said)
    assert len(said) == 3
    for words in said:
        assert f"warning: {words}" in found.err


SEARCHES = {
    "optimize": ["--minimize", "step_time", "--over", "hbm_bandwidth=1e12:5e12", "--starts", "1"],
    "sensitivity": ["--of", "step_time", "--at", "best"],
    "uncertainty": ["--of", "step_time", "--method", "tornado"],
}


@pytest.mark.parametrize("command", SEARCHES)
def test_other_commands_name_what_nothing_reads(folder, command):
    changed = ["--set", "device.h100-sxm-80gb.die_area=2e-3"]
    found = run(folder, [command, "one.toml", *SEARCHES[command], "--json", *changed])
    assert found.status == 0, found.err
    assert f"warning: {UNREAD}" in found.err
    assert "warning: die_area = 0.002 m^2 (--set device.h100-sxm-80gb.die_area) has no effect" in found.err
    if command == "sensitivity":  # which looks at every number
        named = json.loads(found.out)["outputs"]["step_time"]["without_effect"]
        assert {"expert_imbalance", "l2_size"} <= set(named)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["optimize", "one.toml", "--minimize", "step_time", "--over", "mask_cost=1:2"], "mask_cost"),
        (["uncertainty", "one.toml", "--of", "step_time", "--over", "wafer_price"], "wafer_price"),
        (["sensitivity", "one.toml", "--of", "step_cost"], "step_cost"),
        (["best", "study.toml", "--set", "device.b200.l2_size=1e8"], "the study uses no such device"),
        (["best", "study.toml", "--set", "workload_parameters.prompt_tokens=1000"], "prompt_tokens"),
    ],
)
def test_what_cannot_have_an_effect_is_refused(folder, command, said):
    found = run(folder, command)
    assert found.status == 2
    assert said in found.err.splitlines()[-1]
