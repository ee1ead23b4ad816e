"""Files, names, conditions and tables that no study should hold end in one line, soon, and with nothing written."""

import json
import os
import warnings
from typing import Any

import numpy as np
import pytest

import perfgrid as pg
from perfgrid import PerfgridError
from perfgrid.catalog import load_catalog
from tests.paths import study_path
from tests.test_bad_input import run

STUDY = {"workload": '"manufacturing"', "outputs": '["die_cost", "die_area"]', "axes.device": '["b200", "mi300x"]'}
DEEP, LONG = "[" * 5000 + "]" * 5000, "9" * 5000


def write(folder, **changed: str):
    """The study with keys changed; dots are written as __."""
    content = STUDY | {key.replace("__", "."): value for key, value in changed.items()}
    path = folder / "study.toml"
    path.write_text("".join(f"{key} = {value}\n" for key, value in content.items()))
    return path


@pytest.fixture
def refused(monkeypatch, capsys, tmp_path):
    """Run a command that must be refused in one line."""

    def check(*arguments: Any, message: str):
        before = sorted(tmp_path.iterdir())
        status, out, err = run(monkeypatch, capsys, *arguments)
        assert status == 2, err
        assert out == ""
        assert err.startswith("perfgrid: ")
        assert len(err.strip().splitlines()) == 1
        assert len(err) < 5000
        assert message in err
        assert sorted(tmp_path.iterdir()) == before

    return check


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["run"], "a.toml"),
        (["validate"], "a.jsonl"),
        (["catalog", "check"], "b.toml"),
        (["catalog", "import"], "a.json"),
    ],
)
def test_only_files_of_some_size_are_read(refused, tmp_path, arguments, name):
    os.mkfifo(tmp_path / name)
    refused(*arguments, tmp_path / name, message="it is a pipe or a device and no file")
    (tmp_path / name).unlink()
    with open(tmp_path / name, "wb") as file:
        file.truncate(2**26 + 1)
    refused(*arguments, tmp_path / name, message="at most 64 MiB are read")


def test_catalogs_of_a_study_are_files(refused, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refused("plan", write(tmp_path, catalog='["pipe"]'), message="pipe: cannot be read: it is a pipe")
    refused("plan", write(tmp_path, catalog='["a\\u0000b"]'), message="null")
    chain = 'kind = "device"\n[x0]\nextends = "b200"\n' + "".join(
        f'[x{i}]\nextends = "x{i - 1}"\n' for i in range(1, 3000)
    )
    (tmp_path / "chain.toml").write_text(chain)
    refused(
        "plan", write(tmp_path, catalog='["chain.toml"]'), message="chain.toml, [x32] extends a chain of more than 32"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"x = {DEEP}", "more than 64 tables or lists"),
        ("x = " + "{a = " * 5000 + "1" + "}" * 5000, "more than 64 tables or lists"),
        ("[" + ".".join(["a"] * 5000) + "]", "more than 64 tables or lists"),
        (f"x = {LONG}", "integer of more than 308 digits"),
        (f"axes.hbm_bandwidth = [0x{'f' * 5000}]", "axes.hbm_bandwidth: an integer of more than 308 digits"),
        ('"a\\nb" = 1', "'a\\nb' holds characters that cannot be printed"),
    ],
)
def test_numbers_and_tables_within_limits(refused, tmp_path, text, message):
    (tmp_path / "study.toml").write_text(text)
    refused("plan", tmp_path / "study.toml", message=message)
    refused("catalog", "check", tmp_path / "study.toml", message=message)
    (tmp_path / "study.toml").unlink()


@pytest.mark.parametrize(
    "setting",
    [
        f"axes.hbm_bandwidth={DEEP}",
        f"axes.hbm_bandwidth=[{LONG}]",
        ".".join(["axes"] * 3000) + "=1",
        "device.b200.dies=" + LONG,
    ],
)
def test_settings_within_limits(refused, tmp_path, setting):
    refused("plan", write(tmp_path), "--set", setting, message="more than")


def test_tuples_of_python_studies_are_within_limits():
    content = {"workload": "manufacturing", "outputs": ["die_cost"]}
    deep: Any = 1.0
    for _ in range(100):
        deep = (deep,)
    for values, message in (((10**400,), "integer of more than 308 digits"), (deep, "more than 64 tables or lists")):
        with pytest.raises(PerfgridError, match=message):
            pg.Study.make(**content, axes={"device": ["b200"], "wafer_price": {"scale": values}})


def test_a_line_of_brackets_is_a_bad_record(monkeypatch, capsys, tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(["[" * 100_000, '{"id": ' + LONG + "}", "{}"]))
    status, _, err = run(monkeypatch, capsys, "validate", path)
    assert status == 2
    assert "mine.jsonl:1: more than 64 tables or lists" in err


# -- names ------------------------------------------------------------------------------------------------------------

NAMES = ["a/b", ".", "..", "../../x", "", "a.b", "a b", "x" * 300, "-x", "a\\u0001b", "a=b", "a,b", "µ"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_axes_and_workloads(refused, tmp_path, name):
    zipped = write(tmp_path, **{f'axes__"{name.replace("__", "")}"': "{ zip = { wafer_price = [1e4] } }"})
    message = "characters that cannot be printed" if "\\u" in name else "a name may hold"
    refused("run", zipped, "-o", tmp_path / "r.zarr", message=message)
    refused("plan", write(tmp_path, workloads=f'[{{ name = "{name}" }}]'), message="a name may hold")


LABELS = ["2020-01-01", "12:00:00", "{ a = 1 }", "[1]", "[1, 2]", "true", "nan", "inf", '""', '" a"', '"a\\nb"']
LABELS += [f'"{"x" * 300}"', "1" + "0" * 300]


@pytest.mark.parametrize("label", LABELS)
def test_labels_of_rows(refused, tmp_path, label):
    path = write(tmp_path, axes__case=f"{{ zip = {{ wafer_price = [1e4, 2e4] }}, labels = ['other', {label}] }}")
    refused(
        "run", path, "-o", tmp_path / "result.nc", message="axes.case.labels: a label is a finite number, or a text"
    )


def test_legal_labels_stay():
    for labels in (["H100 on rails, NCCL", "東京\u3000大阪", "10\u00a0GB 👩\u200d💻"], [1, 3, -3], [1.0, 2.5, 1e300]):
        axes = {"device": ["b200"], "case": {"zip": {"wafer_price": [1e4, 2e4, 3e4]}, "labels": labels}}
        made = pg.Study.make(workload="manufacturing", outputs=["die_cost"], axes=axes)
        assert made.space.axes[1].labels.tolist() == labels


# -- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"workload_parameters__yield_model": '"banana"'}, "yield_model must be one of"),
        ({"axes__yield_model": '["murphy", "banana"]'}, "axes.yield_model must be one of"),
        ({"axes__case": '{ zip = { yield_model = ["banana"] } }'}, "zip.yield_model must be one of"),
        ({"overrides__memory_in_package": '"banana"'}, "must be one of none, stacks, found 'banana'"),
        ({"optimize__over": '["zzz"]'}, "optimize.over: unknown quantity 'zzz'"),
        ({"optimize__over": "{ wafer_price = [1] }"}, "optimize.over.wafer_price: need a low and a high value"),
        ({"optimize__over": '{ wafer_price = ["1 s", "2 s"] }'}, "expected USD"),
        ({"optimize__over": "{ wafer_price = [2e4, 1e4] }"}, "optimize.over.wafer_price: the low end must lie below"),
        ({"optimize__over": '["die_cost"]'}, "optimize.over: 'die_cost' is computed by a formula and cannot be free"),
        ({"optimize__over": '["dies"]'}, "optimize.over: 'dies' is a whole number and has no derivative"),
        ({"optimize__over": '["yield_model"]'}, "optimize.over: 'yield_model' is a label and has no derivative"),
        ({"optimize__over": '["wafer_price.x"]'}, "optimize.over: 'wafer_price' has no components"),
        ({"optimize__minimize": '"yield_model"'}, "optimize: 'yield_model' is a label"),
        ({"optimize__subject_to": '["yield_model < 1"]'}, "limit 'yield_model < 1': 'yield_model' is a label"),
        ({"optimize__minimize": '"zzz"'}, "optimize: unknown quantity 'zzz'"),
        (
            {"optimize": '{ minimize = "die_cost", maximize = "die_cost" }'},
            "optimize: give either minimize or maximize",
        ),
        ({"optimize__choose": '"zzz"'}, "optimize: unknown axis 'zzz'"),
        ({"optimize__subject_to": '["zzz < 1"]'}, "optimize.subject_to: limit 'zzz < 1': unknown quantity 'zzz'"),
        ({"optimize__subject_to": '["die_cost"]'}, "a limit must read"),
        ({"workloads": "[{ foo = 1 }]"}, "unknown key 'workloads.0.foo'"),
        ({"workloads": '[{ name = "a", axes = "x" }]'}, "workloads.0.axes"),
        ({"workloads": '[{ name = "a", axes = { zzz = [1] } }]'}, "study.toml (a), axes.zzz: unknown axis"),
        ({"workloads": '[{ name = "a", weight = nan }]'}, "workloads.0.weight"),
        ({"workloads": '[{ name = "a" }, { name = "a" }]'}, "another workload has the name 'a'"),
        ({"choices__die_yield": '"zzz"'}, "choices: 'die_yield' has no alternative 'zzz'"),
        ({"choices__zzz": '"a"'}, "choices: 'zzz' has no alternatives"),
        (
            {"pareto": '{ over = "device", maximize = ["die_cost", "die_cost"] }'},
            "pareto.maximize: names 'die_cost' twice",
        ),
        ({"workload_parameters__software": '"vllm"'}, "it is an axis: state it in [axes], such as software = [...]"),
        ({"workload_parameters__parallelism": "1"}, "it is an axis: state it in [axes]"),
        ({"overrides__software": '"vllm"'}, "it is an axis: state it in [axes]"),
        ({"workload_parameters__where": '"a"'}, "it is a key of the study"),
        ({"axes__wafer_price": "{ start = true, stop = 2, num = 2 }"}, "start, stop and num must be finite numbers"),
        ({"axes__wafer_price": "{ scale = [1, 1e308] }"}, "must be finite"),
        ({"overrides__die_cost": "1e300"}, "overrides.die_cost must be"),
    ],
)
def test_every_table_is_checked_by_every_command(refused, tmp_path, changed, message):
    path = write(tmp_path, **changed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refused("plan", path, message=message)
        refused("run", path, message=message)


@pytest.mark.parametrize(
    ("command", "option", "message"),
    [
        (["run"], "--dtype", "--dtype must be one of float32, float64, found 'float23'"),
        (["sensitivity"], "--dtype", "--dtype must be one of float32, float64, found 'float23'"),
        (["uncertainty"], "--method", "--method must be one of quantiles, tornado, morris, sobol, found 'float23'"),
        (["formulas"], "--workload", "--workload must be one of training"),
    ],
)
def test_options_name_their_legal_values(refused, tmp_path, command, option, message):
    files = [] if command == ["formulas"] else [write(tmp_path)]
    refused(*command, *files, option, "float23", message=message)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["best", "--over", "device", "--minimize", "die_cost", "--top"], "more than 1,000,000 in all"),
        (["distribution", "--of", "die_cost", "--bins"], "at most 100,000"),
        (["uncertainty", "--method", "morris", "--samples"], "from 2 to 1,000,000"),
        (["uncertainty", "--method", "sobol", "--samples"], "from 2 to 1,000,000"),
        (["optimize", "--minimize", "die_cost", "--over", "wafer_price", "--pareto", "die_area", "--points"], "10,000"),
    ],
)
def test_counts_have_limits(refused, tmp_path, command, message):
    refused(command[0], write(tmp_path), *command[1:], "99999999999999999999", message=message)


def test_precision_of_evaluate():
    made = pg.Study.make(workload="manufacturing", outputs=["die_cost"], axes={"device": ["b200"]})
    for of in (pg.evaluate, pg.sensitivity):
        with pytest.raises(PerfgridError, match="must be float32 or float64, found 'float23'"):
            of(made, dtype="float23")


# -- a formula of the user's in the place of a given quantity --------------------------------------------------------


@pg.formula(unit="USD", source="our price list")
def wafer_price(die_area):
    """Price of a wafer of ours."""
    return 1e4 + 1e6 * die_area


def test_a_formula_replaces_what_the_catalog_gives():
    axes = {"device": ["b200", "mi300x"]}
    outputs = ["die_cost", "wafer_price", "die_area"]
    made = pg.Study.make(workload="manufacturing", outputs=outputs, axes=axes, formulas=[wafer_price])
    found = pg.evaluate(made, "float64")
    np.testing.assert_allclose(found.wafer_price, 1e4 + 1e6 * found.die_area)
    for device, price in zip(axes["device"], found.wafer_price.values.tolist(), strict=True):
        one = {"workload": "manufacturing", "outputs": ["die_cost"], "axes": {"device": [device]}}
        own = load_catalog().entry("device", device).values["process_node"]
        known = load_catalog().with_values({f"node.{own}.wafer_price": price})
        stated = pg.evaluate(pg.Study.make(known, **one), "float64").die_cost.item()
        assert found.die_cost.sel(device=device).item() == pytest.approx(stated)


@pytest.mark.parametrize(
    "stated",
    [
        {"axes": {"device": ["b200"], "wafer_price": [1, 2]}},
        {"axes": {"device": ["b200"], "wafer_price": {"scale": [1, 2]}}},
        {"axes": {"device": ["b200"], "case": {"zip": {"wafer_price": [1, 2]}}}},
        {"overrides": {"wafer_price": 1e4}},
    ],
)
def test_a_quantity_is_computed_or_stated(stated):
    content = {"workload": "manufacturing", "outputs": ["die_cost"], "axes": {"device": ["b200"]}} | stated
    with pytest.raises(PerfgridError, match="a formula of yours computes 'wafer_price' too; keep one of them"):
        pg.Study.make(formulas=[wafer_price], **content)


# -- samples of devices made again -----------------------------------------------------------------------------------


@pytest.mark.parametrize("study", ["chiplet_tradeoff", "node_scaling"])
def test_samples_of_what_a_study_makes_again(monkeypatch, capsys, study):
    path = study_path(study)
    status, out, err = run(monkeypatch, capsys, "plan", path, "--set", "axes.sample={num=4}", "--json")
    assert status == 0, err
    assert json.loads(out)["points"] % 4 == 0


def test_samples_beside_the_own_memory(monkeypatch, capsys, tmp_path):
    path = write(
        tmp_path, axes__memory='["native", "hbm3"]', axes__sample="{ num = 4 }", outputs='["hbm_bandwidth", "die_cost"]'
    )
    status, _, err = run(monkeypatch, capsys, "plan", path)
    assert status == 0, err


def test_no_quantile_of_designs_without_a_feasible_sample(monkeypatch, capsys, tmp_path):
    tall = "{ zip = { die_area = ['100 mm^2', '9000 mm^2'] } }"
    device = '["h100-sxm-80gb"]'
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        path = write(tmp_path, axes__device=device, axes__size=tall, outputs='["die_cost"]')
        status, out, err = run(monkeypatch, capsys, "uncertainty", path, "--samples", "8", "--json")
    assert status == 0, err
    (_, small), (_, large) = [(row["at"], row["values"]) for row in json.loads(out)["quantiles"]]
    assert None not in small
    assert large == [None, None, None]
