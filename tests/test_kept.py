"""What is kept between runs: used again where nothing changed, made again where anything did, never needed."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import pytest
import xarray as xr

from perfgrid.catalog import load_catalog, loader
from perfgrid.engine import cache as kept
from perfgrid.engine.autodiff.parameters import parameters_of
from perfgrid.engine.autodiff.sensitivity import Sensitivity
from perfgrid.engine.execution import compiled
from perfgrid.engine.execution.compiled import Compiled
from perfgrid.engine.graph import nodes, resolver
from perfgrid.engine.grid import plan as planning
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.hashing import digest, signature_of, source_of
from perfgrid.formulas import WORKLOADS, registry_of
from perfgrid.formulas.collectives import contention
from perfgrid.study.study import Study
from tests.small import content

ROOT = Path(__file__).parents[1]


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("PERFGRID_CACHE", str(tmp_path / "cache"))
    loader._built_in.cache_clear()
    yield tmp_path / "cache"
    loader._built_in.cache_clear()


def joined(*paths):
    """A catalog, and whether it had to be put together."""
    loader._built_in.cache_clear()
    with mock.patch.object(loader, "_assemble", wraps=loader._assemble) as assemble:
        found = load_catalog(*paths)
    return found, assemble.call_count


# ---- catalogs -------------------------------------------------------------------------------------------------------


def test_a_catalog_is_read_once_as_long_as_its_files_stay(folder, tmp_path):
    first, made = joined()
    again, made_again = joined()
    assert (made, made_again) == (1, 0)
    assert again == first
    own = tmp_path / "own.toml"
    own.write_text('kind = "model"\n[mine]\nextends = "llama-2-7b"\ntitle = "Mine"\nlayers = 30\n')
    assert [joined(own)[1], joined(own)[1]] == [1, 0]
    own.write_text(own.read_text().replace("30", "31"))
    changed, made = joined(own)
    assert made == 1
    assert changed.entry("model", "mine").values["layers"] == 31
    own.write_text(own.read_text().replace("31", "32"))  # the same length, perhaps the same second
    assert joined(own)[0].entry("model", "mine").values["layers"] == 32


@pytest.mark.parametrize("what", ["sources", "file"])
def test_a_catalog_of_other_formulas_or_files_is_read_again(folder, monkeypatch, what):
    joined()
    if what == "sources":
        monkeypatch.setattr(loader, "digest_of_sources", lambda: "another version")
    else:
        monkeypatch.setattr(loader, "digest_of_files", lambda paths: digest("changed"))
    assert joined()[1] == 1


def test_what_is_damaged_or_cannot_be_kept_is_made_again(folder, monkeypatch):
    expected, _ = joined()
    (file,) = folder.glob("catalog-*")
    for damaged in (b"", file.read_bytes()[:-100], b"no pickle"):
        file.write_bytes(damaged)
        found, made = joined()
        assert made == 1
        assert found == expected
    blocked = folder / "a file"
    blocked.write_text("")
    monkeypatch.setenv("PERFGRID_CACHE", str(blocked))
    assert [joined()[1], joined()[1]] == [1, 1]


def test_what_was_used_longest_ago_is_forgotten_first(folder):
    for number in range(4):
        kept.keep(f"thing-{number}", "key", number)
        os.utime(folder / f"thing-{number}.kept", (number, number))
    assert kept.recall("thing-0", "key") == 0  # used now
    kept.forget("thing-", 2)
    assert {p.name for p in folder.glob("thing-*")} == {"thing-0.kept", "thing-3.kept"}
    assert kept.recall("thing-3", "another key") is None


# ---- compiled functions ---------------------------------------------------------------------------------------------


def _functions(workload):
    """The functions of all formulas and alternatives; constants and other names are never evaluated."""
    entries = registry_of(workload).formulas.values()
    return (f.function for f in entries if f.same_as is None and (f.arguments or f.by is not None))


def test_a_signature_tells_apart_code_constants_and_closures(monkeypatch):
    functions = list(_functions("training"))
    signatures = {f: signature_of((), [f]) for f in functions}
    assert None not in signatures.values()
    held = {f: repr([cell.cell_contents for cell in f.__closure__ or ()]) for f in functions}
    assert len(set(signatures.values())) == len({(source_of(f), f.__module__, held[f]) for f in functions})
    reading = next(f for f in functions if "LEAST_LEFT" in f.__code__.co_names)
    monkeypatch.setattr(contention, "LEAST_LEFT", 2 * contention.LEAST_LEFT)
    assert signature_of((), [reading]) != signatures[reading]
    assert signature_of(["wired otherwise"], [functions[0]]) != signatures[functions[0]]


def test_settings_and_versions_are_part_of_what_is_kept(monkeypatch):
    expected = compiled.surroundings()
    assert compiled.surroundings() == expected
    for owner, name, value in (
        (compiled, "_processor", lambda: "another"),
        (compiled.jax, "__version__", "0.0.1"),
        (compiled.np, "__version__", "0.0.1"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            assert compiled.surroundings() != expected, name
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert compiled.surroundings() != expected


def test_what_is_not_known_by_its_text_has_no_signature():
    def own(x):
        return x

    assert signature_of((), [own]) is None  # a user's formula may call anything
    assert signature_of((), [np.add]) is None


def test_source_of_finds_the_text_that_inspect_finds():
    functions = {function for workload in WORKLOADS for function in _functions(workload)}
    assert len(functions) > 1000
    for function in functions:
        assert source_of(function) == inspect.getsource(function), function


AGAIN = """
import json, sys
from unittest import mock
from perfgrid.engine.execution import compiled
from perfgrid.engine.execution.compiled import Compiled
from perfgrid.results.evaluate import evaluate
from perfgrid.study.study import Study

def run():
    lowered = []
    compile = Compiled.compile
    with mock.patch.object(Compiled, "compile", lambda *a: lowered.append(1) or compile(*a)):
        found = evaluate(Study.make(**json.loads(sys.argv[1])), small_points=100)
    return len(lowered), found.load()

count, first = run()
again, second = run()
assert first.identical(second.assign_attrs(first.attrs)), "other bits"
with mock.patch.object(compiled, "digest_of_sources", lambda: "edited"):
    edited = [run()[0], run()[0]]
first.to_netcdf(sys.argv[2])
print(json.dumps([count, again, *edited]))
"""


def test_a_second_run_traces_and_compiles_nothing_and_finds_the_same_bits(folder, tmp_path):
    """In the same process and in another one; what is damaged is compiled again."""
    axes = {**content()["axes"], "model": ["llama-2-7b"], "device": ["h100-sxm-80gb"], "recompute": ["full"]}
    few = content(axes=axes, outputs=["step_time"])

    def run(name):
        command = [sys.executable, "-c", AGAIN, json.dumps(few), str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    count, *others = run("a.nc")
    assert count > 5
    assert others == [0, count, 0]  # of other sources: traced once, loaded after that
    assert run("b.nc") == [0, 0, 0, 0]
    with xr.open_dataset(tmp_path / "a.nc") as a, xr.open_dataset(tmp_path / "b.nc") as b:
        assert a.identical(b.assign_attrs(a.attrs))
    for file in (*folder.glob("function-*"), *folder.glob("code-*")):
        file.write_bytes(file.read_bytes()[:-50])
    assert run("d.nc") == [count, 0, count, 0]
    with xr.open_dataset(tmp_path / "a.nc") as a, xr.open_dataset(tmp_path / "d.nc") as d:
        assert a.identical(d.assign_attrs(a.attrs))


def test_functions_of_derivatives_are_kept_too(folder, request):
    """Known apart are elasticities, derivatives and smoothed ones."""
    before = jax.config.values["jax_compilation_cache_dir"]
    request.addfinalizer(lambda: jax.config.update("jax_compilation_cache_dir", before))
    jax.config.update("jax_compilation_cache_dir", str(folder / "jax"))
    axes = {**content()["axes"], "model": ["llama-2-7b"], "device": ["h100-sxm-80gb"], "recompute": ["full"]}
    plan = Study.make(**content(axes=axes, outputs=["exposed_dp_time"])).plan(small_points=200)
    parameters = parameters_of(plan, ["hbm_bandwidth", "scale_up_bandwidth"])

    def run(**how):
        compile = Compiled.compile
        with mock.patch.object(Compiled, "compile", autospec=True, side_effect=compile) as called:
            slopes = Sensitivity(plan, ["exposed_dp_time"], parameters, **how).derivatives()[1]["exposed_dp_time"]
        return called.call_count, slopes

    count, slopes = run()
    assert count > 0
    again, same = run()
    assert again == 0
    np.testing.assert_array_equal(slopes, same)
    for how in ({"relative": False}, {"sharpness": 30.0}):
        first, other = run(**how)
        assert first > 0
        assert not np.array_equal(other, slopes)
        again, same = run(**how)
        assert again == 0
        np.testing.assert_array_equal(other, same)


def test_formulas_are_tried_once_for_the_same_shapes(folder, monkeypatch):
    def planned(**how):
        """As another process does it, which knows what is in the cache alone."""
        attempt = Plan._trial
        resolver._checked.cache_clear()
        nodes._SIGNED.clear()
        planning._TRIALS.clear()
        with mock.patch.object(Plan, "_trial", autospec=True, side_effect=attempt) as tried:
            plan = Study.make(**content()).plan(**how)
        count = sum(call.args[1].host is None for call in tried.call_args_list)  # host formulas declare their shape
        return count, {name: (q.inner, q.flag) for name, q in plan.quantities.items()}

    first, shapes = planned()
    assert first > 440
    assert planned() == (0, shapes)
    other, same = planned(small_points=100)  # more formulas are those of the grid
    assert 0 < other < first
    assert same == shapes
    monkeypatch.setattr(contention, "LEAST_LEFT", 2 * contention.LEAST_LEFT)
    assert planned() == (first, shapes)
