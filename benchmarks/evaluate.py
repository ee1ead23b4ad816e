"""How fast grids are evaluated: every output of every point, tile by tile, in the steady state."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np

from perfgrid.engine.execution.evaluation import Evaluation
from perfgrid.engine.execution.lanes import processors
from perfgrid.engine.execution.materialised import Kernel
from perfgrid.engine.graph.rows import leaves
from perfgrid.engine.grid.plan import Plan
from perfgrid.study.study import load_study

from .grids import GRID, GRID_PERCENTILES, GRID_SERVING, MEANS, SERVING, full_grid_outputs, plan_of, sized

SMALL = ("axes.hbm_bandwidth.scale=[0.5, 1.0, 2.0, 4.0]", "axes.scale_up_bandwidth.scale=[1.0, 2.0]")
ROUNDS = 3  # through the arrays of a thread, so that threads write at the same time most of the time


class Bandwidth:
    """What this machine writes to memory: the limit of an evaluation by as many threads.

    Processors share the way to memory: two of them write little more together than one alone, in twice the CPU time.
    """

    def __init__(self, arrays: int, values: int, threads: int):
        """As many arrays of float32 for each thread as a tile has, as long as those of a tile."""
        self.buffers = [[np.zeros(values, np.float32) for _ in range(max(2, arrays))] for _ in range(threads)]
        self.bytes = ROUNDS * sum(buffer.nbytes for own in self.buffers for buffer in own)
        self.store()  # to meet fresh memory once

    def store(self) -> float:
        """Bytes per CPU-second that are stored."""
        return self._rate(lambda own: [buffer.fill(1) for buffer in own])

    def copy(self) -> float:
        """Bytes per CPU-second written where as many are read: what an element-wise output costs at least."""
        return self._rate(lambda own: [np.copyto(own[i], own[i - 1]) for i in range(len(own))])

    def _rate(self, write: Callable[[list[np.ndarray]], object]) -> float:
        with ThreadPoolExecutor(len(self.buffers)) as pool:
            start = time.process_time()
            list(pool.map(lambda own: [write(own) for _ in range(ROUNDS)], self.buffers))
            return self.bytes / (time.process_time() - start)


def equations_once(plan: Plan) -> int:
    """Array operations of the small stage, as JAX would count them."""
    count = 0
    for quantity in plan.quantities.values():
        if quantity.small and quantity.node is not None:
            arguments = [plan.quantities[a] for a in quantity.node.arguments]
            shapes = [
                jax.ShapeDtypeStruct((1,) * len(a.key) + a.inner_shape, bool if a.flag else np.float32)
                for a in arguments
            ]
            count += len(jax.make_jaxpr(lambda *given, name=quantity.name: plan.call(name, given))(*shapes).jaxpr.eqns)
    return count


def equations(evaluation: Evaluation, kernel: Kernel) -> list[str]:
    """Array operations of a materialised quantity with all that is fused into it, as JAX names them."""
    with jax.enable_x64(evaluation.dtype == np.float64):
        shapes = [evaluation.input_shape(*i) for i in kernel.inputs]
        made = jax.make_jaxpr(lambda *given: leaves(kernel.values(given, kernel.shape)))(*shapes)
        return [equation.primitive.name for equation in made.jaxpr.eqns]


def evaluate_all(evaluation: Evaluation, clock: Callable[[], float] = time.process_time) -> float:
    """Seconds of all tiles, of the CPU unless another clock is given.

    Nothing is taken over from the run before, as the values of a tile that stays would.
    """
    evaluation.forget()
    start = clock()
    for tile in evaluation.run():
        jax.block_until_ready(tile.values)
    return clock() - start


def temporaries(evaluation: Evaluation) -> dict[str, int]:
    """Compiled functions with more than 1 MiB of arrays of their own, and these bytes: fresh memory in every tile.

    A quotient or a gather that two expressions of one function read is such an array.
    """
    found = {call.name: call.compiled.memory_analysis().temp_size_in_bytes for call in evaluation.calls}
    return {name: size for name, size in found.items() if size > 2**20}


def measure(grid: str, exponent: int, outputs: str = "20", dtype: str = "float32", repeats: int = 7) -> dict:
    """Rates of the tile stage (all tiles, buffers reused) of a grid with some of its outputs."""
    study = sized(grid, exponent)
    start = time.process_time()
    plan = plan_of(study, outputs)
    planned = time.process_time() - start
    start = time.process_time()
    evaluation = Evaluation(plan, dtype)
    prepared = time.process_time() - start
    full, points, size = full_grid_outputs(plan), plan.space.points, np.dtype(dtype).itemsize
    tile_values = int(np.prod(evaluation.tiles.shape))
    evaluate_all(evaluation)  # touches every buffer once
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # before there are arrays to compare with
    repeats = max(1, min(repeats, int(5e8 / points)))
    memory = Bandwidth(len(full), tile_values, processors())
    wall, cpu, store, copy = [], [], [], []
    for _ in range(repeats):  # in turns: what else the machine does is the same for all
        wall_start = time.perf_counter()
        cpu.append(evaluate_all(evaluation))
        wall.append(time.perf_counter() - wall_start)
        store.append(memory.store())
        copy.append(memory.copy())
    written = points * len(full) * size
    seconds = statistics.median(cpu)
    kept = sum(int(np.prod(k.shape)) * k.dtype.itemsize for call in evaluation.calls for k in call.kept)
    return {
        "points": points,
        "outputs": len(plan.outputs),
        "full_grid_outputs": len(full),
        "tiles": evaluation.tiles.count,
        "cpu_seconds": seconds,
        "cpu_seconds_range": [min(cpu), max(cpu)],
        "full_grid_values_per_cpu_second": points * len(full) / seconds,
        "points_per_cpu_second": points / seconds,
        "points_per_wall_second": points / statistics.median(wall),
        "threads": len(memory.buffers),
        "store_bandwidth": statistics.median(store),
        "fraction_of_store_bandwidth": statistics.median(written / c / s for c, s in zip(cpu, store, strict=True)),
        "fraction_of_copy_bandwidth": statistics.median(written / c / s for c, s in zip(cpu, copy, strict=True)),
        "bytes_written_per_cpu_second": kept * evaluation.tiles.count / seconds,
        "plan_cpu_seconds": planned,
        "prepare_cpu_seconds": prepared,
        "peak_memory": peak,
        "temporary_bytes": temporaries(evaluation),
        **counts(plan, evaluation),
    }


def counts(plan: Plan, evaluation: Evaluation) -> dict:
    """What is evaluated how often: quantities, array operations, values: figures that no other work disturbs."""
    grid = [q for q in plan.quantities.values() if not q.small]
    return {
        "quantities": {
            "given": len(plan.graph.leaves),
            "once": sum(q.small and q.node is not None for q in plan.quantities.values()),
            "on the grid": len(grid),
            "materialised": len(evaluation.kernels),
        },
        "equations": {
            "once": equations_once(plan),
            "on the grid": sum(len(equations(evaluation, k)) for k in evaluation.kernels),
        },
    }


def numpy_ratio(repeats: int = 2) -> dict:
    """CPU time of plain NumPy broadcasting (no factoring, no stages) over that of the evaluator, same points."""
    plan = load_study(GRID, SMALL).plan()
    evaluation = Evaluation(plan)
    evaluate_all(evaluation)
    compiled = [evaluate_all(evaluation) for _ in range(repeats)]
    plain = []
    for _ in range(repeats):
        start = time.process_time()
        broadcast(plan)
        plain.append(time.process_time() - start)
    return {
        "points": plan.space.points,
        "evaluator_cpu_seconds": statistics.median(compiled),
        "numpy_cpu_seconds": statistics.median(plain),
        "ratio": statistics.median(plain) / statistics.median(compiled),
    }


def serving(repeats: int = 7) -> dict:
    """The serving grid with hybrid models and with ordinary ones only, in turns: rates, and the ratio of times."""
    plans = {name: load_study(GRID_SERVING, settings).plan() for name, settings in SERVING.items()}
    evaluations = {name: Evaluation(plan) for name, plan in plans.items()}
    rates: dict[str, list[float]] = {name: [] for name in plans}
    for repeat in range(1 + repeats):
        for name, evaluation in evaluations.items():
            seconds = evaluate_all(evaluation)
            if repeat:  # the first touches every buffer
                rates[name].append(plans[name].space.points / seconds)
    found: dict[str, object] = {
        name: {
            "points": plan.space.points,
            "points_per_cpu_second": statistics.median(rates[name]),
            "range": [min(rates[name]), max(rates[name])],
            **counts(plan, evaluations[name]),
        }
        for name, plan in plans.items()
    }
    slower = statistics.median(o / h for h, o in zip(rates["hybrids"], rates["ordinary"], strict=True))
    return found | {"time_over_that_of_ordinary_models": slower}


def percentiles(repeats: int = 3) -> dict:
    """Deployments with random arrivals per CPU-second: with means alone, and with nine percentiles beside them."""
    found = {}
    for name, settings in {"means": (MEANS,), "percentiles": ()}.items():
        plan = load_study(GRID_PERCENTILES, settings).plan()
        evaluation = Evaluation(plan)
        seconds = [evaluate_all(evaluation) for _ in range(1 + repeats)][1:]  # the first touches every buffer
        found[name] = {"points": plan.space.points, "points_per_cpu_second": plan.space.points / min(seconds)}
    return found


def broadcast(plan: Plan) -> dict[str, np.ndarray]:
    """Every formula on naturally broadcast float32 arrays: what a user would write without an engine."""
    space, rank = plan.space, len(plan.space.axes)
    values: dict[str, np.ndarray] = {}
    for name in plan.graph.leaves:
        result: np.ndarray | None = None
        for axis, array in space.parts(name):
            trailing = (1,) * (len(plan.registry.inner) - array.ndim + 1) + array.shape[1:]
            lead = tuple(len(array) if i == axis else 1 for i in range(rank))
            part = array.astype(array.dtype if array.dtype == bool else np.float32).reshape(lead + trailing)
            result = part if result is None else result * part
        assert result is not None
        values[name] = result.reshape(result.shape[:rank] + plan.quantities[name].inner_shape)
    readers = {n: len(r) for n, r in plan.graph.readers.items()}
    with np.errstate(all="ignore"):
        for node in plan.graph.nodes.values():
            values[node.name] = np.asarray(plan.call(node.name, [values[a] for a in node.arguments]))
            for argument in set(node.arguments):
                readers[argument] -= 1
                if readers[argument] == 0 and argument not in plan.wanted:
                    del values[argument]
    return values
