"""Which framework a text is of: by its program, its keys and the files beside it; what is cut or lacks a file."""

import pytest

from perfgrid.engine.errors import PerfgridError, one_line
from perfgrid.jobs.read import read_job
from perfgrid.jobs.shell import script_of
from tests.each import each

from .test_bad_input import BATCH, LLAMA, RUN, SHAPE

CUT = "SHAPE=(--num-layers 32 --hidden-size 4096)\nTP=4\nRANKS=(--micro-batch-size 1 --tensor-model-parallel-size $TP"
VLLM = "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 8 --max-num-seqs 32"
TITAN = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 8192\nlocal_batch_size = 2\n'
SHARDED = '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}}'


@each(
    "texts, message",
    [
        ({"a.sh": f"{CUT})"}, "a.sh: no command takes the options in SHAPE, RANKS: the script ends before its launch"),
        ({"a.sh": CUT}, r"a.sh: cannot be read as a shell script: line 3: no closing \)"),
        ({"a.json": SHARDED[:60]}, "a.json: not valid JSON: .*: the text ends early"),
        ({"a.toml": TITAN[:-9]}, "a.toml: not valid TOML"),
        (
            {"a.sh": "CONFIG_FILE=./models/llama3_8b.toml ./run_train.sh"},
            r"settings are in ./models/llama3_8b.toml, .*",
        ),
        ({"a.sh": RUN + LLAMA + BATCH, "b.sh": VLLM}, "b.sh is a configuration of vLLM, the others are of Megatron-LM"),
        ({"a.toml": TITAN, "b.json": SHARDED}, "b.json is a configuration of DeepSpeed, the others are of torchtitan"),
        ({"a.sh": "python -m dynamo.vllm --model x", "b.toml": TITAN}, "a.sh starts workers of Dynamo, b.toml none"),
    ],
)
def test_files_without_a_format_say_what_they_lack(texts, message):
    with pytest.raises(PerfgridError, match=message) as error:
        read_job(texts)
    assert one_line(str(error.value)) == str(error.value)


def test_files_that_are_one_job_together():
    """Lists of one script that another one launches, and a configuration with overrides of the framework's launcher."""
    launch = f"{RUN} ${{SHAPE[@]}} ${{RANKS[@]}} {LLAMA.replace(SHAPE, '')} {BATCH}"
    shape = SHAPE.replace("\n", " ")
    job = read_job({"a.sh": f"SHAPE=({shape})\nTP=4\nRANKS=(--tensor-model-parallel-size $TP)", "b.sh": launch})
    assert (job.format.name, job.values["tp"], job.values["devices"]) == ("megatron-lm", 4, 16)
    over = "NGPU=4 CONFIG_FILE=a.toml ./run_train.sh --training.local_batch_size 1"
    job = read_job({"a.toml": TITAN, "b.sh": over})
    assert {n: job.values[n] for n in ("devices", "microbatch", "sequence_length")} == {
        "devices": 4,
        "microbatch": 1,
        "sequence_length": 8192,
    }
    assert job.model is not None
    assert job.model.name == "llama-3.1-8b"
    launch = "NGPU=8 MODULE=llama3 CONFIG=llama3_70b ./run_train.sh --training.seq_len 4096"
    with pytest.raises(PerfgridError, match="config llama3_70b states tp itself, which is not read"):
        read_job(launch)
    newer = read_job(launch, stated={"tp": 8, "pp": 1, "cp": 1, "microbatch": 2})
    assert (newer.version, newer.values["devices"], newer.model and newer.model.name) == ("0.3", 8, "llama-3.1-70b")


@each(
    "text, name, tp",
    [
        ("vllm serve Qwen/Qwen3-32B", "vllm", 1),
        ("vllm serve Qwen/Qwen3-32B -tp 2 --port 8000", "vllm", 2),
        ("M=Qwen/Qwen3-32B\nexec vllm serve $M --tensor-parallel-size 4 &\ncurl --retry 3 http://x", "vllm", 4),
        ("python -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-32B --tensor-parallel-size 4", "vllm", 4),
        ("docker run --gpus all -p 8:8 vllm/vllm-openai:v1 --model Qwen/Qwen3-32B --tensor-parallel-size 4", "vllm", 4),
        ("docker run --gpus all vllm/vllm-openai:v1 Qwen/Qwen3-32B -tp 4", "vllm", 4),
        ("python3 -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 2", "sglang", 2),
        ("mpirun -n 2 trtllm-serve serve Qwen/Qwen3-32B --tp_size 2", "tensorrt-llm", 2),
    ],
)
def test_the_program_decides_the_format(text, name, tp):
    job = read_job({"run.sh": text})
    assert job.model is not None
    assert (job.format.name, job.model.name, job.values["tp"]) == (name, "qwen3-32b", tp)
    assert not any("unknown" in why for _, _, why in job.ignored if "port" not in why)


ARGS = f'ARGS="{LLAMA} {BATCH} --vocab-size 128256 --tensor-model-parallel-size 8"\n'


@each(
    "launch",
    [
        'srun bash -c "RUN"',
        "srun -N 2 bash -lc 'cd /job && RUN'",
        'srun bash -c "\ncd /job\nRUN\n"',
        'CMD="RUN"\nsrun bash -c "$CMD"',
        "launch() {\n RUN\n}\nlaunch",
        "if [ -d /data ]; then\n RUN\nfi",
        "[ -d /data ] && RUN",
    ],
)
def test_launches_in_command_strings_functions_and_conditions_are_read(launch):
    text = f"export {ARGS}{launch.replace('RUN', f'{RUN} $ARGS')}"
    job = read_job({"run.sh": text})
    assert (job.format.name, job.values["tp"], job.values["dp"]) == ("megatron-lm", 8, 2)
    unsure = any(why.startswith("this launch is under a condition") for *_, why in job.ignored)
    assert unsure == ("data" in launch)
    with pytest.raises(PerfgridError, match="holds 2 launches"):
        read_job({"run.sh": f"{ARGS}if [ -d /x ]; then\n{RUN} $ARGS\nelse\n{RUN} $ARGS --cp 2\nfi"})


def test_command_strings_within_each_other_end():
    assert script_of("D='$'\nA=\"${D}A --x\"\nbash -c \"$A --y\"\nbash -c '$A --y --z'", "s").commands


ACCELERATE = """compute_environment: LOCAL_MACHINE
deepspeed_config: {SETTINGS}
distributed_type: DEEPSPEED
num_machines: 1
num_processes: 16
"""
DEEPSPEED = (
    '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 2, '
    '"gradient_accumulation_steps": 4}'
)
PARTS = {
    "ds.json": DEEPSPEED,
    "acc.yaml": ACCELERATE.replace("SETTINGS", "deepspeed_config_file: ds.json, zero3_init_flag: true"),
    "acc.sh": "accelerate launch --config_file acc.yaml train.py --per_device_train_batch_size 2",
}


@each("order", ["ds.json acc.yaml", "acc.yaml ds.json", "acc.yaml acc.sh ds.json"])
def test_deepspeed_by_accelerate_is_one_job(order):
    job = read_job({name: PARTS[name] for name in order.split()}, stated={"sequence_length": 4096})
    values = {name: job.values[name] for name in ("devices", "zero", "microbatch", "global_batch", "precision")}
    assert values == {"devices": 16, "zero": 2, "microbatch": 2, "global_batch": 128, "precision": "bf16"}
    assert (job.format.name, job.format.software) == (
        "transformers" if "acc.sh" in order else "deepspeed",
        "hf-deepspeed",
    )
    assert not any("unknown" in why for *_, why in job.ignored)


def test_settings_of_accelerate_itself_for_deepspeed():
    own = "zero_stage: 3, gradient_accumulation_steps: 4, offload_optimizer_device: cpu"
    text = ACCELERATE.replace("SETTINGS", own) + "mixed_precision: fp16\n"
    job = read_job({"acc.yaml": text}, stated={"sequence_length": 4096, "microbatch": 1})
    values = {name: job.values[name] for name in ("zero", "global_batch", "precision", "offload")}
    assert values == {"zero": 3, "global_batch": 64, "precision": "fp16", "offload": "optimizer"}
    assert job.format.name == "deepspeed"


@pytest.mark.parametrize("format", [None, "accelerate", "deepspeed"])
@pytest.mark.parametrize("names", ["acc.yaml", "acc.yaml acc.sh"])
def test_a_file_of_settings_that_is_not_given_is_named_with_the_command(names, format):
    with pytest.raises(PerfgridError) as error:
        read_job({name: PARTS[name] for name in names.split()}, format=format)
    assert str(error.value).startswith(f"{names.replace(' ', ', ')}: the settings are in ds.json (")
    assert str(error.value).endswith(f"perfgrid read-job ds.json {names}")
    with pytest.raises(PerfgridError, match=r"acc.sh: the settings are in acc.yaml, which is not given"):
        read_job({"acc.sh": PARTS["acc.sh"]})


def test_a_key_of_another_version_names_one_that_has_it():
    text = "[training]\nlocal_batch_size = 1\n[parallelism]\nexpert_tensor_parallel_degree = 2\n"
    with pytest.raises(PerfgridError, match=r"\(until 0.3\): state the version, as in --format torchtitan@0.2$"):
        read_job(text, format="torchtitan@0.3")
