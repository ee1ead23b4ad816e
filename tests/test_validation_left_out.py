"""Errors of left-out units: which records are one unit, fits without it, and the statistics."""

import json

import numpy as np
import pytest

from perfgrid.catalog import load_catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.validation.calibration import NOISE
from perfgrid.validation.groups import part_of
from perfgrid.validation.schema import SHIPPED, UNSEEN, read_records
from tools.validation.dependent import unit_of
from tools.validation.joint import Joint, constants_of, joint_fit, source_weights, without
from tools.validation.left_out import REFUSED, WAYS, LeftOut, Scored, frozen, left_out, show

TABLE = {
    "library_efficiency": {"all": {"entries": ["llm-foundry*"], "bounds": [0.7, 1.0], "prior": [0.94, 0.1]}},
    "step_gap": {"all": {"entries": ["llm-foundry*"], "bounds": [0.003, 0.5], "prior": [0.1, 0.7]}},
}
RNG = np.random.default_rng(2)


@pytest.fixture(scope="module")
def records():
    return [r for r in read_records([SHIPPED, UNSEEN])[0] if r.kind == "training" and r.quantity == "step_time"]


# ---- units ----------------------------------------------------------------------------------------------------------


def test_a_unit_is_a_source_on_one_cluster_with_one_release(records):
    units = {}
    for record in records:
        units.setdefault(record.group, set()).add(unit_of(record))
    assert units["hfbench_1.34G"] == units["hfbench_3.57G"] == {"nanotron-bench"}
    assert units["korthikanti"] == {"korthikanti"}
    assert units["llmfoundry_a100_80gb"].isdisjoint(units["llmfoundry_h100_80gb"])
    assert units["nemo_b200"] == {"nemo_b200 25.02"}
    assert {"nemo_h100 24.07", "nemo_h100 24.09", "nemo_h100 25.02"} < units["nemo_h100"]
    releases = {u.split()[1] for u in units["mbridge_H100"]}
    assert {"25.09", "26.02", "26.06"} < releases
    assert all(len(release) == 5 for release in releases)  # 26.04.01 is 26.04
    shared = units["mlperf_405b_nv"] & units["mlperf_lora_nv"]
    assert "mlperf nvidia 5.1 gb200" in shared  # one release of one system


def test_the_headline_is_of_a_frozen_list_of_steps(records):
    """680 steps of 2026-11-24 and the 104 of MLPerf that are not repeats; each is still a record."""
    steps = {r.id for r in records if r.tier == "core"}
    assert len(frozen()) == 784
    assert frozen() <= steps
    assert sum(name.startswith("mlperf") for name in frozen()) == 104


# ---- the fit --------------------------------------------------------------------------------------------------------


class Smooth(Joint):
    """Steps as the sum of a device's time, which an efficiency divides, and of gaps."""

    def __init__(self, constants, gaps, measured):
        self.constants, self.gaps, self.measured = tuple(constants), gaps, measured
        self.rows, self.applies = [None] * len(gaps), np.ones((len(gaps), 2), bool)

    def of(self, keep):
        return type(self)(self.constants, self.gaps[keep], self.measured[keep])

    def pairs(self, rows, points):
        efficiency, gap = np.exp(points).T
        return np.log((0.9 / efficiency + self.gaps[rows] * gap / 0.2) / self.measured[rows])


UNITS = np.repeat(["a", "b", "c", "d"], 12)
SOURCES = ["one" if unit in "ab" else unit for unit in UNITS]


def smooth(shift=0.0):
    """Rows of an efficiency of 0.85 and gaps of 0.2; those of unit ``c`` take longer by a factor."""
    gaps = RNG.uniform(0, 0.8, len(UNITS))
    measured = (0.9 / 0.85 + gaps) * np.exp(np.where(UNITS == "c", shift, 0.0))
    return Smooth(constants_of(load_catalog(), TABLE).values(), gaps, measured)


def fitted_without(model):
    fit = joint_fit(model, source_weights(SOURCES, np.ones(len(UNITS), bool)))
    return fit, without(model, fit, SOURCES, list(UNITS))


def predicted(model, unit, point):
    """Errors of the rows of a unit."""
    rows = np.flatnonzero(unit == UNITS)
    return model.pairs(rows, np.tile(point, (len(rows), 1)))


@pytest.mark.parametrize("shift", [0.1, 0.3])
def test_a_left_out_unit_has_no_influence_on_its_constants(shift):
    """Longer steps of a unit move all constants but its own; the shared derivatives leave a thirtieth of the shift."""
    plain = smooth()
    moved = Smooth(plain.constants, plain.gaps, plain.measured * np.exp(np.where(UNITS == "c", shift, 0.0)))
    (fit, points), (other, others) = fitted_without(plain), fitted_without(moved)
    assert np.abs(predicted(plain, "c", fit.point) - predicted(plain, "c", other.point)).max() > 0.02
    assert np.abs(predicted(plain, "c", points["a"]) - predicted(plain, "c", others["a"])).max() > 0.02
    assert predicted(plain, "c", others["c"]) == pytest.approx(predicted(plain, "c", points["c"]), abs=shift / 30)


@pytest.mark.parametrize("unit", ["a", "c"])
def test_a_fit_without_a_unit_is_the_full_one(unit):
    """Predictions of the left-out rows by the shared derivatives and by a fit of their own."""
    model, own = smooth(0.3), unit == UNITS
    _, points = fitted_without(model)
    full = joint_fit(model, source_weights(SOURCES, ~own), ~own)
    assert predicted(model, unit, points[unit]) == pytest.approx(predicted(model, unit, full.point), abs=5e-3)


def test_constants_are_found_again_and_sources_weigh_equally():
    fit, _ = fitted_without(smooth())
    assert np.exp(fit.point) == pytest.approx([0.85, 0.2], rel=0.05)
    assert np.all(fit.deviations < [0.1, 0.7])
    weights = source_weights(SOURCES, UNITS != "b")
    by_source = [weights[[s == source for s in SOURCES]].sum() for source in ("one", "c", "d")]
    assert by_source == pytest.approx([by_source[0]] * 3)
    assert not weights[UNITS == "b"].any()


class Valleys(Smooth):
    """Errors that are least at a gap of 0.1, where they start, and nothing at 0.3."""

    def pairs(self, rows, points):
        x = points[:, 1]
        return np.minimum(1.0 + 2 * np.abs(x - np.log(0.1)), 2 * np.abs(x - np.log(0.3))) * 2 * NOISE


def test_the_fit_leaves_a_valley_beside_a_deeper_one():
    plain = smooth()
    fit = joint_fit(Valleys(plain.constants, plain.gaps, plain.measured), source_weights(SOURCES, UNITS == UNITS))
    assert np.exp(fit.point[1]) == pytest.approx(0.3, rel=0.1)


def test_constants_of_a_table():
    found = constants_of(load_catalog(), TABLE)
    assert found["library_efficiency.all"].entries == ("llm-foundry", "llm-foundry-2023")
    assert (found["step_gap.all"].start, found["step_gap.all"].low) == (0.1, 0.003)
    assert constants_of(load_catalog())  # joint.toml
    about = TABLE["step_gap"]["all"]
    for table, told in (
        ({"step_gab": {"all": about}}, "no entry of the catalog has the quantity 'step_gab'; did you mean 'step_gap'"),
        ({"step_gap": {"all": about | {"entries": ["nemmo"]}}}, "no software 'nemmo'; did you mean 'nemo'"),
    ):
        with pytest.raises(PerfgridError, match=told):
            constants_of(load_catalog(), table)


# ---- the statistics -------------------------------------------------------------------------------------------------


def test_sources_weigh_equally_and_a_refused_row_counts(records):
    """Three rows of one source and one refused row of another: weights 1/6 and 1/2."""
    chosen = [r for r in records if r.group == "mbridge_B200"][:3] + [r for r in records if r.group == "korthikanti"][
        :1
    ]
    steps = [Scored(r, r.group, (), dict.fromkeys(WAYS, 0.1 * (-1) ** k * (k + 1))) for k, r in enumerate(chosen)]
    steps[3] = Scored(chosen[3], "korthikanti", ("open",))
    model = smooth()
    fit, points = fitted_without(model)
    whole = LeftOut(steps, list(constants_of(load_catalog(), TABLE)), fit, points, [])
    row = whole.table()[0]
    assert [r["subset"] for r in whole.table() if r["rows"] == 4] == ["all"]
    assert (row["rows"], row["sources"], row["refused"]) == (4, 2, 1)
    assert row["errors"]["left out"] == pytest.approx({"median": 0.3, "p90": REFUSED})
    peers = {(p["subset"], p["tool"]): p for p in whole.peers()}
    assert peers["all", "Calculon"]["sources"] == len({r.group for r in chosen if part_of(r) == "dense models"})
    json.dumps(whole.as_json())


def test_the_tables_of_a_few_records(records, capsys):
    """Two sources take part, one is predicted by the catalog, one row is refused; constants replace the catalog's."""
    groups = ("llmfoundry_a100_80gb", "llmfoundry_h100_80gb", "ibm_fsdp")
    few = [r for group in groups for r in [r for r in records if r.group == group][:5]]
    found = left_out(few, table=TABLE)
    assert set(found.without) == set(groups[:2])
    steps = {s.record.id: s for s in found.steps}
    assert [s.record.id for s in found.steps if s.reasons] == [r.id for r in few if r.missing] != []
    for step in steps.values():
        if step.record.group == "ibm_fsdp" and step.errors:
            assert step.errors["left out"] == step.errors["catalog"] != step.errors["one fit"]
    moved = [abs(s.errors["left out"] - s.errors["one fit"]) for s in steps.values() if s.unit in found.without]
    assert max(moved) > 1e-4
    show(found)
    printed = capsys.readouterr().out
    assert "sources weigh equally" in printed
    assert "library_efficiency.all" in printed
    assert "fitted in the catalog, but not left out: llm-foundry.pointwise_passes" in printed
