"""Records of all kinds in one file, in any order: each is predicted as it is alone."""

import json
import random
from collections import defaultdict
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from perfgrid.validation import schema
from perfgrid.validation.validate import validate
from tests.test_bad_input import run

PACKAGE = Path(schema.__file__).parent


@cache
def kinds():
    """Lines of the shipped records by what decides how they are predicted: kind, batch rule, mixture, operation."""
    found = defaultdict(list)
    for path in sorted([*PACKAGE.glob("records/*.jsonl"), *PACKAGE.glob("unseen/*.jsonl")]):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            model = record.get("model") or {}
            pools = "silicon_disagg" in record["group"]
            rule, operation = (record.get("workload") or {}).get("batch_rule"), (record.get("kernel") or {}).get("op")
            found[record["kind"], rule, bool(model.get("moe")), bool(model.get("mixer")), operation, pools].append(line)
    return found


def compared(lines, folder):
    whole = folder / "all.jsonl"
    whole.write_text("\n".join(lines))
    together = {p.record.id: p for p in validate(whole, bulk=True).predictions}
    assert len(together) == len(lines)
    predicted = 0
    for line in lines:
        alone = folder / "one.jsonl"
        alone.write_text(line)
        (own,) = validate(alone, bulk=True).predictions
        other = together[own.record.id]
        assert other.reasons == own.reasons
        if own.predicted is not None and other.predicted is not None:
            np.testing.assert_allclose(other.predicted, own.predicted, rtol=1e-6, err_msg=own.record.id)
            assert other.fits == own.fits
            np.testing.assert_allclose(other.ends or (), own.ends or (), rtol=1e-6)
            predicted += 1
    return predicted


def test_records_of_every_kind_in_one_file_are_predicted_as_alone(tmp_path):
    chosen = random.Random(48)
    fewest = {key[:2]: key for key in kinds()}  # one of each kind and batch rule
    lines = [chosen.choice(kinds()[key]) for key in fewest.values()]
    rules = {json.loads(line)["workload"].get("batch_rule") for line in lines if json.loads(line).get("workload")}
    assert {"given", "memory", "rate", "concurrency"} <= rules
    chosen.shuffle(lines)
    assert compared(lines, tmp_path) >= len(lines) - 1


@pytest.mark.slow
def test_five_records_of_everything_that_decides_are_predicted_as_alone(tmp_path):
    chosen = random.Random(5)
    lines = [line for own in kinds().values() for line in chosen.sample(own, min(5, len(own)))]
    chosen.shuffle(lines)
    assert compared(lines, tmp_path) > 0.9 * len(lines)


def test_the_command_takes_a_rate_beside_clients(tmp_path, monkeypatch, capsys):
    """Two rows of one engine: requests at a rate, and clients that ask again."""
    shipped = kinds()
    rate = next(lines[0] for key, lines in shipped.items() if key[1] == "rate")
    dense = ("inference", "concurrency", False, False, None, False)
    loop = json.loads(shipped[dense][0])
    loop["workload"]["requests"] = 10 * loop["workload"]["batch"]  # so that clients ask them
    (tmp_path / "two.jsonl").write_text(f"{rate}\n{json.dumps(loop)}\n")
    status, text, _ = run(monkeypatch, capsys, "validate", tmp_path / "two.jsonl")
    assert status == 0
    assert json.loads(rate)["id"] in text
    assert loop["id"] in text
