"""Bad input ends with exit status 2, one sentence that names file, key and nearest legal names, and nothing written."""

import json
import subprocess
import sys
from typing import Any, cast

import numpy as np
import pytest

import perfgrid as pg
from perfgrid import PerfgridError, Study, formula, load_catalog
from perfgrid.cli import main as cli
from tests import small

GOOD = """
title = "small"
outputs = ["step_time", "memory_per_device"]
{top}
[axes]
model = {model}
device = ["h100-sxm-80gb"]
topology = ["rail-optimized"]
{axes}
[axes.parallelism]
devices = {devices}
tp = [1, 2, 4]
pp = [1, 2]
{layout}
[workload_parameters]
sequence_length = 2048
global_batch = 128
{parameters}
"""
PARTS = {
    "top": "",
    "model": '["llama-2-7b"]',
    "axes": "",
    "devices": "[16]",
    "layout": "",
    "parameters": "",
}


def run(monkeypatch, capsys, *arguments):
    """The command as a user calls it: (exit status, standard output, standard error)."""
    monkeypatch.setattr(sys, "argv", ["perfgrid", *map(str, arguments)])
    status = 0
    try:
        cli.main()
    except SystemExit as stop:
        status = int(stop.code or 0)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def write(folder, text=None, **parts):
    path = folder / "study.toml"
    path.write_text(text if text is not None else GOOD.format(**PARTS | parts))
    return path


@pytest.fixture
def refused(monkeypatch, capsys, tmp_path):
    """Run a study that must be refused; its one sentence."""

    def check(*expected, extra=(), output="result.nc", text=None, **parts):
        path = write(tmp_path, text, **parts)
        before = sorted(p.name for p in tmp_path.iterdir())
        status, out, err = run(monkeypatch, capsys, "run", path, "-o", tmp_path / output, *extra)
        assert status == 2, err
        assert out == ""
        assert err.startswith("perfgrid: ")
        assert len(err.strip().splitlines()) == 1, err
        for part in expected:
            assert part in err, err
        assert sorted(p.name for p in tmp_path.iterdir()) == before  # nothing half-written
        return err

    return check


def test_the_study_that_the_others_are_made_of_is_good(monkeypatch, capsys, tmp_path):
    status, out, _ = run(monkeypatch, capsys, "run", write(tmp_path), "-o", tmp_path / "result.nc")
    assert status == 0
    assert "points" in out
    assert (tmp_path / "result.nc").exists()


def test_unknown_names(refused):
    refused("study.toml", "axes.model", "'llama-2-7'", "'llama-2-7b'", model='["llama-2-7"]')
    refused("study.toml", "axes.modle", "unknown axis", "'model'", axes='modle = ["llama-2-7b"]')
    refused("study.toml", "'step_tme'", "'step_time'", text=GOOD.format(**PARTS).replace('"step_time"', '"step_tme"'))
    refused("study.toml", "unknown key 'titel'", "'title'", top='titel = "x"')
    refused("study.toml", "parallelism: unknown key 'tpp'", "'tp'", layout="tpp = [1]")
    refused("workload_parameters.sequence_lenght", "'sequence_length'", parameters="sequence_lenght = 1")
    refused(
        "axes.hbm_bandwidth.scale", "unknown key 'stpo'", axes="hbm_bandwidth = { scale = { start = 1, stpo = 2 } }"
    )
    refused("'fp3'", "'fp8'", parameters='precision = "fp3"')
    refused(
        "best.over: unknown axis 'paralelism'",
        "'parallelism'",
        top='best = { over = "paralelism", minimize = "step_time" }',
    )
    refused("'best.ovr'", "'over'", top='best = { ovr = "parallelism", over = "model", minimize = "step_time" }')


def test_labels_are_no_outputs(refused):
    for name in ("recompute", "parallelism"):
        refused("outputs", f"'{name}' labels designs", text=GOOD.format(**PARTS).replace('"step_time"', f'"{name}"'))


def test_labels_and_given_quantities_as_objectives(monkeypatch, capsys, tmp_path):
    path = write(tmp_path)
    commands = [
        ("best", "--minimize"),
        ("best", "--pareto"),
        ("distribution", "--of"),
        ("optimize", "--over", "hbm_bandwidth=1e12:2e12", "--minimize"),
    ]
    for command in commands:
        for name, told in (
            ("recompute", "'recompute' is a label (selective), no number; legal names: memory_per_device, step_time"),
            ("step_tme", "unknown quantity 'step_tme'; did you mean 'step_time'"),
        ):
            named = f"memory_per_device,{name}" if "--pareto" in command else name
            status, _, err = run(monkeypatch, capsys, command[0], path, *command[1:], named)
            assert status == 2
            assert told in err
    status, out, _ = run(monkeypatch, capsys, "best", path, "--pareto", "step_time,hbm_capacity")
    assert status == 0
    assert "hbm capacity [GiB]" in out
    assert " 80" in out


def test_best_is_checked_before_work(refused):
    def best(**keys):
        inside = ", ".join(
            f"{k} = {v}" for k, v in ({"over": '"parallelism"', "minimize": '"step_time"'} | keys).items()
        )
        return "best = { " + inside + " }"

    refused("best.at", "no label '3'", top=best(at='{ device = "3" }'))
    refused("stands in over and in at", top=best(over='"device"', at='{ device = "h100-sxm-80gb" }'))
    refused("'stp_time' is not among the outputs", "'step_time'", top=best(minimize='"stp_time"'))
    refused("either minimize or maximize", top=best(maximize='"step_time"'))


def test_what_no_formula_reads_is_refused(refused):
    refused("axes.active_parameters: no formula of this workload depends on", axes="active_parameters = [1e9, 2e9]")
    refused("overrides.parameters: no formula", top="overrides = { parameters = 7e9 }")


def test_a_quantity_is_stated_once(refused):
    refused(
        "overrides.microbatch: axes.microbatch states 'microbatch' too",
        axes="microbatch = [1]",
        top="overrides = { microbatch = 4 }",
    )
    refused(
        "overrides.microbatch: workload_parameters.microbatch states 'microbatch' too; state it once",
        parameters="microbatch = 2",
        top="overrides = { microbatch = 4 }",
    )
    refused("overrides.tp: axes.parallelism states 'tp' too", top="overrides = { tp = 2 }")
    refused("axes.model and axes.case both state 'model'", axes='case = { zip = { model = ["llama-2-7b"] } }')
    refused("--set device.b200.hbm_bandwidth", "uses no such device", extra=("--set", "device.b200.hbm_bandwidth=1e12"))


@pytest.mark.parametrize(
    "text",
    ["5,0 TB/s", "TB/s", "€5 TB/s", "5 TB/s # x", "2**3 TB/s", "50 GB/s/2", "5 * 2 TB/s", "5 000 GB/s", "∞ TB/s"],
)
def test_one_number_and_a_unit(refused, text):
    refused("axes.hbm_bandwidth", axes=f'hbm_bandwidth = ["{text}"]')


def test_scales_and_sizes_stay_within_bounds(refused):
    refused("matrix_efficiency", "<= 1", axes="matrix_efficiency = { scale = [1, 2] }")
    refused("hbm_bandwidth", "between", axes="hbm_bandwidth = [1e-300]")
    refused(
        "sequence_length",
        "between",
        text=GOOD.format(**PARTS).replace("sequence_length = 2048", "sequence_length = 1e30"),
    )
    refused(
        "axes.hbm_bandwidth.scale",
        "num between 1 and",
        axes="hbm_bandwidth = { scale = { start = 1, stop = 2, num = 1000000000 } }",
    )


def test_zipped_rows_are_checked(refused):
    refused("axes.case.zip", "table of lists", axes="case = { zip = 3 }")
    refused(
        "axes.case.zip.device",
        "list of device names",
        text=GOOD.format(**PARTS | {"axes": "case = { zip = { device = [1] } }"}).replace(
            'device = ["h100-sxm-80gb"]\n', ""
        ),
    )
    refused("axes.case.labels", "list of 1 names", axes="case = { zip = { microbatch = [1] }, labels = 3 }")
    refused("'tier' has the name of an inner axis", axes="tier = { zip = { microbatch = [1] } }")


def test_wrong_types_and_units(refused):
    refused("axes.microbatch", "'two'", axes='microbatch = ["two"]')
    refused("axes.microbatch", "1.5", axes="microbatch = [1.5]")
    refused("axes.hbm_bandwidth", "'3 TB'", axes='hbm_bandwidth = ["3 TB"]')
    refused("axes.microbatch", "needs a list", axes="microbatch = 3")
    refused("workload_parameters.flash_attention", "true or false", parameters='flash_attention = "yes"')
    refused("outputs", text=GOOD.format(**PARTS).replace('["step_time", "memory_per_device"]', '"step_time"'))
    refused("axes.recompute: only given numbers can be scaled", axes="recompute = { scale = [1, 2] }")


def test_empty_and_repeated_axes(refused):
    refused("axes.microbatch", "empty", axes="microbatch = []")
    refused("axes.model", "empty", model="[]")
    refused("axes.model", "'llama-2-7b' more than once", model='["llama-2-7b", "llama-2-7b"]')
    refused("axes.microbatch", "lists 1 more than once", axes="microbatch = [1, 1]")
    refused("axes.tp: axes.parallelism states 'tp' too", axes="tp = { zip = { microbatch = [1, 2] } }")
    refused("axes.microbatch states 'microbatch' too", axes="microbatch = [1, 2]", parameters="microbatch = 2")
    refused("axes.case states 'zero' too", axes="case = { zip = { zero = [0, 1] } }", parameters="zero = 1")
    refused("axes.parallelism states 'chunks' too", layout="chunks = [1, 2]", parameters="chunks = 2")


def test_python_studies_take_numbers_of_any_kind():
    axes = {"microbatch": range(1, 3), "device": ("h100-sxm-80gb",), "hbm_bandwidth": {"scale": np.array([1, 2])}}
    axes["parallelism"] = {"devices": np.int64(16), "tp": np.array([1, 2]), "pp": [np.int32(1)]}
    made = small.study(
        axes=axes | {"model": ["llama-2-7b"], "topology": ["rail-optimized"], "zero": [np.int64(1)]},
        workload_parameters={"sequence_length": np.int64(2048), "global_batch": np.float32(192)},
        overrides={"flash_attention": np.True_},
    )
    assert [len(axis) for axis in made.space.axes] == [2, 1, 2, 2, 1, 1, 1]
    json.dumps([made.file.axes, made.file.workload_parameters, made.file.overrides])
    assert load_catalog().with_values({"device.b200.cores": np.int64(7)}).entry("device", "b200").values["cores"] == 7.0
    with pytest.raises(PerfgridError, match=r"sequence_length: an integer of more than 308 digits"):
        small.study(workload_parameters={"sequence_length": 10**400, "global_batch": 192})
    with pytest.raises(PerfgridError, match=r"hbm_bandwidth\.scale: an integer of more than 308 digits"):
        small.study(axes={**axes, "model": ["llama-2-7b"], "hbm_bandwidth": {"scale": [10**400]}})
    with pytest.raises(PerfgridError, match=r"absent\.toml"):
        small.study(catalog=["absent.toml"])
    with pytest.raises(PerfgridError, match="must be a number, found True"):
        small.study(workload_parameters={"sequence_length": np.True_, "global_batch": 192})


def test_what_is_no_study_and_no_result():
    path, result = cast(Any, "study.toml"), cast(Any, pg.evaluate(small.study()))
    for asked in (
        lambda: pg.evaluate(path),
        lambda: pg.best(path, "parallelism"),
        lambda: pg.optimize(path, "step_time"),
        lambda: pg.pareto(path, ["step_time", "memory_per_device"]),
        lambda: pg.distribution(path, "step_time"),
        lambda: pg.gradient(path, "step_time", "hbm_bandwidth"),
        lambda: pg.stream(path, "x.nc"),
        lambda: pg.function(path, "step_time"),
        lambda: pg.tornado(path, "step_time"),
        lambda: pg.morris(path, "step_time"),
        lambda: pg.sobol(path, "step_time"),
    ):
        with pytest.raises(PerfgridError, match=r"needs a Study, found .*load_study\(path\) reads one from a file"):
            asked()
    for asked in (
        lambda: pg.explain(path, "step_time", {}),
        lambda: pg.kernels(path, {}),
        lambda: pg.timeline(path, {}),
        lambda: pg.compare(path),
        lambda: pg.compare(result, other=path),
        lambda: pg.save(path, "x.nc"),
    ):
        with pytest.raises(PerfgridError, match=r"a Study or a result is needed, found 'study.toml'"):
            asked()
    for asked in (lambda: pg.diff(result, path), lambda: pg.feasible(path), lambda: pg.quantiles(path)):
        with pytest.raises(PerfgridError, match=r"needs a result, found 'study.toml'; open_result\(path\) reads one"):
            asked()
    chosen = pg.best(result, "parallelism", "step_time")
    with pytest.raises(PerfgridError, match="designs that were chosen along parallelism: compare designs of the study"):
        pg.compare(chosen, {"device": "h100-sxm-80gb"}, {"device": "b200"})


def test_units_of_own_formulas_are_known():
    @formula(unit="foo", source="mine")
    def own_time(step_time):
        """Something of the user's."""
        return step_time

    with pytest.raises(PerfgridError, match="formula 'own_time': unknown unit 'foo'"):
        Study.make(**small.content(), formulas=[own_time])


def test_a_cluster_without_a_layout(refused):
    refused("axes.parallelism", "7 devices has no layout", devices="[7]", layout="dp = [2]")


@pytest.mark.parametrize("value", ["0", "-4", "nan", "inf"])
def test_numbers_that_are_none(refused, value):
    refused("workload_parameters.training_tokens", parameters=f"training_tokens = {value}")
    refused("axes.hbm_bandwidth", axes=f"hbm_bandwidth = [{value}]")
    refused("axes.hbm_bandwidth", axes=f"hbm_bandwidth = {{ scale = [1, {value}] }}")
    refused("device.h100-sxm-80gb.hbm_bandwidth", extra=("--set", f"device.h100-sxm-80gb.hbm_bandwidth={value}"))


def test_conditions_that_cannot_be_read(refused):
    refused("where", "cannot read 'tp <='", top='where = "tp <="')
    refused("where", "unknown name 'tpp'", "'tp'", top='where = "tpp <= 2"')
    refused("where", "not allowed in a condition", top="where = \"__import__('os').getcwd() == 1\"")
    refused("where", "leaves no row of axis 'parallelism'", top='where = "tp > 64"')
    refused("where", "compares nothing", top='where = "tp + 1"')
    refused("where", "compares a text with a number", top='where = "model < 3"')
    refused("where", "is no label", "'llama-2-7b'", top="where = \"model == 'llama-2-7c'\"")
    refused("where", "compares a text with a number", top="where = \"hbm_capacity > '100 GiB'\"")
    refused("where", "cannot compute", top='where = "9 ** 9 ** 9 > tp"')
    refused("where", "not a finite number", top='where = "tp / 0 > 1"')


def test_missing_statements(refused):
    text = GOOD.format(**PARTS)
    refused("'global_batch'", "[workload_parameters]", text=text.replace("global_batch = 128", ""))
    refused("'layers'", "[axes], as model", text=text.replace('model = ["llama-2-7b"]', ""))
    refused("states no devices", text=text.replace("devices = [16]", ""))
    refused("key 'outputs' is missing", text=text.replace('outputs = ["step_time", "memory_per_device"]', ""))


def test_files_that_cannot_be_read_or_written(refused, monkeypatch, capsys, tmp_path):
    refused("cannot write", "there is no folder", output="nowhere/result.nc")
    refused("cannot write", ".nc", output="result.csv")
    refused("not valid TOML", text="title = ")
    (tmp_path / "result.nc").write_text("precious")
    refused("exists; give --overwrite")
    assert (tmp_path / "result.nc").read_text() == "precious"
    status, _, err = run(monkeypatch, capsys, "run", tmp_path / "absent.toml")
    assert status == 2
    assert "absent.toml: cannot be read: No such file" in err
    for name, why in (("result.nc", "neither netCDF nor"), ("absent.nc", "No such file"), ("a.zarr", "No such file")):
        status, _, err = run(monkeypatch, capsys, "explain", tmp_path / name, "step_time")
        assert status == 2
        assert f"{name}': " in err
        assert why in err
        assert "give a study (.toml) or a result (.nc, .zarr, .pgf)" in err


def test_stores_without_the_package_that_writes_them(tmp_path):
    write(tmp_path)
    without = "import sys; sys.modules['zarr'] = None; from perfgrid.cli.main import main; main()"
    for arguments in (["run", "study.toml", "-o", "s.zarr"], ["verify", "s.zarr"]):
        done = subprocess.run([sys.executable, "-c", without, *arguments], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2
        assert "pip install 'perfgrid[stream]'" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_grid_beyond_memory_names_the_ways_that_fit(refused, monkeypatch):
    monkeypatch.setattr("perfgrid.results.memory.peaks", lambda *_, **__: {"memory": 9e15, ".nc": 8e15, ".pgf": 1e6})
    monkeypatch.setattr("perfgrid.results.memory.FILES", (".nc", ".pgf"))
    refused("take 8e+06 GB of memory at most", "with -o FILE.pgf 0.001 GB)")


def test_points_and_quantities_of_explain(monkeypatch, capsys, tmp_path):
    path = write(tmp_path, axes="microbatch = [1, 2]")
    for arguments, expected in [
        (("step_time", "--at", "parallelism=tp3"), "axis 'parallelism' has no label 'tp3'"),
        (("step_tme", "--at", "microbatch=1,parallelism=tp1.pp1.dp16"), "did you mean 'step_time'"),
        (("step_tme", "--at", "microbatch=1"), "did you mean 'step_time'"),
        (("step_time", "--at", "microbach=1"), "no axis 'microbach'; did you mean 'microbatch'"),
        (("step_time", "--at", "microbatch=9,parallelism=tp1.pp1.dp16"), "axis 'microbatch' has no label '9'"),
        (("step_time", "--at", "microbatch"), "must read axis=label"),
    ]:
        status, out, err = run(monkeypatch, capsys, "explain", path, *arguments)
        assert status == 2
        assert out == ""
        assert expected in err


def test_an_analysis_that_fails_after_the_first_leaves_no_file(monkeypatch, capsys, tmp_path):
    target = tmp_path / "s.nc"
    command = ("sensitivity", write(tmp_path), "--cross", "-o", target)
    status, _, err = run(monkeypatch, capsys, *command)
    assert (status, target.exists()) == (2, False)
    assert "cross-elasticities need a single design" in err
