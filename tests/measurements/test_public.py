"""Published logs: read as their tools wrote them, and predicted beside the measurement."""

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest

import perfgrid as pg
from perfgrid.validation.measurements.measured import Measured

from . import logs

FACTS = tomllib.loads(Path(__file__).with_name("public.toml").read_text(encoding="utf-8"))


def written(folder):
    """A file for each source, with what the source does not state."""
    titan, meg, rack, node, vllm = (FACTS[n] for n in ("torchtitan", "megatron", "nccl_nvl72", "nccl_alltoall", "vllm"))
    layout = {n: meg[n] for n in ("tp", "ep", "sequence_length")}
    names = {"tp": "tensor_model_parallel_size", "ep": "expert_model_parallel_size", "sequence_length": "seq_length"}
    arguments = {names[n]: value for n, value in layout.items()} | {"micro_batch_size": 1}
    steps = zip(meg["steps"], meg["milliseconds"], strict=True)
    table = ["ISL,OSL,Concurrency,TPOT (ms)"]
    for row in zip(vllm["prompt_tokens"], vllm["output_tokens"], vllm["tpot_ms"], strict=True):
        table.append(f"{row[0]},{row[1]},1,{row[2]}")
    texts = {
        "torchtitan.log": logs.torchtitan(titan["steps"], titan["tps"], titan["memory_gib"]),
        "megatron.log": logs.megatron(steps, meg["global_batch"], meg["world"], **arguments),
        "nccl_nvl72.txt": logs.nccl(rack, "all_reduce_perf", header=False),
        "nccl_alltoall.txt": logs.nccl(node, "alltoall_perf"),
        "vllm.csv": "\n".join(table),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    return {
        "torchtitan": Measured(folder / "torchtitan.log", stated={"recompute": "selective"}),
        "megatron": Measured(folder / "megatron.log", on="h100-sxm-80gb"),
        "nccl_nvl72": Measured(folder / "nccl_nvl72.txt", on=rack["device"]),
        "nccl_alltoall": Measured(folder / "nccl_alltoall.txt"),
        "vllm": Measured(folder / "vllm.csv", on=vllm["device"], stated={"model": vllm["model"], "software": "vllm"}),
    }


def test_published_logs_are_read_and_predicted(tmp_path):
    """Medians of |ln(predicted / measured)| of each source stay within what was found when it was added."""
    files = written(tmp_path)
    found = pg.validate(list(files.values()))
    assert found.problems == []
    errors = {}
    for p in found.predictions:
        name = next(n for n in files if n in p.record.source.title)
        if p.record.kind != "memory":
            assert p.ratio is not None, p.reasons
            errors.setdefault(name, []).append(abs(math.log(p.ratio)))
    assert set(errors) == set(FACTS)
    for name, values in errors.items():
        assert sorted(values)[len(values) // 2] <= FACTS[name]["within"], name
    by_id: dict[str, Any] = {p.record.id.removeprefix(f"{tmp_path.name}-"): p.record for p in found.predictions}
    step = by_id["torchtitan"]
    assert step.value == pytest.approx(8 * 8192 / (8 * 5864), rel=1e-3)
    assert (step.device, step.devices, step.plan.dp, step.plan.zero) == ("h100-sxm-96gb-500w-hbm2e", 8, 8, 3)
    assert step.quartiles[0] <= step.value <= step.quartiles[1]
    moe = by_id["megatron"]
    assert (moe.model.name, moe.plan.tp, moe.plan.ep, moe.plan.dp) == ("Mixtral 8x7B", 4, 4, 4)
    assert moe.workload.sequence_length == FACTS["megatron"]["sequence_length"]
    assert "ranks = 72, of which 1 are listed" in by_id["nccl_nvl72-all_reduce-536870912"].assumed
    assert by_id["nccl_alltoall-all_to_all-524288000"].device == "h100-sxm-80gb"
