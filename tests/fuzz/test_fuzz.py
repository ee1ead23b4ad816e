"""Drawn studies, command lines, catalogs, configurations, records and damaged results."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

import perfgrid as pg

from . import commands, inputs, studies
from .program import outcome
from .values import CHECKS, chance

CASES, BLOCK = 20_000, 250  # of the long run, and of one test in it
EVALUATED = 1 / 4  # of every block, at least; a third of all


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """A result of each kind, undamaged."""
    folder = tmp_path_factory.mktemp("results")
    study = pg.Study.make(**{k: v for k, v in studies.MANUFACTURING.items() if k != "optimize"})
    for name in commands.RESULTS:
        pg.save(study, folder / Path(name).name)
    return folder


@st.composite
def cases(draw):
    """A command line and the files that it reads."""
    only, broken = None, []
    workload = draw(st.sampled_from(list(studies.BASES)))
    held = {commands.STUDY: draw(studies.files(workload))}
    if chance(draw, 4):
        held[commands.CATALOG] = draw(inputs.catalogs)
        catalog = [("catalog", name) for name in ("check", "show", "list", "new")]
        only = draw(st.sampled_from([*catalog, ("validate",)]))
    elif chance(draw, 3):
        held[commands.CONFIG] = draw(inputs.configs)
        only = ("catalog", "import")
    elif chance(draw, 3):
        held[commands.RECORDS] = draw(inputs.records)
        only = draw(st.sampled_from([("validate",), ("validate",), ("validate",), ("calibrate",)]))
    elif chance(draw, 12):
        workload = "manufacturing"
        broken = [draw(inputs.damages) for _ in commands.RESULTS]
        only = draw(st.sampled_from([("diff",), ("verify",), ("expand",), ("explain",), ("compare",), ("kernels",)]))
    arguments = draw(commands.lines(workload, only))
    if commands.FORMULAS in arguments:
        held[commands.FORMULAS] = draw(inputs.formulas)
    return held, broken, arguments


def check(case, results, counts):
    held, broken, arguments = case
    folder = Path(tempfile.mkdtemp())
    try:
        for name in ("in", "out"):
            (folder / name).mkdir()
        for name, data in held.items():
            (folder / name).write_bytes(data)
        if broken or {"in/result.nc", "in/result.zarr", "in/result.pgf"} & set(arguments):
            for name in commands.RESULTS:
                source, target = results / Path(name).name, folder / name
                (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
            for name, kinds in zip(commands.RESULTS, broken, strict=False):
                inputs.damage(folder / name, kinds)
        found = outcome(folder, arguments)
        counts["cases"] += 1
        counts["evaluated"] += found.evaluated
        counts[f"status {found.status}"] += 1
        counts["slowest"] = max(counts["slowest"], round(1000 * found.seconds))
    finally:
        shutil.rmtree(folder)


def drawn(number, count, results, shrink):
    """Draw and check a number of cases; what they came to."""
    counts = Counter()

    @seed(number)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=False,
        phases=[Phase.generate, *([Phase.shrink] if shrink else [])],
        suppress_health_check=CHECKS,
    )
    @given(cases())
    def run(case):
        check(case, results, counts)

    run()
    return counts


@pytest.mark.parametrize("number", range(3))
def test_a_few_hundred_cases(number, results):
    counts = drawn(number, 75, results, shrink=True)
    assert counts["evaluated"] >= counts["cases"] / 6


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1000, 1000 + CASES // BLOCK))
def test_twenty_thousand_cases(number, results):
    """``FUZZ_LOG=file`` gets a line for each block of cases."""
    counts = drawn(number, BLOCK, results, shrink=False)
    if log := os.environ.get("FUZZ_LOG"):
        with open(log, "a", encoding="utf-8") as file:
            file.write(json.dumps({"block": number, **counts}) + "\n")
    assert counts["evaluated"] >= EVALUATED * counts["cases"]
