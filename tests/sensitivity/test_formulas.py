"""The derivative of every formula that the studies use against central differences, at drawn points."""

from collections import Counter

import numpy as np

from perfgrid.cli.arguments import study_of
from perfgrid.engine.autodiff import dual
from perfgrid.engine.autodiff.dual import Dual
from perfgrid.engine.graph.resolver import replay, resolve_checked
from tests.paths import EVERY_STUDY

COARSE, FINE = 1e-5, 1e-7
DRAWS = 6  # of one formula, in several studies
STAIRS = {"io_die_cost"}  # of an area of nearly nothing: a staircase whose steps are finer than any difference


def drawn(study, graph, generator):
    """The values of a random design in which every given number lies a little beside what is stated."""
    index = tuple(int(generator.integers(n)) for n in study.space.shape)
    leaves = {name: study.space.at(name, index) for name in graph.leaves}
    for name in leaves:
        if is_number(study, name):
            leaves[name] = leaves[name] * generator.uniform(0.95, 1.05)
    return replay(graph, leaves)


def is_number(study, name):
    variable = study.catalog.variables.get(name.removeprefix("native_").removeprefix("stated_"))
    return variable is not None and variable.kind == "number"


def slopes_of(study, graph):
    """(formula, its other values, the argument that moves) of whatever has a derivative."""
    labels = study.space.label_quantities()
    for node in graph.nodes.values():
        if node.host is None and node.constraint is None and not node.flags:
            for number, argument in enumerate(node.arguments):
                computed = argument in graph.nodes and not graph.nodes[argument].flags
                if argument not in labels and (computed or is_number(study, argument)):
                    yield node, number, argument


def test_every_formula_at_drawn_points():
    """1e-6 relative; at a kink the derivative lies between those of the two sides.

    Differences give a slope to 1e-9 of the value (rounding over the step). Finer differences to both sides show whether
    a point is a kink; a jump is a kink without slopes.
    """
    generator, seen, checked, kinks = np.random.default_rng(5), set(), set(), 0
    for path in EVERY_STUDY:
        study = study_of(path, None, None)
        space = study.space
        graph = resolve_checked(
            study.registry, study.outputs, space.names(), study.file.choices, space.label_quantities()
        )
        if not set(graph.nodes) - seen:
            continue
        values = drawn(study, graph, generator)
        for node, number, argument in slopes_of(study, graph):
            if node.name in seen or np.asarray(values[argument]).dtype == bool:
                continue
            if argument == "lockstep_ranks" and np.all(values[argument] == 1):
                continue  # where its range ends: fewer ranks than one are none
            given = [values[a] for a in node.arguments]
            moved, here = np.asarray(given[number], float), np.asarray(values[node.name], float)
            if np.asarray(values[node.name]).dtype == bool:
                continue

            def at(change, node=node, given=given, number=number, moved=moved, here=here):
                changed = [moved * (1 + change) if i == number else v for i, v in enumerate(given)]
                return np.broadcast_to(np.asarray(node.function(*changed), float).reshape(here.shape), here.shape)

            with np.errstate(all="ignore"):
                seeded = [Dual(moved, {0: moved[None]}) if i == number else v for i, v in enumerate(given)]
                found = node.function(*seeded)
                up, down = at(COARSE), at(-COARSE)
                right, left = (at(FINE) - here) / FINE, (here - at(-FINE)) / FINE
            tangent = (
                np.asarray(found.tangents[0][0], float) if isinstance(found, Dual) and found.tangents else np.zeros(1)
            )
            tangent = np.full(here.shape, tangent.item()) if tangent.size == 1 else np.broadcast_to(tangent, here.shape)
            assert np.isfinite(tangent).all(), (node.name, argument)
            if node.name in STAIRS:
                continue
            expected, size = (up - down) / (2 * COARSE), np.abs(here) + np.abs(up - down)
            smooth = np.abs(right - left) <= 1e-4 * np.maximum(np.abs(right), np.abs(left)) + 1e-7 * size
            smooth &= np.abs(expected - (right + left) / 2) <= 1e-4 * np.abs(expected) + 1e-7 * size
            close = np.abs(tangent - expected) <= 1e-6 * np.abs(expected) + 1e-9 * size + 1e-15 / COARSE
            low, high = np.minimum(left, right), np.maximum(left, right)
            kink = high - low > 1e-6 * np.maximum(np.abs(low), np.abs(high))  # a slight one
            close |= kink & (tangent >= low - 1e-7 * size) & (tangent <= high + 1e-7 * size)
            assert (close | ~smooth).all(), (node.name, argument, tangent[~close & smooth], expected[~close & smooth])
            jump = np.maximum(np.abs(right), np.abs(left)) > 1e3 * size
            between = (tangent >= np.minimum(left, right) - 1e-5 * size) & (
                tangent <= np.maximum(left, right) + 1e-5 * size
            )
            assert (between | smooth | jump).all(), (node.name, argument)
            checked.add(node.name)
            kinks += int((~smooth).any())
        seen |= set(graph.nodes)
    assert len(checked) > 1000
    assert kinks < 195  # 0.15 of the 1,300 formulas that there were before steps between quantities were merged


def test_no_excluded_branch_has_an_infinite_slope(monkeypatch):
    """In reverse mode 0 times infinity would be no number: what `where` or a maximum leaves out has finite slopes too.

    At drawn designs, feasible or not, with a tangent for every argument; roots, logarithms and quotients meet no zero.
    """
    found, current = set(), [""]

    def finite(value):
        return not isinstance(value, Dual) or all(np.isfinite(t).all() for t in value.tangents.values())

    def watched(name, fine):
        rule = dual._RULES[name]

        def apply(*arguments, **options):
            if not fine(*arguments):
                found.add((current[0], name))
            return rule(*arguments, **options)

        monkeypatch.setitem(dual._RULES, name, apply)

    for name in ("maximum", "minimum"):
        watched(name, lambda a, b: finite(a) and finite(b))
    watched("where", lambda condition, a, b: finite(a) and finite(b))
    for name in ("sqrt", "log", "log2"):
        watched(name, lambda a: (np.asarray(a.value) > 0).all())
    generator, checked = np.random.default_rng(2), Counter()
    for path in EVERY_STUDY:
        study = study_of(path, None, None)
        space, labels = study.space, study.space.label_quantities()
        graph = resolve_checked(study.registry, study.outputs, space.names(), study.file.choices, labels)
        for _ in range(2):
            values = drawn(study, graph, generator)
            for node in graph.nodes.values():
                if node.host is not None or node.constraint is not None or node.flags or checked[node.name] >= DRAWS:
                    continue
                current[0] = node.name
                given = []
                for number, argument in enumerate(node.arguments):
                    value = np.asarray(values[argument])
                    fixed = argument in labels or value.dtype == bool
                    given.append(values[argument] if fixed else Dual(value, {number: np.ones((1, *value.shape))}))
                with np.errstate(all="ignore"):
                    result = node.function(*given)
                if not finite(result):
                    found.add((node.name, "its own"))
                checked[node.name] += 1
    assert not found
    assert len(checked) > 1200
