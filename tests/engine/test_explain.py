"""Derivations: values, elasticities, shared branches, violated constraints."""

import math

import pytest

from perfgrid.analysis.explanation.derivation import elasticities, explain_point
from perfgrid.engine import PerfgridError, replay, resolve

from . import toys

AT = {"product": "p1", "layout": "lanes2.lines4", "material": "soft", "machine_rate": 0.5, "distance": 1.0}


def test_the_tree_holds_every_formula_below_a_number():
    space = toys.space()
    found = explain_point(toys.registry(), space, "order_time", AT, units={"orders": ("1", "Orders", "given")})
    root = found.derivation
    assert root.name == "order_time"
    names = {child.name: child for child in root.below}
    assert set(names) == {"line_time", "lines", "orders", "transport"}
    assert names["orders"].meaning == "Orders"
    assert names["orders"].value == 12.0
    assert root.unit == "s"
    assert root.source == "toy"
    graph = resolve(toys.registry(), ["order_time"], space.names(), labels=space.label_quantities())
    index = tuple(a.index(AT[a.name]) for a in space.axes)
    values = replay(graph, {n: space.at(n, index) for n in graph.leaves})
    assert root.value == values["order_time"]


def test_elasticities_are_logarithmic_derivatives():
    space = toys.space()
    graph = resolve(toys.registry(), ["order_time"], space.names(), labels=space.label_quantities())
    index = tuple(a.index(AT[a.name]) for a in space.axes)
    values = replay(graph, {n: space.at(n, index) for n in graph.leaves})
    strengths = elasticities(graph.nodes["order_time"], values)
    line, transport = values["line_time"] * (12 + 4 - 1), values["transport"]
    assert math.isclose(strengths["transport"], float(transport / (line + transport)), rel_tol=0, abs_tol=1e-9)
    assert math.isclose(strengths["line_time"], float(line / (line + transport)), rel_tol=0, abs_tol=1e-9)


def test_elasticities_at_jumps_and_kinks_are_those_of_the_branch_that_holds():
    space = toys.space()
    graph = resolve(toys.registry(), ["line_time", "slack"], space.names(), labels=space.label_quantities())
    values = {"piece_time": 3.0, "pieces": 16.0, "lines": 4.0}  # 16 / 4 is whole: the next ceiling is a jump away
    assert elasticities(graph.nodes["line_time"], values) == {
        "piece_time": pytest.approx(1.0),
        "pieces": pytest.approx(0.0),
        "lines": pytest.approx(0.0),
    }
    assert elasticities(graph.nodes["slack"], {"order_time": 3.0, "deadline": 1.0}) == {}  # zero has no logarithm


def test_tied_operands_share_the_slope_of_a_maximum():
    from perfgrid.engine import Registry, formula, xp

    @formula(unit="1", source="toy")
    def longest(first, last, rest):
        """The longer of two, and the rest."""
        return xp.maximum(first, last) + rest

    graph = resolve(Registry.collect([longest]), ["longest"], ["first", "last", "rest"])
    strengths = elasticities(graph.nodes["longest"], {"first": 3.0, "last": 3.0, "rest": 1.0})
    assert strengths == {"first": pytest.approx(0.375), "last": pytest.approx(0.375), "rest": pytest.approx(0.25)}
    apart = elasticities(graph.nodes["longest"], {"first": 3.0, "last": 2.0, "rest": 1.0})
    assert apart == {"first": pytest.approx(0.75), "last": 0.0, "rest": pytest.approx(0.25)}


def test_an_argument_with_a_jump_on_both_sides_is_left_out():
    from perfgrid.engine import Registry, formula, xp

    @formula(unit="1", source="toy")
    def padded(size, block):
        """Whole only where the block divides."""
        return xp.where(size % block == 0, size, 2.0 ** xp.ceil(xp.log2(size)))

    graph = resolve(Registry.collect([padded]), ["padded"], ["size", "block"])
    assert elasticities(graph.nodes["padded"], {"size": 24.0, "block": 8.0}) == {}
    assert elasticities(graph.nodes["padded"], {"size": 25.0, "block": 8.0})["size"] == pytest.approx(0.0)


def test_labels_have_no_elasticity():
    space = toys.space()
    graph = resolve(toys.registry(), ["cut_work"], space.names(), labels=space.label_quantities())
    values = {"material": 1.0, "soft_work": 5.0, "hard_work": 7.0}
    assert set(elasticities(graph.nodes["cut_work"], values, ["material"])) == {"soft_work", "hard_work"}


def test_violated_constraints_are_reported():
    space = toys.space()
    found = explain_point(toys.registry(), space, "order_time", {**AT, "layout": "lanes1.lines8"})
    assert [(v.name, v.kind) for v in found.violated] == [("pieces_divide", "illegal")]  # 28 pieces on 8 lines
    assert found.illegal
    fewer = toys.Space(space.axes, {**space.constants, "deadline": 1.0})
    found = explain_point(toys.registry(), fewer, "order_time", AT)
    (late,) = found.violated
    assert (late.name, late.kind, late.reason) == ("in_time", "exceeds", "later than the deadline")
    assert {s.name: s.value for s in late.sides}["deadline"] == 1.0
    assert not found.illegal


def test_an_unknown_quantity_comes_before_missing_axes():
    with pytest.raises(PerfgridError, match="unknown quantity 'oder_time'; did you mean 'order_time'"):
        explain_point(toys.registry(), toys.space(), "oder_time", {})


def test_points_must_be_named_in_full():
    space = toys.space()
    with pytest.raises(PerfgridError, match="not given: distance"):
        explain_point(toys.registry(), space, "order_time", {k: v for k, v in AT.items() if k != "distance"})
    with pytest.raises(PerfgridError, match="no axis 'lyout'; did you mean 'layout'"):
        explain_point(toys.registry(), space, "order_time", {**AT, "lyout": 1})
    with pytest.raises(PerfgridError, match="axis 'material' has no label 'sft'; did you mean 'soft'"):
        explain_point(toys.registry(), space, "order_time", {**AT, "material": "sft"})
