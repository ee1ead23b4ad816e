"""Tables of measurements: columns by name and unit, what they state together, templates."""

import math

import pytest

import perfgrid as pg
from perfgrid import PerfgridError
from perfgrid.validation.measurements.templates import TEMPLATES, template
from perfgrid.validation.schema import read_records
from tests.each import each

from .given import BASE, read, table


@each(
    "column, value, seconds",
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


def test_rows_that_are_none_are_reported_by_line(tmp_path):
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
    assert "the device 'h100' may be h100-pcie-80gb, h100-sxm-80gb or" in told[2]
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


@each(
    "machine, devices, per_node",
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


@each("kind", TEMPLATES)
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
