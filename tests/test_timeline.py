"""Timelines: the same as the reference executions of the tests, event by event, and what any schedule must obey."""

import itertools
import json

import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import perfgrid
from perfgrid.analysis.execution import NONE, PASSES, execute, works
from perfgrid.analysis.timeline import dataset, layers_of_stages
from perfgrid.cli.main import app
from perfgrid.printing.timeline_chart import chart

from .physics.schedules import Pipeline, layers_of_chunks, order_of
from .physics.split_schedules import SplitPipeline
from .physics.split_schedules import order_of as split_order_of

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb_h1", "zb_v", "dualpipe", "dualpipe_v")
COMPUTES = ("forward", "backward", "input_gradient", "weight_gradient")


IN_FLIGHT = [f"{stage}_stage_in_flight" for stage in ("first", "middle", "last")]


@st.composite
def runs(draw, schedules=SCHEDULES):
    """A legal schedule with stages of any lengths: (schedule, devices, chunks, microbatches, times, transfer time)."""
    schedule = draw(st.sampled_from(schedules))
    pp = draw(st.integers(1 if schedule in ("gpipe", "1f1b", "zb_h1") else 2, 6))
    chunks = draw(st.integers(2, 3)) if schedule == "interleaved" else 2 if schedule.endswith("_v") else 1
    microbatches = draw(st.integers(1, 3 * pp))
    if schedule == "interleaved":
        microbatches = pp * draw(st.integers(1, 3))
    elif schedule == "dualpipe":
        pp = 2 * ((pp + 1) // 2)
        microbatches = 2 * (pp + draw(st.integers(0, 6)))
    elif chunks == 2:
        microbatches += 2 * pp - (schedule == "zb_v")
    length = st.floats(0.1, 3.0)
    times = {kind: draw(st.lists(length, min_size=pp * chunks, max_size=pp * chunks)) for kind in PASSES}
    return schedule, pp, chunks, microbatches, times, draw(st.sampled_from((0.0, 0.01, 0.5)))


many = settings(max_examples=200, deadline=None, derandomize=True)


def played(schedule, *rest):
    return execute("1f1b" if schedule == "interleaved" else schedule, *rest)


@many
@given(runs())
def test_as_long_as_the_reference(case):
    schedule, pp, chunks, microbatches, times, transfer = case
    found = max(e.end for e in played(*case) if e.kind != "transfer")
    forward, gradient, weight = (times[kind] for kind in PASSES)
    if schedule in ("gpipe", "1f1b", "interleaved"):
        backward = [b + w for b, w in zip(gradient, weight, strict=True)]
        by_rank = [[[t[c * pp + r] for c in range(chunks)] for r in range(pp)] for t in (forward, backward)]
        name = "gpipe" if schedule == "gpipe" else "1f1b"
        expected = Pipeline(by_rank[0], by_rank[1], transfer, name).run(microbatches)
    else:
        split = {"F": forward, "B": gradient, "W": weight}
        expected = SplitPipeline(schedule, pp, split, transfer).run(microbatches)
    assert found == pytest.approx(expected, rel=1e-12)


@many
@given(runs())
def test_orders_of_the_reference(case):
    schedule, pp, chunks, microbatches, *_ = case
    for device in range(pp):
        found = works("1f1b" if schedule == "interleaved" else schedule, pp, chunks, microbatches, device)
        if schedule in ("gpipe", "1f1b", "interleaved"):
            name = "gpipe" if schedule == "gpipe" else "1f1b"
            reference = order_of(name, pp, microbatches, chunks, device)
            assert found == [((kind, i, chunk * pp + device),) for kind, i, chunk in reference]
        else:
            whole = [tuple(w for w in slot if w[0] != "W" or len(slot) == 1) for slot in found]
            expected = []
            for slot in split_order_of(schedule, pp, microbatches, device):
                full = {w[1:] for w in slot if w[0] == "W"} if len(slot) > 1 else set()
                kinds = {"B": lambda w, full=full: "B" if w[1:] in full else "I"}
                kept = [w for w in slot if w[0] != "W" or len(slot) == 1]
                expected.append(tuple((kinds.get(w[0], lambda w: w[0])(w), *w[1:]) for w in kept))
            assert whole == expected


@many
@given(runs())
def test_what_any_schedule_obeys(case):
    """Every pass once; devices do one thing at a time, or a pair, and nothing is left out; results come first."""
    _, pp, chunks, microbatches, times, transfer = case
    events = played(*case)
    end = max(e.end for e in events if e.kind != "transfer")
    for device in range(pp):
        own = [e for e in events if e.device == device and e.kind != "transfer"]
        spans = sorted({(e.start, e.end) for e in own})
        assert spans[0][0] == 0.0
        assert spans[-1][1] == end
        assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))
    passes = [e for e in events if e.kind in COMPUTES]
    assert len({(e.device, e.chunk, e.microbatch, e.kind) for e in passes}) == len(passes)
    done = [sum(2 if e.kind == "backward" else 1 for e in passes if e.microbatch == i) for i in range(microbatches)]
    assert done == [3 * pp * chunks] * microbatches
    sent = [e for e in events if e.kind == "transfer"]
    stages = len(times["forward"])
    if transfer and pp > 1:
        turns = 1 if stages > pp and case[0] != "interleaved" else 0  # nothing is handed over at the turn of a V
        assert len(sent) == 2 * microbatches * (stages - 1 - turns)


@pytest.mark.parametrize("pp", [2, 4, 8])
def test_passes_without_a_partner_take_longer(pp):
    """On the longest path of DualPipeV with equal passes 5p + 1 of them follow each other."""
    stages = 2 * pp
    times = {kind: [1.0] * stages for kind in PASSES}
    alone, paired = (
        max(event.end for event in execute("dualpipe_v", pp, 2, 4 * pp, times, alone=[wait] * stages))
        for wait in (0.5, 0.0)
    )
    assert alone - paired == pytest.approx((5 * pp + 1) * 0.5)


def test_layers_of_stages():
    for pp, layers in ((4, 32), (4, 30), (8, 126), (16, 61)):
        full = -(-layers // pp)
        missing = full * pp - layers
        held = layers_of_stages(pp, 1, full, layers, int(missing > 1), int(missing > 0))
        assert held == [n for (n,) in layers_of_chunks(layers, pp, 1)]
    assert layers_of_stages(16, 2, 8, 126, 1, 1) == [3] + [4] * 30 + [3]


STUDY = """
title = "One pipeline"
workload = "training"
outputs = ["step_time", "bubble_time"]
[axes]
model = ["llama-3.1-8b"]
device = ["h100-sxm-80gb"]
topology = ["rail-optimized"]
schedule = ["1f1b", "gpipe", "zb_h1", "zb_v", "dualpipe", "dualpipe_v"]
[axes.parallelism]
devices = [32]
tp = [2]
pp = [4]
chunks = [1, 2]
[workload_parameters]
sequence_length = 4096
global_batch = 64
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    path = tmp_path_factory.mktemp("timeline") / "study.toml"
    path.write_text(STUDY)
    return perfgrid.load_study(path)


@pytest.fixture(scope="module")
def closed_forms(tmp_path_factory):
    path = tmp_path_factory.mktemp("closed") / "study.toml"
    path.write_text(STUDY.replace('"bubble_time"', '"memory_per_device", "' + '", "'.join(IN_FLIGHT) + '"'))
    return perfgrid.evaluate(perfgrid.load_study(path))


def label_of(study, chunks):
    axis = next(a for a in study.space.axes if a.name == "parallelism")
    return str(axis.labels[list(axis.columns["chunks"]).index(chunks)])


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb_h1", "zb_v", "dualpipe", "dualpipe_v"])
def test_timeline_of_a_design(study, schedule):
    chunks = 2 if schedule.endswith("_v") else 1
    found = perfgrid.timeline(study, {"schedule": schedule, "parallelism": label_of(study, chunks)})
    assert found.attrs["schedule"] == schedule
    assert found.attrs["pipeline_time"] == pytest.approx(found.attrs["closed_form_time"], rel=0.02)
    assert set(found["device"].values) == {0, 1, 2, 3}
    assert int(found["microbatch"].max()) == 15
    assert (found["end"] >= found["start"]).all()
    waits = found.isel(event=(found["kind"] == "wait").values)
    assert (waits["microbatch"] == NONE).all()
    assert found["start"].attrs["units"] == "s"


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb_h1", "zb_v", "dualpipe", "dualpipe_v"])
def test_devices_hold_what_the_formulas_count(study, closed_forms, schedule):
    """Microbatches in flight of every stage, and the memory of the fullest device, reached when most is in flight."""
    chunks = 2 if schedule.endswith("_v") else 1
    at = {"schedule": schedule, "parallelism": label_of(study, chunks)}
    found = perfgrid.timeline(study, at)
    expected = closed_forms.sel(at).squeeze()
    device, most = found["device"].values, {}
    for name in ("in_flight", "activation_memory"):
        most[name] = [found[name].values[device == d].max() for d in range(4)]
    assert [most["in_flight"][i] for i in (0, 1, -1)] == pytest.approx([float(expected[n]) for n in IN_FLIGHT])
    whole = most["activation_memory"] + found["state_memory"].values + found["other_memory"].values
    assert whole.max() == pytest.approx(float(expected["memory_per_device"]), rel=1e-6)
    assert float(found["in_flight"].min()) >= 0
    assert float(found["memory"].max()) == pytest.approx(float(expected["memory_per_device"]), rel=1e-6)


def test_chart_of_two_devices():
    """1F1B of three microbatches, forward 1 and backward 2: letters of the middle of each second."""
    times = {"forward": [1.0, 1.0], "input_gradient": [1.0, 1.0], "weight_gradient": [1.0, 1.0]}
    events = execute("1f1b", 2, 1, 3, times)
    assert chart(dataset(events, {"schedule": "1f1b"}), 12) == ["  0 FF..BBFBB.BB", "  1 .FBBFBBFBB.."]
    pairs = execute("dualpipe", 2, 1, 4, times)
    lines = chart(dataset(pairs, {"schedule": "dualpipe"}), 12)
    assert lines == ["  0 FFFBBXXXBBIW", "  1 FFFBBXXXBBIW"]


def test_command(study, tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    at = f"schedule=zb_h1,parallelism={label_of(study, 1)}"
    shown = CliRunner().invoke(app, ["timeline", str(path), "--at", at, "-o", str(tmp_path / "events.nc")])
    assert shown.exit_code == 0, shown.output
    assert sum(line[4:5] in "F." and len(line) == 104 for line in shown.stdout.splitlines()) == 4
    assert "zb_h1" in shown.stdout
    stored = xr.open_dataset(tmp_path / "events.nc")
    data = json.loads(CliRunner().invoke(app, ["timeline", str(path), "--at", at, "--json"]).stdout)
    assert len(data["events"]) == stored.sizes["event"]
    assert data["pipeline_time"] == pytest.approx(stored.attrs["pipeline_time"])
    assert {e["kind"] for e in data["events"]} == {"forward", "input_gradient", "weight_gradient", "transfer", "wait"}


def test_illegal_designs_are_refused(study):
    with pytest.raises(perfgrid.PerfgridError, match="exactly two chunks on every device"):
        perfgrid.timeline(study, {"schedule": "zb_v", "parallelism": label_of(study, 1)})
    with pytest.raises(perfgrid.PerfgridError, match="the study has no axis 'modle'"):
        perfgrid.timeline(study, {"modle": "llama-3.1-8b"})
