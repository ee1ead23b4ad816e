"""Latent attention against hand-worked figures of DeepSeek-V3, loops over blocks and enumerations of stored tensors."""

import math

import numpy as np
import pytest

from perfgrid.formulas import INNER
from perfgrid.formulas.kernels import flash

from .cases import design, rows
from .test_attention import blocks_by_loop

RESOURCE = INNER.position("resource")
H, HEADS, Q_LATENT, KV_LATENT, NOPE, ROPE, V = 7168, 128, 1536, 512, 128, 64, 128
MATRICES = {  # of DeepSeek-V3's attention (columns, depth), one for each product
    "qkv": (Q_LATENT + KV_LATENT + ROPE, H),
    "query_up": (HEADS * (NOPE + ROPE), Q_LATENT),
    "key_up": (HEADS * (NOPE + V), KV_LATENT),
    "attention_output": (H, HEADS * V),
}


def deepseek(**changes):
    given = {"tp": 1.0, "sequence_length": 4096.0, "mtp_layers": 0.0, **changes}
    return design("deepseek-v3", "h100-sxm-80gb", **given)


def test_parameters_of_deepseek_v3():
    """11 010 048 + 4 128 768 down, 37 748 736 + 16 777 216 up, 117 440 512 out: 187 105 280 in each of 61 layers."""
    q = deepseek()
    assert q["attention_matrix_parameters"] == 187_105_280
    assert q["rank_attention_parameters"] == sum(n * k for n, k in MATRICES.values()) == 187_105_280
    eight = deepseek(tp=8.0)
    replicated = MATRICES["qkv"][0] * H
    assert 8 * eight["rank_attention_parameters"] == 187_105_280 + 7 * replicated


@pytest.mark.parametrize(("tp", "sequence_parallel"), [(1.0, False), (8.0, True), (8.0, False)])
def test_flops_of_the_kernels_are_those_of_the_model(tp, sequence_parallel):
    """Six per weight and token; without sequence parallelism every rank makes all latents."""
    q = deepseek(tp=tp, sequence_parallel=sequence_parallel)
    m, n, k = (rows(q[f"gemm_{x}"], "phase", "product") for x in ("rows", "columns", "depth"))
    counts = rows(INNER.at(q["layer_gemms"], layer_kind="experts"), "product")
    flops = tp * sum(2 * m[key] * n[key] * k[key] * counts[key[1]] for key in m if key[1] in MATRICES)
    repeated = 0 if sequence_parallel or tp == 1 else 6 * (tp - 1) * math.prod(MATRICES["qkv"])
    assert flops / 4096 == pytest.approx(6 * 187_105_280 + repeated, rel=1e-12)
    assert q["core_forward_flops"] == 2 * 4096 * HEADS * (NOPE + ROPE + V)
    if tp == 1:
        for kernel, shape in MATRICES.items():
            assert (n["forward", kernel], k["forward", kernel]) == shape
            assert m["forward", kernel] == 4096


def test_latents_do_not_run_where_there_are_none():
    q = design("llama-3.1-8b")
    counts = rows(q["layer_gemms"], "product")
    assert counts["query_up"] == counts["key_up"] == 0
    assert rows(q["layer_streams"], "stream_kernel")["latent_norm"] == 0
    uncompressed = rows(INNER.at(deepseek(q_lora_rank=0.0)["layer_gemms"], layer_kind="dense"), "product")
    assert (uncompressed["query_up"], uncompressed["key_up"]) == (0, 1)


def test_queries_that_are_not_compressed_come_from_the_input():
    q = deepseek(q_lora_rank=0.0, tp=8.0)
    assert q["rank_qkv_width"] == HEADS * (NOPE + ROPE) // 8 + KV_LATENT + ROPE
    assert rows(q["gemm_tokens"], "product")["qkv"] == 4096
    assert q["latent_message"] == q["tp_message"]
    assert q["rank_attention_parameters"] == q["rank_qkv_width"] * H + HEADS * (512 * (NOPE + V) + H * V) // 8


@pytest.mark.parametrize("phase", ["forward", "input_gradient"])
def test_fused_kernel_with_narrow_values_against_a_loop(phase):
    """Products over 192 for scores and their gradients, over 128 for values: block by block and head by head."""
    q = deepseek(sequence_length=2048.0, tp=8.0)
    held = 2 * (192 + 128) * 2  # bytes of a query, a key, a value and a result
    block = min(128, 228 * 1024 // held // 16 * 16)
    assert q["attention_block"] == block
    flops = added = streamed = 0.0
    for _ in range(HEADS // 8):
        for _ in range(blocks_by_loop(2048, block)):
            products = (192, 128) if phase == "forward" else (192, 128, 192, 192, 128)
            flops += sum(2 * block * block * width for width in products)
            streamed += block * (192 + 128) * 2
            added += 0 if phase == "forward" else block * 192 * 4
    assert 2 * rows(q["flash_volume"], "phase", "mask")[phase, "whole"] == pytest.approx(flops)
    blocks = flops / (2 * block**2 * sum(products))  # of all heads
    assert rows(flash.read_from_cache(blocks, block, 192, 128, 2), "phase")[phase] == pytest.approx(streamed)
    assert rows(flash.added_in_cache(blocks, block, 192, 4), "phase")[phase] == pytest.approx(added)
    tokens = 16 * 2048
    queries, keys, values, results = (2 * tokens * width for width in (192, 192, 128, 128))
    if phase == "forward":
        exposed = queries + results + 4 * tokens
    else:
        exposed = 2 * (keys + values) + 2 * results + 2 * 2 * queries + queries + 4 * tokens
    assert rows(q["flash_exposed_traffic"], "phase", "mask")[phase, "whole"] == exposed


def test_equal_widths_are_full_attention():
    """With values as wide as queries the fused and the unfused kernels are those of heads of their own."""
    for fused in (True, False):
        latent = deepseek(v_head_dim=192.0, flash_attention=fused)
        full = deepseek(kv_lora_rank=0.0, head_dim=192.0, flash_attention=fused)
        for name in ("flash_time", "core_product_time", "core_busy_time", "layer_score_activations"):
            assert np.array_equal(latent[name], full[name]), name


def stored(tokens, t, sp, *, expanded):
    """Bytes of the tensors that one latent attention block keeps besides the residual stream, on one rank."""
    own = tokens // t if sp else tokens
    kept = [own * Q_LATENT, own * KV_LATENT]  # as projected: inputs of their norms
    if expanded:
        kept += [own * Q_LATENT, own * KV_LATENT]  # normalised: inputs of the projections up
        kept.append(tokens * HEADS // t * (NOPE + ROPE))  # queries
        kept += [tokens * HEADS // t * (NOPE + ROPE), tokens * HEADS // t * V]  # keys and values
    kept.append(tokens * HEADS // t * V)  # results
    return 2 * sum(kept)


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("sp", [False, True])
def test_activations_against_stored_tensors(recomputed, sp):
    q = deepseek(tp=8.0, sequence_parallel=sp, recompute_latents=recomputed, recompute="none", microbatch=2.0)
    assert q["attention_activations"] == stored(8192, 8, sp, expanded=not recomputed)
    again = q["recomputed_activations"]
    assert np.all(again == (2 * 8192 * HEADS // 8 * (2 * (NOPE + ROPE) + V) if recomputed else 0))


def test_expanding_latents_again_takes_their_forward_time():
    kept, dropped = (deepseek(recompute_latents=r, tp=8.0) for r in (False, True))
    seconds = rows(np.sum(kept["gemm_time"], axis=RESOURCE), "phase", "product")
    streams = rows(np.sum(kept["stream_time"], axis=RESOURCE), "phase", "stream_kernel")
    again = sum(seconds["forward", kernel] for kernel in ("query_up", "key_up"))
    again += sum(streams["forward", kernel] for kernel in ("latent_norm", "rotary"))
    gathered = kept["latent_gather_time"]
    assert np.ravel(dropped["layer_time"] - kept["layer_time"]) == pytest.approx(2 * [again + gathered], rel=1e-9)
    repeated = 61 * 2 * (Q_LATENT * HEADS * (NOPE + ROPE) + KV_LATENT * HEADS * (NOPE + V))
    assert dropped["hardware_flops_per_token"] - kept["hardware_flops_per_token"] == repeated
    full = [deepseek(recompute_latents=r, recompute="full") for r in (False, True)]
    assert full[0]["step_time"] == full[1]["step_time"]
    assert full[0]["memory_per_device"] == full[1]["memory_per_device"]


def test_single_modules_of_a_dense_layer():
    """Dropped outputs: 2h bytes of each of two norms, 2f of the activation function; their kernels run again."""
    tokens, h, f = 8192 * 2, 4096, 14336
    given = {"tp": 1.0, "microbatch": 2.0, "sequence_length": 8192.0, "recompute": "none"}
    kept = design("llama-3.1-8b", "h100-sxm-80gb", **given)
    streams = rows(np.sum(kept["stream_time"], axis=RESOURCE), "phase", "stream_kernel")
    for flag, saved, kernel, count in (
        ("recompute_norms", 2 * 2 * h, "norm", 2),
        ("recompute_activation_function", 2 * f, "activation", 1),
    ):
        q = design("llama-3.1-8b", "h100-sxm-80gb", **given, **{flag: True})
        assert kept["layer_activations"] - q["layer_activations"] == tokens * saved
        again = count * streams["forward", kernel]
        assert q["layer_time"] - kept["layer_time"] == pytest.approx(again, rel=1e-6)


def test_activation_function_of_experts_again():
    """DeepSeek-V3: results of the function, 18 432 in a dense layer, 8 + 1 times 2048 with experts; its kernels."""
    given = {"recompute": "none", "expert_imbalance": 1.0, "ep": 8.0, "dp": 8.0}
    kept, dropped = (deepseek(recompute_activation_function=r, **given) for r in (False, True))
    results = [2 * 4096 * 18432, 2 * 4096 * (8 + 1) * 2048]
    assert np.ravel(kept["layer_activations"] - dropped["layer_activations"]) == pytest.approx(results)
    plain = rows(np.sum(kept["stream_time"], axis=RESOURCE), "phase", "stream_kernel")
    experts = rows(np.sum(kept["expert_stream_time"], axis=RESOURCE), "phase", "expert_stream_kernel")
    with_experts = plain["forward", "shared_activation"] + experts["forward", "expert_activation"]
    again = dropped["layer_recompute_kernel_time"] - kept["layer_recompute_kernel_time"]
    assert np.ravel(again) == pytest.approx([plain["forward", "activation"], with_experts])


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_narrow_latents_are_exchanged_in_place_of_the_input(sequence_parallel):
    """Every tensor that a rank of eight sends for one layer, ring by ring (values per token)."""
    q = deepseek(tp=8.0, sequence_parallel=sequence_parallel, recompute="none")
    latents = Q_LATENT + KV_LATENT + ROPE
    if sequence_parallel:
        sent = [latents, H, H, H]  # forward: latents and the feed-forward input gathered, two results scattered
        sent += [H, latents, H, H]  # backward: output gradients and inputs gathered
        sent += [latents, H]  # input gradients scattered
    else:
        sent = [2 * H, 2 * H]  # results are all-reduced
        sent += [2 * latents, 2 * H]  # and input gradients
    assert q["layer_tp_bytes"] == pytest.approx(7 / 8 * 2 * 4096 * sum(sent), rel=1e-12)
    assert q["attention_gathering_time"] <= q["tp_gathering_time"]
    assert q["attention_reduction_time"] < q["tp_reduction_time"]
    assert q["latent_message"] == latents / H * q["tp_message"]
