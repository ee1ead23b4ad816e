"""The list of kernels adds up to the times of layer, head and embedding that the step is made of."""

import json

import numpy as np
import pytest

from perfgrid import PerfgridError, Study, kernels
from perfgrid.formulas import INNER
from tests.physics.cases import design
from tests.test_bad_input import run, write

LIBRARY = 0.94  # of the rate of large products


def study(**parameters):
    return Study.make(
        overrides={"library_efficiency": LIBRARY},
        outputs=["step_time"],
        axes={
            "model": ["megatron-22b"],
            "software": ["megatron-lm"],
            "device": ["a100-sxm-80gb"],
            "topology": ["rail-optimized"],
            "parallelism": {"devices": [8], "tp": [8], "pp": [1]},
        },
        workload_parameters={"sequence_length": 2048, "global_batch": 4, "microbatch": 4, "zero": 0} | parameters,
    )


@pytest.mark.parametrize("fused", [True, False])
def test_kernels_add_up(fused):
    plan = {"microbatch": 4.0, "global_batch": 4.0, "flash_attention": fused, "recompute": "selective"}
    q = design("megatron-22b", **plan, library_efficiency=LIBRARY)
    found = kernels(study(flash_attention=fused, recompute="selective"), {}).kernels
    for part in ("layer", "head", "embedding"):
        by_phase = np.squeeze(np.sum(q[f"{part}_phase_time"], axis=INNER.position("resource"), keepdims=True))
        for phase, total in zip(INNER.labels["phase"], np.broadcast_to(by_phase, 3), strict=True):
            listed = sum(k.runs * k.time[phase] for k in found if k.part == part)
            assert listed == pytest.approx(total, rel=1e-9), (part, phase)
    assert {k.name for k in found} >= {"qkv", "norm", "logits", "loss", "bias"}
    assert ("flash" in {k.name for k in found}) == fused
    assert ("softmax" in {k.name for k in found}) != fused
    bounds = {k.name: k.bound_by["forward"] for k in found}
    assert bounds["ffn_up"] == "arithmetic"
    assert bounds["norm"] == "hbm"


def test_the_command_lists_them(monkeypatch, capsys, tmp_path):
    path = write(tmp_path)
    at = ("--at", "parallelism=tp2.pp2.dp4")
    status, out, _ = run(monkeypatch, capsys, "kernels", path, *at)
    assert status == 0
    first, *lines = out.splitlines()
    header = next(line for line in lines if line.startswith("kernel"))
    assert first == "at model=llama-2-7b, device=h100-sxm-80gb, topology=rail-optimized, parallelism=tp2.pp2.dp4"
    assert header.split()[:3] == ["kernel", "part", "runs"]
    assert "ffn_up" in out
    assert "arithmetic" in out
    status, out, _ = run(monkeypatch, capsys, "kernels", path, "--json", *at)
    listed = json.loads(out)
    assert {"name", "part", "runs", "time", "bound_by"} == set(listed["kernels"][0])
    assert [k["runs"] for k in listed["kernels"] if (k["name"], k["part"]) == ("norm", "head")] == [1]
    assert listed["point"]["parallelism"] == "tp2.pp2.dp4"
    assert listed["violated"] == []
    assert run(monkeypatch, capsys, "kernels", path, "--at", "parallelism=tp3.pp1.dp1")[0] == 2


def test_violated_constraints_of_the_design_are_reported(monkeypatch, capsys, tmp_path):
    at = ("--set", "workload_parameters.zero=0", "--at", "parallelism=tp1.pp1.dp16")  # 18 bytes per parameter
    status, out, _ = run(monkeypatch, capsys, "kernels", write(tmp_path), *at)
    assert status == 0
    assert out.splitlines()[1].startswith("infeasible (exceeds): weights, optimizer state and activations exceed")
    _, out, _ = run(monkeypatch, capsys, "kernels", write(tmp_path), "--json", *at)
    (violated,) = json.loads(out)["violated"]
    assert (violated["name"], violated["kind"]) == ("fits_memory", "exceeds")


def test_every_axis_needs_a_label():
    with pytest.raises(PerfgridError, match="no axis 'row'"):
        kernels(study(), {"row": 1})


@pytest.mark.parametrize(
    ("model", "attending", "own"),
    [("qwen3-235b-a22b", 94, {"tp"}), ("qwen3-next-80b-a3b", 12, {"mixers"}), ("deepseek-v3.2", 61, {"indexers"})],
)
def test_kernels_and_waits_of_serving_add_up_to_a_pass(model, attending, own):
    """Runs times times of a mixture whose experts lie on eight devices, and what it waits for: the whole pass."""
    served = Study.make(
        workload="inference",
        outputs=["request_latency"],
        axes={
            "model": [model],
            "device": ["h200-sxm-141gb"],
            "topology": ["rail-optimized"],
            "parallelism": {"devices": [8], "tp": [2], "ep": [8], "pp": [1]},
        },
        workload_parameters={
            "prompt_tokens": 1000,
            "output_tokens": 10,
            "batch": 64,
            "precision": "fp8",
            "weight_precision": "fp8",
        },
    )
    at = {
        "model": model,
        "device": "h200-sxm-141gb",
        "topology": "rail-optimized",
        "parallelism": next(a.labels[0] for a in served.space.axes if a.name == "parallelism"),
    }
    found = kernels(served, at).kernels
    parts = {kernel.name: kernel for kernel in found}
    assert {k.part for k in found} == {"pass", "wait", "total"}
    assert {"exposed_exchange", "host", "attention", "expert_up", *own} <= set(parts)
    assert parts["attention"].runs == attending
    for which in ("prefill", "decode"):
        spent = sum(k.runs * k.time[which] for k in found if k.part != "total")
        assert spent == pytest.approx(parts["pass"].time[which], rel=1e-9)
