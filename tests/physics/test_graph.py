"""What is a formula: nothing that is a constant or another name, and no more of them in a step time than are needed."""

import ast
import inspect
import textwrap
from pathlib import Path

import pytest

import perfgrid as pg
from perfgrid.engine.graph.registry import Formula
from perfgrid.engine.graph.resolver import resolve
from perfgrid.formulas import every_formula

STUDY = Path(__file__).parents[2] / "studies" / "papers" / "korthikanti.toml"
STEP_FORMULAS = 479  # that the step times of this study need
FOLDERS = (  # whose formulas all compute something
    "collectives",
    "cost",
    "hardware",
    "kernels",
    "mixers",
    "parallelism",
    "pipelines",
    "serving",
    "training",
    "transformer",
)


def returned(function) -> ast.expr | None:
    """What a function of a single statement returns."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(definition, ast.FunctionDef)
    body = definition.body[1:]  # after the docstring
    return body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None


def computes(formula: Formula) -> bool:
    """Whether a formula computes anything: neither a number, one of its arguments, nor the sign of one."""
    value = returned(formula.function)
    while isinstance(value, ast.UnaryOp):
        value = value.operand
    return not isinstance(value, (ast.Constant, ast.Name))


def test_what_is_a_constant_and_what_another_name():
    def nothing():
        """Nothing."""
        return -1.0

    def other(argument):
        """Another name."""
        return argument

    def half(argument):
        """Half of it."""
        return argument / 2

    formulas = [Formula(f.__name__, f, (), "1", "", "") for f in (nothing, other, half)]
    assert [computes(formula) for formula in formulas] == [False, False, True]


def decorators(formula: Formula) -> set[str]:
    """The decorators of a formula's function by name."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(formula.function))).body
    assert isinstance(definition, ast.FunctionDef)
    return {d.func.id for d in definition.decorator_list if isinstance(d, ast.Call) and isinstance(d.func, ast.Name)}


@pytest.mark.parametrize("folder", FOLDERS)
def test_formulas_compute_something(folder):
    registry, idle = every_formula(), set()
    for name, formula in registry.formulas.items():
        entry = formula.same_as is not None or "constant" in decorators(formula)  # of the glossary
        stated = formula.by is not None or formula.flags  # one of several, or words for the values of a number
        if not entry and not stated and registry.modules[name].startswith(f"perfgrid.formulas.{folder}."):
            idle |= set() if computes(formula) else {formula.function.__qualname__}
    assert not idle, f"constants and other names are declared as such: {', '.join(sorted(idle))}"


def test_a_step_time_needs_no_more_formulas():
    study = pg.load_study(STUDY)
    labels = study.space.label_quantities()
    graph = resolve(study.registry, ["step_time"], study.space.names(), study.file.choices, labels)
    assert len(graph.nodes) <= STEP_FORMULAS
