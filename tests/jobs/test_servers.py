"""Launches of servers as their programs take them: spellings, manifests, and files that a script writes."""

import tomllib
from collections import Counter
from pathlib import Path

import pytest

import perfgrid
from perfgrid.catalog import load_catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.jobs.formats import format_of
from perfgrid.jobs.kinds import counted
from perfgrid.jobs.placed import on_device_of
from perfgrid.jobs.read import read_job
from perfgrid.jobs.verdict import verdict_of
from tests.each import each

LAUNCHES = tomllib.loads((Path(__file__).parent / "servers.toml").read_text())["launch"]
FLAGS = Path(perfgrid.__file__).parent / "jobs" / "keys"
CATALOG = load_catalog()


@each("launch", LAUNCHES)
def test_a_public_launch_is_read(launch):
    job = read_job(launch["text"], model=launch.get("with"))
    assert job.format.name == launch["format"]
    assert job.model is not None
    assert job.model.name == launch["model"]
    assert job.format.software == launch.get("software", job.format.software)
    assert {n: job.values.get(n) for n in launch.get("expected", {})} == launch.get("expected", {})
    for pool, values in launch.get("pools", {}).items():
        assert {n: job.pools[pool].values.get(n) for n in values} == values
    assert not [row for row in job.ignored if "unknown" in row[2]]
    if "uncounted" in launch:
        assert list(verdict_of(job, "h100-sxm-80gb", CATALOG).uncounted) == launch["uncounted"]


def test_every_engine_has_four_public_launches():
    count = Counter(launch["format"] for launch in LAUNCHES)
    assert min(count[name] for name in ("vllm", "sglang", "tensorrt-llm", "lmdeploy", "kubernetes")) >= 4


ALIKE = [  # of vLLM: spellings of one launch
    "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2 --max-model-len 16384 --gpu-memory-utilization 0.95",
    "vllm serve --tensor_parallel_size=2 Qwen/Qwen3-32B --max_model_len=16K --gpu_memory_utilization=0.95",
    "vllm serve -tp 2 --enable-auto-tool-choice Qwen/Qwen3-32B --max-model 16384 --gpu-memory-util 0.95",
    "vllm serve --trust-remote-code --no-enable-expert-parallel Qwen/Qwen3-32B -tp=2 -O3 --max-model-len 16384 "
    "--device-memory-utilization 0.95",
    "vllm serve --served-model-name a b --port 80 --model Qwen/Qwen3-32B -tp 2 --max-model-len 16384 "
    '--gpu-memory-utilization 0.95 --compilation-config \'{"mode": 3, "pass_config": {"enable_fusion": true}}\'',
    "python -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-32B -cc.mode=3 -tp 2 --max-model-len 16384 "
    "--gpu-memory-utilization 0.95",
    "docker run --gpus all vllm/vllm-openai:v0.11 Qwen/Qwen3-32B -tp 2 --max-model-len 16384 "
    "--gpu-memory-utilization .95",
]


@each("text", ALIKE)
def test_spellings_of_one_launch(text):
    job, first = read_job(text), read_job(ALIKE[0])
    assert job.values == first.values
    assert job.values["tp"] == 2
    assert not [row for row in job.ignored if "unknown" in row[2]]


@each("name", ["vllm", "sglang"])
def test_every_flag_of_a_parser_is_known(name):
    """With effect, without one, or not modelled: none is unknown, and switches and lists are those of the parser."""
    form, _ = format_of(name)
    rows = [line.split("\t") for line in (FLAGS / f"{name}.txt").read_text().splitlines()]
    own = {key: kind for key, kind, *_ in rows if not key.startswith("no-")}
    assert [key for key in own if not form.matters(key) and form.reason_to_ignore(key) is None] == []
    assert {key for key in own if form.arguments.is_switch(key)} == {key for key in own if own[key] == "switch"}
    assert {key for key in own if form.arguments.is_list(key)} == {key for key in own if own[key].endswith("*")}


def test_all_flags_of_a_program_are_counted_as_known():
    assert {name: counted(format_of(name)[0]).kinds["unknown"] for name in ("vllm", "sglang")} == {
        "vllm": 0,
        "sglang": 0,
    }


def test_an_ambiguous_beginning_stands_for_none():
    job = read_job("vllm serve Qwen/Qwen3-32B -tp 2 --max-num-s 32")  # -seqs and -scheduled-tokens
    assert "batch_limit" not in job.values
    assert any(key == "--max-num-s" and "unknown" in why for key, _, why in job.ignored)


@each(
    "words, told",
    [
        ("--tensor-parallel-sizes 4", "is unknown to perfgrid for vLLM and could change the layout"),
        ("--expert-sharding 4", "could change the layout"),
        ("--kv-cache-dtype fp3", r"is not understood \(known: fp8, .*give --set kv_precision="),
        ("--quantization my-own", r"is not understood .*give --set weight_precision="),
        ("--gpu-memory-utilization much", "needs a number, found 'much'"),
        ("--gpu-memory-utilization 1.5", "memory_fraction must be|must be <= 1|--gpu-memory-utilization"),
    ],
)
def test_what_could_matter_and_is_not_known_stops(words, told):
    with pytest.raises(PerfgridError, match=told):
        read_job(f"vllm serve Qwen/Qwen3-32B {words}")


def test_formats_of_checkpoints_are_no_other_ones():
    """Weights stay as they are published; of types of 16 bits that of products is the one stated."""
    plain = read_job("vllm serve Qwen/Qwen3-32B").values
    stated = read_job("vllm serve Qwen/Qwen3-32B --quantization compressed-tensors --dtype half").values
    assert stated == plain | {"precision": "fp16"}
    assert read_job("vllm serve Qwen/Qwen3-32B --dtype float32").values["weight_precision"] == "fp32"


CONTAINER = """apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME}
spec:
  template:
    spec:
      containers:
      - WORDS
        resources: {limits: {nvidia.com/gpu: GPUS}}
"""


def deployment(words, gpus=2, name="web"):
    return CONTAINER.replace("WORDS", words).replace("GPUS", str(gpus)).replace("NAME", name)


@each(
    "text",
    [
        "python -m atom.entrypoints.openai_server --model Qwen/Qwen3-32B --tensor-parallel-size 8 --kv_cache_dtype fp8",
        deployment("command: [python, -m, atom.entrypoints.openai_server, '--model=Qwen/Qwen3-32B']"),
    ],
)
def test_a_server_that_is_not_read_is_named(text):
    with pytest.raises(PerfgridError, match="starts ATOM, whose options perfgrid does not read"):
        read_job(text)


def test_manifests_say_what_contradicts_them():
    serve = "command: [vllm, serve, Qwen/Qwen3-32B, -tp, '2']"
    with pytest.raises(PerfgridError, match="a replica has 8 GPUs, its flags take 2"):
        read_job(deployment(serve, 8))
    with pytest.raises(PerfgridError, match=r"no container starts a server that perfgrid reads \(found Deployment\)"):
        read_job(deployment("image: nginx"))
    both = f"{deployment(serve)}---\n{deployment(serve.replace('32B', '14B'), name='other')}"
    with pytest.raises(PerfgridError, match=r"choose one with --which: 1 \(job, web\), 2 \(job, other\)$"):
        read_job(both)
    job = read_job(both, which="other")
    assert job.model is not None
    assert (job.model.name, job.values["devices"]) == ("qwen3-14b", 2)
    with pytest.raises(PerfgridError, match=r"no worker '3': its workers are 1 \(job, web\)"):
        read_job(both, which="3")


def test_variables_of_containers_and_services_of_compose():
    """$(NAME) is a variable of the container, not of a shell; an image stands for the program that it starts."""
    env = "env: [{name: MODEL, value: Qwen/Qwen3-8B}]"
    container = f"image: vllm/vllm-openai:v1\n        args: ['--model=$(MODEL)', '-tp=2']\n        {env}"
    job = read_job(deployment(container))
    assert job.model is not None
    assert (job.model.name, job.values["tp"]) == ("qwen3-8b", 2)
    services = (
        "services:\n  a:\n    image: vllm/vllm-openai\n    command: --model Qwen/Qwen3-8B -tp 4\n  b: {image: nginx}\n"
    )
    assert read_job(services).values["devices"] == 4


def test_settings_in_a_file_that_is_not_given_are_asked_for():
    text = "trtllm-serve Qwen/Qwen3-32B --tp_size 2 --extra_llm_api_options /tmp/extra.yaml"
    with pytest.raises(PerfgridError, match=r"settings are in /tmp/extra.yaml \(extra_llm_api_options\), which is not"):
        read_job(text)
    script = f"cat > /tmp/extra.yaml <<'END'\nmax_batch_size: 7\nEND\n{text}\n"
    assert read_job(script).values["batch_limit"] == 7
    given = read_job({"run.sh": text, "extra.yaml": "max_batch_size: 9\nmax_num_tokens: 512\n"})
    assert (given.values["batch_limit"], given.values["prefill_chunk_tokens"]) == (9, 512)


def test_the_machine_that_a_file_names_is_listed():
    text = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: server}
spec:
  replicas: 1
  template:
    spec:
      nodeSelector: {nvidia.com/gpu.product: NVIDIA-H200}
      containers:
        - name: vllm
          image: vllm/vllm-openai:latest
          args: ["--model", "Qwen/Qwen3-32B", "--tensor-parallel-size", "2"]
          resources: {limits: {nvidia.com/gpu: 2}}
"""
    why = {key: (value, reason) for key, value, reason in read_job(text).ignored}
    assert why["gpu.product"] == ("NVIDIA-H200", "names the machine: the device is that of --on")


VLLM = "vllm serve Qwen/Qwen3-32B -tp 2"
SGLANG = "python -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 2"
TRTLLM = "trtllm-serve Qwen/Qwen3-32B --tp_size 2 --extra_llm_api_options extra.yaml"


@each(
    "launch, expected",
    [
        (VLLM, {}),
        (f"{VLLM} --async-scheduling", {"asynchronous_scheduling": True}),
        (f"{VLLM} --no-async-scheduling", {"asynchronous_scheduling": False}),
        (f"{VLLM} --no-enable-chunked-prefill", {"chunked_prompts": False}),
        (
            f"{VLLM} --no-enable-chunked-prefill --max-model-len 32k",
            {"chunked_prompts": False, "prefill_chunk_tokens": 32000},
        ),
        ({"a.yaml": "model: Qwen/Qwen3-32B\nasync-scheduling: false\n"}, {"asynchronous_scheduling": False}),
        (SGLANG, {}),
        (f"{SGLANG} --enable-mixed-chunk", {"prefill_first": False}),
        (f"{SGLANG} --disable-overlap-schedule", {"asynchronous_scheduling": False}),
        (f"{SGLANG} --scheduler-recv-interval 10", {"polling_steps": 10}),
        (f"{SGLANG} --chunked-prefill-size -1", {"chunked_prompts": False, "prefill_chunk_tokens": 16384}),
        ({"run.sh": TRTLLM, "extra.yaml": "enable_chunked_prefill: true\n"}, {"chunked_prompts": True}),
        ({"run.sh": TRTLLM, "extra.yaml": "disable_overlap_scheduler: true\n"}, {"asynchronous_scheduling": False}),
        ({"run.sh": TRTLLM, "extra.yaml": "disable_overlap_scheduler: false\n"}, {}),
    ],
)
def test_the_policy_of_an_engine_is_read(launch, expected):
    policy = ("prefill_first", "chunked_prompts", "asynchronous_scheduling", "polling_steps", "prefill_chunk_tokens")
    values = read_job(launch).values
    assert {name: values[name] for name in policy if name in values} == expected


def test_what_overlaps_without_effect_is_named():
    (row,) = [row for row in read_job(f"{SGLANG} --disable-overlap-schedule").assumed if "overlap" in row[0]]
    assert row[2].startswith("no effect")


@each(
    "launch, device, tokens, sequences",
    [
        (VLLM, "h100-sxm-80gb", None, None),  # as the catalog has it
        (VLLM, "a100-sxm-80gb", 2048, 256),
        (VLLM, "l40s", 2048, 256),
        (VLLM, "b200", 16384, None),
        (f"{VLLM} --max-num-batched-tokens 4096", "b200", 4096, None),
        (SGLANG, "h200-sxm-141gb", None, None),
        (SGLANG, "b200", 16384, None),
        (f"{SGLANG[:-1]}8 --dp 8 --enable-dp-attention", "b200", 16384, None),
    ],
)
def test_budgets_are_those_of_the_engine_on_a_device(launch, device, tokens, sequences):
    job = on_device_of(read_job(launch), device, CATALOG)
    assert (job.values.get("prefill_chunk_tokens"), job.values.get("batch_limit")) == (tokens, sequences)
    rows = [row for row in job.assumed if row[0] == "prefill_chunk_tokens"]
    assert len(rows) == (tokens not in (None, 4096))


def test_replicas_of_attention_share_the_tokens_of_a_chunk():
    launch = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --dp 8 --enable-dp-attention"
    assert on_device_of(read_job(launch), "h200-sxm-141gb", CATALOG).values["prefill_chunk_tokens"] == 1024
