"""Jobs of fine-tuning stacks: Transformers, TRL, LLaMA-Factory, Axolotl, with Accelerate and DeepSpeed.

``finetuning.toml`` has jobs after public ones with what they state by the documents of their frameworks; ``flags/`` the
keys that the frameworks publish.
"""

import json
import math
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from perfgrid import evaluate
from perfgrid.catalog import load_catalog
from perfgrid.cli.main import app
from perfgrid.engine.errors import PerfgridError, one_line
from perfgrid.jobs.design import study_content
from perfgrid.jobs.formats import formats
from perfgrid.jobs.job import UNKNOWN
from perfgrid.jobs.kinds import UNKNOWN as NOT_KNOWN
from perfgrid.jobs.kinds import keys_of, kind_of
from perfgrid.jobs.read import read_job
from perfgrid.study.study import build_study
from tests.each import each

HERE = Path(__file__).parent
JOBS = tomllib.loads((HERE / "finetuning.toml").read_text())["job"]
STACKS = ("transformers", "trl", "llama-factory", "axolotl")


def read(job):
    return read_job(job["files"], stated=job.get("given"), model=job.get("with"))


@each("job", JOBS)
def test_a_job_is_read_as_its_framework_runs_it(job):
    """Recognised without its format, in any order of its files, with the stack that runs it."""
    if "refused" in job:
        with pytest.raises(PerfgridError, match=re.escape(job["refused"])):
            read(job)
        return
    found = read(job)
    assert (found.format.name, found.format.software) == (job["format"], job["software"])
    assert {name: found.values.get(name) for name in job["expected"]} == job["expected"]
    assert found.model is not None
    assert found.model.name == job.get("model", job.get("with"))
    assert not [key for key, _, why in found.ignored if why.startswith(UNKNOWN) and "data" not in key]
    files = dict(reversed(job["files"].items()))
    assert read(job | {"files": files}).values == found.values


def test_there_are_four_jobs_of_every_framework():
    others = tomllib.loads((HERE / "public.toml").read_text())["job"]  # of DeepSpeed and Accelerate
    count = Counter(job["format"] for job in (*JOBS, *others))
    assert {name: count[name] for name in (*STACKS, "accelerate", "deepspeed") if count[name] < 4} == {}
    assert len({job["address"] for job in JOBS}) == len(JOBS)


@each("name", [*STACKS, "accelerate", "deepspeed"])
def test_every_published_key_is_known(name):
    """With an effect, without one, or as what stops the reader."""
    form = formats()[name]
    assert len(keys_of(form)) > 40
    assert [key for key in keys_of(form) if kind_of(form, key) == NOT_KNOWN] == []


def run(tmp_path, files, *options):
    """The output of ``perfgrid read-job`` for some files."""
    paths = []
    for name, text in files.items():
        path = tmp_path / name
        path.write_text(text)
        paths.append(str(path))
    return CliRunner().invoke(app, ["read-job", *paths, *options])


LLAMA_FACTORY = """model_name_or_path: meta-llama/Llama-3.1-8B
stage: sft
finetuning_type: lora
lora_rank: 8
lora_target: all
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
"""


@each("command", ["llamafactory-cli train lf.yaml", "torchrun --nproc_per_node 8 src/train.py lf.yaml"])
def test_bare_pairs_behind_a_file_win_over_it_and_what_they_replace_is_named(command):
    run = f"export NPROC_PER_NODE=8\n{command} per_device_train_batch_size=2 lora_rank=16\n"
    for files in ({"lf.yaml": LLAMA_FACTORY, "run.sh": run}, {"run.sh": run, "lf.yaml": LLAMA_FACTORY}):
        job = read_job(files)
        assert {n: job.values[n] for n in ("microbatch", "lora_rank", "devices", "global_batch")} == {
            "microbatch": 2,
            "lora_rank": 16,
            "devices": 8,
            "global_batch": 128,
        }
        assert ("lora_rank of lf.yaml", "8", "replaced: 16 in run.sh") in job.ignored


PLAIN = "torchrun --nproc_per_node 4 t.py --model_name_or_path meta-llama/Llama-3.1-8B --block_size 2048 {}\n"


@each(
    "words, quantity, value",
    [
        ("--bf16=True", "precision", "bf16"),
        ("--fp16 true", "precision", "fp16"),
        ("--tf32 True", "precision", "tf32"),
        ("--bf16 --tf32 True", "precision", "bf16"),
        ("--weight_decay 0.1", "precision", "fp32"),
        ("--gradient_checkpointing=True", "recompute", "full"),
        ("--gradient_checkpointing False", "recompute", "none"),
        ("--fsdp 'full_shard auto_wrap'", "zero", 3),
        ("--fsdp 'shard_grad_op'", "zero", 2),
        ("--fsdp 'hybrid_shard auto_wrap'", "zero_size", 4),
        ("--fsdp 'full_shard offload'", "offload", "parameters"),
        ("--per_device_train_batch_size 3 --gradient_accumulation_steps 5", "global_batch", 60),
        ("--weight_decay 0.1", "global_batch", 32),  # 8 on each device by default
        ("--use_lora True --lora_r 12", "lora_rank", 12),
        ("--use_lora False --lora_r 12", "lora_rank", 0),
        ("--lora_r 4 --lora_target_modules c_attn attn.c_proj w1 w2", "lora_targets", "all"),
        ("--lora_r 4 --lora_target_modules \"['q_proj','k_proj','v_proj','o_proj']\"", "lora_targets", "attention"),
        ("--attn_implementation eager", "flash_attention", False),
        ("--optim adafactor --torch_dtype float32", "optimizer", "adafactor"),
        ("--fsdp full_shard --optim adamw_8bit", "optimizer", "adamw_8bit"),
        ("--optim paged_adamw_32bit", "optimizer", "paged_adamw"),
        ("--optim sgd", "optimizer", "sgd"),
        ("--weight_decay 0.1", "optimizer", "fused_adamw"),  # of torch 2.8
        ("--load_in_4bit True --lora_r 8", "frozen_matrix_size", 0.5625),
        ("--load_in_4bit True --lora_r 8 --bnb_4bit_use_double_quant True", "frozen_matrix_size", 0.516),
        ("--load_in_4bit True --lora_r 8 --bnb_4bit_use_double_quant True", "quantised_scales", True),
        ("--load_in_4bit True --lora_r 8 --torch_dtype bfloat16", "frozen_weight_size", 4),  # prepared for training
        ("--load_in_8bit True --lora_r 8", "frozen_matrix_size", 1),
        ("--load_in_4bit False --lora_r 8", "lora_rank", 8),
        ("--use_liger_kernel True", "layer_kernels", "liger"),
        ("--use_liger_kernel True", "cross_entropy", "fused_linear"),
    ],
)
def test_a_value_of_the_trainer_is_the_one_that_is_read(tmp_path, words, quantity, value):
    done = run(tmp_path, {"t.sh": PLAIN.format(words)}, "--json")
    assert done.exit_code == 0, done.output + str(done.exception)
    assert json.loads(done.stdout)["values"][quantity] == value


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--load_in_4bit True", "states no lora_rank, though it has adapters"),
        ("--use_lora", "states no lora_rank, though it has adapters"),
        ("--optim galore_adamw", "--optim galore_adamw is not modelled: gradients of low rank"),
        ("--optim frobnicate", "--optim needs one of adamw_torch, .* found 'frobnicate'"),
        (
            "--auto_find_batch_size",
            "--auto_find_batch_size is not modelled: the size of the batch is found while it runs",
        ),
        (
            "--lora_r 8 --lora_target_modules gate_proj",
            "has adapters beside the projection to queries, keys and values only",
        ),
        ("--lora_r 8 --lora_target_modules '.*'", "names modules that are not known"),
        ("--deepspeed configs/z2.json", r"the settings are in configs/z2.json \(deepspeed\), which is not given"),
        ("--tensor_shards 2", "--tensor_shards 2 is unknown .* could change the layout"),
        ("--lora_r 8 --lora_modules_to_save lm_head", "matrices of embeddings are trained beside adapters"),
        ("--max_seq_length 512", "--max_seq_length 512 contradicts --block_size: both state sequence_length"),
    ],
)
def test_what_a_job_of_the_trainer_states_and_is_not_modelled_stops_the_reader(tmp_path, words, message):
    done = run(tmp_path, {"t.sh": PLAIN.format(words)})
    assert isinstance(done.exception, PerfgridError)
    assert re.search(message, str(done.exception)), str(done.exception)
    assert one_line(str(done.exception)) == str(done.exception)


def test_scripts_of_preference_training_are_refused_by_their_name(tmp_path):
    done = run(
        tmp_path, {"t.sh": PLAIN.replace("t.py", "scripts/run_dpo.py").format("--use_peft --attn_implementation sdpa")}
    )
    assert "trainer dpo is not modelled: pairs of answers" in str(done.exception)


def test_devices_are_those_that_the_launch_has_or_are_asked_for():
    def devices(launch):
        options = "--model_name_or_path meta-llama/Llama-3.1-8B --bf16 --per_device_train_batch_size 2 --block_size 512"
        return read_job(f"{launch} {options}").values.get("devices")

    assert devices("CUDA_VISIBLE_DEVICES=1,3 python t.py") == 2
    assert devices("CUDA_VISIBLE_DEVICES=0,1,2,3 torchrun --nproc_per_node 2 t.py") == 2
    assert devices("deepspeed --include worker-1:0,1@worker-2:0,1,2,3 t.py") == 6
    assert devices("deepspeed --num_nodes 2 --num_gpus 8 t.py") == 16
    assert devices("deepspeed --hostfile hosts --num_gpus 8 t.py") is None
    assert devices("accelerate launch --num_machines 2 --num_processes 8 t.py") == 8
    assert devices("python t.py") is None
    with pytest.raises(PerfgridError, match="names hosts without their devices"):
        devices("deepspeed --include worker-1 t.py")


def test_keys_that_are_left_to_the_trainer_state_nothing():
    """DeepSpeed's "auto" in any order of the files, and an empty word; numbers that differ contradict each other."""
    table = "model_name_or_path: llama-3.1-8b\nbf16: true\nper_device_train_batch_size: 1\nfsdp: ''\ndeepspeed:\n"
    assert read_job(table).values["zero"] == 0
    auto = '{"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", '
    auto += '"bf16": {"enabled": "auto"}, '
    files = {"z.json": auto + '"zero_optimization": {"stage": 1}}'}
    files["t.sh"] = PLAIN.format("--deepspeed z.json --per_device_train_batch_size 2 --gradient_accumulation_steps 4")
    for order in (files, dict(reversed(files.items()))):
        values = read_job(order).values
        assert (values["global_batch"], values["zero"], values["precision"]) == (32, 1, "fp32")
        assert (values["weight_size"], values["optimizer_state_size"]) == (4, 8)
    with pytest.raises(PerfgridError, match=r"both state microbatch"):
        read_job(files | {"z.json": files["z.json"].replace('gpu": "auto"', 'gpu": 1')})


def finite(job):
    found = evaluate(build_study(study_content(read(job), "h200-sxm-141gb"), "job", load_catalog()))
    return math.isfinite(found["step_time"].values.item())


def test_a_job_becomes_a_study_whose_design_its_stack_can_have():
    assert all(finite(job) for job in JOBS if "README.md" in job["address"] and "refused" not in job)


@pytest.mark.slow
def test_every_job_becomes_a_study_whose_design_its_stack_can_have():
    assert [job["address"] for job in JOBS if "refused" not in job and not finite(job)] == []
