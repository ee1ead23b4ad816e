"""Engines of serving questions: by which words they are stated, what their policies change, and what is written."""

import pytest

import perfgrid as pg
from perfgrid import PerfgridError
from perfgrid.answers.stacks import engine_named
from tests.inference.designs import value
from tests.test_bad_input import run

MODEL, DEVICE = "llama-3.1-8b", "h100-sxm-80gb"


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        ("vllm", "vllm"),
        ("vLLM 0.15", "vllm-0.14"),
        ("vLLM 0.19.1", "vllm"),
        ("vLLM 0.6.3", "vllm-2024"),
        ("vllm==0.11.2", "vllm-2025"),
        ("vllm@v0.8", "vllm-2025"),
        ("vllm-2025", "vllm-2025"),
        ("trtllm", "tensorrt-llm"),
        ("TRT-LLM 0.17", "tensorrt-llm-2024"),
        ("TensorRT-LLM 1.2", "tensorrt-llm"),
        ("trtllm[chunked_prompts=true]", "tensorrt-llm[chunked_prompts=true]"),
        ("SGLang 0.5", "sglang"),
        ("mine 2.1", "mine 2.1"),
    ],
)
def test_words_of_the_field(text, engine):
    assert engine_named(text, None) == engine_named(None, text) == engine


def test_versions_before_the_first_one_are_refused():
    with pytest.raises(PerfgridError, match=r"the catalog has this engine from version 0\.4 on"):
        engine_named("vllm 0.3.3", None)


def served(engine, rate=10.0, **options):
    return pg.serve(MODEL, DEVICE, 1, rate=rate, engine=engine, **options)


@pytest.mark.parametrize("option", ["engine", "software"])  # the former name
def test_software_that_trains_is_refused(option):
    with pytest.raises(PerfgridError, match=r"megatron-core is for training only; engines: .*sglang.*vllm"):
        pg.serve(MODEL, DEVICE, 1, **{option: "megatron-core"})


def test_an_engine_is_stated_once():
    with pytest.raises(PerfgridError, match="state the engine once"):
        served("vllm", software="sglang")


def test_policies_change_the_answer():
    """Prompts beside steps hold up tokens less, small budgets too; working ahead makes first tokens later."""
    load = {"model": MODEL, "batch_rule": "rate", "request_rate": 10.0, "prompt_tokens": 1000.0, "output_tokens": 500.0}

    def found(output, software, **policy):
        return value(output, software=software, **load, **policy)

    gap, first = "inter_token_latency_p99", "time_to_first_token"
    assert found(gap, "sglang", prefill_first=False) < found(gap, "sglang")
    assert found(gap, "vllm", prefill_chunk_tokens=512.0) < 0.8 * found(gap, "vllm")
    alone = {"step_overhead": 0.0, "sequence_overhead": 0.0}
    assert found(first, "vllm", **alone) > found(first, "vllm", **alone, asynchronous_scheduling=False)
    assert found(first, "sglang", polling_steps=10.0) > found(first, "sglang")
    long = {"prompt_tokens": 5000.0, "request_rate": 3.0}
    load |= long
    assert found(gap, "tensorrt-llm") != found(gap, "tensorrt-llm", chunked_prompts=True)


def test_an_engine_that_does_not_cut_prompts_refuses_long_ones():
    whole, cut = (served(engine, prompt=10_000, rate=0.2) for engine in ("trtllm", "trtllm[chunked_prompts=true]"))
    assert not whole.found.item()
    assert "does not cut prompts" in str(whole)
    assert cut.found.item()


@pytest.mark.parametrize(
    ("engine", "form", "written"),
    [
        ("sglang[prefill_first=false,polling_steps=10]", "sglang", ["--enable-mixed-chunk", "recv-interval 10"]),
        (
            "vllm[asynchronous_scheduling=false,prefill_chunk_tokens=2048]",
            "vllm",
            ["--no-async-scheduling", "--max-num-batched-tokens 2048"],
        ),
        ("trtllm[chunked_prompts=true]", "tensorrt-llm", ["enable_chunked_prefill: true"]),
        ("vllm[polling_steps=10]", "vllm", ["# not supported: polling_steps = 10"]),
    ],
)
def test_launches_state_the_policy(monkeypatch, capsys, engine, form, written):
    command = ("serve", MODEL, "--on", DEVICE, "--devices", "1", "--rate", "2", "--engine", engine, "--launch", form)
    status, out, _ = run(monkeypatch, capsys, *command)
    assert status == 0
    assert [text for text in written if text not in out] == []
    assert "(--engine)" not in out
    assert "prefill_first" not in out.partition("# ")[2] or "sglang" in engine


def test_an_engine_that_is_not_stated_is_named(monkeypatch, capsys):
    _, out, _ = run(monkeypatch, capsys, "serve", MODEL, "--on", DEVICE, "--devices", "1")
    assert "Assumed: vllm (--engine)" in out
