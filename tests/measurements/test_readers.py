"""Readers of measurements: hand-worked values, records of the schema, and one line for what cannot be read."""

import json
import math
import random
import re
from typing import Any

import pytest

import perfgrid as pg
from perfgrid import PerfgridError
from perfgrid.cli.main import imported
from perfgrid.validation.measurements.measured import Measured
from perfgrid.validation.measurements.templates import TEMPLATES, template
from perfgrid.validation.schema import Record, read_records

from . import logs

JOB = """torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
  --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 8192 \\
  --swiglu --bf16 --max-position-embeddings 8192 --untie-embeddings-and-output-weights --disable-bias-linear \\
  --normalization RMSNorm --position-embedding-type rope --micro-batch-size 1 --global-batch-size 128 \\
  --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce \\
  --overlap-param-gather --attention-dropout 0 --hidden-dropout 0 --vocab-size 128256
"""
STEPS = [(1, 21000.0), *((n, 9000.0 + n) for n in range(2, 22))]
BASE = {
    "device": "h100-sxm-80gb",
    "devices": 64,
    "model": "llama-3.1-8b",
    "tp": 2,
    "pp": 1,
    "gbs": 256,
    "seq_len": 8192,
}


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(JOB)
    return path


def table(folder, header, *rows, name="runs.csv"):
    path = folder / name
    path.write_text("\n".join([",".join(header), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def read(path, **options) -> Any:
    """The records of a file that has no problem."""
    records, problems = read_records([Measured(path, **options)])
    assert problems == []
    for record in records:
        assert Record.model_validate_json(record.model_dump_json()) == record  # as `perfgrid records read` writes it
    return records


@pytest.mark.parametrize(
    ("column", "value", "seconds"),
    [
        ("step_time_ms", 4000, 4.0),
        ("iteration time (s)", 4, 4.0),
        ("tokens/s", 256 * 8192 / 4, 4.0),
        ("tokens/s/GPU", 256 * 8192 / 4 / 64, 4.0),
        ("tokens_per_second_per_device", 8192, 4.0),
        ("samples_per_second", 64, 4.0),
    ],
)
def test_a_column_is_known_by_its_name_and_unit(tmp_path, column, value, seconds):
    (found,) = read(table(tmp_path, [*BASE, column], [*BASE.values(), value]))
    assert found.value == pytest.approx(seconds)
    assert (found.quantity, found.group, found.id) == ("step_time", "runs", "runs-2")
    assert (found.plan.dp, found.workload.microbatch, found.plan.cp) == (32, 1, 1)
    assert "microbatch = 1" in found.assumed


def test_mfu_is_the_inverse_of_what_the_formulas_say(tmp_path):
    """A step predicted by the formulas, stated as its MFU, is that step."""
    names = {"gbs": "global_batch", "seq_len": "sequence_length"}
    parameters = {names[n]: BASE[n] for n in names}
    layout = {n: [BASE[n]] for n in ("devices", "tp", "pp")}
    outputs = ["step_time", "model_flops_utilization"]
    axes = {"model": [BASE["model"]], "device": [BASE["device"]], "parallelism": layout}
    ds = pg.evaluate(
        pg.Study.make(outputs=outputs, axes=axes, workload_parameters=parameters | {"zero": 1}, dtype="float64")
    )
    mfu = float(ds["model_flops_utilization"].squeeze())
    (found,) = read(table(tmp_path, [*BASE, "mfu"], [*BASE.values(), f"{mfu * 100!r}%"]))
    assert found.value == pytest.approx(float(ds["step_time"].squeeze()), rel=1e-6)
    assert any("FLOPs of the model are counted" in told for told in found.assumed)


def test_rows_that_are_none_are_told_by_line(tmp_path):
    header = [*BASE, "tokens/s/GPU", "step_time"]
    rows = [
        [*BASE.values(), 8192, 4.0],
        [*(BASE | {"tp": 3}).values(), 8192, ""],
        [*(BASE | {"model": "llama-3.1-8c"}).values(), 8192, ""],
        [*(BASE | {"device": "h100"}).values(), 8192, ""],
        [*BASE.values(), "", ""],
        [*BASE.values(), 8192, 5.0],
        [*BASE.values(), "fast", ""],
        [*(BASE | {"gbs": 100}).values(), 8192, ""],
    ]
    records, problems = read_records([table(tmp_path, header, *rows)])
    assert [r.id for r in records] == ["runs-2"]
    told = [p.reason for p in problems]
    assert [p.place.rpartition(":")[2] for p in problems] == list("3456789")
    assert "tp 3 x pp 1 x cp 1 does not divide 64 devices" in told[0]
    assert "no model 'llama-3.1-8c' in the catalog; did you mean 'llama-3.1-8b'" in told[1]
    assert "no device 'h100'; did you mean 'h100-sxm-80gb'" in told[2]
    assert "nothing is measured: fill in one of tokens/s/GPU, step_time" in told[3]
    assert "step_time says a step of 5 s, tokens/s/GPU one of 4 s" in told[4]
    assert "tokens/s/GPU needs a number, found 'fast'" in told[5]
    assert "global batch 100 is no multiple of dp 32 x microbatch 1" in told[6]
    served = {"prompt_tokens": 9, "output_tokens": 9, "batch": 1}
    cases = [
        ({"nodes": 5}, "5 nodes do not make 64 devices"),
        ({"nodes": 16, "gpus_per_node": 8}, "16 nodes x 8 devices_per_node do not make 64 devices"),
        ({"devices": "", "nodes": 8}, "nodes need a column devices_per_node, or devices in their place"),
        ({"gpus_per_node": "all"}, "devices_per_node must be a whole number above zero, found 'all'"),
        (served | {"ttft": 1}, "step_time is measured of training, but the row is of serving"),
        (served | {"tps_per_gpu": 1, "output_throughput": 1, "step_time": ""}, "leave out the one that counts prompts"),
    ]
    for wrong, reason in cases:
        row = BASE | {"step_time": 4} | wrong
        (problem,) = read_records([table(tmp_path, row, row.values())])[1]
        assert reason in problem.reason


@pytest.mark.parametrize(
    ("machine", "devices", "per_node"),
    [
        ({"devices": 64, "gpus_per_node": 8}, 64, 8),
        ({"devices": 64, "gpus_per_node": ""}, 64, 8),
        ({"nodes": 16, "gpus_per_node": 4}, 64, 4),
        ({"devices": 64, "nodes": 16}, 64, 4),
        ({"devices": "", "num_nodes": 8, "devices_per_node": 8}, 64, 8),
    ],
)
def test_nodes_and_their_devices_are_columns(tmp_path, machine, devices, per_node):
    row = {n: v for n, v in BASE.items() if n != "devices"} | machine | {"step_time_s": 4}
    (found,) = read(table(tmp_path, row, row.values()))
    assert (found.devices, found.devices_per_node, found.plan.dp) == (devices, per_node, 32)


def test_tokens_per_second_of_serving_are_generated_ones(tmp_path):
    served = {"device": "h100-sxm-80gb", "devices": 2, "model": "llama-3.1-8b", "tp": 2, "prompt_tokens": 1000}
    served |= {"output_tokens": 200, "concurrency": 16, "ttft_ms": 200, "tokens/s/GPU": 750}
    first, rate = read(table(tmp_path, served, served.values()))
    assert (first.quantity, first.value) == ("time_to_first_token", pytest.approx(0.2))
    assert (rate.quantity, rate.value) == ("output_tokens_per_second", pytest.approx(1500))
    assert "tokens/s/GPU = output_tokens_per_second" in rate.assumed
    (alone,) = read(table(tmp_path, served, (served | {"ttft_ms": ""}).values()))
    assert (alone.quantity, alone.value) == (rate.quantity, rate.value)


def test_a_column_has_one_meaning(tmp_path):
    shape = {"device": "h100-sxm-80gb", "op": "all_reduce", "ranks": 16, "size": 2**30}
    for name, value in {"busbw (GB/s)": 50, "busbw_gb_s": 50, "busbw_gbit_per_s": 400, "busbw": 50}.items():
        (found,) = read(table(tmp_path, [*shape, name], [*shape.values(), value]))
        assert (found.quantity, found.value) == ("collective_bandwidth", pytest.approx(50e9)), name
    for name in ("busbw_gbps", "busbw (Gb/s)", "BusBW Gbps"):
        with pytest.raises(PerfgridError, match=r"two meanings: name it busbw_gb_per_s .* or busbw_gbit_per_s"):
            read(table(tmp_path, [*shape, name], [*shape.values(), 400]))
    with pytest.raises(PerfgridError, match=r"'tps' .* tokens_per_second or tokens_per_second_per_device"):
        read(table(tmp_path, [*BASE, "tps"], [*BASE.values(), 8192]))
    step, memory = read(table(tmp_path, [*BASE, "tps_per_gpu", "max_memory_allocated_gib"], [*BASE.values(), 8192, 40]))
    assert (step.value, memory.quantity) == (pytest.approx(4), "allocator_memory")


def test_a_job_file_states_the_job_and_predicts_as_the_study_does(tmp_path, job):
    """The record of a log carries the whole job: predicted is what `explain` says of the study of `read-job`."""
    path = tmp_path / "train.log"
    path.write_text(logs.megatron(STEPS, 128, 16))
    (found,) = read(path, job=(job,), on="h100-sxm-80gb")
    assert found.value == pytest.approx(9.012, abs=2e-3)  # median of steps 2 to 21
    assert found.note == "median of 20 logged iterations, 2 to 21"
    assert (found.software, found.plan.dp, found.plan.zero) == ("megatron-core", 8, 1)
    content = {
        "outputs": ["step_time"],
        "dtype": "float64",
        "axes": {
            "model": ["llama-3.1-8b"],
            "device": ["h100-sxm-80gb"],
            "software": ["megatron-core"],
            "parallelism": {n: [v] for n, v in {"devices": 16, "tp": 2, "pp": 1, "chunks": 1}.items()},
        },
        "workload_parameters": {"sequence_length": 8192, "global_batch": 128, "zero": 1, "recompute": "none"},
    }
    study = pg.Study.make(**content)
    (predicted,) = pg.validate([Measured(path, job=(job,), on="h100-sxm-80gb")]).predictions
    assert predicted.predicted == pytest.approx(float(pg.evaluate(study)["step_time"].squeeze()), rel=1e-9)


def bad_logs():
    """What a log holds, and the one line that says why it is none."""
    ramp = [(n, 3000.0 * (1 + n % 5)) for n in range(1, 30)]
    two = logs.megatron(STEPS, 128, 16) + logs.megatron(STEPS, 128, 32)
    arguments = logs.megatron([], 128, 16, seq_length=8192, tensor_model_parallel_size=2)
    return {
        "half": (arguments, "no line of an iteration"),
        "few": (logs.megatron(STEPS[:2], 128), "2 logged steps, at least 3 are needed"),
        "unsteady": (logs.megatron(ramp, 128), "no steady step"),
        "worlds": (two, r"several world sizes \(16 in line 1, 32 in line 23\)"),
        "batch": (logs.megatron(STEPS, 64, 16), "global_batch is 64 by the lines of iterations, but 128 by run.sh"),
        "devices": (logs.megatron(STEPS, 128, 32, seq_length=8192, tensor_model_parallel_size=2), "by run.sh"),
        "titan": (
            logs.torchtitan([1, 2], [10, 5000], 40.0),
            "device is h100-sxm-96gb-.* by the log, but h100-sxm-80gb by",
        ),
        "text": ("nothing of interest", "no measurements that are recognised"),
        "mllog": (':::MLLOG {"key": "global_batch_size", "val', "cut off or no JSON"),
        "trace": ('{"traceEvents": [{"ph": "X",', "a trace that is cut off"),
        "nccl": ("#  size count algbw busbw", "without a line of results"),
        "vllm": ('{"request_throughput": 1, "mean_ttft_ms": 5}', "no complete result"),
    }


@pytest.mark.parametrize("name", bad_logs())
def test_a_log_that_cannot_be_read_is_told_in_one_line(tmp_path, job, name):
    text, told = bad_logs()[name]
    path = tmp_path / "bad.log"
    path.write_text(text)
    with pytest.raises(PerfgridError, match=told) as mistake:
        read_records([Measured(path, job=(job,), on="h100-sxm-80gb")])
    assert "\n" not in str(mistake.value)
    assert "bad.log" in str(mistake.value)


def test_a_ramp_of_the_batch_and_a_restart_leave_the_last_run(tmp_path):
    steps = logs.megatron(STEPS[:9], 64, 16) + logs.megatron(STEPS[9:], 128)
    again = logs.megatron([(n, 2 * ms) for n, ms in STEPS], 128, 16) + steps
    path = tmp_path / "ramp.log"
    path.write_text(again)
    stated = {"model": "llama-3.1-8b", "sequence_length": 8192, "tp": 2}
    (found,) = read(path, on="h100-sxm-80gb", stated=stated)
    assert found.workload.global_batch == 128
    assert found.note == "median of 11 logged iterations, 11 to 21"


def test_all_ranks_of_torchtitan_may_log(tmp_path):
    path = tmp_path / "titan.log"
    path.write_text(
        logs.torchtitan([1, 10, 20, 30, 40], [87, 5600, 5610, 5620, 5630], 44.84, "['dp_shard', 'tp'], [4, 2]", 4)
    )
    step, memory = read(path)
    assert step.value == pytest.approx(8 * 8192 / (8 * 5615), rel=1e-3)
    assert (step.plan.dp, step.plan.tp, step.devices) == (4, 2, 8)
    assert (memory.quantity, memory.value) == ("allocator_memory", pytest.approx(44.84 * 2**30))


@pytest.mark.parametrize("kind", ["blocks", "throughput", "times"])
def test_mllog(tmp_path, job, kind):
    """Steps of 9.3 s by blocks, by samples per second, and by the time of steps."""
    events: list[Any] = [(0, "global_batch_size", 128, {}), (0, "max_sequence_length", 8192, {})]
    for n in range(6):
        begin = 100_000 * n
        events.append((begin, "block_start", None, {"samples_count": 1280 * n}))
        if kind == "throughput":
            events.append((begin, "tracked_stats", {"throughput": 128 / 9.3}, {"step": n}))
        if kind == "times":
            events.append((begin, "tracked_stats", {"train_step_time": 9.3, "loss": 2.0}, {"step": n}))
        events.append((begin + 93_000, "block_stop", None, {"samples_count": 1280 * (n + 1)}))
    path = tmp_path / "result.txt"
    path.write_text(logs.mllog(events))
    (found,) = read(path, job=(job,), on="h100-sxm-80gb")
    assert found.value == pytest.approx(9.3)


def test_serving_results_state_lengths_and_load(tmp_path):
    saved = {
        "model_id": "meta-llama/Llama-3.1-8B-Instruct",
        "max_concurrency": 8,
        "request_rate": "inf",
        "completed": 80,
    }
    saved |= {"total_input_tokens": 81920, "total_output_tokens": 40960, "output_throughput": 640.0}
    saved |= {"request_throughput": 1.25, "mean_ttft_ms": 50.0, "mean_tpot_ms": 12.0}
    printed = """Maximum request concurrency: 8
============ Serving Benchmark Result ============
Successful requests:                     80
Total input tokens:                      81920
Total generated tokens:                  40960
Output token throughput (tok/s):         640.00
---------------Time to First Token----------------
Mean TTFT (ms):                          50.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          12.00
==================================================
"""
    means = {"time_to_first_token": 50.0, "inter_token_latency": 12.0, "request_latency": 6000.0}
    export = {name: {"unit": "ms", "avg": value} for name, value in means.items()}
    export |= {"output_token_throughput": {"unit": "tokens/sec", "avg": 640.0}, "request_count": {"avg": 80}}
    export |= {"input_sequence_length": {"avg": 1024.0}, "output_sequence_length": {"avg": 512.0}}
    export["input_config"] = {"endpoint": {"model_names": ["Llama-3.1-8B-Instruct"]}, "loadgen": {"concurrency": 8}}
    texts = {"saved.json": json.dumps(saved), "printed.txt": printed, "export.json": json.dumps(export)}
    for name, text in texts.items():
        path = tmp_path / name
        path.write_text(text)
        records = {r.quantity: r for r in read(path, on="h100-sxm-80gb", stated={"model": "llama-3.1-8b"})}
        assert records["time_to_first_token"].value == pytest.approx(0.05)
        assert records["time_per_output_token"].value == pytest.approx(0.012)
        assert records["output_tokens_per_second"].value == pytest.approx(640)
        load = records["time_to_first_token"].workload
        assert (load.prompt_tokens, load.output_tokens, load.batch, load.batch_rule, load.requests) == (
            *(1024, 512, 8),
            "concurrency",
            80,
        )


def test_nccl_ranks_that_contradict_the_bandwidths_are_told(tmp_path):
    about = {"ranks": 8, "device": "NVIDIA H100 80GB HBM3", "sizes": [2**30], "microseconds": [4200], "algbw": [255.7]}
    path = tmp_path / "ar.txt"
    path.write_text(logs.nccl(about | {"busbw": [255.7 * 14 / 8]}, "all_reduce_perf"))
    (found,) = read(path)
    assert (found.value, found.collective.size, found.collective.ranks) == (pytest.approx(4.2e-3), 2**30, 8)
    path.write_text(logs.nccl(about | {"busbw": [255.7 * 30 / 16]}, "all_reduce_perf"))
    with pytest.raises(PerfgridError, match="8 ranks are stated"):
        read(path)


TWO_PROGRAMS = """# all_reduce_perf
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
268435456 67108864 float sum -1 1000 268.44 503.32 0 1000 1 1 0
# Out of bounds values : 0 OK
# Collective test concluded: all_reduce_perf
# all_gather_perf
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
[1,0]<stdout>: 134217728 33554432 float none -1 1000 134.22 125.83 0 1000 1 1 0
67108864 16777216 float none -1 1100 67.11 62.91 0 1000 1 1 0
"""
ONE_NODE = "".join(f"#  Rank {r} Group 0 Pid 9 on n device {r} [0x01] NVIDIA H100 80GB HBM3\n" for r in range(16))


def test_each_table_of_nccl_tests_has_its_own_program(tmp_path):
    path = tmp_path / "both.log"
    path.write_text(TWO_PROGRAMS)
    found = read(path, on="h100-sxm-80gb", stated={"devices": 16})
    assert [(r.collective.op, r.collective.size, r.collective.ranks) for r in found] == [
        ("all_reduce", 268435456, 16),
        ("all_gather", 134217728, 16),
        ("all_gather", 67108864, 16),
    ]
    assert found[2].value == pytest.approx(1.1e-3)
    path.write_text(ONE_NODE + TWO_PROGRAMS)
    assert [r.devices_per_node for r in read(path)] == [16] * 3


@pytest.mark.parametrize(
    ("text", "options", "told"),
    [
        (
            TWO_PROGRAMS,
            {"collective": "all_reduce"},
            "both.log:7: collective is all_reduce by --set, but .* all_gather",
        ),
        (TWO_PROGRAMS, {"devices": 8}, "both.log:2: 8 ranks are stated, but 268.44 and 503.32 GB/s .* in line 3"),
        (TWO_PROGRAMS.replace("62.91", "58.72"), {}, "67.11 and 58.72 GB/s of all_gather in line 9"),
        (TWO_PROGRAMS.replace("# all_gather_perf\n", ""), {}, "both.log:6: the collective is not stated"),
        (TWO_PROGRAMS.replace("# all_gather", "# alltoall_perf all_gather"), {}, "either of all_gather, all_to_all"),
        (TWO_PROGRAMS.replace("# all_gather", "# gather"), {}, "both.log:7: of the collective of gather_perf"),
        (ONE_NODE + TWO_PROGRAMS, {"devices": 32}, "devices is 32 by --set, but 16 ranks are listed"),
        (
            ONE_NODE.replace("H100 80GB HBM3", "H200") + TWO_PROGRAMS,
            {},
            "device is h200-sxm-141gb by the lines of ranks",
        ),
    ],
)
def test_what_a_table_of_nccl_tests_contradicts_is_told(tmp_path, text, options, told):
    path = tmp_path / "both.log"
    path.write_text(text)
    with pytest.raises(PerfgridError, match=told):
        read(path, on="h100-sxm-80gb", stated={"devices": 16} | options)


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_template_tells_what_to_fill_in_and_is_read_when_filled(tmp_path, kind):
    path = tmp_path / "mine.csv"
    path.write_text(template(kind))
    with pytest.raises(PerfgridError, match="holds no rows: add one for each run, device"):
        read(path)
    rows = {
        "training": "h100-sxm-80gb,64,llama-3.1-8b,8192,256,1,2,1,4.0,",
        "serving": "h100-sxm-80gb,1,llama-3.1-8b,1,bf16,1024,512,8,50,12,",
        "kernel": "h100-sxm-80gb,gemm,bf16,forward,8192,8192,8192,1500",
        "collective": "h100-sxm-80gb,all_reduce,8,1073741824,4200",
    }
    path.write_text(template(kind) + rows[kind] + "\n")
    records = read(path)
    expected = {"serving": ["time_to_first_token", "time_per_output_token"]}
    assert [r.quantity for r in records] == expected.get(kind, [f"{'step' if kind == 'training' else kind}_time"])
    assert math.isclose(records[0].value, {"training": 4.0, "serving": 0.05, "kernel": 1.5e-3}.get(kind, 4.2e-3))


def sound_files():
    """A text of each kind that is read."""
    about = {"ranks": 8, "device": "NVIDIA H100 80GB HBM3", "sizes": [2**30], "microseconds": [4200.0]}
    about |= {"algbw": [255.7], "busbw": [447.5]}
    events: list[Any] = [(0, "global_batch_size", 128, {}), (0, "max_sequence_length", 8192, {})]
    events += [(100 * n, "tracked_stats", {"throughput": 13.0}, {"step": n}) for n in range(5)]
    saved = {"model_id": "llama-3.1-8b", "max_concurrency": 8, "completed": 80, "total_input_tokens": 81920}
    saved |= {"total_output_tokens": 40960, "request_throughput": 1.25, "mean_ttft_ms": 50.0}
    export = {"output_token_throughput": {"avg": 640.0}, "request_latency": {"unit": "ms", "avg": 6000.0}}
    export |= {"input_sequence_length": {"avg": 1024.0}, "output_sequence_length": {"avg": 512.0}}
    export["input_config"] = {"model": "llama-3.1-8b", "concurrency": 8}
    trace = {"traceEvents": [logs.step(1, 0, 100), logs.kernel("gemm", 10, 20), logs.kernel("ncclAllReduce", 40, 9)]}
    header = ",".join([*BASE, "step_time", "mfu"])
    return {
        "megatron": logs.megatron(STEPS, 128, 16, seq_length=8192, tensor_model_parallel_size=2),
        "torchtitan": logs.torchtitan([1, 10, 20, 30, 40], [87, 5600, 5610, 5620, 5630], 44.84),
        "mllog": logs.mllog(events),
        "nccl-tests": logs.nccl(about, "all_reduce_perf"),
        "vllm": json.dumps(saved),
        "genai-perf": json.dumps(export),
        "kineto": json.dumps(trace),
        "csv": f"{header}\n{','.join(map(str, BASE.values()))},4.0,\n",
    }


@pytest.mark.parametrize("kind", sound_files())
def test_damaged_files_end_in_one_line(tmp_path, kind):
    """Whatever numbers, words and ends a damaged file has, it is read or refused in one line."""
    text, draw, path = sound_files()[kind], random.Random(7), tmp_path / "damaged.txt"
    stated = {"model": "llama-3.1-8b", "recompute": "selective"}
    words = ["-1", "0", "1e400", "nan", "", "x", "null", "[]", '"y"', "9" * 40, "\x00", "{", "999999999", "0.5"]
    for _ in range(60):
        parts = re.split(r"(\d+\.?\d*)", text)
        for _ in range(draw.choice([1, 1, 2, 5])):
            parts[draw.randrange(len(parts))] = draw.choice(words)
        damaged = "".join(parts)
        path.write_text(damaged[: draw.randrange(len(damaged))] if draw.random() < 0.2 else damaged)
        try:
            on = None if kind == "torchtitan" else "h100-sxm-80gb"  # its log states the device
            records, problems = read_records([Measured(path, kind, on=on, stated=stated)])
            told = [p.reason for p in problems]
            assert all(math.isfinite(r.value) for r in records)
        except PerfgridError as error:
            told = [str(error)]
        assert all("\n" not in reason for reason in told)


def test_the_commands_take_tables_and_logs(tmp_path, job, capsys):
    """`records read` writes what `validate` reads; `calibrate` fits a stack to a table at once."""
    log, mine, sweep = tmp_path / "train.log", tmp_path / "mine.jsonl", tmp_path / "sweep.csv"
    log.write_text(logs.megatron(STEPS, 128, 16))
    options = ["--job", str(job), "--on", "h100-sxm-80gb"]
    imported("records").main(["read", str(log), "-o", str(mine), *options], standalone_mode=False)
    (found,) = read(mine)
    assert found == read(log, job=(job,), on="h100-sxm-80gb")[0]
    rows = [[*(BASE | {"tp": tp, "gbs": 128 * n}).values(), 8000] for tp in (1, 2, 4) for n in (1, 2, 4, 8)]
    table(tmp_path, [*BASE, "tokens/s/GPU"], *rows, name=sweep.name)
    arguments = [str(sweep), "--software", "megatron-core", "--constant", "library_efficiency"]
    imported("calibrate").main(arguments, standalone_mode=False)
    assert "megatron-core.library_efficiency" in capsys.readouterr().out


def test_a_folder_holds_measurements_beside_other_files(tmp_path, job):
    (tmp_path / "train.log").write_text(logs.megatron(STEPS, 128, 16))
    (tmp_path / "config.json").write_text('{"hidden_size": 4096}')
    (tmp_path / "notes.txt").write_text("half of this is about steps")
    (found,) = read(tmp_path, job=(job,), on="h100-sxm-80gb")
    assert found.id.endswith("-train")


def test_validation_of_torchtitan_is_no_step(tmp_path):
    steps, path = [1, 10, 20, 30, 40], tmp_path / "titan.log"
    text = logs.torchtitan(steps, [87, 5600, 5610, 5620, 5630], 44.84)
    lines = [f"validate step: {n:2d}  loss:  6.1  memory: 60.00GiB(70.0%)  tps: 16,000" for n in steps]
    path.write_text(text + "\n".join(lines))
    step, memory = read(path)
    assert (step.reported.value, memory.reported.value) == (5615, 44.84)


@pytest.mark.parametrize(
    ("mesh", "stated", "dp", "tp", "ep", "etp"),
    [
        ("device mesh with ['dp_shard_mod_ep', 'dp_shard_in_ep', 'tp'], [4, 2, 2]", {}, 8, 2, 4, 1),
        ("device mesh with ['dp_shard_mod_ep', 'dp_shard_in_ep', 'tp'], [4, 2, 2]", {"ep": 2}, 8, 2, 2, 2),
        ("device mesh with ['dp_shard_mod_ep', 'dp_shard_in_ep', 'tp'], [4, 2, 2]", {"etp": 2}, 8, 2, 2, 2),
        ("device mesh with ['dp_replicate', 'dp_shard_mod_ep', 'cp'], [2, 4, 2]", {}, 8, 1, 2, 1),
        ("device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=2, ep=4", {}, 8, 2, 4, None),
    ],
)
def test_meshes_of_torchtitan_with_experts(tmp_path, mesh, stated, dp, tp, ep, etp):
    """Sixteen devices, whichever axes hold the ranks of experts (torchtitan's parallel_dims)."""
    path = tmp_path / "titan.log"
    text = logs.torchtitan([1, 10, 20, 30, 40], [87, 5600, 5600, 5600, 5600], 44.84)
    text = text.replace("device mesh with ['dp_shard'], [8]", mesh).replace("llama3 8B", "deepseek_v3 671B")
    path.write_text(text.replace("global batch size 8", "global batch size 16"))
    step = read(path, stated=stated)[0]
    assert (step.devices, step.plan.dp, step.plan.tp, step.plan.ep, step.plan.etp) == (16, dp, tp, ep, etp)
    assert step.value == pytest.approx(16 * 8192 / (16 * 5600))
    path.write_text(path.read_text().replace("'tp'", "'spare'").replace("tp=2", "spare=2").replace("'cp'", "'spare'"))
    with pytest.raises(PerfgridError, match="unknown axis spare of size 2"):
        read(path, stated=stated)


def blocks(begins, counts, names=("samples_count", "samples_count"), seconds=93_000, **more):
    """Events of blocks, whose counts go from each number to the next."""
    events: list[Any] = [(0, "global_batch_size", 128, {}), (0, "max_sequence_length", 8192, {})]
    for begin, first, last in zip(begins, counts, counts[1:], strict=False):
        events += [(begin, "block_start", None, {names[0]: first} | more)]
        events += [(begin + seconds, "block_stop", None, {names[1]: last})]
    return events


def test_only_the_last_run_of_a_log_counts(tmp_path, job):
    """A restart halves the step and the memory: every reader tells those of the last run."""
    memory = "[Rank 0] (after 2 iterations) memory (MB) | max allocated: 2 | reserved: 3 | max reserved: {}\n"
    slow, fast = ([(n, ms) for n in range(1, 12)] for ms in (2000, 1000))
    names = {"seq_length": 8192, "tensor_model_parallel_size": 2}
    megatron = "".join(logs.megatron(s, 128, 16, **names) + memory.format(m) for s, m in ((slow, 70000), (fast, 35000)))
    numbers = [*range(1, 101, 10)]
    titan = "".join(logs.torchtitan(numbers, [r] * 10, m, ranks=2) for r, m in ((4000, 80.0), (8000, 40.0)))
    begins, counts = [100_000 * n for n in range(6)], [1280 * n for n in range(7)]
    mllog = logs.mllog(blocks(begins, counts, seconds=20_000) + blocks(begins, counts, seconds=10_000)[2:])
    texts = {"megatron": (megatron, 1.0, 35000 * 2**20), "torchtitan": (titan, 8192 / 8000, 40 * 2**30)}
    for name, (text, seconds, reserved) in (texts | {"mllog": (mllog, 1.0, None)}).items():
        path = tmp_path / f"{name}.log"
        path.write_text(text)
        own = {} if name == "torchtitan" else {"on": "h100-sxm-80gb"}
        step, *rest = read(path, **own, **({"job": (job,)} if name == "mllog" else {}))
        assert step.value == pytest.approx(seconds), name
        assert [r.value for r in rest] == ([pytest.approx(reserved)] if reserved else []), name


def test_what_the_arguments_in_a_log_leave_open_is_told(tmp_path):
    """Recomputation is no argument of the log: the default of Megatron-LM is assumed, as of a job file."""
    path = tmp_path / "meg.log"
    path.write_text(logs.megatron(STEPS, 128, 16, seq_length=8192, tensor_model_parallel_size=2))
    (step,) = read(path, on="h100-sxm-80gb")
    assert step.workload.global_batch == 128
    assert "recompute = none" in step.assumed


@pytest.mark.parametrize(
    ("names", "unit", "more"),
    [
        (("samples_count", "samples_count"), 1280, {}),
        (("epoch_num", "epoch_num"), 1280 * 8192, {}),
        (("epoch_num", "epoch_num"), 1280, {}),
        (("first_epoch_num", "epoch_num"), 1280 * 8192, {}),
        (("step", "step"), 10, {}),
    ],
)
def test_blocks_count_steps_samples_or_tokens(tmp_path, job, names, unit, more):
    """Ten steps of 9.3 s in each block, in whatever its counts are."""
    path = tmp_path / "result.txt"
    options = {"job": (job,), "on": "h100-sxm-80gb"}
    counts = [unit * n for n in range(7)]
    path.write_text(logs.mllog(blocks([100_000 * n for n in range(6)], counts, names)))
    assert read(path, **options)[0].value == pytest.approx(9.3)
    events = blocks([100_000 * n for n in range(6)], counts, ("first_epoch_num",) * 2, epoch_count=1280 * 8192)
    same = [(ms, key, value, about) for ms, key, value, about in events]
    for n in range(2, len(same), 2):  # both ends state where the block begins
        same[n + 1] = (*same[n + 1][:3], {"first_epoch_num": same[n][3]["first_epoch_num"]})
    path.write_text(logs.mllog(same))
    assert read(path, **options)[0].value == pytest.approx(9.3)
    path.write_text(logs.mllog(blocks([100_000 * n for n in range(6)], range(7), ("epoch_num",) * 2)))
    with pytest.raises(PerfgridError, match="epoch_num grows by 1 in a block, which is no whole number of steps"):
        read(path, **options)


def test_throughput_in_tokens_is_told_by_steps_in_tokens(tmp_path, job):
    """As MLPerf's GPT-3: throughput and the metadata ``step`` count tokens."""
    tokens, path = 128 * 8192, tmp_path / "result.txt"
    events: list[Any] = [(0, "global_batch_size", 128, {}), (0, "max_sequence_length", 8192, {})]
    events += [(n, "tracked_stats", {"throughput": tokens / 9.3}, {"step": 10 * n * tokens}) for n in range(1, 6)]
    path.write_text(logs.mllog(events))
    assert read(path, job=(job,), on="h100-sxm-80gb")[0].value == pytest.approx(9.3)


def test_options_and_files_agree_or_say_so(tmp_path):
    saved = {"model_id": "Qwen/Qwen3-8B", "max_concurrency": 8, "completed": 80, "total_input_tokens": 80 * 998}
    saved |= {"total_output_tokens": 40960, "request_throughput": 1.25, "mean_ttft_ms": 50.0}
    serving, titan = tmp_path / "saved.json", tmp_path / "titan.log"
    serving.write_text(json.dumps(saved))
    titan.write_text(logs.torchtitan([1, 10, 20, 30, 40], [87, 5600, 5610, 5620, 5630], 44.84))
    found = read(serving, on="h100-sxm-80gb", stated={"prompt_tokens": 1000})
    assert found[0].workload.prompt_tokens == 1000  # a mean of 998 is that length
    wrong = [
        (serving, {"prompt_tokens": 2000}, "prompt_tokens is 998 by the result, but 2000 by --set"),
        (serving, {"model": "llama-3.1-8b"}, "the model is qwen3-8b by the result, but llama-3.1-8b by an option"),
        (titan, {"model": "llama-3.1-70b"}, "the model is llama-3.1-8b by the log, but llama-3.1-70b by an option"),
        (titan, {"devices": 16}, "devices is 8 by the mesh in the log, but 16 by --set"),
    ]
    for path, stated, told in wrong:
        with pytest.raises(PerfgridError, match=told):
            read(path, on="h100-sxm-80gb" if path == serving else None, stated=stated)


@pytest.mark.parametrize(("unit", "factor"), [("ms", 1e-3), ("seconds", 1.0), ("us", 1e-6), ("fortnights", None)])
def test_units_of_an_export_are_known_or_refused(tmp_path, unit, factor):
    export = {"output_token_throughput": {"avg": 640.0}, "request_latency": {"unit": unit, "avg": 6000.0}}
    export |= {"input_sequence_length": {"avg": 1024.0}, "output_sequence_length": {"avg": 512.0}}
    export["input_config"] = {"model": "llama-3.1-8b", "concurrency": 8}
    path = tmp_path / "export.json"
    path.write_text(json.dumps(export))
    if factor is None:
        with pytest.raises(PerfgridError, match="request_latency in unknown unit 'fortnights': known are s, "):
            read(path, on="h100-sxm-80gb")
    else:
        found = {r.quantity: r for r in read(path, on="h100-sxm-80gb")}["request_latency"]
        assert (found.value, found.reported.unit) == (pytest.approx(6000 * factor), unit)
