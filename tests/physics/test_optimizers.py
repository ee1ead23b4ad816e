"""Optimizers, quantised frozen weights, fused kernels, losses and weights in host memory, each worked out by hand."""

import pytest

from .cases import design, rows

HIDDEN, FFN, VOCABULARY, LAYERS = 4096, 11008, 32000, 32
MATRICES = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * FFN
TABLE = VOCABULARY * HIDDEN
PARAMETERS = LAYERS * (MATRICES + 2 * HIDDEN) + 2 * TABLE
BASE = {
    "model": "llama-2-7b",
    "device": "h200",
    "software": "hf-trainer",
    "devices": 1.0,
    "tp": 1.0,
    "dp": 1.0,
    "global_batch": 1.0,
    "sequence_length": 1024.0,
    "recompute": "full",
    "sequence_parallel": False,
}
EIGHT = 2 + 8 / 256  # bytes of two moments, and two scales of 256
STATES = {  # bytes of moments: of matrices, of the embedding
    "adamw": (8, 8),
    "fused_adamw": (8, 8),
    "adamw_8bit": (EIGHT, 8),
    "ao_adamw_8bit": (EIGHT, EIGHT),
    "ao_adamw_4bit": (1 + 8 / 128, 1 + 8 / 128),
    "lion": (4, 4),
    "lion_8bit": (EIGHT / 2, 4),
    "momentum": (4, 4),
    "sgd": (0, 0),
    "paged_adamw": (0, 0),  # in unified memory
    "paged_adamw_8bit": (0, 0),
}


@pytest.mark.parametrize("optimizer", STATES)
def test_moments_of_an_optimizer(optimizer):
    """Beside float32 weights and gradients; what a step reads and writes, in one kernel where it is not the stack's."""
    q = design(**BASE, optimizer=optimizer)
    moments, table = STATES[optimizer]
    state = rows(q["state_memory_by_stage"], "stage")["first"]
    assert state == pytest.approx(8 * PARAMETERS + moments * (PARAMETERS - TABLE) + table * TABLE, rel=1e-12)
    held = {"paged_adamw": 8, "paged_adamw_8bit": EIGHT}.get(optimizer, moments)
    expected = q["optimizer_traffic"] if optimizer == "adamw" else 4 + 2 * (4 + held)
    assert q["step_traffic"] == pytest.approx(expected)
    assert (max(rows(q["optimizer_copies_by_stage"], "stage").values()) > 0) == (optimizer == "adamw")


def test_master_weights_stay_beside_other_moments():
    """DeepSpeed: 2 + 2 + 4 bytes beside moments, and the float32 copy of gradients in the step."""
    given = {**BASE, "software": "hf-deepspeed", "devices": 8.0, "dp": 8.0, "global_batch": 8.0, "zero": 2.0}
    q = design(**given, optimizer="lion")
    assert q["shard_optimizer_size"] == pytest.approx((4 + 4) / 8)
    assert max(rows(q["optimizer_copies_by_stage"], "stage").values()) == pytest.approx(4 * PARAMETERS / 8, rel=1e-3)
    half = design(**{**BASE, "software": "hf-trainer-bf16"}, optimizer="momentum")
    assert half["state_size"] == 2  # in the format of the weights


def test_pages_of_moments_move_where_they_find_no_place():
    q = design(**BASE, optimizer="paged_adamw")
    assert q["paging_time"] == 0
    small = {"hbm_capacity": q["memory_per_device"] + 1e9}
    tight = design(**BASE, **small, optimizer="paged_adamw")
    assert tight["fits_memory"]
    assert not design(**BASE, **small)["fits_memory"]
    assert tight["paging_time"] == pytest.approx(2 * (8 * PARAMETERS - 1e9) / tight["host_bandwidth"])
    assert tight["exposed_offload_time"] == tight["paging_time"]
    assert not design(**BASE, **small, optimizer="paged_adamw", host_bandwidth=0.0)["pages_have_link"]


@pytest.mark.parametrize("double", [True, False])
def test_quantised_matrices_are_brought_into_16_bits_for_every_product(double):
    size = 0.516 if double else 0.5625
    given = {**BASE, "lora_rank": 16.0, "frozen_matrix_size": size, "quantised_scales": double}
    q, plain = design(**given), design(**{**BASE, "lora_rank": 16.0})
    moved = MATRICES * (size + 2 + (13 / 64 if double else 0)) / q["achieved_hbm_bandwidth"]
    started = 7 * (3 if double else 1) * q["launch_overhead"]
    more = q["layer_forward_kernel_time"] - plain["layer_forward_kernel_time"]
    assert more == pytest.approx(moved + started, rel=1e-9)
    assert q["layer_backward_kernel_time"] - plain["layer_backward_kernel_time"] == pytest.approx(more, rel=1e-9)
    saved = plain["state_memory"] - q["state_memory"]
    assert saved == pytest.approx(LAYERS * MATRICES * (2 - size), rel=1e-12)
    assert q["layer_working_memory"] - plain["layer_working_memory"] == pytest.approx(2 * HIDDEN * FFN)


def test_shards_of_quantised_matrices_are_gathered_as_they_are_stored():
    given = {**BASE, "devices": 2.0, "dp": 2.0, "global_batch": 2.0, "zero": 3.0, "lora_rank": 16.0}
    q, plain = (design(**{**given, "software": name}) for name in ("hf-fsdp-qlora", "hf-fsdp"))
    assert plain["weight_message"] - q["weight_message"] == pytest.approx(LAYERS * MATRICES * (2 - 0.516))
    assert plain["gathering_memory"] - q["gathering_memory"] == pytest.approx(2 * MATRICES * (2 - 0.516))
    scales = rows(q["replicated_scales_by_stage"], "stage")["first"]  # of which every rank has all
    assert scales == pytest.approx(LAYERS * MATRICES * 0.016 / 2)


LOGITS = 1024 * VOCABULARY


@pytest.mark.parametrize("trains", [True, False])
def test_what_a_loss_holds(trains):
    given = {**BASE, "lora_rank": 0.0 if trains else 16.0}
    head = TABLE if trains else 0
    found = {name: design(**given, cross_entropy=name) for name in ("stack", "chunked", "fused_linear", "cut")}
    backward = 2 * LOGITS + 6 * head if trains else 0  # of the head: 16-bit logits; 16 bits, then float32
    expected = {
        "stack": (10 * LOGITS, max(12 * LOGITS, backward)),
        "chunked": (6.5 * LOGITS, max(7 * LOGITS, backward)),
        "fused_linear": (2 * 1024 * HIDDEN + 2 * 128 * VOCABULARY + 8 * head, 2 * 1024 * HIDDEN + 4 * head),
        "cut": (0, 0),
    }  # of the fused one a chunk of 128 tokens: 1024 / ceil(32000 / 4096)
    for name, q in found.items():
        assert (q["forward_logits"], q["held_logits"]) == pytest.approx(expected[name]), name
    again = found["cut"]["head_recompute_kernel_time"]
    assert again > 0 == found["fused_linear"]["head_recompute_kernel_time"]
    assert found["fused_linear"]["step_time"] < found["stack"]["step_time"]


def test_fused_kernels_of_a_layer():
    """Norms keep their input as it is, gates only their inputs; nothing runs operation by operation."""
    given = {**BASE, "recompute": "none"}
    q, plain = design(**given, layer_kernels="liger"), design(**given)
    norms = 2 * HIDDEN * (4 + 4 - 4)  # float32 copy and quotient, or the float32 stream
    freed = plain["layer_activations"] - q["layer_activations"]
    assert freed == pytest.approx(1024 * (norms + 2 * FFN))
    assert q["step_time"] < plain["step_time"]


def test_weights_in_host_memory():
    """Two layers and the head are on the device, with gradients while they are reduced; all else is on the host."""
    given = {**BASE, "software": "hf-deepspeed", "zero": 3.0, "devices": 4.0, "dp": 4.0, "global_batch": 4.0}
    q, plain = design(**given, offload="parameters"), design(**given)
    state = rows(q["state_memory_by_stage"], "stage")["first"]
    assert state == pytest.approx(0, abs=1)
    assert plain["memory_per_device"] - q["memory_per_device"] >= 0.9 * 16 * PARAMETERS / 4
    assert q["gathering_memory"] == pytest.approx(plain["gathering_memory"])
    assert q["host_weights"] == pytest.approx(2 * PARAMETERS / 4, rel=1e-9)
    slow = design(**given, offload="parameters", host_bandwidth=1e9)
    least = 2 * slow["host_weights"] / 1e9 - slow["parameter_overlap"] * LAYERS * slow["layer_time"]
    assert slow["exposed_offload_time"] > least > 0
    alone = design(**{**given, "devices": 1.0, "dp": 1.0}, offload="parameters")
    assert alone["gathering_memory"] == pytest.approx(plain["gathering_memory"])
    assert not design(**{**given, "zero": 2.0}, offload="parameters")["parameters_are_sharded"]


def test_named_results_in_host_memory():
    """They are kept like those on the device, of which two layers' are; both ways of the link are waited for."""
    given = {**BASE, "software": "maxtext", "zero": 3.0, "devices": 8.0, "dp": 8.0, "global_batch": 8.0}
    given |= {"recompute": "named", "host_bandwidth": 1e9}
    kept = design(**given, kept_qkv=True, kept_attention_output=True)
    there = design(**given, kept_attention_output=True, offloaded_qkv=True, offload="named")
    assert there["layer_activations"] == pytest.approx(kept["layer_activations"])
    assert there["layer_recomputed"] == pytest.approx(kept["layer_recomputed"])
    away = 1024 * 2 * 3 * HIDDEN
    assert there["resident_share"] == pytest.approx(1 - away / kept["layer_activations"])
    assert there["transit_memory"] == pytest.approx(2 * away)
    moving = LAYERS * away / 1e9
    assert 0 < there["exposed_offload_time"] <= 2 * moving
    assert not design(**{**given, "recompute": "full"}, offload="named")["named_results_move"]
