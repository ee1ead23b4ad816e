"""Collectives on their own and backward passes of expert layers, by another way than records take."""

import json

import numpy as np
import pytest

from perfgrid import collective_time, evaluate
from perfgrid.study.study import Study
from perfgrid.validation.design import Designs
from perfgrid.validation.schema import SHIPPED, UNSEEN, read_records
from perfgrid.validation.validate import validate
from tests.network.test_measured import topology

LARGEST = 17179869184
INSIDE = {"topology": topology("hgx-h100-400g", "h200-sxm-141gb", 1), "size": LARGEST}
BETWEEN = {"topology": topology("hgx-h100-efa-400g", "h100-sxm-80gb", 2), "size": LARGEST}


def of(path, identity, **blocks):
    """The comparison of one record of a file with some fields of some blocks replaced."""
    line = next(r for x in path.read_text().splitlines() if (r := json.loads(x))["id"] == identity)
    return line | {name: line[name] | fields if isinstance(fields, dict) else fields for name, fields in blocks.items()}


@pytest.fixture
def compared(tmp_path):
    def validated(*lines):
        file = tmp_path / "mine.jsonl"
        file.write_text("\n".join(json.dumps(line | {"id": str(i)}) for i, line in enumerate(lines)))
        return validate(file)

    return validated


@pytest.mark.parametrize(
    ("file", "identity", "case"),
    [
        (
            "nccl_8xh200",
            "nccl-16g-8xh200-all_gather",
            {"collective": "all_gather", "algorithm": "library_ring", **INSIDE},
        ),
        ("nccl_8xh200", "nccl-ar-8xh200-17179869184", {"collective": "all_reduce", "algorithm": "library", **INSIDE}),
        (
            "nccl_efa",
            "nccl-ar-16xh100-efa-17179869184",
            {"collective": "all_reduce", "algorithm": "library", **BETWEEN},
        ),
    ],
)
def test_a_collective_takes_what_the_calculator_says(compared, file, identity, case):
    (found,) = compared(of(SHIPPED / f"{file}.jsonl", identity)).predictions
    assert found.predicted == pytest.approx(collective_time(**case), rel=1e-9)
    assert (found.record.kind, found.software) == ("collective", "")


def test_a_bandwidth_is_what_a_ring_sends_over_every_link(compared):
    azure = SHIPPED / "nccl_azure.jsonl"
    printed = of(azure, "azure-ar-4xgb200-8589934592")
    timed = printed | {"quantity": "collective_time", "value": 1.0}
    rate, time = (p.predicted for p in compared(printed, timed).predictions)
    assert rate == pytest.approx(1.5 * 8589934592 / time)
    (refused,) = compared(of(azure, "azure-ar-8xmi300x")).predictions
    assert refused.reasons == ("a value of the catalog is this figure: an input, not evidence",)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ({"collective": None}, "a record of kind collective needs the block 'collective'"),
        ({"collective": {"op": "gather"}}, "collective.op: input should be 'all_reduce'"),
        ({"collective": {"size": None}}, "the source leaves open: collective.size"),
        ({"collective": {"op": "moe_dispatch"}}, "not modelled: exchanges with experts on their own"),
        ({"collective": {"algorithm": "swing"}}, "not modelled: this fabric or library has no such collective"),
        ({"collective": {"algorithm": "quick"}}, "field algorithm"),
    ],
)
def test_what_a_collective_lacks_is_reported(compared, blocks, message):
    file, identity = SHIPPED / "nccl_8xh200.jsonl", "nccl-ar-8xh200-17179869184"
    found = compared(of(file, identity), of(file, identity, **blocks))
    (reason,) = [p.reason for p in found.problems] + [r for p in found.predictions for r in p.reasons]
    assert message in reason


def test_gradients_of_grouped_products_are_phases_of_the_formula(compared):
    file, identity = UNSEEN / "expert_backward.jsonl", "primus-gateup-4096-wgrad-triton"
    passes = ("forward", "input_gradient", "weight_gradient", "backward", "forward_backward")
    turned = of(file, identity, kernel={"direction": "forward", "n": 7168, "k": 4096})
    found = compared(*(of(file, identity, kernel={"direction": d}) for d in passes), turned)
    *ahead, both, whole, swapped = (p.predicted or 0.0 for p in found.predictions)
    ((study, rows),) = found.studies
    axis = Designs(study.catalog, rows).axis()
    made = Study.make(study.catalog, axes={"row": axis}, outputs=["grouped_time"], dtype="float64")
    time = evaluate(made).grouped_time.isel(row=0).sel(expert_product="expert_up").sum("resource")
    assert ahead == pytest.approx(time.sel(phase=list(passes[:3])).values.tolist(), rel=1e-9)
    assert (both, whole) == pytest.approx((ahead[1] + ahead[2], sum(ahead)))
    assert swapped == pytest.approx(ahead[1], rel=1e-9)  # dX = dY·W' is a product of the turned shape


def test_a_layer_of_experts_is_its_products_and_its_streams(compared):
    file, identity = UNSEEN / "expert_backward.jsonl", "liger-qwen3-30b-h100-forward-backward"
    passes = ("forward", "backward", "forward_backward")
    found = compared(*(of(file, identity, kernel={"direction": d}) for d in passes)).predictions
    forward, backward, whole = (p.predicted or 0.0 for p in found)
    assert whole == pytest.approx(forward + backward)
    assert 1.8 < backward / forward < 2.4
    assert all(p.done / (p.predicted or 1.0) < 989e12 for p in found)
    assert np.ptp([p.done / n for p, n in zip(found, (1, 2, 3), strict=True)]) == 0


def test_inputs_are_no_evidence_and_nothing_unseen_is_fitted():
    records = [r for folder in (SHIPPED, UNSEEN) for r in read_records([folder])[0] if r.kind == "collective"]
    assert len(records) > 300
    assert {r.share for r in records if "input_not_prediction" in r.missing} == {"looked at"}
