"""Memory against an enumeration of stored tensors."""

import pytest

from .cases import design
from .schedules import Pipeline, layers_of_chunks


def stored_of_a_layer(
    tokens, t, hidden, heads, kv_heads, head_dim, ffn, sequence, *, gated, dropout, flash, sp, recompute
):
    """(elements, bytes per element) of every tensor of one layer that is kept for the backward pass, on one rank."""
    replicated = tokens // t if sp else tokens
    if recompute == "full":
        return [(replicated * hidden, 2)]
    local_heads, local_keys = heads // t, max(kv_heads // t, 1)
    kept = []
    for _ in range(2):  # norm input, the input of the matrix after it
        kept += [(replicated * hidden, 2)] * 2
        if dropout:
            kept.append((replicated * hidden, 1))
    kept.append((tokens * local_heads * head_dim, 2))  # queries
    kept += [(tokens * local_keys * head_dim, 2)] * 2  # keys, values
    kept.append((tokens * local_heads * head_dim, 2))  # attention output
    kept += [(tokens * ffn // t, 2)] * (3 if gated else 2)
    scores = tokens // sequence * local_heads * sequence * sequence
    if flash:
        kept.append((tokens * local_heads, 4))
    elif recompute == "none":
        kept.append((scores, 2))
        if dropout:
            kept += [(scores, 1), (scores, 2)]
    return kept


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize("sp", [False, True])
@pytest.mark.parametrize("model", ["gpt3-175b", "llama-3.1-70b"])
def test_layer_activations_against_stored_tensors(model, recompute, flash, sp):
    gpt = model == "gpt3-175b"
    shape = (12288, 96, 96, 128, 49152) if gpt else (8192, 64, 8, 128, 28672)
    kept = stored_of_a_layer(
        2 * 4096, 8, *shape, 4096, gated=not gpt, dropout=gpt, flash=flash, sp=sp, recompute=recompute
    )
    q = design(
        model, microbatch=2.0, sequence_length=4096.0, recompute=recompute, flash_attention=flash, sequence_parallel=sp
    )
    assert q["layer_activations"] == sum(n * size for n, size in kept)


def test_modern_layer_in_closed_form():
    """h(12 + 4g) + 6f + 4·heads bytes per token for RMSNorm, rotary positions, SwiGLU, GQA and a fused kernel."""
    q = design("llama-3.1-8b", tp=1.0, sequence_length=4096.0, recompute="none")
    assert q["layer_activations"] / 4096 == 4096 * (12 + 4 * 8 / 32) + 6 * 14336 + 4 * 32


def test_device_memory_against_its_parts():
    pp, tp, dp, batch, chunks = 4, 2, 4, 64, 1
    q = design(
        "llama-3.1-8b",
        tp=float(tp),
        pp=float(pp),
        dp=float(dp),
        global_batch=float(batch),
        microbatch=1.0,
        sequence_length=4096.0,
        recompute="full",
        zero=1.0,
        chunks=float(chunks),
    )
    h, f, v, tokens, microbatches = 4096, 14336, 128256, 4096, batch // dp
    layer = (h * (4096 + 2 * 1024) + 4096 * h + 3 * h * f) // tp + 2 * h
    per_parameter = 2 + 4 + 12 / dp
    one_layer = stored_of_a_layer(
        tokens, tp, h, 32, 8, 128, f, 4096, gated=True, dropout=False, flash=True, sp=True, recompute="none"
    )
    gathered = 2 * tokens * h * 2
    found = {}
    for stage in range(pp):
        parameters = 8 * layer + (v * h // tp if stage in (0, pp - 1) else 0)
        state, kept = parameters * per_parameter, min(pp - stage, microbatches) * 8 * tokens // tp * h * 2
        head = 2 * tokens // tp * h * 2 + tokens * v // tp * 4 if stage == pp - 1 else 0
        found[stage, "loss"] = state + kept + head + gathered
        found[stage, "layer"] = state + kept + sum(n * size for n, size in one_layer) + gathered
    assert q["memory_per_device"] == pytest.approx(max(found.values()) + 2.5 * 2**30)
    parts = ("state_memory", "activation_memory", "working_memory", "reserved_memory")
    assert sum(q[name] for name in parts) == pytest.approx(q["memory_per_device"])
    assert max(found, key=lambda at: found[at]) == (3, "loss")
    assert q["working_memory"] == pytest.approx(gathered)


# Korthikanti et al. 2022, figure 7: activations in % of those without any technique, with tensor parallelism of 8
FIGURE_7 = {  # sequence parallelism, selective recomputation, both, full recomputation
    "megatron-22b": (66.84, 49.42, 16.18, 7.64),
    "gpt3-175b": (62.04, 56.53, 18.49, 8.71),
    "megatron-530b": (58.31, 62.04, 20.27, 9.42),
    "megatron-1t": (58.31, 62.04, 20.27, 9.42),
}


@pytest.mark.parametrize("model", FIGURE_7)
def test_relative_activations_of_figure_7(model):
    """Within 0.15 points, the width of a line in the figure."""

    def activations(recompute, sequence_parallel):
        q = design(model, recompute=recompute, sequence_parallel=sequence_parallel, flash_attention=False)
        return q["layer_activation_memory"]

    whole = activations("none", False)
    techniques = (("none", True), ("selective", False), ("selective", True), ("full", False))
    for technique, percent in zip(techniques, FIGURE_7[model], strict=True):
        assert 100 * activations(*technique) / whole == pytest.approx(percent, abs=0.15), technique


def fullest_stage(q, held, in_flight, per_parameter):
    """State and activations of the fullest stage, stage by stage."""
    worst = 0.0
    for stage, (layers, microbatches) in enumerate(zip(held, in_flight, strict=True)):
        first, last = stage == 0, stage == len(held) - 1
        parameters = layers * q["rank_layer_parameters"]
        parameters += q["rank_embedding_parameters"] * first + q["rank_head_parameters"] * last
        activations = microbatches * (layers * q["layer_activations"] + q["embedding_activations"] * first)
        worst = max(worst, parameters * per_parameter + activations + q["head_activations"] * last)
    return worst


@pytest.mark.parametrize(
    ("schedule", "pp", "chunks"),
    [
        ("1f1b", 1, 1),
        ("1f1b", 2, 1),
        ("1f1b", 4, 1),
        ("1f1b", 8, 1),
        ("1f1b", 16, 1),
        ("1f1b", 16, 2),
        ("1f1b", 16, 8),
        ("gpipe", 1, 1),
        ("gpipe", 4, 1),
        ("gpipe", 16, 1),
    ],
)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_fullest_of_uneven_stages(schedule, pp, chunks, recompute):
    """126 layers on any pipeline; microbatches in flight as the schedule executed event by event keeps them."""
    microbatches = 2 * pp
    q = design(
        "llama-3.1-405b",
        pp=float(pp),
        chunks=float(chunks),
        global_batch=float(microbatches),
        schedule=schedule,
        recompute=recompute,
    )
    held = [sum(chunk) for chunk in layers_of_chunks(126, pp, chunks)]
    pipeline = Pipeline([[1.0] * chunks] * pp, [[2.0] * chunks] * pp, schedule=schedule)
    pipeline.run(microbatches)
    expected = fullest_stage(q, held, pipeline.kept, 2 + 4 + 12)
    assert q["state_memory"] + q["activation_memory"] == pytest.approx(expected, rel=1e-12)


def test_a_shared_table_is_stored_once_per_stage():
    alone, split = design("megatron-22b"), design("megatron-22b", pp=2.0)
    table = (51200 // 8 + 2048) * 6144
    assert alone["first_stage_parameters"] == 48 * alone["rank_layer_parameters"] + table
    assert split["last_stage_parameters"] == 24 * split["rank_layer_parameters"] + 51200 // 8 * 6144


@pytest.mark.parametrize("modules", [0.0, 1.0])
def test_the_fullest_stage_exists(modules):
    """Dense parameters and those of experts are of one device, the one that holds most of both."""
    q = design("deepseek-v3", tp=1.0, pp=4.0, dp=8.0, ep=8.0, global_batch=64.0, mtp_layers=modules)
    held = {(q[f"{s}_stage_parameters"], q[f"{s}_stage_expert_parameters"]) for s in ("first", "middle", "last")}
    assert (q["stage_parameters"], q["stage_expert_parameters"]) == max(held, key=sum)
    assert len(held) == 3
    assert q["stage_parameters"] < max(dense for dense, _ in held) or modules == 0


def test_recomputation_never_needs_more_stored_activations():
    for flash in (True, False):
        none, selective, full = (
            design(recompute=r, flash_attention=flash, pp=8.0, global_batch=64.0)["activation_memory"]
            for r in ("none", "selective", "full")
        )
        assert full < selective <= none


@pytest.mark.parametrize("flash", [True, False])
def test_a_stated_number_of_layers_is_recomputed(flash):
    """0 of the 8 layers of a stage are none, all of them are full; between them time and activations grow evenly."""
    given = {"model": "llama-3.1-8b", "tp": 2.0, "pp": 4.0, "global_batch": 64.0, "flash_attention": flash}
    given |= {"host_launch_time": 0.0}
    none, full = (design(**given, recompute=r) for r in ("none", "full"))
    found = {n: design(**given, recompute="layers", recompute_layers=float(n)) for n in (0, 1, 4, 8, 100)}
    for n, q in found.items():
        share = min(n / 8, 1)
        assert q["layer_recomputed"] == q["core_recomputed"] == share
        for name in ("layer_activations", "layer_activation_memory", "recompute_time", "hardware_flops_per_token"):
            expected = none[name] + share * (full[name] - none[name])
            assert q[name] == pytest.approx(expected, rel=1e-12), (n, name)
    for n, whole in ((0, none), (8, full), (100, full)):
        for name in ("step_time", "memory_per_device", "recompute_choice"):
            assert found[n][name] == pytest.approx(whole[name], rel=1e-12), (n, name)
    assert found[4]["recompute_choice"] == 2  # full in part
    assert none["step_time"] < found[1]["step_time"] < found[4]["step_time"] < full["step_time"]


def test_too_large_designs_exceed_and_keep_their_value():
    q = design("llama-3.1-405b", tp=8.0)
    assert not q["fits_memory"]
    assert q["memory_headroom"] < 0 < q["step_time"]


def test_a_parallel_block_keeps_one_norm():
    """PaLM: one input and one output of a norm instead of two, here with sequence parallelism over eight ranks."""
    serial, parallel = (design("llama-3.1-8b", tp=8.0, dp=1.0, parallel_block=p) for p in (False, True))
    saved = 2 * 2 * serial["sharded_tokens"] * 4096
    assert serial["layer_linear_activations"] - parallel["layer_linear_activations"] == saved


def test_selective_recomputation_of_a_share_of_the_layer():
    """torchtitan repeats every second product: half of the layer's activations and of its forward pass."""
    given = {"model": "llama-3.1-8b", "tp": 1.0, "sequence_length": 4096.0}
    none, whole, half = (design(**given, recompute=r, selective_share=0.5) for r in ("none", "full", "selective"))
    linear, stored = none["layer_linear_activations"], none["layer_input_activations"]
    assert half["layer_activations"] == pytest.approx((linear + stored) / 2 + none["layer_score_activations"])
    assert half["recompute_time"] == pytest.approx(whole["recompute_time"] / 2)
    assert design(**given, software="torchtitan", zero=3.0)["layer_recomputed"] == 0.5
