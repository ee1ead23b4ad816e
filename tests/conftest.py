"""Property tests have no deadline, and the same examples in every CI run. Processes take neighbouring tests.

Three quarters of the suite's time were compilation, and what it compiles runs once on small arrays. So its processes,
and those that they start, compile without LLVM's optimisations, all of a function at once, and with XLA's older, faster
code generator where JAX still has it. Formulas, grids and derivatives are the same programs for XLA; the machine code
differs, and with it whether some derivatives of JAX are finite (`physics.test_traced`, `network.test_tables`).
Tests that compare the bits of differently compiled functions need the loops and remainders of optimised code: their
modules are marked ``optimised`` and get LLVM's optimisations back. The code generator is that of the process: XLA reads
its flags once. What needs no JAX is differentiated in NumPy (`tests.slopes`).

``XLA_FLAGS= JAX_DISABLE_MOST_OPTIMIZATIONS=0 pytest`` compiles as the program itself does (.ci/run: some tests), and so
does a process that is started with `as_the_program` as its environment: measurements of it are those of a user.
"""

import gc
import os
from functools import partial
from importlib import import_module
from pathlib import Path

import jax
import pytest
from hypothesis import settings

OPTIMISATIONS = "jax_disable_most_optimizations"
FLAGS = ["--xla_cpu_parallel_codegen_split_count=1"]
if jax.__version_info__ < (0, 11, 1):  # of an unknown flag XLA ends the process
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(FLAGS))
FEWEST = os.environ.setdefault(OPTIMISATIONS.upper(), "1") != "0"
jax.config.update(OPTIMISATIONS, FEWEST)  # the variable is read when JAX is imported

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """``pytest -n``: a process runs tests in their order and shares what a file evaluates once; idle ones take over."""
    os.environ.pop("COLUMNS", None)  # which `-n` states: tables are as wide as in any pipe
    if config.getoption("dist", "no") == "load":
        config.option.dist = "worksteal"


def pytest_collection_modifyitems(items):
    """Notebooks first: each is long, and one begun last would be waited for. Then the files beside the folders.

    Processes take over what another one has left from the end: it is short there, and shares nothing that takes long.
    """
    items.sort(key=lambda item: (item.path.suffix != ".ipynb", item.path.parent != Path(__file__).parent))


def pytest_collection_finish(session):
    """What is imported by now stays: the collector of Python need not look through it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="session")
def shipped():
    """The comparison of the records that perfgrid ships, made once a process."""
    from perfgrid.validation.validate import validate

    return validate()


@pytest.fixture(scope="session")
def unseen():
    """The comparison of the records that nothing was fitted to, made once a process."""
    from perfgrid.validation.schema import UNSEEN
    from perfgrid.validation.validate import validate

    return validate(UNSEEN)


@pytest.fixture
def answers(monkeypatch):
    """The answers that commands show, by question: each question is answered once."""
    found = {}

    def answer(command, find, *given, **options):
        question = repr((command, given, options))
        if question not in found:
            found[question] = find(*given, **options)
        return found[question]

    for command in ("train", "serve"):
        module = import_module(f"perfgrid.cli.{command}")
        monkeypatch.setattr(module, command, partial(answer, command, getattr(module, command)))
    return found


@pytest.fixture(autouse=True, scope="module")
def optimisations(request):
    """Compile a module's functions, and those of processes that it starts, as its mark says."""
    with pytest.MonkeyPatch.context() as patch:
        fewest = FEWEST and request.node.get_closest_marker("optimised") is None
        patch.setenv(OPTIMISATIONS.upper(), str(int(fewest)))
        before = jax.config.values[OPTIMISATIONS]
        compile_with(fewest)
        yield
        compile_with(before)


def compile_with(fewest: bool) -> None:
    """Compile with or without optimisations from here on, also what was compiled before: JAX would take it as it is."""
    if jax.config.values[OPTIMISATIONS] != fewest:
        jax.config.update(OPTIMISATIONS, fewest)
        jax.clear_caches()


def as_the_program() -> dict[str, str]:
    """The environment of a process that compiles as the program of a user."""
    return {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", OPTIMISATIONS.upper())}
