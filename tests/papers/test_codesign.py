"""Co-design of a device, its package, memory and layouts: optima against random designs and evolution."""

from __future__ import annotations

import json

import pytest
import xarray as xr

import perfgrid as pg
from benchmarks.codesign import MOVES, REDUCED, STUDY, best_random, designed, evaluated_again, evolved, prices, robust
from perfgrid.optimizer.design_file import design_studies
from perfgrid.optimizer.optimize import problem_of

NODES = ("n5", "n3", "a16")
UNFINISHED = "with two starts the search stops at a residual of 0.03; four found a design that is 10 % cheaper"
STORED = json.loads((STUDY.parents[2] / "benchmarks" / "codesign.json").read_text())


def check(settings, random, seeds):
    """The optimum is better than other searches, keeps the conditions of optimality and is what its study says."""
    study = pg.load_study(STUDY, settings)
    found = designed(settings, loosen=MOVES).squeeze()
    assert found.feasible.item()
    assert found.kkt_residual.item() < 1e-4
    assert evaluated_again(study, found) == pytest.approx(found.objective.item(), rel=1e-6)
    problem = problem_of(study, together=256 if study.space.points < 10_000 else 32)
    assert found.objective.item() < best_random(problem, random)
    for seed in range(seeds):
        assert found.objective.item() < evolved(problem, found.attrs["evaluations"], seed)
    limits = prices(found)
    assert limits
    agree(limits)
    return found


def agree(limits):
    """Limits move the optimum as their shadow prices say: the mean of both directions, and each for a small move."""
    for limit in limits.values():
        assert limit["price"] < 0  # a limit that is loosened never costs more
        for moved, sign in (("mean", 1), ("loosened by 0.1 %", 1), ("tightened by 0.1 %", -1)):
            assert sign * limit[moved] == pytest.approx(limit["price"], rel=0.1)


@pytest.mark.parametrize(
    "node", ["n5", "n3", pytest.param("a16", marks=pytest.mark.xfail(reason=UNFINISHED, strict=True))]
)
def test_stored_optima_keep_the_conditions_of_optimality(node):
    assert STORED[node]["optimum"]["kkt_residual"] < 1e-4


@pytest.mark.parametrize("node", STORED)
def test_stored_optima_are_what_their_studies_say(node):
    """Values that the benchmark stored, evaluated as the studies that `--save` writes: objective and limits."""
    values = STORED[node]["optimum"]
    found = xr.Dataset({"objective": values["objective"], "feasible": True}, {"node": node})
    study = pg.load_study(STUDY, [f'axes.node=["{node}"]'])
    stated = study.file.optimize
    assert stated is not None
    over = list(stated.over)
    labels = [*(stated.choose_jointly or ()), "train.parallelism", "serve.parallelism", "serve.batch"]
    found = found.assign({name: values[name] for name in over})
    found = found.assign_coords({"knob": over} | {name: values[name] for name in labels})
    assert evaluated_again(study, found) == pytest.approx(
        values["objective"], rel=1e-5
    )  # before requests waited for room
    contents = design_studies(study, found)
    trained = pg.evaluate(pg.Study.make(**contents[f"train-{node}" if f"train-{node}" in contents else "train"]))
    assert trained.device_price.item() < 10500 * (1 + 1e-6)
    assert trained.embodied_carbon.item() < 210 * (1 + 1e-6)
    agree(values["limits"])


@pytest.mark.slow
def test_the_reduced_optimum():
    found = check([*REDUCED, 'axes.node=["n5"]'], 4_000, 1)
    assert found.memory.item() in ("hbm3e", "hbm4")


@pytest.mark.slow
@pytest.mark.parametrize("node", NODES)
def test_the_optimum_of_every_node(node):
    check([f'axes.node=["{node}"]'], 100_000, 5)


@pytest.mark.slow
def test_a_robust_design_is_better_in_bad_cases():
    found = robust([*REDUCED, 'axes.node=["n5"]', 'axes.memory=["hbm4"]', "axes.budget_dies=[2]"])
    assert found["robust_p90"] <= found["nominal_p90"]
    assert found["robust_kept"]
