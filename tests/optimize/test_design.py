"""A design that is trained and served on: several kinds of work in one objective."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.formulas import INNER
from perfgrid.optimizer.described import outputs
from perfgrid.optimizer.optimize import problem_of
from perfgrid.study.limits import KEPT
from perfgrid.study.study import workloads

STUDY = Path(__file__).parents[2] / "studies" / "design_accelerator.toml"
SHARES = [f"area_split.{n}" for n in ("matrix", "vector", "memory", "l2")]
SERVED = {
    "precision": "bf16",
    "price_view": "manufacturing",
    "batch_rule": "concurrency",
    "prompt_tokens": 1024,
    "output_tokens": 256,
    "time_per_output_token_limit": 0.03,
}


def both(served: dict[str, Any] | None = None, batches: Sequence[int] = (16, 64, 256), **content: Any) -> pg.Study:
    """Llama 3.1 8B trained and served on one design."""
    serve = {
        "name": "served",
        "workload": "inference",
        "outputs": ["cost_per_million_tokens", "time_per_output_token"],
        "axes": {"software": ["vllm"], "batch": list(batches), "parallelism": {"devices": [1], "tp": [1], "pp": [1]}},
        "workload_parameters": SERVED | (served or {}),
    }
    axes = {
        "model": ["llama-3.1-8b"],
        "device": ["h100-sxm-80gb"],
        "budget": ["h100-budget"],
        "node": ["n5"],
        "memory": ["hbm3e"],
        "topology": ["rail-optimized"],
        "parallelism": {"devices": [64], "tp": [1, 2], "pp": [1]},
    }
    given = {
        "sequence_length": 4096,
        "global_batch": 64,
        "precision": "bf16",
        "recompute": "least",
        "price_view": "manufacturing",
    }
    outputs = ["cost_per_million_tokens", "step_time", "hbm_bandwidth"]
    return pg.Study.make(
        outputs=outputs, axes=axes, workload_parameters=given, workloads=[{"name": "trained"}, serve], **content
    )


def search(study: pg.Study, **options: Any):
    arguments = {"minimize": "cost_per_million_tokens", "over": SHARES, "choose": ["parallelism", "batch"]} | options
    return pg.optimize(study, **arguments)


def test_one_design_is_trained_and_served_on():
    study = both()
    found = search(study, starts=1)
    assert found.feasible.item()
    assert found.kkt_residual.item() < 1e-3
    problem = problem_of(study, "cost_per_million_tokens", None, SHARES, None, ["parallelism", "batch"])
    drawn = np.random.default_rng(3).random((640, len(SHARES)))
    value, broken, _ = problem.screen(np.concatenate((problem.knobs.start()[None], drawn)))
    assert found.objective.item() < np.where(broken > 0, np.inf, value).min()
    stated = problem.knobs.named(problem.knobs.start())
    moved = sum(abs(found[n].item() - stated[n]) for n in SHARES) / 2
    assert found.moved.sel(split="area_split").item() == pytest.approx(moved)
    # the same design, evaluated as any study
    split = dict(zip(INNER.labels["component"], np.ravel(problem.knobs.base["area_split"]).tolist(), strict=True))
    split |= {name.partition(".")[2]: found[name].item() for name in SHARES}
    costs = []
    for name, (one, _) in workloads(study).items():
        content = one.file.model_dump(exclude_none=True, exclude={"workloads", "optimize", "best", "pareto", "catalog"})
        content["overrides"] = {"area_split": split}
        evaluated = pg.evaluate(pg.Study.make(**content), "float64")
        cost = evaluated.cost_per_million_tokens.where(pg.feasible(evaluated)).squeeze()
        chosen = {axis: found.coords[f"{name}.{axis}"].item() for axis in ("parallelism", "batch") if axis in cost.dims}
        costs.append(cost.sel(chosen).item())
        assert costs[-1] == pytest.approx(float(cost.min()), rel=1e-9)  # the best layout and batch of this workload
        assert found[f"{name}.cost_per_million_tokens"].item() == pytest.approx(costs[-1], rel=1e-6)
    assert found.objective.item() == pytest.approx(sum(costs), rel=1e-6)


@pytest.mark.slow
def test_a_start_that_breaks_a_limit_is_no_obstacle():
    study = both()
    problem = problem_of(study, "cost_per_million_tokens", None, SHARES, None, ["parallelism", "batch"])
    _, _, layout = problem.screen(problem.knobs.start()[None])
    before = outputs(problem, problem.knobs.start()[None], np.zeros(1, int), layout[:, 0])[1][0]
    bound = 0.7 * before["time_per_output_token"].item()
    found = search(study, subject_to=f"served.time_per_output_token < {bound}", starts=1)
    assert found["served.time_per_output_token"].item() <= bound * (1 + KEPT)


REFUSED = [
    pytest.param(
        {"over": SHARES[:2]},
        {"time_per_output_token_limit": 1e-4},
        "no design within the bounds keeps every limit.*output_tokens_in_time",
        marks=pytest.mark.slow,  # a whole search; `test_optimize` refuses smaller ones
    ),
    ({"subject_to": "serve.step_time < 1 s"}, {}, "no workload 'serve'; did you mean 'served'"),
    ({"subject_to": "served.time_per_output_tokens < 1 s"}, {}, "did you mean 'time_per_output_token'"),
    ({"over": ["budget_power"]}, {}, "has no bounds"),
    ({"over": {"batch": [1, 9]}}, {}, "has no derivative|nothing states a quantity 'batch'"),
    ({"choose": ["parallelism"]}, {}, "different axes of which every label would have an optimum.*choose"),
    ({"minimize": "step_time"}, {}, r"\(served\).*unknown quantity 'step_time'"),
]


@pytest.mark.parametrize(("options", "served", "message"), REFUSED)
def test_what_cannot_be_designed_is_reported_in_a_sentence(options, served, message):
    with pytest.raises(pg.PerfgridError, match=message):
        search(both(served, [64] if served else [16, 64, 256]), starts=1, **options)  # a search takes its time


def test_the_ready_study_trains_and_serves_two_models_on_every_node():
    study = pg.load_study(STUDY)
    work = {name: (one.file.workload, one.file.axes["model"]) for name, (one, _) in workloads(study).items()}
    assert work == {
        "train_dense": ("training", ["llama-3.1-70b"]),
        "train_experts": ("training", ["deepseek-v3"]),
        "serve_dense": ("inference", ["llama-3.1-70b"]),
        "serve_experts": ("inference", ["deepseek-v3"]),
    }
    nodes = next(a.labels.tolist() for a in study.space.axes if a.name == "node")
    assert (nodes[0], nodes[-1]) == ("n12", "a10")


@pytest.mark.slow
def test_the_accelerator_beats_ten_thousand_random_designs():
    study = pg.load_study(STUDY, ['axes.node=["n5"]'])
    found = pg.optimize(study, starts=2)
    assert found.kkt_residual.item() < 1e-3
    problem = problem_of(study)
    value, broken, _ = problem.screen(np.random.default_rng(1).random((10_000, len(problem.knobs))))
    assert found.objective.item() < 0.9 * np.where(broken > 0, np.inf, value).min()
    assert (found.moved.values > 0).all()
