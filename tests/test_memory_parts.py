"""The parts of a device's memory as a user sees them: told apart, and adding up to the whole."""

import re
from pathlib import Path

import pytest

from perfgrid.formulas import registry_of
from tests.test_bad_input import run

PAGE = Path(__file__).parents[1] / "docs" / "memory.md"


def test_the_parts_of_the_memory_page_add_up_to_the_whole(monkeypatch, capsys, tmp_path):
    """What a reader of docs/memory.md sees can be added up: in its table, in the study that makes it, in words."""
    page = PAGE.read_text()
    (study,) = re.findall(r"```toml\n(.*?)```", page, re.S)
    (written,) = re.findall(r"```console\n\$ perfgrid run.*?\n(.*?)```", page, re.S)
    (tmp_path / "memory.toml").write_text(study)
    status, out, err = run(monkeypatch, capsys, "run", tmp_path / "memory.toml")
    assert status == 0, err
    tables = []
    for text in (written, out):
        rows = text[text.index("\nsoftware ") :].split("\na  ")[0].splitlines()[1:]
        tables.append([line.split() for line in rows])
        same = dict(re.findall(r"(\w+_memory) = ([\d.]+) GiB", text))
        assert set(same) == {"state_memory", "working_memory", "reserved_memory"}
        assert [name for name in ("memory per device", "activation memory") if name not in rows[0]] == []
        for _, recompute, whole, *others in tables[-1][1:]:
            if recompute != "none":
                parts = [others[0], *same.values()]
                assert sum(map(float, parts)) == pytest.approx(float(whole), abs=0.02)
    assert tables[0] == tables[1]


ENGINE = ("weight_memory", "workspace_memory", "reserved_memory", "communicator_memory", "graph_memory")


@pytest.mark.parametrize(
    ("workload", "whole", "parts"),
    [
        (
            "training",
            "memory_per_device",
            ("state_memory", "activation_memory", "working_memory", "reserved_memory"),
        ),
        ("inference", "memory_per_device", ("engine_memory", "kv_cache_memory", "recurrent_state_memory")),
        ("inference", "engine_memory", ENGINE),
    ],
)
def test_the_gloss_of_a_memory_names_its_parts(workload, whole, parts):
    meaning = registry_of(workload).formulas[whole].meaning
    assert all(part in meaning for part in parts)
