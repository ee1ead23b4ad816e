"""Records: the shipped ones are sound, and an error in a line names its place."""

import json

import pytest

from perfgrid import PerfgridError
from perfgrid.validation.schema import SHIPPED, read_records, record_files


@pytest.fixture(scope="module")
def line():
    """A sound record as its file states it."""
    return json.loads((SHIPPED / "korthikanti.jsonl").read_text().splitlines()[0])


def test_every_shipped_record_is_sound_core_and_has_a_public_source():
    records, problems = read_records()
    assert problems == []
    assert len(records) == sum(len(p.read_text().splitlines()) for p in record_files()) > 650
    assert {r.kind for r in records} == {"training", "inference", "memory", "kernel", "collective"}
    assert all(r.tier == "core" and r.source.title and (r.source.url or "").startswith("http") for r in records)
    by_group = {p.stem for p in record_files()}
    assert by_group == {r.group.lower() for r in records}


def changed(line, path, value):
    copy = json.loads(json.dumps(line))
    *folders, last = path.split(".")
    place = copy
    for folder in folders:
        place = place[folder]
    if value is KeyError:
        del place[last]
    else:
        place[last] = value
    return json.dumps(copy)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("quantity", KeyError, "field 'quantity' is missing"),
        ("model.heads", KeyError, "field 'model.heads' is missing"),
        ("device", "h100-sxm-80g", "unknown device 'h100-sxm-80g'; did you mean 'h100-sxm-80gb'"),
        ("plan.tp", "8", "plan.tp: input should be a valid integer, found '8'"),
        ("plan.tp", True, "plan.tp: input should be a valid integer, found True"),
        ("plan.sequence_parallel", 1, "plan.sequence_parallel: input should be a valid boolean"),
        ("value", float("nan"), "value: nan is no finite number"),
        ("value", -1.42, "value: input should be greater than 0, found -1.42"),
        ("workload.precision", "fp17", "workload.precision: input should be 'fp32'"),
        ("quantity", "step_tme", "unknown quantity 'step_tme'; did you mean 'step_time'"),
        ("reported.unit", "GiB", "reported.unit: '1.42 GiB' has the unit"),
        ("reported.unit", "ms", "value 1.42 s is not the reported 1.42 ms"),
        ("model", None, "a record of kind training needs the block 'model'"),
        ("predictable", False, "predictable must be true exactly where missing is empty"),
        ("pln", {}, "unknown field 'pln'; did you mean 'plan'"),
        ("id", "Has Spaces", "id: string should match pattern"),
    ],
)
def test_a_malformed_record_is_reported_by_line_and_stops_nothing(line, tmp_path, path, value, message):
    file = tmp_path / "mine.jsonl"
    sound = changed(line, "id", "another")
    file.write_text(f"{changed(line, path, value)}\n\n{sound}\n")
    records, problems = read_records([file])
    assert [r.id for r in records] == ["another"]
    assert [p.place for p in problems] == [f"{file}:1"]
    assert message in problems[0].reason


def test_lines_that_are_no_records(line, tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(["{", "[1]", json.dumps(line), json.dumps(line)]))
    records, problems = read_records([file])
    assert len(records) == 1
    assert [p.place.rpartition(":")[2] for p in problems] == ["1", "2", "4"]
    assert "not valid JSON" in problems[0].reason
    assert "a record is a JSON object" in problems[1].reason
    assert f"is already at {file}:3" in problems[2].reason


def test_paths_without_records(tmp_path):
    with pytest.raises(PerfgridError, match="there are no records at"):
        read_records([tmp_path / "none.jsonl"])
    with pytest.raises(PerfgridError, match="there are no records at"):
        read_records([tmp_path])
