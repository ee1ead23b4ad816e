"""What is stored of drawn systems is what the oracle finds: of a few that are quickly simulated."""

import pytest

from .__main__ import BOUNDS, FEWEST, simulated, stored
from .compared import errors
from .measures import TIMES

STRUCTURES = ("replica", "pipeline", "lockstep", "pools")


@pytest.fixture(scope="module")
def records():
    return stored()


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_stored_system_is_found_again(records, structure):
    """Stored anew by ``python -m tests.inference.oracle`` where times of passes have changed."""
    quick = [
        r for r in records if r["structure"] == structure and r["requests"] == FEWEST and r["load"]["kind"] == "open"
    ]
    record = max(quick, key=lambda r: r["load"]["of_capacity"])
    found = simulated(record["seed"])
    assert found is not None
    for time in TIMES:
        for statistic, (value, half) in record["measures"][time].items():
            assert found["measures"][time][statistic][0] == pytest.approx(value, rel=0.01, abs=half / 5)


def test_stored_systems_are_of_every_structure_engine_and_load(records):
    assert {r["structure"] for r in records} == set(STRUCTURES)
    assert {r["load"]["kind"] for r in records} == {"open", "clients", "endless"}
    assert {"vllm", "sglang", "tensorrt-llm"} <= {r["engine"] for r in records}
    loads = [r["load"]["of_capacity"] for r in records if r["load"]["kind"] == "open"]
    assert min(loads) < 0.15
    assert max(loads) > 0.85


def test_percentiles_are_in_order(records):
    for record in records:
        for time in (*TIMES, "gap"):
            values = [record["measures"][time][p][0] for p in BOUNDS]
            assert values == sorted(values), (record["seed"], time)


def test_errors_of_formulas_are_found(records):
    """Those that are narrow have a number for every percentile."""
    narrow = next(r for r in records if r["narrow"] and r["structure"] == "replica" and r["load"]["kind"] == "open")
    assert errors(narrow).shape == (3, 3)
    assert (errors(narrow) > -1).all()
