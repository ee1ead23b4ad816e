"""Degrees of a job are those of its files: devices, unread words and misspelt keys change none silently."""

import json
import re

import pytest
from typer.testing import CliRunner

from perfgrid.catalog import load_catalog
from perfgrid.cli.main import app
from perfgrid.engine.errors import PerfgridError
from perfgrid.jobs.changes import single_changes
from perfgrid.jobs.read import read_job
from perfgrid.jobs.suggest import suggest
from perfgrid.jobs.suggestions import ABSENT, expressed
from tests.each import each

SERVER = "vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 4 --max-num-seqs 64\n"
MAXTEXT = """model_name: llama3.1-8b
ici_fsdp_parallelism: 8
ici_tensor_parallelism: 1
per_device_batch_size: 2
max_target_length: 4096
"""
TITAN = """[model]
name = "llama3"
flavor = "8B"
[parallelism]
data_parallel_shard_degree = 8
tensor_parallel_degree = 8
[training]
local_batch_size = 1
seq_len = 4096
"""
SGLANG = "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct --tp-size 4\n"
TENSORRT = "tensor_parallel_size: 4\nmax_batch_size: 64\n"


@each(
    "text, format, devices, message",
    [
        (SERVER, None, 16, r"devices 16 is not tp 4 \(--tensor-parallel-size\) x pp 1 x dp 1 x cp 1 = 4$"),
        (MAXTEXT, None, 128, "devices 128 is not tp 1 x cp 1 x pp 1 x dp 8 = 8$"),
        (TITAN, None, 128, r"devices 128 is not tp 8 .*x cp 1 x pp 1 x dp 8 = 64$"),
        (SGLANG, None, 16, r"devices 16 is not world 4 \(--tp-size\) x pp 1 x replicas 1 = 4$"),
        (TENSORRT, "tensorrt-llm", 16, "devices 16 is not world 4 .*= 4$"),
    ],
)
def test_devices_that_no_key_uses_are_refused(text, format, devices, message):
    with pytest.raises(PerfgridError, match=message):
        read_job(text, format=format, model="llama-3.1-8b", devices=devices)


def test_an_axis_that_is_left_open_takes_the_other_devices():
    job = read_job(MAXTEXT + "dcn_data_parallelism: -1\n", devices=128)
    assert (job.values["tp"], job.values["cp"], job.values["dp"], job.values["zero_size"]) == (1, 1, 128, 8)
    job = read_job(TITAN.replace("shard_degree = 8", "shard_degree = -1"), devices=128)
    assert (job.values["tp"], job.values["cp"], job.values["dp"]) == (8, 1, 16)
    for text in (SERVER, SGLANG):
        assert read_job(text, devices=16, stated={"dp": 4}).values["dp"] == 4


def test_a_misspelt_degree_is_unknown_with_the_nearest_name():
    with pytest.raises(PerfgridError, match=r"ici_fdsp_parallelism 8 is unknown .* layout; did you mean 'ici_fsdp_"):
        read_job(MAXTEXT.replace("ici_fsdp", "ici_fdsp"), devices=2)
    with pytest.raises(PerfgridError, match=r"--ep-sizes 2 is unknown .* layout; did you mean 'ep-size'"):
        read_job("python -m sglang.launch_server --model Qwen/Qwen3-8B --tp-size 2 --ep-sizes 2")


MEGATRON = """if [ $NODES -gt 4 ]; then PP=4; else PP=8; fi
TP=$((16/GPUS))
torchrun --nproc-per-node 8 --nnodes 4 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \\
  --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 """


@each(
    "words, message",
    [
        ("--pipeline-model-parallel-size $PP", r"run.sh: --pipeline-model-parallel-size \$PP \(4 or 8\) .*--set pp="),
        ("--tensor-model-parallel-size $TP", r"--tensor-model-parallel-size \$TP \(\$\(\(16/GPUS\)\)\) is not read"),
        ("--context-parallel-size=${CP}", r"--context-parallel-size \$\{CP\} is not read.*--set cp="),
        ("--num-experts 8 --expert-model-parallel-size $(nproc)", r"-parallel-size \$\(nproc\) is not read.*--set ep="),
        ("--global-batch-size `cat batch`", r"--global-batch-size .*`cat batch` is not read.*--set global_batch="),
    ],
)
def test_a_degree_that_is_stated_and_not_read_is_no_default(words, message):
    with pytest.raises(PerfgridError, match=message):
        read_job({"run.sh": MEGATRON + words}, model="llama-3.1-8b")


def test_a_degree_that_is_not_read_may_be_stated_or_follow():
    job = read_job({"run.sh": f"{MEGATRON} --pipeline-model-parallel-size $PP"}, stated={"pp": 2})
    assert (job.values["pp"], job.values["dp"]) == (2, 16)
    job = read_job(SERVER.replace("size 4", "size $(nproc)"), devices=8)
    assert job.values["tp"] == 8
    assert ("tp", "8", "--tensor-parallel-size is not read: follows from the others") in job.assumed


@each(
    "axes",
    [
        {"ici_fsdp": 64, "ici_tensor": 2},
        {"ici_fsdp": -1, "ici_tensor": 2},
        {"ici_tensor": 4, "ici_context": 2, "dcn_fsdp": 16},
        {"ici_fsdp": 8, "dcn_fsdp": 4, "dcn_data": 4},
    ],
)
def test_a_suggestion_for_a_mesh_starts_from_the_file_and_gives_the_predicted_job(axes):
    """The keys of the file with the changed ones, read again, state the changed design."""
    base = {"model_name": "llama3.1-70b", "per_device_batch_size": 1, "max_target_length": 4096}
    keys = {**base, **{f"{axis}_parallelism": size for axis, size in axes.items()}}

    def read(settings):
        return read_job("".join(f"{key}: {value}\n" for key, value in settings.items()), "maxtext", devices=128)

    job = read(keys)
    start = expressed(job, {})
    stack = load_catalog().entry("software", "maxtext")
    values = {"ep": 1, "etp": 1, "dp_overlap": 0, "parameter_overlap": 0} | job.values
    moves = [change for change in single_changes(job, values, {}, stack) if change.keys() & {"tp", "cp", "dp"}]
    told = {str(change): expressed(job, change, start) for change in moves}
    assert sum(settings is not None for settings in told.values()) > 2
    for change in moves:
        changed = dict(keys)
        for key, before, after in told[str(change)] or ():
            assert before in ([str(keys[key])] if key in keys else ["1", ABSENT])
            changed[key] = after
        if told[str(change)]:
            found = read(changed).values
            assert {name: found[name] for name in change} == change
            assert found["global_batch"] == job.values["global_batch"]


def test_an_infeasible_job_has_a_reason_instead_of_a_speed_and_legal_changes(tmp_path):
    script = tmp_path / "serve.sh"
    script.write_text(SERVER.replace("size 4", "size 3"))
    stated = ("prompt_tokens=2000", "output_tokens=300", "batch=64")
    asked = [word for one in stated for word in ("--set", one)]
    command = ["read-job", str(script), "--on", "h100-sxm-80gb", *asked, "--suggest", "--wide"]
    shown = CliRunner().invoke(app, command).stdout.partition("the job is not feasible: ")[2]
    assert shown.startswith("tensor-parallel ranks do not divide the attention heads\n")
    assert "tokens per second of the job" not in shown
    assert {*re.findall(r"--tensor-parallel-size 3 -> (\d)", shown)} == {"1", "2", "4"}
    found = json.loads(CliRunner().invoke(app, [*command[:-1], "--json"]).stdout)["suggestions"]
    assert found["value"] is None
    assert found["why_not"]
    on = {change["changes"].get("devices", 3): change for change in found["singles"]}
    four = suggest(
        read_job(SERVER, stated={"prompt_tokens": 2000, "output_tokens": 300, "batch": 64}),
        "h100-sxm-80gb",
        load_catalog(),
    )
    assert not four.why_not
    assert on[4]["value"] == pytest.approx(four.value)  # the change is the prediction for that job
