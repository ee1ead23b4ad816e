"""The condition language: rows dropped per axis, joint terms as a constraint."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgrid.engine import PerfgridError, Registry, formula
from perfgrid.engine.execution.evaluation import Evaluation
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.space import Axis, Space
from perfgrid.study.where import apply_where


@formula(unit="1", source="toy")
def area(tp, pp, width):
    """Area."""
    return tp * pp * width


def space() -> Space:
    rows = np.array([(t, p) for t in (1.0, 2, 4, 8) for p in (1.0, 2, 4)])
    labels = np.array([f"tp{t:.0f}.pp{p:.0f}" for t, p in rows])
    return Space(
        (
            Axis("layout", labels, {"tp": rows[:, 0], "pp": rows[:, 1]}),
            Axis("width", np.array([1.0, 2.0, 3.0]), {"width": np.array([1.0, 2.0, 3.0])}),
            Axis("mode", np.array(["full", "none"]), {"mode": np.array(["full", "none"])}),
        )
    )


def kept(text):
    """The points that a condition keeps, evaluated by the engine, as a set of (tp, pp, width, mode)."""
    cut, constraint = apply_where(space(), text, "here")
    registry = Registry.collect([area])
    if constraint is not None:
        registry.add(constraint)
    plan = Plan(registry, cut, ["area"])
    results = Evaluation(plan).collect()
    order = [a.name for a in plan.space.axes]
    mask = np.ones([len(a) for a in plan.space.axes], bool)
    if constraint is not None:
        mask = mask & results["where"].reshape(results["where"].shape[: len(order)])
    found = set()
    for index in np.argwhere(mask):
        at = dict(zip(order, index, strict=True))
        layout, width, mode = (cut.axes[i] for i in range(3))
        found.add(
            (
                layout.columns["tp"][at["layout"]],
                layout.columns["pp"][at["layout"]],
                width.columns["width"][at["width"]],
                str(mode.labels[at["mode"]]),
            )
        )
    return found


CONDITIONS = [
    "tp <= 4",
    "tp <= 4 and width > 1",
    "1 < tp <= 4 and mode == 'full'",
    "tp * pp <= 8 or width == 1",
    "tp * width <= 8",
    "mode == 'none' or tp > 2 and width < 3",
    "not (tp == 8 and width == 3)",
    "mode in ['full'] and width in [1, 3]",
    "layout != 'tp1.pp1' and (tp >= width or mode == 'full')",
    "-tp + 2 * width > 0",
]


@pytest.mark.parametrize("text", CONDITIONS)
def test_conditions_mean_what_python_means(text):
    points = {(t, p, w, m) for t in (1.0, 2, 4, 8) for p in (1.0, 2, 4) for w in (1.0, 2, 3) for m in ("full", "none")}
    expected = {
        (t, p, w, m)
        for t, p, w, m in points
        if eval(text, {}, {"tp": t, "pp": p, "width": w, "mode": m, "layout": f"tp{t:.0f}.pp{p:.0f}"})
    }
    assert kept(text) == expected


@pytest.mark.parametrize("first", [True, False])
def test_a_scaled_quantity_is_its_value_and_not_the_factor(first):
    """The base is on another axis or the same everywhere; the axis of factors may come before it."""
    factors = Axis("width", np.array([0.5, 1.0, 4.0]), scales={"width": np.array([0.5, 1.0, 4.0])})
    device = Axis("device", np.array(["a", "b"]), {"width": np.array([10.0, 100.0])})
    axes = (factors, device) if first else (device, factors)
    cut, constraint = apply_where(Space(axes, {}), "width < 100 and device != 'b'", "here")
    assert constraint is not None
    assert [len(axis) for axis in cut.axes if axis.name == "device"] == [1]
    given = [next(a.columns[n] for a in cut.axes if n in a.columns) for n in constraint.arguments]
    shaped = [np.reshape(g, (1, -1) if len(g) == 3 else (-1, 1)) for g in given]
    assert np.ravel(constraint.function(*shaped)).tolist() == [True, True, True]  # 5, 10, 40
    alone, joint = apply_where(Space((factors,), {"width": 50.0}), "width < 100", "here")
    assert joint is None
    assert alone.axes[0].labels.tolist() == [0.5, 1.0]


def test_samples_of_an_estimate_are_not_selected():
    sample = Axis("sample", np.array([0, 1]), scales={"width": np.array([0.5, 2.0])})
    device = Axis("device", np.array(["a", "b"]), {"width": np.array([10.0, 100.0])})
    cut, constraint = apply_where(Space((device, sample), {}), "width < 15", "here")
    assert constraint is None
    assert [len(axis) for axis in cut.axes] == [1, 2]


def test_single_axis_terms_drop_rows():
    cut, constraint = apply_where(space(), "tp <= 2 and width != 2", "here")
    assert constraint is None
    assert cut.shape == (6, 2, 2)


@settings(max_examples=60)
@given(text=st.text("abtp<=()&|+-*'1 _.[]", max_size=12))
def test_any_text_is_a_condition_or_a_sentence(text):
    sentence = "here: "
    try:
        apply_where(space(), text, "here")
    except PerfgridError as error:
        sentence = str(error)
    assert sentence.startswith("here: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp not in ['1']", "compares a text with a number; 'tp' is a number"),
        ("tp in [1, '2']", "compares a text with a number; 'tp' is a number"),
        ("mode not in [1]", "compares a text with a number; 'mode' is a text"),
        ("tp == true", "compares a truth value with a number; 'tp' is a number"),
        ("tp in [true]", "compares a truth value with a number"),
        ("tp == 1 == true", "compares a truth value with a number"),
        ("tp in 1", "needs a list behind in or not in"),
        ("tp == [1, 2]", "needs a list behind in or not in"),
        ("tp in [[1]]", "'[1]' is not a finite number, a text, true or false"),
        ("tp > 1e999", "'1e309' is not a finite number"),
        ("tp + mode > 1", "computes with a text, 'mode'"),
        ("(tp > 1) + (pp > 1) == 1", "computes with a truth value"),
        ("not tp", "'tp' is not a condition"),
        ("tp or pp > 1", "'tp' is not a condition"),
        ("-" * 5000 + "tp > 1", "more than 100 operations within each other"),
        ("*".join(["tp"] * 2000) + " > 1", "more than 100 operations within each other"),
        ("not " * 2000 + "tp > 1", "more than 100 operations within each other"),
        ("tp > 1 and " * 5000 + "tp > 1", "at most 20,000 characters"),
        ("0x" + "f" * 5000 + " > tp", "integer of more than 308 digits"),
        ("tp > 1\0", "cannot read"),
    ],
)
def test_what_no_condition_holds(text, message):
    with pytest.raises(PerfgridError) as caught:
        apply_where(space(), text, "here")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 800


def test_lists_hold_negative_numbers_and_joint_values():
    assert kept("tp - 5 in [-1, 3]") == {point for point in kept("tp > 0") if point[0] in (4, 8)}
    assert kept("tp * width in [4, 6]") == {point for point in kept("tp > 0") if point[0] * point[2] in (4, 6)}
    assert kept("tp * width not in [4, 6]") == kept("tp > 0") - kept("tp * width in [4, 6]")


def test_texts_of_two_axes_are_compared_as_texts():
    """Each axis numbers its own labels: b is the second of one and the first of the other."""
    axes = (Axis("one", np.array(["a", "b"])), Axis("other", np.array(["b", "c"])))
    cut, constraint = apply_where(Space(axes, {}), "one == other", "here")
    assert constraint is not None
    shapes = ((2, 1), (1, 2))
    given = [np.reshape(cut.parts(name)[0][1], shape) for name, shape in zip(constraint.arguments, shapes, strict=True)]
    assert np.asarray(constraint.function(*given)).tolist() == [[False, False], [True, False]]
