"""One question, one answer: every door gives the same values and the same interval for the same design."""

import json

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.answers.saved import save_study
from perfgrid.cli.main import app
from perfgrid.text.numbers import number

TRAINING = {  # a dense model, a mixture, a hybrid
    "llama-3.1-8b": {"devices": 8, "batch": 64},
    "qwen3-30b-a3b": {"devices": 16, "batch": 64},
    "qwen3-next-80b-a3b": {"devices": 64, "batch": 128},
}
SERVING = {"llama-3.1-8b": 1, "qwen3-30b-a3b": 2, "qwen3-next-80b-a3b": 4}
CLOSE = 1e-9
DENSE, *LARGE = TRAINING
FEW = [DENSE, *(pytest.param(model, marks=pytest.mark.slow) for model in LARGE)]


def printed(capsys, *arguments):
    """What a command prints as JSON."""
    app([*map(str, arguments), "--json"], standalone_mode=False)
    return json.loads(capsys.readouterr().out)


def doors(capsys, folder, study, objective, chosen):
    """Value and interval of the objective at the best design of a saved study, by every other door."""
    design = [f"{axis}={label}" for axis, label in chosen.items()]
    at = ["--at", ",".join(design)]
    (row,) = printed(capsys, "best", study)["best"]
    yield "best", row["outputs"][objective], row.get("interval")
    app(["run", str(study), "-o", str(folder / "r.nc")], standalone_mode=False)
    capsys.readouterr()
    result = pg.open_result(folder / "r.nc")
    yield "run", result[objective].sel({a: result[a].dtype.type(v) for a, v in chosen.items()}).item(), None
    for name, what in {"explain a study": study, "explain a result": folder / "r.nc"}.items():
        found = printed(capsys, "explain", what, objective, *at)
        yield name, found["story"]["value"], found.get("interval")
    loaded = pg.load_study(study)
    grid = pg.evaluate(loaded)
    yield "pg.evaluate", grid[objective].sel({a: grid[a].dtype.type(v) for a, v in chosen.items()}).item(), None
    for name, what in {"pg.best of a study": loaded, "pg.best of a result": grid}.items():
        choice, timed = loaded.file.best, bool(row.get("interval"))
        assert choice is not None
        best = pg.best(what, choice.over, choice.minimize, choice.maximize, intervals=timed)
        yield name, best[objective].item(), best[f"{objective}_interval"].values.ravel() if timed else None


@pytest.mark.parametrize("stack", [None, pytest.param("megatron-core", marks=pytest.mark.slow)])
@pytest.mark.parametrize("model", FEW)
def test_doors_of_training_agree(model, stack, tmp_path, capsys):
    """With the stack assumed, all are wider than with the same stack stated."""
    asked = {**TRAINING[model], "sequence": 4096, "software": stack}
    answer = pg.train(model, "h100-sxm-80gb", **asked)
    study = tmp_path / "s.toml"
    save_study(answer, study)
    value, interval = answer["step_time"].item(), answer["step_time_interval"].values.ravel()
    chosen = {axis: answer[axis].item() for axis in ("parallelism", "microbatch", "recompute", "zero")}
    for door, own, ends in doors(capsys, tmp_path, study, "step_time", chosen):
        np.testing.assert_allclose(own, value, rtol=CLOSE, err_msg=door)
        np.testing.assert_allclose(interval if ends is None else ends, interval, rtol=CLOSE, err_msg=door)
    options = [f"--{key}={text}" for key, text in asked.items() if text is not None]
    (row,) = printed(capsys, "train", model, "--on", "h100-sxm-80gb", *options)["designs"]
    np.testing.assert_allclose([row["step_time"], *row["step_time_interval"]], [value, *interval], rtol=CLOSE)
    sides = ["--a", ",".join(f"{a}={v}" for a, v in chosen.items()), "--b", "microbatch=1,recompute=full"]
    compared = printed(capsys, "compare", study, *sides)
    np.testing.assert_allclose([compared["step_time"][0], *compared["intervals"][0]], [value, *interval], rtol=CLOSE)
    if stack is not None:
        return
    if model != DENSE:  # slow
        app(["report", str(study), "-o", str(tmp_path / "r.html")], standalone_mode=False)
        low, high = (number(float(end), "s") for end in interval)
        expected = f"{number(value, 's')} (90 of 100 measurements are expected between {low} and {high})"
        assert expected in (tmp_path / "r.html").read_text()
    stated = pg.train(model, "h100-sxm-80gb", **{**asked, "software": "megatron-core"})
    assert stated["step_time"].item() == value
    low, high = stated["step_time_interval"].values.ravel()
    assert interval[0] < low < value < high < interval[1]


@pytest.mark.parametrize("model", FEW)
def test_doors_of_serving_agree(model, tmp_path, capsys):
    """No interval is known to hold of serving: no door states one."""
    answer = pg.serve(model, "h100-sxm-80gb", SERVING[model], prompt=500, output=100)
    study, objective = tmp_path / "s.toml", answer.attrs["objective"]
    save_study(answer, study)
    value = answer[objective].item()
    chosen = {axis: answer[axis].item() for axis in ("parallelism", "batch", "token_budget") if axis in answer}
    for door, own, ends in doors(capsys, tmp_path, study, objective, chosen):
        np.testing.assert_allclose(own, value, rtol=CLOSE, err_msg=door)
        assert ends is None, door
    options = ["--devices", SERVING[model], "--prompt", 500, "--output", 100]
    (row,) = printed(capsys, "serve", model, "--on", "h100-sxm-80gb", *options)["designs"]
    np.testing.assert_allclose(row[objective], value, rtol=CLOSE)
    assert f"{objective}_interval" not in row


@pytest.mark.parametrize("objective", ["cost_per_training_run", "memory_per_device"])
def test_other_objectives_have_one_interval_at_every_door(objective, tmp_path, capsys):
    """What follows from the time of a step, and memory, of which there are records, too."""
    answer = pg.train("llama-2-7b", "h100-sxm-80gb", 8, minimize=objective)
    save_study(answer, tmp_path / "s.toml")
    (row,) = printed(capsys, "best", tmp_path / "s.toml")["best"]
    explained = printed(capsys, "explain", tmp_path / "s.toml", objective)
    np.testing.assert_allclose(row["outputs"][objective], answer[objective].item(), rtol=CLOSE)
    ends = answer[f"{objective}_interval"].values.ravel()
    np.testing.assert_allclose(row["interval"], ends, rtol=CLOSE)
    np.testing.assert_allclose(explained["interval"], ends, rtol=CLOSE)
