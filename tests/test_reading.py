"""Texts of strangers: a key that stands twice is refused in every syntax, and all are within limits."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgrid import PerfgridError
from perfgrid.catalog import load_variables
from perfgrid.catalog.huggingface import imported
from perfgrid.catalog.reading import DEEPEST, LARGEST_WRITTEN, check_columns, csv_rows, from_json, from_toml, from_yaml
from perfgrid.jobs.read import read_job
from perfgrid.jobs.settings import MOST

from .huggingface_configs import CONFIGS
from .huggingface_hybrids import HYBRIDS
from .test_bad_input import run

TWICE = [
    (from_json, '{"a": 1,\n "b": {"c": [1, {"d": 2}]},\n "a": 2}', "'a' stands twice: 1 in line 1 and 2 in line 3"),
    (from_json, '{"x": {"a": 1,\n"a": {"q": 1}}}', "'x.a' stands twice: 1 in line 1 and a table in line 2"),
    (from_json, '[[1], {"b": [2], "b": null}]', "'b' stands twice: a list and null: keep one of them"),
    (from_json, '{"a": 1, "\\u0061": 1}', "'a' stands twice: 1 and 1"),
    (from_json, '{"": 1, "": "two"}', "'' stands twice"),
    (from_yaml, "a: 1\nb:\n  c: 1\n  c: 2\n", "'c' stands twice: 1 in line 3 and 2 in line 4"),
    (from_yaml, "a: {b: 1, b: [1]}", "'b' stands twice: 1 and a list"),
    (from_yaml, "yes: 1\ntrue: 2", "'true' stands twice: 1 in line 1 and 2 in line 2"),
    (from_yaml, "1: a\n'1': b", "'1' stands twice: a in line 1 and b in line 2"),
    (from_yaml, "- a: 1\n  b: 2\n- c: 1\n  c: 1", "'c' stands twice: 1 in line 3 and 1 in line 4"),
    (from_toml, "a = 1\na = 2", "line 2, column 6)|end of document): a stands twice"),
    (from_toml, "[a]\nb = 1\n[a]\nc = 1", "twice"),
    (from_toml, "a = {b = 1, b = 2}", "Duplicate inline table key 'b'"),
]


@pytest.mark.parametrize(("parse", "text", "message"), TWICE)
def test_no_key_stands_twice(parse, text, message):
    with pytest.raises(PerfgridError) as error:
        parse(text, "x: ")
    assert any(part in str(error.value) for part in message.split("|"))
    assert str(error.value).startswith("x: ")


trees = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text("abc", max_size=2), inside, max_size=3),
    max_leaves=12,
)


@given(trees)
def test_what_is_sound_is_read(tree):
    finite = json.loads(json.dumps(tree, allow_nan=True), parse_constant=lambda _: 0)
    assert from_json(json.dumps(finite)) == finite


@given(st.dictionaries(st.text("abc", min_size=1, max_size=2), trees, min_size=1, max_size=4), st.data())
def test_a_repeated_key_is_found_wherever_it_stands(table, data):
    """Of any table one key is written once more, at any place in it."""
    key = data.draw(st.sampled_from(sorted(table)))
    parts = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in table.items()]
    parts.insert(data.draw(st.integers(0, len(parts))), f"{json.dumps(key)}: 7")
    with pytest.raises(PerfgridError, match=rf"the key '{key}' stands twice: "):
        from_json("{" + ",\n".join(parts) + "}", finite=False)


def test_the_same_setting_in_two_ways(tmp_path):
    """A key with a point in it, and a table in a table, are one setting of a job."""
    for name, text in (
        ("run.json", '{"zero_optimization": {"stage": 3}, "zero_optimization.stage": 2}'),
        ("run.yaml", "zero_optimization:\n  stage: 3\nzero_optimization.stage: 2\n"),
    ):
        with pytest.raises(PerfgridError, match=rf"{name}: zero_optimization.stage stands twice: 3 and 2"):
            read_job({name: text}, format="deepspeed")


def test_settings_of_a_job_have_a_limit():
    text = "".join(f"key_{i}: {i}\n" for i in range(MOST + 1))
    with pytest.raises(PerfgridError, match=r"flat.yaml: 3,001 settings are those of no job: at most 3,000 are read"):
        read_job({"flat.yaml": text}, format="megatron-bridge")


LIMITS = [
    (from_yaml, "x: " + "1:" * 100_000 + "1", "line 1: an integer of more than 308 digits"),
    (from_yaml, "x: " + "1:" * 100_000 + "1.5", "line 1: an integer of more than 308 digits"),
    (from_yaml, "x: 0x" + "f" * 5000, "line 1: an integer of more than 308 digits"),
    (from_yaml, "- " * (DEEPEST + 1) + "a", "more than 64 tables or lists"),
    (from_yaml, "[" * 100_000, "depth|deep"),
    (from_yaml, "a: &x 1\nb: *x", "aliases"),
    (from_yaml, "a: !!timestamp x", "a value that its tag does not allow"),
    (from_yaml, "a: !!bool x", "a value that its tag does not allow"),
    (from_yaml, "a: 2020-99-99", "not valid YAML"),
    (from_yaml, "a: \x1b", "not valid YAML"),
    (from_yaml, "#" * (LARGEST_WRITTEN + 1), "YAML of more than 4,194,304 characters is not read"),
    (from_toml, "#" * (LARGEST_WRITTEN + 1), "TOML of more than 4,194,304 characters is not read"),
    (from_json, '{"a": [1, {"b": NaN}]}', "a.b: nan is no finite number"),
    (from_json, "[1, -Infinity]", "-inf is no finite number"),
    (from_json, '{"a": 1e999}', "a: inf is no finite number"),
    (from_json, f'{{"a": {"9" * 400}.5}}', "a: inf is no finite number"),
    (from_json, "9" * 5000, "an integer of more than 308 digits"),
]


@pytest.mark.parametrize(("parse", "text", "message"), LIMITS)
def test_texts_within_limits(parse, text, message):
    with pytest.raises(PerfgridError, match=message) as error:
        parse(text, "x: ")
    assert str(error.value).startswith("x: ")
    assert len(str(error.value)) < 400


def test_numbers_that_programs_in_python_write(tmp_path, monkeypatch, capsys):
    """Infinity is what Mamba's configurations have as the limit of its steps; as a size it is refused."""
    assert math.isinf(from_json('{"a": Infinity}', finite=False)["a"])
    config = next(c for c in HYBRIDS.values() if "time_step_limit" in c)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config | {"time_step_limit": [0.0, math.inf]}))
    assert run(monkeypatch, capsys, "catalog", "import", path, "--name", "own")[0] == 0
    path.write_text(json.dumps(config | {"num_hidden_layers": math.inf}))
    status, _, err = run(monkeypatch, capsys, "catalog", "import", path, "--name", "own")
    assert status == 2
    assert "num_hidden_layers" in err


@pytest.mark.parametrize("name", sorted(n for n, c in (CONFIGS | HYBRIDS).items() if "num_hidden_layers" in c))
def test_a_billion_layers_are_refused_at_once(name, tmp_path):
    config = (CONFIGS | HYBRIDS)[name] | {"num_hidden_layers": 10**9}
    with pytest.raises(PerfgridError, match=r"num_hidden_layers.* <= 10000, found 1000000000"):
        imported(config, load_variables(), "x")


def test_tables_of_strangers():
    assert list(csv_rows(["a,b", '1,"2,3"'], "t.csv")) == [(1, ["a", "b"]), (2, ["1", "2,3"])]
    for lines, message in (
        (["a", "x" * 70_000], "t.csv:2: a cell of more than 65,536 characters"),
        (["a", "x" * 200_000], "t.csv:2: not valid CSV: field larger"),
        (['a,"b'], "t.csv:1: not valid CSV: unexpected end of data"),
        (["a", '"b"c'], "t.csv:2: not valid CSV"),
    ):
        with pytest.raises(PerfgridError, match=message):
            list(csv_rows(lines, "t.csv"))
    with pytest.raises(PerfgridError, match=r"t.csv: two columns state a: keep one of them"):
        check_columns(["a", "", "", "a"], "t.csv")
