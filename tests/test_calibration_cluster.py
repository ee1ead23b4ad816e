"""Calibration of your own cluster: known clusters are found again, bounds are named, the file is used."""

import json
import re
from datetime import date

import numpy as np
import pytest

from benchmarks import calibration as drawn
from perfgrid.catalog import load_catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.validation.cluster import calibrate_cluster, folds_of, records_of
from perfgrid.validation.cluster_file import cluster_file
from perfgrid.validation.cluster_rows import PACE, ClusterRows
from perfgrid.validation.schema import SHIPPED
from tests.test_bad_input import GOOD, PARTS, run

DEVICE = "h100-sxm-80gb"


def rates_at(share, catalog):
    """Settings with which the chip reaches a share of its rates."""
    values = catalog.entry("device", DEVICE).values
    return {f"device.{DEVICE}.{name}": share * float(str(values[name])) for name in drawn.ON_CHIP}


def shipped(name, catalog, on=None):
    return records_of([SHIPPED / f"{name}.jsonl"], catalog, (), on)


def as_on(catalog, records):
    """The records with the times of a cluster that the catalog describes."""
    known = ClusterRows(catalog, records)
    rows = np.arange(len(known.rows))
    logs = known.evaluated(rows, np.zeros((len(rows), 0)), (), False)[0]
    return drawn.measured([row.record for row in known.rows], known.measured * np.exp(logs))


def written(path, records):
    path.write_text("".join(f"{record.model_dump_json()}\n" for record in records), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def steps():
    """Measured steps of designs with pipelines, tensor parallelism and several nodes."""
    catalog, rng = load_catalog(), np.random.default_rng(5)
    return ClusterRows(catalog, drawn.layouts(catalog, rng, (32, 64), 6))


def test_slopes_are_those_of_differences_and_the_pace_is_a_constant_factor(steps):
    names, rows = tuple(steps.factors), np.arange(len(steps.rows))
    point = np.random.default_rng(1).uniform(-0.3, 0.1, len(names))
    points = np.tile(point, (len(rows), 1))
    errors, slopes = steps.evaluated(rows, points, names)
    for direction in np.random.default_rng(2).uniform(-1, 1, (2, len(names))):
        apart = steps.evaluated(rows, points + 1e-5 * direction, names, False)[0]
        assert (apart - errors) / 1e-5 == pytest.approx(slopes @ direction, abs=1e-4)
    plain, slower = (steps.evaluated(rows, np.full((len(rows), 1), np.log(f)), (PACE,), False)[0] for f in (1.0, 0.8))
    assert slower - plain == pytest.approx(np.full(len(rows), np.log(1.25)), abs=1e-6)


def test_layouts_stay_together(steps):
    folds = folds_of(steps)
    assert len(set(folds)) > 2
    for first in (2, 6):
        records = [row.record for row in steps.rows[:first]]
        twice = ClusterRows(steps.catalog, repeated(records, 3))
        assert folds_of(twice).tolist() == [i for i in range(first) for _ in range(3)]


def repeated(records, times):
    return [r.model_copy(update={"id": f"{r.id}-{i}"}) for r in records for i in range(times)]


def test_one_layout_has_no_held_out_error(monkeypatch, capsys, tmp_path, steps):
    """Its repetitions give the constant factor and nothing else."""
    records = repeated([steps.rows[0].record], 3)
    time = steps.measured[0] * np.exp(steps.evaluated(np.arange(1), np.zeros((1, 0)), (), False)[0][0])
    slower = written(tmp_path / "one.jsonl", drawn.measured(records, np.full(3, 1.5 * time)))
    status, printed, _ = run(monkeypatch, capsys, "calibrate", slower, "-o", tmp_path / "mine.toml")
    assert status == 0
    assert re.search(r"constant factor \* +- +- +0\.00", printed)
    assert not re.search("(?m)^device", printed)
    assert "chosen: constant factor: all rows are of one layout, so that nothing is held out" in printed
    assert (
        "held-out |ln(predicted / measured)|: none, all rows are of one layout." in (tmp_path / "mine.toml").read_text()
    )
    (row,) = re.findall(r"(?m)^all rates; times / it.*$", printed)
    assert float(row.split()[-4]) == pytest.approx(1 / 1.5, rel=0.01)


def test_infeasible_rows_are_left_out(steps):
    """As `validate` does; a step that exceeds the memory by prediction was measured all the same."""
    catalog, workload = steps.catalog, {"sequence_length": 4096, "global_batch": 64, "microbatch": 1}
    plan = {"pp": 1, "cp": 1, "recompute": "none"}
    good = drawn.record(catalog, 1, "llama-3.1-8b", 32, {**plan, "tp": 4, "dp": 8, "zero": 1}, **workload)
    third = drawn.record(catalog, 2, "llama-3.1-8b", 48, {**plan, "tp": 3, "dp": 16, "zero": 1}, **workload)
    large = drawn.record(catalog, 3, "llama-3.1-70b", 8, {**plan, "tp": 1, "dp": 8, "zero": 0}, **workload)
    known = ClusterRows(catalog, [good, third, large])
    assert [row.record.id for row in known.rows] == ["drawn-1", "drawn-3"]
    assert known.exceeding == ["drawn-3"]
    assert known.unpredicted["drawn-2"][0] == "not modelled: tensor-parallel ranks do not divide the attention heads"


def test_numbers_that_are_not_finite_are_refused(steps, monkeypatch):
    for what, numbers in {"prediction": (np.inf, 0.0), "derivatives": (0.0, np.nan)}.items():
        monkeypatch.setattr(steps, "_at", lambda *_, n=numbers: (np.array([0.0, n[0]]), np.array([[0.0], [n[1]]])))
        with pytest.raises(PerfgridError, match=f"^drawn-[0-9]*: the {what} of step_time is not finite: leave"):
            steps.evaluated(np.arange(2), np.zeros((2, 1)), (PACE,))


@pytest.mark.slow
def test_a_drawn_cluster_is_found_again():
    """12 steps with 5 % noise: other layouts on other numbers of devices are predicted, better than by a factor."""
    found = drawn.synthetic(101, 16)
    assert found.calibrated < 0.06 < found.catalog
    assert found.calibrated <= found.constant
    assert float(str(found.covered)) > 0.7


@pytest.mark.slow
def test_drawn_and_uniformly_slower_clusters():
    found = [drawn.synthetic(seed) for seed in range(200, 206)]
    assert np.mean([f.calibrated for f in found]) < 0.06
    assert np.mean([f.calibrated for f in found]) < np.mean([f.constant for f in found])
    assert np.mean([drawn.uniform(seed).calibrated for seed in range(200, 203)]) < 0.05


def test_products_alone_calibrate_the_device(monkeypatch, capsys, tmp_path):
    """A scan of products of a device with three quarters of its rates: three rows are enough, nothing else moves."""
    catalog = load_catalog()
    rates = rates_at(0.75, catalog)
    records = as_on(catalog.with_values(rates), shipped("azure_gemm", catalog, DEVICE))
    file = written(tmp_path / "gemm.jsonl", records[::3])
    status, printed, err = run(monkeypatch, capsys, "calibrate", file, "-o", tmp_path / "mine.toml")
    assert (status, err) == (0, "")
    assert "next: perfgrid train MODEL --on h100-sxm-80gb" in printed
    mine = load_catalog(tmp_path / "mine.toml")
    for name, value in rates.items():
        assert mine.entry("device", DEVICE).values[name.rpartition(".")[2]] == pytest.approx(value, rel=0.06)
    detail = mine.entry("device", DEVICE).details["matrix_efficiency"]
    assert detail.confidence == "calibrated"
    assert float(str(detail.low)) < 0.75 * 0.803 < float(str(detail.high))
    for table in ("topology", "software"):
        assert mine.tables[table] == catalog.tables[table]
    assert mine.entry("device", DEVICE).values["scale_out_efficiency"] == 0.94


def test_collectives_alone_calibrate_the_network(tmp_path):
    """Between two nodes the network limits only where it is slow: rows do not respond to it at the catalog's values."""
    catalog = load_catalog()
    slow = catalog.with_values({f"device.{DEVICE}.scale_out_efficiency": 0.3})
    found = calibrate_cluster(ClusterRows(catalog, as_on(slow, shipped("nccl_efa", catalog))))
    (tmp_path / "mine.toml").write_text(cluster_file(found, date(2026, 1, 2)), encoding="utf-8")
    mine = load_catalog(tmp_path / "mine.toml").entry("device", DEVICE)
    assert mine.values["scale_out_efficiency"] == pytest.approx(0.3, rel=0.05)
    assert mine.values["matrix_efficiency"] == catalog.entry("device", DEVICE).values["matrix_efficiency"]


def test_a_bound_is_named(monkeypatch, capsys, tmp_path):
    """Products at a tenth of the rates are no slow device."""
    catalog = load_catalog()
    rates = rates_at(0.1, catalog)
    records = as_on(catalog.with_values(rates), shipped("azure_gemm", catalog, DEVICE))
    status, printed, _ = run(monkeypatch, capsys, "calibrate", written(tmp_path / "gemm.jsonl", records))
    assert status == 0
    assert "matrix_efficiency is at its bound 0.2: the measurements ask for less; check " in printed
    assert "give -o mine.toml" in printed


def test_what_calibrate_refuses(monkeypatch, capsys, tmp_path):
    catalog = load_catalog()
    two = written(tmp_path / "two.jsonl", shipped("azure_gemm", catalog)[:2])
    cases = {
        (): "give files with records of your cluster",
        (SHIPPED / "azure_gemm.jsonl",): "the records are of 4 devices",
        (two,): "2 of the records can be predicted, and 3 are needed",
        (two, "--only", "h100-sxm-80g"): "no record is of device 'h100-sxm-80g'",
        (two, "--constant", "step_gap"): "--constant needs --software NAME or --device NAME",
        (two, "--software", "nemo", "--only", DEVICE): "give it without --software and --device",
    }
    for arguments, sentence in cases.items():
        status, _, err = run(monkeypatch, capsys, "calibrate", *arguments)
        assert (status, err.count("\n")) == (2, 1)
        assert sentence in err


@pytest.mark.slow
def test_the_file_of_a_cluster_answers_questions(monkeypatch, capsys, tmp_path, steps):
    """The command as its user runs it; the stack that was measured is taken without being named."""
    records = [row.record for row in steps.rows]
    slower = drawn.measured(records, 1.5 * drawn.times_of(steps.catalog, records))
    file, mine = written(tmp_path / "mine.jsonl", slower), tmp_path / "mine.toml"
    status, printed, _ = run(monkeypatch, capsys, "calibrate", file, "-o", mine)
    assert status == 0
    assert re.search(r"constant factor \* +0\.00\d", printed)
    assert "all rates; times / it" in printed
    assert drawn.times_of(load_catalog(mine), records) == pytest.approx([r.value for r in slower], rel=5e-3)
    assert re.search("next: perfgrid train .* --on h100-sxm-80gb --devices .* --catalog", printed)
    device = load_catalog(mine).entry("device", DEVICE)
    assert (device.values["usual_topology"], device.values["training_software"]) == (drawn.TOPOLOGY, drawn.SOFTWARE)


@pytest.mark.slow
def test_the_next_command_runs(monkeypatch, capsys, tmp_path, steps):
    """Calibrate, then the command that it prints; the measured stack is taken without being named."""
    records = [row.record for row in steps.rows]
    file = written(tmp_path / "mine.jsonl", drawn.measured(records, drawn.times_of(steps.catalog, records)))
    _, printed, _ = run(monkeypatch, capsys, "calibrate", file, "-o", tmp_path / "mine.toml")
    (command,) = re.findall("next: perfgrid (.*)", printed)
    status, printed, _ = run(monkeypatch, capsys, *command.split())
    assert status == 0
    assert "Assumed: megatron-core" in printed


def test_a_catalog_file_of_several_kinds(monkeypatch, capsys, tmp_path):
    text = """
[device.h100-sxm-80gb]
extends = "h100-sxm-80gb"
hbm_efficiency = 0.5

[software.nemo]
extends = "nemo"
step_gap = "1 s"
"""
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    catalog = load_catalog(tmp_path / "mine.toml")
    assert catalog.entry("device", DEVICE).values["hbm_efficiency"] == 0.5
    assert catalog.entry("software", "nemo").values["step_gap"] == 1
    (tmp_path / "wrong.toml").write_text(text.replace("[software.", "[softwares."), encoding="utf-8")
    with pytest.raises(PerfgridError, match=r"kind at the top must be one of .* found None"):
        load_catalog(tmp_path / "wrong.toml")


@pytest.mark.slow
def test_explain_and_best_take_a_catalog(monkeypatch, capsys, tmp_path):
    text = '[device.h100-sxm-80gb]\nextends = "h100-sxm-80gb"\nhbm_efficiency = 0.5\n'
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    (tmp_path / "study.toml").write_text(GOOD.format(**PARTS), encoding="utf-8")
    more = ("--catalog", tmp_path / "mine.toml")
    at = ("explain", tmp_path / "study.toml", "step_time", "--json", "--at", "best")
    values = [json.loads(run(monkeypatch, capsys, *at, *own)[1])["story"]["value"] for own in ((), more)]
    assert values[0] < values[1]
    least = ("best", tmp_path / "study.toml", "--minimize", "step_time", "--over", "parallelism", "--json")
    status, printed, _ = run(monkeypatch, capsys, *least, *more)
    assert status == 0
    assert json.loads(printed)["best"]
    status, _, err = run(monkeypatch, capsys, "explain", tmp_path / "result.nc", "step_time", *more)
    assert (status, "--catalog applies to a study" in err) == (2, True)
