"""Bad input ends with exit status 2, one sentence that names file, key and nearest legal names, and nothing written."""

import sys

import pytest

from perfgrid import cli

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


def test_models_beyond_the_physics_are_refused(refused):
    refused("axes.model", "mixtral-8x7b", "mixture of experts", model='["mixtral-8x7b"]')
    refused("axes.model", "deepseek-v3", model='["deepseek-v3"]')


def test_wrong_types_and_units(refused):
    refused("axes.microbatch", "'two'", axes='microbatch = ["two"]')
    refused("axes.microbatch", "1.5", axes="microbatch = [1.5]")
    refused("axes.hbm_bandwidth", "'3 TB'", axes='hbm_bandwidth = ["3 TB"]')
    refused("axes.microbatch", "needs a list", axes="microbatch = 3")
    refused("workload_parameters.flash_attention", "true or false", parameters='flash_attention = "yes"')
    refused("outputs", text=GOOD.format(**PARTS).replace('["step_time", "memory_per_device"]', '"step_time"'))
    refused("axes.recompute: only numbers can be scaled", axes="recompute = { scale = [1, 2] }")


def test_empty_and_repeated_axes(refused):
    refused("axes.microbatch", "empty", axes="microbatch = []")
    refused("axes.model", "empty", model="[]")
    refused("axes.model", "'llama-2-7b' more than once", model='["llama-2-7b", "llama-2-7b"]')
    refused("axes.microbatch", "1.0 more than once", axes="microbatch = [1, 1]")
    refused("'microbatch' is also an axis", axes="microbatch = [1, 2]", parameters="microbatch = 2")


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


def test_missing_statements(refused):
    text = GOOD.format(**PARTS)
    refused("'global_batch'", "[workload_parameters]", text=text.replace("global_batch = 128", ""))
    refused("'layers'", "axes.model", text=text.replace('model = ["llama-2-7b"]', ""))
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
    assert "cannot read study" in err
    status, _, err = run(monkeypatch, capsys, "explain", tmp_path / "result.nc", "step_time")
    assert status == 2
    assert "result.nc" in err


def test_a_grid_beyond_memory_names_the_command_that_streams(refused, monkeypatch):
    monkeypatch.setattr("perfgrid.run.available_memory", lambda: 10)
    refused("GiB", "--stream -o FILE.nc")


def test_points_and_quantities_of_explain(monkeypatch, capsys, tmp_path):
    path = write(tmp_path, axes="microbatch = [1, 2]")
    for arguments, expected in [
        (("step_time",), "not given: microbatch (such as 1), parallelism"),
        (("step_tme", "--at", "microbatch=1,parallelism=tp1.pp1.dp16"), "did you mean 'step_time'"),
        (("step_time", "--at", "microbach=1"), "no axis 'microbach'; did you mean 'microbatch'"),
        (("step_time", "--at", "microbatch=9,parallelism=tp1.pp1.dp16"), "axis 'microbatch' has no label '9'"),
        (("step_time", "--at", "microbatch"), "must read axis=label"),
    ]:
        status, out, err = run(monkeypatch, capsys, "explain", path, *arguments)
        assert status == 2
        assert out == ""
        assert expected in err
