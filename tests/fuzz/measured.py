"""Logs, results, traces and job files in which numbers, words and signs are others, or stand twice."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from hypothesis import strategies as st

from tests.measurements import logs

from .values import NUMBERS, TEXTS, chance

PARTS = re.compile(r"(\d+\.?\d*|\"[^\"]*\"|[\[\]{}:,|=])")
WORDS = (
    *("5,444", "5,44", "5_444", "1e308", "1e999", "-1", "-0", "0", "", "x", "nan", "NaN", "Infinity", "null", "true"),
    *("9" * 400, "9" * 5000, "9" * 200_000, "[" * 3000, "[]", "{}", '{"a": 1, "a": 2}', "\u0665", "0x10", "\x00"),
    *("\x1b[31m", "\u202e", "1:" * 3000 + "1", "&a", "*a", "<<", "\n", "\t"),
    *(str(number) for number in NUMBERS),
    *(text for text in TEXTS if len(text) < 400),
)
PRODUCT = {"External id": 5, "Input Dims": [[2, 3], [3, 4]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
EVENTS = [
    logs.step(1, 0, 100),
    logs.kernel("gemm", 10, 20, correlation=3, **{"External id": 5}),
    logs.kernel("ncclAllReduce", 40, 9, **cast(Any, {"Collective name": "allreduce", "Process Group Name": "tp"})),
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2, "args": PRODUCT},
    {"ph": "X", "cat": "cuda_runtime", "name": "launch", "ts": 1, "dur": 1, "args": {"correlation": 3}},
]
TRACE = {"traceEvents": EVENTS, "deviceProperties": [{"name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85e9}]}
MEASURED = {**logs.sound_files(), "kineto": json.dumps(TRACE)}
REQUESTS = {
    "csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n0.5,100,40\n1.5,300,60\n",
    "jsonl": '{"timestamp": 500, "input_length": 100, "output_length": 40}\n'
    '{"timestamp": 1500, "input_length": 300, "output_length": 60}\n',
}
STUDY = """outputs = ["step_time"]
axes = { model = ["llama-2-7b"], device = ["h100-sxm-80gb"], parallelism = { devices = [8], tp = [1, 2], pp = [1] } }
workload_parameters = { sequence_length = 2048, global_batch = 64 }
"""
JOBS = {
    "job.sh": "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 2 --hidden-size 256 --num-attention-heads 4 "
    "--seq-length 512 --micro-batch-size 1 --global-batch-size 8 --bf16 --vocab-size 1000\n",
    "job.yaml": "model:\n  num_layers: 2\n  hidden_size: 256\n  seq_length: 512\ntrain:\n  global_batch_size: 8\n"
    "  micro_batch_size: 1\nmixed_precision: bf16_mixed\n",
    "job.toml": '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 512\n'
    "[parallelism]\ntensor_parallel_degree = 2\n",
    "job.json": '{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, '
    '"zero_optimization": {"stage": 3}}\n',
}


@st.composite
def damaged(draw: Any, text: str) -> str:
    """A text of which some numbers, words or signs are others, a line stands twice, or the end is cut off."""
    parts = PARTS.split(text)
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 4]))):
        parts[draw(st.integers(0, len(parts) - 1))] = draw(st.sampled_from(WORDS))
    text = "".join(parts)
    if chance(draw, 15):
        lines = text.split("\n")
        text = "\n".join([*lines, draw(st.sampled_from(lines))])
    return text[: draw(st.integers(0, len(text)))] if chance(draw, 10) else text


@st.composite
def measurements(draw: Any) -> tuple[dict[str, str], list[str]]:
    """A file of measurements, and a command line that reads it."""
    kind = draw(st.sampled_from(sorted(MEASURED)))
    ending = {"kineto": "json", "vllm": "json", "genai-perf": "json", "csv": "csv"}.get(kind, "log")
    name = f"in/m.{ending}"
    text = draw(damaged(MEASURED[kind]))
    if kind == "kineto" and chance(draw, 60):
        return {name: text}, ["explain", "in/study.toml", "step_time", "--at", "best", "--trace", name]
    stated = ["--set", "model=llama-3.1-8b", "--set", "recompute=selective"]
    on = [] if kind == "torchtitan" else ["--on", "h100-sxm-80gb"]  # its log states the device
    command = draw(st.sampled_from([["validate"], ["records", "read", "-o", "out/x.jsonl"]]))
    return {name: text}, [*command, name, *(["--as", kind] if chance(draw, 70) else []), *stated, *on]


@st.composite
def requests(draw: Any) -> tuple[dict[str, str], list[str]]:
    """A study with a trace of requests, and a command line that reads both."""
    kind = draw(st.sampled_from(sorted(REQUESTS)))
    study = f"""workload = "inference"
outputs = ["time_to_first_token"]
trace = "trace.{kind}"
axes = {{ model = ["llama-3.1-8b"], device = ["h100-sxm-80gb"], parallelism = {{ devices = [1], tp = [1], pp = [1] }} }}
"""
    return {f"in/trace.{kind}": draw(damaged(REQUESTS[kind])), "in/served.toml": study}, ["plan", "in/served.toml"]


@st.composite
def jobs(draw: Any) -> tuple[dict[str, str], list[str]]:
    """A file of a job, and a command line that reads it."""
    name = draw(st.sampled_from(sorted(JOBS)))
    line = ["read-job", f"in/{name}", "--on", "h100-sxm-80gb", *(["-o", "out/x.toml"] if chance(draw, 50) else [])]
    return {f"in/{name}": draw(damaged(JOBS[name]))}, line


files = st.one_of(measurements(), measurements(), requests(), jobs())
