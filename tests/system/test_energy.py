"""Energy of a step: against counted operations and bytes, additivity, monotony, and what devices are known to draw."""

from __future__ import annotations

import numpy as np
import pytest

from perfgrid.formulas import INNER
from perfgrid.formulas.collectives.placement import crossing_share
from perfgrid.formulas.training.step_energy import ENERGIES

from .cases import grid, point, stated

SUSTAINED = {"boost_energy": 1.0}  # the clock of large products, whatever power is left
NODES = ["n28", "n16", "n12", "n10", "n7", "n6", "n5", "n4", "n3", "n3p", "n2", "n2p", "a16", "a14", "a10"]

BYTE = stated("memory", "hbm3", "memory_byte_energy") + stated("circuit", "unit-circuits", "memory_port_energy")


@pytest.mark.parametrize("changes", [{}, {"precision": "fp8"}, {"flash_attention": False}, {"recompute": "full"}])
def test_the_parts_add_up(changes):
    p = point(["step_energy", "average_power", "energy_per_token", "model_flops_per_joule"], **changes)
    assert sum(p[part] for part in ENERGIES) == pytest.approx(p["step_energy"], rel=1e-12)
    assert all(p[part] > 0 for part in ENERGIES)
    assert p["average_power"] * p["step_time"] * 1024 == pytest.approx(p["step_energy"], rel=1e-12)
    assert p["energy_per_token"] * p["model_flops_per_joule"] == pytest.approx(p["model_flops_per_token"], rel=1e-12)


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (8, 8)])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_matrix_operations_are_those_of_the_model(tp, pp, recompute):
    """Without vector units, arithmetic energy is the hardware FLOPs of the step times that of one, however split."""
    found = point(
        ["arithmetic_energy", "hardware_flops_per_token"],
        {"parallelism": {"devices": [64], "tp": [tp], "pp": [pp]}},
        overrides=SUSTAINED | {"vector_operation_energy": 0.0},
        flash_attention=False,
        causal=False,
        recompute=recompute,
    )
    flops = found["hardware_flops_per_token"] * 1024 * 2048
    energy = stated("circuit", "unit-circuits", "matrix_energy") * 0.63  # of 4 nm
    assert found["arithmetic_energy"] == pytest.approx(flops * energy, rel=1e-9)


def test_memory_traffic_of_the_optimizer_and_of_kernels_is_counted_once():
    """Bytes of one layer, added up over its kernels by hand, times all layers, microbatches and ranks."""
    p = point(["step_energy"], flash_attention=True, recompute="none")
    by_phase = lambda x: float(np.sum(x))  # noqa: E731
    once = [INNER.labels["product"].index(k) for k in ("qkv", "attention_output", "ffn_up", "ffn_down")]
    gemm = np.broadcast_to(p["gemm_hbm_traffic"], p["gemm_rows"].shape).reshape(3, -1)[:, once]
    accumulated = 2 * 4 * (p["gemm_rows"] * p["gemm_columns"]).reshape(3, -1)[2, once]
    streams = (p["stream_traffic"] * p["layer_streams"]).sum()
    flash = p["flash_streamed_traffic"] + p["flash_exposed_traffic"]
    flash = (
        np.broadcast_to(p["mask_share"], np.broadcast_shapes(np.shape(p["mask_share"]), np.shape(flash))) * flash
    ).sum()
    layer = by_phase(gemm) + by_phase(accumulated) + float(streams) + float(flash)
    byte = BYTE
    in_layer = p["layer_energy"].reshape(-1)[4]  # the resource hbm
    assert in_layer == pytest.approx(layer * byte, rel=1e-9)
    heads = p["embedding_energy"].reshape(-1)[4] + p["head_energy"].reshape(-1)[4]
    runs = 1024 / 16 * 16 * 8  # microbatches times dp times tp
    expected = runs * (96 * in_layer + heads) + p["optimizer_energy"]
    assert p["hbm_energy"] == pytest.approx(expected, rel=1e-9)


def test_static_energy_lasts_as_long_as_the_step():
    """A quarter of the limit while devices work or wait for each other, 0.13 of it while they wait for the host."""
    p = point(["step_energy"])
    idle = p["exposed_host_time"] + p["step_gap"]
    assert idle > 0
    assert p["static_energy"] == pytest.approx(700 * 1024 * (0.25 * (p["step_time"] - idle) + 0.13 * idle), rel=1e-12)


@pytest.mark.parametrize(("inside", "outside", "share"), [(8, 1, 0), (1, 16, 1), (8, 16, 15 / 127), (1, 1, 0)])
def test_traffic_that_leaves_the_domains(inside, outside, share):
    """Hierarchical gather of a message of n parts: each rank sends (o - 1) of its n - 1 parts outside."""
    assert crossing_share(float(inside), float(outside)) == pytest.approx(share)


def test_bytes_on_links_are_those_of_the_groups():
    p = point(["step_energy"], {"parallelism": {"devices": [1024], "tp": [8], "pp": [8]}})
    link = p["link_bytes"].reshape(-1)
    sent = p["tp_step_bytes"] + p["dp_step_bytes"] + p["pp_step_bytes"]
    assert link.sum() == pytest.approx(sent, rel=1e-12)
    assert link[1] == pytest.approx(p["dp_step_bytes"] + p["pp_step_bytes"], rel=1e-12)  # tp fills a domain of eight
    handed = 2 * (8 - 1) * 1 * 2048 * 12288 * 2  # seven borders, forth and back, bfloat16
    assert p["pp_step_bytes"] == pytest.approx(handed * 1024, rel=1e-12)


def test_a_node_step_never_costs_more_energy_per_operation():
    found = grid(
        ["half_precision_operation_energy", "vector_operation_energy", "l2_byte_energy", "shared_memory_byte_energy"],
        {"node": NODES},
    )
    for name in ("half_precision_operation_energy", "vector_operation_energy", "l2_byte_energy"):
        assert (np.diff(found[name]) <= 0).all(), name


def test_the_gain_of_a_node_is_speed_or_energy_never_both():
    names = ["half_precision_operation_energy", "peak_bf16_rate"]
    own = grid(names, {"node": ["native"]}, implementation="same_design")
    for gain in ("power", "speed"):
        new = grid(names, {"node": ["n2"]}, implementation="same_design", node_gain=gain)
        faster = new["peak_bf16_rate"] / own["peak_bf16_rate"]
        cheaper = own["half_precision_operation_energy"] / new["half_precision_operation_energy"]
        assert (faster > 1) == (gain == "speed")
        if gain == "speed":
            assert faster == pytest.approx(cheaper)  # at equal power
        else:
            assert cheaper == pytest.approx(0.63 / 0.335, rel=1e-6)


@pytest.mark.parametrize(
    ("what", "part"),
    [
        ("matrix_energy", "arithmetic_energy"),
        ("vector_energy", "arithmetic_energy"),
        ("sram_energy", "shared_memory_energy"),
        ("cache_energy", "l2_energy"),
        ("crossing_energy", "l2_energy"),
        ("memory_byte_energy", "hbm_energy"),
        ("memory_port_energy", "hbm_energy"),
        ("scale_up_link_energy", "scale_up_energy"),
        ("scale_out_link_energy", "scale_out_energy"),
        ("static_fraction", "static_energy"),
    ],
)
def test_each_energy_of_a_circuit_goes_to_one_part(what, part):
    found = grid(list(ENERGIES), {what: {"scale": [1.0, 1.5]}}, overrides=SUSTAINED)
    for name in ENERGIES:
        if name == part:
            assert found[name][1] > found[name][0]
        else:
            assert found[name].ndim == 0 or found[name][1] == found[name][0]


def test_devices_draw_what_is_known_of_them_in_training():
    """GPUs in training draw 0.6 to 0.9 of the rated power (epoch2024costs), by the software of that time."""
    devices = ["a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "b200", "mi300x"]
    found = grid(["power_fraction", "average_power"], {"device": devices, "software": ["megatron-lm"]})
    assert (found["power_fraction"] > 0.65).all()
    assert (found["power_fraction"] < 0.9).all()
    assert found["stays_within_power"].all()
    small = grid(["average_power"], overrides={"thermal_design_power": 100.0, "static_power": 300.0})
    assert not small["stays_within_power"]


# ---- mixtures of experts, prediction modules, adapters --------------------------------------------------------------

KERNELS = SUSTAINED | {"library_efficiency": 0.94, "host_launch_time": 0.0}  # which set the pace
MIXTURE = {"model": ["mixtral-8x7b"], "parallelism": {"devices": [64], "tp": [2], "pp": [2], "ep": [4], "etp": [2]}}
PREDICTING = {"model": ["deepseek-v3"], "parallelism": {"devices": [64], "tp": [1], "pp": [1], "ep": [32]}}


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize("imbalance", [1.2, 2.0])
def test_imbalance_costs_waiting_only(imbalance, precision):
    """Without a capacity all ranks together process the same rows: tiles are rounded, all else is equal."""
    changes: dict = {"precision": precision, "recompute": "full", "overrides": KERNELS}
    even, uneven = (point(["step_energy"], MIXTURE, expert_imbalance=x, **changes) for x in (1.0, imbalance))
    for part in ("arithmetic_energy", "hbm_energy", "scale_up_energy", "scale_out_energy"):
        assert uneven[part] == pytest.approx(even[part], rel=1e-12), part
    for part in ("shared_memory_energy", "l2_energy"):
        assert uneven[part] == pytest.approx(even[part], rel=0.03), part
    assert uneven["static_energy"] > 1.05 * even["static_energy"]
    padded = point(["step_energy"], MIXTURE, capacity_factor=imbalance, **changes)
    assert padded["step_time"] == pytest.approx(uneven["step_time"], rel=1e-12)
    for part in set(ENERGIES) - {"static_energy", "scale_out_energy"}:
        assert padded[part] > 1.02 * even[part], part


@pytest.mark.parametrize("imbalance", [1.0, 1.5])
@pytest.mark.parametrize("modules", [0, 1, 2])
def test_matrix_operations_of_experts_and_of_prediction_modules(modules, imbalance):
    found = point(
        ["arithmetic_energy", "hardware_flops_per_token"],
        PREDICTING,
        overrides=SUSTAINED | {"vector_operation_energy": 0.0, "mtp_layers": modules},
        causal=False,
        flash_attention=False,
        recompute="full",
        expert_imbalance=imbalance,
    )
    energy = stated("circuit", "unit-circuits", "matrix_energy") * 0.63
    assert found["arithmetic_energy"] == pytest.approx(
        found["hardware_flops_per_token"] * 1024 * 2048 * energy, rel=1e-9
    )


@pytest.mark.parametrize("modules", [0, 1, 2])
@pytest.mark.parametrize("model", ["deepseek-v3", "llama-3.1-8b"])
def test_a_lone_stage_sends_and_updates_what_one_device_does(model, modules):
    """With one stage and evenly loaded ranks all devices do what the slowest one counts: bytes, and optimizer."""
    experts = {"ep": [16]} if model == "deepseek-v3" else {}
    axes = {"model": [model], "parallelism": {"devices": [64], "tp": [2], "pp": [1], "cp": [2], **experts}}
    names = ["step_energy", "tp_bytes", "cp_bytes", "ep_bytes"]
    p = point(names, axes, overrides={"mtp_layers": modules}, expert_imbalance=1.0, zero=1)
    for group in ("tp", "cp", "ep"):
        assert np.sum(p[f"{group}_step_bytes"]) == pytest.approx(p[f"{group}_bytes"] * 64, rel=1e-12), group
    assert p["cp_step_bytes"] > 0
    one = p["state_parameters"] * p["optimizer_traffic"] + p["clearing_traffic"]
    expected = one * 64 * BYTE
    assert p["optimizer_energy"] == pytest.approx(
        expected, rel=0.015 if model == "deepseek-v3" else 1e-4
    )  # latents, norms
    assert sum(p[part] for part in ENERGIES) == pytest.approx(p["step_energy"], rel=1e-12)


def test_ranks_that_share_experts_send_and_so_do_replicas_of_experts():
    """Rows gathered before and scattered after experts of two ranks; gradients of experts leave the node, all of them.

    Eight ranks hold a copy of all experts and fill a node, so their four replicas lie in four nodes.
    """
    p = point(["step_energy", "etp_bytes", "ep_bytes"], MIXTURE, recompute="none", expert_imbalance=1.0)
    rows = 2048 / 2 * 2 * 2  # tokens of a rank, two choices each, of both ranks
    sent = 4 * rows * 4096 * 2 / 2  # four times, bfloat16, half of it to the other one
    microbatches, runs = 1024 / 16, 1024 / 16 * 16 * 2
    assert p["etp_bytes"] == pytest.approx(microbatches * 16 * sent, rel=1e-12)
    assert p["etp_step_bytes"] == pytest.approx(runs * 32 * sent, rel=1e-12)
    assert p["etp_crossing_share"] == 0
    assert p["expert_replica_crossing_share"] == 1 > p["replica_crossing_share"]
    link, ep = p["link_bytes"].reshape(-1), np.sum(p["ep_step_bytes"])
    groups = p["tp_step_bytes"] + p["dp_step_bytes"] + p["pp_step_bytes"]
    assert link.sum() == pytest.approx(groups + p["etp_step_bytes"] + ep, rel=1e-12)
    dense = p["dp_step_bytes"] - p["expert_replica_step_bytes"]
    leaving = p["expert_replica_step_bytes"] + dense * p["replica_crossing_share"] + p["pp_step_bytes"]
    assert link[1] == pytest.approx(leaving, rel=1e-12)


def test_recomputed_activation_functions_of_experts():
    kept, again = (
        point(["step_energy"], MIXTURE, recompute="none", recompute_activation_function=x) for x in (False, True)
    )
    forward = np.asarray(kept["expert_stream_energy"]).reshape(6, 3, 5)[:, 0, -1]  # by resource
    added = np.asarray(again["layer_energy"] - kept["layer_energy"]).reshape(-1)
    assert added == pytest.approx(forward, rel=1e-6)
    assert forward[4] > 0


def test_adapters_take_operations_and_bytes():
    """Three products of each adapted matrix, as long as its sides; operands and results of every one."""
    axes = {"model": ["llama-3.1-8b"], "parallelism": {"devices": [8], "tp": [1], "pp": [1]}}
    p = point(["step_energy"], axes, lora_rank=16, lora_targets="qkv", recompute="none", overrides=SUSTAINED)
    tokens, r, k, n = 2048, 16, 4096, 6144
    spent = np.sum(np.broadcast_to(p["adapter_energy"], p["rest_phase_energy"].shape))
    flops = 3 * 2 * tokens * r * (k + n) * stated("circuit", "unit-circuits", "matrix_energy") * 0.63
    moved = 2 * tokens * (4 * (k + n) + 8 * r)
    bytes_ = moved * (p["memory_access_energy"] + p["crossing_byte_energy"])
    assert spent == pytest.approx(flops + bytes_, rel=1e-9)
    assert not np.any(point(["step_energy"], axes)["adapter_energy"])


def test_eight_bits_take_less_energy():
    found = grid(["step_energy", "arithmetic_energy"], {"precision": ["bf16", "fp8"]})
    assert found["step_energy"][1] < found["step_energy"][0]
    assert found["arithmetic_energy"][1] < 0.8 * found["arithmetic_energy"][0]
