"""A comparison: its parts add up to the step times of the designs that it names, from a study and from a file."""

import json
import sys
from typing import Any

import pytest
import tomli_w

from perfgrid import PerfgridError, Study, best, compare, evaluate, save
from perfgrid.formulas import BREAKDOWN
from perfgrid.text.values import labels_of
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
    for side, point, total in zip(SIDES, (found.a, found.b), found.times, strict=True):
        design = chosen.sel(side)
        assert point["parallelism"] == design["parallelism"].item()
        assert point["hbm_bandwidth"] == 1.0
        assert total == pytest.approx(design["step_time"].item(), rel=1e-9)
    assert sorted(name for name, *_ in found.parts) == sorted(BREAKDOWN)
    changes = [abs(after - before) for _, before, after in found.parts]
    assert changes == sorted(changes, reverse=True)
    assert found.speedup > 1 + found.tie_margin > 1
    assert not found.tied


def test_a_file_tells_the_same_as_its_study(study, result, tmp_path, monkeypatch, capsys):
    save(result, tmp_path / "result.nc")
    at = {"devices": 8, "hbm_bandwidth": 2}
    known = compare(study, *SIDES, at=at)
    assert compare(result, *SIDES, at=at).parts == known.parts
    sides = ("--a", "device=a100-sxm-80gb", "--b", "device=h100-sxm-80gb", "--at", "devices=8,hbm_bandwidth=2")
    status, out, _ = run(monkeypatch, capsys, "compare", tmp_path / "result.nc", *sides, "--json")
    assert status == 0
    told = json.loads(out)
    assert told["step_time"] == pytest.approx(known.times)
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
        ({}, {}, {}, "labels of two designs"),
        (*SIDES, {"devices": 32}, "axis 'devices' has no label '32'; labels: 8, 16"),
        (*SIDES, {"device": "h100-sxm-80gb"}, "'device' is named twice: for both designs .at. and for a"),
        (*SIDES, {"devices": 8, "parallelism": "tp1.pp1.dp16"}, "parallelism = tp1.pp1.dp16 contradicts the rest"),
        ({"devices": 16}, {"device": "h100-sxm-80gb"}, {}, "both sides come to the same design"),
    ],
)
def test_bad_sides_are_reported(study, a, b, at, sentence):
    with pytest.raises(PerfgridError, match=sentence):
        compare(study, a, b, at)


BOTH = {"device": "a100-sxm-80gb", "hbm_bandwidth": 1}


def test_sides_that_come_to_the_same_design_are_reported(study):
    fastest = compare(study, *SIDES, at={"devices": 16}).a["parallelism"]
    with pytest.raises(PerfgridError, match=r"both sides come to the same design: .*device=a100-sxm-80gb"):
        compare(study, {"devices": 16}, {"parallelism": fastest}, at={"device": "a100-sxm-80gb"})
    with pytest.raises(PerfgridError, match="both sides come to the same design"):
        compare(study, {"devices": 8}, {"topology": "rail-optimized"}, at=BOTH | {"parallelism": "tp8.pp1.dp1"})


def test_an_infeasible_side_is_refused_with_its_reasons():
    crowded = Study.make(**STUDY | {"axes": STUDY["axes"] | {"microbatch": [1, 3, 32]}})
    layouts = {"parallelism": "tp1.pp1.dp8"}, {"parallelism": "tp8.pp1.dp1"}
    with pytest.raises(PerfgridError, match=r"parallelism=tp1.pp1.dp8.* is infeasible: .*exceed the device memory"):
        compare(crowded, *layouts, at=BOTH | {"microbatch": 32})
    with pytest.raises(PerfgridError, match=r"is infeasible: .* \[batch_divides\]"):
        compare(crowded, *reversed(layouts), at=BOTH | {"microbatch": 3})


def test_labels_are_checked_before_anything_is_searched(study, monkeypatch):
    def searched(*_):
        raise AssertionError("a search")

    monkeypatch.setattr(sys.modules["perfgrid.analysis.best_design"], "best_of_study", searched)
    for a, b, sentence in (
        ({"device": "a100-sxm-80gb"}, {"device": "b200"}, "no label 'b200'"),
        (*SIDES, "no label '32'"),
    ):
        with pytest.raises(PerfgridError, match=sentence):
            compare(study, a, b | ({"devices": 32} if "32" in sentence else {}))


def test_the_best_over_all_axes_for_each_cluster_size(result):
    chosen = best(result, list(STUDY["axes"]), minimize="step_time")
    assert chosen["step_time"].dims == ("devices",)
    for size in (8, 16):
        one, here = chosen.sel(devices=size), result.isel(parallelism=result["devices"].values == size)
        assert one["step_time"] == best(here.drop_vars("devices"), list(STUDY["axes"]), "step_time")["step_time"]
        assert f"tp{one['tp'].item()}.pp{one['pp'].item()}" in one["parallelism"].item()


def test_labels_are_read_from_the_command_line():
    assert labels_of(["a=1,b=x y", "c=2"], "--at") == {"a": "1", "b": "x y", "c": "2"}
    with pytest.raises(PerfgridError, match="axis=label"):
        labels_of(["a"], "--at")
    with pytest.raises(PerfgridError, match="twice"):
        labels_of(["a=1", "a=2"], "--a")


def test_steps_of_different_tokens_compare_per_token(study, monkeypatch, capsys):
    """The same design with a quarter of the sequences: a step of B has to be four times as fast to be as fast."""
    content: Any = STUDY | {"workload_parameters": {"sequence_length": 4096, "global_batch": 16}}
    few = Study.make(**content)
    at = SIDES[1] | {"devices": 8, "parallelism": study.space.axes[3].labels[0]}
    found = compare(study, at=at, other=few)
    assert found.tokens == (64 * 4096, 16 * 4096)
    assert found.speedup == pytest.approx(found.times[0] / 4 / found.times[1])
    assert compare(study, at=at, other=Study.make(**STUDY)).speedup == 1  # one design of two studies


def written(folder, name, **changes):
    """A study file of the study with other content."""
    (folder / name).write_text(tomli_w.dumps({k: v for k, v in (STUDY | changes).items()}))
    return folder / name


def test_two_studies_compare_by_their_best_designs(study, result, tmp_path, monkeypatch, capsys):
    """Of two files, a study and a result, the best designs of both; their ratio is that of two calls of ``best``."""
    slow = written(tmp_path, "slow.toml", axes=STUDY["axes"] | {"device": ["a100-sxm-80gb"]})
    fast = written(tmp_path, "fast.toml", workload_parameters={"sequence_length": 4096, "global_batch": 256})
    save(result, tmp_path / "fast.nc")
    best_of = []
    for path in (slow, fast):
        over = "model,device,topology,parallelism,devices"
        status, out, _ = run(monkeypatch, capsys, "best", path, "--over", over, "--json")
        (first,) = [row for row in json.loads(out)["best"] if row["group"]["hbm_bandwidth"] == 1.0]
        best_of.append(first)
    status, out, _ = run(monkeypatch, capsys, "compare", slow, fast, "--at", "best", "--json")
    assert status == 0
    told = json.loads(out)
    assert told["step_time"] == pytest.approx([row["outputs"]["step_time"] for row in best_of], rel=1e-5)
    assert (told["a"]["device"], told["b"]["device"]) == ("a100-sxm-80gb", "h100-sxm-80gb")
    assert told["b"]["parallelism"] == best_of[1]["chosen"]["parallelism"]
    assert told["tokens_per_step"] == [64 * 4096, 256 * 4096]
    assert told["speedup"] == pytest.approx(4 * told["step_time"][0] / told["step_time"][1])
    status, out, _ = run(monkeypatch, capsys, "compare", slow, fast, "--b", "devices=8")
    assert status == 0
    assert "times per token: a step of A has 262,144 tokens, of B 1,048,576" in out
    assert "times as long per token as A" in out
    assert "B is the best design (least step_time) along the axes left open" in out
    status, out, _ = run(monkeypatch, capsys, "compare", slow, tmp_path / "fast.nc")
    assert status == 0
    assert "per token" not in out


SERVING = {
    "workload": "inference",
    "outputs": ["request_latency", "output_tokens_per_second"],
    "axes": {
        "model": ["llama-3.1-8b"],
        "device": ["h100-sxm-80gb", "b200"],
        "topology": ["rail-optimized"],
        "parallelism": {"devices": [4], "tp": [1, 2, 4], "pp": [1, 2]},
        "batch": [4, 64],
    },
    "workload_parameters": {"batch_rule": "concurrency", "prompt_tokens": 2000, "output_tokens": 100},
    "best": {"over": ["parallelism", "batch"], "maximize": "output_tokens_per_second"},
}


def test_requests_compare_by_what_they_wait_for(tmp_path, monkeypatch, capsys):
    """The parts add up to the latencies of the best designs; answers of different lengths are compared per token."""
    study, sides = Study.make(**SERVING), ({"device": "h100-sxm-80gb"}, {"device": "b200"})
    served = evaluate(study, dtype="float64")
    found = compare(study, *sides)
    for point, total in zip((found.a, found.b), found.times, strict=True):
        assert point["batch"] == 64
        assert total == pytest.approx(served.request_latency.sel(point).item(), rel=1e-9)
    assert all(time >= 0 for _, *times in found.parts for time in times)
    assert dict((name, a) for name, a, _ in found.parts)["waiting_time"] > 0  # for prefills of other requests
    assert (found.quantity, found.tokens, found.intervals, found.tied) == ("request_latency", (100, 100), (), False)
    save(served, tmp_path / "served.nc")
    longer = SERVING | {"workload_parameters": SERVING["workload_parameters"] | {"output_tokens": 200}}
    (tmp_path / "longer.toml").write_text(tomli_w.dumps(longer))
    files = tmp_path / "served.nc", tmp_path / "longer.toml"
    status, out, _ = run(monkeypatch, capsys, "compare", *files, "--at", "device=b200")
    assert status == 0
    for words in ("a request of A has 100 tokens, of B 200", "HBM bandwidth", "as long per token as A (a token is"):
        assert words in out
    assert "no intervals for serving" in out
    assert "90 of 100" not in out
    status, out, _ = run(monkeypatch, capsys, "compare", *files, "--at", "device=b200", "--json")
    assert json.loads(out)["request_latency"][0] == pytest.approx(found.times[1])
    with pytest.raises(PerfgridError, match=r"two designs of training or two of inference, found inference, training"):
        compare(served, other=Study.make(**STUDY))


def test_steps_that_are_the_same_are_reported(tmp_path, monkeypatch, capsys):
    axes = STUDY["axes"] | {
        "parallelism": {"devices": [8], "tp": [8], "pp": [1]},
        "device": ["h100-sxm-80gb"],
        "hbm_bandwidth": {"scale": [1]},
        "scale_out_bandwidth": {"scale": [1, 2]},
    }
    save(evaluate(Study.make(**STUDY | {"axes": axes, "best": None})), tmp_path / "one_node.nc")
    arguments = ("--a", "scale_out_bandwidth=1", "--b", "scale_out_bandwidth=2")
    status, out, _ = run(monkeypatch, capsys, "compare", tmp_path / "one_node.nc", *arguments)
    assert status == 0
    assert "A and B take the same time: their differences change no part of a step" in out
    assert "tie" not in out
