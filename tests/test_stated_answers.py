"""What an answer says of its question: values that were stated, those that were taken, and none that is lost."""

import json

import numpy as np
import pytest

import perfgrid as pg
from perfgrid import PerfgridError, Study
from perfgrid.answers.saved import save_study
from perfgrid.answers.serve_pools import serve_pools, stated_pool
from perfgrid.cli.main import app
from perfgrid.printing.answer import screen

MODEL, DEVICE = "llama-3.1-8b", "h100-sxm-80gb"


def printed(capsys, *arguments):
    """What a command prints."""
    app([*map(str, arguments)], standalone_mode=False)
    return capsys.readouterr().out


def test_amounts_of_what_is_taken_stand_on_the_screen():
    """Prices with their ranges, years, interest, idle hours, even experts: by the entries of the catalog."""
    found = pg.train("mixtral-8x7b", ["h100-sxm-80gb", "mi300x"], 64)
    text = " ".join(screen(found).split())
    for words in (
        "h100-sxm-80gb 30 k$, 25 k$ to 47 k$; mi300x 15 k$, 10 k$ to 20 k$",
        "kept 4 years at 10% interest and 3% maintenance a year, electricity 0.08 $/kWh, 10% of the paid hours idle",
        "balanced experts: each rank has as many tokens (expert_imbalance 1) (expert_imbalance in a study)",
        "Assumed: sequences of 8,192 tokens (--sequence)",
        "Assumed: 1 T tokens in the whole run (--tokens)",
        "Assumed: matrix products in bf16 (--precision)",
    ):
        assert words in text
    dense = pg.train(MODEL, DEVICE, 8, batch=64, sequence=4096, tokens="1T", precision="bf16")
    stated = ("sequence", "batch", "tokens", "precision", "expert_imbalance")
    assert not any(line.startswith(stated) for line in dense.attrs["assumptions"])


def test_a_batch_that_follows_from_the_devices_is_said():
    """576 devices are 9 x 64: the batch is a multiple of nine, beside 512 devices, too."""
    found = pg.train("llama-3.1-8b", DEVICE, [512, 576])
    (line,) = (line for line in found.attrs["assumptions"] if line.startswith("batch: "))
    assert line.startswith("batch: 1,152 sequences a step (9.44 M tokens, near 8.39 M, divisible among 512, 576")
    assert json.loads(found.attrs["question"])["batch"] == 1152


def test_json_holds_the_question_and_labels_as_numbers(capsys, tmp_path):
    """The same labels as of the saved study; batch, sequence and tokens are fields."""
    study = tmp_path / "s.toml"
    words = ["train", MODEL, "--on", DEVICE, "--devices", 8, "--batch", 64, "--precision", "fp8", "--save", study]
    answer = json.loads(printed(capsys, *words, "--json"))
    expected = {"batch": 64, "sequence": 8192, "tokens": 1e12, "precision": "fp8", "devices": [8], "on": [DEVICE]}
    assert {name: answer["question"][name] for name in expected} == expected
    best = json.loads(printed(capsys, "best", study, "--json"))
    assert best["workload_parameters"]["global_batch"] == 64
    assert best["units"]["step_time"] == "s"
    chosen = best["best"][0]["chosen"]
    assert {name: answer["designs"][0][name] for name in chosen} == chosen
    assert isinstance(chosen["microbatch"], int)
    served = json.loads(printed(capsys, "serve", MODEL, "--on", DEVICE, "--devices", 1, "--precision", "fp8", "--json"))
    assert "fp8" in served["title"]
    assert (served["question"]["prompt"], served["question"]["precision"]) == (1000, "fp8")
    assert isinstance(served["designs"][0]["batch"], float)
    assert isinstance(served["designs"][0]["frontier"][0]["frontier_batch"], float)


def test_lengths_that_nobody_stated_are_assumed():
    taken = pg.serve(MODEL, DEVICE, 1).attrs["assumptions"]
    assert {"prompt: prompts of 1,000 tokens", "output: answers of 500 tokens"} <= set(taken)
    assert any("share no cached prefix" in line for line in taken)
    stated = pg.serve(MODEL, DEVICE, 1, prompt=1000, output=500).attrs["assumptions"]
    assert not any(line.startswith(("prompt: ", "output: ")) for line in stated)


# ---- a pool on a device of its own ----------------------------------------------------------------------------------


def test_a_pool_runs_on_the_changed_device_that_it_names():
    asked = {"on": DEVICE, "devices": 4, "rate": 1.0, "decode": "tp=2", "prompt": 20_000}
    whole = serve_pools(MODEL, prefill=f"tp=2,device={DEVICE}", **asked)
    slow = serve_pools(MODEL, prefill=f"tp=2,device={DEVICE}[peak_bf16_rate=0.5x, hbm_bandwidth=0.5x]", **asked)
    same = serve_pools(MODEL, prefill="tp=2", **asked)
    times = [pair.winner["time_to_first_token"].item() for pair in (whole, slow, same)]
    assert times[0] == times[2]
    assert times[1] > 1.5 * times[0]
    assert stated_pool("tp=2, device=b200[hbm_bandwidth=2x,hbm_capacity=96 GB], dp=1", "prefill")["device"] == (
        "b200[hbm_bandwidth=2x,hbm_capacity=96 GB]"
    )
    with pytest.raises(PerfgridError, match="b2000"):
        serve_pools(MODEL, prefill="tp=2,device=b2000[hbm_bandwidth=2x]", **asked)


def test_two_pools_say_what_they_take(capsys):
    words = ["serve", MODEL, "--on", DEVICE, "--devices", 2, "--rate", 1, "--prefill", "tp=1", "--decode", "tp=1"]
    text = " ".join(printed(capsys, *words).split())
    answer = json.loads(printed(capsys, *words, "--json"))
    assert answer["title"] == "Serving of Llama 3.1 8B (8.03 B parameters) in two pools"
    assert answer["units"]["time_to_first_token"] == "s"
    assert (answer["question"]["rate"], answer["question"]["prefill"]) == (1.0, "tp=1")
    for line in answer["assumptions"]:
        assert f"Assumed: {line.partition(': ')[2]} (" in text


# ---- what would be ignored is refused -------------------------------------------------------------------------------


def test_a_statistic_without_a_limit_is_refused():
    with pytest.raises(PerfgridError, match="p99 says what keeps a limit: state one"):
        pg.serve(MODEL, DEVICE, 1, rate=1.0, statistic="p99")
    assert pg.serve(MODEL, DEVICE, 1, rate=1.0, statistic="p99", ttft=1.0)["found"].item()


@pytest.mark.parametrize(
    ("axes", "overrides", "outputs"),
    [
        ({"memory": ["hbm3", "hbm3e"]}, {"hbm_bandwidth": "4 TB/s"}, ["step_time"]),
        (
            {"price": ["market-2025", "market-2025-ethernet-800g"]},
            {"cost_per_device_hour": 2.0},
            ["cost_per_device_hour"],
        ),
    ],
)
def test_an_override_of_what_an_axis_decides_is_refused(axes, overrides, outputs):
    def study(overrides):
        shared = {"model": ["llama-2-7b"], "device": [DEVICE], "parallelism": {"devices": [16], "tp": [1], "pp": [1]}}
        parameters = {"sequence_length": 2048, "global_batch": 64}
        return Study.make(outputs=outputs, axes=shared | axes, workload_parameters=parameters, overrides=overrides)

    (axis,), (key,) = axes, overrides
    with pytest.raises(PerfgridError, match=f"overrides.{key}: axes.{axis} decides '{key}'; state one of the two"):
        study(overrides)
    values = pg.evaluate(study({}))[outputs[0]]
    assert len(np.unique(values)) == 2  # without it the axis has its effect


# ---- ties -----------------------------------------------------------------------------------------------------------


def test_of_equal_costs_the_fastest_is_best_at_every_door(tmp_path, capsys):
    """One number of devices beside another: the layout of the one that is chosen is that of a question about it."""
    asked = {"rate": 8.0, "prompt": 500, "output": 200}
    both = pg.serve("llama-3.1-70b", DEVICE, [8, 16], ttft="100ms", **asked)
    one = pg.serve("llama-3.1-70b", DEVICE, int(both["size"].item()), ttft="100ms", **asked)
    assert both["parallelism"].item() == one["parallelism"].item()
    assert both["request_latency"].item() == one["request_latency"].item()
    decides = "within 2% the fewest pipeline stages, then the lowest time per request"
    assert f"Best: lowest cost of 1 M output tokens; {decides}" in screen(both).replace("\n", " ")
    save_study(both, tmp_path / "s.toml")
    study = pg.load_study(tmp_path / "s.toml")
    (row,) = json.loads(printed(capsys, "best", tmp_path / "s.toml", "--json"))["best"]
    assert row["chosen"]["parallelism"] == both["parallelism"].item()
    grid = pg.evaluate(study)
    choice = study.file.best
    assert choice is not None
    found = pg.best(grid, choice.over, "cost_per_million_output_tokens")
    assert found["parallelism"].item() == both["parallelism"].item()
    costs = grid["cost_per_million_output_tokens"].where(pg.feasible(grid, of="request_latency"))
    equal = np.isclose(costs, costs.min(), rtol=1e-12)
    assert equal.sum() > 1
    equal &= (grid["pp"].broadcast_like(costs) == 1).values
    times = grid["request_latency"].where(pg.feasible(grid, of="request_latency")).broadcast_like(costs)
    assert np.nanmin(times.values[equal]) == both["request_latency"].item()


def test_ties_need_double_precision():
    content = {
        "outputs": ["cost_per_device_hour", "step_time"],
        "axes": {"model": ["llama-2-7b"], "device": [DEVICE], "parallelism": {"devices": [8], "tp": [1, 2]}},
        "workload_parameters": {"sequence_length": 2048, "global_batch": 64},
        "best": {"over": "parallelism", "minimize": "cost_per_device_hour", "ties": "step_time"},
    }
    with pytest.raises(PerfgridError, match=r"best\.ties: equal designs can be ordered in dtype = 'float64' alone"):
        Study.make(**content)
    found = pg.best(Study.make(**content, dtype="float64"))
    assert found["step_time"].item() == pg.evaluate(Study.make(**content, dtype="float64"))["step_time"].min().item()


def test_stacks_that_nothing_tells_apart_are_said(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text('[software.vllm-fork]\nextends = "vllm"\ntitle = "A fork"\nfront_end_time = "5 ms"\n')
    asked = {"software": "vllm-fork", "catalog": [own]}
    forked = pg.serve(MODEL, DEVICE, 1, **asked)
    (note,) = (note for note in forked.attrs["notes"] if "would give" in note)
    assert note == "vllm would give the same: no difference is modelled in this question"
    assert f"Note: {note}" in screen(forked)
    plain = pg.serve(MODEL, DEVICE, 1, software="vllm")
    assert forked["output_tokens_per_second"].item() == plain["output_tokens_per_second"].item()
    assert pg.serve(MODEL, DEVICE, 1, rate=2.0, **asked).attrs["notes"] == []
