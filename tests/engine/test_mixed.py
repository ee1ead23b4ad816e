"""Grids whose rows take different alternatives: every row has the values and the verdict that it has alone."""

import itertools

import numpy as np
import pytest

from perfgrid.engine import InnerAxes, Registry, alternative, constraint, formula, xp
from perfgrid.engine.execution.evaluation import Evaluation
from perfgrid.engine.graph.resolver import resolve_checked
from perfgrid.engine.grid.dataset import constraints_of, feasible, to_dataset
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.space import Axis, Space

INNER = InnerAxes({"shift": ("day", "night"), "tool": ("saw", "drill", "press")})
WAYS = ("plain", "shifts", "tools")
PART = {"plain": {"stock": 4.0}, "shifts": {"night_pay": 3.0}, "tools": {"wear": 2.0}}


@alternative(of="pace", by="way", label="plain", unit="1/s", source="none")
def plain_pace(stock):
    """The same at every time: from what is in stock."""
    return 1.0 + stock


@alternative(of="pace", by="way", label="shifts", unit="1/s", source="none")
def shifts_pace(night_pay):
    """By shift."""
    return INNER.table("shift", day=1.0, night=night_pay)


@alternative(of="pace", by="way", label="tools", unit="1/s", source="none")
def tools_pace(wear):
    """By tool."""
    return INNER.table("tool", saw=1.0, drill=wear, press=wear * wear)


@alternative(of="plan", by="way", label="plain", unit="1/s", source="none")
def plain_plan(pace):
    """One pace by shift: a table made of what other rows have on that axis already."""
    return INNER.table("shift", day=pace, night=pace / 2)


@alternative(of="plan", by="way", label=("shifts", "tools"), unit="1/s", source="none")
def LABEL_plan(pace):
    """As it is."""
    return pace


@formula(unit="1/s", source="none")
def whole_pace(plan):
    """Over all shifts and tools."""
    return INNER.total(INNER.total(plan, "tool"), "shift")


@constraint(reason="the night is too dear", kind="exceeds", source="none", about="shifts_pace")
def night_is_paid(night_pay, purse):
    """Whether the night is paid for."""
    return night_pay <= purse


@constraint(reason="nobody is there", source="none")
def somebody_works(whole_pace):
    """Whether anything is made."""
    return xp.where(whole_pace > 0, True, False)


REGISTRY = Registry.collect(
    [plain_pace, shifts_pace, tools_pace, plain_plan, LABEL_plan, whole_pace, night_is_paid, somebody_works], INNER
)
STATED = {"stock": 4.0, "night_pay": 3.0, "wear": 2.0, "purse": 1.0}


def of_ways(ways, small, **constants):
    rows = np.array(ways)
    space = Space((Axis("row", np.arange(len(ways)), {"way": rows}),), {**STATED, **constants})
    plan = Plan(REGISTRY, space, ["whole_pace"], small_points=small)
    return to_dataset(plan, Evaluation(plan, "float64").collect())


@pytest.mark.parametrize("small", [2**20, 0])
def test_every_row_of_mixed_alternatives_has_the_value_and_the_verdict_that_it_has_alone(small):
    alone = {way: of_ways([way], 2**20) for way in WAYS}
    for ways in itertools.chain(itertools.permutations(WAYS, 2), [WAYS]):
        both = of_ways(ways, small)
        np.testing.assert_allclose(both["whole_pace"], [alone[way]["whole_pace"].item() for way in ways], rtol=1e-12)
        expected = [bool(feasible(alone[way], of=["whole_pace"]).all()) for way in ways]
        assert expected == [way != "shifts" for way in ways]  # alone, only shifts has a night
        assert np.broadcast_to(feasible(both, of=["whole_pace"]), len(ways)).tolist() == expected


def test_a_constraint_about_one_alternative_names_it_and_the_rest_of_its_sides():
    given = {*STATED, "way"}
    mixed = resolve_checked(REGISTRY, ["whole_pace"], given, {}, {"way": WAYS})
    single = resolve_checked(REGISTRY, ["whole_pace"], given, {}, {"way": ("shifts",)})
    assert mixed.nodes["night_is_paid"].compared == single.nodes["night_is_paid"].arguments == ("night_pay", "purse")
    assert mixed.nodes["night_is_paid"].arguments == ("night_pay", "purse", "way")
    assert "night_is_paid" in constraints_of(of_ways(WAYS, 2**20), "whole_pace")
    free = resolve_checked(REGISTRY, ["whole_pace", "shifts_pace"], given, {}, {"way": WAYS})
    assert free.nodes["night_is_paid"].guards == 0  # an output reads it whatever the way


def test_a_table_of_values_that_lie_on_its_axis_takes_the_row_of_each_label():
    whole = INNER.table("tool", saw=1.0, drill=2.0, press=3.0)
    again = INNER.table("tool", saw=whole, drill=10 * whole, press=0.0)
    np.testing.assert_array_equal(again, INNER.table("tool", saw=1.0, drill=20.0, press=0.0))
