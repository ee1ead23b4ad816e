"""Fields that a source leaves open and its authors tuned: the fastest legal choice that fits is predicted."""

import json
from types import SimpleNamespace

import pytest
import xarray as xr

from perfgrid.catalog import load_catalog
from perfgrid.formulas import registry_of
from perfgrid.validation.design import designs
from perfgrid.validation.fastest import fastest, settled
from perfgrid.validation.schema import SHIPPED, read_records
from perfgrid.validation.validate import validate
from perfgrid.validation.variants import variants
from tests.test_bad_input import run

SOURCE = SHIPPED / "mcore_h100.jsonl"
PIPELINED, PLAIN = "mcore-h100-119b", "mcore-h100-7.1b"  # pp = 4 of 92 layers, 16 sequences a replica; 4 sequences


def lines(*identities):
    found = {line["id"]: line for line in map(json.loads, SOURCE.read_text().splitlines())}
    return [found[identity] for identity in identities]


def stated(line, **fields):
    """The same line with a microbatch and chunks."""
    copy = json.loads(json.dumps(line))
    copy["id"] += "".join(f"-{name}{n}" for name, n in fields.items())
    copy["workload"]["microbatch"] = fields["microbatch"]
    copy["plan"]["chunks"] = fields.get("chunks", 1)
    return copy


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Two records with open fields, and all their variants as records of their own."""
    piped, plain = lines(PIPELINED, PLAIN)
    explicit = [stated(piped, microbatch=m, chunks=c) for m in (1, 2, 4, 8, 16) for c in (23,)]
    explicit += [stated(plain, microbatch=m) for m in (1, 2, 4)]
    file = tmp_path_factory.mktemp("tuned") / "tuned.jsonl"
    file.write_text("\n".join(map(json.dumps, (piped, plain, *explicit))))
    return validate(file)


@pytest.mark.parametrize("identity", [PIPELINED, PLAIN])
def test_the_prediction_is_that_of_the_best_explicit_variant(found, identity):
    own = next(p for p in found.predictions if p.record.id == identity)
    others = [p for p in found.predictions if p.record.id.startswith(f"{identity}-")]
    assert not any(p.tuned for p in others)
    assert own.predicted == pytest.approx(min(p.predicted for p in others if p.predicted and p.fits), rel=1e-12)
    assert own.fits
    assert own.interval is not None
    if identity == PIPELINED:  # 8 and 16 sequences are no multiple of four microbatches
        assert [p.predicted is None for p in others] == [False, False, False, True, True]
        assert own.tuned["chunks"] == 23


def test_the_chosen_row_is_explained(found):
    own = next(p for p in found.predictions if p.record.id == PLAIN)
    assert own.label == f"{PLAIN} microbatch={own.tuned['microbatch']}"
    assert float(found.explain(PLAIN).derivation.value) == pytest.approx(own.predicted, rel=1e-9)


def test_the_command_says_what_was_taken(monkeypatch, capsys):
    status, out, _ = run(monkeypatch, capsys, "validate", SOURCE, "--explain", PLAIN, "--depth", "0")
    assert status == 0
    assert "not stated, the fastest taken: microbatch = " in out


def test_rows_are_settled_once_for_a_calibration(found):
    records = [r for r in read_records([SOURCE])[0] if r.id in (PIPELINED, PLAIN)]
    mapped = designs(records, load_catalog(), registry_of("training"))
    assert len(mapped.rows) == 5 + 3
    chosen = {p.record.id: p.label for p in found.predictions}
    assert {row.record.id: row.label for row in settled(mapped).rows}.items() <= chosen.items()
    assert len(settled(mapped).rows) == 2


def test_values_that_are_tried():
    records = {r.id: r for r in read_records([SOURCE])[0]}
    both = ("microbatch", "chunks")
    tried = [dict(values) for values, _ in variants(records["mcore-h100-177b"], both)]
    assert {v["microbatch"] for v in tried} == {1, 2, 4, 8}  # 24 sequences
    assert {v["chunks"] for v in tried} == {2, 4, 8, 16}  # 16 layers of a stage, interleaved
    assert [dict(values) for values, _ in variants(records[PLAIN], both)] == [{"microbatch": n} for n in (1, 2, 4)]
    assert variants(records[PLAIN], ()) == [({}, records[PLAIN])]
    _, record = variants(records[PLAIN], both)[1]
    assert variants(record, both) == [({}, record)]  # what is stated stands


@pytest.mark.parametrize(
    ("steps", "fits", "broken", "best"),
    [
        ([3.0, 2.0, 1.0], [True, True, True], [{}, {}, {}], 2),
        ([3.0, 2.0, 1.0], [True, True, False], [{}, {}, {}], 1),
        ([3.0, 2.0, 1.0], [True, True, True], [{}, {}, {"c": "why"}], 1),
        ([3.0, 2.0, 1.0], [False, False, True], [{}, {}, {"c": "why"}], 1),  # none fits: the fastest legal one
        ([float("nan"), 2.0, 3.0], [True, True, True], [{}, {}, {}], 1),
    ],
)
def test_the_fastest_legal_row_that_fits_is_taken(steps, fits, broken, best):
    record = SimpleNamespace(id="open")
    rows = [SimpleNamespace(record=record, tuned={"microbatch": 2**k}) for k in range(3)]
    alone = SimpleNamespace(record=SimpleNamespace(id="stated"), tuned={})
    result = xr.Dataset({"step_time": ("row", [*steps, 9.0]), "fits_memory": ("row", [*fits, False])})
    assert fastest([*rows, alone], result, [*broken, {}]) == [best, 3]  # type: ignore[list-item]
