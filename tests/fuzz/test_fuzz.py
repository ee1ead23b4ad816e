"""Drawn studies, command lines, catalogs, configurations, records and damaged results."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

import perfgrid as pg

from . import commands, inputs, measured, program, studies
from .program import TARGETS, fresh_peak, outcome
from .values import CHECKS, chance

CASES, BLOCK = 20_000, 250  # of the long run, and of one test in it
READINGS = 3_000  # logs, traces and jobs of the long run
FEW = 25  # of every run of the suite
EVALUATED = 1 / 5  # of every block, at least, of 250 cases that resemble each other; of all 20,000 two fifths


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """A result of each kind, undamaged."""
    folder = tmp_path_factory.mktemp("results")
    study = pg.Study.make(**{k: v for k, v in studies.MANUFACTURING.items() if k != "optimize"})
    for name in commands.RESULTS:
        pg.save(study, folder / Path(name).name)
    return folder


def targets(line):
    """The paths in ``out`` that a command line is to write."""
    return [path for option, path in pairwise(line) if option in TARGETS and path.startswith("out/x")]


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
    elif chance(draw, 8):
        workload = "manufacturing"
        broken = [draw(inputs.damages) for _ in commands.RESULTS]
        only = draw(st.sampled_from([("diff",), ("verify",), ("expand",), ("explain",), ("compare",), ("kernels",)]))
    line = draw(commands.lines(workload, only))
    if commands.FORMULAS in line:
        held[commands.FORMULAS] = draw(inputs.formulas)
    there = {name: draw(st.sampled_from(inputs.PLACES)) for name in targets(line) if chance(draw, 30)}
    return held, broken, line, there


@st.composite
def readings(draw):
    """A command line that reads a log, a trace or a job, and its files."""
    held, line = draw(measured.files)
    study = {commands.STUDY: measured.STUDY.encode()}
    return study | {name: text.encode(errors="replace") for name, text in held.items()}, [], line, {}


def check(case, results, counts):
    held, broken, arguments, there = case
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
        for name, kind in there.items():
            inputs.occupy(folder / name, kind, results / "result.zarr")
        damaged = [name for name, kinds in zip(commands.RESULTS, broken, strict=False) if kinds]
        found = outcome(folder, arguments, [name for name in commands.RESULTS if name not in damaged])
        counts["cases"] += 1
        counts["evaluated"] += found.evaluated
        counts["occupied"] += bool(there)
        counts[f"status {found.status}"] += 1
        counts["slowest"] = max(counts["slowest"], round(1000 * found.seconds))
    finally:
        shutil.rmtree(folder)


def drawn(number, count, results, shrink, cases=cases):
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


def test_a_few_cases(results):
    counts = drawn(0, FEW, results, shrink=True)
    assert counts["evaluated"] >= counts["cases"] / 10  # of so few; of a long run a fifth


def test_a_few_logs_and_jobs(results):
    counts = drawn(0, 2 * FEW, results, shrink=True, cases=readings)
    assert counts["status 0"] >= counts["cases"] / 20


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2000, 2000 + READINGS // BLOCK))
def test_thousands_of_logs_and_jobs(number, results):
    counts = drawn(number, BLOCK, results, shrink=False, cases=readings)
    assert counts["status 0"] >= counts["cases"] / 20


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1000, 1000 + CASES // BLOCK))
def test_twenty_thousand_cases(number, results):
    """``FUZZ_LOG=file`` gets a line for each block of cases."""
    counts = drawn(number, BLOCK, results, shrink=False)
    if log := os.environ.get("FUZZ_LOG"):
        with open(log, "a", encoding="utf-8") as file:
            file.write(json.dumps({"block": number, **counts}) + "\n")
    assert counts["evaluated"] >= EVALUATED * counts["cases"]


# -- the checks themselves ---------------------------------------------------------------------------------------------


def doing(act):
    """A program that does something and ends with status 0."""

    def main():
        act()
        raise SystemExit(0)

    return main


def test_memory_is_measured_after_a_larger_peak(tmp_path, monkeypatch):
    if not fresh_peak():
        pytest.skip("no /proc here")
    monkeypatch.setattr(program, "GROWTH", 2**26)
    np.ones(2**29, np.uint8)  # a larger test before
    monkeypatch.setattr(program.cli, "main", doing(lambda: np.ones(2**25, np.uint8)))
    outcome(tmp_path, ["run"])
    monkeypatch.setattr(program.cli, "main", doing(lambda: np.ones(2**27, np.uint8)))
    with pytest.raises(AssertionError, match="MiB"):
        outcome(tmp_path, ["run"])


def refusing():
    print("perfgrid: cannot read 'in/result.nc': 'NoneType' object has no attribute 'x'", file=sys.stderr)
    raise SystemExit(2)


def test_a_sound_result_is_not_called_damaged(tmp_path, monkeypatch):
    monkeypatch.setattr(program.cli, "main", refusing)
    outcome(tmp_path, ["explain", "in/result.nc"])
    with pytest.raises(AssertionError, match="NoneType"):
        outcome(tmp_path, ["explain", "in/result.nc"], ["in/result.nc"])


@pytest.mark.parametrize("kind", inputs.PLACES)
def test_what_is_where_a_result_is_to_be_survives(kind, results, tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    target = tmp_path / "out/x.zarr"
    inputs.occupy(target, kind, results / "result.zarr")
    monkeypatch.setattr(
        program.cli, "main", doing(lambda: shutil.rmtree(target) if target.is_dir() else target.unlink())
    )
    command = ["run", "s.toml", "-o", "out/x.zarr"]
    if kind in ("file", "store"):
        outcome(tmp_path, [*command, "--overwrite"])  # may be replaced
        inputs.occupy(target, kind, results / "result.zarr")
        with pytest.raises(AssertionError, match="removed or changed"):
            outcome(tmp_path, command)
    else:
        with pytest.raises(AssertionError, match="removed or changed"):
            outcome(tmp_path, [*command, "--overwrite"])
