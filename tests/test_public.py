"""The public names: what they are, that they load lazily, and that their examples run."""

import doctest
import inspect
import random
import subprocess
import sys
import types
from pathlib import Path

import pytest

import perfgrid as pg
from perfgrid.cli.main import COMMANDS, command_of, imported

LIST = """
Study load_study load_catalog evaluate stream save open_result best pareto distribution compare diff explain kernels
timeline feasible sensitivity gradient tornado morris sobol quantiles optimize function validate calibrate
collective_time chiplet_cost plot train serve read_job join_pools formula alternative constraint PerfgridError
"""
NAMES = LIST.split()


def test_the_public_names():
    assert (Path(pg.__path__[0]) / "py.typed").exists()
    assert sorted(vars(pg)["__all__"]) == sorted(NAMES)
    assert set(NAMES) <= set(dir(pg))


@pytest.mark.parametrize("seed", range(3))
def test_every_public_name_in_any_order_twice(seed):
    """In a fresh process: a sub-module of the same name must not hide a function once it is imported."""
    names = NAMES * 2
    random.Random(seed).shuffle(names)
    check = (
        "import sys, types, perfgrid as pg\n"
        "for name in sys.argv[1:]:\n"
        "    assert not isinstance(getattr(pg, name), types.ModuleType), name\n"
        "    assert getattr(pg, name) is getattr(pg, name), name"
    )
    subprocess.run([sys.executable, "-c", check, *names], check=True)


@pytest.mark.parametrize(
    "command", ["import perfgrid", "import sys; sys.argv[1:] = ['--help']; from perfgrid.cli.main import app; app()"]
)
def test_heavy_packages_are_imported_when_needed(command):
    check = (
        f"import sys\ntry:\n    exec({command!r})\nexcept SystemExit:\n    pass\n"
        "assert not {'jax', 'xarray', 'pydantic', 'pandas', 'scipy', 'netCDF4'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check], check=True, stdout=subprocess.DEVNULL)


def test_the_table_of_commands_states_the_help_of_each():
    for name, line in COMMANDS.items():
        command = command_of(name)
        text = inspect.getdoc(command) if isinstance(command, types.FunctionType) else command.info.help
        assert (text or "").startswith(line.rstrip(".")), name
        assert imported(name).name == name


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_of_a_public_name_run(name):
    found = getattr(pg, name)
    assert inspect.getdoc(found)
    finder = doctest.DocTestFinder(recurse=False)
    for example in finder.find(found, name, globs={}):
        result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example)
        assert not result.failed
