"""Logs of training: steady steps of the last run, layouts, batches and what a log leaves open."""

from typing import Any

import pytest

from perfgrid import PerfgridError
from perfgrid.validation.measurements.measured import Measured
from perfgrid.validation.schema import read_records
from tests.each import each

from . import logs
from .given import STEPS, read


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


@each("name", bad_logs())
def test_a_log_that_cannot_be_read_is_reported_in_one_line(tmp_path, job, name):
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


@each("kind", ["blocks", "throughput", "times"])
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


def test_validation_of_torchtitan_is_no_step(tmp_path):
    steps, path = [1, 10, 20, 30, 40], tmp_path / "titan.log"
    text = logs.torchtitan(steps, [87, 5600, 5610, 5620, 5630], 44.84)
    lines = [f"validate step: {n:2d}  loss:  6.1  memory: 60.00GiB(70.0%)  tps: 16,000" for n in steps]
    path.write_text(text + "\n".join(lines))
    step, memory = read(path)
    assert (step.reported.value, memory.reported.value) == (5615, 44.84)


@each(
    "mesh, stated, dp, tp, ep, etp",
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


def test_what_the_arguments_in_a_log_leave_open_is_reported(tmp_path):
    """Recomputation is no argument of the log: the default of Megatron-LM is assumed, as of a job file."""
    path = tmp_path / "meg.log"
    path.write_text(logs.megatron(STEPS, 128, 16, seq_length=8192, tensor_model_parallel_size=2))
    (step,) = read(path, on="h100-sxm-80gb")
    assert step.workload.global_batch == 128
    assert "recompute = none" in step.assumed


@each(
    "names, unit, more",
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


def test_throughput_in_tokens_is_reported_by_steps_in_tokens(tmp_path, job):
    """As MLPerf's GPT-3: throughput and the metadata ``step`` count tokens."""
    tokens, path = 128 * 8192, tmp_path / "result.txt"
    events: list[Any] = [(0, "global_batch_size", 128, {}), (0, "max_sequence_length", 8192, {})]
    events += [(n, "tracked_stats", {"throughput": tokens / 9.3}, {"step": 10 * n * tokens}) for n in range(1, 6)]
    path.write_text(logs.mllog(events))
    assert read(path, job=(job,), on="h100-sxm-80gb")[0].value == pytest.approx(9.3)
