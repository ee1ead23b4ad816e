"""Views of every kind of every study and result; labels are plain text."""

import re
from typing import Any

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.analysis.roofline import roofline
from perfgrid.pictures.figures.draw import save_figure
from perfgrid.pictures.views.make import picture_of, subject_of, views_of
from perfgrid.validation.schema import SHIPPED
from tests.paths import EXAMPLES, study_path

from .drawn import LAYOUTS, ROOT, STEPS, STUDIES, Drawn

HOSTILE = ["<script>alert(1)</script>", "$x^{2$", "\\frac{a", "a & b"]
FORGED = ["\x1b]0;owned\x07red", "\u202eright"]  # which no study may have, but a file from a stranger


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


def test_a_tornado_names_its_design():
    study = pg.Study.make(**{**STEPS, "best": {"over": ["step", "node"], "minimize": "die_cost"}})
    picture = picture_of(study, {"kind": "tornado", "y": "die_cost", "at": {"step": "B200"}})
    assert any(line.startswith("Design: step=B200, node=n") for line in picture.caption)


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
