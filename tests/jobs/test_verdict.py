"""The verdict that ends `perfgrid read-job`: what a server holds without a load, what a job reaches with one."""

import json

import pytest
from typer.testing import CliRunner

import perfgrid as pg
from perfgrid.catalog import load_catalog
from perfgrid.cli.main import app
from perfgrid.jobs.kinds import UNMODELLED
from perfgrid.jobs.read import read_job
from perfgrid.jobs.verdict import verdict_of
from tests.each import each

CATALOG = load_catalog()
GIB = 2**30
COUNTED = 0.99 * 80 * GIB  # of an H100, as its driver counts
QWEN_TOKEN = 64 * 2 * 8 * 128 * 2  # bytes of cache of Qwen3 32B: layers, keys and values, heads, width, bytes


def run(*arguments):
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, done.output + str(done.exception)
    return done.stdout


def held(text, device="h100-sxm-80gb", **options):
    (found,) = verdict_of(read_job(text, **options), device, CATALOG).held
    return found


def test_a_server_without_a_load_by_hand():
    """Llama 3.1 8B in 16 bits on one device of 80 GiB: 8.03e9 parameters, 128 KiB of cache a token."""
    found = held("vllm serve meta-llama/Llama-3.1-8B-Instruct --gpu-memory-utilization 0.9 --max-model-len 65536")
    assert found.weights == pytest.approx(2 * 8.03e9, rel=0.002)
    assert found.counted == pytest.approx(COUNTED)
    room = 0.9 * COUNTED - found.weights - found.working
    assert found.cache == pytest.approx(room, rel=1e-9)
    token = 32 * 2 * 8 * 128 * 2
    assert found.cache_tokens == pytest.approx(room / token, abs=16)
    assert (found.context, found.limit, found.starts) == (65536, 65536, True)
    assert found.sequences == int(room / (65536 * token))


def test_each_stated_memory_key_changes_the_verdict():
    serve = "vllm serve Qwen/Qwen3-8B"
    base = held(f"{serve} --gpu-memory-utilization 0.9")
    assert held(f"{serve} --gpu-memory-utilization 0.5").cache == pytest.approx(base.cache - 0.4 * COUNTED)
    eight_bits = held(f"{serve} --gpu-memory-utilization 0.9 --kv-cache-dtype fp8")
    assert eight_bits.cache_tokens == pytest.approx(2 * base.cache_tokens, rel=1e-3)
    assert held(f"{serve} --kv-cache-memory-bytes 8G").cache == 8 * GIB
    static = held("python -m sglang.launch_server --model-path Qwen/Qwen3-8B --mem-fraction-static 0.8")
    assert static.cache == pytest.approx(0.8 * (COUNTED - 0.8 * GIB) - static.weights)
    free = held("trtllm-serve Qwen/Qwen3-8B --kv_cache_free_gpu_memory_fraction 0.5")
    assert free.cache == pytest.approx(0.5 * (COUNTED - 0.75 * GIB - free.weights - free.working))


def test_a_server_that_does_not_start_says_what_it_lacks():
    """vLLM starts where one request of the longest context fits; SGLang takes shorter ones."""
    text = "vllm serve Qwen/Qwen3-32B --gpu-memory-utilization 0.85 --max-model-len 40960"
    found = held(text)
    assert not found.starts
    assert found.margin == pytest.approx(found.cache - 40960 * QWEN_TOKEN, rel=1e-6)
    assert found.context == pytest.approx(found.cache / QWEN_TOKEN, abs=16)
    assert held(text.replace("40960", str(found.context))).starts
    assert not held(text.replace("40960", str(found.context + 32))).starts
    auto = held(text.replace("40960", "auto"))
    assert (auto.starts, auto.context) == (True, auto.limit)
    shorter = held("python -m sglang.launch_server --model-path Qwen/Qwen3-32B --mem-fraction-static 0.85")
    assert (shorter.starts, shorter.context < shorter.limit) == (True, True)


def test_weights_that_do_not_fit_leave_no_cache():
    none = held("vllm serve Qwen/Qwen3-32B --gpu-memory-utilization 0.9", device="rtx-4090")
    assert (none.starts, none.cache, none.context, none.sequences) == (False, 0, 0, 0)
    assert none.room == pytest.approx(0.9 * none.counted - none.weights - none.working)
    assert none.margin == pytest.approx(none.room - 40960 * QWEN_TOKEN)


SERVER = "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2 --max-num-seqs 64 --cpu-offload-gb 4\n"
LOAD = ("--set", "prompt_tokens=1000", "--set", "output_tokens=200", "--set", "batch=32")


def test_the_verdict_of_a_server_under_a_load_is_that_of_best(tmp_path):
    script, study = tmp_path / "serve.sh", tmp_path / "job.toml"
    script.write_text(SERVER)
    asked = ("read-job", script, "--on", "h100-sxm-80gb", *LOAD)
    found = json.loads(run(*asked, "-o", study, "--json"))["verdict"]
    best = pg.best(pg.load_study(study), intervals=True).squeeze()
    assert found["fits"] is True
    reached = found["reached"]["output_tokens_per_second"]
    assert reached["value"] == pytest.approx(2 * float(best.output_tokens_per_second_per_device), rel=1e-12)
    ends = 2 * best.output_tokens_per_second_per_device_interval.values
    assert reached["interval"] == pytest.approx(ends.tolist(), rel=1e-9)
    assert found["reached"]["time_to_first_token"]["value"] == pytest.approx(float(best.time_to_first_token), rel=1e-12)
    assert found["memory"] == pytest.approx(float(best.memory_per_device), rel=1e-12)


def test_the_screen_of_a_server(tmp_path):
    script = tmp_path / "serve.sh"
    script.write_text(SERVER)
    asked = ("read-job", script, "--on", "h100-sxm-80gb")
    shown = run(*asked, *LOAD)
    assert "under the load" in shown
    assert "Not counted in this verdict: --cpu-offload-gb 4" in shown
    alone = " ".join(run(*asked).split())
    assert "sequences at full length" in alone
    assert "Throughput and latencies: the configuration states no prompt_tokens, output_tokens, load: give" in alone
    assert "Verdict: name the device" in run("read-job", script)


def test_a_request_beyond_the_limit_of_the_server_is_refused_by_its_study():
    load = {"prompt_tokens": 1000, "output_tokens": 200, "batch": 4}
    job = read_job("vllm serve Qwen/Qwen3-8B --max-model-len 1024", stated=load)
    found = verdict_of(job, "h100-sxm-80gb", CATALOG)
    assert (found.fits, found.reached) == (False, None)
    assert "more tokens than the server takes" in found.why_not[0]


TRAINING = (
    "torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --tensor-model-parallel-size 4 --micro-batch-size 1 "
    "--global-batch-size 128 --seq-length 4096 --bf16 --use-distributed-optimizer\n"
)


def test_the_verdict_of_a_training_job_is_that_of_best(tmp_path):
    script, study = tmp_path / "run.sh", tmp_path / "job.toml"
    script.write_text(TRAINING)
    asked = ("read-job", script, "--model", "llama-3.1-8b", "--on", "h100-sxm-80gb")
    found = json.loads(run(*asked, "-o", study, "--json"))["verdict"]
    best = pg.best(pg.load_study(study), intervals=True).squeeze()
    step, tokens = (found["reached"][name] for name in ("step_time", "tokens_per_second"))
    assert step["value"] == pytest.approx(float(best.step_time), rel=1e-12)
    assert step["interval"] == pytest.approx(best.step_time_interval.values.tolist(), rel=1e-9)
    assert tokens["value"] == pytest.approx(128 * 4096 / float(best.step_time), rel=1e-9)
    assert tokens["interval"][0] < tokens["value"] < tokens["interval"][1]
    assert (found["devices"], found["fits"]) == (16, True)
    assert "time per step" in run(*asked)


def test_a_training_job_that_does_not_fit_has_the_reason(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(
        TRAINING.replace("--use-distributed-optimizer", "").replace("-parallel-size 4 ", "-parallel-size 1 ")
    )
    asked = ("read-job", script, "--model", "llama-3.1-70b", "--on", "h100-sxm-80gb")
    found = json.loads(run(*asked, "--json"))["verdict"]
    assert (found["fits"], found["reached"]) == (False, None)
    assert found["memory"] > found["capacity"]
    assert "exceed" in found["why_not"][0]
    shown = run(*asked)
    assert "no: " in shown
    assert "short by" in shown
    script.write_text(TRAINING.replace("--seq-length 4096 ", ""))
    shown = " ".join(run(*asked).split())
    assert "Verdict: the configuration states no sequence_length: give --set sequence_length" in shown


def test_two_pools_have_a_verdict_each(tmp_path):
    """With the interval that suggestions give of the job, not that of the joined times alone."""
    script = tmp_path / "graph.sh"
    worker = "python3 -m dynamo.vllm --model Qwen/Qwen3-8B --tensor-parallel-size"
    script.write_text(f"{worker} 2 --disaggregation-mode prefill &\n{worker} 4 --disaggregation-mode decode\n")
    asked = ("read-job", script, "--on", "h100-sxm-80gb", *LOAD, "--suggest", "--json")
    found = json.loads(run(*asked))
    verdict = found["verdict"]
    assert [(one["pool"], one["devices"]) for one in verdict["held"]] == [("prefill", 2), ("decode", 4)]
    reached = verdict["reached"]["output_tokens_per_second"]
    assert reached["value"] == pytest.approx(found["suggestions"]["value"])
    assert reached["interval"] == pytest.approx(found["suggestions"]["interval"])


@each(
    "command, named",
    [
        ("vllm serve meta-llama/Llama-3.1-8B --enforce-eager", []),
        ("vllm serve meta-llama/Llama-3.1-8B -O0 --no-enforce-eager", ["O 0"]),
        (
            "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B --disable-cuda-graph-padding",
            ["--disable-cuda-graph-padding true"],
        ),
        ("trtllm-serve meta-llama/Llama-3.1-8B", []),
    ],
)
def test_what_changes_the_time_of_a_server_and_is_not_modelled_is_named(command, named):
    job = read_job(command)
    assert [f"{key} {value}" for key, value, why in job.ignored if why.startswith(UNMODELLED)] == named


def test_a_server_of_an_illegal_layout_does_not_start():
    """Six ranks do not divide 32 heads, however much memory is left; four do."""
    text = "vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size "
    found = held(text + "6")
    assert not found.starts
    assert found.margin > 0
    assert found.why_not[0] == "tensor-parallel ranks do not divide the attention heads"
    assert (held(text + "4").starts, held(text + "4").why_not) == (True, ())
