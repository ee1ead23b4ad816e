"""Records whose source only names its software: matched by its words, with a wider interval."""

import json

import pytest

from perfgrid.validation.schema import SHIPPED
from perfgrid.validation.validate import validate

LINE = next(line for line in (SHIPPED / "nemo_h100.jsonl").read_text(encoding="utf-8").splitlines() if "llama" in line)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """One step as published, and the same by sources without conventions that call their software something."""
    titles = {
        "nemo_h100": None,
        "mine": "Our runs on LLM Foundry",
        "yours": "torchtitan at home",
        "theirs": "Nemotron on a cluster",
    }
    folder, lines = tmp_path_factory.mktemp("named"), []
    for number, (group, title) in enumerate(titles.items()):
        record = json.loads(LINE) | {"id": f"named-{number}", "group": group, "note": ""}
        if title is not None:
            record["source"] = {"title": title, "where": None, "url": None}
            record["plan"]["zero"] = 3
            record["plan"]["pp"], record["plan"]["chunks"] = 1, 1
            record["plan"]["dp"] = record["devices"] // record["plan"]["tp"] // (record["plan"]["cp"] or 1)
        lines.append(json.dumps(record))
    (folder / "runs.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return {p.record.group: p for p in validate(folder).predictions}


def test_the_words_of_a_source_choose_the_entry(found):
    assert {group: p.software for group, p in found.items()} == {
        "nemo_h100": "nemo",
        "mine": "llm-foundry",
        "yours": "torchtitan",
        "theirs": "megatron-core",  # the default: no word of the title is a stack
    }


def test_a_guessed_stack_widens_the_interval_and_is_named(found, tmp_path):
    widths = {group: p.interval.high / p.interval.low for group, p in found.items() if p.interval is not None}
    assert all(
        widths[group] > 2.6 > widths["nemo_h100"] for group in ("mine", "yours", "theirs")
    )  # exp(2 * 1.645 * 0.3)
    assert ("software", "torchtitan", "guessed") in found["yours"].interval.assumptions
