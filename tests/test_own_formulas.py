"""``--formulas FILE.py`` as its user gives it: the example of the studies, every command, mistakes in the file."""

import pickle
from pathlib import Path

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.cli.main import COMMANDS, imported
from perfgrid.study.own_formulas import own_formulas
from tests.store.common import TEXT, assert_same_stores, written
from tests.test_bad_input import run

ROOT = Path(__file__).parents[1]
STUDY, FORMULAS = ROOT / "studies" / "papers" / "korthikanti.toml", ROOT / "studies" / "step_price.py"
OWN = ("--formulas", FORMULAS)
OUTPUTS = ("--set", "outputs=['step_price', 'step_time']")
AT = ("--at", "row=1t full,device=a100-sxm-80gb,topology=rail-optimized")
START = 'import perfgrid as pg\n@pg.formula(unit="USD", source="x")\n'
DIES = START + 'def two_dies(die_cost):\n    """Two dies."""\n    return 2 * die_cost\n'


@pytest.fixture
def perfgrid(monkeypatch, capsys):
    """Run ``perfgrid ...``: standard output; with ``status=2`` the one line of the refusal."""

    def call(*arguments, status=0):
        found, out, err = run(monkeypatch, capsys, *arguments)
        assert found == status, err
        if status:
            assert out == ""
            assert err.startswith("perfgrid: ")
            assert len(err.splitlines()) == 1
        return err if status else out

    return call


def test_the_example_prices_steps_and_limits_them(perfgrid, tmp_path):
    target = tmp_path / "result.nc"
    out = perfgrid("run", STUDY, *OWN, *OUTPUTS, "-o", target)
    assert "[$]" in out
    with pg.open_result(target) as found:
        expected = found.step_time * found.devices * 2.5 / 3600
        np.testing.assert_allclose(found.step_price.transpose(*expected.dims), expected, rtol=1e-6)
        assert found.within_budget.attrs["constraint"] == "exceeds"
        assert found.within_budget.all()
        price = found.step_price.sel(row="1t full").item()
    assert f"{price:.4g} $" in perfgrid("explain", target, "step_price", *AT, *OWN)
    told = perfgrid("explain", target, "step_price", *AT, status=2)
    assert "made with formulas of its user, step_price, within_budget: give their file with --formulas" in told


def test_commands_that_evaluate_own_formulas(perfgrid, tmp_path):
    factored, values = tmp_path / "result.pgf", tmp_path / "result.nc"
    assert "step_price" in perfgrid("plan", STUDY, *OWN, *OUTPUTS)
    assert "[$]" in perfgrid("best", STUDY, *OWN, *OUTPUTS, "--over", "row", "--minimize", "step_price")
    assert "[$]" in perfgrid("distribution", STUDY, *OWN, *OUTPUTS, "--of", "step_price")
    assert "our price list" in perfgrid("formulas", "--wide", *OWN)
    perfgrid("run", STUDY, *OWN, *OUTPUTS, "-o", factored)
    assert "--formulas" in perfgrid("expand", factored, "-o", values, status=2)
    perfgrid("expand", factored, "-o", values, *OWN)
    assert "the same" in perfgrid("diff", factored, values, *OWN)
    sides = ("--a", "row=22b full", "--b", "row=175b full")
    assert "times as long" in perfgrid("compare", factored, *sides, *OWN)


def leaves():
    for name in COMMANDS:
        command = imported(name)
        for path, part in (getattr(command, "commands", None) or {"": command}).items():
            yield f"{name} {path}".strip(), {parameter.name for parameter in part.params}


@pytest.mark.parametrize(
    ("command", "names"), list(leaves()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_reads_a_study_or_evaluates_a_result_takes_formulas(command, names):
    evaluates = not command.startswith(("catalog", "read-job")) and bool(
        names & {"settings", "recompute"} or names & {"what"}
    )
    assert ("formulas" in names) == (evaluates or command == "formulas")


def test_workers_run_the_file_themselves(perfgrid, tmp_path):
    study, file = written(tmp_path), tmp_path / "my dies.py"
    file.write_text(DIES)
    options = ("--formulas", file, "--set", "outputs=['two_dies', 'die_yield']", "--tile-points", 20_000)
    perfgrid("run", study, *options, "-o", tmp_path / "one.zarr")
    perfgrid("run", study, *options, "-o", tmp_path / "two.zarr", "--workers", 2)
    assert_same_stores(tmp_path / "one.zarr", tmp_path / "two.zarr")
    assert "sound" in perfgrid("verify", tmp_path / "two.zarr", "--study", study, *options[:-2])


def test_formulas_travel_as_the_name_of_their_file(tmp_path, monkeypatch):
    file = tmp_path / "own.py"
    file.write_text(DIES)
    monkeypatch.chdir(tmp_path)
    path = file.relative_to(tmp_path)
    (tmp_path / "study.toml").write_text(TEXT)
    study = pg.load_study("study.toml", ["outputs=['two_dies']"], formulas=own_formulas(path))
    sent = pickle.dumps(study.formulas)
    monkeypatch.chdir("/")
    (there,) = pickle.loads(sent)
    assert there(3.0) == 6.0
    assert there is not study.formulas[0]


def test_formulas_come_in_order_without_those_that_are_imported(tmp_path):
    other = tmp_path / "more.py"
    other.write_text(
        "import dataclasses\nfrom perfgrid.formulas.cost.die import *\n@dataclasses.dataclass\nclass Price:\n"
        f"    per_die: 'float'\n{DIES.replace('two_dies', 'b_dies')}{DIES.replace('two_dies', 'a_dies')}"
    )
    assert [f.__name__ for f in own_formulas(other)] == ["b_dies", "a_dies"]


MISTAKES = {
    "x = 1\ndef f(:\n": ", line 2: not valid Python: invalid syntax",
    "x = 1\ny = nothing\n": ", line 2: NameError: name 'nothing' is not defined",
    "import nothing_there\n": ", line 1: ModuleNotFoundError: No module named 'nothing_there'",
    "import sys\n\nsys.exit('bye')\n": ", line 3: SystemExit: bye",
    "x = 1\n": " defines no formula: no function has @formula, @alternative or @constraint",
    "": " defines no formula",
    "x\x00": ", line 1: not valid Python",
    "(" * 3000: ", line 1: not valid Python",
    "-" * 100_000 + "1": ": not valid Python: too deeply nested",
    DIES.replace('unit="USD"', 'unit=""'): ", line 2: formula 'two_dies' needs a unit",
    DIES + "again = two_dies\n": ": quantity 'two_dies' is defined twice",
    DIES.replace("2 * die_cost", "2 * nothing"): ", line 5: NameError: name 'nothing' is not defined",
    DIES.replace("return", "if die_cost > 1:\n        return 1.0\n    return"): ", line 5: ValueError: The truth value",
}


@pytest.mark.parametrize("text", MISTAKES, ids=lambda text: MISTAKES[text][:40])
def test_a_mistake_in_the_file_names_file_and_line(perfgrid, tmp_path, text):
    study, file = written(tmp_path), tmp_path / "own.py"
    file.write_text(text)
    told = perfgrid("plan", study, "--formulas", file, "--set", "outputs=['two_dies']", status=2)
    assert told.startswith(f"perfgrid: {file}{MISTAKES[text]}")


def test_a_file_that_is_none(perfgrid, tmp_path):
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "own.txt").write_text(DIES)
    for name, sentence in {
        "absent.py": "absent.py: cannot be read: No such file or directory",
        "folder.py": "folder.py: cannot be read: it is a folder",
        "own.txt": "own.txt: a file of formulas is a Python module; its name ends in .py",
    }.items():
        assert sentence in perfgrid("plan", STUDY, "--formulas", tmp_path / name, status=2)


def test_an_unknown_unit_and_an_unknown_argument(perfgrid, tmp_path):
    study, file = written(tmp_path), tmp_path / "own.py"
    options = ("--formulas", file, "--set", "outputs=['two_dies', 'die_cost']")
    file.write_text(DIES.replace("USD", "furlongz"))
    assert "formula 'two_dies': unknown unit 'furlongz'" in perfgrid("plan", study, *options, status=2)
    file.write_text(DIES.replace("die_cost", "dye_cost"))
    assert "'dye_cost', needed by 'two_dies'" in perfgrid("plan", study, *options, status=2)
