"""What adds up to a number: terms of formulas, parts of toy quantities."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgrid.analysis.explanation.derivation import elasticities, explain_point
from perfgrid.analysis.explanation.story import FOLDED, Replayed, story_of
from perfgrid.analysis.explanation.terms import Kinds, terms_of
from perfgrid.engine import Registry, formula, replay, resolve, xp

from . import toys
from .test_explain import AT

UNITS = {"long": "s", "short": "s", "times": "1", "work": "J", "power": "W", "rate": "1"}
VALUES = {"long": 3.0, "short": 1.0, "times": 4.0, "work": 6.0, "power": 2.0, "rate": 0.5}


def terms(function, **values):
    """The terms of a function of the quantities above, as names and values."""
    graph = resolve(
        Registry.collect([formula(unit="s", source="toy")(function)], toys.INNER), [function.__name__], UNITS
    )
    node, point = graph.nodes[function.__name__], VALUES | values
    point[node.name] = node.function(*(point[a] for a in node.arguments))
    found = terms_of(node, point, Kinds("s", UNITS, lambda name: False), np.ones(np.shape(point[node.name])))
    assert sum(t.value for t in found) == pytest.approx(float(np.sum(point[node.name])))
    return found


def named(found):
    """Terms as products in words."""
    return {
        " x ".join(f.text for f in t.factors if not f.divides) + "".join(f" / {f.text}" for f in t.factors if f.divides)
        for t in found
    }


def test_a_sum_of_products_is_taken_apart():
    def total(times, long, short, work, power):
        """Sums, a product over a sum, a quotient."""
        return times * (long + 2 * short) + work / power

    found = terms(total)
    assert named(found) == {"times x long", "times x 2 x short", "work / power"}
    assert [(t.value, t.carrier) for t in found] == [(12.0, "long"), (8.0, "short"), (3.0, None)]


def test_a_count_less_one_stays_a_factor():
    def total(work, power, times):
        """No parts that cancel."""
        return (times - 1) * work / power

    (found,) = terms(total)
    assert named([found]) == {"work x (times - 1) / power"}


def test_a_maximum_gives_the_winner_and_the_next():
    def total(long, short):
        """The longer one, twice."""
        return xp.maximum(long, short) * 2

    (found,) = terms(total)
    assert (found.carrier, found.value) == ("long", 6.0)
    (rival,) = found.rivals
    assert (rival.taken, rival.other, rival.value) == ("long", "short", 2.0)


def test_a_condition_gives_the_branch_taken():
    def total(rate, long, short):
        """One of two."""
        return xp.where(rate > 0, long, short) + xp.clip(short - long, 0.0, 10.0)

    (found,) = terms(total)
    assert (found.carrier, found.value) == ("long", 3.0)


def test_a_difference_has_a_negative_part_and_equal_ones_cancel():
    def total(long, short, times):
        """Less a part; what is added and taken away again."""
        return times * short + long - short - times * short

    assert {t.carrier: t.value for t in terms(total)} == {"long": 3.0, "short": -1.0}


def test_what_is_no_sum_of_products_is_one_term():
    def total(long, work, power):
        """A root."""
        return long + xp.sqrt(work / power)

    assert [(t.value, t.carrier) for t in terms(total)] == [(3.0, "long"), (pytest.approx(3**0.5), None)]


def test_vectors_along_inner_axes_bring_what_their_elements_bring():
    def total(long, times):
        """Sums, selections and the largest of a table."""
        tools = toys.table("tool", saw=long, drill=times * long, press=0.0)
        shifts = toys.table("shift", day=1.0, night=2.0)
        return toys.total(tools * shifts, "shift") + toys.largest(tools, "tool") + toys.at(tools, tool="saw")

    assert sum(t.value for t in terms(total)) == pytest.approx((3 + 12) * 3 + 3 * 12 + 3 * 3)  # by tool


def check(part):
    """All parts below add up, all but a hundredth is listed."""
    if part.parts:
        together = sum(p.value for p in part.parts) + part.folded.value
        assert together == pytest.approx(part.value, rel=1e-9)
        assert abs(part.folded.value) <= FOLDED * abs(part.value)
    for below in part.below:
        check(below)


def count(part):
    """The lines that a part takes with all below it."""
    return 1 + (part.folded.count > 0) + sum(map(count, part.below))


def test_the_story_of_a_toy():
    story = explain_point(toys.registry(), toys.space(), "order_time", AT).story(4)
    check(story)
    first, second = story.below
    assert first.name == "(orders + lines - 1) x line_time" or first.quantity == "line_time"
    assert second.quantity == "transport"
    assert {p.name for p in first.below} == {"saw", "drill", "press"} or first.below
    assert second.rival is not None


@given(
    st.sampled_from(["order_time", "throughput", "energy_cost", "slack", "piece_time", "tool_time", "line_time"]),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.integers(0, 6),
    st.sampled_from([None, 5, 12, 30]),
)
def test_parts_of_toys_add_up(quantity, rate, depth, lines):
    space = toys.space()
    found = explain_point(toys.registry(), space, quantity, {**AT, "machine_rate": rate})
    story = found.story(depth, lines)
    check(story)
    assert float(np.sum(found.derivation.value)) == pytest.approx(story.value)
    assert lines is None or count(story) <= max(lines, 1 + len(story.below) + 1)


def test_a_known_sum_takes_the_place_of_the_part_that_it_splits():
    @formula(unit="s", source="toy")
    def work_time(times, piece):
        """All pieces."""
        return times * piece

    @formula(unit="s", source="toy")
    def whole(times, piece, rest):
        """All pieces and the rest."""
        return times * piece + rest

    @formula(unit="s", source="toy", family={"KIND": ("day", "night")})
    def KIND_time(times, KIND_piece):
        """Pieces by KIND."""
        return times * KIND_piece

    given_values = {"times": 2.0, "piece": 3.0, "day_piece": 2.0, "night_piece": 1.0, "rest": 1.0}
    registry = Registry.collect([work_time, whole, KIND_time])
    graph = resolve(registry, ["whole", "day_time", "night_time"], given_values)
    units = {name: ("s" if name != "times" else "1", "", "") for name in given_values}
    values = replay(graph, given_values)
    point = Replayed(graph, values, units, registry.inner, {"whole": ("day_time", "night_time", "rest")})
    story = story_of(point, "whole", 2)
    pieces, rest = story.below
    assert (pieces.name, pieces.value, rest.name) == ("times x piece", 6.0, "rest")
    assert [(p.name, p.value) for p in pieces.below] == [("day_time", 4.0), ("night_time", 2.0)]


def test_small_parts_are_folded_and_what_brings_nothing_lists_its_arguments():
    @formula(unit="s", source="toy")
    def whole(a, b, c, d):
        """Large and small ones."""
        return a + b + c + d

    @formula(unit="s", source="toy")
    def late(a, whole):
        """Nothing."""
        return xp.maximum(a - whole, 0.0)

    values = {"a": 100.0, "b": 0.4, "c": 0.5, "d": 50.0}
    registry = Registry.collect([whole, late])
    graph = resolve(registry, ["late"], values)
    point = Replayed(graph, replay(graph, values), {n: ("s", "", "") for n in values}, registry.inner)
    story = story_of(point, "whole", 1)
    assert [p.name for p in story.below] == ["a", "d"]
    assert (story.folded.count, story.folded.value, story.folded.largest) == (2, pytest.approx(0.9), 0.5)
    nothing = story_of(point, "late", 1, matters=lambda node: elasticities(node, point.values))
    assert [(p.name, p.factor) for p in nothing.below] == [("a", "of"), ("whole", "of")]
