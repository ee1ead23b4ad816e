"""The studies that are measured, in sizes from 10^5 to 10^9 points."""

from __future__ import annotations

from pathlib import Path

from perfgrid.engine.grid.plan import Plan
from perfgrid.study.study import Study, load_study

GRID = Path(__file__).with_name("grid.toml")
GRID_5D = Path(__file__).with_name("grid_5d.toml")
GRID_SERVING = Path(__file__).with_name("grid_serving.toml")
GRID_PERCENTILES = Path(__file__).with_name("grid_percentiles.toml")
QUICKSTART = Path(__file__).parents[1] / "studies" / "quickstart.toml"
GRIDS = {"dense": GRID, "5-D": GRID_5D}
MODEL = {"dense": 'axes.model=["llama-3.1-70b"]', "5-D": 'axes.model=["mixtral-8x22b"]'}  # of fewer than 10^8 points
REST = ('axes.device=["h200-sxm-141gb"]', 'axes.topology=["rail-optimized"]')  # of 10^6 points and fewer
SERVING = {  # settings of the serving grid; ordinary models of about the same sizes in place of the hybrids
    "hybrids": (),
    "ordinary": ('axes.model=["glm-4.5-air", "llama-3.1-8b", "deepseek-v2-lite", "qwen3-30b-a3b"]',),
}
MEANS = 'outputs=["time_to_first_token", "time_per_output_token", "request_latency"]'
EXPONENTS = (5, 6, 7, 8, 9)
# values of the link and of the memory bandwidth, by exponent
SIZES = {
    "dense": ((2, 16), (5, 64), (6, 64), (16, 64), (40, 256)),
    "5-D": ((2, 6), (2, 64), (6, 64), (16, 64), (42, 256)),
}
FEW_OUTPUTS = {1: ["step_time"], 3: ["step_time", "memory_per_device", "step_energy"]}


def sized(grid: str, exponent: int) -> Study:
    """A benchmark grid of about ten to this power of points: fewer models and devices, or more bandwidths."""
    links, memories = SIZES[grid][EXPONENTS.index(exponent)]
    settings = [
        f'axes.scale_up_bandwidth.scale={{ start = 0.5, stop = 4, num = {links}, spacing = "log" }}',
        f'axes.hbm_bandwidth.scale={{ start = 0.5, stop = 4, num = {memories}, spacing = "log" }}',
    ]
    settings += [MODEL[grid]] if exponent < 8 else []
    settings += REST if exponent <= 6 else ()
    return load_study(GRIDS[grid], settings)


def plan_of(study: Study, outputs: str = "20") -> Plan:
    """The plan of 1, 3 or all 20 outputs of a grid, or of every number that it evaluates point by point ("all")."""
    plan = study.plan()
    if outputs == "20":
        return plan
    if outputs == "all":
        points = (q for q in plan.quantities.values() if not q.small and not q.flag and set(q.inner) <= {1})
        names = [*plan.outputs, *(q.name for q in points if q.name not in plan.outputs)]
    else:
        names = FEW_OUTPUTS[int(outputs)]
    return Plan(study.registry, study.space, names, study.file.choices)


def full_grid_outputs(plan: Plan) -> list[str]:
    """The outputs that depend on every study column: as many distinct values as points."""
    return [n for n in plan.outputs if plan.quantities[n].points == plan.space.points]
