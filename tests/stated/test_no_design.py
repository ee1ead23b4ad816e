"""Where no design is feasible, inputs are still listed and a launch is refused with one line."""

from __future__ import annotations

import json

import pytest
import tomli_w

from tests.fuzz.program import run

SERVED = ["serve", "llama-3.1-8b", "--on", "h200", "--devices", "1"]
QUESTIONS = {
    "too large a rate": [*SERVED, "--rate", "5000"],
    "too tight a limit": [*SERVED, "--tpot", "1us"],
    "too large a model": ["train", "llama-3.1-405b", "--on", "h100-sxm-80gb", "--devices", "8"],
}
STUDY = {
    "outputs": ["step_time"],
    "axes": {
        "model": ["llama-3.1-405b"],
        "device": ["h200"],
        "parallelism": {"devices": [8], "tp": [8]},
        "microbatch": [1, 2],
    },
    "workload_parameters": {"sequence_length": 8192, "global_batch": 16},
    "best": {"over": ["microbatch"], "minimize": "step_time"},
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_the_inputs_of_a_question_without_a_design(tmp_path, question):
    told = run(tmp_path, [*question, "--assumptions"])
    assert told.status == 0
    assert "no design" in told.out
    inputs = told.out[told.out.index("Inputs of all designs") :]
    assert "stated" in inputs
    assert "MODEL" in inputs


def test_no_design_is_launched_and_its_reason_is_told(tmp_path):
    question = QUESTIONS["too large a model"]
    data = json.loads(run(tmp_path, [*question, "--assumptions", "--json"]).out)
    assert {"stated", "assumed"} <= {one["status"] for one in data["inputs"]}
    found = run(tmp_path, [*question, "--launch", "megatron-lm"])
    assert found.status == 2
    assert "no design" in found.out
    assert "--launch: no design is feasible" in found.err


def test_the_inputs_of_a_study_without_a_design(tmp_path):
    (tmp_path / "s.toml").write_text(tomli_w.dumps(STUDY))
    plain, told = run(tmp_path, ["best", "s.toml"]), run(tmp_path, ["best", "s.toml", "--assumptions"])
    assert told.status == 0
    assert "memory" in plain.out
    for line in plain.out.splitlines()[:3]:
        assert line in told.out
    assert "sequence_length" in told.out
    assert run(tmp_path, ["best", "s.toml", "--launch", "megatron-lm"]).status == 2


def test_what_is_stated_of_a_device_that_is_not_the_best_is_listed(tmp_path):
    devices = ["--on", "h200[hbm_bandwidth=6 TB/s],b200", "--devices", "8"]
    found = run(tmp_path, ["train", "llama-3.1-8b", *devices, "--precision", "nvfp4", "--assumptions", "--json"])
    rows = {one["quantity"]: one for one in json.loads(found.out)["inputs"]}
    assert rows["device"]["value"] == "b200"
    told = rows["hbm_bandwidth of h200-sxm-141gb"]
    assert (told["status"], told["value"], told["effects"]) == ("stated", "6 TB/s", {})
    assert (rows["scaling"]["status"], rows["scaling"]["value"]) == ("stated", "nvfp4")
    assert (rows["precision"]["status"], rows["precision"]["value"]) == ("stated", "fp4")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train", "llama-3.1-8b", "--on", "h200", "--devices", "8", "--precision", "int4"], "nvfp4"),
        (["train", "llama-3.1-8b", "--on", "b200,B200", "--devices", "8"], "b200 and B200 are one device"),
        (["train", "llama-3.1-8b", "--on", "b200", "--devices", "8", "--price", "cheap"], "'3.35 USD/h'"),
        (["best", "s.toml", "--set", "dtype=float32", "--set", "dtype=float64"], "--set dtype stands twice"),
    ],
)
def test_what_is_stated_twice_or_otherwise_is_refused(tmp_path, words, told):
    (tmp_path / "s.toml").write_text(tomli_w.dumps(STUDY))
    found = run(tmp_path, words)
    assert found.status == 2
    assert told in found.err


def test_words_of_users_are_understood(tmp_path):
    question = ["train", "llama-3.1-8b", "--on", "b200[HBM_Bandwidth=6 TB/s]", "--devices", "8"]
    found = run(tmp_path, [*question, "--price", "$2.10/h", "--budget", "500k"])
    assert "for at most 500k $" in " ".join(found.out.split())
    assert "b200+hbm_bandwidth-6TBs" in found.out
    (tmp_path / "s.toml").write_text(tomli_w.dumps(STUDY))
    assert run(tmp_path, ["best", "s.toml", "--top", "5"]).out.count("none (a)") == 1
