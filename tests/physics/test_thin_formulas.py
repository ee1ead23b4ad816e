"""Formulas hold equations: what only names another quantity or a number is a row of a table."""

import ast

import pytest

from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.graph.tables import bind, by_label, constants
from perfgrid.formulas import INNER
from tools.formula_counts import functions, without_equation

EXCEPTIONS = {  # with reasons
    "every_formula": "no formula: all of them, made once",
    "thermal_design_power_from_budget": "an alternative of a list of quantities by their names, `OF_BUDGET`",
    "dies_from_budget": "an alternative of a list of quantities by their names, `OF_BUDGET`",
}


def test_no_formula_returns_a_constant_or_one_argument():
    found = {f.name: path for path, f in functions() if without_equation(f)}
    assert found.keys() == EXCEPTIONS.keys(), found


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("1.0", "constant"),
        ("-NO_DIE", "constant"),
        ("float(NAMES.index('usual'))", "constant"),
        ("b", "argument"),
        ("2 * b", ""),
        ("only('phase', 'forward')", ""),
        ("a if b else 1.0", ""),
    ],
)
def test_what_counts_as_no_equation(body, kind):
    function = ast.parse(f"def f(a, b):\n    '''Meaning.'''\n    return {body}").body[0]
    assert isinstance(function, ast.FunctionDef)
    assert without_equation(function) == kind


def area(width, height):
    """Area of a rectangle."""
    return width * height


def test_tables_constants_and_bound_equations_are_quantities():
    registry = Registry(INNER)
    entries = (
        *by_label("shape", {"sides": ("1", "us", "Sides.")}, {"square": (4,), "other": ("stated_sides",)}),
        *constants({"side": (2.0, "m", "us", "Side of the square.")}),
        *bind(area, "floor", "side width", "m^2", "us", where="equation 1"),
        *bind(area, "WALL_wall", "WALL_width height", "m^2", "us", family={"WALL": ("north", "south")}),
    )
    for entry in entries:
        registry.add(entry)
    assert [a.name for a in registry.choices["sides"].alternatives] == ["square_sides", "other_sides"]
    assert registry.formulas["square_sides"].function() == 4.0
    assert registry.formulas["other_sides"].arguments == ("stated_sides",)
    assert registry.formulas["floor"].arguments == ("side", "width")
    assert (registry.formulas["floor"].meaning, registry.formulas["floor"].where) == (
        "Area of a rectangle.",
        "equation 1",
    )
    assert registry.formulas["south_wall"].arguments == ("south_width", "height")
