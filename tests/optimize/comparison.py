"""Ten studies with four or more free quantities: what the optimiser finds against dense grids and evolution."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from scipy.optimize import differential_evolution

import perfgrid as pg
from perfgrid.formulas.axes import at
from perfgrid.optimizer.optimize import optimize, problem_of
from perfgrid.optimizer.search import KEPT


@pg.formula(unit="USD", source="zhang2024llmcompass")
def parts_price(hbm_bandwidth, peak_bf16_rate, scale_up_bandwidth, scale_out_bandwidth):
    """A price that grows with what a device can do: a study's own assumption."""
    return 2e3 * (peak_bf16_rate / 1e15) + 2e3 * (hbm_bandwidth / 3e12) + 1e3 * (scale_up_bandwidth / 450e9) + 800 * (
        scale_out_bandwidth / 50e9)  # fmt: skip


@pg.formula(unit="s.USD", source="zhang2024llmcompass")
def price_of_speed(step_time, parts_price):
    """Step time times the price of a device."""
    return step_time * (parts_price + 2e3)


@pg.formula(unit="s", source="ardalani2022deepflow")
def chip_time(area_split, power_split):
    """Four parts that share area and power: a sum of times, each a geometric mean of both shares."""
    names = ("matrix", "vector", "l2", "memory")
    shares = [at(area_split, component=n) ** 0.6 * (at(power_split, component="matrix") + 0.1) ** 0.4 for n in names]
    return 5 / shares[0] + 2 / shares[1] + 0.3 / shares[2] + 1 / shares[3]


@pg.formula(unit="s", source="williams2009roofline")
def overlapped_time(area_split):
    """The slowest of four parts."""
    times = [
        w / at(area_split, component=n) for n, w in (("matrix", 4.0), ("l2", 1.0), ("memory", 2.0), ("vector", 3.0))
    ]
    return pg.xp.maximum(pg.xp.maximum(times[0], times[1]), pg.xp.maximum(times[2], times[3]))


SHARES = [f"area_split.{n}" for n in ("matrix", "vector", "l2", "memory")]
ACROSS = ["area_split.matrix", "area_split.vector", "area_split.memory", "area_split.l2",
          "power_split.matrix", "power_split.memory"]  # fmt: skip
RATES: dict[str, Any] = {"hbm_bandwidth": [1e12, 16e12], "peak_bf16_rate": [2e14, 4e15],
                         "scale_up_bandwidth": [1e11, 2e12], "scale_out_bandwidth": [1e10, 2e11]}  # fmt: skip
CHIP = {"workload": "manufacturing", "axes": {"device": ["h100-sxm-80gb"], "budget": ["h100-budget"]}}


def training(model: str, device: str, budget: str | None, node: str | None, **parameters: Any) -> dict[str, Any]:
    axes: dict[str, Any] = {"model": [model], "device": [device], "topology": ["rail-optimized"]}
    axes |= {} if budget is None else {"budget": [budget]}
    axes |= {} if node is None else {"node": [node]}
    axes["parallelism"] = {"devices": [256], "tp": [1, 2, 4, 8], "pp": [1, 2, 4, 8]}
    given = {"sequence_length": 4096, "global_batch": 256, "recompute": "least"} | parameters
    return {"axes": axes, "workload_parameters": given}


H100, A100 = "h100-sxm-80gb", "a100-sxm-80gb"
STUDIES: dict[str, tuple[dict[str, Any], str, Any, str | None]] = {  # content, objective, over, limits
    "parts in sequence": (CHIP, "chip_time", [*SHARES, "power_split.matrix", "power_split.memory"], None),
    "parts that overlap": (CHIP, "overlapped_time", SHARES, None),
    "8B, area and power, 5 nm": (training("llama-3.1-8b", H100, "h100-budget", "n5"), "step_time", ACROSS, None),
    "70B, area and power, 3 nm": (training("llama-3.1-70b", H100, "h100-budget", "n3"), "step_time", ACROSS, None),
    "GPT-3, area and power, 7 nm": (training("gpt3-175b", A100, "a100-budget", "n7"), "step_time", ACROSS, None),
    "70B, long sequences": (
        training("llama-3.1-70b", H100, "h100-budget", "n5", sequence_length=32768), "step_time", ACROSS, None),
    "8B, rates for a price": (training("llama-3.1-8b", H100, None, None), "price_of_speed", RATES, None),
    "70B, rates within a price": (
        training("llama-3.1-70b", H100, None, None), "step_time", RATES, "parts_price < 6000 USD"),
    "8B, least price in time": (training("llama-3.1-8b", H100, None, None), "parts_price", RATES, "step_time < 2.5 s"),
    "GPT-3, rates for a price": (training("gpt3-175b", A100, None, None), "price_of_speed", RATES, None),
}  # fmt: skip


class Spent(Exception):
    """The evaluations of a search are used up."""


def compared(name: str, per_axis: int = 6) -> dict[str, float]:
    """The optimum, the best of a dense grid and of differential evolution with as many evaluations."""
    content, objective, over, limit = STUDIES[name]
    formulas = [parts_price, price_of_speed] if "budget" not in content["axes"] else [chip_time, overlapped_time]
    study = pg.Study.make(outputs=[objective], formulas=formulas, **content)
    choose = ["parallelism"] if "parallelism" in content["axes"] else []
    found = optimize(study, objective, over=over, subject_to=limit, choose=choose, starts=3)
    problem = problem_of(study, objective, None, over, limit, choose)
    count = len(problem.knobs)
    axes = [np.linspace(0, 1, per_axis if count <= 4 else 4)] * count
    grid = np.stack([g.ravel() for g in np.meshgrid(*axes, indexing="ij")], axis=1)
    value, broken, _ = problem.screen(grid)
    dense = np.where(broken[:, 0] > KEPT, np.inf, value[:, 0]).min()
    problem.evaluations, best = 0, [np.inf]

    def score(points: np.ndarray) -> np.ndarray:
        if problem.evaluations >= found.attrs["evaluations"]:
            raise Spent
        value, broken, _ = problem.screen(points.T)
        kept = np.where(broken[:, 0] > KEPT, np.inf, value[:, 0])
        best[0] = min(best[0], kept.min())
        return np.log(value[:, 0]) + 10 * broken[:, 0]

    with contextlib.suppress(Spent):
        differential_evolution(
            score, [(0, 1)] * count, popsize=10, maxiter=10**6, tol=0, atol=0, polish=False, rng=0, vectorized=True,
            updating="deferred",
        )  # fmt: skip
    return {
        "knobs": count, "optimum": found.objective.item(), "grid": float(dense), "points": len(grid),
        "evolution": best[0], "evaluations": found.attrs["evaluations"], "kkt": found.kkt_residual.item(),
    }  # fmt: skip


def main() -> None:
    """Print the comparison as rows of a table."""
    import sys
    import time

    for name in STUDIES:
        start = time.process_time()
        row = compared(name)
        print(f"| {name} | {row['knobs']} | {row['optimum']:.5g} | {row['grid'] / row['optimum'] - 1:+.2%} | "
              f"{row['evolution'] / row['optimum'] - 1:+.2%} | {row['evaluations']:,} | {row['kkt']:.0e} | "
              f"{time.process_time() - start:.0f} s", flush=True, file=sys.stdout)  # fmt: skip


if __name__ == "__main__":
    main()
