"""Designs with zero-bubble schedules and DualPipe: weights of devices, mirror images, order of schedules, flags."""

import pytest

from .cases import design

SPLIT = ("zb_h1", "zb_v", "dualpipe", "dualpipe_v")
LLAMA = {"tp": 8.0, "pp": 4.0, "dp": 2.0, "global_batch": 64.0, "sequence_length": 8192.0}


@pytest.mark.parametrize("schedule", SPLIT)
def test_weights_of_devices(schedule):
    """All devices together hold the model once, in DualPipe twice."""
    chunks = 2.0 if schedule.endswith("_v") else 1.0
    q = design("llama-3.1-70b", **LLAMA, schedule=schedule, chunks=chunks)
    held = q["first_stage_parameters"] + 2 * q["middle_stage_parameters"] + q["last_stage_parameters"]
    once = 80 * q["rank_layer_parameters"] + q["rank_embedding_parameters"] + q["rank_head_parameters"]
    assert held == pytest.approx(once * (2 if schedule == "dualpipe" else 1))


def test_a_shared_table_is_stored_once_where_one_device_holds_both_ends():
    tied = {"pp": 4.0, "tp": 1.0, "global_batch": 64.0}
    plain = design("megatron-1.7b", **tied)
    folded = design("megatron-1.7b", **tied, schedule="zb_v", chunks=2.0)
    both = design("megatron-1.7b", **tied, schedule="dualpipe")
    table = plain["rank_head_parameters"]
    layers = plain["stage_layers"] * plain["rank_layer_parameters"]
    assert plain["last_stage_parameters"] == pytest.approx(layers + table)
    assert folded["last_stage_parameters"] == pytest.approx(layers)
    assert folded["first_stage_parameters"] == pytest.approx(layers + plain["rank_embedding_parameters"])
    assert both["first_stage_parameters"] == both["last_stage_parameters"]
    assert both["first_stage_parameters"] == pytest.approx(2 * layers + plain["rank_embedding_parameters"])


DEEPSEEK = {"device": "h100-sxm-80gb", "tp": 1.0, "dp": 8.0, "ep": 8.0, "global_batch": 512.0}


MIRRORED = [("mixtral-8x7b", n, m) for n in (1, 2, 4, 8, 16) for m in (0.0, 1.0, 2.0)]
MIRRORED += [("deepseek-v3", n, m) for n, m in ((1, 0.0), (1, 1.0), (4, 1.0), (4, 2.0), (8, 1.0), (8, 2.0), (16, 1.0))]


@pytest.mark.parametrize(("model", "devices", "modules"), MIRRORED)
def test_dualpipe_is_dualpipe_v_and_its_mirror_image(model, devices, modules):
    """Parameters and activations of the devices at the ends: dense layers first, experts, modules and tables.

    On 16 devices the dense layers of DeepSeek-V3 do not all fit into the first chunk.
    """
    given = {"model": model, **DEEPSEEK, "mtp_layers": modules}
    both = design(**given, pp=2.0 * devices, schedule="dualpipe")
    folded = design(**given, pp=float(devices), **({} if devices == 1 else {"schedule": "dualpipe_v", "chunks": 2.0}))
    assert both["tied"] == folded["tied"] == 1
    for name in ("parameters", "expert_parameters", "mtp_layers"):
        expected = pytest.approx(folded[f"first_stage_{name}"], rel=1e-12)
        assert both[f"first_stage_{name}"] == both[f"last_stage_{name}"] == expected
    if devices > 1:
        kept = both["first_stage_activation_memory"]
        assert kept == both["last_stage_activation_memory"]
        assert kept == pytest.approx(folded["first_stage_activation_memory"], rel=1e-12)


def test_copies_share_sharded_optimizer_state():
    """Weights and gradients double in DualPipe; the optimizer's state and step do so only without sharding."""
    plain, both = (
        {z: design("llama-3.1-70b", **LLAMA, schedule=s, zero=z) for z in (0.0, 1.0)} for s in ("1f1b", "dualpipe")
    )
    for zero, once in ((0.0, 2), (1.0, 1)):
        expected = 2 * both[zero]["first_stage_layers"] * plain[zero]["rank_layer_parameters"]
        expected += plain[zero]["rank_embedding_parameters"] + plain[zero]["rank_head_parameters"]
        assert both[zero]["first_stage_parameters"] == pytest.approx(expected)
        size = both[zero]["first_stage_state_memory"] / expected
        assert size == pytest.approx(2 + 4 + (12 / 2 / 2 if zero else 12))
        ratio = both[zero]["state_parameters"] / plain[zero]["state_parameters"]
        assert ratio == pytest.approx(once, rel=0.1)  # one stage has a table less than both ends together


def test_adapters_lie_beside_both_copies():
    plain, both = (design("llama-3.1-70b", **LLAMA, schedule=s, lora_rank=16.0) for s in ("1f1b", "dualpipe"))
    for name in ("first_stage_adapter_parameters", "stage_trained_parameters"):
        assert both[name] == 2 * plain[name]


def test_passes_add_up():
    q = design("llama-3.1-70b", **LLAMA)
    for part in ("layer", "embedding", "head"):
        backward = q[f"{part}_input_gradient_time"] + q[f"{part}_weight_gradient_time"]
        assert q[f"{part}_forward_time"] + backward == pytest.approx(q[f"{part}_time"])
        assert q[f"{part}_input_gradient_time"] >= 0
    assert 0.7 < q["layer_weight_gradient_time"] / q["layer_forward_time"] < 1.1


def test_schedules_rank_as_published():
    """Less waiting from 1F1B over ZB-H1 to ZB-V and DualPipe."""
    found = {
        s: design("llama-3.1-70b", **LLAMA, schedule=s, chunks=2.0 if s.endswith("_v") else 1.0)
        for s in ("1f1b", *SPLIT)
    }
    wait = {s: q["bubble_time"] / (32 * q["slowest_stage_time"]) for s, q in found.items()}
    assert wait["zb_h1"] < 0.8 * wait["1f1b"]
    assert wait["zb_v"] < wait["zb_h1"]
    assert wait["dualpipe"] < wait["zb_h1"]
    assert [found[s]["ep_overlap_by_schedule"] for s in ("1f1b", *SPLIT)] == [0, 0, 0, 1, 1]


V, PAIRS, TWO_WAY = ({"schedule": s, "chunks": 2.0} for s in ("zb_v", "dualpipe_v", "dualpipe"))
TWO_WAY["chunks"] = 1.0
IMPOSSIBLE = (  # constraint, a design that it allows, what is then changed
    ("folded_schedules_hold_two_chunks", V, {"chunks": 1.0}),
    ("folded_schedules_hold_two_chunks", PAIRS, {"chunks": 1.0}),
    ("schedule_takes_chunks", {"schedule": "zb_h1"}, {"chunks": 2.0}),
    ("schedule_takes_chunks", TWO_WAY, {"chunks": 2.0}),
    ("schedule_takes_chunks", V, {"chunks": 4.0}),
    ("layers_interleave", V, {"pp": 5.0}),
    ("chunks_need_stages", V, {"pp": 1.0}),
    ("microbatches_interleave", V | {"global_batch": 18.0}, {"schedule": "1f1b"}),
    ("microbatches_fill_schedule", V | {"global_batch": 7.0}, {"global_batch": 6.0}),
    ("microbatches_fill_schedule", PAIRS | {"global_batch": 8.0}, {"global_batch": 7.0}),
    ("microbatches_fill_schedule", TWO_WAY | {"global_batch": 8.0}, {"global_batch": 6.0}),
    ("two_way_stages_pair", TWO_WAY, {"pp": 5.0}),
    ("two_way_stages_pair", PAIRS | {"pp": 5.0}, {"schedule": "dualpipe"}),
    ("two_way_microbatches_pair", TWO_WAY | {"global_batch": 10.0}, {"global_batch": 11.0}),
)


@pytest.mark.parametrize(("constraint", "legal", "illegal"), IMPOSSIBLE)
def test_impossible_schedules_are_flagged(constraint, legal, illegal):
    given_ = {"tp": 1.0, "pp": 4.0, "global_batch": 64.0}
    assert design("llama-3.1-8b", **given_ | legal)[constraint]
    assert not design("llama-3.1-8b", **given_ | legal | illegal)[constraint]
