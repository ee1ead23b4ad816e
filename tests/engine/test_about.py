"""Constraints about a quantity, and what quantities may rest on."""

import numpy as np

from perfgrid.engine import Registry, alternative, constraint, formula
from perfgrid.engine.explain import explain_point
from perfgrid.engine.plan import Plan
from perfgrid.engine.resolver import resolve_checked
from perfgrid.engine.space import Axis, Space
from perfgrid.engine.stages import Evaluation


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
        "light_enough", "weight", "price", "payable", "purse", "purse_is_filled", "coins"
    }  # fmt: skip
    assert REGISTRY.below(["price_choice"]) >= {"list_price", "auction_price"}


def test_families_replace_the_quantity_that_a_constraint_is_about():
    @constraint(kind="illegal", reason="no", source="none", family={"SIDE": ("left", "right")}, about="SIDE_cost")
    def SIDE_allowed(SIDE_cost):
        """The SIDE is allowed."""
        return SIDE_cost < 1

    found = Registry.collect([SIDE_allowed])
    assert [c.name for c in found.constraints({"left_cost"})] == ["left_allowed"]
