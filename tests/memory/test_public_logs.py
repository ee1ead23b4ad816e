"""Memory in public logs: every record names its source and when it was read; half are blind by a hash."""

import hashlib
import tomllib
from pathlib import Path

import pytest

from perfgrid.catalog import load_catalog

LOGS = tomllib.loads((Path(__file__).parent / "public_logs.toml").read_text())
RECORDS = [record for kind in ("server", "trainer") for record in LOGS[kind]]
MEASURED = {"weights_gib", "cache_gib", "cache_tokens", "activations_gib", "non_torch_gib", "graphs_gib", "peak_gib"}
SHARED = {
    "id",
    "source",
    "blind",
    "seen",
    "retrieved",
    "model",
    "checkpoint",
    "device",
    "card",
    "devices",
    "version",
    "note",
}
STATED = {
    "server": {"engine", "launch", "starts", "device_gib", "settings"},
    "trainer": {"stack", "method", "precision", "microbatch", "recompute", "optimizer", "sharding", "runs"},
}


def is_blind(record):
    """Whether the hash of address and id sets this record aside: it may be scored, never fitted or looked at."""
    digest = hashlib.sha256(f"{record['source']} {record['id']}".encode()).hexdigest()
    return int(digest[-1], 16) % 2 == 0


@pytest.fixture(scope="module")
def catalog():
    return load_catalog()


def test_there_are_enough_launches_and_trainers_and_half_are_blind():
    assert len(LOGS["server"]) >= 30
    assert len(LOGS["trainer"]) >= 20
    for kind in ("server", "trainer"):
        share = sum(record["blind"] for record in LOGS[kind]) / len(LOGS[kind])
        assert 0.4 < share < 0.6


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["id"])
def test_a_record_names_its_source_what_ran_and_what_was_measured(record, catalog):
    assert record["source"].startswith("https://")
    assert record["retrieved"].year >= 2026
    assert record["blind"] == is_blind(record)
    assert "model" in record or "checkpoint" in record
    assert "device" in record or "card" in record
    assert record.get("model", "llama-2-7b") in catalog.tables["model"]
    assert record.get("device", "b200") in catalog.tables["device"]
    assert record["devices"] >= 1
    failed = record.get("starts", record.get("runs")) is False
    measured = MEASURED & set(record)
    assert measured or failed
    assert all(record[key] > 0 for key in measured if key not in {"graphs_gib", "cache_gib"})
    assert record.get("cache_gib", 1) > 0 or failed


def test_records_are_distinct_and_have_the_fields_of_their_kind():
    assert len({record["id"] for record in RECORDS}) == len(RECORDS)
    for kind, stated in STATED.items():
        for record in LOGS[kind]:
            required = stated - {"device_gib", "settings"}
            assert required <= set(record), (record["id"], required - set(record))
    known = SHARED | MEASURED | STATED["server"]
    assert all(set(record) <= known for record in LOGS["server"])
