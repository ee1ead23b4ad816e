"""Formulas that sum many terms make arrays of all of them; what they hold at once is known and bounded."""

import tracemalloc

import numpy as np

from perfgrid.engine.execution.evaluation import Evaluation
from perfgrid.engine.execution.materialised import PART_VALUES
from perfgrid.engine.execution.memory import small_bytes
from perfgrid.engine.execution.small_stage import small_values
from perfgrid.engine.graph.widths import largest
from perfgrid.formulas.cost.die import MOST_SPARE, harvested
from tests.store.common import study


def test_the_largest_array_of_a_formula_is_found():
    def squares(x):
        return ((x[..., None] - np.arange(300.0)) ** 2).sum(axis=-1)  # a method that no trial can follow

    assert largest(squares, [np.ones((2, 3))]) == 6 * 300
    assert largest(lambda x, y: x + y, [np.ones((2, 1)), np.ones((1, 3))]) == 6
    assert largest(harvested, [np.ones((2, 2))] * 5) == 4 * 40 * (MOST_SPARE + 1)


def test_the_small_stage_takes_no_more_than_is_stated():
    plan = study().plan(2**18)
    assert plan.quantities["die_yield_harvested"].small
    stated, _ = small_bytes(plan)
    tracemalloc.start()
    try:
        small_values(plan)
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert taken < stated


def test_the_arrays_on_the_way_of_a_compiled_function_are_bounded():
    plan = study().plan(64)
    wide = plan.quantities["die_yield_harvested"]
    assert not wide.small
    assert wide.held > 5 * PART_VALUES  # of each array, were it evaluated at once
    for call in Evaluation(plan).calls:
        assert call.compiled.memory_analysis().temp_size_in_bytes < 3 * 4 * PART_VALUES
