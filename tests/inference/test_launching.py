"""Servers without graphs, layers that draft, pages of hybrids and SGLang's reserve, each worked out by hand."""

import pytest

from .designs import evaluate, value

EAGER = {"software": "vllm", "model": "llama-3.1-8b", "batch": 1.0, "batch_rule": "given"}
HYBRID = {"mixer": "gated_delta_net", "batch_rule": "memory", "weight_precision": "bf16", "precision": "bf16"}


def test_eager_steps_wait_for_their_launches():
    """Of few sequences as long as the host takes, of many as long as the device; no graphs are held."""
    names = ("step_launches", "eager_launch_time", "busy_time", "late_launch_time", "pass_time", "engine_memory")
    graphs, eager = (evaluate(*names[1:], *names[:1], **EAGER, step_launching=how) for how in ("graphs", "eager"))
    host = eager["step_launches"] * eager["eager_launch_time"]
    assert 300 < eager["step_launches"] < 500  # 32 layers of about a dozen kernels
    assert graphs["late_launch_time"][1] == 0
    assert eager["late_launch_time"][1] == pytest.approx(host - eager["busy_time"][1])
    assert eager["pass_time"][1] - graphs["pass_time"][1] == pytest.approx(eager["late_launch_time"][1])
    assert graphs["engine_memory"] - eager["engine_memory"] == pytest.approx(0.5 * 2**30)
    many = evaluate("late_launch_time", **{**EAGER, "batch": 1024.0, "prompt_tokens": 4096.0}, step_launching="eager")
    assert many["late_launch_time"][1] == 0


def test_layers_that_draft_are_loaded_with_their_cache():
    """DeepSeek-V3 on 16 ranks: a layer with experts, a projection of 2h x h, and keys of one layer more."""
    given = {"model": "deepseek-v3", "software": "vllm", "device": "b200", "tp": 16.0, "ep": 16.0, "etp": 1.0}
    given |= {"weight_precision": "fp8", "batch_rule": "memory", "kv_precision": "bf16"}
    names = ("weight_memory", "rank_token_cache", "layer_token_cache", "expert_weight_memory", "stack_weight_memory")
    without, drafts = (evaluate(*names, **given, draft_modules=n) for n in (0.0, 1.0))
    layer = without["stack_weight_memory"] / 61 + without["expert_weight_memory"] / 58
    assert drafts["weight_memory"] - without["weight_memory"] == pytest.approx(layer + 2 * 7168**2 * 2)
    more = drafts["rank_token_cache"] - without["rank_token_cache"]
    assert more.sum() == pytest.approx(without["layer_token_cache"])
    assert not value("modules_exist", **given, draft_modules=2.0)


@pytest.mark.parametrize(
    ("model", "tp", "kv_precision", "tokens"),
    [("qwen3.5-27b", 1.0, "fp8", 1568), ("qwen3.5-27b", 2.0, "fp8", 1568), ("qwen3-next-80b-a3b", 2.0, "bf16", 1056)],
)
def test_pages_of_keys_are_as_large_as_states(model, tp, kv_precision, tokens):
    """1,568 is what vLLM logs for Qwen3.5-27B with 8-bit keys (0.13 % of padding); 1,056 with states in float32."""
    given = {**HYBRID, "model": model, "tp": tp, "kv_precision": kv_precision, "device": "h200-sxm-141gb"}
    q = evaluate("held_page_tokens", "state_padding", "cached_tokens", **given, software="vllm")
    assert q["held_page_tokens"] == tokens
    assert 1 <= q["state_padding"] < 1.02
    assert q["cached_tokens"][0] == tokens
    drafts = value("state_padding", **given, software="vllm", draft_tokens=3.0)
    assert drafts == pytest.approx(4 * q["state_padding"])
    other = evaluate("held_page_tokens", "state_padding", **given, software="sglang")
    assert (other["held_page_tokens"], other["state_padding"]) == (1, 1)


def test_rows_of_sparse_attention_have_656_bytes():
    """512 numbers of 8 bits with four float32 scales, and a rotary key of 64 numbers in 16 bits."""
    given = {"model": "deepseek-v3.2", "indexer": "top_k", "software": "vllm", "tp": 8.0, "device": "b200"}
    assert value("layer_token_cache", **given, kv_precision="fp8", batch_rule="memory") == 656


def test_sglang_leaves_memory_for_graphs_and_encoders_of_images():
    """H200: 512 + 1.5 x 8,192 + 2 x graphs + 128 MiB; with 24 layers of 1,152 of an encoder 0.9248 of the share."""
    given = {"model": "llama-3.1-8b", "software": "sglang", "device": "h200-sxm-141gb", "batch_rule": "memory"}
    for stated, graphs in ((0.0, 256), (64.0, 64)):
        reserve = value("unstated_reserve", **given, graph_batch_limit=stated)
        assert reserve == (512 + 1.5 * 8192 + 2 * graphs + 128) * 2**20
    plain, seeing = (value("static_share", **given, vision_hidden_size=width) for width in (0.0, 1152.0))
    assert seeing / plain == pytest.approx(0.95 * (1 - 0.1 * (1152**2 / 1024**2 - 1)))
    assert value("static_share", **given, static_memory_fraction=0.8, vision_hidden_size=1152.0) == 0.8
