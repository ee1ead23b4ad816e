"""`pg.plot` and the command: drawings, and errors of one line."""

import json
import re
import subprocess
import sys

import pytest
from matplotlib import pyplot

import perfgrid as pg
from tests.paths import study_path
from tests.test_bad_input import run

from .drawn import STUDIES


def test_plot_draws_on_axes(layouts):
    study, _ = layouts
    ax = pg.plot(study, kind="lines", x="hbm_bandwidth", y="step_time", colour="device")
    assert ax.get_ylabel() == "step time [s]"
    assert ax.get_xlabel() == "HBM bandwidth, times that stated"
    assert pg.plot(study, "heatmap", at={"device": "b200"}).get_xlabel() == "tp"
    assert pg.plot(pg.compare(study, {"device": "b200"}, {"device": "h100-sxm-80gb"}), units={}).get_xlabel()
    own = pyplot.figure().subplots()
    assert (
        pg.plot(study, {"kind": "bars", "x": "device", "y": "step_time", "at": {"hbm_bandwidth": 1.0}}, ax=own) is own
    )
    assert [text.get_text() for text in own.get_xticklabels()] == ["h100-sxm-80gb", "b200"]


def test_designs_of_a_waterfall_by_the_command(monkeypatch, capsys):
    path = study_path("gpu_generations")
    few = ("--set", "axes.parallelism={devices=[1024], tp=[4], pp=[8]}", "--set", "axes.microbatch=[1]")
    sides = ("--a", "system=A100 HDR bf16", "--b", "system=B200 NDR fp8")
    status, out, _ = run(monkeypatch, capsys, "plot", path, *few, *sides, "--json")
    assert status == 0
    drawn = json.loads(out)
    names = drawn["panels"][0]["y"]["categories"]
    assert (names[-1], names[0]) == ("A: A100 HDR bf16", "B: B200 NDR fp8")
    status, _, err = run(monkeypatch, capsys, "plot", path, *few, *sides, "--view", "split", "--json")
    assert (status, err) == (2, "perfgrid: --a and --b are the designs of a waterfall, found the view 'split'\n")


def test_the_command_draws_lists_and_never_overwrites(monkeypatch, capsys, tmp_path):
    study, target = STUDIES / "bill_of_materials.toml", tmp_path / "parts.svg"
    status, out, _ = run(monkeypatch, capsys, "plot", study)
    assert status == 0
    assert re.findall(r"parts|tornado", out)[:2] == ["parts", "tornado"]
    status, out, _ = run(monkeypatch, capsys, "plot", study, "-o", target)
    assert (status, out.splitlines()[-1]) == (0, f"saved {target}")
    before = target.read_bytes()
    assert run(monkeypatch, capsys, "plot", study, "-o", target)[0] == 2
    assert run(monkeypatch, capsys, "plot", study, "-o", target, "--overwrite")[0] == 0
    assert target.read_bytes() == before  # the same picture has the same bytes
    status, out, _ = run(monkeypatch, capsys, "plot", study, "--view", "bars", "--at", "device=b200", "--json")
    assert status == 0
    assert json.loads(out)["kind"] == "bars"
    status, out, _ = run(
        monkeypatch, capsys, "plot", study, "--view", "parts", "--at", "yield_model=negative_binomial", "--json"
    )
    assert json.loads(out)["see"] == ""  # which is of other designs
    assert sorted(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--view", "part", "-o", "x.png"], "there is no view 'part'; did you mean 'parts' or 'bars'?"),
        (["-o", "x.txt"], "must end in .png, .svg, .pdf"),
        (["-o", "nowhere/x.png"], "nowhere"),
        (["--view", "parts", "--at", "device=b2000", "-o", "x.png"], "b2000"),
        (["--view", "parts", "--at", "devise=b200", "-o", "x.png"], "devise"),
        (["--view", "timeline", "-o", "x.png"], "a timeline is of the workloads training and inference"),
        (["--view", "memory", "-o", "x.png"], "memory_per_device"),
        (["--view", "frontier", "-o", "x.png"], "a frontier needs an output in x and one in y"),
    ],
)
def test_mistakes_are_reported_in_one_line(monkeypatch, capsys, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(monkeypatch, capsys, "plot", STUDIES / "bill_of_materials.toml", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("perfgrid: ")
    assert len(err.strip().splitlines()) == 1
    assert message in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("view", "message"),
    [
        ({"x": "devise"}, "unknown axis 'devise'; did you mean 'device'?"),
        ({"x": "device", "y": "die_cots"}, "unknown output 'die_cots'; did you mean 'die_cost'?"),
        ({"x": "device", "y": "die_cost", "at": {"device": "b2000"}}, "b2000"),
        ({"x": "device", "y": "die_cost", "color": "device"}, "color"),
        ({"kind": "pie"}, "pie"),
    ],
)
def test_views_are_checked_when_a_study_is_loaded(view, message):
    with pytest.raises(pg.PerfgridError, match=re.escape(message)):
        pg.Study.make(workload="manufacturing", outputs=["die_cost"], axes={"device": ["b200", "mi300x"]}, view=[view])


def test_without_matplotlib(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    target = tmp_path / "x.png"
    status, _, err = run(monkeypatch, capsys, "plot", STUDIES / "bill_of_materials.toml", "-o", target)
    assert (status, err) == (2, "perfgrid: a picture needs matplotlib: pip install 'perfgrid[plot]'\n")


def test_matplotlib_is_imported_by_figures_only():
    code = (
        "import sys, perfgrid; perfgrid.plot; import perfgrid.pictures.views.make; print('matplotlib' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
