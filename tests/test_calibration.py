"""Calibration: constants are found again from steps that they made; what may be fitted; the catalog file it writes."""

import json
from datetime import date

import numpy as np
import pytest

from perfgrid.catalog import load_catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.evidence.calibration import BOUNDS, DAMPED, MOST_CONSTANTS, calibrate, constants_of, damped
from perfgrid.evidence.overlay import overlay, stated
from perfgrid.evidence.schema import record_files
from perfgrid.evidence.validation import validate
from tests.test_bad_input import run

TRUE = {"library_efficiency": 0.80, "pointwise_passes": 2.2}
KEPT = 24  # records, two sources


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Records of LLM Foundry whose step times are those that the true constants predict, one of them a far outlier."""
    files = [f for f in record_files(()) if f.name.startswith("llmfoundry")]
    catalog = load_catalog().with_values({f"software.llm-foundry.{name}": value for name, value in TRUE.items()})
    predicted = {p.record.id: p.predicted for p in validate(files, catalog=catalog).predictions}
    lines = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    path = tmp_path_factory.mktemp("records") / "made.jsonl"
    kept = lines[: KEPT // 2 - 2] + lines[-(KEPT // 2 + 2) :]
    for i, record in enumerate(kept):
        record["value"] = predicted[record["id"]] * (8.0 if i == 0 else 1.0)
        record["reported"], record["derivation"] = record["reported"] | {"quantity": "tokens_per_second"}, "made"
    path.write_text("\n".join(json.dumps(record) for record in kept), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def found(made):
    return calibrate(made, entries=["llm-foundry"], names=list(TRUE))


def test_the_constants_behind_the_steps_are_found_again(found):
    values = {c.name: v for c, v in zip(found.fit.constants, found.fit.values, strict=True)}
    assert values["library_efficiency"] == pytest.approx(TRUE["library_efficiency"], rel=0.03)
    assert values["pointwise_passes"] == pytest.approx(TRUE["pointwise_passes"], rel=0.10)
    assert found.after.median < 0.02 < found.before.median
    assert found.after.p90 < found.before.p90


def test_each_source_is_also_predicted_without_itself(found):
    assert set(found.left_out) == {"llmfoundry_a100_80gb", "llmfoundry_h100_80gb"}
    assert sum(e.rows for e in found.left_out.values()) == len(found.rows) == KEPT
    assert found.unseen.rows == KEPT
    assert found.unseen.median < 0.05


def test_the_file_joins_the_catalog_with_ranges_and_provenance(found, tmp_path):
    path = tmp_path / "fitted.toml"
    path.write_text(overlay(found, load_catalog(), date(2026, 1, 2)), encoding="utf-8")
    entry = load_catalog(path).entry("software", "llm-foundry")
    for constant, value in zip(found.fit.constants, found.fit.values, strict=True):
        detail = entry.details[constant.name]
        assert entry.values[constant.name] == pytest.approx(value, rel=5e-3)
        assert detail.low <= entry.values[constant.name] <= detail.high
        assert (detail.confidence, detail.year) == ("calibrated", 2026)
        assert f"{KEPT} records" in detail.note
    assert entry.values["gradient_size"] == load_catalog().entry("software", "llm-foundry").values["gradient_size"]
    told = stated(found, date(2026, 1, 2))
    spread = [c["deviation"] for c in told["constants"].values()]
    assert np.sqrt(np.diag(told["covariance"])) == pytest.approx(spread)


def test_far_rows_count_less_than_their_square():
    errors = np.linspace(-3, 3, 301)
    residual, slope = damped(errors)
    small = np.abs(errors) < 0.1 * DAMPED
    assert residual[small] == pytest.approx(errors[small], rel=2e-3, abs=1e-9)
    assert residual[-1] ** 2 < 2 * DAMPED * 3
    assert np.all(np.diff(residual) > 0)
    numeric = np.gradient(residual, errors)
    assert slope[5:-5] == pytest.approx(numeric[5:-5], rel=0.05, abs=0.02)


def test_what_may_be_fitted():
    catalog = load_catalog()
    for name in BOUNDS:
        assert catalog.variables[name].of in ("software", "device")
    with pytest.raises(PerfgridError, match="no quantity 'library_eficiency'; did you mean 'library_efficiency'"):
        constants_of(catalog, "software", ["nemo"], ["library_eficiency"])
    with pytest.raises(PerfgridError, match="is no constant to fit"):
        constants_of(catalog, "software", ["nemo"], ["weight_size"])
    with pytest.raises(PerfgridError, match=f"at most {MOST_CONSTANTS['software']} constants"):
        names = ["library_efficiency", "pointwise_passes", "host_launch_time", "dp_overlap", "tp_overlap"]
        constants_of(catalog, "software", ["nemo"], names)
    with pytest.raises(PerfgridError, match="no software 'nemmo'; did you mean 'nemo'"):
        constants_of(catalog, "software", ["nemmo"])


def test_few_rows_carry_no_constant(made, tmp_path):
    few = tmp_path / "few.jsonl"
    few.write_text("\n".join(made.read_text(encoding="utf-8").splitlines()[-9:]), encoding="utf-8")
    with pytest.raises(PerfgridError, match="9 rows inform no constant of llm-foundry"):
        calibrate(few, entries=["llm-foundry"], names=["library_efficiency"])
    with pytest.raises(PerfgridError, match="no record that can be predicted concerns software vllm"):
        calibrate(few, entries=["vllm"], names=["library_efficiency"])


def test_the_command_says_what_is_wrong(monkeypatch, capsys, tmp_path):
    (tmp_path / "there.toml").write_text("", encoding="utf-8")
    cases = {
        (): "either --software NAME or --device NAME",
        ("--software", "nemo", "--device", "b200"): "either --software NAME or --device NAME",
        ("--software", "nemo", "-o", "x.json"): "catalog files end in .toml",
        ("--software", "nemo", "-o", str(tmp_path / "there.toml")): "give --overwrite",
        ("--software", "nemo", "-o", str(tmp_path / "no" / "x.toml")): "there is no folder",
        ("--device", "b2000"): "no device 'b2000'",
    }
    for arguments, sentence in cases.items():
        status, _, err = run(monkeypatch, capsys, "calibrate", *arguments)
        assert status == 2
        assert sentence in err
