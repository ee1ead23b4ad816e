"""Constraints about a quantity, and what quantities may rest on."""

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from perfgrid.analysis.explanation.derivation import explain_point
from perfgrid.engine import PerfgridError, Registry, alternative, constraint, formula
from perfgrid.engine.execution.evaluation import Evaluation
from perfgrid.engine.graph.resolver import resolve_checked
from perfgrid.engine.grid.dataset import constraints_of, feasible, to_dataset
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.space import Axis, Space
from perfgrid.engine.reductions.preselection import BestSearch


@formula(unit="kg", source="none")
def weight(pieces):
    """Weight of an order."""
    return 2.0 * pieces


@alternative(of="price", by="view", label="list", unit="USD", source="none")
def list_price(weight, tariff):
    """Price by the list."""
    return weight * tariff


@alternative(of="price", by="view", label="auction", unit="USD", source="none")
def auction_price(bid):
    """Price by auction."""
    return bid


@constraint(kind="exceeds", reason="too heavy", source="none")
def light_enough(weight):
    """The order can be carried."""
    return weight <= 10


@constraint(kind="illegal", reason="nobody pays that", source="none", about="price")
def payable(price, purse):
    """The price can be paid."""
    return price <= purse


@constraint(kind="illegal", reason="the purse is empty", source="none", about="payable")
def purse_is_filled(purse, coins):
    """There is money."""
    return purse * coins > 0


REGISTRY = Registry.collect([weight, list_price, auction_price, light_enough, payable, purse_is_filled])
SPACE = Space((Axis("pieces", np.arange(1, 9), {"pieces": np.arange(1.0, 9.0)}),))
RICH = Space(SPACE.axes, {"tariff": 3.0, "purse": 20.0, "coins": 1.0, "view": "list"})


def test_a_constraint_about_a_quantity_is_checked_where_it_is_evaluated():
    plain = Plan(REGISTRY, SPACE, ["weight"])  # no tariff, no purse: nobody asks for them
    assert plain.constraints == ("light_enough",)
    priced = Plan(REGISTRY, RICH, ["price"])
    assert priced.constraints == ("light_enough", "payable", "purse_is_filled")
    found = Evaluation(priced).collect()
    assert found["payable"].ravel().tolist() == [2 * n * 3 <= 20 for n in range(1, 9)]


def test_a_given_quantity_counts_as_evaluated():
    graph = resolve_checked(REGISTRY, ["price"], {"price", "purse", "coins", "pieces"})
    assert [c.name for c in graph.constraints] == ["light_enough", "payable", "purse_is_filled"]


def test_a_derivation_tells_of_them():
    told = explain_point(REGISTRY, RICH, "price", {"pieces": 8})
    assert [v.name for v in told.violated] == ["light_enough", "payable"]


def test_what_a_quantity_may_rest_on():
    always = {"light_enough", "weight", "pieces"}
    assert REGISTRY.below(["weight"]) == always
    below = {
        "price",
        "view",
        "list_price",
        "auction_price",
        "tariff",
        "bid",
        "payable",
        "purse",
        "purse_is_filled",
        "coins",
    }
    assert REGISTRY.below(["price"]) == always | below
    assert REGISTRY.below(["price"], {"price", "weight"}) == {
        "light_enough",
        "weight",
        "price",
        "payable",
        "purse",
        "purse_is_filled",
        "coins",
    }
    assert REGISTRY.below(["price_choice"]) >= {"list_price", "auction_price"}


def test_families_replace_the_quantity_that_a_constraint_is_about():
    @constraint(kind="illegal", reason="no", source="none", family={"SIDE": ("left", "right")}, about="SIDE_cost")
    def SIDE_allowed(SIDE_cost):
        """The SIDE is allowed."""
        return SIDE_cost < 1

    found = Registry.collect([SIDE_allowed])
    assert [c.name for c in found.constraints({"left_cost"})] == ["left_allowed"]


OUTPUTS = ("weight", "price", "list_price", "auction_price", "tariff", "purse")


@given(st.lists(st.sampled_from(OUTPUTS), unique=True, min_size=1))
def test_other_outputs_take_no_design_from_one(asked):
    """Over all sets of outputs: constraints, feasibility and values of each are those of a study of it alone."""
    rich = Space(SPACE.axes, {**RICH.constants, "coins": -1.0, "bid": 3.0, "view": "auction"})
    together = Plan(REGISTRY, rich, asked)
    found = to_dataset(together, Evaluation(together).collect())
    for name in asked:
        single = Plan(REGISTRY, rich, [name])
        alone = to_dataset(single, Evaluation(single).collect())
        assert set(together.concerning(name)) == set(single.constraints)
        assert set(constraints_of(found, name)) == set(constraints_of(alone))
        np.testing.assert_array_equal(found[name], alone[name])
        np.testing.assert_array_equal(*xr.broadcast(feasible(found, of=name), feasible(alone)))
    assert bool(feasible(found).all()) == all(bool(feasible(found, of=name).all()) for name in asked)


def test_a_variable_that_names_no_constraints_is_concerned_by_all():
    plan = Plan(REGISTRY, RICH, ["weight", "price"])
    found = to_dataset(plan, Evaluation(plan).collect()).assign(twice=lambda d: (2 * d["weight"]).drop_attrs())
    assert constraints_of(found, "weight") == ["light_enough"]
    assert constraints_of(found, "twice") == constraints_of(found) == list(plan.constraints)
    assert constraints_of(found, ["weight", "payable"]) == ["light_enough", "payable"]
    with pytest.raises(PerfgridError, match="kinds illegal and exceeds, found 'weight'; outputs go to of="):
        feasible(found, "weight")
    with pytest.raises(PerfgridError, match="no 'weigth'; did you mean 'weight'"):
        feasible(found, of="weigth")
    with pytest.raises(PerfgridError, match="not in this selection: payable"):
        feasible(found.drop_vars("payable"), of="price")
    assert not feasible(found.drop_vars("payable"), of="weight").all()


def test_a_search_heeds_the_constraints_of_its_objective():
    for objective, most in (("weight", 5), ("price", 3)):  # too heavy beyond 5 pieces, too dear beyond 3
        found = BestSearch(REGISTRY, RICH, objective, ["pieces"], maximize=True).winners()
        assert found.index[0].item() == most - 1
