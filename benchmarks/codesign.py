"""Co-design of studies/papers/codesign.toml: optima against random designs and evolution, limits moved, robust designs.

    python -m benchmarks.codesign [NODE ...] [--steps optimum random evolution robust] [--reduced] [--json FILE]

Each finished step of a node is written at once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from scipy.optimize import differential_evolution
from scipy.stats import qmc

import perfgrid as pg
from perfgrid.optimizer.design_file import design_studies
from perfgrid.optimizer.optimize import problem_of
from perfgrid.optimizer.problem import Problem
from perfgrid.study.limits import KEPT

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "studies" / "papers" / "codesign.toml"
STEPS = ("optimum", "random", "evolution", "robust")
JOINT = ("budget_dies", "package", "memory", "topology")  # labels chosen jointly
MOVES = (-0.01, -0.001, 0.001, 0.01)  # of each limit
UNCERTAIN = '["price", "package", "wafer_price", "defect_density", "memory_price"]'
REDUCED = [  # a small model, few labels and free quantities: minutes in all
    'axes.model=["llama-3.1-8b"]',
    "axes.budget_dies=[1, 2]",
    'axes.package=["cowos-l"]',
    'axes.topology=["rails"]',
    "axes.parallelism={devices=[64], tp=[1, 2], pp=[1]}",
    "workload_parameters.global_batch=128",
    'optimize.over={budget_area=["200 mm^2", "1600 mm^2"], budget_power=["100 W", "1500 W"], "area_split.matrix"=[], '
    '"area_split.memory"=[], "area_split.vector"=[]}',
    'optimize.subject_to=["train.device_price < 6000 USD", "budget_power < 450 W"]',
    'workloads=[{name="train"}, {name="serve", workload="inference", outputs=["cost_per_million_tokens", '
    '"time_per_output_token"], axes={software=["vllm"], batch=[16, 64], parallelism={devices=[1], tp=[1], pp=[1]}}, '
    'workload_parameters={precision="bf16", price_view="manufacturing", production_volume=1e5, '
    'budget_d2d_overhead=0.1, batch_rule="concurrency", prompt_tokens=1024, output_tokens=256}}]',
]


class Spent(Exception):
    """The evaluations of a search are used up."""


def designed(settings: list[str], **options: Any) -> xr.Dataset:
    """The optimum of the study with settings."""
    return pg.optimize(pg.load_study(STUDY, settings), starts=2, **options)


def best_random(problem: Problem, count: int, seed: int = 0) -> float:
    """The best feasible of so many random designs: even points, each with every joint label and its best layouts."""
    points = qmc.Sobol(len(problem.knobs), rng=seed).random_base2(int(np.ceil(np.log2(count / problem.groups))))
    value, broken, _ = problem.screen(points)
    return float(np.where(broken > KEPT, np.inf, value).min())


def evolved(problem: Problem, evaluations: int, seed: int) -> float:
    """The best feasible design of SciPy's differential evolution, defaults, with so many evaluations.

    A candidate is evaluated with every joint label and its best layouts, as many evaluations as there are labels.
    """
    best, problem.evaluations = np.inf, 0

    def score(points: np.ndarray) -> np.ndarray:
        nonlocal best
        if problem.evaluations >= evaluations:
            raise Spent
        value, broken, _ = problem.screen(points.T)
        best = min(best, float(np.where(broken > KEPT, np.inf, value).min()))
        return (np.log(np.maximum(value, 1e-300)) + 10 * broken).min(axis=1)

    with contextlib.suppress(Spent):
        differential_evolution(
            score, [(0, 1)] * len(problem.knobs), maxiter=10**6, tol=0, polish=False, rng=seed, vectorized=True,
            updating="deferred",
        )  # fmt: skip
    return best


def evaluated_again(study: pg.Study, found: xr.Dataset) -> float:
    """The objective of an optimum from the study files of its designs, evaluated as any study."""
    total = 0.0
    for content in design_studies(study, found).values():
        one = pg.evaluate(pg.Study.make(**content), "float64")
        total += float(one.cost_per_million_tokens.where(pg.feasible(one)).squeeze())
    return total


def prices(found: xr.Dataset) -> dict[str, dict[str, float]]:
    """For every limit that binds: its shadow price, and what 1 % and 0.1 % of the limit move the objective by.

    Each in percent of the objective for one percent of the limit; curvature separates both directions, less so the
    smaller the move.
    """
    limits = {}
    for name in map(str, found.constraint.values):
        moved = found.loosened.sel(constraint=name)
        price = float(found.shadow_price.sel(constraint=name))
        if np.isfinite(moved).all() and abs(price) > 1e-3:
            limits[name] = {"price": price}
            for by, text in ((MOVES[3], ""), (MOVES[2], " by 0.1 %")):
                tight, loose = (float(moved.sel(by=b)) / by for b in (-by, by))
                mean = (loose - tight) / 2
                limits[name] |= {f"tightened{text}": tight, f"loosened{text}": loose, f"mean{text}": mean}
    return limits


def point_of(problem: Problem, found: xr.Dataset) -> np.ndarray:
    """An optimum as a point of the unit cube."""
    return np.array([[knob.place(float(found[knob.name])) for knob in problem.knobs.knobs]])


def robust(settings: list[str], samples: int = 32, drawn_anew: int = 256) -> dict[str, float]:
    """90th percentiles on fresh samples of the design that is best as estimates are stated, and of the robust one.

    Only limits on free quantities stay: those that estimates move would ask more of the robust design.
    """
    drawn = "axes.sample={{num={},seed={},of={}}}"
    stated = pg.load_study(STUDY, settings).file.optimize
    assert stated is not None
    certain = [text for text in stated.subject_to if text.split()[0] in stated.over]
    settings = [*settings, f"optimize.subject_to={json.dumps(certain)}"]
    nominal = designed(settings)
    hedged = designed([*settings, drawn.format(samples, 0, UNCERTAIN)], quantile=0.9)
    fresh = problem_of(pg.load_study(STUDY, [*settings, drawn.format(drawn_anew, 1, UNCERTAIN)]), quantile=0.9)
    values = {}
    for name, found in (("nominal", nominal), ("robust", hedged)):
        value, broken, _ = fresh.screen(point_of(fresh, found))
        values |= {f"{name}_p90": float(value[0, 0]), f"{name}_kept": float(broken[0, 0]) <= KEPT}
        values |= {f"{name}_{k}": float(found[k]) for k in ("budget_area", "budget_power", "hbm_stacks")}
    plain = problem_of(pg.load_study(STUDY, settings))
    for name, found in (("nominal", nominal), ("robust", hedged)):
        values[f"{name}_stated"] = float(plain.screen(point_of(plain, found))[0][0, 0])
    return values | {"kkt": float(hedged.kkt_residual)}


def optimum(settings: list[str]) -> dict[str, Any]:
    """The optimum of a node, what its limits cost, and the objective evaluated again from its study files."""
    study = pg.load_study(STUDY, settings)
    found = designed(settings, loosen=MOVES).squeeze()
    numbers = [v for v in found.data_vars if found[v].ndim == 0 and found[v].dtype.kind == "f"]
    shown = (*JOINT, "train.parallelism", "serve.parallelism", "serve.batch")
    again = evaluated_again(study, found)
    return (
        {str(v): float(found[v]) for v in numbers}
        | {name: found[name].item() for name in shown}
        | {"evaluations": int(found.attrs["evaluations"]), "again": again, "limits": prices(found)}
        | {"off": again / float(found.objective) - 1}
    )


def measure(step: str, settings: list[str], best: dict[str, Any], seeds: int, random: int) -> dict[str, Any]:
    """One comparison at a node, of designs to its optimum ``best``."""
    if step == "optimum":
        return optimum(settings)
    if step == "robust":
        return robust([*settings, *(f"axes.{name}={json.dumps([best[name]])}" for name in JOINT)])
    problem = problem_of(pg.load_study(STUDY, settings))
    if step == "random":
        return {"designs": random, "best": best_random(problem, random)}
    reached = [evolved(problem, best["evaluations"], seed) for seed in range(seeds)]
    return {"library": f"scipy {version('scipy')} differential_evolution", "best": reached}


def main() -> None:
    """Measure the nodes that are named, all three without a name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nodes", nargs="*", default=["n5", "n3", "a16"])
    parser.add_argument(
        "--steps", nargs="*", choices=STEPS, default=STEPS, help="all but the first follow a stored optimum"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--random", type=int, default=100_000)
    parser.add_argument("--reduced", action="store_true", help="a small model with few labels and free quantities")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "codesign.json")
    given = parser.parse_args()
    for step in given.steps:
        for node in given.nodes:
            settings = [*(REDUCED if given.reduced else ()), *given.set, f"axes.node={json.dumps([node])}"]
            held = json.loads(given.json.read_text()) if given.json.exists() else {}
            own = held.setdefault(f"{node}, reduced" if given.reduced else node, {})
            own[step] = measure(step, settings, own.get("optimum", {}), given.seeds, given.random)
            print(node, step, json.dumps(own[step]), flush=True)
            given.json.write_text(json.dumps(held, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
