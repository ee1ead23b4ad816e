"""Measurements of one device: their records, and intercepts of steps that differ in the number of microbatches."""

import json
from pathlib import Path

import pytest

from perfgrid.validation.schema import UNSEEN
from perfgrid.validation.validate import validate
from tools.probe.records import main
from tools.validation.intercepts import line, lines, slots

ROOT = Path(__file__).parents[1]
SHIPPED_FILE = UNSEEN / "pytorch_h100.jsonl"


@pytest.mark.parametrize(("name", "device"), [("h100", "h100-sxm-80gb"), ("h200", "h200-sxm-141gb")])
def test_the_shipped_records_are_those_of_the_measurements(name, device, tmp_path):
    target = tmp_path / "records.jsonl"
    main(str(ROOT / "tools" / "probe" / f"{name}.jsonl"), device, f"pytorch_{name}", str(target))
    shipped = [json.loads(text) for text in (UNSEEN / f"pytorch_{name}.jsonl").read_text().splitlines()]
    for record in shipped:
        record.pop("share", None)
    assert [json.loads(text) for text in target.read_text().splitlines()] == shipped


def test_a_line_has_the_least_relative_errors():
    assert line([1, 2, 4, 8], [3.0, 5.0, 9.0, 17.0]) == pytest.approx((2.0, 1.0))
    slope, intercept = line([1, 2], [1.0, 1.5])
    assert (slope, intercept) == pytest.approx((0.5, 0.5))


def test_a_plain_loop_has_its_optimizer_between_steps_and_nothing_else():
    found = lines(validate([SHIPPED_FILE]).predictions)
    assert len(found) == 6
    for one in found:
        assert len(one.records) == 4
        assert abs(one.unexplained) < 0.005, one
        assert one.slope == pytest.approx(one.predicted_slope, rel=0.15)


def test_steps_of_one_pipeline_count_its_empty_slots():
    predictions = validate([SHIPPED_FILE]).predictions
    p = next(p for p in predictions if p.record.kind == "training")
    assert p.record.plan
    plan = p.record.plan.model_copy(update={"pp": 4, "chunks": 2})
    one = slots(p.record)
    assert one
    assert slots(p.record.model_copy(update={"plan": plan})) == one + 3 / 2
    assert slots(p.record.model_copy(update={"plan": None})) is None
