"""The commands as a user runs them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from perfgrid.analysis.published_errors import published_errors
from perfgrid.formulas import INNER
from perfgrid.text.values import quantity_value
from tests.paths import EVERY_STUDY
from tests.test_bad_input import run, write

STUDIES = Path(__file__).parents[1] / "studies"

ROOT = Path(__file__).parents[1]
MANY = [1 + i / 32 for i in range(32)]  # more points than are printed one by one


def test_run_prints_best_designs_reasons_and_saves(monkeypatch, capsys, tmp_path):
    path = write(tmp_path, top='best = { over = "parallelism", minimize = "step_time" }', axes="microbatch = [1, 64]")
    status, out, _ = run(monkeypatch, capsys, "run", path, "-o", tmp_path / "r.nc")
    assert status == 0
    lines = out.splitlines()
    assert "best by least step_time" in lines[0]
    assert "devices = 16, model = llama-2-7b" in lines[1]  # the same in every row
    start, header = next((i, line.split()) for i, line in enumerate(lines) if "parallelism" in line)
    assert header[:3] == ["micro", "batch", "parallelism"]
    assert header[-2:] == ["bound", "by"]
    assert "%" in lines[start + 1]  # what bounds it, with its share
    assert any("infeasible" in line for line in lines)
    assert any("do not divide the global batch [batch_divides]" in line for line in lines)
    with xr.open_dataset(tmp_path / "r.nc") as ds:
        assert ds.sizes["parallelism"] == 6


def test_every_design_is_shown_though_an_output_does_not_vary(monkeypatch, capsys):
    """Of the bill of materials memory costs the same with every formula of yield."""
    status, out, err = run(monkeypatch, capsys, "run", ROOT / "studies" / "bill_of_materials.toml")
    assert status == 0, err
    rows = [line.split()[:2] for line in out.splitlines()[2:] if line.startswith(("negative_binomial", "harvested"))]
    assert len(rows) == len({tuple(row) for row in rows}) == 16


@pytest.mark.parametrize(("factors", "rows"), [(12, 72), (32, 0)])
def test_a_small_study_prints_every_design_whether_it_is_kept_or_not(monkeypatch, capsys, tmp_path, factors, rows):
    path = write(tmp_path, axes=f"hbm_bandwidth = {{ scale = {MANY[:factors]} }}")
    printed = {}
    for extra in ((), ("-o", tmp_path / "kept.nc")):
        status, out, err = run(monkeypatch, capsys, "run", path, "--rows", *extra)
        assert status == 0, err
        lines = out.splitlines()
        printed[extra] = [line for line in lines if "every design" in line or re.search(r"tp\d+\.pp\d", line)]
        assert len(printed[extra]) == (rows + 1 if rows else 0)
    assert lines[-1].startswith(f"saved {tmp_path / 'kept.nc'} (")
    assert len({tuple(found) for found in printed.values()}) == 1


def test_run_as_json(monkeypatch, capsys, tmp_path):
    path = write(tmp_path, top='best = { over = "parallelism", minimize = "step_time" }')
    status, out, _ = run(monkeypatch, capsys, "run", path, "--json")
    data = json.loads(out)
    assert status == 0
    assert data["points"] == 6
    assert data["best"][0]["group"]["devices"] == 16
    assert data["best"][0]["outputs"]["step_time"] > 0
    assert "bound_by" in data["best"][0]


def test_streaming(monkeypatch, capsys, tmp_path):
    path = write(tmp_path)
    status, out, _ = run(monkeypatch, capsys, "run", path, "--stream", "-o", tmp_path / "s.nc")
    assert status == 0
    assert "saved" in out
    status, _, err = run(monkeypatch, capsys, "run", path, "--stream")
    assert status == 2
    assert "needs -o FILE.nc" in err


def test_plan_shows_columns_before_any_work(monkeypatch, capsys, tmp_path):
    path = write(tmp_path, axes="microbatch = [1, 2]")
    status, out, _ = run(monkeypatch, capsys, "plan", path, "--all", "--wide")
    assert status == 0
    row = next(line for line in out.splitlines() if line.split()[:1] == ["gemm_rows"])
    assert re.search(r"parallelism: tp(;|$)", row)  # the distinct tp, not the layouts
    assert "phase x product" in row
    assert "12 points (model 1 x device 1 x topology 1 x microbatch 2 x parallelism 6)" in out
    status, short, _ = run(monkeypatch, capsys, "plan", path, "--wide")
    assert all(line.startswith("* ") for line in short.splitlines()[1:-2])  # results alone
    assert len(short) < len(out) / 5
    status, out, _ = run(monkeypatch, capsys, "plan", path, "--json")
    assert json.loads(out)["points"] == 12


@pytest.mark.parametrize("study", EVERY_STUDY, ids=lambda path: path.stem)
def test_every_study_can_be_planned(monkeypatch, capsys, study):
    status, out, _ = run(monkeypatch, capsys, "plan", study)
    assert status == 0
    assert " quantities, " in " ".join(out.splitlines()[-2:])


def test_explain_from_study_and_file(monkeypatch, capsys, tmp_path):
    path = write(tmp_path)
    run(monkeypatch, capsys, "run", path, "-o", tmp_path / "r.nc")
    at = ("--at", "parallelism=tp2.pp2.dp4")
    status, from_study, _ = run(monkeypatch, capsys, "explain", path, "step_time", *at)
    assert status == 0
    status, from_file, _ = run(monkeypatch, capsys, "explain", tmp_path / "r.nc", "step_time", *at)
    assert status == 0
    assert from_file == from_study
    assert from_study.splitlines()[-1].startswith("% per 1 % more: ")
    _, shallow, _ = run(monkeypatch, capsys, "explain", path, "step_time", "--depth", "1", *at)
    assert len(shallow.splitlines()) < 19
    _, cited, _ = run(monkeypatch, capsys, "explain", path, "step_time", "--sources", *at)
    assert "[guo2025] step_time(microbatches, slowest_stage_time" in cited
    _, every, _ = run(monkeypatch, capsys, "explain", path, "step_time", "--all", *at)
    assert "williams2009roofline" in every
    assert len(every.splitlines()) > 500
    _, text, _ = run(monkeypatch, capsys, "explain", path, "step_time", "--json", *at)
    found = json.loads(text)
    assert found["point"]["parallelism"] == "tp2.pp2.dp4"
    assert (found["story"]["unit"], found["story"]["source"]) == ("s", "guo2025")
    below = found["story"]["below"]
    assert sum(p["value"] for p in below) + found["story"].get("folded", {}).get("value", 0.0) == pytest.approx(
        found["story"]["value"]
    )
    assert found["elasticities"]["peak_bf16_rate"] < 0
    status, _, err = run(monkeypatch, capsys, "explain", path, "step_time", "--all", "--json", *at)
    assert (status, "give it without --sources and --json" in err) == (2, True)
    replicated = ("--set", "workload_parameters.zero=0", "--at", "parallelism=tp1.pp1.dp16")  # 18 bytes per parameter
    _, out, _ = run(monkeypatch, capsys, "explain", path, "step_time", *replicated)
    assert "infeasible (exceeds): weights, optimizer state and activations exceed" in out


def test_formulas_and_graph(monkeypatch, capsys):
    status, out, _ = run(monkeypatch, capsys, "formulas")
    assert status == 0
    assert "step_time" in out
    _, bill, _ = run(monkeypatch, capsys, "formulas", "--workload", "manufacturing", "--wide")
    assert re.search(r"^die_area_made_again +mm2 ", bill, re.M)
    _, graph, _ = run(monkeypatch, capsys, "formulas", "--graph")
    assert graph.startswith("digraph perfgrid {")
    assert '"bubble_time" -> "step_time";' in graph
    _, listed, _ = run(monkeypatch, capsys, "formulas", "--json")
    assert {"quantity", "unit", "source", "arguments"} <= set(json.loads(listed)[0])
    _, reasons, _ = run(monkeypatch, capsys, "formulas", "--constraints", "--workload", "inference")
    assert re.search(r"^fits_memory +exceeds +weights, key-value cache and activations exceed", reasons, re.M)
    assert re.search(r"^kv_heads_divide +illegal ", reasons, re.M)
    assert "decode_time" not in reasons


def test_text_in_square_brackets_is_printed_as_it_is(monkeypatch, capsys, tmp_path):
    path = write(tmp_path, top='title = "A [bold] study"\nbest = { over = "parallelism", minimize = "step_time" }')
    path.write_text(path.read_text().replace('title = "small"\n', ""))
    _, out, _ = run(monkeypatch, capsys, "run", path, "-o", tmp_path / "[red].nc")
    assert "A [bold] study: best by least step_time" in out
    assert f"saved {tmp_path / '[red].nc'} (" in out
    _, out, _ = run(monkeypatch, capsys, "run", write(tmp_path, axes=f"hbm_bandwidth = {{ scale = {MANY} }}"))
    assert "nothing is saved: give -o FILE.nc to save the result, or [best] in the study" in out


def test_options_that_exclude_each_other(monkeypatch, capsys):
    status, out, err = run(monkeypatch, capsys, "formulas", "--graph", "--json")
    assert (status, out) == (2, "")
    assert "--graph prints Graphviz DOT and --json JSON: give one of them" in err


@pytest.mark.slow
def test_python_m_perfgrid_is_the_same():
    for command in (["--version"], ["plan", "studies/papers/korthikanti.toml", "--json"]):
        done = subprocess.run([sys.executable, "-m", "perfgrid", *command], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout


def test_values_that_read_alike_are_written_once():
    one_each = np.arange(1.0, 1.0 + len(INNER.labels["phase"]))
    for values, text in (
        (np.ones(16), "1 (every load)"),
        (
            np.repeat([0.0, 0.25, 0.75, 0.0], [10, 1, 1, 4]),
            "{node_1 to node_10: 0, node_11: 0.25, node_12: 0.75, node_13 to node_16: 0}",
        ),
        (np.repeat([1.0, 2.0], [14, 2]), "{node_1 to node_14: 1, node_15: 2, node_16: 2}"),
    ):
        along = np.reshape(values, [16 if axis == "load" else 1 for axis in INNER.names])
        assert quantity_value(along, "1", INNER) == text
    along = np.reshape(one_each, [len(one_each) if axis == "phase" else 1 for axis in INNER.names])
    assert quantity_value(along, "1", INNER).count(":") == len(one_each)


def test_a_store_is_no_study_and_serving_says_how_far_it_may_be_off(tmp_path, monkeypatch, capsys):
    (tmp_path / "x.zarr").mkdir()
    status, _, err = run(monkeypatch, capsys, "best", tmp_path / "x.zarr")
    assert status == 2
    assert "it is a folder, such as a store of results, and no file" in err
    status, out, _ = run(monkeypatch, capsys, "run", STUDIES / "chat_service.toml")
    told = published_errors()
    half = np.exp(told["blind: inference: mixtures of experts"]["median"])
    assert status == 0
    assert f"{half:.2f} (mixtures of experts) of the prediction (docs/accuracy.md)" in " ".join(out.split())
