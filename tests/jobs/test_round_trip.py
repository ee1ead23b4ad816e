"""A launch that `serve` writes, read back by ``read-job``, starts, and has the cache that was predicted."""

import pytest
from typer.testing import CliRunner

from perfgrid.catalog import load_catalog
from perfgrid.cli.main import app
from perfgrid.jobs.placed import on_device_of
from perfgrid.jobs.read import read_job
from perfgrid.jobs.verdict import held_by
from tests.each import each

CATALOG = load_catalog()
ENGINE = ("weight_memory", "workspace_memory", "reserved_memory", "communicator_memory", "graph_memory")
QUESTIONS = [  # engine, model, device, devices, further options of the question
    ("vllm", "llama-3.1-70b", "h100-sxm-80gb", 2, {"prompt": 3000, "output": 300}),
    ("vllm", "qwen3-32b", "a100-sxm-80gb", 1, {"clients": 6}),
    ("vllm", "gpt-oss-120b", "h100-sxm-80gb", 2, {"rate": 4.0}),
    ("sglang", "qwen3-next-80b-a3b", "h200-sxm-141gb", 2, {"clients": 16}),
    ("tensorrt-llm", "llama-3.1-8b", "rtx-4090", 1, {"prompt": 500, "output": 100}),
]
MORE = [
    ("vllm", "deepseek-v3", "h200-sxm-141gb", 8, {"prompt": 8000, "output": 1000}),
    ("vllm", "qwen3.5-35b-a3b", "h100-sxm-80gb", 1, {"rate": 1.0}),
    ("vllm", "qwen3-30b-a3b", "mi300x", 1, {}),
    ("sglang", "deepseek-v3", "b200", 8, {"clients": 256}),
    ("sglang", "gpt-oss-20b", "h100-sxm-80gb", 1, {"rate": 2.0}),
    ("tensorrt-llm", "qwen3-235b-a22b", "h200-sxm-141gb", 8, {}),
]


def check(folder, answers, engine, model, device, devices, options):
    """The cache of the best design, and that of its launch."""
    words = [f"--{name}={value}" for name, value in options.items()]
    file = folder / ("launch.yaml" if engine == "tensorrt-llm" else "launch.sh")
    asked = ["serve", model, "--on", device, "--devices", str(devices), "--engine", engine, *words]
    done = CliRunner().invoke(app, [*asked, "--launch", f"{engine}={file}"])
    assert done.exit_code == 0, done.output
    best = [*answers.values()][-1].squeeze()
    predicted = float(best["memory_limit"]) - sum(float(best[name]) for name in ENGINE)
    job = on_device_of(read_job(file.read_text(), model=model), device, CATALOG)
    held = held_by("", job, device, CATALOG)
    assert held.starts
    assert held.cache == pytest.approx(predicted, rel=1e-6)


@each("question", QUESTIONS)
def test_a_written_launch_starts_with_the_same_cache(tmp_path, answers, question):
    check(tmp_path, answers, *question)


@pytest.mark.slow
@each("question", MORE)
def test_more_written_launches_start_with_the_same_cache(tmp_path, answers, question):
    check(tmp_path, answers, *question)
