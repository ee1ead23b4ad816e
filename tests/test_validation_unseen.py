"""Records that nothing was fitted to: disjoint from the others, with errors no larger than published."""

import json
import re

import pytest

from perfgrid.validation.schema import UNSEEN, data, read_records, record_files
from perfgrid.validation.two_pools import two_pools
from tests.test_bad_input import run
from tools.validation import RECORDED
from tools.validation import data as of_tools

WORSE = 1.1  # times what is recorded: more fails
RENEW = "if this is meant, run: python -m tools.validation"
FAR = 0.2  # median error from which a source has a sentence on its cause


@pytest.fixture
def found(unseen):
    return unseen


@pytest.fixture(scope="module")
def recorded():
    return json.loads(RECORDED.read_text())["unseen"]


def place(url):
    """Where a source is published, without the version of a repository and of a paper."""
    parts = url.split("/")
    return "/".join(parts[:5] + parts[7:]) if parts[2] == "github.com" and len(parts) > 7 else url


def test_every_unseen_record_is_sound_and_predicted_or_has_a_reason(found):
    assert found.problems == []
    files = record_files([UNSEEN])
    assert {p.stem for p in files} == {p.record.group.lower() for p in found.predictions}
    assert all(p.record.tier == "core" and (p.record.source.url or "").startswith("http") for p in found.predictions)
    for p in found.predictions:
        assert (p.predicted is None) == bool(p.reasons), p.record.id
    assert found.assumed() == {}  # every source has its conventions


def test_no_unseen_source_is_also_one_that_constants_or_formulas_rest_on(found):
    shipped, _ = read_records()
    unseen = [p.record for p in found.predictions]
    for told in (lambda r: r.group, lambda r: r.id, lambda r: (r.source.title, r.source.where)):
        assert not {told(r) for r in shipped} & {told(r) for r in unseen}
    assert not {place(r.source.url) for r in shipped if r.source.url} & {place(r.source.url) for r in unseen}


def test_no_unseen_source_is_worse_than_published(found, recorded):
    summary = found.summary()
    assert set(summary["groups"]) == set(recorded["groups"]), RENEW
    for kind in ("groups", "totals"):
        for name, before in recorded[kind].items():
            now = summary[kind][name]
            assert now["predicted"] >= before["predicted"], f"{name}: fewer rows are predicted; {RENEW}"
            for error in ("median", "p90"):
                if before[error] is not None:
                    assert now[error] <= WORSE * before[error] + 1e-3, f"{name}: its {error} grew; {RENEW}"


def test_every_source_that_is_far_off_has_a_sentence_on_its_cause(recorded):
    told = {f["title"] for f in of_tools("findings")["unseen"]}
    assert told <= set(recorded["groups"])
    assert {n for n, g in recorded["groups"].items() if (g["median"] or 0) > FAR} <= told
    assert set(recorded["groups"]) <= set(data("conventions")["group"])


def test_the_command_evaluates_them_alone(monkeypatch, capsys, recorded, found):
    def kept(files, *_):  # what the command would make again
        assert files == UNSEEN
        return found

    monkeypatch.setattr("perfgrid.cli.validate.validate", kept)
    status, out, _ = run(monkeypatch, capsys, "validate", "--unseen", "--json")
    assert status == 0
    data = json.loads(out)
    assert set(data["groups"]) == set(recorded["groups"])
    for name, group in data["groups"].items():
        assert group["median"] == pytest.approx(recorded["groups"][name]["median"], rel=1e-6), RENEW
    assert not {"fitted_constants", "bound_by"} & set(re.findall(r'"(\w+)":', out))  # nothing was fitted to these rows
    trained, stacks = data["groups"]["dgxc_nemotron"], data["groups"]["trtllm12"]
    assert trained["calibrated_constants"] == 5  # those of nemo, from other records
    assert trained["baseline"]["constants_fitted_to_these_rows"] == 2  # a rate for each of two precisions
    assert "calibrated_constants" not in stacks
    assert data["worst"][0]["id"] == found.worst(1)[0].record.id
    served = [p for p in found.worst(len(found.predictions)) if p.record.kind == "inference"]
    worst, alone = served[0], next(p for p in served if not two_pools(p.record))
    assert (worst.largest_part, round(worst.largest_part_share or 0, 2)) == ("prompt_queue_time", 0.7)
    assert (alone.largest_part, round(alone.largest_part_share or 0, 2)) == ("hbm_time", 0.61)
    for wrong in (("--group", "kempner"), ("--explain", "internevo-7b-tp1-zall-1024")):
        status, out, err = run(monkeypatch, capsys, "validate", *wrong)
        assert (status, out) == (2, "")
        assert "give --unseen" in err
    status, out, err = run(monkeypatch, capsys, "validate", "--unseen", UNSEEN)
    assert (status, out) == (2, "")
    assert "--unseen reads records that perfgrid ships" in err
