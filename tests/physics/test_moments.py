"""Moments of a training step against loops over every tensor that is alive at each; and against PyTorch."""

import json
from pathlib import Path

import pytest

from perfgrid.formulas.training.moments import MOMENTS

from .cases import design, rows

LAYERS, HIDDEN, FFN, VOCABULARY = 32, 4096, 11008, 32000
BASE = {
    "model": "llama-2-7b",
    "device": "h200",
    "devices": 1.0,
    "tp": 1.0,
    "dp": 1.0,
    "global_batch": 1.0,
    "sequence_parallel": False,
}
PARTS = ("state_memory", "activation_memory", "working_memory", "reserved_memory")
MATRICES = {  # of a layer: rows, columns
    **dict.fromkeys(("q", "k", "v", "o"), (HIDDEN, HIDDEN)),
    **dict.fromkeys(("gate", "up"), (HIDDEN, FFN)),
    "down": (FFN, HIDDEN),
}


def eager_layer(tokens, mode, rank):
    """Bytes of every tensor that the layers of Transformers keep for the backward pass, by name."""
    wide, lora = mode == "autocast", mode == "lora"
    kept = {"statistics of attention": tokens * HIDDEN // 128 * 4}
    for norm in ("first", "second"):
        kept[f"float32 input of the {norm} norm"] = tokens * HIDDEN * 4
        if not lora:  # the gradient of its weight asks for the quotient, in the format of the stream
            kept[f"quotient of the {norm} norm"] = tokens * HIDDEN * (4 if wide else 2)
    for name in ("q", "k", "v", "result of attention"):
        kept[name] = tokens * HIDDEN * 2
    for name in ("gate", "activated gate", "up"):
        kept[name] = tokens * FFN * 2
    if mode == "pure":  # products share their input
        kept["input of q, k and v"] = kept["input of gate and up"] = tokens * HIDDEN * 2
    else:  # a converted copy for every product, or its adapter; that of o is the result of attention, but for adapters
        for name in ("q", "k", "v", "gate", "up") + (("o",) if lora else ()):
            kept[f"input of {name}"] = tokens * HIDDEN * 2
    kept["input of down"] = tokens * FFN * 2
    for name, shape in MATRICES.items():
        weights = rank * sum(shape) if lora else shape[0] * shape[1]
        kept[f"16-bit copy of {name}"] = 0 if mode == "pure" else 2 * weights
    return kept


def alive(moment, tokens, mode, rank, checkpointed):
    """Bytes of what is alive at a moment of a step of one microbatch, by name."""
    lora, size = mode == "lora", 4 if mode == "autocast" else 2
    shapes = [shape for shape in MATRICES.values() for _ in range(LAYERS)]
    norms, tables = 2 * LAYERS * HIDDEN, 2 * VOCABULARY * HIDDEN
    whole = sum(m * n for m, n in shapes) + norms + tables
    trained = sum(rank * (m + n) for m, n in shapes) if lora else whole
    wide = 2 if mode == "pure" else 4
    found = {"weights": whole * size, "optimizer": trained * 2 * wide}
    if lora:
        found["adapters"] = trained * 4
    layer = eager_layer(tokens, mode, rank)
    logits = tokens * VOCABULARY
    if moment in ("gradients_complete", "optimizer_step"):
        found["gradients"] = trained * wide
    if moment == "optimizer_step":
        largest = rank * FFN if lora else VOCABULARY * HIDDEN
        found |= {"root of the second moment": wide * largest, "its quotient": wide * largest}
        return found
    if moment != "gradients_complete":
        each = [tokens * HIDDEN * (4 if mode == "autocast" else 2)] if checkpointed else list(layer.values())
        found |= {(i, j): bytes_ for i in range(LAYERS) for j, bytes_ in enumerate(each)}
    if moment in ("layer_backward", "gradients_complete") and checkpointed:
        found |= {f"recomputed {name}": bytes_ for name, bytes_ in layer.items()}
    if moment in ("forward_end", "loss_gradient"):
        quotient = {"lora": 0, "pure": 2, "autocast": 4}[mode]
        found |= {"input of the head": tokens * HIDDEN * 2, "last norm": tokens * HIDDEN * (4 + quotient)}
        found["log-softmax"] = 4 * logits
        if mode == "autocast":
            found["16-bit copy of the head"] = 2 * VOCABULARY * HIDDEN
    if moment == "forward_end":
        found |= {"logits": 2 * logits, "float32 logits": 4 * logits}
        if checkpointed and mode != "pure":  # autocast caches them until it ends
            found["16-bit copies"] = LAYERS * sum(b for name, b in layer.items() if "copy" in name)
    if moment == "loss_gradient":
        found |= {"gradient of the log-softmax": 4 * logits, "gradient of the float32 logits": 4 * logits}
    return found


def head_backward(tokens, mode):
    """Bytes of gradients that a trained head makes: of its logits, and of its weights in 16 bits and as they are."""
    weights = {"lora": 0, "pure": 2, "autocast": 2 + 4}[mode] * VOCABULARY * HIDDEN
    return weights and weights + 2 * tokens * VOCABULARY


@pytest.mark.parametrize("checkpointed", [True, False])
@pytest.mark.parametrize("mode", ["lora", "autocast", "pure"])
@pytest.mark.parametrize("tokens", [256, 8192])
def test_a_step_of_fine_tuning_tensor_by_tensor(mode, tokens, checkpointed):
    rank = 64 if mode == "lora" else 0
    q = design(
        **BASE,
        software="hf-trainer-bf16" if mode == "pure" else "hf-trainer",
        microbatch=1.0,
        sequence_length=float(tokens),
        recompute="full" if checkpointed else "none",
        lora_rank=float(rank),
    )
    found = rows(q["memory_by_moment"], "memory_moment")
    for moment in MOMENTS:
        tensors = alive(moment, tokens, mode, rank, checkpointed)
        expected = sum(tensors.values())
        if moment == "loss_gradient":  # or later, when the head runs backward and the softmax is gone
            gone = sum(bytes_ for name, bytes_ in tensors.items() if "log" in str(name))
            expected = max(expected, expected - gone + head_backward(tokens, mode))
        assert found[moment] == pytest.approx(expected, rel=2e-4), moment  # the last norm is not part of a stage
    assert q["memory_per_device"] == pytest.approx(max(found.values()) + q["reserved_memory"], rel=1e-12)
    assert sum(q[part] for part in PARTS) == pytest.approx(q["memory_per_device"], rel=1e-12)


STACKS = {
    "megatron-core": {"pp": 4.0, "dp": 2.0, "zero": 1.0},
    "nemo": {"tp": 2.0, "pp": 2.0, "dp": 2.0, "zero": 1.0, "sequence_parallel": True},
    "torchtitan": {"dp": 8.0, "zero": 3.0},
    "deepspeed": {"dp": 8.0, "zero": 2.0},
    "hf-deepspeed": {"dp": 8.0, "zero": 2.0},
    "maxtext": {"dp": 8.0, "zero": 3.0},
}


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("software", STACKS)
def test_the_peak_is_the_largest_moment_of_any_stage(software, recompute):
    """Stage by stage and moment by moment; nothing is counted twice."""
    given = {**BASE, "devices": 8.0, "global_batch": 64.0, "microbatch": 1.0, "sequence_length": 4096.0}
    q = design(**{**given, **STACKS[software]}, software=software, recompute=recompute)
    beside = q["loss_working_memory"], q["layer_working_memory"]
    found = dict.fromkeys(MOMENTS, 0.0)
    for stage in ("first", "middle", "last"):
        state, kept = q[f"{stage}_stage_state_memory"], q[f"{stage}_stage_kept_activations"]
        heads, in_flight = q[f"{stage}_stage_heads"], max(q[f"{stage}_stage_in_flight"], 1.0)
        step = rows(q["optimizer_copies_by_stage"], "stage")[stage]
        moments = (
            state + kept + heads * q["forward_head_activations"] + beside[0],
            state + kept + heads * q["head_activations"] + beside[0],
            state + kept + beside[1],
            state + kept * (in_flight - 1) / in_flight + beside[1],
            state + step,
        )
        for moment, size in zip(MOMENTS, moments, strict=True):
            found[moment] = max(found[moment], size)
    assert rows(q["memory_by_moment"], "memory_moment") == pytest.approx(found, rel=1e-12)
    assert q["memory_per_device"] == pytest.approx(max(found.values()) + q["reserved_memory"], rel=1e-12)
    assert sum(q[part] for part in PARTS) == pytest.approx(q["memory_per_device"], rel=1e-12)


def test_the_optimizer_step_of_sharded_state():
    """Eight V100: 4 bytes for the float32 gradients of a shard, 4 for the root that a user saw fail (3.14 GiB)."""
    given = {**BASE, "devices": 8.0, "dp": 8.0, "global_batch": 8.0, "microbatch": 1.0, "software": "hf-deepspeed"}
    q = design(**given, zero=2.0, recompute="full", sequence_length=512.0)
    copies = max(rows(q["optimizer_copies_by_stage"], "stage").values())
    assert copies / 2 / 2**30 == pytest.approx(3.14, abs=0.005)
    grouped = design(**{**given, "model": "llama-2-70b"}, zero=3.0, recompute="full", sequence_length=512.0)
    assert max(rows(grouped["optimizer_copies_by_stage"], "stage").values()) == 8e9  # sub_group_size


TRACED = Path(__file__).parents[2] / "tools" / "validation" / "torch_memory.jsonl"


@pytest.mark.parametrize("case", [json.loads(line) for line in TRACED.read_text().splitlines()], ids=str)
def test_moments_are_those_of_tensors_alive_in_pytorch(case):
    """Steps of Transformers under fake tensors, whose storages are counted as they come and go (tools/validation)."""
    q = design(
        **{**BASE, "model": "llama-2-7b", "global_batch": float(case["batch"])},
        **{
            name: float(case[name]) for name in ("layers", "hidden_size", "heads", "kv_heads", "ffn_size", "vocab_size")
        },
        software="hf-trainer-bf16" if case["mode"] == "pure" else "hf-trainer",
        microbatch=float(case["batch"]),
        sequence_length=float(case["sequence"]),
        recompute="full" if case["checkpointing"] else "none",
        lora_rank=float(case["rank"]),
        optimizer_step={"tensor": 1.0, "all": 3.0}[case["optimizer"]],
    )
    found = rows(q["memory_by_moment"], "memory_moment")
    assert found["forward_end"] / 2**30 == pytest.approx(case["forward"], rel=0.02)
    backward = max(found[moment] for moment in MOMENTS[1:4])
    assert backward / 2**30 == pytest.approx(case["backward"], rel=0.02)
    assert found["optimizer_step"] / 2**30 == pytest.approx(case["optimizer_step"], rel=0.02)
