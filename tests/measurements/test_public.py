"""Numbers of published logs in files that logs.py writes, predicted beside the measurement; lines as tools print them.

The files hold what the readers look for, not whole logs: they show the numbers, not that every log can be read. The
lines at the end have every field that a version of each tool prints; their numbers are made up.
"""

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest

import perfgrid as pg
from perfgrid.validation.measurements.kinds import kind_in
from perfgrid.validation.measurements.measured import Measured
from perfgrid.validation.schema import read_records
from tests.each import each

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


def test_published_numbers_in_generated_files_are_predicted(tmp_path):
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


MEGATRON = (
    "15: [2026-01-05 09:12:{n:02d}] iteration {n:8d}/   20000 | consumed samples: {samples:12d} | elapsed time per "
    "iteration (ms): {ms} | throughput per GPU (TFLOP/s/GPU): 412.6 | learning rate: 2.999100E-04 | global batch size: "
    "  128 | lm loss: 2.512209E+00 | loss scale: 1.0 | grad norm: 0.412 | number of skipped iterations:   0 | "
    "number of nan iterations:   0 |\n"
)
TITAN = (
    "[rank0]:[titan] 2026-01-05 09:12:{n:02d},508 - root - INFO - step: {n:2d}  loss:  7.62585  grad_norm: 26.6250  "
    "memory: 60.11GiB(75.90%)  tps: {tps}  tflops: 351.72  mfu: 35.56%\n"
)
NCCL = """mpirun -np 2 --tag-output ./build/reduce_scatter_perf -b 64M -e 128M -f 2 -g 1
@# nccl-tests version 2.17.1 nccl-headers=22703 nccl-library=22703
@# Collective test starting: reduce_scatter_perf
@# nThread 1 nGpus 1 minBytes 67108864 maxBytes 134217728 step: 2(factor) warmup iters: 1 iters: 20
@#
@# Using devices
@#  Rank  0 Group  0 Pid   6899 on node-7 device  0 [0000:04:00] NVIDIA H100 80GB HBM3
@#  Rank  1 Group  0 Pid   6900 on node-7 device  1 [0000:05:00] NVIDIA H100 80GB HBM3
@#
@#                                                              out-of-place                       in-place
@#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw
@#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
@    67108864       8388608     float     sum      -1   305.10  219.96  109.98       0   301.2  222.81  111.40       0
@   134217728      16777216     float     sum      -1   590.40  227.33  113.67     N/A   585.1  229.39  114.70     N/A
@# Out of bounds values : 0 OK
@# Avg bus bandwidth    : 112.437
@#
@# Collective test concluded: reduce_scatter_perf
""".replace("@", "[1,0]<stdout>:")
VLLM = """INFO 01-05 09:12:28 [__init__.py:241] Automatically detected platform cuda.
Traffic request rate: inf
Burstiness factor: 1.0 (Poisson process)
Maximum request concurrency: 16
============ Serving Benchmark Result ============
Successful requests:                     160
Failed requests:                         0
Maximum request concurrency:             16
Benchmark duration (s):                  62.40
Total input tokens:                      163840
Total generated tokens:                  40960
Request throughput (req/s):              2.56
Output token throughput (tok/s):         656.41
Peak output token throughput (tok/s):    1088.00
Peak concurrent requests:                24.00
Total token throughput (tok/s):          3282.05
---------------Time to First Token----------------
Mean TTFT (ms):                          163.35
Median TTFT (ms):                        148.65
P99 TTFT (ms):                           410.48
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          11.78
Median TPOT (ms):                        11.75
P99 TPOT (ms):                           14.57
---------------Inter-token Latency----------------
Mean ITL (ms):                           11.78
Median ITL (ms):                         10.55
P99 ITL (ms):                            58.31
==================================================
"""


def kineto():
    """The events of one matrix product in a profiled step, with all that the profiler notes of them."""
    base, host = 2413877990000.5, {"pid": 4711, "tid": 4711}
    launch = {"External id": 8, "cbid": 211, "correlation": 31}
    ran = {"External id": 8, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": 31}
    ran |= {"registers per thread": 168, "shared memory": 213248, "blocks per SM": 1.0, "warps per SM": 12.0}
    ran |= {"grid": [132, 1, 1], "block": [384, 1, 1], "est. achieved occupancy %": 19}
    shapes = {"External id": 8, "Ev Idx": 3, "Record function id": 0, "Concrete Inputs": ["", ""]}
    shapes |= {"Input type": ["c10::BFloat16"] * 2, "Input Dims": [[4096, 4096], [4096, 4096]]}
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernelExC", **host, "ts": base + 5, "dur": 6}
    name = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT"
    kernel = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": base + 200, "dur": 212.5}
    mark = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#2", **host, "ts": base, "dur": 80.25}
    found = [
        {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "ts": base, "args": {"name": "python"}},
        mark | {"args": {"External id": 2, "Ev Idx": 0}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", **host, "ts": base + 2, "dur": 15.1, "args": shapes},
        call | {"args": launch},
        {"ph": "s", "id": 31, **host, "ts": base + 5, "cat": "ac2g", "name": "ac2g"},
        kernel | {"args": ran},
        {"ph": "f", "id": 31, "pid": 0, "tid": 7, "ts": base + 200, "cat": "ac2g", "name": "ac2g", "bp": "e"},
        kernel | {"cat": "gpu_user_annotation", "name": "ProfilerStep#2", "args": {"External id": 2}},
        {"ph": "X", "cat": "Trace", "ts": base - 9, "dur": 900, "pid": "Spans", "tid": "PyTorch Profiler", "name": "P"},
        {"ph": "i", "cat": "Trace", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": base + 800},
    ]
    about = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 84929347584, "computeMajor": 9}
    return json.dumps({"schemaVersion": 1, "deviceProperties": [about], "traceEvents": found, "traceName": "t.json"})


def printed():
    """Kind, text, and what the reader finds: quantity and value of each record."""
    job = {"model": "llama-3.1-8b", "sequence_length": 8192, "devices": 8}
    milliseconds = enumerate([30000.1, 4010.5, 4000.5, 3990.5], 101)
    steps = "".join(MEGATRON.format(n=n, samples=128 * n, ms=ms) for n, ms in milliseconds)
    tps = enumerate(["310", "8,190", "8,192", "8,194"], 1)
    return {
        "megatron": (steps, job | {"tp": 2}, {"step_time": 4.0005}),
        "torchtitan": (
            "".join(TITAN.format(n=n, tps=rate) for n, rate in tps),
            job | {"global_batch": 8},
            {"step_time": 1.0, "allocator_memory": 60.11 * 2**30},
        ),
        "nccl-tests": (NCCL, {}, {"collective_time": 590.4e-6}),
        "vllm": (
            VLLM,
            {"model": "llama-3.1-8b", "devices": 1},
            {"time_to_first_token": 0.16335, "time_per_output_token": 0.01178, "output_tokens_per_second": 656.41},
        ),
        "kineto": (kineto(), job | {"global_batch": 8}, {"step_time": 412.5e-6}),
    }


@each("kind", printed())
def test_lines_as_the_tools_print_them(tmp_path, kind):
    text, stated, expected = printed()[kind]
    path = tmp_path / f"printed{'.json' if kind == 'kineto' else '.log'}"
    path.write_text(text)
    assert kind_in(text) == kind
    records, problems = read_records([Measured(path, on="h100-sxm-80gb", stated=stated)])
    assert problems == []
    found = {r.quantity: r.value for r in records}
    assert {name: found[name] for name in expected} == {n: pytest.approx(v, rel=1e-4) for n, v in expected.items()}
