"""Mistakes in formulas are errors with a sentence, at registration or when the graph is resolved."""

import functools
from types import ModuleType

import numpy as np
import pytest

from perfgrid.engine import InnerAxes, PerfgridError, Registry, alternative, constraint, formula, replay, resolve, xp
from perfgrid.engine.graph.registry import synonym
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.space import Axis, Space

from . import toys


def test_unit_source_and_docstring_are_required():
    with pytest.raises(PerfgridError, match="'speed' needs a unit"):

        @formula(source="toy")
        def speed(distance):
            """Speed."""

    with pytest.raises(PerfgridError, match="'unsourced' needs a source"):

        @formula(unit="m/s")
        def unsourced(distance):
            """Speed."""

    with pytest.raises(PerfgridError, match="'undocumented' needs a docstring"):

        @formula(unit="m/s", source="toy")
        def undocumented(distance):
            return distance

    with pytest.raises(PerfgridError, match="'defaulted': argument 'distance' must be a plain quantity"):

        @formula(unit="m/s", source="toy")
        def defaulted(distance=3.0):
            """Speed."""

    with pytest.raises(PerfgridError, match="'illegal' or 'exceeds', found 'bad'"):
        constraint(kind="bad", reason="x", source="toy")  # type: ignore[arg-type]


def test_names_are_defined_once():
    with pytest.raises(PerfgridError, match="'piece_time' is defined twice"):
        Registry.collect([toys.piece_time, toys.piece_time], toys.INNER)


def test_the_last_mark_of_a_name_counts():
    def speed(distance):
        """Speed."""
        return distance

    marked = formula(unit="km/h", source="toy")(formula(unit="m/s", source="toy")(speed))
    assert Registry.collect([marked]).formulas["speed"].unit == "km/h"

    @formula(unit="1", source="toy")
    @functools.wraps(marked)
    def wrapped(distance):
        return 2 * marked(distance)

    assert Registry.collect([wrapped]).formulas["speed"].function is wrapped

    @formula(unit="s", source="a", family={"PACE": ("slow",)})
    @formula(unit="s", source="b", family={"PACE": ("fast", "slow")})
    def PACE_time(distance):
        """PACE time."""
        return distance

    found = Registry.collect([PACE_time]).formulas  # members of other names add up
    assert {name: member.source for name, member in found.items()} == {"fast_time": "b", "slow_time": "a"}


def test_synonyms_have_one_meaning():
    with pytest.raises(PerfgridError, match="synonym 'pair' needs exactly one argument, found 2"):

        @synonym(unit="1", source="toy")
        def pair(hen, egg):
            """Pair."""
            return hen

    @synonym(unit="1", source="toy")
    def hen(egg):
        """Hen."""
        return egg

    @synonym(unit="1", source="toy")
    def egg(hen):
        """Egg."""
        return hen

    with pytest.raises(PerfgridError, match="synonyms name each other: egg <- hen <- egg"):
        resolve(Registry.collect([hen, egg]), ["hen"], [])


def test_alternatives_must_agree():
    @alternative(of="price", label="a", unit="USD", source="toy")
    def price_a(x):
        """A."""
        return x

    @alternative(of="price", label="b", unit="s", source="toy")
    def price_b(x):
        """B."""
        return x

    @alternative(of="price", label="a", unit="USD", source="toy")
    def price_c(x):
        """C."""
        return x

    @formula(unit="USD", source="toy")
    def price(x):
        """Price."""
        return x

    with pytest.raises(PerfgridError, match="disagree in unit: 'price_a' has 'USD', 'price_b' has 's'"):
        Registry.collect([price_a, price_b])
    with pytest.raises(PerfgridError, match="'price_a' and 'price_c' share the label 'a'"):
        Registry.collect([price_a, price_c])
    with pytest.raises(PerfgridError, match="by a formula and by alternative"):
        Registry.collect([price, price_a])


def test_unknown_missing_and_cyclic_quantities():
    registry = toys.registry()
    with pytest.raises(PerfgridError, match="unknown quantity 'order_tme'; did you mean 'order_time'"):
        resolve(registry, ["order_tme"], toys.space().names())
    with pytest.raises(PerfgridError, match="'pieces', needed by 'line_time', is neither given nor computed"):
        resolve(registry, ["line_time"], {"machine_rate", "lanes", "size", "material"}, labels={"material": ("soft",)})

    @formula(unit="1", source="toy")
    def hen(egg):
        """Hen."""
        return egg

    @formula(unit="1", source="toy")
    def egg(hen):
        """Egg."""
        return hen

    with pytest.raises(PerfgridError, match="circular dependency between quantities: hen <- egg <- hen"):
        resolve(Registry.collect([hen, egg]), ["hen"], [])


def test_alternatives_best_fixed_and_by_label():
    registry = toys.registry()
    values = {"sites": 4.0, "distance": 3.0}
    best = resolve(registry, ["transport", "transport_choice"], values)
    assert replay(best, values)["transport"] == 12.0
    assert replay(best, values)["transport_choice"] == 0
    assert best.nodes["transport_choice"].flags == ("truck", "rail")
    fixed = resolve(registry, ["transport"], values, {"transport": "rail"})
    assert replay(fixed, values)["transport"] == 23.0
    assert "truck_transport" not in fixed.nodes  # never traced
    with pytest.raises(PerfgridError, match="'transport' has no alternative 'ship'; legal names: rail, truck"):
        resolve(registry, ["transport"], values, {"transport": "ship"})
    with pytest.raises(PerfgridError, match="'transprt' has no alternatives to choose from; did you mean 'transport'"):
        resolve(registry, ["transport"], values, {"transprt": "rail"})
    by_label = resolve(registry, ["cut_work"], ["size", "material"], labels={"material": ("hard", "soft")})
    assert replay(by_label, {"size": 9.0, "material": 0})["cut_work"] == 27.0
    assert replay(by_label, {"size": 9.0, "material": 1})["cut_work"] == 18.0
    with pytest.raises(PerfgridError, match=r"material = 'sft' is not one of .*did you mean 'soft'"):
        resolve(registry, ["cut_work"], ["size", "material"], labels={"material": ("sft",)})
    with pytest.raises(PerfgridError, match="'unobtainium', needed by 'exotic_work', is neither given"):
        resolve(registry, ["cut_work"], ["size", "material"], labels={"material": ("exotic",)})


def test_alternatives_that_are_a_number_or_a_quantity_need_no_function():
    @alternative(of="toll", by="road", label="bridge", unit="EUR", source="toy",
                 others={("street", "path"): 0.0, "ferry": "fare"})  # fmt: skip
    def bridge_toll(weight):
        """What a crossing costs."""
        return 2 * weight

    @alternative(of="GOOD_duty", by="road", label=("bridge", "path"), unit="EUR", source="toy",
                 family={"GOOD": ("tea", "wine")}, others={"ferry": "GOOD_price"})  # fmt: skip
    def LABEL_GOOD_duty(weight):
        """What GOOD costs on the LABEL."""
        return 3 * weight

    registry = Registry.collect([bridge_toll, LABEL_GOOD_duty])
    expected = {"bridge": [10.0, 15.0], "street": [0.0], "path": [0.0, 15.0], "ferry": [7.0, 9.0]}
    for road, values in expected.items():
        asked = ["toll", "tea_duty"][: len(values)]
        graph = resolve(registry, asked, ("weight", "fare", "tea_price"), labels={"road": (road,)})
        found = replay(graph, {"weight": 5.0, "fare": 7.0, "tea_price": 9.0})
        assert [found[name] for name in asked] == values
    assert registry.formulas["street_toll"].meaning == "What a crossing costs; street: 0.0."
    assert registry.formulas["ferry_wine_duty"].arguments == ("wine_price",)


def test_family_members_are_quantities_of_their_own():
    registry = toys.registry()
    assert registry.formulas["early_pay_time"].arguments == ("early_size", "piece_time")
    assert registry.formulas["late_pay_time"].meaning == "Paid time of the late crew."
    with pytest.raises(PerfgridError, match="its name does not contain 'CREW'"):

        @formula(unit="1", source="toy", family={"CREW": ("a", "b")})
        def nothing(x):
            """Nothing."""
            return x


def test_a_given_value_and_a_users_formula_replace_a_formula():
    registry = toys.registry()
    graph = resolve(registry, ["line_time"], {"piece_time", "pieces", "lines"})
    assert list(graph.nodes) == ["line_time"]

    @formula(unit="s", source="me")
    def piece_time(size):
        """My own."""
        return size * 2.0

    graph = resolve(registry.extended([piece_time]), ["line_time"], {"size", "pieces", "lines"})
    assert replay(graph, {"size": 3.0, "pieces": 4.0, "lines": 2.0})["line_time"] == 12.0


def test_formulas_that_break_the_grid_are_named():
    inner = InnerAxes({"tool": ("saw", "drill", "press")})
    space = Space((Axis("size", np.arange(4.0), {"size": np.arange(4.0)}),))

    @formula(unit="1", source="toy")
    def summed(size):
        """Sums over the study."""
        return xp.sum(size)

    @formula(unit="1", source="toy")
    def reshaped(size):
        """Two rows on an axis of three labels."""
        return xp.concatenate([size, size], axis=-1)

    @constraint(kind="illegal", reason="no", source="toy")
    def number(size):
        """Returns a number."""
        return size

    with pytest.raises(PerfgridError, match="'summed' returns shape"):
        Plan(Registry.collect([summed], inner), space, ["summed"])
    with pytest.raises(PerfgridError, match="'reshaped' returns shape"):
        Plan(Registry.collect([reshaped], inner), space, ["reshaped"])

    @constraint(kind="illegal", reason="no", source="toy")
    def by_tool(size):
        """Lies on an inner axis."""
        return inner.table("tool", saw=size, drill=size, press=size) > 1

    with pytest.raises(PerfgridError, match="'by_tool' must be reduced over its inner axes"):
        Plan(Registry.collect([by_tool], inner), space, ["by_tool"])
    with pytest.raises(PerfgridError, match="'number' must return booleans"):
        Plan(Registry.collect([number], inner), space, ["number"])


def test_inner_axes_verbs():
    inner = toys.INNER
    np.testing.assert_array_equal(inner.table("tool", saw=1, drill=2, press=3), [1, 2, 3])
    assert inner.table("shift", day=1.0, night=2.0).shape == (2, 1)
    np.testing.assert_array_equal(inner.total(np.array([1.0, 2, 3]), "tool"), [6])
    assert inner.total(2.0, "tool") == 6.0  # the same at every label
    assert inner.largest(2.0, "tool") == 2.0
    assert inner.at(np.array([1.0, 2, 3]), tool="drill") == 2
    np.testing.assert_array_equal(inner.only("tool", "saw", "press"), [1, 0, 1])
    np.testing.assert_array_equal(inner.join("tool", np.array([1.0]), np.array([2.0, 3.0])), [1, 2, 3])
    with pytest.raises(PerfgridError, match="needs the labels"):
        inner.table("tool", drill=1, saw=2, press=3)
    with pytest.raises(PerfgridError, match="no label 'dril'; did you mean 'drill'"):
        inner.only("tool", "dril")
    with pytest.raises(PerfgridError, match="unknown inner axis 'tol'; did you mean 'tool'"):
        inner.total(1.0, "tol")


def test_namespace_follows_its_arguments():
    import jax.numpy as jnp

    assert isinstance(xp.maximum(1.0, 2.0), (float, np.floating))
    assert isinstance(xp.maximum(jnp.asarray(1.0), 2.0), type(jnp.asarray(1.0)))


def test_spaces_reject_contradictions():
    one = Axis("a", np.array([1.0, 2.0]), {"x": np.array([1.0, 2.0])})
    with pytest.raises(PerfgridError, match="axis 'b' is empty"):
        Axis("b", np.array([]))
    with pytest.raises(PerfgridError, match=r"lists 1\.0 more than once"):
        Axis("b", np.array([1.0, 1.0]))
    with pytest.raises(PerfgridError, match="'x' is stated by axis 'a' and by axis 'b'"):
        Space((one, Axis("b", np.array([1.0]), {"x": np.array([1.0])})))
    with pytest.raises(PerfgridError, match="scales 'y', which nothing states"):
        Space((one, Axis("b", np.array([1.0]), {}, {"y": np.array([1.0])})))
    with pytest.raises(PerfgridError, match="2 rows but column 'x' has 3"):
        Axis("b", np.array([1.0, 2.0]), {"x": np.arange(3.0)})


def module(name, *functions):
    """A module that defines some functions."""
    made = ModuleType(name)
    for function in functions:
        function.__module__ = name
        setattr(made, function.__name__, function)
    return made


def workloads():
    """Modules of a shop and of a mill, and what both draw from."""

    @formula(unit="kg", source="toy")
    def weight(pieces):
        """Weight."""
        return 2 * pieces

    @alternative(of="way", by="road", label="short", unit="m", source="toy")
    def short_way():
        """Way."""
        return 1.0

    @alternative(of="way", by="road", label="long", unit="m", source="toy")
    def long_way():
        """Way."""
        return 3.0

    @constraint(kind="illegal", reason="nothing is sold", source="toy", workload=("shop", "mill"))
    def something(pieces):
        """There is a piece."""
        return pieces > 0

    @constraint(reason="it is heavy", source="toy")
    def light(weight):
        """It is light."""
        return weight < 9

    @formula(unit="J", source="toy")
    def work(weight, way):
        """Work."""
        return weight * way

    @alternative(of="weight", by="workload", label="mill", unit="kg", source="toy")
    def mill_weight(pieces):
        """Weight of sacks."""
        return 50 * pieces

    @alternative(of="way", by="workload", label="mill", unit="m", source="toy")
    def mill_way():
        """Way inside the mill."""
        return 2.0

    @constraint(kind="illegal", reason="it tears a sack", source="toy", of="light", workload="mill")
    def mill_light(weight):
        """A sack holds."""
        return weight < 900

    store = module("store", weight, short_way, long_way, something, light)
    shop, mill = module("shop", work), module("mill", mill_weight, mill_way, mill_light)
    return Registry.collect([store, shop, mill]), store, shop, mill


def test_workloads_have_their_own_alternatives_and_constraints():
    registry, store, shop, mill = workloads()
    sold, milled = registry.of_workload("shop", [shop, store]), registry.of_workload("mill", [mill, shop], [store])
    assert {c.name for c in sold.constraints()} == {"something", "light"}
    assert {c.name: c.reason for c in milled.constraints()} == {
        "something": "nothing is sold",
        "light": "it tears a sack",
    }
    assert sold.choices.keys() == {"way"}
    assert not milled.choices  # the way is one of the workload's own, whichever road
    graph = resolve(sold, ["work"], ["pieces", "road"], labels={"road": ("long",)})
    assert replay(graph, {"pieces": 2.0, "road": 0.0})["work"] == 12
    assert replay(resolve(milled, ["work"], ["pieces"]), {"pieces": 2.0})["work"] == 200
    assert not {"mill_weight", "short_way"} & {*milled.formulas}


def test_only_what_a_workload_needs_is_drawn():
    registry, store, shop, mill = workloads()
    assert "light" not in registry.of_workload("shop", [shop], [store]).formulas  # a constraint of others
    assert "weight" not in registry.of_workload("shop", [mill], [store]).formulas


def test_own_formulas_may_differ_by_the_workload():
    registry, store, shop, mill = workloads()

    @alternative(of="weight", by="workload", label="shop", unit="kg", source="own")
    def own_weight(pieces):
        """Weight."""
        return 7 * pieces

    def weight(name, modules):
        found = registry.of_workload(name, modules, [store]).extended([own_weight])
        return replay(resolve(found, ["weight"], ["pieces"]), {"pieces": 1.0})["weight"]

    assert (weight("shop", [shop]), weight("mill", [mill, shop])) == (7, 50)


def test_a_constraint_replaces_that_of_one_workload():
    with pytest.raises(PerfgridError, match="a constraint that replaces 'light' must name one workload, found 2"):
        constraint(kind="illegal", reason="x", source="toy", of="light", workload=("shop", "mill"))
