"""A comparison: its parts add up to the step times of the designs that it names, from a study and from a file."""

import json

import pytest

from perfgrid import BREAKDOWN, PerfgridError, Study, best, compare, evaluate, save
from perfgrid.cli import labels_of
from tests.test_bad_input import run

STUDY = {
    "outputs": ["step_time", "memory_per_device"],
    "axes": {
        "model": ["llama-3.1-8b"],
        "device": ["a100-sxm-80gb", "h100-sxm-80gb"],
        "topology": ["rail-optimized"],
        "parallelism": {"devices": [8, 16], "tp": [1, 2, 8], "pp": [1, 2]},
        "hbm_bandwidth": {"scale": [0.5, 1, 2]},
    },
    "workload_parameters": {"sequence_length": 4096, "global_batch": 64},
    "best": {"over": ["parallelism"], "minimize": "step_time"},
}
SIDES = {"device": "a100-sxm-80gb"}, {"device": "h100-sxm-80gb"}


@pytest.fixture(scope="module")
def study():
    return Study.make(**STUDY)


@pytest.fixture(scope="module")
def result(study):
    return evaluate(study, dtype="float64")


def test_parts_add_up_to_the_step_times_of_the_best_designs(study, result):
    found = compare(study, *SIDES, at={"devices": 16})
    chosen = best(result, "parallelism", minimize="step_time", at={"hbm_bandwidth": 1.0}).sel(devices=16).squeeze()
    for side, point, total in zip(SIDES, (found.a, found.b), found.step_time, strict=True):
        design = chosen.sel(side)
        assert point["parallelism"] == design["parallelism"].item()
        assert point["hbm_bandwidth"] == 1.0
        assert total == pytest.approx(design["step_time"].item(), rel=1e-9)
    assert sorted(name for name, *_ in found.parts) == sorted(BREAKDOWN)
    changes = [abs(after - before) for _, before, after in found.parts]
    assert changes == sorted(changes, reverse=True)
    assert found.speedup > 1


def test_a_file_tells_the_same_as_its_study(study, result, tmp_path, monkeypatch, capsys):
    save(result, tmp_path / "result.nc")
    at = {"devices": 8, "hbm_bandwidth": 2}
    assert compare(result, *SIDES, at=at).parts == compare(study, *SIDES, at=at).parts
    sides = ("--a", "device=a100-sxm-80gb", "--b", "device=h100-sxm-80gb", "--at", "devices=8,hbm_bandwidth=2")
    status, out, _ = run(monkeypatch, capsys, "compare", tmp_path / "result.nc", *sides, "--json")
    assert status == 0
    told = json.loads(out)
    assert told["step_time"] == pytest.approx(compare(study, *SIDES, at=at).step_time)
    status, out, _ = run(monkeypatch, capsys, "compare", tmp_path / "result.nc", *sides)
    assert status == 0
    assert "HBM bandwidth" in out
    assert "times as fast" in out


def test_an_identical_design_differs_in_nothing_but_what_was_swept(study):
    slow, fast = ({"hbm_bandwidth": scale} for scale in (0.5, 2))
    label = study.space.axes[3].labels[0]
    found = compare(study, slow, fast, at={"device": "h100-sxm-80gb", "parallelism": label})
    parts = {name: (a, b) for name, a, b in found.parts}
    assert parts["optimizer_time"][0] == pytest.approx(4 * parts["optimizer_time"][1])
    assert parts["hbm_time"][0] > parts["hbm_time"][1]
    assert parts["launch_time"][0] == parts["launch_time"][1]


@pytest.mark.parametrize(
    ("a", "b", "at", "sentence"),
    [
        ({"device": "h100-sxm-80gb"}, {"device": "h100-sxm-80gb"}, {}, "same design"),
        ({"gpu": "h100"}, {}, {}, "no axis 'gpu'"),
        ({"device": "h200-sxm-141gb"}, {"device": "h100-sxm-80gb"}, {"devices": 8}, "no label 'h200-sxm-141gb'"),
        (*SIDES, {}, "state also: devices"),
        (*SIDES, {"devices": 32}, "no design has devices = 32"),
    ],
)
def test_bad_sides_are_told(study, a, b, at, sentence):
    with pytest.raises(PerfgridError, match=sentence):
        compare(study, a, b, at)


def test_labels_are_read_from_the_command_line():
    assert labels_of(["a=1,b=x y", "c=2"], "--at") == {"a": "1", "b": "x y", "c": "2"}
    with pytest.raises(PerfgridError, match="axis=label"):
        labels_of(["a"], "--at")
    with pytest.raises(PerfgridError, match="twice"):
        labels_of(["a=1", "a=2"], "--a")
