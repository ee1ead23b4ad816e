"""Where labels are left open a design is the best one along them: that of ``perfgrid best``, told in one line."""

import json
import re
from typing import Any

import pytest
import tomli_w

import perfgrid as pg
from perfgrid.analysis import best_design
from tests.test_bad_input import run

CONTENT = {
    "outputs": ["step_time", "memory_per_device"],
    "axes": {
        "model": ["llama-3.1-8b", "llama-2-7b"],
        "device": ["a100-sxm-80gb", "h100-sxm-80gb"],
        "topology": ["rail-optimized"],
        "microbatch": [1, 2],
        "parallelism": {"devices": [8, 16], "tp": [1, 2, 8], "pp": [1, 2]},
        "hbm_bandwidth": {"scale": [0.5, 1, 2]},
    },
    "workload_parameters": {"sequence_length": 4096, "global_batch": 64},
}
CHEAPEST = {"over": "parallelism", "minimize": "memory_per_device", "at": {"hbm_bandwidth": 2, "microbatch": 2}}
OVER = ["model", "device", "microbatch", "parallelism", "devices"]  # all but the swept hardware
FORMATS = ("study.toml", "result.nc", "result.zarr", "result.pgf")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A study and its results."""
    folder = tmp_path_factory.mktemp("files")
    (folder / FORMATS[0]).write_text(tomli_w.dumps(CONTENT))
    for name in FORMATS[1:]:
        pg.save(pg.load_study(folder / FORMATS[0]), folder / name)
    return folder


@pytest.fixture(scope="module")
def study(files):
    return pg.load_study(files / FORMATS[0])


@pytest.fixture
def printed(monkeypatch, capsys):
    """What a command that has to succeed prints."""

    def printed(*arguments):
        status, out, err = run(monkeypatch, capsys, *arguments)
        assert (status, err) == (0, "")
        return out

    return printed


@pytest.fixture(scope="module")
def first(study):
    """The best designs of the study by ``best``: of all devices, and of one."""
    held = ({}, {"device": "a100-sxm-80gb"})
    return [
        (one, pg.best(study, [a for a in OVER if a not in one], "step_time", at={"hbm_bandwidth": 1, **one}).squeeze())
        for one in held
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_the_best_design_is_that_of_best(name, files, study, first, printed):
    """By the command and by the public function, on a study and on its results; a label held or none."""
    subject = study if name.endswith("toml") else pg.open_result(files / name)
    for held, best in first:
        if held:
            found = json.loads(printed("explain", files / name, "step_time", "--at", "device=a100-sxm-80gb", "--json"))
            value, point = found["story"]["value"], found["point"]
        else:
            value, point = (explained := pg.explain(subject, "step_time")).derivation.value, explained.point
        assert float(value) == pytest.approx(best.step_time.item(), rel=1e-6)
        for axis in ("model", "device", "microbatch", "parallelism"):
            assert str(point[axis]) == str(best[axis].item())


def test_coordinates_are_held_as_labels_are(files, study, printed):
    eight = pg.best(study, ["model", "device", "microbatch", "parallelism"], "step_time", at={"hbm_bandwidth": 0.5})
    for name in ("study.toml", "result.zarr"):
        at = ("--at", "best,devices=8,hbm_bandwidth=0.5")
        point = json.loads(printed("kernels", files / name, *at, "--json"))["point"]
        assert point["parallelism"] == eight.parallelism.sel(devices=8).item()


@pytest.mark.parametrize("suffix", ["nc", "pgf"])
def test_labels_with_units_are_those_of_a_study_and_of_its_result(suffix, tmp_path, printed):
    bill = pg.Study.make(
        workload="manufacturing",
        outputs=["die_cost"],
        axes={"device": ["h100-sxm-80gb", "b200"], "wafer_price": ["10000 USD", "20 kUSD"]},
        best={"over": ["device"], "minimize": "die_cost"},
    )
    result, at = pg.open_result(pg.save(bill, tmp_path / f"bill.{suffix}")), {"wafer_price": "20 kUSD"}
    dear = pg.evaluate(bill).die_cost.sel(wafer_price=20e3)
    for what in (bill, result):
        cost = pg.explain(what, "die_cost", at | {"device": "b200"}).derivation.value
        assert cost == pytest.approx(dear.sel(device="b200").item())
        assert pg.best(what, "device", "die_cost", at=at).die_cost.item() == pytest.approx(dear.min().item())
    out = printed("explain", tmp_path / f"bill.{suffix}", "die_cost", "--at", "wafer_price=20 kUSD")
    assert "wafer_price=20000.0" in out


def test_one_line_tells_which_design_it_is(files, printed):
    out = printed("explain", files / FORMATS[0], "step_time", "--at", "device=h100-sxm-80gb", "--at", "tp=2")
    line = re.sub(r"\s+", " ", out.partition("\nat ")[0])
    assert re.fullmatch(
        r"at the best design \(least step_time\): model=llama-2-7b, microbatch=\d, parallelism=tp2\S+, "
        r"hbm_bandwidth=1.0",
        line,
    )
    labels = "model=llama-2-7b,device=h100-sxm-80gb,microbatch=1,parallelism=tp2.pp1.dp4"
    assert printed("timeline", files / FORMATS[0], "--at", labels).startswith("at hbm_bandwidth=1.0\n")
    assert "best" not in printed("kernels", files / FORMATS[0], "--at", f"{labels},hbm_bandwidth=2")
    json.loads(printed("timeline", files / FORMATS[0], "--json"))


def test_the_study_says_what_is_best_and_at_which_labels(tmp_path, study, printed):
    (tmp_path / "study.toml").write_text(tomli_w.dumps(CONTENT | {"best": CHEAPEST}))
    pg.save(pg.load_study(tmp_path / "study.toml"), tmp_path / "result.nc")
    at = {"hbm_bandwidth": 2, "microbatch": 2}
    least = pg.best(study, [a for a in OVER if a != "microbatch"], "memory_per_device", at=at).squeeze()
    for name in ("study.toml", "result.nc"):
        found = json.loads(printed("explain", tmp_path / name, "memory_per_device", "--json"))
        assert found["story"]["value"] == pytest.approx(least.memory_per_device.item(), rel=1e-6)
        assert {k: float(found["point"][k]) for k in at} == at
        assert "(least memory_per_device)" in printed("explain", tmp_path / name, "step_time")
    most = {"outputs": ["tokens_per_second"], "best": {"over": "parallelism", "maximize": "tokens_per_second"}}
    (tmp_path / "most.toml").write_text(tomli_w.dumps(CONTENT | most))
    assert "(largest tokens_per_second)" in printed("timeline", tmp_path / "most.toml")


def test_chosen_designs_are_searched_too(study, tmp_path, printed):
    """Of a result of ``best`` the best group, of each rank that is named."""
    found = pg.best(study, ["parallelism", "microbatch"], "step_time", count=2)
    pg.save(found, tmp_path / "best.nc")
    point = json.loads(printed("explain", tmp_path / "best.nc", "step_time", "--json"))
    least = found.step_time.sel(hbm_bandwidth=1).min().item()
    assert point["story"]["value"] == pytest.approx(least, rel=1e-6)
    second = pg.explain(found, "step_time", {"rank": 2, "devices": 8})
    assert float(second.derivation.value) == pytest.approx(
        found.step_time.sel(hbm_bandwidth=1, rank=2, devices=8).min().item(), rel=1e-6
    )


def test_sampled_assumptions_are_those_of_the_catalog(study):
    axes = CONTENT["axes"] | {"sample": {"method": "one_at_a_time"}}
    found = pg.explain(pg.Study.make(**CONTENT | {"axes": axes}), "step_time")
    assert found.point == pg.explain(study, "step_time").point | {"sample": "stated"}


def test_a_large_result_is_read_part_by_part(files, monkeypatch):
    result = pg.open_result(files / "result.nc")
    whole = best_design.best_design(result, {"device": "a100-sxm-80gb"})
    monkeypatch.setattr(best_design, "PART", 3)
    assert best_design.best_design(result, {"device": "a100-sxm-80gb"}) == whole


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--at", "device=wrong"), "axis 'device' has no label 'wrong'; legal names: a100-sxm-80gb, h100-sxm-80gb"),
        (("--at", "best,devices=7"), "axis 'devices' has no label '7'; labels: 8, 16"),
        (("--at", "tp=8,parallelism=tp1.pp1.dp8"), "parallelism = tp1.pp1.dp8 contradicts the rest"),
        (("--at", "bset"), "--at 'bset' must read axis=label or best"),
        (("--at", "gpu=h100"), "no axis 'gpu'"),
        (
            ("--at", "tp=1", "--set", "overrides.hbm_capacity=1e6"),
            "no feasible design for tp=1: fits_memory forbids 32 of 32 (weights, optimizer state and activations",
        ),
    ],
)
def test_what_has_no_best_design_is_refused_in_one_line(arguments, why, files, monkeypatch, capsys):
    status, out, err = run(monkeypatch, capsys, "explain", files / FORMATS[0], "step_time", *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert why in err


def test_infeasible_results_and_unknown_objectives(tmp_path, monkeypatch, capsys):
    small: Any = CONTENT | {"overrides": {"hbm_capacity": 1e6}}
    pg.save(pg.Study.make(**small), tmp_path / "small.nc")
    made = {"workload": "manufacturing", "outputs": ["die_cost"], "axes": {"device": ["b200", "mi300x"]}}
    pg.save(pg.Study.make(**made), tmp_path / "made.nc")
    (tmp_path / "made.toml").write_text(tomli_w.dumps(made))
    for name, quantity, why in (
        ("small.nc", "step_time", "small.nc: no feasible design: fits_memory forbids"),
        ("made.nc", "die_cost", "nothing says which design is best"),
        ("made.toml", "die_cost", "name a label of every axis; not given: device (such as b200)"),
        ("made.toml", "die_cots", "did you mean 'die_cost'"),
    ):
        status, _, err = run(monkeypatch, capsys, "explain", tmp_path / name, quantity)
        assert (status, err.count("\n")) == (2, 1)
        assert why in err
    status, _, whole = run(monkeypatch, capsys, "explain", tmp_path / "small.nc", "step_time")
    monkeypatch.setattr(best_design, "PART", 3)  # counted part by part it is the same
    assert run(monkeypatch, capsys, "explain", tmp_path / "small.nc", "step_time") == (status, "", whole)
