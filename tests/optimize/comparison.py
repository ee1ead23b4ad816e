"""Studies with four or more free quantities: what the optimiser finds against dense grids and evolution.

Run from the repository's root: python -m tests.optimize.comparison [seed] [fresh]
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from scipy.optimize import differential_evolution

import perfgrid as pg
from perfgrid.formulas import xp
from perfgrid.formulas.axes import at
from perfgrid.optimizer.optimize import optimize, problem_of
from perfgrid.study.limits import KEPT


@pg.formula(unit="USD", source="zhang2024llmcompass")
def parts_price(hbm_bandwidth, peak_bf16_rate, scale_up_bandwidth, scale_out_bandwidth):
    """A price that grows with what a device can do: a study's own assumption."""
    return (
        2e3 * (peak_bf16_rate / 1e15)
        + 2e3 * (hbm_bandwidth / 3e12)
        + 1e3 * (scale_up_bandwidth / 450e9)
        + 800 * (scale_out_bandwidth / 50e9)
    )


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
    return xp.maximum(xp.maximum(times[0], times[1]), xp.maximum(times[2], times[3]))


SHARES = [f"area_split.{n}" for n in ("matrix", "vector", "l2", "memory")]
ACROSS = [
    "area_split.matrix",
    "area_split.vector",
    "area_split.memory",
    "area_split.l2",
    "power_split.matrix",
    "power_split.memory",
]
RATES: dict[str, Any] = {
    "hbm_bandwidth": [1e12, 16e12],
    "peak_bf16_rate": [2e14, 4e15],
    "scale_up_bandwidth": [1e11, 2e12],
    "scale_out_bandwidth": [1e10, 2e11],
}
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
        training("llama-3.1-70b", H100, "h100-budget", "n5", sequence_length=32768),
        "step_time",
        ACROSS,
        None,
    ),
    "8B, rates for a price": (training("llama-3.1-8b", H100, None, None), "price_of_speed", RATES, None),
    "70B, rates within a price": (
        training("llama-3.1-70b", H100, None, None),
        "step_time",
        RATES,
        "parts_price < 6000 USD",
    ),
    "8B, least price in time": (training("llama-3.1-8b", H100, None, None), "parts_price", RATES, "step_time < 2.5 s"),
    "GPT-3, rates for a price": (training("gpt3-175b", A100, None, None), "price_of_speed", RATES, None),
}


def serving(
    model: str, device: str, budget: str | None, node: str | None, tp: list[int], devices: int, **parameters: Any
) -> dict[str, Any]:
    content = training(model, device, budget, node)
    content["axes"] |= {
        "software": ["vllm"],
        "batch": [8, 16, 32, 64, 128, 256],
        "parallelism": {"devices": [devices], "tp": tp, "pp": [1]},
    }
    given = {"batch_rule": "concurrency", "prompt_tokens": 1024, "output_tokens": 512} | parameters
    return content | {"workload": "inference", "workload_parameters": given}


# Drawn after the optimiser was finished and run once: nothing was chosen by looking at them.
FRESH: dict[str, tuple[dict[str, Any], str, Any, str | None]] = {
    "405B, energy, 2 nm": (
        training("llama-3.1-405b", H100, "b200-budget", "n2"),
        "energy_per_token",
        ACROSS,
        "step_time < 12 s",
    ),
    "Mixtral 8x7B, cost, 4 nm": (
        training("mixtral-8x7b", H100, "h100-budget", "n4"),
        "cost_per_million_tokens",
        ACROSS,
        None,
    ),
    "22B, area and power, 10 nm": (
        training("megatron-22b", A100, "exploration-budget", "n10"),
        "step_time",
        ACROSS,
        None,
    ),
    "27B served, cost, 3 nm": (
        serving("gemma-2-27b", H100, "h100-budget", "n3", [1, 2, 4], 4, time_per_output_token_limit=0.02),
        "cost_per_million_tokens",
        ACROSS,
        None,
    ),
    "72B served, latency, 6 nm": (
        serving("qwen-2.5-72b", A100, "a100-budget", "n6", [2, 4, 8], 8),
        "time_per_output_token",
        ACROSS,
        None,
    ),
    "8B served, rates for a price": (
        serving("llama-3.1-8b", H100, None, None, [1], 1, time_per_output_token_limit=0.02),
        "parts_price",
        RATES,
        "output_tokens_per_second > 4000",
    ),
}


class Spent(Exception):
    """The evaluations of a search are used up."""


def compared(name: str, per_axis: int = 6, seed: int = 0) -> dict[str, float]:
    """The optimum, the best of a dense grid and of differential evolution with as many evaluations."""
    content, objective, over, limit = (STUDIES | FRESH)[name]
    formulas = [parts_price, price_of_speed] if "budget" not in content["axes"] else [chip_time, overlapped_time]
    study = pg.Study.make(outputs=[objective], formulas=formulas, **content)
    choose = [axis for axis in ("parallelism", "batch") if axis in content["axes"]]
    found = optimize(study, objective, over=over, subject_to=limit, choose=choose, starts=3, seed=seed)
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
            score,
            [(0, 1)] * count,
            popsize=10,
            maxiter=10**6,
            tol=0,
            atol=0,
            polish=False,
            rng=seed,
            vectorized=True,
            updating="deferred",
        )
    return {
        "knobs": count,
        "optimum": found.objective.item(),
        "grid": float(dense),
        "points": len(grid),
        "evolution": best[0],
        "evaluations": found.attrs["evaluations"],
        "kkt": found.kkt_residual.item(),
    }


def main() -> None:
    """Print the comparison as rows of a table; with a seed, and with ``fresh`` of the studies drawn later."""
    import sys
    import time

    seed = next((int(a) for a in sys.argv[1:] if a.isdigit()), 0)
    for name in FRESH if "fresh" in sys.argv else STUDIES:
        start = time.process_time()
        row = compared(name, seed=seed)
        print(
            f"| {name} | {row['knobs']} | {row['optimum']:.5g} | {row['grid'] / row['optimum'] - 1:+.2%} | "
            f"{row['evolution'] / row['optimum'] - 1:+.2%} | {row['evaluations']:,} | {row['kkt']:.0e} | "
            f"{time.process_time() - start:.0f} s",
            flush=True,
            file=sys.stdout,
        )


if __name__ == "__main__":
    main()
