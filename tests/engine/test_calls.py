"""Compiled functions that evaluate a tile part by part, against NumPy on whole grids."""

from functools import reduce
from operator import add, mul

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgrid.engine import InnerAxes, Registry
from perfgrid.engine.execution import evaluation as stages
from perfgrid.engine.execution import materialised as calls
from perfgrid.engine.execution.evaluation import Evaluation
from perfgrid.engine.graph.registry import Formula
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.space import Axis, Space
from perfgrid.engine.hashing import digest

OPERATIONS = {"sum": add, "product": mul}


def formula_of(name: str, arguments: tuple[str, ...], operation: str) -> Formula:
    def function(*given):
        return reduce(OPERATIONS[operation], given)

    return Formula(name, function, arguments, "1", "toy", f"the {operation} of {', '.join(arguments)}")


def registry_of(*formulas: tuple[str, tuple[str, ...], str]) -> Registry:
    registry = Registry(InnerAxes({}))
    for parts in formulas:
        registry.add(formula_of(*parts))
    return registry


def on_the_grid(space: Space, formulas: tuple[tuple[str, tuple[str, ...], str], ...]) -> dict[str, np.ndarray]:
    """Every quantity by NumPy broadcasting, on the axes of the space."""
    values = {}
    for place, axis in enumerate(space.axes):
        for name, column in axis.columns.items():
            values[name] = column.reshape(tuple(-1 if i == place else 1 for i in range(len(space.axes))))
    for name, arguments, operation in formulas:
        values[name] = reduce(OPERATIONS[operation], (values[a] for a in arguments))
    return values


def assert_right(space: Space, formulas, wanted, tile_points: int, dtype: str) -> Evaluation:
    plan = Plan(registry_of(*formulas), space, wanted, small_points=0)
    evaluation = Evaluation(plan, dtype, tile_points)
    found, expected = evaluation.collect(), on_the_grid(space, formulas)
    for name in wanted:
        array = np.transpose(expected[name], plan.order)
        np.testing.assert_allclose(np.broadcast_to(found[name], array.shape), array, rtol=1e-5)
    return evaluation


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_drawn_graphs(data, monkeypatch_once):
    """Drawn axes, columns with repeated rows, formulas of any of them, wanted quantities, tiles and parts."""
    axes, leaves = [], []
    for number in range(data.draw(st.integers(2, 4))):
        rows = data.draw(st.integers(1, 7))
        columns = {}
        for column in range(data.draw(st.integers(1, 3))):
            drawn = data.draw(st.lists(st.integers(1, 3), min_size=rows, max_size=rows))
            columns[f"x{number}{column}"] = np.array(drawn, float) + 10 * number + column
        leaves += columns
        axes.append(Axis(f"a{number}", np.arange(rows), columns))
    formulas, known = [], list(leaves)
    for number in range(data.draw(st.integers(2, 8))):
        arguments = tuple(data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True)))
        operation = data.draw(st.sampled_from(list(OPERATIONS))) if len(formulas) < 5 else "sum"
        formulas.append((f"q{number}", arguments, operation))
        known.append(f"q{number}")
    wanted = data.draw(st.lists(st.sampled_from([f[0] for f in formulas]), min_size=1, unique=True))
    monkeypatch_once.setattr(calls, "PART_POINTS", data.draw(st.sampled_from([5, 30, 200])))
    tile_points, dtype = data.draw(st.sampled_from([60, 2**21])), data.draw(st.sampled_from(["float32", "float64"]))
    assert_right(Space(tuple(axes), {}), tuple(formulas), wanted, tile_points, dtype)


@pytest.fixture(scope="module")
def monkeypatch_once():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.mark.parametrize("sizes", [(4, 5, 6), (4, 50, 60), (30, 50, 3), (4, 6, 6)])
def test_quantities_that_vary_along_other_axes_behind_those_that_parts_cut(sizes, monkeypatch):
    """The largest quantity sets the axis to cut; a quantity longer along another axis is evaluated whole there."""
    monkeypatch.setattr(calls, "PART_POINTS", 8)
    space = Space(tuple(Axis(n, np.arange(k), {n: np.arange(k) + 1.0}) for n, k in zip("abc", sizes, strict=True)), {})
    formulas = (("first", ("a", "b"), "product"), ("second", ("a", "c"), "sum"))
    assert_right(space, formulas, ("first", "second"), 2**21, "float32")


def test_functions_that_read_unlike_inputs_of_one_name_have_signatures_of_their_own(monkeypatch):
    """A quantity brought to two partitions of one size is two inputs: which one a kernel reads must be told."""
    monkeypatch.setattr(calls, "PART_POINTS", 120)
    monkeypatch.setattr(stages, "signature_of", lambda wiring, _: digest(*wiring))
    formulas = [(f"q{c}", ("o", "x", c, "z"), "sum") for c in "uvw"] + [("whole", ("o", *"xuvw", "z"), "product")]
    first, second = [1.0, 2.0, 3.0, 3.0, 4.0], [1.0, 1.0, 3.0, 4.0, 4.0]
    signatures = set()
    for third in (first, second):
        columns = {"x": [1.0, 1.0, 2.0, 2.0, 3.0], "u": first, "v": second, "w": third}
        space = Space(
            (
                Axis("o", np.arange(6), {"o": np.arange(6) + 1.0}),
                Axis("row", np.arange(5), {name: np.array(column) for name, column in columns.items()}),
                Axis("z", np.arange(20), {"z": np.arange(20) * 100.0}),
            ),
            {},
        )
        evaluation = assert_right(space, formulas, [f[0] for f in formulas], 2**21, "float32")
        (joint,) = [call for call in evaluation.calls if call.parts]
        assert len({name for name, _ in joint.inputs}) < len(joint.inputs)
        signatures.add(joint.signature)
    assert len(signatures) == 2
