"""Operations, evaluated rows and memory of an evaluation, counted: regressions of speed without a clock."""

import os
from collections import Counter
from unittest import mock

import jax
import numpy as np
import pytest

from benchmarks.evaluate import equations, equations_once
from benchmarks.grids import GRID_PERCENTILES, GRIDS, plan_of, sized
from benchmarks.search import search_of
from perfgrid.engine.execution.evaluation import Evaluation
from perfgrid.engine.grid import plan as planning
from perfgrid.engine.reductions.argmin import Blocks
from perfgrid.study.study import load_study

# array operations times points that they run over, and values written, per point of the grid: 20 outputs; the search
WORK = {"dense": (300, 20, 195, 3), "5-D": (330, 25, 215, 5)}
# array operations of the small stage, and rows of all its quantities
SMALL_WORK = {"dense": (8300, 515_000), "5-D": (8000, 750_000)}


@pytest.fixture(scope="module", params=GRIDS)
def measured(request, tmp_path_factory):
    """A grid of 10^6 points with 20 outputs and as a search: name, plan, traced functions, evaluation, search."""
    study = sized(request.param, 6)
    with (
        mock.patch.dict(os.environ, PERFGRID_CACHE=str(tmp_path_factory.mktemp("cache"))),
        mock.patch.dict(planning._TRIALS, clear=True),
        mock.patch("jax.eval_shape", wraps=jax.eval_shape) as traced,
    ):
        plan = plan_of(study)
        functions = [call.args[0] for call in traced.call_args_list]
        plan_of(study)
    assert traced.call_count == len(functions), "a study that was planned before is traced again"
    return request.param, plan, functions, Evaluation(plan), search_of(study).search


def per_point(evaluation):
    tile = np.prod(evaluation.tiles.shape)
    work = sum(len(equations(evaluation, k)) * np.prod(k.shape) for k in evaluation.kernels) / tile
    return work, sum(np.prod(k.shape) for k in evaluation.kernels) / tile


def test_planning_traces_the_formulas_of_the_grid_alone(measured):
    _, plan, functions, *_ = measured
    of_the_grid = [q.node.function for q in plan.quantities.values() if not q.small]
    assert {f.__wrapped__ for f in functions} == set(of_the_grid)
    assert len(functions) <= 1.5 * len(of_the_grid)  # again where a verb puts a value on an axis of no argument


def test_the_small_stage_takes_few_operations_and_rows(measured):
    name, plan, *_ = measured
    rows = sum(q.points for q in plan.quantities.values() if q.small and q.node is not None)
    found = (equations_once(plan), rows)
    assert all(count <= limit for count, limit in zip(found, SMALL_WORK[name], strict=True)), found


def test_a_point_takes_few_operations(measured):
    """What is small or shared is not computed for every point; constraints are joined before they meet the grid."""
    name, _, _, evaluation, search = measured
    found = (*per_point(evaluation), *per_point(search.evaluation))
    assert all(count <= limit for count, limit in zip(found, WORK[name], strict=True)), found


def test_no_compiled_function_keeps_an_array_of_its_tile(measured):
    """Such an array costs more than all else in the function: fresh memory in every tile, written and read again."""
    for evaluation in (measured[3], measured[4].evaluation):
        tile = np.prod(evaluation.tiles.shape) * 4
        for call in evaluation.calls:
            most = tile / 4
            if call.parts:  # up to 10.8 arrays of a part; one array of these tiles would be 30 and 12
                most = 11 * 4 * np.prod(call.parts.shape)
                assert call.parts.count >= 12
            assert call.compiled.memory_analysis().temp_size_in_bytes < most, call.name


def test_a_search_evaluates_every_tile_once_and_traces_once():
    study = sized("dense", 5)
    with mock.patch.object(Blocks, "minima", autospec=True, side_effect=Blocks.minima) as minima:
        search = search_of(study, tile_points=2**14).search
        runs = [c.compiled for c in search.evaluation.calls]
        with mock.patch.object(search.evaluation, "run", wraps=search.evaluation.run) as run:
            winners = search.winners()
    assert minima.call_count == run.call_count == 1
    assert winners.tiles == search.evaluation.tiles.count > 5
    assert [c.compiled for c in search.evaluation.calls] == runs


def test_what_stays_while_tiles_move_is_evaluated_once():
    """The optimizer knows neither links nor microbatches nor recomputation: one evaluation serves all tiles."""
    search = search_of(sized("dense", 6), tile_points=2**17).search
    evaluation = search.evaluation
    calls = dict.fromkeys((c.name for c in evaluation.calls), 0)

    def counted(name, compiled):
        def call(*arguments):
            calls[name] += 1
            return compiled(*arguments)

        return call

    for call in evaluation.calls:
        call.compiled = counted(call.name, call.compiled)
    for _ in evaluation.run(at_once=1):
        pass
    assert calls["search score"] == evaluation.tiles.count > 5
    assert calls["optimizer_time"] == 1


def test_what_arrivals_meet_is_no_array_of_values_side_by_side():
    """Moments of times are put together and taken apart in dozens of formulas, which no vector instruction follows."""
    with mock.patch.object(Evaluation, "_compile"):
        evaluation = Evaluation(load_study(GRID_PERCENTILES).plan())
    made = Counter(name for kernel in evaluation.kernels for name in equations(evaluation, kernel))
    assert made["exp"] > 50
    assert made["concatenate"] + made["pow"] == 0, made
