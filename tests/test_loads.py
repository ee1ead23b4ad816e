"""What answers of serve are loaded to, the prompt tokens that they search, what decides between nearly equal ones."""

import tomllib
from typing import Any

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.answers import budgets, search, serve
from perfgrid.answers.plain import answer_json
from perfgrid.answers.saved import save_study
from perfgrid.answers.serve_pools import serve_pools
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.reductions.argmin import nearest_first
from perfgrid.formulas.serving.shares import OF_REPLICA, replica_parts
from perfgrid.printing.answer import screen
from perfgrid.study.study import Study, build_study
from tests.inference.designs import evaluate
from tests.test_bad_input import run

MODEL, DEVICE = "llama-3.1-8b", "h100-sxm-80gb"
QUESTION: dict[str, Any] = {"prompt": 1500, "output": 250, "rate": 30.0, "tpot": "11ms"}


# ---- the largest load -----------------------------------------------------------------------------------------------


def test_an_answer_keeps_a_tenth_of_its_capacity():
    """As many devices as serve the rate at nine tenths of their capacity; with the whole of it fewer."""
    asked: dict[str, Any] = {"prompt": 1000, "output": 500, "rate": 29.0}
    usual = pg.serve(MODEL, DEVICE, [1, 2, 3, 4], **asked)
    whole = pg.serve(MODEL, DEVICE, [1, 2, 3, 4], largest_load=1, **asked)
    assert (usual["size"].item(), whole["size"].item()) == (3, 2)
    content = tomllib.loads(usual.attrs["study"])
    assert content["workload_parameters"]["largest_load"] == 0.9
    assert "Assumed: a design is loaded to 90% of its capacity at most (--largest-load)" in screen(usual)
    assert "--largest-load" not in screen(whole)
    assert "at largest_load [arrivals_are_served]" in screen(usual).replace("\n", " ")


def test_loads_that_are_none_are_refused():
    for wrong in (0, 1.5, "x", True):
        with pytest.raises(PerfgridError, match="largest"):
            pg.serve(MODEL, DEVICE, 1, rate=1.0, largest_load=wrong)
    with pytest.raises(PerfgridError, match="a largest load is for a rate, or for a queue without end"):
        pg.serve(MODEL, DEVICE, 1, clients=4, largest_load=0.5)


def test_pools_keep_it_as_well():
    asked = {
        "model": MODEL,
        "on": DEVICE,
        "devices": 6,
        "rate": 30.0,
        "prefill": "tp=1,workers=1",
        "decode": "tp=1,dp=3",
    }
    pair = serve_pools(**asked)
    load = max(float(pair.winner[f"{pool}_pool_load"]) for pool in ("prefill", "decode"))
    assert bool(pair.winner["found"])
    assert not bool(serve_pools(**asked, largest_load=load * 0.99).winner["found"])


# ---- prompt tokens of an iteration ----------------------------------------------------------------------------------


def whole_product(found):
    """The best design of all combinations that the study of an answer has, and how many there are."""
    study = build_study(tomllib.loads(found.attrs["study"]), "again")
    grid = pg.evaluate(study)
    choice = study.file.best
    assert choice is not None
    best = pg.best(grid, choice.over, choice.minimize, choice.maximize).squeeze()
    return {axis: str(best[axis].values) for axis in ("parallelism", "token_budget")}, study.space.points


@pytest.fixture
def small_fleet(monkeypatch):
    monkeypatch.setattr(serve, "FLEET", tuple(range(1, 33)))
    monkeypatch.setattr(search, "FLEETS", (8, 16))


SLOW = [pytest.param(more, marks=pytest.mark.slow) for more in ({"tpot": "9ms"}, {"ttft": "60ms", "tpot": None})]


@pytest.mark.parametrize("more", [{}, *SLOW])
def test_the_search_finds_the_best_of_all_combinations(small_fleet, more):
    """It leaves out larger clusters as soon as some serve, and budgets of layouts that cannot be the best."""
    found = pg.serve(MODEL, DEVICE, **QUESTION | more)
    best, points = whole_product(found)
    assert {axis: found[axis].item() for axis in best} == best
    assert found.attrs["designs_searched"] < points


def test_a_smaller_budget_saves_devices(small_fleet):
    searched = pg.serve(MODEL, DEVICE, **QUESTION)
    stated = pg.serve(MODEL, DEVICE, engine="vllm[prefill_chunk_tokens=8192]", **QUESTION)
    assert "token_budget" not in stated
    assert searched["size"].item() < stated["size"].item()
    budget = int(searched["token_budget"].item())
    same = pg.serve(MODEL, DEVICE, engine=f"vllm[prefill_chunk_tokens={budget},batch_limit={budget}]", **QUESTION)
    assert same["size"].item() == searched["size"].item()
    assert same["time_per_output_token"].item() == pytest.approx(searched["time_per_output_token"].item(), rel=1e-9)


def test_where_nothing_serves_the_least_loaded_are_tried_with_all_budgets(small_fleet):
    found = pg.serve(MODEL, DEVICE, **QUESTION | {"tpot": "1ms"})
    assert not found["found"].item()
    assert "None of" in screen(found)


def test_budgets_are_searched_where_nobody_states_them():
    def axis(engine, places=True):
        asked = serve.question(MODEL, DEVICE, 1, None, engine, None, workload="inference")
        return budgets.budget_axis(asked, places)[0]

    vllm, tokens = axis(None), [8192, 256, 512, 1024, 2048]
    assert vllm == {
        "labels": tokens,
        "zip": {"prefill_chunk_tokens": tokens, "batch_limit": [1024, 256, 512, 1024, 1024]},
    }
    assert axis(None, places=False) == {"labels": tokens, "zip": {"prefill_chunk_tokens": tokens}}
    assert axis("sglang") == axis(None, places=False)  # whose prompts have iterations of their own
    assert axis("vllm[front_end_time=0]") == vllm
    assert axis("vllm[prefill_chunk_tokens=4096]") is None
    assert axis("vllm[batch_limit=64]") is None
    assert axis("tensorrt-llm") is None  # which does not cut prompts
    assert axis("tensorrt-llm[chunked_prompts=true]") is not None
    assert axis("meta-inference") is None  # which has no limit


def test_the_launch_states_the_budget(monkeypatch, capsys):
    _, text, _ = run(
        monkeypatch,
        capsys,
        *("serve", MODEL, "--on", DEVICE, "--devices", "1,2,3,4", "--prompt", 1500, "--output", 250, "--rate", 30),
        *("--tpot", "11ms", "--launch", "vllm"),
    )
    budget = next(line.split()[1] for line in text.splitlines() if line.strip().startswith("token_budget"))
    assert int(budget) < 8192
    assert f"--max-num-batched-tokens {budget}" in text
    assert f"--max-num-seqs {min(int(budget), 1024)}" in text


# ---- nearly equal ones ----------------------------------------------------------------------------------------------


def test_nearly_equal_scores_are_in_the_order_of_other_quantities():
    score = np.array([-100.0, -99.5, -99.2, -98.0, np.inf])
    stages, time = np.array([2, 1, 1, 1, 1]), np.array([1.0, 5.0, 4.0, 0.1, 0.0])
    assert nearest_first(score, [stages, time], 0.01).tolist() == [2, 1, 0, 3, 4]
    assert nearest_first(score, [time], 1e-6).tolist() == [0, 1, 2, 3, 4]
    assert nearest_first(np.array([np.inf]), [np.array([1])], 0.01).tolist() == [0]


def test_fewer_stages_are_chosen_and_the_other_is_named(tmp_path):
    """Two stages of one device and two replicas: nearly the same; the saved study chooses the same design."""
    asked = {"rate": 30.0, "prompt": 1000, "output": 500, "devices": 4}
    found = pg.serve(MODEL, DEVICE, maximize="largest_request_rate", **asked)
    assert ".pp1." in found["parallelism"].item()
    save_study(found, tmp_path / "s.toml")
    study = pg.load_study(tmp_path / "s.toml")
    best = pg.best(study).squeeze()
    assert best["parallelism"].item() == found["parallelism"].item()
    assert str(best["token_budget"].item()) == found["token_budget"].item()
    about = answer_json(found)
    assert (about["ties"], about["within"]) == (["pp", "request_latency"], 0.02)
    most = pg.evaluate(study)["largest_request_rate"].where(pg.feasible(pg.evaluate(study))).max().item()
    gain = most / found["largest_request_rate"].item() - 1
    assert 0 <= gain < 0.01
    assert (gain > 1e-6) == any("better, within 2%" in note for note in about["notes"])


@pytest.mark.parametrize(
    ("best", "match"),
    [
        ({"ties": ["pp", "request_latency"]}, "several quantities need best.within"),
        ({"within": 0.01}, "state best.ties, too"),
        ({"ties": ["pq"], "within": 0.01}, "'pq' is not among the outputs"),
        ({"ties": "pp", "within": 2.0}, "within"),
    ],
)
def test_wrong_ties_are_refused(best, match):
    with pytest.raises(PerfgridError, match=match):
        Study.make(
            workload="inference",
            dtype="float64",
            outputs=["time_per_output_token", "request_latency"],
            axes={"model": [MODEL], "device": [DEVICE], "parallelism": {"devices": [2], "tp": [1, 2]}},
            workload_parameters={"prompt_tokens": 100, "output_tokens": 10, "batch": 4},
            best={"over": "parallelism", "minimize": "time_per_output_token"} | best,
        )


# ---- capacity and what it waits for ---------------------------------------------------------------------------------


def test_longer_prompts_are_not_served_faster():
    """Whole prompts of TensorRT-LLM too: as many sequences run as leave room for those that follow them."""
    study = Study.make(
        workload="inference",
        outputs=["largest_request_rate"],
        axes={
            "model": ["llama-3.1-70b"],
            "device": [DEVICE],
            "software": ["vllm", "sglang", "tensorrt-llm"],
            "prompt_tokens": list(range(500, 9000, 100)),
            "parallelism": {"devices": [8], "tp": [4, 8], "pp": [1]},
        },
        workload_parameters={"batch_rule": "rate", "request_rate": 0.1, "output_tokens": 300}
        | {f"{of}precision": "fp8" for of in ("", "weight_", "kv_")},
    )
    found = pg.evaluate(study, dtype="float64")
    capacity = found.largest_request_rate.transpose(..., "prompt_tokens").values
    assert (capacity[..., 1:] / capacity[..., :-1]).max() < 1.005
    assert (capacity[..., 0] / capacity[..., -1]).min() > 5


def test_a_replica_waits_for_what_more_of_would_help():
    """Long prompts, short answers: its time goes to arithmetic, though a request spends most of its own on decoding."""
    found = pg.serve("llama-3.1-70b", DEVICE, 8, prompt=6000, output=200, clients=64)
    (limit,) = (line for line in screen(found).splitlines() if "limited by" in line)
    assert "arithmetic" in limit
    content = tomllib.loads(found.attrs["study"])

    def throughput(**scale):
        axes = content["axes"] | {name: {"scale": [factor]} for name, factor in scale.items()}
        return float(pg.best(build_study(content | {"axes": axes}, "again")).output_tokens_per_second.max())

    usual = throughput()
    assert throughput(peak_bf16_rate=1.1) / usual > 1.03 > throughput(hbm_bandwidth=1.1) / usual > 1


def test_pools_keep_limits_of_percentiles():
    asked: dict[str, Any] = {"devices": 6, "rate": 30.0, "prefill": "tp=1,workers=2", "decode": "tp=1,dp=3"}
    pair = serve_pools(MODEL, DEVICE, **asked, ttft=10.0, statistic="p99", variation=0.5)
    first = {of: float(pair.winner[f"time_to_first_token{of}"]) for of in ("", "_p99")}
    assert first["_p99"] > 1.2 * first[""]
    between = sum(first.values()) / 2
    assert bool(serve_pools(MODEL, DEVICE, **asked, ttft=between, variation=0.5).winner["found"])
    assert not bool(serve_pools(MODEL, DEVICE, **asked, ttft=between, statistic="p99", variation=0.5).winner["found"])
    with pytest.raises(PerfgridError, match="p99 says what keeps a limit: state one"):
        serve_pools(MODEL, DEVICE, **asked, statistic="p99")


def test_what_a_replica_waits_for_adds_up_to_its_time():
    """By hand: of prompts in many passes, what they add to each, and not the steps beside them."""
    design = {"model": "llama-3.1-70b", "device": DEVICE, "software": "vllm", "tp": 8.0, "batch": 256.0}
    loaded = {
        "prompt_tokens": 8000.0,
        "output_tokens": 500.0,
        "batch_rule": "concurrency",
        "prefill_chunk_tokens": 512.0,
    }
    names = ("pass_time", "going_on", "kernels_time", "request_prefill_time", "request_decode_time", *OF_REPLICA)
    found = evaluate(*names, **design, **loaded)
    parts = replica_parts(found)
    own = float(np.ravel(found["request_prefill_time"])[0] + np.ravel(found["request_decode_time"])[0])
    assert sum(parts.values()) == pytest.approx(own, rel=1e-6)
    shares = {name: part / own for name, part in parts.items()}
    assert shares["communication_time"] == pytest.approx(0.369, abs=0.03)
    assert shares["hbm_time"] < 0.25
