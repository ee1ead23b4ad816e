"""`perfgrid read-job` and `--launch` as their users run them."""

import json
import math
import re
import tomllib

import pytest
import tomli_w
from typer.testing import CliRunner

import perfgrid as pg
from perfgrid.catalog import load_catalog
from perfgrid.cli.main import app
from perfgrid.engine.errors import PerfgridError
from perfgrid.jobs.changes import combinations
from perfgrid.jobs.read import read_job
from perfgrid.jobs.suggest import suggest
from perfgrid.jobs.suggestions import ABSENT, Change, distinct, sense, together
from tests.each import each

from .test_bad_input import BATCH, LLAMA, RUN

SCRIPT = """#!/bin/bash
NODES=${NODES:-4}
MODEL=(--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention
  --num-query-groups 8 --position-embedding-type rope --swiglu --untie-embeddings-and-output-weights
  --disable-bias-linear --attention-dropout 0.0 --hidden-dropout 0.0 --max-position-embeddings 8192)
torchrun --nproc-per-node 8 --nnodes $NODES pretrain_gpt.py ${MODEL[@]} --seq-length 8192 --micro-batch-size 1 \\
  --global-batch-size 128 --tensor-model-parallel-size 4 --bf16 \\
  --recompute-granularity full --recompute-method uniform \\
  --recompute-num-layers 1 --use-distributed-optimizer 2>&1 | tee log.txt
"""


def run(*arguments):
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, done.output + str(done.exception)
    return done.stdout


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT)
    return path


def test_a_job_becomes_a_study_that_other_commands_take(script, tmp_path):
    study = tmp_path / "job.toml"
    shown = run("read-job", script, "--on", "h100-sxm-80gb", "-o", study)
    assert re.search(r"--tensor-model-parallel-size +4 +tp = 4", shown)
    assert re.search(r"pp +1 +no --pipeline-model-parallel-size: the default of Megatron-LM", shown)
    content = tomllib.loads(study.read_text())
    assert content["axes"]["model"] == ["llama-3.1-8b"]
    assert content["workload_parameters"]["recompute"] == "full"
    loaded = pg.load_study(study)
    assert loaded.space.points == 1
    step = float(pg.evaluate(loaded).step_time.values.item())
    again = run("explain", study, "step_time", "--launch", "megatron-lm")
    job = read_job(again[again.index("# Megatron-LM") :])
    assert job.values == read_job(SCRIPT).values
    assert step > 0


def test_a_model_of_its_own_is_written_beside_the_study(script, tmp_path):
    script.write_text(SCRIPT.replace("--num-layers 32", "--num-layers 40 --vocab-size 50000"))
    study = tmp_path / "job.toml"
    run("read-job", script, "--on", "h100-sxm-80gb", "-o", study)
    loaded = pg.load_study(study)
    entry = loaded.catalog.entry("model", "job-model")
    assert (entry.values["layers"], entry.values["vocab_size"], entry.values["kv_heads"]) == (40, 50000, 8)


def test_suggestions_name_settings_of_the_job(script):
    """A job that recomputes all layers though they fit: doing less is the largest single gain."""
    found = json.loads(run("read-job", script, "--on", "h100-sxm-80gb", "--suggest", "--json"))["suggestions"]
    first = found["singles"][0]
    order = [(change["tied"], change["ratio"]) for change in found["singles"]]
    assert order == sorted(order)
    numbers = [
        (key, float(after) > float(before))
        for (key, before, after), *others in (change["settings"] for change in found["singles"])
        if not others and {before, after}.isdisjoint({"absent", "on"})
    ]
    assert len(numbers) == len(set(numbers))  # one row for each setting that grows, one for each that shrinks
    assert all(change["low"] < change["ratio"] < change["high"] for change in found["singles"])
    keys = {key for change in found["singles"] for key, *_ in change["settings"]}
    assert "--recompute-granularity" in keys
    assert first["ratio"] < 1
    assert found["combination"]["ratio"] < first["ratio"]


def test_suggestions_agree_with_the_study_of_the_changed_job(script):
    """The time of a change is that of the job with the changed settings, read as a job of its own."""
    catalog = load_catalog()
    found = suggest(read_job(SCRIPT), "h100-sxm-80gb", catalog)
    change = next(c for c in found.singles if dict(c.changes) == {"recompute": "selective"})
    text = SCRIPT.replace("granularity full --recompute-method uniform", "granularity selective")
    other = suggest(read_job(re.sub(r"\\\n +--recompute-num-layers 1", "", text)), "h100-sxm-80gb", catalog)
    assert change.value == pytest.approx(other.value, rel=1e-9)
    assert found.value / change.value > 1.1


def test_combinations_leave_out_what_helps_least():
    """Four quantities have 24 combinations; at most 10 lack the two changes with the least gain."""
    singles = [{}, {"zero": 1}, {"tp": 4, "dp": 2}, {"tp": 8, "pp": 1}, {"microbatch": 2}, {"schedule": "zb_v"}]
    gains = [0.0, 0.3, -0.1, 0.2, -math.inf, 0.1]
    every, none = combinations([*singles, {"precision": "fp8"}], [*gains, 0.9], 24)
    assert (len(every), none) == (24, {})
    assert len({tuple(sorted(one.items())) for one in every}) == 24
    assert not any("precision" in one for one in every)  # numerics stay
    fewer, lost = combinations(singles, gains, 10)
    assert lost == {"layout": (1, 2), "microbatch": (1, 1)}
    assert {"zero": 1, "tp": 8, "pp": 1, "schedule": "zb_v"} in fewer
    assert len(fewer) == 8


def test_rows_of_one_setting_are_joined_by_their_sense():
    assert [
        sense(*ends) for ends in (("2", "4"), ("4", "2"), ("absent", "5"), ("5", "absent"), ("full", "selective"))
    ] == [
        "up",
        "down",
        "up",
        "absent",
        "selective",
    ]


def test_changes_of_the_same_effect_are_one_row():
    """Of two that do the same the one that removes fewer settings; others are rows of their own."""

    def change(value, ratio, *settings):
        return Change({"recompute": value}, settings, 1 / ratio, 1.0, ratio, 0.9 * ratio, 1.1 * ratio, False, {})

    none = change("none", 0.8, ("-a", "full", ABSENT), ("-b", "1", ABSENT))
    selective = change("selective", 0.8 + 1e-9, ("-a", "full", "selective"), ("-b", "1", ABSENT))
    part = change("layers", 0.9, ("-a", "full", "some"))
    assert distinct([none, part, selective]) == (selective, part)


def _change(changes, ratio, *settings, memory=1.0):
    return Change(changes, settings, 1 / ratio, memory, ratio, 0.9 * ratio, 1.1 * ratio, False, {})


def test_a_row_that_is_not_listed_hides_no_other():
    """The second has the effect of the first; the third has its setting and another effect."""
    first = _change({"a": 1}, 0.8, ("-a", "2", "4"))
    again = _change({"a": 2}, 0.8, ("-b", "2", "4"))
    third = _change({"b": 2}, 0.9, ("-b", "2", "8"))
    assert distinct([first, again, third]) == (first, third)


@each(
    "changes, ratio, kept",
    [
        ({"zero": 1, "tp": 4}, 0.7, True),
        ({"zero": 1, "tp": 4}, 1.0, False),
        ({"zero": 1, "tp": 4}, math.nan, False),
        ({"zero": 1, "tp": 4}, 0.8, False),  # as the row above
        ({"zero": 1}, 0.7, False),
        ({}, 0.7, False),
    ],
)
def test_a_combination_is_a_row_of_its_own_or_none(changes, ratio, kept):
    listed = [_change({"zero": 1}, 0.8, ("-z", "0", "1"))]
    combination = _change(changes, ratio, ("-z", "0", "1"), ("-t", "8", "4"))
    assert together(combination, listed, [{}, {"zero": 1}, {"tp": 4}], True) == (combination if kept else None)


def test_suggestions_are_in_the_spelling_of_the_file(tmp_path):
    """Keys of TOML for TOML, of its version; none of the command line of another one."""
    path = tmp_path / "job.toml"
    tables = {
        "model": {"name": "llama3", "flavor": "8B"},
        "training": {"local_batch_size": 8, "seq_len": 8192},
        "parallelism": {"tensor_parallel_degree": 4},
        "activation_checkpoint": {"mode": "full"},
    }
    path.write_text(tomli_w.dumps(tables))
    found = json.loads(run("read-job", path, "--devices", 16, "--on", "h100-sxm-80gb", "--suggest", "--json"))
    told = [setting for change in found["suggestions"]["singles"] for setting in change["settings"]]
    assert ["activation_checkpoint.mode", "full", "selective"] in told
    assert ["parallelism.tensor_parallel_degree", "4", "2"] in told
    assert all(key.split(".")[0] in ("model", "training", "parallelism", "activation_checkpoint") for key, *_ in told)


def test_launch_of_an_answer(tmp_path):
    target = tmp_path / "run.sh"
    asked = ("train", "llama-3.1-8b", "--on", "h100-sxm-80gb", "--devices", 16, "--batch", 64)
    run(*asked, "--launch", f"megatron-lm@0.14={target}")
    job = pg.read_job(target.read_text())
    assert (job.version, job.values["devices"], job.values["global_batch"]) == ("0.14", 16, 64)
    assert job.model is not None
    assert job.model.name == "llama-3.1-8b"
    with pytest.raises(PerfgridError, match="exists; give --overwrite"):
        app([*map(str, asked), "--launch", f"megatron-lm={target}"], standalone_mode=False)
    with pytest.raises(PerfgridError, match="read, not written"):
        app([*map(str, asked), "--launch", "mlperf"], standalone_mode=False)
    with pytest.raises(PerfgridError, match="framework for inference"):
        app([*map(str, asked), "--launch", "vllm"], standalone_mode=False)


def test_what_a_job_leaves_open_is_asked_for(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text('{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}}')
    target = tmp_path / "job.toml"
    asked = ["read-job", path, "--on", "h100-sxm-80gb", "-o", target, "--devices", 16]
    for option, lacking in (
        (["--model", "llama-3.1-8b"], "model"),
        (["--set", "sequence_length=4096"], "sequence_length"),
    ):
        with pytest.raises(PerfgridError, match=lacking):
            app([*map(str, asked)], standalone_mode=False)
        asked += option
    run(*asked)
    assert pg.load_study(target).space.constants["zero"] == 3


SERVER = "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 8 --max-num-seqs 32\n"


def test_suggestions_for_a_server_agree_with_the_study_of_the_changed_one(tmp_path):
    """Throughput by closed loops; a limit that holds clients back is the first to be lifted."""
    stated = {"prompt_tokens": 1000, "output_tokens": 200, "batch": 128}
    catalog = load_catalog()
    found = suggest(read_job(SERVER, stated=stated), "h100-sxm-80gb", catalog)
    assert found.aim == "output_tokens_per_second"
    change = next(c for c in found.singles if dict(c.changes) == {"batch_limit": 64})
    assert change.settings == (("--max-num-seqs", "32", "64"),)
    other = suggest(read_job(SERVER.replace("32", "64"), stated=stated), "h100-sxm-80gb", catalog)
    assert change.value == pytest.approx(other.value, rel=1e-9)
    assert change.ratio == pytest.approx(found.value / change.value)
    assert other.beside["time_to_first_token"] == change.beside["time_to_first_token"]
    script = tmp_path / "serve.sh"
    script.write_text(SERVER)
    asked = [x for name, value in stated.items() for x in ("--set", f"{name}={value}")]
    shown = run("read-job", script, "--on", "h100-sxm-80gb", *asked, "--suggest", "--wide")
    assert "--quantization absent -> fp8" in shown
    assert "TPOT [ms]" in shown


def test_two_pools_become_a_study_of_pools(tmp_path):
    """A deployment whose pools have layouts of their own."""
    script, study = tmp_path / "graph.sh", tmp_path / "job.toml"
    worker = "python3 -m dynamo.vllm --model Qwen/Qwen3-8B --tensor-parallel-size"
    script.write_text(f"{worker} 2 --disaggregation-mode prefill &\n{worker} 4 --disaggregation-mode decode\n")
    stated = ("--set", "prompt_tokens=1000", "--set", "output_tokens=200", "--set", "batch=16")
    run("read-job", script, "--on", "h100-sxm-80gb", *stated, "-o", study)
    content = tomllib.loads(study.read_text())
    assert content["workload"] == "pools"
    assert [content[p]["axes"]["parallelism"]["tp"] for p in ("prefill", "decode")] == [[2], [4]]
    assert float(pg.evaluate(pg.join_pools(study)).largest_request_rate.values.item()) > 0


def test_what_a_configuration_of_a_name_states_itself_is_open_and_not_a_silent_default():
    text = (
        "torchrun --nnodes 8 --nproc_per_node 8 -m torchtitan.train --module llama3 --config llama3_70b "
        "--parallelism.tensor_parallel_degree 8 --parallelism.pipeline_parallel_degree 1 "
        "--parallelism.context_parallel_degree 1 --training.local_batch_size 1 --training.seq_len 8192 {}"
    )
    job = read_job(text.format(""))
    assert {"recompute", "precision"} == {*job.open}
    told = {name: why for name, _, why in job.assumed}
    assert "--config llama3_70b states it itself, which is not read" in told["recompute"]
    full = read_job(text.format("activation-checkpoint:full"))
    assert (full.values["recompute"], full.open) == ("full", ("precision",))
    given = read_job(text.format(""), stated={"recompute": "full", "precision": "bf16"})
    assert (given.values["recompute"], given.open) == ("full", ())


@each("layout, chunks", [("Et*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4L", 2), ("Et*8|(t*8|)*2t*8L", 1), ("Et*2|(tt|)*14ttL", 4)])
def test_chunks_follow_from_a_layout_of_stages(layout, chunks):
    text = f"{RUN}{LLAMA}{BATCH} --pipeline-model-parallel-size 4 --pipeline-model-parallel-layout '{layout}'"
    assert read_job(text, format="megatron-lm").values["chunks"] == chunks
    with pytest.raises(PerfgridError, match="layout needs stages with"):
        read_job(text.replace("E", "?("), format="megatron-lm")
    with pytest.raises(PerfgridError, match=r"pipeline_stages 3 .*is not a multiple of pp 4"):
        read_job(text.replace(layout, "E|t|L"), format="megatron-lm")
