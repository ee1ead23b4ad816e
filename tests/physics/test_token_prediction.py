"""Modules that predict further tokens: published sizes, and the last stage part by part."""

import numpy as np
import pytest

from perfgrid.formulas import BREAKDOWN, INNER

from .cases import design, rows

RESOURCE = INNER.position("resource")


def test_parameters_of_deepseek_v3s_module():
    """11.5 billion of its own, table and output head shared (README_WEIGHTS.md), in three digits."""
    q = design("deepseek-v3", "h100-sxm-80gb", tp=1.0)
    assert q["mtp_projection_parameters"] == 2 * 7168**2
    assert q["rank_mtp_parameters"] + q["rank_expert_parameters"] == pytest.approx(11.5e9, rel=0.01)


@pytest.mark.parametrize("modules", [1, 2])
@pytest.mark.parametrize(("tp", "recompute"), [(1.0, "selective"), (8.0, "full")])
def test_the_last_stage_does_more(modules, tp, recompute):
    """A layer, a look-up, two norms, a projection of twice the width, and the head with its norm once more."""
    given = {"tp": tp, "pp": 4.0, "global_batch": 16.0, "recompute": recompute, "sequence_length": 4096.0}
    without = design("llama-3.1-8b", "h100-sxm-80gb", **given)
    q = design("llama-3.1-8b", "h100-sxm-80gb", **given, mtp_layers=float(modules))
    seconds = rows(np.sum(q["gemm_time"], axis=RESOURCE), "phase", "product")
    norms = rows(np.sum(q["stream_time"], axis=RESOURCE), "phase", "stream_kernel")
    phases = ("forward", "input_gradient", "weight_gradient")
    own = sum(seconds[phase, "mtp_projection"] + 2 * norms[phase, "norm"] for phase in phases)
    exchanged = 4 * q["tp_gathering_time"] + 2 * q["tp_reduction_time"]
    module = without["layer_time"] + without["embedding_time"] + without["head_time"] + own + exchanged
    assert q["head_time"] == pytest.approx(without["head_time"] + modules * module, rel=1e-12)
    assert q["layer_time"] == without["layer_time"]
    more = q["last_stage_parameters"] - without["last_stage_parameters"]
    table = 128 * np.ceil(128256 / tp / 128) * 4096  # padded
    layer = without["rank_layer_parameters"] + 2 * 4096**2 / tp + 3 * 4096
    assert more == pytest.approx(modules * layer + table)
    assert q["first_stage_parameters"] == without["first_stage_parameters"]
    assert q["exposed_tied_time"] > without["exposed_tied_time"] == 0
    assert q["step_time"] == pytest.approx(sum(q[part] for part in BREAKDOWN), rel=1e-12)
    flops = 3 * modules * (without["layer_forward_flops"] + 2 * (2 * 4096**2 + 128256 * 4096))
    assert q["model_flops_per_token"] - without["model_flops_per_token"] == pytest.approx(flops)
    assert q["last_stage_activation_memory"] > without["last_stage_activation_memory"]
    assert q["tp_bytes"] >= without["tp_bytes"]


def test_a_shared_table_is_not_copied_twice():
    given = {"tp": 8.0, "pp": 2.0, "global_batch": 16.0}
    without, q = (design("megatron-22b", **given, mtp_layers=m) for m in (0.0, 1.0))
    more = q["last_stage_parameters"] - without["last_stage_parameters"]
    assert more == pytest.approx(q["rank_mtp_parameters"])


@pytest.mark.parametrize("cp", [1.0, 2.0])
def test_a_module_with_experts_exchanges_its_tokens(cp):
    """Everything that a layer with experts waits for counts once more on the last stage."""
    given = {"tp": 1.0, "pp": 4.0, "dp": 8.0, "ep": 8.0, "cp": cp, "global_batch": 64.0, "sequence_length": 4096.0}
    without, q = (design("deepseek-v3", "h100-sxm-80gb", **given, mtp_layers=m) for m in (0.0, 1.0))
    assert np.ravel(q["layer_exposed_ep_time"])[-1] > 0
    waits = ("layer_exposed_tp_time", "layer_exposed_cp_time", "layer_exposed_ep_time")
    waited = ("head_forward_exposed_time", "head_backward_exposed_time")
    more = sum(q[part] - without[part] for part in waited)
    assert more == pytest.approx(sum(np.ravel(q[wait])[-1] for wait in waits), rel=1e-9)
    assert q["step_time"] == pytest.approx(sum(q[part] for part in BREAKDOWN), rel=1e-9)
    layers, heads = q["slowest_stage_layers"], q["slowest_stage_heads"]
    assert q["last_stage_layers"] == layers < 58
    assert q["ep_calls"] == pytest.approx(2 * q["microbatches"] * (layers + heads) * 2)
    assert q["cp_bytes"] == pytest.approx(q["microbatches"] * (layers + heads) * q["layer_cp_bytes"])
