"""Calibration: constants are found again from what they made; what may be fitted; the catalog file it writes."""

import json
import re
from datetime import date
from typing import Any, cast

import numpy as np
import pytest

from perfgrid.catalog import load_catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.validation import calibration
from perfgrid.validation.calibration import BOUNDS, DAMPED, MOST_CONSTANTS, PRIORS, calibrate, constants_of, damped, fit
from perfgrid.validation.overlay import calibration_rows, overlay, stated
from perfgrid.validation.schema import record_files
from tests.test_bad_input import run

NAMES = ("library_efficiency", "pointwise_passes")
TRUE = np.log([0.85, 1.8])
RNG = np.random.default_rng(1)


class Straight(calibration.Model):
    """Rows whose logarithms are linear in those of the constants: ln t = base - shares · ln c."""

    def __init__(self, constants, shares, base):
        self.constants, self.shares, self.base = tuple(constants), shares, base
        self.rows, self.measured = [None] * len(base), np.ones(len(base))

    def of(self, keep):
        return Straight(self.constants, self.shares[keep], self.base[keep])

    def logs(self, trials):
        return self.base[:, None] + self.shares @ np.atleast_2d(trials).T


def straight(rows, noise=0.0, outliers=0):
    shares = np.column_stack([-RNG.uniform(0.4, 0.9, rows), RNG.uniform(0.05, 0.4, rows)])
    base = -shares @ TRUE + noise * RNG.standard_normal(rows)
    base[:outliers] -= 2.0
    return Straight(constants_of(load_catalog(), "software", ["nemo"], NAMES), shares, base)


# ---- the fit --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outliers", [0, 300])
def test_constants_are_found_again_in_spite_of_noise_and_outliers(outliers):
    """Many rows outweigh the priors; a tenth of them that took seven times as long moves the values little."""
    found = fit(straight(3000, 0.03, outliers))
    assert np.log(found.values) == pytest.approx(TRUE, abs=0.12 if outliers else 0.06)
    assert np.median(np.abs(found.logs)) < 0.1


def test_the_covariance_is_that_of_the_values():
    """Constants fitted to many drawn data sets scatter as each fit says of itself."""
    fits = [fit(straight(60, calibration.NOISE)) for _ in range(40)]
    scatter = np.std([np.log(f.values) for f in fits], axis=0)
    claimed = np.mean([np.sqrt(np.diag(f.covariance)) for f in fits], axis=0)
    assert np.all(scatter < 1.3 * claimed)
    assert np.all(claimed < [PRIORS[name][1] for name in NAMES])


def test_few_rows_leave_a_constant_near_its_prior_and_bounds_hold():
    few = fit(straight(1))
    start, values = np.log([c.start for c in few.constants]), np.log(few.values)
    assert np.all(np.abs(values - start) < np.abs(TRUE - start))
    far = straight(200)
    far.base = far.base + 3.0
    for value, constant in zip(fit(far).values, far.constants, strict=True):
        assert constant.low <= value <= constant.high


def test_far_rows_count_less_than_their_square():
    errors = np.linspace(-3, 3, 301)
    residual, slope = damped(errors)
    small = np.abs(errors) < 0.1 * DAMPED
    assert residual[small] == pytest.approx(errors[small], rel=2e-3, abs=1e-9)
    assert residual[-1] ** 2 < 2 * DAMPED * 3
    assert np.all(np.diff(residual) > 0)
    assert slope[5:-5] == pytest.approx(np.gradient(residual, errors)[5:-5], rel=0.05, abs=0.02)


# ---- what may be fitted ---------------------------------------------------------------------------------------------


def test_what_may_be_fitted():
    catalog = load_catalog()
    for name in BOUNDS:
        assert catalog.variables[name].of in ("software", "device")
    five = ["library_efficiency", "pointwise_passes", "host_launch_time", "dp_overlap", "tp_overlap"]
    refused = {
        "no quantity 'library_eficiency'; did you mean 'library_efficiency'": ("nemo", ["library_eficiency"]),
        "cannot be fitted; constants that can": ("nemo", ["weight_size"]),
        f"at most {MOST_CONSTANTS['software']} constants": ("nemo", five),
        "no software 'nemmo'; did you mean 'nemo'": ("nemmo", NAMES),
    }
    for sentence, (entry, names) in refused.items():
        with pytest.raises(PerfgridError, match=sentence):
            constants_of(catalog, "software", [entry], names)


def test_a_calibrated_value_is_no_prior_for_itself():
    catalog = load_catalog()
    entry = catalog.entry("software", "nemo")
    for constant in constants_of(catalog, "software", ["nemo"], NAMES):
        assert entry.details[constant.name].confidence == "calibrated"
        assert (constant.start, constant.spread) == PRIORS[constant.name]


@pytest.mark.slow
def test_few_records_carry_no_constant(tmp_path):
    lines = next(f for f in record_files(()) if f.name.startswith("llmfoundry_h100")).read_text().splitlines()
    (tmp_path / "few.jsonl").write_text("\n".join(lines[:9]), encoding="utf-8")
    with pytest.raises(PerfgridError, match="too few rows inform a constant of llm-foundry: 9 found, 10"):
        calibrate(tmp_path / "few.jsonl", entries=["llm-foundry"], names=["library_efficiency"])
    with pytest.raises(PerfgridError, match="uses software vllm; records use llm-foundry"):
        calibrate(tmp_path / "few.jsonl", entries=["vllm"], names=["library_efficiency"])


# ---- the command ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_stack_is_calibrated_as_its_user_does_it(monkeypatch, capsys, tmp_path):
    """18 records of one source: one constant; the file joins the catalog and makes the error smaller."""
    file = next(f for f in record_files(()) if f.name.startswith("bloom"))
    out = tmp_path / "mine.toml"
    arguments = ("--software", "megatron-deepspeed", "--constant", "library_efficiency", "-o", out)
    status, told, _ = run(monkeypatch, capsys, "calibrate", file, *arguments)
    assert status == 0
    assert "megatron-deepspeed.library_efficiency" in told
    detail = load_catalog(out).entry("software", "megatron-deepspeed").details["library_efficiency"]
    assert (detail.confidence, detail.year) == ("calibrated", date.today().year)
    assert "18 records of bloom" in str(detail.note)
    before = tmp_path / "before.toml"  # the same entry with the value that the fit starts from
    begin = f"value = {PRIORS['library_efficiency'][0]}, low = 0.7, high = 1.0"
    before.write_text(re.sub(r"value = [0-9.]+, low = [0-9.]+, high = [0-9.]+", begin, out.read_text()))
    medians = {}
    for name, catalog in {"before": before, "fitted": out}.items():
        status, told, _ = run(monkeypatch, capsys, "validate", file, "--json", "--catalog", catalog)
        assert status == 0
        medians[name] = json.loads(told)["groups"]["bloom"]["median"]
    assert medians["fitted"] < medians["before"]


def test_the_file_continues_the_entry_with_ranges_and_provenance(tmp_path):
    class Row:
        class record:
            group = "mine"

    found = calibration.Calibration(
        fit(straight(40, 0.05)),
        cast(Any, [Row()] * 40),
        calibration.error_of([1.2], [1.0]),
        calibration.error_of([1.1], [1.0]),
    )
    path = tmp_path / "fitted.toml"
    path.write_text(overlay(found, load_catalog(), date(2026, 1, 2)), encoding="utf-8")
    entry, plain = (load_catalog(*p).entry("software", "nemo") for p in ((path,), ()))
    for constant, value in zip(found.fit.constants, found.fit.values, strict=True):
        detail = entry.details[constant.name]
        assert entry.values[constant.name] == pytest.approx(value, rel=5e-3)
        assert float(detail.low or 0) <= float(str(entry.values[constant.name])) <= float(detail.high or 0)
        assert (detail.confidence, detail.year, detail.note) == ("calibrated", 2026, "calibrated on 40 records of mine")
    assert entry.values["gradient_size"] == plain.values["gradient_size"]
    told = stated(found, date(2026, 1, 2))
    assert [c["deviation"] for c in told["constants"].values()] == pytest.approx(np.sqrt(np.diag(told["covariance"])))
    assert [row[0] for row in calibration_rows({"nemo": told})] == [f"nemo.{name}" for name in NAMES]


def test_the_command_says_what_is_wrong(monkeypatch, capsys, tmp_path):
    (tmp_path / "there.toml").write_text("", encoding="utf-8")
    cases = {
        (): "give files with records of your cluster, or --software NAME or --device NAME",
        ("--software", "nemo", "--device", "b200"): "either --software NAME or --device NAME",
        ("--constant", "step_gap"): "--constant needs --software NAME or --device NAME",
        ("--software", "nemo", "-o", "x.json"): "the file name must end in .toml",
        ("--software", "nemo", "-o", str(tmp_path / "there.toml")): "give --overwrite",
        ("--software", "nemo", "-o", str(tmp_path / "no" / "x.toml")): "there is no folder",
        ("--device", "b2000"): "no device 'b2000'",
    }
    for arguments, sentence in cases.items():
        status, _, err = run(monkeypatch, capsys, "calibrate", *arguments)
        assert status == 2
        assert sentence in err
