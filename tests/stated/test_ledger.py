"""What a user states counts: before what a fabric states, in every command; what nothing reads is named or refused."""

from __future__ import annotations

import json
from typing import Any, cast

import numpy as np
import pytest
import tomli_w

import perfgrid as pg
from perfgrid.answers.question import question
from perfgrid.answers.saved import save_study
from perfgrid.catalog import load_catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.formulas import WORKLOADS, registry_of
from perfgrid.study.ledger import ledger, unread
from tests.fuzz.program import run

BASE = {
    "outputs": ["step_time", "cost_per_training_run"],
    "axes": {"model": ["llama-3.1-70b"], "device": ["gb200"], "parallelism": {"devices": [576], "tp": [8], "pp": [1]}},
    "workload_parameters": {"sequence_length": 4096, "global_batch": 576, "zero": 1, "recompute": "full"},
}
OWN = """
kind = "device"
[mine]
extends = "gb200"
title = "GB200 in domains of 8"
scale_up_size = 8
"""


def step(changes=None, axes=None, catalog=None, **content):
    """The step time of the base design with changes."""
    made = {**BASE, **content, "axes": {**BASE["axes"], **(axes or {})}}
    made["overrides"] = {**made.get("overrides", {}), **(changes or {})}
    return pg.evaluate(pg.Study.make(catalog=catalog, **made), dtype="float64").step_time


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "mine.toml"
    path.write_text(OWN)
    return path


def test_a_domain_counts_the_same_however_it_is_stated(own):
    """gb200's usual fabric has domains of 72: a stated 8 is taken before it, everywhere alike."""
    usual, of_device = step(), step(axes={"topology": ["rail-optimized"]}, changes={"scale_up_size": 8})
    ways = {
        "override": step({"scale_up_size": 8}),
        "axis": step(axes={"scale_up_size": [8]}),
        "own entry": step(axes={"device": ["mine"]}, catalog=own),
        "beside others": step(axes={"device": ["gb200", "mine"]}, catalog=own).isel(device=1),
        "named fabric": step({"scale_up_size": 8}, axes={"topology": ["gb200-nvl72-400g"]}),
    }
    for way, found in ways.items():
        assert found.item() > 1.1 * usual.item(), way
        np.testing.assert_allclose(found.item(), ways["override"].item(), rtol=1e-12, err_msg=way)
    assert of_device.item() > 1.1 * usual.item()


def test_the_rate_of_a_device_moves_time_and_cost_alike():
    """Half the network is slower and not dearer, twice is faster and dearer: both read the one rate that counts."""
    outputs = ["step_time", "network_cost_per_device", "network_rate"]
    rates = (25e9, 50e9, 100e9)
    made = [pg.Study.make(**{**BASE, "outputs": outputs, "overrides": {"scale_out_bandwidth": r}}) for r in rates]
    half, usual, twice = (pg.evaluate(one, dtype="float64").squeeze() for one in made)
    assert [float(one.network_rate) for one in (half, usual, twice)] == list(rates)
    assert half.step_time > usual.step_time > twice.step_time
    assert half.network_cost_per_device <= usual.network_cost_per_device < twice.network_cost_per_device


def test_which_statement_counts_is_said(own):
    (note,) = pg.Study.make(**BASE, overrides={"scale_up_size": 8}).notes
    assert note == "scale_up_size of the study replaces tier_size_limit.scale_up 72 of the topology gb200-nvl72-400g"
    assert pg.Study.make(**BASE).notes == ()
    with pytest.raises(PerfgridError, match="list devices and topologies together, in an axis with zip"):
        step(axes={"device": ["gb200", "mine"], "topology": ["gb200-nvl72-400g", "rail-optimized"]}, catalog=own)


def test_what_a_user_states_of_the_fabric_counts_before_the_device(own, tmp_path):
    """Both are a user's: the fabric is the cluster's."""
    fabric = tmp_path / "fabric.toml"
    fabric.write_text(
        'kind = "topology"\n[pairs]\nextends = "gb200-nvl72-400g"\ntitle = "16"\ntier_size_limit = { scale_up = 16 }'
    )
    axes = {"device": ["mine"], "topology": ["pairs"]}
    study = pg.Study.make(catalog=[own, fabric], **{**BASE, "axes": {**BASE["axes"], **axes}})
    assert study.notes == ("tier_size_limit.scale_up 16 of the topology pairs replaces scale_up_size of mine",)
    limits = study.space.parts("tier_size_limit")[0][1]
    assert limits.reshape(-1)[0] == 16


def test_layouts_are_searched_up_to_the_domain_that_counts(own):
    """Row 6: tp was searched up to the device's domain where the fabric has a larger one, and the other way round."""
    catalog = load_catalog(own)
    asked = question("llama-3.1-70b", ["gb200", "mine", "h100-sxm-80gb"], 576, None, None, catalog)
    assert asked.domains == {"gb200": 72, "mine": 8, "h100-sxm-80gb": 8}
    assert max(asked.layouts()["tp"]) == 64
    assert question("llama-3.1-70b", "mine", 576, None, None, catalog).domains == {"mine": 8}


def test_a_changed_device_is_saved_as_what_differs_and_answers_alike(tmp_path):
    answer = pg.train("llama-3.1-8b", ["gb200", "gb200[scale_up_size=8]"], 144)
    assert answer.step_time.values[1, 0] != answer.step_time.values[0, 0]
    save_study(answer, tmp_path / "study.toml")
    text = (tmp_path / "study.device.toml").read_text()
    assert 'extends = "gb200"' in text
    assert len(text.splitlines()) < 8
    best = pg.best(pg.load_study(tmp_path / "study.toml")).squeeze("model")
    np.testing.assert_array_equal(answer.step_time.values, best.step_time.transpose("system", "devices").values)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("clock_frequency=2x", "clock_frequency = 3.66 GHz .* has no effect"),
        ("peak_fp4_rate=2x", "the device has none"),
        ("peak_fp4_rate=1 PFLOP/s", "peak_fp4_rate .* has no effect"),
        ("die_area=2x", "die_area .* has no effect"),
    ],
)
def test_a_value_of_a_device_that_nothing_reads_is_refused(change, said):
    with pytest.raises(PerfgridError, match=said):
        pg.train("llama-3.1-8b", f"h100-sxm-80gb[{change}]", 8)


def test_what_options_replace_is_refused():
    for change, options in (
        ("purchase_price=2x", cast(dict[str, Any], {"price": 2.1})),
        ("usual_topology=rail-optimized", {"topology": "hgx-h100-400g"}),
        ("training_software=nemo", {"software": "megatron-core"}),
    ):
        with pytest.raises(PerfgridError, match=f"{change.partition('=')[0]} .* has no effect"):
            pg.train("llama-3.1-8b", f"h100-sxm-80gb[{change}]", 8, **options)


def test_a_value_that_the_best_design_does_not_feel_is_named():
    answer = pg.train("llama-3.1-8b", "h100-sxm-80gb[peak_fp16_rate=0.5x]", 8)
    assert answer.attrs["warnings"] == [
        "peak_fp16_rate = 494.7 TFLOP/s (device h100-sxm-80gb+peak_fp16_rate-0.5x) has no effect on the best design"
    ]


STUDIES = [  # rows 12 and 13 of what was lost: a study, and what of it nothing reads
    ({"workload_parameters": {**BASE["workload_parameters"], name: value}}, name)
    for name, value in {
        "ulysses_ranks": 2,
        "training_tokens": 1e12,
        "document_variation": 0.5,
        "expert_imbalance": 1.5,
        "network_budget": 1e4,
        "production_volume": 1e5,
    }.items()
]


@pytest.mark.parametrize(("changes", "name"), STUDIES)
def test_a_parameter_of_a_study_that_nothing_reads_is_named(changes, name):
    lost = {one.quantity: one.text for one in unread(pg.Study.make(**{**BASE, "outputs": ["step_time"], **changes}))}
    if name in lost:
        assert "has no effect: no output of this study depends on it" in lost[name]
        return
    default = pg.Study.make(**{**BASE, "outputs": ["step_time"]})
    assert name in default.graph().leaves  # read: the perturbation test says whether it moves something


def test_commands_warn_of_what_has_no_effect(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps({**BASE, "workload_parameters": {**BASE["workload_parameters"], "ulysses_ranks": 2}}))
    found = run(tmp_path, ["run", "study.toml", "--set", "device.gb200.scale_up_size=8"])
    assert found.status == 0
    assert "warning: ulysses_ranks = 2 (workload_parameters) has no effect" in found.err
    assert "note: scale_up_size of gb200 replaces tier_size_limit.scale_up 72" in found.err


def test_the_check_of_a_catalog_names_what_has_no_effect(tmp_path):
    (tmp_path / "mine.toml").write_text(OWN + 'clock_frequency = "3 GHz"\npeak_fp4_rate = "30 PFLOP/s"\n')
    found = run(tmp_path, ["catalog", "check", "mine.toml"]).out
    assert "no answer about training, serving or cost rests on clock_frequency" in found
    assert "scale_up_size of mine replaces tier_size_limit.scale_up 72" in found
    assert "rests on peak_fp4_rate" not in found


def test_collectives_read_the_domain_and_the_rate_that_are_stated():
    """Row 4: on the fabric that a device is mostly used with, nothing that was stated of it had an effect."""
    asked = {"workload": "collectives", "outputs": ["collective_time"], "axes": {"device": ["gb200"]}}
    asked["workload_parameters"] = {
        "group_size": 144,
        "message_size": "64 MiB",
        "devices": 576,
        "collective": "all_reduce",
    }
    usual, slow, small = (
        pg.evaluate(pg.Study.make(**asked, overrides=overrides), dtype="float64").collective_time.item()
        for overrides in ({}, {"scale_out_bandwidth": "2 GB/s"}, {"scale_up_size": 8})
    )
    assert slow > 1.5 * usual
    assert small > 1.1 * usual


def test_every_given_quantity_is_read_by_a_formula_or_names_its_reader():
    read = set()
    for workload in WORKLOADS:
        registry = registry_of(workload)
        read |= {name for formula in registry.formulas.values() for name in (*formula.arguments, formula.by) if name}
    plain = {name.removeprefix("native_").removeprefix("stated_") for name in read}
    chosen = {"hbm_generation", "usual_topology", "training_software", "serving_software", "process_node", "package"}
    left = {v.name for v in load_catalog().variables.values() if not v.reader} - plain - chosen
    assert left == {"io_process_node", "register_file_size"}  # an entry of I/O dies; a figure that nothing needs yet


def test_the_ledger_says_who_states_what():
    study = pg.Study.make(**BASE, overrides={"interest_rate": 0.05})
    found = {one.quantity: (one.value, one.status, one.by) for one in ledger(study)}
    assert found["sequence_length"] == ("4096", "stated", "workload_parameters")
    assert found["interest_rate"] == ("0.05", "stated", "overrides")
    assert found["device"] == ("gb200", "stated", "axes.device")
    assert found["topology"] == ("gb200-nvl72-400g", "implied", "usual_topology of the device")
    assert found["software"] == ("megatron-core", "implied", "training_software of the device")
    assert found["price"] == ("market-2025", "assumed", "default")
    assert found["expert_imbalance"][1:] == ("assumed", "default")
    attribute = json.loads(pg.evaluate(study).attrs["inputs"])
    assert ["interest_rate", "0.05", "stated", "overrides"] in attribute


def test_an_answer_says_what_was_stated_and_what_was_taken():
    answer = pg.train("llama-3.1-8b", "h100-sxm-80gb", 8, sequence=4096, price=2.5)
    found = {name: (value, status, by) for name, value, status, by in json.loads(answer.attrs["inputs"])}
    assert found["sequence_length"] == ("4096", "stated", "--sequence")
    assert found["global_batch"][1:] == ("assumed", "about 8 million tokens a step (--batch)")
    assert found["cost_per_device_hour"] == ("2.5 USD/h", "stated", "--price")
    assert found["utilization"][1] == "implied"
    assert "recompute" not in found


def test_assumptions_on_the_screen_and_in_json_decide(tmp_path):
    question = ["train", "llama-3.1-8b", "--on", "h100-sxm-80gb", "--devices", "8", "--assumptions"]
    found = run(tmp_path, [*question, "--json"])
    inputs = {one["quantity"]: one for one in json.loads(found.out)["inputs"]}
    for name in ("purchase_price", "equipment_life", "interest_rate", "utilization"):
        assert abs(inputs[name]["effects"]["cost_per_training_run"]) > 0.05, name
    assert inputs["peak_bf16_rate"]["effects"]["step_time"] < -0.3
    text = run(tmp_path, question).out
    for words in (
        "stated",
        "implied",
        "assumed",
        "equipment_life",
        "usual_topology",
        "expert_imbalance 1",
    ):
        assert words in text


def test_the_inputs_of_a_job_name_its_keys(tmp_path):
    script = "torchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 8 --seq-length 4096 "
    (tmp_path / "job.sh").write_text(script + "--micro-batch-size 1 --global-batch-size 256 --bf16\n")
    found = run(
        tmp_path, ["read-job", "job.sh", "--model", "llama-3.1-70b", "--on", "h100-sxm-80gb", "--assumptions", "--json"]
    )
    inputs = {one["quantity"]: (one["status"], one["by"]) for one in json.loads(found.out)["inputs"]}
    assert inputs["sequence_length"] == ("stated", "--seq-length")
    assert inputs["precision"] == ("stated", "--bf16")
    assert inputs["software"][0] == "assumed"
    assert inputs["recompute"][0] == "assumed"
    assert inputs["device"] == ("stated", "--on")


def test_of_two_statements_of_all_designs_neither_is_lost(tmp_path):
    limit = {"tier_size_limit": {"scale_up": 16, "scale_out": 0}}
    both = pg.Study.make(**{**BASE, "axes": {**BASE["axes"], "scale_up_size": [4, 8]}}, overrides=limit)
    assert both.notes == ("tier_size_limit.scale_up of the study replaces scale_up_size of the study",)
    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps({**BASE, "overrides": limit}))
    found = run(tmp_path, ["run", "study.toml", "--set", "device.gb200.scale_up_size=4"])
    assert "note: tier_size_limit.scale_up of the study replaces scale_up_size of gb200" in found.err
    path.write_text(tomli_w.dumps({**BASE, "overrides": {"hbm_bandwidth": "1 TB/s"}}))
    found = run(tmp_path, ["run", "study.toml", "--set", 'device.gb200.hbm_bandwidth="2 TB/s"'])
    assert "has no effect: the study states it of all designs" in found.err


def test_what_a_study_overrides_is_listed_with_the_value_that_counts(own):
    study = pg.Study.make(
        **{**BASE, "axes": {**BASE["axes"], "device": ["mine"]}}, overrides={"scale_up_size": 4}, catalog=own
    )
    found = {one.quantity: one for one in ledger(study)}
    assert found["scale_up_size"].value == "4"
    assert found["scale_up_size"].by == "overrides"
    assert found["devices"].value == "576"


def test_every_pair_of_devices_and_fabrics_on_axes_of_their_own_is_noted():
    axes = {"device": ["gb200"], "topology": ["gb200-nvl72-400g", "hgx-h100-400g"]}
    notes = pg.Study.make(**{**BASE, "axes": {**BASE["axes"], **axes}}, overrides={"scale_up_size": 4}).notes
    assert len(notes) == 2


def test_nobody_is_said_to_state_what_they_did_not(tmp_path):
    found = run(
        tmp_path,
        [
            "serve",
            "llama-3.1-8b",
            "--on",
            "h100-sxm-80gb",
            "--clients",
            "8",
            "--devices",
            "1",
            "--assumptions",
            "--json",
        ],
    )
    inputs = {one["quantity"]: (one["status"], one["by"]) for one in json.loads(found.out)["inputs"]}
    assert inputs["prompt_variation"][0] == inputs["limit_statistic"][0] == "assumed"
    assert inputs["devices"] == ("stated", "--devices")
    assert inputs["batch"] == ("stated", "--clients")


def test_an_option_is_stated_once(tmp_path):
    found = run(tmp_path, ["train", "llama-3.1-8b", "--on", "h100-sxm-80gb", "--on", "b200", "--devices", "8"])
    assert (found.status, found.err) == (2, "perfgrid: --on is stated twice: state it once\n")
