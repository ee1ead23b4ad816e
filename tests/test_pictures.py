"""Pictures: numbers read back from a drawing are those of the dataset; labels are text; errors are one line."""

import itertools
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import pyplot

import perfgrid as pg
from perfgrid.analysis.roofline import roofline
from perfgrid.pictures.figures.draw import save_figure
from perfgrid.pictures.views.make import picture_of, subject_of, views_of
from perfgrid.validation.schema import SHIPPED
from tests.paths import EXAMPLES, study_path
from tests.test_bad_input import run

ROOT = Path(__file__).parents[1]
STUDIES = ROOT / "studies"
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = ["<script>alert(1)</script>", "$x^{2$", "\\frac{a", "a & b"]
FORGED = ["\x1b]0;owned\x07red", "\u202eright"]  # which no study may have, but a file from a stranger
LAYOUTS: dict[str, Any] = {
    "outputs": ["step_time", "memory_per_device", "model_flops_utilization"],
    "axes": {
        "model": ["llama-3.1-70b"],
        "device": ["h100-sxm-80gb", "b200"],
        "topology": ["rail-optimized"],
        "hbm_bandwidth": {"scale": [0.5, 1.0, 2.0]},
        "parallelism": {"devices": [64], "tp": [1, 2, 8], "pp": [1, 2, 4]},
    },
    "workload_parameters": {"sequence_length": 4096, "global_batch": 128},
    "best": {"over": "parallelism", "minimize": "step_time"},
}


@pytest.fixture(scope="module")
def layouts():
    """A study of layouts and its dataset."""
    study = pg.Study.make(**LAYOUTS)
    return study, pg.evaluate(study)


@pytest.fixture(autouse=True)
def closed():
    yield
    pyplot.close("all")


# -- numbers, from the drawing ----------------------------------------------------------------------------------------


class Drawn:
    """What a reader of an SVG file can measure in its first panel."""

    def __init__(self, picture, folder):
        self.root = ElementTree.parse(save_figure(picture, folder / "picture.svg", overwrite=True)).getroot()
        self.texts = [text.text or "" for text in self.root.iter(SVG + "text")]
        self.scale = {axis.scale for axis in (picture.panels[0].x, picture.panels[0].y)}

    def group(self, name):
        return next(one for one in self.root.iter(SVG + "g") if one.get("id") == name)

    def ruler(self, axis, log=False):
        """From a place on the page to a number, by the ticks of an axis."""
        places, numbers = [], []
        for tick in self.root.iter(SVG + "g"):
            if re.fullmatch(rf"{axis}tick_\d+", tick.get("id", "")):
                places.append(float(next(tick.iter(SVG + "use")).get(axis, "nan")))
                numbers.append(float(next(tick.iter(SVG + "text")).text or "nan"))
            if tick.get("id") == "axes_2":
                break
        slope, start = np.polyfit(places, np.log(numbers) if log else numbers, 1)
        return lambda at: np.exp(slope * np.array(at) + start) if log else slope * np.array(at) + start

    def path(self, name):
        """The corners of the first path of a group."""
        found = next(self.group(name).iter(SVG + "path")).get("d", "")
        return np.array([[float(x), float(y)] for x, y in re.findall(r"[ML] (\S+) (\S+)", found)])


def test_lines_have_the_numbers_of_the_dataset(layouts, tmp_path):
    study, ds = layouts
    picture = picture_of(study, {"kind": "lines", "x": "hbm_bandwidth", "y": "step_time", "colour": "device"})
    drawn = Drawn(picture, tmp_path)
    expected = ds.step_time.where(pg.feasible(ds)).min("parallelism").squeeze()
    assert [series.name for series in picture.panels[0].series] == ["h100-sxm-80gb", "b200"]
    assert picture.panels[0].y.unit == "s"
    for number, device in enumerate(["h100-sxm-80gb", "b200"]):
        x, y = drawn.path(f"panel-0-series-{number}").T
        np.testing.assert_allclose(drawn.ruler("x")(x), [0.5, 1, 2], rtol=1e-3)
        np.testing.assert_allclose(drawn.ruler("y")(y), expected.sel(device=device), rtol=2e-3)
    assert "step time [s]" in drawn.texts
    assert any(text.startswith("Each mark is the best design: least step time") for text in drawn.texts)


def test_stacked_bars_add_up_to_the_dataset(tmp_path):
    study = pg.load_study(STUDIES / "bill_of_materials.toml")
    ds = pg.evaluate(study).sel(yield_model="harvested")
    parts = ["silicon_cost", "memory_cost", "package_cost"]
    view: Any = {"kind": "bars", "x": "yield_model", "y": parts, "at": {"device": "b200"}}
    drawn = Drawn(picture_of(study, view), tmp_path)
    ends = np.cumsum([float(ds.sel(device="b200")[part]) for part in parts])
    for number, end in enumerate(ends):
        corners = drawn.ruler("y")(drawn.path(f"panel-0-series-{number}-1")[:, 1])  # the second bar: harvested
        assert max(corners) == pytest.approx(end, rel=2e-3)
        assert min(corners) == pytest.approx([0.0, *ends][number], rel=2e-3, abs=2)


def test_cells_have_the_numbers_of_the_dataset_and_the_reasons_of_infeasible_ones(layouts, tmp_path):
    study, ds = layouts
    at = {"device": "h100-sxm-80gb", "hbm_bandwidth": 1.0}
    picture = picture_of(study, {"kind": "heatmap", "value": "step_time", "at": at})
    cells = picture.panels[0].cells
    one = ds.sel(at).squeeze()
    fits = pg.feasible(one)
    assert cells is not None
    infeasible = 0
    for i, j in np.ndindex(len(cells.numbers), len(cells.numbers[0])):
        tp, pp = int(picture.panels[0].x.categories[j]), int(picture.panels[0].y.categories[i])
        here = (one.tp == tp) & (one.pp == pp)
        best = float(one.step_time.where(fits & here).min())
        assert cells.numbers[i][j] == pytest.approx(best, nan_ok=True)
        assert bool(cells.reasons[i][j]) == math.isnan(best)
        infeasible += math.isnan(best)
        if not math.isnan(best):
            assert float(cells.texts[i][j]) == pytest.approx(best, rel=1e-3)
    assert 0 < infeasible < 9
    reason = one.fits_memory.attrs["reason"]
    assert any(reason in line for line in picture.caption)
    texts = Drawn(picture, tmp_path).texts
    assert {text for row in cells.texts for text in row} <= set(texts)


def test_infeasible_marks_keep_their_place_and_reason(layouts, tmp_path):
    study, _ = layouts
    picture = picture_of(study, {"kind": "lines", "x": "tp", "y": "step_time", "at": {"device": "h100-sxm-80gb"}})
    (series,) = picture.panels[0].series
    assert np.isnan(series.y).tolist() == [bool(why) for why in series.reasons]
    assert any(np.isnan(series.y))
    drawn = Drawn(picture, tmp_path)
    assert drawn.texts.count("\u00d7") == int(np.isnan(series.y).sum())


def test_a_scatter_has_every_legal_design(layouts):
    study, ds = layouts
    at = {"device": "h100-sxm-80gb", "hbm_bandwidth": 1.0}
    view: Any = {"kind": "scatter", "x": "memory_per_device", "y": "model_flops_utilization", "colour": "tp", "at": at}
    picture = picture_of(study, view)
    one = ds.sel(at).squeeze()
    legal = pg.feasible(one, ("illegal",)).values
    fits = legal & pg.feasible(one).values
    drawn = sorted((x, y) for s in picture.every_series() if not s.reasons for x, y in zip(s.x, s.y, strict=True))
    held = zip(one.memory_per_device.values[fits] / 2**30, one.model_flops_utilization.values[fits], strict=True)
    np.testing.assert_allclose(drawn, sorted(held), rtol=1e-6)
    assert sum(len(series.x) for series in picture.every_series()) == legal.sum()


def test_memory_and_breakdown_add_up(layouts):
    study, ds = layouts
    view: Any = {"x": "device", "at": {"hbm_bandwidth": 1.0}}
    best = pg.best(ds.sel(hbm_bandwidth=1.0), over="parallelism", minimize="step_time")
    for kind, quantity, size in (("memory", "memory_per_device", 2**30), ("breakdown", "step_time", 1)):
        panel = picture_of(study, {"kind": kind, **view}).panels[0]
        top = [s for s in panel.series if s.shape == "bars"][-1].y
        np.testing.assert_allclose(np.array(top) * size, best[quantity].values.ravel(), rtol=1e-6)
        assert panel.y.size == pytest.approx(size)


def test_bars_on_their_side_have_their_numbers_along_x(monkeypatch, layouts):
    study, _ = layouts
    view: Any = {"kind": "memory", "x": "hbm_bandwidth", "at": {"device": "b200"}}
    upright = picture_of(study, view).panels[0]
    monkeypatch.setattr("perfgrid.pictures.views.breakdown.ACROSS", 0)
    lying = picture_of(study, view).panels[0]
    assert [(rule.along, rule.at) for rule in lying.rules] == [("x", rule.at) for rule in upright.rules] != []
    assert [series.x for series in lying.series] == [series.y for series in upright.series]
    assert lying.y.categories == upright.x.categories[::-1]


def test_a_result_gives_the_picture_of_its_study(layouts):
    study, ds = layouts
    for view in views_of(study):
        of_study, of_result = (picture_of(what, view) for what in (study, ds))
        for one, other in zip(of_study.panels, of_result.panels, strict=True):
            for a, b in zip(one.series, other.series, strict=True):
                np.testing.assert_allclose((a.x, a.y), (b.x, b.y), rtol=1e-6)


# -- every kind, every default, the gallery -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("study", "view"),
    [
        ("bill_of_materials", "tornado"),
        ("chat_pools", "cost"),
        ("collectives", "all_reduce"),
        ("gpu_generations", "roofline"),
        ("recompute_memory", "parts"),
    ],
)
def test_views_of_studies(study, view, tmp_path):
    picture = picture_of(subject_of(study_path(study)), view)
    drawn = Drawn(picture, tmp_path)
    assert picture.see
    assert picture.caption
    assert {series.name for series in picture.every_series()} <= set(drawn.texts) | {"infeasible"}
    for suffix, start in ((".png", b"\x89PNG"), (".pdf", b"%PDF")):
        assert save_figure(picture, tmp_path / f"picture{suffix}").read_bytes().startswith(start)


@pytest.mark.parametrize("device", ["h100-sxm-80gb", "b200"])
def test_no_product_lies_above_its_roof(device):
    found = roofline(pg.Study.make(**LAYOUTS), {"device": device, "hbm_bandwidth": 1.0})
    for product in found.products:
        assert product.flops / product.time <= found.peak
        for level, traffic in product.traffic.items():
            assert traffic / product.time <= found.bandwidths[level] * (1 + 1e-9), (product.name, product.phase, level)


def test_the_gallery_shows_every_study_as_it_is():
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    shown = {study: set() for study in EXAMPLES}
    for study, view in re.findall(r"^perfgrid plot studies/(\S+) --view (\S+)", page, re.M):
        shown[STUDIES / study].add(view)
    for study, names in shown.items():
        assert names
        views = {view.name: view for view in views_of(subject_of(study))}
        for name in names:
            picture = ROOT / "docs" / "gallery" / f"{study.stem}-{name}.png"
            assert (
                f"## {views[name].title}\n\n{views[name].see}\n\n![{views[name].title}](gallery/{picture.name})" in page
            )
            assert 1000 < picture.stat().st_size < 60_000


@pytest.mark.parametrize("study", ["dram_technology", "design_accelerator"])
def test_studies_without_views_have_good_ones(study, tmp_path):
    what = subject_of(study_path(study))
    what.file.view.clear()
    kinds = [view.kind for view in views_of(what)]
    assert kinds[0] in ("lines", "bars")
    for view in views_of(what):  # say what was chosen for them
        assert all(f"{label}" in view.title for name, label in view.at.items() if not isinstance(label, float))
    for view in views_of(what):
        Drawn(picture_of(what, view), tmp_path)


def test_what_other_functions_return(layouts, tmp_path):
    study, ds = layouts
    at = {"device": "b200", "hbm_bandwidth": 1.0}
    found = [
        pg.best(ds, over="parallelism", minimize="step_time"),
        pg.pareto(ds, maximize=["model_flops_utilization"], minimize=["memory_per_device"]),
        pg.timeline(ds, at),
        pg.distribution(study, "step_time", over="parallelism"),
        pg.compare(ds, {"device": "b200"}, {"device": "h100-sxm-80gb"}, {"hbm_bandwidth": 1.0}),
    ]
    kinds = []
    for one in found:
        picture = picture_of(subject_of(one))
        kinds.append(picture.kind)
        Drawn(picture, tmp_path)
    assert kinds == ["lines", "frontier", "timeline", "bars", "waterfall"]


def test_predictions_lie_beside_measurements(tmp_path):
    found = pg.validate(SHIPPED / "korthikanti.jsonl").dataset()
    picture = picture_of(found, {"name": "measured", "colour": "share", "at": {"kind": "training"}})
    line, *series = picture.panels[0].series
    points = [point for one in series for point in zip(one.x, one.y, one.low, one.high, strict=True)]
    rows = [found[n].values[found.kind == "training"] for n in ("measured", "predicted", "low", "high")]
    np.testing.assert_allclose(sorted(points), sorted(zip(*rows, strict=True)))
    assert line.x == line.y
    Drawn(picture, tmp_path)
    for wrong in ({"colour": "nobody"}, {"at": {"knd": "training"}}, {"at": {"kind": "nothing"}}):
        with pytest.raises(pg.PerfgridError, match=r"nobody|did you mean 'kind'|no record is predicted"):
            picture_of(found, {"name": "measured", **wrong})


def test_results_without_designs_have_one_picture(layouts):
    found = pg.timeline(layouts[0], {"device": "b200", "hbm_bandwidth": 1.0})
    assert [(view.name, view.kind) for view in views_of(found)] == [("timeline", "timeline")]
    for view in ({"kind": "lines"}, {"name": "timeline", "at": {"device": 0}}):
        with pytest.raises(pg.PerfgridError, match="timeline"):
            picture_of(found, view)


def test_a_waterfall_ends_at_the_times_compared(layouts):
    study, _ = layouts
    a, b, at = {"device": "h100-sxm-80gb"}, {"device": "b200"}, {"hbm_bandwidth": 1.0}
    found = pg.compare(study, a, b, at)
    panel = picture_of(study, {"kind": "waterfall", "a": a, "b": b, "at": at}).panels[0]
    bars = {p: (low, high) for s in panel.series for low, high, p in zip(s.base, s.x, s.y, strict=True)}
    steps = [bars[place] for place in sorted(bars, reverse=True)]
    times = [time / panel.x.size for time in found.times]
    assert steps[0][1] == pytest.approx(times[0])
    assert steps[-1] == pytest.approx((0, times[1]))
    for before, after in itertools.pairwise(steps[1:-1]):
        assert before[1] == pytest.approx(after[0])
    assert steps[-2][1] == pytest.approx(times[1], rel=1e-6)


STEPS: dict[str, Any] = {
    "outputs": ["die_cost", "manufacturing_cost"],
    "workload": "manufacturing",
    "axes": {
        "step": {"labels": ["A100", "H100", "B200"], "zip": {"device": ["a100-sxm-80gb", "h100-sxm-80gb", "b200"]}},
        "node": ["n7", "n5"],
    },
}
ALONG: dict[str, Any] = {"kind": "waterfall", "x": "step", "y": "manufacturing_cost", "facets": "node"}


@pytest.mark.parametrize("scale", ["log", "linear"])
def test_a_waterfall_along_an_axis_goes_from_label_to_label(scale, tmp_path):
    study = pg.Study.make(**STEPS)
    costs = pg.evaluate(study).manufacturing_cost
    published = {"name": "bought", "values": {"A100": 100.0, "B200": "800 USD"}, "source": "kundu2024"}
    picture = picture_of(study, {**ALONG, "y_scale": scale, "published": [published]})
    assert [panel.title for panel in picture.panels] == ["node n7", "node n5", "bought"]
    chains = [*costs.transpose("node", "step").values.tolist(), [100.0, np.nan, 800.0]]
    for panel, chain in zip(picture.panels, chains, strict=True):
        assert panel.y.categories == ("all steps", "B200", "H100", "A100")
        bars = {at: (b, e) for s in panel.series for at, b, e in zip(s.y, s.base, s.x, strict=True)}
        known = [(3.0 - i, value / panel.x.size) for i, value in enumerate(chain) if math.isfinite(value)]
        assert sorted(bars) == sorted([0.0, *(at for at, _ in known)])
        for (_, before), (at, value) in itertools.pairwise(known):
            assert bars[at] == pytest.approx((before, value))
        assert bars[known[0][0]][1] == pytest.approx(known[0][1])
        assert bars[0.0] == pytest.approx((bars[known[0][0]][0], known[-1][1]))
        texts = {at: text for s in panel.series for at, text in zip(s.y, s.texts, strict=True)}
        factor = f"\u00d7{chain[-1] / chain[0]:.3g}"
        assert texts[0.0].endswith(factor) == (scale == "log")
    assert any(line == "bought: Kundu et al. 2024." for line in picture.caption)
    drawn, panel = Drawn(picture, tmp_path), picture.panels[0]
    number, first = next((n, s) for n, s in enumerate(panel.series) if s.name != "total")
    corners = drawn.path(f"panel-0-series-{number}")[:, 0]
    ends = drawn.ruler("x", log=scale == "log")([corners.min(), corners.max()])
    np.testing.assert_allclose(ends, sorted((first.base[0], first.x[0])), rtol=5e-3)


def test_labels_without_a_design_are_passed_over(layouts):
    study, _ = layouts
    view: Any = {
        "kind": "waterfall",
        "x": "tp",
        "y": "step_time",
        "at": {"device": "h100-sxm-80gb", "hbm_bandwidth": 1},
    }
    (panel,) = picture_of(study, view).panels
    crossed = {at for s in panel.series for at, why in zip(s.y, s.reasons, strict=False) if why}
    bars = {at for s in panel.series for at, value in zip(s.y, s.x, strict=True) if math.isfinite(value)}
    assert crossed
    assert crossed | bars == {0.0, 1.0, 2.0, 3.0}
    assert not crossed & bars


@pytest.mark.parametrize(
    ("view", "told"),
    [
        ({"x": None, "facets": None}, "a waterfall needs labels of two designs"),
        ({"colour": "node", "facets": None}, "without colour"),
        ({"y": ["die_cost", "manufacturing_cost"]}, "shows one output in y"),
        ({"published": [{"name": "p", "values": {"A10": 1}, "source": "kundu2024"}]}, "unknown label 'A10'"),
        (
            {"published": [{"name": "p", "values": {"A100": 1}, "source": "kundu"}]},
            "'kundu' is not in the bibliography",
        ),
        ({"published": [{"name": "p", "values": {"A100": "1 s"}, "source": "kundu2024"}]}, "expected USD"),
        ({"kind": "bars", "published": [{"name": "p", "values": {}, "source": "kundu2024"}]}, "a waterfall along x"),
    ],
)
def test_waterfalls_that_say_too_little(view, told):
    with pytest.raises(pg.PerfgridError, match=re.escape(told)):
        picture_of(pg.Study.make(**STEPS, view=[{k: v for k, v in {**ALONG, **view}.items() if v is not None}]))


# -- pg.plot and the command ------------------------------------------------------------------------------------------


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


def test_a_tornado_names_its_design():
    study = pg.Study.make(**{**STEPS, "best": {"over": ["step", "node"], "minimize": "die_cost"}})
    picture = picture_of(study, {"kind": "tornado", "y": "die_cost", "at": {"step": "B200"}})
    assert any(line.startswith("Design: step=B200, node=n") for line in picture.caption)


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
    ("arguments", "told"),
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
def test_mistakes_are_told_in_one_line(monkeypatch, capsys, tmp_path, arguments, told):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(monkeypatch, capsys, "plot", STUDIES / "bill_of_materials.toml", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("perfgrid: ")
    assert len(err.strip().splitlines()) == 1
    assert told in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("view", "told"),
    [
        ({"x": "devise"}, "unknown axis 'devise'; did you mean 'device'?"),
        ({"x": "device", "y": "die_cots"}, "unknown output 'die_cots'; did you mean 'die_cost'?"),
        ({"x": "device", "y": "die_cost", "at": {"device": "b2000"}}, "b2000"),
        ({"x": "device", "y": "die_cost", "color": "device"}, "color"),
        ({"kind": "pie"}, "pie"),
    ],
)
def test_views_are_checked_when_a_study_is_loaded(view, told):
    with pytest.raises(pg.PerfgridError, match=re.escape(told)):
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


# -- labels of strangers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bars", "lines", "heatmap"])
def test_labels_are_plain_text(kind, tmp_path):
    title, rows = "title $y$ <b>&amp;\x1b[31m", [*HOSTILE, "c", "d"]
    study = pg.Study.make(
        title="study",
        workload="manufacturing",
        outputs=["die_cost"],
        axes={"row": {"labels": rows, "zip": {"device": ["b200"] * len(rows)}}, "node": ["n5", "n3"]},
        best={"over": [], "minimize": "die_cost"},
    )
    views: dict[str, Any] = {
        "bars": {"x": "row", "y": "die_cost", "colour": "node"},
        "lines": {"x": "node", "y": "die_cost", "colour": "row"},
        "heatmap": {"x": "node", "y": "row", "value": "die_cost"},
    }
    ds = pg.evaluate(study).assign_coords(row=[*HOSTILE, *FORGED])
    picture = picture_of(ds, {"kind": kind, "title": title, **views[kind]})
    drawn = Drawn(picture, tmp_path)
    assert {*HOSTILE, "\\x1b]0;owned\\x07red", "\\u202eright"} <= set(drawn.texts)
    assert "title $y$ <b>&amp;\\x1b[31m" in drawn.texts
    raw = (tmp_path / "picture.svg").read_text(encoding="utf-8")
    assert "<script" not in raw
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e]", raw)
    save_figure(picture, tmp_path / "picture.png")
    save_figure(picture, tmp_path / "picture.pdf")
