"""Serving systems that took part in no fit: how their records are read, and what was taught by looking at them."""

from pathlib import Path

import pytest

import perfgrid as pg
from perfgrid.catalog import load_catalog
from perfgrid.formulas import registry_of
from perfgrid.validation.design import designs
from perfgrid.validation.inference import InferenceMapper
from perfgrid.validation.schema import read_records

from .designs import evaluate

UNSEEN = Path(pg.__file__).parent / "validation" / "unseen"
MET = {"intel_gaudi2": 0.10, "intel_gaudi3": 0.12, "lmdeploy_a100": 0.08, "nim_h100": 0.10, "vllm_h100": 0.20}


@pytest.fixture(scope="module")
def records():
    found, problems = read_records([UNSEEN])
    assert not problems
    return {r.id: r for r in found if r.kind == "inference"}


@pytest.fixture(scope="module")
def rows(records):
    registry = registry_of("inference")
    mapped = designs(records.values(), load_catalog(), registry, InferenceMapper)
    return {row.label: row.columns for row in mapped.rows}


def test_no_unseen_measurement_is_a_shipped_one(records):
    shipped = {(r.device, r.quantity, r.value) for r in read_records()[0]}
    assert len(records) >= 150
    assert not {r.id for r in records.values() if (r.device, r.quantity, r.value) in shipped}


def test_clients_limits_and_slots_of_a_server_are_read(rows):
    closed = rows["lmdeploy01-a100-llama2-7b-tp1-128x128-b32"]
    assert (closed["batch_rule"], closed["batch"], closed["cache_slot_tokens"]) == ("clients", 32, 0)
    assert rows["jetstream-v5e-8-llama2-7b-bf16-b96"]["cache_slot_tokens"] == 2048
    limited = rows["oracle-mi300x-llama3.1-405b-tp8-128x2048"]
    assert (limited["batch_rule"], limited["batch_limit"], limited["requests"]) == ("run", 256, 1000)


def test_experts_that_nobody_shares_out_are_divided_as_the_rest(rows):
    divided = rows["vllm2024-h100-mixtral-8x7b-tp2-32x128-b8"]
    assert (divided["tp"], divided["ep"], divided["etp"]) == (2, 1, 2)


def test_slots_of_fixed_shape_are_read_and_kept_whole():
    """A step of short sequences in slots of 2048 places is one of sequences that fill them."""
    names = ("loaded_step_time", "largest_batch")
    common = {"model": "llama-2-7b", "batch": 16.0, "output_tokens": 2.0, "batch_rule": "given"}
    short, slots, filled = (
        evaluate(*names, prompt_tokens=tokens, cache_slot_tokens=places, **common)
        for tokens, places in ((200.0, 0.0), (200.0, 2048.0), (2047.0, 0.0))
    )
    assert slots["loaded_step_time"] == pytest.approx(filled["loaded_step_time"], rel=1e-3)
    assert slots["loaded_step_time"] > 1.3 * short["loaded_step_time"]
    assert slots["largest_batch"] < short["largest_batch"] / 5


def test_dense_models_of_unseen_systems_are_met():
    """Gaudi 2 and 3, LMDeploy, NIM and vLLM, of which no constant was fitted (vLLM) or no device (Gaudi)."""
    found = {g.name: g.error for g in pg.validate([UNSEEN / f"{name}.jsonl" for name in MET]).groups()}
    assert {name: found[name].median for name in MET if (found[name].median or 1.0) > MET[name]} == {}
    assert min(found[name].rank or 0.0 for name in MET) > 0.97
