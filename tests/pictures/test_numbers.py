"""Numbers read back from a drawing are those of the dataset."""

import math
from typing import Any

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.pictures.views.make import picture_of, views_of

from .drawn import STUDIES, Drawn


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
