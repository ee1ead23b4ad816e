"""Traces are valid Chrome trace events, and what they show adds up to the formulas."""

import json
import re
from collections import defaultdict
from itertools import pairwise
from math import floor, isfinite

import pytest
from hypothesis import given
from typer.testing import CliRunner

import perfgrid
from perfgrid.analysis.chrome_trace import chrome_trace, slice_name
from perfgrid.analysis.execution import PASSES, execute
from perfgrid.analysis.pass_timeline import AFTER, BEFORE, LAYER
from perfgrid.analysis.timeline import dataset
from perfgrid.cli.main import app
from perfgrid.formulas import INNER, axes
from tests.test_bad_input import run
from tests.test_timeline import many, played, runs

KEYS = {  # of an event, by its phase
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "C": {"name", "pid", "tid", "ts", "args"},
    "s": {"name", "cat", "id", "pid", "tid", "ts"},
    "t": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
    "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
}
NAMES = {"process_name": str, "thread_name": str, "process_sort_index": int, "thread_sort_index": int}
F, B, W = 1.0, 1.5, 1.0  # forward pass, input gradient, weight gradient
DEEPSEEK = "run=deepseek-v3,system=H800,schedule=dualpipe,microbatch=1,parallelism=tp1.cp1.pp4.dp512.ep64"


def checked(text):
    """The trace of a JSON text, the names of its threads, and its flows; every rule of the format is an assertion.

    Beside the Trace Event Format those of Perfetto's importer, which cuts times to whole nanoseconds and binds flow
    events to the innermost slice that is open.
    """

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    trace = json.loads(text, parse_constant=refuse)
    assert set(trace) == {"traceEvents", "displayTimeUnit", "metadata"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events = trace["traceEvents"]
    names, owners = {}, {}
    for event in events:
        assert set(event) == {"ph", *KEYS[event["ph"]]}, event
        assert all(type(event[key]) is int and event[key] > 0 for key in ("pid", "tid"))
        assert owners.setdefault(event["tid"], event["pid"]) == event["pid"], "ids of threads are unique"
        for key in {"ts", "dur"} & set(event):
            assert type(event[key]) in (int, float)
            assert event[key] >= 0
        if event["ph"] == "M":
            ((key, value),) = event["args"].items()
            assert event["name"].endswith(key)
            assert type(value) is NAMES[event["name"]]
            assert (event["name"], event["tid"]) not in names, "named once"
            names[event["name"], event["tid"]] = value
    timed = [e for e in events if e["ph"] != "M"]
    assert all(a["ts"] <= b["ts"] for a, b in pairwise(timed)), "a flow begins before it ends"
    stacks, flows = defaultdict(list), defaultdict(list)
    for event in timed:
        assert ("process_name", event["pid"]) in names
        assert ("thread_name", event["tid"]) in names
        now, stack = floor(event["ts"] * 1000), stacks[event["tid"]]
        while stack and stack[-1][1] <= now:
            stack.pop()
        if event["ph"] == "X":
            end = now + floor(event["dur"] * 1000)
            assert not stack or (end <= stack[-1][1] and event["ts"] + event["dur"] <= stack[-1][2])
            stack.append((now, end, event["ts"] + event["dur"]))
        elif event["ph"] == "C":
            assert event["args"]
            assert all(type(v) in (int, float) and isfinite(v) and v >= 0 for v in event["args"].values())
        else:
            assert stack, "a flow event lies in a slice"
            assert event.get("bp", "e") == "e"
            flows[event["cat"], event["name"], event["id"]].append(event)
    for flow in flows.values():
        assert [e["ph"] for e in flow] == ["s", "t", "f"]
        assert flow[0]["pid"] == flow[1]["pid"] != flow[2]["pid"]
    threads = {tid: name for (kind, tid), name in names.items() if kind == "thread_name"}
    return trace, threads, list(flows.values())


def slices_of(trace, threads, name, pid):
    return [
        e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == pid and threads[e["tid"]].startswith(name)
    ]


def busy(slices):
    """Seconds in which at least one slice runs."""
    spans = sorted({(e["ts"], e["ts"] + e["dur"]) for e in slices})
    return sum(end - start for start, end in spans) / 1e6


def idle(slices):
    """Seconds in which a rank waits, for a pass or for an exchange that no other pass hides."""
    return sum(e["dur"] for e in slices if e["name"].split()[0] in ("wait", "expert")) / 1e6


@many
@given(runs())
def test_traces_of_any_schedule(case):
    """Valid; an arrow for each transfer, to the next stage or back; every device computes or waits all the time."""
    events = played(*case)
    trace, threads, flows = checked(json.dumps(chrome_trace(dataset(events, {}))))
    end = max(e.end for e in events if e.kind != "transfer")
    assert len(flows) == sum(e.kind == "transfer" for e in events)
    for device in range(case[1]):
        own = slices_of(trace, threads, "compute", 1000 * (device + 1))
        assert busy(own) == pytest.approx(end, abs=1e-7)
        waits = sum(e.end - e.start for e in events if e.device == device and e.kind == "wait")
        assert sum(e["dur"] for e in own if e["name"] == "wait") / 1e6 == pytest.approx(waits, abs=1e-7)


@pytest.mark.parametrize(
    ("schedule", "pp", "microbatches", "bubble"),
    [
        ("gpipe", 4, 8, 3 * (F + B + W)),
        ("1f1b", 4, 8, 3 * (F + B + W)),
        ("zb_h1", 4, 8, 3 * (F + B - W)),
        ("zb_v", 4, 8, 3 * max(B, 2 * (B - W))),
        ("dualpipe", 8, 20, 2 * F + 3 * (2 * B - W)),
        ("dualpipe_v", 4, 20, 2 * F + 3 * (2 * B - W)),
    ],
)
def test_idle_time_is_the_bubble(schedule, pp, microbatches, bubble):
    """Equal stages: on every rank exactly the closed form of docs/study.md."""
    chunks = 2 if schedule.endswith("_v") else 1
    times = {kind: [time] * (pp * chunks) for kind, time in zip(PASSES, (F, B, W), strict=True)}
    trace, threads, _ = checked(
        json.dumps(chrome_trace(dataset(execute(schedule, pp, chunks, microbatches, times), {})))
    )
    for rank in range(pp):
        assert idle(slices_of(trace, threads, "", 1000 * (rank + 1))) == pytest.approx(bubble, abs=1e-6)


def test_the_dualpipe_of_deepseek(tmp_path):
    """Idle time of the slowest ranks is the bubble of the formulas with exposed transfers, memory what they count.

    Input gradients are longer than forward passes, where the formulas count one exchange too many.
    """
    path = tmp_path / "trace.json"
    shown = CliRunner().invoke(app, ["timeline", "studies/deepseek.toml", "--at", DEEPSEEK, "-o", str(path)])
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines()[-1] == f"saved {path}"
    trace, threads, flows = checked(path.read_text())
    study = perfgrid.load_study("studies/deepseek.toml")
    at: dict[str, str] = dict(re.findall(r"(\w+)=([\w.-]+)", DEEPSEEK))
    names = ("bubble_time", "exposed_pp_time", "slowest_stage_time", "middle_stage_time")
    names = (*names, "first_stage_in_flight", "memory_per_device", "microbatches")
    formulas = {name: float(perfgrid.explain(study, name, at).derivation.value) for name in names}
    assert formulas["slowest_stage_time"] == formulas["middle_stage_time"]
    assert len(flows) == 2 * formulas["microbatches"] * 3  # there and back between four stages
    assert {abs(a["pid"] - c["pid"]) for a, _, c in flows} == {1000}
    assert trace["metadata"]["schedule"] == "dualpipe"
    whole, memory = trace["metadata"]["pipeline_time"], []
    for rank in range(4):
        own = slices_of(trace, threads, "", 1000 * (rank + 1))
        computing = [e for e in own if e["cat"] == "compute"]
        assert max(e["ts"] + e["dur"] for e in computing) / 1e6 == pytest.approx(whole, abs=1e-8)
        exchanges = [e["dur"] / 1e6 for e in own if e["name"].startswith("expert exchange")]
        assert idle(own) == pytest.approx(
            whole - busy([e for e in computing if e["name"] != "wait"]) + sum(exchanges), abs=1e-8
        )
        if rank in (1, 2):
            pace = formulas["microbatches"] * formulas["slowest_stage_time"]
            assert idle(own) == pytest.approx(whole - pace, abs=1e-6)
            above = formulas["bubble_time"] + formulas["exposed_pp_time"] - idle(own)
            assert 0 < above < max(exchanges)
        counters = [e for e in trace["traceEvents"] if e["ph"] == "C" and e["pid"] == 1000 * (rank + 1)]
        flying = [e["args"]["in flight"] for e in counters if e["name"] == "microbatches"]
        assert max(flying) == formulas["first_stage_in_flight"] == 5
        assert flying[-1] == 0
        memory += [sum(e["args"].values()) for e in counters if e["name"] == "memory (GB):"]
    assert max(memory) == pytest.approx(formulas["memory_per_device"] / 1e9, rel=0.01)  # a mean of two unlike stages


SERVED = {
    "dense": ("llama-3.1-70b", "h100-sxm-80gb", "vllm", {"devices": [8], "tp": [2], "pp": [4]}, 64),
    "experts": ("qwen3-235b-a22b", "h200-sxm-141gb", "vllm", {"devices": [8], "tp": [2], "ep": [8], "pp": [1]}, 64),
    "hybrid": ("qwen3-next-80b-a3b", "h200-sxm-141gb", "vllm", {"devices": [8], "tp": [2], "ep": [8], "pp": [1]}, 64),
    "sparse": ("deepseek-v3.2", "h200-sxm-141gb", "vllm", {"devices": [8], "tp": [2], "ep": [8], "pp": [1]}, 64),
    "two parts": (
        "deepseek-v3",
        "h800-sxm-80gb",
        "deepseek-serving",
        {"devices": [144], "tp": [1], "pp": [1], "ep": [144], "etp": [1]},
        144 * 88,
    ),
    "late": ("llama-3.1-8b", "h100-sxm-80gb", "sglang", {"devices": [1]}, 1),
}


@pytest.fixture(scope="module", params=SERVED)
def served(request):
    model, device, software, layout, batch = SERVED[request.param]
    return request.param, perfgrid.Study.make(
        workload="inference",
        outputs=["decode_step_time", "prefill_time"],
        axes={
            "model": [model],
            "device": [device],
            "topology": ["rail-optimized"],
            "software": [software],
            "parallelism": layout,
        },
        workload_parameters={
            "prompt_tokens": 16 if request.param == "late" else 1000,
            "output_tokens": 10,
            "batch": batch,
            "precision": "fp8",
            "weight_precision": "fp8",
        },
    )


def test_traces_of_serving_add_up(served):
    """Slices of both passes add up to the times of the formulas, kernel by kernel, one after another."""
    case, study = served
    found = perfgrid.timeline(study)
    trace, threads, _ = checked(json.dumps(chrome_trace(found)))
    listed = perfgrid.kernels(study).kernels
    whole = next(k.time for k in listed if k.part == "total")
    assert any(k.name == "late_launch" and k.time["prefill"] > 0 for k in listed) == (case == "late")
    step = float(perfgrid.evaluate(study)["decode_step_time"].squeeze())
    assert (step > 1.5 * whole["decode"]) == (case == "two parts")
    for pid, which, expected in ((1000, "prefill", whole["prefill"]), (2000, "decode", step)):
        own = slices_of(trace, threads, "", pid)
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in own)
        assert all(a[1] == b[0] for a, b in pairwise(spans)), "nothing between them and nothing at once"
        assert spans[-1][1] / 1e6 == pytest.approx(expected, rel=1e-6)
        for kernel in (k for k in listed if k.part != "total" and k.time[which]):
            slices = [e for e in own if e["name"] == slice_name(kernel.name)]
            assert sum(e["dur"] for e in slices) / 1e6 == pytest.approx(kernel.runs * kernel.time[which], abs=1e-7)
            if kernel.part == "pass":
                assert len(slices) == kernel.runs
                assert threads[slices[0]["tid"]] == "kernels"
            else:
                assert threads[slices[0]["tid"]] in ("communication", "host")


def test_layers_of_serving(served):
    """Attention where a hybrid has it, dense layers first; in a layer its kernels in the order of the model."""
    case, study = served
    found = perfgrid.timeline(study)
    decode = found.isel(event=(found["pass"] == "decode").values)
    layers = {
        name: decode["layer"].values[decode["name"].values == name].tolist() for name in set(decode["name"].values)
    }
    if case == "hybrid":
        assert layers["attention"] == list(range(3, 48, 4))
        assert not set(layers["attention"]) & set(layers["mixers"])
    if case == "two parts":
        assert layers["ffn_up"] == [0, 1, 2]
        assert layers["expert_up"] == list(range(3, 61))
    if case == "dense":
        assert layers["pipeline_transfer"] == [19, 39, 59]
        first = decode["name"].values[decode["layer"].values == 0].tolist()
        attention = ["norm", "quantising", "qkv", "rotary", "attention", "attention_output", "tp"]
        assert first == [*attention, "norm", "ffn_up", "activation", "ffn_down", "tp"]
        assert decode["name"].values[-4:].tolist() == ["norm", "logits", "sampling", "host"]


def test_every_kernel_has_its_place():
    known = {*BEFORE, *LAYER, *AFTER}
    assert {*axes.SERVED, *INNER.labels["expert_product"], *INNER.labels["serving_stream"]} <= known


def test_files_of_traces(monkeypatch, capsys, tmp_path):
    """An existing file stays unless it is to be replaced; other suffixes are refused before anything is evaluated."""
    path = tmp_path / "trace.json"
    path.write_text("mine")
    command = ("timeline", "studies/deepseek.toml", "--at", DEEPSEEK, "-o")
    status, _, error = run(monkeypatch, capsys, *command, path)
    assert (status, path.read_text()) == (2, "mine")
    assert "exists" in error
    status, _, error = run(monkeypatch, capsys, *command, tmp_path / "trace.txt")
    assert status == 2
    assert "a timeline also .json" in error
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]
